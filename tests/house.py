"""Measure the shape of the code and hold it to its limits: ``make lint`` prints the table.

A limit that stands above its goal is where the code is today: lower it when the code gets better.
Lines, and modules of a concept each, may grow with what a user can do; nothing else is ever raised.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "etafree"

#: Kinds that only their own folder may ask for by name.
TOTALS = {"ChunkedTotal", "JaxTotal", "LinearTotal", "PairTotal", "PredictorTotal", "Total"}
TOTALS |= {"StreamedTotal", "VectorTotal", "PointwiseTotal", "CoxTotal", "JaxRows"}
TOTALS |= {"KinkedTotal", "MomentTotal", "QuadraticForm", "StreamedMoments", "TupleTotal"}
STRUCTURES = {"Clusters", "Panel", "ReplicateWeights", "Replicates", "Survey", "TimeSeries"}
STRUCTURES |= {"Dependence", "Independent", "OneWay", "Periods", "Strata", "Structure", "Ways"}


class Measure(NamedTuple):
    """What was counted, how many, where it must stay and where it should go."""

    name: str
    value: float
    limit: float
    goal: float


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Yield every module of the package with its syntax tree."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def code_lines(path: Path, tree: ast.Module) -> int:
    """Return how many lines hold code: no docstring, no comment, no blank line."""
    hidden: set[int] = set()
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node) is not None:
            first = node.body[0]
            hidden |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(path.read_text().splitlines(), start=1)
    return sum(
        1
        for number, line in lines
        if number not in hidden and line.strip() and not line.strip().startswith("#")
    )


def asked_kinds(tree: ast.Module, kinds: set[str]) -> int:
    """Return how often ``isinstance`` or ``match`` asks for one of these classes."""
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            found += bool(names & kinds)
        elif isinstance(node, ast.MatchClass) and getattr(node.cls, "id", "") in kinds:
            found += 1
    return found


BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.BoolOp,
    ast.match_case,
)


def complexity(function: ast.FunctionDef) -> int:
    """Return one plus the number of branches of a function, those inside its functions left out."""
    inner = {
        id(node)
        for child in ast.walk(function)
        if isinstance(child, ast.FunctionDef | ast.Lambda) and child is not function
        for node in ast.walk(child)
    }
    branches = [n for n in ast.walk(function) if isinstance(n, BRANCHES) and id(n) not in inner]
    chained = sum(len(node.values) - 2 for node in branches if isinstance(node, ast.BoolOp))
    return 1 + len(branches) + chained


def one_call() -> list[str]:
    """Return the file of every function of the package that one call of calibrate() enters."""
    import numpy as np

    import etafree as ef

    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(200), rng.standard_normal(200)])
    criterion = ef.Criterion(ef.losses.Huber(), (X, X.sum(axis=1) + rng.standard_normal(200)))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=1)
    labels, entered = np.arange(200) // 4, []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and str(SOURCE) in frame.f_code.co_filename:
            entered.append(frame.f_code.co_filename)

    ef.calibrate(draws, criterion, clusters=labels)  # imports
    sys.setprofile(note)
    ef.calibrate(draws, criterion, clusters=labels)
    sys.setprofile(None)
    return entered


def measures() -> list[Measure]:
    """Return every measure of the package."""
    import etafree

    modules = list(trees())
    lines = sum(code_lines(path, tree) for path, tree in modules)
    anything = sum(
        1
        for _, tree in modules
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    )
    functions = [n for _, tree in modules for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]

    def outside(folder: str, kinds: set[str]) -> int:
        home = SOURCE / folder
        return sum(asked_kinds(tree, kinds) for path, tree in modules if home not in path.parents)

    every = [
        path
        for part in ("src", "tests", "benchmarks", "examples", "docs", "studies")
        for path in (ROOT / part).rglob("*.py")
    ]
    skips = sum(path.read_text().count("# fmt" + ": ") for path in every)
    total = sum(len(path.read_text().splitlines()) for path, _ in modules)
    roots = len(list(SOURCE.glob("*.py")))
    parameters = len(inspect.signature(etafree.calibrate).parameters)
    entered = one_call()
    changes = sum(before != after for before, after in pairwise(entered))
    return [
        Measure("files in the root", roots, 18, 18),
        Measure("modules", len(modules), 134, 100),
        Measure("lines", total, 41700, 23000),
        Measure("parameters of calibrate()", parameters, 14, 14),
        Measure("formatter switched off", skips, 0, 0),
        Measure("Any per 1,000 lines of code", 1000 * anything / lines, 15, 25),
        Measure("kinds of total asked for", outside("totals", TOTALS), 0, 0),
        Measure("kinds of dependence asked for", outside("dependence", STRUCTURES), 0, 0),
        Measure("largest complexity", max(map(complexity, functions)), 15, 15),
        Measure("functions of one calibrate()", len(entered), 405, 400),
        Measure("files of one calibrate()", len(set(entered)), 19, 12),
        Measure("changes of file in it", changes, 135, 60),
    ]


def main() -> int:
    """Print the table and return how many limits are passed."""
    table = measures()
    print(f"{'':32}{'is':>9}{'limit':>9}{'goal':>9}")
    for name, value, limit, goal in table:
        print(f"{name:32}{value:9.0f}{limit:9.0f}{goal:9.0f}{'  TOO MUCH' * (value > limit)}")
    return sum(measure.value > measure.limit for measure in table)


if __name__ == "__main__":
    sys.exit(main())

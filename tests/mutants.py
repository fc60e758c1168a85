"""Change the numerical heart of the library in a thousand small ways: ``make mutants``.

Every change of `mutations` should make a test fail. Tests are collected once and traced once, so
that it is known which lines each of them runs. Then a forked process for each mutant puts the
changed code into the functions of the imported module and runs the tests of the changed lines,
quick ones and those that found others first, until one fails. Nothing is written to the checkout.
A mutant is known by module, line and operator: ``python tests/mutants.py map:93:dropped``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import inspect
import json
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from mutations import Mutant, mutants_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "etafree"
REPORT = ROOT / "build" / "mutants.json"
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")

#: Modules, each with the tests that are tried first.
MODULES = {
    "foundation.linalg": ("test_linalg",),
    "dependence.clusters": ("test_sandwich", "test_dependence"),
    "sandwich": ("test_sandwich", "test_modal"),
    "target": ("test_sandwich",),
    "dependence.ways": ("test_dependence",),
    "dependence.survey": ("test_dependence",),
    "dependence.base": ("test_dependence", "test_bad_input_clusters"),
    "dependence.time": ("test_dependence", "test_published"),
    "jackknife": ("test_jackknife",),
    "map": ("test_calibration",),
    "totals.jax": ("test_autodiff",),
}
#: Further tests that run the same lines.
WIDER = ("test_active", "test_plug_in")
#: Seconds of tests for a mutant, how much longer they may take, and bytes that they may ask for.
BUDGET, SLACK, MEMORY = 5.0, 4.0, 24 << 30
GOAL = 0.9
SEED = 8


def file_of(module: str) -> Path:
    """Return where a module of the package lies."""
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py")


@dataclass
class Outcome:
    """What became of a mutant."""

    name: str
    change: str
    verdict: str
    test: str = ""

    @property
    def killed(self) -> bool:
        return self.verdict in ("killed", "out of time")


@dataclass
class Campaign:
    """The plugin of pytest that runs mutants instead of tests, once these are collected."""

    mutants: list[Mutant]
    jobs: int
    outcomes: list[Outcome] = field(default_factory=list)
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return False
        items = {item.nodeid: item for item in session.items}
        _warm()
        seconds, lines, failed = _traced(session, self.mutants)
        print(f"{len(items)} tests in {sum(seconds.values()):.0f} s", flush=True)
        if failed:
            raise pytest.UsageError(f"{failed[0]} fails without any change")
        running: dict[int, tuple[Mutant, Any]] = {}
        for mutant in self.mutants:
            chosen = self._tests(mutant, seconds, lines)
            if not chosen:
                self._tell(Outcome(mutant.name, mutant.change, "not run"))
                continue
            while len(running) >= self.jobs:
                self._collect(running)
            limit = SLACK * (5 + sum(seconds[name] for name in chosen))
            child = _fork(session, mutant, [items[name] for name in chosen], limit)
            running[child[0]] = mutant, child[1]
        while running:
            self._collect(running)
        return True

    def _tests(self, mutant: Mutant, seconds: dict[str, float], lines: dict[str, set]) -> list[str]:
        """Return the tests of a mutant's lines, likely killers first, as many as time allows."""
        own = {(mutant.module, line) for line in mutant.lines}
        first = tuple(f"tests/{name}.py" for name in MODULES[mutant.module])
        first += (f"src/etafree/{mutant.module}.py",)  # its examples

        def key(name: str) -> tuple[int, bool, float]:
            return -self.kills[mutant.function, name], not name.startswith(first), seconds[name]

        out, spent = [], 0.0
        for name in sorted((name for name in lines if own & lines[name]), key=key):
            spent += seconds[name]
            if spent > BUDGET and out:
                break
            out.append(name)
        return out

    def _collect(self, running: dict[int, tuple[Mutant, Any]]) -> None:
        pid, status = os.waitpid(-1, 0)
        mutant, pipe = running.pop(pid)
        with open(pipe) as answer:
            test = answer.read()
        verdict = "survived"
        if os.WIFSIGNALED(status):
            late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL)
            verdict = "out of time" if late else "killed"
        elif os.WEXITSTATUS(status):
            verdict = "killed"
            self.kills[mutant.function, test] += 1
        self._tell(Outcome(mutant.name, mutant.change, verdict, test))

    def _tell(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) % 100 == 0:
            print(f"{len(self.outcomes)} of {len(self.mutants)} mutants", flush=True)
        if not outcome.killed:
            print(f"{outcome.verdict}: {outcome.name}  {outcome.change}", flush=True)


@contextlib.contextmanager
def _forked(pipe: int, limit: float | None) -> Iterator[None]:
    """Make this process a quiet child that ends here, within its limits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limit is not None:
        spent = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent + limit), int(spent + limit) + 5))
        signal.alarm(int(10 * limit))
    code = 1
    try:
        yield
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        os.write(pipe, type(error).__name__.encode())
    finally:
        os._exit(code)


def _fork(session: pytest.Session, mutant: Mutant, items: list[Any], limit: float) -> Any:
    """Start the tests of a mutant; return the process and where it writes the failing test."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    with _forked(write, limit):
        put_in(mutant)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os.write(write, item.nodeid.encode())
                sys.exit(1)


def _traced(session: pytest.Session, mutants: list[Mutant]) -> Any:
    """Return seconds and lines (module, number) of every test, and which fail as they are."""
    files = {str(file_of(name)): name for name in {one.module for one in mutants}}
    with tempfile.NamedTemporaryFile() as answer:
        pid = os.fork()
        if not pid:
            with _forked(2, None):
                Path(answer.name).write_bytes(pickle.dumps(_trace(session, files)))
        os.waitpid(pid, 0)
        return pickle.loads(Path(answer.name).read_bytes())


def _warm() -> None:
    """Import and load what most tests need, so that forked processes have it."""
    import etafree as ef

    X, y = np.ones((60, 1)), np.arange(60.0)
    criterion = ef.Criterion(ef.losses.Huber(1.345, scale=20.0), (X, y))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 77, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ef.calibrate(draws, criterion, clusters=np.arange(60) // 3).summary()
        ef.calibrate(draws, criterion).diagnostics()
    gc.freeze()  # a collection would copy every page


def _trace(session: pytest.Session, files: dict[str, str]) -> Any:
    seconds: dict[str, float] = {}
    lines: dict[str, set[tuple[str, int]]] = {}
    failed: list[str] = []
    seen: set[tuple[str, int]] = set()

    def line(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            seen.add((files[frame.f_code.co_filename], frame.f_lineno))
        return line

    def call(frame: Any, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename in files else None

    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        before, start = session.testsfailed, time.process_time()
        seen.clear()
        threading.settrace(call)
        sys.settrace(call)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        sys.settrace(None)
        threading.settrace(None)
        seconds[item.nodeid] = time.process_time() - start
        lines[item.nodeid] = set(seen)
        if session.testsfailed > before:
            failed.append(item.nodeid)
    return seconds, {name: some for name, some in lines.items() if some}, failed


def put_in(mutant: Mutant) -> None:
    """Give the functions of the imported module the code and the defaults of the mutant.

    Whoever imported a function by name has the changed one too, and nothing is imported again.
    """
    module = import_module(f"etafree.{mutant.module}")
    changed = {"__name__": module.__name__, "__file__": module.__file__}
    exec(mutant.code(file_of(mutant.module)), changed)
    new = dict(_functions(changed, module.__name__))
    for name, function in _functions(vars(module), module.__name__):
        function.__code__ = new[name].__code__
        function.__defaults__ = new[name].__defaults__
        function.__kwdefaults__ = new[name].__kwdefaults__


def _functions(namespace: Any, module: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield functions and methods that a module defines, whatever they are decorated with."""
    for thing in list(namespace.values()):
        if isinstance(thing, type) and thing.__module__ == module:
            yield from _functions(vars(thing), module)
            continue
        if isinstance(thing, property | functools.cached_property):
            thing = thing.fget if isinstance(thing, property) else thing.func
        if not callable(thing) and not isinstance(thing, classmethod | staticmethod):
            continue
        function = inspect.unwrap(thing)
        if isinstance(function, FunctionType) and function.__module__ == module:
            yield function.__qualname__, function


def equivalents() -> dict[str, str]:
    """Return changes that change no number, with the reason."""
    pairs = (line.split("  # ") for line in EQUIVALENT.read_text().splitlines() if "  # " in line)
    return {change.strip(): reason for change, reason in pairs}


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return counts by module, in all, and whoever survived."""
    out: dict[str, Any] = {"seed": SEED, "modules": {}}
    for name in MODULES:
        some = [one for one in outcomes if one.name.startswith(f"{name}:")]
        if some:
            killed = sum(one.killed for one in some)
            out["modules"][name] = {"mutants": len(some), "killed": killed}
    out["mutants"] = len(outcomes)
    out["killed"] = sum(one.killed for one in outcomes)
    out["survived"] = [vars(one) for one in outcomes if not one.killed]
    return out


def main() -> int:
    """Run the mutants named on the command line, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="module, module:line, or more")
    parser.add_argument("--count", type=int, help="take so many of them by chance")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--list", action="store_true", help="print them and run none")
    asked = parser.parse_args()
    known = equivalents()
    mutants = [one for name in MODULES for one in mutants_of(file_of(name), name)]
    wanted = tuple(f"{name}:" for name in asked.names) or ("",)
    left = [one for one in mutants if f"{one.name}:".startswith(wanted)]
    chosen = [one for one in left if one.change not in known]
    equal = len(left) - len(chosen)
    if asked.count is not None and asked.count < len(chosen):
        random.Random(SEED).shuffle(chosen)
        chosen = sorted(chosen[: asked.count], key=mutants.index)
    if asked.list:
        print("\n".join(f"{one.name}  {one.change}" for one in chosen))
        return 0
    names = dict.fromkeys([*(t for one in chosen for t in MODULES[one.module]), *WIDER])
    files = [f"tests/{name}.py" for name in names]
    files += [
        str(file_of(name).relative_to(ROOT)) for name in dict.fromkeys(c.module for c in chosen)
    ]
    campaign, began = Campaign(chosen, asked.jobs), time.monotonic()
    os.chdir(ROOT)
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-s", "-q"]
    code = pytest.main([*options, *files], [campaign])
    if code or len(campaign.outcomes) < len(chosen):
        print("the tests do not pass as they are")
        return 2
    done = summary(campaign.outcomes)
    done |= {"equivalent": equal, "seconds": round(time.monotonic() - began)}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(done, indent=1) + "\n")
    for name, counts in done["modules"].items():
        print(f"{name}: {counts['killed']} of {counts['mutants']} killed")
    print(
        f"{done['killed']} of {done['mutants']} mutants killed, {done['equivalent']} equivalent "
        f"ones left out, {done['seconds']} s"
    )
    return 0 if done["killed"] >= GOAL * done["mutants"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Coverage by simulation: do intervals cover as often as they say, at every learning rate?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from etafree.calibrate import calibrate
from etafree.dependence import Panel, ReplicateWeights, Survey
from etafree.draws import Draws
from etafree.errors import EtafreeError, InputError
from etafree.foundation.arguments import Array, as_count
from etafree.foundation.terminal import say
from etafree.map import Map
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study, write_outputs
from etafree.posterior import GeneralizedPosterior
from etafree.samplers import sample
from etafree.sandwich import target
from etafree.target import Target
from etafree.totals.linear import has_design
from studies.problem import Problem, coverage
from studies.scenarios import SCENARIOS, SLOW, simulate
from studies.small_samples import AWKWARD, SMALL

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BAND", "ETAS", "METHODS", "run_coverage", "write_coverage"]

ETAS = (0.01, 0.1, 1.0, 10.0, 100.0)
#: Methods whose intervals depend on the draws, and so on eta; Wald and frequentist ones do not.
METHODS = ("uncalibrated", "open-faced", "location-scale, draws")
FIXED = ("location-scale, Wald", "frequentist")
DEFAULT = ("location-scale, draws", "location-scale, Wald")
#: Replicates per cell, draws per posterior, and the band that counts as nominal.
BLOCK, DRAWS, BAND = 100, 1000, (0.935, 0.965)
#: Replicates of a scenario that takes more than 50 ms at each learning rate, and of small samples.
SLOW_REPLICATES, SMALL_REPLICATES = 500, 1000
QUICK_REPLICATES = 6


def work(parameters: Parameters, seed: np.random.SeedSequence) -> Arrays:
    """Return limits (replicate, eta, method, 2, p), fixed limits (replicate, method, 2, p), flags.

    NaN where there is no interval: coefficients at a kink, or a posterior that cannot be sampled.
    """
    moving, fixed, flagged, truth = [], [], [], []
    for stream in seed.spawn(parameters["count"]):
        rng = np.random.default_rng(stream)
        problem = simulate(parameters["scenario"], rng)
        goal = target(problem.criterion, **problem.options)
        others = [
            _textbook(problem),
            *(target(problem.criterion, **options) for options in problem.rivals.values()),
        ]
        names = problem.criterion.names
        fixed.append([_limits(_wald(t), t.names, names) for t in (goal, *others)])
        rows = [_at(problem, goal, eta, rng) for eta in ETAS]
        moving.append([limits for limits, _ in rows])
        flagged.append([flag for _, flag in rows])
        truth.append(problem.truth)
    return {
        "moving": np.array(moving),
        "fixed": np.array(fixed),
        "flags": np.array(flagged),
        "truth": np.array(truth),
    }


def _at(problem: Problem, goal: Target, eta: float, rng: np.random.Generator) -> tuple[Array, str]:
    """Return the limits (method, 2, p) at one learning rate, and which diagnostics warn."""
    criterion = problem.criterion
    try:
        # without its fall-backs a sampler that fails is flagged by its Pareto k, and stays fast
        sampler = "auto" if has_design(criterion.total) else "importance"
        posterior = GeneralizedPosterior(criterion, eta)
        draws = sample(posterior, draws=DRAWS, seed=rng, sampler=sampler)
        # of a part only what is reported; otherwise whole, as users do: parts have no source
        chosen = draws.select(goal.names) if "var_names" in problem.options else draws
        result = calibrate(chosen, goal, seed=rng)
    except EtafreeError as error:
        return np.full((len(METHODS), 2, criterion.p), np.nan), type(error).__name__
    plain = replace(chosen, source=None)
    open_faced = calibrate(plain, goal, map=Map(kind="scale"), seed=rng).draws
    shown = [name for name in chosen.names if name not in result.inactive]
    limits = [
        _limits(_quantiles(d.select(shown)), shown, criterion.names)
        for d in (chosen, open_faced, result.draws)
    ]
    return np.array(limits), result.flags()


def _quantiles(draws: Draws) -> Array:
    limits: Array = np.quantile(draws.array, [0.025, 0.975], axis=0)
    return limits


def _wald(goal: Target) -> Array:
    half = goal.law().quantile(0.975) * goal.se
    return np.array([goal.center - half, goal.center + half])


def _limits(limits: Array, names: Sequence[str], every: tuple[str, ...]) -> Array:
    """Return limits (2, p) of every parameter, NaN for those without an interval.

    Those of "a = -b" are limits of a, and of b with their signs turned.
    """
    out = np.full((2, len(every)), np.nan)
    for name, ends in zip(names, limits.T, strict=True):
        for tied in name.split(" = "):
            low, high = ends if tied in every else -ends[::-1]
            out[:, every.index(tied.removeprefix("-"))] = low, high
    return out


def _textbook(problem: Problem) -> Target:
    """Return the target of a textbook: no small-sample correction, normal quantiles."""
    if "clusters" in problem.options:
        return target(problem.criterion, correction="CR0", **problem.options)
    if "dependence" not in problem.options:
        return target(problem.criterion, correction="HC0", **problem.options)
    if isinstance(problem.options["dependence"], Survey | ReplicateWeights):
        return target(problem.criterion, dof=np.inf, **problem.options)
    lagged = "DK" if isinstance(problem.options["dependence"], Panel) else "Bartlett"
    return target(problem.criterion, correction=lagged, **problem.options)


def run_coverage(
    out: Path | str,
    *,
    replicates: int = 2000,
    seed: int = 1,
    only: str | None = None,
    quick: bool = False,
    **how: Unpack[How],
) -> pd.DataFrame:
    """Run the study, resuming what `out` holds, and return the long table.

    A row per scenario, parameter, method and eta (missing where there is none): coverage with its
    Monte Carlo error, mean width, the share of data sets with a warning, the check that warns most
    often, and replicates.
    """
    import pandas as pd

    count = QUICK_REPLICATES if quick else as_count(replicates, "replicates", least=2)
    names = list(SCENARIOS) if only is None else [s for s in SCENARIOS if only in s]
    if not names:
        raise InputError("only", f"is {only!r}", f"scenarios are {list(SCENARIOS)}")
    cells, turns = [], []
    for name in names:
        many = replicates_of(name, count)
        block = BLOCK // 4 if name in SLOW else BLOCK
        cells += [
            Cell(
                f"{list(SCENARIOS).index(name):02d}-{first:06d}-{min(block, many - first)}",
                {"scenario": name, "count": min(block, many - first)},
            )
            for first in range(0, many, block)
        ]
        turns += [first / many for first in range(0, many, block)]
    order = np.argsort(turns, kind="stable")
    in_turns = [cells[k] for k in order]  # slow ones not last
    settings = {"replicates": count, "scenarios": names, "etas": list(ETAS), "draws": DRAWS}
    results = run_study("coverage", settings, in_turns, work, out, seed=seed, **how)
    rows: list[dict[str, object]] = []
    for name in names:
        blocks = [results[cell.key] for cell in cells if cell.parameters["scenario"] == name]
        arrays = {key: np.concatenate([b[key] for b in blocks]) for key in blocks[0]}
        rows += _rows(name, arrays)
    return pd.DataFrame(rows)


def replicates_of(name: str, count: int) -> int:
    """Return how many data sets of a scenario there are when `count` are asked for."""
    if name in SLOW:
        return min(count, SLOW_REPLICATES)
    return min(count, SMALL_REPLICATES) if name in SMALL or name in AWKWARD else count


def _rows(name: str, arrays: Mapping[str, Array]) -> list[dict[str, object]]:
    problem = simulate(name, np.random.default_rng(0))
    truth, flags, rows = arrays["truth"], arrays["flags"], []
    raised = [[set(f.split(", ")) - {"all ok"} for f in row] for row in flags.tolist()]
    for k, eta in enumerate(ETAS):
        at = [row[k] for row in raised]
        for m, method in enumerate(METHODS):
            rows += _summaries(
                arrays["moving"][:, k, m], truth, problem, at, scenario=name, method=method, eta=eta
            )
    always = [set.intersection(*row) for row in raised]  # whatever eta: the structure warns
    for m, method in enumerate((*FIXED, *problem.rivals)):
        rows += _summaries(
            arrays["fixed"][:, m], truth, problem, always, scenario=name, method=method, eta=np.nan
        )
    return rows


def _summaries(
    limits: Array, truth: Array, problem: Problem, raised: list[set[str]], **labels: object
) -> list[dict[str, object]]:
    """Return a row per parameter; `raised` holds the checks that warn, by data set."""
    rows, counts = [], Counter(name for names in raised for name in names)
    flagged = sum(map(bool, raised)) / len(raised)
    check = counts.most_common(1)[0][0] if counts else ""
    for j, parameter in enumerate(problem.criterion.names):
        low, high = limits[:, 0, j], limits[:, 1, j]
        there = np.isfinite(low)
        many = int(there.sum())
        if many == 0 or many < 0.5 * len(low):
            continue  # mostly without an interval
        share, noise = coverage(low[there], high[there], truth[there, j])
        rows.append(
            {
                **labels,
                "parameter": parameter,
                "coverage": share,
                "coverage_se": noise,
                "width": float((high - low)[there].mean()),
                "flagged": flagged,
                "check": check,
                "replicates": many,
            }
        )
    return rows


def write_coverage(out: Path | str, **options: Any) -> pd.DataFrame:
    """Run the study and write ``coverage.csv``, ``coverage.png`` and ``report.html`` into `out`."""
    from studies.coverage_page import coverage_page, coverage_picture, league

    table = run_coverage(out, **options)
    settings = {
        "seed": options.get("seed", 1),
        "draws per posterior": DRAWS,
        "replicates": int(table["replicates"].max()),
    }
    say(league(table).to_string(float_format=lambda v: f"{v:.3f}", na_rep="-"))
    page = lambda png, settings: coverage_page(table, png, settings, BAND)  # noqa: E731
    write_outputs(out, "coverage", table, coverage_picture(table, BAND), page, settings)
    return table

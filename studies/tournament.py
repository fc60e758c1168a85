r"""Which reference law should single intervals have by default? Laws of one sandwich, side by side.

The sandwich of independent rows or of one-way clusters is estimated; what differs is the law of its
t ratio. With few rows or clusters behind a coefficient, :math:`\nu` are Satterthwaite's degrees of
freedom and :math:`\kappa` is the factor by which the variance is too large under the working model.
A law is judged by its coverage farthest from 95 % first, by its width second.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from etafree.data.groups import Groups
from etafree.dependence.clusters import contrast_laws, influences, point_of
from etafree.diagnostics import implied_coverage, skewness
from etafree.errors import EtafreeError, InputError
from etafree.foundation.arguments import Array, as_count
from etafree.foundation.check import run_checks
from etafree.foundation.terminal import say
from etafree.inference import t_ratios, wild_bootstrap
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study, write_outputs
from etafree.report.page import Section, picture_data, render, table_html
from etafree.sandwich import target
from etafree.target import Law
from studies.problem import Problem, coverage
from studies.scenarios import simulate
from studies.small_samples import SMALL

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["DESIGNS", "LAWS", "run_tournament", "standings", "write_tournament"]

LEVEL, RESAMPLES, WILD = 0.95, 999, 399
LAWS = (
    "HC3 normal, CR3 t(G-1)",
    "3, t(nu)",
    "3, t(nu) / sqrt(kappa)",
    "2, t(nu)",
    "bootstrap-t",
    "wider of bootstrap-t and t(nu) / sqrt(kappa)",
    "wild bootstrap-t",
)
#: Replicates per cell.
BLOCK = 100


#: Scenarios of the coverage study with independent rows or one-way clusters.
LEAGUE = (
    "squared, heteroscedastic",
    "Huber, 10 % outliers",
    "logistic, omitted clusters",
    "Poisson, overdispersed",
    "gamma, lognormal response",
    *(f"paper, G = {g}" for g in (10, 20, 50)),
    *(f"lognormal group level, G = {g}" for g in (10, 20, 50)),
    *(f"ridge, sizes 2 or 25, G = {g}" for g in (20, 50, 100)),
)
#: Designs by name: small samples, and scenarios of the coverage study.
DESIGNS = (*SMALL, *LEAGUE)


def limits(problem: Problem, rng: np.random.Generator) -> Array:
    """Return the limits (law, 2, p) of every law for one data set."""
    goal = target(problem.criterion, **problem.options)
    groups = None if goal.dependence is None else goal.dependence.clusters
    two = target(problem.criterion, correction="CR2" if groups else "HC2", **problem.options)
    at, each, tail = point_of(goal), np.eye(goal.p), 0.5 * (1 - LEVEL)
    three, second = (contrast_laws(at, groups, t.correction, each) for t in (goal, two))

    count = np.inf if goal.clusters is None else goal.clusters - 1.0

    def reach(dof: Array) -> Array:
        return Law(dof, np.ones(goal.p)).quantile(1 - tail)

    safe = three.quantile(1 - tail)
    ratios = t_ratios(influences(at, groups, goal.correction), RESAMPLES, rng)
    low, high = np.quantile(ratios, [tail, 1 - tail], axis=0)
    n = problem.criterion.n
    sets = Groups(np.arange(n), np.arange(n)) if groups is None else groups
    wild = [
        wild_bootstrap(problem.criterion, goal, sets, row, 0.0, LEVEL, WILD, rng) for row in each
    ]
    both = [
        (reach(np.full(goal.p, count)),) * 2,
        (reach(three.dof), reach(three.dof)),
        (safe, safe),
        (reach(second.dof) * two.se / goal.se,) * 2,
        (high, -low),
        (np.maximum(high, safe), np.maximum(-low, safe)),
    ]
    out = [[goal.center - below * goal.se, goal.center + above * goal.se] for below, above in both]
    out.append([np.array([w.lower for w in wild]), np.array([w.upper for w in wild])])
    return np.array(out)


def flagged(problem: Problem) -> bool:
    """Return whether a check of the default interval's law warns of one data set."""
    goal = target(problem.criterion, **problem.options)
    checks = (implied_coverage, skewness)
    planned = [(c.__name__, partial(c, problem.criterion, goal)) for c in checks]
    return any(check.verdict == "warn" for check in run_checks(planned))


def work(parameters: Parameters, seed: np.random.SeedSequence) -> Arrays:
    """Return limits (replicate, law, 2, p), truth (replicate, p), flags; NaN where a fit fails."""
    every, truth, flags = [], [], []
    for stream in seed.spawn(parameters["count"]):
        rng = np.random.default_rng(stream)
        problem = simulate(parameters["design"], rng)
        try:
            every.append(limits(problem, rng))
            flags.append(float(flagged(problem)))
        except EtafreeError:
            every.append(np.full((len(LAWS), 2, problem.criterion.p), np.nan))
            flags.append(np.nan)
        truth.append(problem.truth)
    return {"limits": np.array(every), "truth": np.array(truth), "flags": np.array(flags)}


def run_tournament(
    out: Path | str,
    *,
    replicates: int = 2000,
    seed: int = 1,
    only: str | None = None,
    quick: bool = False,
    **how: Unpack[How],
) -> pd.DataFrame:
    """Run the tournament, resuming what `out` holds, and return the long table.

    A row per design, parameter and law: coverage with its Monte Carlo error, the median width over
    that of the first law, the share of data sets in which a check of the default law warns, and
    replicates.
    """
    import pandas as pd

    count = 6 if quick else as_count(replicates, "replicates", least=2)
    names = [name for name in DESIGNS if only is None or only in name]
    if not names:
        raise InputError("only", f"is {only!r}", f"designs are {list(DESIGNS)}")
    cells = [
        Cell(
            f"{DESIGNS.index(name):02d}-{first:06d}-{min(BLOCK, count - first)}",
            {"design": name, "count": min(BLOCK, count - first)},
        )
        for name in names
        for first in range(0, count, BLOCK)
    ]
    settings = {"replicates": count, "designs": names, "laws": list(LAWS)}
    results = run_study("tournament", settings, cells, work, out, seed=seed, **how)
    rows: list[dict[str, object]] = []
    for name in names:
        blocks = [results[cell.key] for cell in cells if cell.parameters["design"] == name]
        arrays = {key: np.concatenate([b[key] for b in blocks]) for key in blocks[0]}
        rows += _rows(name, **arrays)
    return pd.DataFrame(rows)


def _rows(name: str, limits: Array, truth: Array, flags: Array) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    kept = np.isfinite(limits[:, 0]).all(axis=(1, 2))
    every, truth = limits[kept], truth[kept]
    width = np.median(every[:, :, 1] - every[:, :, 0], axis=0)  # (law, p)
    for j in range(truth.shape[1]):
        for k, law in enumerate(LAWS):
            share, noise = coverage(every[:, k, 0, j], every[:, k, 1, j], truth[:, j])
            rows.append(
                {
                    "design": name,
                    "parameter": j,
                    "law": law,
                    "coverage": share,
                    "coverage_se": noise,
                    "width": width[k, j] / width[0, j],
                    "flagged": flags[kept].mean(),
                    "replicates": int(kept.sum()),
                }
            )
    return rows


def standings(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per law: its lowest and highest coverage with their designs, and widths."""
    import pandas as pd

    rows = []
    for law in LAWS:
        own = table[table["law"] == law].sort_values("coverage")
        lowest, highest = own.iloc[0], own.iloc[-1]
        inside = own["coverage"].between(0.935, 0.965).mean()
        rows.append(
            {
                "law": law,
                "lowest": lowest["coverage"],
                "in": lowest["design"],
                "highest": highest["coverage"],
                "in .935-.965": inside,
                "below .92": int((own["coverage"] < 0.92).sum()),
                "width": own["width"].median(),
                "widest": own["width"].max(),
            }
        )
    return pd.DataFrame(rows).set_index("law")


def picture(table: pd.DataFrame) -> Figure:
    """Return the lowest coverage of each law by design, a mark per law."""
    from matplotlib.figure import Figure

    worst = table.groupby(["design", "law"], sort=False)["coverage"].min().unstack()
    worst = worst.reindex(index=list(dict.fromkeys(table["design"])), columns=list(LAWS))
    figure = Figure(figsize=(11, 0.32 * len(worst) + 2.2), layout="constrained")
    ax = figure.subplots()
    ax.axvspan(0.935, 0.965, color="#d9ead3", label="93.5 to 96.5 %")
    ax.axvline(0.95, color="0.5", lw=0.8)
    places = np.arange(len(worst))[::-1]
    for k, (law, marker) in enumerate(zip(LAWS, "oxDs^v+", strict=True)):
        shift = 0.3 - 0.1 * k
        ax.plot(
            worst[law].to_numpy(), places + shift, marker, ms=4, ls="", color=f"C{k}", label=law
        )
    ax.set_yticks(places, list(worst.index))
    ax.set_xlabel("coverage of 95 % intervals, the coefficient that is covered least")
    figure.legend(loc="outside upper center", ncols=2, fontsize="small")
    return figure


def write_tournament(out: Path | str, **options: Any) -> pd.DataFrame:
    """Run the tournament and write ``tournament.csv``, its picture and ``report.html``."""
    table = run_tournament(out, **options)
    order = standings(table)
    say(order.to_string(float_format=lambda v: f"{v:.3f}"))
    settings = {"seed": options.get("seed", 1), "replicates": int(table["replicates"].max())}

    def page(png: bytes, settings: dict[str, object]) -> str:
        wide = table.pivot_table(
            index=["design", "parameter"], columns="law", values="coverage", sort=False
        )
        farthest = "Over all coefficients of all designs; width over that of the first law."
        caption = "The coefficient of each design that is covered least, a mark per law."
        return render(
            "Tournament of reference laws",
            "How often 95 % intervals cover when the sandwich is the same and the law of its t "
            "ratio differs: independent rows (HC) and one-way clusters (CR).",
            [
                Section("Laws", [farthest], table_html(order)),
                Section("Designs", picture=picture_data(png), caption=caption),
                Section("Coverage", table=table_html(wide)),
            ],
            "Settings: " + ", ".join(f"{k} = {v}" for k, v in settings.items()),
        )

    write_outputs(out, "tournament", table, picture(table), page, settings)
    return table

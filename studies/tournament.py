r"""Which reference law should single intervals have by default? Laws of one sandwich, side by side.

The sandwich of independent rows or of one-way clusters is estimated; what differs is the law of its
t ratio. With few rows or clusters behind a coefficient, :math:`\nu` are Satterthwaite's degrees of
freedom and :math:`\kappa` is the factor by which the variance is too large under the working model.
A law is judged by its coverage farthest from 95 % first, by its width second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from etafree import losses
from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.dependence.clusters import contrast_laws, influences, point_of
from etafree.errors import EtafreeError, InputError
from etafree.foundation.arguments import Array, as_count
from etafree.foundation.terminal import say
from etafree.inference import student_quantile, t_ratios, wild_bootstrap
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study, write_outputs
from etafree.report.page import Section, picture_data, render, table_html
from etafree.sandwich import target
from studies.problem import Problem, coverage
from studies.scenarios import SCENARIOS

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


def with_one(*columns: Array) -> Array:
    """Return a design matrix with an intercept."""
    return np.column_stack([np.ones(len(columns[0])), *columns])


def rows_of(loss: losses.LinearLoss, X: Array, y: Array, truth: object) -> Problem:
    """Return a problem of independent rows."""
    return Problem(Criterion(loss, (X, y)), {}, np.asarray(truth, dtype=float))


def clusters_of(
    loss: losses.LinearLoss, X: Array, y: Array, truth: object, labels: NDArray[np.intp]
) -> Problem:
    """Return a problem of one-way clusters."""
    return Problem(Criterion(loss, (X, y)), {"clusters": labels}, np.asarray(truth, dtype=float))


def mean(rng: np.random.Generator, n: int, sigma: float = 0.0) -> Problem:
    """Return a mean of normal data, or of lognormal data with this sigma."""
    normal = rng.standard_normal(n)
    y, truth = (np.exp(sigma * normal), np.exp(0.5 * sigma**2)) if sigma else (normal, 0.0)
    return rows_of(losses.Squared(), np.ones((n, 1)), y, [truth])


def treated(rng: np.random.Generator, n: int, few: int, ratio: float) -> Problem:
    """Return a difference of means: `few` treated of `n` rows, their variance ratio^2 times."""
    x = (np.arange(n) < few).astype(float)
    return rows_of(losses.Squared(), with_one(x), rng.standard_normal(n) * ratio**x, [0, 0])


def skewed_covariate(rng: np.random.Generator, n: int, kind: str, power: float) -> Problem:
    """Return least squares on a covariate with a long tail; errors grow with its power."""
    x = rng.pareto(2.5, n) if kind == "pareto" else rng.lognormal(size=n)
    y = rng.standard_normal(n) * (1 + (kind == "pareto") * x) * x**power
    return rows_of(losses.Squared(), with_one(x), y, [0, 0])


def many_covariates(rng: np.random.Generator, n: int, p: int) -> Problem:
    """Return least squares where nothing is wrong, with p coefficients."""
    X = with_one(*rng.standard_normal((p - 1, n)))
    return rows_of(losses.Squared(), X, rng.standard_normal(n), np.zeros(p))


def curved(rng: np.random.Generator, n: int) -> Problem:
    """Return a quadratic whose errors grow towards both ends."""
    x = rng.uniform(-2, 2, n)
    return rows_of(losses.Squared(), with_one(x, x**2), x * rng.standard_normal(n), np.zeros(3))


def zeros(rng: np.random.Generator, n: int) -> Problem:
    """Return counts of which four in five are zero, overdispersed."""
    x = rng.standard_normal(n)
    y = rng.poisson(np.exp(-1.7 + 0.5 * x) * rng.standard_exponential(n)).astype(float)
    return rows_of(losses.Poisson(), with_one(x), y, [-1.7, 0.5])


def gamma(rng: np.random.Generator, n: int) -> Problem:
    """Return the gamma loss on lognormal responses."""
    x = rng.standard_normal(n)
    y = np.exp(0.5 * x + rng.standard_normal(n))
    return rows_of(losses.Gamma(), with_one(x), y, [0.5, 0.5])


def rare(rng: np.random.Generator, n: int) -> Problem:
    """Return a logistic model with one success in eight."""
    x = rng.standard_normal(n)
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(2 - 0.7 * x))).astype(float)
    return rows_of(losses.Logistic(), with_one(x), y, [-2, 0.7])


def heavy(rng: np.random.Generator, n: int) -> Problem:
    """Return a Huber regression with errors of t with two degrees of freedom."""
    X = with_one(rng.standard_normal(n))
    return rows_of(losses.Huber(1.345, scale=1.0), X, rng.standard_t(2, n), [0, 0])


def _errors(rng: np.random.Generator, labels: NDArray[np.intp]) -> Array:
    """Return errors with an effect of each cluster."""
    noise: Array = rng.standard_normal(labels.max() + 1)[labels] + rng.standard_normal(len(labels))
    return noise


def equal_clusters(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return equal clusters where nothing is wrong; the covariate varies between and within."""
    g = np.repeat(np.arange(groups), size)
    X = with_one(rng.standard_normal(groups)[g] + rng.standard_normal(len(g)))
    return clusters_of(losses.Squared(), X, _errors(rng, g), [0, 0], g)


def treated_clusters(
    rng: np.random.Generator, groups: int, few: int, size: int, covariates: int
) -> Problem:
    """Return a treatment of `few` whole clusters beside covariates."""
    g = np.repeat(np.arange(groups), size)
    X = with_one((g < few).astype(float), *rng.standard_normal((covariates, len(g))))
    return clusters_of(losses.Squared(), X, _errors(rng, g), np.zeros(covariates + 2), g)


def informative_sizes(rng: np.random.Generator, groups: int) -> Problem:
    """Return clusters that are larger where the outcome is."""
    u = rng.standard_normal(groups)
    g = np.repeat(np.arange(groups), 1 + rng.poisson(np.exp(1 + 0.7 * u)))
    x = rng.standard_normal(len(g))
    rate = np.exp(1 + 0.245)
    truth = [0.7 * rate / (1 + rate), 1.0]
    return clusters_of(
        losses.Squared(), with_one(x), u[g] + x + rng.standard_normal(len(g)), truth, g
    )


def giant(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return clusters of which one is ten times as large."""
    sizes = np.where(np.arange(groups) == 0, 10 * size, size)
    g = np.repeat(np.arange(groups), sizes)
    X = with_one(rng.standard_normal(groups)[g] + rng.standard_normal(len(g)))
    return clusters_of(losses.Squared(), X, _errors(rng, g), [0, 0], g)


def skewed_level(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return a lognormal covariate that is constant within clusters."""
    g = np.repeat(np.arange(groups), size)
    X = with_one(rng.lognormal(size=groups)[g], rng.standard_normal(len(g)))
    return clusters_of(losses.Squared(), X, _errors(rng, g), np.zeros(3), g)


def clustered_binary(rng: np.random.Generator, groups: int, few: int, size: int) -> Problem:
    """Return logistic regression with omitted effects of clusters, `few` of them treated."""
    g = np.repeat(np.arange(groups), size)
    X = with_one((g < few).astype(float), rng.standard_normal(len(g)))
    y = rng.uniform(size=len(g)) < 1 / (1 + np.exp(-rng.standard_normal(groups)[g]))
    return clusters_of(losses.Logistic(), X, y.astype(float), np.zeros(3), g)


def clustered_counts(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return counts with gamma effects of clusters and a covariate of clusters."""
    g = np.repeat(np.arange(groups), size)
    x = rng.standard_normal(groups)[g]
    y = rng.poisson(rng.gamma(2, 0.5, groups)[g] * np.exp(0.3 * x)).astype(float)
    return clusters_of(losses.Poisson(), with_one(x), y, [0, 0.3], g)


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
DESIGNS: dict[str, Callable[[np.random.Generator], Problem]] = {
    "normal mean, n = 50": partial(mean, n=50),
    "normal mean, n = 100": partial(mean, n=100),
    "lognormal mean, n = 50": partial(mean, n=50, sigma=1.0),
    "lognormal mean, n = 200": partial(mean, n=200, sigma=1.0),
    "5 of 100 rows treated": partial(treated, n=100, few=5, ratio=2.0),
    "20 of 100 rows treated": partial(treated, n=100, few=20, ratio=2.0),
    "3 of 60 rows treated, equal variances": partial(treated, n=60, few=3, ratio=1.0),
    "lognormal x, n = 100": partial(skewed_covariate, n=100, kind="lognormal", power=0.0),
    "lognormal x, heteroscedastic": partial(skewed_covariate, n=100, kind="lognormal", power=0.5),
    "Pareto x, heteroscedastic": partial(skewed_covariate, n=100, kind="pareto", power=0.0),
    "p = 10, n = 60": partial(many_covariates, n=60, p=10),
    "quadratic, heteroscedastic, n = 80": partial(curved, n=80),
    "Poisson, 80 % zeros, n = 200": partial(zeros, n=200),
    "gamma on lognormal, n = 100": partial(gamma, n=100),
    "logistic, rare, n = 150": partial(rare, n=150),
    "Huber, t(2) errors, n = 60": partial(heavy, n=60),
    "50 equal clusters": partial(equal_clusters, groups=50, size=8),
    "20 equal clusters": partial(equal_clusters, groups=20, size=8),
    "100 clusters, 5 treated": partial(treated_clusters, groups=100, few=5, size=10, covariates=8),
    "8 clusters, 3 treated": partial(treated_clusters, groups=8, few=3, size=20, covariates=0),
    "informative sizes, G = 60": partial(informative_sizes, groups=60),
    "one giant cluster of 30": partial(giant, groups=30, size=8),
    "lognormal level, G = 20": partial(skewed_level, groups=20, size=10),
    "logistic, 10 of 30 clusters treated": partial(clustered_binary, groups=30, few=10, size=10),
    "Poisson, 25 clusters": partial(clustered_counts, groups=25, size=8),
    **{name: partial(SCENARIOS[name][0], **SCENARIOS[name][1]) for name in LEAGUE},
}


def limits(problem: Problem, rng: np.random.Generator) -> Array:
    """Return the limits (law, 2, p) of every law for one data set."""
    goal = target(problem.criterion, **problem.options)
    groups = None if goal.dependence is None else goal.dependence.clusters
    two = target(problem.criterion, correction="CR2" if groups else "HC2", **problem.options)
    at, each, tail = point_of(goal), np.eye(goal.p), 0.5 * (1 - LEVEL)
    three, second = (contrast_laws(at, groups, t.correction, each) for t in (goal, two))

    def reach(dof: Array) -> Array:
        return student_quantile(1 - tail, dof)

    safe = reach(three.dof) / np.sqrt(three.inflation)
    ratios = t_ratios(influences(at, groups, goal.correction), RESAMPLES, rng)
    low, high = np.quantile(ratios, [tail, 1 - tail], axis=0)
    n = problem.criterion.n
    sets = Groups(np.arange(n), np.arange(n)) if groups is None else groups
    wild = [
        wild_bootstrap(problem.criterion, goal, sets, row, 0.0, LEVEL, WILD, rng) for row in each
    ]
    both = [
        (reach(goal.dof), reach(goal.dof)),
        (reach(three.dof), reach(three.dof)),
        (safe, safe),
        (reach(second.dof) * two.se / goal.se,) * 2,
        (high, -low),
        (np.maximum(high, safe), np.maximum(-low, safe)),
    ]
    out = [[goal.center - below * goal.se, goal.center + above * goal.se] for below, above in both]
    out.append([np.array([w.lower for w in wild]), np.array([w.upper for w in wild])])
    return np.array(out)


def work(parameters: Parameters, seed: np.random.SeedSequence) -> Arrays:
    """Return limits (replicate, law, 2, p) and truth (replicate, p); NaN where a fit fails."""
    every, truth = [], []
    for stream in seed.spawn(parameters["count"]):
        rng = np.random.default_rng(stream)
        problem = DESIGNS[parameters["design"]](rng)
        try:
            every.append(limits(problem, rng))
        except EtafreeError:
            every.append(np.full((len(LAWS), 2, problem.criterion.p), np.nan))
        truth.append(problem.truth)
    return {"limits": np.array(every), "truth": np.array(truth)}


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
    that of the first law, and replicates.
    """
    import pandas as pd

    count = 6 if quick else as_count(replicates, "replicates", least=2)
    names = [name for name in DESIGNS if only is None or only in name]
    if not names:
        raise InputError("only", f"is {only!r}", f"designs are {list(DESIGNS)}")
    cells = [
        Cell(
            f"{list(DESIGNS).index(name):02d}-{first:06d}-{min(BLOCK, count - first)}",
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
        rows += _rows(name, arrays["limits"], arrays["truth"])
    return pd.DataFrame(rows)


def _rows(name: str, every: Array, truth: Array) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    kept = np.isfinite(every[:, 0]).all(axis=(1, 2))
    every, truth = every[kept], truth[kept]
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

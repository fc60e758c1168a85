r"""Data whose rows depend on each other, with the value that an interval ought to cover.

A scenario draws a data set and says how to calibrate it: a criterion, keywords of `calibrate`, the
truth of each parameter, and for comparison other corrections of the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.dependence import Survey, TimeSeries
from etafree.foundation.arguments import Array
from etafree.losses import Squared
from etafree.optimize import minimise
from etafree.paper.random_effects import RandomEffects
from etafree.paper.random_intercept import Design, RandomIntercept, pseudo_true
from etafree.penalties import Ridge
from studies import composite, equations, families, serial, surveys
from studies.faces import FACES
from studies.high_dimension import HIGH, SPARSE
from studies.kinks import KINKS
from studies.problem import Problem
from studies.small_samples import AWKWARD, SMALL
from studies.survival import SURVIVAL
from studies.tuples import TUPLES

__all__ = ["SCENARIOS", "SLOW", "simulate"]


def _clustered(groups: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    names = ("CR0", "CR1", "CR2")
    return {"clusters": groups}, {n: {"clusters": groups, "correction": n} for n in names}


def paper(rng: np.random.Generator, groups: int) -> Problem:
    """Return the paper's contaminated random-intercept model with few groups."""
    model = Design(groups=groups).model(rng)
    options, rivals = _clustered(model.groups)
    return Problem(model.criterion, options, _paper_truth(), rivals)


@lru_cache(maxsize=1)
def _paper_truth() -> Array:
    return np.array([pseudo_true(Design())])


def lognormal(rng: np.random.Generator, groups: int) -> Problem:
    """Return the paper's errors with a skewed covariate that is constant within groups.

    Errors are symmetric and nothing is penalized, so the truth is what made the data.
    """
    x, error, grouping = Design(groups=groups, beta=0.0).simulate(rng)
    level = np.exp(rng.standard_normal(groups))[grouping.codes]
    X = np.column_stack([np.ones(len(x)), x, level])
    truth = np.array([1.0, 2.0, 0.5])
    model = RandomIntercept(
        X,
        X @ truth + error,
        grouping.codes,
        c=1.0,
        tau2=2.0,
        sigma2=1.0,
        names=["one", "x", "group level"],
    )
    options, rivals = _clustered(model.groups)
    return Problem(model.criterion, options, truth, rivals)


def slopes(rng: np.random.Generator, groups: int) -> Problem:
    """Return random intercepts and slopes, groups of 2 to 12 rows, 10 % outliers.

    Components are estimated. Effects and errors are symmetric and nothing is penalized, so the
    truth is what made the data.
    """
    codes = np.repeat(np.arange(groups), 2 + np.arange(groups) % 11)
    n = len(codes)
    X = np.column_stack([np.ones(n), rng.standard_normal(n), rng.standard_normal(groups)[codes]])
    effects = rng.multivariate_normal([0.0, 0.0], [[2.0, 0.5], [0.5, 0.5]], groups)[codes]
    error = rng.standard_normal(n) + (rng.random(n) < 0.1) * rng.normal(0.0, 10.0, n)
    truth = np.array([1.0, 2.0, 0.5])
    y = X @ truth + np.sum(X[:, :2] * effects, axis=1) + error
    model = RandomEffects(X, y, codes, X[:, :2], names=["one", "slope", "group level"])
    options, rivals = _clustered(model.groups)
    return Problem(model.criterion, options, truth, rivals)


def unequal(rng: np.random.Generator, groups: int) -> Problem:
    """Return ridge least squares with clusters of 2 or 25 rows; truth beta / (1 + strength)."""
    sizes = np.where(np.arange(groups) % 2 == 0, 2, 25)
    codes = np.repeat(np.arange(groups), sizes)
    x = rng.standard_normal(len(codes)) + 0.7 * rng.standard_normal(groups)[codes]
    y = 2.0 * x + rng.standard_normal(groups)[codes] + rng.standard_normal(len(codes))
    criterion = Criterion(Squared(), (x[:, None], y), Ridge(0.5), names=["beta"])
    options, rivals = _clustered(codes)
    rivals["scores not centred"] = {**options, "centered": False}
    moment = 1.0 + 0.7**2
    return Problem(criterion, options, np.array([2.0 * moment / (moment + 0.5)]), rivals)


def fixed_effects(rng: np.random.Generator, units: int, periods: int) -> Problem:
    """Return fixed effects of units of 3 to 12 rows, and of periods if there are any.

    Slopes vary between units and between periods, which is what clusters are for; errors are wider
    in every third unit. Slopes do not depend on the covariate, so the truth is their mean.
    """
    sizes = 3 + np.arange(units) % 10
    unit = np.repeat(np.arange(units), sizes)
    slope = 0.5 + 0.3 * rng.standard_normal(units)[unit]
    shift = rng.standard_normal((2, units))[:, unit]
    dummies, clusters = [unit[:, None] == np.arange(units)], {"unit": unit}
    if periods:
        period = np.concatenate([rng.permutation(periods)[:size] for size in sizes])
        slope = slope + 0.3 * rng.standard_normal(periods)[period]
        shift = shift + rng.standard_normal((2, periods))[:, period]
        dummies.append(period[:, None] == np.arange(1, periods))
        clusters["period"] = period
    x, error = rng.standard_normal((2, len(unit)))
    x = x + shift[0]
    y = slope * x + shift[1] + error * (1 + (unit % 3 == 0))
    X = np.column_stack([x, *dummies]).astype(float)
    names = ["slope", *(f"effect {k}" for k in range(1, X.shape[1]))]
    criterion = Criterion(Squared(), (X, y), names=names)
    corrections = ("CR1S",) if periods else ("CR0", "CR1", "CR2")
    rivals: dict[str, dict[str, Any]] = {
        n: {"clusters": clusters, "correction": n, "var_names": "slope"} for n in corrections
    }
    truth = np.append(0.5, np.zeros(X.shape[1] - 1))  # of the slope; dummies have no interval
    return Problem(criterion, {"clusters": clusters}, truth, rivals)


def autoregressive(rng: np.random.Generator, phi: float, periods: int) -> Problem:
    """Return a regression in time whose covariate and errors are both AR(1)."""
    from scipy.signal import lfilter

    shocks = rng.standard_normal((2, periods + 200))
    x, error = lfilter([1.0], [1.0, -phi], shocks, axis=1)[:, 200:]
    X = np.column_stack([np.ones(periods), x])
    truth = np.array([1.0, 1.0])
    criterion = Criterion(Squared(), (X, X @ truth + error), names=["mean", "slope"])
    time = np.arange(periods)
    rivals: dict[str, dict[str, Any]] = {
        "Bartlett": {"dependence": TimeSeries(time), "correction": "Bartlett"},
        "independent, HC3": {},
    }
    return Problem(criterion, {"dependence": TimeSeries(time)}, truth, rivals)


def crossed(rng: np.random.Generator, first: int, second: int) -> Problem:
    """Return a two-way layout: effects of rows and columns in covariate and error."""
    i, j = (index.reshape(-1) for index in np.indices((first, second)))

    def field_of() -> Array:
        effects = rng.standard_normal(first)[i] + rng.standard_normal(second)[j]
        total: Array = effects + rng.standard_normal(first * second)
        return total

    X = np.column_stack([np.ones(len(i)), field_of()])
    truth = np.array([1.0, 0.5])
    criterion = Criterion(Squared(), (X, X @ truth + field_of()), names=["one", "slope"])
    rivals: dict[str, dict[str, Any]] = {
        f"by {name} only, CR3": {"clusters": labels} for name, labels in (("row", i), ("column", j))
    }
    return Problem(criterion, {"clusters": {"row": i, "column": j}}, truth, rivals)


def survey(rng: np.random.Generator, psus: int) -> Problem:
    """Return a sample of a fixed population: 4 strata of 60 PSUs with 20 units, `psus` drawn.

    Strata differ in level and are drawn at different rates; the truth is the population's own fit.
    """
    fixed = np.random.default_rng(20251119)
    strata = np.repeat(np.arange(4), 60 * 20)
    unit = np.repeat(np.arange(240), 20)
    x = fixed.standard_normal(4800) + 0.5 * fixed.standard_normal(240)[unit]
    y = strata + x + fixed.standard_normal(240)[unit] + fixed.standard_normal(4800) * (1 + 0.3 * x)
    X = np.column_stack([np.ones(4800), x])
    drawn = np.array([psus, psus, 2 * psus, 3 * psus])
    chosen = np.concatenate([60 * h + rng.choice(60, drawn[h], replace=False) for h in range(4)])
    rows = np.isin(unit, chosen)
    h = strata[rows]
    criterion = Criterion(
        Squared(),
        (X[rows], y[rows]),
        weights=(60 / drawn)[h],
        weight_kind="sampling",
        names=["one", "slope"],
    )
    truth = minimise(Criterion(Squared(), (X, y))).theta
    options = {"dependence": Survey(unit[rows], h, fpc=np.full(len(h), 60.0))}
    rivals: dict[str, dict[str, Any]] = {
        "without fpc": {"dependence": Survey(unit[rows], h)},
        "PSUs as clusters, CR3": {"clusters": unit[rows]},
    }
    return Problem(criterion, options, truth, rivals)


EQUATIONS: dict[str, tuple[Callable[..., Problem], dict[str, Any]]] = {
    "one instrument, n = 200": (equations.instruments, {"n": 200, "extra": 1}),
    "three instruments, n = 200": (equations.instruments, {"n": 200, "extra": 3}),
    "GEE, 40 subjects": (equations.repeated_counts, {"subjects": 40, "times": 4, "treated": 20}),
    "GEE, 8 of 60 treated": (equations.repeated_counts, {"subjects": 60, "times": 4, "treated": 8}),
    "inverse probabilities, n = 400": (equations.inverse_probability, {"n": 400}),
}
SURVEYS: dict[str, tuple[Callable[..., Problem], dict[str, Any]]] = {
    "JKn weights, 12 strata of 3 PSUs": (surveys.replicated, {"strata": 12, "psus": 3}),
    "raked weights, 30 PSUs": (surveys.raked, {"psus": 30}),
}
SLOPES: dict[str, tuple[Callable[..., Problem], dict[str, Any]]] = {
    f"random slopes, sizes 2 to 12, G = {g}": (slopes, {"groups": g}) for g in (60, 100)
}
FIXED: dict[str, tuple[Callable[..., Problem], dict[str, Any]]] = {
    "fixed effects of 40 units": (fixed_effects, {"units": 40, "periods": 0}),
    "fixed effects of 30 units and 15 periods": (fixed_effects, {"units": 30, "periods": 15}),
}
#: Label, function and its arguments.
SCENARIOS: dict[str, tuple[Callable[..., Problem], dict[str, Any]]] = {
    "squared, heteroscedastic": (families.heteroscedastic, {"n": 500}),
    "Huber, 10 % outliers": (families.contaminated, {"n": 500}),
    "logistic, omitted clusters": (families.omitted_clusters, {"groups": 100, "size": 5}),
    "Poisson, overdispersed": (families.overdispersed, {"n": 500}),
    "gamma, lognormal response": (families.misspecified_gamma, {"n": 500}),
    "quantile 0.3, smoothed": (families.quantile, {"n": 500}),
    "Student-t, skewed errors": (families.skewed_student, {"n": 500}),
    "modal, skewed errors": (families.modal, {"n": 1000}),
    "pairwise Huber, t errors": (families.pairs, {"n": 200}),
    "L1, three of eight": (families.sparse, {"n": 500}),
    "mean and spread in JAX": (families.mean_and_spread, {"n": 500}),
    **{f"paper, G = {g}": (paper, {"groups": g}) for g in (10, 20, 50)},
    **{f"lognormal group level, G = {g}": (lognormal, {"groups": g}) for g in (10, 20, 50)},
    **{f"ridge, sizes 2 or 25, G = {g}": (unequal, {"groups": g}) for g in (20, 50, 100)},
    **{
        f"AR(1) phi = {phi}, n = {n}": (autoregressive, {"phi": phi, "periods": n})
        for phi in (0.5, 0.8)
        for n in (200, 1000)
    },
    "two ways, 10 x 30": (crossed, {"first": 10, "second": 30}),
    "4 strata, 21 PSUs": (survey, {"psus": 3}),
    "4 strata, 56 PSUs": (survey, {"psus": 8}),
    "25 strata of two PSUs": (serial.pairs_of_psus, {"strata": 25}),
    "AR(1) phi = 0.9 with trend, n = 300": (serial.trend, {"phi": 0.9, "periods": 300}),
    "Huber, AR(1) with t(3) shocks, n = 200": (serial.heavy_tailed_series, {"periods": 200}),
    **{
        f"panel, {name}, 30 x 50": (
            serial.panel,
            {"units": 30, "periods": 50, "unit_effect": unit, "shock": shock},
        )
        for name, unit, shock in (
            ("unit effects", 1.0, 0.0),
            ("common shocks", 0.0, 1.0),
            ("both", 1.0, 1.0),
        )
    },
    **{name: (design, {}) for name, design in {**SMALL, **AWKWARD}.items()},
    "two ways, 12 x 12": (crossed, {"first": 12, "second": 12}),
    **EQUATIONS,
    **SURVIVAL,
    **SURVEYS,
    "pairwise likelihood, Gaussian field": (composite.gaussian_field, {"replicates": 100}),
    **SLOPES,
    **FIXED,
    **KINKS,
    **TUPLES,
    **HIGH,
    **FACES,
}


#: Scenarios of which a replicate at one learning rate takes more than 50 ms.
SLOW: tuple[str, ...] = ("pairwise Huber, t errors", "mean and spread in JAX")
SLOW += ("modal, skewed errors", *EQUATIONS, *SLOPES, *FIXED, *TUPLES)
SLOW += ("ridge, p = 60, G = 40", *SPARSE, *FACES)


def simulate(name: str, rng: np.random.Generator) -> Problem:
    """Return a data set of the scenario of this name."""
    function, arguments = SCENARIOS[name]
    return function(rng, **arguments)

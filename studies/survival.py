"""Cox's regression where hazards are not proportional, with the truth of every coefficient.

The truth is the minimiser of the expected partial likelihood: the fit to a large population. It
depends on how times are censored, too (Struthers and Kalbfleisch 1986, Biometrika 73, 363-369).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.optimize import minimise
from etafree.totals.cox import Cox
from studies.problem import Problem

__all__ = ["SURVIVAL", "frailty", "omitted"]

#: Rows of the population whose fit is the truth: its standard errors are below .003.
POPULATION = 1_000_000


def _omitted(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return covariates and (time, event); hazards of two groups cross, a covariate is missing."""
    x, hidden = rng.standard_normal((n, 2)), rng.standard_normal(n)
    x[:, 1] = x[:, 1] > 0
    shape = np.where(x[:, 1] > 0, 1.5, 0.8)  # hazards of the two groups are not proportional
    rate = np.exp(0.7 * x[:, 0] + 0.5 * x[:, 1] + hidden)
    time = (rng.standard_exponential(n) / rate) ** (1 / shape)
    censored = rng.uniform(0.2, 3.0, n)
    return x, np.column_stack([np.minimum(time, censored), time <= censored])


def _frailty(rng: np.random.Generator, groups: int, size: int) -> tuple[Array, Array]:
    """Return covariates and (time, event) of groups that share a gamma frailty of variance 0.5."""
    n = groups * size
    level, shared = rng.standard_normal((groups, 1)), rng.gamma(2.0, 0.5, (groups, 1))
    own = (0.6 * level + 0.8 * rng.standard_normal((groups, size))).reshape(-1)
    x = np.column_stack([own, np.repeat(level, size)])
    rate = np.exp(x @ [0.5, 0.3]) * np.repeat(shared, size)
    time, censored = rng.standard_exponential(n) / rate, rng.uniform(0.5, 4.0, n)
    return x, np.column_stack([np.minimum(time, censored), time <= censored])


@lru_cache
def _truth(name: str, size: int) -> Array:
    """Return the minimiser of the expected partial likelihood, from a large population."""
    rng = np.random.default_rng(20261118)
    data = _omitted(rng, size) if name == "omitted" else _frailty(rng, size // 10, 10)
    return minimise(Criterion(Cox(), data)).theta


def omitted(rng: np.random.Generator, n: int) -> Problem:
    """Return independent times with a covariate that is left out and hazards that cross."""
    criterion = Criterion(Cox(), _omitted(rng, n), names=["slope", "group"])
    rivals: dict[str, dict[str, Any]] = {name: {"correction": name} for name in ("HC0", "HC1")}
    return Problem(criterion, {}, _truth("omitted", POPULATION), rivals)


def frailty(rng: np.random.Generator, groups: int) -> Problem:
    """Return groups of ten that share a frailty, and a covariate of the group's own."""
    criterion = Criterion(Cox(), _frailty(rng, groups, 10), names=["slope", "level"])
    labels = np.repeat(np.arange(groups), 10)
    rivals: dict[str, dict[str, Any]] = {
        "independent, HC3": {},
        **{name: {"clusters": labels, "correction": name} for name in ("CR0", "CR1")},
    }
    return Problem(criterion, {"clusters": labels}, _truth("frailty", POPULATION), rivals)


#: Label, function and its arguments, as in `studies.scenarios`.
SURVIVAL = {
    "Cox, omitted covariate, crossing hazards, n = 200": (omitted, {"n": 200}),
    **{f"Cox, frailty, G = {g}": (frailty, {"groups": g}) for g in (10, 20, 50)},
}

"""Losses with a kink, taken as they are: a conditional quantile, and the hinge loss.

The quantile's coefficients are known. Those of the hinge loss, whose model is wrong for logistic
classes, are the fit to a large population.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaincinv

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.losses import Check, Hinge
from etafree.optimize import minimise
from studies.problem import Problem

__all__ = ["KINKS", "margin", "quantile"]

#: Rows of the population whose fit is the truth: its standard errors are below .006.
POPULATION = 200_000
TAU = 0.3


def quantile(rng: np.random.Generator, n: int, groups: int = 0) -> Problem:
    """Return skewed errors whose spread grows with a covariate, of groups if there are some."""
    x = np.column_stack([np.ones(n), rng.standard_normal(n), 2 * rng.random(n)])
    error = rng.standard_gamma(3.0, n)
    options: dict[str, Any] = {}
    if groups:  # a sum of two gammas is a gamma: the marginal law stays
        labels = np.repeat(np.arange(groups), n // groups)
        error = rng.standard_gamma(1.5, groups)[labels] + rng.standard_gamma(1.5, n)
        options = {"clusters": labels}
    y = x.sum(axis=1) + (0.5 + x[:, 2]) * (error - gammaincinv(3.0, TAU))
    criterion = Criterion(Check(TAU), (x, y), names=["one", "slope", "spread"])
    wide = np.sqrt(12.0) * float(criterion.loss.bandwidth)

    def as_r(theta: Array) -> Array:
        return criterion.with_loss(Check(TAU, bandwidth=wide)).hessian(theta)

    rivals = {"HC0" if not groups else "CR0": {**options, "correction": "CR0" if groups else "HC0"}}
    return Problem(
        criterion, options, np.ones(3), {**rivals, "bandwidth of R": {**options, "hessian": as_r}}
    )


def _classes(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    x = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    odds = np.exp(x @ [0.5, 1.0, -0.7] - 0.2 * x[:, 1] * x[:, 2])
    return x, (rng.random(n) < odds / (1 + odds)).astype(float)


@lru_cache
def _truth(size: int) -> Array:
    """Return the minimiser of the expected hinge loss, from a large population."""
    data = _classes(np.random.default_rng(20261118), size)
    return minimise(Criterion(Hinge(bandwidth=0.1), data)).theta


def margin(rng: np.random.Generator, n: int) -> Problem:
    """Return classes whose log odds are not linear, for the linear support vector machine."""
    criterion = Criterion(Hinge(), _classes(rng, n), names=["one", "first", "second"])
    return Problem(criterion, {}, _truth(POPULATION), {"HC0": {"correction": "HC0"}})


#: Label, function and its arguments, as in `studies.scenarios`.
KINKS = {
    "quantile 0.3, exact, n = 500": (quantile, {"n": 500}),
    "quantile 0.3, exact, G = 50": (quantile, {"n": 500, "groups": 50}),
    "hinge loss, n = 500": (margin, {"n": 500}),
}

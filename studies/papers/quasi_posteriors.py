r"""Quasi-posteriors of Agnoletto, Rigon and Dunson (2025): counts, and a variance function.

Counts are rounded gamma variables with mean :math:`\mu=\exp(x^\top\beta)` and variance
:math:`\psi\mu`; responses of the second design are normal with mean :math:`\mu=x^\top\beta` and
variance :math:`\psi e^\mu`. A quasi-posterior has the learning rate one over the dispersion.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq

from etafree.criterion import Criterion
from etafree.errors import EtafreeError
from etafree.foundation.arguments import Array
from etafree.learning_rates import select
from etafree.losses import LinearLoss, NegativeBinomial, Poisson, Squared
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior, LogPrior
from studies.papers.design import (
    Outcome,
    Paper,
    Published,
    location_scale,
    of_draws,
    of_intervals,
    posterior_draws,
)

__all__ = ["PAPER"]

COUNTS, DISPERSION = np.array([3.5, 1.5, -1.0, 0.5]), 3.5
CURVED, CURVED_DISPERSION, CURVED_ROWS = np.array([-3.0, 2.0, 1.5, 1.0]), 2.5, 300
NAMES = tuple(f"beta {j}" for j in range(1, 5))
#: Bootstrap minimisers for the learning rate by score matching, and the prior's variance in it.
RESAMPLES, PRIOR_VARIANCE = 200, 6.25
NONE = 1e-8  #: A negative binomial's dispersion that makes it a Poisson variable.


class ExponentialVariance(LinearLoss):
    r"""Minus the quasi-likelihood :math:`(\mu-y+1)e^{-\mu}` for a variance :math:`e^\mu`."""

    convex: ClassVar[bool] = False

    def values(self, u: Array, y: Array) -> Array:
        """Return the loss."""
        return -(u - y + 1.0) * np.exp(-u)

    def first(self, u: Array, y: Array) -> Array:
        """Return its first derivative."""
        return (u - y) * np.exp(-u)

    def second(self, u: Array, y: Array) -> Array:
        """Return its second derivative, negative far to the right."""
        return (1.0 + y - u) * np.exp(-u)

    def majorizer(self, u: Array, y: Array) -> Array:
        """Return its mean under the model."""
        return np.exp(-u)


def _design(rng: np.random.Generator, n: int) -> Array:
    return np.column_stack([np.ones(n), rng.standard_normal((n, 3))])


def dispersion(y: Array, mean: Array, variance: Array, p: int) -> float:
    """Return Pearson's estimate of the dispersion."""
    return float(np.sum((y - mean) ** 2 / variance) / (len(y) - p))


def negative_binomial(X: Array, y: Array) -> Criterion:
    """Return a negative binomial regression with the dispersion that makes Pearson's sum n - p."""
    alpha = 0.1
    for _ in range(5):
        fit = minimise(Criterion(NegativeBinomial(alpha), (X, y), names=NAMES))
        alpha = _overdispersion(y, np.exp(X @ fit.theta), X.shape[1])
    return Criterion(NegativeBinomial(alpha), (X, y), names=NAMES)


def _overdispersion(y: Array, mean: Array, p: int) -> float:
    """Return the a at which Pearson's sum for the variance mean + a mean^2 is n - p."""

    def excess(a: float) -> float:
        return dispersion(y, mean, mean + a * mean**2, p) - 1.0

    return float(brentq(excess, NONE, 1e4)) if excess(NONE) > 0 else NONE


def counts(rng: np.random.Generator, n: int) -> list[Outcome]:
    """Return outcomes for misspecified counts."""
    X = _design(rng, n)
    mu = np.exp(X @ COUNTS)
    y = np.round(rng.gamma(mu / DISPERSION, DISPERSION))
    criterion = Criterion(Poisson(), (X, y), names=NAMES)
    mean = np.exp(X @ minimise(criterion).theta)
    rate = 1.0 / dispersion(y, mean, mean, 4)
    prior = LogPrior.normal(np.zeros(4), PRIOR_VARIANCE * np.eye(4))
    matched = select(
        GeneralizedPosterior(criterion, 1.0, prior), "matsubara", resamples=RESAMPLES, seed=rng
    )
    plain = posterior_draws(criterion, 1.0, rng)
    ways = {
        "Poisson": plain,
        "negative binomial": posterior_draws(negative_binomial(X, y), 1.0, rng),
        "quasi-posterior": posterior_draws(criterion, rate, rng),
        "quasi-posterior, bootstrap": posterior_draws(criterion, matched.eta, rng),
    }
    out = [row for way, draws in ways.items() for row in of_draws(way, draws, COUNTS)]
    return out + location_scale(criterion, COUNTS, rng, plain)


def variance_function(rng: np.random.Generator) -> list[Outcome]:
    """Return outcomes for normal responses whose variance is exponential in the mean."""
    X = _design(rng, CURVED_ROWS)
    mu = X @ CURVED
    y = mu + np.sqrt(CURVED_DISPERSION * np.exp(mu)) * rng.standard_normal(CURVED_ROWS)
    linear = Criterion(Squared(), (X, y), names=NAMES)
    fitted = X @ minimise(linear).theta
    plain = posterior_draws(linear, 1.0 / dispersion(y, fitted, np.ones(len(y)), 4), rng)
    out = of_draws("linear model", plain, CURVED)
    out += location_scale(linear, CURVED, rng, plain, way="linear model, location-scale")
    quasi = Criterion(ExponentialVariance(), (X, y), names=NAMES)
    own = "quasi-posterior", "quasi-posterior, location-scale"
    try:
        fit = X @ minimise(quasi, CURVED).theta
        draws = posterior_draws(quasi, 1.0 / dispersion(y, fit, np.exp(fit), 4), rng)
        out += of_draws(own[0], draws, CURVED)
        return out + location_scale(quasi, CURVED, rng, draws, way=own[1])
    except EtafreeError:
        nothing = np.full(4, np.nan)
        for way in own:
            out += of_intervals(way, NAMES, CURVED, nothing, nothing)
        return out


def _published() -> list[Published]:
    """Return the coverage of 200 data sets in the authors' tables, n = 100 and n = 1000."""
    tables = {
        "counts, n = 100": {
            "Poisson": (0.715, 0.675, 0.715, 0.655),
            "negative binomial": (0.920, 0.960, 0.995, 0.965),
            "quasi-posterior": (0.945, 0.945, 0.950, 0.950),
            "quasi-posterior, bootstrap": (0.970, 0.990, 0.965, 0.970),
        },
        "counts, n = 1000": {
            "Poisson": (0.690, 0.665, 0.680, 0.715),
            "negative binomial": (0.835, 0.910, 0.960, 0.950),
            "quasi-posterior": (0.945, 0.950, 0.955, 0.950),
            "quasi-posterior, bootstrap": (0.955, 0.960, 0.950, 0.940),
        },
    }
    return [
        Published(design, way, name, "coverage", value, 200)
        for design, ways in tables.items()
        for way, values in ways.items()
        for name, value in zip(NAMES, values, strict=True)
    ]


PAPER = Paper(
    "Agnoletto, Rigon and Dunson (2025): quasi-posteriors",
    {
        "counts, n = 100": partial(counts, n=100),
        "counts, n = 1000": partial(counts, n=1000),
        "variance function, n = 300": variance_function,
    },
    _published(),
)

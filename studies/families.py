"""Data for every kind of loss, misspecified in a known way, and what intervals ought to cover.

Where the truth is not what made the data it is the minimiser of the population's loss, found by
fitting the same criterion to a grid of covariates and errors weighted by their probability.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.losses import (
    Gamma,
    Huber,
    LinearLoss,
    Logistic,
    Modal,
    Poisson,
    Quantile,
    Squared,
    StudentT,
)
from etafree.optimize import minimise
from etafree.penalties import L1, Ridge
from etafree.totals.jax import JaxLoss
from etafree.totals.pairs import PairwiseDifference
from studies.problem import Problem

__all__ = [
    "contaminated",
    "heteroscedastic",
    "mean_and_spread",
    "misspecified_gamma",
    "modal",
    "omitted_clusters",
    "overdispersed",
    "pairs",
    "quantile",
    "skewed_student",
    "sparse",
]

NAMES = ("one", "x", "z")
BETA = np.array([1.0, 0.5, -0.5])


def _design(rng: np.random.Generator, n: int) -> Array:
    return np.column_stack([np.ones(n), rng.standard_normal((n, 2))])


def heteroscedastic(rng: np.random.Generator, n: int) -> Problem:
    """Return least squares whose errors grow with a covariate."""
    X = _design(rng, n)
    y = X @ BETA + (0.5 + np.abs(X[:, 1])) * rng.standard_normal(n)
    return Problem(Criterion(Squared(), (X, y), names=NAMES), {}, BETA)


def contaminated(rng: np.random.Generator, n: int) -> Problem:
    """Return a Huber regression with ten per cent of errors ten times as large."""
    X = _design(rng, n)
    error = rng.standard_normal(n) * np.where(rng.random(n) < 0.1, 10.0, 1.0)
    return Problem(Criterion(Huber(1.345), (X, X @ BETA + error), names=NAMES), {}, BETA)


def overdispersed(rng: np.random.Generator, n: int) -> Problem:
    """Return a Poisson regression of counts with three times the Poisson variance or more."""
    X = _design(rng, n)
    mean = np.exp(X @ BETA)
    y = rng.poisson(mean * rng.gamma(1.0, 1.0, n)).astype(float)
    return Problem(Criterion(Poisson(), (X, y), names=NAMES), {}, BETA)


def misspecified_gamma(rng: np.random.Generator, n: int) -> Problem:
    """Return a gamma regression (log link) of lognormal responses, the mean being right."""
    X = _design(rng, n)
    spread = 0.3 + 0.3 * (X[:, 1] > 0)
    y = np.exp(X @ BETA + spread * rng.standard_normal(n) - 0.5 * spread**2)
    return Problem(Criterion(Gamma(), (X, y), names=NAMES), {}, BETA)


def omitted_clusters(rng: np.random.Generator, groups: int, size: int) -> Problem:
    """Return a logistic regression that leaves out normal effects of clusters."""
    codes = np.repeat(np.arange(groups), size)
    x = rng.standard_normal(len(codes))
    u = 0.3 + 0.8 * x + 1.2 * rng.standard_normal(groups)[codes]
    y = (rng.random(len(codes)) < 1 / (1 + np.exp(-u))).astype(float)
    X = np.column_stack([np.ones(len(x)), x])
    criterion = Criterion(Logistic(), (X, y), names=NAMES[:2])
    return Problem(criterion, {"clusters": codes}, _marginal_logistic())


@lru_cache(maxsize=1)
def _marginal_logistic() -> Array:
    """Return the population's logistic coefficients, effects integrated out."""
    nodes, mass = _normal_nodes(81)
    chance = (1 / (1 + np.exp(-(0.3 + 0.8 * nodes[:, None] + 1.2 * nodes)))) @ mass
    X = np.column_stack([np.ones(len(nodes)), nodes])
    rows, y = np.vstack([X, X]), np.repeat([1.0, 0.0], len(nodes))
    return _minimiser(Logistic(), rows, y, np.r_[mass * chance, mass * (1 - chance)])


def _normal_nodes(count: int) -> tuple[Array, Array]:
    nodes, mass = np.polynomial.hermite_e.hermegauss(count)
    return nodes, mass / mass.sum()


def _minimiser(loss: LinearLoss, X: Array, y: Array, mass: Array, penalty: Any = None) -> Array:
    weights = mass * len(y) / mass.sum()
    return minimise(Criterion(loss, (X, y), penalty, weights=weights, weight_kind="sampling")).theta


def _population(loss: LinearLoss, errors: Array, scale: float, penalty: Any = None) -> Array:
    """Return the minimiser for one normal covariate and errors (1 + scale |x|) times a law.

    `errors` are quantiles of that law at equally spaced probabilities.
    """
    nodes, mass = _normal_nodes(61)
    x, e = np.repeat(nodes, len(errors)), np.tile(errors, len(nodes))
    X = np.column_stack([np.ones(len(x)), x])
    y = X @ BETA[:2] + (1 + scale * np.abs(x)) * e
    return _minimiser(loss, X, y, np.repeat(mass, len(errors)), penalty)


def _middles(count: int = 2000) -> Array:
    return (np.arange(count) + 0.5) / count


@lru_cache(maxsize=8)
def _skewed_quantiles(shape: float) -> Array:
    """Return quantiles of a gamma law with its mode at zero."""
    from scipy.special import gammaincinv

    quantiles: Array = gammaincinv(shape, _middles()) - (shape - 1)
    return quantiles


@lru_cache(maxsize=8)
def _truth(kind: str) -> Array:
    from scipy.special import ndtri

    if kind == "quantile":
        return _population(Quantile(0.3, bandwidth=0.3), ndtri(_middles()), 0.5)
    if kind == "student":
        return _population(StudentT(4.0), _skewed_quantiles(3.0), 0.0)
    return _population(Modal(0.6), _skewed_quantiles(3.0), 0.0, Ridge(0.05))


def _one_covariate(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    X = _design(rng, n)[:, :2]
    return X, X @ BETA[:2]


def quantile(rng: np.random.Generator, n: int) -> Problem:
    """Return a smoothed quantile regression with errors that grow with the covariate."""
    X, mean = _one_covariate(rng, n)
    y = mean + (1 + 0.5 * np.abs(X[:, 1])) * rng.standard_normal(n)
    criterion = Criterion(Quantile(0.3, bandwidth=0.3), (X, y), names=NAMES[:2])
    return Problem(criterion, {}, _truth("quantile"))


def skewed_student(rng: np.random.Generator, n: int) -> Problem:
    """Return a Student-t regression of gamma errors."""
    X, mean = _one_covariate(rng, n)
    criterion = Criterion(StudentT(4.0), (X, mean + rng.gamma(3.0, size=n) - 2), names=NAMES[:2])
    return Problem(criterion, {}, _truth("student"))


def modal(rng: np.random.Generator, n: int) -> Problem:
    """Return a modal regression of gamma errors with a weak ridge."""
    X, mean = _one_covariate(rng, n)
    data = (X, mean + rng.gamma(3.0, size=n) - 2)
    return Problem(Criterion(Modal(0.6), data, Ridge(0.05), names=NAMES[:2]), {}, _truth("modal"))


def pairs(rng: np.random.Generator, n: int) -> Problem:
    """Return a Huber regression of differences between pairs, errors t with two."""
    X = rng.standard_normal((n, 2))
    y = X @ BETA[1:] + rng.standard_t(2, n)
    return Problem(Criterion(PairwiseDifference(Huber(1.0)), (X, y), names=NAMES[1:]), {}, BETA[1:])


def sparse(rng: np.random.Generator, n: int) -> Problem:
    """Return an L1-penalized least squares with three strong coefficients out of eight.

    Covariates are independent with variance one, so the population's minimiser is the soft
    threshold of the coefficients.
    """
    beta, strength = np.array([1.0, -1.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0]), 0.2
    X = rng.standard_normal((n, 8))
    y = X @ beta + (0.5 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(n)
    names = [f"x{j}" for j in range(1, 9)]
    truth = np.sign(beta) * np.maximum(np.abs(beta) - strength, 0.0)
    return Problem(Criterion(Squared(), (X, y), L1(strength), names=names), {}, truth)


def _mean_and_spread(theta: Any, row: Any) -> Any:
    """Minus the normal log density with mean and log standard deviation linear in x."""
    import jax.numpy as jnp

    log_sd = theta["spread"][0] + theta["spread"][1] * row["x"]
    mean = theta["mean"][0] + theta["mean"][1] * row["x"]
    return 0.5 * ((row["y"] - mean) * jnp.exp(-log_sd)) ** 2 + log_sd


MEAN_AND_SPREAD = JaxLoss(_mean_and_spread, name="mean and spread")


def mean_and_spread(rng: np.random.Generator, n: int) -> Problem:
    """Return a loss written in JAX: mean and spread are right, the errors t instead of normal."""
    x = rng.standard_normal(n)
    error = rng.standard_t(8, n) * np.sqrt(6 / 8)
    y = 1.0 + 0.5 * x + np.exp(0.2 + 0.3 * x) * error
    start = {"mean": np.zeros(2), "spread": np.zeros(2)}
    criterion = Criterion(MEAN_AND_SPREAD, {"x": x, "y": y}, start=start)
    return Problem(criterion, {}, np.array([1.0, 0.5, 0.2, 0.3]))

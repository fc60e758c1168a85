"""Data on which methods that choose a learning rate are compared, with what ought to be covered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.losses import LinearLoss, NegativeBinomial, Poisson, Quantile, Squared, StudentT
from etafree.paper.random_intercept import Design, pseudo_true
from etafree.posterior import LogPrior

__all__ = ["DESIGNS", "Comparison", "pair"]

BETA = np.array([1.0, 0.5, -0.5])
NAMES = ("one", "x", "z")
#: Variance of the weak normal prior, which the methods that need a prior are given.
PRIOR_VARIANCE = 100.0


@dataclass(frozen=True)
class Comparison:
    """One data set: criterion, truth (p,), a reference criterion of another loss, clusters."""

    criterion: Criterion
    truth: Array
    reference: Criterion
    clusters: Any = None

    @property
    def prior(self) -> LogPrior:
        """The weak prior."""
        p = self.criterion.p
        return LogPrior.normal(np.zeros(p), PRIOR_VARIANCE * np.eye(p))


def _linear(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    return X, X @ BETA


def pair(
    loss: LinearLoss, other: LinearLoss, X: Array, y: Array, names: tuple[str, ...] = NAMES
) -> tuple[Criterion, Criterion]:
    """Return criteria of two losses on the same data."""
    return Criterion(loss, (X, y), names=names), Criterion(other, (X, y), names=names)


def specified(rng: np.random.Generator, n: int, variance: float = 1.0) -> Comparison:
    """Return least squares with normal errors of this variance; one is what the loss says."""
    X, mean = _linear(rng, n)
    y = mean + np.sqrt(variance) * rng.standard_normal(n)
    criterion, other = pair(Squared(), StudentT(4.0), X, y)
    return Comparison(criterion, BETA, other)


def heteroscedastic(rng: np.random.Generator, n: int) -> Comparison:
    """Return least squares with error variance equal to the squared norm of the covariates."""
    X, mean = _linear(rng, n)
    y = mean + np.linalg.norm(X[:, 1:], axis=1) * rng.standard_normal(n)
    criterion, other = pair(Squared(), StudentT(4.0), X, y)
    return Comparison(criterion, BETA, other)


def median(rng: np.random.Generator, n: int) -> Comparison:
    """Return a smoothed median regression with Laplace errors that grow with a covariate."""
    X, mean = _linear(rng, n)
    y = mean + (0.5 + np.abs(X[:, 1])) * rng.laplace(size=n)
    criterion, other = pair(Quantile(0.5, bandwidth=0.2), Squared(), X, y)
    return Comparison(criterion, BETA, other)


def counts(rng: np.random.Generator, n: int) -> Comparison:
    """Return a Poisson regression of gamma mixtures of Poisson counts."""
    X, mean = _linear(rng, n)
    y = rng.poisson(np.exp(mean) * rng.gamma(1.0, 1.0, n)).astype(float)
    criterion, other = pair(Poisson(), NegativeBinomial(1.0), X, y)
    return Comparison(criterion, BETA, other)


def paper(rng: np.random.Generator, groups: int) -> Comparison:
    """Return the paper's contaminated random-intercept model, its groups as clusters."""
    design = Design(groups=groups)
    model = design.model(rng)
    other = model.criterion.with_loss(Squared())
    return Comparison(model.criterion, np.array([pseudo_true(design)]), other, model.groups)


#: Label, function and its arguments.
DESIGNS: dict[str, tuple[Callable[..., Comparison], dict[str, Any]]] = {
    "correctly specified": (specified, {"n": 1000}),
    "wrong variance (4)": (specified, {"n": 1000, "variance": 4.0}),
    "variance = |x|^2": (heteroscedastic, {"n": 1000}),
    "median, errors grow": (median, {"n": 1000}),
    "Poisson, overdispersed": (counts, {"n": 1000}),
    "the paper's model": (paper, {"groups": 100}),
}

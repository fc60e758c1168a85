"""What every learning-rate method starts from: a criterion, a prior, clusters and a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from etafree import linalg
from etafree.bootstrap import Resamples, cluster_groups, refuse_kinks, resamples
from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.learning_rates.information import Information, information
from etafree.optimize import Fit, minimise
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.sums import Groups
from etafree.validation import Array, as_seeds

__all__ = ["Problem", "normal_prior"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A criterion whose learning rate is asked for; everything is computed when it is needed.

    Attributes
    ----------
    criterion : Criterion
    log_prior : LogPrior or None
        Not multiplied by the learning rate. None is flat.
    groups : Groups or None
        Clusters of rows.
    seeds : SeedSequence
    """

    criterion: Criterion
    log_prior: LogPrior | None
    groups: Groups | None
    seeds: np.random.SeedSequence

    @classmethod
    def of(cls, source: Any, clusters: Any, seed: Any) -> Problem:
        """Return the problem of a criterion or posterior, checked."""
        prior = None
        if isinstance(source, GeneralizedPosterior):
            source, prior = source.criterion, source.log_prior
        if not isinstance(source, Criterion):
            raise InputError("source", f"is a {type(source).__name__}",
                             "pass an ef.Criterion or an ef.GeneralizedPosterior")  # fmt: skip
        refuse_kinks(source, "every learning-rate method")
        given = as_seeds(seed)  # a copy, whose children are the same in every call
        seeds = np.random.SeedSequence(given.entropy, spawn_key=given.spawn_key)
        return cls(source, prior, cluster_groups(source, clusters), seeds)

    @cached_property
    def fit(self) -> Fit:
        """The minimiser of the penalized total loss."""
        return minimise(self.criterion)

    @cached_property
    def information(self) -> Information:
        """Hessian and score variance there."""
        return information(self.criterion, self.fit, self.groups)

    def resamples(self, count: int) -> Resamples:
        """Return the minimisers of bootstrap data, clusters resampled as clusters."""
        return resamples(self.criterion, self.fit, count, self.groups, self.seeds)

    def posterior(self, eta: float, criterion: Criterion | None = None) -> GeneralizedPosterior:
        """Return the posterior at a learning rate, of other data if a criterion is given."""
        return GeneralizedPosterior(criterion or self.criterion, eta, self.log_prior)

    def prior_gradient(self, theta: Array) -> Array:
        """Return the gradient of the log prior (p,)."""
        return self._prior(theta, lambda prior: prior.gradient, np.zeros_like(theta))

    def prior_hessian(self, theta: Array) -> Array:
        """Return the Hessian of the log prior (p, p)."""
        return self._prior(theta, lambda prior: prior.hessian, np.zeros((len(theta), len(theta))))

    def _prior(
        self, theta: Array, part: Callable[[LogPrior], Callable[[Array, float], Array]], flat: Array
    ) -> Array:
        if self.log_prior is None:
            return flat
        return np.asarray(part(self.log_prior)(theta, self.criterion.size), dtype=np.float64)


def normal_prior(problem: Problem) -> tuple[Array, Array] | None:
    """Return mean and covariance of a proper normal log prior, None if it is not one."""
    p = problem.criterion.p
    if problem.log_prior is None:
        return None
    zero, probe = np.zeros(p), np.linspace(-3.0, 5.0, p) + 0.1
    precision, slope = -problem.prior_hessian(zero), problem.prior_gradient(zero)
    there, line = -problem.prior_hessian(probe), slope - precision @ probe
    size = np.abs(precision).max()
    same = np.allclose(there, precision, rtol=1e-8, atol=1e-10 * size)
    straight = np.allclose(problem.prior_gradient(probe), line, rtol=1e-8, atol=1e-10 * size)
    if not (same and straight) or linalg.eigvalsh(precision, "log prior's Hessian")[0] <= 0:
        return None
    covariance = linalg.inv(precision, "log prior's Hessian")
    return covariance @ slope, covariance

r"""The Q-posterior: a posterior of the score whose spread is right without a learning rate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.draws import Draws
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_count, as_rng
from etafree.foundation.threads import own_settings
from etafree.optimize import minimise
from etafree.optimize.many import outer_products, unpacked
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.resampling import resampled_groups
from etafree.samplers import FEWEST, sample
from etafree.sandwich import target
from etafree.target import Target
from etafree.totals.linear import BLOCK, LinearTotal, has_design


@dataclass(frozen=True, eq=False)
class QPosterior(GeneralizedPosterior):
    r"""Log density :math:`-\tfrac12\nabla L^\top B(\theta)^{-1}\nabla L` plus the log prior."""

    eta: float = 1.0
    log_prior: LogPrior | None = None
    groups: Groups | None = field(default=None, kw_only=True)
    sandwich: Target | None = field(default=None, kw_only=True)

    remedy = "pass a log_prior that is narrower, or more data"  # there is no eta to choose

    @property
    def tail_exponent(self) -> float:
        """Infinite: the samplers work around the minimiser, where the density is normal."""
        return np.inf

    @property
    def limit(self) -> tuple[Array, Array] | None:
        """Centre (p,) and covariance (p, p) of the sandwich."""
        return None if self.sandwich is None else (self.sandwich.center, self.sandwich.covariance)

    def _log_densities(self, points: Array) -> Array:
        gradients, meats = self._moments(points)
        if self.criterion.strength > 0:
            pull, penalty = self.criterion.strength * self.criterion.size, self.criterion.penalty
            gradients = gradients + pull * np.array([penalty.gradient(point) for point in points])
        value = np.full(len(points), -np.inf)
        finite = np.isfinite(gradients).all(axis=1) & np.isfinite(meats).all(axis=(1, 2))
        scale = np.einsum("bii->bi", meats)
        good = np.flatnonzero(finite & (scale > 0).all(axis=1))  # elsewhere the density is zero
        sd = np.sqrt(scale[good])
        slopes = gradients[good] / sd
        matrices = meats[good] / sd[:, :, None] / sd[:, None, :]
        regular = linalg.eigvalsh(matrices)[:, 0] > 1e-13
        good, slopes, matrices = good[regular], slopes[regular], matrices[regular]
        solved = linalg.solve(matrices, slopes[:, :, None])[:, :, 0]
        value[good] = -0.5 * np.einsum("bi,bi->b", slopes, solved)
        return value + self._log_priors(points)

    def _moments(self, thetas: Array) -> tuple[Array, Array]:
        """Return gradients (D, p) of the loss and variances (D, p, p) of the total score."""
        total = self.criterion.total
        weights = np.ones(total.n) if total.weights is None else total.weights
        if has_design(total) and self.groups is None:
            return _linear_moments(total, thetas, weights)
        gradients, meats = np.empty(thetas.shape), np.empty((*thetas.shape, thetas.shape[1]))
        for k, theta in enumerate(thetas):
            scores = total.scores(theta)
            gradients[k] = total.derivatives(theta).gradient
            scores = scores - weights[:, None] * (scores.sum(axis=0) / weights.sum())
            if self.groups is not None:
                scores = np.column_stack([self.groups.weights(column) for column in scores.T])
            elif total.frequency:
                scores = scores[weights > 0] / np.sqrt(weights[weights > 0])[:, None]
            meats[k] = scores.T @ scores
        return gradients, meats


def _linear_moments(total: LinearTotal, thetas: Array, weights: Array) -> tuple[Array, Array]:
    """Return gradients and score variances at many points by matrix products."""
    count, p = thetas.shape
    power = weights if total.frequency else np.square(weights)
    gradients, crossed = np.zeros((count, p)), np.zeros((count, p))
    squares, plain = np.zeros((count, p * (p + 1) // 2)), 0.0
    step = max(64, BLOCK // max(count, squares.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, total.n, step):
            rows = slice(start, start + step)
            X, w = total.X[rows], power[rows]
            u = thetas @ X.T
            if total.offset is not None:
                u += total.offset[rows]
            slope = total.loss.first(u, total.y[rows])
            gradients += (slope * weights[rows]) @ X
            crossed += (slope * w) @ X
            plain += float(w.sum())
            squares += (np.square(slope) * w) @ outer_products(X)
        mean = gradients / weights.sum()
        between = mean[:, :, None] * crossed[:, None, :]
        meats = unpacked(squares, p) - between - between.transpose(0, 2, 1)
        meats += plain * mean[:, :, None] * mean[:, None, :]
    return gradients, meats


@own_settings
def q_posterior(
    criterion: Criterion,
    draws: int = 4000,
    *,
    log_prior: LogPrior | None = None,
    clusters: object = None,
    seed: object = 0,
) -> Draws:
    r"""Draw from the Q-posterior, which needs no learning rate.

    .. math:: \pi(\theta\mid z) \propto \pi(\theta)\exp\{-\tfrac n2\,\bar m(\theta)^\top
              W(\theta)^{-1}\bar m(\theta)\},

    with :math:`\bar m` the mean score of loss and penalty and :math:`W` the scores' centred
    variance: normal around the minimiser with the covariance of the sandwich. Where scores are
    bounded (Huber, say) it does not fall off at infinity: draws describe it around the minimiser.

    Parameters
    ----------
    criterion : Criterion
        With a smooth penalty, or none.
    draws : int
        At least 50.
    log_prior : LogPrior, optional
        Added to the log density; flat if not given.
    clusters : (n,) labels or column name, optional
        Scores are summed over clusters in W.
    seed : int, SeedSequence or Generator
        The same seed gives the same draws.

    Returns
    -------
    Draws
        Without a learning rate; with the effective number of draws.

    Raises
    ------
    InputError
        The penalty has a kink, clusters are of several ways, or the data are read in parts.
    ConvergenceError
        The criterion has no finite minimiser, or the sampler does not mix.

    References
    ----------
    Frazier, D. T., Drovandi, C. and Kohn, R. (2023). Calibrated generalized Bayesian inference.
    arXiv 2311.15485.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> draws = ef.q_posterior(ef.Criterion(ef.losses.Squared(), data=(X, y)), seed=1)
    >>> round(float(draws.mean[0]), 2), round(float(draws.array.var()), 2)
    (2.0, 0.87)
    """
    groups, rng = resampled_groups(criterion, clusters, "the Q-posterior"), as_rng(seed)
    count = as_count(draws, "draws", least=FEWEST)
    posterior = QPosterior(criterion, 1.0, log_prior, groups=groups)
    fit, name = minimise(criterion), "HC0" if groups is None else "CR0"
    sandwich = target(
        criterion, center=fit.theta, clusters=groups, hessian=fit.hessian, correction=name
    )
    sampled = sample(replace(posterior, sandwich=sandwich), count, rng)
    return replace(sampled, source=None, sampler=f"Q-posterior by {sampled.sampler}")

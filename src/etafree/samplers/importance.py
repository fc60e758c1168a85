"""Importance sampling from a Student-t around the variational normal: the default sampler."""

from __future__ import annotations

import numpy as np

from etafree.draws import Draws
from etafree.errors import ConvergenceError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.expansion import Expansion, checked_expansion
from etafree.samplers.lasso import kinked_proposal
from etafree.samplers.variational import Normal

#: Beyond this Pareto shape the weights' tail is too heavy (Vehtari et al. 2024).
PARETO_K_LIMIT = 0.7
ESS_SHARE_LIMIT = 0.05
#: Fewer weights than this have no tail that a Pareto law could be fitted to.
FEWEST = 25
#: Where weights have no bound proposals are drawn anew, at most so often, with these degrees of
#: freedom.
ROUNDS, HEAVY_DOF = 3, 5
#: Proposals per draw where a log density costs next to nothing: then draws are nearly independent.
OVERSAMPLED = 4


def proposal_dof(posterior: GeneralizedPosterior) -> float:
    """Return the proposal's degrees of freedom: heavier than normal, lighter as p grows.

    Where the posterior itself has polynomial tails, the proposal's match them.
    """
    p = posterior.criterion.p
    return float(min(max(20, 2 * p), posterior.tail_exponent - p))


def student_proposal(
    count: int, p: int, dof: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return standard multivariate Student-t points (D, p) and their log densities (D,)."""
    z = rng.standard_normal((count, p))
    z /= np.sqrt(rng.chisquare(dof, count) / dof)[:, None]
    log_density: Array = -0.5 * (dof + p) * np.log1p(np.einsum("ij,ij->i", z, z) / dof)
    return z, log_density


def importance_draws(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return importance-weighted proposals, resampled systematically to equal weights.

    Proposals are Student-t, or under a penalty with a kink those of `kinked_proposal`. Weights are
    Pareto-smoothed. Where their tail is not light the posterior reaches further than its normal
    approximation, as exponential tails do at a small learning rate: proposals are drawn anew, with
    the moments that were found, if more draws count than there are parameters, and heavier tails.
    Of many rows the log density is a checked expansion (`etafree.samplers.expansion`). The
    effective size counts both the unevenness of the weights and the rounding of the resampling.

    References
    ----------
    Vehtari, A., Simpson, D., Gelman, A., Yao, Y. and Gabry, J. (2024). Pareto smoothed importance
    sampling. J. Mach. Learn. Res. 25(72), 1-58. Cornuet, J.-M., Marin, J.-M., Mira, A. and Robert,
    C. P. (2012). Adaptive multiple importance sampling. Scand. J. Statist. 39, 798-812.
    """
    dof, share = proposal_dof(posterior), 1.0
    kinked, expansion = kinked_proposal(posterior, normal, dof / (dof - 2), draws, rng), None
    if kinked is None:
        expansion = checked_expansion(posterior, normal, draws, rng)
        theta, weights, pareto_k = _weighted_student(posterior, normal, dof, draws, rng, expansion)
        p, rounds = posterior.criterion.p, ROUNDS if expansion is None else 0
        dof = min(dof, float(max(HEAVY_DOF, p)))
        while _unbounded(pareto_k, draws) and rounds and p * float(weights @ weights) < 1:
            normal, rounds = _matched(theta, weights, normal), rounds - 1
            anew = _weighted_student(posterior, normal, dof, draws, rng)
            if anew[2] < pareto_k:
                theta, weights, pareto_k = anew
    else:  # a chain: its draws count for less
        theta, log_proposal, share = kinked
        weights, pareto_k = _smoothed(posterior.log_density(theta) - log_proposal)
    expected = draws * weights
    split = expected - np.floor(expected)
    ess = share / (float(weights @ weights) + float((split * (1 - split)).sum()) / draws**2)
    edges = np.cumsum(weights)
    edges[-1] = 1.0
    picked = np.searchsorted(edges, (np.arange(draws) + rng.random()) / draws)
    rng.shuffle(picked)
    info = {"ess": ess, "pareto_k": pareto_k, "weights_ess": share / float(weights @ weights)}
    if expansion is not None:
        info["expansion_error"] = expansion.error
    return Draws(theta[picked][None], posterior.criterion.names, posterior.eta, "importance", info)


def _weighted_student(
    posterior: GeneralizedPosterior,
    normal: Normal,
    dof: float,
    draws: int,
    rng: np.random.Generator,
    expansion: Expansion | None = None,
) -> tuple[Array, Array, float]:
    """Return Student-t proposals (D, p) around a normal law, their weights (D,) and Pareto k."""
    count = draws if expansion is None else OVERSAMPLED * draws
    z, log_proposal = student_proposal(count, posterior.criterion.p, dof, rng)
    theta: Array = z @ normal.lower.T
    theta += normal.mean
    log_density = posterior.log_density(theta) if expansion is None else expansion(z)
    return theta, *_smoothed(log_density - log_proposal)


def _smoothed(log_ratio: Array) -> tuple[Array, float]:
    """Return Pareto-smoothed weights (D,) that sum to one, and the Pareto k."""
    from arviz_stats.base.array import array_stats

    if not (there := log_ratio > -np.inf).any():
        raise ConvergenceError("no proposal is in the support of the log prior; use 'elliptical'")
    draws, log_ratio = len(log_ratio), log_ratio - log_ratio.max()
    if np.ptp(log_ratio) < 1e-9:  # the proposal is the posterior
        return np.full(draws, 1.0 / draws), -np.inf
    log_weights, pareto_k, weights = log_ratio[there], np.inf, np.zeros(draws)
    if len(log_weights) >= FEWEST:
        # psislw takes log likelihoods and weighs by their inverse, as in leave-one-out
        with np.errstate(all="ignore"):  # nearly all weights may underflow
            smoothed, k = array_stats.psislw(-log_weights)
        if not np.isnan(smoothed).any():  # else there is no tail to smooth
            log_weights, pareto_k = smoothed, float(k)
    weights[there] = np.exp(log_weights - log_weights.max())
    return weights / weights.sum(), pareto_k


def _unbounded(pareto_k: float, count: int) -> bool:
    """Return whether the Pareto k of so many weights is above zero by more than a standard error.

    Above zero weights have no bound. The error of the tail's shape is about (1 + k) / sqrt(M), its
    M = min(S/5, 3 sqrt(S)) weights being those that the law is fitted to.
    """
    tail = min(0.2 * count, 3 * float(np.sqrt(count)))
    return pareto_k > 1 / (float(np.sqrt(tail)) - 1)  # solved for k


def _matched(theta: Array, weights: Array, normal: Normal) -> Normal:
    """Return the normal law with the moments of weighted points, nearer to `normal` if few count.

    Nearness is in the metric of `normal`, in which its own covariance is the identity.
    """
    z = linalg.solve(normal.lower, (theta - normal.mean).T).T
    noise = len(normal.mean) * float(weights @ weights)
    trust = 1.0 / (1.0 + noise)
    mean = trust * (weights @ z)
    away = z - mean
    covariance = trust * (away.T * weights) @ away + (1 - trust) * np.eye(len(mean))
    lower = normal.lower @ linalg.cholesky(covariance, "covariance of the proposals")
    return Normal(normal.mean + normal.lower @ mean, lower, normal.mode)


def trustworthy(draws: Draws) -> bool:
    """Return whether importance draws pass both gates: Pareto k and effective share."""
    share = draws.info["weights_ess"] / len(draws)
    return bool(draws.info["pareto_k"] < PARETO_K_LIMIT and share > ESS_SHARE_LIMIT)

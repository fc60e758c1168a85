r"""Normal approximation of a generalized posterior, the proposal of the samplers.

The best normal approximation in Kullback-Leibler divergence solves
:math:`E\nabla\log\pi = 0,\ \Lambda = -E\nabla^2\log\pi` (Opper and Archambeau 2009). Over a linear
predictor both expectations are one-dimensional integrals. A Laplace approximation at the mode is
not safe: where the posterior is wider than Huber's threshold its curvature there says nothing of
the spread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etafree.errors import ConvergenceError, NotPositiveDefiniteError
from etafree.linear import PredictorTotal
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior
from etafree.validation import Array

__all__ = ["Normal", "normal_approximation"]

MAX_ITERATIONS = 60


class Normal(NamedTuple):
    """Mean (p,), lower Cholesky factor (p, p) of the covariance, and the posterior's mode."""

    mean: Array
    lower: Array
    mode: Array


def normal_approximation(posterior: GeneralizedPosterior) -> Normal:
    """Return the variational normal approximation, by fixed-point Newton steps from the mode.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> post = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), data=(X, y)), eta=1.0)
    >>> q = normal_approximation(post)
    >>> q.mean.round(8), q.lower.round(8)
    (array([2.]), array([[0.5]]))
    """
    energy, eta = posterior.energy, posterior.eta
    fit = minimise(energy)
    weight = energy.strength * energy.size
    mean, precision = fit.theta, eta * fit.hessian
    covariance = _inverse(precision)
    if covariance is None:
        smallest = float(np.linalg.eigvalsh(precision)[0])
        raise NotPositiveDefiniteError("Hessian at the mode", smallest, "add a penalty")
    if not isinstance(energy.total, PredictorTotal):  # no expectations in closed form: Laplace
        return Normal(mean, np.linalg.cholesky(covariance), fit.theta)
    for _ in range(MAX_ITERATIONS):
        with np.errstate(over="ignore", invalid="ignore"):
            slope, curvature = energy.total.expected_derivatives(mean, covariance)
        pull, bend = energy.penalty.expected_derivatives(mean, covariance)
        new = eta * (curvature + weight * bend)
        if not np.isfinite(slope).all() or _inverse(new) is None:
            if not energy.loss.convex:
                break
            covariance = covariance / 16  # so wide that an exponential overflows
            continue
        change = float(np.max(np.abs(np.linalg.eigvals(new @ covariance) - 1)))
        if change > 1:  # far off: average precisions, or an exponential loss makes it oscillate
            new = 0.5 * (new + _inverse_of(covariance, eta))
        inverse = _inverse_of(new, eta)
        step = -inverse @ (eta * (slope + weight * pull))
        moved = float(step @ new @ step)
        mean = mean + step * min(1.0, 2.0 * np.sqrt(len(step) / max(moved, 1e-300)))
        covariance = inverse
        if moved < 1e-4 and change < 1e-2:
            break
    return Normal(mean, np.linalg.cholesky(covariance), fit.theta)


def _inverse_of(matrix: Array, eta: float) -> Array:
    inverse = _inverse(matrix)
    if inverse is None:
        raise ConvergenceError(
            f"no sampler reaches the whole posterior at eta = {eta:g} (no normal law comes near "
            "it): use a larger eta or add a penalty"
        )
    return inverse


def _inverse(precision: Array) -> Array | None:
    """Return the inverse of a positive definite matrix of any units, None if it is not one."""
    if not np.isfinite(precision).all() or np.any(np.diagonal(precision) <= 0):
        return None
    sd = np.sqrt(np.diagonal(precision))
    try:
        lower = np.linalg.cholesky(precision / sd / sd[:, None])
    except np.linalg.LinAlgError:
        return None
    half = np.linalg.inv(lower) / sd
    return half.T @ half

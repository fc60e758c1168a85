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

from etafree.criterion import Criterion
from etafree.errors import ConvergenceError, InputError, NotPositiveDefiniteError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.optimize import Minimum, minimise
from etafree.penalties import NormPenalty, PolyhedralPenalty
from etafree.posterior import GeneralizedPosterior
from etafree.totals.linear import is_linear

MAX_ITERATIONS = 60
#: Up to this many parameters with kinks the fixed point is cheap, and draws are drawn together.
TOGETHER = 32


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
    if posterior.limit is not None:
        return _near_limit(posterior, *posterior.limit)
    energy, fit = _minimised(posterior)
    if isinstance(energy.penalty, PolyhedralPenalty) and energy.strength > 0:
        from etafree.samplers.lines import line_moments

        mean, covariance = line_moments(energy, fit, posterior.eta)
        return Normal(mean, linalg.cholesky(covariance, "covariance"), fit.theta)
    return _fixed_point(energy, fit, posterior.eta)


def _fixed_point(energy: Criterion, fit: Minimum, eta: float) -> Normal:
    """Return the approximation by Newton steps from the mode."""
    weight = energy.strength * energy.size
    mean, root = fit.theta, _root_at(energy, fit, eta)
    if not is_linear(energy.total):  # no expectations in closed form: Laplace
        return Normal(mean, root, fit.theta)
    before = None  # curvature of the loss, all that the proposal for many kinks needs
    kinked = isinstance(energy.penalty, NormPenalty) and energy.p > TOGETHER
    for _ in range(MAX_ITERATIONS):
        covariance = root @ root.T
        with np.errstate(over="ignore", invalid="ignore"):
            slope, curvature = energy.total.expected_derivatives(mean, covariance)
        pull, bend = energy.penalty.expected_derivatives(mean, covariance)
        precision = eta * (curvature + weight * bend)
        if not np.isfinite(slope).all() or _root(precision) is None:
            if not energy.loss.convex:
                break
            root = root / 4  # so wide that an exponential overflows
            continue
        if kinked and before is not None and _settled(curvature, before):
            break
        before = curvature
        change = float(np.max(np.abs(linalg.eigvalsh(root.T @ precision @ root, "precision") - 1)))
        if change > 1:  # far off: average precisions, or an exponential loss makes it oscillate
            back = linalg.inv(root, "covariance")
            precision = 0.5 * (precision + back.T @ back)
        if (factor := _root(precision)) is None:
            raise ConvergenceError(
                f"no sampler reaches the whole posterior at eta = {eta:g} (no normal "
                "distribution approximates it): use a larger eta or add a penalty"
            )
        root = factor
        step = -root @ (root.T @ (eta * (slope + weight * pull)))
        moved = float(step @ precision @ step)
        mean = mean + step * min(1.0, 2.0 * np.sqrt(len(step) / max(moved, 1e-300)))
        if moved < 1e-4 and change < 1e-2:
            break
    return Normal(mean, root, fit.theta)


def _root_at(energy: Criterion, fit: Minimum, eta: float) -> Array:
    """Return the root of the covariance that the curvature at the mode gives, and kinks there."""
    precision = eta * fit.hessian
    root = _root(precision)
    if root is None and isinstance(energy.penalty, NormPenalty) and energy.strength > 0:
        kinks = energy.penalty.kinks_at(energy.p).scaled(eta * energy.strength * energy.size)
        root = _root(precision + kinks.laplace_curvature())
    if root is None:
        smallest = float(linalg.eigvalsh(precision, "Hessian at the mode")[0])
        raise NotPositiveDefiniteError("Hessian at the mode", smallest, "add a penalty")
    return root


def _settled(curvature: Array, before: Array) -> bool:
    """Return whether no entry changed by more than a hundredth of its diagonal's size."""
    size = np.sqrt(np.diagonal(curvature))
    return bool(np.all(np.abs(curvature - before) <= 0.01 * np.outer(size, size)))


def _minimised(posterior: GeneralizedPosterior) -> tuple[Criterion, Minimum]:
    """Return what the normal law approximates, and its minimum.

    Under a log prior with bounds that is the criterion: the mode may lie at a bound.
    """
    if posterior.bounds is None:
        return posterior.energy, minimise(posterior.energy)
    fit = minimise(posterior.criterion)
    check_inside(posterior, fit.theta)
    return posterior.criterion, fit


def check_inside(posterior: GeneralizedPosterior, center: Array) -> None:
    """Refuse a minimiser outside the support of the log prior: draws and their target part."""
    if posterior.bounds is None:
        return
    names = posterior.criterion.names
    for name, x, (low, high) in zip(names, center, posterior.bounds, strict=True):
        if not low < x < high:
            problem = (
                f"is zero at the minimiser: its {name!r} is {x:.4g}, not in ({low:g}, {high:g})"
            )
            advice = "where intervals are centred: widen its support=, or take the logarithm or "
            raise InputError("log_prior", problem, advice + "logit of the parameter as one")


def _near_limit(posterior: GeneralizedPosterior, mean: Array, covariance: Array) -> Normal:
    """Return the normal law that a likelihood part was made to have, a Newton step with a prior."""
    check_inside(posterior, mean)
    if (prior := posterior.log_prior) is not None and posterior.bounds is None:
        n, precision = posterior.criterion.size, linalg.inv(covariance, "covariance")
        bend = precision - np.asarray(prior.hessian(mean, n))
        covariance = linalg.inv(bend, "Hessian of loss and log prior", "weaken the log prior")
        mean = mean + covariance @ np.asarray(prior.gradient(mean, n))
    return Normal(mean, linalg.cholesky(covariance, "covariance", "weaken the log prior"), mean)


def _root(precision: Array) -> Array | None:
    r"""Return the lower Cholesky factor of a precision's inverse, None if it has none.

    With the order of the parameters reversed, :math:`\Lambda = UU^\top` for an upper triangular U,
    and :math:`\Lambda^{-1} = U^{-\top}U^{-1}`: the covariance itself, which rounding can make
    indefinite, is not factorised.
    """
    factor = linalg.safe_factor(precision[::-1, ::-1])
    if factor is None:
        return None
    sd, lower = factor
    return linalg.inv(lower[::-1, ::-1], "precision").T / sd[::-1, None]

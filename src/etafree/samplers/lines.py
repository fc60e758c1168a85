r"""Slices along lines, the sampler of a normal law times the kinks of a polyhedral penalty.

The law

.. math:: q(\theta) \propto \exp\{-\tfrac12\theta^\top P\theta + h^\top\theta - \kappa\rho(\theta)\}

is log-concave: on a line a slice of its density is an interval, from which a uniform draw needs
nothing but values. Directions are the columns of a root of the law's covariance, so that neither
collinear columns nor ties, whose members move together, slow the chain down. :math:`P` and
:math:`h` are those of the loss, expected under a normal law with the mean and covariance of
:math:`q` itself, which is found by iteration; importance weights take care of the loss.

References
----------
Neal, R. M. (2003). Slice sampling. Ann. Statist. 31, 705-767.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.errors import ConvergenceError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.optimize import Minimum
from etafree.penalties import PolyhedralPenalty
from etafree.penalties.polyhedral import Terms

#: Sweeps before the first draw, and between draws: more where draws say little new.
BURN_IN, THIN = 50, (1, 4, 16)
#: Most rounds in which the law, and the directions, are found, draws in each, and fewest rounds.
ROUNDS, PILOT, FEWEST = 6, 400, 3
IMPROPER = (
    "the posterior is improper: along some direction neither loss nor penalty rises; drop columns "
    "or use a penalty that pulls every coefficient to zero"
)


def line_chain(
    precision: Array,
    linear: Array,
    terms: Terms,
    start: Array,
    directions: Array,
    draws: int,
    rng: np.random.Generator,
    thin: int = 1,
) -> Array:
    """Return draws (D, p) of the law above, a draw every `thin` sweeps over `directions` (m, p).

    `precision` is P (p, p), `linear` h (p,), the penalty is that of the scaled `terms`; the law is
    about one wide along a direction.

    Examples
    --------
    >>> laplace = Terms(np.array([0]), absolute=2.0)
    >>> rng = np.random.default_rng(1)
    >>> x = line_chain(np.zeros((1, 1)), np.zeros(1), laplace, np.zeros(1), np.eye(1), 20000, rng)
    >>> bool(abs(np.abs(x).mean() - 0.5) < 0.02)
    True
    """
    from etafree.data.compiled import line_sweeps

    theta, out = start.astype(np.float64), np.empty((draws, len(start)))
    turned = directions @ precision
    lines = np.ascontiguousarray(directions), turned, np.einsum("ij,ij->i", directions, turned)
    for kept, every in ((np.empty((1, len(start))), BURN_IN), (out, thin)):
        if not line_sweeps(theta, precision, linear, terms, *lines, rng, every, kept):
            raise ConvergenceError(IMPROPER)
    return out


def some_lines(
    precision: Array,
    linear: Array,
    terms: Terms,
    directions: Array,
    rng: np.random.Generator,
    theta: Array,
    which: NDArray[np.intp],
) -> Array:
    """Return theta (p,) after slices along some of the directions (m, p), in turn."""
    from etafree.data.compiled import line_sweeps

    theta, kept, chosen = theta.copy(), np.empty((1, len(theta))), directions[which]
    turned = chosen @ precision
    lines = chosen, turned, np.einsum("ij,ij->i", chosen, turned)
    if not line_sweeps(theta, precision, linear, terms, *lines, rng, 1, kept):
        raise ConvergenceError(IMPROPER)
    return theta


def _refuse_improper(energy: Criterion, terms: Terms) -> None:
    """Refuse bounded coefficients that can grow together without a change of the predictor.

    They can if some x >= 0 with sum one, and any free coefficients, have Xx = 0.
    """
    if not terms.bounded or energy.p <= energy.n:
        return
    from scipy.optimize import nnls

    X = energy.total.X / np.where(energy.total.column_norms > 0, energy.total.column_norms, 1.0)
    free = np.setdiff1d(np.arange(energy.p), terms.members)
    rows = np.hstack([X[:, terms.members], X[:, free], -X[:, free]])
    total = np.append(np.ones(len(terms.members)), np.zeros(2 * len(free)))
    if nnls(np.vstack([rows, total]), np.append(np.zeros(len(X)), 1.0))[1] < 1e-8:
        raise ConvergenceError(IMPROPER)


def line_moments(energy: Criterion, fit: Minimum, eta: float) -> tuple[Array, Array]:
    """Return mean (p,) and covariance (p, p) of the law that is nearest to a posterior's."""
    penalty = energy.penalty
    assert isinstance(penalty, PolyhedralPenalty)
    _refuse_improper(energy, penalty.terms(energy.p))
    terms = penalty.terms(energy.p).scaled(eta * energy.strength * energy.size)
    theta, rng = fit.theta, np.random.default_rng(0)
    slope, bend = energy.total.derivatives(theta)[1:3]
    bend_there, mean, start = bend @ theta - slope, theta, theta
    basis = penalty.face(theta).basis
    size = np.sqrt(eta * np.maximum(np.diagonal(bend), 1e-300))
    together = basis[:, np.count_nonzero(basis, axis=0) > 1].T
    directions = np.vstack([np.diag(1.0 / size), together / size.max()])
    for done in range(1, ROUNDS + 1):
        draws = max(PILOT, 4 * energy.p)
        chain = line_chain(eta * bend, eta * bend_there, terms, start, directions, draws, rng)
        mean, start = chain.mean(axis=0), chain[-1]
        covariance = np.cov(chain.T).reshape(energy.p, energy.p)
        noise = energy.p / (energy.p + draws)  # of the correlations
        covariance = (1 - noise) * covariance + noise * np.diag(np.diagonal(covariance))
        directions = linalg.cholesky(covariance, "covariance").T
        before = bend
        with np.errstate(over="ignore", invalid="ignore"):
            slope, bend = energy.total.expected_derivatives(mean, covariance)
        if not np.isfinite(bend).all():
            raise ConvergenceError(f"no sampler reaches the whole posterior at eta = {eta:g}")
        bend_there = bend @ mean - slope
        size = np.sqrt(np.diagonal(bend))
        if done >= FEWEST and np.all(np.abs(bend - before) <= 0.02 * np.outer(size, size)):
            break
    return mean, covariance

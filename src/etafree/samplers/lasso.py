r"""Gibbs sampler of a normal law times kinks, the proposal for posteriors with an L1 penalty.

Far into a kink a posterior is Laplace-shaped in the inactive coefficients and normal in the active
ones; no normal proposal fits both. The law

.. math:: q(\theta) \propto \exp\{-\tfrac12\theta^\top P\theta + h^\top\theta
          - \sum_g\kappa_g\|\theta_g\|\}

does, with :math:`P` and :math:`h` those of the variational normal approximation of the loss.
Written as a scale mixture of normals, :math:`1/\omega_g\mid\theta\sim
\mathrm{IG}(\kappa_g/\|\theta_g\|, \kappa_g^2)` and :math:`\theta\mid\omega\sim
N(\Lambda^{-1}h,\Lambda^{-1})` with :math:`\Lambda=P+\mathrm{diag}(1/\omega)`: whole vectors are
drawn, so collinear columns do no harm. That takes :math:`p^3` operations; many parameters are drawn
one after the other given the rest, :math:`p^2` a sweep, those with an absolute value without a
scale, from two pieces of normal laws (Hans 2009). :math:`P` may be singular, as it is with more
parameters than rows. Importance weights take care of the loss itself; for least squares they are
even; where they are too uneven, `etafree.samplers.metropolis` moves some coefficients at a time.
Under polyhedral penalties the chain is that of `etafree.samplers.lines`.

References
----------
Park, T. and Casella, G. (2008). The Bayesian lasso. J. Amer. Statist. Assoc. 103, 681-686. Kyung,
M., Gill, J., Ghosh, M. and Casella, G. (2010). Penalized regression, standard errors, and Bayesian
lassos. Bayesian Anal. 5, 369-411. Hans, C. (2009). Bayesian lasso regression. Biometrika 96,
835-845. Robert, C. P. (1995). Simulation of truncated normal variables. Statist. Comput. 5,
121-125.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.foundation.arguments import Array
from etafree.foundation.linalg import safe_factor
from etafree.penalties import NormPenalty, PolyhedralPenalty
from etafree.penalties.kinked import GroupNorms
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.lines import THIN as LINE_THIN
from etafree.samplers.lines import line_chain, some_lines
from etafree.samplers.variational import TOGETHER, Normal
from etafree.totals.linear import has_design

#: Sweeps between draws, more where one after the other says little new, and before the first.
THIN, BURN_IN = (4, 16, 64), 100
#: The same of coefficients drawn one after the other, where they are more than `TOGETHER`.
THIN_SINGLE = (1, 4, 16)
#: Effective share of a chain that needs no more sweeps.
ENOUGH = 0.4
#: Random numbers made at a time.
BLOCK = 1 << 20


class KinkedLaw(NamedTuple):
    """A normal law times kinks, up to a constant."""

    log_density: Callable[[Array], Array]  #: Of points (D, p).
    chain: Callable[[int, int], Array]  #: Of a number of draws, and of sweeps between them.
    #: Of a point (p,) and the numbers of coordinates, or of lines, that are drawn in turn.
    part: Callable[[Array, NDArray[np.intp]], Array]
    thins: tuple[int, ...]


def kinked_chain(
    precision: Array,
    linear: Array,
    kinks: GroupNorms,
    start: Array,
    draws: int,
    rng: np.random.Generator,
    thin: int = THIN[0],
    *,
    together: bool = True,
) -> Array:
    """Return draws (D, p) of the law above, a draw every `thin` sweeps.

    `precision` is P (p, p), `linear` h (p,); the weights of `kinks` are kappa, its ridge is left
    out. Coefficients are drawn `together` given the scales, or one after the other.

    Examples
    --------
    >>> laplace = GroupNorms.of(np.array([0]), np.array([2.0]), np.zeros(1))
    >>> rng = np.random.default_rng(1)
    >>> x = kinked_chain(np.array([[1e-9]]), np.zeros(1), laplace, np.zeros(1), 20000, rng)
    >>> bool(abs(np.abs(x).mean() - 0.5) < 0.02)
    True
    """
    from etafree.data.compiled import kinked_coordinates, kinked_sweeps

    p, groups = len(start), len(kinks.weights)
    theta, out = start.astype(np.float64), np.empty((draws, p))
    block = max(1, BLOCK // (thin * (p + 2 * groups)))
    runs = [(np.empty((1, p)), BURN_IN)]
    runs += [(out[first : first + block], thin) for first in range(0, draws, block)]
    for kept, every in runs:
        random = _random(len(kept) * every, p, groups, rng)
        law = theta, precision, linear, kinks.codes, kinks.weights
        if together:
            kinked_sweeps(*law, *random, every, kept)
        else:
            order = np.arange(p)
            kinked_coordinates(*law, _alone(kinks), order, *random, rng, every, kept)
    return out


def _some_coordinates(
    precision: Array,
    linear: Array,
    kinks: GroupNorms,
    rng: np.random.Generator,
    theta: Array,
    which: NDArray[np.intp],
) -> Array:
    """Return theta (p,) after some coordinates are drawn in turn, from their law given the rest."""
    from etafree.data.compiled import kinked_coordinates

    theta, kept = theta.copy(), np.empty((1, len(theta)))
    law = theta, precision, linear, kinks.codes, kinks.weights, _alone(kinks), which
    kinked_coordinates(*law, *_random(1, len(theta), len(kinks.weights), rng), rng, 1, kept)
    return theta


def _alone(kinks: GroupNorms) -> NDArray[np.bool_]:
    """Return which coordinates (p,) are alone in a group that has a kink."""
    alone: NDArray[np.bool_] = (np.bincount(kinks.codes) == 1)[kinks.codes] & (kinks.rates > 0)
    return alone


def _random(
    steps: int, p: int, groups: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Return the normal and uniform numbers of so many sweeps."""
    normals, chi = rng.standard_normal((steps, p)), rng.standard_normal((steps, groups))
    return normals, chi, rng.random((steps, groups))


def kinked_law(
    posterior: GeneralizedPosterior, normal: Normal, widen: float, rng: np.random.Generator
) -> KinkedLaw | None:
    """Return the law near a posterior with kinks, None without kinks or curvature.

    `widen` divides the exponent, for heavier tails.
    """
    energy, penalty = posterior.energy, posterior.energy.penalty
    if not isinstance(penalty, NormPenalty | PolyhedralPenalty) or energy.strength == 0:
        return None
    if has_design(energy.total):
        slope, bend = energy.total.expected_derivatives(normal.mean, normal.lower @ normal.lower.T)
    else:
        slope, bend = energy.total.derivatives(normal.mean)[1:3]
    rate, weight = posterior.eta / widen, energy.strength * energy.size
    linear, precision = rate * (bend @ normal.mean - slope), rate * bend
    chain: Callable[..., Array]
    part: Callable[..., Array]
    if isinstance(penalty, PolyhedralPenalty):
        terms, lines = penalty.terms(energy.p).scaled(rate * weight), normal.lower.T
        chain = partial(line_chain, precision, linear, terms, normal.mean, lines)
        part = partial(some_lines, precision, linear, terms, lines, rng)
        kinks, scale, thins = penalty.value, rate * weight, LINE_THIN
    else:
        norms = penalty.kinks_at(energy.p).scaled(weight)
        precision = precision + rate * np.diag(norms.ridge)
        rates = norms.scaled(rate).without_ridge()
        if safe_factor(precision + rates.laplace_curvature()) is None:
            return None
        together = energy.p <= TOGETHER
        chain = partial(kinked_chain, precision, linear, rates, normal.mean, together=together)
        part = partial(_some_coordinates, precision, linear, rates, rng)
        kinks, scale, thins = rates.value, 1.0, THIN if together else THIN_SINGLE

    def log_density(theta: Array) -> Array:
        quadratic = 0.5 * np.einsum("ij,ij->i", theta @ precision, theta) - theta @ linear
        log_q: Array = -quadratic - scale * kinks(theta)
        return log_q

    return KinkedLaw(log_density, lambda draws, thin: chain(draws, rng, thin), part, thins)


def kinked_proposal(
    posterior: GeneralizedPosterior,
    normal: Normal,
    widen: float,
    draws: int,
    rng: np.random.Generator,
) -> tuple[Array, Array, float] | None:
    """Return proposals (D, p) for a posterior with kinks, log densities and their effective share.

    None without kinks or curvature.
    """
    from arviz_stats.base.array import array_stats

    law = kinked_law(posterior, normal, widen, rng)
    if law is None:
        return None
    for thin in law.thins:
        theta = law.chain(draws, thin)
        share = min(1.0, float(np.min(array_stats.ess(theta[None], 0, 1))) / draws)
        if share > ENOUGH:
            break
    return theta, law.log_density(theta), share

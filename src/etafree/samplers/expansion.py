r"""Fourth-order expansion of a log density, for importance weights over many rows.

Near a mode that n rows determine, terms of third order are of size :math:`n^{-1/2}` and those of
fourth :math:`1/n`. With :math:`\theta=m+Lz`, m and :math:`LL^\top` those of the normal
approximation,

.. math:: \log\pi(z) \approx g^\top z + \tfrac12 z^\top Hz + \tfrac16\sum T_{ijk}z_iz_jz_k
          + \tfrac1{24}\sum Q_{ijkl}z_iz_jz_kz_l ,

where :math:`T_{\cdot\cdot k}` and :math:`Q_{\cdot\cdot kk}` are differences of Hessians at
:math:`z=\pm he_k`: 2p passes over the rows instead of one evaluation per draw. Entries of Q with
four different indices are left out. The expansion is exact for polynomials of degree four without
such terms. What it leaves out is measured: `error` is the standard deviation of exact minus
expanded log densities at points of the normal approximation. Draws weighted by the expansion are
those of a law whose total variation distance from the posterior is close to
:math:`\tfrac12E|r-Er|\le\tfrac12\,` `error`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from etafree.errors import EtafreeError
from etafree.foundation.arguments import Array
from etafree.penalties import KinkedPenalty
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.variational import Normal

#: Rows times draws from which an expansion saves more than it costs to find out that it fails.
FROM = 1e8
#: Points at which it is checked, and the largest error of a log density: at 4,000 draws a total
#: variation distance of .01 is less than their own Monte Carlo error.
CHECKED, TOLERANCE = 64, 0.02
#: Step of the differences, in standard deviations: the outer nodes of three-point Gauss-Hermite
#: quadrature, so that what is left out counts where the draws are.
STEP = np.sqrt(3.0)


@dataclass(frozen=True, eq=False)
class Expansion:
    """Derivatives of a log density at z = 0, those of third and fourth order as [k, i, j].

    Attributes
    ----------
    gradient : (p,) array
    hessian : (p, p) array
    third : (p, p, p) array
        :math:`T_{ijk}`.
    fourth : (p, p, p) array
        :math:`Q_{ijkk}`.
    error : float
        Standard deviation of what it leaves out, once that was measured.
    """

    gradient: Array
    hessian: Array
    third: Array
    fourth: Array
    error: float = np.nan

    @classmethod
    def of(cls, posterior: GeneralizedPosterior, normal: Normal) -> Expansion:
        """Return the expansion at the mean of a normal approximation, from 2p + 1 Hessians."""
        energy, root, p = posterior.energy, normal.lower, len(normal.mean)

        def hessian(z: Array) -> Array:
            return -posterior.eta * root.T @ energy.hessian(normal.mean + root @ z) @ root

        here = energy.derivatives(normal.mean)
        middle: Array = -posterior.eta * root.T @ here.hessian @ root
        third, fourth = np.empty((2, p, p, p))
        for k, step in enumerate(STEP * np.eye(p)):
            up, down = hessian(step), hessian(-step)
            third[k] = (up - down) / (2 * STEP)
            fourth[k] = (up + down - 2 * middle) / STEP**2
        return cls(-posterior.eta * root.T @ here.gradient, middle, third, fourth)

    def __call__(self, z: Array) -> Array:
        """Return log densities at points (D, p), up to a constant."""
        out: Array = z @ self.gradient + 0.5 * np.einsum("di,di->d", z @ self.hessian, z)
        same = np.eye(len(self.gradient))
        for k, (third, fourth) in enumerate(zip(self.third, self.fourth, strict=True)):
            at = np.maximum(same[k], same[k][:, None])  # tuples of equal indices: 12 of iijk, ...
            often = 6 - 3 * same - 4 * at + 2 * same * at
            cubic, quartic = z @ (third / 6), z @ (often * fourth / 24)
            out += z[:, k] * np.einsum("di,di->d", cubic + z[:, k, None] * quartic, z)
        return out


def checked_expansion(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Expansion | None:
    """Return an expansion with its error, measured at random points of the normal approximation.

    None where `draws` exact evaluations cost less, where a penalty has kinks or the prior bounds,
    and where the error is larger than `TOLERANCE`.
    """
    p = len(normal.mean)
    passes = 2 * p * (1 + p / 4) + CHECKED  # a Hessian's cost in evaluations
    kinked = isinstance(posterior.criterion.penalty, KinkedPenalty) or posterior.bounds is not None
    if kinked or posterior.criterion.n * draws < FROM or passes > draws / 4:
        return None
    try:
        found = Expansion.of(posterior, normal)
    except EtafreeError:  # a loss without second derivatives
        return None
    z = rng.standard_normal((CHECKED, p))
    exact = posterior.log_density(normal.mean + z @ normal.lower.T)
    error = float(np.std(exact - found(z)))
    return replace(found, error=error) if error <= TOLERANCE else None

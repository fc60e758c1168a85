"""The loss that the paper's data augmentation integrates to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etafree.foundation.arguments import Array
from etafree.losses.residual import ResidualLoss


@dataclass(frozen=True)
class NormalLaplace(ResidualLoss):
    r"""Normal–Laplace loss: what Gibbs sampling with Huber's augmentation samples from.

    :math:`\int\exp\{-\eta[\tfrac12(r-t)^2+c|t|]\}\,dt \propto \exp\{-\eta\,\ell(r)\}` with

    .. math:: \eta\,\ell(r) = \eta r^2/2 - \log[\mathrm{erfcx}\{(c-r)(\eta/2)^{1/2}\}
              + \mathrm{erfcx}\{(c+r)(\eta/2)^{1/2}\}].

    It depends on the learning rate, and is close to Huber's loss only when that is large.

    Parameters
    ----------
    c : float
        Threshold of the augmented Huber loss.
    eta : float
        Learning rate; the posterior must be taken at the same one.
    scale : float or "mad"
        What residuals are divided by, see `ResidualLoss`.

    Raises
    ------
    InputError
        `c`, `eta` or `scale` is not a positive number.

    References
    ----------
    Reed, W. J. (2006). In Advances in Distribution Theory, 61-74. Birkhäuser.

    Examples
    --------
    >>> import etafree as ef
    >>> u, y = np.zeros(2), np.array([0.5, 3.0])
    >>> ef.losses.NormalLaplace(c=1.0, eta=1.0).first(u, y).round(2)
    array([-0.26, -0.97])
    >>> ef.losses.NormalLaplace(c=1.0, eta=1000.0).first(u, y).round(2)  # Huber's
    array([-0.5, -1. ])
    """

    c: float = 1.345
    eta: float = 1.0

    _positive = ("c", "eta")

    def _tails(self, u: Array, y: Array) -> tuple[Array, Array, Array, float]:
        """Return the residual, both log erfcx terms and the factor (eta/2)**(1/2)."""
        r, k = self.residual(u, y), float(np.sqrt(0.5 * self.eta))
        return r, _log_erfcx((self.c - r) * k), _log_erfcx((self.c + r) * k), k

    def values(self, u: Array, y: Array) -> Array:
        r, below, above, _ = self._tails(u, y)
        return 0.5 * np.square(r) - np.logaddexp(below, above) / self.eta

    def first(self, u: Array, y: Array) -> Array:
        _, below, above, _ = self._tails(u, y)
        return -self.c * np.tanh(0.5 * (below - above)) / self.scale_value

    def second(self, u: Array, y: Array) -> Array:
        _, below, above, k = self._tails(u, y)
        share = 0.25 / np.square(np.cosh(np.clip(0.5 * (below - above), -300, 300)))
        bend = k * (1.1283791670955126 * (np.exp(-below) + np.exp(-above)) - 4.0 * self.c * k)
        return 2.0 * self.c * share * bend / self.scale_value**2

    def majorizer(self, u: Array, y: Array) -> Array:
        r, below, above, _ = self._tails(u, y)
        size = np.abs(r)
        slope = self.c * np.tanh(0.5 * (below - above)) * np.sign(r)
        weight = np.where(size > 1e-6, slope / np.maximum(size, 1e-6), self.second(u, y))
        return weight / self.scale_value**2


def _log_erfcx(x: Array) -> Array:
    """Return log erfcx(x), also far below zero, where erfcx itself overflows."""
    from scipy.special import erfcx, log_ndtr

    out = np.empty_like(x)
    low = x < 0
    out[low] = np.square(x[low]) + 0.6931471805599453 + log_ndtr(-1.4142135623730951 * x[low])
    out[~low] = np.log(erfcx(x[~low]))
    return out

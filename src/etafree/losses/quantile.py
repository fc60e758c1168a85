"""The check loss of quantile regression, smoothed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etafree.foundation.arguments import Array, as_level, as_positive
from etafree.losses.base import LinearLoss


@dataclass(frozen=True)
class Quantile(LinearLoss):
    r"""Quantile regression: the check loss at level :math:`\tau`, smoothed by a Gaussian.

    The convolution of :math:`\rho_\tau(r) = r(\tau - 1\{r<0\})` with :math:`N(0, h^2)` is
    :math:`\ell = r\{\tau-1+\Phi(r/h)\} + h\varphi(r/h)`, whose minimiser is the target.

    Parameters
    ----------
    tau : float
        Level between 0 and 1.
    bandwidth : float
        :math:`h`, above zero, in units of the response; about a tenth of its spread.

    Raises
    ------
    InputError
        `tau` is not inside (0, 1), or `bandwidth` not positive.

    References
    ----------
    Fernandes, M., Guerre, E. and Horta, E. (2021). J. Bus. Econ. Statist. 39, 338-357.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Quantile(tau=0.9, bandwidth=0.1).first(np.zeros(2), np.array([-5.0, 5.0]))
    array([ 0.1, -0.9])
    """

    tau: float
    bandwidth: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", as_level(self.tau, "tau"))
        object.__setattr__(self, "bandwidth", as_positive(self.bandwidth, "bandwidth"))

    def values(self, u: Array, y: Array) -> Array:
        r = y - u
        z = r / self.bandwidth
        value: Array = r * (self.tau - 1.0 + _normal_cdf(z)) + self.bandwidth * normal_density(z)
        return value

    def first(self, u: Array, y: Array) -> Array:
        return 1.0 - self.tau - _normal_cdf((y - u) / self.bandwidth)

    def second(self, u: Array, y: Array) -> Array:
        return normal_density((y - u) / self.bandwidth) / self.bandwidth

    def majorizer(self, u: Array, y: Array) -> Array:
        z = np.maximum(np.abs(y - u) / self.bandwidth, 1e-4)
        return (_normal_cdf(z) - 0.5) / (z * self.bandwidth)


def _normal_cdf(z: Array) -> Array:
    from scipy.special import ndtr

    return np.asarray(ndtr(z))


def normal_density(z: Array | float) -> Array:
    """Return the standard normal density."""
    return np.asarray(np.exp(-0.5 * np.square(z)) * 0.3989422804014327)

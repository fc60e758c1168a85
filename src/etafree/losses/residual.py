"""Losses of the residual: squared, robust and quantile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from etafree.errors import InputError
from etafree.losses.base import LinearLoss
from etafree.validation import Array, as_choice, as_level, as_positive

__all__ = ["Huber", "PseudoHuber", "Quantile", "ResidualLoss", "Squared", "StudentT"]


@dataclass(frozen=True)
class Squared(LinearLoss):
    r"""Half the squared residual, :math:`\ell = \tfrac12 (y-u)^2`.

    Examples
    --------
    >>> Squared().values(np.array([0.0]), np.array([2.0]))
    array([2.])
    """

    random_curvature: ClassVar[bool] = False

    def values(self, u: Array, y: Array) -> Array:
        return 0.5 * np.square(y - u)

    def first(self, u: Array, y: Array) -> Array:
        return u - y

    def second(self, u: Array, y: Array) -> Array:
        return np.ones_like(u)


@dataclass(frozen=True)
class ResidualLoss(LinearLoss):
    r"""A function of the scaled residual :math:`r = (y-u)/s`; the scale may be ``"mad"``.

    With ``scale="mad"`` the scale is the median absolute residual over 0.6745 of a preliminary
    Huber fit, found jointly with it, and from then on taken as known; the result records it as a
    plug-in.
    """

    scale: float | str = field(default=1.0, kw_only=True)
    #: True once `scale` was estimated from data rather than given.
    estimated: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            as_choice(self.scale, "scale", ("mad",))
        else:
            object.__setattr__(self, "scale", as_positive(self.scale, "scale"))

    @property
    def scale_value(self) -> float:
        """The scale as a number; an error if it is still to be estimated."""
        if isinstance(self.scale, str):
            raise InputError("scale", "is 'mad' and has not been estimated", "use a Criterion")
        return float(self.scale)

    def residual(self, u: Array, y: Array) -> Array:
        """Return the scaled residual."""
        residual: Array = y - u
        if self.scale != 1.0:
            residual /= self.scale_value
        return residual

    def with_scale(self, scale: float) -> ResidualLoss:
        """Return this loss with its plug-in scale filled in."""
        return replace(self, scale=scale, estimated=True)

    def plug_ins(self) -> dict[str, float]:
        return {"scale": self.scale_value} if self.estimated else {}


@dataclass(frozen=True)
class Huber(ResidualLoss):
    r"""Huber's loss, :math:`\tfrac12 r^2` inside :math:`|r|\le c`, linear outside.

    References
    ----------
    Huber, P. J. (1964). Robust estimation of a location parameter. Ann. Math. Statist. 35, 73-101.

    Examples
    --------
    >>> Huber(c=1.0).values(np.array([0.0, 0.0]), np.array([0.5, 3.0]))
    array([0.125, 2.5  ])
    """

    c: float = 1.345

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "c", as_positive(self.c, "c"))

    def values(self, u: Array, y: Array) -> Array:
        value = self.residual(u, y)
        inner = np.clip(value, -self.c, self.c)
        value -= 0.5 * inner
        value *= inner
        return value

    def sums(self, u: Array, y: Array, weights: Array | None = None) -> Array:
        if weights is not None:
            return super().sums(u, y, weights)
        # the samplers spend their time here: in place, and no array of losses
        r = np.subtract(y, u, out=u)
        if self.scale != 1.0:
            r /= self.scale_value
        inner = np.clip(r, -self.c, self.c)
        total: Array = np.vecdot(inner, r) - 0.5 * np.vecdot(inner, inner)
        return total

    def first(self, u: Array, y: Array) -> Array:
        slope = self.residual(u, y)
        np.clip(slope, -self.c, self.c, out=slope)
        slope *= -1.0 / self.scale_value
        return slope

    def second(self, u: Array, y: Array) -> Array:
        size = self.residual(u, y)
        np.abs(size, out=size)
        return (size <= self.c) * self.scale_value**-2

    def majorizer(self, u: Array, y: Array) -> Array:
        size = np.maximum(np.abs(self.residual(u, y)), self.c)
        weight: Array = (self.c / self.scale_value**2) / size
        return weight


@dataclass(frozen=True)
class PseudoHuber(ResidualLoss):
    r"""Smooth relative of Huber's loss, :math:`c^2\{\sqrt{1+(r/c)^2}-1\}`.

    Examples
    --------
    >>> PseudoHuber(c=1.0).values(np.array([0.0]), np.array([0.0]))
    array([0.])
    """

    c: float = 1.345

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "c", as_positive(self.c, "c"))

    def values(self, u: Array, y: Array) -> Array:
        square = np.square(self.residual(u, y) / self.c)
        # sqrt(1 + q) - 1 without cancellation for small q
        value: Array = self.c**2 * square / (np.sqrt(1.0 + square) + 1.0)
        return value

    def first(self, u: Array, y: Array) -> Array:
        r = self.residual(u, y)
        slope: Array = -r / np.sqrt(1.0 + np.square(r / self.c)) / self.scale_value
        return slope

    def second(self, u: Array, y: Array) -> Array:
        r = self.residual(u, y)
        curvature: Array = (1.0 + np.square(r / self.c)) ** -1.5 / self.scale_value**2
        return curvature

    def majorizer(self, u: Array, y: Array) -> Array:
        r = self.residual(u, y)
        weight: Array = (1.0 + np.square(r / self.c)) ** -0.5 / self.scale_value**2
        return weight


@dataclass(frozen=True)
class StudentT(ResidualLoss):
    r"""Negative Student-t log density up to a constant, :math:`\tfrac{\nu+1}{2}\log(1+r^2/\nu)`.

    Not convex: outliers redescend, several minima are possible, and at small :math:`\eta` the
    posterior may be improper without a penalty.

    References
    ----------
    Lange, K. L., Little, R. J. A. and Taylor, J. M. G. (1989). Robust statistical modeling using
    the t distribution. J. Amer. Statist. Assoc. 84, 881-896.

    Examples
    --------
    >>> StudentT(df=4.0).first(np.array([1.0]), np.array([1.0]))
    array([-0.])
    """

    df: float = 4.0
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "df", as_positive(self.df, "df"))

    @property
    def tail_exponent(self) -> float:
        return self.df + 1.0

    def values(self, u: Array, y: Array) -> Array:
        value: Array = 0.5 * (self.df + 1) * np.log1p(np.square(self.residual(u, y)) / self.df)
        return value

    def first(self, u: Array, y: Array) -> Array:
        r = self.residual(u, y)
        slope: Array = -(self.df + 1) * r / (self.df + np.square(r)) / self.scale_value
        return slope

    def second(self, u: Array, y: Array) -> Array:
        square = np.square(self.residual(u, y))
        total = self.df + square
        curvature: Array = (self.df + 1) * (self.df - square) / np.square(total)
        curvature /= self.scale_value**2
        return curvature

    def majorizer(self, u: Array, y: Array) -> Array:
        square = np.square(self.residual(u, y))
        weight: Array = (self.df + 1) / (self.df + square) / self.scale_value**2
        return weight


@dataclass(frozen=True)
class Quantile(LinearLoss):
    r"""Check loss at level :math:`\tau` smoothed by a Gaussian of the given bandwidth.

    The convolution of :math:`\rho_\tau(r) = r(\tau - 1\{r<0\})` with :math:`N(0, h^2)` is
    :math:`\ell = r\{\tau-1+\Phi(r/h)\} + h\varphi(r/h)`. The bandwidth is in the response's units
    and part of the loss: the target is the minimiser of the smoothed loss.

    References
    ----------
    Fernandes, M., Guerre, E. and Horta, E. (2021). Smoothing quantile regressions. J. Bus. Econ.
    Statist. 39, 338-357.

    Examples
    --------
    >>> Quantile(tau=0.5, bandwidth=0.1).first(np.array([0.0]), np.array([0.0]))
    array([0.])
    """

    tau: float
    bandwidth: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", as_level(self.tau, "tau"))
        object.__setattr__(self, "bandwidth", as_positive(self.bandwidth, "bandwidth"))

    def values(self, u: Array, y: Array) -> Array:
        from scipy.special import ndtr

        r: Array = y - u
        z = r / self.bandwidth
        value: Array = r * (self.tau - 1.0 + ndtr(z)) + self.bandwidth * _normal_density(z)
        return value

    def first(self, u: Array, y: Array) -> Array:
        from scipy.special import ndtr

        slope: Array = 1.0 - self.tau - ndtr((y - u) / self.bandwidth)
        return slope

    def second(self, u: Array, y: Array) -> Array:
        return _normal_density((y - u) / self.bandwidth) / self.bandwidth

    def majorizer(self, u: Array, y: Array) -> Array:
        from scipy.special import ndtr

        z = np.maximum(np.abs(y - u) / self.bandwidth, 1e-4)
        weight: Array = (ndtr(z) - 0.5) / (z * self.bandwidth)
        return weight


def _normal_density(z: Array) -> Array:
    density: Array = np.exp(-0.5 * np.square(z)) * 0.3989422804014327
    return density

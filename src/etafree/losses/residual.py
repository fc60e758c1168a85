"""Losses of the residual, squared and robust, and the robust scale of residuals."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_choice, as_positive
from etafree.foundation.linalg import least_squares
from etafree.losses.base import Kernel, LinearLoss

#: Median absolute value of a standard normal.
MEDIAN = 0.6744897501960817


def mad_scale(loss: ResidualLoss, X: Array, y: Array, weights: Array | None = None) -> float:
    r"""Return the robust residual scale, as statsmodels' RLM and R's rlm compute it."""
    return mad_fit(loss, X, y, weights)[0]


def mad_fit(
    loss: ResidualLoss, X: Array, y: Array, weights: Array | None = None
) -> tuple[float, Array, float]:
    r"""Return the robust residual scale, the Huber fit it is of (p,), and that fit's threshold.

    The fixed point of :math:`s = \mathrm{median}|y-X\hat\theta_s|/0.6745` and of the Huber estimate
    :math:`\hat\theta_s` at that scale, by iteratively reweighted least squares.
    """
    tuning = float(getattr(loss, "c", 1.345))
    w = np.ones(len(X)) if weights is None else weights
    root = np.sqrt(w)[:, None]
    theta = least_squares(X * root, y * root[:, 0])
    scale = 0.0
    for _ in range(200):
        residual = y - X @ theta
        previous, scale = scale, _weighted_median(np.abs(residual), w) / MEDIAN
        if not scale > 1e-12 * max(1.0, float(np.abs(y).max())):
            raise InputError(
                "scale", "'mad' is zero: half of the residuals vanish", "pass a number"
            )
        if abs(scale - previous) <= 1e-12 * scale:
            break
        root = np.sqrt(w * Huber(tuning, scale=scale).majorizer(X @ theta, y))[:, None]
        theta = least_squares(X * root, y * root[:, 0])
    return float(scale), theta, tuning


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    half = 0.5 * total[-1]
    low = values[order[int(np.searchsorted(total, half * (1 - 1e-12)))]]
    high = values[order[min(int(np.searchsorted(total, half * (1 + 1e-12))), len(values) - 1)]]
    return float(0.5 * (low + high))


@dataclass(frozen=True)
class Squared(LinearLoss):
    r"""Half the squared residual, :math:`\ell = \tfrac12 (y-u)^2`: least squares.

    Its posterior at :math:`\eta=1/\sigma^2` is that of normal errors of variance :math:`\sigma^2`.

    References
    ----------
    White, H. (1980). Econometrica 48, 817-838.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Squared().values(np.array([0.0]), np.array([2.0]))
    array([2.])
    """

    random_curvature = False
    quadratic = True

    def kernel(self) -> Kernel:
        from etafree.losses.kernels import squared

        return squared, ()

    def values(self, u: Array, y: Array) -> Array:
        return 0.5 * np.square(y - u)

    def first(self, u: Array, y: Array) -> Array:
        return u - y

    def second(self, u: Array, y: Array) -> Array:
        return np.ones_like(u)


@dataclass(frozen=True)
class ResidualLoss(LinearLoss):
    r"""A function of the scaled residual :math:`r = (y-u)/s`; the scale may be ``"mad"``.

    ``"mad"`` is the median absolute residual over 0.6745 of a preliminary Huber fit, found jointly
    with it. A target includes how it varies; the result records it as a plug-in.

    Parameters
    ----------
    scale : float or "mad"
        :math:`s`, above zero.

    Raises
    ------
    InputError
        `scale` is neither a positive number nor ``"mad"``.

    See Also
    --------
    Huber, PseudoHuber, StudentT : Losses of a scaled residual.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((5, 1)), np.array([0.0, 1.0, 2.0, 3.0, 90.0])
    >>> criterion = ef.Criterion(ef.losses.Huber(1.345, scale="mad"), data=(X, y))
    >>> {name: round(value, 3) for name, value in criterion.plug_ins.items()}
    {'scale': 1.483}
    """

    scale: float | str = field(default=1.0, kw_only=True)
    #: Whether `scale` was estimated from data.
    estimated: bool = field(default=False, kw_only=True, repr=False)
    #: Names of further parameters that must be above zero.
    _positive: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            as_choice(self.scale, "scale", ("mad",))
        names = self._positive if isinstance(self.scale, str) else ("scale", *self._positive)
        for name in names:
            object.__setattr__(self, name, as_positive(getattr(self, name), name))

    @property
    def scale_value(self) -> float:
        """The scale as a number; an error before it is estimated."""
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
    r"""Huber's loss, :math:`\tfrac12 r^2` where :math:`|r|\le c`, else :math:`c|r|-\tfrac12c^2`.

    Parameters
    ----------
    c : float
        Threshold in units of `scale`; 1.345 has efficiency 95 % for normal errors.
    scale : float or "mad"
        What residuals are divided by, see `ResidualLoss`.

    Raises
    ------
    InputError
        `c` or `scale` is not a positive number.

    References
    ----------
    Huber, P. J. (1964). Robust estimation of a location parameter. Ann. Math. Statist. 35, 73-101.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Huber(c=1.0).values(np.array([0.0, 0.0]), np.array([0.5, 3.0]))
    array([0.125, 2.5  ])
    """

    c: float = 1.345

    _positive = ("c",)

    def kernel(self) -> Kernel:
        from etafree.losses.kernels import huber

        return huber, (self.c, self.scale_value)

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
        slope *= -1.0 / float(self.scale)
        return slope

    def second(self, u: Array, y: Array) -> Array:
        size = self.residual(u, y)
        np.abs(size, out=size)
        return (size <= self.c) * float(self.scale) ** -2

    def majorizer(self, u: Array, y: Array) -> Array:
        size = np.maximum(np.abs(self.residual(u, y)), self.c)
        return (self.c / self.scale_value**2) / size


@dataclass(frozen=True)
class PseudoHuber(ResidualLoss):
    r"""Smooth relative of Huber's loss, :math:`c^2\{\sqrt{1+(r/c)^2}-1\}` of :math:`r=(y-u)/s`.

    Parameters
    ----------
    c : float
        Threshold in units of `scale`, about where it turns from quadratic to linear.
    scale : float or "mad"
        What residuals are divided by, see `ResidualLoss`.

    Raises
    ------
    InputError
        `c` or `scale` is not a positive number.

    References
    ----------
    Charbonnier, P. et al. (1997). IEEE Trans. Image Process. 6, 298-311.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.PseudoHuber(c=4.0).values(np.array([0.0, 0.0]), np.array([0.0, 3.0]))
    array([0., 4.])
    """

    c: float = 1.345

    _positive = ("c",)

    def kernel(self) -> Kernel:
        from etafree.losses.kernels import pseudo_huber

        return pseudo_huber, (self.c, self.scale_value)

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
        square: Array = 1.0 + np.square(self.residual(u, y) / self.c)
        return square**-1.5 / self.scale_value**2

    def majorizer(self, u: Array, y: Array) -> Array:
        square: Array = 1.0 + np.square(self.residual(u, y) / self.c)
        return square**-0.5 / self.scale_value**2


@dataclass(frozen=True)
class StudentT(ResidualLoss):
    r"""Minus the log density of Student's t, :math:`\tfrac{\nu+1}{2}\log(1+r^2/\nu)`.

    Up to a constant, of :math:`r=(y-u)/s`. Not convex: several minima are possible, and at small
    :math:`\eta` the posterior may be improper without a penalty.

    Parameters
    ----------
    df : float
        Degrees of freedom :math:`\nu`, above zero.
    scale : float or "mad"
        What residuals are divided by, see `ResidualLoss`.

    Raises
    ------
    InputError
        `df` or `scale` is not a positive number.

    References
    ----------
    Lange, K. L., Little, R. J. A. and Taylor, J. M. G. (1989). J. Am. Stat. Assoc. 84, 881-896.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.StudentT(df=4.0).first(np.array([0.0, 0.0]), np.array([1.0, 49.0])).round(3)
    array([-1.   , -0.102])
    """

    df: float = 4.0

    convex = False
    _positive = ("df",)

    @property
    def tail_exponent(self) -> float:
        return self.df + 1.0

    def values(self, u: Array, y: Array) -> Array:
        return 0.5 * (self.df + 1) * np.log1p(np.square(self.residual(u, y)) / self.df)

    def first(self, u: Array, y: Array) -> Array:
        r = self.residual(u, y)
        return -(self.df + 1) * r / (self.df + np.square(r)) / self.scale_value

    def second(self, u: Array, y: Array) -> Array:
        square = np.square(self.residual(u, y))
        bend = (self.df + 1) * (self.df - square) / np.square(self.df + square)
        return bend / self.scale_value**2

    def majorizer(self, u: Array, y: Array) -> Array:
        square = np.square(self.residual(u, y))
        return (self.df + 1) / (self.df + square) / self.scale_value**2

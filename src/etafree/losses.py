r"""Losses of one observation over a linear predictor, with derivatives in closed form.

Each loss is a function :math:`\ell(u, y)` of the linear predictor :math:`u = x^\top\theta + o` and
the response. `values`, `first` and `second` return :math:`\ell`, :math:`\partial\ell/\partial u`
and :math:`\partial^2\ell/\partial u^2`; they broadcast, so `u` may hold many parameter values
at once, observations along the last axis. `majorizer` returns the curvature of a quadratic that
touches the loss at `u` and lies above it where there is one: the weights of iteratively reweighted
least squares, a safe Newton matrix far from the solution.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from etafree.errors import InputError
from etafree.validation import Array, as_choice, as_positive

__all__ = [
    "Gamma",
    "Huber",
    "LinearLoss",
    "Logistic",
    "NegativeBinomial",
    "Poisson",
    "PseudoHuber",
    "Quantile",
    "ResidualLoss",
    "Squared",
    "StudentT",
]


class LinearLoss:
    """What every loss over a linear predictor provides; subclass it to add one."""

    #: Whether the loss is convex in the predictor.
    convex: ClassVar[bool] = True
    #: Whether the second derivative depends on the response, not only on the predictor.
    random_curvature: ClassVar[bool] = True
    #: Whether the predictor has no units (log odds, log mean), so that it may run off to infinity.
    unit_free: ClassVar[bool] = False
    #: Whether a number of trials may come with the response.
    takes_trials: ClassVar[bool] = False

    @property
    def tail_exponent(self) -> float:
        """Exponent k when exp(-loss) falls like ``|u|**-k``; infinite when it falls faster."""
        return np.inf

    def values(self, u: Array, y: Array) -> Array:
        """Return the loss, of the shape of `u`."""
        raise TypeError(f"{type(self).__name__} must define values(u, y)")

    def first(self, u: Array, y: Array) -> Array:
        """Return the first derivative in the predictor."""
        raise TypeError(f"{type(self).__name__} must define first(u, y)")

    def second(self, u: Array, y: Array) -> Array:
        """Return the second derivative in the predictor."""
        raise TypeError(f"{type(self).__name__} must define second(u, y)")

    def majorizer(self, u: Array, y: Array) -> Array:
        """Return the curvature of a safe quadratic model at `u`."""
        return self.second(u, y)

    def start(self, y: Array) -> Array:
        """Return a rough guess of each observation's predictor, to start a minimiser."""
        return y

    def check(self, y: Array) -> None:
        """Raise an `InputError` for a response that this loss has no meaning for."""

    def plug_ins(self) -> dict[str, float]:
        """Return nuisance values that were estimated beforehand and are taken as known."""
        return {}


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
            as_positive(self.scale, "scale")

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
        as_positive(self.c, "c")

    def values(self, u: Array, y: Array) -> Array:
        size = self.residual(u, y)
        np.abs(size, out=size)
        inner = np.minimum(size, self.c)
        size -= 0.5 * inner
        size *= inner
        return size

    def first(self, u: Array, y: Array) -> Array:
        slope = self.residual(u, y)
        np.maximum(slope, -self.c, out=slope)
        np.minimum(slope, self.c, out=slope)
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
        as_positive(self.c, "c")

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
        as_positive(self.df, "df")

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
        if not 0.0 < self.tau < 1.0:
            raise InputError("tau", f"is {self.tau!r} but must lie strictly between 0 and 1")
        as_positive(self.bandwidth, "bandwidth")

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


@dataclass(frozen=True)
class Logistic(LinearLoss):
    r"""Negative binomial log-likelihood with logit link, :math:`m\log(1+e^u) - ku`.

    The response is a number in [0, 1], or successes :math:`k` out of `trials` :math:`m`.

    Examples
    --------
    >>> Logistic().first(np.array([0.0]), np.array([[3.0, 4.0]]))
    array([-1.])
    """

    random_curvature: ClassVar[bool] = False
    unit_free: ClassVar[bool] = True
    takes_trials: ClassVar[bool] = True

    @staticmethod
    def _counts(y: Array) -> tuple[Array, Array | float]:
        return (y[:, 0], y[:, 1]) if y.ndim == 2 else (y, 1.0)

    def values(self, u: Array, y: Array) -> Array:
        successes, trials = self._counts(y)
        value: Array = trials * np.logaddexp(0.0, u) - successes * u
        return value

    def first(self, u: Array, y: Array) -> Array:
        successes, trials = self._counts(y)
        return trials * _logistic(u) - successes

    def second(self, u: Array, y: Array) -> Array:
        _, trials = self._counts(y)
        return trials * _logistic(u) * _logistic(-u)

    def start(self, y: Array) -> Array:
        successes, trials = self._counts(y)
        guess: Array = np.log((successes + 0.5) / (trials - successes + 0.5))
        return guess

    def check(self, y: Array) -> None:
        successes, trials = self._counts(y)
        if np.any(trials <= 0):
            raise InputError("trials", f"has the value {np.min(trials)}", "trials must be positive")
        if np.any(successes < 0) or np.any(successes > trials):
            raise InputError(
                "y", f"reaches from {successes.min()} to {successes.max()}",
                "logistic responses lie in [0, 1], or in [0, trials] with trials=",
            )  # fmt: skip


class _CountLoss(LinearLoss):
    """A loss of counts whose predictor is the log mean."""

    unit_free: ClassVar[bool] = True

    def start(self, y: Array) -> Array:
        guess: Array = np.log(y + 0.5)
        return guess

    def check(self, y: Array) -> None:
        if np.any(y < 0):
            raise InputError("y", f"has the negative value {y.min()}", "counts are at least zero")


@dataclass(frozen=True)
class Poisson(_CountLoss):
    r"""Negative Poisson log-likelihood with log link, :math:`e^u - yu`.

    Examples
    --------
    >>> Poisson().first(np.array([0.0]), np.array([3.0]))
    array([-2.])
    """

    random_curvature: ClassVar[bool] = False

    def values(self, u: Array, y: Array) -> Array:
        return _exp(u) - y * u

    def first(self, u: Array, y: Array) -> Array:
        return _exp(u) - y

    def second(self, u: Array, y: Array) -> Array:
        return _exp(u)


@dataclass(frozen=True)
class Gamma(LinearLoss):
    r"""Negative gamma log-likelihood with log link and unit shape, :math:`ye^{-u} + u`.

    Examples
    --------
    >>> Gamma().first(np.array([0.0]), np.array([1.0]))
    array([0.])
    """

    unit_free: ClassVar[bool] = True

    def values(self, u: Array, y: Array) -> Array:
        return y * _exp(-u) + u

    def first(self, u: Array, y: Array) -> Array:
        return 1.0 - y * _exp(-u)

    def second(self, u: Array, y: Array) -> Array:
        return y * _exp(-u)

    def start(self, y: Array) -> Array:
        return np.log(y)

    def check(self, y: Array) -> None:
        if np.any(y <= 0):
            raise InputError("y", f"has the value {y.min()}", "gamma responses are above zero")


@dataclass(frozen=True)
class NegativeBinomial(_CountLoss):
    r"""Negative binomial counts with variance :math:`\mu+\alpha\mu^2`, log link, fixed dispersion.

    :math:`\ell = (y+1/\alpha)\log(1+\alpha e^u) - yu` up to a constant.

    Examples
    --------
    >>> NegativeBinomial(dispersion=1.0).first(np.array([0.0]), np.array([1.0]))
    array([0.])
    """

    dispersion: float

    def __post_init__(self) -> None:
        as_positive(self.dispersion, "dispersion")

    def values(self, u: Array, y: Array) -> Array:
        log_alpha = np.log(self.dispersion)
        value: Array = (y + 1.0 / self.dispersion) * np.logaddexp(0.0, u + log_alpha) - y * u
        return value

    def first(self, u: Array, y: Array) -> Array:
        share = _logistic(u + np.log(self.dispersion))
        return (y + 1.0 / self.dispersion) * share - y

    def second(self, u: Array, y: Array) -> Array:
        shifted = u + np.log(self.dispersion)
        return (y + 1.0 / self.dispersion) * _logistic(shifted) * _logistic(-shifted)


def _normal_density(z: Array) -> Array:
    density: Array = np.exp(-0.5 * np.square(z)) * 0.3989422804014327
    return density


def _exp(u: Array) -> Array:
    """Exponential that overflows to infinity without a warning: a step that far is rejected."""
    with np.errstate(over="ignore"):
        value: Array = np.exp(u)
    return value


def _logistic(u: Array) -> Array:
    value: Array = 1.0 / (1.0 + _exp(-u))
    return value

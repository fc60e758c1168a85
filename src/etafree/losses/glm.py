"""Negative log-likelihoods of generalized linear models: binary, counts and positive responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_positive
from etafree.losses.base import Kernel, LinearLoss


@dataclass(frozen=True)
class Logistic(LinearLoss):
    r"""Logistic regression: minus the binomial log-likelihood, :math:`m\log(1+e^u) - ku`.

    The response :math:`k` is a number in [0, 1] with :math:`m=1`, or successes out of `trials`
    :math:`m` (an argument of `Criterion`); the predictor is the log odds. Separated data have no
    finite minimiser without a penalty.

    References
    ----------
    McCullagh, P. and Nelder, J. A. (1989). Generalized Linear Models. Chapman and Hall.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Logistic().first(np.array([0.0]), np.array([[3.0, 4.0]]))
    array([-1.])
    """

    random_curvature = False
    unit_free = True
    takes_trials = True

    def kernel(self) -> Kernel:
        from etafree.losses.kernels import logistic

        return logistic, ()

    @staticmethod
    def _counts(y: Array) -> tuple[Array, Array | float]:
        return (y[:, 0], y[:, 1]) if y.ndim == 2 else (y, 1.0)

    def values(self, u: Array, y: Array) -> Array:
        successes, trials = self._counts(y)
        return trials * _log1p_exp(u) - successes * u

    def first(self, u: Array, y: Array) -> Array:
        successes, trials = self._counts(y)
        return trials * _logistic(u) - successes

    def second(self, u: Array, y: Array) -> Array:
        _, trials = self._counts(y)
        return trials * _logistic_slope(u)

    def response(self, u: Array) -> Array:
        return _logistic(u)

    def response_slope(self, u: Array) -> Array:
        return _logistic_slope(u)

    def start(self, y: Array) -> Array:
        successes, trials = self._counts(y)
        return np.log((successes + 0.5) / (trials - successes + 0.5))

    def check(self, y: Array) -> None:
        successes, trials = self._counts(y)
        if np.any(trials <= 0):
            raise InputError("trials", f"has the value {np.min(trials)}", "trials must be positive")
        if np.any(successes < 0) or np.any(successes > trials):
            span = f"reaches from {successes.min()} to {successes.max()}"
            raise InputError("y", span, "responses lie in [0, 1], or in [0, trials] with trials=")


class _LogMean(LinearLoss):
    """A loss whose predictor is the log mean."""

    def response(self, u: Array) -> Array:
        return _exp(u)

    def response_slope(self, u: Array) -> Array:
        return _exp(u)


class _CountLoss(_LogMean):
    """A loss of counts whose predictor is the log mean."""

    unit_free = True

    def start(self, y: Array) -> Array:
        guess: Array = np.log(y + 0.5)
        return guess

    def check(self, y: Array) -> None:
        if np.any(y < 0):
            raise InputError("y", f"has the negative value {y.min()}", "counts are at least zero")


@dataclass(frozen=True)
class Poisson(_CountLoss):
    r"""Poisson regression: minus the log-likelihood with log link, :math:`e^u - yu`.

    For responses of at least zero. It estimates the log mean :math:`u` whatever the distribution of
    the counts; with the sandwich, overdispersion needs no other loss.

    References
    ----------
    Gourieroux, C., Monfort, A. and Trognon, A. (1984). Econometrica 52, 701-720.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Poisson().first(np.array([0.0]), np.array([3.0]))
    array([-2.])
    """

    random_curvature = False

    def kernel(self) -> Kernel:
        from etafree.losses.kernels import poisson

        return poisson, ()

    def values(self, u: Array, y: Array) -> Array:
        return _exp(u) - y * u

    def first(self, u: Array, y: Array) -> Array:
        return _exp(u) - y

    def second(self, u: Array, y: Array) -> Array:
        return _exp(u)


@dataclass(frozen=True)
class Gamma(_LogMean):
    r"""Gamma regression: minus the log-likelihood with log link, :math:`ye^{-u} + u`.

    For responses above zero, of log mean :math:`u`. The shape is one: another would multiply the
    loss, so it is part of the learning rate.

    References
    ----------
    McCullagh, P. and Nelder, J. A. (1989). Generalized Linear Models. Chapman and Hall.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Gamma().first(np.array([0.0, 0.0]), np.array([1.0, 3.0]))
    array([ 0., -2.])
    """

    unit_free = True

    def kernel(self) -> Kernel:
        from etafree.losses.kernels import gamma

        return gamma, ()

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
    r"""Negative binomial regression with variance :math:`\mu+\alpha\mu^2`, log link, known alpha.

    Minus the log-likelihood is :math:`(y+1/\alpha)\log(1+\alpha e^u) - yu`, up to a constant.

    Parameters
    ----------
    dispersion : float
        :math:`\alpha`, above zero; taken as known.

    Raises
    ------
    InputError
        `dispersion` is not a positive number.

    References
    ----------
    Lawless, J. F. (1987). Canad. J. Statist. 15, 209-225.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.NegativeBinomial(dispersion=1.0).first(np.array([0.0, 0.0]), np.array([1.0, 5.0]))
    array([ 0., -2.])
    """

    dispersion: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dispersion", as_positive(self.dispersion, "dispersion"))

    def values(self, u: Array, y: Array) -> Array:
        growth = _log1p_exp(u + np.log(self.dispersion))
        value: Array = (y + 1.0 / self.dispersion) * growth - y * u
        return value

    def first(self, u: Array, y: Array) -> Array:
        share = _logistic(u + np.log(self.dispersion))
        return (y + 1.0 / self.dispersion) * share - y

    def second(self, u: Array, y: Array) -> Array:
        shifted = u + np.log(self.dispersion)
        return (y + 1.0 / self.dispersion) * _logistic_slope(shifted)


def _exp(u: Array) -> Array:
    """Exponential that overflows to infinity without a warning: a step that far is rejected."""
    with np.errstate(over="ignore"):
        value: Array = np.exp(u)
    return value


def _logistic(u: Array) -> Array:
    return 1.0 / (1.0 + _exp(-u))


def _logistic_slope(u: Array) -> Array:
    """Return the derivative of the logistic function, the same at u and -u."""
    odds = _odds(u)
    slope: Array = odds / np.square(1.0 + odds)
    return slope


def _log1p_exp(u: Array) -> Array:
    """Return log(1 + e^u)."""
    growth: Array = np.log1p(_odds(u))
    growth += np.maximum(u, 0.0)
    return growth


def _odds(u: Array) -> Array:
    """Return exp(-|u|), which cannot overflow."""
    odds: Array = np.exp(-np.abs(u))
    return odds

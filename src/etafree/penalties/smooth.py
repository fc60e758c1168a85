r"""Convex penalties in :math:`L(\theta) = M(\theta) + \lambda_n s_n \rho(\theta)`.

A penalty holds :math:`\rho` with its derivatives and its strength, the paper's :math:`\lambda` or
:math:`\lambda_n`; the criterion multiplies by the effective scale :math:`s_n`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etafree.errors import InputError, NotPositiveDefiniteError
from etafree.foundation.arguments import Array, as_array, as_number, as_positive, owned
from etafree.foundation.linalg import eigvalsh
from etafree.losses.base import name_in_words

Strength = float | Callable[[float], float]


class Penalty:
    r"""Base of every penalty :math:`\lambda_n s_n\rho(\theta)`: what the library asks of it.

    `theta` is a parameter vector (p,), for `value` also many (D, p); `size` is :math:`s_n`, the
    number of observations unless they are weighted.

    Attributes
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.

    See Also
    --------
    SmoothPenalty : A penalty of your own, from three functions.
    KinkedPenalty : Base of the penalties that set coefficients to zero.

    Examples
    --------
    >>> import etafree as ef
    >>> falling = ef.penalties.Ridge(lambda n: n**-0.5)
    >>> falling.strength_at(100.0), falling.describe(100.0)
    (0.1, 'ridge penalty (strength 0.1)')
    """

    strength: Strength

    def strength_at(self, size: float) -> float:
        """Return the strength at an effective scale `size`.

        Raises
        ------
        InputError
            It is negative or not finite.
        """
        strength = self.strength(size) if callable(self.strength) else self.strength
        value = as_number(strength, "strength")
        if not (np.isfinite(value) and value >= 0):
            raise InputError("strength", f"is {value!r} but must be finite and at least zero")
        return value

    def value(self, theta: Array) -> Array:
        """Return rho at one point (p,) or at many (D, p)."""
        raise TypeError(f"{type(self).__name__} must define value(theta)")

    def gradient(self, theta: Array) -> Array:
        """Return the gradient of rho (p,)."""
        raise TypeError(f"{type(self).__name__} must define gradient(theta)")

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian of rho (p, p)."""
        raise TypeError(f"{type(self).__name__} must define hessian(theta)")

    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Return gradient and Hessian of the expected rho under a normal law, here at its mean."""
        return self.gradient(mean), self.hessian(mean)

    def fitted_to(self, p: int, intercept: int | None = None) -> Penalty:
        """Return this penalty checked for p parameters, without column `intercept` if it can be."""
        return self

    def describe(self, size: float) -> str:
        """Return a few words for reports."""
        name = getattr(self, "name", name_in_words(type(self).__name__))
        return f"{name} penalty (strength {self.strength_at(size):.4g})"


@dataclass(frozen=True)
class NoPenalty(Penalty):
    r"""No penalty at all, :math:`\rho = 0`; the default of a `Criterion`.

    Parameters
    ----------
    strength : float
        Without a meaning.

    See Also
    --------
    Ridge : The usual smooth penalty.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.penalties.NoPenalty().describe(100.0), ef.penalties.NoPenalty().gradient(np.ones(2))
    ('no penalty', array([0., 0.]))
    """

    strength: Strength = 0.0

    def value(self, theta: Array) -> Array:
        return np.zeros(theta.shape[:-1])

    def gradient(self, theta: Array) -> Array:
        return np.zeros(len(theta))

    def hessian(self, theta: Array) -> Array:
        return np.zeros((len(theta), len(theta)))

    def describe(self, size: float) -> str:
        return "no penalty"


@dataclass(frozen=True, eq=False)
class Ridge(Penalty):
    r"""Quadratic penalty :math:`\rho(\theta) = \tfrac12(\theta-\mu)^\top Q(\theta-\mu)`.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    mu : (p,) array, optional
        Where the penalty vanishes; zero if not given.
    Q : (p, p) array, optional
        Symmetric positive semi-definite; by default the identity, without a formula's intercept.

    References
    ----------
    Hoerl, A. E. and Kennard, R. W. (1970). Technometrics 12, 55-67.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.penalties.Ridge(0.5).gradient(np.array([1.0, 2.0]))
    array([1., 2.])
    """

    strength: Strength = 1.0
    mu: Any = None
    Q: Any = None

    def fitted_to(self, p: int, intercept: int | None = None) -> Ridge:
        mu = np.zeros(p) if self.mu is None else owned(as_array(self.mu, "mu", shape=(p,)))
        if self.Q is None:
            diagonal = np.ones(p)
            diagonal[[] if intercept is None else intercept] = 0.0
            return replace(self, mu=mu, Q=np.diag(diagonal))
        Q = owned(as_array(self.Q, "Q", shape=(p, p)))
        if not np.allclose(Q, Q.T, rtol=1e-8, atol=1e-10 * float(np.abs(Q).max())):
            raise InputError("Q", "is not symmetric", "pass (Q + Q.T) / 2")
        smallest = float(eigvalsh(Q, "Q")[0])
        if smallest < -1e-10 * float(np.abs(Q).max()):
            raise NotPositiveDefiniteError("Q", smallest, "a ridge penalty must be convex")
        return replace(self, mu=mu, Q=Q)

    def _images(self, theta: Array) -> tuple[Array, Array]:
        d = theta if self.mu is None else theta - self.mu
        return d, d if self.Q is None else d @ self.Q

    def value(self, theta: Array) -> Array:
        half: Array = 0.5 * np.einsum("...j,...j->...", *self._images(theta))
        return half

    def gradient(self, theta: Array) -> Array:
        return self._images(theta)[1]

    def hessian(self, theta: Array) -> Array:
        return np.eye(len(theta)) if self.Q is None else self.Q


@dataclass(frozen=True, eq=False)
class SmoothPenalty(Penalty):
    r"""Any convex :math:`\rho` with two continuous derivatives, given with them.

    The criterion checks shapes, convexity and derivatives at a point.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    function, slope, curvature : callable
        :math:`\rho`, (p,) -> float, its gradient (p,) -> (p,) and its Hessian (p,) -> (p, p).
    name : str
        What results call it.

    See Also
    --------
    huberized_l1 : One of these.

    Examples
    --------
    >>> import etafree as ef
    >>> quartic = ef.penalties.SmoothPenalty(
    ...     1.0, lambda t: (t**4).sum() / 4, lambda t: t**3, lambda t: np.diag(3 * t**2)
    ... )
    >>> quartic.gradient(np.array([2.0]))
    array([8.])
    """

    strength: Strength
    function: Callable[[Array], float]
    slope: Callable[[Array], Array]
    curvature: Callable[[Array], Array]
    name: str = "smooth convex"

    def fitted_to(self, p: int, intercept: int | None = None) -> SmoothPenalty:
        if not all(callable(f) for f in (self.function, self.slope, self.curvature)):
            raise InputError("penalty", "function, slope and curvature must be callable")
        probe = np.linspace(-0.7, 0.9, p)
        as_array(self.function(probe), "penalty value", shape=())
        gradient = as_array(self.slope(probe), "penalty gradient", shape=(p,))
        hessian = as_array(self.curvature(probe), "penalty Hessian", shape=(p, p))
        for j, step in enumerate(1e-6 * np.eye(p)):
            rise = (float(self.function(probe + step)) - float(self.function(probe - step))) / 2e-6
            if abs(rise - gradient[j]) > 1e-4 * (1 + abs(gradient[j])):
                problem = f"coordinate {j} is {gradient[j]:.6g}, finite differences give {rise:.6g}"
                raise InputError("penalty gradient", problem, "mend slope, or function")
            bend = (self.slope(probe + step) - self.slope(probe - step)) / 2e-6
            if np.any(np.abs(bend - hessian[j]) > 1e-4 * (1 + np.abs(hessian[j]))):
                problem = f"row {j} differs from finite differences"
                raise InputError("penalty Hessian", problem, "mend curvature, or slope")
        smallest = float(eigvalsh(0.5 * (hessian + hessian.T), "penalty Hessian")[0])
        if smallest < -1e-8 * max(1.0, float(np.abs(hessian).max())):
            raise NotPositiveDefiniteError("penalty Hessian", smallest, "it must be convex")
        return self

    def value(self, theta: Array) -> Array:
        if theta.ndim == 1:
            return np.asarray(self.function(theta), dtype=np.float64)
        return np.array([float(self.function(t)) for t in theta])

    def gradient(self, theta: Array) -> Array:
        return np.asarray(self.slope(theta), dtype=np.float64)

    def hessian(self, theta: Array) -> Array:
        return np.asarray(self.curvature(theta), dtype=np.float64)


def huberized_l1(strength: Strength, width: float) -> SmoothPenalty:
    r"""Return a smooth stand-in for the L1 norm, :math:`\sum_j \{(\theta_j^2+w^2)^{1/2} - w\}`.

    It shrinks like `L1` and sets no coefficient to zero, so every one has an interval.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    width : float
        :math:`w`, in units of the coefficients, above zero.

    Returns
    -------
    SmoothPenalty
        For ``ef.Criterion(penalty=...)``.

    Raises
    ------
    InputError
        `width` is not a positive number.

    See Also
    --------
    L1 : The norm itself, calibrated on its active set.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.huberized_l1(1.0, width=3.0)
    >>> penalty.value(np.array([[0.0], [4.0], [400.0]])).round(2)
    array([  0.  ,   2.  , 397.01])
    """
    width = as_positive(width, "width")
    return SmoothPenalty(
        strength,
        lambda t: float((np.hypot(t, width) - width).sum()),
        lambda t: t / np.hypot(t, width),
        lambda t: np.diag(width**2 / np.hypot(t, width) ** 3),
        name=f"Huberised L1 (width {width:g})",
    )

r"""Convex penalties with a kink at zero: L1, elastic net and group L1.

All three are :math:`\rho(\theta) = \sum_g w_g\|\theta_g\|_2 + \tfrac12\sum_j r_j\theta_j^2` over
groups of coefficients; a group of one is an absolute value. `GroupNorms` has the derivatives where
there are some, subgradients where there are none, and the expectation under a normal law. A group
that a fit sets to zero is *inactive*: exactly zero, and its estimator has no normal limit.
Everything that is differentiated or calibrated lives on the active block, where :math:`\rho` is
smooth (`KinkedPenalty.restricted`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array, as_number
from etafree.penalties.smooth import Penalty, Strength


@dataclass(frozen=True, eq=False)
class GroupNorms:
    r"""The function :math:`f(\theta) = \sum_g w_g\|\theta_g\| + \tfrac12\sum_j r_j\theta_j^2`.

    Attributes
    ----------
    codes : (p,) int array
        Group of each coefficient, from 0.
    weights : (G,) array
        :math:`w_g`; zero means no kink. Every group of weight zero has one member.
    ridge : (p,) array
        :math:`r_j`.

    Examples
    --------
    >>> f = GroupNorms.of(np.array([0, 0, 1]), np.array([1.0, 2.0]), np.zeros(3))
    >>> theta = np.array([3.0, 4.0, 0.0])
    >>> float(f.value(theta)), f.gradient(theta)
    (5.0, array([0.6, 0.8, 0. ]))
    >>> f.least_subgradient(theta, np.array([-0.6, -0.8, 2.5]))
    array([0. , 0. , 0.5])
    """

    codes: NDArray[np.intp]
    weights: Array
    ridge: Array

    @classmethod
    def of(cls, codes: NDArray[np.intp], weights: Array, ridge: Array) -> GroupNorms:
        """Return the function with groups of weight zero split into their members."""
        free = weights[codes] == 0
        found, codes = np.unique(
            np.where(free, len(weights) + np.arange(len(codes)), codes), return_inverse=True
        )
        kept = np.append(weights, np.zeros(len(ridge)))[found]
        return cls(codes.astype(np.intp).reshape(-1), kept, ridge)

    def scaled(self, factor: float) -> GroupNorms:
        """Return the function times a number at least zero."""
        return GroupNorms.of(self.codes, factor * self.weights, factor * self.ridge)

    def without_ridge(self) -> GroupNorms:
        """Return the norms alone."""
        return replace(self, ridge=np.zeros(len(self.ridge)))

    @cached_property
    def members(self) -> list[NDArray[np.intp]]:
        """The coefficients of each group."""
        order, starts = Groups(self.codes, self.weights).order()
        places = np.arange(len(self.codes)) if order is None else order
        return np.split(places, starts[1:-1])

    @cached_property
    def large(self) -> list[int]:
        """The groups of more than one member."""
        return [g for g, some in enumerate(self.members) if len(some) > 1]

    def norms(self, theta: Array) -> Array:
        """Return the Euclidean norm of each group, (..., p) -> (..., G)."""
        norms: Array = np.empty((*theta.shape[:-1], len(self.weights)))
        norms[..., self.codes] = np.abs(theta)
        for g in self.large:
            norms[..., g] = np.linalg.norm(theta[..., self.members[g]], axis=-1)
        return norms

    def value(self, theta: Array) -> Array:
        """Return the function at one point (p,) or at many (D, p)."""
        value: Array = self.norms(theta) @ self.weights + 0.5 * np.square(theta) @ self.ridge
        return value

    def active(self, theta: Array) -> NDArray[np.bool_]:
        """Return which coefficients (p,) are away from a kink, or have none."""
        active: NDArray[np.bool_] = ((self.norms(theta) > 0) | (self.weights == 0))[self.codes]
        return active

    def gradient(self, theta: Array) -> Array:
        """Return the gradient (p,), zero at inactive coefficients."""
        norms = self.norms(theta)[self.codes]
        units = np.divide(theta, norms, out=np.zeros_like(norms), where=norms > 0)
        return self.weights[self.codes] * units + self.ridge * theta

    def hessian(self, theta: Array, *, majorize: bool = False) -> Array:
        r"""Return the Hessian (p, p), zero in rows and columns of inactive coefficients.

        `majorize` returns the curvature :math:`w_g I/\|\theta_g\|` of a quadratic above the norms
        of groups larger than one.
        """
        out = np.diag(self.ridge * self.active(theta))
        for g in self.large:
            some = self.members[g]
            norm = float(np.linalg.norm(theta[some]))
            if norm > 0:
                unit = theta[some] / norm
                bend = np.eye(len(some)) - (0.0 if majorize else np.outer(unit, unit))
                out[np.ix_(some, some)] += bend * (self.weights[g] / norm)
        return out

    def least_subgradient(self, theta: Array, gradient: Array) -> Array:
        r"""Return the smallest element (p,) of :math:`g + \partial f(\theta)`."""
        norms = self.norms(gradient)
        left = np.maximum(norms - self.weights, 0.0)
        shrink = np.divide(left, norms, out=np.zeros_like(norms), where=norms > 0)
        smooth = gradient + self.gradient(theta)
        return np.where(self.active(theta), smooth, shrink[self.codes] * gradient)

    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Return gradient and Hessian in the mean of the expectation under a normal law."""
        from scipy.special import erf

        weights, variance = self.weights[self.codes], np.diagonal(covariance)
        sd = np.sqrt(np.maximum(variance, 1e-300))
        slope = weights * erf(mean / sd / np.sqrt(2.0)) + self.ridge * mean
        density = np.exp(-0.5 * np.square(mean / sd)) / (sd * np.sqrt(2 * np.pi))
        bend = np.diag(2.0 * weights * density + self.ridge)
        for g in self.large:
            some, w = self.members[g], float(self.weights[g])
            m, r = mean[some], self.ridge[some]
            root = np.sqrt(max(float(m @ m + variance[some].sum()), 1e-300))
            slope[some] = w * m / root + r * m
            curve = w * (np.eye(len(some)) / root - np.outer(m, m) / root**3)
            bend[np.ix_(some, some)] = curve + np.diag(r)
        return slope, bend

    def laplace_curvature(self) -> Array:
        r"""Return the curvature (p, p) at zero, seen by a normal law as wide as the kinks' own.

        :math:`e^{-w|t|}` has variance :math:`2/w^2`.
        """
        rates = self.weights[self.codes]
        variance = np.divide(2.0, rates**2, out=np.ones_like(rates), where=rates > 0)
        return self.expected_derivatives(np.zeros(len(rates)), np.diag(variance))[1]


@dataclass(frozen=True, eq=False)
class ActivePenalty(Penalty):
    r"""A kinked penalty on its active block, where it is smooth.

    :math:`\rho_A(\theta_A) = c^\top\theta_A + \sum_g w_g\|\theta_g\| +
    \tfrac12\sum_j r_j\theta_j^2` with :math:`c_j = w_j\,\mathrm{sign}(\hat\theta_j)` for absolute
    values: the signs stay those of the fit, also where a draw crosses zero.

    Attributes
    ----------
    strength : float or callable
        As of the penalty it was made from.
    linear : (a,) array
        :math:`c`.
    kinks : GroupNorms
        The rest.
    name : str
        What results call it.

    See Also
    --------
    KinkedPenalty.restricted : What makes it.

    Examples
    --------
    >>> from etafree.penalties import L1
    >>> theta = np.array([0.0, -3.0, 2.0])
    >>> block = L1(0.5).restricted([False, True, True], theta)
    >>> float(block.value(theta[1:])), block.linear
    (5.0, array([-1.,  1.]))
    """

    strength: Strength
    linear: Array
    kinks: GroupNorms
    name: str

    def fitted_to(self, p: int, intercept: int | None = None) -> ActivePenalty:
        if p != len(self.linear):
            raise InputError("penalty", f"is for {len(self.linear)} active parameter(s), not {p}")
        return self

    def penalized(self) -> NDArray[np.bool_]:
        """Return which coefficients (a,) the kinks might have set to zero."""
        kinked: NDArray[np.bool_] = np.logical_or(
            (self.kinks.weights > 0)[self.kinks.codes], self.linear != 0
        )
        return kinked

    def value(self, theta: Array) -> Array:
        return theta @ self.linear + self.kinks.value(theta)

    def gradient(self, theta: Array) -> Array:
        return self.linear + self.kinks.gradient(theta)

    def hessian(self, theta: Array) -> Array:
        return self.kinks.hessian(theta)

    def describe(self, size: float) -> str:
        return f"{self.name} penalty on active coefficients (strength {self.strength_at(size):.4g})"


@dataclass(frozen=True, eq=False)
class KinkedPenalty(Penalty, ABC):
    r"""Base of penalties :math:`\sum_g w_g\|\theta_g\|_2+\tfrac12\sum_j r_j\theta_j^2`.

    `theta` is a parameter vector (p,). Fits are exactly zero in inactive groups; calibration is of
    the active block, and the others have no interval.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.

    See Also
    --------
    L1, ElasticNet, GroupL1 : Penalties of this kind.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty, theta = ef.penalties.ElasticNet(1.0, mix=0.5), np.array([0.0, -3.0])
    >>> penalty.hessian(theta)
    array([[0. , 0. ],
           [0. , 0.5]])
    >>> penalty.subgradient_gap(theta, gradient=np.array([0.4, 2.0]))  # theta is the minimiser
    0.0
    >>> penalty.restricted(penalty.active(theta), theta).gradient(np.array([-3.0]))
    array([-2.])
    """

    strength: Strength
    #: What `fitted_to` found out.
    kinks: GroupNorms | None = field(default=None, kw_only=True, repr=False)

    @abstractmethod
    def _kinks(self, p: int, intercept: int | None) -> GroupNorms:
        """Return groups, weights and ridge for p checked coefficients."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A few words for reports."""

    def fitted_to(self, p: int, intercept: int | None = None) -> Self:
        if intercept is None and self.kinks is not None and len(self.kinks.codes) == p:
            return self
        return replace(self, kinks=self._kinks(p, intercept))

    def kinks_at(self, p: int) -> GroupNorms:
        """Return the groups, weights and ridge of p parameters."""
        return self._kinks(p, None) if self.kinks is None else self.kinks

    def value(self, theta: Array) -> Array:
        return self.kinks_at(theta.shape[-1]).value(theta)

    def active(self, theta: Array) -> NDArray[np.bool_]:
        """Return which coordinates (p,) are away from a kink or have none; others are zero."""
        return self.kinks_at(len(theta)).active(theta)

    def gradient(self, theta: Array) -> Array:
        """Return the derivative (p,) at active coordinates, zero at inactive ones."""
        return self.kinks_at(len(theta)).gradient(theta)

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian (p, p) among active coordinates, zero in inactive rows and columns."""
        return self.kinks_at(len(theta)).hessian(theta)

    def subgradient_gap(self, theta: Array, gradient: Array, weight: float = 1.0) -> float:
        r"""Return the largest violation of :math:`0 \in g + c\,\partial\rho(\theta)`.

        It is the largest coordinate of the smallest subgradient: :math:`g + c\nabla\rho` where
        active, :math:`g_g(1 - cw_g/\|g_g\|)_+` in an inactive group.

        Parameters
        ----------
        theta, gradient : (p,) array
            A point and :math:`g=\nabla M(\theta)` there.
        weight : float
            :math:`c=\lambda_n s_n`.

        Returns
        -------
        float
            Zero at the minimiser.
        """
        kinks = self.kinks_at(len(theta)).scaled(weight)
        return float(np.max(np.abs(kinks.least_subgradient(theta, gradient))))

    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        r"""Return :math:`\nabla_m` and :math:`\nabla_m^2` of :math:`E\rho(\theta)`, normal theta.

        An absolute value has :math:`2\Phi(m/s)-1` and :math:`2\varphi(m/s)/s`, exactly. The norm of
        a larger group has no closed form; :math:`(\|m_g\|^2 + \mathrm{tr}\,\Sigma_g)^{1/2}` stands
        in for its expectation, good enough to place a proposal and for nothing else.
        """
        return self.kinks_at(len(mean)).expected_derivatives(mean, covariance)

    def restricted(self, active: object, theta: Array) -> ActivePenalty:
        r"""Return the smooth penalty of the active block near a fit.

        Parameters
        ----------
        active : (p,) bool array
            As `active` returns it; the inactive rest stays at zero.
        theta : (p,) array
            The fit, whose signs are kept.

        Returns
        -------
        ActivePenalty
            Of the active coefficients alone.

        Raises
        ------
        InputError
            `active` has a coordinate at a kink, or cuts a group in two.
        """
        active, kinks = np.asarray(active, dtype=bool), self.kinks_at(len(theta))
        if active.shape != theta.shape or not np.all(kinks.active(theta)[active]):
            raise InputError(
                "active",
                "has coordinates at which the penalty has a kink",
                "pass penalty.active(theta)",
            )
        for g in kinks.large:
            if len(set(active[kinks.members[g]].tolist())) > 1:
                raise InputError(
                    "active", "cuts a group of coefficients in two", "pass penalty.active(theta)"
                )
        size = np.bincount(kinks.codes)
        single = np.where(size == 1, kinks.weights, 0.0)[kinks.codes]
        rest = GroupNorms.of(kinks.codes, np.where(size == 1, 0.0, kinks.weights), kinks.ridge)
        kept = np.unique(rest.codes[active], return_inverse=True)
        block = GroupNorms(kept[1].astype(np.intp), rest.weights[kept[0]], rest.ridge[active])
        return ActivePenalty(self.strength, (single * np.sign(theta))[active], block, self.name)

    def describe(self, size: float) -> str:
        return f"{self.name} penalty (strength {self.strength_at(size):.4g})"


@dataclass(frozen=True, eq=False)
class L1(KinkedPenalty):
    r"""Weighted sum of absolute values, :math:`\rho(\theta) = \sum_j w_j|\theta_j|`.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    weights : (p,) array, optional
        At least zero; one each if not given. A coefficient of weight zero is not penalized, and
        neither is the intercept of a formula, whatever its weight.

    References
    ----------
    Tibshirani, R. (1996). Regression shrinkage and selection via the lasso. J. Roy. Statist. Soc.
    B 58, 267-288.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.L1(0.5, weights=[1.0, 2.0, 0.0])
    >>> theta = np.array([0.0, -3.0, 0.0])
    >>> float(penalty.value(theta)), penalty.active(theta)
    (6.0, array([False,  True,  True]))
    """

    weights: Any = None

    def _kinks(self, p: int, intercept: int | None) -> GroupNorms:
        weights = _nonnegative(self.weights, p)
        weights[[] if intercept is None else intercept] = 0.0
        return GroupNorms.of(np.arange(p), weights, np.zeros(p))

    @property
    def name(self) -> str:
        return "L1" if self.weights is None else "weighted L1"


@dataclass(frozen=True, eq=False)
class ElasticNet(KinkedPenalty):
    r"""Elastic net, :math:`\rho(\theta) = m\|\theta\|_1 + \tfrac12(1-m)\|\theta\|_2^2`.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    mix : float
        :math:`m`, above 0 and at most 1.

    Raises
    ------
    InputError
        `mix` is outside (0, 1].

    References
    ----------
    Zou, H. and Hastie, T. (2005). Regularization and variable selection via the elastic net. J.
    Roy. Statist. Soc. B 67, 301-320.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.penalties.ElasticNet(0.5, mix=0.5).gradient(np.array([0.0, -3.0]))
    array([ 0., -2.])
    """

    mix: float = 0.5

    def __post_init__(self) -> None:
        mix = as_number(self.mix, "mix", "a number above 0 and at most 1")
        if not 0.0 < mix <= 1.0:
            raise InputError(
                "mix",
                f"is {mix!r} but must be above 0 and at most 1",
                "use ef.penalties.Ridge without an absolute value",
            )
        object.__setattr__(self, "mix", mix)

    def _kinks(self, p: int, intercept: int | None) -> GroupNorms:
        there = np.ones(p)
        there[[] if intercept is None else intercept] = 0.0
        return GroupNorms.of(np.arange(p), self.mix * there, (1.0 - self.mix) * there)

    @property
    def name(self) -> str:
        return f"elastic net (L1 share {self.mix:g})"


@dataclass(frozen=True, eq=False)
class GroupL1(KinkedPenalty):
    r"""Sum of the norms of groups of coefficients, :math:`\rho(\theta) = \sum_g w_g\|\theta_g\|_2`.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    groups : (p,) labels
        Coefficients of one label enter and leave together. The intercept of a formula has a label
        too, but is taken out of its group and not penalized.
    weights : (G,) array, optional
        At least zero, in the sorted order of the labels; the root of the group's size if not given.

    References
    ----------
    Yuan, M. and Lin, Y. (2006). Model selection and estimation in regression with grouped
    variables. J. Roy. Statist. Soc. B 68, 49-67.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.GroupL1(0.5, groups=["a", "a", "b"], weights=[1.0, 1.0])
    >>> theta = np.array([3.0, 4.0, 0.0])
    >>> float(penalty.value(theta)), penalty.active(theta)
    (5.0, array([ True,  True, False]))
    """

    groups: Any = None
    weights: Any = None

    def _kinks(self, p: int, intercept: int | None) -> GroupNorms:
        found = Groups.of(self.groups, p, "groups", "coefficient")
        there = np.ones(p)
        there[[] if intercept is None else intercept] = 0.0
        size = np.bincount(found.codes, there)
        given = np.sqrt(size) if self.weights is None else _nonnegative(self.weights, len(found))
        codes = np.where(there > 0, found.codes, len(found)).astype(np.intp)
        return GroupNorms.of(codes, np.append(given, 0.0), np.zeros(p))

    @property
    def name(self) -> str:
        count = np.count_nonzero(self.kinks_at(len(self.groups)).weights)
        return f"group L1 ({count} groups)"


def _nonnegative(weights: object, count: int) -> Array:
    """Return a copy of the weights, one each if there are none."""
    if weights is None:
        return np.ones(count)
    checked = as_array(weights, "weights", shape=(count,)).copy()
    if np.any(checked < 0):
        raise InputError("weights", f"has the negative value {checked.min()}", "pass at least zero")
    return checked

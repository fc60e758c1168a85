r"""Convex penalties with a kink at zero: L1, elastic net and group L1.

All three are :math:`\rho(\theta) = \sum_g w_g\|\theta_g\|_2 + \tfrac12\sum_j r_j\theta_j^2` over
groups of coefficients; a group of one is an absolute value. A group that a fit sets to zero is
*inactive*: exactly zero, and its estimator has no normal limit. Everything that is differentiated
or calibrated lives on the active block, where :math:`\rho` is smooth (`KinkedPenalty.restricted`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.penalties.active import ActivePenalty
from etafree.penalties.norms import GroupNorms
from etafree.penalties.smooth import Penalty, Strength
from etafree.sums import Groups
from etafree.validation import Array, as_array, as_number

__all__ = ["L1", "ElasticNet", "GroupL1", "KinkedPenalty"]


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

    def restricted(self, active: Any, theta: Array) -> ActivePenalty:
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
            raise InputError("active", "has coordinates at which the penalty has a kink",
                             "pass penalty.active(theta)")  # fmt: skip
        for g in kinks.large:
            if len(set(active[kinks.members[g]].tolist())) > 1:
                raise InputError("active", "cuts a group of coefficients in two",
                                 "pass penalty.active(theta)")  # fmt: skip
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
            raise InputError("mix", f"is {mix!r} but must be above 0 and at most 1",
                             "use ef.penalties.Ridge without an absolute value")  # fmt: skip
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


def _nonnegative(weights: Any, count: int) -> Array:
    """Return a copy of the weights, one each if there are none."""
    if weights is None:
        return np.ones(count)
    checked = as_array(weights, "weights", shape=(count,)).copy()
    if np.any(checked < 0):
        raise InputError("weights", f"has the negative value {checked.min()}", "pass at least zero")
    return checked

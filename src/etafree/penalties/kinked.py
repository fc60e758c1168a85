r"""Convex penalties with kinks: their faces, and those with a kink at zero.

A fit lies on a *face*, a set :math:`\theta = E\beta` along which the penalty is smooth: zeros, or
coefficients tied to each other. Everything that is differentiated or calibrated lives on it
(`KinkedPenalty.face`). L1, elastic net and group L1 are :math:`\rho(\theta) = \sum_g
w_g\|\theta_g\|_2 + \tfrac12\sum_j r_j\theta_j^2` over groups of coefficients; a group of one is an
absolute value. A group that a fit sets to zero is *inactive*: exactly zero, and its estimator has
no normal limit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array, as_number
from etafree.penalties.smooth import Penalty, Strength

#: Tied coefficients that a name spells out.
SPELLED_OUT = 4


@dataclass(frozen=True, eq=False)
class GroupNorms:
    r"""The function :math:`f(\theta) = \sum_g w_g\|\theta_g\| + \tfrac12\sum_j r_j\theta_j^2`."""

    codes: NDArray[np.intp]  #: Group of each coefficient (p,), from 0.
    weights: Array  #: w (G,); zero means no kink, and such a group has one member.
    ridge: Array  #: r (p,).

    @classmethod
    def of(cls, codes: NDArray[np.intp], weights: Array, ridge: Array) -> GroupNorms:
        """Return the function, groups of weight zero split into their members."""
        split = np.where(weights[codes] == 0, len(weights) + np.arange(len(codes)), codes)
        groups, codes = np.unique(split, return_inverse=True)
        weights = np.append(weights, np.zeros(len(ridge)))[groups]
        return cls(codes.astype(np.intp).reshape(-1), weights, ridge)

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
        return [g for g, members in enumerate(self.members) if len(members) > 1]

    @cached_property
    def rates(self) -> Array:
        """The weight (p,) of each coefficient's group."""
        return self.weights[self.codes]

    def norms(self, theta: Array) -> Array:
        """Return the Euclidean norm of each group, (..., p) -> (..., G)."""
        norms: Array = np.empty((*theta.shape[:-1], len(self.weights)))
        norms[..., self.codes] = np.abs(theta)
        for g in self.large:
            norms[..., g] = np.linalg.norm(theta[..., self.members[g]], axis=-1)
        return norms

    def value(self, theta: Array) -> Array:
        """Return the function at one point (p,) or at many (D, p)."""
        return self.norms(theta) @ self.weights + 0.5 * np.square(theta) @ self.ridge

    def active(self, theta: Array) -> NDArray[np.bool_]:
        """Return which coefficients (p,) are away from a kink, or have none."""
        active: NDArray[np.bool_] = (self.norms(theta)[self.codes] > 0) | (self.rates == 0)
        return active

    def gradient(self, theta: Array) -> Array:
        """Return the gradient (p,), zero at inactive coefficients."""
        norms = self.norms(theta)[self.codes]
        units = np.divide(theta, norms, out=np.zeros_like(norms), where=norms > 0)
        return self.rates * units + self.ridge * theta

    def hessian(self, theta: Array, *, majorize: bool = False) -> Array:
        """Return the Hessian (p, p), zero at inactive coefficients, or a quadratic's above."""
        hessian = np.diag(self.ridge * self.active(theta))
        for g in self.large:
            members = self.members[g]
            norm = float(np.linalg.norm(theta[members]))
            if norm > 0:
                unit = theta[members] / norm
                bend = np.eye(len(members)) - (0.0 if majorize else np.outer(unit, unit))
                hessian[np.ix_(members, members)] += bend * (self.weights[g] / norm)
        return hessian

    def least_subgradient(self, theta: Array, gradient: Array) -> Array:
        r"""Return the smallest element (p,) of :math:`g + \partial f(\theta)`."""
        norms = self.norms(gradient)
        excess = np.maximum(norms - self.weights, 0.0)
        shrink = np.divide(excess, norms, out=np.zeros_like(norms), where=norms > 0)
        smooth = gradient + self.gradient(theta)
        return np.where(self.active(theta), smooth, shrink[self.codes] * gradient)

    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        r"""Return gradient and Hessian in the mean of the expectation under a normal law.

        The expected norm of a group larger than one has no closed form;
        :math:`(\|m_g\|^2 + \mathrm{tr}\,\Sigma_g)^{1/2}` is good enough for a proposal.
        """
        from scipy.special import erf

        variance = np.diagonal(covariance)
        sd = np.sqrt(np.maximum(variance, 1e-300))
        slope = self.rates * erf(mean / sd / np.sqrt(2.0)) + self.ridge * mean
        density = np.exp(-0.5 * np.square(mean / sd)) / (sd * np.sqrt(2 * np.pi))
        hessian = np.diag(2.0 * self.rates * density + self.ridge)
        for g in self.large:
            members, w = self.members[g], float(self.weights[g])
            m, r = mean[members], self.ridge[members]
            root = np.sqrt(max(float(m @ m + variance[members].sum()), 1e-300))
            slope[members] = w * m / root + r * m
            bend = w * (np.eye(len(m)) / root - np.outer(m, m) / root**3)
            hessian[np.ix_(members, members)] = bend + np.diag(r)
        return slope, hessian

    def laplace_curvature(self) -> Array:
        """Return the curvature (p, p) at zero, seen by a normal law as wide as the kinks' own."""
        # exp(-w |t|) has variance 2 / w**2
        variance = 2.0 / np.where(self.rates > 0, np.square(self.rates), 2.0)
        return self.expected_derivatives(np.zeros(len(variance)), np.diag(variance))[1]


@dataclass(frozen=True, eq=False)
class ActivePenalty(Penalty):
    r"""A kinked penalty on the face of a fit, where it is smooth.

    A function of the coordinates :math:`\beta` of a face :math:`\theta = E\beta`,
    :math:`c^\top\beta + \sum_g w_g\|\beta_g\| + \tfrac12\sum_j r_j\beta_j^2` with
    :math:`c_j = w_j\,\mathrm{sign}(\hat\theta_j)` for absolute values: the signs stay those of the
    fit, also where a draw crosses zero.

    Attributes
    ----------
    strength : float or callable
        As of the penalty it was made from.
    linear, kinks : (k,) array, GroupNorms
        :math:`c`, and the rest.
    whole : KinkedPenalty
        What it was made from.
    basis : (p, k) array
        :math:`E`: entries 0, 1 and -1, in every row one that is not zero at most. The first of a
        column is 1.
    gaps : (m, k) array
        :math:`G`, with :math:`G\beta > 0` inside the face: the fit's distances to other faces.

    See Also
    --------
    KinkedPenalty.face : What makes it.

    Examples
    --------
    >>> from etafree.penalties import L1
    >>> theta = np.array([0.0, -3.0, 2.0])
    >>> block = L1(0.5).face(theta)
    >>> float(block.value(theta[1:])), block.linear
    (5.0, array([-1.,  1.]))
    >>> block.gaps @ theta[1:], block.basis @ theta[1:]
    (array([3., 2.]), array([ 0., -3.,  2.]))
    >>> block.names("abc")
    ('b', 'c')
    """

    strength: Strength
    linear: Array
    kinks: GroupNorms
    whole: KinkedPenalty
    basis: Array
    gaps: Array

    def fitted_to(self, p: int, intercept: int | None = None) -> ActivePenalty:
        if p != len(self.linear):
            raise InputError("penalty", f"is for {len(self.linear)} active parameter(s), not {p}")
        return self

    def value(self, theta: Array) -> Array:
        return theta @ self.linear + self.kinks.value(theta)

    def gradient(self, theta: Array) -> Array:
        return self.linear + self.kinks.gradient(theta)

    def hessian(self, theta: Array) -> Array:
        return self.kinks.hessian(theta)

    def coordinates(self, theta: Array) -> Array:
        """Return the coordinates (..., k) of the points of the face nearest to `theta` (..., p)."""
        sizes = np.square(self.basis).sum(axis=0)
        nearest: Array = theta @ (self.basis / sizes)
        return nearest

    def names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return names of the coordinates, "a" or "b = -c", by `names` of the coefficients."""

        def tied(column: Array) -> str:
            members = np.flatnonzero(column)
            signed = [f"{'-' if column[j] < 0 else ''}{names[int(j)]}" for j in members]
            if len(signed) > SPELLED_OUT:
                return f"{signed[0]} = ... = {signed[-1]} ({len(signed)} tied)"
            return " = ".join(signed)

        return tuple(map(tied, self.basis.T))

    def describe(self, size: float) -> str:
        return self.whole.describe(size, " on active coefficients")


@dataclass(frozen=True, eq=False)
class KinkedPenalty(Penalty, ABC):
    r"""Base of convex penalties with kinks, whose fits lie on a face.

    `theta` is a parameter vector (p,). On a face :math:`\theta = E\beta` coefficients are zero, or
    tied to each other. Zeros have no interval; what is calibrated is :math:`\beta`.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.

    See Also
    --------
    L1, ElasticNet, GroupL1 : Penalties that set coefficients, or groups of them, to zero.
    Slope, Fused, NonNegative : Penalties whose faces have ties and zeros.

    Examples
    --------
    >>> import etafree as ef
    >>> theta = np.array([1.0, 1.0, 0.0])
    >>> for penalty in (ef.penalties.L1(1.0), ef.penalties.Fused(1.0)):
    ...     print(penalty.face(theta).names("abc"), penalty.describe(100.0))
    ('a', 'b') L1 penalty (strength 1)
    ('a = b',) fused L1 (share of jumps 0.5) penalty (strength 1)
    """

    strength: Strength

    @property
    @abstractmethod
    def name(self) -> str:
        """A few words for reports."""

    @abstractmethod
    def face(self, theta: Array) -> ActivePenalty:
        """Return the smooth penalty on the face that `theta` (p,) lies on, with its basis."""

    def bounds(self, p: int) -> Array | None:
        """Return bounds (p, 2) outside which the penalty is infinite, None if it is nowhere."""
        return None

    def describe(self, size: float, where: str = "") -> str:
        """Return a few words for reports, such as "L1 penalty (strength 0.1)".

        Parameters
        ----------
        size : float
            The effective scale, at which the strength is taken.
        where : str
            Words that say which coefficients it is of.

        Returns
        -------
        str
            The name, and the strength where there is one.
        """
        return f"{self.name} penalty{where} (strength {self.strength_at(size):.4g})"


@dataclass(frozen=True, eq=False)
class NormPenalty(KinkedPenalty):
    r"""Base of penalties :math:`\sum_g w_g\|\theta_g\|_2+\tfrac12\sum_j r_j\theta_j^2`.

    `theta` is a parameter vector (p,). Fits are exactly zero in inactive groups, which have no
    interval: calibration is of the active block.

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

    #: Filled in by `fitted_to`.
    kinks: GroupNorms | None = field(default=None, kw_only=True, repr=False)

    @abstractmethod
    def _kinks(self, penalized: Array) -> GroupNorms:
        """Return groups, weights and ridge; `penalized` (p,) is one, zero for the intercept."""

    def fitted_to(self, p: int, intercept: int | None = None) -> Self:
        if intercept is None and self.kinks is not None and len(self.kinks.codes) == p:
            return self
        penalized = np.ones(p)
        penalized[[] if intercept is None else intercept] = 0.0
        return replace(self, kinks=self._kinks(penalized))

    def kinks_at(self, p: int) -> GroupNorms:
        """Return the groups, weights and ridge of p parameters."""
        return self._kinks(np.ones(p)) if self.kinks is None else self.kinks

    def value(self, theta: Array) -> Array:
        return self.kinks_at(theta.shape[-1]).value(theta)

    def active(self, theta: Array) -> NDArray[np.bool_]:
        """Return which coordinates (p,) are away from a kink or have none; others are zero."""
        return self.kinks_at(len(theta)).active(theta)

    def gradient(self, theta: Array) -> Array:
        """Return the gradient (p,), zero at inactive coordinates."""
        return self.kinks_at(len(theta)).gradient(theta)

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian (p, p) among active coordinates, zero in inactive rows and columns."""
        return self.kinks_at(len(theta)).hessian(theta)

    def subgradient_gap(self, theta: Array, gradient: Array, weight: float = 1.0) -> float:
        r"""Return the largest coordinate of the smallest :math:`g + c\,\partial\rho(\theta)`.

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
        problem = ""
        if active.shape != theta.shape or not np.all(kinks.active(theta)[active]):
            problem = "has coordinates at which the penalty has a kink"
        elif any(len(set(active[kinks.members[g]].tolist())) > 1 for g in kinks.large):
            problem = "cuts a group of coefficients in two"
        if problem:
            raise InputError("active", problem, "pass penalty.active(theta)")
        single = np.bincount(kinks.codes) == 1
        signs = (np.where(single, kinks.weights, 0.0)[kinks.codes] * np.sign(theta))[active]
        norms = GroupNorms.of(kinks.codes, np.where(single, 0.0, kinks.weights), kinks.ridge)
        groups, codes = np.unique(norms.codes[active], return_inverse=True)
        block = GroupNorms(codes.astype(np.intp), norms.weights[groups], norms.ridge[active])
        basis = np.eye(len(theta))[:, active]
        away = (np.sign(theta) * (kinks.rates > 0))[active]
        gaps = np.diag(away)[away != 0]
        return ActivePenalty(self.strength, signs, block, self, basis, gaps)

    def face(self, theta: Array) -> ActivePenalty:
        return self.restricted(self.active(theta), theta)


@dataclass(frozen=True, eq=False)
class L1(NormPenalty):
    r"""Weighted sum of absolute values, :math:`\rho(\theta) = \sum_j w_j|\theta_j|`.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    weights : (p,) array, optional
        At least zero, by default one each. Weight zero means no penalty, as for the intercept of a
        formula.

    References
    ----------
    Tibshirani, R. (1996). J. Roy. Statist. Soc. B 58, 267-288.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.L1(0.5, weights=[1.0, 2.0, 0.0])
    >>> theta = np.array([0.0, -3.0, 0.0])
    >>> float(penalty.value(theta)), penalty.active(theta)
    (6.0, array([False,  True,  True]))
    """

    weights: object = None

    def _kinks(self, penalized: Array) -> GroupNorms:
        weights = penalized * nonnegative(self.weights, penalized)
        return GroupNorms.of(np.arange(len(weights)), weights, np.zeros(len(weights)))

    @property
    def name(self) -> str:
        return "L1" if self.weights is None else "weighted L1"


@dataclass(frozen=True, eq=False)
class ElasticNet(NormPenalty):
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
    Zou, H. and Hastie, T. (2005). J. Roy. Statist. Soc. B 67, 301-320.

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
            problem = f"is {mix!r} but must be above 0 and at most 1"
            raise InputError("mix", problem, "use ef.penalties.Ridge without an absolute value")
        object.__setattr__(self, "mix", mix)

    def _kinks(self, penalized: Array) -> GroupNorms:
        each = np.arange(len(penalized))
        return GroupNorms.of(each, self.mix * penalized, (1.0 - self.mix) * penalized)

    @property
    def name(self) -> str:
        return f"elastic net (L1 share {self.mix:g})"


@dataclass(frozen=True, eq=False)
class GroupL1(NormPenalty):
    r"""Sum of the norms of groups of coefficients, :math:`\rho(\theta) = \sum_g w_g\|\theta_g\|_2`.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    groups : (p,) labels
        Coefficients of one label enter and leave together. The intercept of a formula has a label
        too, but is not penalized.
    weights : (G,) array, optional
        At least zero, in the sorted order of the labels; by default the root of the group's size.

    References
    ----------
    Yuan, M. and Lin, Y. (2006). J. Roy. Statist. Soc. B 68, 49-67.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.GroupL1(0.5, groups=["a", "a", "b"], weights=[1.0, 1.0])
    >>> theta = np.array([3.0, 4.0, 0.0])
    >>> float(penalty.value(theta)), penalty.active(theta)
    (5.0, array([ True,  True, False]))
    """

    groups: Sized | None = None
    weights: object = None

    def _kinks(self, penalized: Array) -> GroupNorms:
        groups = Groups.of(self.groups, len(penalized), "groups", "coefficient")
        weights = nonnegative(self.weights, np.sqrt(np.bincount(groups.codes, penalized)))
        codes = np.where(penalized > 0, groups.codes, len(groups)).astype(np.intp)
        return GroupNorms.of(codes, np.append(weights, 0.0), np.zeros(len(penalized)))

    @property
    def name(self) -> str:
        labels = () if self.groups is None else self.groups
        count = np.count_nonzero(self.kinks_at(len(labels)).weights)
        return f"group L1 ({count} groups)"


def nonnegative(weights: object, default: Array) -> Array:
    """Return weights of the length of those by default, checked."""
    if weights is None:
        return default
    checked = as_array(weights, "weights", shape=default.shape)
    if np.any(checked < 0):
        raise InputError("weights", f"has the negative value {checked.min()}", "pass at least zero")
    return checked

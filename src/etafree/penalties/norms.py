r"""Weighted norms of groups of coefficients plus a ridge: the function behind kinked penalties.

:math:`f(\theta) = \sum_g w_g\|\theta_g\|_2 + \tfrac12\sum_j r_j\theta_j^2` with its derivatives
where it has them, its subgradients where it has not, and its expectation under a normal law.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from etafree.sums import Groups
from etafree.validation import Array

__all__ = ["GroupNorms"]


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

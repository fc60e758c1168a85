r"""Convex penalties that are linear on each of finitely many pieces: SLOPE, fused lasso, signs.

With :math:`x` the coefficients that are penalized, in their order,

.. math:: \rho(\theta) = a\sum_i|x_i| + d\sum_i|x_i-x_{i-1}| + \sum_i w_i|x|_{(i)}
          \quad(\text{infinite where some } x_i < 0,\text{ if there are bounds}).

A fit is the corner of a piece: coefficients are zero, or tied to each other, :math:`\theta=E\beta`,
and along this face the penalty is :math:`c^\top\beta`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_number
from etafree.penalties.kinked import ActivePenalty, GroupNorms, KinkedPenalty, nonnegative
from etafree.penalties.smooth import Strength


class Terms(NamedTuple):
    """What a polyhedral penalty sums, for coefficients `members` (q,) in their order."""

    members: NDArray[np.intp]
    absolute: float = 0.0  #: a.
    jump: float = 0.0  #: d.
    ranked: Array = np.zeros(0)  #: w (q,), not increasing; empty if there are none.
    bounded: bool = False  #: Whether negative coefficients are ruled out.

    def scaled(self, factor: float) -> Terms:
        """Return the terms times a number above zero."""
        scaled = factor * self.absolute, factor * self.jump, factor * self.ranked
        return Terms(self.members, *scaled, self.bounded)


class Corner(NamedTuple):
    """A face in the coordinates of the penalized coefficients (q,)."""

    labels: NDArray[np.intp]  #: Which coordinate (q,) each has the size of, -1 for zeros.
    signs: Array  #: With which sign (q,).
    linear: Array  #: c (k,).
    gaps: Array  #: G (m, k).


@dataclass(frozen=True, eq=False)
class PolyhedralPenalty(KinkedPenalty):
    r"""Base of penalties that are piecewise linear, and may be infinite.

    Fits have zeros and ties: :math:`\theta=E\beta`. Calibration is of :math:`\beta`, and tied
    coefficients have the same draws.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    which : (p,) bool array, optional
        Which coefficients are penalized; by default all but a formula's intercept.

    See Also
    --------
    Slope, Fused, NonNegative : Penalties of this kind.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.Fused(1.0, mix=1.0, which=[False, True, True, True])
    >>> theta = np.array([9.0, 2.0, 2.0, 5.0])
    >>> float(penalty.value(theta)), penalty.prox(theta, 0.5)
    (3.0, array([9.  , 2.25, 2.25, 4.5 ]))
    >>> penalty.gradient(theta)  # along the face; those of all parts of a tie alike
    array([ 0. , -0.5, -0.5,  1. ])
    >>> penalty.subgradient_gap(theta, gradient=np.array([0.0, 0.7, 0.3, -1.0]))  # a minimiser
    0.0
    """

    which: object = field(default=None, kw_only=True)
    #: Which coefficients (p,) are penalized, filled in by `fitted_to`.
    chosen: NDArray[np.bool_] | None = field(default=None, kw_only=True, repr=False)

    @abstractmethod
    def terms(self, p: int) -> Terms:
        """Return what is summed over which of p coefficients."""

    @abstractmethod
    def _prox(self, x: Array, step: float) -> Array:
        """Return the proximal point of the penalized coefficients (q,)."""

    @abstractmethod
    def _corner(self, x: Array) -> Corner:
        """Return the face of the penalized coefficients (q,)."""

    def fitted_to(self, p: int, intercept: int | None = None) -> Self:
        if intercept is None and self.chosen is not None and len(self.chosen) == p:
            return self
        chosen = self._chosen(p).copy()
        chosen[[] if intercept is None else intercept] = False
        fitted = replace(self, chosen=chosen)
        fitted.terms(p)  # refuses weights of another length
        return fitted

    def _chosen(self, p: int) -> NDArray[np.bool_]:
        if self.chosen is not None:
            return self.chosen
        chosen = np.ones(p, dtype=bool) if self.which is None else np.asarray(self.which)
        if chosen.shape != (p,) or chosen.dtype != bool:
            problem = f"is not an array of {p} True or False, one per coefficient"
            raise InputError("which", problem, "leave it out to penalize all")
        return chosen

    def members(self, p: int) -> NDArray[np.intp]:
        """Return which of p coefficients (q,) are penalized."""
        return np.flatnonzero(self._chosen(p))

    def value(self, theta: Array) -> Array:
        members, absolute, jump, ranked, bounded = self.terms(theta.shape[-1])
        x = theta[..., members]
        size = np.abs(x)
        total: Array = absolute * size.sum(axis=-1)
        if jump:
            total = total + jump * np.abs(np.diff(x, axis=-1)).sum(axis=-1)
        if len(ranked):
            total = total + np.sort(size, axis=-1)[..., ::-1] @ ranked
        return np.where((x < 0).any(axis=-1), np.inf, total) if bounded else total

    def prox(self, theta: Array, step: float) -> Array:
        r"""Return :math:`\arg\min_z \tfrac12\|z-\theta\|^2 + t\rho(z)` (p,).

        Parameters
        ----------
        theta : (p,) array
            A point.
        step : float
            :math:`t`, above zero.

        Returns
        -------
        (p,) array
            With zeros and ties that are exact.
        """
        out = theta.astype(np.float64)
        members = self.members(len(theta))
        out[members] = self._prox(out[members], step)
        return out

    def face(self, theta: Array) -> ActivePenalty:
        p = len(theta)
        members = self.members(p)
        corner = self._corner(theta[members])
        free = np.flatnonzero(~self._chosen(p))
        k, inside = len(corner.linear), corner.labels >= 0
        basis = np.zeros((p, k + len(free)))
        basis[members[inside], corner.labels[inside]] = corner.signs[inside]
        basis[free, k + np.arange(len(free))] = 1.0
        first = np.argmax(basis != 0, axis=0)
        order = np.argsort(first)
        signs = basis[first, np.arange(len(first))][order]
        linear = np.append(corner.linear, np.zeros(len(free)))[order] * signs
        gaps = np.hstack([corner.gaps, np.zeros((len(corner.gaps), len(free)))])[:, order] * signs
        none = GroupNorms(np.arange(len(order)), np.zeros(len(order)), np.zeros(len(order)))
        return ActivePenalty(self.strength, linear, none, self, basis[:, order] * signs, gaps)

    def gradient(self, theta: Array) -> Array:
        """Return the gradient (p,) along the face of `theta`, zero at zeros."""
        face = self.face(theta)
        gradient: Array = face.basis @ (face.linear / np.square(face.basis).sum(axis=0))
        return gradient

    def hessian(self, theta: Array) -> Array:
        return np.zeros((len(theta), len(theta)))

    def subgradient_gap(self, theta: Array, gradient: Array, weight: float = 1.0) -> float:
        r"""Return how far a point is from the proximal point of a step, per length of the step.

        :math:`\max_j|\theta-\mathrm{prox}_{tc\rho}(\theta-tg)|_j/t` with a step t that is as long
        as `theta` itself.

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
        return float(np.max(np.abs(self.residual(theta, gradient, weight))))

    def residual(self, theta: Array, gradient: Array, weight: float) -> Array:
        """Return the same of every coefficient (p,)."""
        length, steep = np.abs(theta).max(), np.abs(gradient).max()
        step = length / steep if length > 0 and steep > 0 else 1.0
        residual: Array = (theta - self.prox(theta - step * gradient, step * weight)) / step
        return residual


@dataclass(frozen=True, eq=False)
class Slope(PolyhedralPenalty):
    r"""Sorted L1 norm, :math:`\rho(\theta) = \sum_j w_j|\theta|_{(j)}`, largest first.

    Coefficients of about the same size are tied, :math:`|\theta_j|=|\theta_k|`; small ones are
    zero.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    weights : (q,) array, optional
        One for each penalized coefficient, not increasing and at least zero. By default those of
        Benjamini and Hochberg at level 0.1, :math:`w_j\propto\Phi^{-1}(1-0.1j/2q)` with
        :math:`w_1=1`: strengths are those of `L1` for the largest coefficient.
    which : (p,) bool array, optional
        Which coefficients are penalized; by default all but a formula's intercept.

    References
    ----------
    Bogdan, M., van den Berg, E., Sabatti, C., Su, W. and Candes, E. J. (2015). SLOPE - adaptive
    variable selection via convex optimization. Ann. Appl. Statist. 9, 1103-1140.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.Slope(1.0, weights=[3.0, 2.0, 1.0])
    >>> theta = penalty.prox(np.array([5.0, -4.8, 0.5]), 1.0)
    >>> theta, penalty.face(theta).names("abc")
    (array([ 2.4, -2.4,  0. ]), ('a = -b',))
    """

    weights: object = None

    @property
    def name(self) -> str:
        return "SLOPE" if self.weights is None else "weighted SLOPE"

    def terms(self, p: int) -> Terms:
        members = self.members(p)
        return Terms(members, ranked=self._ranked(len(members)))

    def _ranked(self, q: int) -> Array:
        if self.weights is None:
            from scipy.special import ndtri

            quantiles: Array = -ndtri(0.05 * np.arange(1, q + 1) / max(q, 1))
            return quantiles / quantiles[:1]
        weights = nonnegative(self.weights, np.zeros(q))
        if np.any(np.diff(weights) > 0):
            raise InputError("weights", "increase", "sort them, the largest first")
        return weights

    def _prox(self, x: Array, step: float) -> Array:
        order = np.argsort(-np.abs(x), kind="stable")
        pools: list[tuple[float, int]] = []  # sums and counts of decreasing means
        for excess in (np.abs(x)[order] - step * self._ranked(len(x))).tolist():
            total, count = excess, 1
            while pools and pools[-1][0] * count <= total * pools[-1][1]:
                before = pools.pop()
                total, count = total + before[0], count + before[1]
            pools.append((total, count))
        means = np.array([max(total / count, 0.0) for total, count in pools])
        out = np.empty(len(x))
        out[order] = np.repeat(means, [count for _, count in pools])
        return np.copysign(out, x) * (out > 0)

    def _corner(self, x: Array) -> Corner:
        weights, size = self._ranked(len(x)), np.abs(x)
        order = np.argsort(-size, kind="stable")
        starts = np.flatnonzero(np.diff(size[order], prepend=np.inf))
        labels, linear = np.full(len(x), -1), list[float]()
        ends: list[tuple[float, float]] = []  # weights of a block's first and last rank
        for start, stop in zip(starts, [*starts[1:], len(x)], strict=True):
            run, ranks = order[start:stop], weights[start:stop]
            zero = size[run[0]] == 0
            if zero and ranks[0] > 0:
                continue
            tied = not zero and ranks[0] > ranks[-1]
            for part in (
                [slice(0, len(run))] if tied else [slice(i, i + 1) for i in range(len(run))]
            ):
                labels[run[part]] = len(linear)
                linear.append(float(ranks[part].sum()))
                ends.append((float(ranks[part][0]), float(ranks[part][-1])))
        signs = np.where(x < 0, -1.0, 1.0)
        return Corner(labels, signs, np.array(linear), _rank_gaps(ends))


def _rank_gaps(ends: list[tuple[float, float]]) -> Array:
    """Return the differences (m, k) between sizes of blocks, and to zero, that end a piece.

    Two blocks may change places without a kink where their ranks have one weight; those of weight
    zero may change sign, too.
    """
    k = len(ends)
    first, last = np.array([*ends, (-1.0, 0.0)]).T
    rows = []
    for u in range(k):
        below = u + 1 + np.flatnonzero(last[u + 1 :] < first[u])
        for v in below[first[below] == first[below[:1]]].tolist():
            for sign in (-1.0, 1.0) if first[v] == 0 else (-1.0,):
                row = np.zeros(k + 1)
                row[[u, v]] = 1.0, sign
                rows.append(row[:k])
    return np.array(rows).reshape(len(rows), k)


@dataclass(frozen=True, eq=False)
class Fused(PolyhedralPenalty):
    r"""Fused lasso, :math:`\rho(\theta) = m\sum_j|\theta_j-\theta_{j-1}| + (1-m)\sum_j|\theta_j|`.

    Neighbours are tied: coefficients of ordered columns (times, positions, levels of a factor) are
    constant but for a few jumps, and zero where they are small.

    Parameters
    ----------
    strength : float or callable
        :math:`\lambda`, or a function of :math:`s_n` giving :math:`\lambda_n`.
    mix : float
        Share :math:`m` of the jumps, from 0 (L1) to 1 (no zeros).
    which : (p,) bool array, optional
        Which coefficients are penalized, neighbours in the order of the columns; by default all but
        a formula's intercept.

    Raises
    ------
    InputError
        `mix` is outside [0, 1].

    References
    ----------
    Tibshirani, R., Saunders, M., Rosset, S., Zhu, J. and Knight, K. (2005). Sparsity and smoothness
    via the fused lasso. J. Roy. Statist. Soc. B 67, 91-108. Friedman, J., Hastie, T., Hofling, H.
    and Tibshirani, R. (2007). Pathwise coordinate optimization. Ann. Appl. Statist. 1, 302-332.
    Condat, L. (2013). A direct algorithm for 1-D total variation denoising. IEEE Signal Process.
    Lett. 20, 1054-1057.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.Fused(1.0, mix=0.5)
    >>> theta = penalty.prox(np.array([0.1, 0.3, 3.0, 2.0]), 1.0)
    >>> theta, penalty.face(theta).names("abcd")
    (array([0.  , 0.  , 1.75, 1.75]), ('c = d',))
    """

    mix: float = 0.5

    def __post_init__(self) -> None:
        mix = as_number(self.mix, "mix", "a number from 0 to 1")
        if not 0.0 <= mix <= 1.0:
            problem = f"is {mix!r} but must be from 0 to 1"
            raise InputError("mix", problem, "it is the share of the jumps")
        object.__setattr__(self, "mix", mix)

    @property
    def name(self) -> str:
        return f"fused L1 (share of jumps {self.mix:g})"

    def terms(self, p: int) -> Terms:
        return Terms(self.members(p), absolute=1.0 - self.mix, jump=self.mix)

    def _prox(self, x: Array, step: float) -> Array:
        smooth = _fewer_jumps(x.tolist(), step * self.mix) if self.mix and len(x) > 1 else x
        size = np.maximum(np.abs(smooth) - step * (1.0 - self.mix), 0.0)
        return np.copysign(size, smooth) * (size > 0)

    def _corner(self, x: Array) -> Corner:
        jump, absolute = self.mix, 1.0 - self.mix
        starts = np.flatnonzero(np.diff(x, prepend=np.nan) != 0 if jump else np.ones(len(x)))
        heights, counts = x[starts], np.diff(np.append(starts, len(x)))
        places = np.where((heights != 0) | (absolute == 0), 0, -1)
        places[places == 0] = np.arange(np.count_nonzero(places == 0))
        k = int(np.count_nonzero(places >= 0))
        units = np.vstack([np.eye(k), np.zeros(k)])[places]  # zero, the last, has no coordinate
        sides = np.sign(np.diff(heights))
        linear = (absolute * counts * np.sign(heights)) @ units
        linear += jump * sides @ np.diff(units, axis=0)
        rows = [np.sign(heights)[:, None] * units] if absolute else []
        rows += [sides[:, None] * np.diff(units, axis=0)] if jump else []
        gaps = np.vstack(rows)
        gaps = np.unique(gaps[np.any(gaps != 0, axis=1)], axis=0)
        return Corner(np.repeat(places, counts), np.ones(len(x)), linear, gaps)


def _fewer_jumps(y: list[float], rate: float) -> Array:
    """Return the minimiser of half a sum of squares plus `rate` times the sum of jumps (Condat)."""
    last, x = len(y) - 1, np.empty(len(y))
    k = begin = low_end = high_end = 0
    low, high, low_slack, high_slack = y[0] - rate, y[0] + rate, rate, -rate
    while True:
        if k == last:
            if low_slack < 0:
                x[begin : low_end + 1] = low
                k = begin = low_end = low_end + 1
                low, low_slack = y[k], rate
                high_slack = low + rate - high
            elif high_slack > 0:
                x[begin : high_end + 1] = high
                k = begin = high_end = high_end + 1
                high, high_slack = y[k], -rate
                low_slack = high - rate - low
            else:
                x[begin:] = low + low_slack / (k - begin + 1)
                return x
            continue
        low_slack += y[k + 1] - low
        high_slack += y[k + 1] - high
        if low_slack < -rate:
            x[begin : low_end + 1] = low
            k = begin = low_end = high_end = low_end + 1
            low, high, low_slack, high_slack = y[k], y[k] + 2 * rate, rate, -rate
        elif high_slack > rate:
            x[begin : high_end + 1] = high
            k = begin = low_end = high_end = high_end + 1
            low, high, low_slack, high_slack = y[k] - 2 * rate, y[k], rate, -rate
        else:
            k += 1
            if low_slack >= rate:
                low += (low_slack - rate) / (k - begin + 1)
                low_slack, low_end = rate, k
            if high_slack <= -rate:
                high += (high_slack + rate) / (k - begin + 1)
                high_slack, high_end = -rate, k


@dataclass(frozen=True, eq=False)
class NonNegative(PolyhedralPenalty):
    r"""Constraint :math:`\theta_j\ge0`: a penalty that is zero there, and infinite elsewhere.

    A coefficient at its bound is exactly zero, without an interval.

    Parameters
    ----------
    which : (p,) bool array, optional
        Which coefficients are bounded; by default all but a formula's intercept.

    References
    ----------
    Lawson, C. L. and Hanson, R. J. (1974). Solving Least Squares Problems. Prentice-Hall.

    Examples
    --------
    >>> import etafree as ef
    >>> penalty = ef.penalties.NonNegative(which=[True, True, False])
    >>> penalty.prox(np.array([1.0, -2.0, -3.0]), 1.0), penalty.value(-np.ones(3))
    (array([ 1.,  0., -3.]), array(inf))
    """

    strength: Strength = field(default=1.0, init=False, repr=False)

    @property
    def name(self) -> str:
        return "non-negativity"

    def describe(self, size: float, where: str = "") -> str:
        return f"constraint to coefficients of at least zero{where}"

    def terms(self, p: int) -> Terms:
        return Terms(self.members(p), bounded=True)

    def bounds(self, p: int) -> Array:
        low = np.full(p, -np.inf)
        low[self.members(p)] = 0.0
        return np.column_stack([low, np.full(p, np.inf)])

    def _prox(self, x: Array, step: float) -> Array:
        return np.maximum(x, 0.0)

    def _corner(self, x: Array) -> Corner:
        labels = np.where(x > 0, np.cumsum(x > 0) - 1, -1)
        k = int(np.count_nonzero(x > 0))
        return Corner(labels, np.ones(len(x)), np.zeros(k), np.eye(k))

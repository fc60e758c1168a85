r"""U-type losses: totals over pairs of units, :math:`M(\theta)=\sum_{i<j}h(\theta,z_i,z_j)`.

The score of unit i is its full row sum :math:`g_i=\sum_{j\ne i}\nabla h(\theta,z_i,z_j)`. These add
up to twice the gradient, and :math:`\sum_i(g_i-\bar g)(g_i-\bar g)^\top` estimates the variance of
the total score: two pairs that share a unit depend on each other, so pairs taken as independent
are far too sure. HC1 multiplies by :math:`n(n-1)/(n-2)^2`, which makes it the jackknife that leaves
out one unit at a time (Arvesen 1969). Everything is a label or a weight per *unit*; clusters,
strata and time mean what they mean elsewhere. The effective scale :math:`s_n` is the number of
pairs; :math:`\eta` multiplies a sum over pairs, so that about 2/n is what 1 is elsewhere.

A pair weighs :math:`w_iw_j`. Copies under frequency weights pair with each other too, exactly as
if the rows were repeated, so that :math:`s_n=W(W-1)/2` for them.

References
----------
Hoeffding, W. (1948). A class of statistics with asymptotically normal distribution. Ann. Math.
Statist. 19, 293-325. Arvesen, J. N. (1969). Jackknifing U-statistics. Ann. Math. Statist. 40,
2076-2100. Honoré, B. E. and Powell, J. L. (1994). Pairwise difference estimators of censored and
truncated regression models. J. Econometrics 64, 241-278.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.losses import Huber, LinearLoss, Squared
from etafree.sums import Groups
from etafree.totals import ClusterBlock, ClusterTotals, Derivatives, Total
from etafree.validation import Array

__all__ = ["PER_UNIT", "DifferenceTotal", "PairTotal", "RowSums", "checked_units", "tiles"]

#: Units per side of a tile of pairs, and units from which sorting beats looking at every pair.
TILE, SORT_FROM = 256, 128


#: What a wrong number of labels is told, after "has 4950 entries for 100 rows".
PER_UNIT = "scores belong to units, not to pairs: pass one value per unit"


class RowSums(NamedTuple):
    """Row sums of h (n,) and of its gradients (n, p); gradient, Hessian and size of the total."""

    values: Array
    scores: Array
    gradient: Array
    hessian: Array
    scale: Array


class PairTotal(Total):
    """A loss summed over pairs of weighted units."""

    leverages: ClassVar[bool] = False

    @abstractmethod
    def row_sums(self, theta: Array, *, majorize: bool = False) -> RowSums:
        """Return all sums over pairs in one pass."""

    @property
    def size(self) -> float:
        """Number of pairs: the sum of their weights, copies paired with each other."""
        if self.weights is None or self.frequency:
            return 0.5 * self.weight * (self.weight - 1.0)
        return 0.5 * (self.weight**2 - float(self.weights @ self.weights))

    def small_sample_factor(self) -> float:
        """Return n (n - 1) / (n - 2)^2, the jackknife's factor."""
        if self.count <= 2:
            raise InputError("correction", "'HC1' needs more than 2 units over pairs", "add units")
        return self.count * (self.count - 1.0) / (self.count - 2.0) ** 2

    def reweighted(self, weights: Array | None, frequency: bool) -> Self:
        """Return the same total under other weights."""
        return replace(self, weights=weights, frequency=frequency)  # type: ignore[type-var]

    def values(self, theta: Array) -> Array:
        """Return half of each unit's weighted row sum (n,); they add up to the total."""
        return 0.5 * self.row_sums(theta).values

    def scores(self, theta: Array) -> Array:
        """Return each unit's weighted row sum of gradients (n, p); twice the gradient in all."""
        return self.row_sums(theta).scores

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian of the total over pairs."""
        s = self.row_sums(theta, majorize=majorize)
        return Derivatives(0.5 * float(s.values.sum()), s.gradient, s.hessian, s.scale)

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and the score sums of clusters of units."""
        s = self.row_sums(theta)
        sums = np.zeros((len(groups), self.p))
        np.add.at(sums, groups.codes, s.scores)
        weights = groups.weights(self.weights)
        return ClusterTotals(s.gradient, s.hessian, sums, weights)

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Refuse: a pair belongs to two units, so none has a Hessian of its own."""
        raise InputError("loss", "is over pairs, where no cluster has a Hessian of its own",
                         "only corrections without leverages are possible: HC1, CR1")  # fmt: skip


def checked_units(n: int, weights: Array | None) -> Array:
    """Return the weights of the units, of which there must be two."""
    w = np.ones(n) if weights is None else weights
    if np.count_nonzero(w) < 2:
        raise InputError("data" if weights is None else "weights", "leave fewer than two units",
                         "a pair needs two")  # fmt: skip
    return w


def tiles(n: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of blocks of units, the second not before the first."""
    blocks = [slice(a, min(a + size, n)) for a in range(0, n, size)]
    for k, rows in enumerate(blocks):
        for columns in blocks[k:]:
            yield rows, columns


@dataclass(frozen=True, eq=False)
class DifferenceTotal(PairTotal):
    """Sum over pairs of a loss of r_i - r_j; X and y are in deviations from medians."""

    loss: Any
    X: Array
    y: Array
    weights: Array | None
    frequency: bool

    @property
    def n(self) -> int:
        """Number of units."""
        return len(self.X)

    @property
    def p(self) -> int:
        """Number of parameters."""
        return int(self.X.shape[1])

    @cached_property
    def column_norms(self) -> Array:
        """Euclidean norm of every column in deviations from its median."""
        norms: Array = np.linalg.norm(self.X, axis=0)
        return norms

    @cached_property
    def _kept(self) -> tuple[NDArray[np.intp] | slice, Array, Array, Array, float]:
        """Rows with weight, their X, y and weights, and what pairs of a unit with itself hold."""
        zero = np.zeros(1)
        at_zero = float(self.loss.kernel.values(zero, zero)[0])
        if self.weights is None:
            return slice(None), self.X, self.y, np.ones(self.n), at_zero
        there = np.flatnonzero(self.weights)
        return there, self.X[there], self.y[there], self.weights[there], at_zero

    def _own(self, w: Array) -> Array:
        """Return the weight of a row's pairs with itself that are no pairs of units."""
        return w if self.frequency else np.square(w)

    def row_sums(self, theta: Array, *, majorize: bool = False) -> RowSums:
        """Return all sums over pairs; for Huber's and the squared loss after sorting residuals."""
        there, X, y, w, at_zero = self._kept
        r, Z = y - X @ theta, w[:, None] * np.column_stack([np.ones(len(X)), X])
        window = _window(self.loss.kernel)
        if majorize or window is None or len(X) < SORT_FROM:
            rows, slope, bend = _by_tiles(self.loss.kernel, r, Z, majorize)
        else:
            rows, slope, bend = _by_sorting(*window, r, Z)
        held = w * slope[:, 0]
        values, scores = np.zeros(self.n), np.zeros((self.n, self.p))
        values[there] = w * rows - at_zero * self._own(w)
        scores[there] = held[:, None] * X - w[:, None] * slope[:, 1:]
        hessian = (X.T * (w * bend[:, 0])) @ X - Z[:, 1:].T @ bend[:, 1:]
        scale = np.linalg.norm(held) * self.column_norms
        return RowSums(values, scores, held @ X, 0.5 * (hessian + hessian.T), scale)

    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,)."""
        _, X, y, w, at_zero = self._kept
        kernel, weighted = self.loss.kernel, self.weights is not None
        own = 0.5 * at_zero * float(self._own(w).sum())
        return np.array([_total(kernel, y - X @ theta, w, weighted) - own for theta in thetas])


def _total(kernel: LinearLoss, r: Array, w: Array, weighted: bool) -> float:
    """Return half the sum of the weighted loss over all i and j."""
    window, total = _window(kernel), 0.0
    if window is not None and len(r) >= SORT_FROM:
        w = w[np.argsort(r)] if weighted else w
        return window[1] * float(w @ _below(window[0], np.sort(r), w[:, None])[0])
    for R, C in tiles(len(r), TILE):
        value = kernel.values(r[C] - r[R, None], np.zeros(len(r[C])))
        total += (0.5 if R == C else 1.0) * float(w[R] @ value @ w[C])
    return total


def _window(kernel: LinearLoss) -> tuple[float, float] | None:
    """Return k and f if the loss is f times d^2/2 inside |d| <= k and linear outside."""
    if type(kernel) is Squared:
        return np.inf, 1.0
    if type(kernel) is Huber:
        return kernel.c * kernel.scale_value, kernel.scale_value**-2
    return None


def _by_tiles(kernel: LinearLoss, r: Array, Z: Array, majorize: bool) -> tuple[Array, Array, Array]:
    """Return sums over j of the loss, and of its derivatives times Z_j, looking at every pair."""
    rows, slope, bend = np.zeros(len(r)), np.zeros_like(Z), np.zeros_like(Z)
    curve = kernel.majorizer if majorize else kernel.second
    for R, C in tiles(len(r), TILE):
        u, zero = r[C] - r[R, None], np.zeros(len(r[C]))
        value, first, second = kernel.values(u, zero), kernel.first(u, zero), curve(u, zero)
        rows[R] += value @ Z[C, 0]
        slope[R] += first @ Z[C]
        bend[R] += second @ Z[C]
        if R != C:
            rows[C] += Z[R, 0] @ value
            slope[C] -= first.T @ Z[R]
            bend[C] += second.T @ Z[R]
    return rows, slope, bend


def _by_sorting(k: float, f: float, r: Array, Z: Array) -> tuple[Array, Array, Array]:
    """Return the same for f times Huber's loss with threshold k, from prefix sums: O(n log n)."""
    order = np.argsort(r)
    r, Z = r[order], Z[order]
    below, above = _below(k, r, Z), _below(k, -r[::-1], Z[::-1])
    rows, slope, bend = np.empty(len(r)), np.empty_like(Z), np.empty_like(Z)
    rows[order] = f * (below[0] + above[0][::-1])
    slope[order] = f * (above[1][::-1] - below[1])
    bend[order] = f * (below[2] + above[2][::-1])
    return rows, slope, bend


def _below(k: float, r: Array, Z: Array) -> tuple[Array, Array, Array]:
    """Return sums over j < i of Huber's loss of r_i - r_j and its derivatives times Z_j, r sorted.

    Residuals are taken relative to cells of width k: pairs inside the threshold are in the same
    cell or in neighbouring ones, so that outliers do not spoil the sums of squares.
    """
    index, cell = np.arange(len(r)), np.zeros(len(r))
    if np.isfinite(k):
        cell = np.floor(r / k)
    else:
        k = 0.0  # every pair is inside, nothing is multiplied with it
    rest = r - k * (cell + 0.5)
    start = np.maximum.accumulate(np.where(np.r_[True, cell[1:] != cell[:-1]], index, 0))
    low = start
    if k > 0:
        last = np.maximum(start - 1, 0)
        earliest = np.where(cell[last] == cell - 1, start[last], start)
        low = np.clip(np.searchsorted(r, r - k), earliest, start)
    mass, moment = _prefix(Z), _prefix(rest[:, None] * Z)
    square, signed = _prefix(np.square(rest) * Z[:, 0]), _prefix(r * Z[:, 0])
    outside = mass[low]
    slope, bend = k * outside, np.zeros_like(Z)
    rows = k * (r * outside[:, 0] - signed[low]) - 0.5 * k**2 * outside[:, 0]
    for d, a, b in ((rest + k, low, start), (rest, start, index)):
        inside, part = mass[b] - mass[a], moment[b] - moment[a]
        slope += d[:, None] * inside - part
        bend += inside
        rows += 0.5 * (d * (d * inside[:, 0] - 2.0 * part[:, 0]) + square[b] - square[a])
    return rows, slope, bend


def _prefix(values: Array) -> Array:
    """Return sums of the first 0, 1, ..., n rows."""
    out = np.zeros((len(values) + 1, *values.shape[1:]))
    np.cumsum(values, axis=0, out=out[1:])
    return out

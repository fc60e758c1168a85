r"""U-type losses: totals over pairs of units, :math:`M(\theta)=\sum_{i<j}h(\theta,z_i,z_j)`.

Tuples of two units: scores are full row sums, HC1 multiplies by :math:`n(n-1)/(n-2)^2`, HC3 and CR3
leave out a unit or cluster with all its pairs, and :math:`s_n` is the number of pairs, all as in
`totals.tuples`. For squared differences HC3 and CR3 are those of least squares with an intercept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from etafree.data import pytrees
from etafree.data.groups import Groups
from etafree.data.pytrees import double_precision
from etafree.data.rows import shared_index
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array, as_choice, as_positive, axis_names
from etafree.foundation.linalg import least_squares, transport
from etafree.losses import Huber, LinearLoss, ResidualLoss, Squared
from etafree.losses.base import name_in_words
from etafree.losses.residual import mad_scale
from etafree.totals.base import ClusterBlock, GeneralLoss
from etafree.totals.tuples import (
    HESSIANS,
    PER_UNIT,
    Kernel,
    KernelFunction,
    KernelLoss,
    RowSums,
    TupleTotal,
    Units,
    checked_units,
    majorized_hessian,
    share,
)

if TYPE_CHECKING:
    from jax import Array as JaxArray

#: Units per side of a tile of pairs, and units from which sorting beats looking at every pair.
TILE, SORT_FROM = 256, 128
#: Numbers in the columns that are summed at a time.
COLUMNS = 1 << 19


class PairTotal(TupleTotal):
    """A loss summed over pairs of weighted units."""

    @property
    def order(self) -> int:
        return 2

    @abstractmethod
    def row_hessians(self, theta: Array, units: NDArray[np.intp]) -> Array:
        """Return these units' row sums of Hessians (b, p, p); all add up to twice the total's."""

    @abstractmethod
    def within(self, theta: Array, units: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return gradient (p,) and Hessian (p, p) of the pairs among some units."""

    def leaving(self, theta: Array, s: RowSums, members: list[Units]) -> tuple[Array, Array, Array]:
        w = np.ones(self.n) if self.weights is None else self.weights
        scores: Array = np.zeros((len(members), self.p))
        hessians, twice = np.zeros((2, len(members), self.p, self.p))
        units = np.concatenate(members)
        codes = np.repeat(np.arange(len(members)), [len(some) for some in members])
        np.add.at(scores, codes, s.scores[units])
        for k in range(0, len(units), max(1, HESSIANS // self.p**2)):
            block = slice(k, k + max(1, HESSIANS // self.p**2))
            each, weight = self.row_hessians(theta, units[block]), w[units[block], None, None]
            np.add.at(hessians, codes[block], each)
            if not self.frequency:
                shares = share(each, s.hessian, self.leaving_part(weight))
                np.add.at(twice, codes[block], weight * shares)
        for g, some in enumerate(members):
            if len(some) > 1 or self.copies:  # pairs inside a cluster leave once
                gradient, hessian = self.within(theta, some)
                scores[g] -= gradient
                hessians[g] -= hessian
        return scores, hessians, twice


def tiles(n: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of blocks of units, the second not before the first."""
    blocks = [slice(a, min(a + size, n)) for a in range(0, n, size)]
    for k, rows in enumerate(blocks):
        for columns in blocks[k:]:
            yield rows, columns


@dataclass(frozen=True, eq=False)
class DifferenceTotal(PairTotal):
    """Sum over pairs of a loss of r_i - r_j; X and y are in deviations from medians."""

    loss: _Differences
    X: Array
    y: Array
    weights: Array | None
    frequency: bool

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def p(self) -> int:
        return int(self.X.shape[1])

    @cached_property
    def column_norms(self) -> Array:
        """Euclidean norm of every column in deviations from its median."""
        return np.asarray(np.linalg.norm(self.X, axis=0))

    @cached_property
    def _kept(self) -> tuple[NDArray[np.intp] | slice, Array, Array, Array, float]:
        """Rows with weight, their X, y and weights, and what pairs of a unit with itself hold."""
        at_zero = float(self.loss.kernel.values(np.zeros(1), np.zeros(1))[0])
        if self.weights is None:
            return slice(None), self.X, self.y, np.ones(self.n), at_zero
        units = np.flatnonzero(self.weights)
        return units, self.X[units], self.y[units], self.weights[units], at_zero

    def _own(self, w: Array) -> Array:
        """Return the weight of a row's pairs with itself, which are no pairs of units."""
        return w if self.frequency else np.square(w)

    def row_sums(self, theta: Array, *, majorize: bool = False) -> RowSums:
        """Return all sums over pairs; for Huber's and the squared loss after sorting residuals."""
        units, X, y, w, at_zero = self._kept
        r, Z = y - X @ theta, w[:, None] * np.column_stack([np.ones(len(X)), X])
        window = _window(self.loss.kernel)
        if majorize or window is None or len(X) < SORT_FROM:
            rows, slope, bend = _by_tiles(self.loss.kernel, r, Z, majorize)
        else:
            rows, slope, bend = _by_sorting(*window, r, Z)
        pull = w * slope[:, 0]
        values, scores = np.zeros(self.n), np.zeros((self.n, self.p))
        values[units] = w * rows - at_zero * self._own(w)
        scores[units] = pull[:, None] * X - w[:, None] * slope[:, 1:]
        hessian = (X.T * (w * bend[:, 0])) @ X - Z[:, 1:].T @ bend[:, 1:]
        scale = np.linalg.norm(pull) * self.column_norms
        return RowSums(values, scores, pull @ X, 0.5 * (hessian + hessian.T), scale)

    def row_hessians(self, theta: Array, units: NDArray[np.intp]) -> Array:
        r"""Return these units' row sums of Hessians (b, p, p), from columns of products of X.

        .. math:: A_i = w_i\sum_j w_jc_{ij}(x_i-x_j)(x_i-x_j)^\top.
        """
        kept, X, y, w, _ = self._kept
        place = np.full(self.n, -1)
        place[kept] = np.arange(len(X))
        there = place[units] >= 0
        rows, r = place[units][there], y - X @ theta
        mass, mean = np.split(
            self._bends(r, w[:, None] * np.column_stack([np.ones(len(X)), X]), rows), [1], 1
        )
        left, right = np.tril_indices(self.p)
        second, step = np.empty((len(rows), len(left))), max(1, COLUMNS // len(X))
        for k in range(0, len(left), step):
            a, b = left[k : k + step], right[k : k + step]
            second[:, k : k + step] = self._bends(r, w[:, None] * X[:, a] * X[:, b], rows)
        cross = X[rows][:, :, None] * mean[:, None, :]
        own = mass[:, :, None] * X[rows][:, :, None] * X[rows][:, None, :]
        own -= cross + cross.transpose(0, 2, 1)
        own[:, left, right] += second
        own[:, right, left] += np.where(left == right, 0.0, second)
        hessians = np.zeros((len(units), self.p, self.p))
        hessians[there] = w[rows, None, None] * own
        return hessians

    def _bends(self, r: Array, Z: Array, rows: NDArray[np.intp]) -> Array:
        """Return sums over j of second derivatives times Z_j, for some rows only."""
        window = _window(self.loss.kernel)
        if window is not None and len(r) >= SORT_FROM:
            return _by_sorting(*window, r, Z)[2][rows]
        out = np.zeros((len(rows), Z.shape[1]))
        for a in range(0, len(rows), TILE):
            for b in range(0, len(r), TILE):
                u = r[b : b + TILE] - r[rows[a : a + TILE], None]
                out[a : a + TILE] += (
                    self.loss.kernel.second(u, np.zeros(u.shape[1])) @ Z[b : b + TILE]
                )
        return out

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield the shares of clusters; Hessians from another loss where this one's are too few."""
        blocks = super().cluster_blocks(theta, groups)
        if self.loss.smooth is None:
            yield from blocks
            return
        other = replace(self, loss=self.loss.smooth)
        sums = [total.row_sums(theta).hessian for total in (other, self)]
        turn = transport(sums[0], sums[1], "affine")  # takes the other Hessian to this one
        for block, wide in zip(blocks, other.cluster_blocks(theta, groups), strict=True):
            hessians, variances = (turn @ each @ turn.T for each in (wide.hessians, wide.variances))
            yield block._replace(hessians=hessians, variances=variances)

    def within(self, theta: Array, units: NDArray[np.intp]) -> tuple[Array, Array]:
        weights = None if self.weights is None else self.weights[units]
        s = replace(self, X=self.X[units], y=self.y[units], weights=weights).row_sums(theta)
        return s.gradient, s.hessian

    def totals(self, thetas: Array) -> Array:
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
    index, cell = np.arange(len(r)), np.floor(r / k)
    if not np.isfinite(k):  # every pair is inside, nothing is multiplied with k
        k, cell = 0.0, np.zeros(len(r))
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
        inside, first = mass[b] - mass[a], moment[b] - moment[a]
        slope += d[:, None] * inside - first
        bend += inside
        rows += 0.5 * (d * (d * inside[:, 0] - 2.0 * first[:, 0]) + square[b] - square[a])
    return rows, slope, bend


def _prefix(values: Array) -> Array:
    """Return sums of the first 0, 1, ..., n rows."""
    out = np.zeros((len(values) + 1, *values.shape[1:]))
    np.cumsum(values, axis=0, out=out[1:])
    return out


class _Differences(GeneralLoss):
    """A loss of the difference of two residuals; data are (X, y)."""

    convex: ClassVar[bool] = True
    row_advice: ClassVar[str] = PER_UNIT

    @property
    def kernel(self) -> LinearLoss:
        """The loss of a difference."""
        raise TypeError(f"{type(self).__name__} must define kernel")

    @property
    def smooth(self) -> _Differences | None:
        """A loss whose Hessians say what share a unit has, if a unit's own say too little."""
        return None

    def fitted(self, X: Array, y: Array, weights: Array | None) -> _Differences:
        """Return this loss with what it takes from the data filled in; X has an intercept."""
        return self

    def count(self, data: object) -> int:
        if not isinstance(data, tuple) or len(data) != 2:
            raise InputError("data", f"is a {type(data).__name__}", "pass a tuple (X, y)")
        return len(as_array(data[1], "y", ndim=1))

    def bind(
        self, data: Any, start: object, weights: Array | None, frequency: bool
    ) -> tuple[DifferenceTotal, Array, tuple[str, ...] | None]:
        """Return the total, a least-squares start and the names of X's columns."""
        if getattr(data[0], "ndim", 2) == 1:
            raise InputError("X", "is a vector but must have 2 dimensions", "pass X[:, None]")
        X, y = as_array(data[0], "X", ndim=2), as_array(data[1], "y", ndim=1)
        if X.shape[1] == 0 or len(X) != len(y):
            problem = f"has shape {X.shape} for {len(y)} responses"
            raise InputError("X", problem, "pass one row per response")
        shared_index(*data)
        names, w = axis_names(data[0]), checked_units(len(y), weights)
        rows = X[w > 0]
        constant = np.ptp(rows, axis=0) <= 1e-12 * np.abs(rows).max(axis=0)
        if constant.any():
            j = int(constant.argmax())
            problem = f"column {j if names is None else repr(names[j])} is constant"
            raise InputError("X", problem, "leave it out: an intercept drops out of differences")
        X = np.ascontiguousarray(X - np.median(rows, axis=0))  # for accuracy, whatever the outliers
        y = y - np.median(y[w > 0])
        full, root = np.column_stack([np.ones(len(X)), X]), np.sqrt(w)[:, None]
        first = least_squares(root * full, root[:, 0] * y)[1:]
        if start is not None:
            first = as_array(start, "start", shape=(X.shape[1],))
        total = DifferenceTotal(self.fitted(full, y, weights), X, y, weights, frequency)
        return total, first, names


@dataclass(frozen=True)
class PairwiseDifference(_Differences):
    r"""A loss of pairwise differences, :math:`h=\ell\{(y_i-y_j)-(x_i-x_j)^\top\theta\}`.

    An intercept drops out, so X must not contain one. With the squared loss the minimiser is
    ordinary least squares with an intercept, and the sandwich with HC0 is its HC0. Huber's and the
    squared loss take O(n log n) operations, others :math:`n^2/2`.

    Parameters
    ----------
    loss : LinearLoss
        Convex and a symmetric function of the residual: Squared, Huber, PseudoHuber and so on. With
        ``scale="mad"`` the scale is that of a difference, :math:`2^{1/2}` times the residuals'
        from a preliminary Huber regression with an intercept.

    Raises
    ------
    InputError
        `loss` is not convex, or no symmetric function of the residual.

    References
    ----------
    Honoré, B. E. and Powell, J. L. (1994). Pairwise difference estimators of censored and truncated
    regression models. J. Econometrics 64, 241-278.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 2.0, 6.0])
    >>> criterion = ef.Criterion(ef.PairwiseDifference(ef.losses.Squared()), data=(X, y))
    >>> ef.minimise(criterion).theta.round(8), criterion.size
    (array([2.5]), 3.0)
    """

    loss: LinearLoss

    def __post_init__(self) -> None:
        loss = self.loss
        if not isinstance(loss, LinearLoss):
            raise InputError("loss", f"is {loss!r}", "pass a loss such as ef.losses.Huber(1.345)")
        if not loss.convex:
            problem = f"is {loss!r}, not convex: over pairs it may have many minima"
            raise InputError("loss", problem, "use Huber or PseudoHuber")
        if isinstance(loss, ResidualLoss) and isinstance(loss.scale, str):
            loss = loss.with_scale(1.0)
        d, zero = np.array([0.3, 1.0, 2.5, 9.0]), np.zeros(4)
        with np.errstate(all="ignore"):
            here = loss.values(zero, d)
            same = [loss.values(zero, -d), loss.values(zero + 2.0, d + 2.0)]
        if not all(np.allclose(here, other, rtol=1e-9, atol=0) for other in same):
            problem = f"is {self.loss!r}, no symmetric function of the residual"
            raise InputError("loss", problem, "use Squared, Huber or PseudoHuber")

    @property
    def kernel(self) -> LinearLoss:
        return self.loss

    def fitted(self, X: Array, y: Array, weights: Array | None) -> PairwiseDifference:
        if isinstance(self.loss, ResidualLoss) and isinstance(self.loss.scale, str):
            scale = float(np.sqrt(2.0)) * mad_scale(self.loss, X, y, weights)
            return replace(self, loss=self.loss.with_scale(scale))
        return self

    def plug_ins(self) -> dict[str, float]:
        return self.loss.plug_ins()

    def describe(self) -> str:
        name = name_in_words(type(self.loss).__name__)
        return f"the expected {name} loss of the difference of two units"


@dataclass(frozen=True)
class Wilcoxon(_Differences):
    r"""Rank regression: :math:`h=|d|`, :math:`d=(y_i-y_j)-(x_i-x_j)^\top\theta`, rounded at zero.

    Inside the width w the absolute value is replaced by a parabola,

    .. math:: h = d^2/(2w)\ \text{ for } |d|\le w,\qquad h = |d|-w/2\ \text{ outside,}

    so the Hessian counts the pairs with :math:`|d|\le w`, as in Koul, Sievers and McKean (1987).
    With Jaeckel's dispersion :math:`D=\sum_i 12^{1/2}\{R_i/(n+1)-\tfrac12\}r_i` of Wilcoxon scores,
    :math:`\sum_{i<j}|r_i-r_j| = 3^{-1/2}(n+1)D`: the minimiser tends to his as w falls. Errors
    that are independent of X leave the target the same at every w. So small a width that no pairs
    are inside leaves the loss flat at its minimum, which is an error. Of one unit only few pairs
    are inside: its share of the Hessian, its leverage, is that of squared differences.

    Parameters
    ----------
    width : float or "mad"
        In units of the response. ``"mad"``: :math:`n^{-1/2}` times the scale of the residuals
        (median absolute residual over 0.6745) of a Huber regression with an intercept, from then
        on taken as known and recorded as a plug-in.

    Raises
    ------
    InputError
        `width` is neither a positive number nor ``"mad"``.

    References
    ----------
    Jaeckel, L. A. (1972). Estimating regression coefficients by minimizing the dispersion of the
    residuals. Ann. Math. Statist. 43, 1449-1458. Koul, H. L., Sievers, G. L. and McKean, J. (1987).
    An estimator of the scale parameter for the rank analysis of linear models under general score
    functions. Scand. J. Statist. 14, 131-141.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.arange(6.0)[:, None], np.array([0.0, 1.0, 2.1, 2.9, 4.0, 500.0])
    >>> ef.minimise(ef.Criterion(ef.Wilcoxon(0.5), data=(X, y))).theta.round(2)
    array([1.15])
    """

    width: float | str = "mad"
    estimated: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.width, str):
            as_choice(self.width, "width", ("mad",))
        else:
            object.__setattr__(self, "width", as_positive(self.width, "width"))

    @property
    def kernel(self) -> LinearLoss:
        if isinstance(self.width, str):
            raise InputError("width", "is 'mad' and has not been estimated", "use a Criterion")
        root = float(np.sqrt(self.width))  # Huber's loss with threshold w, over w
        return Huber(root, scale=root)

    @property
    def smooth(self) -> PairwiseDifference:
        """Squared differences: few of a unit's pairs lie within the width."""
        return PairwiseDifference(Squared())

    def fitted(self, X: Array, y: Array, weights: Array | None) -> Wilcoxon:
        if not isinstance(self.width, str):
            return self
        units = len(X) if weights is None else np.count_nonzero(weights)
        try:
            scale = mad_scale(Huber(), X, y, weights)
        except InputError:
            problem = "'mad' is zero: half of the residuals vanish"
            raise InputError("width", problem, "pass width= as a number") from None
        return replace(self, width=scale / float(np.sqrt(units)), estimated=True)

    def plug_ins(self) -> dict[str, float]:
        return {"width": float(self.width)} if self.estimated else {}

    def describe(self) -> str:
        return "the expected absolute difference of two units' residuals, rounded at zero"


#: Numbers that the derivatives of a tile of pairs, and the losses at many parameters, may take.
TILE_NUMBERS = 1 << 20


@dataclass(frozen=True, eq=False)
class PairLoss(KernelLoss):
    r"""A loss of your own over pairs, :math:`M(\theta)=\sum_{i<j}h(\theta,z_i,z_j)`.

    Gradients and Hessians come from JAX, in double precision whatever its global setting. The
    minimum is the one next to the criterion's `start`. An evaluation takes :math:`n^2/2` pairs.

    Parameters
    ----------
    h : callable
        ``h(theta, a, b)``: a number, in terms of ``jax.numpy``. `a` and `b` are rows of the data
        (a dict of columns gives dicts of numbers), `theta` has the structure of `start`. It must
        not change when `a` and `b` change places, which is checked on a few pairs.
    constants : bool
        As for `JaxLoss`: arrays that `h` closes over are no other rows.

    Raises
    ------
    InputError
        `h` is not callable. The criterion refuses one that is not symmetric or not finite.
    MissingExtraError
        JAX is not installed (raised by the criterion).

    Notes
    -----
    Data are columns: a DataFrame (its numeric columns), or a dict, tuple or any pytree of arrays
    with a row per *unit*. Rows that are pairs already (differences, say) cannot be told from units
    and give intervals that are far too short. Pass ``ef.Criterion(..., start=theta0)``.

    References
    ----------
    Hoeffding, W. (1948). A class of statistics with asymptotically normal distribution. Ann. Math.
    Statist. 19, 293-325.

    Examples
    --------
    >>> import etafree as ef
    >>> def h(theta, a, b):  # half the squared difference estimates the variance
    ...     return (theta - 0.5 * (a["y"] - b["y"]) ** 2) ** 2
    >>> data = {"y": np.array([1.0, 2.0, 4.0])}
    >>> ef.minimise(ef.Criterion(ef.PairLoss(h), data, start=1.0)).theta.round(8)
    array([2.33333333])
    """

    h: KernelFunction
    constants: bool = False
    order: ClassVar[int] = 2  # type: ignore[misc]  # of the class, not of the loss

    def bind(
        self, data: object, start: object, weights: Array | None, frequency: bool
    ) -> tuple[JaxPairTotal, Array, tuple[str, ...] | None]:
        """Return the total, the start as a vector and names made of its keys."""
        sums, n, first, names = self._checked(_TileSums, data, start, weights)
        return JaxPairTotal(self, sums, n, len(first), weights, frequency), first, names

    def describe(self) -> str:
        return f"the expected {getattr(self.h, '__name__', 'loss')!s} over pairs of units"


@dataclass(frozen=True, eq=False)
class JaxPairTotal(PairTotal):
    """Sum over pairs of a loss written in JAX."""

    loss: PairLoss
    sums: _TileSums
    units: int
    parameters: int
    weights: Array | None
    frequency: bool

    @property
    def n(self) -> int:
        return self.units

    @property
    def p(self) -> int:
        return self.parameters

    def _weighted_tiles(self, size: int) -> Iterator[tuple[slice, slice, Array]]:
        """Yield blocks of units and the weights of their pairs, zero for a unit with itself."""
        w = np.ones(self.n) if self.weights is None else self.weights
        for R, C in tiles(self.n, size):
            pairs = np.outer(w[R], w[C])
            if R == C:
                np.fill_diagonal(pairs, w[R] * (w[R] - 1.0) if self.frequency else 0.0)
            yield R, C, pairs

    def row_sums(self, theta: Array, *, majorize: bool = False) -> RowSums:
        """Return all sums over pairs; `majorize` turns negative eigenvalues of the Hessian."""
        n, p = self.n, self.p
        values, scores, scale = np.zeros(n), np.zeros((n, p)), np.zeros(p)
        hessian: Array = np.zeros((p, p))
        for R, C, pairs in self._weighted_tiles(self._side):
            share = 0.5 if R == C else 1.0
            tile = self.sums("tile", theta, R, C, pairs)
            values[R] += tile[0]
            scores[R] += tile[2]
            if R != C:
                values[C] += tile[1]
                scores[C] += tile[3]
            hessian += share * tile[4]
            scale += share * tile[5]
        hessian = majorized_hessian(hessian, majorize)
        return RowSums(values, scores, 0.5 * scores.sum(axis=0), hessian, scale)

    @property
    def _side(self) -> int:
        """Units per side of a tile whose derivatives fit."""
        return int(np.clip(np.sqrt(TILE_NUMBERS / (1 + self.p + self.p**2)), 16, 512))

    def _pairs(self, R: NDArray[np.intp], C: NDArray[np.intp]) -> Array:
        """Return the weights of pairs of units (r, c), zero for a unit with itself."""
        w = np.ones(self.n) if self.weights is None else self.weights
        pairs = np.outer(w[R], w[C])
        same = R[:, None] == C
        pairs[same] -= (np.outer(w[R], np.ones(len(C))) if self.frequency else pairs)[same]
        return pairs

    def row_hessians(self, theta: Array, units: NDArray[np.intp]) -> Array:
        hessians = np.zeros((len(units), self.p, self.p))
        for a in range(0, len(units), self._side):
            R = units[a : a + self._side]
            for b in range(0, self.n, self._side):
                C = np.arange(b, min(b + self._side, self.n))
                tile = self.sums("bends", theta, R, C, self._pairs(R, C))
                hessians[a : a + self._side] += tile[0]
        return 0.5 * (hessians + hessians.transpose(0, 2, 1))

    def within(self, theta: Array, units: NDArray[np.intp]) -> tuple[Array, Array]:
        gradient, hessian = np.zeros(self.p), np.zeros((self.p, self.p))
        for R, C in tiles(len(units), self._side):
            share = 0.5 if R == C else 1.0
            pairs = self._pairs(units[R], units[C])
            tile = self.sums("tile", theta, *_padded(units[R], units[C], pairs))
            gradient += share * tile[2].sum(axis=0)
            hessian += share * tile[4]
        return gradient, 0.5 * (hessian + hessian.T)

    def totals(self, thetas: Array) -> Array:
        side = min(self.n, 512)
        step = 1 << max(0, (TILE_NUMBERS // side**2).bit_length() - 1)

        def summed(bundle: Array) -> Array:
            total = np.zeros(len(bundle))
            for R, C, pairs in self._weighted_tiles(side):
                total += (0.5 if R == C else 1.0) * self.sums("total", bundle, R, C, pairs)[0]
            return total

        return pytrees.in_bundles(thetas, step, summed)


def _padded(
    R: NDArray[np.intp], C: NDArray[np.intp], pairs: Array
) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Return a tile with sides filled up to powers of two, so that few shapes are compiled."""
    more = [(0, (1 << (len(units) - 1).bit_length()) - len(units)) for units in (R, C)]
    return np.pad(R, more[0], "edge"), np.pad(C, more[1], "edge"), np.pad(pairs, more)


class _TileSums(Kernel):
    """Compiled sums of h and its derivatives over tiles of pairs."""

    def __init__(self, h: KernelFunction, template: object) -> None:
        super().__init__(h, template)
        import jax
        import jax.numpy as jnp

        one = self.one

        def over(function: Callable[..., object]) -> Callable[..., Any]:
            return jax.vmap(jax.vmap(function, (None, None, 0)), (None, 0, None))

        def weighted(array: JaxArray, pairs: JaxArray) -> JaxArray:
            """Multiply by weights; a pair without weight counts for nothing, even if it is NaN."""
            pairs = pairs.reshape(pairs.shape + (1,) * (array.ndim - 2))
            return jnp.where(pairs == 0, 0.0, pairs * array)

        def tile(theta: JaxArray, a: object, b: object, pairs: JaxArray) -> tuple[JaxArray, ...]:
            """Return row and column sums of h and its gradient, Hessian, size of the gradient."""
            value, slope = over(jax.value_and_grad(one))(theta, a, b)
            value, slope = weighted(value, pairs), weighted(slope, pairs)
            bend = weighted(over(jax.hessian(one))(theta, a, b), pairs).sum((0, 1))
            size = jnp.abs(slope).sum((0, 1))
            return value.sum(1), value.sum(0), slope.sum(1), slope.sum(0), bend, size

        def bends(theta: JaxArray, a: object, b: object, pairs: JaxArray) -> tuple[JaxArray]:
            return (weighted(over(jax.hessian(one))(theta, a, b), pairs).sum(1),)

        def total(theta: JaxArray, a: object, b: object, pairs: JaxArray) -> tuple[JaxArray]:
            return (weighted(over(one)(theta, a, b), pairs).sum(),)

        totals = jax.jit(jax.vmap(total, (0, None, None, None)))
        self.compiled = {"tile": jax.jit(tile), "bends": jax.jit(bends), "total": totals}

    def __call__(self, name: str, theta: Array, R: object, C: object, pairs: Array) -> list[Array]:
        """Return `tile`, `bends` or the `total` at many parameters of weighted pairs of units."""
        with double_precision():
            sums = self.compiled[name](theta, self.rows(R), self.rows(C), pairs)
            return [np.asarray(array) for array in sums]

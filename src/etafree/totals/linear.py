r"""The total of a loss over a linear predictor.

:math:`M(\theta)=\sum_i w_i\,\ell(x_i^\top\theta+o_i, y_i)` with its derivatives.

Everything runs over blocks of rows that stay in cache, so the :math:`n\times p` matrix of scores
never exists unless it is asked for. Derivatives are sums over chunks of rows whose bounds depend on
the shape of X alone; a chunk's own sums are one call of compiled code where the data are large and
the loss has a kernel (`etafree.totals.sweep`), and a loop over blocks otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.foundation.arguments import Array
from etafree.foundation.threads import in_threads, sum_in_threads
from etafree.losses import KinkedLoss, LinearLoss, ResidualLoss
from etafree.losses.base import Kernel
from etafree.losses.residual import Huber, mad_fit
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives, GroupSums, Total
from etafree.totals.nuisance import Nuisance, ResidualScale

#: Numbers per block: half a megabyte, so that a block is read from memory once.
BLOCK = 1 << 16
#: Numbers per chunk, whose sums are made on their own and then added in order.
CHUNK = 1 << 18
#: From this many numbers on, loading compiled code pays for itself.
COMPILE_FROM = 2_000_000
#: Up to this many columns compiled moments are faster than a matrix product.
WIDE = 48
#: Rows, and rows times parameter values, that `totals` takes at a time: what fits the inner cache.
TOTALS_ROWS, TOTALS_NUMBERS = 1 << 10, 1 << 14
#: Rows and parameter values that one thread takes in `totals`.
THREAD_ROWS, THREAD_POINTS = 1 << 14, 1 << 9
#: Numbers in the rows that one thread takes in `fold`.
FOLDED = 1 << 18
#: Gauss-Hermite nodes for expectations under a normal predictor.
NODES = 16


def row_blocks(rows: int, columns: int, least: int = 1) -> Iterator[slice]:
    """Yield slices that cut `rows` into blocks of about `BLOCK` numbers, or of `least` rows.

    Examples
    --------
    >>> [b.stop for b in row_blocks(5, BLOCK)]
    [1, 2, 3, 4, 5]
    """
    return cut(slice(0, rows), max(least, BLOCK // max(1, columns)))


def chunks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices that cut `rows` into chunks of about `CHUNK` numbers."""
    return cut(slice(0, rows), max(1, CHUNK // max(1, columns)))


def cut(rows: slice, step: int) -> Iterator[slice]:
    """Yield slices that cut a slice into pieces of so many rows, whatever is left in the last."""
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))


def add_moments(
    gradient: Array, hessian: Array, rows: Array, slope: Array, curvature: Array, compiled: bool
) -> None:
    """Add ``slope @ rows`` to `gradient` and ``rows' diag(curvature) rows`` to `hessian`.

    The lower triangle is what counts: `symmetric` completes it.
    """
    p = rows.shape[1]
    if compiled and p <= WIDE:
        from etafree.totals.sweep import moments

        even = _even(p)
        moments(*even, _plain(rows), _plain(slope), _plain(curvature))
        gradient += even[0][:p]
        hessian += even[1][:p, :p]
        return
    gradient += slope @ rows
    if np.min(curvature) >= 0.0:  # half of the products
        root = rows * np.sqrt(curvature)[:, None]
        hessian += root.T @ root
    else:
        hessian += (rows.T * curvature) @ rows


def _even(p: int, curved: bool = True) -> tuple[Array, Array]:
    """Return a gradient and a Hessian, none if not `curved`, of zeros, their size even."""
    size = p + p % 2
    return np.zeros(size), np.zeros((size, size) if curved else (0, 0))


def _plain(array: Array | None) -> Array:
    """Return an array as compiled code reads it, of length zero for none."""
    return np.empty(0) if array is None else np.require(array, requirements=["C", "A"])


def symmetric(hessian: Array) -> Array:
    """Return the symmetric matrix with this lower triangle."""
    full: Array = hessian.copy()
    np.copyto(full, hessian.T, where=_above(len(hessian)))
    return full


@lru_cache(maxsize=4)
def _above(p: int) -> NDArray[np.bool_]:
    """Return where the entries above the diagonal of a (p, p) matrix are."""
    return ~np.tri(p, dtype=bool)


def weighted(values: Array, weights: Array) -> Array:
    """Return values times weights; rows with zero weight are ignored, even if infinite."""
    with np.errstate(invalid="ignore"):
        product: Array = values * weights
    product[weights == 0] = 0.0
    return product


def outer_sums(X: Array, curvature: Array, starts: NDArray[np.intp]) -> Array:
    """Return the sums of curvature x x' over consecutive rows, (g, p, p)."""
    if len(starts) == 2:  # one large cluster: no outer products
        return ((X.T * curvature) @ X)[None]
    outer = (curvature[:, None] * X)[:, :, None] * X[:, None, :]
    sums: Array = np.add.reduceat(outer, starts[:-1], axis=0)
    return sums


def add_group_sums(
    out: Array, codes: NDArray[np.intp], factor: Array, rows: Array, compiled: bool
) -> None:
    """Add ``factor[i] * rows[i]`` to ``out[codes[i]]`` for every row."""
    if compiled:
        from etafree.totals.sweep import scatter

        scatter(out, codes, _plain(factor), _plain(rows))
        return
    if len(out) <= 4 * len(codes):  # cheaper than a sort
        for j, column in enumerate(rows.T):
            out[:, j] += np.bincount(codes, factor * column, len(out))
        return
    order = np.argsort(codes, kind="stable")  # next to nothing when they are sorted
    ordered = codes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    out[ordered[starts]] += np.add.reduceat(factor[order, None] * rows[order], starts, axis=0)


class RowSums(NamedTuple):
    """Sums over rows: (loss, squared slope), gradient (p,), the Hessian's lower triangle (p, p)."""

    scalars: Array
    gradient: Array
    hessian: Array

    @classmethod
    def zeros(cls, p: int) -> RowSums:
        """Return what sums start from."""
        return cls(np.zeros(2), np.zeros(p), np.zeros((p, p)))


class RankOneBlock(NamedTuple):
    """Rows whose scores are ``slope * rows`` and whose Hessians are ``curvature * rows rows'``."""

    first: int
    rows: Array
    slope: Array
    curvature: Array
    weights: Array


class PredictorTotal(Total):
    """A total over a linear predictor, its rows in memory or read in parts."""

    traits: ClassVar[frozenset[str]] = frozenset({"rows", "leverage", "linear"})

    @property
    @abstractmethod
    def trials(self) -> bool:
        """Whether responses come with a number of trials."""

    @abstractmethod
    def with_loss(self, loss: LinearLoss) -> PredictorTotal:
        """Return the total of another loss over the same rows."""

    @abstractmethod
    def fold(
        self, step: Callable[..., None], *out: Any, groups: Groups | None = None
    ) -> tuple[Any, ...]:
        """Call ``step(part, *out)``, which adds to `out`, for every part; it may ask for codes."""

    @abstractmethod
    def least_squares(self) -> tuple[Array, Array]:
        """Return the Gram matrix X'WX and X'W(start - offset) of a least-squares start."""

    @abstractmethod
    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Return the gradient and Hessian expected under a normal parameter."""

    @abstractmethod
    def take(self, rows: NDArray[np.intp]) -> LinearTotal:
        """Return the total of some rows, by their numbers."""

    @abstractmethod
    def moments(self, theta: Array, majorize: bool) -> tuple[Any, Array, Array, Any]:
        """Return value, gradient, lower triangle of the Hessian, and sum of squared slopes."""

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian in one pass over the rows.

        `majorize` replaces the second derivative by the loss's majorizer.
        """
        value, gradient, hessian, slope_square = self.moments(theta, majorize)
        scale = np.sqrt(slope_square) * self.column_norms
        return Derivatives(float(value), gradient, symmetric(hessian), scale)


@dataclass(frozen=True, eq=False)
class LinearTotal(PredictorTotal):
    """Sum of a `LinearLoss` over weighted observations, with its derivatives.

    Attributes
    ----------
    loss : LinearLoss
    X : (n, p) array
    y : (n,) array, or (n, 2) with trials in the second column
    offset : (n,) array or None
    weights : (n,) array or None
        None means one each.
    frequency : bool
        Whether a weight counts copies of a row (True) or represents other units (False).
    first : int
        Number of the first row, if this is a part of a larger total.
    nuisance : tuple of Nuisance
        What was estimated from these very rows; under other weights it is taken as known.
    """

    traits: ClassVar[frozenset[str]] = PredictorTotal.traits | {"memory"}

    loss: LinearLoss
    X: Array
    y: Array
    offset: Array | None = None
    weights: Array | None = None
    frequency: bool = True
    first: int = 0
    nuisance: tuple[Nuisance, ...] = ()

    @cached_property
    def n(self) -> int:
        """Number of rows."""
        return len(self.X)

    @cached_property
    def p(self) -> int:
        """Number of parameters."""
        return int(self.X.shape[1])

    def reweighted(self, weights: Array | None, frequency: bool) -> LinearTotal:
        """Return the same total under other weights."""
        return replace(self, weights=weights, frequency=frequency, nuisance=())

    @property
    def trials(self) -> bool:
        """Whether responses come with a number of trials."""
        return self.y.ndim == 2

    def fold(
        self, step: Callable[..., None], *out: Any, groups: Groups | None = None
    ) -> tuple[Any, ...]:
        """Call ``step(part, *out)`` for parts of many rows, in threads; `out` is zero."""
        dear = 4 * sum(getattr(each, "size", 0) for each in out) > FOLDED  # to copy
        if dear or self.n * self.p <= FOLDED:
            step(self, *out)
            return out

        def work(rows: slice) -> tuple[Any, ...]:
            sums = deepcopy(out)
            step(self.part(rows), *sums)
            return sums

        spans = cut(slice(0, self.n), max(1, FOLDED // self.p))
        return sum_in_threads(work, spans, self._numbers)

    def part(self, rows: slice) -> LinearTotal:
        """Return the total of consecutive rows, which remember their numbers."""
        offset, weights = (None if v is None else v[rows] for v in (self.offset, self.weights))
        first = self.first + rows.start
        of_rows = self.X[rows], self.y[rows], offset, weights
        return LinearTotal(self.loss, *of_rows, self.frequency, first)

    def codes(self, groups: Groups) -> NDArray[np.intp]:
        """Return the group of every row."""
        return groups.codes[self.first : self.first + self.n]

    def take(self, rows: NDArray[np.intp]) -> LinearTotal:
        """Return the total of some rows, by their numbers."""
        offset, weights = (None if v is None else v[rows] for v in (self.offset, self.weights))
        X, y = self.X[rows], self.y[rows]
        return replace(self, X=X, y=y, offset=offset, weights=weights, nuisance=())

    def with_loss(self, loss: LinearLoss) -> LinearTotal:
        """Return the total of another loss over the same rows."""
        kept = tuple(each for each in self.nuisance if not each.of_loss)
        return replace(self, loss=loss, nuisance=kept).fitted()

    def fitted(self) -> LinearTotal:
        """Return the total with its response checked and a plug-in scale filled in."""
        loss = self.loss
        loss.check(self.y)
        if isinstance(loss, ResidualLoss) and isinstance(loss.scale, str):
            moved = self.y if self.offset is None else self.y - self.offset
            scale, theta, tuning = mad_fit(loss, self.X, moved, self.weights)
            pilot = replace(self, loss=Huber(tuning, scale=scale), nuisance=())
            estimate = ResidualScale(scale, pilot, theta)
            nuisance = (*self.nuisance, estimate)
            return replace(self, loss=loss.with_scale(scale), nuisance=nuisance)
        if isinstance(loss, KinkedLoss):
            from etafree.totals.kinked import KinkedTotal  # which is a linear one

            return KinkedTotal(loss, *self.arrays, nuisance=self.nuisance).fitted()
        return self

    @property
    def arrays(self) -> tuple[Array, Array, Array | None, Array | None, bool, int]:
        """What every loss over these rows has in common."""
        return self.X, self.y, self.offset, self.weights, self.frequency, self.first

    def _weights(self, rows: slice | NDArray[np.intp]) -> Array:
        if self.weights is not None:
            return self.weights[rows]
        return np.ones(rows.stop - rows.start if isinstance(rows, slice) else len(rows))

    def _predictor(self, rows: slice | NDArray[np.intp], theta: Array) -> Array:
        u: Array = self.X[rows] @ theta
        if self.offset is not None:
            u += self.offset[rows]
        return u

    def _slopes(self, rows: slice | NDArray[np.intp], u: Array, theta: Array) -> Array:
        """Return the loss's derivative in the predictor `u` of some rows."""
        return self.loss.first(u, self.y[rows])

    def predictor(self, theta: Array) -> Array:
        """Return the linear predictor of every row."""
        return self._predictor(slice(0, self.n), theta)

    def values(self, theta: Array) -> Array:
        """Return each observation's weighted loss (n,); they add up to the total."""
        value = self.loss.values(self.predictor(theta), self.y)
        return value if self.weights is None else weighted(value, self.weights)

    def scores(self, theta: Array) -> Array:
        """Return each observation's weighted gradient (n, p); they add up to the total's."""
        slope = self._slopes(slice(0, self.n), self.predictor(theta), theta)
        if self.weights is not None:
            slope = weighted(slope, self.weights)
        return slope[:, None] * self.X

    def moments(self, theta: Array, majorize: bool) -> tuple[float, Array, Array, float]:
        """Return value, gradient, lower triangle of the Hessian, and sum of squared slopes."""
        known = self.loss.quadratic and "_start" in vars(self)

        def work(rows: slice) -> RowSums:
            return self.row_sums(rows, theta, majorize=majorize, curved=not known)

        numbers = self.n * self.p
        if numbers <= CHUNK:
            scalars, gradient, hessian = work(slice(0, self.n))
        else:
            scalars, gradient, hessian = sum_in_threads(work, chunks(self.n, self.p), numbers)
        hessian = self._start[0] if known else hessian
        return float(scalars[0]), gradient, hessian, float(scalars[1])

    def row_sums(
        self,
        rows: slice,
        theta: Array,
        *,
        majorize: bool = False,
        curved: bool = True,
        codes: NDArray[np.intp] | None = None,
        scores: Array | None = None,
    ) -> RowSums:
        """Return the sums over consecutive rows, the Hessian's where it is asked for.

        Where rows have `codes` (m,) of groups, their scores are added to those of the groups,
        `scores` (G, p).
        """
        kernel, compiled = None, self._compiled
        if compiled and not majorize and self.p <= WIDE and self.y.ndim == 1:
            kernel = self.loss.compiled()
        if kernel is not None:
            return self._swept(kernel, rows, theta, curved, codes, scores)
        curve = self.loss.majorizer if majorize else self.loss.second
        scalars, gradient, hessian = sums = RowSums.zeros(self.p)
        for here in cut(rows, max(self.p if curved else 1, BLOCK // self.p)):
            X, u, y = self.X[here], self._predictor(here, theta), self.y[here]
            slope, loss = self._slopes(here, u, theta), self.loss.values(u, y)
            curvature = curve(u, y) if curved else None
            if self.weights is not None:
                w = self.weights[here]
                loss, slope = weighted(loss, w), weighted(slope, w)
                curvature = None if curvature is None else weighted(curvature, w)
            scalars += loss.sum(), slope @ slope
            if curvature is None:
                gradient += slope @ X
            else:
                add_moments(gradient, hessian, X, slope, curvature, compiled)
            if codes is not None and scores is not None:
                add_group_sums(
                    scores,
                    codes[here.start - rows.start : here.stop - rows.start],
                    slope,
                    X,
                    self._compiled,
                )
        return sums

    def _swept(
        self,
        kernel: Kernel,
        rows: slice,
        theta: Array,
        curved: bool,
        codes: NDArray[np.intp] | None,
        scores: Array | None,
    ) -> RowSums:
        """Return the same by compiled code, in one pass."""
        from etafree.totals.sweep import sweep

        (terms, numbers), p = kernel, self.p
        scalars, (gradient, hessian) = np.zeros(2), _even(p, curved)
        point = np.append(theta, np.zeros(len(gradient) - p))
        offset, weights = (
            _plain(None if v is None else v[rows]) for v in (self.offset, self.weights)
        )
        groups = np.empty(0, np.intp) if codes is None else codes
        sweep(
            *(terms, np.array(numbers), _plain(self.X[rows]), _plain(self.y[rows])),
            *(offset, weights, point, scalars, gradient, hessian, groups),
            np.empty((0, p)) if scores is None else scores,
        )
        whole = hessian[:p, :p] if curved else np.zeros((p, p))
        return RowSums(scalars, gradient[:p], whole)

    @property
    def _numbers(self) -> int:
        """Numbers in the rows so far, which say whether compiled code and threads pay."""
        return (self.first + self.n) * self.p

    @property
    def _compiled(self) -> bool:
        return self._numbers >= COMPILE_FROM

    @property
    def column_norms(self) -> Array:
        """Euclidean norm of every column of X, computed once."""
        cached: Array | None = self.__dict__.get("_column_norms")
        if cached is None:
            square = np.zeros(self.p)
            if self.weights is None and "_start" in vars(self):
                return np.sqrt(np.diagonal(self._start[0]))
            blocks = row_blocks(self.n, self.p)
            squares = in_threads(lambda rows: _squares(self.X[rows]), blocks, self._numbers)
            cached = np.sqrt(sum(squares, square))
            self.__dict__["_column_norms"] = cached
        return cached

    def least_squares(self) -> tuple[Array, Array]:
        """Return the Gram matrix X'WX and X'W(start - offset) of a least-squares start."""
        return self._start

    @cached_property
    def _start(self) -> tuple[Array, Array]:
        step = max(self.p, BLOCK // max(1, self.p))

        def over(span: slice) -> tuple[Array, Array]:
            gram, moment = np.zeros((self.p, self.p)), np.zeros(self.p)
            for rows in cut(span, step):
                X, w = self.X[rows], self._weights(rows)
                guess = self.loss.start(self.y[rows])
                if self.offset is not None:
                    guess = guess - self.offset[rows]
                slope = guess if self.weights is None else w * guess
                add_moments(moment, gram, X, slope, w, self._compiled)
            return gram, moment

        gram, moment = sum_in_threads(over, chunks(self.n, self.p), self._numbers)
        return symmetric(gram), moment

    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,)."""
        out, points = np.zeros(len(thetas)), list(cut(slice(0, len(thetas)), THREAD_POINTS))
        tasks = [(rows, some) for rows in cut(slice(0, self.n), THREAD_ROWS) for some in points]

        def work(task: tuple[slice, slice]) -> Array:
            rows, some = task
            return self._totals(rows, thetas[some])

        for (_, some), sums in zip(tasks, in_threads(work, tasks, self._numbers), strict=True):
            out[some] += sums
        return out

    def _totals(self, span: slice, thetas: Array) -> Array:
        """Return what `totals` does, over a span of the rows."""
        out = np.zeros(len(thetas))
        for rows in cut(span, TOTALS_ROWS):
            X, y = self.X[rows].T, self.y[rows]
            for points in cut(slice(0, len(thetas)), max(1, TOTALS_NUMBERS // len(y))):
                u = thetas[points] * X if self.p == 1 else thetas[points] @ X
                if self.offset is not None:
                    u += self.offset[rows]
                weights = None if self.weights is None else self.weights[rows]
                out[points] += self.loss.sums(u, y, weights)
        return out

    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        r"""Return :math:`E\nabla M` and :math:`E\nabla^2 M` for a normal parameter.

        The predictor of a row is normal, so both are one-dimensional Gauss-Hermite sums; the
        second uses Stein's identity :math:`E\ell''(u+sZ) = E\{\ell'(u+sZ)Z\}/s`, which needs no
        second derivative and so does not mind a kink.
        """
        nodes, mass = _normal_nodes()
        gradient, hessian = np.zeros(self.p), np.zeros((self.p, self.p))
        for rows in row_blocks(self.n, max(self.p, NODES)):
            X, y = self.X[rows], self.y[rows]
            sd = np.sqrt(np.maximum(np.einsum("ij,ij->i", X @ covariance, X), 1e-300))
            slopes = self.loss.first(self._predictor(rows, mean) + nodes[:, None] * sd, y)
            w = self._weights(rows)
            gradient += (w * (mass @ slopes)) @ X
            hessian += (X.T * (w * ((mass * nodes) @ slopes) / sd)) @ X
        return gradient, 0.5 * (hessian + hessian.T)

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and every cluster's score sum in one pass over the rows."""
        totals = ClusterTotals.zeros(len(groups), self.p)
        self.add_cluster_totals(theta, groups.codes, totals)
        weights = groups.weights(self.weights)
        return totals._replace(hessian=symmetric(totals.hessian), weights=weights)

    def add_cluster_totals(
        self, theta: Array, codes: NDArray[np.intp], out: ClusterTotals, *, curved: bool = True
    ) -> None:
        """Add what `cluster_totals` returns, the lower triangle of its Hessian and no weights."""
        spans = list(chunks(self.n, self.p))
        narrow = len(spans) > 1 and all(_is_narrow(codes[rows]) for rows in spans)

        def over(rows: slice) -> tuple[int, Array, RowSums]:
            """Return sums over rows, and the scores of the groups from the first that they have."""
            own, first, scores = codes[rows], 0, out.sums
            if narrow:
                first = int(own.min())
                own, scores = own - first, np.zeros((int(own.max()) + 1 - first, self.p))
            return (
                first,
                scores,
                self.row_sums(rows, theta, curved=curved, codes=own, scores=scores),
            )

        # groups that are anywhere have their scores added to row by row, in this thread
        parts = in_threads(over, spans, self._numbers) if narrow else map(over, spans)
        for first, scores, sums in parts:
            if narrow:
                out.sums[first : first + len(scores)] += scores
            np.add(out.gradient, sums.gradient, out=out.gradient)
            np.add(out.hessian, sums.hessian, out=out.hessian)

    def group_sums(self, theta: Array, groups: Groups) -> GroupSums:
        """Return every group's score sum and weight, without a Hessian."""
        totals = ClusterTotals.zeros(len(groups), self.p)
        self.add_cluster_totals(theta, groups.codes, totals, curved=False)
        return GroupSums(totals.sums, groups.weights(self.weights))

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters, rows gathered cluster by cluster."""
        order, starts = groups.order()
        per_block = max(1, 4 * (1 << 16) // self.p**2)

        def work(clusters: slice) -> ClusterBlock:
            begins = starts[clusters.start : clusters.stop + 1]
            span = slice(int(begins[0]), int(begins[-1]))
            rows = span if order is None else order[span]
            return self._cluster_block(theta, rows, clusters.start, begins - span.start)

        yield from in_threads(work, _cluster_slices(starts, per_block), self._numbers)

    def _cluster_block(
        self, theta: Array, rows: slice | NDArray[np.intp], first: int, starts: NDArray[np.intp]
    ) -> ClusterBlock:
        X, y, w, u = self.X[rows], self.y[rows], self._weights(rows), self._predictor(rows, theta)
        slope, curvature = self._slopes(rows, u, theta), self.loss.second(u, y)
        slope, curvature = weighted(slope, w), weighted(curvature, w)
        hessians = outer_sums(X, curvature, starts)
        return ClusterBlock(
            first,
            np.add.reduceat(slope[:, None] * X, starts[:-1], axis=0),
            hessians,
            np.add.reduceat(w, starts[:-1]),
            self._working_variances(X, curvature, w, starts, hessians),
        )

    def _working_variances(
        self, X: Array, curvature: Array, w: Array, starts: NDArray[np.intp], hessians: Array
    ) -> Array:
        if self.frequency and self.loss.convex:
            return hessians
        return outer_sums(X, np.abs(curvature) * (1.0 if self.frequency else w), starts)

    def row_terms(self, theta: Array) -> Iterator[RankOneBlock]:
        """Yield slopes and curvatures of rows in blocks, unweighted, zero where weights are."""
        for rows in row_blocks(self.n, self.p):
            u, y, w = self._predictor(rows, theta), self.y[rows], self._weights(rows)
            slope, curvature = self._slopes(rows, u, theta), self.loss.second(u, y)
            if self.weights is not None:
                slope[w == 0], curvature[w == 0] = 0.0, 0.0
            yield RankOneBlock(self.first + rows.start, self.X[rows], slope, curvature, w)


def _cluster_slices(starts: NDArray[np.intp], rows: int) -> Iterator[slice]:
    """Yield slices of clusters that have at most so many rows, or of one that has more."""
    first, count = 0, len(starts) - 1
    while first < count:
        last = int(np.searchsorted(starts, starts[first] + rows, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield slice(first, last)
        first = last


def _is_narrow(codes: NDArray[np.intp]) -> bool:
    """Return whether rows seem to have groups that are few and near each other: some are asked."""
    some = codes[:: max(1, len(codes) // 256)]
    return bool(4 * (int(some.max()) - int(some.min())) <= len(codes))


def _squares(X: Array) -> Array:
    """Return the sums of squares (p,) of columns."""
    squares: Array = np.einsum("ij,ij->j", X, X)
    return squares


@cache
def _normal_nodes() -> tuple[Array, Array]:
    """Return Gauss-Hermite nodes and masses of the standard normal."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, mass / mass.sum()


def is_linear(total: Total) -> TypeGuard[PredictorTotal]:
    """Return whether losses are functions of a linear predictor."""
    return "linear" in total.traits


def has_design(total: Total) -> TypeGuard[LinearTotal]:
    """Return whether there is a design matrix, all rows of it in memory."""
    return {"linear", "memory"} <= total.traits

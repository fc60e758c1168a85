r"""The total of a loss over a linear predictor whose rows are read in parts, pass after pass.

Every sum over the rows is the sum of what `LinearTotal` computes of each part; the parts live only
while they are worked on. Derivatives at points seen before are remembered: a pass costs more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.labels import Column, StreamedGroups, Tally, needs_rows
from etafree.linear import LinearTotal, PredictorTotal
from etafree.losses import LinearLoss, ResidualLoss
from etafree.parts import Source
from etafree.passes import Census, Part, Reader, add_start, count_labels, run_pass, take_census
from etafree.sums import Groups, symmetric
from etafree.totals import ClusterBlock, ClusterTotals, Derivatives
from etafree.validation import Array

__all__ = ["StreamedTotal"]

#: Points whose derivatives are remembered.
REMEMBERED = 64
#: Numbers in the Hessians of a block of clusters, and passes that all blocks may take.
BLOCK_NUMBERS, MOST_PASSES = 1 << 24, 10


@dataclass(frozen=True, eq=False)
class StreamedTotal(PredictorTotal):
    """Sum of a `LinearLoss` over weighted observations that are read in parts.

    Attributes
    ----------
    loss : LinearLoss
    source : Source
    reader : Reader
    census : Census
    known : dict
        Derivatives at points seen before.
    """

    loss: LinearLoss
    source: Source
    reader: Reader
    census: Census
    known: dict[Any, Any] = field(default_factory=dict, repr=False)
    weights: None = field(default=None, init=False)  # each part has its own

    @classmethod
    def of(
        cls, loss: LinearLoss, source: Source, reader: Reader, labels: Mapping[str, str]
    ) -> tuple[StreamedTotal, dict[str, StreamedGroups]]:
        """Return the total after its first pass, and the groups of columns by name."""
        _check_scale(loss)
        census, start, tallies = take_census(loss, source, reader, labels)
        reader = replace(reader, complete=census.rows == sum(census.lengths))
        total = cls(loss, source, reader, census, {"start": start})
        return total, {t.coder.name: total._groups(t) for t in tallies}

    def fold(
        self, step: Callable[..., None], *out: Any, groups: Groups | None = None
    ) -> tuple[Any, ...]:
        """Call ``step(part, *out)``, which adds to `out`, for the rows of every part in order."""
        return self._fold(step, out, groups.columns if isinstance(groups, StreamedGroups) else ())

    def _fold(
        self, step: Callable[..., None], out: tuple[Any, ...], columns: tuple[str, ...]
    ) -> tuple[Any, ...]:
        run = self.source, self.reader, self.loss
        used, _ = run_pass(*run, step, out, columns, self.census.lengths)
        if sum(used) != self.n:
            raise InputError("data", f"has {sum(used)} rows in this pass and had {self.n} in the "
                             "first", "it must not change while it is in use")  # fmt: skip
        return out

    def tally(self, tally: Tally) -> Tally:
        """Return the tally with all labels of the table, in one pass."""
        made: Tally = self._fold(count_labels, (tally,), tally.coder.columns)[0]
        return made

    def _groups(self, tally: Tally) -> StreamedGroups:
        coder = replace(tally.coder, labels=tally.settled()[0])
        return StreamedGroups(coder, *tally.settled(), self.tally)

    def groups(self, name: str, argument: str) -> StreamedGroups:
        """Return the groups that a column's labels make."""
        return self._groups(self.tally(Tally(Column(name, argument))))

    @property
    def n(self) -> int:
        """Number of rows in use."""
        return sum(self.census.lengths)

    @property
    def p(self) -> int:
        """Number of parameters."""
        return len(self.reader.recipe.names)

    @property
    def frequency(self) -> bool:  # type: ignore[override]
        """Whether a weight counts copies of a row."""
        return self.reader.frequency

    @property
    def trials(self) -> bool:
        """Whether responses come with a number of trials."""
        return self.reader.trials is not None

    @property
    def weight(self) -> float:
        """Sum of the weights."""
        return self.census.weight

    @property
    def count(self) -> float:
        """Number of observations: copies count under frequency weights, zero weights never do."""
        return self.weight if self.frequency else float(self.census.present)

    @property
    def copies(self) -> bool:
        """Whether weights repeat rows."""
        return self.census.copies

    @property
    def column_norms(self) -> Array:
        """Euclidean norm of every column of X."""
        return self.census.column_norms

    def with_loss(self, loss: LinearLoss) -> StreamedTotal:
        """Return the total of another loss over the same rows."""
        _check_scale(loss)
        other = replace(self, loss=loss, known={})
        if type(loss).check is not LinearLoss.check:
            other.fold(lambda part: loss.check(part.y))
        return other

    def take(self, rows: NDArray[np.intp]) -> LinearTotal:
        """Return the total of some rows, by their numbers."""
        many = len(rows)

        def pick(part: Part, X: Array, y: Array, offset: Array, weights: Array) -> None:
            here = (rows >= part.first) & (rows < part.first + part.n)
            some = part.take(rows[here] - part.first)
            X[here], y[here] = some.X, some.y
            offset[here] = 0.0 if some.offset is None else some.offset
            weights[here] = 1.0 if some.weights is None else some.weights

        shapes = (many, self.p), (many, 2) if self.trials else (many,), (many,), (many,)
        X, y, offset, weights = self.fold(pick, *map(np.zeros, shapes))
        return LinearTotal(self.loss, X, y, offset, weights, self.frequency)

    def least_squares(self) -> tuple[Array, Array]:
        """Return the Gram matrix X'WX and X'W(start - offset) of a least-squares start."""
        if "start" not in self.known:
            zeros = np.zeros((self.p, self.p)), np.zeros(self.p)
            self.known["start"] = self.fold(add_start, *zeros)
        gram, moment = self.known["start"]
        return gram, moment

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian in one pass, none at a point seen before."""
        key = (theta.tobytes(), majorize)
        if key not in self.known:
            if len(self.known) >= REMEMBERED:
                del self.known[next(iter(self.known))]
            self.known[key] = super().derivatives(theta, majorize=majorize)
        made: Derivatives = self.known[key]
        return made

    def moments(self, theta: Array, majorize: bool) -> tuple[Array, Array, Array, Array]:
        """Return value, gradient, lower triangle of the Hessian, and sum of squared slopes."""

        def add(part: Part, *out: Array) -> None:
            _add(out, part.moments(theta, majorize))

        zeros = np.zeros(1), np.zeros(self.p), np.zeros((self.p, self.p)), np.zeros(1)
        value, gradient, hessian, square = self.fold(add, *zeros)
        return value[0], gradient, hessian, square[0]

    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,)."""

        def add(part: Part, out: Array) -> None:
            out += part.totals(thetas)

        (out,) = self.fold(add, np.zeros(len(thetas)))
        made: Array = out
        return made

    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Return the gradient and Hessian expected under a normal parameter."""

        def add(part: Part, *out: Array) -> None:
            _add(out, part.expected_derivatives(mean, covariance))

        gradient, hessian = self.fold(add, np.zeros(self.p), np.zeros((self.p, self.p)))
        return gradient, hessian

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and every cluster's score sum in one pass."""

        def add(part: Part, *out: Array) -> None:
            codes = part.codes(groups)
            low, high = int(codes.min()), int(codes.max()) + 1
            codes = codes - low if low else codes
            here = ClusterTotals(out[0], out[1], out[2][low:high], out[3][low:high])
            part.add_cluster_totals(theta, codes, here)
            here.weights[:] += np.bincount(codes, part.weights, high - low)

        zeros = ClusterTotals.zeros(len(groups), self.p)
        made = ClusterTotals(*self.fold(add, *zeros, groups=groups))
        return made._replace(hessian=symmetric(made.hessian))

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters, a pass for each block."""
        twice = not (self.frequency and self.loss.convex)
        yield from self._blocks(theta, groups, twice, False)

    def unweighted_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield the same blocks of the rows that have weight, each counted once."""
        yield from self._blocks(theta, groups, False, True)

    def _blocks(
        self, theta: Array, groups: Groups, twice: bool, once: bool
    ) -> Iterator[ClusterBlock]:
        many, p = len(groups), self.p
        per_block = max(1, BLOCK_NUMBERS // p**2)
        if many > MOST_PASSES * per_block:
            raise InputError(
                "correction", f"needs the Hessians of {many} clusters, which takes more than "
                f"{MOST_PASSES} passes over the data", "use correction='CR1'",
            )  # fmt: skip
        for first in range(0, many, per_block):
            size = min(per_block, many - first)
            shapes = (size, p), (size, p, p), (size,), (size if twice else 0, p, p)
            step = _block_step(theta, groups, first, size, twice, once)
            scores, hessians, weights, variances = self.fold(
                step, *map(np.zeros, shapes), groups=groups
            )
            yield ClusterBlock(first, scores, hessians, weights, variances if twice else hessians)

    def reweighted(self, weights: Array | None, frequency: bool) -> StreamedTotal:
        """Refused: weights are a column of the table."""
        raise needs_rows("weights")

    def values(self, theta: Array) -> Array:
        """Refused: there is no vector with an entry per row."""
        raise needs_rows("criterion")

    def scores(self, theta: Array) -> Array:
        """Refused: the matrix of scores never exists."""
        raise needs_rows("criterion")

    @property
    def X(self) -> Array:
        """Refused: the design matrix never exists."""
        raise needs_rows("criterion")


def _check_scale(loss: LinearLoss) -> None:
    if isinstance(loss, ResidualLoss) and isinstance(loss.scale, str):
        raise InputError("scale", f"{loss.scale!r} needs all residuals at once, and the data are "
                         "read in parts", "pass a number, from a sample perhaps")  # fmt: skip


def _add(out: tuple[Array, ...], more: tuple[Any, ...]) -> None:
    for total, part in zip(out, more, strict=True):
        total += part


def _block_step(
    theta: Array, groups: Groups, first: int, size: int, twice: bool, once: bool
) -> Callable[..., None]:
    """Return what adds a part to the clusters from `first` on, `once` without its weights."""

    def add(part: Part, scores: Array, hessians: Array, weights: Array, variances: Array) -> None:
        codes = part.codes(groups) - first
        inside = np.flatnonzero((codes >= 0) & (codes < size))
        if len(inside) == 0:
            return
        found, local = np.unique(codes[inside], return_inverse=True)
        some = part if len(inside) == part.n else part.take(inside)
        if once and some.weights is not None:
            some = some.reweighted(np.sign(some.weights), True)
        for block in some.cluster_blocks(theta, Groups(local.reshape(-1), found)):
            here = found[block.first : block.first + len(block.scores)]
            scores[here] += block.scores
            hessians[here] += block.hessians
            weights[here] += block.weights
            if twice:
                variances[here] += block.variances

    return add

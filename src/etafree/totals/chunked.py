r"""The total of a loss over a linear predictor whose rows are read in parts, pass after pass.

Every sum over the rows is the sum of what `LinearTotal` computes of each part; the parts live only
while they are worked on. Derivatives at points seen before are remembered: a pass costs more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from etafree.data.formula import Recipe, check_kinds, formula_columns, looks_elsewhere, matrices
from etafree.data.groups import Groups
from etafree.data.labels import (
    Chunk,
    Codes,
    Column,
    Kept,
    StreamedGroups,
    Tally,
    as_frame,
    is_frame,
    needs_rows,
    numbers,
)
from etafree.data.rows import Rows, checked_weights
from etafree.data.sources import Source
from etafree.errors import InputError
from etafree.foundation.arguments import Array, check_finite
from etafree.foundation.threads import own_settings
from etafree.losses import KinkedLoss, LinearLoss, ResidualLoss
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives
from etafree.totals.linear import LinearTotal, PredictorTotal, symmetric

if TYPE_CHECKING:
    import pandas as pd

#: Complete rows that show what a formula makes of the columns, and levels a category may have.
SAMPLE, MOST_LEVELS = 500, 10_000
#: Rows of every part that show whether a formula looks at other rows.
WITNESSES = 8
#: Points whose derivatives are remembered.
REMEMBERED = 64
#: Numbers in the Hessians of a block of clusters, and passes that all blocks may take.
BLOCK_NUMBERS, MOST_PASSES = 1 << 24, 10
EMPTY = "data", "has no complete row for this formula", "check missing values"


@dataclass(frozen=True, eq=False)
class Part(LinearTotal):
    """Rows of one part, with the part itself for its labels."""

    chunk: Chunk = field(kw_only=True)
    kept: Kept = field(kw_only=True)

    def codes(self, groups: Groups) -> Codes:
        assert isinstance(groups, StreamedGroups)
        return groups.coder(self.chunk, self.kept)

    def count_labels(self, tally: Tally) -> None:
        """Add the part's labels to a tally."""
        tally.count(self.chunk, self.kept, self.weights)


@dataclass(frozen=True, eq=False)
class Reader:
    """How a part of the table becomes a total; weights, offset and trials are columns' names."""

    recipe: Recipe
    weights: str | None = None
    frequency: bool = True
    offset: str | None = None
    trials: str | None = None
    complete: bool = False  # no row is left out

    @property
    def columns(self) -> tuple[str, ...]:
        """What a part must have."""
        named = (self.weights, self.offset, self.trials)
        return (*self.recipe.columns, *(name for name in named if name is not None))

    def part(self, chunk: Chunk, loss: LinearLoss, first: int) -> Part:
        """Return the total of a part whose first row has this number."""
        X, y, kept = self.recipe.arrays(chunk, self.complete)

        def column(name: str | None, argument: str) -> Array | None:
            if name is None:
                return None
            values = numbers(chunk, name, argument)
            values = values if kept is None else values[kept]
            check_finite(values, argument)
            return values

        m = column(self.trials, "trials")
        y = y if m is None else np.column_stack([y, m])
        o, w = column(self.offset, "offset"), column(self.weights, "weights")
        return Part(loss, X, y, o, w, self.frequency, first, chunk=chunk, kept=kept)


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a piece of the table: `step` adds every part to what is in `start`."""

    reader: Reader
    loss: LinearLoss
    step: Callable[..., None]
    start: tuple[object, ...]  # a shape stands for an array of zeros, which need not travel
    firsts: Sequence[int]

    @own_settings
    def __call__(self, k: int, chunks: Iterator[Chunk]) -> PassSums:
        """Return what was added up over a piece."""
        out = tuple(np.zeros(s) if isinstance(s, tuple) else deepcopy(s) for s in self.start)
        begin = first = self.firsts[k] if self.firsts else 0
        seen = 0
        for chunk in filter(len, chunks):  # nothing, not even types, can be learnt from no rows
            part = self.reader.part(chunk, self.loss, first)
            seen += part.n if part.kept is None else len(chunk)
            first += part.n
            if part.n:
                self.step(part, *out)
        return PassSums(list(out), [first - begin], seen)


@dataclass(eq=False)
class PassSums:
    """What a pass added up over consecutive pieces, their rows in use, and all rows."""

    sums: list[Any]
    used: list[int]
    rows: int

    def __sizeof__(self) -> int:
        """Return the bytes of all that it holds, which tell Dask what a journey costs."""
        return sum(getattr(each, "nbytes", None) or sys.getsizeof(each) for each in self.sums)

    def __iadd__(self, later: PassSums) -> PassSums:
        for k, more in enumerate(later.sums):
            self.sums[k] += more  # in place, of arrays
        self.used += later.used
        self.rows += later.rows
        return self


def run_pass(
    source: Source,
    reader: Reader,
    loss: LinearLoss,
    step: Callable[..., None],
    out: tuple[Any, ...],
    columns: tuple[str, ...],
    lengths: tuple[int, ...] = (),
) -> tuple[tuple[int, ...], int]:
    """Add `step` of every part to `out`; return the rows in use in every piece, and all rows.

    `out` is zero: arrays, or objects that ``+=`` adds to in the order of the pieces.
    `columns` are needed besides the reader's, `lengths` are what an earlier pass returned.
    """
    needed = tuple(dict.fromkeys((*reader.columns, *columns)))
    firsts = np.cumsum((0, *lengths)).tolist() if lengths else ()
    start = tuple(o.shape if isinstance(o, np.ndarray) else deepcopy(o) for o in out)
    whole = source.sum(Pass(reader, loss, step, start, firsts), needed)
    _add(out, whole.sums)
    if lengths and sum(whole.used) != sum(lengths):
        problem = f"has {sum(whole.used)} rows in this pass and had {sum(lengths)} in the first"
        raise InputError("data", problem, "it must not change while it is in use")
    return tuple(whole.used), whole.rows


class Witnesses:
    """A few rows of every part with what the formula made of them there.

    A formula such as ``y ~ I(year - np.min(year))`` looks at other rows than its own, which the
    first rows of a sorted table do not show.
    """

    def __init__(self) -> None:
        self.frames: list[pd.DataFrame] = []
        self.designs: list[Array] = []

    def add(self, part: Part, columns: Sequence[str]) -> None:
        """Keep a few rows of a part."""
        rows = np.unique(np.linspace(0, part.n - 1, WITNESSES).astype(np.intp))
        places = rows if part.kept is None else part.kept[rows]
        chunk = part.chunk
        taken = chunk.iloc[places] if is_frame(chunk) else chunk.take(places)
        self.frames.append(as_frame(taken, columns))
        self.designs.append(np.column_stack([part.X[rows], part.y.reshape(part.n, -1)[rows, 0]]))

    def __iadd__(self, other: Witnesses) -> Witnesses:
        self.frames += other.frames
        self.designs += other.designs
        return self

    def check(self, recipe: Recipe) -> None:
        """Refuse a formula that makes something else of these rows when they are together."""
        import pandas as pd

        X, y, kept = recipe.arrays(pd.concat(self.frames, ignore_index=True))
        apart = np.concatenate(self.designs)
        if kept is not None or not np.allclose(np.column_stack([X, y]), apart, 1e-9, 0.0):
            raise looks_elsewhere("has something that")


class Census(NamedTuple):
    """Counts of the first pass: `rows` are all, `lengths` those in use in every piece."""

    rows: int
    lengths: tuple[int, ...]
    weight: float
    present: int
    copies: bool
    column_norms: Array


def find_recipe(source: Source, formula: str, context: Mapping[str, object] | None) -> Recipe:
    """Return what the formula makes of the table; a pass finds the levels of its categories."""
    import pandas as pd

    columns = formula_columns(formula, source.columns, context)
    frames: list[pd.DataFrame] = []
    kinds: dict[str, str] = {}
    for chunk in source.beginning(columns):
        frames.append(as_frame(chunk, columns).dropna().iloc[:SAMPLE])
        kinds = check_kinds(frames[-1], kinds)
        if sum(map(len, frames)) >= SAMPLE:
            break
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        raise InputError(*EMPTY)
    recipe = Recipe.of(formula, pd.concat(filled, ignore_index=True), context)
    keys = recipe.level_columns()
    if not keys:
        return recipe

    def levels(k: int, chunks: Iterator[Chunk]) -> pd.DataFrame | None:
        shown = None
        for frame in (as_frame(chunk, columns) for chunk in chunks if len(chunk)):
            check_kinds(frame, kinds)
            kept = matrices(formula, frame, context).rows.kept
            complete = frame if kept is None else frame.iloc[kept]
            shown = _showing_levels(pd.concat([shown, complete], ignore_index=True), keys)
        return shown

    every = pd.concat(list(source.map(levels, columns)), ignore_index=True)
    return Recipe.of(formula, _showing_levels(every, keys), context)


def _showing_levels(frame: pd.DataFrame, keys: Sequence[list[str]]) -> pd.DataFrame:
    """Return the first row of every level of categories, each made of some columns."""
    first = np.zeros(len(frame), dtype=bool)
    for key in keys:
        new = ~frame.duplicated(key).to_numpy()
        first |= new
        if np.count_nonzero(new) > MOST_LEVELS:
            problem = f"treats {key} as categories, with more than {MOST_LEVELS} levels"
            raise InputError("formula", problem, "group its values first")
    return frame[first]


@dataclass(frozen=True, eq=False)
class StreamedTotal(PredictorTotal):
    """Sum of a `LinearLoss` over weighted observations that are read in parts.

    `known` holds the derivatives at points seen before.
    """

    loss: LinearLoss
    source: Source
    reader: Reader
    census: Census
    known: dict[tuple[bytes, bool], Derivatives] = field(default_factory=dict, repr=False)
    weights: None = field(default=None, init=False)  # each part has its own

    @classmethod
    def of(
        cls, loss: LinearLoss, source: Source, reader: Reader, labels: Mapping[str, str]
    ) -> tuple[StreamedTotal, dict[str, StreamedGroups]]:
        """Make the first pass; return the total and the groups of columns by name.

        `labels` maps columns to the arguments they were given for.
        """
        _check_scale(loss)
        recipe, kind = reader.recipe, "frequency" if reader.frequency else "sampling"
        computed, p = recipe.plain is None, len(recipe.names)

        def add(part: Part, counts: Array, squares: Array, *rest: Any) -> None:
            gram, moment, witnesses, *tallies = rest
            loss.check(part.y)
            if part.weights is not None:  # one more, so that a part may be without weight
                every = np.append(part.weights, 1.0)
                checked_weights(Rows(len(every)), len(every), every, kind)
                copies = np.count_nonzero(~np.isin(part.weights, (0.0, 1.0)))
                counts += part.weights.sum(), np.count_nonzero(part.weights), copies
                squares += np.square(part.column_norms)
            _add((gram, moment), part.least_squares())
            if computed:
                witnesses.add(part, recipe.columns)
            for tally in tallies:
                part.count_labels(tally)

        columns = [Column(name, argument) for name, argument in labels.items()]
        tallies = [column.tally() for column in columns]
        counts, squares, gram, moment = np.zeros(3), np.zeros(p), np.zeros((p, p)), np.zeros(p)
        witnesses = Witnesses()
        out = counts, squares, gram, moment, witnesses, *tallies
        lengths, rows = run_pass(source, reader, loss, add, out, tuple(labels))
        if sum(lengths) == 0:
            raise InputError(*EMPTY)
        if computed:
            witnesses.check(recipe)
        if reader.weights is None:
            counts[:2], squares = sum(lengths), np.diagonal(gram)
        checked_weights(Rows(1), 1, counts[:1], "sampling")
        copies = reader.frequency and bool(counts[2])
        census = Census(rows, lengths, float(counts[0]), int(counts[1]), copies, np.sqrt(squares))
        total = cls(loss, source, replace(reader, complete=rows == sum(lengths)), census)
        vars(total)["_start"] = gram, moment
        return total, {c.name: total._groups(c, t) for c, t in zip(columns, tallies, strict=True)}

    def fold(
        self, step: Callable[..., None], *out: Any, groups: Groups | Tally | None = None
    ) -> tuple[Any, ...]:
        """Call ``step(part, *out)``, which adds to `out`, for the rows of every part in order."""
        columns = groups.columns if isinstance(groups, StreamedGroups | Tally) else ()
        run_pass(self.source, self.reader, self.loss, step, out, columns, self.census.lengths)
        return out

    def _sums(
        self, terms: Callable[[Part], tuple[Any, ...]], *shapes: int | tuple[int, ...]
    ) -> tuple[Array, ...]:
        """Return the sums over the parts of arrays of these shapes."""
        return self.fold(lambda part, *out: _add(out, terms(part)), *map(np.zeros, shapes))

    def tally(self, tally: Tally) -> Tally:
        """Return the tally with all labels of the table, in one pass."""
        self.fold(Part.count_labels, tally, groups=tally)
        return tally

    def _groups(self, column: Column, tally: Tally) -> StreamedGroups:
        counted = tally.settled()
        coder = replace(column, labels=counted[0])
        return StreamedGroups(coder, tally.columns, counted, self.tally)

    def groups(self, name: str, argument: str) -> StreamedGroups:
        """Return the groups that a column's labels make."""
        column = Column(name, argument)
        return self._groups(column, self.tally(column.tally()))

    @property
    def n(self) -> int:
        return sum(self.census.lengths)

    @property
    def p(self) -> int:
        return len(self.reader.recipe.names)

    @property
    def frequency(self) -> bool:  # type: ignore[override]
        return self.reader.frequency

    @property
    def trials(self) -> bool:
        return self.reader.trials is not None

    @property
    def weight(self) -> float:
        return self.census.weight

    @property
    def count(self) -> float:
        return self.weight if self.frequency else float(self.census.present)

    @property
    def copies(self) -> bool:
        return self.census.copies

    @property
    def column_norms(self) -> Array:
        return self.census.column_norms

    def with_loss(self, loss: LinearLoss) -> StreamedTotal:
        _check_scale(loss)
        other = replace(self, loss=loss, known={})
        if type(loss).check is not LinearLoss.check:
            other.fold(lambda part: loss.check(part.y))
        return other

    def take(self, rows: Codes) -> LinearTotal:
        many = len(rows)

        def pick(part: Part, X: Array, y: Array, offset: Array, weights: Array) -> None:
            here = (rows >= part.first) & (rows < part.first + part.n)
            taken = part.take(rows[here] - part.first)
            X[here], y[here] = taken.X, taken.y
            offset[here] = 0.0 if taken.offset is None else taken.offset
            weights[here] = 1.0 if taken.weights is None else taken.weights

        shapes = (many, self.p), (many, 2) if self.trials else (many,), (many,), (many,)
        X, y, offset, weights = self.fold(pick, *map(np.zeros, shapes))
        return LinearTotal(self.loss, X, y, offset, weights, self.frequency)

    @cached_property
    def _start(self) -> tuple[Array, Array]:
        gram, moment = self._sums(Part.least_squares, (self.p, self.p), self.p)
        return gram, moment

    def least_squares(self) -> tuple[Array, Array]:
        return self._start

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian in one pass, none at a point seen before."""
        key = (theta.tobytes(), majorize)
        if key not in self.known:
            if len(self.known) >= REMEMBERED:
                del self.known[next(iter(self.known))]
            self.known[key] = super().derivatives(theta, majorize=majorize)
        return self.known[key]

    def moments(self, theta: Array, majorize: bool) -> tuple[float, Array, Array, float]:
        shapes = (), self.p, (self.p, self.p), ()
        value, gradient, hessian, square = self._sums(
            lambda part: part.moments(theta, majorize), *shapes
        )
        return float(value), gradient, hessian, float(square)

    def totals(self, thetas: Array) -> Array:
        (out,) = self._sums(lambda part: (part.totals(thetas),), len(thetas))
        return out

    def expected_derivatives(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        gradient, hessian = self._sums(
            lambda part: part.expected_derivatives(mean, covariance), self.p, (self.p, self.p)
        )
        return gradient, hessian

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        def add(part: Part, *out: Array) -> None:
            codes = part.codes(groups)
            low, high = int(codes.min()), int(codes.max()) + 1
            codes = codes - low if low else codes
            here = ClusterTotals(out[0], out[1], out[2][low:high], out[3][low:high])
            part.add_cluster_totals(theta, codes, here)
            here.weights[:] += np.bincount(codes, part.weights, high - low)

        zeros = ClusterTotals.zeros(len(groups), self.p)
        totals = ClusterTotals(*self.fold(add, *zeros, groups=groups))
        return totals._replace(hessian=symmetric(totals.hessian))

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters, a pass for each block."""
        twice = not (self.frequency and self.loss.convex)
        yield from self._blocks(theta, groups, twice, False)

    def unweighted_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        yield from self._blocks(theta, groups, False, True)

    def _blocks(
        self, theta: Array, groups: Groups, twice: bool, once: bool
    ) -> Iterator[ClusterBlock]:
        many, p = len(groups), self.p
        per_block = max(1, BLOCK_NUMBERS // p**2)
        if many > MOST_PASSES * per_block:
            problem = f"needs the Hessians of {many} clusters, in more than {MOST_PASSES} passes"
            raise InputError(
                "correction",
                problem,
                "use correction='CR1' (a survey 'survey', a series 'AR-EWC', a panel 'two-way')",
            )
        for first in range(0, many, per_block):
            size = min(per_block, many - first)
            shapes = (size, p), (size, p, p), (size,), (size if twice else 0, p, p)
            step = _block_step(theta, groups, first, size, once)
            scores, hessians, weights, variances = self.fold(
                step, *map(np.zeros, shapes), groups=groups
            )
            yield ClusterBlock(first, scores, hessians, weights, variances if twice else hessians)

    def reweighted(self, weights: Array | None, frequency: bool) -> StreamedTotal:
        raise needs_rows("weights")

    def values(self, theta: Array) -> Array:
        raise needs_rows("criterion")

    def scores(self, theta: Array) -> Array:
        raise needs_rows("criterion")

    @property
    def X(self) -> Array:
        """Refused: the design matrix never exists."""
        raise needs_rows("criterion")


def _check_scale(loss: LinearLoss) -> None:
    if isinstance(loss, KinkedLoss):
        problem = f"{type(loss).__name__} needs all rows at once, and the data are read in parts"
        raise InputError("loss", problem, "use a smooth one, such as ef.losses.Quantile")
    if isinstance(loss, ResidualLoss) and isinstance(loss.scale, str):
        problem = f"{loss.scale!r} needs all residuals at once, and the data are read in parts"
        raise InputError("scale", problem, "pass a number, from a sample perhaps")


def _add(out: Sequence[Array], more: Sequence[float | Array]) -> None:
    for total, term in zip(out, more, strict=True):
        total += term  # in place


def _block_step(
    theta: Array, groups: Groups, first: int, size: int, once: bool
) -> Callable[..., None]:
    """Return what adds a part to the clusters from `first` on, `once` without its weights."""

    def add(part: Part, scores: Array, hessians: Array, weights: Array, variances: Array) -> None:
        codes = part.codes(groups) - first
        inside = np.flatnonzero((codes >= 0) & (codes < size))
        if len(inside) == 0:
            return
        clusters, local = np.unique(codes[inside], return_inverse=True)
        rows = part if len(inside) == part.n else part.take(inside)
        if once and rows.weights is not None:
            rows = rows.reweighted(np.sign(rows.weights), True)
        for block in rows.cluster_blocks(theta, Groups(local.reshape(-1), clusters)):
            here = clusters[block.first : block.first + len(block.scores)]
            scores[here] += block.scores
            hessians[here] += block.hessians
            weights[here] += block.weights
            if len(variances):
                variances[here] += block.variances

    return add

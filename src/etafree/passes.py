"""Passes over a table that is read in parts, and how its parts become totals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.columns import Columns, as_frame, numbers
from etafree.errors import InputError
from etafree.formula import Recipe, check_kinds, formula_columns, matrices
from etafree.labels import Column, StreamedGroups, Tally
from etafree.linear import LinearTotal
from etafree.losses import LinearLoss
from etafree.parts import Source
from etafree.rows import Rows
from etafree.sums import Groups
from etafree.threads import own_settings
from etafree.validation import Array, check_finite
from etafree.weights import checked_weights

__all__ = [
    "Census",
    "Part",
    "Reader",
    "add_start",
    "count_labels",
    "find_recipe",
    "run_pass",
    "take_census",
]

#: Complete rows that show what a formula makes of the columns, and levels a category may have.
SAMPLE, MOST_LEVELS = 500, 10_000
#: Rows of every part that show whether a formula looks at other rows.
WITNESSES = 8


@dataclass(frozen=True, eq=False)
class Part(LinearTotal):
    """Rows of one part, with the part itself for its labels."""

    chunk: Any = None
    kept: NDArray[np.intp] | None = None

    def codes(self, groups: Groups) -> NDArray[np.intp]:
        """Return the group of every row."""
        assert isinstance(groups, StreamedGroups)
        codes: NDArray[np.intp] = groups.coder(self.chunk, self.kept)
        return codes


@dataclass(frozen=True, eq=False)
class Reader:
    """How a part of the table becomes a total.

    `weights`, `offset` and `trials` name columns; `complete` says that no row is left out.
    """

    recipe: Recipe
    weights: str | None = None
    frequency: bool = True
    offset: str | None = None
    trials: str | None = None
    complete: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """What a part must have."""
        named = (self.weights, self.offset, self.trials)
        return (*self.recipe.columns, *(name for name in named if name is not None))

    def part(self, chunk: Any, loss: LinearLoss, first: int) -> Part:
        """Return the total of a part whose first row has this number."""
        X, y, kept = self._design(chunk)

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
        return Part(loss, X, y, o, w, self.frequency, first, chunk, kept)

    def _design(self, chunk: Any) -> tuple[Any, Array, NDArray[np.intp] | None]:
        """Return X, y and the rows kept, None for all; columns stay where they are if they can."""
        if self.recipe.plain is not None:
            y = numbers(chunk, self.recipe.response, "y")
            X = Columns.of(chunk, self.recipe.plain)
            if self.complete or (X.finite and np.isfinite(y @ y)):
                return X, y, None
        return self.recipe.arrays(chunk, self.complete)


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a piece of the table: `step` adds every part to what is in `start`.

    There a shape stands for an array of zeros, which need not travel.
    """

    reader: Reader
    loss: LinearLoss
    step: Callable[..., None]
    start: tuple[Any, ...]
    firsts: tuple[int, ...]

    @own_settings
    def __call__(self, k: int, chunks: Iterator[Any]) -> tuple[tuple[Any, ...], int, int]:
        out = tuple(np.zeros(s) if isinstance(s, tuple) else deepcopy(s) for s in self.start)
        begin, seen = self.firsts[k] if self.firsts else 0, 0
        first = begin
        for chunk in filter(len, chunks):  # nothing, not even types, can be learnt from no rows
            part = self.reader.part(chunk, self.loss, first)
            seen += part.n if part.kept is None else len(chunk)
            first += part.n
            if part.n:
                self.step(part, *out)
        return out, first - begin, seen


def run_pass(
    source: Source, reader: Reader, loss: LinearLoss, step: Callable[..., None],
    out: tuple[Any, ...], columns: tuple[str, ...], lengths: tuple[int, ...] = (),
) -> tuple[tuple[int, ...], int]:  # fmt: skip
    """Add `step` of every part to `out`; return the rows in use in every piece, and all rows.

    `out` is zero: arrays, or objects that ``+=`` adds to in the order of the pieces.
    `columns` are needed besides the reader's, `lengths` are what an earlier pass returned.
    """
    needed = tuple(dict.fromkeys((*reader.columns, *columns)))
    firsts = tuple(np.cumsum((0, *lengths)).tolist()) if lengths else ()
    used, rows = [], 0
    start = tuple(o.shape if isinstance(o, np.ndarray) else deepcopy(o) for o in out)
    work = Pass(reader, loss, step, start, firsts)
    for made, kept, seen in source.map(work, needed):
        for total, more in zip(out, made, strict=True):
            total += more  # in place
        used.append(kept)
        rows += seen
    return tuple(used), rows


class Witnesses:
    """Some rows of every part with what the formula made of them there.

    A formula such as ``y ~ I(year - np.min(year))`` looks at other rows than its own, which the
    first rows of a sorted table do not show.
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.made: list[Array] = []

    def add(self, part: Part, columns: Sequence[str]) -> None:
        """Keep a few rows of a part."""
        some = np.unique(np.linspace(0, part.n - 1, WITNESSES).astype(np.intp))
        places = some if part.kept is None else part.kept[some]
        chunk = part.chunk
        taken = chunk.iloc[places] if hasattr(chunk, "iloc") else chunk.take(places)
        self.rows.append(as_frame(taken, columns))
        self.made.append(np.column_stack([part.X[some], part.y.reshape(part.n, -1)[some, 0]]))

    def __iadd__(self, other: Witnesses) -> Witnesses:
        self.rows += other.rows
        self.made += other.made
        return self

    def check(self, recipe: Recipe) -> None:
        """Refuse a formula that makes something else of these rows when they are together."""
        import pandas as pd

        X, y, kept = recipe.arrays(pd.concat(self.rows, ignore_index=True))
        apart = np.concatenate(self.made)
        if kept is not None or not np.allclose(np.column_stack([X, y]), apart, 1e-9, 0.0):
            raise InputError("formula", "has something that looks at other rows than its own, "
                             "and these are read in parts",
                             "store it as a column of the data")  # fmt: skip


class Census(NamedTuple):
    """What the first pass found.

    `rows` are all of them, `lengths` those in use in every piece.
    """

    rows: int
    lengths: tuple[int, ...]
    weight: float
    present: int
    copies: bool
    column_norms: Array


def take_census(
    loss: LinearLoss, source: Source, reader: Reader, labels: Mapping[str, str]
) -> tuple[Census, tuple[Array, Array], list[Tally]]:
    """Return what the first pass finds: counts, a least-squares start, and columns' labels.

    `labels` maps columns to the arguments they were given for.
    """
    p, kind = len(reader.recipe.names), "frequency" if reader.frequency else "sampling"

    def add(part: Part, counts: Array, squares: Array, *rest: Any) -> None:
        loss.check(part.y)
        if part.weights is not None:  # one more, so that a part may be without weight
            every = np.append(part.weights, 1.0)
            checked_weights(Rows(len(every)), len(every), every, kind)
            copies = np.count_nonzero(~np.isin(part.weights, (0.0, 1.0)))
            counts += part.weights.sum(), np.count_nonzero(part.weights), copies
            squares += np.square(part.column_norms)
        add_start(part, *rest[:2])
        if reader.recipe.plain is None:
            rest[2].add(part, reader.recipe.columns)
        for tally in rest[3:]:
            count_labels(part, tally)

    tallies = [Tally(Column(name, argument)) for name, argument in labels.items()]
    sums = np.zeros(3), np.zeros(p), np.zeros((p, p)), np.zeros(p)
    found = Witnesses()
    lengths, rows = run_pass(source, reader, loss, add, (*sums, found, *tallies), tuple(labels))
    counts, squares, gram, moment = sums
    if sum(lengths) == 0:
        raise InputError("data", "has no complete row for this formula", "check missing values")
    if reader.recipe.plain is None:
        found.check(reader.recipe)
    if reader.weights is None:
        counts[:2], squares = sum(lengths), np.diagonal(gram)
    checked_weights(Rows(1), 1, counts[:1], "sampling")
    copies = reader.frequency and bool(counts[2])
    made = Census(rows, lengths, float(counts[0]), int(counts[1]), copies, np.sqrt(squares))
    return made, (gram, moment), tallies


def add_start(part: Part, gram: Array, moment: Array) -> None:
    """Add a part's share of a least-squares start."""
    more = part.least_squares()
    gram += more[0]
    moment += more[1]


def count_labels(part: Part, tally: Tally) -> None:
    """Add a part's labels to a tally."""
    tally.coder.count(part.chunk, part.kept, part.weights, tally)


def find_recipe(source: Source, formula: str, context: Mapping[str, Any] | None) -> Recipe:
    """Return what the formula makes of the table; a pass finds the levels of its categories."""
    import pandas as pd

    columns = formula_columns(formula, source.columns, context)
    frames: list[Any] = []
    kinds: dict[str, str] = {}
    for chunk in source.beginning(columns):
        frames.append(as_frame(chunk, columns).dropna().iloc[:SAMPLE])
        kinds = check_kinds(frames[-1], kinds)
        if sum(map(len, frames)) >= SAMPLE:
            break
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    if not filled or not len(filled[0]):
        raise InputError("data", "has no complete row for this formula", "check missing values")
    recipe = Recipe.of(formula, pd.concat(filled, ignore_index=True), context)
    keys = recipe.level_columns()
    if not keys:
        return recipe
    work = Levels(formula, context, columns, tuple(map(tuple, keys)), kinds)
    every = pd.concat(list(source.map(work, columns)), ignore_index=True)
    return Recipe.of(formula, every[work.new(every, [set() for _ in keys])], context)


@dataclass(frozen=True, eq=False)
class Levels:
    """Complete rows that show every level of the categories in a piece of the table."""

    formula: str
    context: Mapping[str, Any] | None
    columns: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    kinds: Mapping[str, str]

    def __call__(self, k: int, chunks: Iterator[Any]) -> Any:
        import pandas as pd

        found: list[Any] = []
        seen: list[set[Any]] = [set() for _ in self.keys]
        for chunk in chunks:
            frame = as_frame(chunk, self.columns)
            if len(frame):
                check_kinds(frame, self.kinds)
                kept = matrices(self.formula, frame, self.context).rows.kept
                frame = frame if kept is None else frame.iloc[kept]
                found.append(frame[self.new(frame, seen)])
        return pd.concat(found, ignore_index=True) if found else None

    def new(self, frame: Any, seen: list[set[Any]]) -> NDArray[np.bool_]:
        """Return which rows have a level for the first time."""
        out = np.zeros(len(frame), dtype=bool)
        for key, known in zip(self.keys, seen, strict=True):
            first = np.flatnonzero(~frame.duplicated(list(key)).to_numpy())
            values = list(frame[list(key)].iloc[first].itertuples(index=False, name=None))
            fresh = [value not in known for value in values]
            out[first[fresh]] = True
            known.update(values)
            if len(known) > MOST_LEVELS:
                raise InputError("formula", f"takes {list(key)} for categories, with more than "
                                 f"{MOST_LEVELS} levels", "group its values first")  # fmt: skip
        return out

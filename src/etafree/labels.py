"""Labels of rows that are read in parts: collected in one pass, coded again in every other.

No vector has an entry per row: what is kept grows with the number of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.columns import factorized, joined, raw
from etafree.errors import InputError
from etafree.rows import Rows
from etafree.sums import Groups
from etafree.validation import Array, as_array

__all__ = [
    "Cells",
    "Column",
    "Merged",
    "StreamedGroups",
    "StreamedRows",
    "Tally",
    "column_name",
    "needs_rows",
]

Kept = NDArray[np.intp] | None
#: Labels waiting to be sorted in before that is done.
WAITING = 1 << 18


class Tally:
    """Labels that a coder finds, with the number of rows and the weight of each.

    Examples
    --------
    >>> tally = Tally(Column("g", "clusters"))
    >>> tally.add(np.array(["b", "a"]), np.array([1, 2]), np.array([1.0, 2.0]))
    >>> tally.add(np.array(["b"]), np.array([3]), np.array([3.0]))
    >>> [part.tolist() for part in tally.settled()]
    [['a', 'b'], [2, 4], [2.0, 4.0]]
    """

    def __init__(self, coder: Any) -> None:
        self.coder = coder
        self.waiting: list[tuple[NDArray[Any], NDArray[np.intp], Array]] = []
        self.most = WAITING

    def add(self, labels: NDArray[Any], rows: NDArray[np.intp], weights: Array) -> None:
        """Add labels with their rows and weights; a label without rows is not there."""
        there = rows > 0
        self.waiting.append((labels[there], rows[there], weights[there]))
        if sum(len(part[0]) for part in self.waiting) > self.most:
            self.most = WAITING + 4 * len(self.settled()[0])

    def __iadd__(self, other: Tally) -> Tally:
        for part in other.waiting:
            self.add(*part)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Settle before a journey: labels of many parts repeat."""
        if len(self.waiting) > 1:
            self.settled()
        return self.__dict__

    def settled(self) -> tuple[NDArray[Any], NDArray[np.intp], Array]:
        """Return every label once, sorted, with its rows and weight."""
        every, *sums = zip(*self.waiting, strict=True)
        labels, (rows, weights) = joined(every, self.coder.argument), map(np.concatenate, sums)
        groups = Groups.of(labels, len(labels), self.coder.argument)
        many = np.bincount(groups.codes, rows, len(groups)).astype(np.intp)
        kept, weights = groups.labels, groups.weights(weights)
        if kept.dtype.kind == "U":  # text of several types, which are told apart to the end
            kept = labels[np.unique(groups.codes, return_index=True)[1]]
        self.waiting = [(kept, many, weights)]
        return groups.labels, many, weights


@dataclass(frozen=True, eq=False)
class Column:
    """Codes of a column's labels."""

    name: str
    argument: str
    labels: NDArray[Any] = field(default_factory=lambda: np.zeros(0))

    @property
    def columns(self) -> tuple[str, ...]:
        """What a part must have."""
        return (self.name,)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _index(self) -> Any:
        import pandas as pd

        return pd.Index(self.labels)

    def __call__(self, chunk: Any, kept: Kept) -> NDArray[np.intp]:
        """Return the code of every row of a part that is in use."""
        low = self.labels[0]
        if self.labels.dtype.kind in "iu" and int(self.labels[-1]) - int(low) + 1 == len(self):
            codes = raw(chunk, self.name)  # numbers without gaps are codes
            if codes.dtype.kind in "iu":
                codes = (codes if kept is None else codes[kept]).astype(np.intp, copy=False)
                codes = codes - np.intp(low) if low else codes
                if len(codes) and (codes.min() < 0 or codes.max() >= len(self)):
                    raise _changed(self.argument)
                return codes
        labels, place = factorized(chunk, self.name)
        if self.labels.dtype.kind == "U":  # labels of several types
            labels = labels.astype(str)
        found = np.append(self._index.get_indexer(labels), -1)[place]
        codes = found if kept is None else found[kept]
        if np.any(codes < 0):
            raise _changed(self.argument)
        return codes.astype(np.intp, copy=False)

    def count(self, chunk: Any, kept: Kept, weights: Array | None, tally: Tally) -> None:
        """Add a part's labels to those seen so far; these need not be known yet."""
        labels, place = factorized(chunk, self.name)
        place = place if kept is None else place[kept]
        if np.any(place < 0):
            raise InputError(self.argument, f"has missing labels in column {self.name!r}",
                             "drop these rows or give each its own label")  # fmt: skip
        rows = np.bincount(place, minlength=len(labels))
        tally.add(labels, rows, np.bincount(place, weights, len(labels)).astype(np.float64))


@dataclass(frozen=True, eq=False)
class Cells:
    """Codes of rows that share all their groups."""

    ways: tuple[Any, ...]
    known: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    argument: str = "clusters"

    @property
    def columns(self) -> tuple[str, ...]:
        """What a part must have."""
        return tuple(dict.fromkeys(c for way in self.ways for c in way.columns))

    def numbers(self, chunk: Any, kept: Kept) -> NDArray[np.intp]:
        """Return one number for the groups of every row."""
        out: NDArray[np.intp] = self.ways[0](chunk, kept)
        for way in self.ways[1:]:
            out = out * len(way) + way(chunk, kept)
        return out

    def __len__(self) -> int:
        return len(self.known)

    def __call__(self, chunk: Any, kept: Kept) -> NDArray[np.intp]:
        """Return the cell of every row of a part that is in use."""
        numbers = self.numbers(chunk, kept)
        codes = np.minimum(np.searchsorted(self.known, numbers), len(self) - 1)
        if np.any(self.known[codes] != numbers):
            raise _changed(self.argument)
        return codes

    def count(self, chunk: Any, kept: Kept, weights: Array | None, tally: Tally) -> None:
        """Add a part's cells to those seen so far."""
        found, place, rows = np.unique(
            self.numbers(chunk, kept), return_inverse=True, return_counts=True
        )
        tally.add(found, rows, np.bincount(place, weights, len(found)).astype(np.float64))


@dataclass(frozen=True, eq=False)
class Merged:
    """Codes of groups that belong to larger ones."""

    finer: Any
    into: NDArray[np.intp]
    many: int

    @property
    def columns(self) -> tuple[str, ...]:
        """What a part must have."""
        columns: tuple[str, ...] = self.finer.columns
        return columns

    def __len__(self) -> int:
        return self.many

    def __call__(self, chunk: Any, kept: Kept) -> NDArray[np.intp]:
        """Return the code of every row of a part that is in use."""
        codes: NDArray[np.intp] = self.into[self.finer(chunk, kept)]
        return codes


def _changed(argument: str) -> InputError:
    return InputError(argument, "has labels that the first pass did not see",
                      "the data must not change while they are in use")  # fmt: skip


class StreamedGroups(Groups):
    """Groups of rows that are read in parts.

    Attributes
    ----------
    coder : Column, Cells or Merged
        Gives the codes of a part.
    labels : (G,) array
    """

    def __init__(
        self, coder: Any, labels: NDArray[Any], rows: NDArray[np.intp], weights: Array,
        tally: Callable[[Tally], Tally],
    ) -> None:  # fmt: skip
        self.coder = coder
        self.labels = labels
        self._rows, self._weights, self._tally = rows, weights, tally

    @property
    def columns(self) -> tuple[str, ...]:
        """What a part must have."""
        columns: tuple[str, ...] = self.coder.columns
        return columns

    @property
    def codes(self) -> NDArray[np.intp]:  # type: ignore[override]
        """Refused: there is no vector with an entry per row."""
        raise InputError("clusters", "are labels of data that are read in parts, and this needs "
                         "all rows at once", "take a sample into memory")  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {"coder": self.coder}  # another process needs codes only

    def sizes(self) -> NDArray[np.intp]:
        """Return the number of rows in every group (G,)."""
        return self._rows

    def weights(self, weights: Array | None) -> Array:
        """Return the sum of the rows' own weights in every group (G,)."""
        return self._weights

    def labelled(self, labels: NDArray[Any]) -> StreamedGroups:
        """Return the same groups with other labels."""
        return StreamedGroups(self.coder, labels, self._rows, self._weights, self._tally)

    def merged(self, into: Groups) -> StreamedGroups:
        """Return the groups of rows when these groups belong to larger ones."""
        many = len(into)
        rows = np.bincount(into.codes, self._rows, many).astype(np.intp)
        weights = into.weights(self._weights)
        return StreamedGroups(Merged(self.coder, into.codes, many), into.labels, rows, weights,
                              self._tally)  # fmt: skip

    def crossed(self, *others: Groups) -> tuple[Groups, tuple[Groups, ...]]:
        """Return the cells of rows that share all their groups, and every cell's own groups."""
        every = [groups for groups in (self, *others) if isinstance(groups, StreamedGroups)]
        if prod(map(len, every)) > np.iinfo(np.intp).max:
            raise InputError("clusters", "have more combinations than a number can count",
                             "leave a way out")  # fmt: skip
        cells = Cells(tuple(groups.coder for groups in every))
        known, rows, weights = self._tally(Tally(cells)).settled()
        made, rest = [], known
        for groups in reversed(every):
            rest, codes = np.divmod(rest, len(groups))
            made.append(Groups(codes.astype(np.intp), groups.labels))
        found = replace(cells, known=known)
        joint = StreamedGroups(found, np.arange(len(known)), rows, weights, self._tally)
        return joint, tuple(reversed(made))


@dataclass(frozen=True, eq=False)
class StreamedRows(Rows):
    """The rows of a table that is read in parts; `table` holds the names of its columns."""

    in_use: int = 0
    find: Callable[[str, str], StreamedGroups] | None = None
    known: dict[str, StreamedGroups] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """Number of rows in use."""
        return self.in_use

    @property
    def dropped(self) -> int:
        """Number of rows left out."""
        return self.original - self.used

    def align(self, values: Any, argument: str) -> NDArray[Any]:
        """Refused: there is no vector with an entry per row."""
        raise needs_rows(argument)

    def groups(self, labels: Any, argument: str, *, numeric: bool = False) -> Groups:
        """Return the groups of rows that a column's labels make, in one pass."""
        if isinstance(labels, Groups):
            return labels
        assert self.find is not None
        column_name(labels, self.table, argument)
        if labels not in self.known:
            self.known[labels] = self.find(labels, argument)
        found = self.known[labels]
        return found.labelled(as_array(found.labels, argument)) if numeric else found

    def each(self, argument: str) -> Groups:
        """Refused: a group per row is a vector with an entry per row."""
        raise InputError(argument, "must name a column when data are read in parts")


def column_name(name: Any, columns: Sequence[str], argument: str) -> str:
    """Return the name of a column of the table."""
    if not isinstance(name, str):
        raise InputError(argument, f"is a {type(name).__name__}, and the data are read in parts",
                         "store it as a column and pass the column's name")  # fmt: skip
    if name not in columns:
        raise InputError(argument, f"names no column {name!r}", f"columns: {list(columns)}")
    return name


def needs_rows(argument: str) -> InputError:
    return InputError(
        argument,
        "has one value per row, and the data are read in parts",
        "use ef.Criterion.from_formula on data in memory, a sample perhaps",
    )

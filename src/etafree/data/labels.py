r"""Columns of tables that are read in parts: their types, and labels of rows coded over all parts.

Labels are collected in one pass and coded again in every other. No vector has an entry per row:
what is kept grows with the number of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from typing_extensions import TypeIs

#: A part of a table.
Chunk: TypeAlias = "pd.DataFrame | pa.Table"
#: Labels of rows or groups: numbers, text or times.
Labels: TypeAlias = NDArray[Any]
#: Codes of groups, from 0, and rows of a part that are in use, None for all.
Codes: TypeAlias = NDArray[np.intp]
Kept: TypeAlias = Codes | None
#: Types of whole numbers that are counted in a table, and where floating point loses some.
WHOLE, EXACT = ("int64", "int32", "uint32"), 1 << 53
#: Batches of fewer rows than a part has, by this factor, are put together.
SMALL = 8
#: Labels waiting to be sorted in before that is done.
WAITING = 1 << 18


def is_frame(chunk: object) -> TypeIs[pd.DataFrame]:
    """Return whether a part is a DataFrame; it is Arrow's otherwise."""
    return hasattr(chunk, "iloc")


class Columns:
    """A design matrix whose columns stay where they are; rows are put together when asked for.

    A block of consecutive rows is overwritten by the next that is asked for: memory that is always
    the same needs no system calls.

    Examples
    --------
    >>> X = Columns([None, np.array([2.0, 3.0, 5.0])], 3)
    >>> X.shape, X[1:3].tolist(), (X @ np.ones(2)).tolist()
    ((3, 2), [[1.0, 3.0], [1.0, 5.0]], [3.0, 4.0, 6.0])
    """

    def __init__(self, columns: Sequence[Array | None], rows: int) -> None:
        self.columns = columns  # None is a column of ones
        self.shape = rows, len(columns)
        self._rows = slice(0, 0)
        self._block = np.empty((len(columns), 0))

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite; False also where their squares are not."""
        return all(column is None or np.isfinite(column @ column) for column in self.columns)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Codes) -> Array:
        if not isinstance(rows, slice):
            return self._filled(np.empty((self.shape[1], len(rows))), rows)
        if rows != self._rows:
            if self._block.shape[1] != rows.stop - rows.start:
                self._block = np.empty((self.shape[1], rows.stop - rows.start))
            self._filled(self._block, rows)
            self._rows = rows
        return self._block.T

    def __matmul__(self, other: Array) -> Array:
        return self._filled(np.empty(self.shape[::-1]), slice(0, len(self))) @ other

    def _filled(self, out: Array, rows: slice | Codes) -> Array:
        for to, column in zip(out, self.columns, strict=True):
            to[:] = 1.0 if column is None else column[rows]
        return out.T


def column_names(table: object) -> tuple[str, ...]:
    """Return the names of a table's columns, all different, without those that are no text."""
    if hasattr(table, "iloc") and hasattr(table, "columns"):
        names = [name for name in table.columns if isinstance(name, str)]
    elif hasattr(table, "schema"):  # Arrow's
        names = list(table.schema.names)
    else:
        advice = "every part must be a pandas DataFrame or an Arrow table"
        raise InputError("data", f"has a {type(table).__name__} among its parts", advice)
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError("data", f"has several columns named {twice}", "rename them")
    return tuple(names)


def plain_type(kind: pa.DataType, name: str) -> pa.DataType:
    """Return the type in which an Arrow column is used: a number, a time, text or truth values.

    Decimals are numbers, and so are half floats, which pandas cannot look up. A column of the
    null type has no number. Types with several values in a row are refused.
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_decimal(kind) or types.is_null(kind):
        return pa.float64()
    if types.is_float16(kind):
        return pa.float32()
    if isinstance(kind, pa.BaseExtensionType):  # a UUID, say
        return plain_type(kind.storage_type, name)
    if str(kind) in ("string_view", "binary_view"):  # which Arrow can hardly compute with
        return pa.large_string() if str(kind) == "string_view" else pa.large_binary()
    if types.is_dictionary(kind):
        plain_type(kind.value_type, name)
    if types.is_nested(kind) or types.is_interval(kind):
        problem = f"column {name!r} holds neither numbers nor categories ({kind})"
        raise InputError("data", problem, "store what you need of it as a column of its own")
    return kind


def unified(known: pa.DataType, more: pa.DataType) -> pa.DataType | None:
    """Return a type that holds what both of two Arrow types do, None if text meets numbers."""
    import pyarrow as pa

    values = [getattr(kind, "value_type", kind) for kind in (known, more)]  # of a dictionary
    for pair in ([known, more], values):
        schemas = [pa.schema([("c", kind)]) for kind in pair]
        try:
            return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        except pa.ArrowException:
            continue
    return None


def as_plain(chunk: Chunk, columns: Sequence[str]) -> Chunk:
    """Return a part with these columns, those of an Arrow table in the types they are used in."""
    if is_frame(chunk):
        return chunk
    import pyarrow as pa

    chosen = chunk.select(list(columns))
    types = [plain_type(field.type, field.name) for field in chosen.schema]
    if types == chosen.schema.types:
        return chosen
    table = pa.Table.from_batches([chosen]) if isinstance(chosen, pa.RecordBatch) else chosen
    return table.cast(pa.schema(list(zip(columns, types, strict=True))))


def together(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[Chunk]:
    """Yield batches, small ones that follow each other as one of at most so many rows."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in filter(len, batches):
        small = len(batch) * SMALL <= most
        if held and (not small or rows + len(batch) > most):
            yield _joined(held)
            held, rows = [], 0
        if small:
            held.append(batch)
            rows += len(batch)
        else:
            yield batch
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> Chunk:
    if len(batches) == 1:
        return batches[0]
    import pyarrow as pa

    return pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()


def as_frame(chunk: Chunk, columns: Iterable[Hashable]) -> pd.DataFrame:
    """Return these columns of a part as a DataFrame, categories and text of Arrow's as objects."""
    chosen = list(columns)  # what pandas wrote about a file is not needed and may be damaged
    table = chunk[chosen] if is_frame(chunk) else chunk.select(chosen).replace_schema_metadata()
    frame = converted = table if is_frame(table) else table.to_pandas()
    for name in frame.columns:
        column, kind = frame[name], _type_in_use(frame[name], table is not frame)
        if kind != column.dtype:
            converted = frame.copy(deep=False) if converted is frame else converted
            one_gap = column.where(column.notna(), None) if column.dtype == object else column
            converted[name] = one_gap.astype(kind)
    return converted


def _type_in_use(column: pd.Series, arrow: bool) -> Any:
    """Return the type of a pandas column in which all parts of a table agree.

    Truth values and decimals come as objects where some are missing, or from a database.
    """
    name = inside = column.dtype.name
    if name == "object":
        from pandas.api.types import infer_dtype

        inside = infer_dtype(column, skipna=True)
    if inside in ("boolean", "bool[pyarrow]"):
        return "boolean"
    if inside.startswith("decimal"):
        return "float64"
    if name == "float16":  # which pandas cannot look up
        return "float32"
    text = name.startswith("string") or (arrow and name == "category")
    return object if text else column.dtype


def raw(chunk: Chunk, name: str) -> Labels:
    """Return a column of a part as numpy has it."""
    if is_frame(chunk):
        return np.asarray(chunk[name])
    return np.asarray(chunk.column(name).to_numpy(zero_copy_only=False))


def numbers(chunk: Chunk, name: str, argument: str) -> Array:
    """Return a column of a part as numbers, NaN where there is none."""
    column = as_frame(chunk, [name])[name] if is_frame(chunk) else raw(chunk, name)
    try:
        if not isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
            column = column.to_numpy(dtype=np.float64, na_value=np.nan)
        elif not isinstance(column, np.ndarray):
            column = column.where(column.notna(), np.nan)
        return as_array(column, argument, finite=False)
    except (InputError, TypeError, ValueError):
        problem = f"column {name!r} is not numeric"
        raise InputError(argument, problem, "code it as numbers") from None


def _is_whole(chunk: Chunk, name: str) -> bool:
    """Return whether a column is of integers, none missing."""
    if is_frame(chunk):
        kind = chunk[name].dtype
        return isinstance(kind, np.dtype) and kind.name in WHOLE
    column = chunk.column(name)
    return str(column.type) in WHOLE and column.null_count == 0


def factorized(chunk: Chunk, name: str) -> tuple[Labels, Codes]:
    """Return the distinct labels of a column and each row's place among them, -1 for none."""
    whole = raw(chunk, name) if _is_whole(chunk, name) else None
    if whole is not None and len(whole) and np.ptp(whole) <= len(whole):
        groups = Groups.of(whole, len(whole))  # a table of counts is cheaper than hashing
        return groups.labels, groups.codes
    if is_frame(chunk):
        import pandas as pd

        try:
            codes, labels = pd.factorize(chunk[name])
        except TypeError as error:
            raise InputError("clusters", f"column {name!r} holds no labels ({error})") from None
        return np.asarray(labels), np.asarray(codes, dtype=np.intp)
    column = chunk.column(name)
    column = getattr(column, "combine_chunks", lambda: column)()
    try:
        encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    except NotImplementedError:  # lists and structs
        raise InputError("clusters", f"column {name!r} holds no labels ({column.type})") from None
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(encoded.dictionary.to_numpy(zero_copy_only=False)), codes.astype(np.intp)


def joined(parts: Sequence[Labels], argument: str) -> Labels:
    """Return the labels of all parts; whole numbers stay what they are, floating point loses some.

    Examples
    --------
    >>> signed, unsigned = np.array([2**53 + 1]), np.array([2**63], dtype=np.uint64)
    >>> joined([signed, unsigned], "clusters")
    array([9007199254740993, 9223372036854775808], dtype=object)
    """
    try:
        labels: Labels = np.concatenate(parts)
    except TypeError:
        kinds = sorted({part.dtype.name for part in parts})
        problem = f"has labels of types that cannot be compared ({kinds})"
        raise InputError(argument, problem, "store them as one type in all parts") from None
    whole = [part for part in parts if part.dtype.kind in "iu" and len(part)]
    if labels.dtype.kind not in "iuf" or not whole:
        return labels
    low, high = min(int(part.min()) for part in whole), max(int(part.max()) for part in whole)
    if any(part.dtype.kind == "f" and len(part) for part in parts):
        if max(-low, high) > EXACT:
            problem = "has whole numbers beyond 2**53 in some parts and floating point in others"
            raise InputError(argument, problem, "read them as whole numbers or text")
        return labels
    kind = np.int64 if high < 1 << 63 else object
    return np.concatenate([part.astype(kind) for part in parts])


class Tally:
    """Labels that a coder meets, with the number of rows and the weight of each.

    Examples
    --------
    >>> tally = Tally(Column("g", "clusters"))
    >>> tally.add(np.array(["b", "a"]), np.array([1, 2]), np.array([1.0, 2.0]))
    >>> tally.add(np.array(["b"]), np.array([3]), np.array([3.0]))
    >>> [sums.tolist() for sums in tally.settled()]
    [['a', 'b'], [2, 4], [2.0, 4.0]]
    """

    def __init__(self, coder: Column | Cells) -> None:
        self.coder = coder
        self.waiting: list[tuple[Labels, Codes, Array]] = []
        self.most = WAITING

    def add(self, labels: Labels, rows: Codes, weights: Array) -> None:
        """Add labels with their rows and weights; labels without rows are ignored."""
        occur = rows > 0
        self.waiting.append((labels[occur], rows[occur], weights[occur]))
        if sum(len(labels) for labels, _, _ in self.waiting) > self.most:
            self.most = WAITING + 4 * len(self.settled()[0])

    def __iadd__(self, other: Tally) -> Tally:
        for entry in other.waiting:
            self.add(*entry)
        return self

    def __getstate__(self) -> dict[str, object]:
        """Settle before a journey: labels of many parts repeat."""
        if len(self.waiting) > 1:
            self.settled()
        return self.__dict__

    def settled(self) -> tuple[Labels, Codes, Array]:
        """Return every label once, sorted, with its rows and weight."""
        every, *sums = zip(*self.waiting, strict=True)
        labels, (rows, weights) = joined(every, self.coder.argument), map(np.concatenate, sums)
        groups = Groups.of(labels, len(labels), self.coder.argument)
        sizes = np.bincount(groups.codes, rows, len(groups)).astype(np.intp)
        kept, weights = groups.labels, groups.weights(weights)
        if kept.dtype.kind == "U":  # text of several types, which are told apart to the end
            kept = labels[np.unique(groups.codes, return_index=True)[1]]
        self.waiting = [(kept, sizes, weights)]
        return groups.labels, sizes, weights


@dataclass(frozen=True, eq=False)
class Column:
    """Codes of a column's labels; `columns` are what a part must have."""

    name: str
    argument: str
    labels: Labels = field(default_factory=lambda: np.zeros(0))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _index(self) -> Any:
        import pandas as pd

        return pd.Index(self.labels)

    def __call__(self, chunk: Chunk, kept: Kept) -> Codes:
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
        place = place if kept is None else place[kept]
        codes = np.append(self._index.get_indexer(labels), -1)[place]
        if np.any(codes < 0):
            raise _changed(self.argument)
        return codes.astype(np.intp, copy=False)

    def count(self, chunk: Chunk, kept: Kept, weights: Array | None, tally: Tally) -> None:
        """Add a part's labels to those seen so far; these need not be known yet."""
        labels, place = factorized(chunk, self.name)
        place = place if kept is None else place[kept]
        if np.any(place < 0):
            problem = f"has missing labels in column {self.name!r}"
            raise InputError(self.argument, problem, "drop these rows or give each its own label")
        rows = np.bincount(place, minlength=len(labels))
        tally.add(labels, rows, np.bincount(place, weights, len(labels)).astype(np.float64))


@dataclass(frozen=True, eq=False)
class Cells:
    """Codes of rows that share all their groups."""

    ways: tuple[Coder, ...]
    labels: Codes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    argument: str = "clusters"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c for way in self.ways for c in way.columns))

    def numbers(self, chunk: Chunk, kept: Kept) -> Codes:
        """Return one number for the groups of every row."""
        out = self.ways[0](chunk, kept)
        for way in self.ways[1:]:
            out = out * len(way) + way(chunk, kept)
        return out

    def __len__(self) -> int:
        return len(self.labels)

    def __call__(self, chunk: Chunk, kept: Kept) -> Codes:
        """Return the cell of every row of a part that is in use."""
        numbers = self.numbers(chunk, kept)
        codes = np.minimum(np.searchsorted(self.labels, numbers), len(self) - 1)
        if np.any(self.labels[codes] != numbers):
            raise _changed(self.argument)
        return codes

    def count(self, chunk: Chunk, kept: Kept, weights: Array | None, tally: Tally) -> None:
        """Add a part's cells to those seen so far."""
        numbers = self.numbers(chunk, kept)
        cells, place, rows = np.unique(numbers, return_inverse=True, return_counts=True)
        tally.add(cells, rows, np.bincount(place, weights, len(cells)).astype(np.float64))


@dataclass(frozen=True, eq=False)
class Merged:
    """Codes of groups that belong to larger ones."""

    finer: Coder
    into: Codes
    many: int

    @property
    def columns(self) -> tuple[str, ...]:
        return self.finer.columns

    def __len__(self) -> int:
        return self.many

    def __call__(self, chunk: Chunk, kept: Kept) -> Codes:
        """Return the code of every row of a part that is in use."""
        return self.into[self.finer(chunk, kept)]


Coder: TypeAlias = Column | Cells | Merged


def _changed(argument: str) -> InputError:
    problem = "has labels that the first pass did not see"
    return InputError(argument, problem, "the data must not change while they are in use")


class StreamedGroups(Groups):
    """Groups of rows that are read in parts; `coder` gives the codes of a part."""

    def __init__(
        self,
        coder: Coder,
        labels: Labels,
        rows: Codes,
        weights: Array,
        tally: Callable[[Tally], Tally],
    ) -> None:
        self.coder, self.labels = coder, labels
        self._rows, self._weights, self._tally = rows, weights, tally

    @property
    def columns(self) -> tuple[str, ...]:
        """What a part must have."""
        return self.coder.columns

    @property
    def codes(self) -> Codes:  # type: ignore[override]
        """Refused: there is no vector with an entry per row."""
        problem = "are labels of data that are read in parts, and this needs all rows at once"
        raise InputError("clusters", problem, "take a sample into memory")

    def __getstate__(self) -> dict[str, object]:
        return {"coder": self.coder}  # another process needs codes only

    def sizes(self) -> Codes:
        """Return the number of rows in every group (G,)."""
        return self._rows

    def weights(self, weights: Array | None) -> Array:
        """Return the sum of the rows' own weights in every group (G,)."""
        return self._weights

    def labelled(self, labels: Labels) -> StreamedGroups:
        """Return the same groups with other labels."""
        return StreamedGroups(self.coder, labels, self._rows, self._weights, self._tally)

    def merged(self, into: Groups) -> StreamedGroups:
        """Return the groups of rows when these groups belong to larger ones."""
        rows = np.bincount(into.codes, self._rows, len(into)).astype(np.intp)
        coder = Merged(self.coder, into.codes, len(into))
        weights = into.weights(self._weights)
        return StreamedGroups(coder, into.labels, rows, weights, self._tally)

    def crossed(self, *others: Groups) -> tuple[Groups, tuple[Groups, ...]]:
        """Return the cells of rows that share all their groups, and every cell's own groups."""
        every = [groups for groups in (self, *others) if isinstance(groups, StreamedGroups)]
        if prod(map(len, every)) > np.iinfo(np.intp).max:
            problem = "have more combinations than a number can count"
            raise InputError("clusters", problem, "leave a way out")
        cells = Cells(tuple(groups.coder for groups in every))
        known, rows, weights = self._tally(Tally(cells)).settled()
        own, rest = [], known
        for groups in reversed(every):
            rest, codes = np.divmod(rest, len(groups))
            own.append(Groups(codes.astype(np.intp), groups.labels))
        coder, labels = replace(cells, labels=known), np.arange(len(known))
        joint = StreamedGroups(coder, labels, rows, weights, self._tally)
        return joint, tuple(reversed(own))


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

    def align(self, values: object, argument: str) -> Labels:
        """Refused: there is no vector with an entry per row."""
        raise needs_rows(argument)

    def groups(self, labels: object, argument: str, *, numeric: bool = False) -> Groups:
        """Return the groups of rows that a column's labels make, in one pass."""
        if isinstance(labels, Groups):
            return labels
        assert self.find is not None
        name = column_name(labels, self.table, argument)
        if name not in self.known:
            self.known[name] = self.find(name, argument)
        groups = self.known[name]
        return groups.labelled(as_array(groups.labels, argument)) if numeric else groups

    def each(self, argument: str) -> Groups:
        """Refused: a group per row is a vector with an entry per row."""
        raise InputError(argument, "must name a column when data are read in parts")


def column_name(name: object, columns: Sequence[str], argument: str) -> str:
    """Return the name of a column of the table."""
    if not isinstance(name, str):
        problem = f"is a {type(name).__name__}, and the data are read in parts"
        raise InputError(argument, problem, "store it as a column and pass the column's name")
    if name not in columns:
        raise InputError(argument, f"names no column {name!r}", f"columns: {list(columns)}")
    return name


def needs_rows(argument: str) -> InputError:
    """Return the error about what exists only when all rows are in memory."""
    advice = "use ef.Criterion.from_formula on data in memory, a sample perhaps"
    return InputError(argument, "has one value per row, and the data are read in parts", advice)

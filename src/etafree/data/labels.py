r"""Columns of tables that are read in parts: their types, and labels of rows coded over all parts.

Labels are collected in one pass and coded again in every other. No vector has an entry per row:
what is kept grows with the number of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
#: Distinct labels of a part and each row's place among them; codes of a part's rows.
Distinct: TypeAlias = Callable[[Chunk, Kept], tuple[Labels, Codes]]
Coder: TypeAlias = Callable[[Chunk, Kept], Codes]
#: Labels with the number of rows and the weight of each.
Counted: TypeAlias = tuple[Labels, Codes, Array]
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


def factorized(chunk: Chunk, name: str) -> tuple[Labels, Codes]:
    """Return the distinct labels of a column and each row's place among them, -1 for none."""
    column = chunk[name] if is_frame(chunk) else chunk.column(name)
    kind = column.dtype if is_frame(chunk) else column.type
    gaps = not isinstance(kind, np.dtype) if is_frame(chunk) else column.null_count
    whole = raw(chunk, name) if str(kind) in WHOLE and not gaps else None
    if whole is not None and len(whole) and np.ptp(whole) <= len(whole):
        groups = Groups.of(whole, len(whole))  # a table of counts is cheaper than hashing
        return groups.labels, groups.codes
    if is_frame(chunk):
        import pandas as pd

        try:
            codes, labels = pd.factorize(column)
        except TypeError as error:
            raise InputError("clusters", f"column {name!r} holds no labels ({error})") from None
        return np.asarray(labels), np.asarray(codes, dtype=np.intp)
    column = getattr(column, "combine_chunks", lambda: column)()
    try:
        encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    except NotImplementedError:  # lists and structs
        raise InputError("clusters", f"column {name!r} holds no labels ({column.type})") from None
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(encoded.dictionary.to_numpy(zero_copy_only=False)), codes.astype(np.intp)


def joined(parts: Sequence[Labels], argument: str) -> Labels:
    """Return the labels of all parts, whole numbers exactly: floating point loses some."""
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
    """Labels of all parts, which `distinct` finds in `columns` of each, with rows and weights."""

    def __init__(self, columns: tuple[str, ...], argument: str, distinct: Distinct) -> None:
        self.columns, self.argument, self.distinct = columns, argument, distinct
        self.waiting: list[Counted] = []
        self.most = WAITING

    def count(self, chunk: Chunk, kept: Kept, weights: Array | None) -> None:
        """Add the labels of a part's rows that are in use."""
        labels, place = self.distinct(chunk, kept)
        rows = np.bincount(place, minlength=len(labels))
        self.add(labels, rows, np.bincount(place, weights, len(labels)).astype(np.float64))

    def add(self, labels: Labels, rows: Codes, weights: Array) -> None:
        """Add labels with their rows and weights; labels without rows are ignored."""
        occur = rows > 0
        self.waiting.append((labels[occur], rows[occur], weights[occur]))
        if sum(len(labels) for labels, _, _ in self.waiting) > self.most:
            self.most = WAITING + 4 * len(self.settled()[0])

    def __sizeof__(self) -> int:
        return sum(array.nbytes for entry in self.waiting for array in entry)

    def __iadd__(self, other: Tally) -> Tally:
        for entry in other.waiting:
            self.add(*entry)
        return self

    def __getstate__(self) -> dict[str, object]:
        """Settle before a journey: labels of many parts repeat."""
        if len(self.waiting) > 1:
            self.settled()
        return self.__dict__

    def settled(self) -> Counted:
        """Return every label once, sorted, with its rows and weight."""
        every, *sums = zip(*self.waiting, strict=True)
        labels, (rows, weights) = joined(every, self.argument), map(np.concatenate, sums)
        groups = Groups.of(labels, len(labels), self.argument)
        sizes = np.bincount(groups.codes, rows, len(groups)).astype(np.intp)
        kept, weights = groups.labels, groups.weights(weights)
        if kept.dtype.kind == "U":  # text of several types, which are told apart to the end
            kept = labels[np.unique(groups.codes, return_index=True)[1]]
        self.waiting = [(kept, sizes, weights)]
        return groups.labels, sizes, weights


@dataclass(frozen=True, eq=False)
class Column:
    """Codes of a column's labels, once these are known."""

    name: str
    argument: str
    labels: Labels = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def _index(self) -> Any:
        import pandas as pd

        return pd.Index(self.labels)

    def tally(self) -> Tally:
        """Return an empty tally of the labels."""
        return Tally((self.name,), self.argument, self._distinct)

    def _distinct(self, chunk: Chunk, kept: Kept) -> tuple[Labels, Codes]:
        labels, place = factorized(chunk, self.name)
        place = place if kept is None else place[kept]
        if np.any(place < 0):
            problem = f"has missing labels in column {self.name!r}"
            raise InputError(self.argument, problem, "drop these rows or give each its own label")
        return labels, place

    def __call__(self, chunk: Chunk, kept: Kept) -> Codes:
        """Return the code of every row of a part that is in use."""
        low, many = self.labels[0], len(self.labels)
        if self.labels.dtype.kind in "iu" and int(self.labels[-1]) - int(low) + 1 == many:
            codes = raw(chunk, self.name)  # numbers without gaps are codes
            if codes.dtype.kind in "iu":
                codes = (codes if kept is None else codes[kept]).astype(np.intp, copy=False)
                codes = codes - np.intp(low) if low else codes
                if len(codes) and (codes.min() < 0 or codes.max() >= many):
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


def _changed(argument: str) -> InputError:
    return InputError(
        argument, "has labels that the first pass did not see", "data must not change"
    )


Fill: TypeAlias = Callable[[Tally], Tally]


class StreamedGroups(Groups):
    """Groups of rows that are read in parts; `tally` counts labels in a pass over all of them."""

    def __init__(
        self, coder: Coder, columns: tuple[str, ...], counted: Counted, tally: Fill
    ) -> None:
        self.coder, self.columns, self.tally = coder, columns, tally
        self.labels, self._rows, self._weights = counted

    @property
    def codes(self) -> Codes:  # type: ignore[override]
        """Refused: there is no vector with an entry per row."""
        raise InputError("clusters", "are read in parts, and this needs all rows", "take a sample")

    def __getstate__(self) -> dict[str, object]:
        return {"coder": self.coder, "columns": self.columns}  # all that another process needs

    def sizes(self) -> Codes:
        return self._rows

    def weights(self, weights: Array | None) -> Array:
        return self._weights

    def labelled(self, labels: Labels) -> StreamedGroups:
        counted = labels, self._rows, self._weights
        return StreamedGroups(self.coder, self.columns, counted, self.tally)

    def merged(self, into: Groups) -> StreamedGroups:
        finer, codes = self.coder, into.codes
        rows = np.bincount(codes, self._rows, len(into)).astype(np.intp)
        counted = into.labels, rows, into.weights(self._weights)
        return StreamedGroups(
            lambda chunk, kept: codes[finer(chunk, kept)], self.columns, counted, self.tally
        )

    def crossed(self, *others: Groups) -> tuple[Groups, tuple[Groups, ...]]:
        every = [groups for groups in (self, *others) if isinstance(groups, StreamedGroups)]
        if prod(map(len, every)) > np.iinfo(np.intp).max:
            problem = "have more combinations than a number can count"
            raise InputError("clusters", problem, "leave out one of them")
        ways = [(groups.coder, len(groups)) for groups in every]

        def numbers(chunk: Chunk, kept: Kept) -> Codes:  # one for the groups of every row
            out = ways[0][0](chunk, kept)
            for way, many in ways[1:]:
                out = out * many + way(chunk, kept)
            return out

        def distinct(chunk: Chunk, kept: Kept) -> tuple[Labels, Codes]:
            return np.unique(numbers(chunk, kept), return_inverse=True)

        def cells(chunk: Chunk, kept: Kept) -> Codes:
            values = numbers(chunk, kept)
            codes = np.minimum(np.searchsorted(known, values), len(known) - 1)
            if np.any(known[codes] != values):
                raise _changed("clusters")
            return codes

        columns = tuple(dict.fromkeys(name for groups in every for name in groups.columns))
        known, rows, weights = self.tally(Tally(columns, "clusters", distinct)).settled()
        own, rest = [], known
        for groups in reversed(every):
            rest, codes = np.divmod(rest, len(groups))
            own.append(Groups(codes.astype(np.intp), groups.labels))
        counted = np.arange(len(known)), rows, weights
        return StreamedGroups(cells, columns, counted, self.tally), tuple(reversed(own))


@dataclass(frozen=True, eq=False)
class StreamedRows(Rows):
    """The rows of a table that is read in parts; `table` holds the names of its columns."""

    in_use: int = 0
    find: Callable[[str, str], StreamedGroups] | None = None
    known: dict[str, StreamedGroups] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return self.in_use

    @property
    def dropped(self) -> int:
        return self.original - self.used

    def align(self, values: object, argument: str) -> Labels:
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

"""CSV files as they are written: labels are text, numbers are read where numbers are asked for.

A reader that guesses types makes ``01`` and ``1`` one label, drops the country ``NA``, and shifts
every column when data lines end with a comma. Here a line that does not have one field per column
is refused, and nothing is converted before its use is known.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.formula import column_uses
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.foundation.storage import check_room, kind_of, lines_of, refuse_special

if TYPE_CHECKING:
    from _csv import Reader

    import pandas as pd

NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
#: What to do about a word among numbers.
LABELS = "correct it, or leave it empty if it is missing; write C(...) in a formula for labels"
#: What stands for a missing number; a missing label is an empty field only.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "#n/a", "."})
#: What other programs write between columns.
SEPARATORS = {";": "semicolons", "\t": "tabs"}
COMMAS = "write it with commas, and points in numbers (in R write.csv, not write.csv2)"
WRITE = "write it with a header and commas"


@dataclass(frozen=True, eq=False)
class CsvTable:
    r"""The fields of a CSV file with a header, as text, and the line on which each row starts.

    Errors are about `option`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "data.csv"
    >>> _ = path.write_text("school,x\n01,2.5\n1,NA\n")
    >>> table = CsvTable.read(path, "data")
    >>> list(table.labels("school")), table.numbers("x").tolist()
    (['01', '1'], [2.5, nan])
    """

    path: Path
    option: str
    fields: dict[str, list[str]]
    lines: list[int]

    @classmethod
    def read(cls, path: Path, option: str) -> CsvTable:
        """Read a file; refuse, with its line, a row that has not one field per column."""
        with _opened(path, option) as reader:
            header, rows, lines = _records(reader, path, option)
        _check_header(header, path, option)
        if not rows:
            raise InputError(option, f"{str(path)!r} has no rows", "it has a header only")
        columns = map(list, zip(*rows, strict=True))
        return cls(path, option, dict(zip(header, columns, strict=True)), lines)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def names(self) -> list[str]:
        """Names of the columns; one without a name, as pandas writes its index, has none."""
        return [name for name in self.fields if name]

    def column(self, name: str, option: str) -> list[str]:
        """Return the fields of a column as written."""
        if name not in self.names:
            problem = f"{str(self.path)!r} has no column {name!r}"
            raise InputError(option, problem, f"it has {self.names}")
        return self.fields[name]

    def labels(
        self, name: str, option: str = "", used: NDArray[np.intp] | None = None
    ) -> pd.Series[Any]:
        """Return a column's labels as written; an empty one in a row that is `used` is refused."""
        import pandas as pd

        option = option or self.option
        fields = self.column(name, option)
        rows = range(len(self)) if used is None else used
        empty = [int(row) for row in rows if not fields[row].strip()]
        if empty:
            where = f"{len(empty)} empty labels, the first on line {self.lines[empty[0]]}"
            problem = f"column {name!r} of {str(self.path)!r} has {where}"
            raise InputError(option, problem, "drop these rows or give each its own label")
        return pd.Series(fields, dtype=object, name=name)

    def numbers(self, name: str, option: str = "", advice: str = LABELS) -> Array:
        """Return a column as numbers, NaN where the field is empty, NA, NaN, null or the like.

        `advice` is what to do about a word among them.
        """
        option = option or self.option
        fields = self.column(name, option)
        words = (
            row
            for row, field in enumerate(fields)
            if not NUMBER.fullmatch(field) and field.strip().lower() not in MISSING
        )
        column, word = f"column {name!r} of {str(self.path)!r} has", next(words, None)
        if word is not None:
            raise InputError(
                option,
                f"{column} {fields[word]!r:.40} among numbers, on line {self.lines[word]}",
                advice,
            )
        values = np.array([float(f) if NUMBER.fullmatch(f) else np.nan for f in fields])
        beyond = np.flatnonzero(np.isinf(values))
        if len(beyond):
            where = f"{fields[beyond[0]]!r:.40} on line {self.lines[beyond[0]]}"
            problem = f"{column} {where}, which is beyond floating point"
            raise InputError(option, problem, "use another unit")
        return values

    def times(self, name: str, option: str) -> pd.Series[Any]:
        """Return a column as whole numbers or numbers, as labels where it holds other text."""
        import pandas as pd

        fields = self.labels(name, option).tolist()
        if all(WHOLE.fullmatch(field) for field in fields):
            return pd.Series([int(field) for field in fields], name=name)
        if all(NUMBER.fullmatch(field) for field in fields):
            return pd.Series(self.numbers(name, option), name=name)
        return self.labels(name, option)

    def frame(self, formula: str) -> pd.DataFrame:
        """Return the columns as a formula uses them: numbers, or categories of text.

        A column of words, or one inside ``C()``, holds labels as written, sorted by number where
        all are numbers; any other is numeric, and a word among its numbers is refused if the
        formula uses it. Columns that the formula does not use stay text.
        """
        import pandas as pd

        bare, inside = column_uses(formula, self.names)
        columns: dict[str, Array | pd.Categorical | pd.Series[Any]] = {}
        for name in self.names:
            fields = self.fields[name]
            numeric = any(NUMBER.fullmatch(field) for field in fields)
            if name in bare and numeric:
                columns[name] = values = self.numbers(name, "formula")
                if name in inside:
                    self._check_apart(name, values)
            elif name in bare or name in inside:
                columns[name] = _categories(fields)
            else:
                columns[name] = pd.Series(fields, dtype=object)
        return pd.DataFrame(columns)

    def dropped(self, frame: pd.DataFrame, kept: NDArray[np.intp] | None) -> str:
        """Return how many rows of a `frame` were not `kept`, and why, as a line; "" for none."""
        return dropped_rows(frame, kept, lambda row: f"on line {self.lines[row]}")

    def _check_apart(self, name: str, values: Array) -> None:
        """Refuse a column that is used as numbers and as labels, if two labels are one number."""
        seen: dict[float, str] = {}
        for field, value in zip(self.fields[name], values.tolist(), strict=True):
            other = seen.setdefault(value, field)
            if value == value and other != field:
                problem = (
                    f"uses column {name!r} as numbers and as labels, and {other!r} and {field!r}"
                )
                advice = "store the labels as a column of their own"
                raise InputError("formula", f"{problem} are one number", advice)


def dropped_rows(
    frame: pd.DataFrame, kept: NDArray[np.intp] | None, place: Callable[[int], str]
) -> str:
    """Return how many rows of a `frame` were not `kept`, and why; `place` says where one stands."""
    if kept is None:
        return ""
    out = np.setdiff1d(np.arange(len(frame)), kept)
    holes = frame.iloc[out].isna()
    reasons = [f"no {name} in {int(many)}" for name, many in holes.sum().items() if many]
    whole = int((~holes.any(axis=1)).sum())
    reasons += [f"no value of the formula in {whole}"] if whole else []
    return (
        f"{len(out)} of {len(frame)} rows dropped ({', '.join(reasons)}), the first "
        f"{place(int(out[0]))}"
    )


def header_of(path: Path, option: str) -> list[str]:
    r"""Return the names in the first line of a file; refuse two columns of one name.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "draws.csv"
    >>> _ = path.write_text('"","b[1,2]"\n1,0.5\n')
    >>> header_of(path, "fit")
    ['', 'b[1,2]']
    """
    with _opened(path, option) as reader:
        try:
            header = next(reader, [])
        except csv.Error as error:
            problem = f"{str(path)!r} cannot be read as CSV: line 1, {error}"
            raise InputError(option, problem, WRITE) from None
    if not header:
        raise InputError(option, f"{str(path)!r} cannot be read as CSV: it is empty", WRITE)
    _check_header(header, path, option)
    return header


@contextlib.contextmanager
def _opened(path: Path, option: str) -> Iterator[Reader]:
    """Open a file as CSV; refuse what is none by its first bytes or line."""
    refuse_special(path, option)
    if not path.is_file():
        raise InputError(option, f"there is no file {str(path)!r}")
    check_room(str(path), path.stat().st_size, option, "keep the columns that are used")
    if kind := kind_of(path):
        raise InputError(option, f"{str(path)!r} is {kind}, not CSV", WRITE)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = next(lines_of(file, path, option), "")
            for separator, word in SEPARATORS.items():
                if separator in first and "," not in first:
                    problem = f"{str(path)!r} has {word} between its columns"
                    raise InputError(option, problem, COMMAS)
            file.seek(0)
            yield csv.reader(lines_of(file, path, option), strict=True)
    except UnicodeDecodeError as error:
        problem = f"cannot be read as CSV: it is not UTF-8 (byte {error.start})"
        raise InputError(option, f"{str(path)!r} {problem}", "save it as UTF-8") from None


def _check_header(header: Sequence[str], path: Path, option: str) -> None:
    """Refuse names that stand for several columns."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        problem = f"{str(path)!r} has several columns named {twice}"
        raise InputError(option, problem, "rename them in its first line")


def _records(
    reader: Reader, path: Path, option: str
) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the header, the rows and the line each starts on; blank lines end a file."""
    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    blank, line = 0, 1
    unreadable = f"{str(path)!r} cannot be read as CSV"
    try:
        for row in reader:
            empty = not row or (len(header) > 1 and len(row) == 1 and not row[0].strip())
            if empty:
                blank = blank or line
            elif blank:
                problem = f"line {blank} of {str(path)!r} is empty, and others follow"
                raise InputError(option, problem, "delete it, or write its commas")
            elif not header:
                header = row
            elif len(row) != len(header):
                raise InputError(
                    option,
                    f"line {line} of {str(path)!r} has {len(row)} fields for {len(header)} columns",
                    "write one field per column, and quote one that has a comma; a comma at the "
                    "end of a line begins another field",
                )
            else:
                rows.append(row)
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(option, f"{unreadable}: line {line}, {error}", WRITE) from None
    if not header:
        raise InputError(option, f"{unreadable}: it is empty", WRITE)
    return header, rows, lines


def _categories(fields: list[str]) -> pd.Categorical:
    """Return labels as a categorical, in the order of their numbers if all are numbers."""
    import pandas as pd

    labels = sorted({field for field in fields if field.strip()})
    if all(NUMBER.fullmatch(label) for label in labels):
        labels.sort(key=float)
    return pd.Categorical([f if f.strip() else None for f in fields], categories=labels)

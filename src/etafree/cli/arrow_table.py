"""Parquet and Arrow (Feather) files: columns of the types in which they are stored.

Types are known, so nothing is guessed. An index that pandas wrote into the file, other than a mere
count of rows, stays with its labels, which are then lined up by it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.cli.csv_table import CsvTable, dropped_rows
from etafree.data.formula import column_uses
from etafree.data.labels import as_frame, as_plain
from etafree.data.sources import module, parquet, reading
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.foundation.storage import check_claim, check_room, refuse_special

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow import dataset as ds

#: What the file formats are called by PyArrow.
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".feather": "feather", ".arrow": "feather"}

#: How pandas calls the columns of an index without a name.
UNNAMED = "__index_level_"


@dataclass(frozen=True, eq=False)
class ArrowTable:
    """A Parquet or Arrow file whose columns are read when they are asked for.

    Errors are about `option`.

    Examples
    --------
    >>> import pandas as pd, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "data.parquet"
    >>> pd.DataFrame({"school": ["01", "1"], "x": [2.5, None]}).to_parquet(path)
    >>> table = ArrowTable.read(path, "data")
    >>> table.names, table.labels("school").tolist()
    (['school', 'x'], ['01', '1'])
    """

    path: Path
    option: str
    stored: ds.Dataset
    rows: int

    @classmethod
    def read(cls, path: Path, option: str) -> ArrowTable:
        """Open a file; refuse one that is damaged, or claims more rows than it can have."""
        refuse_special(path, option)
        if not path.is_file():
            raise InputError(option, f"there is no file {str(path)!r}")
        kind = FORMATS[path.suffix.lower()]
        try:
            if kind == "parquet":
                parquet([str(path)])  # its footer, and whether it holds what it claims
            with reading(str(path)):
                stored = module("pyarrow.dataset").dataset(str(path), format=kind)
                rows, names = stored.count_rows(), stored.schema.names
            if rows < 0:
                raise _damaged(path, option)
            check_claim(path, rows, os.path.getsize(path), option)
        except InputError as error:
            raise InputError(option, error.problem, error.advice) from None
        if not rows:
            raise InputError(option, f"{str(path)!r} has no rows", "it has a header only")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(option, f"{str(path)!r} has several columns named {twice}")
        return cls(path, option, stored, rows)

    def __len__(self) -> int:
        return self.rows

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [name for name in self.stored.schema.names if not name.startswith(UNNAMED)]

    def labels(
        self, name: str, option: str = "", used: NDArray[np.intp] | None = None
    ) -> pd.Series[Any]:
        """Return a column's labels; a missing or empty one in a row that is `used` is refused."""
        option = option or self.option
        if name not in self.names:
            problem = f"{str(self.path)!r} has no column {name!r}"
            raise InputError(option, problem, f"it has {self.names}")
        labels = self._columns([name], option)[name]
        missing = labels.isna() | labels.map(
            lambda label: isinstance(label, str) and not label.strip()
        )
        rows = np.arange(len(self)) if used is None else used
        empty = rows[missing.to_numpy()[rows]]
        if len(empty):
            where = f"{len(empty)} empty labels, the first in row {empty[0]}, counted from 0"
            problem = f"column {name!r} of {str(self.path)!r} has {where}"
            raise InputError(option, problem, "drop these rows or give each its own label")
        return labels.set_axis(self._index(option))

    def times(self, name: str, option: str) -> pd.Series[Any]:
        """Return a column of times: numbers and dates as they are stored, text as labels."""
        return self.labels(name, option)

    def numbers(self, names: list[str], advice: str) -> Array:
        """Return columns as numbers (rows, columns), NaN where one is missing."""
        frame = self._columns(names, self.option)
        words = [name for name in names if frame[name].dtype.kind not in "biuf"]
        if words:
            problem = f"{str(self.path)!r} has columns that are not numbers: {words[:5]}"
            raise InputError(self.option, problem, advice)
        return frame.to_numpy(dtype=np.float64)

    def frame(self, formula: str) -> pd.DataFrame:
        """Return the columns that a screened formula uses."""
        bare, inside = column_uses(formula, self.names)
        used = [name for name in self.names if name in bare | inside]
        return self._columns(used, "formula").set_axis(self._index("formula"))

    def dropped(self, frame: pd.DataFrame, kept: NDArray[np.intp] | None) -> str:
        """Return how many rows of a `frame` were not `kept`, and why, as a line; "" for none."""
        return dropped_rows(frame, kept, lambda row: f"in row {row}, counted from 0")

    def _columns(self, names: list[str], option: str) -> pd.DataFrame:
        """Return columns in the types in which they are used, rows counted from 0."""
        try:
            with reading(str(self.path)):
                check_room(str(self.path), 8 * len(self) * len(names), option, "keep fewer rows")
                table = self.stored.to_table(columns=names)
                table.validate(full=True)  # offsets of a damaged file lead anywhere
                frame = as_frame(as_plain(table, names), names)
            if len(frame) != len(self):
                raise _damaged(self.path, option)
            return frame
        except InputError as error:
            raise InputError(option, error.problem, error.advice) from None

    def _index(self, option: str) -> pd.Index:
        """Return the index that pandas stored with the table, else a count of its rows."""
        import pandas as pd

        known = set(self.stored.schema.names)
        try:
            about = json.loads((self.stored.schema.metadata or {})[b"pandas"])
            fields = [f for f in about["index_columns"] if isinstance(f, str) and f in known]
        except (LookupError, TypeError, ValueError):  # it may be damaged, and nothing else needs it
            fields = []
        if not fields:
            return pd.RangeIndex(len(self))
        names = [None if field.startswith(UNNAMED) else field for field in fields]
        levels = self._columns(fields, option).set_axis(names, axis=1)
        return pd.Index(levels[names[0]]) if len(names) == 1 else pd.MultiIndex.from_frame(levels)


def _damaged(path: Path, option: str) -> InputError:
    return InputError(option, f"{str(path)!r} has not the rows it claims", "write it again")


def table_of(path: Path, option: str) -> CsvTable | ArrowTable:
    """Return the table in a file: Parquet or Arrow by its suffix, CSV otherwise."""
    return (ArrowTable if path.suffix.lower() in FORMATS else CsvTable).read(path, option)

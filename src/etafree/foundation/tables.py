"""Tables and columns of polars, PyArrow and others become pandas's: what `as_pandas` does to them.

The library computes with numpy and knows pandas. What narwhals knows is turned into it column by
column, and means there what the same column in pandas, or in a Parquet file, does: decimals are
numbers, days and text are categories, an Enum has its categories in their order.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd


def converted(value: Any) -> Any:
    """Return a table of another library as a DataFrame, a column as an array.

    Rows are counted from 0. A column has no index, since it had none. A lazy table is collected.
    """
    from narwhals.stable import v2 as nw

    try:
        known = nw.from_native(value, allow_series=True)
    except TypeError:  # a batch, say, or a library that narwhals does not know
        known = nw.from_native(_arrow(value), allow_series=True)
    except ValueError as error:  # names that are there twice
        reason = " ".join(str(error).split())
        raise InputError(
            "data", f"is not a table with valid column names ({reason})", "rename columns"
        ) from None
    table: Any = known.collect() if isinstance(known, nw.LazyFrame) else known
    return _column(table) if isinstance(table, nw.Series) else _frame(table)


def _arrow(value: Any) -> Any:
    """Return a table or column that speaks Arrow as PyArrow's."""
    try:
        arrow = importlib.import_module("pyarrow")
    except ImportError:
        raise MissingExtraError("dask", f"tables of {type(value).__module__}") from None
    return arrow.table(value) if hasattr(value, "schema") else arrow.chunked_array([value])


def _frame(table: Any) -> pd.DataFrame:
    import pandas as pd

    columns = {column.name: _column(column) for column in table.iter_columns()}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(table)), copy=False)


def _column(column: Any) -> Any:
    """Return a column as numpy has it, or pandas where numpy has no such type."""
    import pandas as pd
    from narwhals.stable import v2 as nw

    kind = column.dtype
    if kind.is_integer() and column.null_count():
        whole = "Int64" if kind.is_signed_integer() else "UInt64"
        return pd.Series(column.to_list(), dtype=whole).array
    if isinstance(kind, nw.Enum):
        return pd.Categorical(column.to_list(), categories=list(kind.categories))
    if isinstance(kind, nw.Datetime) and kind.time_zone is not None:
        return pd.DatetimeIndex(column.to_numpy(), tz="UTC").tz_convert(kind.time_zone).array
    if isinstance(kind, nw.Date | nw.Struct):
        return np.array([*column.to_list(), None], dtype=object)[:-1]
    values = column.to_numpy()
    return values.astype(object) if values.dtype.kind == "U" else values

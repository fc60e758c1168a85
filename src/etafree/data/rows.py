r"""Which rows of the user's table a criterion uses, and how other columns are lined up with them.

Observation weights: what they may be, and which kind they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.errors import InputError
from etafree.foundation.arguments import (
    Array,
    Labels,
    as_array,
    as_choice,
    as_pandas,
    owned,
    refuse_masked,
)

if TYPE_CHECKING:
    import pandas as pd

    from etafree.data.formula import RightSide


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows kept out of an original table.

    Attributes
    ----------
    original : int
        Number of rows of the table as it came.
    kept : (n,) int array or None
        Positions of the rows in use; None means all.
    index : pandas Index or None
        Labels of the original rows.
    table : pandas DataFrame or None
        Where a column may be asked for by name.
    advice : str
        What to do when a vector does not fit.
    missing : int
        Rows that were left out because a value is missing.
    clusters : labels or column names, optional
        Clusters that the data were said to come in: the default where none are named.
    right : RightSide or None
        The right side of a formula, which makes rows of other tables.
    named : bool
        Whether the index has labels of the rows; a mere count is no index of the user's table.
    """

    original: int
    kept: NDArray[np.intp] | None = None
    index: pd.Index | None = None
    table: Any = None
    advice: str = "pass one value per row of the data"
    missing: int = 0
    clusters: object = None
    right: RightSide | None = None
    named: bool = True

    @property
    def used(self) -> int:
        """Number of rows in use."""
        return self.original if self.kept is None else len(self.kept)

    @property
    def observations(self) -> int:
        """Number of observations in use."""
        return self.used

    @property
    def independent(self) -> str:
        """What is independent where nothing is said to depend on each other, in words."""
        return "independent observations"

    @property
    def dropped(self) -> int:
        """Number of rows left out."""
        return 0 if self.kept is None else self.original - len(self.kept)

    def align(self, values: object, argument: str) -> Labels:
        """Return one value per row in use.

        A pandas Series is matched by its index, a name is a column of the table, and anything else
        goes by position: one value per original row, or one per row in use.
        """
        if isinstance(values, str) and self.table is not None:
            values = self._column(values, argument)
        if not isinstance(values, np.ndarray):
            values = as_pandas(values)
        label_index = _index_of(values)
        if label_index is not None and self._is_matched(label_index):
            return self._by_label(values, label_index, argument)
        array = _entries(values, argument)
        if len(array) == self.original:
            return array if self.kept is None else array[self.kept]
        if self.kept is not None and len(array) == len(self.kept):
            return array
        used = "" if self.kept is None else f" ({len(self.kept)} in use)"
        raise InputError(
            argument, f"has {len(array)} entries for {self.original} rows{used}", self.advice
        )

    def _is_matched(self, labels: pd.Index) -> bool:
        """Return whether labels are looked up: others than the index, which may be their count.

        Of a table whose rows with missing values were dropped the index has gaps.
        """
        if self.index is None or labels.equals(self.index):
            return False
        rows = self.original - self.dropped
        return self.named or len(labels) != rows or bool(labels.isin(self.index).all())

    def groups(self, labels: object, argument: str, *, numeric: bool = False) -> Groups:
        """Return the groups of rows that labels make, whatever `align` takes."""
        if isinstance(labels, Groups):
            return labels
        values = self.align(labels, argument)
        if numeric:
            values = as_array(values, argument, shape=(self.used,))
        return Groups.of(values, self.used, argument)

    def each(self, argument: str) -> Groups:
        """Return every row as a group of its own."""
        return Groups(np.arange(self.used), np.arange(self.used))

    def _column(self, name: str, argument: str) -> object:
        if name not in self.table.columns:
            raise InputError(
                argument, f"names no column {name!r}", f"choose from {list(self.table.columns)}"
            )
        return self.table[name]

    def _by_label(self, values: object, label_index: pd.Index, argument: str) -> Labels:
        assert self.index is not None
        wanted = self.index if self.kept is None else self.index[self.kept]
        if not label_index.is_unique:
            problem = "has an index with duplicates that differs from the data's"
            raise InputError(argument, problem, "pass a plain array in the order of the rows")
        where = label_index.get_indexer(wanted)
        if np.any(where < 0):
            first = wanted[where < 0][:1].tolist()[0]
            problem = f"has no value for {int((where < 0).sum())} of the rows in use, for example"
            advice = (
                "its index must contain the data's index; if it is in their order pass an array"
            )
            raise InputError(argument, f"{problem} index {first!r}", advice)
        return np.asarray(np.asarray(values)[where])


def _entries(values: object, argument: str) -> Labels:
    """Return values as an array with an axis, its missing labels as they came."""
    if type(values) is np.ndarray and values.ndim and values.dtype != object:
        return values
    refuse_masked(values, argument)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
            array = np.asarray(values, dtype=object)  # keep None and NaN what they are
    except ValueError:
        raise InputError(argument, "is ragged", "pass one value per row") from None
    if array.ndim == 0:
        raise InputError(argument, f"is {values!r}", "pass one value per row")
    return array


def _index_of(values: object) -> pd.Index | None:
    """Return the index of a pandas object, None for anything else: a list's is a method."""
    index = getattr(values, "index", None)
    return None if callable(index) else index


def shared_index(X: object, y: object) -> pd.Index | None:
    """Return the pandas index that X and y share, None for plain arrays."""
    first, other = _index_of(y), _index_of(X)
    if first is not None and other is not None and not first.equals(other):
        raise InputError("y", "has an index that differs from X's", "sort both by the same index")
    return other if first is None else first


def checked_arrays(data: object) -> tuple[Array, Array, Rows]:
    """Return the design matrix and the response of a tuple (X, y), and their rows."""
    if not isinstance(data, tuple) or len(data) != 2:
        raise InputError("data", f"is a {type(data).__name__}", "pass a tuple (X, y)")
    if getattr(data[0], "ndim", 2) == 1:
        raise InputError("X", "is a vector but must have 2 dimensions", "pass X[:, None]")
    X = np.ascontiguousarray(as_array(data[0], "X", ndim=2))
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise InputError("X", f"has shape {X.shape}", "pass at least one row and one column")
    y = as_array(data[1], "y", ndim=1)
    if len(y) != len(X):
        raise InputError("y", f"has {len(y)} entries but X has {len(X)} rows")
    return X, y, Rows(len(X), None, shared_index(*data))


KINDS = ("frequency", "sampling")


def checked_weights(
    rows: Rows, n: int, weights: object, weight_kind: str | None
) -> tuple[Array | None, bool]:
    """Return checked weights, and whether they count copies."""
    frequency = weight_kind != "sampling"
    w = None
    if weights is not None:
        w = owned(as_array(rows.align(weights, "weights"), "weights", shape=(n,)))
    if w is not None or weight_kind is not None:
        as_choice(weight_kind, "weight_kind", KINDS)
    if w is not None:
        _check_weights(w, frequency)
    return w, frequency


def _check_weights(weights: Array, frequency: bool) -> None:
    if np.any(weights < 0):
        raise InputError("weights", f"has the negative value {weights.min()}", "pass at least zero")
    if weights.max() > 1e150:
        raise InputError("weights", f"reach {weights.max():.1g}", "divide them by a constant")
    if not weights.sum() > 0:
        raise InputError("weights", "are all zero", "some must be above")
    if frequency and np.any(weights != np.round(weights)):
        problem = "count copies of rows but are not whole numbers"
        raise InputError("weights", problem, "use weight_kind='sampling' if they are not counts")

"""Groups of rows: a code for every row, and the label of every code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation.arguments import Array, Labels, refuse_masked
from etafree.foundation.terminal import counted_noun


class Groups:
    """Which group each row belongs to.

    Attributes
    ----------
    codes : (n,) int array
        Number of the row's group, from 0.
    labels : (G,) array
        The groups' own labels, sorted.

    Examples
    --------
    >>> g = Groups.of(["b", "a", "b"], 3)
    >>> g.codes.tolist(), g.labels.tolist(), len(g)
    ([1, 0, 1], ['a', 'b'], 2)
    """

    def __init__(
        self, codes: NDArray[np.intp], labels: Labels, sizes: NDArray[np.intp] | None = None
    ) -> None:
        self.codes = codes
        self.labels = labels
        self._sizes = sizes  # counted once

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, values: object, rows: int, argument: str = "clusters", unit: str = "row") -> Groups:
        """Return the groups of a vector of labels, checked for length and missing values."""
        refuse_masked(values, argument)
        try:
            array = np.asarray(values)
        except ValueError as error:  # lists of several lengths
            problem = f"is not a vector of labels ({error})"
            raise InputError(argument, problem, f"pass one label per {unit}") from None
        if array.ndim != 1:
            problem = f"has shape {array.shape} but must have one label per {unit}"
            raise InputError(argument, problem)
        if len(array) != rows:
            problem = f"has {len(array)} labels for {counted_noun(rows, unit)}"
            raise InputError(argument, problem, f"pass one label per {unit}")
        missing = _missing(array)
        if missing.any():
            raise InputError(
                argument,
                f"has {int(missing.sum())} missing labels, first at row {int(missing.argmax())}",
                "drop these rows or give each its own label",
            )
        if array.dtype.kind in "iu" and rows:
            low, high = int(array.min()), int(array.max())
            span = high - low + 1
            # a table of counts is cheaper than a sort
            if span <= 4 * rows + 1024 and high <= np.iinfo(np.intp).max:
                array = array.astype(np.intp) - low  # never the caller's own array
                sizes = np.bincount(array, minlength=span)
                present = sizes > 0
                if present.all():
                    return cls(array, np.arange(low, low + span), sizes)
                numbers = np.cumsum(present) - 1
                return cls(numbers[array], np.flatnonzero(present) + low, sizes[present])
        try:
            labels, codes = np.unique(array, return_inverse=True)
        except (TypeError, ValueError):  # labels of several types do not sort: compare them as text
            labels, codes = np.unique([str(label) for label in array], return_inverse=True)
            if len({(type(v).__name__, str(v)) for v in array}) != len(labels):
                raise InputError(
                    argument,
                    "has labels of different types that read the same, such as 1 and '1'",
                    "make them one type",
                ) from None
        return cls(codes.astype(np.intp).reshape(-1), labels)

    def sizes(self) -> NDArray[np.intp]:
        """Return the number of rows in every group (G,)."""
        if self._sizes is None:
            self._sizes = np.bincount(self.codes, minlength=len(self))
        return self._sizes

    def weights(self, weights: Array | None) -> Array:
        """Return the sum of the rows' weights in every group (G,), None for one each."""
        if weights is None:
            return self.sizes().astype(np.float64)
        return np.bincount(self.codes, weights, len(self)).astype(np.float64, copy=False)

    def crossed(self, *others: Groups) -> tuple[Groups, tuple[Groups, ...]]:
        """Return the cells of rows that share all their groups, and every cell's own groups.

        Examples
        --------
        >>> cells, (a, b) = Groups.of([1, 1, 2], 3).crossed(Groups.of(["x", "y", "x"], 3))
        >>> cells.codes.tolist(), a.codes.tolist(), b.codes.tolist()
        ([0, 1, 2], [0, 0, 1], [0, 1, 0])
        """
        every = (self, *others)
        codes = np.column_stack([groups.codes for groups in every])
        cells, cell = np.unique(codes, axis=0, return_inverse=True)
        own = (Groups(cells[:, k].astype(np.intp), way.labels) for k, way in enumerate(every))
        return Groups(cell.reshape(-1).astype(np.intp), np.arange(len(cells))), tuple(own)

    def labelled(self, labels: Labels) -> Groups:
        """Return the same groups with other labels."""
        return Groups(self.codes, labels, self._sizes)

    def merged(self, into: Groups) -> Groups:
        """Return the groups of rows when these groups belong to larger ones."""
        return Groups(into.codes[self.codes], into.labels)

    def in_row_order(self) -> NDArray[np.intp]:
        """Return the groups in the order of their first rows."""
        _, first = np.unique(self.codes, return_index=True)
        return np.argsort(first, kind="stable")

    def order(self) -> tuple[NDArray[np.intp] | None, NDArray[np.intp]]:
        """Return the rows sorted by group (None if they are) and where each group starts."""
        starts = np.zeros(len(self) + 1, dtype=np.intp)
        np.cumsum(self.sizes(), out=starts[1:])
        if np.all(self.codes[1:] >= self.codes[:-1]):
            return None, starts
        return np.argsort(self.codes, kind="stable"), starts


def _missing(array: Labels) -> NDArray[np.bool_]:
    if array.dtype.kind in "fmM":  # NaN and NaT differ from themselves
        return np.asarray(array != array, dtype=bool)
    if array.dtype.kind == "O":
        return np.array(
            [v is None or (type(v) is not str and not _equals_itself(v)) for v in array]
        )
    return np.zeros(len(array), dtype=bool)


def _equals_itself(value: object) -> bool:
    """False for NaN, NaT and pandas' NA, whose comparisons are not true."""
    try:
        return bool(value == value)
    except (TypeError, ValueError):
        return False

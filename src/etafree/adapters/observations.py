"""Observations of a fit along their dimensions, and labels lined up with them.

Labels go by name wherever they have names: a DataArray by its coordinates, a pandas object by its
index. One label per subject is spread over the subject's observations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.adapters.trees import SAMPLE_DIMS, loaded
from etafree.errors import InputError
from etafree.rows import Rows

__all__ = ["Observations", "find_observations"]


@dataclass(frozen=True, eq=False)
class Observations:
    """The dimensions and coordinates of a fit's observations.

    Attributes
    ----------
    frame : xarray.DataArray
        Of the observations' shape; its values do not matter.
    """

    frame: Any

    @classmethod
    def of(cls, array: Any) -> Observations:
        """Return the observations of an array that may have chains and draws too."""
        first = {dim: 0 for dim in SAMPLE_DIMS if dim in array.dims}
        return cls(array.isel(first, drop=True))

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of the observations."""
        return tuple(map(str, self.frame.dims))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of observations along each dimension."""
        return tuple(map(int, self.frame.shape))

    @property
    def n(self) -> int:
        """Number of observations."""
        return int(np.prod(self.shape))

    def has(self, array: Any) -> bool:
        """Return whether a DataArray is along the observations: their dimensions, or one unnamed.

        ArviZ calls the first dimension of a variable ``g`` without dimensions ``g_dim_0``.
        """
        if array.ndim == len(self.dims) == 1 and any(
            str(dim).endswith("_dim_0") for dim in (array.dims[0], self.dims[0])
        ):
            return bool(array.size == self.n)
        sizes = dict(zip(self.dims, self.shape, strict=True))
        return array.ndim > 0 and all(sizes.get(d) == size for d, size in array.sizes.items())

    def spread(self, array: Any, argument: str = "clusters") -> NDArray[Any]:
        """Return a DataArray along some of the observations' dimensions as one value each (n,)."""
        if not self.has(array):
            raise InputError(
                argument, f"has dimensions {dict(array.sizes)}, the log-likelihood "
                f"{dict(self.frame.sizes)}", "pass one label per observation",
            )  # fmt: skip
        for dim in array.dims:  # by coordinate, where both have one
            if dim in self.frame.coords and dim in array.coords:
                array = _ordered(array, self.frame, dim, argument)
        bare = array.drop_vars([*array.coords])
        if len(self.dims) == 1:
            bare = bare.rename({bare.dims[0]: self.dims[0]})
        wide = bare.expand_dims(
            {dim: self.frame.sizes[dim] for dim in self.dims if dim not in bare.dims}
        )
        flat: NDArray[Any] = loaded(wide.transpose(*self.dims)).reshape(-1)
        return flat

    def flat(self, labels: Any, argument: str) -> Any:
        """Return labels of any form with one value per observation where they have dimensions.

        Those of one dimension that are not xarray's are left to `Rows.align`.
        """
        if isinstance(labels, Mapping):
            return {name: self.flat(part, argument) for name, part in labels.items()}
        if isinstance(labels, list | tuple) and any(
            _is_xarray(part) or _is_pandas(part) for part in labels
        ):
            return [self.flat(part, argument) for part in labels]
        if _is_xarray(labels):
            return self.spread(labels, argument)
        if len(self.dims) == 1:
            return labels
        if _is_pandas(labels):
            return self._of_pandas(labels, argument)
        try:
            return np.asarray(labels).reshape(-1) if np.shape(labels) == self.shape else labels
        except ValueError:  # ragged, which is refused with all that is
            return labels

    def _of_pandas(self, labels: Any, argument: str) -> Any:
        """Return pandas labels by their index, the columns of a table one by one.

        A table of the observations' shape has one dimension in its rows, the other in its columns.
        """
        import xarray as xr

        if np.shape(labels) == self.shape:
            axes = zip(self.dims, (labels.index, labels.columns), strict=True)
            coords = {dim: index for dim, index in axes if self._says(dim, index)}
            return self.spread(xr.DataArray(labels.to_numpy(), coords, self.dims), argument)
        dims = self._levels(labels.index, argument)
        if dims is None:
            return labels
        if hasattr(labels, "columns"):
            return {str(name): self.flat(labels[name], argument) for name in labels.columns}
        values = np.asarray(labels)[self._places(labels.index, dims, argument)]
        shape = [self.frame.sizes[dim] for dim in dims]
        array = xr.DataArray(values.reshape(shape), dims=dims)
        return type(labels)(self.spread(array, argument), name=labels.name)

    def _coordinate(self, dim: str) -> Any:
        """Return the labels along a dimension, 0, 1, ... if it has none."""
        import pandas as pd

        known = dim in self.frame.indexes
        return self.frame.indexes[dim] if known else pd.RangeIndex(self.frame.sizes[dim])

    def _says(self, dim: str, index: Any) -> bool:
        """Return whether an index and a coordinate can be compared: one may be a mere count."""
        here = self._coordinate(dim)
        return bool(index.isin(here).all() or not here.equals(_count(len(here))))

    def _levels(self, index: Any, argument: str) -> list[str] | None:
        """Return the dimensions that an index has labels of, None if it counts observations."""
        names = [None if name is None else str(name) for name in index.names]
        if all(name in self.dims for name in names):
            return [str(name) for name in names]
        if index.nlevels == len(self.dims) and not any(names):
            return list(self.dims)
        if index.nlevels == 1:
            along = [dim for dim in self.dims if len(index) == self.frame.sizes[dim]
                     and index.isin(self._coordinate(dim)).all()]  # fmt: skip
            return along if len(along) == 1 else None
        raise InputError(argument, f"has an index of {names}, the log-likelihood dimensions "
                         f"{list(self.dims)}", "give its levels these names")  # fmt: skip

    def _places(self, index: Any, dims: Sequence[str], argument: str) -> NDArray[np.intp]:
        """Return where an index has the label of every entry along some dimensions."""
        import pandas as pd

        parts = [self._coordinate(dim) for dim in dims]
        wanted = parts[0] if len(parts) == 1 else pd.MultiIndex.from_product(parts)
        if not index.is_unique:
            raise InputError(argument, f"has labels of {list(dims)} twice in its index",
                             "pass each once")  # fmt: skip
        where: NDArray[np.intp] = index.get_indexer(wanted)
        if np.any(where < 0):
            raise InputError(
                argument, f"has no value for {int((where < 0).sum())} of {len(wanted)} labels of "
                f"{list(dims)}, for example {wanted[int((where < 0).argmax())]!r}",
                "its index must contain the coordinates of the log-likelihood",
            )  # fmt: skip
        return where

    def rows(self, tables: Iterable[Any]) -> Rows:
        """Return the rows, with variables and coordinates along them by name."""
        import pandas as pd

        columns: dict[str, Any] = {}
        elsewhere: dict[str, tuple[int, ...]] = {}
        holders = (*tables, self.frame)
        for table in holders:
            variables = getattr(table, "data_vars", {})
            for key, array in (*variables.items(), *table.coords.items()):
                name = str(key)
                own = name in variables or {*array.dims} <= {*self.dims}
                if name not in columns and own and self.has(array):
                    columns[name] = self.spread(array)
                elif name not in columns and own and array.shape == self.shape == (self.n,):
                    columns[name] = loaded(array)  # the fit's own, whatever its dimension's name
                elif name in variables:
                    elsewhere[name] = array.shape
        advice = f"pass one value per observation of log_likelihood {self.dims}"
        found = {name: shape for name, shape in elsewhere.items() if name not in columns}
        index = _count(self.n)
        for holder in (self.frame, *holders) if len(self.dims) == 1 else ():
            if self.dims[0] in holder.coords and holder.sizes.get(self.dims[0]) == self.n:
                index = holder.indexes[self.dims[0]]
                break
        table = pd.DataFrame(columns, index=index)
        return _Named(self.n, None, index, table, advice, elsewhere=found)


def find_observations(groups: Iterable[Any], n: int) -> Observations:
    """Return the dimensions of n observations in datasets that hold them, one unnamed if none does.

    Vectors that are observed have a dimension more than their log-likelihood.
    """
    import xarray as xr

    frames = [Observations.of(array).frame for group in groups
              for array in group.data_vars.values()]  # fmt: skip
    frames += [frame.isel({d: 0 for d in frame.dims if d != dim}, drop=True)
               for frame in frames for dim in frame.dims]  # fmt: skip
    unnamed = xr.DataArray(np.zeros(n), dims="observation_dim_0")
    return Observations(next((frame for frame in frames if frame.size == n), unnamed))


def _count(n: int) -> Any:
    import pandas as pd

    return pd.RangeIndex(n)


def _is_xarray(value: Any) -> bool:
    return hasattr(value, "dims") and hasattr(value, "coords")


def _is_pandas(value: Any) -> bool:
    return not callable(getattr(value, "index", len))  # lists and texts have a method


def _ordered(array: Any, frame: Any, dim: Any, argument: str) -> Any:
    """Return labels in the order of the log-likelihood's coordinate; refuse other coordinates."""
    here, wanted = array.indexes[dim], frame.indexes[dim]
    if here.equals(wanted):
        return array
    if not here.is_unique or not wanted.is_unique or not here.isin(wanted).all():
        raise InputError(argument, f"has other coordinates along {dim!r} than the log-likelihood",
                         "give both the same, or pass a plain array in its order")  # fmt: skip
    return array.sel({dim: wanted})


@dataclass(frozen=True, eq=False)
class _Named(Rows):
    """Rows of a fit; `elsewhere` has the shapes of variables that are not along them."""

    elsewhere: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def align(self, values: Any, argument: str) -> NDArray[Any]:
        """Return one value per row, with a list of the names there are if one is not."""
        if isinstance(values, str) and values not in self.table.columns:
            shape = self.elsewhere.get(values)
            what = f"names no column {values!r}" if shape is None else (
                f"names {values!r}, which has shape {shape} for {self.original} observations"
            )  # fmt: skip
            other = [f"{name!r} of shape {shape}" for name, shape in self.elsewhere.items()]
            there = f"; not along the observations: {', '.join(other[:8])}" if other else ""
            raise InputError(argument, what, f"choose from {[*self.table.columns]}{there}; or pass "
                             "labels, on the command line as file.csv:column")  # fmt: skip
        return super().align(values, argument)

r"""Observations of a fit along their dimensions, labels lined up with them, and stored losses.

Labels go by name wherever they have names: a DataArray by its coordinates, a pandas object by its
index. One label per subject is spread over the subject's observations.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.fits.trees import SAMPLE_DIMS, loaded
from etafree.foundation.arguments import Array, as_pandas
from etafree.foundation.check import Finding

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True, eq=False)
class Observations:
    """The dimensions and coordinates of a fit's observations; the frame's values do not matter."""

    frame: xr.DataArray

    @classmethod
    def of(cls, array: xr.DataArray) -> Observations:
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

    def has(self, array: xr.DataArray) -> bool:
        """Return whether a DataArray is along the observations: their dimensions, or one unnamed.

        ArviZ calls the first dimension of a variable ``g`` without dimensions ``g_dim_0``.
        """
        if array.ndim == len(self.dims) == 1 and any(
            str(dim).endswith("_dim_0") for dim in (array.dims[0], self.dims[0])
        ):
            return bool(array.size == self.n)
        sizes: dict[Hashable, int] = dict(zip(self.dims, self.shape, strict=True))
        return array.ndim > 0 and all(sizes.get(d) == size for d, size in array.sizes.items())

    def spread(self, array: xr.DataArray, argument: str = "clusters") -> NDArray[Any]:
        """Return a DataArray along some of the observations' dimensions as one value each (n,)."""
        if not self.has(array):
            sizes = f"{dict(array.sizes)}, the log-likelihood {dict(self.frame.sizes)}"
            raise InputError(argument, f"has dimensions {sizes}", "pass one label per observation")
        for dim in array.dims:  # by coordinate, where both have one
            if dim in self.frame.coords and dim in array.coords:
                array = _ordered(array, self.frame, dim, argument)
        bare = array.drop_vars([*array.coords])
        if len(self.dims) == 1:
            bare = bare.rename({bare.dims[0]: self.dims[0]})
        missing = {dim: self.frame.sizes[dim] for dim in self.dims if dim not in bare.dims}
        return loaded(bare.expand_dims(missing).transpose(*self.dims)).reshape(-1)

    def flat(self, labels: object, argument: str) -> object:
        """Return labels of any form with one value per observation where they have dimensions.

        Those of one dimension that are not xarray's are left to `Rows.align`.
        """
        import pandas as pd
        import xarray as xr

        labels = as_pandas(labels)
        if isinstance(labels, Mapping):
            return {name: self.flat(each, argument) for name, each in labels.items()}
        named = (xr.DataArray, pd.Series, pd.DataFrame)
        if isinstance(labels, list | tuple) and any(isinstance(each, named) for each in labels):
            return [self.flat(each, argument) for each in labels]
        if isinstance(labels, xr.DataArray):
            return self.spread(labels, argument)
        if len(self.dims) == 1:
            return labels
        if isinstance(labels, pd.Series | pd.DataFrame):
            return self._of_pandas(labels, argument)
        try:
            array = np.asarray(labels)
        except ValueError:  # ragged, which is refused with all that is
            return labels
        return array.reshape(-1) if array.shape == self.shape else labels

    def _of_pandas(self, labels: pd.Series | pd.DataFrame, argument: str) -> object:
        """Return pandas labels by their index, the columns of a table one by one.

        A table of the observations' shape has one dimension in its rows, the other in its columns.
        """
        import pandas as pd
        import xarray as xr

        if isinstance(labels, pd.DataFrame) and labels.shape == self.shape:
            axes = zip(self.dims, (labels.index, labels.columns), strict=True)
            coords = {dim: index for dim, index in axes if self._comparable(dim, index)}
            return self.spread(xr.DataArray(labels.to_numpy(), coords, self.dims), argument)
        dims = self._levels(labels.index, argument)
        if dims is None:
            return labels
        if isinstance(labels, pd.DataFrame):
            return {str(name): self.flat(labels[name], argument) for name in labels.columns}
        values = np.asarray(labels)[self._places(labels.index, dims, argument)]
        array = xr.DataArray(values.reshape([self.frame.sizes[dim] for dim in dims]), dims=dims)
        return pd.Series(self.spread(array, argument), name=labels.name)

    def _coordinate(self, dim: str) -> pd.Index:
        """Return the labels along a dimension, 0, 1, ... if it has none."""
        indexes = self.frame.indexes
        return indexes[dim] if dim in indexes else _count(self.frame.sizes[dim])

    def _comparable(self, dim: str, index: pd.Index) -> bool:
        """Return whether an index and a coordinate can be compared: one may be a mere count."""
        here = self._coordinate(dim)
        return bool(index.isin(here).all() or not here.equals(_count(len(here))))

    def _levels(self, index: pd.Index, argument: str) -> list[str] | None:
        """Return the dimensions that an index has labels of, None if it counts observations."""
        names = [None if name is None else str(name) for name in index.names]
        if all(name in self.dims for name in names):
            return [str(name) for name in names]
        if index.nlevels == len(self.dims) and not any(names):
            return list(self.dims)
        if index.nlevels == 1:
            here = {dim: self._coordinate(dim) for dim in self.dims}
            along = [d for d, c in here.items() if len(index) == len(c) and index.isin(c).all()]
            return along if len(along) == 1 else None
        problem = f"has an index of {names}, the log-likelihood dimensions {list(self.dims)}"
        raise InputError(argument, problem, "give its levels these names")

    def _places(self, index: pd.Index, dims: Sequence[str], argument: str) -> NDArray[np.intp]:
        """Return where an index has the label of every entry along some dimensions."""
        import pandas as pd

        levels = [self._coordinate(dim) for dim in dims]
        wanted = levels[0] if len(levels) == 1 else pd.MultiIndex.from_product(levels)
        if not index.is_unique:
            problem = f"has labels of {list(dims)} twice in its index"
            raise InputError(argument, problem, "pass each once")
        where: NDArray[np.intp] = index.get_indexer(wanted)
        if np.any(where < 0):
            many, first = int((where < 0).sum()), wanted[int((where < 0).argmax())]
            problem = f"has no value for {many} of {len(wanted)} labels of {list(dims)}"
            advice = "its index must contain the coordinates of the log-likelihood"
            raise InputError(argument, f"{problem}, for example {first!r}", advice)
        return where

    def rows(self, tables: Iterable[xr.Dataset]) -> Rows:
        """Return the rows, with variables and coordinates along them by name."""
        import pandas as pd

        columns: dict[str, NDArray[Any]] = {}
        elsewhere: dict[str, tuple[int, ...]] = {}
        holders: tuple[xr.Dataset | xr.DataArray, ...] = (*tables, self.frame)
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
        other = {name: shape for name, shape in elsewhere.items() if name not in columns}
        index = self._index((self.frame, *holders))
        named = pd.DataFrame(columns, index=index)
        labelled = not index.equals(_count(self.n))
        return _Named(self.n, None, index, named, advice, named=labelled, elsewhere=other)

    def _index(self, holders: Iterable[xr.Dataset | xr.DataArray]) -> pd.Index:
        """Return the observations' labels where some holder has them, else 0, 1, ..."""
        for holder in holders if len(self.dims) == 1 else ():
            if self.dims[0] in holder.coords and holder.sizes.get(self.dims[0]) == self.n:
                return holder.indexes[self.dims[0]]
        return _count(self.n)


def find_observations(groups: Iterable[xr.Dataset], n: int) -> Observations:
    """Return the dimensions of n observations in datasets that hold them, one unnamed if none does.

    Vectors that are observed have a dimension more than their log-likelihood.
    """
    import xarray as xr

    frames = [Observations.of(array).frame for group in groups for array in group.values()]
    along = [(frame, dim) for frame in frames for dim in frame.dims]
    frames += [f.isel({d: 0 for d in f.dims if d != dim}, drop=True) for f, dim in along]
    unnamed = xr.DataArray(np.zeros(n), dims="observation_dim_0")
    return Observations(next((frame for frame in frames if frame.size == n), unnamed))


def _count(n: int) -> pd.RangeIndex:
    import pandas as pd

    return pd.RangeIndex(n)


def _ordered(
    array: xr.DataArray, frame: xr.DataArray, dim: Hashable, argument: str
) -> xr.DataArray:
    """Return labels in the order of the log-likelihood's coordinate; refuse other coordinates."""
    here, wanted = array.indexes[dim], frame.indexes[dim]
    if here.equals(wanted):
        return array
    if not here.is_unique or not wanted.is_unique or not here.isin(wanted).all():
        problem = f"has other coordinates along {dim!r} than the log-likelihood"
        advice = "give both the same, or pass a plain array in its order"
        raise InputError(argument, problem, advice)
    return array.sel({dim: wanted})


@dataclass(frozen=True, eq=False)
class _Named(Rows):
    """Rows of a fit; `elsewhere` has the shapes of variables that are not along them."""

    elsewhere: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def align(self, values: object, argument: str) -> NDArray[Any]:
        """Return one value per row, with a list of the names there are if one is not."""
        if isinstance(values, str) and values not in self.table.columns:
            problem = f"names no column {values!r}"
            if (shape := self.elsewhere.get(values)) is not None:
                rows = f"{self.original} observations"
                problem = f"names {values!r}, which has shape {shape} for {rows}"
            other = [f"{name!r} of shape {shape}" for name, shape in self.elsewhere.items()]
            there = f"; not along the observations: {', '.join(other[:8])}" if other else ""
            labels = "or pass labels, on the command line as file.csv:column"
            raise InputError(
                argument, problem, f"choose from {[*self.table.columns]}{there}; {labels}"
            )
        return super().align(values, argument)


HOW = (
    "store it: PyMC pm.compute_log_likelihood(idata), Bambi model.compute_log_likelihood(idata), "
    "NumPyro az.from_numpyro(mcmc, log_likelihood=True), Stan a vector log_lik in generated "
    "quantities; or pass model="
)


@dataclass(frozen=True, eq=False)
class StoredLosses:
    """Minus the stored log-likelihood, variables of the same observations added up.

    The arrays (chain, draw, ...) are in memory, on disk or behind dask. Names of clusters, times
    and so on are looked up in the tables. Other log-likelihoods of the fit are held fixed.
    """

    arrays: tuple[xr.DataArray, ...]
    tables: tuple[xr.Dataset, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of the observations."""
        return self.observations.dims

    @property
    def n(self) -> int:
        """Number of observations."""
        return self.observations.n

    @property
    def estimand(self) -> str | None:
        """What the draws' mean estimates; None if there is one log-likelihood only."""
        if len(self.arrays) == 1 and not self.others:
            return None
        used = " + ".join(str(array.name) for array in self.arrays)
        fixed = f" ({', '.join(self.others)} held fixed, not resampled)" if self.others else ""
        return f"the minimiser of the expected minus log-likelihood of {used}{fixed}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Other log-likelihoods that are held fixed, if there are any."""
        if not self.others:
            return ()
        named = {"names": ", ".join(self.others)}
        return (Finding("log-likelihoods held fixed", float(len(self.others)), named),)

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the losses (draws, n) of consecutive draws, chain after chain."""
        chains, length = (self.arrays[0].sizes[dim] for dim in SAMPLE_DIMS)
        for chain in range(chains):
            for first in range(0, length, most):
                where = {"chain": chain, "draw": slice(first, first + most)}
                stored = [loaded(array.isel(where)) for array in self.arrays]
                block = -np.asarray(stored[0], dtype=np.float64)
                for other in stored[1:]:
                    block -= other
                yield block.reshape(len(block), -1)

    @cached_property
    def observations(self) -> Observations:
        """Their dimensions and coordinates."""
        return Observations.of(self.arrays[0])

    @cached_property
    def rows(self) -> Rows:
        """The observations, with the fit's own variables and coordinates along them by name."""
        return self.observations.rows(self.tables)


def stored_losses(tree: xr.DataTree, chosen: str | Sequence[str] | None = None) -> StoredLosses:
    """Return minus the log-likelihood that a tree stores, checked against its posterior."""
    if "log_likelihood" not in tree.children or not tree.children["log_likelihood"].data_vars:
        raise InputError("log_likelihood", "is not stored in this fit", HOW)
    group = tree["log_likelihood"].to_dataset()
    names = [str(name) for name in group.data_vars]
    asked = _asked_names(names, chosen)
    arrays = [group[name].transpose(*SAMPLE_DIMS, ...) for name in asked]
    for name, array in zip(asked, arrays, strict=True):
        _same_draws(tree["posterior"].to_dataset(), array)
        if array.ndim < 3:
            problem = f"{name!r} is one number per draw"
            raise InputError("log_likelihood", problem, "store one per observation")
    arrays = _same_observations(arrays)
    others = tuple(name for name in names if name not in asked)
    groups = [name for name in ("constant_data", "observed_data") if name in tree.children]
    tables = tuple(tree[name].to_dataset() for name in groups)
    return StoredLosses(tuple(arrays), tables, others)


def _asked_names(names: list[str], chosen: str | Sequence[str] | None) -> list[str]:
    """Return the stored variables that are asked for: the only one for None, all for "sum"."""
    if chosen is None and len(names) > 1:
        advice = "pass the name of one, a list to add up, or 'sum'"
        raise InputError("log_likelihood", f"has several variables: {names}", advice)
    if chosen is None:
        return names
    asked = [chosen] if isinstance(chosen, str) else list(chosen)
    if asked == ["sum"] and "sum" not in names:
        return names
    if not asked:
        raise InputError("log_likelihood", "is an empty list", f"choose from {names}, or 'sum'")
    for name in asked:
        if name not in names:
            raise InputError("log_likelihood", f"has no variable {name!r}", f"choose from {names}")
        if asked.count(name) > 1:
            raise InputError("log_likelihood", f"names {name!r} twice", "name each once")
    return asked


def _same_observations(arrays: Sequence[xr.DataArray]) -> list[xr.DataArray]:
    """Return log-likelihoods along the dimensions of the first; unnamed ones go by position."""
    first, aligned = arrays[0], []
    for array in arrays:
        here, there = array.shape[2:], first.shape[2:]
        if here != there:
            shapes = f"{first.name!r} of shape {there} and {array.name!r} of shape {here}"
            problem = f"has {shapes}, so they are of different observations and do not add up"
            raise InputError("log_likelihood", problem, "pass the name of one, or model=")
        if array.dims != first.dims and _unnamed(array) and _unnamed(first):
            array = array.rename(dict(zip(array.dims[2:], first.dims[2:], strict=True)))
        shared = [dim for dim in first.dims[2:] if dim in array.coords and dim in first.coords]
        if array.dims != first.dims or any(
            not np.array_equal(array[dim].values, first[dim].values) for dim in shared
        ):
            dims = (
                f"{first.name!r} along {first.dims[2:]} and {array.name!r} along {array.dims[2:]}"
            )
            advice = "only variables of the same observations add up: give them the same dims "
            raise InputError(
                "log_likelihood", f"has {dims}, or other labels there", f"{advice}and coords"
            )
        aligned.append(array)
    return aligned


def _unnamed(array: xr.DataArray) -> bool:
    """Return whether a log-likelihood's dimensions have the names ArviZ gives if it has none."""
    default = tuple(f"{array.name}_dim_{k}" for k in range(array.ndim - 2))
    return bool(array.dims[2:] == default)


def _same_draws(posterior: xr.Dataset, array: xr.DataArray) -> None:
    for dim in SAMPLE_DIMS:
        mine, theirs = posterior.sizes[dim], array.sizes.get(dim)
        if theirs != mine:
            problem = f"has {theirs} {dim}s, the posterior {mine}"
            raise InputError("log_likelihood", problem, "thin both, or compute it again")
        if not np.array_equal(posterior[dim].values, array[dim].values):
            problem = f"has other {dim} labels than the posterior"
            advice = "select the same draws in both, or compute it again"
            raise InputError("log_likelihood", problem, advice)

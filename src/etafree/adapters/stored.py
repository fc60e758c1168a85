"""Pointwise log-likelihoods that a fit stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.adapters.trees import SAMPLE_DIMS, loaded
from etafree.checks import Check
from etafree.errors import InputError
from etafree.rows import Rows
from etafree.validation import Array

__all__ = ["StoredLosses", "stored_losses"]

HOW = (
    "store it: PyMC pm.compute_log_likelihood(idata), Bambi model.compute_log_likelihood(idata), "
    "NumPyro az.from_numpyro(mcmc, log_likelihood=True), Stan a vector log_lik in generated "
    "quantities; or pass model="
)


@dataclass(frozen=True, eq=False)
class StoredLosses:
    """Minus the stored log-likelihood, variables of the same observations added up.

    Attributes
    ----------
    arrays : tuple of xarray.DataArray
        (chain, draw, ...), in memory, on disk or behind dask.
    tables : tuple of xarray.Dataset
        Where names of clusters, times and so on are looked up.
    others : tuple of str
        Log-likelihoods of the same fit that are not among `arrays`: held fixed.
    """

    arrays: tuple[Any, ...]
    tables: tuple[Any, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of the observations."""
        return tuple(str(dim) for dim in self.arrays[0].dims if dim not in SAMPLE_DIMS)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of observations along each dimension."""
        return tuple(int(self.arrays[0].sizes[dim]) for dim in self.dims)

    @property
    def n(self) -> int:
        """Number of observations."""
        return int(np.prod(self.shape))

    @property
    def estimand(self) -> str | None:
        """What the draws' mean estimates, in words; None if there is one log-likelihood only."""
        if len(self.arrays) == 1 and not self.others:
            return None
        used = " + ".join(str(array.name) for array in self.arrays)
        fixed = f" ({', '.join(self.others)} held fixed, not resampled)" if self.others else ""
        return f"the minimiser of the expected minus log-likelihood of {used}{fixed}"

    @property
    def checks(self) -> tuple[Check, ...]:
        """A warning if other log-likelihoods are held fixed."""
        if not self.others:
            return ()
        advice = (f"{', '.join(self.others)} informed the draws but count as fixed: standard "
                  "errors miss how they vary; log_likelihood='sum' adds them")  # fmt: skip
        return (Check("log-likelihoods held fixed", float(len(self.others)), 0.0, "warn", advice),)

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the losses (draws, n) of consecutive draws, chain after chain."""
        chains, length = (self.arrays[0].sizes[dim] for dim in SAMPLE_DIMS)
        for chain in range(chains):
            for first in range(0, length, most):
                where = {"chain": chain, "draw": slice(first, first + most)}
                parts = [loaded(array.isel(where)) for array in self.arrays]
                block = -np.asarray(parts[0], dtype=np.float64)
                for part in parts[1:]:
                    block -= part
                yield block.reshape(len(block), -1)

    @cached_property
    def rows(self) -> Rows:
        """The observations, with the fit's own variables and coordinates along them by name."""
        import pandas as pd

        columns: dict[str, Any] = {}
        elsewhere: dict[str, tuple[int, ...]] = {}
        for table in (*self.tables, self.arrays[0]):
            variables = getattr(table, "data_vars", {})
            for key, array in (*variables.items(), *table.coords.items()):
                name = str(key)
                own = name in variables or {*array.dims} <= {*self.dims}
                if name not in columns and own and self.has(array):
                    columns[name] = self.spread(array)
                elif name in variables:
                    elsewhere[name] = array.shape
        advice = f"pass one value per observation of log_likelihood {self.dims}"
        found = {name: shape for name, shape in elsewhere.items() if name not in columns}
        index = None
        if len(self.dims) == 1:
            index = observation_index(self.dims[0], self.n, (self.arrays[0], *self.tables))
        table = pd.DataFrame(columns, index=index)
        return _Named(self.n, None, index, table, advice, elsewhere=found)

    def has(self, array: Any) -> bool:
        """Return whether a DataArray is along the observations: their dimensions, or one unnamed.

        ArviZ calls the first dimension of a variable ``g`` without dimensions ``g_dim_0``.
        """
        if array.ndim == len(self.dims) == 1 and str(array.dims[0]).endswith("_dim_0"):
            return bool(array.size == self.n)
        sizes = dict(zip(self.dims, self.shape, strict=True))
        return array.ndim > 0 and all(sizes.get(d) == size for d, size in array.sizes.items())

    def spread(self, array: Any) -> Any:
        """Return a DataArray along some of the observations' dimensions as one value each."""
        frame = self.arrays[0].isel(dict.fromkeys(SAMPLE_DIMS, 0), drop=True)
        if not self.has(array):
            raise InputError(
                "clusters", f"has dimensions {dict(array.sizes)}, the log-likelihood "
                f"{dict(frame.sizes)}", "pass one label per observation",
            )  # fmt: skip
        for dim in array.dims:  # by coordinate, where both have one
            if dim in frame.coords and dim in array.coords:
                array = _ordered(array, frame, dim)
        bare = array.drop_vars([*array.coords])
        if len(self.dims) == 1:
            bare = bare.rename({bare.dims[0]: self.dims[0]})
        wide = bare.expand_dims(
            {dim: frame.sizes[dim] for dim in self.dims if dim not in bare.dims}
        )
        return loaded(wide.transpose(*self.dims)).reshape(-1)


def _ordered(array: Any, frame: Any, dim: Any) -> Any:
    """Return labels in the order of the log-likelihood's coordinate; refuse other coordinates."""
    here, wanted = array.indexes[dim], frame.indexes[dim]
    if here.equals(wanted):
        return array
    if not here.is_unique or not wanted.is_unique or not here.isin(wanted).all():
        raise InputError("clusters", f"has other coordinates along {dim!r} than the log-likelihood",
                         "give both the same, or pass a plain array in its order")  # fmt: skip
    return array.sel({dim: wanted})


def observation_index(dim: str, n: int, holders: Iterable[Any]) -> Any:
    """Return the labels of n observations: the first coordinate of their dimension, or 0, 1, ..."""
    import pandas as pd

    for holder in holders:
        if dim in holder.coords and holder.sizes.get(dim) == n:
            return holder.indexes[dim]
    return pd.RangeIndex(n)


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


def stored_losses(tree: Any, chosen: Any = None) -> StoredLosses:
    """Return minus the log-likelihood that a tree stores, checked against its posterior."""
    if "log_likelihood" not in tree.children or not tree["log_likelihood"].data_vars:
        raise InputError("log_likelihood", "is not stored in this fit", HOW)
    group = tree["log_likelihood"].to_dataset()
    names = [str(name) for name in group.data_vars]
    asked = [chosen] if isinstance(chosen, str) else None if chosen is None else list(chosen)
    if asked is None and len(names) > 1:
        raise InputError("log_likelihood", f"has several variables: {names}",
                         "pass the name of one, a list to add up, or 'sum'")  # fmt: skip
    if asked is None or (asked == ["sum"] and "sum" not in names):
        asked = names
    if not asked:
        raise InputError("log_likelihood", "is an empty list", f"choose from {names}, or 'sum'")
    for name in asked:
        if name not in names:
            raise InputError("log_likelihood", f"has no variable {name!r}", f"choose from {names}")
        if asked.count(name) > 1:
            raise InputError("log_likelihood", f"names {name!r} twice", "name each once")
    arrays = [group[name].transpose(*SAMPLE_DIMS, ...) for name in asked]
    for name, array in zip(asked, arrays, strict=True):
        _same_draws(tree["posterior"].to_dataset(), array)
        if array.ndim < 3:
            raise InputError("log_likelihood", f"{name!r} is one number per draw",
                             "store one per observation")  # fmt: skip
    arrays = _same_observations(arrays)
    others = tuple(name for name in names if name not in asked)
    tables = [tree[name].to_dataset() for name in ("constant_data", "observed_data")
              if name in tree.children]  # fmt: skip
    return StoredLosses(tuple(arrays), tuple(tables), others)


def _same_observations(arrays: Sequence[Any]) -> list[Any]:
    """Return log-likelihoods along the dimensions of the first; unnamed ones go by position."""
    first, out = arrays[0], []
    for array in arrays:
        shapes = [part.shape[2:] for part in (first, array)]
        if shapes[0] != shapes[1]:
            raise InputError(
                "log_likelihood", f"has {first.name!r} of shape {shapes[0]} and {array.name!r} of "
                f"shape {shapes[1]}, so they are of different observations and do not add up",
                "pass the name of one, or model=",
            )  # fmt: skip
        if array.dims != first.dims and _unnamed(array) and _unnamed(first):
            array = array.rename(dict(zip(array.dims[2:], first.dims[2:], strict=True)))
        if array.dims != first.dims or any(
            dim in array.coords and dim in first.coords
            and not np.array_equal(array[dim].values, first[dim].values) for dim in first.dims[2:]
        ):  # fmt: skip
            raise InputError(
                "log_likelihood", f"has {first.name!r} along {first.dims[2:]} and {array.name!r} "
                f"along {array.dims[2:]}, or other labels there", "only variables of the same "
                "observations add up: give them the same dims and coords",
            )  # fmt: skip
        out.append(array)
    return out


def _unnamed(array: Any) -> bool:
    """Return whether a log-likelihood's dimensions have the names ArviZ gives if it has none."""
    made = tuple(f"{array.name}_dim_{k}" for k in range(array.ndim - 2))
    return bool(array.dims[2:] == made)


def _same_draws(posterior: Any, array: Any) -> None:
    for dim in SAMPLE_DIMS:
        mine, theirs = posterior.sizes[dim], array.sizes.get(dim)
        if theirs != mine:
            raise InputError("log_likelihood", f"has {theirs} {dim}s, the posterior {mine}",
                             "thin both, or compute it again")  # fmt: skip
        if not np.array_equal(posterior[dim].values, array[dim].values):
            raise InputError("log_likelihood", f"has other {dim} labels than the posterior",
                             "select the same draws in both, or compute it again")  # fmt: skip

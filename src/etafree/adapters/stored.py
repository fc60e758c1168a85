"""Pointwise log-likelihoods that a fit stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from etafree.adapters.trees import SAMPLE_DIMS
from etafree.errors import InputError
from etafree.rows import Rows
from etafree.validation import Array

__all__ = ["StoredLosses", "stored_losses"]

HOW = (
    "store it: PyMC pm.compute_log_likelihood(idata), Bambi model.compute_log_likelihood(idata), "
    "NumPyro az.from_numpyro(mcmc), Stan a vector log_lik in generated quantities; or pass model="
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
    """

    arrays: tuple[Any, ...]
    tables: tuple[Any, ...] = ()

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

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the losses (draws, n) of consecutive draws, chain after chain."""
        chains, length = (self.arrays[0].sizes[dim] for dim in SAMPLE_DIMS)
        for chain in range(chains):
            for first in range(0, length, most):
                where = {"chain": chain, "draw": slice(first, first + most)}
                parts = [array.isel(where).values for array in self.arrays]
                block = -np.asarray(parts[0], dtype=np.float64)
                for part in parts[1:]:
                    block -= part
                yield block.reshape(len(block), -1)

    @cached_property
    def rows(self) -> Rows:
        """The observations, with the fit's own variables and coordinates along them by name."""
        import pandas as pd

        columns = {}
        for table in (*self.tables, self.arrays[0]):
            variables = getattr(table, "data_vars", {})
            for name, array in (*variables.items(), *table.coords.items()):
                if str(name) not in columns and set(array.dims) and set(array.dims) <= {*self.dims}:
                    columns[str(name)] = self.spread(array)
        advice = f"pass one value per observation of log_likelihood {self.dims}"
        return Rows(self.n, table=pd.DataFrame(columns), advice=advice)

    def spread(self, array: Any) -> Any:
        """Return a DataArray along some of the observations' dimensions as one value each."""
        frame = self.arrays[0].isel(dict.fromkeys(SAMPLE_DIMS, 0), drop=True)
        if not set(array.dims) <= set(self.dims) or any(
            array.sizes[dim] != frame.sizes[dim] for dim in array.dims
        ):
            raise InputError(
                "clusters", f"has dimensions {dict(array.sizes)}, the log-likelihood "
                f"{dict(frame.sizes)}", "pass one label per observation",
            )  # fmt: skip
        bare = array.drop_vars([*array.coords])
        wide = bare.expand_dims(
            {dim: frame.sizes[dim] for dim in self.dims if dim not in bare.dims}
        )
        return wide.transpose(*self.dims).values.reshape(-1)


def stored_losses(tree: Any, chosen: Any = None) -> StoredLosses:
    """Return minus the log-likelihood that a tree stores, checked against its posterior."""
    if "log_likelihood" not in tree.children or not tree["log_likelihood"].data_vars:
        raise InputError("log_likelihood", "is not stored in this fit", HOW)
    group = tree["log_likelihood"].to_dataset()
    names = [str(name) for name in group.data_vars]
    asked = [chosen] if isinstance(chosen, str) else chosen
    if asked is None and len(names) > 1:
        raise InputError("log_likelihood", f"has several variables: {names}",
                         "pass the name of one, a list to add up, or 'sum'")  # fmt: skip
    if asked is None or (asked == ["sum"] and "sum" not in names):
        asked = names
    for name in asked:
        if name not in names:
            raise InputError("log_likelihood", f"has no variable {name!r}", f"choose from {names}")
    arrays = tuple(group[name].transpose(*SAMPLE_DIMS, ...) for name in asked)
    for name, array in zip(asked, arrays, strict=True):
        if array.dims != arrays[0].dims or array.shape != arrays[0].shape:
            raise InputError(
                "log_likelihood", f"has {asked[0]!r} along {dict(arrays[0].sizes)} and {name!r} "
                f"along {dict(array.sizes)}", "only variables of the same observations add up",
            )  # fmt: skip
        _same_draws(tree["posterior"].to_dataset(), array)
        if array.ndim < 3:
            raise InputError("log_likelihood", f"{name!r} is one number per draw",
                             "store one per observation")  # fmt: skip
    tables = [tree[name].to_dataset() for name in ("constant_data", "observed_data")
              if name in tree.children]  # fmt: skip
    return StoredLosses(arrays, tuple(tables))


def _same_draws(posterior: Any, array: Any) -> None:
    for dim in SAMPLE_DIMS:
        mine, theirs = posterior.sizes[dim], array.sizes.get(dim)
        if theirs != mine:
            raise InputError("log_likelihood", f"has {theirs} {dim}s, the posterior {mine}",
                             "thin both, or compute it again")  # fmt: skip
        if not np.array_equal(posterior[dim].values, array[dim].values):
            raise InputError("log_likelihood", f"has other {dim} labels than the posterior",
                             "select the same draws in both, or compute it again")  # fmt: skip

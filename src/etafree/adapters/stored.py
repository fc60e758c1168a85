"""Pointwise log-likelihoods that a fit stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from etafree.adapters.observations import Observations
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
        return self.observations.dims

    @property
    def n(self) -> int:
        """Number of observations."""
        return self.observations.n

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
    def observations(self) -> Observations:
        """Their dimensions and coordinates."""
        return Observations.of(self.arrays[0])

    @cached_property
    def rows(self) -> Rows:
        """The observations, with the fit's own variables and coordinates along them by name."""
        return self.observations.rows(self.tables)


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

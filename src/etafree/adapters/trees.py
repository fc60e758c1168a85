"""Fits as xarray trees: read, flatten to draws, put back, write."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from etafree.adapters.stores import check_netcdf, check_zarr
from etafree.claims import check_room
from etafree.errors import InputError, MissingExtraError
from etafree.storage import refuse_special, reserve, sweep, whole_path, writable
from etafree.validation import Array

__all__ = ["as_kind", "as_tree", "flat_names", "flatten", "loaded", "read_tree", "unflatten",
           "with_own_draws", "write_netcdf"]  # fmt: skip

SAMPLE_DIMS = ("chain", "draw")
#: Posterior variables with more numbers than this are not copied.
LARGE = 10**7


def as_tree(fit: Any) -> Any:
    """Return an InferenceData, DataTree or Dataset of draws as a DataTree.

    Examples
    --------
    >>> import xarray as xr
    >>> as_tree(xr.Dataset({"a": (("chain", "draw"), np.zeros((1, 3)))})).groups
    ('/', '/posterior')
    """
    import xarray as xr

    if isinstance(fit, xr.DataTree):
        return fit
    if isinstance(fit, xr.Dataset):
        return xr.DataTree.from_dict({"posterior": fit})
    if not callable(getattr(fit, "groups", None)):
        raise InputError("draws", f"is a {type(fit).__name__}, and model= needs the fit it made",
                         "pass what the sampler returned")  # fmt: skip
    tree = xr.DataTree.from_dict({name: fit[name] for name in fit.groups()})
    tree.attrs.update(fit.attrs)
    return tree


def with_own_draws(tree: Any) -> Any:
    """Return a tree whose posterior the caller cannot change, but for arrays that are large."""
    if "posterior" not in tree.children:
        return tree
    posterior = tree["posterior"].to_dataset()
    small = [name for name, array in posterior.data_vars.items()
             if array.size <= LARGE and array.variable._in_memory]  # fmt: skip
    owner = tree.copy()
    owner["posterior"] = type(tree)(posterior.assign(posterior[small].copy(deep=True)))
    return owner


def as_kind(tree: Any, kind: str) -> Any:
    """Return a tree as an "InferenceData", or as the "DataTree" it is."""
    if kind != "InferenceData":
        return tree
    arviz: Any = importlib.import_module("arviz")
    groups = {name: child.to_dataset() for name, child in tree.children.items()}
    with warnings.catch_warnings():  # original_* groups are not in ArviZ's scheme
        warnings.filterwarnings("ignore", ".*not defined in the InferenceData scheme", UserWarning)
        return arviz.InferenceData(attrs=dict(tree.attrs), **groups)


def read_tree(path: str | os.PathLike[str]) -> Any:
    """Open a netCDF file or a zarr store as a DataTree; large arrays stay on disk until used."""
    import xarray as xr

    name = os.fspath(path)
    if not os.path.exists(name):
        raise InputError("draws", f"{name[:80]!r} cannot be read: there is no such file")
    store = os.path.isdir(name) or name.endswith((".zarr", ".zarr.zip"))
    refuse_special(name, "draws", inside=store)
    if store and importlib.util.find_spec("zarr") is None:
        raise MissingExtraError("arviz", "zarr stores")
    try:
        (check_zarr if store else check_netcdf)(name)
        tree = xr.open_datatree(name, engine="zarr" if store else "h5netcdf")
    except InputError:
        raise
    except Exception as error:  # the readers raise all kinds of errors at damaged files
        what, made = ("a zarr store", "zarr") if store else ("a netCDF file", "netcdf")
        raise InputError("draws", f"{name!r} cannot be read as {what} ({type(error).__name__})",
                         f"pass what idata.to_{made}() wrote") from None  # fmt: skip
    if "posterior" not in tree.children:
        found = sorted(tree.children)
        raise InputError("draws", f"{name!r} has no group 'posterior', only {found}",
                         "pass what idata.to_netcdf() wrote")  # fmt: skip
    return tree


def write_netcdf(tree: Any, path: str | os.PathLike[str]) -> Path:
    """Write a DataTree or InferenceData to a netCDF file, whole or not at all; return its path."""
    target = writable(path)
    made = as_tree(tree)
    sweep(target.parent)
    with whole_path(target) as part:
        reserve(part, made.nbytes)
        made.to_netcdf(part, engine="h5netcdf")
    return target


def loaded(array: Any) -> Any:
    """Return the values of an array that may still be on disk, where it may be damaged."""
    if not array.variable._in_memory:
        check_room(array.name, array.nbytes, "draws", "choose variables with var_names=, or thin")
    try:
        return array.values
    except Exception as error:  # every format has errors of its own
        raise InputError("draws", f"{array.name!r} cannot be read from its file "
                         f"({type(error).__name__})", "is the file whole?") from None  # fmt: skip


def flat_names(name: str, array: Any) -> list[str]:
    """Return the names of a variable's entries as ArviZ writes them, ``beta[x, 0]``.

    Examples
    --------
    >>> import xarray as xr
    >>> dims, coords = ("chain", "draw", "a"), {"a": ["x", "y"]}
    >>> flat_names("b", xr.DataArray(np.zeros((1, 3, 2)), dims=dims, coords=coords))
    ['b[x]', 'b[y]']
    """
    dims = [dim for dim in array.dims if dim not in SAMPLE_DIMS]
    if not dims:
        return [name]
    labels = [loaded(array[dim]).tolist() for dim in dims]
    return [f"{name}[{', '.join(map(str, entry))}]" for entry in product(*labels)]


def flatten(posterior: Any, names: list[str]) -> tuple[Array, tuple[str, ...]]:
    """Return the draws (chain, draw, p) of some variables and the names of their entries."""
    parts: list[Array] = []
    flat: list[str] = []
    for name in names:
        array = posterior[name].transpose(*SAMPLE_DIMS, ...)
        if array.dtype.kind != "f":
            raise InputError("var_names", f"has {name!r}, which is not real-valued",
                             f"leave it out: var_names=['~{name}']")  # fmt: skip
        values = np.asarray(loaded(array), dtype=np.float64)
        parts.append(values.reshape(*values.shape[:2], -1))
        flat += flat_names(name, array)
    return np.concatenate(parts, axis=2), tuple(flat)


def unflatten(posterior: Any, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return variables (..., *shape) from their entries (...) by flat name, those that are whole.

    The shapes are those of the posterior, less chain and draw.
    """
    out = {}
    for name, array in posterior.data_vars.items():
        entries = flat_names(str(name), array)
        if all(entry in columns for entry in entries):
            stacked = np.stack([columns[entry] for entry in entries], axis=-1)
            shape = [array.sizes[dim] for dim in array.dims if dim not in SAMPLE_DIMS]
            out[str(name)] = stacked.reshape(*stacked.shape[:-1], *shape)
    return out

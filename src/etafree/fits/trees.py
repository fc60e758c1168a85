r"""Fits as xarray trees: read, flatten to draws, put back, write.

What netCDF files and zarr stores say of themselves is looked at before anything is read: HDF5
groups may be linked to themselves, arrays may lie in other files, and shapes cost nothing. What
ArviZ writes has none of that.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError, MissingExtraError
from etafree.foundation.arguments import Array
from etafree.foundation.storage import (
    check_claim,
    check_room,
    kind_of,
    refuse_special,
    reserve,
    sweep,
    whole_path,
    writable,
)

if TYPE_CHECKING:
    import xarray as xr

SAMPLE_DIMS = ("chain", "draw")
#: Posterior variables with more numbers than this are not copied.
LARGE = 10**7
#: Groups, groups inside one another and variables of a fit; opening them takes milliseconds each.
GROUPS, DEPTH, VARIABLES = 1_000, 32, 20_000
#: Bytes of labels that are read at a time.
TEXT = 1 << 26
REWRITE = "pass what idata.to_netcdf() wrote"
FEWER = "store fewer draws or variables"


def check_netcdf(path: str) -> None:
    """Refuse an HDF5 file with links, without end, or with more numbers than it can hold."""
    h5py = importlib.import_module("h5py")
    claimed = indexed = 0
    with h5py.File(path, "r") as file:
        for dimensions, size in _datasets(file.id, path, h5py):
            claimed += size
            indexed += size if dimensions == 1 else 0  # labels are read when a file is opened
    check_claim(path, claimed, os.path.getsize(path), "draws")
    check_room(path, indexed, "draws", FEWER)


def _datasets(root: Any, path: str, h5py: ModuleType) -> Iterator[tuple[int, int]]:
    """Yield the number of dimensions and the bytes of every dataset, group after group."""
    waiting = [(root, "", 0)]
    seen = {h5py.h5o.get_info(root).addr}
    variables = 0
    while waiting:
        group, at, depth = waiting.pop()
        for name in group:
            place = f"{at}/{os.fsdecode(name)}"
            link = group.links.get_info(name).type
            if link != h5py.h5l.TYPE_HARD:
                what = "a symbolic link" if link == h5py.h5l.TYPE_SOFT else "a link to another file"
                raise InputError("draws", f"{path!r} has {what} at {place!r}", REWRITE)
            item = h5py.h5o.open(group, name)
            if isinstance(item, h5py.h5g.GroupID):
                address = h5py.h5o.get_info(item).addr
                if address in seen:
                    problem = f"has a group that is in itself or in two places, {place!r}"
                    raise InputError("draws", f"{path!r} {problem}", REWRITE)
                seen.add(address)
                waiting.append((item, place, depth + 1))
            elif isinstance(item, h5py.h5d.DatasetID):
                variables += 1
                size = _size(item, path, place, h5py)
                check_claim(path, size, os.path.getsize(path), "draws")
                _check_text(item, path, place, h5py)
                yield len(item.shape or ()), size
            _check_counts(path, len(seen), depth, variables)


def _size(dataset: Any, path: str, place: str, h5py: ModuleType) -> int:
    """Return the bytes that a dataset takes in memory, or one of its chunks if that is more."""
    options = dataset.get_create_plist()
    layout = options.get_layout()
    if layout == h5py.h5d.VIRTUAL or options.get_external_count():
        raise InputError("draws", f"{path!r} has the numbers of {place!r} in another file", REWRITE)
    chunk = math.prod(options.get_chunk()) if layout == h5py.h5d.CHUNKED else 0
    items = max(math.prod(dataset.shape or ()), chunk)
    return int(items * dataset.get_type().get_size())


def _check_text(dataset: Any, path: str, place: str, h5py: ModuleType) -> None:
    """Refuse labels that are longer than the file together: each may be one and the same text."""
    shape: tuple[int, ...] = dataset.shape or ()
    kind, size = dataset.get_type(), os.path.getsize(path)
    text = isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str()
    if len(shape) != 1 or not (text or isinstance(kind, h5py.h5t.TypeVlenID)):
        return
    labels, step, total = h5py.Dataset(dataset), max(TEXT // size, 16), 0
    for first in range(0, min(shape[0], size), step):
        total += sum(map(len, labels[first : first + step]))
        if total > size:
            problem = f"{path!r} has longer labels at {place!r} than the file is"
            raise InputError("draws", problem, REWRITE)


def _check_counts(path: str, groups: int, depth: int, variables: int) -> None:
    for many, most, what in (
        (groups, GROUPS, "groups"),
        (depth, DEPTH, "groups inside one another"),
        (variables, VARIABLES, "variables"),
    ):
        if many > most:
            raise InputError("draws", f"{path!r} has more than {most:,} {what}", REWRITE)


def check_zarr(path: str) -> None:
    """Refuse a zarr store without end, or with more numbers than it can hold."""
    zarr = importlib.import_module("zarr")
    size = os.path.getsize(path) if os.path.isfile(path) else _folder_size(path)
    claimed = indexed = groups = variables = 0
    for place, item in zarr.open_group(path, mode="r").members(max_depth=DEPTH + 1):
        groups += isinstance(item, zarr.Group)
        variables += isinstance(item, zarr.Array)
        _check_counts(path, groups, place.count("/"), variables)
        if isinstance(item, zarr.Array):
            items = max(math.prod(item.shape), math.prod(item.chunks))
            claimed += items * max(item.dtype.itemsize, 1)
            indexed += items * item.dtype.itemsize if item.ndim == 1 else 0
    check_claim(path, claimed, size, "draws")
    check_room(path, indexed, "draws", FEWER)


def _folder_size(path: str) -> int:
    """Return the bytes of a folder's files; refuse links that make it endless."""
    total = 0
    for at, folders, names in os.walk(path):
        for where in (os.path.join(at, name) for name in folders):
            inside = os.path.realpath(where)
            if os.path.islink(where) and os.path.realpath(at).startswith(inside):
                problem = f"{where!r} is a link to a folder that it is in"
                raise InputError("draws", problem, "remove the link")
        total += sum(os.path.getsize(os.path.join(at, name)) for name in names)
    return total


def as_tree(fit: object) -> xr.DataTree:
    """Return an InferenceData, DataTree or Dataset of draws as a DataTree."""
    import xarray as xr

    if isinstance(fit, xr.DataTree):
        return fit
    if isinstance(fit, xr.Dataset):
        return xr.DataTree.from_dict({"posterior": fit})
    if not callable(getattr(fit, "groups", None)):
        problem = f"is a {type(fit).__name__}, and model= needs the fit it made"
        raise InputError("draws", problem, "pass what the sampler returned")
    idata: Any = fit
    tree = xr.DataTree.from_dict({name: idata[name] for name in idata.groups()})
    tree.attrs.update(idata.attrs)
    return tree


def with_own_draws(tree: xr.DataTree) -> xr.DataTree:
    """Return a tree whose posterior the caller cannot change, but for arrays that are large."""
    if "posterior" not in tree.children:
        return tree
    posterior = tree["posterior"].to_dataset()
    small = [
        name
        for name, array in posterior.data_vars.items()
        if array.size <= LARGE and array.variable._in_memory
    ]
    owner = tree.copy()
    owner["posterior"] = type(tree)(posterior.assign(posterior[small].copy(deep=True)))
    return owner


def as_kind(tree: xr.DataTree, kind: str) -> Any:
    """Return a tree as an "InferenceData", or as the "DataTree" it is."""
    if kind != "InferenceData":
        return tree
    groups = {name: child.to_dataset() for name, child in tree.children.items()}
    with warnings.catch_warnings():  # original_* groups are not in ArviZ's scheme
        warnings.filterwarnings("ignore", ".*not defined in the InferenceData scheme", UserWarning)
        return importlib.import_module("arviz").InferenceData(attrs=dict(tree.attrs), **groups)


def read_tree(path: str | os.PathLike[str]) -> xr.DataTree:
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
        what, writer = ("a zarr store", "zarr") if store else ("a netCDF file", "netcdf")
        why = type(error).__name__
        if os.path.isfile(name):
            why = (kind_of(name) if os.path.getsize(name) else "it is empty") or why
        problem = f"{name!r} cannot be read as {what} ({why})"
        raise InputError("draws", problem, f"pass what idata.to_{writer}() wrote") from None
    if "posterior" not in tree.children:
        problem = f"{name!r} has no group 'posterior', only {sorted(tree.children)}"
        raise InputError("draws", problem, REWRITE)
    return tree


def write_netcdf(tree: object, path: str | os.PathLike[str]) -> Path:
    """Write a DataTree or InferenceData to a netCDF file, whole or not at all; return its path."""
    target = writable(path)
    whole = as_tree(tree)
    sweep(target.parent)
    with whole_path(target) as part:
        reserve(part, whole.nbytes)
        whole.to_netcdf(part, engine="h5netcdf")
    return target


def loaded(array: xr.DataArray) -> NDArray[Any]:
    """Return the values of an array that may still be on disk, where it may be damaged."""
    if not array.variable._in_memory:
        check_room(array.name, array.nbytes, "draws", "choose variables with var_names=, or thin")
    try:
        return array.values
    except Exception as error:  # every format has errors of its own
        problem = f"{array.name!r} cannot be read from its file ({type(error).__name__})"
        raise InputError("draws", problem, "is the file whole?") from None


def flat_names(name: str, array: xr.DataArray) -> list[str]:
    """Return the names of a variable's entries as ArviZ writes them, ``beta[x, 0]``."""
    dims = [dim for dim in array.dims if dim not in SAMPLE_DIMS]
    if not dims:
        return [name]
    labels = [loaded(array[dim]).tolist() for dim in dims]
    return [f"{name}[{', '.join(map(str, entry))}]" for entry in product(*labels)]


def flatten(posterior: xr.Dataset, names: list[str]) -> tuple[Array, tuple[str, ...]]:
    """Return the draws (chain, draw, p) of some variables and the names of their entries."""
    columns: list[Array] = []
    flat: list[str] = []
    for name in names:
        array = posterior[name].transpose(*SAMPLE_DIMS, ...)
        if array.dtype.kind != "f":
            problem, advice = f"has {name!r}, which is not real-valued", f"var_names=['~{name}']"
            raise InputError("var_names", problem, f"leave it out: {advice}")
        values = np.asarray(loaded(array), dtype=np.float64)
        columns.append(values.reshape(*values.shape[:2], -1))
        flat += flat_names(name, array)
    return np.concatenate(columns, axis=2), tuple(flat)


def with_values(posterior: xr.Dataset, variables: Mapping[str, Array]) -> xr.Dataset:
    """Return variables (d, *shape) as draws of one chain, with the dimensions that they have."""
    import xarray as xr

    arrays = {}
    for name, values in variables.items():
        if name in posterior:
            like = posterior[name].transpose(*SAMPLE_DIMS, ...)
            sizes = dict(zip(like.dims, (1, *values.shape), strict=True))
            coords = {d: like.coords.get(d, np.arange(n)) for d, n in sizes.items()}
            coords |= {d: np.arange(sizes[d]) for d in SAMPLE_DIMS}
            arrays[name] = xr.DataArray(values[None], coords, like.dims)
    return xr.Dataset(arrays)


def unflatten(posterior: xr.Dataset, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the posterior's variables (..., *shape) of whose entries (...) none is missing."""
    variables = {}
    for name, array in posterior.data_vars.items():
        entries = flat_names(str(name), array)
        if all(entry in columns for entry in entries):
            stacked = np.stack([columns[entry] for entry in entries], axis=-1)
            shape = [array.sizes[dim] for dim in array.dims if dim not in SAMPLE_DIMS]
            variables[str(name)] = stacked.reshape(*stacked.shape[:-1], *shape)
    return variables

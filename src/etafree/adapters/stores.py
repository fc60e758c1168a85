"""What netCDF files and zarr stores say of themselves, looked at before anything is read.

HDF5 groups may be linked to themselves, arrays may lie in other files, and shapes cost nothing.
What ArviZ writes has none of that.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator
from typing import Any

from etafree.claims import check_claim, check_room
from etafree.errors import InputError

__all__ = ["check_netcdf", "check_zarr"]

#: Groups, groups inside one another and variables of a fit; opening them takes milliseconds each.
GROUPS, DEPTH, VARIABLES = 1_000, 32, 20_000
#: Bytes of labels that are read at a time.
TEXT = 1 << 26
REWRITE = "pass what idata.to_netcdf() wrote"
FEWER = "store fewer draws or variables"


def check_netcdf(path: str) -> None:
    """Refuse an HDF5 file with links, without end, or with more numbers than it can hold."""
    h5py: Any = importlib.import_module("h5py")
    claimed = indexed = 0
    with h5py.File(path, "r") as file:
        for dimensions, size in _datasets(file.id, path, h5py):
            claimed += size
            indexed += size if dimensions == 1 else 0  # labels are read when a file is opened
    check_claim(path, claimed, os.path.getsize(path), "draws")
    check_room(path, indexed, "draws", FEWER)


def _datasets(root: Any, path: str, h5py: Any) -> Iterator[tuple[int, int]]:
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
            found = h5py.h5o.open(group, name)
            if isinstance(found, h5py.h5g.GroupID):
                address = h5py.h5o.get_info(found).addr
                if address in seen:
                    raise InputError("draws", f"{path!r} has a group that is in itself or in two "
                                     f"places, {place!r}", REWRITE)  # fmt: skip
                seen.add(address)
                waiting.append((found, place, depth + 1))
            elif isinstance(found, h5py.h5d.DatasetID):
                variables += 1
                size = _size(found, path, place, h5py)
                check_claim(path, size, os.path.getsize(path), "draws")
                _check_text(found, path, place, h5py)
                yield len(found.shape or ()), size
            _check_counts(path, len(seen), depth, variables)


def _size(dataset: Any, path: str, place: str, h5py: Any) -> int:
    """Return the bytes that a dataset takes in memory, or one of its chunks if that is more."""
    options = dataset.get_create_plist()
    layout = options.get_layout()
    if layout == h5py.h5d.VIRTUAL or options.get_external_count():
        raise InputError("draws", f"{path!r} has the numbers of {place!r} in another file", REWRITE)
    chunk = math.prod(options.get_chunk()) if layout == h5py.h5d.CHUNKED else 0
    items = max(math.prod(dataset.shape or ()), chunk)
    return int(items * dataset.get_type().get_size())


def _check_text(dataset: Any, path: str, place: str, h5py: Any) -> None:
    """Refuse labels that are longer than the file together: each may be one and the same text."""
    shape: tuple[int, ...] = dataset.shape or ()
    kind, size = dataset.get_type(), os.path.getsize(path)
    text = isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str()
    if len(shape) != 1 or not (text or isinstance(kind, h5py.h5t.TypeVlenID)):
        return
    labels = h5py.Dataset(dataset)
    step = max(TEXT // size, 16)
    total = 0
    for first in range(0, min(shape[0], size), step):
        total += sum(map(len, labels[first : first + step]))
        if total > size:
            raise InputError("draws", f"{path!r} has longer labels at {place!r} than the file is",
                             REWRITE)  # fmt: skip


def _check_counts(path: str, groups: int, depth: int, variables: int) -> None:
    for many, most, what in (
        (groups, GROUPS, "groups"), (depth, DEPTH, "groups inside one another"),
        (variables, VARIABLES, "variables"),
    ):  # fmt: skip
        if many > most:
            raise InputError("draws", f"{path!r} has more than {most:,} {what}", REWRITE)


def check_zarr(path: str) -> None:
    """Refuse a zarr store without end, or with more numbers than it can hold."""
    zarr: Any = importlib.import_module("zarr")
    size = os.path.getsize(path) if os.path.isfile(path) else _folder_size(path)
    claimed = indexed = groups = variables = 0
    for place, found in zarr.open_group(path, mode="r").members(max_depth=DEPTH + 1):
        groups += isinstance(found, zarr.Group)
        variables += isinstance(found, zarr.Array)
        _check_counts(path, groups, place.count("/"), variables)
        if isinstance(found, zarr.Array):
            items = max(math.prod(found.shape), math.prod(found.chunks))
            claimed += items * max(found.dtype.itemsize, 1)
            indexed += items * found.dtype.itemsize if found.ndim == 1 else 0
    check_claim(path, claimed, size, "draws")
    check_room(path, indexed, "draws", FEWER)


def _folder_size(path: str) -> int:
    """Return the bytes of a folder's files; refuse links that make it endless."""
    total = 0
    for at, folders, names in os.walk(path):
        for name in folders:
            where = os.path.join(at, name)
            inside = os.path.realpath(where)
            if os.path.islink(where) and os.path.realpath(at).startswith(inside):
                raise InputError("draws", f"{where!r} is a link to a folder that it is in",
                                 "remove the link")  # fmt: skip
        total += sum(os.path.getsize(os.path.join(at, name)) for name in names)
    return total

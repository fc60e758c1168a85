"""Files that lead a reader astray: endless, elsewhere, or far larger than they look.

Each table has what is done to a valid file, and what the error must say. `fuzzed` picks from it.
"""

from __future__ import annotations

import io
import json
import os
import socket
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import etafree as ef
from etafree import losses
from etafree.cli.commands import column
from etafree.cli.csv_table import CsvTable
from etafree.fits.stan import read_stan_csv
from etafree.fits.trees import read_tree

DIMS = ("chain", "draw", "k")

# --- HDF5 ---------------------------------------------------------------------------------------


def replaced(file: Any, **options: Any) -> None:
    """Put another dataset in place of the draws."""
    group = file["posterior"]
    del group["b"]
    made = group.create_dataset("b", **options)
    for axis, dim in enumerate(DIMS):
        made.dims[axis].attach_scale(group[dim])


def virtual(file: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout((2, 40, 2), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "b", shape=(2, 40, 2))
    del file["posterior/b"]
    file["posterior"].create_virtual_dataset("b", layout)


def nested(file: Any, depth: int, wide: int = 1) -> None:
    for _ in range(depth):
        file = max((file.create_group(f"g{k}") for k in range(wide)), key=lambda made: made.name)


def zeros(file: Any) -> None:
    """Compress a chunk of zeros once and store it a hundred times."""
    data = file.create_dataset(
        "zeros", shape=(100, 1 << 24), dtype="f8", chunks=(1, 1 << 24), compression="gzip"
    )
    data[0] = 0.0
    chunk = data.id.read_direct_chunk((0, 0))[1]
    for k in range(1, 100):
        data.id.write_direct_chunk((k, 0), chunk)


def one_text(file: Any) -> None:
    """Let four thousand labels be the same megabyte."""
    import h5py

    data = file.create_dataset(
        "posterior/text",
        shape=(4096,),
        dtype=h5py.string_dtype(),
        chunks=(4096,),
        compression="gzip",
    )
    data[0] = "a" * (1 << 20)
    place = zlib.decompress(data.id.read_direct_chunk((0,))[1])[:16]
    data.id.write_direct_chunk((0,), zlib.compress(place * 4096))


def link(kind: str, *target: str) -> Callable[[Any], None]:
    def spoil(file: Any) -> None:
        import h5py

        file["posterior/astray"] = getattr(h5py, kind)(*target)

    return spoil


def same_group(place: str, target: str) -> Callable[[Any], None]:
    def spoil(file: Any) -> None:
        file[place] = file[target]

    return spoil


CLAIM = "claims to hold"
HDF5: dict[str, tuple[Callable[[Any], None], str]] = {
    "a group in itself": (same_group("posterior/again", "posterior"), "'/posterior/again'"),
    "the root in itself": (same_group("again", "/"), "'/again'"),
    "the root deep in itself": (same_group("posterior/a/b/c", "/"), "'/posterior/a/b/c'"),
    "a group in two places": (same_group("copy", "posterior"), "in two places"),
    "a soft link to the root": (link("SoftLink", "/"), "symbolic link at '/posterior/astray'"),
    "a soft link to itself": (link("SoftLink", "/posterior/astray"), "symbolic link"),
    "a soft link to nothing": (link("SoftLink", "/nowhere"), "symbolic link"),
    "a link to another file": (link("ExternalLink", "other.h5", "/"), "a link to another file"),
    "a link to a FIFO": (link("ExternalLink", "fifo", "/"), "a link to another file"),
    "a link to its own file": (link("ExternalLink", "fit.nc", "/"), "a link to another file"),
    "numbers in another file": (
        lambda file: replaced(file, shape=(2, 40, 2), dtype="f8", external=[("raw", 0, 1280)]),
        "'/posterior/b' in another file",
    ),
    "numbers in a FIFO": (
        lambda file: replaced(file, shape=(2, 40, 2), dtype="f8", external=[("fifo", 0, 1280)]),
        "'/posterior/b' in another file",
    ),
    "a virtual dataset": (virtual, "'/posterior/b' in another file"),
    "rows that were never written": (
        lambda file: replaced(file, shape=(2, 10**10, 2), dtype="f8", chunks=(1, 10**5, 2)),
        CLAIM,
    ),
    "a product of shapes beyond 2**64": (
        lambda file: replaced(file, shape=(2**31, 2**31, 2**31), dtype="f8", chunks=(1, 1, 2)),
        CLAIM,
    ),
    "labels that were never written": (
        lambda file: file.create_dataset("posterior/i", shape=(10**11,), dtype="i8", chunks=(99,)),
        CLAIM,
    ),
    "one long text": (
        lambda file: file.create_dataset("t", shape=(10**4,), dtype="S1000000", chunks=(10,)),
        CLAIM,
    ),
    "chunks larger than the array": (
        lambda file: file.create_dataset(
            "c", shape=(1, 1), dtype="S4", maxshape=(None, None), chunks=(2**15, 2**14)
        ),
        "",
    ),
    "zeros of 13 GB": (zeros, CLAIM),
    "labels that are one text": (one_text, "longer labels at '/posterior/text'"),
    "many groups": (lambda file: nested(file, 1, 1200), "more than 1,000 groups"),
    "groups inside one another": (lambda file: nested(file, 40), "more than 32 groups inside"),
}


def write_hdf5(folder: Path, valid: bytes, *names: str) -> Path:
    """Write a valid file with these things done to it, and what its links point to."""
    import h5py

    path = folder / "fit.nc"
    path.write_bytes(valid)
    with h5py.File(folder / "other.h5", "w") as file:
        file["b"] = np.ones((2, 40, 2))
    (folder / "raw").write_bytes(bytes(1280))
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "fifo")
    with h5py.File(path, "r+") as file:
        for name in names:
            HDF5[name][0](file)
    return path


# --- zarr ---------------------------------------------------------------------------------------


def reshaped(store: Path, **entries: Any) -> None:
    """Let the draws' description say something else."""
    path = store / "posterior" / "b" / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    whole = store / "zarr.json"
    whole.write_text(json.dumps({**json.loads(whole.read_text()), "consolidated_metadata": None}))


def grid(*shape: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": shape}}


ZARR: dict[str, tuple[Callable[[Path], None], str]] = {
    "rows that were never written": (lambda store: reshaped(store, shape=[2, 10**11, 2]), CLAIM),
    "a chunk larger than memory": (
        lambda store: reshaped(store, chunk_grid=grid(2, 10**13, 2)),
        CLAIM,
    ),
    "a link to the store": (
        lambda store: (store / "posterior" / "again").symlink_to(store),
        "is a link to a folder",
    ),
    "a link to its folder": (
        lambda store: (store / "again").symlink_to("."),
        "is a link to a folder",
    ),
    "a FIFO among the chunks": (lambda store: os.mkfifo(store / "posterior" / "fifo"), "is a FIFO"),
}


# --- npz ----------------------------------------------------------------------------------------


def written(path: Path, members: list[tuple[str, bytes]], compression: int = 0) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as file:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            file.writestr(f"{name}.npy", content)
    return path


def npy(array: Any) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def header(shape: str) -> bytes:
    """Return a file of an array that claims a shape and has eight bytes."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)


Members = list[tuple[str, bytes]]


def instead(members: Members, name: str, content: bytes) -> Members:
    return [(key, content if key == name else value) for key, value in members]


NPZ: dict[str, tuple[Callable[[Members], Members], str]] = {
    "an array that nobody asked for": (
        lambda m: [*m, ("stowaway", npy(np.ones(3)))],
        "no save has the array 'stowaway'",
    ),
    "a path as a name": (
        lambda m: [*m, ("../../evil", npy(np.ones(3)))],
        "no save has the array '../../evil'",
    ),
    "an array twice": (lambda m: [*m, m[1]], "or has it twice"),
    "zeros of 100 MB": (lambda m: instead(m, "draws", bytes(10**8)), CLAIM),
    "a shape without numbers": (
        lambda m: instead(m, "draws", header("(10000000000, 2)")),
        "not a file saved",
    ),
    "a shape beyond 2**64": (
        lambda m: instead(m, "draws", header(f"({2**62}, {2**62})")),
        "not a file saved",
    ),
    "a negative shape": (lambda m: instead(m, "draws", header("(-1, 2)")), "not a file saved"),
    "a long description": (lambda m: instead(m, "__meta__", bytes(10**8)), CLAIM),
    "a deep description": (
        lambda m: instead(m, "__meta__", npy(np.array("[" * 10**5))),
        "not a file saved",
    ),
}


def write_npz(folder: Path, valid: bytes, *names: str) -> Path:
    with np.load(io.BytesIO(valid)) as file:
        members = [(name, npy(file[name])) for name in file.files]
    for name in names:
        members = NPZ[name][0](members)
    return written(folder / "save.npz", members, zipfile.ZIP_DEFLATED)


# --- places that are no files -------------------------------------------------------------------

SPECIAL: dict[str, tuple[Callable[[Path], Any], str]] = {
    "fifo": (os.mkfifo if hasattr(os, "mkfifo") else Path.touch, "is a FIFO"),
    "socket": (lambda path: _bind(path), "is a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a character device"),
    "terminal": (lambda path: path.symlink_to("/dev/tty"), "is a character device"),
    "folder": (Path.mkdir, "place"),
    "link to itself": (lambda path: path.symlink_to(path.name), "place"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "place"),
}


def _bind(path: Path) -> None:
    """Make a socket; its name may have 107 bytes only, so it is made from inside the folder."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


READERS: dict[str, Callable[[Path], Any]] = {
    "netCDF": lambda path: ef.calibrate(str(path)),
    "zarr": lambda path: ef.calibrate(str(path.rename(path.with_suffix(".zarr")))),
    "Stan": lambda path: read_stan_csv([path]),
    "CSV": lambda path: CsvTable.read(path, "data"),
    "clusters": lambda path: column(f"{path}:g", "clusters"),
    "Parquet": lambda path: ef.Criterion.from_parquet(losses.Squared(), path, "y ~ x"),
    "calibration": ef.Calibration.load,
    "map": ef.LocationScaleMap.load,
    "tree": read_tree,
}


# --- text and Parquet ---------------------------------------------------------------------------


def write_sparse(path: Path, start: bytes, size: int) -> Path:
    """Write a file that goes on with zeros which no disk holds."""
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(size)
    return path


def write_rows(path: Path, groups: int, rows: int = 1 << 20) -> Path:
    """Write a Parquet file whose columns are one number, `groups` times `rows` times."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: np.zeros(rows, dtype=bool) for name in ("y", "x", "g")})
    with pq.ParquetWriter(
        path,
        table.schema,
        compression="gzip",
        data_page_size=1 << 30,
        column_encoding=dict.fromkeys(table.column_names, "RLE"),
        use_dictionary=False,
        data_page_version="2.0",
    ) as file:
        for _ in range(groups):
            file.write_table(table, row_group_size=rows)
    return path

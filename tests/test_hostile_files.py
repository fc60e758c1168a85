"""Files that are endless, elsewhere or far larger than they look are refused before they are read.

What is legitimately large, dense or odd passes.
"""

from __future__ import annotations

import gzip
import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import etafree as ef
import hostile
from conftest import refused
from etafree import losses
from etafree.cli import app
from etafree.cli.csv_table import CsvTable
from etafree.fits.stan import read_stan_csv
from etafree.fits.trees import read_tree
from etafree.foundation import storage as claims
from fuzzed import frame, result, saved, stored

posix = pytest.mark.skipif(os.name != "posix", reason="FIFOs, links and devices of POSIX")


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which 62 MB are large, so that bombs are made quickly."""
    monkeypatch.setattr(claims, "memory", lambda: (10**9, 10**12))


@posix
@pytest.mark.parametrize("name", hostile.HDF5)
def test_netcdf_files_that_lead_elsewhere_or_nowhere_are_refused(name: str, tmp_path: Path) -> None:
    path = hostile.write_hdf5(tmp_path, stored("netcdf"), name)
    told = hostile.HDF5[name][1]
    if told:
        refused("draws", told, lambda: read_tree(path))
        refused("draws", "fit.nc", lambda: ef.calibrate(str(path)))
        done = CliRunner().invoke(app, ["calibrate", str(path)])
        assert isinstance(done.exception, ef.errors.InputError)


def test_dense_arrays_of_a_moderate_size_pass(tmp_path: Path) -> None:
    import xarray as xr

    draws = np.random.default_rng(0).standard_normal((2, 500))
    constant = xr.DataArray(np.zeros((5 * 10**6,)), dims="row", name="constant")
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"b": (("chain", "draw"), draws)}),
            "constant_data": constant.to_dataset(),
        }
    )
    path = tmp_path / "fit.nc"  # 40 MB of zeros, compressed a thousand times
    dense = {"/constant_data": {"constant": {"zlib": True, "complevel": 9}}}
    tree.to_netcdf(path, engine="h5netcdf", encoding=dense)
    assert path.stat().st_size < 200_000
    with read_tree(path) as read:
        assert ef.calibrate(read, center=[0.0], covariance=[[1.0]]).names == ("b",)


@posix
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of zarr 3
@pytest.mark.parametrize("name", hostile.ZARR)
def test_zarr_stores_that_lead_elsewhere_or_nowhere_are_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    (tmp_path / "whole.nc").write_bytes(stored("netcdf"))
    with read_tree(tmp_path / "whole.nc") as tree:
        tree.to_zarr(tmp_path / "fit.zarr")
    with read_tree(tmp_path / "fit.zarr") as tree:
        assert tree["posterior"]["b"].shape == (2, 40, 2)
    spoil, told = hostile.ZARR[name]
    spoil(tmp_path / "fit.zarr")
    refused("draws", told, lambda: read_tree(tmp_path / "fit.zarr"))


@pytest.mark.parametrize("name", hostile.NPZ)
def test_saves_with_other_contents_than_a_save_has_are_refused(name: str, tmp_path: Path) -> None:
    path = hostile.write_npz(tmp_path, saved("calibration"), name)
    refused("path", hostile.NPZ[name][1], lambda: ef.Calibration.load(path))


def test_saves_that_were_packed_again_are_the_same(tmp_path: Path) -> None:
    packed = hostile.write_npz(tmp_path, saved("calibration"))
    assert packed.stat().st_size < len(saved("calibration"))
    with np.load(packed) as file:
        odd = {name: file[name].copy("F") for name in file.files}
    np.savez(
        tmp_path / "odd.npz",
        **{k: v.astype(">f8") if v.dtype.kind == "f" else v for k, v in odd.items()},
    )
    for path in (packed, tmp_path / "odd.npz"):
        loaded = ef.Calibration.load(path)
        np.testing.assert_array_equal(loaded.draws.values, result().draws.values)


def test_every_array_of_every_save_is_known(tmp_path: Path) -> None:
    from etafree.result import ARRAYS

    with zipfile.ZipFile(result().save(tmp_path / "save.npz")) as file:
        names = {name.removesuffix(".npy") for name in file.namelist()}
    assert names <= {*ARRAYS, "__meta__", "__digest__"}


@posix
@pytest.mark.parametrize("reader", hostile.READERS)
@pytest.mark.parametrize("kind", hostile.SPECIAL)
def test_no_reader_waits_for_what_is_no_file(kind: str, reader: str, tmp_path: Path) -> None:
    make, told = hostile.SPECIAL[kind]
    make(tmp_path / "place")
    with pytest.raises(ef.errors.InputError, match=told):
        hostile.READERS[reader](tmp_path / "place")


@posix
@pytest.mark.parametrize("start", [b"", b"y,x\n1,2\n", b"# a\nlp__,b\n"])
def test_text_that_goes_on_without_end_is_refused(start: bytes, tmp_path: Path) -> None:
    for size in (1 << 29, 1 << 42):
        path = hostile.write_sparse(tmp_path / "data.csv", start, size)
        told = "line" if size < 10**12 else "takes 4.4 TB"
        refused("data", told, lambda path=path: CsvTable.read(path, "data"))
        refused("draws", "line of more than", lambda path=path: read_stan_csv([path]))


def test_compressed_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(b"y,x\n" + b"1,2\n" * 10**6))
    refused("data", "compressed with gzip", lambda: CsvTable.read(path, "data"))


def from_parquet(path: Path) -> ef.Criterion:
    return ef.Criterion.from_parquet(losses.Squared(), path, "y ~ x")


def test_parquet_files_of_few_bytes_and_many_rows_are_refused(tmp_path: Path) -> None:
    path = hostile.write_rows(tmp_path / "rows.parquet", 20)
    assert path.stat().st_size < 10**6
    refused("data", "claims to hold 168 MB; count rows", lambda: from_parquet(path))
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "part-0.parquet")
    frame().to_parquet(tmp_path / "folder" / "part-1.parquet")
    refused("data", "claims to hold", lambda: from_parquet(tmp_path / "folder"))


def test_a_constant_column_of_a_usual_size_is_no_bomb(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 50_000))
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"y": y, "x": x, "one": 1.0}).to_parquet(path, row_group_size=50_000)
    assert ef.minimise(from_parquet(path)).theta.shape == (2,)


# --- sizes --------------------------------------------------------------------------------------


def test_a_file_may_claim_a_hundred_times_its_size_or_a_part_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "memory", lambda: (16 << 30, 8 << 30))
    claims.check_claim("real.nc", 4 << 30, 4 << 30, "draws")  # really that large
    claims.check_claim("real.nc", 400 << 30, 4 << 30, "draws")  # larger than memory, read in parts
    claims.check_claim("dense.nc", 1 << 30, 1 << 20, "draws")
    refused(
        "draws",
        "1.05 MB and claims to hold 1.07 GB",
        lambda: claims.check_claim("bomb.nc", (1 << 30) + 1, 1 << 20, "draws"),
    )
    claims.check_room("b", 8 << 30, "draws", "thin")
    refused(
        "draws",
        "takes 9.66 GB, and 8.59 GB of memory are free; thin",
        lambda: claims.check_room("b", 9 << 30, "draws", "thin"),
    )


def test_draws_that_memory_cannot_hold_are_refused_and_others_of_the_file_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fit.nc"
    path.write_bytes(stored("netcdf"))
    with read_tree(path) as tree:
        monkeypatch.setattr(claims, "memory", lambda: (1 << 30, 1000))
        refused(
            "draws",
            "'b' takes 1.28 kB, and 1 kB of memory are free",
            lambda: ef.calibrate(ef.from_arviz(tree, latent=None)),
        )


def test_memory_is_what_the_system_and_the_limits_of_the_process_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    total, free = claims.memory()
    assert free > 1 << 26
    assert total < 1 << 50
    known = tmp_path / "meminfo"
    known.write_text("MemTotal: 4096 kB\nMemAvailable: 1024 kB\nSwapFree: 512 kB\nPages: 0\n")
    monkeypatch.setattr(claims, "MEMINFO", str(known))
    monkeypatch.setattr(claims, "CONTAINER", str(tmp_path / "none"))
    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert claims.memory() == (4 << 20, 1536 << 10)
    (tmp_path / "limit").write_text("2097152\n")
    monkeypatch.setattr(claims, "CONTAINER", str(tmp_path / "limit"))
    assert claims.memory() == (2 << 20, 1536 << 10)
    (tmp_path / "limit").write_text("max\n")
    limit = 1 << 20
    assert claims.memory() == (1 << 20, 1 << 20)
    known.write_text("nothing of the kind\n")
    limit = resource.RLIM_INFINITY
    assert claims.memory() == (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),) * 2

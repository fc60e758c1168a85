"""Where files are written and read: regular files only, links followed, permissions kept."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etafree as ef
import fault_work
from conftest import refused
from etafree.cli.commands import calibrate_files
from etafree.cli.csv_table import CsvTable
from etafree.errors import EtafreeError
from etafree.fits.stan import read_stan_csv
from etafree.fits.trees import read_tree, write_netcdf
from etafree.foundation.storage import SPECIAL, whole_file, whole_path

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs (POSIX)")


def tree() -> Any:
    import numpy as np
    import xarray as xr

    values = np.random.default_rng(0).standard_normal((1, 20))
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"a": (("chain", "draw"), values)})})


def write_whole(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"whole")


def write_part(path: Path) -> None:
    with whole_path(path) as part:
        part.write_bytes(b"whole")


#: Everything that writes, by the argument that its refusal names.
WRITERS: dict[str, Callable[[Path], Any]] = {
    "save": lambda path: fault_work.calibrated().save(path),
    "save a map": lambda path: fault_work.calibrated().map.save(path),
    "report": lambda path: fault_work.calibrated().report(path, force=True),
    "write_netcdf": lambda path: write_netcdf(tree(), path),
    "whole_file": write_whole,
    "whole_path": write_part,
}


@pytest.fixture(params=["with nameless files", "without"])
def nameless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without" and hasattr(os, "O_TMPFILE"):
        monkeypatch.delattr(os, "O_TMPFILE")


def special(path: Path, kind: str) -> None:
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        held = socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        try:
            os.chdir(path.parent)  # names of sockets are short
            held.bind(path.name)
        finally:
            os.chdir(here)
            held.close()
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["FIFO", "socket", "folder"])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_regular_file_is_refused_by_name_and_stays(
    tmp_path: Path, writer: str, linked: bool, kind: str
) -> None:
    place = tmp_path / "out.npz"
    special(place, kind)
    path = place
    if linked:
        path = tmp_path / "link.npz"
        path.symlink_to(place)
    before = {p.name: p.lstat() for p in tmp_path.iterdir()}
    refused("path", kind, lambda: WRITERS[writer](path))
    after = {p.name: p.lstat() for p in tmp_path.iterdir()}
    assert {n: (s.st_ino, s.st_mode) for n, s in after.items()} == {
        n: (s.st_ino, s.st_mode) for n, s in before.items()
    }


@pytest.mark.parametrize("bits", [stat.S_IFCHR, stat.S_IFBLK])
@pytest.mark.parametrize("writer", WRITERS)
def test_devices_are_refused_and_stay(
    tmp_path: Path, writer: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regular file that says it is a device: tests never write to a real one."""
    path, plain = tmp_path / "null.npz", os.stat
    path.write_text("before")
    fault_work.calibrated()

    def told(name: Any, *rest: Any, **options: Any) -> os.stat_result:
        found = plain(name, *rest, **options)
        if found.st_ino != plain(path).st_ino:
            return found
        return os.stat_result((bits | 0o666, *tuple(found)[1:]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", told)
        refused("path", "device", lambda: WRITERS[writer](path))
    assert path.read_text() == "before"
    assert any(is_kind(bits) for is_kind in SPECIAL)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.usefixtures("nameless")
def test_a_link_stays_a_link_and_its_file_is_written(
    tmp_path: Path, writer: str, there: bool
) -> None:
    (tmp_path / "far").mkdir()
    place, path = tmp_path / "far" / "file.npz", tmp_path / "link.npz"
    if there:
        place.write_text("before")
    path.symlink_to(Path("far", "file.npz"))
    WRITERS[writer](path)
    assert path.is_symlink()
    assert path.resolve() == place.resolve()
    assert place.read_bytes() != b"before"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["far", "file.npz", "link.npz"]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o444])
@pytest.mark.usefixtures("nameless")
def test_the_permissions_of_an_existing_file_are_kept(
    tmp_path: Path, writer: str, mode: int
) -> None:
    path = tmp_path / "file.npz"
    path.write_text("before")
    path.chmod(mode)
    WRITERS[writer](path)
    assert path.read_bytes() != b"before"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.usefixtures("nameless")
def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path, writer: str) -> None:
    umask = os.umask(0o027)
    try:
        WRITERS[writer](tmp_path / "file.npz")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "file.npz").stat().st_mode) == 0o640


def test_links_in_a_circle_and_to_nowhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").symlink_to("b.npz")
    (tmp_path / "b.npz").symlink_to("a.npz")
    (tmp_path / "c.npz").symlink_to(Path("gone", "c.npz"))
    for write in WRITERS.values():
        for name in ("a.npz", "c.npz"):
            with pytest.raises(EtafreeError, match="path"):
                write(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz", "c.npz"]


@pytest.mark.parametrize("there", [True, False])
def test_a_hidden_file_that_is_gone_at_the_end_is_an_error(
    tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import xarray as xr

    path = tmp_path / "out.nc"
    if there:
        path.write_text("before")
    monkeypatch.setattr(xr.DataTree, "to_netcdf", lambda self, part, **_: os.unlink(part))
    refused("path", "cannot be written", lambda: write_netcdf(tree(), path))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["before"] * there


def test_the_command_line_refuses_to_write_over_a_fifo_with_force(tmp_path: Path) -> None:
    fit, out = tmp_path / "fit.nc", tmp_path / "out"
    write_netcdf(tree(), fit)
    os.mkfifo(out)
    refused("out", "FIFO", lambda: calibrate_files([fit], out=out, force=True))
    refused("report", "FIFO", lambda: calibrate_files([fit], report=out, force=True))
    assert stat.S_ISFIFO(out.stat().st_mode)


READERS: dict[str, Callable[[Path], Any]] = {
    "load": ef.Calibration.load,
    "load a map": ef.LocationScaleMap.load,
    "netCDF": read_tree,
    "calibrate": lambda path: ef.calibrate(str(path)),
    "CmdStan": lambda path: read_stan_csv([path]),
    "CSV": lambda path: CsvTable.read(path, "data"),
    "Parquet": lambda path: ef.Criterion.from_parquet(ef.losses.Squared(), path, "y ~ 1"),
    "a folder of Parquet": lambda path: ef.Criterion.from_parquet(
        ef.losses.Squared(), path.parent, "y ~ 1"
    ),
    "a zarr store": lambda path: read_tree(path.parent),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["file", "file.csv", "file.nc", "file.npz", "file.zarr"])
def test_a_fifo_is_refused_as_input_and_nobody_waits_for_it(
    tmp_path: Path, reader: str, name: str
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(EtafreeError, match="FIFO"):
        READERS[reader](tmp_path / name)

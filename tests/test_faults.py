"""Killed processes, full disks, damaged files, lost schedulers: the same numbers or one clear line.

What is tested of studies on processes of their own stands in ``test_engine.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import engine_work
import etafree as ef
import etafree.foundation.storage
import fault_work
from conftest import local_cluster, refused
from etafree.cli import app, run
from etafree.errors import EtafreeError, InputError
from etafree.fits.trees import read_tree
from etafree.foundation.storage import load_arrays
from etafree.paper.study import StudyError, run_study
from fault_work import FORMULA, WRITERS, Fatal
from studies import compare
from studies.__main__ import app as studies_app
from test_engine import gone, saved, wait_for

MOMENTS = ("bytes", "fsync", "replace")


@contextlib.contextmanager
def started(*arguments, **options):
    """Run work for faults in a process of its own, which ends with the block."""
    with subprocess.Popen(
        [sys.executable, fault_work.__file__, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def one_line(error):
    assert isinstance(error, EtafreeError)
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    return str(error)


# Writers that are killed


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Return what killed writers left, by writer and moment."""
    folder = tmp_path_factory.mktemp("killed")
    with started("writers", folder) as process:
        told, said = process.communicate(timeout=300)
    assert told, said
    return json.loads(told.splitlines()[-1])


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "netCDF"])
def test_a_killed_writer_leaves_the_old_file_or_none(left, kind, moment) -> None:
    """A new file needs no replacing, so nothing can happen then; an old one stays what it was."""
    first, fresh, second, rest, text = left[f"{kind} {moment}"]
    assert text == "before"
    name = WRITERS[kind][0]
    if moment == "replace":
        assert first is None
        assert name in fresh
        assert second == signal.SIGKILL
        hidden = [entry for entry in rest if entry != name]
        assert len(hidden) == 1  # a whole copy, between the last two calls; swept later
        assert hidden[0].endswith(".part")
    else:
        expected = signal.SIGKILL if moment == "fsync" else signal.SIGXFSZ
        assert first == second == expected
        assert fresh == []
        assert list(rest) == [name]


@pytest.mark.parametrize("moment", ["bytes", "replace"])
def test_a_killed_writer_of_netcdf_leaves_the_old_file(left, moment) -> None:
    """HDF5 wants a name: a hidden file stays, and goes with the next one that is written."""
    first, fresh, second, rest, text = left[f"netCDF {moment}"]
    assert first == second
    assert text == "before"
    assert len(fresh) == 1
    assert len(rest) == 2
    assert all(name.endswith(".part") for name in {*fresh, *rest} - {"draws.nc"})


def test_what_a_killed_process_left_is_swept_by_the_next_writer(tmp_path) -> None:
    result = fault_work.calibrated()
    mine = tmp_path / ".download.part"  # of another program
    mine.write_text("")
    os.utime(mine, (0, 0))
    for name, write in WRITERS.values():
        path, stale, busy = (
            tmp_path / name,
            tmp_path / ".etafree-01.part",
            tmp_path / ".etafree-23.part",
        )
        path.write_text("before")
        stale.write_text("")
        busy.write_text("")
        os.utime(stale, (0, 0))
        write(path, result)
        assert not stale.exists()
        assert busy.exists()  # another process may be at it
        assert mine.exists()


def test_where_files_need_a_name_the_rest_holds(tmp_path, monkeypatch) -> None:
    """As on systems other than Linux."""
    monkeypatch.delattr(os, "O_TMPFILE")
    result = fault_work.calibrated()
    umask = os.umask(0o027)
    try:
        path = result.save(tmp_path / "result")
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o640
    assert np.array_equal(ef.Calibration.load(path).draws.values, result.draws.values)
    before = path.read_bytes()
    with full_disk(), pytest.raises(InputError, match="File too large"):
        result.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# A full disk


@contextlib.contextmanager
def full_disk(after=0):
    """Let no file grow beyond 100 bytes, from the file after so many on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    replacing, count = etafree.foundation.storage._replacing, 0

    @contextlib.contextmanager
    def counted(path):
        nonlocal count
        count += 1
        if count > after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            with replacing(path) as place:
                yield place
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(etafree.foundation.storage, "_replacing", counted)
        yield


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_changes_nothing(kind, tmp_path) -> None:
    name, write = WRITERS[kind]
    path, result = tmp_path / name, fault_work.calibrated()
    with (
        full_disk(),
        pytest.raises(InputError, match=r"cannot be written \(.*free some space") as info,
    ):
        write(path, result)
    assert str(path) in one_line(info.value)
    assert list(tmp_path.iterdir()) == []
    path.write_text("before")
    with full_disk(), pytest.raises(InputError, match="cannot be written"):
        write(path, result)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    write(path, result)
    assert path.stat().st_size > 100


def command(monkeypatch, capsys, *arguments, code=2):
    """Run a command of the command line here; return the last line of what it says."""
    monkeypatch.setattr(sys, "argv", ["etafree", *map(str, arguments)])
    with pytest.raises(SystemExit) as info:
        run(studies_app if arguments[0] in ("coverage", "compare") else app)
    assert info.value.code == code
    told = capsys.readouterr().err.splitlines()
    return told[-1] if told else ""


def test_commands_on_a_full_disk(tmp_path, monkeypatch, capsys) -> None:
    rng = np.random.default_rng(1)
    theta, y = rng.standard_normal((4, 200, 1)), rng.standard_normal(50)
    import xarray as xr

    loss = -0.5 * (theta - y) ** 2
    dims = ("chain", "draw")
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"mu": (dims, theta[..., 0] / 7)}),
            "log_likelihood": xr.Dataset({"y": ((*dims, "obs"), loss)}),
        }
    )
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    arguments = [
        "calibrate",
        tmp_path / "fit.nc",
        "-o",
        tmp_path / "out.nc",
        "--report",
        tmp_path / "page.html",
        "--quiet",
    ]
    with full_disk():
        told = command(monkeypatch, capsys, *arguments)
    assert told.startswith("etafree: ")
    assert "out.nc' cannot be written" in told
    assert os.listdir(tmp_path) == ["fit.nc"]
    with full_disk(after=1):
        told = command(monkeypatch, capsys, *arguments)
    assert "page.html' cannot be written" in told
    assert set(os.listdir(tmp_path)) == {"fit.nc", "out.nc"}
    assert read_tree(tmp_path / "out.nc")["posterior"].sizes["draw"] == 200


STUDIES = {
    "figure1": (3, ["--datasets", 2, "--iterations", 30, "--burn-in", 10]),
    "coverage": (3, ["--only", "ridge, sizes", "--replicates", 2]),
    "compare": (2, ["--only", "correctly", "--datasets", 2]),
}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_on_a_full_disk_keeps_its_cells_and_resumes(
    study, tmp_path, monkeypatch, capsys
) -> None:
    """One cell after study.json, then the table after all cells, then to the end."""
    ways = {name: compare.WAYS[name] for name in ("eta = 1", "bootstrap", "location-scale")}
    monkeypatch.setattr(compare, "WAYS", ways)
    out, (many, options) = tmp_path / "out", STUDIES[study]
    arguments = [study, "--out", out, *options, "--workers", 1]
    with full_disk():
        told = command(monkeypatch, capsys, *arguments)
    assert told.startswith("etafree: --out: ")
    assert list(out.iterdir()) == []
    with full_disk(after=2):
        told = command(monkeypatch, capsys, *arguments)
    assert f"cannot be written (File too large); 1/{many} cells are kept" in told
    assert told.endswith("the same command resumes")
    [first] = saved(out)
    when = first.stat().st_mtime_ns
    with full_disk(after=many - 1):
        told = command(monkeypatch, capsys, *arguments)
    assert f"{study}.csv' cannot be written" in told
    assert sorted(os.listdir(out)) == ["cells", "study.json"]
    command(monkeypatch, capsys, *arguments, code=0)
    assert {f"{study}.csv", f"{study}.png", "report.html"} < set(os.listdir(out))
    assert first.stat().st_mtime_ns == when
    whole = tmp_path / "whole"
    command(monkeypatch, capsys, *[whole if a == out else a for a in arguments], code=0)
    tables = [pd.read_csv(path / f"{study}.csv", dtype=str) for path in (out, whole)]
    seconds = [table.pop("seconds") for table in tables if "seconds" in table]
    assert len(seconds) == (2 if study == "compare" else 0)
    pd.testing.assert_frame_equal(*tables)


def test_what_is_printed_onto_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from etafree.cli import main; main()", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "etafree: [Errno 28] No space left on device\n"


# Damaged files


def test_truncated_files_are_refused_wherever_they_end(tmp_path) -> None:
    result = fault_work.calibrated()
    readers = {
        "Calibration.save": ef.Calibration.load,
        "netCDF": ef.calibrate,
        "cell of a study": lambda path: load_arrays(path, "cell"),
    }
    for kind, read in readers.items():
        name, write = WRITERS[kind]
        path = tmp_path / name
        write(path, result)
        whole = path.read_bytes()
        for end in np.linspace(0, len(whole) - 1, 23).astype(int):
            path.write_bytes(whole[:end])
            with pytest.raises(InputError) as info:
                read(path)
            assert name in one_line(info.value)


def test_a_study_that_lost_its_description_is_refused(tmp_path) -> None:
    cells = engine_work.cells(2)
    run = lambda: run_study("test", {}, cells, engine_work.draw, tmp_path, seed=1, workers=1)  # noqa: E731
    run()
    text = (tmp_path / "study.json").read_bytes()
    (tmp_path / "study.json").write_bytes(text[:-9])
    refused("out", "does not describe a study", run)
    assert len(saved(tmp_path)) == 2
    (tmp_path / "study.json").write_bytes(text)
    run()


# Clusters of Dask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three Parquet files of four row groups."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("table")
    for k in range(3):
        table = pd.DataFrame(rng.standard_normal((200, 2)), columns=["x", "z"])
        table["y"] = table.x + rng.standard_t(3, 200)
        table.to_parquet(path / f"{k}.parquet", row_group_size=50)
    return path


@pytest.fixture(scope="module")
def cluster():
    with local_cluster() as local:
        yield local


def fitted(folder, loss, scheduler):
    criterion = ef.Criterion.from_parquet(loss, folder, FORMULA, scheduler=scheduler, batch=4)
    target = ef.target(criterion)
    return target.center.tobytes() + target.covariance.tobytes()


@pytest.fixture(scope="module")
def expected(folder, cluster):
    return fitted(folder, ef.losses.Huber(1.345), cluster.scheduler_address)


def test_a_worker_killed_in_the_middle_of_a_fit(folder, cluster, expected, tmp_path) -> None:
    before = {worker.pid for worker in cluster.workers.values()}
    assert fitted(folder, Fatal(1.345, marks=str(tmp_path)), cluster.scheduler_address) == expected
    assert len(list(tmp_path.iterdir())) == 8
    wait_for(lambda: {worker.pid for worker in cluster.workers.values()} != before, 60)


@pytest.fixture
def doomed():
    """Start a cluster in a process of its own; give the process, its address and its workers."""
    with started("cluster") as process:
        address, *workers = process.stdout.readline().split()
        yield process, address, workers


def test_a_scheduler_that_goes_away_in_the_middle_of_a_fit(
    folder, expected, cluster, doomed, tmp_path, caplog
) -> None:
    process, address, workers = doomed
    start = time.monotonic()
    with pytest.raises(EtafreeError, match="scheduler") as info:
        fitted(folder, Fatal(1.345, marks=str(tmp_path), victim=process.pid), address)
    one_line(info.value)
    assert process.wait(5) == -signal.SIGKILL
    assert time.monotonic() - start < 60
    wait_for(lambda: all(gone(pid) for pid in workers), 60)
    assert fitted(folder, ef.losses.Huber(1.345), cluster.scheduler_address) == expected


def test_a_scheduler_that_goes_away_in_the_middle_of_a_study(doomed, tmp_path, capfd) -> None:
    process, address, workers = doomed
    table = engine_work.cells(6, victim=process.pid, out=str(tmp_path))
    run = lambda **how: run_study(  # noqa: E731
        "test", {}, table, fault_work.kill_scheduler, tmp_path, seed=1, progress=False, **how
    )
    with pytest.raises(StudyError, match=r"the scheduler went away .*; \d/6 cells are kept") as e:
        run(scheduler=address)
    assert one_line(e.value).endswith("the same command resumes")
    assert capfd.readouterr().err == ""
    kept = len(saved(tmp_path))
    assert 2 <= kept <= 3
    assert f"{kept}/6" in str(e.value)
    wait_for(lambda: all(gone(pid) for pid in workers), 60)
    refused("scheduler", "does not answer", lambda: run(scheduler=address))


@pytest.mark.parametrize("what", ["fit", "study"])
def test_ctrl_c_on_a_cluster_ends_at_once_and_frees_it(what, folder, cluster, tmp_path) -> None:
    place = folder if what == "fit" else tmp_path / "out"
    with started(what, place, cluster.scheduler_address) as process:
        if what == "fit":
            assert process.stdout.readline() == "fitted\n"
        else:
            wait_for(lambda: len(saved(place)) == 4, 60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=40)  # the cell without an end takes 60 s
    assert process.returncode == -signal.SIGINT
    if what == "study":
        assert "test: stopped: 4/5 cells are saved; the same command resumes" in said
        assert len(saved(place)) == 4
    wait_for(lambda: not cluster.scheduler.tasks, 60)


def test_a_parquet_file_that_is_truncated_between_two_passes(folder, tmp_path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    criterion = ef.Criterion.from_parquet(ef.losses.Huber(1.345), tmp_path, FORMULA)
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(whole[: len(whole) // 2])
    refused("data", "1.parquet", lambda: ef.minimise(criterion))
    (tmp_path / "1.parquet").write_bytes(whole)
    again = ef.Criterion.from_parquet(ef.losses.Huber(1.345), tmp_path, FORMULA)
    assert ef.minimise(again).status == "converged"


def test_a_folder_in_the_way_is_refused(tmp_path) -> None:
    (tmp_path / "page.html").mkdir()
    refused(
        "path",
        "is a folder",
        lambda: fault_work.calibrated().report(tmp_path / "page.html", force=True),
    )
    assert list(tmp_path.rglob("*")) == [tmp_path / "page.html"]


def test_the_page_names_tests_that_exist() -> None:
    here = Path(__file__).parent
    named = re.findall(r"`(test_\w+)`", (here.parent / "docs" / "reliability.md").read_text())
    written = "".join(path.read_text() for path in here.glob("test_*.py"))
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in written] == []

"""Studies give the same bits however they are run, and survive what stops them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import engine_work
from conftest import local_cluster, refused
from engine_work import cells
from etafree.errors import InputError
from etafree.foundation.storage import load_arrays
from etafree.paper.study import Cell, StudyError, cell_seed, run_study


def run(out, table, work=engine_work.draw, settings=None, **options):
    options = {"seed": 1, "workers": 1, "progress": False, **options}
    return run_study("test", settings or {"n": 5}, table, work, out, **options)


def same(first, second):
    assert list(first) == list(second)
    for key, arrays in first.items():
        assert set(arrays) == set(second[key])
        for name, array in arrays.items():
            assert array.dtype == second[key][name].dtype
            assert array.tobytes() == second[key][name].tobytes(), (key, name)


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def saved(out):
    return sorted((Path(out) / "cells").glob("*.npz"))


@pytest.fixture
def marks(tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.fixture
def cluster():
    with local_cluster() as local:
        yield local


def test_the_same_bits_on_one_process_two_and_after_a_resume(tmp_path) -> None:
    table = cells(6)
    one = run(tmp_path / "one", table)
    same(one, run(tmp_path / "two", table, workers=2))
    run(tmp_path / "part", table[4:1:-1])
    same(one, run(tmp_path / "part", table, workers=2))
    same(one, run(tmp_path / "one", table))
    assert len({arrays["mean"].item() for arrays in one.values()}) == 6
    other = run(tmp_path / "seed", table[:1], seed=2)["shift=0"]
    assert other["mean"] != one["shift=0"]["mean"]
    study = json.loads((tmp_path / "one" / "study.json").read_text())
    assert (study["name"], study["settings"], study["seed"]) == ("test", {"n": 5}, 1)
    arrays, meta = load_arrays(tmp_path / "one" / "cells" / "shift=2.npz", "cell")
    same({"": one["shift=2"]}, {"": arrays})
    assert meta == {"key": "shift=2", "parameters": {"shift": 2}, "seed": 1}


def test_seeds_are_fixed_for_good() -> None:
    assert cell_seed(1, "a").generate_state(2).tolist() == [3002498483, 3586428103]
    assert cell_seed(1, "a").entropy != cell_seed(1, "b").entropy


def test_only_missing_cells_run_on_resume(tmp_path, marks, capsys) -> None:
    table = cells(5, marks=str(marks))
    first = run(tmp_path / "out", table)
    before = set(marks.iterdir())
    (tmp_path / "out" / "cells" / "shift=1.npz").unlink()
    whole = (tmp_path / "out" / "cells" / "shift=2.npz").read_bytes()
    (tmp_path / "out" / "cells" / "shift=2.npz").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray((tmp_path / "out" / "cells" / "shift=3.npz").read_bytes())
    flipped[len(flipped) // 2] ^= 0xFF
    (tmp_path / "out" / "cells" / "shift=3.npz").write_bytes(flipped)
    left = tmp_path / "out" / "cells" / ".etafree-old.part"
    left.write_text("")
    os.utime(left, (0, 0))
    same(first, run(tmp_path / "out", table, progress=None))
    new = [path.name.split("-")[0] for path in set(marks.iterdir()) - before]
    assert sorted(new) == ["1", "2", "3"]
    said = capsys.readouterr().err
    assert "test: cell 'shift=2' is damaged and runs again" in said
    assert "test: cell 'shift=3' is damaged and runs again" in said
    assert not left.exists()


def test_a_cluster_gives_the_same_bits_and_survives_a_lost_worker(tmp_path, marks, cluster) -> None:
    table = cells(12, sleep=0.2)
    expected = run(tmp_path / "here", cells(12))
    address = cluster.scheduler_address
    same(expected, run(tmp_path / "there", cells(12), scheduler=address))

    with pytest.raises(StudyError, match=r"'shift=3' failed .*shift: is 3"):
        run(tmp_path / "fails", cells(5), engine_work.fail, scheduler=address)

    pids = [int(w.pid) for w in cluster.workers.values()]

    def lose() -> None:
        wait_for(lambda: len(saved(tmp_path / "lost")) >= 2)
        os.kill(pids[0], signal.SIGKILL)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    same(expected, run(tmp_path / "lost", table, scheduler=address))
    thread.join()
    same(expected, run(tmp_path / "there", cells(12), scheduler="tcp://127.0.0.1:9"))


def test_an_unreachable_scheduler_is_refused_and_leaves_nothing(tmp_path) -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match=r"scheduler: .* does not answer .*dask scheduler") as info:
        run(tmp_path / "out", cells(2), scheduler="tcp://127.0.0.1:9")
    assert "\n" not in str(info.value)
    assert time.monotonic() - start < 20
    assert list(tmp_path.iterdir()) == []


def started(out, marks, workers):
    return subprocess.Popen(
        [sys.executable, engine_work.__file__, str(out), str(workers), "0.15", str(marks)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_is_resumed(tmp_path, marks, workers) -> None:
    out = tmp_path / "out"
    process = started(out, marks, workers)
    wait_for(lambda: len(saved(out)) >= 3)
    process.kill()
    process.communicate()
    assert 3 <= len(saved(out)) < 12
    pids = {path.name.split("-")[1] for path in marks.iterdir()}
    wait_for(lambda: all(gone(pid) for pid in pids), 5.0)  # workers do not outlive it
    table = cells(12, sleep=0.15, marks=str(marks))
    before = {path.name: path.stat().st_mtime_ns for path in saved(out)}
    same(run(tmp_path / "whole", cells(12)), run(out, table, workers=2))
    for path in saved(out):
        assert before.get(path.name, path.stat().st_mtime_ns) == path.stat().st_mtime_ns


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("group", [False, True])
def test_an_interrupted_run_says_so_and_is_resumed(tmp_path, marks, workers, group) -> None:
    out = tmp_path / "out"
    process = started(out, marks, workers)
    wait_for(lambda: len(saved(out)) >= 3)
    (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    start = time.monotonic()
    _, said = process.communicate(timeout=10)
    assert time.monotonic() - start < 5
    assert process.returncode == -signal.SIGINT
    count = len(saved(out))
    assert 3 <= count < 12
    line = f"test: stopped: {count}/12 cells are saved; the same command resumes"
    assert said.splitlines().count(line) == 1
    assert "Process" not in said  # no worker has a word of its own
    for path in saved(out):
        load_arrays(path, "cell")
    assert not list((out / "cells").glob(".*"))
    table = cells(12, sleep=0.15, marks=str(marks))
    same(run(tmp_path / "whole", cells(12)), run(out, table, workers=2))


def test_a_killed_worker_is_survived(tmp_path, marks) -> None:
    expected = run(tmp_path / "here", cells(8))
    table = cells(8, marks=str(marks))
    same(expected, run(tmp_path / "two", table, engine_work.die_once, workers=2))


def test_workers_that_keep_dying_end_the_study(tmp_path) -> None:
    with pytest.raises(StudyError, match=r"died 3 times.*cells are kept in .* resumes"):
        run(tmp_path / "out", cells(6), engine_work.die, workers=2)
    run(tmp_path / "out", cells(6), workers=1)


def test_a_cell_that_kills_workers_of_a_cluster_ends_the_study(tmp_path) -> None:
    """A cluster of one thread: the cells run there, not in this process."""
    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), local_cluster(1) as local:
        with pytest.raises(StudyError, match=r"died 3 times, cell .* resumes"):
            run(
                tmp_path,
                cells(3)[::-1] + cells(4)[3:],
                engine_work.die,
                scheduler=local.scheduler_address,
            )
        same(run(tmp_path, cells(3)), run(tmp_path / "here", cells(3)))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_cell_is_named_and_the_others_are_kept(tmp_path, workers) -> None:
    with pytest.raises(StudyError, match=r"cell 'shift=3' failed .*shift: is 3") as info:
        run(tmp_path / "out", cells(6), engine_work.fail, workers=workers)
    assert info.value.__cause__ is not None
    assert len(saved(tmp_path / "out")) >= 3 * (workers == 1)
    run(tmp_path / "out", cells(6))
    with pytest.raises(StudyError, match=r"'shift=0' failed .*'objects'.* cannot be saved"):
        run(tmp_path / "objects", cells(1), engine_work.objects, workers=workers)


def test_cells_do_not_share_what_they_change(tmp_path) -> None:
    shared = [0]
    found = run(tmp_path, cells(3, list=shared), engine_work.spoil)
    assert [arrays["buffer"][0] for arrays in found.values()] == [2, 3, 4]
    assert shared == [0]


def test_workers_have_one_thread_and_the_environment_is_put_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    before = dict(os.environ)
    found = run(tmp_path, cells(2), engine_work.environment, workers=2)
    assert all(arrays["threads"].tolist() == [1, 1, 1, 1] for arrays in found.values())
    assert dict(os.environ) == before


def test_a_folder_of_another_study_is_refused(tmp_path) -> None:
    out = tmp_path / "out"
    run(out, cells(2))
    refused("settings", "entry 'n' is 6 but was 5", lambda: run(out, cells(2), settings={"n": 6}))
    refused(
        "settings",
        "'m' is null but was absent",
        lambda: run(out, cells(2), settings={"n": 5, "m": None}),
    )
    refused("settings", "'n' is absent but was 5", lambda: run(out, cells(2), settings={"m": 5}))
    refused("seed", "it is 2 but was 1", lambda: run(out, cells(2), seed=2))
    other = lambda: run_study("b", {"n": 5}, cells(2), engine_work.draw, out, seed=1)  # noqa: E731
    refused("name", 'it is "b" but was "test"', other)
    refused("cells", "'shift=0' was run with other parameters", lambda: run(out, cells(1, sleep=0)))
    run(out, cells(3)[2:])  # other cells of the same study are welcome
    (out / "study.json").write_text("{")
    refused("out", "does not describe a study", lambda: run(out, cells(2)))
    (out / "study.json").unlink()
    refused("out", "holds 'cells' but no study.json", lambda: run(out, cells(2)))
    (tmp_path / "file").write_text("")
    refused("out", "is not a folder", lambda: run(tmp_path / "file", cells(2)))
    refused("out", "cannot be written to", lambda: run(tmp_path / "file" / "below", cells(2)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("")
    run(tmp_path / "notes", cells(1))


def test_bad_input_is_refused_before_anything_is_written(tmp_path) -> None:
    for key in ("", "a/b", "a b", "é", "a" * 201, 3):
        refused("key", f"is {key!r:.80}", lambda key=key: Cell(key, {}))
    refused("parameters", "cannot be written as JSON", lambda: Cell("a", {"f": print}))
    refused("parameters", "cannot be written as JSON", lambda: Cell("a", 3))
    out = tmp_path / "out"
    twice = [Cell("a", {}), Cell("A", {})]
    refused("cells", "'a' twice", lambda: run(out, twice))
    refused("work", "cannot be found by name", lambda: run(out, cells(1), lambda p, s: {}))

    def closure(parameters, seed):
        return {}

    refused("work", "cannot be found by name", lambda: run(out, cells(1), closure, workers=2))
    refused("work", "cannot be found by name", lambda: run(out, cells(1), None))
    refused("settings", "JSON", lambda: run(out, cells(1), settings={"f": print}))
    for seed in (-1, 0.5, True, None):
        refused("seed", f"is {seed!r}", lambda seed=seed: run(out, cells(1), seed=seed))
    for workers in (0, -1, 1.5, "2"):
        refused("workers", f"is {workers!r}", lambda w=workers: run(out, cells(1), workers=w))
    for text in ("", "here", 3, "nonsense://here:1"):
        refused("scheduler", f"is {text!r}", lambda t=text: run(out, cells(1), scheduler=t))
    refused("name", "is 3", lambda: run_study(3, {}, cells(1), engine_work.draw, out, seed=1))
    assert not out.exists()
    assert run(out, []) == {}


def test_progress_is_a_bar_or_lines_or_nothing(tmp_path, capsys) -> None:
    run(tmp_path / "silent", cells(3))
    assert capsys.readouterr().err == ""
    run(tmp_path / "lines", cells(3), progress=None)
    assert "3/3 cells, " in capsys.readouterr().err
    run(tmp_path / "bar", cells(3), progress=True)
    said = capsys.readouterr().err
    assert "3/3" in said
    assert "/s" in said
    assert "\x1b[" in said

"""A Dask cluster that others use too: it is asked first, never left waiting, never left open."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import engine_work
import etafree as ef
import etafree.data.sources
import etafree.foundation.machines
from conftest import local_cluster, refused
from etafree.data.sources import Sent, parquet
from etafree.errors import EtafreeError, InputError
from etafree.paper.study import StudyError, run_study
from fault_work import FORMULA, Fatal
from test_engine import saved, wait_for
from test_faults import command, one_line, started

HUBER = ef.losses.Huber(1.345)
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask's own making


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.standard_normal((600, 2)), columns=["x", "z"])
    return table.assign(y=table.x + rng.standard_t(3, 600))


@pytest.fixture(scope="module")
def folder(frame, tmp_path_factory):
    """Three Parquet files of four row groups."""
    path = tmp_path_factory.mktemp("table")
    for k in range(3):
        part = frame[200 * k : 200 * (k + 1)]
        part.to_parquet(path / f"{k}.parquet", row_group_size=50)
    return path


@pytest.fixture(scope="module")
def address():
    """A scheduler without PyArrow, and without workers as long as a test starts none."""
    with started("scheduler") as process:
        yield process.stdout.readline().strip()


@contextmanager
def worker(address, *state, **options):
    with started("worker", address, *state, **options) as process:
        assert process.stdout.readline().startswith("tcp://")
        yield process


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setenv("ETAFREE_WORKER_TIMEOUT", "3")
    monkeypatch.setattr(etafree.foundation.machines, "LOOK", 0.2)


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(1) as local:
        yield local


def fitted(data, scheduler, formula=FORMULA, loss=HUBER):
    """Return the sandwich of a fit on the cluster."""
    made = ef.Criterion.from_parts(loss, data, formula, scheduler=scheduler, batch=4)
    return ef.target(made)


def in_memory(frame):
    return ef.target(ef.Criterion.from_formula(FORMULA, frame, HUBER))


# Who opens a file


def test_a_late_worker_opens_a_path_that_the_scheduler_cannot(
    address, folder, frame, tmp_path, monkeypatch
) -> None:
    """The path is relative, the worker starts elsewhere, the scheduler cannot open anything."""
    monkeypatch.chdir(folder.parent)
    made = []
    fit = lambda: made.append(fitted(folder.name, address))  # noqa: E731
    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    with worker(address, cwd=tmp_path):
        thread.join(300)
    np.testing.assert_allclose(made[0].covariance, in_memory(frame).covariance, rtol=1e-9)


def test_what_is_sent_is_plain_and_opens_nothing_on_the_way(folder, tmp_path) -> None:
    (tmp_path / "town=a").mkdir()
    file = tmp_path / "town=a" / "0.parquet"
    file.write_bytes((folder / "0.parquet").read_bytes())
    [found] = parquet([str(tmp_path)])
    sent = pickle.dumps(Sent.of(found.fragment.subset(row_group_ids=[1, 3])))
    whole = file.read_bytes()
    file.unlink()
    again = pickle.loads(sent)
    assert (again.path, again.groups) == (str(file), [1, 3])
    with pytest.raises(InputError, match=r"there is no file .*0\.parquet.*on every machine"):
        again.opened()
    file.write_bytes(whole)
    assert again.opened().to_table().num_rows == 100
    assert again.opened().partition_expression.equals(found.fragment.partition_expression)


def test_a_file_that_a_worker_cannot_find_is_named(cluster, folder, monkeypatch) -> None:
    class Elsewhere:
        of = staticmethod(lambda fragment: replace(Sent.of(fragment), path="/nowhere/0.parquet"))

    monkeypatch.setattr(etafree.data.sources, "Sent", Elsewhere)
    refused("data", "'/nowhere/0.parquet'", lambda: fitted(folder, cluster.scheduler_address))


def test_a_table_in_memory_is_not_sent(cluster, folder) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(folder)
    refused("scheduler", "in memory", lambda: fitted(table, cluster.scheduler_address))


# Nobody to do the work


def test_a_worker_without_the_package_or_with_another_version_is_refused(address, folder) -> None:
    for state, told in (("bare", "cannot import etafree"), ("old", "has etafree 0.0.1")):
        with worker(address, state):
            refused("scheduler", told, lambda: fitted(folder, address))


@pytest.mark.parametrize("state", [None, "paused"])
def test_waiting_for_a_worker_is_told_and_ends(state, address, folder, hurry, tmp_path, capsys):
    which = "all 1 are paused" if state else "it has none"
    with worker(address, state) if state else nullcontext():
        wait_for(lambda: len(workers(address)) == bool(state))
        start = time.monotonic()
        with pytest.raises(EtafreeError, match="no worker that can run for 3 s") as info:
            fitted(folder, address)
        assert which in one_line(info.value)
        assert "ETAFREE_WORKER_TIMEOUT" in str(info.value)
        said = capsys.readouterr().err
        assert said.startswith(f"etafree: waiting for a worker of {address} that can run ({which}")
        with pytest.raises(EtafreeError, match="no worker that can run for 3 s"):
            run_study(
                "t",
                {},
                engine_work.cells(2),
                engine_work.draw,
                tmp_path / "out",
                seed=1,
                scheduler=address,
            )
        assert "t: waiting for a worker" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        assert time.monotonic() - start < 30


def workers(address):
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return client.scheduler_info()["workers"]


def test_the_command_line_does_not_wait_for_ever(address, hurry, tmp_path, monkeypatch, capsys):
    wait_for(lambda: not workers(address))
    told = command(
        monkeypatch,
        capsys,
        "figure1",
        "--out",
        tmp_path / "out",
        "--datasets",
        2,
        "--scheduler",
        address,
    )
    assert told.startswith("etafree: the scheduler tcp://")
    assert "no worker that can run for 3 s" in told


def test_the_last_worker_that_dies_ends_a_study_and_a_fit(address, folder, hurry, tmp_path) -> None:
    out = tmp_path / "out"
    with worker(address) as process:
        made = ef.Criterion.from_parts(HUBER, folder, FORMULA, scheduler=address, batch=4)

        def lose() -> None:
            wait_for(lambda: len(saved(out)) >= 2)
            process.kill()

        threading.Thread(target=lose, daemon=True).start()
        table = engine_work.cells(40, sleep=0.2)
        with pytest.raises(StudyError, match=r"no worker that can run .*; \d+/40 cells are kept"):
            run_study(
                "t", {}, table, engine_work.draw, out, seed=1, scheduler=address, progress=False
            )
        assert len(saved(out)) >= 2
    with pytest.raises(EtafreeError, match="no worker that can run for 3 s") as info:
        ef.minimise(made)
    one_line(info.value)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_limit_that_is_no_number_of_seconds(text, cluster, folder, monkeypatch) -> None:
    monkeypatch.setenv("ETAFREE_WORKER_TIMEOUT", text)
    refused(
        "ETAFREE_WORKER_TIMEOUT", f"is {text!r}", lambda: fitted(folder, cluster.scheduler_address)
    )


# A scheduler that dies


def test_a_scheduler_that_dies_under_a_dask_frame(frame, folder, tmp_path, monkeypatch) -> None:
    import dask.dataframe as dd
    from distributed import Client

    data = dd.from_pandas(frame, npartitions=12, sort=False)
    with started("cluster") as process:
        address = process.stdout.readline().split()[0]
        loss = Fatal(1.345, marks=str(tmp_path), victim=process.pid)
        files = ef.Criterion.from_parts(HUBER, folder, FORMULA, scheduler=address)
        with Client(address, set_as_default=False) as client:
            made = ef.Criterion.from_parts(HUBER, data, FORMULA, scheduler=client)
            with pytest.raises(EtafreeError, match="scheduler") as info:
                fitted(data, client, loss=loss)
            one_line(info.value)
            assert process.wait(5) == -signal.SIGKILL
            for call in (lambda: ef.minimise(made), lambda: fitted(data, client)):  # and ever after
                with pytest.raises(EtafreeError, match="scheduler") as info:
                    call()
                one_line(info.value)
    monkeypatch.setattr(etafree.data.sources, "PATIENCE", 1)
    refused("scheduler", "does not answer", lambda: ef.minimise(files))


# Clients


def test_clients_that_are_opened_here_are_closed_here(cluster, folder, frame, monkeypatch) -> None:
    def others():
        """Return the clients but for those that belong to workers (joblib gives each one)."""
        own = ("fire-and-forget", "Client-worker")
        return [name for name in cluster.scheduler.clients if not name.startswith(own)]

    before, threads = len(others()), threading.active_count()
    address = cluster.scheduler_address
    made = ef.Criterion.from_parts(HUBER, folder, FORMULA, scheduler=address, batch=4)
    ef.minimise(made)
    wait_for(lambda: len(others()) == before)
    poisson = ef.losses.Poisson()
    refused("y", "negative", lambda: fitted(folder, address, loss=poisson))  # on a worker
    refused("formula", "nothing", lambda: fitted(folder, address, "y ~ nothing"))
    with pytest.raises(StudyError):
        run_study(
            "t",
            {},
            engine_work.cells(5),
            engine_work.fail,
            folder.parent / "fails",
            seed=1,
            scheduler=address,
            progress=False,
        )
    wait_for(lambda: len(others()) == before)
    wait_for(lambda: threading.active_count() <= threads + 1)


def test_the_callers_client_stays_open(cluster, folder) -> None:
    from distributed import Client

    with Client(cluster.scheduler_address, set_as_default=False) as client:
        fitted(folder, client)
        refused("y", "negative", lambda: fitted(folder, client, loss=ef.losses.Poisson()))
        assert client.status == "running"
        assert client.submit(os.getpid).result() > 0
    refused("scheduler", "client that is closed", lambda: fitted(folder, client))

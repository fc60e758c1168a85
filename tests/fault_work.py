"""Work for the tests of faults, where other processes can find it by name.

Run as a script, the first argument names what to do: ``cluster`` is a Dask cluster that a test may
kill, ``scheduler`` and ``worker`` are the halves of one, ``fit`` and ``study`` use one until they
are interrupted, ``writers`` are killed while they write and tell what they left.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import etafree as ef

FORMULA = "y ~ x + z"


@dataclass(frozen=True)
class Fatal(ef.losses.Huber):
    """Huber's loss, which kills a process once: at a worker's eighth part, in the second pass."""

    marks: str = ""
    victim: int = 0

    def first(self, u, y):
        """Return the slope, unless the time has come."""
        if multiprocessing.parent_process() is not None:
            strike(Path(self.marks), self.victim or os.getpid())
        return super().first(u, y)


def strike(marks, victim):
    """Kill a process at the eighth call, whoever calls."""
    for k in range(8):
        try:
            (marks / str(k)).touch(exist_ok=False)
        except FileExistsError:
            continue
        if k == 7:
            os.kill(victim, signal.SIGKILL)
        return


def kill_scheduler(parameters, seed):
    """Kill the process named in the parameters in one cell, when two others are saved."""
    if parameters["shift"] == 3:
        while len(list(Path(parameters["out"]).glob("cells/*.npz"))) < 2:
            time.sleep(0.02)
        os.kill(parameters["victim"], signal.SIGKILL)
        time.sleep(30)
    return {"shift": np.array(parameters["shift"]), "draws": np.random.default_rng(seed).random(4)}


def calibrated():
    """Return a small result that every writer takes."""
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((4, 500, 2))
    return ef.calibrate(ef.Draws.of(draws, ["a", "b"]), center=[1.0, 2.0], covariance=np.eye(2))


def outputs(path, result):
    """Write what a study leaves behind, into the folder of `path`."""
    from matplotlib.figure import Figure

    from etafree.paper.study import write_outputs

    page = lambda png, told: "<html>" * 4000  # noqa: E731
    write_outputs(path.parent, path.stem, result.summary(), Figure(), page, {"seed": 1})


def netcdf(path, result):
    """Write a netCDF file."""
    from etafree.fits.trees import write_netcdf

    write_netcdf(result.to_arviz(), path)


def cell(path, result):
    """Write a cell of a study."""
    from etafree.foundation.storage import save_arrays

    save_arrays(path, "cell", {"draws": result.draws.values}, {"key": "a", "seed": 1})


#: By name: the file, and what writes it.
WRITERS = {
    "Calibration.save": ("result.npz", lambda path, result: result.save(path)),
    "Calibration.report": ("page.html", lambda path, result: result.report(path, force=True)),
    "cell of a study": ("cell.npz", cell),
    "outputs of a study": ("table.csv", outputs),
    "netCDF": ("draws.nc", netcdf),
}


def killed_writing(write, path, result, moment):
    """Write in a process that is killed half-way ("bytes"), at "fsync" or at "replace"."""
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        if moment == "bytes":  # the kernel kills at the byte
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        else:
            setattr(os, moment, lambda *a: os.kill(os.getpid(), signal.SIGKILL))
        write(path, result)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def writers(folder):
    """Kill every writer at every moment; print what it left, once without a file and once with."""
    result = calibrated()
    told = {}
    for kind, (name, write) in WRITERS.items():
        write(Path(folder) / name, result)  # so that all is imported before a fork
        for moment in ("bytes", "fsync", "replace"):
            place = Path(folder) / f"{kind} {moment}"
            place.mkdir()
            path = place / name
            first = killed_writing(write, path, result, moment)
            fresh = sorted(os.listdir(place))
            for old in place.iterdir():
                old.unlink()
            path.write_text("before")
            second = killed_writing(write, path, result, moment)
            left = {entry.name: entry.stat().st_size for entry in place.iterdir()}
            told[f"{kind} {moment}"] = (first, fresh, second, left, path.read_text(errors="ignore"))
    print(json.dumps(told), file=sys.__stdout__)


def fit(data, scheduler):
    """Fit on a cluster over and over."""
    while True:
        criterion = ef.Criterion.from_parquet(
            ef.losses.Huber(1.345), data, FORMULA, scheduler=scheduler, batch=8
        )
        ef.minimise(criterion)
        print("fitted", flush=True)


def study(out, scheduler):
    """Run a study on a cluster that has one cell without an end."""
    import engine_work
    from etafree.paper.study import run_study

    cells = [*engine_work.cells(4), engine_work.Cell("long", {"shift": 9, "sleep": 60})]
    run_study("test", {"n": 5}, cells, engine_work.draw, out, seed=1, scheduler=scheduler)


def cluster():
    """Run a cluster of one worker until it is killed."""
    import logging

    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        host="127.0.0.1",
        silence_logs=logging.CRITICAL,
    ) as made:
        print(made.scheduler_address, *(w.pid for w in made.workers.values()), flush=True)
        time.sleep(600)


def scheduler():
    """Run a scheduler on a machine that has no PyArrow, and so cannot open any file of it."""
    import asyncio

    from distributed import Scheduler

    async def run():
        options = {"port": 0, "host": "127.0.0.1", "dashboard_address": None}
        async with Scheduler(**options) as made:
            print(made.address, flush=True)
            await made.finished()

    sys.modules["pyarrow"] = None
    asyncio.run(run())


def worker(address, state="fit"):
    """Run a worker that is fit, paused, without etafree, or with another version of it."""
    import asyncio

    from distributed import Worker
    from distributed.core import Status

    if state == "bare":
        sys.modules["etafree"] = None
    if state == "old":
        ef.__version__ = "0.0.1"

    async def run():
        options = {"nthreads": 1, "memory_limit": 0, "dashboard_address": None}
        async with Worker(address, **options) as made:
            if state == "paused":
                made.status = Status.paused
            print(made.address, flush=True)
            await made.finished()

    asyncio.run(run())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

"""Run tasks here, on processes or on a Dask cluster, one thread each."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib
import json
import os
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from etafree.errors import EtafreeError
from etafree.machines import awaited

__all__ = [
    "Arrays",
    "StudyError",
    "Task",
    "Work",
    "cell_seed",
    "in_process",
    "on_dask",
    "on_processes",
]

Arrays: TypeAlias = dict[str, NDArray[Any]]
Work: TypeAlias = Callable[[Mapping[str, Any], np.random.SeedSequence], Mapping[str, NDArray[Any]]]
#: What a worker is sent: the function, the cell's key, its parameters as JSON and the seed.
Task: TypeAlias = tuple[Work, str, str, int]
Outcomes: TypeAlias = Generator[tuple[str, Arrays | BaseException], None, None]

#: How often cells are handed out again after a worker died.
RESTARTS = 2
BLAS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}


class StudyError(EtafreeError, RuntimeError):
    """A study stopped before its end; the cells that had finished are kept."""


def cell_seed(seed: int, key: str) -> np.random.SeedSequence:
    """Return the random numbers of a cell, which depend on the seed and its key alone."""
    words = np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype="<u4")
    return np.random.SeedSequence([seed, *words.tolist()])


def run_cell(work: Work, key: str, text: str, seed: int) -> Arrays:
    """Return a cell's arrays, ready to be saved; the errors it raises can be pickled."""
    from threadpoolctl import threadpool_limits

    try:
        with threadpool_limits(limits=1):  # more threads add in another order
            found = work(json.loads(text), cell_seed(seed, key))
        arrays = {name: np.array(array) for name, array in found.items()}
        for name, array in arrays.items():
            if name in ("file", "allow_pickle") or not name.isidentifier() or array.dtype.hasobject:
                raise TypeError(f"{name!r} of what work returned cannot be saved as an array")
        return arrays
    except (Exception, SystemExit) as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables that libraries read when they are loaded, and put them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def in_process(tasks: Sequence[Task]) -> Outcomes:
    """Yield the outcomes of tasks run here."""
    with _environment(**BLAS):
        for task in tasks:
            try:
                yield task[1], run_cell(*task)
            except (Exception, SystemExit) as error:
                yield task[1], error


def _start_worker() -> None:
    """Leave Ctrl-C to the main process, and end when it is gone."""
    import multiprocessing
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def on_processes(tasks: Sequence[Task], workers: int | None) -> Outcomes:
    """Yield the outcomes of tasks on processes, which are started again when one dies."""
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = min(workers or usable or 1, len(tasks))
    spawn = multiprocessing.get_context("spawn")  # numba and OpenMP do not survive a fork
    waiting = collections.deque(tasks)
    for _ in range(RESTARTS + 1):
        pool = ProcessPoolExecutor(workers, spawn, _start_worker)
        flying: dict[Future[Arrays], Task] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < 4 * workers:
                    with _environment(NUMBA_NUM_THREADS="1", **BLAS):  # submitting starts workers
                        flying[pool.submit(run_cell, *waiting[0])] = waiting[0]
                    waiting.popleft()
                done = wait(flying, 0.5, FIRST_COMPLETED).done
                for future in sorted(done, key=lambda f: f.exception() is not None):
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    yield flying.pop(future)[1], error or future.result()
            return
        except BrokenProcessPool:
            waiting.extendleft(reversed(flying.values()))
        finally:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=not flying, cancel_futures=True)
            for process in processes if flying else ():
                process.kill()
                process.join()
    advice = "is there memory enough, and does the script start under if __name__ == '__main__'?"
    yield "", StudyError(f"worker processes died {RESTARTS + 1} times, cell {waiting[0][1]!r} "
                         f"among those they ran: {advice}")  # fmt: skip


def on_dask(tasks: Sequence[Task], client: Any, say: Callable[[str], None]) -> Outcomes:
    """Yield the outcomes of tasks on a cluster, which gives those of a lost worker to others."""
    killed = importlib.import_module("distributed").scheduler.KilledWorker
    flying: dict[Any, Task] = {}
    waiting, lost = collections.deque(tasks), collections.Counter[str]()
    try:
        while waiting or flying:
            many = max(256, 4 * sum(client.nthreads().values()))  # others may join later
            while waiting and len(flying) < many:
                future = client.submit(run_cell, *waiting[0], pure=False, retries=RESTARTS)
                flying[future] = waiting.popleft()
            for future in awaited(client, list(flying), every=False, say=say):
                task, failed = flying.pop(future), future.exception()
                lost[task[1]] += isinstance(failed, killed)
                if isinstance(failed, killed) and lost[task[1]] <= RESTARTS:
                    waiting.append(task)
                else:
                    yield task[1], failed or future.result()
    except EtafreeError as error:
        yield "", StudyError(str(error))
    except Exception as error:  # it is not a cell that failed
        yield "", StudyError(f"the scheduler went away ({type(error).__name__})")

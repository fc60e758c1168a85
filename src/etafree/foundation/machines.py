"""A Dask cluster that others use too: connect to it, see who can work there, wait with a limit.

Whatever goes wrong with the cluster is an error of this package, and a wait is never silent.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from etafree._version import __version__
from etafree.errors import EtafreeError, InputError, MissingExtraError
from etafree.foundation import terminal

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distributed import Client

#: Seconds that a scheduler has to answer, between looks at the workers, until a wait is announced.
PATIENCE, LOOK, SILENCE = 10.0, 1.0, 10.0
#: The environment variable with the seconds to wait for a worker that can run, and their default.
TIMEOUT, SECONDS = "ETAFREE_WORKER_TIMEOUT", 600.0
#: Results that come home together: fewer messages.
TOGETHER = 5

Say = Callable[[str], None]


def say(line: str) -> None:
    """Announce a wait."""
    terminal.say(f"etafree: {line}", error=True)


@contextlib.contextmanager
def connected(scheduler: object, seconds: float = PATIENCE) -> Iterator[Any]:
    """Give a client of the cluster; one that is opened here, by its address, is closed here.

    In the block, a cluster that goes away is an `EtafreeError`.
    """
    borrowed = isinstance(scheduler, _distributed().Client)
    client: Any = scheduler if borrowed else _opened(scheduler, seconds)
    if client.status != "running" or client.asynchronous:
        state = "asynchronous" if client.status == "running" else client.status
        advice = "pass a new distributed.Client or an address"
        raise InputError("scheduler", f"is a client that is {state}", advice)
    try:
        with _silent("distributed.client"):  # a lost scheduler is reported in one line
            yield client
    except EtafreeError:
        raise
    except Exception as error:
        reason = failure(error, client)
        if reason is None:
            raise
        raise EtafreeError(reason) from None
    finally:
        if not borrowed:
            with contextlib.suppress(Exception), _silent("distributed"):
                client.close()


def _distributed() -> ModuleType:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError("dask", "Dask clusters") from None


def _opened(address: object, seconds: float) -> Client:
    try:
        client: Client = _distributed().Client(address, timeout=seconds, set_as_default=False)
        return client
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            "scheduler",
            f"{address!r} does not answer ({type(error).__name__})",
            "start one with `dask scheduler` and pass the address it prints, or a "
            "distributed.Client, or leave it out",
        ) from None


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Switch a library's log off."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def failure(error: Exception, client: Client) -> str | None:
    """Return what an error says about the cluster, None if it is about something else."""
    dask, kind = _distributed(), type(error).__name__
    lost = (dask.scheduler.KilledWorker, dask.CancelledError, dask.comm.CommClosedError)
    if client.status != "running":
        return f"the scheduler went away ({kind})"
    if isinstance(error, lost):
        return f"the cluster lost a part of the work ({kind}): do its workers have enough memory?"
    if isinstance(error, ModuleNotFoundError):
        return f"a worker has no module {error.name!r}: install it on all workers"
    if "deserialization of the task graph" in str(error):
        needed = f"etafree {__version__} and all other packages that are used here"
        return f"the scheduler cannot read what it was sent: install {needed}"
    return None


def check_workers(client: Client, say: Say = say) -> None:
    """Wait for a worker that can run, and refuse a cluster whose workers have another etafree."""
    watch = Watch(client, say)
    while not watch.anyone():
        time.sleep(LOOK)
    # a function that every Python has: this package may not be there
    versions = client.run(pkgutil.resolve_name, "etafree:__version__", on_error="return")
    for worker, version in versions.items():
        if isinstance(version, OSError):
            continue  # it is leaving
        problem = f"cannot import etafree ({type(version).__name__}: {version})"
        if isinstance(version, str):
            problem = f"has etafree {version}, but {__version__} is installed here"
        if version != __version__:
            advice = "install the same version on all workers"
            raise InputError("scheduler", f"its worker {worker} {problem}", advice)


class Watch:
    """Look whether a cluster has anyone who can work; say what is waited for, and give up."""

    def __init__(self, client: Client, say: Say) -> None:
        self.client, self.say, self.limit = client, say, _limit()
        self.since: float | None = None
        self.announced = False

    def anyone(self) -> bool:
        """Return whether a worker can run; raise when none could for too long."""
        info = self.client.scheduler_info()
        workers = info["workers"]
        states = [worker.get("status", "running") for worker in workers.values()]
        unseen = info.get("n_workers", len(workers)) > len(workers)  # Dask may list some only
        if "running" in states or unseen:
            self.since = None
            return True
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        waited, address = now - self.since, info["address"]
        idle = (
            f"all {len(states)} are {', '.join(sorted(set(states)))}" if states else "it has none"
        )
        if waited >= self.limit:
            raise EtafreeError(
                f"the scheduler {address} has had no worker that can run for {waited:.0f} s "
                f"({idle}): start one with `dask worker`, or set {TIMEOUT} to more seconds"
            )
        if waited >= min(SILENCE, self.limit / 2) and not self.announced:
            self.announced = True
            limit = f"for at most {self.limit:.0f} s"
            self.say(f"waiting for a worker of {address} that can run ({idle}), {limit}")
        return False


def _limit() -> float:
    """Return the seconds to wait for a worker, from the environment."""
    text = os.environ.get(TIMEOUT, "")
    with contextlib.suppress(ValueError):
        seconds = float(text or SECONDS)
        if seconds > 0:
            return seconds
    raise InputError(TIMEOUT, f"is {text!r}", "set it to a number of seconds")


def in_order(client: Client, futures: list[object], say: Say = say) -> Iterator[Any]:
    """Yield results as they are needed; Dask gives the work of a lost worker to others."""
    distributed, watch = _distributed(), Watch(client, say)
    try:
        while futures:
            first = futures[:TOGETHER]
            try:
                with client.as_current():
                    distributed.wait(first, timeout=LOOK)
            except TimeoutError:
                watch.anyone()
                continue
            results = client.gather(first)
            del first, futures[:TOGETHER]  # the workers may forget them
            yield from results
    finally:
        with contextlib.suppress(Exception):  # nobody may be there any more
            client.cancel(futures)


@contextlib.contextmanager
def watched(client: Client, say: Say = say) -> Iterator[None]:
    """Cancel the work in the block, with an error, once no worker could run for too long."""
    watch, over, failures = Watch(client, say), threading.Event(), list[EtafreeError]()

    def look() -> None:
        with contextlib.suppress(Exception):  # a lost scheduler is the block's own error
            while not over.wait(LOOK):
                try:
                    watch.anyone()
                except EtafreeError as error:
                    failures.append(error)
                    future = _distributed().Future
                    client.cancel([future(key, client) for key in list(client.futures)])
                    return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    finally:
        over.set()
        thread.join()


def joblib_backend(client: Client) -> object:
    """Return joblib's Dask backend, made to use clusters of one thread and to report lost work."""
    from joblib._dask import DaskDistributedBackend

    class Backend(DaskDistributedBackend):  # type: ignore[misc]
        def effective_n_jobs(self, n_jobs: int) -> int:
            cores: int = super().effective_n_jobs(n_jobs)
            return max(2, cores)  # joblib would run a single job here, not there

        def submit(self, func: object, callback: Callable[[object], None]) -> object:
            def report(job: Future[object]) -> None:  # joblib itself does not, of killed workers
                if job.exception() is not None:
                    callback(job.exception())

            future = super().submit(func, callback)
            future.add_done_callback(report)
            return future

    return Backend(client=client, wait_for_workers_timeout=0)  # `watched` waits, and says so

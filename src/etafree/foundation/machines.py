"""A Dask cluster that others use too: connect to it, see who can work there, wait with a limit.

Whatever goes wrong with the cluster is an error of this package, and a wait is never silent.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pkgutil
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from etafree._version import __version__
from etafree.errors import EtafreeError, InputError, MissingExtraError
from etafree.foundation import terminal

#: Seconds that a scheduler has to answer.
PATIENCE = 10.0
#: Seconds between looks at the workers, and seconds after which a wait is told.
LOOK, SILENCE = 1.0, 10.0
#: The environment variable with the seconds to wait for a worker that can run, and their default.
TIMEOUT, SECONDS = "ETAFREE_WORKER_TIMEOUT", 600.0
#: Results that come home together: fewer messages.
TOGETHER = 5

T = TypeVar("T")
Say = Callable[[str], None]


def say(line: str) -> None:
    """Tell of a wait."""
    terminal.say(f"etafree: {line}", error=True)


@contextlib.contextmanager
def connected(scheduler: object, seconds: float = PATIENCE) -> Iterator[Any]:
    """Give a client of the cluster; one that is opened here, by its address, is closed here.

    In the block, a cluster that goes away is an `EtafreeError`.
    """
    distributed = _distributed()
    theirs = isinstance(scheduler, distributed.Client)
    client = _usable(scheduler) if theirs else _opened(scheduler, seconds)
    try:
        with _silent("distributed.client"):  # a lost scheduler is told in one line
            yield client
    except EtafreeError:
        raise
    except Exception as error:
        reason = _reason(error, client)
        if reason is None:
            raise
        raise EtafreeError(reason) from None
    finally:
        if not theirs:
            with contextlib.suppress(Exception), _silent("distributed"):
                client.close()


def _distributed() -> ModuleType:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError("dask", "Dask clusters") from None


def _usable(client: Any) -> Any:
    if client.status != "running" or client.asynchronous:
        state = "asynchronous" if client.status == "running" else client.status
        raise InputError(
            "scheduler",
            f"is a client that is {state}",
            "pass a new distributed.Client or an address",
        )
    return client


def _opened(address: object, seconds: float) -> Any:
    try:
        return _distributed().Client(address, timeout=seconds, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            "scheduler",
            f"{address!r} does not answer ({type(error).__name__})",
            "start one with `dask scheduler` and pass the address it prints, or a "
            "distributed.Client, or leave it out",
        ) from None


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep a library's log to itself."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _reason(error: Exception, client: Any) -> str | None:
    """Return what an error says about the cluster, None if it is about something else."""
    distributed = _distributed()
    lost = (
        distributed.scheduler.KilledWorker,
        distributed.CancelledError,
        distributed.comm.CommClosedError,
    )
    kind = type(error).__name__
    if isinstance(error, lost) or client.status != "running":
        return (
            f"the cluster lost a part of the work ({kind}): is the scheduler there, and do its "
            "workers have memory enough?"
        )
    if isinstance(error, ModuleNotFoundError):
        return f"a worker has no module {error.name!r}: install on all workers what is used here"
    if "deserialization of the task graph" in str(error):
        return (
            "the scheduler cannot read what it was sent: install etafree in version "
            f"{__version__} there too, and what else is used here"
        )
    return None


def check_workers(client: Any, say: Say = say) -> None:
    """Wait for a worker that can run, and refuse a cluster whose workers have another etafree."""
    watch = Watch(client, say)
    while not watch.anyone():
        time.sleep(LOOK)
    # a function that every Python has: this package may not be there
    found = client.run(pkgutil.resolve_name, "etafree:__version__", on_error="return")
    for worker, version in found.items():
        if isinstance(version, OSError):
            continue  # it is leaving
        problem = f"cannot import etafree ({type(version).__name__}: {version})"
        if isinstance(version, str):
            problem = f"has etafree {version}, and here is {__version__}"
        if version != __version__:
            raise InputError(
                "scheduler",
                f"its worker {worker} {problem}",
                "install the same version on all workers",
            )


class Watch:
    """Look whether a cluster has anyone who can work; say what is waited for, and give up."""

    def __init__(self, client: Any, say: Say) -> None:
        self.client, self.say, self.limit = client, say, _limit()
        self.since: float | None = None
        self.told = False

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
        waited = now - self.since
        which = (
            f"all {len(states)} are {', '.join(sorted(set(states)))}" if states else "it has none"
        )
        if waited >= self.limit:
            raise EtafreeError(
                f"the scheduler {self.client.scheduler.address} has had no worker that can run for "
                f"{waited:.0f} s ({which}): start one with `dask worker`, or set {TIMEOUT} to more "
                "seconds"
            )
        if waited >= min(SILENCE, self.limit / 2) and not self.told:
            self.told = True
            self.say(
                f"waiting for a worker of {self.client.scheduler.address} that can run "
                f"({which}), for at most {self.limit:.0f} s"
            )
        return False


def _limit() -> float:
    """Return the seconds to wait for a worker, from the environment."""
    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise InputError(TIMEOUT, f"is {text!r}", "set it to a number of seconds")
    return seconds


def awaited(client: Any, futures: list[T], *, every: bool, say: Say = say) -> list[T]:
    """Return the futures that are done, after waiting for the first or for every one."""
    distributed = _distributed()
    watch = Watch(client, say)
    when = "ALL_COMPLETED" if every else "FIRST_COMPLETED"
    while True:
        try:
            with client.as_current():
                done = distributed.wait(futures, timeout=LOOK, return_when=when).done
        except TimeoutError:
            watch.anyone()
        else:
            return [future for future in futures if future in done]


def in_order(client: Any, futures: list[object], say: Say = say) -> Iterator[Any]:
    """Yield results as they are needed; Dask gives the work of a lost worker to others."""
    try:
        while futures:
            done = awaited(client, futures[:TOGETHER], every=True, say=say)
            results = client.gather(done)
            del done, futures[:TOGETHER]  # the workers may forget them
            yield from results
    finally:
        with contextlib.suppress(Exception):  # nobody may be there any more
            client.cancel(futures)

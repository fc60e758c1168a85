"""Threads of our own, and settings while we compute: one BLAS thread each, and underflow is zero.

Work over many rows is cut into parts whose limits depend on the data alone, and what the parts give
is added up in their order: the number of threads changes no byte of a result. In small blocks two
BLAS threads are slower than one. ``np.seterr(all="raise")`` is the caller's wish for the caller's
own code; an exponential that vanishes is no error of ours.

numpy keeps its floating-point settings for each Python thread, and so does a BLAS that is built on
OpenMP. Every other BLAS has one number of threads for the whole process: calls that overlap in
several Python threads share one limit, which the first sets and the last lifts.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from pathlib import Path, PurePosixPath
from typing import Any, ParamSpec, TypeVar

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import as_count

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: The environment variable with the number of threads.
VARIABLE = "ETAFREE_THREADS"
#: As many threads as one may ask for.
MOST = 1024
#: Numbers in the data, rows times parameters, from which on all cores are used unless told.
MANY = 1_000_000


@functools.cache
def _libraries() -> tuple[Any, Any]:
    """Return the BLAS libraries with a number of threads per Python thread, and per process."""
    from threadpoolctl import ThreadpoolController

    every = ThreadpoolController().select(user_api="blas")
    each = every.select(threading_layer="openmp")
    own = {library.filepath for library in each.lib_controllers}
    paths = [library.filepath for library in every.lib_controllers]
    return each, every.select(filepath=[path for path in paths if path not in own])


def _own_limit() -> Any:
    """Return a limit of one BLAS thread for this Python thread, where there is such a thing."""
    each, _ = _libraries()
    return each.limit(limits=1) if each.lib_controllers else contextlib.nullcontext()


def _release() -> None:
    """Let any Python thread set OpenBLAS' number of threads.

    Newer versions of threadpoolctl ignore every Python thread but the first that did.
    """
    import threadpoolctl

    release = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


class _SharedLimit:
    """One BLAS thread for the process while any call is under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._here = threading.local()
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._calls == 0:
                _release()
                self._limit = _libraries()[1].limit(limits=1)
            self._calls += 1
            self._here.calls = getattr(self._here, "calls", 0) + 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._here.calls -= 1
            self._calls -= 1
            self._lift_if_idle()

    def after_fork(self) -> None:
        """Forget the lock and the calls of threads that the forked process does not have."""
        self._lock = threading.Lock()
        self._calls = getattr(self._here, "calls", 0)
        self._lift_if_idle()

    def _lift_if_idle(self) -> None:
        if self._calls == 0 and self._limit is not None:
            _release()
            self._limit.restore_original_limits()
            self._limit = None
            _release()


_shared_limit = _SharedLimit()
_here = threading.local()  # `asked`: what this Python thread asked for; `ours`: it is a pool's


def threads(count: int | None) -> Setting:
    """Set how many threads work on the rows, in this Python thread from now on or for a block.

    Results are the same bytes with any number of threads. Without a setting, data of a million
    numbers (rows times parameters) are worked on by all cores that this process may use, smaller
    ones by one thread; the environment variable ``ETAFREE_THREADS`` changes both. Work that is
    itself one of many, in another Python thread or in a process of joblib's, Dask's or
    multiprocessing's, takes one thread unless it asks for more there.

    Parameters
    ----------
    count : int or None
        How many, at least 1; None for what holds without a setting.

    Returns
    -------
    context manager
        After a ``with`` block, what held before holds again.

    Raises
    ------
    InputError
        It is not a whole number from 1 to 1,024.

    See Also
    --------
    minimise, target, sample, bootstrap : They take ``threads=`` for a single call.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> with ef.threads(2):
    ...     ef.minimise(ef.Criterion(ef.losses.Squared(), data=(X, y))).theta
    array([2.])
    """
    number = None if count is None else as_count(count, "threads")
    if number is not None and number > MOST:
        raise InputError("threads", f"is {count!r:.80}", f"pass at most {MOST}")
    return Setting(number)


class Setting:
    """A number of threads, in force from now on; at the end of a block, no more."""

    def __init__(self, count: int | None) -> None:
        self.before = getattr(_here, "asked", None)
        _here.asked = count

    def __enter__(self) -> None:
        """Keep it for a block."""

    def __exit__(self, *error: object) -> None:
        _here.asked = self.before


def thread_count(numbers: float) -> int:
    """Return how many threads work on so many numbers, rows times parameters.

    Examples
    --------
    >>> with threads(3):
    ...     thread_count(10)
    3
    """
    if getattr(_here, "ours", False):  # they are the threads
        return 1
    asked: int | None = getattr(_here, "asked", None)
    if asked is not None:
        return asked
    if _is_one_of_many():
        return 1
    if text := os.environ.get(VARIABLE, "").strip():
        if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST:
            raise InputError(VARIABLE, f"is {text!r:.80}", "set it to a number of threads")
        return int(text)
    return usable_cores() if numbers >= MANY else 1


def _is_one_of_many() -> bool:
    """Return whether others of this program's threads or processes may be at work, too."""
    if threading.current_thread() is not threading.main_thread() or _forked:
        return True
    process: Any = sys.modules.get("multiprocessing.process")  # else nobody has started us with it
    return process is not None and process.parent_process() is not None


@functools.cache
def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its control groups."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return max(1, min(cores, math.ceil(min(_quotas(Path("/")), default=cores))))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the cores that control groups, of either version, leave to this process."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        home, inner = root / "sys/fs/cgroup" / controllers, PurePosixPath(group.lstrip("/"))
        for folder in (inner, *inner.parents):  # each may limit those within it
            place = home / folder
            with contextlib.suppress(OSError, ValueError):  # no limit, or none that we may read
                if controllers:
                    quota = (place / "cpu.cfs_quota_us").read_text()
                    period = (place / "cpu.cfs_period_us").read_text()
                else:
                    quota, period = (place / "cpu.max").read_text().split()
                if float(quota) > 0:
                    yield float(quota) / float(period)


@functools.cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="etafree", initializer=_settle)


def _settle() -> None:
    """Make a new thread of the pool one that starts no others, with one BLAS thread."""
    _here.ours = True
    _own_limit().__enter__()


def in_threads(work: Callable[[T], R], tasks: Iterable[T], numbers: float) -> Iterator[R]:
    """Yield ``work(task)`` in the order of the tasks, computed by as many threads as is set.

    Tasks are drawn from their iterator as they are needed, in this thread. Those that were begun
    are waited for whatever happens, so none should take long: Ctrl-C ends the others at once, and
    so does an error, which is that of the first task that fails, as without threads.

    Parameters
    ----------
    work : callable
    tasks : iterable
        Those for any number of threads; what they return must not depend on each other.
    numbers : float
        Rows times parameters of the data.

    Examples
    --------
    >>> with threads(2):
    ...     list(in_threads(abs, [-1, 2, -3], 3))
    [1, 2, 3]
    """
    count = thread_count(numbers)
    if count == 1:
        yield from map(work, tasks)
        return
    pool, begun = _pool(count), deque[Future[R]]()
    with _shared_limit:
        try:
            for task in tasks:
                begun.append(pool.submit(copy_context().run, work, task))
                if len(begun) > 2 * count:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()
            wait(begun)


def sum_in_threads(
    work: Callable[[T], tuple[Any, ...]], tasks: Iterable[T], numbers: float
) -> tuple[Any, ...]:
    """Return the sums of what ``work(task)`` gives, added up in the order of the tasks.

    Examples
    --------
    >>> sum_in_threads(lambda k: (k, k**2), range(4), 4)
    (6, 14)
    """
    sums: list[Any] = []
    for terms in in_threads(work, tasks, numbers):
        if sums:
            for k, term in enumerate(terms):
                sums[k] += term  # in place, of arrays
        else:
            sums = list(terms)
    return tuple(sums)


_forked = False


def _after_fork() -> None:
    """Forget the threads that a forked process does not have, and what they were to be."""
    global _forked
    _forked = True
    _here.__dict__.clear()
    _pool.cache_clear()
    _shared_limit.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def own_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to use one BLAS thread and to let small numbers vanish in silence.

    Its argument `threads`, if it is given one, holds while it runs.

    Examples
    --------
    >>> own_settings(sum)([1, 2])
    3
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        count: Any = kwargs.get("threads")
        setting = contextlib.nullcontext() if count is None else threads(count)
        with setting, _shared_limit, _own_limit(), np.errstate(under="ignore"):
            return function(*args, **kwargs)

    return limited

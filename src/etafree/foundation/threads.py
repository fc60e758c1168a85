"""Settings while we compute, whatever the caller's: one BLAS thread, and underflow is zero.

In small blocks two threads are slower than one. ``np.seterr(all="raise")`` is the caller's wish for
the caller's own code; an exponential that vanishes is no error of ours.

numpy keeps its floating-point settings for each Python thread, and so does a BLAS that is built on
OpenMP. Every other BLAS has one number of threads for the whole process: calls that overlap in
several Python threads share one limit, which the first sets and the last lifts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


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
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared_limit.after_fork)


def own_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to use one BLAS thread and to let small numbers vanish in silence.

    Examples
    --------
    >>> own_settings(sum)([1, 2])
    3
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _shared_limit, _own_limit(), np.errstate(under="ignore"):
            return function(*args, **kwargs)

    return limited

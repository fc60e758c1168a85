"""Settings while we compute, whatever the caller's: one BLAS thread, and underflow is zero.

In small blocks two threads are slower than one. ``np.seterr(all="raise")`` is the caller's wish for
the caller's own code; an exponential that vanishes is no error of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

__all__ = ["own_settings"]

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def own_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to use one BLAS thread and to let small numbers vanish in silence.

    Examples
    --------
    >>> own_settings(sum)([1, 2])
    3
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1, user_api="blas"), np.errstate(under="ignore"):
            return function(*args, **kwargs)

    return limited

"""One BLAS thread while we work in small blocks, where two are slower than one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["one_blas_thread"]

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that matrix products inside it use one thread; parallelise outside.

    Examples
    --------
    >>> one_blas_thread(sum)([1, 2])
    3
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited

"""The compiler of inner loops, numba, imported only where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(signature: object = None, **options: Any) -> Callable[[Callable[..., object]], Any]:
    """Compile a function by numba, kept on disk if there is a folder to keep it in.

    With a signature at once, without one for the types it is called with. In a container whose
    package and home are read-only there is no folder, and numba refuses to cache. Compiled code
    does not hold Python's lock: several threads may run it.
    """
    options = {"error_model": "numpy", "nogil": True, **options}

    def compiled(function: Callable[..., object]) -> Any:
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except RuntimeError:
            return numba.njit(signature, **options)(function)

    return compiled

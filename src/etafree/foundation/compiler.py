"""The compiler of inner loops, numba, imported only where they are used.

Compiled code is kept on disk, so that only the first call after an installation waits for it. A
terminal or notebook is told in one line that it waits, and whether the next session will.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

from etafree.foundation.terminal import say, watched

#: What numba announces before it compiles a function that it did not find on disk.
COMPILES = "numba:compile"
NOWHERE = "set NUMBA_CACHE_DIR to a folder that can be written"


class Announcement(event.Listener):
    """One line for the first of our functions that is compiled, one if it cannot be kept."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def tell(self, subject: str, text: str) -> None:
        """Print a line about a subject once, where somebody sees it."""
        if subject not in self.told and watched():
            self.told.add(subject)
            say(f"etafree: {text}", error=True)

    def on_start(self, event: Any) -> None:
        """Say that a function of ours is compiled; numba announces everybody's."""
        dispatcher = event.data["dispatcher"]
        module = dispatcher.py_func.__module__ or ""  # generated code has none
        if not module.startswith("etafree."):
            return
        folder = dispatcher.stats.cache_path
        kept = f"once; it is kept in {folder}" if folder else f"anew in every session; {NOWHERE}"
        self.tell("compiling", f"compiling for this processor, {kept}")

    def on_end(self, event: Any) -> None:
        """Say nothing: what was asked for follows."""


ANNOUNCEMENT = Announcement()
event.register(COMPILES, ANNOUNCEMENT)  # type: ignore[no-untyped-call]


def jit(signature: object = None, **options: Any) -> Callable[[Callable[..., object]], Any]:
    """Compile a function by numba, kept on disk if there is a folder to keep it in.

    With a signature at once, without one for the types it is called with. In a container whose
    package and home are read-only there is no folder, and numba refuses to cache. Compiled code
    does not hold Python's lock: several threads may run it.
    """
    options = {"error_model": "numpy", "nogil": True, **options}

    def compiled(function: Callable[..., object]) -> Any:
        try:
            dispatcher = numba.njit(cache=True, **options)(function)
        except RuntimeError:
            dispatcher = numba.njit(**options)(function)
        _keep_if_possible(dispatcher)
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return compiled


def _keep_if_possible(dispatcher: Any) -> None:
    """Let a disk that is full, or a folder that is gone, cost no more than compiling again."""
    cache = getattr(dispatcher, "_cache", None)
    if cache is None or not hasattr(cache, "save_overload"):
        return
    save = cache.save_overload

    def attempt(*arguments: object) -> None:
        try:
            save(*arguments)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            ANNOUNCEMENT.tell("kept", f"compiled code cannot be kept ({reason}); {NOWHERE}")

    cache.save_overload = attempt

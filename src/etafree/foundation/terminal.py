"""Printing to a terminal: control characters are escaped, closed pipes are no error.

Work that takes more than about two seconds shows its progress on a terminal or in a notebook. The
environment variable ETAFREE_PROGRESS=0 turns that off.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds from which work shows its progress.
LONG = 2.0
#: The environment variable that turns it off.
SWITCH = "ETAFREE_PROGRESS"

#: Characters that move the cursor, change colours or the direction of text.
HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
CONTROL = re.compile(f"[{HIDDEN}]")


def plain(text: object) -> str:
    r"""Return a text with control characters written out; newlines and tabs stay.

    Examples
    --------
    >>> print(plain("a\x1b[31mb"))
    a\x1b[31mb
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def counted_noun(count: int, noun: str) -> str:
    """Return a number and a noun, one or several."""
    return f"{count} {noun}" + "s" * (count != 1)


def say(text: object, *, error: bool = False) -> None:
    """Print a text at once; a reader that has gone away (``| head``) does not end the work."""
    stream = sys.stderr if error else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        printable = plain(text).encode(encoding, "backslashreplace").decode(encoding)
        print(printable, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream.fileno())


def silence(stream: int) -> None:
    """Discard what else is written to a stream."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def stand_in() -> None:
    """Open the streams that the shell closed (``>&-``), so that no file takes their number."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


class _Display:
    """What of the work under way is shown: a line for each part, in one display for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._lines = 0

    def add(self, name: str, total: int | None, done: int) -> TaskID:
        """Show a part of the work; nothing is loaded before the first."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._progress is None:
                terminal = sys.stderr.isatty()
                console = Console(file=sys.stderr, force_terminal=True) if terminal else Console()
                left = TextColumn("{task.fields[left]}")
                columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), left
                self._progress = Progress(*columns, console=console, transient=True)
                self._progress.start()
            self._lines += 1
            return self._progress.add_task(name, total=total, completed=done, left="")

    def update(self, line: TaskID, done: int, left: str) -> None:
        """Say how far a part is."""
        if self._progress is not None:
            self._progress.update(line, completed=done, left=left)

    def remove(self, line: TaskID) -> None:
        """Take a part away, and the display with the last."""
        with self._lock:
            self._lines -= 1
            if self._progress is not None:
                self._progress.remove_task(line)
                if self._lines == 0:
                    self._progress.stop()
                    self._progress = None


_DISPLAY = _Display()


def watched() -> bool:
    """Return whether somebody sees our progress: a terminal or notebook, not of a worker."""
    if os.environ.get(SWITCH, "") in ("0", "false", "no", "off"):
        return False
    workers = sys.modules.get("multiprocessing")  # every worker has it
    if workers is not None and workers.parent_process() is not None:
        return False
    return sys.stderr.isatty() or hasattr(shell(), "kernel")


def shell() -> object | None:
    """Return the IPython that runs this code, None if none does."""
    running: object | None = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return running


@contextlib.contextmanager
def counted(total: int | None, name: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts steps, shown in a terminal or notebook if they take long.

    A part of the work that has counted nothing for two seconds is shown too, and one without a
    total with the time that it takes. Parts within parts have a line each.
    """
    if not watched():
        yield lambda count: None
        return
    start, before, done, over = 0.0, 0, 0, False
    line: TaskID | None = None
    lock = threading.Lock()

    def appear() -> None:
        nonlocal line
        with lock:
            if line is None and not over:
                line = _DISPLAY.add(name, total, done)

    def show(count: int) -> None:
        nonlocal start, before, done
        done, now = done + count, time.monotonic()
        if before == 0:  # the first may compile
            start, before = now, done
            return
        spent = now - start
        expected = spent / (done - before) * ((total or done) - before)
        if total is not None and spent > 0.5 and expected > LONG:
            appear()
        if line is not None:
            left = max(expected - spent, 0.0)
            _DISPLAY.update(line, done, f"{left:.0f} s left" if total is not None else "")

    timer = threading.Timer(LONG, appear)
    timer.daemon = True
    timer.start()
    try:
        yield show
    finally:
        timer.cancel()
        with lock:
            over = True
            if line is not None:
                _DISPLAY.remove(line)


def shown(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function whose calls may take long, so that a terminal or notebook shows them.

    Examples
    --------
    >>> shown("adding")(sum)([1, 2])
    3
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with counted(None, name):
                return function(*args, **kwargs)

        return call

    return decorate

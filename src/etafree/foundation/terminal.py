"""Printing to a terminal: control characters are escaped, closed pipes are no error."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds from which work shows its progress.
LONG = 5.0

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


@contextlib.contextmanager
def counted(total: int, name: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts steps, in a progress bar if they take long in a terminal."""
    watched = sys.stderr.isatty() and multiprocessing.parent_process() is None
    start, before, done = 0.0, 0, 0
    bar: Progress | None = None
    with contextlib.ExitStack() as stack:

        def show(count: int) -> None:
            nonlocal start, before, done, bar
            done, now = done + count, time.monotonic()
            if before == 0:  # the first may compile
                start, before = now, done
            elif watched and bar is None and now - start > max(0.5, LONG * (done - before) / total):
                from rich.console import Console
                from rich.progress import Progress

                console = Console(file=sys.stderr, force_terminal=True)
                bar = stack.enter_context(Progress(console=console, transient=True))
                bar.add_task(name, total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)

        yield show

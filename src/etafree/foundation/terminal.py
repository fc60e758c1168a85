"""What the command line prints: no control characters of names and labels, no fuss about pipes."""

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
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: object) -> str:
    r"""Return a text with control characters written out; newlines and tabs stay.

    Examples
    --------
    >>> print(plain("a\x1b[31mb"))
    a\x1b[31mb
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def say(text: object, *, error: bool = False) -> None:
    """Print a text at once, to standard error if asked; nobody need be listening.

    A reader that has gone away (``| head``) does not end the work, which may have files to write.
    """
    stream = sys.stderr if error else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        shown = plain(text).encode(encoding, "backslashreplace").decode(encoding)
        print(shown, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream.fileno())


def silence(stream: int) -> None:
    """Let what else is written to a stream go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def stand_in() -> None:
    """Open what the shell closed (``>&-``), lest the next file take the place of the output."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


@contextlib.contextmanager
def counted(total: int, name: str) -> Iterator[Callable[[int], None]]:
    """Give a function that counts steps: in a bar if they take long and a terminal looks."""
    looking = sys.stderr.isatty() and multiprocessing.parent_process() is None
    start, before, done = 0.0, 0, 0
    bar: Progress | None = None
    with contextlib.ExitStack() as stack:

        def show(count: int) -> None:
            nonlocal start, before, done, bar
            done, now = done + count, time.monotonic()
            if before == 0:  # the first may compile
                start, before = now, done
            elif looking and bar is None and now - start > max(0.5, LONG * (done - before) / total):
                from rich.console import Console
                from rich.progress import Progress

                console = Console(file=sys.stderr, force_terminal=True)
                bar = stack.enter_context(Progress(console=console, transient=True))
                bar.add_task(name, total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)

        yield show

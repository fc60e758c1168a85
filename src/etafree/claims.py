"""How much a file claims to hold, compared with its own size and with the memory there is.

Arrays that were never written and compressed zeros let a file of some kilobytes ask for terabytes.
Real draws and data hardly compress, so what a whole file claims is bounded by its size; what is
small against the machine's memory passes however dense it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TextIO

from etafree.errors import InputError

__all__ = ["amount", "check_claim", "check_room", "lines_of", "memory"]

#: Times its own size that a file may take in memory, and the part of memory that any file may.
DENSEST, SHARE = 100, 16
REWRITE = "if it is what you meant, write it again without compression"
#: Memory that is assumed where the system does not say.
ASSUMED = 1 << 34
#: Characters of one line of a text file: a million columns fit.
LONGEST_LINE = 1 << 27
#: Where Linux says how much memory there is, and how much a container may take.
MEMINFO, CONTAINER = "/proc/meminfo", "/sys/fs/cgroup/memory.max"


def amount(size: float) -> str:
    """Return a number of bytes in words.

    Examples
    --------
    >>> amount(39_000), amount(8e10)
    ('39 kB', '80 GB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 999.5 else f"{size:,.0f} TB"


def memory() -> tuple[int, int]:
    """Return the bytes of memory that there are for this process, and those that are free."""
    total = free = _physical()
    try:
        with open(MEMINFO, encoding="ascii") as file:
            known = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}
        total, free = known["MemTotal"], known["MemAvailable"] + known["SwapFree"]
    except (OSError, LookupError, ValueError):
        pass  # another system
    limits = [limit for limit in (_container(), _process()) if limit is not None]
    return min([total, *limits]), min([free, *limits])


def _physical() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return ASSUMED


def _container() -> int | None:
    try:
        with open(CONTAINER, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # none, or "max"
        return None


def _process() -> int | None:
    """Return the memory that ``ulimit`` leaves to this process."""
    try:
        import resource
    except ImportError:
        return None
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def check_claim(path: Any, claimed: int, size: int, argument: str, advice: str = REWRITE) -> None:
    """Refuse a file of `size` bytes that claims to hold far more than it can.

    Examples
    --------
    >>> check_claim("fit.nc", 400_000_000, 4_000_000, "draws")  # compressed a hundred times
    >>> check_claim("fit.nc", 80 * 10**9, 39_000, "draws")
    Traceback (most recent call last):
    etafree.errors.InputError: draws: 'fit.nc' has 39 kB and claims to hold 80 GB; if it is what \
you meant, write it again without compression (see fits)
    """
    if claimed > max(DENSEST * size, memory()[0] // SHARE):
        raise InputError(
            argument,
            f"{str(path)!r} has {amount(size)} and claims to hold {amount(claimed)}",
            advice,
        )


def check_room(what: Any, needed: int, argument: str, advice: str) -> None:
    """Refuse to read what memory cannot hold even once."""
    free = memory()[1]
    if needed > free:
        problem = f"{what!r} takes {amount(needed)}, and {amount(free)} of memory are free"
        raise InputError(argument, problem, advice)


def lines_of(file: TextIO, path: Any, argument: str) -> Iterator[str]:
    """Yield the lines of a text file; refuse one that no table has, before memory is full."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise InputError(argument, f"{str(path)!r} has a line of more than "
                             f"{LONGEST_LINE:,} characters", "is it a table?")  # fmt: skip
        yield line

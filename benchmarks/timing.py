"""Measure ratios of costs, the two sides run in turns so that noise hits both alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["Row", "announce", "cpu_seconds", "interleaved_ratios", "undisturbed"]

#: What takes longer than this many seconds is run `FEWEST` times only.
SLOW_SECONDS = 60.0
REPETITIONS = 5
FEWEST = 3
#: Measurements during which others had more than this share of the cores are run again, up to
#: `AGAIN` times as many in all.
DISTURBED, AGAIN = 0.05, 3


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, its goal and every repetition.

    Attributes
    ----------
    name : str
    goal : float
    at_least : bool
        Whether the measured value should be at least the goal, otherwise at most.
    values : tuple of float
        One value per repetition.
    unit : str
        "x" for a ratio.
    note : str
        What the reader should know about this run.
    lower : float or None
        Least value of a goal with two sides, such as an exponent from 0.95 to 1.05.

    Examples
    --------
    >>> row = Row("growth", 1.05, False, (0.9, 0.97, 1.0), unit="", lower=0.95)
    >>> row.met, row.wanted
    (True, '0.95 to 1.05')
    """

    name: str
    goal: float
    at_least: bool
    values: tuple[float, ...]
    unit: str = "x"
    note: str = ""
    lower: float | None = None

    @property
    def median(self) -> float:
        """Middle one of the repetitions, which is what the goal is about."""
        return median(self.values)

    @property
    def met(self) -> bool:
        """Whether the median reaches the goal."""
        if self.lower is not None:
            return self.lower <= self.median <= self.goal
        return self.median >= self.goal if self.at_least else self.median <= self.goal

    @property
    def wanted(self) -> str:
        """The goal in words."""
        if self.lower is not None:
            return f"{self.lower:g} to {self.goal:g} {self.unit}".rstrip()
        return f"{'>=' if self.at_least else '<='} {self.goal:g} {self.unit}".rstrip()


def announce(message: str) -> None:
    """Print a progress line at once."""
    print(f"  {message}", flush=True)


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the CPU time that a call takes, over all threads of this process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def taken() -> float:
    """Return the CPU seconds that a hypervisor gave to others so far, 0 where nobody counts."""
    counts = Path("/proc/stat")
    if not counts.exists():
        return 0.0
    return float(counts.read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


def undisturbed(
    name: str, measure: Callable[[], tuple[float, str]], repetitions: int = REPETITIONS
) -> tuple[float, ...]:
    """Return values of a measurement that is repeated until enough were not disturbed.

    One is disturbed if a hypervisor gave more than `DISTURBED` of the cores to others meanwhile.
    If `AGAIN` times as many as asked for do not suffice, the least disturbed count.

    Parameters
    ----------
    name : str
        For the progress lines.
    measure : callable
        Runs once and returns the value, and words for it.
    repetitions : int
        How many; `FEWEST` if one takes longer than `SLOW_SECONDS`.

    Examples
    --------
    >>> undisturbed("example", lambda: (6.0, "6 s"), repetitions=2)
      example 1/2: 6 s
      example 2/2: 6 s
    (6.0, 6.0)
    """
    made: list[tuple[float, float]] = []
    quiet = 0
    while quiet < repetitions and len(made) < AGAIN * repetitions:
        began, lost = time.perf_counter(), taken()
        value, shown = measure()
        lasted = time.perf_counter() - began
        if lasted > SLOW_SECONDS:
            repetitions = min(repetitions, max(FEWEST, quiet + 1))
        share = (taken() - lost) / max(1.0, lasted) / (os.cpu_count() or 1)
        made.append((share, value))
        disturbed = share > DISTURBED
        quiet += not disturbed
        told = f" (again: others had {share:.0%} of the cores)" if disturbed else ""
        announce(f"{name} {min(quiet + disturbed, repetitions)}/{repetitions}: {shown}{told}")
    kept = sorted(range(len(made)), key=lambda k: (made[k][0] > DISTURBED) * made[k][0])
    return tuple(made[k][1] for k in sorted(kept[:repetitions]))


def interleaved_ratios(
    name: str,
    numerator: Callable[[], float],
    denominator: Callable[[], float],
    repetitions: int = REPETITIONS,
) -> tuple[float, ...]:
    """Return cost ratios of two computations run as A, B, A, B, ..., undisturbed if possible.

    Parameters
    ----------
    name : str
        For the progress lines.
    numerator, denominator : callables
        Run the computation once and return its cost, such as CPU seconds.
    repetitions : int
        Number of pairs, as in `undisturbed`.

    Returns
    -------
    tuple of float
        One ratio per pair.

    Examples
    --------
    >>> interleaved_ratios("example", lambda: 6.0, lambda: 2.0, repetitions=2)
      example 1/2: 6 / 2 = 3
      example 2/2: 6 / 2 = 3
    (3.0, 3.0)
    """

    def pair() -> tuple[float, str]:
        above, below = numerator(), denominator()
        ratio = above / below
        return ratio, f"{above:.4g} / {below:.4g} = {ratio:.4g}"

    return undisturbed(name, pair, repetitions)

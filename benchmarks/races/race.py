"""One race: the same numbers from etafree and from its peers, and the CPU time of each.

Equality is asserted before anything is timed. Then the two sides run in turns, and the ratio is the
peer's CPU time over etafree's: above one, etafree is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from typing import Any, Protocol

import numpy as np

from benchmarks.races import r
from benchmarks.timing import announce, cpu_seconds, interleaved_ratios

__all__ = ["Call", "Peer", "Race", "Result", "Side", "apart", "arrays", "run", "size_of"]

#: A side is called as often as it takes to use this much CPU time, at most `MOST_CALLS` times.
LEAST_SECONDS, MOST_CALLS = 0.02, 20
REPETITIONS = 5
#: A pair that takes longer than this is run `FEW` times only.
LONG_SECONDS, FEW = 1.5, 3
#: A first call that takes longer is not repeated to see what it takes without compilation.
COMPILING_SECONDS = 20.0

#: Estimates (p,), or estimates and standard errors (2, p).
Numbers = np.ndarray[Any, np.dtype[np.float64]]


class Side(Protocol):
    """What can be run again and again, and the numbers that it computes."""

    @property
    def numbers(self) -> Numbers: ...

    @property
    def seconds(self) -> float:
        """CPU seconds of one run, roughly."""

    def cost(self) -> float:
        """Return the CPU seconds of one run, whatever is counted by (a call, an effective draw)."""


class Call:
    """A Python function that returns the numbers; the first call is outside the clock."""

    def __init__(self, function: Callable[[], Numbers]) -> None:
        self.function = function
        self.seconds = cpu_seconds(self._keep)  # imports and compiles too
        if self.seconds < COMPILING_SECONDS:
            self.seconds = cpu_seconds(self._keep)
        wanted = math.ceil(LEAST_SECONDS / max(self.seconds, 1e-9))
        self.calls = min(MOST_CALLS, max(1, wanted))

    def _keep(self) -> None:
        self.numbers = np.asarray(self.function(), dtype=float)

    def cost(self) -> float:
        """Return the CPU seconds of one call."""
        return cpu_seconds(lambda: [self._keep() for _ in range(self.calls)]) / self.calls


@dataclass(frozen=True)
class Peer:
    """What people would use instead, and what it needs.

    Attributes
    ----------
    name : str
    prepare : callable
        Imports the peer, brings the data into its form and returns its side.
    packages : tuple of str
        Distributions that must be installed, the peer's own first.
    of_r : bool
        Whether they are packages of R.
    note : str
        What it does differently.
    tolerance : float, optional
        Replaces the race's.
    """

    name: str
    prepare: Callable[[], Side]
    packages: tuple[str, ...]
    of_r: bool = False
    note: str = ""
    tolerance: float | None = None

    @property
    def missing(self) -> str:
        """What to do if it is not installed; empty if it is."""
        if self.of_r:
            return r.missing(self.packages)
        absent = [name for name in self.packages if find_spec(name.replace("-", "_")) is None]
        return f"not installed: pip install {' '.join(absent)}" if absent else ""

    @property
    def version(self) -> str:
        """Version of its first package."""
        return r.versions()[self.packages[0]] if self.of_r else version(self.packages[0])


def apart(ours: Numbers, theirs: Numbers) -> float:
    """Return the largest difference in units of standard errors; of errors, relative."""
    if ours.shape != theirs.shape:
        raise RuntimeError(f"numbers of shape {ours.shape} and {theirs.shape}")
    if ours.ndim == 1:
        return float(np.max(np.abs(ours - theirs)) / max(1.0, float(np.max(np.abs(ours)))))
    estimates = np.abs(ours[0] - theirs[0]) / ours[1]
    return float(np.max([estimates, np.abs(theirs[1] / ours[1] - 1.0)]))


@dataclass(frozen=True)
class Race:
    """A job at one size, with everybody who does it.

    Attributes
    ----------
    name : str
        The job, such as "OLS, one-way clusters".
    size : str
        Such as "n = 1e5".
    ours : callable
        Returns etafree's side.
    peers : sequence of Peer
    goal : float, optional
        Least ratio that etafree should reach.
    tolerance : float
        How far apart the numbers may be, in the units of `compare`.
    compare : callable
        Returns how far apart two arrays of numbers are.
    unit : str
        What one cost is for.
    """

    name: str
    size: str
    ours: Callable[[], Side]
    peers: tuple[Peer, ...]
    goal: float | None = None
    tolerance: float = 1e-8
    compare: Callable[[Numbers, Numbers], float] = apart
    unit: str = "call"


@dataclass(frozen=True)
class Result:
    """One row: etafree against one peer."""

    family: str
    race: str
    size: str
    peer: str
    version: str = ""
    goal: float | None = None
    ratios: tuple[float, ...] = ()
    ours: float = math.nan
    theirs: float = math.nan
    unit: str = "call"
    apart: float = math.nan
    tolerance: float = math.nan
    note: str = ""
    missing: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Whether the median ratio reaches the goal, or who is ahead where there is none."""
        if self.missing:
            return "not run"
        ratio = median(self.ratios)
        ahead = "ahead" if ratio >= 1 else "behind"
        if self.goal is None:
            return ahead
        return "met" if ratio >= self.goal else f"missed, {ahead}"

    def record(self) -> dict[str, Any]:
        """Return plain values, as they are kept in a file."""
        values = asdict(self) | {"ratios": [round(x, 4) for x in self.ratios]}
        values |= {"verdict": self.verdict}
        del values["fields"]
        return {k: None if v != v else v for k, v in values.items()}


def run(family: str, race: Race, quick: bool = False) -> list[Result]:
    """Return a row for every peer, after asserting that its numbers are etafree's."""
    label = f"{race.name}, {race.size}"
    ours: Side | None = None
    rows = []
    for peer in race.peers:
        about = {"family": family, "race": race.name, "size": race.size, "peer": peer.name}
        if peer.missing:
            announce(f"{label}, {peer.name}: {peer.missing}")
            rows.append(Result(**about, goal=race.goal, missing=peer.missing))
            continue
        ours = ours or race.ours()
        theirs = peer.prepare()
        distance = race.compare(ours.numbers, theirs.numbers)
        allowed = race.tolerance if peer.tolerance is None else peer.tolerance
        if not distance <= allowed:
            raise RuntimeError(
                f"{label}: {peer.name} and etafree are {distance:.3g} apart, more than "
                f"{allowed:g}:\n{theirs.numbers}\n{ours.numbers}"
            )
        rows.append(
            Result(
                **about,
                version=peer.version,
                goal=race.goal,
                unit=race.unit,
                apart=distance,
                tolerance=allowed,
                note=peer.note,
                **_times(f"{label}, {peer.name}", ours, theirs, quick),
            )
        )
    return rows


def _times(label: str, ours: Side, theirs: Side, quick: bool) -> dict[str, Any]:
    """Return ratios and median costs of two sides run in turns."""
    costs: dict[str, list[float]] = {"ours": [], "theirs": []}

    def cost(who: str, side: Side) -> float:
        costs[who].append(side.cost())
        return costs[who][-1]

    repetitions = 1 if quick else REPETITIONS
    if not quick and max(ours.seconds, theirs.seconds) > LONG_SECONDS:
        repetitions = FEW
    ratios = interleaved_ratios(
        label, lambda: cost("theirs", theirs), lambda: cost("ours", ours), repetitions
    )
    return {"ratios": ratios, **{who: median(values) for who, values in costs.items()}}


def arrays(*parts: Any) -> Numbers:
    """Return estimates and standard errors as one array (2, p)."""
    return np.array([np.asarray(part, dtype=float).ravel() for part in parts])


def size_of(n: int) -> str:
    """Return a number of rows in the shortest words."""
    digits = f"{n:.0e}".replace("e+0", "e")
    return f"n = {digits if int(float(digits)) == n else n}"

"""What a design of a paper is, and what comes out of one simulated data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from etafree.calibrate import calibrate
from etafree.criterion import Criterion
from etafree.draws import Draws
from etafree.errors import EtafreeError
from etafree.foundation.arguments import Array
from etafree.posterior import GeneralizedPosterior
from etafree.samplers import sample

__all__ = [
    "DRAWS",
    "Outcome",
    "Paper",
    "Published",
    "attempted",
    "location_scale",
    "of_draws",
    "of_intervals",
    "posterior_draws",
]

#: Draws per posterior.
DRAWS = 1000


class Outcome(NamedTuple):
    """One number of one data set: of a method, about a parameter, of a kind such as coverage."""

    way: str
    parameter: str
    quantity: str
    value: float


class Published(NamedTuple):
    """One number of a paper, and over how many data sets it is a mean."""

    design: str
    way: str
    parameter: str
    quantity: str
    value: float
    replicates: int


@dataclass(frozen=True)
class Paper:
    """Designs of a paper by name, and the paper's numbers as far as they are at hand.

    A design takes a random generator and returns the outcomes of one data set, always in the same
    order, with NaN for what a method did not give. `shown` are the quantities that the page shows.
    """

    title: str
    designs: Mapping[str, Callable[[np.random.Generator], list[Outcome]]]
    published: Sequence[Published] = ()
    shown: tuple[str, ...] = ("coverage",)


def of_intervals(
    way: str, names: Sequence[str], truth: Array, low: Array, high: Array
) -> list[Outcome]:
    """Return whether intervals, (p,) limits, hold the truth (p,), and their widths."""
    out = []
    for name, value, a, b in zip(names, truth, low, high, strict=True):
        inside = float(a <= value <= b) if np.isfinite(b - a) else np.nan
        out += [Outcome(way, name, "coverage", inside), Outcome(way, name, "width", float(b - a))]
    return out


def of_draws(
    way: str, draws: Draws, truth: Array, names: Sequence[str] | None = None
) -> list[Outcome]:
    """Return the same of equal-tailed 95 % intervals of draws, under their names or others."""
    low, high = np.quantile(draws.array, [0.025, 0.975], axis=0)
    return of_intervals(way, names or draws.names, truth, low, high)


def attempted(
    way: str, names: Sequence[str], truth: Array, draw: Callable[[], Draws]
) -> list[Outcome]:
    """Return outcomes of draws, NaN where there are none: the method refused or failed."""
    try:
        return of_draws(way, draw(), truth, names)
    except EtafreeError:
        nothing = np.full(len(truth), np.nan)
        return of_intervals(way, names, truth, nothing, nothing)


def posterior_draws(criterion: Criterion, eta: float, rng: np.random.Generator) -> Draws:
    """Return draws of the generalized posterior with a flat prior."""
    return sample(GeneralizedPosterior(criterion, eta), DRAWS, rng)


def location_scale(
    criterion: Criterion,
    truth: Array,
    rng: np.random.Generator,
    draws: Draws | None = None,
    clusters: object = None,
    way: str = "location-scale",
) -> list[Outcome]:
    """Return outcomes of location-scale calibration of draws, at a learning rate of one if none."""
    before = posterior_draws(criterion, 1.0, rng) if draws is None else draws
    result = calibrate(before, criterion, clusters=clusters, seed=rng)
    return of_draws(way, result.draws, truth)

"""One simulated data set with the value that its intervals ought to cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array

__all__ = ["Problem", "coverage"]


@dataclass(frozen=True)
class Problem:
    """One data set: criterion, keywords of calibrate, truth (p,), and rival keywords by name."""

    criterion: Criterion
    options: Mapping[str, Any]
    truth: Array
    rivals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def coverage(low: Array, high: Array, truth: Array) -> tuple[float, float]:
    """Return the share of intervals that hold the truth, and its Monte Carlo error, never zero.

    Examples
    --------
    >>> coverage(np.zeros(4), np.ones(4), np.array([0.5, 0.5, 0.5, 2.0]))[0]
    0.75
    """
    many = len(low)
    share = float(((low <= truth) & (truth <= high)).mean())
    return share, float(np.sqrt(max(share * (1 - share), 0.5 / many) / many))

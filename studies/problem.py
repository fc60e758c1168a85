"""One simulated data set with the value that its intervals ought to cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """One data set: criterion, keywords of calibrate, truth (p,), and rival keywords by name."""

    criterion: Criterion
    options: Mapping[str, Any]
    truth: Array
    rivals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

"""Observation weights: what they may be, and which kind they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from etafree.errors import InputError
from etafree.rows import Rows
from etafree.validation import Array, as_array, as_choice, owned

__all__ = ["checked_weights"]

KINDS = ("frequency", "sampling")


def checked_weights(
    rows: Rows, n: int, weights: Any, weight_kind: str | None
) -> tuple[Array | None, bool]:
    """Return checked weights, and whether they count copies."""
    frequency = weight_kind != "sampling"
    w = None
    if weights is not None:
        w = owned(as_array(rows.align(weights, "weights"), "weights", shape=(n,)))
    if w is not None or weight_kind is not None:
        as_choice(weight_kind, "weight_kind", KINDS)
    if w is not None:
        _check_weights(w, frequency)
    return w, frequency


def _check_weights(weights: Array, frequency: bool) -> None:
    if np.any(weights < 0):
        raise InputError("weights", f"has the negative value {weights.min()}", "pass at least zero")
    if weights.max() > 1e150:
        raise InputError("weights", f"reach {weights.max():.1g}", "divide them by a constant")
    if not weights.sum() > 0:
        raise InputError("weights", "are all zero", "some must be above")
    if frequency and np.any(weights != np.round(weights)):
        raise InputError(
            "weights",
            "count copies of rows but are not whole numbers",
            "use weight_kind='sampling' for weights that are not counts",
        )

"""Findings and checks: a number that was computed on the way, and the verdict on it.

Any module may leave a `Finding`; `etafree.diagnostics` alone makes a `Check` of it. A failing check
must never lose a result: `run_checks` is the one place that calls them, and those that cannot be
computed get the verdict ``"unknown"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from etafree.foundation.threads import own_settings

T = TypeVar("T")
Details = Mapping[str, float | str]
NOTHING: Details = {}
#: Verdicts, the worst first.
VERDICTS = ("fail", "unknown", "warn", "ok")


class Finding(NamedTuple):
    """A number computed on the way to a result, with details for the advice of its check."""

    name: str
    value: float
    details: Details = NOTHING


def find(name: str, function: Callable[[], float]) -> Finding:
    """Compute a finding; if that fails, its value is NaN and its details say why."""
    try:
        return Finding(name, _computed(function))
    except Exception as error:  # whatever it is
        return Finding(name, np.nan, {"failed": _reason(error)})


def missing_rows(missing: int, rows: int) -> tuple[Finding, ...]:
    """Return how many rows were dropped for missing values; nothing if none were."""
    if not missing:
        return ()
    return (
        Finding("left out for missing values", missing, {"advice": f"{missing} of {rows} rows"}),
    )


class Check(NamedTuple):
    """One diagnostic: the value, the threshold it is held against and what to do beyond it.

    Attributes
    ----------
    name : str
        What is checked.
    value, threshold : float
        What was computed, and what it is held against.
    warns : {"above", "below"}
        On which side of the threshold it warns.
    verdict : {"ok", "warn", "fail", "unknown"}
        How far to trust the result; unknown if the check could not be computed.
    advice : str
        What to do, why the verdict is unknown, or what was left out; empty otherwise.

    See Also
    --------
    etafree.Calibration.diagnostics : The table of all.

    Examples
    --------
    >>> import etafree as ef
    >>> draws = np.random.default_rng(0).standard_normal((5000, 1))
    >>> result = ef.calibrate(draws, center=[0.0], covariance=np.eye(1))
    >>> [(c.name, c.verdict) for c in result.checks]
    [('shape', 'ok'), ('draws: needed over effective', 'ok')]
    """

    name: str
    value: float
    threshold: float
    warns: str
    verdict: str
    advice: str


def unknown(name: str, reason: str, threshold: float = np.nan, warns: str = "above") -> Check:
    """Return the check that could not be computed, with the reason."""
    return Check(name, np.nan, float(threshold), warns, "unknown", reason)


def run_checks(planned: Iterable[tuple[str, Callable[[], Check | Iterable[Check]]]]) -> list[Check]:
    """Compute checks, one or several per named function; none of them can raise.

    A function that fails, and a value that is not a number, give the verdict ``"unknown"``.
    """
    checks: list[Check] = []
    for name, function in planned:
        try:
            result = _computed(function)
            checks += [result] if isinstance(result, Check) else list(result)
        except Exception as error:  # whatever it is
            checks.append(unknown(name, f"could not be computed: {_reason(error)}"))
    return [
        unknown(c.name, "could not be computed: its value is not a number", c.threshold, c.warns)
        if np.isnan(c.value) and c.verdict != "unknown"
        else c
        for c in checks
    ]


@own_settings
def _computed(function: Callable[[], T]) -> T:
    """Return what a function computes under the library's own floating-point settings."""
    return function()


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

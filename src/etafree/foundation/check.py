"""Findings and checks: a number that somebody computed, and what is thought of it.

Whoever computes leaves a `Finding`; `etafree.diagnostics` alone makes a `Check` of it. A check
judges a result and must never take it down: `run_checks` is the one place that calls them, and
gives those that cannot be computed the verdict ``"unknown"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from etafree.foundation.threads import own_settings

T = TypeVar("T")
#: Verdicts, the worst first.
VERDICTS = ("fail", "unknown", "warn", "ok")


NOTHING: Mapping[str, Any] = {}


class Finding(NamedTuple):
    """A number found on the way to a result, with what its check should say of it."""

    name: str
    value: float
    told: Mapping[str, Any] = NOTHING


def find(name: str, function: Callable[[], float], **told: object) -> Finding:
    """Return what a function finds, or NaN and why it finds nothing: the result stands.

    Examples
    --------
    >>> find("ratio", lambda: 1 / 0).told
    {'failed': 'ZeroDivisionError: division by zero'}
    """
    try:
        return Finding(name, _computed(function), told)
    except Exception as error:  # whatever it is
        return Finding(name, np.nan, {**told, "failed": _reason(error)})


def missing_rows(missing: int, rows: int) -> tuple[Finding, ...]:
    """Return how many rows were dropped for missing values; nothing if none were."""
    told = {"advice": f"{missing} of {rows} rows"}
    return (Finding("left out for missing values", float(missing), told),) if missing else ()


class Check(NamedTuple):
    """One diagnostic: the value, the threshold it is held against and what to do beyond it.

    Attributes
    ----------
    name : str
        What is checked.
    value, threshold : float
        What was found, and what it is held against.
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
    >>> made = ef.calibrate(draws, center=[0.0], covariance=np.eye(1))
    >>> [(c.name, c.verdict) for c in made.checks]
    [('shape', 'ok'), ('draws: needed over effective', 'ok')]
    """

    name: str
    value: float
    threshold: float
    warns: str
    verdict: str
    advice: str


def unknown(name: str, reason: str, threshold: float = np.nan, warns: str = "above") -> Check:
    """Return the check that could not be computed, with the reason.

    Examples
    --------
    >>> unknown("offset", "the Hessian is singular").verdict
    'unknown'
    """
    return Check(name, np.nan, float(threshold), warns, "unknown", reason)


def run_checks(planned: Iterable[tuple[str, Callable[[], Check | Iterable[Check]]]]) -> list[Check]:
    """Return the checks that named functions compute; none of them can raise.

    A function that fails, and a value that is not a number, give the verdict ``"unknown"``.

    Parameters
    ----------
    planned : iterable of (name, function)
        A function returns one check or several; the name is used if it fails.

    Returns
    -------
    list of Check
        In the same order.

    Examples
    --------
    >>> run_checks([("ratio", lambda: unknown("ratio", str(1 / 0)))])[0].advice
    'could not be computed: ZeroDivisionError: division by zero'
    """
    checks: list[Check] = []
    for name, function in planned:
        try:
            result = _computed(function)
            checks += [result] if isinstance(result, Check) else list(result)
        except Exception as error:  # whatever it is, the result stands
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

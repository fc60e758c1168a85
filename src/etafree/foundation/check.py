"""A diagnostic: the value of a named check, the threshold it is held against, and advice.

A check judges a result and must never take it down: `run_checks` is the one place that calls them,
and gives those that cannot be computed the verdict ``"unknown"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from etafree.foundation.threads import own_settings

__all__ = ["VERDICTS", "Check", "check", "left_out", "run_checks", "unknown"]

#: Verdicts, the worst first.
VERDICTS = ("fail", "unknown", "warn", "ok")


class Check(NamedTuple):
    """One diagnostic: the value, the threshold it is held against and what to do beyond it.

    Attributes
    ----------
    name : str
        What is checked.
    value, threshold : float
        What was found, and what it is held against.
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
    verdict: str
    advice: str


def check(name: str, value: float, threshold: float, advice: str, fail: float = np.inf) -> Check:
    """Return the check of a value that should stay at or below its threshold.

    Examples
    --------
    >>> check("offset", 0.3, 0.1, "move the centre").verdict
    'warn'
    """
    verdict = "ok" if value <= threshold else ("fail" if value > fail else "warn")
    return Check(name, float(value), float(threshold), verdict, "" if verdict == "ok" else advice)


def unknown(name: str, reason: str, threshold: float = np.nan) -> Check:
    """Return the check that could not be computed, with the reason.

    Examples
    --------
    >>> unknown("offset", "the Hessian is singular").verdict
    'unknown'
    """
    return Check(name, np.nan, float(threshold), "unknown", reason)


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
    >>> run_checks([("ratio", lambda: check("ratio", 1 / 0, 1.0, ""))])[0].advice
    'could not be computed: ZeroDivisionError: division by zero'
    """
    checks: list[Check] = []
    for name, function in planned:
        try:
            checks += _computed(function)
        except Exception as error:  # whatever it is, the result stands
            text = " ".join(str(error).split())
            reason = f"could not be computed: {type(error).__name__}"
            checks.append(unknown(name, f"{reason}: {text}" if text else reason))
    return [
        unknown(c.name, "could not be computed: its value is not a number", c.threshold)
        if np.isnan(c.value) and c.verdict != "unknown"
        else c
        for c in checks
    ]


@own_settings
def _computed(function: Callable[[], Check | Iterable[Check]]) -> list[Check]:
    """Return the checks of one function, under the library's own floating-point settings."""
    result = function()
    return [result] if isinstance(result, Check) else list(result)


def left_out(missing: int, rows: int) -> tuple[Check, ...]:
    """Return, as a check that is printed, how many rows were dropped for missing values.

    Examples
    --------
    >>> [(c.verdict, c.advice) for c in left_out(3, 100)], left_out(0, 100)
    ([('ok', '3 of 100 rows')], ())
    """
    if not missing:
        return ()
    name = "left out for missing values"
    return (Check(name, float(missing), float(rows), "ok", f"{missing} of {rows} rows"),)

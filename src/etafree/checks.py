"""A diagnostic: the value of a named check, the threshold it is held against, and advice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Check", "check"]


class Check(NamedTuple):
    """One diagnostic: the value, the threshold it is held against and what to do beyond it.

    Attributes
    ----------
    name : str
        What is checked.
    value, threshold : float
        What was found, and what it is held against.
    verdict : {"ok", "warn", "fail"}
        How far to trust the result.
    advice : str
        What to do; empty if the verdict is ok.

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

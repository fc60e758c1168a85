"""Compare a Huber fit with clustered standard errors with the fit alone in statsmodels.

Then what a second thread gains in fits, sandwiches, sampling and bootstraps.
"""

from __future__ import annotations

import numpy as np
import statsmodels.api as sm
from scipy.stats import norm
from scipy.stats import t as student

import etafree as ef
from benchmarks import threads
from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios

__all__ = ["run"]

GOAL = 40.0
TUNING = 1.345
DOF = 2.5


def run(quick: bool) -> list[Row]:
    """Return the ratio of statsmodels' CPU time to etafree's, and those of one thread to two.

    etafree: criterion, fit and CR1 sandwich at a given scale. statsmodels: `RLM` and its fit, which
    estimates the scale along the way and knows no clusters.
    """
    n, clusters, p = (40_000, 4_000, 10) if quick else (1_000_000, 100_000, 10)
    rng = np.random.default_rng(20)
    X = rng.standard_normal((n, p))
    X[:, 0] = 1.0
    labels = rng.integers(clusters, size=n)
    errors = rng.standard_t(DOF, n) + 0.5 * rng.standard_normal(clusters)[labels]
    y = X @ np.linspace(-1.0, 1.0, p) + errors
    scale = float(student.ppf(0.75, DOF) / norm.ppf(0.75))
    announce(f"n = {n}, p = {p}, {clusters} clusters, t errors with {DOF} degrees of freedom")

    def ours() -> ef.Target:
        criterion = ef.Criterion(ef.losses.Huber(TUNING, scale=scale), data=(X, y))
        theta = ef.minimise(criterion).theta
        return ef.target(criterion, center=theta, clusters=labels, correction="CR1")

    def theirs() -> np.ndarray:
        return sm.RLM(y, X, M=sm.robust.norms.HuberT(TUNING)).fit().params

    estimates: dict[str, np.ndarray] = {}

    def cost_of_ours() -> float:
        return cpu_seconds(lambda: estimates.update(ours=ours().center))

    def cost_of_theirs() -> float:
        return cpu_seconds(lambda: estimates.update(theirs=theirs()))

    errors_of_ours = ours().se  # also compiles the scatter, outside the timing
    ratios = interleaved_ratios("fit", cost_of_theirs, cost_of_ours)
    apart = float(np.max(np.abs(estimates["ours"] - estimates["theirs"]) / errors_of_ours))
    if apart > 0.5:
        raise RuntimeError(f"the two fits differ by {apart:.2g} standard errors")
    note = f"estimates within {apart:.1g} standard errors of each other (scales differ)"
    if len(ratios) < 5:
        note += f"; {len(ratios)} runs, one takes over 20 s"
    return [Row("fit", GOAL, True, ratios, note=note), *threads.run(quick)]

"""Compare bootstrap minimisers, all at once, with refits by scipy; time the bootstrap of t."""

from __future__ import annotations

import numpy as np

import etafree as ef
from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios

__all__ = ["run"]

GOAL, GOAL_T = 10.0, 2.0
LOSSES = {"Huber": ef.losses.Huber(1.345), "logistic": ef.losses.Logistic()}
#: Refits that are timed; the cost of all is in proportion.
REFITS = 50


def run(quick: bool) -> list[Row]:
    """Return scipy's CPU time over ours for 1,000 resamples of 1,000 rows, p = 5; seconds of t."""
    resamples = 200 if quick else 1000
    rows = [_compare(name, loss, resamples) for name, loss in LOSSES.items()]
    return [*rows, _bootstrap_t(quick)]


def _bootstrap_t(quick: bool) -> Row:
    """Return the CPU seconds of bootstrap-t limits by influences, which are a goal of their own."""
    n, draws = (1_000, 999) if quick else (10_000, 9_999)
    rng = np.random.default_rng(7)
    X = rng.standard_normal((n, 10))
    criterion = ef.Criterion(ef.losses.Squared(), (X, rng.standard_exponential(n)))
    result = ef.calibrate(rng.standard_normal((500, 10)), criterion)
    announce(f"bootstrap-t, n = {n}, p = 10, {draws} resamples")
    values = [cpu_seconds(lambda: result.bootstrap_t(draws=draws)) for _ in range(6)]
    return Row("bootstrap-t", GOAL_T, False, tuple(values[1:]), unit="s", note="CPU; no refits")


def _compare(name: str, loss: ef.losses.LinearLoss, resamples: int) -> Row:
    from scipy.optimize import minimize

    rng = np.random.default_rng(6)
    X = rng.standard_normal((1000, 5))
    y = X.sum(axis=1) + rng.standard_t(3, 1000)
    if name == "logistic":
        y = (y > 0).astype(float)
    criterion = ef.Criterion(loss, (X, y))
    announce(f"{name}, {resamples} resamples")

    def refit(counts: np.ndarray) -> np.ndarray:
        def both(theta: np.ndarray) -> tuple[float, np.ndarray]:
            u = X @ theta
            return float(counts @ loss.values(u, y)), X.T @ (counts * loss.first(u, y))

        return minimize(both, np.zeros(5), jac=True, method="BFGS").x

    def theirs() -> float:
        draws = rng.multinomial(1000, np.full(1000, 1e-3), size=REFITS)
        return cpu_seconds(lambda: [refit(counts) for counts in draws]) * resamples / REFITS

    def ours() -> float:
        return cpu_seconds(lambda: ef.bootstrap(criterion, resamples, seed=1))

    spread = ef.bootstrap(criterion, resamples, seed=1).array.std(axis=0)
    own = np.array([refit(c) for c in rng.multinomial(1000, np.full(1000, 1e-3), size=200)])
    if not np.allclose(own.std(axis=0), spread, rtol=0.25):
        raise RuntimeError("the bootstrap and scipy's refits have different spreads")
    return Row(
        f"bootstrap, {name}",
        GOAL,
        True,
        interleaved_ratios(f"bootstrap, {name}", theirs, ours),
        note=f"{REFITS} refits by BFGS timed and scaled",
    )

"""Compare two threads with one: fit, sandwiches, sampling and bootstrap.

The ratio is of wall times, in turns, so it means something on two idle cores only; the note has the
CPU time of two threads over that of one, which says what threads cost wherever they run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

import etafree as ef
from benchmarks.timing import Row, announce, interleaved_ratios

__all__ = ["run"]

GOAL = 1.7
COLUMNS = 10


def run(quick: bool) -> list[Row]:
    """Return wall times of one thread over those of two, after checking that bytes are the same."""
    n = 100_000 if quick else 1_000_000
    rng = np.random.default_rng(41)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, COLUMNS - 1))])
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ np.linspace(-0.5, 0.5, COLUMNS)))).astype(float)
    labels = np.arange(n) // 100
    announce(f"logistic, n = {n}, p = {COLUMNS}, clusters of 100")

    def criterion(rows: int = n) -> ef.Criterion:
        return ef.Criterion(ef.losses.Logistic(), (X[:rows], y[:rows]))

    center = ef.minimise(criterion()).theta
    points = center + 0.01 * rng.standard_normal((200, COLUMNS))

    def sandwich(clusters: object, correction: str) -> Callable[[], np.ndarray]:
        options = {"clusters": clusters, "correction": correction, "center": center}
        return lambda: ef.target(criterion(), **options).covariance

    jobs: dict[str, Callable[[], np.ndarray]] = {
        "fit": lambda: ef.minimise(criterion()).theta,
        "sandwich CR1": sandwich(labels, "CR1"),
        "sandwich CR3": sandwich(labels, "CR3"),
        "sandwich HC3": sandwich(None, "HC3"),
        "log densities of 200 draws": lambda: criterion().total.totals(points),
        "bootstrap": lambda: ef.bootstrap(criterion(n // 50), 200).array,
    }
    return [_compare(name, job) for name, job in jobs.items()]


def _compare(name: str, job: Callable[[], np.ndarray]) -> Row:
    results: dict[int, bytes] = {}
    cpu: dict[int, list[float]] = {1: [], 2: []}

    def cost(count: int) -> float:
        with ef.threads(count):
            wall, spent = time.perf_counter(), time.process_time()
            results[count] = job().tobytes()
            cpu[count].append(time.process_time() - spent)
            return time.perf_counter() - wall

    cost(1), cost(2)  # imports and compiled code, outside the timing
    ratios = interleaved_ratios(f"threads, {name}", lambda: cost(1), lambda: cost(2))
    if results[1] != results[2]:
        raise RuntimeError(f"{name}: one thread and two give different bytes")
    note = f"CPU time {median(cpu[2][1:]) / median(cpu[1][1:]):.2f} times that of one thread"
    return Row(f"two threads, {name}", GOAL, True, ratios, note=note)

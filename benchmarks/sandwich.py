"""Compare a clustered sandwich at a given centre with one pass over the design matrix."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import etafree as ef
import etafree.totals.linear
from benchmarks.timing import REPETITIONS, Row, announce, cpu_seconds, interleaved_ratios

__all__ = ["clustered_data", "run", "without_compiled_code"]

GOAL = 10.0
GOAL_NUMPY = 24.0
GOAL_MEMORY = 300.0
GOAL_LAWS = 1.5
COLUMNS = 10


def clustered_data(n: int, clusters: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X (n, 10), y (n,) and sorted labels (n,), made without large temporary arrays."""
    rng = np.random.default_rng(21)
    X = np.empty((n, COLUMNS))
    rng.standard_normal(out=X)
    y = np.empty(n)
    rng.standard_normal(out=y)
    for column in X.T:
        y += column
    labels = np.arange(n)
    labels //= n // clusters
    return X, y, labels


def run(quick: bool) -> list[Row]:
    """Return the CPU time over that of one pass, compiled and not, peak memory, and laws' cost."""
    n, clusters = (400_000, 4_000) if quick else (10_000_000, 100_000)
    rows = [_memory(n, clusters)]
    X, y, labels = clustered_data(n, clusters)
    announce(f"n = {n}, p = {COLUMNS}, {clusters} clusters, labels sorted")
    criterion = ef.Criterion(ef.losses.Huber(1.345), data=(X, y))
    center = np.ones(COLUMNS)
    flat = X.ravel()

    def sandwich() -> ef.Target:
        return ef.target(criterion, center=center, clusters=labels, correction="CR1")

    def cost() -> float:
        return cpu_seconds(sandwich)

    def cost_of_pass() -> float:
        return cpu_seconds(lambda: flat @ flat)

    compiled = sandwich().covariance
    cost_of_pass()
    rows.append(Row("sandwich", GOAL, False, interleaved_ratios("sandwich", cost, cost_of_pass)))
    with without_compiled_code():
        if not np.allclose(sandwich().covariance, compiled, rtol=1e-9, atol=0.0):
            raise RuntimeError("the compiled and the numpy path give different sandwiches")
        ratios = interleaved_ratios("sandwich, numpy only", cost, cost_of_pass)
    rows.append(Row("sandwich, numpy only", GOAL_NUMPY, False, ratios))
    return rows + _laws(quick)


def _laws(quick: bool) -> list[Row]:
    """Return the CPU time with laws over that without, of rows (HC3) and of clusters (CR3)."""
    n, clusters = (50_000, 5_000) if quick else (1_000_000, 100_000)
    X, y, labels = clustered_data(n, clusters)
    criterion, center = ef.Criterion(ef.losses.Squared(), data=(X, y)), np.ones(X.shape[1])
    rows = []
    for name, groups in ((f"laws of {n:,} rows", None), (f"laws of {clusters:,} clusters", labels)):
        announce(f"{name}: n = {n}, p = {X.shape[1]}")

        def sandwich(dof: float | None, groups: object = groups) -> float:
            return cpu_seconds(
                lambda: ef.target(criterion, center=center, clusters=groups, dof=dof)
            )

        sandwich(None)
        sandwich(np.inf)
        ratios = interleaved_ratios(name, lambda: sandwich(None), lambda: sandwich(np.inf))
        note = "degrees of freedom and bias of every coefficient, over the sandwich without them"
        rows.append(Row(name, GOAL_LAWS, False, ratios, "", note))
    return rows


@contextmanager
def without_compiled_code() -> Iterator[None]:
    """Make etafree use numpy alone for its sums over clusters."""
    before = etafree.totals.linear.COMPILE_FROM
    etafree.totals.linear.COMPILE_FROM = np.inf
    try:
        yield
    finally:
        etafree.totals.linear.COMPILE_FROM = before


def _memory(n: int, clusters: int) -> Row:
    """Return the memory that the call needs beyond the data, each time in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.sandwich_memory", str(n), str(clusters)]
    values = []
    for repetition in range(REPETITIONS):
        made = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        values.append(float(made.stdout))
        announce(f"sandwich, memory {repetition + 1}/{REPETITIONS}: {values[-1]:.1f} MB")
    return Row(
        "sandwich, memory",
        GOAL_MEMORY,
        False,
        tuple(values),
        "MB",
        "peak of a first call in a "
        "fresh process less the peak before it, loading the compiled code included",
    )

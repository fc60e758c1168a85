"""Compare losses in JAX with closed forms and L1 samplers; memory of pairs and the jackknife."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import etafree as ef
from benchmarks.sandwich import COLUMNS, clustered_data, without_compiled_code
from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios

__all__ = ["run"]

GOAL_JAX = 1.5
GOAL_PAIRS = 1024.0
GOAL_JACKKNIFE = 2048.0


def run(quick: bool) -> list[Row]:
    """Return ratios of CPU time, compiled code warm, and memory beyond the data."""
    units, rows, draws = (2_000, 2_000, 1_000) if quick else (20_000, 100_000, 4_000)
    return [
        *_jax(quick),
        _kinks(quick),
        _memory("pairs, memory", "pairs_memory", GOAL_PAIRS, units),
        _memory("jackknife, memory", "jackknife_memory", GOAL_JACKKNIFE, rows, draws),
    ]


def _jax(quick: bool) -> list[Row]:
    """Return the time of a JAX loss over that of its closed form: derivatives, and the target."""
    import jax.numpy as jnp

    n, clusters = (100_000, 1_000) if quick else (1_000_000, 10_000)
    X, y, labels = clustered_data(n, clusters)
    y = (y > 0).astype(float)
    announce(f"logistic, n = {n}, p = {COLUMNS}, {clusters} clusters")

    def logistic(theta, row):  # type: ignore[no-untyped-def]
        u = row["x"] @ theta
        return jnp.logaddexp(0.0, u) - row["y"] * u

    center = np.full(COLUMNS, 0.1)
    closed = ef.Criterion(ef.losses.Logistic(), (X, y))
    written = ef.Criterion(ef.JaxLoss(logistic), {"x": X, "y": y}, start=center)
    parts = {
        "JAX loss, derivatives": lambda c: c.derivatives(center)[:3],  # not the size of its terms
        "JAX loss, clustered target": lambda c: (
            ef.target(c, center=center, clusters=labels, correction="CR1").covariance
        ),
    }
    rows = []
    for name, call in parts.items():
        made = [np.hstack([np.ravel(part) for part in call(c)]) for c in (written, closed)]
        if not np.allclose(*made, rtol=1e-8):
            raise RuntimeError("the JAX loss and the closed form differ")

        def cost(f: Any = call) -> float:
            return cpu_seconds(lambda: f(written))

        def closed_cost(f: Any = call) -> float:
            return cpu_seconds(lambda: f(closed))

        def numpy_cost(f: Any = call) -> float:
            with without_compiled_code():
                return cpu_seconds(lambda: f(closed))

        against = interleaved_ratios(f"{name}, against compiled", cost, closed_cost)
        ratios = interleaved_ratios(name, cost, numpy_cost)
        note = f"against numpy, after compilation; {median(against):.2f} against numba"
        rows.append(Row(name, GOAL_JAX, False, ratios, note=note))
    return rows


def _kinks(quick: bool) -> Row:
    """Return effective draws per CPU second under an L1 penalty, over those of slice sampling."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((500, 8))
    y = X @ [1.0, -1.0, 0.8, 0, 0, 0, 0, 0] + rng.standard_normal(500)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.L1(0.2))
    posterior = ef.GeneralizedPosterior(criterion, eta=1.0)
    draws = 500 if quick else 2000
    announce(f"L1 posterior, p = 8, {draws} draws")

    def cost(sampler: str) -> float:
        made: list[ef.Draws] = []
        seconds = cpu_seconds(
            lambda: made.append(ef.sample(posterior, draws=draws, seed=1, sampler=sampler))
        )
        return seconds / made[0].ess

    cost("importance")
    ratios = interleaved_ratios(
        "L1 sampler", lambda: cost("elliptical"), lambda: cost("importance")
    )
    return Row("L1 sampler against slices", 1.0, True, ratios)


def _memory(name: str, module: str, goal: float, *sizes: int) -> Row:
    """Return the memory that a call needs beyond its data, each time in a fresh process."""
    announce(f"{name}, {' x '.join(map(str, sizes))}")
    values = []
    for repetition in range(3):
        made = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}", *map(str, sizes)],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        values.append(float(made.stdout))
        announce(f"{name} {repetition + 1}: {values[-1]:.1f} MB")
    return Row(name, goal, False, tuple(values), "MB", "peak beyond the data, compiled code too")

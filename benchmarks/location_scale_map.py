"""Compare mapping many draws with the matrix product that it contains."""

from __future__ import annotations

import numpy as np

import etafree as ef
from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios

__all__ = ["run"]

GOAL = 1.1
COLUMNS = 50


def run(quick: bool) -> list[Row]:
    """Return the CPU time of the map over that of the bare product, both into given memory."""
    count = 50_000 if quick else 1_000_000
    rng = np.random.default_rng(22)
    draws = rng.standard_normal((count, COLUMNS))
    omega = np.eye(COLUMNS) + 0.1 * rng.standard_normal((COLUMNS, COLUMNS))
    mean, offset = rng.standard_normal(COLUMNS), rng.standard_normal(COLUMNS)
    names = tuple(f"theta[{j}]" for j in range(COLUMNS))
    mapping = ef.LocationScaleMap(mean, offset, omega, names)
    out = np.empty_like(draws)
    buffer = np.empty_like(draws)
    announce(f"{count} draws of {COLUMNS} parameters")

    def cost() -> float:
        return cpu_seconds(lambda: mapping(draws, out=out))

    def cost_of_product() -> float:
        return cpu_seconds(lambda: np.matmul(draws, omega.T, out=buffer))

    cost()  # first touches of the memory, outside the timing
    cost_of_product()
    if not np.allclose(out, buffer + (offset - omega @ mean)):
        raise RuntimeError("the map is not what it should be")
    ratios = interleaved_ratios("map", cost, cost_of_product, repetitions=25)
    return [Row("map", GOAL, False, ratios)]

"""Compare least squares with clustered standard errors from formulas and tables with arrays."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import etafree as ef
from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios, undisturbed

__all__ = ["run"]

GOAL, OVERHEAD = 1.3, 3.0
SIZES = (100_000, 1_000_000)
SMALL, CALLS = 1000, 20
P = 10
FORMULA = "y ~ " + " + ".join(f"x{j}" for j in range(1, P))


def run(quick: bool) -> list[Row]:
    """Return CPU times over those of arrays, and what is added to them at a thousand rows."""
    rows: list[Row] = []
    for n in (SMALL, *(SIZES[:1] if quick else SIZES)):
        announce(f"fit and CR1, n = {n}, p = {P}")
        calls = _calls(n)
        arrays = calls.pop("arrays")
        center = arrays().center
        for name, call in calls.items():
            if not np.allclose(call().center, center, rtol=1e-9):
                raise RuntimeError(f"{name}: the estimates differ from those of arrays")
            label = f"{name}, n = {n:.0e}"
            if n == SMALL:
                values = undisturbed(label, _difference(call, arrays))
                rows.append(Row(f"{label}, overhead", OVERHEAD, False, values, unit="ms"))
            else:
                ratios = interleaved_ratios(label, _cost(call), _cost(arrays))
                rows.append(Row(label, GOAL, False, ratios))
    return rows


def _calls(n: int) -> dict[str, Callable[[], ef.Target]]:
    """Return the same fit from arrays, a formula and tables of three libraries."""
    rng = np.random.default_rng(37)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, P - 1))])
    y, labels = X.sum(axis=1) + rng.standard_normal(n), rng.integers(0, n // 50, n)
    columns = ["one", *(f"x{j}" for j in range(1, P))]
    frame = pd.DataFrame(dict(zip(columns, X.T, strict=True))).assign(y=y, firm=labels)
    polars, arrow = pl.from_pandas(frame), pa.Table.from_pandas(frame)
    loss = ef.losses.Squared()

    def from_arrays(X: object, y: object, labels: object) -> ef.Target:
        return ef.target(ef.Criterion(loss, (X, y)), clusters=labels, correction="CR1")

    def from_formula(table: object) -> ef.Target:
        criterion = ef.Criterion.from_formula(FORMULA, table, loss)
        return ef.target(criterion, clusters="firm", correction="CR1")

    return {
        "arrays": lambda: from_arrays(X, y, labels),
        "formula": lambda: from_formula(frame),
        "formula, polars": lambda: from_formula(polars),
        "formula, pyarrow": lambda: from_formula(arrow),
        "frame": lambda: from_arrays(frame[columns], frame["y"], frame["firm"]),
        "polars": lambda: from_arrays(polars.select(columns), polars["y"], polars["firm"]),
        "pyarrow": lambda: from_arrays(arrow.select(columns), arrow["y"], arrow["firm"]),
    }


def _cost(call: Callable[[], object]) -> Callable[[], float]:
    return lambda: cpu_seconds(call)


def _difference(
    call: Callable[[], object], other: Callable[[], object]
) -> Callable[[], tuple[float, str]]:
    """Return a measurement of the CPU time that one call takes beyond another, run in turns."""

    def measure() -> tuple[float, str]:
        seconds = [0.0, 0.0]
        for _ in range(CALLS):
            for k, each in enumerate((call, other)):
                start = time.process_time()
                each()
                seconds[k] += time.process_time() - start
        above, below = (1e3 * total / CALLS for total in seconds)
        return above - below, f"{above:.3g} - {below:.3g} ms"

    return measure

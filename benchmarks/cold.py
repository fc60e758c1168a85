"""Compare a fresh process that calibrates draws with one that only imports numpy and scipy."""

from __future__ import annotations

import resource
import subprocess
import sys

from benchmarks.timing import Row, announce, interleaved_ratios

__all__ = ["run"]

GOAL = 2.0
REPETITIONS = 9

CALIBRATE = """
import numpy as np
import etafree as ef
rng = np.random.default_rng(1)
X = np.column_stack([np.ones(300), rng.standard_normal((300, 2))])
y = X @ [1.0, 2.0, 3.0] + rng.standard_t(3, 300)
criterion = ef.Criterion(ef.losses.Huber(1.345), data=(X, y))
draws = 0.1 * rng.standard_normal((1000, 3))
result = ef.calibrate(draws, criterion, clusters=np.arange(300) // 10)
assert np.isfinite(result.target.se).all()
"""
IMPORT = "import numpy, scipy.linalg"


def run(quick: bool) -> list[Row]:
    """Return the CPU time of the first process over that of the second."""
    announce("fit and calibrate 1000 given draws; n = 300, p = 3, 30 clusters, CR3")
    child_cpu_seconds(CALIBRATE)  # writes the byte code of every module, outside the timing
    child_cpu_seconds(IMPORT)
    ratios = interleaved_ratios(
        "cold",
        lambda: child_cpu_seconds(CALIBRATE),
        lambda: child_cpu_seconds(IMPORT),
        5 if quick else REPETITIONS,
    )
    return [Row("cold", GOAL, False, ratios)]


def child_cpu_seconds(code: str) -> float:
    """Return the CPU time of a fresh interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

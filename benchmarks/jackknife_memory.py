"""Print how many megabytes the jackknife needs beyond draws and losses, in this process.

Run as ``python -m benchmarks.jackknife_memory OBSERVATIONS DRAWS``.
"""

from __future__ import annotations

import sys

import numpy as np

import etafree as ef
from benchmarks.sandwich_memory import peak_megabytes


def main(n: int, many: int) -> None:
    """Draw from a normal linear model's posterior, calibrate once, print the growth of the peak."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, 5))
    y = X.sum(axis=1) + rng.standard_normal(n)
    V = np.linalg.inv(X.T @ X)
    draws = rng.multivariate_normal(V @ X.T @ y, V, size=many)
    losses = np.empty((many, n))
    for theta, row in zip(draws, losses, strict=True):
        row[:] = -0.5 * (y - X @ theta) ** 2
    before = peak_megabytes()
    ef.calibrate(draws, log_likelihood=losses)
    print(peak_megabytes() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

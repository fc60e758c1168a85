"""Print how many megabytes a loss over all pairs needs beyond its data, in this process.

Run as ``python -m benchmarks.pairs_memory UNITS``.
"""

from __future__ import annotations

import sys

import numpy as np

import etafree as ef
from benchmarks.sandwich_memory import peak_megabytes


def main(n: int) -> None:
    """Build the data, fit and make the target once, print the growth of the peak."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((n, 3))
    y = X @ [1.0, 0.5, 0.0] + rng.standard_t(2, n)
    criterion = ef.Criterion(ef.PairwiseDifference(ef.losses.Huber(1.0)), (X, y))
    before = peak_megabytes()
    ef.target(criterion)
    print(peak_megabytes() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]))

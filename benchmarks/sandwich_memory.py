"""Print how many megabytes a clustered sandwich needs beyond its data, in this process.

Run as ``python -m benchmarks.sandwich_memory ROWS CLUSTERS``.
"""

from __future__ import annotations

import sys

import numpy as np

import etafree as ef
from benchmarks.sandwich import COLUMNS, clustered_data

__all__ = ["peak_megabytes"]


def peak_megabytes() -> float:
    """Return the peak resident memory of this process.

    Linux hands `getrusage`'s figure on from the parent to the child when a process is started, so
    a large parent would hide what the child uses; the kernel's own record of the memory map starts
    afresh.
    """
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def main(n: int, clusters: int) -> None:
    """Build the data, call once and print the growth of the peak."""
    X, y, labels = clustered_data(n, clusters)
    criterion = ef.Criterion(ef.losses.Huber(1.345), data=(X, y))
    before = peak_megabytes()
    ef.target(criterion, center=np.ones(COLUMNS), clusters=labels, correction="CR1")
    print(peak_megabytes() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

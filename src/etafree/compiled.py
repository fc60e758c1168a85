"""Inner loops compiled by numba, for data so large that compiling pays; imported only then."""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["moments", "scatter"]


@numba.njit(cache=True, error_model="numpy")
def scatter(out, codes, factor, rows):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add factor[i] * rows[i] to out[codes[i]], in the order of the rows."""
    n, p = rows.shape
    for i in range(n):
        g = codes[i]
        a = factor[i]
        for j in range(p):
            out[g, j] += a * rows[i, j]


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def moments(gradient, hessian, rows, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add rows' slope to the gradient and rows' diag(curvature) rows to the lower triangle.

    Columns are copied out first, so that every sum runs over contiguous memory.
    """
    n, p = rows.shape
    columns = np.empty((p + 1, n))
    for i in range(n):
        for j in range(p):
            columns[j, i] = rows[i, j]
    scaled = columns[p]
    for j in range(p):
        column = columns[j]
        total = 0.0
        for i in range(n):
            total += slope[i] * column[i]
            scaled[i] = curvature[i] * column[i]
        gradient[j] += total
        for k in range(0, j, 2):
            one, two = columns[k], columns[k + 1]
            first, second = 0.0, 0.0
            for i in range(n):
                first += scaled[i] * one[i]
                second += scaled[i] * two[i]
            hessian[j, k] += first
            hessian[j, k + 1] += second
        if j % 2 == 0:
            total = 0.0
            for i in range(n):
                total += scaled[i] * column[i]
            hessian[j, j] += total

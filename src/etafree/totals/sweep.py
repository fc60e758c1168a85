r"""One pass over rows with a compiled loss: all sums that a fit and its sandwich are made of.

Rows are taken a strip at a time: its columns, predictors, losses, slopes and curvatures stay in the
inner cache, and X is read once. Sums are those of :math:`\ell`, :math:`\ell'x`,
:math:`\ell''xx^\top`, :math:`(\ell')^2`, and of :math:`\ell'x` over groups of rows.
"""

from __future__ import annotations

import numpy as np
from numba import types

from etafree.foundation.compiler import jit
from etafree.losses.kernels import MATRIX, OUT, TERMS, VECTOR

#: Rows of a strip.
STRIP = 256
#: What lies between the columns of a strip, so that they do not meet in the cache.
APART = STRIP + 8

CODES = types.Array(types.intp, 1, "C", readonly=True)
OUT_MATRIX = types.float64[:, ::1]
#: Sums in any order, and products with sums in one step.
SUMS = {"reassoc", "contract"}


@jit(fastmath=SUMS)
def _columns(columns, rows):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the columns of a strip of rows one after the other."""
    m, p = rows.shape
    for j in range(p):
        column = columns[j]
        for i in range(m):
            column[i] = rows[i, j]


@jit(fastmath=SUMS)
def _outer(gradient, hessian, columns, scaled, slope, curvature, curved):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add a strip's columns times slopes, and the lower triangle of their weighted products.

    Two columns by two, which is what registers hold; an odd last column stands beside zeros.
    """
    m, p = len(slope), len(columns)
    first, second = scaled[0], scaled[1]
    for j in range(0, p, 2):
        x, z = columns[j], columns[j + 1]
        total, other = 0.0, 0.0
        for i in range(m):
            total += slope[i] * x[i]
            other += slope[i] * z[i]
        gradient[j] += total
        gradient[j + 1] += other
        if not curved:
            continue
        for i in range(m):
            first[i] = curvature[i] * x[i]
            second[i] = curvature[i] * z[i]
        for k in range(0, j + 1, 2):
            v, w = columns[k], columns[k + 1]
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for i in range(m):
                a += first[i] * v[i]
                b += first[i] * w[i]
                c += second[i] * v[i]
                d += second[i] * w[i]
            hessian[j, k] += a
            hessian[j, k + 1] += b
            hessian[j + 1, k] += c
            hessian[j + 1, k + 1] += d


@jit(types.void(OUT, OUT_MATRIX, MATRIX, VECTOR, VECTOR), fastmath=SUMS)
def moments(gradient, hessian, X, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the rows of X times slope, and the lower triangle of X' diag(curvature) X.

    `gradient` and `hessian` have an even size, one above p if p is odd.
    """
    n = len(X)
    columns, scaled = np.zeros((len(gradient), APART)), np.empty((2, APART))
    for start in range(0, n, STRIP):
        stop = min(start + STRIP, n)
        _columns(columns, X[start:stop])
        _outer(gradient, hessian, columns, scaled, slope[start:stop], curvature[start:stop], True)


@jit(types.void(OUT_MATRIX, CODES, VECTOR, MATRIX))
def scatter(out, codes, factor, rows):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add factor[i] * rows[i] to out[codes[i]], in the order of the rows."""
    n, p = rows.shape
    for i in range(n):
        sums, row, a = out[codes[i]], rows[i], factor[i]
        for j in range(p):
            sums[j] += a * row[j]


@jit(
    types.void(
        *(types.FunctionType(TERMS), VECTOR, MATRIX, VECTOR, VECTOR, VECTOR, VECTOR),
        *(OUT, OUT, OUT_MATRIX, CODES, OUT_MATRIX),
    ),
    fastmath=SUMS,
)
def sweep(  # type: ignore[no-untyped-def]  # pragma: no cover
    terms, numbers, X, y, offset, weights, theta, scalars, gradient, hessian, codes, scores
):
    """Add to loss and squared slope (2,), gradient, Hessian (lower triangle) and scores.

    An offset, weights, Hessian or codes of length zero are none. `theta`, `gradient` and `hessian`
    have an even size, as in `moments`. Rows of weight zero are ignored, their loss infinite or not.
    """
    n = len(X)
    columns, scaled = np.zeros((len(gradient), APART)), np.empty((2, APART))
    predictor, loss, slope, curvature = (
        np.empty(STRIP),
        np.empty(STRIP),
        np.empty(STRIP),
        np.empty(STRIP),
    )
    total, square = 0.0, 0.0
    for start in range(0, n, STRIP):
        stop = min(start + STRIP, n)
        m, rows = stop - start, X[start:stop]
        u, a, b, c = predictor[:m], loss[:m], slope[:m], curvature[:m]
        _columns(columns, rows)
        if len(offset):
            u[:] = offset[start:stop]
        else:
            u[:] = 0.0
        for j in range(0, len(columns), 2):
            x, z = columns[j], columns[j + 1]
            by_x, by_z = theta[j], theta[j + 1]
            for i in range(m):
                u[i] += by_x * x[i] + by_z * z[i]
        terms(u, y[start:stop], numbers, a, b, c)
        if len(weights):
            w = weights[start:stop]
            for i in range(m):
                a[i] = 0.0 if w[i] == 0.0 else w[i] * a[i]
                b[i] = 0.0 if w[i] == 0.0 else w[i] * b[i]
                c[i] = 0.0 if w[i] == 0.0 else w[i] * c[i]
        for i in range(m):
            total += a[i]
            square += b[i] * b[i]
        _outer(gradient, hessian, columns, scaled, b, c, len(hessian) > 0)
        if len(codes):
            scatter(scores, codes[start:stop], b, rows)
    scalars[0] += total
    scalars[1] += square

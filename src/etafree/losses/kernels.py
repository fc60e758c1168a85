r"""Losses compiled by numba: value, slope and curvature of a strip of rows at once.

A kernel is ``terms(u, y, numbers, loss, slope, curvature)``: it fills the last three (m,) with
:math:`\ell`, :math:`\ell'` and :math:`\ell''` at the predictors `u` and responses `y`; `numbers`
are the loss's own parameters. A loss names its kernel in `LinearLoss.kernel`. The exponential and
the logarithm below are free of branches and of calls, so that compilers take several rows at once
on every processor.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from etafree.foundation.compiler import jit

#: What is read: vectors and matrices that may be read-only.
VECTOR = types.Array(types.float64, 1, "C", readonly=True)
MATRIX = types.Array(types.float64, 2, "C", readonly=True)
#: What is written.
OUT = types.float64[::1]
#: Type of every kernel.
TERMS = types.void(OUT, VECTOR, VECTOR, OUT, OUT, OUT)

#: A float64 this large holds a whole number in its last bits.
MAGIC = 6755399441055744.0
#: log 2 in two parts, the first with few bits.
LOG2_HIGH, LOG2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
#: Where the exponential is zero, and where it is infinite.
LEAST, MOST = -708.0, 709.78

#: They need sums in the order in which they are written.
ELEMENTWISE = {"contract"}


def _power(typingctx, shifted):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the float64 2^(k - 1), always finite, of k + MAGIC: k becomes its exponent's bits."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        whole = ir.IntType(64)
        bits = builder.add(builder.bitcast(arguments[0], whole), ir.Constant(whole, 1022))
        return builder.bitcast(builder.shl(bits, ir.Constant(whole, 52)), ir.DoubleType())

    return types.float64(types.float64), code


power: Any = intrinsic(_power)


@jit(fastmath=ELEMENTWISE)
def exp(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    r"""Return :math:`e^x=2^ke^r`, :math:`|r|\le\tfrac12\log2`, by a series; below -708 zero."""
    shifted = min(max(x, LEAST), MOST) * (1.0 / math.log(2.0)) + MAGIC
    k = shifted - MAGIC
    r = (x - k * LOG2_HIGH) - k * LOG2_LOW
    series = 1.0 / 6227020800.0
    series = series * r + 1.0 / 479001600.0
    series = series * r + 1.0 / 39916800.0
    series = series * r + 1.0 / 3628800.0
    series = series * r + 1.0 / 362880.0
    series = series * r + 1.0 / 40320.0
    series = series * r + 1.0 / 5040.0
    series = series * r + 1.0 / 720.0
    series = series * r + 1.0 / 120.0
    series = series * r + 1.0 / 24.0
    series = series * r + 1.0 / 6.0
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    half = power(shifted)
    value = 2.0 * (series * half)
    value = 0.0 if x < LEAST else value
    value = math.inf if x > MOST else value
    return x if x != x else value


@jit(fastmath=ELEMENTWISE)
def log1p(x):  # type: ignore[no-untyped-def]  # pragma: no cover
    r"""Return :math:`\log(1+x)=2\,\mathrm{artanh}\{x/(2+x)\}` for x from 0 to 1, by its series."""
    s = x / (2.0 + x)
    q = s * s
    series = 1.0 / 33.0
    series = series * q + 1.0 / 31.0
    series = series * q + 1.0 / 29.0
    series = series * q + 1.0 / 27.0
    series = series * q + 1.0 / 25.0
    series = series * q + 1.0 / 23.0
    series = series * q + 1.0 / 21.0
    series = series * q + 1.0 / 19.0
    series = series * q + 1.0 / 17.0
    series = series * q + 1.0 / 15.0
    series = series * q + 1.0 / 13.0
    series = series * q + 1.0 / 11.0
    series = series * q + 1.0 / 9.0
    series = series * q + 1.0 / 7.0
    series = series * q + 1.0 / 5.0
    series = series * q + 1.0 / 3.0
    return 2.0 * s + 2.0 * s * (q * series)


@jit(fastmath=ELEMENTWISE)
def squared(u, y, numbers, loss, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(len(u)):
        r = u[i] - y[i]
        loss[i] = 0.5 * r * r
        slope[i] = r
        curvature[i] = 1.0


@jit(fastmath=ELEMENTWISE)
def huber(u, y, numbers, loss, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    c, scale = numbers[0], numbers[1]
    for i in range(len(u)):
        r = (y[i] - u[i]) / scale
        inner = min(max(r, -c), c)
        loss[i] = inner * (r - 0.5 * inner)
        slope[i] = -inner / scale
        curvature[i] = 1.0 / (scale * scale) if abs(r) <= c else 0.0


@jit(fastmath=ELEMENTWISE)
def pseudo_huber(u, y, numbers, loss, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    c, scale = numbers[0], numbers[1]
    for i in range(len(u)):
        r = (y[i] - u[i]) / scale
        square = (r / c) * (r / c)
        root = math.sqrt(1.0 + square)
        loss[i] = c * c * square / (root + 1.0)
        slope[i] = -r / (root * scale)
        curvature[i] = 1.0 / (root * root * root * scale * scale)


@jit(fastmath=ELEMENTWISE)
def logistic(u, y, numbers, loss, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(len(u)):
        odds = exp(-abs(u[i]))
        larger = 1.0 / (1.0 + odds)
        smaller = odds * larger
        loss[i] = log1p(odds) + (max(u[i], 0.0) - y[i] * u[i])
        slope[i] = (larger if u[i] >= 0.0 else smaller) - y[i]
        curvature[i] = larger * smaller


@jit(fastmath=ELEMENTWISE)
def poisson(u, y, numbers, loss, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(len(u)):
        mean = exp(u[i])
        loss[i] = mean - y[i] * u[i]
        slope[i] = mean - y[i]
        curvature[i] = mean


@jit(fastmath=ELEMENTWISE)
def gamma(u, y, numbers, loss, slope, curvature):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(len(u)):
        ratio = y[i] * exp(-u[i])
        loss[i] = ratio + u[i]
        slope[i] = 1.0 - ratio
        curvature[i] = ratio

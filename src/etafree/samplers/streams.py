"""Random numbers for compiled samplers: counter-based, vectorised, a stream per chain.

Numba's own generators draw one number at a time, which keeps a loop from being vectorised. Here the
k-th number of a stream is a mix of ``key + k * step`` (the SplitMix64 finaliser of Steele, Lea and
Flood 2014), so a block of them is a loop without a carried state, and normals come from the
Box-Muller transform with polynomial logarithm and sine.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numba import float64, int64, uint64

__all__ = ["fill_bits", "fill_normals", "uniform"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2**-53
_LOG_2 = math.log(2.0)
_ROOT_HALF_MANTISSA = np.int64(0x6A09E667F3BCD)


@numba.njit(cache=True, error_model="numpy", fastmath=True)
def fill_bits(counter, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `out` with 64 random bits each and return the advanced counter."""
    for i in range(out.shape[0]):
        z = counter + uint64(i + 1) * _STEP
        z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
        out[i] = z ^ (z >> uint64(31))
    return counter + uint64(out.shape[0]) * _STEP


@numba.njit(cache=True, error_model="numpy", fastmath=True, inline="always")
def uniform(bits):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a number in [0, 1) from 64 random bits."""
    return float64(int64(bits >> uint64(11))) * _TO_UNIT


@numba.njit(cache=True, error_model="numpy", fastmath=True)
def fill_normals(bits_one, bits_two, exponent, one, two):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `one` and `two` with independent standard normals from two blocks of random bits.

    `exponent` is scratch. Relative error of the logarithm and the sine below 1e-13.
    """
    n = one.shape[0]
    raw = one.view(np.int64)
    for i in range(n):
        one[i] = (float64(int64(bits_one[i] >> uint64(11))) + 0.5) * _TO_UNIT
    for i in range(n):  # one = mantissa * 2**exponent, mantissa within a root of two of one
        pattern = raw[i]
        mantissa = pattern & int64(0x000FFFFFFFFFFFFF)
        up = int64(1) if mantissa > _ROOT_HALF_MANTISSA else int64(0)
        exponent[i] = float64((pattern >> int64(52)) - int64(1023) + up)
        raw[i] = mantissa | ((int64(1023) - up) << int64(52))
    for i in range(n):
        m = one[i]
        f = (m - 1.0) / (m + 1.0)
        g = f * f
        tail = 0.1531383769920937332 + g * 0.1479819860511658591
        tail = 0.1818357216161805012 + g * tail
        tail = 0.2222219843214978396 + g * tail
        tail = 0.2857142874366239149 + g * tail
        tail = 0.3999999999940941908 + g * tail
        tail = 0.6666666666666735130 + g * tail
        radius = math.sqrt(-2.0 * (exponent[i] * _LOG_2 + f * (2.0 + g * tail)))
        turn = float64(int64(bits_two[i]) >> int64(11)) * (2.0 * _TO_UNIT)  # in [-1, 1)
        quarter = math.floor(2.0 * turn + 0.5)
        x = (turn - 0.5 * quarter) * math.pi
        y = x * x
        s = 1.6059043836821613e-10 * y - 2.5052108385441720e-08
        s = s * y + 2.7557319223985893e-06
        s = s * y - 1.9841269841269841e-04
        s = s * y + 8.3333333333333329e-03
        s = s * y - 1.6666666666666666e-01
        s = x * (1.0 + y * s)
        c = -1.1470745597729725e-11 * y + 2.0876756987868099e-09
        c = c * y - 2.7557319223985888e-07
        c = c * y + 2.4801587301587302e-05
        c = c * y - 1.3888888888888889e-03
        c = c * y + 4.1666666666666664e-02
        c = 1.0 + y * (c * y - 0.5)
        which = int64(quarter) & int64(3)
        odd = (which & int64(1)) == int64(1)
        sine = c if odd else s
        cosine = s if odd else c
        sine = -sine if (which & int64(2)) != int64(0) else sine
        cosine = -cosine if ((which + int64(1)) & int64(2)) != int64(0) else cosine
        one[i] = radius * cosine
        two[i] = radius * sine

"""Random numbers for compiled samplers: counter-based, vectorised, a stream per chain.

Numba's own generators draw one number at a time, which keeps a loop from being vectorised. Here the
k-th word of a stream is a mix of ``key + k * step`` (the SplitMix64 finaliser of Steele, Lea and
Flood 2014), so a block of them is a loop without a carried state, and each word makes two numbers
of 32 bits. Normals come from the Box-Muller transform in single precision (polynomials of Moshier's
Cephes library, relative error about 1e-7; the tails reach 6.6 standard deviations): twice as many
fit into a vector, and no Monte Carlo average can tell them from finer ones.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, int32, uint32, uint64

from etafree.compiled import jit

__all__ = ["fill_noise", "words_for"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_UNIT = np.float32(2.0**-31)
_ANGLE = np.float32(math.pi / 4 * 2.0**-31)
_ROOT_HALF = np.int32(0x3F3504F3)  # bit pattern of the root of one half


def words_for(n: int) -> int:
    """Return how many words `fill_noise` needs for n observations."""
    return n + (n + 1) // 2


@jit(fastmath=True)
def _fill_words(counter, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(out.shape[0]):
        z = counter + uint64(i + 1) * _STEP
        z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
        out[i] = z ^ (z >> uint64(31))
    return counter + uint64(out.shape[0]) * _STEP


@jit(fastmath=True)
def _fill_normals(radii, angles, one, two):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Turn two blocks of 32 random bits into two of independent standard normals.

    Numba widens integers to 64 bits: the casts keep them, and so the vectors, at 32.
    """
    raw = one.view(np.int32)
    for i in range(one.shape[0]):
        one[i] = (float32(int32(radii[i] >> uint32(1))) + float32(0.5)) * _UNIT
    for i in range(one.shape[0]):  # uniform = mantissa * 2**exponent, mantissa in [.71, 1.41)
        shifted = int32(raw[i] - _ROOT_HALF)
        two[i] = float32(int32(shifted >> int32(23)))
        raw[i] = int32(int32(shifted & int32(0x007FFFFF)) + _ROOT_HALF)
    for i in range(one.shape[0]):
        f = one[i] - float32(1.0)
        tail = float32(7.0376836292e-2) * f - float32(1.1514610310e-1)
        tail = tail * f + float32(1.1676998740e-1)
        tail = tail * f - float32(1.2420140846e-1)
        tail = tail * f + float32(1.4249322787e-1)
        tail = tail * f - float32(1.6668057665e-1)
        tail = tail * f + float32(2.0000714765e-1)
        tail = tail * f - float32(2.4999993993e-1)
        tail = tail * f + float32(3.3333331174e-1)
        log = two[i] * float32(math.log(2.0)) + (f + f * f * (tail * f - float32(0.5)))
        radius = math.sqrt(float32(-2.0) * log)
        word = angles[i]  # 30 bits of angle in [-45, 45) degrees, a reflection and a swap
        x = float32(int32(word << uint32(2))) * _ANGLE
        y = x * x
        s = (float32(-1.9515295891e-4) * y + float32(8.3321608736e-3)) * y
        s = x + x * y * (s - float32(1.6666654611e-1))
        c = (float32(2.443315711809948e-5) * y - float32(1.388731625493765e-3)) * y
        c = float32(1.0) + y * (y * (c + float32(4.166664568298827e-2)) - float32(0.5))
        c = -c if int32(word) < int32(0) else c
        swap = int32(word << uint32(1)) < int32(0)
        one[i] = radius * (s if swap else c)
        two[i] = radius * (c if swap else s)


@jit(fastmath=True)
def fill_noise(counter, words, one, two, unit):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `one` and `two` with standard normals, `unit` with uniforms in [0, 1]; single precision.

    `words` is scratch of `words_for(n)` unsigned 64-bit integers. Returns the advanced counter.
    """
    n = one.shape[0]
    counter = _fill_words(counter, words)
    bits = words.view(np.uint32)
    _fill_normals(bits[:n], bits[n : 2 * n], one, two)
    last = bits[2 * n : 3 * n]
    for i in range(n):
        unit[i] = float32(int32(last[i] >> uint32(1))) * _UNIT
    return counter

r"""Gibbs sampler of the Huber augmentation: latent scale, latent shift, coefficients.

With :math:`\exp(-\eta c|t|)` written as a scale mixture of normals, the appendix of Tamano and Tomo
(arXiv 2511.15320) alternates

.. math::

    \omega_i \mid t_i, \qquad t_i \mid \beta, \omega_i \sim N(v_i\eta r_i, v_i),\
    v_i = (\eta + 1/\omega_i)^{-1}, \qquad
    \beta \mid t \sim N(\Lambda^{-1}\{\eta X^\top(y-t) + P\mu\}, \Lambda^{-1}),

with :math:`\Lambda = \eta X^\top X + P`. Integrating :math:`t` out gives the `NormalLaplace` loss,
not Huber's: an infimal convolution is a minimum, not an integral.

Two rules for the scale: ``"appendix"`` draws it from its conditional, :math:`1/\omega_i \sim
\mathrm{IG}(\eta c/|t_i|, (\eta c)^2)`; ``"published"`` draws :math:`\omega_i \sim
\mathrm{IG}(|t_i|/(\eta c), 1)`, which reproduces the published figure and is the conditional of no
density we know of.

Random numbers for compiled samplers: counter-based, vectorised, a stream per chain.

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
from numba import float32, float64, int32, prange, uint32, uint64
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_array, as_choice
from etafree.foundation.compiler import jit
from etafree.foundation.terminal import counted

_STEP = np.uint64(0x9E3779B97F4A7C15)
_UNIT = np.float32(2.0**-31)
_ANGLE = np.float32(math.pi / 4 * 2.0**-31)
_ROOT_HALF = np.int32(0x3F3504F3)  # bit pattern of the root of one half


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

    `words` is scratch of n + (n + 1) // 2 unsigned 64-bit integers. Returns the advanced counter.
    """
    n = one.shape[0]
    counter = _fill_words(counter, words)
    bits = words.view(np.uint32)
    _fill_normals(bits[:n], bits[n : 2 * n], one, two)
    last = bits[2 * n : 3 * n]
    for i in range(n):
        unit[i] = float32(int32(last[i] >> uint32(1))) * _UNIT
    return counter


RULES = ("appendix", "published")
#: Observations updated at a time: their random numbers stay in the innermost cache.
BLOCK = 512
#: Updates of latent variables between two looks at interrupts: some tenths of a second.
UPDATES = 1 << 26
#: Squares of latent shifts stay within single precision.
LARGEST = 1e15


@jit(fastmath=True)
def update_latents(base, x, b, y, t, z, noise, unit, residual, eta, c, published):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Draw scale and shift of a block of observations, whose residuals are base - x b.

    Returns the sum of y - t with weights x. Sums and residuals are in double precision, what is
    random in single. The two roots of the inverse Gaussian's quadratic multiply to the square of
    its mean; the larger is computed without cancellation, and omega is kept as a ratio, so nothing
    overflows or vanishes at t = 0. Two loops, because a branch inside would not vectorise.
    """
    for i in range(y.shape[0]):
        residual[i] = float32(base[i] - x[i] * b)
    one, two, half, tiny = float32(1.0), float32(2.0), float32(0.5), float32(1e-30)
    rate, inverse = float32(eta), float32(1.0 / (eta * c))
    if published:
        for i in range(y.shape[0]):
            a = abs(t[i]) * inverse
            h = half * z[i] * z[i] * a
            g = one + h + math.sqrt(h * (two + h))  # the roots are a / g and a g
            smaller = unit[i] * (g + one) < g
            over = a if smaller else a * g
            under = g if smaller else one
            over = one if abs(t[i]) < float32(1e-10) else over
            under = one if abs(t[i]) < float32(1e-10) else under
            v = over / (under + rate * over)
            t[i] = v * rate * residual[i] + math.sqrt(v) * noise[i]
    else:
        for i in range(y.shape[0]):
            a = abs(t[i])  # in units of 1 / (eta c)
            q = half * z[i] * z[i] * inverse
            large = a + q + math.sqrt(q * (two * a + q)) + tiny
            larger = unit[i] * (large + a) < large
            over = inverse * (large if larger else a * a)
            under = one if larger else large
            v = over / (under + rate * over)
            t[i] = v * rate * residual[i] + math.sqrt(v) * noise[i]
    total = 0.0
    for i in range(y.shape[0]):
        total += x[i] * (y[i] - float64(t[i]))
    return total


@jit(fastmath=True)
def _run_chain(counter, t, beta, columns, y, cov, root, start, eta, c, published, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    p, n = columns.shape
    moment = np.empty(p)
    few, words = np.empty(p + (p + 1) // 2, np.uint64), np.empty(BLOCK + BLOCK // 2, np.uint64)
    small = np.empty((3, p), np.float32)
    normal, spare, unused = small[0], small[1], small[2]
    # separate arrays: rows of one lie a power of two apart, and fight for the cache
    z, noise = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    unit, residual = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    partial = np.empty(BLOCK)
    for step in range(out.shape[0]):
        for j in range(p):
            moment[j] = start[j]
        for first in range(0, n, BLOCK):
            m = min(BLOCK, n - first)
            counter = fill_noise(counter, words[: m + (m + 1) // 2], z[:m], noise[:m], unit[:m])
            here, shift = y[first : first + m], t[first : first + m]
            base = here
            if p > 1:
                base = partial[:m]
                for i in range(m):
                    base[i] = here[i]
                for j in range(1, p):
                    x = columns[j, first : first + m]
                    for i in range(m):
                        base[i] -= x[i] * beta[j]
            x = columns[0, first : first + m]
            moment[0] += eta * update_latents(
                base, x, beta[0], here, shift, z, noise, unit, residual, eta, c, published
            )
            for j in range(1, p):
                x = columns[j, first : first + m]
                total = 0.0
                for i in range(m):
                    total += x[i] * (here[i] - float64(shift[i]))
                moment[j] += eta * total
        counter = fill_noise(counter, few, normal, spare, unused)
        for j in range(p):
            total = 0.0
            for k in range(p):
                total += cov[j, k] * moment[k] + root[j, k] * float64(normal[k])
            beta[j] = total
        for j in range(p):
            out[step, j] = beta[j]
    return counter


@jit(parallel=True, fastmath=True)
def _run_chains(counters, t, beta, data, columns, y, cov, root, start, eta, c, published, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    for k in prange(counters.shape[0]):
        x, response = columns[data[k]], y[data[k]]
        counters[k] = _run_chain(
            counters[k],
            t[k],
            beta[k],
            x,
            response,
            cov[k],
            root[k],
            start[k],
            eta[k],
            c,
            published,
            out[k],
        )


def gibbs_chains(
    X: Array,
    y: Array,
    data: NDArray[np.intp],
    eta: Array,
    c: float,
    precision: Array,
    shift: Array,
    *,
    draws: int,
    burn_in: int,
    seed: np.random.SeedSequence,
    rule: str = "appendix",
) -> Array:
    """Return the draws (K, draws, p) of K chains over D data sets, X (D, n, p) whitened, y (D, n).

    Each chain has its data set in `data` (K,), its `eta` (K,), prior `precision` P (K, p, p) and
    `shift` P mu (K, p), and a stream of its own: results do not depend on the number of threads.
    """
    as_choice(rule, "rule", RULES)
    if draws < 1 or burn_in < 0:
        raise InputError("draws", f"{draws} after {burn_in} of burn-in", "keep at least one")
    X, y = as_array(X, "X", ndim=3), as_array(y, "y", ndim=2)
    if (largest := max(np.abs(X).max(), np.abs(y).max())) > LARGEST:
        raise InputError("y", f"reaches {largest:.1g}", "rescale the data to units of its spread")
    gram = np.einsum("dni,dnj->dij", X, X)
    information = eta[:, None, None] * gram[data] + precision
    cov = linalg.inv(information, "precision of the coefficients")
    root = linalg.cholesky(cov, "precision of the coefficients")
    (chains,), (n, p) = data.shape, X.shape[1:]
    out, counters = np.empty((chains, draws, p)), seed.generate_state(chains, np.uint64)
    state = counters, np.zeros((chains, n), np.float32), np.zeros((chains, p))
    columns, y, shift, eta = map(np.ascontiguousarray, (X.transpose(0, 2, 1), y, shift, eta))
    fixed = data, columns, y, cov, root, shift, eta, float(c), rule == "published"
    size = max(1, UPDATES // (chains * n))
    with counted(burn_in + draws, "Gibbs sampling") as step:
        for first in range(-burn_in, draws, size):  # compiled code hears of no interrupt
            many = min(size, draws - first)
            block = np.empty((chains, many, p))
            _run_chains(*state, *fixed, block)
            out[:, max(first, 0) : max(first + many, 0)] = block[:, max(-first, 0) :]
            step(many)
    return out

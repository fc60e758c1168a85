"""Inner loops compiled by numba: chains; imported only where they are used."""

from __future__ import annotations

import math

import numpy as np

from etafree.foundation.compiler import jit

#: Sweeps after which a gradient that was kept up to date is computed afresh.
AFRESH = 64


@jit()
def _factor(lower, precision, inverse, codes):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill in the Cholesky factor of the precision with the groups' own added to its diagonal."""
    for j in range(len(lower)):
        for k in range(j + 1):
            total = precision[j, k]
            if j == k:
                total += inverse[codes[j]]
            for m in range(k):
                total -= lower[j, m] * lower[k, m]
            lower[j, k] = math.sqrt(total) if j == k else total / lower[k, k]


@jit()
def _mix(inverse, norms, theta, codes, rates, chi, unit):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill in the groups' own precisions, drawn given theta.

    The two roots of the inverse Gaussian's quadratic multiply to the norm's square.
    """
    norms[:] = 0.0
    for j in range(len(theta)):
        norms[codes[j]] += theta[j] * theta[j]
    for g in range(len(rates)):
        inverse[g] = 0.0
        if rates[g] > 0.0:
            a = math.sqrt(norms[g])
            q = 0.5 * chi[g] * chi[g] / rates[g]
            large = a + q + math.sqrt(q * (2.0 * a + q)) + 1e-300
            larger = unit[g] * (large + a) < large
            omega = large / rates[g] if larger else a * (a / large) / rates[g]
            inverse[g] = 1.0 / max(omega, 1e-20 / (rates[g] * rates[g]))


@jit()
def kinked_sweeps(theta, precision, linear, codes, rates, normals, chi, unit, thin, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Run the Gibbs chain of a normal law times kinks, keeping every `thin`-th state of theta.

    Theta is drawn as a whole.
    """
    p, many = theta.shape[0], rates.shape[0]
    lower, inverse, norms, work = np.empty((p, p)), np.empty(many), np.empty(many), np.empty(p)
    for step in range(normals.shape[0]):
        _mix(inverse, norms, theta, codes, rates, chi[step], unit[step])
        _factor(lower, precision, inverse, codes)
        for j in range(p):
            total = linear[j]
            for m in range(j):
                total -= lower[j, m] * work[m]
            work[j] = total / lower[j, j]
        for j in range(p - 1, -1, -1):
            total = work[j] + normals[step, j]
            for m in range(j + 1, p):
                total -= lower[m, j] * theta[m]
            theta[j] = total / lower[j, j]
        if (step + 1) % thin == 0:
            for j in range(p):
                out[(step + 1) // thin - 1, j] = theta[j]


@jit()
def _log_tail(z):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the log of the standard normal law's upper tail over its density, up to a constant."""
    if z < 5.0:
        return math.log(math.erfc(z / math.sqrt(2.0))) + 0.5 * z * z
    fraction = z
    for k in range(12, 0, -1):
        fraction = z + k / fraction
    return 0.5 * math.log(2.0 / math.pi) - math.log(fraction)


@jit()
def _tail_excess(z, rng):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return by how much a standard normal number above z exceeds it (Robert 1995)."""
    if z <= 0.0:
        while True:
            u = rng.standard_normal()
            if u > z:
                return u - z
    rate = 0.5 * (z + math.sqrt(z * z + 4.0))
    while True:
        excess = rng.standard_exponential() / rate
        if 2.0 * rng.standard_exponential() > (z + excess - rate) ** 2:
            return excess


@jit()
def _with_kink(bend, pull, rate, rng):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a draw of the law exp(-bend x^2 / 2 + pull x - rate |x|): two tails of normal laws."""
    root = math.sqrt(bend)
    above, below = (rate - pull) / root, (rate + pull) / root
    odds = _log_tail(above) - _log_tail(below)
    likelier = rng.random() * (1.0 + math.exp(-abs(odds))) < 1.0
    right = (odds > 0.0) == likelier
    return _tail_excess(above, rng) / root if right else -_tail_excess(below, rng) / root


@jit(fastmath={"contract"})
def kinked_coordinates(  # type: ignore[no-untyped-def]  # pragma: no cover
    theta, precision, linear, codes, rates, alone, order, normals, chi, unit, rng, thin, out
):
    """Run the same chain with theta drawn coordinate by coordinate, which costs p squared.

    Those in `order` are drawn, one after the other. A coordinate that is `alone` in its group is
    drawn without a scale: its law given the others has two pieces, and draws forget the past
    faster.
    """
    p, many = theta.shape[0], rates.shape[0]
    inverse, norms, pull = np.empty(many), np.empty(many), np.empty(p)
    for step in range(normals.shape[0]):
        if step % AFRESH == 0:  # before rounding adds up
            pull[:] = linear
            for j in range(p):
                x = theta[j]
                for k in range(p):
                    pull[k] -= x * precision[j, k]
        _mix(inverse, norms, theta, codes, rates, chi[step], unit[step])
        for j in order:
            own = pull[j] + precision[j, j] * theta[j]
            if alone[j] and precision[j, j] > 0.0:
                x = _with_kink(precision[j, j], own, rates[codes[j]], rng)
            else:
                bend = precision[j, j] + inverse[codes[j]]
                x = (own + math.sqrt(bend) * normals[step, j]) / bend
            move = x - theta[j]
            theta[j] = x
            for k in range(p):
                pull[k] -= move * precision[j, k]
        if (step + 1) % thin == 0:
            for j in range(p):
                out[(step + 1) // thin - 1, j] = theta[j]


@jit()
def _kinks(theta, step, direction, terms, ranks, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a polyhedral penalty at theta plus step times direction; `ranks` keeps their order."""
    members, ranked = terms.members, terms.ranked
    total, before = 0.0, 0.0
    for i in range(len(members)):
        x = theta[members[i]] + step * direction[members[i]]
        if terms.bounded and x < 0.0:
            return math.inf
        total += terms.absolute * abs(x)
        if i > 0:
            total += terms.jump * abs(x - before)
        before = x
        size[i] = abs(x)
    for i in range(len(ranked)):
        r, j = ranks[i], i - 1
        while j >= 0 and size[ranks[j]] < size[r]:
            ranks[j + 1] = ranks[j]
            j -= 1
        ranks[j + 1] = r
    for i in range(len(ranked)):
        total += ranked[i] * size[ranks[i]]
    return total


@jit()
def _slice(theta, d, slope, bend, terms, here, ranks, size, rng):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a step along direction d by a slice, and the kinks there; NaN if it has no end.

    A slice of a log-concave law on a line is an interval: doubling finds one around it, and a
    uniform point of that, shrunk towards the current one until it lies inside, is uniform on it.
    """
    level = -here - rng.standard_exponential()
    low = -3.0 * rng.random()  # directions are about one standard deviation long
    high = low + 3.0
    for side in range(2):
        for doubling in range(201):
            t = high if side else low
            if not slope * t - 0.5 * bend * t * t - _kinks(theta, t, d, terms, ranks, size) > level:
                break
            if doubling == 200:
                return math.nan, here
            if side:
                high *= 2.0
            else:
                low *= 2.0
    for _ in range(200):
        t = low + (high - low) * rng.random()
        kinks = _kinks(theta, t, d, terms, ranks, size)
        if slope * t - 0.5 * bend * t * t - kinks > level:
            return t, kinks
        if t < 0.0:
            low = t
        else:
            high = t
    return 0.0, here


@jit()
def line_sweeps(theta, precision, linear, terms, directions, turned, bends, rng, thin, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Run slices along directions d (m, p) of a normal law times a polyhedral penalty's kinks.

    Keeps every `thin`-th state of theta; returns whether every slice had an end. `turned` has the
    precision times d, `bends` d times that.
    """
    m, p = directions.shape
    q = len(terms.members)
    ranks, size, pull = np.arange(q), np.empty(q), np.empty(p)
    for step in range(out.shape[0] * thin):
        if step % AFRESH == 0:  # before rounding adds up
            for j in range(p):
                pull[j] = linear[j]
                for k in range(p):
                    pull[j] -= precision[j, k] * theta[k]
        here = _kinks(theta, 0.0, directions[0], terms, ranks, size)
        for k in range(m):
            slope = 0.0
            for j in range(p):
                slope += directions[k, j] * pull[j]
            t, here = _slice(theta, directions[k], slope, bends[k], terms, here, ranks, size, rng)
            if math.isnan(t):
                return False
            for j in range(p):
                theta[j] += t * directions[k, j]
                pull[j] -= t * turned[k, j]
        if (step + 1) % thin == 0:
            for j in range(p):
                out[(step + 1) // thin - 1, j] = theta[j]
    return True

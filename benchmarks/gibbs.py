"""Compare the Gibbs sampler with its own random numbers and with a plain Python loop."""

from __future__ import annotations

import numba
import numpy as np

from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios
from etafree.samplers.gibbs import BLOCK, fill_noise, gibbs_chains

__all__ = ["reference_gibbs", "run"]

GOAL_RANDOM = 2.0
GOAL_LOOP = 1000.0
ETA, THRESHOLD, STRENGTH = 1.0, 1.0, 0.5


def reference_gibbs(
    x: np.ndarray,
    y: np.ndarray,
    eta: float,
    c: float,
    precision: float,
    steps: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return draws (steps,) of the appendix's three updates, one observation at a time."""
    from scipy.stats import invgauss

    beta, t, out = 0.0, np.zeros(len(y)), np.empty(steps)
    for step in range(steps):
        for i in range(len(y)):
            shape = (eta * c) ** 2
            mean = eta * c / max(abs(t[i]), 1e-12)
            u = invgauss.rvs(mean / shape, scale=shape, random_state=rng)
            v = 1 / (eta + u)
            t[i] = rng.normal(v * eta * (y[i] - x[i] * beta), np.sqrt(v))
        information = eta * x @ x + precision
        beta = rng.normal(eta * x @ (y - t) / information, information**-0.5)
        out[step] = beta
    return out


@numba.njit(error_model="numpy", fastmath=True)
def _random_numbers(key, n, steps):
    """Draw what a chain draws, block by block, and use it for nothing but a sum."""
    words = np.empty(BLOCK + BLOCK // 2, np.uint64)
    z, noise, unit = (
        np.empty(BLOCK, np.float32),
        np.empty(BLOCK, np.float32),
        np.empty(BLOCK, np.float32),
    )
    counter, total = key, 0.0
    for _ in range(steps):
        for first in range(0, n, BLOCK):
            m = min(BLOCK, n - first)
            counter = fill_noise(counter, words[: m + (m + 1) // 2], z[:m], noise[:m], unit[:m])
            total += z[0] + noise[0] + unit[0]
    return total


def _chains(n: int, p: int, chains: int, steps: int) -> object:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1, n, p))
    y = X.sum(axis=2) + rng.standard_t(2, (1, n))
    precision = np.tile(STRENGTH * n * np.eye(p), (chains, 1, 1))

    def sample() -> np.ndarray:
        return gibbs_chains(
            X,
            y,
            np.zeros(chains, np.intp),
            np.full(chains, ETA),
            THRESHOLD,
            precision,
            np.zeros((chains, p)),
            draws=steps,
            burn_in=0,
            seed=np.random.SeedSequence(2),
        )

    sample()
    return sample


def run(quick: bool) -> list[Row]:
    """Return cost per latent update against random numbers and a loop, and how cost grows."""
    numba.set_num_threads(1)
    n, chains, steps = 500, (20 if quick else 200), 1000
    sample = _chains(n, 1, chains, steps)
    _random_numbers(np.uint64(1), n, 1)

    def random_numbers() -> None:
        for k in range(chains):
            _random_numbers(np.uint64(k + 1), n, steps)

    announce(f"{chains} chains of {steps} steps, n = {n}, one thread")
    ratios = interleaved_ratios(
        "gibbs, random numbers", lambda: cpu_seconds(sample), lambda: cpu_seconds(random_numbers)
    )
    rows = [Row("gibbs over its random numbers", GOAL_RANDOM, False, ratios)]
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal(n), rng.standard_t(2, n)
    sweeps = 2 if quick else 5

    def per_latent_loop() -> float:
        loop = cpu_seconds(lambda: reference_gibbs(x, y, ETA, THRESHOLD, STRENGTH * n, sweeps, rng))
        return loop / sweeps

    ratios = interleaved_ratios(
        "gibbs, plain loop", per_latent_loop, lambda: cpu_seconds(sample) / (chains * steps)
    )
    rows.append(Row("plain loop over gibbs", GOAL_LOOP, True, ratios))
    rows += _growth(quick)
    return rows


def _growth(quick: bool) -> list[Row]:
    """Return the exponents with which CPU time grows in n and in p."""
    sizes = (500, 5_000) if quick else (500, 5_000, 50_000)
    work = 2_000_000 if quick else 20_000_000
    rows = []
    for name, grid in (("n", [(n, 1) for n in sizes]), ("p", [(2_000, p) for p in (1, 5, 20)])):
        calls = [(_chains(n, p, 1, max(2, work // n)), max(2, work // n)) for n, p in grid]
        values = []
        for _ in range(5):
            seconds = [cpu_seconds(call) / steps for call, steps in calls]
            scale = [n if name == "n" else p for n, p in grid]
            values.append(float(np.polyfit(np.log(scale), np.log(seconds), 1)[0]))
        announce(f"gibbs grows as {name} ** {np.median(values):.2f}")
        rows.append(
            Row(
                f"gibbs, growth in {name}",
                1.05,
                False,
                tuple(values),
                unit="exponent",
                note=", ".join(
                    f"{s:.2e} s per step at {name} = {v}"
                    for s, v in zip(seconds, scale, strict=True)
                ),
            )
        )
    return rows

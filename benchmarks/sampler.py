"""Compare effective draws per CPU second with those of a warm, whitened NUTS."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base.array import array_stats

import etafree as ef
from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios
from etafree.samplers.variational import Normal, normal_approximation

__all__ = ["run"]

GOAL = 20.0
ROWS = 500
TUNING = 1.345
ETAS = (0.01, 1.0, 100.0)
COLUMNS = (5, 20)
#: Calls of etafree's sampler in one repetition: one call is too short to time well next to NUTS.
CALLS = 10


def run(quick: bool) -> list[Row]:
    """Return for every size and learning rate the ratio of effective draws per CPU second."""
    jax.config.update("jax_enable_x64", True)
    draws, warm_up = (500, 200) if quick else (4000, 1000)
    return [
        _compare(p, eta, draws, warm_up)
        for p in (COLUMNS[:1] if quick else COLUMNS)
        for eta in ETAS
    ]


def _compare(p: int, eta: float, draws: int, warm_up: int) -> Row:
    name = f"sampler, p = {p}, eta = {eta:g}"
    posterior = _posterior(p, eta)
    normal = normal_approximation(posterior)
    nuts = _warm_nuts(posterior, normal, draws, warm_up)
    announce(f"{name}: n = {ROWS}, {draws} draws each, NUTS adapted and compiled")
    ours: list[ef.Draws] = []
    theirs: list[np.ndarray] = []

    def cost() -> float:
        seeds = range(len(ours), len(ours) + CALLS)
        seconds = cpu_seconds(lambda: ours.extend(ef.sample(posterior, draws, k) for k in seeds))
        return seconds / sum(one.ess for one in ours[-CALLS:])

    def cost_of_nuts() -> float:
        key = jax.random.key(10 + len(theirs))
        seconds = cpu_seconds(lambda: theirs.append(nuts(key)))
        return seconds / _effective_size(theirs[-1])

    cost()  # imports and caches, outside the timing
    ratios = interleaved_ratios(name, cost_of_nuts, cost)
    _check_same(normal, ours, theirs)
    share = np.mean([one.ess for one in ours]) / draws
    share_of_nuts = np.mean([_effective_size(one) for one in theirs]) / draws
    squares = np.mean([_effective_size((one - one.mean(axis=0)) ** 2) for one in theirs]) / draws
    note = (
        f"{' and '.join(sorted({one.sampler for one in ours}))}; effective share {share:.2f}, NUTS "
        f"{share_of_nuts:.2f} for means and {squares:.2f} for variances, where the ratio is "
        f"{median(ratios) * share_of_nuts / squares:.0f}"
    )
    return Row(name, GOAL, True, ratios, note=note)


def _posterior(p: int, eta: float) -> ef.GeneralizedPosterior:
    rng = np.random.default_rng(23)
    X = rng.standard_normal((ROWS, p))
    X[:, 0] = 1.0
    y = X @ np.linspace(-1.0, 1.0, p) + rng.standard_t(3, ROWS)
    criterion = ef.Criterion(ef.losses.Huber(TUNING), data=(X, y))
    return ef.GeneralizedPosterior(criterion, eta=eta)


def _warm_nuts(
    posterior: ef.GeneralizedPosterior, normal: Normal, draws: int, warm_up: int
) -> Callable[[jax.Array], np.ndarray]:
    """Return a compiled function from a random key to NUTS draws (draws, p).

    NUTS moves in z with theta = mean + lower z, where the posterior is close to standard normal:
    the same normal approximation that etafree's sampler starts from, given away for nothing, as
    are adaptation and compilation. The predictor is linear in z, so it costs one product with a
    matrix prepared beforehand.
    """
    total, eta = posterior.criterion.total, posterior.eta
    design = jnp.asarray(total.X @ normal.lower)
    residual = jnp.asarray(total.y - total.X @ normal.mean)

    def log_density(z: jax.Array) -> jax.Array:
        size = jnp.abs(residual - design @ z)
        inner = jnp.minimum(size, TUNING)
        return -eta * jnp.sum(inner * (size - 0.5 * inner))

    _check_density(log_density, posterior, normal)
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
    start = jnp.zeros(posterior.criterion.p)
    (state, parameters), _ = adaptation.run(jax.random.key(1), start, warm_up)
    step = blackjax.nuts(log_density, **parameters).step

    @jax.jit
    def chain(key: jax.Array, state: Any) -> jax.Array:
        def move(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, _ = step(key, state)
            return state, state.position

        return jax.lax.scan(move, state, jax.random.split(key, draws))[1]

    def sample(key: jax.Array) -> np.ndarray:
        z = np.asarray(chain(key, state).block_until_ready())
        return normal.mean + z @ normal.lower.T

    sample(jax.random.key(2))  # compiles
    return sample


def _effective_size(theta: np.ndarray) -> float:
    """Return the smallest bulk effective size over the parameters."""
    return float(np.min(array_stats.ess(theta[None], chain_axis=0, draw_axis=1)))


def _check_density(
    log_density: Callable[[jax.Array], jax.Array],
    posterior: ef.GeneralizedPosterior,
    normal: Normal,
) -> None:
    """Raise an error unless both sides have the same log density up to a constant."""
    z = np.random.default_rng(3).standard_normal((2, len(normal.mean)))
    values = posterior.log_density(normal.mean + z @ normal.lower.T)
    others = [float(log_density(jnp.asarray(point))) for point in z]
    if not np.isclose(values[1] - values[0], others[1] - others[0], rtol=1e-9, atol=1e-9):
        raise RuntimeError("the two log densities differ")


def _check_same(normal: Normal, ours: list[ef.Draws], theirs: list[np.ndarray]) -> None:
    """Raise an error unless both samplers agree on mean and spread, up to their own noise."""
    inverse = np.linalg.inv(normal.lower).T
    one = np.concatenate([draws.array for draws in ours]) @ inverse
    other = np.concatenate(theirs) @ inverse
    one_size = sum(draws.ess for draws in ours)
    other_size = sum(_effective_size(draws) for draws in theirs)
    noise = np.sqrt(1 / one_size + 1 / other_size)
    shift = float(np.max(np.abs(one.mean(axis=0) - other.mean(axis=0))))
    spread = float(np.max(np.abs(np.log(one.std(axis=0) / other.std(axis=0)))))
    if max(shift, spread) > 6 * noise + 0.02:
        raise RuntimeError(
            f"the samplers disagree: means by {shift:.3f} and log standard deviations by "
            f"{spread:.3f} standard deviations, noise is {noise:.3f}"
        )

"""Effective draws per CPU second of a logistic posterior with a flat prior, ten coefficients.

One chain each. Compilation is outside the clock; whatever a run needs each time is inside:
etafree's fit and normal approximation, the peers' adaptation of 500 steps before 1,000 draws. The
effective number is the smallest bulk effective size over the coefficients (etafree's own for its
independent draws). The numbers are means and standard deviations, compared by their Monte Carlo
errors. NUTS has antithetic chains, whose means are more precise than those of as many independent
draws and whose variances are less; the effective size of means counts, in its favour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import etafree as ef
from benchmarks.races.race import Numbers, Peer, Race, Side, size_of
from benchmarks.races.regression import COLUMNS, Rows
from benchmarks.timing import cpu_seconds

__all__ = ["QUICK_SIZES", "SIZES", "races"]

SIZES, QUICK_SIZES = (1_000, 10_000), (1_000,)
DRAWS, WARM_UP, OURS = 1_000, 500, 4_000
#: Monte Carlo errors between two means or spreads.
FAR = 4.5


class Sampler:
    """Draws from seeds; the cost is the CPU time of one effective draw.

    Parameters
    ----------
    sample : callable
        From a seed to draws (draw, p), their number for means and that for variances.
    """

    def __init__(self, sample: Callable[[int], tuple[Numbers, float, float]]) -> None:
        self.sample, self.seed = sample, 0
        self.cost()  # compiles
        self.seconds = cpu_seconds(self._draw)
        draws, size, square_size = self.drawn
        p = draws.shape[1]
        sizes = np.full(p, size), np.full(p, square_size)
        self.numbers = np.array([draws.mean(axis=0), draws.std(axis=0), *sizes])

    def _draw(self) -> None:
        self.seed += 1
        self.drawn = self.sample(self.seed)

    def cost(self) -> float:
        """Return CPU seconds per effective draw."""
        return cpu_seconds(self._draw) / self.drawn[1]


def errors_apart(ours: Numbers, theirs: Numbers) -> float:
    """Return the largest difference of means and of log spreads, in Monte Carlo errors."""
    (mean, spread, size, square), (mean_2, spread_2, size_2, square_2) = ours, theirs
    of_mean = (mean - mean_2) / spread / np.sqrt(1 / size + 1 / size_2)
    of_spread = np.log(spread / spread_2) / np.sqrt(0.5 / square + 0.5 / square_2)
    return float(np.max(np.abs([of_mean, of_spread])))


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield one race at every size."""
    for n in sizes:
        rows = Rows(n, "logit")
        peers = (
            Peer("nutpie", partial(_nutpie, rows), ("nutpie", "pymc")),
            Peer("blackjax NUTS", partial(_blackjax, rows), ("blackjax", "jax")),
            Peer("numpyro NUTS", partial(_numpyro, rows), ("numpyro", "jax")),
        )
        yield Race(
            "logistic posterior",
            size_of(n),
            partial(_ours, rows),
            peers,
            tolerance=FAR,
            compare=errors_apart,
            unit="effective draw",
        )


def _sizes(draws: Numbers) -> tuple[Numbers, float, float]:
    """Return draws with their smallest effective sizes for means and for variances."""
    from arviz_stats.base.array import array_stats

    def smallest(values: Numbers) -> float:
        return float(np.min(array_stats.ess(values[None], chain_axis=0, draw_axis=1)))

    return draws, smallest(draws), smallest((draws - draws.mean(axis=0)) ** 2)


def _ours(rows: Rows) -> Side:
    def sample(seed: int) -> tuple[Numbers, float, float]:
        draws = ef.sample(ef.GeneralizedPosterior(rows.criterion(), eta=1.0), OURS, seed)
        return draws.array, draws.ess, draws.ess

    return Sampler(sample)


def _nutpie(rows: Rows) -> Side:
    import nutpie
    import pymc as pm

    with pm.Model() as model:
        theta = pm.Flat("theta", shape=COLUMNS)
        pm.Bernoulli("y", logit_p=pm.math.dot(rows.X, theta), observed=rows.y)
    compiled = nutpie.compile_pymc_model(model)

    def sample(seed: int) -> tuple[Numbers, float, float]:
        trace = nutpie.sample(
            compiled, draws=DRAWS, tune=WARM_UP, chains=1, cores=1, seed=seed, progress_bar=False
        )
        return _sizes(np.asarray(trace.posterior["theta"])[0])

    return Sampler(sample)


def _log_density(rows: Rows) -> Callable[[Any], Any]:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    X, y = jnp.asarray(rows.X), jnp.asarray(rows.y)

    def log_density(theta: Any) -> Any:
        u = X @ theta
        return jnp.sum(y * u - jnp.logaddexp(0.0, u))

    return log_density


def _blackjax(rows: Rows) -> Side:
    import blackjax
    import jax
    import jax.numpy as jnp

    log_density = _log_density(rows)
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)

    @jax.jit
    def chain(key: Any) -> Any:
        first, second = jax.random.split(key)
        (state, parameters), _ = adaptation.run(first, jnp.zeros(COLUMNS), WARM_UP)
        step = blackjax.nuts(log_density, **parameters).step

        def move(state: Any, key: Any) -> tuple[Any, Any]:
            state, _ = step(key, state)
            return state, state.position

        return jax.lax.scan(move, state, jax.random.split(second, DRAWS))[1]

    return Sampler(lambda seed: _sizes(np.asarray(chain(jax.random.key(seed)))))


def _numpyro(rows: Rows) -> Side:
    import jax
    import jax.numpy as jnp
    from numpyro.infer.hmc import hmc
    from numpyro.util import fori_collect

    log_density = _log_density(rows)
    start, move = hmc(lambda theta: -log_density(theta), algo="NUTS")

    @jax.jit  # MCMC.run() would compile again at every call
    def chain(key: Any) -> Any:
        state = start(jnp.zeros(COLUMNS), num_warmup=WARM_UP, rng_key=key)
        end = WARM_UP + DRAWS
        return fori_collect(WARM_UP, end, move, state, lambda s: s.z, progbar=False)

    return Sampler(lambda seed: _sizes(np.asarray(chain(jax.random.key(seed)))))

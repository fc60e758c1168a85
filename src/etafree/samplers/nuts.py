"""The no-U-turn sampler in the same whitening: for posteriors that are far from normal."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import row_blocks
from etafree.data.pytrees import double_precision
from etafree.draws import Draws
from etafree.errors import CalibrationWarning, ConvergenceError, MissingExtraError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.foundation.terminal import counted
from etafree.foundation.threads import own_settings
from etafree.penalties import Penalty, Ridge
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.variational import Normal
from etafree.totals.linear import has_design

CHAINS = 4
#: Iterations of the warm-up, and whether the metric is learnt from them at their end.
WINDOWS = ((40, False), (60, True), (150, True), (50, False))
TARGET = 0.8
#: Iterations per chain below which R-hat means nothing; of shorter requests the last are kept.
SHORTEST = 150
R_HAT_LIMIT = 1.1
DIVERGENT_LIMIT = 0.01
#: How far below its peak, per parameter, the log density may be where a chain starts.
DEPTH = 1000.0
#: Iterations that one call of the compiled program can do, and seconds that it should take.
ROWS, PAUSE = 256, 0.2

#: Values (D,) and gradients (D, p) at points (D, p).
Energy = Callable[[Array], tuple[Array, Array]]
#: What compiled programs ask for, by number, so that one program serves all posteriors of a size,
#: and the errors that came up.
_JOBS: dict[int, tuple[Energy, list[BaseException]]] = {}
_NUMBERS = itertools.count()


class _Target(NamedTuple):
    """Whitening and what the density is made of, besides the total: eta, a ridge, a job to ask."""

    mean: Array
    lower: Array
    eta: np.float64
    centre: Array
    precision: Array
    job: np.float64


@own_settings  # which JAX's own threads would wait for
def nuts_draws(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return draws of four chains of the no-U-turn sampler that learn one step size and metric.

    A total with ``log_density_parts`` is differentiated and compiled by JAX; any other is asked for
    values and gradients. Kinks do no harm. The effective size is the smallest over means *and*
    variances: these chains know means better than variances.

    References
    ----------
    Hoffman, M. D. and Gelman, A. (2014). The no-U-turn sampler: adaptively setting path lengths in
    Hamiltonian Monte Carlo. J. Mach. Learn. Res. 15, 1593-1623. Cabezas, A., Corenflos, A., Lao,
    J. and Louf, R. (2024). BlackJAX: composable Bayesian inference in JAX. arXiv:2402.10797.
    """
    try:
        import blackjax  # type: ignore[import-untyped,unused-ignore]  # noqa: F401
        import jax  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("jax", "the NUTS sampler") from error
    from arviz_stats.base.array import array_stats

    length = -(-draws // CHAINS)
    start = _starts(posterior, normal, rng)
    with double_precision():
        z, info = _run(posterior, normal, start, max(length, SHORTEST), int(rng.integers(2**62)))
    out = normal.mean + z[-length:].transpose(1, 0, 2) @ normal.lower.T
    both = np.concatenate([out, (out - out.mean(axis=(0, 1))) ** 2], axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        ess = float(np.min(array_stats.ess(both, chain_axis=0, draw_axis=1, method="bulk")))
        r_hat = float(np.max(array_stats.rhat(z, chain_axis=1, draw_axis=0)))
    if not r_hat < R_HAT_LIMIT:
        raise ConvergenceError(
            f"the chains of NUTS disagree at eta = {posterior.eta:g} (R-hat {r_hat:.2f}): the "
            "posterior has several modes or is far from normal there; use a larger eta, add a "
            "penalty or ask for more draws"
        )
    share = info["divergences"] / (len(z) * CHAINS)
    if share > DIVERGENT_LIMIT:
        warnings.warn(
            f"{share:.0%} of NUTS's transitions at eta = {posterior.eta:g} diverge: draws may be "
            "missing where the posterior bends most; use a larger eta or add a penalty",
            CalibrationWarning,
            stacklevel=2,
        )
    info |= {"ess": ess, "r_hat": r_hat}
    return Draws(out, posterior.criterion.names, posterior.eta, "nuts", info)


def _starts(posterior: GeneralizedPosterior, normal: Normal, rng: np.random.Generator) -> Array:
    """Return whitened points (chain, p), spread twice as far, those too far out moved inwards."""
    p = posterior.criterion.p
    mode = linalg.solve(normal.lower, normal.mode - normal.mean)
    floor = float(posterior.log_density(normal.mode)) - DEPTH * p
    z = 2.0 * rng.standard_normal((CHAINS, p))
    for _ in range(8):
        with np.errstate(all="ignore"):
            lost = ~(posterior.log_density(normal.mean + z @ normal.lower.T) > floor)
        if not lost.any():
            return z
        z[lost] = 0.5 * (z[lost] + mode)
    z[lost] = mode
    return z


def _run(
    posterior: GeneralizedPosterior, normal: Normal, z: Array, length: int, seed: int
) -> tuple[Array, dict[str, float]]:
    """Warm up and sample; return whitened draws (length, chain, p) and what happened.

    How many iterations go into one call of the program depends on the time they take; the draws do
    not depend on it.
    """
    import blackjax
    import jax

    def begin(step_size: float) -> Any:  # numbers of one kind, or the program is compiled twice
        start = blackjax.adaptation.step_size.dual_averaging_adaptation(TARGET)[0]
        return jax.tree.map(np.float64, start(step_size))

    p, energy = posterior.criterion.p, posterior.energy
    native = hasattr(energy.total, "log_density_parts")
    weight, centre, precision = energy.strength * energy.size, np.zeros(p), np.zeros((p, p))
    if isinstance(energy.penalty, Ridge):
        centre, precision, weight = energy.penalty.mu, weight * energy.penalty.Q, 0.0
    asks = not native or weight != 0.0
    advance = _program(energy.total if native else None, asks)
    key = jax.random.key(seed, impl="threefry2x32")
    chains = blackjax.mcmc.hmc.HMCState(z, np.zeros(CHAINS), np.zeros((CHAINS, p)))
    averaging, metric, done, gradients, pace = begin(p**-0.25), np.ones(p), 0, 0, 1
    plan = [(count, True, learn) for count, learn in WINDOWS] + [(length, False, False)]
    errors: list[BaseException] = []
    job = next(_NUMBERS)
    target = _Target(
        normal.mean, normal.lower, np.float64(posterior.eta), centre, precision, np.float64(job)
    )
    _JOBS[job] = (_asked(energy.total, native, weight, energy.penalty), errors)
    with contextlib.ExitStack() as stack:
        stack.callback(_JOBS.pop, job)
        show = stack.enter_context(counted(sum(stage[0] for stage in plan), "nuts"))
        for count, adapting, learn in plan:
            made: list[list[Array]] = []
            left = count
            while left:
                size, clock = min(left, pace), time.monotonic()
                state = (chains, averaging, metric, adapting)
                span = (np.int64(done), np.int64(size))
                chains, averaging, found = advance(state, key, span, target)
                made.append([np.asarray(record)[:size] for record in found])
                if errors:
                    raise errors[0]
                quick = time.monotonic() - clock < PAUSE
                pace = min(ROWS, 2 * pace) if quick else max(1, pace // 2)
                done, left = done + size, left - size
                show(size)
            points, steps, diverged, accepted = (np.concatenate(m) for m in zip(*made, strict=True))
            gradients += int(steps.sum())
            step_size = float(np.exp(averaging.log_step_size_avg))
            if learn:  # shrunk towards the whitening's own variance as if by five draws
                some, variance = CHAINS * count, points.reshape(-1, p).var(axis=0)
                metric = (some * variance + 5.0) / (some + 5.0)
                averaging = begin(step_size)
    return points, {
        "divergences": int(diverged.sum()),
        "step_size": step_size,
        "acceptance": float(accepted.mean()),
        "gradients": gradients,
    }


@functools.lru_cache(maxsize=8)
def _program(total: Any, asks: bool) -> Any:
    """Return iterations of all chains, compiled at their first use.

    That is once per number of parameters, or once per total where JAX differentiates the total:
    the last eight of these are kept.
    """
    import blackjax
    import jax
    import jax.numpy as jnp

    kernel = blackjax.nuts.build_kernel()
    learn = blackjax.adaptation.step_size.dual_averaging_adaptation(TARGET)[1]
    native = None if total is None else total.log_density_parts()

    def ask(theta: Any, job: Any) -> tuple[Any, Any]:
        # As bits: JAX makes float32 of float64 in threads that do not know of our context.
        asked = jax.lax.bitcast_convert_type(jnp.append(theta, job), jnp.uint32)
        bits = jax.pure_callback(_answer, asked, asked, vmap_method="expand_dims")
        both = jax.lax.bitcast_convert_type(bits, jnp.float64)
        return both[-1], both[:-1]

    rest = jax.custom_vjp(lambda theta, job: ask(theta, job)[0])
    rest.defvjp(ask, lambda slope, scale: (scale * slope, None))

    def log_density(z: Any, target: _Target) -> Any:
        theta = target.mean + target.lower @ z
        away = theta - target.centre
        energy = 0.5 * away @ target.precision @ away
        if native is not None:
            energy += native(theta)
        if asks:
            energy += rest(theta, target.job)
        return -target.eta * energy

    def advance(state: Any, key: Any, span: Any, target: _Target) -> Any:
        first, count = span
        chains, averaging, metric, adapting = state
        density = functools.partial(log_density, target=target)

        def step(i: Any, carry: Any) -> Any:
            chains, averaging, records = carry
            size = jnp.where(adapting, averaging.log_step_size, averaging.log_step_size_avg)
            keys = jax.random.split(jax.random.fold_in(key, first + i), CHAINS)
            move: Any = lambda key, chain: kernel(key, chain, density, jnp.exp(size), metric)  # noqa: E731
            chains, info = jax.vmap(move)(keys, chains)
            learnt = learn(averaging, info.acceptance_rate.mean())
            averaging = jax.tree.map(lambda a, b: jnp.where(adapting, a, b), learnt, averaging)
            rows = (
                chains.position,
                info.num_integration_steps,
                info.is_divergent,
                info.acceptance_rate,
            )
            return chains, averaging, jax.tree.map(lambda r, row: r.at[i].set(row), records, rows)

        z = chains.position
        start = jax.vmap(lambda point: blackjax.nuts.init(point, density))
        chains = jax.lax.cond(first == 0, start, lambda _: chains, z)
        kinds = (jnp.int64, jnp.bool, jnp.float64)
        records = (jnp.zeros((ROWS, *z.shape)), *(jnp.zeros((ROWS, CHAINS), k) for k in kinds))
        return jax.lax.fori_loop(0, count, step, (chains, averaging, records))

    return jax.jit(advance)


def _answer(bits: object) -> NDArray[np.uint32]:
    """Give a compiled program the gradients and values at its points, all as bits."""
    points = np.asarray(bits).view(np.float64)[..., 0]
    rows = np.atleast_2d(points)
    energy, errors = _JOBS[int(rows[0, -1])]
    out = np.full(rows.shape, np.nan)
    good = np.isfinite(rows).all(axis=1)  # chains that wait for others may go anywhere
    try:
        with np.errstate(all="ignore"):
            out[good, -1], out[good, :-1] = energy(rows[good, :-1])
    except BaseException as error:  # raised again where the program was called
        errors.append(error)
    return out.reshape(points.shape)[..., None].view(np.uint32)


def _asked(total: Any, native: bool, weight: float, penalty: Penalty) -> Energy:
    """Return the total, unless JAX has it, plus the weighted penalty."""

    def linear(thetas: Array) -> tuple[Array, Array]:
        values, slopes = np.zeros(len(thetas)), np.zeros(thetas.shape)
        for rows in row_blocks(total.n, max(total.p, len(thetas))):
            X, y = total.X[rows], total.y[rows]
            u = thetas @ X.T
            if total.offset is not None:
                u += total.offset[rows]
            weights = None if total.weights is None else total.weights[rows]
            slope = total.loss.first(u, y)
            if weights is not None:
                slope *= weights
                slope[:, weights == 0] = 0.0
            slopes += slope @ X
            values += total.loss.sums(u, y, weights)  # which overwrites u
        return values, slopes

    def pointwise(thetas: Array) -> tuple[Array, Array]:
        if native:
            return np.zeros(len(thetas)), np.zeros(thetas.shape)
        one = getattr(total, "value_and_gradient", total.derivatives)
        found = [one(theta) for theta in thetas]
        return np.array([f[0] for f in found]), np.array([f[1] for f in found])

    loss = linear if has_design(total) and not native else pointwise

    def energy(thetas: Array) -> tuple[Array, Array]:
        values, slopes = loss(thetas)
        if weight != 0.0 and len(thetas):
            values += weight * penalty.value(thetas)
            slopes += weight * np.array([penalty.gradient(theta) for theta in thetas])
        return values, slopes

    return energy

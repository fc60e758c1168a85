r"""The no-U-turn sampler in the same whitening: for posteriors that are far from normal.

Chains move in z with :math:`\theta = m + Lz`, where the log density, taken relative to its value at
the mode, is of order p. What JAX cannot differentiate it asks of numpy, in single precision: JAX
answers in threads of its own, for which our context of double precision does not hold. Chains then
draw from :math:`\exp f(\mathrm{round}(z))`, which is off by a relative 1e-7, and from that exactly:
leapfrog steps along any field are reversible and keep volumes.

The warm-up is that of ``blackjax.window_adaptation`` (its schedule, dual averaging and variances),
made of its parts because all chains learn one step size and metric together, in one compiled
program with the sampling, and stop between blocks: ``run`` adapts one chain, in one piece. Against
four such runs the first call takes 0.5 to 0.8 of the CPU time; effective draws cost the same.
"""

from __future__ import annotations

import functools
import itertools
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from etafree.data.pytrees import double_precision
from etafree.draws import Draws
from etafree.errors import CalibrationWarning, ConvergenceError, InputError, MissingExtraError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.foundation.terminal import counted
from etafree.foundation.threads import own_settings
from etafree.penalties import Penalty, Ridge
from etafree.posterior import GeneralizedPosterior
from etafree.samplers.variational import Normal
from etafree.totals.base import Total
from etafree.totals.linear import LinearTotal, has_design, row_blocks

if TYPE_CHECKING:
    from jax import Array as JaxArray

CHAINS = 4
#: Iterations of the warm-up, and of one call of the compiled program.
WARM_UP, BLOCK = 300, 50
TARGET = 0.8
#: Iterations per chain below which R-hat means nothing; of shorter requests the last are kept.
SHORTEST = 150
R_HAT_LIMIT = 1.1
DIVERGENT_LIMIT = 0.01
#: How far below its peak, per parameter, the log density may be where a chain starts.
DEPTH = 1000.0

#: An iteration that learns nothing; blackjax's stages are 0, the step size, and 1, the metric too.
SAMPLING = 2
T = TypeVar("T")
#: What compiled programs return.
Results = tuple[Any, ...]
#: Values (D,) and gradients (D, p) at points (D, p).
Energy = Callable[[Array], tuple[Array, Array]]


class _State(NamedTuple):
    """Where the chains are, and what they have learnt together: blackjax's own states."""

    chains: Any
    step_size: Any
    metric: Any


class _Program(NamedTuple):
    """The state at points (chain, p), and a block of iterations."""

    start: Callable[..., _State]
    run: Callable[..., Results]


class _Job(NamedTuple):
    """What a running program asks for, at whitened points, and the errors that came up."""

    energy: Energy
    normal: Normal
    peak: float
    errors: list[BaseException]


#: Jobs by number, so that one compiled program serves all posteriors of a size.
_JOBS: dict[int, _Job] = {}
_NUMBERS = itertools.count()


class _Target(NamedTuple):
    """Whitening and what the density is made of, besides the total: eta, a ridge, a job to ask."""

    mean: Array
    lower: Array
    eta: np.float64
    centre: Array
    precision: Array
    job: np.int32


@own_settings  # which JAX's own threads would wait for
def nuts_draws(
    posterior: GeneralizedPosterior, normal: Normal, draws: int, rng: np.random.Generator
) -> Draws:
    """Return draws of four chains of the no-U-turn sampler that share a step size and a metric.

    A total with ``log_density_parts`` is differentiated and compiled by JAX; any other is asked for
    values and gradients. Kinks do no harm. The effective size is the smallest over means *and*
    variances: these chains know means better than variances.

    References
    ----------
    Hoffman, M. D. and Gelman, A. (2014). The no-U-turn sampler: adaptively setting path lengths in
    Hamiltonian Monte Carlo. J. Mach. Learn. Res. 15, 1593-1623. Cabezas, A., Corenflos, A., Lao,
    J. and Louf, R. (2024). BlackJAX: composable Bayesian inference in JAX. arXiv:2402.10797.
    """
    if posterior.limit is not None:
        raise InputError(
            "sampler", "'nuts' does not allow an adjusted posterior", "use sampler='auto'"
        )
    if posterior.bounds is not None:
        problem = "'nuts' does not allow a log prior with bounds"
        raise InputError("sampler", problem, "use sampler='auto'")
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
    """Warm up and sample; return whitened draws (length, chain, p) and what happened."""
    import blackjax
    import jax

    p, energy = posterior.criterion.p, posterior.energy
    native = hasattr(energy.total, "log_density_parts")
    weight, centre, precision = energy.strength * energy.size, np.zeros(p), np.zeros((p, p))
    if isinstance(energy.penalty, Ridge):
        centre, precision, weight = energy.penalty.mu, weight * energy.penalty.Q, 0.0
    program = _program(energy.total if native else None, not native or weight != 0.0)
    ask, job = _asked(energy.total, native, weight, energy.penalty), next(_NUMBERS)
    errors: list[BaseException] = []
    target = _Target(
        normal.mean, normal.lower, np.float64(posterior.eta), centre, precision, np.int32(job)
    )
    stages = np.full((-(-(WARM_UP + length) // BLOCK) * BLOCK, 2), SAMPLING)
    stages[:WARM_UP] = blackjax.adaptation.window_adaptation.build_schedule(WARM_UP)
    keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), len(stages))
    _JOBS[job] = _Job(ask, normal, float(ask(normal.mode[None])[0][0]), errors)
    try:
        state, blocks = program.start(z, target), []
        with counted(len(stages), "nuts") as show:
            for first in range(0, len(stages), BLOCK):
                block = slice(first, first + BLOCK)
                state, records = _wait(
                    program.run(state, keys[block], stages[block], target), errors
                )
                blocks.append([np.asarray(record) for record in records])
                show(BLOCK)
    finally:
        del _JOBS[job]
    points, steps, diverged, accepted = (np.concatenate(b) for b in zip(*blocks, strict=True))
    return points[WARM_UP:], {
        "divergences": int(diverged[WARM_UP:].sum()),
        "step_size": float(np.exp(state.step_size.log_step_size_avg)),
        "acceptance": float(accepted[WARM_UP:].mean()),
        "gradients": int(steps.sum()),
    }


def _wait(results: Results, errors: list[BaseException]) -> Results:
    """Wait for a compiled program, so that an interrupt is noticed, and raise what went wrong."""
    import jax

    try:
        while not all(leaf.is_ready() for leaf in jax.tree.leaves(results)):
            time.sleep(0.002)
    except BaseException as interrupt:  # the program is answered NaN from now on, which ends it
        errors.append(interrupt)
    if errors:
        raise errors[0]
    return results


@functools.lru_cache(maxsize=8)
def _program(total: Any, asks: bool) -> _Program:
    """Return iterations of all chains, compiled at their first use.

    That is once per number of parameters, or once per total where JAX differentiates the total:
    the last eight of these are kept.
    """
    import blackjax
    import jax
    import jax.numpy as jnp

    native = None if total is None else total.log_density_parts()
    kernel = blackjax.nuts.build_kernel()
    sizes = blackjax.adaptation.step_size.dual_averaging_adaptation(TARGET)
    start_size, learn_size, final_size = sizes
    start_metric, learn_metric, final_metric = (
        blackjax.adaptation.mass_matrix.mass_matrix_adaptation(is_diagonal_matrix=True)
    )

    def ask(z: JaxArray, job: JaxArray) -> tuple[JaxArray, JaxArray]:
        single = z.astype(jnp.float32)
        like = (single[0], single)  # shapes and types of what comes back
        value, slope = jax.pure_callback(_answer, like, single, job, vmap_method="expand_dims")
        return value.astype(jnp.float64), slope.astype(jnp.float64)

    rest = jax.custom_vjp(lambda z, job: ask(z, job)[0])
    rest.defvjp(ask, lambda slope, scale: (scale * slope, None))

    def density(z: JaxArray, target: _Target) -> Any:
        theta = target.mean + target.lower @ z
        away = theta - target.centre
        energy = 0.5 * away @ target.precision @ away
        if native is not None:
            energy += native(theta)
        if asks:
            energy += rest(z, target.job)
        return -target.eta * energy

    def where(condition: JaxArray, yes: T, no: T) -> T:
        either: T = jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
        return either

    def start(z: JaxArray, target: _Target) -> _State:
        log_density, p = functools.partial(density, target=target), z.shape[1]
        chains = jax.vmap(lambda point: blackjax.nuts.init(point, log_density))(z)
        tuning = (start_size(p**-0.25), start_metric(p))
        return _State(chains, *jax.tree.map(lambda number: jnp.asarray(number, float), tuning))

    def learn(state: _State, stage: JaxArray, acceptance: JaxArray) -> _State:
        """Take the step of blackjax's window adaptation that all chains make together."""
        slow, ends = stage
        size = learn_size(state.step_size, acceptance.mean())
        metric = functools.reduce(learn_metric, state.chains.position, state.metric)
        metric = where(slow, metric, state.metric)
        renewed = start_size(final_size(size)), final_metric(metric)
        return _State(state.chains, *where(ends, renewed, (size, metric)))

    def step(state: _State, key: JaxArray, stage: JaxArray, target: _Target) -> Results:
        adapts = stage[0] != SAMPLING
        size = jnp.where(adapts, state.step_size.log_step_size, state.step_size.log_step_size_avg)
        tuned = jnp.exp(size), state.metric.inverse_mass_matrix
        log_density, keys = functools.partial(density, target=target), jax.random.split(key, CHAINS)
        chains, info = jax.vmap(lambda key, chain: kernel(key, chain, log_density, *tuned))(
            keys, state.chains
        )
        moved = state._replace(chains=chains)
        return where(adapts, learn(moved, stage, info.acceptance_rate), moved), (
            chains.position,
            info.num_integration_steps,
            info.is_divergent,
            info.acceptance_rate,
        )

    def run(state: _State, keys: JaxArray, stages: JaxArray, target: _Target) -> Results:
        return jax.lax.scan(lambda state, x: step(state, *x, target), state, (keys, stages))

    return _Program(jax.jit(start), jax.jit(run))


def _answer(z: JaxArray, number: JaxArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Answer a program: the energy relative to the mode's, and its gradient, as functions of z."""
    points = np.asarray(z, np.float64)
    rows, job = np.atleast_2d(points), _JOBS.get(int(np.ravel(number)[0]))
    values, slopes = np.full(len(rows), np.nan), np.full(rows.shape, np.nan)
    finite = np.isfinite(rows).all(axis=1)  # chains that wait for others may go anywhere
    with np.errstate(all="ignore"):
        if job is not None and not job.errors:
            try:
                theta = job.normal.mean + rows[finite] @ job.normal.lower.T
                energies, gradients = job.energy(theta)
                values[finite], slopes[finite] = energies - job.peak, gradients @ job.normal.lower
            except BaseException as error:  # raised again where the program was called
                job.errors.append(error)
        single = values.astype(np.float32), slopes.astype(np.float32)
    return single[0].reshape(points.shape[:-1]), single[1].reshape(points.shape)


def _asked(total: Total, native: bool, weight: float, penalty: Penalty) -> Energy:
    """Return the total, unless JAX has it, plus the weighted penalty."""

    def loss(thetas: Array) -> tuple[Array, Array]:
        if native or not len(thetas):
            return np.zeros(len(thetas)), np.zeros(thetas.shape)
        if has_design(total):
            return _linear(total, thetas)
        one = getattr(total, "value_and_gradient", total.derivatives)
        points = [one(theta) for theta in thetas]
        return np.array([point[0] for point in points]), np.array([point[1] for point in points])

    def energy(thetas: Array) -> tuple[Array, Array]:
        values, slopes = loss(thetas)
        if weight != 0.0 and len(thetas):
            values += weight * penalty.value(thetas)
            slopes += weight * np.array([penalty.gradient(theta) for theta in thetas])
        return values, slopes

    return energy


def _linear(total: LinearTotal, thetas: Array) -> tuple[Array, Array]:
    """Return a total's values and gradients at points (D, p), in one pass over blocks of rows."""
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

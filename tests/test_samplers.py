"""Samplers against quadrature (p = 1, 2) and against an independent sampler (p = 5, 20)."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest

import etafree as ef
from conftest import THETA, Case, make_case
from etafree.optimize import minimise
from etafree.paper.random_intercept import Design
from etafree.samplers import SAMPLERS
from etafree.samplers.importance import importance_draws, trustworthy
from etafree.samplers.quadrature import distribution, stratified
from etafree.samplers.variational import Normal, normal_approximation

Z_LIMIT = 4.0


def one_parameter(case: Case, eta: float) -> ef.GeneralizedPosterior:
    """The slope alone, the rest of the predictor moved into the offset."""
    offset = case.offset + case.X[:, [0, 2]] @ THETA[[0, 2]]
    criterion = ef.Criterion(
        case.loss,
        (case.X[:, [1]], case.y),
        ef.penalties.Ridge(0.05),
        offset=offset,
        trials=case.trials,
    )
    return ef.GeneralizedPosterior(criterion, eta)


def z_scores(draws: ef.Draws, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Standardised errors of the means and of the second moments, from the reported ESS."""
    sd = np.sqrt(np.diagonal(covariance))
    standard = (draws.array - mean) / sd
    first = standard.mean(axis=0) * np.sqrt(draws.ess)
    square = standard**2
    second = (square.mean(axis=0) - 1) / (square.std(axis=0) / np.sqrt(draws.ess))
    return np.concatenate([first, second])


@pytest.mark.parametrize("eta", [0.01, 1.0, 50.0])
def test_the_one_parameter_distribution_is_exact(case: Case, eta: float) -> None:
    posterior = one_parameter(case, eta)
    grid, mass = distribution(posterior, normal_approximation(posterior))
    fine = np.linspace(grid[0], grid[-1], 40001)
    density = np.exp(
        posterior.log_density(fine[:, None]) - posterior.log_density(fine[:, None]).max()
    )
    cells = 0.5 * (density[1:] + density[:-1])
    reference = np.concatenate([[0.0], cells.cumsum() / cells.sum()])
    np.testing.assert_allclose(mass, np.interp(grid, fine, reference), atol=2e-5)
    assert np.all(np.diff(mass) >= 0)


def test_the_one_parameter_posterior_of_squared_loss_is_normal() -> None:
    from scipy.special import ndtr

    y = np.array([0.0, 1.0, 2.0, 5.0])
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((4, 1)), y), ef.penalties.Ridge(0.5))
    posterior = ef.GeneralizedPosterior(criterion, 0.7)
    grid, mass = distribution(posterior, normal_approximation(posterior))
    mean, sd = y.sum() / 6, 1 / np.sqrt(0.7 * 6)
    np.testing.assert_allclose(mass, ndtr((grid - mean) / sd), atol=1e-8)


def test_one_grid_serves_every_learning_rate() -> None:
    model = Design().model(np.random.default_rng(1))
    fit = minimise(model.criterion)
    rates = np.array([0.01, 1.0, 100.0])
    normal = Normal(fit.theta, fit.hessian**-0.5, fit.theta)
    grid, masses = distribution(model.posterior(1.0), normal, rates)
    for rate, mass in zip(rates, masses, strict=True):
        own = Normal(fit.theta, (rate * fit.hessian) ** -0.5, fit.theta)
        draws = [
            np.sort(stratified(*pair, 2000, np.random.default_rng(3)))
            for pair in ((grid, mass), distribution(model.posterior(rate), own))
        ]
        assert np.abs(draws[0] - draws[1]).max() < 3e-4 * own.lower[0, 0]


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"nuts"}))
@pytest.mark.parametrize("eta", [0.02, 1.0])
def test_every_sampler_agrees_with_quadrature_at_p_1(case: Case, sampler: str, eta: float) -> None:
    posterior = one_parameter(case, eta)
    grid, mass = distribution(posterior, normal_approximation(posterior))
    middle, weight = 0.5 * (grid[1:] + grid[:-1]), np.diff(mass)
    mean = np.array([weight @ middle])
    covariance = np.array([[weight @ (middle - mean) ** 2]])
    draws = ef.sample(posterior, draws=6000, seed=3, sampler=sampler)
    assert np.abs(z_scores(draws, mean, covariance)).max() < Z_LIMIT
    for level in (0.025, 0.5, 0.975):
        share = np.mean(draws.array[:, 0] <= np.interp(level, mass, grid))
        assert abs(share - level) < Z_LIMIT * np.sqrt(level * (1 - level) / draws.ess)


@pytest.mark.parametrize("sampler", ["importance", "elliptical"])
@pytest.mark.parametrize("eta", [0.02, 1.0, 30.0])
def test_samplers_agree_with_quadrature_at_p_2(case: Case, sampler: str, eta: float) -> None:
    offset = case.offset + THETA[0]
    criterion = ef.Criterion(
        case.loss,
        (case.X[:, 1:], case.y),
        ef.penalties.Ridge(0.05),
        offset=offset,
        trials=case.trials,
    )
    posterior = ef.GeneralizedPosterior(criterion, eta)
    normal = normal_approximation(posterior)
    axis = np.linspace(-9, 9, 181)
    z = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    theta = normal.mean + z @ normal.lower.T
    weight = np.exp(posterior.log_density(theta) - posterior.log_density(normal.mean))
    weight /= weight.sum()
    mean = weight @ theta
    covariance = ((theta - mean).T * weight) @ (theta - mean)
    draws = ef.sample(posterior, draws=6000, seed=5, sampler=sampler)
    assert np.abs(z_scores(draws, mean, covariance)).max() < Z_LIMIT


def nuts_moments(
    posterior: ef.GeneralizedPosterior, log_density: object, seed: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and effective size of a long run of blackjax's NUTS, an outside sampler."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from arviz_stats.base.array import array_stats

    normal = normal_approximation(posterior)
    with jax.enable_x64(True):
        mean, lower = jnp.asarray(normal.mean), jnp.asarray(normal.lower)

        def whitened(z: jax.Array) -> jax.Array:
            return log_density(mean + lower @ z)

        p = len(normal.mean)
        kernel = blackjax.nuts(whitened, step_size=0.5, inverse_mass_matrix=jnp.ones(p)).step

        @jax.jit
        def run(key: jax.Array) -> jax.Array:
            start = blackjax.nuts(whitened, 0.5, jnp.ones(p)).init(jnp.zeros(p))

            def step(state: object, k: jax.Array) -> tuple[object, jax.Array]:
                state, _ = kernel(k, state)
                return state, state.position

            return jax.lax.scan(step, start, jax.random.split(key, 6000))[1]

        chains = np.stack([np.asarray(run(jax.random.key(seed + k)))[500:] for k in range(2)])
    ess = float(np.min(array_stats.ess(chains, chain_axis=0, draw_axis=1)))
    draws = normal.mean + chains.reshape(-1, p) @ normal.lower.T
    return draws.mean(axis=0), np.cov(draws.T), ess


@pytest.mark.parametrize(("p", "eta"), [(5, 0.02), (20, 1.0)])
@pytest.mark.parametrize("sampler", ["importance", "elliptical"])
def test_samplers_agree_with_nuts_at_p_5_and_20(p: int, eta: float, sampler: str) -> None:
    import jax.numpy as jnp

    rng = np.random.default_rng(p)
    n = 300
    X = rng.standard_normal((n, p))
    y = X @ rng.standard_normal(p) + rng.standard_t(2, n)
    criterion = ef.Criterion(ef.losses.Huber(1.0), (X, y), ef.penalties.Ridge(0.1))
    posterior = ef.GeneralizedPosterior(criterion, eta)

    def log_density(theta: object) -> object:
        size = jnp.abs(jnp.asarray(y) - jnp.asarray(X) @ theta)
        loss = jnp.where(size <= 1.0, 0.5 * size**2, size - 0.5).sum()
        return -eta * (loss + 0.05 * n * (theta @ theta))

    mean, covariance, ess = nuts_moments(posterior, log_density, seed=100 * p)
    draws = ef.sample(posterior, draws=8000, seed=11, sampler=sampler)
    sd = np.sqrt(np.diagonal(covariance))
    noise = np.sqrt(1 / draws.ess + 1 / ess)
    assert np.abs((draws.mean - mean) / sd / noise).max() < Z_LIMIT
    ratio = np.diagonal(draws.covariance()) / np.diagonal(covariance)
    assert np.abs(np.log(ratio) / (np.sqrt(2) * noise)).max() < Z_LIMIT


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"nuts"}))
def test_seeds_make_draws_and_draws_say_where_they_come_from(sampler: str) -> None:
    posterior = one_parameter(make_case("huber"), 0.5)
    one = ef.sample(posterior, draws=300, seed=1, sampler=sampler)
    two = ef.sample(posterior, draws=300, seed=np.random.default_rng(1), sampler=sampler)
    other = ef.sample(posterior, draws=300, seed=2, sampler=sampler)
    np.testing.assert_array_equal(one.values, two.values)
    assert not np.array_equal(one.values, other.values)
    assert one.eta == 0.5
    assert one.names == posterior.criterion.names
    assert one.ess > 100
    assert len(one) >= 300


def test_auto_takes_quadrature_then_importance_then_the_slice_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ef.sample(one_parameter(make_case("huber"), 1.0), draws=50, seed=0).sampler == (
        "quadrature"
    )
    rng = np.random.default_rng(12)
    X = rng.standard_normal((100, 3))
    y = X.sum(axis=1) + rng.standard_normal(100)
    criterion = ef.Criterion(ef.losses.Huber(), (X, y))
    assert ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=0).sampler == (
        "importance"
    )
    monkeypatch.setattr("etafree.samplers.importance.PARETO_K_LIMIT", -np.inf)
    made = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=2000, seed=0)
    assert made.sampler == "elliptical slice"
    assert made.info["r_hat"] < 1.01


@pytest.mark.parametrize("sampler", ["importance", "elliptical"])
def test_polynomial_tails_are_met_with_polynomial_tails(sampler: str) -> None:
    """A Student-t loss at a small learning rate: density like |theta|**-9 in one dimension."""
    y = np.linspace(-1.0, 1.0, 30)
    criterion = ef.Criterion(ef.losses.StudentT(2.0), (np.ones((30, 1)), y))
    posterior = ef.GeneralizedPosterior(criterion, 0.1)
    assert posterior.tail_exponent == pytest.approx(9.0)
    grid, mass = distribution(posterior, normal_approximation(posterior))
    draws = ef.sample(posterior, draws=20000, seed=1, sampler=sampler)
    for level in (0.001, 0.01, 0.5, 0.99, 0.999):
        share = np.mean(draws.array[:, 0] <= np.interp(level, mass, grid))
        assert abs(share - level) < Z_LIMIT * np.sqrt(level * (1 - level) / draws.ess)


def test_a_log_prior_enters_the_draws(robust: Case) -> None:
    squared = ef.Criterion(ef.losses.Squared(), (robust.X, robust.y))
    prior = ef.LogPrior.normal(np.array([1.0, 2.0, 3.0]), 0.01 * np.eye(3))
    posterior = ef.GeneralizedPosterior(squared, 0.1, prior)
    precision = 0.1 * robust.X.T @ robust.X + 100 * np.eye(3)
    mean = np.linalg.solve(precision, 0.1 * robust.X.T @ robust.y + 100 * np.array([1.0, 2.0, 3.0]))
    draws = ef.sample(posterior, draws=6000, seed=4)
    assert np.abs(z_scores(draws, mean, np.linalg.inv(precision))).max() < Z_LIMIT


def test_the_reported_effective_size_is_honest() -> None:
    """Over 200 seeds the variance of the estimated mean is what the effective size says."""
    rng = np.random.default_rng(13)
    X = rng.standard_normal((60, 8))
    y = X.sum(axis=1) + rng.standard_t(2, 60)
    posterior = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Huber(1.0), (X, y)), 0.05)
    runs = [ef.sample(posterior, draws=400, seed=s, sampler="importance") for s in range(200)]
    sd = np.mean([r.array.std(axis=0) for r in runs], axis=0)
    standard = np.array([r.mean for r in runs]) / sd
    measured = 1 / standard.var(axis=0, ddof=1).mean()
    reported = np.mean([r.ess for r in runs])
    assert 0.75 < measured / reported < 1.6


LONG_TAILS = {
    "check": ef.losses.Check(0.9),
    "hinge": ef.losses.Hinge(),
    "logistic": ef.losses.Logistic(),
}


@pytest.mark.parametrize("name", LONG_TAILS)
def test_importance_draws_reach_into_long_tails(name: str) -> None:
    """At a small learning rate tails are exponential, and longer on one side.

    Proposals around the variational normal alone have variances of 0.67 to 0.81 times the
    posterior's here, with Pareto k below 0.5.
    """
    rng = np.random.default_rng(5)
    x = rng.gamma(2, size=40)
    X = np.column_stack([np.ones(40), x - 2])
    y = x - 2 + (0.3 + x) * rng.standard_t(3, 40)
    if name != "check":
        y = (rng.random(40) < 1 / (1 + np.exp(2 - x))).astype(float)
    posterior = ef.GeneralizedPosterior(ef.Criterion(LONG_TAILS[name], (X, y)), 0.02)
    normal = normal_approximation(posterior)
    axis = np.linspace(-4.2, 4.2, 601)
    both = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    points = normal.mean + np.sinh(both) @ normal.lower.T
    mass = posterior.log_density(points) + np.log(np.cosh(both)).sum(axis=1)
    mass = np.exp(mass - mass.max())
    mass /= mass.sum()
    mean = mass @ points
    variance = mass @ np.square(points - mean)
    ratios, scores = [], []
    for seed in range(6):
        draws = ef.sample(posterior, 4000, seed=seed, sampler="importance")
        assert trustworthy(draws)
        ratios.append(np.square(draws.array - mean).mean(axis=0) / variance)
        scores.append((draws.mean - mean) / np.sqrt(variance / draws.ess))
    assert np.all(np.abs(np.mean(ratios, axis=0) - 1) < 0.08)
    assert np.sqrt(np.mean(np.square(scores))) < 2.2


def test_a_proposal_that_misses_the_posterior_is_mended_or_distrusted() -> None:
    """If nearly all weights underflow no tail is left that a Pareto law could be fitted to."""
    mended = 0
    for eta in (1.0, 100.0, 1e6):
        posterior = ef.GeneralizedPosterior(make_case("squared").criterion(), eta)
        p, right = posterior.criterion.p, normal_approximation(posterior)
        for far in (0.0, 1.0, 10.0):
            aside = Normal(np.full(p, far), np.eye(p), np.full(p, far))
            drawn = importance_draws(posterior, aside, 1000, np.random.default_rng(1))
            assert np.isfinite(drawn.array).all()
            if trustworthy(drawn):
                mended += 1
                assert np.abs(z_scores(drawn, right.mean, right.lower @ right.lower.T)).max() < 5
            else:
                assert drawn.info["pareto_k"] > 0.7 or drawn.info["weights_ess"] < 50
    assert 0 < mended < 9


@pytest.mark.parametrize("eta", [1e-6, 1e-3, 1.0, 1e6])
def test_every_loss_is_sampled_at_any_learning_rate_or_refused_in_words(
    case: Case, eta: float
) -> None:
    """Exponential walls (Poisson, gamma) and improper tails may be refused, by name."""
    posterior = functools.partial(ef.GeneralizedPosterior, case.criterion(), eta)
    if case.name in ("gamma", "poisson", "student_t") and eta * len(case.y) < 1:
        with contextlib.suppress(ef.errors.EtafreeError):
            assert np.isfinite(ef.sample(posterior(), draws=1000, seed=1).values).all()
        return
    draws = ef.sample(posterior(), draws=1000, seed=1)
    assert np.isfinite(draws.values).all()
    assert draws.ess > 100


def test_a_posterior_no_sampler_reaches_is_refused_in_words() -> None:
    with pytest.raises(ef.errors.ConvergenceError, match="far from normal"):
        ef.sample(ef.GeneralizedPosterior(make_case("gamma").criterion(), 1e-6), seed=1)


@pytest.mark.parametrize("eta", [0.125, 0.15, 0.2, 0.5])
def test_quadrature_follows_polynomial_tails(eta: float) -> None:
    """Student-t loss with tails |theta|**-k, k = 3.1 to 12.5, against a dense sinh grid."""
    y = np.array([-1.0, 0.0, 0.3, 1.2, 2.0])
    posterior = ef.GeneralizedPosterior(
        ef.Criterion(ef.losses.StudentT(4.0), (np.ones((5, 1)), y)), eta
    )
    t = np.linspace(-14, 14, 400001)
    theta = 0.5 + np.sinh(t)
    weight = np.exp(posterior.log_density(theta[:, None]) - posterior.log_density([0.5]))
    reference = np.cumsum(weight * np.cosh(t))
    reference /= reference[-1]
    grid, mass = distribution(posterior, normal_approximation(posterior))
    for level in (0.025, 0.25, 0.5, 0.75, 0.975):
        expected = np.interp(level, reference, theta)
        assert np.interp(level, mass, grid) == pytest.approx(
            expected, abs=2e-3 * (1 + abs(expected))
        )


def test_a_density_drowned_in_rounding_ends_in_an_error_not_in_a_loop() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(60), rng.standard_normal(60)])
    y = X.sum(axis=1) + rng.standard_normal(60)
    y[0] = 1e8
    posterior = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Huber(1.345), (X, y)), 1e8)
    with pytest.raises(ef.errors.ConvergenceError):
        ef.sample(posterior, draws=200, seed=0, sampler="elliptical")


@pytest.mark.parametrize("draws", [50, 70, 100, 333])
def test_few_draws_of_the_slice_sampler_have_an_effective_size(draws: int) -> None:
    made = ef.sample(
        ef.GeneralizedPosterior(make_case("huber").criterion(), 1.0), draws, 1, "elliptical"
    )
    assert len(made) >= draws
    assert made.ess > 20


def test_improper_posteriors_are_refused_in_any_parametrisation() -> None:
    cell = np.arange(30) < 2
    y = np.random.default_rng(1).standard_normal(30)
    means = np.column_stack([cell, ~cell]).astype(float)
    dummy = np.column_stack([np.ones(30), cell]).astype(float)
    for X in (means, dummy):
        with pytest.raises(ef.errors.InputError, match="no finite variance"):
            ef.GeneralizedPosterior(ef.Criterion(ef.losses.StudentT(2.0), (X, y)), 0.3)

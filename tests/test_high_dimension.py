"""More parameters than observations: learning rates, draws and targets under a proper penalty."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from etafree.learning_rates import NormalInverseGamma, select
from etafree.penalties.kinked import GroupNorms
from etafree.samplers import metropolis
from etafree.samplers.lasso import kinked_chain
from etafree.samplers.variational import normal_approximation

Array = np.ndarray


def easy_and_hard(n: int, p: int, seed: int) -> tuple[Array, Array]:
    """Grünwald and van Ommen's design: about half of the rows are exactly zero, and easy."""
    rng = np.random.default_rng(seed)
    X, noise, easy = rng.standard_normal((n, p)), rng.standard_normal(n), rng.random(n) < 0.5
    y = X[:, :4] @ np.full(4, 0.1) + np.sqrt(0.05) * noise
    X[easy], y[easy] = 0.0, 0.0
    return np.column_stack([np.ones(n), X]), y


@pytest.mark.parametrize("version", ["R", "I"])
def test_safebayes_under_a_normal_prior_needs_no_fit_of_the_data_alone(version: str) -> None:
    X, y = easy_and_hard(20, 50, 0)
    p, grid = X.shape[1], np.array([1.0, 0.25])
    prior = ef.LogPrior.normal(np.zeros(p), 0.1 * np.eye(p))
    posterior = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), (X, y)), 1.0, prior)
    made = select(posterior, "safebayes", version=version, grid=grid)
    for eta, loss in zip(grid, made.trace["loss"], strict=True):
        direct = 0.0
        for i in range(len(y)):
            V = np.linalg.inv(eta * X[:i].T @ X[:i] + 10 * np.eye(p))
            direct += 0.5 * (y[i] - X[i] @ V @ (eta * X[:i].T @ y[:i])) ** 2
            direct += 0.5 * (version == "R") * X[i] @ V @ X[i]
        assert loss == pytest.approx(direct, rel=1e-9)
    assert made.diagnostics["minimum"] == "none"
    assert "no_information" in made.diagnostics
    assert "unknown" in repr(made)


@pytest.mark.parametrize("n", [30, 50])
def test_safebayes_learns_slowly_in_the_design_of_grunwald_and_van_ommen(n: int) -> None:
    X, y = easy_and_hard(n, 50, 1)
    conjugate = NormalInverseGamma(np.zeros(51), np.eye(51), 1.0, 1 / 40)
    made = select(ef.Criterion(ef.losses.Squared(), (X, y)), "safebayes", conjugate=conjugate)
    assert made.eta <= 0.25
    assert made.status == "converged"
    assert made.trace["loss"][0] > made.trace["loss"].min() + 20


def test_holmes_walker_under_a_prior_plugs_the_mode_in_where_the_data_have_no_minimum() -> None:
    X, y = easy_and_hard(20, 50, 2)
    p = X.shape[1]
    posterior = ef.GeneralizedPosterior(
        ef.Criterion(ef.losses.Squared(), (X, y)), 1.0, ef.LogPrior.normal(np.zeros(p), np.eye(p))
    )
    made = select(posterior, "holmes_walker")
    mode = np.linalg.solve(X.T @ X + np.eye(p), X.T @ y)
    length = np.square(X).sum(axis=1)
    expected = length @ (np.square(X @ mode) + 1 + length)
    assert made.eta == pytest.approx(np.sqrt(expected / (length @ (y**2 + length))), rel=1e-9)
    assert made.diagnostics["plugged_in"] == "mode at eta = 1"
    few = select(
        ef.GeneralizedPosterior(
            ef.Criterion(ef.losses.Squared(), (X[:, :2], y)),
            1.0,
            ef.LogPrior.normal(np.zeros(2), np.eye(2)),
        ),
        "holmes_walker",
    )
    assert few.diagnostics["plugged_in"] == "minimum"


@pytest.mark.parametrize("method", ["magnitude", "onizuka", "lyddon", "gpc", "matsubara"])
def test_methods_of_the_minimiser_refuse_data_that_have_none(method: str) -> None:
    X, y = easy_and_hard(20, 50, 3)
    with pytest.raises(ef.errors.InputError, match="collinear"):
        select(ef.Criterion(ef.losses.Squared(), (X, y)), method)


def on_a_grid(posterior: ef.GeneralizedPosterior, far: float, points: int) -> tuple[Array, Array]:
    """Means and variances (2,) of a posterior of two parameters, by the midpoint rule."""
    axis = far * (2 * np.arange(points) + 1.0 - points) / points
    both = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_density = posterior.log_density(both)
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    mean = mass @ both
    return mean, mass @ np.square(both - mean)


def z_scores(values: Array, truth: Array, effective: float) -> Array:
    return (values.mean(axis=0) - truth) / (values.std(axis=0) / np.sqrt(effective))


PENALTIES = {
    "L1": ef.penalties.L1(0.5),
    "elastic net": ef.penalties.ElasticNet(0.5, mix=0.6),
    "group": ef.penalties.GroupL1(0.5, groups=[0, 0]),
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("loss", [ef.losses.Squared(), ef.losses.Huber(1.0, scale=1.0)])
def test_draws_of_two_coefficients_from_one_row_are_those_of_quadrature(
    name: str, loss: ef.losses.LinearLoss
) -> None:
    criterion = ef.Criterion(loss, (np.array([[2.0, 1.0]]), [3.0]), penalty=PENALTIES[name])
    posterior = ef.GeneralizedPosterior(criterion, eta=3.0)
    draws = ef.sample(posterior, 20_000, seed=1)
    mean, variance = on_a_grid(posterior, 14.0, 700)
    effective = 0.5 * draws.info["ess"]  # squares mix more slowly
    assert np.all(np.abs(z_scores(draws.array, mean, effective)) < 4.5)
    squares = np.square(draws.array - mean)
    assert np.all(np.abs(z_scores(squares, variance, effective)) < 4.5)


@pytest.mark.parametrize("groups", [[0, 1], [0, 0]])
def test_coefficients_drawn_one_after_the_other_have_the_law_of_those_drawn_together(
    groups: list[int],
) -> None:
    kinks = GroupNorms.of(np.array(groups), np.array([1.5, 0.5])[: max(groups) + 1], np.zeros(2))
    x, linear = np.array([2.0, 1.0]), np.array([4.0, 2.0])
    precision = np.outer(x, x)  # singular
    axis = 20.0 * (2 * np.arange(1000) + 1.0 - 1000) / 1000
    both = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(-0.5 * np.square(both @ x) + both @ linear - kinks.value(both))
    mean = mass @ both / mass.sum()
    for together in (False, True):
        rng = np.random.default_rng(3)
        chain = kinked_chain(
            precision, linear, kinks, np.zeros(2), 40_000, rng, thin=10, together=together
        )
        batches = chain.reshape(100, 400, 2).mean(axis=1)
        assert np.all(np.abs(z_scores(batches, mean, 100)) < 4.5)


MORE = {"SLOPE": ef.penalties.Slope(0.5), "fused": ef.penalties.Fused(0.5)}


@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("name", [*PENALTIES, *MORE])
def test_metropolis_steps_by_parts_have_the_law_of_quadrature(
    name: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = ef.losses.Huber(1.0, scale=1.0)
    penalty = (PENALTIES | MORE)[name]
    criterion = ef.Criterion(loss, (np.array([[2.0, 1.0]]), [3.0]), penalty=penalty)
    posterior = ef.GeneralizedPosterior(criterion, eta=3.0)
    if at_a_time == 1:
        monkeypatch.setattr(metropolis, "ACCEPTED", 1.1)  # no share is enough
    normal, rng = normal_approximation(posterior), np.random.default_rng(2)
    draws = metropolis.metropolis_draws(posterior, normal, 2000, rng)
    assert draws is not None
    mean, variance = on_a_grid(posterior, 14.0, 700)
    effective = 0.5 * draws.info["ess"]
    assert np.all(np.abs(z_scores(draws.array, mean, effective)) < 4.5)
    assert np.all(np.abs(z_scores(np.square(draws.array - mean), variance, effective)) < 4.5)


def test_posteriors_whose_weights_are_uneven_are_sampled_by_parts() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 240))
    y = (X[:, :5] @ [2.0, -2.0, 1.0, -1.0, 1.0] + rng.logistic(size=60) > 0).astype(float)
    sparse = ef.Criterion(ef.losses.Logistic(), (X, y), penalty=ef.penalties.L1(0.05))
    posterior = ef.GeneralizedPosterior(sparse, eta=1.0)
    draws = ef.sample(posterior, 200, seed=1)
    assert draws.sampler == "Gibbs and Metropolis"
    assert draws.info["r_hat"] < 1.1
    # By partial integration the slope of the log density is zero on average.
    theta = draws.array
    means = 1 / (1 + np.exp(-theta @ X.T))
    slope = X.T @ (means.mean(axis=0) - y) + 60 * 0.05 * np.sign(theta).mean(axis=0)
    noise = np.std((means - y) @ X + 3.0 * np.sign(theta), axis=0) / np.sqrt(draws.info["ess"])
    assert np.sqrt(np.mean((slope / noise) ** 2)) < 2


def bayesian_lasso(X: Array, y: Array, rate: float, draws: int, seed: int) -> Array:
    """Park and Casella's Gibbs sampler with unit variance, in plain numpy."""
    rng, p = np.random.default_rng(seed), X.shape[1]
    theta, kept = np.full(p, 0.1), np.empty((draws, p))
    for d in range(-200, draws):
        inverse = rng.wald(rate / np.maximum(np.abs(theta), 1e-12), rate**2)
        root = np.linalg.cholesky(X.T @ X + np.diag(inverse))
        middle = np.linalg.solve(root, X.T @ y)
        theta = np.linalg.solve(root.T, middle + rng.standard_normal(p))
        if d >= 0:
            kept[d] = theta
    return kept


def test_forty_coefficients_of_fifteen_rows_have_the_draws_of_the_bayesian_lasso() -> None:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((15, 40))
    y = X[:, :2] @ [2.0, -2.0] + 0.5 * rng.standard_normal(15)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), penalty=ef.penalties.L1(0.2))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 8000, seed=5)
    assert draws.info["weights_ess"] > 1000
    other = bayesian_lasso(X, y, 0.2 * 15, 8000, 6)
    for function in (lambda x: x, np.abs):
        ours, theirs = function(draws.array), function(other)
        noise = np.sqrt(ours.var(axis=0) / (0.4 * draws.info["ess"]) + theirs.var(axis=0) / 800)
        z = (ours.mean(axis=0) - theirs.mean(axis=0)) / noise
        assert np.max(np.abs(z)) < 5
        assert np.sqrt(np.mean(z**2)) < 1.5


@pytest.mark.parametrize(
    "penalty", [ef.penalties.L1(0.3), ef.penalties.GroupL1(0.3, np.arange(100) // 4)]
)
@pytest.mark.parametrize("loss", [ef.losses.Squared(), ef.losses.Huber(1.345, scale=1.0)])
def test_an_active_block_of_a_hundred_coefficients_and_sixty_rows_is_calibrated(
    penalty: ef.penalties.Penalty, loss: ef.losses.LinearLoss
) -> None:
    rng = np.random.default_rng(7)
    X = rng.standard_normal((60, 100))
    y = X[:, :3].sum(axis=1) * 2 + rng.standard_normal(60)
    criterion = ef.Criterion(loss, (X, y), penalty=penalty)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 2000, seed=8)
    result = ef.calibrate(draws, criterion)
    active = ef.minimise(criterion).theta != 0
    assert 3 <= active.sum() == result.target.p < 60
    assert np.all(result.draws.array[:, ~active] == 0)
    centre = result.map(draws.array[:, active]).mean(axis=0)
    np.testing.assert_allclose(centre, result.target.center, atol=1e-8)


def ridge(n: int = 30, p: int = 40, strength: float = 0.2) -> ef.Criterion:
    """Least squares under a ridge penalty, more columns than rows, of falling size."""
    rng = np.random.default_rng(9)
    X = rng.standard_normal((n, p)) / np.arange(1, p + 1)
    y = X[:, :3] @ [1.0, -1.0, 1.0] + rng.standard_normal(n)
    return ef.Criterion(ef.losses.Squared(), (X, y), penalty=ef.penalties.Ridge(strength))


SOME = ["theta[2]", "theta[0]", "theta[9]"]
PLACES = [2, 0, 9]


@pytest.mark.parametrize("size", [1, 2])
def test_a_part_of_more_parameters_than_rows_has_the_jackknife_of_refits(size: int) -> None:
    criterion = ridge()
    X, y, n = criterion.total.X, criterion.total.y, criterion.n
    labels = np.arange(n) // size
    options = {} if size == 1 else {"clusters": labels}
    part = ef.target(criterion, var_names=SOME, **options)
    A = X.T @ X + 0.2 * n * np.eye(40)
    theta = np.linalg.solve(A, X.T @ y)
    refits = []
    for g in np.unique(labels):  # one Newton step with the cluster's rows and share left out
        out = labels == g
        left = A - X[out].T @ X[out] - 0.2 * size * np.eye(40)
        slope = X[out].T @ (X[out] @ theta - y[out]) + 0.2 * size * theta
        refits.append(np.linalg.solve(left, slope))
    away = np.array(refits)[:, PLACES]
    np.testing.assert_allclose(part.center, theta[PLACES], rtol=1e-9)
    np.testing.assert_allclose(part.covariance, away.T @ away, rtol=1e-8)
    assert part.names == tuple(SOME)


def test_contrasts_of_a_part_have_the_law_that_they_have_in_the_whole() -> None:
    criterion = ridge(60, 12)
    whole, part = ef.target(criterion), ef.target(criterion, var_names=SOME)
    contrasts = np.array([[1.0, -1.0, 0.0], [0.5, 0.5, 1.0]])
    among = np.zeros((2, 12))
    among[:, PLACES] = contrasts
    np.testing.assert_allclose(part.covariance, whole.covariance[np.ix_(PLACES, PLACES)])
    for ours, theirs in zip(part.law(contrasts), whole.law(among), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert part.joint_law(contrasts)[0] == pytest.approx(whole.joint_law(among)[0])


def test_a_part_is_calibrated_saved_and_tested(tmp_path: object) -> None:
    criterion = ridge()
    posterior = ef.GeneralizedPosterior(criterion, eta=0.5)
    draws = ef.sample(posterior, 2000, seed=1)
    result = ef.calibrate(draws, posterior, var_names=SOME)
    assert result.draws.names == tuple(SOME)
    np.testing.assert_allclose(
        result.map(draws.select(SOME).array).mean(axis=0), result.target.center, atol=1e-10
    )
    count = 30 - np.trace(
        np.linalg.solve(criterion.hessian(np.zeros(40)), criterion.total.X.T @ criterion.total.X)
    )
    assert result.region().dof == pytest.approx(count)
    assert result.test(np.eye(3)).p_value < 1
    path = f"{tmp_path}/part.npz"
    result.save(path)
    np.testing.assert_array_equal(ef.Calibration.load(path).target.dof, result.target.dof)
    one = ef.calibrate(draws, posterior, var_names="theta[0]", center="one_step")
    np.testing.assert_allclose(one.target.center, result.target.center[1], rtol=1e-9)


def test_the_singular_whole_is_refused_with_what_to_do() -> None:
    criterion = ridge()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 500, seed=1)
    with pytest.raises(ef.errors.InputError, match="var_names="):
        ef.calibrate(draws, criterion)
    with pytest.raises(ef.errors.InputError, match="var_names="):
        ef.target(criterion, clusters=np.arange(30) // 3)
    with pytest.raises(ef.errors.InputError, match="name fewer"):
        ef.target(criterion, var_names="theta")
    for names, problem in ((["x"], "not a parameter"), ([], "list"), (["theta[0]"] * 2, "twice")):
        with pytest.raises(ef.errors.InputError, match=problem):
            ef.target(criterion, var_names=names)
    with pytest.raises(ef.errors.InputError, match="CR1"):
        ef.target(criterion, clusters=np.arange(30) // 2, correction="CR1S", var_names=SOME)


def test_too_many_effective_parameters_are_flagged_and_few_are_not() -> None:
    rng = np.random.default_rng(10)
    flat = ef.Criterion(
        ef.losses.Squared(),
        (rng.standard_normal((30, 40)), rng.standard_normal(30)),
        penalty=ef.penalties.Ridge(0.2),
    )
    for criterion, verdict in ((ridge(), "ok"), (flat, "fail")):
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 500, seed=1)
        checks = {
            check.name: check for check in ef.calibrate(draws, criterion, var_names=SOME).checks
        }
        X = criterion.total.X
        hat = X @ np.linalg.solve(criterion.hessian(np.zeros(40)), X.T)
        assert checks["effective parameters"].value == pytest.approx(np.trace(hat) / 30)
        assert checks["effective parameters"].verdict == verdict

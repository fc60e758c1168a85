"""Modal regression, and the two targets of a posterior whose prior eta does not scale."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import checks_of, refused
from etafree.optimize import minimise


def skewed(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return data whose errors have mode 0 and mean 0.5: gamma(3) with its mode at zero, scaled."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.standard_normal(n)])
    error = 0.5 * (rng.gamma(3.0, size=n) - 2.0)
    return X, X @ [1.0, 0.5] + error


def test_derivatives_are_those_of_the_values() -> None:
    loss = ef.losses.Modal(0.7)
    u, y, d = np.linspace(-3, 3, 41), np.zeros(41), 1e-5
    first = (loss.values(u + d, y) - loss.values(u - d, y)) / (2 * d)
    second = (loss.first(u + d, y) - loss.first(u - d, y)) / (2 * d)
    np.testing.assert_allclose(loss.first(u, y), first, atol=1e-9)
    np.testing.assert_allclose(loss.second(u, y), second, atol=1e-8)
    assert (loss.majorizer(u, y) >= loss.second(u, y) - 1e-12).all()


def test_a_wide_kernel_is_least_squares() -> None:
    """As h grows the target becomes HC0 of ordinary least squares."""
    X, y = skewed(300, 1)
    plain = ef.target(ef.Criterion(ef.losses.Squared(), (X, y)), correction="HC0")
    wide = ef.target(ef.Criterion(ef.losses.Modal(1e4), (X, y)), correction="HC0")
    np.testing.assert_allclose(wide.center, plain.center, atol=1e-7)
    np.testing.assert_allclose(wide.covariance, plain.covariance, atol=1e-8)


def test_the_effective_scale_is_n_times_h() -> None:
    X, y = skewed(200, 2)
    criterion = ef.Criterion(ef.losses.Modal(0.5), (X, y), ef.penalties.Ridge(0.1))
    assert criterion.size == pytest.approx(100.0)
    assert "s_n = n h = 100" in criterion.describe()
    theta = np.array([1.0, 0.5])
    expected = criterion.total.totals(theta[None])[0] + 0.1 * 100.0 * 0.5 * theta @ theta
    assert criterion.value(theta) == pytest.approx(expected)
    share = criterion.penalty_share(theta)
    np.testing.assert_allclose(share * 200, 0.1 * 100.0 * np.eye(2))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    made = ef.calibrate(draws, criterion)
    assert made.paper().J.shape == (2, 2)
    np.testing.assert_allclose(made.paper().J * 100, made.target.hessian)
    assert "s_n = n h = 100" in repr(made)


def test_a_bounded_loss_needs_a_penalty_or_a_prior() -> None:
    X, y = skewed(100, 3)
    bare = ef.Criterion(ef.losses.Modal(0.5), (X, y))
    refused("criterion", "improper at every eta", lambda: ef.GeneralizedPosterior(bare, 1.0))
    ef.GeneralizedPosterior(bare, 1.0, ef.LogPrior.normal(np.zeros(2), 100 * np.eye(2)))
    refused("h", "above zero", lambda: ef.losses.Modal(0.0))
    refused("scale", "bandwidth", lambda: ef.losses.Modal(1.0, scale=2.0))
    refused("target", "mode", lambda: ef.losses.Modal(1.0, target="median"))


def test_the_minimiser_is_the_best_of_a_grid() -> None:
    X, y = skewed(150, 4)
    y[:30] += 6.0  # a second, smaller hill
    criterion = ef.Criterion(ef.losses.Modal(0.4), (X, y))
    best = minimise(criterion)
    grid = np.stack(np.meshgrid(np.linspace(-2, 9, 111), np.linspace(-2, 3, 51)), -1).reshape(-1, 2)
    assert best.value <= criterion.values_at(grid).min() + 1e-9


@pytest.mark.parametrize("target", ["smoothed", "mode"])
def test_intervals_cover_their_target(target: str) -> None:
    """100 or 150 data sets, fixed seeds: the smoothed minimiser, and the mode if undersmoothed.

    The smoothed target is found from 400,000 observations.
    """
    many = 150 if target == "smoothed" else 100
    h, n = (0.45, 1000) if target == "smoothed" else (0.15, 4000)
    loss = ef.losses.Modal(h, target=target)
    if target == "smoothed":
        truth = minimise(ef.Criterion(loss, skewed(400_000, 5))).theta
    else:
        truth = np.array([1.0, 0.5])
    hits, flagged = np.zeros(2), 0
    for seed in range(many):
        made = ef.target(ef.Criterion(loss, skewed(n, 100 + seed)))
        hits += np.abs(made.center - truth) < 1.96 * made.se
        flagged += checks_of(made)["smoothing bias"].verdict != "ok" if target == "mode" else 0
    low = 0.95 - 4 * np.sqrt(0.95 * 0.05 / many)
    assert (hits / many > low).all(), (hits / many, flagged)
    if target == "mode":
        wide = ef.target(ef.Criterion(ef.losses.Modal(0.9, target="mode"), skewed(20_000, 9)))
        assert checks_of(wide)["smoothing bias"].verdict == "warn"


def test_the_bias_of_smoothing_is_told_in_standard_errors() -> None:
    """It grows with the square of the bandwidth: 1.25 of it from h to 1.5 h."""
    data = skewed(2000, 9)
    made = ef.target(ef.Criterion(ef.losses.Modal(0.9, target="mode"), data))
    wider = minimise(ef.Criterion(ef.losses.Modal(1.35), data), made.center).theta
    expected = np.max(np.abs(wider - made.center) / (1.5**2 - 1) / made.se)
    assert checks_of(made)["smoothing bias"].value == pytest.approx(expected, rel=1e-4)
    assert checks_of(made)["smoothing bias"].threshold == 0.25


# --- priors that eta does not scale -------------------------------------------------------------


@pytest.fixture
def pulled() -> tuple[ef.Criterion, ef.LogPrior]:
    X, y = skewed(200, 6)
    criterion = ef.Criterion(ef.losses.Huber(1.0), (X, y), ef.penalties.Ridge(0.1))
    return criterion, ef.LogPrior.from_penalty(ef.penalties.Ridge(0.3, mu=[3.0, 3.0]), 2)


def test_each_target_is_consistent_in_itself(pulled) -> None:
    criterion, prior = pulled
    plain = ef.target(criterion)
    for eta in (0.2, 5.0):
        posterior = ef.GeneralizedPosterior(criterion, eta, prior)
        draws = ef.sample(posterior, draws=1000, seed=1)
        first = ef.calibrate(draws, posterior)
        np.testing.assert_allclose(first.center, plain.center)
        np.testing.assert_allclose(first.target.covariance, plain.covariance)
        assert "unscaled prior" in first.diagnostics().index
        own = ef.calibrate(draws, posterior.energy)
        np.testing.assert_allclose(own.center, minimise(posterior.energy).theta)
        np.testing.assert_allclose(own.target.hessian, -posterior.hessian(own.center) / eta)
        assert f"eta = {eta:g}, which depends on eta" in repr(own)
        assert "unscaled prior" not in own.diagnostics().index
        mean = ef.calibrate(draws, posterior.energy, center="mean")
        np.testing.assert_allclose(mean.center, draws.mean)


def test_the_two_targets_are_never_mixed(pulled) -> None:
    criterion, prior = pulled
    posterior = ef.GeneralizedPosterior(criterion, 0.2, prior)
    draws = ef.sample(posterior, draws=500, seed=1)
    refused("center", "of=posterior.energy", lambda: ef.calibrate(draws, posterior, center="mean"))
    refused(
        "map",
        "of=posterior.energy",
        lambda: ef.calibrate(draws, posterior, map=ef.Map(kind="scale")),
    )


def test_coverage_of_both_targets_under_a_prior_that_moves_the_mode() -> None:
    """400 data sets at two learning rates; each estimand's truth from a large sample."""

    def data(n: int, seed: int):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((n, 1))
        return x, x[:, 0] + rng.standard_t(4, n)

    def posterior(n: int, seed: int, eta: float):
        criterion = ef.Criterion(ef.losses.Huber(1.0), data(n, seed))
        prior = ef.LogPrior(
            lambda t, m: -0.5 * 0.2 * m * float((t[0] - 3.0) ** 2),
            lambda t, m: -0.2 * m * (t - 3.0),
            lambda t, m: np.array([[-0.2 * m]]),
            "prior at 3",
        )
        return ef.GeneralizedPosterior(criterion, eta, prior)

    for eta in (0.5, 2.0):
        truth = minimise(posterior(400_000, 1, eta).energy).theta[0]
        hits = {"penalized": 0, "posterior": 0}
        for seed in range(400):
            post = posterior(200, 1000 + seed, eta)
            goals = {
                "penalized": (ef.target(post.criterion), 1.0),
                "posterior": (ef.target(post.energy), truth),
            }
            for name, (goal, value) in goals.items():
                hits[name] += abs(goal.center[0] - value) < 1.96 * goal.se[0]
        for name, count in hits.items():
            assert abs(count / 400 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400), (name, eta)


def modal_in_jax(h):
    jnp = pytest.importorskip("jax.numpy")

    def modal(theta, row):
        return -jnp.expm1(-0.5 * ((row["y"] - row["X"] @ theta) / h) ** 2)

    return modal


def test_a_kernel_loss_of_the_users_own_has_the_effective_scale_of_modal():
    rng = np.random.default_rng(8)
    X = np.column_stack([np.ones(80), rng.standard_normal(80)])
    y = X @ [1.0, 0.5] + rng.gamma(3.0, size=80) - 2.0
    ridge = ef.penalties.Ridge(0.05)
    known = ef.Criterion(ef.losses.Modal(0.8), (X, y), ridge)
    own = ef.JaxLoss(modal_in_jax(0.8), effective_unit=0.8)
    c = ef.Criterion(own, {"X": X, "y": y}, ridge, start=ef.minimise(known).theta)
    assert c.size == known.size == 64
    assert "s_n = n h = 64" in c.describe()
    one, two = ef.target(known), ef.target(c)
    np.testing.assert_allclose(two.center, one.center, rtol=1e-8)
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-7)


def test_the_effective_unit_changes_the_penalty_and_nothing_else():
    rng = np.random.default_rng(9)
    data = {"X": rng.standard_normal((50, 2)), "y": rng.standard_normal(50)}
    f, theta = modal_in_jax(2.0), np.array([0.2, -0.1])
    unit = {h: ef.JaxLoss(f, effective_unit=h) for h in (1.0, 0.25)}
    plain, scaled = (ef.Criterion(loss, data, start=theta) for loss in unit.values())
    for a, b in zip(plain.derivatives(theta), scaled.derivatives(theta), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ef.target(plain).covariance, ef.target(scaled).covariance)
    weak, strong = (
        ef.Criterion(unit[h], data, ef.penalties.Ridge(strength), start=theta)
        for h, strength in ((1.0, 0.1), (0.25, 0.4))
    )
    for a, b in zip(weak.derivatives(theta), strong.derivatives(theta), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
    np.testing.assert_allclose(ef.target(weak).covariance, ef.target(strong).covariance, rtol=1e-10)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, "h"])
def test_an_effective_unit_that_is_no_bandwidth_is_refused(bad):
    refused("effective_unit", "", lambda: ef.JaxLoss(modal_in_jax(1.0), effective_unit=bad))

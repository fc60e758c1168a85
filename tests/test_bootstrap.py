"""Draws by observation weights, bootstraps and bagged posteriors, and the Q-posterior."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import Case, make_case, refused
from etafree.data.groups import Groups
from etafree.errors import CalibrationWarning, ConvergenceError
from etafree.foundation.arguments import as_seeds
from etafree.optimize import many as batched
from etafree.q_posterior import QPosterior, q_posterior
from etafree.resampling import (
    bayesbag,
    bootstrap,
    loss_likelihood_bootstrap,
    martingale_posterior,
    weight_blocks,
)

FOUR = np.array([0.0, 1.0, 2.0, 5.0])
KINDS = {"dirichlet": loss_likelihood_bootstrap, "counts": bootstrap}


def mean_of_four(**options) -> ef.Criterion:
    return ef.Criterion(ef.losses.Squared(), (np.ones((4, 1)), FOUR), **options)


def weights_of(criterion, count, kind, seed=3, groups=None, size=None) -> np.ndarray:
    blocks = weight_blocks(criterion, count, groups, as_seeds(seed), kind, size)
    return np.concatenate([weights for weights, _ in blocks])


@pytest.mark.parametrize(("kind", "variance"), [("dirichlet", 0.7), ("counts", 0.875)])
def test_the_variance_of_a_mean(kind: str, variance: float) -> None:
    """Dirichlet weights give the data's variance over n + 1, counts over n."""
    draws = KINDS[kind](mean_of_four(), draws=40_000, seed=1).array[:, 0]
    square = np.square(draws - 2.0)
    assert abs(square.mean() - variance) < 4.5 * square.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - 2.0) < 4.5 * np.sqrt(variance / len(draws))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mean_is_the_weighted_mean(kind: str) -> None:
    weights = weights_of(mean_of_four(), 50, kind)
    made = KINDS[kind](mean_of_four(), draws=50, seed=3)
    np.testing.assert_allclose(made.array[:, 0], weights @ FOUR / weights.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 4.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_every_draw_is_the_minimiser_under_its_weights(
    case: Case, kind: str, strength: float
) -> None:
    criterion = case.criterion(penalty=ef.penalties.Ridge(lambda n: strength * 100 / n))
    made = KINDS[kind](criterion, draws=6, seed=3).array
    for theta, weights in zip(made, weights_of(criterion, 6, kind), strict=True):
        fit = ef.minimise(criterion.reweighted(weights, "sampling"))
        if case.loss.convex:
            np.testing.assert_allclose(theta, fit.theta, rtol=1e-7, atol=1e-9)
        else:  # the minimum next to the full-data one
            assert np.abs(criterion.reweighted(weights, "sampling").gradient(theta)).max() < 1e-6


@pytest.mark.parametrize("horizon", [1, 12, 400])
def test_the_martingale_posterior_of_a_mean(horizon: int) -> None:
    """What is left of the variance over n + 1 is the share of what has not been observed."""
    draws = martingale_posterior(mean_of_four(), 40_000, horizon=horizon, seed=1).array[:, 0]
    square, variance = np.square(draws - 2.0), 0.7 * horizon / (4 + horizon)
    assert abs(square.mean() - variance) < 4.5 * square.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - 2.0) < 4.5 * np.sqrt(variance / len(draws))


def test_a_martingale_posterior_without_horizon_is_the_loss_likelihood_bootstrap() -> None:
    criterion = make_case("huber", n=80).criterion()
    one, two = (f(criterion, 50, seed=4) for f in (martingale_posterior, KINDS["dirichlet"]))
    np.testing.assert_array_equal(one.values, two.values)
    assert one.sampler == "martingale posterior"


def test_the_urn_holds_the_rows_and_a_copy_of_each_that_is_drawn() -> None:
    """Observed rows keep a place of their own: n / (n + N) of the whole weight at least."""
    weights = weights_of(mean_of_four(), 30_000, "urn", size=6)
    np.testing.assert_allclose(weights.sum(axis=1), 4.0)
    counts = weights * 10 / 4 - 1
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    assert counts.min() == 0
    first = counts[:, 0]  # of six draws; Beta(1, 3) shares: P(none) = B(1, 9) / B(1, 3)
    assert abs((first == 0).mean() - 3 / 9) < 4.5 * np.sqrt(2 / 9 / len(first))
    copies = mean_of_four(weights=[2.0, 0.0, 1.0, 1.0], weight_kind="frequency")
    made = weights_of(copies, 200, "urn", size=6)
    assert (made[:, 1] == 0).all()
    assert (made[:, 0] >= 2 * 4 / 10 - 1e-12).all()


def test_the_urn_of_clusters_draws_clusters() -> None:
    labels = np.repeat(np.arange(12), 5)
    weights = weights_of(
        make_case("huber", n=60).criterion(), 30, "urn", groups=Groups.of(labels, 60), size=7
    )
    assert np.ptp(weights.reshape(30, 12, 5), axis=2).max() == 0
    counts = weights[:, ::5] * 19 / 12 - 1
    np.testing.assert_allclose(counts.sum(axis=1), 7.0)


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("eta", [0.25, 4.0])
def test_the_bagged_posterior_of_a_mean(eta: float, size: int | None) -> None:
    """Its variance is the posterior's plus that of the bootstrap, with M rows in each."""
    posterior = ef.GeneralizedPosterior(mean_of_four(), eta)
    draws = bayesbag(posterior, 60_000, resamples=3000, size=size, seed=1)
    m = size or 4
    inner, outer = 1 / (eta * m), 3.5 / m
    of_means = draws.array.reshape(3000, 20).mean(axis=1)
    square = np.square(draws.array.reshape(3000, 20) - 2.0).mean(axis=1)  # independent
    assert abs(square.mean() - inner - outer) < 4.5 * square.std() / np.sqrt(3000)
    assert abs(of_means.mean() - 2.0) < 4.5 * of_means.std() / np.sqrt(3000)
    effective = 3000 * (inner + outer) / (outer + inner / 20)
    assert draws.info["ess"] == pytest.approx(effective, rel=0.1)


def test_every_bagged_posterior_is_that_of_its_weights() -> None:
    """Least squares with a ridge, a prior and clusters: mean and covariance of each are known."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 15, 90)
    X, y = rng.standard_normal((90, 2)), rng.standard_normal(90)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.Ridge(0.2))
    prior = ef.LogPrior.normal([1.0, 0.0], 0.1 * np.eye(2))
    posterior = ef.GeneralizedPosterior(criterion, 0.7, prior)
    draws = bayesbag(posterior, 8000, resamples=8, clusters=labels, seed=5)
    stream = as_seeds(5).spawn(1)[0]
    (weights, _), *rest = weight_blocks(criterion, 8, Groups.of(labels, 90), stream, "counts")
    assert not rest
    for own, one in zip(weights, draws.array.reshape(8, 1000, 2), strict=True):
        gram = X.T @ (own[:, None] * X) + 0.2 * own.sum() * np.eye(2)
        precision = 0.7 * gram + 10 * np.eye(2)
        mean = np.linalg.solve(precision, 0.7 * X.T @ (own * y) + np.array([10.0, 0.0]))
        root = np.linalg.cholesky(precision)
        standard = (one - mean) @ root
        assert np.abs(standard.mean(axis=0)).max() < 4.5 / np.sqrt(1000)
        assert np.abs(standard.T @ standard / 1000 - np.eye(2)).max() < 4.5 * np.sqrt(2 / 1000)
    assert draws.info["clusters"] == 15


def test_bagged_posteriors_need_less_than_a_resample_each() -> None:
    """Few draws of many resamples, rounded up to the same number for each."""
    posterior = ef.GeneralizedPosterior(make_case("huber", n=50).criterion(), 1.0)
    draws = bayesbag(posterior, 110, resamples=40, seed=1)
    assert draws.values.shape == (1, 120, 3)
    assert draws.eta is None
    assert draws.info["eta"] == 1.0
    np.testing.assert_array_equal(
        bayesbag(posterior, 110, resamples=40, seed=1).values, draws.values
    )


def test_resamples_without_a_posterior_are_left_out() -> None:
    x = np.linspace(-2, 2, 24)
    y = (x + 0.8 * np.random.default_rng(3).standard_normal(24) > 0).astype(float)
    criterion = ef.Criterion(ef.losses.Logistic(), (np.column_stack([np.ones(24), x]), y))
    with pytest.warns(CalibrationWarning, match="no posterior"):
        draws = bayesbag(ef.GeneralizedPosterior(criterion, 1.0), 400, resamples=40, seed=1)
    assert 0 < draws.info["failed"] < 40
    assert len(draws) == 10 * (40 - draws.info["failed"])
    prior = ef.LogPrior.normal([0.0, 0.0], np.eye(2))
    whole = bayesbag(ef.GeneralizedPosterior(criterion, 1.0, prior), 400, resamples=40, seed=1)
    assert whole.info["failed"] == 0


def test_what_cannot_be_bagged_is_refused() -> None:
    posterior = ef.GeneralizedPosterior(mean_of_four(), 1.0)
    refused("posterior", "is a Criterion", lambda: bayesbag(mean_of_four()))
    refused("resamples", "at least 2", lambda: bayesbag(posterior, resamples=1))
    refused("size", "whole number", lambda: bayesbag(posterior, size=2.5))
    refused("draws", "at least 2", lambda: bayesbag(posterior, 1))
    refused("clusters", "only one cluster", lambda: bayesbag(posterior, clusters=[1] * 4))
    refused("horizon", "whole number", lambda: martingale_posterior(mean_of_four(), horizon=0))
    kinked = make_case("squared", n=40).criterion(penalty=ef.penalties.L1(0.1))
    refused("penalty", "kink", lambda: bayesbag(ef.GeneralizedPosterior(kinked, 1.0)))
    x = np.linspace(-1, 1, 12)
    split = ef.Criterion(ef.losses.Logistic(), (x[:, None], (x > 0).astype(float)))
    prior = ef.LogPrior.normal([0.0], [[1.0]])
    assert bayesbag(ef.GeneralizedPosterior(split, 1.0, prior), 100, resamples=5).p == 1
    with pytest.raises(ConvergenceError, match="5 of 5 resamples"):
        bayesbag(ef.GeneralizedPosterior(split, 1.0), 100, resamples=5)


@pytest.mark.parametrize("name", ["squared", "huber", "logistic", "poisson", "gamma"])
def test_batched_newton_steps_settle_every_resample(name: str, monkeypatch) -> None:
    """At a usual size no resample falls back to the minimiser of single data sets."""

    def never(*args, **kwargs):
        raise AssertionError("fell back")

    monkeypatch.setattr(batched, "minimise", never)
    made = bootstrap(make_case(name, n=500).criterion(), draws=300, seed=0)
    assert made.info["failed"] == 0
    assert len(made) == 300


def test_batched_derivatives_are_those_of_reweighted_criteria(case: Case) -> None:
    rng = np.random.default_rng(0)
    criterion = case.criterion(penalty=ef.penalties.Ridge(0.2))
    thetas, weights = 0.3 * rng.standard_normal((4, 3)), rng.random((4, 120))
    here = batched.batch(criterion, thetas, weights)
    plain = batched.batch(criterion, thetas)
    for k in range(4):
        one = criterion.reweighted(weights[k], "sampling").derivatives(thetas[k])
        np.testing.assert_allclose(here.gradients[k], one.gradient, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(here.hessians[k], one.hessian, rtol=1e-9, atol=1e-9)
        own = criterion.derivatives(thetas[k])
        np.testing.assert_allclose(plain.gradients[k], own.gradient, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(plain.hessians[k], own.hessian, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_cluster_share_their_weight(kind: str) -> None:
    criterion = make_case("huber", n=60).criterion()
    labels = np.random.default_rng(1).integers(0, 12, 60)
    groups = Groups.of(labels, 60)
    weights = weights_of(criterion, 30, kind, groups=groups)
    for label in range(12):
        assert np.ptp(weights[:, labels == label], axis=1).max() == 0
    per_cluster = np.array([weights[:, labels == g][:, 0] for g in range(12)])
    np.testing.assert_allclose(per_cluster.sum(axis=0), 12.0)
    assert not np.allclose(weights.sum(axis=1), 60)  # clusters differ in size


@pytest.mark.parametrize("kind", KINDS)
def test_with_clusters_the_spread_is_that_of_the_clustered_sandwich(kind: str) -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(400), 5)
    X = np.column_stack([np.ones(2000), rng.standard_normal(400)[labels]])
    y = X @ [1.0, 2.0] + 2 * rng.standard_normal(400)[labels] + rng.standard_normal(2000)
    criterion = ef.Criterion(ef.losses.Huber(3.0), (X, y))
    made = KINDS[kind](criterion, draws=2000, clusters=labels, seed=1)
    ratio = made.array.var(axis=0) / np.diag(
        ef.target(criterion, clusters=labels, correction="CR0").covariance
    )
    assert np.all(np.abs(ratio - 1) < 0.15)  # Monte Carlo: 3 %
    alone = KINDS[kind](criterion, draws=500, seed=1).array.var(axis=0)
    assert np.all(alone < 0.5 * made.array.var(axis=0))


def test_frequency_weights_are_copies_and_sampling_weights_stay_with_rows() -> None:
    copies = np.array([3.0, 0.0, 1.0, 2.0])
    frequency = mean_of_four(weights=copies, weight_kind="frequency")
    drawn = weights_of(frequency, 4000, "counts")
    assert np.all(drawn.sum(axis=1) == 6)
    assert np.all(drawn[:, 1] == 0)
    np.testing.assert_allclose(drawn.mean(axis=0), copies, atol=0.1)
    smooth = weights_of(frequency, 4000, "dirichlet")
    np.testing.assert_allclose(smooth.sum(axis=1), 6)
    np.testing.assert_allclose(smooth.mean(axis=0), copies, atol=0.15)
    sampling = mean_of_four(weights=[0.5, 1.0, 2.0, 4.0], weight_kind="sampling")
    counts = weights_of(sampling, 50, "counts") / [0.5, 1.0, 2.0, 4.0]
    assert np.all(counts == np.round(counts))
    assert np.all(counts.sum(axis=1) == 4)


def test_resamples_without_a_minimiser_are_counted() -> None:
    rng = np.random.default_rng(3)
    x = np.linspace(-2, 2, 24)
    y = (x + 0.8 * rng.standard_normal(24) > 0).astype(float)
    criterion = ef.Criterion(ef.losses.Logistic(), (np.column_stack([np.ones(24), x]), y))
    with pytest.warns(CalibrationWarning, match="have no minimiser"):
        made = bootstrap(criterion, draws=300, seed=0)
    assert 0 < made.info["failed"] < 300
    assert len(made) == 300 - made.info["failed"]
    assert np.all(np.isfinite(made.array))
    assert np.abs(made.array).max() < 1e4  # none of those that ran off


def test_collinear_resamples_are_failures_too() -> None:
    X = np.column_stack([np.ones(30), np.r_[1.0, np.zeros(29)]])  # a dummy for one row
    criterion = ef.Criterion(ef.losses.Squared(), (X, np.arange(30.0)))
    with pytest.warns(CalibrationWarning, match="have no minimiser"):
        made = bootstrap(criterion, draws=400, seed=0)
    share = made.info["failed"] / 400
    assert abs(share - (29 / 30) ** 30) < 4.5 * np.sqrt(0.36 * 0.64 / 400)
    only = ef.Criterion(ef.losses.Squared(), (np.eye(3), np.arange(3.0)))
    with pytest.raises(ConvergenceError, match="no minimiser"):
        bootstrap(only, draws=5, seed=0)


def test_losses_of_your_own_are_resampled_the_same_way() -> None:
    pytest.importorskip("jax")
    import jax.numpy as jnp

    def loss(theta, row):
        return 0.5 * (row["y"] - jnp.exp(theta) * row["x"]) ** 2

    rng = np.random.default_rng(4)
    x = 1 + rng.random(40)
    data = {"x": x, "y": 2 * x + rng.standard_normal(40)}
    criterion = ef.Criterion(ef.JaxLoss(loss), data, start=0.0)
    plain = ef.Criterion(ef.losses.Squared(), (x[:, None], data["y"]))
    mine = loss_likelihood_bootstrap(criterion, draws=8, seed=5).array
    np.testing.assert_allclose(
        np.exp(mine), loss_likelihood_bootstrap(plain, draws=8, seed=5).array, rtol=1e-7
    )


def test_pairs_are_resampled_by_units() -> None:
    """Pairwise least squares is least squares with an intercept, under any weights."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal(30)
    y = 2 * x + rng.standard_normal(30)
    pairs = ef.Criterion(ef.PairwiseDifference(ef.losses.Squared()), (x[:, None], y))
    plain = ef.Criterion(ef.losses.Squared(), (np.column_stack([np.ones(30), x]), y))
    for draw in KINDS.values():
        np.testing.assert_allclose(
            draw(pairs, draws=6, seed=5).array[:, 0],
            draw(plain, draws=6, seed=5).array[:, 1],
            rtol=1e-7,
        )


def test_the_same_seed_gives_the_same_draws() -> None:
    seeds = np.random.SeedSequence(5)
    one, two = (bootstrap(mean_of_four(), draws=20, seed=seeds).array for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, bootstrap(mean_of_four(), draws=20, seed=6).array)


@pytest.mark.parametrize("draw", [*KINDS.values(), q_posterior])
def test_bad_input_is_refused(draw) -> None:
    criterion = make_case("squared", n=40).criterion()
    kinked = make_case("squared", n=40).criterion(penalty=ef.penalties.L1(0.1))
    refused("criterion", "is a ndarray", lambda: draw(np.ones(3)))
    refused("draws", "1.5", lambda: draw(criterion, draws=1.5))
    refused("draws", "-3", lambda: draw(criterion, draws=-3))
    refused("penalty", "L1 has a kink", lambda: draw(kinked))
    refused("clusters", "3 entries", lambda: draw(criterion, clusters=[1, 2, 3]))
    refused("clusters", "only one cluster", lambda: draw(criterion, clusters=np.ones(40)))
    two = np.column_stack([np.arange(40) % 5, np.arange(40) % 7])
    refused("clusters", "several ways", lambda: draw(criterion, clusters=two))
    refused("seed", "is 'x'", lambda: draw(criterion, seed="x"))


def test_the_q_posterior_of_a_mean_is_normal() -> None:
    posterior = QPosterior(mean_of_four())
    theta = np.linspace(-3, 7, 11)[:, None]
    np.testing.assert_allclose(
        posterior.log_density(theta), -0.5 * (theta[:, 0] - 2) ** 2 / 0.875, rtol=1e-10, atol=1e-12
    )
    draws = q_posterior(mean_of_four(), draws=20_000, seed=1).array[:, 0]  # stratified
    assert abs(draws.mean() - 2) < 0.01
    assert abs(draws.var() - 0.875) < 0.01


@pytest.mark.parametrize("kind", ["frequency", "sampling"])
def test_q_posterior_by_matrix_products_is_that_of_single_scores(kind: str) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 4, 120).astype(float)
    criterion = make_case("poisson").criterion(
        penalty=ef.penalties.Ridge(0.2), weights=weights, weight_kind=kind
    )
    points = ef.minimise(criterion).theta + 0.1 * rng.standard_normal((5, 3))
    rows = Groups(np.arange(120), np.arange(120))
    made = QPosterior(criterion).log_density(points)
    if kind == "sampling":  # every row its own cluster
        other = QPosterior(criterion, groups=rows).log_density(points)
    else:
        copied = np.repeat(np.arange(120), weights.astype(int))
        plain = make_case("poisson").criterion(copied, penalty=ef.penalties.Ridge(0.2))
        other = QPosterior(plain).log_density(points)
    np.testing.assert_allclose(made, other, rtol=1e-9)


def test_the_q_posterior_has_the_sandwichs_spread_with_and_without_clusters() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(300), 4)
    X = np.column_stack([np.ones(1200), rng.standard_normal(300)[labels]])
    y = X @ [1.0, 2.0] + 2 * rng.standard_normal(300)[labels] + rng.standard_normal(1200)
    criterion = ef.Criterion(ef.losses.PseudoHuber(3.0), (X, y))
    for clusters, name in ((None, "HC0"), (labels, "CR0")):
        made = q_posterior(criterion, draws=1000, clusters=clusters, seed=1)
        wanted = ef.target(criterion, clusters=clusters, correction=name).covariance
        ratio = np.diag(made.covariance()) / np.diag(wanted)
        assert np.all(np.abs(ratio - 1) < 0.2)
    strong = ef.LogPrior.normal(np.zeros(2), 1e-6 * np.eye(2))
    held = q_posterior(criterion, draws=200, log_prior=strong, seed=1)
    assert np.abs(held.mean).max() < 0.05

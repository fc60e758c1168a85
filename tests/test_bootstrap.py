"""Draws without a learning rate: bootstraps by observation weights, and the Q-posterior."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import Case, make_case, refused
from etafree.bootstrap import bootstrap, loss_likelihood_bootstrap, weight_blocks
from etafree.data.groups import Groups
from etafree.errors import CalibrationWarning, ConvergenceError
from etafree.foundation.arguments import as_seeds
from etafree.optimize import many as batched
from etafree.q_posterior import QPosterior, q_posterior

FOUR = np.array([0.0, 1.0, 2.0, 5.0])
KINDS = {"dirichlet": loss_likelihood_bootstrap, "counts": bootstrap}


def mean_of_four(**options) -> ef.Criterion:
    return ef.Criterion(ef.losses.Squared(), (np.ones((4, 1)), FOUR), **options)


def weights_of(criterion, count, kind, seed=3, groups=None) -> np.ndarray:
    blocks = weight_blocks(criterion, count, groups, as_seeds(seed), kind)
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

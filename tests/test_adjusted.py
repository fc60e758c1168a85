"""Posteriors whose density is adjusted, Shaby's root, and composite likelihoods of real maxima."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import etafree as ef
from conftest import refused
from etafree.foundation.linalg import symmetric_root, transport

KINDS = ("curvature", "vertical", "magnitude")
EXACT = KINDS[:2]


def data(p: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(p)
    X = np.column_stack([np.ones(80), rng.standard_normal((80, p))])[:, :p]
    return X, X @ np.resize([0.5, 1.0, -1.0], p) + rng.standard_t(4, 80) * (1 + np.abs(X[:, -1]))


@cache
def criterion(p: int = 3) -> ef.Criterion:
    return ef.Criterion(ef.losses.Squared(), data(p), ef.penalties.Ridge(0.01))


@cache
def logistic() -> ef.Criterion:
    X, y = data()
    return ef.Criterion(ef.losses.Logistic(), (X, 1.0 * (y > 0)), ef.penalties.Ridge(0.01))


def slopes(function, point: np.ndarray, step: float) -> np.ndarray:
    """Central differences of a function of (p,), along the first axis."""
    moves = step * np.eye(len(point))
    return np.array([(function(point + m) - function(point - m)) / (2 * step) for m in moves])


@pytest.mark.parametrize("eta", [0.1, 1.0, 7.0])
def test_shabys_root_is_his_formula_of_hessian_and_scores(eta: float) -> None:
    goal = ef.target(criterion(), correction="HC0")
    draws = ef.sample(ef.GeneralizedPosterior(criterion(), eta), 200, seed=1)
    how = ef.Map("shaby", kind="scale", working="curvature")
    made = ef.calibrate(draws, goal, map=how).map
    root = symmetric_root(goal.meat) @ symmetric_root(goal.hessian)
    expected = np.sqrt(eta) * np.linalg.solve(goal.hessian, root)
    np.testing.assert_allclose(made.scale, expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(made.offset, draws.mean)
    moved = made.scale @ np.linalg.inv(eta * goal.hessian) @ made.scale.T
    np.testing.assert_allclose(moved, goal.covariance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("eta", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("kind", EXACT)
def test_a_quadratic_loss_becomes_the_normal_law_of_the_sandwich(kind: str, eta: float) -> None:
    goal = ef.target(criterion())
    made = ef.GeneralizedPosterior(criterion(), eta).adjusted(goal, kind)
    points = goal.center + np.random.default_rng(0).standard_normal((50, 3))
    away = points - goal.center
    expected = -0.5 * np.einsum("ij,ij->i", away, np.linalg.solve(goal.covariance, away.T).T)
    here = made.log_density(points) - made.log_density(goal.center)
    np.testing.assert_allclose(here, expected, rtol=1e-8)
    draws = ef.sample(made, 20_000, seed=1)
    assert draws.eta is None
    assert draws.info["pareto_k"] < 0.5
    z = np.linalg.solve(np.linalg.cholesky(goal.covariance), (draws.array - goal.center).T)
    np.testing.assert_allclose(np.cov(z), np.eye(3), atol=0.06)


def test_magnitude_is_right_on_average_over_directions_only() -> None:
    goal = ef.target(criterion(), correction="HC0")
    posterior = ef.GeneralizedPosterior(criterion(), 5.0).adjusted(goal, "magnitude")
    precision = -posterior.hessian(goal.center)
    assert np.trace(precision @ goal.covariance) == pytest.approx(3, rel=1e-12)
    assert np.ptp(np.linalg.eigvals(precision @ goal.covariance).real) > 0.2
    assert posterior.eta == pytest.approx(ef.select(criterion(), "magnitude").eta, rel=1e-8)


@pytest.mark.parametrize("prior", [None, ef.LogPrior.normal(np.ones(3), 0.3 * np.eye(3))])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_the_density(kind: str, prior: ef.LogPrior | None) -> None:
    goal = ef.target(logistic())
    plain = ef.GeneralizedPosterior(goal.criterion, 0.4, prior)
    made = plain.adjusted(goal, kind)
    point = goal.center + goal.se * [1.5, -0.7, 2.0]
    step = 1e-4 * goal.se.min()
    slope, bend = made.gradient(point), made.hessian(point)
    np.testing.assert_allclose(slope, slopes(made.log_density, point, step), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(bend, slopes(made.gradient, point, step), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", EXACT)
def test_the_mode_is_the_minimiser_and_its_curvature_that_of_the_sandwich(kind: str) -> None:
    goal = ef.target(logistic(), correction="HC0")
    made = ef.GeneralizedPosterior(goal.criterion, 0.4).adjusted(goal, kind)
    np.testing.assert_array_equal(made.gradient(goal.center), 0.0)
    A, B = goal.hessian, goal.meat
    expected = -A @ np.linalg.solve(B, A)
    np.testing.assert_allclose(made.hessian(goal.center), expected, rtol=1e-8)
    near, room = goal.center + 1e-4 * goal.se, 1e-3 * np.abs(expected).max()
    np.testing.assert_allclose(made.hessian(near), expected, atol=room)
    step = 1e-3 * goal.se.min()
    gradients = slopes(made.gradient, goal.center, step)
    np.testing.assert_allclose(gradients, expected, atol=room)


def test_the_curvature_adjustment_is_the_law_of_mapped_draws_under_a_flat_prior() -> None:
    goal = ef.target(logistic())
    plain = ef.GeneralizedPosterior(goal.criterion, 0.4)
    omega = transport(np.linalg.inv(0.4 * goal.hessian), goal.covariance)
    theta = goal.center + np.random.default_rng(1).standard_normal((20, 3)) * goal.se
    image = goal.center + (theta - goal.center) @ omega.T
    made = plain.adjusted(goal).log_density(image)
    constant = plain.log_density(goal.center)
    np.testing.assert_allclose(made, plain.log_density(theta) - constant, rtol=1e-9)


def test_vertical_and_magnitude_forget_the_learning_rate_curvature_only_to_first_order() -> None:
    goal = ef.target(logistic())
    points = goal.center + np.random.default_rng(1).standard_normal((20, 3)) * goal.se
    few, many = (
        [ef.GeneralizedPosterior(goal.criterion, eta).adjusted(goal, kind) for kind in KINDS]
        for eta in (0.1, 10.0)
    )
    gaps = [
        np.abs(np.diff(a.log_density(points)) - np.diff(b.log_density(points))).max()
        for a, b in zip(few, many, strict=True)
    ]
    assert gaps[0] > 0.05
    assert max(gaps[1:]) < 1e-9


def test_a_log_prior_stays_as_it_is() -> None:
    goal = ef.target(logistic())
    prior = ef.LogPrior.normal(goal.center + 1.0, 0.05 * np.eye(3))
    flat = ef.GeneralizedPosterior(goal.criterion, 1.0)
    for kind in EXACT:
        made = replace(flat, log_prior=prior).adjusted(goal, kind)
        theta = goal.center + 0.1
        both = flat.adjusted(goal, kind).log_density(theta) + prior.value(theta, 80.0)
        assert made.log_density(theta) == pytest.approx(both, rel=1e-12)
        precision = np.linalg.inv(goal.covariance)
        mean = np.linalg.solve(precision + 20 * np.eye(3), 20 * np.ones(3))
        drawn = ef.sample(made, 4000, seed=1).mean - goal.center
        np.testing.assert_allclose(drawn, mean, atol=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_one_parameter_is_drawn_by_quadrature(kind: str) -> None:
    goal = ef.target(criterion(p=1))
    draws = ef.sample(ef.GeneralizedPosterior(goal.criterion, 0.2).adjusted(goal, kind), seed=1)
    assert draws.sampler == "quadrature"
    assert draws.array.std() == pytest.approx(goal.se[0], rel=0.01)


def test_draws_of_an_adjusted_posterior_can_be_calibrated() -> None:
    goal = ef.target(logistic())
    draws = ef.sample(ef.GeneralizedPosterior(goal.criterion, 0.4).adjusted(goal), seed=1)
    result = ef.calibrate(draws, goal.criterion)
    np.testing.assert_allclose(result.map.scale, np.eye(3), atol=0.2)
    assert result.flags()
    how = ef.Map(working="curvature")
    refused("map", "eta", lambda: ef.calibrate(draws, goal, map=how))


def test_polynomial_tails_are_those_of_the_slowest_direction() -> None:
    goal = ef.target(ef.Criterion(ef.losses.StudentT(3.0), data()))
    plain = ef.GeneralizedPosterior(goal.criterion, 2.0)
    assert plain.adjusted(goal).tail_exponent == plain.tail_exponent
    rates = np.linalg.eigvals(np.linalg.inv(goal.hessian @ goal.covariance)).real
    vertical = plain.adjusted(goal, "vertical").tail_exponent
    assert vertical == pytest.approx(plain.tail_exponent * rates.min() / 2.0, rel=1e-9)


def test_what_cannot_be_adjusted_is_refused() -> None:
    X, y = data()
    own, posterior = ef.target(criterion()), ef.GeneralizedPosterior(criterion(), 1.0)
    sparse = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.L1(1e-3))
    for argument, fragment, kind, given in (
        ("kind", "vertical", "horizontal", own),
        ("target", "ef.target", "curvature", criterion()),
        ("target", "ef.target", "curvature", ef.Target(own.center, own.covariance, own.names)),
        ("target", "minimiser", "curvature", ef.target(criterion(), center=own.center + own.se)),
        (
            "target",
            "'a'",
            "vertical",
            ef.Target(own.center, own.covariance, ("a", "b", "c"), hessian=np.eye(3)),
        ),
    ):
        refused(argument, fragment, lambda g=given, k=kind: posterior.adjusted(g, k))
    kinked = ef.GeneralizedPosterior(sparse, 1.0)
    refused("target", "kink", lambda: kinked.adjusted(ef.target(sparse)))
    refused("sampler", "auto", lambda: ef.sample(posterior.adjusted(own), sampler="nuts"))

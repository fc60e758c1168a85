"""Penalties and the two conventions of what the learning rate multiplies."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import THETA, Case


@pytest.fixture(
    params=[
        ef.penalties.NoPenalty(),
        ef.penalties.Ridge(0.5),
        ef.penalties.Ridge(0.5, mu=[1, 2, 3], Q=[[2, 1, 0], [1, 2, 0], [0, 0, 0]]),
        ef.penalties.huberized_l1(0.5, 0.1),
    ],
    ids=["none", "ridge", "ridge_Q", "huberized_l1"],
)
def penalty(request: pytest.FixtureRequest) -> ef.penalties.Penalty:
    return request.param.fitted_to(3)


def test_penalties_are_convex_with_right_derivatives(penalty: ef.penalties.Penalty) -> None:
    step = 1e-6
    for j in range(3):
        e = step * np.eye(3)[j]
        slope = (penalty.value(THETA + e) - penalty.value(THETA - e)) / (2 * step)
        assert penalty.gradient(THETA)[j] == pytest.approx(float(slope), abs=1e-6)
        bend = (penalty.gradient(THETA + e) - penalty.gradient(THETA - e)) / (2 * step)
        np.testing.assert_allclose(penalty.hessian(THETA)[j], bend, atol=1e-5)
    assert np.linalg.eigvalsh(penalty.hessian(THETA))[0] >= -1e-12
    many = penalty.value(np.vstack([THETA, 2 * THETA]))
    np.testing.assert_allclose(many, [penalty.value(THETA), penalty.value(2 * THETA)])


def test_strength_may_depend_on_n_and_multiplies_the_effective_scale(robust: Case) -> None:
    fixed = robust.criterion(penalty=ef.penalties.Ridge(0.5))
    varying = robust.criterion(penalty=ef.penalties.Ridge(lambda n: 150.0 / n))
    assert fixed.size == 300
    assert fixed.value(THETA) == pytest.approx(varying.value(THETA), rel=1e-14)
    bare = robust.criterion()
    extra = 0.5 * 300 * 0.5 * float(THETA @ THETA)
    assert fixed.value(THETA) - bare.value(THETA) == pytest.approx(extra, rel=1e-10)


def test_ridge_least_squares_has_its_closed_form(robust: Case) -> None:
    criterion = ef.Criterion(
        ef.losses.Squared(), (robust.X, robust.y), ef.penalties.Ridge(0.5, mu=[1.0, 0.0, 2.0])
    )
    n = len(robust.y)
    expected = np.linalg.solve(
        robust.X.T @ robust.X + 0.5 * n * np.eye(3),
        robust.X.T @ robust.y + 0.5 * n * np.array([1.0, 0.0, 2.0]),
    )
    np.testing.assert_allclose(ef.minimise(criterion).theta, expected, rtol=1e-10)


def test_eta_scales_loss_and_penalty_but_not_a_log_prior(robust: Case) -> None:
    criterion = robust.criterion(penalty=ef.penalties.Ridge(0.5))
    prior = ef.LogPrior.normal(np.zeros(3), np.diag([1.0, 4.0, 9.0]))
    posterior = ef.GeneralizedPosterior(criterion, 0.2, prior)
    expected = -0.2 * criterion.value(THETA) + prior.value(THETA, criterion.size)
    assert posterior.log_density(THETA) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        posterior.gradient(THETA),
        -0.2 * criterion.gradient(THETA) + prior.gradient(THETA, 300.0),
        rtol=1e-10,
    )
    np.testing.assert_allclose(
        posterior.hessian(THETA),
        -0.2 * criterion.hessian(THETA) + prior.hessian(THETA, 300.0),
        rtol=1e-10,
    )
    np.testing.assert_allclose(
        posterior.log_density(np.vstack([THETA, 0 * THETA])),
        [posterior.log_density(THETA), posterior.log_density(0 * THETA)],
        rtol=1e-12,
    )


def test_an_unscaled_penalty_is_the_same_penalty_at_strength_over_eta(robust: Case) -> None:
    eta = 0.25
    ridge = ef.penalties.Ridge(0.5)
    unscaled = ef.GeneralizedPosterior(robust.criterion(), eta, ef.LogPrior.from_penalty(ridge, 3))
    stronger = ef.GeneralizedPosterior(robust.criterion(penalty=ef.penalties.Ridge(0.5 / eta)), eta)
    assert unscaled.log_density(THETA) == pytest.approx(stronger.log_density(THETA), rel=1e-12)

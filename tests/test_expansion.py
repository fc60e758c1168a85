"""The expansion of a log density that many rows' draws are weighted by."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from etafree.samplers import expansion
from etafree.samplers.expansion import Expansion, checked_expansion
from etafree.samplers.variational import normal_approximation


def logistic(n: int, eta: float) -> ef.GeneralizedPosterior:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2)), rng.exponential(size=n)])
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ [-0.5, 0.3, 0.0, 0.2]))).astype(float)
    return ef.GeneralizedPosterior(ef.Criterion(ef.losses.Logistic(), (X, y)), eta)


def normal_prior(**support: object) -> ef.LogPrior:
    return ef.LogPrior(
        lambda t, n: -0.5 * float(t @ t), lambda t, n: -t, lambda t, n: -np.eye(4), **support
    )


def test_polynomials_of_degree_four_are_expanded_exactly() -> None:
    """Of three parameters, so that no term has four different indices."""
    import jax.numpy as jnp

    def loss(theta, row):
        u = row["x"] @ theta
        return (row["y"] - u) ** 2 + 0.05 * (row["y"] - u) ** 3 + 0.1 * u**4

    rng = np.random.default_rng(1)
    data = {"x": rng.standard_normal((40, 3)), "y": rng.standard_normal(40)}
    start = jnp.zeros(3)
    posterior = ef.GeneralizedPosterior(ef.Criterion(ef.JaxLoss(loss), data=data, start=start), 0.3)
    normal = normal_approximation(posterior)
    z = 3 * rng.standard_normal((200, 3))
    exact = posterior.log_density(normal.mean + z @ normal.lower.T)
    expanded = Expansion.of(posterior, normal)(z)
    shift = exact - posterior.log_density(normal.mean) - expanded
    assert np.abs(shift).max() < 1e-9 * np.ptp(exact)


@pytest.mark.parametrize("eta", [1.0, 0.02])
def test_draws_are_those_of_the_exact_density(eta: float, monkeypatch) -> None:
    posterior = logistic(4000, eta)
    monkeypatch.setattr(expansion, "FROM", 1.0)
    quick = ef.sample(posterior, draws=4000, seed=1)
    assert quick.info["expansion_error"] <= expansion.TOLERANCE
    assert quick.info["ess"] > 3900
    monkeypatch.setattr(expansion, "FROM", np.inf)
    exact = ef.sample(posterior, draws=4000, seed=2)
    assert "expansion_error" not in exact.info
    sd, ess = exact.array.std(axis=0), exact.info["ess"]
    z = (quick.mean - exact.mean) / sd * np.sqrt(ess / 2)
    assert np.abs(z).max() < 4
    spread = (quick.array.std(axis=0) / sd - 1) * np.sqrt(ess)  # variance 2 / (2 ess)
    assert np.abs(spread).max() < 4
    skew = ((quick.array - quick.mean) ** 3 - (exact.array - exact.mean) ** 3).mean(axis=0) / sd**3
    assert np.abs(skew).max() < 4 * np.sqrt(2 * 15 / ess)


def test_what_is_left_out_is_measured_and_too_much_of_it_refused(monkeypatch) -> None:
    monkeypatch.setattr(expansion, "FROM", 1.0)
    rng = np.random.default_rng(5)
    errors = []
    for eta in (1.0, 0.1, 0.02):
        posterior = logistic(4000, eta)
        normal = normal_approximation(posterior)
        found = checked_expansion(posterior, normal, 4000, rng)
        z = rng.standard_normal((1000, 4))
        exact = posterior.log_density(normal.mean + z @ normal.lower.T)
        truth = np.std(exact - found(z))
        assert 0.4 * truth < found.error < 2.5 * truth
        errors.append(truth)
    assert errors[0] < errors[1] / 5 < errors[2] / 25  # of fifth order, and four-index terms
    far = logistic(4000, 0.002)
    assert checked_expansion(far, normal_approximation(far), 4000, rng) is None
    assert "expansion_error" not in ef.sample(far, seed=1).info


@pytest.mark.parametrize("kind", ["loss", "penalty", "prior"])
def test_kinks_and_bounds_are_not_expanded(kind: str, monkeypatch) -> None:
    monkeypatch.setattr(expansion, "FROM", 1.0)
    total = logistic(500, 1.0).criterion.total
    loss = ef.losses.Check(0.3) if kind == "loss" else ef.losses.Logistic()
    penalty = {"penalty": ef.penalties.L1(0.01)} if kind == "penalty" else {}
    prior = (
        {} if kind != "prior" else {"log_prior": normal_prior(support={"theta[1]": (-10.0, 10.0)})}
    )
    criterion = ef.Criterion(loss, (total.X, total.y), **penalty)
    posterior = ef.GeneralizedPosterior(criterion, 1.0, **prior)
    drawn = ef.sample(posterior, draws=4000, seed=1)
    assert "expansion_error" not in drawn.info


def test_a_smooth_prior_is_expanded(monkeypatch) -> None:
    monkeypatch.setattr(expansion, "FROM", 1.0)
    posterior = ef.GeneralizedPosterior(logistic(500, 1.0).criterion, 1.0, normal_prior())
    assert ef.sample(posterior, draws=4000, seed=1).info["expansion_error"] < expansion.TOLERANCE

"""Fixed effects of the units that are clusters: slopes are reported, dummies are not."""

import numpy as np
import pytest

import etafree as ef
from conftest import refused

RNG = np.random.default_rng(3)
SIZES = RNG.integers(3, 9, 12)
UNIT = np.repeat(np.arange(12), SIZES)
N = len(UNIT)
SLOPES = RNG.standard_normal((N, 2)) + 0.3 * UNIT[:, None]
Y = SLOPES @ [1.0, -0.5] + RNG.standard_normal(12)[UNIT] + RNG.standard_normal(N) * (1 + UNIT / 9)
EVERY = (UNIT[:, None] == np.arange(12)).astype(float)
CODED = np.column_stack([np.ones(N), EVERY[:, 1:]])


def with_dummies(dummies: np.ndarray, weights: np.ndarray | None = None) -> ef.Criterion:
    names = ["x", "z", *(f"d{k}" for k in range(dummies.shape[1]))]
    data = np.column_stack([SLOPES, dummies]), Y
    kind = "frequency" if weights is None else "sampling"
    return ef.Criterion(ef.losses.Squared(), data, names=names, weights=weights, weight_kind=kind)


def demeaned(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    mean = (EVERY * weights[:, None]).T @ values / np.bincount(UNIT, weights)[:, None]
    return values - mean[UNIT]


@pytest.mark.parametrize("dummies", [EVERY, CODED], ids=["every", "all but one"])
@pytest.mark.parametrize("weighted", [False, True])
def test_slopes_and_the_jackknife_are_those_of_refits(dummies: np.ndarray, weighted: bool) -> None:
    w = RNG.uniform(0.5, 2.0, N) if weighted else np.ones(N)
    criterion = with_dummies(dummies, w if weighted else None)
    goal = ef.target(criterion, clusters=UNIT, correction="CR3")
    assert goal.names == ("x", "z")
    assert "without 12 coefficients" in goal.design
    X, root = criterion.total.X, np.sqrt(w)
    full = np.linalg.lstsq(X * root[:, None], Y * root, rcond=None)[0]
    np.testing.assert_allclose(goal.center, full[:2], rtol=1e-8)
    moved = []
    for g in range(12):  # least squares of minimum norm: the lost dummy does not matter to slopes
        rows = g != UNIT
        fit = np.linalg.lstsq(X[rows] * root[rows, None], Y[rows] * root[rows], rcond=None)[0]
        moved.append(fit[:2] - full[:2])
    np.testing.assert_allclose(goal.covariance, np.transpose(moved) @ moved, rtol=1e-8)


@pytest.mark.parametrize("correction", ["CR0", "CR1", "CR2", "CR3"])
def test_it_is_the_regression_of_deviations_from_units_means(correction: str) -> None:
    inner = demeaned(np.column_stack([SLOPES, Y]), np.ones(N))
    plain = ef.Criterion(ef.losses.Squared(), (inner[:, :2], inner[:, 2]), names=["x", "z"])
    wanted = ef.target(plain, clusters=UNIT, correction=correction)
    goal = ef.target(with_dummies(CODED), clusters=UNIT, correction=correction)
    np.testing.assert_allclose(goal.covariance, wanted.covariance, rtol=1e-8)
    np.testing.assert_allclose(goal.dof, wanted.dof, rtol=1e-8)
    if correction in ("CR0", "CR1"):  # plm's Arellano estimator, HC0 and with G/(G - 1)
        A = np.linalg.inv(inner[:, :2].T @ inner[:, :2])
        sums = EVERY.T @ (inner[:, :2] * (inner[:, 2] - inner[:, :2] @ goal.center)[:, None])
        factor = 12 / 11 if correction == "CR1" else 1.0
        np.testing.assert_allclose(goal.covariance, factor * A @ sums.T @ sums @ A, rtol=1e-8)


def test_draws_of_the_slopes_are_calibrated() -> None:
    criterion = with_dummies(EVERY)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=1)
    goal = ef.target(criterion, clusters=UNIT)
    result = ef.calibrate(draws.select(goal.names), goal)
    np.testing.assert_allclose(result.target.covariance, goal.covariance)


def test_one_units_dummy_alone_is_left_out_and_others_stay() -> None:
    criterion = with_dummies(np.column_stack([np.ones(N), EVERY[:, 4]]))
    goal = ef.target(criterion, clusters=UNIT)
    assert goal.names == ("x", "z", "d0")


def test_nothing_but_dummies_is_refused_with_advice() -> None:
    criterion = ef.Criterion(ef.losses.Squared(), (EVERY, Y))
    refused("clusters", "varies within", lambda: ef.target(criterion, clusters=UNIT))


def test_other_losses_are_refused_as_before() -> None:
    criterion = with_dummies(EVERY[:, :3]).with_loss(ef.losses.Huber())
    refused("clusters", "alone determines", lambda: ef.target(criterion, clusters=UNIT))

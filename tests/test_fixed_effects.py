"""Fixed effects of the units that are clusters: slopes are reported, dummies are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused

Array = np.ndarray
RNG = np.random.default_rng(3)
SIZES = RNG.integers(4, 10, 12)
UNIT = np.repeat(np.arange(12), SIZES)
N = len(UNIT)
SLOPES = RNG.standard_normal((N, 2)) + 0.3 * UNIT[:, None]
EFFECT = RNG.standard_normal(12)[UNIT]
Y = SLOPES @ [1.0, -0.5] + EFFECT + RNG.standard_normal(N) * (1 + UNIT / 9)
COUNTS = RNG.poisson(np.exp(0.3 * SLOPES[:, 0] - 0.2 * SLOPES[:, 1] + 0.5 * EFFECT)).astype(float)
MIXED = RNG.standard_normal(N) + 0.2 * SLOPES[:, 1]
EVERY = (UNIT[:, None] == np.arange(12)).astype(float)
CODED = np.column_stack([np.ones(N), EVERY[:, 1:]])


def with_dummies(
    dummies: Array,
    loss: ef.losses.LinearLoss | None = None,
    y: Array = Y,
    weights: Array | None = None,
) -> ef.Criterion:
    names = ["x", "z", *(f"d{k}" for k in range(dummies.shape[1]))]
    data = np.column_stack([SLOPES, dummies]), y
    kind = "frequency" if weights is None else "sampling"
    loss = loss or ef.losses.Squared()
    return ef.Criterion(loss, data, names=names, weights=weights, weight_kind=kind)


def steps_without_clusters(criterion: ef.Criterion, theta: Array, first: int = 2) -> Array:
    """Newton steps (12, first) to what the first coefficients are without each cluster."""
    total, steps = criterion.total, []
    u = total.predictor(theta)
    slope = total.loss.first(u, total.y) * (1.0 if total.weights is None else total.weights)
    bend = total.loss.second(u, total.y) * (1.0 if total.weights is None else total.weights)
    for g in range(12):
        kept = g != UNIT
        X = total.X[kept]
        hessian, gradient = (X.T * bend[kept]) @ X, X.T @ slope[kept]
        steps.append(-(np.linalg.pinv(hessian, rcond=1e-9) @ gradient)[:first])
    return np.array(steps)


LOSSES = {
    "squared": (ef.losses.Squared(), Y),
    "Huber": (ef.losses.Huber(1.0, scale=1.0), Y),
    "Poisson": (ef.losses.Poisson(), COUNTS),
    "logistic": (ef.losses.Logistic(), (np.median(MIXED) < MIXED).astype(float)),
}


@pytest.mark.parametrize("dummies", [EVERY, CODED], ids=["every", "all but one"])
@pytest.mark.parametrize("name", LOSSES)
def test_slopes_have_the_jackknife_that_leaves_clusters_and_their_dummies_out(
    name: str, dummies: Array
) -> None:
    loss, y = LOSSES[name]
    criterion = with_dummies(dummies, loss, y)
    goal = ef.target(criterion, clusters=UNIT, correction="CR3")
    theta = ef.minimise(criterion).theta
    steps = steps_without_clusters(criterion, theta)
    assert goal.names == ("x", "z")
    np.testing.assert_allclose(goal.center, theta[:2], rtol=1e-10)
    np.testing.assert_allclose(goal.covariance, steps.T @ steps, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("correction", ["CR0", "CR1", "CR2", "CR3"])
def test_it_is_the_regression_of_deviations_from_units_means(
    correction: str, weighted: bool
) -> None:
    w = RNG.uniform(0.5, 2.0, N) if weighted else np.ones(N)
    values = np.column_stack([SLOPES, Y])
    mean = (EVERY * w[:, None]).T @ values / np.bincount(UNIT, w)[:, None]
    inner = values - mean[UNIT]
    weights, kind = (w, "sampling") if weighted else (None, "frequency")
    plain = ef.Criterion(
        ef.losses.Squared(), (inner[:, :2], inner[:, 2]), weights=weights, weight_kind=kind
    )
    wanted = ef.target(plain, clusters=UNIT, correction=correction)
    criterion = with_dummies(CODED, weights=weights)
    goal = ef.target(criterion, clusters=UNIT, correction=correction)
    np.testing.assert_allclose(goal.covariance, wanted.covariance, rtol=1e-8)
    if weighted and correction == "CR2":  # working variances of the dummies' own model
        return
    contrasts = np.array([[1.0, 0.0], [1.0, -1.0]])
    for ours, theirs in zip(goal.law(contrasts), wanted.law(contrasts), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)
    assert goal.joint_law(contrasts)[0] == pytest.approx(wanted.joint_law(contrasts)[0])


def test_a_table_with_a_category_per_cluster_is_calibrated_and_told_what_is_left_out() -> None:
    table = pd.DataFrame({"x": SLOPES[:, 0], "z": SLOPES[:, 1], "y": Y, "unit": UNIT.astype(str)})
    criterion = ef.Criterion.from_formula("y ~ x + C(unit) + z", table, ef.losses.Squared())
    posterior = ef.GeneralizedPosterior(criterion, eta=0.3)
    result = ef.calibrate(ef.sample(posterior, 2000, seed=1), posterior, clusters="unit")
    assert result.draws.names == ("x", "z")
    np.testing.assert_allclose(
        result.map(result.original.array).mean(axis=0), result.target.center, atol=1e-10
    )
    assert result.summary().index.tolist() == ["x", "z"]
    assert "one cluster alone determines each of Intercept, C(unit)[T.1]" in str(result)
    assert result.test("x = z").p_value < 0.05
    again = ef.calibrate(ef.sample(posterior, 2000, seed=1), result.target)
    np.testing.assert_array_equal(again.draws.array, result.draws.array)
    one = ef.calibrate(ef.sample(posterior, 500), posterior, clusters="unit", var_names="z")
    assert one.target.se[0] == pytest.approx(result.target.se[1], rel=1e-9)
    refused(
        "var_names",
        "one cluster alone determines each of Intercept",
        lambda: ef.target(criterion, clusters="unit", var_names=["z", "Intercept"]),
    )


def test_one_units_dummy_alone_is_left_out_and_others_stay() -> None:
    criterion = with_dummies(np.column_stack([np.ones(N), EVERY[:, 4]]))
    for correction in ("CR1", "CR3"):
        goal = ef.target(criterion, clusters=UNIT, correction=correction)
        assert goal.names == ("x", "z", "d0")
    steps = steps_without_clusters(criterion, ef.minimise(criterion).theta, 3)
    np.testing.assert_allclose(goal.covariance, steps.T @ steps, rtol=1e-8)


def test_slopes_that_a_cluster_alone_determines_are_left_out_too() -> None:
    X = np.column_stack([SLOPES, SLOPES[:, 0] * (UNIT == 7), EVERY])
    criterion = ef.Criterion(ef.losses.Squared(), (X, Y))
    goal = ef.target(criterion, clusters=UNIT)
    assert goal.names == ("theta[0]", "theta[1]")
    (found,) = goal.findings
    assert found.value == 13


def test_nothing_but_dummies_and_too_few_clusters_are_refused() -> None:
    only = ef.Criterion(ef.losses.Squared(), (EVERY, Y))
    refused("clusters", "are 12 for 12 parameters", lambda: ef.target(only, clusters=UNIT))
    few = UNIT % 2
    X = np.column_stack([SLOPES, few == 0, few == 1])
    crowded = ef.Criterion(ef.losses.Squared(), (X, Y))
    refused("clusters", "are 2 for 2 parameters", lambda: ef.target(crowded, clusters=few))


def test_a_penalty_determines_what_clusters_do_not() -> None:
    criterion = with_dummies(EVERY[:, :3])
    ridge = ef.Criterion(
        ef.losses.Squared(), (criterion.total.X, Y), penalty=ef.penalties.Ridge(0.1)
    )
    assert ef.target(ridge, clusters=UNIT).p == 5


def two_ways() -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(11)
    firm, year = np.repeat(np.arange(15), 10), np.tile(np.arange(10), 15)
    kept = rng.random(150) < 0.8
    firm, year = firm[kept], year[kept]
    x = rng.standard_normal((len(firm), 2)) + rng.standard_normal(15)[firm, None]
    noise = rng.standard_normal(15)[firm] + rng.standard_normal(10)[year]
    return firm, year, x, x @ [1.0, 0.5] + noise + rng.standard_normal(len(firm))


def test_fixed_effects_of_both_ways_leave_a_variance_of_leaving_out_either() -> None:
    firm, year, x, y = two_ways()
    D = np.column_stack([firm[:, None] == np.arange(15), year[:, None] == np.arange(1, 10)])
    X = np.column_stack([x, D.astype(float)])
    full = np.linalg.lstsq(X, y, rcond=None)[0]

    def jackknife(labels: Array) -> Array:
        steps = []
        for label in np.unique(labels):
            kept = labels != label
            steps.append(np.linalg.lstsq(X[kept], y[kept], rcond=1e-9)[0][:2] - full[:2])
        return np.transpose(steps) @ steps

    known = jackknife(firm) + jackknife(year) - jackknife(np.arange(len(y)))
    criterion = ef.Criterion(ef.losses.Squared(), (X, y))
    for correction in (None, "CR3"):
        goal = ef.target(criterion, clusters=[firm, year], correction=correction)
        assert goal.names == ("theta[0]", "theta[1]")
        assert goal.correction == "CR3"
        np.testing.assert_allclose(goal.covariance, known, rtol=1e-8)
        assert np.all((goal.dof > 3) & (goal.dof < 24))
    plain = ef.target(criterion, clusters=[firm, year], correction="CR1S", var_names=["theta[1]"])
    assert plain.se[0] == pytest.approx(goal.se[1], rel=0.3)


def test_years_are_crowded_by_the_effects_of_firms_and_one_slope_is_reported_by_name() -> None:
    firm, year, x, y = two_ways()
    D = np.column_stack([firm[:, None] == np.arange(15), year[:, None] == np.arange(1, 10)])
    criterion = ef.Criterion(ef.losses.Squared(), (np.column_stack([x, D]), y))
    refused("clusters", "are 10 for 16 parameters", lambda: ef.target(criterion, clusters=year))
    names = ["theta[0]", "theta[1]"]
    goal = ef.target(criterion, clusters=year, var_names=names)
    X, full = criterion.total.X, ef.minimise(criterion).theta
    steps = []
    for label in range(10):
        kept = year != label
        steps.append(np.linalg.lstsq(X[kept], y[kept], rcond=1e-9)[0][:2] - full[:2])
    np.testing.assert_allclose(goal.covariance, np.transpose(steps) @ steps, rtol=1e-8)

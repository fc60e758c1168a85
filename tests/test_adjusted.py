"""Posteriors whose density is adjusted, Shaby's root, and composite likelihoods of real maxima."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree.foundation.linalg import symmetric_root, transport
from studies.composite import gaussian_field, intervals

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "composite.md"
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


@cache
def blocks() -> dict[str, object]:
    """What the guide's blocks define."""
    names: dict[str, object] = {}
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    exec("\n".join(code), names)
    return names


def test_the_independence_likelihood_of_maxima_is_that_of_chandwich() -> None:
    """R 4.2.2, chandwich 1.1.6, on owtemps, with its log_gev() and the parameters of the guide.

    adjust_loglik(loglik, data = owtemps, mle = mle, H = H); mle by Newton's method with numDeriv's
    grad(d = 1e-4) and hessian(d = 2e-3); attributes MLE, SE, adjSE; f(mle + step, type =
    "vertical") - f(mle), and type = "spectral", whose C is that of symmetric roots.
    """
    criterion = blocks()["temperatures"]
    made = ef.target(criterion, correction="HC0")
    mle = [81.1701088081, 2.6684365339, 3.7290515231, 0.5310005401, -0.1989372819, -0.0883287263]
    se = [0.3281600859, 0.3281600802, 0.2292552082, 0.2292551527, 0.0493714094, 0.0493713975]
    adjusted = [0.4036092267, 0.2128230915, 0.2425665586, 0.1910985484, 0.0394381993, 0.0362490017]
    np.testing.assert_allclose(made.center, mle, rtol=1e-8)
    np.testing.assert_allclose(np.diag(np.linalg.inv(made.hessian)) ** 0.5, se, rtol=1e-6)
    np.testing.assert_allclose(made.se, adjusted, rtol=1e-6)
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    vertical = posterior.adjusted(made, "vertical")
    steps = np.array([[0.3, -0.2, 0.2, 0.1, 0.02, -0.01], [-0.5, 0.1, -0.1, 0.2, -0.03, 0.02]])
    values = vertical.log_density(made.center + steps)
    np.testing.assert_allclose(values, [-2.03348466526, -5.04560660137], rtol=1e-6)
    turn = transport(made.covariance, np.linalg.inv(made.hessian), "paper")
    spectral = replace(vertical, turn=turn).log_density(made.center + steps)
    np.testing.assert_allclose(spectral, [-2.07307909829, -5.86125442996], rtol=1e-6)


def test_the_husler_reiss_pair_is_that_of_evd() -> None:
    """R 4.2.2, evd 2.3-6.1: fbvevd(owtemps, model = "hr"), polished as above.

    That is Newton's method on -sum(dbvevd(..., model = "hr", log = TRUE)) with numDeriv, whose
    Hessian gives the standard errors.
    """
    criterion = blocks()["pair"]
    made = ef.target(criterion, correction="HC0")
    assert made.names[0] == "log_r"
    estimate = [
        83.7453851439,
        4.2107449992,
        -0.2323853470,
        78.4468521242,
        3.2012024258,
        -0.0653845260,
    ]
    np.testing.assert_allclose(made.center[1:], estimate, rtol=1e-8)
    assert np.exp(made.center[0]) == pytest.approx(1.4586582831, rel=1e-8)
    assert criterion.value(made.center) == pytest.approx(424.558583768, rel=1e-10)
    se = np.diag(np.linalg.inv(made.hessian)) ** 0.5 * [1.4586582831, 1, 1, 1, 1, 1, 1]
    expected = [
        0.2187555389,
        0.5160031607,
        0.3465881011,
        0.0627393651,
        0.3964337487,
        0.2729761167,
        0.0678046960,
    ]
    np.testing.assert_allclose(se, expected, rtol=2e-6)


def test_the_guide_quotes_the_peers_and_the_recorded_coverage() -> None:
    text = PAGE.read_text()
    for number in ("81.1701", "0.4036", "0.0362", "−2.0335", "83.7454", "1.4587"):
        assert number in text
    rows = re.findall(r"^\| ([\w', -]+?) \|((?: (?:[\d.]+|–) \|)+)$", text, flags=re.M)
    assert len(rows) == 8
    recorded = pd.read_csv(PAGE.with_name("composite-500.csv"))
    for method, cells in rows:
        mine = recorded[recorded["method"] == method]
        assert len(mine), method
        told = [cell.strip() for cell in cells.strip("|").split("|")]
        assert told == table_cells(mine), method


def table_cells(rows: pd.DataFrame) -> list[str]:
    """Coverage of log range and log sill at 0.01, 1 and 100, or once where there is no eta."""
    out = []
    for name in ("log_range", "log_sill"):
        for eta in (0.01, 1.0, 100.0):
            at = rows[(rows["parameter"] == name) & ((rows["eta"] == eta) | rows["eta"].isna())]
            out.append(f"{at['coverage'].iloc[0]:.3f}" if len(at) else "–")
    return out


def test_the_simulated_field_is_centred_at_its_truth() -> None:
    problems = [gaussian_field(np.random.default_rng(seed), 100) for seed in range(20)]
    off = np.array([ef.minimise(p.criterion).theta - p.truth for p in problems])
    assert np.all(np.abs(off.mean(axis=0)) < 1.0 * off.std(axis=0, ddof=1))
    made = intervals(np.random.default_rng(1), 100)
    low, high = made["location-scale, draws", 1.0]
    narrow = made["uncalibrated", 1.0]
    assert np.all(high - low > 2 * (narrow[1] - narrow[0]))

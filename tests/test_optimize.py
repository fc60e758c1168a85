"""The minimiser: a gradient that is zero to rounding, or a clear statement that there is none."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import Case, make_case
from etafree.errors import ConvergenceError, InputError


@pytest.mark.parametrize("strength", [0.0, 0.1, 10.0])
def test_the_gradient_is_zero_to_rounding(case: Case, strength: float) -> None:
    criterion = case.criterion(penalty=ef.penalties.Ridge(strength))
    fit = ef.minimise(criterion)
    terms = np.abs(criterion.total.scores(fit.theta)).sum(axis=0) + np.abs(
        strength * criterion.size * fit.theta
    )
    assert np.max(np.abs(criterion.gradient(fit.theta)) / terms) < 1e-10
    assert fit.status == ("converged" if case.loss.convex else "local")
    nudged = [criterion.value(fit.theta + 1e-3 * d) for d in np.vstack([np.eye(3), -np.eye(3)])]
    assert min(nudged) > fit.value


def test_glms_agree_with_statsmodels() -> None:
    import statsmodels.api as sm

    families = {
        "logistic": sm.families.Binomial(),
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
        "negative_binomial": sm.families.NegativeBinomial(alpha=0.7),
    }
    for name, family in families.items():
        case = make_case(name)
        model = sm.GLM(case.y, case.X, family=family, offset=case.offset)
        reference = model.fit(tol=1e-14, maxiter=200)
        np.testing.assert_allclose(
            ef.minimise(case.criterion()).theta, reference.params, rtol=1e-8, atol=1e-9
        )


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e6])
def test_units_of_columns_and_response_do_not_matter(robust: Case, scale: float) -> None:
    base = ef.minimise(ef.Criterion(ef.losses.Huber(1.345), (robust.X, robust.y))).theta
    units = np.array([1.0, scale, 1.0])
    turned = ef.minimise(ef.Criterion(ef.losses.Huber(1.345), (robust.X * units, robust.y))).theta
    np.testing.assert_allclose(turned * units, base, rtol=1e-8)
    loss = ef.losses.Huber(1.345, scale=scale)
    stretched = ef.minimise(ef.Criterion(loss, (robust.X, robust.y * scale))).theta
    np.testing.assert_allclose(stretched / scale, base, rtol=1e-8)


@pytest.mark.parametrize("c", [0.01, 0.1, 1.0])
def test_huber_is_solved_through_its_kinks_even_near_the_median(c: float) -> None:
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(400), rng.standard_normal((400, 4))])
    y = X @ rng.standard_normal(5) + rng.standard_cauchy(400)
    criterion = ef.Criterion(ef.losses.Huber(c), (X, y))
    fit = ef.minimise(criterion)
    assert fit.gap < 1e-10


def test_a_huge_outlier_does_not_stop_the_minimiser() -> None:
    rng = np.random.default_rng(6)
    X = np.column_stack([np.ones(100), rng.standard_normal(100)])
    y = X @ [1.0, 2.0] + rng.standard_normal(100)
    y[3] = 1e12
    fit = ef.minimise(ef.Criterion(ef.losses.Huber(1.345), (X, y)))
    assert np.all(np.abs(fit.theta - [1.0, 2.0]) < 0.6)


def test_separated_logistic_data_are_refused_with_the_column_named() -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(80)
    X = np.column_stack([np.ones(80), x])
    with pytest.raises(ConvergenceError, match=r"'dose'.*separated"):
        ef.minimise(
            ef.Criterion(ef.losses.Logistic(), (X, (x > 0).astype(float)), names=["one", "dose"])
        )
    group = np.r_[np.zeros(60), np.ones(20)]
    y = np.r_[rng.random(60) < 0.5, np.ones(20)].astype(float)  # quasi-separated
    X = np.column_stack([np.ones(80), group])
    with pytest.raises(ConvergenceError, match="separated"):
        ef.minimise(ef.Criterion(ef.losses.Logistic(), (X, y)))
    ridge = ef.Criterion(ef.losses.Logistic(), (X, y), ef.penalties.Ridge(0.01))
    assert ef.minimise(ridge).status == "converged"
    counts = np.r_[rng.poisson(3, 60), np.zeros(20)]
    with pytest.raises(ConvergenceError, match="infinity"):
        ef.minimise(ef.Criterion(ef.losses.Poisson(), (X, counts)))


def test_large_effects_are_not_mistaken_for_separation() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal(4000)
    y = (rng.random(4000) < 1 / (1 + np.exp(-12 * x))).astype(float)
    X = np.column_stack([np.ones(4000), x])
    fit = ef.minimise(ef.Criterion(ef.losses.Logistic(), (X, y)))
    assert 9 < fit.theta[1] < 16


def test_collinear_columns_are_named() -> None:
    rng = np.random.default_rng(9)
    X = rng.standard_normal((50, 3))
    X = np.column_stack([X, X[:, 0] - 2 * X[:, 2]])
    names = ["a", "b", "c", "d"]
    with pytest.raises(InputError, match=r"\['a', 'c', 'd'\] are collinear"):
        ef.minimise(ef.Criterion(ef.losses.Squared(), (X, X[:, 0]), names=names))
    zero = X[:, :3] * np.array([1.0, 0.0, 1.0])
    with pytest.raises(InputError, match="column 'b' is zero"):
        ef.minimise(ef.Criterion(ef.losses.Squared(), (zero, X[:, 0]), names=names[:3]))
    with pytest.raises(InputError, match="collinear"):  # more columns than rows
        ef.minimise(ef.Criterion(ef.losses.Squared(), (X[:3, :4], X[:3, 0])))
    ridge = ef.Criterion(ef.losses.Squared(), (X, X[:, 0]), ef.penalties.Ridge(0.1))
    assert ef.minimise(ridge).status == "converged"


def test_a_loss_that_is_not_convex_says_so_and_takes_the_better_minimum() -> None:
    rng = np.random.default_rng(10)
    y = np.r_[rng.normal(0, 0.3, 60), rng.normal(30, 0.3, 40)]
    criterion = ef.Criterion(ef.losses.StudentT(1.0, scale=0.3), (np.ones((100, 1)), y))
    best = ef.minimise(criterion)
    assert best.status == "local"
    rival = ef.minimise(criterion, start=[30.0])
    assert abs(best.theta[0]) < 1
    assert abs(rival.theta[0] - 30) < 1
    assert best.value < rival.value


def test_a_start_may_be_given(robust: Case) -> None:
    criterion = robust.criterion()
    np.testing.assert_allclose(
        ef.minimise(criterion, start=[5.0, -5.0, 5.0]).theta,
        ef.minimise(criterion).theta,
        rtol=1e-8,
    )

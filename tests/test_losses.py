"""One contract for all losses: derivatives, weights, order of rows, majorizers."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import LOSSES, THETA, Case, make_case
from etafree.losses.residual import mad_scale


def test_slopes_and_curvatures_are_the_derivatives_of_the_value(case: Case) -> None:
    total = case.criterion().total
    u = total.predictor(THETA)
    step = 1e-5
    numeric = (case.loss.values(u + step, total.y) - case.loss.values(u - step, total.y)) / (
        2 * step
    )
    np.testing.assert_allclose(case.loss.first(u, total.y), numeric, rtol=1e-6, atol=1e-7)
    bend = (case.loss.first(u + step, total.y) - case.loss.first(u - step, total.y)) / (2 * step)
    np.testing.assert_allclose(case.loss.second(u, total.y), bend, rtol=1e-6, atol=1e-7)


def test_gradient_and_hessian_are_the_derivatives_of_the_penalized_total(case: Case) -> None:
    criterion = case.criterion(penalty=ef.penalties.Ridge(0.3, mu=[0.1, 0.2, 0.3]))
    step = 1e-5
    for j in range(3):
        e = step * np.eye(3)[j]
        slope = (criterion.value(THETA + e) - criterion.value(THETA - e)) / (2 * step)
        assert slope == pytest.approx(criterion.gradient(THETA)[j], rel=1e-6, abs=1e-5)
        bend = (criterion.gradient(THETA + e) - criterion.gradient(THETA - e)) / (2 * step)
        np.testing.assert_allclose(criterion.hessian(THETA)[j], bend, rtol=1e-5, atol=1e-4)


def test_contributions_add_up_to_the_totals(case: Case) -> None:
    weights = np.random.default_rng(0).random(len(case.y))
    total = case.criterion(weights=weights, weight_kind="sampling").total
    made = total.derivatives(THETA)
    assert total.values(THETA).sum() == pytest.approx(made.value, rel=1e-12)
    np.testing.assert_allclose(total.scores(THETA).sum(axis=0), made.gradient, rtol=1e-10)
    np.testing.assert_allclose(total.totals(np.tile(THETA, (3, 1))), made.value, rtol=1e-12)
    plain = case.criterion().total
    np.testing.assert_allclose(
        plain.totals(np.tile(THETA, (3, 1))), plain.values(THETA).sum(), rtol=1e-12
    )


def test_frequency_weights_are_repetition(case: Case) -> None:
    counts = np.random.default_rng(1).integers(0, 4, len(case.y))
    rows = np.repeat(np.arange(len(case.y)), counts)
    weighted = case.criterion(weights=counts, weight_kind="frequency", penalty=ef.penalties.Ridge())
    repeated = case.criterion(rows, penalty=ef.penalties.Ridge())
    assert weighted.size == repeated.size
    assert weighted.value(THETA) == pytest.approx(repeated.value(THETA), rel=1e-12)
    np.testing.assert_allclose(weighted.gradient(THETA), repeated.gradient(THETA), rtol=1e-9)
    np.testing.assert_allclose(weighted.hessian(THETA), repeated.hessian(THETA), rtol=1e-10)


def test_the_order_of_rows_does_not_matter(case: Case) -> None:
    order = np.random.default_rng(2).permutation(len(case.y))
    one, two = case.criterion(), case.criterion(order)
    assert one.value(THETA) == pytest.approx(two.value(THETA), rel=1e-12)
    np.testing.assert_allclose(one.gradient(THETA), two.gradient(THETA), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(one.hessian(THETA), two.hessian(THETA), rtol=1e-10)


def test_blocks_of_any_size_give_the_same_sums(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    total = case.criterion().total
    whole = total.derivatives(THETA)
    many = total.totals(np.vstack([THETA, -THETA, 0 * THETA]))
    monkeypatch.setattr("etafree.totals.linear.BLOCK", 50)
    small = total.derivatives(THETA)
    assert small.value == pytest.approx(whole.value, rel=1e-12)
    np.testing.assert_allclose(small.gradient, whole.gradient, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(small.hessian, whole.hessian, rtol=1e-12)
    np.testing.assert_allclose(
        total.totals(np.vstack([THETA, -THETA, 0 * THETA])), many, rtol=1e-12
    )


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"poisson", "gamma", "negative_binomial"}))
def test_majorizers_lie_above_the_loss(name: str) -> None:
    loss = LOSSES[name]
    y = np.array([[1.0, 3.0]]) if name == "binomial" else np.array([1.0])
    for anchor in np.linspace(-5, 5, 21):
        at = np.array([anchor])
        u = np.linspace(-8, 8, 161)
        value = np.array([loss.values(np.array([v]), y)[0] for v in u])
        if name in ("logistic", "binomial"):  # Newton's curvature, no majorizer
            continue
        quadratic = (
            loss.values(at, y)
            + loss.first(at, y) * (u - anchor)
            + 0.5 * loss.majorizer(at, y) * (u - anchor) ** 2
        )
        assert np.all(quadratic >= value - 1e-7)


def test_expected_derivatives_match_a_dense_quadrature(case: Case) -> None:
    """E of gradient and Hessian under a normal parameter, by the one-dimensional identity."""
    total = case.criterion().total
    covariance = 0.05 * np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 0.6]])
    gradient, hessian = total.expected_derivatives(THETA, covariance)
    z = np.linspace(-8, 8, 4001)
    density = np.exp(-0.5 * z**2)
    density /= density.sum()
    sd = np.sqrt(np.einsum("ij,jk,ik->i", total.X, covariance, total.X))
    u = total.predictor(THETA) + z[:, None] * sd
    slope = density @ total.loss.first(u, total.y)
    bend = density @ total.loss.second(u, total.y)
    np.testing.assert_allclose(gradient, slope @ total.X, rtol=0.02, atol=0.3)
    np.testing.assert_allclose(hessian, (total.X.T * bend) @ total.X, rtol=0.05, atol=1.0)


def test_huber_is_half_the_square_inside_and_linear_outside() -> None:
    loss = ef.losses.Huber(1.0, scale=2.0)
    u, y = np.zeros(3), np.array([1.0, 2.0, 8.0])
    np.testing.assert_allclose(loss.values(u, y), [0.125, 0.5, 3.5])
    np.testing.assert_allclose(loss.first(u, y), [-0.25, -0.5, -0.5])
    np.testing.assert_allclose(loss.second(u, y), [0.25, 0.25, 0.0])


def test_extreme_predictors_give_no_warning_and_no_nan() -> None:
    u, y = np.array([-1e4, -800.0, 0.0, 800.0, 1e4]), np.ones(5)
    for name in ("logistic", "poisson", "gamma", "negative_binomial"):
        for part in (LOSSES[name].values, LOSSES[name].first, LOSSES[name].second):
            assert not np.isnan(part(u, y)).any()


def test_mad_scale_agrees_with_statsmodels_rlm() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(150), rng.standard_normal(150)])
    y = X @ [1.0, -2.0] + rng.standard_t(2, 150)
    reference = sm.RLM(y, X, M=sm.robust.norms.HuberT(1.345)).fit(tol=1e-13, maxiter=500)
    criterion = ef.Criterion(ef.losses.Huber(1.345, scale="mad"), (X, y))
    assert criterion.loss.plug_ins()["scale"] == pytest.approx(reference.scale, rel=1e-8)
    np.testing.assert_allclose(ef.minimise(criterion).theta, reference.params, rtol=1e-8)
    counts = rng.integers(0, 3, 150)
    rows = np.repeat(np.arange(150), counts)
    assert mad_scale(criterion.loss, X, y, counts.astype(float)) == pytest.approx(
        mad_scale(criterion.loss, X[rows], y[rows]), rel=1e-9
    )


def test_sums_keep_their_digits_beside_a_huge_outlier(robust: Case) -> None:
    y = robust.y.copy()
    y[0] = 1e8
    criterion = ef.Criterion(ef.losses.Huber(1.345), (robust.X, y))
    near = np.vstack([THETA, THETA + 1e-3])
    by_one = [criterion.total.values(t) for t in near]
    exact = float(np.sum(by_one[1] - by_one[0]))
    many = criterion.values_at(near)
    assert many[1] - many[0] == pytest.approx(exact, abs=1e-6)


def test_rows_of_weight_zero_are_not_there() -> None:
    """A row far out, where the loss overflows, changes nothing when its weight is zero."""
    case = make_case("poisson")
    X, y = np.vstack([case.X, [1.0, 1e5, 500.0]]), np.append(case.y, 3.0)
    offset = np.append(case.offset, 0.0)
    plain = case.criterion()
    weights = np.append(np.ones(len(case.y)), 0.0)
    for kind in ("frequency", "sampling"):
        more = ef.Criterion(case.loss, (X, y), offset=offset, weights=weights, weight_kind=kind)
        np.testing.assert_allclose(ef.minimise(more).theta, ef.minimise(plain).theta, rtol=1e-9)
        for correction in ("HC0", "HC1", "HC2", "HC3"):
            np.testing.assert_allclose(
                ef.target(more, correction=correction).covariance,
                ef.target(plain, correction=correction).covariance,
                rtol=1e-8,
            )

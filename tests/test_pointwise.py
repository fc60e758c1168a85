"""Losses that come as one vector, against the same losses in closed form."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import make_case, refused
from etafree.data.groups import Groups
from etafree.totals import vector as pointwise
from etafree.totals.base import Total
from etafree.totals.vector import PointwiseLoss

jnp = pytest.importorskip("jax.numpy")

Y6 = np.array([0.3, 1.0, 2.2, 2.9, 4.1, 4.8])

KINDS = {
    "squared": lambda u, y: 0.5 * (y - u) ** 2,
    "logistic": lambda u, y: jnp.logaddexp(0.0, u) - y * u,
}


def both(name, n=60, **options):
    """Return the same criterion twice: losses as a vector, and in closed form."""
    case = make_case(name, n=n)
    X, y, offset = case.X, case.y, case.offset
    loss = PointwiseLoss(lambda theta: KINDS[name](X @ theta + offset, y), n, name)
    return ef.Criterion(loss, None, start=np.zeros(3), **options), case.criterion(**options)


def close(a, b, tolerance=1e-10):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.max(np.abs(b)))


@pytest.fixture(params=sorted(KINDS), scope="module")
def pair(request):
    return both(request.param)


THETA = np.array([0.3, -0.4, 0.5])
CODES = np.arange(60) // 4


def test_values_scores_and_hessian_are_those_of_the_closed_form(pair):
    mine, known = pair
    close(mine.total.values(THETA), known.total.values(THETA))
    close(mine.total.scores(THETA), known.total.scores(THETA))
    a, b = mine.derivatives(THETA), known.derivatives(THETA)
    close(a.value, b.value)
    close(a.gradient, b.gradient)
    close(a.hessian, b.hessian)
    value, gradient = mine.total.value_and_gradient(THETA)
    close(value, b.value)
    close(gradient, b.gradient)


@pytest.mark.parametrize("correction", ["CR0", "CR1S", "CR2", "CR3"])
def test_cluster_targets_are_those_of_the_closed_form(pair, correction):
    mine, known = (ef.target(c, clusters=CODES, correction=correction) for c in pair)
    close(mine.center, known.center)
    close(mine.covariance, known.covariance)
    close(mine.dof, known.dof, 1e-8)


@pytest.mark.parametrize("correction", ["HC0", "HC1", "HC2", "HC3"])
def test_independent_targets_are_those_of_the_closed_form(pair, correction):
    mine, known = (ef.target(c, correction=correction) for c in pair)
    close(mine.covariance, known.covariance)


@pytest.mark.parametrize("kind", ["frequency", "sampling"])
@pytest.mark.parametrize("correction", ["CR1S", "CR2", "CR3"])
def test_weights_of_both_kinds(kind, correction):
    weights = np.random.default_rng(3).integers(0, 4, 60).astype(float)
    options = {"weights": weights, "weight_kind": kind, "penalty": ef.penalties.Ridge(0.2)}
    mine, known = (
        ef.target(c, clusters=CODES, correction=correction) for c in both("logistic", **options)
    )
    close(mine.center, known.center)
    close(mine.covariance, known.covariance)
    close(mine.dof, known.dof, 1e-8)


def test_totals_at_many_points_and_after_reweighting(pair):
    mine, known = pair
    points = np.random.default_rng(0).standard_normal((37, 3))
    close(mine.values_at(points), known.values_at(points))
    weights = np.arange(60) % 3
    close(mine.reweighted(weights).values_at(points), known.reweighted(weights).values_at(points))


def test_a_loss_that_is_not_a_number_has_density_zero():
    loss = PointwiseLoss(lambda theta: jnp.log(theta[0]) * jnp.ones(4), 4, "log")
    total = ef.Criterion(loss, None, start=[1.0]).total
    assert total.totals(np.array([[2.0], [-1.0]])).tolist() == [4 * np.log(2.0), np.inf]


def test_small_bundles_and_blocks_change_nothing(monkeypatch):
    whole = both("logistic")[0]
    groups = Groups.of(CODES, 60)
    blocks = list(whole.total.cluster_blocks(THETA, groups))
    monkeypatch.setattr(pointwise, "BUNDLE", 64)
    monkeypatch.setattr(pointwise, "HESSIANS", 4 * 9)
    small = both("logistic")[0]
    parts = list(small.total.cluster_blocks(THETA, groups))
    assert (len(blocks), len(parts)) == (1, 4)
    for name in ("scores", "hessians", "weights", "variances"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        close(joined, getattr(blocks[0], name), 1e-13)
    close(small.derivatives(THETA).hessian, whole.derivatives(THETA).hessian, 1e-13)
    points = np.random.default_rng(0).standard_normal((5, 3))
    close(small.values_at(points), whole.values_at(points), 1e-13)


def test_a_safe_hessian_is_positive_where_the_loss_bends_down():
    loss = PointwiseLoss(lambda theta: jnp.cos(theta[0]) + theta[1] ** 2 * jnp.ones(3), 3, "cos")
    total = ef.Criterion(loss, None, start=[0.1, 0.2]).total
    at = np.array([0.1, 0.2])
    assert np.linalg.eigvalsh(total.derivatives(at).hessian)[0] < 0
    assert np.linalg.eigvalsh(total.derivatives(at, majorize=True).hessian)[0] > 0


def test_the_no_u_turn_sampler_draws_from_it():
    pytest.importorskip("blackjax")
    mine, known = both("squared")
    draws = ef.sample(ef.GeneralizedPosterior(mine, eta=0.5), 2000, sampler="nuts", seed=1)
    fit = ef.minimise(known)
    sd = np.sqrt(np.diagonal(np.linalg.inv(0.5 * fit.hessian)))
    z = (draws.mean - fit.theta) / sd * np.sqrt(draws.ess)
    assert np.abs(z).max() < 4.5
    assert np.abs(np.log(draws.array.std(axis=0) / sd)).max() < 0.15


def test_jax_outside_keeps_its_precision(pair):
    pair[0].total.scores(THETA)
    assert jnp.ones(1).dtype == np.float32


def test_clusters_may_be_a_column_of_the_data():
    pd = pytest.importorskip("pandas")
    y = np.arange(6.0)
    loss = PointwiseLoss(lambda theta: 0.5 * (y - theta[0]) ** 2, 6, "squares")
    criterion = ef.Criterion(loss, pd.DataFrame({"g": list("aabbcc")}), start=0.0, names=["m"])
    target = ef.target(criterion, clusters="g", correction="CR0")
    assert target.names == ("m",)
    assert target.covariance[0, 0] == pytest.approx(32 / 36)  # (16 + 0 + 16) / n**2


def test_calibration_reaches_the_target():
    mine, _ = both("logistic")
    rng = np.random.default_rng(0)
    result = ef.calibrate(
        rng.standard_normal((500, 3)), ef.target(mine, clusters=CODES, dof=np.inf)
    )
    close(np.cov(result.draws.array.T), result.target.covariance, 1e-8)
    assert "logistic" in result.target.estimand


def test_what_is_refused():
    y = np.zeros(3)
    good = PointwiseLoss(lambda theta: y + theta[0], 3, "good")
    refused("function", "is a int", lambda: PointwiseLoss(3, 3))
    refused("n", "is 0", lambda: PointwiseLoss(jnp.sin, 0))
    refused("start", "is missing", lambda: ef.Criterion(good, None))
    refused("start", "shape", lambda: ef.Criterion(good, None, start=np.zeros((2, 2))))
    refused("data", "has 2 rows", lambda: ef.Criterion(good, np.zeros(2), start=[0.0]))
    short = PointwiseLoss(lambda theta: theta, 3, "short")
    refused("function", "for 3 observations", lambda: ef.Criterion(short, None, start=[0.0]))
    lost = PointwiseLoss(lambda theta: jnp.log(theta[0] - y), 3, "lost")
    refused("start", "3 rows", lambda: ef.Criterion(lost, None, start=[0.0]))
    refused(
        "clusters",
        "has 2 entries",
        lambda: ef.target(ef.Criterion(good, None, start=[0.0]), clusters=[1, 2]),
    )


def gaussian_pair(theta):
    """A pair of equal numbers, each with noise of variance 1/4; tanh(theta) correlates the rest."""
    x, r = np.linspace(-2, 2, 20), jnp.tanh(theta[0])
    return 0.5 * jnp.log(1.25**2 - r**2) + x**2 / (1.25 + r)


def counts(theta):
    """Negative binomial losses of counts less spread than Poisson's; dispersion exp(-theta[1])."""
    y, mean, size = np.array([2.0, 3.0, 4.0, 3.0, 2.0, 3.0]), jnp.exp(theta[0]), jnp.exp(theta[1])
    rising = sum(jnp.where(y > k, jnp.log1p(k / size), 0.0) for k in range(4))
    return (y + size) * jnp.log1p(mean / size) - y * theta[0] - rising


def test_parameters_at_the_end_of_their_range_are_named():
    for function, n, spreads, start, problem in (
        (gaussian_pair, 20, (0,), [0.0], "the estimate of a is at its boundary, variance zero"),
        (counts, 6, (), [0.5, 1.0], "best fit at the end of the range of b, at infinity"),
        (lambda t: jnp.exp(-t[0]) + 0.0 * Y6, 6, (), [0.0], "the end of the range of a, at"),
    ):
        loss = PointwiseLoss(function, n, spreads=spreads)
        criterion = ef.Criterion(loss, None, start=start, names=["a", "b"][: len(start)])
        refused("model", problem, lambda criterion=criterion: ef.minimise(criterion))


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_parameters_of_any_units_are_not_at_the_end_of_a_range(unit):
    y = unit * Y6
    loss = PointwiseLoss(lambda t: 0.5 * ((y - t[0]) / unit) ** 2, 6, spreads=(0,))
    assert ef.minimise(ef.Criterion(loss, None, start=[0.0])).theta[0] == pytest.approx(y.mean())


def test_where_no_minimum_is_found_the_advice_is_about_the_model():
    loss = PointwiseLoss(lambda t: t[0] + 0.0 * Y6, 6)
    criterion = ef.Criterion(loss, None, start=[0.0])
    with pytest.raises(ef.errors.ConvergenceError, match="priors that say more"):
        ef.minimise(criterion)


def test_losses_of_single_rows_are_those_under_weights_of_one_row_each():
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 9))
    thetas, rows = rng.standard_normal((5, 2)), np.array([7, 0, 3])
    known = 0.5 * (y[rows] - thetas[:, :1] - thetas[:, 1:] * x[rows]) ** 2

    def one(theta, row):
        return 0.5 * (row["y"] - theta[0] - theta[1] * row["x"]) ** 2

    def every(theta):
        return 0.5 * (y - theta[0] - theta[1] * x) ** 2

    data = {"x": x, "y": y}
    for criterion in (
        ef.Criterion(ef.JaxLoss(one, constants=True), data=data, start=np.zeros(2)),
        ef.Criterion(PointwiseLoss(every, n=9), data=None, start=np.zeros(2)),
    ):
        total = criterion.reweighted(rng.integers(0, 3, 9)).total
        np.testing.assert_allclose(total.losses_of(rows, thetas), known, rtol=1e-12)
        np.testing.assert_allclose(Total.losses_of(total, rows, thetas), known, rtol=1e-12)

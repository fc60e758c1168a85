"""Losses written in JAX: the numbers of the closed forms, pytrees, weights, every refusal."""

from __future__ import annotations

import pickle
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

import etafree as ef
from conftest import THETA, make_case, refused
from etafree.data.groups import Groups
from etafree.errors import ConvergenceError, MissingExtraError
from etafree.totals import jax as jax_total
from etafree.totals.jax import JaxLoss, Kernels, double_precision

jax = pytest.importorskip("jax")
jnp = jax.numpy

NAMES = ("squared", "huber", "logistic", "poisson")
START = np.zeros(3)
N = 700


def squared(theta, row):
    return 0.5 * (row["y"] - row["x"] @ theta - row["o"]) ** 2


def huber(theta, row):
    r = jnp.abs(row["y"] - row["x"] @ theta - row["o"]) / 1.2
    return jnp.where(r <= 1.345, 0.5 * r**2, 1.345 * (r - 0.5 * 1.345))


def logistic(theta, row):
    u = row["x"] @ theta + row["o"]
    return jnp.logaddexp(0.0, u) - row["y"] * u


def poisson(theta, row):
    return jnp.exp(row["x"] @ theta + row["o"]) - row["y"] * (row["x"] @ theta + row["o"])


def hidden(function, theta, row):
    """The same loss, in a form that is no function of a linear predictor."""
    return function(theta, row) + 0.0 * jnp.sum(jnp.sin(theta))


FUNCTIONS = {"squared": squared, "huber": huber, "logistic": logistic, "poisson": poisson}
LOSSES = {(name, "predictor"): JaxLoss(FUNCTIONS[name]) for name in NAMES}
LOSSES |= {(name, "plain"): JaxLoss(partial(hidden, FUNCTIONS[name]), name) for name in NAMES}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Three chunks of 256 rows, the last one overlapping; 50 Hessians of single rows at a time."""
    monkeypatch.setattr(jax_total, "CHUNK", 1)
    monkeypatch.setattr(jax_total, "HESSIANS", 9 * 50)


def columns(case):
    return {"x": case.X, "y": case.y, "o": case.offset}


def both(name, way="predictor", **options):
    """Return the criterion in closed form and the one in JAX."""
    case = make_case(name, n=N)
    loss = LOSSES[name, way]
    return case.criterion(**options), ef.Criterion(loss, columns(case), start=START, **options)


def weights_of(kind):
    rng = np.random.default_rng(3)
    if kind == "frequency":
        return {"weights": rng.integers(0, 4, N), "weight_kind": kind}
    if kind == "sampling":
        return {"weights": rng.random(N) * (rng.random(N) > 0.2), "weight_kind": kind}
    return {}


def same(found, wanted, tolerance=1e-10):
    scale = np.max(np.abs(wanted)) or 1.0
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


every = pytest.mark.parametrize("name", NAMES)
ways = pytest.mark.parametrize("way", ["predictor", "plain"])
kinds = pytest.mark.parametrize("kind", ["none", "frequency", "sampling"])


@every
@ways
@kinds
def test_totals_are_those_of_the_closed_form(name, way, kind):
    closed, written = both(name, way, **weights_of(kind))
    a, b = closed.total, written.total
    assert (b.n, b.p, b.weight, b.size, b.count) == (a.n, a.p, a.weight, a.size, a.count)
    theta = THETA + 0.1
    same(b.values(theta), a.values(theta))
    same(b.scores(theta), a.scores(theta))
    for found_part, part in zip(b.derivatives(theta)[:3], a.derivatives(theta)[:3], strict=True):
        same(found_part, part)
    thetas = theta + 0.1 * np.random.default_rng(1).standard_normal((13, 3))
    same(b.totals(thetas), a.totals(thetas))
    value, gradient = b.value_and_gradient(theta)
    same(value, a.derivatives(theta).value)
    same(gradient, a.derivatives(theta).gradient)


@every
@ways
@kinds
def test_clusters_are_those_of_the_closed_form(name, way, kind):
    closed, written = both(name, way, **weights_of(kind))
    groups = Groups.of(np.random.default_rng(2).integers(0, 90, N), N)
    for found, wanted in zip(
        written.total.cluster_totals(THETA, groups),
        closed.total.cluster_totals(THETA, groups),
        strict=True,
    ):
        same(found, wanted)
    for part in (groups, Groups(np.arange(N), np.arange(N))):
        blocks = [list(c.total.cluster_blocks(THETA, part)) for c in (written, closed)]
        assert [b.first for b in blocks[0]] == list(range(0, len(part), 50))
        for field in ("scores", "hessians", "weights", "variances"):
            same(*(np.concatenate([getattr(b, field) for b in some]) for some in blocks))


@every
@ways
def test_minimisers_agree(name, way):
    closed, written = both(name, way)
    a, b = ef.minimise(closed), ef.minimise(written)
    same(b.theta, a.theta)
    same(b.hessian, a.hessian)
    assert b.status == "local"
    declared = ef.Criterion(
        JaxLoss(FUNCTIONS[name], convex=True), columns(make_case(name, n=N)), start=START
    )
    assert ef.minimise(declared).status == "converged"


DESIGNS = {
    **{name: {"correction": name} for name in ("HC0", "HC1", "HC2", "HC3")},
    **{
        name: {"correction": name, "clusters": np.arange(N) % 41}
        for name in ("CR0", "CR1", "CR1S", "CR2", "CR3")
    },
    "two ways": {"clusters": {"a": np.arange(N) % 23, "b": np.arange(N) // 31}},
    "survey": {"dependence": ef.Survey(np.arange(N) // 7, np.arange(N) % 5)},
    "time": {"dependence": ef.TimeSeries(np.arange(N))},
    "panel": {
        "dependence": ef.Panel(np.arange(N) % 5, np.arange(N) // 5, bandwidth=4),
        "correction": "DK",
    },
}


@pytest.mark.parametrize("name", ["huber", "poisson"])
@pytest.mark.parametrize("design", DESIGNS)
@kinds
def test_targets_agree(name, design, kind):
    options, penalty = DESIGNS[design], ef.penalties.Ridge(0.3)
    no_copies = {"HC2": "correction", "HC3": "correction", "time": "time", "panel": "time"}
    if kind == "frequency" and design in no_copies:
        written = both(name, **weights_of(kind))[1]
        refused(no_copies[design], "frequency weights", lambda: ef.target(written, **options))
        return
    a, b = (ef.target(c, **options) for c in both(name, penalty=penalty, **weights_of(kind)))
    same(b.center, a.center)
    same(b.covariance, a.covariance)
    same(b.meat, a.meat)
    same(b.hessian, a.hessian)
    same(b.dof, a.dof, 2e-3 if design in ("HC2", "HC3") else 1e-8)  # a row's share of a penalty
    assert (b.correction, b.clusters, b.design) == (a.correction, a.clusters, a.design)


@ways
def test_a_row_of_weight_zero_may_hold_anything(way):
    case = make_case("poisson", n=N)
    weights = np.ones(N)
    bad = np.arange(0, N, 3)
    weights[bad] = 0.0
    garbage = columns(case)
    garbage = {name: column.copy() for name, column in garbage.items()}
    garbage["x"][bad], garbage["y"][bad], garbage["o"][bad] = np.nan, np.inf, 1e300
    loss, kept = LOSSES["poisson", way], weights > 0
    rest = {name: column[kept] for name, column in columns(case).items()}
    for kind in ("frequency", "sampling"):
        c = ef.Criterion(loss, garbage, start=START, weights=weights, weight_kind=kind)
        plain = ef.Criterion(loss, rest, start=START)
        assert not c.total.scores(THETA)[bad].any()
        assert not c.total.values(THETA)[bad].any()
        for options in (
            {},
            {"clusters": np.arange(N) % 41},
            {"dependence": ef.TimeSeries(np.arange(N))},
        ):
            if "dependence" in options:
                assert np.isfinite(ef.target(c, **options).covariance).all()
                continue
            a, b = (
                ef.target(c, **options),
                ef.target(plain, **{k: v[kept] for k, v in options.items()}),
            )
            same(a.covariance, b.covariance)


def test_frequencies_are_copies_of_rows():
    case, w = make_case("huber", n=N), weights_of("frequency")
    copied = np.repeat(np.arange(N), w["weights"])
    data = columns(case)
    once = ef.Criterion(LOSSES["huber", "plain"], data, start=START, **w)
    many = {name: column[copied] for name, column in data.items()}
    twice = ef.Criterion(LOSSES["huber", "plain"], many, start=START)
    for options in ({"correction": "HC1"}, {"clusters": np.arange(N) % 41}):
        repeated = {k: v[copied] if k == "clusters" else v for k, v in options.items()}
        same(ef.target(once, **options).covariance, ef.target(twice, **repeated).covariance)


def test_calibrated_draws_do_not_depend_on_eta():
    closed, written = both("logistic", penalty=ef.penalties.Ridge(0.02))
    wanted = ef.target(closed, correction="HC1").covariance
    for eta in (0.2, 3.0):
        draws = ef.sample(ef.GeneralizedPosterior(written, eta), draws=1000, seed=1)
        result = ef.calibrate(draws, written, correction="HC1")
        same(np.cov(result.draws.array.T), wanted, 1e-9)
        again = ef.sample(ef.GeneralizedPosterior(closed, eta), draws=1000, seed=1)
        spread = np.sqrt(np.diagonal(again.covariance()))
        assert np.all(np.abs(draws.mean - again.mean) < 0.15 * spread)
        same(draws.covariance(), again.covariance(), 0.25)


@pytest.mark.parametrize("clusters", [None, np.arange(N) % 41])
def test_diagnostics_agree_with_the_closed_form(clusters):
    closed, written = both("huber", penalty=ef.penalties.Ridge(0.3))
    draws = ef.sample(ef.GeneralizedPosterior(closed, 1.0), draws=1000, seed=1)
    a, b = (ef.calibrate(draws, c, clusters=clusters).diagnostics() for c in (closed, written))
    assert set(b.index) == set(a.index) | {"rival mode"}
    assert b.verdict[a.index].tolist() == a.verdict.tolist()
    inexact = ["curvature noise", "serial dependence", "implied coverage"]
    exact = a.index.drop(inexact, errors="ignore")
    # a row's share of the penalty is left out of its leverage where there is a linear predictor
    assert b.value["implied coverage"] == pytest.approx(a.value["implied coverage"], rel=1e-3)
    np.testing.assert_allclose(b.value[exact], a.value[exact], rtol=1e-6, atol=1e-9)


# Parameters and data of any shape


def dose_response(theta, row):
    """Four-parameter logistic curve with normal errors."""
    low, high = theta["ends"]
    rate = jax.nn.sigmoid(jnp.exp(theta["log_slope"]) * (row["dose"] - theta["middle"]))
    z = (row["y"] - low - (high - low) * rate) * jnp.exp(-theta["log_sd"])
    return 0.5 * z**2 + theta["log_sd"]


def doses(n=400):
    rng = np.random.default_rng(5)
    dose = rng.uniform(-3, 3, n)
    y = 1.0 + 4.0 / (1 + np.exp(-1.5 * (dose - 0.4))) + 0.3 * rng.standard_normal(n)
    return pd.DataFrame({"dose": dose, "y": y, "plate": [f"plate {k % 25}" for k in range(n)]})


DOSE_START = {"ends": np.array([0.0, 6.0]), "middle": 0, "log_slope": 0.0, "log_sd": 0.0}


def test_dose_response_of_a_data_frame_agrees_with_scipy():
    table = doses()
    criterion = ef.Criterion(JaxLoss(dose_response), table, start=DOSE_START)
    assert criterion.names == ("ends[0]", "ends[1]", "middle", "log_slope", "log_sd")
    fit = ef.minimise(criterion)

    def curve(x, low, high, slope, middle):
        return low + (high - low) / (1 + np.exp(-slope * (x - middle)))

    best, _ = optimize.curve_fit(
        curve, table["dose"], table["y"], p0=[0, 6, 1, 0], xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    rest = table["y"] - curve(table["dose"], *best)
    wanted = [best[0], best[1], best[3], np.log(best[2]), 0.5 * np.log(np.mean(rest**2))]
    np.testing.assert_allclose(fit.theta, wanted, rtol=1e-6, atol=1e-7)
    named = ef.target(criterion, clusters="plate")
    same(named.covariance, ef.target(criterion, clusters=table["plate"]).covariance)
    assert named.clusters == 25
    assert "dose_response" in named.estimand


def test_dose_response_runs_through_everything():
    criterion = ef.Criterion(JaxLoss(dose_response, "the curve"), doses(), start=DOSE_START)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.5), draws=1000, seed=3)
    result = ef.calibrate(draws, criterion, clusters="plate", correction="CR2")
    assert set(result.diagnostics().index) >= {"rival mode", "Newton offset", "shape"}
    assert np.all(np.linalg.eigvalsh(result.target.covariance) > 0)
    assert np.all((result.target.dof > 3) & (result.target.dof <= 24.5))
    assert "the curve" in repr(result.target.estimand)
    variances = [
        b.variances
        for b in criterion.total.cluster_blocks(
            result.target.center, Groups(np.arange(400), np.arange(400))
        )
    ]
    assert np.linalg.eigvalsh(np.concatenate(variances)).min() > -1e-10


def gev(theta, row):
    """Negative log density of maxima, infinite outside the support."""
    mu, log_sigma, xi = theta
    t = 1 + xi * (row - mu) * jnp.exp(-log_sigma)
    inside = t > 0
    log_t = jnp.log(jnp.where(inside, t, 1.0))
    return jnp.where(inside, log_sigma + (1 + 1 / xi) * log_t + jnp.exp(-log_t / xi), jnp.inf)


def test_gev_agrees_with_scipy_and_samples_inside_its_support():
    from scipy.stats import genextreme

    y = genextreme.rvs(-0.25, loc=3.0, scale=0.7, size=500, random_state=np.random.default_rng(8))
    criterion = ef.Criterion(JaxLoss(gev), y, start=(2.0, 0.0, 0.1))
    assert criterion.names == ("theta[0]", "theta[1]", "theta[2]")
    fit = ef.minimise(criterion)

    def minus_log(theta):
        with np.errstate(over="ignore"):
            return -genextreme.logpdf(y, -theta[2], theta[0], np.exp(theta[1])).sum()

    found = optimize.minimize(
        minus_log,
        [3.0, -0.3, 0.2],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 5000},
    )
    np.testing.assert_allclose(fit.theta, found.x, atol=1e-5)
    assert fit.value == pytest.approx(minus_log(fit.theta), rel=1e-12)
    assert np.isinf(criterion.value(np.array([9.0, 0.0, 0.9])))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.05), draws=500, seed=2)
    assert np.isfinite(criterion.values_at(draws.array)).all()


def test_values_that_are_no_numbers_count_as_infinite():
    c = ef.Criterion(JaxLoss(lambda t, r: r * t - jnp.log(t)), np.array([1.0, 2.0]), start=1.0)
    np.testing.assert_allclose(c.values_at([[-1.0], [2.0]]), [np.inf, 6 - 2 * np.log(2)])
    with double_precision():
        assert c.total.log_density_parts()(np.array([-1.0])) == np.inf
    np.testing.assert_allclose(ef.minimise(c).theta, 2 / 3)


@pytest.mark.parametrize(
    ("start", "names"),
    [
        (np.zeros(2), ("theta[0]", "theta[1]")),
        ([0, 1], ("theta[0]", "theta[1]")),
        (np.zeros((1, 2)), ("theta[0,0]", "theta[0,1]")),
        ({"b": [1, 2]}, ("b[0]", "b[1]")),
        ({"net": {"w": [0.0], "c": np.zeros(())}}, ("net.w[0]", "net.c")),
        ([np.zeros(1), {"a": np.zeros(1)}], ("theta[0][0]", "theta[1].a[0]")),
    ],
)
def test_names_come_from_the_start(start, names):
    def loss(theta, row):
        parts = jnp.concatenate([part.reshape(-1) for part in jax.tree.leaves(theta)])
        return 0.5 * jnp.sum((parts - row) ** 2)

    data = np.array([[1.0, 2.0], [3.0, 5.0]])
    criterion = ef.Criterion(JaxLoss(loss), data, start=start)
    assert criterion.names == names
    assert criterion.start.dtype == np.float64
    same(np.sort(ef.minimise(criterion).theta), [2.0, 3.5])


def test_parameters_have_the_order_of_the_start():
    """JAX sorts keys; two orders of one start are one problem, and share what is compiled."""

    def loss(theta, row):
        z = row["y"] - theta["zeta"] - theta["inner"]["slope"][0] * row["x"]
        return 0.5 * z**2 * jnp.exp(-theta["alpha"]) + 0.5 * theta["alpha"]

    rng = np.random.default_rng(3)
    x = rng.standard_normal(80)
    data = {"x": x, "y": 1 + 2 * x + rng.standard_normal(80)}
    shared = JaxLoss(loss)
    one = {"zeta": 0.0, "inner": {"slope": [0.0], "more": []}, "alpha": 0.0}
    other = {"alpha": 0.0, "inner": {"more": [], "slope": [0.0]}, "zeta": 0.0}
    first, second = (ef.Criterion(shared, data, start=start) for start in (one, other))
    assert first.names == ("zeta", "inner.slope[0]", "alpha")
    assert second.names == first.names[::-1]
    mine, theirs = ef.target(first), ef.target(second)
    same(mine.center, theirs.center[::-1])
    same(mine.covariance, theirs.covariance[::-1, ::-1])
    draws = ef.sample(ef.GeneralizedPosterior(first, 1.0), draws=200, seed=1)
    shown = ef.calibrate(draws, first)
    assert tuple(shown.summary().index) == tuple(shown.params.index) == first.names
    assert tuple(shown.draws.to_frame().columns) == first.names


def test_integers_and_booleans_stay_what_they_are():
    """An integer column may index the parameters, a boolean may choose."""
    y, group = np.array([1.0, 3.0, 5.0, 9.0]), np.array([0, 0, 1, 1], dtype=np.uint8)

    def loss(theta, row):
        return jnp.where(row["on"], 0.5 * (row["y"] - theta[row["group"]]) ** 2, 0.0)

    data = {"y": y, "group": group, "on": np.array([True, True, True, False])}
    same(ef.minimise(ef.Criterion(JaxLoss(loss), data, start=[0, 0])).theta, [2.0, 5.0])


# How it computes


def test_the_global_flag_is_never_touched():
    assert jnp.ones(1).dtype == np.float32
    _, written = both("huber")
    blocks = written.total.cluster_blocks(THETA, Groups(np.arange(N), np.arange(N)))
    next(blocks)
    assert jnp.ones(1).dtype == np.float32  # also between two blocks
    ef.target(written)
    refused("function", "raises", lambda: ef.Criterion(JaxLoss(lambda t: t), [1.0], start=0.0))
    assert jnp.ones(1).dtype == np.float32
    assert not jax.config.jax_enable_x64


def test_pickled_totals_compute_the_same():
    _, written = both("huber", **weights_of("sampling"))
    ef.target(written, clusters=np.arange(N) % 41)
    text = pickle.dumps(written)
    assert len(text) < 60_000  # no compiled functions, no second copy of the data
    other = pickle.loads(text)
    same(other.total.scores(THETA), written.total.scores(THETA), 1e-15)
    assert other.total.values(THETA).dtype == np.float64
    assert repr(other.loss) == "JaxLoss(huber)"


def test_other_weights_compile_nothing():
    traced = []

    def loss(theta, row):
        traced.append(1)
        return huber(theta, row)

    case, written = make_case("huber", n=N), JaxLoss(loss)
    groups = Groups.of(np.arange(N) % 41, N)

    def use(criterion):
        total = criterion.total
        total.derivatives(THETA), total.totals(THETA[None]), total.cluster_totals(THETA, groups)
        return list(total.cluster_blocks(THETA, groups)), total.scores(THETA)

    criterion = ef.Criterion(written, columns(case), start=START)
    use(criterion)
    done = len(traced)
    use(criterion.reweighted(np.arange(N) % 3))
    use(criterion.reweighted(np.linspace(0, 1, N), "sampling"))
    assert len(traced) == done
    use(ef.Criterion(written, columns(case), start=START + 0.1))  # data of the same shape
    assert len(traced) <= done + 1  # the check that it returns a number
    assert criterion.reweighted(np.ones(N)).total.on_device is criterion.total.on_device


@ways
def test_the_traceable_total_is_the_total(way):
    _, written = both("logistic", way, **weights_of("sampling"))
    wanted = written.total.value_and_gradient(THETA)
    with double_precision():
        function = jax.jit(jax.value_and_grad(written.total.log_density_parts()))
        value, gradient = function(THETA)
    same(float(value), wanted[0])
    same(np.asarray(gradient), wanted[1])


@pytest.mark.parametrize("start", [{"m": 9.0, "s": -0.4}, {"m": -8.0, "s": 2.0}])
def test_an_indefinite_hessian_is_made_safe(start):
    def gaussian(theta, row):
        return 0.5 * ((row - theta["m"]) * jnp.exp(-theta["s"])) ** 2 + theta["s"]

    y = np.random.default_rng(0).standard_normal(200)
    criterion = ef.Criterion(JaxLoss(gaussian), y, start=start)
    flat = criterion.start
    assert np.linalg.eigvalsh(criterion.derivatives(flat).hessian)[0] < 0 or start["m"] == -8.0
    safe = criterion.derivatives(flat, majorize=True)
    assert np.linalg.eigvalsh(safe.hessian)[0] > 0
    same(safe.gradient, criterion.derivatives(flat).gradient)
    np.testing.assert_allclose(ef.minimise(criterion).theta, [y.mean(), np.log(y.std())], atol=1e-9)


def test_the_minimiser_does_not_depend_on_units():
    case = make_case("huber", n=N)
    units = np.array([1e-4, 1.0, 1e5])
    data = columns(case)
    plain = ef.minimise(ef.Criterion(LOSSES["huber", "plain"], data, start=START)).theta
    other = {**data, "x": data["x"] * units}
    found = ef.minimise(ef.Criterion(LOSSES["huber", "plain"], other, start=START)).theta
    np.testing.assert_allclose(found * units, plain, rtol=1e-8)


FORMS = {
    "written twice": lambda t, r: jnp.exp(r["x"] @ t) - r["y"] * (r["x"] @ t),
    "a sum": lambda t, r: jnp.cosh(jnp.sum(r["x"] * t / 2) + 1 - r["y"]),
    "named coefficients": lambda t, r: (t[0] + t[1] * r["x"][1] - r["x"][2] * t[7]) ** 2,
    "a scale": lambda t, r: ((r["y"] - r["x"][:7] @ t[:7]) / jnp.exp(t[7])) ** 2 + t[7],
    "a product": lambda t, r: jnp.exp(r["x"] @ t) * jnp.sum(t) + jnp.sum(t),
    "curved scores": lambda t, r: jnp.sum(t * r["x"] * jnp.exp(r["x"] @ t)),
    "all of theta": lambda t, r: jnp.sum(jnp.sin(t)) * r["y"],
    "a loop": lambda t, r: jax.lax.fori_loop(0, 3, lambda _, v: v**2 + 1, 0.3 * r["x"] @ t),
    "nothing": lambda t, r: 2.0 * r["y"],
    "rounded": lambda t, r: jnp.sum(t.astype(int)) * 1.0 + jnp.sum(t**2),
}


@pytest.mark.parametrize("name", FORMS)
def test_kernels_are_derivatives_of_the_weighted_sum(name):
    loss = FORMS[name]
    rng = np.random.default_rng(41)
    theta, w = 0.3 * rng.standard_normal(8), rng.gamma(2.0, 1.0, 12)
    rows = {"x": rng.standard_normal((12, 8)), "y": rng.standard_normal(12)}
    each = jax.vmap(loss, (None, 0))
    with double_precision():
        made = Kernels(loss, theta)
        gradients = jax.jacfwd(each)(theta, rows)
        hessians = w[:, None, None] * jax.jacfwd(jax.jacfwd(each))(theta, rows)
        values = w * each(theta, rows)
        same(made.values(theta, rows, w), values)
        same(made.scores(theta, rows, w), w[:, None] * gradients)
        value, gradient, _, hessian = made.derivatives(theta, rows, w)
        same(value, values.sum())
        same(gradient, w @ gradients)
        same(hessian, hessians.sum(axis=0))
        scores, bent = made.hessians(theta, rows, w)
        same(scores, w[:, None] * gradients)
        same(bent, hessians)
        value, gradient = made.value_and_gradient(theta, rows, w)
        same(value, values.sum())
        same(gradient, w @ gradients)
        several = np.stack([theta, 2 * theta])
        same(made.totals(several, rows, w), [w @ each(t, rows) for t in several])
        # a row of weight zero counts for nothing, whatever it holds
        rows["y"][3], w[3] = np.inf, 0.0
        kept = made.values(theta, rows, w)
        same(kept, np.where(w > 0, values, 0.0))


# What is refused, and what it says


def bind(function=lambda t, r: (r["x"] - t) ** 2, data=None, start=0.0, **options):
    data = {"x": np.arange(5.0)} if data is None else data
    return ef.Criterion(JaxLoss(function), data, start=start, **options)


def flat(theta, row):
    return jnp.sum(theta) * row["x"]


def pinball(theta, row):
    r = row["x"] - theta
    return jnp.where(r > 0, 0.3 * r, -0.7 * r)


def root(theta, row):
    return jnp.where(theta > 1, jnp.sqrt(theta - 1), 0.0) + (row["x"] - theta) ** 2


BAD = {
    "no function": ("function", "is a str", lambda: JaxLoss("huber")),
    "no start": ("start", "is missing", lambda: bind(start=None)),
    "empty start": ("start", "no parameters", lambda: bind(start={})),
    "no numbers to start": ("start", "numbers", lambda: bind(start={"a": "b"})),
    "infinite start": ("start", "NaN or infinite", lambda: bind(start=np.inf)),
    "lengths": (
        "data",
        "{'x': 3, 'y': 2}",
        lambda: bind(data={"x": np.zeros(3), "y": np.zeros(2)}),
    ),
    "empty": ("data", "no rows", lambda: bind(data={"x": np.zeros(0)})),
    "no columns": ("data", "no columns", lambda: bind(data={})),
    "text": (
        "data",
        "not numbers: a.school, t",
        lambda: bind(
            data={
                "a": {"school": np.array(["u", "v"])},
                "t": np.array(["2020-01-01"], dtype="M8[D]"),
                "x": np.zeros(2),
            }
        ),
    ),
    "constant": (
        "data",
        "single numbers where columns belong: tau",
        lambda: bind(data={"x": np.zeros(2), "tau": 0.5}),
    ),
    "text only": ("data", "no columns", lambda: bind(data=pd.DataFrame({"a": ["b"]}))),
    "masked": (
        "data",
        "not numbers: x",
        lambda: bind(data={"x": np.ma.masked_array([1.0, 2.0], [True, False])}),
    ),
    "names that do not sort": ("data", "do not sort", lambda: bind(data={"x": [1.0], 1: [1.0]})),
    "indexes": (
        "data",
        "indexes differ",
        lambda: bind(data={"x": pd.Series([1.0, 2.0]), "y": pd.Series([1.0, 2], [1, 0])}),
    ),
    "vector": (
        "function",
        "an array of shape (2,)",
        lambda: bind(lambda t, r: t - r["x"], start=np.zeros(2)),
    ),
    "nothing": ("function", "a NoneType", lambda: bind(lambda t, r: None)),
    "integer": ("function", "returns int", lambda: bind(lambda t, r: r["x"].astype(int))),
    "missing column": ("function", "KeyError: 'school'", lambda: bind(lambda t, r: r["school"])),
    "arguments": ("function", "raises TypeError", lambda: bind(lambda t: t)),
    "if": ("function", "jnp.where instead of if", lambda: bind(lambda t, r: t if t > 0 else -t)),
    "numpy": ("function", "jax.numpy instead", lambda: bind(lambda t, r: np.exp(t))),
    "missing value": (
        "start",
        "loss of 2 rows is not finite, the first row 1",
        lambda: bind(data={"x": np.array([0.0, np.nan, 1.0, np.inf])}),
    ),
    "outside": (
        "start",
        "loss of 3 rows is not finite, the first row 2",
        lambda: bind(lambda t, r: t - jnp.log(2 - r["x"] * t), start=1.0),
    ),
    "endless slope": ("function", "derivatives that are not finite", lambda: bind(root, start=1.0)),
    "quantile": ("function", "ef.losses.Quantile", lambda: bind(pinball, start=2.2)),
    "hinge": (
        "function",
        "softplus",
        lambda: bind(lambda t, r: jnp.maximum(0.0, 1 - r["x"] * t), start=0.1),
    ),
    "linear": ("function", "start nearer", lambda: bind(flat)),
    "offset": ("offset", "does not apply", lambda: bind(offset=np.zeros(5))),
    "weights": ("weights", "4 entries", lambda: bind(weights=np.ones(4), weight_kind="sampling")),
    "names": ("names", "2 entries", lambda: bind(names=["a", "b"])),
}


@pytest.mark.parametrize("name", BAD)
def test_refusals_say_what_to_do(name):
    refused(*BAD[name])


def test_missing_jax_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match=r"etafree\[jax\]"):
        bind()


def test_a_column_of_text_is_named_when_the_function_asks_for_it():
    refused(
        "function",
        "KeyError: 'plate'",
        lambda: ef.Criterion(JaxLoss(lambda t, r: r["plate"] * t), doses(), start=0.0),
    )
    refused(
        "function",
        "not numbers",
        lambda: ef.Criterion(JaxLoss(lambda t, r: r["plate"] * t), doses(), start=0.0),
    )


def test_separated_data_and_unidentified_parameters_are_errors():
    x = np.linspace(-1, 1, 20)
    data = {"x": x[:, None], "y": (x > 0).astype(float), "o": np.zeros(20)}
    with pytest.raises(ConvergenceError):
        ef.minimise(ef.Criterion(JaxLoss(logistic), data, start=np.zeros(1)))
    twice = ef.Criterion(JaxLoss(lambda t, r: (r["x"] - t[0] - t[1]) ** 2), {"x": x}, start=[0, 0])
    with pytest.raises(ef.errors.EtafreeError, match=r"theta\[0\]|positive"):
        ef.minimise(twice)


TIMES = np.array([5.0, 3.0, 9.0, 1.0, 7.0, 2.0])
EVENT = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0])
Z = np.array([0.3, -1.0, 0.5, 1.2, -0.4, 0.0])


def partial_likelihood(theta, row):
    """Cox's, which compares a row with all that are at risk."""
    risk = jnp.where(row["t"] <= TIMES, jnp.exp(theta[0] * Z), 0.0)
    return row["d"] * (jnp.log(risk.sum()) - theta[0] * row["z"])


def nested(theta, row):
    return jax.jit(partial_likelihood)(theta, row)


def looped(theta, row):
    total, _ = jax.lax.scan(lambda c, z: (c + (theta[0] - z) ** 2, None), 0.0, jnp.asarray(Z))
    return total / len(Z) + (row["z"] - theta[0]) ** 2


@pytest.mark.parametrize("function", [partial_likelihood, nested, looped])
def test_a_loss_that_looks_at_other_rows_is_refused(function):
    data = {"t": TIMES, "d": EVENT, "z": Z}
    refused(
        "function",
        "an entry for each of 6 rows",
        lambda: ef.Criterion(JaxLoss(function), data, start=np.zeros(1)),
    )
    fewer = {key: value[:5] for key, value in data.items()}
    ef.Criterion(JaxLoss(function), fewer, start=np.zeros(1))  # six constants for five rows
    ef.Criterion(JaxLoss(function, constants=True), data, start=np.zeros(1))


def test_an_entry_for_each_parameter_is_no_entry_for_each_row():
    scale = np.arange(1.0, 4.0)
    data = {"x": np.eye(3), "y": np.array([1.0, 0.0, 2.0])}

    def ridge(theta, row):
        return (row["y"] - row["x"] @ theta) ** 2 + jnp.sum(scale * theta**2)

    ef.Criterion(JaxLoss(ridge), data, start=np.zeros(3))
    more = {key: np.concatenate([value, value]) for key, value in data.items()}
    ef.Criterion(JaxLoss(ridge), more, start=np.zeros(3))


def test_the_remedy_for_a_partial_likelihood_is_cox():
    data = {"t": TIMES, "d": EVENT, "z": Z}

    def criterion(**options):
        return ef.Criterion(JaxLoss(partial_likelihood, **options), data, start=np.zeros(1))

    refused("function", "ef.Cox()", criterion)
    cox = ef.Criterion(ef.Cox("breslow"), (Z[:, None], np.column_stack([TIMES, EVENT])))
    wrong, theta = criterion(constants=True), np.array([0.4])
    assert wrong.value(theta) == pytest.approx(cox.value(theta), rel=1e-12)  # of which scores ...
    gap = np.abs(wrong.total.scores(theta) - cox.total.scores(theta))  # ... say something else
    assert gap.max() > 0.1


def test_a_loss_over_pairs_that_looks_at_a_third_row_is_refused():
    def spread(theta, a, b):
        return (theta[0] - (a["z"] - b["z"]) ** 2 / jnp.var(Z)) ** 2

    refused(
        "h",
        "an entry for each of 6 rows",
        lambda: ef.Criterion(ef.PairLoss(spread), {"z": Z}, start=np.ones(1)),
    )
    ef.Criterion(ef.PairLoss(spread, constants=True), {"z": Z}, start=np.ones(1))

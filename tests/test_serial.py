"""Surveys, series and panels by default: leverage, prewhitening, units plus periods, their laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

import etafree as ef
from conftest import checks_of, refused
from etafree.dependence.forms import FormLaws, Identity, NominalLaws
from etafree.dependence.panel import SumLaws
from etafree.dependence.survey import StratumDeviations
from etafree.dependence.time import (
    Cosines,
    SeriesLaws,
    autocorrelations,
    cosines,
    filtered,
    prewhitened,
)
from etafree.errors import NotPositiveDefiniteError
from studies import serial
from studies.problem import coverage
from studies.scenarios import simulate


def case(n: int = 60, seed: int = 0, weighted: bool = True, **options) -> ef.Criterion:
    """Return least squares with a skewed covariate, under sampling weights."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.lognormal(size=n), rng.standard_normal(n)])
    if weighted:
        options |= {"weights": rng.uniform(0.5, 3.0, n), "weight_kind": "sampling"}
    return ef.Criterion(ef.losses.Squared(), (X, rng.standard_normal(n)), **options)


def by_hand(criterion, codes, M, shares, contrasts):
    """Return nu, kappa and M's form of jackknife scores with n x n matrices, for least squares.

    Errors are independent with variance one, residuals then have the covariance (I - H)(I - H)',
    and a group's score counts along (I - A_g A^{-1})^{-T} A^{-1} l.
    """
    X, y = criterion.total.X, criterion.total.y
    w = np.ones(len(X)) if criterion.total.weights is None else criterion.total.weights
    inverse = np.linalg.inv(X.T @ (w[:, None] * X))
    left = np.eye(len(X)) - X @ inverse @ (X.T * w)
    count = codes.max() + 1
    rows = np.zeros((len(contrasts), count, len(X)))
    truth = np.zeros(len(contrasts))
    for g in range(count):
        mine = codes == g
        A_g = X[mine].T @ (w[mine, None] * X[mine])
        for j, contrast in enumerate(contrasts):
            towards = np.linalg.solve(
                np.eye(X.shape[1]) - inverse @ A_g, inverse @ contrast
            )  # symmetric A_g: the transpose
            rows[j, g, mine] = w[mine] * (X[mine] @ towards)
            truth[j] += shares[g] * np.sum((w[mine] * (X[mine] @ inverse @ contrast)) ** 2)
    Lambda = [row @ left @ left.T @ row.T for row in rows]
    trace = np.array([np.trace(M @ L) for L in Lambda])
    square = np.array([np.trace(M @ L @ M @ L) for L in Lambda])
    residual = y - X @ (inverse @ X.T @ (w * y))
    z = rows @ residual
    return trace**2 / square, trace / truth, np.einsum("jg,gh,jh->j", z, M, z)


CONTRASTS = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0.5]])


# --- forms --------------------------------------------------------------------------------------


def stratum_matrix(codes: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    M = np.zeros((len(codes), len(codes)))
    for h, f in enumerate(sampled):
        inside = np.flatnonzero(codes == h)
        n = len(inside)
        block = np.eye(n) if n == 1 else n / (n - 1) * (np.eye(n) - 1 / n)
        M[np.ix_(inside, inside)] = (1 - f) * block
    return M


def cosine_matrix(many: int, terms: int) -> np.ndarray:
    t = np.arange(many) + 0.5
    C = np.sqrt(2 / many) * np.cos(np.pi * np.outer(t, np.arange(1, terms + 1)) / many)
    return many / terms * C @ C.T


FORMS = {
    "strata": (
        StratumDeviations(
            np.array([0, 0, 1, 1, 1, 2, 1, 0]), np.array([3, 4, 1]), np.array([0.2, 0.0, 0.5])
        ),
        stratum_matrix(np.array([0, 0, 1, 1, 1, 2, 1, 0]), np.array([0.2, 0.0, 0.5])),
    ),
    "cosines": (Cosines(8, 3), cosine_matrix(8, 3)),
    "every cosine": (Cosines(8, 7), 8 / 7 * (np.eye(8) - 1 / 8)),
    "identity": (Identity(), np.eye(8)),
}


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_form_is_its_matrix(name: str) -> None:
    form, M = FORMS[name]
    rng = np.random.default_rng(1)
    columns, x, y = rng.standard_normal((8, 3)), rng.random(8), rng.random(8)
    np.testing.assert_allclose(form.times(columns), M @ columns, atol=1e-12)
    np.testing.assert_allclose(np.broadcast_to(form.diagonal, (8,)), np.diagonal(M), atol=1e-12)
    assert form.hadamard(x, y) == pytest.approx(x @ np.square(M) @ y, rel=1e-12)


def test_joint_laws_are_the_single_one_for_one_contrast_and_exact_for_equal_means() -> None:
    """For one contrast Hotelling's law is t; for means of equal strata PSUs minus strata."""
    criterion = case()
    t = ef.target(criterion, dependence=ef.Survey(np.arange(60) // 3, np.arange(60) // 15))
    assert isinstance(t.laws, FormLaws)
    for contrast in CONTRASTS:
        law = t.laws.single(contrast)
        dof, turn = t.laws.joint(contrast)
        assert dof == pytest.approx(law.dof[0])
        assert turn[0, 0] == pytest.approx(law.inflation[0] ** -0.5)
    dof, _ = t.laws.joint(CONTRASTS[:2])
    same, _ = t.laws.joint(np.array([[2.0, 1, 0], [1.0, -1, 0]]))  # the same space
    assert same == pytest.approx(dof, rel=1e-6)


# --- surveys ------------------------------------------------------------------------------------


@pytest.mark.parametrize("population", [None, np.array([10.0, 12.0, 8.0, 50.0])])
def test_survey_laws_are_those_of_matrices_by_hand(population) -> None:
    criterion = case()
    psus, strata = np.arange(60) // 3, np.arange(60) // 15
    fpc = None if population is None else population[strata]
    made = ef.target(criterion, dependence=ef.Survey(psus, strata, fpc=fpc))
    sampled = np.zeros(4) if population is None else 5 / population
    of_psu = np.arange(20) // 5
    M = stratum_matrix(of_psu, sampled)
    dof, kappa, variance = by_hand(criterion, psus, M, 1 - sampled[of_psu], CONTRASTS)
    np.testing.assert_allclose(made.dof, dof[:3], rtol=1e-8)
    np.testing.assert_allclose(made.inflation, kappa[:3], rtol=1e-8)
    np.testing.assert_allclose(np.diagonal(made.covariance), variance[:3], rtol=1e-8)
    law = made.law(CONTRASTS)
    np.testing.assert_allclose(law.dof, dof, rtol=1e-8)
    np.testing.assert_allclose(law.inflation, kappa, rtol=1e-8)
    assert made.correction == "survey-CR3"
    assert checks_of(made)["implied coverage"].value == pytest.approx(0.95)


def test_one_stratum_is_cr3_with_centred_scores() -> None:
    """With equal PSUs and a mean only, CR3 times n_h/(n_h - 1), which the law takes out again."""
    y = np.random.default_rng(0).standard_normal(40)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((40, 1)), y))
    psus = np.arange(40) // 4
    made = ef.target(criterion, dependence=ef.Survey(psus))
    plain = ef.target(criterion, clusters=psus)
    np.testing.assert_allclose(made.covariance, 10 / 9 * plain.covariance, rtol=1e-10)
    np.testing.assert_allclose(made.dof, 9.0)
    ratio = made.covariance[0, 0] / made.inflation[0], plain.covariance[0, 0] / plain.inflation[0]
    assert ratio[0] == pytest.approx(ratio[1])


def test_a_psu_with_its_own_dummy_leaves_no_variance() -> None:
    """Its score along the dummy is zero, and nobody else has one."""
    rng = np.random.default_rng(2)
    psus, strata = np.arange(60) // 3, np.arange(60) // 15
    x = rng.standard_normal(60)
    X = np.column_stack([np.ones(60), x, psus == 0])
    y = rng.standard_normal(60)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y))
    with pytest.raises(NotPositiveDefiniteError, match="scores do not vary along"):
        ef.target(criterion, dependence=ef.Survey(psus, strata))


def test_strata_of_two_psus_are_covered() -> None:
    """600 data sets, Monte Carlo error .009: .95 and not .90, which the classical formula has."""
    rng, inside = np.random.default_rng(3), {"survey": [], None: []}
    for _ in range(600):
        problem = serial.pairs_of_psus(rng, 25)
        for correction, hits in inside.items():
            t = ef.target(problem.criterion, **problem.options, correction=correction)
            reach = t.law().quantile(0.975) * t.se
            hits.append(np.abs(t.center - problem.truth) <= reach)
    shares = {name: np.mean(hits, axis=0) for name, hits in inside.items()}
    assert shares["survey"][2] < 0.92
    assert np.all((shares[None] > 0.925) & (shares[None] < 0.995))


# --- series -------------------------------------------------------------------------------------


def test_no_autocorrelation_is_plain_cosines() -> None:
    influence = np.random.default_rng(4).standard_normal((50, 3))
    np.testing.assert_allclose(
        prewhitened(influence, np.zeros(3), 6), cosines(influence, 6), rtol=1e-12
    )


def test_prewhitening_is_its_formula() -> None:
    influence = np.random.default_rng(4).standard_normal((50, 2)).cumsum(axis=0) / 10
    rho = autocorrelations(influence)
    for j in range(2):
        x = influence[:, j]
        raw = x[1:] @ x[:-1] / (x @ x)
        expected = min(max(raw + (1 + 3 * raw) / 50, 0.0), 0.97)
        assert rho[j] == pytest.approx(expected)
    rho = np.array([0.5, 0.2])
    rest = filtered(influence, rho)
    np.testing.assert_allclose(rest[0], np.sqrt(1 - rho**2) * influence[0])
    np.testing.assert_allclose(rest[1:], influence[1:] - rho * influence[:-1])
    expected = cosines(rest, 7)[0, 1] / ((1 - 0.5) * (1 - 0.2))
    assert prewhitened(influence, rho, 7)[0, 1] == pytest.approx(expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_series_laws_are_those_of_matrices_by_hand(weighted: bool) -> None:
    criterion = case(weighted=weighted)
    made = ef.target(criterion, dependence=ef.TimeSeries(np.arange(60)))
    M, ones = cosine_matrix(60, 6), np.ones(60)
    dof, kappa, _ = by_hand(criterion, np.arange(60), M, ones, CONTRASTS)
    assert isinstance(made.laws, SeriesLaws)
    law = made.laws.cosines.single(CONTRASTS)
    np.testing.assert_allclose(law.dof, dof, rtol=1e-8)
    np.testing.assert_allclose(law.inflation, kappa, rtol=1e-8)
    rho = autocorrelations(made.laws.influence)
    cost = 2 * (1 + rho) / (60 * (1 - rho))
    np.testing.assert_allclose(1 / made.dof, 1 / dof[:3] + cost, rtol=1e-8)
    X, y = criterion.total.X, criterion.total.y
    if not weighted:  # scores over one minus leverage
        inverse = np.linalg.inv(X.T @ X)
        leverage = np.einsum("ij,jk,ik->i", X, inverse, X)
        residual = (y - X @ made.center) / (1 - leverage)
        expected = prewhitened(X @ inverse * residual[:, None], rho, 6)
        np.testing.assert_allclose(made.covariance, expected, rtol=1e-7)


def test_a_dummy_for_few_periods_has_few_degrees_of_freedom() -> None:
    """Eight of 200 neighbouring periods: thirteen cosines are about constant over them."""
    during = (np.arange(200) >= 100) & (np.arange(200) < 108)
    X = np.column_stack([np.ones(200), during])
    y = np.random.default_rng(5).standard_normal(200)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y))
    made = ef.target(criterion, dependence=ef.TimeSeries(np.arange(200)))
    assert made.dof[0] > 8
    assert made.dof[1] < 3


@pytest.mark.parametrize(
    ("name", "plain"),
    [("AR(1) phi = 0.9 with trend, n = 300", 0.88), ("AR(1) phi = 0.8, n = 200", 0.94)],
)
def test_persistent_series_are_covered(name: str, plain: float) -> None:
    """400 data sets, Monte Carlo error .011; cosines alone cover 84 and 91 %."""
    rng, inside = np.random.default_rng(6), {"EWC": [], None: []}
    for _ in range(400):
        problem = simulate(name, rng)
        for correction, hits in inside.items():
            t = ef.target(problem.criterion, **problem.options, correction=correction)
            reach = t.law().quantile(0.975) * t.se
            hits.append(np.abs(t.center - problem.truth) <= reach)
    shares = {k: np.mean(hits, axis=0) for k, hits in inside.items()}
    assert shares["EWC"].min() < plain
    assert np.all((shares[None] > 0.915) & (shares[None] < 0.99))


# --- panels -------------------------------------------------------------------------------------


def panel_case(units: int, periods: int, seed: int = 7) -> tuple[ef.Criterion, ef.Panel]:
    rng = np.random.default_rng(seed)
    n = units * periods
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    criterion = ef.Criterion(ef.losses.Squared(), (X, rng.standard_normal(n)))
    return criterion, ef.Panel(np.repeat(np.arange(units), periods), np.tile(range(periods), units))


def test_one_period_is_clusters_and_one_unit_is_a_series() -> None:
    criterion, panel = panel_case(40, 1)
    made = ef.target(criterion, dependence=panel)
    rows = ef.target(criterion, clusters=np.arange(40))
    np.testing.assert_allclose(made.covariance, rows.covariance, rtol=1e-9)
    np.testing.assert_allclose(made.dof, rows.dof, rtol=1e-9)
    np.testing.assert_allclose(made.inflation, rows.inflation, rtol=1e-9)
    criterion, panel = panel_case(1, 60)
    made = ef.target(criterion, dependence=panel)
    series = ef.target(criterion, dependence=ef.TimeSeries(np.arange(60)))
    np.testing.assert_array_equal(made.covariance, series.covariance)
    assert made.describe() == series.describe()


@pytest.mark.parametrize("correction", ["two-way", "two-way-CR3"])
def test_a_panel_is_the_sum_of_units_and_periods(correction: str) -> None:
    criterion, panel = panel_case(12, 30)
    made = ef.target(criterion, dependence=panel, correction=correction)
    unit, period = panel.unit, np.asarray(panel.time)
    bread = np.linalg.inv(made.hessian)
    leverage = correction == "two-way-CR3"
    over_units = ef.target(criterion, clusters=unit, correction="CR3" if leverage else "CR1")
    influence = np.zeros((30, 3))
    scores = criterion.total.scores(made.center)
    for t in range(30):
        X = criterion.total.X[period == t]
        left = np.eye(3) - (X.T @ X @ bread if leverage else 0.0)
        influence[t] = bread @ np.linalg.solve(left, scores[period == t].sum(axis=0))
    over_periods = prewhitened(influence, autocorrelations(influence), 6)
    np.testing.assert_allclose(made.covariance, over_units.covariance + over_periods, rtol=1e-8)
    law = made.laws.parts[1][1].single(np.eye(3))
    v1, v2 = np.diagonal(over_units.covariance), np.diagonal(over_periods)
    v1, v2 = v1 / over_units.inflation, v2 / law.inflation
    welch = (v1 + v2) ** 2 / (v1**2 / over_units.dof + v2**2 / law.dof)
    np.testing.assert_allclose(made.dof, welch, rtol=1e-8)
    np.testing.assert_allclose(np.diagonal(made.covariance) / made.inflation, v1 + v2, rtol=1e-8)
    assert made.design == (
        "a panel of 12 units over 30 periods, units + periods, 6 cosines, AR(1) prewhitened"
    )


def test_the_laws_of_a_sum_are_those_of_welch_for_one_contrast_and_of_equal_parts_for_all() -> None:
    """Two equal parts with nu each are one part with twice as many."""
    a = np.array([[2.0, 0.5], [0.5, 1.0]])
    laws = SumLaws(((a, NominalLaws(7.0)), (a, NominalLaws(7.0))))
    np.testing.assert_allclose(laws.single(np.eye(2)).dof, 14.0)
    dof, turn = laws.joint(np.eye(2))
    assert dof == pytest.approx(14.0)
    np.testing.assert_allclose(turn, np.eye(2), atol=1e-12)
    uneven = SumLaws(((a, NominalLaws(7.0)), (3 * a, NominalLaws(2.0))))
    assert uneven.joint(np.eye(2)[:1])[0] == pytest.approx(16 / (1 / 7 + 9 / 2))


def test_short_panels_and_fixed_effects_have_a_variance() -> None:
    criterion, panel = panel_case(50, 7)
    assert "6 cosines" in ef.target(criterion, dependence=panel).design
    refused(
        "time", "cosines for 3", lambda: ef.target(criterion, dependence=panel, correction="EWC")
    )
    criterion, panel = panel_case(12, 30)
    X = np.column_stack([criterion.total.X, np.asarray(panel.unit) == 3])
    effects = ef.Criterion(ef.losses.Squared(), (X, criterion.total.y))
    assert ef.target(effects, clusters=panel.unit).p == effects.p - 1
    assert np.all(ef.target(effects, dependence=panel).se > 0.01)


@pytest.mark.parametrize(("unit_effect", "shock"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_panels_are_covered_whatever_their_errors_share(unit_effect: float, shock: float) -> None:
    """200 panels, Monte Carlo error .015; period totals alone cover 40 % under unit effects."""
    rng, low, high = np.random.default_rng(8), [], []
    for _ in range(200):
        problem = serial.panel(rng, 30, 50, unit_effect, shock)
        t = ef.target(problem.criterion, **problem.options)
        reach = t.law().quantile(0.975) * t.se
        low.append(t.center - reach)
        high.append(t.center + reach)
    for j, truth in enumerate(problem.truth):
        share, _ = coverage(np.array(low)[:, j], np.array(high)[:, j], np.full(200, truth))
        assert share > 0.905


def test_common_shocks_that_last_are_flagged_only_near_a_unit_root() -> None:
    rng = np.random.default_rng(9)
    passing = lfilter([1.0], [1.0, -0.5], rng.standard_normal(60))
    for common, verdict in ((passing, "ok"), (np.arange(60.0), "warn")):
        y = (common + rng.standard_normal((10, 60))).reshape(-1)
        criterion = ef.Criterion(ef.losses.Squared(), (np.ones((600, 1)), y))
        panel = ef.Panel(np.repeat(np.arange(10), 60), np.tile(np.arange(60), 10))
        made = ef.target(criterion, dependence=panel)
        assert checks_of(made)["persistence"].verdict == verdict


def test_degrees_of_freedom_that_are_given_replace_the_laws() -> None:
    rng = np.random.default_rng(7)
    X, y = np.column_stack([np.ones(60), rng.standard_normal(60)]), rng.standard_normal(60)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y))
    for dependence in (
        ef.Survey(np.arange(60) // 3),
        ef.TimeSeries(np.arange(60)),
        ef.Panel(np.arange(60) // 6, np.arange(60) % 6),
    ):
        own, given = (ef.target(criterion, dependence=dependence, dof=dof) for dof in (None, 7))
        np.testing.assert_allclose(given.covariance, own.covariance, rtol=1e-12)
        assert (given.dof == 7).all()
        assert (given.inflation == 1).all()
        draws = rng.standard_normal((200, 2))
        table = ef.calibrate(draws, criterion, dependence=dependence).corrections()
        labels = set(table.index.get_level_values("correction"))
        assert own.correction in labels
        assert not any("normal" in label or "G - 1" in label for label in labels)

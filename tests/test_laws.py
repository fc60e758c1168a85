"""Reference laws of contrasts: degrees of freedom and bias of estimated variances."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import checks_of, refused
from etafree import diagnostics
from etafree.data.groups import Groups
from etafree.dependence.clusters import carriers, concentration, contrast_laws, influences, point_of
from etafree.inference import Region, resample_counts, student_quantile, student_tail, t_ratios

RNG = np.random.default_rng(0)
N = 40
X = np.column_stack([np.ones(N), RNG.exponential(size=N), RNG.standard_normal(N)])
Y = RNG.standard_normal(N)
POWERS = {"HC0": 0.0, "HC1": 0.0, "HC2": 0.5, "HC3": 1.0}
CLUSTERS = {"CR0": 0.0, "CR1": 0.0, "CR1S": 0.0, "CR2": 0.5, "CR3": 1.0}
WEIGHTS = {
    "none": {},
    "copies": {"weights": RNG.integers(0, 4, N).astype(float), "weight_kind": "frequency"},
    "sampling": {"weights": RNG.uniform(0.5, 3.0, N), "weight_kind": "sampling"},
}


def by_hand(weights, sampling, power, contrast):
    """Return nu and kappa of a contrast of least squares from n x n matrices."""
    design = X
    if not sampling:  # copies of a row are rows
        design, weights = np.repeat(X, weights.astype(int), axis=0), np.ones(int(weights.sum()))
    bread = np.linalg.inv(design.T * weights @ design)
    residual = np.eye(len(design)) - design @ bread @ (design.T * weights)
    spread = residual @ residual.T
    leverage = weights * np.einsum("ij,jk,ik->i", design, bread, design)
    each = np.square(weights * (design @ bread @ contrast)) * (1 - leverage) ** (-2 * power)
    truth = contrast @ bread @ (design.T * weights**2 @ design) @ bread @ contrast
    trace = each @ np.diagonal(spread)
    return trace**2 / (each @ np.square(spread) @ each), trace / truth


@pytest.mark.parametrize("correction", POWERS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_laws_of_rows_are_those_of_matrices_by_hand(kind, correction):
    given = WEIGHTS[kind]
    criterion = ef.Criterion(ef.losses.Squared(), (X, Y), **given)
    goal = ef.target(criterion, correction=correction)
    contrasts = np.vstack([np.eye(3), [0.0, 1.0, -1.0]])
    law = contrast_laws(point_of(goal), None, correction, contrasts)
    weights = given.get("weights", np.ones(N))
    expected = [by_hand(weights, kind == "sampling", POWERS[correction], c) for c in contrasts]
    factor = criterion.total.small_sample_factor() if correction == "HC1" else 1.0
    np.testing.assert_allclose(law.dof, [nu for nu, _ in expected], rtol=1e-10)
    np.testing.assert_allclose(law.inflation, [factor * kappa for _, kappa in expected], rtol=1e-10)


@pytest.mark.parametrize("correction", CLUSTERS)
def test_laws_of_clusters_are_those_of_matrices_by_hand(correction):
    labels = np.sort(RNG.integers(0, 9, N))
    groups = Groups.of(labels, N)
    criterion = ef.Criterion(ef.losses.Squared(), (X, Y))
    goal = ef.target(criterion, clusters=labels, correction=correction)
    law = contrast_laws(point_of(goal), groups, correction, np.eye(3))
    bread = np.linalg.inv(X.T @ X)
    spread, power = np.eye(N) - X @ bread @ X.T, CLUSTERS[correction]
    for j, contrast in enumerate(np.eye(3)):
        towards = np.zeros((len(groups), N))
        for g in range(len(groups)):
            rows = groups.codes == g
            values, vectors = np.linalg.eigh(np.eye(rows.sum()) - X[rows] @ bread @ X[rows].T)
            adjust = (vectors * values**-power) @ vectors.T
            towards[g, rows] = adjust @ X[rows] @ bread @ contrast
        turned = towards @ spread @ towards.T
        factor = len(groups) / (len(groups) - 1) if correction in ("CR1", "CR1S") else 1.0
        factor *= (N - 1) / (N - 3) if correction == "CR1S" else 1.0
        assert law.dof[j] == pytest.approx(np.trace(turned) ** 2 / np.square(turned).sum())
        truth = contrast @ bread @ contrast
        assert law.inflation[j] == pytest.approx(factor * np.trace(turned) / truth)
        share = carriers(point_of(goal), groups, correction, contrast)
        assert share.sum() == pytest.approx(1.0)
    if correction == "CR2":  # as in clubSandwich
        np.testing.assert_allclose(law.dof, goal.dof, rtol=1e-9)
        np.testing.assert_allclose(law.inflation, 1.0, rtol=1e-9)


def test_rows_are_clusters_of_one_and_parts_are_the_whole(tmp_path):
    import pandas as pd

    table = pd.DataFrame({"y": np.abs(Y), "x": X[:, 1], "z": X[:, 2]})
    loss = ef.losses.Poisson()
    counts = table.assign(y=np.round(3 * table.y))
    memory = ef.Criterion.from_formula("y ~ x + z", counts, loss, ef.penalties.Ridge(0.05))
    parts = [counts.iloc[:13], counts.iloc[13:]]
    streamed = ef.Criterion.from_parts(loss, parts, "y ~ x + z", ef.penalties.Ridge(0.05))
    for correction in ("HC2", "HC3"):
        goals = [ef.target(c, correction=correction) for c in (memory, streamed)]
        one, other = (contrast_laws(point_of(g), None, correction, np.eye(3)) for g in goals)
        np.testing.assert_allclose(one, other, rtol=1e-8)
    plain = ef.target(memory.with_penalty(ef.penalties.NoPenalty()))
    at, single = point_of(plain), Groups(np.arange(N), np.arange(N))
    rows = contrast_laws(at, None, "HC3", np.eye(3))
    np.testing.assert_allclose(rows, contrast_laws(at, single, "CR3", np.eye(3)), rtol=1e-8)


def test_the_coverage_that_a_law_implies_is_that_of_a_simulation():
    """Five of fifty rows are treated: normal quantiles with HC3 cover nine times in ten."""
    design = np.column_stack([np.ones(50), np.arange(50) < 5])
    rng, hits, many = np.random.default_rng(1), 0, 4000
    bread = np.linalg.inv(design.T @ design)
    leverage = np.einsum("ij,jk,ik->i", design, bread, design)
    noise = rng.standard_normal((many, 50))
    estimate = noise @ design @ bread
    residual = (noise - estimate @ design.T) / (1 - leverage)
    se = np.sqrt(np.square(residual) @ np.square(design @ bread[1]))
    hits = np.mean(np.abs(estimate[:, 1]) < 1.96 * se)
    criterion = ef.Criterion(ef.losses.Squared(), (design, noise[0]))
    law = contrast_laws(point_of(ef.target(criterion)), None, "HC3", np.eye(2))
    implied = law.coverage(student_quantile(0.975, np.full(2, np.inf)))[1]
    assert implied < 0.93
    assert abs(implied - hits) < 0.01 + 4 * np.sqrt(hits * (1 - hits) / many)


def treated(clusters, many, rng, n=400):
    group = np.arange(n) // (n // clusters)
    design = np.column_stack([np.ones(n), group < many, rng.standard_normal((n, 4))])
    y = 0.5 * rng.standard_normal(clusters)[group] + rng.standard_normal(n)
    return ef.Criterion(ef.losses.Squared(), (design, y)), group


def test_few_treated_clusters_are_flagged_and_many_are_not():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        few, group = treated(50, 4, rng)
        told = checks_of(ef.target(few, clusters=group))["implied coverage"]
        assert told.verdict == "warn"
        assert "'theta[1]'" in told.advice
        assert "clusters " in told.advice
        half, group = treated(50, 25, rng)
        told = checks_of(ef.target(half, clusters=group))
        assert told["implied coverage"].verdict == "ok"
        assert told["neighbouring clusters"].verdict == "ok"
        # of its own degrees of freedom CR2 knows
        told = checks_of(ef.target(few, clusters=group, correction="CR2"))
        assert told["implied coverage"].verdict == "ok"


def test_parts_of_larger_clusters_are_flagged():
    rng = np.random.default_rng(3)
    school, lesson = np.arange(600) // 20, np.arange(600) // 5
    x = rng.standard_normal(30)[school]
    y = x + rng.standard_normal(30)[school] + rng.standard_normal(600)
    criterion = ef.Criterion(ef.losses.Squared(), (np.column_stack([np.ones(600), x]), y))
    fine = checks_of(ef.target(criterion, clusters=lesson))["neighbouring clusters"]
    right = checks_of(ef.target(criterion, clusters=school))["neighbouring clusters"]
    assert (fine.verdict, right.verdict) == ("warn", "ok")
    assert "larger units" in fine.advice
    order = rng.permutation(600)  # the order of rows says it, not that of labels
    mixed = ef.Criterion(ef.losses.Squared(), (criterion.total.X[order], criterion.total.y[order]))
    moved = checks_of(ef.target(mixed, clusters=lesson[order]))["neighbouring clusters"]
    assert moved.verdict == "ok"


def test_many_coefficients_are_no_reason_to_warn():
    """The largest of p z-scores is held against what is as improbable as 3.5 of one."""
    rng = np.random.default_rng(4)
    design = rng.standard_normal((1000, 200))
    criterion = ef.Criterion(ef.losses.Squared(), (design, rng.standard_normal(1000)))
    told = checks_of(ef.target(criterion, correction="HC1"))["serial dependence"]
    assert told.verdict == "ok"
    assert told.threshold == pytest.approx(4.73, abs=0.01)


@pytest.mark.parametrize(("n", "p"), [(60, 10), (100, 10), (300, 5)])
def test_joint_regions_of_independent_rows_cover(n, p):
    hits, many, rng = 0, 600, np.random.default_rng(5)
    for _ in range(many):
        design = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
        criterion = ef.Criterion(ef.losses.Squared(), (design, rng.standard_normal(n)))
        goal = ef.target(criterion)
        hits += Region.of(goal.center, goal, level=0.95).contains(np.zeros(p))
    assert goal.dof_of(np.eye(p)) == n - p
    assert goal.dof_of(np.eye(p)[0]) == np.inf
    assert abs(hits / many - 0.95) < 0.012 + 3 * np.sqrt(0.95 * 0.05 / many)


def test_corrections_stand_side_by_side():
    rng = np.random.default_rng(6)
    criterion, group = treated(40, 4, rng)
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    result = ef.calibrate(ef.sample(posterior, draws=500), posterior, clusters=group)
    table = result.corrections()
    assert table.index.names == ["parameter", "correction"]
    names = ["CR0", "CR1", "CR1S", "CR2", "CR3", "CR3, Satterthwaite", "wild bootstrap"]
    assert table.loc["theta[1]"].index.tolist() == names
    for name in names[:5]:
        goal = ef.target(criterion, clusters=group, correction=name)
        own = table.xs(name, level="correction")
        np.testing.assert_allclose(own["se"], goal.se, rtol=1e-9)
        np.testing.assert_allclose(own["dof"], goal.dof, rtol=1e-9)
    shown = result.interval(kind="wald")
    np.testing.assert_allclose(table.xs("CR3", level=1)[["lower", "upper"]], shown, rtol=1e-9)
    p_value = result.test("theta[1] = 0").p_value
    assert table.loc[("theta[1]", "CR3"), "p_value"] == pytest.approx(p_value)
    width = table["upper"] - table["lower"]
    two = width["theta[1]", "CR2"], width["theta[1]", "CR3, Satterthwaite"]
    assert two[0] == pytest.approx(two[1], rel=0.05)
    assert two[0] > 1.2 * width["theta[1]", "CR3"]
    given = ef.calibrate(rng.standard_normal((100, 1)), center=[0.0], covariance=np.eye(1))
    refused("target", "Criterion", given.corrections)


def test_corrections_of_independent_rows():
    criterion = ef.Criterion(ef.losses.Huber(), (X, Y), names=["one", "dose", "x"])
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    table = ef.calibrate(ef.sample(posterior, draws=500), posterior).corrections(level=0.9)
    names = ["HC0", "HC1", "HC2", "HC2, Satterthwaite", "HC3", "HC3, Satterthwaite"]
    assert table.loc["dose"].index.tolist() == names
    assert np.all(table["lower"] < table["upper"])
    assert table["p_value"].between(0, 1).all()


def test_tables_sorted_by_their_outcome_are_no_larger_units():
    """Totals of clusters then rise or stay as they are; so it is in many a published table."""
    rng = np.random.default_rng(7)
    group, y = np.repeat(np.arange(120), 3), rng.poisson(2.0, 360)
    order = np.argsort(np.bincount(group, y), kind="stable")
    rows = np.concatenate([np.flatnonzero(group == g) for g in order])
    design = np.column_stack([np.ones(360), rng.standard_normal(360)])
    criterion = ef.Criterion(ef.losses.Poisson(), (design[rows], y[rows]))
    goal = ef.target(criterion, clusters=group[rows])
    assert checks_of(goal)["neighbouring clusters"].verdict == "ok"  # of the other coefficient
    alone = ef.Criterion(ef.losses.Poisson(), (design[rows, :1], y[rows]))
    assert "neighbouring clusters" not in checks_of(ef.target(alone, clusters=group[rows]))


def test_of_many_coefficients_those_are_looked_at_that_few_rows_carry(monkeypatch):
    rng = np.random.default_rng(8)
    design = np.column_stack([np.ones(300), rng.standard_normal((300, 30))])
    design[:, 17] = np.arange(300) < 4
    criterion = ef.Criterion(ef.losses.Squared(), (design, rng.standard_normal(300)))
    goals = [ef.target(criterion), ef.target(criterion, clusters=np.arange(300) // 2)]
    for goal in goals:
        groups = None if goal.clusters is None else goal.dependence.clusters
        at, correction = point_of(goal), goal.correction
        law = contrast_laws(at, groups, correction, np.eye(31))
        near = concentration(at, groups)
        assert np.argmax(near) == np.argmin(law.dof) == 17
    every = [checks_of(goal)["implied coverage"] for goal in goals]
    monkeypatch.setattr(diagnostics, "LAWS", 3 * 300 * 31**2)
    assert [checks_of(goal)["implied coverage"] for goal in goals] == every
    assert "theta[17]" in every[0].advice


@pytest.mark.parametrize("clustered", [False, True])
def test_coverage_is_checked_on_data_sets_drawn_from_ones_own(clustered):
    rng = np.random.default_rng(9)
    group = np.sort(rng.integers(0, 25, 120))
    design = np.column_stack([np.ones(120), rng.standard_normal(120)])
    y = rng.lognormal(size=25)[group] + rng.standard_normal(120)
    criterion = ef.Criterion(ef.losses.Huber(scale=1.0), (design, y), ef.penalties.Ridge(0.01))
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    options = {"clusters": group} if clustered else {}
    result = ef.calibrate(ef.sample(posterior, draws=400), posterior, **options)
    table = result.coverage_check(60, kind="wald", seed=3)
    again, hits = np.random.default_rng(3), np.zeros((2, 2))
    units = [np.flatnonzero(group == g) for g in np.unique(group)] if clustered else None
    for _ in range(60):  # by hand
        if units is None:
            rows, told = again.integers(120, size=120), {}
        else:
            drawn = again.integers(len(units), size=len(units))
            rows = np.concatenate([units[g] for g in drawn])
            told = {"clusters": np.repeat(np.arange(len(drawn)), [len(units[g]) for g in drawn])}
        data = ef.Criterion(criterion.loss, (design[rows], y[rows]), ef.penalties.Ridge(0.01))
        goal = ef.target(data, **told)
        half = student_quantile(0.975, result.target.dof) * goal.se
        hits += [goal.center + half < result.center, goal.center - half > result.center]
    np.testing.assert_allclose(table[["below", "above"]].to_numpy().T, hits / 60)
    np.testing.assert_allclose(table["coverage"], 1 - hits.sum(axis=0) / 60)
    assert (table["replicates"] == 60).all()


def test_coverage_of_a_skewed_mean_falls_short_on_one_side():
    y = np.random.default_rng(0).lognormal(0.0, 2.0, 60)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((60, 1)), y))
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    table = ef.calibrate(ef.sample(posterior, draws=1000), posterior).coverage_check(300)
    assert table["coverage"].iloc[0] < 0.92
    assert table["below"].iloc[0] > 5 * table["above"].iloc[0]
    assert table["error"].iloc[0] == pytest.approx(0.017, abs=0.005)


def test_what_cannot_be_drawn_again_is_refused():
    criterion, group = treated(40, 20, np.random.default_rng(6))
    draws = np.random.default_rng(1).standard_normal((200, 6))

    def check(of, replicates=50, **options):
        return lambda: ef.calibrate(draws, of, **options).coverage_check(replicates)

    refused("replicates", "criterion", check(None, center=np.zeros(6), covariance=np.eye(6)))
    refused(
        "replicates", "depend otherwise", check(criterion, clusters=[group, np.arange(400) % 9])
    )
    copies = criterion.reweighted(np.arange(400) % 3)
    refused("replicates", "copies", check(copies))
    refused("replicates", "meat=", check(ef.target(criterion, meat=np.eye(6))))
    refused("replicates", "at least 50", check(criterion, 10))


def test_infinite_degrees_of_freedom_are_the_normal_law():
    dof = np.array([4.0, np.inf])
    np.testing.assert_allclose(student_quantile(0.975, dof), [2.776445, 1.959964], rtol=1e-6)
    np.testing.assert_allclose(student_tail(student_quantile(0.975, dof), dof), 0.025)


@pytest.mark.parametrize("correction", ["HC0", "HC2", "HC3", "CR0", "CR1", "CR2", "CR3"])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_influences_have_the_covariance_of_the_target(correction, ridge):
    rng = np.random.default_rng(2)
    group = rng.integers(0, 20, 90)
    X = np.column_stack([np.ones(90), rng.standard_normal((90, 2))])
    criterion = ef.Criterion(
        ef.losses.Huber(scale=1.0), (X, rng.standard_t(3, 90)), ef.penalties.Ridge(ridge)
    )
    clusters = {"clusters": group} if correction.startswith("CR") else {}
    goal = ef.target(criterion, correction=correction, **clusters)
    parts = influences(point_of(goal), goal.dependence.clusters, correction)
    factor = 20 / 19 if correction == "CR1" else 1.0
    np.testing.assert_allclose(factor * parts.T @ parts, goal.covariance, rtol=1e-9, atol=1e-15)


def test_bootstrap_ratios_of_a_mean_are_those_of_refits():
    """With leverage 1 / n, t* = (mean* - mean) (n - 1) / SS*^(1/2); influences give n for n - 1."""
    y = np.random.default_rng(4).lognormal(size=30)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((30, 1)), y))
    result = ef.calibrate(np.random.default_rng(1).standard_normal((200, 1)), criterion)
    seed = 7
    counts = resample_counts(np.ones(30), 400, np.random.default_rng(seed))
    means = counts @ y / 30
    squares = counts @ np.square(y) - 30 * np.square(means)
    by_hand = 30 * (means - y.mean()) / np.sqrt(squares)
    parts = influences(point_of(result.target), None, "HC3")
    ratios = t_ratios(parts, 400, np.random.default_rng(seed))[:, 0]
    np.testing.assert_allclose(ratios, by_hand, rtol=1e-9)
    low, high = np.quantile(by_hand * 29 / 30, [0.025, 0.975])
    table = result.bootstrap_t(draws=400, refits=True, wider=False, seed=seed)
    se, mean = result.target.se[0], y.mean()
    np.testing.assert_allclose(table.loc["theta[0]"], [mean - high * se, mean - low * se])


def test_limits_of_skewed_means_cover_better_by_the_bootstrap_of_t():
    rng, hits = np.random.default_rng(5), np.zeros(2)
    for _ in range(300):
        criterion = ef.Criterion(ef.losses.Squared(), (np.ones((50, 1)), rng.lognormal(size=50)))
        result = ef.calibrate(rng.standard_normal((100, 1)), criterion)
        for k, table in enumerate((result.interval(kind="wald"), result.bootstrap_t(draws=399))):
            lower, upper = table.loc["theta[0]"]
            hits[k] += lower <= np.exp(0.5) <= upper
    wald, bootstrap = hits / 300
    assert wald < 0.94  # .90 in the long run, with a Monte Carlo error of .017
    assert bootstrap > wald + 0.02
    assert bootstrap > 0.90


def test_limits_are_at_least_as_wide_as_those_of_few_carriers_allow():
    criterion, group = treated(40, 5, np.random.default_rng(8))
    draws = np.random.default_rng(1).standard_normal((300, criterion.p))
    result = ef.calibrate(draws, criterion, clusters=group)
    safe, own = result.bootstrap_t(draws=999), result.bootstrap_t(draws=999, wider=False)
    assert (safe["lower"] <= own["lower"]).all()
    assert (safe["upper"] >= own["upper"]).all()
    table = result.corrections().xs("CR3, Satterthwaite", level="correction").loc[list(own.index)]
    np.testing.assert_allclose(safe["lower"], np.minimum(own["lower"], table["lower"]))
    np.testing.assert_allclose(safe["upper"], np.maximum(own["upper"], table["upper"]))


def test_limits_by_the_bootstrap_of_t_are_seeded_and_for_units_that_can_be_drawn():
    criterion, group = treated(40, 20, np.random.default_rng(6))
    draws = np.random.default_rng(1).standard_normal((200, 6))
    result = ef.calibrate(draws, criterion, clusters=group)
    first, again = (result.bootstrap_t(draws=199, seed=3) for _ in range(2))
    assert first.equals(again)
    assert result.interval(0.9, kind="bootstrap-t").equals(result.bootstrap_t(0.9))
    two = ef.calibrate(draws, criterion, clusters=[group, np.arange(400) % 9])
    refused("draws", "depend otherwise", two.bootstrap_t)
    refused("draws", "at least 99", lambda: result.bootstrap_t(draws=10))
    refused("wider", "True or False", lambda: result.bootstrap_t(wider=1))

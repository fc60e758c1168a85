"""Reference laws of contrasts: degrees of freedom and bias of estimated variances."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from conftest import checks_of, refused
from etafree import diagnostics
from etafree.data.groups import Groups
from etafree.dependence.clusters import carriers, concentration, contrast_laws, influences, point_of
from etafree.inference import Region, resample_counts, t_ratios
from etafree.target import Law

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
    implied = law.coverage(np.full(2, 1.959964))[1]
    assert implied < 0.93
    assert abs(implied - hits) < 0.01 + 4 * np.sqrt(hits * (1 - hits) / many)


def treated(clusters, many, rng, n=400):
    group = np.arange(n) // (n // clusters)
    design = np.column_stack([np.ones(n), group < many, rng.standard_normal((n, 4))])
    y = 0.5 * rng.standard_normal(clusters)[group] + rng.standard_normal(n)
    return ef.Criterion(ef.losses.Squared(), (design, y)), group


def test_few_treated_clusters_are_flagged_where_the_law_does_not_know_of_them():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        few, group = treated(50, 4, rng)
        for given in ({"correction": "CR1"}, {"dof": 49.0}):
            told = checks_of(ef.target(few, clusters=group, **given))["implied coverage"]
            assert told.verdict == "warn"
            assert "'theta[1]'" in told.advice
            assert "clusters " in told.advice
            assert f"leave out {next(iter(given))}=" in told.advice
        for correction in (None, "CR2"):  # their degrees of freedom know
            told = checks_of(ef.target(few, clusters=group, correction=correction))
            assert told["implied coverage"].verdict == "ok"
        half, group = treated(50, 25, rng)
        told = checks_of(ef.target(half, clusters=group, correction="CR1"))
        assert told["implied coverage"].verdict == "ok"
        assert told["neighbouring clusters"].verdict == "ok"


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
    assert goal.dof_of(np.eye(p)[0]) == goal.dof[0] < n
    assert abs(hits / many - 0.95) < 0.012 + 3 * np.sqrt(0.95 * 0.05 / many)


def test_corrections_stand_side_by_side():
    rng = np.random.default_rng(6)
    criterion, group = treated(40, 4, rng)
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    result = ef.calibrate(ef.sample(posterior, draws=500), posterior, clusters=group)
    table = result.corrections()
    assert table.index.names == ["parameter", "correction"]
    names = ["CR0", "CR1", "CR1S", "CR2", "CR2, t(G - 1)", "CR3", "CR3, t(G - 1)"]
    assert table.loc["theta[1]"].index.tolist() == [*names, "wild bootstrap", "bootstrap-t"]
    own = result.bootstrap_t(draws=999).loc["theta[1]"]
    np.testing.assert_allclose(table.loc[("theta[1]", "bootstrap-t")][["lower", "upper"]], own)
    for name, row in table.xs("bootstrap-t", level=1).iterrows():
        assert (row["p_value"] < 0.05) == (row["lower"] > 0 or row["upper"] < 0), name
    for name in ("CR0", "CR1", "CR1S", "CR2", "CR3"):
        goal = ef.target(criterion, clusters=group, correction=name)
        own = table.xs(name, level="correction")
        np.testing.assert_allclose(own["se"], goal.se, rtol=1e-9)
        np.testing.assert_allclose(own["dof"], goal.dof, rtol=1e-9)
    shown = result.interval(kind="wald")
    np.testing.assert_allclose(table.xs("CR3", level=1)[["lower", "upper"]], shown, rtol=1e-9)
    p_value = result.test("theta[1] = 0").p_value
    assert table.loc[("theta[1]", "CR3"), "p_value"] == pytest.approx(p_value)
    width = table["upper"] - table["lower"]
    two = width["theta[1]", "CR2"], width["theta[1]", "CR3"]
    assert two[0] == pytest.approx(two[1], rel=0.05)
    assert two[0] > 1.2 * width["theta[1]", "CR3, t(G - 1)"]
    given = ef.calibrate(rng.standard_normal((100, 1)), center=[0.0], covariance=np.eye(1))
    refused("target", "Criterion", given.corrections)


def test_corrections_of_independent_rows():
    criterion = ef.Criterion(ef.losses.Huber(), (X, Y), names=["one", "dose", "x"])
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    table = ef.calibrate(ef.sample(posterior, draws=500), posterior).corrections(level=0.9)
    names = ["HC0", "HC1", "HC2", "HC2, normal", "HC3", "HC3, normal", "bootstrap-t"]
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
    goals = [
        ef.target(criterion, correction="HC1"),
        ef.target(criterion, correction="CR1", clusters=np.arange(300) // 2),
    ]
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
        half = goal.law().quantile(0.975) * goal.se
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
    law = Law(np.array([4.0, np.inf, 4.0]), np.array([1.0, 1.0, 4.0]))
    np.testing.assert_allclose(law.quantile(0.975), [2.776445, 1.959964, 1.388223], rtol=1e-6)
    np.testing.assert_allclose(law.tail(law.quantile(0.975)), 0.025)
    np.testing.assert_allclose(law.coverage(law.quantile(0.95)), 0.9)


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
    table = result.corrections().xs("CR3", level="correction").loc[list(own.index)]
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


def test_defaults_are_the_laws_of_few_rows_and_clusters():
    """By the formulas for least squares, t_nu / sqrt(kappa), in every answer of a result."""
    criterion = ef.Criterion(ef.losses.Squared(), (X, Y), names=["one", "dose", "x"])
    draws = np.random.default_rng(1).standard_normal((4000, 3))
    result = ef.calibrate(draws, criterion)
    Q, t = np.linalg.inv(X.T @ X), result.target
    h = np.einsum("ij,jk,ik->i", X, Q, X)
    for j, name in enumerate(criterion.names):
        a = np.square(X @ Q[:, j]) / np.square(1 - h)
        tau, S = a @ (1 - h), (X.T * a) @ X
        nu = tau**2 / (np.square(a) @ (1 - 2 * h) + np.trace(Q @ S @ Q @ S))
        assert t.dof[j] == pytest.approx(nu, rel=1e-10)
        assert t.inflation[j] == pytest.approx(tau / Q[j, j], rel=1e-10)
        law = Law(np.array([nu]), np.array([tau / Q[j, j]]))
        reach = law.quantile(0.975)[0] * t.se[j]
        wald = result.interval(kind="wald").loc[name]
        np.testing.assert_allclose(wald, [t.center[j] - reach, t.center[j] + reach], rtol=1e-9)
        test = result.test(name)
        assert test.p_value == pytest.approx(2 * law.tail(np.abs(t.center[j : j + 1]) / t.se[j])[0])
        assert test.dof == (1, pytest.approx(nu))
        assert test.se[0] == pytest.approx(t.se[j])
        moved = (result.draws.array[:, j] - t.center[j]) / reach
        np.testing.assert_allclose(np.quantile(moved, [0.025, 0.975]), [-1, 1], atol=0.06)
    summary = result.summary()
    np.testing.assert_allclose(summary["dof"], t.dof)
    normal = ef.target(criterion, dof=np.inf)
    assert np.isinf(normal.dof).all()
    assert (normal.inflation == 1).all()
    assert (normal.covariance == t.covariance).all()


@pytest.mark.parametrize("clustered", [False, True])
def test_contrasts_have_laws_of_their_own_also_in_a_file(tmp_path, clustered):
    criterion = ef.Criterion(ef.losses.Squared(), (X, Y), names=["one", "dose", "x"])
    options = {"clusters": np.arange(N) // 4} if clustered else {}
    draws = np.random.default_rng(1).standard_normal((400, 3))
    result = ef.calibrate(draws, criterion, **options)
    t, contrast = result.target, np.array([[0.0, 1.0, -1.0]])
    correction, groups = t.correction, t.dependence.clusters
    law = contrast_laws(point_of(t), groups, correction, contrast)
    np.testing.assert_allclose(t.law(contrast), law, rtol=1e-9)
    # the same contrast as a coefficient of its own
    turn = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    turned = ef.Criterion(ef.losses.Squared(), (X @ turn, Y))
    goal = ef.target(turned, **options)
    # theta = turn @ other, so other[1] = theta[1] - theta[2]
    assert law.dof[0] == pytest.approx(goal.dof[1], rel=1e-9)
    assert law.inflation[0] == pytest.approx(goal.inflation[1], rel=1e-9)
    again = ef.Calibration.load(result.save(tmp_path / "result.npz"))
    for hypothesis in ("dose - x", "dose", ["dose", "x"]):
        one, other = result.test(hypothesis), again.test(hypothesis)
        assert one.p_value == pytest.approx(other.p_value, rel=1e-8)
        assert one.dof == pytest.approx(other.dof, rel=1e-8)
    np.testing.assert_allclose(again.region().covariance, result.region().covariance, rtol=1e-8)
    np.testing.assert_allclose(again.interval(kind="wald"), result.interval(kind="wald"))


def test_joint_laws_of_clusters_do_not_depend_on_how_hypotheses_are_written():
    """HTZ of the covariance whose bias the working model knows; of one contrast, t_nu^2 kappa."""
    criterion, group = treated(40, 6, np.random.default_rng(3))
    for correction in ("CR2", "CR3"):
        goal = ef.target(criterion, clusters=group, correction=correction)
        rows, mix = np.eye(6)[[1, 2]], np.array([[2.0, 1.0], [-1.0, 3.0]])
        dof, scale = goal.joint_law(rows)
        other, turned = goal.joint_law(mix @ rows)
        assert dof == pytest.approx(other, rel=1e-8)
        covariance = rows @ goal.covariance @ rows.T
        one = scale @ covariance @ scale.T
        two = turned @ mix @ covariance @ mix.T @ turned.T
        np.testing.assert_allclose(mix @ one @ mix.T, two, rtol=1e-8)
        single, factor = goal.joint_law(np.eye(6)[[1]])
        assert single == pytest.approx(goal.dof[1])
        assert factor[0, 0] == pytest.approx(goal.inflation[1] ** -0.5)
        if correction == "CR2":
            np.testing.assert_allclose(one, covariance, rtol=1e-8)
        else:
            assert np.all(np.diagonal(one) < np.diagonal(covariance))


def test_many_degrees_of_freedom_are_bounded_and_few_are_exact(monkeypatch):
    from etafree.dependence import clusters

    rng = np.random.default_rng(5)
    n = 4000
    design = np.column_stack([np.ones(n), rng.standard_normal(n), np.arange(n) < 8])
    criterion = ef.Criterion(ef.losses.Logistic(), (design, rng.integers(0, 2, n).astype(float)))
    for groups in (None, np.arange(n) // 2):
        goal = ef.target(criterion, clusters=groups)
        bound = goal.dependence.clusters
        exact = contrast_laws(point_of(goal), bound, goal.correction, np.eye(3))
        np.testing.assert_allclose(goal.inflation, exact.inflation, rtol=1e-10)
        assert goal.dof[2] == pytest.approx(exact.dof[2], rel=1e-10)
        assert goal.dof[2] < 10
        assert np.all(goal.dof[:2] > 300)
        assert np.all(goal.dof <= exact.dof * (1 + 1e-9))
        quantiles = goal.law().quantile(0.975), exact.quantile(0.975)
        np.testing.assert_allclose(*quantiles, rtol=1e-5)
    monkeypatch.setattr(clusters, "WORK", n * 9.0)  # for one of them
    short = ef.target(criterion)
    assert short.dof[2] == pytest.approx(7.025, abs=0.001)
    assert np.all(short.dof[:2] > 300)


def test_laws_are_the_same_in_jax_and_for_copies():
    import jax.numpy as jnp

    loss = ef.JaxLoss(lambda theta, row: 0.5 * (row["y"] - jnp.dot(row["x"], theta)) ** 2)
    plain = ef.Criterion(ef.losses.Squared(), (X, Y))
    other = ef.Criterion(loss, {"x": X, "y": Y}, start=np.zeros(3))
    for options in ({}, {"clusters": np.arange(N) // 4}):
        one, two = (ef.target(c, **options) for c in (plain, other))
        np.testing.assert_allclose(two.law(), one.law(), rtol=1e-6)
    copies = WEIGHTS["copies"]["weights"]
    few = ef.target(ef.Criterion(ef.losses.Squared(), (X, Y), **WEIGHTS["copies"]))
    rows = np.repeat(np.arange(N), copies.astype(int))
    many = ef.target(ef.Criterion(ef.losses.Squared(), (X[rows], Y[rows])))
    np.testing.assert_allclose(few.law(), many.law(), rtol=1e-9)


def test_what_is_known_of_no_contrast_is_the_fewest_degrees_of_freedom():
    goal = ef.Target([0.0, 1.0, 2.0], np.eye(3), dof=[5.0, 9.0, np.inf], inflation=[1.0, 1.2, 1.0])
    law = goal.law(np.array([[0.0, 1.0, 1.0], [0.0, 2.0, 0.0], [1.0, 0.0, 1.0]]))
    np.testing.assert_allclose(law.dof, [9.0, 9.0, 5.0])
    np.testing.assert_allclose(law.inflation, [1.0, 1.2, 1.0])
    small = ef.Target([0.0, 1.0], np.eye(2), inflation=[0.9, 1.2])
    np.testing.assert_allclose(small.law(np.ones((1, 2))).inflation, [0.9])
    assert goal.dof_of(np.eye(3)[1:]) == 9.0
    refused("inflation", "above zero", lambda: ef.Target([0.0], np.eye(1), inflation=0.0))


def test_several_ways_take_the_law_of_the_worst():
    rng = np.random.default_rng(4)
    row, column = (index.reshape(-1) for index in np.indices((12, 15)))
    design = np.column_stack([np.ones(180), row < 2, rng.standard_normal(180)])
    criterion = ef.Criterion(ef.losses.Squared(), (design, rng.standard_normal(180)))
    goal = ef.target(criterion, clusters=[row, column], correction="CR1S")
    rows, columns = (
        contrast_laws(point_of(goal), Groups.of(labels, 180), "CR1S", np.eye(3))
        for labels in (row, column)
    )
    reach = np.max([law.quantile(0.975) for law in (rows, columns)], axis=0)
    reach = np.maximum(reach, Law(np.full(3, 11.0), np.ones(3)).quantile(0.975))
    np.testing.assert_allclose(goal.law().quantile(0.975), reach, rtol=1e-12)
    assert goal.dof[1] < 4  # two rows are treated
    assert goal.dof_of(np.eye(3)[:2]) == 11
    plain = ef.target(criterion, clusters=[row, column], correction="CR1S", dof=11)
    assert (plain.dof == 11).all()
    np.testing.assert_allclose(plain.covariance, goal.covariance)


def test_cr3_of_several_ways_has_the_law_of_welch_over_single_ways():
    rng = np.random.default_rng(4)
    row, column = (index.reshape(-1) for index in np.indices((12, 15)))
    design = np.column_stack([np.ones(180), row < 3, rng.standard_normal(180)])
    criterion = ef.Criterion(ef.losses.Squared(), (design, rng.standard_normal(180)))
    goal = ef.target(criterion, clusters=[row, column])
    ways = [ef.target(criterion, clusters=labels) for labels in (row, column)]
    for contrasts in (np.eye(3), np.array([[1.0, 1.0, 0.0], [0.0, 2.0, -1.0]])):
        parts = [np.diagonal(contrasts @ way.covariance @ contrasts.T) for way in ways]
        dof = [way.law(contrasts).dof for way in ways]
        expected = sum(parts) ** 2 / sum(v**2 / nu for v, nu in zip(parts, dof, strict=True))
        law = goal.law(contrasts)
        np.testing.assert_allclose(law.dof, expected, rtol=1e-8)
        np.testing.assert_array_equal(law.inflation, 1.0)
    total = sum(way.covariance for way in ways)
    shares = [np.linalg.solve(total, way.covariance) for way in ways]  # Nel and van der Merwe
    spread = [np.trace(w @ w) + np.trace(w) ** 2 for w in shares]
    each = [v / way.dof_of(np.eye(3)) for v, way in zip(spread, ways, strict=True)]
    dof, unbiased = goal.joint_law(np.eye(3))
    np.testing.assert_allclose(dof, 12 / sum(each), rtol=1e-8)
    np.testing.assert_allclose(unbiased, np.eye(3), atol=1e-10)
    plain = ef.target(criterion, clusters=[row, column], dof=11)
    assert (plain.dof == 11).all()
    assert plain.laws is None
    np.testing.assert_allclose(plain.covariance, goal.covariance)
    check = checks_of(goal)["implied coverage"]
    assert (check.value, check.verdict) == (0.95, "ok")


def test_cr2_of_sampling_weights_that_are_not_given_is_that_of_ones() -> None:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(60), rng.standard_normal(60)])
    y, groups = X.sum(axis=1) + rng.standard_normal(60), np.arange(60) // 5
    kinds = {"weight_kind": "sampling"}, {"weight_kind": "sampling", "weights": np.ones(60)}
    one, other = (
        ef.target(
            ef.Criterion(ef.losses.Squared(), (X, y), **kind), clusters=groups, correction="CR2"
        )
        for kind in kinds
    )
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-12)
    np.testing.assert_allclose(one.dof, other.dof, rtol=1e-9)

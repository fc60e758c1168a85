"""Losses over tuples: sums against loops, targets against refits and closed forms, samples."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
import pytest

import etafree as ef
from conftest import refused
from etafree.data.groups import Groups
from etafree.totals import tuples
from etafree.totals.tuples import TupleLoss, balanced_sample

jnp = pytest.importorskip("jax.numpy")


def make(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, n])
    return {"x": rng.standard_normal((n, 2)), "y": rng.gamma(2.0, size=n)}


def mixed(theta, *rows):
    """Quadratic in theta, with Hessians that differ from tuple to tuple, of any order."""
    x, y = sum(row["x"] for row in rows), jnp.array([row["y"] for row in rows])
    return 0.5 * (y.sum() - x @ theta) ** 2 + 0.1 * (1 + y @ y) * (theta[0] - jnp.prod(y)) ** 2


def curved(theta, *rows):
    """The same with a log: not quadratic."""
    return jnp.log1p(mixed(theta, *rows))


def third_moment(theta, a, b, c):
    m = (a + b + c) / 3
    return 0.5 * (theta - 4.5 * (a - m) * (b - m) * (c - m)) ** 2


def weights_of(kind, n):
    rng = np.random.default_rng(3)
    weights = {"frequency": rng.integers(0, 4, n), "sampling": rng.gamma(2.0, size=n)}
    return weights.get(kind)


def brute(data, theta, order, weights):
    """Return value, scores, gradient and Hessian of `mixed` by a loop over tuples of rows."""
    n, p = data["x"].shape
    value, scores, gradient, hessian = 0.0, np.zeros((n, p)), np.zeros(p), np.zeros((p, p))
    for t in map(list, combinations(range(n), order)):
        w, x, y = np.prod(weights[t]), data["x"][t].sum(axis=0), data["y"][t]
        factor, off = 0.1 * (1 + y @ y), theta[0] - np.prod(y)
        value += w * (0.5 * (y.sum() - x @ theta) ** 2 + factor * off**2)
        slope = w * (-(y.sum() - x @ theta) * x + np.array([2 * factor * off, 0.0]))
        scores[t] += slope
        gradient += slope
        hessian += w * (np.outer(x, x) + np.diag([2 * factor, 0.0]))
    return value, scores, gradient, hessian


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("kind", [None, "frequency", "sampling"])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_sums_are_those_of_a_loop(order, kind, chunk, monkeypatch) -> None:
    """Under frequency weights, of a loop over repeated rows."""
    monkeypatch.setattr(tuples, "CHUNK", chunk)
    data, w, theta = make(9), weights_of(kind, 9), np.array([0.3, -0.2])
    loss = TupleLoss(mixed, order)
    c = ef.Criterion(loss, data, start=np.zeros(2), weights=w, weight_kind=kind)
    rows, used = np.arange(9), np.ones(9) if w is None else w
    if kind == "frequency":
        rows = np.repeat(rows, w)
        used = np.ones(len(rows))
    repeated = {key: column[rows] for key, column in data.items()}
    value, scores, gradient, hessian = brute(repeated, theta, order, used)
    each = np.zeros((9, 2))
    np.add.at(each, rows, scores)
    found = c.derivatives(theta)
    assert found.value == pytest.approx(value, rel=1e-12)
    assert c.total.values(theta).sum() == pytest.approx(value, rel=1e-12)
    points = theta + np.arange(6.0).reshape(3, 2)
    assert c.values_at(points)[0] == pytest.approx(c.derivatives(points[0]).value, rel=1e-12)
    np.testing.assert_allclose(c.total.scores(theta), each, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-10)
    number = sum(np.prod(used[list(t)]) for t in combinations(range(len(rows)), order))
    assert c.size == pytest.approx(number, rel=1e-12)
    assert jnp.ones(1).dtype == np.float32  # the global setting is untouched


@pytest.mark.parametrize("h", [mixed, curved])
@pytest.mark.parametrize("kind", [None, "frequency", "sampling"])
def test_tuples_of_two_are_pairs(h, kind) -> None:
    data, w = make(20), weights_of(kind, 20)
    options = {"penalty": ef.penalties.Ridge(0.3), "weights": w, "weight_kind": kind}
    one = ef.Criterion(ef.PairLoss(h), data, start=np.zeros(2), **options)
    two = ef.Criterion(TupleLoss(h, order=2), data, start=np.zeros(2), **options)
    theta = np.array([0.4, 0.1])
    assert two.size == pytest.approx(one.size, rel=1e-14)
    for a, b in zip(one.derivatives(theta), two.derivatives(theta), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10)
    for a, b in zip(one.total.row_sums(theta), two.total.row_sums(theta), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10)
    group = np.r_[np.zeros(7, dtype=int), np.arange(13) % 6]
    blocks = [next(c.total.cluster_blocks(theta, Groups.of(group, 20))) for c in (one, two)]
    for a, b in zip(*blocks, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10)
    for correction in ("HC0", "HC1", "HC3", "CR1", "CR3"):
        if correction == "HC3" and kind == "frequency":  # a row is several units
            continue
        clusters = {"clusters": group} if correction.startswith("CR") else {}
        known, found = (ef.target(c, correction=correction, **clusters) for c in (one, two))
        np.testing.assert_allclose(found.center, known.center, rtol=1e-10)
        np.testing.assert_allclose(found.covariance, known.covariance, rtol=1e-10)
        np.testing.assert_allclose(found.law().dof, known.law().dof, rtol=1e-8)


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [(None, None), ("frequency", None), ("sampling", None), (None, 7), ("sampling", 7)],
)
def test_quadratic_losses_have_the_jackknife_of_refits(kind, rounds, monkeypatch) -> None:
    """A unit, or a cluster of units, leaves with all its tuples; so does its share of s_n."""
    data, w = make(14), weights_of(kind, 14)
    penalty = None if rounds else ef.penalties.Ridge(0.3)
    loss, options = TupleLoss(mixed, 3, rounds), {"weights": w, "weight_kind": kind}
    c = ef.Criterion(loss, data, penalty, start=np.zeros(2), **options)
    uneven = np.r_[np.zeros(5, dtype=int), np.arange(9) % 7]
    for group in (np.arange(14), uneven):
        if kind == "frequency" and group is not uneven:
            continue
        single = {} if group is not uneven else {"clusters": group}
        t = ef.target(c, correction="CR3" if single else "HC3", **single)
        own = np.ones(14) if w is None else w
        left = [
            ef.minimise(c.reweighted(np.where(group == g, 0, own), kind or "frequency")).theta
            for g in np.unique(group)
        ]
        off = np.array(left) - t.center
        np.testing.assert_allclose(t.covariance, off.T @ off, rtol=1e-8)
        monkeypatch.setattr(tuples, "HESSIANS", 12)  # in many blocks
        again = ef.target(c, correction=t.correction, **single)
        np.testing.assert_allclose(again.covariance, t.covariance, rtol=1e-9)
        np.testing.assert_allclose(again.dof, t.dof, rtol=1e-7)
        monkeypatch.undo()


def test_hc1_is_the_jackknife_of_the_total_score() -> None:
    data, n = make(16), 16
    c = ef.Criterion(TupleLoss(curved, 3), data, start=np.zeros(2))
    t = ef.target(c, correction="HC1")
    left = [c.reweighted(1 - e).gradient(t.center) / comb(n - 1, 3) for e in np.eye(n)]
    off = (np.array(left) - np.mean(left, axis=0)) * comb(n, 3)
    np.testing.assert_allclose(t.meat, (n - 1) / n * off.T @ off, rtol=1e-9)


def test_a_mean_over_triples_has_the_law_of_a_mean() -> None:
    """The kernel is a sum over units: HC1 is the variance of a mean, HC3 its jackknife."""
    z, n = np.random.default_rng(1).lognormal(size=20), 20

    def h(theta, a, b, c):
        return 0.5 * (theta - (a + b + c) / 3) ** 2

    c = ef.Criterion(TupleLoss(h), z, start=0.0)
    assert c.size == comb(20, 3)
    squares = np.square(z - z.mean()).sum()
    one = ef.target(c, correction="HC1")
    assert one.covariance[0, 0] == pytest.approx(squares / (n * (n - 1)), rel=1e-10)
    t = ef.target(c)
    assert t.center[0] == pytest.approx(z.mean())
    assert t.covariance[0, 0] == pytest.approx(squares / (n - 1) ** 2, rel=1e-10)
    assert t.dof[0] == pytest.approx(n - 1, rel=2 / n**2)
    assert "over tuples of 3 units" in t.estimand


def test_the_third_moment_is_the_unbiased_one_with_the_jackknife_of_its_statistic() -> None:
    """The minimiser is Fisher's k-statistic n sum (z - mean)^3 / ((n - 1)(n - 2))."""
    z = np.random.default_rng(2).gamma(2.0, size=40)

    def k3(z):
        n = len(z)
        return n * np.sum((z - z.mean()) ** 3) / ((n - 1) * (n - 2))

    c = ef.Criterion(TupleLoss(third_moment, 3), z, start=0.0)
    one, t = ef.target(c, correction="HC1"), ef.target(c)
    assert t.center[0] == pytest.approx(k3(z), rel=1e-10)
    left = np.array([k3(np.delete(z, i)) for i in range(40)])
    assert one.covariance[0, 0] == pytest.approx(
        39 / 40 * np.square(left - left.mean()).sum(), rel=1e-9
    )
    assert t.covariance[0, 0] == pytest.approx(np.square(left - k3(z)).sum(), rel=1e-9)


def simplicial(theta, a, b, c):
    """Minus the smoothed indicator that the triangle of three points holds theta (Liu 1990)."""

    def side(p, q):  # on which side of the line through p and q
        return (q[0] - p[0]) * (theta[1] - p[1]) - (q[1] - p[1]) * (theta[0] - p[0])

    turns = jnp.tanh(4 * jnp.array([side(a, b), side(b, c), side(c, a)]))
    return -jnp.prod(0.5 + 0.5 * turns) - jnp.prod(0.5 - 0.5 * turns)


def test_the_deepest_point_of_a_symmetric_cloud_is_its_centre() -> None:
    half = np.random.default_rng(4).standard_t(3, (30, 2))
    points = np.concatenate([half, -half]) + np.array([1.0, -2.0])
    c = ef.Criterion(TupleLoss(simplicial, 3), points, start=points.mean(axis=0) + 0.1)
    t = ef.target(c)
    np.testing.assert_allclose(t.center, [1.0, -2.0], atol=1e-8)
    depth = -c.derivatives(t.center).value / comb(60, 3)
    assert 0.15 < depth < 0.27  # 1/4 in a cloud without smoothing
    again = ef.target(c, clusters=np.tile(np.arange(30), 2))
    assert again.correction == "CR3"
    assert np.all(again.se < 0.1 * t.se)  # mirrored pairs cannot move the centre


@pytest.mark.parametrize(("n", "order"), [(10, 3), (11, 2), (7, 4), (3, 3)])
def test_every_unit_appears_equally_often_in_a_sample(n, order) -> None:
    sample = balanced_sample(n, order, 6, np.random.default_rng(0))
    assert sample.shape == (6 * n, order)
    assert np.all(np.bincount(sample.ravel()) == 6 * order)
    assert all(len(set(t)) == order for t in sample.tolist())


def test_a_sample_of_tuples_keeps_sums_over_units_and_the_scale() -> None:
    z, theta = np.random.default_rng(1).lognormal(size=25), np.array([0.7])

    def additive(theta, a, b, c):
        return sum(jnp.log1p((z - theta) ** 2) for z in (a, b, c))

    whole, some = (
        ef.Criterion(TupleLoss(additive, 3, rounds), z, start=1.0) for rounds in (None, 4)
    )
    assert some.size == whole.size == comb(25, 3)
    for a, b in zip(whole.derivatives(theta)[:3], some.derivatives(theta)[:3], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)
    same, other = (
        ef.Criterion(TupleLoss(third_moment, 3, 4, seed=s), z, start=1.0).derivatives(theta).value
        for s in (0, 1)
    )
    again = ef.Criterion(TupleLoss(third_moment, 3, 4), z, start=1.0).derivatives(theta).value
    assert again == same != other


def test_the_noise_of_a_sample_is_what_the_header_says() -> None:
    """Over 400 samples: the variance of the gradient, and the mean of its estimate."""
    n, m, rounds = 40, 3, 5
    z, theta = np.random.default_rng(2).standard_normal(n), np.zeros(1)

    def h(theta, a, b, c):
        return theta * (a + b + c + a * b + b * c + a * c)

    k, unit = rounds * m, comb(n - 1, m - 1) ** 2 * n
    total = ef.Criterion(TupleLoss(h, m), z, start=0.0).total
    whole = total.scores(theta)[:, 0]
    every = np.array(list(combinations(range(n), m)))
    each = h(1.0, *z[every].T)
    own = (whole / comb(n - 1, m - 1) - each.mean()) * (n - 1) / (n - m)  # the projections u
    rest = each - each.mean() - own[every].sum(axis=1)
    sigma, tau = np.square(own).mean(), np.square(rest).mean()
    gradients, meats, rng = [], [], np.random.default_rng(0)
    for _ in range(400):
        sampled = replace(total, tuples=balanced_sample(n, m, rounds, rng))
        scores = sampled.scores(theta)[:, 0]
        gradients.append(scores.sum() / m)
        meats.append(np.square(scores - scores.mean()).sum())
    assert np.mean(gradients) == pytest.approx(whole.sum() / m, abs=4 * np.std(gradients) / 20)
    assert np.var(gradients) / unit == pytest.approx(tau / (m * k), rel=0.3)
    excess = (np.mean(meats) - np.square(whole - whole.mean()).sum()) / unit
    assert excess == pytest.approx(((m - 1) * sigma + tau) / k, rel=0.15)


def test_thirty_rounds_have_the_target_of_all_tuples() -> None:
    z = np.random.default_rng(5).gamma(2.0, size=120)
    whole, some = (
        ef.target(ef.Criterion(TupleLoss(third_moment, 3, rounds), z, start=0.0))
        for rounds in (None, 30)
    )
    assert abs(some.center[0] - whole.center[0]) < 0.3 * whole.se[0]
    assert 0.9 < some.se[0] / whole.se[0] < 1.25


def test_units_and_clusters_without_weight_are_ignored() -> None:
    data = make(14)
    w = np.r_[np.zeros(3), np.random.default_rng(0).gamma(2.0, size=11)]
    group = np.r_[5, 5, 0, np.arange(11) % 4]
    loss, options = TupleLoss(mixed, 3), {"weight_kind": "sampling"}
    one = ef.Criterion(loss, data, start=np.zeros(2), weights=w, **options)
    rest = {key: column[3:] for key, column in data.items()}
    two = ef.Criterion(loss, rest, start=np.zeros(2), weights=w[3:], **options)
    for labels in ({}, {"clusters": group}):
        t = ef.target(one, **labels)
        other = ef.target(two, **{key: value[3:] for key, value in labels.items()})
        np.testing.assert_allclose(t.covariance, other.covariance, rtol=1e-9)
        np.testing.assert_allclose(t.dof, other.dof, rtol=1e-7)


@pytest.mark.parametrize("loss", [TupleLoss(mixed, 3), ef.PairLoss(mixed)])
def test_functions_are_compiled_once_for_a_loss_and_stay_behind_when_it_is_pickled(loss) -> None:
    one, two = (ef.Criterion(loss, make(n), start=np.zeros(2)) for n in (8, 9))
    assert one.total.sums.compiled is two.total.sums.compiled
    assert one.derivatives([0.3, 0.1]).value != two.derivatives([0.3, 0.1]).value
    again = pickle.loads(pickle.dumps(loss))
    assert "_compiled" not in vars(again)
    three = ef.Criterion(again, make(8), start=np.zeros(2))
    assert three.derivatives([0.3, 0.1]).value == one.derivatives([0.3, 0.1]).value


def test_draws_are_calibrated_to_the_target() -> None:
    z = np.random.default_rng(6).gamma(2.0, size=40)
    c = ef.Criterion(TupleLoss(third_moment, 3), z, start=0.0)
    eta = 3 / comb(39, 2)  # what one is elsewhere
    draws = ef.sample(ef.GeneralizedPosterior(c, eta), draws=2000, seed=1)
    result = ef.calibrate(draws, c)
    t = result.target
    assert result.draws.array.mean() == pytest.approx(t.center[0], abs=0.1 * t.se[0])
    boot = ef.bootstrap(c, draws=200, seed=1).array
    assert 0.5 < boot.std() / t.se[0] < 1.5


def test_what_cannot_be_used_is_refused() -> None:
    data = make(12)

    def build(h, data=data, order=3, rounds=None, **options):
        start = options.pop("start", np.zeros(2))
        return lambda: ef.Criterion(TupleLoss(h, order, rounds), data, start=start, **options)

    refused("h", "pass a function", lambda: TupleLoss(3.0))
    refused("order", "at least 2", lambda: TupleLoss(mixed, 1))
    refused("order", "2 to 8", lambda: TupleLoss(mixed, 9))
    refused("rounds", "at least 1", lambda: TupleLoss(mixed, 3, 0))
    refused("seed", "pass an int", lambda: TupleLoss(mixed, 3, 4, "x"))
    refused("h", "rows exchanged", build(lambda t, a, b, c: a["y"] * b["y"] * t[0] + c["y"]))
    refused("h", "rows exchanged", build(lambda t, a, b, c: a["y"] + b["y"] - c["y"] * t[0]))
    refused("h", "shape (2,)", build(lambda t, a, b, c: a["x"] + b["x"] + c["x"]))
    refused("h", "called as h(theta, a, b, c)", build(lambda t, a, b: a["y"]))
    refused("start", "is missing", build(mixed, start=None))
    refused("data", "fewer than 3 units", build(mixed, make(2)))
    few = np.eye(12)[0] + np.eye(12)[1]
    refused("weights", "fewer than 3 units", build(mixed, weights=few, weight_kind="sampling"))
    refused("rounds", "rounds=30", build(mixed, make(500)))
    refused("rounds", "too many", build(mixed, rounds=10**6))
    twice = np.full(12, 2)
    refused(
        "weights", "repeat rows", build(mixed, rounds=5, weights=twice, weight_kind="frequency")
    )
    c = build(mixed)()
    refused("clusters", "one value per unit", lambda: ef.target(c, clusters=np.arange(220)))
    heavy = c.reweighted(np.arange(12) < 6)
    refused("clusters", "one", lambda: ef.target(heavy, clusters=np.arange(12) // 6))
    three = build(mixed, make(3))()
    refused("correction", "more than 3 units", lambda: ef.target(three, correction="HC1"))
    z = np.arange(12.0)
    refused("h", "constants=True", build(lambda t, *rows: jnp.sum((t[0] - jnp.asarray(z)) ** 2)))


def test_skewness_is_that_of_a_sum_over_units_for_an_additive_kernel():
    from etafree.diagnostics import skewness

    def plain(theta, a):
        return (theta - a) ** 2

    def additive(theta, a, b, c):
        return plain(theta, a) + plain(theta, b) + plain(theta, c)

    y = np.tile(np.random.default_rng(4).lognormal(size=30), 4)
    shifts = []
    for loss in (ef.JaxLoss(plain), TupleLoss(additive, 3)):
        criterion = ef.Criterion(loss, y, start=1.0)
        (check,) = skewness(criterion, ef.target(criterion))
        shifts.append(check.value)
    assert shifts[0] > 0.2
    # a unit is tupled with the others only: m / n in influences, products of weights
    np.testing.assert_allclose(shifts[1], shifts[0], rtol=8 / len(y))


def test_symmetric_units_have_no_skewness_to_warn_of():
    from etafree.diagnostics import skewness

    rng = np.random.default_rng(8)
    x = rng.standard_normal((80, 1))
    criterion = ef.Criterion(ef.Wilcoxon(), (x, x[:, 0] + rng.standard_normal(80)))
    (check,) = skewness(criterion, ef.target(criterion))
    assert check.verdict == "ok"

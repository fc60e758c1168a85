"""Penalties with kinks and their fits: skglm's objective, optimality, derivatives, bad input."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import LOSSES, make_case, refused
from etafree.errors import ConvergenceError
from etafree.optimize import minimise
from etafree.optimize.proximal import QuadraticModel, proximal_minimise
from etafree.penalties import L1, ElasticNet, GroupL1, NoPenalty, Ridge

#: skglm with its compiler switched off: half a minute of compiling for milliseconds of work.
REFERENCE = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from skglm.datafits import Huber, Quadratic, QuadraticGroup
from skglm.penalties import L1, L1_plus_L2, WeightedGroupL2, WeightedL1
from skglm.solvers import AndersonCD, GroupBCD

class ElasticNet(L1_plus_L2):
    def is_penalized(self, p):  # numba's bool_ is no dtype without the compiler
        return np.ones(p, dtype=bool)

given, out = np.load(sys.argv[1]), {}
for key in given["keys"]:
    design, loss, kind, strength = key.split(":")
    X, y = np.asfortranarray(given["X:" + design]), given["y:" + design]
    a, p = float(strength) * float(given["top:" + ":".join((design, loss, kind))]), X.shape[1]
    ends, places = np.arange(0, p + 1, 5, dtype=np.int32), np.arange(p, dtype=np.int32)
    solver, fit = AndersonCD(tol=1e-11, max_epochs=20000, fit_intercept=False), Quadratic()
    if kind == "group":
        fit = QuadraticGroup(ends, places)
        penalty = WeightedGroupL2(a, np.full(p // 5, 5**0.5), ends, places)
        solver = GroupBCD(tol=1e-11, max_epochs=20000)
    elif kind == "weighted":
        penalty = WeightedL1(a, given["weights:" + design])
    else:
        penalty = L1(a) if kind == "l1" else ElasticNet(a, 0.5)
    if loss == "huber":
        fit = Huber(1.345)
    out[key] = solver.solve(X, y, fit, penalty)[0]
np.savez(sys.argv[2], **out)
"""

#: Rows, columns and correlation of neighbouring columns.
DESIGNS = {"plain": (200, 50, 0.0), "correlated": (200, 50, 0.95), "wide": (60, 100, 0.5)}
#: Strengths relative to the smallest at which everything is zero.
STRENGTHS = {"plain": (1.01, 0.5, 0.1, 0.001), "correlated": (0.5, 0.1, 0.01), "wide": (0.5, 0.05)}
KINDS = [
    ("squared", "l1"),
    ("squared", "weighted"),
    ("squared", "net"),
    ("squared", "group"),
    ("huber", "l1"),
    ("huber", "net"),
]
KEYS = [
    f"{design}:{loss}:{kind}:{s}"
    for design, (loss, kind) in product(DESIGNS, KINDS)
    for s in STRENGTHS[design]
    if loss == "squared" or s >= 0.1  # below that skglm takes its time
]


def regression(n: int, p: int, correlation: float, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    for j in range(1, p):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1 - correlation**2) * X[:, j]
    return X, X[:, ::7] @ rng.standard_normal(len(range(0, p, 7))) + rng.standard_t(3, n)


def penalty(kind: str, strength: float, p: int) -> ef.penalties.KinkedPenalty:
    if kind == "group":
        return GroupL1(strength, groups=np.arange(p) // 5)
    if kind == "net":
        return ElasticNet(strength, mix=0.5)
    return L1(strength, weights=np.linspace(0.5, 2.0, p) if kind == "weighted" else None)


def problem(design: str, loss: str, kind: str) -> tuple[ef.Criterion, float]:
    """Return a criterion without penalty and the smallest strength at which nothing is active."""
    X, y = regression(*DESIGNS[design])
    criterion = ef.Criterion(LOSSES["squared"] if loss == "squared" else ef.losses.Huber(), (X, y))
    slope = criterion.gradient(np.zeros(criterion.p)) / criterion.size
    kinks = penalty(kind, 1.0, criterion.p).kinks_at(criterion.p)
    return criterion, float(np.max(kinks.norms(slope) / kinks.weights))


def kkt(criterion: ef.Criterion, theta: np.ndarray) -> float:
    """Return the largest violation of the optimality conditions per unit of weight."""
    slope = criterion.total.derivatives(theta).gradient
    weight = criterion.strength * criterion.size
    return criterion.penalty.subgradient_gap(theta, slope, weight) / criterion.size


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder: Path = tmp_path_factory.mktemp("skglm")
    given: dict[str, np.ndarray] = {"keys": np.array(KEYS)}
    for design, (loss, kind) in product(DESIGNS, KINDS):
        criterion, top = problem(design, loss, kind)
        given |= {f"X:{design}": criterion.total.X, f"y:{design}": criterion.total.y}
        given |= {f"weights:{design}": np.linspace(0.5, 2.0, criterion.p)}
        given |= {f"top:{design}:{loss}:{kind}": np.array(top)}
    np.savez(folder / "given.npz", **given)
    subprocess.run(
        [sys.executable, "-c", REFERENCE, folder / "given.npz", folder / "out.npz"],
        check=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    return dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("key", KEYS)
def test_fits_are_skglms(key: str, reference: dict[str, np.ndarray]) -> None:
    """skglm divides the loss by n; ours sums it, and the strength is multiplied by n."""
    design, loss, kind, strength = key.split(":")
    bare, top = problem(design, loss, kind)
    criterion = bare.with_penalty(penalty(kind, float(strength) * top, bare.p))
    fit = proximal_minimise(criterion)
    theirs = criterion.value(reference[key])
    assert fit.value == pytest.approx(criterion.value(fit.theta), rel=1e-13)
    assert fit.value == pytest.approx(theirs, rel=1e-9)
    assert fit.value <= theirs * (1 + 1e-13)
    assert kkt(criterion, fit.theta) < 1e-12
    assert fit.gap <= 1e-9
    assert fit.status == "converged"
    active = criterion.penalty.active(fit.theta)
    assert np.all(fit.theta[~active] == 0)
    if float(strength) > 1:
        assert not active.any()
        assert np.all(fit.theta == 0)
    np.testing.assert_allclose(fit.hessian, criterion.hessian(fit.theta), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fit.theta, reference[key], atol=2e-4 * np.abs(fit.theta).max())


CONVEX = sorted(name for name, loss in LOSSES.items() if loss.convex)


@pytest.mark.parametrize("kind", ["l1", "net", "group"])
@pytest.mark.parametrize("name", CONVEX)
def test_every_convex_loss_weights_offsets_and_a_free_intercept(name: str, kind: str) -> None:
    case = make_case(name)
    rng = np.random.default_rng(1)
    case.X = np.column_stack([case.X, rng.standard_normal((len(case.X), 9))])
    weights = rng.integers(0, 4, len(case.X)).astype(float)
    bare = case.criterion(weights=weights, weight_kind="frequency")
    for strength in (2.0, 0.1, 0.01):
        made = penalty(kind, strength, 12).fitted_to(12, intercept=0)
        criterion = bare.with_penalty(made)
        fit = proximal_minimise(criterion)
        assert fit.gap < 1e-9
        assert kkt(criterion, fit.theta) < 1e-11
        assert fit.theta[0] != 0
        assert criterion.penalty.active(fit.theta)[0]
        slope = bare.gradient(fit.theta)[0]
        assert abs(slope) < 1e-10 * bare.size  # nothing pulls at the intercept
        again = case.criterion(np.repeat(np.arange(len(weights)), weights.astype(int)))
        copies = proximal_minimise(again.with_penalty(made))
        np.testing.assert_allclose(fit.theta, copies.theta, atol=1e-9)


def test_independent_columns_are_soft_thresholded() -> None:
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((40, 6)))[0] * np.sqrt(40)
    y = X @ [2.0, -1.0, 0.3, -0.1, 0.0, 0.6] + 0.1
    least = X.T @ y / 40
    soft = np.sign(least) * np.maximum(np.abs(least) - 0.25, 0.0)
    fit = proximal_minimise(ef.Criterion(ef.losses.Squared(), (X, y), L1(0.25)))
    np.testing.assert_allclose(fit.theta, soft, atol=1e-14)
    mixed = proximal_minimise(ef.Criterion(ef.losses.Squared(), (X, y), ElasticNet(0.5, 0.5)))
    np.testing.assert_allclose(mixed.theta, soft / 1.25, atol=1e-14)
    pairs = least.reshape(3, 2)
    length = np.linalg.norm(pairs, axis=1, keepdims=True)
    shrunk = pairs * np.maximum(1 - 0.25 * np.sqrt(2) / length, 0.0)
    groups = GroupL1(0.25, groups=list("aabbcc"))
    fit = proximal_minimise(ef.Criterion(ef.losses.Squared(), (X, y), groups))
    np.testing.assert_allclose(fit.theta, shrunk.ravel(), atol=1e-14)


def test_limits_ridge_no_penalty_and_groups_of_one(robust) -> None:
    ridge = minimise(robust.criterion(penalty=Ridge(0.3))).theta
    almost = proximal_minimise(robust.criterion(penalty=ElasticNet(0.3, mix=1e-10))).theta
    np.testing.assert_allclose(almost, ridge, atol=1e-8)
    bare = minimise(robust.criterion(penalty=NoPenalty()))
    none = proximal_minimise(robust.criterion(penalty=GroupL1(0.0, groups=[1, 1, 1])))
    np.testing.assert_allclose(none.theta, bare.theta, atol=1e-12)
    np.testing.assert_allclose(none.hessian, bare.hessian, rtol=1e-10)
    for other in (
        GroupL1(0.3, groups=[3, 1, 2]),
        ElasticNet(0.3, mix=1.0),
        L1(lambda n: 90.0 / n),
        L1(0.1, weights=[3, 3, 3]),
    ):
        fit = proximal_minimise(robust.criterion(penalty=other))
        same = proximal_minimise(robust.criterion(penalty=L1(0.3)))
        np.testing.assert_allclose(fit.theta, same.theta, atol=1e-13)
        assert fit.value == pytest.approx(same.value, rel=1e-13)


def test_the_start_does_not_matter_and_units_do_not() -> None:
    bare, top = problem("correlated", "huber", "l1")
    criterion = bare.with_penalty(L1(0.1 * top))
    fit = proximal_minimise(criterion)
    far = proximal_minimise(criterion, start=np.full(50, 5.0))
    np.testing.assert_allclose(far.theta, fit.theta, atol=1e-9)
    assert np.array_equal(far.theta == 0, fit.theta == 0)
    units = 10.0 ** np.linspace(-4, 4, 50)
    moved = ef.Criterion(
        ef.losses.Huber(), (bare.total.X * units, bare.total.y), L1(0.1 * top, weights=units)
    )
    np.testing.assert_allclose(proximal_minimise(moved).theta * units, fit.theta, atol=1e-9)


def test_hard_models_a_singular_hessian_and_a_nearly_flat_loss() -> None:
    """Few rows have curvature: quadratic models fall without end and majorizers step in."""
    X, y = regression(80, 30, 0.9)
    for made, loss in product(
        (L1(0.003), GroupL1(0.01, groups=np.arange(30) // 3)),
        (ef.losses.Quantile(0.9, bandwidth=0.03), ef.losses.Huber(0.05)),
    ):
        criterion = ef.Criterion(loss, (X, y), made)
        fit = proximal_minimise(criterion)
        assert fit.gap < 1e-9
        assert kkt(criterion, fit.theta) < 1e-11
    wide = np.random.default_rng(2).standard_normal((20, 90))
    fit = proximal_minimise(ef.Criterion(ef.losses.Squared(), (wide, wide[:, 0]), L1(1e-4)))
    assert 0 < np.count_nonzero(fit.theta) <= 20


def test_a_model_that_falls_without_end_is_noticed() -> None:
    norms = L1(0.1).kinks_at(2)
    model = QuadraticModel(
        np.zeros(2), np.array([-9.0, -9.0]), np.diag([1.0, 1e-30]), norms, np.ones(2)
    )
    assert model.minimiser(room=1000.0) is None


def test_formulas_leave_the_intercept_alone() -> None:
    rng = np.random.default_rng(4)
    df = pd.DataFrame(rng.standard_normal((100, 3)), columns=list("abc"))
    df["y"] = 5.0 + df["a"] + rng.standard_normal(100)
    made = [L1(50.0), L1(50.0, weights=[1, 1, 1, 1]), ElasticNet(50.0)]
    made += [GroupL1(50.0, groups=labels) for labels in (["i", "s", "s", "t"], [0, 0, 0, 0])]
    for kinked in made:
        criterion = ef.Criterion.from_formula("y ~ a + b + c", df, ef.losses.Squared(), kinked)
        fit = proximal_minimise(criterion)
        np.testing.assert_allclose(fit.theta, [df["y"].mean(), 0, 0, 0], atol=1e-12)
        assert criterion.penalty.active(fit.theta).tolist() == [True, False, False, False]
        assert criterion.with_penalty(kinked).penalty.active(np.zeros(4))[0]
    sized = GroupL1(1.0, groups=["s", "s", "s", "t"]).fitted_to(4, intercept=0)
    assert float(sized.value(np.array([9.0, 3.0, 4.0, 0.0]))) == pytest.approx(5 * np.sqrt(2))


PENALTIES = {
    "l1": L1(0.5, weights=[1.0, 2.0, 0.0, 0.5, 1.0]),
    "net": ElasticNet(0.5, mix=0.3),
    "group": GroupL1(0.5, groups=["b", "a", "b", "c", "a"], weights=[1.0, 2.0, 0.7]),
}
POINT = np.array([0.4, -0.8, 0.6, 0.3, 1.1])


def slopes(f, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    shifts = step * np.eye(at.shape[-1])
    return np.array([(f(at + e) - f(at - e)) / (2 * step) for e in shifts])


@pytest.mark.parametrize("name", PENALTIES)
def test_derivatives_where_there_are_any(name: str) -> None:
    kinked = PENALTIES[name]
    np.testing.assert_allclose(kinked.gradient(POINT), slopes(kinked.value, POINT), atol=1e-8)
    np.testing.assert_allclose(kinked.hessian(POINT), slopes(kinked.gradient, POINT), atol=1e-8)
    many = np.vstack([POINT, 0 * POINT, -2 * POINT])
    np.testing.assert_allclose(kinked.value(many), [kinked.value(t) for t in many], rtol=1e-14)
    assert kinked.active(POINT).all()
    free = name == "l1"  # its third weight is zero
    assert kinked.active(0 * POINT).tolist() == [False, False, free, False, False]
    assert not kinked.gradient(0 * POINT).any()
    part = POINT * [1, 0, 1, 1, 0]  # the group "a", or two coefficients
    inactive = ~kinked.active(part)
    assert inactive.tolist() == [False, True, False, False, True]
    assert not kinked.gradient(part)[inactive].any()
    assert not kinked.hessian(part)[inactive].any()
    assert not kinked.hessian(part)[:, inactive].any()


@pytest.mark.parametrize("name", PENALTIES)
def test_the_restricted_penalty_is_the_penalty_near_the_fit(name: str) -> None:
    kinked = PENALTIES[name].fitted_to(5)
    theta = POINT * [1, 0, 1, 1, 0]
    active = kinked.active(theta)
    block = kinked.restricted(active, theta).fitted_to(3)
    assert block.strength_at(10.0) == 0.5
    assert "active" in block.describe(10.0)
    kinked_here = [True, name != "l1", True]
    np.testing.assert_array_equal(np.abs(block.gaps), np.eye(3)[kinked_here])
    assert np.all(block.gaps @ theta[active] > 0)
    np.testing.assert_array_equal(block.basis, np.eye(5)[:, active])
    here = theta[active]
    assert float(block.value(here)) == pytest.approx(float(kinked.value(theta)), rel=1e-14)
    np.testing.assert_allclose(block.gradient(here), kinked.gradient(theta)[active], atol=1e-14)
    np.testing.assert_allclose(
        block.hessian(here), kinked.hessian(theta)[np.ix_(active, active)], atol=1e-14
    )
    other = here * [-1.0, 0.5, 2.0]  # beyond a zero
    np.testing.assert_allclose(block.gradient(other), slopes(block.value, other), atol=1e-8)
    np.testing.assert_allclose(block.hessian(other), slopes(block.gradient, other), atol=1e-7)
    many = np.vstack([here, other])
    np.testing.assert_allclose(block.value(many), [block.value(t) for t in many], rtol=1e-14)


@pytest.mark.parametrize("name", PENALTIES)
def test_expected_derivatives_under_a_normal(name: str) -> None:
    kinked = PENALTIES[name]
    root = np.random.default_rng(5).standard_normal((5, 5)) * 0.4
    covariance = root @ root.T + 0.1 * np.eye(5)
    mean = np.array([0.3, -0.6, 0.0, 1.5, 0.2])
    slope, bend = kinked.expected_derivatives(mean, covariance)
    assert np.linalg.eigvalsh(bend)[0] >= -1e-12
    draws = np.random.default_rng(6).multivariate_normal(mean, covariance, 200_000)
    rises = slopes(kinked.value, draws, 1e-4)  # (p, D), the same draws on both sides
    gradients, noise = rises.mean(axis=1), rises.std(axis=1) / np.sqrt(len(draws)) + 1e-8
    if name == "group":  # a stand-in except for the group of one: the sign and the size are right
        assert abs(slope[3] - gradients[3]) < 5 * noise[3]
        np.testing.assert_allclose(slope, gradients, atol=0.35)

        def stand_in(m: np.ndarray) -> float:
            spread = np.diagonal(covariance)
            pairs = [([1, 4], 1.0), ([0, 2], 2.0)]
            return sum(w * np.sqrt(m[j] @ m[j] + spread[j].sum()) for j, w in pairs)

        keep = [0, 1, 2, 4]
        np.testing.assert_allclose(slope[keep], slopes(stand_in, mean)[keep], atol=1e-8)
    else:
        assert np.all(np.abs(slope - gradients) < 5 * noise)
        stein = rises @ (draws - mean) @ np.linalg.inv(covariance) / len(draws)
        np.testing.assert_allclose(bend, stein, atol=0.04)

    def moved(m: np.ndarray) -> np.ndarray:
        return kinked.expected_derivatives(m, covariance)[0]

    np.testing.assert_allclose(bend, slopes(moved, mean), atol=1e-7)


def test_no_spread_gives_the_derivatives_at_the_mean() -> None:
    for kinked in PENALTIES.values():
        slope, bend = kinked.expected_derivatives(POINT, np.zeros((5, 5)))
        np.testing.assert_allclose(slope, kinked.gradient(POINT), atol=1e-14)
        np.testing.assert_allclose(bend, kinked.hessian(POINT), atol=1e-14)


def test_subgradient_gap_is_the_distance_to_optimality() -> None:
    kinked = L1(1.0)
    theta = np.array([0.0, 0.0, 2.0])
    assert kinked.subgradient_gap(theta, np.array([0.9, -1.0, -1.0])) == 0.0
    assert kinked.subgradient_gap(theta, np.array([1.5, -1.0, -1.0])) == pytest.approx(0.5)
    assert kinked.subgradient_gap(theta, np.array([0.0, 0.0, -1.0]), 3.0) == pytest.approx(2.0)
    pair = GroupL1(1.0, groups=[0, 0], weights=[5.0])
    assert pair.subgradient_gap(np.zeros(2), np.array([3.0, 4.0])) == 0.0
    assert pair.subgradient_gap(np.zeros(2), np.array([6.0, 8.0])) == pytest.approx(4.0)


def test_descriptions() -> None:
    assert L1(lambda n: 3 / n).describe(10.0) == "L1 penalty (strength 0.3)"
    assert PENALTIES["l1"].describe(10.0) == "weighted L1 penalty (strength 0.5)"
    assert PENALTIES["net"].describe(10.0) == "elastic net (L1 share 0.3) penalty (strength 0.5)"
    assert PENALTIES["group"].describe(10.0) == "group L1 (3 groups) penalty (strength 0.5)"


def test_bad_input_is_refused(robust) -> None:
    def fitted(made):
        return lambda: robust.criterion(penalty=made)

    refused("strength", "at least zero", fitted(L1(-1.0)))
    refused("strength", "at least zero", fitted(L1(lambda n: np.nan)))
    refused("strength", "a number", fitted(GroupL1("much", groups=[1, 2, 3])))
    refused("weights", "shape (3,)", fitted(L1(1.0, weights=[1.0, 2.0])))
    refused("weights", "negative", fitted(L1(1.0, weights=[1.0, -2.0, 0.0])))
    refused("weights", "NaN", fitted(L1(1.0, weights=[1.0, np.nan, 0.0])))
    refused("weights", "shape (2,)", fitted(GroupL1(1.0, groups=[1, 1, 2], weights=[1, 1, 1])))
    for mix in (0.0, -0.5, 1.5, np.nan, "half"):
        refused("mix", "above 0", lambda mix=mix: ElasticNet(1.0, mix=mix))
    for groups in (None, [1, 2], [[1, 2, 3]], "abc"):
        refused("groups", "one label per coefficient", fitted(GroupL1(1.0, groups=groups)))
    refused("groups", "missing", fitted(GroupL1(1.0, groups=[1.0, np.nan, 2.0])))
    group = GroupL1(1.0, groups=[1, 1, 2]).fitted_to(3)
    theta = np.array([1.0, 2.0, 0.0])
    refused("active", "kink", lambda: group.restricted([True, True, True], theta))
    refused("active", "in two", lambda: group.restricted([True, False, False], theta))
    refused("active", "kink", lambda: group.restricted([True, True], theta))
    block = group.restricted(group.active(theta), theta)
    refused("penalty", "2 active", lambda: block.fitted_to(3))


def test_problems_without_a_solution_are_refused(robust) -> None:
    refused("criterion", "ef.Criterion", lambda: ef.minimise(3))
    refused("criterion", "without kinks", lambda: proximal_minimise(robust.criterion()))
    heavy = make_case("student_t")
    refused("loss", "convex", lambda: proximal_minimise(heavy.criterion(penalty=L1(0.1))))
    start = np.array([0.0, np.nan, 0.0])
    refused("start", "NaN", lambda: proximal_minimise(robust.criterion(penalty=L1(0.1)), start))
    X = np.column_stack([robust.X, robust.X[:, 1]])
    free = L1(0.1, weights=[0, 0, 1, 0])
    twice = ef.Criterion(robust.loss, (X, robust.y), free)
    refused("X", "collinear", lambda: proximal_minimise(twice))
    half = ef.Criterion(robust.loss, (X, robust.y), L1(0.1))
    assert proximal_minimise(half).gap < 1e-9  # one of the two is enough
    huge = ef.Criterion(ef.losses.Squared(), (1e200 * robust.X, robust.y), L1(0.1))
    refused("X", "overflows", lambda: proximal_minimise(huge))
    binary = make_case("logistic")
    separated = ef.Criterion(
        binary.loss, (binary.X, (binary.X[:, 1] > 0).astype(float)), L1(0.1, weights=[1, 0, 1])
    )
    with pytest.raises(ConvergenceError, match=r"theta\[1\].*infinity"):
        proximal_minimise(separated)
    ones = ef.Criterion(binary.loss, (binary.X, np.ones(120)), L1(0.1, weights=[0, 1, 1]))
    with pytest.raises(ConvergenceError, match="infinity"):
        proximal_minimise(ones)
    bounded = separated.with_penalty(L1(0.1))
    assert proximal_minimise(bounded).gap < 1e-9


def test_fits_of_small_criteria_warn_of_nothing_and_a_column_of_zeros_is_inactive() -> None:
    X, y = regression(30, 4, 0.0)
    X[:, 2] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = proximal_minimise(ef.Criterion(ef.losses.Huber(), (X, y), L1(0.05)))
        pair = GroupL1(0.05, groups=[0, 0, 1, 1])
        both = proximal_minimise(ef.Criterion(ef.losses.Huber(), (X, y), pair))
    assert fit.theta[2] == 0
    assert both.theta[2] == 0
    nothing = ef.Criterion(ef.losses.Squared(), (X, 0 * y), L1(0.05))
    assert not proximal_minimise(nothing).theta.any()

"""Compiled losses and passes over rows against numpy's."""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np
import pytest

import etafree as ef
from etafree.data.groups import Groups
from etafree.foundation.compiler import jit
from etafree.losses import kernels
from etafree.totals.linear import LinearTotal

N, COUNTS = 700, np.random.default_rng(0).poisson(1.5, 700).astype(float)
CASES = {
    "squared": (ef.losses.Squared(), COUNTS),
    "huber": (ef.losses.Huber(1.2, scale=1.7), COUNTS),
    "pseudo-huber": (ef.losses.PseudoHuber(1.2, scale=0.7), COUNTS),
    "logistic": (ef.losses.Logistic(), (COUNTS > 1).astype(float)),
    "poisson": (ef.losses.Poisson(), COUNTS),
    "gamma": (ef.losses.Gamma(), COUNTS + 0.5),
    "without a kernel": (ef.losses.StudentT(df=3.0), COUNTS),
}


@jit()
def each(function, x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = function(x[i])


def test_the_compiled_exponential_is_that_of_numpy() -> None:
    x = np.concatenate([np.linspace(-708.0, 709.7, 20_001), np.linspace(-1.0, 1.0, 2001)])
    out = np.empty_like(x)
    each(kernels.exp, x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=4e-16)
    ends = np.array([-np.inf, -800.0, 800.0, np.inf, np.nan])
    each(kernels.exp, ends, out[:5])
    np.testing.assert_array_equal(out[:5], [0.0, 0.0, np.inf, np.inf, np.nan])


def test_the_compiled_logarithm_is_that_of_numpy() -> None:
    x = np.concatenate([np.linspace(0.0, 1.0, 20_001), 10.0 ** np.linspace(-300, 0, 2001)])
    out = np.empty_like(x)
    each(kernels.log1p, x, out)
    np.testing.assert_allclose(out, np.log1p(x), rtol=8e-16)


@pytest.mark.parametrize("name", [name for name in CASES if name != "without a kernel"])
def test_a_kernel_is_its_loss(name: str) -> None:
    loss, y = CASES[name]
    far = np.repeat([0.0, -30.0, 30.0, -400.0, 400.0], N // 5)
    u = np.random.default_rng(1).standard_normal(N) * 2 + far
    compiled = loss.compiled()
    assert compiled is not None
    out = np.empty((3, N))
    compiled[0](u, y, np.array(compiled[1]), *out)
    for one, other in zip(
        out, (loss.values(u, y), loss.first(u, y), loss.second(u, y)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-14, atol=1e-14 * np.abs(y).max())


class Slanted(ef.losses.Huber):
    """A subclass that changes what its parent's kernel computes."""

    def first(self, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        return super().first(u, y) + 1.0


def test_a_subclass_that_changes_a_loss_does_not_keep_its_kernel() -> None:
    assert ef.losses.Huber().compiled() is not None
    assert Slanted().compiled() is None


@pytest.mark.parametrize("p", [1, 4, 7, 60])
@pytest.mark.parametrize("name", CASES)
def test_compiled_sums_over_rows_are_those_of_numpy(
    name: str, p: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, y = CASES[name]
    rng = np.random.default_rng(2)
    X, theta = rng.standard_normal((N, p)), 0.3 * rng.standard_normal(p)
    weights, offset = rng.integers(0, 3, N).astype(float), rng.standard_normal(N)
    groups = Groups.of(rng.integers(0, 9, N), N)
    table = np.column_stack([y, y])  # a column of a table has gaps
    totals = [LinearTotal(loss, X, y), LinearTotal(loss, X, table[:, 0], offset, weights)]
    for total in totals:
        plain = total.derivatives(theta), total.cluster_totals(theta, groups)
        sums, start = total.group_sums(theta, groups), replace(total).least_squares()
        with monkeypatch.context() as patch:
            patch.setattr("etafree.totals.linear.COMPILE_FROM", 0)
            patch.setattr("etafree.totals.linear.CHUNK", 300 * p)  # three chunks
            again = replace(total)
            compiled = again.derivatives(theta), again.cluster_totals(theta, groups)
            others, other_start = again.group_sums(theta, groups), again.least_squares()
        for mine, theirs in zip(
            (*plain[0], *plain[1], *sums, *start),
            (*compiled[0], *compiled[1], *others, *other_start),
            strict=True,
        ):
            size = np.abs(mine).max()
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-12 * size)


def test_rows_of_weight_zero_are_ignored_by_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etafree.totals.linear.COMPILE_FROM", 0)
    X, y = np.ones((3, 1)), np.array([1.0, 2.0, 3.0])
    offset, weights = np.array([0.0, 0.0, 1e4]), np.array([1.0, 1.0, 0.0])
    value, gradient, hessian, _ = LinearTotal(
        ef.losses.Poisson(), X, y, offset, weights
    ).derivatives(np.zeros(1))
    assert (value, gradient[0], hessian[0, 0]) == (2.0, -1.0, 2.0)


@pytest.mark.parametrize("name", ["logistic", "poisson", "huber"])
def test_large_data_are_fitted_in_few_steps_from_a_sample(name: str) -> None:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(20_000), rng.standard_normal((20_000, 2))])
    u = X @ [0.2, 0.5, -0.4]
    y = {
        "logistic": rng.random(len(u)) < 1 / (1 + np.exp(-u)),
        "poisson": rng.poisson(np.exp(u)),
        "huber": u + rng.standard_t(3, len(u)),
    }[name]
    criterion = ef.Criterion(CASES[name][0], data=(X, y.astype(float)))
    fit, other = ef.minimise(criterion), ef.minimise(criterion, start=np.zeros(3))
    assert fit.iterations < other.iterations
    np.testing.assert_allclose(fit.theta, other.theta, rtol=1e-10)
    np.testing.assert_allclose(fit.hessian, other.hessian, rtol=1e-9, atol=1e-7)


def test_a_sample_that_misses_a_column_is_no_start() -> None:
    rng = np.random.default_rng(4)
    rare = np.zeros(20_000)
    rare[1::31] = 1.0  # no row of the sample has it
    X = np.column_stack([np.ones(20_000), rare])
    y = (rng.random(20_000) < 0.3 + 0.4 * rare).astype(float)
    theta = ef.minimise(ef.Criterion(ef.losses.Logistic(), data=(X, y))).theta
    share = np.array([y[rare == 0].mean(), y[rare == 1].mean()])
    odds = np.log(share / (1 - share))
    np.testing.assert_allclose(theta, [odds[0], odds[1] - odds[0]], rtol=1e-10)


def test_code_that_others_generate_compiles_beside_ours() -> None:
    """It may belong to no module, as that of numba's classes; we hear of its compilation, too."""
    namespace: dict[str, object] = {"__name__": None}
    exec("def twice(x):\n    return 2 * x\n", namespace)
    assert namespace["twice"].__module__ is None  # type: ignore[attr-defined]
    assert numba.njit(namespace["twice"])(3) == 6

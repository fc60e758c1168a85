"""The map: identities to rounding, invariance to the learning rate, roots and centres."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import etafree as ef
from conftest import Case, refused
from etafree.errors import InputError
from etafree.foundation.linalg import ROOTS, transport
from etafree.map import student_factors
from etafree.target import Law

ETAS = (1e-6, 1.0, 1e6)


def random_covariance(rng: np.random.Generator, p: int) -> np.ndarray:
    root = rng.standard_normal((p, p)) * np.exp(rng.standard_normal(p))
    return root @ root.T + 0.1 * np.eye(p)


def quadratic_draws(criterion: ef.Criterion, eta: float, base: np.ndarray) -> np.ndarray:
    """Exact draws of a Gaussian posterior from given standard normals."""
    fit = ef.minimise(criterion)
    lower = np.linalg.inv(np.linalg.cholesky(eta * fit.hessian)).T
    return fit.theta + base @ lower.T


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("p", [1, 2, 7])
def test_omega_takes_one_covariance_to_the_other(root: str, p: int) -> None:
    rng = np.random.default_rng(p)
    S, V = random_covariance(rng, p), random_covariance(rng, p)
    omega = transport(S, V, root)
    np.testing.assert_allclose(omega @ S @ omega.T, V, rtol=1e-9, atol=1e-10 * V.max())


@pytest.mark.parametrize("root", ROOTS)
def test_a_proportional_target_gives_a_scalar_map(root: str) -> None:
    S = random_covariance(np.random.default_rng(1), 4)
    np.testing.assert_allclose(transport(S, 9 * S, root), 3 * np.eye(4), atol=1e-8)


def test_only_the_affine_root_commutes_with_a_change_of_parameters() -> None:
    rng = np.random.default_rng(2)
    S, V = random_covariance(rng, 4), random_covariance(rng, 4)
    for _ in range(20):
        T = rng.standard_normal((4, 4))
        turned = transport(T @ S @ T.T, T @ V @ T.T)
        expected = T @ transport(S, V) @ np.linalg.inv(T)
        np.testing.assert_allclose(turned, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    units = np.diag([1.0, 100.0, 1.0, 1.0])
    moved = transport(units @ S @ units, units @ V @ units, "paper")
    back = np.linalg.inv(units) @ moved @ units
    assert np.abs(back - transport(S, V, "paper")).max() > 0.05


def test_the_affine_root_is_the_formula_of_the_documentation() -> None:
    from etafree.foundation.linalg import symmetric_root

    rng = np.random.default_rng(3)
    S, V = random_covariance(rng, 3), random_covariance(rng, 3)
    half, back = symmetric_root(S), symmetric_root(S, -0.5)
    np.testing.assert_allclose(transport(S, V), half @ symmetric_root(back @ V @ back) @ back)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("clusters", [False, True])
def test_calibrated_draws_of_squared_loss_do_not_depend_on_eta_to_rounding(
    robust: Case, root: str, clusters: bool
) -> None:
    criterion = ef.Criterion(ef.losses.Squared(), (robust.X, robust.y), ef.penalties.Ridge(0.3))
    base = np.random.default_rng(4).standard_normal((2000, 3))
    groups = np.arange(300) // 6 if clusters else None
    results = [
        ef.calibrate(
            quadratic_draws(criterion, eta, base), criterion, clusters=groups, eta=eta, map=root
        )
        for eta in ETAS
    ]
    first = results[1]
    width = first.interval()["upper"] - first.interval()["lower"]
    for other in (results[0], results[2]):
        np.testing.assert_array_equal(other.target.center, first.target.center)
        np.testing.assert_array_equal(other.target.covariance, first.target.covariance)
        gap = np.abs(other.draws.array - first.draws.array) / first.target.se
        assert gap.max() < 1e-7
        assert (np.abs(other.interval() - first.interval()).max(axis=1) / width).max() < 1e-6
    mapped = first.map(first.original.array)
    np.testing.assert_allclose(np.cov(mapped.T), first.target.covariance, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(mapped.mean(axis=0), first.target.center, rtol=1e-10)


@pytest.mark.parametrize("eta", [1e-6, 1e-3, 0.4, 1.0, 100.0, 1e6])
def test_huber_intervals_do_not_depend_on_eta_while_eta_n_is_large_and_shape_says_when_not(
    eta: float,
) -> None:
    rng = np.random.default_rng(5)
    n = 400
    x = rng.standard_normal((n, 1))
    y = x[:, 0] + rng.standard_t(3, n)
    criterion = ef.Criterion(ef.losses.Huber(1.0), (x, y))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=8000, seed=6)
    result = ef.calibrate(draws, criterion)
    wald = result.interval(kind="wald").to_numpy()
    gap = np.abs(result.interval().to_numpy() - wald).max() / result.target.se[0]
    shape = result.diagnostics().loc["shape"]
    if eta * n >= 100:  # within Monte Carlo error: 5 standard errors of a tail quantile
        assert gap < 5 * np.sqrt(4.2 / 8000)
        assert shape["verdict"] == "ok"
    if eta * n < 1:
        assert gap > 0.1
    if eta * n < 1e-2:  # there the interval covers something else
        assert shape["verdict"] == "warn"
        assert "wald" in shape["advice"]


def test_a_map_is_exactly_invertible_and_applies_to_new_draws(robust: Case) -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal((4, 50, 3)) @ random_covariance(rng, 3) + 5
    result = ef.calibrate(values, center=[1.0, 2.0, 3.0], covariance=random_covariance(rng, 3))
    np.testing.assert_allclose(result.map.inverse(result.map(values)), values, rtol=1e-10)
    np.testing.assert_allclose(result.map(result.map.inverse(values)), values, rtol=1e-10)
    one = result.map(values[0, 0])
    np.testing.assert_allclose(one, result.map(values)[0, 0], rtol=1e-12)
    out = np.empty_like(values)
    assert result.map(values, out=out) is out
    np.testing.assert_array_equal(out, result.map(values))


def test_a_saved_map_is_the_same_map(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    made = ef.LocationScaleMap.between(
        rng.standard_normal(3),
        random_covariance(rng, 3),
        rng.standard_normal(3),
        random_covariance(rng, 3),
        names=["a", "β", "c d"],
    )
    path = made.save(tmp_path / "map")
    loaded = ef.LocationScaleMap.load(path)
    values = rng.standard_normal((10, 3))
    np.testing.assert_array_equal(made(values), loaded(values))
    assert loaded.names == ("a", "β", "c d")
    assert [f.name for f in tmp_path.iterdir()] == ["map.npz"]


def test_the_open_faced_sandwich_changes_the_spread_and_not_the_location(robust: Case) -> None:
    criterion = robust.criterion(penalty=ef.penalties.Ridge(0.2))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.05), draws=3000, seed=9)
    result = ef.calibrate(draws, criterion, map=ef.Map(kind="scale"))
    moved = result.map(draws)
    np.testing.assert_allclose(moved.mean, draws.mean, rtol=1e-9)
    np.testing.assert_allclose(moved.covariance(), result.target.covariance, rtol=1e-8, atol=1e-14)
    assert "open-faced" in result.details()


def test_working_curvature_is_the_papers_population_map(robust: Case) -> None:
    criterion = robust.criterion(penalty=ef.penalties.Ridge(0.2))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.5), draws=3000, seed=10)
    result = ef.calibrate(draws, criterion, map=ef.Map(root="paper", working="curvature"))
    t = result.target
    from etafree.foundation.linalg import symmetric_root

    H0 = 0.5 * t.hessian / t.size
    V = t.size * t.covariance
    np.testing.assert_allclose(
        result.map.scale, symmetric_root(V) @ symmetric_root(H0), rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(result.paper().H0, H0, rtol=1e-9)
    ratio = np.diagonal(result.draws.covariance()) / np.diagonal(t.covariance)
    assert np.all(np.abs(ratio - 1) < 0.25)


def test_paper_matrices_satisfy_the_papers_equations(robust: Case) -> None:
    criterion = robust.criterion(penalty=ef.penalties.Ridge(0.2))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.5), draws=500, seed=11)
    m = ef.calibrate(draws, criterion, map="paper").paper()
    inverse = np.linalg.inv(m.J)
    np.testing.assert_allclose(m.V, inverse @ m.K @ inverse, rtol=1e-8)
    np.testing.assert_allclose(m.Omega @ np.linalg.inv(m.H0) @ m.Omega.T, m.V, rtol=1e-8)
    for label in ("J_lambda", "K", "H_0", "V_target", "Omega"):
        assert label in str(m)


def test_centres_are_named_and_one_newton_step_solves_squared_loss(robust: Case) -> None:
    criterion = ef.Criterion(ef.losses.Squared(), (robust.X, robust.y), ef.penalties.Ridge(0.3))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.01), draws=500, seed=12)
    by = {c: ef.calibrate(draws, criterion, center=c) for c in ("map", "one_step", "mean")}
    np.testing.assert_allclose(by["one_step"].center, by["map"].center, rtol=1e-9)
    np.testing.assert_allclose(by["mean"].center, draws.mean)
    assert np.all(by["mean"].center_shift == 0)
    assert np.any(by["map"].center_shift != 0)
    given = ef.calibrate(draws, criterion, center=[1.0, 1.0, 1.0])
    assert given.target.center_kind == "given"
    assert given.diagnostics().loc["Newton offset", "verdict"] == "warn"
    for name, result in by.items():
        assert result.target.center_kind == name


def test_one_step_beats_the_mean_at_a_small_learning_rate() -> None:
    rng = np.random.default_rng(13)
    X = np.column_stack([np.ones(400), rng.standard_normal((400, 2))])
    y = (rng.random(400) < 1 / (1 + np.exp(-X @ [1.0, 1.5, -1.0]))).astype(float)
    criterion = ef.Criterion(ef.losses.Logistic(), (X, y))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.1), draws=4000, seed=14)
    offset = {
        c: ef.calibrate(draws, criterion, center=c).diagnostics().loc["Newton offset", "value"]
        for c in ("map", "one_step", "mean")
    }
    assert offset["map"] < 1e-8 < offset["one_step"] < offset["mean"]
    assert offset["mean"] > 0.1


def test_finite_degrees_of_freedom_reach_the_draws() -> None:
    from scipy.special import stdtrit

    rng = np.random.default_rng(15)
    z = rng.standard_normal((40000, 2))
    for dof in (5.0, 30.0):
        result = ef.calibrate(z, ef.Target([0.0, 0.0], np.eye(2), dof=dof))
        quantile = np.quantile(result.draws.array, 0.975, axis=0)
        assert np.abs(quantile - stdtrit(dof, 0.975)).max() < 0.08
        spread = np.diagonal(result.draws.covariance())
        assert np.abs(spread / (dof / (dof - 2)) - 1).max() < 0.1
        factor = (result.draws.array - result.center) / (result.map(z) - result.center)
        np.testing.assert_allclose(factor[:, 0], factor[:, 1], rtol=1e-6)  # one scalar per draw


def test_student_factors_match_the_chi_square_they_stand_for() -> None:
    dof = np.array([4.0, 9.0, np.inf])
    factors = student_factors(Law(dof, np.ones(len(dof))), 20001, np.random.default_rng(0))
    assert np.all(factors[:, 2] == 1)
    chi = dof[:2] / factors[:, :2] ** 2
    np.testing.assert_allclose(chi.mean(axis=0), dof[:2], rtol=1e-3)
    np.testing.assert_allclose(chi.var(axis=0), 2 * dof[:2], rtol=1e-2)


def test_student_factors_are_quantiles_in_the_middle_of_equal_parts() -> None:
    from scipy.stats import chi2

    factors = student_factors(
        Law(np.array([3.0, np.inf, 7.0]), np.ones(3)), 50, np.random.default_rng(0)
    )
    for column, nu in ((0, 3.0), (2, 7.0)):
        middle = chi2.ppf((np.arange(50) + 0.5) / 50, nu)
        np.testing.assert_allclose(np.sort(nu / factors[:, column] ** 2), middle, rtol=1e-9)
    assert np.array_equal(np.argsort(factors[:, 0]), np.argsort(factors[:, 2]))  # one uniform
    assert np.all(factors[:, 1] == 1)


def test_parameters_with_a_normal_reference_keep_their_draws() -> None:
    z = np.random.default_rng(19).standard_normal((500, 2))
    center, names, dof = np.array([1.0, 2.0]), ("theta[0]", "theta[1]"), np.array([3.0, np.inf])
    target = ef.Target(center, np.diag([4.0, 9.0]), names, dof=dof)
    made = ef.calibrate(z, target)
    plain = made.map(z)
    np.testing.assert_allclose(made.draws.array[:, 1], plain[:, 1], rtol=1e-9)
    ratio = (made.draws.array[:, 0] - 1) / (plain[:, 0] - 1)
    assert np.ptp(ratio) > 1


@pytest.mark.parametrize("p", [1, 3])
def test_a_map_of_many_draws_is_its_formula(p: int) -> None:
    """More draws than a block holds, not a multiple of it, in either direction."""
    rng = np.random.default_rng(18)
    mean, offset = rng.standard_normal((2, p))
    scale = rng.standard_normal((p, p)) + 2 * np.eye(p)
    draws = rng.standard_normal((3, 10001, p))
    made = ef.LocationScaleMap(mean, offset, scale, tuple("abc"[:p]))
    expected = np.einsum("ij,...j->...i", scale, draws - mean) + offset
    np.testing.assert_allclose(made(draws), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(made.inverse(expected), draws, rtol=0, atol=1e-9)
    np.testing.assert_allclose(made(draws[0, 0]), expected[0, 0], rtol=0, atol=1e-10)
    itself = draws.copy()
    np.testing.assert_array_equal(made(itself, out=itself), made(draws))


def test_only_invertible_scales_are_taken_in_any_units() -> None:
    zero, names = np.zeros(2), ("a", "b")
    for good in (
        [[1e-30, 0.0], [0.0, 1e30]],
        [[0.0, 1e-9], [1e9, 1.0]],
        [[1.0, 1.0], [1.0, -1.0]],
        [[1.0, 1e-20], [1.0, 2e-20]],
        [[1e-20, 1e-20], [1.0, -1.0]],
    ):
        ef.LocationScaleMap(zero, zero, np.array(good), names)
    for bad in ([[1.0, 1.0], [1e9, 1e9]], [[1.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [1.0, 2.0]]):
        refused(
            "scale",
            "singular",
            lambda bad=bad: ef.LocationScaleMap(zero, zero, np.array(bad), names),
        )


def test_the_same_call_gives_the_same_bytes(robust: Case) -> None:
    criterion = robust.criterion()
    groups = np.arange(300) // 10
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=200, seed=16)
    one = ef.calibrate(draws, criterion, clusters=groups)
    two = ef.calibrate(draws, criterion, clusters=groups)
    other = ef.calibrate(draws, criterion, clusters=groups, seed=1)
    np.testing.assert_array_equal(one.draws.values, two.draws.values)
    assert not np.array_equal(one.draws.values, other.draws.values)


def test_a_posterior_or_a_target_may_stand_in_for_the_criterion(robust: Case) -> None:
    criterion = robust.criterion()
    posterior = ef.GeneralizedPosterior(criterion, 0.3)
    draws = ef.sample(posterior, draws=300, seed=17)
    plain = ef.calibrate(draws, criterion)
    by_target = ef.calibrate(draws, ef.target(criterion))
    by_posterior = ef.calibrate(draws.array, posterior)
    np.testing.assert_array_equal(plain.draws.values, by_target.draws.values)
    np.testing.assert_array_equal(plain.draws.values, by_posterior.draws.values)
    assert by_posterior.original.eta == 0.3


def test_draws_that_know_their_eta_refuse_another(robust: Case) -> None:
    draws = ef.sample(ef.GeneralizedPosterior(robust.criterion(), 0.3), draws=300, seed=18)
    with pytest.raises(InputError, match=r"made at 0\.3"):
        ef.calibrate(draws, robust.criterion(), eta=1.0)


def test_a_unit_change_of_one_parameter_leaves_the_others_alone() -> None:
    """Skewed draws: rescaling one coordinate must not move another's interval."""
    rng = np.random.default_rng(19)
    draws = rng.standard_gamma(2.0, (4000, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
    V = np.array([[1.0, -0.6], [-0.6, 1.0]])
    units = np.diag([1.0, 100.0])
    plain = ef.calibrate(draws, center=[0.0, 0.0], covariance=V)
    scaled = ef.calibrate(draws @ units, center=[0.0, 0.0], covariance=units @ V @ units)
    np.testing.assert_allclose(
        scaled.interval().to_numpy()[0], plain.interval().to_numpy()[0], rtol=1e-8
    )
    paper = [
        ef.calibrate(d, center=[0.0, 0.0], covariance=c, map="paper").interval().to_numpy()[0]
        for d, c in ((draws, V), (draws @ units, units @ V @ units))
    ]
    assert np.abs(paper[0] - paper[1]).max() > 0.02

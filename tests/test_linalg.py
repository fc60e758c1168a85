"""Factorisations and arithmetic answer with the library's errors, on any processor."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

import etafree as ef
from conftest import make_case
from etafree.errors import (
    CalibrationWarning,
    ConvergenceError,
    EtafreeError,
    InputError,
    NotPositiveDefiniteError,
)
from etafree.foundation import linalg

LAPACK = ("cholesky", "eigh", "eigvalsh", "inv", "lstsq", "matrix_rank", "solve", "svd")
INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])
SINGULAR = np.array([[1.0, 1.0], [1.0, 1.0]])

FACTORS = {
    "cholesky": linalg.cholesky,
    "inv": linalg.inv,
    "solve": lambda m, *names: linalg.solve(m, np.ones(2), *names),
    "eigh": linalg.eigh,
    "eigvalsh": linalg.eigvalsh,
    "least_squares": lambda m, what: linalg.least_squares(m, np.ones(2), what=what),
    "rank": lambda m, what: linalg.rank(m, what=what),
    "null_direction": linalg.null_direction,
    "whitener": linalg.whitener,
}


@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FACTORS)
def test_a_matrix_that_is_not_finite_is_named(name, entry):
    with pytest.raises(InputError, match=r"^bread: has entries that are not finite"):
        FACTORS[name](np.array([[1.0, 0.0], [0.0, entry]]), "bread")


@pytest.mark.parametrize("matrix", [SINGULAR, INDEFINITE, -np.eye(2), np.zeros((2, 2))])
def test_what_has_no_cholesky_factor_is_named(matrix):
    for factor in (linalg.cholesky, linalg.whitener):
        with pytest.raises(NotPositiveDefiniteError, match=r"^bread: is not positive def") as info:
            factor(matrix - 1e-12 * np.eye(2), "bread")
        assert info.value.eigenvalue == pytest.approx(np.linalg.eigvalsh(matrix)[0], abs=1e-9)
    assert linalg.cholesky_or_none(matrix - 1e-12 * np.eye(2)) is None
    assert linalg.safe_factor(matrix) is None


def test_a_parameter_without_curvature_is_no_error_of_arithmetic():
    with pytest.raises(NotPositiveDefiniteError, match=r"^Hessian"):
        linalg.whitener(np.diag([1.0, 0.0]))


def test_one_bad_matrix_of_many_is_found():
    many = np.stack([np.eye(2), INDEFINITE, 3 * np.eye(2)])
    with pytest.raises(NotPositiveDefiniteError, match=r"smallest eigenvalue -1\)"):
        linalg.cholesky(many, "clusters")


@pytest.mark.parametrize("name", ["inv", "solve"])
def test_a_singular_matrix_is_named(name):
    with pytest.raises(NotPositiveDefiniteError, match=r"^bread: .*: drop or combine"):
        FACTORS[name](np.zeros((2, 2)), "bread")


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1e-12, 1.0, 1e12)])
def test_factors_are_factors_in_any_units(scales):
    root = np.random.default_rng(0).standard_normal((3, 3)) * np.array(scales)[:, None]
    matrix = root @ root.T
    whiten = linalg.whitener(matrix)
    assert np.allclose(whiten @ matrix @ whiten.T, np.eye(3), atol=1e-9)
    assert np.array_equal(whiten, np.tril(whiten))
    assert np.diagonal(whiten).min() > 0
    sd, lower = linalg.safe_factor(matrix)
    factor = sd[:, None] * lower
    assert np.array_equal(factor, np.tril(factor))
    assert np.diagonal(lower).min() > 0
    assert sd.min() > 0
    assert np.allclose(factor @ factor.T / matrix, 1.0)
    assert np.allclose(linalg.relative_eigenvalues(2.5 * matrix, matrix), 2.5)


# What each function must return, by the identity that defines it.

ANGLE = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
UNITS = np.array([1e-3, 1.0, 50.0])


def _positive(seed, size=3):
    root = np.random.default_rng(seed).standard_normal((size, size + 2))
    return root @ root.T


@pytest.mark.parametrize("power", [0.5, -0.5, 2.0, -1.0])
def test_powers_of_a_matrix_have_its_eigenvectors(power):
    eigenvalues = np.array([0.3, 1.5, 7.0])
    found = linalg.symmetric_root(ANGLE * eigenvalues @ ANGLE.T, power)
    assert np.allclose(found, ANGLE * eigenvalues**power @ ANGLE.T, rtol=0, atol=1e-10)
    assert np.array_equal(found, found.T)
    root = linalg.symmetric_root(_positive(2))
    assert np.allclose(root @ root, _positive(2))


@pytest.mark.parametrize("root", linalg.ROOTS)
@pytest.mark.parametrize("units", [np.ones(3), UNITS])
def test_every_transport_reaches_the_target_and_is_the_one_it_says(root, units):
    S, V = (_positive(seed) * np.outer(units, units) for seed in (3, 4))
    omega = linalg.transport(S, V, root)
    assert np.allclose(omega @ S @ omega.T / V, 1.0, rtol=0, atol=1e-8)
    if root == "affine":  # the principal root of V S^-1
        assert np.allclose(omega @ omega @ S / V, 1.0, rtol=0, atol=1e-8)
        assert np.linalg.eigvals(omega).real.min() > 0
    elif root == "cholesky":
        assert np.allclose(np.triu(omega * units[:, None] ** -1 * units, 1), 0.0, atol=1e-9)
        assert np.diagonal(omega).min() > 0
    else:  # times the symmetric root of S, the symmetric root of V, or S times that of S^-1 V S^-1
        values, vectors = np.linalg.eigh(S)
        half = omega @ (vectors * np.sqrt(values)) @ vectors.T
        half = np.linalg.solve(S, half) if root == "shaby" else half
        assert np.allclose(half, half.T, rtol=1e-8, atol=1e-8)
        assert np.linalg.eigvalsh(half + half.T)[0] > 0


def test_only_the_affine_transport_goes_with_every_linear_change_of_parameters():
    S, V, turn = _positive(5), _positive(6), np.random.default_rng(7).standard_normal((3, 3))
    there = linalg.transport(turn @ S @ turn.T, turn @ V @ turn.T)
    assert np.allclose(there, turn @ linalg.transport(S, V) @ np.linalg.inv(turn))


def test_relative_eigenvalues_are_those_of_the_quotient():
    M, base = _positive(8), _positive(9)
    expected = np.sort(np.linalg.eigvals(np.linalg.solve(base, M)).real)
    assert np.allclose(linalg.relative_eigenvalues(M, base), expected)
    assert np.allclose(linalg.relative_eigenvalues(-M, base), -expected[::-1])


def test_absolute_eigenvalues_keep_their_vectors_and_have_a_floor():
    def turned(*eigenvalues):
        return ANGLE * np.array(eigenvalues) @ ANGLE.T

    many = np.stack([turned(-4.0, 1e-3, 2.0), turned(0.5, -0.01, 0.2)])
    expected = np.stack([turned(4.0, 0.4, 2.0), turned(0.5, 0.05, 0.2)])
    assert np.allclose(linalg.absolute(many, 0.1), expected)
    assert np.allclose(linalg.absolute(many[0], 0.1), expected[0])
    assert np.allclose(linalg.absolute(many[1]), turned(0.5, 0.01, 0.2))
    assert np.allclose(linalg.absolute(np.zeros((2, 2)), 0.25), 0.25 * np.eye(2))


def test_a_majorized_hessian_does_not_depend_on_units():
    hessian = ANGLE * np.array([-4.0, 1e-3, 2.0]) @ ANGLE.T
    found = linalg.majorized(hessian, np.ones(3), 0.1)
    assert np.allclose(found, linalg.absolute(hessian, 0.1))
    assert np.linalg.eigvalsh(found - hessian)[0] > -1e-12  # it lies above
    both = np.outer(UNITS, UNITS)
    assert np.allclose(linalg.majorized(hessian * both, UNITS, 0.1) / both, found)
    with_zero = linalg.majorized(hessian, np.array([1.0, 0.0, 0.0]), 0.1)
    assert np.allclose(with_zero, found)  # no scale is a scale of one
    wild = np.array([[np.nan, 0.0], [0.0, 1.0]])
    assert linalg.majorized(wild, np.ones(2), 0.1) is wild


@pytest.mark.parametrize("units", [np.ones(2), UNITS[[0, 2]]])
def test_correlation_eigenvalues_of_a_pair(units):
    pair = np.array([[1.0, 0.6], [0.6, 1.0]]) * np.outer(units, units)
    values, vectors = linalg.correlation_eigenvalues(pair)
    assert np.allclose(values, [0.4, 1.6])
    assert np.allclose(np.abs(vectors), np.sqrt(0.5))
    for least in (0.0, -2.0):
        values, vectors = linalg.correlation_eigenvalues(np.diag([3.0, least, 5.0]))
        assert values.tolist() == [least]
        assert vectors.tolist() == [[0.0], [1.0], [0.0]]


def test_pivots_decide_what_is_safe():
    for pivot, safe in ((2e-7, True), (5e-8, False)):
        rho = np.sqrt(1 - pivot**2)
        assert (linalg.safe_factor(np.array([[4.0, 2 * rho], [2 * rho, 1.0]])) is not None) is safe
    assert linalg.safe_factor(np.diag([1.0, 0.5])) is not None
    for entry in (np.nan, np.inf, -np.inf):
        spoiled = np.array([[1.0, 0.0], [entry, 1.0]])
        assert linalg.safe_factor(spoiled) is None
        assert linalg.cholesky_or_none(spoiled) is None
    for bad in (0.0, -1.0):
        assert linalg.safe_factor(np.diag([1.0, bad])) is None


def test_what_rounding_leaves_of_a_zero_eigenvalue_is_below_its_bound():
    for size in (2, 5, 20, 80):
        factor = np.random.default_rng(size).standard_normal((size, size - 1))
        values = np.linalg.eigvalsh(factor @ factor.T)
        assert abs(values[0]) <= linalg.rounding(size) * values[-1]
        assert 0 < linalg.rounding(size) <= size * 1e-14


def test_a_covariance_is_made_symmetric_and_taken_in_any_units():
    odd = np.array([[2.0, 1.0], [1.0 + 1e-9, 3.0]])
    taken = linalg.check_covariance(odd, "covariance")
    assert np.array_equal(taken, taken.T)
    assert np.allclose(taken, odd, rtol=0, atol=1e-9)
    assert linalg.check_covariance(2.5, "covariance").tolist() == [[2.5]]
    assert linalg.check_covariance(2.5, "covariance", 1).tolist() == [[2.5]]
    assert linalg.check_covariance([[2.5]], "covariance", 1).tolist() == [[2.5]]
    for call in (
        lambda: linalg.check_covariance(2.5, "covariance", 2),
        lambda: linalg.check_covariance([1.0, 2.0], "covariance"),
    ):
        with pytest.raises(InputError, match="must be a square matrix"):
            call()
    # A difference is rounding against the two standard deviations, in any units.
    for units in (np.array([1e-6, 1.0]), np.array([1e6, 1e6])):
        both = np.outer(units, units)
        linalg.check_covariance(np.array([[1.0, 1e-3], [1e-3 + 1e-9, 1.0]]) * both, "covariance")
        with pytest.raises(InputError, match="not symmetric"):
            linalg.check_covariance(np.array([[1.0, 0.5], [0.5 + 1e-6, 1]]) * both, "covariance")
    with pytest.raises(NotPositiveDefiniteError):
        linalg.check_covariance(np.diag([-1.0, 1.0]), "covariance")


def test_a_covariance_warns_and_fails_by_its_condition():
    def pair(condition):
        rho = (condition - 1) / (condition + 1)
        return np.array([[1.0, rho], [rho, 1.0]])

    linalg.check_covariance(pair(0.8e8), "covariance")
    with pytest.warns(CalibrationWarning, match=r"condition number 1\.2e\+08"):
        linalg.check_covariance(pair(1.2e8), "covariance")
    with pytest.raises(InputError, match=r"condition number 2e\+12, above 1e\+12"):
        linalg.check_covariance(pair(2e12), "covariance")


def test_the_smallest_eigenvalue_in_an_error_is_that_of_the_symmetric_part():
    with pytest.raises(NotPositiveDefiniteError) as info:
        linalg.inv(np.array([[0.0, 2.0], [0.0, 0.0]]))
    assert info.value.eigenvalue == pytest.approx(-1.0)
    with pytest.raises(NotPositiveDefiniteError) as info:
        linalg.inv(np.stack([np.eye(2), np.array([[0.0, 2.0], [0.0, 0.0]])]))
    assert info.value.eigenvalue == pytest.approx(-1.0)
    many = np.stack([np.diag([3.0, 1.0]), np.diag([5.0, 0.0]), np.diag([4.0, -2.0])])
    with pytest.raises(NotPositiveDefiniteError) as info:
        linalg.inv(many)
    assert info.value.eigenvalue == pytest.approx(-2.0)


def test_least_squares_rank_and_null_direction():
    X = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    assert np.allclose(linalg.least_squares(X, np.array([2.0, 4.0, 6.0])), 2.0)  # of least norm
    nearly = X + np.array([[0.0, 1e-5], [0.0, 0.0], [0.0, 0.0]])
    assert np.allclose(linalg.least_squares(nearly, nearly @ [3.0, 1.0]), [3.0, 1.0])
    assert np.allclose(linalg.least_squares(nearly, nearly @ [3.0, 1.0], 1e-3), 2.0, atol=1e-4)
    assert (linalg.rank(X), linalg.rank(nearly), linalg.rank(nearly, 1e-3)) == (1, 2, 1)
    direction = linalg.null_direction(np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]))
    assert np.allclose(np.abs(direction), np.array([[2.0, 1.0, 0.0]]) / np.sqrt(5))
    assert direction[0, 0] * direction[0, 1] < 0


def test_rounding_does_not_decide_what_is_positive_definite():
    """A covariance of rank 2 plus noise of either sign is refused in the same words."""
    rng = np.random.default_rng(3)
    factor = rng.standard_normal((5, 2))
    for sign in (-1, 1):
        noise = sign * 1e-16 * np.eye(5)
        with pytest.raises(NotPositiveDefiniteError, match=r"^covariance: is not positive"):
            linalg.check_covariance(factor @ factor.T + noise, "covariance")


# Every call of LAPACK fails once, one after another; only our own errors may come out.


def _parts():
    case = make_case("huber", n=60)
    criterion = case.criterion()
    posterior = ef.GeneralizedPosterior(criterion, eta=0.5)
    return case, criterion, posterior


def _calibrate():
    _, criterion, posterior = _parts()
    result = ef.calibrate(ef.sample(posterior, 500, seed=1), criterion, clusters=np.arange(60) // 3)
    result.diagnostics()
    result.region(0.9).boundary()
    result.region(0.9).contains(result.center)
    result.test("theta[1] = 0")
    result.paper()
    result.map.inverse(result.draws)


def _corrections():
    _, criterion, _ = _parts()
    groups = np.arange(60) // 3
    for correction in ("HC1", "HC2", "HC3"):
        ef.target(criterion, correction=correction)
    for correction in ("CR1", "CR2", "CR3"):
        ef.target(criterion, clusters=groups, correction=correction).dof_of(np.eye(3)[:2])
    ef.target(criterion, clusters=np.column_stack([groups, np.arange(60) % 12]))
    ef.target(criterion, dependence=ef.TimeSeries(np.arange(60)))
    ef.target(criterion, dependence=ef.Survey(strata=np.arange(60) // 10))


def _jackknife():
    case, _, _ = _parts()
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((2000, 3)) / np.sqrt(60)  # columns are nearly orthonormal
    stored = -0.5 * (case.y - theta @ case.X.T) ** 2
    ef.calibrate(theta, log_likelihood=stored, clusters=np.arange(60) // 3).diagnostics()


def _kinks():
    case, _, _ = _parts()
    criterion = ef.Criterion(ef.losses.Squared(), (case.X, case.y), ef.penalties.L1(0.1))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 300, seed=1)
    ef.calibrate(draws, criterion).summary()


def _nonconvex():
    criterion = make_case("student_t", n=60).criterion()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 300, seed=1)
    ef.calibrate(draws, criterion).diagnostics()


def _resampling():
    _, criterion, _ = _parts()
    ef.bootstrap(criterion, draws=60, seed=1)
    ef.q_posterior(criterion, draws=200, seed=1)


def _rates(method, **options):
    def call():
        _, criterion, _ = _parts()
        ef.select(criterion, method=method, seed=1, **options)

    return call


WORK = {
    "calibrate": _calibrate,
    "corrections": _corrections,
    "jackknife": _jackknife,
    "kinks": _kinks,
    "non-convex": _nonconvex,
    "resampling": _resampling,
    "magnitude": _rates("magnitude"),
    "lyddon": _rates("lyddon"),
    "gpc": _rates("gpc", resamples=60),
}


def _vanishing():
    """Weights, densities and rates that underflow."""
    poisson = make_case("poisson").criterion()
    with contextlib.suppress(ConvergenceError):  # so far from normal that it may be refused
        ef.sample(ef.GeneralizedPosterior(poisson, eta=1e-3), 500, seed=1)
    y = 50 * np.random.default_rng(0).standard_normal(50)
    narrow = ef.Criterion(ef.losses.Quantile(0.3, 0.01), (np.ones((50, 1)), y))
    ef.sample(ef.GeneralizedPosterior(narrow, eta=1.0), 500, seed=1)
    X = np.column_stack([np.ones(50), y[::-1]])
    ef.target(ef.Criterion(ef.losses.Modal(0.5), (X, y / 20)))


@pytest.mark.parametrize("work", [*WORK.values(), _vanishing], ids=[*WORK, "vanishing"])
def test_what_the_caller_wants_of_floating_point_errors_is_not_our_concern(work):
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("ignore")
        work()


def _failing(monkeypatch, at):
    """Let the call of LAPACK with this number fail; return the counter."""
    count = [0]

    def broken(original):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == at:
                raise np.linalg.LinAlgError("no convergence")
            return original(*args, **kwargs)

        return call

    for name in LAPACK:
        monkeypatch.setattr(np.linalg, name, broken(getattr(np.linalg, name)))
    return count


@pytest.mark.parametrize("name", WORK)
def test_no_failure_of_lapack_comes_through(name, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with monkeypatch.context() as patch:
            count = _failing(patch, at=-1)
            WORK[name]()
        calls, refused = count[0], 0
        assert calls > 0
        spread = np.unique(np.geomspace(1, calls, 25).astype(int))
        for at in spread.tolist():
            with monkeypatch.context() as patch:
                _failing(patch, at)
                try:
                    WORK[name]()
                except EtafreeError:
                    refused += 1
        assert refused > 0

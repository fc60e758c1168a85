"""Factorisations and arithmetic answer with the library's errors, on any processor."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

import etafree as ef
from conftest import make_case
from etafree import linalg
from etafree.errors import ConvergenceError, EtafreeError, InputError, NotPositiveDefiniteError

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
    sd, lower = linalg.safe_factor(matrix)
    factor = sd[:, None] * lower
    assert np.allclose(factor @ factor.T / matrix, 1.0)
    assert np.allclose(linalg.relative_eigenvalues(2.5 * matrix, matrix), 2.5)


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
    ef.target(criterion, time=np.arange(60))
    ef.target(criterion, strata=np.arange(60) // 10)


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

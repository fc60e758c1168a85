"""Bad draws, centres, matrices, options and maps are refused before any work."""

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused, spoiled
from etafree import losses
from etafree.errors import InputError, NotPositiveDefiniteError

N, P = 40, 3
RNG = np.random.default_rng(21)
X = np.column_stack([np.ones(N), RNG.standard_normal((N, P - 1))])
Y = X @ [1.0, 2.0, -1.0] + RNG.standard_normal(N)
NAMES = ["a", "b", "c"]
CRITERION = ef.Criterion(losses.Squared(), (X, Y), names=NAMES)
POSTERIOR = ef.GeneralizedPosterior(CRITERION, eta=1.0)
TARGET = ef.target(CRITERION)
DRAWS = 1.0 + RNG.standard_normal((300, P)) * [0.1, 0.2, 0.3]
HALF = ef.Draws.of(DRAWS, NAMES, eta=0.5)
EYE = np.eye(P)
GROUPS = np.arange(N) % 10
MAP = ef.LocationScaleMap.between(np.zeros(P), EYE, np.ones(P), 4 * EYE, names=NAMES)

ENTRIES = {
    "nan": (np.nan, "NaN or infinite"),
    "inf": (np.inf, "NaN or infinite"),
    "none": (None, "NaN or infinite"),
    "pandas-na": (pd.NA, "cannot be read as numbers"),
    "text": ("text", "cannot be read as numbers"),
    "complex": (1j, "cannot be read as numbers"),
}


def calibrate(draws=DRAWS, of=CRITERION, **options):
    return ef.calibrate(draws, of, **options)


def given(draws=DRAWS, center="mean", covariance=EYE, **options):
    return ef.calibrate(draws, center=center, covariance=covariance, **options)


def between(mean=(0, 0, 0), covariance=EYE, center=(1, 1, 1), target=EYE, **options):
    return ef.LocationScaleMap.between(mean, covariance, center, target, **options)


#: Where a vector or a table of draws goes in, by the name of the argument.
ARRAYS = {
    "draws": (DRAWS, lambda bad: calibrate(bad)),
    "draws beside a covariance": (DRAWS, lambda bad: given(bad)),
    "draws of their own": (DRAWS, lambda bad: ef.Draws.of(bad)),
    "draws under a map": (DRAWS, lambda bad: MAP(bad)),
    "draws under its inverse": (DRAWS, lambda bad: MAP.inverse(bad)),
    "center": (np.ones(P), lambda bad: calibrate(center=bad)),
    "center beside a covariance": (np.ones(P), lambda bad: given(center=bad)),
    "center of a target": (np.ones(P), lambda bad: ef.target(CRITERION, center=bad)),
    "center given": (np.ones(P), lambda bad: ef.Target(bad, EYE)),
    "center of a map": (np.ones(P), lambda bad: between(center=bad)),
    "mean": (np.ones(P), lambda bad: between(mean=bad)),
}

#: Where a positive definite matrix goes in.
MATRICES = {
    "covariance": lambda bad: given(covariance=bad),
    "covariance of a target": lambda bad: ef.Target(np.ones(P), bad),
    "covariance of a map": lambda bad: between(covariance=bad),
    "covariance of a prior": lambda bad: ef.LogPrior.normal(np.zeros(P), bad),
    "target": lambda bad: between(target=bad),
    "hessian": lambda bad: ef.target(CRITERION, hessian=bad),
    "hessian as a function": lambda bad: ef.target(CRITERION, hessian=lambda theta: bad),
    "meat": lambda bad: ef.target(CRITERION, meat=bad),
    "meat as a function": lambda bad: ef.target(CRITERION, meat=lambda scores: bad),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("where", ARRAYS)
def test_one_entry_that_is_no_finite_number_is_refused(where, entry):
    array, call = ARRAYS[where]
    value, fragment = ENTRIES[entry]
    refused(where.split()[0], fragment, lambda: call(spoiled(array, value)))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("where", MATRICES)
def test_one_bad_entry_of_a_matrix_is_refused(where, entry):
    value, fragment = ENTRIES[entry]
    refused(where.split()[0], fragment, lambda: MATRICES[where](spoiled(EYE, value)))


INDEFINITE = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize("where", MATRICES)
def test_a_matrix_of_the_wrong_kind_is_refused_and_its_eigenvalue_said(where):
    argument, call = where.split()[0], MATRICES[where]
    refused(argument, "is not symmetric (largest difference 1)", lambda: call(np.tri(P)))
    refused(argument, "square matrix", lambda: call(np.ones((P, 2))))
    refused(argument, "square matrix", lambda: call(np.ones(P)))
    refused(argument, "square matrix", lambda: call(EYE[None]))
    refused(argument, "for 3 parameters", lambda: call(np.eye(2)))
    refused(argument, "for 3 parameters", lambda: call(np.empty((0, 0))))
    for bad, eigenvalue in ((INDEFINITE, "-1"), (-EYE, "-1"), (0 * EYE, "0")):
        refused(
            argument,
            f"not positive definite (smallest eigenvalue {eigenvalue})",
            lambda bad=bad: call(bad),
            NotPositiveDefiniteError,
        )
    nearly = EYE.copy()
    nearly[0, 1] = nearly[1, 0] = 1 - 1e-13
    refused(argument, "correlation condition number", lambda: call(nearly))


def column(values):
    """Return the draws with another last column."""
    return np.column_stack([DRAWS[:, :2], values])


DEGENERATE = [
    ("at least 5", DRAWS[:4]),
    ("at least 5", DRAWS[:1]),
    ("has shape", DRAWS[:0]),
    ("has shape", DRAWS[None, None]),
    ("has shape", np.empty((300, 0))),
    ("has shape", 1.0),
    ("are constant", column(np.full(300, 2.0))),
    ("are constant", np.ones((300, P))),
    ("collinear", column(DRAWS[:, 1])),
    ("collinear", column(2 * DRAWS[:, 1] - DRAWS[:, 0])),
    ("collinear", column(DRAWS[:, 1] + 1e-8 * RNG.standard_normal(300))),
    ("collinear", column(1e6 * DRAWS[:, 1] + 1e-2 * RNG.standard_normal(300))),
    ("cannot be read", "draws"),
    ("cannot be read", DRAWS.astype(complex)),
]


@pytest.mark.parametrize(("fragment", "draws"), DEGENERATE)
@pytest.mark.parametrize("call", [calibrate, given, lambda d: calibrate(d, POSTERIOR)])
def test_draws_that_are_too_few_constant_or_collinear_are_refused(call, fragment, draws):
    refused("draws", fragment, lambda: call(draws))


def test_constant_draws_are_named():
    refused("draws", "of ['c'] are constant", lambda: calibrate(column(np.zeros(300))))


OPTIONS = [
    ("map", "'affine', 'paper', 'cholesky'", lambda: calibrate(map="sqrt")),
    ("root", "'affine', 'paper', 'cholesky'", lambda: ef.Map("sqrt")),
    ("root", "'affine', 'paper', 'cholesky'", lambda: between(root=None)),
    ("kind", "'location-scale', 'scale'", lambda: calibrate(map=ef.Map(kind="location"))),
    ("kind", "'draws', 'wald'", lambda: calibrate().interval(kind="hdi")),
    ("working", "'draws', 'curvature'", lambda: calibrate(map=ef.Map(working="hessian"))),
    ("map", "pass eta=", lambda: calibrate(map=ef.Map(working="curvature"))),
    ("working", "pass a criterion", lambda: given(map=ef.Map(working="curvature"), eta=1.0)),
    ("correction", "'HC0', 'HC1', 'HC2', 'HC3'", lambda: calibrate(correction="HC4")),
    ("correction", "'CR1S'", lambda: calibrate(clusters=GROUPS, correction="cr1")),
    ("correction", "need clusters=", lambda: calibrate(correction="CR2")),
    ("correction", "drop clusters=", lambda: calibrate(clusters=GROUPS, correction="HC3")),
    ("correction", "meat=", lambda: ef.target(CRITERION, meat=EYE, correction="HC0")),
    ("center", "'map', 'one_step', 'mean'", lambda: calibrate(center="mode")),
    ("center", "2 entries for 3", lambda: calibrate(center=[1.0, 2.0])),
    ("center", "2 entries for 3", lambda: given(center=[1.0, 2.0])),
    ("center", "2 entries for 3", lambda: between(center=[1.0, 2.0])),
    ("center", "must be a vector", lambda: calibrate(center=np.ones((1, P)))),
    ("center", "0 entries for 3", lambda: calibrate(center=[])),
    ("center", "needs draws", lambda: ef.target(CRITERION, center="mean")),
    ("center", "needs scores", lambda: given(center="map")),
    ("center", "is missing", lambda: given(center=None)),
    ("covariance", "is missing", lambda: given(covariance=None)),
    ("covariance", "for 3 parameters", lambda: given(covariance=np.eye(2))),
    ("clusters", "needs a criterion", lambda: given(clusters=GROUPS)),
    ("correction", "needs a criterion", lambda: given(correction="HC0")),
    ("of", "is a Target", lambda: calibrate(of=TARGET, center="map")),
    ("of", "is a Target", lambda: calibrate(of=TARGET, covariance=EYE)),
    ("of", "is a str", lambda: calibrate(of="criterion")),
    ("criterion", "is a GeneralizedPosterior", lambda: ef.target(POSTERIOR)),
    ("eta", "were made at 0.5", lambda: calibrate(HALF, eta=1.0)),
    ("eta", "were made at 0.5", lambda: calibrate(HALF, POSTERIOR)),
    ("seed", "pass an int", lambda: calibrate(seed="abc")),
    ("names", "has 2 entries for 3", lambda: ef.Draws.of(DRAWS, ["a", "b"])),
    ("names", "duplicates", lambda: ef.Target(np.ones(P), EYE, ["a", "a", "b"])),
    ("names", "has 1 entries for 3", lambda: ef.Draws.of(ef.Draws.of(DRAWS), names=["a"])),
    ("names", "duplicates", lambda: between(names=["a", "a", "b"])),
    ("name", "is not a parameter", lambda: ef.Draws.of(DRAWS, NAMES)["d"]),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), OPTIONS)
def test_options_that_are_unknown_or_contradict_are_refused(argument, fragment, call):
    refused(argument, fragment, call)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 95, np.nan, np.inf, "high", 1j, [0.9, 0.95]])
def test_levels_outside_the_unit_interval_are_refused(bad):
    made = calibrate()
    for call in (
        lambda: calibrate(level=bad),
        lambda: made.interval(bad),
        lambda: made.summary(bad),
        lambda: made.region(bad),
        lambda: made.of(lambda t: t["a"]).interval(bad),
    ):
        refused("level", "strictly between 0 and 1", call)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "abc", 1j, [1.0, 2.0], pd.NA])
def test_learning_rates_that_are_not_above_zero_are_refused(bad):
    refused("eta", "above zero", lambda: calibrate(eta=bad))
    refused("eta", "above zero", lambda: given(eta=bad))
    refused("eta", "above zero", lambda: ef.Draws.of(DRAWS, eta=bad))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, -np.inf, [3.0, 4.0]])
def test_degrees_of_freedom_below_one_are_refused(bad):
    refused("dof", "is ", lambda: ef.target(CRITERION, dof=bad))
    if np.ndim(bad) == 0:
        refused("dof", "", lambda: ef.Target(np.ones(P), EYE, dof=bad))


@pytest.mark.parametrize("apply", [MAP, MAP.inverse])
def test_maps_refuse_arrays_of_another_width_and_draws_of_other_parameters(apply):
    for bad in (np.ones((5, 2)), np.ones((5, 4)), np.ones((2, 3, 4)), 1.0, np.empty((5, 0))):
        refused("draws", "the last axis must be 3 long", lambda bad=bad: apply(bad))
    for names in (["a", "b", "d"], ["c", "b", "a"]):
        other = ef.Draws.of(DRAWS, names)
        refused("draws", "the map of ['a', 'b', 'c']", lambda other=other: apply(other))
    for out in (np.empty((2, 3)), np.empty((300, P), "f4"), np.empty((300, P), order="F")):
        refused("out", "C-contiguous float64", lambda out=out: apply(DRAWS, out))


BEFORE_WORK = [
    lambda: calibrate(DRAWS[:2]),
    lambda: calibrate(map="no"),
    lambda: calibrate(map=ef.Map(kind="no")),
    lambda: calibrate(map=ef.Map(working="no")),
    lambda: calibrate(level=2.0),
    lambda: calibrate(seed="no"),
    lambda: calibrate(eta=-1.0),
    lambda: calibrate(clusters=GROUPS[1:]),
    lambda: calibrate(clusters=spoiled(GROUPS, None)),
    lambda: calibrate(correction="no"),
    lambda: calibrate(correction="CR3"),
    lambda: ef.target(CRITERION, meat=EYE, correction="HC0"),
    lambda: calibrate(center="no"),
    lambda: calibrate(center=[1.0]),
    lambda: ef.sample(POSTERIOR, 0),
    lambda: ef.sample(POSTERIOR, sampler="no"),
    lambda: ef.sample(POSTERIOR, seed="no"),
]


@pytest.mark.parametrize("call", BEFORE_WORK)
def test_what_can_be_refused_at_once_is_refused_before_anything_is_fitted(call, monkeypatch):
    def fit(*arguments):
        pytest.fail("the criterion was minimised before the arguments were checked")

    for module in ("sandwich", "samplers.variational"):
        monkeypatch.setattr(f"etafree.{module}.minimise", fit)
    with pytest.raises(InputError):
        call()

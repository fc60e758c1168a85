"""Names of columns, indices and coordinates are the parameters', whatever their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import etafree as ef
from conftest import refused
from etafree.errors import InputError
from etafree.foundation.arguments import in_order

NAMES, TURNED = ["a", "b", "c"], ["c", "a", "b"]
RNG = np.random.default_rng(5)
X = RNG.standard_normal((60, 3)) * [1.0, 2.0, 5.0]
Y = X @ [1.0, -1.0, 0.5] + RNG.standard_normal(60)
DRAWS = RNG.standard_normal((80, 3)) @ RNG.standard_normal((3, 3)) + [1.0, 10.0, 100.0]
POINT = np.array([1.0, 10.0, 100.0])
ROOT = RNG.standard_normal((3, 3))
MATRIX = ROOT @ ROOT.T + np.diag([1.0, 2.0, 3.0])
CRITERION = ef.Criterion(ef.losses.Squared(), (X, Y), names=NAMES)
POSTERIOR = ef.GeneralizedPosterior(CRITERION, 0.5)
RESULT = ef.calibrate(DRAWS, CRITERION)


def frame(array: Any) -> pd.DataFrame:
    return pd.DataFrame(array, columns=NAMES)


def series(array: Any) -> pd.Series:
    return pd.Series(array, index=NAMES)


def square(array: Any) -> pd.DataFrame:
    return pd.DataFrame(array, index=NAMES, columns=NAMES)


def coordinates(array: Any) -> xr.DataArray:
    dims = ["draw", "parameter"][-np.ndim(array) :]
    return xr.DataArray(array, dims=dims, coords={"parameter": NAMES})


def turned(value: Any) -> Any:
    """The same table with its parameters in another order."""
    if isinstance(value, xr.DataArray):
        return value.sel(parameter=TURNED)
    if isinstance(value, pd.Series):
        return value[TURNED]
    square = list(value.index) == NAMES
    return value.loc[TURNED, TURNED] if square else value[TURNED]


#: Every public place for named draws, vectors or matrices: the call, and a valid argument.
PLACES: dict[str, tuple[Any, Any]] = {
    "map": (lambda d: np.asarray(frame(RESULT.map(d))[NAMES]), frame(DRAWS)),
    "inverse": (lambda d: np.asarray(frame(RESULT.map.inverse(d))[NAMES]), frame(DRAWS)),
    "Draws.of": (
        lambda d: ef.Draws.of(d, None if hasattr(d, "columns") else NAMES)["b"],
        frame(DRAWS),
    ),
    "Draws.of with names": (lambda d: ef.Draws.of(d, NAMES).array, frame(DRAWS)),
    "calibrate": (lambda d: ef.calibrate(d, CRITERION).draws.array, frame(DRAWS)),
    "calibrate Draws": (
        lambda d: (
            ef.calibrate(
                ef.Draws.of(d, None if hasattr(d, "columns") else NAMES), CRITERION
            ).draws.array
        ),
        frame(DRAWS),
    ),
    "calibrate to a target": (
        lambda d: ef.calibrate(d, ef.Target(POINT, MATRIX, NAMES)).draws.array,
        frame(DRAWS),
    ),
    "center": (lambda c: ef.calibrate(DRAWS, CRITERION, center=c).center, series(POINT)),
    "center of a target": (lambda c: ef.target(CRITERION, center=c).center, series(POINT)),
    "center with a covariance": (
        lambda c: ef.calibrate(frame(DRAWS), center=c, covariance=MATRIX).center,
        series(POINT),
    ),
    "covariance": (
        lambda v: ef.calibrate(frame(DRAWS), center=POINT, covariance=v).target.covariance,
        square(MATRIX),
    ),
    "hessian": (
        lambda a: ef.target(CRITERION, hessian=a, correction="HC1").covariance,
        square(MATRIX),
    ),
    "meat": (lambda b: ef.target(CRITERION, meat=b).covariance, square(MATRIX)),
    "mean": (lambda m: ef.target(CRITERION, center="mean", mean=m).center, series(POINT)),
    "Target.given, center": (lambda c: ef.Target(c, MATRIX, NAMES).center, series(POINT)),
    "Target.given, covariance": (lambda v: ef.Target(POINT, v, NAMES).covariance, square(MATRIX)),
    "between, mean": (
        lambda m: ef.LocationScaleMap.between(m, MATRIX, POINT, MATRIX, names=NAMES).mean,
        series(POINT),
    ),
    "between, covariance": (
        lambda v: ef.LocationScaleMap.between(POINT, v, POINT, MATRIX, names=NAMES).scale,
        square(MATRIX),
    ),
    "between, center": (
        lambda c: ef.LocationScaleMap.between(POINT, MATRIX, c, MATRIX, names=NAMES).offset,
        series(POINT),
    ),
    "between, target": (
        lambda v: ef.LocationScaleMap.between(POINT, MATRIX, POINT, v, names=NAMES).scale,
        square(MATRIX),
    ),
    "contains": (lambda t: RESULT.region().contains(t), series(RESULT.center + POINT / 999)),
    "test": (lambda r: RESULT.test(r).statistic, series([1.0, -2.0, 0.5])),
    "test of several": (lambda r: RESULT.test(r).statistic, frame([[1.0, 2, 0], [0, 1.0, 3.0]])),
    "value": (CRITERION.value, series(POINT)),
    "values_at": (CRITERION.values_at, frame(DRAWS)),
    "gradient": (CRITERION.gradient, series(POINT)),
    "minimise": (lambda s: ef.minimise(CRITERION, s).theta, series(POINT)),
    "log_density": (POSTERIOR.log_density, frame(DRAWS)),
    "X": (
        lambda x: ef.minimise(ef.Criterion(ef.losses.Squared(), (x, Y), names=NAMES)).theta,
        frame(X),
    ),
    "functional": (
        lambda f: ef.select(CRITERION, "gpc", functional=f, seed=1, draws=100).eta,
        series([1.0, -2.0, 0.5]),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_another_order_of_the_names_changes_nothing(place):
    call, valid = PLACES[place]
    np.testing.assert_allclose(call(turned(valid)), call(valid), rtol=1e-9)
    np.testing.assert_allclose(call(valid), call(np.asarray(valid)), rtol=1e-9)


@pytest.mark.parametrize("place", [name for name in PLACES if name != "Draws.of"])
def test_names_that_are_missing_or_no_parameters_are_refused_by_name(place):
    call, valid = PLACES[place]
    other = {"a": "other"}
    axes = {"index": other} if isinstance(valid, pd.Series) else {"columns": other}
    with pytest.raises(InputError, match="other"):
        call(valid.rename(**axes))
    more = pd.concat(
        [valid, valid.iloc[..., :1].rename(**{key: {"a": "more"} for key in axes})],
        axis=valid.ndim - 1,
    )
    with pytest.raises(InputError):
        call(more)
    with pytest.raises(InputError):
        call(valid[["a", "b"]])


@pytest.mark.parametrize("place", ["map", "values_at", "log_density", "Draws.of with names"])
def test_the_coordinate_of_an_xarray_object_counts_too(place):
    call, _ = PLACES[place]
    if place == "map":
        image = RESULT.map(coordinates(DRAWS).sel(parameter=TURNED))
        assert image.dims == ("draw", "parameter")
        got, call = image.sel(parameter=NAMES), RESULT.map
    else:
        got = call(coordinates(DRAWS).sel(parameter=TURNED))
    np.testing.assert_allclose(got, call(DRAWS), rtol=1e-9)


@pytest.mark.parametrize("apply", [RESULT.map, RESULT.map.inverse])
def test_a_mapped_table_comes_back_with_its_own_columns_and_index(apply):
    given = frame(DRAWS)[TURNED].set_index(np.arange(80) + 7)
    image = apply(given)
    assert list(image.columns) == TURNED
    assert image.index.equals(given.index)
    np.testing.assert_allclose(image[NAMES], apply(DRAWS), rtol=1e-12)
    one = apply(given.iloc[3])
    assert list(one.index) == TURNED
    np.testing.assert_allclose(one, image.iloc[3], rtol=1e-9)
    refused("out", "is for arrays", lambda: apply(given, out=np.empty((80, 3))))


def test_a_column_that_is_there_twice_is_refused():
    twice = frame(DRAWS)[["a", "b", "c", "a"]]
    refused("draws", "a name twice", lambda: RESULT.map(twice))
    with pytest.raises(InputError, match="duplicates"):
        ef.Draws.of(twice)


def test_columns_without_names_go_by_position():
    plain = pd.DataFrame(DRAWS)
    np.testing.assert_array_equal(RESULT.map(plain), RESULT.map(DRAWS))
    assert ef.Draws.of(plain).names == ("theta[0]", "theta[1]", "theta[2]")
    named = ef.calibrate(plain, CRITERION).draws.array
    np.testing.assert_allclose(named, RESULT.draws.array, rtol=1e-9)


def test_made_up_names_of_parameters_leave_positions_to_count():
    own = ef.calibrate(DRAWS, center=POINT, covariance=MATRIX)
    image = own.map(frame(DRAWS))
    np.testing.assert_array_equal(image, own.map(DRAWS))
    assert list(image.columns) == NAMES
    mixed = ef.calibrate(DRAWS, center=series(POINT), covariance=turned(square(MATRIX)))
    np.testing.assert_allclose(mixed.target.covariance, MATRIX, rtol=1e-12)


def test_new_names_rename_and_known_names_order():
    table = frame(DRAWS)
    assert ef.Draws.of(table, ["x", "y", "z"])["x"].tolist() == DRAWS[:, 0].tolist()
    assert ef.Draws.of(table, TURNED)["c"].tolist() == DRAWS[:, 2].tolist()
    draws = ef.Draws.of(table)
    assert ef.Draws.of(draws, ["x", "y", "z"])["x"].tolist() == DRAWS[:, 0].tolist()
    assert ef.Draws.of(draws, TURNED)["c"].tolist() == DRAWS[:, 2].tolist()
    with pytest.raises(InputError, match="'z'"):
        ef.Draws.of(table, ["a", "b", "z"])


def test_the_index_of_one_parameters_draws_names_no_parameters():
    one = pd.Series(DRAWS[:, 0], index=[f"draw {k}" for k in range(80)])
    assert ef.Draws.of(one).p == 1


def test_a_target_takes_its_names_from_what_it_is_given():
    assert ef.Target(series(POINT), MATRIX).names == tuple(NAMES)
    assert ef.Target(POINT, square(MATRIX)).names == tuple(NAMES)
    both = ef.Target(turned(series(POINT)), square(MATRIX))
    assert both.names == tuple(TURNED)
    np.testing.assert_allclose(both.covariance, turned(square(MATRIX)))


def test_a_matrix_with_names_on_one_axis_has_them_on_both():
    half = pd.DataFrame(turned(square(MATRIX)).to_numpy(), columns=TURNED)
    np.testing.assert_array_equal(in_order(half, NAMES, "covariance", (0, 1)), MATRIX)


# --- masks --------------------------------------------------------------------------------------

HIDDEN = np.ma.masked_greater(np.arange(60.0), 58.0)
MASKED: dict[str, Any] = {
    "rows of draws": lambda: ef.Draws.of([np.ma.masked_equal([1.0, 2.0], 2.0)] * 9),
    "rows of X": lambda: ef.Criterion(
        ef.losses.Squared(),
        ([np.ma.array(row, mask=[k == 3, False, False]) for k, row in enumerate(X)], Y),
    ),
    "an entry of y": lambda: ef.Criterion(ef.losses.Squared(), (X, [np.ma.masked, *Y[1:]])),
    "an entry of an object array": lambda: ef.Criterion(
        ef.losses.Squared(), (X, np.array([np.ma.masked, *Y[1:].tolist()], dtype=object))
    ),
    "labels": lambda: ef.target(CRITERION, clusters=[np.ma.masked, *range(59)]),
    "labels, one array of several": lambda: ef.target(
        CRITERION, clusters=[np.arange(60) % 20, HIDDEN]
    ),
    "strata": lambda: ef.target(
        CRITERION, dependence=ef.Survey(strata=[np.ma.masked, *[0] * 29, *[1] * 30])
    ),
    "times": lambda: ef.target(CRITERION, dependence=ef.TimeSeries(HIDDEN)),
    "weights": lambda: CRITERION.reweighted([np.ma.masked, *[1] * 59]),
    "offset": lambda: ef.Criterion(ef.losses.Squared(), (X, Y), offset=HIDDEN),
    "covariance": lambda: ef.Target(POINT, [np.ma.masked_equal(r, 0.0) for r in np.eye(3)]),
    "draws to map": lambda: RESULT.map([np.ma.masked_equal([1.0, 2.0, 3.0], 2.0)]),
    "groups": lambda: ef.RandomIntercept(X, Y, [np.ma.masked, *[k % 9 for k in range(59)]]),
    "rows of a subset": lambda: CRITERION.subset(np.ma.masked_equal([0, 1, 2], 1)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("what", MASKED)
def test_masked_entries_are_refused_wherever_they_hide(what):
    with pytest.raises(InputError, match="masked"):
        MASKED[what]()


def test_masked_arrays_that_hide_nothing_are_taken():
    rows = [np.ma.array(row, mask=False) for row in DRAWS]
    np.testing.assert_array_equal(ef.Draws.of(rows).array, DRAWS)

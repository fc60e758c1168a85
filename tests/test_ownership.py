"""Results own their data: what a caller does to an array later changes no answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import stored_fit


def scribble(arrays, keep=()):
    """Overwrite every array that was passed, but for those that stay by reference."""
    for name, array in arrays.items():
        if name not in keep:
            array[...] = {"U": "zz", "i": 0, "f": 5.0}[array.dtype.kind]


def answers(result):
    """Return everything a result says, as text and numbers that can be compared."""
    said = {
        "draws": result.draws.array.copy(),
        "original": result.original.array.copy(),
        "summary": result.summary().to_string(),
        "wald": result.interval(kind="wald").to_numpy(),
        "diagnostics": result.diagnostics().to_string(),
        "repr": repr(result),
        "region": result.region().contains(result.center),
        "of": result.of(lambda t: t[result.names[0]]).interval(),
        "moved": result.map(np.ones((1, len(result.target.names)))),
    }
    tree = result.to_arviz()
    for group in ("posterior", "original_posterior"):
        if result.fit is not None and result.fit.tree is not None:
            said[group] = {name: array.values.copy() for name, array in tree[group].items()}
    if result.criterion is not None and result.dependence.clusters is not None:
        said["wild"] = tuple(result.wild_bootstrap(result.names[0], draws=199).__dict__.values())
        said["table"] = result.cluster_table().to_string()
    return said


def same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    else:
        assert str(one) == str(other)


def arrays():
    rng = np.random.default_rng(3)
    n = 60
    X = np.column_stack([np.ones(n), rng.standard_normal(n)])
    return {
        "X": X,
        "y": X @ [1.0, 2.0] + rng.standard_normal(n),
        "weights": rng.integers(1, 3, n).astype(float),
        "offset": 0.1 * rng.standard_normal(n),
        "clusters": np.repeat(np.arange(12), 5),
        "text": np.repeat([f"s{k}" for k in range(12)], 5),
        "strata": np.repeat(np.arange(3), 20),
        "fpc": np.repeat([40.0, 50.0, 60.0], 20),
        "time": np.arange(n),
        "draws": rng.standard_normal((400, 2)) * 0.1 + [1.0, 2.0],
        "center": np.array([1.0, 2.0]),
        "covariance": np.diag([0.01, 0.02]),
        "hessian": np.diag([60.0, 50.0]),
        "meat": np.diag([66.0, 70.0]),
        "mu": np.zeros(2),
        "Q": np.eye(2),
        "mean": np.zeros(2),
        "variance": 100.0 * np.eye(2),
        "losses": -0.5 * rng.standard_normal((400, n)) ** 2,
    }


def criterion(a, **more):
    ridge = ef.penalties.Ridge(0.1, mu=a["mu"], Q=a["Q"])
    return ef.Criterion(
        ef.losses.Huber(),
        (a["X"], a["y"]),
        ridge,
        weights=a["weights"],
        weight_kind="frequency",
        offset=a["offset"],
        **more,
    )


def posterior(a):
    prior = ef.LogPrior.normal(a["mean"], a["variance"])
    return ef.GeneralizedPosterior(criterion(a), 1.0, prior)


def plain(a):
    return ef.Criterion(ef.losses.Squared(), (a["X"], a["y"]))


def linear(a):
    """Return pointwise log-likelihoods of the draws."""
    a["losses"] = -0.5 * np.square(a["y"] - a["draws"] @ a["X"].T)
    return a["losses"]


ROUTES = {
    "clusters": lambda a: ef.calibrate(a["draws"], criterion(a), clusters=a["clusters"]),
    "text": lambda a: ef.calibrate(a["draws"], criterion(a), clusters=a["text"]),
    "ways": lambda a: ef.calibrate(a["draws"], plain(a), clusters=[a["clusters"], a["strata"]]),
    "series": lambda a: ef.calibrate(
        a["draws"], criterion(a), clusters=pd.Series(a["clusters"], copy=False)
    ),
    "survey": lambda a: ef.calibrate(
        a["draws"], plain(a), dependence=ef.Survey(a["clusters"], a["strata"], fpc=a["fpc"])
    ),
    "time": lambda a: ef.calibrate(a["draws"], plain(a), dependence=ef.TimeSeries(a["time"])),
    "prior": lambda a: ef.calibrate(a["draws"], posterior(a), clusters=a["clusters"]),
    "given": lambda a: ef.calibrate(a["draws"], center=a["center"], covariance=a["covariance"]),
    "target": lambda a: ef.calibrate(a["draws"], ef.Target(a["center"], a["covariance"])),
    "parts": lambda a: ef.calibrate(
        a["draws"], ef.target(plain(a), hessian=a["hessian"], meat=a["meat"], center=a["center"])
    ),
    "jackknife": lambda a: ef.calibrate(
        a["draws"], log_likelihood=linear(a), clusters=a["clusters"]
    ),
    "chains": lambda a: ef.calibrate(a["draws"].reshape(4, 100, 2), criterion(a)),
    "Draws": lambda a: ef.calibrate(
        ef.Draws(a["draws"][None], ("theta[0]", "theta[1]")), criterion(a)
    ),
}


@pytest.mark.parametrize("route", ROUTES)
def test_overwriting_what_was_passed_changes_no_answer(route):
    a = arrays()
    result = ROUTES[route](a)
    before = answers(result)
    object.__delattr__(result, "checks")  # so that they are computed again
    scribble(a, keep=("X", "y"))
    same(answers(result), before)


def test_overwriting_a_fit_changes_no_answer(fit_kind):
    a = arrays()
    chains, likelihood = a["draws"].reshape(4, 100, 2), linear(a).reshape(4, 100, -1)
    if fit_kind == "InferenceData":
        fit = stored_fit({"posterior": {"b": chains}, "log_likelihood": {"y": likelihood}})
    else:
        import xarray as xr

        fit = xr.DataTree.from_dict(
            {
                "posterior": xr.Dataset({"b": (("chain", "draw", "k"), chains)}),
                "log_likelihood": xr.Dataset({"y": (("chain", "draw", "i"), likelihood)}),
            }
        )
    result = ef.calibrate(fit, clusters=a["clusters"])
    before = answers(result)
    fit["posterior"]["b"].values[:] = 7.0
    scribble(a, keep=("X", "y"))
    same(answers(result), before)


def test_a_result_cannot_be_written_into():
    a = arrays()
    result = ROUTES["clusters"](a)
    for array in (
        result.draws.values,
        result.draws.array,
        result.original.values,
        result.target.covariance,
        result.map.scale,
        result.map.offset,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0


def test_draws_that_are_owned_already_are_not_copied_again():
    draws = ef.Draws.of(arrays()["draws"])
    assert np.shares_memory(draws.values, ef.Draws.of(draws, eta=0.5).values)
    assert not np.shares_memory(draws.values, arrays()["draws"])

"""Every argument of every public call, exchanged for what it should not be."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree.errors import EtafreeError
from fuzzed_calls import Call, parts, public, questions

#: What people pass by mistake. A function is not among them: what it raises is its author's.
THINGS: dict[str, Any] = {
    "None": None,
    "NaN": np.nan,
    "infinity": np.inf,
    "minus one": -1,
    "text": "x",
    "no text": "",
    "three axes": np.ones((2, 2, 2)),
    "rows of several lengths": [[1.0], [1.0, 2.0]],
    "a list of text": ["a", "b"],
    "an empty list": [],
    "a dict": {"a": 1},
    "an object": object(),
    "pandas' NA": pd.NA,
    "a masked entry": np.ma.masked,
    "NaN in an array": np.full(3, np.nan),
    "a table": pd.DataFrame({"a": [1.0, 2.0]}),
    "a complex number": 1j,
    "a huge number": 10**400,
}
CALLS: dict[str, Call] = {**parts(), **public(), **questions()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_whatever_an_argument_is_the_answer_is_a_result_or_our_own_error(name):
    function, valid = CALLS[name]
    function(**valid)
    for argument in valid:
        for what, thing in THINGS.items():
            try:
                function(**{**valid, argument: thing})
            except EtafreeError:
                pass
            except Exception as error:
                pytest.fail(f"{argument} = {what}: {type(error).__name__}: {error}")
    import matplotlib.pyplot as plt

    plt.close("all")


def test_every_public_function_and_constructor_is_among_the_calls():
    """A new one must be added to `fuzzed_calls`; what only other calls return is not built."""
    returned = {"Calibration", "Fit", "LearningRate", "Minimum", "ResultTable"}
    returned |= {"from_bambi", "from_numpyro", "from_pymc"}  # which have tests of their own
    own_functions = {"JaxLoss", "PairLoss"}  # they take a function and no more
    named = {word for name in CALLS for word in name.replace(".", " ").split()}
    for name, thing in vars(ef).items():
        if name in ef.__all__ and callable(thing) and name not in returned | own_functions:
            assert name in named, name
    for name, thing in vars(ef.losses).items():
        plain = {
            "Gamma",
            "KinkedLoss",
            "LinearLoss",
            "Logistic",
            "Loss",
            "Poisson",
            "ResidualLoss",
            "Squared",
        }
        if inspect.isclass(thing) and name in ef.losses.__all__ and name not in plain:
            assert name in named, name


#: Tuning numbers, wherever one is taken.
TUNING = {
    "bandwidth of a series": ("target of a TimeSeries", "bandwidth"),
    "bandwidth of a panel": ("target of a Panel", "bandwidth"),
    "lags of a series": ("lags of a series", "bandwidth"),
    "bandwidth of the jackknife": ("jackknife of a series", "bandwidth"),
    "bandwidth of a quantile": ("Quantile", "bandwidth"),
    "bandwidth of a mode": ("Modal", "h"),
    "Huber's constant": ("Huber", "c"),
    "width of Wilcoxon's kernel": ("Wilcoxon", "width"),
    "tolerance of a search": ("select gpc", "tolerance"),
    "start of a search": ("select gpc", "start"),
    "degrees of freedom": ("target", "dof"),
    "variance of an intercept": ("RandomIntercept", "tau2"),
    "width of a kink": ("huberized_l1", "width"),
}


@pytest.mark.parametrize("what", TUNING)
@pytest.mark.parametrize("bad", [np.nan, -np.inf, "x", np.ones((2, 2, 2)), [1.0, 2.0]])
def test_tuning_numbers_that_are_none_are_refused_by_name(what, bad):
    name, argument = TUNING[what]
    function, valid = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(argument, "", lambda: function(**{**valid, argument: bad}))


FOUND = {
    "a contrast with three axes": ("contrast", lambda r: r.test(np.ones((2, 2, 2)))),
    "draws that are a list": ("values", lambda r: ef.Draws([1.0, 2.0], ("a",))),
    "a target of one name": ("names", lambda r: ef.Target(np.zeros(2), np.eye(2), "ab")),
    "degrees of freedom that are NaN": (
        "dof",
        lambda r: ef.Target(np.zeros(1), np.eye(1), ("a",), np.array([np.nan])),
    ),
    "rows that are text": ("rows", lambda r: r.criterion.subset("x")),
    "clusters that are None": (
        "clusters",
        lambda r: ef.Criterion.from_parts(
            ef.losses.Squared(), [pd.DataFrame({"y": [1.0, 2.0]})], "y ~ 1", clusters=None
        ),
    ),
    "info that is None": ("info", lambda r: ef.Draws(np.zeros((1, 3, 1)), ("a",), info=None)),
    "points of an outline": ("points", lambda r: r.region().boundary(points=-1)),
    "chains of a sampler": (
        "chains",
        lambda r: ef.RandomIntercept(
            np.ones((9, 1)), np.arange(9.0), np.arange(9) % 3, tau2=1.0, sigma2=1.0
        ).sample(1.0, "appendix", chains=0),
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_ended_in_an_error_of_python_is_refused_by_name(what):
    argument, call = FOUND[what]
    rng = np.random.default_rng(0)
    criterion = ef.Criterion(ef.losses.Squared(), (rng.standard_normal((30, 2)), np.arange(30.0)))
    result = ef.calibrate(rng.standard_normal((99, 2)), criterion)
    refused(argument, "", lambda: call(result))

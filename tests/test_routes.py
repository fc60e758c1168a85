"""Nothing that is given to calibrate is ignored, whatever the draws and the criterion are."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

import etafree as ef
from etafree.errors import InputError

RNG = np.random.default_rng(5)
N = 60
X = np.column_stack([np.ones(N), RNG.standard_normal(N)])
Y = X @ [1.0, 2.0] + RNG.standard_t(4, N)
DRAWS = [1.0, 2.0] + 0.15 * RNG.standard_normal((600, 2))
LIKELIHOOD = -0.5 * np.square(Y - DRAWS @ X.T)
SCHOOL = RNG.permutation(np.repeat(np.arange(15), 4))


def criterion():
    return ef.Criterion(ef.losses.Squared(), (X, Y), ef.penalties.Ridge(0.05))


def posterior():
    prior = ef.LogPrior.normal(np.zeros(2), np.eye(2))
    return ef.GeneralizedPosterior(criterion(), 0.5, prior)


def tree():
    import xarray as xr

    shape = ("chain", "draw")
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {name: (shape, DRAWS[None, :, k]) for k, name in enumerate("ab")}
            ),
            "log_likelihood": xr.Dataset({"y": ((*shape, "i"), LIKELIHOOD[None])}),
        }
    )


#: What is passed besides the draws on each route.
ROUTES = {
    "criterion": lambda: (DRAWS, {"of": criterion()}),
    "posterior": lambda: (DRAWS, {"of": posterior()}),
    "target": lambda: (DRAWS, {"of": ef.target(criterion())}),
    "covariance": lambda: (DRAWS, {"center": [1.0, 2.0], "covariance": 0.1 * np.eye(2)}),
    "log-likelihood": lambda: (DRAWS, {"log_likelihood": LIKELIHOOD}),
    "rows": lambda: (DRAWS, {"log_likelihood": criterion()}),
    "fit": lambda: (tree(), {}),
    "fit and covariance": lambda: (tree(), {"center": [1.0, 2.0], "covariance": np.eye(2)}),
    "fit and criterion": lambda: (
        tree(),
        {"of": ef.Criterion(ef.losses.Squared(), (X, Y), names=["a", "b"])},
    ),
}

STRATA = np.repeat([0, 1, 2], 20)

#: A value of each argument that is not its default.
VALUES = {
    "clusters": SCHOOL,
    "dependence": ef.Survey(SCHOOL, STRATA, fpc=np.full(N, 90.0)),
    "correction": "HC0",
    "center": [1.1, 1.9],
    "covariance": 0.3 * np.eye(2),
    "map": "cholesky",
    "eta": 0.25,
    "level": 0.8,
    "model": lambda: None,
    "var_names": ["a"],
    "log_likelihood": "y",
    "seed": 9,
}

#: Arguments that change nothing where all is well: they only allow or name what is there.
PERMISSIONS = {("fit", "log_likelihood")}


def fingerprint(result):
    t = result.target
    return repr(
        (
            result.summary().to_string(),
            dict(result.settings),
            t.covariance.tolist(),
            t.center.tolist(),
            t.describe(),
            t.estimand,
            t.dof.tolist(),
            result.original.eta,
            result.diagnostics().to_string(),
            result.map.scale.tolist(),
        )
    )


def test_there_is_a_value_for_every_argument():
    arguments = set(inspect.signature(ef.calibrate).parameters) - {"draws", "of"}
    assert arguments == set(VALUES)


@pytest.mark.parametrize("route", ROUTES)
def test_every_argument_does_something_or_is_refused(route):
    draws, given = ROUTES[route]()
    plain = fingerprint(ef.calibrate(draws, **given))
    ignored = []
    for argument, value in VALUES.items():
        if (route, argument) in PERMISSIONS:
            continue
        draws, given = ROUTES[route]()
        try:
            made = ef.calibrate(draws, **{**given, argument: value})
        except InputError:
            continue
        if fingerprint(made) == plain:
            ignored.append(argument)
    assert ignored == []


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("argument", ["dependence", "map", "level", "seed"])
def test_a_bogus_choice_is_refused_by_name_on_every_route(route, argument):
    draws, given = ROUTES[route]()
    with pytest.raises(InputError, match=f"^{argument}"):
        ef.calibrate(draws, **{**given, argument: "bogus"})


def test_a_meat_of_your_own_takes_no_structure_that_it_would_ignore():
    meat = 80.0 * np.eye(2)
    for argument, value in (
        ("time", ef.TimeSeries(np.arange(N))),
        ("strata", ef.Survey(strata=STRATA)),
        ("clusters", ef.Clusters(SCHOOL, STRATA)),
    ):
        with pytest.raises(InputError, match=f"{argument}: does not apply with meat="):
            ef.target(criterion(), meat=meat, dependence=value)
    with pytest.raises(InputError, match="centered: is False, and meat="):
        ef.target(criterion(), meat=meat, centered=False)


CHANGES = {
    "with_penalty": lambda c: c.with_penalty(ef.penalties.Ridge(0.2)),
    "with_loss": lambda c: c.with_loss(ef.losses.Huber(2.0, scale=1.0)),
    "reweighted": lambda c: c.reweighted(np.full(N, 2.0)),
    "subset": lambda c: c.subset(np.arange(30)),
    "replace": lambda c: dataclasses.replace(c, rows=c.rows),
    "with_plug_ins": lambda c: c.with_plug_ins({"another": 2.0}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("formula", [False, True])
def test_a_changed_criterion_keeps_everything_else(change, formula):
    import pandas as pd

    loss = ef.losses.Huber(1.345)
    frame = pd.DataFrame({"x": X[:, 1], "y": Y})
    made = (
        ef.Criterion.from_formula("y ~ x", frame, loss)
        if formula
        else ef.Criterion(loss, (X, Y), names=["one", "x"])
    )
    made = made.with_plug_ins({"variance of the intercepts": 0.5})
    other = CHANGES[change](made)
    assert other.plug_ins["variance of the intercepts"] == 0.5
    if change != "with_loss":
        assert other.plug_ins.items() >= made.plug_ins.items()
    else:
        assert set(other.plug_ins) == {"variance of the intercepts"}
    assert (other.names, other.intercept) == (made.names, made.intercept)
    assert other.size == other.total.size
    assert other.strength == other.penalty.strength_at(other.size)
    assert made.plug_ins.keys() == {"variance of the intercepts", *loss_plug_ins(made)}


def loss_plug_ins(criterion):
    return criterion.loss.plug_ins()


def test_arguments_of_the_wrong_kind_are_named():
    import pandas as pd

    parts = [pd.DataFrame({"y": Y})]
    with pytest.raises(InputError, match=r"^clusters: is None"):
        ef.Criterion.from_parts(ef.losses.Squared(), parts, "y ~ 1", clusters=None)
    with pytest.raises(InputError, match=r"^names"):
        ef.Target(np.zeros(1), np.eye(1), "a", np.ones(1))
    for rows in ("x", [0.5], [N], [-1], [[0]], []):
        with pytest.raises(InputError, match=r"^rows"):
            criterion().subset(rows)
    with pytest.raises(InputError, match=r"^values"):
        ef.Draws([[1.0, 2.0]], ("a", "b"))

"""Bad data, weights, losses and penalties are refused, and the message names the argument."""

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused, spoiled
from etafree import losses, penalties
from etafree.errors import NotPositiveDefiniteError

N, P = 40, 3
RNG = np.random.default_rng(20)
X = np.column_stack([np.ones(N), RNG.standard_normal((N, P - 1))])
Y = X @ [1.0, 2.0, -1.0] + RNG.standard_normal(N)
ONES = np.ones(N)
CRITERION = ef.Criterion(losses.Squared(), (X, Y), names=["a", "b", "c"])
POSTERIOR = ef.GeneralizedPosterior(CRITERION, eta=1.0)

#: One entry that is no finite real number, and what the message says of it.
ENTRIES = [
    pytest.param(np.nan, "NaN or infinite", id="nan"),
    pytest.param(np.inf, "NaN or infinite", id="inf"),
    pytest.param(-np.inf, "NaN or infinite", id="minus-inf"),
    pytest.param(None, "NaN or infinite", id="none"),
    pytest.param(pd.NA, "cannot be read as numbers", id="pandas-na"),
    pytest.param("text", "cannot be read as numbers", id="text"),
    pytest.param(1j, "cannot be read as numbers", id="complex"),
    pytest.param(object(), "cannot be read as numbers", id="object"),
]

#: What no parameter that must be a number above zero may be.
NOT_POSITIVE = [0.0, -1.0, np.nan, np.inf, -np.inf, "abc", None, 1j, [1.0, 2.0], object(), pd.NA]


def criterion(loss=None, X=X, y=Y, penalty=None, **options):
    return ef.Criterion(loss or losses.Squared(), (X, y), penalty, **options)


def binomial(trials=ONES, y=(Y > 0)):
    return criterion(losses.Logistic(), y=1.0 * np.asarray(y), trials=trials)


#: Where an array goes in, by the name of the argument.
ARRAYS = {
    "X": lambda bad: criterion(X=bad(X)),
    "y": lambda bad: criterion(y=bad(Y)),
    "weights": lambda bad: criterion(weights=bad(ONES), weight_kind="sampling"),
    "offset": lambda bad: criterion(offset=bad(ONES)),
    "trials": lambda bad: binomial(trials=bad(ONES)),
    "mu": lambda bad: criterion(penalty=penalties.Ridge(1.0, mu=bad(np.zeros(P)))),
    "Q": lambda bad: criterion(penalty=penalties.Ridge(1.0, Q=bad(np.eye(P)))),
    "theta": lambda bad: CRITERION.value(bad(np.ones(P))),
    "theta of the gradient": lambda bad: CRITERION.gradient(bad(np.ones(P))),
    "theta of the Hessian": lambda bad: CRITERION.hessian(bad(np.ones(P))),
    "theta of the density": lambda bad: POSTERIOR.log_density(bad(np.ones(P))),
    "theta of many densities": lambda bad: POSTERIOR.log_density(bad(np.ones((5, P)))),
    "theta of the score": lambda bad: POSTERIOR.gradient(bad(np.ones(P))),
    "start": lambda bad: ef.minimise(CRITERION, bad(np.ones(P))),
    "weights of a copy": lambda bad: CRITERION.reweighted(bad(ONES)),
    "mean": lambda bad: ef.LogPrior.normal(bad(np.zeros(P)), np.eye(P)),
    "covariance": lambda bad: ef.LogPrior.normal(np.zeros(P), bad(np.eye(P))),
}


@pytest.mark.parametrize(("entry", "fragment"), ENTRIES)
@pytest.mark.parametrize("where", ARRAYS)
def test_one_entry_that_is_no_finite_number_is_refused(where, entry, fragment):
    refused(where.split()[0], fragment, lambda: ARRAYS[where](lambda a: spoiled(a, entry)))


def test_the_message_says_how_many_entries_are_missing_and_where_the_first_is():
    bad = X.copy()
    bad[7, 1] = bad[9, 2] = np.nan
    refused(
        "X",
        "has 2 entries that are NaN or infinite, the first at index (7, 1)",
        lambda: criterion(X=bad),
    )


SHAPES = [
    ("X", "must have 2", lambda: criterion(X=X[:, 0])),
    ("X", "must have 2", lambda: criterion(X=X[None])),
    ("X", "must have 2", lambda: criterion(X=3.0)),
    ("X", "at least one row", lambda: criterion(X=X[:0], y=Y[:0])),
    ("X", "at least one row", lambda: criterion(X=X[:, :0])),
    ("X", "cannot be read", lambda: criterion(X=[[1.0, 2.0], [3.0]], y=[1.0, 2.0])),
    ("X", "cannot be read", lambda: criterion(X=X.astype(complex))),
    ("X", "cannot be read", lambda: criterion(X=pd.DataFrame({"a": ["u"] * N, "b": Y}))),
    ("y", "has 39 entries but X has 40 rows", lambda: criterion(y=Y[1:])),
    ("y", "must have 1", lambda: criterion(y=Y[:, None])),
    ("y", "must have 1", lambda: criterion(y=1.0)),
    ("y", "differs from X's", lambda: criterion(X=pd.DataFrame(X), y=pd.Series(Y)[::-1])),
    ("data", "tuple (X, y)", lambda: ef.Criterion(losses.Squared(), X)),
    ("data", "tuple (X, y)", lambda: ef.Criterion(losses.Squared(), (X, Y, Y))),
    ("offset", "39 entries for 40 rows", lambda: criterion(offset=ONES[1:])),
    ("offset", "must have shape (40,)", lambda: criterion(offset=ONES[:, None])),
    ("trials", "39 entries for 40 rows", lambda: binomial(ONES[1:])),
    ("trials", "does not apply to Squared", lambda: criterion(trials=ONES)),
    ("mu", "must have shape (3,)", lambda: criterion(penalty=penalties.Ridge(1.0, mu=[0.0]))),
    ("Q", "must have shape (3, 3)", lambda: criterion(penalty=penalties.Ridge(1.0, Q=np.eye(2)))),
    ("theta", "must have shape (3,)", lambda: CRITERION.value([1.0, 2.0])),
    ("theta", "must have shape (3,)", lambda: POSTERIOR.hessian(1.0)),
    ("theta", "pass (D, 3)", lambda: POSTERIOR.log_density(np.ones((2, 4)))),
    ("theta", "pass (D, 3)", lambda: POSTERIOR.log_density(np.ones((2, 2, 3)))),
    ("start", "must have shape (3,)", lambda: ef.minimise(CRITERION, np.ones(4))),
    ("names", "has 2 entries for 3", lambda: criterion(names=["a", "b"])),
    ("names", "duplicates", lambda: criterion(names=["a", "b", "a"])),
    ("names", "duplicates", lambda: criterion(X=pd.DataFrame(X, columns=["a", "b", "b"]))),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), SHAPES)
def test_data_of_the_wrong_shape_or_type_are_refused(argument, fragment, call):
    refused(argument, fragment, call)


def weighted(weights, kind="frequency"):
    return criterion(weights=weights, weight_kind=kind)


WEIGHTS = [
    ("weights", "negative value -2.0", lambda: weighted(spoiled(ONES, -2.0))),
    ("weights", "all zero", lambda: weighted(0 * ONES)),
    ("weights", "39 entries for 40 rows", lambda: weighted(ONES[1:])),
    ("weights", "must have shape (40,)", lambda: weighted(ONES[:, None])),
    ("weights", "one value per row", lambda: weighted(2.0)),
    ("weights", "negative value", lambda: CRITERION.reweighted(-ONES)),
    ("weights", "all zero", lambda: CRITERION.reweighted(0 * ONES)),
    ("weight_kind", "'frequency', 'sampling'", lambda: criterion(weights=ONES)),
    ("weight_kind", "is 'size'", lambda: weighted(ONES, "size")),
    ("weight_kind", "is 1", lambda: weighted(ONES, 1)),
    ("weight_kind", "is 'size'", lambda: CRITERION.reweighted(ONES, "size")),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), WEIGHTS)
def test_weights_that_weigh_nothing_or_mean_nothing_are_refused(argument, fragment, call):
    refused(argument, fragment, call)


RESPONSES = [
    ("y", "lie in [0, 1]", lambda: criterion(losses.Logistic(), y=ONES + 1)),
    ("y", "lie in [0, 1]", lambda: criterion(losses.Logistic(), y=-ONES)),
    ("y", "cannot be read", lambda: criterion(losses.Logistic(), y=["yes", "no"] * (N // 2))),
    ("y", "[0, trials]", lambda: binomial(2 * ONES, 5 * (Y > 0))),
    ("trials", "must be positive", lambda: binomial(0 * ONES)),
    ("y", "counts are at least zero", lambda: criterion(losses.Poisson())),
    ("y", "counts are at least zero", lambda: criterion(losses.NegativeBinomial(1.0))),
    ("y", "above zero", lambda: criterion(losses.Gamma())),
    ("y", "has the value 0.0", lambda: criterion(losses.Gamma(), y=1.0 * (Y > 0))),
    ("y", "counts are at least zero", lambda: CRITERION.with_loss(losses.Poisson())),
    ("scale", "'mad' is zero", lambda: criterion(losses.Huber(scale="mad"), y=X @ [1, 2, 3])),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), RESPONSES)
def test_responses_outside_the_range_of_the_loss_are_refused(argument, fragment, call):
    refused(argument, fragment, call)


POSITIVE = {
    "c of Huber": lambda v: losses.Huber(v),
    "c of PseudoHuber": lambda v: losses.PseudoHuber(v),
    "df of StudentT": lambda v: losses.StudentT(v),
    "bandwidth of Quantile": lambda v: losses.Quantile(0.5, v),
    "dispersion of NegativeBinomial": lambda v: losses.NegativeBinomial(v),
    "scale of Huber": lambda v: losses.Huber(scale=v),
    "scale of PseudoHuber": lambda v: losses.PseudoHuber(scale=v),
    "scale of StudentT": lambda v: losses.StudentT(scale=v),
    "eta of a posterior": lambda v: ef.GeneralizedPosterior(CRITERION, v),
}


@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize("where", POSITIVE)
def test_a_number_that_must_be_above_zero_and_is_not_is_refused(where, value):
    argument = where.split()[0]
    named = argument == "scale" and isinstance(value, str)
    asks = "choose one of 'mad'" if named else "above zero"
    refused(argument, asks, lambda: POSITIVE[where](value))


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, "abc", None, 1j, [1.0, 2.0]])
@pytest.mark.parametrize("made", [penalties.Ridge, lambda v: penalties.huberized_l1(v, 0.1)])
def test_a_strength_below_zero_or_no_number_is_refused(made, value):
    refused("strength", "strength: is", lambda: criterion(penalty=made(value)))
    refused("strength", "strength: is", lambda: criterion(penalty=made(lambda size: value)))


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.5, 1.5, np.nan, np.inf])
def test_a_quantile_level_outside_the_unit_interval_is_refused(tau):
    refused("tau", "strictly between 0 and 1", lambda: losses.Quantile(tau, 0.1))


def smooth(function, slope, curvature):
    return criterion(penalty=penalties.SmoothPenalty(1.0, function, slope, curvature))


def quadratic(t):
    return float(t @ t)


PENALTIES = [
    ("width", "above zero", lambda: penalties.huberized_l1(1.0, 0.0)),
    ("Q", "is not symmetric", lambda: criterion(penalty=penalties.Ridge(1.0, Q=np.tri(P)))),
    (
        "penalty gradient",
        "finite differences",
        lambda: smooth(quadratic, lambda t: t, lambda t: 2 * np.eye(P)),
    ),
    (
        "penalty Hessian",
        "finite differences",
        lambda: smooth(quadratic, lambda t: 2 * t, lambda t: np.eye(P)),
    ),
    (
        "penalty Hessian",
        "must have shape (3, 3)",
        lambda: smooth(quadratic, lambda t: 2 * t, lambda t: 2 * np.ones(P)),
    ),
    (
        "penalty value",
        "NaN",
        lambda: smooth(lambda t: np.nan, lambda t: 2 * t, lambda t: 2 * np.eye(P)),
    ),
    ("penalty", "pass ef.penalties.Ridge", lambda: criterion(penalty=0.5)),
    ("penalty", "pass ef.penalties.Ridge", lambda: criterion(penalty=penalties.Ridge)),
    ("loss", "pass a loss", lambda: criterion(loss="huber")),
    ("loss", "pass a loss", lambda: criterion(loss=losses.Huber)),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), PENALTIES)
def test_losses_and_penalties_that_cannot_be_used_are_refused(argument, fragment, call):
    refused(argument, fragment, call)


def test_a_penalty_that_is_not_convex_is_refused_with_its_eigenvalue():
    indefinite = np.diag([1.0, -2.0, 1.0])
    refused(
        "Q",
        "smallest eigenvalue -2",
        lambda: criterion(penalty=penalties.Ridge(Q=indefinite)),
        NotPositiveDefiniteError,
    )
    refused(
        "penalty Hessian",
        "smallest eigenvalue -2",
        lambda: smooth(lambda t: -quadratic(t), lambda t: -2 * t, lambda t: -2 * np.eye(P)),
        NotPositiveDefiniteError,
    )

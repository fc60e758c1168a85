"""Variables that are computed from parameters do not change the answer for the parameters."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import etafree as ef

N, CHAINS, DRAWS = 120, 4, 500
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(N), RNG.standard_normal(N)])
Y = X @ [1.0, 0.5] + RNG.standard_t(4, N)


def exact_draws():
    """Return draws of the posterior of a linear model with a flat prior, (chain, draw, ...)."""
    inverse = np.linalg.inv(X.T @ X)
    center = inverse @ X.T @ Y
    chi = RNG.chisquare(N - 2, (CHAINS, DRAWS))
    sigma = np.sqrt(np.square(Y - X @ center).sum() / chi)
    noise = RNG.standard_normal((CHAINS, DRAWS, 2)) @ np.linalg.cholesky(inverse).T
    return center + sigma[..., None] * noise, sigma


BETA, SIGMA = exact_draws()
A, B = BETA[..., 0], BETA[..., 1]
PARAMETERS = {"a": A, "b": B, "sigma": SIGMA}
LIKELIHOOD = -0.5 * np.square((Y - BETA @ X.T) / SIGMA[..., None]) - np.log(SIGMA[..., None])
GRID = np.random.default_rng(1).standard_normal((2, 50))

#: What a model may store besides its parameters, and whether it may come before them: of two
#: parameters that are functions of each other nobody can tell which one is computed.
DERIVED = {
    "log of a scale": ({"d": np.log(SIGMA)}, False),
    "variance": ({"d": SIGMA**2}, False),
    "precision": ({"d": SIGMA**-2.0}, False),
    "square": ({"d": B**2}, False),
    "sum": ({"d": A + B}, True),
    "copy": ({"d": 1.0 * B}, True),
    "change of units": ({"d": 1e80 * A}, True),
    "ratio": ({"d": A / B}, True),
    "rate": ({"d": np.exp(5 * B)}, False),
    "indicator": ({"d": np.where(B > 0.5, 1.0, 0.0)}, True),
    "constant": ({"d": np.full_like(A, 3.0)}, True),
    "not finite": ({"d": np.where(A > 1, np.nan, A)}, True),
    "predictors of new rows": ({"d": BETA @ GRID}, True),
    "probabilities of new rows": ({"d": 1 / (1 + np.exp(-3 * BETA @ GRID))}, True),
    "predictors": ({"d": BETA @ X.T}, True),
    "rates": ({"d": np.exp(3 * BETA @ X.T)}, True),
    "noise": ({"d": np.random.default_rng(2).standard_normal(A.shape)}, True),
    "many": ({"d": np.log(SIGMA), "e": A / B, "f": A + B, "g": SIGMA**2, "h": A * B}, False),
}


def fit(variables, obs=False):
    """Return a tree with these variables, the long ones along a dimension of the observations."""
    made = {}
    for name, values in variables.items():
        long = "obs" if obs and values.shape[2:] == (N,) else f"{name}_dim_0"
        made[name] = (("chain", "draw", long)[: values.ndim], values)
    losses = {"y": (("chain", "draw", "obs"), LIKELIHOOD)}
    return xr.DataTree.from_dict(
        {"posterior": xr.Dataset(made), "log_likelihood": xr.Dataset(losses)}
    )


def answer(tree, names):
    target = ef.calibrate(tree, var_names=names).target
    return target.covariance, target.se_error


@pytest.mark.parametrize("chosen", [["a"], ["b", "a"], ["a", "b", "sigma"]], ids=len)
@pytest.mark.parametrize("kind", sorted(DERIVED))
def test_what_is_computed_does_not_change_the_answer(kind, chosen):
    derived, anywhere = DERIVED[kind]
    expected, error = answer(fit(PARAMETERS), chosen)
    assert np.all(error < 0.02)  # slopes are over all parameters
    orders = [PARAMETERS | derived, {"a": A, **derived, "b": B, "sigma": SIGMA}]
    for variables in orders if anywhere else orders[:1]:
        for obs in (False, True):
            found, again = answer(fit(variables, obs), chosen)
            np.testing.assert_allclose(found, expected, rtol=1e-6)
            np.testing.assert_allclose(again, error, rtol=1e-6)


def test_some_parameters_have_the_answer_of_all():
    """But for HC1's n - p."""
    every, _ = answer(fit(PARAMETERS), None)
    some, _ = answer(fit(PARAMETERS), ["b"])
    np.testing.assert_allclose(some[0, 0] * (N - 1), every[1, 1] * (N - 3), rtol=1e-9)


@pytest.mark.parametrize("chosen", [["d"], ["a", "d"]])
def test_what_is_computed_may_be_reported(chosen):
    """A linear predictor among others, and a copy whose original is stored before it."""
    variables = {"a": A, "b": B, "sigma": SIGMA, "d": 1.0 * B}
    expected, _ = answer(fit({"a": A, "d": B, "sigma": SIGMA}), chosen)
    np.testing.assert_allclose(answer(fit(variables), chosen)[0], expected, rtol=1e-6)
    long = variables | {"d": (BETA @ X.T)[..., :1]}
    assert np.isfinite(answer(fit(long), chosen)[0]).all()


def test_deterministic_variables_of_pymc():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        a, b, sigma = pm.Flat("a"), pm.Flat("b"), pm.HalfFlat("sigma")
        mu = pm.Deterministic("mu", a + b * X[:, 1])
        pm.Deterministic("log_sigma", pm.math.log(sigma))
        pm.Deterministic("at_two", pm.math.sigmoid(a + 2 * b))
        pm.Normal("y", mu, sigma, observed=Y)
    plain = fit(PARAMETERS)["posterior"].to_dataset()
    with model:
        derived = pm.compute_deterministics(plain, model=model, progressbar=False)
    every = plain.merge(derived)
    assert {"mu", "log_sigma", "at_two"} < set(every)
    losses = fit(PARAMETERS)["log_likelihood"].to_dataset()
    for chosen in (["a"], ["a", "b"], ["a", "b", "sigma"]):
        covariances = [
            answer(
                xr.DataTree.from_dict({"posterior": posterior, "log_likelihood": losses}), chosen
            )[0]
            for posterior in (plain, every)
        ]
        np.testing.assert_allclose(covariances[1], covariances[0], rtol=1e-6)

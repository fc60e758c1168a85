"""PyMC models of many kinds: flat priors, idle parameters, and what predictions leave behind."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import xarray as xr

import etafree as ef
from conftest import refused
from etafree.errors import InputError, NotPositiveDefiniteError

pm = pytest.importorskip("pymc")

from etafree.fits.pymc import pymc_fit  # noqa: E402

N = 40
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, N))
GROUP = np.repeat(np.arange(8), 5)


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    logging.getLogger("pymc").setLevel(logging.ERROR)


def draws(*shape, seed=0):
    return 0.2 * np.random.default_rng([seed, *shape]).standard_normal((2, 150, *shape))


def tree(groups=None, **variables):
    """Return a fit with these draws (chain, draw, ...), and more groups."""
    made = {}
    for name, values in variables.items():
        dims = [f"{name}_dim_{k}" for k in range(values.ndim - 2)]
        made[name] = (("chain", "draw", *dims), values)
    return xr.DataTree.from_dict({"posterior": xr.Dataset(made), **(groups or {})})


def center_and_se(result):
    order = np.argsort(result.names)
    return np.array([result.target.center, result.target.se])[:, order]


def losses_at(fit, model):
    """Return the losses of the observations, and the prior's, at a point that is none special."""
    criterion = pymc_fit(fit, model).criterion
    theta = np.linspace(-0.2, 0.3, criterion.p)[np.argsort(np.argsort(criterion.names))]
    return np.append(criterion.total.values(theta), criterion.value(theta))


def test_a_flat_scalar_is_a_prior():
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("mu"), 1.0, observed=Y)
    made = ef.calibrate(tree(mu=draws()), model=model, correction="HC0")
    expected = [[Y.mean()], [Y.std() / np.sqrt(N)]]
    np.testing.assert_allclose(center_and_se(made), expected)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_flat_priors_are_those_of_a_uniform_scale(shape):
    """Scalars, vectors, with a bound and without, beside a prior that is none."""

    def model(flat):
        with pm.Model() as made:
            a = pm.Flat("a", shape=shape) if flat else pm.Normal("a", 0, 1e8, shape=shape)
            s = pm.HalfFlat("s", shape=shape) if flat else pm.HalfNormal("s", 1e8, shape=shape)
            pm.Normal("y", a + pm.Normal("b", 0, 0.5) * X, s, observed=Y)
        return made

    given = tree(a=draws(*shape), b=draws(seed=1), s=np.exp(draws(*shape, seed=2)))
    made, proper = (ef.calibrate(given, model=model(flat)) for flat in (True, False))
    np.testing.assert_allclose(center_and_se(made), center_and_se(proper), rtol=1e-6)
    assert set(made.to_arviz()["posterior"]) == {"a", "b", "s"}


def test_flat_priors_of_a_hierarchical_model():
    with pm.Model() as model:
        u = pm.Normal("u", pm.Flat("m"), pm.HalfFlat("t"), shape=8)
        pm.Normal("y", u[GROUP], pm.HalfFlat("s"), observed=Y + 2 * GROUP)
    given = tree(m=draws(), u=draws(8), t=np.exp(draws(seed=1)), s=np.exp(draws(seed=2)))
    made = ef.calibrate(given, model=model)
    assert made.fit.latent == ("u",)
    means = (Y + 2 * GROUP).reshape(8, 5).mean(axis=1)
    assert made.target.center[0] == pytest.approx(means.mean())


def test_idle_parameters_are_named():
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        pm.Normal("idle")
        pm.Normal("y", b[1] * X, 1.0, observed=Y)
    given = tree(b=draws(3), idle=draws())
    for options in ({}, {"clusters": GROUP}, {"center": "mean"}):
        refused(
            "meat",
            "no observation has information on ['b[0]', 'b[2]', 'idle'], only the prior",
            lambda options=options: ef.calibrate(given, model=model, **options),
            kind=NotPositiveDefiniteError,
        )


def test_idle_parameters_without_a_prior_are_named():
    with pm.Model() as model:
        pm.Flat("idle")
        pm.Normal("y", pm.Normal("a"), 1.0, observed=Y)
    given = tree(a=draws(), idle=draws(seed=1))
    refused("loss", "do not depend on ['idle']", lambda: ef.calibrate(given, model=model))


def test_idle_parameters_of_a_hierarchical_model_are_named():
    """Only those: the scale of group effects speaks to the observations through the effects."""
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=8)
        t = pm.HalfNormal("t")
        pm.Normal("idle")
        pm.Normal("y", t * u[GROUP], pm.HalfNormal("s"), observed=Y + 2 * GROUP)
    given = {"u": draws(8), "t": np.exp(draws(seed=1)), "s": np.exp(draws(seed=2))}
    with pytest.raises(InputError, match=r"no observation has information on \['idle'\]"):
        ef.calibrate(tree(**given, idle=draws(seed=3)), model=model)


def regression(coords=None, several=False):
    """Return a model with data, a computed variable and dimensions, and a fit of it."""
    dims = None if coords is None else "obs"
    with pm.Model(coords=coords) as model:
        x, y = (pm.Data(name, value, dims=dims) for name, value in (("x", X), ("data", Y)))
        mu = pm.Deterministic("mu", pm.Normal("a") + pm.Normal("b") * x, dims=dims)
        s = pm.HalfNormal("s")
        pm.Normal("y", mu, s, observed=y, dims=dims)
        if several:
            pm.Normal("z", mu, 2 * s, observed=2 * Y, dims=dims)
    observed = {"y": Y, "z": 2 * Y} if several else {"y": Y}
    groups = {
        "observed_data": xr.Dataset(
            {name: (dims or f"{name}_dim_0", v) for name, v in observed.items()}
        ),
        "constant_data": xr.Dataset(
            {name: (dims or f"{name}_dim_0", v) for name, v in (("x", X), ("data", Y))}
        ),
    }
    return model, tree(groups, a=draws(), b=draws(seed=1), s=np.exp(draws(seed=2)))


def predict(model, fit, **options):
    """Draw predictions of a model as PyMC does, which changes the model."""
    with model:
        pm.sample_posterior_predictive(
            fit, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"}, **options
        )


def inference_data(fit):
    """Return a fit as the class that this version of PyMC takes and extends."""
    if pm.__version__.startswith("5."):
        from etafree.fits.trees import as_kind

        return as_kind(fit, "InferenceData")
    return fit


@pytest.mark.parametrize("several", [False, True])
def test_predictions_leave_the_answer_as_it_is(several):
    model, fit = regression({"obs": range(N)} if several else None, several)
    before = losses_at(fit, model)
    predicted = inference_data(fit)
    for options in ({}, {"extend_inferencedata": True}, {"predictions": True}):
        predict(model, predicted, **options)
        np.testing.assert_array_equal(losses_at(predicted, model), before)


def test_a_model_is_calibrated_after_its_predictions():
    model, fit = regression()
    predicted = inference_data(fit)
    predict(model, predicted, extend_inferencedata=True)
    made = ef.calibrate(predicted, model=model).to_arviz()
    assert set(made["posterior"]) == {"a", "b", "s"}
    assert set(made["log_likelihood"]) == {"y"}


def test_data_that_were_changed_must_be_put_back():
    model, fit = regression()
    before = losses_at(fit, model)
    for changed, name in (
        ({"x": X[:10], "data": Y[:10]}, "y"),
        ({"x": X[:10]}, "x"),
        ({"x": X[::-1]}, "x"),
    ):
        with model:
            pm.set_data(changed)
        refused(
            "model",
            f"has other data for {name} than the fit",
            lambda: ef.calibrate(fit, model=model),
        )
        with model:
            pm.set_data({"x": X, "data": Y})
    np.testing.assert_array_equal(losses_at(fit, model), before)


def test_what_cannot_be_evaluated_is_one_line():
    """Data of another length that the fit does not store, and random data."""
    model, fit = regression()
    with model:
        pm.set_data({"x": X[:10]})
    bare = tree(**{name: array.values for name, array in fit["posterior"].data_vars.items()})
    with pytest.raises(InputError, match=r"^model: cannot be evaluated \(\w+: .*put them back"):
        ef.calibrate(bare, model=model)
    some = pm.Minibatch(X, batch_size=10)
    with pm.Model() as random:
        pm.Normal("y", pm.Normal("a") + 0 * some, 1.0, observed=Y[:10])
    with pytest.raises(InputError, match=r"^model: cannot be evaluated"):
        ef.calibrate(tree(a=draws()), model=random)


def test_frozen_models_and_copies():
    from pymc.model.transform.optimization import freeze_dims_and_data

    model, fit = regression({"obs": range(N)})
    expected = losses_at(fit, model)
    for other in (freeze_dims_and_data(model), model.copy()):
        np.testing.assert_allclose(losses_at(fit, other), expected, rtol=1e-12)

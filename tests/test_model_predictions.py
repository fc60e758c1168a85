"""Predictions, comparisons and predictive checks of PyMC and Bambi fits, calibrated."""

from __future__ import annotations

import logging
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused, stored_fit

pm = pytest.importorskip("pymc")
bmb = pytest.importorskip("bambi")

N, GROUPS, CHAINS, DRAWS = 240, 12, 2, 500
RNG = np.random.default_rng(31)
TABLE = pd.DataFrame(
    {
        "x": RNG.standard_normal(N),
        "treated": np.where(RNG.random(N) < 0.5, "yes", "no"),
        "log_days": RNG.uniform(0.0, 1.0, N),
        "site": np.repeat([f"site {k:02d}" for k in range(GROUPS)], N // GROUPS),
    }
)
SITE = np.repeat(np.arange(GROUPS), N // GROUPS)
YES = (TABLE["treated"] == "yes").to_numpy(float)
LEVEL = 0.4 + 0.5 * TABLE["x"] - 0.3 * YES + TABLE["log_days"]
TABLE["count"] = RNG.poisson(np.exp(LEVEL + 0.3 * RNG.standard_normal(GROUPS)[SITE]))
TABLE["y"] = LEVEL + RNG.standard_normal(GROUPS)[SITE] + RNG.standard_normal(N)
NEW = {"x": [0.0, 1.0, 1.0], "treated": ["no", "no", "yes"], "log_days": [0.0, 0.5, 1.0]}
COLUMNS = ["estimate", "se", "lower", "upper"]
CODES = {"yes": 1, "no": 0}


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    logging.getLogger("pymc").setLevel(logging.ERROR)


def fit_about(**centers):
    """Return a fit of the installed ArviZ with draws about these centres, (chain, draw, ...)."""
    rng = np.random.default_rng(5)
    draws = {
        name: center + spread * rng.standard_normal((CHAINS, DRAWS, *np.shape(center)))
        for name, (center, spread) in centers.items()
    }
    return stored_fit({"posterior": draws})


@pytest.fixture(scope="module")
def formula():
    """The same regression without a prior, from a formula."""
    criterion = ef.Criterion.from_formula(
        "count ~ x + treated", TABLE, ef.losses.Poisson(), offset="log_days"
    )
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    return ef.calibrate(ef.sample(posterior, 1000, seed=1), posterior, clusters="site")


def poisson_model():
    with pm.Model() as model:
        x, days = pm.Data("x", TABLE["x"]), pm.Data("log_days", TABLE["log_days"])
        treated = pm.Data("treated", YES.astype(int))
        a, b, change = pm.Flat("a"), pm.Flat("b"), pm.Flat("change")
        effects = pm.math.stack([pm.math.zeros_like(change), change])
        mu = pm.Deterministic("mu", pm.math.exp(a + b * x + effects[treated] + days))
        pm.Poisson("count", mu, observed=TABLE["count"])
    return model


@pytest.fixture(scope="module")
def counts():
    """A PyMC model, its fit and its calibration."""
    model = poisson_model()
    fit = fit_about(a=(0.4, 0.1), b=(0.5, 0.05), change=(-0.3, 0.1))
    return model, ef.calibrate(fit, model=model, clusters=TABLE["site"])


@pytest.fixture(scope="module")
def bambi_counts():
    """A Bambi model, its fit and its calibration."""
    flat = {name: bmb.Prior("Flat") for name in ("Intercept", "x", "treated")}
    model = bmb.Model(
        "count ~ x + treated + offset(log_days)", TABLE, family="poisson", priors=flat
    )
    model.build()
    fit = fit_about(Intercept=(0.4, 0.1), x=(0.5, 0.05), treated=(np.array([-0.3]), 0.1))
    return model, ef.calibrate(fit, model=model, clusters="site")


def of_pymc(table):
    return {**table, "treated": [CODES[label] for label in table["treated"]]}


def test_predictions_are_those_of_the_same_formula(formula, counts, bambi_counts):
    new = pd.DataFrame(NEW)
    known = formula.predict(new, offset=NEW["log_days"], kind="wald")
    for result, rows in ((counts[1], of_pymc(NEW)), (bambi_counts[1], new)):
        made = result.predict(rows, kind="wald")
        np.testing.assert_allclose(made[["estimate", "se"]], known[["estimate", "se"]], rtol=1e-5)
        drawn = result.predict(rows)
        np.testing.assert_allclose(drawn[["estimate", "se"]], made[["estimate", "se"]])
        off = (drawn - made)[["lower", "upper"]].div(made["se"], axis=0).abs().to_numpy().max()
        assert off < 0.4  # quantiles of 1,000 draws
        own = result.average_predictions(kind="wald")
        whole = formula.average_predictions(kind="wald")
        np.testing.assert_allclose(own, whole, rtol=1e-5)
    made = bambi_counts[1].predict(new, kind="wald")
    np.testing.assert_allclose(made, known, rtol=1e-5)  # limits by way of the link too
    link = bambi_counts[1].predict(new, scale="link", kind="wald")
    np.testing.assert_allclose(np.exp(link[["lower", "upper"]]), made[["lower", "upper"]])


def test_comparisons_and_slopes_are_those_of_the_same_formula(formula, counts, bambi_counts):
    asked = {"x": (0, 1), "treated": ("no", "yes")}
    known = formula.comparisons(asked, kind="wald")
    made = bambi_counts[1].comparisons(asked, kind="wald")
    assert made.index.tolist() == known.index.tolist()
    np.testing.assert_allclose(made, known, rtol=1e-4)
    codes = counts[1].comparisons({"x": (0, 1), "treated": (0, 1)}, kind="wald")
    np.testing.assert_allclose(codes, known, rtol=1e-4)
    known = formula.slopes("x", by="treated", kind="wald")
    for result in (counts[1], bambi_counts[1]):
        made = result.slopes("x", by="treated", kind="wald")
        np.testing.assert_allclose(made, known, rtol=1e-4)
    every = counts[1].comparisons()  # codes go from one to the next, numbers by one
    assert set(every.index) == {("x", "+1"), ("log_days", "+1"), ("treated", "1 - 0")}
    assert set(bambi_counts[1].comparisons().index) == {
        ("x", "+1"),
        ("log_days", "+1"),
        ("treated", "yes - no"),
    }


def test_draws_of_predictions_are_those_of_the_packages(counts, bambi_counts):
    model, result = counts
    calibrated, rows = result.to_arviz(), of_pymc(NEW)
    with model:
        before = {name: model[name].get_value() for name in rows}
        pm.set_data(rows)
        own = pm.sample_posterior_predictive(
            calibrated, var_names=["mu"], predictions=True, random_seed=1, progressbar=False
        )
        pm.set_data(before)
    known = np.quantile(own["predictions"]["mu"], [0.025, 0.975], axis=(0, 1)).T
    for variable in ("mu", "count", None):  # the mean of a count is mu
        made = result.predict(rows, variable=variable)
        np.testing.assert_allclose(made[["lower", "upper"]], known)
    model, result = bambi_counts
    idata = result.to_arviz()
    model.predict(idata, data=pd.DataFrame(NEW))
    known = np.quantile(idata["posterior"]["mu"], [0.025, 0.975], axis=(0, 1)).T
    np.testing.assert_allclose(result.predict(pd.DataFrame(NEW))[["lower", "upper"]], known)


def test_a_model_s_data_may_change_after_the_calibration(counts):
    model, result = counts
    before = result.predict()
    with model:
        pm.set_data({"x": np.zeros(3), "log_days": np.zeros(3), "treated": [0, 1, 0]})
    try:
        pd.testing.assert_frame_equal(result.predict(), before)
        one = result.predict({"x": 0.0})  # what is not named stays as it was
        assert len(one) == N
    finally:
        with model:
            pm.set_data(
                {"x": TABLE["x"], "log_days": TABLE["log_days"], "treated": YES.astype(int)}
            )


def test_tables_of_any_kind_are_new_data(counts, bambi_counts):
    polars = pytest.importorskip("polars")
    for result, rows in ((counts[1], of_pymc(NEW)), (bambi_counts[1], NEW)):
        known = result.predict(pd.DataFrame(rows, index=["p", "q", "r"]))
        assert known.index.tolist() == ["p", "q", "r"]
        made = result.predict(polars.DataFrame(rows))
        np.testing.assert_array_equal(made, known)


def test_what_no_model_predicts_is_refused(counts, bambi_counts, formula, tmp_path):
    result, rows = counts[1], of_pymc(NEW)
    refused("newdata", "lacks ['log_days', 'treated']", lambda: result.predict({"x": [0.0]}))
    refused("newdata", "names ['z']", lambda: result.predict({**rows, "z": [1.0]}))
    refused("newdata", "lengths", lambda: result.predict({**rows, "x": [0.0]}))
    refused("newdata", "out of bounds", lambda: result.predict({**rows, "treated": [0, 1, 2]}))
    refused("newdata", "not of type int", lambda: result.predict({**rows, "treated": [0, 1, 0.5]}))
    refused("newdata", "not finite", lambda: result.predict({**rows, "x": [0.0, 1.0, np.nan]}))
    refused("newdata", "is a ndarray", lambda: result.predict(np.ones(3)))
    refused("variable", "choose from count, mu", lambda: result.predict(variable="nu"))
    refused("scale", "is not known", lambda: result.predict(scale="link"))
    refused("offset", "is in the model", lambda: result.predict(rows, offset=1.0))
    refused("group_effects", "not part", lambda: result.predict(group_effects=False))
    refused("variables", "has no slope", lambda: result.slopes("treated"))
    refused("by", "name columns", lambda: result.average_predictions("site"))
    result, new = bambi_counts[1], pd.DataFrame(NEW)
    refused("newdata", "lacks ['x']", lambda: result.predict(new[["treated", "log_days"]]))
    refused("newdata", "taken by Bambi", lambda: result.predict(new.assign(treated="maybe")))
    refused("newdata", "in 1 row;", lambda: result.predict(new.assign(x=[0.0, np.nan, 1.0])))
    pd.testing.assert_frame_equal(result.predict(NEW), result.predict(new))
    refused("newdata", "is a list", lambda: result.predict([NEW]))
    refused("variable", "choose from mu", lambda: result.predict(variable="sigma"))
    refused("group_effects", "are none", lambda: result.predict(group_effects=True))
    refused("variable", "is of models", lambda: formula.predict(variable="mu"))
    refused("group_effects", "is of models", lambda: formula.predict(group_effects=True))
    refused("model", "pickled", lambda: pickle.loads(pickle.dumps(bambi_counts[1])).predict())
    saved = ef.Calibration.load(counts[1].save(tmp_path / "result.npz"))
    refused("predict", "a saved result has no data and no model", saved.predict)


def test_a_pickled_pymc_result_predicts(counts):
    again = pickle.loads(pickle.dumps(counts[1]))
    pd.testing.assert_frame_equal(again.predict(of_pymc(NEW)), counts[1].predict(of_pymc(NEW)))


@pytest.fixture(scope="module")
def sites():
    """The same hierarchical model in PyMC and Bambi, calibrated."""
    draws = {"Intercept": (0.9, 0.3), "x": (0.5, 0.07), "sigma": (1.0, 0.05)}
    model = bmb.Model("y ~ x + (1|site)", TABLE, noncentered=False)
    model.build()
    fit = fit_about(**draws, **{"1|site_sigma": (1.0, 0.1), "1|site": (np.zeros(GROUPS), 0.5)})
    bambi = ef.calibrate(fit, model=model)
    priors = {rv.name: rv for rv in model.backend.model.free_RVs}
    assert {"Intercept", "x", "sigma", "1|site_sigma", "1|site"} == set(priors)
    with pm.Model() as own:
        x, code = pm.Data("x", TABLE["x"]), pm.Data("site", SITE)
        a, b = pm.Normal("a", 0, 50), pm.Normal("b", 0, 50)
        tau, sigma = pm.HalfNormal("tau", 50), pm.HalfNormal("sigma", 50)
        u = pm.Normal("u", 0, tau, shape=GROUPS)
        typical = pm.Deterministic("typical", a + b * x)
        pm.Normal("y", typical + u[code], sigma, observed=TABLE["y"])
    draws = {"a": (0.9, 0.3), "b": (0.5, 0.07), "tau": (1.0, 0.1), "sigma": (1.0, 0.05)}
    fit = fit_about(**draws, u=(np.zeros(GROUPS), 0.5), typical=(np.zeros(N), 1.0))
    return own, ef.calibrate(fit, model=own), model, bambi


def shrunk(intercept, slope, tau, sigma):
    """Return the means of the sites' effects, given the parameters and the data."""
    residuals = TABLE["y"] - intercept - slope * TABLE["x"]
    size = N // GROUPS
    return residuals.groupby(SITE).mean() * size * tau**2 / (sigma**2 + size * tau**2)


def test_groups_are_predicted_with_their_effects(sites):
    _, own, _, bambi = sites
    new = pd.DataFrame({"x": [0.0, 1.0], "site": ["site 03", "site 07"]})
    for result, rows, names in (
        (own, {"x": [0.0, 1.0], "site": [3, 7]}, ("a", "b", "tau", "sigma")),
        (bambi, new, ("Intercept", "x", "1|site_sigma", "sigma")),
    ):
        values = result.params[list(names)]
        effects = shrunk(*values)
        known = values.iloc[0] + values.iloc[1] * np.array([0.0, 1.0]) + effects.loc[[3, 7]]
        made = result.predict(rows)
        off = (made["estimate"] - known.to_numpy()) / (made["se"] / np.sqrt(CHAINS * DRAWS))
        assert off.abs().max() < 6  # the centre's image, not the mean's, is exact
        assert made["se"].between(0.15, 0.5).all()
        refused("kind", "effects are drawn", partial(result.predict, rows, kind="wald"))
        slope = result.comparisons("x")
        assert slope["estimate"].iloc[0] == pytest.approx(
            values.iloc[1], abs=0.1 * slope["se"].iloc[0]
        )
        assert slope["p"].iloc[0] < 0.01


def test_a_typical_group_is_predicted_by_the_delta_method(sites):
    _, own, _, bambi = sites
    x = np.array([0.0, 2.0])
    for result, names, made in (
        (own, ["a", "b"], own.predict({"x": x}, variable="typical", kind="wald")),
        (
            bambi,
            ["Intercept", "x"],
            bambi.predict(pd.DataFrame({"x": x}), group_effects=False, kind="wald"),
        ),
    ):
        rows = np.column_stack([np.ones(2), x])
        known = rows @ result.params[names]
        variance = rows @ result.cov_params().loc[names, names].to_numpy() @ rows.T
        np.testing.assert_allclose(made["estimate"], known, rtol=1e-8)
        np.testing.assert_allclose(made["se"], np.sqrt(np.diagonal(variance)), rtol=1e-5)
    refused("group_effects", "cannot be left out", lambda: own.predict(group_effects=False))
    new = pd.DataFrame({"x": [0.0], "site": ["elsewhere"]})
    refused("newdata", "group_effects=False", lambda: bambi.predict(new))
    assert len(bambi.predict(new, group_effects=False)) == 1


def test_one_value_per_observation_is_no_row_of_a_table(sites):
    own = sites[1]
    assert own.params.index.tolist() == ["a", "b", "tau", "sigma"]
    typical = own.of(lambda t: t["typical"][..., 0] - t["a"] - t["b"] * TABLE["x"][0])
    assert float(typical.estimate) == pytest.approx(0.0, abs=1e-10)


@pytest.mark.filterwarnings("ignore:Cannot cache compiled function")  # of PyTensor 3's random draws
def test_posterior_predictive_checks_take_calibrated_draws(sites, counts):
    model, own, bambi_model, bambi = sites
    settings = {"random_seed": 1, "progressbar": False}
    with model:
        same = pm.sample_posterior_predictive(own.to_arviz(group_effects=True, seed=3), **settings)
        other = pm.sample_posterior_predictive(own.to_arviz(), **settings)  # of other groups
    same, other = (d["posterior_predictive"]["y"].values.reshape(-1, N) for d in (same, other))
    means = TABLE["y"].groupby(SITE).mean()
    near, far = (
        np.abs(pd.DataFrame(d.T).groupby(SITE).mean().sub(means, axis=0)).mean(axis=None)
        for d in (same, other)
    )
    assert near < 0.6 < far
    idata = bambi.to_arviz(group_effects=True, seed=3)
    bambi_model.predict(idata, kind="response", random_seed=1)
    made = idata["posterior_predictive"]["y"].values.reshape(-1, N)
    assert np.abs(made.mean(axis=0) - same.mean(axis=0)).max() < 0.3
    model, result = counts
    with model:
        drawn = pm.sample_posterior_predictive(result.to_arviz(), **settings)
    zeros = (drawn["posterior_predictive"]["count"] == 0).mean().item()
    assert zeros == pytest.approx(np.exp(-result.predict()["estimate"]).mean(), abs=0.02)
    refused("group_effects", "without a model", lambda: result.to_arviz(group_effects=True))


def test_columns_of_a_matrix_of_data_are_variables():
    """Predictors in one pm.Data, as a design: they move one at a time."""
    X = np.column_stack([YES, TABLE["x"]])
    with pm.Model(coords={"term": ["treated", "x"]}) as model:
        design = pm.Data("X", X, dims=("row", "term"))
        mu = pm.math.exp(pm.Flat("a") + design @ pm.Flat("b", dims="term") + TABLE["log_days"])
        pm.Poisson("count", mu, observed=TABLE["count"])
    fit = fit_about(a=(0.4, 0.1), b=(np.array([-0.3, 0.5]), 0.05))
    result = ef.calibrate(fit, model=model, clusters=TABLE["site"])
    made = result.comparisons(kind="wald")
    assert made.index.tolist() == [("X[treated]", "1 - 0"), ("X[x]", "+1")]
    for name, high, low in (("X[treated]", [1, None], [0, None]), ("X[x]", None, None)):
        rows = [X.copy(), X.copy()]
        if high is None:
            rows[0][:, 1] += 1
        else:
            rows[0][:, 0], rows[1][:, 0] = high[0], low[0]
        averages = [result.average_predictions(newdata={"X": x})["estimate"].iloc[0] for x in rows]
        assert made.loc[name, "estimate"].iloc[0] == pytest.approx(averages[0] - averages[1])
    assert result.slopes("X[x]").index.tolist() == [("X[x]", "slope")]
    by = result.average_predictions(by="X[treated]")
    assert by.index.tolist() == [0.0, 1.0]
    table = pd.DataFrame(X, columns=["X[treated]", "X[x]"])
    np.testing.assert_allclose(result.predict(table), result.predict())
    refused("newdata", "lacks", lambda: result.predict(table[["X[x]"]].head(2)))

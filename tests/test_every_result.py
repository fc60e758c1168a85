"""Every public method of a result runs on the output of every sampler and every kind of input.

Methods, properties, samplers and packages are found, not listed: a new one without a row fails.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import etafree as ef
import test_portable
import test_stan
from conftest import stored_fit
from etafree.data.pytrees import import_jax
from etafree.fits import ADAPTERS
from etafree.fits.stan import pystan_fit
from etafree.samplers import SAMPLERS

RNG = np.random.default_rng(8)
N = 60
X = np.ones((N, 1))
Y = 1.0 + RNG.standard_t(4, N)
SCHOOL = np.repeat(np.arange(15), 4)


def posterior():
    loss = ef.losses.StudentT(4.0, scale=1.0)
    prior = ef.LogPrior.normal(np.zeros(1), 100.0 * np.eye(1))
    return ef.GeneralizedPosterior(ef.Criterion(loss, (X, Y)), 0.5, prior)


def sampled(sampler):
    post = posterior()
    return ef.calibrate(ef.sample(post, 400, 1, sampler), post, clusters=SCHOOL)


def drawn():
    return 1.0 + 0.2 * RNG.standard_normal((4, 200, 1))


def stored(kind):
    draws = drawn()
    likelihood = -0.5 * np.square(Y - draws)
    if kind == "arviz":
        return stored_fit({"posterior": {"b": draws}, "log_likelihood": {"y": likelihood}})
    import xarray as xr

    dims = ("chain", "draw")
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"b": ((*dims, "k"), draws)}),
            "log_likelihood": xr.Dataset({"y": ((*dims, "i"), likelihood)}),
        }
    )


def cmdstan(folder):
    paths = [folder / f"fit-{chain}.csv" for chain in range(2)]
    for chain, path in enumerate(paths):
        path.write_text(test_stan.text(chain))
    return ef.calibrate(paths, clusters=np.arange(test_stan.N) // 4)


def pystan(_):
    _, free, log_likelihood = test_stan.normal_and_categorical()
    fit = pystan_fit(test_stan.FakeFit(free, log_likelihood), var_names=["a", "b"])
    return ef.calibrate(fit, clusters=np.arange(test_stan.N) // 4)


def portable(kind):
    return lambda _: test_portable.MAKERS[kind]()


def of_loss(loss, data, clusters=SCHOOL, **options):
    """Return the result of a criterion, drawn about its minimum."""
    criterion = ef.Criterion(loss, data, **options)
    center = ef.minimise(criterion).theta
    draws = center + 0.1 * RNG.standard_normal((4, 100, len(center)))
    return ef.calibrate(draws, criterion, eta=1.0, clusters=clusters)


def sparse(penalty):
    columns = RNG.standard_normal((N, 3))
    criterion = ef.Criterion(ef.losses.Squared(), (columns, 2 * columns[:, 0] + Y), penalty)
    post = ef.GeneralizedPosterior(criterion, 0.5)
    return ef.calibrate(ef.sample(post, 400, 1), post, clusters=SCHOOL)


def log_cosh(theta, row):
    jnp = import_jax().numpy
    return jnp.log(jnp.cosh(row["y"] - theta["mu"]))


def loaded(folder):
    return ef.Calibration.load(sampled("importance").save(folder / "stored.npz"))


#: A result of each kind, from a folder for files.
RESULTS = {
    **{name: lambda _, name=name: sampled(name) for name in SAMPLERS},
    "array": lambda _: ef.calibrate(drawn()[0], posterior().criterion, clusters=SCHOOL),
    "chains": lambda _: ef.calibrate(drawn(), posterior().criterion, eta=0.5, clusters=SCHOOL),
    "covariance": lambda _: ef.calibrate(drawn(), center=[1.0], covariance=[[0.1]]),
    "loaded": loaded,
    "lasso": lambda _: sparse(ef.penalties.L1(0.4)),
    "slope": lambda _: sparse(ef.penalties.Slope(0.4)),
    "jax": lambda _: of_loss(ef.JaxLoss(log_cosh), {"y": Y}, start={"mu": 0.0}),
    "pairs": lambda _: of_loss(ef.Wilcoxon(), (RNG.standard_normal((N, 1)), Y)),
    "xarray": lambda _: ef.calibrate(stored("xarray"), clusters=SCHOOL),
    "arviz": lambda _: ef.calibrate(stored("arviz"), clusters=SCHOOL),
    "cmdstanpy": cmdstan,
    "stan": pystan,
    "hierarchical": portable("hierarchical"),
    **{name: portable(name) for name in ("numpyro", "pymc", "bambi")},
}

#: How each public method is called, and on which results it has nothing to answer.
CALLS = {
    "summary": lambda r, folder: (r.summary(), r.summary(var_names=r.shown.names[0])),
    "interval": lambda r, folder: (r.interval(), r.interval(0.5, "wald")),
    "conf_int": lambda r, folder: r.conf_int(0.1),
    "cov_params": lambda r, folder: r.cov_params(),
    "region": lambda r, folder: r.region().contains(r.map.offset),
    "test": lambda r, folder: r.test([r.target.names[0]]),
    "wild_bootstrap": lambda r, folder: r.wild_bootstrap(r.target.names[0], draws=99),
    "bootstrap_t": lambda r, folder: (r.bootstrap_t(draws=99), r.interval(kind="bootstrap-t")),
    "skewed_draws": lambda r, folder: r.skewed_draws(draws=99),
    "corrections": lambda r, folder: r.corrections(draws=99),
    "coverage_check": lambda r, folder: r.coverage_check(50),
    "with_dependence": lambda r, folder: r.with_dependence(correction=None),
    "cluster_table": lambda r, folder: r.cluster_table(),
    "group_effects": lambda r, folder: r.group_effects(),
    "predict": lambda r, folder: r.predict(level=0.5),
    "average_predictions": lambda r, folder: (
        r.average_predictions(),
        r.average_predictions(level=0.5),
    ),
    "comparisons": lambda r, folder: r.comparisons(),
    "slopes": lambda r, folder: r.slopes(),
    "tic": lambda r, folder: r.tic(),
    "of": lambda r, folder: (
        (f := r.of(lambda t: t[r.shown.names[0]])).interval() + f.test().p_value
    ),
    "details": lambda r, folder: r.details().index("spread: "),
    "diagnostics": lambda r, folder: r.diagnostics(),
    "flags": lambda r, folder: r.flags(),
    "paper": lambda r, folder: r.paper(),
    "plot": lambda r, folder: r.plot(".", filter_vars="regex"),
    "report": lambda r, folder: r.report(folder / "page.html"),
    "to_arviz": lambda r, folder: r.to_arviz(),
    "save": lambda r, folder: r.save(folder / "result.npz"),
    "load": lambda r, folder: ef.Calibration.load(r.save(folder / "again.npz")),
}
CONTRASTS = {"comparisons", "slopes"}
PREDICTIONS = {"predict", "average_predictions", *CONTRASTS}
RESAMPLED = {"bootstrap_t", "skewed_draws", "coverage_check"}
CLUSTERED = {"wild_bootstrap", "cluster_table"}
WITHOUT_CRITERION = {*PREDICTIONS, *RESAMPLED, *CLUSTERED, "corrections", "tic", "group_effects"}
#: What each kind of result has nothing to answer to, and says so.
REFUSED = {
    **{kind: {"group_effects"} for kind in (*SAMPLERS, "array", "chains", "lasso", "slope")},
    **{kind: {*WITHOUT_CRITERION, "paper"} for kind in ("xarray", "arviz", "cmdstanpy", "stan")},
    "covariance": {*WITHOUT_CRITERION, "paper", "with_dependence"},
    "loaded": {*WITHOUT_CRITERION, "with_dependence"},
    "jax": {*PREDICTIONS, "coverage_check", "group_effects"},
    "pairs": {*PREDICTIONS, "coverage_check", "group_effects", "tic"},
    "numpyro": {*PREDICTIONS, *CLUSTERED, "coverage_check", "group_effects"},  # without clusters
    "hierarchical": {*CONTRASTS, *CLUSTERED, "coverage_check"},  # its data are no pm.Data
    "pymc": {*CONTRASTS, "coverage_check", "group_effects"},
    "bambi": {"coverage_check", "group_effects"},
}


def public():
    """Return what a result offers, methods and the rest apart."""
    names = {name for name in dir(ef.Calibration) if not name.startswith("_")}
    methods = {name for name in names if callable(getattr(ef.Calibration, name))}
    return methods, names - methods


def test_every_public_method_sampler_and_package_is_called():
    assert public()[0] == set(CALLS)
    assert set(RESULTS) >= {*SAMPLERS, *ADAPTERS}
    assert set(REFUSED) == set(RESULTS)


@pytest.mark.parametrize("kind", RESULTS)
def test_every_method_runs(kind, tmp_path):
    result = RESULTS[kind](tmp_path)
    assert repr(result)
    assert result._repr_html_()
    for name in public()[1]:
        getattr(result, name)
    refused = set()
    for name, call in CALLS.items():
        try:
            call(result, tmp_path)
        except ef.errors.InputError:
            refused.add(name)
    assert refused == REFUSED[kind]


@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind not in test_portable.MAKERS])
def test_every_result_pickles_and_copies(kind, tmp_path):
    result = RESULTS[kind](tmp_path)
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        pd.testing.assert_frame_equal(again.summary(), result.summary(), rtol=1e-12)
        assert again.flags() == result.flags()
        np.testing.assert_array_equal(again.draws.array, result.draws.array)


@pytest.mark.parametrize("name", ["normal", "from_penalty"])
def test_log_priors_pickle(name):
    prior = (
        ef.LogPrior.normal([1.0, 0.0], np.eye(2))
        if name == "normal"
        else ef.LogPrior.from_penalty(ef.penalties.Ridge(0.5), 2)
    )
    again, at = pickle.loads(pickle.dumps(prior)), np.array([0.3, -0.4])
    assert again.value(at, 5.0) == prior.value(at, 5.0)
    np.testing.assert_array_equal(again.gradient(at, 5.0), prior.gradient(at, 5.0))
    np.testing.assert_array_equal(again.hessian(at, 5.0), prior.hessian(at, 5.0))


def test_what_a_result_holds_prints_on_one_line():
    result = sampled("importance")
    held = [
        result.draws,
        result.original,
        result.target,
        result.map,
        result.posterior,
        result.criterion,
        result.dependence,
        result.region(),
        result.test(result.names[0]),
        result.tic(),
        result.wild_bootstrap(result.names[0], draws=99),
        result.of(lambda t: t[result.names[0]] ** 2, "square"),
        ef.minimise(result.criterion),
        ef.losses.Huber(),
        ef.penalties.Ridge(0.5),
        ef.LogPrior.normal(np.zeros(1), np.eye(1)),
        ef.from_arviz(stored("arviz")),
        ef.Map(),
    ]
    for thing in held:
        text = repr(thing)
        assert "\n" not in text, text
        assert len(text) < 200, text
        assert text.startswith(type(thing).__name__), text

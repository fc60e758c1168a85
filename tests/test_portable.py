"""Results of models pickle and copy, and answer as before."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import etafree as ef

N = 40
GROUP = np.repeat(np.arange(8), 5)
Y = np.random.default_rng(2).standard_normal(N) + np.random.default_rng(3).standard_normal(8)[GROUP]


def chains(*shape):
    return 0.5 + 0.2 * np.abs(np.random.default_rng(sum(shape)).standard_normal((2, 150, *shape)))


def tree(**variables):
    import xarray as xr

    data = {name: (("chain", "draw", *(f"{name}_{k}" for k in range(a.ndim - 2))), a)
            for name, a in variables.items()}  # fmt: skip
    return xr.DataTree.from_dict({"posterior": xr.Dataset(data)})


def pymc_result(hierarchical):
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        if hierarchical:
            tau = pm.HalfNormal("tau", 2.0)
            u = pm.Normal("u", 0.0, tau, shape=8)
            pm.Normal("y", mu + u[GROUP], sigma, observed=Y)
            return ef.calibrate(
                tree(mu=chains(), sigma=chains(1)[..., 0], tau=chains(2)[..., 0], u=chains(8)),
                model=model,
            )
        pm.Normal("y", mu, sigma, observed=Y)
    return ef.calibrate(tree(mu=chains(), sigma=chains(1)[..., 0]), model=model, clusters=GROUP)


def numpyro_result():
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions as dist

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    draws = tree(mu=chains(), sigma=chains(1)[..., 0])
    return ef.calibrate(draws, model=model, model_args=(Y,))


@pytest.mark.parametrize("kind", ["pymc", "hierarchical", "numpyro"])
def test_a_model_s_result_pickles_and_copies(kind):
    result = numpyro_result() if kind == "numpyro" else pymc_result(kind == "hierarchical")
    at = result.target.center + 0.1
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.summary().equals(result.summary())
        assert again.criterion.value(at) == pytest.approx(result.criterion.value(at), rel=1e-12)
        np.testing.assert_allclose(again.criterion.gradient(at), result.criterion.gradient(at))
        one, other = again.to_arviz()["posterior"], result.to_arviz()["posterior"]
        for name in ("mu", "sigma"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-12)
    assert again.flags() == result.flags()

"""Results of models pickle, copy and save, and answer as before."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused

N = 40
GROUP = np.repeat(np.arange(8), 5)
Y = np.random.default_rng(2).standard_normal(N) + np.random.default_rng(3).standard_normal(8)[GROUP]


def chains(*shape):
    return 0.5 + 0.2 * np.abs(np.random.default_rng(sum(shape)).standard_normal((2, 150, *shape)))


def tree(**variables):
    import xarray as xr

    data = {
        name: (("chain", "draw", *(f"{name}_{k}" for k in range(a.ndim - 2))), a)
        for name, a in variables.items()
    }
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
    return ef.calibrate(ef.from_numpyro(draws, model, args=(Y,)))


def bambi_result():
    bmb = pytest.importorskip("bambi")
    x = np.random.default_rng(4).standard_normal(N)
    frame = pd.DataFrame({"y": Y, "x": x, "group": GROUP})
    model = bmb.Model("y ~ x", frame)
    model.build()
    draws = tree(Intercept=chains(), x=chains(1)[..., 0], sigma=chains(2)[..., 0])
    return ef.calibrate(draws, model=model, clusters="group")


MAKERS = {
    "pymc": lambda: pymc_result(False),
    "hierarchical": lambda: pymc_result(True),
    "numpyro": numpyro_result,
    "bambi": bambi_result,
}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def result(request):
    return MAKERS[request.param]()


def test_a_model_s_result_pickles_and_copies(result):
    at = result.target.center + 0.1
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.summary().equals(result.summary())
        assert again.criterion.value(at) == pytest.approx(result.criterion.value(at), rel=1e-12)
        np.testing.assert_allclose(again.criterion.gradient(at), result.criterion.gradient(at))
        one, other = again.to_arviz()["posterior"], result.to_arviz()["posterior"]
        assert list(one) == list(other)
        for name in other:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-12)
    assert again.flags() == result.flags()


def test_a_saved_result_has_the_model_s_own_variables(result, tmp_path):
    saved = ef.Calibration.load(result.save(tmp_path / "result"))
    twice = ef.Calibration.load(saved.save(tmp_path / "again"))
    table, expected = result.summary(), result.to_arviz()
    square = result.of(lambda t: t["sigma"] ** 2)
    assert "sigma" in table.index
    for again in (saved, twice, pickle.loads(pickle.dumps(saved)), copy.deepcopy(saved)):
        assert again.summary().equals(table)
        made = again.to_arviz()
        assert list(made["posterior"]) == list(expected["posterior"])
        for name in expected["posterior"]:
            for group in ("posterior", "original_posterior"):
                np.testing.assert_allclose(made[group][name], expected[group][name], rtol=1e-12)
        same = again.of(lambda t: t["sigma"] ** 2)
        np.testing.assert_array_equal(same.draws, square.draws)
        assert same.estimate == square.estimate
    assert repr(saved) == repr(result)
    assert len(saved.plot(["sigma"]).axes) == 1
    assert saved.report(tmp_path / "page.html").exists()
    refused("model", "is not in the file", lambda: saved.fit.constrain(saved.draws.array + 1))


def test_a_saved_result_keeps_dimensions_and_what_was_filled_in(tmp_path):
    """Entries of a correlation matrix that are constant or copies, along dates and names."""
    import xarray as xr

    rho = 0.1 * chains()
    one = np.ones_like(rho)
    matrix = np.stack([one, rho, rho, one], axis=-1).reshape(*rho.shape, 2, 2)
    coords = {"day": np.array(["2020-01-01", "2020-01-02"], "M8[ns]"), "who": ["a", "b"]}
    posterior = xr.Dataset({"r": (("chain", "draw", "day", "who"), matrix)}, coords)
    losses = {"y": (("chain", "draw", "obs"), 0.5 * np.square(Y - rho[..., None]) - 1.0)}
    fit = xr.DataTree.from_dict({"posterior": posterior, "log_likelihood": xr.Dataset(losses)})
    made = ef.calibrate(ef.from_arviz(fit, latent=None))
    saved = ef.Calibration.load(made.save(tmp_path / "result"))
    assert saved.summary().equals(made.summary())
    out, expected = (r.to_arviz()["posterior"].to_dataset() for r in (saved, made))
    xr.testing.assert_allclose(out, expected)
    xr.testing.assert_equal(out["day"].drop_attrs(), expected["day"].drop_attrs())
    assert "draw" not in out.coords


def test_a_saved_result_keeps_the_numbers_of_chains_and_draws(tmp_path):
    """Draws 100, 102, … of chains 3 and 7, as a thinned fit has them."""
    import xarray as xr

    rho = 0.1 * chains()
    coords = {"chain": [3, 7], "draw": 100 + 2 * np.arange(rho.shape[1])}
    matrix = np.stack([rho, rho], axis=-1)
    posterior = xr.Dataset({"r": (("chain", "draw", "k"), matrix)}, coords)
    losses = {"y": (("chain", "draw", "obs"), 0.5 * np.square(Y - rho[..., None]) - 1.0)}
    likelihood = xr.Dataset(losses, coords)
    tree = xr.DataTree.from_dict({"posterior": posterior, "log_likelihood": likelihood})
    made = ef.calibrate(ef.from_arviz(tree, latent=None))
    saved = ef.Calibration.load(made.save(tmp_path / "result"))
    out, expected = (r.to_arviz()["posterior"].to_dataset() for r in (saved, made))
    xr.testing.assert_allclose(out, expected)
    assert [*out["chain"].values] == [3, 7]


def test_damaged_variables_are_refused(tmp_path):
    path = MAKERS["pymc"]().save(tmp_path / "result.npz")
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "own_0_after"}
    np.savez(path, **arrays)
    refused("path", "", lambda: ef.Calibration.load(path))


def test_a_model_that_does_not_pickle_says_so(tmp_path):
    from etafree.fits import Recipe

    pytest.importorskip("cloudpickle")
    with open(tmp_path / "log", "w") as file:
        recipe = Recipe(tree, None, lambda: file.write("x"), {})
        refused("model", "does not pickle", lambda: pickle.dumps(recipe))

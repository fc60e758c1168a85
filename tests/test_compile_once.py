"""What is compiled of a model is compiled once, and never served for other data."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import etafree as ef
from etafree.report import kinds

jax = pytest.importorskip("jax")
pm = pytest.importorskip("pymc")
xr = pytest.importorskip("xarray")

RNG = np.random.default_rng(3)
GROUPS = np.repeat(np.arange(12), 5)
Y = RNG.standard_normal(60) + 0.8 * RNG.standard_normal(12)[GROUPS]
COUNTS = RNG.poisson(np.exp(0.4 + 0.6 * RNG.standard_normal(12)[GROUPS]))
COMPILED: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _listener():
    def listen(event: str, seconds: float, **about: object) -> None:
        if event.endswith("backend_compile_duration"):
            COMPILED.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)


@contextmanager
def nothing_compiled():
    before = len(COMPILED)
    yield
    assert COMPILED[before:] == []


def tree_of(seed: int = 0, **means: float | list[float]) -> object:
    """Return draws around these values, a hundredth wide on the scale of logarithms or numbers."""
    rng, data = np.random.default_rng(seed), {}
    for name, mean in means.items():
        noise = 0.05 * rng.standard_normal((2, 60, *np.shape(mean)))
        value = mean * np.exp(noise) if name in ("sigma", "tau") else np.asarray(mean) + noise
        data[name] = (("chain", "draw", *[f"{name}_dim"] * np.ndim(mean)), value)
    return xr.DataTree.from_dict({"posterior": xr.Dataset(data)})


def plain():
    with pm.Model() as model:
        data = pm.Data("data", Y)
        sigma = pm.HalfNormal("sigma", 5.0)
        pm.Normal("y", pm.Normal("mu", 0.0, 10.0), sigma, observed=data)
    return model, {"mu": 0.1, "sigma": 1.2}


def hierarchical(family: str):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 10.0), pm.HalfNormal("tau", 5.0)
        effects = pm.Deterministic("effect", mu + tau * pm.Normal("z", 0.0, 1.0, shape=12))
        if family == "normal":
            pm.Normal("y", effects[GROUPS], pm.HalfNormal("sigma", 5.0), observed=Y)
        else:
            pm.Poisson("y", pm.math.exp(effects[GROUPS]), observed=COUNTS)
    known = {"mu": 0.1, "tau": 0.8, "z": [0.1] * 12}
    return model, known | ({"sigma": 1.0} if family == "normal" else {})


MODELS = {
    "plain": plain,
    "closed form": lambda: hierarchical("normal"),
    "quadrature": lambda: hierarchical("poisson"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_second_call_compiles_nothing_and_says_the_same(name):
    model, values = MODELS[name]()
    first = ef.calibrate(tree_of(**values), model=model)
    summary = first.summary()
    with nothing_compiled():
        again = ef.calibrate(tree_of(**values), model=model, correction="HC1")
        second = ef.calibrate(tree_of(**values), model=model)
        np.testing.assert_array_equal(second.summary(), summary)
        ef.calibrate(tree_of(seed=1, **values), model=model).summary()  # another fit of it
    assert again.target.describe() != second.target.describe()
    np.testing.assert_array_equal(second.target.covariance, first.target.covariance)


def test_numpyro_models_compile_once():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model(y):
        sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 10.0)), sigma), obs=y)

    samples = {name: np.ravel(v) for name, v in tree_of(mu=0.1, sigma=1.2)["posterior"].items()}
    first = ef.calibrate(ef.from_numpyro(samples, model, args=(Y,)))
    with nothing_compiled():
        again = ef.calibrate(ef.from_numpyro(samples, model, args=(Y,)))
    np.testing.assert_array_equal(again.center, first.center)
    # 1e-9 is lost where a program is printed
    other = ef.calibrate(ef.from_numpyro(samples, model, args=(Y + 1e-9,)))
    np.testing.assert_allclose(
        (other.center - first.center)[list(first.target.names).index("mu")], 1e-9, rtol=1e-3
    )


def test_a_model_whose_data_changed_is_read_anew():
    model, values = plain()
    fit = tree_of(**values)
    first = ef.calibrate(fit, model=model).center
    with model:
        pm.set_data({"data": Y + 1.0})
    moved = ef.calibrate(fit, model=model).center
    np.testing.assert_allclose(moved - first, [0.0, 1.0], atol=1e-3)  # but for the priors
    with model:
        pm.set_data({"data": Y})
    with nothing_compiled():  # both states are known
        np.testing.assert_array_equal(ef.calibrate(fit, model=model).center, first)


def test_shared_variables_and_later_priors_are_noticed():
    import pytensor

    x = pytensor.shared(np.ones(60))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 10.0)
        pm.Normal("y", mu * x, 1.0, observed=Y)
    fit = tree_of(mu=0.1)
    first = ef.calibrate(fit, model=model).center[0]
    x.set_value(np.full(60, 2.0))
    np.testing.assert_allclose(ef.calibrate(fit, model=model).center[0], first / 2, rtol=1e-3)
    with model:
        pm.Normal("more", mu, 0.01, observed=np.zeros(60))
    assert abs(ef.calibrate(fit, model=model).center[0]) < 0.01 * abs(first)


def test_what_is_compiled_dies_with_the_model():
    model, values = hierarchical("normal")
    ef.calibrate(tree_of(**values), model=model).summary()
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("family", ["normal", "poisson"])
def test_a_report_compiles_no_losses(family: str, tmp_path) -> None:
    """Values at a few points come from the program that gives derivatives."""
    model, known = hierarchical(family)
    result = ef.calibrate(tree_of(**known), model=model)
    before = len(COMPILED)
    page = result.report(tmp_path / "page.html").read_text()
    assert "(256 draws, one seed)" in page
    assert not [name for name in COMPILED[before:] if "total" in name or "values" in name]
    total, thetas = result.criterion.total, result.original.array[:5]
    once = total.compiled()
    assert once.compiled().one_by_one
    np.testing.assert_allclose(once.totals(thetas), total.totals(thetas), rtol=1e-12)
    assert [name for name in COMPILED[before:] if "total" in name]  # by that program's name
    wide = replace(total, loss=replace(total.loss, observations=total.n * 10_000))
    assert not wide.compiled().one_by_one  # a program for values alone pays
    moved = kinds.moves(result, [0])
    assert (moved.unit, len(moved.labels)) == ("group", 12)

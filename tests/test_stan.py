"""Stan's CSV files, read without CmdStan, and pystan's fits on the unconstrained scale."""

from __future__ import annotations

import copy
import pickle
import shutil
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import etafree as ef
from conftest import refused
from etafree.errors import MissingExtraError
from etafree.fits import as_fit
from etafree.fits.stan import pystan_fit, read_stan_csv, stan_tree

N, DRAWS, WARMUP = 80, 300, 40
STATISTICS = [
    "lp__",
    "accept_stat__",
    "stepsize__",
    "treedepth__",
    "n_leapfrog__",
    "divergent__",
    "energy__",
]


def exact_draws(chains=2, seed=0):
    """Return data of a linear model and exact draws (chain, draw, 3) of its flat posterior."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(N), rng.standard_normal((N, 2))])
    y = X.sum(axis=1) + rng.standard_normal(N) * np.exp(0.3 * X[:, 1])
    lower = np.linalg.cholesky(np.linalg.inv(X.T @ X))
    theta = np.linalg.lstsq(X, y)[0] + rng.standard_normal((chains, DRAWS, 3)) @ lower.T
    return X, y, theta, -0.5 * (y - theta @ X.T) ** 2


X, Y, THETA, STORED = exact_draws()
HEADER = [
    *STATISTICS,
    "a",
    "beta.1",
    "beta.2",
    *(f"log_lik.{i + 1}" for i in range(N)),
    *(f"y_rep.{i + 1}" for i in range(N)),
]

CONFIGURATION = """\
# stan_version_major = 2
# stan_version_minor = 36
# model = linear_model
# start_datetime = 2026-01-01 00:00:00 UTC
# method = sample (Default)
#   sample
#     num_samples = {samples}
#     num_warmup = {warmup}
#     save_warmup = {saved}
#     thin = {thin} (Default)
#     adapt
#       engaged = true (Default)
#       gamma = 0.05 (Default)
# id = {chain} (Default)
"""
ADAPTATION = """\
# Adaptation terminated
# Step size = 0.9
# Diagonal elements of inverse mass matrix:
# 1, 1, 1
"""
TIMES = """\
#
#  Elapsed Time: 0.1 seconds (Warm-up)
#                0.2 seconds (Sampling)
#                0.3 seconds (Total)
#
"""


def table(chain):
    """Return the numbers of a chain as CmdStan orders them."""
    own = np.zeros((DRAWS, len(STATISTICS)))
    own[:, 0] = STORED[chain].sum(axis=1)
    own[3, 5] = 1.0  # a divergence
    return np.hstack([own, THETA[chain], STORED[chain], THETA[chain] @ X.T])


def lines(rows):
    return "".join(",".join(f"{v:.17g}" for v in row) + "\n" for row in rows)


def text(chain, saved="false", thin=1, samples=DRAWS, rows=None, header=HEADER):
    """Return the text of a CSV file."""
    told = CONFIGURATION.format(samples=samples, warmup=WARMUP, saved=saved, thin=thin, chain=chain)
    rows = table(chain) if rows is None else rows
    warm = lines(np.full((-(-WARMUP // thin), len(header)), 9.0)) if saved in ("1", "true") else ""
    return told + ",".join(header) + "\n" + warm + ADAPTATION + lines(rows) + TIMES


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"fit-{chain}.csv" for chain in range(2)]
    for chain, path in enumerate(paths):
        path.write_text(text(chain))
    return paths


def test_files_become_a_tree(files):
    tree = read_stan_csv(files)
    posterior = tree["posterior"]
    assert list(posterior.data_vars) == ["a", "beta"]
    assert posterior["beta"].dims == ("chain", "draw", "beta_dim_0")
    assert posterior["beta_dim_0"].values.tolist() == [1, 2]  # as in the program
    np.testing.assert_array_equal(posterior["a"], THETA[..., 0])
    np.testing.assert_array_equal(posterior["beta"], THETA[..., 1:])
    np.testing.assert_array_equal(tree["log_likelihood"]["log_lik"], STORED)
    assert tree["posterior_predictive"]["y_rep"].shape == (2, DRAWS, N)
    assert tree["sample_stats"]["diverging"].values.sum() == 2
    assert set(tree["sample_stats"].data_vars) >= {"lp", "energy", "step_size"}


def test_files_are_calibrated(files):
    result = ef.calibrate(files)
    criterion = ef.Criterion(ef.losses.Squared(), data=(X, Y))
    expected = ef.target(criterion, correction="HC1").se
    found = result.summary()
    assert list(found.index) == ["a", "beta[1]", "beta[2]"]
    assert np.all(np.abs(found["se"] / expected - 1) < 4 * found["se_error"] + 1e-9)
    made = result.to_arviz()
    assert type(made) is xr.DataTree
    assert {"original_log_likelihood", "original_posterior_predictive"} <= set(made.children)
    clustered = ef.calibrate([str(path) for path in files], clusters=np.arange(N) // 4)
    assert clustered.target.clusters == 20


def test_one_file_is_one_chain(files):
    assert ef.calibrate(files[0]).draws.values.shape == (1, DRAWS, 3)
    runs = types.SimpleNamespace(csv_files=[str(path) for path in files])
    kind = type("CmdStanMCMC", (), {"__module__": "cmdstanpy.stanfit.mcmc", "runset": runs})
    np.testing.assert_array_equal(as_fit(kind()).draws.values, as_fit(files).draws.values)


@pytest.mark.parametrize(("saved", "thin"), [("1", 1), ("true", 2), ("false", 2), ("0", 1)])
def test_warm_up_and_thinning(tmp_path, saved, thin):
    path = tmp_path / "fit.csv"
    path.write_text(text(0, saved, thin, samples=DRAWS * thin - (thin - 1)))
    tree = read_stan_csv([path])
    np.testing.assert_array_equal(tree["posterior"]["a"].values[0], THETA[0, :, 0])


def test_fixed_parameters_have_no_warm_up(tmp_path):
    """CmdStan then writes none, whatever it is told to save."""
    path = tmp_path / "fit.csv"
    fixed = text(0).replace("save_warmup = false", "save_warmup = true")
    path.write_text(fixed.replace("#     thin", "#     algorithm = fixed_param\n#     thin"))
    np.testing.assert_array_equal(read_stan_csv([path])["posterior"]["a"][0], THETA[0, :, 0])


def test_without_cmdstanpy_a_line_says_what_to_install(files, monkeypatch):
    monkeypatch.setattr("etafree.fits.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'^[^\n]*pip install "etafree\[stan\]"$'):
        ef.calibrate(files)


def test_matrices_are_put_in_their_shape():
    """Columns come first index fastest."""
    names = ["lp__", *(f"m.{i}.{j}" for j in (1, 2, 3) for i in (1, 2)), "x.real", "v.1"]
    values = np.arange(len(names) * 4.0).reshape(1, 4, len(names))
    tree = stan_tree(names, values)
    m = tree["posterior"]["m"]
    assert m.shape == (1, 4, 2, 3)
    for i in range(2):
        for j in range(3):
            np.testing.assert_array_equal(m[..., i, j], values[..., 1 + 2 * j + i])
    assert tree["posterior"]["x.real"].dims == ("chain", "draw")
    assert tree["posterior"]["v"].shape == (1, 4, 1)


def test_bad_files_are_refused(tmp_path):
    whole = text(0)
    rows = whole.splitlines(keepends=True)
    last = max(k for k, line in enumerate(rows) if not line.startswith("#"))
    cases = {
        "there is nothing": ("", "not draws of a sampler"),
        "other": ("a,b\n1,2\n", "holds nothing that Stan wrote"),
        "optimum": (whole.replace("method = sample", "method = optimize"), "holds optimize"),
        "stopped": ("".join(rows[: last - 9]), f"is cut off: {DRAWS - 10} of {DRAWS} draws"),
        "mid row": ("".join(rows[:last]) + rows[last][:40], "is cut off"),
        "short row": ("".join(rows[:last]) + "1,2,3\n", "is cut off"),
        "word": (whole.replace(rows[last - 5], "x" + rows[last - 5]), "is damaged"),
        "comment": (whole.replace("thin = 1", "thin = x"), "is damaged in its comments"),
        "gap": (text(0, header=[n.replace("beta.1", "beta.3") for n in HEADER]), "has gaps"),
        "no draws": ("".join(line for line in rows[: last - DRAWS]), "is cut off: 0 of"),
    }
    for name, (content, fragment) in cases.items():
        path = tmp_path / "bad.csv"
        path.write_text(content)
        print(name)  # seen when one fails
        refused("draws", fragment, lambda path=path: ef.calibrate(path))
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00")
    refused("draws", "cannot be read", lambda: ef.calibrate(tmp_path / "bad.csv"))
    refused("draws", "cannot be read", lambda: ef.calibrate(tmp_path / "none.csv"))


def test_chains_of_different_fits_are_refused(files):
    files[1].write_text(text(1, rows=table(1)[:-1], samples=DRAWS - 1))
    refused("draws", f"has {DRAWS - 1} draws", lambda: ef.calibrate(files))
    files[1].write_text(
        text(1, header=[n.replace("a", "alpha", 1) if n == "a" else n for n in HEADER])
    )
    refused("draws", "has other columns", lambda: ef.calibrate(files))


def test_a_file_without_log_lik_says_how_to_store_it(tmp_path):
    keep = [k for k, name in enumerate(HEADER) if not name.startswith("log_lik")]
    path = tmp_path / "fit.csv"
    path.write_text(text(0, rows=table(0)[:, keep], header=[HEADER[k] for k in keep]))
    refused("log_likelihood", "log_lik in generated quantities", lambda: ef.calibrate(path))


def test_reading_executes_nothing(tmp_path):
    """Names and comments are text."""
    path = tmp_path / "fit.csv"
    evil = "__import__('os').system('touch hacked')"
    header = ["lp__", evil, "b"]
    path.write_text(f"# method = sample\n# {evil}\n{','.join(header)}\n1,2,3\n4,5,6\n")
    assert evil in read_stan_csv([path])["posterior"]
    assert not (tmp_path / "hacked").exists()


PROGRAM = """
data { int n; vector[n] x; vector[n] y; array[n] int z; }
parameters { real a; vector[2] b; real<lower=0> sigma; simplex[3] w; }
transformed parameters { real s2 = square(sigma); }
model { y ~ normal(a + b[1] * x + b[2] * square(x), sigma); z ~ categorical(w); }
generated quantities {
  vector[n] log_lik;
  for (i in 1:n) log_lik[i] = categorical_lpmf(z[i] | w)
    + normal_lpdf(y[i] | a + b[1] * x[i] + b[2] * square(x[i]), sigma);
}
"""
COLUMNS = (
    "a",
    "b.1",
    "b.2",
    "sigma",
    "w.1",
    "w.2",
    "w.3",
    "s2",
    *(f"log_lik.{i + 1}" for i in range(N)),
)


def spread(free):
    """Return Stan's parameters and s2 from (a, b, log sigma, two logs of ratios of w)."""
    a, b1, b2, log_sigma, u, v = free
    w = np.exp([u, v, 0.0])
    w /= w.sum()
    return [a, b1, b2, np.exp(log_sigma), *w, np.exp(2 * log_sigma)]


class FakeServices(types.ModuleType):
    """What pystan compiles of the program, written by hand: the maps between the scales."""

    @staticmethod
    def write_array(data, free, computed, generated):
        assert not generated
        return spread(free)[: 8 if computed else 7]

    @staticmethod
    def transform_inits(data, named):
        w = named["w"]
        logs = [float(np.log(w[0] / w[2])), float(np.log(w[1] / w[2]))]
        return [named["a"], *named["b"], float(np.log(named["sigma"])), *logs]


class FakeFit(dict):
    """The interface of pystan 3's ``stan.fit.Fit`` that is used: (..., draws x chains) arrays."""

    def __init__(self, free, stored, warmup=0):
        flat = np.array([spread(row) for row in free.reshape(-1, 6)])
        values = np.concatenate([flat.reshape(*free.shape[:2], 8), stored], axis=-1)
        if warmup:
            values = np.concatenate([np.full((2, warmup, values.shape[2]), 9.0), values], axis=1)
        by_draw = np.moveaxis(values, 0, 1).reshape(-1, values.shape[2])  # draw, chain
        super().__init__(
            a=by_draw[:, :1].T,
            b=by_draw[:, 1:3].T,
            sigma=by_draw[:, 3:4].T,
            w=by_draw[:, 4:7].T,
            s2=by_draw[:, 7:8].T,
            log_lik=by_draw[:, 8:].T,
            lp__=np.zeros((1, len(by_draw))),
        )
        self.sample_and_sampler_param_names = ("lp__",)
        self.constrained_param_names = COLUMNS
        self.num_chains, self.num_thin = 2, 1
        self.num_warmup, self.save_warmup = warmup, warmup > 0


FakeFit.__module__, FakeFit.__name__ = "stan.fit", "Fit"


def normal_and_categorical():
    """Return data and near-exact draws (2, 500, 6) on the unconstrained scale."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(N)
    D = np.column_stack([np.ones(N), x, x**2])
    y = D @ [1.0, 1.0, 0.0] + rng.standard_normal(N)
    z = rng.integers(0, 3, N)
    beta = np.linalg.lstsq(D, y)[0]
    sigma = np.sqrt(np.mean((y - D @ beta) ** 2))
    share = np.bincount(z, minlength=3) / N
    center = np.array([*beta, np.log(sigma), *np.log(share[:2] / share[2])])
    A = np.zeros((6, 6))
    A[:3, :3], A[3, 3] = D.T @ D / sigma**2, 2 * N
    A[4:, 4:] = N * (np.diag(share[:2]) - np.outer(share[:2], share[:2]))
    free = center + rng.standard_normal((2, 500, 6)) @ np.linalg.cholesky(np.linalg.inv(A)).T
    s, logits = np.exp(free[..., 3:4]), np.concatenate([free[..., 4:], 0 * free[..., :1]], axis=-1)
    normal = -0.5 * ((y - free[..., :3] @ D.T) / s) ** 2 - np.log(s)
    chosen = np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))[..., z]
    return {"n": N, "x": x, "y": y, "z": z + 1}, free, normal + chosen


@pytest.fixture
def fake(monkeypatch):
    """A fit and its model without pystan: what it compiles is the class above."""
    data, free, stored = normal_and_categorical()
    package, models = types.ModuleType("httpstan"), types.ModuleType("httpstan.models")
    package.__spec__ = ModuleSpec("httpstan", None)
    package.models = models
    models.import_services_extension_module = FakeServices
    monkeypatch.setitem(sys.modules, "httpstan", package)
    monkeypatch.setitem(sys.modules, "httpstan.models", models)
    model = types.SimpleNamespace(model_name="fake", data=data, constrained_param_names=COLUMNS)
    return FakeFit(free, stored), model, free


def test_a_fit_with_its_model_is_calibrated_unconstrained(fake):
    fit, model, free = fake
    made = ef.calibrate(fit, model=model, clusters=np.arange(N) // 2)
    np.testing.assert_allclose(made.original.values, free, atol=1e-12)
    assert made.names == ("a", "b[1]", "b[2]", "sigma_free[1]", "w_free[1]", "w_free[2]")
    out = made.to_arviz()["posterior"]
    assert out["sigma"].values.min() > 0
    np.testing.assert_allclose(out["w"].sum("w_dim_0"), 1.0, atol=1e-12)
    np.testing.assert_allclose(out["s2"], out["sigma"] ** 2)
    rows = list(made.summary().index)
    assert rows == ["a", "b[1]", "b[2]", "sigma", "w[1]", "w[2]", "w[3]", "s2"]
    whole = made.fit.constrain(made.original.values)
    for name in ("a", "b", "sigma", "w", "s2"):  # there and back
        before = made.fit.tree["posterior"][name].values
        np.testing.assert_allclose(whole[name], before, atol=1e-10)


def test_a_model_s_result_pickles_copies_and_saves(fake, tmp_path):
    fit, model, _ = fake
    made = ef.calibrate(fit, model=model, clusters=np.arange(N) // 2)
    saved = ef.Calibration.load(made.save(tmp_path / "result"))
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), saved):
        pd.testing.assert_frame_equal(again.summary(), made.summary(), rtol=1e-10)
        out, expected = again.to_arviz()["posterior"], made.to_arviz()["posterior"]
        assert list(out) == ["a", "b", "sigma", "w", "s2"]
        xr.testing.assert_allclose(out.to_dataset(), expected.to_dataset())


def test_results_of_files_pickle_copy_and_save(files, tmp_path):
    made = ef.calibrate(files)
    saved = ef.Calibration.load(made.save(tmp_path / "result"))
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), saved):
        pd.testing.assert_frame_equal(again.summary(), made.summary(), rtol=1e-10)
        assert again.flags() == made.flags()


def test_some_variables_of_a_model_are_shown(fake):
    fit, model, _ = fake
    made = ef.calibrate(fit, model=model, var_names=["sigma", "w"])
    assert list(made.summary().index) == ["sigma", "w[1]", "w[2]", "w[3]"]
    refused("var_names", "nothing", lambda: ef.calibrate(fit, model=model, var_names="nothing"))


def test_a_fit_without_its_model_stays_on_its_scale(fake):
    fit, _, free = fake
    made = ef.calibrate(fit, var_names=["a", "b", "sigma"])
    assert made.names == ("a", "b[1]", "b[2]", "sigma")
    np.testing.assert_allclose(made.original["sigma"], np.exp(free[..., 3]).reshape(-1))
    refused("draws", "w[1]", lambda: ef.calibrate(fit, var_names=["a", "w"]))  # sums to one


def test_warm_up_of_a_fit_is_dropped(fake):
    _, free, stored = normal_and_categorical()
    made = pystan_fit(FakeFit(free, stored, warmup=30), var_names="a")
    np.testing.assert_array_equal(made.draws.values[..., 0], free[..., 0])


def test_another_model_is_refused(fake):
    fit, _, _ = fake
    other = types.SimpleNamespace(model_name="x", data={}, constrained_param_names=("a",))
    refused("model", "has other parameters", lambda: ef.calibrate(fit, model=other))


REAL = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import stan
import etafree as ef
from test_stan import PROGRAM, normal_and_categorical

data, _, _ = normal_and_categorical()
plain = {key: np.asarray(value).tolist() for key, value in data.items()}
model = stan.build(PROGRAM, data=plain, random_seed=1)
fit = model.sample(num_chains=2, num_samples=500)
made = ef.calibrate(fit, model=model)
before = made.fit.tree["posterior"]
for variable, values in made.fit.constrain(made.original.values).items():
    np.testing.assert_allclose(values, before[variable].values, atol=1e-10)
out = made.to_arviz()["posterior"]
assert out["sigma"].values.min() > 0
np.testing.assert_allclose(out["w"].sum("w_dim_0"), 1.0, atol=1e-12)
print("agrees")
"""


def test_the_real_compiler_agrees():
    """The same model through pystan; compiling takes a minute, once for all runs.

    In a process of its own: pystan forks, which threads of other libraries do not survive.
    """
    pytest.importorskip("stan")  # its own reason: pystan may be there and not importable
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler for Stan programs")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REAL, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "agrees" in done.stdout

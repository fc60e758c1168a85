"""Data that suit each loss, shared by the tests."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import etafree as ef
from etafree.errors import EtafreeError, InputError

# A shell that runs us in the background ignores Ctrl-C, for our children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
collect_ignore = ["python"]  # scripts that ran other packages and wrote their numbers
if sys.platform == "win32":  # they limit and kill processes as only POSIX can
    collect_ignore += [
        "test_faults.py",
        "test_fuzz.py",
        "fuzzing.py",
        "test_mutants.py",
        "mutants.py",
    ]
PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
#: Options of a Python in which warnings are the errors that they are in tests.
STRICT = tuple(option for line in PYTEST["filterwarnings"] for option in ("-W", line))

THETA = np.array([0.4, 0.8, -0.6])

LOSSES = {
    "squared": ef.losses.Squared(),
    "huber": ef.losses.Huber(1.345, scale=1.2),
    "pseudo_huber": ef.losses.PseudoHuber(1.0, scale=0.8),
    "normal_laplace": ef.losses.NormalLaplace(1.2, 0.7, scale=0.9),
    "student_t": ef.losses.StudentT(4.0, scale=1.1),
    "quantile": ef.losses.Quantile(0.3, bandwidth=0.4),
    "logistic": ef.losses.Logistic(),
    "binomial": ef.losses.Logistic(),
    "poisson": ef.losses.Poisson(),
    "gamma": ef.losses.Gamma(),
    "negative_binomial": ef.losses.NegativeBinomial(0.7),
}


@pytest.fixture(autouse=True)
def _figures() -> Iterator[None]:
    """Close the figures that a test leaves open: pyplot warns of many."""
    yield
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")


@dataclass
class Case:
    """A loss with data it suits."""

    name: str
    loss: ef.losses.LinearLoss
    X: np.ndarray
    y: np.ndarray
    offset: np.ndarray
    trials: np.ndarray | None

    def criterion(self, rows: slice | np.ndarray = slice(None), **options) -> ef.Criterion:
        trials = None if self.trials is None else self.trials[rows]
        return ef.Criterion(
            self.loss,
            (self.X[rows], self.y[rows]),
            offset=self.offset[rows],
            trials=trials,
            **options,
        )


def make_case(name: str, n: int = 120, seed: int = 7) -> Case:
    rng = np.random.default_rng([seed, sorted(LOSSES).index(name)])
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    offset = 0.2 * rng.standard_normal(n)
    u = X @ THETA + offset
    trials = None
    if name == "logistic":
        y = (rng.random(n) < 1 / (1 + np.exp(-u))).astype(float)
    elif name == "binomial":
        trials = rng.integers(1, 8, n).astype(float)
        y = rng.binomial(trials.astype(int), 1 / (1 + np.exp(-u))).astype(float)
    elif name in ("poisson", "negative_binomial"):
        y = rng.poisson(np.exp(u) * rng.gamma(2.0, 0.5, n)).astype(float)
    elif name == "gamma":
        y = rng.gamma(1.5, np.exp(u))
    else:
        y = u + rng.standard_t(3, n)
    return Case(name, LOSSES[name], X, y, offset, trials)


@pytest.fixture(params=sorted(LOSSES))
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture
def robust() -> Case:
    return make_case("huber", n=300)


@pytest.fixture(scope="session", params=["DataTree", "InferenceData"])
def fit_kind(request: pytest.FixtureRequest) -> str:
    """The class of a fit: ArviZ 1 has xarray's DataTree, ArviZ 0 an InferenceData of its own."""
    if request.param == "InferenceData":
        arviz = pytest.importorskip("arviz", reason="arviz is not installed")
        if "InferenceData" not in dir(arviz):  # hasattr would be answered by a warning
            pytest.skip("ArviZ 1 has no InferenceData")
    return request.param


def stored_fit(groups: dict):
    """Return a fit as the installed ArviZ makes it: an InferenceData, or a DataTree."""
    arviz = pytest.importorskip("arviz", reason="arviz is not installed")
    return arviz.from_dict(**groups) if "InferenceData" in dir(arviz) else arviz.from_dict(groups)


def refused(argument, fragment, call, kind=InputError):
    """Assert that a call raises the library's own error about that argument."""
    with pytest.raises(kind) as info:
        call()
    error = info.value
    assert isinstance(error, EtafreeError)
    assert error.argument == argument
    assert str(error).startswith(f"{argument}: ")
    assert fragment in str(error)


def spoiled(array, entry):
    """Return the array with its last entry replaced."""
    out = np.array(array, dtype=object)
    out[(-1,) * out.ndim] = entry
    return out


@contextlib.contextmanager
def local_cluster(workers: int = 2):
    """A Dask cluster of processes of this machine."""
    from distributed import LocalCluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cluster's own making, at start and end
        with LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
            host="127.0.0.1",
        ) as made:
            yield made


def checks_of(target, draws=None):
    """Return the checks of a target by name, whatever draws it may get."""
    from etafree.diagnostics import every_check

    if draws is None:
        mean, root = target.center, np.linalg.cholesky(target.covariance)
        normal = np.random.default_rng(0).standard_normal((400, target.p))
        draws = ef.Draws.of(mean + normal @ root.T, target.names)
    found = every_check(draws, target, lambda values: values, target.center, None)
    return {check.name: check for check in found}

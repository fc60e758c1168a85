"""Valid calls of everything public, one or two arguments of which `fuzzing` replaces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import etafree as ef
from etafree import losses, penalties
from etafree.inference import Region
from fuzzing import hostile, pick, spoiled_array
from test_bad_input_generated import calls, world

Call = tuple[Callable[..., Any], dict[str, Any]]


def fitted(loss: Any, penalty: Any = None, y: Any = None) -> None:
    """Use a loss or penalty that was accepted."""
    w = world(0, 3)
    criterion = ef.Criterion(loss, (w["X"], w["y"] if y is None else y), penalty)
    ef.minimise(criterion)
    ef.target(criterion, clusters=w["labels"])


def with_loss(make: Callable[..., Any], y: Any = None) -> Callable[..., None]:
    return lambda **arguments: fitted(make(**arguments), y=y)


def with_penalty(make: Callable[..., Any]) -> Callable[..., None]:
    return lambda **arguments: fitted(losses.Huber(), make(**arguments))


def a_tree(draws: Any, residuals: Any) -> Any:
    """Return a fit with its log-likelihood."""
    import xarray as xr

    losses = xr.Dataset({"y": (("chain", "draw", "i"), -0.5 * np.square(residuals[None]))})
    posterior = xr.Dataset({"b": (("chain", "draw", "k"), draws[None])})
    return xr.DataTree.from_dict({"posterior": posterior, "log_likelihood": losses})


def least_squares_moments(X: Any, y: Any, weight: Any, start: Any) -> Any:
    """Return the criterion of the equations of least squares."""
    psi = ef.Moments(lambda b, row: row["X"] * (row["y"] - row["X"] @ b), weight)
    return ef.Criterion(psi, {"X": X, "y": y}, start=start)


def spread_of_tuples(data: Any, **options: Any) -> Any:
    """Return the criterion of the variance within tuples, whatever their order."""

    def h(theta: Any, *rows: Any) -> Any:
        middle = sum(rows) / len(rows)
        return (theta - sum((row - middle) ** 2 for row in rows) / (len(rows) - 1)) ** 2

    return ef.Criterion(ef.TupleLoss(h, **options), data, start=1.0)


def a_chain(draws: Any, residuals: Any) -> Path:
    """Return the path of a file as CmdStan writes it."""
    names = ["lp__", *(f"b.{k + 1}" for k in range(draws.shape[1]))]
    names += [f"log_lik.{k + 1}" for k in range(residuals.shape[1])]
    rows = np.column_stack([np.zeros(len(draws)), draws, -0.5 * np.square(residuals)])
    path = Path(tempfile.mkdtemp()) / "chain.csv"
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="")
    return path


@cache
def public() -> dict[str, Call]:
    """Valid calls by name; those of the tests of spoiled arguments are among them."""
    w = world(0, 3)
    X, y, names, labels = w["X"], w["y"], w["names"], w["labels"]
    criterion = ef.Criterion(losses.PseudoHuber(), (X, y), names=names)
    flat = ef.LogPrior.normal(np.zeros(3), 100 * np.eye(3))
    posterior = ef.GeneralizedPosterior(criterion, 0.5, flat)
    spread = np.linalg.inv(X.T @ X)
    drawn = np.random.default_rng(0).multivariate_normal(spread @ X.T @ y, spread, size=400)
    found: dict[str, Call] = {
        name: (function, {key: value for key, (value, _) in arguments.items()})
        for name, (function, arguments) in calls(0, 3).items()
    }
    scale = {"scale": 1.0}
    shapes: dict[str, dict[str, Any]] = {
        "Huber": {"c": 1.0},
        "PseudoHuber": {"c": 1.0},
        "StudentT": {"df": 4.0},
        "NormalLaplace": {"c": 1.0, "eta": 1.0},
        "Modal": {"h": 3.0},
    }
    for name, extra in shapes.items():
        found[name] = with_loss(getattr(losses, name)), {**extra, **scale}
    counts = np.round(np.abs(y))
    found |= {
        "Quantile": (with_loss(losses.Quantile), {"tau": 0.5, "bandwidth": 0.5}),
        "NegativeBinomial": (with_loss(losses.NegativeBinomial, counts), {"dispersion": 0.5}),
        "Wilcoxon": (with_loss(ef.Wilcoxon), {"width": "mad"}),
        "PairwiseDifference": (with_loss(ef.PairwiseDifference), {"loss": losses.Huber()}),
        "TupleLoss": (spread_of_tuples, {"order": 3, "rounds": 2, "seed": 0, "data": y}),
        "Moments": (least_squares_moments, {"X": X, "y": y, "weight": np.eye(3), "start": y[:3]}),
        "Check": (with_loss(losses.Check), {"tau": 0.3, "bandwidth": 0.5}),
        "Hinge": (with_loss(losses.Hinge, 1.0 * (y > 0)), {"bandwidth": 0.5}),
        "Cox": (
            lambda X, survival, ties: ef.Criterion(ef.Cox(ties), (X, survival)),
            {"X": X, "survival": np.column_stack([np.abs(y), y > 0]), "ties": "efron"},
        ),
        "L1": (with_penalty(penalties.L1), {"strength": 0.1, "weights": np.ones(3)}),
        "Slope": (with_penalty(penalties.Slope), {"strength": 0.1, "weights": [1.0, 0.5, 0.2]}),
        "Fused": (with_penalty(penalties.Fused), {"strength": 0.1, "mix": 0.5}),
        "ElasticNet": (with_penalty(penalties.ElasticNet), {"strength": 0.1, "mix": 0.5}),
        "GroupL1": (with_penalty(penalties.GroupL1), {"strength": 0.1, "groups": [0, 0, 1]}),
        "Ridge": (with_penalty(penalties.Ridge), {"strength": 0.1, "mu": y[:3], "Q": np.eye(3)}),
        "huberized_l1": (with_penalty(penalties.huberized_l1), {"strength": 0.1, "width": 0.1}),
        "responses of Poisson": (lambda y: fitted(losses.Poisson(), y=y), {"y": counts}),
        "responses of Logistic": (lambda y: fitted(losses.Logistic(), y=y), {"y": 1.0 * (y > 0)}),
        "responses of Gamma": (lambda y: fitted(losses.Gamma(), y=y), {"y": counts + 0.5}),
        "Draws.of": (ef.Draws.of, {"values": w["draws"], "names": names, "eta": 1.0}),
        "Target of one's own": (
            ef.Target,
            {"center": w["vector"], "covariance": w["matrix"], "names": names, "dof": 5.0},
        ),
        "table": (ef.table, {"results": {"one": ef.target(criterion)}, "names": names[:2]}),
        "from_arviz": (
            lambda **k: ef.calibrate(ef.from_arviz(**k)),
            {
                "fit": a_tree(drawn, y - drawn @ X.T),
                "var_names": ["b"],
                "filter_vars": "like",
                "log_likelihood": "y",
                "eta": 1.0,
                "latent": None,
            },
        ),
        "from_stan": (
            lambda **k: ef.calibrate(ef.from_stan(**k)),
            {"fit": [a_chain(drawn, y - drawn @ X.T)], "var_names": "b", "eta": 1.0},
        ),
        "LogPrior.normal": (ef.LogPrior.normal, {"mean": np.zeros(3), "covariance": np.eye(3)}),
        "minimise": (ef.minimise, {"criterion": criterion, "start": np.zeros(3), "threads": 2}),
        "threads": (lambda count: ef.threads(count).__exit__(), {"count": 2}),
        "bootstrap": (
            ef.bootstrap,
            {"criterion": criterion, "draws": 20, "clusters": labels, "seed": 1, "threads": 2},
        ),
        "loss_likelihood_bootstrap": (
            ef.loss_likelihood_bootstrap,
            {"criterion": criterion, "draws": 20, "clusters": labels, "seed": 1, "threads": 2},
        ),
        "martingale_posterior": (
            ef.martingale_posterior,
            {
                "criterion": criterion,
                "draws": 20,
                "horizon": 9,
                "clusters": labels,
                "seed": 1,
                "threads": 2,
            },
        ),
        "bayesbag": (
            ef.bayesbag,
            {
                "posterior": ef.GeneralizedPosterior(criterion, 1.0),
                "draws": 100,
                "resamples": 4,
                "size": 40,
                "clusters": labels,
                "seed": 1,
                "threads": 2,
            },
        ),
        "q_posterior": (
            ef.q_posterior,
            {
                "criterion": criterion,
                "draws": 50,
                "clusters": labels,
                "log_prior": ef.LogPrior.normal(np.ones(3), 0.01 * np.eye(3)),
                "seed": 1,
            },
        ),
        "select": (
            ef.select,
            {"source": posterior, "method": "magnitude", "clusters": labels, "seed": 1},
        ),
        "select lyddon": (ef.select, {"source": posterior, "method": "lyddon", "seed": 1}),
        "Criterion.value": (criterion.value, {"theta": np.zeros(3)}),
        "Criterion.values_at": (criterion.values_at, {"thetas": np.zeros((5, 3))}),
        "Criterion.reweighted": (
            criterion.reweighted,
            {"weights": np.arange(24) % 3, "weight_kind": "frequency"},
        ),
        "log_density": (posterior.log_density, {"theta": np.zeros(3)}),
        "gradient": (posterior.gradient, {"theta": np.zeros(3)}),
        "RandomIntercept": (
            lambda **k: ef.RandomIntercept(**k).target(),
            {
                "X": X,
                "y": y,
                "groups": labels,
                "c": 1.345,
                "tau2": 0.5,
                "sigma2": 1.0,
                "penalty": penalties.Ridge(0.1),
                "names": names,
            },
        ),
        "RandomEffects": (
            lambda **k: ef.RandomEffects(**k).target(),
            {
                "X": X,
                "y": y,
                "groups": labels,
                "Z": X[:, :2],
                "c": 1.345,
                "D": [[0.5, 0.1], [0.1, 0.3]],
                "sigma2": 1.0,
                "penalty": penalties.Ridge(0.1),
                "names": names,
            },
        ),
        "target of a Survey": (
            partial(_depending, partial(ef.target, criterion), ef.Survey),
            {
                "psu": np.arange(24) // 2,
                "strata": np.arange(24) // 12,
                "fpc": np.full(24, 100.0),
                "lonely": "error",
                "calibrated": np.ones((24, 1)),
                "base_weights": np.ones(24),
            },
        ),
        "target of ReplicateWeights": (
            partial(_depending, partial(ef.target, criterion), ef.ReplicateWeights),
            {
                "weights": 1.0 - np.eye(24),
                "kind": "JKn",
                "scale": 1.0,
                "rscales": np.full(24, 23 / 24),
                "combined": True,
                "mse": False,
                "dof": 20.0,
            },
        ),
        "target of a TimeSeries": (
            partial(_depending, partial(ef.target, criterion), ef.TimeSeries),
            {"time": np.arange(24), "bandwidth": 5, "correction": "EWC"},
        ),
        "target of two ways": (
            ef.target,
            {"criterion": criterion, "clusters": {"a": labels, "b": np.arange(24) // 3}},
        ),
        "target of Clusters": (
            partial(_crossed, criterion),
            {"a": labels, "b": np.arange(24) // 3},
        ),
    }
    return found


@cache
def questions() -> dict[str, Call]:
    """Valid calls of the methods of a calibration, a map and draws."""
    w = world(0, 3)
    criterion = ef.Criterion(losses.Huber(), (w["X"], w["y"]), names=w["names"])
    made = ef.calibrate(w["draws"], criterion, clusters=w["labels"])
    return {
        "interval": (made.interval, {"level": 0.9, "kind": "wald"}),
        "summary": (made.summary, {"level": 0.9, "kind": "draws"}),
        "region": (made.region, {"level": 0.9}),
        "contains": (made.region().contains, {"theta": np.zeros(3)}),
        "test": (made.test, {"contrast": "b0 - b1 = 0", "value": 0.0}),
        "test of a matrix": (made.test, {"contrast": np.eye(3)[:2], "value": np.zeros(2)}),
        "wild_bootstrap": (
            made.wild_bootstrap,
            {"contrast": "b0", "value": 0.0, "level": 0.9, "draws": 99, "seed": 1},
        ),
        "cluster_table": (made.cluster_table, {"way": "cluster"}),
        "of": (lambda **k: made.of(lambda t: t["b0"], **k), {"name": "b"}),
        "plot": (made.plot, {"var_names": ["b0", "b1"]}),
        "map": (lambda draws: made.map(draws), {"draws": w["draws"]}),
        "inverse": (made.map.inverse, {"draws": w["draws"]}),
        "select names": (made.draws.select, {"names": ["b0", "b2"]}),
    }


@cache
def parts() -> dict[str, Call]:
    """Valid calls of constructors, of methods of what they make, and of selectors' options."""
    w = world(0, 3)
    X, y, names, labels = w["X"], w["y"], w["names"], w["labels"]
    criterion = ef.Criterion(losses.Squared(), (X, y), names=names)
    table = pd.DataFrame(X, columns=names).assign(y=y, g=labels, w=w["weights"])
    draws = ef.Draws.of(w["draws"], names, 1.0)
    made = ef.calibrate(draws, criterion, clusters=labels)
    model = ef.RandomIntercept(X, y, labels, tau2=0.5, sigma2=1.0)
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    rate = partial(ef.select, posterior, seed=1)
    drawn = ef.sample(posterior, 400, seed=1).array
    formula = {"formula": "y ~ b0", "data": table, "loss": losses.Squared()}
    columns = {"weights": "w", "weight_kind": "sampling", "offset": "b1"}
    return {
        "Draws": (
            ef.Draws,
            {
                "values": draws.values,
                "names": ("a", "b", "c"),
                "eta": 1.0,
                "sampler": "given",
                "info": {"r_hat": 1.0, "ess": 50.0},
                "source": None,
            },
        ),
        "Draws, one parameter": (draws.__getitem__, {"name": "b0"}),
        "Target": (
            lambda **k: ef.calibrate(draws, ef.Target(**k)).summary(),
            {
                "center": w["vector"],
                "covariance": w["matrix"],
                "names": tuple(names),
                "dof": np.full(3, 9.0),
                "hessian": None,
                "meat": None,
                "center_kind": "given",
                "correction": "given",
                "centered": True,
                "clusters": 8,
                "design": "",
                "n": 24,
                "size": 24.0,
                "estimand": "a",
                "plug_ins": {},
                "stacked": (),
                "method": "sandwich",
                "se_error": None,
                "laws": None,
                "findings": (),
            },
        ),
        "dof_of": (made.target.dof_of, {"contrast": np.eye(3)[0]}),
        "LocationScaleMap": (
            ef.LocationScaleMap,
            {"mean": w["vector"], "offset": w["vector"], "scale": w["matrix"], "names": names},
        ),
        "map into an array": (lambda **k: made.map(w["draws"], **k), {"out": np.empty((60, 3))}),
        "Region.of": (Region.of, {"center": w["vector"], "target": made.target, "level": 0.9}),
        "boundary": (made.region().boundary, {"i": 0, "j": "b1", "points": 20}),
        "of": (made.of, {"function": lambda t: t["b0"], "name": "b"}),
        "interval of a function": (made.of(lambda t: t["b0"]).interval, {"level": 0.9}),
        "subset": (criterion.subset, {"rows": np.arange(9)}),
        "with_loss": (criterion.with_loss, {"loss": losses.Huber()}),
        "with_penalty": (criterion.with_penalty, {"penalty": penalties.Ridge(1.0)}),
        "with_plug_ins": (criterion.with_plug_ins, {"plug_ins": {"scale": 1.0}}),
        "derivatives": (criterion.derivatives, {"theta": np.zeros(3), "majorize": False}),
        "from_formula": (
            ef.Criterion.from_formula,
            {
                **formula,
                **columns,
                "penalty": penalties.Ridge(1.0),
                "trials": None,
                "penalize_intercept": True,
                "context": {},
            },
        ),
        "from_parts": (
            ef.Criterion.from_parts,
            {
                **formula,
                **columns,
                "data": [table[:12], table[12:]],
                "penalty": penalties.Ridge(1.0),
                "clusters": ("g",),
                "trials": None,
                "penalize_intercept": True,
                "context": {},
                "batch": 7,
                "scheduler": None,
            },
        ),
        "LogPrior.from_penalty": (
            ef.LogPrior.from_penalty,
            {"penalty": penalties.Ridge(1.0), "p": 3},
        ),
        "SmoothPenalty": (
            lambda **k: fitted(losses.Huber(), penalties.SmoothPenalty(**k)),
            {
                "function": lambda t: t @ t,
                "slope": lambda t: 2 * t,
                "curvature": lambda t: 2 * np.eye(3),
                "strength": 0.1,
            },
        ),
        "RandomIntercept.posterior": (
            model.posterior,
            {"eta": 1.0, "kind": "appendix", "scaled": True},
        ),
        "RandomIntercept.sample": (
            model.sample,
            {
                "eta": 1.0,
                "kind": "appendix",
                "draws": 20,
                "seed": 1,
                "chains": 2,
                "burn_in": 5,
                "scaled": True,
            },
        ),
        "RandomIntercept.calibrate": (model.calibrate, {"draws": w["draws"], "level": 0.9}),
        "RandomIntercept.from_formula": (
            ef.RandomIntercept.from_formula,
            {
                "formula": "y ~ b0",
                "data": table,
                "groups": "g",
                "c": 1.345,
                "tau2": 0.5,
                "sigma2": 1.0,
                "penalty": penalties.Ridge(0.1),
            },
        ),
        "RandomEffects.from_formula": (
            ef.RandomEffects.from_formula,
            {
                "formula": "y ~ b0",
                "data": table,
                "groups": "g",
                "random": "1 + b0",
                "c": 1.345,
                "D": [[0.5, 0.1], [0.1, 0.3]],
                "sigma2": 1.0,
                "penalty": penalties.Ridge(0.1),
            },
        ),
        "select gpc": (
            partial(rate, "gpc"),
            {
                "resamples": 100,
                "level": 0.9,
                "functional": w["vector"],
                "region": "laplace",
                "draws": 100,
                "solver": "root",
                "start": 1.0,
                "tolerance": 0.01,
                "max_iter": 20,
            },
        ),
        "select safebayes": (
            partial(rate, "safebayes"),
            {
                "version": "R",
                "grid": [0.5, 1.0],
                "permute": False,
                "conjugate": None,
                "start": 12,
                "draws": 100,
            },
        ),
        "select onizuka": (partial(rate, "onizuka"), {"weight": np.eye(3)}),
        "select matsubara": (partial(rate, "matsubara"), {"resamples": 100}),
        "select kl_to_bayes": (
            partial(rate, "kl_to_bayes"),
            {
                "reference": ef.GeneralizedPosterior(criterion.with_loss(losses.Huber()), 1.0),
                "window": 20,
                "direction": "forward",
                "approximation": "normal",
                "draws": 400,
            },
        ),
        "target of a Panel": (
            partial(_depending, partial(ef.target, criterion), ef.Panel),
            {
                "time": np.arange(24) // 2,
                "unit": np.arange(24) % 2,
                "bandwidth": 2,
                "correction": "DK",
            },
        ),
        "lags of a series": (
            partial(_depending, partial(ef.target, criterion), ef.TimeSeries),
            {"time": np.arange(24), "bandwidth": "newey-west", "correction": "Bartlett"},
        ),
        "jackknife": (
            partial(ef.calibrate, drawn),
            {
                "log_likelihood": -0.5 * (y - drawn @ X.T) ** 2,
                "eta": 1.0,
                "clusters": labels,
                "correction": "CR1",
            },
        ),
        "jackknife of a series": (
            partial(_depending, partial(ef.calibrate, drawn), ef.TimeSeries),
            {
                "log_likelihood": -0.5 * (y - drawn @ X.T) ** 2,
                "time": np.arange(24),
                "bandwidth": 5,
            },
        ),
    }


def _crossed(criterion: Any, a: Any, b: Any) -> Any:
    """Call `target` with clusters in two ways, one after the other."""
    return ef.target(criterion, dependence=ef.Clusters(a, b))


def _depending(call: Any, structure: Any, **arguments: Any) -> Any:
    """Call a function with a structure made of those of its own arguments."""
    own = {key: arguments.pop(key) for key in signature(structure).parameters if key in arguments}
    return call(dependence=structure(**own), **arguments)


def _called(rng: np.random.Generator, known: dict[str, Call]) -> None:
    function, valid = known[pick(rng, sorted(known))]
    arguments = dict(valid)
    for _ in range(1 + (rng.random() < 0.3)):
        key = pick(rng, sorted(arguments))
        value = arguments[key]
        array = isinstance(value, np.ndarray) and rng.random() < 0.6
        arguments[key] = spoiled_array(rng, value) if array else hostile(rng)
    function(**arguments)


def call_a_function(rng: np.random.Generator, folder: Path) -> None:
    """Call a public function with one or two arguments spoiled."""
    _called(rng, public() | parts())


def call_a_result(rng: np.random.Generator, folder: Path) -> None:
    """Ask a calibration something with one or two arguments spoiled."""
    _called(rng, questions())
    if rng.random() < 0.1:
        import matplotlib.pyplot as plt

        plt.close("all")

"""Stan: CmdStan's CSV files through cmdstanpy's reader, and pystan's fits.

Entries are counted from 1 as in the Stan program, so ``beta.1.2`` is ``beta[1, 2]``. Nothing is
executed, and CmdStan need not be there. ``cmdstanpy.from_csv`` itself refuses files that lost their
comments, as other tools write them, and does not name the file that is cut off: its parsers are
called here chain by chain.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import ADAPTERS, Fit
from etafree.fits.arviz import arviz_fit, chosen_names
from etafree.fits.trees import SAMPLE_DIMS
from etafree.foundation.arguments import Array
from etafree.foundation.storage import lines_of, refuse_special

if TYPE_CHECKING:
    import xarray as xr

#: ArviZ's names of what the sampler says of itself, and densities of brms and rstanarm.
STATISTICS = {
    "lp__": "lp",
    "log-posterior": "lp",
    "lprior": "lprior",
    "accept_stat__": "acceptance_rate",
    "divergent__": "diverging",
    "stepsize__": "step_size",
    "treedepth__": "tree_depth",
    "n_leapfrog__": "n_steps",
    "energy__": "energy",
}
LIKELIHOOD = re.compile(r"log_lik(elihood)?(_\w+)?|\w+_log_lik")
PREDICTIVE = re.compile(r"\w+_rep|mean_PPD")
#: Where the indices of an entry begin in the name of its column.
INDEX = re.compile(r"\.(?=\d+(?:\.\d+)*$)")


class Variable(NamedTuple):
    """Which columns of draws hold a variable's entries, in its shape, and labels of its axes."""

    where: NDArray[np.intp]
    labels: tuple[NDArray[Any], ...]


def read_stan_csv(paths: Sequence[str | os.PathLike[str]]) -> xr.DataTree:
    """Return the draws of CmdStan's CSV files, one chain each, as a DataTree.

    Warm-up draws that were saved are left out. A variable ``log_lik`` goes to the group
    log_likelihood, ``y_rep`` to posterior_predictive, ``lp__`` and the like to sample_stats.
    """
    if not paths:
        raise InputError("draws", "names no file", "pass CmdStan's CSV files")
    ADAPTERS["cmdstanpy"].require()
    chains = [_read_chain(os.fspath(path)) for path in paths]
    header, first = chains[0]
    for path, (names, values) in zip(paths, chains, strict=True):
        problem = ""
        if names != header:
            problem = f"{str(path)!r} has other columns than {str(paths[0])!r}"
        elif len(values) != len(first):
            problem = f"{str(path)!r} has {len(values)} draws, {str(paths[0])!r} {len(first)}"
        if problem:
            raise InputError("draws", problem, "pass the chains of one fit")
    return stan_tree(header, np.stack([values for _, values in chains]))


def _read_chain(path: str) -> tuple[list[str], Array]:
    """Return the columns and the draws after warm-up of one file."""
    parser = importlib.import_module("cmdstanpy.utils.stancsv")
    written = "pass the CSV files that CmdStan's sample wrote"
    again = "copy the file again, or run the chain again"
    refuse_special(path, "draws")
    try:
        with open(path, "rb") as file:
            lines = lines_of(file, path, "draws")
            comments, header, rows = parser.parse_comments_header_and_draws(lines)
        settings = parser.parse_config(comments)
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path!r} cannot be read ({type(error).__name__})"
        raise InputError("draws", problem, written) from None
    names = (header or "").split(",")
    if "lp__" not in names or settings.get("method", "sample") != "sample":
        what = settings.get("method", "nothing that Stan wrote")
        raise InputError("draws", f"{path!r} holds {what}, not draws of a sampler", written)
    try:
        warmup, expected = _saved(settings)
    except (ValueError, ArithmeticError):
        raise InputError("draws", f"{path!r} is damaged in its comments", again) from None
    rows = [row for row in rows if row.strip()]
    complete = rows and rows[-1].endswith(b"\n") and rows[-1].count(b",") == len(names) - 1
    if not complete or expected not in (None, len(rows)):
        of = "" if expected is None else f" of {expected}"
        advice = "the chain did not finish: run it again"
        raise InputError("draws", f"{path!r} is cut off: {len(rows)}{of} draws", advice)
    try:
        table: Array = parser.csv_bytes_list_to_numpy(rows)
    except Exception as error:  # of NumPy, or of Polars where it is installed
        raise InputError("draws", f"{path!r} is damaged ({error})", again) from None
    return names, table[warmup:]


def _saved(settings: Mapping[str, str | float]) -> tuple[int, int | None]:
    """Return how many warm-up draws are in a file, and how many draws in all must be."""
    if "num_samples" not in settings:
        return 0, None
    thin = int(settings.get("thin", 1))
    kept = settings.get("save_warmup") == 1 and settings.get("algorithm") != "fixed_param"
    warmup = -(-int(settings.get("num_warmup", 0)) // thin) if kept else 0
    return warmup, warmup - (-int(settings["num_samples"]) // thin)


def stan_tree(names: Sequence[str], values: Array) -> xr.DataTree:
    """Return the draws (chain, draw, column) of Stan's columns as a DataTree."""
    variables = {
        name: Variable(where, tuple(np.arange(1, size + 1) for size in where.shape))
        for name, where in _variables(names).items()
    }
    tree = grouped_tree(variables, values)
    tree["posterior"].attrs["inference_library"] = "stan"
    return tree


def grouped_tree(variables: Mapping[str, Variable], values: Array) -> xr.DataTree:
    """Return draws (chain, draw, column) as a DataTree with every variable in its group."""
    import xarray as xr

    order = ("posterior", "sample_stats", "log_likelihood", "posterior_predictive")
    groups: dict[str, dict[str, xr.DataArray]] = {name: {} for name in order}
    coords = {dim: np.arange(size) for dim, size in zip(SAMPLE_DIMS, values.shape, strict=False)}
    for name, (where, labels) in variables.items():
        group, label = "posterior", name
        if name.endswith("__") or name in STATISTICS:
            group, label = "sample_stats", STATISTICS.get(name, name.removesuffix("__"))
        elif LIKELIHOOD.fullmatch(name):
            group = "log_likelihood"
        elif PREDICTIVE.fullmatch(name):
            group = "posterior_predictive"
        data = values[..., where]
        axes = {f"{label}_dim_{k}": along for k, along in enumerate(labels)}
        groups[group][label] = xr.DataArray(
            data.astype(bool) if label == "diverging" else data,
            dims=[*SAMPLE_DIMS, *axes],
            coords={**coords, **axes},
        )
    tree = {name: xr.Dataset(a) for name, a in groups.items() if a or name == "posterior"}
    return xr.DataTree.from_dict(tree)


def _place(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the variable of a column and its place there: ``("beta", (0, 1))`` of beta.1.2."""
    base, *index = INDEX.split(name, maxsplit=1)
    return base, tuple(int(k) - 1 for k in index[0].split(".")) if index else ()


def _variables(names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Return for every variable the columns of its entries, in its shape."""
    entries: dict[str, dict[tuple[int, ...], int]] = {}
    for column, name in enumerate(names):
        base, place = _place(name)
        entries.setdefault(base, {})[place] = column
    variables = {}
    for base, places in entries.items():
        depth = len(next(iter(places)))
        shape = tuple(max(place[k] for place in places) + 1 for k in range(depth))
        if any(len(place) != depth for place in places) or len(places) != np.prod(shape, dtype=int):
            problem = f"has gaps in the entries of {base!r}"
            raise InputError("draws", problem, "is the header whole?")
        variables[base] = np.empty(shape, dtype=np.intp)
        for place, column in places.items():
            variables[base][place] = column
    return variables


def pystan_fit(
    fit: Any,
    model: Any = None,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    losses: bool | None = None,
) -> Fit:
    """Return a pystan fit, with its model on the unconstrained scale.

    What ``stan.build`` returned is the model. Its parameters are calibrated unconstrained and
    mapped back, transformed parameters computed again; without it draws are taken as they are.
    """
    columns = [*fit.sample_and_sampler_param_names, *fit.constrained_param_names]
    values = np.stack([_column(fit, name) for name in columns], axis=-1)
    warmup = -(-fit.num_warmup // fit.num_thin) if fit.save_warmup else 0
    tree = stan_tree(columns, values[:, warmup:])
    if model is None:
        return arviz_fit(tree, var_names, filter_vars, log_likelihood, eta, losses)
    if tuple(model.constrained_param_names) != tuple(fit.constrained_param_names):
        raise InputError("model", "has other parameters than the fit", "pass the model it is of")
    posterior = tree["posterior"].to_dataset()
    chosen_names(posterior, var_names, filter_vars)
    plain = arviz_fit(tree, None, None, log_likelihood, eta, losses)
    services = _Services(model)
    free = services.unconstrain(posterior)
    names = services.names(free.reshape(-1, free.shape[-1])[0])
    draws = Draws(free, names, plain.draws.eta, sampler="stan")
    return replace(plain, draws=draws, constrain=services.variables, findings=())


def _column(fit: Any, name: str) -> Array:
    """Return one column of a pystan fit as (chain, draw)."""
    base, place = _place(name)
    array = np.asarray(fit[base])
    array = array[place] if place else array.reshape(-1)
    return array.reshape(-1, fit.num_chains).T


class _Services:
    """A Stan model's maps between scales, through the functions that pystan compiled.

    It pickles and copies without them: they are found again by the model's name.
    """

    def __init__(self, model: Any) -> None:
        self.model = str(model.model_name)
        self.data = model.data
        self.columns = tuple(model.constrained_param_names)

    @cached_property
    def module(self) -> ModuleType:
        """What pystan compiled."""
        models = importlib.import_module("httpstan.models")
        try:
            compiled: ModuleType = models.import_services_extension_module(self.model)
        except KeyError:  # httpstan's word for a model that it has not got
            raise InputError("model", "is not compiled here", "call stan.build first") from None
        return compiled

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "module"}

    def constrain(self, theta: Array, computed: bool) -> Array:
        """Return parameters (and transformed ones) (..., k) from unconstrained ones (..., p)."""
        flat = [
            self.module.write_array(self.data, row.tolist(), computed, False)
            for row in theta.reshape(-1, theta.shape[-1])
        ]
        return np.asarray(flat, dtype=np.float64).reshape(*theta.shape[:-1], -1)

    def unconstrain(self, posterior: xr.Dataset) -> Array:
        """Return the unconstrained draws (chain, draw, p)."""
        arrays = {
            str(name): array.transpose(*SAMPLE_DIMS, ...).values
            for name, array in posterior.data_vars.items()
        }
        shape = next(iter(arrays.values())).shape[:2]
        flat = [
            self.module.transform_inits(
                self.data, {name: array[place].tolist() for name, array in arrays.items()}
            )
            for place in np.ndindex(*shape)
        ]
        return np.asarray(flat, dtype=np.float64).reshape(*shape, -1)

    def variables(self, theta: Array) -> dict[str, Array]:
        """Return parameters and transformed parameters (..., *shape)."""
        values = self.constrain(theta, computed=True)
        places = _variables(self.columns[: values.shape[-1]])
        return {name: values[..., where] for name, where in places.items()}

    def names(self, theta: Array) -> tuple[str, ...]:
        """Return names of the unconstrained parameters, a variable's own where it has no bounds."""
        base = self.constrain(theta, computed=False)
        columns = self.columns[: base.shape[-1]]
        moved = self.constrain(theta + 1e-3 * np.eye(len(theta)), computed=False)
        names, counts = [], dict.fromkeys(_variables(columns), 0)
        for k, row in enumerate(moved):
            column = int(np.flatnonzero(row != base)[0])
            name, place = _place(columns[column])
            counts[name] += 1
            index = f"[{', '.join(str(i + 1) for i in place)}]" if place else ""
            free = base[column] == theta[k]
            names.append(name + index if free else f"{name}_free[{counts[name]}]")
        return tuple(names)

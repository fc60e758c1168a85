"""Stan: CmdStan's CSV files, read without CmdStan, and pystan's fits.

Nothing is executed: a CSV file is comments, a header, numbers. Entries are counted from 1 as in
the Stan program, so ``beta.1.2`` is ``beta[1, 2]``.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.draws import Draws
from etafree.errors import InputError
from etafree.fits import Fit
from etafree.fits.arviz import arviz_fit, chosen_names
from etafree.fits.trees import SAMPLE_DIMS
from etafree.foundation.arguments import Array
from etafree.foundation.storage import lines_of, refuse_special

if TYPE_CHECKING:
    import xarray as xr

#: ArviZ's names of what the sampler says of itself.
STATISTICS = {
    "lp__": "lp",
    "accept_stat__": "acceptance_rate",
    "divergent__": "diverging",
    "stepsize__": "step_size",
    "treedepth__": "tree_depth",
    "n_leapfrog__": "n_steps",
    "energy__": "energy",
}
LIKELIHOOD = re.compile(r"log_lik(elihood)?(_\w+)?|\w+_log_lik")
PREDICTIVE = re.compile(r"\w+_rep")


def read_stan_csv(paths: Sequence[str | os.PathLike[str]]) -> xr.DataTree:
    """Return the draws of CmdStan's CSV files, one chain each, as a DataTree.

    Warm-up draws that were saved are left out. A variable ``log_lik`` goes to the group
    log_likelihood, ``y_rep`` to posterior_predictive, ``lp__`` and the like to sample_stats.
    """
    if not paths:
        raise InputError("draws", "names no file", "pass CmdStan's CSV files")
    chains = [_read_chain(os.fspath(path)) for path in paths]
    header, first = chains[0]
    for path, (names, values) in zip(paths, chains, strict=True):
        if names != header:
            raise InputError(
                "draws",
                f"{str(path)!r} has other columns than {str(paths[0])!r}",
                "pass the chains of one fit",
            )
        if len(values) != len(first):
            raise InputError(
                "draws",
                f"{str(path)!r} has {len(values)} draws, {str(paths[0])!r} {len(first)}",
                "pass the chains of one fit",
            )
    return stan_tree(header, np.stack([values for _, values in chains]))


class _Contents(NamedTuple):
    """What is in a file: settings, header and its line, number of rows, the last as it stands."""

    settings: dict[str, str]
    header: str
    above: int
    rows: int
    last: str


def _scanned(path: str) -> _Contents:
    """Return what is in a file, from one pass over its lines."""
    settings: dict[str, str] = {}
    header, above, rows, last = "", 0, 0, ""
    refuse_special(path, "draws")
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(lines_of(file, path, "draws"), start=1):
                if line.startswith("#"):
                    setting = re.match(r"#\s*(\w+) = (\S+)", line)
                    if setting:
                        settings.setdefault(setting[1], setting[2])
                elif not header:
                    header, above = line.strip(), number
                elif line.strip():
                    rows, last = rows + 1, line
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "draws",
            f"{path!r} cannot be read ({type(error).__name__})",
            "pass the CSV files that CmdStan's sample wrote",
        ) from None
    return _Contents(settings, header, above, rows, last)


def _read_chain(path: str) -> tuple[list[str], Array]:
    """Return the columns and the draws after warm-up of one file."""
    settings, header, above, rows, last = _scanned(path)
    names = header.split(",")
    if "lp__" not in names or settings.get("method", "sample") != "sample":
        what = settings.get("method", "nothing that Stan wrote")
        raise InputError(
            "draws",
            f"{path!r} holds {what}, not draws of a sampler",
            "pass the CSV files that CmdStan's sample wrote",
        )
    try:
        warmup, wanted = _saved(settings)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            "draws",
            f"{path!r} is damaged in its comments",
            "copy the file again, or run the chain again",
        ) from None
    complete = last.endswith("\n") and last.count(",") == len(names) - 1
    if not complete or (wanted is not None and rows != warmup + wanted):
        expected = "" if wanted is None else f" of {warmup + wanted}"
        raise InputError(
            "draws",
            f"{path!r} is cut off: {rows}{expected} draws",
            "the chain did not finish: run it again",
        )
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=above, ndmin=2, encoding="utf-8")
    except ValueError as error:
        raise InputError(
            "draws", f"{path!r} is damaged ({error})", "copy the file again, or run the chain again"
        ) from None
    return names, table[warmup:]


def _saved(settings: Mapping[str, str]) -> tuple[int, int | None]:
    """Return how many warm-up draws are in a file and how many others must be."""
    if "num_samples" not in settings:
        return 0, None
    thin = int(settings.get("thin", "1"))
    kept = settings.get("save_warmup", "0") in ("1", "true")
    warmup = -(-int(settings.get("num_warmup", "0")) // thin) if kept else 0
    return warmup, -(-int(settings["num_samples"]) // thin)


def stan_tree(names: Sequence[str], values: Array) -> xr.DataTree:
    """Return the draws (chain, draw, column) of Stan's columns as a DataTree.

    Examples
    --------
    >>> tree = stan_tree(["lp__", "b.1", "b.2", "log_lik.1"], np.zeros((1, 3, 4)))
    >>> tree.groups, tree["posterior"]["b"].dims
    (('/', '/posterior', '/sample_stats', '/log_likelihood'), ('chain', 'draw', 'b_dim_0'))
    """
    import xarray as xr

    groups: dict[str, dict[str, xr.DataArray]] = {"posterior": {}}
    for name, where in _variables(names).items():
        group = "posterior"
        label = name
        if name.endswith("__"):
            group, label = "sample_stats", STATISTICS.get(name, name.removesuffix("__"))
        elif LIKELIHOOD.fullmatch(name):
            group = "log_likelihood"
        elif PREDICTIVE.fullmatch(name):
            group = "posterior_predictive"
        data = values[..., where]
        if label == "diverging":
            data = data.astype(bool)
        dims = [f"{label}_dim_{k}" for k in range(where.ndim)]
        counted = {dim: np.arange(1, n + 1) for dim, n in zip(dims, where.shape, strict=True)}
        coords = {dim: np.arange(values.shape[k]) for k, dim in enumerate(SAMPLE_DIMS)}
        array = xr.DataArray(data, dims=[*SAMPLE_DIMS, *dims], coords={**coords, **counted})
        groups.setdefault(group, {})[label] = array
    order = ("posterior", "sample_stats", "log_likelihood", "posterior_predictive")
    made = {name: xr.Dataset(groups[name]) for name in order if name in groups}
    made["posterior"].attrs["inference_library"] = "stan"
    return xr.DataTree.from_dict(made)


def _variables(names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Return for every variable the columns of its entries, in its shape."""
    entries: dict[str, dict[tuple[int, ...], int]] = {}
    for column, name in enumerate(names):
        base, *index = re.split(r"\.(?=\d+(?:\.\d+)*$)", name, maxsplit=1)
        place = tuple(int(k) - 1 for k in index[0].split(".")) if index else ()
        entries.setdefault(base, {})[place] = column
    out = {}
    for base, places in entries.items():
        depth = len(next(iter(places)))
        shape = tuple(max(place[k] for place in places) + 1 for k in range(depth))
        if any(len(place) != depth for place in places) or len(places) != np.prod(shape, dtype=int):
            raise InputError(
                "draws", f"has gaps in the entries of {base!r}", "is the header whole?"
            )
        where = np.empty(shape, dtype=np.intp)
        for place, column in places.items():
            where[place] = column
        out[base] = where
    return out


def pystan_fit(
    fit: Any,
    model: Any = None,
    *,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    stored: bool | None = None,
) -> Fit:
    """Return a pystan fit, with its model on the unconstrained scale.

    Parameters
    ----------
    fit : stan.fit.Fit
    model : stan.model.Model, optional
        What ``stan.build`` returned. Its parameters are calibrated unconstrained and mapped back,
        transformed parameters computed again; without it the draws are taken as they are.
    """
    columns = [*fit.sample_and_sampler_param_names, *fit.constrained_param_names]
    values = np.stack([_column(fit, name) for name in columns], axis=-1)
    warmup = -(-fit.num_warmup // fit.num_thin) if fit.save_warmup else 0
    tree = stan_tree(columns, values[:, warmup:])
    if stored is None:
        stored = log_likelihood is not None or "log_likelihood" in tree.children
    if model is None:
        return arviz_fit(
            tree,
            var_names=var_names,
            filter_vars=filter_vars,
            log_likelihood=log_likelihood,
            eta=eta,
            stored=stored,
        )
    if tuple(model.constrained_param_names) != tuple(fit.constrained_param_names):
        raise InputError("model", "has other parameters than the fit", "pass the model it is of")
    plain = arviz_fit(tree, log_likelihood=log_likelihood, eta=eta, stored=stored)
    posterior = tree["posterior"].to_dataset()
    chosen_names(posterior, var_names, filter_vars)
    services = _Services(model)
    free = services.unconstrain(posterior)
    names = services.names(free.reshape(-1, free.shape[-1])[0])
    draws = Draws(free, names, plain.draws.eta, sampler="stan")
    return replace(plain, draws=draws, constrain=services.variables, findings=())


def _column(fit: Any, name: str) -> Array:
    """Return one column of a pystan fit as (chain, draw)."""
    base, *index = re.split(r"\.(?=\d)", name, maxsplit=1)
    place = tuple(int(k) - 1 for k in index[0].split(".")) if index else ()
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
    def module(self) -> Any:
        """What pystan compiled."""
        models: Any = importlib.import_module("httpstan.models")
        try:
            return models.import_services_extension_module(self.model)
        except KeyError:  # httpstan's word for a model that it has not got
            raise InputError("model", "is not compiled here", "call stan.build first") from None

    def __getstate__(self) -> dict[str, Any]:
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
        found = _variables(self.columns[: values.shape[-1]])
        return {name: values[..., where] for name, where in found.items()}

    def names(self, theta: Array) -> tuple[str, ...]:
        """Return names of the unconstrained parameters, a variable's own where it has no bounds."""
        columns = self.columns[: self.constrain(theta, computed=False).shape[-1]]
        base = self.constrain(theta, computed=False)
        moved = self.constrain(theta + 1e-3 * np.eye(len(theta)), computed=False)
        out, counts = [], dict.fromkeys(_variables(columns), 0)
        for k, row in enumerate(moved):
            column = columns[int(np.flatnonzero(row != base)[0])]
            name = re.split(r"\.(?=\d)", column, maxsplit=1)[0]
            label = re.sub(r"\.(.*)", lambda m: f"[{m[1].replace('.', ', ')}]", column)
            free = base[columns.index(column)] == theta[k]
            out.append(label if free else f"{name}_free[{counts[name] + 1}]")
            counts[name] += 1
        return tuple(out)

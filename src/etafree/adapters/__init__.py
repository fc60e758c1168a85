"""Fits of other packages: recognised by the name of their type, so that nothing is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etafree.errors import InputError, MissingExtraError
from etafree.validation import as_choice

if TYPE_CHECKING:
    from etafree.fits import Fit

__all__ = ["as_fit"]

#: Types that are fits or models; others, such as DataArrays, are arrays.
FITS = {"arviz": ("InferenceData",), "xarray": ("DataTree", "Dataset"),
        "cmdstanpy": ("CmdStanMCMC",), "stan": ("Fit",), "numpyro": ("MCMC",),
        "pymc": ("Model",), "bambi": ("Model",)}  # fmt: skip

#: What fits and models of an extra are called, and the packages that reading them takes.
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "arviz": ("InferenceData", ("arviz",)),
    "bambi": ("Bambi models", ("bambi", "jax")),
    "numpyro": ("NumPyro models", ("numpyro", "jax")),
    "pymc": ("PyMC models", ("pymc", "jax")),
    "stan": ("Stan models", ("httpstan",)),
}


def as_fit(
    obj: Any, *, model: Any = None, var_names: Any = None, filter_vars: str | None = None,
    log_likelihood: Any = None, eta: float | None = None, latent: str | None = "auto",
    prior: str | None = None, stored: bool = True, model_args: Sequence[Any] = (),
    model_kwargs: Any = None,
) -> Fit | None:  # fmt: skip
    """Return a foreign fit's draws with its losses or criterion; None for plain draws.

    Parameters
    ----------
    obj : InferenceData, DataTree, Dataset, path, CmdStanMCMC, pystan Fit, NumPyro MCMC, or draws
        A path is a netCDF file, a zarr store or CmdStan's CSV file, or a list of the latter.
    model : pymc.Model, bambi.Model, stan.model.Model or NumPyro function, optional
        Gives exact derivatives; without it stored log-likelihoods are used.
    var_names, filter_vars, log_likelihood, eta, latent, prior
        As for `etafree.calibrate`.
    stored : bool
        Whether losses must be stored in a fit without a model.
    model_args, model_kwargs
        What a NumPyro model is called with.
    """
    if latent is not None:
        as_choice(latent, "latent", ("auto",))
    if filter_vars is not None:
        as_choice(filter_vars, "filter_vars", ("like", "regex"))
    kind = "InferenceData" if type(obj).__name__ == "InferenceData" else "DataTree"
    chosen = {"var_names": var_names, "filter_vars": filter_vars}
    source, modelled = _origin(obj), _origin(model)
    if isinstance(obj, str | os.PathLike) or _paths(obj):
        obj, source = _read(obj), "xarray"
    elif source == "cmdstanpy":
        from etafree.adapters.stan import read_stan_csv

        obj, source = read_stan_csv(obj.runset.csv_files), "xarray"
    if source in ("arviz", "xarray"):
        from etafree.adapters.trees import as_tree, with_own_draws

        obj = with_own_draws(as_tree(obj))
    if model is not None and source != "stan" and modelled not in ("pymc", "bambi"):
        if not callable(model):
            raise InputError("model", f"is a {type(model).__name__}", "pass a pymc.Model, a "
                             "bambi.Model or a NumPyro function; a stan.model.Model goes with its "
                             "own fit")  # fmt: skip
        modelled = "numpyro"
    for package in (source, modelled):
        purpose, needed = NEEDS.get(package, ("", ()))
        if any(find_spec(name) is None for name in needed):
            raise MissingExtraError(package, purpose)
    if "numpyro" not in (source, modelled):
        for argument, value in (("model_args", tuple(model_args)), ("model_kwargs", model_kwargs)):
            if value:
                raise InputError(argument, "is what a NumPyro model is called with",
                                 "leave it out")  # fmt: skip
    if filter_vars is not None and var_names is None:
        raise InputError("filter_vars", "says how var_names= is read", "pass var_names= too")
    if prior is not None and source == "stan":
        raise InputError("prior", "means nothing to Stan, whose density has one for both",
                         "leave it out")  # fmt: skip
    fit: Fit
    exact: Any = {**chosen, "log_likelihood": log_likelihood, "eta": eta, "prior": prior,
                  "latent": latent}  # fmt: skip
    if source == "numpyro" or modelled == "numpyro":
        from etafree.adapters.numpyro import numpyro_fit
        from etafree.adapters.portable import portable

        called = model if model is not None else obj.sampler.model
        fit = portable(numpyro_fit, obj, called, args=tuple(model_args), kwargs=model_kwargs or {},
                       **exact)  # fmt: skip
    elif source == "stan":
        from etafree.adapters.stan import pystan_fit

        fit = pystan_fit(obj, model, **chosen, log_likelihood=log_likelihood, eta=eta,
                         stored=stored)  # fmt: skip
    elif source not in ("arviz", "xarray"):
        if model is not None:
            raise InputError("model", "needs the fit it made", "pass the InferenceData as draws")
        return None
    elif modelled == "pymc":
        from etafree.adapters.portable import portable
        from etafree.adapters.pymc import pymc_fit

        fit = portable(pymc_fit, obj, model, **exact)
    elif modelled == "bambi":
        from etafree.adapters.bambi import bambi_fit, built
        from etafree.adapters.portable import portable

        fit = portable(bambi_fit, obj, built(model), **exact)
    else:
        from etafree.adapters.arviz import arviz_fit

        fit = arviz_fit(obj, **chosen, log_likelihood=log_likelihood, eta=eta,
                        stored=stored)  # fmt: skip
    if var_names is not None and fit.constrain is not None:
        from etafree.adapters.arviz import chosen_names

        posterior = fit.tree["posterior"].to_dataset()
        fit = replace(fit, shown=tuple(chosen_names(posterior, var_names, filter_vars)))
    return replace(_with_table(fit, model if modelled == "bambi" else None), kind=kind)


def _with_table(fit: Fit, bambi_model: Any) -> Fit:
    """Return a model's fit with labels by name and by index.

    Names are those of variables of the fit's data with one value per row, and of the columns of a
    Bambi model's data, of which rows with missing values may have been dropped.
    """
    if fit.criterion is None:
        return fit
    from etafree.adapters.observations import find_observations

    rows = fit.criterion.rows
    stored = {group: fit.tree[group].to_dataset() for group in ("constant_data", "observed_data",
              "log_likelihood") if group in fit.tree.children}  # fmt: skip
    observed = [stored[group] for group in ("log_likelihood", "observed_data") if group in stored]
    observations = find_observations(observed, rows.original)
    made = observations.rows(stored.values())
    known = replace(rows, index=made.index, table=made.table)
    if bambi_model is not None:
        from etafree.adapters.bambi import kept_rows

        data, kept = kept_rows(bambi_model, rows.original)
        if data is not None:
            known = replace(known, original=len(data), kept=kept, index=data.index, table=data)
    return replace(fit, criterion=fit.criterion.with_rows(known), observations=observations)


def _origin(obj: Any) -> str:
    """Return the package that a fit or model is of: "arviz", "xarray", "pymc", ..., or ""."""
    for cls in type(obj).__mro__:
        package = cls.__module__.split(".")[0]
        if cls.__name__ in FITS.get(package, ()):
            return package
    return ""


def _paths(obj: Any) -> bool:
    return isinstance(obj, list | tuple) and bool(obj) and all(
        isinstance(part, str | os.PathLike) for part in obj
    )  # fmt: skip


def _read(paths: Any) -> Any:
    """Return the tree of a netCDF file, a zarr store or CSV files of CmdStan."""
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if all(Path(path).suffix == ".csv" for path in several):
        from etafree.adapters.stan import read_stan_csv

        return read_stan_csv(several)
    if len(several) > 1:
        raise InputError("draws", f"are {len(several)} files", "only CSV files come as several")
    from etafree.adapters.trees import read_tree

    return read_tree(several[0])

r"""Fits of other packages: recognised by the name of their type, so that nothing is imported.

The functions that an adapter makes of a model are closures over compiled graphs, which neither
pickle nor copy. A `Recipe` holds what made them, and a `FromModel` is one of them by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from etafree.criterion import Criterion
from etafree.draws import Draws
from etafree.errors import InputError, MissingExtraError
from etafree.foundation.arguments import Array, as_choice
from etafree.foundation.check import Check

__all__ = ["Fit", "as_fit", "portable"]


@dataclass(frozen=True, eq=False)
class Fit:
    """Draws of a model's parameters, and what is known of its losses.

    Attributes
    ----------
    draws : Draws
        Free parameters on the scale that is calibrated: the unconstrained one where the model is
        known, else the one the draws came in. With R-hat, divergences and such in ``draws.info``.
    tree : xarray.DataTree
        The fit as it came; groups ``posterior``, ``log_likelihood`` and so on.
    criterion : Criterion or None
        Exact losses and derivatives on the scale of `draws`, the prior as penalty. None: only
        pointwise losses are known and the infinitesimal jackknife makes the target.
    losses : PointwiseLosses or None
        Minus the stored log-likelihood, for the jackknife.
    observations : etafree.fits.observations.Observations or None
        Dimensions and coordinates that labels are lined up with, where they are known.
    every : Draws or None
        All real variables for the slopes of the jackknife, where `draws` are some of them.
    constrain : callable or None
        Parameters (..., p) to a mapping of the model's own variables (..., *shape), deterministic
        ones too; None where the draws are the variables themselves.
    pointwise : callable or None
        Parameters (D, p) to a mapping of observed variables to log-likelihoods (D, *shape), to
        recompute the group ``log_likelihood`` of calibrated draws.
    latent : tuple of str
        Group effects that a marginal likelihood integrates out: left as they were.
    checks : tuple of Check
        What the adapter noticed.
    shown : tuple of str
        Variables to report of those that `constrain` returns; all if empty.
    kind : {"DataTree", "InferenceData"}
        What the fit came as, and goes back as.
    """

    draws: Draws
    tree: Any = field(repr=False)
    criterion: Criterion | None = None
    losses: Any = field(default=None, repr=False)
    observations: Any = field(default=None, repr=False)
    every: Draws | None = field(default=None, repr=False)
    constrain: Callable[[Array], Mapping[str, Array]] | None = field(default=None, repr=False)
    pointwise: Callable[[Array], Mapping[str, Array]] | None = field(default=None, repr=False)
    latent: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    shown: tuple[str, ...] = ()
    kind: str = "DataTree"


@dataclass(frozen=True, eq=False)
class Recipe:
    """What made a model's functions: an adapter, the fit, the model and options."""

    adapter: Callable[..., Fit]
    tree: Any
    model: Any
    options: Mapping[str, Any]

    @cached_property
    def functions(self) -> dict[str, Callable[..., Any] | None]:
        """The functions by name, made again where this comes from a pickle."""
        return functions_of(self.adapter(self.tree, self.model, **self.options))

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "functions"}
        if importlib.util.find_spec("cloudpickle") is not None:  # models hold lambdas and partials
            dumps: Any = importlib.import_module("cloudpickle").dumps
            try:
                state["model"] = Stored(dumps(self.model))
            except Exception as error:  # whatever the model refers to
                told = str(error).partition("\n")[0]
                raise InputError(
                    "model", f"does not pickle ({told})", "use save() and load()"
                ) from error
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state["model"]
        loaded = pickle.loads(model.text) if isinstance(model, Stored) else model
        self.__dict__.update(state, model=loaded)

    def __deepcopy__(self, memo: Any) -> Recipe:
        return self  # nothing in it changes


@dataclass(frozen=True)
class Stored:
    """A pickled model."""

    text: bytes


@dataclass(frozen=True, eq=False)
class FromModel:
    """One function of a recipe."""

    recipe: Recipe
    name: str

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns."""
        function = self.recipe.functions[self.name]
        assert function is not None
        return function(*args)


def functions_of(fit: Fit) -> dict[str, Callable[..., Any] | None]:
    """Return the functions of a model's fit by name."""
    assert fit.criterion is not None
    penalty: Any = fit.criterion.penalty
    return {
        "losses": fit.criterion.loss.function,
        "function": penalty.function,
        "slope": penalty.slope,
        "curvature": penalty.curvature,
        "constrain": fit.constrain,
        "pointwise": fit.pointwise,
    }


def portable(adapter: Callable[..., Fit], fit: Any, model: Any, **options: Any) -> Fit:
    """Return the fit that an adapter makes of a model, in a form that pickles and copies."""
    made = adapter(fit, model, **options)
    assert made.criterion is not None
    recipe = Recipe(adapter, made.tree, model, options)
    recipe.__dict__["functions"] = functions_of(made)
    ours = {
        name: None if function is None else FromModel(recipe, name)
        for name, function in recipe.functions.items()
    }
    total = made.criterion.total
    penalty: Any = made.criterion.penalty
    criterion = made.criterion._replaced(
        total=replace(total, loss=total.loss.with_function(ours["losses"])),
        penalty=replace(penalty, **{k: ours[k] for k in ("function", "slope", "curvature")}),
    )
    return replace(
        made, criterion=criterion, constrain=ours["constrain"], pointwise=ours["pointwise"]
    )


#: Types that are fits or models; others, such as DataArrays, are arrays.
FITS = {
    "arviz": ("InferenceData",),
    "xarray": ("DataTree", "Dataset"),
    "cmdstanpy": ("CmdStanMCMC",),
    "stan": ("Fit",),
    "numpyro": ("MCMC",),
    "pymc": ("Model",),
    "bambi": ("Model",),
}

#: What fits and models of an extra are called, and the packages that reading them takes.
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "arviz": ("InferenceData", ("arviz",)),
    "bambi": ("Bambi models", ("bambi", "jax")),
    "numpyro": ("NumPyro models", ("numpyro", "jax")),
    "pymc": ("PyMC models", ("pymc", "jax")),
    "stan": ("Stan models", ("httpstan",)),
}


def as_fit(
    obj: Any,
    *,
    model: Any = None,
    var_names: Any = None,
    filter_vars: str | None = None,
    log_likelihood: Any = None,
    eta: float | None = None,
    latent: str | None = "auto",
    prior: str | None = None,
    stored: bool = True,
    model_args: Sequence[Any] = (),
    model_kwargs: Any = None,
) -> Fit | None:
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
        from etafree.fits.stan import read_stan_csv

        obj, source = read_stan_csv(obj.runset.csv_files), "xarray"
    if source in ("arviz", "xarray"):
        from etafree.fits.trees import as_tree, with_own_draws

        obj = with_own_draws(as_tree(obj))
    if model is not None and source != "stan" and modelled not in ("pymc", "bambi"):
        if not callable(model):
            raise InputError(
                "model",
                f"is a {type(model).__name__}",
                "pass a pymc.Model, a "
                "bambi.Model or a NumPyro function; a stan.model.Model goes with its "
                "own fit",
            )
        modelled = "numpyro"
    for package in (source, modelled):
        purpose, needed = NEEDS.get(package, ("", ()))
        if any(find_spec(name) is None for name in needed):
            raise MissingExtraError(package, purpose)
    if "numpyro" not in (source, modelled):
        for argument, value in (("model_args", tuple(model_args)), ("model_kwargs", model_kwargs)):
            if value:
                raise InputError(argument, "is what a NumPyro model is called with", "leave it out")
    if filter_vars is not None and var_names is None:
        raise InputError("filter_vars", "says how var_names= is read", "pass var_names= too")
    if prior is not None and source == "stan":
        raise InputError(
            "prior", "means nothing to Stan, whose density has one for both", "leave it out"
        )
    fit: Fit
    exact: Any = {
        **chosen,
        "log_likelihood": log_likelihood,
        "eta": eta,
        "prior": prior,
        "latent": latent,
    }
    if source == "numpyro" or modelled == "numpyro":
        from etafree.fits.numpyro import numpyro_fit

        called = model if model is not None else obj.sampler.model
        fit = portable(
            numpyro_fit, obj, called, args=tuple(model_args), kwargs=model_kwargs or {}, **exact
        )
    elif source == "stan":
        from etafree.fits.stan import pystan_fit

        fit = pystan_fit(
            obj, model, **chosen, log_likelihood=log_likelihood, eta=eta, stored=stored
        )
    elif source not in ("arviz", "xarray"):
        if model is not None:
            raise InputError("model", "needs the fit it made", "pass the InferenceData as draws")
        return None
    elif modelled == "pymc":
        from etafree.fits.pymc import pymc_fit

        fit = portable(pymc_fit, obj, model, **exact)
    elif modelled == "bambi":
        from etafree.fits.bambi import bambi_fit, built

        fit = portable(bambi_fit, obj, built(model), **exact)
    else:
        from etafree.fits.arviz import arviz_fit

        fit = arviz_fit(obj, **chosen, log_likelihood=log_likelihood, eta=eta, stored=stored)
    if var_names is not None and fit.constrain is not None:
        from etafree.fits.arviz import chosen_names

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
    from etafree.fits.observations import find_observations

    rows = fit.criterion.rows
    stored = {
        group: fit.tree[group].to_dataset()
        for group in ("constant_data", "observed_data", "log_likelihood")
        if group in fit.tree.children
    }
    observed = [stored[group] for group in ("log_likelihood", "observed_data") if group in stored]
    observations = find_observations(observed, rows.original)
    made = observations.rows(stored.values())
    known = replace(rows, index=made.index, table=made.table)
    if bambi_model is not None:
        from etafree.fits.bambi import kept_rows

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
    return (
        isinstance(obj, list | tuple)
        and bool(obj)
        and all(isinstance(part, str | os.PathLike) for part in obj)
    )


def _read(paths: Any) -> Any:
    """Return the tree of a netCDF file, a zarr store or CSV files of CmdStan."""
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if all(Path(path).suffix == ".csv" for path in several):
        from etafree.fits.stan import read_stan_csv

        return read_stan_csv(several)
    if len(several) > 1:
        raise InputError("draws", f"are {len(several)} files", "only CSV files come as several")
    from etafree.fits.trees import read_tree

    return read_tree(several[0])

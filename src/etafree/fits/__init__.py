r"""Fits of other packages: recognised by the name of their type, so that nothing is imported.

The functions that an adapter makes of a model are closures over compiled graphs, which neither
pickle nor copy. A `Recipe` holds what made them, and a `FromModel` is one of them by its place.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from etafree.criterion import Criterion
from etafree.dependence.base import Structure
from etafree.draws import Draws
from etafree.errors import InputError, MissingExtraError
from etafree.foundation.arguments import Array, as_choice
from etafree.foundation.check import Finding
from etafree.foundation.terminal import counted

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from etafree.fits.model import ModelOptions
    from etafree.fits.observations import Observations

__all__ = [
    "Fit",
    "as_fit",
    "from_arviz",
    "from_bambi",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "lined_up",
    "portable",
]


@dataclass(frozen=True, eq=False)
class Fit:
    """Draws of a model's parameters, and what is known of its losses.

    What `from_arviz`, `from_bambi`, `from_numpyro`, `from_pymc` and `from_stan` return.

    Attributes
    ----------
    draws : Draws
        Free parameters on the scale that is calibrated: the unconstrained one where the model is
        known, else the one the draws came in. With R-hat, divergences and such in ``draws.info``.
    tree : xarray.DataTree
        The fit as it came.
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
        Parameters (..., p) to the model's own variables by name, deterministic ones too; None where
        the draws are the variables themselves.
    pointwise : callable or None
        Parameters (D, p) to log-likelihoods of observed variables by name.
    latent : tuple of str
        Group effects that a marginal likelihood integrates out, and what is computed from them.
    group_effects : callable or None
        Parameters (D, p) and a seed to draws of these by name, given the data and the parameters.
    predictor : callable or None
        How the model predicts: new data, a variable, and whether group effects count, or None for
        each, to `Predicted` rows.
    findings : tuple of Finding
        What the adapter noticed.
    shown : tuple of str
        Variables to report of those that `constrain` returns; all if empty.
    kind : {"DataTree", "InferenceData"}
        What the fit came as, and goes back as.
    conditional : bool
        Whether a log-likelihood given group effects is taken as it is.

    See Also
    --------
    etafree.calibrate : What takes it as draws.
    etafree.from_pymc : What makes one.

    Examples
    --------
    >>> import numpy as np, etafree as ef
    >>> fit = ef.Fit(ef.Draws.of(np.random.default_rng(0).standard_normal((100, 2))), None)
    >>> ef.calibrate(fit, ef.Target([1.0, 2.0], np.eye(2))).draws.mean.round(12)
    array([1., 2.])
    """

    draws: Draws
    tree: Any = field(repr=False)
    criterion: Criterion | None = None
    losses: Any = field(default=None, repr=False)
    observations: Observations | None = field(default=None, repr=False)
    every: Draws | None = field(default=None, repr=False)
    constrain: Callable[[Array], Mapping[str, Array]] | None = field(default=None, repr=False)
    pointwise: Callable[[Array], Mapping[str, Array]] | None = field(default=None, repr=False)
    latent: tuple[str, ...] = ()
    group_effects: Callable[[Array, int], Mapping[str, Array]] | None = field(
        default=None, repr=False
    )
    predictor: Callable[[object, str | None, bool | None], Predicted] | None = field(
        default=None, repr=False
    )
    findings: tuple[Finding, ...] = ()
    shown: tuple[str, ...] = ()
    kind: str = "DataTree"
    conditional: bool = False


@dataclass(frozen=True, eq=False)
class Predicted:
    """Rows at which a model predicts, and how.

    Attributes
    ----------
    table : DataFrame
        Variables of the rows.
    variables : tuple of str
        Columns that predictions depend on.
    at : callable
        The model's variables (d, ...) by name, and a table of as many rows, to predictions (d, m).
    known : DataFrame
        The rows of the data, whose values are the categories.
    coded : set of str
        Columns of numbers that stand for categories.
    effects : bool
        Whether predictions take group effects.
    links : pair of callables or None
        What takes predictions to the scale of the linear predictor and back, if that is known.
    """

    table: pd.DataFrame
    variables: tuple[str, ...]
    at: Callable[[Mapping[str, Array], pd.DataFrame], Array]
    known: pd.DataFrame
    coded: frozenset[str] = frozenset()
    effects: bool = False
    links: tuple[Callable[[Array], Array], Callable[[Array], Array]] | None = None


def lined_up(structure: Structure | None, fit: Fit) -> Structure | None:
    """Return a structure with its labels in the order of a fit's observations."""
    if structure is None or fit.observations is None:
        return structure
    return structure.with_labels(fit.observations.flat)


@dataclass(frozen=True, eq=False)
class Recipe:
    """What made a model's functions: an adapter, the fit, the model and options."""

    adapter: Callable[..., Fit]
    tree: object
    model: object
    options: Mapping[str, object]

    @cached_property
    def fit(self) -> Fit:
        """The fit with its functions, made again where this comes from a pickle."""
        return self.adapter(self.tree, self.model, **self.options)

    def __getstate__(self) -> dict[str, object]:
        state = {name: value for name, value in self.__dict__.items() if name != "fit"}
        if find_spec("cloudpickle") is not None:  # models hold lambdas and partials
            try:
                state["model"] = importlib.import_module("cloudpickle").dumps(self.model)
            except Exception as error:  # whatever the model refers to
                problem = f"does not pickle ({str(error).partition(chr(10))[0]})"
                raise InputError("model", problem, "use save() and load()") from error
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        model = state["model"]
        loaded = pickle.loads(model) if isinstance(model, bytes) else model
        self.__dict__.update(state, model=loaded)

    def __deepcopy__(self, memo: object) -> Recipe:
        return self  # nothing in it changes


@dataclass(frozen=True, eq=False)
class FromModel:
    """One function of a recipe's fit, by its place there."""

    recipe: Recipe
    place: str

    def __call__(self, *args: object) -> Any:
        """Return what the function returns."""
        return attrgetter(self.place)(self.recipe.fit)(*args)


def portable(adapter: Callable[..., Fit], fit: object, model: object, **options: object) -> Fit:
    """Return the fit that an adapter makes of a model, in a form that pickles and copies."""
    read = adapter(fit, model, **options)
    assert read.criterion is not None
    recipe = Recipe(adapter, read.tree, model, options)
    recipe.__dict__["fit"] = read
    total, penalty = read.criterion.total, cast("Any", read.criterion.penalty)
    derivatives = {
        name: FromModel(recipe, f"criterion.penalty.{name}")
        for name in ("function", "slope", "curvature")
    }
    losses = total.loss.again(function=FromModel(recipe, "criterion.loss.function"))
    criterion = replace(
        read.criterion, total=replace(total, loss=losses), penalty=replace(penalty, **derivatives)
    )
    return replace(
        read,
        criterion=criterion,
        constrain=FromModel(recipe, "constrain"),
        pointwise=None if read.pointwise is None else FromModel(recipe, "pointwise"),
        group_effects=None if read.group_effects is None else FromModel(recipe, "group_effects"),
        predictor=None if read.predictor is None else FromModel(recipe, "predictor"),
    )


def from_arviz(
    fit: object,
    *,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    latent: str | None = "auto",
    losses: bool | None = None,
) -> Fit:
    """Return a fit with its stored pointwise log-likelihood, to be calibrated by the jackknife.

    Parameters
    ----------
    fit : InferenceData, DataTree, Dataset, or path
        A path is a netCDF file or a zarr store.
    var_names, filter_vars : optional
        Parameters to report, with ArviZ's meaning: names, ``"~name"``, and with "like" or "regex"
        parts of names or regular expressions. The others stay in the computation.
    log_likelihood : str or list of str, optional
        Which stored variables to use, added up; "sum" for all. Needed if there are several.
    eta : float, optional
        Learning rate of the draws, 1 by default.
    latent : {"auto", None}
        "auto" refuses a log-likelihood that is conditional on group effects; None takes it.
    losses : bool, optional
        Whether the log-likelihood is read; by default where there is one.

    Returns
    -------
    Fit
        To be passed to `calibrate`.

    Raises
    ------
    InputError
        There is no posterior in it, or names that are not there.
    MissingExtraError
        A package that reading it takes is not installed.

    See Also
    --------
    from_pymc, from_bambi, from_numpyro : Fits with their models.
    from_stan : Stan's files and fits.

    Examples
    --------
    >>> import numpy as np, xarray as xr, etafree as ef
    >>> y, rng = np.array([0.0, 1.0, 2.0, 5.0]), np.random.default_rng(0)
    >>> mu = 2.0 + 0.5 * rng.standard_normal((2, 400))
    >>> drawn = xr.Dataset({"mu": (("chain", "draw"), mu)})
    >>> each = -0.5 * (y - mu[..., None]) ** 2
    >>> stored = xr.Dataset({"y": (("chain", "draw", "row"), each)})
    >>> tree = xr.DataTree.from_dict({"posterior": drawn, "log_likelihood": stored})
    >>> fit = ef.from_arviz(tree, var_names="mu")
    >>> ef.calibrate(fit).target.method
    'infinitesimal jackknife'
    """
    from etafree.fits.arviz import arviz_fit

    _check_choices(var_names, filter_vars, log_likelihood, latent)
    tree, kind = _own_tree(fit)
    read = arviz_fit(tree, var_names, filter_vars, log_likelihood, eta, losses)
    return replace(read, kind=kind, conditional=latent is None)


def from_stan(
    fit: object,
    model: object = None,
    *,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    latent: str | None = "auto",
    losses: bool | None = None,
) -> Fit:
    """Return a fit of Stan with its log-likelihood, to be calibrated by the jackknife.

    Parameters
    ----------
    fit : CmdStanMCMC, pystan Fit, or CSV file or files that CmdStan wrote
        One file per chain.
    model : stan.model.Model, optional
        Of a pystan fit: parameters are calibrated on the unconstrained scale.
    var_names, filter_vars, log_likelihood, eta, latent, losses : optional
        As for `from_arviz`.

    Returns
    -------
    Fit
        To be passed to `calibrate`.

    Raises
    ------
    InputError
        A file is damaged, or of another method than sampling.
    MissingExtraError
        cmdstanpy, or pystan for its fits, is not installed.

    See Also
    --------
    from_arviz : Fits as InferenceData or DataTree.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile, etafree as ef
    >>> mu = 2.0 + 0.5 * np.random.default_rng(0).standard_normal((400, 1))
    >>> each = -0.5 * (np.array([0.0, 1.0, 2.0, 5.0]) - mu) ** 2
    >>> columns = "lp__,mu,log_lik.1,log_lik.2,log_lik.3,log_lik.4"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "chain_1.csv")  # or CmdStan's own
    ...     rows = np.hstack([each.sum(axis=1, keepdims=True), mu, each])
    ...     np.savetxt(path, rows, delimiter=",", header=columns, comments="")
    ...     fit = ef.from_stan([path], var_names="mu")
    >>> fit.draws.names, ef.calibrate(fit).target.method
    (('mu',), 'infinitesimal jackknife')
    """
    from etafree.fits.arviz import arviz_fit
    from etafree.fits.stan import pystan_fit, read_stan_csv

    asked = (var_names, filter_vars, log_likelihood, eta, losses)
    _check_choices(var_names, filter_vars, log_likelihood, latent)
    if ADAPTERS["stan"].recognises(fit):
        ADAPTERS["stan"].require()
        read = _shown(pystan_fit(fit, model, *asked), var_names, filter_vars)
    elif model is not None:
        raise InputError("model", "of Stan goes with a pystan fit", "leave it out")
    elif ADAPTERS["cmdstanpy"].recognises(fit):
        read = arviz_fit(read_stan_csv(attrgetter("runset.csv_files")(fit)), *asked)
    elif paths := _paths(fit):
        read = arviz_fit(read_stan_csv(paths), *asked)
    else:
        advice = "pass CSV files, a CmdStanMCMC or a pystan fit"
        raise InputError("fit", f"is a {type(fit).__name__}", advice)
    return replace(read, conditional=latent is None)


def from_pymc(
    fit: object,
    model: object,
    *,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    prior: str | None = None,
    latent: str | None = "auto",
) -> Fit:
    """Return a PyMC fit with exact losses, scores and Hessian, on the unconstrained scale.

    Parameters
    ----------
    fit : InferenceData, DataTree or path
        What ``pm.sample`` returned.
    model : pymc.Model
        With the data that were sampled.
    var_names, filter_vars : optional
        Variables to report, as for `from_arviz`.
    log_likelihood : str or list of str, optional
        Which observed variables are the data, added up; "sum" for all. Needed if there are several.
    eta : float, optional
        Learning rate of the draws, 1 by default.
    prior : {"scaled", "unscaled"}, optional
        At ``eta != 1``: whether eta multiplies the model's prior too.
    latent : {"auto", None}
        "auto" integrates group effects out; None takes them as parameters.

    Returns
    -------
    Fit
        To be passed to `calibrate`; its ``criterion`` goes to `target`.

    Raises
    ------
    InputError
        The model is not that of the fit, or has no loss per observation.
    MissingExtraError
        PyMC or JAX is not installed.

    See Also
    --------
    from_bambi, from_numpyro : The same for their models.
    from_arviz : Without the model.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, etafree as ef
    >>> y, rng = np.array([0.0, 1.0, 2.0, 5.0]), np.random.default_rng(0)
    >>> with pm.Model() as model:
    ...     mu = pm.Flat("mu")
    ...     _ = pm.Normal("y", mu, 1.0, observed=y)
    >>> drawn = {"mu": (("chain", "draw"), 2.0 + 0.5 * rng.standard_normal((2, 400)))}
    >>> idata = xr.DataTree.from_dict({"posterior": xr.Dataset(drawn)})  # or pm.sample()
    >>> fit = ef.from_pymc(idata, model, var_names="mu")
    >>> ef.calibrate(fit, ef.target(fit.criterion, correction="HC0")).target.covariance.round(3)
    array([[0.875]])
    """
    from etafree.fits.pymc import pymc_fit

    ADAPTERS["pymc"].require()
    _check_choices(var_names, filter_vars, log_likelihood, latent)
    options = _checked(log_likelihood, eta, prior, latent)
    return _modelled(pymc_fit, fit, model, var_names, filter_vars, options)


def from_bambi(
    fit: object,
    model: object,
    *,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    prior: str | None = None,
    latent: str | None = "auto",
) -> Fit:
    """Return a Bambi fit with exact losses; columns of its data may be named as clusters.

    Parameters
    ----------
    fit : InferenceData, DataTree or path
        What ``model.fit()`` returned.
    model : bambi.Model
        The model that was fitted.
    var_names, filter_vars, log_likelihood, eta, prior, latent : optional
        As for `from_pymc`.

    Returns
    -------
    Fit
        To be passed to `calibrate`; its ``criterion`` goes to `target`.

    Raises
    ------
    InputError
        The model is not that of the fit, or has no loss per observation.
    MissingExtraError
        Bambi or JAX is not installed.

    See Also
    --------
    from_pymc, from_numpyro : The same for their models.

    Examples
    --------
    >>> import bambi as bmb, numpy as np, pandas as pd, xarray as xr, etafree as ef
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"y": np.arange(12.0), "school": list("aabbccddeeff")})
    >>> model = bmb.Model("y ~ 1", table)
    >>> drawn = {"Intercept": 5.5 + rng.standard_normal((2, 400))}
    >>> drawn["sigma"] = np.exp(1.2 + 0.2 * rng.standard_normal((2, 400)))
    >>> posterior = xr.Dataset({k: (("chain", "draw"), v) for k, v in drawn.items()})
    >>> idata = xr.DataTree.from_dict({"posterior": posterior})  # or model.fit()
    >>> fit = ef.from_bambi(idata, model, var_names="~sigma")
    >>> ef.calibrate(fit, clusters="school").target.describe()
    'sandwich, 6 clusters, CR3, t with 2.3 to 3.8 degrees of freedom'
    """
    from etafree.fits.bambi import bambi_fit, built

    ADAPTERS["bambi"].require()
    _check_choices(var_names, filter_vars, log_likelihood, latent)
    options = _checked(log_likelihood, eta, prior, latent)
    read = _modelled(bambi_fit, fit, built(model), var_names, filter_vars, options)
    return _with_bambi_data(read, model)


def from_numpyro(
    fit: object,
    model: object = None,
    *,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    var_names: object = None,
    filter_vars: str | None = None,
    log_likelihood: str | Sequence[str] | None = None,
    eta: float | None = None,
    prior: str | None = None,
    latent: str | None = "auto",
) -> Fit:
    """Return a NumPyro fit with exact losses, scores and Hessian, on the unconstrained scale.

    Parameters
    ----------
    fit : numpyro.infer.MCMC, mapping of samples, InferenceData, DataTree or path
        What was drawn.
    model : callable, optional
        By default that of the MCMC.
    args, kwargs : optional
        What the model is called with, as in ``mcmc.run``.
    var_names, filter_vars, log_likelihood, eta, prior, latent : optional
        As for `from_pymc`.

    Returns
    -------
    Fit
        To be passed to `calibrate`; its ``criterion`` goes to `target`.

    Raises
    ------
    InputError
        The model is not that of the fit, or cannot be called with these arguments.
    MissingExtraError
        NumPyro is not installed.

    See Also
    --------
    from_pymc, from_bambi : The same for their models.

    Examples
    --------
    >>> import numpy as np, numpyro, etafree as ef
    >>> from numpyro.distributions import Normal
    >>> def model(y):
    ...     numpyro.sample("y", Normal(numpyro.sample("mu", Normal(0.0, 100.0)), 1.0), obs=y)
    >>> y, rng = np.array([0.0, 1.0, 2.0, 5.0]), np.random.default_rng(0)
    >>> samples = {"mu": 2.0 + 0.5 * rng.standard_normal(400)}  # or an MCMC
    >>> fit = ef.from_numpyro(samples, model, args=(y,))
    >>> fit.criterion.n, ef.calibrate(fit).center.round(3)
    (4, array([2.]))
    """
    from etafree.fits.numpyro import numpyro_fit

    ADAPTERS["numpyro"].require()
    _check_choices(var_names, filter_vars, log_likelihood, latent)
    options = _checked(log_likelihood, eta, prior, latent)
    if model is None:
        if not ADAPTERS["numpyro"].recognises(fit):
            raise InputError("model", "is missing", "pass the function that was sampled")
        model = attrgetter("sampler.model")(fit)
    call = {"args": tuple(args), "kwargs": dict(kwargs or {})}
    return _modelled(numpyro_fit, fit, model, var_names, filter_vars, options, **call)


@dataclass(frozen=True)
class Adapter:
    """How fits and models of a package are recognised and read, and what reading them takes."""

    package: str
    types: str
    read: Callable[..., Fit]
    extra: str = ""
    purpose: str = ""
    needs: str = ""

    def recognises(self, obj: object) -> bool:
        """Return whether an object is a fit or model of the package."""
        return _origin(obj) == self.package

    def require(self) -> None:
        """Refuse to go on without the packages that reading takes."""
        if any(find_spec(name) is None for name in self.needs.split()):
            raise MissingExtraError(self.extra, self.purpose)


#: Who reads fits and models of a package. Other types of it, such as DataArrays, are arrays.
ADAPTERS = {
    adapter.package: adapter
    for adapter in (
        Adapter("arviz", "InferenceData", from_arviz, "arviz", "InferenceData", "arviz"),
        Adapter("xarray", "DataTree Dataset", from_arviz),
        Adapter("cmdstanpy", "CmdStanMCMC", from_stan, "stan", "CmdStan's CSV files", "cmdstanpy"),
        Adapter("stan", "Fit Model", from_stan, "stan", "Stan models", "httpstan"),
        Adapter("numpyro", "MCMC", from_numpyro, "numpyro", "NumPyro models", "numpyro jax"),
        Adapter("pymc", "Model", from_pymc, "pymc", "PyMC models", "pymc jax"),
        Adapter("bambi", "Model", from_bambi, "bambi", "Bambi models", "bambi jax"),
    )
}


def as_fit(
    obj: object, model: object = None, *, losses: bool = True, **options: object
) -> Fit | None:
    """Return a foreign fit as its package's adapter reads it; None for plain draws.

    A path is a netCDF file, a zarr store or CmdStan's CSV files. A model gives exact derivatives;
    without it `losses` says whether log-likelihoods must be stored. Options are those that all
    adapters have: var_names, log_likelihood, eta.
    """
    source, modelled = _origin(obj), _origin(model)
    if not source and (paths := _paths(obj)):
        source = "stan" if all(Path(path).suffix == ".csv" for path in paths) else "xarray"
    if model is not None and not modelled and source != "stan":
        if not callable(model):
            known = "a pymc.Model, a bambi.Model or a NumPyro function"
            advice = f"pass {known}; a stan.model.Model goes with its own fit"
            raise InputError("model", f"is a {type(model).__name__}", advice)
        modelled = "numpyro"
    if not source:
        if model is not None:
            raise InputError("model", "needs the fit it made", "pass the InferenceData as draws")
        return None
    read = ADAPTERS["stan" if source == "stan" else modelled or source].read
    if read in (from_arviz, from_stan):
        options["losses"] = losses
    return read(obj, **options) if model is None else read(obj, model, **options)


def _origin(obj: object) -> str:
    """Return the package that a fit or model is of by its type: "arviz", "pymc", ..., or ""."""
    for cls in type(obj).__mro__:
        adapter = ADAPTERS.get(cls.__module__.split(".")[0])
        if adapter is not None and cls.__name__ in adapter.types.split():
            return adapter.package
    return ""


def _paths(obj: object) -> list[str | os.PathLike[str]]:
    """Return the paths that an argument consists of, none if it is something else."""
    several = list(obj) if isinstance(obj, list | tuple) else [obj]
    paths = [path for path in several if isinstance(path, str | os.PathLike)]
    return paths if len(paths) == len(several) else []


def _check_choices(
    var_names: object, filter_vars: str | None, log_likelihood: object, latent: str | None
) -> None:
    several = log_likelihood if isinstance(log_likelihood, list | tuple) else [log_likelihood]
    if not all(isinstance(name, str) or name is None for name in several):
        problem = f"is a {type(log_likelihood).__name__}"
        raise InputError("log_likelihood", problem, "pass names of variables")
    if latent is not None:
        as_choice(latent, "latent", ("auto",))
    if filter_vars is not None:
        as_choice(filter_vars, "filter_vars", ("like", "regex"))
        if var_names is None:
            raise InputError("filter_vars", "says how var_names= is read", "pass var_names= too")


def _checked(
    log_likelihood: str | Sequence[str] | None,
    eta: float | None,
    prior: str | None,
    latent: str | None,
) -> ModelOptions:
    """Return the options of a fit with its model; refuse a prior that is not said first."""
    from etafree.fits.model import prior_weight

    prior_weight(eta, prior)
    return {"log_likelihood": log_likelihood, "eta": eta, "prior": prior, "latent": latent}


def _own_tree(fit: object) -> tuple[xr.DataTree, str]:
    """Return a fit as a tree that nobody else changes, and the kind that it came as."""
    from etafree.fits.trees import as_tree, read_tree, with_own_draws

    if paths := _paths(fit):
        if len(paths) > 1:
            raise InputError("draws", f"are {len(paths)} files", "only CSV files come as several")
        fit = read_tree(paths[0])
    elif ADAPTERS["arviz"].recognises(fit):
        ADAPTERS["arviz"].require()
    kind = "InferenceData" if type(fit).__name__ == "InferenceData" else "DataTree"
    return with_own_draws(as_tree(fit)), kind


def _modelled(
    adapter: Callable[..., Fit],
    fit: object,
    model: object,
    var_names: object,
    filter_vars: str | None,
    options: ModelOptions,
    **call: object,
) -> Fit:
    """Return the fit that an adapter makes of a model, with labels and what is shown."""
    kind = "DataTree"
    if _paths(fit) or _origin(fit) in ("arviz", "xarray"):
        fit, kind = _own_tree(fit)
    with counted(None, "reading the model"):
        read = portable(adapter, fit, model, **options, **call)
    read = _shown(read, var_names, filter_vars)
    return replace(_with_labels(read), kind=kind)


def _shown(fit: Fit, var_names: object, filter_vars: str | None) -> Fit:
    """Return a fit that reports the variables that were asked for."""
    if var_names is None or fit.constrain is None:
        return fit
    from etafree.fits.arviz import chosen_names

    posterior = fit.tree["posterior"].to_dataset()
    return replace(fit, shown=tuple(chosen_names(posterior, var_names, filter_vars)))


def _with_labels(fit: Fit) -> Fit:
    """Return a model's fit with variables of its data, one value per row, as labels by name."""
    from etafree.fits.observations import find_observations

    assert fit.criterion is not None
    rows = fit.criterion.rows
    stored = {
        group: fit.tree[group].to_dataset()
        for group in ("constant_data", "observed_data", "log_likelihood")
        if group in fit.tree.children
    }
    observed = [stored[group] for group in ("log_likelihood", "observed_data") if group in stored]
    observations = find_observations(observed, rows.original)
    labels = observations.rows(stored.values())
    known = replace(rows, index=labels.index, table=labels.table, named=labels.named)
    return replace(fit, criterion=replace(fit.criterion, rows=known), observations=observations)


def _with_bambi_data(fit: Fit, model: object) -> Fit:
    """Return a fit with the columns of a Bambi model's data; rows of it may have been dropped."""
    from etafree.fits.bambi import Predictor, kept_rows

    assert fit.criterion is not None
    rows = fit.criterion.rows
    data, kept = kept_rows(model, rows.original)
    if data is None:
        return fit
    known = replace(rows, original=len(data), kept=kept, index=data.index, table=data, named=True)
    posterior = fit.tree["posterior"].to_dataset()
    used = data if kept is None else data.iloc[kept]
    predictor = Predictor(model, posterior, used, latent=bool(fit.latent))
    return replace(fit, criterion=replace(fit.criterion, rows=known), predictor=predictor)

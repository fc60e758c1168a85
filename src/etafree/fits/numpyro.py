"""NumPyro models: exact losses and derivatives from the model function itself."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import InputError, MissingExtraError
from etafree.fits import Fit
from etafree.fits.model import Density, fit_of, slices
from etafree.fits.pymc import check_data, posterior_samples
from etafree.fits.trees import as_tree
from etafree.foundation.arguments import Array

if TYPE_CHECKING:
    import xarray as xr

#: What NumPyro's trace tells of a site: its type, distribution, value and so on.
Site = dict[str, Any]
NUMBERS = (np.float32, np.float64, np.int32, np.int64)
#: What JAX says of a float32 copy that it keeps of a NumPy array, where float64 is on.
STALE = ("verifier errors", "RuntimeProgramInputMismatch")


def numpyro_fit(
    fit: Any,
    model: Any,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    eta: float | None = None,
    prior: str | None = None,
    latent: str | None = "auto",
    log_likelihood: str | Sequence[str] | None = None,
    **_: object,
) -> Fit:
    """Return a NumPyro fit with exact losses on the unconstrained scale.

    Parameters
    ----------
    fit : numpyro.infer.MCMC, dict of samples, InferenceData or DataTree
        Samples with or without a chain dimension in front.
    model : callable, optional
        The model function, with its handlers; of an MCMC object by default its own.
    args, kwargs
        What the model is called with, the data among them.
    eta, prior, latent, log_likelihood
        As for `etafree.fits.model.fit_of`.
    """
    sampler = fit if hasattr(fit, "get_samples") else None
    if model is None and sampler is not None:
        model = sampler.sampler.model
    if not callable(model):
        raise InputError("model", f"is a {type(model).__name__}", "pass the NumPyro function")
    _check_arguments(model, tuple(args), dict(kwargs or {}), sampler)
    density, sites = numpyro_density(model, tuple(args), dict(kwargs or {}))
    if sampler is not None:
        extra = sampler.get_extra_fields(group_by_chain=True)
        tree = _as_tree(posterior=sampler.get_samples(group_by_chain=True), sample_stats=extra)
    elif isinstance(fit, Mapping) and not hasattr(fit, "children"):
        tree = _as_tree(posterior=_by_chain(fit, sites))
    else:
        tree = as_tree(fit)
    check_data(tree, {name: site["value"] for name, site in sites.items() if site["is_observed"]})
    samples, info = posterior_samples(tree)
    return fit_of(
        density,
        samples,
        tree,
        eta=eta,
        prior=prior,
        latent=latent,
        log_likelihood=log_likelihood,
        info=info,
    )


def _check_arguments(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sampler: Any
) -> None:
    """Refuse what the model cannot be called with, and arrays of another run than the sampler's."""
    leaves, advice = (
        import_jax().tree.leaves,
        "pass args= and kwargs= of mcmc.run to ef.from_numpyro",
    )
    try:
        given = _by_name(model, args, kwargs)
    except TypeError as error:
        raise InputError("args", f"do not fit the model: {error}", advice) from error
    try:
        known = _by_name(sampler.sampler.model, sampler._args, sampler._kwargs)
    except (AttributeError, TypeError):  # there is no run to compare with
        return
    for name in (name for name in given if name in known):
        for mine, theirs in zip(leaves(given[name]), leaves(known[name]), strict=False):
            here, there = np.shape(mine), np.shape(theirs)
            if here != there:
                raise InputError(
                    "args", f"have {name} of shape {here}, but mcmc.run had {there}", advice
                )
            numbers = here and all(
                getattr(part, "dtype", None) in NUMBERS for part in (mine, theirs)
            )
            if numbers and not np.allclose(mine, theirs, rtol=1e-4, equal_nan=True):
                raise InputError("args", f"have other data for {name} than mcmc.run", advice)


def _by_name(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what a model is called with, by name."""
    while callable(getattr(model, "fn", None)):  # of a handler
        model = model.fn
    return dict(inspect.signature(model).bind(*args, **kwargs).arguments)


def _as_tree(**groups: Mapping[str, ArrayLike]) -> xr.DataTree:
    """Return groups of arrays (chain, draw, ...) as a DataTree."""
    import xarray as xr

    made = {}
    for group, arrays in groups.items():
        dims = {
            name: ["chain", "draw", *(f"{name}_dim_{j}" for j in range(np.ndim(array) - 2))]
            for name, array in arrays.items()
        }
        made[group] = xr.Dataset({k: (dims[k], np.asarray(v)) for k, v in arrays.items()})
    for data in made.values():
        for dim, size in data.sizes.items():
            data.coords[dim] = np.arange(size)
    return xr.DataTree.from_dict(made)


def _by_chain(samples: Mapping[str, ArrayLike], sites: Mapping[str, Site]) -> dict[str, Array]:
    """Return samples as (chain, draw, ...), of samples with or without chains."""
    arrays = {name: np.asarray(value) for name, value in samples.items()}
    free = [name for name, site in sites.items() if not site["is_observed"]]
    known = [name for name in arrays if name in free]
    if not known:
        raise InputError("fit", f"has no samples of {', '.join(free)}", "pass get_samples()")
    extra = {arrays[name].ndim - np.ndim(sites[name]["value"]) for name in known}
    if extra == {1}:
        return {name: array[None] for name, array in arrays.items()}
    if extra != {2}:
        shapes = {name: arrays[name].shape for name in known}
        raise InputError(
            "fit",
            f"has samples of shapes {shapes}",
            "pass (draw, ...) or (chain, draw, ...) for all sites",
        )
    return arrays


def numpyro_density(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Density, dict[str, Site]]:
    """Return a model's log densities as functions that JAX can trace, and its sample sites."""
    try:
        importlib.import_module("numpyro.handlers")
    except ImportError as error:
        raise MissingExtraError("numpyro", "NumPyro models") from error
    jax = import_jax()
    args, kwargs = (jax.tree.map(_doubled, part) for part in (args, kwargs))
    call = _Call(_with_own_arrays(model), args, kwargs)
    with double_precision():
        if call.is_stale():  # the error is gone and holds no copy
            jax.clear_caches()
        trace = call.trace(_somewhere)
        _refuse(trace)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        transforms = {
            name: _transform(site) for name, site in sites.items() if not site["is_observed"]
        }
        shapes = {
            name: tuple(transform.inverse_shape(np.shape(sites[name]["value"])))
            for name, transform in transforms.items()
        }
    flat = _Flat(call, shapes)
    return Density(
        package="numpyro",
        shapes=shapes,
        labels={name: _labels(name, transforms[name], shape) for name, shape in shapes.items()},
        dims={
            name: tuple(frame.name for frame in site["cond_indep_stack"])
            for name, site in sites.items()
            if site["is_observed"]
        },
        log_likelihood=flat.log_likelihood,
        log_prior=flat.log_prior,
        constrain=flat.constrain,
        unconstrain=flat.unconstrain,
    ), sites


def _transform(site: Site) -> Any:
    """Return the map from a site's unconstrained values to its own."""
    transforms: Any = importlib.import_module("numpyro.distributions.transforms")
    return transforms.biject_to(site["fn"].support)


def _somewhere(site: Site) -> Any:
    """Return a value that a free site may have, without drawing one."""
    if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete:
        return None
    transform = _transform(site)
    return transform(import_jax().numpy.zeros(transform.inverse_shape(site["fn"].shape())))


def _log_density(site: Site) -> Any:
    """Return the log density of a site at its value, an entry per observation."""
    value = site["fn"].log_prob(site["value"])
    return value if site["scale"] is None else site["scale"] * value


@dataclass(frozen=True, eq=False)
class _Call:
    """A model with what it is called with."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def trace(self, value_of: Callable[[Site], Any]) -> dict[str, Site]:
        """Run the model with the free sites' values given by a function of the site."""
        handlers: Any = importlib.import_module("numpyro.handlers")
        given = handlers.substitute(handlers.seed(self.model, 0), substitute_fn=value_of)
        sites: dict[str, Site] = handlers.trace(given).get_trace(*self.args, **self.kwargs)
        return sites

    def is_stale(self) -> bool:
        """Return whether JAX takes float32 copies for arrays that are out of reach here."""

        def densities() -> list[Any]:
            sites = self.trace(_somewhere).values()
            return [_log_density(site) for site in sites if site["type"] == "sample"]

        try:
            import_jax().jit(densities).lower()
        except (RuntimeError, ValueError) as error:
            if any(mark in str(error) for mark in STALE):
                return True
            raise
        return False


@dataclass(frozen=True, eq=False)
class _Flat:
    """A model's call as functions of z (q,), its free sites unconstrained, of these shapes in z."""

    call: _Call
    shapes: Mapping[str, tuple[int, ...]]

    def part(self, z: Any, name: str) -> Any:
        """Return a free site's entries of z in their shape."""
        return z[slices(self.shapes)[name]].reshape(self.shapes[name])

    def at(self, z: Any) -> dict[str, Site]:
        """Return the sites where the free ones have the values that z stands for."""

        def value_of(site: Site) -> Any:
            name = site["name"]
            return _transform(site)(self.part(z, name)) if name in self.shapes else None

        return self.call.trace(value_of)

    def log_likelihood(self, z: Any) -> dict[str, Any]:
        """Return the log-likelihoods of the observed sites."""
        return {
            name: _log_density(site)
            for name, site in self.at(z).items()
            if site["type"] == "sample" and site["is_observed"]
        }

    def log_prior(self, z: Any, jacobian: bool) -> dict[str, Any]:
        """Return the log densities of the free sites, with the Jacobian of z or without."""
        sites = self.at(z)
        densities = {name: _log_density(sites[name]) for name in self.shapes}
        for name in self.shapes if jacobian else ():
            site = sites[name]
            slope = _transform(site).log_abs_det_jacobian(self.part(z, name), site["value"])
            axes = tuple(range(densities[name].ndim, slope.ndim))
            densities[name] = densities[name] + slope.sum(axis=axes)
        return densities

    def constrain(self, z: Any) -> dict[str, Any]:
        """Return the values of free and deterministic sites."""
        return {
            name: site["value"]
            for name, site in self.at(z).items()
            if name in self.shapes or site["type"] == "deterministic"
        }

    def unconstrain(self, draw: dict[str, Any]) -> dict[str, Any]:
        """Return the entries of z of the free sites in a draw."""
        known = {name: draw[name] for name in self.shapes if name in draw}
        sites = self.call.trace(lambda site: known.get(site["name"]))
        return {name: _transform(sites[name]).inv(value) for name, value in known.items()}


def _doubled(leaf: Any) -> Any:
    """Return a copy of an array, of float64 for float32.

    So data do not bound the precision, and JAX does not take the copy in float32 or int32 for it
    that it keeps of every NumPy array it has seen.
    """
    if not isinstance(leaf, np.ndarray | np.generic | import_jax().Array):
        return leaf
    if leaf.dtype in (np.float32, np.float64):
        return np.array(leaf, dtype=np.float64)
    return leaf.copy()


def _with_own_arrays(model: Any) -> Any:
    """Return a model with copies of the arrays that it refers to, through its module's functions.

    JAX keeps one copy of a NumPy array as long as a compiled function uses it: in float64 here, it
    would fail the sampler that runs in float32 later, as the sampler's fails what is done here.
    """
    copies: dict[int, FunctionType] = {}
    if callable(getattr(model, "fn", None)):  # of a handler
        outer = copy.copy(model)
        outer.fn = _with_own_arrays(model.fn)
        return outer

    def module(function: FunctionType) -> str:
        return str(function.__globals__.get("__name__", "")).split(".")[0]

    def own(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _doubled(value)
        if type(value) is dict and any(isinstance(part, np.ndarray) for part in value.values()):
            return {name: own(part) for name, part in value.items()}
        if not isinstance(value, FunctionType) or module(value) != module(model):
            return value
        if id(value) not in copies:
            space, cells = dict(value.__globals__), [CellType() for _ in value.__closure__ or ()]
            again = FunctionType(value.__code__, space, value.__name__, None, tuple(cells))
            copies[id(value)] = again  # before its own names, as it may call itself
            again.__defaults__, again.__kwdefaults__ = value.__defaults__, value.__kwdefaults__
            for name in set(_names(value.__code__)) & set(space):
                space[name] = own(space[name])
            for cell, known in zip(cells, value.__closure__ or (), strict=True):
                if known != CellType():  # which is empty
                    cell.cell_contents = own(known.cell_contents)
        return copies[id(value)]

    library = not isinstance(model, FunctionType) or module(model) in ("jax", "numpyro")
    return model if library else own(model)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code and that of the functions in it may look up."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _labels(name: str, transform: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of a site's entries on the unconstrained scale."""
    kind = type(transform).__name__
    suffix = {"IdentityTransform": "", "ExpTransform": "_log__"}.get(kind, "_unconstrained__")
    if kind == "IndependentTransform":
        return _labels(name, transform.base_transform, shape)
    entries = [f"[{', '.join(map(str, at))}]" if at else "" for at in np.ndindex(shape)]
    return tuple(name + suffix + entry for entry in entries)


def _refuse(trace: Mapping[str, Site]) -> None:
    """Refuse what has no losses observation by observation, by name."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, site in trace.items():
        if site["type"] == "param":
            key = ("is a numpyro.param and has no prior", "make it a sample site")
        elif site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            key = ("subsamples its data", "pass args that hold all data, without subsample_size")
        elif site["type"] != "sample":
            continue
        elif type(site["fn"]).__name__ == "Unit":
            key = (
                "is a numpyro.factor, which does not say what is an observation and what prior",
                "write it as numpyro.sample(..., obs=y)",
            )
        elif not site["is_observed"] and site["fn"].support.is_discrete:
            key = ("is discrete and has no scores", "marginalize it, as MixtureSameFamily does")
        else:
            continue
        found.setdefault(key, []).append(name)
    for (problem, advice), names in found.items():
        raise InputError("model", f"{', '.join(names)} {problem}", advice)

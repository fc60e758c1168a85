"""NumPyro models: exact losses and derivatives from the model function itself.

JAX keeps one copy of every NumPy array that a compiled function closes over, and looks it up by the
array alone: a copy in float32, made by the sampler, would be used here in float64, and the other
way round. So the model is traced once, and its densities then hold copies of their own.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import InputError, MissingExtraError
from etafree.fits import Fit
from etafree.fits.model import Density, ModelOptions, check_data, fit_of, remembered, slices
from etafree.fits.trees import SAMPLE_DIMS, as_tree
from etafree.foundation.arguments import Array

if TYPE_CHECKING:
    from typing import Unpack

    import xarray as xr
    from jax import Array as JaxArray

    from etafree.fits.model import Variables

    Model = Callable[..., object]
    Function = Callable[..., Variables]

#: What NumPyro's trace tells of a site: its type, distribution, value and so on.
Site = dict[str, Any]
NUMBERS = (np.float32, np.float64, np.int32, np.int64)
#: JAX's errors about a copy in float32 that it keeps of a NumPy array, where float64 is on.
STALE = ("verifier errors", "RuntimeProgramInputMismatch")


def numpyro_fit(
    fit: object,
    model: Model | None,
    *,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    **options: Unpack[ModelOptions],
) -> Fit:
    """Read a NumPyro fit: an MCMC, samples by name with or without chains, or a tree.

    The model, by default that of the MCMC, is called with `args` and `kwargs`, the data among them.
    """
    sampler: Any = fit if hasattr(fit, "get_samples") else None
    if model is None and sampler is not None:
        model = sampler.sampler.model
    if not callable(model):
        raise InputError("model", f"is a {type(model).__name__}", "pass the NumPyro function")
    call = _Call(model, tuple(args), dict(kwargs or {}))
    _check_arguments(call, sampler)
    density, sites = numpyro_density(*call)
    if sampler is not None:
        stats = sampler.get_extra_fields(group_by_chain=True)
        tree = _as_tree(posterior=sampler.get_samples(group_by_chain=True), sample_stats=stats)
    elif isinstance(fit, Mapping) and not hasattr(fit, "children"):
        tree = _as_tree(posterior=_by_chain(fit, sites))
    else:
        tree = as_tree(fit)
    check_data(tree, {name: site["value"] for name, site in sites.items() if site["is_observed"]})
    return fit_of(density, tree, **options)


class _Call(NamedTuple):
    """A model with what it is called with."""

    model: Model
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def by_name(self) -> dict[str, object]:
        """Return what the model is called with, by name."""
        model = self.model
        while callable(inner := getattr(model, "fn", None)):  # of a handler
            model = inner
        return dict(inspect.signature(model).bind(*self.args, **self.kwargs).arguments)

    def trace(self, value_of: Callable[[Site], JaxArray | None]) -> dict[str, Site]:
        """Run the model with the free sites' values given by a function of the site."""
        handlers = importlib.import_module("numpyro.handlers")
        model = handlers.substitute(handlers.seed(self.model, 0), substitute_fn=value_of)
        sites: dict[str, Site] = handlers.trace(model).get_trace(*self.args, **self.kwargs)
        return sites

    def is_stale(self) -> bool:
        """Return whether JAX holds arrays that the model closes over in single precision."""
        jax = import_jax()

        def densities() -> list[JaxArray]:
            sites = self.trace(_somewhere).values()
            return [_log_density(site) for site in sites if site["type"] == "sample"]

        try:
            constants = jax.make_jaxpr(densities)().consts
            jax.jit(densities).lower()
        except (RuntimeError, ValueError) as error:
            if any(mark in str(error) for mark in STALE):
                return True
            raise
        return any(
            not isinstance(constant, jax.Array) and constant.dtype in (np.float32, np.int32)
            for constant in constants
        )


def _check_arguments(call: _Call, sampler: object) -> None:
    """Refuse what the model cannot be called with, and arrays of another run than the sampler's."""
    advice = "pass args= and kwargs= of mcmc.run to ef.from_numpyro"
    leaves = import_jax().tree.leaves
    try:
        arguments = call.by_name()
    except TypeError as error:
        raise InputError("args", f"do not fit the model: {error}", advice) from error
    try:
        run = _Call(*attrgetter("sampler.model", "_args", "_kwargs")(sampler)).by_name()
    except (AttributeError, TypeError):  # there is no run to compare with
        return
    for name in (name for name in arguments if name in run):
        for mine, theirs in zip(leaves(arguments[name]), leaves(run[name]), strict=False):
            here, there = np.shape(mine), np.shape(theirs)
            if here != there:
                problem = f"have {name} of shape {here}, but mcmc.run had {there}"
                raise InputError("args", problem, advice)
            numbers = here and all(getattr(x, "dtype", None) in NUMBERS for x in (mine, theirs))
            if numbers and not np.allclose(mine, theirs, rtol=1e-4, equal_nan=True):
                raise InputError("args", f"have other data for {name} than mcmc.run", advice)


def _as_tree(**groups: Mapping[str, ArrayLike]) -> xr.DataTree:
    """Return groups of arrays (chain, draw, ...) as a DataTree."""
    import xarray as xr

    datasets = {}
    for group, arrays in groups.items():
        own = {k: [f"{k}_dim_{j}" for j in range(np.ndim(v) - 2)] for k, v in arrays.items()}
        data = xr.Dataset({k: ((*SAMPLE_DIMS, *own[k]), np.asarray(v)) for k, v in arrays.items()})
        datasets[group] = data.assign_coords({d: np.arange(size) for d, size in data.sizes.items()})
    return xr.DataTree.from_dict(datasets)


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
        advice = "pass (draw, ...) or (chain, draw, ...) for all sites"
        raise InputError("fit", f"has samples of shapes {shapes}", advice)
    return arrays


def numpyro_density(
    model: Model, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Density, dict[str, Site]]:
    """Return a model's log densities as functions that JAX can trace, and its sample sites."""
    try:
        importlib.import_module("numpyro.handlers")
    except ImportError as error:
        raise MissingExtraError("numpyro", "NumPyro models") from error
    jax = import_jax()
    call = _Call(model, *(jax.tree.map(_doubled, leaves) for leaves in (args, kwargs)))
    with double_precision():
        if call.is_stale():  # the error is gone and holds no copy
            jax.clear_caches()
        trace = call.trace(_somewhere)
        _refuse(trace)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        start = {n: np.asarray(s["value"]) for n, s in sites.items() if not s["is_observed"]}
        transforms = {name: _transform(sites[name]) for name in start}
        shapes = {n: tuple(transforms[n].inverse_shape(v.shape)) for n, v in start.items()}
        flat, z = _Flat(call, shapes), np.zeros(sum(map(math.prod, shapes.values())))
        traced = _traced(
            (flat.log_likelihood, z),
            (flat.constrain, z),
            (lambda z: flat.log_prior(z, False), z),
            (lambda z: flat.log_prior(z, True), z),
            (flat.unconstrain, start),
        )
    labels = {name: _labels(name, transforms[name], shape) for name, shape in shapes.items()}
    dims = {
        name: tuple(frame.name for frame in site["cond_indep_stack"])
        for name, site in sites.items()
        if site["is_observed"]
    }

    def build() -> Density:
        log_likelihood, constrain, plain_prior, free_prior, unconstrain = _detached(traced)

        def unconstrain_drawn(draw: Variables) -> Variables:
            values = unconstrain({name: draw.get(name, value) for name, value in start.items()})
            return {name: value for name, value in values.items() if name in draw}

        return Density(
            package="numpyro",
            shapes=shapes,
            labels=labels,
            dims=dims,
            log_likelihood=log_likelihood,
            log_prior=lambda z, jacobian: free_prior(z) if jacobian else plain_prior(z),
            constrain=constrain,
            unconstrain=unconstrain_drawn,
        )

    state = hashlib.sha256(repr((labels, dims)).encode())
    for program, _ in traced:
        _add_program(state, program)
    return remembered(call.model, state.digest(), build), sites


def _traced(*functions: tuple[Function, object]) -> list[tuple[Any, object]]:
    """Return the programs of functions traced at the points beside them, and what they return."""
    return [import_jax().make_jaxpr(f, return_shape=True)(point) for f, point in functions]


def _add_program(digest: Any, program: Any) -> None:
    """Add to a digest what a traced program computes, and all numbers in it."""
    digest.update(re.sub("0x[0-9a-f]+", "", str(program)).encode())  # addresses differ every time
    inner = getattr(program, "jaxpr", program)
    constants = [*getattr(program, "consts", ())]
    for equation in inner.eqns:  # a program in print rounds its numbers
        constants += [atom.val for atom in equation.invars if hasattr(atom, "val")]
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if hasattr(part, "eqns"):
                    _add_program(digest, part)
    for constant in constants:
        array = np.asarray(constant)
        digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())


def _detached(traced: Sequence[tuple[Any, object]]) -> list[Function]:
    """Return functions of traced programs, with copies of all arrays that they close over."""
    jax, core = import_jax(), importlib.import_module("jax.extend.core")
    copies: dict[int, ArrayLike] = {}  # functions share them

    def own(constant: ArrayLike) -> ArrayLike:
        value = constant if isinstance(constant, jax.Array) else np.array(constant)
        return copies.setdefault(id(constant), value)

    def rebuilt(closed: Any, shape: object) -> Function:
        run = core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr, [own(c) for c in closed.consts]))
        tree = jax.tree.structure(shape)
        return lambda point: jax.tree.unflatten(tree, run(*jax.tree.leaves(point)))

    return [rebuilt(closed, shape) for closed, shape in traced]


def _transform(site: Site) -> Any:
    """Return the map from a site's unconstrained values to its own."""
    transforms = importlib.import_module("numpyro.distributions.transforms")
    return transforms.biject_to(site["fn"].support)


def _somewhere(site: Site) -> JaxArray | None:
    """Return a value that a free site may have, without drawing one."""
    if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete:
        return None
    transform = _transform(site)
    shape = transform.inverse_shape(site["fn"].shape())
    value: JaxArray = transform(import_jax().numpy.zeros(shape))
    return value


def _log_density(site: Site) -> JaxArray:
    """Return the log density of a site at its value, an entry per observation."""
    density: JaxArray = site["fn"].log_prob(site["value"])
    return density if site["scale"] is None else site["scale"] * density


@dataclass(frozen=True, eq=False)
class _Flat:
    """A model's call as functions of z (q,), its free sites unconstrained, of these shapes in z."""

    call: _Call
    shapes: Mapping[str, tuple[int, ...]]

    def entries(self, z: JaxArray, name: str) -> JaxArray:
        """Return a free site's entries of z in their shape."""
        return z[slices(self.shapes)[name]].reshape(self.shapes[name])

    def at(self, z: JaxArray) -> dict[str, Site]:
        """Return the sites where the free ones have the values that z stands for."""

        def value_of(site: Site) -> JaxArray | None:
            name = site["name"]
            return _transform(site)(self.entries(z, name)) if name in self.shapes else None

        return self.call.trace(value_of)

    def log_likelihood(self, z: JaxArray) -> Variables:
        """Return the log-likelihoods of the observed sites."""
        return {
            name: _log_density(site)
            for name, site in self.at(z).items()
            if site["type"] == "sample" and site["is_observed"]
        }

    def log_prior(self, z: JaxArray, jacobian: bool) -> Variables:
        """Return the log densities of the free sites, with the Jacobian of z or without."""
        sites = self.at(z)
        densities = {name: _log_density(sites[name]) for name in self.shapes}
        for name in self.shapes if jacobian else ():
            site = sites[name]
            slope = _transform(site).log_abs_det_jacobian(self.entries(z, name), site["value"])
            axes = tuple(range(densities[name].ndim, slope.ndim))
            densities[name] = densities[name] + slope.sum(axis=axes)
        return densities

    def constrain(self, z: JaxArray) -> Variables:
        """Return the values of free and deterministic sites."""
        return {
            name: site["value"]
            for name, site in self.at(z).items()
            if name in self.shapes or site["type"] == "deterministic"
        }

    def unconstrain(self, draw: Variables) -> Variables:
        """Return the entries of z of the free sites in a draw."""
        sites = self.call.trace(lambda site: draw.get(site["name"]))
        return {name: _transform(sites[name]).inv(value) for name, value in draw.items()}


def _doubled(leaf: object) -> object:
    """Return a copy of an array, of float64 for float32; so data do not bound the precision."""
    if not isinstance(leaf, np.ndarray | np.generic | import_jax().Array):
        return leaf
    if leaf.dtype in (np.float32, np.float64):
        return np.array(leaf, dtype=np.float64)
    return leaf.copy()


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
    refused: dict[tuple[str, str], list[str]] = {}
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
        refused.setdefault(key, []).append(name)
    for (problem, advice), names in refused.items():
        raise InputError("model", f"{', '.join(names)} {problem}", advice)

"""PyMC models: exact losses and derivatives through the graph that PyTensor gives to JAX.

PyTensor switches JAX to float64 for good when its JAX backend is loaded; here that is undone, and
its functions are traced and called in float64 regardless. Who samples with a JAX sampler of PyMC
afterwards should ``import pymc.sampling.jax`` before etafree does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import EtafreeError, InputError, MissingExtraError
from etafree.fits import Fit
from etafree.fits.model import Density, fit_of, slices
from etafree.fits.trees import as_tree
from etafree.foundation.arguments import Array

if TYPE_CHECKING:
    import xarray as xr


def pymc_fit(
    fit: object,
    model: Any,
    *,
    eta: float | None = None,
    prior: str | None = None,
    latent: str | None = "auto",
    log_likelihood: str | Sequence[str] | None = None,
    **_: object,
) -> Fit:
    """Return a PyMC fit with exact losses on the unconstrained scale.

    Parameters
    ----------
    fit : InferenceData or DataTree
        With the group ``posterior``.
    model : pymc.Model
        The model that was sampled, with its data.
    eta, prior, latent, log_likelihood
        As for `etafree.fits.model.fit_of`.
    """
    tree = as_tree(fit)
    check_model(tree, model)
    samples, info = posterior_samples(tree)
    return fit_of(
        pymc_density(model),
        samples,
        tree,
        eta=eta,
        prior=prior,
        latent=latent,
        log_likelihood=log_likelihood,
        info=info,
    )


def posterior_samples(tree: xr.DataTree) -> tuple[dict[str, Array], dict[str, object]]:
    """Return the posterior's variables (chain, draw, ...), and what the sampler said of itself."""
    if "posterior" not in tree.children:
        raise InputError("fit", "has no group 'posterior'", "pass what the sampler returned")
    posterior = tree["posterior"].to_dataset()
    samples = {
        str(name): np.asarray(array.transpose("chain", "draw", ...).values)
        for name, array in posterior.data_vars.items()
    }
    info: dict[str, object] = {}
    stats = tree.children["sample_stats"].data_vars if "sample_stats" in tree.children else {}
    if "diverging" in stats:
        info["divergences"] = int(stats["diverging"].values.sum())
    return samples, info


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Say in one line what PyMC, PyTensor or JAX cannot do with a model."""
    try:
        yield
    except EtafreeError:
        raise
    except Exception as error:  # all three have errors of many kinds
        told = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            "model",
            f"cannot be evaluated ({type(error).__name__}: {told})",
            "if its data were "
            "changed since the fit, put them back; else store log_likelihood and leave model= out",
        ) from error


@_readable()
def pymc_density(model: Any) -> Density:
    """Return a model's log densities as functions that JAX can trace."""
    free, observed = list(model.free_RVs), _observed_variables(model)
    values = [model.rvs_to_values[rv] for rv in free]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS", UserWarning)
        start = model.initial_point()
    shapes = {rv.name: start[value.name].shape for rv, value in zip(free, values, strict=True)}
    labels = {
        rv.name: _labels(model, rv, value, shapes[rv.name])
        for rv, value in zip(free, values, strict=True)
    }
    places = slices(shapes)

    def over(outputs: Sequence[Any], names: Sequence[str]) -> Callable[[Any], dict[str, Any]]:
        compute = _to_jax(values, outputs)

        def function(z: Any) -> dict[str, Any]:
            parts = [z[places[name]].reshape(shape) for name, shape in shapes.items()]
            # what is constant, as the density of a flat scalar, is a plain number
            arrays = map(import_jax().numpy.asarray, compute(*parts))
            return dict(zip(names, arrays, strict=True))

        return function

    known = [rv.name for rv in free]

    @functools.cache
    def prior(jacobian: bool) -> Callable[[Any], dict[str, Any]]:
        return over(model.logp(free, jacobian=jacobian, sum=False), known)

    variables = [*free, *model.deterministics]
    return Density(
        package="pymc",
        shapes=shapes,
        labels=labels,
        dims={
            rv.name: tuple(model.named_vars_to_dims.get(rv.name) or ()) or None for rv in observed
        },
        log_likelihood=over(model.logp(observed, sum=False), [rv.name for rv in observed]),
        log_prior=lambda z, jacobian: prior(jacobian)(z),
        constrain=over(model.replace_rvs_by_values(variables), [rv.name for rv in variables]),
        unconstrain=_forward(model, free),
    )


def _forward(model: Any, free: list[Any]) -> Any:
    """Return the function from variables by name to their unconstrained values by name."""
    from pytensor.graph.replace import clone_replace

    given = [rv.type(name=rv.name) for rv in free]
    outputs = []
    for rv, value in zip(free, given, strict=True):
        transform = model.rvs_to_transforms[rv]
        outputs.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
    outputs = clone_replace(outputs, dict(zip(free, given, strict=True)), rebuild_strict=False)

    def function(draw: dict[str, Any]) -> dict[str, Any]:
        there = [value for value in given if value.name in draw]
        wanted = [out for out, value in zip(outputs, given, strict=True) if value.name in draw]
        found = _to_jax(there, wanted)(*(draw[value.name] for value in there))
        return dict(zip([value.name for value in there], found, strict=True))

    return function


def _labels(model: Any, rv: Any, value: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of a value's entries, by coordinates where it has the variable's shape."""
    if not shape:
        return (str(value.name),)
    dims = model.named_vars_to_dims.get(rv.name) or (None,) * len(shape)
    ranges: list[Any] = []
    for dim, length in zip(dims, shape, strict=True):
        coords = None if dim is None else model.coords.get(dim)
        ranges.append(coords if coords is not None and len(coords) == length else range(length))
    return tuple(f"{value.name}[{', '.join(map(str, entry))}]" for entry in product(*ranges))


def _to_jax(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a PyTensor graph as a function of JAX arrays."""
    graph = _jax_backend()
    if not outputs:
        return lambda *_: ()
    try:
        with double_precision(), import_jax().ensure_compile_time_eval():  # constants stay constant
            made: Callable[..., Any] = graph(inputs=list(inputs), outputs=list(outputs))
    except NotImplementedError as error:
        raise InputError(
            "model",
            f"has an operation that PyTensor cannot give to JAX: {str(error).splitlines()[0]}",
            "store log_likelihood and leave model= out",
        ) from error
    return _readable()(made)


@functools.cache
def _jax_backend() -> Any:
    """Return PyMC's compiler to JAX; loading it changes no setting of JAX."""
    jax, flags = import_jax(), os.environ.get("XLA_FLAGS")
    before = jax.config.jax_enable_x64
    try:
        compiler: Any = importlib.import_module("pymc.sampling.jax")
        dispatch: Any = importlib.import_module("pytensor.link.jax.dispatch")
        scalars: Any = importlib.import_module("pytensor.scalar.math")
    except ImportError as error:
        raise MissingExtraError("pymc", "PyMC models") from error
    finally:
        jax.config.update("jax_enable_x64", before)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
    if hasattr(jax.scipy.special, "erfcx"):  # else PyTensor asks for TensorFlow's
        dispatch.jax_funcify.register(scalars.Erfcx)(lambda op, **_: _erfcx)
    return compiler.get_jaxified_graph


def _erfcx(x: Any) -> Any:
    """Return exp(x^2) erfc(x), far out by its series: JAX 0.10 has zeros near x = 26.6."""
    jax = import_jax()
    far = jax.numpy.maximum(x, 20.0)
    q = 0.5 / far**2
    series = (1 - q * (1 - 3 * q * (1 - 5 * q * (1 - 7 * q)))) / (far * np.sqrt(np.pi))
    near = jax.scipy.special.erfcx(jax.numpy.minimum(x, 20.0))
    return jax.numpy.where(x > 20.0, series, near)


def check_model(tree: xr.DataTree, model: Any) -> None:
    """Refuse what has no losses observation by observation, by name, and data of another fit."""
    if not hasattr(model, "free_RVs"):
        raise InputError("model", f"is a {type(model).__name__}", "pass the pymc.Model")
    if model.potentials:
        named = ", ".join(str(potential.name) for potential in model.potentials)
        raise InputError(
            "model",
            f"has the potentials {named}, which do not say what is an "
            "observation and what is prior",
            "write likelihoods as pm.CustomDist(..., observed=y) and priors as distributions",
        )
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    free = {rv.name for rv in model.free_RVs}
    observed = _observed_variables(model)
    imputed = [
        rv.name for rv in observed if rv.name.removesuffix("_observed") + "_unobserved" in free
    ]
    batches = [
        rv.name for rv in observed if type(rv.owner.op).__name__ == "MinibatchRandomVariable"
    ]
    for names, problem, advice in (
        (imputed, "has missing values that are imputed", "drop the rows with missing values"),
        (discrete, "is discrete and has no scores", "marginalize it, as pm.Mixture does"),
        (batches, "is a minibatch of its data", "pass a model with all of them"),
    ):
        if names:
            raise InputError("model", f"{', '.join(names)} {problem}", advice)
    check_data(tree, _observed(model))
    constants = tree.children["constant_data"].data_vars if "constant_data" in tree.children else {}
    for variable in model.data_vars:
        value = variable.get_value() if hasattr(variable, "get_value") else variable.data
        if variable.name in constants:
            _same_data(variable.name, value, constants[variable.name].values)


def check_data(tree: xr.DataTree, observed: Mapping[str, ArrayLike]) -> None:
    """Refuse a model whose observed variables are not those that the fit stores, if it does."""
    if "observed_data" not in tree.children:
        return
    known = tree["observed_data"].to_dataset()
    for name, data in observed.items():
        if name not in known:
            raise InputError(
                "model",
                f"observes {name}, the fit {', '.join(map(str, known))}",
                "pass the model that made the draws",
            )
        _same_data(name, data, known[name].values)


def _same_data(name: str, mine: ArrayLike, stored: NDArray[Any]) -> None:
    """Refuse data that differ from those of a fit by more than their storage may."""
    same = np.squeeze(mine).shape == np.squeeze(stored).shape
    numbers = stored.dtype.kind in "biuf" and np.asarray(mine).dtype.kind in "biuf"
    if same and numbers:
        same = np.allclose(np.squeeze(mine), np.squeeze(stored), equal_nan=True)
    if not same:
        raise InputError(
            "model",
            f"has other data for {name} than the fit",
            "pass the model with the data that were sampled",
        )


def _observed_variables(model: Any) -> list[Any]:
    """Return a model's observed variables, each once.

    ``pm.sample_posterior_predictive`` adds to the model's own list whatever a fit has observed.
    """
    free = set(model.free_RVs)
    return [
        rv
        for rv in dict.fromkeys(model.observed_RVs)
        if rv in model.rvs_to_values and rv not in free
    ]


def _observed(model: Any) -> dict[str, Any]:
    """Return the data of a model's observed variables, but for those that are computed."""
    data_of: Any = importlib.import_module("pymc.pytensorf").extract_obs_data
    found = {}
    for rv in _observed_variables(model):
        try:
            found[rv.name] = data_of(model.rvs_to_values[rv])
        except TypeError:  # PyMC does not store them either
            continue
    return found

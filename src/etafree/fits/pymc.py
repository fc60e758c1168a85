"""PyMC models: exact losses and derivatives through the graph that PyTensor gives to JAX.

PyTensor switches JAX to float64 for good when its JAX backend is loaded; here that is undone, and
its functions are traced and called in float64 regardless. Who samples with a JAX sampler of PyMC
afterwards should ``import pymc.sampling.jax`` before etafree does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import EtafreeError, InputError, MissingExtraError
from etafree.fits import Fit
from etafree.fits.model import (
    Density,
    ModelOptions,
    check_data,
    fit_of,
    refuse_other_data,
    remembered,
    slices,
)
from etafree.fits.trees import as_tree

if TYPE_CHECKING:
    from typing import Unpack

    import xarray as xr
    from jax import Array as JaxArray
    from numpy.typing import ArrayLike

    from etafree.fits.model import Variables

    Compiled = Callable[..., Sequence[JaxArray]]

#: A pymc.Model and a variable of it: PyMC has no types.
Model = Any
Variable = Any


def pymc_fit(fit: object, model: Model, **options: Unpack[ModelOptions]) -> Fit:
    """Read a PyMC fit with exact losses on the unconstrained scale."""
    tree = as_tree(fit)
    check_model(tree, model)
    return fit_of(remembered_density(model), tree, **options)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Say in one line what PyMC, PyTensor or JAX cannot do with a model."""
    try:
        yield
    except EtafreeError:
        raise
    except Exception as error:  # all three have errors of many kinds
        first = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            "model",
            f"cannot be evaluated ({type(error).__name__}: {first})",
            "if its data were changed since the fit, put them back; else store log_likelihood and "
            "leave model= out",
        ) from error


def remembered_density(model: Model) -> Density:
    """Return the density of a model with the data that it has now, made once."""
    outputs = (*model.basic_RVs, *model.deterministics, *model.rvs_to_values.values())

    def build() -> Density:
        density = pymc_density(model)
        density.compiled["variables"] = outputs  # alive, so that their ids stay theirs
        return density

    return remembered(model, _state(model, outputs), build)


def _state(model: Model, outputs: Sequence[Variable]) -> bytes:
    """Return a digest of a model's variables, transforms, labels and data, wherever these are."""
    inputs = importlib.import_module("pytensor.graph.traversal").graph_inputs
    transforms = [(id(rv), id(t)) for rv, t in model.rvs_to_transforms.items()]
    labels = (model.named_vars_to_dims, dict(model.coords))
    variables = [(id(variable), variable.name) for variable in outputs]
    digest = hashlib.sha256(repr((variables, transforms, labels)).encode())
    for variable in inputs(outputs):
        held = hasattr(variable, "get_value")
        data = variable.get_value(borrow=True) if held else getattr(variable, "data", None)
        if isinstance(data, np.ndarray | np.generic):  # not a generator of random numbers
            digest.update(f"{id(variable)} {data.dtype} {data.shape}".encode())
            digest.update(np.ascontiguousarray(data).tobytes())
    return digest.digest()


@_readable()
def pymc_density(model: Model) -> Density:
    """Return a model's log densities as functions that JAX can trace."""
    free, observed = list(model.free_RVs), _observed_variables(model)
    values = [model.rvs_to_values[rv] for rv in free]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS", UserWarning)
        start = model.initial_point()
    pairs = list(zip(free, values, strict=True))
    shapes = {rv.name: start[value.name].shape for rv, value in pairs}
    places = slices(shapes)

    def over(
        outputs: Sequence[Variable], variables: Iterable[Variable]
    ) -> Callable[[JaxArray], Variables]:
        compute, names = _to_jax(values, outputs), [str(rv.name) for rv in variables]

        def function(z: JaxArray) -> Variables:
            entries = [z[places[name]].reshape(shape) for name, shape in shapes.items()]
            # what is constant, as the density of a flat scalar, is a plain number
            arrays = map(import_jax().numpy.asarray, compute(*entries))
            return dict(zip(names, arrays, strict=True))

        return function

    densities = {jacobian: model.logp(free, jacobian=jacobian, sum=False) for jacobian in (0, 1)}

    @functools.cache  # which does not hold the model
    def prior(jacobian: bool) -> Callable[[JaxArray], Variables]:
        return over(densities[jacobian], free)

    variables, dims_of = [*free, *model.deterministics], model.named_vars_to_dims
    return Density(
        package="pymc",
        shapes=shapes,
        labels={rv.name: _labels(model, rv, value, shapes[rv.name]) for rv, value in pairs},
        dims={rv.name: tuple(dims_of.get(rv.name) or ()) or None for rv in observed},
        log_likelihood=over(model.logp(observed, sum=False), observed),
        log_prior=lambda z, jacobian: prior(jacobian)(z),
        constrain=over(model.replace_rvs_by_values(variables), variables),
        unconstrain=_forward(model, free),
    )


def _forward(model: Model, free: list[Variable]) -> Callable[[Variables], Variables]:
    """Return the function from variables by name to their unconstrained values by name."""
    from pytensor.graph.replace import clone_replace

    own = {rv: rv.type(name=rv.name) for rv in free}
    outputs = []
    for rv, value in own.items():
        transform = model.rvs_to_transforms[rv]
        outputs.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
    inputs = {rv.name: value for rv, value in own.items()}
    graphs = dict(zip(inputs, clone_replace(outputs, own, rebuild_strict=False), strict=True))

    def function(draw: Variables) -> Variables:
        names = [name for name in inputs if name in draw]
        compute = _to_jax([inputs[name] for name in names], [graphs[name] for name in names])
        return dict(zip(names, compute(*(draw[name] for name in names)), strict=True))

    return function


def _labels(model: Model, rv: Variable, value: Variable, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of a value's entries, by coordinates where it has the variable's shape."""
    if not shape:
        return (str(value.name),)
    dims = model.named_vars_to_dims.get(rv.name) or (None,) * len(shape)
    ranges: list[Iterable[object]] = []
    for dim, length in zip(dims, shape, strict=True):
        coords = None if dim is None else model.coords.get(dim)
        ranges.append(coords if coords is not None and len(coords) == length else range(length))
    return tuple(f"{value.name}[{', '.join(map(str, entry))}]" for entry in product(*ranges))


def _to_jax(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Compiled:
    """Return a PyTensor graph as a function of JAX arrays."""
    graph = _jax_backend()
    if not outputs:
        return lambda *_: ()
    try:
        with double_precision(), import_jax().ensure_compile_time_eval():  # constants stay constant
            compiled: Compiled = graph(inputs=list(inputs), outputs=list(outputs))
    except NotImplementedError as error:
        problem = f"has an operation that PyTensor cannot give to JAX: {str(error).splitlines()[0]}"
        raise InputError("model", problem, "store log_likelihood and leave model= out") from error
    return _readable()(compiled)


@functools.cache
def _jax_backend() -> Callable[..., Compiled]:
    """Return PyMC's compiler to JAX; loading it changes no setting of JAX."""
    jax, flags = import_jax(), os.environ.get("XLA_FLAGS")
    before = jax.config.jax_enable_x64
    try:
        compiler = importlib.import_module("pymc.sampling.jax")
        dispatch = importlib.import_module("pytensor.link.jax.dispatch")
        scalars = importlib.import_module("pytensor.scalar.math")
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
    compile_graph: Callable[..., Compiled] = compiler.get_jaxified_graph
    return compile_graph


def _erfcx(x: JaxArray) -> JaxArray:
    """Return exp(x^2) erfc(x), far out by its series: JAX 0.10 has zeros near x = 26.6."""
    jax = import_jax()
    far = jax.numpy.maximum(x, 20.0)
    q = 0.5 / far**2
    series = (1 - q * (1 - 3 * q * (1 - 5 * q * (1 - 7 * q)))) / (far * np.sqrt(np.pi))
    near = jax.scipy.special.erfcx(jax.numpy.minimum(x, 20.0))
    scaled: JaxArray = jax.numpy.where(x > 20.0, series, near)
    return scaled


def check_model(tree: xr.DataTree, model: Model) -> None:
    """Refuse what has no losses observation by observation, by name, and data of another fit."""
    if not hasattr(model, "free_RVs"):
        raise InputError("model", f"is a {type(model).__name__}", "pass the pymc.Model")
    if model.potentials:
        named = ", ".join(str(potential.name) for potential in model.potentials)
        problem = f"has the potentials {named}, which do not say what is observed and what is prior"
        advice = "write likelihoods as pm.CustomDist(..., observed=y) and priors as distributions"
        raise InputError("model", problem, advice)
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    free = {rv.name for rv in model.free_RVs}
    observed = {rv.name: type(rv.owner.op).__name__ for rv in _observed_variables(model)}
    imputed = [n for n in observed if n.removesuffix("_observed") + "_unobserved" in free]
    batches = [name for name, kind in observed.items() if kind == "MinibatchRandomVariable"]
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
            refuse_other_data(variable.name, value, constants[variable.name].values)


def _observed_variables(model: Model) -> list[Variable]:
    """Return a model's observed variables, each once.

    ``pm.sample_posterior_predictive`` adds to the model's own list whatever a fit has observed.
    """
    known = set(model.rvs_to_values) - set(model.free_RVs)
    return [rv for rv in dict.fromkeys(model.observed_RVs) if rv in known]


def _observed(model: Model) -> dict[str, ArrayLike]:
    """Return the data of a model's observed variables, but for those that are computed."""
    data_of = importlib.import_module("pymc.pytensorf").extract_obs_data
    data = {}
    for rv in _observed_variables(model):
        with contextlib.suppress(TypeError):  # PyMC does not store them either
            data[str(rv.name)] = data_of(model.rvs_to_values[rv])
    return data

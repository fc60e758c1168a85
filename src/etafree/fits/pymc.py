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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import EtafreeError, InputError, MissingExtraError
from etafree.fits import Fit, Predicted
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
from etafree.foundation.arguments import Array, as_pandas

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd
    import xarray as xr
    from jax import Array as JaxArray
    from numpy.typing import ArrayLike

    from etafree.fits.model import Variables

    Compiled = Callable[..., Sequence[JaxArray]]
    Evaluated = Callable[..., NDArray[Any]]

#: Columns of a matrix of data that have names of their own.
COLUMNS = 100
#: A pymc.Model and a variable of it: PyMC has no types.
Model = Any
Variable = Any


def pymc_fit(fit: object, model: Model, **options: Unpack[ModelOptions]) -> Fit:
    """Read a PyMC fit with exact losses on the unconstrained scale."""
    tree = as_tree(fit)
    check_model(tree, model)
    read = fit_of(remembered_density(model), tree, **options)
    assert read.criterion is not None
    predictor = Predictor.of(model, read.criterion.rows.original, read.latent)
    return replace(read, predictor=predictor)


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


@dataclass(frozen=True, eq=False)
class Predictor:
    """A PyMC model as it predicts at its data, ``pm.Data``, and at others.

    A prediction is a computed variable, or the mean of an observed one given its parameters. Graphs
    are compiled by PyTensor with the data as arguments: the model's own data stay as they are.
    """

    model: Model
    data: Mapping[str, NDArray[Any]]  #: When the draws were read; they may change later.
    rows: int  #: Of the observations.
    latent: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]  #: What the columns of matrices are called.

    @classmethod
    def of(cls, model: Model, rows: int, latent: tuple[str, ...]) -> Predictor:
        """Return the predictor of a model, with the data that it has now."""
        shared = [v for v in model.data_vars if hasattr(v, "get_value")]
        data = {str(v.name): v.get_value(borrow=False) for v in shared}
        dims, columns = model.named_vars_to_dims, {}
        for name, value in data.items():
            if np.ndim(value) == 2 and len(value) == rows and value.shape[1] <= COLUMNS:
                labels = model.coords.get((dims.get(name) or (None, None))[1])
                known = labels is not None and len(labels) == value.shape[1]
                entries = labels if known else range(value.shape[1])
                columns[name] = tuple(f"{name}[{entry}]" for entry in entries)
        return cls(model, data, rows, latent, columns)

    def __call__(
        self, newdata: object, variable: str | None, group_effects: bool | None
    ) -> Predicted:
        """Return the rows of new data, or its own, at which a variable is predicted."""
        output = self._output(variable)
        function, free, given = self._compiled(output)
        effects = any(name in self.latent for name in free)
        if not effects and group_effects is not None:
            raise InputError("group_effects", "are not part of this prediction", "leave it out")
        if effects and group_effects is False:
            problem = "cannot be left out: the prediction is computed from them"
            advice = "name a pm.Deterministic without them as variable="
            raise InputError("group_effects", problem, advice)
        known = self._table(self.data, self.rows)
        values, table = (self.data, known) if newdata is None else self._new(newdata, given)

        def at(variables: Mapping[str, Array], other: pd.DataFrame) -> Array:
            data = [self._taken(other, name, values[name]) for name in given]
            return _evaluated(function, [variables[name] for name in free], data, len(other))

        used = [n for name in given for n in self.columns.get(name, (name,)) if n in table]
        codes = _codes(output)
        coded = [n for name in codes for n in self.columns.get(name, (name,))]
        return Predicted(table, tuple(used), at, known, frozenset(coded), effects)

    def _output(self, variable: str | None) -> Variable:
        """Return the graph of a prediction."""
        model, observed = self.model, {str(v.name): v for v in _observed_variables(self.model)}
        computed = {str(v.name): v for v in model.deterministics}
        known = {**observed, **computed}
        if variable is None and len(observed) > 1:
            raise InputError("variable", "is needed", f"name one of {', '.join(known)}")
        name = next(iter(observed)) if variable is None else variable
        if name not in known:
            raise InputError("variable", f"is {name!r:.60}", f"choose from {', '.join(known)}")
        return computed[name] if name in computed else _mean(observed[name])

    def _compiled(self, output: Variable) -> tuple[Evaluated, list[str], list[str]]:
        """Return a graph as a function, and the free variables and the data that it takes."""
        traversal = importlib.import_module("pytensor.graph.traversal")
        tensor = importlib.import_module("pytensor.tensor").tensor
        replaced = importlib.import_module("pytensor.graph.replace").clone_replace
        free = list(self.model.free_RVs)
        needed = set(traversal.ancestors([output], blockers=free))
        free = [v for v in free if v in needed]
        given = [v for v in self.model.data_vars if v in needed and v.name in self.data]
        inputs = {v: v.type(name=v.name) for v in free}
        inputs |= {v: tensor(v.name, dtype=v.dtype, shape=(None,) * v.ndim) for v in given}
        with _readable():
            (graph,) = replaced([output], inputs, rebuild_strict=False)
            compile_graph = importlib.import_module("pytensor").function
            compiled = compile_graph([*inputs.values()], graph, mode="FAST_COMPILE")
        return compiled, [str(v.name) for v in free], [str(v.name) for v in given]

    def _table(self, values: Mapping[str, NDArray[Any]], rows: int) -> pd.DataFrame:
        """Return the data that have one value per row."""
        import pandas as pd

        flat = {name: value for name, value in values.items() if np.shape(value) == (rows,)}
        for name, entries in self.columns.items():
            if name in values and np.shape(values[name]) == (rows, len(entries)):
                flat |= zip(entries, np.transpose(values[name]), strict=True)
        return pd.DataFrame(flat, index=pd.RangeIndex(rows))

    def _taken(self, table: pd.DataFrame, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """Return data as the model takes it: columns of a table, or as it is."""
        entries, dtype = self.columns.get(name), self.data[name].dtype
        if entries is None:
            return _column(table, name, dtype) if name in table else value
        if not set(entries) <= set(table):
            return value
        return np.column_stack([_column(table, entry, dtype) for entry in entries])

    def _columns(self, newdata: object) -> dict[str, NDArray[Any]]:
        """Return the columns of a table, or the values of a dict of the model's data."""
        import pandas as pd

        if isinstance(newdata, pd.DataFrame):
            taken = {str(name): newdata[name].to_numpy() for name in newdata}
            for name, entries in self.columns.items():
                if set(entries) <= set(taken):
                    taken[name] = np.column_stack([taken.pop(entry) for entry in entries])
            return taken
        if not isinstance(newdata, Mapping):
            problem, advice = f"is a {type(newdata).__name__}", "pass a dict of the model's pm.Data"
            raise InputError("newdata", problem, advice)
        if unknown := [name for name in newdata if name not in self.data]:
            advice = f"the model's pm.Data are {', '.join(self.data) or 'none'}"
            raise InputError("newdata", f"names {unknown}", advice)
        return {str(name): np.asarray(value) for name, value in newdata.items()}

    def _new(
        self, newdata: object, given: Sequence[str]
    ) -> tuple[Mapping[str, NDArray[Any]], pd.DataFrame]:
        """Return new data by name, what is not named as it was, and as a table."""
        table = as_pandas(newdata)
        columns = self._columns(table)
        lengths = {name: len(value) for name, value in columns.items() if value.ndim}
        own, index = self.rows, getattr(table, "index", None)
        rows = max(lengths.values(), default=own)
        if any(length != rows for length in lengths.values()):
            raise InputError("newdata", f"has lengths {lengths}", "give one value per row")
        by_row = [n for n in given if np.ndim(self.data[n]) and len(self.data[n]) == own]
        lacking = [name for name in by_row if name not in columns]
        if lacking and rows != own:
            raise InputError("newdata", f"lacks {lacking}", "give them a value per row")
        for name, value in columns.items():
            if not value.ndim and name in by_row:
                columns[name] = np.full(rows, value)
        made = self._table(columns, rows)
        return {**self.data, **columns}, made if index is None else made.set_axis(index)


def _mean(variable: Variable) -> Variable:
    """Return the mean of a random variable as a graph, of as many rows as its parameters have."""
    moments = importlib.import_module("pymc.distributions.moments")
    kind = importlib.import_module("pytensor.tensor.random.op").RandomVariable
    op, node, name = variable.owner.op, variable.owner, variable.name
    if isinstance(op, kind):  # the observed rows' number is its size
        variable = op.make_node(node.inputs[0], None, *op.dist_params(node)).outputs[1]
    try:
        return moments.mean(variable)
    except NotImplementedError as error:
        problem = f"{name} has no mean that PyMC knows"
        raise InputError("variable", problem, "name a pm.Deterministic of the model") from error


def _codes(output: Variable) -> frozenset[str]:
    """Return what a graph takes entries of vectors by: the data among it are codes of groups."""
    traversal = importlib.import_module("pytensor.graph.traversal")
    owners = {v.owner for v in traversal.ancestors([output]) if v.owner is not None}
    places = [
        place
        for node in owners
        if type(node.op).__name__.endswith("Subtensor")
        for place in node.inputs[1:]
    ]
    return frozenset(str(v.name) for v in traversal.ancestors(places) if v.name is not None)


def _column(table: pd.DataFrame, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a column as the model takes it; refuse one that is not of its kind."""
    try:
        values = table[name].to_numpy()
        same = values.astype(dtype)
        if np.issubdtype(dtype, np.floating) or np.array_equal(same, values.astype(float)):
            return same
    except (TypeError, ValueError):
        pass
    raise InputError(
        "newdata", f"has values of {name} that are not of type {dtype}", "code them as in data"
    )


def _evaluated(
    function: Evaluated, free: list[Array], data: list[NDArray[Any]], rows: int
) -> Array:
    """Return what a function makes of every draw, (d, rows)."""
    made = np.empty((len(free[0]) if free else 1, rows))
    for k in range(len(made)):
        try:
            value = np.asarray(function(*(values[k] for values in free), *data))
            if value.ndim > 1:
                raise ValueError(f"its shape is {value.shape} for {rows} rows")
            made[k] = value
        except (ValueError, IndexError, TypeError) as error:
            problem = f"is not taken by the model ({str(error).splitlines()[0][:200]})"
            raise InputError("newdata", problem, "pass pm.Data as for pm.set_data") from error
    return made


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

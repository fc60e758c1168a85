"""Data and parameters of a loss written in JAX: pytrees in, checked arrays with names out.

JAX sorts the keys of dicts. Parameters keep the order in which a user wrote them, in names, draws
and tables; only where JAX takes a pytree apart does its own order count.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError, MissingExtraError
from etafree.foundation.arguments import Array, as_array, refuse_masked

#: An array, or arrays in dicts, lists and tuples.
Pytree: TypeAlias = Any
#: A column of numbers, whole numbers or truth values.
Numbers: TypeAlias = NDArray[np.generic]


def import_jax() -> ModuleType:
    """Import JAX, or say how to install it."""
    try:
        return importlib.import_module("jax")
    except ImportError as error:
        raise MissingExtraError("jax", "losses written in JAX") from error


def double_precision() -> AbstractContextManager[object]:
    """Return the context in which JAX computes in float64; outside, nothing changes."""
    enable = getattr(import_jax(), "enable_x64", None)
    if enable is None:  # before JAX 0.8
        enable = importlib.import_module("jax.experimental").enable_x64
    context: AbstractContextManager[object] = enable(True)
    return context


def traced(argument: str, function: Callable[..., object], theta: object, row: object) -> Any:
    """Return shape and type of what a function of parameters and a row returns, or say why not."""
    jax = import_jax()
    try:
        with double_precision():
            return jax.eval_shape(function, theta, row)
    except Exception as error:  # whatever the user's function raises
        kind, message = type(error).__name__, (str(error).splitlines() or [""])[0]
        like = (jax.tree.structure(part) for part in (theta, row))
        advice = {
            "KeyError": "theta is {} and row {}, without columns that are not numbers".format(
                *like
            ),
            "TracerBoolConversionError": "use jnp.where instead of if",
            "TracerArrayConversionError": "use jax.numpy instead of numpy",
        }.get(kind, "it takes (theta, row) and computes with jax.numpy")
        raise InputError(argument, f"raises {kind}: {message}", advice) from error


def refuse_other_rows(
    argument: str, function: Callable[..., object], n: int, *like: object
) -> None:
    """Refuse a loss of single rows that closes over an array with an entry for each of n rows.

    Such a loss (a partial likelihood, say) is no sum of independent terms: scores of single rows
    are wrong. Arrays are found among the constants of the traced function. With as many rows as
    parameters, the first of `like`, an entry may belong to a parameter: then nothing is refused.
    """
    jax = import_jax()
    with double_precision():
        traced = jax.make_jaxpr(function)(*like)
    parameters = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(like[0]))
    for shape in _constants(traced):
        if n not in (1, parameters) and n in shape:
            problem = f"closes over an array of shape {shape}, an entry for each of {n} rows: "
            problem += "then rows are not terms of their own, and scores of single rows are wrong"
            advice = "take what belongs to a row from row, and a partial likelihood from ef.Cox(); "
            advice += "if the array has nothing to do with the rows, pass constants=True"
            raise InputError(argument, problem, advice)


def _constants(traced: object) -> list[tuple[int, ...]]:
    """Return the shapes of the constants of a traced function and of those it calls."""
    shapes = [np.shape(value) for value in getattr(traced, "consts", ())]
    for equation in getattr(getattr(traced, "jaxpr", traced), "eqns", ()):
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                shapes += _constants(inner) if hasattr(inner, "eqns") else []
    return shapes


def _is_leaf(node: object) -> bool:
    """Take a list of numbers for an array."""
    return isinstance(node, list) and all(isinstance(v, int | float | np.number) for v in node)


def _label(path: Iterable[object], root: str) -> str:
    """Return a pytree's path in words: ``beta``, ``net.weights``, ``layers[0]``."""
    text = ""
    for key in path:
        name = getattr(key, "key", getattr(key, "name", key))
        text += f"[{key.idx}]" if hasattr(key, "idx") else f".{name}"
    return root + text if text[:1] in ("", "[") else text[1:]


def as_parameters(start: object) -> tuple[Pytree, Array, tuple[str, ...] | None]:
    """Return parameters as a pytree of arrays, flat (p,), and their names; None for one vector."""
    if start is None:
        advice = "pass an array or a dict of arrays that says what the parameters are, such as "
        raise InputError("start", "is missing", advice + "start=np.zeros(3)")
    jax = import_jax()
    arrays = jax.tree.map(lambda leaf: as_array(leaf, "start"), start, is_leaf=_is_leaf)
    template = _as_written(start, arrays)
    paths = jax.tree_util.tree_flatten_with_path(template)[0]
    leaves = [paths[place] for place in _places(template)]
    flat = np.concatenate([np.zeros(0), *(leaf.reshape(-1) for _, leaf in leaves)])
    if not len(flat):
        raise InputError("start", "holds no parameters", "pass an array such as np.zeros(3)")
    if template is leaves[0][1] and template.ndim < 2:
        return template, flat, None
    names = [
        _label(path, "theta") + (f"[{','.join(map(str, at))}]" if at else "")
        for path, leaf in leaves
        for at in np.ndindex(leaf.shape)
    ]
    return template, flat, tuple(names)


def _as_written(start: Pytree, arrays: Pytree) -> Pytree:
    """Return a pytree of arrays with the keys of its dicts in the order of what was given."""
    if isinstance(arrays, np.ndarray):
        return arrays
    if type(start) is dict:
        return {key: _as_written(value, arrays[key]) for key, value in start.items()}
    if type(start) in (list, tuple):
        return type(start)(_as_written(*pair) for pair in zip(start, arrays, strict=True))
    return arrays


def _places(template: Pytree) -> list[int]:
    """Return JAX's places of the arrays of a pytree, in the order in which its dicts have them."""
    jax = import_jax()
    leaves, tree = jax.tree.flatten(template)

    def walk(node: Pytree, places: Pytree) -> Iterator[int]:
        if isinstance(node, dict):
            for key in node:
                yield from walk(node[key], places[key])
        elif type(node) in (list, tuple):
            for child, place in zip(node, places, strict=True):
                yield from walk(child, place)
        else:
            yield from jax.tree.leaves(places)

    return list(walk(template, jax.tree.unflatten(tree, range(len(leaves)))))


def structure(template: Pytree) -> tuple[object, ...]:
    """Return what two pytrees of arrays have in common if the same functions take both."""
    leaves, tree = import_jax().tree.flatten(template)
    return tree, tuple(leaf.shape for leaf in leaves), tuple(_places(template))


def rebuild(template: Pytree) -> Callable[[Array], Pytree]:
    """Return the function that gives a flat vector (p,) the structure of a pytree of arrays."""
    jax = import_jax()
    leaves, tree = jax.tree.flatten(template)
    places = _places(template)
    sizes = [leaves[place].size for place in places]
    ends = dict(zip(places, np.cumsum(sizes).tolist(), strict=True))

    def structured(theta: Array) -> Pytree:
        arrays = [
            theta[ends[place] - leaf.size : ends[place]].reshape(leaf.shape)
            for place, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(tree, arrays)

    return structured


def _numbers(leaf: object) -> Numbers | None:
    """Return a column as floats, integers or booleans, None if it is none of these."""
    try:
        refuse_masked(leaf, "data")
        raw = np.asarray(leaf)
        if raw.dtype.kind in "biu":
            return raw if raw.dtype.kind == "b" else raw.astype(np.int64)
        return as_array(leaf, "data", finite=False)
    except (InputError, ValueError):
        return None


def as_columns(data: Pytree) -> tuple[Pytree, int]:
    """Return data as a pytree of arrays (n, ...), and n; of a DataFrame the columns of numbers."""
    jax = import_jax()
    if hasattr(data, "columns"):
        data = {name: data[name] for name in data.columns if _numbers(data[name]) is not None}
    try:
        leaves, tree = jax.tree_util.tree_flatten_with_path(data, is_leaf=_is_leaf)
    except ValueError:
        raise InputError("data", "has column names that do not sort", "make all strings") from None
    named = [(_label(path, "data"), leaf, _numbers(leaf)) for path, leaf in leaves]
    if not named:
        raise InputError("data", "has no columns of numbers", "pass a dict of arrays")
    bad = [name for name, _, array in named if array is None]
    if bad:
        problem = f"has columns that are not numbers: {', '.join(bad)}"
        raise InputError("data", problem, "turn them into numbers or leave them out")
    arrays = {name: array for name, _, array in named if array is not None}
    n = _common_length(arrays)
    indexes = [leaf.index for _, leaf, _ in named if hasattr(leaf, "iloc")]
    if any(not index.equals(indexes[0]) for index in indexes[1:]):
        raise InputError("data", "has columns whose indexes differ", "sort them by one index")
    return jax.tree.unflatten(tree, [np.ascontiguousarray(a) for a in arrays.values()]), n


def _common_length(arrays: Mapping[str, Numbers]) -> int:
    """Return how many rows all columns have; single numbers and no rows at all are refused."""
    single = [name for name, array in arrays.items() if array.ndim == 0]
    if single:
        problem = f"has single numbers where columns belong: {', '.join(single)}"
        raise InputError("data", problem, "write constants into the function")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        problem = f"has columns of different lengths: {lengths}"
        raise InputError("data", problem, "the first axis is the observation")
    n = max(lengths.values())
    if n == 0:
        raise InputError("data", "has no rows")
    return n


def in_bundles(thetas: Array, step: int, call: Callable[[Array], Array]) -> Array:
    """Return what `call` makes of parameters (D, p), `step` at a time; NaN becomes infinity.

    The last bundle is filled up to a power of two: few sizes, few compilations.
    """
    out = np.zeros(len(thetas))
    for first in range(0, len(thetas), step):
        bundle = thetas[first : first + step]
        size = 1 << (len(bundle) - 1).bit_length()
        filled = bundle[np.minimum(np.arange(size), len(bundle) - 1)]
        out[first : first + step] = call(filled)[: len(bundle)]
    return np.where(np.isnan(out), np.inf, out)

"""Data and parameters of a loss written in JAX: pytrees in, checked arrays with names out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError, MissingExtraError
from etafree.foundation.arguments import Array, as_array, refuse_masked


def import_jax() -> ModuleType:
    """Return JAX, or say how to install it."""
    try:
        return importlib.import_module("jax")
    except ImportError as error:
        raise MissingExtraError("jax", "losses written in JAX") from error


def double_precision() -> AbstractContextManager[object]:
    """Return the context in which JAX computes in float64; outside, nothing changes.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> with double_precision():
    ...     print(jnp.ones(1).dtype)
    float64
    """
    enable = getattr(import_jax(), "enable_x64", None)
    if enable is None:  # before JAX 0.8
        enable = importlib.import_module("jax.experimental").enable_x64
    context: AbstractContextManager[object] = enable(True)
    return context


def refuse_other_rows(
    argument: str, function: Callable[..., object], n: int, *like: object
) -> None:
    """Refuse a loss of single rows that closes over an array with an entry for each of n rows.

    Such a loss (a partial likelihood, say) is no sum of independent terms, and the scores of single
    rows are not its own. Arrays are found among the constants of the traced function.
    """
    with double_precision():
        traced = import_jax().make_jaxpr(function)(*like)
    for shape in _constants(traced):
        if n > 1 and n in shape:
            raise InputError(
                argument,
                f"closes over an array of shape {shape}, an entry for each of {n} rows: "
                "then rows are not terms of their own, and scores of single rows are wrong",
                "take what belongs to a row from row; if the array has nothing to do with the "
                "rows, pass constants=True",
            )


def _constants(traced: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the constants of a traced function and of those it calls."""
    shapes = [np.shape(value) for value in getattr(traced, "consts", ())]
    for equation in getattr(traced, "jaxpr", traced).eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns"):
                    shapes += _constants(inner)
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


def as_parameters(start: object) -> tuple[Any, Array, tuple[str, ...] | None]:
    """Return parameters as a pytree of arrays, flat (p,), and their names; None for one vector.

    Examples
    --------
    >>> as_parameters({"beta": [0, 1], "scale": 2.0})[1:]
    (array([0., 1., 2.]), ('beta[0]', 'beta[1]', 'scale'))
    """
    if start is None:
        raise InputError(
            "start",
            "is missing",
            "pass an array or a dict of arrays that says what "
            "the parameters are, such as start=np.zeros(3)",
        )
    jax = import_jax()
    template = jax.tree.map(lambda leaf: as_array(leaf, "start"), start, is_leaf=_is_leaf)
    leaves = jax.tree_util.tree_flatten_with_path(template)[0]
    flat = np.concatenate([np.zeros(0), *(leaf.reshape(-1) for _, leaf in leaves)])
    if not len(flat):
        raise InputError("start", "holds no parameters", "pass an array such as np.zeros(3)")
    if template is leaves[0][1] and template.ndim < 2:
        return template, flat, None
    names = []
    for path, leaf in leaves:
        for at in np.ndindex(leaf.shape):
            place = "[" + ",".join(map(str, at)) + "]" if at else ""
            names.append(_label(path, "theta") + place)
    return template, flat, tuple(names)


def rebuild(template: object) -> Callable[[Any], Any]:
    """Return the function that gives a flat vector (p,) the structure of a pytree of arrays.

    Examples
    --------
    >>> rebuild({"beta": np.zeros(2), "scale": np.zeros(())})(np.array([1.0, 2.0, 3.0]))["beta"]
    array([1., 2.])
    """
    jax = import_jax()
    leaves, tree = jax.tree.flatten(template)
    ends = np.cumsum([leaf.size for leaf in leaves])

    def structured(theta: Any) -> Any:
        parts = [
            theta[end - leaf.size : end].reshape(leaf.shape)
            for leaf, end in zip(leaves, ends, strict=True)
        ]
        return jax.tree.unflatten(tree, parts)

    return structured


def _numbers(leaf: object) -> NDArray[Any] | None:
    """Return a column as floats, integers or booleans, None if it is none of these."""
    try:
        refuse_masked(leaf, "data")
        raw = np.asarray(leaf)
        if raw.dtype.kind in "biu":
            return raw if raw.dtype.kind == "b" else raw.astype(np.int64)
        return as_array(leaf, "data", finite=False)
    except (InputError, ValueError):
        return None


def as_columns(data: Any) -> tuple[Any, int]:
    """Return data as a pytree of arrays (n, ...), and n; of a DataFrame the columns of numbers.

    Examples
    --------
    >>> as_columns({"x": np.zeros((3, 2)), "y": [1, 2, 3]})[1]
    3
    """
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
        raise InputError(
            "data",
            f"has columns that are not numbers: {', '.join(bad)}",
            "turn them into numbers or leave them out",
        )
    arrays = {name: array for name, _, array in named if array is not None}
    n = _common_length(arrays)
    indexes = [leaf.index for _, leaf, _ in named if hasattr(leaf, "iloc")]
    if any(not index.equals(indexes[0]) for index in indexes[1:]):
        raise InputError("data", "has columns whose indexes differ", "sort them by one index")
    return jax.tree.unflatten(tree, [np.ascontiguousarray(a) for a in arrays.values()]), n


def _common_length(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return how many rows all columns have; single numbers and no rows at all are refused."""
    single = [name for name, array in arrays.items() if array.ndim == 0]
    if single:
        raise InputError(
            "data",
            f"has single numbers where columns belong: {', '.join(single)}",
            "write constants into the function",
        )
    lengths = {name: len(array) for name, array in arrays.items()}
    n = max(lengths.values())
    if len(set(lengths.values())) > 1:
        raise InputError(
            "data",
            f"has columns of different lengths: {lengths}",
            "the first axis is the observation",
        )
    if n == 0:
        raise InputError("data", "has no rows")
    return n


def in_bundles(thetas: Array, step: int, call: Callable[[Array], Array]) -> Array:
    """Return what `call` makes of parameters (D, p), `step` at a time; not a number is infinite.

    The last bundle is filled up to a power of two: few sizes, few compilations.

    Examples
    --------
    >>> in_bundles(np.array([[1.0], [np.nan], [3.0]]), 2, lambda t: 2 * t[:, 0])
    array([ 2., inf,  6.])
    """
    out = np.zeros(len(thetas))
    for first in range(0, len(thetas), step):
        bundle = thetas[first : first + step]
        size = 1 << (len(bundle) - 1).bit_length()
        filled = bundle[np.minimum(np.arange(size), len(bundle) - 1)]
        out[first : first + step] = call(filled)[: len(bundle)]
    return np.where(np.isnan(out), np.inf, out)

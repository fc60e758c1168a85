"""Axes that carry the parameters' names: what pandas and xarray hold goes by name, in any order.

A vector, draws or a matrix of named parameters are put in the order of the names; a name that is
missing, unknown or there twice is refused. Labels 0, 1, ... are positions and no names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etafree.errors import InputError
from etafree.validation import as_names

__all__ = ["axis_names", "in_order", "in_shape_of", "renamed"]


def axis_names(value: Any, axis: int = -1) -> tuple[str, ...] | None:
    """Return the names along an axis of a pandas or xarray object, None if it has none.

    Examples
    --------
    >>> import pandas as pd
    >>> axis_names(pd.DataFrame([[1.0, 2.0]], columns=["a", "b"])), axis_names(np.ones(2))
    (('a', 'b'), None)
    """
    labels: Any = None
    if hasattr(value, "dims") and hasattr(value, "coords"):
        many = getattr(value, "ndim", 0)  # a Dataset has variables of several
        if -many <= axis < many:
            labels = value.coords.get(value.dims[axis])
            labels = None if labels is None else labels.values
    elif hasattr(value, "columns"):
        labels = value.columns if axis % 2 else getattr(value, "index", None)
    else:
        labels = getattr(value, "index", None)  # of a Series; of a list it is a method
    if labels is None or callable(labels) or _are_positions(labels):
        return None
    return tuple(str(label) for label in labels)


def _are_positions(labels: Any) -> bool:
    return all(isinstance(label, int | np.integer) and label == k for k, label in enumerate(labels))


def in_order(value: Any, names: Sequence[str], argument: str, axes: tuple[int, ...] = (-1,)) -> Any:
    """Return a value whose named axes have the order of `names`; one without names as it is.

    Where `names` are made up (``theta[0]``, ...) and none of them is meant, positions count.

    Examples
    --------
    >>> import pandas as pd
    >>> in_order(pd.Series({"b": 2.0, "a": 1.0}), ["a", "b"], "center")
    array([1., 2.])
    """
    if type(value) is np.ndarray:  # at every step of a minimiser
        return value
    wanted = tuple(names)
    found = [axis_names(value, axis) for axis in axes]
    known = next((own for own in found if own is not None), None)
    made_up = wanted == as_names(None, len(wanted))
    if known is None or (made_up and not set(known) & set(wanted)):
        return value
    array = np.asarray(value)
    for axis, own in zip(axes, found, strict=True):  # an axis without names is as the other
        array = np.take(array, _positions(own or known, wanted, argument), axis=axis)
    return array


def _positions(given: tuple[str, ...], wanted: tuple[str, ...], argument: str) -> list[int]:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise InputError(argument, f"has no {_listed(missing)}; its names are {_listed(given)}",
                         "name every parameter, or pass a plain array")  # fmt: skip
    surplus = [name for name in given if name not in wanted]
    if surplus:
        raise InputError(argument, f"has {_listed(surplus)} besides the parameters",
                         f"choose the columns {_listed(wanted)}")  # fmt: skip
    if len(given) > len(wanted):
        raise InputError(argument, f"has a name twice, of {_listed(given)}", "drop one")
    return [given.index(name) for name in wanted]


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:8])
    return f"{shown}" if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def in_shape_of(image: Any, value: Any, names: Sequence[str]) -> Any:
    """Return an array in the order of `names` as the kind of object that `value` is.

    Examples
    --------
    >>> import pandas as pd
    >>> in_shape_of(np.array([1.0, 2.0]), pd.Series({"b": 0.0, "a": 0.0}), ["a", "b"]).to_dict()
    {'b': 2.0, 'a': 1.0}
    """
    given = axis_names(value)
    if given is not None and set(given) == set(names):
        image = np.take(image, [list(names).index(name) for name in given], axis=-1)
    if hasattr(value, "dims") and hasattr(value, "coords"):
        return value.copy(data=image)
    if not hasattr(value, "iloc"):  # neither pandas nor xarray
        return image
    axes = {"columns": value.columns} if hasattr(value, "columns") else {"name": value.name}
    return type(value)(image, index=value.index, **axes)


def renamed(value: Any, names: Sequence[str] | None, argument: str) -> tuple[Any, Any]:
    """Return a value and its names: those given are new ones, or the order of those it has."""
    own = axis_names(value)
    if names is None or own is None:
        return value, own if names is None else names
    wanted = as_names(names, None)
    return (in_order(value, wanted, argument) if set(wanted) & set(own) else value), wanted

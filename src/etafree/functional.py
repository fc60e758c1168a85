"""Functions of the parameters, mapped draw by draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from etafree.errors import InputError
from etafree.validation import Array, as_array, as_level

__all__ = ["Functional", "image"]


@dataclass(frozen=True, eq=False)
class Functional:
    """A function of the parameters: its value at the centre and its draws before and after.

    Attributes
    ----------
    name : str
        What it is called.
    estimate : () or (k,) array
        Its value at the centre.
    draws, original : (draw,) or (draw, k) array
        Its calibrated and its original draws.
    level : float
        Default level of its interval.

    See Also
    --------
    etafree.Calibration.of : What returns it.

    Examples
    --------
    >>> draws = np.linspace(0.0, 1.0, 101)
    >>> Functional("share", np.array(0.5), draws, draws).interval(0.9)
    array([0.05, 0.95])
    """

    name: str
    estimate: Array
    draws: Array
    original: Array
    level: float = 0.95

    def interval(self, level: float | None = None) -> Array:
        """Return equal-tailed limits at `level` of the calibrated draws, (2,) or (2, k)."""
        tail = 0.5 * (1 - as_level(self.level if level is None else level))
        limits: Array = np.quantile(self.draws, [tail, 1 - tail], axis=0)
        return limits


def image(
    function: Callable[[Mapping[str, Array]], Array], names: tuple[str, ...], array: Array
) -> Array:
    """Return the function of parameters given by name, at one point (p,) or many (d, p)."""
    if not callable(function):
        raise InputError("function", f"is {function!r}", "pass a function of named parameters")
    named = {key: array[..., j] for j, key in enumerate(names)}
    try:
        made = as_array(function(named), "function")
    except KeyError as error:
        raise InputError("function", f"asks for {error}", f"parameters are {list(names)}") from None
    if made.shape[: array.ndim - 1] != array.shape[:-1]:
        raise InputError(
            "function",
            f"returns shape {made.shape} for {len(array)} draws",
            "work on arrays: one value per draw",
        )
    return made

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
        Its value at the centre of the calibration.
    draws, original : (draw,) or (draw, k) array
        Its calibrated and its original draws.
    level : float
        Default level of its interval.

    See Also
    --------
    etafree.Calibration.of : What returns it.

    Examples
    --------
    >>> import etafree as ef
    >>> draws = np.random.default_rng(0).standard_normal((5000, 2))
    >>> made = ef.calibrate(draws, center=[1, 2], covariance=np.eye(2), names=["a", "b"])
    >>> product = made.of(lambda t: t["a"] * t["b"])
    >>> float(product.estimate), product.interval(0.9).round(1)
    (2.0, array([-1.3,  6.4]))
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

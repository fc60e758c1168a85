r"""Any loss written in JAX, :math:`M(\theta)=\sum_i w_i f(\theta, \mathrm{row}_i)`.

Scores and Hessians come from automatic differentiation, in float64 whatever JAX's global flag says,
which is never changed. Rows are taken in chunks of one size, so that every function is compiled
once per loss and shape; weights are arguments, so that other weights compile nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etafree.errors import InputError
from etafree.jax_total import JaxTotal
from etafree.kernels import Kernels
from etafree.pytrees import (
    as_columns,
    as_parameters,
    double_precision,
    import_jax,
    refuse_other_rows,
)
from etafree.totals import GeneralLoss
from etafree.validation import Array

__all__ = ["JaxLoss", "JaxTotal", "double_precision"]


@dataclass(frozen=True, repr=False)
class JaxLoss(GeneralLoss):
    r"""A loss of your own, written in JAX, :math:`M(\theta)=\sum_i w_i f(\theta,\mathrm{row}_i)`.

    Its criterion takes ``data``: a dict (any pytree, a DataFrame) of arrays whose first axis is the
    observation, and ``start``: an array, or a pytree of arrays, that says what the parameters are.
    Columns of a DataFrame that are not numbers are left out of `row`; they may name clusters.

    Parameters
    ----------
    function : callable
        ``f(theta, row)``: the loss of one observation, a scalar. `theta` is like `start`, `row` one
        observation of the data. Twice differentiable almost everywhere.
    name : str, optional
        What results call it; default the function's own name.
    convex : bool
        Whether it is convex in theta. If so, no rival minima are looked for.
    constants : bool
        Say that an array which the function closes over, and which has as many entries as there are
        rows, has nothing to do with the rows. Without it such a function is refused: a loss that
        looks at other rows is no sum of independent terms.

    Raises
    ------
    InputError
        `function` is not callable. The criterion refuses one that does not turn a row into a
        number, that looks at other rows, or whose derivatives are not finite at the start.
    MissingExtraError
        JAX is not installed (raised by the criterion).

    See Also
    --------
    PairLoss : The same over pairs of observations.
    losses.LinearLoss : A loss over a linear predictor, without JAX.

    References
    ----------
    Bradbury, J. et al. (2018). JAX: composable transformations of Python+NumPy programs.

    Examples
    --------
    >>> import etafree as ef, jax.numpy as jnp
    >>> def gaussian(theta, row):
    ...     z = (row["y"] - theta["mean"]) * jnp.exp(-theta["log_sd"])
    ...     return 0.5 * z**2 + theta["log_sd"]
    >>> start = {"mean": 0.0, "log_sd": 0.0}
    >>> c = ef.Criterion(ef.JaxLoss(gaussian), data={"y": np.array([1.0, 3.0, 5.0])}, start=start)
    >>> c.names, ef.minimise(c).theta.round(6)
    (('log_sd', 'mean'), array([0.490415, 3.      ]))
    >>> c.loss.describe()
    'the expected loss gaussian'
    """

    function: Callable[[Any, Any], Any]
    name: str | None = None
    convex: bool = False  # type: ignore[misc]  # a property of the function, not of the class
    constants: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError("function", f"is a {type(self.function).__name__}",
                             "pass a function f(theta, row) written in JAX")  # fmt: skip

    def __repr__(self) -> str:
        return f"JaxLoss({self.label})"

    def __getstate__(self) -> dict[str, Any]:  # compiled functions stay behind
        return {key: value for key, value in self.__dict__.items() if key != "_kernels"}

    @property
    def label(self) -> str:
        """The name of the loss."""
        return self.name or str(getattr(self.function, "__name__", type(self.function).__name__))

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return f"the expected loss {self.label}"

    def count(self, data: Any) -> int:
        """Return the number of observations in the data."""
        return as_columns(data)[1]

    def bind(
        self, data: Any, start: Any, weights: Array | None, frequency: bool
    ) -> tuple[JaxTotal, Array, tuple[str, ...] | None]:
        """Return the total, the start (p,) and names such as ``beta[0]``; None for one vector."""
        template, flat, names = as_parameters(start)
        total = JaxTotal(self, template, as_columns(data)[0], weights, frequency)
        _check_function(total)
        _check_start(total, flat)
        return total, flat, names

    def kernels(self, template: Any, row: Any) -> Kernels:
        """Return the compiled functions for parameters and rows like these, made once."""
        tree = import_jax().tree
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in tree.leaves((template, row)))
        key = (tree.structure((template, row)), shapes)
        known: dict[Any, Kernels] = self.__dict__.setdefault("_kernels", {})
        if key not in known:
            known[key] = Kernels(self.function, template, row)
        return known[key]


def _check_function(total: JaxTotal) -> None:
    """Refuse a function that does not turn parameters and a row into one number."""
    jax = import_jax()
    try:
        with double_precision():
            made = jax.eval_shape(total.loss.function, total.template, total.row)
    except Exception as error:  # whatever the user's function raises
        kind, told = type(error).__name__, (str(error).splitlines() or [""])[0]
        like = [jax.tree.structure(part) for part in (total.template, total.row)]
        advice = {
            "KeyError": f"theta is {like[0]} and row {like[1]}, without columns that are not "
            "numbers",
            "TracerBoolConversionError": "use jnp.where instead of if",
            "TracerArrayConversionError": "use jax.numpy instead of numpy",
        }.get(kind, "it takes (theta, row) and computes with jax.numpy")
        raise InputError("function", f"raises {kind}: {told}", advice) from error
    shape = getattr(made, "shape", None)
    if shape != ():
        what = f"a {type(made).__name__}" if shape is None else f"an array of shape {shape}"
        raise InputError("function", f"returns {what} for one row", "return one number")
    if not np.issubdtype(made.dtype, np.floating):
        raise InputError("function", f"returns {made.dtype}", "return a floating-point number")
    if not total.loss.constants:
        refuse_other_rows("function", total.loss.function, total.n, total.template, total.row)


def _check_start(total: JaxTotal, flat: Array) -> None:
    """Refuse a start where the loss or its derivatives are not finite, and a loss of kinks."""
    here = total.derivatives(flat)
    if not np.isfinite(here.value):
        bad = np.flatnonzero(~np.isfinite(total.values(flat)))
        raise InputError("start", f"is where the loss of {len(bad)} rows is not finite, the first "
                         f"row {bad[0] if len(bad) else '?'}",
                         "pass another start=, or drop rows with missing values")  # fmt: skip
    if not (np.isfinite(here.gradient).all() and np.isfinite(here.hessian).all()):
        raise InputError("function", "has derivatives that are not finite at the start, where its "
                         "value is", "put a second jnp.where inside the root, logarithm or "
                         "quotient that the first one leaves out")  # fmt: skip
    if here.hessian.any() or not here.gradient.any():
        return
    step = 0.01 * (1 + np.abs(flat)) * np.where(np.arange(len(flat)) % 2, -1.0, 1.0)
    if not total.derivatives(flat + step).hessian.any():
        raise InputError(
            "function", "has a second derivative of zero at the start and next to it",
            "smooth its kinks (ef.losses.Quantile is a smoothed quantile loss, jax.nn.softplus a "
            "smoothed hinge), or if it is linear only far from the data, as Huber's, start nearer",
        )  # fmt: skip

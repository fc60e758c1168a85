r"""Criterion = data + loss + penalty: the penalized total loss and its derivatives.

:math:`L(\theta) = M(\theta) + \lambda_n s_n\rho(\theta)`, sums over observations throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etafree.errors import InputError
from etafree.formula import design
from etafree.linear import Derivatives, LinearTotal
from etafree.losses import LinearLoss, ResidualLoss
from etafree.penalties import NoPenalty, Penalty
from etafree.rows import Rows
from etafree.scale import mad_scale
from etafree.validation import Array, as_array, as_choice, as_names

__all__ = ["Criterion"]

WEIGHT_KINDS = ("frequency", "sampling")


@dataclass(frozen=True, eq=False, init=False)
class Criterion:
    r"""Penalized total loss of a data set.

    Parameters
    ----------
    loss : LinearLoss
        For example ``ef.losses.Huber(1.345)``.
    data : (X, y)
        Design matrix (n, p), array or DataFrame (its columns name the parameters), and response
        (n,). No intercept is added.
    penalty : Penalty, optional
        For example ``ef.penalties.Ridge(0.5)``. None means no penalty.
    weights : (n,) array, optional
        At least zero. `weight_kind` must then say what they are.
    weight_kind : {"frequency", "sampling"}
        ``frequency``: a weight counts identical copies of the row. ``sampling``: a weight says how
        many units of the population the row stands for.
    offset : (n,) array, optional
        Added to the linear predictor.
    trials : (n,) array, optional
        Number of trials behind each response (`Logistic` only).
    names : sequence of str, optional
        Parameter names.

    Attributes
    ----------
    total : LinearTotal
        The unpenalized total loss M.
    size : float
        The effective scale :math:`s_n`, the sum of the weights.
    strength : float
        :math:`\lambda_n` at that scale.
    intercept : int or None
        Column that a ridge leaves alone; only the formula front end sets it.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.array([[1.0], [1.0]]), np.array([1.0, 3.0])
    >>> c = ef.Criterion(ef.losses.Squared(), data=(X, y), penalty=ef.penalties.Ridge(1.0))
    >>> c.value(np.array([1.0])), c.gradient(np.array([1.0]))
    (3.0, array([0.]))
    """

    total: LinearTotal
    penalty: Penalty
    names: tuple[str, ...]
    rows: Rows
    intercept: int | None
    size: float
    strength: float
    plug_ins: Mapping[str, float]

    def __init__(
        self,
        loss: LinearLoss,
        data: tuple[Any, Any],
        penalty: Penalty | None = None,
        *,
        weights: Any = None,
        weight_kind: str | None = None,
        offset: Any = None,
        trials: Any = None,
        names: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(data, tuple) or len(data) != 2:
            raise InputError("data", f"is a {type(data).__name__}", "pass a tuple (X, y)")
        if not isinstance(loss, LinearLoss):
            raise InputError("loss", f"is {loss!r}", "pass a loss such as ef.losses.Huber(1.345)")
        if penalty is not None and not isinstance(penalty, Penalty):
            raise InputError("penalty", f"is {penalty!r}", "pass ef.penalties.Ridge(...) or None")
        if getattr(data[0], "ndim", 2) == 1:
            raise InputError("X", "is a vector but must have 2 dimensions", "pass X[:, None]")
        X = np.ascontiguousarray(as_array(data[0], "X", ndim=2))
        n, p = X.shape
        if n == 0 or p == 0:
            raise InputError("X", f"has shape {X.shape}", "pass at least one row and one column")
        y = as_array(data[1], "y", ndim=1)
        if len(y) != n:
            raise InputError("y", f"has {len(y)} entries but X has {n} rows")
        rows = Rows(n, None, _index(*data))
        if names is None and hasattr(data[0], "columns"):
            names = [str(column) for column in data[0].columns]

        def vector(value: Any, argument: str) -> Array | None:
            if value is None:
                return None
            return as_array(rows.align(value, argument), argument, shape=(n,))

        w, o, m = vector(weights, "weights"), vector(offset, "offset"), vector(trials, "trials")
        if w is not None or weight_kind is not None:
            weight_kind = as_choice(weight_kind, "weight_kind", WEIGHT_KINDS)
        if w is not None:
            _check_weights(w, weight_kind == "frequency")
        if m is not None:
            if not loss.takes_trials:
                raise InputError("trials", f"means nothing to {type(loss).__name__}")
            y = np.column_stack([y, m])
        total = _fitted(LinearTotal(loss, X, y, o, w, weight_kind != "sampling"))
        self._set(total, (penalty or NoPenalty()).fitted_to(p), as_names(names, p), rows)

    @classmethod
    def from_formula(
        cls,
        formula: str,
        data: Any,
        loss: LinearLoss,
        penalty: Penalty | None = None,
        *,
        weights: Any = None,
        weight_kind: str | None = None,
        offset: Any = None,
        trials: Any = None,
        penalize_intercept: bool = False,
        context: Mapping[str, Any] | None = None,
    ) -> Criterion:
        """Return the criterion of a formula such as ``"y ~ x1 + C(region)"`` and a DataFrame.

        `weights`, `offset` and `trials` may be column names. Rows with missing values are dropped;
        whatever is passed later with one value per original row (clusters, say) is cut to the same
        rows, and may be a column name too. A ridge penalty without an explicit Q leaves the
        intercept alone unless `penalize_intercept`; any other penalty is taken as it is. `context`
        holds functions of your own that the formula calls.

        Examples
        --------
        >>> import etafree as ef, pandas as pd
        >>> df = pd.DataFrame({"y": [1.0, 2.0, 4.0], "x": [0.0, 1.0, 2.0]})
        >>> ef.Criterion.from_formula("y ~ x", df, ef.losses.Squared()).names
        ('Intercept', 'x')
        """
        made = design(formula, data, context)

        def column(value: Any, argument: str) -> Any:
            return None if value is None else made.rows.align(value, argument)

        intercept = None if penalize_intercept else made.intercept
        if isinstance(penalty, Penalty):
            penalty = penalty.fitted_to(len(made.names), intercept)
        criterion = cls(
            loss,
            (made.X, made.y),
            penalty,
            weights=column(weights, "weights"),
            weight_kind=weight_kind,
            offset=column(offset, "offset"),
            trials=column(trials, "trials"),
            names=made.names,
        )
        criterion._set(criterion.total, criterion.penalty, criterion.names, made.rows, intercept)
        return criterion

    def _set(
        self, total: LinearTotal, penalty: Penalty, names: tuple[str, ...], rows: Rows,
        intercept: int | None = None,
    ) -> None:  # fmt: skip
        put = object.__setattr__
        put(self, "intercept", intercept)
        put(self, "plug_ins", total.loss.plug_ins())
        put(self, "total", total)
        put(self, "penalty", penalty)
        put(self, "names", names)
        put(self, "rows", rows)
        put(self, "size", total.size)
        put(self, "strength", penalty.strength_at(total.size))

    def reweighted(self, weights: Any, weight_kind: str = "frequency") -> Criterion:
        """Return the same criterion under other observation weights.

        The penalty's strength is that of the new size; a plug-in scale stays as it was.
        """
        as_choice(weight_kind, "weight_kind", WEIGHT_KINDS)
        w = None
        if weights is not None:
            w = as_array(self.rows.align(weights, "weights"), "weights", shape=(self.n,))
            _check_weights(w, weight_kind == "frequency")
        return self._with_total(self.total.reweighted(w, weight_kind == "frequency"))

    def with_plug_ins(self, plug_ins: Mapping[str, float]) -> Criterion:
        """Return the same criterion with nuisance values on record that were estimated before."""
        other = self._with_total(self.total)
        object.__setattr__(other, "plug_ins", {**self.plug_ins, **plug_ins})
        return other

    def with_loss(self, loss: LinearLoss) -> Criterion:
        """Return the same data and penalty under another loss."""
        if not isinstance(loss, LinearLoss):
            raise InputError("loss", f"is {loss!r}", "pass a loss such as ef.losses.Huber(1.345)")
        if self.total.y.ndim == 2 and not loss.takes_trials:
            raise InputError("loss", f"{type(loss).__name__} has no use for the data's trials")
        return self._with_total(_fitted(replace(self.total, loss=loss)))

    def with_penalty(self, penalty: Penalty) -> Criterion:
        """Return the same data and loss under another penalty."""
        if not isinstance(penalty, Penalty):
            raise InputError("penalty", f"is {penalty!r}", "pass ef.penalties.Ridge(...)")
        other = Criterion.__new__(Criterion)
        fitted = penalty.fitted_to(self.p, self.intercept)
        other._set(self.total, fitted, self.names, self.rows, self.intercept)
        return other

    def _with_total(self, total: LinearTotal) -> Criterion:
        other = Criterion.__new__(Criterion)
        other._set(total, self.penalty, self.names, self.rows, self.intercept)
        return other

    @property
    def loss(self) -> LinearLoss:
        """The loss of one observation."""
        return self.total.loss

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.total.n

    @property
    def p(self) -> int:
        """Number of parameters."""
        return self.total.p

    def derivatives(self, theta: Any, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient, Hessian of L and the size of the terms of the gradient."""
        theta = self.point(theta)
        part = self.total.derivatives(theta, majorize=majorize)
        weight = self.strength * self.size
        if weight == 0.0:
            return part
        slope = weight * self.penalty.gradient(theta)
        return Derivatives(
            part.value + weight * float(self.penalty.value(theta)),
            part.gradient + slope,
            part.hessian + weight * self.penalty.hessian(theta),
            part.gradient_scale + np.abs(slope),
        )

    def value(self, theta: Any) -> float:
        """Return L at one point (p,)."""
        return float(self.values_at(np.atleast_2d(self.point(theta)))[0])

    def gradient(self, theta: Any) -> Array:
        """Return the gradient of L (p,)."""
        return self.derivatives(theta).gradient

    def hessian(self, theta: Any) -> Array:
        """Return the Hessian of L (p, p)."""
        return self.derivatives(theta).hessian

    def values_at(self, thetas: Any) -> Array:
        """Return L at many points, (D, p) -> (D,)."""
        thetas = as_array(thetas, "thetas", ndim=2)
        if thetas.shape[1] != self.p:
            raise InputError("thetas", f"has {thetas.shape[1]} columns for {self.p} parameter(s)")
        out = self.total.totals(thetas)
        weight = self.strength * self.size
        return out if weight == 0.0 else out + weight * self.penalty.value(thetas)

    def penalty_share(self, theta: Array) -> Array:
        r"""Return :math:`\lambda_n\nabla^2\rho`, the penalty's Hessian per unit of weight."""
        return self.strength * self.penalty.hessian(theta)

    def point(self, theta: Any, argument: str = "theta") -> Array:
        """Return `theta` as a checked parameter vector (p,)."""
        return as_array(theta, argument, shape=(self.p,))

    def describe(self) -> str:
        """Return what intervals for this criterion cover, in words."""
        made = "the expected " + repr(self.loss).split("(")[0] + " loss"
        if self.strength > 0:
            made += f" plus the {self.penalty.describe(self.size)}"
        return f"the minimiser of {made}"

    def __repr__(self) -> str:
        extra = "" if self.total.weights is None else f", weights sum to {self.size:g}"
        return (
            f"Criterion({self.loss!r}, n={self.n}, p={self.p}, "
            f"{self.penalty.describe(self.size)}{extra})"
        )


def _index(X: Any, y: Any) -> Any:
    """Return the pandas index that X and y share, None for plain arrays."""
    found: list[Any] = [getattr(table, "index", None) for table in (y, X)]
    found = [index for index in found if index is not None and not callable(index)]
    if len(found) == 2 and not found[0].equals(found[1]):
        raise InputError("y", "has an index that differs from X's", "sort both by the same index")
    return found[0] if found else None


def _check_weights(weights: Array, frequency: bool) -> None:
    if np.any(weights < 0):
        raise InputError("weights", f"has the negative value {weights.min()}")
    if weights.max() > 1e150:
        raise InputError("weights", f"reach {weights.max():.1g}", "divide them by a constant")
    if not weights.sum() > 0:
        raise InputError("weights", "are all zero")
    if frequency and np.any(weights != np.round(weights)):
        raise InputError(
            "weights",
            "count copies of rows but are not whole numbers",
            "use weight_kind='sampling' for weights that are not counts",
        )


def _fitted(total: LinearTotal) -> LinearTotal:
    """Return the total with its response checked and a plug-in scale filled in."""
    loss, y = total.loss, total.y
    loss.check(y)
    if isinstance(loss, ResidualLoss) and isinstance(loss.scale, str):
        moved = y if total.offset is None else y - total.offset
        return replace(total, loss=loss.with_scale(mad_scale(loss, total.X, moved, total.weights)))
    return total

r"""A loss that comes as one vector, :math:`M(\theta)=\sum_i w_i f_i(\theta)`, written in JAX.

The compiled graph of a PyMC or NumPyro model gives the losses of all observations at once and
cannot be cut into rows. Scores then come by forward mode, one pass per parameter, and Hessians of
clusters by two; passes are bundled as far as memory allows. Float64 whatever JAX's global flag
says, which is never changed; weights are arguments, so that other weights compile nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.data.groups import COMPILE_FROM, Groups, add_group_sums
from etafree.data.pytrees import double_precision, import_jax, in_bundles
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array
from etafree.foundation.linalg import absolute, majorized
from etafree.penalties import SmoothPenalty
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives, GeneralLoss, Total

if TYPE_CHECKING:
    from jax import Array as JaxArray

#: Numbers that the passes of one bundle write.
BUNDLE = 1 << 20
#: Numbers in the Hessians of a block of clusters: each block takes all passes over all rows.
HESSIANS = 1 << 23
#: Smallest eigenvalue of a safe Hessian, relative to the largest.
FLOOR = 1e-6


class _Passes:
    """Compiled functions of parameters (p,) and weights (n,)."""

    def __init__(self, function: Callable[[Any], Any], n: int, p: int) -> None:
        jax = import_jax()
        jnp, many = jax.numpy, max(1, BUNDLE // n)
        axes, pairs = np.eye(p), np.column_stack(np.tril_indices(p))

        def values(theta: JaxArray, w: JaxArray) -> Any:
            return jnp.where(w > 0, w * function(theta), 0.0)

        def total(theta: Any, w: Any) -> Any:
            return values(theta, w).sum()

        def along(theta: JaxArray, w: JaxArray, axis: JaxArray) -> Any:
            return jax.jvp(lambda t: values(t, w), (theta,), (axis,))[1]

        def scores(theta: JaxArray, w: JaxArray) -> Any:
            return jax.lax.map(lambda axis: along(theta, w, axis), axes, batch_size=many).T

        def squares(theta: JaxArray, w: JaxArray) -> Any:
            def one(axis: JaxArray) -> Any:
                return (along(theta, w, axis) ** 2).sum()

            return jax.lax.map(one, axes, batch_size=many)

        def hessian(theta: JaxArray, w: JaxArray) -> Any:
            def column(axis: JaxArray) -> Any:
                return jax.jvp(lambda t: jax.grad(total)(t, w), (theta,), (axis,))[1]

            return jax.lax.map(column, axes, batch_size=many)

        def derivatives(theta: JaxArray, w: JaxArray) -> Any:
            value, gradient = jax.value_and_grad(total)(theta, w)
            return value, gradient, squares(theta, w), hessian(theta, w)

        def cluster_hessians(
            theta: JaxArray, w: JaxArray, codes: JaxArray, count: int, twice: bool
        ) -> Any:
            def add(bent: JaxArray) -> Any:
                return jax.ops.segment_sum(bent, codes, count)  # codes from `count` on are dropped

            def one(pair: JaxArray) -> Any:
                first, second = jnp.asarray(axes)[pair]
                bent = jax.jvp(lambda t: along(t, w, first), (theta,), (second,))[1]
                return (add(bent), add(w * bent)) if twice else (add(bent),)

            return jax.lax.map(one, pairs, batch_size=many)

        self.total, self.pairs = total, pairs
        self.values, self.scores = jax.jit(values), jax.jit(scores)
        self.derivatives = jax.jit(derivatives)
        self.value_and_gradient = jax.jit(jax.value_and_grad(total))
        self.totals = jax.jit(jax.vmap(total, (0, None)))
        self.cluster_hessians = jax.jit(cluster_hessians, static_argnums=(3, 4))


@dataclass(frozen=True, eq=False)
class PointwiseTotal(Total):
    """Sum of a `PointwiseLoss` of so many parameters over weighted observations."""

    loss: Any
    parameters: int
    weights: Array | None = None
    frequency: bool = True

    @property
    def n(self) -> int:
        """Number of observations."""
        return int(self.loss.n)

    @property
    def p(self) -> int:
        """Number of parameters."""
        return self.parameters

    @property
    def count(self) -> float:
        """Number of observations behind the losses: what small-sample factors count."""
        return float(self.loss.observations or super().count)

    @property
    def _w(self) -> Array:
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def _passes(self) -> _Passes:
        made: _Passes = self.loss.passes(self.p)
        return made

    def _call(self, name: str, theta: Array, *rest: Any) -> Any:
        with double_precision():
            made = getattr(self._passes, name)(theta, self._w, *rest)
            return import_jax().tree.map(np.asarray, made)

    def reweighted(self, weights: Array | None, frequency: bool) -> PointwiseTotal:
        """Return the same total under other weights."""
        return replace(self, weights=weights, frequency=frequency)

    def values(self, theta: Array) -> Array:
        """Return each observation's weighted loss (n,); they add up to the total."""
        made: Array = self._call("values", theta)
        return made

    def scores(self, theta: Array) -> Array:
        """Return each observation's weighted gradient (n, p); they add up to the total's."""
        made: Array = np.array(self._call("scores", theta))
        return made

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian; `majorize` makes its eigenvalues safely positive."""
        value, gradient, square, hessian = self._call("derivatives", theta)
        hessian, scale = 0.5 * (hessian + hessian.T), np.sqrt(self.n * square)
        if majorize:
            hessian = majorized(hessian, scale, FLOOR)
        return Derivatives(float(value), gradient, hessian, scale)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the total and its gradient (p,), for samplers that need no Hessian."""
        value, gradient = self._call("value_and_gradient", theta)
        return float(value), gradient

    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,).

        Where the loss is not a number it counts as infinite: such parameters have density zero.
        """
        step = 1 << max(0, (BUNDLE // self.n).bit_length() - 1)
        return in_bundles(thetas, step, lambda some: self._call("totals", some))

    def log_density_parts(self) -> Callable[[Any], Any]:
        """Return a function of theta (p,) that JAX can trace: the total loss, data closed over.

        Call, differentiate and compile it inside ``with double_precision()``.
        """
        jnp, total, w = import_jax().numpy, self._passes.total, self._w

        def summed(theta: Any) -> Any:
            value = total(theta, w)
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        return summed

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and every cluster's score sum."""
        sums, hessian = self._sums(theta, groups), self.derivatives(theta).hessian
        weights = groups.weights(self.weights)
        return ClusterTotals(sums.sum(axis=0), hessian, sums, weights)

    def _sums(self, theta: Array, groups: Groups) -> Array:
        """Return score sums of clusters (G, p)."""
        out = np.zeros((len(groups), self.p))
        compiled = self.n * self.p >= COMPILE_FROM
        add_group_sums(out, groups.codes, np.ones(self.n), self.scores(theta), compiled)
        return out

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters; each block passes over all rows."""
        sums, w = self._sums(theta, groups), self._w
        weights = groups.weights(self.weights)
        twice = not self.frequency and bool(np.any(w != 1.0))
        step = min(len(groups), max(1, HESSIANS // self.p**2))
        for first in range(0, len(groups), step):
            codes = groups.codes - first
            codes = np.where((codes >= 0) & (codes < step), codes, step)
            parts = self._call("cluster_hessians", theta, codes, step, twice)
            there = slice(first, min(first + step, len(groups)))
            count = there.stop - first
            full = [self._square(part)[:count] for part in parts]
            yield ClusterBlock(first, sums[there], full[0], weights[there], absolute(full[-1]))

    def _square(self, lower: Array) -> Array:
        """Return symmetric matrices (g, p, p) from the entries (p (p + 1) / 2, g) of a triangle."""
        rows, columns = self._passes.pairs.T
        out = np.zeros((lower.shape[1], self.p, self.p))
        out[:, rows, columns] = out[:, columns, rows] = lower.T
        return out


@dataclass(frozen=True, repr=False)
class PointwiseLoss(GeneralLoss):
    """A loss written in JAX that gives all observations' losses at once.

    Its criterion takes ``data=None``, or a table with a row per observation whose columns may name
    clusters, and ``start``: the parameters (p,) to start from.

    Parameters
    ----------
    function : callable
        ``f(theta)``: parameters (p,) to losses (n,). Twice differentiable almost everywhere.
    n : int
        Number of observations.
    name : str, optional
        What results call it; default the function's own name.
    observations : int, optional
        How many are behind the n losses, if these are of groups.

    Examples
    --------
    >>> import etafree as ef, jax.numpy as jnp
    >>> y = np.array([1.0, 3.0, 5.0])
    >>> loss = PointwiseLoss(lambda theta: 0.5 * (y - theta[0]) ** 2, n=3, name="squares")
    >>> criterion = ef.Criterion(loss, data=None, start=[0.0])
    >>> ef.minimise(criterion).theta, criterion.total.scores(np.zeros(1))[:, 0]
    (array([3.]), array([-1., -3., -5.]))
    """

    function: Callable[[Any], Any]
    n: int
    name: str | None = None
    observations: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(
                "function",
                f"is a {type(self.function).__name__}",
                "pass a function f(theta) written in JAX",
            )
        if isinstance(self.n, bool) or not isinstance(self.n, int | np.integer) or self.n < 1:
            raise InputError("n", f"is {self.n!r}", "pass the number of observations")

    def __repr__(self) -> str:
        return f"PointwiseLoss({self.label}, n={self.n})"

    def __getstate__(self) -> dict[str, Any]:  # compiled functions stay behind
        return {key: value for key, value in self.__dict__.items() if key != "_passes"}

    def with_function(self, function: Callable[[Any], Any]) -> PointwiseLoss:
        """Return the loss with another function of the same values; nothing is compiled anew."""
        other = replace(self, function=function)
        other.__dict__["_passes"] = self.__dict__.setdefault("_passes", {})
        return other

    @property
    def label(self) -> str:
        """The name of the loss."""
        return self.name or str(getattr(self.function, "__name__", type(self.function).__name__))

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return f"the expected {self.label}"

    def count(self, data: Any) -> int:
        """Return the number of observations; data, if given, must have a row for each."""
        if data is not None and len(data) != self.n:
            raise InputError(
                "data",
                f"has {len(data)} rows for {self.n} losses",
                "pass one row per observation, or data=None",
            )
        return int(self.n)

    def bind(
        self, data: object, start: object, weights: Array | None, frequency: bool
    ) -> tuple[PointwiseTotal, Array, tuple[str, ...] | None]:
        """Return the total and the start (p,)."""
        if start is None:
            raise InputError("start", "is missing", "pass parameters (p,), such as np.zeros(3)")
        flat = np.atleast_1d(as_array(start, "start"))
        if flat.ndim != 1 or not len(flat):
            raise InputError("start", f"has shape {flat.shape}", "pass a vector")
        self._check_function(flat)
        return PointwiseTotal(self, len(flat), weights, frequency), flat, None

    def passes(self, p: int) -> _Passes:
        """Return the compiled functions for p parameters, made once."""
        known: dict[int, _Passes] = self.__dict__.setdefault("_passes", {})
        if p not in known:
            known[p] = _Passes(self.function, int(self.n), p)
        return known[p]

    def _check_function(self, start: Array) -> None:
        """Refuse a function that does not give n losses, or none that are finite at the start."""
        jax = import_jax()
        with double_precision():
            made = jax.eval_shape(self.function, jax.numpy.asarray(start))
            if getattr(made, "shape", None) != (self.n,) or made.dtype != np.float64:
                raise InputError(
                    "function",
                    f"returns {made} for {self.n} observations",
                    f"return float64 losses of shape ({self.n},)",
                )
            here = np.asarray(self.passes(len(start)).values(start, np.ones(self.n)))
        if not np.isfinite(here).all():
            bad = np.flatnonzero(~np.isfinite(here))
            raise InputError(
                "start",
                f"is where the loss of {len(bad)} rows is not finite, the first row {bad[0]}",
                "pass another start=",
            )


@dataclass(frozen=True)
class PerUnit:
    """The strength that gives a penalty the same weight at any effective scale."""

    weight: float

    def __call__(self, size: float) -> float:
        """Return the strength at an effective scale."""
        return self.weight / size


class JaxPenalty(SmoothPenalty):
    """A penalty written in JAX, convex or not, such as minus a log prior."""

    @classmethod
    def of(cls, function: Callable[[Any], Any], weight: float, name: str) -> JaxPenalty:
        """Return the penalty that adds ``weight * function(theta)`` at any effective scale."""
        jax = import_jax()

        def compiled(part: Callable[[Any], Any]) -> Callable[[Array], Any]:
            made = jax.jit(part)

            def call(theta: Array) -> Any:
                with double_precision():
                    return np.asarray(made(theta))

            return call

        slope = jax.grad(function)
        parts = [compiled(part) for part in (function, slope, jax.jacfwd(slope))]
        return cls(PerUnit(weight), parts[0], parts[1], parts[2], name)

    def fitted_to(self, p: int, intercept: int | None = None) -> JaxPenalty:
        return self

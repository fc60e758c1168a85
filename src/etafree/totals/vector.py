r"""A loss that comes as one vector, :math:`M(\theta)=\sum_i w_i f_i(\theta)`, written in JAX.

The compiled graph of a PyMC or NumPyro model gives the losses of all observations at once and
cannot be cut into rows. Scores then come by forward mode, one pass per parameter, and Hessians of
clusters by two; passes are bundled as far as memory allows. Float64 whatever JAX's global flag
says, which is never changed; weights are arguments, so that other weights compile nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from operator import truediv
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from etafree.data.groups import Groups
from etafree.data.pytrees import double_precision, import_jax, in_bundles
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array
from etafree.foundation.linalg import absolute
from etafree.penalties import SmoothPenalty
from etafree.totals.base import ClusterBlock, ClusterTotals
from etafree.totals.jax import AutodiffLoss, AutodiffTotal
from etafree.totals.linear import COMPILE_FROM, add_group_sums

if TYPE_CHECKING:
    from jax import Array as JaxArray

#: A function of parameters (p,), written in JAX.
Function = Callable[[Any], Any]
#: Numbers that the passes of one bundle write.
BUNDLE = 1 << 20
#: Numbers in the Hessians of a block of clusters: each block takes all passes over all rows.
HESSIANS = 1 << 23
#: How far down a logarithm is looked, and by what share the total may rise there and count as flat.
FAR, LEVEL = 6.0, 1e-9


class _Passes:
    """Compiled functions of parameters (p,) and weights (n,)."""

    def __init__(self, function: Function, n: int, p: int) -> None:
        import jax
        import jax.numpy as jnp

        size = max(1, BUNDLE // n)
        axes, pairs = np.eye(p), np.column_stack(np.tril_indices(p))

        def values(theta: JaxArray, w: JaxArray) -> JaxArray:
            return jnp.where(w > 0, w * function(theta), 0.0)

        def total(theta: JaxArray, w: JaxArray) -> JaxArray:
            return values(theta, w).sum()

        def along(axis: JaxArray, theta: JaxArray, w: JaxArray) -> Any:
            return jax.jvp(lambda t: values(t, w), (theta,), (axis,))[1]

        def scores(theta: JaxArray, w: JaxArray) -> JaxArray:
            columns: JaxArray = jax.lax.map(lambda a: along(a, theta, w), axes, batch_size=size)
            return columns.T

        def derivatives(theta: JaxArray, w: JaxArray) -> tuple[JaxArray, ...]:
            def one(axis: JaxArray) -> tuple[JaxArray, JaxArray]:
                column = jax.jvp(lambda t: jax.grad(total)(t, w), (theta,), (axis,))[1]
                return (along(axis, theta, w) ** 2).sum(), column

            squares, hessian = jax.lax.map(one, axes, batch_size=size)
            return *jax.value_and_grad(total)(theta, w), squares, hessian

        def cluster_hessians(
            theta: JaxArray, w: JaxArray, codes: JaxArray, count: int, twice: bool
        ) -> tuple[JaxArray, ...]:
            def add(bent: JaxArray) -> JaxArray:
                return jax.ops.segment_sum(bent, codes, count)  # codes from `count` on are dropped

            def one(pair: JaxArray) -> tuple[JaxArray, ...]:
                first, second = jnp.asarray(axes)[pair]
                bent = jax.jvp(lambda t: along(first, t, w), (theta,), (second,))[1]
                return (add(bent), add(w * bent)) if twice else (add(bent),)

            sums: tuple[JaxArray, ...] = jax.lax.map(one, pairs, batch_size=size)
            return sums

        self.total, self.pairs = total, pairs
        self.values, self.scores = jax.jit(values), jax.jit(scores)
        self.derivatives, self.totals = jax.jit(derivatives), jax.jit(jax.vmap(total, (0, None)))
        self.value_and_gradient = jax.jit(jax.value_and_grad(total))
        self.cluster_hessians = jax.jit(cluster_hessians, static_argnums=(3, 4))


@dataclass(frozen=True, eq=False)
class PointwiseTotal(AutodiffTotal):
    """Sum of a `PointwiseLoss` of so many parameters over weighted observations."""

    loss: PointwiseLoss
    parameters: int
    weights: Array | None = None
    frequency: bool = True

    @property
    def n(self) -> int:
        return int(self.loss.n)

    @property
    def p(self) -> int:
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
        return self.loss.passes(self.p)

    def _sums(self, name: str, theta: Array, *rest: object) -> Any:
        with double_precision():
            sums = getattr(self._passes, name)(theta, self._w, *rest)
            return import_jax().tree.map(np.asarray, sums)

    def reweighted(self, weights: Array | None, frequency: bool) -> PointwiseTotal:
        return replace(self, weights=weights, frequency=frequency)

    def values(self, theta: Array) -> Array:
        return np.asarray(self._sums("values", theta))

    def scores(self, theta: Array) -> Array:
        return np.array(self._sums("scores", theta))

    def totals(self, thetas: Array) -> Array:
        step = 1 << max(0, (BUNDLE // self.n).bit_length() - 1)
        return in_bundles(thetas, step, lambda bundle: np.asarray(self._sums("totals", bundle)))

    def log_density_parts(self) -> Callable[[JaxArray], JaxArray]:
        """Return the total loss as a function of theta (p,) that JAX can trace in float64."""
        import jax.numpy as jnp

        total, w = self._passes.total, jnp.asarray(self._w)

        def summed(theta: JaxArray) -> JaxArray:
            value = total(theta, w)
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        return summed

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        sums, hessian = self._cluster_scores(theta, groups), self.derivatives(theta).hessian
        return ClusterTotals(sums.sum(axis=0), hessian, sums, groups.weights(self.weights))

    def _cluster_scores(self, theta: Array, groups: Groups) -> Array:
        """Return score sums of clusters (G, p)."""
        out = np.zeros((len(groups), self.p))
        compiled = self.n * self.p >= COMPILE_FROM
        add_group_sums(out, groups.codes, np.ones(self.n), self.scores(theta), compiled)
        return out

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters; each block passes over all rows."""
        sums, w = self._cluster_scores(theta, groups), self._w
        weights = groups.weights(self.weights)
        twice = not self.frequency and bool(np.any(w != 1.0))
        step = min(len(groups), max(1, HESSIANS // self.p**2))
        for first in range(0, len(groups), step):
            codes = groups.codes - first
            codes = np.where((codes >= 0) & (codes < step), codes, step)
            lower = self._sums("cluster_hessians", theta, codes, step, twice)
            block = slice(first, min(first + step, len(groups)))
            full = [self._square(entries)[: block.stop - first] for entries in lower]
            yield ClusterBlock(first, sums[block], full[0], weights[block], absolute(full[-1]))

    def _square(self, lower: Array) -> Array:
        """Return symmetric matrices (g, p, p) from the entries (p (p + 1) / 2, g) of a triangle."""
        rows, columns = self._passes.pairs.T
        out = np.zeros((lower.shape[1], self.p, self.p))
        out[:, rows, columns] = out[:, columns, rows] = lower.T
        return out


@dataclass(frozen=True, repr=False)
class PointwiseLoss(AutodiffLoss):
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
    spreads : tuple of int, optional
        Positions of the parameters that say how the effects of groups spread.

    Examples
    --------
    >>> import etafree as ef, jax.numpy as jnp
    >>> y = np.array([1.0, 3.0, 5.0])
    >>> loss = PointwiseLoss(lambda theta: 0.5 * (y - theta[0]) ** 2, n=3, name="squares")
    >>> criterion = ef.Criterion(loss, data=None, start=[0.0])
    >>> ef.minimise(criterion).theta, criterion.total.scores(np.zeros(1))[:, 0]
    (array([3.]), array([-1., -3., -5.]))
    """

    function: Function
    n: int
    name: str | None = None
    observations: int | None = None
    spreads: tuple[int, ...] = ()

    arguments: ClassVar[str] = "theta"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.n, bool) or not isinstance(self.n, int | np.integer) or self.n < 1:
            raise InputError("n", f"is {self.n!r}", "pass the number of observations")

    def __repr__(self) -> str:
        return f"PointwiseLoss({self.label}, n={self.n})"

    def with_function(self, function: Function) -> PointwiseLoss:
        """Return the loss with another function of the same values; nothing is compiled anew."""
        other = replace(self, function=function)
        other.__dict__["_compiled"] = self.__dict__.setdefault("_compiled", {})
        return other

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return f"the expected {self.label}"

    def refuse_boundary(
        self, value: Callable[[Array], float], theta: Array, names: Sequence[str]
    ) -> None:
        """Raise if the total falls all the way to effects that do not vary.

        On the unconstrained scale a spread of zero lies at minus infinity. The minimum is there if
        another factor of e**6 does not raise the total.
        """
        here = value(theta)
        far = theta - FAR * np.eye(len(theta))
        flat = [j for j in self.spreads if value(far[j]) <= here + LEVEL * (1 + abs(here))]
        if flat:
            named = ", ".join(names[j] for j in flat)
            raise InputError(
                "model",
                f"has its best fit where group effects do not vary: the estimate of {named} is at "
                "its boundary, a variance of zero, where no estimate has a normal limit",
                "drop these effects from the model and pass clusters=groups, or give the standard "
                "deviation a prior that keeps it off zero, such as a gamma of shape 2",
            )

    def count(self, data: Sized | None) -> int:  # type: ignore[override]
        """Return the number of observations; data, if given, must have a row for each."""
        if data is not None and len(data) != self.n:
            problem = f"has {len(data)} rows for {self.n} losses"
            raise InputError("data", problem, "pass one row per observation, or data=None")
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
        return self._cached(p, lambda: _Passes(self.function, int(self.n), p))

    def _check_function(self, start: Array) -> None:
        """Refuse a function that does not give n losses, or none that are finite at the start."""
        jax = import_jax()
        with double_precision():
            losses = jax.eval_shape(self.function, jax.numpy.asarray(start))
            if getattr(losses, "shape", None) != (self.n,) or losses.dtype != np.float64:
                problem = f"returns {losses} for {self.n} observations"
                advice = f"return float64 losses of shape ({self.n},)"
                raise InputError("function", problem, advice)
            here = np.asarray(self.passes(len(start)).values(start, np.ones(self.n)))
        if not np.isfinite(here).all():
            bad = np.flatnonzero(~np.isfinite(here))
            problem = f"is where the loss of {len(bad)} rows is not finite, the first row {bad[0]}"
            raise InputError("start", problem, "pass another start=")


class JaxPenalty(SmoothPenalty):
    """A penalty written in JAX, convex or not, such as minus a log prior."""

    @classmethod
    def of(cls, function: Function, weight: float, name: str) -> JaxPenalty:
        """Return the penalty that adds ``weight * function(theta)`` at any effective scale."""
        jax = import_jax()

        def compiled(derivative: Function) -> Callable[[Array], Any]:
            call = jax.jit(derivative)

            def computed(theta: Array) -> Any:
                with double_precision():
                    return np.asarray(call(theta))

            return computed

        slope = jax.grad(function)
        value, gradient, hessian = map(compiled, (function, slope, jax.jacfwd(slope)))
        return cls(partial(truediv, weight), value, gradient, hessian, name)

    def fitted_to(self, p: int, intercept: int | None = None) -> JaxPenalty:
        return self

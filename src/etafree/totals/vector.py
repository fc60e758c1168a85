r"""A loss that comes as one vector, :math:`M(\theta)=\sum_i w_i f_i(\theta)`, written in JAX.

The compiled graph of a PyMC or NumPyro model gives the losses of all observations at once and
cannot be cut into rows. Scores then come by forward mode, one pass per parameter, and Hessians of
clusters by two; passes are bundled as far as memory allows. Float64 whatever JAX's global flag
says, which is never changed; weights are arguments, so that other weights compile nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from operator import truediv
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.pytrees import double_precision, import_jax, in_bundles
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array
from etafree.foundation.linalg import absolute, majorized
from etafree.penalties import SmoothPenalty
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives
from etafree.totals.jax import AutodiffLoss, AutodiffTotal
from etafree.totals.linear import COMPILE_FROM, add_group_sums

if TYPE_CHECKING:
    from jax import Array as JaxArray

#: A function of parameters (p,) and a loss's data, written in JAX.
Function = Callable[..., Any]
#: Arrays that a function takes besides.
Data = tuple[Any, ...]
#: Numbers that the passes of one bundle write.
BUNDLE = 1 << 20
#: Second derivatives of a row up to which one program gives all derivatives, forward mode only.
JETS = 36
#: Points at which a penalty is computed at a time.
MANY = 1 << 10
#: Points whose derivatives are kept: those of one fit.
KEPT = 32
#: Numbers in the Hessians of a block of clusters: each block takes all passes over all rows.
HESSIANS = 1 << 23
#: Observations times nodes times second derivatives from which a program for values alone pays.
LARGE_WORK = 50_000
#: How far to the end of a range is looked where the curvature is less than this, by how much, and
#: what share, the total may rise there and count as flat, and the relative gradient of a minimum.
FAR, BENT, LEVEL, LEAST = (1.0, 3.0, 6.0), 1e-3, (1e-4, 1e-9), 1e-6


class Jets(NamedTuple):
    """Losses (n,), scores (n, p), and second derivatives (n, p (p + 1) / 2) of a triangle."""

    values: Array
    scores: Array
    bent: Array


class _Passes:
    """Compiled functions of parameters (p,), weights (n,) and the data of a loss.

    Few parameters have all that is asked for from one program, `jets`: a program compiles for
    seconds and runs for less than a millisecond.
    """

    def __init__(self, function: Function, n: int, p: int, staged: bool) -> None:
        import jax
        import jax.numpy as jnp

        size = max(1, BUNDLE // n)
        axes, pairs = np.eye(p), np.column_stack(np.tril_indices(p))
        self.pairs = pairs
        self.few = not staged and len(pairs) <= JETS and len(pairs) * n <= BUNDLE
        self._kept: OrderedDict[tuple[bytes, ...], Jets] = OrderedDict()
        self._most = max(1, min(KEPT, BUNDLE // (len(pairs) * n)))

        def jets(theta: JaxArray, data: Data) -> tuple[JaxArray, ...]:
            def along(axis: JaxArray, t: JaxArray) -> tuple[JaxArray, JaxArray]:
                return jax.jvp(lambda t: function(t, *data), (t,), (axis,))

            def one(pair: Any) -> tuple[JaxArray, ...]:
                first, second = jnp.asarray(axes)[pair]
                (value, score), (_, bent) = jax.jvp(partial(along, first), (theta,), (second,))
                return value, score, bent

            value, score, bent = jax.vmap(one, out_axes=(None, 0, 0))(pairs)
            return value, score[pairs[:, 0] == pairs[:, 1]].T, bent.T

        def values(theta: JaxArray, w: JaxArray, data: Data) -> JaxArray:
            return jnp.where(w > 0, w * function(theta, *data), 0.0)

        def total(theta: JaxArray, w: JaxArray, data: Data) -> JaxArray:
            return values(theta, w, data).sum()

        def along(axis: JaxArray, theta: JaxArray, w: JaxArray, data: Data) -> Any:
            return jax.jvp(lambda t: values(t, w, data), (theta,), (axis,))[1]

        def scores(theta: JaxArray, w: JaxArray, data: Data) -> JaxArray:
            columns: JaxArray = jax.lax.map(
                lambda a: along(a, theta, w, data), axes, batch_size=size
            )
            return columns.T

        def derivatives(theta: JaxArray, w: JaxArray, data: Data) -> tuple[JaxArray, ...]:
            def summed(t: JaxArray) -> tuple[JaxArray, JaxArray]:
                each = values(t, w, data)
                return each.sum(), each

            def one(axis: JaxArray) -> tuple[JaxArray, ...]:
                slope = jax.value_and_grad(summed, has_aux=True)
                at, moved = jax.jvp(slope, (theta,), (axis,))
                (value, _), gradient = at
                (_, score), column = moved
                return value, gradient, (score**2).sum(), column

            value, gradient, squares, hessian = jax.lax.map(one, axes, batch_size=size)
            return value[0], gradient[0], squares, hessian

        def cluster_hessians(
            theta: JaxArray, w: JaxArray, data: Data, codes: JaxArray, count: int, twice: bool
        ) -> tuple[JaxArray, ...]:
            def add(bent: JaxArray) -> JaxArray:
                return jax.ops.segment_sum(bent, codes, count)  # codes from `count` on are dropped

            def one(pair: JaxArray) -> tuple[JaxArray, ...]:
                first, second = jnp.asarray(axes)[pair]
                bent = jax.jvp(lambda t: along(first, t, w, data), (theta,), (second,))[1]
                return (add(bent), add(w * bent)) if twice else (add(bent),)

            sums: tuple[JaxArray, ...] = jax.lax.map(one, pairs, batch_size=size)
            return sums

        self.total, self._jets = total, jax.jit(jets)
        self.values, self.scores = jax.jit(values), jax.jit(scores)
        self.derivatives = jax.jit(derivatives)
        self.totals = jax.jit(jax.vmap(total, (0, None, None)))
        self.tables = jax.jit(jax.vmap(values, (0, None, None)))
        self.value_and_gradient = jax.jit(jax.value_and_grad(total))
        self.cluster_hessians = jax.jit(cluster_hessians, static_argnums=(4, 5))

    def jets(self, theta: Array, data: Data) -> Jets:
        """Return the jets at theta; the last ones are kept."""
        key = (theta.tobytes(), *(np.asarray(array).tobytes() for array in data))
        jets = self._kept.get(key)
        if jets is None:
            with double_precision():
                jets = Jets(*map(np.asarray, self._jets(theta, data)))
            self._kept[key] = jets
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return jets


@dataclass(frozen=True, eq=False)
class PointwiseTotal(AutodiffTotal):
    """Sum of a `PointwiseLoss` of so many parameters over weighted observations."""

    loss: PointwiseLoss
    parameters: int
    weights: Array | None = None
    frequency: bool = True
    one_by_one: bool = False  #: Whether values at points come from the program for derivatives.

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

    def compiled(self) -> PointwiseTotal:
        """Return the total with values of points one by one, if their derivatives are known so.

        Large integrals over effects take longer than a program of their own compiles.
        """
        nodes = max(map(np.size, self.loss.data), default=0) // self.n
        work = self.count * max(1, nodes) * len(self._passes.pairs)
        return replace(self, one_by_one=work <= LARGE_WORK)

    def _sums(self, name: str, theta: Array, *rest: object) -> Any:
        with double_precision():
            sums = getattr(self._passes, name)(theta, self._w, self.loss.data, *rest)
            return import_jax().tree.map(np.asarray, sums)

    def reweighted(self, weights: Array | None, frequency: bool) -> PointwiseTotal:
        return replace(self, weights=weights, frequency=frequency)

    @property
    def _few(self) -> bool:
        return self._passes.few

    def _jets(self, theta: Array) -> Jets:
        """Return weighted jets, zeros for rows without weight."""
        jets = self._passes.jets(np.asarray(theta, dtype=np.float64), self.loss.data)
        if self.weights is None:
            return jets
        w, used = self.weights[:, None], self.weights[:, None] > 0
        values = np.where(used[:, 0], self.weights * jets.values, 0.0)
        return Jets(values, *(np.where(used, w * part, 0.0) for part in jets[1:]))

    def values(self, theta: Array) -> Array:
        if self._few:
            return self._jets(theta).values.copy()
        return np.asarray(self._sums("values", theta))

    def scores(self, theta: Array) -> Array:
        return np.array(self._jets(theta).scores if self._few else self._sums("scores", theta))

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        if not self._few:
            return super().derivatives(theta, majorize=majorize)
        jets = self._jets(theta)
        hessian = self._square(jets.bent.sum(axis=0)[:, None])[0]
        scale = np.sqrt(self.n * (jets.scores**2).sum(axis=0))
        if majorize:
            hessian = majorized(hessian, scale, 1e-6)
        return Derivatives(float(jets.values.sum()), jets.scores.sum(axis=0), hessian, scale)

    def totals(self, thetas: Array) -> Array:
        if self._few and (len(thetas) == 1 or self.one_by_one):
            values = np.array([self._jets(theta).values.sum() for theta in thetas])
            return np.where(np.isnan(values), np.inf, values)
        step = 1 << max(0, (BUNDLE // self.n).bit_length() - 1)
        return in_bundles(thetas, step, lambda bundle: np.asarray(self._sums("totals", bundle)))

    def losses_of(self, rows: NDArray[np.intp], thetas: Array) -> Array:
        step, once = max(1, BUNDLE // self.n), self.reweighted(None, True)
        parts = [thetas[first : first + step] for first in range(0, len(thetas), step)]
        losses = np.concatenate([once._sums("tables", part)[:, rows] for part in parts])
        return np.where(np.isnan(losses), np.inf, losses)

    def log_density_parts(self) -> Callable[[JaxArray], JaxArray]:
        """Return the total loss as a function of theta (p,) that JAX can trace in float64."""
        import jax.numpy as jnp

        total, w, data = self._passes.total, jnp.asarray(self._w), self.loss.data

        def summed(theta: JaxArray) -> JaxArray:
            value = total(theta, w, data)
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
            lower = self._cluster_hessians(theta, codes, step, twice)
            block = slice(first, min(first + step, len(groups)))
            full = [self._square(entries)[: block.stop - first] for entries in lower]
            yield ClusterBlock(first, sums[block], full[0], weights[block], absolute(full[-1]))

    def _cluster_hessians(
        self, theta: Array, codes: NDArray[np.intp], count: int, twice: bool
    ) -> Sequence[Array]:
        """Return triangles (p (p + 1) / 2, count) of Hessians, and these weighted once more."""
        if not self._few:
            sums: Sequence[Array] = self._sums("cluster_hessians", theta, codes, count, twice)
            return sums
        bent = self._jets(theta).bent
        each = [bent, self._w[:, None] * bent] if twice else [bent]
        return [
            np.array([np.bincount(codes, column, count + 1)[:count] for column in part.T])
            for part in each
        ]

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
    staged : bool
        Whether values, slopes and second derivatives are programs of their own: right where the
        function itself takes long.
    data : tuple of arrays, optional
        What the function takes after the parameters: other data of the same shapes compile nothing.

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
    staged: bool = False
    data: Data = ()

    arguments: ClassVar[str] = "theta"
    bounded: ClassVar[bool] = True
    way_out: ClassVar[str] = "give parameters that the data say little about priors that say more"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.n, bool) or not isinstance(self.n, int | np.integer) or self.n < 1:
            raise InputError("n", f"is {self.n!r}", "pass the number of observations")

    def __repr__(self) -> str:
        return f"PointwiseLoss({self.label}, n={self.n})"

    def again(self, **changes: Any) -> PointwiseLoss:
        """Return the loss with data of the same shapes, say; nothing is compiled anew.

        Another `function` must have the same values.
        """
        other = replace(self, **changes)
        other.__dict__["_compiled"] = self.__dict__.setdefault("_compiled", {})
        return other

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return f"the expected {self.label}"

    def refuse_boundary(
        self,
        value: Callable[[Array], float],
        theta: Array,
        gaps: Array,
        hessian: Array,
        names: Sequence[str],
    ) -> None:
        """Raise if the total falls all the way to the end of a parameter's range.

        On the unconstrained scale that lies at infinity: a spread of zero, a correlation of one, a
        dispersion without bound. The minimum is there if a step that way does not raise the total,
        of 1, 3 or 6, since rounding may be coarse near the end. Nor does it for parameters of large
        units, but their gradient vanishes in units of its terms, and 6 standard errors raise it.
        """
        here = value(theta)
        level = here + LEVEL[0] + LEVEL[1] * abs(here)

        def is_flat(j: int, sign: int) -> bool:
            axis = sign * np.eye(len(theta))[j]
            if min(value(theta + step * axis) for step in FAR) > level:
                return False
            axis *= FAR[-1] / np.sqrt(max(hessian[j, j], 1e-12))
            return bool(gaps[j] > LEAST or not level < value(theta + axis) < np.inf)

        low = (np.diagonal(hessian) < BENT) & np.any(hessian != 0, axis=0)
        flat = [j for j in np.flatnonzero(low).tolist() if is_flat(j, -1) or is_flat(j, 1)]
        if not flat:
            return
        if spreads := [names[j] for j in flat if j in self.spreads]:
            problem = (
                "has its best fit where group effects do not vary, or not apart: the estimate of "
                f"{', '.join(spreads)} is at its boundary, variance zero or correlation one"
            )
            advice = (
                "drop these effects from the model and pass clusters=groups, or give the parameter "
                "a prior that keeps it away from there, such as a gamma of shape 2 for a standard "
                "deviation, LKJ with eta = 2 for correlations"
            )
        else:
            named = ", ".join(names[j] for j in flat)
            problem = f"has its best fit at the end of the range of {named}, at infinity"
            advice = "give it a prior that keeps it away from there, or leave it out of the model"
        raise InputError("model", f"{problem}, where no estimate has a normal limit", advice)

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
        return self._cached(p, lambda: _Passes(self.function, int(self.n), p, self.staged))

    def _check_function(self, start: Array) -> None:
        """Refuse a function that does not give n losses, or none that are finite at the start."""
        jax = import_jax()
        with double_precision():
            losses = jax.eval_shape(self.function, jax.numpy.asarray(start), *self.data)
            if getattr(losses, "shape", None) != (self.n,) or losses.dtype != np.float64:
                problem = f"returns {losses} for {self.n} observations"
                advice = f"return float64 losses of shape ({self.n},)"
                raise InputError("function", problem, advice)
        here = PointwiseTotal(self, len(start)).values(start)
        if not np.isfinite(here).all():
            bad = np.flatnonzero(~np.isfinite(here))
            problem = f"is where the loss of {len(bad)} rows is not finite, the first row {bad[0]}"
            raise InputError("start", problem, "pass another start=")


class JaxPenalty(SmoothPenalty):
    """A penalty written in JAX, convex or not, such as minus a log prior."""

    @classmethod
    def of(cls, function: Function, weight: float, name: str) -> JaxPenalty:
        """Return the penalty that adds ``weight * function(theta)`` at any effective scale."""
        jax, last = import_jax(), threading.local()

        def derivatives(theta: JaxArray) -> tuple[JaxArray, ...]:
            def along(axis: JaxArray) -> tuple[JaxArray, ...]:
                at, moved = jax.jvp(jax.value_and_grad(function), (theta,), (axis,))
                return *at, moved[1]

            axes = jax.numpy.eye(len(theta))
            every: tuple[JaxArray, ...] = jax.vmap(along, out_axes=(None, None, 0))(axes)
            return every

        call, many = jax.jit(derivatives), jax.jit(jax.vmap(function))

        def each(thetas: Array) -> Array:
            with double_precision():
                return np.asarray(many(thetas))

        def computed(theta: Array, order: int) -> Any:
            if theta.ndim == 2:
                return in_bundles(theta, MANY, each)
            key = np.asarray(theta, dtype=np.float64).tobytes()
            if getattr(last, "key", None) != key:
                with double_precision():
                    last.key, last.results = key, [np.asarray(each) for each in call(theta)]
            return last.results[order].copy()

        value, gradient, hessian = (partial(computed, order=order) for order in range(3))
        return cls(partial(truediv, weight), value, gradient, hessian, name)

    def fitted_to(self, p: int, intercept: int | None = None) -> JaxPenalty:
        return self

    def value(self, theta: Array) -> Array:
        return np.asarray(self.function(theta), dtype=np.float64)

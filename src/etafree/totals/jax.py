r"""Any loss written in JAX, :math:`M(\theta)=\sum_i w_i f(\theta, \mathrm{row}_i)`.

Scores and Hessians come from automatic differentiation, in float64 whatever JAX's global flag says,
which is never changed. Rows are taken in chunks of one size, so that every function is compiled
once per loss and shape; weights are arguments, so that other weights compile nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from etafree.data import pytrees
from etafree.data.groups import Groups
from etafree.data.pytrees import double_precision, import_jax
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_positive
from etafree.foundation.linalg import absolute, cholesky_or_none, majorized
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives, GeneralLoss, T, Total
from etafree.totals.linear import COMPILE_FROM, add_group_sums, symmetric

if TYPE_CHECKING:
    from jax import Array as JaxArray

#: The loss of one observation: parameters and a row, pytrees of arrays, to a number.
RowLoss = Callable[[Any, Any], Any]


class Kernels:
    """Compiled functions of flat parameters (p,), rows and weights (m,).

    Hessians are reverse mode over reverse mode: forward over reverse first multiplies the rows of a
    linear predictor by the identity, and takes 1.3 to 1.5 times as long for 5 to 50 parameters.
    """

    def __init__(self, function: RowLoss, template: object) -> None:
        import jax
        import jax.numpy as jnp

        structured = pytrees.rebuild(template)

        def loss(theta: Any, row: object) -> Any:
            return function(structured(theta), row)

        def values(theta: JaxArray, rows: object, w: JaxArray) -> JaxArray:
            return jnp.where(w > 0, w * jax.vmap(loss, (None, 0))(theta, rows), 0.0)

        def total(theta: JaxArray, rows: object, w: JaxArray) -> JaxArray:
            return values(theta, rows, w).sum()

        def scores(theta: JaxArray, rows: object, w: JaxArray) -> JaxArray:
            each: JaxArray = jax.vmap(jax.grad(loss), (None, 0))(theta, rows)
            return w[:, None] * each

        def hessians(theta: JaxArray, rows: object, w: JaxArray) -> tuple[JaxArray, JaxArray]:
            each = jax.vmap(jax.jacrev(jax.grad(loss)), (None, 0))(theta, rows)
            return scores(theta, rows, w), w[:, None, None] * each

        def sums(theta: JaxArray, rows: object, w: JaxArray) -> tuple[JaxArray, JaxArray]:
            return scores(theta, rows, w), jax.jacrev(jax.grad(total))(theta, rows, w)

        def derivatives(theta: JaxArray, rows: object, w: JaxArray) -> tuple[JaxArray, ...]:
            each, hessian = sums(theta, rows, w)
            return total(theta, rows, w), each.sum(0), (each**2).sum(0), hessian

        self.total = total
        self.values, self.scores, self.sums = jax.jit(values), jax.jit(scores), jax.jit(sums)
        self.derivatives, self.hessians = jax.jit(derivatives), jax.jit(hessians)
        self.value_and_gradient = jax.jit(jax.value_and_grad(total))
        self.totals = jax.jit(jax.vmap(total, (0, None, None)))
        self.table = jax.jit(jax.vmap(jax.vmap(loss, (None, 0)), (0, None)))


#: Numbers of rows times columns in a chunk: where derivatives of a million rows are fastest.
CHUNK = 1 << 18
#: Numbers in the Hessians of single rows held at a time: 4 MB, and what differentiation needs.
HESSIANS = 1 << 19


class AutodiffTotal(Total):
    """A total whose derivatives are sums that JAX compiles."""

    @abstractmethod
    def _sums(self, name: str, theta: Array) -> list[Array]:
        """Return sums over all rows of what the compiled function of this name returns."""

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian; `majorize` makes its eigenvalues safely positive."""
        value, gradient, square, hessian = self._sums("derivatives", theta)
        hessian, scale = symmetric(hessian), np.sqrt(self.n * square)
        if majorize:  # no eigenvalue below a millionth of the largest
            hessian = majorized(hessian, scale, 1e-6)
        return Derivatives(float(value), gradient, hessian, scale)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the total and its gradient (p,), for samplers that need no Hessian."""
        value, gradient = self._sums("value_and_gradient", theta)
        return float(value), gradient


class AutodiffLoss(GeneralLoss):
    """A loss that is a function written in JAX, and what was compiled of it."""

    function: Callable[..., Any]
    name: str | None
    arguments: ClassVar[str]

    def __post_init__(self) -> None:
        if not callable(self.function):
            advice = f"pass a function f({self.arguments}) written in JAX"
            raise InputError("function", f"is a {type(self.function).__name__}", advice)

    @property
    def label(self) -> str:
        """The name of the loss."""
        return self.name or str(getattr(self.function, "__name__", type(self.function).__name__))


class _Chunk(NamedTuple):
    """Rows with their weights, zero for the first `skip`, which came before."""

    where: NDArray[np.intp]
    skip: int
    rows: object
    weights: JaxArray


@dataclass(frozen=True, eq=False)
class JaxRows(AutodiffTotal):
    """Weighted rows that functions written in JAX are summed over, in chunks of one size.

    A row of weight zero is never looked at. `template` is what theta looks like, `columns` hold
    (n, ...) arrays, and `on_device` the rows as JAX has them, shared by totals that differ in their
    weights.
    """

    loss: AutodiffLoss
    template: object
    columns: object
    weights: Array | None = None
    frequency: bool = True
    on_device: dict[int, object] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        cached = {"_chunks", "_kernels"}
        return {k: v for k, v in self.__dict__.items() if k not in cached} | {"on_device": {}}

    @property
    def n(self) -> int:
        return len(import_jax().tree.leaves(self.columns)[0])

    @property
    def p(self) -> int:
        return sum(leaf.size for leaf in import_jax().tree.leaves(self.template))

    @property
    def row(self) -> object:
        """Shapes and types of one row."""
        jax = import_jax()
        return jax.tree.map(lambda c: jax.ShapeDtypeStruct(c.shape[1:], c.dtype), self.columns)

    @property
    @abstractmethod
    def _kernels(self) -> object:
        """The compiled functions."""

    def _compile(self, kernels: Callable[[Callable[..., Any], object], T]) -> T:
        """Return the compiled functions for parameters like these, made once for a loss."""
        loss, key = self.loss, pytrees.structure(self.template)
        return loss._cached(key, lambda: kernels(loss.function, self.template))

    def reweighted(self, weights: Array | None, frequency: bool) -> Self:
        return replace(self, weights=weights, frequency=frequency)

    @property
    def _width(self) -> int:
        """Numbers in a row, or in its score."""
        leaves = import_jax().tree.leaves(self.columns)
        return max(self.p, sum(int(leaf[0].size) for leaf in leaves))

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        size = min(self.n, 1 << max(8, (CHUNK // self._width).bit_length() - 1))
        rows = np.arange(self.n) if self.weights is None else np.flatnonzero(self.weights)
        shared = self.on_device if len(rows) == self.n else {}
        with double_precision():
            return [self._chunk(rows, k, size, shared) for k in range(0, len(rows), size)]

    def _chunk(
        self, rows: NDArray[np.intp], first: int, size: int, shared: dict[int, object]
    ) -> _Chunk:
        """Return `size` of these rows from `first` on, the last chunk filled up in front."""
        jax, skip = import_jax(), max(0, first + size - len(rows))
        where = rows[np.maximum(np.arange(first, first + size) - skip, 0)]
        if first not in shared:
            shared[first] = jax.tree.map(lambda c: jax.numpy.asarray(c[where]), self.columns)
        weights = np.ones(size) if self.weights is None else self.weights[where]
        weights[:skip] = 0.0
        return _Chunk(where, skip, shared[first], jax.numpy.asarray(weights))

    def _run(self, name: str, theta: Array) -> Iterator[tuple[_Chunk, Any]]:
        """Yield the chunks with what a compiled function makes of them."""
        compute, waiting = getattr(self._kernels, name), None
        for chunk in self._chunks:
            result = compute(theta, chunk.rows, chunk.weights)  # JAX works while we use the last
            if waiting is not None:
                yield waiting
            waiting = (chunk, result)
        if waiting is not None:
            yield waiting

    def _each(self, name: str, theta: Array, out: Array) -> Array:
        with double_precision():
            for chunk, result in self._run(name, theta):
                out[chunk.where[chunk.skip :]] = np.asarray(result)[chunk.skip :]
        return out

    def _gathered(
        self, name: str, theta: Array, rows: NDArray[np.intp], numbers: int
    ) -> Iterator[tuple[slice, list[Array]]]:
        """Yield what a compiled function makes of these rows, so many numbers of each, (m, -1)."""
        size = min(len(self._chunks[0].where), max(1, HESSIANS // numbers))
        for k in range(0, len(rows), size):
            with double_precision():
                chunk = self._chunk(rows, k, size, {})
                results = getattr(self._kernels, name)(theta, chunk.rows, chunk.weights)
                arrays = [np.asarray(a).reshape(size, -1)[chunk.skip :] for a in results]
            yield slice(k, k + size), arrays

    def _blocks(self, groups: Groups) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
        """Yield blocks of clusters: the first, how many, and their rows, cluster by cluster."""
        order, starts = groups.order()
        rows = np.arange(self.n) if order is None else order
        step = max(1, HESSIANS // self.p**2)
        for first in range(0, len(groups), step):
            count = min(step, len(groups) - first)
            yield first, count, rows[starts[first] : starts[first + count]]

    @property
    def _compiled(self) -> bool:
        return self.n * self.p >= COMPILE_FROM

    def _sums(self, name: str, theta: Array) -> list[Array]:
        with double_precision():
            terms = zip(*(result for _, result in self._run(name, theta)), strict=True)
            return [np.sum([np.asarray(chunk) for chunk in term], axis=0) for term in terms]


@dataclass(frozen=True, eq=False)
class JaxTotal(JaxRows):
    """Sum of a `JaxLoss` over weighted observations."""

    loss: JaxLoss

    @cached_property
    def _kernels(self) -> Kernels:
        return self._compile(Kernels)

    def values(self, theta: Array) -> Array:
        return self._each("values", theta, np.zeros(self.n))

    def scores(self, theta: Array) -> Array:
        return self._each("scores", theta, np.zeros((self.n, self.p)))

    def totals(self, thetas: Array) -> Array:
        numbers = min(CHUNK, 16 * CHUNK // self._width)  # rows times parameter values at a time
        step = 1 << max(0, (numbers // len(self._chunks[0].where)).bit_length() - 1)

        def summed(bundle: Array) -> Array:
            with double_precision():
                sums = [self._kernels.totals(bundle, c.rows, c.weights) for c in self._chunks]
                return np.asarray(np.sum([np.asarray(one) for one in sums], axis=0))

        return pytrees.in_bundles(thetas, step, summed)

    def losses_of(self, rows: NDArray[np.intp], thetas: Array) -> Array:
        size = 1 << (len(rows) - 1).bit_length()  # few sizes, few compilations
        where = rows[np.minimum(np.arange(size), len(rows) - 1)]
        with double_precision():
            block = import_jax().tree.map(lambda column: column[where], self.columns)
            losses = np.asarray(self._kernels.table(thetas, block))[:, : len(rows)]
        return np.where(np.isnan(losses), np.inf, losses)

    def log_density_parts(self) -> Callable[[JaxArray], JaxArray]:
        """Return the total loss as a function of theta (p,) that JAX can trace in float64."""
        import jax
        import jax.numpy as jnp

        total, chunks = self._kernels.total, [(c.rows, c.weights) for c in self._chunks]
        with double_precision():
            data = jax.tree.map(lambda *arrays: jnp.stack(arrays), *chunks)

        def summed(theta: JaxArray) -> JaxArray:
            def one(chunk: tuple[object, JaxArray]) -> JaxArray:
                return total(theta, *chunk)

            if len(chunks) == 1:
                value = one(chunks[0])
            else:  # a gradient keeps nothing of a chunk but its value
                value = jax.lax.map(jax.checkpoint(one), data).sum()
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        return summed

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        hessian, sums = np.zeros((self.p, self.p)), np.zeros((len(groups), self.p))
        with double_precision():
            for chunk, (scores, curvature) in self._run("sums", theta):
                each, codes = np.asarray(scores)[chunk.skip :], groups.codes[chunk.where]
                add_group_sums(sums, codes[chunk.skip :], np.ones(len(each)), each, self._compiled)
                hessian += np.asarray(curvature)
        gradient, weights = sums.sum(axis=0), groups.weights(self.weights)
        return ClusterTotals(gradient, symmetric(hessian), sums, weights)

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters, rows gathered cluster by cluster."""
        for first, count, members in self._blocks(groups):
            yield self._cluster_block(theta, members, groups.codes[members] - first, first, count)

    def _cluster_block(
        self, theta: Array, rows: NDArray[np.intp], codes: NDArray[np.intp], first: int, count: int
    ) -> ClusterBlock:
        p, w = self.p, np.ones(len(rows)) if self.weights is None else self.weights[rows]
        weights = np.bincount(codes, w, count).astype(np.float64)
        rows, codes, w = rows[w > 0], codes[w > 0], w[w > 0]
        scores, hessians = np.zeros((count, p)), np.zeros((count, p * p))
        squares = hessians if self.frequency else np.zeros((count, p * p))
        for part, (score, hessian) in self._gathered("hessians", theta, rows, p**2):
            which = codes[part]
            add_group_sums(scores, which, np.ones(len(which)), score, self._compiled)
            add_group_sums(hessians, which, np.ones(len(which)), hessian, self._compiled)
            if not self.frequency:  # sampling weights count twice in a variance
                add_group_sums(squares, which, w[part], hessian, self._compiled)
        variances: Array = squares.reshape(count, p, p)
        if not (self.loss.convex or _is_positive(variances)):
            variances = absolute(variances)
        return ClusterBlock(first, scores, hessians.reshape(count, p, p), weights, variances)


def _is_positive(matrices: Array) -> bool:
    """Return whether matrices (g, p, p) have no eigenvalue below zero but for rounding."""
    room = 1e-10 * np.abs(np.trace(matrices, axis1=1, axis2=2)) + 1e-300
    raised = matrices + room[:, None, None] * np.eye(matrices.shape[1])
    return cholesky_or_none(raised) is not None


@dataclass(frozen=True, repr=False)
class JaxLoss(AutodiffLoss):
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
        Say that an array with as many entries as there are rows, which the function closes over,
        has nothing to do with the rows. A loss of other rows is no sum of independent terms.
    effective_unit : float
        What an observation counts in the effective scale :math:`s_n`, which multiplies a penalty:
        the bandwidth h of a kernel-smoothed loss, for which :math:`s_n=nh`.

    Raises
    ------
    InputError
        `function` is not callable, `effective_unit` not positive. The criterion refuses a function
        that does not turn a row into a number, that looks at other rows, or whose derivatives are
        not finite at the start.
    MissingExtraError
        JAX is not installed (raised by the criterion).

    See Also
    --------
    PairLoss, TupleLoss : The same over pairs and larger tuples of observations.
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
    (('mean', 'log_sd'), array([3.      , 0.490415]))
    >>> c.loss.describe()
    'the expected loss gaussian'
    """

    function: RowLoss
    name: str | None = None
    convex: bool = False  # type: ignore[misc]  # a property of the function, not of the class
    constants: bool = False
    effective_unit: float = 1.0

    arguments: ClassVar[str] = "theta, row"

    def __post_init__(self) -> None:
        super().__post_init__()
        as_positive(self.effective_unit, "effective_unit")

    def __repr__(self) -> str:
        return f"JaxLoss({self.label})"

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return f"the expected loss {self.label}"

    def count(self, data: object) -> int:
        return pytrees.as_columns(data)[1]

    def bind(
        self, data: object, start: object, weights: Array | None, frequency: bool
    ) -> tuple[JaxTotal, Array, tuple[str, ...] | None]:
        """Return the total, the start (p,) and names such as ``beta[0]``; None for one vector."""
        template, flat, names = pytrees.as_parameters(start)
        total = JaxTotal(self, template, pytrees.as_columns(data)[0], weights, frequency)
        _check_function(total)
        _check_start(total, flat)
        return total, flat, names


def _check_function(total: JaxTotal) -> None:
    """Refuse a function that does not turn parameters and a row into one number."""
    result = pytrees.traced("function", total.loss.function, total.template, total.row)
    shape = getattr(result, "shape", None)
    if shape != ():
        kind = f"a {type(result).__name__}" if shape is None else f"an array of shape {shape}"
        raise InputError("function", f"returns {kind} for one row", "return one number")
    if not np.issubdtype(result.dtype, np.floating):
        raise InputError("function", f"returns {result.dtype}", "return a floating-point number")
    if not total.loss.constants:
        pytrees.refuse_other_rows(
            "function", total.loss.function, total.n, total.template, total.row
        )


def _check_start(total: JaxTotal, flat: Array) -> None:
    """Refuse a start where the loss or its derivatives are not finite, and a loss of kinks."""
    here = total.derivatives(flat)
    if not np.isfinite(here.value):
        bad = np.flatnonzero(~np.isfinite(total.values(flat)))
        first = bad[0] if len(bad) else "?"
        problem = f"is where the loss of {len(bad)} rows is not finite, the first row {first}"
        advice = "pass another start=, or drop rows with missing values"
        raise InputError("start", problem, advice)
    if not (np.isfinite(here.gradient).all() and np.isfinite(here.hessian).all()):
        problem = "has derivatives that are not finite at the start, where its value is"
        advice = "put another jnp.where inside the root, logarithm or quotient that it leaves out"
        raise InputError("function", problem, advice)
    if here.hessian.any() or not here.gradient.any():
        return
    step = 0.01 * (1 + np.abs(flat)) * np.where(np.arange(len(flat)) % 2, -1.0, 1.0)
    if not total.derivatives(flat + step).hessian.any():
        raise InputError(
            "function",
            "has a second derivative of zero at the start and next to it",
            "smooth its kinks (jax.nn.softplus is a smoothed hinge), or use ef.losses.Quantile, "
            "Check or Hinge; if it is linear only far from the data, as Huber's, start nearer",
        )

r"""The total of a loss written in JAX, with derivatives by automatic differentiation.

Rows are taken in chunks of one size, so that every function is compiled once per loss and shape;
weights are arguments, so that other weights compile nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.kernels import Kernels
from etafree.linalg import absolute, cholesky_or_none, majorized
from etafree.pytrees import double_precision, import_jax, in_bundles
from etafree.sums import COMPILE_FROM, Groups, add_group_sums, add_moments, symmetric
from etafree.totals import ClusterBlock, ClusterTotals, Derivatives, Total
from etafree.validation import Array

__all__ = ["JaxTotal"]

#: Numbers of rows times columns in a chunk: where derivatives of a million rows are fastest.
CHUNK = 1 << 18
#: Numbers in the Hessians of single rows held at a time: 4 MB, and what differentiation needs.
HESSIANS = 1 << 19
#: Rows times parameter values that `totals` takes at a time.
TOTALS = 1 << 18
#: Smallest eigenvalue of a safe Hessian, relative to the largest.
FLOOR = 1e-6


class _Chunk(NamedTuple):
    """Prepared rows with their weights, zero for the first `skip`, which came before."""

    where: NDArray[np.intp]
    skip: int
    rows: Any
    weights: Any


@dataclass(frozen=True, eq=False)
class JaxTotal(Total):
    """Sum of a `JaxLoss` over weighted observations; a row of weight zero is never looked at.

    Attributes
    ----------
    loss : JaxLoss
    template : pytree of arrays
        What theta looks like.
    columns : pytree of (n, ...) arrays
    weights : (n,) array or None
    frequency : bool
    on_device : dict
        The rows as JAX has them, shared by totals that differ in their weights.
    """

    loss: Any
    template: Any
    columns: Any
    weights: Array | None = None
    frequency: bool = True
    on_device: dict[int, Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        cached = ("_chunks", "_kernels", "_reach")
        kept = {key: value for key, value in self.__dict__.items() if key not in cached}
        return {**kept, "on_device": {}}

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(import_jax().tree.leaves(self.columns)[0])

    @property
    def p(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in import_jax().tree.leaves(self.template))

    @property
    def row(self) -> Any:
        """Shapes and types of one row."""
        jax = import_jax()
        return jax.tree.map(lambda c: jax.ShapeDtypeStruct(c.shape[1:], c.dtype), self.columns)

    @cached_property
    def _kernels(self) -> Kernels:
        with double_precision():
            made: Kernels = self.loss.kernels(self.template, self.row)
            return made

    def reweighted(self, weights: Array | None, frequency: bool) -> JaxTotal:
        """Return the same total under other weights."""
        return replace(self, weights=weights, frequency=frequency)

    @property
    def _width(self) -> int:
        """Numbers in a row, or in its score."""
        leaves = import_jax().tree.leaves(self.columns)
        return max(self.p, sum(int(leaf[0].size) for leaf in leaves))

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        size = min(self.n, 1 << max(8, (CHUNK // self._width).bit_length() - 1))
        there = np.arange(self.n) if self.weights is None else np.flatnonzero(self.weights)
        shared = self.on_device if len(there) == self.n else {}
        with double_precision():
            return [self._chunk(there, k, size, shared) for k in range(0, len(there), size)]

    def _chunk(
        self, there: NDArray[np.intp], first: int, size: int, shared: dict[int, Any]
    ) -> _Chunk:
        """Return `size` of the rows `there`, the last chunk filled up in front."""
        jax, skip = import_jax(), max(0, first + size - len(there))
        where = there[np.maximum(np.arange(first, first + size) - skip, 0)]
        if first not in shared:
            rows = jax.tree.map(lambda c: jax.numpy.asarray(c[where]), self.columns)
            shared[first] = self._kernels.prepare(rows)
        weights = np.ones(size) if self.weights is None else self.weights[where]
        weights[:skip] = 0.0
        return _Chunk(where, skip, shared[first], jax.numpy.asarray(weights))

    @cached_property
    def _reach(self) -> Array:
        """How far predictors move with parameters, (k, p): what slopes' sizes are multiplied by."""
        if self._kernels.predictors is None:
            even: Array = np.sqrt(self.n) * np.eye(self.p)
            return even
        square = np.zeros((self._kernels.predictors.many, self.p))
        for chunk in self._chunks:
            square += np.einsum("mkp,mkp->kp", *[np.asarray(chunk.rows[1])[chunk.skip :]] * 2)
        root: Array = np.sqrt(square)
        return root

    def _run(self, name: str, theta: Array) -> Iterator[tuple[_Chunk, Any]]:
        """Yield the chunks with what a compiled function makes of them."""
        compute, waiting = getattr(self._kernels, name), None
        for chunk in self._chunks:
            made = compute(theta, chunk.rows, chunk.weights)  # JAX works while we use the last
            if waiting is not None:
                yield waiting
            waiting = (chunk, made)
        if waiting is not None:
            yield waiting

    def _each(self, name: str, theta: Array, out: Array) -> Array:
        with double_precision():
            for chunk, made in self._run(name, theta):
                out[chunk.where[chunk.skip :]] = np.asarray(made)[chunk.skip :]
        return out

    def values(self, theta: Array) -> Array:
        """Return each observation's weighted loss (n,); they add up to the total."""
        return self._each("values", theta, np.zeros(self.n))

    def scores(self, theta: Array) -> Array:
        """Return each observation's weighted gradient (n, p); they add up to the total's."""
        return self._each("scores", theta, np.zeros((self.n, self.p)))

    def _sums(self, name: str, theta: Array) -> list[Array]:
        with double_precision():
            found = [made for _, made in self._run(name, theta)]
            parts = zip(*found, strict=True)
            return [np.sum([np.asarray(m) for m in part], axis=0) for part in parts]

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian; `majorize` makes its eigenvalues safely positive."""
        value, gradient, square, hessian = self._sums("derivatives", theta)
        hessian, scale = 0.5 * (hessian + hessian.T), np.sqrt(square) @ self._reach
        if majorize:
            hessian = majorized(hessian, scale, FLOOR)
        return Derivatives(float(value), gradient, hessian, scale)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the total and its gradient (p,), for samplers that need no Hessian."""
        value, gradient = self._sums("value_and_gradient", theta)
        return float(value), gradient

    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,).

        Where the loss is not a number it counts as infinite: such parameters have density zero.
        """
        numbers = min(TOTALS, 16 * TOTALS // self._width)
        step = 1 << max(0, (numbers // len(self._chunks[0].where)).bit_length() - 1)

        def summed(some: Array) -> Array:
            with double_precision():
                made = [self._kernels.totals(some, c.rows, c.weights) for c in self._chunks]
                total: Array = np.sum([np.asarray(m) for m in made], axis=0)
                return total

        return in_bundles(thetas, step, summed)

    def log_density_parts(self) -> Callable[[Any], Any]:
        """Return a function of theta (p,) that JAX can trace: the total loss, data closed over.

        Call, differentiate and compile it inside ``with double_precision()``.

        Examples
        --------
        >>> import etafree as ef, jax
        >>> from etafree.autodiff import JaxLoss, double_precision
        >>> loss = JaxLoss(lambda theta, row: 0.5 * (row - theta) ** 2)
        >>> total = ef.Criterion(loss, data=np.array([1.0, 3.0]), start=0.0).total
        >>> with double_precision():
        ...     print(jax.jit(jax.grad(total.log_density_parts()))(np.zeros(1)))
        [-4.]
        """
        jax, total = import_jax(), self._kernels.total
        jnp, chunks = jax.numpy, [(c.rows, c.weights) for c in self._chunks]
        with double_precision():
            data = jax.tree.map(lambda *parts: jnp.stack(parts), *chunks)

        def summed(theta: Any) -> Any:
            def one(chunk: Any) -> Any:
                return total(theta, *chunk)

            if len(chunks) == 1:
                value = one(chunks[0])
            else:  # a gradient keeps nothing of a chunk but its value
                value = jax.lax.map(jax.checkpoint(one), data).sum()
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        return summed

    @property
    def _compiled(self) -> bool:
        return self.n * self.p >= COMPILE_FROM

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and every cluster's score sum in one pass over the rows."""
        hessian, sums = np.zeros((self.p, self.p)), np.zeros((len(groups), self.p))
        found, unused, compiled = self._kernels.predictors, np.zeros(self.p), self._compiled
        with double_precision():
            for chunk, (slopes, part) in self._run("sums", theta):
                new, bent = np.asarray(slopes)[chunk.skip :], np.asarray(part)
                codes = groups.codes[chunk.where][chunk.skip :]
                if found is None:
                    add_group_sums(sums, codes, np.ones(len(new)), new, compiled)
                    hessian += bent
                    continue
                reach = np.asarray(chunk.rows[1])[chunk.skip :]
                if found.many == 1:
                    bent = bent[chunk.skip :, 0, 0]
                    add_moments(unused, hessian, reach[:, 0], new[:, 0], bent, compiled)
                else:
                    hessian += bent
                for k in range(found.many):
                    add_group_sums(sums, codes, new[:, k], reach[:, k], compiled)
        weights = groups.weights(self.weights)
        return ClusterTotals(sums.sum(axis=0), symmetric(hessian), sums, weights)

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield score sums and Hessians of blocks of clusters, rows gathered cluster by cluster."""
        order, starts = groups.order()
        rows = np.arange(self.n) if order is None else order
        step = max(1, HESSIANS // self.p**2)
        for first in range(0, len(groups), step):
            many = min(step, len(groups) - first)
            some = rows[starts[first] : starts[first + many]]
            yield self._cluster_block(theta, some, groups.codes[some] - first, first, many)

    def _cluster_block(
        self, theta: Array, rows: NDArray[np.intp], codes: NDArray[np.intp], first: int, many: int
    ) -> ClusterBlock:
        p, w = self.p, np.ones(len(rows)) if self.weights is None else self.weights[rows]
        weights = np.bincount(codes, w, many).astype(np.float64)
        rows, codes, w = rows[w > 0], codes[w > 0], w[w > 0]
        scores, hessians = np.zeros((many, p)), np.zeros((many, p * p))
        squares = hessians if self.frequency else np.zeros((many, p * p))
        size = min(len(self._chunks[0].where), max(1, HESSIANS // p**2))
        for k in range(0, len(rows), size):
            with double_precision():
                _, skip, some, weight = self._chunk(rows, k, size, {})
                made = self._kernels.hessians(theta, some, weight)
                score, hessian = (np.asarray(m).reshape(size, -1)[skip:] for m in made)
            which = codes[k : k + size]
            add_group_sums(scores, which, np.ones(len(which)), score, self._compiled)
            add_group_sums(hessians, which, np.ones(len(which)), hessian, self._compiled)
            if not self.frequency:  # sampling weights count twice in a variance
                add_group_sums(squares, which, w[k : k + size], hessian, self._compiled)
        variances: Array = squares.reshape(many, p, p)
        if not (self.loss.convex or _is_positive(variances)):
            variances = absolute(variances)
        return ClusterBlock(first, scores, hessians.reshape(many, p, p), weights, variances)


def _is_positive(matrices: Array) -> bool:
    """Return whether matrices (g, p, p) have no eigenvalue below zero but for rounding."""
    room = 1e-10 * np.abs(np.trace(matrices, axis1=1, axis2=2)) + 1e-300
    raised = matrices + room[:, None, None] * np.eye(matrices.shape[1])
    return cholesky_or_none(raised) is not None

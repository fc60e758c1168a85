"""Functions of a loss written in JAX and its derivatives, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etafree.predictors import find_predictors
from etafree.pytrees import import_jax, rebuild

__all__ = ["Kernels"]


class Kernels:
    """Compiled functions of flat parameters (p,), prepared rows and weights (m,).

    With predictors u = J theta + o a prepared row is (row, J, o), and scores are J' slope; without,
    u is theta and a prepared row is the row. `sums` makes slopes and the Hessian, or with a single
    predictor every row's second derivative, which compiled code sums faster.
    """

    def __init__(self, function: Callable[[Any, Any], Any], template: Any, row: Any) -> None:
        jax = import_jax()
        jnp, structured = jax.numpy, rebuild(template)
        p = sum(leaf.size for leaf in jax.tree.leaves(template))

        def loss(theta: Any, row: Any) -> Any:
            return function(structured(theta), row)

        self.predictors = found = find_predictors(loss, p, row)
        outer, axis = (loss, None) if found is None else (found.outer, 0)

        def prepare(rows: Any) -> Any:
            return rows if found is None else (rows, *jax.vmap(found.extract)(rows))

        def split(theta: Any, rows: Any) -> tuple[Any, Any]:
            return (theta, rows) if found is None else (rows[1] @ theta + rows[2], rows[0])

        def values(theta: Any, rows: Any, w: Any) -> Any:
            each = jax.vmap(outer, (axis, 0))(*split(theta, rows))
            return jnp.where(w > 0, w * each, 0.0)

        def total(theta: Any, rows: Any, w: Any) -> Any:
            return values(theta, rows, w).sum()

        def slopes(theta: Any, rows: Any, w: Any) -> Any:
            return w[:, None] * jax.vmap(jax.grad(outer), (axis, 0))(*split(theta, rows))

        def curvatures(theta: Any, rows: Any, w: Any) -> Any:
            each = jax.vmap(jax.hessian(outer), (axis, 0))(*split(theta, rows))
            return w[:, None, None] * each

        def gathered(slopes: Any, rows: Any) -> Any:
            return slopes if found is None else jnp.einsum("mk,mkp->mp", slopes, rows[1])

        def scores(theta: Any, rows: Any, w: Any) -> Any:
            return gathered(slopes(theta, rows, w), rows)

        def hessian(theta: Any, rows: Any, w: Any) -> Any:
            if found is None:
                return jax.hessian(total)(theta, rows, w)
            flat, bent = rows[1].reshape(-1, len(theta)), curvatures(theta, rows, w)
            if found.many == 1:
                return flat.T @ (bent.reshape(-1, 1) * flat)
            return flat.T @ jnp.einsum("mjk,mkp->mjp", bent, rows[1]).reshape(flat.shape)

        def derivatives(theta: Any, rows: Any, w: Any) -> Any:
            slope = slopes(theta, rows, w)
            gradient = slope.sum(0) if found is None else slope.reshape(-1) @ rows[1].reshape(
                -1, len(theta))  # fmt: skip
            value = total(theta, rows, w)
            return value, gradient, (slope**2).sum(0), hessian(theta, rows, w)

        def sums(theta: Any, rows: Any, w: Any) -> Any:
            bent = hessian if found is None or found.many > 1 else curvatures
            return slopes(theta, rows, w), bent(theta, rows, w)

        def hessians(theta: Any, rows: Any, w: Any) -> Any:
            bent, score = curvatures(theta, rows, w), scores(theta, rows, w)
            if found is None:
                return score, bent
            return score, jnp.einsum("mji,mjk,mkl->mil", rows[1], bent, rows[1])

        self.total, self.prepare = total, jax.jit(prepare)
        self.values, self.scores, self.sums = jax.jit(values), jax.jit(scores), jax.jit(sums)
        self.derivatives, self.hessians = jax.jit(derivatives), jax.jit(hessians)
        self.value_and_gradient = jax.jit(jax.value_and_grad(total))
        self.totals = jax.jit(jax.vmap(total, (0, None, None)))

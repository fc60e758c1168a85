"""Losses of a criterion's rows at every draw, of some rows at a time.

The matrix of all draws and all rows never exists. What is kept is summed: by group of rows, or
into second moments of independent rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.linear import LinearTotal, PredictorTotal
from etafree.rows import Rows
from etafree.sums import BLOCK, COMPILE_FROM, Groups, add_group_sums, row_blocks
from etafree.validation import Array

__all__ = ["RowLosses", "batch_products"]

#: Losses that are held at a time: what fits the outer cache.
HELD = 1 << 17

#: From scores (K, m, p) of m rows by batch to whatever is summed; weights of the rows come along.
Rowwise = Callable[[Array, Array | None], tuple[Array, ...]]


@dataclass(frozen=True, eq=False)
class RowLosses:
    """Losses of a total over a linear predictor at draws (D, p), in memory or read in parts.

    Attributes
    ----------
    total : PredictorTotal
    thetas : (D, p) array
    rows : Rows
        Where labels of the rows are found.
    estimand : str
        What the posterior mean estimates, in words.

    Examples
    --------
    >>> import etafree as ef
    >>> c = ef.Criterion(ef.losses.Squared(), data=(np.ones((2, 1)), np.array([1.0, 3.0])))
    >>> losses = RowLosses(c.total, np.array([[1.0], [3.0], [2.0]]), c.rows)
    >>> losses.totals, [block.T.tolist() for _, block in blocks_of_rows(c.total, losses.thetas)]
    (array([ 0.,  0., -1.]), [[[0.0, 2.0, 0.5], [2.0, 0.0, 0.5]]])
    """

    total: PredictorTotal
    thetas: Array
    rows: Rows
    estimand: str = ""
    checks: tuple[Any, ...] = ()

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.total.n

    @cached_property
    def totals(self) -> Array:
        """Every draw's total loss less the first draw's, which keeps digits; a pass."""
        thetas = self.thetas

        def add(part: LinearTotal, out: Array) -> None:
            made = part.totals(thetas)
            with np.errstate(invalid="ignore"):  # refused below
                out += made - made[0]

        (out,) = self.total.fold(add, np.zeros(len(thetas)))
        made: Array = out
        if not np.isfinite(made).all():
            self.total.fold(lambda part: _refuse_infinite(part, thetas))
        return made

    def group_scores(self, deviation: Array, groups: Groups, edges: NDArray[np.intp]) -> Array:
        """Return sums over groups of `batch_products` (K, p, G), a pass over the rows."""
        thetas, many, p = self.thetas, len(edges) - 1, deviation.shape[1]
        compiled = self.total.n * many * p >= COMPILE_FROM

        def add(part: LinearTotal, out: Array) -> None:
            codes = part.codes(groups)
            for rows, losses in blocks_of_rows(part, thetas):
                made = batch_products(deviation, losses, edges).reshape(many * p, -1)
                flat = np.ascontiguousarray(made.T)
                add_group_sums(out, codes[rows], np.ones(len(flat)), flat, compiled)

        (out,) = self.total.fold(add, np.zeros((len(groups), many * p)), groups=groups)
        made: Array = out.reshape(len(groups), many, p).transpose(1, 2, 0)
        return made

    def sums_over_rows(
        self, deviation: Array, edges: NDArray[np.intp], function: Rowwise, *zeros: Array
    ) -> tuple[Array, ...]:
        """Return the sums of a function of rows' `batch_products` (K, m, p), a pass over the rows.

        The products are centred: the share of their total is taken off that a row's weight has.
        """
        thetas, weight = self.thetas, self.total.weight
        mean = batch_products(deviation, self.totals[:, None], edges) / weight

        def add(part: LinearTotal, *out: Array) -> None:
            for rows, losses in blocks_of_rows(part, thetas):
                w = None if part.weights is None else part.weights[rows]
                made = batch_products(deviation, losses, edges)
                made -= mean if w is None else mean * w
                for total, more in zip(out, function(made.transpose(0, 2, 1), w), strict=True):
                    total += more

        return self.total.fold(add, *zeros)


def blocks_of_rows(part: Any, thetas: Array) -> Iterator[tuple[slice, Array]]:
    """Yield rows and their weighted losses (D, m) at every parameter value."""
    for rows in row_blocks(part.n, max(1, BLOCK * len(thetas) // HELD)):
        u = thetas @ part.X[rows].T
        if part.offset is not None:
            u += part.offset[rows]
        losses = part.loss.values(u, part.y[rows])
        if part.weights is not None:
            w = part.weights[rows]
            losses[:, w == 0] = 0.0
            losses *= w
        yield rows, losses


def batch_products(deviation: Array, losses: Array, edges: NDArray[np.intp]) -> Array:
    """Return the covariances of draws (D, p), centred, with losses (D, m) by batch (K, p, m).

    Their mean over batches is the covariance with divisor D - 1.

    Examples
    --------
    >>> z = np.array([[-1.0], [1.0], [-1.0], [1.0]])
    >>> batch_products(z, z * [1.0, 3.0], np.array([0, 2, 4])).mean(axis=0) * 3 / 4
    array([[1., 3.]])
    """
    (many, p), batches = deviation.shape, len(edges) - 1
    centred = losses - np.full(many, 1 / many) @ losses
    if np.ptp(np.diff(edges)) == 0:
        cut = deviation.reshape(batches, -1, p).transpose(0, 2, 1)
        made: Array = cut @ centred.reshape(batches, many // batches, -1)
    else:
        made = np.stack([deviation[a:b].T @ centred[a:b] for a, b in pairwise(edges.tolist())])
    made *= batches / (many - 1)
    return made


def _refuse_infinite(part: LinearTotal, thetas: Array) -> None:
    for rows, losses in blocks_of_rows(part, thetas):
        bad = np.flatnonzero(~np.isfinite(losses).all(axis=0))
        if len(bad):
            raise InputError(
                "log_likelihood", f"is not finite at row {part.first + rows.start + bad[0]}",
                "drop it, or use a loss that is finite there",
            )  # fmt: skip

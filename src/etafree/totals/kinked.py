r"""The total of a loss with a kink over a linear predictor.

Its minimiser is a vertex, where p rows are at their kinks. There a slope may be anything between
those of the two sides; what is taken makes the total's gradient as small as can be, zero at the
minimiser, where these slopes are the dual values of the linear program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.foundation.arguments import Array
from etafree.losses import KinkedLoss, LinearLoss
from etafree.losses.kinked import smallest_slopes, vertex
from etafree.totals.linear import LinearTotal, PredictorTotal

#: A row this near to its kink, against the terms of its predictor, is at it.
AT_KINK = 1e-11


@dataclass(frozen=True, eq=False)
class KinkedTotal(LinearTotal):
    """Sum of a `KinkedLoss`; rows have no Hessian of their own, only a kernel's share."""

    traits: ClassVar[frozenset[str]] = (PredictorTotal.traits - {"leverage"}) | {"memory"}

    loss: KinkedLoss

    def with_loss(self, loss: LinearLoss) -> LinearTotal:
        """Return the total of another loss over the same rows."""
        return LinearTotal(loss, *self.arrays, nuisance=self.nuisance).fitted()

    def fitted(self) -> LinearTotal:
        """Return the total with the bandwidth of its curvature filled in."""
        if self.loss.bandwidth is not None:
            return self
        weights = self._weights(slice(0, self.n))
        c, s = self.loss.line(self.y)
        z = c - s * self.predictor(self.vertex())
        loss = self.loss.with_bandwidth(z, weights * (self.count / weights.sum()))
        return replace(self, loss=loss)

    def fold(
        self, step: Callable[..., None], *out: Any, groups: Groups | None = None
    ) -> tuple[Any, ...]:
        """Call ``step(self, *out)``: slopes at kinks are those of all rows together."""
        step(self, *out)
        return out

    def vertex(self) -> Array:
        """Return the minimiser (p,), by linear programming."""
        (a, b), (c, s) = self.loss.slopes, self.loss.line(self.y)
        w = self._weights(slice(0, self.n))
        known = c if self.offset is None else c - s * self.offset
        return vertex(s[:, None] * self.X, known, -b * w, a * w)

    def _slopes(self, rows: slice | NDArray[np.intp], u: Array, theta: Array) -> Array:
        key, cached = theta.tobytes(), self.__dict__.get("_known", (None, None))
        if cached[0] != key:
            cached = key, self._settled(theta)
            self.__dict__["_known"] = cached
        slopes: Array = cached[1][rows]
        return slopes.copy()

    def _settled(self, theta: Array) -> Array:
        """Return the slopes of all rows, those at their kinks so that the gradient is least."""
        u, (c, s) = self.predictor(theta), self.loss.line(self.y)
        slope, w = self.loss.first(u, self.y), self._weights(slice(0, self.n))
        terms = np.abs(self.X) @ np.abs(theta) + np.abs(c)
        if self.offset is not None:
            terms += np.abs(self.offset)
        at = (np.abs(c - s * u) <= AT_KINK * terms) & (w > 0)
        if at.any():
            unit = np.where(self.column_norms > 0, self.column_norms, 1.0)
            rows, (a, b) = (w * s)[at, None] * self.X[at] / unit, self.loss.slopes
            others = (w * slope)[~at] @ self.X[~at] / unit
            slope[at] = -s[at] * smallest_slopes(rows, others, -b, a)
        return slope

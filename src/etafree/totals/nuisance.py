r"""Values that a total takes from the data before it is minimised, as stacked equations.

A scale or a variance :math:`\gamma`, estimated first and plugged into the loss, is estimated from
the same rows as :math:`\theta`. To first order, with :math:`A` the Hessian of the total, :math:`D`
the derivative of its gradient in :math:`\gamma`, and :math:`\iota_i` what row i adds to
:math:`\hat\gamma`,

.. math:: \hat\theta-\theta^\star = -A^{-1}\sum_i(\psi_i+D\,\iota_i),

the lower block of the stacked equations of both, solved: the rows' scores are
:math:`\psi_i+D\iota_i` where they were :math:`\psi_i`, and nothing else changes. A
:math:`\hat\gamma` that is found jointly with :math:`\hat\theta`, with influence
:math:`\iota_i^\circ` at a fixed :math:`\theta` and slope :math:`E` in it, is of the same form: by
Woodbury's identity :math:`(A+DE)^{-1}(\psi_i+D\iota_i^\circ)=A^{-1}(\psi_i+D\iota_i)` with
:math:`\iota_i=(I+EA^{-1}D)^{-1}(\iota_i^\circ-EA^{-1}\psi_i)`. For a loss of the residual and
errors symmetric about zero :math:`D` vanishes.

References
----------
Newey, W. K. and McFadden, D. (1994). Large sample estimation and hypothesis testing, section 6. In
Handbook of Econometrics 4, 2111-2245. Huber, P. J. and Ronchetti, E. M. (2009). Robust Statistics,
2nd ed., section 6.4. Wiley.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from etafree.data.groups import Groups
from etafree.foundation.arguments import Array
from etafree.foundation.linalg import least_squares
from etafree.losses.residual import MEDIAN

if TYPE_CHECKING:
    from etafree.totals.linear import LinearTotal


class Stacked(NamedTuple):
    """What estimated nuisance values add to scores: ``influence @ slope.T``, (n, p)."""

    influence: Array  #: Of rows on the values, per unit of weight, (n, k).
    slope: Array  #: Of the total's gradient in the values, (p, k).

    def sums(self, groups: Groups, weights: Array | None) -> Array:
        """Return what is added to the score sums of groups (G, p)."""
        each = self.influence if weights is None else weights[:, None] * self.influence
        sums = [np.bincount(groups.codes, column, len(groups)) for column in each.T]
        added: Array = np.column_stack(sums) @ self.slope.T
        return added


class Nuisance(ABC):
    """Values estimated from a total's rows and plugged into it."""

    #: Whether they belong to the loss, so that another loss is without them.
    of_loss: ClassVar[bool] = False

    @property
    @abstractmethod
    def values(self) -> Mapping[str, float]:
        """The values by name."""

    @abstractmethod
    def influence(self) -> Array:
        """Return what each row adds to the values, per unit of its weight, (n, k)."""

    @abstractmethod
    def slope(self, total: LinearTotal, theta: Array) -> Array:
        """Return the derivative (p, k) of the total's gradient in the values."""


def stack(nuisance: tuple[Nuisance, ...], total: LinearTotal, theta: Array) -> Stacked:
    """Return what nuisance values add to the scores at `theta`."""
    influence = np.hstack([each.influence() for each in nuisance])
    return Stacked(influence, np.hstack([each.slope(total, theta) for each in nuisance]))


class Median(NamedTuple):
    r"""How a median moves: :math:`\delta m=\sum_iw_i\iota_i+\sum_ia_i\,\delta v_i`."""

    influence: Array  #: Of the rows, per unit of weight, (n,).
    near: Array  #: The rows' shares of those near the median (n,), whose values move it.

    @classmethod
    def of(
        cls, values: Array, median: float, reach: float, weights: Array | None, count: float
    ) -> Median:
        r"""Return how the `median` of `values` (n,) of `count` observations moves.

        :math:`\iota_i=(1\{v_i>m\}-\tfrac12)/\{Wf(m)\}`, less its mean, with the density by the rows
        within `reach` times :math:`n^{-1/5}` of m, or the :math:`n^{1/2}` nearest if these are
        farther away.
        """
        w = np.ones(len(values)) if weights is None else weights
        off = np.abs(values - median)
        order = np.argsort(off)
        nearest = np.searchsorted(np.cumsum(w[order]), w.sum() / np.sqrt(count) * (1 - 1e-12))
        reach = max(reach * count**-0.2, float(off[order[nearest]]))
        near = w * (off <= reach)
        influence = ((values > median) - 0.5) * (2 * reach / near.sum())
        return cls(influence - w @ influence / w.sum(), near / near.sum())


@dataclass(frozen=True, eq=False)
class ResidualScale(Nuisance):
    r"""The median absolute residual m of a Huber fit over 0.6745, found jointly with that fit.

    In :math:`\gamma=\log s`: the fit's equations and :math:`\log m` have slopes :math:`d` and
    :math:`e` in each other, so :math:`\iota_i=(\iota_i^\circ-e^\top A_H^{-1}\psi_{H,i})/
    (1+e^\top A_H^{-1}d)`.
    """

    scale: float
    pilot: LinearTotal  #: Of Huber's loss at the scale.
    theta: Array  #: Where it is least.

    of_loss: ClassVar[bool] = True

    @property
    def values(self) -> Mapping[str, float]:
        return {"scale": self.scale}

    def influence(self) -> Array:
        pilot, theta, m = self.pilot, self.theta, MEDIAN * self.scale
        predictor = pilot.predictor(theta)
        residual = pilot.y - predictor
        median = Median.of(np.abs(residual), m, m, pilot.weights, pilot.count)
        e = -(median.near * np.sign(residual)) @ pilot.X / m
        back = least_squares(pilot.derivatives(theta).hessian, e)  # X may be collinear
        scores = pilot.loss.first(predictor, pilot.y) * (pilot.X @ back)
        own = median.influence / m - scores
        return (own / (1.0 + back @ self.slope(pilot, theta)[:, 0]))[:, None]

    def slope(self, total: LinearTotal, theta: Array) -> Array:
        r"""Return :math:`\sum w_i\{(y_i-u_i)\ell''_i-\ell'_i\}x_i`, the slope in :math:`\log s`."""
        residual, slope = total.y - total.predictor(theta), np.zeros(total.p)
        for block in total.row_terms(theta):
            own = residual[block.first : block.first + len(block.rows)] * block.curvature
            slope += (block.weights * (own - block.slope)) @ block.rows
        return slope[:, None]

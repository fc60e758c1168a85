r"""What a scale that was estimated beforehand does to standard errors.

The median absolute residual :math:`m=0.6745s` and the estimate solve equations together. To first
order, with d the change of the gradient and e that of :math:`\log m`,

.. math:: A\,\delta\theta + d\,\delta\log s = -\sum_i\psi_i,\qquad
   \delta\log s = e'\delta\theta + \sum_i\frac{1\{|r_i|>m\}-1/2}{n f(m) m},

so the influence of a row is :math:`-(A+de')^{-1}(\psi_i+d\,\iota_i)` instead of
:math:`-A^{-1}\psi_i`. For errors symmetric about zero d vanishes and the two agree.
"""

from __future__ import annotations

import numpy as np

from etafree import linalg
from etafree.checks import Check, check
from etafree.criterion import Criterion
from etafree.linear import LinearTotal
from etafree.losses import ResidualLoss
from etafree.scale import MEDIAN
from etafree.sums import Groups
from etafree.targets import Target
from etafree.validation import Array

__all__ = ["scale_effect"]

#: Step of the log scale.
STEP = 1e-4


def scale_effect(criterion: Criterion, target: Target, groups: Groups | None) -> tuple[Check, ...]:
    """Return how far standard errors are off for taking an estimated scale as known; or nothing.

    References
    ----------
    Huber, P. J. and Ronchetti, E. M. (2009). Robust Statistics, 2nd ed., section 6.4. Wiley.
    """
    loss, total = criterion.loss, criterion.total
    if not (isinstance(loss, ResidualLoss) and loss.estimated and isinstance(total, LinearTotal)):
        return ()
    if target.hessian is None:
        return ()
    theta, scale = target.center, loss.scale_value
    ends = [
        total.with_loss(loss.with_scale(scale * np.exp(h))).derivatives(theta).gradient
        for h in (STEP, -STEP)
    ]
    d = (ends[0] - ends[1]) / (2 * STEP)
    influence, e = _of_the_median(total, theta, MEDIAN * scale)
    if groups is None:
        groups = Groups(np.arange(total.n), np.arange(total.n))
    sums = total.cluster_totals(theta, groups).sums
    sums = sums - sums.mean(axis=0)
    both = sums + np.outer(np.bincount(groups.codes, influence, len(groups)), d)
    plain = linalg.solve(target.hessian, sums.T, "Hessian")
    joint = linalg.solve(target.hessian + np.outer(d, e), both.T, "joint Hessian")
    ratio = np.sqrt(np.square(joint).sum(axis=1) / np.square(plain).sum(axis=1))
    worst = int(np.argmax(np.abs(np.log(ratio))))
    return (
        check(
            "plug-in scale", float(np.abs(np.log(ratio[worst]))), 0.1,
            f"the scale was estimated and is taken as known: the standard error of "
            f"{target.names[worst]!r} should be {ratio[worst]:.2f} times as large; pass scale= as "
            "a number",
        ),
    )  # fmt: skip


def _of_the_median(total: LinearTotal, theta: Array, m: float) -> tuple[Array, Array]:
    """Return influences (n,) on the log of the median absolute residual m, and its slope."""
    w = np.ones(total.n) if total.weights is None else total.weights / total.weights.mean()
    moved = total.y if total.offset is None else total.y - total.offset
    residual = moved - total.X @ theta
    size = np.abs(residual)
    reach = m * len(size) ** -0.2
    near = w * (np.abs(size - m) <= reach)
    density = near.sum() / (2 * reach * w.sum())
    influence = w * ((size > m) - 0.5) / (w.sum() * density * m)
    slope = -(near * np.sign(residual)) @ total.X / (near.sum() * m)
    return influence, slope

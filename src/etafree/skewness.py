r"""How far skewness moves the limits of an interval that is symmetric about its estimate.

With influences :math:`I_g` of rows or clusters on a coefficient, :math:`\sigma^2=\sum_gI_g^2` and
:math:`u_g=I_g/\sigma`, tilt the data towards larger estimates by weights
:math:`w_g=1+\varepsilon u_g` (Efron's least favourable direction). The estimate moves by
:math:`\sigma(\varepsilon+\tfrac12q\varepsilon^2)` and the logarithm of its estimated variance by
:math:`c\varepsilon`; let :math:`\beta\sigma` be the estimate's bias. Then the t ratio has the mean
and the third cumulant

.. math:: b=\beta-\tfrac12c,\qquad k_3=\textstyle\sum_gu_g^3+3q-3c,

and by Cornish and Fisher both of its quantiles :math:`\pm z` lie :math:`d=b+k_3(z^2-1)/6` to the
right of Student's: this is by how many standard errors the interval lies too high. For a mean
:math:`q=\beta=0` and :math:`c=\sum u_g^3`, so that :math:`d=-(2z^2+1)c/6`. In logistic and Poisson
regression q and c have the opposite sign and undo the skewness of the influences. Weights of a
loss over pairs or tuples are those of its units; a unit's score is the sum over its tuples, so that
scores add up to the gradient times the tuples' order.

A sample's third moments are large by chance, of long tails above all. `asymmetry` asks the bulk of
the influences instead: their mean lies beyond their median if they are skewed.

References
----------
Hall, P. (1992). The Bootstrap and Edgeworth Expansion, sections 2.6 and 3.5. Springer. Efron, B.
(1987). Better bootstrap confidence intervals. J. Amer. Statist. Assoc. 82, 171-185. Miao, W., Gel,
Y. R. and Gastwirth, J. L. (2006). A new test of symmetry about an unknown median. In Random Walk,
Sequential Analysis and Related Topics, 199-214. World Scientific.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.dependence.base import Point
from etafree.dependence.clusters import influences, mean_score
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.totals.base import ClusterTotals
from etafree.totals.linear import LinearTotal, is_linear

#: Step of derivatives in standard errors, so that weights stay between 0.9 and 1.1.
STEP = 0.1
#: Influences below this share of the largest are those of rows that say nothing.
SILENT = 1e-8


def third_moments(at: Point, groups: Groups | None) -> tuple[Array, Array]:
    r"""Return :math:`\sum_gI_g^3/(\sum_gI_g^2)^{3/2}` (p,) and z-scores of signs, in one pass.

    Skewed influences have a mean beyond their median, so those of the short side are more: minus
    the sum of signs over :math:`\{m(1-2/\pi)\}^{1/2}`, its standard error if they are normal about
    an estimated mean. It stands in for `asymmetry` where rows are not in memory.
    """
    theta, total = at.theta, at.criterion.total
    zeros = tuple(np.zeros(total.p) for _ in range(4))
    if groups is not None or not is_linear(total):
        _add_moments(influences(at, groups, "CR0"), *zeros)
        square, cube, sign, count = zeros
    else:
        inverse = at.whiten.T @ at.whiten
        mean = mean_score(at.criterion, at.gradient, at.centered)

        def add(part: LinearTotal, *sums: Array) -> None:
            for block in part.row_terms(theta):
                scores = block.slope[:, None] * block.rows - mean
                _add_moments(-(scores * block.weights[:, None]) @ inverse, *sums)

        square, cube, sign, count = total.fold(add, *zeros)
    error = np.sqrt(np.maximum(count, 1.0) * (1 - 2 / np.pi))
    return np.asarray(cube / np.maximum(square, 1e-300) ** 1.5), -sign / error


def _add_moments(each: Array, square: Array, cube: Array, sign: Array, count: Array) -> None:
    """Add sums over influences (m, p): of squares, cubes, signs, and those that are not zero."""
    squares, signs = np.square(each), np.sign(each)
    square += squares.sum(axis=0)
    cube += np.einsum("ij,ij->j", squares, each)
    sign += signs.sum(axis=0)
    count += np.abs(signs).sum(axis=0)


def asymmetry(each: Array) -> Array:
    r"""Return z-scores (k,) of the mean minus the median of influences (m, k).

    :math:`\sqrt m(\bar I-\mathrm{med})/\{(\pi/2-1)^{1/2}J\}` with J the mean absolute deviation
    from the median times :math:`\sqrt{\pi/2}`, of those influences that are not zero.
    """
    scores = np.zeros(each.shape[1])
    for j, column in enumerate(each.T):
        size = np.abs(column)
        heard = column[size > SILENT * size.max(initial=0.0)]
        if len(heard):
            median = np.median(heard)
            spread = np.sqrt(np.pi / 2) * np.abs(heard - median).mean()
            far = (heard.mean() - median) / max(float(spread), 1e-300)
            scores[j] = np.sqrt(len(heard) / (np.pi / 2 - 1)) * far
    return scores


def limit_shifts(
    at: Point, groups: Groups, each: Array, columns: NDArray[np.intp], z: float
) -> Array:
    """Return d (k,) of some coefficients, from influences (m, p) of rows or clusters.

    Two passes over the rows for each, and two for each of the p parameters.
    """
    criterion, total = at.criterion, at.criterion.total
    own = np.ones(total.n) if total.weights is None else total.weights
    mass, share = groups.weights(total.weights), 0.0
    if criterion.strength > 0:
        share = criterion.strength * criterion.size / total.weight

    def tilted(theta: Array, weights: Array) -> ClusterTotals:
        """Return gradient, Hessian and score sums (m, p) under weights (m,), penalty included."""
        part = total.reweighted(weights[groups.codes] * own, False)
        loss, slope, size = part.cluster_totals(theta, groups), np.zeros(total.p), weights * mass
        if share > 0:
            slope = share * criterion.penalty.gradient(theta)
        return ClusterTotals(
            loss.gradient + size.sum() * slope,
            loss.hessian + size.sum() * criterion.penalty_share(theta),
            loss.sums + size[:, None] * slope,
            size,
        )

    inverse, covariance = linalg.inv(at.hessian, "Hessian"), each.T @ each
    se, plain = np.sqrt(np.diagonal(covariance)), np.ones(len(each))
    here = tilted(at.theta, plain).gradient

    bend = np.zeros(total.p)  # of the expected gradient: sum of A_g I_g, and half the trace of M'''
    root = linalg.cholesky(covariance, "covariance")
    parts = linalg.solve(root, each.T).T
    for part, move in zip(parts.T, STEP * root.T, strict=True):
        above, below = (tilted(at.theta + s * move, plain) for s in (1, -1))
        bend += part @ (above.sums - below.sums) / (2 * STEP)
        bend += 0.5 * (above.gradient + below.gradient - 2 * here) / STEP**2
    bias = -(inverse @ bend) / se

    shifts = np.zeros(len(columns))
    for k, j in enumerate(columns):
        unit, move = each[:, j] / se[j], STEP * covariance[j] / se[j]
        gradients, variances = [], []
        for s in (1, -1):
            weights = plain + s * STEP * unit
            there = tilted(at.theta + s * move, weights)
            size = there.weights
            scores = there.sums - np.outer(size, there.sums.sum(axis=0) / size.sum())
            influence = scores @ linalg.solve(there.hessian, np.eye(total.p)[j], "Hessian")
            gradients.append(there.gradient)
            variances.append(np.log(np.square(influence) @ (1.0 / weights)))
        q = -(inverse[j] @ (sum(gradients) - 2 * here)) / STEP**2 / se[j]
        c = (variances[0] - variances[1]) / (2 * STEP)
        third = (unit**3).sum() + 3 * q - 3 * c
        shifts[k] = bias[j] - 0.5 * c + third * (z**2 - 1) / 6
    return shifts

r"""Derivatives and minimisers of many weightings of one criterion at once.

With :math:`\Theta` (b, p) and weights :math:`W` (b, n), all predictors are :math:`\Theta X^\top`,
all gradients :math:`(W\circ\ell')X` and all Hessians :math:`(W\circ\ell'')Z`, where a row of
:math:`Z` holds the products of pairs of columns: three matrix products for any number of
resamples. Newton steps start at the minimiser under the criterion's own weights; what they do not
settle goes to `etafree.minimise`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.errors import ConvergenceError, InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.foundation.linalg import CONDITION_FAIL
from etafree.foundation.threads import sum_in_threads
from etafree.losses import KinkedLoss
from etafree.optimize import Minimum, minimise
from etafree.totals.linear import BLOCK, cut, has_design
from etafree.totals.nuisance import Stacked

NEARLY = 1e-7  #: A relative gradient after which one more Newton step leaves rounding errors only.
STEPS = 15
#: Blocks of rows that one thread takes at a time.
SPAN = 32


class Batch(NamedTuple):
    """Gradients (b, p), Hessians (b, p, p) and root sums of squared slopes (b,) of L."""

    gradients: Array
    hessians: Array
    slopes: Array


class Minimisers(NamedTuple):
    """Minimisers (b, p), the Hessians there (b, p, p) and which of them were found (b,)."""

    thetas: Array
    hessians: Array
    found: NDArray[np.bool_]


def outer_products(rows: Array) -> Array:
    """Return the products of pairs of columns, (n, p) -> (n, p (p + 1) / 2)."""
    left, right = np.tril_indices(rows.shape[1])
    return rows[:, left] * rows[:, right]


def unpacked(triangles: Array, p: int) -> Array:
    """Return the symmetric matrices with these lower triangles, (b, q) -> (b, p, p)."""
    left, right = np.tril_indices(p)
    full = np.empty((len(triangles), p, p))
    full[:, left, right] = triangles
    full[:, right, left] = triangles
    return full


def batch(criterion: Criterion, thetas: Array, weights: Array | None = None) -> Batch:
    """Return derivatives of the penalized total loss at `thetas` (b, p) under weights (b, n).

    One theta, or no weights (then the criterion's own), go with any number of the other.
    """
    total = criterion.total
    if not has_design(total):
        each = [criterion.derivatives(theta) for theta in thetas]
        gradients, hessians = (np.array(a) for a in zip(*[d[1:3] for d in each], strict=True))
        return Batch(gradients, hessians, np.ones(len(thetas)))
    if weights is None and total.weights is not None:
        weights = total.weights[None]
    count, p = max(len(thetas), 1 if weights is None else len(weights)), total.p
    pairs = p * (p + 1) // 2
    step = max(64, BLOCK // max(count, pairs))

    def over(span: slice) -> tuple[Array, Array, Array]:
        """Return gradients, lower triangles of Hessians and squared slopes of some rows."""
        gradients, triangles = np.zeros((count, p)), np.zeros((count, pairs))
        square = np.zeros(count)
        for rows in cut(span, step):
            X, y = total.X[rows], total.y[rows]
            u = thetas @ X.T
            if total.offset is not None:
                u += total.offset[rows]
            slope, curvature = total.loss.first(u, y), total.loss.second(u, y)
            if weights is not None:
                w = weights[:, rows]
                slope, curvature = slope * w, curvature * w
            gradients += slope @ X
            triangles += curvature @ outer_products(X)
            square += np.einsum("bn,bn->b", slope, slope)
        return gradients, triangles, square

    with np.errstate(over="ignore", invalid="ignore"):
        spans = list(cut(slice(0, total.n), SPAN * step))
        gradients, triangles, square = sum_in_threads(over, spans, total.n * p)
    hessians = unpacked(triangles, p)
    if criterion.strength > 0:  # at each weighting's own size
        sums = np.array([total.weight]) if weights is None else weights.sum(axis=1)
        sizes = np.broadcast_to(sums * criterion.loss.effective_unit, count)
        points = np.broadcast_to(thetas, gradients.shape)
        for k, (theta, size) in enumerate(zip(points, sizes.tolist(), strict=True)):
            weight = criterion.penalty.strength_at(size) * size
            gradients[k] += weight * criterion.penalty.gradient(theta)
            hessians[k] += weight * criterion.penalty.hessian(theta)
    return Batch(gradients, hessians, np.sqrt(square))


def minimisers(
    criterion: Criterion, fit: Minimum, weights: Array, kind: str, stacked: Stacked | None = None
) -> Minimisers:
    """Return the minimisers of a criterion without kinks under each row of `weights` (b, n).

    Every search starts from the `fit` under its own weights; `kind` is that of the others. Plug-ins
    that are `stacked` move with the weights, to first order.
    """
    count = len(weights)
    thetas = np.tile(fit.theta, (count, 1))
    hessians = np.tile(fit.hessian, (count, 1, 1))
    found = np.zeros(count, dtype=bool)
    if steps_suit(criterion):
        _newton(criterion, weights, thetas, hessians, found)
    for k in np.flatnonzero(~found):
        try:
            one = minimise(criterion.reweighted(weights[k], kind), fit.theta)
        except (ConvergenceError, InputError):  # separated or collinear in this resample
            continue
        thetas[k], hessians[k], found[k] = one.theta, one.hessian, True
    found &= _regular(hessians)
    if stacked is not None:
        pull = linalg.solve(fit.hessian, stacked.slope, "Hessian")
        thetas = thetas - weights @ stacked.influence @ pull.T
    return Minimisers(thetas, hessians, found)


def steps_suit(criterion: Criterion) -> bool:
    """Return whether Newton steps of many weightings at once reach their minimisers."""
    return has_design(criterion.total) and not isinstance(criterion.loss, KinkedLoss)


def _newton(
    criterion: Criterion, weights: Array, thetas: Array, hessians: Array, found: NDArray[np.bool_]
) -> None:
    """Take Newton steps in place until gradients are zero to rounding, at most `STEPS` of them."""
    norms = criterion.total.column_norms
    reach_of = norms / np.sqrt(criterion.n)
    open_ = np.arange(len(weights))
    for step in range(STEPS):
        w = weights if len(open_) == len(weights) else weights[open_]
        here = batch(criterion, thetas[:1] if step == 0 else thetas[open_], w)
        finite = np.isfinite(here.gradients).all(axis=1) & np.isfinite(here.hessians).all((1, 2))
        good = np.flatnonzero(finite)
        good = good[_regular(here.hessians[good])]
        gradients, matrices = here.gradients[good], here.hessians[good]
        move = linalg.solve(matrices, gradients[:, :, None])[:, :, 0]
        scale = here.slopes[good, None] * norms
        gap = np.max(np.abs(gradients) / np.where(scale > 0, scale, 1.0), axis=1)
        settled = gap <= NEARLY
        if criterion.loss.unit_free:  # a predictor that runs off to infinity has no gradient either
            settled &= np.max(np.abs(move) * reach_of, axis=1) <= 1e-5
        rows = open_[good]
        thetas[rows] -= move
        hessians[rows[settled]] = matrices[settled]
        found[rows[settled]] = True
        open_ = rows[~settled]
        if not len(open_):
            return


def _regular(hessians: Array) -> NDArray[np.bool_]:
    """Return which matrices are positive definite and tell all parameters apart."""
    diagonal = np.einsum("bii->bi", hessians)
    positive = (diagonal > 0).all(axis=1)
    sd = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = hessians / sd[:, :, None] / sd[:, None, :]
    lower = linalg.cholesky_or_none(scaled)
    if lower is None:
        clear = np.zeros(len(hessians), dtype=bool)
    else:
        edge: Array = np.diagonal(lower, axis1=1, axis2=2).min(axis=1)
        clear = edge**2 > 100 * hessians.shape[1] / CONDITION_FAIL
    if not clear.all():
        values = linalg.eigvalsh(scaled[~clear])
        clear[~clear] = values[:, 0] * CONDITION_FAIL > values[:, -1]
    regular: NDArray[np.bool_] = positive & clear
    return regular

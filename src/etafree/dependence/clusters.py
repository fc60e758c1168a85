r"""Variance of the total score, :math:`B`, for independent and for clustered observations.

Scores are centred at observation level, :math:`\psi_i = w_i(s_i - \bar s_w)`: at a penalized
estimator they sum to :math:`-\lambda s_n\nabla\rho`, not to zero, and each observation carries its
share of the penalty. Corrections for leverage use the share of the total Hessian that a cluster
holds, :math:`A_g = \sum_{i\in g} w_i\nabla^2\ell_i + W_g\lambda\nabla^2\rho`:

=====  ==================================================  =========================
name   cluster score                                       reference distribution
=====  ==================================================  =========================
CR0    :math:`\psi_g`                                      normal
CR1    times :math:`\{G/(G-1)\}^{1/2}`                      t with G - 1
CR1S   CR1 times :math:`\{(n-1)/(n-p)\}^{1/2}`              t with G - 1
CR2    :math:`(I-A_gA^{-1})^{-1/2}\psi_g`                  t, Satterthwaite per contrast
CR3    :math:`(I-A_gA^{-1})^{-1}\psi_g` (the jackknife)    t with G - 1
=====  ==================================================  =========================

HC0 to HC3 treat every observation as its own cluster, HC1 with :math:`n/(n-p)`, and refer to the
normal. Matrices are computed in coordinates where the total Hessian is the identity, so they do not
depend on units.

What single clusters contribute: scores, shares of the Hessian and their leverage.

References
----------
MacKinnon, J. G. and White, H. (1985). J. Econometrics 29, 305-325. Bell, R. M. and McCaffrey, D. F.
(2002). Survey Methodology 28, 169-181. Pustejovsky, J. E. and Tipton, E. (2018). J. Bus. Econ.
Statist. 36, 672-683.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import (
    Dependence,
    GroupScores,
    Meat,
    Point,
    Structure,
    finish,
    small_sample_factor,
)
from etafree.dependence.ways import Ways
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.target import (
    Satterthwaite,
    Target,
    sampling_adjustment,
    working_covariance_of_residuals,
)
from etafree.totals.base import ClusterTotals
from etafree.totals.linear import LinearTotal, is_linear

if TYPE_CHECKING:
    import pandas as pd

#: Smallest eigenvalue of I - A_g A^{-1} that leaves something to estimate from.
SINGULAR = 1e-10


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Clusters(Structure):
    """Rows with the same label may depend on each other in any way.

    ``calibrate(..., clusters=labels)`` is short for ``dependence=ef.Clusters(labels)``.

    Parameters
    ----------
    *labels : (n,) labels or column names
        A pandas Series is matched with the data by its index, a string names a column of the data.
        Several labels, or one mapping, DataFrame, (n, k) array or list of labels, are ways in which
        rows may depend on each other: they share a cluster in any of them.

    Raises
    ------
    InputError
        There are no labels. Labels that do not go with the data are refused by `calibrate`.

    See Also
    --------
    etafree.calibrate, etafree.target : What takes it, as ``dependence=``.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((6, 1)), np.array([0.0, 1.0, 2.0, 5.0, 3.0, 1.0])
    >>> criterion = ef.Criterion(ef.losses.Squared(), data=(X, y))
    >>> ef.target(criterion, dependence=ef.Clusters([1, 1, 2, 2, 3, 3])).describe()
    'sandwich, 3 clusters, CR3, t with 2 degrees of freedom'
    >>> ef.target(criterion, dependence=ef.Clusters([1, 1, 2, 2, 3, 3], [1, 2, 1, 2, 1, 2])).design
    '3 way 1 x 2 way 2 clusters'
    """

    labels: Any

    def __init__(self, *labels: Any) -> None:
        if not labels:
            raise InputError("clusters", "is empty", "pass labels for every row")
        object.__setattr__(self, "labels", labels[0] if len(labels) == 1 else list(labels))

    def with_labels(self, change: Callable[[Any, str], Any]) -> Clusters:
        """Return the same structure with labels that a function of them and a name returns."""
        return Clusters(change(self.labels, "clusters"))

    def bind(self, rows: Rows, copies: bool = False) -> OneWay | Ways:
        """Return it bound to rows, as clusters in one way or in several."""
        if isinstance(self.labels, Groups):
            return OneWay(self.labels)
        named = _named_ways(self.labels, rows)
        if named is None:
            return OneWay(rows.groups(self.labels, "clusters"))
        ways = {name: rows.groups(part, f"clusters[{name!r}]") for name, part in named.items()}
        for name, groups in ways.items():
            if len(groups) < 2:
                raise InputError(
                    "clusters",
                    f"has one cluster only in {name!r}",
                    "at least two must vary independently",
                )
        return OneWay(next(iter(ways.values()))) if len(ways) == 1 else Ways.crossed(ways)


def _named_ways(labels: Any, rows: Rows) -> dict[str, Any] | None:
    """Return the labels of each way if there are several, else None."""
    named: dict[str, Any] = {}
    columns: Any = getattr(labels, "columns", None)
    if columns is not None:  # a DataFrame
        named = {str(name): labels[name] for name in columns}
    elif isinstance(labels, Mapping):
        named = {str(name): part for name, part in labels.items()}
    elif isinstance(labels, np.ndarray) and labels.ndim == 2:
        named = {f"way {k + 1}": column for k, column in enumerate(labels.T)}
    elif isinstance(labels, list | tuple) and _several(labels, rows):
        named = {_way_name(part, k): part for k, part in enumerate(labels)}
        if len(named) < len(labels):
            raise InputError("clusters", "has two ways of the same name", "rename one")
    else:
        return None
    if not named:
        raise InputError("clusters", "is empty", "pass labels for every row")
    return named


def _way_name(labels: object, position: int) -> str:
    if isinstance(labels, str):
        return labels
    return str(getattr(labels, "name", None) or f"way {position + 1}")


def _several(labels: Sequence[Any], rows: Rows) -> bool:
    """Tell a list of ways (labels or column names) from a list of labels, one per row."""
    if not labels:
        return False
    if all(isinstance(part, str) for part in labels):
        one_each = len(labels) in (rows.used, rows.original)
        return rows.table is not None and not one_each and set(labels) <= set(rows.table)
    return all(isinstance(part, str) or _is_column(part) for part in labels)


def _is_column(labels: Any) -> bool:
    """Return whether labels have one axis; rows of several lengths are refused further on."""
    try:
        return np.ndim(labels) == 1
    except ValueError:
        return True


@dataclass(frozen=True, eq=False)
class Independent(Dependence):
    """Rows that do not depend on each other.

    Attributes
    ----------
    rows : int
    """

    rows: int

    corrections = ("HC0", "HC1", "HC2", "HC3")
    takes_meat = True
    other_corrections = "the CR corrections need clusters=, EWC, Bartlett and DK need dependence="

    @property
    def groups(self) -> Groups:  # type: ignore[override]
        """Every row as a group of its own."""
        return Groups(np.arange(self.rows), np.arange(self.rows))

    @property
    def independent(self) -> bool:
        """Whether no row depends on another."""
        return True

    def default(self, leverage: bool) -> str:
        """Return HC3, HC1 where rows have no share of the Hessian."""
        return "HC3" if leverage else "HC1"

    def summed(self, correction: str) -> None:
        """Return None: single rows are taken."""
        return

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum of squared scores, HC0 or HC1."""
        n, p = scores.rows, scores.sums.shape[1]
        factor = n / (n - p) if correction == "HC1" else 1.0
        parts = finish(factor * scores.sums.T @ scores.sums, scores.whiten)
        return Meat(*parts, np.inf, correction)

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the total from single rows, HC0 to HC3."""
        return independent(at, correction)


@dataclass(frozen=True, eq=False)
class OneWay(Dependence):
    """Rows of one cluster depend on each other in any way, clusters are independent.

    Attributes
    ----------
    groups : Groups
        Clusters.
    """

    groups: Groups

    corrections = ("CR0", "CR1", "CR1S", "CR2", "CR3")
    takes_meat = True
    argument = "clusters"
    other_corrections = "the HC corrections are for independent observations: drop clusters="

    @property
    def clusters(self) -> Groups:
        """The clusters themselves."""
        return self.groups

    def default(self, leverage: bool) -> str:
        """Return CR3, CR1 where rows have no share of the Hessian."""
        return "CR3" if leverage else "CR1"

    def given(self, matrix: Array, covariance: Array) -> Meat:
        """Return a variance of the total that the user computed, with t and G - 1."""
        many = len(self.groups)
        return Meat(matrix, covariance, many - 1.0, "custom", many, design=f"{many} clusters")

    def check_size(self, weights: Array | None, p: int, fewer: str = "fit") -> None:
        """Refuse clusters that are not more than the parameters."""
        check_count(int(np.count_nonzero(self.groups.weights(weights))), p, fewer)

    def row_groups(self) -> Mapping[str, Groups]:
        """Return the groups of rows whose leverage matters, by name."""
        return {"cluster": self.groups}

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum over clusters of their squared scores: CR0, CR1 or CR1S."""
        count, p = int(np.count_nonzero(scores.weights)), scores.sums.shape[1]
        whitened = scores.sums.T @ scores.sums
        whitened *= small_sample_factor(correction, count, scores.rows, p)
        dof = np.inf if correction == "CR0" else float(count - 1)
        parts = finish(whitened, scores.whiten)
        return Meat(*parts, dof, correction, count, design=f"{count} clusters")

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the total corrected for leverage: CR2 or CR3."""
        return clustered_by_leverage(at, self.groups, correction)


def mean_score(criterion: Criterion, gradient: Array, centered: bool) -> Array:
    """Return the weighted mean score, zero when scores are taken as they are."""
    return gradient / criterion.total.weight if centered else np.zeros_like(gradient)


def independent(at: Point, correction: str) -> Meat:
    """Return the meat of independent observations, HC0 to HC3."""
    criterion, theta = at.criterion, at.theta
    total, p = criterion.total, criterion.p
    if not is_linear(total):
        return _row_by_row(at, correction)
    whiten = at.whiten
    share = whiten @ criterion.penalty_share(theta) @ whiten.T
    shrink, turn = linalg.eigh(0.5 * (share + share.T), "penalty's Hessian")
    whiten = turn.T @ whiten  # coordinates in which the penalty's share is diagonal too
    mean = whiten @ mean_score(criterion, at.gradient, at.centered)

    def add(part: LinearTotal, whitened: Array) -> None:
        for block in part.row_terms(theta):
            z = block.rows @ whiten.T
            score: Array = block.slope[:, None] * z - mean
            copies = np.sign(block.weights) if part.frequency else block.weights
            if correction in ("HC2", "HC3"):
                score = _adjust_rows(
                    score, z, copies, block.curvature, shrink, correction, block.first
                )
            weight = block.weights if part.frequency else np.square(block.weights)
            whitened += (score.T * weight) @ score

    (whitened,) = total.fold(add, np.zeros((p, p)))
    if correction == "HC1":
        whitened *= total.small_sample_factor()
    matrix, covariance = finish(whitened, whiten)
    return Meat(matrix, covariance, np.inf, correction, joint_dof=_rest(at))


def _rest(at: Point) -> float | None:
    """Return n - p, the degrees of freedom that joint regions of independent rows have.

    A variance matrix from n rows is known well enough for single intervals long before it is for
    many at once: with n = 60 and p = 10 a 95 % region by chi-square covers 85 %, Hotelling's 96 %.
    """
    rest = at.criterion.total.count - at.criterion.p
    return rest if rest > 0 else None


def _row_by_row(at: Point, correction: str) -> Meat:
    """Return the meat of independent observations of a loss without a linear predictor."""
    criterion, theta = at.criterion, at.theta
    total, n = criterion.total, criterion.n
    scores, weights = total.scores(theta), total.weights
    leverage = correction in ("HC2", "HC3")
    if leverage and weights is not None and total.frequency and weights.max() > 1:
        raise InputError(
            "correction",
            f"{correction!r} takes no frequency weights here",
            "use 'HC1', or repeat the rows",
        )
    whiten = at.whiten
    mean = mean_score(criterion, scores.sum(axis=0), at.centered)
    if leverage:  # as other packages: a weight is an inverse variance in HC2
        rows, name = Groups(np.arange(n), np.arange(n)), "CR" + correction[2]
        whitened, _, _ = _adjusted_clusters(criterion, theta, rows, name, whiten, mean)
        return Meat(*finish(whitened, whiten), np.inf, correction, joint_dof=_rest(at))
    w = np.ones(n) if weights is None else weights
    scores = (scores - w[:, None] * mean) @ whiten.T
    if total.frequency:
        scores = scores[w > 0] / np.sqrt(w[w > 0])[:, None]
    whitened = scores.T @ scores * (total.small_sample_factor() if correction == "HC1" else 1.0)
    return Meat(*finish(whitened, whiten), np.inf, correction, joint_dof=_rest(at))


def _adjust_rows(
    score: Array,
    z: Array,
    copies: Array,
    curvature: Array,
    shrink: Array,
    correction: str,
    first: int,
) -> Array:
    """Apply (I - A_i A^{-1})^{-1/2 or -1} to every row's score, A_i = c (b z z' + diag(shrink))."""
    keep = 1.0 - copies[:, None] * shrink
    bend = copies * curvature
    q = z / keep
    room = 1.0 - bend * np.einsum("ij,ij->i", z, q)
    if np.any(room <= SINGULAR) or np.any(keep <= SINGULAR):
        worst = int(np.argmin(np.minimum(room, keep.min(axis=1))))
        raise InputError(
            "correction",
            f"{correction!r} fails: row {first + worst} has leverage one, nothing else determines "
            "a coefficient",
            "no correction knows its variance: drop the row with its column, or add a penalty",
        )
    if correction == "HC3":
        adjusted: Array = score / keep
        adjusted += q * (bend * np.einsum("ij,ij->i", q, score) / room)[:, None]
        return adjusted
    if not shrink.any():
        square = np.einsum("ij,ij->i", z, z)
        square = np.where(square > 0, square, 1.0)
        gain = (room**-0.5 - 1.0) / square
        root: Array = score + z * (gain * np.einsum("ij,ij->i", z, score))[:, None]
        return root
    matrices = -bend[:, None, None] * z[:, :, None] * z[:, None, :]
    matrices[:, np.arange(z.shape[1]), np.arange(z.shape[1])] += keep
    values, vectors = linalg.eigh(matrices, "rows' Hessians")
    inner = np.einsum("nji,nj->ni", vectors, score) * values**-0.5
    full: Array = np.einsum("nij,nj->ni", vectors, inner)
    return full


def group_scores(at: Point, totals: ClusterTotals, intercept: int | None) -> GroupScores:
    """Return centred score sums of groups, where the Hessian is the identity."""
    whiten = at.whiten
    mean = mean_score(at.criterion, totals.sums.sum(axis=0), at.centered)
    sums = (totals.sums - totals.weights[:, None] * mean) @ whiten.T
    return GroupScores(sums, whiten, totals.weights, at.criterion.total.count, intercept)


def clustered_by_leverage(at: Point, groups: Groups, correction: str) -> Meat:
    """Return the meat of one-way clusters corrected for leverage: CR2 or CR3."""
    criterion, theta = at.criterion, at.theta
    whiten = at.whiten
    mean = mean_score(criterion, at.gradient, at.centered)
    adjusted: tuple[Array, int, Satterthwaite | None] | None = None
    if correction == "CR2" and not criterion.total.frequency:
        adjusted = _sampled_clusters(criterion, theta, groups, whiten, mean)
    if adjusted is None:
        adjusted = _adjusted_clusters(criterion, theta, groups, correction, whiten, mean)
    whitened, count, satterthwaite = adjusted
    matrix, covariance = finish(whitened, whiten)
    return Meat(
        matrix, covariance, float(count - 1), correction, count, satterthwaite, f"{count} clusters"
    )


def check_count(count: int, p: int, fewer: str = "fit") -> None:
    """Refuse clusters too few to span a variance matrix; `fewer` says how to get fewer parameters.

    Examples
    --------
    >>> check_count(3, 4)
    Traceback (most recent call last):
    etafree.errors.InputError: clusters: are 3 for 4 parameters: their scores cannot span a
    variance matrix; fit at most 2 parameter(s), or use finer clusters (see dependence)
    """
    if count < 2:
        raise InputError(
            "clusters",
            "has one cluster only, and at least two must vary independently",
            "use finer clusters",
        )
    if count <= p:
        raise InputError(
            "clusters",
            f"are {count} for {p} parameters: their scores cannot span a variance matrix",
            f"{fewer} at most {count - 1} parameter(s), or use finer clusters",
        )


def loaded(directions: Array, whiten: Array, names: tuple[str, ...]) -> list[str]:
    """Return the parameters in whose scores these directions (p, k) of whitened ones lie."""
    scale = np.sqrt(np.square(linalg.inv(whiten, "Hessian")).sum(axis=1))  # root of A's diagonal
    share = np.sqrt(np.square(whiten.T @ directions).sum(axis=1)) * scale
    return [names[j] for j in np.flatnonzero(share > 0.1 * share.max())][:8]


def _adjusted_clusters(
    criterion: Criterion, theta: Array, groups: Groups, correction: str, whiten: Array, mean: Array
) -> tuple[Array, int, Satterthwaite | None]:
    p, count = criterion.p, 0
    share = criterion.penalty_share(theta)
    whitened = np.zeros((p, p))
    kept: list[tuple[Array, Array, Array]] = []
    for block in criterion.total.cluster_blocks(theta, groups):
        there = block.weights > 0
        count += int(np.count_nonzero(there))
        scores = (block.scores - block.weights[:, None] * mean) @ whiten.T
        hessians = _whitened(block.hessians + block.weights[:, None, None] * share, whiten)
        left = np.eye(p) - hessians
        _check_left(left, groups, block.first, correction, whiten, criterion.names)
        if correction == "CR3":
            adjusted = linalg.solve(left, scores[:, :, None], "clusters' Hessians")[:, :, 0]
        else:
            values, vectors = linalg.eigh(left, "clusters' Hessians")
            adjust = (vectors * values[:, None, :] ** -0.5) @ vectors.transpose(0, 2, 1)
            adjusted = np.einsum("gij,gj->gi", adjust, scores)
        whitened += adjusted.T @ adjusted
        if correction == "CR2":
            kept.append((adjust[there], hessians[there], _whitened(block.variances, whiten)[there]))
    if not kept:
        return whitened, count, None
    parts = [np.concatenate(part) for part in zip(*kept, strict=True)]
    return whitened, count, Satterthwaite.of(whiten, *parts)


def _sampled_clusters(
    criterion: Criterion, theta: Array, groups: Groups, whiten: Array, mean: Array
) -> tuple[Array, int, Satterthwaite] | None:
    """Return the meat of CR2 under sampling weights, where A is the identity.

    None where rows of negative curvature leave a cluster without a working variance.
    """
    total, share, p = criterion.total, criterion.penalty_share(theta), criterion.p
    kept: list[tuple[Array, Array]] = []
    pairs = zip(
        total.cluster_blocks(theta, groups), total.unweighted_blocks(theta, groups), strict=True
    )
    for block, once in pairs:
        bends = [
            _whitened(part, whiten) for part in (once.hessians, block.hessians, block.variances)
        ]
        with_share = bends[1] + _whitened(block.weights[:, None, None] * share, whiten)
        left = np.eye(p) - with_share
        _check_left(left, groups, block.first, "CR2", whiten, criterion.names)
        scores = [(b.scores - b.weights[:, None] * mean) @ whiten.T for b in (once, block)]
        there = block.weights > 0
        kept.append((np.hstack(scores)[there], np.block([bends[:2], bends[1:]])[there]))
    scores_, grams = (np.concatenate(part) for part in zip(*kept, strict=True))
    values = linalg.eigvalsh(grams, "clusters' Hessians")
    if np.any(values[:, 0] < -1e-10 * values[:, -1]):
        return None
    working = grams[:, p:, p:].sum(axis=0)
    adjust = sampling_adjustment(grams, working)
    adjusted = np.einsum("gki,gk->gi", adjust, scores_)
    return adjusted.T @ adjusted, len(grams), Satterthwaite(whiten, adjust, grams, working)


def _check_left(
    left: Array, groups: Groups, first: int, correction: str, whiten: Array, names: tuple[str, ...]
) -> None:
    """Refuse clusters without which, I - A_g A^{-1} being singular, a coefficient is lost.

    Their scores along it are zero at the minimiser, so that CR0 and CR1 have no variance either.
    """
    if linalg.cholesky_or_none(left - SINGULAR * np.eye(left.shape[1])) is None:
        values, vectors = linalg.eigh(left, "clusters' Hessians")
        worst = int(values[:, 0].argmin())
        lost = loaded(
            vectors[worst][:, values[worst] <= max(SINGULAR, values[worst, 0])], whiten, names
        )
        raise InputError(
            "clusters",
            f"cluster {groups.labels[first + worst]!s} alone determines {lost} (a dummy for one "
            f"cluster, say), so {correction} cannot leave it out",
            "no correction knows their variance: drop the cluster's rows with these columns, or "
            "add a penalty",
        ) from None


def _whitened(matrices: Array, whiten: Array) -> Array:
    turned: Array = whiten @ matrices @ whiten.T
    return turned


def point_of(target: Target) -> Point:
    """Return where a target's scores were taken, and what is known there."""
    criterion, theta, hessian = target.criterion, target.center, target.hessian
    assert criterion is not None
    assert hessian is not None
    gradient = criterion.total.derivatives(theta).gradient
    return Point(criterion, theta, hessian, linalg.whitener(hessian), gradient, target.centered)


class Law(NamedTuple):
    r"""Reference laws of contrasts whose variances were estimated, under the working model.

    Where scores vary as the Hessian says, the estimated variance of a contrast is about
    :math:`\kappa` times the true one, and varies like :math:`\chi^2_\nu/\nu`: quantiles are those
    of :math:`t_\nu/\sqrt\kappa`.

    Attributes
    ----------
    dof : (q,) array
        :math:`\nu`.
    inflation : (q,) array
        :math:`\kappa`, one for a variance without bias.
    """

    dof: Array
    inflation: Array

    def coverage(self, quantile: Array) -> Array:
        """Return how often an estimate plus or minus `quantile` standard errors covers."""
        from scipy.special import stdtr

        covered: Array = 2 * stdtr(self.dof, quantile * np.sqrt(self.inflation)) - 1
        return covered


def contrast_laws(at: Point, groups: Groups | None, correction: str, contrasts: Array) -> Law:
    r"""Return the laws of contrasts (q, p) of independent rows, or of one-way clusters.

    With p_g the direction in which cluster g's scores count for a contrast, after its correction
    for leverage, :math:`\Lambda_{gh}=p_g^\top\mathrm{cov}(\hat\psi_g,\hat\psi_h)p_h`, its
    :math:`\nu=(\mathrm{tr}\Lambda)^2/\|\Lambda\|_F^2`, and :math:`\kappa` is its trace over the
    variance of the contrast. No G x G matrix is formed; one or two passes over the data.

    References
    ----------
    Bell, R. M. and McCaffrey, D. F. (2002). Surv. Methodol. 28, 169-181. Imbens, G. W. and
    Kolesar, M. (2016). Robust standard errors in small samples. Rev. Econ. Statist. 98, 701-712.
    """
    directions = at.whiten @ np.atleast_2d(contrasts).T  # (p, q)
    if groups is None and is_linear(at.criterion.total):
        trace, square, truth = _row_sums(at, correction, directions)
    else:
        n = at.criterion.n
        sets = Groups(np.arange(n), np.arange(n)) if groups is None else groups
        trace, square, truth = _cluster_sums(at, sets, correction, directions)
    factor = 1.0
    if correction == "HC1":
        factor = at.criterion.total.small_sample_factor()
    elif correction in ("CR1", "CR1S") and groups is not None:
        count = int(np.count_nonzero(groups.weights(at.criterion.total.weights) > 0))
        factor = small_sample_factor(correction, count, at.criterion.total.count, at.criterion.p)
    return Law(trace**2 / square, factor * trace / truth)


def _row_sums(at: Point, correction: str, directions: Array) -> tuple[Array, Array, Array]:
    """Return trace and squared norm of Lambda, and the true variance, for independent rows."""
    theta, whiten, total = at.theta, at.whiten, at.criterion.total
    assert is_linear(total)
    p, q = directions.shape
    power = {"HC2": 0.5, "HC3": 1.0}.get(correction, 0.0)

    def terms(part: LinearTotal) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
        """Yield whitened rows, their curvatures, weights in a score and copies, and leverages."""
        for block in part.row_terms(theta):
            z, bend = block.rows @ whiten.T, np.maximum(block.curvature, 0.0)
            once, times = (
                (np.sign(block.weights), block.weights)
                if part.frequency
                else (block.weights, np.sign(block.weights))
            )
            yield z, bend, once, times, once * bend * np.einsum("ij,ij->i", z, z)

    def spread(part: LinearTotal, working: Array) -> None:
        for z, bend, once, times, _ in terms(part):
            working += (z.T * (times * np.square(once) * bend)) @ z

    (working,) = total.fold(spread, np.zeros((p, p)))

    powers = (0,) if total.frequency else (0, 1, 2)  # of a weight; copies weigh one each

    def add(part: LinearTotal, trace: Array, square: Array, grams: Array) -> None:
        for z, bend, once, times, leverage in terms(part):
            room = np.maximum(1.0 - leverage, SINGULAR) ** (-2 * power)
            each = np.square(z @ directions) * (np.square(once) * bend * room)[:, None]
            turned = z @ working - 2 * once[:, None] * z
            own = bend * np.einsum("ij,ij->i", turned, z)
            trace += (times * (1 + own)) @ each
            square += (times * (1 + 2 * own)) @ np.square(each)
            for k in powers:
                weighted = each * (times * bend * once**k)[:, None]
                for j, weight in enumerate(weighted.T):
                    grams[k, j] += (z.T * weight) @ z

    zeros = np.zeros(q), np.zeros(q), np.zeros((len(powers), q, p, p))
    trace, square, grams = total.fold(add, *zeros)
    plain, once, twice = grams if len(grams) == 3 else (grams[0],) * 3
    # tr(KSKS) with S = [[plain, once], [once, twice]] and K = [[working, -I], [-I, 0]]
    left = working @ plain - once, working @ once - twice
    square = square + np.einsum("qij,qji->q", left[0], left[0])
    square += np.einsum("qij,qji->q", -2 * left[1], plain) + np.einsum("qij,qji->q", once, once)
    return trace, square, np.einsum("ij,ij->j", directions, working @ directions)


def _cluster_sums(
    at: Point, groups: Groups, correction: str, directions: Array
) -> tuple[Array, Array, Array]:
    """Return trace and squared norm of Lambda, and the true variance, for one-way clusters."""
    whiten, total, share = at.whiten, at.criterion.total, at.criterion.penalty_share(at.theta)
    p, q = directions.shape
    own, own_square, cross, own_cross = (np.zeros(q) for _ in range(4))
    moved, own_moved = np.zeros((q, p, p)), np.zeros((q, p, p))
    gram, working = np.zeros((q, 2 * p, 2 * p)), np.zeros((p, p))
    for block in total.cluster_blocks(at.theta, groups):
        hessians = _whitened(block.hessians + block.weights[:, None, None] * share, whiten)
        variances = _whitened(block.variances, whiten)
        towards = _leaning(hessians, correction, directions)  # (g, p, q)
        u, v = hessians @ towards, variances @ towards
        mine, both = np.einsum("gpq,gpq->gq", towards, v), np.einsum("gpq,gpq->gq", u, v)
        own += mine.sum(axis=0)
        own_square += np.square(mine).sum(axis=0)
        cross += both.sum(axis=0)
        own_cross += (mine * both).sum(axis=0)
        moved += np.einsum("giq,gjq->qij", u, u, optimize=True)
        own_moved += np.einsum("gq,giq,gjq->qij", mine, u, u, optimize=True)
        z = np.concatenate([u, v], axis=1)
        gram += np.einsum("giq,gjq->qij", z, z, optimize=True)
        working += variances.sum(axis=0)
    middle = working_covariance_of_residuals(working)
    turned = middle @ gram
    trace = own + np.einsum("qij,ji->q", moved, working) - 2 * cross
    square = own_square + 2 * (np.einsum("qij,ji->q", own_moved, working) - 2 * own_cross)
    square = square + np.einsum("qij,qji->q", turned, turned)
    return trace, square, np.einsum("ij,ij->j", directions, working @ directions)


def concentration(at: Point, groups: Groups | None) -> Array:
    """Return for every coefficient (p,) one over the number of equal rows or clusters to carry it.

    Cheap beside `contrast_laws`, and near one over its degrees of freedom.
    """
    total, theta, p = at.criterion.total, at.theta, at.criterion.p
    inverse = at.whiten.T @ at.whiten
    if groups is None and is_linear(total):

        def add(part: LinearTotal, mass: Array, square: Array) -> None:
            for block in part.row_terms(theta):
                bend = block.weights * np.maximum(block.curvature, 0.0)
                each = np.square(block.rows @ inverse) * bend[:, None]
                mass += each.sum(axis=0)
                square += np.square(each).sum(axis=0)

        mass, square = total.fold(add, np.zeros(p), np.zeros(p))
    else:
        n, mass, square = at.criterion.n, np.zeros(p), np.zeros(p)
        sets = Groups(np.arange(n), np.arange(n)) if groups is None else groups
        for block in total.cluster_blocks(theta, sets):
            each = np.einsum("gij,ij->gj", block.variances @ inverse, inverse)
            mass += each.sum(axis=0)
            square += np.square(each).sum(axis=0)
    found: Array = square / np.maximum(np.square(mass), 1e-300)
    return found


def carriers(at: Point, groups: Groups | None, correction: str, contrast: Array) -> Array:
    """Return the share (n,) or (G,) of a contrast's variance that each row or cluster carries."""
    direction, total = (at.whiten @ contrast)[:, None], at.criterion.total
    sets = Groups(np.arange(total.n), np.arange(total.n)) if groups is None else groups
    mass = np.zeros(len(sets))
    share = at.criterion.penalty_share(at.theta)
    for block in total.cluster_blocks(at.theta, sets):
        hessians = _whitened(block.hessians + block.weights[:, None, None] * share, at.whiten)
        towards = _leaning(hessians, correction, direction)
        spread = _whitened(block.variances, at.whiten) @ towards
        part = slice(block.first, block.first + len(hessians))
        mass[part] = np.einsum("gpq,gpq->g", towards, spread)
    shares: Array = mass / mass.sum()
    return shares


def _leaning(hessians: Array, correction: str, directions: Array) -> Array:
    """Return the directions (g, p, q) in which the scores of clusters count after a correction."""
    left = np.eye(hessians.shape[1]) - hessians
    if correction[2] == "3":
        return linalg.solve(
            left, np.broadcast_to(directions, (len(left), *directions.shape)), "clusters' Hessians"
        )
    if correction[2] == "2":
        values, vectors = linalg.eigh(left, "clusters' Hessians")
        root = vectors * np.maximum(values, SINGULAR)[:, None, :] ** -0.5
        return root @ (vectors.transpose(0, 2, 1) @ directions)
    return np.broadcast_to(directions, (len(hessians), *directions.shape))


def cluster_parts(
    criterion: Criterion, theta: Array, groups: Groups, centered: bool = True
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return scores (G, p), Hessians with their penalty's share (G, p, p), and who has weight."""
    share, p = criterion.penalty_share(theta), criterion.p
    scores, hessians = np.zeros((len(groups), p)), np.zeros((len(groups), p, p))
    weights = np.zeros(len(groups))
    for block in criterion.total.cluster_blocks(theta, groups):
        rows = slice(block.first, block.first + len(block.scores))
        scores[rows], weights[rows] = block.scores, block.weights
        hessians[rows] = block.hessians + block.weights[:, None, None] * share
    mean = mean_score(criterion, scores.sum(axis=0), centered)
    return scores - weights[:, None] * mean, hessians, weights > 0


def cluster_leverages(criterion: Criterion, theta: Array, hessian: Array, groups: Groups) -> Array:
    """Return the largest eigenvalue of A_g A^{-1} for every cluster (G,): its leverage."""
    whiten, share = linalg.whitener(hessian), criterion.penalty_share(theta)
    out = np.zeros(len(groups))
    for block in criterion.total.cluster_blocks(theta, groups):
        part = whiten @ (block.hessians + block.weights[:, None, None] * share) @ whiten.T
        out[block.first : block.first + len(part)] = linalg.eigvalsh(part, "clusters' Hessians")[
            :, -1
        ]
    return out


def cluster_table(criterion: Criterion, target: Target, kind: str, groups: Groups) -> pd.DataFrame:
    """Return rows, weight, leverage and shift of every cluster, largest leverage first.

    The shift is the largest change of an estimate that the cluster's scores make, in standard
    errors.
    """
    import pandas as pd

    assert target.hessian is not None
    scores, _, _ = cluster_parts(criterion, target.center, groups, target.centered)
    shift = np.abs(linalg.solve(target.hessian, scores.T, "Hessian")).T / target.se
    table = pd.DataFrame(
        {
            "rows": groups.sizes(),
            "weight": groups.weights(criterion.total.weights),
            "leverage": cluster_leverages(criterion, target.center, target.hessian, groups),
            "shift": shift.max(axis=1),
        },
        index=pd.Index(groups.labels, name=kind),
    )
    return table.sort_values("leverage", ascending=False, kind="stable")

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

References
----------
MacKinnon, J. G. and White, H. (1985). J. Econometrics 29, 305-325. Bell, R. M. and McCaffrey, D. F.
(2002). Survey Methodology 28, 169-181. Imbens, G. W. and Kolesar, M. (2016). Rev. Econ. Statist.
98, 701-712. Pustejovsky, J. E. and Tipton, E. (2018). J. Bus. Econ. Statist. 36, 672-683.
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
    LEVERAGE,
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
from etafree.totals.base import ClusterBlock, ClusterTotals
from etafree.totals.linear import LinearTotal, RankOneBlock, is_linear

if TYPE_CHECKING:
    import pandas as pd

#: Smallest eigenvalue of I - A_g A^{-1} that leaves something to estimate from.
SINGULAR = 1e-10


def as_structure(clusters: object, dependence: object) -> Structure | None:
    """Return the structure that a call names; None for independent rows."""
    if dependence is None:
        return None if clusters is None else Clusters(clusters)
    if clusters is not None:
        raise InputError("clusters", "cannot be combined with dependence=", "pass one of them")
    if not isinstance(dependence, Structure):
        advice = "pass ef.Clusters, ef.Survey, ef.TimeSeries or ef.Panel; labels go to clusters="
        raise InputError("dependence", f"is {dependence!r:.60}", advice)
    return dependence


def bind(structure: Structure | None, rows: Rows, copies: bool) -> Dependence:
    """Return a structure bound to rows; None stands for the clusters the rows came with, if any."""
    if structure is None and rows.clusters is not None:
        structure = Clusters(rows.clusters)
    return Independent(rows.used) if structure is None else structure.bind(rows, copies)


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
        There are no labels.

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

    labels: object

    def __init__(self, *labels: object) -> None:
        if not labels:
            raise InputError("clusters", "is empty", "pass labels for every row")
        object.__setattr__(self, "labels", labels[0] if len(labels) == 1 else list(labels))

    def with_labels(self, change: Callable[[object, str], object]) -> Clusters:
        return Clusters(change(self.labels, "clusters"))

    def bind(self, rows: Rows, copies: bool = False) -> OneWay | Ways:
        """Return it bound to rows, as clusters in one way or in several."""
        named = _named_ways(self.labels, rows)
        if named is None:
            return OneWay(rows.groups(self.labels, "clusters"))
        ways = {name: rows.groups(way, f"clusters[{name!r}]") for name, way in named.items()}
        for name, groups in ways.items():
            if len(groups) < 2:
                problem = f"has one cluster only in {name!r}"
                raise InputError("clusters", problem, "at least two must vary independently")
        return OneWay(next(iter(ways.values()))) if len(ways) == 1 else Ways.crossed(ways)


def _named_ways(labels: object, rows: Rows) -> dict[str, object] | None:
    """Return the labels of each way if there are several, else None."""
    if isinstance(labels, Mapping) or hasattr(labels, "columns"):  # as of a DataFrame
        table: Any = labels
        named = {str(name): table[name] for name in getattr(table, "columns", table)}
    elif isinstance(labels, np.ndarray) and labels.ndim == 2:
        named = {f"way {k + 1}": column for k, column in enumerate(labels.T)}
    elif isinstance(labels, list | tuple) and _several(labels, rows):
        names = [way if isinstance(way, str) else getattr(way, "name", None) for way in labels]
        named = {str(names[k] or f"way {k + 1}"): way for k, way in enumerate(labels)}
        if len(named) < len(labels):
            raise InputError("clusters", "has two ways of the same name", "rename one")
    else:
        return None
    if not named:
        raise InputError("clusters", "is empty", "pass labels for every row")
    return named


def _several(labels: Sequence[object], rows: Rows) -> bool:
    """Tell a list of ways (labels or column names) from a list of labels, one per row."""
    if labels and all(isinstance(way, str) for way in labels):
        one_each = len(labels) in (rows.used, rows.original)
        return rows.table is not None and not one_each and set(labels) <= set(rows.table)
    return bool(labels) and all(isinstance(way, str) or _is_column(way) for way in labels)


def _is_column(labels: object) -> bool:
    """Return whether labels have one axis; rows of several lengths are refused further on."""
    try:
        return np.ndim(labels) == 1  # type: ignore[arg-type]
    except ValueError:
        return True


@dataclass(frozen=True, eq=False)
class Independent(Dependence):
    """Rows that do not depend on each other, `rows` of them."""

    rows: int

    corrections = ("HC0", "HC1", "HC2", "HC3")
    defaults = ("HC3", "HC1")
    takes_meat = True
    independent = True
    other_corrections = "the CR corrections need clusters=, EWC, Bartlett and DK need dependence="

    @property
    def groups(self) -> Groups:  # type: ignore[override]
        """Every row as a group of its own."""
        return Groups(np.arange(self.rows), np.arange(self.rows))

    def summed(self, correction: str) -> None:
        """Return None: single rows are taken."""

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum of squared scores, HC0 or HC1."""
        n, p = scores.rows, scores.sums.shape[1]
        factor = n / (n - p) if correction == "HC1" else 1.0
        whitened = factor * scores.sums.T @ scores.sums
        return Meat(*finish(whitened, scores.whiten), np.inf, correction)

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the total from single rows, HC0 to HC3."""
        total = at.criterion.total
        sums = _squared_rows if is_linear(total) else _squared_scores
        whitened, whiten = sums(at, correction)
        if correction == "HC1":
            whitened *= total.small_sample_factor()
        # with n = 60 and p = 10 a 95 % region by chi-square covers 85 %, by Hotelling's law 96 %
        joint = total.count - at.criterion.p if total.count > at.criterion.p else None
        return Meat(*finish(whitened, whiten), np.inf, correction, joint_dof=joint)


@dataclass(frozen=True, eq=False)
class OneWay(Dependence):
    """Rows of one cluster depend on each other in any way, clusters are independent."""

    groups: Groups

    corrections = ("CR0", "CR1", "CR1S", "CR2", "CR3")
    defaults = ("CR3", "CR1")
    takes_meat = True
    argument = "clusters"
    other_corrections = "the HC corrections are for independent observations: drop clusters="

    @property
    def clusters(self) -> Groups:
        return self.groups

    def given(self, matrix: Array, covariance: Array) -> Meat:
        """Return a variance of the total that the user computed, with t and G - 1."""
        count = len(self.groups)
        return Meat(matrix, covariance, count - 1.0, "custom", count, design=f"{count} clusters")

    def check_size(self, weights: Array | None, p: int, fewer: str = "fit") -> None:
        """Refuse clusters too few to span a variance matrix."""
        count = int(np.count_nonzero(self.groups.weights(weights)))
        if count < 2:
            problem = "has one cluster only, and at least two must vary independently"
            raise InputError("clusters", problem, "use finer clusters")
        if count <= p:
            problem = f"are {count} for {p} parameters: their scores cannot span a variance matrix"
            advice = f"{fewer} at most {count - 1} parameter(s), or use finer clusters"
            raise InputError("clusters", problem, advice)

    def row_groups(self) -> Mapping[str, Groups]:
        return {"cluster": self.groups}

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum over clusters of their squared scores: CR0, CR1 or CR1S."""
        count, p = int(np.count_nonzero(scores.weights)), scores.sums.shape[1]
        whitened = scores.sums.T @ scores.sums
        whitened *= small_sample_factor(correction, count, scores.rows, p)
        dof = np.inf if correction == "CR0" else count - 1.0
        matrices = finish(whitened, scores.whiten)
        return Meat(*matrices, dof, correction, count, design=f"{count} clusters")

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the total corrected for leverage: CR2 or CR3."""
        adjusted: tuple[Array, int, Satterthwaite | None] | None = None
        if correction == "CR2" and not at.criterion.total.frequency:
            adjusted = _sampled_clusters(at, self.groups)
        whitened, count, satterthwaite = adjusted or _adjusted(at, self.groups, correction)
        matrices, design = finish(whitened, at.whiten), f"{count} clusters"
        return Meat(*matrices, count - 1.0, correction, count, satterthwaite, design)


def mean_score(criterion: Criterion, gradient: Array, centered: bool) -> Array:
    """Return the weighted mean score, zero when scores are taken as they are."""
    return gradient / criterion.total.weight if centered else np.zeros_like(gradient)


def group_scores(at: Point, totals: ClusterTotals, intercept: int | None) -> GroupScores:
    """Return centred score sums of groups, where the Hessian is the identity."""
    mean = mean_score(at.criterion, totals.sums.sum(axis=0), at.centered)
    sums = (totals.sums - totals.weights[:, None] * mean) @ at.whiten.T
    return GroupScores(sums, at.whiten, totals.weights, at.criterion.total.count, intercept)


def _squared_rows(at: Point, correction: str) -> tuple[Array, Array]:
    """Return the sum of squared row scores where A is the identity, and what takes them there."""
    theta, total = at.theta, at.criterion.total
    assert is_linear(total)
    share = at.whiten @ at.criterion.penalty_share(theta) @ at.whiten.T
    shrink, turn = linalg.eigh(0.5 * (share + share.T), "penalty's Hessian")
    whiten = turn.T @ at.whiten  # coordinates in which the penalty's share is diagonal too
    mean = whiten @ mean_score(at.criterion, at.gradient, at.centered)

    def add(chunk: LinearTotal, whitened: Array) -> None:
        for block in chunk.row_terms(theta):
            z = block.rows @ whiten.T
            score: Array = block.slope[:, None] * z - mean
            if correction in LEVERAGE:
                copies = np.sign(block.weights) if chunk.frequency else block.weights
                score = _adjust_rows(score, z, block, copies, shrink, correction)
            weight = block.weights if chunk.frequency else np.square(block.weights)
            whitened += (score.T * weight) @ score

    (whitened,) = total.fold(add, np.zeros((total.p, total.p)))
    return whitened, whiten


def _squared_scores(at: Point, correction: str) -> tuple[Array, Array]:
    """Return the same for a loss without a linear predictor."""
    total, whiten, weights = at.criterion.total, at.whiten, at.criterion.total.weights
    if correction in LEVERAGE:  # as other packages: a weight is an inverse variance in HC2
        if weights is not None and total.frequency and weights.max() > 1:
            problem = f"{correction!r} takes no frequency weights here"
            raise InputError("correction", problem, "use 'HC1', or repeat the rows")
        return _adjusted(at, Independent(total.n).groups, correction)[0], whiten
    w, scores = np.ones(total.n) if weights is None else weights, total.scores(at.theta)
    mean = mean_score(at.criterion, scores.sum(axis=0), at.centered)
    scores = (scores - w[:, None] * mean) @ whiten.T
    if total.frequency:
        scores = scores[w > 0] / np.sqrt(w[w > 0])[:, None]
    return scores.T @ scores, whiten


def _adjust_rows(
    score: Array, z: Array, block: RankOneBlock, copies: Array, shrink: Array, correction: str
) -> Array:
    """Apply (I - A_i A^{-1})^{-1/2 or -1} to every row's score, A_i = c (b z z' + diag(shrink))."""
    keep = 1.0 - copies[:, None] * shrink
    bend = copies * block.curvature
    q = z / keep
    room = 1.0 - bend * np.einsum("ij,ij->i", z, q)
    if np.any(room <= SINGULAR) or np.any(keep <= SINGULAR):
        worst = block.first + int(np.argmin(np.minimum(room, keep.min(axis=1))))
        alone = f"row {worst} has leverage one, nothing else determines a coefficient"
        advice = "no correction knows its variance: drop the row with its column, or add a penalty"
        raise InputError("correction", f"{correction!r} fails: {alone}", advice)
    if correction == "HC3":
        adjusted: Array = score / keep
        adjusted += q * (bend * np.einsum("ij,ij->i", q, score) / room)[:, None]
        return adjusted
    if not shrink.any():
        square = np.einsum("ij,ij->i", z, z)
        gain = (room**-0.5 - 1.0) / np.where(square > 0, square, 1.0)
        return np.asarray(score + z * (gain * np.einsum("ij,ij->i", z, score))[:, None])
    matrices = -bend[:, None, None] * z[:, :, None] * z[:, None, :]
    matrices[:, np.arange(z.shape[1]), np.arange(z.shape[1])] += keep
    values, vectors = linalg.eigh(matrices, "rows' Hessians")
    inner = np.einsum("nji,nj->ni", vectors, score) * values**-0.5
    return np.asarray(np.einsum("nij,nj->ni", vectors, inner))


def loaded(directions: Array, whiten: Array, names: tuple[str, ...]) -> list[str]:
    """Return the parameters in whose scores these directions (p, k) of whitened ones lie."""
    scale = np.sqrt(np.square(linalg.inv(whiten, "Hessian")).sum(axis=1))  # root of A's diagonal
    share = np.sqrt(np.square(whiten.T @ directions).sum(axis=1)) * scale
    return [names[j] for j in np.flatnonzero(share > 0.1 * share.max())][:8]


def _whitened_blocks(at: Point, groups: Groups) -> Iterator[ClusterBlock]:
    """Yield clusters where A is the identity: centred scores, Hessians with the penalty's share."""
    whiten, share = at.whiten, at.criterion.penalty_share(at.theta)
    mean = mean_score(at.criterion, at.gradient, at.centered)
    for block in at.criterion.total.cluster_blocks(at.theta, groups):
        scores = (block.scores - block.weights[:, None] * mean) @ whiten.T
        hessians = block.hessians + block.weights[:, None, None] * share
        # working variances stay as they are: CR3 does not ask for them
        yield block._replace(scores=scores, hessians=whiten @ hessians @ whiten.T)


def _adjusted(
    at: Point, groups: Groups, correction: str
) -> tuple[Array, int, Satterthwaite | None]:
    """Return B by CR2 or CR3 where A is the identity, the number of clusters and CR2's law."""
    p, count = at.criterion.p, 0
    whitened = np.zeros((p, p))
    laws: list[tuple[Array, Array, Array]] = []
    for block in _whitened_blocks(at, groups):
        present = block.weights > 0
        count += int(np.count_nonzero(present))
        left = np.eye(p) - block.hessians
        _check_left(left, at, groups, block.first, correction)
        if correction[2] == "3":
            adjusted = linalg.solve(left, block.scores[:, :, None], "clusters' Hessians")[:, :, 0]
        else:
            values, vectors = linalg.eigh(left, "clusters' Hessians")
            adjust = (vectors * values[:, None, :] ** -0.5) @ vectors.transpose(0, 2, 1)
            adjusted = np.einsum("gij,gj->gi", adjust, block.scores)
        whitened += adjusted.T @ adjusted
        if correction == "CR2":
            variances = at.whiten @ block.variances @ at.whiten.T
            laws.append((adjust[present], block.hessians[present], variances[present]))
    if not laws:
        return whitened, count, None
    arrays = [np.concatenate(blocks) for blocks in zip(*laws, strict=True)]
    return whitened, count, Satterthwaite.of(at.whiten, *arrays)


def _sampled_clusters(at: Point, groups: Groups) -> tuple[Array, int, Satterthwaite] | None:
    """Return the same for CR2 under sampling weights, None if a cluster's curvature is negative."""
    total, whiten, p = at.criterion.total, at.whiten, at.criterion.p
    mean = mean_score(at.criterion, at.gradient, at.centered)
    share = whiten @ at.criterion.penalty_share(at.theta) @ whiten.T
    blocks: list[tuple[Array, Array]] = []
    unweighted = total.unweighted_blocks(at.theta, groups)
    for block, once in zip(_whitened_blocks(at, groups), unweighted, strict=True):
        _check_left(np.eye(p) - block.hessians, at, groups, block.first, "CR2")
        plain, twice = (whiten @ m @ whiten.T for m in (once.hessians, block.variances))
        weighted = block.hessians - block.weights[:, None, None] * share
        scores = (once.scores - once.weights[:, None] * mean) @ whiten.T, block.scores
        present = block.weights > 0
        gram = np.block([[plain, weighted], [weighted, twice]])
        blocks.append((np.hstack(scores)[present], gram[present]))
    scores_, grams = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    values = linalg.eigvalsh(grams, "clusters' Hessians")
    if np.any(values[:, 0] < -1e-10 * values[:, -1]):
        return None
    working = grams[:, p:, p:].sum(axis=0)
    adjust = sampling_adjustment(grams, working)
    adjusted = np.einsum("gki,gk->gi", adjust, scores_)
    return adjusted.T @ adjusted, len(grams), Satterthwaite(whiten, adjust, grams, working)


def _check_left(left: Array, at: Point, groups: Groups, first: int, correction: str) -> None:
    """Refuse clusters without which, I - A_g A^{-1} being singular, a coefficient is lost."""
    if linalg.cholesky_or_none(left - SINGULAR * np.eye(left.shape[1])) is not None:
        return
    values, vectors = linalg.eigh(left, "clusters' Hessians")
    worst = int(values[:, 0].argmin())
    singular = values[worst] <= max(SINGULAR, values[worst, 0])
    lost = loaded(vectors[worst][:, singular], at.whiten, at.criterion.names)
    raise InputError(
        "clusters",
        f"cluster {groups.labels[first + worst]!s} alone determines {lost} (a dummy for one "
        f"cluster, say), so {correction} cannot leave it out",
        "no variance is known: drop the cluster's rows with these columns, or add a penalty",
    )


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
    """

    dof: Array  #: nu (q,).
    inflation: Array  #: kappa (q,), one for a variance without bias.

    def coverage(self, quantile: Array) -> Array:
        """Return how often an estimate plus or minus `quantile` standard errors covers."""
        from scipy.special import stdtr

        return 2 * stdtr(self.dof, quantile * np.sqrt(self.inflation)) - 1


def contrast_laws(at: Point, groups: Groups | None, correction: str, contrasts: Array) -> Law:
    r"""Return the laws of contrasts (q, p) of independent rows, or of one-way clusters.

    With p_g the direction in which cluster g's scores count for a contrast, after its correction
    for leverage, :math:`\Lambda_{gh}=p_g^\top\mathrm{cov}(\hat\psi_g,\hat\psi_h)p_h`, its
    :math:`\nu=(\mathrm{tr}\Lambda)^2/\|\Lambda\|_F^2`, and :math:`\kappa` is its trace over the
    variance of the contrast. No G x G matrix is formed (Bell and McCaffrey; Imbens and Kolesar).
    """
    total, p = at.criterion.total, at.criterion.p
    directions = at.whiten @ np.atleast_2d(contrasts).T  # (p, q)
    if groups is None and is_linear(total):
        trace, square, truth = _row_sums(at, correction, directions)
    else:
        trace, square, truth = _cluster_sums(at, _sets(at, groups), correction, directions)
    factor = total.small_sample_factor() if correction == "HC1" else 1.0
    if correction in ("CR1", "CR1S") and groups is not None:
        count = int(np.count_nonzero(groups.weights(total.weights) > 0))
        factor = small_sample_factor(correction, count, total.count, p)
    return Law(trace**2 / square, factor * trace / truth)


def _sets(at: Point, groups: Groups | None) -> Groups:
    """Return the clusters, single rows if there are none."""
    return Independent(at.criterion.n).groups if groups is None else groups


def _row_sums(at: Point, correction: str, directions: Array) -> tuple[Array, Array, Array]:
    """Return trace and squared norm of Lambda, and the true variance, for independent rows."""
    # what is folded goes to workers with what it refers to: arrays, never the criterion
    theta, whiten, total = at.theta, at.whiten, at.criterion.total
    assert is_linear(total)
    p, q = directions.shape
    power = {"HC2": 0.5, "HC3": 1.0}.get(correction, 0.0)

    def terms(chunk: LinearTotal) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
        """Yield whitened rows, their curvatures, weights in a score and copies, and leverages."""
        for block in chunk.row_terms(theta):
            z, bend = block.rows @ whiten.T, np.maximum(block.curvature, 0.0)
            once, times = np.sign(block.weights), block.weights
            if not chunk.frequency:
                once, times = times, once
            yield z, bend, once, times, once * bend * np.einsum("ij,ij->i", z, z)

    def spread(chunk: LinearTotal, working: Array) -> None:
        for z, bend, once, times, _ in terms(chunk):
            working += (z.T * (times * np.square(once) * bend)) @ z

    (working,) = total.fold(spread, np.zeros((p, p)))

    powers = (0,) if total.frequency else (0, 1, 2)  # of a weight; copies weigh one each

    def add(chunk: LinearTotal, trace: Array, square: Array, grams: Array) -> None:
        for z, bend, once, times, leverage in terms(chunk):
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
    """Return the same for one-way clusters."""
    p, q = directions.shape
    own, own_square, cross, own_cross = (np.zeros(q) for _ in range(4))
    moved, own_moved = np.zeros((q, p, p)), np.zeros((q, p, p))
    gram, working = np.zeros((q, 2 * p, 2 * p)), np.zeros((p, p))
    for block in _whitened_blocks(at, groups):
        variances = at.whiten @ block.variances @ at.whiten.T
        towards = _leaning(block.hessians, correction, directions)  # (g, p, q)
        u, v = block.hessians @ towards, variances @ towards
        each, both = np.einsum("gpq,gpq->gq", towards, v), np.einsum("gpq,gpq->gq", u, v)
        own += each.sum(axis=0)
        own_square += np.square(each).sum(axis=0)
        cross += both.sum(axis=0)
        own_cross += (each * both).sum(axis=0)
        moved += np.einsum("giq,gjq->qij", u, u, optimize=True)
        own_moved += np.einsum("gq,giq,gjq->qij", each, u, u, optimize=True)
        z = np.concatenate([u, v], axis=1)
        gram += np.einsum("giq,gjq->qij", z, z, optimize=True)
        working += variances.sum(axis=0)
    turned = working_covariance_of_residuals(working) @ gram
    trace = own + np.einsum("qij,ji->q", moved, working) - 2 * cross
    square = own_square + 2 * (np.einsum("qij,ji->q", own_moved, working) - 2 * own_cross)
    square = square + np.einsum("qij,qji->q", turned, turned)
    return trace, square, np.einsum("ij,ij->j", directions, working @ directions)


def influences(at: Point, groups: Groups | None, correction: str) -> Array:
    r"""Return what each row or cluster adds to the estimate, :math:`-A^{-1}\psi_g`, (m, p).

    Scores are those that the correction squares; without their share of the Hessian, plain ones.
    """
    sets, total = _sets(at, groups), at.criterion.total
    if correction not in LEVERAGE or "leverage" not in total.traits:
        sums = group_scores(at, total.cluster_totals(at.theta, sets), None).sums
        return -sums @ at.whiten
    scores = np.zeros((len(sets), total.p))
    for block in _whitened_blocks(at, sets):
        left = np.eye(total.p) - block.hessians
        adjusted = block.scores[:, :, None]
        if correction[2] == "3":
            adjusted = linalg.solve(left, adjusted, "clusters' Hessians")
        else:
            values, vectors = linalg.eigh(left, "clusters' Hessians")
            root = vectors * np.maximum(values, SINGULAR)[:, None, :] ** -0.5
            adjusted = root @ (vectors.transpose(0, 2, 1) @ adjusted)
        scores[block.first : block.first + len(left)] = adjusted[:, :, 0]
    return -scores @ at.whiten


def concentration(at: Point, groups: Groups | None) -> Array:
    """Return about one over the degrees of freedom of each coefficient (p,), at little cost.

    That is one over the number of equal rows or clusters that would carry it.
    """
    theta, total, p = at.theta, at.criterion.total, at.criterion.p
    inverse = at.whiten.T @ at.whiten
    mass, square = np.zeros(p), np.zeros(p)
    if groups is None and is_linear(total):

        def add(chunk: LinearTotal, mass: Array, square: Array) -> None:
            for block in chunk.row_terms(theta):
                bend = block.weights * np.maximum(block.curvature, 0.0)
                each = np.square(block.rows @ inverse) * bend[:, None]
                mass += each.sum(axis=0)
                square += np.square(each).sum(axis=0)

        mass, square = total.fold(add, mass, square)
    else:
        for block in total.cluster_blocks(theta, _sets(at, groups)):
            each = np.einsum("gij,ij->gj", block.variances @ inverse, inverse)
            mass += each.sum(axis=0)
            square += np.square(each).sum(axis=0)
    return np.asarray(square / np.maximum(np.square(mass), 1e-300))


def carriers(at: Point, groups: Groups | None, correction: str, contrast: Array) -> Array:
    """Return the share (n,) or (G,) of a contrast's variance that each row or cluster carries."""
    sets, direction = _sets(at, groups), (at.whiten @ contrast)[:, None]
    mass = np.zeros(len(sets))
    for block in _whitened_blocks(at, sets):
        towards = _leaning(block.hessians, correction, direction)
        spread = at.whiten @ block.variances @ at.whiten.T @ towards
        mass[block.first : block.first + len(spread)] = np.einsum("gpq,gpq->g", towards, spread)
    return np.asarray(mass / mass.sum())


def _leaning(hessians: Array, correction: str, directions: Array) -> Array:
    """Return the directions (g, p, q) in which the scores of clusters count after a correction."""
    left = np.eye(hessians.shape[1]) - hessians
    same = np.broadcast_to(directions, (len(left), *directions.shape))
    if correction[2] == "3":
        return linalg.solve(left, same, "clusters' Hessians")
    if correction[2] == "2":
        values, vectors = linalg.eigh(left, "clusters' Hessians")
        root = vectors * np.maximum(values, SINGULAR)[:, None, :] ** -0.5
        return root @ (vectors.transpose(0, 2, 1) @ directions)
    return same


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


def cluster_leverages(hessians: Array, hessian: Array) -> Array:
    """Return the largest eigenvalue of A_g A^{-1} for every cluster (G,): its leverage."""
    whiten = linalg.whitener(hessian)
    return linalg.eigvalsh(whiten @ hessians @ whiten.T, "clusters' Hessians")[:, -1]


def cluster_table(criterion: Criterion, target: Target, kind: str, groups: Groups) -> pd.DataFrame:
    """Return rows, weight, leverage and shift (in standard errors) of clusters, by leverage."""
    import pandas as pd

    assert target.hessian is not None
    scores, hessians, _ = cluster_parts(criterion, target.center, groups, target.centered)
    shift = np.abs(linalg.solve(target.hessian, scores.T, "Hessian")).T / target.se
    columns = {
        "rows": groups.sizes(),
        "weight": groups.weights(criterion.total.weights),
        "leverage": cluster_leverages(hessians, target.hessian),
        "shift": shift.max(axis=1),
    }
    table = pd.DataFrame(columns, index=pd.Index(groups.labels, name=kind))
    return table.sort_values("leverage", ascending=False, kind="stable")

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
CR3    :math:`(I-A_gA^{-1})^{-1}\psi_g` (the jackknife)    the same, over :math:`\sqrt\kappa`
=====  ==================================================  =========================

HC0 to HC3 treat every observation as its own cluster, HC1 with :math:`n/(n-p)`; HC0 and HC1 refer
to the normal. Few rows or clusters may carry a coefficient, whatever their number: degrees of
freedom :math:`\nu` and the factor :math:`\kappa` by which a variance is too large follow, for every
contrast, from the working model in which scores vary as the Hessian says (`contrast_laws`).
Matrices are computed in coordinates where the total Hessian is the identity, so they do not depend
on units. What nuisance values add to scores (`etafree.totals.nuisance`), :math:`D\iota_g`, is added
to cluster scores after their correction; laws are those of :math:`\psi_g`.

References
----------
MacKinnon, J. G. and White, H. (1985). J. Econometrics 29, 305-325. Bell, R. M. and McCaffrey, D. F.
(2002). Survey Methodology 28, 169-181. Imbens, G. W. and Kolesar, M. (2016). Rev. Econ. Statist.
98, 701-712. Pustejovsky, J. E. and Tipton, E. (2018). J. Bus. Econ. Statist. 36, 672-683.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_pandas
from etafree.foundation.terminal import counted_noun
from etafree.foundation.threads import sum_in_threads
from etafree.target import (
    Law,
    Laws,
    Satterthwaite,
    ScoreLaws,
    Target,
    sampling_adjustment,
    working_covariance_of_residuals,
)
from etafree.totals.base import ClusterBlock, GroupSums
from etafree.totals.linear import LinearTotal, RankOneBlock, is_linear
from etafree.totals.nuisance import Stacked

if TYPE_CHECKING:
    import pandas as pd

    from etafree.dependence.ways import Ways

#: Smallest eigenvalue of I - A_g A^{-1} that leaves something to estimate from.
SINGULAR = 1e-10
#: Share of a coefficient's direction that is rounding.
LOST = 1e-12
#: Degrees of freedom of which a lower bound is enough, and work to be spent on others: products of
#: rows and squared parameters.
MANY, WORK = 1000.0, 4e9
#: Numbers that the laws of contrasts may take in a file.
STORED = 2_000_000


def as_structure(clusters: object, dependence: object) -> Structure | None:
    """Return the structure that a call names; None for independent rows."""
    if dependence is None:
        return None if clusters is None else Clusters(clusters)
    if clusters is not None:
        raise InputError("clusters", "cannot be combined with dependence=", "pass one of them")
    if not isinstance(dependence, Structure):
        kinds = "ef.Clusters, ef.Survey, ef.ReplicateWeights, ef.TimeSeries or ef.Panel"
        advice = f"pass {kinds}; pass labels as clusters="
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
        Several labels, or one mapping, DataFrame, (n, k) array or list of labels, are multiway
        clusters: rows may depend on each other if they share a cluster in any of them.

    Raises
    ------
    InputError
        There are no labels.

    See Also
    --------
    etafree.calibrate, etafree.target : Pass it as ``dependence=``.

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
        from etafree.dependence.ways import Ways  # which are made of clusters in one way

        labels = self.labels if isinstance(self.labels, np.ndarray) else as_pandas(self.labels)
        named = _named_ways(labels, rows)
        if named is None:
            label = _column_name(labels) or _column_name(self.labels)  # a column of polars has one
            label = labels if isinstance(labels, str) else label
            return OneWay(rows.groups(labels, "clusters"), label)
        ways = {name: rows.groups(way, f"clusters[{name!r}]") for name, way in named.items()}
        for name, groups in ways.items():
            if len(groups) < 2:
                problem = f"has only one cluster in {name!r}"
                raise InputError("clusters", problem, "at least two must vary independently")
        if len(ways) > 1:
            return Ways.crossed(ways)
        (label, groups), *_ = ways.items()
        return OneWay(groups, "" if label == "way 1" else label)


def _column_name(labels: object) -> str:
    """Return the name of a Series, none for other labels."""
    name = getattr(labels, "name", None)
    return name if isinstance(name, str) else ""


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
            raise InputError("clusters", "names two clusterings alike", "rename one")
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
        whitened, whiten, moments = sums(at, correction)
        if correction == "HC1":
            whitened *= total.small_sample_factor()
        # with n = 60 and p = 10 a 95 % region by chi-square covers 85 %, by Hotelling's law 96 %
        count, p = total.count, at.criterion.p
        joint = count - (p if count > p else effective_parameters(at))
        matrices = finish(whitened, whiten)
        if moments is None and at.laws and correction in LEVERAGE:
            return with_score_laws(Meat(*matrices, np.inf, correction), at, None)
        if moments is None:
            return Meat(*matrices, np.inf, correction, joint_dof=joint)
        dof, inflation = _coefficient_laws(at, None, correction, moments)
        laws = LeverageLaws(at, None, correction)
        return Meat(*matrices, dof, correction, joint_dof=joint, inflation=inflation, laws=laws)


@dataclass(frozen=True, eq=False)
class OneWay(Dependence):
    """Rows of one cluster depend on each other in any way, clusters are independent."""

    groups: Groups
    label: str = ""

    corrections = ("CR0", "CR1", "CR1S", "CR2", "CR3")
    defaults = ("CR3", "CR1")
    takes_meat = True
    argument = "clusters"
    other_corrections = "the HC corrections are for independent observations: drop clusters="

    @property
    def clusters(self) -> Groups:
        return self.groups

    def narrowed(self, at: Point) -> Point | None:
        return narrowed(at, [self.groups])

    def given(self, matrix: Array, covariance: Array) -> Meat:
        """Return a variance of the total that the user computed, with t and G - 1."""
        count = len(self.groups)
        return Meat(matrix, covariance, count - 1.0, "custom", count, design=f"{count} clusters")

    def check_size(self, weights: Array | None, p: int, fewer: str = "fit") -> None:
        """Refuse clusters too few to span a variance matrix."""
        count = int(np.count_nonzero(self.groups.weights(weights)))
        if count < 2:
            problem = "has only one cluster, and at least two must vary independently"
            raise InputError("clusters", problem, "use finer clusters")
        if count <= p:
            problem = f"are {count} for {p} parameters: their scores cannot span a variance matrix"
            advice = (
                f"{fewer} at most {counted_noun(count - 1, 'parameter')}, or use finer clusters"
            )
            raise InputError("clusters", problem, advice)

    def row_groups(self) -> Mapping[str, Groups]:
        return {"cluster": self.groups}

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum over clusters of their squared scores: CR0, CR1 or CR1S."""
        count, p = int(np.count_nonzero(scores.weights)), scores.whiten.shape[1]
        whitened = scores.sums.T @ scores.sums
        whitened *= small_sample_factor(correction, count, scores.rows, p)
        dof = np.inf if correction == "CR0" else count - 1.0
        matrices = finish(whitened, scores.whiten)
        return Meat(*matrices, dof, correction, count, design=f"{count} clusters")

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the total corrected for leverage: CR2 or CR3."""
        sampled = None
        total = at.criterion.total
        if correction == "CR2" and not total.frequency and "rows" in total.traits:
            sampled = _sampled_clusters(at, self.groups)
        laws: Laws
        if sampled is not None:
            whitened, count, laws = sampled
            dof, inflation = laws.single(np.eye(at.criterion.p))
        else:
            whitened, count, moments = _adjusted(at, self.groups, correction)
            if moments is None:
                matrices, design = finish(whitened, at.whiten), f"{count} clusters"
                meat = Meat(*matrices, count - 1.0, correction, count, design=design)
                return with_score_laws(meat, at, self.groups) if at.laws else meat
            dof, inflation = _coefficient_laws(at, self.groups, correction, moments)
            laws = LeverageLaws(at, self.groups, correction)
        matrices, design = finish(whitened, at.whiten), f"{count} clusters"
        return Meat(
            *matrices, dof, correction, count, design=design, inflation=inflation, laws=laws
        )


def narrowed(at: Point, clusterings: Iterable[Groups]) -> Point | None:
    r"""Return the point without directions that one cluster alone determines.

    Along such a direction n, :math:`A_hn=0` for all clusters but one: that of a cluster's own
    dummy, say. What else is estimated without that cluster does not depend on n. So everything is
    taken in the other coordinates, which every :math:`A_g` maps to themselves: the others'
    coefficients have what they have in a regression of deviations from the means of clusters. None
    if there is no such direction, or no coefficient is left.
    """
    criterion = at.criterion
    if criterion.strength > 0 or "moments" in criterion.total.traits:
        return None
    lone = np.hstack([lone_directions(at, groups) for groups in clusterings])
    inner = _across(at, lone)
    return inner if lone.size and len(estimable(inner, at)) else None


def lone_directions(at: Point, groups: Groups) -> Array:
    r"""Return directions (p, f), where A is the identity, that one cluster alone determines.

    At the minimiser no cluster has a score along them. Few clusters have none along others too, but
    only for these :math:`\sum_g\|A_gv\|^2=\|v\|^2`.
    """
    totals = at.criterion.total.group_sums(at.theta, groups)
    scores = totals.sums @ at.whiten.T
    values, vectors = linalg.eigh(scores.T @ scores, "scores")
    silent = vectors[:, values <= linalg.rounding(len(values)) * values[-1]]
    if not silent.size or len(estimable(_across(at, silent), at)):
        return silent
    seen = np.zeros((silent.shape[1], silent.shape[1]))
    for block in whitened_blocks(at, groups):
        along = block.hessians @ silent
        seen += np.einsum("gij,gik->jk", along, along)
    shares, turn = linalg.eigh(seen, "clusters' Hessians")
    return np.asarray(silent @ turn[:, shares > 1.0 - 1e-8])


def _across(at: Point, directions: Array) -> Point:
    """Return the point in coordinates orthogonal to directions (p, f)."""
    values, vectors = linalg.eigh(directions @ directions.T, "scores")
    return at._replace(whiten=vectors[:, values < 1e-8].T @ at.whiten)


def estimable(inner: Point, at: Point) -> NDArray[np.intp]:
    """Return the coefficients that lie in the directions that are left of a point."""
    left = np.square(inner.whiten).sum(axis=0) / np.square(at.whiten).sum(axis=0)
    return np.flatnonzero(left > 1.0 - LOST)


def effective_parameters(at: Point) -> float:
    r"""Return how many parameters the rows determine.

    A penalty determines the others: :math:`p-\mathrm{tr}(A^{-1}\nabla^2\lambda s_n\rho)`.
    """
    p, total = at.criterion.p, at.criterion.total
    share = total.weight * at.criterion.penalty_share(at.theta)
    return float(p - np.einsum("ij,jk,ik->", at.whiten, share, at.whiten, optimize=True))


def with_score_laws(meat: Meat, at: Point, groups: Groups | None) -> Meat:
    """Return a variance of rows or clusters with laws that no working model is needed for."""
    each = influences(at, groups, meat.correction)
    laws = ScoreLaws(each[np.any(each != 0, axis=1)])
    dof, inflation = laws.single(np.eye(at.criterion.p))
    return replace(meat, dof=dof, inflation=inflation, laws=laws)


def mean_score(criterion: Criterion, gradient: Array, centered: bool) -> Array:
    """Return the weighted mean score, zero when scores are taken as they are."""
    return gradient / criterion.total.weight if centered else np.zeros_like(gradient)


def group_scores(
    at: Point, totals: GroupSums, groups: Groups, intercept: int | None
) -> GroupScores:
    """Return centred score sums of groups, where the Hessian is the identity.

    With what estimated nuisance values add to them.
    """
    mean = mean_score(at.criterion, totals.sums.sum(axis=0), at.centered)
    sums = (totals.sums - totals.weights[:, None] * mean) @ at.whiten.T
    added = at.added(groups)
    sums = sums if added is None else sums + added
    return GroupScores(sums, at.whiten, totals.weights, at.criterion.total.count, intercept)


class Moments(NamedTuple):
    r"""Sums over rows or clusters that the laws of contrasts follow from, (q,) each.

    With :math:`\Lambda` as in `contrast_laws`: its trace; :math:`\|\Lambda\|_F^2` or, where it is
    not `exact`, the upper bound :math:`\sum_g a_g^2` of variances :math:`a_g=p_g^\top Q_gp_g` of
    the parts; and the true variances.
    """

    trace: Array
    square: Array
    truth: Array
    exact: bool = True

    def law(self, factor: float = 1.0) -> Law:
        """Return the laws, of variances times a factor.

        Where the loss is not convex parts may be negative, and such a sum may tell nothing: then
        there is one degree of freedom, and no bias.
        """
        known = (self.trace > 0) & (self.square > 0) & (self.truth > 0)
        trace, square, truth = (np.where(known, sums, 1.0) for sums in self[:3])
        return Law(trace**2 / square, np.where(known, factor * trace / truth, 1.0))


def _coefficient_laws(at: Point, groups: Groups | None, correction: str, moments: Moments) -> Law:
    """Return the laws of all coefficients.

    Where the bound says that degrees of freedom are many it is taken for them: t quantiles do not
    tell the difference. Of the rest, those with the fewest are computed first.
    """
    p, n, law = at.criterion.p, at.criterion.n, moments.law()
    few = np.flatnonzero(law.dof < (0.0 if moments.exact else MANY))
    few = few[np.argsort(law.dof[few], kind="stable")][: int(max(WORK / (n * p**2), 1))]
    if len(few):
        law.dof[few] = contrast_laws(at, groups, correction, np.eye(p)[few]).dof
    return law


@dataclass(frozen=True, eq=False)
class LeverageLaws:
    """Laws of contrasts under a correction for leverage, computed when they are asked for."""

    at: Point
    groups: Groups | None  #: None for independent rows.
    correction: str

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        return contrast_laws(self.at, self.groups, self.correction, contrasts)

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return the parameters of Hotelling's distribution of several contrasts jointly."""
        return self.whole().joint(contrasts)

    @property
    def storable(self) -> bool:
        """Whether `whole` is small enough for a file."""
        numbers = 3 * len(_sets(self.at, self.groups)) * len(self.at.whiten) ** 2
        return "memory" in self.at.criterion.total.traits and numbers <= STORED

    def whole(self) -> Satterthwaite:
        """Return the matrices of every row or cluster that the laws of any contrasts need."""
        at, k, blocks = self.at, len(self.at.whiten), []
        alone = self.groups is None and is_linear(at.criterion.total)
        for block in whitened_blocks(at, _sets(at, self.groups)):
            present = block.weights > 0
            hessians, variances = block.hessians[present], block.variances[present]
            variances = at.whiten @ variances @ at.whiten.T
            if alone:  # as for single contrasts: no share of the penalty, no negative curvature
                share = at.whiten @ at.criterion.penalty_share(at.theta) @ at.whiten.T
                hessians = hessians - block.weights[present, None, None] * share
                bent = np.trace(hessians, axis1=1, axis2=2) > 0
                hessians, variances = (m * bent[:, None, None] for m in (hessians, variances))
            blocks.append((_leaning(hessians, self.correction, np.eye(k)), hessians, variances))
        arrays = [np.concatenate(several) for several in zip(*blocks, strict=True)]
        return Satterthwaite.of(at.whiten, *arrays)


def _squared_rows(at: Point, correction: str) -> tuple[Array, Array, Moments | None]:
    """Return the sum of squared row scores where A is the identity, and what takes them there.

    For a correction by leverage, also what the laws of coefficients are bounded by.
    """
    theta, total = at.theta, at.criterion.total
    assert is_linear(total)
    share = at.whiten @ at.criterion.penalty_share(theta) @ at.whiten.T
    shrink, turn = linalg.eigh(0.5 * (share + share.T), "penalty's Hessian")
    whiten = turn.T @ at.whiten  # coordinates in which the penalty's share is diagonal too
    mean = whiten @ mean_score(at.criterion, at.gradient, at.centered)
    leverages, (k, p), stacked = correction in LEVERAGE, whiten.shape, at.stacked
    working = _working_variance(at, whiten) if leverages and at.laws else None
    power = 1.0 if correction == "HC3" else 0.5

    def add(chunk: LinearTotal, whitened: Array, trace: Array, square: Array) -> None:
        for block in chunk.row_terms(theta):
            z = block.rows @ whiten.T
            score: Array = block.slope[:, None] * z - mean
            once, times = np.sign(block.weights), block.weights
            if not chunk.frequency:
                once, times = times, once
            if leverages:
                score = _adjust_rows(score, z, block, once, shrink, correction)
            if working is not None:
                each, own = _row_variances(z, block.curvature, once, whiten, working, power)
                trace += (times * own) @ each
                square += times @ np.square(each)
            if stacked is not None:
                rows = slice(block.first, block.first + len(score))
                score = score + stacked.influence[rows] @ (whiten @ stacked.slope).T
            weight = block.weights if chunk.frequency else np.square(block.weights)
            whitened += (score.T * weight) @ score

    whitened, trace, square = total.fold(add, np.zeros((k, k)), np.zeros(p), np.zeros(p))
    if working is None:
        return whitened, whiten, None
    truth = np.einsum("ij,ij->j", whiten, working @ whiten)
    return whitened, whiten, Moments(trace, square, truth, exact=False)


def _working_variance(at: Point, whiten: Array) -> Array:
    """Return the variance (p, p) of the total score under the working model, whitened."""
    theta, total, k = at.theta, at.criterion.total, len(whiten)
    assert is_linear(total)
    if total.frequency:  # the Hessian of the loss
        loss = at.hessian - total.weight * at.criterion.penalty_share(theta)
        if at.criterion.loss.convex:
            return whiten @ loss @ whiten.T

    def spread(chunk: LinearTotal, working: Array) -> None:
        for block in chunk.row_terms(theta):
            z, bend = block.rows @ whiten.T, np.maximum(block.curvature, 0.0)
            weight = block.weights if chunk.frequency else np.square(block.weights)
            working += (z.T * (weight * bend)) @ z

    (working,) = total.fold(spread, np.zeros((k, k)))
    return np.asarray(working)


def _row_variances(
    z: Array, curvature: Array, once: Array, directions: Array, working: Array, power: float
) -> tuple[Array, Array]:
    """Return the parts (b, q) of rows in the variances of contrasts, and what residuals keep (b,).

    `once` is what a row weighs in a score, `power` that of 1 - leverage in a score's correction.
    """
    bend = np.maximum(curvature, 0.0)
    square = np.einsum("ij,ij->i", z, z)
    room = np.maximum(1.0 - once * bend * square, SINGULAR) ** (-2 * power)
    each = np.square(z @ directions)
    each *= (np.square(once) * bend * room)[:, None]
    turned = np.einsum("ij,ij->i", z @ working, z)
    return each, 1.0 + bend * (turned - 2 * once * square)


def _squared_scores(at: Point, correction: str) -> tuple[Array, Array, Moments | None]:
    """Return the same for a loss without a linear predictor."""
    total, whiten, weights = at.criterion.total, at.whiten, at.criterion.total.weights
    if correction in LEVERAGE:  # as other packages: a weight is an inverse variance in HC2
        whitened, _, moments = _adjusted(at, Independent(total.n).groups, correction)
        return whitened, whiten, moments
    if "memory" not in total.traits:  # moments, of which sums of squares are known
        form = total.form(at.theta)
        direction = form.direction @ whiten.T
        return direction.T @ form.spread @ direction, whiten, None
    w, scores = np.ones(total.n) if weights is None else weights, total.scores(at.theta)
    mean = mean_score(at.criterion, scores.sum(axis=0), at.centered)
    scores = (scores - w[:, None] * mean) @ whiten.T
    added = at.added(Independent(total.n).groups)
    scores = scores if added is None else scores + added
    if total.frequency:
        scores = scores[w > 0] / np.sqrt(w[w > 0])[:, None]
    return scores.T @ scores, whiten, None


def _adjust_rows(
    score: Array, z: Array, block: RankOneBlock, copies: Array, shrink: Array, correction: str
) -> Array:
    """Apply (I - A_i A^{-1})^{-1/2 or -1} to every row's score, A_i = c (b z z' + diag(shrink))."""
    keep = 1.0 - copies[:, None] * shrink
    bend = copies * block.curvature
    q = z / keep
    room = 1.0 - bend * np.einsum("ij,ij->i", z, q)
    if np.any(room <= SINGULAR) or np.any(keep <= SINGULAR):
        worst = block.first + int(np.argmax(np.minimum(room, keep.min(axis=1)) <= SINGULAR))
        alone = f"row {worst} has leverage one, nothing else determines a coefficient"
        advice = "its variance cannot be estimated: drop the row with its column, or add a penalty"
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


def whitened_blocks(at: Point, groups: Groups) -> Iterator[ClusterBlock]:
    """Yield clusters where A is the identity: centred scores, Hessians with the penalty's share."""
    whiten, share = at.whiten, at.criterion.penalty_share(at.theta)
    mean = mean_score(at.criterion, at.gradient, at.centered)
    for block in at.criterion.total.cluster_blocks(at.theta, groups):
        scores = (block.scores - block.weights[:, None] * mean) @ whiten.T
        hessians = whiten @ (block.hessians + block.weights[:, None, None] * share) @ whiten.T
        # working variances are not whitened, which CR3 by itself does not ask for
        yield block._replace(scores=scores, hessians=hessians)


def _working_parts(at: Point, block: ClusterBlock) -> Array:
    """Return the working variances of a block's clusters, whitened: often its Hessians."""
    criterion = at.criterion
    plain = criterion.strength == 0 and criterion.total.frequency and criterion.loss.convex
    if plain and is_linear(criterion.total):
        return block.hessians
    return at.whiten @ block.variances @ at.whiten.T


def _adjusted(at: Point, groups: Groups, correction: str) -> tuple[Array, int, Moments | None]:
    """Return B by CR2 or CR3 where A is the identity, the number of clusters and their moments."""
    whiten, (k, p), exact = at.whiten, at.whiten.shape, len(groups) < MANY
    added, laws = at.added(groups), at.laws and "moments" not in at.criterion.total.traits

    def work(block: ClusterBlock) -> tuple[Array, int, ClusterParts]:
        parts = ClusterParts(k, p, exact)
        _check_left(np.eye(k) - block.hessians, at, groups, block.first, correction)
        both = block.scores[:, :, None]
        if laws:  # scores and directions at once
            same = np.broadcast_to(whiten, (len(block.scores), k, p))
            both = np.concatenate([both, same], axis=2)
        both = _leaning(block.hessians, correction, both)
        adjusted = both[:, :, 0]
        if added is not None:
            adjusted = adjusted + added[block.first : block.first + len(adjusted)]
        if laws:
            parts.add(block.hessians, _working_parts(at, block), both[:, :, 1:])
        return adjusted.T @ adjusted, int(np.count_nonzero(block.weights > 0)), parts

    blocks, total = whitened_blocks(at, groups), at.criterion.total
    whitened, count, parts = sum_in_threads(work, blocks, total.n * total.p)
    return whitened, count, parts.moments(whiten) if laws else None


class ClusterParts:
    """Sums over clusters from which trace and norm of Lambda follow, for q contrasts."""

    def __init__(self, p: int, q: int, exact: bool) -> None:
        self.exact = exact
        self.own, self.square = np.zeros(q), np.zeros(q)
        self.moved, self.own_moved = np.zeros((q, p, p)), np.zeros((q, p, p))
        self.gram, self.working = np.zeros((q, 2 * p, 2 * p)), np.zeros((p, p))

    def add(self, hessians: Array, variances: Array, towards: Array) -> None:
        """Add clusters: Hessians and working variances (g, p, p), directions (g, p, q)."""
        u = hessians @ towards
        v = u if variances is hessians else variances @ towards
        each, both = np.einsum("gpq,gpq->gq", towards, v), np.einsum("gpq,gpq->gq", u, v)
        self.own += (each - 2 * both).sum(axis=0)
        self.square += np.square(each).sum(axis=0)
        self.working += variances.sum(axis=0)
        turned = np.ascontiguousarray(u.transpose(2, 0, 1))  # (q, g, p)
        self.moved += turned.transpose(0, 2, 1) @ turned
        if self.exact:
            self.square -= 4 * (each * both).sum(axis=0)
            self.own_moved += (turned.transpose(0, 2, 1) * each.T[:, None, :]) @ turned
            z = np.concatenate([turned, v.transpose(2, 0, 1)], axis=2)
            self.gram += z.transpose(0, 2, 1) @ z

    def __iadd__(self, other: ClusterParts) -> ClusterParts:
        for name in ("own", "square", "moved", "own_moved", "gram", "working"):
            getattr(self, name)[...] += getattr(other, name)
        return self

    def moments(self, directions: Array) -> Moments:
        """Return the moments of contrasts whose whitened directions are (p, q)."""
        trace = self.own + np.einsum("qij,ji->q", self.moved, self.working)
        square = self.square.copy()
        if self.exact:
            turned = working_covariance_of_residuals(self.working) @ self.gram
            square += 2 * np.einsum("qij,ji->q", self.own_moved, self.working)
            square += np.einsum("qij,qji->q", turned, turned)
        truth = np.einsum("ij,ij->j", directions, self.working @ directions)
        return Moments(trace, square, truth, self.exact)


def _sampled_clusters(at: Point, groups: Groups) -> tuple[Array, int, Satterthwaite] | None:
    """Return the same for CR2 under sampling weights, None if a cluster's curvature is negative."""
    total, whiten, k = at.criterion.total, at.whiten, len(at.whiten)
    mean = mean_score(at.criterion, at.gradient, at.centered)
    share = whiten @ at.criterion.penalty_share(at.theta) @ whiten.T
    blocks: list[tuple[Array, Array]] = []
    present_at: list[NDArray[np.intp]] = []
    unweighted = total.unweighted_blocks(at.theta, groups)
    for block, once in zip(whitened_blocks(at, groups), unweighted, strict=True):
        _check_left(np.eye(k) - block.hessians, at, groups, block.first, "CR2")
        plain, twice = (whiten @ m @ whiten.T for m in (once.hessians, block.variances))
        weighted = block.hessians - block.weights[:, None, None] * share
        scores = (once.scores - once.weights[:, None] * mean) @ whiten.T, block.scores
        present = block.weights > 0
        gram = np.block([[plain, weighted], [weighted, twice]])
        blocks.append((np.hstack(scores)[present], gram[present]))
        present_at.append(block.first + np.flatnonzero(present))
    scores_, grams = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    values = linalg.eigvalsh(grams, "clusters' Hessians")
    if np.any(values[:, 0] < -1e-10 * values[:, -1]):
        return None
    working = grams[:, k:, k:].sum(axis=0)
    adjust = sampling_adjustment(grams, working)
    adjusted, added = np.einsum("gki,gk->gi", adjust, scores_), at.added(groups)
    adjusted = adjusted if added is None else adjusted + added[np.concatenate(present_at)]
    return adjusted.T @ adjusted, len(grams), Satterthwaite(whiten, adjust, grams, working)


def _check_left(left: Array, at: Point, groups: Groups, first: int, correction: str) -> None:
    """Refuse clusters without which, I - A_g A^{-1} being singular, a coefficient is lost."""
    if "moments" in at.criterion.total.traits:  # not symmetric: by squared singular values
        left = np.swapaxes(left, 1, 2) @ left
    if linalg.cholesky_or_none(left - SINGULAR * np.eye(left.shape[1])) is not None:
        return
    values, vectors = linalg.eigh(left, "clusters' Hessians")
    least = max(SINGULAR, values[:, 0].min())
    worst = int(np.argmax(values[:, 0] <= least))  # the first: rounding orders the others
    singular = values[worst] <= least
    lost = loaded(vectors[worst][:, singular], at.whiten, at.criterion.names)
    raise InputError(
        "clusters",
        f"cluster {groups.labels[first + worst]!s} alone determines {lost} (a dummy for one "
        f"cluster, say), so {correction} cannot leave it out",
        "its variance cannot be estimated: drop the cluster's rows with these columns, or add a "
        "penalty",
    )


def point_of(target: Target) -> Point:
    """Return where a target's scores were taken, and what is known there."""
    criterion, theta, hessian = target.criterion, target.center, target.hessian
    assert criterion is not None
    assert hessian is not None
    whiten, gradient = linalg.whitener(hessian), criterion.total.derivatives(theta).gradient
    centered, stacked = target.centered, stacked_of(target)
    return Point(criterion, theta, hessian, whiten, gradient, centered, stacked)


def stacked_of(target: Target) -> Stacked | None:
    """Return what nuisance values that are part of a target add to its scores."""
    assert target.criterion is not None
    return target.criterion.stacked(target.center) if target.stacked else None


def contrast_laws(at: Point, groups: Groups | None, correction: str, contrasts: Array) -> Law:
    r"""Return the laws of contrasts (q, p) of independent rows, or of one-way clusters.

    With p_g the direction in which cluster g's scores count for a contrast, after its correction
    for leverage, :math:`\Lambda_{gh}=p_g^\top\mathrm{cov}(\hat\psi_g,\hat\psi_h)p_h`, its
    :math:`\nu=(\mathrm{tr}\Lambda)^2/\|\Lambda\|_F^2`, and :math:`\kappa` is its trace over the
    variance of the contrast. No G x G matrix is formed (Bell and McCaffrey; Imbens and Kolesar).
    """
    total = at.criterion.total
    if "moments" in total.traits:
        return ScoreLaws(influences(at, groups, correction)).single(contrasts)
    directions = at.whiten @ np.atleast_2d(contrasts).T  # (k, q)
    if groups is None and is_linear(total):
        moments = _row_moments(at, correction, directions)
    else:

        def work(block: ClusterBlock) -> tuple[ClusterParts]:
            parts = ClusterParts(len(at.whiten), directions.shape[1], exact=True)
            towards = _leaning(block.hessians, correction, directions)
            parts.add(block.hessians, _working_parts(at, block), towards)
            return (parts,)

        blocks = whitened_blocks(at, _sets(at, groups))
        (parts,) = sum_in_threads(work, blocks, total.n * total.p)
        moments = parts.moments(directions)
    factor = total.small_sample_factor() if correction == "HC1" else 1.0
    if correction in ("CR1", "CR1S") and groups is not None:
        count = int(np.count_nonzero(groups.weights(total.weights) > 0))
        factor = small_sample_factor(correction, count, total.count, at.criterion.p)
    if correction not in LEVERAGE:
        factor *= total.score_factor
    return moments.law(factor)


def _sets(at: Point, groups: Groups | None) -> Groups:
    """Return the clusters, single rows if there are none."""
    return Independent(at.criterion.n).groups if groups is None else groups


def _row_moments(at: Point, correction: str, directions: Array) -> Moments:
    """Return trace and squared norm of Lambda, and the true variance, for independent rows.

    A row's share of a penalty, one over n, is left out of its leverage here.
    """
    # what is folded goes to workers with what it refers to: arrays, never the criterion
    theta, whiten, total = at.theta, at.whiten, at.criterion.total
    assert is_linear(total)
    p, q = directions.shape
    power = {"HC2": 0.5, "HC3": 1.0}.get(correction, 0.0)

    working = _working_variance(at, whiten)
    powers = (0,) if total.frequency else (0, 1, 2)  # of a weight; copies weigh one each

    def add(chunk: LinearTotal, trace: Array, square: Array, grams: Array) -> None:
        for block in chunk.row_terms(theta):
            z, bend = block.rows @ whiten.T, np.maximum(block.curvature, 0.0)
            once, times = np.sign(block.weights), block.weights
            if not chunk.frequency:
                once, times = times, once
            each, own = _row_variances(z, bend, once, directions, working, power)
            trace += (times * own) @ each
            square += (times * (2 * own - 1)) @ np.square(each)
            for k in powers:
                weighted = each * (times * bend * once**k)[:, None]
                for j, weight in enumerate(weighted.T):
                    grams[k, j] += (z.T * weight) @ z

    zeros = np.zeros(q), np.zeros(q), np.zeros((len(powers), q, p, p))
    trace, square, grams = total.fold(add, *zeros)
    plain, once, twice = grams if len(grams) == 3 else (grams[0],) * 3
    # tr(KSKS) with S = [[plain, once], [once, twice]] and K = [[working, -I], [-I, 0]]
    first = working @ plain - once
    left = first, first if len(grams) == 1 else working @ once - twice
    square = square + np.einsum("qij,qji->q", left[0], left[0])
    square += np.einsum("qij,qji->q", -2 * left[1], plain) + np.einsum("qij,qji->q", once, once)
    return Moments(trace, square, np.einsum("ij,ij->j", directions, working @ directions))


def influences(at: Point, groups: Groups | None, correction: str) -> Array:
    r"""Return what each row or cluster adds to the estimate, :math:`-A^{-1}\psi_g`, (m, p).

    Scores are those that the correction squares; without their share of the Hessian, plain ones.
    What estimated nuisance values add to them is included.
    """
    sets, total = _sets(at, groups), at.criterion.total
    if correction not in LEVERAGE or "leverage" not in total.traits:
        sums = group_scores(at, total.group_sums(at.theta, sets), sets, None).sums
        return -sums @ at.whiten
    scores = np.zeros((len(sets), len(at.whiten)))
    for block in whitened_blocks(at, sets):
        adjusted = _leaning(block.hessians, correction, block.scores[:, :, None])
        scores[block.first : block.first + len(adjusted)] = adjusted[:, :, 0]
    added = at.added(sets)
    return -(scores if added is None else scores + added) @ at.whiten


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
    for block in whitened_blocks(at, sets):
        towards = _leaning(block.hessians, correction, direction)
        spread = at.whiten @ block.variances @ at.whiten.T @ towards
        mass[block.first : block.first + len(spread)] = np.einsum("gpq,gpq->g", towards, spread)
    return np.asarray(mass / mass.sum())


def _leaning(hessians: Array, correction: str, directions: Array) -> Array:
    """Return directions (g, p, q), the same for all clusters or each its own, after a correction.

    A cluster's scores count along them: times (I - A_g)^{-1} or its root, where A is the identity.
    """
    left = np.eye(hessians.shape[1]) - hessians
    same = np.broadcast_to(directions, (len(left), *directions.shape[-2:]))
    if correction[2] == "3":
        return linalg.solve(left, same, "clusters' Hessians")
    if correction[2] == "2":
        values, vectors = linalg.eigh(left, "clusters' Hessians")
        root = vectors * np.maximum(values, SINGULAR)[:, None, :] ** -0.5
        return root @ (vectors.transpose(0, 2, 1) @ same)
    return same


def cluster_parts(
    criterion: Criterion,
    theta: Array,
    groups: Groups,
    centered: bool = True,
    stacked: Stacked | None = None,
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return scores (G, p), Hessians with their penalty's share (G, p, p), and who has weight."""
    share, p = criterion.penalty_share(theta), criterion.p
    scores, hessians = np.zeros((len(groups), p)), np.zeros((len(groups), p, p))
    weights = np.zeros(len(groups))
    for block in criterion.total.cluster_blocks(theta, groups):
        rows = slice(block.first, block.first + len(block.scores))
        scores[rows], weights[rows] = block.scores, block.weights
        hessians[rows] = block.hessians + block.weights[:, None, None] * share
    mean = mean_score(criterion, criterion.total.derivatives(theta).gradient, centered)
    scores = scores - weights[:, None] * mean
    if stacked is not None:
        scores += stacked.sums(groups, criterion.total.weights)
    return scores, hessians, weights > 0


def cluster_leverages(hessians: Array, hessian: Array) -> Array:
    """Return the largest eigenvalue of A_g A^{-1} for every cluster (G,): its leverage."""
    whiten = linalg.whitener(hessian)
    shares = whiten @ (0.5 * (hessians + np.swapaxes(hessians, 1, 2))) @ whiten.T
    return linalg.eigvalsh(shares, "clusters' Hessians")[:, -1]


def cluster_table(criterion: Criterion, target: Target, kind: str, groups: Groups) -> pd.DataFrame:
    """Return rows, weight, leverage and shift (in standard errors) of clusters, by leverage.

    Losses without a Hessian of each observation have no leverage: the shift then orders them.
    """
    import pandas as pd

    assert target.hessian is not None
    center, stacked = target.center, stacked_of(target)
    if known := "leverage" in criterion.total.traits:
        scores, hessians, _ = cluster_parts(criterion, center, groups, target.centered, stacked)
        moved = linalg.solve(target.hessian, scores.T, "Hessian").T
        leverage = cluster_leverages(hessians, target.hessian)
    else:
        moved = influences(point_of(target), groups, "CR0")
        leverage = np.full(len(groups), np.nan)
    columns = {
        "rows": groups.sizes(),
        "weight": groups.weights(criterion.total.weights),
        "leverage": leverage,
        "shift": np.max(np.abs(moved) / target.se, axis=1),
    }
    table = pd.DataFrame(columns, index=pd.Index(groups.labels, name=kind))
    return table.sort_values("leverage" if known else "shift", ascending=False, kind="stable")

r"""The target: a centre and the covariance of the estimator there, :math:`A^{-1}BA^{-1}`.

A coefficient that an L1 penalty sets to zero has no normal limit, and its neighbours' does not
depend on it: on the set :math:`\hat A` of the others the penalty is smooth, and calibration is that
of :math:`\theta_A` with :math:`J_{AA}`, :math:`K_{AA}` and the linear term :math:`\lambda
s_n\,\mathrm{sign}(\hat\theta_A)` (appendix "Non-smooth penalties" of Tamano and Tomo, arXiv
2511.15320). A penalty that ties coefficients has a face :math:`\theta=E\beta` instead of a set: the
block is the criterion of :math:`\beta`, with design :math:`XE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.data.groups import Groups
from etafree.dependence import as_structure, bind
from etafree.dependence.base import Dependence, Meat, Point, Structure
from etafree.dependence.clusters import effective_parameters, estimable, group_scores, loaded
from etafree.errors import InputError, NotPositiveDefiniteError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_array, as_bool, as_choice, in_order, places_of
from etafree.foundation.check import Finding, missing_rows
from etafree.foundation.linalg import check_covariance
from etafree.foundation.terminal import counted_noun
from etafree.foundation.threads import own_settings
from etafree.optimize import Minimum, minimise
from etafree.optimize.faces import on_face
from etafree.penalties import ActivePenalty, KinkedPenalty
from etafree.target import Law, PartLaws, Target, degrees_of_freedom
from etafree.totals.base import GroupSums
from etafree.totals.linear import has_design, is_linear


def active_block(criterion: Criterion) -> Criterion:
    """Return the criterion of the coordinates of the fit's face, itself if there is no kink.

    They are the coefficients that are not zero, each tie of them once.
    """
    penalty = criterion.penalty
    if not isinstance(penalty, KinkedPenalty):
        return criterion
    if not has_design(criterion.total):
        raise InputError(
            "penalty",
            f"{type(penalty).__name__} needs a loss with a linear predictor",
            "use a smooth penalty, such as ef.penalties.huberized_l1",
        )
    face = penalty.face(minimise(criterion).theta)
    if not face.basis.size:
        raise InputError(
            "penalty",
            f"({penalty.describe(criterion.size)}) sets every coefficient to zero: "
            "there is nothing to calibrate",
            "lower its strength",
        )
    return on_face(criterion, face)


#: Rows in which a column is looked at for being constant, before all of them are.
FIRST_ROWS = 64
CENTERS = ("map", "one_step", "mean")
#: How to get by with few rows or clusters.
FEWER = "report a few with var_names=, or fit"
#: Why coefficients have no variance.
ALONE = "one cluster alone determines each"


def one_step(criterion: Criterion, start: Array) -> Array:
    r"""Return one Newton step from `start`, :math:`\theta - A(\theta)^{-1}\nabla L(\theta)`.

    Examples
    --------
    >>> import etafree as ef
    >>> c = ef.Criterion(ef.losses.Squared(), data=(np.ones((2, 1)), np.array([1.0, 3.0])))
    >>> one_step(c, np.array([10.0]))
    array([2.])
    """
    here = criterion.derivatives(criterion.point(start, "start"))
    hessian = check_covariance(
        here.hessian, "Hessian at the posterior mean", criterion.p, "use center='map'"
    )
    return start - linalg.solve(hessian, here.gradient, "Hessian")


def find_center(
    center: object,
    criterion: Criterion | None,
    mean: Array | None = None,
    names: Sequence[str] = (),
) -> tuple[str, Array, Minimum | None]:
    """Return the kind of centre, the point (p,), and the minimum if that is the point.

    ``map`` is the minimiser of loss plus penalty, without any unscaled log prior and without a
    Jacobian; ``one_step`` a Newton step from the posterior mean; ``mean`` the posterior mean, which
    is not safe when the learning rate is small; an array is taken as it is, a Series by the
    criterion's names, or `names` where there is none.
    """
    if not isinstance(center, str):
        center = in_order(center, names if criterion is None else criterion.names, "center")
        point = np.atleast_1d(as_array(center, "center"))
        if point.ndim != 1:
            raise InputError("center", f"has shape {point.shape} but must be a vector")
        size = len(point if mean is None else mean) if criterion is None else criterion.p
        if len(point) != size:
            raise InputError(
                "center", f"has {len(point)} entries for {counted_noun(size, 'parameter')}"
            )
        return "given", point, None
    as_choice(center, "center", CENTERS)
    if center == "map" and criterion is not None:
        minimum = minimise(criterion)
        return "map", minimum.theta, minimum
    if center != "map" and mean is None:
        raise InputError("center", f"{center!r} needs draws", "pass draws, or center='map'")
    if center == "mean" and mean is not None:
        return "mean", mean, None
    if criterion is None or mean is None:
        raise InputError(
            "center",
            f"{center!r} needs scores and a Hessian, but there are only draws",
            "pass a criterion, an array, or center='mean'",
        )
    return "one_step", one_step(criterion, mean), None


HESSIAN_ADVICE = "pass the Hessian of the total loss, not its negative or inverse"
MEAT_ADVICE = "it must be a variance of the total score"


@own_settings
def target(
    criterion: Criterion,
    *,
    clusters: object = None,
    dependence: Structure | None = None,
    correction: str | None = None,
    center: object = "map",
    centered: bool = True,
    hessian: object = None,
    meat: object = None,
    dof: float | None = None,
    mean: Array | None = None,
    var_names: object = None,
    threads: int | None = None,
) -> Target:
    r"""Return the estimate of a criterion with its sandwich covariance.

    The estimator has covariance :math:`A^{-1}BA^{-1}`, with :math:`A` the Hessian of the penalized
    total loss at the centre and :math:`B` the variance of its score, summed over what may depend.

    Parameters
    ----------
    criterion : Criterion
        Data, loss and penalty.
    clusters : (n,) labels, or several of them, optional
        Rows with the same label may depend on each other in any way; short for
        ``dependence=ef.Clusters(...)``. A pandas Series is matched with the data by its index, a
        string names a column of the data. A list, mapping, DataFrame or (n, k) array gives multiway
        clusters.
    dependence : Clusters, Survey, ReplicateWeights, TimeSeries or Panel, optional
        Which rows may depend on each other.
    correction : str, optional
        Independent rows: "HC0" to "HC3" (default). Clusters: "CR0", "CR1", "CR1S", "CR2", "CR3"
        (default). Both have degrees of freedom for each coefficient. Multiway clusters: "CR3"
        (default: the jackknife in each dimension, Welch's degrees of freedom; CR1S, with the reason
        in `design`, if a single cluster determines a coefficient), "CR0", "CR1", "CR1S" (t of the
        least favourable dimension). Survey designs: "survey-CR3" (default, Satterthwaite's degrees
        of freedom for each contrast) or "survey" (t with PSUs - strata, as in R's survey package).
        Replicate weights: "refits". Time series: "AR-EWC-HC3" (default: prewhitened cosines of
        scores corrected for leverage), "AR-EWC" without this correction, "EWC" (cosines only, t
        with their number) or "Bartlett" (normal). Panels: "two-way-CR3" (default: units plus
        periods, Welch's degrees of freedom), "two-way" without the correction for leverage, "EWC"
        or "DK" of period totals. Where the contributions of rows to the Hessian are not available,
        defaults are those without a correction for leverage.
    center : {"map", "one_step", "mean"} or (p,) array
        The last two need the posterior `mean`.
    centered : bool
        Centre scores at observation level. False gives the form printed in the paper, whose
        variance is too large under a penalty.
    hessian : (p, p) array or callable, optional
        Replaces :math:`A`; a callable takes theta (p,).
    meat : (p, p) array or callable, optional
        Replaces :math:`B`; a callable takes the centred, weighted scores (n, p) and returns (p, p).
    dof : float, optional
        Replaces the degrees of freedom; ``numpy.inf`` for normal quantiles.
    mean : (p,) array, optional
        Posterior mean.
    var_names : str or list of str, optional
        Parameters to report; the others stay in the computation. With as many parameters as rows or
        clusters, or more, :math:`B` is singular, and only a few can be reported jointly.
    threads : int, optional
        How many threads work on the rows; the result is the same. See `etafree.threads`.

    Returns
    -------
    Target
                Under a penalty with a kink (L1), of the active coefficients only.

    Raises
    ------
    InputError
        An argument cannot be used, or not together with another.
    NotPositiveDefiniteError
        :math:`A` or :math:`B` is not positive definite: too few clusters, or no strict minimum.
    ConvergenceError
        The penalized loss has no finite minimiser.

    References
    ----------
    White, H. (1980). A heteroskedasticity-consistent covariance matrix estimator and a direct test
    for heteroskedasticity. Econometrica 48, 817-838. Bell, R. M. and McCaffrey, D. F. (2002). Bias
    reduction in standard errors for linear regression with multi-stage samples. Surv. Methodol. 28,
    169-181. Cameron, A. C., Gelbach, J. B. and Miller, D. L. (2011). Robust inference with multiway
    clustering. J. Bus. Econ. Statist. 29, 238-249. MacKinnon, J. G., Nielsen, M. O. and Webb, M. D.
    (2024). Jackknife inference with two-way clustering. arXiv 2406.08880. Lazarus, E., Lewis, D.
    J., Stock, J. H. and Watson, M. W. (2018). HAR inference: recommendations for practice. J. Bus.
    Econ. Statist. 36, 541-559. Thompson, S. B. (2011). Simple formulas for standard errors that
    cluster by both firm and time. J. Financial Econ. 99, 1-10.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> t = ef.target(ef.Criterion(ef.losses.Squared(), data=(X, y)), correction="HC0")
    >>> t.center, t.covariance
    (array([2.]), array([[0.875]]))
    """
    if not isinstance(criterion, Criterion):
        raise InputError("criterion", f"is a {type(criterion).__name__}", "pass an ef.Criterion")
    as_bool(centered, "centered")
    criterion = active_block(criterion)
    if mean is not None:
        mean = criterion.point(mean, "mean")
    structure = as_structure(clusters, dependence)
    return target_of(
        criterion,
        bind(structure, criterion.rows, criterion.total.copies),
        center=center,
        correction=correction,
        centered=centered,
        hessian=hessian,
        meat=meat,
        dof=dof,
        mean=mean,
        var_names=var_names,
    )


@own_settings
def target_of(
    criterion: Criterion, dependence: Dependence, *, var_names: object = None, **choices: Any
) -> Target:
    """Return the target of a criterion whose rows depend on each other as described."""
    named = None if var_names is None else chosen(criterion, var_names)
    total, crowded = criterion.total, None
    try:
        reported = criterion.p if named is None else len(named)
        dependence.check_size(total.weights, reported, FEWER)
    except InputError as error:  # unless most are fixed effects
        dependence.check_size(total.weights, 1)
        crowded = error
    at, settled = _settled(criterion, dependence, **choices)
    try:
        if crowded is not None:
            raise crowded
        whole, estimate = _whole(at, dependence, settled)
        if named is not None:
            return _part(whole, named, _many_parameters(at))
        _refuse_flat(estimate, at, dependence)
        return whole
    except InputError:
        inner = dependence.narrowed(at)
        if inner is None:
            raise
    known = estimable(inner, at)
    alone = [name for j, name in enumerate(criterion.names) if j not in known]
    if named is not None and not set(named) <= set(known):
        problem = f"{ALONE} of {', '.join(alone)}"
        raise InputError("var_names", f"{problem:.200}", "leave these out")
    reported = len(inner.whiten) if named is None else len(named)
    dependence.check_size(total.weights, reported, FEWER)
    whole, _ = _whole(inner, dependence, settled)
    return _part(whole, known if named is None else named, _lone(alone))


def _lone(names: Sequence[str]) -> tuple[Finding, ...]:
    """Return which coefficients one cluster alone determines."""
    few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    return (Finding("left out of the target", len(names), {"advice": f"{ALONE} of {few}"}),)


class Settled(NamedTuple):
    """What `target_of` was asked for, checked, and the sums that the point came with."""

    correction: str
    named: bool  #: Whether the correction was asked for by name.
    kind: str  #: Of the centre.
    meat: Any
    dof: float | None
    totals: GroupSums | None


def _settled(
    criterion: Criterion,
    dependence: Dependence,
    *,
    center: object = "map",
    correction: str | None = None,
    centered: bool = True,
    hessian: Any = None,
    meat: Any = None,
    dof: float | None = None,
    mean: Array | None = None,
) -> tuple[Point, Settled]:
    """Return where the sandwich is taken, and the choices for it, checked."""
    named = correction is not None
    correction = _correction(correction, dependence, meat, criterion)
    if dof is not None:  # before any work
        degrees_of_freedom(dof, np.inf, criterion.p)
    hessian = _checked(hessian, "hessian", criterion, HESSIAN_ADVICE)
    meat = _checked(meat, "meat", criterion, MEAT_ADVICE)
    if isinstance(meat, np.ndarray) and not centered:
        raise InputError("centered", "is False, and meat= is a matrix already", "leave it out")
    kind, theta, minimum = find_center(center, criterion, mean)
    groups = dependence.summed(correction) if meat is None else None
    gradient, curvature, totals = _derivatives(criterion, theta, minimum, groups)
    A = _curvature(criterion, theta, curvature, hessian)
    stacked = None if isinstance(meat, np.ndarray) else criterion.stacked(theta)
    known = centered, stacked, dof is None
    at = Point(criterion, theta, A, linalg.whitener(A), gradient, *known)
    return at, Settled(correction, named, kind, meat, dof, totals)


def _whole(at: Point, dependence: Dependence, settled: Settled) -> tuple[Target, Meat]:
    """Return the target of all parameters, and its meat."""
    at = dependence.adjusted(at)
    criterion, dof, p = at.criterion, settled.dof, at.criterion.p
    groups = dependence.summed(settled.correction) if settled.totals is not None else None
    if settled.meat is not None:
        estimate = dependence.given(*_given_meat(at, settled.meat))
    elif settled.totals is not None and groups is not None:
        scores = group_scores(at, settled.totals, groups, _intercept(criterion))
        estimate = dependence.with_laws(dependence.meat(scores, settled.correction), at)
    else:
        by_leverage = dependence.by_leverage if settled.named else dependence.by_default
        estimate = by_leverage(at, settled.correction)
    unrelated = dependence.independent and settled.meat is None
    whole = Target(
        center=at.theta,
        covariance=estimate.covariance,
        names=criterion.names,
        dof=degrees_of_freedom(dof, estimate.dof, p),
        hessian=at.hessian,
        meat=estimate.matrix,
        center_kind=settled.kind,
        correction=estimate.correction,
        centered=at.centered,
        clusters=estimate.clusters,
        design=criterion.rows.independent if unrelated else estimate.design,
        cluster_label=dependence.label,
        n=criterion.rows.observations,
        size=criterion.size,
        estimand=criterion.describe(),
        plug_ins=dict(criterion.plug_ins),
        stacked=() if at.stacked is None else criterion.estimated,
        inflation=np.broadcast_to(estimate.inflation if dof is None else 1.0, (p,)),
        joint_dof=estimate.joint_dof if dof is None else None,
        laws=estimate.laws if dof is None else None,
        findings=(
            *missing_rows(criterion.rows.missing, criterion.rows.original),
            *estimate.findings,
        ),
        criterion=criterion,
        dependence=dependence,
    )
    return whole, estimate


def _many_parameters(at: Point) -> tuple[Finding, ...]:
    """Return how many parameters each row determines, where there are as many as rows or more."""
    count = at.criterion.total.count
    if count > at.criterion.p:
        return ()
    return (Finding("effective parameters", effective_parameters(at) / count),)


def chosen(criterion: Criterion, var_names: object) -> NDArray[np.intp]:
    """Return where the parameters to report are among all: by name, vectors also by theirs."""
    try:
        return np.array(places_of(criterion.names, var_names))
    except InputError as error:
        if isinstance(criterion.penalty, ActivePenalty) and "is not a parameter" in error.problem:
            problem = error.problem.replace("is no", "is zero or tied under this penalty, or no")
            raise InputError("var_names", problem, error.advice) from None
        raise


def names_of(criterion: Criterion, var_names: object) -> list[str]:
    """Return the names of the parameters to report."""
    return [criterion.names[j] for j in chosen(criterion, var_names)]


def _part(whole: Target, some: NDArray[np.intp], found: tuple[Finding, ...]) -> Target:
    """Return the target of some parameters, whose score variance has full rank."""
    law = Law(whole.dof[some], whole.inflation[some])
    if whole.laws is not None:  # of all p, those of a few may have been bounds
        law = whole.laws.single(np.eye(whole.p)[some])
    rank = "the scores of few rows or clusters have no higher rank: name fewer parameters"
    covariance = whole.covariance[np.ix_(some, some)]
    return replace(
        whole,
        center=whole.center[some],
        covariance=check_covariance(covariance, "var_names", len(some), rank),
        names=tuple(whole.names[j] for j in some),
        dof=law.dof,
        inflation=law.inflation,
        hessian=None,
        meat=None,
        laws=None if whole.laws is None else PartLaws(whole.laws, some, whole.p),
        findings=(*whole.findings, *found),
        criterion=None,
        dependence=None,
    )


def _checked(value: object, argument: str, criterion: Criterion, advice: str) -> Any:
    """Return a matrix in the criterion's order, positive definite; a function as it is."""
    if value is None or callable(value):
        return value
    matrix = in_order(value, criterion.names, argument, (0, 1))
    return check_covariance(matrix, argument, criterion.p, advice)


def _derivatives(
    criterion: Criterion, theta: Array, minimum: Minimum | None, groups: Groups | None
) -> tuple[Array, Array, GroupSums | None]:
    """Return the gradient of the loss, the Hessian of loss plus penalty, and groups' score sums.

    In the fewest passes: the minimum comes with its Hessian, and the gradient of the loss there is
    minus that of the penalty.
    """
    total = criterion.total
    if minimum is not None:
        if groups is not None:
            sums = total.group_sums(theta, groups)
            return sums.sums.sum(axis=0), minimum.hessian, sums
        slope = np.zeros(criterion.p)
        if criterion.strength > 0:
            slope -= criterion.strength * criterion.size * criterion.penalty.gradient(theta)
        return slope, minimum.hessian, None
    share = total.weight * criterion.penalty_share(theta)
    if groups is None:
        loss = total.derivatives(theta)
        return loss.gradient, loss.hessian + share, None
    both = total.cluster_totals(theta, groups)
    return both.gradient, both.hessian + share, GroupSums(both.sums, both.weights)


def _curvature(criterion: Criterion, theta: Array, hessian: Array, given: object) -> Array:
    """Return A: the Hessian of loss plus penalty, or one that was given."""
    if given is not None:
        matrix = given(theta) if callable(given) else given
        return check_covariance(matrix, "hessian", criterion.p, HESSIAN_ADVICE)
    wider = criterion.loss.curvature()
    if wider is not None:
        loss, factor = wider
        share = criterion.total.weight * criterion.penalty_share(theta)
        hessian = factor * criterion.with_loss(loss).total.derivatives(theta).hessian + share

    def advice() -> str:
        flat = "the centre is not a strict minimum: add a penalty or change center="
        return _silence(criterion, theta) or flat

    return check_covariance(hessian, "hessian", criterion.p, advice)


def _refuse_flat(estimate: Meat, at: Point, dependence: Dependence) -> None:
    """Refuse a score variance without full rank, and say along what scores do not vary."""
    criterion, p = at.criterion, at.criterion.p
    whitened = at.whiten @ estimate.matrix @ at.whiten.T
    least = linalg.rounding(p) * np.trace(whitened)  # at least that of the largest eigenvalue
    full = linalg.cholesky_or_none(whitened - least * np.eye(p)) is not None
    if full and linalg.surely_conditioned(estimate.matrix, linalg.CONDITION_WARN):
        return
    values, vectors = linalg.eigh(whitened, "meat")
    flat = values <= linalg.rounding(p) * values[-1]
    units = int(criterion.total.count) if dependence.independent else estimate.clusters

    def advice() -> str:
        silence = _silence(criterion, at.theta)
        if silence:
            return silence
        if estimate.correction == "custom":
            return "meat= must give a matrix of full rank"
        if flat.any() and (units is None or units <= p):
            rank = int(p - flat.sum())
            return f"{FEWER} at most {rank} parameter(s): the scores have no higher rank"
        along = loaded(vectors[:, flat if flat.any() else [0]], at.whiten, criterion.names)
        if criterion.strength > 0:
            return f"scores do not vary along {along}, which are collinear: drop one of them"
        return (
            f"scores do not vary along {along}: drop these columns with the rows or clusters that "
            "alone determine them, or add a penalty"
        )

    if flat.any():
        raise NotPositiveDefiniteError("meat", float(values[0]), advice())
    check_covariance(estimate.matrix, "meat", p, advice)


def _silence(criterion: Criterion, theta: Array) -> str:
    """Return advice that names parameters that no loss depends on; none if there are none."""
    loss = criterion.total.derivatives(theta)
    heard = np.any(loss.hessian != 0, axis=0) | (loss.gradient != 0)
    silent = [criterion.names[j] for j in np.flatnonzero(~heard)]
    if not silent:
        return ""
    return (
        f"no observation has information on {silent[:8]}, only the prior or penalty does: take "
        "them out of the model, or give them a value"
    )


def _correction(asked: object, dependence: Dependence, meat: object, criterion: Criterion) -> str:
    """Return the correction by name; a meat of the user's own has none."""
    if meat is not None:
        if asked is not None:
            raise InputError("correction", "cannot be combined with meat=", "pass one of them")
        dependence.check_meat()
        return "custom"
    total, advice = criterion.total, f"use correction={dependence.defaults[1]!r}"
    if "leverage" not in total.traits or criterion.loss.curvature() is not None:
        return dependence.correction(asked, ("this loss has none", advice))
    if "moments" in total.traits and asked in ("HC2", "CR2"):
        reason = "it needs symmetric contributions, which only losses have"
        return dependence.correction(asked, (reason, f"use correction={dependence.defaults[0]!r}"))
    if "moments" in total.traits and not (dependence.independent or dependence.clusters):
        return dependence.correction(asked, ("moments do not say how they vary", advice))
    if total.copies and dependence.independent and not is_linear(total):
        reason = "copies by frequency weights have none here"
        return dependence.correction(asked, (reason, f"{advice}, or repeat the rows"))
    return dependence.correction(asked)


def _intercept(criterion: Criterion) -> int | None:
    if has_design(criterion.total):
        X = criterion.total.X
        maybe = np.flatnonzero(np.ptp(X[:FIRST_ROWS], axis=0) == 0)
        return next((int(j) for j in maybe if np.ptp(X[:, j]) == 0), None)
    named = is_linear(criterion.total) and "Intercept" in criterion.names
    return criterion.names.index("Intercept") if named else None


def _given_meat(at: Point, meat: Array | Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return B as given, or computed from scores by the user's function, and the sandwich."""
    criterion = at.criterion
    if callable(meat):
        scores = criterion.total.scores(at.theta)
        if at.centered:
            w = criterion.total.weights
            w = np.ones(criterion.n) if w is None else w
            scores -= w[:, None] * (scores.sum(axis=0) / criterion.total.weight)
        if at.stacked is not None:
            rows = Groups(np.arange(criterion.n), np.arange(criterion.n))
            scores += at.stacked.sums(rows, criterion.total.weights)
        meat = meat(scores)
    B = check_covariance(meat, "meat", criterion.p, MEAT_ADVICE)
    inverse = linalg.inv(at.hessian, "Hessian")
    return B, inverse @ B @ inverse

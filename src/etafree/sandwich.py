r"""The target: a centre and the covariance of the estimator there, :math:`A^{-1}BA^{-1}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etafree.centers import find_center
from etafree.criterion import Criterion
from etafree.errors import InputError
from etafree.linalg import check_covariance
from etafree.linear import ClusterTotals, Derivatives
from etafree.meat import (
    Meat,
    check_count,
    clustered,
    clustered_by_leverage,
    independent,
)
from etafree.satterthwaite import Satterthwaite
from etafree.sums import Groups
from etafree.threads import one_blas_thread
from etafree.validation import Array, as_array, as_choice, as_names, as_number

__all__ = ["CORRECTIONS", "Target", "find_groups", "target"]

HC = ("HC0", "HC1", "HC2", "HC3")
PLAIN_CR = ("CR0", "CR1", "CR1S")
CR = (*PLAIN_CR, "CR2", "CR3")
CORRECTIONS = HC + CR
HESSIAN_ADVICE = "pass the Hessian of the total loss, not its negative or inverse"


@dataclass(frozen=True, eq=False)
class Target:
    r"""Where calibrated draws go: centre, covariance and reference distribution.

    Attributes
    ----------
    center : (p,) array
    covariance : (p, p) array
        Covariance of the estimator in absolute units, the paper's :math:`V/s_n`.
    names : tuple of str
    dof : (p,) array
        Degrees of freedom of each parameter's t distribution, infinite for the normal.
    hessian, meat : (p, p) arrays or None
        :math:`A` and :math:`B`, sums over observations.
    center_kind, correction : str
    centered : bool
        Whether scores were centred at observation level.
    clusters : int or None
        Number of clusters.
    n : int or None
        Number of rows.
    size : float or None
        The effective scale :math:`s_n`.
    estimand : str
        What an interval covers, in words.
    plug_ins : mapping
        Nuisance values estimated beforehand and taken as known.
    """

    center: Array
    covariance: Array
    names: tuple[str, ...]
    dof: Array
    hessian: Array | None = None
    meat: Array | None = None
    center_kind: str = "given"
    correction: str = "given"
    centered: bool = True
    clusters: int | None = None
    n: int | None = None
    size: float | None = None
    estimand: str = "whatever the given centre estimates"
    plug_ins: Mapping[str, float] = field(default_factory=dict)
    satterthwaite: Satterthwaite | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        p = len(as_names(self.names, len(self.names)))
        for name in ("center", "covariance", "dof", "hessian", "meat"):
            if getattr(self, name) is not None:  # frozen means the arrays too
                array = np.array(getattr(self, name))
                array.setflags(write=False)
                object.__setattr__(self, name, array)
        as_array(self.center, "center", shape=(p,))
        as_array(self.covariance, "covariance", shape=(p, p))
        as_array(self.dof, "dof", shape=(p,), finite=False)

    @classmethod
    def given(cls, center: Any, covariance: Any, names: Any = None, dof: Any = None) -> Target:
        """Return a target from a centre and a covariance matrix of the user's.

        Examples
        --------
        >>> Target.given([0.0, 1.0], np.eye(2)).se
        array([1., 1.])
        """
        point = as_array(center, "center").reshape(-1)
        if len(point) == 0:
            raise InputError("center", "is empty")
        matrix = check_covariance(covariance, "covariance", len(point))
        return cls(point, matrix, as_names(names, len(point)), _dof(dof, np.inf, len(point)))

    @property
    def se(self) -> Array:
        """Standard errors (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def p(self) -> int:
        """Number of parameters."""
        return len(self.center)

    def dof_of(self, contrast: Array) -> float:
        """Return the degrees of freedom for a contrast (p,), or for several at once (q, p)."""
        if self.satterthwaite is not None:
            return self.satterthwaite.dof(contrast)
        return float(self.dof.min())

    def describe(self) -> str:
        """Return in words how the covariance was made."""
        if self.hessian is None:
            return "covariance given by the user"
        many = "independent observations" if self.clusters is None else f"{self.clusters} clusters"
        dof = self.dof
        if np.isinf(dof).all():
            law = "normal"
        elif np.ptp(dof) < 1e-9:
            law = f"t with {dof[0]:g} degrees of freedom"
        else:
            law = f"t with {dof.min():.1f} to {dof.max():.1f} degrees of freedom"
        printed = "" if self.centered else ", scores not centred"
        return f"sandwich, {many}, {self.correction}, {law}{printed}"


def _dof(given: Any, default: float | Array, p: int) -> Array:
    if given is None:
        return np.broadcast_to(np.asarray(default, dtype=np.float64), (p,)).copy()
    number = as_number(given, "dof")
    if not number >= 1:
        raise InputError("dof", f"is {number!r}", "pass at least 1, or numpy.inf for the normal")
    return np.full(p, number)


@one_blas_thread
def target(
    criterion: Criterion,
    *,
    center: Any = "map",
    clusters: Any = None,
    correction: str | None = None,
    centered: bool = True,
    hessian: Any = None,
    meat: Any = None,
    dof: float | None = None,
    mean: Array | None = None,
) -> Target:
    r"""Return the sandwich target of a criterion.

    Parameters
    ----------
    criterion : Criterion
    center : {"map", "one_step", "mean"} or (p,) array
        The last two need the posterior `mean`.
    clusters : (n,) labels, optional
        Rows with the same label may depend on each other in any way. A pandas Series is matched
        with the data by its index.
    correction : {"HC0", ..., "HC3", "CR0", "CR1", "CR1S", "CR2", "CR3"}, optional
        Default: HC3 without clusters (normal), CR3 with clusters (t with G - 1).
    centered : bool
        Centre scores at observation level. False gives the form printed in the paper, which is too
        wide under a penalty.
    hessian : (p, p) array or callable, optional
        Replaces :math:`A`; a callable takes theta.
    meat : (p, p) array or callable, optional
        Replaces :math:`B`; a callable takes the centred, weighted scores (n, p).
    dof : float, optional
        Replaces the degrees of freedom; ``numpy.inf`` for the normal.
    mean : (p,) array, optional
        Posterior mean.

    Returns
    -------
    Target

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
    p = criterion.p
    groups = find_groups(clusters, criterion)
    correction = _correction(correction, groups, meat)
    _dof(dof, np.inf, p)
    if mean is not None:
        mean = as_array(mean, "mean", shape=(p,))
    if hessian is not None and not callable(hessian):
        hessian = check_covariance(hessian, "hessian", p, HESSIAN_ADVICE)
    if meat is not None and not callable(meat):
        meat = check_covariance(meat, "meat", p, "it must be a variance of the total score")
    kind, theta = find_center(center, criterion, mean)
    total: Derivatives | ClusterTotals
    if groups is not None and correction in PLAIN_CR:  # their score sums come in the same pass
        total = criterion.total.cluster_totals(theta, groups)
    else:
        total = criterion.total.derivatives(theta)
    if hessian is None:
        matrix = total.hessian + criterion.size * criterion.penalty_share(theta)
        advice = "the centre is no strict minimum: add a penalty or change center="
    else:
        matrix = hessian(theta) if callable(hessian) else hessian
        advice = HESSIAN_ADVICE
    A = check_covariance(matrix, "hessian", p, advice)
    made = _meat(criterion, theta, A, total, groups, correction, centered, meat)
    check_covariance(made.matrix, "meat", p, "too few distinct scores: G or n must exceed p")
    default: float | Array = made.dof
    if made.satterthwaite is not None:
        default = np.array([made.satterthwaite.dof(row) for row in np.eye(p)])
    return Target(
        center=theta,
        covariance=made.covariance,
        names=criterion.names,
        dof=_dof(dof, default, p),
        hessian=A,
        meat=made.matrix,
        center_kind=kind,
        correction=made.correction,
        centered=centered,
        clusters=made.clusters,
        n=criterion.n,
        size=criterion.size,
        estimand=criterion.describe(),
        plug_ins=dict(criterion.plug_ins),
        satterthwaite=made.satterthwaite if dof is None else None,
    )


def find_groups(clusters: Any, criterion: Criterion) -> Groups | None:
    """Return the groups of cluster labels lined up with the criterion's rows."""
    if clusters is None:
        return None
    if isinstance(clusters, Groups):
        return clusters
    groups = Groups.of(criterion.rows.align(clusters, "clusters"), criterion.n)
    weights = np.bincount(groups.codes, criterion.total.weights, len(groups))
    check_count(int(np.count_nonzero(weights)), criterion.p)
    return groups


def _correction(correction: str | None, groups: Groups | None, meat: Any) -> str:
    if meat is not None:
        if correction is not None:
            raise InputError("correction", "cannot be combined with meat=", "pass one of them")
        return "custom"
    if correction is None:
        return "HC3" if groups is None else "CR3"
    options = HC if groups is None else CR
    if correction in CORRECTIONS and correction not in options:
        raise InputError(
            "correction", f"is {correction!r}",
            "the CR corrections need clusters=" if groups is None
            else "the HC corrections are for independent observations: drop clusters=",
        )  # fmt: skip
    return as_choice(correction, "correction", options)


def _meat(
    criterion: Criterion, theta: Array, A: Array, total: Derivatives | ClusterTotals,
    groups: Groups | None, correction: str, centered: bool,
    meat: Array | Callable[[Array], Array] | None,
) -> Meat:  # fmt: skip
    if meat is None:
        if groups is None:
            return independent(criterion, theta, A, total.gradient, correction, centered)
        if isinstance(total, ClusterTotals):
            return clustered(criterion, A, total, correction, centered)
        return clustered_by_leverage(
            criterion, theta, A, total.gradient, groups, correction, centered
        )
    if callable(meat):
        scores = criterion.total.scores(theta)
        if centered:
            w = criterion.total.weights
            w = np.ones(criterion.n) if w is None else w
            scores -= w[:, None] * (total.gradient / criterion.size)
        meat = meat(scores)
    B = check_covariance(meat, "meat", criterion.p, "it must be a variance of the total score")
    inverse = np.linalg.inv(A)
    if groups is None:
        return Meat(B, inverse @ B @ inverse, np.inf, "custom")
    return Meat(B, inverse @ B @ inverse, len(groups) - 1.0, "custom", len(groups))

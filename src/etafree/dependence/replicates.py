r"""Replicate weights: the variance of an estimator from its refits under R other weightings.

With :math:`\hat\theta_r` the minimiser of the penalized loss under the r-th column of weights,

.. math:: C = s\sum_r s_r(\hat\theta_r-c)(\hat\theta_r-c)^\top,

where c is the mean of the refits (or the full-sample estimate, `mse`). Agencies publish such
columns in place of strata and sampling units:

=========  =====================================================  ======================
kind       weights of a replicate                                 factors
=========  =====================================================  ======================
JK1        one PSU of R left out                                  s = (R - 1)/R
JKn        one PSU left out, the others of its stratum times      :math:`s_r=(n_h-1)/n_h`
           :math:`n_h/(n_h-1)`
BRR        one of the two PSUs of each stratum doubled            s = 1/R
Fay        the same by :math:`2-\rho` and :math:`\rho`            :math:`1/\{R(1-\rho)^2\}`
bootstrap  PSUs drawn with replacement                            s = 1/(R - 1)
=========  =====================================================  ======================

Degrees of freedom are the rank of the weights minus one. B is :math:`ACA`. Numbers are those of R's
survey package, ``svrepdesign``.

References
----------
Rao, J. N. K. and Wu, C. F. J. (1988). J. Amer. Statist. Assoc. 83, 231-241. Judkins, D. R. (1990).
J. Official Statist. 6, 223-239. Lumley, T. (2010). Complex Surveys, chapter 2. Wiley.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import Dependence, GroupScores, Meat, Point, Structure, from_covariance
from etafree.errors import ConvergenceError, InputError
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_bool,
    as_choice,
    as_number,
    as_positive,
    owned,
)
from etafree.foundation.terminal import counted_noun
from etafree.optimize import minimise
from etafree.optimize.many import minimisers
from etafree.totals.base import require

KINDS = ("JK1", "JKn", "BRR", "Fay", "bootstrap")
#: A column whose distance from those before it is smaller, relative to its length, is their sum.
DEPENDENT = 1e-5


@dataclass(frozen=True, eq=False, repr=False)
class ReplicateWeights(Structure):
    r"""Replicate weights of a survey, as agencies publish them.

    The model is refitted with the weights of each replicate, and the variance is that of the
    refits. The criterion's own weights are those of the full sample, ``weight_kind="sampling"``.

    Parameters
    ----------
    weights : (n, R) array or DataFrame, names of columns, or a pattern
        One column per replicate. A DataFrame is matched by its index. A string is a regular
        expression that selects columns of the data by their names, for example ``"^repw"``.
    kind : {"JK1", "JKn", "BRR", "Fay", "bootstrap"}
        How the replicates were made, which determines `scale`.
    scale : float, optional
        Replaces the factor of the whole sum. For successive differences (as in the American
        Community Survey) use ``kind="BRR", scale=4 / R, mse=True``.
    rscales : float or (R,) array, optional
        Factors of the replicates, one by default; "JKn" needs them, or `strata`.
    rho : float, optional
        For "Fay", at least zero and below one.
    combined : bool
        Whether the replicate weights include the sampling weights. If not, they are multiplied by
        them.
    mse : bool
        Take deviations from the full-sample estimate, not from the mean of the refits.
    strata : (n,) labels or column name, optional
        For "JKn": factors are :math:`(n_h-1)/n_h` of the stratum where a replicate is zero.
    dof : float, optional
        Replaces the degrees of freedom, the rank of the weights minus one.

    Raises
    ------
    InputError
        An option is not one of its choices, or belongs to another kind.

    See Also
    --------
    etafree.Survey.replicates : Replicate weights of a design.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> mean = ef.Criterion(ef.losses.Squared(), data=(X, y))
    >>> t = ef.target(mean, dependence=ef.ReplicateWeights(1 - np.eye(4), "JK1"))
    >>> t.describe(), bool(np.isclose(t.covariance[0, 0], y.var(ddof=1) / 4))
    ('sandwich, 4 JK1 replicates, refits, t with 3 degrees of freedom', True)
    """

    weights: object = field(metadata={"labels": True})
    kind: str
    scale: float | None = None
    rscales: object = None
    rho: float | None = None
    combined: bool = True
    mse: bool = False
    strata: object = field(default=None, metadata={"labels": True})
    dof: float | None = None

    def __post_init__(self) -> None:
        as_choice(self.kind, "kind", KINDS)
        as_bool(self.combined, "combined")
        as_bool(self.mse, "mse")
        for name in ("scale", "dof"):
            if getattr(self, name) is not None:
                as_positive(getattr(self, name), name)
        if (self.kind == "Fay") != (self.rho is not None):
            problem = f"is {self.rho!r} for kind {self.kind!r}"
            raise InputError("rho", problem, "pass it with kind='Fay', and only then")
        if self.rho is not None and not 0 <= as_number(self.rho, "rho") < 1:
            raise InputError("rho", f"is {self.rho}", "pass at least zero and less than one")
        if self.kind != "JKn" and self.strata is not None:
            raise InputError("strata", "are for kind='JKn'", "leave them out, or pass rscales=")
        if self.kind == "JKn" and (self.rscales is None) == (self.strata is None):
            problem = "are needed for kind 'JKn', either or strata="
            advice = "pass (n_h - 1) / n_h of every replicate, or strata= to have them computed"
            raise InputError("rscales", problem, advice)

    def bind(self, rows: Rows, copies: bool = False) -> Replicates:
        """Return it bound to rows."""
        weights = as_array(_columns(rows, self.weights), "weights", ndim=2)
        many = weights.shape[1]
        if len(weights) != rows.used or many < 2:
            problem = f"has shape {weights.shape} for {rows.used} rows"
            raise InputError("weights", problem, "pass a column for each of several replicates")
        if np.any(weights < 0) or not np.all(weights.sum(axis=0) > 0):
            problem = "has negative values, or a replicate of zeros"
            raise InputError("weights", problem, "pass weights at least zero, some above")
        usual = {"JK1": (many - 1) / many, "JKn": 1.0, "bootstrap": 1 / (many - 1)}
        scale = usual.get(self.kind, 1 / (many * (1 - (self.rho or 0.0)) ** 2))
        each = 1.0 if self.rscales is None else as_array(self.rscales, "rscales")
        if (np.ndim(each) > 0 and np.shape(each) != (many,)) or np.any(np.asarray(each) < 0):
            problem = f"has shape {np.shape(each)} for {many} replicates, or negative values"
            raise InputError("rscales", problem, "pass one factor per replicate")
        if self.strata is not None:
            each = _jackknife_scales(weights, rows.groups(self.strata, "strata"))
        return Replicates(
            rows.each("weights"),
            owned(np.ascontiguousarray(weights.T)),
            self.kind,
            scale if self.scale is None else float(self.scale),
            np.broadcast_to(each, (many,)),
            self.combined,
            self.mse,
            self.dof,
        )


@dataclass(frozen=True, eq=False)
class Replicates(Dependence):
    """Replicate weights bound to rows."""

    groups: Groups  #: Every row as a group of its own.
    weights: Array  #: (R, n).
    kind: str
    scale: float
    rscales: Array  #: (R,).
    combined: bool
    mse: bool
    dof: float | None

    corrections = ("refits",)
    defaults = ("refits", "refits")
    other_corrections = "replicate weights have none: the estimator is fitted again under each"

    def check_size(self, weights: Array | None, p: int, fewer: str = "fit") -> None:
        """Refuse replicates too few to span a variance matrix."""
        many = int(np.count_nonzero(self.rscales))
        if many <= p:
            problem = f"has {many} replicate weights for {p} parameters"
            raise InputError(
                "dependence", problem, f"{fewer} at most {counted_noun(many - 1, 'parameter')}"
            )

    def check_draws(self) -> None:
        """Refuse draws with log-likelihoods: there is nothing to fit again."""
        problem = "are replicate weights, and there is no criterion to refit with them"
        raise InputError("dependence", problem, "pass a criterion or model=, or use ef.Survey")

    def summed(self, correction: str) -> None:
        """Return None: no sums of scores are needed."""

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Refuse: scores of groups do not give refits."""
        raise InputError("correction", f"is {correction!r}", "replicates need a criterion")

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the variance of the refits, and the variance of the total that it implies."""
        criterion, weights = at.criterion, self.weights
        require(criterion.total, "memory", "dependence")
        if not self.combined and criterion.total.weights is not None:
            weights = weights * criterion.total.weights
        fit = minimise(criterion, at.theta)
        refits = minimisers(criterion, fit, weights, "sampling", at.stacked)
        many, failed = len(weights), int(np.count_nonzero(~refits.found))
        if failed:
            problem = f"{failed} of {many} replicates have no minimiser (separated or collinear)"
            raise ConvergenceError(f"{problem}; add penalty=ef.penalties.Ridge(...)")
        mean = refits.thetas[self.rscales > 0].mean(axis=0)
        deviations = refits.thetas - (fit.theta if self.mse else mean)
        covariance = self.scale * (deviations.T * self.rscales) @ deviations
        dof = float(column_rank(weights.T) - 1) if self.dof is None else float(self.dof)
        design = f"{many} {self.kind} replicates"
        matrices = from_covariance(covariance, at.whiten)
        return Meat(*matrices, dof, correction, many, design=design)


def column_rank(matrix: Array) -> int:
    """Return how many columns are no sum of earlier ones, by the tolerance of R's ``degf``."""
    unit = matrix / np.sqrt(np.square(matrix).sum(axis=0))
    left, count = unit.T @ unit, 0
    for j in range(len(left)):  # what earlier columns explain is taken off
        if left[j, j] > DEPENDENT**2:
            count += 1
            left[j + 1 :] -= np.outer(left[j + 1 :, j] / left[j, j], left[j])
    return count


def _columns(rows: Rows, weights: object) -> object:
    """Return columns of weights (n, R) from what a user passes."""
    if isinstance(weights, str):
        table = getattr(rows.table, "columns", rows.table)
        known = [name for name in (() if table is None else table) if isinstance(name, str)]
        try:
            names = [name for name in known if re.search(weights, name)]
        except re.error as error:
            advice = "pass a regular expression, or names of columns in a list"
            raise InputError("weights", f"is not a valid pattern ({error})", advice) from None
        if not names:
            problem = f"matches no column name: {weights!r}"
            raise InputError("weights", problem, f"columns: {known[:20]}")
        weights = names
    if isinstance(weights, list | tuple) and weights and all(isinstance(w, str) for w in weights):
        return np.column_stack([rows.align(name, "weights") for name in weights])
    return rows.align(weights, "weights")


def _jackknife_scales(weights: Array, strata: Groups) -> Array:
    """Return (n_h - 1) / n_h for the stratum h of the rows that each replicate leaves out."""
    dropped = (weights == 0) & (weights > 0).any(axis=1, keepdims=True)
    low = np.where(dropped, strata.codes[:, None], len(strata)).min(axis=0)
    high = np.where(dropped, strata.codes[:, None], -1).max(axis=0)
    for k in np.flatnonzero(low != high)[:1]:
        problem = f"do not say whose PSU replicate {k} leaves out: it is zero in none or several"
        raise InputError("strata", problem, "pass rscales=")
    return np.asarray(1.0 - 1.0 / np.bincount(low, minlength=len(strata))[low])


def jackknife_factors(
    codes: NDArray[np.intp], counts: NDArray[np.intp], sampled: Array
) -> tuple[Array, Array]:
    """Return factors of PSUs (C, R) with one left out at a time, and the replicates' own (R,).

    A stratum of one PSU, or one that was sampled whole, has no replicate.
    """
    left = np.flatnonzero(((counts > 1) & (sampled < 1))[codes])
    stratum = codes[left]
    several = counts / np.maximum(counts - 1, 1)
    factors = np.where(codes[:, None] == stratum, several[stratum], 1.0)
    factors[left, np.arange(len(left))] = 0.0
    return factors, (1.0 - sampled[stratum]) / several[stratum]


def bootstrap_factors(
    codes: NDArray[np.intp],
    counts: NDArray[np.intp],
    sampled: Array,
    many: int,
    rng: np.random.Generator,
) -> Array:
    r"""Return Rao and Wu's factors of PSUs (C, R), with :math:`n_h-1` drawn in each stratum."""
    factors = np.ones((len(codes), many))
    for h in np.flatnonzero(counts > 1):
        n = int(counts[h])
        drawn = rng.multinomial(n - 1, np.full(n, 1 / n), size=many).T
        factors[codes == h] += np.sqrt(1.0 - sampled[h]) * (n / (n - 1) * drawn - 1.0)
    return factors


def balanced_factors(codes: NDArray[np.intp], strata: int, rho: float) -> Array:
    """Return the factors (C, R) of balanced half-samples of strata of two PSUs."""
    signs = np.ones((1, 1))
    while len(signs) <= strata:  # Sylvester's matrices; the first row is not balanced
        signs = np.block([[signs, signs], [signs, -signs]])
    _, first = np.unique(codes, return_index=True)
    side = np.ones(len(codes))
    side[first] = -1.0
    return np.asarray(1.0 + (1.0 - rho) * side[:, None] * signs[1 + codes])

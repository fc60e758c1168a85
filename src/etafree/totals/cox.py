r"""Cox's regression: minus the log partial likelihood, and what each row has in it.

At an event time :math:`t_k` of a stratum the risk set :math:`R_k` holds its rows with entry
:math:`<t_k\le` time: who is censored at :math:`t_k` is in it. Rows weigh :math:`w_i`, and
:math:`r_i=\exp(x_i^\top\theta)`. Of :math:`d_k` events at once, l of :math:`d_k` (l = 0, 1, ...,
:math:`d_k-1`) are taken to have left the risk set (Efron), or none (Breslow):

.. math:: M(\theta) = -\sum_{\text{events}}w_ix_i^\top\theta + \sum_{k,l}v_k\log S_{kl},\qquad
   S_{kl}=\sum_{R_k}w_ir_i-\frac{l}{d_k}\sum_{\text{events at }t_k}w_ir_i,

with :math:`v_k` the mean weight of the events. Copies by frequency weights are events of their own:
then :math:`d_k` counts them, and :math:`v_k=1`. With :math:`\bar x_{kl}` and :math:`V_{kl}` mean
and variance of x under the weights in :math:`S_{kl}`, :math:`\nabla M=-\sum w_ix_i+\sum
v_k\bar x_{kl}` and :math:`\nabla^2M=\sum v_kV_{kl}`.

This is no sum over rows. A row's score is that of Lin and Wei (1989),

.. math:: \psi_i = -\int(x_i-\bar x)\,w_idM_i,\qquad dM_i = dN_i-r_id\Lambda,\quad
   d\Lambda_{kl}=v_k/S_{kl},

which is :math:`w_i\partial(\nabla M)/\partial w_i`: the partial likelihood is homogeneous in the
weights, so these add up to the gradient. If hazards are proportional its variance is

.. math:: Q_i = \int(x_i-\bar x)(x_i-\bar x)^\top w_i^2r_id\Lambda,

and these add up to the Hessian where weights are one. A cluster g takes its rows out of all risk
sets when it leaves, so its share of gradient and Hessian is :math:`\nabla M-\nabla M_{-g}` and
:math:`A-A_{-g}`: then CR3 (HC3) is the jackknife by one Newton step for every cluster (row) that
is left out. Refits agree within one per cent of a standard error for R's lung and heart; with 26
rows (ovarian) or one row that decides alone they differ by up to 17. Where rows times clusters are
many, shares are those to first order, :math:`\psi_g` and

.. math:: \nabla\psi_g = \sum_{i\in g}\int(x_i-\bar x)(x_i-\bar x)^\top w_ir_id\Lambda
   +\int V\,w_idM_i.

References
----------
Cox, D. R. (1972). J. Roy. Statist. Soc. B 34, 187-220. Efron, B. (1977). J. Amer. Statist. Assoc.
72, 557-565. Lin, D. Y. and Wei, L. J. (1989). J. Amer. Statist. Assoc. 84, 1074-1078. Therneau, T.
M. and Grambsch, P. M. (2000). Modeling Survival Data. Springer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.data.formula import Context, Design, design
from etafree.data.groups import Groups
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_array, as_choice, axis_names
from etafree.totals.base import ClusterBlock, ClusterTotals, Derivatives, GeneralLoss, Total

if TYPE_CHECKING:
    import pandas as pd

#: Times that differ by less than this share of the mean time are the same, as in R's survival.
ROUNDING = 1.5e-8
#: The least sum over a risk set: linear predictors may differ by 690 in a stratum.
LEAST = 1e-300
#: Numbers in the predictors of many parameters, and in the Hessians of a block of clusters.
BLOCK, HESSIANS = 1 << 20, 1 << 22
#: Rows times clusters up to which each cluster is left out in turn.
LEAVING = 1_000_000
#: Copies of rows with events that Efron's ties count one by one.
COPIES = 10_000_000
Index = NDArray[np.intp]


class _Survival(NamedTuple):
    """When rows come and go: whole numbers in the order of times; no entry is -1."""

    entry: Index
    time: Index
    event: NDArray[np.bool_]
    stratum: Index


class _Layout(NamedTuple):
    """Rows with weight in strata with events, latest time first; event times, earliest first.

    Sums are taken within strata, and `_sums` puts a zero before each: "first" and "last" are places
    in what it returns.
    """

    rows: Index
    edges: Index  #: of strata among rows
    X: Array  #: in deviations from the stratum's mean
    w: Array
    deaths: Index  #: places of rows with events, in the order of event times
    risk_last: Index  #: (K,) rows whose time is not before an event time
    by_entry: Index | None
    late_last: Index | None  #: (K,) rows, sorted by entry, who come too late
    times: Index  #: edges of strata among event times
    first: Index  #: (m,) event times before a row is at risk
    last: Index  #: (m,) and until it leaves
    own: Index  #: (deaths,) the event time of each
    firsts: Index  #: (K,) the first of its deaths
    term: Index  #: (T,) the event time of each term
    terms: Index  #: (K,) its first term
    fraction: Array  #: (T,) l over d
    mass: Array  #: (T,) weight


class _Fields(NamedTuple):
    """What sums over risk sets are at theta, see the head of this file."""

    logs: Array  #: (T,) log S less the largest predictor of its stratum
    behind: Array  #: (deaths,) predictor less that largest one
    r: Array  #: (m,) weighted relative risks, up to the stratum's factor
    hazard: Array  #: (T,) mass over S
    mean: Array  #: (T, p)


def _sums(values: Array, edges: Index) -> Array:
    """Return sums of the first 0, 1, ... rows of each stratum, (m, ...) -> (m + strata, ...)."""
    out = np.zeros((len(values) + len(edges) - 1, *values.shape[1:]))
    for k, (a, b) in enumerate(pairwise(edges)):
        np.cumsum(values[a:b], axis=0, out=out[a + k + 1 : b + k + 1])
    return out


def _layout(X: Array, s: _Survival, weights: Array | None, frequency: bool, ties: str) -> _Layout:
    """Sort rows, and find risk sets and ties."""
    w = np.ones(len(X)) if weights is None else weights
    eventful = np.bincount(s.stratum[s.event & (w > 0)], minlength=s.stratum.max() + 1) > 0
    rows = np.flatnonzero((w > 0) & eventful[s.stratum])
    stratum = (np.cumsum(eventful) - 1)[s.stratum[rows]]
    many = int(max(s.time.max(), s.entry.max())) + 2  # entries start at -1
    order = np.argsort(stratum * many - s.time[rows], kind="stable")
    rows, stratum = rows[order], stratum[order]
    time, entry, event, w = s.time[rows] + 1, s.entry[rows] + 1, s.event[rows], w[rows]
    strata = np.arange(stratum[-1] + 2)
    edges = np.searchsorted(stratum, strata)
    sizes = np.add.reduceat(w, edges[:-1])
    X = X[rows]
    X = X - (np.add.reduceat(w[:, None] * X, edges[:-1]) / sizes[:, None])[stratum]
    keys = stratum * many + time
    moments, count = np.unique(keys[event], return_counts=True)
    place = moments // many  # the stratum of every event time
    backwards = place * many + many - moments % many
    risk_last = np.searchsorted(stratum * many + many - time, backwards, "right") + place
    by_entry, late_last = None, None
    if entry.any():
        late = stratum * many + many - entry
        by_entry = np.argsort(late, kind="stable")
        late_last = np.searchsorted(late[by_entry], backwards, "right") + place
    deaths = np.flatnonzero(event)
    deaths = deaths[np.argsort(keys[deaths], kind="stable")]
    own, firsts = np.searchsorted(moments, keys[deaths]), np.cumsum(count) - count
    mass = np.add.reduceat(w[deaths], firsts)
    if ties == "breslow":
        count = np.ones_like(count)
    elif frequency:
        count = mass.astype(np.intp)
    if count.sum() > COPIES + len(X):
        raise InputError("weights", f"make {mass.sum():.3g} events", "use ef.Cox('breslow')")
    term, terms = np.repeat(np.arange(len(count)), count), np.cumsum(count) - count
    return _Layout(
        rows,
        edges,
        X,
        w,
        deaths,
        risk_last,
        by_entry,
        late_last,
        np.searchsorted(place, strata),
        np.searchsorted(moments, stratum * many + entry, "right") + stratum,
        np.searchsorted(moments, keys, "right") + stratum,
        own,
        firsts,
        term,
        terms,
        (np.arange(len(term)) - terms[term]) / count[term],
        (mass / count)[term],
    )


def _at_risk(g: _Layout, values: Array) -> tuple[Array, Array]:
    """Return sums over risk sets at event times (K, ...), and over the events alone."""
    risk = _sums(values, g.edges)[g.risk_last]
    if g.by_entry is not None and g.late_last is not None:
        risk -= _sums(values[g.by_entry], g.edges)[g.late_last]
    return risk, np.add.reduceat(values[g.deaths], g.firsts)


def _terms(g: _Layout, values: Array) -> Array:
    """Return sums over the risk sets of terms (T, ...), without those taken to have left."""
    risk, died = _at_risk(g, values)
    fraction = g.fraction.reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(risk[g.term] - fraction * died[g.term])


def _risks(g: _Layout, u: Array) -> tuple[Array, Array, Array]:
    """Return logs of sums and predictors of events, and weighted risks, of (m,) or (m, D)."""
    top = np.maximum.reduceat(u, g.edges[:-1])
    u = u - np.repeat(top, np.diff(g.edges), axis=0)
    r = g.w.reshape(-1, *[1] * (u.ndim - 1)) * np.exp(u)
    return np.log(np.maximum(_terms(g, r), LEAST)), u[g.deaths], r


@dataclass(frozen=True, eq=False)
class CoxTotal(Total):
    """Minus the log partial likelihood of weighted rows."""

    traits: ClassVar[frozenset[str]] = frozenset({"leverage", "memory"})

    loss: Cox
    X: Array
    survival: _Survival
    weights: Array | None = None
    frequency: bool = True

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def p(self) -> int:
        return int(self.X.shape[1])

    @cached_property
    def _plan(self) -> _Layout:
        w, event = self.weights, self.survival.event
        if not np.any(event if w is None else event & (w > 0)):
            advice = "code 1 for an event and 0 for a censored time, and give some events weight"
            raise InputError("event", "never happens", advice)
        return _layout(self.X, self.survival, w, self.frequency, self.loss.ties)

    @cached_property
    def column_norms(self) -> Array:
        """Euclidean norm of every column in deviations from its strata's means."""
        return np.asarray(np.linalg.norm(self._plan.X, axis=0))

    def reweighted(self, weights: Array | None, frequency: bool) -> CoxTotal:
        return replace(self, weights=weights, frequency=frequency)

    def _fields(self, theta: Array) -> _Fields:
        g = self._plan
        logs, behind, r = _risks(g, g.X @ theta)
        size = np.exp(logs)
        mean = _terms(g, r[:, None] * g.X) / size[:, None]
        return _Fields(logs, behind, r, g.mass / size, mean)

    def _over_time(self, values: Array) -> Array:
        """Return sums of what terms hold (T, ...) over the times at which rows are at risk."""
        g = self._plan
        each = np.add.reduceat(values, g.terms)
        total = _sums(each, g.times)
        summed = total[g.last] - total[g.first]
        fraction = g.fraction.reshape(-1, *[1] * (values.ndim - 1))
        summed[g.deaths] -= np.add.reduceat(fraction * values, g.terms)[g.own]
        return np.asarray(summed)

    def _of_events(self, values: Array) -> Array:
        """Return the mean over the terms of each event's time, (T, ...) -> (deaths, ...)."""
        g = self._plan
        count = np.diff(g.terms, append=len(g.term)).reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray((np.add.reduceat(values, g.terms) / count)[g.own])

    def values(self, theta: Array) -> Array:
        """Return what events add to the total (n,)."""
        g, f = self._plan, self._fields(theta)
        out = np.zeros(self.n)
        out[g.rows[g.deaths]] = g.w[g.deaths] * (self._of_events(f.logs) - f.behind)
        return out

    def scores(self, theta: Array) -> Array:
        """Return Lin and Wei's weighted scores (n, p); they add up to the gradient."""
        g, f = self._plan, self._fields(theta)
        out = np.zeros((self.n, self.p))
        own = self._over_time(f.hazard)[:, None] * g.X
        own -= self._over_time(f.hazard[:, None] * f.mean)
        own *= f.r[:, None]
        own[g.deaths] -= g.w[g.deaths, None] * (g.X[g.deaths] - self._of_events(f.mean))
        out[g.rows] = own
        return out

    def derivatives(self, theta: Array, *, majorize: bool = False) -> Derivatives:
        """Return value, gradient and Hessian in O(n p^2) operations; it is convex."""
        g, f = self._plan, self._fields(theta)
        died = g.w[g.deaths]
        value = float(g.mass @ f.logs - died @ f.behind)
        gradient = g.mass @ f.mean - died @ g.X[g.deaths]
        scale = g.mass @ np.abs(f.mean) + died @ np.abs(g.X[g.deaths])
        hessian = (g.X.T * (f.r * self._over_time(f.hazard))) @ g.X
        hessian -= (f.mean.T * g.mass) @ f.mean
        return Derivatives(value, gradient, 0.5 * (hessian + hessian.T), scale)

    def totals(self, thetas: Array) -> Array:
        """Return the total loss at each of many parameter values, (D, p) -> (D,)."""
        g, out = self._plan, np.zeros(len(thetas))
        step = max(1, BLOCK // max(len(g.w), len(g.mass)))
        for k in range(0, len(thetas), step):
            logs, behind, _ = _risks(g, g.X @ thetas[k : k + step].T)
            out[k : k + step] = g.mass @ logs - g.w[g.deaths] @ behind
        return out

    def cluster_totals(self, theta: Array, groups: Groups) -> ClusterTotals:
        """Return gradient, Hessian and the score sums of clusters."""
        here, sums = self.derivatives(theta), np.zeros((len(groups), self.p))
        np.add.at(sums, groups.codes, self.scores(theta))
        return ClusterTotals(here.gradient, here.hessian, sums, groups.weights(self.weights))

    def cluster_blocks(self, theta: Array, groups: Groups) -> Iterator[ClusterBlock]:
        """Yield what leaves gradient and Hessian with the clusters of a block."""
        f, codes, step = self._fields(theta), groups.codes, max(1, HESSIANS // self.p**2)
        totals = self.cluster_totals(theta, groups)
        for first in range(0, len(groups), step):
            count = min(step, len(groups) - first)
            inside = (codes >= first) & (codes < first + count)
            hessians, variances = self._shares(f, np.where(inside, codes - first, count), count)
            scores, weights = (each[first : first + count] for each in totals[2:])
            if len(groups) * self.n <= LEAVING:
                scores, hessians = self._leaving(theta, groups)
            yield ClusterBlock(first, scores, hessians, weights, variances)

    def _leaving(self, theta: Array, groups: Groups) -> tuple[Array, Array]:
        """Return what leaves gradient and Hessian with each cluster, remembered for the last."""
        key = (theta.tobytes(), groups.codes.tobytes())
        if self.__dict__.get("_left", (None,))[0] != key:
            w = np.ones(self.n) if self.weights is None else self.weights
            here, p = self.derivatives(theta), self.p
            scores, hessians = np.zeros((len(groups), p)), np.zeros((len(groups), p, p))
            for k in np.flatnonzero(groups.weights(w)):
                others = np.where(groups.codes == k, 0.0, w)
                stays = np.any(self.survival.event & (others > 0))
                left = replace(self, weights=others).derivatives(theta) if stays else None
                scores[k] = here.gradient - (0.0 if left is None else left.gradient)
                hessians[k] = here.hessian - (0.0 if left is None else left.hessian)
            self.__dict__["_left"] = key, scores, hessians
        _, scores, hessians = self.__dict__["_left"]
        return scores, hessians

    def _shares(self, f: _Fields, codes: Index, count: int) -> tuple[Array, Array]:
        """Return shares to first order, and working variances, a row of them at a time.

        `codes` are the rows' clusters; `count` stands for all others.
        """
        g = self._plan
        codes, died = codes[g.rows], g.w[g.deaths]
        twice = np.ones(len(g.w)) if self.frequency else g.w  # in a variance
        hazard = self._over_time(f.hazard)
        moved = self._over_time(f.hazard[:, None] * f.mean)
        hessians, variances = np.zeros((2, count, self.p, self.p))
        r, hazards, died = f.r[:, None], f.hazard[:, None], died[:, None]
        for a in range(self.p):
            x, mean = g.X[:, [a]], f.mean[:, [a]]
            product, means = x * g.X[:, : a + 1], mean * f.mean[:, : a + 1]
            spread = _terms(g, r * product) * hazards / g.mass[:, None] - means
            own = (
                hazard[:, None] * product - x * moved[:, : a + 1] - g.X[:, : a + 1] * moved[:, [a]]
            )
            own = r * (own + self._over_time(hazards * means))
            left = own - r * self._over_time(hazards * spread)
            left[g.deaths] += died * self._of_events(spread)
            for out, each in ((hessians, left), (variances, twice[:, None] * own)):
                for b in range(a + 1):
                    out[:, a, b] = np.bincount(codes, each[:, b], count + 1)[:count]
                    out[:, b, a] = out[:, a, b]
        return hessians, variances


@dataclass(frozen=True)
class Cox(GeneralLoss):
    r"""Cox's proportional hazards: minus the log partial likelihood of censored times.

    Its criterion takes ``data=(X, survival)``, X without an intercept, and survival a DataFrame
    with columns ``time``, ``event`` (1 or True, 0 or False if censored) and if need be ``entry``
    (at risk from then on, not at that time) and ``strata`` (labels, each with a baseline hazard of
    its own); or an array of (time, event), or of (entry, time, event). Or it comes from a formula
    in R's words, ``Surv(time, event) ~ age + strata(site)`` or ``Surv(start, stop, event) ~ age``.

    A row's score is that of Lin and Wei, so the target with ``correction="CR0"`` (``"HC0"``) is
    what R's `coxph` reports with ``cluster=`` (``robust=TRUE``). Rows that are intervals of one
    person need ``clusters=`` persons.

    Parameters
    ----------
    ties : {"efron", "breslow"}
        Which risk sets events at the same time have. Times that differ by rounding are the same.

    Raises
    ------
    InputError
        `ties` is neither. The criterion refuses data without events, entries that are not before
        their times, and events that are not coded 0 and 1.

    See Also
    --------
    JaxLoss : For parametric models of censored times.

    Notes
    -----
    The learning rate multiplies the log partial likelihood; rows count in :math:`s_n`, censored or
    not. What needs the loss of a single row (SafeBayes, say) is refused. Weights: under
    ``"sampling"`` Efron's ties are those of `coxph`, under ``"frequency"`` rows are repeated.

    References
    ----------
    Cox, D. R. (1972). Regression models and life-tables. J. Roy. Statist. Soc. B 34, 187-220.
    Lin, D. Y. and Wei, L. J. (1989). The robust inference for the Cox proportional hazards model.
    J. Amer. Statist. Assoc. 84, 1074-1078.

    Examples
    --------
    >>> import etafree as ef, pandas as pd
    >>> df = pd.DataFrame({"days": [5, 8, 8, 12, 20], "died": [1, 1, 0, 1, 0]})
    >>> df["dose"] = [1.0, 0.0, 2.0, 1.0, 0.0]
    >>> criterion = ef.Criterion.from_formula("Surv(days, died) ~ dose", df, ef.Cox())
    >>> criterion.names, ef.minimise(criterion).theta.round(4)
    (('dose',), array([-0.0336]))
    >>> same = ef.Criterion(ef.Cox(), data=(df[["dose"]], df[["days", "died"]].to_numpy()))
    >>> ef.minimise(same).theta.round(4), ef.Cox().describe()
    (array([-0.0336]), "minus Cox's log partial likelihood, in expectation")
    """

    ties: str = "efron"

    convex: ClassVar[bool] = True
    unit_free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        as_choice(self.ties, "ties", ("efron", "breslow"))

    def describe(self) -> str:
        """Return what is minimised, in words."""
        return "minus Cox's log partial likelihood, in expectation"

    def count(self, data: object) -> int:
        if not isinstance(data, tuple) or len(data) != 2:
            advice = "pass a tuple (X, survival), or use ef.Criterion.from_formula"
            raise InputError("data", f"is a {type(data).__name__}", advice)
        return len(as_array(data[0], "X", ndim=2))

    def bind(
        self, data: Any, start: object, weights: Array | None, frequency: bool
    ) -> tuple[CoxTotal, Array, tuple[str, ...] | None]:
        """Return the total, zeros (p,) and the names of X's columns."""
        X = np.ascontiguousarray(as_array(data[0], "X", ndim=2))
        if X.shape[1] == 0:
            raise InputError("X", f"has shape {X.shape}", "pass at least one column")
        total = CoxTotal(self, X, _survival(data[1], len(X)), weights, frequency)
        names = axis_names(data[0])
        still = np.flatnonzero(total.column_norms <= 1e-12 * np.abs(X).max(axis=0) * len(X) ** 0.5)
        if len(still):
            problem = f"column {still[0] if names is None else repr(names[still[0]])} is constant"
            raise InputError("X", problem, "leave it out: no hazard ratio depends on it")
        shape = (total.p,)
        first = as_array(np.zeros(shape) if start is None else start, "start", shape=shape)
        return total, first, names

    def bind_formula(self, formula: str, data: object, context: Context) -> tuple[Design, object]:
        """Return the design matrix of ``Surv(time, event) ~ x + strata(z)``, and (X, survival)."""
        own = {"Surv": _surv, "strata": _strata, "cluster": _cluster}
        matrix = design(formula, data, {**own, **(context or {})}, responses=True)
        if matrix.y.ndim == 1:
            advice = 'write "Surv(time, event) ~ age + strata(site)"'
            raise InputError("formula", f"{formula!r:.80} has one response", advice)
        stratum = [name.startswith("strata(") and ":" not in name for name in matrix.names]
        used = [
            name != "Intercept" and not of for name, of in zip(matrix.names, stratum, strict=True)
        ]
        names = tuple(name for name, kept in zip(matrix.names, used, strict=True) if kept)
        if any("strata(" in name for name in names):
            problem = f"{formula!r:.80} multiplies strata with a covariate"
            raise InputError("formula", problem, "write C(site):age + strata(site)")
        if not names:
            raise InputError("formula", f"{formula!r:.80} has no covariates", "name one")
        survival = _columns(matrix.y)
        if any(stratum):
            survival["strata"] = np.unique(matrix.X[:, stratum], axis=0, return_inverse=True)[1]
        X = np.ascontiguousarray(matrix.X[:, used])
        return matrix._replace(X=X, names=names, intercept=None), (X, survival)


def _surv(*columns: object) -> dict[str, pd.Series]:
    """Return the columns of ``Surv(time, event)`` or ``Surv(start, stop, event)``."""
    import pandas as pd

    if len(columns) not in (2, 3):
        advice = "write Surv(time, event) or Surv(start, stop, event)"
        raise InputError("formula", f"calls Surv() with {len(columns)} columns", advice)
    return {f"{k}": pd.Series(each).astype(float) for k, each in enumerate(columns)}


def _strata(*columns: object) -> Array:
    """Return a number for each combination of labels, NaN where one is missing."""
    import pandas as pd

    table = pd.DataFrame({k: pd.Series(each) for k, each in enumerate(columns)})
    codes = table.groupby(list(table), sort=True, dropna=True, observed=True).ngroup()
    return np.asarray(codes.where(table.notna().all(axis=1)), dtype=np.float64)


def _cluster(*columns: object) -> None:
    raise InputError("formula", "has cluster()", "pass clusters= to ef.calibrate or ef.target")


def _columns(survival: Any) -> dict[str, Any]:
    """Return the columns of a table or dict, or of an array (n, 2) or (n, 3), by name."""
    if hasattr(survival, "columns") or isinstance(survival, dict):
        names = getattr(survival, "columns", survival)
        columns = {str(name): survival[name] for name in names}
        known = {"time", "event", "entry", "strata"}
        if not {"time", "event"} <= set(columns) <= known:
            problem = f"has the columns {list(columns)}"
            advice = "name them time and event and, if present, entry and strata"
            raise InputError("survival", problem, advice)
        return columns
    table = as_array(survival, "survival", ndim=2)
    if table.shape[1] not in (2, 3):
        advice = "pass columns (time, event) or (entry, time, event), or a DataFrame"
        raise InputError("survival", f"has {table.shape[1]} columns", advice)
    return dict(zip(("entry", "time", "event")[3 - table.shape[1] :], table.T, strict=True))


def _survival(survival: object, n: int) -> _Survival:
    """Return checked times as ranks; those that differ by rounding are the same."""
    columns = _columns(survival)
    numbers = {
        name: as_array(columns[name], name, shape=(n,))
        for name in ("entry", "time", "event")
        if name in columns
    }
    event = numbers.pop("event")
    if not np.isin(event, (0.0, 1.0)).all():
        problem = f"has the values {np.unique(event)[:5].tolist()}"
        raise InputError(
            "event", problem, "code 1 for an event, 0 for a censored time: status == 2"
        )
    every, inverse = np.unique(np.concatenate(list(numbers.values())), return_inverse=True)
    apart = np.diff(every) > ROUNDING * np.abs(every).mean()
    ranks = np.concatenate([[0], np.cumsum(apart)])[inverse].reshape(len(numbers), n)
    time, entry = ranks[-1], ranks[0] if len(ranks) == 2 else np.full(n, -1)
    wrong = np.flatnonzero(entry >= time)
    if len(wrong):
        problem = f"is not before time in {len(wrong)} rows, the first row {wrong[0]}"
        raise InputError("entry", problem, "rows are at risk after entry, until time")
    labels = columns.get("strata")
    stratum = np.zeros(n, np.intp) if labels is None else Groups.of(labels, n, "strata").codes
    return _Survival(entry, time, event > 0, stratum)

r"""Serial dependence: the long-run variance of scores in time.

Equal-weighted cosines (the default): with T periods and :math:`\nu=\lfloor .4T^{2/3}\rfloor`,

.. math::

    \Lambda_j = (2/T)^{1/2}\sum_t \psi_t\cos\{\pi j(t-\tfrac12)/T\},\qquad
    B = \frac T\nu\sum_{j\le\nu}\Lambda_j\Lambda_j^\top,

referred to t with :math:`\nu` degrees of freedom (Lazarus, Lewis, Stock and Watson 2018). Bartlett
weights :math:`1-j/(L+1)` on the autocovariances up to lag L (Newey and West 1987), L given or
chosen from the data (Newey and West 1994), refer to the normal. In a panel the scores of a period
are summed over units first (Driscoll and Kraay 1998), which allows dependence between units too.

References
----------
Lazarus, E., Lewis, D. J., Stock, J. H. and Watson, M. W. (2018). J. Bus. Econ. Statist. 36,
541-559. Newey, W. K. and West, K. D. (1987) Econometrica 55, 703-708; (1994) Rev. Econ. Stud. 61,
631-653. Driscoll, J. C. and Kraay, A. C. (1998). Rev. Econ. Statist. 80, 549-560.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import Dependence, Form, GroupScores, Meat, Structure, finish
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_number
from etafree.foundation.check import Finding


@dataclass(frozen=True, eq=False, repr=False)
class TimeSeries(Structure):
    """Rows are a time series, a row per period.

    Parameters
    ----------
    time : (n,) numbers or dates, or column name
        Order of the rows.
    bandwidth : int or "newey-west", optional
        Number of cosines (EWC, default .4 T^{2/3}) or of lags (default: Newey and West 1994).

    See Also
    --------
    etafree.calibrate, etafree.target : What takes it, as ``dependence=``.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((40, 1)), np.random.default_rng(0).standard_normal(40)
    >>> criterion = ef.Criterion(ef.losses.Squared(), data=(X, y))
    >>> ef.target(criterion, dependence=ef.TimeSeries(np.arange(40))).describe()
    'sandwich, a series of 40 periods, 4 cosines, EWC, t with 4 degrees of freedom'
    """

    time: object = field(metadata={"labels": True})
    bandwidth: object = None

    def bind(self, rows: Rows, copies: bool = False) -> Periods:
        """Return it bound to rows; copies of a row have no place in time."""
        periods = _periods(rows, self.time, copies)
        if len(periods) < rows.used:
            problem = f"repeats, for example {periods.labels[periods.sizes().argmax()]!s}"
            advice = "pass ef.Panel(unit, time) for a panel, or one row per period"
            raise InputError("time", problem, advice)
        return Periods(periods, 1, *_left_out(periods.labels), self.bandwidth)


@dataclass(frozen=True, eq=False, repr=False)
class Panel(Structure):
    """Rows are a panel, a row per unit and period; units may depend on each other.

    Scores are summed over units within periods (Driscoll and Kraay).

    Parameters
    ----------
    unit : (n,) labels or column name
        Whom a row is about.
    time : (n,) numbers or dates, or column name
        When.
    bandwidth : int or "newey-west", optional
        As for `TimeSeries`.

    See Also
    --------
    etafree.calibrate, etafree.target : What takes it, as ``dependence=``.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((80, 1)), np.random.default_rng(0).standard_normal(80)
    >>> criterion = ef.Criterion(ef.losses.Squared(), data=(X, y))
    >>> panel = ef.Panel(np.repeat(["a", "b"], 40), np.tile(np.arange(40), 2))
    >>> ef.target(criterion, dependence=panel).design
    'a panel of 2 units over 40 periods, 4 cosines'
    """

    unit: object = field(metadata={"labels": True})
    time: object = field(metadata={"labels": True})
    bandwidth: object = None

    def bind(self, rows: Rows, copies: bool = False) -> Periods:
        """Return it bound to rows; copies of a row have no place in time."""
        periods = _periods(rows, self.time, copies)
        panel = rows.groups(self.unit, "unit")
        cells, (unit, period) = panel.crossed(periods)
        counts = cells.sizes()
        if len(cells) < rows.used:
            worst = int(counts.argmax())
            who, when = panel.labels[unit.codes[worst]], periods.labels[period.codes[worst]]
            problem = f"has {counts[worst]} rows of unit {who!s} at {when!s}"
            raise InputError("time", problem, "pass one row per unit and period")
        return Periods(periods, len(panel), *_absent(unit, period), self.bandwidth)


@dataclass(frozen=True, eq=False)
class Periods(Dependence):
    """Rows in time, of one unit or of a panel; periods may depend on each other."""

    groups: Groups  #: Periods in their order.
    units: int
    #: Steps left out of the series, or periods that units lack between their first and last.
    missing: int = 0
    example: str = ""  #: Where the first of them is.
    bandwidth: object = None

    corrections = ("EWC", "Bartlett", "DK")
    defaults = ("EWC", "EWC")
    argument = "time"

    def correction(self, asked: object, without_shares: tuple[str, str] | None = None) -> str:
        """Return the correction by name; lags have one name in a series, another in a panel."""
        name = super().correction(asked, without_shares)
        if name not in ("EWC", self._lagged):
            advice = "'Bartlett' is for one series, 'DK' for the period totals of a panel"
            raise InputError("correction", f"is {name!r}", advice)
        return name

    @property
    def _lagged(self) -> str:
        return "Bartlett" if self.units == 1 else "DK"

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the long-run variance from the scores of periods."""
        sums, whiten = scores.sums, scores.whiten
        many, p = sums.shape
        series = f"a panel of {self.units} units over" if self.units > 1 else "a series of"
        if correction == "EWC":
            terms = _cosine_count(self.bandwidth, many, p, self._lagged)
            whitened, dof, window = cosines(sums, terms), float(terms), f"{terms} cosines"
            factor = np.pi**2 / 3 * (terms / many) ** 2
            bias = _bias(sums @ whiten, lambda rho: factor * rho / (1 - rho) ** 2)
        else:
            lag = self._lag(scores)
            whitened, dof, window = bartlett(sums, lag), np.inf, f"{lag} lags"
            bias = _bias(sums @ whiten, lambda rho: 2 * rho / (1 - rho**2) / (lag + 1))
        lost = "steps are left out" if self.units == 1 else "periods of units are absent"
        gaps = Finding("time gaps", self.missing, {"what": f"{lost} ({self.example})"})
        design, findings = (
            f"{series} {many} periods, {window}",
            (Finding("persistence", bias), gaps),
        )
        matrices = finish(whitened, whiten)
        return Meat(*matrices, dof, correction, design=design, findings=findings)

    def form(self, scores: GroupScores, correction: str) -> tuple[Meat, Form]:
        """Return the meat and its form, at the lag that these scores choose."""
        fixed = self if correction == "EWC" else replace(self, bandwidth=self._lag(scores))
        return Dependence.form(fixed, scores, correction)

    def _lag(self, scores: GroupScores) -> int:
        if self.bandwidth is None or str(self.bandwidth) == "newey-west":
            original = scores.sums @ linalg.inv(scores.whiten, "Hessian").T
            return newey_west_lag(original, scores.intercept)
        return _whole(self.bandwidth, 0, len(scores.sums) - 1)


def _periods(rows: Rows, time: object, copies: bool) -> Groups:
    """Return the periods of rows in their order; refuse labels without one."""
    periods = rows.groups(time, "time")
    kind = periods.labels.dtype.kind
    if kind in "US" or any(isinstance(v, str) for v in periods.labels[:1].tolist()):
        advice = "pass numbers or dates (pandas.to_datetime)"
        raise InputError("time", "is text, whose order is the alphabet's", advice)
    if kind == "b":
        raise InputError("time", "is true or false", "pass numbers or dates")
    if kind == "f" and not np.isfinite(periods.labels).all():
        raise InputError("time", "has infinite values", "pass finite numbers or dates")
    if copies:
        advice = "repeat no row, or pass weight_kind='sampling'"
        raise InputError("time", "and frequency weights: a row happens once", advice)
    return periods


def cosines(scores: Array, terms: int) -> Array:
    """Return the equal-weighted cosine estimate of the variance of the total."""
    from scipy.fft import dct

    many = len(scores)
    weights = np.sqrt(0.5 / many) * dct(scores, type=2, axis=0)[1 : terms + 1]
    variance: Array = many / terms * weights.T @ weights
    return variance


def bartlett(scores: Array, lag: int) -> Array:
    """Return the Bartlett estimate of the variance of the total with `lag` lags."""
    variance: Array = scores.T @ scores
    for j in range(1, lag + 1):
        product = scores[j:].T @ scores[:-j]
        variance = variance + (1 - j / (lag + 1)) * (product + product.T)
    return variance


def newey_west_lag(scores: Array, intercept: int | None = None) -> int:
    """Return the lag of Newey and West (1994), of scores summed as R's sandwich does."""
    many = len(scores)
    weights = np.ones(scores.shape[1])
    if intercept is not None and len(weights) > 1:
        weights[intercept] = 0.0
    h = scores @ weights
    pilot = min(int(4 * (many / 100) ** (2 / 9)), many - 2)
    sigma = np.array([h[j:] @ h[: many - j] for j in range(pilot + 1)]) / many
    level = sigma[0] + 2 * sigma[1:].sum()
    slope = 2 * np.arange(1, pilot + 1) @ sigma[1:]
    if level == 0.0:
        return 0
    lag = int(1.1447 * ((slope / level) ** 2) ** (1 / 3) * many ** (1 / 3))
    return min(lag, many - 1)


def _cosine_count(bandwidth: object, many: int, p: int, lags: str) -> int:
    terms = int(0.4 * many ** (2 / 3)) if bandwidth is None else _whole(bandwidth, 1, many - 1)
    if terms > p:
        return terms
    advice = "pass more periods"
    if many > 2:
        advice = f"fit at most {many - 2} parameter(s) with bandwidth={many - 1}"
    if many - 1 > p:
        advice = f"pass bandwidth= of {p + 1} or more cosines, or correction={lags!r}"
    problem = f"has {many} periods, which give {terms} cosines for {p} parameters"
    raise InputError("time", problem, advice)


def _whole(bandwidth: object, low: int, high: int) -> int:
    number = None if isinstance(bandwidth, str) else as_number(bandwidth, "bandwidth")
    if number is None or not low <= number <= high or number != int(number):
        advice = f"pass a whole number from {low} to {high}, for lags also 'newey-west'"
        raise InputError("bandwidth", f"is {bandwidth!r}", advice)
    return int(number)


def _bias(influence: Array, of: Callable[[Array], Array]) -> float:
    """Return the largest share of an AR(1)'s long-run variance missed, over the parameters."""
    lagged = np.einsum("ij,ij->j", influence[1:], influence[:-1])
    rho = lagged / np.maximum(np.einsum("ij,ij->j", influence, influence), 1e-300)
    rho = rho + (1 + 3 * rho) / len(influence)  # Kendall's correction of its bias
    return float(np.max(of(np.clip(rho, 0.0, 0.99))))


def _left_out(labels: NDArray[np.generic]) -> tuple[int, str]:
    """Return how many steps are missing from evenly spaced times, and where the first is."""
    if labels.dtype.kind not in "iufmM" or len(labels) < 3:
        return 0, ""
    steps = np.diff(labels).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # a step beyond any number is uneven too
        ratio = steps / steps.min()
        whole = np.rint(ratio)  # months differ in length
        uneven = not np.abs(ratio - whole).max() <= 0.2
    if uneven:
        long = int(np.count_nonzero(ratio > 1.5))
        return long, f"after {labels[int(ratio.argmax())]!s}" if long else ""
    where = int(np.argmax(whole > 1))
    missing = int((whole - 1).sum())
    return missing, f"after {labels[where]!s}" if missing else ""


def _absent(panel: Groups, periods: Groups) -> tuple[int, str]:
    """Return how many periods units lack between their first and last, and an example."""
    first = np.full(len(panel), len(periods))
    last = np.full(len(panel), -1)
    np.minimum.at(first, panel.codes, periods.codes)
    np.maximum.at(last, panel.codes, periods.codes)
    lacking = last - first + 1 - np.bincount(panel.codes, minlength=len(panel))
    worst = int(lacking.argmax())
    example = f"unit {panel.labels[worst]!s} lacks {lacking[worst]}" if lacking[worst] else ""
    return int(lacking.sum()), example

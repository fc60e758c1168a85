r"""Serial dependence: the long-run variance of scores in time.

Equal-weighted cosines ("EWC"): with T periods and :math:`\nu=\lfloor .4T^{2/3}\rfloor`,

.. math::

    \Lambda_j = (2/T)^{1/2}\sum_t \psi_t\cos\{\pi j(t-\tfrac12)/T\},\qquad
    B = \frac T\nu\sum_{j\le\nu}\Lambda_j\Lambda_j^\top,

referred to t with :math:`\nu` degrees of freedom (Lazarus, Lewis, Stock and Watson 2018). The
default ("AR-EWC") takes them of prewhitened influences (Andrews and Monahan 1992): those on each
coefficient have a first autocorrelation :math:`\rho` (Kendall's bias taken off, from zero to .97),
cosines are of :math:`I_t-\rho I_{t-1}`, and their variance is divided by :math:`(1-\rho)^2`. That
:math:`\rho` is estimated, with variance :math:`(1-\rho^2)/T`, costs degrees of freedom,

.. math:: 1/\nu' = 1/\nu + 2(1+\rho)/\{T(1-\rho)\}.

Where rows have shares of the Hessian, scores are those of the jackknife ("AR-EWC-HC3"), and
:math:`\nu` and the bias :math:`\kappa` of the cosines' variance are Satterthwaite's, contrast by
contrast (`etafree.dependence.forms`): a trend, or a dummy for few periods, leaves less. Bartlett
weights :math:`1-j/(L+1)` on the autocovariances up to lag L (Newey and West 1987), L given or
chosen from the data (Newey and West 1994), refer to the normal.

References
----------
Lazarus, E., Lewis, D. J., Stock, J. H. and Watson, M. W. (2018). J. Bus. Econ. Statist. 36,
541-559. Andrews, D. W. K. and Monahan, J. C. (1992). Econometrica 60, 953-966. Kendall, M. G.
(1954). Biometrika 41, 403-404. Newey, W. K. and West, K. D. (1987) Econometrica 55, 703-708; (1994)
Rev. Econ. Stud. 61, 631-653.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import (
    Dependence,
    Form,
    GroupScores,
    Meat,
    Point,
    Structure,
    finish,
    from_covariance,
)
from etafree.dependence.forms import FormLaws, NominalLaws, affordable, corrected_scores
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_number
from etafree.foundation.check import Finding
from etafree.foundation.terminal import counted_noun
from etafree.target import Law, Laws

#: Largest autocorrelation that is taken out before cosines (Andrews and Monahan).
LARGEST = 0.97


@dataclass(frozen=True, eq=False, repr=False)
class TimeSeries(Structure):
    """Rows are a time series, with one row per period.

    The long-run variance is estimated by prewhitened cosines of scores corrected for leverage;
    ``correction="EWC"`` uses cosines only, ``"Bartlett"`` lags.

    Parameters
    ----------
    time : (n,) numbers or dates, or column name
        Order of the rows.
    bandwidth : int or "newey-west", optional
        Number of cosines (EWC, default .4 T^{2/3}) or of lags (default: Newey and West 1994).

    See Also
    --------
    etafree.calibrate, etafree.target : Pass it as ``dependence=``.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((40, 1)), np.random.default_rng(0).standard_normal(40)
    >>> criterion = ef.Criterion(ef.losses.Squared(), data=(X, y))
    >>> t = ef.target(criterion, dependence=ef.TimeSeries(np.arange(40)))
    >>> t.design, t.correction
    ('a series of 40 periods, 4 cosines, AR(1) prewhitened', 'AR-EWC-HC3')
    """

    time: object = field(metadata={"labels": True})
    bandwidth: object = None

    def bind(self, rows: Rows, copies: bool = False) -> Periods:
        """Return it bound to rows; copies of a row have no place in time."""
        periods = periods_of(rows, self.time, copies)
        if len(periods) < rows.used:
            problem = f"repeats, for example {periods.labels[periods.sizes().argmax()]!s}"
            advice = "pass ef.Panel(unit, time) for a panel, or one row per period"
            raise InputError("time", problem, advice)
        return Periods(periods, 1, *_left_out(periods.labels), self.bandwidth)


@dataclass(frozen=True, eq=False)
class Periods(Dependence):
    """Rows in time, of one unit or the totals of a panel; periods may depend on each other."""

    groups: Groups  #: Periods in their order.
    units: int
    #: Steps left out of the series, or periods that units lack between their first and last.
    missing: int = 0
    example: str = ""  #: Where the first of them is.
    bandwidth: object = None

    corrections = ("AR-EWC", "AR-EWC-HC3", "EWC", "Bartlett", "DK")
    defaults = ("AR-EWC-HC3", "AR-EWC")
    argument = "time"

    def correction(self, asked: object, without_shares: tuple[str, str] | None = None) -> str:
        """Return the correction by name; the lags of a series are not called Driscoll-Kraay."""
        name = super().correction(asked, without_shares)
        if name == "DK":
            advice = "'Bartlett' is for one series, 'DK' for the period totals of a panel"
            raise InputError("correction", f"is {name!r}", advice)
        return name

    @property
    def lagged(self) -> str:
        """Name of the correction by lags."""
        return "Bartlett" if self.units == 1 else "DK"

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the long-run variance from the scores of periods."""
        sums, whiten = scores.sums, scores.whiten
        many, p = sums.shape
        if correction in ("Bartlett", "DK"):
            lag = self._lag(scores)
            bias = persistence(sums @ whiten, lambda rho: 2 * rho / (1 - rho**2) / (lag + 1))
            matrices, window = finish(bartlett(sums, lag), whiten), f"{lag} lags"
            return self.described(Meat(*matrices, np.inf, correction), window, bias)
        terms = cosine_count(self.bandwidth, many, p, self.lagged)
        window = f"{terms} cosines"
        if correction == "EWC":
            bias = persistence(sums @ whiten, cosine_bias(terms, many))
            meat = Meat(*finish(cosines(sums, terms), whiten), float(terms), correction)
            return self.described(meat, window, bias)
        return self._prewhitened(sums, whiten, terms, correction, NominalLaws(float(terms)))

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the same from scores corrected for leverage, with Satterthwaite's laws."""
        sums, _ = corrected_scores(at, self.groups)
        terms = cosine_count(self.bandwidth, len(sums), at.criterion.p, self.lagged)
        laws: Laws = NominalLaws(float(terms))
        if affordable(at, self.groups):
            laws = FormLaws(at, self.groups, Cosines(len(sums), terms))
        return self._prewhitened(sums, at.whiten, terms, correction, laws)

    def form(self, scores: GroupScores, correction: str) -> tuple[Meat, Form]:
        """Return the meat and its form, at the lag and autocorrelations that these scores have."""
        if correction == "AR-EWC":
            meat, rho = self.meat(scores, correction), autocorrelations(scores.sums @ scores.whiten)
            many, p = scores.sums.shape
            terms = cosine_count(self.bandwidth, many, p, self.lagged)
            return meat, lambda sums: prewhitened(sums @ scores.whiten, rho, terms)
        fixed = self if correction == "EWC" else replace(self, bandwidth=self._lag(scores))
        return Dependence.form(fixed, scores, correction)

    def _prewhitened(
        self, sums: Array, whiten: Array, terms: int, correction: str, laws: Laws
    ) -> Meat:
        influence = sums @ whiten
        rho = autocorrelations(influence)
        matrices = from_covariance(prewhitened(influence, rho, terms), whiten)
        own = SeriesLaws(influence, laws)
        dof, inflation = own.single(np.eye(len(rho)))
        meat = Meat(*matrices, dof, correction, inflation=inflation, laws=own)
        bias = remaining(influence, rho, terms)
        return self.described(meat, f"{terms} cosines, AR(1) prewhitened", bias)

    def described(self, meat: Meat, window: str, bias: float) -> Meat:
        """Return the meat with its design in words and what was found on the way."""
        series = f"a panel of {self.units} units over" if self.units > 1 else "a series of"
        lost = "steps are missing" if self.units == 1 else "periods of units are absent"
        gaps = Finding("time gaps", self.missing, {"what": f"{lost} ({self.example})"})
        design = f"{series} {len(self.groups)} periods, {window}"
        return replace(meat, design=design, findings=(Finding("persistence", bias), gaps))

    def _lag(self, scores: GroupScores) -> int:
        if self.bandwidth is None or str(self.bandwidth) == "newey-west":
            original = scores.sums @ linalg.inv(scores.whiten, "Hessian").T
            return newey_west_lag(original, scores.intercept)
        return whole_number(self.bandwidth, 0, len(scores.sums) - 1)


class SeriesLaws(NamedTuple):
    """Laws of contrasts of a prewhitened series: cosines, less what its autocorrelation costs."""

    influence: Array  #: Of periods (T, p).
    cosines: Laws  #: Their own laws.

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        rows = np.atleast_2d(contrasts)
        dof, inflation = self.cosines.single(rows)
        return Law(1.0 / (1.0 / dof + self._cost(rows)), inflation)

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return what Hotelling's law takes; the most persistent contrast costs for all."""
        rows = np.atleast_2d(contrasts)
        dof, turn = self.cosines.joint(rows)
        return float(1.0 / (1.0 / dof + self._cost(rows).max())), turn

    def _cost(self, rows: Array) -> Array:
        rho = autocorrelations(self.influence @ rows.T)
        return np.asarray(2.0 * (1.0 + rho) / (len(self.influence) * (1.0 - rho)))


def periods_of(rows: Rows, time: object, copies: bool) -> Groups:
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


class Cosines(NamedTuple):
    """The form of equal-weighted cosines, M = (T / terms) C C' with orthonormal cosines C."""

    many: int  #: Periods, T.
    terms: int

    @property
    def diagonal(self) -> Array:
        """Return its diagonal (T,)."""
        angle = 2 * np.pi * (np.arange(self.many) + 0.5) / self.many
        # the sum of cosines of multiples of an angle
        inside = np.sin((self.terms + 0.5) * angle) / np.sin(0.5 * angle)
        return np.asarray(1.0 + (inside - 1.0) / (2 * self.terms))

    def times(self, columns: Array) -> Array:
        """Return its product with a matrix (T, k)."""
        from scipy.fft import dct, idct

        terms = dct(columns, type=2, axis=0, norm="ortho")
        terms[0], terms[self.terms + 1 :] = 0.0, 0.0
        product: Array = self.many / self.terms * idct(terms, type=2, axis=0, norm="ortho")
        return product

    def hadamard(self, left: Array, right: Array) -> float:
        """Return the sum over s, t of M_st^2 left_s right_t: products of cosines are cosines."""
        return float(np.sum(self._inside(left) * self._inside(right)))

    def _inside(self, values: Array) -> Array:
        """Return (T / terms) C' diag(values) C."""
        from scipy.fft import dct

        half = 0.5 * dct(values, type=2)
        wave = np.concatenate([half, [0.0], -half[:0:-1]])  # frequencies from 0 to 2T - 1
        j = np.arange(1, self.terms + 1)
        inside = wave[np.abs(j[:, None] - j)] + wave[j[:, None] + j]
        return np.asarray(inside / self.terms)


def autocorrelations(influence: Array) -> Array:
    """Return first autocorrelations (p,), less their bias, that are taken out: not below zero."""
    return np.clip(_raw_autocorrelations(influence), 0.0, LARGEST)


def _raw_autocorrelations(influence: Array) -> Array:
    lagged = np.einsum("ij,ij->j", influence[1:], influence[:-1])
    rho = lagged / np.maximum(np.einsum("ij,ij->j", influence, influence), 1e-300)
    return np.asarray(rho + (1 + 3 * rho) / len(influence))  # Kendall's correction of its bias


def prewhitened(influence: Array, rho: Array, terms: int) -> Array:
    r"""Return the covariance (p, p) of the sum of influences (T, p) with autocorrelations (p,).

    Cosines are of :math:`I_t-\rho I_{t-1}`, the first of them :math:`(1-\rho^2)^{1/2}I_1`.
    """
    variance = cosines(filtered(influence, rho), terms)
    return np.asarray(variance / np.outer(1.0 - rho, 1.0 - rho))


def filtered(influence: Array, rho: Array) -> Array:
    """Return what is left (T, p) of influences when their autocorrelations (p,) are taken out."""
    first = np.sqrt(1.0 - np.square(rho)) * influence[:1]
    return np.concatenate([first, influence[1:] - rho * influence[:-1]])


def cosine_bias(terms: int, many: int) -> Callable[[Array], Array]:
    """Return the share of an AR(1)'s long-run variance that cosines miss, of its coefficient."""
    return lambda rho: np.pi**2 / 3 * (terms / many) ** 2 * rho / (1 - rho) ** 2


def remaining(influence: Array, rho: Array, terms: int) -> float:
    """Return the largest share of the long-run variance missed after prewhitening.

    That is what the filtered series still misses, and what the bound on autocorrelations cuts off.
    """
    left = persistence(filtered(influence, rho), cosine_bias(terms, len(influence)))
    beyond = np.clip(1.0 - _raw_autocorrelations(influence).max(), 0.0, 1.0 - LARGEST)
    return max(left, 1.0 - float(beyond / (1.0 - LARGEST)) ** 2)


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


def cosine_count(bandwidth: object, many: int, p: int, lags: str) -> int:
    """Return the number of cosines; refuse fewer than span a variance matrix."""
    terms = (
        int(0.4 * many ** (2 / 3)) if bandwidth is None else whole_number(bandwidth, 1, many - 1)
    )
    if terms > p:
        return terms
    advice = "pass more periods"
    if many > 2:
        advice = f"fit at most {counted_noun(many - 2, 'parameter')} with bandwidth={many - 1}"
    if many - 1 > p:
        advice = f"pass bandwidth= of {p + 1} or more cosines, or correction={lags!r}"
    problem = f"has {many} periods, which give {terms} cosines for {p} parameters"
    raise InputError("time", problem, advice)


def whole_number(bandwidth: object, low: int, high: int) -> int:
    """Return a bandwidth that is a whole number between bounds."""
    number = None if isinstance(bandwidth, str) else as_number(bandwidth, "bandwidth")
    if number is None or not low <= number <= high or number != int(number):
        advice = f"pass a whole number from {low} to {high}, for lags also 'newey-west'"
        raise InputError("bandwidth", f"is {bandwidth!r}", advice)
    return int(number)


def persistence(influence: Array, of: Callable[[Array], Array]) -> float:
    """Return the largest share of an AR(1)'s long-run variance missed, over the parameters."""
    return float(np.max(of(np.clip(_raw_autocorrelations(influence), 0.0, 0.99))))


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

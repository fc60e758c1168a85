r"""Panels: units that depend on their past in any way, and shocks that all units have in common.

The variance of the total is the sum of one over units and one over periods,

.. math:: B = \sum_i\psi_{i\cdot}\psi_{i\cdot}^\top + B_{\mathrm{time}}(\psi_{\cdot t}),

with unit totals :math:`\psi_{i\cdot}` squared as clusters (CR3, or CR1 where rows have no share of
the Hessian) and period totals :math:`\psi_{\cdot t}` as a series with serial dependence, by
prewhitened cosines (`etafree.dependence.time`), at least six of them: with seven periods all that
there are, which is the variance of clusters. Degrees of freedom are those of Welch and
Satterthwaite, contrast by contrast: with the parts' variances :math:`v_k`,

.. math:: \nu = (v_1+v_2)^2/(v_1^2/\nu_1+v_2^2/\nu_2).

Noise that is neither a unit's nor a period's is in both parts. It is not subtracted (as Thompson
does): the difference need not be a variance, and with the degrees of freedom that it leaves
intervals are no shorter. They cover 99 % where rows are independent both ways.

References
----------
Thompson, S. B. (2011). J. Financial Econ. 99, 1-10. Chiang, H. D., Hansen, B. E. and Sasaki, Y.
(2024). Rev. Econ. Statist., Standard errors for two-way clustering with serially correlated time
effects. Driscoll, J. C. and Kraay, A. C. (1998). Rev. Econ. Statist. 80, 549-560.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

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
    group_totals,
    small_sample_factor,
)
from etafree.dependence.forms import (
    FormLaws,
    Identity,
    NominalLaws,
    SumLaws,
    affordable,
    corrected_scores,
)
from etafree.dependence.time import (
    Cosines,
    Periods,
    SeriesLaws,
    autocorrelations,
    periods_of,
    prewhitened,
    remaining,
    whole_number,
)
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.target import Laws

#: Cosines of period totals that there are at least, if there are more periods.
FEWEST = 6


@dataclass(frozen=True, eq=False, repr=False)
class Panel(Structure):
    """Rows are a panel, with one row per unit and period.

    Rows of a unit may depend on each other in any way, and units on each other through common
    shocks, which may persist: the variance is the one clustered by unit plus that of period totals
    (Thompson; Chiang, Hansen and Sasaki). Period totals alone, ``correction="EWC"`` or ``"DK"``
    (Driscoll and Kraay), ignore unit effects.

    Parameters
    ----------
    unit : (n,) labels or column name
        Unit of each row.
    time : (n,) numbers or dates, or column name
        Period of each row.
    bandwidth : int or "newey-west", optional
        As for `TimeSeries`; by default at least six cosines.

    See Also
    --------
    etafree.calibrate, etafree.target : Pass it as ``dependence=``.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((80, 1)), np.random.default_rng(0).standard_normal(80)
    >>> criterion = ef.Criterion(ef.losses.Squared(), data=(X, y))
    >>> panel = ef.Panel(np.repeat(["a", "b"], 40), np.tile(np.arange(40), 2))
    >>> ef.target(criterion, dependence=panel).design
    'a panel of 2 units over 40 periods, units + periods, 6 cosines, AR(1) prewhitened'
    """

    unit: object = field(metadata={"labels": True})
    time: object = field(metadata={"labels": True})
    bandwidth: object = None

    def bind(self, rows: Rows, copies: bool = False) -> UnitsAndPeriods | Periods:
        """Return it bound to rows; copies of a row have no place in time."""
        periods = periods_of(rows, self.time, copies)
        panel = rows.groups(self.unit, "unit")
        cells, (unit, period) = panel.crossed(periods)
        counts = cells.sizes()
        if len(cells) < rows.used:
            worst = int(counts.argmax())
            who, when = panel.labels[unit.codes[worst]], periods.labels[period.codes[worst]]
            problem = f"has {counts[worst]} rows of unit {who!s} at {when!s}"
            raise InputError("time", problem, "pass one row per unit and period")
        series = Periods(periods, len(panel), *_absent(unit, period), self.bandwidth)
        if len(panel) == 1:
            return series
        return UnitsAndPeriods(cells, unit, period, panel, series)


@dataclass(frozen=True, eq=False)
class UnitsAndPeriods(Dependence):
    """A panel bound to rows."""

    groups: Groups  #: Cells of one unit in one period.
    unit: Groups  #: Unit of every cell.
    period: Groups  #: Period of every cell.
    panel: Groups  #: Unit of every row.
    series: Periods  #: Periods of rows, and what is known of their order.

    corrections = ("two-way", "two-way-CR3", "EWC", "DK")
    defaults = ("two-way-CR3", "two-way")
    argument = "time"

    def correction(self, asked: object, without_shares: tuple[str, str] | None = None) -> str:
        """Return the correction by name; the lags of a panel are Driscoll and Kraay's."""
        if isinstance(asked, str) and asked == "Bartlett":
            advice = "'Bartlett' is for one series, 'DK' for the period totals of a panel"
            raise InputError("correction", f"is {asked!r}", advice)
        return super().correction(asked, without_shares)

    @property
    def units(self) -> int:
        """Number of units."""
        return self.series.units

    def summed(self, correction: str) -> Groups | None:
        """Return the groups whose score sums the correction needs; None if it needs more."""
        groups = super().summed(correction)
        return self.series.groups if correction in ("EWC", "DK") else groups

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the variance from scores: of periods (EWC, DK), or of cells."""
        if correction in ("EWC", "DK"):
            return self.series.meat(scores, correction)
        return self._two_way(scores, correction)

    def form(self, scores: GroupScores, correction: str) -> tuple[Meat, Form]:
        """Return the meat and its form, at the lag or autocorrelations that these scores have."""
        if correction in ("EWC", "DK"):
            return self.series.form(scores, correction)
        rho, terms = autocorrelations(self._influence(scores.sums, scores.whiten)), self.terms

        def covariance(sums: Array) -> Array:
            of_periods = prewhitened(self._influence(sums, scores.whiten), rho, terms)
            return self._over_units(scores._replace(sums=sums)) + of_periods

        return self._two_way(scores, correction), covariance

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the same from unit and period totals corrected for leverage."""
        units, _ = corrected_scores(at, self.panel)
        periods, _ = corrected_scores(at, self.series.groups)
        of_units: Laws = NominalLaws(len(units) - 1.0)
        of_periods: Laws = NominalLaws(float(self.terms))
        if affordable(at, self.panel) and affordable(at, self.series.groups):
            of_units = FormLaws(at, self.panel, Identity())
            if self.terms:
                of_periods = FormLaws(at, self.series.groups, Cosines(len(periods), self.terms))
        over_units = finish(units.T @ units, at.whiten)[1]
        parts = (over_units, of_units), (periods @ at.whiten, of_periods)
        return self._sum(*parts, at.whiten, correction)

    def _two_way(self, scores: GroupScores, correction: str) -> Meat:
        """Return the meat of cells' scores without leverage: CR1 over units."""
        units = np.count_nonzero(self.unit.weights(scores.weights))
        over_units = self._over_units(scores), NominalLaws(units - 1.0)
        influence = self._influence(scores.sums, scores.whiten)
        return self._sum(
            over_units, (influence, NominalLaws(float(self.terms))), scores.whiten, correction
        )

    def _sum(
        self, units: tuple[Array, Laws], periods: tuple[Array, Laws], whiten: Array, correction: str
    ) -> Meat:
        """Return the sum of the units' covariance and the periods' by influences, with its laws."""
        parts, window, bias = [units], "units + periods", 0.0
        if self.terms:
            influence, of_cosines = periods
            rho = autocorrelations(influence)
            covariance = prewhitened(influence, rho, self.terms)
            parts.append((covariance, SeriesLaws(influence, of_cosines)))
            bias = remaining(influence, rho, self.terms)
            window += f", {self.terms} cosines, AR(1) prewhitened"
        laws = SumLaws(tuple(parts))
        dof, inflation = laws.single(np.eye(len(whiten)))
        matrices = from_covariance(laws.covariance, whiten)
        meat = Meat(*matrices, dof, correction, inflation=inflation, laws=laws)
        return self.series.described(meat, window, bias)

    @property
    def terms(self) -> int:
        """Number of cosines of period totals; none of a single period."""
        many, bandwidth = len(self.series.groups), self.series.bandwidth
        if bandwidth is not None:
            return whole_number(bandwidth, 1, many - 1)
        return min(max(int(0.4 * many ** (2 / 3)), FEWEST), many - 1)

    def _over_units(self, scores: GroupScores) -> Array:
        """Return the covariance over units, CR1, from the scores of cells."""
        units = int(np.count_nonzero(self.unit.weights(scores.weights)))
        sums = group_totals(scores.sums, self.unit)
        factor = small_sample_factor("CR1", units, scores.rows, sums.shape[1])
        return finish(factor * sums.T @ sums, scores.whiten)[1]

    def _influence(self, sums: Array, whiten: Array) -> Array:
        """Return the influence of periods (T, p) from the scores of cells."""
        influence: Array = group_totals(sums, self.period) @ whiten
        return influence


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

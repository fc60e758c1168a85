r"""Survey designs: primary sampling units (PSUs) within strata.

With :math:`z_{hc}` the total of the weighted scores of PSU c in stratum h, :math:`n_h` PSUs drawn
out of :math:`N_h`,

.. math:: B = \sum_h (1-n_h/N_h)\frac{n_h}{n_h-1}\sum_c (z_{hc}-\bar z_h)(z_{hc}-\bar z_h)^\top,

referred to t with as many degrees of freedom as PSUs minus strata ("survey", as R's survey
package). By default PSU totals are those of the jackknife, :math:`(I-A_{hc}A^{-1})^{-1}z_{hc}`, and
the law of every contrast is Satterthwaite's for the same quadratic form ("survey-CR3",
`etafree.dependence.forms`): strata of two PSUs have a variance each of one degree of freedom, and a
few of them may carry a coefficient. Rows of weight zero stay in the design, so a domain is a survey
with zero weights outside it; degrees of freedom count only PSUs with weight.

References
----------
Binder, D. A. (1983). Int. Statist. Rev. 51, 279-292. Lumley, T. (2004). J. Statist. Software 9(8).
Bell, R. M. and McCaffrey, D. F. (2002). Survey Methodology 28, 169-181.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import Dependence, GroupScores, Meat, Point, Structure, finish
from etafree.dependence.forms import FormLaws, affordable, corrected_scores
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_choice


@dataclass(frozen=True, eq=False, repr=False)
class Survey(Structure):
    """Primary sampling units (PSUs) drawn independently within strata.

    The criterion's weights should be ``weight_kind="sampling"``. PSU totals are corrected for
    leverage, with Satterthwaite's degrees of freedom over strata for every contrast;
    ``correction="survey"`` is the classical formula, t with PSUs minus strata.

    Parameters
    ----------
    psu : (n,) labels or column name, optional
        By default every row is a PSU. A label used in two strata is two PSUs.
    strata : (n,) labels or column name, optional
        By default there is one stratum.
    fpc : (n,) array or column name, optional
        PSUs in the population of the row's stratum, or sampling fractions if all are at most one.
    lonely : {"error", "center"}
        A stratum with one PSU is an error, or enters by its deviation from the grand mean.

    Raises
    ------
    InputError
        `lonely` is none of its choices.

    See Also
    --------
    etafree.calibrate, etafree.target : What takes it, as ``dependence=``.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> design = ef.Survey(strata=[1, 1, 2, 2], fpc=[4, 4, 4, 4])
    >>> ef.target(ef.Criterion(ef.losses.Squared(), data=(X, y)), dependence=design).describe()
    'sandwich, 4 PSUs in 2 strata, finite population, survey-CR3, t with 2 degrees of freedom'
    """

    psu: object = field(default=None, metadata={"labels": True})
    strata: object = field(default=None, metadata={"labels": True})
    fpc: object = field(default=None, metadata={"labels": True})
    lonely: str = "error"

    def __post_init__(self) -> None:
        as_choice(self.lonely, "lonely", ("error", "center"))

    def bind(self, rows: Rows, copies: bool = False) -> Strata:
        """Return it bound to rows; copies of a row are units of their own."""
        units = rows.each("psu") if self.psu is None else rows.groups(self.psu, "psu")
        if self.strata is None:
            layers = units.merged(Groups(np.zeros(len(units), dtype=np.intp), np.array(["all"])))
        else:
            layers = rows.groups(self.strata, "strata")
        cells, (of_psu, unit) = layers.crossed(units)
        psus = cells.labelled(units.labels[unit.codes])
        counts = np.bincount(of_psu.codes, minlength=len(layers))
        population = np.full(len(layers), np.inf)
        if self.fpc is not None:
            population = _population(rows, self.fpc, layers, counts)
        alone = layers.labels[(counts == 1) & (population > 1)]
        if self.lonely == "error" and len(alone):
            named = ", ".join(str(label) for label in alone[:5])
            more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
            problem = f"have a single PSU in {named}{more}: its variance cannot be estimated"
            advice = "merge strata, or pass lonely='center' to take deviations from the grand mean"
            raise InputError("strata", problem, advice)
        return Strata(psus, of_psu, population)


@dataclass(frozen=True, eq=False)
class Strata(Dependence):
    """A survey design bound to rows."""

    groups: Groups  #: PSUs; a label used in two strata is two units.
    strata: Groups  #: The stratum of every PSU.
    population: Array  #: PSUs in each stratum's population (H,); infinite if not corrected for.

    corrections = ("survey", "survey-CR3")
    defaults = ("survey-CR3", "survey")
    argument = "strata"
    other_corrections = (
        "a survey design has its own, n_h / (n_h - 1): 'survey-CR3' with leverage, 'survey' without"
    )

    def row_groups(self) -> Mapping[str, Groups]:
        return {"PSU": self.groups}

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum over strata of the PSUs' variance about the stratum's mean."""
        counts = np.bincount(self.strata.codes, minlength=len(self.strata))
        deviations = StratumDeviations(self.strata.codes, counts, counts / self.population)
        whitened = deviations.square(scores.sums)
        weighted = scores.weights > 0
        units, strata = int(weighted.sum()), len(np.unique(self.strata.codes[weighted]))
        dof = float(units - strata)
        if dof < 1:
            problem = f"leave {units} PSUs in {strata} strata no degrees of freedom"
            raise InputError("strata", problem, "merge strata")
        alone = int(np.count_nonzero(counts == 1))
        design = f"{units} PSUs in {strata} strata"
        design += "" if np.isinf(self.population).all() else ", finite population"
        design += f", {alone} single-PSU strata" if alone else ""
        return Meat(*finish(whitened, scores.whiten), dof, correction, units, design=design)

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the same from PSU totals corrected for leverage, with Satterthwaite's laws."""
        sums, weights = corrected_scores(at, self.groups)
        count = at.criterion.total.count
        meat = self.meat(GroupScores(sums, at.whiten, weights, count), correction)
        if not affordable(at, self.groups):
            return meat
        counts = np.bincount(self.strata.codes, minlength=len(self.strata))
        form = StratumDeviations(self.strata.codes, counts, counts / self.population)
        laws = FormLaws(at, self.groups, form, 1.0 - form.sampled[form.codes])
        dof, inflation = laws.single(np.eye(at.criterion.p))
        return replace(meat, dof=dof, inflation=inflation, laws=laws)


@dataclass(frozen=True, eq=False)
class StratumDeviations:
    r"""The form of strata, :math:`M_h = (1-f_h)\frac{n_h}{n_h-1}(I - 11^\top/n_h)` in stratum h.

    The PSU of a stratum of one deviates from the mean of all PSUs, taken as known in M.
    """

    codes: NDArray[np.intp]  #: Stratum of every PSU (G,).
    counts: NDArray[np.intp]  #: PSUs of every stratum (H,).
    sampled: Array  #: Fraction of a stratum's population in the sample (H,), zero if infinite.

    def square(self, sums: Array) -> Array:
        """Return the quadratic form (p, p) of PSU totals (G, p)."""
        means = self._means(sums)
        means[self.counts == 1] = sums.mean(axis=0)
        deviations = sums - means[self.codes]
        squared: Array = (deviations.T * self._factor[self.codes]) @ deviations
        return squared

    @property
    def diagonal(self) -> Array:
        """Return its diagonal (G,)."""
        alone = self.counts == 1
        rest = np.where(alone, 1.0, 1.0 - 1.0 / self.counts)
        return np.asarray((self._factor * rest)[self.codes])

    def times(self, columns: Array) -> Array:
        """Return its product with a matrix (G, k)."""
        means = self._means(columns)
        means[self.counts == 1] = 0.0
        return np.asarray(self._factor[self.codes][:, None] * (columns - means[self.codes]))

    def hadamard(self, left: Array, right: Array) -> float:
        """Return the sum over g, h of M_gh^2 left_g right_h."""
        own, first, second = (
            np.bincount(self.codes, values, len(self.counts))
            for values in (left * right, left, right)
        )
        inverse = 1.0 / self.counts
        inside = (1.0 - 2.0 * inverse) * own + np.square(inverse) * first * second
        return float(np.square(self._factor) @ np.where(self.counts == 1, own, inside))

    @property
    def _factor(self) -> Array:
        several = self.counts / np.maximum(self.counts - 1, 1)
        return np.asarray((1.0 - self.sampled) * np.where(self.counts == 1, 1.0, several))

    def _means(self, columns: Array) -> Array:
        means = np.zeros((len(self.counts), columns.shape[1]))
        np.add.at(means, self.codes, columns)
        means /= self.counts[:, None]
        return means


def _population(rows: Rows, fpc: object, layers: Groups, counts: NDArray[np.intp]) -> Array:
    """Return the population's PSUs per stratum from sizes or sampling fractions per row."""
    _, (layer, size) = layers.crossed(rows.groups(fpc, "fpc", numeric=True))
    low, high = np.full(len(layers), np.inf), np.full(len(layers), -np.inf)
    np.minimum.at(low, layer.codes, size.labels[size.codes])
    np.maximum.at(high, layer.codes, size.labels[size.codes])
    for h in np.flatnonzero(low != high)[:1]:
        advice = "pass one population size or sampling fraction per stratum"
        raise InputError("fpc", f"varies within stratum {layers.labels[h]!s}", advice)
    if np.any(low <= 0):
        raise InputError("fpc", "has values at or below zero", "pass population sizes, in PSUs")
    population = counts / low if np.all(low <= 1) else low
    for h in np.flatnonzero(population < counts - 1e-9)[:1]:
        where = f"stratum {layers.labels[h]!s}, which has {counts[h]} PSUs in the sample"
        problem = f"is {population[h]:g} in {where}"
        raise InputError("fpc", problem, "pass the number of PSUs in the population")
    return population

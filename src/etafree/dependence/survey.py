r"""Survey designs: primary sampling units (PSUs) within strata.

With :math:`z_{hc}` the total of the weighted scores of PSU c in stratum h, :math:`n_h` PSUs drawn
out of :math:`N_h`,

.. math:: B = \sum_h (1-n_h/N_h)\frac{n_h}{n_h-1}\sum_c (z_{hc}-\bar z_h)(z_{hc}-\bar z_h)^\top,

referred to t with as many degrees of freedom as PSUs minus strata. Rows of weight zero stay in the
design, so a domain is a survey with zero weights outside it; its degrees of freedom count only
PSUs with weight, as R's survey package does.

References
----------
Binder, D. A. (1983). Int. Statist. Rev. 51, 279-292. Lumley, T. (2004). J. Statist. Software 9(8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import Dependence, GroupScores, Meat, Structure, finish
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_choice


@dataclass(frozen=True, eq=False, repr=False)
class Survey(Structure):
    """Primary sampling units (PSUs) drawn independently within strata.

    The criterion's weights should be ``weight_kind="sampling"``.

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
    'sandwich, 4 PSUs in 2 strata, finite population, survey, t with 2 degrees of freedom'
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

    corrections = ("survey",)
    defaults = ("survey", "survey")
    argument = "strata"
    other_corrections = "a survey design has its own, n_h / (n_h - 1): leave it out"

    def row_groups(self) -> Mapping[str, Groups]:
        return {"PSU": self.groups}

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum over strata of the PSUs' variance about the stratum's mean."""
        sums, codes, layers = scores.sums, self.strata.codes, len(self.strata)
        counts = np.bincount(codes, minlength=layers)
        means = np.zeros((layers, sums.shape[1]))
        np.add.at(means, codes, sums)
        means /= counts[:, None]
        alone = counts == 1
        means[alone] = sums.mean(axis=0)
        sampled = counts / self.population  # zero without a finite population
        factor = (1 - sampled) * np.where(alone, 1.0, counts / np.maximum(counts - 1, 1))
        deviations = sums - means[codes]
        whitened = (deviations.T * factor[codes]) @ deviations
        weighted = scores.weights > 0
        units, strata = int(weighted.sum()), len(np.unique(codes[weighted]))
        dof = float(units - strata)
        if dof < 1:
            problem = f"leave {units} PSUs in {strata} strata no degrees of freedom"
            raise InputError("strata", problem, "merge strata")
        design = f"{units} PSUs in {strata} strata"
        design += "" if np.isinf(self.population).all() else ", finite population"
        design += f", {int(alone.sum())} single-PSU strata" if alone.any() else ""
        return Meat(*finish(whitened, scores.whiten), dof, correction, units, design=design)


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

r"""Survey designs: primary sampling units (PSUs) within strata.

With :math:`z_{hc}` the total of the weighted scores of PSU c in stratum h, :math:`n_h` PSUs drawn
out of :math:`N_h`,

.. math:: B = \sum_h (1-f_h)\frac{n_h}{n_h-1}\sum_c (z_{hc}-\bar z_h)(z_{hc}-\bar z_h)^\top
    + \sum_{hc} f_hB_{hc},\qquad f_h=n_h/N_h,

where :math:`B_{hc}` is the same formula for the second-stage units inside a PSU. It is referred to
t with as many degrees of freedom as PSUs minus strata ("survey", as R's survey package). By default
PSU totals are those of the jackknife, :math:`(I-A_{hc}A^{-1})^{-1}z_{hc}`, and the law of every
contrast is Satterthwaite's for the same quadratic form ("survey-CR3", `etafree.dependence.forms`):
strata of two PSUs have a variance each of one degree of freedom, and a few of them may carry a
coefficient. Units inside a PSU take its leverage. Rows of weight zero stay in the design, so a
domain is a survey with zero weights outside it; degrees of freedom count only PSUs with weight.

Weights w that were calibrated to population totals of auxiliary variables x (post-stratified,
raked, regression estimators) make scores vary only as far as x does not explain them: scores
:math:`w_i\psi_i` become :math:`w_i(\psi_i-\hat\beta^\top x_i)`, with :math:`\hat\beta` from the
regression of :math:`\psi` on x under the weights before calibration.

References
----------
Binder, D. A. (1983). Int. Statist. Rev. 51, 279-292. Lumley, T. (2004). J. Statist. Software 9(8).
Bell, R. M. and McCaffrey, D. F. (2002). Survey Methodology 28, 169-181. Deville, J.-C. and
Sarndal, C.-E. (1992). J. Amer. Statist. Assoc. 87, 376-382. Sarndal, C.-E., Swensson, B. and
Wretman, J. (1992). Model Assisted Survey Sampling, section 4.3. Springer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.dependence.base import Dependence, GroupScores, Meat, Point, Structure, finish
from etafree.dependence.clusters import mean_score
from etafree.dependence.forms import FormLaws, affordable, corrected_scores
from etafree.dependence.replicates import (
    KINDS,
    ReplicateWeights,
    balanced_factors,
    bootstrap_factors,
    jackknife_factors,
)
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import (
    Array,
    as_array,
    as_choice,
    as_count,
    as_pandas,
    as_rng,
    owned,
)
from etafree.totals.base import require
from etafree.totals.nuisance import Stacked

if TYPE_CHECKING:
    from etafree.criterion import Criterion

LONELY = ("error", "center", "certainty", "average")


@dataclass(frozen=True, eq=False, repr=False)
class Survey(Structure):
    """Primary sampling units (PSUs) drawn independently within strata.

    The criterion's weights should be ``weight_kind="sampling"``. PSU totals are corrected for
    leverage, with Satterthwaite's degrees of freedom for each contrast; ``correction="survey"`` is
    the classical formula, with PSUs minus strata degrees of freedom.

    Parameters
    ----------
    psu : (n,) labels or column name, or a pair of them, optional
        By default every row is a PSU. A label used in two strata is two PSUs. A pair, for example
        ``("district", "school")``, is a two-stage design: the units sampled first, and those
        sampled within them. The second stage counts only if `fpc` gives the fraction of first-stage
        units that were drawn.
    strata : (n,) labels or column name, or a pair of them, optional
        By default there is one stratum. The second of a pair has the strata within PSUs.
    fpc : (n,) array or column name, or a pair of them, optional
        Number of PSUs in the population of the row's stratum, or sampling fractions if all are at
        most one; the second of a pair has the number of units in the population of the row's PSU
        (or of its stratum within the PSU).
    lonely : {"error", "center", "certainty", "average"}
        A stratum with a single PSU is an error (R's "fail"); enters by its deviation from the grand
        mean (R's "adjust"); contributes nothing (R's "certainty" and "remove"); or contributes the
        average of the other strata (R's "average").
    calibrated : (n, k) array, DataFrame or column names, optional
        The variables to which the weights were calibrated. Columns that are not numbers stand for
        their categories. Include a column of ones if the population size was a total too;
        categories imply it.
    base_weights : (n,) array or column name, optional
        Weights before calibration, for the regression of scores on `calibrated`. By default the
        criterion's own, which is the same for post-stratification and otherwise agrees to first
        order.

    Raises
    ------
    InputError
        `lonely` is not one of its choices, or two stages are given in one argument only.

    See Also
    --------
    etafree.calibrate, etafree.target : Pass it as ``dependence=``.
    etafree.ReplicateWeights : Designs that are published as columns of weights.

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
    calibrated: object = field(default=None, metadata={"labels": True})
    base_weights: object = field(default=None, metadata={"labels": True})

    def __post_init__(self) -> None:
        as_choice(self.lonely, "lonely", LONELY)
        for name in ("strata", "fpc"):
            if _is_pair(getattr(self, name)) and not _is_pair(self.psu):
                problem = "is a pair, and psu= names one stage only"
                raise InputError(name, problem, "pass psu=(first, second), or one set of values")
        if self.base_weights is not None and self.calibrated is None:
            advice = "pass the variables that weights were calibrated to, or leave it out"
            raise InputError("base_weights", "does not apply without calibrated=", advice)

    def with_labels(self, change: Callable[[object, str], object]) -> Self:
        def each(labels: object, name: str) -> object:
            several = name != "calibrated" and _is_pair(labels)
            return (
                tuple(change(s, name) for s in _pair(labels)) if several else change(labels, name)
            )

        return super().with_labels(each)

    def bind(self, rows: Rows, copies: bool = False) -> Strata:
        """Return it bound to rows; copies of a row are units of their own."""
        (psu, ssu), (outer, inner), fpc = _pair(self.psu), _pair(self.strata), _pair(self.fpc)
        units = rows.each("psu") if psu is None else rows.groups(psu, "psu")
        if outer is None:
            layers = units.merged(Groups(np.zeros(len(units), dtype=np.intp), np.array(["all"])))
        else:
            layers = rows.groups(outer, "strata")
        cells, (of_psu, unit) = layers.crossed(units)
        psus = cells.labelled(units.labels[unit.codes])
        population = _population(rows, fpc[0], layers, of_psu)
        design = Strata(psus, of_psu, population, self.lonely)
        self._refuse_alone(design.outer, layers, "PSU")
        if ssu is not None and np.isfinite(population).any():
            layers, owner = psus, Groups(np.arange(len(psus)), psus.labels)
            if inner is not None:
                layers, (owner, _) = psus.crossed(rows.groups(inner, "strata"))
            finest, (of_ssu, _) = layers.crossed(rows.groups(ssu, "psu"))
            layers = layers.labelled(psus.labels[owner.codes])
            second = Second(of_ssu, _population(rows, fpc[1], layers, of_ssu), owner)
            design = replace(design, groups=finest, second=second)
            self._refuse_alone(design.inner(second), layers, "second-stage unit")
        if self.calibrated is None:
            return design
        base = self.base_weights
        if base is not None:
            values = rows.align(base, "base_weights")
            base = owned(as_array(values, "base_weights", shape=(rows.used,)))
            if np.any(base < 0) or not base.sum() > 0:
                problem = "has negative values, or no other than zero"
                raise InputError("base_weights", problem, "pass weights before calibration")
        return replace(design, calibration=(_auxiliaries(rows, self.calibrated), base))

    def _refuse_alone(self, form: StratumDeviations, layers: Groups, unit: str) -> None:
        """Refuse strata of one unit that nothing is known about."""
        alone = (form.counts == 1) & (form.sampled < 1) & (form.there > 0)
        if self.lonely == "average":
            alone &= ~np.isfinite(form.scale)
        elif self.lonely != "error":
            return
        if alone.any():
            named = ", ".join(str(label) for label in layers.labels[alone][:5])
            more = f" and {alone.sum() - 5} more" if alone.sum() > 5 else ""
            problem = f"have a single {unit} in {named}{more}: its variance cannot be estimated"
            advice = "merge strata, or pass lonely='center' to take deviations from the grand mean"
            raise InputError("strata", problem, f"{advice}, or lonely='certainty' for none")

    def replicates(
        self,
        criterion: Criterion,
        kind: str = "JKn",
        *,
        count: int = 200,
        rho: float | None = None,
        seed: object = 0,
    ) -> ReplicateWeights:
        """Return replicate weights of the first stage for the rows of a criterion.

        As R's ``as.svrepdesign``: for an analysis elsewhere, or as ``dependence=`` where an
        estimator is far from linear. Finite populations enter "JK1", "JKn" and "bootstrap".

        Parameters
        ----------
        criterion : Criterion
            Its rows and sampling weights.
        kind : {"JK1", "JKn", "BRR", "Fay", "bootstrap"}
            One PSU left out at a time, without strata and with them; balanced half-samples of
            strata of two PSUs, as many as the next power of two; or Rao and Wu's bootstrap.
        count : int
            Replicates of the bootstrap.
        rho : float, optional
            Of "Fay".
        seed : int, SeedSequence or Generator
            Of the bootstrap.

        Returns
        -------
        ReplicateWeights
            Combined with the sampling weights.

        Raises
        ------
        InputError
            The design has no such replicates, or its weights were calibrated.

        Examples
        --------
        >>> import etafree as ef
        >>> y = np.array([0.0, 1.0, 2.0, 5.0])
        >>> mean = ef.Criterion(ef.losses.Squared(), data=(np.ones((4, 1)), y))
        >>> ef.Survey(strata=[1, 1, 2, 2]).replicates(mean, "BRR").weights.T
        array([[0., 2., 0., 2.],
               [2., 0., 0., 2.],
               [0., 2., 2., 0.],
               [2., 0., 2., 0.]])
        """
        as_choice(kind, "kind", KINDS)
        if self.calibrated is not None:
            advice = "make replicates of the weights before calibration, and calibrate each"
            raise InputError("calibrated", "cannot be kept in replicate weights", advice)
        design = self.bind(criterion.rows)
        form, rows = design.outer, design.row_groups()["PSU"]
        shape, scale, rscales = (form.codes, form.counts, form.sampled), None, None
        alone = (form.counts == 1) & (form.sampled < 1)
        if alone.any() and self.lonely != "certainty":
            problem = f"is {self.lonely!r}, and {alone.sum()} strata have a single PSU"
            raise InputError("lonely", problem, "merge strata, or pass lonely='certainty'")
        if kind in ("JK1", "JKn"):
            factors, rscales = jackknife_factors(*shape)
            if kind == "JK1":
                if len(form.counts) > 1:
                    raise InputError("kind", "'JK1' does not allow strata", "use kind='JKn'")
                scale, rscales = float(rscales[0]), None
        elif kind == "bootstrap":
            many = as_count(count, "count", least=2)
            factors = bootstrap_factors(*shape, many, as_rng(seed))
        elif np.any(form.counts != 2) or form.sampled.any():
            problem = f"{kind!r} needs two PSUs in every stratum and no finite population"
            raise InputError("kind", problem, "use kind='JKn'")
        else:
            factors = balanced_factors(form.codes, len(form.counts), rho or 0.0)
        own = criterion.total.weights
        weights = factors[rows.codes] * (1.0 if own is None else own[:, None])
        return ReplicateWeights(weights, kind, scale, rscales, rho)


class Second(NamedTuple):
    """Units inside PSUs."""

    strata: Groups  #: The stratum of every unit, itself inside a PSU.
    population: Array  #: Units in each stratum's population; infinite if not corrected for.
    owner: Groups  #: The PSU of every stratum.

    @property
    def psu(self) -> Groups:
        """The PSU of every unit."""
        return self.strata.merged(self.owner)


@dataclass(frozen=True, eq=False)
class Strata(Dependence):
    """A survey design bound to rows."""

    groups: Groups  #: PSUs, or units inside; a label used in two strata is two units.
    strata: Groups  #: The stratum of every PSU.
    population: Array  #: PSUs in each stratum's population (H,); infinite if not corrected for.
    lonely: str = "error"
    second: Second | None = None
    calibration: tuple[Array, Array | None] | None = None  #: Auxiliaries (n, k), weights before.

    corrections = ("survey", "survey-CR3")
    defaults = ("survey-CR3", "survey")
    argument = "strata"
    other_corrections = (
        "a survey design has its own, n_h / (n_h - 1): 'survey-CR3' with leverage, 'survey' without"
    )

    def row_groups(self) -> Mapping[str, Groups]:
        return {"PSU": self.groups if self.second is None else self.groups.merged(self.second.psu)}

    def check_size(self, weights: Array | None, p: int, fewer: str = "fit") -> None:
        """Refuse rows of weight zero where weights were calibrated."""
        if self.calibration is not None and weights is not None and not weights.all():
            problem = "is given, and rows of weight zero have lost their calibrated weight"
            advice = "fit all rows, for a domain with interactions of its indicator"
            raise InputError("calibrated", problem, advice)

    def check_draws(self) -> None:
        """Refuse calibrated weights: their variance needs the scores of rows."""
        if self.calibration is not None:
            problem = "needs the scores of rows, but there are only draws"
            raise InputError("calibrated", problem, "pass a criterion or model=")

    def adjusted(self, at: Point) -> Point:
        """Return the point whose scores are residuals of a regression on what was calibrated."""
        if self.calibration is None:
            return at
        total, (auxiliaries, base) = at.criterion.total, self.calibration
        require(total, "rows", "calibrated")
        weights = np.ones(total.n) if total.weights is None else total.weights
        scores = total.scores(at.theta) / weights[:, None]
        scores -= mean_score(at.criterion, at.gradient, at.centered)
        influence, slope = np.zeros((total.n, 0)), np.zeros((total.p, 0))
        if at.stacked is not None:
            influence, slope = at.stacked
            scores += influence @ slope.T
        root = np.sqrt(weights if base is None else base)[:, None]
        beta = linalg.least_squares(root * auxiliaries, root * scores, what="calibrated")
        stacked = Stacked(np.hstack([influence, -auxiliaries]), np.hstack([slope, beta.T]))
        return at._replace(stacked=stacked)

    @property
    def outer(self) -> StratumDeviations:
        """The form of PSU totals."""
        every = np.zeros(len(self.strata), dtype=np.intp)
        return StratumDeviations.of(self.strata, self.population, self.lonely, every)

    def inner(self, second: Second) -> StratumDeviations:
        """Return the form of totals inside PSUs, times the fraction of PSUs in the sample."""
        strata, population, owner = second
        form = StratumDeviations.of(strata, population, self.lonely, owner.codes)
        drawn = self.outer.sampled[self.strata.codes][owner.codes]
        scale = np.where(drawn > 0, form.scale, 0.0) * drawn
        return replace(form, scale=scale, there=form.there * drawn)

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the sum over strata of the PSUs' variance about the stratum's mean."""
        outer, second, weights = self.outer, self.second, scores.weights
        if second is None:
            whitened = outer.square(scores.sums)
        else:
            whitened = TwoStages(outer, self.inner(second), second.psu.codes).square(scores.sums)
            weights = second.psu.weights(weights)
        units, strata = int(np.count_nonzero(weights)), len(np.unique(outer.codes[weights > 0]))
        dof = float(units - strata)
        if dof < 1:
            problem = f"leave no degrees of freedom: {units} PSUs in {strata} strata"
            raise InputError("strata", problem, "merge strata")
        alone = int(np.count_nonzero(outer.counts == 1))
        design = f"{units} PSUs in {strata} strata"
        design += "" if second is None else f", {len(self.groups)} units inside"
        design += "" if np.isinf(self.population).all() else ", finite population"
        design += f", {alone} single-PSU strata" if alone else ""
        design += "" if self.calibration is None else ", calibrated weights"
        return Meat(*finish(whitened, scores.whiten), dof, correction, units, design=design)

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the same from PSU totals corrected for leverage, with Satterthwaite's laws."""
        psu = None if self.second is None else self.second.psu
        sums, weights = corrected_scores(at, self.groups, psu)
        count = at.criterion.total.count
        meat = self.meat(GroupScores(sums, at.whiten, weights, count), correction)
        if not affordable(at, self.groups):
            return meat
        form: StratumDeviations | TwoStages = self.outer
        shares = self.outer.shares
        if self.second is not None:
            inner = self.inner(self.second)
            form = TwoStages(self.outer, inner, self.second.psu.codes)
            shares = shares[form.psu] + inner.shares
        laws = FormLaws(at, self.groups, form, shares, psu)
        dof, inflation = laws.single(np.eye(at.criterion.p))
        return replace(meat, dof=dof, inflation=inflation, laws=laws)


@dataclass(frozen=True, eq=False)
class StratumDeviations:
    r"""The form of strata, :math:`M_h = s_h(1-f_h)\frac{n_h}{n_h-1}(I - 11^\top/n_h)` in stratum h.

    The PSU of a stratum of one deviates from the mean of all PSUs, taken as known in M.
    """

    codes: NDArray[np.intp]  #: Stratum of every PSU (G,).
    counts: NDArray[np.intp]  #: PSUs of every stratum (H,).
    sampled: Array  #: Fraction of a stratum's population in the sample (H,), zero if infinite.
    scale: Array = field(default_factory=lambda: np.ones(1))  #: s, of strata (H,) or of all.
    there: Array = field(default_factory=lambda: np.ones(1))  #: The part of variances that is real.

    @classmethod
    def of(
        cls, strata: Groups, population: Array, lonely: str, within: NDArray[np.intp]
    ) -> StratumDeviations:
        """Return the form of units in strata; a stratum of one averages over those `within`."""
        counts = np.bincount(strata.codes, minlength=len(strata))
        sampled = counts / population
        alone, scale = (counts == 1) & (sampled < 1), np.ones(len(counts))
        there = np.where(alone & (lonely == "certainty"), 0.0, scale)
        if lonely == "average":
            with np.errstate(divide="ignore"):
                scale = (np.bincount(within) / np.bincount(within, ~alone))[within]
            scale = np.where(alone & np.isfinite(scale), 0.0, scale)
        return cls(strata.codes, counts, sampled, scale * there, there)

    @property
    def shares(self) -> Array:
        """Return the share of each unit's variance that is there (G,)."""
        return np.asarray((self.there * (1.0 - self.sampled))[self.codes])

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
        factor = np.where(self.counts == 1, 1.0, several)
        return np.asarray(self.scale * (1.0 - self.sampled) * factor)

    def _means(self, columns: Array) -> Array:
        means = np.zeros((len(self.counts), columns.shape[1]))
        np.add.at(means, self.codes, columns)
        means /= self.counts[:, None]
        return means


@dataclass(frozen=True, eq=False)
class TwoStages:
    r"""The form of two stages, :math:`S^\top M_1S + M_2` with S the sums over PSUs."""

    outer: StratumDeviations
    inner: StratumDeviations
    psu: NDArray[np.intp]  #: PSU of every unit (G,).

    def square(self, sums: Array) -> Array:
        """Return the quadratic form (p, p) of unit totals (G, p)."""
        return self.outer.square(self._of_psus(sums)) + self.inner.square(sums)

    @property
    def diagonal(self) -> Array:
        """Return its diagonal (G,)."""
        return self.outer.diagonal[self.psu] + self.inner.diagonal

    def times(self, columns: Array) -> Array:
        """Return its product with a matrix (G, k)."""
        return self.outer.times(self._of_psus(columns))[self.psu] + self.inner.times(columns)

    def hadamard(self, left: Array, right: Array) -> float:
        """Return the sum over g, h of M_gh^2 left_g right_h; M_2 is zero between PSUs."""
        first, second = self._of_psus(np.column_stack([left, right])).T
        both = (self.outer.diagonal[self.psu] * left) @ self.inner.times(right[:, None])[:, 0]
        own = self.inner.hadamard(left, right)
        return float(self.outer.hadamard(first, second) + own + 2.0 * both)

    def _of_psus(self, columns: Array) -> Array:
        sums = np.zeros((len(self.outer.codes), columns.shape[1]))
        np.add.at(sums, self.psu, columns)
        return sums


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _pair(value: object) -> tuple[object, object]:
    """Return what is said of the first and of the second stage."""
    return (value[0], value[1]) if isinstance(value, tuple) and _is_pair(value) else (value, None)


def _auxiliaries(rows: Rows, values: object) -> Array:
    """Return auxiliary variables (n, k), an indicator for each category of what is no number."""
    values = as_pandas(values)
    columns: list[object] = [values]
    if hasattr(values, "columns"):  # as of a DataFrame
        columns = [values[name] for name in values.columns]  # type: ignore[index]
    elif isinstance(values, np.ndarray) and values.ndim == 2:
        columns = list(values.T)
    elif isinstance(values, list | tuple) and all(np.ndim(v) or isinstance(v, str) for v in values):
        columns = list(values)
    if not columns:
        raise InputError(
            "calibrated", "is empty", "pass the variables that weights were calibrated to"
        )
    matrices = []
    for column in columns:
        labels = rows.align(column, "calibrated")
        if labels.dtype.kind in "iuf":
            matrices.append(as_array(labels, "calibrated", shape=(rows.used,))[:, None])
        else:
            groups = Groups.of(labels, rows.used, "calibrated")
            matrices.append(np.eye(len(groups))[groups.codes])
    return np.hstack(matrices)


def _population(rows: Rows, fpc: object, layers: Groups, strata: Groups) -> Array:
    """Return the population's units per stratum from sizes or sampling fractions per row."""
    if fpc is None:
        return np.full(len(layers), np.inf)
    counts = np.bincount(strata.codes, minlength=len(layers))
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

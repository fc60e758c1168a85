r"""Clusters in several ways at once: inclusion and exclusion over the ways.

With two ways :math:`B = B_1 + B_2 - B_{12}`, where :math:`B_{12}` sums scores over cells; in
general every non-empty set of ways enters with its sign. The sum need not be positive definite. If
it is not, the intersection terms are left out, which is too wide rather than impossible.

CR3, the default, takes each term from its own jackknife: leaving out one cluster of a way, or one
cell, in turn (MacKinnon, Nielsen and Webb); a cell of one row is HC3's. Degrees of freedom are
those of Welch and Satterthwaite over the single ways, contrast by contrast,

.. math:: \nu = \Big(\sum_w v_w\Big)^2\Big/\sum_w v_w^2/\nu_w,

with :math:`v_w` the variance and :math:`\nu_w` the degrees of freedom that way w alone leaves the
contrast. The :math:`\kappa` by which a way's jackknife is too large is not taken off: it holds
where clusters of that way are independent, and here they share clusters of the other ways, whose
effects the fit takes out of the residuals of all of them. Terms of a way nested in another cancel,
and so it has no part in the law; where one way is left the law is its own, :math:`\kappa` and all.

CR0, CR1 and CR1S give each term the factor of its own number of clusters. Their quantiles are the
largest of t with the smallest G - 1 and of the laws that each way alone leaves a coefficient
(`contrast_laws`). With 12 x 12 clusters intervals for a slope cover 92 to 93 % by CR1S, 95 to 96 by
CR3, with effects of both ways in covariate and error.

References
----------
Cameron, A. C., Gelbach, J. B. and Miller, D. L. (2011). J. Bus. Econ. Statist. 29, 238-249.
MacKinnon, J. G., Nielsen, M. O. and Webb, M. D. (2023). J. Econometrics 232, 272-299; (2024).
Jackknife inference with two-way clustering, arXiv 2406.08880.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from etafree.data.groups import Groups
from etafree.dependence.base import (
    Dependence,
    Form,
    GroupScores,
    Meat,
    Point,
    finish,
    group_totals,
    small_sample_factor,
)
from etafree.dependence.clusters import Independent, OneWay, contrast_laws, group_scores, narrowed
from etafree.dependence.forms import SumLaws, welch
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.foundation.check import Finding
from etafree.foundation.linalg import check_covariance, relative_eigenvalues, whitener
from etafree.target import Law, Laws
from etafree.totals.linear import is_linear

POSITIVE = 1e-8  #: Smallest eigenvalue, relative to the sum of the ways alone, of a variance.


@dataclass(frozen=True, eq=False)
class Ways(Dependence):
    """Rows depend on each other if they share a cluster in any of several ways."""

    groups: Groups  #: Cells: rows that share all their clusters.
    ways: tuple[Groups, ...]  #: The clusters of each way, with a code for every *cell*.
    names: tuple[str, ...]

    corrections = ("CR0", "CR1", "CR1S", "CR3")
    defaults = ("CR3", "CR1S")
    argument = "clusters"

    @classmethod
    def crossed(cls, ways: Mapping[str, Groups]) -> Ways:
        """Return the structure of two or more named ways, each with a code for every row."""
        first, *others = ways.values()
        return cls(*first.crossed(*others), tuple(ways))

    def narrowed(self, at: Point) -> Point | None:
        return narrowed(at, self.row_groups().values())

    def row_groups(self) -> Mapping[str, Groups]:
        rows = [self.groups.merged(way) for way in self.ways]
        return dict(zip(self.names, rows, strict=True))

    def meat(self, scores: GroupScores, correction: str) -> Meat:
        """Return the signed sum over sets of ways; over single ways if it is no variance."""
        return self.form(scores, correction)[0]

    def form(self, scores: GroupScores, correction: str) -> tuple[Meat, Form]:
        """Return the meat, and the signed sum as a form: over all sets of ways, or single ways."""
        terms, p = list(self._terms(scores, correction)), scores.sums.shape[1]
        single, joint = np.zeros((p, p)), np.zeros((p, p))
        for size, factor, groups, _ in terms:
            (single if size == 1 else joint)[:] += factor * _square(scores.sums, groups)
        counts = [count for size, _, _, count in terms if size == 1]
        meat, whole = self._joined(single, joint, scores.whiten, counts, correction)

        def covariance(sums: Array) -> Array:
            kept = [(factor, groups) for size, factor, groups, _ in terms if whole or size == 1]
            whitened = sum(factor * _square(sums, groups) for factor, groups in kept)
            return finish(np.asarray(whitened), scores.whiten)[1]

        return meat, covariance

    def by_leverage(self, at: Point, correction: str) -> Meat:
        """Return the same signed sum of jackknife variances, CR3, with Welch's laws."""
        every, narrow = at, len(at.whiten) < at.criterion.p
        if narrow:  # each way leaves out what its own clusters determine
            every = at._replace(whiten=whitener(at.hessian))
        of_ways = [self._way(every, name, correction, narrow) for name in self.names]
        p, k, turned = at.criterion.p, len(at.whiten), at.whiten @ at.hessian
        single, joint = np.zeros((k, k)), np.zeros((k, k))
        for way in of_ways:
            single += turned @ way.covariance @ turned.T
        for size, groups in self._sets():
            if size > 1:
                cells = self.groups.merged(groups)
                covariance = _of_cells(every._replace(laws=False), cells, correction)
                joint += (-1.0) ** (size + 1) * turned @ covariance @ turned.T
        counts = [way.clusters or 0 for way in of_ways]
        meat, whole = self._joined(single, joint, at.whiten, counts, correction)
        kept = [way for k, way in enumerate(of_ways) if not (whole and self._nested(k))]
        if len(kept) == 1:  # the coarsest, with its own law
            return replace(meat, dof=kept[0].dof, inflation=kept[0].inflation, laws=kept[0].laws)
        parts = [(way.covariance, Unscaled(way.laws)) for way in kept if way.laws is not None]
        if not parts:  # nobody asks for laws
            return meat
        each = [(np.diagonal(way.covariance), Law(np.asarray(way.dof), np.ones(p))) for way in kept]
        return replace(meat, dof=welch(each).dof, laws=SumLaws(tuple(parts)))

    def by_default(self, at: Point, correction: str) -> Meat:
        """Return the same, or CR1S where it cannot be: data in parts may have too many cells."""
        try:
            return self.by_leverage(at, correction)
        except InputError as error:
            if self.narrowed(at) is not None:
                raise
            reason = error.problem.partition(" (")[0]
        totals = at.criterion.total.group_sums(at.theta, self.groups)
        scores = group_scores(at, totals, self.groups, None)
        meat = self.with_laws(self.meat(scores, self.defaults[1]), at)
        return replace(meat, design=f"{meat.design}, no {correction} ({reason})")

    def _way(self, at: Point, name: str, correction: str, narrow: bool) -> Meat:
        """Return the variance of one way alone; errors say of which."""
        way = OneWay(self.row_groups()[name])
        inner = way.narrowed(at) if narrow else None
        try:
            return way.by_leverage(inner or at, correction)
        except InputError as error:
            problem = f"way {name!r}: {error.problem}"
            raise InputError(error.argument, problem, error.advice) from None

    def _nested(self, k: int) -> bool:
        """Return whether a way's clusters lie inside those of another: its terms cancel."""
        way = self.ways[k]
        return any(
            len(way.crossed(other)[0]) == len(way) and (len(other) < len(way) or j < k)
            for j, other in enumerate(self.ways)
            if j != k
        )

    def _joined(
        self, single: Array, joint: Array, whiten: Array, counts: list[int], correction: str
    ) -> tuple[Meat, bool]:
        """Return the sum over single ways and intersections, and whether it has the latter."""
        advice = "too few clusters in every way: fit fewer parameters, or use finer clusters"
        check_covariance(single, "meat", len(single), advice)
        smallest = float(relative_eigenvalues(single + joint, single)[0])
        whole = smallest > POSITIVE
        named = " x ".join(f"{c} {name}" for c, name in zip(counts, self.names, strict=True))
        meat = Meat(
            *finish(single + joint if whole else single, whiten),
            np.inf if correction == "CR0" else min(counts) - 1.0,
            correction,
            min(counts),
            design=f"{named} clusters" + ("" if whole else ", intersections left out"),
            findings=(Finding("multiway eigenvalue", smallest),),
        )
        return meat, whole

    def with_laws(self, meat: Meat, at: Point) -> Meat:
        """Return the same with the law that the worst way leaves each coefficient."""
        traits = at.criterion.total.traits
        if not at.laws or meat.correction == "CR0" or "leverage" not in traits:
            return meat
        laws = WayLaws(at, tuple(self.row_groups().values()), meat.correction, float(meat.dof))
        try:
            dof, inflation = laws.single(np.eye(at.criterion.p))
        except InputError:  # more clusters than passes over data in parts can hold: many
            return meat
        return replace(meat, dof=dof, inflation=inflation, laws=laws, joint_dof=laws.fewest)

    def _terms(
        self, scores: GroupScores, correction: str
    ) -> Iterator[tuple[int, float, Groups, int]]:
        """Yield every set of ways: its size, signed factor, groups of cells and their number."""
        for size, groups in self._sets():
            count = int(np.count_nonzero(groups.weights(scores.weights)))
            factor = small_sample_factor(correction, count, scores.rows, scores.sums.shape[1])
            yield size, (-1.0) ** (size + 1) * factor, groups, count

    def _sets(self) -> Iterator[tuple[int, Groups]]:
        """Yield the size of every set of ways, and the groups of cells that share them all."""
        for size in range(1, len(self.ways) + 1):
            for first, *others in combinations(self.ways, size):
                yield size, first.crossed(*others)[0]


@dataclass(frozen=True, eq=False)
class WayLaws:
    """Laws of contrasts under several ways: of each way's own and t, those with wider quantiles."""

    at: Point
    ways: tuple[Groups, ...]  #: The clusters of each way, with a code for every row.
    correction: str
    fewest: float  #: The smallest G - 1.

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        rows = np.atleast_2d(contrasts)
        laws = [contrast_laws(self.at, way, self.correction, rows) for way in self.ways]
        laws.append(Law(np.full(len(rows), self.fewest), np.ones(len(rows))))
        widest = np.argmax([law.quantile(0.975) for law in laws], axis=0)
        each = np.arange(len(rows))
        dof, inflation = (np.array(values)[widest, each] for values in zip(*laws, strict=True))
        return Law(dof, inflation)

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return the smallest G - 1: nothing more is known of several contrasts together."""
        return self.fewest, np.eye(len(np.atleast_2d(contrasts)))


class Unscaled(NamedTuple):
    """Laws of one way alone, without the bias that they know of."""

    laws: Laws

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        dof, inflation = self.laws.single(contrasts)
        return Law(dof, np.ones_like(inflation))

    def joint(self, contrasts: Array) -> tuple[float, Array]:
        """Return the degrees of freedom of several contrasts together."""
        return self.laws.joint(contrasts)[0], np.eye(len(np.atleast_2d(contrasts)))


def _of_cells(at: Point, cells: Groups, correction: str) -> Array:
    """Return the covariance by leaving out one cell in turn, HC3 of single rows."""
    total = at.criterion.total
    if len(cells) == total.n and is_linear(total) and not total.copies:
        return Independent(total.n).by_leverage(at, "HC3").covariance
    return OneWay(cells).by_leverage(at, correction).covariance


def _square(sums: Array, groups: Groups) -> Array:
    """Return the sum of squares over groups of cells."""
    totals = group_totals(sums, groups)
    return totals.T @ totals

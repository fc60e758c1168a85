r"""Clusters in several ways at once: inclusion and exclusion over the ways.

With two ways :math:`B = B_1 + B_2 - B_{12}`, where :math:`B_{12}` sums scores over cells; in
general every non-empty set of ways enters with its sign, each term with the factor of its own
number of clusters. The sum need not be positive definite. If it is not, the intersection terms are
left out, which is too wide rather than impossible. Quantiles are the largest of t with the smallest
G - 1 and of the laws that each way alone leaves a coefficient (`contrast_laws`).

References
----------
Cameron, A. C., Gelbach, J. B. and Miller, D. L. (2011). J. Bus. Econ. Statist. 29, 238-249.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

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
from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.foundation.check import Finding
from etafree.foundation.linalg import check_covariance, relative_eigenvalues
from etafree.target import Law

POSITIVE = 1e-8  #: Smallest eigenvalue, relative to the sum of the ways alone, of a variance.


@dataclass(frozen=True, eq=False)
class Ways(Dependence):
    """Rows depend on each other if they share a cluster in any of several ways."""

    groups: Groups  #: Cells: rows that share all their clusters.
    ways: tuple[Groups, ...]  #: The clusters of each way, with a code for every *cell*.
    names: tuple[str, ...]

    corrections = ("CR0", "CR1", "CR1S")
    defaults = ("CR1S", "CR1S")
    argument = "clusters"

    @classmethod
    def crossed(cls, ways: Mapping[str, Groups]) -> Ways:
        """Return the structure of two or more named ways, each with a code for every row."""
        first, *others = ways.values()
        return cls(*first.crossed(*others), tuple(ways))

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
        advice = "too few clusters in every way: fit fewer parameters, or use finer clusters"
        check_covariance(single, "meat", p, advice)
        smallest = float(relative_eigenvalues(single + joint, single)[0])
        whole = smallest > POSITIVE
        counts = [count for size, _, _, count in terms if size == 1]
        named = " x ".join(f"{c} {name}" for c, name in zip(counts, self.names, strict=True))
        meat = Meat(
            *finish(single + joint if whole else single, scores.whiten),
            np.inf if correction == "CR0" else min(counts) - 1.0,
            correction,
            min(counts),
            design=f"{named} clusters" + ("" if whole else ", intersections left out"),
            findings=(Finding("multiway eigenvalue", smallest),),
        )

        def covariance(sums: Array) -> Array:
            kept = [(factor, groups) for size, factor, groups, _ in terms if whole or size == 1]
            whitened = sum(factor * _square(sums, groups) for factor, groups in kept)
            return finish(np.asarray(whitened), scores.whiten)[1]

        return meat, covariance

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
        for size in range(1, len(self.ways) + 1):
            for first, *others in combinations(self.ways, size):
                groups, _ = first.crossed(*others)
                count = int(np.count_nonzero(groups.weights(scores.weights)))
                factor = small_sample_factor(correction, count, scores.rows, scores.sums.shape[1])
                yield size, (-1.0) ** (size + 1) * factor, groups, count


@dataclass(frozen=True, eq=False)
class WayLaws:
    """Laws of contrasts under several ways: of each way's own and t, those with wider quantiles."""

    at: Point
    ways: tuple[Groups, ...]  #: The clusters of each way, with a code for every row.
    correction: str
    fewest: float  #: The smallest G - 1.

    def single(self, contrasts: Array) -> Law:
        """Return the law of each contrast of (q, p)."""
        from etafree.dependence.clusters import contrast_laws  # which makes ways

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


def _square(sums: Array, groups: Groups) -> Array:
    """Return the sum of squares over groups of cells."""
    totals = group_totals(sums, groups)
    return totals.T @ totals

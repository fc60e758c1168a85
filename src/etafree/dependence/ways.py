r"""Clusters in several ways at once: inclusion and exclusion over the ways.

With two ways :math:`B = B_1 + B_2 - B_{12}`, where :math:`B_{12}` sums scores over cells; in
general every non-empty set of ways enters with its sign, each term with the factor of its own
number of clusters. The sum need not be positive definite. If it is not, the intersection terms are
left out, which is too wide rather than impossible.

References
----------
Cameron, A. C., Gelbach, J. B. and Miller, D. L. (2011). J. Bus. Econ. Statist. 29, 238-249.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from etafree.dependence.base import Ways
from etafree.dependence.clusters import PLAIN_CR, Meat, finish, small_sample_factor
from etafree.foundation.arguments import Array, as_choice
from etafree.foundation.check import Check
from etafree.foundation.linalg import check_covariance, relative_eigenvalues

__all__ = ["multiway"]

#: Smallest eigenvalue, relative to the sum of the ways alone, that counts as positive.
POSITIVE = 1e-8


def multiway(
    scores: Array, whiten: Array, weights: Array, ways: Ways, correction: str | None, rows: float
) -> Meat:
    """Return the meat from the scores of cells.

    Parameters
    ----------
    scores : (C, p) array
        Centred score sums of the cells in coordinates where the Hessian is the identity.
    whiten : (p, p) array
        Takes scores to these coordinates.
    weights : (C,) array
        Weights of the cells; a cluster without weight is not there.
    ways : Ways
    correction : {"CR0", "CR1", "CR1S"}, optional
        Default CR1S.
    rows : float
        Number of rows, copies counted.
    """
    used = as_choice("CR1S" if correction is None else correction, "correction", PLAIN_CR)
    p, k = scores.shape[1], len(ways.ways)
    single, joint = np.zeros((p, p)), np.zeros((p, p))
    counts: list[int] = []
    for size in range(1, k + 1):
        for chosen in combinations(range(k), size):
            term, count = _term(scores, weights, [ways.ways[j].codes for j in chosen])
            term *= small_sample_factor(used, count, rows, p)
            if size == 1:
                single += term
                counts.append(count)
            else:
                joint += (-1.0) ** (size + 1) * term
    check_covariance(
        single,
        "meat",
        p,
        "clusters are fewer than parameters, in every way: "
        "fit fewer parameters, or use finer clusters",
    )
    smallest = float(relative_eigenvalues(single + joint, single)[0])
    kept = smallest > POSITIVE
    matrix, covariance = finish(single + joint if kept else single, whiten)
    named = " x ".join(f"{c} {name}" for c, name in zip(counts, ways.names, strict=True))
    advice = (
        f"the sum with intersection terms has relative eigenvalue {smallest:.2g}, so it is no "
        "variance matrix: they were left out, and intervals are somewhat wide; cluster in fewer "
        "ways if you can"
    )
    check = Check(
        "multiway eigenvalue", smallest, 0.0, "ok" if kept else "warn", "" if kept else advice
    )
    return Meat(
        matrix,
        covariance,
        np.inf if used == "CR0" else min(counts) - 1.0,
        used,
        min(counts),
        design=f"{named} clusters" + ("" if kept else ", intersections left out"),
        checks=(check,),
    )


def _term(scores: Array, weights: Array, codes: list[NDArray[np.intp]]) -> tuple[Array, int]:
    """Return the sum of squares over clusters that share all these codes, and their number."""
    _, group = np.unique(np.column_stack(codes), axis=0, return_inverse=True)
    group = group.reshape(-1)
    sums = np.zeros((int(group.max()) + 1, scores.shape[1]))
    np.add.at(sums, group, scores)
    count = int(np.count_nonzero(np.bincount(group, weights)))
    return sums.T @ sums, count

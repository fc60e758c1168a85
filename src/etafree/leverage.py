"""What single clusters contribute: scores, shares of the Hessian and their leverage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from etafree import linalg
from etafree.criterion import Criterion
from etafree.meat import mean_score
from etafree.sums import Groups
from etafree.targets import Target
from etafree.validation import Array

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["cluster_leverages", "cluster_parts", "cluster_table", "effective_clusters"]


def cluster_parts(
    criterion: Criterion, theta: Array, groups: Groups, centered: bool = True
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return scores (G, p), Hessians with their penalty's share (G, p, p), and who has weight."""
    share, p = criterion.penalty_share(theta), criterion.p
    scores, hessians = np.zeros((len(groups), p)), np.zeros((len(groups), p, p))
    weights = np.zeros(len(groups))
    for block in criterion.total.cluster_blocks(theta, groups):
        rows = slice(block.first, block.first + len(block.scores))
        scores[rows], weights[rows] = block.scores, block.weights
        hessians[rows] = block.hessians + block.weights[:, None, None] * share
    mean = mean_score(criterion, scores.sum(axis=0), centered)
    return scores - weights[:, None] * mean, hessians, weights > 0


def cluster_leverages(criterion: Criterion, theta: Array, hessian: Array, groups: Groups) -> Array:
    """Return the largest eigenvalue of A_g A^{-1} for every cluster (G,): its leverage."""
    whiten, share = linalg.whitener(hessian), criterion.penalty_share(theta)
    out = np.zeros(len(groups))
    for block in criterion.total.cluster_blocks(theta, groups):
        part = whiten @ (block.hessians + block.weights[:, None, None] * share) @ whiten.T
        out[block.first : block.first + len(part)] = linalg.eigvalsh(part, "clusters' Hessians")[
            :, -1
        ]
    return out


def effective_clusters(criterion: Criterion, theta: Array, hessian: Array, groups: Groups) -> float:
    r"""Return how many equal clusters would hold the Hessian as unevenly as these do.

    :math:`(\sum_g t_g)^2/\sum_g t_g^2` with :math:`t_g = \mathrm{tr}(A_gA^{-1})`, in the spirit of
    Carter, Schnepel and Steigerwald (2017), Rev. Econ. Statist. 99, 698-709.
    """
    inverse, share = linalg.inv(hessian, "Hessian"), criterion.penalty_share(theta)
    traces = np.concatenate([
        np.einsum("gij,ji->g", block.hessians + block.weights[:, None, None] * share, inverse)
        for block in criterion.total.cluster_blocks(theta, groups)
    ])  # fmt: skip
    return float(traces.sum() ** 2 / np.square(traces).sum())


def cluster_table(criterion: Criterion, target: Target, kind: str, groups: Groups) -> pd.DataFrame:
    """Return rows, weight, leverage and shift of every cluster, largest leverage first.

    The shift is the largest change of an estimate that the cluster's scores make, in standard
    errors.
    """
    import pandas as pd

    assert target.hessian is not None
    scores, _, _ = cluster_parts(criterion, target.center, groups, target.centered)
    shift = np.abs(linalg.solve(target.hessian, scores.T, "Hessian")).T / target.se
    table = pd.DataFrame(
        {
            "rows": groups.sizes(),
            "weight": groups.weights(criterion.total.weights),
            "leverage": cluster_leverages(criterion, target.center, target.hessian, groups),
            "shift": shift.max(axis=1),
        },
        index=pd.Index(groups.labels, name=kind),
    )
    return table.sort_values("leverage", ascending=False, kind="stable")

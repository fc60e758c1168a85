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

import numpy as np

from etafree.dependence.base import Survey
from etafree.dependence.clusters import Meat, finish
from etafree.errors import InputError
from etafree.foundation.arguments import Array

__all__ = ["stratified"]


def stratified(
    scores: Array, whiten: Array, weights: Array, survey: Survey, correction: str | None
) -> Meat:
    """Return the meat from the scores of PSUs.

    Parameters
    ----------
    scores : (C, p) array
        Centred score sums of the PSUs in coordinates where the Hessian is the identity.
    whiten : (p, p) array
        Takes scores to these coordinates.
    weights : (C,) array
        Weights of the PSUs.
    survey : Survey
    correction : None or "survey"
    """
    if correction not in (None, "survey"):
        raise InputError(
            "correction",
            f"is {correction!r}",
            "a survey design has its own, n_h / (n_h - 1): leave it out",
        )
    codes, layers = survey.strata.codes, len(survey.strata)
    counts = np.bincount(codes, minlength=layers)
    means = np.zeros((layers, scores.shape[1]))
    np.add.at(means, codes, scores)
    means /= counts[:, None]
    alone = counts == 1
    means[alone] = scores.mean(axis=0)
    sampled = counts / survey.population  # zero without a finite population
    factor = (1 - sampled) * np.where(alone, 1.0, counts / np.maximum(counts - 1, 1))
    deviations = scores - means[codes]
    whitened = (deviations.T * factor[codes]) @ deviations
    matrix, covariance = finish(whitened, whiten)
    there = weights > 0
    units, strata = int(there.sum()), len(np.unique(codes[there]))
    dof = float(units - strata)
    if dof < 1:
        raise InputError(
            "strata", f"leave {units} PSUs in {strata} strata no degrees of freedom", "merge strata"
        )
    fraction = "" if np.isinf(survey.population).all() else ", finite population"
    single = f", {int(alone.sum())} single-PSU strata" if alone.any() else ""
    design = f"{units} PSUs in {strata} strata{fraction}{single}"
    return Meat(matrix, covariance, dof, "survey", units, design=design)

r"""Whitening of groups with a common random intercept, and robust estimates of its variances.

The working covariance of a group is :math:`\Sigma_i = \tau^2 11^\top + \sigma^2 I`; its symmetric
root is :math:`\Sigma_i^{-1/2}v = \sigma^{-1}\{v - \kappa_i\bar v 1\}` with
:math:`\kappa_i = 1 - \sigma/(\sigma^2+n_i\tau^2)^{1/2}`.
"""

from __future__ import annotations

import numpy as np

from etafree.errors import InputError
from etafree.sums import Groups
from etafree.validation import Array

__all__ = ["robust_variances", "whiten"]


def whiten(values: Array, groups: Groups, tau2: float, sigma2: float) -> Array:
    r"""Return :math:`\Sigma_i^{-1/2}` times every group's rows, (n,) or (n, p), in closed form.

    Examples
    --------
    >>> g = Groups.of([0, 0], 2)
    >>> whiten(np.array([1.0, 1.0]), g, tau2=1.5, sigma2=1.0)
    array([0.5, 0.5])
    """
    sizes = groups.weights(None)
    keep = np.sqrt(sigma2 / (sigma2 + sizes * tau2))
    columns = values.reshape(len(values), -1)
    sums = np.zeros((len(groups), columns.shape[1]))
    np.add.at(sums, groups.codes, columns)
    taken = ((1.0 - keep) / sizes)[:, None] * sums
    out: Array = (columns - taken[groups.codes]) / np.sqrt(sigma2)
    return out.reshape(values.shape)


def _median_variance(size: Array) -> Array:
    """Return the variance of the median of standard normals, to 2 % at every sample size."""
    odd = np.pi / (2 * (size + np.pi / 2 - 1))
    even = np.pi / (2 * (size + 4 / np.pi))
    return np.where(size % 2 == 1, odd, even)


def robust_variances(residual: Array, groups: Groups) -> tuple[float, float]:
    r"""Return robust estimates of :math:`\tau^2` and :math:`\sigma^2` from residuals.

    Each residual minus the median of the *others* in its group has variance
    :math:`\sigma^2(1+v_{m-1})`, with :math:`v_k` the variance of a median of k standard normals;
    :math:`\sigma` is the normalised median absolute value of these over all groups of two or more.
    The groups' medians have variance :math:`\tau^2+\sigma^2v_m`; :math:`\tau^2` is their squared
    normalised median absolute deviation less :math:`\hat\sigma^2v_m`, at least zero.
    """
    order, starts = groups.order()
    sorted_ = residual if order is None else residual[order]
    pieces = np.split(sorted_, starts[1:-1])
    sizes = np.diff(starts).astype(np.float64)
    deviations = [
        (r - np.array([np.median(np.delete(r, j)) for j in range(len(r))]))
        / np.sqrt(1 + _median_variance(np.array(len(r) - 1.0)))
        for r in pieces
        if len(r) > 1
    ]
    if not deviations:
        raise InputError("groups", "has no group of two or more", "pass tau2= and sigma2=")
    sigma2 = (float(np.median(np.abs(np.concatenate(deviations)))) / 0.6744897501960817) ** 2
    if not sigma2 > 0:
        raise InputError("sigma2", "is estimated as zero", "pass tau2= and sigma2=")
    medians = np.array([np.median(r) for r in pieces])
    spread = (float(np.median(np.abs(medians - np.median(medians)))) / 0.6744897501960817) ** 2
    tau2 = max(0.0, spread - sigma2 * float(np.median(_median_variance(sizes))))
    return tau2, sigma2

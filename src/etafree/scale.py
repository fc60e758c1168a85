"""Robust scale of residuals, estimated beforehand and then taken as known."""

from __future__ import annotations

import numpy as np

from etafree.errors import InputError
from etafree.linalg import least_squares
from etafree.losses import Huber, ResidualLoss
from etafree.validation import Array

__all__ = ["MEDIAN", "mad_scale"]

#: Median absolute value of a standard normal.
MEDIAN = 0.6744897501960817


def mad_scale(loss: ResidualLoss, X: Array, y: Array, weights: Array | None = None) -> float:
    r"""Return the robust residual scale, found jointly with a Huber fit.

    The fixed point of :math:`s = \mathrm{median}|y-X\hat\theta_s|/0.6745` and the Huber estimate
    :math:`\hat\theta_s` at that scale, by iteratively reweighted least squares from ordinary least
    squares: what statsmodels' RLM and R's rlm compute.
    """
    tuning = float(getattr(loss, "c", 1.345))
    w = np.ones(len(X)) if weights is None else weights
    root = np.sqrt(w)[:, None]
    theta = least_squares(X * root, y * root[:, 0])
    scale = 0.0
    for _ in range(200):
        residual = y - X @ theta
        previous, scale = scale, _weighted_median(np.abs(residual), w) / MEDIAN
        if not scale > 1e-12 * max(1.0, float(np.abs(y).max())):
            raise InputError(
                "scale", "'mad' is zero: half of the residuals vanish", "pass scale= as a number"
            )
        if abs(scale - previous) <= 1e-12 * scale:
            break
        root = np.sqrt(w * Huber(tuning, scale=scale).majorizer(X @ theta, y))[:, None]
        theta = least_squares(X * root, y * root[:, 0])
    return float(scale)


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    half = 0.5 * total[-1]
    low = values[order[int(np.searchsorted(total, half * (1 - 1e-12)))]]
    high = values[order[min(int(np.searchsorted(total, half * (1 + 1e-12))), len(values) - 1)]]
    return float(0.5 * (low + high))

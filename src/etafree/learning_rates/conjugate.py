r"""Sequential predictions of Bayesian linear regression at many learning rates, in closed form.

With likelihood weight :math:`\eta`, an observation (x, y) moves :math:`\beta\sim N(m,\sigma^2V)` to

.. math:: V - \frac{\eta Vxx^\top V}{1+\eta q},\quad m+\frac{\eta Vx\,r}{1+\eta q},\quad
          a+\tfrac{\eta}{2},\quad b+\frac{\eta r^2}{2(1+\eta q)},\qquad
          r=y-x^\top m,\ q=x^\top Vx,

for :math:`\sigma^2\sim\mathrm{IG}(a,b)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etafree.errors import InputError
from etafree.linalg import check_covariance
from etafree.validation import Array, as_array, as_positive

__all__ = ["NormalInverseGamma", "prequential_losses"]


@dataclass(frozen=True, eq=False)
class NormalInverseGamma:
    r"""Prior :math:`\beta\mid\sigma^2\sim N(m, \sigma^2V)`, :math:`\sigma^2\sim\mathrm{IG}(a, b)`.

    Parameters
    ----------
    mean : (p,) array
    covariance : (p, p) array
    shape, rate : float
        a and b.

    Examples
    --------
    >>> NormalInverseGamma([0.0], [[1.0]], shape=2.0, rate=1.0).covariance
    array([[1.]])
    """

    mean: Any
    covariance: Any
    shape: float
    rate: float

    def __post_init__(self) -> None:
        mean = as_array(self.mean, "mean", ndim=1)
        put = object.__setattr__
        put(self, "mean", mean)
        put(self, "covariance", check_covariance(self.covariance, "covariance", len(mean)))
        put(self, "shape", as_positive(self.shape, "shape"))
        put(self, "rate", as_positive(self.rate, "rate"))


def prequential_losses(
    X: Array, y: Array, grid: Array, mean: Array, covariance: Array, version: str,
    variance: NormalInverseGamma | None = None,
) -> Array:  # fmt: skip
    r"""Return the loss of predicting every row from the rows before it, (n, learning rates).

    Version R averages the loss over the posterior, version I takes it at the posterior mean. With
    known unit variance the loss is :math:`\tfrac12(y-x^\top\beta)^2`; with an inverse-gamma prior
    of the `variance` it is the negative log density of the normal.

    Examples
    --------
    >>> X, one = np.ones((2, 1)), np.eye(1)
    >>> prequential_losses(X, np.ones(2), np.array([1.0]), np.zeros(1), one, "R").ravel()
    array([1.   , 0.375])
    """
    from scipy.special import digamma

    m, V = np.tile(mean, (len(grid), 1)), np.tile(covariance, (len(grid), 1, 1))
    a = np.full(len(grid), 1.0 if variance is None else variance.shape)
    b = np.full(len(grid), 1.0 if variance is None else variance.rate)
    if variance is not None and version == "I" and variance.shape <= 1:
        raise InputError("conjugate", f"has shape {variance.shape:g}: the mean of the variance, "
                         "where version 'I' predicts, is infinite",
                         "pass a shape above one")  # fmt: skip
    out = np.empty((len(X), len(grid)))
    for i, (x, response) in enumerate(zip(X, y, strict=True)):
        Vx = V @ x
        q, r = Vx @ x, response - m @ x
        spread = q if version == "R" else 0.0
        if variance is None:
            out[i] = 0.5 * (r * r + spread)
        elif version == "R":
            out[i] = 0.5 * (np.log(2 * np.pi * b) - digamma(a) + r * r * a / b + spread)
        else:
            mean_variance = b / (a - 1)
            out[i] = 0.5 * (np.log(2 * np.pi * mean_variance) + r * r / mean_variance)
        gain = grid / (1 + grid * q)
        V -= gain[:, None, None] * Vx[:, :, None] * Vx[:, None, :]
        m += (gain * r)[:, None] * Vx
        a += 0.5 * grid
        b += 0.5 * gain * r * r
    return out

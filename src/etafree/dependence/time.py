r"""Serial dependence: the long-run variance of scores in time.

Equal-weighted cosines (the default): with T periods and :math:`\nu=\lfloor .4T^{2/3}\rfloor`,

.. math::

    \Lambda_j = (2/T)^{1/2}\sum_t \psi_t\cos\{\pi j(t-\tfrac12)/T\},\qquad
    B = \frac T\nu\sum_{j\le\nu}\Lambda_j\Lambda_j^\top,

referred to t with :math:`\nu` degrees of freedom (Lazarus, Lewis, Stock and Watson 2018). Bartlett
weights :math:`1-j/(L+1)` on the autocovariances up to lag L (Newey and West 1987), L given or
chosen from the data (Newey and West 1994), refer to the normal. In a panel the scores of a period
are summed over units first (Driscoll and Kraay 1998), which allows dependence between units too.

References
----------
Lazarus, E., Lewis, D. J., Stock, J. H. and Watson, M. W. (2018). J. Bus. Econ. Statist. 36,
541-559. Newey, W. K. and West, K. D. (1987) Econometrica 55, 703-708; (1994) Rev. Econ. Stud. 61,
631-653. Driscoll, J. C. and Kraay, A. C. (1998). Rev. Econ. Statist. 80, 549-560.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etafree.dependence.base import Series
from etafree.dependence.clusters import Meat, finish
from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice, as_number
from etafree.foundation.check import Check, check

__all__ = ["bartlett", "cosines", "long_run", "newey_west_lag"]

AUTOMATIC = "newey-west"


def long_run(
    scores: Array,
    whiten: Array,
    series: Series,
    correction: str | None,
    bandwidth: Any,
    intercept: int | None,
) -> Meat:
    """Return the meat from the scores of periods.

    Parameters
    ----------
    scores : (T, p) array
        Centred score sums of the periods, in order, where the Hessian is the identity.
    whiten : (p, p) array
        Takes scores to these coordinates.
    series : Series
    correction : {"EWC", "Bartlett", "DK"}, optional
        Default EWC; DK is Bartlett's weights on the period totals of a panel.
    bandwidth : int or "newey-west", optional
        Cosines for EWC, lags otherwise.
    intercept : int or None
        Column that Newey and West's rule leaves out.
    """
    many, p = scores.shape
    used = "EWC" if correction is None else correction
    options = ("EWC", "Bartlett" if series.units == 1 else "DK")
    if used in ("Bartlett", "DK") and used not in options:
        raise InputError(
            "correction",
            f"is {used!r}",
            "'Bartlett' is for one series, 'DK' for the period totals of a panel (units=)",
        )
    as_choice(used, "correction", options)
    panel = f"a panel of {series.units} units over" if series.units > 1 else "a series of"
    if used == "EWC":
        terms = _cosine_count(bandwidth, many, p, options[1])
        whitened, dof, told = cosines(scores, terms), float(terms), f"{terms} cosines"
        bias = _bias(scores @ whiten, lambda rho: _cosine_bias(rho, terms / many))
    else:
        if bandwidth is None or (isinstance(bandwidth, str) and bandwidth == AUTOMATIC):
            lag = newey_west_lag(scores @ linalg.inv(whiten, "Hessian").T, intercept)
        else:
            lag = _whole(bandwidth, 0, many - 1)
        whitened, dof, told = bartlett(scores, lag), np.inf, f"{lag} lags"
        bias = _bias(scores @ whiten, lambda rho: _bartlett_bias(rho, lag))
    matrix, covariance = finish(whitened, whiten)
    return Meat(
        matrix,
        covariance,
        dof,
        used,
        None,
        design=f"{panel} {many} periods, {told}",
        checks=(_persistence(bias), _gaps(series)),
    )


def cosines(scores: Array, terms: int) -> Array:
    """Return the equal-weighted cosine estimate of the variance of the total.

    Examples
    --------
    >>> x = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    >>> cosines(x, 3)  # every cosine: 4/3 of the centred sum of squares
    array([[13.33333333]])
    """
    from scipy.fft import dct

    many = len(scores)
    weights = np.sqrt(0.5 / many) * dct(scores, type=2, axis=0)[1 : terms + 1]
    variance: Array = many / terms * weights.T @ weights
    return variance


def bartlett(scores: Array, lag: int) -> Array:
    """Return the Bartlett estimate of the variance of the total with `lag` lags."""
    variance: Array = scores.T @ scores
    for j in range(1, lag + 1):
        product = scores[j:].T @ scores[:-j]
        variance = variance + (1 - j / (lag + 1)) * (product + product.T)
    return variance


def newey_west_lag(scores: Array, intercept: int | None = None) -> int:
    """Return the lag of Newey and West (1994) for Bartlett weights, no prewhitening.

    Scores are added up over the parameters other than an intercept, as R's sandwich does.
    """
    many = len(scores)
    weights = np.ones(scores.shape[1])
    if intercept is not None and len(weights) > 1:
        weights[intercept] = 0.0
    h = scores @ weights
    pilot = min(int(4 * (many / 100) ** (2 / 9)), many - 2)
    sigma = np.array([h[j:] @ h[: many - j] for j in range(pilot + 1)]) / many
    level = sigma[0] + 2 * sigma[1:].sum()
    slope = 2 * np.arange(1, pilot + 1) @ sigma[1:]
    if level == 0.0:
        return 0
    lag = int(1.1447 * ((slope / level) ** 2) ** (1 / 3) * many ** (1 / 3))
    return min(lag, many - 1)


def _cosine_count(bandwidth: Any, many: int, p: int, lags: str) -> int:
    terms = int(0.4 * many ** (2 / 3)) if bandwidth is None else _whole(bandwidth, 1, many - 1)
    if terms > p:
        return terms
    problem = f"has {many} periods, which give {terms} cosines for {p} parameters"
    advice = "pass more periods"
    if many > 2:
        advice = f"fit at most {many - 2} parameter(s) with bandwidth={many - 1}"
    if many - 1 > p:
        advice = f"pass bandwidth= of {p + 1} or more cosines, or correction={lags!r}"
    raise InputError("time", problem, advice)


def _whole(bandwidth: Any, low: int, high: int) -> int:
    number = None if isinstance(bandwidth, str) else as_number(bandwidth, "bandwidth")
    if number is None or not low <= number <= high or number != int(number):
        raise InputError(
            "bandwidth",
            f"is {bandwidth!r}",
            f"pass a whole number from {low} to {high}, for lags also 'newey-west'",
        )
    return int(number)


def _bias(influence: Array, of: Any) -> float:
    """Return the largest plug-in relative bias over the parameters, from lag-1 correlations."""
    lagged = np.einsum("ij,ij->j", influence[1:], influence[:-1])
    rho = lagged / np.maximum(np.einsum("ij,ij->j", influence, influence), 1e-300)
    rho = rho + (1 + 3 * rho) / len(influence)  # Kendall's correction of its bias
    return float(np.max(of(np.clip(rho, 0.0, 0.99))))


def _cosine_bias(rho: Array, share: float) -> Array:
    """Share of an AR(1)'s long-run variance missed by cosines up to a share of the periods."""
    bias: Array = np.pi**2 / 6 * share**2 * 2 * rho / (1 - rho) ** 2
    return bias


def _bartlett_bias(rho: Array, lag: int) -> Array:
    bias: Array = 2 * rho / (1 - rho**2) / (lag + 1)
    return bias


def _persistence(bias: float) -> Check:
    return check(
        "persistence",
        bias,
        0.1,
        f"the scores are so persistent that the variance is about {100 * min(bias, 1):.0f} % too "
        "small: pass a smaller bandwidth= (EWC) or more lags, or model the dynamics",
    )


def _gaps(series: Series) -> Check:
    what = "steps are left out" if series.units == 1 else "periods of units are absent"
    return check(
        "time gaps",
        series.missing,
        0.0,
        f"{series.missing} {what} ({series.example}); neighbours are taken as one period apart",
    )

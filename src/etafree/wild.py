r"""Wild cluster bootstrap of scores: an interval that shares nothing with t quantiles.

Scores of clusters, taken where the hypothesis holds, get random signs and sizes (Webb's six
points), the estimate takes its linear step and the statistic is studentised anew. With the
contrast :math:`r`, :math:`h=A^{-1}r` and :math:`d=r^\top\hat\theta-\text{value}`, the constrained
estimate is :math:`\hat\theta-dA^{-1}r/(r^\top A^{-1}r)` and cluster scores there are
:math:`\psi_g - A_g(\cdot)`: linear in :math:`d`. So numerator and variance of every bootstrap
statistic are polynomials in :math:`d`, and an interval by inversion of the test costs no more
than one p-value. For least squares this is the restricted wild cluster bootstrap itself.

References
----------
Kline, P. and Santos, A. (2012). J. Econometric Methods 1, 23-41. Webb, M. D. (2023). Canadian J.
Economics 56, 839-858. MacKinnon, J. G., Nielsen, M. O. and Webb, M. D. (2023). J. Econometrics 232,
272-299.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from etafree import linalg
from etafree.criterion import Criterion
from etafree.leverage import cluster_parts
from etafree.sums import Groups
from etafree.targets import Target
from etafree.validation import Array

__all__ = ["WildBootstrap", "wild_bootstrap"]

WEBB = np.sqrt([1.5, 1.0, 0.5])
WEBB = np.concatenate([-WEBB, WEBB])
#: Random numbers per block.
BLOCK = 4_000_000


@dataclass(frozen=True)
class WildBootstrap:
    """Interval and p-value of one contrast by the wild cluster bootstrap.

    Cluster scores, taken where the hypothesis holds, get Webb's six-point weights; the interval
    holds the values whose studentised test does not refuse them.

    Attributes
    ----------
    estimate, lower, upper : float
        Estimate of the contrast and its interval; a side is infinite if no value on it is refused.
    level : float
        Confidence level.
    p_value : float
        Of the hypothesis that the contrast has the given value.
    draws, clusters : int
        Bootstrap draws, and clusters that were weighted.

    See Also
    --------
    etafree.Calibration.wild_bootstrap : What returns it.

    References
    ----------
    Kline, P. and Santos, A. (2012). A score based approach to wild bootstrap inference. J.
    Econometric Methods 1, 23-41.

    Examples
    --------
    >>> import etafree as ef
    >>> rng = np.random.default_rng(0)
    >>> X, y = np.ones((30, 1)), rng.standard_normal(30) + 1.0
    >>> criterion = ef.Criterion(ef.losses.Squared(), data=(X, y), names=["mean"])
    >>> draws = rng.standard_normal((500, 1))
    >>> result = ef.calibrate(draws, criterion, clusters=np.arange(30) // 3)
    >>> made = result.wild_bootstrap("mean = 1", draws=999)
    >>> made.clusters, bool(made.lower < made.estimate < made.upper), made.p_value > 0.05
    (10, True, True)
    """

    estimate: float
    lower: float
    upper: float
    level: float
    p_value: float
    draws: int
    clusters: int

    def __repr__(self) -> str:
        return (
            f"WildBootstrap(estimate {self.estimate:.4g}, {100 * self.level:g} % interval "
            f"[{self.lower:.4g}, {self.upper:.4g}], p = {self.p_value:.4g}; {self.draws} draws of "
            f"Webb weights over {self.clusters} clusters)"
        )


def wild_bootstrap(
    criterion: Criterion, target: Target, groups: Groups, contrast: Array, value: float,
    level: float, draws: int, rng: np.random.Generator,
) -> WildBootstrap:  # fmt: skip
    """Return the bootstrap of one contrast (p,) of the parameters at the target's centre."""
    assert target.hessian is not None
    scores, hessians, there = cluster_parts(criterion, target.center, groups, target.centered)
    scores, hessians = scores[there], hessians[there]
    count = len(scores)
    inverse = linalg.inv(target.hessian, "Hessian")
    h = inverse @ contrast
    reach = -hessians @ (h / (contrast @ h))  # (G, p): by how much scores move with d
    pull = np.einsum("i,gij->gj", h, hessians) @ inverse  # (G, p): what re-estimation takes away
    estimate = float(contrast @ target.center)
    observed = np.sqrt(_own_variance(scores, h))
    t_star = _Statistics(scores, reach, pull, h, draws, rng)

    def p_value(d: float) -> float:
        return t_star.share_beyond(d, abs(d) / observed)

    alpha = 1.0 - level
    below = _boundary(p_value, alpha, observed)
    above = _boundary(lambda d: p_value(-d), alpha, observed)
    return WildBootstrap(
        estimate, estimate - below, estimate + above, level, p_value(estimate - value),
        draws, count,
    )  # fmt: skip


def _own_variance(scores: Array, h: Array) -> float:
    """Return the CR0 variance of the contrast; constant factors cancel against the bootstrap's."""
    return float(np.square(scores @ h).sum())


class _Statistics:
    """Bootstrap statistics |t*| as functions of d, the distance from the hypothesised value."""

    def __init__(
        self, scores: Array, reach: Array, pull: Array, h: Array, draws: int,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        count = len(scores)
        parts = []
        for first in range(0, draws, max(1, BLOCK // count)):
            many = min(max(1, BLOCK // count), draws - first)
            v = WEBB[rng.integers(0, 6, (many, count))]
            base, slope = v * (scores @ h), v * (reach @ h)
            left, tilt = base - v @ scores @ pull.T, slope - v @ reach @ pull.T
            parts.append(np.column_stack([
                base.sum(axis=1), slope.sum(axis=1), np.square(left).sum(axis=1),
                2 * np.einsum("ij,ij->i", left, tilt), np.square(tilt).sum(axis=1),
            ]))  # fmt: skip
        self.parts: Array = np.concatenate(parts)

    def share_beyond(self, d: float, observed: float) -> float:
        n0, n1, q0, q1, q2 = self.parts.T
        top, variance = np.abs(n0 + d * n1), q0 + d * (q1 + d * q2)
        return float(np.mean(top >= observed * np.sqrt(np.maximum(variance, 0.0))))


def _boundary(p_value: Callable[[float], float], alpha: float, scale: float) -> float:
    """Return the distance at which the p-value falls to alpha, infinite if it does not."""
    low, high = 0.0, 2.0 * scale
    for _ in range(40):
        if p_value(high) < alpha:
            break
        low, high = high, 2 * high
    else:
        return np.inf
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if p_value(middle) < alpha else (middle, high)
    return 0.5 * (low + high)

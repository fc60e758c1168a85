r"""Losses with a kink, as they are: the check loss of quantiles and the hinge loss.

Both are :math:`\ell = \max(a z, -b z)` of :math:`z = c-su`: :math:`z=y-u`, :math:`a=\tau`,
:math:`b=1-\tau`, and :math:`z=1-su`, :math:`s=\pm1`, :math:`a=1`, :math:`b=0`. Their total is
minimised at a vertex, where p rows have :math:`z_i=0`, by the linear program dual to it,

.. math:: \max_d\ \sum_i c_id_i,\qquad \sum_i d_is_ix_i=0,\quad -b\,w_i\le d_i\le a\,w_i,

in which :math:`\theta` are the multipliers. Its expectation is smooth: with :math:`f_i(0)` the
density of :math:`z_i` at zero given :math:`x_i`, the Hessian is
:math:`(a+b)\sum_i w_if_i(0)x_ix_i^\top`, estimated by the normal kernel,
:math:`(a+b)\sum_iw_i\varphi(z_i/h)x_ix_i^\top/h` (Powell 1991).

References
----------
Koenker, R. and Bassett, G. (1978). Regression quantiles. Econometrica 46, 33-50. Powell, J. L.
(1991). Estimation of monotonic regression models under quantile restrictions. In Nonparametric and
Semiparametric Methods in Econometrics and Statistics, 357-384. Cambridge University Press. Hall, P.
and Sheather, S. J. (1988). On the distribution of a studentized quantile. J. Roy. Statist. Soc. B
50, 381-391. Koenker, R. (2005). Quantile Regression, section 3.4. Cambridge University Press.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_level, as_positive
from etafree.losses.base import LinearLoss
from etafree.losses.quantile import normal_density

#: The 97.5 % point of the normal, for which Hall and Sheather's bandwidth is best.
POINT = 1.959963984540054
#: Beyond so many medians only the side of a row counts, and the most changes of the unit.
FAR, PASSES = 1e6, 4


@dataclass(frozen=True)
class KinkedLoss(LinearLoss):
    r"""A loss :math:`\max(az,-bz)` of :math:`z=c-su`, with its kink at :math:`z=0`.

    The minimiser is exact, and `second` is the kernel's share of the expected Hessian. Leverage is
    not known: corrections are HC1 and CR1. A penalty needs a smooth loss.

    Parameters
    ----------
    bandwidth : float, optional
        Of the density in the Hessian, in units of z. By default Hall and Sheather's at the quantile
        that zero is, the scale being the smaller of standard deviation and interquartile range over
        1.34; the result records it as a plug-in.

    Raises
    ------
    InputError
        `bandwidth` is not above zero.

    See Also
    --------
    Check, Hinge : Losses with a kink.
    Quantile : The check loss, smoothed.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((5, 1)), np.array([0.0, 1.0, 2.0, 3.0, 90.0])
    >>> criterion = ef.Criterion(ef.losses.Check(0.5), data=(X, y))
    >>> {name: round(value, 3) for name, value in criterion.plug_ins.items()}
    {'bandwidth': 0.677}
    """

    bandwidth: float | None = field(default=None, kw_only=True)
    #: Whether `bandwidth` was estimated from data.
    estimated: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.bandwidth is not None:
            object.__setattr__(self, "bandwidth", as_positive(self.bandwidth, "bandwidth"))

    @property
    def slopes(self) -> tuple[float, float]:
        """The slopes a and b on both sides of the kink."""
        raise TypeError(f"{type(self).__name__} must define slopes")

    def line(self, y: Array) -> tuple[Array, Array]:
        """Return c and s of every response."""
        raise TypeError(f"{type(self).__name__} must define line(y)")

    def level(self, z: Array, weights: Array) -> float:
        """Return which quantile of `z` (n,) under `weights` (n,) zero is."""
        return float(weights @ (z < 0) / weights.sum())

    def values(self, u: Array, y: Array) -> Array:
        (a, b), (c, s) = self.slopes, self.line(y)
        z = c - s * u
        return np.maximum(a * z, -b * z)

    def first(self, u: Array, y: Array) -> Array:
        (a, b), (c, s) = self.slopes, self.line(y)
        return -s * np.where(c - s * u >= 0, a, -b)

    def second(self, u: Array, y: Array) -> Array:
        if self.bandwidth is None:
            raise InputError("bandwidth", "has not been estimated", "use a Criterion")
        c, s = self.line(y)
        return sum(self.slopes) * normal_density((c - s * u) / self.bandwidth) / self.bandwidth

    def with_bandwidth(self, z: Array, weights: Array) -> Self:
        """Return this loss with its bandwidth, for `z` (n,) of a fit and `weights` (n,)."""
        width = kernel_bandwidth(z, weights, self.level(z, weights))
        return replace(self, bandwidth=width, estimated=True)

    def plug_ins(self) -> dict[str, float]:
        return {"bandwidth": self.bandwidth} if self.estimated and self.bandwidth else {}


@dataclass(frozen=True)
class Check(KinkedLoss):
    r"""Quantile regression: the check loss :math:`\rho_\tau(r)=r(\tau-1\{r<0\})`, :math:`r=y-u`.

    Parameters
    ----------
    tau : float
        Level between 0 and 1.
    bandwidth : float, optional
        Of the density in the Hessian, see `KinkedLoss`.

    Raises
    ------
    InputError
        `tau` is not inside (0, 1), or `bandwidth` not above zero.

    See Also
    --------
    Quantile : The same smoothed, which takes penalties and leverage.

    References
    ----------
    Koenker, R. and Bassett, G. (1978). Regression quantiles. Econometrica 46, 33-50.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.ones((5, 1)), np.array([0.0, 1.0, 2.0, 3.0, 90.0])
    >>> ef.minimise(ef.Criterion(ef.losses.Check(0.7), data=(X, y))).theta
    array([3.])
    """

    tau: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tau", as_level(self.tau, "tau"))

    @property
    def slopes(self) -> tuple[float, float]:
        return self.tau, 1.0 - self.tau

    def line(self, y: Array) -> tuple[Array, Array]:
        return y, np.ones_like(y)

    def level(self, z: Array, weights: Array) -> float:
        return self.tau

    def describe(self) -> str:
        return f"the expected check loss at level {self.tau:g}"


@dataclass(frozen=True)
class Hinge(KinkedLoss):
    r"""The linear support vector machine: :math:`\ell=\max(0, 1-su)` of classes :math:`s=\pm1`.

    Parameters
    ----------
    bandwidth : float, optional
        Of the density of the margin :math:`su` at one in the Hessian, see `KinkedLoss`.

    Raises
    ------
    InputError
        `bandwidth` is not above zero; responses are neither -1 and 1 nor 0 and 1.

    References
    ----------
    Koo, J.-Y., Lee, Y., Kim, Y. and Park, C. (2008). A Bahadur representation of the linear support
    vector machine. J. Mach. Learn. Res. 9, 1343-1368.

    Examples
    --------
    >>> import etafree as ef
    >>> ef.losses.Hinge().values(np.array([0.5, 2.0, 0.5]), np.array([1.0, 1.0, 0.0]))
    array([0.5, 0. , 1.5])
    """

    @property
    def slopes(self) -> tuple[float, float]:
        return 1.0, 0.0

    def line(self, y: Array) -> tuple[Array, Array]:
        return np.ones_like(y), np.where(y > 0, 1.0, -1.0)

    def check(self, y: Array) -> None:
        if not np.isin(y, (-1.0, 1.0)).all() and not np.isin(y, (0.0, 1.0)).all():
            raise InputError("y", "has values other than two classes", "use -1 and 1, or 0 and 1")

    def describe(self) -> str:
        return "the expected hinge loss"


def kernel_bandwidth(z: Array, weights: Array, level: float) -> float:
    r"""Return the bandwidth of the density at zero, the `level` quantile of z (n,).

    Hall and Sheather's difference quotient is a uniform kernel between the quantiles
    :math:`\tau\pm k`, :math:`k=n^{-1/3}z_{.975}^{2/3}\{1.5\varphi(q)^2/(2q^2+1)\}^{1/3}` at
    :math:`q=\Phi^{-1}(\tau)`: for normal errors of robust scale :math:`\sigma` it is
    :math:`W=\sigma\{\Phi^{-1}(\tau+k)-\Phi^{-1}(\tau-k)\}` wide and has standard deviation
    :math:`W/\sqrt{12}`, which the normal kernel is given. R's ``se="ker"`` gives it W, and standard
    errors that are a fifth to a half too large at n = 500.
    """
    from scipy.special import ndtri

    count = float(weights.sum())
    mean = weights @ z / count
    spread = np.sqrt(weights @ np.square(z - mean) / max(count - 1.0, 1.0))
    low, high = (_quantile(z, weights, q) for q in (0.25, 0.75))
    scale = min(float(spread), (high - low) / 1.34)
    if not (scale > 1e-12 * max(1.0, float(np.median(np.abs(z)))) and 0 < level < 1):
        problem = "cannot be estimated: half of the residuals vanish, or all are on one side"
        raise InputError("bandwidth", problem, "pass a number")
    q = float(ndtri(level))
    k = (POINT**2 * 1.5 * normal_density(q) ** 2 / (2 * q**2 + 1) / count) ** (1 / 3)
    while level - k < 0 or level + k > 1:
        k /= 2
    return float((ndtri(level + k) - ndtri(level - k)) * scale / np.sqrt(12.0))


def _quantile(values: Array, weights: Array, q: float) -> float:
    """Return the quantile of values repeated as weights say, linear between neighbours."""
    order = np.argsort(values)
    ends = weights[order].cumsum()
    place = q * (ends[-1] - 1)
    first = np.floor(place)
    at = np.searchsorted(ends * (1 - 1e-12), [first, first + 1], side="right")
    low, high = values[order[np.minimum(at, len(order) - 1)]]
    return float(low + (place - first) * (high - low))


def vertex(rows: Array, c: Array, low: Array, high: Array) -> Array:
    r"""Return :math:`\theta` that minimises :math:`\sum_i\max(h_iz_i, l_iz_i)`, z = c - rows theta.

    Rows are put in an order of their own first, so that one of several minimisers does not depend
    on the order they come in; the multipliers are then solved for exactly at the p rows of the
    vertex.
    """
    from scipy.optimize import linprog

    kept = np.flatnonzero(high > low)
    kept = kept[np.lexsort((c[kept], *rows[kept].T))]
    rows, c, low, high = rows[kept], c[kept], low[kept], high[kept]
    unit = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    scaled = rows / np.where(unit > 0, unit, 1.0)
    theta, weight = linalg.least_squares(scaled, c), float((high - low).max())
    dual = np.zeros(len(c))
    for _ in range(PASSES):
        away = c - scaled @ theta
        size = float(np.median(np.abs(away)) or np.abs(away).mean() or 1.0)
        found = linprog(
            -np.clip(away / size, -FAR, FAR),
            A_eq=scaled.T,
            b_eq=np.zeros(len(unit)),
            bounds=list(zip((low / weight).tolist(), (high / weight).tolist(), strict=True)),
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        if found.x is None:  # a failure of the solver: what there is, is no minimum
            return np.asarray(theta / np.where(unit > 0, unit, 1.0))
        theta, dual = theta - size * np.asarray(found.eqlin.marginals), np.asarray(found.x)
        if np.median(np.abs(c - scaled @ theta)) > 0.1 * size:
            break  # else an outlier had made the unit too large to be exact in
    z = np.abs(c - scaled @ theta)
    inside = np.minimum(dual - low / weight, high / weight - dual) > 1e-9
    picked = _independent(scaled, np.lexsort((z, ~inside)))
    exact = linalg.least_squares(scaled[picked], c[picked])
    best = min((exact, theta), key=lambda t: _value(scaled, c, low, high, t))
    return np.asarray(best / np.where(unit > 0, unit, 1.0))


def _value(rows: Array, c: Array, low: Array, high: Array, theta: Array) -> float:
    z = c - rows @ theta
    return float(np.maximum(high * z, low * z).sum())


def _independent(rows: Array, order: NDArray[np.intp]) -> list[int]:
    """Return the first rows, in that order, that are independent of those before."""
    picked: list[int] = []
    basis = np.zeros((0, rows.shape[1]))
    for i in order[: 20 * rows.shape[1]]:
        rest = rows[i] - (rows[i] @ basis.T) @ basis
        if (length := float(np.sqrt(rest @ rest))) > 1e-7 * float(np.sqrt(rows[i] @ rows[i])):
            picked.append(int(i))
            basis = np.vstack([basis, rest / length])
        if len(picked) == rows.shape[1]:
            break
    return picked


def smallest_slopes(rows: Array, gradient: Array, low: float, high: float) -> Array:
    """Return d (k,), each between `low` and `high`, with gradient - rows'd nearest to zero."""
    from scipy.optimize import lsq_linear

    free = linalg.least_squares(rows.T, gradient)
    if ((free >= low) & (free <= high)).all():
        return free
    return np.asarray(lsq_linear(rows.T, gradient, (low, high), method="bvls", tol=1e-14).x)

"""Losses of the difference of two units' residuals: pairwise differences and rank regression."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from etafree.axes import axis_names
from etafree.errors import InputError
from etafree.linalg import least_squares
from etafree.losses import Huber, LinearLoss, ResidualLoss
from etafree.pairs import PER_UNIT, DifferenceTotal, checked_units
from etafree.rows import shared_index
from etafree.scale import mad_scale
from etafree.totals import GeneralLoss
from etafree.validation import Array, as_array, as_choice, as_positive

__all__ = ["PairwiseDifference", "Wilcoxon"]


class _Differences(GeneralLoss):
    """A loss of the difference of two residuals; data are (X, y)."""

    convex: ClassVar[bool] = True
    row_advice: ClassVar[str] = PER_UNIT

    @property
    def kernel(self) -> LinearLoss:
        """The loss of a difference."""
        raise TypeError(f"{type(self).__name__} must define kernel")

    def fitted(self, X: Array, y: Array, weights: Array | None) -> _Differences:
        """Return this loss with what it takes from the data filled in; X has an intercept."""
        return self

    def count(self, data: Any) -> int:
        """Return the number of units."""
        if not isinstance(data, tuple) or len(data) != 2:
            raise InputError("data", f"is a {type(data).__name__}", "pass a tuple (X, y)")
        return len(as_array(data[1], "y", ndim=1))

    def bind(
        self, data: Any, start: Any, weights: Array | None, frequency: bool
    ) -> tuple[DifferenceTotal, Array, tuple[str, ...] | None]:
        """Return the total, a least-squares start and the names of X's columns."""
        if getattr(data[0], "ndim", 2) == 1:
            raise InputError("X", "is a vector but must have 2 dimensions", "pass X[:, None]")
        X, y = as_array(data[0], "X", ndim=2), as_array(data[1], "y", ndim=1)
        if X.shape[1] == 0 or len(X) != len(y):
            raise InputError("X", f"has shape {X.shape} for {len(y)} responses",
                             "pass one row per response")  # fmt: skip
        shared_index(*data)
        names = axis_names(data[0])
        w = checked_units(len(y), weights)
        seen = X[w > 0]
        flat = np.ptp(seen, axis=0) <= 1e-12 * np.abs(seen).max(axis=0)
        for j in np.flatnonzero(flat)[:1]:
            named = f"column {j}" if names is None else f"column {names[j]!r}"
            raise InputError("X", f"{named} is constant: an intercept drops out of differences",
                             "leave it out")  # fmt: skip
        X = np.ascontiguousarray(X - np.median(seen, axis=0))  # for accuracy, whatever the outliers
        y = y - np.median(y[w > 0])
        full, root = np.column_stack([np.ones(len(X)), X]), np.sqrt(w)[:, None]
        first = least_squares(root * full, root[:, 0] * y)[1:]
        if start is not None:
            first = as_array(start, "start", shape=(X.shape[1],))
        return (
            DifferenceTotal(self.fitted(full, y, weights), X, y, weights, frequency),
            first,
            names,
        )


@dataclass(frozen=True)
class PairwiseDifference(_Differences):
    r"""A loss of pairwise differences, :math:`h=\ell\{(y_i-y_j)-(x_i-x_j)^\top\theta\}`.

    An intercept drops out, so X must not contain one. With the squared loss the minimiser is
    ordinary least squares with an intercept, and the sandwich with HC0 is its HC0. Huber's and the
    squared loss take O(n log n) operations, others :math:`n^2/2`.

    Parameters
    ----------
    loss : LinearLoss
        Convex and a symmetric function of the residual: Squared, Huber, PseudoHuber and so on. With
        ``scale="mad"`` the scale is that of a difference, :math:`2^{1/2}` times the residuals'
        from a preliminary Huber regression with an intercept.

    Raises
    ------
    InputError
        `loss` is not convex, or no symmetric function of the residual.

    References
    ----------
    Honoré, B. E. and Powell, J. L. (1994). Pairwise difference estimators of censored and truncated
    regression models. J. Econometrics 64, 241-278.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 2.0, 6.0])
    >>> criterion = ef.Criterion(ef.PairwiseDifference(ef.losses.Squared()), data=(X, y))
    >>> ef.minimise(criterion).theta.round(8), criterion.size
    (array([2.5]), 3.0)
    """

    loss: LinearLoss

    def __post_init__(self) -> None:
        loss = self.loss
        if not isinstance(loss, LinearLoss):
            raise InputError("loss", f"is {loss!r}", "pass a loss such as ef.losses.Huber(1.345)")
        if not loss.convex:
            raise InputError("loss", f"is {loss!r}, which is not convex: over pairs it may have "
                             "many minima", "use Huber or PseudoHuber")  # fmt: skip
        if isinstance(loss, ResidualLoss) and isinstance(loss.scale, str):
            loss = loss.with_scale(1.0)
        d, zero = np.array([0.3, 1.0, 2.5, 9.0]), np.zeros(4)
        with np.errstate(all="ignore"):
            here = loss.values(zero, d)
            same = [loss.values(zero, -d), loss.values(zero + 2.0, d + 2.0)]
        if not all(np.allclose(here, other, rtol=1e-9, atol=0) for other in same):
            raise InputError("loss", f"is {self.loss!r}, no symmetric function of the residual",
                             "use Squared, Huber or PseudoHuber")  # fmt: skip

    @property
    def kernel(self) -> LinearLoss:
        return self.loss

    def fitted(self, X: Array, y: Array, weights: Array | None) -> PairwiseDifference:
        if isinstance(self.loss, ResidualLoss) and isinstance(self.loss.scale, str):
            scale = float(np.sqrt(2.0)) * mad_scale(self.loss, X, y, weights)
            return replace(self, loss=self.loss.with_scale(scale))
        return self

    def plug_ins(self) -> dict[str, float]:
        return self.loss.plug_ins()

    def describe(self) -> str:
        return f"the expected {type(self.loss).__name__} loss of the difference of two units"


@dataclass(frozen=True)
class Wilcoxon(_Differences):
    r"""Rank regression: :math:`h=|d|`, :math:`d=(y_i-y_j)-(x_i-x_j)^\top\theta`, rounded at zero.

    Inside the width w the absolute value is replaced by a parabola,

    .. math:: h = d^2/(2w)\ \text{ for } |d|\le w,\qquad h = |d|-w/2\ \text{ outside,}

    so the Hessian counts the pairs with :math:`|d|\le w`, as in Koul, Sievers and McKean (1987).
    With Jaeckel's dispersion :math:`D=\sum_i 12^{1/2}\{R_i/(n+1)-\tfrac12\}r_i` of Wilcoxon scores,
    :math:`\sum_{i<j}|r_i-r_j| = 3^{-1/2}(n+1)D`: the minimiser tends to his as w falls. Errors
    that are independent of X leave the target the same at every w. So small a width that no pairs
    are inside leaves the loss flat at its minimum, which is an error.

    Parameters
    ----------
    width : float or "mad"
        In units of the response. ``"mad"``: :math:`n^{-1/2}` times the scale of the residuals
        (median absolute residual over 0.6745) of a Huber regression with an intercept, from then
        on taken as known and recorded as a plug-in.

    Raises
    ------
    InputError
        `width` is neither a positive number nor ``"mad"``.

    References
    ----------
    Jaeckel, L. A. (1972). Estimating regression coefficients by minimizing the dispersion of the
    residuals. Ann. Math. Statist. 43, 1449-1458. Koul, H. L., Sievers, G. L. and McKean, J. (1987).
    An estimator of the scale parameter for the rank analysis of linear models under general score
    functions. Scand. J. Statist. 14, 131-141.

    Examples
    --------
    >>> import etafree as ef
    >>> X, y = np.arange(6.0)[:, None], np.array([0.0, 1.0, 2.1, 2.9, 4.0, 500.0])
    >>> ef.minimise(ef.Criterion(ef.Wilcoxon(0.5), data=(X, y))).theta.round(2)
    array([1.15])
    """

    width: float | str = "mad"
    estimated: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.width, str):
            as_choice(self.width, "width", ("mad",))
        else:
            object.__setattr__(self, "width", as_positive(self.width, "width"))

    @property
    def kernel(self) -> LinearLoss:
        if isinstance(self.width, str):
            raise InputError("width", "is 'mad' and has not been estimated", "use a Criterion")
        root = float(np.sqrt(self.width))  # Huber's loss with threshold w, over w
        return Huber(root, scale=root)

    def fitted(self, X: Array, y: Array, weights: Array | None) -> Wilcoxon:
        if not isinstance(self.width, str):
            return self
        many = len(X) if weights is None else np.count_nonzero(weights)
        try:
            scale = mad_scale(Huber(), X, y, weights)
        except InputError:
            raise InputError("width", "'mad' is zero: half of the residuals vanish",
                             "pass width= as a number") from None  # fmt: skip
        return replace(self, width=scale / float(np.sqrt(many)), estimated=True)

    def plug_ins(self) -> dict[str, float]:
        return {"width": float(self.width)} if self.estimated else {}

    def describe(self) -> str:
        return "the expected absolute difference of two units' residuals, rounded at zero"

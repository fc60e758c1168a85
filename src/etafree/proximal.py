r"""Minimise a criterion whose penalty has kinks, by proximal Newton steps.

Every step minimises :math:`g^\top d + \tfrac12 d^\top H d + \lambda_n s_n\rho(\theta+d)`, a
quadratic model of the loss plus the penalty itself. Once it is known which coefficients are zero
that *is* a Newton step on the others, so the fit is as accurate as a smooth one.

References
----------
Lee, J. D., Sun, Y. and Saunders, M. A. (2014). Proximal Newton-type methods for minimizing
composite functions. SIAM J. Optim. 24, 1420-1443.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.errors import ConvergenceError, InputError
from etafree.linear import LinearTotal
from etafree.newton import MAX_ITERATIONS, TOLERANCE, Fit, check_collinear, separated
from etafree.penalties import KinkedPenalty
from etafree.penalties.norms import GroupNorms
from etafree.quadratic import QuadraticModel
from etafree.threads import own_settings
from etafree.validation import Array

__all__ = ["proximal_minimise"]


@own_settings
def proximal_minimise(criterion: Criterion, start: Any = None) -> Fit:
    r"""Return the minimiser of a convex loss plus a penalty with kinks.

    Coefficients at a kink are exactly zero. The fit's `gap` is the largest coordinate of the
    smallest subgradient relative to the terms it sums, zero to rounding; its `hessian` is that of
    the loss plus the penalty's among active coefficients.

    Parameters
    ----------
    criterion : Criterion
        A convex loss over a linear predictor with an `L1`, `ElasticNet` or `GroupL1` penalty.
    start : (p,) array, optional

    Raises
    ------
    InputError
        A loss that is not convex, or collinear columns among the active ones.
    ConvergenceError
        No finite minimiser: separated data and a coefficient that is not penalized.

    Examples
    --------
    >>> import etafree as ef
    >>> from etafree.penalties import L1
    >>> X, y = np.eye(2), np.array([3.0, -0.5])
    >>> proximal_minimise(ef.Criterion(ef.losses.Squared(), (X, y), L1(0.5))).theta
    array([2., 0.])
    """
    if not isinstance(criterion, Criterion):
        raise InputError("criterion", f"is a {type(criterion).__name__}", "pass an ef.Criterion")
    if not isinstance(criterion.penalty, KinkedPenalty):
        raise InputError("criterion", "has a penalty without kinks", "use ef.minimise")
    if not isinstance(criterion.total, LinearTotal) or not criterion.loss.convex:
        raise InputError("loss", f"is {criterion.loss!r}", "a penalty with kinks needs a convex "
                         "loss over a linear predictor; use ef.penalties.huberized_l1")  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows is rejected
        objective = _Objective.of(criterion, criterion.penalty)
        first = _first(objective) if start is None else criterion.point(start, "start")
        return _iterate(objective, first)


@dataclass(frozen=True, eq=False)
class _Objective:
    """A criterion with its penalty times lambda_n s_n, and what its loss cannot fall below."""

    criterion: Criterion
    kinks: GroupNorms
    floor: float

    @classmethod
    def of(cls, criterion: Criterion, penalty: KinkedPenalty) -> _Objective:
        total = criterion.total
        best = total.loss.values(total.loss.start(total.y), total.y)
        least = float(np.sum(best if total.weights is None else best * total.weights))
        kinks = penalty.kinks_at(criterion.p).scaled(criterion.strength * criterion.size)
        return cls(criterion, kinks, min(least, 0.0))

    @property
    def free(self) -> NDArray[np.bool_]:
        """Which coefficients (p,) are not penalized."""
        bare: NDArray[np.bool_] = (self.kinks.weights == 0)[self.kinks.codes]
        free: NDArray[np.bool_] = bare & (self.kinks.ridge == 0)
        return free

    def at(self, theta: Array, *, majorize: bool = False) -> _Point:
        """Return the value and the quadratic model at a point."""
        part = self.criterion.total.derivatives(theta, majorize=majorize)
        model = self.model(theta, part.gradient, part.hessian, part.gradient_scale)
        return _Point(part.value + float(self.kinks.value(theta)), model)

    def model(self, theta: Array, gradient: Array, hessian: Array, scale: Array) -> QuadraticModel:
        """Return the model of a loss with these derivatives, plus the penalty."""
        bend = self.kinks.ridge * theta
        return QuadraticModel(
            theta,
            gradient + bend,
            hessian + np.diag(self.kinks.ridge),
            self.kinks.without_ridge(),
            scale + np.abs(bend) + self.kinks.weights[self.kinks.codes],
        )

    def check(self, curvature: Array, among: NDArray[np.bool_]) -> None:
        """Raise an `InputError` if columns `among` are collinear."""
        alone = np.eye(self.criterion.p)
        check_collinear(self.criterion, np.where(np.outer(among, among), curvature, alone))

    def done(self, model: QuadraticModel, value: float, iterations: int) -> Fit:
        """Return the fit, unless the Hessian says that active columns are collinear."""
        active = model.norms.active(model.theta)
        hessian = model.hessian + model.norms.hessian(model.theta)
        self.check(hessian, active)
        hessian -= np.diag(np.where(active, 0.0, self.kinks.ridge))
        return Fit(model.theta, value, hessian, model.gap, iterations, "converged")


class _Point(NamedTuple):
    """Value of the objective at a point, and its model there."""

    value: float
    model: QuadraticModel


def _first(objective: _Objective) -> Array:
    """Return the better of zero and the penalized least-squares fit to the loss's start."""
    total, kinks = objective.criterion.total, objective.kinks
    gram, moment = total.least_squares()
    if not (np.isfinite(gram).all() and np.isfinite(moment).all()):
        raise InputError("X", "is so large that X'X overflows", "rescale its columns")
    objective.check(gram, objective.free)
    zero, norms = np.zeros(len(moment)), np.sqrt(np.diagonal(gram))
    pull = np.divide(np.abs(moment), norms, out=np.zeros_like(norms), where=norms > 0)
    found = objective.model(zero, -moment, gram, norms * pull.max()).minimiser()
    if found is None:
        return zero
    both = np.vstack([zero, found])
    values = total.totals(both) + kinks.value(both)
    return found if np.isfinite(values[1]) and not values[0] <= values[1] else zero


def _iterate(objective: _Objective, theta: Array) -> Fit:
    criterion, here = objective.criterion, objective.at(theta)
    if not np.isfinite(here.value):
        raise InputError("start", "is where the loss is not finite", "pass another start=")
    column_rms = criterion.total.column_norms / np.sqrt(criterion.n)
    runs = objective.free & criterion.loss.unit_free
    for iteration in range(MAX_ITERATIONS):
        model = here.model
        step = model.newton_step(model.theta, model.gradient)
        away = 0.0 if step is None else float(np.max((np.abs(step) * column_rms)[runs], initial=0))
        if model.gap <= TOLERANCE and away <= 1e-6:
            return objective.done(model, here.value, iteration)
        if away > 0.1 and (model.gap <= TOLERANCE or iteration >= 60):
            raise separated(criterion, model.theta)
        room = here.value - objective.floor
        moved = _search(objective, here, model.minimiser(room), halvings=4)
        if moved is None:
            safe = objective.at(model.theta, majorize=True).model
            moved = _search(objective, here, safe.minimiser(), halvings=40)
        if moved is None:
            if model.gap <= 1e3 * TOLERANCE:  # nothing else is left to gain
                return objective.done(model, here.value, iteration)
            if runs.any() and (step is None or away > 0.1):
                raise separated(criterion, model.theta)
            objective.check(model.hessian, model.norms.active(model.theta))
            raise ConvergenceError(f"no step lowers the loss (relative subgradient {model.gap:.1e})"
                                   "; rescale the columns or pass start=")  # fmt: skip
        here = moved
    if runs.any():
        raise separated(criterion, here.model.theta)
    raise ConvergenceError(
        f"not converged after {MAX_ITERATIONS} proximal Newton steps (relative subgradient "
        f"{here.model.gap:.1e}); raise the penalty's strength or pass another start="
    )


def _search(objective: _Objective, here: _Point, z: Array | None, halvings: int) -> _Point | None:
    """Return the first of theta + (z - theta) / 2**k that lowers the value, None if none does."""
    if z is None:
        return None
    model = here.model
    step = z - model.theta
    bend = float(model.norms.value(z)) - float(model.norms.value(model.theta))
    slope = float(model.gradient @ step) + bend
    noise = 1e-13 * (abs(here.value) + float(np.max(model.scale)) * 1e-3)
    for k in range(halvings):
        t = 0.5**k
        new = objective.at(z if k == 0 else model.theta + t * step)
        if not np.isfinite(new.value):
            continue
        falls = new.value <= here.value + 1e-4 * t * slope
        drowned = abs(slope) <= 1e4 * noise and new.value <= here.value + 1e3 * noise
        if (falls and slope < -noise) or (drowned and new.model.gap < model.gap):
            return new
    return None

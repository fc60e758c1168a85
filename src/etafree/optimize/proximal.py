r"""Minimise a criterion whose penalty has kinks, by proximal Newton steps.

Every step minimises a quadratic model of the loss plus the penalty itself,
:math:`q(z) = g^\top(z-\theta) + \tfrac12(z-\theta)^\top H(z-\theta) + \sum_g w_g\|z_g\|`. Once it
is known which coefficients are zero that *is* a Newton step on the others, so the fit is as
accurate as a smooth one. Block descent finds out which groups are zero, a few new ones at a time;
Newton steps on the others, which stop where a coefficient reaches zero, do the accurate work. For
absolute values that is feature-sign search, which ends after finitely many steps.

References
----------
Lee, J. D., Sun, Y. and Saunders, M. A. (2014). Proximal Newton-type methods for minimizing
composite functions. SIAM J. Optim. 24, 1420-1443.
Lee, H., Battle, A., Raina, R. and Ng, A. Y. (2007). Efficient sparse coding algorithms. Adv. Neural
Inf. Process. Syst. 19, 801-808.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.errors import ConvergenceError, InputError
from etafree.foundation.arguments import Array
from etafree.foundation.linalg import eigh
from etafree.foundation.threads import own_settings
from etafree.optimize.newton import (
    MAX_ITERATIONS,
    TOLERANCE,
    Minimum,
    _newton_step,
    check_collinear,
    finite_moments,
    separated,
)
from etafree.penalties import KinkedPenalty, NormPenalty
from etafree.penalties.kinked import GroupNorms
from etafree.totals.base import Derivatives
from etafree.totals.linear import has_design

ENOUGH = 0.1 * TOLERANCE  #: Gaps below this are zero.
#: Rounds of descent, Newton steps in each, and groups that a round lets in at least.
MAX_ROUNDS, MAX_NEWTON, ENTRANTS = 60, 50, 10
#: Share of its diagonal added to a singular Hessian; a step then runs along its kernel to a kink.
DAMPING = 1e-8


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """A quadratic around a point, plus norms."""

    theta: Array
    gradient: Array  #: g (p,).
    hessian: Array  #: H (p, p), positive semi-definite.
    norms: GroupNorms  #: Without a ridge, which belongs to the quadratic.
    scale: Array  #: Size (p,) of the terms that a subgradient sums, to judge when it is zero.
    value: float = 0.0  #: Of what is modelled, at theta.

    def kinks(self, z: Array) -> float:
        """Return the penalty at z, without its ridge."""
        return float(self.norms.value(z))

    def gaps(self, z: Array, gradient: Array) -> Array:
        """Return the smallest subgradient (p,), each coordinate relative to the terms it sums."""
        least = np.abs(self.norms.least_subgradient(z, gradient))
        return least / np.where(self.scale > 0, self.scale, 1.0)

    @cached_property
    def gap(self) -> float:
        """The largest of them at theta."""
        return float(np.max(self.gaps(self.theta, self.gradient)))

    def newton_step(
        self, z: Array, gradient: Array, *, damping: float = 0.0, majorize: bool = False
    ) -> Array | None:
        """Return the Newton step (p,) on the active block, None if its Hessian is singular."""
        step, active = np.zeros(len(z)), self.norms.active(z)
        if active.any():
            slope = self.norms.least_subgradient(z, gradient)[active]
            bend = self.hessian + self.norms.hessian(z, majorize=majorize)
            bend = bend[np.ix_(active, active)]
            bend += np.diag(damping * np.diagonal(bend))
            inner = _newton_step(Derivatives(0.0, slope, bend, slope))
            if inner is None:
                return None
            step[active] = inner
        return step

    def minimiser(self, room: float = np.inf) -> Array | None:
        """Return the minimiser, None if the model falls by more than `room`, maybe without end."""
        z, gradient = self.theta.copy(), self.gradient.copy()
        best, since = np.inf, 0
        for _ in range(MAX_ROUNDS):
            z, gradient = self._on_active(z, gradient, room)
            gap = float(np.max(self.gaps(z, gradient)))
            if -self.change(z, gradient) > room or not np.isfinite(gap):
                return None
            best, since = (gap, 0) if gap < 0.9 * best else (best, since + 1)
            if gap <= ENOUGH or (since > 3 and gap <= TOLERANCE):
                break
            self._descend(z, gradient)
        # zero are groups whose removal changes the gradient by rounding only
        felt = np.abs(z) * np.diagonal(self.hessian) > ENOUGH * self.scale
        keep = (np.bincount(self.norms.codes, felt) > 0) | (self.norms.weights == 0)
        return np.where(keep[self.norms.codes], z, 0.0)

    def change(self, z: Array, gradient: Array) -> float:
        """Return the model at z less that at theta; `gradient` is the quadratic's at z."""
        bend = self.kinks(z) - self.kinks(self.theta)
        return float(0.5 * (z - self.theta) @ (self.gradient + gradient)) + bend

    def _on_active(self, z: Array, gradient: Array, room: float) -> tuple[Array, Array]:
        """Return the point and gradient after Newton steps on the active block alone."""
        for _ in range(MAX_NEWTON):
            if np.all(self.gaps(z, gradient)[self.norms.active(z)] <= ENOUGH):
                break
            step = self.newton_step(z, gradient)
            if step is None:
                step = self.newton_step(z, gradient, damping=DAMPING)
            moved = self._moved(z, gradient, step)
            if moved is None and self.norms.large:  # far from a norm's minimum Newton overshoots
                step = self.newton_step(z, gradient, damping=DAMPING, majorize=True)
                moved = self._moved(z, gradient, step)
            if moved is None:
                break
            z, gradient = moved
            if -self.change(z, gradient) > room:
                break
        return z, gradient

    def _moved(self, z: Array, gradient: Array, step: Array | None) -> tuple[Array, Array] | None:
        """Return the point and gradient after a step, stopped at zeros that it crosses."""
        if step is None:
            return None
        dots = np.bincount(self.norms.codes, z * (z + step))[self.norms.codes]
        crosses = (self.norms.rates > 0) & (dots <= 0) & (z != 0)
        points = [np.where(crosses, 0.0, z + step)]  # all that cross to zero, if that is lower
        if crosses.any():  # up to the first
            first = float(np.min((z / -np.where(step == 0, np.inf, step))[crosses], initial=1.0))
            short = z + first * step
            points.append(np.where(crosses & (np.abs(short) <= 1e-14 * np.abs(z)), 0.0, short))
        here, gap = self.change(z, gradient), np.max(self.gaps(z, gradient))
        noise = 1e-15 * float(np.abs(z - self.theta) @ self.scale)
        for point in points:
            there = gradient + self.hessian @ (point - z)
            change = self.change(point, there) - here
            if change < -noise or (change <= noise and np.max(self.gaps(point, there)) < gap):
                return point, there
        return None

    def _descend(self, z: Array, gradient: Array) -> None:
        """Minimise over one group after the other, active ones and the worst others, in place."""
        worst, inside = np.zeros((2, len(self.norms.weights)))
        np.maximum.at(worst, self.norms.codes, self.gaps(z, gradient))
        inside[self.norms.codes] = self.norms.active(z)
        others = np.argsort(np.where(inside, 0.0, -worst), kind="stable")
        inside[others[: max(ENTRANTS, int(inside.sum()) // 2)]] = 1.0
        for g in np.flatnonzero((inside > 0) & (worst > ENOUGH)).tolist():
            members = self.norms.members[g]
            pull = self.hessian[np.ix_(members, members)] @ z[members] - gradient[members]
            move = self._group_minimiser(g, pull) - z[members]
            if np.isfinite(move).all():
                z[members] += move
                gradient += move @ self.hessian[members]

    @cached_property
    def _spectra(self) -> dict[int, tuple[Array, Array]]:
        """Eigenvalues and eigenvectors of the Hessian's blocks of groups larger than one."""
        places = [(g, self.norms.members[g]) for g in self.norms.large]
        return {g: eigh(self.hessian[np.ix_(j, j)], "Hessian") for g, j in places}

    def _group_minimiser(self, g: int, pull: Array) -> Array:
        r"""Return the minimiser of :math:`\tfrac12 t^\top Ht - c^\top t + w\|t\|` over one group.

        In eigenvectors :math:`t_i = c_i\nu/(h_i\nu+w)`, where the norm :math:`\nu` solves
        :math:`\|c/(h\nu+w)\| = 1`; Newton's method for the norm's inverse climbs to it from zero.
        Infinite where there is no curvature.
        """
        weight, size = float(self.norms.weights[g]), float(np.linalg.norm(pull))
        if size <= weight:
            return np.zeros(len(pull))
        if len(pull) == 1:
            j = self.norms.members[g][0]
            with np.errstate(divide="ignore"):
                one: Array = (1.0 - weight / size) * pull / self.hessian[j, j]
            return one
        values, vectors = self._spectra[g]
        if not values[-1] > 0:
            return np.full(len(pull), np.inf)
        values = np.maximum(values, 1e-14 * values[-1])
        turned, norm = pull @ vectors, 0.0
        for _ in range(60):
            unit = turned / (values * norm + weight)
            square = float(unit @ unit)
            slope = float(np.sum(unit**2 * values / (values * norm + weight)))
            rise = square * (np.sqrt(square) - 1.0) / slope
            norm += rise
            if rise <= 1e-15 * norm:
                break
        block: Array = vectors @ (turned * norm / (values * norm + weight))
        return block


@own_settings
def proximal_minimise(criterion: Criterion, start: object = None) -> Minimum:
    """Return the minimiser of a convex loss plus a penalty with kinks, zero at some of them.

    Its `gap` is the largest coordinate of the smallest subgradient relative to the terms it sums,
    its `hessian` that of the loss plus the penalty's among active coefficients.
    """
    if not isinstance(criterion.penalty, KinkedPenalty):
        raise InputError("criterion", "has a penalty without kinks", "use ef.minimise")
    if not has_design(criterion.total) or not criterion.loss.convex:
        needs = "a penalty with kinks needs a convex loss over a linear predictor"
        problem, advice = f"is {criterion.loss!r}; {needs}", "use ef.penalties.huberized_l1"
        raise InputError("loss", problem, advice)
    with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows is rejected
        objective = _objective(criterion, criterion.penalty)
        first = _first(objective) if start is None else criterion.point(start, "start")
        model = objective.at(first)
        if not np.isfinite(model.value):
            raise InputError("start", "is where the loss is not finite", "pass another start=")
        return _iterate(objective, model)


class Model(Protocol):
    """A quadratic around a point, plus a penalty with kinks."""

    @property
    def theta(self) -> Array:
        """The point (p,)."""

    @property
    def gradient(self) -> Array:
        """Of the quadratic there (p,)."""

    @property
    def hessian(self) -> Array:
        """Of the quadratic (p, p)."""

    @property
    def scale(self) -> Array:
        """Size (p,) of the terms that a subgradient sums."""

    @property
    def value(self) -> float:
        """Of what is modelled, at the point."""

    @property
    def gap(self) -> float:
        """The largest relative subgradient at theta."""

    def kinks(self, z: Array) -> float:
        """Return the penalty at z."""

    def newton_step(self, z: Array, gradient: Array) -> Array | None:
        """Return the Newton step (p,) where the penalty is smooth, None if there is none."""

    def minimiser(self, room: float = np.inf) -> Array | None:
        """Return the minimiser, None if the model falls by more than `room`."""


class Objective(ABC):
    """A criterion with its penalty times lambda_n s_n."""

    criterion: Criterion

    @property
    @abstractmethod
    def free(self) -> NDArray[np.bool_]:
        """Which coefficients (p,) are not penalized."""

    @property
    def runs(self) -> NDArray[np.bool_]:
        """Which may run off to infinity."""
        return self.free

    @cached_property
    def floor(self) -> float:
        """What the loss cannot fall below."""
        total = self.criterion.total
        best = total.loss.values(total.loss.start(total.y), total.y)
        least = float(np.sum(best if total.weights is None else best * total.weights))
        return min(least, 0.0)

    def at(self, theta: Array, *, majorize: bool = False) -> Model:
        """Return the quadratic model at a point."""
        return self.model(theta, self.criterion.total.derivatives(theta, majorize=majorize))

    @abstractmethod
    def model(self, theta: Array, loss: Derivatives) -> Model:
        """Return the model of a loss with these derivatives, plus the penalty."""

    @abstractmethod
    def penalties(self, thetas: Array) -> Array:
        """Return the penalty times lambda_n s_n at many points (D, p)."""

    @abstractmethod
    def check(self, model: Model) -> Array:
        """Return the Hessian at a fit; an `InputError` if it says that columns are collinear."""

    def check_among(self, curvature: Array, among: NDArray[np.bool_]) -> None:
        """Raise an `InputError` if columns `among` are collinear."""
        alone = np.eye(self.criterion.p)
        check_collinear(self.criterion, np.where(np.outer(among, among), curvature, alone))


@dataclass(frozen=True, eq=False)
class NormObjective(Objective):
    """A criterion whose penalty sums norms of groups."""

    criterion: Criterion
    norms: GroupNorms

    @property
    def free(self) -> NDArray[np.bool_]:
        free: NDArray[np.bool_] = (self.norms.rates == 0) & (self.norms.ridge == 0)
        return free

    def model(self, theta: Array, loss: Derivatives) -> QuadraticModel:
        bend = self.norms.ridge * theta
        return QuadraticModel(
            theta,
            loss.gradient + bend,
            loss.hessian + np.diag(self.norms.ridge),
            self.norms.without_ridge(),
            loss.gradient_scale + np.abs(bend) + self.norms.rates,
            loss.value + float(self.norms.value(theta)),
        )

    def penalties(self, thetas: Array) -> Array:
        values: Array = self.norms.value(thetas)
        return values

    def check(self, model: Model) -> Array:
        active = self.norms.active(model.theta)
        hessian = model.hessian + self.norms.without_ridge().hessian(model.theta)
        self.check_among(hessian, active)
        hessian -= np.diag(np.where(active, 0.0, self.norms.ridge))
        return hessian


def _objective(criterion: Criterion, penalty: KinkedPenalty) -> Objective:
    """Return the objective of a penalty of either kind."""
    weight = criterion.strength * criterion.size
    if isinstance(penalty, NormPenalty):
        return NormObjective(criterion, penalty.kinks_at(criterion.p).scaled(weight))
    from etafree.optimize.faces import face_objective

    return face_objective(criterion)


def _first(objective: Objective) -> Array:
    """Return the better of zero and the penalized least-squares fit to the loss's start."""
    gram, moment = finite_moments(objective.criterion)
    objective.check_among(gram, objective.free)
    zero, norms = np.zeros(len(moment)), np.sqrt(np.diagonal(gram))
    pull = np.divide(np.abs(moment), norms, out=np.zeros_like(norms), where=norms > 0)
    moments = Derivatives(0.0, -moment, gram, norms * pull.max())
    fitted = objective.model(zero, moments).minimiser()
    if fitted is None:
        return zero
    both = np.vstack([zero, fitted])
    values = objective.criterion.total.totals(both) + objective.penalties(both)
    return fitted if np.isfinite(values[1]) and not values[0] <= values[1] else zero


def _iterate(objective: Objective, model: Model) -> Minimum:
    """Take proximal Newton steps until the subgradient is zero to rounding."""
    criterion = objective.criterion
    column_rms = criterion.total.column_norms / np.sqrt(criterion.n)
    runs = objective.runs & criterion.loss.unit_free
    for iteration in range(MAX_ITERATIONS):
        step = model.newton_step(model.theta, model.gradient)
        away = 0.0 if step is None else float(np.max((np.abs(step) * column_rms)[runs], initial=0))
        if model.gap <= TOLERANCE and away <= 1e-6:
            return _done(objective, model, iteration)
        flat = step is None and runs.all()  # no curvature is left
        if _runs_off(away, flat, iteration, model.gap):
            raise separated(criterion, model.theta)
        lower = _search(objective, model, model.minimiser(model.value - objective.floor), 4)
        if lower is None:
            safe = objective.at(model.theta, majorize=True)
            lower = _search(objective, model, safe.minimiser(), 40)
        if lower is None:
            if model.gap <= 1e3 * TOLERANCE:  # nothing else is left to gain
                return _done(objective, model, iteration)
            if runs.any() and (step is None or away > 0.1):
                raise separated(criterion, model.theta)
            objective.check(model)
            stuck = f"no step lowers the loss (relative subgradient {model.gap:.1e})"
            raise ConvergenceError(f"{stuck}; rescale the columns or pass start=")
        model = lower
    if runs.any():
        raise separated(criterion, model.theta)
    raise ConvergenceError(
        f"not converged after {MAX_ITERATIONS} proximal Newton steps (relative subgradient "
        f"{model.gap:.1e}); raise the penalty's strength or pass another start="
    )


def _runs_off(away: float, flat: bool, iteration: int, gap: float) -> bool:
    """Return whether Newton steps that stay long, or have no curvature, will have no end."""
    return (flat and iteration >= 20) or (away > 0.1 and (gap <= TOLERANCE or iteration >= 60))


def _done(objective: Objective, model: Model, iterations: int) -> Minimum:
    """Return the fit, unless the Hessian says that active columns are collinear."""
    hessian = objective.check(model)
    return Minimum(model.theta, model.value, hessian, model.gap, iterations, "converged")


def _search(objective: Objective, model: Model, z: Array | None, halvings: int) -> Model | None:
    """Return the model at the first of theta + (z - theta) / 2**k with a lower value, or None."""
    if z is None:
        return None
    step = z - model.theta
    slope = float(model.gradient @ step) + model.kinks(z) - model.kinks(model.theta)
    noise = 1e-13 * (abs(model.value) + float(np.max(model.scale)) * 1e-3)
    for k in range(halvings):
        t = 0.5**k
        new = objective.at(z if k == 0 else model.theta + t * step)
        if not np.isfinite(new.value):
            continue
        falls = new.value <= model.value + 1e-4 * t * slope
        drowned = abs(slope) <= 1e4 * noise and new.value <= model.value + 1e3 * noise
        if (falls and slope < -noise) or (drowned and new.gap < model.gap):
            return new
    return None

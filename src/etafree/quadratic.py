r"""Minimise a quadratic plus weighted norms of groups, to rounding: a proximal Newton step's model.

:math:`q(z) = g^\top(z-\theta) + \tfrac12(z-\theta)^\top H(z-\theta) + \sum_g w_g\|z_g\|`. Block
descent finds out which groups are zero, a few new ones at a time; Newton steps on the others, which
stop where a coefficient reaches zero, do the accurate work. For absolute values that is
feature-sign search, which ends after finitely many steps.

References
----------
Lee, H., Battle, A., Raina, R. and Ng, A. Y. (2007). Efficient sparse coding algorithms. Adv. Neural
Inf. Process. Syst. 19, 801-808.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from etafree.linalg import eigh
from etafree.newton import TOLERANCE, _newton_step
from etafree.penalties.norms import GroupNorms
from etafree.totals import Derivatives
from etafree.validation import Array

__all__ = ["QuadraticModel"]

#: Gaps below this are zero.
ENOUGH = 0.1 * TOLERANCE
#: Rounds of descent, Newton steps in each, and groups that a round lets in at least.
MAX_ROUNDS, MAX_NEWTON, ENTRANTS = 60, 50, 10
#: Share of its diagonal added to a singular Hessian; a step then runs along its kernel to a kink.
DAMPING = 1e-8


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    r"""A quadratic around a point, plus norms.

    Attributes
    ----------
    theta : (p,) array
    gradient : (p,) array
        :math:`g`.
    hessian : (p, p) array
        :math:`H`, positive semi-definite.
    norms : GroupNorms
        Without a ridge, which belongs to the quadratic.
    scale : (p,) array
        Size of the terms that each coordinate of a subgradient sums, to judge when it is zero.

    Examples
    --------
    >>> norms = GroupNorms.of(np.arange(2), np.ones(2), np.zeros(2))
    >>> q = QuadraticModel(np.zeros(2), np.array([-3.0, 0.5]), np.eye(2), norms, np.ones(2))
    >>> q.minimiser()
    array([2., 0.])
    """

    theta: Array
    gradient: Array
    hessian: Array
    norms: GroupNorms
    scale: Array

    def gap_at(self, z: Array, gradient: Array, among: Any = slice(None)) -> float:
        """Return the largest subgradient coordinate relative to the terms it sums."""
        return float(np.max(self._gaps(z, gradient)[among], initial=0.0))

    @cached_property
    def gap(self) -> float:
        """The same at theta."""
        return self.gap_at(self.theta, self.gradient)

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
            found = _newton_step(Derivatives(0.0, slope, bend, slope))
            if found is None:
                return None
            step[active] = found
        return step

    def minimiser(self, room: float = np.inf) -> Array | None:
        """Return the minimiser, None if it promises a fall by more than `room`.

        A model whose Hessian is singular may fall without end.
        """
        z, gradient = self.theta.copy(), self.gradient.copy()
        best, since = np.inf, 0
        for _ in range(MAX_ROUNDS):
            z, gradient = self._on_active(z, gradient, room)
            gap = self.gap_at(z, gradient)
            if -self.change(z, gradient) > room or not np.isfinite(gap):
                return None
            best, since = (gap, 0) if gap < 0.9 * best else (best, since + 1)
            if gap <= ENOUGH or (since > 3 and gap <= TOLERANCE):
                break
            self._descend(z, gradient)
        return self._snapped(z)

    def change(self, z: Array, gradient: Array) -> float:
        """Return the model at z less that at theta; `gradient` is the quadratic's at z."""
        norms = float(self.norms.value(z)) - float(self.norms.value(self.theta))
        return float(0.5 * (z - self.theta) @ (self.gradient + gradient)) + norms

    def _gaps(self, z: Array, gradient: Array) -> Array:
        least = np.abs(self.norms.least_subgradient(z, gradient))
        gaps: Array = least / np.where(self.scale > 0, self.scale, 1.0)
        return gaps

    def _on_active(self, z: Array, gradient: Array, room: float) -> tuple[Array, Array]:
        """Return the point and gradient after Newton steps on the active block alone."""
        for _ in range(MAX_NEWTON):
            if self.gap_at(z, gradient, self.norms.active(z)) <= ENOUGH:
                break
            step = self.newton_step(z, gradient)
            if step is None:
                step = self.newton_step(z, gradient, damping=DAMPING)
            moved = self._moved(z, gradient, step)
            if moved is None and self.norms.large:  # far from a norm's minimum Newton overshoots
                step = self.newton_step(z, gradient, damping=DAMPING, majorize=True)
                moved = self._moved(z, gradient, step)
            if moved is None or -self.change(*moved) > room:
                return (z, gradient) if moved is None else moved
            z, gradient = moved
        return z, gradient

    def _moved(self, z: Array, gradient: Array, step: Array | None) -> tuple[Array, Array] | None:
        """Return the point and gradient after a step, stopped at zeros that it crosses."""
        if step is None:
            return None
        kinked = (self.norms.weights > 0)[self.norms.codes]
        dots = np.bincount(self.norms.codes, z * (z + step))[self.norms.codes]
        crosses = kinked & (dots <= 0) & (z != 0)
        points = [np.where(crosses, 0.0, z + step)]  # all that cross to zero, if that is lower
        if crosses.any():  # up to the first
            first = float(np.min((z / -np.where(step == 0, np.inf, step))[crosses], initial=1.0))
            short = z + first * step
            points.append(np.where(crosses & (np.abs(short) <= 1e-14 * np.abs(z)), 0.0, short))
        here, gap = self.change(z, gradient), self.gap_at(z, gradient)
        noise = 1e-15 * float(np.abs(z - self.theta) @ self.scale)
        for point in points:
            there = gradient + self.hessian @ (point - z)
            change = self.change(point, there) - here
            if change < -noise or (change <= noise and self.gap_at(point, there) < gap):
                return point, there
        return None

    def _descend(self, z: Array, gradient: Array) -> None:
        """Minimise over one group after the other, active ones and the worst others, in place."""
        worst, inside = np.zeros((2, len(self.norms.weights)))
        np.maximum.at(worst, self.norms.codes, self._gaps(z, gradient))
        inside[self.norms.codes] = self.norms.active(z)
        others = np.argsort(np.where(inside, 0.0, -worst), kind="stable")
        inside[others[: max(ENTRANTS, int(inside.sum()) // 2)]] = 1.0
        for g in np.flatnonzero((inside > 0) & (worst > ENOUGH)).tolist():
            some = self.norms.members[g]
            pull = self.hessian[np.ix_(some, some)] @ z[some] - gradient[some]
            move = self._group_minimiser(g, pull) - z[some]
            if np.isfinite(move).all():
                z[some] += move
                gradient += move @ self.hessian[some]

    @cached_property
    def _spectra(self) -> dict[int, tuple[Array, Array]]:
        """Eigenvalues and eigenvectors of the Hessian's blocks of groups larger than one."""
        places = {g: self.norms.members[g] for g in self.norms.large}
        return {g: eigh(self.hessian[np.ix_(j, j)], "Hessian") for g, j in places.items()}

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

    def _snapped(self, z: Array) -> Array:
        """Return z with groups at zero whose removal changes the gradient by rounding only."""
        felt = np.abs(z) * np.diagonal(self.hessian) > ENOUGH * self.scale
        keep = (np.bincount(self.norms.codes, felt) > 0) | (self.norms.weights == 0)
        return np.where(keep[self.norms.codes], z, 0.0)

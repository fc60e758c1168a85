r"""Minimise a quadratic plus norms of groups, the model of a proximal Newton step.

:math:`q(z) = g^\top(z-\theta) + \tfrac12(z-\theta)^\top H(z-\theta) + \sum_g w_g\|z_g\|`, by block
coordinate descent until the active groups settle, then by Newton steps on these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from etafree.penalties.norms import GroupNorms
from etafree.validation import Array

__all__ = ["QuadraticModel"]

SWEEPS = 60
#: A subgradient this small against the terms it sums is zero.
SETTLED = 1e-13
#: A pull beyond a kink by less than this, against the terms it sums, is none.
ROUNDING = 1e-12
#: Sweeps over the active groups before the others are looked at.
PATIENCE = 15


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """A loss's quadratic at a point, and the norms that are added to it.

    Attributes
    ----------
    theta : (p,) array
        Where the quadratic touches.
    gradient : (p,) array
    hessian : (p, p) array
    norms : GroupNorms
        Without a ridge, which belongs to the quadratic.
    scale : (p,) array
        Size of the terms that the gradient sums.
    """

    theta: Array
    gradient: Array
    hessian: Array
    norms: GroupNorms
    scale: Array

    @cached_property
    def gap(self) -> float:
        """Largest coordinate of the smallest subgradient at theta, relative to `scale`."""
        return self._gap(self.theta, self.gradient)

    def _gap(self, z: Array, gradient: Array) -> float:
        least = self.norms.least_subgradient(z, gradient)
        return float(np.max(np.abs(least) / np.where(self.scale > 0, self.scale, 1.0)))

    def newton_step(self, z: Array, gradient: Array) -> Array | None:
        """Return the Newton step (p,) among active coefficients, zero elsewhere; None if unsafe."""
        active = self.norms.active(z)
        step = np.zeros(len(z))
        if not active.any():
            return step
        curvature = (self.hessian + self.norms.hessian(z))[np.ix_(active, active)]
        slope = (gradient + self.norms.gradient(z))[active]
        diagonal = np.diagonal(curvature)
        if not np.isfinite(curvature).all() or np.any(diagonal <= 0):
            return None
        sd = np.sqrt(diagonal)
        try:
            lower = np.linalg.cholesky(curvature / sd / sd[:, None])
        except np.linalg.LinAlgError:
            return None
        if lower.diagonal().min() < 1e-7:
            return None
        step[active] = -np.linalg.solve(lower.T, np.linalg.solve(lower, slope / sd)) / sd
        return step

    def minimiser(self, room: float | None = None) -> Array | None:
        """Return the minimiser; None if the quadratic is not convex or falls by more than `room`.

        `room` is what a convex loss can still fall by, so a model that promises more is wrong.
        """
        diagonal = np.diagonal(self.hessian)
        if not np.isfinite(self.hessian).all() or np.any(diagonal < 0):
            return None
        z, gradient = self.theta.copy(), self.gradient.copy()
        for sweep in range(1, SWEEPS + 1):
            self._settle_active(z, gradient)  # so that of duplicate columns one comes in, not both
            self._sweep(z, gradient, range(len(self.norms.weights)))
            if not np.isfinite(z).all():
                return None
            done = self._gap(z, gradient) <= SETTLED
            if done or sweep % 3 == 0:
                finished = None if done else self._finished(z)
                if finished is not None:
                    z, gradient = finished, self._gradient(finished)
                    done = True
                fall = -float(self.gradient @ (z - self.theta)) - float(
                    0.5 * (z - self.theta) @ self.hessian @ (z - self.theta)
                )
                fall += float(self.norms.value(self.theta) - self.norms.value(z))
                if room is not None and fall > 4 * room + 1e-9 * abs(room):
                    return None
                if done:
                    return z
        return z

    def _gradient(self, z: Array) -> Array:
        slope: Array = self.gradient + self.hessian @ (z - self.theta)
        return slope

    def _settle_active(self, z: Array, gradient: Array) -> None:
        """Sweep over the active groups until their subgradients are zero, or nearly so."""
        scale = np.where(self.scale > 0, self.scale, 1.0)
        for _ in range(PATIENCE):
            active = self.norms.active(z)
            least = np.abs(gradient + self.norms.gradient(z)) / scale
            if not active.any() or least[active].max() <= SETTLED:
                return
            self._sweep(z, gradient, np.unique(self.norms.codes[active]))

    def _sweep(self, z: Array, gradient: Array, groups: Iterable[int]) -> None:
        """Update groups in turn, `z` and the quadratic's gradient there in place."""
        for g in groups:
            some, w = self.norms.members[g], float(self.norms.weights[g])
            if len(some) == 1:
                j = int(some[0])
                bend = self.hessian[j, j]
                if bend <= 0:
                    continue
                pull = bend * z[j] - gradient[j]
                beyond = abs(pull) - w
                if w > 0 and beyond <= ROUNDING * self.scale[j]:  # of duplicates one is enough
                    beyond = 0.0
                new = np.sign(pull) * max(beyond, 0.0) / bend
                if new != z[j]:
                    gradient += self.hessian[:, j] * (new - z[j])
                    z[j] = new
                continue
            block = self.hessian[np.ix_(some, some)]
            moved = _group_step(block, block @ z[some] - gradient[some], w)
            change = moved - z[some]
            if change.any():
                gradient += self.hessian[:, some] @ change
                z[some] = moved

    def _finished(self, z: Array) -> Array | None:
        """Return the minimiser by Newton steps on z's active groups, None if they are not it."""
        active = self.norms.active(z)
        for _ in range(30):
            gradient = self._gradient(z)
            if self._gap(z, gradient) <= SETTLED * 10:
                return z
            step = self.newton_step(z, gradient)
            if step is None:
                return None
            moved = z + step
            crossed = (np.sign(moved) != np.sign(z)) & active & self._single
            if crossed.any() or not np.array_equal(self.norms.active(moved), active):
                return None
            if np.max(np.abs(step)) <= 1e-15 * np.max(np.abs(z), initial=1e-300):
                return moved if self._gap(moved, self._gradient(moved)) <= 1e-10 else None
            z = moved
        return None

    @cached_property
    def _single(self) -> Array:
        """Which coefficients have an absolute value of their own."""
        sizes = np.bincount(self.norms.codes, minlength=len(self.norms.weights))
        one: Array = (sizes[self.norms.codes] == 1) & (self.norms.weights[self.norms.codes] > 0)
        return one


def _group_step(block: Array, pull: Array, weight: float) -> Array:
    r"""Return the minimiser of :math:`\tfrac12 z^\top Hz - b^\top z + w\|z\|`.

    It is :math:`(H + (w/r)I)^{-1}b` with r its own norm: one root of a monotone function.
    """
    size = float(np.linalg.norm(pull))
    if size <= weight:
        return np.zeros(len(pull))
    values, vectors = np.linalg.eigh(block)
    values, b = np.maximum(values, 0.0), vectors.T @ pull
    if values.max() <= 0.0:
        return np.full(len(pull), np.inf)  # falls without end
    if weight == 0.0:
        free: Array = vectors @ (b / np.maximum(values, 1e-300))
        return free
    # with s = w / r: sum (b / (values r + w))^2 = 1, decreasing in r
    low, high = 0.0, (size - weight) / max(float(values.min()), 1e-12 * float(values.max()))
    r = max((size - weight) / float(values.max()), 1e-300)
    for _ in range(100):
        part = b / (values * r + weight)
        excess = float(part @ part) - 1.0
        low, high = (r, high) if excess > 0 else (low, r)
        slope = -2.0 * float((part**2) @ (values / (values * r + weight)))
        new = r - excess / slope if slope < 0 else 0.5 * (low + high)
        new = new if low < new < high else 0.5 * (low + high)
        if abs(new - r) <= 1e-15 * r:
            break
        r = new
    solved: Array = vectors @ (b * r / (values * r + weight))
    return solved

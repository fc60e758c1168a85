r"""Minimise a criterion whose penalty is polyhedral: SLOPE, fused lasso, non-negativity.

A proximal Newton step minimises a quadratic model plus the penalty. Accelerated proximal gradient
steps find the face :math:`\theta=E\beta` of its minimiser; Newton steps on the face, which stop
where it ends and go on in the smaller face that begins there, find the minimiser to rounding.
Optimal is a point that is its own proximal point.

References
----------
Beck, A. and Teboulle, M. (2009). A fast iterative shrinkage-thresholding algorithm for linear
inverse problems. SIAM J. Imaging Sci. 2, 183-202. O'Donoghue, B. and Candes, E. (2015). Adaptive
restart for accelerated gradient schemes. Found. Comput. Math. 15, 715-732.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.foundation.linalg import eigvalsh
from etafree.optimize.newton import TOLERANCE, _newton_step, check_collinear
from etafree.optimize.proximal import DAMPING, ENOUGH, MAX_ROUNDS, Model, Objective
from etafree.penalties import ActivePenalty, PolyhedralPenalty
from etafree.totals.base import Derivatives

#: Proximal steps of the first round; later ones take up to `LONGEST`.
SHORTEST, LONGEST = 30, 1000


@dataclass(frozen=True, eq=False)
class FaceModel:
    """A quadratic around a point, plus a polyhedral penalty."""

    theta: Array
    gradient: Array  #: g (p,).
    hessian: Array  #: H (p, p), positive semi-definite.
    penalty: PolyhedralPenalty
    weight: float  #: What the penalty is multiplied by.
    scale: Array  #: Size (p,) of the terms that a subgradient sums, to judge when it is zero.
    value: float = 0.0  #: Of what is modelled, at theta.

    def kinks(self, z: Array) -> float:
        """Return the penalty at z."""
        return self.weight * float(self.penalty.value(z))

    def gaps(self, z: Array, gradient: Array) -> Array:
        """Return how far z is from its proximal point (p,), relative to what a gradient sums."""
        residual = self.penalty.residual(z, gradient, self.weight)
        return np.abs(residual) / np.where(self.scale > 0, self.scale, 1.0)

    @cached_property
    def gap(self) -> float:
        """The largest of them at theta."""
        return float(np.max(self.gaps(self.theta, self.gradient)))

    @cached_property
    def _steepest(self) -> float:
        """The Hessian's largest eigenvalue."""
        return float(eigvalsh(self.hessian, "Hessian")[-1])

    def newton_step(self, z: Array, gradient: Array) -> Array | None:
        """Return the Newton step (p,) along the face of z, None if its Hessian is singular."""
        face = self.penalty.face(z)
        step = self._step(face.basis, gradient @ face.basis + self.weight * face.linear)
        return None if step is None else face.basis @ step

    def _step(self, basis: Array, slope: Array, damping: float = 0.0) -> Array | None:
        """Return the Newton step (k,) in a face's coordinates."""
        if not len(slope):
            return slope
        bend = basis.T @ self.hessian @ basis
        bend += np.diag(damping * np.diagonal(bend))
        return _newton_step(Derivatives(0.0, slope, bend, slope))

    def change(self, z: Array, gradient: Array) -> float:
        """Return the model at z less that at theta; `gradient` is the quadratic's at z."""
        bend = self.kinks(z) - self.kinks(self.theta)
        return float(0.5 * (z - self.theta) @ (self.gradient + gradient)) + bend

    def minimiser(self, room: float = np.inf) -> Array | None:
        """Return the minimiser, None if the model falls by more than `room`, maybe without end."""
        z = self.theta
        if not np.isfinite(self.kinks(z)):
            z = self.penalty.prox(z, 1.0)
        best, since, steps = np.inf, 0, SHORTEST
        for _ in range(MAX_ROUNDS):
            z = self._accelerated(z, steps)
            z, gradient = self._on_face(z)
            gap = float(np.max(self.gaps(z, gradient)))
            if -self.change(z, gradient) > room or not np.isfinite(gap):
                return None
            best, since = (gap, 0) if gap < 0.9 * best else (best, since + 1)
            if gap <= ENOUGH or (since > 3 and gap <= TOLERANCE) or since > 6:
                break
            steps = min(2 * steps, LONGEST)
        return z

    def _slope(self, z: Array) -> Array:
        slope: Array = self.gradient + self.hessian @ (z - self.theta)
        return slope

    def _accelerated(self, z: Array, steps: int) -> Array:
        """Return the point after proximal gradient steps whose momentum restarts uphill."""
        length = 1.0 / self._steepest if self._steepest > 0 else 1.0
        ahead, momentum = z, 1.0
        for _ in range(steps):
            new = self.penalty.prox(ahead - length * self._slope(ahead), length * self.weight)
            if (ahead - new) @ (new - z) > 0:
                ahead, momentum = z, 1.0
                new = self.penalty.prox(ahead - length * self._slope(ahead), length * self.weight)
            faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
            ahead, z, momentum = new + (momentum - 1.0) / faster * (new - z), new, faster
        return z

    def _on_face(self, z: Array) -> tuple[Array, Array]:
        """Return the point and gradient after Newton steps on the face, and on smaller ones."""
        gradient = self._slope(z)
        for _ in range(2 * len(z) + 10):
            face = self.penalty.face(z)
            slope = gradient @ face.basis + self.weight * face.linear
            if np.all(np.abs(slope) <= ENOUGH * (self.scale @ np.abs(face.basis))):
                break
            step = self._step(face.basis, slope)
            if flat := step is None:
                step = self._step(face.basis, slope, DAMPING)
            if step is None:
                break
            there, whole = _along(face, face.coordinates(z), step)
            turned = self._slope(there)
            change = self.change(there, turned) - self.change(z, gradient)
            if not change <= 1e-15 * float(np.abs(there - self.theta) @ self.scale):
                break
            z, gradient = there, turned
            if flat and whole:  # what is left has no minimum on this face
                break
        return z, gradient


def _along(face: ActivePenalty, beta: Array, step: Array) -> tuple[Array, bool]:
    """Return the end (p,) of a step on a face, or the corner where it ends, and which it is."""
    room, fall = face.gaps @ beta, -(face.gaps @ step)
    reach = np.divide(room, fall, out=np.full(len(room), np.inf), where=fall > 0)
    if not np.any(reach <= 1.0):
        return face.basis @ (beta + step), True
    first = int(np.argmin(reach))
    beta, row = beta + reach[first] * step, face.gaps[first]
    kept, *other = np.flatnonzero(row)
    if other:  # a tie more
        beta[other[0]] = -row[kept] / row[other[0]] * beta[kept]
    else:
        beta[kept] = 0.0
    return face.basis @ beta, False


@dataclass(frozen=True, eq=False)
class FaceObjective(Objective):
    """A criterion with a polyhedral penalty."""

    criterion: Criterion
    penalty: PolyhedralPenalty
    weight: float

    @property
    def free(self) -> NDArray[np.bool_]:
        free = np.ones(self.criterion.p, dtype=bool)
        free[self.penalty.members(self.criterion.p)] = False
        return free

    @property
    def runs(self) -> NDArray[np.bool_]:
        _, absolute, _, ranked, _ = self.penalty.terms(self.criterion.p)
        bound = absolute > 0 or (len(ranked) > 0 and ranked[-1] > 0)
        return self.free if bound else np.ones(self.criterion.p, dtype=bool)

    def model(self, theta: Array, loss: Derivatives) -> FaceModel:
        members, absolute, jump, ranked, _ = self.penalty.terms(len(theta))
        kinks = np.zeros(len(theta))
        kinks[members] = absolute + 2.0 * jump + (ranked[0] if len(ranked) else 0.0)
        scale = loss.gradient_scale + self.weight * kinks
        value = loss.value + self.weight * float(self.penalty.value(theta))
        parts = loss.gradient, loss.hessian, self.penalty, self.weight, scale, value
        return FaceModel(theta, *parts)

    def penalties(self, thetas: Array) -> Array:
        values: Array = self.weight * self.penalty.value(thetas)
        return values

    def check(self, model: Model) -> Array:
        face = self.penalty.face(model.theta)
        if face.basis.size:
            check_collinear(
                on_face(self.criterion, face), face.basis.T @ model.hessian @ face.basis
            )
        return model.hessian


def on_face(criterion: Criterion, face: ActivePenalty) -> Criterion:
    """Return the criterion of the coordinates of a face."""
    total = replace(criterion.total, X=np.ascontiguousarray(criterion.total.X @ face.basis))
    position = None
    if criterion.intercept is not None and face.basis[criterion.intercept].any():
        position = int(np.flatnonzero(face.basis[criterion.intercept])[0])
    names = face.names(criterion.names)
    return replace(
        criterion, total=total, penalty=face, names=names, intercept=position, start=None
    )


def face_objective(criterion: Criterion) -> FaceObjective:
    """Return the objective of a polyhedral penalty."""
    penalty = criterion.penalty
    assert isinstance(penalty, PolyhedralPenalty)
    return FaceObjective(criterion, penalty, criterion.strength * criterion.size)

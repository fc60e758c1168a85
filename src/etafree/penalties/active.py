"""A penalty with kinks near a fit: smooth in the coefficients that are not zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.penalties.norms import GroupNorms
from etafree.penalties.smooth import Penalty, Strength
from etafree.validation import Array

__all__ = ["ActivePenalty"]


@dataclass(frozen=True, eq=False)
class ActivePenalty(Penalty):
    r"""A kinked penalty on its active block, where it is smooth.

    :math:`\rho_A(\theta_A) = c^\top\theta_A + \sum_g w_g\|\theta_g\| +
    \tfrac12\sum_j r_j\theta_j^2` with :math:`c_j = w_j\,\mathrm{sign}(\hat\theta_j)` for absolute
    values: the signs stay those of the fit, also where a draw crosses zero.

    Attributes
    ----------
    strength : float or callable
        As of the penalty it was made from.
    linear : (a,) array
        :math:`c`.
    kinks : GroupNorms
        The rest.
    name : str
        What results call it.

    See Also
    --------
    KinkedPenalty.restricted : What makes it.

    Examples
    --------
    >>> from etafree.penalties import L1
    >>> theta = np.array([0.0, -3.0, 2.0])
    >>> block = L1(0.5).restricted([False, True, True], theta)
    >>> float(block.value(theta[1:])), block.linear
    (5.0, array([-1.,  1.]))
    """

    strength: Strength
    linear: Array
    kinks: GroupNorms
    name: str

    def fitted_to(self, p: int, intercept: int | None = None) -> ActivePenalty:
        if p != len(self.linear):
            raise InputError("penalty", f"is for {len(self.linear)} active parameter(s), not {p}")
        return self

    def penalized(self) -> NDArray[np.bool_]:
        """Return which coefficients (a,) the kinks might have set to zero."""
        kinked: NDArray[np.bool_] = np.logical_or(
            (self.kinks.weights > 0)[self.kinks.codes], self.linear != 0
        )
        return kinked

    def value(self, theta: Array) -> Array:
        return theta @ self.linear + self.kinks.value(theta)

    def gradient(self, theta: Array) -> Array:
        return self.linear + self.kinks.gradient(theta)

    def hessian(self, theta: Array) -> Array:
        return self.kinks.hessian(theta)

    def describe(self, size: float) -> str:
        return f"{self.name} penalty on active coefficients (strength {self.strength_at(size):.4g})"

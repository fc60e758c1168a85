r"""Curvature J and score variance K at the minimiser, and what one learning rate can do with them.

The posterior at :math:`\eta` has covariance :math:`(\eta A)^{-1}`, the estimator
:math:`A^{-1}BA^{-1}`, with :math:`A=s_nJ` and :math:`B=s_nK`. One :math:`\eta` makes them equal
only if :math:`J^{-1}K` is a multiple of the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from etafree import linalg
from etafree.criterion import Criterion
from etafree.linalg import relative_eigenvalues
from etafree.optimize import Fit
from etafree.sandwich import target
from etafree.sums import Groups
from etafree.validation import Array

__all__ = ["ADEQUATE", "Information", "information"]

#: Extreme eigenvalues of J^{-1}K further apart than this call for calibration instead.
ADEQUATE = 2.0


@dataclass(frozen=True, eq=False)
class Information:
    r"""Hessian A and score variance B of the total loss at its minimiser.

    Attributes
    ----------
    hessian, meat : (p, p) array
        :math:`A` and :math:`B`, sums over observations.
    size : float
        The effective scale :math:`s_n`.
    names : tuple of str
        Parameter names.

    See Also
    --------
    etafree.LearningRate : What holds it.

    Examples
    --------
    >>> made = Information(np.diag([1.0, 4.0]), 2 * np.eye(2), 1.0, ("a", "b"))
    >>> made.eigenvalues, made.scalar_adequacy
    (array([0.5, 2. ]), 4.0)
    >>> {name: round(value, 3) for name, value in made.predicted_coverage(0.5).items()}
    {'a': 0.95, 'b': 1.0}
    """

    hessian: Array
    meat: Array
    size: float
    names: tuple[str, ...]

    @property
    def J(self) -> Array:
        """Curvature per observation."""
        return self.hessian / self.size

    @property
    def K(self) -> Array:
        """Score variance per observation, of cluster sums where there are clusters."""
        return self.meat / self.size

    @cached_property
    def eigenvalues(self) -> Array:
        r"""Eigenvalues of :math:`J^{-1}K`, ascending: what :math:`1/\eta` should be, by direction.

        They do not depend on the units of the parameters.
        """
        return relative_eigenvalues(self.meat, self.hessian)

    @property
    def scalar_adequacy(self) -> float:
        """Ratio of the extreme eigenvalues: one if a single learning rate can be right."""
        return float(self.eigenvalues[-1] / self.eigenvalues[0])

    def predicted_coverage(self, eta: float, level: float = 0.95) -> dict[str, float]:
        r"""Return the coverage of credible intervals, by parameter.

        :math:`2\Phi(z\,\mathrm{sd}_j/\mathrm{se}_j)-1`: z is the normal quantile, sd the
        posterior's standard deviation at `eta`, se the standard error of the sandwich.

        Parameters
        ----------
        eta : float
            Learning rate.
        level : float
            Of the credible intervals.

        Returns
        -------
        dict of str to float
            By parameter.
        """
        from scipy.special import ndtr, ndtri

        if not (np.isfinite(eta) and eta > 0):
            return dict.fromkeys(self.names, np.nan)
        inverse = linalg.inv(self.hessian, "Hessian")
        variance = np.diagonal(inverse) / eta
        ratio = np.sqrt(variance / np.diagonal(inverse @ self.meat @ inverse))
        covered = 2.0 * ndtr(ndtri(0.5 + 0.5 * level) * ratio) - 1.0
        return {name: float(c) for name, c in zip(self.names, covered, strict=True)}


def information(criterion: Criterion, fit: Fit, groups: Groups | None = None) -> Information:
    """Return A and B at the minimiser; scores are centred, and summed over clusters."""
    made = target(
        criterion, center=fit.theta, clusters=groups, hessian=fit.hessian,
        correction="HC0" if groups is None else "CR0",
    )  # fmt: skip
    assert made.hessian is not None
    assert made.meat is not None
    return Information(made.hessian, made.meat, criterion.size, criterion.names)

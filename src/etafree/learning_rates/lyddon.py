"""The learning rate that matches the information of the loss-likelihood bootstrap."""

from __future__ import annotations

import numpy as np

from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.learning_rates.problem import LearningRate, Problem, learning_rate


def lyddon_rate(J: Array, K: Array) -> float:
    r"""Return :math:`\eta = \mathrm{tr}(JK^{-1}J)/\mathrm{tr}J`.

    Examples
    --------
    >>> round(lyddon_rate(np.diag([1.0, 4.0]), 2 * np.eye(2)), 12)
    1.7
    """
    return float(np.trace(J @ linalg.solve(K, J, "score variance")) / np.trace(J))


def lyddon(problem: Problem) -> LearningRate:
    r"""Return :math:`\mathrm{tr}(JK^{-1}J)/\mathrm{tr}J`, which matches Fisher information numbers.

    The traces of the precisions of the posterior, :math:`\eta nJ`, and of the loss-likelihood
    bootstrap, :math:`nJK^{-1}J`, agree. It changes with the units of the parameters.

    References
    ----------
    Lyddon, S. P., Holmes, C. C. and Walker, S. G. (2019). General Bayesian updating and the
    loss-likelihood bootstrap. Biometrika 106, 465-478.
    """
    made = problem.information
    eta, several = lyddon_rate(made.J, made.K), problem.criterion.p > 1
    return learning_rate(problem, eta, "lyddon", "information", units_matter=several)

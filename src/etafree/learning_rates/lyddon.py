"""The learning rate that matches the information of the loss-likelihood bootstrap."""

from __future__ import annotations

import numpy as np

from etafree.foundation import linalg
from etafree.learning_rates.problem import LearningRate, Problem


def lyddon(problem: Problem) -> LearningRate:
    r"""Return :math:`\mathrm{tr}(JK^{-1}J)/\mathrm{tr}J`, which matches Fisher information numbers.

    The traces of the precisions of the posterior, :math:`\eta nJ`, and of the loss-likelihood
    bootstrap, :math:`nJK^{-1}J`, agree. It changes with the units of the parameters.

    References
    ----------
    Lyddon, S. P., Holmes, C. C. and Walker, S. G. (2019). General Bayesian updating and the
    loss-likelihood bootstrap. Biometrika 106, 465-478.
    """
    J, K = problem.information.J, problem.information.K
    eta = float(np.trace(J @ linalg.solve(K, J, "score variance")) / np.trace(J))
    return problem.rate("lyddon", "information", eta, units_matter=True)

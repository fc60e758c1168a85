r"""Magnitude adjustment: the learning rate that is right on average over directions."""

from __future__ import annotations

import numpy as np

from etafree.foundation import linalg
from etafree.learning_rates.problem import LearningRate, Problem


def magnitude(problem: Problem) -> LearningRate:
    r"""Return :math:`p/\mathrm{tr}(J^{-1}K)`, which matches the mean of the log-loss ratio.

    :math:`2\eta\{L(\theta_0)-L(\hat\theta)\}` then has the mean p of its chi-square reference. It
    does not depend on the units of the parameters.

    References
    ----------
    Pauli, F., Racugno, W. and Ventura, L. (2011). Bayesian composite marginal likelihoods. Statist.
    Sinica 21, 149-164. Ribatet, M., Cooley, D. and Davison, A. C. (2012). Bayesian inference from
    composite likelihoods, with an application to spatial extremes. Statist. Sinica 22, 813-845.
    """
    J, K = problem.information.J, problem.information.K
    eta = float(len(J) / np.trace(linalg.solve(J, K, "Hessian")))
    return problem.rate("magnitude", "coverage", eta)

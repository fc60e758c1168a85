r"""The learning rate whose posterior is nearest to the sandwich's normal law by its score."""

from __future__ import annotations

import numpy as np

from etafree.foundation import linalg
from etafree.foundation.arguments import Array, as_choice
from etafree.learning_rates.problem import LearningRate, Problem

#: Weights with a name: the sandwich's normal law, and the posterior's at any learning rate.
WEIGHTS = ("sandwich", "posterior")


def fisher_rate(J: Array, precision: Array, weight: Array) -> float:
    r"""Return :math:`\mathrm{tr}(JCP)/\mathrm{tr}(JCJ)`, all (p, p), for precision P, weight C."""
    weighted = J @ weight
    return float(np.trace(weighted @ precision) / np.trace(weighted @ J))


def onizuka(problem: Problem, weight: object = "sandwich") -> LearningRate:
    r"""Return the learning rate that minimises a weighted Fisher divergence, in closed form.

    The scores of the normal limits :math:`N(\hat\theta,(\eta nJ)^{-1})` of the posterior and
    :math:`N(\hat\theta,(nP)^{-1})`, :math:`P=JK^{-1}J`, of the minimiser differ by
    :math:`n(\eta J-P)(\theta-\hat\theta)`. The mean square under a weight with covariance C is

    .. math:: D_C(\eta) \propto \mathrm{tr}\{(\eta J-P)\,C\,(\eta J-P)\},\qquad
              \eta = \frac{\mathrm{tr}(JCP)}{\mathrm{tr}(JCJ)}.

    The sandwich as weight, :math:`C\propto P^{-1}`, gives :math:`\mathrm{tr}J/\mathrm{tr}K`, by
    Cauchy and Schwarz never above `lyddon`; the posterior, :math:`C\propto J^{-1}`, gives `lyddon`.
    Both change with the units of the parameters.

    The abstract of the paper says that the two laws are compared by a weighted Fisher divergence,
    that its minimiser has a closed form, equal to Fisher information matching in one case and not
    larger in another. The formula for any weight is derived here; the paper's own choice of weights
    was not available.

    Parameters
    ----------
    weight : {"sandwich", "posterior"} or (p, p) array
        What to average over: one of the two normal laws, or any covariance, up to a factor.

    References
    ----------
    Onizuka, T. (2026). Learning rate selection via weighted Fisher divergence. arXiv 2606.26478.
    """
    J, K = problem.information.J, problem.information.K
    precision = J @ linalg.solve(K, J, "score variance")
    if isinstance(weight, str):
        law = J if as_choice(weight, "weight", WEIGHTS) == "posterior" else precision
        covariance = linalg.inv(law, "Hessian")
    else:
        covariance = linalg.check_covariance(weight, "weight", len(J))
    eta = fisher_rate(J, precision, covariance)
    return problem.rate("onizuka", "coverage", eta, units_matter=True)

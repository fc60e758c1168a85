r"""Score matching: the posterior closest in Fisher divergence to the bootstrap's minimisers."""

from __future__ import annotations

import numpy as np

from etafree.foundation.arguments import Array, as_count
from etafree.learning_rates.problem import LearningRate, Problem
from etafree.optimize.many import batch


def score_matching_rate(gradients: Array, traces: Array, prior: Array) -> tuple[float, float]:
    """Return eta and its Monte Carlo error, from gradients of loss and log prior and Hessians."""
    above = np.einsum("bj,bj->b", gradients, prior) + traces
    below = np.einsum("bj,bj->b", gradients, gradients)
    eta = float(above.sum() / below.sum())
    residual = above - eta * below
    return eta, float(np.sqrt(residual @ residual) / below.sum())


def matsubara(problem: Problem, resamples: int = 1000) -> LearningRate:
    r"""Return the learning rate that fits the bootstrap's minimisers by score matching.

    .. math:: \eta = \frac{\sum_b\{\nabla L(\theta_b)^\top\nabla\log\pi(\theta_b)
              + \mathrm{tr}\nabla^2L(\theta_b)\}}{\sum_b\|\nabla L(\theta_b)\|^2}

    It changes with the units of the parameters. A `log_prior` enters by its gradient.

    Parameters
    ----------
    resamples : int
        Bootstrap data sets.

    References
    ----------
    Matsubara, T., Knoblauch, J., Briol, F.-X. and Oates, C. J. (2024). Generalized Bayesian
    inference for discrete intractable likelihood. J. Amer. Statist. Assoc. 119, 2345-2355.
    """
    count = as_count(resamples, "resamples", least=10)
    drawn = problem.resamples(count)
    here = batch(problem.criterion, drawn.thetas)
    prior = np.array([problem.prior_gradient(theta) for theta in drawn.thetas])
    sums = here.gradients, np.einsum("bii->b", here.hessians), prior
    eta, error = score_matching_rate(*sums)
    steps = np.unique(np.linspace(10, len(prior), 20).astype(int))
    rates = [score_matching_rate(*(terms[:k] for terms in sums))[0] for k in steps]
    trace = {"resamples": steps, "eta": rates}
    facts = {"resamples": count, "failed_minimisers": drawn.failed}
    return problem.rate("matsubara", "coverage", eta, error, trace, facts, units_matter=True)

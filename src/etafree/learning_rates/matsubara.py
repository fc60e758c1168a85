r"""Score matching: the posterior closest in Fisher divergence to the bootstrap's minimisers."""

from __future__ import annotations

import numpy as np

from etafree.foundation.arguments import Array, as_count
from etafree.learning_rates.problem import LearningRate, Problem, learning_rate
from etafree.optimize.many import batch


def score_matching_rate(
    gradients: Array, traces: Array, prior_gradients: Array
) -> tuple[float, float]:
    r"""Return the learning rate and its Monte Carlo standard error.

    .. math:: \eta = \frac{\sum_b\{\nabla L(\theta_b)^\top\nabla\log\pi(\theta_b)
              + \mathrm{tr}\nabla^2L(\theta_b)\}}{\sum_b\|\nabla L(\theta_b)\|^2}

    Parameters
    ----------
    gradients : (B, p) array
        Of the total loss at the bootstrap minimisers.
    traces : (B,) array
        Traces of its Hessian there.
    prior_gradients : (B, p) array
        Of the log prior there.

    Examples
    --------
    >>> theta = np.array([[-0.5], [0.0], [0.5]])  # four squared losses around zero, prior N(0, 1)
    >>> score_matching_rate(4 * theta, np.full(3, 4.0), -theta)[0]
    1.25
    """
    above = np.einsum("bj,bj->b", gradients, prior_gradients) + traces
    below = np.einsum("bj,bj->b", gradients, gradients)
    eta = float(above.sum() / below.sum())
    residual = above - eta * below
    return eta, float(np.sqrt(residual @ residual) / below.sum())


def matsubara(problem: Problem, resamples: int = 1000) -> LearningRate:
    r"""Return the learning rate that fits the bootstrap's minimisers by score matching.

    It changes with the units of the parameters. A `log_prior` enters by its gradient.

    Parameters
    ----------
    problem : Problem
    resamples : int
        Bootstrap data sets.

    References
    ----------
    Matsubara, T., Knoblauch, J., Briol, F.-X. and Oates, C. J. (2024). Generalized Bayesian
    inference for discrete intractable likelihood. J. Amer. Statist. Assoc. 119, 2345-2355.

    Examples
    --------
    >>> import etafree as ef
    >>> from etafree.learning_rates import select
    >>> X, y = np.ones((200, 1)), 2 * np.random.default_rng(0).standard_normal(200)
    >>> criterion = ef.Criterion(ef.losses.Squared(), (X, y))
    >>> made = select(criterion, "matsubara", seed=1)
    >>> bool(abs(made.eta - 1 / y.var()) < 4 * made.mc_error)
    True
    """
    count = as_count(resamples, "resamples", least=10)
    drawn = problem.resamples(count)
    here = batch(problem.criterion, drawn.thetas)
    prior = np.array([problem.prior_gradient(theta) for theta in drawn.thetas])
    traces = np.einsum("bii->b", here.hessians)
    eta, error = score_matching_rate(here.gradients, traces, prior)
    steps = np.unique(np.linspace(10, len(traces), 20).astype(int))
    trace = {
        "resamples": steps,
        "eta": [score_matching_rate(here.gradients[:k], traces[:k], prior[:k])[0] for k in steps],
    }
    return learning_rate(
        problem,
        eta,
        "matsubara",
        "coverage",
        mc_error=error,
        trace=trace,
        diagnostics={"resamples": count, "failed_minimisers": drawn.failed},
        units_matter=problem.criterion.p > 1,
    )

"""Methods that choose a learning rate, one per file, and `select`, which runs them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from etafree.errors import InputError
from etafree.foundation.arguments import as_choice
from etafree.foundation.terminal import shown
from etafree.foundation.threads import own_settings
from etafree.learning_rates.gpc import gpc
from etafree.learning_rates.holmes_walker import holmes_walker
from etafree.learning_rates.kl_to_bayes import kl_to_bayes
from etafree.learning_rates.lyddon import lyddon
from etafree.learning_rates.magnitude import magnitude
from etafree.learning_rates.matsubara import matsubara
from etafree.learning_rates.onizuka import onizuka
from etafree.learning_rates.problem import Information, LearningRate, Problem, information
from etafree.learning_rates.safebayes import NormalInverseGamma, safebayes

__all__ = ["METHODS", "Information", "LearningRate", "NormalInverseGamma", "information", "select"]

_EVERY = magnitude, onizuka, lyddon, gpc, matsubara, safebayes, holmes_walker, kl_to_bayes
METHODS: dict[str, Callable[..., LearningRate]] = {method.__name__: method for method in _EVERY}


@shown("choosing a learning rate")
@own_settings
def select(
    source: object,
    method: str = "gpc",
    *,
    clusters: object = None,
    seed: object = 0,
    **options: Any,
) -> LearningRate:
    r"""Choose the learning rate of a generalized posterior by one of the published methods.

    ==============  ===========  ============================================================
    method          aims at      rule
    ==============  ===========  ============================================================
    magnitude       coverage     :math:`p/\mathrm{tr}(J^{-1}K)`
    gpc             coverage     bootstrap coverage of a credible region is nominal
    matsubara       coverage     score matching with bootstrap minimisers
    onizuka         coverage     score matching with the sandwich's normal law
    lyddon          information  :math:`\mathrm{tr}(JK^{-1}J)/\mathrm{tr}J`
    holmes_walker   information  expected equals observed information gain
    safebayes       prediction   smallest cumulative loss of sequential predictions
    kl_to_bayes     reference    smallest divergence from a reference posterior
    ==============  ===========  ============================================================

    J is the Hessian and K the variance of the score, per observation, at the minimiser. Only the
    first four aim at coverage, and no single learning rate gives it if :math:`J^{-1}K` is far
    from a multiple of the identity: `LearningRate.scalar_adequacy` says how far.

    Parameters
    ----------
    source : Criterion or GeneralizedPosterior
        The `log_prior` of a posterior is used, its learning rate is not.
    method : str
        One of the above; ``help(etafree.learning_rates.METHODS[method])`` explains its options.
    clusters : (n,) labels or column name, optional
        Rows with the same label may depend on each other. K sums scores over clusters, and
        bootstraps resample clusters; safebayes, holmes_walker and kl_to_bayes use them only for K.
    seed : int, SeedSequence or Generator
        For the methods that resample or draw.
    **options : optional
        Options of the method. gpc: resamples, level, functional, region, draws, solver, start,
        tolerance, max_iter. matsubara: resamples. onizuka: weight. safebayes: version, grid,
        permute, conjugate, start, draws. holmes_walker: simulations. kl_to_bayes: reference
        (needed), window, direction, approximation, draws.

    Returns
    -------
    LearningRate
        The value with its status, Monte Carlo error and predicted coverage.

    Raises
    ------
    InputError
        The method or an option is unknown, or the method does not apply to the criterion.
    ConvergenceError
        The criterion has no finite minimiser.

    See Also
    --------
    calibrate : The right spread at any learning rate.

    References
    ----------
    Wu, P.-S. and Martin, R. (2023). A comparison of learning rate selection methods in generalized
    Bayesian inference. Bayesian Anal. 18, 105-132.

    Examples
    --------
    >>> import etafree as ef, numpy as np
    >>> X, y = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> ef.select(ef.Criterion(ef.losses.Squared(), data=(X, y)), method="magnitude")
    LearningRate: eta = 0.28571 by magnitude (converged)
      aims at coverage of credible regions
      predicted coverage of 95 % intervals: theta[0] 0.950
      scalar adequacy 1
    """
    chosen = METHODS[as_choice(method, "method", tuple(METHODS))]
    names = list(inspect.signature(chosen).parameters)[1:]
    for name in options:
        if name not in names:
            advice = f"its options are {', '.join(names) or 'none'}"
            raise InputError(name, f"is not an option of {method}", advice)
    return chosen(Problem.of(source, clusters, seed), **options)

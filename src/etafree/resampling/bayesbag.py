r"""Bagged posteriors: the average of the posteriors of resampled data."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from etafree.draws import Draws
from etafree.errors import CalibrationWarning, ConvergenceError, InputError
from etafree.foundation.arguments import Array, as_count, as_seeds, told_seed
from etafree.foundation.terminal import counted
from etafree.foundation.threads import own_settings
from etafree.posterior import GeneralizedPosterior
from etafree.resampling.weights import resampled_groups, weight_blocks
from etafree.samplers import FEWEST, sample


@own_settings
def bayesbag(
    posterior: GeneralizedPosterior,
    draws: int = 4000,
    *,
    resamples: int = 100,
    size: int | None = None,
    clusters: object = None,
    seed: object = 0,
    threads: int | None = None,
) -> Draws:
    r"""Draw from the bagged posterior, the average of posteriors of resampled data.

    .. math:: \pi^*(\theta) = \frac1B\sum_b \pi_\eta(\theta\mid k^{(b)}),\qquad
              \pi_\eta(\theta\mid k) \propto \exp\Bigl\{-\eta\sum_i k_i\ell_i(\theta)
              - \eta\lambda_M s_M\rho(\theta)\Bigr\}\tilde\pi(\theta),

    where k counts how often each row is among M drawn with replacement. The covariance is the mean
    of the posteriors' plus that of their means, in large samples
    :math:`\{J^{-1}/\eta + J^{-1}KJ^{-1}\}/M`, with the Hessian J and the variance K of the score of
    a row: with M = n, the default, too wide by the posterior's own variance, twice too large where
    the model is right. Intervals are conservative, and depend on the learning rate less than those
    of the posterior.

    Parameters
    ----------
    posterior : GeneralizedPosterior
        Of a criterion with a smooth penalty, or none, with its learning rate.
    draws : int
        In total, rounded up to the same number for every resample.
    resamples : int
        Number B of resampled data sets, at least 2.
    size : int, optional
        Number M of rows, or of clusters, in each; as many as there are if it is not given.
    clusters : (n,) labels or column name, optional
        Whole clusters are drawn then. One way only.
    seed : int, SeedSequence or Generator
        The same seed gives the same draws.
    threads : int, optional
        How many threads work on the rows; the result is the same. See `etafree.threads`.

    Returns
    -------
    Draws
        ``info["ess"]`` allows for the number of resamples. ``info["failed"]`` counts resamples that
        have no posterior; they are left out, with a warning.

    Raises
    ------
    InputError
        The penalty has a kink, clusters are of several ways, or the data are read in parts.
    ConvergenceError
        Too many resamples have no posterior.

    See Also
    --------
    bootstrap : Minimisers of resampled data.
    calibrate : The sandwich's spread at any learning rate, from one posterior.

    References
    ----------
    Buhlmann, P. (2014). Discussion of Big Bayes stories and BayesBag. Statist. Sci. 29, 91-94.
    Huggins, J. H. and Miller, J. W. (2019). Robust inference and model criticism using bagged
    posteriors. arXiv 1912.07104. Huggins, J. H. and Miller, J. W. (2023). Reproducible model
    selection using bagged posteriors. Bayesian Anal. 18, 79-104.

    Examples
    --------
    >>> import etafree as ef
    >>> data = np.ones((4, 1)), np.array([0.0, 1.0, 2.0, 5.0])
    >>> posterior = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Squared(), data), eta=2.0)
    >>> draws = ef.bayesbag(posterior, 20_000, resamples=400, seed=1)
    >>> abs(float(draws.array.var()) - (0.125 + 0.875)) < 0.2  # the posterior's, the bootstrap's
    True
    """
    if not isinstance(posterior, GeneralizedPosterior):
        problem = f"is a {type(posterior).__name__}"
        raise InputError("posterior", problem, "build ef.GeneralizedPosterior(criterion, eta)")
    criterion = posterior.criterion
    groups, seeds = resampled_groups(criterion, clusters, "the bootstrap"), as_seeds(seed)
    count = as_count(resamples, "resamples", least=2)
    each = -(-as_count(draws, "draws", least=2) // count)
    drawn_rows = None if size is None else as_count(size, "size")
    fresh = np.random.SeedSequence(seeds.entropy, spawn_key=seeds.spawn_key)
    by_weights, *streams = fresh.spawn(count + 1)
    kept: list[Array] = []
    reason: Exception | None = None
    with counted(count, "bayesbag") as advance:
        for weights, kind in weight_blocks(
            criterion, count, groups, by_weights, "counts", drawn_rows
        ):
            for row in weights:
                rng = np.random.default_rng(streams.pop(0))
                try:
                    again = replace(posterior, criterion=criterion.reweighted(row, kind))
                    one = sample(again, max(each, FEWEST), rng).array
                    kept.append(one[rng.permutation(len(one))[:each]])
                except (ConvergenceError, InputError) as error:  # separated or collinear
                    reason = error
                advance(1)
    failed = count - len(kept)
    if len(kept) < 2:
        problem = f"{failed} of {count} resamples have no posterior ({reason})"
        advice = "add penalty=ef.penalties.Ridge(...) or a log_prior"
        raise ConvergenceError(f"{problem}; {advice}") from reason
    if failed:
        left_out = f"{failed} of {count} resamples have no posterior and are left out"
        warnings.warn(left_out, CalibrationWarning, stacklevel=3)
    values = np.array(kept)
    info = {
        "ess": effective_size(values),
        "failed": failed,
        "resamples": count,
        "eta": posterior.eta,
        "clusters": None if groups is None else len(groups),
        "seed": told_seed(seed, seeds),
    }
    return Draws(values.reshape(1, -1, criterion.p), criterion.names, None, "bayesbag", info)


def effective_size(values: Array) -> float:
    """Return the effective number of draws (B, m, p) of B data sets: the smallest over parameters.

    The variance of all draws over that of the mean, which is the variance of the B means over B.
    """
    of_means = values.mean(axis=1).var(axis=0, ddof=1) / len(values)
    of_draws = values.var(axis=(0, 1))
    return float(min((of_draws / of_means).min(), values.shape[0] * values.shape[1]))

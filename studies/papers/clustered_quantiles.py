r"""Bayesian quantile regression of clustered data, Ji, Lee and Rabe-Hesketh (2025).

The design is the clustered example in the documentation of their R package IJSE:
:math:`y=.1u+x+x^2u` with :math:`x=\sqrt\rho z_g+\sqrt{1-\rho}e`, J = 30 clusters of I = 50,
:math:`\rho=.8`, :math:`z_g\sim N(0,25)`, :math:`u\sim N(0,1/3)`, level .33. The conditional
quantile is :math:`.1q+x+x^2q` with :math:`q=\Phi^{-1}(.33)/\sqrt3`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from etafree.calibrate import calibrate
from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.losses import Check
from etafree.optimize import minimise
from studies.papers.design import (
    Outcome,
    Paper,
    location_scale,
    of_draws,
    of_intervals,
    posterior_draws,
)

__all__ = ["PAPER", "ijse"]

CLUSTERS, SIZE, RHO, TAU = 30, 50, 0.8, 0.33
NAMES = ("one", "x", "x^2")


def ijse(draws: Array, log_likelihood: Array, labels: NDArray[np.intp]) -> Array:
    r"""Return the standard errors of IJSE 0.1.1 from draws (D, p) and log-likelihoods (D, n).

    The root of the diagonal of the covariance over J of :math:`I_g=J\,\mathrm{cov}(\theta,\ell_g)`,
    with the sums of J clusters.
    """
    groups = np.unique(labels)
    sums = np.column_stack([log_likelihood[:, labels == g].sum(axis=1) for g in groups])
    centred = draws - draws.mean(axis=0)
    influences = len(groups) * (sums - sums.mean(axis=0)).T @ centred / (len(draws) - 1)
    errors: Array = np.sqrt(influences.var(axis=0, ddof=1) / len(groups))
    return errors


def clustered(rng: np.random.Generator) -> list[Outcome]:
    """Return outcomes of one data set; the scale of the working likelihood is estimated."""
    labels = np.repeat(np.arange(CLUSTERS), SIZE)
    n = len(labels)
    z = 5.0 * rng.standard_normal(CLUSTERS)[labels]
    x = np.sqrt(RHO) * z + np.sqrt(1 - RHO) * rng.standard_normal(n)
    u = rng.standard_normal(n) / np.sqrt(3)
    X, y = np.column_stack([np.ones(n), x, x**2]), 0.1 * u + x + x**2 * u
    q = float(ndtri(TAU)) / np.sqrt(3)
    truth = np.array([0.1 * q, 1.0, q])
    loss = Check(TAU)
    criterion = Criterion(loss, (X, y), names=NAMES)
    scale = float(loss.values(X @ minimise(criterion).theta, y).mean())  # its likelihood estimate
    draws = posterior_draws(criterion, 1.0 / scale, rng)
    out = of_draws("asymmetric Laplace posterior", draws, truth)
    log_likelihood = -loss.values(draws.array @ X.T, y) / scale
    wide = float(ndtri(0.975)) * ijse(draws.array, log_likelihood, labels)
    out += of_intervals("IJSE's formula", NAMES, truth, draws.mean - wide, draws.mean + wide)
    jackknife = calibrate(
        draws.array, log_likelihood=log_likelihood, clusters=labels, eta=1.0, seed=rng
    )
    out += of_draws("location-scale, jackknife", jackknife.draws, truth, NAMES)
    return out + location_scale(criterion, truth, rng, draws, labels)


PAPER = Paper(
    "Ji, Lee and Rabe-Hesketh (2025): quantile regression of clustered data",
    {"30 clusters of 50": clustered},
)

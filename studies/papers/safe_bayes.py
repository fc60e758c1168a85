r"""Bayesian ridge regression under a wrong variance, Grünwald and van Ommen (2017).

Fifty normal covariates, of which the first four have the coefficient .1, and errors with variance
1/40; in the wrong model a fair coin decides whether a row is (0, 0) instead, and the errors of the
others have variance 1/20. The prior is :math:`\beta\mid\sigma^2\sim N(0,\sigma^2I)`,
:math:`\sigma^2\sim\mathrm{IG}(1,1/40)`, learning rates are :math:`1,1/2,\dots,2^{-15}`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.special import stdtrit

from etafree.calibrate import calibrate
from etafree.criterion import Criterion
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.learning_rates import NormalInverseGamma, select
from etafree.losses import Squared
from studies.papers.design import Outcome, Paper, of_intervals, posterior_draws

__all__ = ["PAPER", "generalized_ridge"]

COVARIATES, EFFECTS, EFFECT = 50, 4, 0.1
VARIANCE, HARD_VARIANCE = 1 / 40, 1 / 20
NAMES = ("one", *(f"x{j}" for j in range(1, COVARIATES + 1)))
WATCHED = slice(1, 1 + EFFECTS)
GRID = 0.5 ** np.arange(16)


def generalized_ridge(
    X: Array, y: Array, eta: float, prior: NormalInverseGamma
) -> tuple[Array, Array, float]:
    """Return mean (p,), scale (p,) and degrees of freedom of the marginal t posteriors."""
    prior_precision = linalg.inv(prior.covariance)
    precision = prior_precision + eta * X.T @ X
    covariance = linalg.inv(precision)
    mean = covariance @ (prior_precision @ prior.mean + eta * X.T @ y)
    before = prior.mean @ prior_precision @ prior.mean + eta * y @ y
    shape = prior.shape + 0.5 * eta * len(y)
    rate = prior.rate + 0.5 * (before - mean @ precision @ mean)
    return mean, np.sqrt(rate / shape * np.diagonal(covariance)), 2.0 * shape


def ridge(rng: np.random.Generator, n: int, wrong: bool) -> list[Outcome]:
    """Return outcomes of one data set, the risk being the excess of the squared loss at new rows.

    Twice of what a row (0, 0) adds is the intercept's square; covariates are independent.
    """
    hard = rng.random(n) < 0.5 if wrong else np.ones(n, dtype=bool)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, COVARIATES)) * hard[:, None]])
    beta = np.r_[0.0, np.full(EFFECTS, EFFECT), np.zeros(COVARIATES - EFFECTS)]
    noise = np.sqrt(HARD_VARIANCE if wrong else VARIANCE) * rng.standard_normal(n)
    y = np.where(hard, X @ beta + noise, 0.0)
    p = COVARIATES + 1
    prior = NormalInverseGamma(np.zeros(p), np.eye(p), 1.0, VARIANCE)
    criterion = Criterion(Squared(), (X, y), names=NAMES)
    chosen = select(criterion, "safebayes", version="R", conjugate=prior, grid=GRID, seed=rng).eta
    share = 0.5 if wrong else 1.0
    out = []

    def risk(way: str, estimate: Array) -> Outcome:
        off = np.square(estimate - beta)
        return Outcome(way, "all", "risk", float(off[0] + share * off[1:].sum()))

    for way, eta in {"Bayes": 1.0, "SafeBayes": chosen}.items():
        mean, scale, dof = generalized_ridge(X, y, eta, prior)
        half = float(stdtrit(dof, 0.975)) * scale
        low, high = (mean - half)[WATCHED], (mean + half)[WATCHED]
        out += [Outcome(way, "all", "learning rate", eta), risk(way, mean)]
        out += of_intervals(way, NAMES[WATCHED], beta[WATCHED], low, high)
    result = calibrate(posterior_draws(criterion, 1 / VARIANCE, rng), criterion, seed=rng)
    low, high = np.quantile(result.draws.array[:, WATCHED], [0.025, 0.975], axis=0)
    out.append(risk("location-scale", result.center))
    return out + of_intervals("location-scale", NAMES[WATCHED], beta[WATCHED], low, high)


PAPER = Paper(
    "Grünwald and van Ommen (2017): misspecified ridge regression",
    {
        "right model, n = 150": partial(ridge, n=150, wrong=False),
        "wrong model, n = 150": partial(ridge, n=150, wrong=True),
    },
    shown=("risk", "learning rate", "coverage"),
)

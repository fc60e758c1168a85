r"""Misspecified regressions for the Q-posterior of Frazier, Drovandi and Kohn (2023).

Linear regression with errors whose standard deviation grows with a covariate, and Poisson
regression of negative binomial counts; sizes and coefficients are choices of this study.
"""

from __future__ import annotations

import numpy as np

from etafree.criterion import Criterion
from etafree.losses import Poisson, Squared
from etafree.q_posterior import q_posterior
from studies.papers.design import (
    DRAWS,
    Outcome,
    Paper,
    attempted,
    location_scale,
    of_draws,
    posterior_draws,
)

__all__ = ["PAPER"]

BETA, NAMES, ROWS = np.array([1.0, 0.5, -0.5]), ("one", "x", "z"), 100


def _outcomes(criterion: Criterion, rng: np.random.Generator) -> list[Outcome]:
    plain = posterior_draws(criterion, 1.0, rng)
    out = of_draws("posterior", plain, BETA)
    draw = lambda: q_posterior(criterion, DRAWS, seed=rng)  # noqa: E731
    out += attempted("Q-posterior", NAMES, BETA, draw)
    return out + location_scale(criterion, BETA, rng, plain)


def linear(rng: np.random.Generator) -> list[Outcome]:
    """Return outcomes where the variance is (1 + |x|)^2 and taken as one."""
    X = np.column_stack([np.ones(ROWS), rng.standard_normal((ROWS, 2))])
    y = X @ BETA + (1.0 + np.abs(X[:, 1])) * rng.standard_normal(ROWS)
    return _outcomes(Criterion(Squared(), (X, y), names=NAMES), rng)


def counts(rng: np.random.Generator) -> list[Outcome]:
    """Return outcomes where the variance of counts is mean + mean^2 / 2."""
    X = np.column_stack([np.ones(ROWS), 0.5 * rng.standard_normal((ROWS, 2))])
    y = rng.poisson(np.exp(X @ BETA) * rng.gamma(2.0, 0.5, ROWS)).astype(float)
    return _outcomes(Criterion(Poisson(), (X, y), names=NAMES), rng)


PAPER = Paper(
    "Frazier, Drovandi and Kohn (2023): the Q-posterior",
    {"linear, variance grows": linear, "Poisson, overdispersed": counts},
)

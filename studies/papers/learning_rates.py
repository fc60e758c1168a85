r"""Learning-rate methods on small data sets: Wu and Martin (2023), Syring and Martin (2019).

The first compares SafeBayes, general posterior calibration, Fisher information matching and unit
information; the second calibrates a Gibbs posterior of the median. Designs and sizes are choices of
this study: least squares with error variance 4 or growing with x, taken as one, and a median
regression with normal errors of variance 4 and a skewed covariate.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from etafree.losses import Quantile, Squared
from studies.compare import WAYS, limits_of
from studies.designs import Comparison, heteroscedastic, pair, specified
from studies.papers.design import Outcome, Paper, of_intervals

__all__ = ["SYRING_MARTIN", "WU_MARTIN"]

ROWS, MEDIAN = 100, np.array([2.0, 1.0])
METHODS = ("eta = 1", "safebayes R", "gpc", "lyddon", "holmes_walker", "onizuka", "location-scale")
GIBBS = ("eta = 1", "gpc", "loss-likelihood bootstrap", "location-scale")


def _outcomes(
    data: Comparison, names: tuple[str, ...], ways: tuple[str, ...], rng: np.random.Generator
) -> list[Outcome]:
    out = []
    for way in ways:
        (low, high), eta, *_ = limits_of(WAYS[way], data, rng)
        out.append(Outcome(way, "all", "learning rate", eta))
        out += of_intervals(way, names, data.truth, low, high)
    return out


def least_squares(rng: np.random.Generator, grows: bool) -> list[Outcome]:
    """Return outcomes with a variance that is wrong by a factor, or wrong everywhere else."""
    data = heteroscedastic(rng, ROWS) if grows else specified(rng, ROWS, variance=4.0)
    return _outcomes(data, data.criterion.names, METHODS, rng)


def median(rng: np.random.Generator) -> list[Outcome]:
    """Return outcomes of a median regression, smoothed by a fifth of the errors' deviation."""
    X = np.column_stack([np.ones(ROWS), rng.chisquare(2.0, ROWS) - 2.0])
    y = X @ MEDIAN + 2.0 * rng.standard_normal(ROWS)
    criterion, other = pair(Quantile(0.5, bandwidth=0.4), Squared(), X, y, ("one", "x"))
    return _outcomes(Comparison(criterion, MEDIAN, other), ("one", "x"), GIBBS, rng)


WU_MARTIN = Paper(
    "Wu and Martin (2023): methods that choose a learning rate",
    {
        "variance 4": partial(least_squares, grows=False),
        "variance = |x|^2": partial(least_squares, grows=True),
    },
    shown=("learning rate", "coverage"),
)
SYRING_MARTIN = Paper(
    "Syring and Martin (2019): the Gibbs posterior of a median regression",
    {"median, n = 100": median},
    shown=("learning rate", "coverage"),
)

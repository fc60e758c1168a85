"""Estimates with their sandwich where the user writes the model: a loss, or estimating equations.

Logistic regression, HC0. etafree's side is a loss in JAX, compiled once outside the clock;
delicatessen's is its estimating equations, with exact derivatives (its default is by differences).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

import etafree as ef
from benchmarks.races.race import Call, Numbers, Peer, Race, Side, arrays, size_of
from benchmarks.races.regression import COLUMNS, Rows

__all__ = ["QUICK_SIZES", "SIZES", "races"]

SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (1_000,)
CLOSE = 1e-5


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield one race at every size."""
    for n in sizes:
        rows = Rows(n, "logit")
        peer = Peer("delicatessen", partial(_delicatessen, rows), ("delicatessen",))
        name = "logit written by the user, HC0"
        yield Race(name, size_of(n), partial(_ours, rows), (peer,), tolerance=CLOSE)


def _ours(rows: Rows) -> Side:
    import jax.numpy as jnp

    def logistic(theta, row):  # type: ignore[no-untyped-def]
        u = row["x"] @ theta
        return jnp.logaddexp(0.0, u) - row["y"] * u

    loss = ef.JaxLoss(logistic)

    def fit() -> Numbers:
        criterion = ef.Criterion(loss, {"x": rows.X, "y": rows.y}, start=np.zeros(COLUMNS))
        target = ef.target(criterion, correction="HC0")
        return arrays(target.center, target.se)

    return Call(fit)


def _delicatessen(rows: Rows) -> Side:
    from delicatessen import MEstimator
    from delicatessen.estimating_equations import ee_regression

    def psi(theta: Numbers) -> Numbers:
        return np.asarray(ee_regression(theta, rows.X, rows.y, model="logistic"))

    def fit() -> Numbers:
        estimator = MEstimator(psi, init=[0.0] * COLUMNS)
        estimator.estimate(deriv_method="exact")
        return arrays(estimator.theta, np.sqrt(np.diag(estimator.variance)))

    return Call(fit)

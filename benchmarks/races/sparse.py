"""Lasso and sparse logistic regression at one strength, without an intercept.

The objective is the mean loss plus the strength times the L1 norm; glmnet and skglm write it so,
etafree's is n times as large. The numbers are the coefficients; tolerances of peers are set so that
they agree. glmnet gets one strength, where a path is what it is made for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

import etafree as ef
from benchmarks.races import r
from benchmarks.races.race import Call, Peer, Race, Side, size_of

__all__ = ["QUICK_SIZES", "SIZES", "races"]

#: Columns of a design with so many rows.
COLUMNS = {200: 50, 500: 2_000, 1_000: 100, 5_000: 1_000, 10_000: 200}
SIZES, QUICK_SIZES = (500, 1_000, 5_000, 10_000), (200,)
CLOSE = 1e-5
STRENGTHS = {"lasso": 0.1, "sparse logit": 0.03}


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield both losses of every shape."""
    for n in sizes:
        p = COLUMNS[n]
        rng = np.random.default_rng(54)
        X = rng.standard_normal((n, p))
        X[:, 1:] = 0.7 * X[:, 1:] + 0.5 * X[:, :-1]  # neighbours are correlated
        u = X[:, ::10] @ np.resize([1.0, -1.0, 0.5], X[:, ::10].shape[1]) * np.sqrt(10 / p)
        responses = {
            "lasso": u + rng.standard_normal(n),
            "sparse logit": (rng.random(n) < 1.0 / (1.0 + np.exp(-u))).astype(float),
        }
        for job, y in responses.items():
            yield _race(job, X, y)


def _race(job: str, X: np.ndarray, y: np.ndarray) -> Race:
    strength = STRENGTHS[job]
    loss = ef.losses.Squared() if job == "lasso" else ef.losses.Logistic()

    def ours() -> np.ndarray:
        return ef.minimise(ef.Criterion(loss, (X, y), ef.penalties.L1(strength))).theta

    family = "gaussian" if job == "lasso" else "binomial"
    call = (
        f"glmnet(X, y, family = '{family}', lambda = {strength}, intercept = FALSE, "
        "standardize = FALSE, thresh = 1e-13)"
    )
    code = f"library(glmnet)\nfit <- function() as.vector(coef({call}))[-1]\n"
    peers = (
        Peer("skglm", partial(_skglm, job, X, y), ("skglm",)),
        Peer("R glmnet", lambda: r.Fit(code, {"X": X, "y": y}, 1), ("glmnet",), of_r=True),
    )
    size = f"{size_of(len(X))}, p = {X.shape[1]}"
    return Race(job, size, lambda: Call(ours), peers, tolerance=CLOSE)


def _skglm(job: str, X: np.ndarray, y: np.ndarray) -> Side:
    from skglm import Lasso, SparseLogisticRegression

    kind = Lasso if job == "lasso" else SparseLogisticRegression
    columns = np.asfortranarray(X)  # as its coordinate descent wants them

    def fit() -> np.ndarray:
        model = kind(STRENGTHS[job], fit_intercept=False, tol=1e-8).fit(columns, y)
        return np.asarray(model.coef_, dtype=float).ravel()

    return Call(fit)

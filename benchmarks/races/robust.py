"""Huber regression, with its scale given or estimated by the median absolute residual.

The numbers are the coefficients: the standard errors that RLM and rlm print are no sandwich. With a
given scale everybody minimises the same function; with "mad" the fixed point of scale and
coefficients is the same. Tolerances of peers are set so that they get there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import etafree as ef
from benchmarks.races import r
from benchmarks.races.race import Call, Peer, Race, Side, size_of

__all__ = ["QUICK_SIZES", "SIZES", "races"]

SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (1_000,)
COLUMNS, TUNING, SCALE = 10, 1.345, 1.2
CLOSE = 1e-6
#: lmrob..M..fit() iterates M-estimates from a start, here least squares, at a given scale.
GIVEN = f"""
library(robustbase)
y <- as.vector(y)
control <- lmrob.control()
control$psi <- "huber"; control$tuning.psi <- {TUNING}
control$rel.tol <- 1e-9; control$max.it <- 200
fit <- function() {{
  start <- coef(lm.fit(X, y))
  lmrob..M..fit(X, y, start, {SCALE}, control, method = "M")$coefficients
}}
"""
MAD = f"library(MASS)\nfit <- function() coef(rlm(X, y, k = {TUNING}, acc = 1e-9, maxit = 200))\n"


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield fits at a given scale and with the scale found along the way."""
    for n in sizes:
        rng = np.random.default_rng(52)
        X = rng.standard_normal((n, COLUMNS))
        X[:, 0] = 1.0
        y = X @ np.linspace(-1.0, 1.0, COLUMNS) + rng.standard_t(3, n)
        yield _race("Huber, scale given", X, y, SCALE, GIVEN, "robustbase")
        yield _race("Huber, scale by MAD", X, y, "mad", MAD, "MASS")


def _race(
    name: str, X: np.ndarray, y: np.ndarray, scale: float | str, code: str, package: str
) -> Race:
    def ours() -> np.ndarray:
        loss = ef.losses.Huber(TUNING, scale=scale)
        return ef.minimise(ef.Criterion(loss, data=(X, y))).theta

    start = {} if scale == "mad" else {"start_scale": scale, "update_scale": False}
    peers = (
        Peer("statsmodels RLM", partial(_statsmodels, X, y, start), ("statsmodels",)),
        Peer(f"R {package}", lambda: r.Fit(code, {"X": X, "y": y}, 1), (package,), of_r=True),
    )
    return Race(name, size_of(len(X)), lambda: Call(ours), peers, tolerance=CLOSE)


def _statsmodels(X: np.ndarray, y: np.ndarray, options: dict[str, Any]) -> Side:
    import statsmodels.api as sm

    norm = sm.robust.norms.HuberT(TUNING)
    fit: Callable[[], np.ndarray] = lambda: (  # noqa: E731
        sm.RLM(y, X, M=norm).fit(tol=1e-10, maxiter=200, conv="coefs", **options).params
    )
    return Call(fit)

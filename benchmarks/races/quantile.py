"""Quantile regression at the level 0.75: the check loss itself, and smoothed by a Gaussian.

The numbers are the coefficients. The check loss has a minimiser at a vertex, which linear programs
find exactly and interior points to their tolerance; statsmodels' QuantReg reweights least squares
and ends some hundredths of a standard error away, so that it does not take part. The smoothed loss
at a given bandwidth is conquer's (He, Pan, Tan and Zhou 2023) with a Gaussian kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

import etafree as ef
from benchmarks.races import r
from benchmarks.races.race import Call, Peer, Race, Side, size_of

__all__ = ["QUICK_SIZES", "SIZES", "races"]

SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (1_000,)
COLUMNS, LEVEL, BANDWIDTH = 10, 0.75, 0.2
#: Interior points end here; conquer ends where no gradient exceeds its `tol`.
EXACT, SMOOTHED = 1e-6, 1e-4


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield both losses at every size."""
    for n in sizes:
        rng = np.random.default_rng(53)
        X = rng.standard_normal((n, COLUMNS))
        X[:, 0] = 1.0
        noise = (1.0 + 0.3 * np.abs(X[:, 1])) * rng.standard_t(3, n)
        y = X @ np.linspace(-0.4, 0.4, COLUMNS) + noise
        yield _exact(X, y)
        yield _smoothed(X, y)


def _exact(X: np.ndarray, y: np.ndarray) -> Race:
    def ours() -> np.ndarray:
        return ef.minimise(ef.Criterion(ef.losses.Check(LEVEL), data=(X, y))).theta

    def in_r(method: str) -> Side:
        call = f"rq.fit(X, y, tau = {LEVEL}, method = '{method}')$coefficients"
        return r.Fit(f"library(quantreg)\nfit <- function() {call}\n", {"X": X, "y": y}, 1)

    methods = {"br": "simplex", "fn": "interior points", "pfn": "interior points, preprocessed"}
    peers = [
        Peer(f"R quantreg {method}", partial(in_r, method), ("quantreg",), True, note)
        for method, note in methods.items()
        if method != "br" or len(X) <= SIZES[1]  # its time grows with the square of n
    ]
    peers += [
        Peer(f"pyfixest {method}", partial(_pyfixest, X, y, method), ("pyfixest",), note=note)
        for method, note in methods.items()
        if method != "br"
    ]
    name = "quantile, check loss"
    return Race(name, size_of(len(X)), lambda: Call(ours), tuple(peers), tolerance=EXACT)


def _pyfixest(X: np.ndarray, y: np.ndarray, method: str) -> Side:
    """Return pyfixest's solver on arrays, as its formula would call it."""
    import pandas as pd
    import pyfixest as pf

    table = pd.DataFrame(X[:, 1:], columns=[f"x{j}" for j in range(1, COLUMNS)]).assign(y=y)
    formula = "y ~ " + " + ".join(f"x{j}" for j in range(1, COLUMNS))

    def fit() -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = pf.quantreg(formula, table, "iid", LEVEL, method, copy_data=False, seed=1)
        return np.asarray(model.coef())

    return Call(fit)


def _smoothed(X: np.ndarray, y: np.ndarray) -> Race:
    def ours() -> np.ndarray:
        loss = ef.losses.Quantile(LEVEL, bandwidth=BANDWIDTH)
        return ef.minimise(ef.Criterion(loss, data=(X, y))).theta

    call = f"conquer(X[, -1], y, tau = {LEVEL}, kernel = 'Gaussian', h = {BANDWIDTH}, tol = 1e-7)"
    code = f"library(conquer)\nfit <- function() {call}$coeff\n"
    conquer = Peer(
        "R conquer", lambda: r.Fit(code, {"X": X, "y": y}, 1), ("conquer",), True, "tol 1e-7"
    )
    name = "quantile, smoothed"
    return Race(name, size_of(len(X)), lambda: Call(ours), (conquer,), tolerance=SMOOTHED)

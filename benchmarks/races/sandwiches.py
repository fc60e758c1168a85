"""Other sandwiches of least squares than one-way clusters.

HC3; the jackknife of clusters (CR3) with its factor (G-1)/G; two ways of clusters with the factor
G/(G-1) (n-1)/(n-p) for each way and for intersections; Bartlett's kernel without a factor. Ten
columns, n / 50 clusters one way and 30 the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import etafree as ef
from benchmarks.races.race import Call, Numbers, Peer, Race, arrays, size_of
from benchmarks.races.regression import Rows, linearmodels_side, pyfixest_side, statsmodels_side

__all__ = ["QUICK_SIZES", "SIZES", "races"]

SIZES, QUICK_SIZES = (10_000, 100_000), (10_000,)
LAGS = 12


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield every kind at every size."""
    for n in sizes:
        yield from _kinds(Rows(n, "OLS"))


def _kinds(rows: Rows) -> Iterator[Race]:
    size = size_of(rows.n)

    def race(name: str, peers: list[Peer], **arguments: Any) -> Race:
        def ours() -> Numbers:
            fit = ef.target(rows.criterion(), **arguments)
            return arrays(fit.center, fit.se)

        return Race(f"OLS, {name}", size, lambda: Call(ours), tuple(peers))

    def python(name: str, *arguments: Any, **options: Any) -> Peer:
        sides = {
            "pyfixest": pyfixest_side,
            "statsmodels": statsmodels_side,
            "linearmodels": linearmodels_side,
        }
        return Peer(name, partial(sides[name], rows, *arguments, **options), (name,))

    def in_r(fit: str) -> Peer:
        code = f"m <- lm(formula, d); v <- {fit}"
        name = f"R lm + {fit.partition('(')[0]}"
        return Peer(name, partial(rows.of_r, code, "sandwich"), ("sandwich",), of_r=True)

    def pyfixest(vcov: Any, **options: Any) -> Peer:
        return python("pyfixest", vcov, **options)

    both = np.column_stack([rows.g, rows.h])
    no_factor = {"k_adj": False, "G_adj": False}
    series = ef.TimeSeries(np.arange(rows.n), bandwidth=LAGS)
    rows.table["t"] = np.arange(rows.n)
    kernel = {"kernel": "bartlett", "bandwidth": LAGS}
    newey = {"time_id": "t", "lag": LAGS}
    yield race(
        "HC3",
        [
            pyfixest("HC3", ssc=no_factor),
            python("statsmodels", "HC3"),
            in_r("vcovHC(m, type = 'HC3')"),
        ],
        correction="HC3",
    )
    yield race("CR3", [pyfixest({"CRV3": "g"}, ssc=no_factor)], clusters=rows.g, correction="CR3")
    yield race(
        "two-way clusters",
        [
            pyfixest({"CRV1": "g+h"}, ssc={"G_df": "conventional"}),
            python("statsmodels", "cluster", groups=both),
            python("linearmodels", "clustered", clusters=both, debiased=True),
            in_r("vcovCL(m, cluster = ~ g + h, type = 'HC1')"),
        ],
        clusters=[rows.g, rows.h],
        correction="CR1S",
    )
    yield race(
        f"Bartlett's kernel, {LAGS} lags",
        [
            pyfixest("NW", vcov_kwargs=newey, ssc=no_factor),
            python("statsmodels", "HAC", maxlags=LAGS),
            python("linearmodels", "kernel", debiased=False, **kernel),
            in_r(f"NeweyWest(m, lag = {LAGS}, prewhite = FALSE)"),
        ],
        dependence=series,
        correction="Bartlett",
    )

"""Least squares with one-way clusters from a Parquet file, read each time.

Peers read the file into memory and fit, or let the engine sum products of columns: a first query
for the normal equations, a second for the scores of each cluster at the solution. One thread each.
duckreg is not here: it groups equal rows, of which continuous columns have none, and its clustered
standard errors are bootstrapped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

import etafree as ef
from benchmarks.races.race import Call, Numbers, Peer, Race, Side, arrays, size_of
from benchmarks.races.regression import COLUMNS, Rows

__all__ = ["QUICK_SIZES", "SIZES", "races"]

SIZES, QUICK_SIZES = (10_000, 100_000, 1_000_000), (1_000,)
NAMES = [f"x{j}" for j in range(1, COLUMNS)]
PAIRS = list(combinations_with_replacement([*NAMES, "y"], 2))


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield one race at every size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        for n in sizes:
            rows = Rows(n, "OLS")
            rows.table.drop(columns="h").to_parquet(path)
            peers = (
                Peer("duckdb sums", partial(_duckdb, path), ("duckdb",)),
                Peer("polars sums", partial(_polars, path), ("polars",)),
                Peer("pandas + pyfixest", partial(_pyfixest, rows, path), ("pyfixest",)),
                Peer("polars + glum", partial(_glum, path), ("glum", "polars")),
            )
            name = "OLS from Parquet, one-way clusters"
            yield Race(name, size_of(n), partial(_ours, rows, path), peers)


def _ours(rows: Rows, path: Path) -> Side:
    def fit() -> Numbers:
        criterion = ef.Criterion.from_parquet(
            ef.losses.Squared(), path, formula=rows.formula, clusters="g"
        )
        target = ef.target(criterion, clusters="g", correction="CR1S")
        return arrays(target.center, target.se)

    return Call(fit)


def _solve(sums: Sequence[float]) -> tuple[Numbers, Numbers, float]:
    """Return estimates, the inverse of X'X and n from count, sums and sums of products."""
    n, single, double = sums[0], sums[1 : COLUMNS + 1], sums[COLUMNS + 1 :]
    names = ["1", *NAMES, "y"]
    gram = np.zeros((COLUMNS + 1, COLUMNS + 1))
    gram[0, 0] = n
    gram[0, 1:] = gram[1:, 0] = single
    for (a, b), value in zip(PAIRS, double, strict=True):
        i, j = names.index(a), names.index(b)
        gram[i, j] = gram[j, i] = value
    inverse = np.linalg.inv(gram[:-1, :-1])
    return inverse @ gram[:-1, -1], inverse, n


def _clustered(theta: Numbers, inverse: Numbers, n: float, scores: Numbers) -> Numbers:
    """Return estimates and errors from the scores of clusters (G, p)."""
    clusters = len(scores)
    factor = clusters / (clusters - 1) * (n - 1) / (n - COLUMNS)
    covariance = factor * inverse @ (scores.T @ scores) @ inverse
    return arrays(theta, np.sqrt(np.diag(covariance)))


def _duckdb(path: Path) -> Side:
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    source = f"FROM read_parquet('{path}')"
    columns = [f"sum({a})" for a in [*NAMES, "y"]] + [f"sum({a} * {b})" for a, b in PAIRS]

    def fit() -> Numbers:
        row = connection.execute(f"SELECT count(*), {', '.join(columns)} {source}").fetchone()
        theta, inverse, n = _solve(row)
        slopes = zip(NAMES, theta[1:], strict=True)
        residual = f"y - ({float(theta[0])!r})" + "".join(
            f" - ({float(slope)!r}) * {name}" for name, slope in slopes
        )
        scores = ["sum(e)", *(f"sum(e * {name})" for name in NAMES)]
        inner = f"(SELECT g, {', '.join(NAMES)}, {residual} AS e {source})"
        query = f"SELECT {', '.join(scores)} FROM {inner} GROUP BY g"
        table = connection.execute(query).fetchnumpy()
        return _clustered(theta, inverse, n, np.column_stack(list(table.values())))

    return Call(fit)


def _polars(path: Path) -> Side:
    import polars as pl

    products = [(pl.col(a) * pl.col(b)).sum().alias(f"{a}_{b}") for a, b in PAIRS]
    sums = [pl.len().alias("n"), *(pl.col(a).sum() for a in [*NAMES, "y"]), *products]

    def fit() -> Numbers:
        lazy = pl.scan_parquet(path)
        theta, inverse, n = _solve(lazy.select(sums).collect(engine="streaming").row(0))
        slopes = zip(NAMES, theta[1:].tolist(), strict=True)
        fitted: Any = sum((pl.col(a) * b for a, b in slopes), pl.lit(float(theta[0])))
        scores = [pl.col("e").sum(), *((pl.col(a) * pl.col("e")).sum() for a in NAMES)]
        grouped = lazy.with_columns((pl.col("y") - fitted).alias("e")).group_by("g").agg(scores)
        table = grouped.drop("g").collect(engine="streaming")
        return _clustered(theta, inverse, n, table.to_numpy())

    return Call(fit)


def _pyfixest(rows: Rows, path: Path) -> Side:
    import pandas as pd
    import pyfixest as pf

    def fit() -> Numbers:
        table = pd.read_parquet(path)
        model = pf.feols(rows.formula, table, vcov={"CRV1": "g"}, copy_data=False)
        return arrays(model.coef(), model.se())

    return Call(fit)


def _glum(path: Path) -> Side:
    import polars as pl
    from glum import GeneralizedLinearRegressor

    def fit() -> Numbers:
        table = pl.read_parquet(path)
        X = np.column_stack([np.ones(len(table)), table.select(NAMES).to_numpy()])
        y, g = table["y"].to_numpy(), table["g"].to_numpy()
        model = GeneralizedLinearRegressor(family="normal", alpha=0.0, fit_intercept=False)
        model.fit(X, y)
        covariance = model.covariance_matrix(X=X, y=y, clusters=g)
        return arrays(model.coef_, np.sqrt(np.diag(covariance)))

    return Call(fit)

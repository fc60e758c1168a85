"""The restricted wild cluster bootstrap of one coefficient of least squares, Webb's weights.

Everybody imposes the hypothesis and draws 9,999 times; the numbers are p-values, compared by their
Monte Carlo error. etafree returns an interval too, by inverting the test; the peers do not. Models
are made outside the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

import etafree as ef
from benchmarks.races.race import Call, Numbers, Peer, Race, Side, size_of
from benchmarks.races.regression import COLUMNS, Rows

__all__ = ["QUICK_SIZES", "SIZES", "races"]

DRAWS = 9_999
SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (1_000,)
CLUSTERS = 40
#: Monte Carlo errors between two p-values.
FAR = 4.5


def races(sizes: Sequence[int]) -> Iterator[Race]:
    """Yield one race at every size."""
    for n in sizes:
        rows = Rows(n, "OLS")
        rows.g = rows.g % CLUSTERS
        effect = np.random.default_rng(57).standard_normal(CLUSTERS)[rows.g]
        rows.y = rows.y - rows.X[:, 5] * 0.04 + effect * 0.5 * rows.X[:, 5]
        yield Race(
            f"wild cluster bootstrap, {CLUSTERS} clusters",
            size_of(n),
            partial(_ours, rows),
            (Peer("wildboottest", partial(_wildboottest, rows), ("wildboottest",)),),
            tolerance=FAR,
            compare=_errors_apart,
        )


def _errors_apart(ours: Numbers, theirs: Numbers) -> float:
    """Return how many Monte Carlo errors apart two p-values are."""
    p = float(np.clip(0.5 * (ours + theirs)[0], 1 / DRAWS, 1 - 1 / DRAWS))
    return float(abs(ours - theirs)[0] / np.sqrt(2 * p * (1 - p) / DRAWS))


def _ours(rows: Rows) -> Side:
    names = [f"x{j}" for j in range(COLUMNS)]
    criterion = ef.Criterion(ef.losses.Squared(), (rows.X, rows.y), names=names)
    normal = np.random.default_rng(0).standard_normal((500, COLUMNS))
    result = ef.calibrate(normal, criterion, clusters=rows.g)
    return Call(lambda: np.array([result.wild_bootstrap("x5", draws=DRAWS, seed=1).p_value]))


def _wildboottest(rows: Rows) -> Side:
    import pandas as pd
    import statsmodels.api as sm
    from wildboottest.wildboottest import wildboottest

    X = pd.DataFrame(rows.X, columns=[f"x{j}" for j in range(COLUMNS)])
    model = sm.OLS(rows.y, X)
    options = {"weights_type": "webb", "seed": 1, "parallel": False, "show": False}

    def fit() -> Numbers:
        table = wildboottest(model, DRAWS, cluster=rows.g, param="x5", **options)
        return table["p-value"].to_numpy(dtype=float)

    return Call(fit)

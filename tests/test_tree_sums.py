"""Sums over the pieces of a table: neighbours first, and not too many pieces."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyarrow")
import etafree as ef
from etafree.data.sources import FAN, sum_in_tree
from etafree.totals.chunked import PassSums


@pytest.mark.parametrize("count", [1, 2, FAN, FAN + 1, FAN**2, FAN**2 + 1, 3 * FAN**2 + FAN + 5])
def test_a_tree_adds_neighbours_in_order(count: int) -> None:
    assert sum_in_tree([k] for k in range(count)) == list(range(count))
    terms = [np.full(1, 1 / (k + 1)) for k in range(count)]
    before = [term.copy() for term in terms]
    total = sum_in_tree(iter(terms))
    assert np.isclose(total[0], sum(1 / (k + 1) for k in range(count)))
    assert all(np.array_equal(*pair) for pair in zip(terms, before, strict=True))


def test_dask_is_told_how_large_sums_are() -> None:
    sums = PassSums([np.zeros((1000, 10)), np.zeros(3), 0.0], [5], 5)
    assert 80_000 < sys.getsizeof(sums) < 81_000


def test_a_large_table_has_few_pieces(tmp_path, monkeypatch) -> None:
    path = tmp_path / "table.parquet"
    table = pd.DataFrame({"y": np.arange(4000.0), "x": np.sin(np.arange(4000))})
    table.to_parquet(path, row_group_size=100)

    def pieces() -> int:
        criterion = ef.Criterion.from_parquet(ef.losses.Squared(), path, "y ~ x", batch=10)
        return len(criterion.total.source.pieces)

    assert pieces() == 40
    monkeypatch.setattr("etafree.data.sources.MOST_PIECES", 4)
    assert pieces() == 4

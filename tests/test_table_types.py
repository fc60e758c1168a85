"""What a column's type means is the same in memory, in parts and in files, or refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import etafree as ef
from conftest import refused

SQUARED = ef.losses.Squared()
N = 120
RNG = np.random.default_rng(11)
CODES = RNG.integers(0, 6, N)
X, Y = RNG.standard_normal((2, N))
DAY = dt.date(2020, 1, 1)
NUMBERS = {
    "decimal128": pa.array([Decimal(int(k)) / 4 for k in CODES], pa.decimal128(10, 2)),
    "decimal256": pa.array([Decimal(int(k)) / 4 for k in CODES], pa.decimal256(50, 2)),
    "float16": pa.array((CODES / 4).astype(np.float16)),
    "float32": pa.array((CODES / 4).astype(np.float32)),
    "uint64": pa.array(CODES.astype(np.uint64)),
    "int8": pa.array(CODES.astype(np.int8)),
    "truth": pa.array(CODES > 2),
    "truth with gaps": pa.array([None if i % 17 == 3 else k > 2 for i, k in enumerate(CODES)]),
    "decimals with gaps": pa.array(
        [None if i % 17 == 3 else Decimal(int(k)) / 4 for i, k in enumerate(CODES)],
        pa.decimal128(10, 2),
    ),
}
CATEGORIES = {
    "text": pa.array([f"s{k}" for k in CODES]),
    "large text": pa.array([f"s{k}" for k in CODES], pa.large_string()),
    "view": pa.array([f"s{k}" for k in CODES]).cast(pa.string_view()),
    "dictionary": pa.DictionaryArray.from_arrays(CODES, [f"s{k}" for k in range(6)]),
    "bytes": pa.array([bytes([97 + k]) for k in CODES]),
    "fixed bytes": pa.array([bytes([97 + k]) * 4 for k in CODES], pa.binary(4)),
    "day": pa.array([DAY + dt.timedelta(int(k)) for k in CODES]),
    "hour": pa.array([dt.time(int(k)) for k in CODES]),
}
TIMES = {
    "stamp": CATEGORIES["day"].cast(pa.timestamp("us")),
    "zoned": CATEGORIES["day"].cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
}
NOTHING = {
    "list": pa.array([[int(k)] for k in CODES]),
    "struct": pa.array([{"a": int(k)} for k in CODES]),
    "map": pa.array([[("a", int(k))] for k in CODES], pa.map_(pa.string(), pa.int64())),
}


def table_of(column):
    return pa.table({"y": Y, "x": X, "c": column})


def sources(table, folder):
    """Return the ways in which a table comes in parts, the first of which has some gaps alone."""
    halves = table.slice(0, 50), table.slice(50)
    for k, half in enumerate(halves):
        pq.write_table(half, folder / f"{k}.parquet")
    frames = [half.to_pandas() for half in halves]
    return {
        "files": folder,
        "table": table,
        "tables": list(halves),
        "batches": lambda: iter(table.to_batches(max_chunksize=33)),
        "frames": frames,
    }


def same(table, formula, folder, frame=None):
    """Assert that parts give what a DataFrame in memory gives, gaps counted."""
    memory = ef.Criterion.from_formula(
        formula, table.to_pandas() if frame is None else frame, SQUARED
    )
    theta = ef.minimise(memory).theta
    for data in sources(table, folder).values():
        made = ef.Criterion.from_parts(SQUARED, data, formula)
        assert (made.names, made.n) == (memory.names, memory.n)
        assert made.rows.dropped == memory.rows.dropped == table["c"].null_count
        np.testing.assert_allclose(ef.minimise(made).theta, theta, rtol=1e-9, atol=1e-12)
    return memory


@pytest.mark.parametrize("formula", ["y ~ x + c", "c ~ x", "y ~ x:c"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_every_kind_are_numbers(kind, formula, tmp_path) -> None:
    table = table_of(NUMBERS[kind])
    floats = table.to_pandas().assign(c=table["c"].to_pandas().astype("float64"))
    made = same(table, formula, tmp_path, floats)
    again = ef.Criterion.from_formula(formula, table.to_pandas(), SQUARED)
    assert again.names == made.names
    np.testing.assert_allclose(ef.minimise(again).theta, ef.minimise(made).theta, rtol=1e-12)


@pytest.mark.parametrize("kind", [*NUMBERS, *CATEGORIES, *TIMES])
def test_every_kind_can_be_categories_and_labels(kind, tmp_path) -> None:
    table = table_of({**NUMBERS, **CATEGORIES, **TIMES}[kind])
    same(table, "y ~ C(c)", tmp_path)
    if table["c"].null_count or kind == "truth":
        return  # labels may not be missing, and two are too few
    memory = ef.Criterion.from_formula("y ~ x", table.to_pandas(), SQUARED)
    expected = ef.target(memory, clusters="c", correction="CR1")
    for data in sources(table, tmp_path).values():
        made = ef.target(
            ef.Criterion.from_parts(SQUARED, data, "y ~ x"), clusters="c", correction="CR1"
        )
        assert made.clusters == expected.clusters
        np.testing.assert_allclose(made.covariance, expected.covariance, rtol=1e-9)


@pytest.mark.parametrize("kind", CATEGORIES)
def test_text_bytes_and_days_are_categories_without_being_asked(kind, tmp_path) -> None:
    same(table_of(CATEGORIES[kind]), "y ~ x + c", tmp_path)


@pytest.mark.parametrize("kind", TIMES)
def test_dates_are_no_numbers(kind, tmp_path) -> None:
    table = table_of(TIMES[kind])
    refused("formula", "the dates in 'c'", lambda: same(table, "y ~ x + c", tmp_path))
    for data in sources(table, tmp_path).values():
        refused(
            "formula",
            "the dates in 'c'",
            lambda d=data: ef.Criterion.from_parts(SQUARED, d, "y ~ c"),
        )


@pytest.mark.parametrize("kind", NOTHING)
def test_lists_and_the_like_are_refused_by_name(kind, tmp_path) -> None:
    table = table_of(NOTHING[kind])
    ways = sources(table, tmp_path)
    for name in ("files", "table", "tables", "batches"):
        for formula, clusters in (("y ~ x + c", ()), ("y ~ x", "c")):
            refused(
                "data",
                "column 'c' holds neither numbers nor categories",
                lambda d=ways[name], f=formula, c=clusters: ef.Criterion.from_parts(
                    SQUARED, d, f, clusters=c
                ),
            )
        assert ef.Criterion.from_parts(SQUARED, ways[name], "y ~ x").n == N


def test_a_column_of_nothing_is_missing(tmp_path) -> None:
    table = table_of(pa.nulls(N))
    for data in sources(table, tmp_path).values():
        refused(
            "data", "no complete row", lambda d=data: ef.Criterion.from_parts(SQUARED, d, "y ~ c")
        )
    some = [table_of(NUMBERS["int8"]), table]
    assert ef.Criterion.from_parts(SQUARED, some, "y ~ c").n == N
    assert ef.Criterion.from_parts(SQUARED, some[::-1], "y ~ C(c)").n == N


def test_decimals_and_truth_values_of_a_database_in_memory() -> None:
    """As `pandas.read_sql` has them: objects, with None or NA where there is nothing."""
    for gap in (None, np.nan, pd.NA):
        money = [gap if i % 17 == 3 else Decimal(int(k)) / 4 for i, k in enumerate(CODES)]
        truth = [gap if i % 19 == 3 else bool(k > 2) for i, k in enumerate(CODES)]
        frame = pd.DataFrame(
            {"y": Y, "m": pd.Series(money, dtype=object), "t": pd.Series(truth, dtype=object)}
        )
        made = ef.Criterion.from_formula("y ~ m + t", frame, SQUARED)
        assert made.names == ("Intercept", "m", "t")
        assert made.rows.dropped == frame.isna().any(axis=1).sum()
        parts = ef.Criterion.from_parts(SQUARED, [frame[:40], frame[40:]], "y ~ m + t")
        np.testing.assert_allclose(ef.minimise(parts).theta, ef.minimise(made).theta, rtol=1e-9)


@pytest.mark.parametrize("formula", ["y ~ c", "y ~ x + C(c)", "y ~ x:c"])
@pytest.mark.parametrize("other", ["text", "dictionary", "stamp"])
def test_tables_whose_types_do_not_go_together_are_refused_by_column(other, formula) -> None:
    every = {**NUMBERS, **CATEGORIES, **TIMES}
    for parts in (
        [table_of(every["int8"]), table_of(every[other])],
        [table_of(every[other]), table_of(every["int8"])],
    ):
        for data in (parts, [part.to_pandas() for part in parts]):
            refused(
                "data",
                "column 'c' holds",
                lambda d=data: ef.Criterion.from_parts(SQUARED, d, formula),
            )


def test_tables_whose_types_go_together(tmp_path) -> None:
    """Whole numbers, decimals, halves and floats are all numbers, whichever comes first."""
    kinds = ["decimal128", "float32", "float16", "decimal256", "float16"]
    columns = [NUMBERS[kind] for kind in kinds] + [pa.array(CODES / 4)]
    tables = [table_of(column) for column in columns]
    frame = pd.concat([table_of(pa.array(CODES / 4)).to_pandas()] * len(tables))
    for formula in ("y ~ x + c", "y ~ x:c + I(c**2)", "y ~ C(c)"):
        memory = ef.Criterion.from_formula(formula, frame, SQUARED)
        for parts in (tables, tables[::-1]):
            made = ef.Criterion.from_parts(SQUARED, parts, formula)
            assert made.names == memory.names
            np.testing.assert_allclose(
                ef.minimise(made).theta, ef.minimise(memory).theta, rtol=1e-9
            )


@pytest.mark.parametrize("other", ["stamp", "zoned", "day"])
def test_labels_that_cannot_be_compared_are_refused(other) -> None:
    parts = [table_of(NUMBERS["int8"]), table_of({**CATEGORIES, **TIMES}[other])]
    refused(
        "clusters",
        "cannot be compared",
        lambda: ef.Criterion.from_parts(SQUARED, parts, "y ~ x", clusters="c"),
    )


@pytest.mark.parametrize("formula", ["y ~ x + C(c)", "y ~ x:c"])
@pytest.mark.parametrize("kind", ["text", "dictionary"])
@pytest.mark.parametrize("gap", ["y", "x"])
def test_a_level_of_left_out_rows_alone_is_no_level(kind, formula, gap, tmp_path) -> None:
    """Rows without a response, or a covariate that the formula has: in one part, or in both."""
    frame = table_of(CATEGORIES[kind]).to_pandas()
    level = frame.c[0]
    for rows in (frame.c == level, (frame.c == level) | (frame.index < 50)):
        holes = frame.assign(**{gap: frame[gap].mask(rows)})
        memory = ef.Criterion.from_formula(formula, holes, SQUARED)
        assert memory.n == (~rows).sum()
        for data in sources(pa.Table.from_pandas(holes), tmp_path).values():
            made = ef.Criterion.from_parts(SQUARED, data, formula)
            assert (made.names, made.n) == (memory.names, memory.n)
            np.testing.assert_allclose(
                ef.minimise(made).theta, ef.minimise(memory).theta, rtol=1e-8
            )


def test_a_column_of_polars_names_the_clusters():
    polars = pytest.importorskip("polars")
    school = np.repeat(np.arange(12), 5)
    x = np.random.default_rng(2).standard_normal(60)
    criterion = ef.Criterion(ef.losses.Squared(), (np.ones((60, 1)), x))
    for labels in (polars.Series("school", school), polars.DataFrame({"school": school})):
        assert ef.target(criterion, clusters=labels).cluster_label == "school"

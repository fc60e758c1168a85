"""Tables and columns of polars and PyArrow go wherever pandas's do, and mean the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import etafree as ef
from conftest import refused
from etafree.foundation.arguments import as_pandas
from test_table_types import CATEGORIES, NOTHING, NUMBERS, SQUARED, TIMES, N, X, Y, table_of

RNG = np.random.default_rng(5)
SCHOOL = np.repeat(np.arange(30), 4)
FRAME = pd.DataFrame(
    {
        "y": Y,
        "x": X,
        "gaps": pd.Series(X).mask(np.arange(N) % 17 == 3),
        "school": SCHOOL,
        "town": [f"t{k % 6}" for k in SCHOOL],
        "kind": [f"k{k % 3}" for k in range(N)],
        "half": SCHOOL < 15,
        "many": RNG.integers(1, 4, N),
        "time": RNG.exponential(size=N),
        "event": RNG.random(N) > 0.3,
        "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(N), "D"),
    }
)
ARROW = pa.Table.from_pandas(FRAME)


def polars(table: pa.Table) -> Any:
    return pytest.importorskip("polars").from_arrow(table)


#: What makes a library's table of an Arrow table.
LIBRARIES: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "polars": polars,
    "lazy": lambda table: polars(table).lazy(),
}


def some(table: Any, *names: str) -> Any:
    """Return some columns of a table of any library."""
    return table[list(names)] if hasattr(table, "iloc") else table.select(list(names))


def one(table: Any, name: str) -> Any:
    """Return one column; that of a lazy table comes from the collected one."""
    return (table.collect() if hasattr(table, "collect") else table)[name]


def formula(data: Any, text: str = "y ~ x", **options: Any) -> ef.Criterion:
    return ef.Criterion.from_formula(text, data, SQUARED, **options)


def line(theta: Any, row: Any) -> Any:
    return 0.5 * (row["y"] - theta[0] - theta[1] * row["x"]) ** 2


def residual(theta: Any, row: Any) -> Any:
    import jax.numpy as jnp

    return (row["y"] - theta[0] - theta[1] * row["x"]) * jnp.stack([1.0, row["x"]])


MEMORY = formula(FRAME)
WEIGHTED = formula(FRAME, weights="many", weight_kind="sampling")
#: Where a table, or columns of one, may be passed.
DOORS: dict[str, Callable[[Any], Any]] = {
    "formula": lambda t: formula(t, "y ~ gaps + C(town) + half"),
    "names": lambda t: ef.target(
        formula(t, weights="many", weight_kind="frequency"), clusters=["school", "kind"]
    ),
    "X and y": lambda t: ef.Criterion(SQUARED, (some(t, "x", "half"), one(t, "y"))),
    "weights": lambda t: formula(FRAME, weights=one(t, "many"), weight_kind="frequency"),
    "clusters": lambda t: ef.target(MEMORY, clusters=one(t, "town")),
    "clusters of a table": lambda t: ef.target(MEMORY, clusters=some(t, "school", "kind")),
    "clusters of a dict": lambda t: ef.target(MEMORY, clusters={"a": one(t, "town")}),
    "clusters of a list": lambda t: ef.target(MEMORY, clusters=[one(t, "school"), one(t, "kind")]),
    "survey": lambda t: ef.target(
        WEIGHTED,
        dependence=ef.Survey(
            psu=one(t, "school"), strata=one(t, "half"), calibrated=some(t, "x", "kind")
        ),
    ),
    "series": lambda t: ef.target(MEMORY, dependence=ef.TimeSeries(one(t, "day"))),
    "own loss": lambda t: ef.target(
        ef.Criterion(ef.JaxLoss(line), some(t, "x", "y", "town"), start=np.zeros(2)),
        clusters="town",
    ),
    "own loss of columns": lambda t: ef.Criterion(
        ef.JaxLoss(line), {"x": one(t, "x"), "y": one(t, "y")}, start=np.zeros(2)
    ),
    "equations": lambda t: ef.target(
        ef.Criterion(ef.Moments(residual), some(t, "x", "y"), start=np.zeros(2))
    ),
    "survival": lambda t: ef.target(
        ef.Criterion(ef.Cox(), (some(t, "x", "half"), some(t, "time", "event")))
    ),
    "survival formula": lambda t: ef.target(
        ef.Criterion.from_formula("Surv(time, event) ~ x + strata(half)", t, ef.Cox()),
        clusters="school",
    ),
    "mixed": lambda t: ef.RandomIntercept.from_formula("y ~ x", t, "school").criterion,
    "mixed slopes": lambda t: ef.RandomEffects.from_formula("y ~ x", t, "school", "1 + x"),
    "parts": lambda t: ef.Criterion.from_parts(SQUARED, t, "y ~ gaps + town", clusters="school"),
    "several parts": lambda t: ef.Criterion.from_parts(SQUARED, [t, t], "y ~ x + town"),
    "parts made anew": lambda t: ef.Criterion.from_parts(SQUARED, lambda: iter([t]), "y ~ x"),
    "draws": lambda t: ef.Draws.of(some(t, "x", "y")),
}


def facts(answer: Any) -> dict[str, Any]:
    """Return names, number of rows, and numbers of what a door gave."""
    numbers = {}
    if isinstance(answer, ef.Target):
        numbers = {"center": answer.center, "covariance": answer.covariance, "dof": answer.dof}
    elif isinstance(answer, ef.Criterion) and answer.names == MEMORY.names:
        numbers = {"theta": ef.minimise(answer).theta}
    elif isinstance(answer, ef.Draws):
        numbers = {"mean": answer.mean}
    known = {name: getattr(answer, name, None) for name in ("names", "n", "clusters")}
    return {**known, **numbers}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_every_library(door: str, library: str) -> None:
    expected = facts(DOORS[door](FRAME))
    answer = facts(DOORS[door](LIBRARIES[library](ARROW)))
    assert answer.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(answer[name], value, rtol=1e-9, atol=1e-12)
        else:
            assert answer[name] == value, name


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", [*NUMBERS, *CATEGORIES, *TIMES])
def test_every_type_means_what_it_does_in_pandas(kind: str, library: str) -> None:
    if kind == "decimal256" and library in ("polars", "lazy"):
        pytest.skip("polars has no such type")
    table = table_of({**NUMBERS, **CATEGORIES, **TIMES}[kind])
    given = LIBRARIES[library](table)
    for text in ["y ~ x + C(c)"] + ["y ~ x + c"] * (kind not in TIMES):
        expected = ef.Criterion.from_parts(SQUARED, table, text)
        read = formula(given, text)
        assert (read.names, read.n) == (expected.names, expected.n)
        theta = ef.minimise(expected).theta
        np.testing.assert_allclose(ef.minimise(read).theta, theta, rtol=1e-8, atol=1e-11)
    if kind in TIMES:
        refused("formula", "the dates in 'c'", lambda: formula(given, "y ~ c"))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", NOTHING)
def test_lists_and_the_like_are_refused_where_they_are_used(kind: str, library: str) -> None:
    given = LIBRARIES[library](table_of(NOTHING[kind]))
    assert formula(given).n == N
    with pytest.raises(ef.errors.InputError):
        formula(given, "y ~ x + c")


def test_an_enum_keeps_the_order_of_its_categories() -> None:
    pl = pytest.importorskip("polars")
    order = ["k2", "k0", "k1"]
    table = pl.from_pandas(FRAME).with_columns(pl.col("kind").cast(pl.Enum(order)))
    frame = FRAME.assign(kind=pd.Categorical(FRAME["kind"], order))
    assert formula(table, "y ~ kind").names == formula(frame, "y ~ kind").names
    assert formula(table, "y ~ kind").names[1:] == ("kind[T.k0]", "kind[T.k1]")


@pytest.mark.parametrize("library", LIBRARIES)
def test_whole_numbers_with_gaps_stay_apart(library: str) -> None:
    """As floating point two of them would be one label."""
    large = [2**53, 2**53 + 1, None, 2**63 + 1]
    frame = as_pandas(LIBRARIES[library](pa.table({"a": pa.array(large, pa.uint64())})))
    assert frame["a"].nunique() == 3
    assert frame["a"].isna().tolist() == [False, False, True, False]


@pytest.mark.parametrize("library", LIBRARIES)
def test_labels_without_an_index_go_by_position(library: str) -> None:
    """Rows of a filtered DataFrame have other numbers; a column of another library has none."""
    kept = FRAME[FRAME["x"] > 0]
    labels = one(LIBRARIES[library](pa.table({"town": kept["town"].to_numpy()})), "town")
    expected = ef.target(formula(kept), clusters=kept["town"])
    answer = ef.target(formula(kept), clusters=labels)
    np.testing.assert_array_equal(answer.covariance, expected.covariance)


@pytest.mark.parametrize("library", LIBRARIES)
def test_missing_labels_are_refused(library: str) -> None:
    labels = [None if k == 7 else town for k, town in enumerate(FRAME["town"])]
    column = one(LIBRARIES[library](pa.table({"town": labels})), "town")
    refused("clusters", "missing", lambda: ef.target(MEMORY, clusters=column))


def test_names_that_are_there_twice_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array(Y)] * 2, names=["y", "y"])
    refused("data", "'y' 2 times", lambda: formula(table, "y ~ 1"))


def test_results_take_tables_too() -> None:
    """Centres by name, points to test, and draws to move."""
    draws = pd.DataFrame(RNG.standard_normal((4000, 2)), columns=["a", "b"])
    result = ef.calibrate(draws, center=[0.0, 1.0], covariance=np.eye(2))
    for make in LIBRARIES.values():
        table = make(pa.table({"b": [1.0], "a": [0.5]}))
        np.testing.assert_allclose(
            ef.calibrate(make(pa.Table.from_pandas(draws)), result.target).draws.array,
            result.draws.array,
        )
        moved = np.asarray(result.map(table))
        np.testing.assert_allclose(moved, result.map(np.array([[0.5, 1.0]])))


def test_arrays_and_pandas_import_nothing() -> None:
    script = (
        "import sys, numpy as np, pandas as pd; from etafree.foundation.arguments import as_pandas;"
        "values = [np.ones(2), [1.0], 'x', None, pd.DataFrame({'x': [1]}), pd.Series([1])];"
        "assert all(as_pandas(value) is value for value in values);"
        "assert not {'narwhals', 'polars', 'etafree.foundation.tables'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

"""Formulas and DataFrames: names, missing values, alignment by index."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree.data.formula import (
    check_kinds,
    column_uses,
    design,
    expanded,
    formula_columns,
    matrices,
    screened,
)
from etafree.errors import InputError


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame(
        {
            "x": rng.standard_normal(n),
            "kind": rng.choice(["a", "b", "c"], n),
            "school": rng.integers(0, 15, n),
            "w": rng.integers(1, 4, n),
            "exposure": rng.random(n),
        },
        index=[f"pupil {k}" for k in range(n)],
    )
    frame["y"] = 1 + 2 * frame["x"] + (frame["kind"] == "b") + rng.standard_normal(n)
    return frame


def test_a_formula_makes_the_design_matrix_with_names(table: pd.DataFrame) -> None:
    criterion = ef.Criterion.from_formula("y ~ x + kind", table, ef.losses.Squared())
    assert criterion.names == ("Intercept", "x", "kind[T.b]", "kind[T.c]")
    import statsmodels.formula.api as smf

    reference = smf.ols("y ~ x + kind", table).fit().params
    reference = reference[["Intercept", "x", "kind[T.b]", "kind[T.c]"]]
    np.testing.assert_allclose(ef.minimise(criterion).theta, reference, rtol=1e-9)


def test_rows_dropped_for_missing_values_drop_from_everything_else(table: pd.DataFrame) -> None:
    holes = table.copy()
    holes.loc["pupil 3", "x"] = np.nan
    holes.loc["pupil 70", "y"] = np.nan
    clean = holes.dropna()
    loss = ef.losses.Huber(1.345)
    made = ef.Criterion.from_formula(
        "y ~ x", holes, loss, weights="w", weight_kind="frequency", offset="exposure"
    )
    reference = ef.Criterion.from_formula(
        "y ~ x", clean, loss, weights="w", weight_kind="frequency", offset="exposure"
    )
    assert made.n == 118
    assert made.rows.dropped == 2
    goal = ef.target(reference, clusters=clean["school"])
    shuffled = holes["school"].sample(frac=1.0, random_state=1)
    for clusters in (
        holes["school"],  # by index
        shuffled,  # by index, in another order
        holes["school"].to_numpy(),  # by position, before the drop
        clean["school"].to_numpy(),  # by position, after the drop
        clean["school"],
    ):
        np.testing.assert_allclose(
            ef.target(made, clusters=clusters).covariance, goal.covariance, rtol=1e-12
        )


def test_clusters_that_cannot_be_aligned_are_refused(table: pd.DataFrame) -> None:
    criterion = ef.Criterion.from_formula("y ~ x", table, ef.losses.Squared())
    with pytest.raises(InputError, match="no value for 120 of the rows"):
        ef.target(criterion, clusters=table["school"].reset_index(drop=True))
    with pytest.raises(InputError, match="7 entries for 120 rows"):
        ef.target(criterion, clusters=np.arange(7))
    doubled = pd.concat([table["school"], table["school"]])
    with pytest.raises(InputError, match="duplicates"):
        ef.target(criterion, clusters=doubled)


def test_a_ridge_leaves_the_intercept_alone_unless_told(table: pd.DataFrame) -> None:
    ridge = ef.penalties.Ridge(5.0)
    free = ef.Criterion.from_formula("y ~ x", table, ef.losses.Squared(), ridge)
    bound = ef.Criterion.from_formula(
        "y ~ x", table, ef.losses.Squared(), ridge, penalize_intercept=True
    )
    arrays = ef.Criterion(ef.losses.Squared(), (bound.total.X, bound.total.y), ridge)
    np.testing.assert_allclose(ef.minimise(bound).theta, ef.minimise(arrays).theta, rtol=1e-10)
    assert abs(ef.minimise(free).theta[0]) > 2 * abs(ef.minimise(bound).theta[0])
    centred = table["x"] - table["x"].mean()
    n = len(table)
    slope = (centred @ table["y"]) / (centred @ centred + 5 * n)
    assert ef.minimise(free).theta[1] == pytest.approx(slope, rel=1e-9)


def test_trials_may_be_a_column(table: pd.DataFrame) -> None:
    counts = table.assign(m=10, k=np.clip(np.round(table["y"] + 5), 0, 10))
    criterion = ef.Criterion.from_formula("k ~ x", counts, ef.losses.Logistic(), trials="m")
    assert ef.minimise(criterion).status == "converged"


def test_a_design_frame_names_the_parameters_and_keeps_its_index(table: pd.DataFrame) -> None:
    X = pd.DataFrame({"one": 1.0, "slope": table["x"]})
    criterion = ef.Criterion(ef.losses.Squared(), (X, table["y"]))
    assert criterion.names == ("one", "slope")
    shuffled = table["school"].sample(frac=1.0, random_state=2)
    np.testing.assert_allclose(
        ef.target(criterion, clusters=shuffled).covariance,
        ef.target(criterion, clusters=table["school"].to_numpy()).covariance,
    )
    with pytest.raises(InputError, match="index that differs"):
        ef.Criterion(ef.losses.Squared(), (X, table["y"].iloc[::-1]))


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ nowhere", "cannot be evaluated"),
        ("y x", "response ~ predictors"),
        ("kind ~ x", "not numeric"),
        ("y ~ 0", "no predictors"),
    ],
)
def test_bad_formulas_say_what_is_wrong(table: pd.DataFrame, formula: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ef.Criterion.from_formula(formula, table, ef.losses.Squared())


def test_a_table_without_a_complete_row_is_refused(table: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="no complete row"):
        ef.Criterion.from_formula("y ~ x", table.assign(x=np.nan), ef.losses.Squared())


COLUMNS = ["y", "x", "g", "a b", "x.1", "exp", "x.__class__"]


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ x",
        "y ~ log(x)+C(g)",
        "np.log1p(y) ~ `a b` + poly(x, degree=2)",
        "y ~ .",
        "y ~ C(g, Treatment('a')) * x - 1",
        "y~(x+exp)**2",
        "y ~ I(x**2)",
        "y ~ bs(x, df=4)",
        "y ~ `x.1` + exp",
        "y ~ 0 + x:g",
        "y ~ x + 1.5e3*x",
    ],
)
def test_formulas_of_columns_and_listed_functions_pass(formula: str) -> None:
    assert screened(formula, COLUMNS) == formula


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ {__import__('os').system('x')}",
        "y ~ os",
        "y ~ x.__class__",
        "y ~ open('f')",
        "y ~ eval('1')",
        "y ~ I(9**9**9)",
        "y ~ (lambda: 1)()",
        "y ~ [x for x in x]",
        "y ~ getattr(x,'a')",
        "y ~ x.1",
        "y ~ `zz`",
        "y ~ np.load('f')",
        "y ~ Q('x')",
        "y ~ C(g, contr.treatment('a'))",
        "y ~ x; import os",
        "y ~ f'{x}'",
        "y ~ 'a{b}'",
        "y ~ x\n__import__",
        "y ~ np.linalg.inv(x)",
        "y ~ I(((x**9)**9)**9)**9**9",
        "y ~ x" * 1000,
    ],
)
def test_formulas_that_could_run_code_are_refused(formula: str) -> None:
    refused("formula", "", lambda: screened(formula, COLUMNS))


def test_what_a_formula_uses_is_known_before_it_is_evaluated() -> None:
    uses = column_uses("y ~ log(x) + C(g, Treatment('a'))", ["a", "g", "x", "y"])
    assert uses == ({"x", "y"}, {"g"})
    assert formula_columns("y ~ np.log(x) + C(g)", ["g", "h", "x", "y"], None) == ("g", "x", "y")
    terms = expanded("y ~ (x + z)**2", ["x", "y", "z"]).rhs
    assert [str(term) for term in terms] == ["1", "x", "z", "x:z"]
    far = "multiplies out to about 1.1e+12 terms"
    refused("formula", far, lambda: expanded("y ~ (x + z)**40", ["x", "y", "z"]))
    refused("formula", "has '{' at place 5", lambda: screened("y ~ {__import__('os')}", ["y"]))
    kinds = check_kinds(pd.DataFrame({"x": [1, 2], "g": ["a", "b"]}), {"x": "numbers"})
    assert kinds == {"x": "numbers", "g": "categories"}


def test_columns_of_the_same_name_are_refused() -> None:
    table = pd.DataFrame(np.ones((3, 3)), columns=["y", "x", "x"])
    refused(
        "data",
        "several columns named ['x']",
        lambda: ef.Criterion.from_formula("y ~ x", table, ef.losses.Squared()),
    )


def test_columns_named_by_numbers_are_left_alone():
    """No formula can name them, whatever they hold."""
    table = pd.DataFrame({"y": [1.0, 2.0, 4.0, 3.0], "x": [0, 1, 2, 3]})
    plain = ef.Criterion.from_formula("y ~ x + I(x * x)", table, ef.losses.Squared())
    table[7] = pd.Categorical(["a", "b", "a", "b"], categories=["a", "b", "c"])
    table[8] = [1, 2, 3, 4]
    more = ef.Criterion.from_formula("y ~ x + I(x * x)", table, ef.losses.Squared())
    np.testing.assert_array_equal(more.total.X, plain.total.X)


def numbers_of_every_kind(missing: bool) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    n = 40
    table = pd.DataFrame(
        {
            "y": rng.standard_normal(n),
            "x": rng.standard_normal(n).astype(np.float32),
            "half": rng.standard_normal(n).astype(np.float16),
            "count": rng.integers(-5, 200, n).astype(np.int16),
            "id": rng.integers(2**62, 2**63, n).astype(np.uint64),
            "some": pd.array(rng.integers(0, 9, n), dtype="Int32"),
            "real": pd.array(rng.standard_normal(n), dtype="Float64"),
            "arrow": pd.Series(rng.standard_normal(n), dtype="double[pyarrow]"),
            "rare": pd.arrays.SparseArray(np.where(rng.random(n) < 0.2, 1.5, 0.0)),
            "a b+": rng.standard_normal(n),
        },
        index=rng.permutation(n),
    )
    if missing:
        for name, row in {"y": 0, "x": 1, "some": 2, "real": 3, "arrow": 4, "a b+": 1}.items():
            table.iloc[row, list(table).index(name)] = None
    return table


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    "formula",
    [
        "y ~ x + count + half",
        "y ~ 0 + id + some + x",
        "y ~ .",
        "y ~ `a b+` + rare",
        "count ~ 1",
        "some ~ real + arrow + 1 - x",
        "y ~ x + x + y",
    ],
)
def test_columns_are_put_together_as_formulaic_does(formula: str, missing: bool) -> None:
    table = numbers_of_every_kind(missing)
    one, other = design(formula, table), matrices(formula, table, None)
    assert one.spec is None  # nothing was evaluated
    np.testing.assert_array_equal(one.X, other.X)
    np.testing.assert_array_equal(one.y, other.y)
    assert (one.names, one.intercept) == (other.names, other.intercept)
    kept = [None if d.rows.kept is None else d.rows.kept.tolist() for d in (one, other)]
    assert kept[0] == kept[1]
    assert one.rows.missing == other.rows.missing
    assert one.X.flags.c_contiguous
    assert not any(np.shares_memory(one.y, table[name].to_numpy()) for name in ("y", "count"))


@pytest.mark.parametrize(
    "term", ["x:y", "np.exp(x)", "C(count)", "I(x)", "flag", "text", "outside"]
)
def test_what_is_no_column_of_numbers_is_evaluated(term: str) -> None:
    table = numbers_of_every_kind(False).assign(flag=lambda t: t["y"] > 0, text="a")
    table.loc[table["y"] > 0.5, "text"] = "b"
    assert design(f"y ~ x + {term}", table, {"outside": np.arange(40)}).spec is not None


def test_frames_become_matrices_row_after_row() -> None:
    table = numbers_of_every_kind(False).assign(flag=True)
    y = np.arange(len(table), dtype=float)
    total = ef.Criterion(ef.losses.Squared(), (table, y)).total
    expected = np.column_stack([np.asarray(table[name], dtype=float) for name in table])
    np.testing.assert_array_equal(total.X, expected)
    assert total.X.flags.c_contiguous
    block = np.ones((40, 2))
    block[:, 1] = y
    kept = ef.Criterion(ef.losses.Squared(), (pd.DataFrame(block, copy=False), y)).total.X
    assert np.shares_memory(kept, block)  # rows already follow each other
    gap = table.assign(some=table["some"].where(table["y"] > 0))
    refused("X", "entries that are NaN", lambda: ef.Criterion(ef.losses.Squared(), (gap, y)))

"""Formulas that mean something else than they say, or more than memory holds, are refused."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree.data.formula import design


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 60
    frame = pd.DataFrame({name: rng.integers(1, 9, n) for name in "xzwvu"})
    frame["a b"] = rng.integers(1, 9, n)
    frame["flag"], frame["other"] = rng.random(n) < 0.5, rng.random(n) < 0.5
    frame["g"] = rng.choice(["p", "q", "r"], n)
    frame["y"] = frame["x"] + rng.standard_normal(n)
    return frame


def fit(formula: str, table: pd.DataFrame, **options: object) -> ef.Criterion:
    return ef.Criterion.from_formula(formula, table, ef.losses.Squared(), **options)


# --- Python's operators and R's -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "symbol"),
    [
        ("I(x^2)", "^"),
        ("{x^2}", "^"),
        ("I(`a b`^2)", "^"),
        ("np.log(x^2)", "^"),
        ("I(2*(x + z^2))", "^"),
        ("C(x^2)", "^"),
        ("bs(x^2, df=4)", "^"),
        ("x:I(z^2)", "^"),
        ("I(x|z)", "|"),
        ("I(x&z)", "&"),
        ("I(~x)", "~"),
        ("I(x << 2)", "<<"),
        ("I(x >> 1)", ">>"),
        ("I(x & (z > 2))", "&"),
        ("I((x > 1) & z)", "&"),
        ("I(x > 1 & z > 2)", "&"),
        ("I(flag ^ x)", "^"),
        ("I(x^2.0)", "^"),
    ],
)
def test_operators_on_the_bits_of_numbers_are_refused(
    table: pd.DataFrame, term: str, symbol: str
) -> None:
    advice = r"**" if symbol == "^" else "truth"
    refused(
        "formula", f"has {symbol!r}, which works on the bits", lambda: fit(f"y ~ {term}", table)
    )
    refused("formula", advice, lambda: fit(f"y ~ z + {term}", table))
    refused("formula", advice, lambda: fit(f"{term} ~ z", table))


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ (x + z)^2",
        "y ~ (x + z)**2",
        "y ~ I(x**2)",
        "y ~ I((x > 2) & (z > 2))",
        "y ~ I((x > 2) | (z > 2))",
        "y ~ I(~(x > 2))",
        "y ~ I(flag & other)",
        "y ~ I(flag ^ other)",
        "y ~ I(~flag)",
        "y ~ I(np.isfinite(x) & ~x.isin([1, 2]))",
        "y ~ x:z",
        "y ~ `a b`",
        "y ~ I((x > 1) & (x < 7) & flag)",
        "y ~ x - 1",
    ],
)
def test_operators_of_formulas_and_on_truth_values_pass(table: pd.DataFrame, formula: str) -> None:
    assert fit(formula, table).n == len(table)


@pytest.mark.parametrize(
    "formula", ["y ~ x + offset(z)", "y ~ offset(np.log(z))", "y ~ x:offset(z)"]
)
def test_an_offset_in_a_formula_is_refused_with_the_argument_that_takes_it(
    table: pd.DataFrame, formula: str
) -> None:
    refused("formula", "pass offset=", lambda: fit(formula, table))
    own = {"offset": lambda values: 2.0 * values}
    assert fit(formula, table, context=own).n == len(table)
    column = table.assign(offset=table["z"])
    assert fit("y ~ x + offset", column).names == ("Intercept", "x", "offset")


def test_exp10_is_a_power_of_ten(table: pd.DataFrame) -> None:
    np.testing.assert_allclose(design("y ~ exp10(z) - 1", table).X[:, 0], 10.0 ** table["z"])


# --- categories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("term", ["g", "C(g)", "C(g, contr.sum)", "g - 1", "g:x", "C(g, Sum)"])
@pytest.mark.parametrize("kind", ["unused", "in dropped rows only", "both", "ordered"])
def test_levels_without_rows_are_dropped_as_r_does(
    table: pd.DataFrame, term: str, kind: str
) -> None:
    levels = ["never", *"pqr", "lost"]
    odd = table.copy()
    if kind in ("in dropped rows only", "both"):
        odd.loc[[3, 7], "g"] = "lost"
        odd["y"] = odd["y"].where(odd["g"] != "lost")
    plain = odd.dropna()
    keep = levels if kind != "in dropped rows only" else levels[1:]
    odd["g"] = pd.Categorical(odd["g"], categories=keep, ordered=kind == "ordered")
    got, expected = design(f"y ~ x + {term}", odd), design(f"y ~ x + {term}", plain)
    np.testing.assert_array_equal(got.X, expected.X)
    np.testing.assert_array_equal(got.y, expected.y)
    assert [n.replace("lost", "") for n in got.names] == list(expected.names)
    assert got.rows.missing == len(odd) - len(plain)
    assert list(odd["g"].cat.categories) == keep  # the caller's table is as it was
    ef.target(fit(f"y ~ x + {term}", odd))


@pytest.mark.parametrize("dtype", ["string", "object", "category", "str"])
def test_text_is_categories_whatever_pandas_calls_it(table: pd.DataFrame, dtype: str) -> None:
    texts = table.assign(g=np.where(table["g"] == "p", "01", "1"))
    made = design("y ~ g", texts.assign(g=texts["g"].astype(dtype)))
    assert made.names == ("Intercept", "g[T.1]")


# --- missing values -----------------------------------------------------------------------------


def test_rows_left_out_for_missing_values_are_counted_in_what_is_printed(
    table: pd.DataFrame, tmp_path: Path
) -> None:
    holes = table.astype({"x": float})
    holes.loc[[1, 5, 9], "x"] = np.nan
    criterion = fit("y ~ x", holes)
    assert criterion.rows.missing == 3
    assert criterion.subset(np.arange(20)).rows.missing == 3
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), 1000, 1)
    for result in (ef.calibrate(draws, criterion), ef.calibrate(draws, log_likelihood=criterion)):
        assert "left out for missing values: 3 of 60 rows" in str(result)
        assert result.diagnostics().loc["left out for missing values", "value"] == 3
    result.save(tmp_path / "result.npz")
    assert "3 of 60 rows" in str(ef.Calibration.load(tmp_path / "result.npz"))
    parts = ef.Criterion.from_parts(ef.losses.Squared(), holes, "y ~ x")
    assert parts.rows.missing == 3
    assert "3 of 60 rows" in str(ef.calibrate(draws, parts))


def test_nothing_is_said_of_complete_data(table: pd.DataFrame) -> None:
    criterion = fit("y ~ x", table)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), 1000, 1)
    assert "left out" not in str(ef.calibrate(draws, criterion))


# --- formulas that explode ----------------------------------------------------------------------

EXPLODING = [
    "y ~ (x+z+w+v+u)**12",
    "y ~ (x+z+w+v+u)^12",
    "y ~ (x+z)**99999",
    "y ~ x**999999999",
    "y ~ ((x+z+w)**9)**9",
    "y ~ .**9",
    "y ~ .**9**99",
    "y ~ (x+z+w+v+u)**12**1",
    "y ~ (x+z+w+v+u)**(1+12)",
    "y ~ " + "*".join(f"I(x+{k})" for k in range(30)),
    "y ~ " + ":".join(["(x+z)"] * 40),
    "y ~ (x+z+w+v+u)**9 - x",
    "(x+z+w+v+u)**12 ~ y",
    "y ~ bs(x, df=10**8)",
    "y ~ bs(x, 100000000)",
    "y ~ bs(x, df=4, degree=10**7)",
    "y ~ cr(x, df=10**9)",
    "y ~ cc(x, df=2*10**6)",
    "y ~ cs(x, df=1e9)",
    "y ~ poly(x, 10**8)",
    "y ~ poly(x, degree=10**8)",
    "y ~ hashed(g, levels=10**9)",
    "y ~ I(x * 9**9**9)",
    "y ~ I(x + 10**400)",
    "y ~ bs(x, knots=np.linspace(1, 8, 10**9))",
    "y ~ x + I(np.ones(10**10))",
    "y ~ bs(x, df=many)",
    "y ~ bs(x, df=200):bs(z, df=200)",
    "y ~ C(id):C(number)",
]


@pytest.mark.parametrize("formula", EXPLODING)
@pytest.mark.parametrize("parts", [False, True])
def test_formulas_that_explode_are_refused_before_any_work(
    table: pd.DataFrame, formula: str, parts: bool
) -> None:
    many = pd.concat([table] * 5, ignore_index=True)
    many["number"] = np.arange(300)
    many["id"] = many["number"].astype(str)
    loss, context = ef.losses.Squared(), {"many": 10**8}
    fit("y ~ x", table)  # imports
    tracemalloc.start()
    start = time.process_time()
    if parts:
        refused(
            "formula", "", lambda: ef.Criterion.from_parts(loss, many, formula, context=context)
        )
    else:
        refused("formula", "", lambda: fit(formula, many, context=context))
    spent, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent < 5
    assert peak < 50e6


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ (x+z+w+v+u)**4",
        "y ~ x*z*w*v",
        "y ~ bs(x, df=6)",
        "y ~ poly(x, 3)",
        "y ~ .**2",
        "y ~ I(x + 10**9)",
        "y ~ np.clip(x, 0, 10**9)",
        "y ~ np.where(x > 10**8, x, z)",
        "y ~ bs(x, knots=[3, 5], upper_bound=10**9)",
        "y ~ " + " + ".join(f"I(x + {k})" for k in range(1500)),
        "y ~ bs(x, knots=np.linspace(2, 6, 3))",
    ],
)
def test_formulas_of_a_usual_size_pass(table: pd.DataFrame, formula: str) -> None:
    assert design(formula, table.drop(columns=["a b"])).rows.used == len(table)

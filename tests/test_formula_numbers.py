"""What a formula computes from whole numbers and labels: no overflow, no labels without end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree.cli.commands import select_file
from etafree.data.formula import design
from etafree.foundation import storage as claims

N = 60


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": rng.standard_normal(N), "big": rng.integers(1500, 2000, N)})
    frame["tiny"] = rng.integers(50, 100, N).astype("i1")
    frame["unsigned"] = rng.integers(0, 9, N).astype("u4")
    frame["maybe"] = pd.array(rng.integers(0, 2000, N), dtype="Int64")
    frame["when"] = 1_700_000_000_000_000_000 + rng.integers(0, 100, N)
    frame["g"] = np.arange(N) % 3
    return frame


@pytest.mark.parametrize(
    "term",
    [
        "I(big**9)",
        "I(big**7 * big)",
        "np.power(big, 8)",
        "I(tiny * tiny)",
        "I(tiny * 100)",
        "tiny:big",
        "I(-unsigned)",
        "I(unsigned - 5)",
        "big.cumprod()",
        "I(maybe**9)",
        "I(when * when)",
        "poly(big, 3, raw=True)",
        "I(big**9) + C(big)",
        "I(tiny + big)",
        "np.multiply(tiny, tiny)",
        "I(big**9 / 10**20)",
    ],
)
def test_whole_numbers_are_computed_with_as_numbers(table: pd.DataFrame, term: str) -> None:
    names = ["big", "tiny", "unsigned", "maybe", "when"]
    floats = table.astype(dict.fromkeys(names, float))
    made, expected = design(f"y ~ {term}", table), design(f"y ~ {term}", floats)
    np.testing.assert_allclose(made.X, expected.X, rtol=1e-12)
    assert len(made.names) == len(expected.names)
    assert not any(".0" in name for name in made.names)
    left = design(f"{term.split(' + C')[0]} ~ g", table) if "poly" not in term else made
    assert np.isfinite(left.y).all()


def test_what_needs_whole_numbers_gets_them(table: pd.DataFrame) -> None:
    exact = design("y ~ I(when - when.min()) - 1", table).X[:, 0]
    np.testing.assert_array_equal(exact, table["when"] - table["when"].min())
    effects = np.array([5.0, 7.0, 11.0])
    looked = design("y ~ I(effects[g]) - 1", table, {"effects": effects}).X[:, 0]
    np.testing.assert_array_equal(looked, effects[table["g"]])
    assert design("y ~ C(g)", table).names == ("Intercept", "C(g)[T.1]", "C(g)[T.2]")
    assert design("y ~ C(g + 1)", table).names[-1] == "C(g + 1)[T.3]"


def test_data_in_parts_do_not_overflow_either(table: pd.DataFrame) -> None:
    loss = ef.losses.Squared()
    parts = ef.Criterion.from_parts(loss, [table[:30], table[30:]], "y ~ I((big - 1700)**9)")
    whole = ef.Criterion.from_formula("y ~ I((big - 1700.0)**9)", table, loss)
    expected = ef.minimise(whole).theta
    np.testing.assert_allclose(ef.minimise(parts).theta, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "term",
    [
        "C(id)",
        "C(id + 1)",
        "C(I(id))",
        "C(np.floor(id))",
        "y:C(id * 2)",
        "C(text)",
        "text",
        "C(text.str[:9])",
        "C(id, Sum)",
    ],
)
def test_labels_without_end_are_refused_and_few_labels_of_many_pass(term: str) -> None:
    n = 25_000
    many = pd.DataFrame({"y": np.arange(n) % 7.0, "id": np.arange(n)})
    many["text"] = many["id"].astype(str)
    refused("formula", "makes 25,000 columns of 25,000 rows", lambda: design(f"y ~ {term}", many))
    assert len(design("y ~ C(id // 5000)", many).names) == 5


def test_columns_that_memory_cannot_hold_are_refused(
    table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etafree.data import formula as expressions

    assert expressions.memory is claims.memory
    monkeypatch.setattr(expressions, "memory", lambda: (10**4, 10**4))
    refused("formula", "1,250 cells here", lambda: design("y ~ bs(big, df=30)", table))
    assert design("y ~ bs(big, df=6)", table).X.shape == (N, 7)


@pytest.mark.parametrize("reference", ["1", "reference=1", "7", "1.0"])
def test_a_reference_that_is_no_label_of_a_file_says_how_to_write_it(
    table: pd.DataFrame, reference: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.csv"
    table.to_csv(path, index=False)
    number = reference.rpartition("=")[2]
    told = f"write '{number}' in quotes, as labels of a file are text"
    formula = f"y ~ C(g, Treatment({reference}))"
    refused("formula", told, lambda: select_file(path, formula, "squared"))
    refused(
        "formula",
        "; name one of the column's labels",
        lambda: select_file(path, "y ~ C(g, Treatment('9'))", "squared"),
    )
    assert design("y ~ C(g, Treatment(1))", table).names[1:] == (
        "C(g, Treatment(1))[T.0]",
        "C(g, Treatment(1))[T.2]",
    )


def test_long_formulas_are_not_repeated_in_full(table: pd.DataFrame) -> None:
    for formula in ("y ~ " + "log(" * 300 + "big" + ")" * 300, "y ~ I(" + "-" * 5000 + "big)"):
        with pytest.raises(ef.errors.InputError) as info:
            design(formula, table)
        assert len(str(info.value)) < 1000

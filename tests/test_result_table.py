"""Results side by side: numbers are those of the summaries, names are escaped everywhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import etafree as ef
from conftest import refused
from test_active import sparse

RNG = np.random.default_rng(3)
ODD = ("x_1", "a|b*", "50% & <b>", "C(s)[T.ü^~\\{}]", "$b$ #`")


def fitted(names: tuple[str, ...], scale: float, **options: object) -> ef.Calibration:
    X = RNG.standard_normal((120, len(names)))
    y = scale * (X.sum(axis=1) + RNG.standard_normal(120))
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), names=names)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0 / scale**2), draws=500, seed=1)
    return ef.calibrate(draws, criterion, **options)


@pytest.fixture(scope="module")
def results() -> dict[str, ef.Calibration]:
    clusters = np.arange(120) // 6
    return {
        "all": fitted(ODD, 1.0),
        "few & far": fitted(("x_1", "b2"), 300.0, clusters=clusters),
        "small": fitted(("b2", "c"), 1e-3),
    }


class Cells(HTMLParser):
    """Collects the cells of a table row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.hidden = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self.hidden = tag == "span"

    def handle_endtag(self, tag):
        self.hidden = self.hidden and tag != "span"

    def handle_data(self, data):
        if self.rows and self.rows[-1] and not self.hidden:
            self.rows[-1][-1] += data


def test_numbers_are_those_of_the_summaries(results: dict[str, ef.Calibration]) -> None:
    table = ef.table(results)
    assert list(table.estimates.columns) == list(results)
    assert list(table.estimates.index) == [*ODD, "b2", "c"]
    for column, result in results.items():
        summary = result.summary()
        for numbers, name in ((table.estimates, "estimate"), (table.se, "se")):
            np.testing.assert_array_equal(numbers.loc[summary.index, column], summary[name])
            assert numbers[column].isna().sum() == len(table.estimates) - len(summary)
    assert table.footer.loc["rows"].tolist() == ["120"] * 3
    assert table.footer.loc["clusters"].tolist() == ["", "20", ""]
    corrections = [result.target.correction for result in results.values()]
    assert table.footer.loc["correction"].tolist() == corrections


def test_the_same_cells_in_every_form(results: dict[str, ef.Calibration]) -> None:
    """Two digits of a standard error; a parameter's cell and its parenthesis per result."""
    table = ef.table(results)
    rows = Cells(table.to_html()).rows
    assert rows[0] == ["", "all", "few & far", "small"]
    assert [row[0] for row in rows[1:15:2]] == [*ODD, "b2", "c"]
    assert all(len(row) == 4 for row in rows)
    for k, name in enumerate(results):
        for j, parameter in enumerate(table.estimates.index):
            above, below = rows[1 + 2 * j][1 + k], rows[2 + 2 * j][1 + k]
            se = table.se.loc[parameter, name]
            if np.isnan(se):
                assert (above, below) == ("", "")
                continue
            assert abs(float(below.strip("()")) - se) <= 0.05 * se
            assert abs(float(above) - table.estimates.loc[parameter, name]) <= 0.05 * se
    text = [re.split(r"\s{2,}", line) for line in repr(table).splitlines()]
    assert text[1][:2] == rows[1][:2]
    latex = table.to_latex()
    assert latex.count(r"\\" + "\n") == len(rows)
    markdown = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.to_markdown().splitlines()]
    assert {len(cells) for cells in markdown[: len(rows) + 1]} == {4}
    assert [cells[1].strip() for cells in markdown[2:16]] == [row[1] for row in rows[1:15]]


def test_decimal_points_stand_below_each_other() -> None:
    names = ["a", "b", "c", "d"]
    variances = np.array([0.1, 2.0, 400.0, 1e-4]) ** 2
    target = ef.Target([0.5, -12.0, 3000.0, 0.25], np.diag(variances), names=names)
    table = ef.table([target])
    lines = repr(table).splitlines()[1:9]
    assert [line[1:].strip() for line in lines[:6]] == [
        *("0.50", "(0.10)", "-12.0", "(2.0)", "3000", "(400)")
    ]
    points = [
        re.search(r"(\.|\)|$)", line[1:]).start() for line in lines
    ]  # or the last digit's end
    assert len(set(points)) == 1
    latex = [line for line in table.to_latex().splitlines() if "(400)" in line or "3000" in line]
    assert r"3000\phantom{.00000)}" in latex[0]
    assert r"(400)\phantom{.00000}" in latex[1]


def test_names_are_escaped(results: dict[str, ef.Calibration]) -> None:
    table = ef.table(results)
    latex = table.to_latex()
    assert r"50\% \& \textless{}b\textgreater{}" in latex
    assert r"few \& far" in latex
    assert r"C(s)[T.ü\textasciicircum{}\textasciitilde{}\textbackslash{}\{\}]" in latex
    assert r"\$b\$ \#`" in latex
    assert "<b>" not in table.to_html()
    assert "| x\\_1 |" in table.to_markdown()
    assert "| a\\|b\\* |" in table.to_markdown()
    noisy = ef.table({"\x1b[31m": ef.Target([1.0], [[1.0]], names=["a\x07"])})
    for text in (repr(noisy), noisy.to_latex(), noisy.to_html(), noisy.to_markdown()):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_sequences_single_results_and_targets(results: dict[str, ef.Calibration]) -> None:
    many = list(results.values()) * 3 + [results["small"].target]
    table = ef.table(many)
    assert list(table.estimates.columns) == [f"({k})" for k in range(1, 11)]
    np.testing.assert_allclose(table.se["(10)"], table.se["(3)"])
    assert list(ef.table(results["all"]).estimates.columns) == ["(1)"]
    assert ef.table(results["all"])._repr_html_().startswith("<table")


def test_chosen_parameters_have_new_names(results: dict[str, ef.Calibration]) -> None:
    table = ef.table(results, names={"b2": "dose", "x_1": "age"})
    assert list(table.estimates.index) == ["dose", "age"]
    assert list(ef.table(results, names=["c"]).estimates.index) == ["c"]


def test_a_parameter_that_is_exactly_zero_has_no_standard_error() -> None:
    criterion = sparse()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    result = ef.calibrate(draws, criterion)
    assert result.inactive
    table = ef.table([result])
    zeros = table.estimates.loc[list(result.inactive), "(1)"]
    assert (zeros == 0).all()
    assert table.se.loc[list(result.inactive), "(1)"].isna().all()
    assert "(–)" in repr(table)


def test_what_is_no_result_is_refused(results: dict[str, ef.Calibration]) -> None:
    refused("results", "are empty", lambda: ef.table([]))
    refused("results", "has a int in '(1)'", lambda: ef.table([3]))
    refused("results", "has a str in 'a'", lambda: ef.table({"a": "b"}))
    refused("results", "has a int", lambda: ef.table(3))
    refused("names", "has 'gone'", lambda: ef.table(results, names=["gone"]))
    refused("names", "is 'b2'", lambda: ef.table(results, names="b2"))

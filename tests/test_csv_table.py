"""CSV files of the command line: read as written, or refused with the line that is wrong."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from conftest import refused
from etafree.cli import app
from etafree.cli.commands import column, select_file
from etafree.cli.csv_table import CsvTable
from etafree.errors import InputError


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "data.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, text: str | bytes) -> CsvTable:
    return CsvTable.read(written(folder, text), "data")


# --- against other readers ----------------------------------------------------------------------

CELLS = st.one_of(
    st.sampled_from(["", "01", "1", "1e3", "1000", "NA", "nan", "123456789012345678", " a ", '"']),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6),
)
TABLES = st.integers(1, 4).flatmap(
    lambda wide: st.tuples(
        st.lists(
            st.text("abcü,\n ", min_size=1, max_size=4), min_size=wide, max_size=wide, unique=True
        ).filter(lambda names: any(name.strip() for name in names)),
        st.lists(st.lists(CELLS, min_size=wide, max_size=wide), min_size=1, max_size=8),
    )
)
SETTINGS = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@given(TABLES, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.integers(0, 2))
@SETTINGS
def test_files_read_as_python_s_csv_module_and_arrow_read_them(
    tmp_path: Path,
    table: tuple[list[str], list[list[str]]],
    end: str,
    mark: bool,
    every: bool,
    blank: int,
) -> None:
    """Quoted commas, quotes and newlines, either line end, a byte-order mark, blank last lines."""
    header, rows = table
    text = io.StringIO()
    bare = any("\r" in cell for row in rows for cell in row)  # which Python 3.11 does not quote
    quoting = csv.QUOTE_ALL if every or bare else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator=end, quoting=quoting).writerows([header, *rows])
    content = ("\ufeff" if mark else "") + text.getvalue()
    path = written(tmp_path, content + end * blank)
    ours = CsvTable.read(path, "data")
    plain = list(csv.reader(io.StringIO(text.getvalue(), newline=""), strict=True))
    assert [list(ours.fields), *map(list, zip(*ours.fields.values(), strict=True))] == plain
    if any(len(row) == 1 and not row[0] for row in rows):
        return  # Arrow takes "" alone on a line for a blank line
    arrow = pa_csv.read_csv(
        io.BytesIO(path.read_bytes()),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
        ),
    )
    assert ours.fields == arrow.to_pydict()


@given(st.lists(st.text('ab",\n\r1 ', max_size=8), min_size=1, max_size=6))
@example(["a,b", "1,2,", ""])
@SETTINGS
def test_any_text_is_read_as_the_csv_module_reads_it_or_its_line_is_named(
    tmp_path: Path, lines: list[str]
) -> None:
    text = "\n".join(lines)
    try:
        ours = read(tmp_path, text)
    except InputError as error:
        told = str(error)
        assert any(word in told for word in ("line ", "no rows", "empty", "several columns"))
        return
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    plain = [row for row in reader if row and not (len(row) == 1 and len(ours.fields) > 1)]
    assert all(len(row) == len(ours.fields) for row in plain)
    assert [list(ours.fields), *map(list, zip(*ours.fields.values(), strict=True))] == plain


@given(st.integers(0, 7), st.integers(-2, 2).filter(bool))
@SETTINGS
def test_a_surplus_or_missing_field_is_refused_with_its_line(
    tmp_path: Path, wrong: int, more: int
) -> None:
    rows = [[f'"{k}\n{k}"', "2", "3"] for k in range(8)]  # two lines each
    rows[wrong] = rows[wrong] + [""] * more if more > 0 else rows[wrong][:more]
    text = "\n".join(",".join(row) for row in [["a", "b", "c"], *rows])
    told = f"line {2 + 2 * wrong} of {str(tmp_path / 'data.csv')!r} has {3 + more} fields for 3"
    refused("data", told, lambda: read(tmp_path, text))


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2,\n3,4,\n", "line 2"),
        ("a,b\n1,2\n3\n", "line 3"),
        ("a,b\n1,2\n\n3,4\n", "line 3"),
        ("\na,b\n1,2\n", "line 1"),
        ("a,b,a\n1,2,3\n", "several columns named ['a']"),
        ("a,,\n1,2,3\n", "several columns named ['']"),
        ('a,b\n1,"2\n', "line 2"),
        ('a,b\n1,"2"3\n', "line 2"),
        ("a,b\n", "no rows"),
        ("", "it is empty"),
        ("\n\n", "it is empty"),
        ("a,b\n1,é\n".encode("latin-1"), "not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "not UTF-8"),
    ],
)
def test_a_file_that_could_be_read_in_two_ways_is_refused(
    tmp_path: Path, text: str | bytes, told: str
) -> None:
    refused("data", told, lambda: read(tmp_path, text))


@pytest.mark.parametrize("field", ["abc", "1_000", "0x10", "inf", "1,5", "١", "1e999", "1 2"])
def test_a_number_that_is_none_is_refused_with_its_line(tmp_path: Path, field: str) -> None:
    table = read(tmp_path, f'y,x\n1,2\n2,"{field}"\n3,NA\n')
    refused("data", "on line 3", lambda: table.numbers("x"))
    refused("formula", "on line 3", lambda: table.frame("y ~ x"))


def test_an_empty_label_is_refused_with_its_line_unless_its_row_is_not_used(tmp_path: Path) -> None:
    path = written(tmp_path, "g,x\na,1\n,2\n  ,3\nb,4\n")
    told = "2 empty labels, the first on line 3"
    refused("clusters", told, lambda: column(f"{path}:g", "clusters"))
    table = CsvTable.read(path, "data")
    assert list(table.labels("g", "clusters", np.array([0, 3]))[[0, 3]]) == ["a", "b"]


# --- labels and numbers -------------------------------------------------------------------------

ALIKE = [
    "01",
    "1",
    "1e3",
    "1000",
    "1000.0",
    "123456789012345678",
    "123456789012345679",
    "NA",
    "nan",
    "None",
    "null",
    "True",
    "true",
    " a",
    "a",
]


def test_labels_that_a_reader_of_numbers_would_merge_stay_apart(tmp_path: Path) -> None:
    path = written(tmp_path, "g\n" + "\n".join(ALIKE) + "\n")
    for option in ("clusters", "strata", "units"):
        assert list(column(f"{path}:g", option)) == ALIKE


def test_times_are_numbers_and_whole_ones_are_exact(tmp_path: Path) -> None:
    path = written(tmp_path, "t,u,v\n100000000000000001,1.5,a\n100000000000000002,02,b\n")
    assert list(column(f"{path}:t", "time")) == [100000000000000001, 100000000000000002]
    assert list(column(f"{path}:u", "time")) == [1.5, 2.0]
    assert list(column(f"{path}:v", "time")) == ["a", "b"]


def test_categories_of_a_formula_are_labels_as_written(tmp_path: Path) -> None:
    table = read(tmp_path, "y,g,h\n1,10,NA\n2,02,b\n3,2,b\n4,10,\n")
    frame = table.frame("y ~ C(g) + h")
    assert list(frame["g"].cat.categories) == ["02", "2", "10"]
    assert list(frame["h"].cat.categories) == ["NA", "b"]
    assert frame["h"].isna().tolist() == [False, False, False, True]
    refused("formula", "'02' and '2' are one number", lambda: table.frame("y ~ g + C(g)"))
    assert table.frame("y ~ g")["g"].tolist() == [10, 2, 2, 10]


# --- the commands -------------------------------------------------------------------------------


def slopes(rng: np.random.Generator, n: int = 120) -> tuple[np.ndarray, np.ndarray, list[str]]:
    x = rng.standard_normal(n)
    return x, 2 * x + rng.standard_normal(n), [f"{k % 30:02d}" for k in range(n)]


def test_select_refuses_a_comma_at_the_end_of_data_lines(tmp_path: Path) -> None:
    x, y, g = slopes(np.random.default_rng(0))
    lines = [f"{a},{b},{c}," for a, b, c in zip(y, x, g, strict=True)]
    path = written(tmp_path, "y,x,g\n" + "\n".join(lines) + "\n")
    refused("data", "line 2", lambda: select_file(path, "y ~ x", "squared"))
    refused("clusters", "line 2", lambda: column(f"{path}:g", "clusters"))


def test_select_says_what_it_dropped_and_nothing_when_nothing_was(tmp_path: Path) -> None:
    x, y, g = slopes(np.random.default_rng(1))
    rows = [[f"{a}", f"{b}", c] for a, b, c in zip(y, x, g, strict=True)]

    def told() -> str:
        path = written(tmp_path, "\n".join(map(",".join, [["y", "x", "g"], *rows])))
        done = CliRunner().invoke(
            app, ["select", str(path), "--formula", "y ~ x", "--clusters", "g"]
        )
        assert done.exit_code == 0, done.exception
        return done.output

    assert "dropped" not in told()
    rows[3][1], rows[5][1], rows[7][0] = "", "NA", "nan"
    rows[3][2] = ""  # of a row that is not used
    assert "3 of 120 rows dropped (no y in 1, no x in 2), the first on line 5" in told()

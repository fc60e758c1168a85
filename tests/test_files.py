"""``etafree calibrate``: files in, files out, one line for every mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from arviz_base import from_dict
from typer.testing import CliRunner

import etafree as ef
from etafree.cli import app, main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear model with effects of 40 schools left out, sampled exactly, and its data."""
    rng = np.random.default_rng(3)
    where = tmp_path_factory.mktemp("a fit, ünï")
    school = np.repeat(np.arange(40), 10)
    X = np.column_stack([np.ones(400), rng.standard_normal(40)[school]])
    y = X @ [1.0, 0.5] + rng.standard_normal(40)[school] + rng.standard_normal(400)
    inverse = np.linalg.inv(X.T @ X)
    theta = rng.multivariate_normal(inverse @ X.T @ y, inverse, size=(4, 500))
    loss = 0.5 * (y - theta @ X.T) ** 2
    posterior = {"beta": theta, "extra": rng.standard_normal((4, 500))}
    fit = from_dict(
        {"posterior": posterior, "log_likelihood": {"y": -loss}},
        coords={"term": ["one", "x"]},
        dims={"beta": ["term"]},
    )
    fit.to_netcdf(where / "fit.nc", engine="h5netcdf")
    data = pd.DataFrame({"school": school, "name": [f"s{s}" for s in school], "x": X[:, 1], "y": y})
    data.to_csv(where / "data.csv")
    data.to_parquet(where / "data.parquet")
    data.to_feather(where / "data.feather")
    data.assign(name=data.name.astype("category")).to_parquet(where / "categories.pq")
    data.sample(frac=1.0, random_state=0).to_parquet(where / "shuffled.parquet")
    data.iloc[::-1].to_parquet(where / "reversed.parquet", index=False)
    data.assign(name=data.name.mask(data.index == 3)).to_parquet(where / "gap.parquet")
    return where


def run(*arguments: object, code: int = 0, command: str = "calibrate") -> str:
    done = CliRunner().invoke(app, [command, *map(str, arguments)])
    if code == 2:
        assert done.exception is not None
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


def test_files_in_and_files_out(folder: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "calibrated.nc", tmp_path / "page.html"
    told = run(
        folder / "fit.nc",
        "--clusters",
        f"{folder / 'data.csv'}:name",
        "--var",
        "be.*",
        "-o",
        out,
        "--report",
        page,
    )
    assert "beta[x]" in told
    assert "40 clusters, CR1" in told
    assert "reading" in told
    assert "extra" not in told
    tree = xr.open_datatree(out, engine="h5netcdf")
    wide, narrow = tree["posterior"]["beta"], tree["original_posterior"]["beta"]
    ratio = (wide.std(["chain", "draw"]) / narrow.std(["chain", "draw"])).values
    assert (ratio > 2).all()
    assert "<html" in page.read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"calibrated.nc", "page.html"}
    before = out.read_bytes()
    told = run(folder / "fit.nc", "-o", out, code=2)
    assert "--force" in told
    assert out.read_bytes() == before
    tree.close()
    run(folder / "fit.nc", "--var", "beta", "-o", out, "--force", "--quiet")
    assert out.read_bytes() != before


@pytest.mark.parametrize(
    "name", ["data.parquet", "data.feather", "categories.pq", "shuffled.parquet"]
)
def test_labels_of_parquet_and_arrow_files(folder: Path, name: str) -> None:
    """Those of a shuffled table that pandas wrote are lined up by its index, as in Python."""
    expected = run(folder / "fit.nc", "--var", "beta", "--clusters", f"{folder / 'data.csv'}:name")
    table = folder / name
    assert "clustered by name (40 clusters)" in expected
    assert run(folder / "fit.nc", "--var", "beta", "--clusters", f"{table}:name") == expected
    both = ("--clusters", f"{table}:name", "--clusters", f"{table}:school")
    assert "40 name x 40 school clusters" in run(folder / "fit.nc", "--var", "beta", *both)


def test_rows_of_a_file_without_an_index_stand_in_the_order_of_the_fit(folder: Path) -> None:
    """As lines of a CSV file do: reversed labels of equal clusters are the same clusters here."""
    asked = (folder / "fit.nc", "--var", "beta", "--clusters")
    expected = run(*asked, f"{folder / 'data.parquet'}:school")
    assert run(*asked, f"{folder / 'reversed.parquet'}:school") == expected


def test_damage_to_parquet_and_arrow_files_is_one_line(folder: Path, tmp_path: Path) -> None:
    """Some bytes overwritten, file after file: an answer or an error of ours, and nothing else."""
    from etafree.cli.commands import column

    rng = np.random.default_rng(8)
    for name in ("data.parquet", "data.feather", "shuffled.parquet"):
        whole, outcomes = (folder / name).read_bytes(), set[object]()
        for _ in range(60):
            spoiled = bytearray(whole)
            start = int(rng.integers(0, len(spoiled) - 8))
            spoiled[start : start + 8] = rng.bytes(8)
            (tmp_path / name).write_bytes(spoiled)
            try:
                outcomes.add(len(column(f"{tmp_path / name}:name", "clusters")))
            except ef.errors.InputError as error:
                outcomes.add(error.argument)
        assert outcomes == {400, "clusters"}, name


def test_lists_are_no_labels(tmp_path: Path, folder: Path) -> None:
    table = tmp_path / "lists.parquet"
    pd.DataFrame({"pupils": [[1]] * 400, "school": np.arange(400) // 10}).to_parquet(table)
    asked = (folder / "fit.nc", "--var", "beta", "--clusters")
    assert "40 clusters" in run(*asked, f"{table}:school")
    assert "neither numbers nor categories" in run(*asked, f"{table}:pupils", code=2)


def test_select_reads_the_same_tables(folder: Path) -> None:
    """The order of rows moves resampled clusters, but not the calibrated interval."""
    asked = ("--formula", "y ~ x", "--clusters", "name", "--loss", "squared")
    names = ("data.csv", "data.parquet", "shuffled.parquet")
    csv, parquet, shuffled = (run(folder / name, *asked, command="select") for name in names)
    assert parquet == csv
    limits = []
    for table in (csv, shuffled):
        row = next(line for line in table.splitlines() if line.startswith("calibrated"))
        limits.append([float(word) for word in row.split() if word[-1].isdigit()])
    assert len(limits[0]) == 4
    np.testing.assert_allclose(limits[1], limits[0], rtol=2e-3)


def test_draws_and_table_as_r_and_a_spreadsheet_read_them(folder: Path, tmp_path: Path) -> None:
    draws, table, out = tmp_path / "draws.csv", tmp_path / "table.csv", tmp_path / "out.nc"
    asked = ("--var", "beta", "--level", "0.9", "--csv", draws, "--summary", table, "-o", out)
    run(folder / "fit.nc", *asked)
    read = pd.read_csv(draws)
    assert list(read) == [".chain", ".iteration", ".draw", "beta[one]", "beta[x]"]
    tree = xr.open_datatree(out, engine="h5netcdf")
    calibrated = tree["posterior"]["beta"].values.reshape(-1, 2)
    np.testing.assert_allclose(read[["beta[one]", "beta[x]"]], calibrated, rtol=1e-12)
    assert read[[".chain", ".iteration", ".draw"]].iloc[[0, 500, -1]].to_numpy().tolist() == [
        [1, 1, 1],
        [2, 1, 501],
        [4, 500, 2000],
    ]
    summary = pd.read_csv(table, index_col="parameter")
    assert list(summary.index) == ["beta[one]", "beta[x]"]
    lower, upper = np.quantile(calibrated, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(summary["lower"], lower, rtol=1e-9)
    np.testing.assert_allclose(summary["upper"], upper, rtol=1e-9)
    assert np.isinf(summary["dof"]).all()
    tree.close()


def test_what_belongs_to_single_rows_is_copied_only_if_asked_for(
    folder: Path, tmp_path: Path
) -> None:
    out, whole = tmp_path / "out.nc", tmp_path / "whole.nc"
    told = run(folder / "fit.nc", "--var", "beta", "-o", out)
    assert f"left out of {out}, as it is in the fit: log_likelihood (6.4" in told
    told = run(folder / "fit.nc", "--var", "beta", "-o", whole, "--keep-all")
    assert "left out" not in told
    groups = []
    for path in (out, whole):
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            groups.append(set(tree.children))
    assert groups[1] - groups[0] == {"original_log_likelihood"}
    assert {"posterior", "original_posterior"} <= groups[0]
    assert out.stat().st_size < whole.stat().st_size / 20
    assert "goes with --out" in run(folder / "fit.nc", "--keep-all", code=2)


def test_checks_alone(folder: Path, tmp_path: Path) -> None:
    """The table of a fit and of the saved result is the same; the exit code is calibrate's."""
    labels = f"{folder / 'data.csv'}:name"
    asked = (folder / "fit.nc", "--var", "beta")
    told = run(*asked, "--clusters", labels, "--quiet", command="check")
    school = np.repeat(np.arange(40), 10)
    result = ef.calibrate(ef.from_arviz(folder / "fit.nc", var_names="beta"), clusters=school)
    result.save(tmp_path / "result.npz")
    assert run(tmp_path / "result.npz", command="check") == told
    lines = told.splitlines()
    assert [line.split()[0] for line in lines[2:-2]] == ["verdict"] + ["ok"] * 8
    for check in result.checks:
        assert f"{check.name} " in told
    assert lines[-1] == "8 checks: 8 ok"
    saved = tmp_path / "written.npz"  # by the shell too
    run(*asked, "--clusters", labels, "-o", saved, "--quiet")
    assert run(saved, command="check") == told
    assert ef.Calibration.load(saved).names == result.names
    saved.unlink()
    table = run(*asked, "-o", tmp_path / "draws.csv", code=2)
    assert "tables go with --csv" in table
    told = run(*asked, "--eta", "16", code=3, command="check")
    assert "1 fail" in told
    assert "was eta about" in told
    told = run(tmp_path / "result.npz", "--eta", "2", code=2, command="check")
    assert "pass the saved result alone" in told
    assert "no file" in run(tmp_path / "gone.npz", code=2, command="check")
    assert {p.name for p in tmp_path.iterdir()} == {"result.npz"}


def test_tempered_fits_and_levels(folder: Path) -> None:
    told = run(
        folder / "fit.nc", "--var", "beta", "--eta", "0.5", "--level", "0.9", "--correction", "HC0"
    )
    assert "eta = 0.5" in told
    assert "HC0" in told


def test_a_diagnostic_that_fails_is_exit_code_3_and_the_files_are_there(
    folder: Path, tmp_path: Path
) -> None:
    """The fit's eta is 1; told 16, its log-likelihood does not fit the draws."""
    out = tmp_path / "out.nc"
    told = run(folder / "fit.nc", "--var", "beta", "--eta", "16", "-o", out, code=3)
    assert "draws against log-likelihood" in told
    assert out.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing.nc"], "no such file"),
        (["fit.nc", "--clusters", "data.parquet:pupil"], "no column 'pupil'"),
        (["fit.nc", "--clusters", "gone.feather:pupil"], "no file"),
        (["fit.nc", "--clusters", "gap.parquet:name"], "1 empty labels, the first in row 3"),
        (["fit.nc", "--clusters", "cut.parquet:name"], "cannot be read"),
        (["fit.nc", "--clusters", "csv.parquet:name"], "cannot be read"),
        (
            ["fit.nc", "--clusters", "data.csv:name", "--csv", "data.csv", "--force"],
            "one file twice",
        ),
        (["fit.nc", "--csv", "a.csv", "--summary", "a.csv"], "one file twice"),
        (["fit.nc", "--csv", "data.csv"], "exists"),
        (["data.csv"], "csv"),
        (["fit.nc", "--clusters", "data.csv:pupil"], "no column 'pupil'"),
        (["fit.nc", "--clusters", "gone.csv:pupil"], "no file"),
        (["fit.nc", "--clusters", "school"], "school"),
        (["fit.nc", "--clusters", "short.csv:school"], "400"),
        (["fit.nc", "--var", "gamma"], "matches no variable"),
        (["fit.nc", "--var", "("], "regular expression"),
        (["fit.nc", "--level", "95"], "level"),
        (["fit.nc", "--eta", "-1"], "eta"),
        (["fit.nc", "--correction", "CR3"], "CR3"),
        (["fit.nc", "-o", "no/where/out.nc"], "does not exist"),
        (["fit.nc", "--report", "."], "folder"),
        (["fit.nc", "-o", "x.nc", "--report", "./x.nc"], "one file twice"),
        (["fit.nc", "-o", "fit.nc", "--force"], "one file twice"),
        (["empty.nc"], "cannot be read"),
        (["truncated.nc"], "cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    folder: Path, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("fit.nc", "data.csv", "data.parquet", "gap.parquet"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "short.csv").write_text("school\n1\n2\n")
    (tmp_path / "csv.parquet").write_bytes((folder / "data.csv").read_bytes())
    (tmp_path / "cut.parquet").write_bytes((folder / "data.parquet").read_bytes()[:-50])
    (tmp_path / "empty.nc").write_bytes(b"")
    (tmp_path / "truncated.nc").write_bytes((folder / "fit.nc").read_bytes()[:3000])
    monkeypatch.chdir(tmp_path)
    here = {p.name for p in tmp_path.iterdir()}
    if "-o" not in arguments:
        arguments = [*arguments, "-o", "out.nc"]
    assert told.lower() in run(*arguments, code=2).lower()
    assert {p.name for p in tmp_path.iterdir()} == here


def test_the_library_s_errors_are_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["etafree", "calibrate", "nothing.nc"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("etafree: ")

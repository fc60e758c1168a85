"""``etafree calibrate``: files in, files out, one line for every mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from arviz_base import from_dict
from typer.testing import CliRunner

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
    pd.DataFrame({"school": school, "name": [f"s{s}" for s in school]}).to_csv(where / "data.csv")
    return where


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
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
    for name in ("fit.nc", "data.csv"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "short.csv").write_text("school\n1\n2\n")
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

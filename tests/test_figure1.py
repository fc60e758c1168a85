"""The paper's experiment end to end, small: curves, files, command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from etafree.errors import InputError
from etafree.paper.figure1 import ETAS, deviations, published_curves, run_figure1
from etafree.paper.random_intercept import Design


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from etafree.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("figure1")
    return run_figure1(folder, datasets=60, seed=1, workers=1, progress=False)


def curve(table: pd.DataFrame, posterior: str, meat: str, method: str) -> pd.DataFrame:
    chosen = (
        (table["posterior"] == posterior) & (table["meat"] == meat) & (table["method"] == method)
    )
    return table[chosen].sort_values("eta")


def test_the_published_curves_are_reproduced(table: pd.DataFrame) -> None:
    """12 curves of 20 points within 4 Monte Carlo standard errors, |z| below 1.5 on average."""
    z = deviations(table)
    assert z.shape == (60, 4)
    assert z.abs().to_numpy().max() < 4
    assert z.abs().to_numpy().mean() < 1.5


def test_other_posteriors_and_meats_do_not_reproduce_them(table: pd.DataFrame) -> None:
    for posterior, meat in (
        ("huber", "printed"),
        ("appendix", "printed"),
        ("published", "default"),
    ):
        assert deviations(table, posterior, meat).abs().to_numpy().max() > 6


def test_the_default_is_invariant_unbiased_and_shorter(table: pd.DataFrame) -> None:
    made = curve(table, "huber", "default", "calibrated")
    assert np.ptp(made["width"]) / made["width"].mean() < 0.02
    assert made["width"].max() < 0.68 * 0.2968
    assert np.all(np.abs(made["bias"]) < 0.02)
    assert np.all(made["coverage"] > 0.85)
    before = curve(table, "huber", "default", "uncalibrated")
    assert before["width"].max() / before["width"].min() > 50


def test_centred_scores_shorten_intervals_by_a_third(table: pd.DataFrame) -> None:
    default = curve(table, "huber", "default", "frequentist")["width"].iloc[0]
    printed = curve(table, "huber", "printed", "frequentist")["width"].iloc[0]
    assert 0.6 < default / printed < 0.72


def test_the_table_has_a_row_for_everything(table: pd.DataFrame) -> None:
    assert len(table) == 3 * 2 * 3 * 20
    assert set(table["replicates"]) == {60}
    columns = {"coverage", "width", "bias", "bias_sd", "replicates", "coverage_se"}
    assert columns <= set(table.columns)
    assert len(published_curves()) == 60
    np.testing.assert_allclose(sorted(set(published_curves()["eta"])), ETAS, rtol=1e-12)


def test_calibrated_limits_are_those_of_the_library() -> None:
    """The study's scalar map against `calibrate` on the same draws."""
    from etafree.paper.figure1 import _calibrated

    model = Design().model(np.random.default_rng(3))
    draws = model.sample(0.3, draws=500, seed=1)
    made = model.calibrate(draws, seed=np.random.default_rng(7))
    variance = made.target.covariance[0]
    rows = _calibrated(draws.array.T, made.target, variance, np.random.default_rng(7))
    estimate, low, high = rows[0]
    assert estimate == made.center[0]
    np.testing.assert_allclose([low, high], made.interval().to_numpy()[0], rtol=1e-9)


def test_the_command_writes_every_file_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "with space é"
    first = command("figure1", "--out", str(out), "--datasets", "10", "--workers", "1")
    assert first.returncode == 0, first.stderr
    names = {"figure1.csv", "figure1.png", "figure1.svg", "report.html"}
    assert names <= {p.name for p in out.iterdir()}
    assert "published curves: largest deviation" in first.stdout
    page = (out / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "Three posteriors" in page
    before = (out / "figure1.csv").read_bytes()
    again = command("figure1", "--out", str(out), "--datasets", "10", "--workers", "1")
    assert again.returncode == 0
    assert (out / "figure1.csv").read_bytes() == before
    other = command("figure1", "--out", str(out), "--datasets", "10", "--seed", "5")
    assert other.returncode == 2
    assert other.stderr.count("\n") == 1
    assert "seed" in other.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--datasets", "1"],
        ["--iterations", "100", "--burn-in", "100"],
        ["--scheduler", "tcp://127.0.0.1:1"],
    ],
)
def test_bad_arguments_get_one_line_and_leave_nothing(tmp_path: Path, arguments: list[str]) -> None:
    out = tmp_path / "out"
    done = command("figure1", "--out", str(out), *arguments)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert lines[-1].startswith("etafree: ")
    assert not (out / "figure1.csv").exists()


def test_version_and_help() -> None:
    assert command("--version").stdout.strip() == ef.__version__
    assert "figure1" in command("--help").stdout
    assert "Example" in command("figure1", "--help").stdout


def test_settings_are_checked_in_python_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="burn-in"):
        run_figure1(tmp_path / "x", iterations=10, burn_in=10)
    assert not (tmp_path / "x").exists()

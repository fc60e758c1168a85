"""The study of coverage under dependence, in small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from conftest import refused
from etafree.cli import app
from etafree.optimize import minimise
from etafree.studies.coverage import BAND, ETAS, METHODS, run_coverage
from etafree.studies.scenarios import SCENARIOS, SLOW, simulate

RECORDED = Path(__file__).parents[1] / "docs" / "coverage-2000.csv"


QUICK = [name for name in SCENARIOS if name not in SLOW]


@pytest.mark.parametrize("name", SCENARIOS)
def test_estimates_are_centred_at_the_truth(name: str) -> None:
    """The mean estimate is within four standard errors of the scenario's truth, where it is not 0.

    A hundred data sets, or twenty where one takes long.
    """
    many = 100 if name in QUICK else 20
    problems = [simulate(name, np.random.default_rng(seed)) for seed in range(many)]
    off = np.array([minimise(p.criterion).theta - p.truth for p in problems])
    off = off[:, problems[0].truth != 0]
    z = off.mean(axis=0) / (off.std(axis=0, ddof=1) / np.sqrt(many))
    assert np.abs(z).max() < 4.5


def test_the_study_resumes_and_covers(tmp_path: Path) -> None:
    options = {"replicates": 30, "only": "two ways", "progress": False}
    first = run_coverage(tmp_path / "a", workers=1, **options)
    again = run_coverage(tmp_path / "a", workers=2, **options)
    pd.testing.assert_frame_equal(first, again)
    assert set(first["method"]) == {
        *METHODS, "location-scale, Wald", "frequentist", "by row only, CR3", "by column only, CR3"
    }  # fmt: skip
    moving = first[first["method"].isin(METHODS)]
    assert sorted(moving["eta"].unique()) == list(ETAS)
    calibrated = first[first["method"] == "location-scale, draws"]
    assert calibrated["coverage"].min() > 0.7
    width = calibrated.groupby("parameter")["width"]
    assert (width.max() / width.min() < 1.1).all()
    plain = first[first["method"] == "uncalibrated"].groupby("eta")["width"].mean()
    assert plain.iloc[0] > 50 * plain.iloc[-1]
    refused("replicates", "at least 2", lambda: run_coverage(tmp_path / "b", replicates=1))
    refused("only", "scenarios are", lambda: run_coverage(tmp_path / "b", only="nothing"))
    assert not (tmp_path / "b").exists()


def test_the_command_writes_table_picture_and_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app,
        [
            "coverage",
            "--out",
            str(out),
            "--replicates",
            "4",
            "--only",
            "two ways",
            "--workers",
            "1",
        ],
    )
    assert done.exit_code == 0, done.output
    assert {"coverage.csv", "coverage.png", "report.html"} <= {p.name for p in out.iterdir()}
    assert len(pd.read_csv(out / "coverage.csv")) == 2 * (3 * 5 + 4)
    assert "location-scale, draws" in done.output


def test_the_recorded_coverage_under_dependence_is_nominal_or_flagged() -> None:
    table = pd.read_csv(RECORDED)
    assert set(table["scenario"]) <= set(SCENARIOS)
    assert set(table["replicates"]) == {2000}
    default = table[table["default"]]
    off = default[~default["coverage"].between(*BAND)]
    assert (off["flagged"] > 0.5).all(), off
    assert (default["coverage"] > 0.85).all()

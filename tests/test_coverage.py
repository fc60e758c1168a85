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
from etafree.studies.coverage import BAND, run_coverage
from etafree.studies.scenarios import SCENARIOS, simulate

RECORDED = Path(__file__).parents[1] / "docs" / "coverage-2000.csv"


@pytest.mark.parametrize("name", SCENARIOS)
def test_estimates_are_centred_at_the_truth(name: str) -> None:
    """The mean estimate of 200 data sets is within four standard errors of the scenario's truth."""
    problems = [simulate(name, np.random.default_rng(seed)) for seed in range(200)]
    off = np.array([minimise(p.criterion).theta - p.truth for p in problems])
    z = off.mean(axis=0) / (off.std(axis=0, ddof=1) / np.sqrt(len(off)))
    assert np.abs(z).max() < 4


def test_the_study_resumes_and_covers(tmp_path: Path) -> None:
    first = run_coverage(tmp_path / "a", replicates=60, only="two ways", workers=1, progress=False)
    again = run_coverage(tmp_path / "a", replicates=60, only="two ways", workers=2, progress=False)
    pd.testing.assert_frame_equal(first, again)
    assert list(first["method"].unique()) == [
        "CR1S, draws", "CR1S, Wald", "by row only, CR3", "by column only, CR3"
    ]  # fmt: skip
    default = first[first["default"]]
    assert default["coverage"].min() > 0.8
    columns = first[first["method"] == "by column only, CR3"]
    assert columns["coverage"].max() < default["coverage"].min()
    refused("replicates", "at least 2", lambda: run_coverage(tmp_path / "b", replicates=1))
    refused("only", "scenarios are", lambda: run_coverage(tmp_path / "b", only="nothing"))
    assert not (tmp_path / "b").exists()


def test_the_command_writes_table_and_picture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["coverage", "--out", str(out), "--replicates", "4", "--only", "paper, G = 10",
              "--workers", "1"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert {"coverage.csv", "coverage.png"} <= {p.name for p in out.iterdir()}
    assert "default coverages are outside" in done.output


def test_the_recorded_coverage_is_nominal_or_flagged() -> None:
    table = pd.read_csv(RECORDED)
    assert set(table["scenario"]) == set(SCENARIOS)
    assert set(table["replicates"]) == {2000}
    default = table[table["default"]]
    off = default[~default["coverage"].between(*BAND)]
    assert (off["flagged"] > 0.5).all(), off
    assert (default["coverage"] > 0.85).all()

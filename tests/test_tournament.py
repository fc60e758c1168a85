"""The tournament of reference laws: its designs, its laws, and the page that records it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import etafree as ef
from conftest import refused
from studies.__main__ import app as studies_app
from studies.scenarios import simulate
from studies.tournament import DESIGNS, LAWS, limits, run_tournament, standings

DOCS = Path(__file__).parents[1] / "docs"
RECORDED = DOCS / "tournament-2000.csv"


@pytest.mark.parametrize("name", ["5 of 100 rows treated", "Poisson, 25 clusters"])
def test_laws_are_those_of_a_result(name: str) -> None:
    problem = simulate(name, np.random.default_rng(3))
    table = dict(zip(LAWS, limits(problem, np.random.default_rng(0)), strict=True))
    draws = np.random.default_rng(1).standard_normal((200, problem.criterion.p))
    result = ef.calibrate(draws, problem.criterion, **problem.options)
    known = result.corrections(draws=99)
    kind = "CR" if problem.options else "HC"
    pairs = {
        LAWS[0]: "CR3, t(G - 1)" if kind == "CR" else "HC3, normal",
        "3, t(nu) / sqrt(kappa)": f"{kind}3",
        "2, t(nu)": f"{kind}2",
    }
    for law, correction in pairs.items():
        own = known.xs(correction, level="correction")[["lower", "upper"]].to_numpy().T
        np.testing.assert_allclose(table[law], own, rtol=1e-6)
    bootstrap = result.bootstrap_t(draws=999, seed=0, wider=False).to_numpy().T
    np.testing.assert_allclose(table["bootstrap-t"], bootstrap)
    wider = result.bootstrap_t(draws=999, seed=0).to_numpy().T
    np.testing.assert_allclose(table["wider of bootstrap-t and t(nu) / sqrt(kappa)"], wider)


def test_it_runs_from_the_command_line_and_resumes(tmp_path: Path) -> None:
    call = ["tournament", "--out", str(tmp_path / "t"), "--quick", "--only", "normal mean, n = 50"]
    first = CliRunner().invoke(studies_app, [*call, "--workers", "1"])
    assert first.exit_code == 0, first.output
    assert {f.name for f in (tmp_path / "t").iterdir()} >= {"tournament.csv", "tournament.png"}
    table = pd.read_csv(tmp_path / "t" / "tournament.csv")
    again = run_tournament(
        tmp_path / "t", quick=True, only="normal mean, n = 50", workers=1, progress=False
    )
    np.testing.assert_allclose(again["coverage"], table["coverage"], rtol=1e-5)
    assert list(standings(table).index) == list(LAWS)
    refused("only", "designs are", lambda: run_tournament(tmp_path / "u", only="none"))


def test_the_page_shows_the_recorded_table() -> None:
    table = pd.read_csv(RECORDED)
    assert set(table["design"]) == set(DESIGNS)
    assert (table.groupby("design")["replicates"].max() >= 1990).all()
    page = (DOCS / "tournament.md").read_text()
    for law, row in standings(table).iterrows():
        cells = f"| {law} | {row['lowest']:.3f} | {row['in']} | {row['highest']:.3f} |"
        assert cells in page, cells
    worst = table.groupby(["design", "law"], sort=False)["coverage"].min().unstack()
    for design, row in worst.iterrows():
        cells = " | ".join(f"{row[law]:.3f}" for law in LAWS)
        assert f"| {design} | {cells} |" in page, design

"""The study of coverage under dependence, in small."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from conftest import refused
from etafree.optimize import minimise
from studies import families
from studies.__main__ import app as studies_app
from studies.coverage import ETAS, METHODS, replicates_of, run_coverage
from studies.coverage_page import league_markdown, rivals_markdown
from studies.scenarios import SCENARIOS, SLOW, simulate
from studies.small_samples import AWKWARD, SMALL

RECORDED = Path(__file__).parents[1] / "docs" / "coverage-2000.csv"


QUICK = [name for name in SCENARIOS if name not in SLOW]


@pytest.mark.parametrize("name", SCENARIOS)
def test_estimates_are_centred_at_the_truth(name: str) -> None:
    """The mean estimate is near the scenario's truth, where that is not 0 by symmetry.

    A hundred data sets, or twenty where one takes long. Nonlinear losses have a bias of one over n.
    """
    many = 100 if name in QUICK else 20
    problems = [simulate(name, np.random.default_rng(seed)) for seed in range(many)]
    off = np.array([minimise(p.criterion).theta - p.truth for p in problems])
    off = off[:, problems[0].truth != 0]
    spread = off.std(axis=0, ddof=1)
    room = 0.15 if name in {**SMALL, **AWKWARD} else 0.0
    assert np.all(np.abs(off.mean(axis=0)) < (4.5 / np.sqrt(many) + room) * spread)


def test_truths_by_quadrature_are_known_to_a_fiftieth_of_a_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice the nodes and four times the quantiles move them by less; others are closed forms."""
    width = pd.read_csv(RECORDED).query("method == 'location-scale, Wald'")
    width = width.set_index(["scenario", "parameter"])["width"]
    cases = {
        "quantile 0.3, smoothed": lambda: families._truth("quantile"),
        "Student-t, skewed errors": lambda: families._truth("student"),
        "modal, skewed errors": lambda: families._truth("modal"),
        "logistic, omitted clusters": families._marginal_logistic,
    }
    coarse = {name: truth() for name, truth in cases.items()}
    nodes, middles = families._normal_nodes, families._middles
    monkeypatch.setattr(families, "_normal_nodes", lambda count: nodes(2 * count + 1))
    monkeypatch.setattr(families, "_middles", lambda count=2000: middles(4 * count))
    for known in (families._truth, families._skewed_quantiles, families._marginal_logistic):
        known.cache_clear()
    try:
        for name, truth in cases.items():
            off = np.abs(truth() - coarse[name]) / width[name].to_numpy()
            assert off.max() < 0.02, (name, off)
    finally:
        for known in (families._truth, families._skewed_quantiles, families._marginal_logistic):
            known.cache_clear()


def test_the_study_resumes_and_covers(tmp_path: Path) -> None:
    options = {"replicates": 30, "only": "two ways, 10 x 30", "progress": False}
    first = run_coverage(tmp_path / "a", workers=1, **options)
    again = run_coverage(tmp_path / "a", workers=2, **options)
    pd.testing.assert_frame_equal(first, again)
    assert set(first["method"]) == {
        *METHODS,
        "location-scale, Wald",
        "frequentist",
        "by row only, CR3",
        "by column only, CR3",
    }
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
        studies_app,
        [
            "coverage",
            "--out",
            str(out),
            "--replicates",
            "4",
            "--only",
            "two ways, 10 x 30",
            "--workers",
            "1",
        ],
    )
    assert done.exit_code == 0, done.output
    assert {"coverage.csv", "coverage.png", "report.html"} <= {p.name for p in out.iterdir()}
    assert len(pd.read_csv(out / "coverage.csv")) == 2 * (3 * 5 + 4)
    assert "location-scale, draws" in done.output


def test_the_recorded_table_keeps_its_promise() -> None:
    """Cells that pass their diagnostics cover at every eta and are equally wide; others say why.

    A cell is one coefficient at one learning rate; it passes if most data sets raise no warning.
    """
    table = pd.read_csv(RECORDED)
    assert list(dict.fromkeys(table["scenario"])) == list(SCENARIOS)
    draws = table[table["method"] == "location-scale, draws"]
    for name, part in draws.groupby("scenario"):
        assert set(part["eta"]) >= set(ETAS[1:])  # at the smallest some posteriors have no mode
        assert part["replicates"].max() == replicates_of(name, 2000)
    calibrated = table[table["method"].isin(["location-scale, draws", "location-scale, Wald"])]
    passing = calibrated["flagged"] <= 0.5
    short = calibrated["coverage"] < 0.93 - 2 * calibrated["coverage_se"]
    assert not (short & passing).any(), calibrated[short & passing]
    assert (calibrated.loc[~passing, "check"].str.len() > 0).all()
    near = calibrated.loc[passing, "coverage"].between(0.93, 0.97)
    assert near.mean() > 0.9
    assert (calibrated.loc[passing, "coverage"] < 0.99).all()
    assert passing.mean() > 0.8
    width = draws[draws["flagged"] <= 0.5].groupby(["scenario", "parameter"])["width"]
    assert (width.max() / width.min() - 1).max() < 0.06
    plain = table[table["method"] == "uncalibrated"].groupby("scenario")["coverage"]
    assert (plain.min() < 0.6).all()


def test_the_page_shows_the_recorded_tables() -> None:
    table, page = pd.read_csv(RECORDED), (RECORDED.parent / "coverage.md").read_text()
    for text in (league_markdown(table), rivals_markdown(table)):
        for line in text.splitlines():
            assert line in page, line


def test_a_scenario_that_ran_anew_is_recorded_with_the_others(tmp_path: Path) -> None:
    for name in ("coverage-2000.csv", "coverage.md"):
        shutil.copy(RECORDED.parent / name, tmp_path)
    before = pd.read_csv(RECORDED)
    anew = before[before["scenario"] == "paper, G = 20"].assign(coverage=0.5)
    (tmp_path / "run").mkdir()
    anew.to_csv(tmp_path / "run" / "coverage.csv", index=False)
    command = ["record", str(tmp_path / "run"), "--docs", str(tmp_path)]
    done = CliRunner().invoke(studies_app, command)
    assert done.exit_code == 0, done.output
    after, page = pd.read_csv(tmp_path / RECORDED.name), (tmp_path / "coverage.md").read_text()
    changed = after["scenario"] == "paper, G = 20"
    assert (after.loc[changed, "coverage"] == 0.5).all()
    assert "| paper, G = 20 | 0.500 |" in page
    pd.testing.assert_frame_equal(after[~changed], before[~changed])
    assert (tmp_path / "coverage.png").stat().st_size > 10_000
    own = (RECORDED.parent / "coverage.md").read_text().splitlines()
    moved = [line for line in page.splitlines() if line not in own]
    assert moved
    assert all(line.startswith("| paper, G = 20") for line in moved)


def test_the_landing_page_has_the_records_numbers() -> None:
    record = pd.read_csv(RECORDED)
    ours = record[record["method"].str.startswith("location-scale")]
    quiet = ours.groupby("scenario")["flagged"].max() <= 0.5
    raw = record.query("method == 'uncalibrated'")["coverage"]
    shown = ours[ours["scenario"].isin(quiet[quiet].index)]["coverage"]
    text = " ".join((RECORDED.parent / "index.md").read_text().split())
    for part in (
        f"In [{record['scenario'].nunique()} simulated scenarios](coverage.md)",
        f"covered {raw.min():.0%} to {raw.max():.0%} before".replace("%", " %"),
        f"and {shown.min():.0%} to {shown.max():.0%} after it in the {quiet.sum()} where".replace(
            "%", " %"
        ),
    ):
        assert part in text

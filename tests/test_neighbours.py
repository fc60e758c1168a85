"""Numbers of other packages, recomputed; and the page that shows them.

What R wrote is in tests/r, what other Python packages wrote in tests/python, each file beside its
script. Nothing of them is needed here.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import etafree as ef

pytest.importorskip("jax")
pytest.importorskip("numpyro")
pytest.importorskip("linearmodels")
from studies import multilevel, neighbours
from studies.__main__ import app as studies_app

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "comparison.md").read_text()
RECORDED = DOCS / "multilevel-400.csv"


@pytest.fixture(scope="module")
def rows() -> list[neighbours.Comparison]:
    return neighbours.comparisons()


def test_numbers_of_other_packages_are_ours(rows: list[neighbours.Comparison]) -> None:
    for one in rows:
        assert len(one.theirs) == len(one.ours)
        assert one.difference < one.room, (one.package, one.what, one.difference)
    names = {one.package.split()[0] for one in rows}
    assert names >= {"IJSE", "csSampling", "survey", "glmmTMB", "clubSandwich", "chandwich"}
    club = {one.what.split(",")[0] for one in rows if one.package.startswith("clubSandwich")}
    assert len(club) == 4


def test_the_page_shows_these_numbers(rows: list[neighbours.Comparison]) -> None:
    for line in neighbours.neighbours_markdown(rows).splitlines():
        assert line in PAGE, line
    (survey,) = (one for one in rows if one.package.startswith("csSampling"))
    ratios = survey.theirs / survey.ours
    assert f"{ratios.min():.2f} to {ratios.max():.2f}" in PAGE


def test_scripts_stand_beside_what_they_wrote(rows: list[neighbours.Comparison]) -> None:
    root = DOCS.parent
    for one in rows:
        if one.source.startswith("tests/"):
            script = root / one.source
            package, version = one.package.split()
            assert package.lower() in script.read_text().lower()
            assert version in script.read_text()
            assert script.with_suffix(".csv").exists()


def test_csampling_moves_its_posterior_as_the_map_does() -> None:
    """The same posterior, its mean kept, by other errors: 100 bootstrap replicates of weights."""
    table = pd.read_csv(neighbours.TESTS / "r" / "cssampling.csv")
    criterion, design = neighbours.weighted_gaussian()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), draws=4000, seed=1)
    result = ef.calibrate(draws, criterion, dependence=design, correction="survey")
    ratio = table["posterior_sd"] / result.summary()["sd_before"].to_numpy()[:4]
    assert np.abs(ratio - 1).max() < 0.12  # four errors of the deviation of 1,000 draws
    np.testing.assert_allclose(table["posterior_mean"], table["adjusted_mean"], rtol=1e-11)
    np.testing.assert_allclose(result.center[:4], table["svyglm"], rtol=1e-9)
    np.testing.assert_allclose(result.target.se[:4], table["svyglm_se"], rtol=1e-9)


# --- the jackknife of draws -------------------------------------------------------------------


def posterior(penalty: float, seed: int = 0) -> tuple[ef.Draws, np.ndarray, np.ndarray]:
    """Draws of a normal posterior, its log-likelihood by row, and clusters of 2 or 12 rows."""
    rng = np.random.default_rng(seed)
    sizes = np.tile([2, 12], 30)
    clusters = np.repeat(np.arange(60), sizes)
    X = np.column_stack([np.ones(len(clusters)), rng.standard_normal(len(clusters))])
    y = X @ [10.0, 1.0] + rng.standard_normal(60)[clusters] + rng.standard_normal(len(clusters))
    precision = X.T @ X + penalty * np.eye(2)
    spread = np.linalg.inv(precision)
    theta = rng.multivariate_normal(spread @ X.T @ y, spread, 4000)
    return ef.Draws.of(theta, ["a", "b"], 1.0), -0.5 * (y - theta @ X.T) ** 2, clusters


def test_the_jackknife_of_ijse_is_ours_before_noise_and_centring() -> None:
    """Balanced clusters make the two ways to centre one; without a prior they hardly differ."""
    draws, stored, clusters = posterior(0.0)
    sums = stored @ np.eye(60)[clusters]
    theirs = multilevel.conditional_jackknife(draws.array, sums)
    own = neighbours.jackknife_before_noise(draws, stored, clusters)
    np.testing.assert_allclose(own, theirs, rtol=0.02)
    balanced = np.arange(420) // 7
    theirs = multilevel.conditional_jackknife(draws.array, stored @ np.eye(60)[balanced])
    own = neighbours.jackknife_before_noise(draws, stored, balanced)
    np.testing.assert_allclose(own, theirs, rtol=1e-10)


def test_under_a_strong_prior_sums_are_centred_by_their_share() -> None:
    """Sums of a cluster have a mean in proportion to its rows, which is no variation."""
    draws, stored, clusters = posterior(420.0)
    sums = stored @ np.eye(60)[clusters]
    theirs = multilevel.conditional_jackknife(draws.array, sums)
    own = neighbours.jackknife_before_noise(draws, stored, clusters)
    refits = np.array([posterior(420.0, seed)[0].mean for seed in range(200)])
    true = refits.std(axis=0, ddof=1)
    assert theirs[0] > 2 * true[0]  # three times
    assert abs(own[0] / true[0] - 1) < 0.3


# --- multilevel fits --------------------------------------------------------------------------


def test_the_page_shows_the_recorded_study() -> None:
    table = pd.read_csv(RECORDED)
    assert multilevel.multilevel_markdown(table) in PAGE
    assert (table["replicates"] == 400).all()


def test_conditional_sums_understate_by_the_factor_and_marginal_ones_do_not() -> None:
    table = pd.read_csv(RECORDED)
    level = table[table["parameter"] == "mu"]
    by = {name: rows.reset_index() for name, rows in level.groupby("method")}
    bare = by["conditional, no noise"]
    factor = 1 / (1 + bare["m"] * bare["tau2"])
    assert (np.abs(bare["ratio"] - factor) < 4 * bare["ratio_se"]).all()
    assert (by["conditional sums"]["coverage"] < 0.75).all()
    own = table[table["method"] == "marginal likelihood"]
    assert (np.abs(own["ratio"] - 1) < 4 * own["ratio_se"] + 0.02).all()
    assert (np.abs(own["coverage"] - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400)).all()


def test_one_data_set_has_the_factor_exactly() -> None:
    """Covariances of mu with sums by the closed form of the posterior's moments."""
    rng = np.random.default_rng(3)
    G, m, tau2 = 12, 6, 0.7
    y = rng.standard_normal((G, m)) + np.sqrt(tau2) * rng.standard_normal((G, 1))
    mean, grand = y.mean(axis=1), y.mean()
    shrink = m * tau2 / (1 + m * tau2)
    spread = (tau2 + 1 / m) / G
    level = shrink * mean + (1 - shrink) * grand  # posterior mean of mu + u
    conditional = m * (mean - level) * (1 - shrink) * spread
    np.testing.assert_allclose(conditional, (mean - grand) / G / (1 + m * tau2), rtol=1e-12)
    marginal = m / (1 + m * tau2) * (mean - grand) * spread
    np.testing.assert_allclose(marginal, (mean - grand) / G, rtol=1e-12)


def test_the_study_runs_from_the_command_line_and_resumes(tmp_path: Path) -> None:
    call = ["multilevel", "--out", str(tmp_path / "m"), "--replicates", "2", "--workers", "1"]
    first = CliRunner().invoke(studies_app, call)
    assert first.exit_code == 0, first.output
    assert "| 25 | 1 | mu | 0.038 |" in first.output
    again = CliRunner().invoke(studies_app, call)
    assert re.findall(r"^\|.*", again.output, flags=re.M) == re.findall(
        r"^\|.*", first.output, flags=re.M
    )

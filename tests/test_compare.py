"""The comparison of learning-rate methods and ``etafree select``, in small."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from conftest import refused
from etafree.cli import app
from etafree.cli.commands import select_file
from etafree.learning_rates import METHODS
from etafree.optimize import minimise
from studies.__main__ import app as studies_app
from studies.compare import WAYS, pace, run_compare
from studies.compare_page import overview_markdown, record
from studies.designs import DESIGNS

RECORDED = Path(__file__).parents[1] / "docs" / "compare-500.csv"
#: Ways that choose one learning rate for all coefficients.
SCALAR = [way for way in WAYS if way.split()[0] in METHODS or way == "eta = 1"]


@pytest.mark.parametrize("name", DESIGNS)
def test_estimates_are_centred_at_the_truth(name: str) -> None:
    function, arguments = DESIGNS[name]
    made = [function(np.random.default_rng(seed), **arguments) for seed in range(60)]
    off = np.array([minimise(data.criterion).theta - data.truth for data in made])
    z = off.mean(axis=0) / (off.std(axis=0, ddof=1) / np.sqrt(len(off)))
    assert np.abs(z).max() < 4
    assert type(made[0].reference.loss) is not type(made[0].criterion.loss)


def test_the_study_resumes_and_ranks_honestly(tmp_path: Path) -> None:
    """Sixteen data sets of variance 4: eta = 1 is half as wide as it should be, others are not."""
    options = {"datasets": 16, "only": "wrong variance", "progress": False}
    first = run_compare(tmp_path / "a", workers=1, **options)
    again = run_compare(tmp_path / "a", workers=2, **options)
    pd.testing.assert_frame_equal(first, again)
    assert list(dict.fromkeys(first["way"])) == list(WAYS)
    mean = first.groupby("way", sort=False)[["coverage", "width", "eta"]].mean()
    right = 2 * 1.96 * 2 / np.sqrt(1000)
    for way in (
        "magnitude",
        "lyddon",
        "gpc",
        "matsubara",
        "onizuka",
        "bootstrap",
        "Q-posterior",
        "loss-likelihood bootstrap",
        "location-scale",
    ):
        assert mean.loc[way, "width"] == pytest.approx(right, rel=0.05), way
        assert mean.loc[way, "coverage"] > 0.8, way
    assert mean.loc["eta = 1", "width"] == pytest.approx(right / 2, rel=0.05)
    imagined = np.sqrt(10 / 11)  # ten rows for each observed one
    width = mean.loc["martingale posterior", "width"]
    assert width == pytest.approx(imagined * right, rel=0.05)
    bagged = np.sqrt(1 + 1 / 4)  # the posterior's variance at eta = 1 is a quarter of the right one
    assert mean.loc["BayesBag, eta = 1", "width"] == pytest.approx(bagged * right, rel=0.15)
    assert mean.loc["magnitude", "eta"] == pytest.approx(0.25, rel=0.05)
    refused("only", "designs are", lambda: run_compare(tmp_path / "b", only="nothing"))
    refused("ways", "ways are", lambda: run_compare(tmp_path / "b", ways="nothing"))
    refused("datasets", "at least 2", lambda: run_compare(tmp_path / "b", datasets=1))
    assert not (tmp_path / "b").exists()


def test_slow_ways_are_known() -> None:
    assert pace("median, errors grow", "safebayes R") == "slow"
    assert pace("variance = |x|^2", "safebayes R") == "cheap"
    assert pace("median, errors grow", "gpc") == "fair"


def test_the_command_writes_table_picture_and_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(
        studies_app,
        ["compare", "--out", str(out), "--datasets", "2", "--only", "variance", "--workers", "1"],
    )
    assert done.exit_code == 0, done.output
    assert {"compare.csv", "compare.png", "report.html"} <= {p.name for p in out.iterdir()}
    table = pd.read_csv(out / "compare.csv")
    assert len(table) == 2 * len(WAYS) * 3
    assert "location-scale" in done.output
    assert set(table["status"]) >= {"converged", "given", "drawn"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(30), 5)
    x = rng.standard_normal(150)
    y = 1 + 0.5 * x + rng.standard_normal(30)[group] + rng.standard_t(3, 150)
    path = tmp_path / "some data.csv"
    pd.DataFrame({"y": y, "x": x, "group": group}).to_csv(path, index=False)
    return path


def test_select_prints_every_method_and_the_calibrated_interval(data: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            "select",
            str(data),
            "--formula",
            "y ~ x",
            "--loss",
            "squared",
            "--clusters",
            "group",
            "--prior-sd",
            "10",
        ],
    )
    assert done.exit_code == 0, done.output
    for word in ("magnitude", "gpc", "holmes_walker", "safebayes", "calibrated", "Intercept"):
        assert word in done.output
    assert "kl_to_bayes: reference" in done.output
    table = select_file(data, "y ~ x", "median", bandwidth=0.3)
    assert table.loc["magnitude", "eta"] > 0
    assert np.isnan(table.loc["holmes_walker", "eta"])
    assert "not a likelihood" in table.loc["holmes_walker", "status"]


def test_units_of_the_response_do_not_choose_the_learning_rate(data: Path) -> None:
    """With a scale that follows y, and for the methods that do not depend on the parameters'."""
    table = pd.read_csv(data)
    table["y"] *= 1000
    other = data.with_name("milli.csv")
    table.to_csv(other, index=False)
    one, two = (select_file(path, "y ~ x", "huber")["eta"] for path in (data, other))
    methods = ["magnitude", "gpc", "kl_to_bayes"]
    np.testing.assert_allclose(one[methods], two[methods], rtol=1e-3)


def test_bad_selections_are_refused(data: Path) -> None:
    refused("data", "no file", lambda: select_file(data.with_name("no.csv"), "y ~ x", "huber"))
    refused("loss", "median", lambda: select_file(data, "y ~ x", "hinge"))
    refused("bandwidth", "median", lambda: select_file(data, "y ~ x", "median"))
    refused("formula", "'{'", lambda: select_file(data, "y ~ {print(1)}", "huber"))
    refused("formula", "'q'", lambda: select_file(data, "y ~ q", "huber"))
    refused("clusters", "school", lambda: select_file(data, "y ~ x", "huber", clusters="school"))
    empty = data.with_name("empty.csv")
    empty.write_text("")
    refused("data", "cannot be read", lambda: select_file(empty, "y ~ x", "huber"))


def test_a_run_of_one_method_goes_into_the_recorded_table(tmp_path: Path) -> None:
    """With its own rows only: the page and the picture follow, everything else stays."""
    for name in ("compare-500.csv", "learning-rates.md"):
        shutil.copy(RECORDED.parent / name, tmp_path)
    before = pd.read_csv(RECORDED)
    new = before.query("way == 'onizuka' and design == 'correctly specified'").copy()
    new["coverage"] = 0.123
    table = record(tmp_path, [new], WAYS)
    assert overview_markdown(table) in (tmp_path / "learning-rates.md").read_text()
    assert (tmp_path / "compare.png").exists()
    stored = pd.read_csv(tmp_path / "compare-500.csv")
    changed = stored["coverage"].fillna(-1) != before["coverage"].fillna(-1)
    assert stored[changed][["way", "design"]].drop_duplicates().to_numpy().tolist() == [
        ["onizuka", "correctly specified"]
    ]
    assert (stored.loc[changed, "coverage"] == 0.123).all()


def test_the_recorded_comparison_says_what_the_page_says() -> None:
    """Calibration covers where it raises no warning; under |x|^2 no single learning rate does."""
    table = pd.read_csv(RECORDED)
    assert list(dict.fromkeys(table["design"])) == list(DESIGNS)
    assert list(dict.fromkeys(table["way"])) == list(WAYS)
    ours = table[table["way"] == "location-scale"]
    assert (ours["datasets"] == 2000).all()
    assert ((ours["coverage"] - 0.95).abs() < 0.015 + 3 * ours["coverage_se"]).all()
    hard = table[table["design"] == "variance = |x|^2"].set_index("way")
    inside = hard["coverage"].between(0.935, 0.965).groupby("way").all()
    assert not inside[SCALAR].any()
    assert inside["location-scale"]
    assert overview_markdown(table) in (RECORDED.parent / "learning-rates.md").read_text()
    easy = table[table["design"] == "wrong variance (4)"].groupby("way")["eta"].first()
    for way in ("magnitude", "lyddon", "gpc", "matsubara"):
        assert easy[way] == pytest.approx(0.25, rel=0.05)

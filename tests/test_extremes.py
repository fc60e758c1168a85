"""The table of numerical extremes in docs/reliability.md: part of it is run again and compared."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import extremes  # noqa: E402

LONG = bool(np.finfo(np.longdouble).eps < 1e-18)
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning"),
    pytest.mark.skipif(not LONG, reason="long double is no longer than double on this system"),
]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], extremes.Line]:
    """A few values of each extreme, every loss and every step."""
    with np.errstate(all="ignore"):
        made = extremes.lines(extremes.cases(quick=True))
    return {(line.extreme, line.step): line for line in made}


def page() -> str:
    return extremes.PAGE.read_text().partition(extremes.FIRST)[2].partition(extremes.LAST)[0]


def test_every_case_is_right_or_refused(found):
    assert sum(len(line.right) + len(line.refused) for line in found.values()) > 300
    assert [line.wrong for line in found.values() if line.wrong] == []


def test_the_table_says_what_happens(found):
    """Refusals are the same by case and message; the page has a row for each extreme and step."""
    told = page()
    rows = [row.strip("|").split("|") for row in told.splitlines() if row.endswith("` |")]
    refused = {
        (extreme.strip(), step, loss, value): message.strip(" `")
        for extreme, values, losses, steps, message in rows
        for value, loss, step in product(
            *(text.strip().split(", ") for text in (values, losses, steps))
        )
    }
    assert refused
    for (extreme, step), line in found.items():
        assert f"| {extreme} | {step} |" in told
        for name, message in line.refused.items():
            loss, _, value = name.partition(" ")
            assert refused.get((extreme, step, loss, value)) == message
        for name in line.right:
            loss, _, value = name.partition(" ")
            assert (extreme, step, loss, value) not in refused


def test_the_table_has_no_larger_error_than_its_tolerance():
    rows = [row.split("|") for row in page().splitlines() if row.count("|") == 7][2:]
    assert len(rows) >= 30
    for row in rows:
        assert float(row[4]) <= float(row[5])


def test_long_double_is_longer_and_solves_what_double_cannot():
    """The Hilbert matrix of order 9, condition 5e11, against its exact inverse's first entry 81."""
    assert LONG
    k = np.arange(9, dtype=np.longdouble)
    hilbert = 1 / (k + k[:, None] + 1)
    column = extremes.solve(hilbert, np.eye(9, dtype=np.longdouble))[:, 0]
    assert abs(float(column[0]) - 81) < 1e-5


@pytest.mark.parametrize("ridge", [0.0, 0.4])
@pytest.mark.parametrize("clustered", [False, True])
def test_the_default_is_the_jackknife(clustered, ridge):
    """For least squares, one Newton step without a cluster and its share is the refit."""
    X, y, groups = extremes.data("Squared")
    groups = groups if clustered else np.arange(len(y))
    case = extremes.Case("ridge", "", "Squared", X, y, ridge=ridge)
    truth = case.truth(extremes.ef.minimise(case.criterion).theta)
    moves = []
    for label in np.unique(groups):
        kept = groups != label
        gram = X[kept].T @ X[kept] + ridge * kept.sum() * np.eye(3)
        moves.append(np.linalg.solve(gram, X[kept].T @ y[kept]) - truth.theta.astype(float))
    expected = np.transpose(moves) @ np.array(moves)
    found = extremes.sandwich(case, truth, groups, True)
    assert extremes.relative(found.astype(float), expected) < 1e-10
    assert extremes.relative(extremes.sandwich(case, truth, groups, False), expected) > 0.05


def test_the_library_without_its_default_would_be_noticed(monkeypatch):
    X, y, groups = extremes.data("StudentT")
    case = extremes.Case(
        "p = 3", "", "StudentT", X, y, groups=groups, steps=("minimise", "HC3 CR3")
    )
    assert dict(extremes.errors(case))["HC3 CR3"] < extremes.TOLERANCE["HC3 CR3"]
    target = extremes.ef.target
    monkeypatch.setattr(extremes.ef, "target", lambda *a, **k: target(*a, **k, centered=False))
    assert dict(extremes.errors(case))["HC3 CR3"] < extremes.TOLERANCE["HC3 CR3"]  # no penalty
    ridge = replace(case, ridge=1.0)
    assert dict(extremes.errors(ridge))["HC3 CR3"] > 1e-3


def test_an_error_would_be_noticed():
    """A case whose truth is spoiled is neither right nor refused."""
    X, y, groups = extremes.data("Huber")
    case = extremes.Case("p = 1", "1", "Huber", X, y, groups=groups, steps=("minimise",))
    good = dict(extremes.errors(case))["minimise"]
    slopes = extremes.SLOPES["Huber"]
    extremes.SLOPES["Huber"] = lambda u, y: (slopes(u, y)[0] + 1e-6, slopes(u, y)[1])
    try:
        bad = dict(extremes.errors(case))["minimise"]
    finally:
        extremes.SLOPES["Huber"] = slopes
    assert good < extremes.TOLERANCE["minimise"] < bad

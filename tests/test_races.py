"""The races against other packages: equality comes first, and the page is that of the record."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from benchmarks.races import (
    FAMILIES,
    PAGE,
    RECORD,
    main,
    quantile,
    r,
    regression,
    sandwiches,
    sparse,
)
from benchmarks.races.page import page, tables
from benchmarks.races.race import Call, Peer, Race, apart, arrays, run, size_of

pytestmark = pytest.mark.filterwarnings("ignore")  # peers' own


def with_peers(race: Race, *names: str) -> Race:
    return replace(race, peers=tuple(peer for peer in race.peers if peer.name in names))


def numbers(shift: float) -> Call:
    return Call(lambda: arrays([1.0 + shift, 2.0], [0.5, 0.1]))


@pytest.mark.parametrize("job", regression.LOSSES)
def test_regressions_agree_with_the_peers_of_the_test_suite(job: str) -> None:
    race = regression._clustered(regression.Rows(1_000, job))
    rows = run("regression", with_peers(race, "statsmodels", "linearmodels"), quick=True)
    assert [row.peer for row in rows] == ["statsmodels", "linearmodels"][: len(rows)]
    assert all(row.apart < 1e-6 and row.ours > 0 and row.theirs > 0 for row in rows)


def test_sandwiches_agree_with_statsmodels_and_linearmodels() -> None:
    races = sandwiches.races([10_000])
    rows = [
        row
        for race in races
        for row in run("", with_peers(race, "statsmodels", "linearmodels"), quick=True)
    ]
    assert len(rows) == 5
    assert max(row.apart for row in rows) < 1e-9


def test_the_lasso_agrees_with_skglm() -> None:
    race = next(sparse.races(sparse.QUICK_SIZES))
    (row,) = run("sparse", with_peers(race, "skglm"), quick=True)
    assert row.apart < row.tolerance


@pytest.mark.skipif("quantreg" not in r.versions(), reason="R and quantreg are not installed")
def test_the_check_loss_agrees_with_quantreg() -> None:
    race = next(quantile.races(quantile.QUICK_SIZES))
    (row,) = run("quantile", with_peers(race, "R quantreg br"), quick=True)
    assert row.apart < 1e-10
    assert row.theirs > 0


def test_a_peer_with_other_numbers_is_an_error_and_not_timed() -> None:
    peer = Peer("other", lambda: numbers(1e-3), ("numpy",))
    race = Race("job", "n = 2", lambda: numbers(0.0), (peer,))
    with pytest.raises(RuntimeError, match=r"job, n = 2: other and etafree are 0\.002 apart"):
        run("family", race)
    (row,) = run("family", replace(race, tolerance=0.01), quick=True)
    assert row.apart == pytest.approx(2e-3)
    assert apart(np.array([1.0, 30.0]), np.array([1.0, 30.3])) == pytest.approx(0.01)
    assert math.isnan(apart(np.array([math.nan]), np.array([1.0])))
    with pytest.raises(RuntimeError, match="nan apart"):
        run("family", replace(race, compare=lambda *_: math.nan))


def test_a_peer_that_is_missing_is_a_row_that_says_how_to_get_it(monkeypatch) -> None:
    absent = Peer("absent", lambda: numbers(0.0), ("no-such-package",))
    of_r = Peer("R glm", lambda: numbers(0.0), ("sandwich",), of_r=True)
    monkeypatch.setattr(r, "versions", dict)
    rows = run("family", Race("job", "n = 2", lambda: numbers(0.0), (absent, of_r)))
    assert [row.missing for row in rows] == [
        "not installed: pip install no-such-package",
        "R not installed: apt install r-base-core r-cran-sandwich",
    ]
    assert {row.verdict for row in rows} == {"not run"}
    assert "no-such-package" in "\n".join(tables([row.record() for row in rows]))
    monkeypatch.setattr(r, "versions", lambda: {"base": "4"})
    assert of_r.missing == "not installed in R: apt install r-cran-sandwich"


def test_losses_are_bold_and_goals_are_judged() -> None:
    fast = Peer("fast", lambda: numbers(0.0), ("numpy",))
    (row,) = run("family", Race("job", "n = 2", lambda: numbers(0.0), (fast,), 2.0), quick=True)
    behind, between, ahead = (replace(row, ratios=(x,)) for x in (0.5, 1.5, 2.5))
    verdicts = [one.verdict for one in (behind, between, ahead)]
    assert verdicts == ["missed, behind", "missed, ahead", "met"]
    assert replace(behind, goal=None).verdict == "behind"
    assert "**0.5** [0.5, 0.5]" in tables([behind.record()])[-1]
    assert "**" not in tables([ahead.record()])[-1]
    assert [size_of(n) for n in (1_000, 1_000_000, 1_234)] == ["n = 1e3", "n = 1e6", "n = 1234"]


def test_the_page_is_that_of_the_record() -> None:
    record = json.loads(RECORD.read_text())
    assert set(record) <= set(FAMILIES)
    assert PAGE.read_text() == page(record)
    for row in (row for family in record.values() for row in family["rows"]):
        assert row["missing"] or row["apart"] <= row["tolerance"]
        assert row["missing"] or row["verdict"].endswith("behind") == (median(row["ratios"]) < 1)


def test_an_unknown_family_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no family nothing; choose from regression" in capsys.readouterr().err

"""The record of a benchmark run: its table, its page and what it refuses."""

from __future__ import annotations

import json

import pytest

import benchmarks.timing
from benchmarks.__main__ import BENCHMARKS, PAGE, _record
from benchmarks.record import machine, write_page
from benchmarks.timing import Row, interleaved_ratios

ROWS = [
    Row("growth | n", 1.05, False, (0.96, 1.0, 0.99), "", "three sizes", lower=0.95),
    Row("workers", 1.6, True, (1.2, 1.3, 1.4)),
    Row("reading", 2.0, False, (1.8, 1.9, 2.5)),
]


def run(whole: bool = True) -> dict[str, object]:
    records = [{"benchmark": "streamed", **_record(row, False)} for row in ROWS]
    return {"quick": False, "whole": whole, "machine": machine(), "rows": records}


def test_goals_have_one_side_or_two() -> None:
    assert [row.met for row in ROWS] == [True, False, True]
    assert [row.wanted for row in ROWS] == ["0.95 to 1.05", ">= 1.6 x", "<= 2 x"]
    assert not Row("growth", 1.05, False, (0.9,), lower=0.95).met


def test_the_page_has_every_row_the_machine_and_what_was_missed(tmp_path) -> None:
    results, page = tmp_path / "run.json", tmp_path / "page.md"
    results.write_text(json.dumps(run()))
    text = write_page(results, page, BENCHMARKS).read_text()
    assert "2 of 3 goals are met. Missed: workers." in text
    assert "| growth \\| n | 0.95 to 1.05 | 0.99 [0.96, 1] | met | three sizes |" in text
    assert all(f"- {key}: " in text for key in ("processor", "memory", "numpy", "date", "commit"))
    assert "python -m benchmarks streamed" in text


def test_a_partial_run_is_not_recorded(tmp_path) -> None:
    results, page = tmp_path / "run.json", tmp_path / "page.md"
    for content in (None, run(whole=False)):
        if content is not None:
            results.write_text(json.dumps(content))
        with pytest.raises(SystemExit, match="run make bench first"):
            write_page(results, page, BENCHMARKS)
        assert not page.exists()


def test_the_recorded_page_has_every_benchmark() -> None:
    text = PAGE.read_text()
    assert all(f"python -m benchmarks {name}`" in text for name in BENCHMARKS)


def test_pairs_disturbed_by_others_are_run_again(monkeypatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(benchmarks.timing.time, "perf_counter", lambda: 20.0 * next(clock))
    monkeypatch.setattr(benchmarks.timing.os, "cpu_count", lambda: 2)

    def ratios(*lost: float) -> tuple[float, ...]:
        total = iter([count for seconds in lost for count in (0.0, seconds)])
        monkeypatch.setattr(benchmarks.timing, "taken", lambda: next(total))
        costs = iter(range(1, 10))
        return interleaved_ratios("pairs", lambda: float(next(costs)), lambda: 1.0, repetitions=2)

    assert ratios(0.0, 8.0, 0.1) == (1.0, 3.0)  # 20 seconds a pair on two cores
    assert ratios(8.0, 7.0, 9.0, 6.0, 8.0, 8.0) == (2.0, 4.0)  # never quiet: the least disturbed

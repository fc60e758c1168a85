"""What the page on many workers says is what its record shows, and the record can be made."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("distributed")
from etafree.data.sources import MOST_PIECES
from studies.workers import (
    Costs,
    costs_of,
    measure,
    pieces_of,
    result_limit,
    seconds_of,
    tasks_of,
    workers_markdown,
)

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
COSTS = Costs(2e-7, 1e-7, 3e-7, 4, 1e-3, 3.0, 1e4, 2e3)


def test_the_page_quotes_the_record() -> None:
    page = (GUIDES / "many-workers.md").read_text()
    assert workers_markdown(pd.read_csv(GUIDES / "workers.csv")) in page


def test_the_costs_of_the_record_are_sane() -> None:
    record = pd.read_csv(GUIDES / "workers.csv")
    costs = costs_of(record)
    assert 1e-8 < costs.row < costs.first < 1e-5
    assert record.workers.max() >= 4
    fits = record[record.work == "fit"]
    assert fits.tasks.nunique() == 1  # the scheduler's work does not depend on the workers
    assert (fits.scheduler_bytes_in + fits.scheduler_bytes_out < 1e5 * fits.tasks).all()


@pytest.mark.parametrize("rows", [1e9, 1e10, 1e12])
def test_times_follow_from_the_costs(rows: float) -> None:
    assert pieces_of(rows) <= MOST_PIECES
    alone = rows * (2e-7 + 4 * 1e-7 + 3e-7)
    assert math.isclose(seconds_of(COSTS, rows, 1), alone, rel_tol=1e-9)
    every = [seconds_of(COSTS, rows, workers) for workers in (1, 2, 4, 16, 64, 256, 1024, 10**6)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(every))
    least = 6 * tasks_of(pieces_of(rows)) * COSTS.task
    assert every[-1] >= least * (1 - 1e-12)  # the scheduler's own time
    seconds_of_a_piece = COSTS.sandwich * rows / pieces_of(rows)
    assert math.isclose(result_limit(COSTS, rows, 8e9), 1e9 * seconds_of_a_piece)


def test_small_tables_are_one_piece() -> None:
    assert (pieces_of(10), pieces_of(3 << 20)) == (1, 3)


def test_a_scheduler_counts_what_it_sees() -> None:
    record = measure(40_000, (1,))
    on, alone = record[record.workers == 1].set_index("work"), record[record.workers == 0]
    passes = len(alone) - 1
    a_pass = 3 + 1 + 1  # pieces, their sum and what they share
    assert on.tasks["fit"] % a_pass == 0
    assert abs(on.tasks["fit"] / a_pass - passes) <= 1
    assert on.tasks["sandwich"] == a_pass
    assert on.scheduler_messages["fit"] >= on.tasks["fit"]
    assert on.scheduler_bytes_out["sandwich"] > 8 * 20_000 * 10 * 0.8  # the last sum goes home
    assert (alone.workers_cpu > 0).all()

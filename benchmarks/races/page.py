"""Write the record of the races as a page: what is equal, what was measured, who is ahead."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.races import FAMILIES
from benchmarks.races.race import size_of

__all__ = ["page", "tables"]

INTRODUCTION = """# Races

etafree against what people would use instead, on the same data. Before a race the numbers of both
sides are compared, and a difference above the tolerance is an error; the column "apart" has the
largest difference of all sizes: in standard errors for estimates, relative for standard errors and
for coefficients that come alone, in Monte Carlo errors for what is drawn. Then the two run in turns
on one core, with one thread each, and a cell has the peer's CPU time over etafree's: the median of
five pairs (three if the peer takes longer than 1.5 s) with the least and the greatest. Above 1
etafree is faster; **where it is slower, the cell is bold**. What is compiled at a first call is
compiled outside the clock. R runs in a process of its own that gets the data by files and times
itself. A high load average means that others used the machine too: processor time does not count
them, but caches are shared and the spread is wider.

To repeat it: `make races` (some minutes of CPU time; peers that are not installed are named with
what to install), then `python -m benchmarks races --record`. One family:
`python -m benchmarks races quantile`. All numbers are in [races.json](races.json)."""
HERE = Path(__file__).parent


def page(record: Mapping[str, Any]) -> str:
    """Return the page of a record, family by family."""
    rows = [row for family in record.values() for row in family["rows"] if not row["missing"]]
    behind = [row for row in rows if row["verdict"].endswith("behind")]
    judged = [row for row in rows if row["goal"] is not None]
    met = sum(row["verdict"] == "met" for row in judged)
    lines = [
        INTRODUCTION,
        "",
        f"Of {len(rows)} cells etafree is faster in {len(rows) - len(behind)} and slower in "
        f"{len(behind)}."
        + (f" {len(judged)} have a goal, twice the peer's speed: {met} meet it." if judged else ""),
    ]
    for name, family in record.items():
        about = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or ""
        where = family["machine"]
        machine = "; ".join(f"{key} {where[key]}" for key in where if key != "processor")
        lines += ["", f"## {name.capitalize()}", "", about, ""]
        lines += [*tables(family["rows"]), "", f"Run on {where['processor']}: {machine}."]
        if family["left out"]:
            sizes = ", ".join(size_of(n) for n in family["left out"])
            lines += ["", f"Left out of this run: {sizes}."]
    absent = [name for name in FAMILIES if name not in record]
    if absent:
        lines += ["", f"Not on record yet: {', '.join(absent)}."]
    return "\n".join(lines) + "\n"


def tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of each race, with peers as lines and sizes as columns."""
    lines: list[str] = []
    for name in dict.fromkeys(row["race"] for row in rows):
        lines += _table(name, [row for row in rows if row["race"] == name])
        lines.append("")
    return lines[:-1]


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    goal = rows[0]["goal"]
    head = [name, *sizes, "apart", *(["goal"] if goal is not None else [])]
    blank = [""] * (len(head) - len(sizes) - 1)
    lines = [_line(head), _line(["---"] * len(head))]
    lines.append(_line(["etafree", *(_own(rows, size) for size in sizes), *blank]))
    for peer in dict.fromkeys(row["peer"] for row in rows):
        mine = {row["size"]: row for row in rows if row["peer"] == peer}
        first = next(iter(mine.values()))
        title = peer if first["missing"] else f"{peer} ({first['version']})"
        cells = [title, *(_cell(mine.get(size)) for size in sizes)]
        run = [row for row in mine.values() if not row["missing"]]
        cells.append(f"{max(row['apart'] for row in run):.0e}" if run else "")
        if goal is not None:
            met = sum(row["verdict"] == "met" for row in run)
            cells.append(f"≥ {goal:g}: met in {met} of {len(run)}" if run else "")
        lines.append(_line(cells))
    notes = {row["peer"]: row["note"] for row in rows if row["note"]}
    if notes:
        lines += ["", "; ".join(f"{peer}: {note}" for peer, note in notes.items()) + "."]
    return lines


def _own(rows: Sequence[Mapping[str, Any]], size: str) -> str:
    """Return etafree's own cost at a size."""
    costs = [(row["ours"], row["unit"]) for row in rows if row["size"] == size and row["ratios"]]
    if not costs:
        return ""
    seconds, unit = median(cost for cost, _ in costs), costs[0][1]
    scale, name = (1e3, "ms") if seconds >= 1e-4 else (1e6, "µs")
    return f"{scale * seconds:.3g} {name}" + ("" if unit == "call" else f" per {unit}")


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["missing"]:
        return str(row["missing"])
    ratio = median(row["ratios"])
    shown = f"{ratio:.3g}"
    shown = shown if ratio >= 1 else f"**{shown}**"
    return f"{shown} [{min(row['ratios']):.3g}, {max(row['ratios']):.3g}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

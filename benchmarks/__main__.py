"""Run the benchmarks and print one table: ``python -m benchmarks [NAME ...] [--quick]``.

``--record`` runs nothing: it writes docs/performance.md from the newest full run. ``python -m
benchmarks races`` runs the races against other packages instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.record import machine, write_page

if TYPE_CHECKING:
    from benchmarks.timing import Row

#: Name of a benchmark and the module that runs it, small processes before large data.
BENCHMARKS = {
    "start": "start",
    "cold": "cold",
    "again": "again",
    "front": "front",
    "sandwich": "sandwich",
    "streamed": "streamed",
    "map": "location_scale_map",
    "fit": "fit",
    "sampler": "sampler",
    "large_sample": "large_sample",
    "losses": "losses",
    "bootstrap": "bootstrap",
    "gibbs": "gibbs",
    "figure1": "figure1",
}
#: One thread each, set before numpy or jax is loaded.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ETAFREE_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "build" / "benchmarks.json", ROOT / "docs" / "performance.md"
QUICK_NOTICE = "Quick run: sizes are small, the numbers are not comparable with the goals."


def main() -> None:
    """Run the benchmarks named on the command line, all of them by default."""
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    if sys.argv[1:2] == ["races"]:
        import_module("benchmarks.races").main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small sizes, not comparable")
    parser.add_argument("--record", action="store_true", help="write docs/performance.md")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    if arguments.record:
        print(f"wrote {write_page(RESULTS, PAGE, BENCHMARKS)}")
        return
    records: list[dict[str, object]] = []
    where = machine()  # as it is now: files may change while this runs
    RESULTS.parent.mkdir(exist_ok=True)
    for name, module in BENCHMARKS.items():
        if arguments.names and name not in arguments.names:
            continue
        print(name, flush=True)
        rows: list[Row] = import_module(f"benchmarks.{module}").run(arguments.quick)
        records += [{"benchmark": name, **_record(row, arguments.quick)} for row in rows]
        last = name == list(BENCHMARKS)[-1]  # what ran is kept if a later one fails
        whole = last and not arguments.names and not arguments.quick
        told = {"quick": arguments.quick, "whole": whole, "machine": where, "rows": records}
        RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    print()
    print(_table(records))
    print("\nAgainst other packages: make races, or docs/races.md for the run on record.")
    if arguments.quick:
        print(QUICK_NOTICE)


def _record(row: Row, quick: bool) -> dict[str, object]:
    """Return a row as plain values; a quick run is not judged."""
    verdict = "met" if row.met else "missed"
    return {
        "name": row.name,
        "goal": row.wanted,
        "median": row.median,
        "min": min(row.values),
        "max": max(row.values),
        "repetitions": len(row.values),
        "unit": row.unit,
        "verdict": "quick run" if quick else verdict,
        "note": row.note,
    }


def _table(records: list[dict[str, object]]) -> str:
    """Return the records as text with aligned columns."""
    columns = ["name", "goal", "median", "min", "max", "verdict", "note"]
    lines = [columns]
    for record in records:
        cells = [record[column] for column in columns]
        lines.append([f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells])
    widths = [max(len(line[j]) for line in lines) for j in range(len(columns))]
    widths[-1] = 0
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([padded[0], "-" * (sum(widths) + 2 * len(widths) + 4), *padded[1:]])


if __name__ == "__main__":
    main()

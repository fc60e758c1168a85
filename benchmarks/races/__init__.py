"""Race etafree against what people would use instead: ``python -m benchmarks races [NAME ...]``.

One module a family, each with ``races(sizes)`` and the numbers of rows in ``SIZES``. ``--record``
runs nothing: it writes docs/races.json and docs/races.md from the newest run of each family.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "PAGE", "RECORD", "main", "run"]

FAMILIES = (
    "regression",
    "sandwiches",
    "robust",
    "quantile",
    "sparse",
    "bootstrap",
    "autodiff",
    "samplers",
    "tables",
    "survey",
)
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "races.json"
RECORD, PAGE = ROOT / "docs" / "races.json", ROOT / "docs" / "races.md"


def main(words: Sequence[str]) -> None:
    """Run the families named, all by default, and print a table of each; keep what was measured."""
    parser = argparse.ArgumentParser(prog="benchmarks races", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FAMILIES))
    parser.add_argument("--quick", action="store_true", help="small, once, not kept")
    parser.add_argument("--most", type=float, metavar="N", help="leave out more rows than N")
    parser.add_argument("--record", action="store_true", help=f"write docs/{PAGE.name}")
    arguments = parser.parse_args(words)
    unknown = sorted(set(arguments.names) - set(FAMILIES))
    if unknown:
        parser.error(f"no family {', '.join(unknown)}; choose from {', '.join(FAMILIES)}")
    from benchmarks.races.page import page, tables

    if arguments.record:
        kept = _kept()
        kept = {name: kept[name] for name in FAMILIES if name in kept}
        if not kept:
            sys.exit(f"there is no {RESULTS}: run make races first")
        RECORD.write_text(json.dumps(kept, indent=1) + "\n")
        PAGE.write_text(page(kept))
        print(f"wrote {RECORD} and {PAGE}")
        return
    for name in arguments.names or FAMILIES:
        print(name, flush=True)
        family = run(name, arguments.quick, arguments.most)
        print("\n".join(tables(family["rows"])), flush=True)
        if not arguments.quick:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(_kept() | {name: family}, indent=1) + "\n")


def _kept() -> dict[str, Any]:
    """Return the newest run of every family that has one."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def run(name: str, quick: bool = False, most: float | None = None) -> dict[str, Any]:
    """Return the machine and the rows of one family; `most` is the largest number of rows."""
    where = _where()
    with _one_core():
        from benchmarks.races import race

        module = import_module(f"benchmarks.races.{name}")
        sizes = module.QUICK_SIZES if quick else module.SIZES
        kept = [n for n in sizes if most is None or n <= most]
        left_out = [n for n in sizes if n not in kept]
        rows = [row.record() for one in module.races(kept) for row in race.run(name, one, quick)]
        return {"machine": where, "left out": left_out, "rows": rows}


def _where() -> dict[str, str]:
    """Return what the numbers depend on beside the peers' versions, which are in the rows."""
    from benchmarks.races import r
    from benchmarks.record import machine

    said = machine()
    command = ["git", "log", "-1", "--format=%h", "--abbrev=12", "--", "src"]
    commit = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    wanted = ("processor", "memory", "system", "Python", "numpy", "scipy", "numba", "date")
    return {key: said[key] for key in wanted} | {
        "R": r.versions().get("base", "not installed"),
        "load average": f"{os.getloadavg()[0]:.0f}",
        "last commit to src": commit.strip() or "unknown",
    }


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process and those that it starts on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[os.getpid() % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

"""Describe the machine, and write the newest run on record to a page."""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["machine", "page", "write_page"]

#: What the numbers depend on.
PACKAGES = (
    "etafree",
    "numpy",
    "scipy",
    "numba",
    "jax",
    "pandas",
    "pyarrow",
    "dask",
    "statsmodels",
    "blackjax",
)
HEADINGS = ("row", "goal", "median [min, max]", "verdict", "note")
HERE = Path(__file__).parent


def machine() -> dict[str, str]:
    """Return processor, memory, system, versions, date and commit."""
    found = {
        "processor": f"{_processor()}, {_cores()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "commit": _commit()}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str:
    """Return the commit that ran, marked if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False)
    return made.stdout.strip() or "unknown"


def write_page(results: Path, target: Path, benchmarks: Mapping[str, str]) -> Path:
    """Write the page of a full run; `benchmarks` has the module of each name."""
    if not results.exists():
        sys.exit(f"there is no {results}: run make bench first")
    told = json.loads(results.read_text())
    if not told.get("whole"):
        sys.exit(f"{results} is of a quick or partial run: run make bench first")
    about = {
        name: ast.get_docstring(ast.parse((HERE / f"{module}.py").read_text())) or ""
        for name, module in benchmarks.items()
    }
    target.write_text(page(told, about))
    return target


def page(told: Mapping[str, Any], about: Mapping[str, str]) -> str:
    """Return the page: what was measured and where, a table and what each row means."""
    rows, where = told["rows"], told["machine"]
    missed = [row["name"] for row in rows if row["verdict"] != "met"]
    lines = [
        "# Performance",
        "",
        "The most recent full run of the benchmarks. To repeat it, use `make bench` on an idle "
        "machine; `python -m benchmarks --record` then writes this page. A ratio compares two "
        "computations that are run alternately; its unit is x. BLAS uses one thread. Measurements "
        "during which a hypervisor gave more than 5 % of the cores to others were repeated. "
        "[Races](races.md) against other packages have a page of their own.",
        "",
        f"{len(rows) - len(missed)} of {len(rows)} goals are met."
        + (f" Missed: {'; '.join(missed)}." if missed else ""),
        "",
        _line(HEADINGS),
        _line(["---"] * len(HEADINGS)),
        *(_line(_cells(row)) for row in rows),
        "",
        "## Machine",
        "",
        *(f"- {key}: {value}" for key, value in where.items()),
        "",
        "## What the rows mean",
        "",
    ]
    used = dict.fromkeys(row["benchmark"] for row in rows)
    lines += [
        f"- **{name}** (`python -m benchmarks {name}`): {' '.join(about[name].split())}"
        for name in used
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    spread = f"{row['median']:.3g} [{row['min']:.3g}, {row['max']:.3g}] {row['unit']}".rstrip()
    return [row["name"], row["goal"], spread, row["verdict"], row["note"]]


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

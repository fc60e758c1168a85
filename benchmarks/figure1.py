"""Measure the paper's whole figure: wall time with a warm and a cold cache, and peak memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import Row, announce

__all__ = ["run"]

CODE = "from etafree.cli import main; main()"


def _seconds(folder: Path, datasets: int, cache: Path | None = None) -> float:
    """Return the wall time of the command in a fresh process and a fresh folder."""
    environment = dict(os.environ)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", CODE, "figure1", "--out", str(folder), "--datasets", str(datasets)],
        check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - began


def run(quick: bool) -> list[Row]:
    """Return wall seconds, which are goals here because the command is the main job."""
    datasets, repeats = (10, 1) if quick else (200, 3)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        cold = _seconds(root / "cold", datasets, root / "cache")
        announce(f"figure1, cold: {cold:.1f} s")
        warm = tuple(_seconds(root / f"warm{k}", datasets) for k in range(repeats))
        announce(f"figure1, warm: {', '.join(f'{s:.1f}' for s in warm)} s")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return [
        Row("figure1, warm cache", 20.0, False, warm, unit="s", note=load),
        Row("figure1, compiling first", 60.0, False, (cold,), unit="s", note=load),
        Row("figure1, peak memory of a process", 1000.0, False, (peak,), unit="MB"),
    ]

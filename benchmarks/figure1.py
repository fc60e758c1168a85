"""Measure the paper's whole figure: wall time with a warm and a cold cache, and peak memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import Row, announce, undisturbed

__all__ = ["run"]

CODE = "from etafree.cli import main; main()"


def _run(folder: Path, datasets: int, cache: Path | None = None) -> tuple[float, float]:
    """Return wall seconds and peak megabytes of the command in a fresh process and folder.

    A process of its own starts it: Linux counts the memory of whoever starts a process as its own.
    """
    environment = dict(os.environ)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.figure1", str(folder), str(datasets)],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    seconds, peak = map(float, made.stdout.split())
    return seconds, peak


def main(folder: str, datasets: str) -> None:
    """Run the command; print its seconds and the megabytes of the largest of its processes."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", CODE, "figure1", "--out", folder, "--datasets", datasets],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - began
    print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


def run(quick: bool) -> list[Row]:
    """Return wall seconds, which are goals here because the command is the main job."""
    datasets, repeats = (10, 1) if quick else (200, 5)
    peaks = []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        cold, _ = _run(root / "cold", datasets, root / "cache")
        announce(f"figure1, cold: {cold:.1f} s")

        def warm() -> tuple[float, str]:
            seconds, peak = _run(root / f"warm{len(peaks)}", datasets)
            peaks.append(peak)
            return seconds, f"{seconds:.1f} s"

        seconds = undisturbed("figure1, warm", warm, repeats)
    return [
        Row("figure1, warm cache", 20.0, False, seconds, unit="s"),
        Row("figure1, compiling first", 60.0, False, (cold,), unit="s"),
        Row("figure1, peak memory of a process", 1000.0, False, tuple(peaks), unit="MB"),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])

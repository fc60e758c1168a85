"""Compare importing etafree with importing numpy, and time the help of the command line."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from benchmarks.cold import child_cpu_seconds
from benchmarks.timing import Row, announce, interleaved_ratios, undisturbed

__all__ = ["run"]

GOAL, HELP_GOAL = 1.2, 0.3
REPETITIONS = 9
HELP = "import sys; from etafree.cli import main; sys.argv = ['etafree', '--help']; main()"


def run(quick: bool) -> list[Row]:
    """Return CPU times of fresh processes; byte code is there, as after a first start."""
    announce("fresh processes: import etafree, import numpy, etafree --help")
    repetitions = 5 if quick else REPETITIONS
    for code in ("import etafree", "import numpy"):
        child_cpu_seconds(code)
    help_seconds()
    ratios = interleaved_ratios(
        "import",
        lambda: child_cpu_seconds("import etafree"),
        lambda: child_cpu_seconds("import numpy"),
        repetitions,
    )

    def measure() -> tuple[float, str]:
        seconds = help_seconds()
        return seconds, f"{seconds:.3g} s"

    seconds = undisturbed("help", measure, repetitions)
    return [
        Row("import over numpy's", GOAL, False, ratios, note="names are imported when asked for"),
        Row("etafree --help", HELP_GOAL, False, seconds, unit="s"),
    ]


def help_seconds() -> float:
    """Return the CPU time of a process that prints the help."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "COLUMNS": "100"}
    call = [sys.executable, "-c", HELP]
    subprocess.run(call, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

"""Work for the tests of the study engine, where processes can find it by name.

Run as a script it is a study that a test may stop: arguments are the folder and the workers.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from etafree.errors import InputError
from etafree.paper.study import Cell, run_study


def draw(parameters, seed):
    """Draw numbers and multiply matrices; leave a mark for each run."""
    if "marks" in parameters:
        mark = Path(parameters["marks"]) / f"{parameters['shift']}-{os.getpid()}-{time.time_ns()}"
        mark.write_text("")
    time.sleep(parameters.get("sleep", 0.0))
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((300, 300))
    return {"mean": (X @ X).mean() + parameters["shift"], "draws": X[0], "count": np.arange(3)}


def fail(parameters, seed):
    """Raise an error that cannot be pickled in one cell."""
    if parameters["shift"] == 3:
        raise InputError("shift", "is 3")
    return draw(parameters, seed)


def die_once(parameters, seed):
    """Kill the process in one cell, the first time only."""
    mark = Path(parameters["marks"]) / "died"
    if parameters["shift"] == 3 and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(parameters, seed)


def die(parameters, seed):
    """Kill the process in one cell."""
    if parameters["shift"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(parameters, seed)


def spoil(parameters, seed):
    """Change the parameters and return the same buffer from each cell."""
    parameters["list"].append(1)
    BUFFER[:] = len(parameters["list"]) + parameters["shift"]
    return {"buffer": BUFFER}


BUFFER = np.zeros(2)


def objects(parameters, seed):
    """Return what cannot be saved."""
    return {"objects": np.array([None, "a"], dtype=object)}


def environment(parameters, seed):
    """Return the settings of threads that the process was started with."""
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"]
    return {"threads": np.array([int(os.environ.get(name, "0")) for name in names])}


def cells(count, **parameters):
    return [Cell(f"shift={i}", {"shift": i, **parameters}) for i in range(count)]


if __name__ == "__main__":
    out, workers, sleep, marks = sys.argv[1:]
    run_study(
        "test",
        {"n": 5},
        cells(12, sleep=float(sleep), marks=marks),
        draw,
        out,
        seed=1,
        workers=int(workers),
    )

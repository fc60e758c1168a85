"""Compare a second calibration with a model, whose functions are compiled, with the first."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.timing import Row, announce

__all__ = ["run"]

GOAL = 0.1
REPETITIONS = 3


def run(quick: bool) -> list[Row]:
    """Return the CPU time of the second call over that of the first."""
    announce("hierarchical Poisson model of PyMC, 30 groups of 10, effects integrated out")
    ratios = []
    for seed in range(1 if quick else REPETITIONS):
        fit, model = _hierarchical(seed)
        first, second = (_cpu_seconds(fit, model) for _ in range(2))
        ratios.append(second / first)
    note = f"first call of the last model {first:.2g} s of CPU, second {second:.2g} s"
    return [Row("again", GOAL, False, tuple(ratios), note=note)]


def _cpu_seconds(fit: object, model: object) -> float:
    """Return the CPU time, of all threads, that a calibration takes."""
    import etafree as ef

    before = time.process_time()
    ef.calibrate(fit, model=model)
    return time.process_time() - before


def _hierarchical(seed: int) -> tuple[object, object]:
    """Return draws and their model, a new one for each seed."""
    import pymc as pm
    import xarray as xr

    rng, groups = np.random.default_rng(seed), np.repeat(np.arange(30), 10)
    x = rng.standard_normal(300)
    y = rng.poisson(np.exp(0.5 + 0.3 * x + 0.6 * rng.standard_normal(30)[groups]))
    with pm.Model() as model:
        slopes, tau = pm.Normal("b", 0, 5, shape=2), pm.HalfNormal("tau", 2)
        effects = tau * pm.Normal("z", 0, 1, shape=30)
        pm.Poisson("y", pm.math.exp(slopes[0] + slopes[1] * x + effects[groups]), observed=y)
    drawn = {
        "b": np.array([0.5, 0.3]) + 0.1 * rng.standard_normal((2, 500, 2)),
        "tau": 0.6 * np.exp(0.15 * rng.standard_normal((2, 500))),
        "z": rng.standard_normal((2, 500, 30)),
    }
    dims = {"b": ("chain", "draw", "k"), "tau": ("chain", "draw"), "z": ("chain", "draw", "g")}
    posterior = xr.Dataset({name: (dims[name], values) for name, values in drawn.items()})
    return xr.DataTree.from_dict({"posterior": posterior}), model

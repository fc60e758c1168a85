"""Ctrl-C ends long work soon, in compiled loops too, and leaves nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest
import xarray as xr

from etafree.samplers import gibbs

START = """
import os, signal, sys
import numpy as np
import etafree as ef
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
X, y = rng.standard_normal((2000, 3)), rng.standard_normal(2000)
"""
#: Each does a little first, which compiles, says so, and then what would take many minutes.
WORK = {
    "gibbs": """
from etafree.samplers.gibbs import gibbs_chains
def work(draws):
    gibbs_chains(X[None], y[None], np.array([0]), np.ones(1), 1.345, np.eye(3)[None],
                 np.zeros((1, 3)), draws=draws, burn_in=0, seed=np.random.SeedSequence(1))
work(10); print("ready", flush=True); work(10**8 // 2)
""",
    "bootstrap": """
criterion = ef.Criterion(ef.losses.Huber(), (X, y))
ef.bootstrap(criterion, 20); print("ready", flush=True); ef.bootstrap(criterion, 10**7)
""",
    "lasso": """
criterion = ef.Criterion(ef.losses.Huber(), (X, y), ef.penalties.L1(0.1))
posterior = ef.GeneralizedPosterior(criterion, 1.0)
ef.sample(posterior, 200); print("ready", flush=True); ef.sample(posterior, 10**7)
""",
    "safebayes": """
import jax.numpy as jnp
def loss(theta, row):
    return 0.5 * (row["y"] - row["x"] @ theta) ** 2
def work(n):
    data = {"x": X[:n], "y": y[:n]}
    ef.select(ef.Criterion(ef.JaxLoss(loss), data, start=np.zeros(3)), "safebayes", draws=5000)
work(30); print("ready", flush=True)
while True: work(2000)
""",
}


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("name", WORK)
def test_ctrl_c_ends_long_work(name):
    if name == "safebayes" and find_spec("jax") is None:
        pytest.skip("needs JAX")
    command = [sys.executable, "-c", START + WORK[name]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            time.sleep(1.0)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]  # on a busy machine
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_blocks_of_the_gibbs_sampler_change_nothing(monkeypatch):
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((2, 600, 2)), rng.standard_normal((2, 600))

    def draws():
        return gibbs.gibbs_chains(
            X,
            y,
            np.array([0, 1, 1]),
            np.array([0.5, 1.0, 2.0]),
            1.345,
            np.tile(np.eye(2), (3, 1, 1)),
            np.zeros((3, 2)),
            draws=23,
            burn_in=11,
            seed=np.random.SeedSequence(1),
        )

    whole = draws()
    for steps in (1, 4, 30):
        monkeypatch.setattr(gibbs, "UPDATES", 3 * 600 * steps)
        np.testing.assert_array_equal(draws(), whole)


COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from etafree.cli import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("moment", ["reading", "writing out.nc"])
def test_ctrl_c_ends_a_command_and_leaves_whole_files_only(tmp_path, moment):
    """Exit code 130, as the shell expects; what was written before is whole."""
    rng = np.random.default_rng(0)
    theta, y = rng.standard_normal((400, 1)) / 4, rng.standard_normal(16)
    columns = ["mu", *(f"log_lik[{k + 1}]" for k in range(16))]
    rows = np.hstack([theta, -0.5 * (y - theta) ** 2])
    np.savetxt(tmp_path / "draws.csv", rows, delimiter=",", header=",".join(columns), comments="")
    asked = ["calibrate", "draws.csv", "-o", "out.nc", "--report", "page.html"]
    command = [sys.executable, "-c", COMMAND, *asked]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        try:
            while not process.stderr.readline().startswith(moment):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in (130, -signal.SIGINT)
    there = {path.name for path in tmp_path.iterdir()}
    assert there <= {"draws.csv", "out.nc"}
    if "out.nc" in there:  # written before the signal came
        with xr.open_datatree(tmp_path / "out.nc", engine="h5netcdf") as tree:
            assert np.isfinite(tree["posterior"]["mu"].values).all()

"""Scripts of somebody who uses the library for the first time, with the fit they have.

Each prints an interval and a prediction and draws a picture, as a process of its own; warnings are
errors there too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import etafree as ef
import test_stan
from conftest import ROOT, STRICT

EXAMPLES = ROOT / "examples"


def run(command: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "MPLBACKEND": "agg"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(text: str, start: str, count: int) -> list[float]:
    """Return the numbers of the first line of so many that starts like this."""
    rows = (line[len(start) :] for line in text.splitlines() if line.startswith(start))
    found = (re.findall(r"-?\d+(?:\.\d+)?", row) for row in rows)
    return next([float(number) for number in row] for row in found if len(row) == count)


def is_a_picture(path: Path) -> bool:
    return path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 10_000


def test_pymc_with_strings_missing_values_an_offset_and_an_interaction(tmp_path: Path) -> None:
    pytest.importorskip("pymc")
    printed = run([sys.executable, *STRICT, str(EXAMPLES / "first_pymc.py")], tmp_path)
    assert "clustered by patient (57 clusters)" in printed
    lower, upper = numbers(printed, "effect  ", 2)
    assert (lower, upper) == pytest.approx((-0.56, 0.34), abs=0.1)
    estimates = [numbers(printed, f"{row}  ", 4)[0] for row in range(4)]
    assert estimates == pytest.approx([7.6, 8.6, 7.6, 7.7], abs=0.21)
    observed, model = numbers(printed, "variance of counts:", 2)
    assert observed > 2 * model
    assert is_a_picture(tmp_path / "first_pymc" / "effect.png")


def test_bambi_with_an_intercept_and_a_slope_per_person(tmp_path: Path) -> None:
    pytest.importorskip("bambi")
    options = [*STRICT, "-W", "ignore:Cannot cache compiled function"]  # of PyTensor 3
    printed = run([sys.executable, *options, str(EXAMPLES / "first_bambi.py")], tmp_path)
    lower, upper = numbers(printed, "Days  ", 2)
    assert (lower, upper) == pytest.approx((7.0, 14.0), abs=0.8)
    assert "integrated out: 1|Subject, Days|Subject" in printed
    rows = re.findall(r"^[01] +(\d+)\.\d+ +(\d+)\.\d+", printed, flags=re.M)
    typical, known = rows[1], rows[2]
    assert (int(typical[0]), int(known[0])) == (
        pytest.approx(356, abs=3),
        pytest.approx(449, abs=8),
    )
    observed, model = numbers(printed, "above 400 ms:", 2)
    assert observed == pytest.approx(model, abs=0.05)
    assert is_a_picture(tmp_path / "first_bambi" / "days.png")


@pytest.mark.parametrize("shell", [path for path in [shutil.which("sh")] if path])
def test_cmdstan_s_files_from_the_shell(shell: str, tmp_path: Path) -> None:
    """The draws are those of a line through points of 20 schools, exact, as CmdStan writes them."""
    rng, n = np.random.default_rng(6), test_stan.N
    school = [f"school {k // 4:02d}" for k in range(n)]
    x = rng.standard_normal(n)
    y = 1.0 + 0.5 * x + np.repeat(rng.standard_normal(n // 4), 4) + rng.standard_normal(n)
    X = np.column_stack([np.ones(n), x])
    root = np.linalg.cholesky(np.linalg.inv(X.T @ X))
    header = [*test_stan.STATISTICS, "a", "b", *(f"log_lik.{i + 1}" for i in range(n))]
    names, every = [], []
    for chain in range(4):
        theta = np.linalg.lstsq(X, y)[0] + rng.standard_normal((test_stan.DRAWS, 2)) @ root.T
        each = -0.5 * (y - theta @ X.T) ** 2
        own = np.zeros((len(theta), len(test_stan.STATISTICS)))
        own[:, 0] = each.sum(axis=1)
        names.append(f"chain-{chain}.csv")
        text = test_stan.text(chain, rows=np.hstack([own, theta, each]), header=header)
        (tmp_path / names[-1]).write_text(text)
        every.append(theta)
    pd.DataFrame({"pupil": range(n), "school": school}).to_csv(tmp_path / "pupils.csv", index=False)
    printed = run([shell, str(EXAMPLES / "first_cmdstan.sh"), *names, "pupils.csv"], tmp_path)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), names=["a", "b"])
    known = ef.target(criterion, clusters=school, correction="CR1")
    low, high = numbers(printed, "at x = 2:", 2)
    slope = np.array([1.0, 2.0])
    half = 2.09 * np.sqrt(slope @ known.covariance @ slope)  # t with 19 degrees of freedom
    middle = slope @ known.center
    assert (low, high) == pytest.approx((middle - half, middle + half), abs=0.25 * half)
    table = pd.read_csv(tmp_path / "table.csv", index_col=0)
    np.testing.assert_allclose(table["se"], known.se, rtol=0.15)
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert len(pd.read_csv(tmp_path / "draws.csv")) == 4 * test_stan.DRAWS

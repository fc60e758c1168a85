"""The same seed gives the same bytes, whatever the threads and workers, and outputs say how.

Run as a script it prints a fingerprint of everything that has a seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import etafree as ef
from etafree.cli import app
from etafree.foundation.storage import made_with

#: Samplers, and the number of parameters that they are asked for.
SAMPLERS = {"importance": 4, "elliptical": 4, "quadrature": 1, "nuts": 2}
N = 20_000


@cache
def criterion(p: int, n: int = N) -> ef.Criterion:
    """Return a robust regression, large enough for BLAS to use two threads."""
    rng = np.random.default_rng(p)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    y = X @ np.ones(p) + rng.standard_t(3, n)
    return ef.Criterion(ef.losses.Huber(1.345), (X, y), ef.penalties.Ridge(0.1))


def groups(n: int = N) -> np.ndarray:
    return np.arange(n) % 50


def fingerprints() -> dict[str, str]:
    """Return a hash of the bytes of everything that has a seed, by name."""
    made: dict[str, object] = {}
    for name, p in SAMPLERS.items():
        small = criterion(p, 2000 if name in ("elliptical", "nuts") else N)
        posterior = ef.GeneralizedPosterior(small, 0.5)
        made[f"sample, {name}"] = ef.sample(posterior, 400, seed=1, sampler=name).values
    large = criterion(4)
    draws = ef.sample(ef.GeneralizedPosterior(large, 0.5), 400, seed=1)
    result = ef.calibrate(draws, large, clusters=groups(), seed=2)
    made["calibrate, draws"] = result.draws.values
    made["calibrate, table"] = result.summary().to_csv()
    made["calibrate, checks"] = result.diagnostics().to_csv()
    made["wild bootstrap"] = str(result.wild_bootstrap("theta[1]", draws=199, seed=3))
    X, y = large.total.X[:300], large.total.y[:300]
    losses = 0.5 * (y - draws.array @ X.T) ** 2
    stored = ef.calibrate(draws.array, log_likelihood=-losses, eta=0.5, clusters=groups(300))
    made["jackknife"] = stored.draws.values
    few = criterion(3, 400)
    made["bootstrap"] = ef.bootstrap(few, 200, clusters=groups(400), seed=4).values
    made["loss-likelihood bootstrap"] = ef.loss_likelihood_bootstrap(few, 200, seed=4).values
    made["martingale posterior"] = ef.martingale_posterior(few, 200, horizon=50, seed=4).values
    bagged = ef.bayesbag(ef.GeneralizedPosterior(few, 1.0), 400, resamples=8, seed=4)
    made["bagged posterior"] = bagged.values
    made["Q-posterior"] = ef.q_posterior(few, draws=200, seed=4).values
    for method in ("magnitude", "onizuka", "lyddon", "gpc", "matsubara"):
        rate = ef.select(ef.GeneralizedPosterior(few, 1.0), method, seed=5)
        made[f"select, {method}"] = np.array(rate.eta)
    return {name: _hash(value) for name, value in made.items()}


def _hash(value: object) -> str:
    data = value.tobytes() if isinstance(value, np.ndarray) else str(value).encode()
    return hashlib.sha256(data).hexdigest()


def _on(threads: int) -> dict[str, str]:
    """Return the fingerprints of a process with so many threads, on as many processors."""
    names = ("OMP", "OPENBLAS", "MKL", "NUMBA")
    environment = {**os.environ, **{f"{name}_NUM_THREADS": str(threads) for name in names}}
    environment["ETAFREE_THREADS"] = str(threads)
    code = "import os, runpy, sys; "
    if hasattr(os, "sched_setaffinity"):
        code += f"os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[:threads]}); "
    code += f"runpy.run_path({__file__!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, str] = json.loads(done.stdout)
    return made


def test_one_thread_or_two_give_the_same_bytes() -> None:
    one, two = _on(1), _on(2)
    found = int(one.pop("threads")), int(two.pop("threads"))
    assert found == (1, min(2, len(os.sched_getaffinity(0))))
    assert len(one) == len(set(one.values()))  # the fingerprints tell things apart
    assert {name for name in one if one[name] != two[name]} == set()


def _written(folder: Path, workers: int) -> dict[str, bytes]:
    """Return the files of three small studies; times are left out, nothing else."""
    from etafree.paper.figure1 import write_figure1
    from studies.compare import write_compare
    from studies.coverage import write_coverage

    how: dict[str, Any] = {"workers": workers, "seed": 3, "progress": False}
    write_figure1(folder / "figure1", datasets=2, iterations=30, burn_in=10, **how)
    write_coverage(folder / "coverage", quick=True, only="heteroscedastic", **how)
    table = write_compare(folder / "compare", quick=True, only="correctly specified", **how)
    named = [path for path in folder.glob("*/*.*") if path.parent.name != "compare"]
    made = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in named}
    return made | {"compare": table.drop(columns="seconds").to_csv().encode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, bytes]:
    return _written(folder / "one", 1)


def test_one_worker_or_two_write_the_same_files(alone: dict[str, bytes], folder: Path) -> None:
    """Tables, pictures and pages to the byte, in all three studies."""
    both = _written(folder / "two", 2)
    assert {
        "figure1/figure1.svg",
        "figure1/report.html",
        "coverage/coverage.png",
        "coverage/coverage.csv",
        "coverage/study.json",
        "compare",
    } <= set(alone)
    assert {name for name in alone if alone[name] != both[name]} == set()


# Seed, versions and settings stand in every output


def test_studies_say_how_they_were_made(alone: dict[str, bytes], folder: Path) -> None:
    study = json.loads(alone["figure1/study.json"])
    assert (study["seed"], study["made_with"]) == (3, made_with())
    assert study["settings"]["iterations"] == 30
    cell = next((folder / "one" / "figure1" / "cells").iterdir())
    meta = _meta(cell)
    assert (meta["seed"], meta["made_with"]) == (3, made_with())
    assert meta["parameters"]["burn_in"] == 10
    for name in ("figure1/figure1.png", "figure1/figure1.svg", "figure1/report.html"):
        assert b"seed = 3, iterations = 30, burn-in = 10, target = 0.8163" in alone[name], name
        assert f"made with = {made_with()}".encode() in alone[name], name
    for name in ("coverage/coverage.png", "coverage/report.html"):
        assert b"seed = 3" in alone[name], name
        assert made_with().encode() in alone[name], name
    page = (folder / "one" / "compare" / "report.html").read_text()
    assert "seed = 3" in page
    assert made_with() in page


def _meta(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        meta: dict[str, Any] = json.loads(str(file["__meta__"]))
    return meta


def test_results_say_how_they_were_made(tmp_path: Path) -> None:
    posterior = ef.GeneralizedPosterior(criterion(3, 400), 0.5)
    draws = ef.sample(posterior, 200, seed=11)
    result = ef.calibrate(draws, posterior, clusters=groups(400), seed=12, level=0.9)
    meta = _meta(result.save(tmp_path / "result"))
    assert meta["made_with"] == made_with()
    assert (meta["settings"]["seed"], meta["settings"]["level"]) == (12, 0.9)
    assert meta["sampler"]["info"]["seed"] == 11
    loaded = ef.Calibration.load(tmp_path / "result")
    assert loaded.settings == result.settings
    for made in (result, loaded):
        attributes = made.to_arviz()["posterior"].attrs
        assert (attributes["draws_seed"], attributes["calibration_seed"]) == (11, 12)
        assert attributes["calibration_made_with"] == made_with()
        page = made.report(tmp_path / "page.html", force=True).read_text()
        for term, text in {
            "seed of the draws": 11,
            "seed": 12,
            "calibrated with": made_with(),
        }.items():
            assert re.search(rf"<dt>{term}</dt>\s*<dd>{text}</dd>", page), term


def test_seeds_that_nobody_chose_are_told_and_give_the_same_draws() -> None:
    posterior = ef.GeneralizedPosterior(criterion(3, 400), 0.5)
    few = posterior.criterion
    for draw in (
        lambda seed: ef.sample(posterior, 100, seed=seed),
        lambda seed: ef.bootstrap(few, 50, seed=seed),
        lambda seed: ef.martingale_posterior(few, 50, horizon=30, seed=seed),
        lambda seed: ef.bayesbag(posterior, 100, resamples=5, seed=seed),
    ):
        for seed in (None, np.random.SeedSequence(7, spawn_key=(2,))):
            first = draw(seed)
            told = str(first.info["seed"])
            entropy, key = re.fullmatch(
                r"SeedSequence\(([^()]*?)(?:, spawn_key=\((.*)\))?\)", told
            ).groups()
            entropy = json.loads(entropy)
            again = np.random.SeedSequence(entropy, spawn_key=(2,) if key else ())
            assert draw(again).values.tobytes() == first.values.tobytes(), told
        assert draw(np.random.default_rng(1)).info["seed"] == "a Generator"
        assert draw(2**64).info["seed"] == str(2**64)


def test_what_is_printed_says_how_it_was_made(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(60)
    pd.DataFrame({"x": x, "y": x + rng.standard_normal(60)}).to_csv(tmp_path / "data.csv")
    done = CliRunner().invoke(
        app,
        [
            "select",
            str(tmp_path / "data.csv"),
            "--formula",
            "y ~ x",
            "--loss",
            "squared",
            "--seed",
            "4",
        ],
    )
    assert done.output.splitlines()[-1] == f"seed 4, level 0.95; {made_with()}"
    for name in ("numpy", "scipy", "numba"):
        assert f"{name} {version(name)}" in made_with()


def _threads() -> str:
    """Return the most threads that BLAS may use here."""
    from threadpoolctl import threadpool_info

    return str(max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"))


if __name__ == "__main__":
    print(json.dumps({**fingerprints(), "threads": _threads()}))

"""A short run of `fuzzing`, what it found, and paths with spaces and other scripts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import etafree as ef
import fuzzing
from etafree.cli import app
from etafree.errors import InputError
from fuzzed import TARGETS, frame, stored
from studies.__main__ import app as studies_app

#: Inputs of each target; the costly ones get fewer.
SHORT = {
    "names": 4,
    "zarr": 4,
    "command": 6,
    "select": 4,
    "parquet": 12,
    "npz_contents": 15,
    "bad_netcdf": 15,
    "bad_zarr": 5,
    "bad_npz": 6,
    "bad_parquet": 3,
    "bad_text": 10,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # h5netcdf's
@pytest.mark.parametrize("name", TARGETS)
def test_generated_inputs_give_a_result_or_the_librarys_own_error(name):
    made = fuzzing.run({name: (TARGETS[name][0], SHORT.get(name, 30))})
    assert made["findings"] == []


def test_the_short_run_has_hundreds_of_inputs_and_the_full_one_ten_thousand():
    assert sum(SHORT.get(name, 30) for name in TARGETS) >= 300
    assert sum(count for _, count in TARGETS.values()) >= 10_000


def test_an_input_is_the_same_whenever_it_is_asked_for():
    seen = []

    def target(rng, folder):
        seen.append(fuzzing.spoiled_bytes(rng, b"0123456789"))

    fuzzing.run({"a": (target, 3)})
    fuzzing.run({"a": (target, 2)}, first=1)
    assert seen[1:3] == seen[3:]
    assert seen[0] != seen[1]


def run_code(rng, folder):
    eval(fuzzing.RUN_CODE)


def start_a_process(rng, folder):
    os.system("true")


def raise_another_error(rng, folder):
    raise KeyError("a")


def leave_half_a_file(rng, folder):
    (folder / ".result.part").touch()


def write_a_name_as_it_is(rng, folder):
    fuzzing.check_page("<p><script></p>", ["<script>"])


def hang(rng, folder):
    while True:
        pass


WRONG = [run_code, start_a_process, raise_another_error, leave_half_a_file, write_a_name_as_it_is]


@pytest.mark.parametrize("target", [*WRONG, hang])
def test_what_must_not_happen_is_found(target, monkeypatch):
    monkeypatch.setattr(fuzzing, "PATIENCE", 1)
    assert len(fuzzing.run({"wrong": (target, 1)})["findings"]) == 1


def test_refusals_are_no_findings():
    def refuse(rng, folder):
        raise InputError("a", "is wrong")

    assert fuzzing.run({"fine": (refuse, 2)})["targets"]["fine"]["refused"] == 2


# --- what the full run found --------------------------------------------------------------------

DRAWS = ef.Draws.of(np.random.default_rng(0).standard_normal((60, 2)), ["a", "b"])
FOUND = {
    "names of other parameters": lambda: DRAWS.select(["a", "c"]),
    "names that are a number": lambda: DRAWS.select(3.0),
    "a name of half a character": lambda: ef.Draws.of(np.zeros((9, 1)), ["\ud800"]),
    "a learning rate that is text": lambda: ef.Draws(np.zeros((1, 9, 1)), ("a",), "1"),
    "more draws than any memory holds": lambda: ef.bootstrap(small(), 10**12),
    "a correction that is an array": lambda: ef.target(small(), correction=np.zeros((0, 3))),
    "a scale whose square overflows": lambda: ef.losses.StudentT(4.0, scale=1e-300),
    "a scale that is an array": lambda: ef.losses.Modal(1.0, scale=np.ones(2)),
    "groups of several lengths": lambda: small(ef.penalties.GroupL1(1.0, [[1.0], [1.0, 2.0]])),
    "a penalty that is none": lambda: ef.RandomIntercept(
        np.ones((9, 1)), np.arange(9.0), np.arange(9) % 3, penalty=True
    ),
    "a penalty that overflows": lambda: ef.minimise(small(ef.penalties.Ridge(1.7e308))),
    "text among numbers": lambda: ef.Criterion.from_formula(
        "y ~ x", frame().assign(x=pd.Series([[1.0]] * len(frame()))), ef.losses.Squared()
    ),
}


def small(penalty=None):
    data = frame()[["x", "z"]].to_numpy(), frame()["y"].to_numpy()
    return ef.Criterion(ef.losses.Squared(), data, penalty)


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_refused(what):
    with pytest.raises(InputError):
        FOUND[what]()


def test_a_name_that_looks_like_mathematics_is_drawn_as_text(tmp_path):
    data = frame()[["x"]].to_numpy(), frame()["y"].to_numpy()
    criterion = ef.Criterion(ef.losses.Squared(), data, names=["$\\frac$"])
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), 100, seed=1)
    ef.calibrate(draws, criterion).plot().savefig(tmp_path / "plot.png")


# --- paths --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("with space, ünï 文字")
    (where / "a fit ü.nc").write_bytes(stored("netcdf"))
    (where / "a chain ü.csv").write_bytes(stored("stan"))
    frame()[:12].to_csv(where / "the data ü.csv", index=False)
    frame().to_csv(where / "a table ü.csv", index=False)
    return where


COMMANDS = {
    "calibrate": (
        "{}/a fit ü.nc",
        "--clusters",
        "{}/the data ü.csv:x",
        "--correction",
        "CR0",
        "--conditional",
        "-o",
        "{}/out ü.nc",
        "--report",
        "{}/page ü.html",
    ),
    "calibrate Stan": ("{}/a chain ü.csv", "--correction", "HC0", "-o", "{}/stan ü.nc"),
    "select": ("{}/a table ü.csv", "--formula", "y ~ x", "--clusters", "g"),
    "coverage": ("--out", "{}/coverage ü", "--quick", "--only", "Poisson", "--workers", "1"),
    "compare": (
        "--out",
        "{}/compare ü",
        "--quick",
        "--datasets",
        "2",
        "--only",
        "correctly",
        "--workers",
        "1",
    ),
    "figure1": (
        "--out",
        "{}/figure1 ü",
        "--datasets",
        "2",
        "--iterations",
        "20",
        "--burn-in",
        "5",
        "--workers",
        "1",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_paths_with_spaces_and_other_scripts_work(command, folder):
    arguments = [word.replace("{}", str(folder)) for word in COMMANDS[command]]
    commands = studies_app if command in ("coverage", "compare") else app
    done = CliRunner().invoke(commands, [command.split()[0], *arguments])
    assert done.exit_code in (0, 3), (done.output, done.exception)
    for word in arguments:
        if "ü" in word and not word.endswith(":x"):
            assert Path(word).exists()


def test_parquet_saves_and_pages_take_such_paths(folder):
    path = folder / "parts ü.parquet"
    frame().to_parquet(path)
    criterion = ef.Criterion.from_parquet(ef.losses.Squared(), str(path), "y ~ x")
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), 100, seed=1)
    made = ef.calibrate(draws, criterion)
    assert ef.Calibration.load(made.save(folder / "a save ü")).names == made.names
    assert "<html" in made.report(folder / "a page ü.html").read_text()

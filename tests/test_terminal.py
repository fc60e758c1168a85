"""What the command line prints, and to whom: pipes that close, names with escape codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from etafree.adapters.trees import write_netcdf
from etafree.terminal import CONTROL, plain

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and descriptors of POSIX")
COMMAND = [sys.executable, "-c", "from etafree.cli import main; main()"]
RED = "\x1b[31m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file and a fit, whose names and labels hold escape codes."""
    import xarray as xr

    where = tmp_path_factory.mktemp("terminal")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 80))
    rows = [f"{a},{b},{RED}{k % 3}\x07" for k, (a, b) in enumerate(zip(x, y, strict=True))]
    (where / "data.csv").write_text("x,y,g\n" + "\n".join(rows) + "\n")
    theta = rng.standard_normal((4, 250)) / 9
    dims = ("chain", "draw")
    tree = xr.DataTree.from_dict({
        "posterior": xr.Dataset({f"mu{RED}": (dims, theta)}),
        "log_likelihood": xr.Dataset({"y": ((*dims, "i"), -0.5 * (theta[..., None] - y) ** 2)}),
    })  # fmt: skip
    write_netcdf(tree, where / "fit.nc")
    return where


COMMANDS = {
    "version": ["version"],
    "help": ["select", "--help"],
    "select": ["select", "data.csv", "--formula", "y ~ x + C(g)"],
    "calibrate": ["calibrate", "fit.nc", "-o", "out.nc", "--force"],
    "mistake": ["select", "data.csv", "--formula", f"y ~ {RED}x"],
    "no such column": ["calibrate", "fit.nc", "--clusters", f"data.csv:{RED}"],
    "no such file": ["select", f"{RED}.csv", "--formula", "y ~ x"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_control_characters_do_not_reach_the_terminal(folder: Path, name: str) -> None:
    done = subprocess.run([*COMMAND, *COMMANDS[name]], capture_output=True, check=False, cwd=folder)
    told = (done.stdout + done.stderr).decode()
    assert told
    assert not CONTROL.search(told), told
    assert "Traceback" not in told
    assert (r"\x1b" in told) == (name not in ("version", "help"))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_went_away_is_no_error(folder: Path, name: str, both: bool) -> None:
    (folder / "out.nc").unlink(missing_ok=True)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, *COMMANDS[name]], stdout=writing, check=False, cwd=folder,
            stderr=writing if both else subprocess.PIPE,
        )  # fmt: skip
    finally:
        os.close(writing)
    wrong = name in ("mistake", "no such column", "no such file")
    assert done.returncode in ((2,) if wrong else (0, 1) if name == "help" else (0,))
    assert wrong or both or b"rror" not in done.stderr, done.stderr
    assert (folder / "out.nc").exists() == (name == "calibrate")  # the work was done


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("name", ["version", "calibrate", "mistake"])
def test_closed_streams_are_no_error_and_no_file_takes_their_place(
    folder: Path, name: str, closed: str
) -> None:
    (folder / "out.nc").unlink(missing_ok=True)
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *COMMANDS[name]],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == (2 if name == "mistake" else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if name == "calibrate":
        assert (folder / "out.nc").read_bytes()[1:4] == b"HDF"


def test_text_without_control_characters_is_printed_as_it_is() -> None:
    for text in ("a\tb\nc", "Gemüse, 数学, 🎲", "x = 1 ± 2", ""):
        assert plain(text) == text
    for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066, 0xD800):
        assert plain(chr(code)).isprintable()

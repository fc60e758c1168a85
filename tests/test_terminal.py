"""What the command line prints, and to whom: pipes that close, names with escape codes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import etafree as ef
from etafree.cli import main
from etafree.fits.trees import write_netcdf
from etafree.foundation import terminal
from etafree.foundation.terminal import CONTROL, counted, plain

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
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({f"mu{RED}": (dims, theta)}),
            "log_likelihood": xr.Dataset({"y": ((*dims, "i"), -0.5 * (theta[..., None] - y) ** 2)}),
        }
    )
    write_netcdf(tree, where / "fit.nc")
    return where


COMMANDS = {
    "version": ["--version"],
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
            [*COMMAND, *COMMANDS[name]],
            stdout=writing,
            check=False,
            cwd=folder,
            stderr=writing if both else subprocess.PIPE,
        )
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
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == (2 if name == "mistake" else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if name == "calibrate":
        assert (folder / "out.nc").read_bytes()[1:4] == b"HDF"


SURROUNDINGS = {
    "no locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ASCII": {"PYTHONIOENCODING": "ascii"},
    "a dumb terminal": {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "1"},
    "no home": {"HOME": "/proc/none", "MPLCONFIGDIR": "/proc/none", "NUMBA_CACHE_DIR": "/proc/no"},
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_odd_surroundings_are_no_error(folder: Path, tmp_path: Path, name: str) -> None:
    out, page = tmp_path / "out ü\n.nc", tmp_path / "page \udcc3.html"
    done = subprocess.run(
        [*COMMAND, "calibrate", "fit.nc", "-o", os.fsencode(out), "--report", os.fsencode(page)],
        capture_output=True,
        check=False,
        cwd=folder,
        env={**os.environ, **SURROUNDINGS[name]},
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert not CONTROL.search(page.read_text())
    assert out.exists()


READ_ONLY = """
import numba, numpy as np
from numba.core import caching

def nowhere(*_):
    raise RuntimeError("cannot cache function: no locator available")

caching.FunctionCache.__init__ = nowhere
import etafree as ef
from etafree.totals.sweep import scatter
from etafree.samplers.gibbs import gibbs_chains

out = np.zeros((2, 1))
scatter(out, np.array([0, 1, 1]), np.ones(3), np.ones((3, 1)))
print(out.ravel().tolist())
"""


def test_compiled_loops_run_where_nothing_can_be_cached() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[1.0, 2.0]", done.stderr


COMPILES = """
import errno, importlib.util, sys
from numba.core import caching

sys.stderr.isatty = lambda: SEEN
def refused(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
def nowhere(*_):
    raise RuntimeError("cannot cache function: no locator available")
if DISK == "full":
    caching.FunctionCache._save_overload = refused
if DISK == "none":
    caching.FunctionCache.__init__ = nowhere
spec = importlib.util.spec_from_file_location("etafree.example", "example.py")
example = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
print(example.twice(2.0), example.twice(3), example.thrice(1.0))
"""
EXAMPLE = """
from numba import float64
from etafree.foundation.compiler import jit

@jit()
def twice(x):
    return 2 * x

@jit(float64(float64))
def thrice(x):
    return 3 * x
"""


def test_a_terminal_is_told_once_that_a_first_call_compiles(tmp_path: Path) -> None:
    """The call after it, in another process, finds the code on disk; scripts are told nothing."""
    (tmp_path / "example.py").write_text(EXAMPLE)

    def lines(disk: str, seen: bool = True, folder: str = "kept", **surroundings: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", f"SEEN, DISK = {seen}, {disk!r}\n{COMPILES}"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / folder), **surroundings},
        )
        assert done.stdout == "4.0 6 3.0\n", done.stderr
        return done.stderr.splitlines()

    first = lines("free")
    assert len(first) == 1
    assert first[0].startswith("etafree: compiling for this processor, once; it is kept in ")
    assert str(tmp_path / "kept") in first[0]
    assert lines("free") == []
    assert lines("none") == [
        "etafree: compiling for this processor, anew in every session; "
        "set NUMBA_CACHE_DIR to a folder that can be written"
    ]
    kept, lost = lines("full", folder="full")
    assert "once" in kept
    assert "cannot be kept (No space left on device)" in lost
    assert lines("none", seen=False) == lines("full", seen=False, folder="full") == []
    assert lines("none", ETAFREE_PROGRESS="0") == []


def test_a_folder_that_cannot_be_written_to_is_one_line(folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "calibrate", str(folder / "fit.nc"), "-o", "out.nc"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/proc/self",
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr.splitlines()[-1]


def test_memory_that_does_not_suffice_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted() -> None:
        raise MemoryError

    monkeypatch.setattr("etafree.cli.app", exhausted)
    with pytest.raises(SystemExit) as info:
        main()
    assert info.value.code == 2
    assert "not enough memory" in capsys.readouterr().err


def test_names_do_nothing_to_terminals_pages_and_pictures(tmp_path: Path) -> None:
    names = [f"a{RED}", "b\u202e", "c\nd", "e\x00", "</script><script>", "f / g", "$\\frac$"]
    rng = np.random.default_rng(0)
    draws, k = rng.standard_normal((200, len(names))), len(names)
    result = ef.calibrate(ef.Draws.of(draws, names), center=np.zeros(k), covariance=np.eye(k))
    page = result.report(tmp_path / "page.html").read_text()
    for text in (str(result), result._repr_html_(), page):
        assert not CONTROL.search(text)
        assert r"a\x1b[31m" in text
    assert "</script><script>" not in page + result._repr_html_()
    result.plot().savefig(tmp_path / "plot.png")  # a glyph that no font has would warn
    again = result.to_arviz()["posterior"]
    assert "f \u2215 g" in again.data_vars
    assert ef.Calibration.load(result.save(tmp_path / "save")).names == tuple(names)


def test_text_without_control_characters_is_printed_as_it_is() -> None:
    for text in ("a\tb\nc", "Gemüse, 数学, 🎲", "x = 1 ± 2", ""):
        assert plain(text) == text
    for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066, 0xD800):
        assert plain(chr(code)).isprintable()


NAMED = [sys.executable, "-c", "import sys; sys.argv[0] = 'etafree'; " + COMMAND[2]]


@pytest.mark.parametrize(
    ("words", "completed"),
    [("etafree cal", "calibrate"), ("etafree select --bandw", "--bandwidth")],
)
def test_the_shell_completes_commands_and_options(words: str, completed: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    environment = {**os.environ, **asked, "_ETAFREE_COMPLETE": "complete_bash"}
    done = subprocess.run(NAMED, capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout.split(), done.stderr) == ([completed], "")


def test_the_completion_can_be_installed() -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    asked = [*NAMED, "--show-completion", "bash"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    assert "_ETAFREE_COMPLETE=complete_bash" in done.stdout
    assert done.stdout.rstrip().endswith("etafree")


def test_help_imports_nothing_that_it_does_not_need() -> None:
    """A shell that completes a word waits for it."""
    heavy = {"numpy", "numba", "scipy", "pandas", "xarray", "jax", "formulaic", "narwhals"}
    heavy |= {"pyarrow", "matplotlib", "etafree.calibrate", "etafree.result"}
    work = (
        "from etafree.cli import main\ntry: main()\nfinally: assert not LOADED & sys.modules.keys()"
    )
    for words in ([], ["calibrate"], ["check"], ["select"], ["figure1"]):
        script = f"import sys; LOADED = {heavy}; sys.argv[1:] = {[*words, '--help']}\n{work}"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "--help" in done.stdout


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("switch", ["1", "0"])
def test_work_that_counts_nothing_is_shown_after_a_while_unless_switched_off(
    monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "LONG", 0.01)
    monkeypatch.setenv("ETAFREE_PROGRESS", switch)
    with counted(None, "compiling"), counted(7, "drawing") as step:
        step(1)
        deadline = time.monotonic() + 60
        while "drawing" not in screen.getvalue() and time.monotonic() < deadline and switch == "1":
            time.sleep(0.01)
    assert ("compiling" in screen.getvalue()) == (switch == "1")
    assert ("drawing" in screen.getvalue()) == (switch == "1")
    assert terminal._DISPLAY._progress is None


def test_nothing_is_shown_or_loaded_where_nobody_looks() -> None:
    code = (
        "import sys, etafree as ef, numpy as np; from etafree.foundation import terminal\n"
        "terminal.LONG = 0.0\n"
        "criterion = ef.Criterion(ef.losses.Squared(), (np.ones((9, 1)), np.arange(9.0)))\n"
        "ef.select(criterion); ef.bootstrap(criterion, 200)\n"
        "assert 'rich' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == done.stderr == b""


def test_the_display_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setattr(terminal, "LONG", 0.01)

    @terminal.shown("working")
    def interrupted() -> None:
        time.sleep(0.1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal._DISPLAY._progress is None
    assert terminal._DISPLAY._lines == 0

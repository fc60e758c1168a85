"""The package: wheel and sdist, what they say about themselves, and a life in an empty environment.

`make dist` runs these tests on what it built, in $ETAFREE_DIST.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from typer.main import get_command

import etafree as ef
from etafree.cli import app
from etafree.errors import GUIDES, InputError, MissingExtraError
from extras import python_of

ROOT = Path(__file__).parents[1]
BUILT = os.environ.get("ETAFREE_DIST")
PINNED = os.environ.get("ETAFREE_CONSTRAINTS", "")  # what make installed with; nothing: the newest
pytestmark = pytest.mark.xdist_group("package")


def run(*command, cwd: Path = ROOT, code: int = 0) -> str:
    """Return what a command printed; it must end with that exit code."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and an sdist."""
    if BUILT:
        return ROOT / BUILT
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("etafree-*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment with the wheel and its core dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = python_of(folder)
    pins = ["-c", ROOT / PINNED] if PINNED else []
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-compile",
            *pins,
            wheel,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    unreachable = re.search("NewConnectionError|name resolution|unreachable", done.stderr)
    if done.returncode and unreachable and not BUILT:
        pytest.skip("no package index to install from")
    assert done.returncode == 0, done.stderr
    return python


def metadata(wheel: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        parsed = HeaderParser().parsestr(archive.read(name).decode())
    return {key: parsed.get_all(key) for key in parsed}


def test_twine_finds_nothing_wrong(dist: Path) -> None:
    assert (
        run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()).count("PASSED")
        == 2
    )


def test_the_metadata_is_complete(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Version"] == [ef.__version__]
    assert said["Requires-Python"] == [">=3.11"]
    assert said["License-Expression"] == ["MIT"]
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in said["Classifier"]
    assert "Typing :: Typed" in said["Classifier"]
    assert said["Project-URL"] == ["Paper, https://arxiv.org/abs/2511.15320"]
    assert len(said["Keywords"][0].split(",")) >= 5


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/etafree/_version.py"
    assert f"## [{ef.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


def test_the_files_that_must_be_there_are(dist: Path, wheel: Path) -> None:
    source = {
        p.relative_to(ROOT / "src").as_posix()
        for p in (ROOT / "src" / "etafree").rglob("*")
        if p.is_file() and p.parent.name != "__pycache__"
    }
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert {name for name in inside if not name.startswith("etafree-")} == source
    assert "etafree/py.typed" in inside
    (sdist,) = dist.glob("etafree-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {
        "CITATION.cff",
        "LICENSE",
        "Makefile",
        "README.md",
        "constraints/3.11.txt",
        "docs/conf.py",
        "pyproject.toml",
        "tests/smoke.py",
        "src/etafree/py.typed",
    } <= names
    assert not [name for name in names if re.match(r"\.venv|build/|docs/(generated|auto_)", name)]


def test_every_extra_is_documented_and_in_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    users = sorted(set(extras) - {"all", "dev", "docs", "races"})
    assert extras["all"] == [f"etafree[{','.join(users)}]"]
    text = (ROOT / "docs" / "install.md").read_text()
    for extra in (*users, "all"):
        assert f"| `etafree[{extra}]` |" in text


def pinned(path: Path) -> dict[str, str]:
    """Return the versions in a file of constraints, by normalised name."""
    lines = [line.split(";")[0].strip() for line in path.read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


@pytest.mark.skipif(not PINNED, reason="the newest versions are installed, not the tested ones")
@pytest.mark.skipif(sys.platform != "linux", reason="versions are pinned for Linux")
def test_the_constraints_hold_all_that_is_installed() -> None:
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    installed = {
        re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version
        for d in distributions(path=places)
    }
    for own in ("etafree", "pip", "setuptools", "wheel"):
        installed.pop(own, None)
    assert installed.items() <= pinned(ROOT / PINNED).items()


@pytest.mark.parametrize("minor", ["3.11", "3.12", "3.13", "3.14"])
def test_every_python_has_constraints_with_all_that_is_asked_for(minor: str) -> None:
    """Direct requirements of every extra are pinned within their bounds, where markers hold."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    versions = pinned(ROOT / "constraints" / f"{minor}.txt")
    assert f"Programming Language :: Python :: {minor}" in project["classifiers"]
    for line in chain(project["dependencies"], *extras):
        wanted = Requirement(line)
        here = {"python_version": minor, "sys_platform": "linux"}
        if wanted.name == "etafree" or (wanted.marker and not wanted.marker.evaluate(here)):
            continue
        assert versions[re.sub(r"[-_.]+", "-", wanted.name).lower()] in wanted.specifier, line


def test_the_citation_names_software_and_paper() -> None:
    """The keys that version 1.2.0 of the format requires, and the paper's."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)
    assert cited["license"] == "MIT"
    (paper,) = cited["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert [person["family-names"] for person in paper["authors"]] == ["Tamano", "Tomo"]
    assert paper["title"] == "Location–Scale Calibration for Generalized Posterior"
    assert re.fullmatch(r"10\.\d{4,9}/\S+", paper["doi"])
    assert paper["url"].rsplit("/", 1)[1] == "2511.15320"


def test_an_installed_wheel_works_and_says_what_is_missing(clean: Path, tmp_path: Path) -> None:
    told = run(clean, "-W", "error", ROOT / "tests" / "smoke.py", cwd=tmp_path).splitlines()
    assert len(told) == 9
    assert all(
        re.search(r'^an extra is missing for .+: pip install "etafree\[\w+\]"$', line)
        for line in told
    )
    command = clean.parent / "etafree"
    assert run(command, "--version").strip() == ef.__version__
    files = ("-o", "new.nc", "--report", "new.html")
    assert "40 clusters" in run(
        command, "calibrate", "fit.nc", "--clusters", "data.csv:group", *files, cwd=tmp_path
    )
    assert {"new.nc", "new.html"} <= {p.name for p in tmp_path.iterdir()}
    asked = ("figure1", "--out", "out", "--scheduler", "tcp://127.0.0.1:1")
    line = run(command, *asked, cwd=tmp_path, code=2)
    assert line.strip().endswith('Dask clusters: pip install "etafree[dask]"')


def test_a_zarr_store_without_zarr_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    (tmp_path / "fit.zarr").mkdir()
    with pytest.raises(MissingExtraError, match=r'zarr stores: pip install "etafree\[arviz\]"$'):
        ef.calibrate(tmp_path / "fit.zarr")


def test_the_landing_page_is_enough(clean: Path, tmp_path: Path) -> None:
    """Its blocks run in the empty environment; the one that needs PyMC says so and is left out."""
    text = (ROOT / "docs" / "index.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    core = [block for block in blocks if "import pymc" not in block]
    assert len(core) == len(blocks) - 1
    script = tmp_path / "copied.py"
    script.write_text("\n".join(core))
    assert "diagnostics: all ok" in run(clean, "-W", "error", script, cwd=tmp_path)


def commands() -> dict[str, object]:
    return {"": get_command(app), **get_command(app).commands}


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_an_example_that_parses(name: str) -> None:
    """On one line of 80 columns, so that it can be copied."""
    examples = re.findall(r"Example: etafree (.*)", commands()[name].help)
    assert examples
    for example in examples:
        assert len(f" Example: etafree {example}") <= 80
        used, *rest = shlex.split(example)
        assert used == (name or used)
        commands()[used].make_context(used, rest)


def test_help_of_calibrate_fits_on_a_screen_before_the_details() -> None:
    """As Python 3.11 and 3.12 print it; 3.13 gives every argument of the signature a line."""
    summary = inspect.getdoc(ef.calibrate).split("Parameters\n")[0]
    text = f"calibrate{inspect.signature(ef.calibrate)}\n{summary}"
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 80) or [""]]
    assert len(lines) <= 38  # below two lines of pydoc's
    assert ">>> " in summary


def test_errors_name_the_guides_page() -> None:
    assert GUIDES["weights"] == "guides/weights"
    told = str(InputError("weights", "sum to 0"))
    assert told == "weights: sum to 0 (see guides/weights)"
    with pytest.raises(InputError, match=r"\(see guides/eta\)$"):
        ef.GeneralizedPosterior(
            ef.Criterion(ef.losses.Squared(), ([[1.0], [1.0]], [0.0, 1.0])), -1.0
        )
    assert str(InputError("path", "is missing")) == "path: is missing"

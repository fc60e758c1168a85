"""A light import, and documents that run."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import etafree
from conftest import ROOT, STRICT


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_waits_for_no_other_package() -> None:
    """Not even for numpy: names are imported when they are asked for."""
    code = """
import sys
before = set(sys.modules)
import etafree
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - {"etafree"} - sys.stdlib_module_names))
print(sorted(name for name in sys.modules if name.startswith("etafree.")))
"""
    assert run(code).splitlines() == ["[]", "['etafree._version', 'etafree.errors']"]


def test_public_names_are_found_where_type_checkers_find_them() -> None:
    tree = ast.parse(Path(etafree.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    stated = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "etafree"
        for alias in node.names
    }
    homes = {name: f"etafree.{module}" for name, module in etafree.MODULE_OF.items()}
    assert stated == homes
    assert {*homes, *etafree.MODULES, "errors", "__version__"} == set(etafree.__all__)


def test_functions_keep_their_names_when_modules_of_these_names_are_imported() -> None:
    """In whatever order: Python binds every module that is imported to its package's attribute."""
    code = """
import importlib, pkgutil, sys, types
import etafree
modules = {module.name for module in pkgutil.iter_modules(etafree.__path__)}
same = sorted(modules & etafree.MODULE_OF.keys())
print(same)
for name in same:
    importlib.import_module(f"etafree.{name}")
assert all(isinstance(getattr(etafree, name), types.FunctionType) for name in same)
import etafree.samplers.expansion
assert etafree.samplers is sys.modules["etafree.samplers"]
assert etafree.losses.Huber is sys.modules["etafree.losses"].Huber
try:
    etafree.calibrat
except AttributeError as error:
    print(error)
etafree.sample = "a user's own"
print(etafree.sample, len(dir(etafree)) == len(etafree.__all__))
"""
    assert run(code).splitlines() == [
        "['calibrate', 'q_posterior', 'target']",
        "module 'etafree' has no attribute 'calibrat'",
        "a user's own True",
    ]


HEAVY = ("scipy.stats", "numba", "jax", "pandas", "matplotlib", "arviz_stats", "formulaic")


def test_importing_loads_nothing_heavy() -> None:
    code = f"import sys, etafree; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_a_small_fit_and_calibration_loads_nothing_heavy() -> None:
    code = f"""
import sys
import numpy as np
import etafree as ef
rng = np.random.default_rng(0)
X = rng.standard_normal((200, 2))
y = X.sum(axis=1) + rng.standard_normal(200)
criterion = ef.Criterion(ef.losses.Huber(1.345), data=(X, y))
result = ef.calibrate(rng.standard_normal((1000, 2)), criterion, clusters=np.arange(200) // 5)
assert result.draws.array.shape == (1000, 2)
print([m for m in {HEAVY!r} if m in sys.modules])
"""
    assert run(code).strip() == "[]"


DOCUMENTS = sorted(
    p.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "docs/guides/*.md", "docs/theory/*.md")
    for p in ROOT.glob(pattern)
)


@pytest.mark.parametrize("name", [d for d in DOCUMENTS if "```python" in (ROOT / d).read_text()])
def test_documents_run_and_print_what_they_say(name: str, tmp_path: Path) -> None:
    """Python blocks run one after another; a ```text block after one is what it prints.

    Tables that a page links to are where its reader has them, in the working directory.
    """
    text = (ROOT / name).read_text()
    for table in re.findall(r"\]\((\w+\.csv)\)", text):
        shutil.copy((ROOT / name).parent / table, tmp_path)
    parts = re.findall(r"```python\n(.*?)```\s*(?:```text\n(.*?)```)?", text, flags=re.S)
    assert parts
    code, expected = "", []
    for block, output in parts:
        code += block + "\n"
        if output:
            expected.append(output.strip("\n"))
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    for output in expected:
        for line in output.splitlines():
            assert line.rstrip() in printed, f"not printed: {line!r}\n{done.stdout}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_name_files_that_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"
    for target in re.findall(r"(?:`|^)make (\w+)", text, flags=re.M):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.M), target

"""A light import, and documents that run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, STRICT


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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

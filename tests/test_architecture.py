"""The shape of the code: one-way imports, a light import, documents that run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, STRICT

SOURCE = ROOT / "src" / "etafree"

#: Each module imports only from those above it.
ORDER = [
    "_version",
    "errors",
    "terminal",
    "validation",
    "axes",
    "linalg",
    "claims",
    "storage",
    "threads",
    "compiled",
    "sums",
    "losses.base",
    "losses.residual",
    "losses.quantile",
    "losses.modal",
    "losses.normal_laplace",
    "losses.likelihood",
    "losses",
    "scale",
    "totals",
    "linear",
    "rows",
    "weights",
    "columns",
    "folders",
    "machines",
    "parts",
    "labels",
    "pytrees",
    "marginal",
    "predictors",
    "kernels",
    "jax_total",
    "autodiff",
    "pairs",
    "differences",
    "pairwise",
    "penalties.norms",
    "penalties.smooth",
    "penalties.active",
    "penalties.kinks",
    "penalties",
    "pointwise",
    "screening",
    "expressions",
    "formula",
    "passes",
    "streamed",
    "tables",
    "criterion",
    "newton",
    "quadratic",
    "proximal",
    "optimize",
    "posterior",
    "draws",
    "row_losses",
    "influence",
    "samplers.variational",
    "samplers.lasso",
    "samplers.importance",
    "samplers.elliptical",
    "samplers.quadrature",
    "samplers.streams",
    "samplers.gibbs",
    "samplers.nuts",
    "samplers",
    "centers",
    "satterthwaite",
    "checks",
    "fits",
    "dependence",
    "meat",
    "multiway",
    "survey",
    "serial",
    "targets",
    "jackknife",
    "leverage",
    "active",
    "sandwich",
    "calibration",
    "plug_in",
    "diagnostics",
    "inference",
    "wild",
    "functional",
    "batched",
    "bootstrap",
    "q_posterior",
    "learning_rates.information",
    "learning_rates.problem",
    "learning_rates.rate",
    "learning_rates.regions",
    "learning_rates.conjugate",
    "learning_rates.magnitude",
    "learning_rates.lyddon",
    "learning_rates.gpc",
    "learning_rates.matsubara",
    "learning_rates.safebayes",
    "learning_rates.holmes_walker",
    "learning_rates.kl_to_bayes",
    "learning_rates",
    "adapters.stores",
    "adapters.trees",
    "adapters.observations",
    "adapters.portable",
    "adapters.stored",
    "adapters.latent",
    "adapters.arviz",
    "adapters.densities",
    "adapters.marginal",
    "adapters.pymc",
    "adapters.bambi",
    "adapters.numpyro",
    "adapters.stan",
    "adapters",
    "archive",
    "summaries",
    "variables",
    "report.plots",
    "report.page",
    "report.sweep",
    "report.calibration",
    "report.figure1",
    "report.coverage",
    "report.compare",
    "report",
    "answers",
    "result",
    "wiring",
    "api",
    "csv_table",
    "files",
    "tabulated",
    "models.whitening",
    "models.mixed",
    "models",
    "studies.outputs",
    "studies.workers",
    "studies.engine",
    "studies.random_intercept",
    "studies.figure1",
    "studies.problem",
    "studies.families",
    "studies.scenarios",
    "studies.coverage",
    "studies.designs",
    "studies.compare",
    "studies",
    "cli",
]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Return the package's own modules that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("etafree"):
            rest = node.module.removeprefix("etafree").removeprefix(".")
            found |= {rest} if rest else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("etafree.") for a in node.names if "etafree" in a.name}
    return found


def test_every_module_stands_in_the_order() -> None:
    modules = {module_name(path) for path in SOURCE.rglob("*.py")} - {""}
    assert modules == set(ORDER)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_go_one_way(path: Path) -> None:
    name = module_name(path)
    if name == "":
        return
    for other in imported(path):
        assert other in ORDER, f"{name} imports {other}"
        assert ORDER.index(other) < ORDER.index(name), f"{name} imports {other}, which is below it"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_files_stay_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 400, f"{path.name} has {len(lines)} lines"


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
    """Python blocks run one after another; a ```text block after one is what it prints."""
    text = (ROOT / name).read_text()
    parts = re.findall(r"```python\n(.*?)```\s*(?:```text\n(.*?)```)?", text, flags=re.S)
    assert parts
    code, expected = "", []
    for block, output in parts:
        code += block + "\n"
        if output:
            expected.append(output.strip("\n"))
    done = subprocess.run(
        [sys.executable, *STRICT, "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
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
    for target in re.findall(r"make (\w+)", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.M), target

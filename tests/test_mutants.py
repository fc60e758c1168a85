"""The changes that `make mutants` tries, and the list of those that change nothing."""

from __future__ import annotations

import subprocess
import sys

import mutants
from mutations import mutants_of

EXAMPLE = '''
def f(x: Array, axis: int = 0) -> Array:
    """Return -1 * x."""
    if x.min() < 0:
        raise ValueError("x - 1 is not > 0")
    assert x[0] > 0
    y: Array = np.sqrt(x.T @ x).sum(axis=0)
    y[1:] += 2.0
    return y if axis else -y
'''


def test_changes_are_of_numbers_and_not_of_errors(tmp_path):
    path = tmp_path / "example.py"
    path.write_text(EXAMPLE)
    found = [one.change.removeprefix("example.f: ") for one in mutants_of(path, "example")]
    assert found == [
        "x: Array, axis: int=0 -> x: Array, axis: int=1",
        "np.sqrt(x.T @ x).sum(axis=0) -> np.sqrt(x.T @ x).mean(axis=0)",
        "np.sqrt(x.T @ x) -> x.T @ x",
        "x.T @ x -> x @ x.T",
        "x.T -> x",
        "axis=0 -> axis=1",
        "np.sqrt(x.T @ x).sum(axis=0) -> np.sqrt(x.T @ x).sum(axis=1)",
        "y[1:] += 2.0 -> y[1:] -= 2.0",
        "y[1:] += 2.0 -> pass",
        "y[1:] -> y[2:]",
        "y[1:] += 2.0 -> y[1:] += 4.0",
        "return y if axis else -y -> return -(y if axis else -y)",
        "axis -> not axis",
        "-y -> y",
    ]


def test_mutants_have_names_of_their_own_and_compile():
    for module in mutants.MODULES:
        some = mutants_of(mutants.file_of(module), module)
        assert len({one.name for one in some}) == len(some)
        some[len(some) // 2].code(mutants.file_of(module))


def test_every_equivalent_change_is_still_one_of_them():
    changes = {
        one.change for name in mutants.MODULES for one in mutants_of(mutants.file_of(name), name)
    }
    assert set(mutants.equivalents()) <= changes


def test_whoever_imported_a_function_has_the_changed_one():
    code = (
        "import mutants\n"
        "from etafree.dependence.base import small_sample_factor\n"
        "from etafree.map import student_factor_grid\n"
        "def put(module, change):\n"
        "    every = mutants.mutants_of(mutants.file_of(module), module)\n"
        "    mutants.put_in(next(one for one in every if one.change == f'{module}.{change}'))\n"
        "put('dependence.base', "
        "'small_sample_factor: count / (count - 1) -> count * (count - 1)')\n"
        "assert small_sample_factor('CR1', 5, 9.0, 2) == 20\n"
        "put('map', 'student_factor_grid: np.arange(count) + 0.5 "
        "-> np.arange(count) - 0.5')\n"
        "assert student_factor_grid(4, 3.0)[1] < 0.8\n"  # behind a cache
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=mutants.ROOT / "tests", check=False)
    assert done.returncode == 0

"""The theory pages' simulations in a quick form, and the tables they print against the code."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import etafree as ef

FOLDER = Path(__file__).parents[1] / "docs" / "theory"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"theory_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tv, ls, plug, active = (
    load(name) for name in ("total_variation", "location_scale", "plug_in", "active_sets")
)


def recorded(name: str) -> list[str]:
    """Return the lines of a page's table."""
    return (FOLDER / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize("name", ["total-variation", "location-scale", "plug-in", "active-sets"])
def test_every_result_has_its_page_picture_and_table(name: str) -> None:
    page = (FOLDER / f"{name}.md").read_text()
    assert f"({name}.png)" in page
    assert f"{{literalinclude}} {name}.txt" in page
    assert (FOLDER / f"{name}.png").stat().st_size > 5000
    assert f"python docs/theory/{name.replace('-', '_')}.py" in page


def test_the_distance_falls_like_one_over_the_root_of_eta_n() -> None:
    for case in ("Poisson mean", "logistic slope, ridge", "logistic, fixed prior"):
        sizes = (200, 1800)
        means, errors = tv.distances(case, 1.0, sizes, datasets=6)
        assert np.all(errors < 0.2 * means)
        assert -0.62 < tv.slope(sizes, means) < -0.4, case
    ten_n, ten_eta = (
        tv.distances("Poisson mean", eta, (n,), datasets=6)[0][0]
        for n, eta in ((2000, 1.0), (200, 10.0))
    )
    assert abs(ten_n / ten_eta - 1) < 0.1


def test_the_constant_of_a_poisson_mean() -> None:
    rng = np.random.default_rng(0)
    assert round(tv.CONSTANT, 4) == 0.1330
    for eta in (0.1, 1.0):
        posterior = tv.poisson(4000, rng, eta)
        scaled = tv.distance(posterior) * np.sqrt(eta * posterior.criterion.total.y.sum())
        assert abs(scaled / tv.CONSTANT - 1) < 0.01


def test_huber_has_the_limit_with_two_derivatives() -> None:
    means, _ = tv.distances("Huber location", 1.0, (100, 1600), datasets=6)
    assert means[1] < 0.35 * means[0]


def test_a_ridge_as_a_prior_has_it_at_eta_one_only() -> None:
    sizes = (100, 1600)
    away, _ = tv.distances("logistic, ridge as a prior", 0.1, sizes, datasets=4)
    assert away[1] > 0.9 > away[0] > 0.3
    here, _ = tv.distances("logistic, ridge as a prior", 1.0, sizes, datasets=4)
    same, _ = tv.distances("logistic slope, ridge", 1.0, sizes, datasets=4)
    np.testing.assert_allclose(here, same, rtol=1e-6)


def test_the_table_of_distances_is_what_the_code_prints() -> None:
    lines = recorded("total-variation")
    assert len(lines) == 1 + len(tv.CASES) * len(tv.ETAS)
    for case in ("Poisson mean", "logistic, ridge as a prior"):
        means, _ = tv.distances(case, 0.1, (50, 200))
        (line,) = (row for row in lines if row.startswith(case) and row[31:36] == "  0.1")
        assert line[36:].split()[:2] == [f"{v:.4f}" for v in means]


def test_covariance_is_the_sandwich_at_every_eta() -> None:
    target, rows = ls.sweep((0.01, 1.0, 100.0), draws=500)
    before = [row.sd_before for row in rows]
    assert before[0] > 8 * before[1] > 60 * before[2]
    for row in rows:
        assert row.gap < 1e-12
        assert abs(row.sd_mapped / target.se[1] - 1) < 1e-12
        np.testing.assert_allclose(row.after.mean(axis=0), target.center, atol=1e-12)


def test_normal_posteriors_give_the_same_draws() -> None:
    assert ls.same_normals() < 1e-8


def test_the_table_of_spreads_is_what_the_code_prints() -> None:
    target, (row,) = ls.sweep((1.0,))
    lines = recorded("location-scale")
    assert lines[0].endswith(f" {target.se[1]:.5f}")
    (line,) = (text for text in lines if text.split()[:1] == ["1"])
    numbers = line.split()
    assert numbers[1:3] == [f"{row.sd_before:.5f}", f"{row.sd_mapped:.5f}"]
    assert numbers[4] == f"{row.shift:.2f}"


def test_parts_are_consistent_and_mapped_draws_exact() -> None:
    small, large = (plug.errors(n, datasets=40, draws=1000) for n in (100, 1600))
    assert large.target < 0.45 * small.target  # a quarter, with noise
    assert large.working < 0.25 * small.working
    assert max(small.calibrated, large.calibrated) < 1e-12


def test_the_printed_meat_adds_exactly_its_prediction() -> None:
    lines = recorded("plug-in")
    for groups in (100, 400):
        ratio, predicted = plug.printed_meat(groups)
        assert abs(ratio - predicted) < 1e-9
        assert ratio > 1.5
        assert any(line.split()[-2:] == [f"{ratio:.3f}"] * 2 for line in lines)


def test_scale_and_location_under_exponential_errors() -> None:
    y = np.linspace(0, 60, 600_001)
    density = np.exp(-y)
    r = np.clip((y - plug.LOCATION) / plug.SCALE, -plug.TUNING, plug.TUNING)
    assert abs(np.trapezoid(r * density, y)) < 1e-6
    reach = 0.6744897501960817 * plug.SCALE
    low, high = plug.LOCATION - reach, plug.LOCATION + reach
    assert abs(np.exp(-low) - np.exp(-high) - 0.5) < 1e-8


def test_an_estimated_scale_matters_for_skewed_errors_and_the_location_only() -> None:
    count = 300
    noise = 1 / np.sqrt(2 * count)  # relative, of a standard deviation
    bad = plug.nuisance(skewed=True, way="taken as known", datasets=count)
    assert bad.ratio[0] > 1.0 + 3 * noise
    assert bad.coverage[0] < 0.925
    for skewed, way in ((True, "given"), (False, "taken as known"), (True, "stacked")):
        good = plug.nuisance(skewed, way, datasets=count)
        assert np.all(np.abs(good.ratio - 1) < 4 * noise)
        assert np.all(np.abs(good.coverage - 0.95) < 4 * np.sqrt(0.05 * 0.95 / count))
    assert abs(bad.ratio[1] - 1) < 4 * noise


def test_the_target_solves_its_conditions() -> None:
    theta, pull = active.pseudo_true()
    np.testing.assert_allclose(theta, [1.55, -0.75, 0.55, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(pull[:3], active.STRENGTH * np.sign(theta[:3]))
    assert np.all(np.abs(pull[3:]) < active.STRENGTH)


def test_the_active_block_covers() -> None:
    count = 60
    made = active.coverage(1.0, datasets=count)
    assert made.selected == 1.0
    error = np.sqrt(0.95 * 0.05 / count)  # as if the three moved together
    assert abs(made.coverage[0] - 0.95) < 3.5 * error
    assert made.coverage[3] < 0.95 - 3.5 * error
    assert made.width[1] > 1.03 * made.width[0]


def test_inactive_draws_are_two_sided_exponential_before_the_map() -> None:
    limit = active.laplace_mean_size(float(active.pseudo_true()[1][-1]))
    x = np.linspace(-200, 200, 400_001)
    density = active.laplace(x, float(active.pseudo_true()[1][-1]))
    assert abs(np.trapezoid(density, x) - 1) < 1e-6
    assert abs(np.trapezoid(np.abs(x) * density, x) - limit) < 1e-4
    for eta in (1.0, 10.0):
        assert abs(np.abs(active.inactive_draws(6400, eta)).mean() / limit - 1) < 0.15


def test_the_table_of_inactive_draws_is_what_the_code_prints() -> None:
    made = [f"{np.abs(active.inactive_draws(400, eta)).mean():.2f}" for eta in (0.1, 1.0)]
    (line,) = (text for text in recorded("active-sets") if text.startswith("n = 400"))
    assert line.split()[3:5] == made


# ---------------------------------------------------------------- what of the paper is here


def paper_rows() -> list[list[str]]:
    lines = (FOLDER / "coverage-of-the-paper.md").read_text().splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
    return cells[1:]


def test_every_row_of_the_papers_table_names_a_call_and_a_test_that_exist() -> None:
    rows = paper_rows()
    assert len(rows) > 25
    for _, calls, test in rows:
        for call in re.findall(r"`([\w.]+)`", calls):
            first, *rest = call.split(".")
            if first == "etafree":
                module, _, name = call.rpartition(".")
                assert hasattr(importlib.import_module(module), name), call
            else:
                functools.reduce(owned_name, rest, ef)
        file, _, name = test.strip(" `").partition("::")
        text = (Path(__file__).parent / file).read_text()
        assert f"def {name}(" in text, test


def owned_name(owner: object, name: str) -> object:
    """Return an attribute, or the name of a dataclass's field."""
    return name if name in getattr(owner, "__dataclass_fields__", {}) else getattr(owner, name)

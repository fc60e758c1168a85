"""The study of group effects: what the guide shows is what was recorded, and it resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conftest import refused

pytest.importorskip("jax")
from studies.effects import DESIGNS, effects_markdown, run_effects

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
RECORDED = GUIDES / "effects-200.csv"


def test_the_guide_shows_the_recorded_table() -> None:
    table, page = pd.read_csv(RECORDED), (GUIDES / "hierarchical.md").read_text()
    assert list(dict.fromkeys(table["design"])) == list(DESIGNS)
    assert effects_markdown(table) in page


def test_groups_and_parameters_are_covered_where_the_model_is_right() -> None:
    table = pd.read_csv(RECORDED).query("method == 'calibrated'")
    own = table["quantity"].str.contains("effect|groups")
    noise = table["coverage_se"].where(own, np.sqrt(0.95 * 0.05 / table["replicates"]))
    off = (table["coverage"] - 0.95).abs() / noise
    right = table["design"].isin(list(DESIGNS)[:3])
    assert off[right].max() < 3.5
    assert off[~own].max() < 3.5  # parameters, whatever is wrong
    assert (table[own & ~right]["coverage"] < 0.85).sum() == 3  # and groups where rows are


def test_the_study_resumes(tmp_path: Path) -> None:
    options = {"replicates": 4, "only": "linear, intercepts", "workers": 1, "progress": False}
    first = run_effects(tmp_path, **options)
    pd.testing.assert_frame_equal(run_effects(tmp_path, **options), first)
    known = pd.read_csv(RECORDED)
    designs = [name for name in DESIGNS if "linear, intercepts" in name]
    assert list(dict.fromkeys(first["design"])) == designs
    widths = [t.set_index(["design", "quantity", "method"])["width"] for t in (known, first)]
    ratio = (widths[1] / widths[0]).dropna()  # rows are named as they were recorded
    assert len(ratio) == len(first)
    assert np.abs(np.log(ratio)).max() < np.log(1.5)
    groups = first[first["quantity"].str.contains("effect")]
    assert np.all(groups["coverage"] > 0.85)
    refused("only", "designs are", lambda: run_effects(tmp_path, only="nothing"))

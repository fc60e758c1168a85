"""The check of a scale that was estimated and is taken as known, against simulation."""

from __future__ import annotations

import numpy as np
import pytest

import etafree as ef
from etafree.data.groups import Groups
from etafree.diagnostics import scale_effect

N, G = 200, 40


def study(errors, groups: Groups | None, many: int = 300):
    """Return sd over mean se of the intercept and slope, and the median of the check."""
    centers, ses, found = [], [], []
    for seed in range(many):
        rng = np.random.default_rng([seed, 1])
        X = np.column_stack([np.ones(N), rng.standard_normal(N)])
        y = X @ [1.0, 0.5] + errors(rng, N)
        if groups is not None:
            y += errors(rng, G)[groups.codes]
        criterion = ef.Criterion(ef.losses.Huber(1.345, scale="mad"), (X, y), names=["one", "x"])
        labels = None if groups is None else groups.codes
        target = ef.target(criterion, clusters=labels, correction="CR0" if groups else "HC0")
        (made,) = scale_effect(criterion, target, groups)
        centers.append(target.center)
        ses.append(target.se)
        found.append(made.value)
    return np.std(centers, axis=0) / np.mean(ses, axis=0), float(np.median(found))


def skewed(rng, n):
    return rng.exponential(size=n)


def test_skewed_errors_are_flagged_and_the_factor_is_right() -> None:
    ratio, value = study(skewed, None)
    assert abs(np.log(ratio[0]) - value) < 0.11  # 2.7 standard errors of a standard deviation
    assert value > 0.15
    assert abs(np.log(ratio[1])) < 0.12


def test_clusters_count_as_one() -> None:
    groups = Groups(np.arange(N) % G, np.arange(G))
    ratio, value = study(skewed, groups)
    assert abs(np.log(ratio[0]) - value) < 0.12


def test_symmetric_errors_pass() -> None:
    _, value = study(lambda rng, n: rng.standard_t(3, n), None, 60)
    assert value < 0.05


def test_the_check_is_in_the_diagnostics_with_a_number_and_advice() -> None:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(500), rng.standard_normal(500)])
    y = X @ [1.0, 0.5] + rng.exponential(size=500)
    for scale, there in (("mad", True), (1.0, False)):
        criterion = ef.Criterion(ef.losses.Huber(1.345, scale=scale), (X, y), names=["one", "x"])
        draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), seed=1)
        table = ef.calibrate(draws, criterion).diagnostics()
        assert ("plug-in scale" in table.index) == there
        if there:
            assert table.loc["plug-in scale", "verdict"] == "warn"
            assert "'one' should be 1." in table.loc["plug-in scale", "advice"]


@pytest.mark.parametrize("copies", [1, 2])
def test_weights_that_repeat_rows_change_nothing(copies) -> None:
    rng = np.random.default_rng(4)
    X = np.column_stack([np.ones(120), rng.standard_normal(120)])
    y = X @ [1.0, 0.5] + rng.exponential(size=120)
    loss = ef.losses.Huber(1.345, scale="mad")
    weights = np.full(120, float(copies))
    plain = ef.Criterion(loss, (X, y))
    made = ef.Criterion(loss, (X, y), weights=weights, weight_kind="sampling")
    (one,), (two,) = (scale_effect(c, ef.target(c), None) for c in (plain, made))
    assert one.value == pytest.approx(two.value, rel=1e-6)

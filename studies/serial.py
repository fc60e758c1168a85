"""Panels, persistent series and strata of two PSUs, with the truth of every coefficient."""

from __future__ import annotations

from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.dependence import Panel, Survey, TimeSeries
from etafree.foundation.arguments import Array
from etafree.losses import Huber, Squared
from studies.problem import Problem

__all__ = ["heavy_tailed_series", "pairs_of_psus", "panel", "trend"]


def ar1(rng: np.random.Generator, phi: float, shocks: Array) -> Array:
    """Return an AR(1) of variance one if its shocks have it, started two hundred periods before."""
    from scipy.signal import lfilter

    before = rng.standard_normal(200)
    series = lfilter([1.0], [1.0, -phi], np.concatenate([before, shocks]))[200:]
    return np.asarray(np.sqrt(1 - phi**2) * series)


def panel(
    rng: np.random.Generator, units: int, periods: int, unit_effect: float, shock: float
) -> Problem:
    """Return a panel whose covariate has unit and period effects, the errors as much as is said.

    Period effects are AR(1) with coefficient .5.
    """

    def effects(of_units: float, of_periods: float) -> Array:
        common = ar1(rng, 0.5, rng.standard_normal(periods))
        own = rng.standard_normal((units, 1))
        total: Array = of_units * own + of_periods * common + rng.standard_normal((units, periods))
        return total.reshape(-1)

    truth = np.array([1.0, 0.5])
    X = np.column_stack([np.ones(units * periods), effects(1.0, 1.0)])
    y = X @ truth + effects(unit_effect, shock)
    unit, period = (index.reshape(-1) for index in np.indices((units, periods)))
    dependence = Panel(unit, period)
    rivals: dict[str, dict[str, Any]] = {
        "period totals, DK": {"dependence": dependence, "correction": "DK"},
        "units as clusters, CR3": {"clusters": unit},
    }
    criterion = Criterion(Squared(), (X, y), names=["one", "slope"])
    return Problem(criterion, {"dependence": dependence}, truth, rivals)


def trend(rng: np.random.Generator, phi: float, periods: int) -> Problem:
    """Return a trend and an independent covariate with persistent errors."""
    truth = np.array([1.0, 0.5, 0.5])
    time = np.arange(periods)
    X = np.column_stack(
        [np.ones(periods), np.linspace(-1, 1, periods), rng.standard_normal(periods)]
    )
    y = X @ truth + ar1(rng, phi, rng.standard_normal(periods))
    criterion = Criterion(Squared(), (X, y), names=["mean", "trend", "slope"])
    return Problem(criterion, {"dependence": TimeSeries(time)}, truth, _plain_cosines(time))


def heavy_tailed_series(rng: np.random.Generator, periods: int) -> Problem:
    """Return Huber's regression in time, covariate AR(.5) and errors AR(.5) with t(3) shocks."""
    truth, time = np.array([1.0, 0.5]), np.arange(periods)
    X = np.column_stack([np.ones(periods), ar1(rng, 0.5, rng.standard_normal(periods))])
    y = X @ truth + ar1(rng, 0.5, rng.standard_t(3, periods))
    criterion = Criterion(Huber(1.345), (X, y), names=["mean", "slope"])
    return Problem(criterion, {"dependence": TimeSeries(time)}, truth, _plain_cosines(time))


def _plain_cosines(time: object) -> dict[str, dict[str, Any]]:
    return {"EWC": {"dependence": TimeSeries(time), "correction": "EWC"}}


def pairs_of_psus(rng: np.random.Generator, strata: int) -> Problem:
    """Return two PSUs of ten units in every stratum, with a skewed covariate of the PSU's own."""
    psu = np.repeat(np.arange(2 * strata), 10)
    stratum = psu // 2
    level = np.exp(0.8 * rng.standard_normal(2 * strata))[psu]
    X = np.column_stack([np.ones(len(psu)), rng.standard_normal(len(psu)), level])
    truth = np.array([1.0, 0.5, 0.5])
    error = rng.standard_normal(2 * strata)[psu] + rng.standard_normal(len(psu))
    weights = (1.0 + np.arange(strata) % 3)[stratum]
    criterion = Criterion(
        Squared(),
        (X, X @ truth + error),
        weights=weights,
        weight_kind="sampling",
        names=["one", "slope", "level"],
    )
    design = Survey(psu, stratum)
    rivals = {"survey": {"dependence": design, "correction": "survey"}}
    return Problem(criterion, {"dependence": design}, truth, rivals)

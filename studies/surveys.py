"""Samples of PSUs in strata with published replicates, and with raked weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.dependence import Survey
from etafree.foundation.arguments import Array
from etafree.losses import Logistic, Squared
from studies.problem import Problem

__all__ = ["raked", "replicated"]


def replicated(rng: np.random.Generator, strata: int, psus: int) -> Problem:
    """Return a logistic regression of PSUs of twelve units, judged by the replicates of a JKn.

    The truth is that of the process given the covariates; PSUs have an effect of their own, which
    the slope averages over.
    """
    psu = np.repeat(np.arange(strata * psus), 12)
    stratum = psu // psus
    level = rng.standard_normal(strata * psus)[psu]
    X = np.column_stack([np.ones(len(psu)), rng.standard_normal(len(psu)), level])
    truth = np.array([-0.5, 0.5, 0.4])
    # a bridge distribution keeps the averaged curve logistic, with slopes times phi
    phi, u = 0.8, rng.random(strata * psus)
    effect = np.log(np.sin(phi * np.pi * u) / np.sin(phi * np.pi * (1 - u))) / phi
    chance = 1 / (1 + np.exp(-(X @ truth / phi + effect[psu])))
    y = (rng.random(len(psu)) < chance).astype(np.float64)
    weights = (1.0 + np.arange(strata) % 3)[stratum]
    criterion = Criterion(
        Logistic(), (X, y), weights=weights, weight_kind="sampling", names=["one", "slope", "level"]
    )
    design = Survey(psu, stratum)
    rivals = {"survey-CR3": {"dependence": design}}
    return Problem(criterion, {"dependence": design.replicates(criterion)}, truth, rivals)


def raked(rng: np.random.Generator, psus: int) -> Problem:
    """Return a mean and a slope from PSUs of ten, weights raked to two margins of a population."""
    psu = np.repeat(np.arange(psus), 10)
    n = len(psu)
    shift = 0.5 * rng.standard_normal(psus)[psu]  # a PSU has more of some cells than others
    first, second = (rng.standard_normal((2, n)) + shift > 0).astype(np.intp)
    x = rng.standard_normal(n)
    y = 1.0 + 0.5 * x + first + second + 0.5 * rng.standard_normal(psus)[psu]
    y += rng.standard_normal(n)
    margins = [np.eye(2)[first], np.eye(2)[second]]
    weights = _raked(np.ones(n), margins)
    criterion = Criterion(
        Squared(),
        (np.column_stack([np.ones(n), x]), y),
        weights=weights,
        weight_kind="sampling",
        names=["mean", "slope"],
    )
    design = Survey(psu, calibrated=np.hstack(margins), base_weights=np.ones(n))
    rivals: dict[str, dict[str, Any]] = {
        "calibration ignored": {"dependence": Survey(psu)},
        "survey": {"dependence": design, "correction": "survey"},
    }
    return Problem(criterion, {"dependence": design}, np.array([2.0, 0.5]), rivals)


def _raked(weights: Array, margins: list[Array]) -> Array:
    """Return weights whose margins are halves, by proportional fitting."""
    for _ in range(100):
        for margin in margins:
            weights = weights * (margin @ (0.5 * len(weights) / (margin.T @ weights)))
    return weights

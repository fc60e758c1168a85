"""Compare sampling a logistic posterior of many rows with fitting it."""

from __future__ import annotations

import numpy as np

import etafree as ef
from benchmarks.timing import Row, announce, cpu_seconds, interleaved_ratios
from etafree.samplers.variational import normal_approximation

__all__ = ["run"]

GOAL = 10.0
DRAWS = 4000
ETAS = (1.0, 0.01)


def run(quick: bool) -> list[Row]:
    """Return the ratio of the CPU time of 4,000 draws to that of the fit, at two learning rates.

    Both start from the arrays; the fit is the minimiser and its Hessian.
    """
    n, p = (100_000 if quick else 1_000_000), 10
    rng = np.random.default_rng(31)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ np.linspace(-0.5, 0.5, p)))).astype(float)
    announce(f"logistic, n = {n}, p = {p}, {DRAWS} draws")
    return [_compare(X, y, eta) for eta in ETAS]


def _compare(X: np.ndarray, y: np.ndarray, eta: float) -> Row:
    drawn: list[ef.Draws] = []

    def criterion() -> ef.Criterion:
        return ef.Criterion(ef.losses.Logistic(), data=(X, y))

    def cost() -> float:
        posterior = ef.GeneralizedPosterior(criterion(), eta)
        return cpu_seconds(lambda: drawn.append(ef.sample(posterior, DRAWS, len(drawn))))

    def cost_of_fit() -> float:
        return cpu_seconds(lambda: ef.minimise(criterion()))

    name = f"large sample, eta = {eta:g}"
    cost(), cost_of_fit()  # imports and compiled code, outside the timing
    ratios = interleaved_ratios(name, cost, cost_of_fit)
    draws, posterior = drawn[-1], ef.GeneralizedPosterior(criterion(), eta)
    normal = normal_approximation(posterior)
    z = (draws.mean - normal.mean) / np.linalg.norm(normal.lower, axis=1) * np.sqrt(draws.ess)
    if np.max(np.abs(z)) > 5:
        raise RuntimeError(f"the draws' mean is {np.max(np.abs(z)):.2g} Monte Carlo errors away")
    note = (
        f"{draws.ess:.0f} effective draws; the expansion's error of the log density is "
        f"{draws.info.get('expansion_error', 0.0):.1g}"
    )
    return Row(name, GOAL, False, ratios, note=note)

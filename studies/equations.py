"""Estimating equations: instruments, repeated measures and weights, with the truth of each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.foundation.arguments import Array
from etafree.totals.moments import Moments
from studies.problem import Problem

__all__ = ["instruments", "inverse_probability", "repeated_counts"]


def _instrumented(beta: Any, row: Any) -> Any:
    return row["Z"] * (row["y"] - row["X"] @ beta)


def _exchangeable(beta: Any, row: Any, rho: float = 0.3) -> Any:
    """Poisson GEE of a group of rows, whose working correlation is not the true one."""
    import jax.numpy as jnp

    mean = jnp.exp(row["X"] @ beta)
    sd, size = jnp.sqrt(mean), row["X"].shape[0]
    r = (row["y"] - mean) / sd
    back = (r - rho * r.sum() / (1 + (size - 1) * rho)) / (1 - rho)
    return (row["X"] * sd[:, None]).T @ back


def _weighted(theta: Any, row: Any) -> Any:
    import jax
    import jax.numpy as jnp

    p, treated = jax.nn.sigmoid(row["W"] @ theta["propensity"]), row["treated"]
    arms = jnp.array([treated / p, (1 - treated) / (1 - p)])
    return jnp.concatenate([arms * (row["y"] - theta["mean"]), row["W"] * (treated - p)])


@lru_cache(maxsize=3)
def _moments(name: str) -> Moments:
    """Return the equations of a scenario, compiled once."""
    return Moments(
        {"iv": _instrumented, "gee": _exchangeable, "ipw": _weighted}[name], constants=True
    )


def instruments(rng: np.random.Generator, n: int, extra: int) -> Problem:
    """Return an endogenous covariate with `extra` instruments and unequal variances."""
    z, hidden = rng.standard_normal((n, extra)), rng.standard_normal(n)
    x = z @ np.full(extra, 1.0 / np.sqrt(extra)) + hidden + rng.standard_normal(n)
    noise = rng.standard_normal(n) * np.exp(0.4 * z[:, 0])
    truth, one = np.array([1.0, 0.5]), np.ones(n)
    X = np.column_stack([one, x])
    data = {"X": X, "Z": np.column_stack([one, z]), "y": X @ truth + hidden + noise}
    start = np.zeros(2)
    criterion = Criterion(_moments("iv"), data, start=start, names=["one", "x"])
    return Problem(criterion, {}, truth, {"HC0": {"correction": "HC0"}})


def repeated_counts(rng: np.random.Generator, subjects: int, times: int, treated: int) -> Problem:
    """Return overdispersed counts of subjects, `treated` of them, as GEE with a row for each.

    The random intercept's mean is one on the scale of counts, so that the mean model is right.
    """
    arm = (np.arange(subjects) < treated).astype(float)
    time = np.linspace(-0.5, 0.5, times)
    shape = (subjects, times)
    columns = [np.ones(shape), np.broadcast_to(arm[:, None], shape), np.broadcast_to(time, shape)]
    X, truth = np.stack(columns, axis=2), np.array([1.0, -0.3, 0.4])
    frailty = rng.gamma(2.0, 0.5, subjects)[:, None]
    y = rng.poisson(frailty * np.exp(X @ truth)).astype(float)
    start, names = np.array([1.0, 0.0, 0.0]), ["one", "arm", "time"]
    criterion = Criterion(_moments("gee"), {"X": X, "y": y}, start=start, names=names)
    return Problem(criterion, {}, truth, {"HC0": {"correction": "HC0"}})


def inverse_probability(rng: np.random.Generator, n: int) -> Problem:
    """Return means under two treatments, weighted by an estimated propensity."""
    x, log_odds = rng.standard_normal((n, 2)), np.array([-0.2, 0.6, -0.4])
    W = np.column_stack([np.ones(n), x])
    treated = (rng.random(n) < 1 / (1 + np.exp(-W @ log_odds))).astype(float)
    y = 1.0 + treated + x @ np.array([1.0, 0.5]) * (1 + 0.5 * treated) + rng.standard_normal(n)
    start = {"mean": np.array([2.0, 1.0]), "propensity": np.zeros(3)}
    data = {"W": W, "treated": treated, "y": y}
    truth: Array = np.concatenate([[2.0, 1.0], log_odds])
    criterion = Criterion(_moments("ipw"), data, start=start)
    return Problem(criterion, {}, truth, {"HC0": {"correction": "HC0"}})

r"""L-moments of exponential data as a loss over triples: coverage of U-statistics of order three.

The second and third L-moments, L-scale and L-skewness before division, are means over triples of
order statistics,

.. math:: \lambda_2=\tfrac13E(x_{3:3}-x_{1:3}),\qquad\lambda_3=\tfrac13E(x_{3:3}-2x_{2:3}+x_{1:3}),

1/2 and 1/6 for the exponential law (Hosking 1990, J. R. Statist. Soc. B 52, 105-124). The three
absolute differences of a triple add up to twice its range, hence the first formula.
``python -m studies.tuples`` prints coverage.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from etafree.criterion import Criterion
from etafree.sandwich import target
from etafree.totals.tuples import TupleLoss
from studies.problem import Problem, coverage

__all__ = ["SHARED", "TUPLES", "l_moments", "shared_l_moments"]

TRUTH, START = np.array([0.5, 1 / 6]), {"scale": 0.5, "skewness": 0.2}


@lru_cache
def loss(rounds: int | None) -> TupleLoss:
    """Return the loss whose minimiser are sample L-moments, over all triples or a sample."""

    def triples(theta: Any, a: Any, b: Any, c: Any) -> Any:
        import jax.numpy as jnp

        low, middle, high = jnp.sort(jnp.stack([a, b, c]))
        scale, skewness = (high - low) / 3, (high - 2 * middle + low) / 3
        return (theta["scale"] - scale) ** 2 + (theta["skewness"] - skewness) ** 2

    return TupleLoss(triples, 3, rounds)


def l_moments(rng: np.random.Generator, n: int, rounds: int | None = None) -> Problem:
    """Return L-moments of independent exponential data."""
    criterion = Criterion(loss(rounds), rng.standard_exponential(n), start=START)
    rivals: dict[str, dict[str, Any]] = {name: {"correction": name} for name in ("HC0", "HC1")}
    return Problem(criterion, {}, TRUTH, rivals)


def shared_l_moments(rng: np.random.Generator, groups: int, rounds: int) -> Problem:
    """Return L-moments of exponential data in clusters of five, normal scores correlated by 1/2."""
    from scipy.special import log_ndtr

    scores = rng.standard_normal((groups, 1)) + rng.standard_normal((groups, 5))
    data = -log_ndtr(scores.reshape(-1) / np.sqrt(2))
    labels = np.repeat(np.arange(groups), 5)
    rivals: dict[str, dict[str, Any]] = {
        "independent, HC3": {},
        "CR1": {"clusters": labels, "correction": "CR1"},
    }
    criterion = Criterion(loss(rounds), data, start=START)
    return Problem(criterion, {"clusters": labels}, TRUTH, rivals)


#: Label, function and its arguments, as in `studies.scenarios`.
TUPLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "L-moments, all triples, n = 50": (l_moments, {"n": 50}),
    "L-moments, 20 n triples, n = 200": (l_moments, {"n": 200, "rounds": 20}),
}
#: Few clusters of skewed data, which are not in the league table.
SHARED: dict[str, tuple[Any, dict[str, Any]]] = {
    "L-moments, 20 n triples, G = 20 of five": (shared_l_moments, {"groups": 20, "rounds": 20})
}


def show(data_sets: int = 500, seed: int = 1) -> None:
    """Print coverage and its Monte Carlo error for each scenario, correction and parameter."""
    for label, (make, arguments) in (TUPLES | SHARED).items():
        limits: dict[str, list[Any]] = {}
        for stream in np.random.SeedSequence(seed).spawn(data_sets):
            problem = make(np.random.default_rng(stream), **arguments)
            for name, options in {"default": problem.options, **problem.rivals}.items():
                t = target(problem.criterion, **options)
                half = t.law().quantile(0.975) * t.se
                limits.setdefault(name, []).append([t.center - half, t.center + half])
        for name, ends in limits.items():
            low, high = np.array(ends).transpose(1, 0, 2)
            for k, parameter in enumerate(START):
                share, error = coverage(low[:, k], high[:, k], np.full(data_sets, TRUTH[k]))
                print(f"{label}, {name}, {parameter}: {share:.3f} ({error:.3f})")


if __name__ == "__main__":
    show()

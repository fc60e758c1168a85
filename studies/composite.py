r"""Pairwise likelihood of a Gaussian field: coverage of maps of draws and of adjusted posteriors.

Replicates of a field with covariance :math:`\sigma^2\exp(-h/\phi)` at twenty sites are independent
rows; a row's loss is the sum of bivariate normal losses over pairs of sites less than 0.4 apart
(Shaby 2014). Every pair is well specified, so the truth is what made the data; pairs share sites,
so the loss's own curvature is far too large. ``python -m studies.composite out.csv`` writes the
table of docs/guides/composite.md.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.criterion import Criterion
from etafree.foundation import linalg
from etafree.foundation.arguments import Array
from etafree.totals.jax import JaxLoss
from studies.problem import Problem, coverage

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["gaussian_field", "write_table"]

RANGE, SILL, SITES, FAR = 0.3, 1.0, 20, 0.4
ETAS = (0.01, 0.1, 1.0, 10.0, 100.0)
DRAWS = 1000


@lru_cache(maxsize=1)
def design() -> tuple[Array, JaxLoss]:
    """Return distances between sites of the unit square (S, S), and the loss of their pairs."""
    sites = np.random.default_rng(20140801).uniform(size=(SITES, 2))
    distance: Array = np.sqrt(((sites[:, None] - sites) ** 2).sum(axis=2))
    i, j = np.nonzero(np.triu(distance < FAR, 1))

    def pairwise(theta: Any, row: Any) -> Any:
        import jax.numpy as jnp

        decay = distance[i, j] * jnp.exp(-theta["log_range"])
        rho, free = jnp.exp(-decay), -jnp.expm1(-2 * decay)
        a, b = row["z"][i], row["z"][j]
        form = (a**2 - 2 * rho * a * b + b**2) / free * jnp.exp(-theta["log_sill"])
        return jnp.sum(0.5 * form + 0.5 * jnp.log(free) + theta["log_sill"])

    return distance, JaxLoss(pairwise)


def gaussian_field(rng: np.random.Generator, replicates: int) -> Problem:
    """Return replicates of a Gaussian field with an exponential covariance, by pairs of sites."""
    distance, loss = design()
    lower = linalg.cholesky(SILL * np.exp(-distance / RANGE))
    z = rng.standard_normal((replicates, SITES)) @ lower.T
    truth = np.log([RANGE, SILL])
    start = {"log_range": truth[0], "log_sill": truth[1]}
    return Problem(Criterion(loss, {"z": z}, start=start), {}, truth)


def intervals(rng: np.random.Generator, replicates: int) -> dict[tuple[str, float], Array]:
    """Return limits (2, p) of one data set by method and learning rate, NaN where it has none."""
    from etafree.calibrate import calibrate
    from etafree.map import Map
    from etafree.posterior import ADJUSTMENTS, GeneralizedPosterior
    from etafree.samplers import sample
    from etafree.sandwich import target

    criterion = gaussian_field(rng, replicates).criterion
    goal, out = target(criterion), {}

    def limits(draws: Any) -> Array:
        ends: Array = np.quantile(draws.array, [0.025, 0.975], axis=0)
        return ends

    for eta in ETAS:
        posterior = GeneralizedPosterior(criterion, eta)
        draws = sample(posterior, DRAWS, seed=rng, sampler="importance")
        out["uncalibrated", eta] = limits(draws)
        for name, how in (
            ("open-faced", Map(kind="scale")),
            ("Shaby's root", Map("shaby", kind="scale", working="curvature")),
            ("location-scale, draws", Map()),
        ):
            out[name, eta] = limits(calibrate(draws, goal, map=how, seed=rng).draws)
        if eta == 1.0:
            for kind in ADJUSTMENTS:
                out[kind, eta] = limits(sample(posterior.adjusted(goal, kind), DRAWS, seed=rng))
    half = goal.law().quantile(0.975) * goal.se
    out["location-scale, Wald", np.nan] = np.array([goal.center - half, goal.center + half])
    return out


def table(data_sets: int = 500, replicates: int = 100, seed: int = 1) -> pd.DataFrame:
    """Return coverage, its Monte Carlo error and mean width by method, eta and parameter."""
    import pandas as pd

    streams = np.random.SeedSequence(seed).spawn(data_sets)
    every = [intervals(np.random.default_rng(stream), replicates) for stream in streams]
    rows = []
    for method, eta in every[0]:
        low, high = np.array([limits[method, eta] for limits in every]).transpose(1, 0, 2)
        for k, (name, truth) in enumerate((("log_range", RANGE), ("log_sill", SILL))):
            share, error = coverage(low[:, k], high[:, k], np.full(len(low), np.log(truth)))
            width = float((high - low)[:, k].mean())
            rows.append((method, eta, name, share, error, width, data_sets))
    names = ["method", "eta", "parameter", "coverage", "error", "width", "replicates"]
    return pd.DataFrame(rows, columns=names)


def write_table(path: str) -> None:
    """Write the table as CSV."""
    table().to_csv(path, index=False, float_format="%.4f")


if __name__ == "__main__":
    write_table(sys.argv[1])

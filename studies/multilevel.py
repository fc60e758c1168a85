r"""The jackknife of a multilevel fit from conditional and from marginal log-likelihoods.

:math:`y_{gi}=\mu+\beta x_{gi}+u_g+e_{gi}` with :math:`u_g\sim N(0,\tau^2)`, :math:`e_{gi}\sim
N(0,\sigma^2)`, G groups of m rows, variances known and flat priors: the posterior of
:math:`(\mu,\beta,u)` is normal, and is drawn exactly. Software stores :math:`\log
p(y_{gi}\mid\mu,\beta,u_g)`. The influence of a group on the mean of :math:`\mu` by sums of these is

.. math:: \mathrm{cov}\Big(\mu,\sum_i\log p(y_{gi}\mid\mu,u_g)\Big)
   =\frac{\sigma^2}{\sigma^2+m\tau^2}\,\frac{\bar y_g-\bar y}{G}

(for :math:`\beta=0`): too small by the same factor in every group, because the posterior of
:math:`u_g` takes up what is unusual about its group. By the group's marginal log-likelihood it is
:math:`(\bar y_g-\bar y)/G`, whose sum of squares is the variance of a mean of G group means.

References
----------
Ji, F., Lee, J. and Rabe-Hesketh, S. (2024). Valid standard errors for Bayesian quantile regression
with clustered and independent data. arXiv:2407.09772. (The estimator, in their R package IJSE.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from etafree.calibrate import calibrate
from etafree.draws import Draws
from etafree.foundation.arguments import Array, as_count
from etafree.foundation.linalg import inv
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DESIGNS", "METHODS", "conditional_jackknife", "multilevel_markdown", "run_multilevel"]

GROUPS, DRAWS, BLOCK = 50, 2000, 25
TRUTH = np.array([1.0, 0.5])
NAMES = ("mu", "beta")
#: Rows per group and variance of the groups' effects; the error variance is one.
DESIGNS = ((5, 0.25), (5, 1.0), (10, 0.25), (10, 1.0), (25, 1.0))
METHODS = ("posterior", "conditional sums", "conditional, no noise", "marginal likelihood")


def influences(draws: Array, losses: Array) -> Array:
    """Return J times the covariances of draws (D, p) with J losses (D, J), (p, J)."""
    p, J = draws.shape[1], losses.shape[1]
    product: Array = J * np.cov(draws.T, losses.T)[:p, p:]
    return product


def conditional_jackknife(draws: Array, log_likelihood: Array) -> Array:
    """Return standard errors (p,) of IJSE's estimator from sums over J clusters (D, J).

    The covariance of influences over clusters, divided by J.
    """
    own = influences(draws, log_likelihood)
    variance: Array = np.var(own, axis=1, ddof=1) / own.shape[1]
    return np.sqrt(variance)


def _log_densities(residuals: Array, tau2: float) -> Array:
    """Return marginal log densities (D, G) of groups of residuals (D, G, m), up to a constant."""
    m = residuals.shape[2]
    along = residuals.sum(axis=2)
    squares: Array = np.square(residuals).sum(axis=2) - tau2 / (1 + m * tau2) * along**2
    return -0.5 * squares


def replicate(m: int, tau2: float, rng: np.random.Generator) -> Array:
    """Return standard errors and whether 95 % intervals cover, (method, parameter, 2).

    Without noise it is the square of a standard error, which may be negative in one data set.
    """
    x = rng.standard_normal((GROUPS, m))
    effects = np.sqrt(tau2) * rng.standard_normal((GROUPS, 1))
    y = TRUTH[0] + TRUTH[1] * x + effects + rng.standard_normal((GROUPS, m))
    X = np.stack([np.ones_like(x), x], axis=2)  # (G, m, 2)
    precision = np.eye(m) - tau2 / (1 + m * tau2)
    spread = inv(np.einsum("gip,ij,gjq->pq", X, precision, X), "information")
    center = spread @ np.einsum("gip,ij,gj->p", X, precision, y)
    theta = rng.multivariate_normal(center, spread, DRAWS)
    residuals = y - np.tensordot(theta, X, axes=(1, 2))  # (D, G, m)
    shrink = m * tau2 / (1 + m * tau2)
    u = shrink * residuals.mean(axis=2) + np.sqrt(shrink / m) * rng.standard_normal(
        residuals.shape[:2]
    )
    conditional = -0.5 * np.square(residuals - u[:, :, None]).sum(axis=2)
    own = calibrate(
        Draws.of(theta, NAMES, 1.0),
        log_likelihood=_log_densities(residuals, tau2),
        clusters=np.arange(GROUPS),
    )
    low, high = np.quantile(theta, [0.025, 0.975], axis=0)
    rows = [[theta.std(axis=0, ddof=1), (low <= TRUTH) & (high >= TRUTH)]]
    se = conditional_jackknife(theta, conditional)
    rows.append([se, np.abs(theta.mean(axis=0) - TRUTH) <= 1.959963984540054 * se])
    half = DRAWS // 2  # two sets of draws have independent noise
    one, two = (influences(theta[k], conditional[k]) for k in (slice(half), slice(half, None)))
    one -= one.mean(axis=1, keepdims=True)
    rows.append([(one * two).sum(axis=1) / (GROUPS * (GROUPS - 1)), np.full(2, np.nan)])
    low, high = own.interval(kind="wald").to_numpy().T
    rows.append([own.target.se, (low <= TRUTH) & (high >= TRUTH)])
    return np.array(rows, dtype=float).transpose(0, 2, 1)


def work(parameters: Parameters, seed: np.random.SeedSequence) -> Arrays:
    """Return `replicate` of some data sets (replicate, method, parameter, 2)."""
    streams = [np.random.default_rng(s) for s in seed.spawn(parameters["count"])]
    m, tau2 = parameters["m"], parameters["tau2"]
    return {"outcomes": np.array([replicate(m, tau2, rng) for rng in streams])}


def run_multilevel(
    out: Path | str, *, replicates: int = 400, seed: int = 1, **how: Unpack[How]
) -> pd.DataFrame:
    """Run the study, resuming what `out` holds, write ``multilevel.csv`` there and return it.

    A row per design, parameter and method: the mean standard error over the standard deviation that
    estimates have, its Monte Carlo error, coverage and its Monte Carlo error.
    """
    import pandas as pd

    count = as_count(replicates, "replicates", least=2)
    cells = [
        Cell(
            f"{m}-{tau2:g}-{first:06d}-{min(BLOCK, count - first)}",
            {"m": m, "tau2": tau2, "count": min(BLOCK, count - first)},
        )
        for m, tau2 in DESIGNS
        for first in range(0, count, BLOCK)
    ]
    settings = {"replicates": count, "designs": DESIGNS, "draws": DRAWS, "groups": GROUPS}
    results = run_study("multilevel", settings, cells, work, out, seed=seed, **how)
    rows: list[dict[str, object]] = []
    for m, tau2 in DESIGNS:
        parts = [c for c in cells if (c.parameters["m"], c.parameters["tau2"]) == (m, tau2)]
        values = np.concatenate([results[c.key]["outcomes"] for c in parts])
        # expected information; x is standard normal, so that it has no product of the two
        information = GROUPS * np.array([m / (1 + m * tau2), m - m * tau2 / (1 + m * tau2)])
        true = 1 / np.sqrt(information)
        for j, parameter in enumerate(NAMES):
            for k, method in enumerate(METHODS):
                size, inside = values[:, k, j, 0] / true[j], values[:, k, j, 1]
                if method == "conditional, no noise":
                    size = size / true[j]
                    ratio = np.sqrt(size.mean())
                    noise = size.std(ddof=1) / np.sqrt(count) / (2 * ratio)
                else:
                    ratio, noise = size.mean(), size.std(ddof=1) / np.sqrt(count)
                rows.append(
                    {
                        "m": m,
                        "tau2": tau2,
                        "parameter": parameter,
                        "method": method,
                        "ratio": ratio,
                        "ratio_se": noise,
                        "coverage": inside.mean(),
                        "coverage_se": np.sqrt(
                            np.maximum(inside.var(ddof=1), 0.5 / count**2) / count
                        ),
                        "replicates": count,
                    }
                )
    table = pd.DataFrame(rows)
    table.to_csv(Path(out) / "multilevel.csv", index=False, float_format="%.6g")
    return table


def multilevel_markdown(table: pd.DataFrame) -> str:
    """Return the table as documents show it: a row per design and parameter."""
    lines = [
        "| m | τ² | parameter | σ²/(σ²+mτ²) | conditional, no noise | conditional sums "
        "| covers | marginal likelihood | covers | posterior covers |",
        "|---" * 10 + "|",
    ]
    for (m, tau2, parameter), rows in table.groupby(["m", "tau2", "parameter"], sort=False):
        factor = 1 / (1 + rows["m"].iloc[0] * rows["tau2"].iloc[0])
        by = rows.set_index("method")
        shown = dict(
            zip(
                by.index,
                (f"{by['ratio'][k]:.3f} ({by['ratio_se'][k]:.3f})" for k in by.index),
                strict=True,
            )
        )
        covers = {name: f"{share:.3f}" for name, share in by["coverage"].items()}
        cells = [str(m), f"{tau2:g}", str(parameter)]
        cells.append(f"{factor:.3f}" if parameter == "mu" else "–")
        cells += [shown["conditional, no noise"]]
        for name in ("conditional sums", "marginal likelihood"):
            cells += [shown[name], covers[name]]
        lines.append(f"| {' | '.join([*cells, covers['posterior']])} |")
    return "\n".join(lines)

"""What ``etafree select`` prints: each method's learning rate and its intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from etafree import losses
from etafree.calibrate import calibrate
from etafree.cli.arrow_table import table_of
from etafree.criterion import Criterion
from etafree.data.formula import screened
from etafree.errors import EtafreeError, InputError
from etafree.foundation.arguments import Array, as_choice, as_level, as_positive, as_seeds
from etafree.foundation.storage import made_with
from etafree.foundation.terminal import say
from etafree.learning_rates import METHODS, select
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.samplers import sample

#: Losses by the name on the command line.
LOSSES: dict[str, losses.LinearLoss] = {
    "squared": losses.Squared(),
    "huber": losses.Huber(1.345, scale="mad"),
    "pseudo-huber": losses.PseudoHuber(1.345, scale="mad"),
    "student": losses.StudentT(4.0, scale="mad"),
    "logistic": losses.Logistic(),
    "poisson": losses.Poisson(),
    "gamma": losses.Gamma(),
}
#: Draws of each posterior.
DRAWS = 4000


def print_rates(
    data: Path,
    formula: str,
    loss: str,
    clusters: str | None,
    bandwidth: float | None,
    prior_sd: float | None,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Print and return the table of `etafree.cli.commands.select_file`, which has the options."""
    as_choice(loss, "loss", (*LOSSES, "median"))
    level, _ = as_level(level), as_seeds(seed)
    if (loss == "median") != (bandwidth is not None):
        advice = "pass one in units of the response, about a tenth of its spread"
        raise InputError("bandwidth", "goes with the median, and the median needs one", advice)
    chosen = LOSSES[loss] if bandwidth is None else losses.Quantile(0.5, bandwidth)
    file = table_of(data, "data")
    frame = file.frame(screened(formula, file.names))
    criterion = Criterion.from_formula(formula, frame, chosen)
    labels = None if clusters is None else file.labels(clusters, "clusters", criterion.rows.kept)
    p, prior, tail = criterion.p, None, 0.5 * (1 - level)
    if prior_sd is not None:
        variance = as_positive(prior_sd, "prior_sd") ** 2
        prior = LogPrior.normal(np.zeros(p), variance * np.eye(p))
    posterior = GeneralizedPosterior(criterion, 1.0, prior)
    rows: dict[str, dict[str, object]] = {}
    for method in METHODS:
        row = rows[method] = dict[str, object]()
        try:
            options = _options(method, criterion, prior)
            rate = select(posterior, method, clusters=labels, seed=seed, **options)
            row |= {"aims at": rate.aim, "eta": rate.eta, "status": rate.status}
            draws = sample(GeneralizedPosterior(criterion, rate.eta, prior), DRAWS, seed)
            row |= _intervals(criterion.names, np.quantile(draws.array, [tail, 1 - tail], axis=0))
        except EtafreeError as error:
            alone = prior is None and getattr(error, "argument", "") == "log_prior"
            row["status"] = "needs a prior: pass --prior-sd" if alone else str(error)
    result = calibrate(sample(posterior, DRAWS, seed), criterion, clusters=labels, level=level)
    limits = result.interval(level)[["lower", "upper"]].to_numpy().T
    rows["calibrated"] = {"aims at": "coverage", "status": result.flags()}
    rows["calibrated"] |= _intervals(criterion.names, limits)
    table = pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), name="method"))
    table.attrs["dropped"] = file.dropped(frame, criterion.rows.kept)
    refused = table[table["eta"].isna() & (table.index != "calibrated")]
    shown = table.drop(index=refused.index)
    say(shown.to_string(float_format=lambda v: f"{v:.4g}", na_rep="-"))
    for name, reason in refused["status"].items():
        say(f"{name}: {reason}")
    if table.attrs["dropped"]:
        say(table.attrs["dropped"])
    say(f"seed {seed}, level {level:g}; {made_with()}")
    return table


def _options(
    method: str, criterion: Criterion, prior: LogPrior | None
) -> dict[str, GeneralizedPosterior]:
    """Return the reference of `kl_to_bayes` for a robust loss: the normal model's posterior.

    Its variance is that of the residuals of least squares, so that the units of y do not matter.
    """
    if method != "kl_to_bayes":
        return {}
    if isinstance(criterion.loss, losses.Squared) or not hasattr(criterion.loss, "scale"):
        raise InputError("reference", "none is obvious for this loss", "use ef.select in Python")
    normal = criterion.with_loss(losses.Squared())
    variance = 2 * minimise(normal).value / (criterion.n - criterion.p)
    return {"reference": GeneralizedPosterior(normal, 1 / variance, prior)}


def _intervals(names: tuple[str, ...], limits: Array) -> dict[str, str]:
    return {
        name: f"{low:.4g} to {high:.4g}" for name, low, high in zip(names, *limits, strict=True)
    }

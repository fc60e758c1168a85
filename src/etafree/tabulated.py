"""Learning rates and calibrated intervals of a regression on a CSV file: ``etafree select``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.api import calibrate
from etafree.criterion import Criterion
from etafree.csv_table import CsvTable
from etafree.errors import EtafreeError, InputError
from etafree.learning_rates import METHODS, select
from etafree.losses import (
    Gamma,
    Huber,
    LinearLoss,
    Logistic,
    Poisson,
    PseudoHuber,
    Quantile,
    Squared,
    StudentT,
)
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.samplers import sample
from etafree.screening import screened
from etafree.validation import as_choice, as_level, as_positive, as_seeds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LOSSES", "select_file"]

#: Losses by the name on the command line.
LOSSES: dict[str, LinearLoss] = {
    "squared": Squared(),
    "huber": Huber(1.345, scale="mad"),
    "pseudo-huber": PseudoHuber(1.345, scale="mad"),
    "student": StudentT(4.0, scale="mad"),
    "logistic": Logistic(),
    "poisson": Poisson(),
    "gamma": Gamma(),
}
DRAWS = 4000


def select_file(
    path: Path, formula: str, loss: str, *, clusters: str | None = None,
    bandwidth: float | None = None, prior_sd: float | None = None, level: float = 0.95,
    seed: int = 1,
) -> pd.DataFrame:  # fmt: skip
    """Return a row per method: eta, its status and aim, and every coefficient's interval.

    Its ``attrs["dropped"]`` says how many rows of the file were left out, and why.

    Parameters
    ----------
    path : Path
        CSV file.
    formula : str
        Checked word by word before it is evaluated.
    loss : str
        One of `LOSSES`, or "median".
    clusters : str, optional
        Column of labels.
    bandwidth : float, optional
        Of the smoothed median, in units of the response.
    prior_sd : float, optional
        Standard deviation of a normal prior about zero; methods that need a prior are left out
        without one.
    """
    import pandas as pd

    as_choice(loss, "loss", (*LOSSES, "median"))
    level, _ = as_level(level), as_seeds(seed)
    if (loss == "median") != (bandwidth is not None):
        raise InputError("bandwidth", "goes with the median, and the median needs one", "pass one "
                         "in units of the response, about a tenth of its spread")  # fmt: skip
    chosen = LOSSES[loss] if bandwidth is None else Quantile(0.5, bandwidth)
    table = CsvTable.read(path, "data")
    frame = table.frame(screened(formula, table.names))
    criterion = Criterion.from_formula(formula, frame, chosen)
    labels = None if clusters is None else table.labels(clusters, "clusters", criterion.rows.kept)
    p, prior = criterion.p, None
    if prior_sd is not None:
        variance = as_positive(prior_sd, "prior_sd") ** 2
        prior = LogPrior.normal(np.zeros(p), variance * np.eye(p))
    posterior = GeneralizedPosterior(criterion, 1.0, prior)
    rows: list[dict[str, Any]] = []
    tail = 0.5 * (1 - level)
    for method in METHODS:
        row: dict[str, Any] = {"method": method}
        try:
            rate = select(posterior, method, clusters=labels, seed=seed,
                          **_options(method, criterion, prior))  # fmt: skip
            row |= {"aims at": rate.aim, "eta": rate.eta, "status": rate.status}
            made = sample(GeneralizedPosterior(criterion, rate.eta, prior), DRAWS, seed)
            row |= _intervals(criterion.names, np.quantile(made.array, [tail, 1 - tail], axis=0))
        except EtafreeError as error:
            alone = prior is None and getattr(error, "argument", "") == "log_prior"
            row |= {"status": "needs a prior: pass --prior-sd" if alone else str(error)}
        rows.append(row)
    draws = sample(GeneralizedPosterior(criterion, 1.0, prior), DRAWS, seed)
    result = calibrate(draws, criterion, clusters=labels, level=level)
    limits = result.interval(level)[["lower", "upper"]].to_numpy().T
    rows.append({"method": "calibrated", "aims at": "coverage", "status": result.flags(),
                 **_intervals(criterion.names, limits)})  # fmt: skip
    methods = pd.DataFrame(rows).set_index("method")
    methods.attrs["dropped"] = table.dropped(frame, criterion.rows.kept)
    return methods


def _options(method: str, criterion: Criterion, prior: LogPrior | None) -> dict[str, Any]:
    """Return the reference of `kl_to_bayes` for a robust loss: the normal model's posterior.

    Its variance is that of the residuals of least squares, so that the units of y do not matter.
    """
    if method != "kl_to_bayes":
        return {}
    if isinstance(criterion.loss, Squared) or not hasattr(criterion.loss, "scale"):
        raise InputError("reference", "none is obvious for this loss", "use ef.select in Python")
    normal = criterion.with_loss(Squared())
    variance = 2 * minimise(normal).value / (criterion.n - criterion.p)
    return {"reference": GeneralizedPosterior(normal, 1 / variance, prior)}


def _intervals(names: tuple[str, ...], limits: Any) -> dict[str, str]:
    return {
        name: f"{low:.4g} to {high:.4g}" for name, low, high in zip(names, *limits, strict=True)
    }

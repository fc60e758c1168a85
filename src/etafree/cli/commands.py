"""What ``etafree calibrate`` and ``etafree select`` do: files in, tables and files out."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.calibrate import calibrate
from etafree.cli.csv_table import CsvTable
from etafree.criterion import Criterion
from etafree.data.formula import screened
from etafree.dependence import Clusters, Panel, Survey, TimeSeries
from etafree.dependence.base import Structure
from etafree.errors import EtafreeError, InputError
from etafree.fits import from_arviz
from etafree.fits.stan import read_stan_csv
from etafree.fits.trees import read_tree, write_netcdf
from etafree.foundation.arguments import Array, as_choice, as_level, as_positive, as_seeds
from etafree.foundation.storage import writable
from etafree.foundation.terminal import say
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
from etafree.result import Calibration
from etafree.samplers import sample

if TYPE_CHECKING:
    import pandas as pd

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
    path: Path,
    formula: str,
    loss: str,
    *,
    clusters: str | None = None,
    bandwidth: float | None = None,
    prior_sd: float | None = None,
    level: float = 0.95,
    seed: int = 1,
) -> pd.DataFrame:
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
        raise InputError(
            "bandwidth",
            "goes with the median, and the median needs one",
            "pass one in units of the response, about a tenth of its spread",
        )
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
    rows: list[dict[str, object]] = []
    tail = 0.5 * (1 - level)
    for method in METHODS:
        row: dict[str, object] = {"method": method}
        try:
            rate = select(
                posterior, method, clusters=labels, seed=seed, **_options(method, criterion, prior)
            )
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
    rows.append(
        {
            "method": "calibrated",
            "aims at": "coverage",
            "status": result.flags(),
            **_intervals(criterion.names, limits),
        }
    )
    methods = pd.DataFrame(rows).set_index("method")
    methods.attrs["dropped"] = table.dropped(frame, criterion.rows.kept)
    return methods


def _options(
    method: str, criterion: Criterion, prior: LogPrior | None
) -> dict[str, GeneralizedPosterior]:
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


def _intervals(names: tuple[str, ...], limits: Array) -> dict[str, str]:
    return {
        name: f"{low:.4g} to {high:.4g}" for name, low, high in zip(names, *limits, strict=True)
    }


#: Exit code of the command line when a diagnostic fails outright; files are written all the same.
FAILED = 3


def calibrate_files(
    fit: Sequence[Path],
    *,
    clusters: Sequence[str] = (),
    strata: str | None = None,
    time: str | None = None,
    units: str | None = None,
    correction: str | None = None,
    var: Sequence[str] = (),
    log_likelihood: Sequence[str] = (),
    eta: float | None = None,
    level: float = 0.95,
    out: Path | None = None,
    report: Path | None = None,
    force: bool = False,
    latent: bool = True,
    quiet: bool = False,
) -> Calibration:
    """Calibrate a stored fit, print before and after, write a netCDF file and a page.

    Parameters
    ----------
    fit : paths
        A netCDF file, a zarr store, or CSV files of CmdStan.
    clusters, strata, time, units : str
        ``data.csv:school`` is a column of a file with a row per observation; a bare name is a
        variable or coordinate of the fit. Several clusters are several ways.
    var : str
        Names of variables, or regular expressions that match all of a name.
    log_likelihood : str
        Stored variables to add up.
    out, report : path, optional
        netCDF file and HTML page to write. Existing files are refused unless `force`.
    latent : bool
        Refuse a log-likelihood that is conditional on group effects.
    """
    for path, option in ((out, "out"), (report, "report")):
        _check_output(path, option, force)
    places = [path.resolve() for path in (*fit, out, report) if path is not None]
    if len(set(places)) < len(places):
        raise InputError(
            "out" if out is not None else "report",
            "names one file twice",
            "fit, --out and --report are different files",
        )
    dependence = structure_of(clusters, strata, time, units)
    options: dict[str, Any] = {"eta": eta, "latent": "auto" if latent else None, "losses": True}
    csv = all(path.suffix == ".csv" for path in fit)
    if len(fit) > 1 and not csv:
        raise InputError("fit", f"is {len(fit)} files", "only CSV files of CmdStan come as several")
    _say(quiet, f"reading {', '.join(map(str, fit))}")
    source = read_stan_csv([str(path) for path in fit]) if csv else read_tree(fit[0])
    if var:
        options["var_names"] = matching(var, list(source.children["posterior"].data_vars))
    if log_likelihood:
        options["log_likelihood"] = list(log_likelihood)
    _say(quiet, "calibrating")
    made = calibrate(
        from_arviz(source, **options), dependence=dependence, correction=correction, level=level
    )
    say(made)
    if out is not None:
        _say(quiet, f"writing {out}")
        write_netcdf(made.to_arviz(), out)
    if report is not None:
        _say(quiet, f"writing {report}")
        made.report(report, force=force)
    return made


def structure_of(
    clusters: Sequence[str], strata: str | None, time: str | None, units: str | None
) -> Structure | None:
    """Return the structure that columns and names on the command line describe; None without any.

    Examples
    --------
    >>> structure_of([], None, "year", None)
    TimeSeries(time='year')
    """
    if units is not None and time is None:
        raise InputError("units", "are the units of a panel and need --time", "pass --time too")
    for option, given in (("clusters", clusters), ("strata", strata)):
        if time is not None and given:
            raise InputError(option, "cannot be combined with --time", "for a panel pass --units")
    if time is not None:
        periods = column(time, "time")
        return TimeSeries(periods) if units is None else Panel(column(units, "units"), periods)
    found = {name.rpartition(":")[2]: column(name, "clusters") for name in clusters}
    if len(found) < len(clusters):
        raise InputError("clusters", "has two ways of the same name", "rename one")
    labels = next(iter(found.values()), None) if len(found) < 2 else found
    if strata is None:
        return None if labels is None else Clusters(labels)
    if len(found) > 1:
        raise InputError("clusters", "has several ways", "a survey design has one set of PSUs")
    return Survey(labels, column(strata, "strata"))


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        say(text, error=True)


def _check_output(path: Path | None, option: str, force: bool) -> None:
    if path is None:
        return
    if writable(path, argument=option).exists() and not force:
        raise InputError(option, f"{str(path)!r} exists", "pass --force to overwrite it")


def column(name: str, option: str) -> str | NDArray[Any]:
    """Return a column ``file.csv:column`` as written, or a bare name for the fit to look up.

    Lines of a file stand in the order of the observations: their numbers are no index to go by.
    Times are numbers where they are written as numbers.

    Examples
    --------
    >>> column("school", "clusters")
    'school'
    """
    file, colon, label = name.rpartition(":")
    if not colon:
        return name
    table = CsvTable.read(Path(file), option)
    found = table.times(label, option) if option == "time" else table.labels(label, option)
    return found.to_numpy()


def matching(patterns: Sequence[str], names: Sequence[Hashable]) -> list[str]:
    """Return the names that are one of the patterns, or match one as a regular expression.

    Examples
    --------
    >>> matching(["beta", "sigma.*"], ["alpha", "beta", "beta2", "sigma_y"])
    ['beta', 'sigma_y']
    """
    chosen: list[str] = []
    for pattern in patterns:
        try:
            matches = [n for n in map(str, names) if n == pattern or re.fullmatch(pattern, n)]
        except re.error as error:
            raise InputError("var", f"{pattern!r} is no regular expression ({error})") from None
        if not matches:
            raise InputError("var", f"{pattern!r} matches no variable", f"there are {list(names)}")
        chosen += [name for name in matches if name not in chosen]
    return chosen

"""What ``etafree calibrate`` and ``etafree select`` do: files in, tables and files out."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from typer import Argument, Option

from etafree import losses
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
from etafree.foundation.storage import made_with, writable
from etafree.foundation.terminal import say
from etafree.learning_rates import METHODS, select
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.result import Calibration
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


def select_file(
    data: Annotated[Path, Argument(help="CSV file with a header.")],
    formula: Annotated[str, Option(help='For example "y ~ x + C(region)".')],
    loss: Annotated[
        str,
        Option(help="squared, huber, pseudo-huber, student, median, logistic, poisson or gamma."),
    ] = "huber",
    clusters: Annotated[str | None, Option(help="Column of cluster labels.")] = None,
    bandwidth: Annotated[
        float | None,
        Option(help="Smoothing of the median, in units of the response; the median needs it."),
    ] = None,
    prior_sd: Annotated[
        float | None,
        Option(
            help="Standard deviation of a normal prior about zero; methods that need a prior are "
            "left out without."
        ),
    ] = None,
    level: Annotated[float, Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, Option(help="Seed of draws and bootstraps.")] = 1,
) -> object:  # a DataFrame, which the command line need not import
    """Print the learning rate that each method chooses, its intervals, and the calibrated ones.

    Example: etafree select data.csv --formula "y ~ x" --clusters school
    """
    import pandas as pd

    as_choice(loss, "loss", (*LOSSES, "median"))
    level, _ = as_level(level), as_seeds(seed)
    if (loss == "median") != (bandwidth is not None):
        advice = "pass one in units of the response, about a tenth of its spread"
        raise InputError("bandwidth", "goes with the median, and the median needs one", advice)
    chosen = LOSSES[loss] if bandwidth is None else losses.Quantile(0.5, bandwidth)
    file = CsvTable.read(data, "data")
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


def calibrate_files(
    fit: Annotated[
        list[Path],
        Argument(help="netCDF file, zarr store, or CmdStan CSVs, with every row's log-likelihood."),
    ],
    clusters: Annotated[
        list[str],
        Option(
            help="Labels of rows that may depend on each other: file.csv:column (a row per "
            "observation), or a name in the fit; repeat for crossed clusters."
        ),
    ] = [],  # noqa: B006
    strata: Annotated[
        str | None,
        Option(help="Strata of a survey, written like clusters; clusters are then its PSUs."),
    ] = None,
    time: Annotated[
        str | None, Option(help="Times of a series, written like clusters, and instead of them.")
    ] = None,
    units: Annotated[
        str | None, Option(help="Units of a panel, written like clusters; with --time.")
    ] = None,
    correction: Annotated[
        str | None,
        Option(
            help="Independent rows: HC0, HC1 (default). Clusters: CR0, CR1 (default), CR1S "
            "(default if crossed). Time: EWC (default), Bartlett; DK for panels."
        ),
    ] = None,
    var: Annotated[
        list[str],
        Option(
            help="Parameter to report, by name or regular expression; repeatable. Default: all."
        ),
    ] = [],  # noqa: B006
    log_likelihood: Annotated[
        list[str],
        Option(help='Which one, if the fit stores several; repeat to add some up, "sum" adds all.'),
    ] = [],  # noqa: B006
    eta: Annotated[
        float | None, Option(help="Learning rate of the fit, if it was tempered; default 1.")
    ] = None,
    level: Annotated[float, Option(help="Level of the intervals.")] = 0.95,
    out: Annotated[
        Path | None, Option("--out", "-o", help="netCDF file to write, with the calibrated draws.")
    ] = None,
    report: Annotated[
        Path | None, Option(help="HTML page to write, with pictures and diagnostics.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite existing files.")] = False,
    conditional: Annotated[
        bool,
        Option(
            "--conditional",
            help="Accept a log-likelihood that is conditional on group effects; refused "
            "otherwise, because intervals come out too narrow.",
        ),
    ] = False,
    quiet: Annotated[bool, Option("--quiet", help="No progress on stderr.")] = False,
) -> Calibration:
    """Calibrate a stored fit: print its intervals before and after, write the calibrated draws.

    Exit code 0: done; 2: nothing was written, the message says why;
    3: done, but a diagnostic failed.

    Example: etafree calibrate fit.nc --clusters data.csv:school -o calibrated.nc

    Example: etafree calibrate chain-1.csv chain-2.csv --report page.html
    """
    _check_outputs(fit, {"out": out, "report": report}, force)

    def progress(text: str) -> None:
        if not quiet:
            say(text, error=True)

    dependence = structure_of(clusters, strata, time, units)
    csv = all(path.suffix == ".csv" for path in fit)
    if len(fit) > 1 and not csv:
        raise InputError("fit", f"is {len(fit)} files", "only CSV files of CmdStan come as several")
    progress(f"reading {', '.join(map(str, fit))}")
    source = read_stan_csv([str(path) for path in fit]) if csv else read_tree(fit[0])
    progress("calibrating")
    stored = from_arviz(
        source,
        eta=eta,
        latent=None if conditional else "auto",
        losses=True,
        var_names=matching(var, list(source.children["posterior"].data_vars)) if var else None,
        log_likelihood=list(log_likelihood) or None,
    )
    result = calibrate(stored, dependence=dependence, correction=correction, level=level)
    say(f"{result}\n\n{result.details()}")
    if out is not None:
        progress(f"writing {out}")
        write_netcdf(result.to_arviz(), out)
    if report is not None:
        progress(f"writing {report}")
        result.report(report, force=force)
    return result


def _check_outputs(fit: Sequence[Path], outputs: Mapping[str, Path | None], force: bool) -> None:
    """Refuse, before any work, files that cannot be written, that exist, or that are one file."""
    places = {option: path for option, path in outputs.items() if path is not None}
    for option, path in places.items():
        if writable(path, argument=option).exists() and not force:
            raise InputError(option, f"{str(path)!r} exists", "pass --force to overwrite it")
    if len({path.resolve() for path in (*fit, *places.values())}) < len(fit) + len(places):
        advice = "fit, --out and --report are different files"
        raise InputError(next(iter(places), "fit"), "names one file twice", advice)


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
    for option, names in (("clusters", clusters), ("strata", strata)):
        if time is not None and names:
            raise InputError(option, "cannot be combined with --time", "for a panel pass --units")
    if time is not None:
        periods = column(time, "time")
        return TimeSeries(periods) if units is None else Panel(column(units, "units"), periods)
    ways = {name.rpartition(":")[2]: column(name, "clusters") for name in clusters}
    if len(ways) < len(clusters):
        raise InputError("clusters", "has two ways of the same name", "rename one")
    labels = next(iter(ways.values()), None) if len(ways) < 2 else ways
    if strata is None:
        return None if labels is None else Clusters(labels)
    if len(ways) > 1:
        raise InputError("clusters", "has several ways", "a survey design has one set of PSUs")
    return Survey(labels, column(strata, "strata"))


def column(name: str, option: str) -> str | NDArray[np.generic]:
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
    labels = table.times(label, option) if option == "time" else table.labels(label, option)
    return labels.to_numpy()


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

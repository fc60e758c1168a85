"""What ``etafree calibrate``, ``check`` and ``select`` do: files in, tables and files out."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from typer import Argument, Option

from etafree import fits, losses
from etafree.calibrate import calibrate
from etafree.cli.arrow_table import FORMATS, table_of
from etafree.cli.draws_table import (
    as_r_writes,
    of_cmdstan,
    read_design,
    read_draws,
    with_log_likelihood,
)
from etafree.cli.shell_words import in_shell_words
from etafree.criterion import Criterion
from etafree.data.formula import screened
from etafree.data.sources import module
from etafree.dependence import Clusters, Panel, Survey, TimeSeries
from etafree.dependence.base import Structure
from etafree.errors import EtafreeError, InputError
from etafree.fits.stan import read_stan_csv
from etafree.fits.trees import read_tree, write_netcdf
from etafree.foundation.arguments import Array, as_choice, as_level, as_positive, as_seeds
from etafree.foundation.check import VERDICTS, Check
from etafree.foundation.storage import amount, made_with, whole_file, writable
from etafree.foundation.terminal import say
from etafree.learning_rates import METHODS, select
from etafree.optimize import minimise
from etafree.posterior import GeneralizedPosterior, LogPrior
from etafree.predictions import LINKS
from etafree.result import Calibration
from etafree.samplers import sample

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

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
#: Groups of the original draws that are written beside the calibrated ones.
STAY = ("original_posterior", "original_sample_stats")
#: What to do about a fit without one.
STORE = (
    "pass a table with --log-likelihood, in R of log_lik(fit) or loo::extract_log_lik(fit); or "
    "store it: Stan a vector log_lik in generated quantities, PyMC "
    "pm.compute_log_likelihood(idata), Bambi model.compute_log_likelihood(idata)"
)
#: Draws of each posterior.
DRAWS = 4000


def select_file(
    data: Annotated[Path, Argument(help="CSV file with a header, Parquet or Arrow file.")],
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
    """Print each method's learning rate, its intervals, and the calibrated ones.

    Example: etafree select data.csv --formula "y ~ x" --clusters school
    """
    import pandas as pd

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


Fit = Annotated[
    list[Path],
    Argument(
        help="netCDF file, zarr store, CmdStan's CSVs, or draws from R as a CSV, Parquet or Arrow "
        "table; with every row's log-likelihood."
    ),
]
ClusterLabels = Annotated[
    list[str],
    Option(
        help="Labels of rows that may depend on each other: file:column of a CSV, Parquet or Arrow "
        "file with a row per observation, or a name in the fit; repeat for crossed clusters."
    ),
]
StrataLabels = Annotated[
    str | None,
    Option(help="Strata of a survey, written like clusters; clusters are then its PSUs."),
]
Times = Annotated[
    str | None, Option(help="Times of a series, written like clusters, and instead of them.")
]
Units = Annotated[str | None, Option(help="Units of a panel, written like clusters; with --time.")]
Correction = Annotated[
    str | None,
    Option(
        help="Independent rows: HC0, HC1 (default). Clusters: CR0, CR1 (default), CR1S "
        "(default if crossed). Time: EWC (default), Bartlett; DK for panels."
    ),
]
Variables = Annotated[
    list[str],
    Option(help="Parameter to report, by name or regular expression; repeatable. Default: all."),
]
LogLikelihood = Annotated[
    list[str],
    Option(
        help="Table of the log-likelihood, a row per draw and a column per observation, if it is "
        'not in the fit; or a name, if the fit stores several: repeat to add some up, "sum" adds '
        "all."
    ),
]
Eta = Annotated[
    float | None, Option(help="Learning rate of the fit, if it was tempered; default 1.")
]
Conditional = Annotated[
    bool,
    Option(
        "--conditional",
        help="Accept a log-likelihood that is conditional on group effects; refused "
        "otherwise, because intervals come out too narrow.",
    ),
]
Quiet = Annotated[bool, Option("--quiet", help="No progress on stderr.")]


def calibrate_files(
    fit: Fit,
    clusters: ClusterLabels = [],  # noqa: B006
    strata: StrataLabels = None,
    time: Times = None,
    units: Units = None,
    correction: Correction = None,
    var: Variables = [],  # noqa: B006
    log_likelihood: LogLikelihood = [],  # noqa: B006
    eta: Eta = None,
    level: Annotated[float, Option(help="Level of the intervals.")] = 0.95,
    out: Annotated[
        Path | None, Option("--out", "-o", help="netCDF file to write, with the calibrated draws.")
    ] = None,
    report: Annotated[
        Path | None, Option(help="HTML page to write, with pictures and diagnostics.")
    ] = None,
    csv: Annotated[
        Path | None,
        Option(help="CSV file of the calibrated draws, a column per parameter, as R reads them."),
    ] = None,
    summary: Annotated[
        Path | None, Option(help="CSV file of the table: estimates, standard errors, limits.")
    ] = None,
    predict: Annotated[
        Path | None,
        Option(
            help="Table of rows to predict, its columns named after parameters, as R's "
            "model.matrix() makes them; a column offset is added. With --link."
        ),
    ] = None,
    link: Annotated[
        str | None, Option(help="Of these predictions: identity, log or logit.")
    ] = None,
    predictions: Annotated[
        Path | None,
        Option(help="CSV or Parquet file of the predictions; they are printed without."),
    ] = None,
    keep_all: Annotated[
        bool,
        Option(
            "--keep-all",
            help="Copy into --out what the fit has per draw and observation too, such as its "
            "log-likelihood.",
        ),
    ] = False,
    force: Annotated[bool, Option("--force", help="Overwrite existing files.")] = False,
    conditional: Conditional = False,
    quiet: Quiet = False,
) -> Calibration:
    """Calibrate a stored fit: print its intervals before and after, write draws.

    Exit code 0: done; 2: nothing was written, the message says why;
    3: done, but a diagnostic failed.

    Example: etafree calibrate fit.nc --clusters data.csv:school -o calibrated.nc

    Example: etafree calibrate chain-1.csv chain-2.csv --report page.html

    Example: etafree calibrate draws.csv --log-likelihood ll.csv --csv new.csv
    """
    outputs = {"out": out, "report": report, "csv": csv, "summary": summary}
    outputs |= {"predictions": predictions}
    labels = [*clusters, *filter(None, (strata, time, units))]
    tables = [Path(name.rpartition(":")[0]) for name in labels]
    tables += [] if predict is None else [predict]
    sources = {table.resolve() for table in tables if table.is_file()}
    stored = [Path(name) for name in log_likelihood if Path(name).is_file()]
    _check_outputs([*fit, *stored, *sources], outputs, force)
    if keep_all and out is None:
        raise InputError("keep_all", "goes with --out", "name the file to write")
    design = _design(predict, link, predictions)
    progress = _Progress(quiet)
    dependence = structure_of(clusters, strata, time, units)
    read = _read(fit, var, log_likelihood, eta, conditional, progress)
    result = calibrate(read, dependence=dependence, correction=correction, level=level)
    predicted = predict_rows(result, design, link)
    say(in_shell_words(f"{result}\n\n{result.details()}"))
    if len(predicted) and predictions is None:
        say(f"\n{predicted.to_string(index=False, float_format=lambda v: f'{v:.4g}')}")
    write: dict[str, Callable[[Path], object]] = {
        "out": lambda path: _write_tree(result, path, keep_all, progress),
        "report": lambda path: result.report(path, force=force),
        "csv": lambda path: write_table(draws_table(result), path),
        "summary": lambda path: write_table(summary_table(result), path),
        "predictions": lambda path: write_table(predicted, path),
    }
    for option, path in outputs.items():
        if path is not None:
            progress(f"writing {path}")
            write[option](path)
    return result


def _write_tree(result: Calibration, path: Path, keep_all: bool, progress: _Progress) -> None:
    """Write the calibrated draws; say what was left out."""
    tree = result.to_arviz()
    tree, left = (tree, {}) if keep_all else without_rows(tree)
    write_netcdf(tree, path)
    if left:
        sizes = ", ".join(f"{name} ({amount(size)})" for name, size in left.items())
        progress(f"left out of {path}, as it is in the fit: {sizes}; --keep-all copies it")


def without_rows(tree: xr.DataTree) -> tuple[xr.DataTree, dict[str, int]]:
    """Return a tree without what belongs to single rows, and the bytes of what was left out.

    Of the groups that were made with the original draws the posterior and the sampler's statistics
    stay; log-likelihoods and predictions have a number per draw and observation.
    """
    left = {
        name: tree[name].nbytes
        for name in map(str, tree.children)
        if name.startswith("original_") and name not in STAY
    }
    fewer = tree.drop_nodes(list(left))
    return fewer, {name.removeprefix("original_"): size for name, size in left.items()}


def draws_table(result: Calibration) -> pd.DataFrame:
    """Return the calibrated draws with the columns by which R's posterior package knows draws."""
    import pandas as pd

    chains, length = result.draws.values.shape[:2]
    count = np.arange(chains * length)
    numbers = {".chain": count // length, ".iteration": count % length, ".draw": count}
    table = pd.DataFrame({name: values + 1 for name, values in numbers.items()})
    names = [as_r_writes(name) for name in result.shown.names]
    return table.join(pd.DataFrame(result.shown.after, columns=names))


def summary_table(result: Calibration) -> pd.DataFrame:
    """Return the table of a result with the names by which R knows parameters."""
    table = result.summary()
    return (
        table.set_axis([as_r_writes(str(name)) for name in table.index])
        .rename_axis("parameter")
        .reset_index()
    )


def _design(
    predict: Path | None, link: str | None, predictions: Path | None
) -> pd.DataFrame | None:
    """Return rows to predict, if there are; refuse options that need them, and lack of a link."""
    if predict is None:
        for option, value in (("link", link), ("predictions", predictions)):
            if value is not None:
                raise InputError(option, "goes with --predict", "name a table of rows to predict")
        return None
    if link is None:
        problem = "is needed with --predict: draws do not tell it"
        raise InputError("link", problem, f"pass one of {', '.join(LINKS)}")
    as_choice(link, "link", tuple(LINKS))
    return read_design(predict)


def predict_rows(
    result: Calibration, design: pd.DataFrame | None, link: str | None
) -> pd.DataFrame:
    """Return predictions at rows of a design, numbered from 1; none without a design."""
    import pandas as pd

    if design is None:
        return pd.DataFrame()
    table = result.predict(design, link=link)
    return table.set_axis(range(1, len(table) + 1)).rename_axis("row").reset_index()


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table whole or not at all: Parquet or Arrow by the suffix, else CSV as UTF-8."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is not None:
        module("pyarrow")
    with whole_file(path) as file:
        if kind == "parquet":
            table.to_parquet(file, index=False)
        elif kind == "feather":
            table.to_feather(file)
        else:
            file.write(table.to_csv(index=False).encode())


def check_files(
    fit: Annotated[
        list[Path],
        Argument(
            help="A fit as for calibrate, or a result that was saved (.npz) and nothing else."
        ),
    ],
    clusters: ClusterLabels = [],  # noqa: B006
    strata: StrataLabels = None,
    time: Times = None,
    units: Units = None,
    correction: Correction = None,
    var: Variables = [],  # noqa: B006
    log_likelihood: LogLikelihood = [],  # noqa: B006
    eta: Eta = None,
    conditional: Conditional = False,
    quiet: Quiet = False,
) -> Calibration:
    """Print every check of a fit or a saved result: value, verdict, what to do.

    Nothing is written. Exit code 0: no check failed, though some may warn;
    2: nothing was checked, the message says why; 3: a check failed.

    Example: etafree check fit.nc --clusters data.csv:school

    Example: etafree check result.npz
    """
    if any(path.suffix == ".npz" for path in fit):
        options: dict[str, object] = {"clusters": clusters, "strata": strata, "time": time}
        options |= {"correction": correction, "var": var, "log_likelihood": log_likelihood}
        options |= {"units": units, "eta": eta, "conditional": conditional}
        for option, value in {**options, "fit": fit[1:]}.items():
            if value not in (None, False, []):
                problem = f"is given, and {str(fit[0])!r} is a result that has been calibrated"
                raise InputError(option, problem, "pass the saved result alone")
        result = Calibration.load(fit[0])
    else:
        dependence = structure_of(clusters, strata, time, units)
        stored = _read(fit, var, log_likelihood, eta, conditional, _Progress(quiet))
        result = calibrate(stored, dependence=dependence, correction=correction)
    say("\n".join([result.target.describe(), "", *check_lines(result.checks)]))
    return result


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return a table of checks as lines: verdict, name, value, threshold, and advice below.

    Examples
    --------
    >>> for line in check_lines([Check("shape", 0.02, 0.01, "above", "warn", "draws are skewed")]):
    ...     print(line)
    verdict  check  value  threshold
    warn     shape  0.02   at most 0.01
               draws are skewed
    <BLANKLINE>
    1 check: 1 warn
    """
    sides = {"above": "at most", "below": "at least"}
    rows = [("verdict", "check", "value", "threshold"), *(_cells(c, sides) for c in checks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row, advice in zip(rows, ["", *(c.advice for c in checks)], strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        lines += textwrap.wrap(
            in_shell_words(advice), 90, initial_indent=" " * 11, subsequent_indent=" " * 11
        )
    verdicts = Counter(c.verdict for c in checks)
    counts = ", ".join(f"{verdicts[v]} {v}" for v in VERDICTS if verdicts[v])
    return [*lines, "", f"{len(checks)} check{'s' * (len(checks) != 1)}: {counts}"]


def _cells(check: Check, sides: Mapping[str, str]) -> tuple[str, str, str, str]:
    known = np.isfinite(check.threshold)
    limit = f"{sides[check.warns]} {check.threshold:.4g}" if known else ""
    value = f"{check.value:.4g}" if np.isfinite(check.value) else "-"
    return check.verdict, check.name, value, limit


@dataclass(frozen=True)
class _Progress:
    """Says on stderr what is being done, unless it is to be quiet."""

    quiet: bool

    def __call__(self, text: str) -> None:
        if not self.quiet:
            say(text, error=True)


def _read(
    fit: Sequence[Path],
    var: Sequence[str],
    log_likelihood: Sequence[str],
    eta: float | None,
    conditional: bool,
    progress: _Progress,
) -> fits.Fit:
    """Return a stored fit with what the options say of it."""
    files = [p for p in map(Path, log_likelihood) if _is_table(p) or p.is_file()]
    names = [name for name in log_likelihood if Path(name) not in files]
    progress(f"reading {', '.join(map(str, [*fit, *files]))}")
    source = _tree(fit, files, progress)
    if "log_likelihood" not in source.children:
        problem = f"is not in {', '.join(map(repr, map(str, fit)))}"
        raise InputError("log_likelihood", problem, STORE)
    progress("calibrating")
    return fits.from_arviz(
        source,
        eta=eta,
        latent=None if conditional else "auto",
        losses=True,
        var_names=matching(var, list(source.children["posterior"].data_vars)) if var else None,
        log_likelihood=names or None,
    )


def _is_table(path: Path) -> bool:
    """Return whether a name is that of a CSV, Parquet or Arrow file."""
    return path.suffix.lower() in {".csv", *FORMATS}


def _tree(fit: Sequence[Path], files: Sequence[Path], progress: _Progress) -> xr.DataTree:
    """Return the draws of a fit, with the log-likelihood that other files have."""
    if len(fit) > 1 and not all(map(_is_table, fit)):
        raise InputError("fit", f"is {len(fit)} files", "only tables of draws come as several")
    draws = None
    if not _is_table(fit[0]):
        tree = read_tree(fit[0])
    elif all(path.suffix.lower() == ".csv" and of_cmdstan(path) for path in fit):
        tree = read_stan_csv([str(path) for path in fit])
    else:
        tree, draws = read_draws(fit)
        if "chain" not in draws.counters and len(fit) == 1:
            progress("draws have no column .chain: they are taken as those of one chain")
    return with_log_likelihood(tree, draws, files) if files else tree


def _check_outputs(fit: Sequence[Path], outputs: Mapping[str, Path | None], force: bool) -> None:
    """Refuse, before any work, files that cannot be written, that exist, or that are one file."""
    places = {option: path for option, path in outputs.items() if path is not None}
    for option, path in places.items():
        if writable(path, argument=option).exists() and not force:
            raise InputError(option, f"{str(path)!r} exists", "pass --force to overwrite it")
    if len({path.resolve() for path in (*fit, *places.values())}) < len(fit) + len(places):
        advice = "what is read and what is written are different files"
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
        raise InputError("clusters", "names two clusterings alike", "rename one")
    if strata is None:
        return Clusters(ways) if ways else None  # by name: an array of labels has none
    if len(ways) > 1:
        raise InputError("clusters", "has several ways", "a survey design has one set of PSUs")
    return Survey(next(iter(ways.values()), None), column(strata, "strata"))


def column(name: str, option: str) -> str | pd.Series[Any] | NDArray[np.generic]:
    """Return a column ``file.csv:column`` as written, or a bare name for the fit to look up.

    Rows of a file stand in the order of the observations: their numbers are no index to go by,
    but an index that pandas stored is. Times are numbers where they are written as numbers.

    Examples
    --------
    >>> column("school", "clusters")
    'school'
    """
    import pandas as pd

    file, colon, label = name.rpartition(":")
    if not colon and _is_table(Path(name)):
        known = ", ".join(f"{name}:{column}" for column in table_of(Path(name), option).names[:5])
        raise InputError(option, f"{name!r} is a file without a column", f"write one of {known}")
    if not colon:
        return name
    table = table_of(Path(file), option)
    labels = table.times(label, option) if option == "time" else table.labels(label, option)
    counted = labels.index.equals(pd.RangeIndex(len(labels)))
    return labels.to_numpy() if counted else labels


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
            raise InputError(
                "var", f"{pattern!r} is not a valid regular expression ({error})"
            ) from None
        if not matches:
            raise InputError("var", f"{pattern!r} matches no variable", f"there are {list(names)}")
        chosen += [name for name in matches if name not in chosen]
    return chosen

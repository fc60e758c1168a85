"""The commands ``etafree calibrate``, ``check`` and ``select`` and their options.

What does the work is imported when a command runs: help and completion wait for none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from etafree.cli.shell_words import in_shell_words
from etafree.errors import InputError
from etafree.foundation.terminal import say

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from etafree.dependence.base import Structure


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
) -> object:  # a DataFrame: what a command returns is not imported before it runs
    """Print each method's learning rate, its intervals, and the calibrated ones.

    Example: etafree select data.csv --formula "y ~ x" --clusters school
    """
    from etafree.cli.rates import print_rates

    return print_rates(data, formula, loss, clusters, bandwidth, prior_sd, level, seed)


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
        Path | None,
        Option(
            "--out",
            "-o",
            help="netCDF file to write, with the calibrated draws; with suffix .npz the result, as "
            "check and Calibration.load read it.",
        ),
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
) -> object:  # a Calibration
    """Calibrate a stored fit: print its intervals before and after, write draws.

    Exit code 0: done; 2: nothing was written, the message says why;
    3: done, but a diagnostic failed.

    Example: etafree calibrate fit.nc --clusters data.csv:school -o calibrated.nc

    Example: etafree calibrate chain-1.csv chain-2.csv --report page.html

    Example: etafree calibrate draws.csv --log-likelihood ll.csv --csv new.csv
    """
    from etafree.calibrate import calibrate
    from etafree.cli import fit_files

    outputs = {"out": out, "report": report, "csv": csv, "summary": summary}
    outputs |= {"predictions": predictions}
    labels = [*clusters, *filter(None, (strata, time, units))]
    tables = [Path(name.rpartition(":")[0]) for name in labels]
    tables += [] if predict is None else [predict]
    sources = {table.resolve() for table in tables if table.is_file()}
    stored = [Path(name) for name in log_likelihood if Path(name).is_file()]
    fit_files.check_outputs([*fit, *stored, *sources], outputs, force)
    if keep_all and out is None:
        raise InputError("keep_all", "goes with --out", "name the netCDF file to write")
    design = fit_files.design_of(predict, link, predictions)
    progress = fit_files.Progress(quiet)
    dependence = structure_of(clusters, strata, time, units)
    read = fit_files.read_fit(fit, var, log_likelihood, eta, conditional, progress)
    result = calibrate(read, dependence=dependence, correction=correction, level=level)
    predicted = fit_files.predict_rows(result, design, link)
    say(in_shell_words(f"{result}\n\n{result.details()}"))
    if len(predicted) and predictions is None:
        say(f"\n{predicted.to_string(index=False, float_format=lambda v: f'{v:.4g}')}")
    write: dict[str, Callable[[Path], object]] = {
        "out": lambda path: fit_files.write_tree(result, path, keep_all, progress),
        "report": lambda path: result.report(path, force=force),
        "csv": lambda path: fit_files.write_table(fit_files.draws_table(result), path),
        "summary": lambda path: fit_files.write_table(fit_files.summary_table(result), path),
        "predictions": lambda path: fit_files.write_table(predicted, path),
    }
    for option, path in outputs.items():
        if path is not None:
            progress(f"writing {path}")
            write[option](path)
    return result


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
) -> object:  # a Calibration
    """Print every check of a fit or a saved result: value, verdict, what to do.

    Nothing is written. Exit code 0: no check failed, though some may warn;
    2: nothing was checked, the message says why; 3: a check failed.

    Example: etafree check fit.nc --clusters data.csv:school

    Example: etafree check result.npz
    """
    from etafree.calibrate import calibrate
    from etafree.cli import fit_files
    from etafree.result import Calibration

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
        stored = fit_files.read_fit(
            fit, var, log_likelihood, eta, conditional, fit_files.Progress(quiet)
        )
        result = calibrate(stored, dependence=dependence, correction=correction)
    say("\n".join([result.target.describe(), "", *fit_files.check_lines(result.checks)]))
    return result


def structure_of(
    clusters: Sequence[str], strata: str | None, time: str | None, units: str | None
) -> Structure | None:
    """Return the structure that columns and names on the command line describe; None without any.

    Examples
    --------
    >>> structure_of([], None, "year", None)
    TimeSeries(time='year')
    """
    from etafree.dependence import Clusters, Panel, Survey, TimeSeries

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

    from etafree.cli.arrow_table import table_of
    from etafree.cli.fit_files import is_table

    file, colon, label = name.rpartition(":")
    if not colon and is_table(Path(name)):
        known = ", ".join(f"{name}:{column}" for column in table_of(Path(name), option).names[:5])
        raise InputError(option, f"{name!r} is a file without a column", f"write one of {known}")
    if not colon:
        return name
    table = table_of(Path(file), option)
    labels = table.times(label, option) if option == "time" else table.labels(label, option)
    counted = labels.index.equals(pd.RangeIndex(len(labels)))
    return labels.to_numpy() if counted else labels

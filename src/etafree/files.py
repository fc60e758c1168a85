"""Calibrate a fit that is stored in files: what ``etafree calibrate`` does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etafree.adapters.stan import read_stan_csv
from etafree.adapters.trees import read_tree, write_netcdf
from etafree.api import calibrate
from etafree.csv_table import CsvTable
from etafree.errors import InputError
from etafree.result import Calibration
from etafree.storage import writable
from etafree.terminal import say

if TYPE_CHECKING:
    pass

__all__ = ["calibrate_files", "column", "matching"]

#: Exit code of the command line when a diagnostic fails outright; files are written all the same.
FAILED = 3


def calibrate_files(
    fit: Sequence[Path], *, clusters: Sequence[str] = (), strata: str | None = None,
    time: str | None = None, units: str | None = None, correction: str | None = None,
    var: Sequence[str] = (), log_likelihood: Sequence[str] = (), eta: float | None = None,
    level: float = 0.95, out: Path | None = None, report: Path | None = None, force: bool = False,
    latent: bool = True, quiet: bool = False,
) -> Calibration:  # fmt: skip
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
        raise InputError("out" if out is not None else "report", "names one file twice",
                         "fit, --out and --report are different files")  # fmt: skip
    labels = {"strata": strata, "time": time, "units": units}
    options: dict[str, Any] = {k: column(v, k) for k, v in labels.items() if v is not None}
    if clusters:
        found = [column(name, "clusters") for name in clusters]
        names = [name.rpartition(":")[2] for name in clusters]
        options["clusters"] = found[0] if len(found) == 1 else dict(zip(names, found, strict=True))
    csv = all(path.suffix == ".csv" for path in fit)
    if len(fit) > 1 and not csv:
        raise InputError("fit", f"is {len(fit)} files", "only CSV files of CmdStan come as several")
    _say(quiet, f"reading {', '.join(map(str, fit))}")
    source: Any = read_stan_csv([str(path) for path in fit]) if csv else read_tree(fit[0])
    if var:
        options["var_names"] = matching(var, list(source["posterior"].data_vars))
    if log_likelihood:
        options["log_likelihood"] = list(log_likelihood)
    if not latent:
        options["latent"] = None
    _say(quiet, "calibrating")
    made = calibrate(source, correction=correction, eta=eta, level=level, **options)
    say(made)
    if out is not None:
        _say(quiet, f"writing {out}")
        write_netcdf(made.to_arviz(), out)
    if report is not None:
        _say(quiet, f"writing {report}")
        made.report(report, force=force)
    return made


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        say(text, error=True)


def _check_output(path: Path | None, option: str, force: bool) -> None:
    if path is None:
        return
    if writable(path, argument=option).exists() and not force:
        raise InputError(option, f"{str(path)!r} exists", "pass --force to overwrite it")


def column(name: str, option: str) -> Any:
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


def matching(patterns: Sequence[str], names: Sequence[Any]) -> list[str]:
    """Return the names that are one of the patterns, or match one as a regular expression.

    Examples
    --------
    >>> matching(["beta", "sigma.*"], ["alpha", "beta", "beta2", "sigma_y"])
    ['beta', 'sigma_y']
    """
    found: list[str] = []
    for pattern in patterns:
        try:
            some = [str(n) for n in names if str(n) == pattern or re.fullmatch(pattern, str(n))]
        except re.error as error:
            raise InputError("var", f"{pattern!r} is no regular expression ({error})") from None
        if not some:
            raise InputError("var", f"{pattern!r} matches no variable", f"there are {list(names)}")
        found += [name for name in some if name not in found]
    return found

"""The command line: ``etafree calibrate``, ``select``, and the paper's ``figure1``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from etafree._version import __version__
from etafree.errors import EtafreeError
from etafree.foundation.terminal import say, silence, stand_in

__all__ = ["app", "main", "run"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """Calibrate posterior draws: intervals that do not depend on the learning rate.

    Example: etafree calibrate fit.nc --clusters data.csv:school -o calibrated.nc

    Your own fit or data: calibrate, select. The paper's experiment: figure1.
    Every command has a --help of its own. In Python: help("etafree.calibrate").
    """


@app.command()
def calibrate(
    fit: Annotated[
        list[Path],
        typer.Argument(
            help="netCDF file, zarr store, or CmdStan CSVs, with "
            "a log-likelihood of every observation."
        ),
    ],
    clusters: Annotated[
        list[str],
        typer.Option(
            help="Labels of rows that may depend on each other:"
            " file.csv:column (a row per observation), or a "
            "name in the fit; repeat for crossed "
            "clusters."
        ),
    ] = [],  # noqa: B006
    strata: Annotated[
        str | None,
        typer.Option(help="Strata of a survey, written like clusters; clusters are then its PSUs."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Times of a series, written like clusters, and instead of them."),
    ] = None,
    units: Annotated[
        str | None, typer.Option(help="Units of a panel, written like clusters; with --time.")
    ] = None,
    correction: Annotated[
        str | None,
        typer.Option(
            help="Independent rows: HC0, HC1 (default). "
            "Clusters: CR0, CR1 (default), CR1S (default if "
            "crossed). Time: EWC (default), Bartlett; DK "
            "for panels."
        ),
    ] = None,
    var: Annotated[
        list[str],
        typer.Option(
            help="Parameter to report, by name or regular expression; repeatable. Default: all."
        ),
    ] = [],  # noqa: B006
    log_likelihood: Annotated[
        list[str],
        typer.Option(
            help='Which one, if the fit stores several; repeat to add some up, "sum" adds all.'
        ),
    ] = [],  # noqa: B006
    eta: Annotated[
        float | None, typer.Option(help="Learning rate of the fit, if it was tempered; default 1.")
    ] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="netCDF file to write, with the calibrated draws."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="HTML page to write, with pictures and diagnostics.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    conditional: Annotated[
        bool,
        typer.Option(
            "--conditional",
            help="Accept a log-likelihood that is conditional on "
            "group effects; refused otherwise, because intervals come out too "
            "narrow.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Calibrate a stored fit: print its intervals before and after, write the calibrated draws.

    Exit code 0: done; 2: nothing was written, the message says why;
    3: done, but a diagnostic failed.

    Example: etafree calibrate fit.nc --clusters data.csv:school -o calibrated.nc

    Example: etafree calibrate chain-1.csv chain-2.csv --report page.html
    """
    from etafree.cli.commands import FAILED, calibrate_files

    made = calibrate_files(
        fit,
        clusters=clusters,
        strata=strata,
        time=time,
        units=units,
        correction=correction,
        var=var,
        log_likelihood=log_likelihood,
        eta=eta,
        level=level,
        out=out,
        report=report,
        force=force,
        latent=not conditional,
        quiet=quiet,
    )
    if any(check.verdict == "fail" for check in made.checks):
        raise typer.Exit(FAILED)


@app.command()
def select(
    data: Annotated[Path, typer.Argument(help="CSV file with a header.")],
    formula: Annotated[str, typer.Option(help='For example "y ~ x + C(region)".')],
    loss: Annotated[
        str,
        typer.Option(
            help="squared, huber, pseudo-huber, student, median, logistic, poisson or gamma."
        ),
    ] = "huber",
    clusters: Annotated[str | None, typer.Option(help="Column of cluster labels.")] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            help="Smoothing of the median, in units of the response; the median needs it."
        ),
    ] = None,
    prior_sd: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of a normal prior about"
            " zero; methods that need a prior are left out "
            "without."
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of draws and bootstraps.")] = 1,
) -> None:
    """Print the learning rate that each method chooses, its intervals, and the calibrated ones.

    Example: etafree select data.csv --formula "y ~ x" --clusters school
    """
    from etafree.cli.commands import select_file
    from etafree.foundation.storage import made_with

    table = select_file(
        data,
        formula,
        loss,
        clusters=clusters,
        bandwidth=bandwidth,
        prior_sd=prior_sd,
        level=level,
        seed=seed,
    )
    refused = table[table["eta"].isna() & (table.index != "calibrated")]
    shown = table.drop(index=refused.index)
    say(shown.to_string(float_format=lambda v: f"{v:.4g}", na_rep="-"))
    for method, told in refused["status"].items():
        say(f"{method}: {told}")
    if table.attrs["dropped"]:
        say(table.attrs["dropped"])
    say(f"seed {seed}, level {level:g}; {made_with()}")


@app.command()
def figure1(
    out: Annotated[Path, typer.Option(help="Folder for the results; a rerun resumes there.")],
    datasets: Annotated[int, typer.Option(help="Simulated data sets.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of data and samplers.")] = 1,
    iterations: Annotated[int, typer.Option(help="Gibbs iterations.")] = 1000,
    burn_in: Annotated[int, typer.Option(help="Discarded Gibbs iterations.")] = 500,
    workers: Annotated[int | None, typer.Option(help="Processes; default: every core.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler, tcp://host:port.")] = None,
) -> None:
    """Run the paper's experiment and draw its Figure 1 beside the published curves.

    Example: etafree figure1 --out figure1
    """
    from etafree.paper.figure1 import write_figure1

    write_figure1(
        out,
        datasets=datasets,
        seed=seed,
        iterations=iterations,
        burn_in=burn_in,
        workers=workers,
        scheduler=scheduler,
    )


@app.command()
def version() -> None:
    """Print the version.

    Example: etafree version
    """
    say(__version__)


def main() -> None:
    """Run the command line."""
    run(app)


def run(commands: typer.Typer) -> None:
    """Run a command; the library's errors and the disk's become one line and exit code 2.

    A reader of the output that goes away is no error.
    """
    stand_in()
    try:
        try:
            commands()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # of help texts
        silence(sys.stdout.fileno())
    except MemoryError:
        say("etafree: there is not enough memory for this; use fewer rows or draws", error=True)
        raise SystemExit(2) from None
    except (EtafreeError, OSError) as error:
        say("etafree: " + str(error).replace("\n", " "), error=True)
        if isinstance(error, OSError):  # nor can the rest of what was printed go anywhere
            silence(sys.stdout.fileno())
        raise SystemExit(2) from None

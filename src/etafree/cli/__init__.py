"""The command line: ``etafree calibrate``, ``check``, ``select``, and the paper's ``figure1``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from etafree._version import __version__
from etafree.cli.commands import calibrate_files, check_files, select_file
from etafree.cli.shell_words import error_line, in_shell_words
from etafree.errors import EtafreeError
from etafree.foundation.terminal import say, silence, stand_in

#: Exit code when a diagnostic fails outright; files are written all the same.
FAILED = 3
Folder = Annotated[Path, Option(help="Folder for the results; a rerun resumes there.")]
Workers = Annotated[int | None, Option(help="Processes; default: every core.")]
Scheduler = Annotated[str | None, Option(help="Dask scheduler, tcp://host:port.")]


def _exit_code(result: object, **_: object) -> None:
    """Let the shell know of a calibration whose diagnostics fail."""
    from etafree.result import Calibration

    if isinstance(result, Calibration) and any(c.verdict == "fail" for c in result.checks):
        raise typer.Exit(FAILED)


def _print_version(asked: bool) -> None:
    if asked:
        say(__version__)
        raise typer.Exit


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, result_callback=_exit_code)
app.command("calibrate")(calibrate_files)
app.command("check")(check_files)
app.command("select")(select_file)


@app.callback()
def _root(
    _: Annotated[
        bool, Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Calibrate posterior draws: intervals that do not depend on the learning rate.

    Example: etafree calibrate fit.nc --clusters data.csv:school -o calibrated.nc

    Your own fit or data: calibrate, check, select.
    The paper's experiment: figure1.
    Every command has a --help of its own.
    In Python: help("etafree.calibrate").
    """


@app.command()
def figure1(
    out: Folder,
    datasets: Annotated[int, Option(help="Simulated data sets.")] = 200,
    seed: Annotated[int, Option(help="Seed of data and samplers.")] = 1,
    iterations: Annotated[int, Option(help="Gibbs iterations.")] = 1000,
    burn_in: Annotated[int, Option(help="Discarded Gibbs iterations.")] = 500,
    workers: Workers = None,
    scheduler: Scheduler = None,
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


def main() -> None:
    """Run the command line."""
    run(app)


def _options(commands: typer.Typer) -> frozenset[str]:
    """Return the names of all options."""
    group = typer.main.get_command(commands)
    each = getattr(group, "commands", {"": group}).values()
    options = (p for command in each for p in command.params if p.opts[0].startswith("-"))
    return frozenset(str(option.name) for option in options)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without the place in the code that it comes from."""
    say(in_shell_words(f"etafree: warning: {message}"), error=True)


def run(commands: typer.Typer) -> None:
    """Run a command; the library's errors and the disk's become one line and exit code 2.

    A reader of the output that goes away is no error.
    """
    stand_in()
    try:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _warn
                commands()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # of help texts
        silence(sys.stdout.fileno())
    except MemoryError:
        say("etafree: there is not enough memory for this; use fewer rows or draws", error=True)
        raise SystemExit(2) from None
    except (EtafreeError, OSError) as error:
        say(f"etafree: {error_line(error, _options(commands))}", error=True)
        if isinstance(error, OSError):  # nor can the rest of what was printed go anywhere
            silence(sys.stdout.fileno())
        raise SystemExit(2) from None

"""What ``etafree calibrate`` and ``check`` read and write: fits, tables, lines of checks."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from etafree import fits
from etafree.cli.arrow_table import FORMATS
from etafree.cli.draws_table import (
    as_r_writes,
    of_cmdstan,
    read_design,
    read_draws,
    with_log_likelihood,
)
from etafree.cli.shell_words import in_shell_words
from etafree.data.sources import module
from etafree.errors import InputError
from etafree.fits.stan import read_stan_csv
from etafree.fits.trees import read_tree, write_netcdf
from etafree.foundation.arguments import as_choice
from etafree.foundation.check import VERDICTS, Check
from etafree.foundation.storage import amount, whole_file, writable
from etafree.foundation.terminal import say
from etafree.predictions import LINKS
from etafree.result import Calibration

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

#: Groups of the original draws that are written beside the calibrated ones.
STAY = ("original_posterior", "original_sample_stats")
#: What to do about a fit without one.
STORE = (
    "pass a table with --log-likelihood, in R of log_lik(fit) or loo::extract_log_lik(fit); or "
    "store it: Stan a vector log_lik in generated quantities, PyMC "
    "pm.compute_log_likelihood(idata), Bambi model.compute_log_likelihood(idata)"
)


def write_tree(result: Calibration, path: Path, keep_all: bool, progress: Progress) -> None:
    """Write the calibrated draws, or the result; say what was left out."""
    if path.suffix == ".npz":
        result.save(path)
        return
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


def design_of(
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
class Progress:
    """Says on stderr what is being done, unless it is to be quiet."""

    quiet: bool

    def __call__(self, text: str) -> None:
        if not self.quiet:
            say(text, error=True)


def read_fit(
    fit: Sequence[Path],
    var: Sequence[str],
    log_likelihood: Sequence[str],
    eta: float | None,
    conditional: bool,
    progress: Progress,
) -> fits.Fit:
    """Return a stored fit with what the options say of it."""
    files = [p for p in map(Path, log_likelihood) if is_table(p) or p.is_file()]
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


def is_table(path: Path) -> bool:
    """Return whether a name is that of a CSV, Parquet or Arrow file."""
    return path.suffix.lower() in {".csv", *FORMATS}


def _tree(fit: Sequence[Path], files: Sequence[Path], progress: Progress) -> xr.DataTree:
    """Return the draws of a fit, with the log-likelihood that other files have."""
    if len(fit) > 1 and not all(map(is_table, fit)):
        raise InputError("fit", f"is {len(fit)} files", "only tables of draws come as several")
    draws = None
    if not is_table(fit[0]):
        tree = read_tree(fit[0])
    elif all(path.suffix.lower() == ".csv" and of_cmdstan(path) for path in fit):
        tree = read_stan_csv([str(path) for path in fit])
    else:
        tree, draws = read_draws(fit)
        if "chain" not in draws.counters and len(fit) == 1:
            progress("draws have no column .chain: they are taken as those of one chain")
    return with_log_likelihood(tree, draws, files) if files else tree


def check_outputs(fit: Sequence[Path], outputs: Mapping[str, Path | None], force: bool) -> None:
    """Refuse, before any work, files that cannot be written, that exist, or that are one file."""
    places = {option: path for option, path in outputs.items() if path is not None}
    for option, path in places.items():
        if writable(path, argument=option).exists() and not force:
            raise InputError(option, f"{str(path)!r} exists", "pass --force to overwrite it")
    if (out := outputs.get("out")) is not None and is_table(out):
        raise InputError("out", f"{str(out)!r} is a table by its suffix", "tables go with --csv")
    if len({path.resolve() for path in (*fit, *places.values())}) < len(fit) + len(places):
        advice = "what is read and what is written are different files"
        raise InputError(next(iter(places), "fit"), "names one file twice", advice)


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

r"""Draws as tables, a row per draw: what R's posterior, brms, rstanarm, rstan and cmdstanr write.

Columns are parameters, under the names that R gives them: ``b_x``, ``beta[1,2]``,
``r_school[north,Intercept]``. Columns ``.chain``, ``.iteration`` and ``.draw`` say where a row
belongs, whatever the order of rows; columns that merely count rows are left out. The pointwise
log-likelihood stands in columns ``log_lik[1]``, ... of the same table, or in tables of its own.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree.cli.arrow_table import FORMATS, ArrowTable
from etafree.cli.csv_table import CsvTable, header_of
from etafree.errors import InputError
from etafree.fits.arviz import DIVISION
from etafree.fits.stan import LIKELIHOOD, STATISTICS, Variable, grouped_tree
from etafree.fits.trees import SAMPLE_DIMS
from etafree.foundation.arguments import Array
from etafree.foundation.storage import lines_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

#: What says where a row belongs, as posterior, tidybayes or ArviZ, and cmdstanpy write it.
COUNTERS = {
    ".chain": "chain",
    "chain": "chain",
    "chain__": "chain",
    ".iteration": "iteration",
    "iteration": "iteration",
    "iter__": "iteration",
    ".draw": "draw",
    "draw": "draw",
    "draw__": "draw",
}
#: An entry of an array: ``b[1,2]``.
ENTRY = re.compile(r"(?P<base>[^\[\]]+)\[(?P<index>.+)\]")
#: One of a log-likelihood in the columns of a data frame: ``log_lik.1``, ``log_lik.1.``.
COLUMN = re.compile(r"(?P<base>\w+?)\.(?P<index>\d+)\.?")
#: The number of an observation in the name of its column: ``V12``, ``log_lik[12]``, ``12``.
NUMBERED = re.compile(r"(?P<base>.*?)[\[.]?(?P<index>\d+)[\].]?")
COLUMNS = (
    "a column of numbers per parameter, a row per draw: write.csv(posterior::as_draws_df(fit))"
)


def of_cmdstan(path: Path) -> bool:
    r"""Return whether CmdStan wrote a CSV file: it begins with a comment, or with ``lp__`` alone.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "draws.csv"
    >>> _ = path.write_text('"lp__","b_x",".chain"\n-1,0.5,1\n')
    >>> of_cmdstan(path)
    False
    """
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.read(1) == b"#":
            return True
    header = header_of(path, "fit")
    return header[:1] == ["lp__"] and not COUNTERS.keys() & set(header)


@dataclass(frozen=True, eq=False)
class Table:
    r"""Numbers in named columns, and the columns of a file that count its rows.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "draws.csv"
    >>> _ = path.write_text('"","b_x",".chain"\n"1",0.5,1\n"2",0.25,1\n')
    >>> table = Table.read(path, "fit")
    >>> table.names, table.values.tolist(), sorted(table.counters)
    (['b_x'], [[0.5], [0.25]], ['chain'])
    """

    path: Path
    option: str
    names: list[str]
    values: Array  #: (rows, columns).
    counters: dict[str, Array]

    @classmethod
    def read(cls, path: Path, option: str) -> Table:
        """Read a file; refuse columns that are not numbers, or have none in some row."""
        names, values = numbers(path, option, COLUMNS)
        whole = np.isfinite(values)
        if not whole.all():
            row, column = np.argwhere(~whole)[0]
            problem = f"{str(path)!r} has no finite number in row {row + 1} of {names[column]!r}"
            raise InputError(option, problem, "leave this column out, or draw again")
        if ".log_weight" in names:
            problem = f"{str(path)!r} has weighted draws"
            raise InputError(option, problem, "pass posterior::resample_draws() of them")
        counters = {COUNTERS[n]: values[:, k] for k, n in enumerate(names) if n in COUNTERS}
        count = np.arange(1.0, len(values) + 1)
        rows = [len(values) > 1 and np.ptp(column - count) == 0 for column in values.T]
        kept = [k for k, n in enumerate(names) if n not in COUNTERS and not rows[k]]
        return cls(path, option, [names[k] for k in kept], values[:, kept], counters)


def numbers(path: Path, option: str, advice: str) -> tuple[list[str], Array]:
    """Return the named columns of a file and their numbers (rows, columns), NaN for missing ones.

    `advice` is what to do about a column that holds words.
    CSV files go through NumPy's reader; where that fails, `CsvTable` reads NA, or names the line.
    """
    if path.suffix.lower() in FORMATS:
        stored = ArrowTable.read(path, option)
        return stored.names, stored.numbers(stored.names, advice)
    header = header_of(path, option)
    named = [k for k, name in enumerate(header) if name]
    try:
        with open(path, encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of no rows, which are refused below
            lines = islice(lines_of(file, path, option), 1, None)
            values = np.loadtxt(
                lines, delimiter=",", usecols=named, comments=None, quotechar='"', ndmin=2
            )
    except ValueError:
        table = CsvTable.read(path, option)
        columns = [table.numbers(header[k], option, advice) for k in named]
        values = np.column_stack(columns)
    if not len(values):
        raise InputError(option, f"{str(path)!r} has no rows", "it has a header only")
    return [header[k] for k in named], values


class Rows(NamedTuple):
    """Rows of one or several tables, and where each belongs."""

    names: list[str]
    values: Array  #: (rows, columns).
    counters: dict[str, Array]  #: Those that every table has.
    chain: NDArray[np.intp]  #: From 0.

    @property
    def order(self) -> NDArray[np.intp]:
        """The rows chain after chain, in each by iteration, by draw, or as they are."""
        known = (self.counters[name] for name in ("iteration", "draw") if name in self.counters)
        return np.lexsort((next(known, np.zeros(len(self.chain))), self.chain))


def read_draws(paths: Sequence[Path]) -> tuple[xr.DataTree, Rows]:
    """Return the draws of tables as a DataTree, and their rows.

    Chains are those of ``.chain``, else one per file.
    """
    draws = _stacked([Table.read(path, "fit") for path in paths])
    values = draws.values[draws.order].reshape(*_shape(draws, paths[0]), -1)
    tree = grouped_tree(_variables(draws.names), values)
    tree["posterior"].attrs["inference_library"] = "table"
    return tree, draws


def with_log_likelihood(
    tree: xr.DataTree, draws: Rows | None, paths: Sequence[Path]
) -> xr.DataTree:
    """Return draws with the log-likelihood in tables, a row per draw.

    One with columns ``.chain`` and ``.iteration`` or ``.draw`` is put in the order of the draws;
    without them its rows are those of the tables of draws, or come chain after chain.
    """
    import xarray as xr

    if "log_likelihood" in tree.children:
        stored = [*tree["log_likelihood"].data_vars]
        problem = f"is in the fit too, as {', '.join(map(str, stored))}"
        raise InputError("log_likelihood", problem, "keep one of the two")
    posterior = tree["posterior"]
    shape = tuple(posterior.sizes[dim] for dim in SAMPLE_DIMS)
    losses = _stacked([Table.read(path, "log_likelihood") for path in paths])
    others = [n for n in losses.names if n in {*posterior.data_vars, *STATISTICS}]
    if others:
        problem = f"{str(paths[0])!r} has {others[0]!r}, which is not an observation"
        raise InputError("log_likelihood", problem, "write a column per observation, and no other")
    places = _same_rows(shape[0] * shape[1], draws, losses, paths[0])
    where, labels = _observations(losses.names, paths[0])
    axes = {f"log_lik_dim_{k}": along for k, along in enumerate(labels)}
    coords = {**{dim: posterior[dim] for dim in SAMPLE_DIMS}, **axes}
    values = losses.values[places][:, where].reshape(*shape, *where.shape)
    array = xr.DataArray(values, coords, [*SAMPLE_DIMS, *axes])
    return tree.assign(log_likelihood=xr.DataTree(xr.Dataset({"log_lik": array})))


def _stacked(tables: Sequence[Table]) -> Rows:
    """Return the rows of tables one after the other, and the chain of each."""
    first = tables[0]
    for table in tables[1:]:
        if table.names != first.names:
            problem = f"{str(table.path)!r} has other columns than {str(first.path)!r}"
            raise InputError(first.option, problem, "pass the chains of one fit")
    common = [name for name in first.counters if all(name in t.counters for t in tables)]
    counters = {name: np.concatenate([t.counters[name] for t in tables]) for name in common}
    chain = np.repeat(np.arange(len(tables)), [len(table.values) for table in tables])
    if "chain" in counters:
        own = [np.unique(t.counters["chain"]) for t in tables]
        apart = len(np.unique(counters["chain"])) == sum(map(len, own))
        if apart:
            chain = np.unique(counters["chain"], return_inverse=True)[1]
        elif any(len(labels) > 1 for labels in own):
            problem = "has a chain in several files, and several chains in one"
            raise InputError(first.option, problem, "write one file per chain, or one for all")
        else:  # files that were written chain by chain, each as if it were the only one
            del counters["chain"]
    values = np.concatenate([table.values for table in tables])
    return Rows(first.names, values, counters, chain)


def _shape(draws: Rows, path: Path) -> tuple[int, int]:
    """Return the numbers of chains and of draws in each; refuse unequal ones."""
    counts = np.bincount(draws.chain)
    if np.ptp(counts):
        problem = f"has chains of {counts.min()} and of {counts.max()} draws"
        raise InputError("fit", f"{str(path)!r} {problem}", "pass chains of one length")
    again = draws.order
    for name in ("iteration", "draw"):
        if name in draws.counters:
            step = np.diff(draws.counters[name][again].reshape(len(counts), -1), axis=1)
            if np.any(step == 0):
                problem = f"{str(path)!r} has {name}s twice in a chain"
                raise InputError("fit", problem, f"number them, or leave out the column {name!r}")
            break
    return len(counts), int(counts[0])


def _same_rows(count: int, draws: Rows | None, losses: Rows, path: Path) -> NDArray[np.intp]:
    """Return the rows of a log-likelihood in the order of the draws; refuse other draws."""
    rows, columns = losses.values.shape
    if rows != count:
        problem = f"{str(path)!r} has {rows} rows for {count} draws"
        advice = "write its transpose" if columns == count else "write a row per draw, and no other"
        raise InputError("log_likelihood", problem, advice)
    if draws is None:
        return losses.order
    places = losses.order if draws.counters and losses.counters else draws.order
    for name in draws.counters.keys() & losses.counters.keys():
        ours, theirs = draws.counters[name][draws.order], losses.counters[name][places]
        if not np.array_equal(ours, theirs):
            problem = f"{str(path)!r} has other {name}s than the draws"
            raise InputError("log_likelihood", problem, "write both from one fit")
    return places


def _observations(names: Sequence[str], path: Path) -> Variable:
    """Return the columns of a log-likelihood by the numbers of their observations."""
    variables = _variables(names)
    if len(variables) == 1:
        return next(iter(variables.values()))
    matches = [NUMBERED.fullmatch(name) for name in names]
    counts = [int(match["index"]) for match in matches if match]
    bases = sorted({m["base"] if m else name for m, name in zip(matches, names, strict=True)})
    if len(counts) == len(names) and len(bases) == 1:
        return Variable(np.argsort(counts, kind="stable"), (np.sort(counts),))
    if counts and len(bases) > 1:
        problem = f"{str(path)!r} has columns {bases[:4]}, and not all are observations"
        raise InputError("log_likelihood", problem, "write a column per observation and no other")
    return Variable(np.arange(len(names)), (np.array(names),))


def _variables(names: Sequence[str]) -> dict[str, Variable]:
    """Return the variables of columns; entries that do not fill an array are variables each.

    Examples
    --------
    >>> found = _variables(["b_x", "r_g[1,a]", "r_g[2,a]", "z[1]", "z[2,1]"])
    >>> {name: where.shape for name, (where, _) in found.items()}
    {'b_x': (), 'r_g': (2, 1), 'z[1]': (), 'z[2,1]': ()}
    """
    variables: dict[str, Variable] = {}
    for base, places in _entries(names).items():
        axes = [_labels(axis) for axis in zip(*places, strict=False)]
        shape = tuple(map(len, axes))
        depths = {len(place) for place in places}
        if len(depths) == 1 and len(places) == np.prod(shape, dtype=int):
            numbered = [{label: k for k, label in enumerate(axis)} for axis in axes]
            where = np.empty(shape, dtype=np.intp)
            for place, column in places.items():
                at = (axis[label] for axis, label in zip(numbered, place, strict=True))
                where[tuple(at)] = column
            variables[base] = Variable(where, tuple(map(_typed, axes)))
        else:
            own = {names[k].replace("/", DIVISION): k for k in places.values()}
            variables |= {name: Variable(np.array(k), ()) for name, k in own.items()}
    return variables


def _entries(names: Sequence[str]) -> dict[str, dict[tuple[str, ...], int]]:
    """Return for every variable the columns of its entries by their indices."""
    entries: dict[str, dict[tuple[str, ...], int]] = {}
    for column, name in enumerate(names):
        match = ENTRY.fullmatch(name) or COLUMN.fullmatch(name)
        base, place = name, tuple[str, ...]()
        if match and (match.re is ENTRY or LIKELIHOOD.fullmatch(match["base"])):
            base, place = match["base"], tuple(match["index"].split(","))
        entries.setdefault(base.replace("/", DIVISION), {})[place] = column
    return entries


def _labels(axis: Sequence[str]) -> list[str]:
    """Return the labels of an axis, by number where all are numbers, else as they come."""
    labels = list(dict.fromkeys(axis))
    return sorted(labels, key=int) if all(map(str.isdecimal, labels)) else labels


def _typed(labels: list[str]) -> NDArray[Any]:
    return np.array([int(label) for label in labels] if all(map(str.isdecimal, labels)) else labels)


def read_design(path: Path) -> pd.DataFrame:
    """Return rows to predict, their columns named after parameters."""
    import pandas as pd

    names, values = numbers(path, "predict", "write numbers: in R, those of model.matrix()")
    return pd.DataFrame(values, columns=[name.replace("/", DIVISION) for name in names])


def as_r_writes(name: str) -> str:
    """Return the name of a parameter as R's packages write it.

    Examples
    --------
    >>> as_r_writes("r_g[1, Intercept]"), as_r_writes("b_x")
    ('r_g[1,Intercept]', 'b_x')
    """
    base, bracket, index = name.replace(DIVISION, "/").partition("[")
    return base + bracket + index.replace(", ", ",")

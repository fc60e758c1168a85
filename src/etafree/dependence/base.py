"""Which rows may depend on each other: clusters in one or several ways, survey designs, time.

Every structure has `groups`, the finest sets of rows whose scores are summed, and says how these
sums relate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from etafree.data.groups import Groups
from etafree.data.rows import Rows
from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_choice

__all__ = ["Clusters", "Dependence", "Series", "Survey", "Ways", "find_dependence"]

SINGLE = ("error", "center")


@dataclass(frozen=True, eq=False)
class Clusters:
    """Rows of one cluster depend on each other in any way, clusters are independent."""

    groups: Groups

    def row_groups(self) -> dict[str, Groups]:
        """Return the groups of rows whose leverage matters, by name."""
        return {"cluster": self.groups}


@dataclass(frozen=True, eq=False)
class Ways:
    """Rows depend on each other if they share a cluster in any of several ways.

    Attributes
    ----------
    groups : Groups
        Cells: rows that share all their clusters.
    ways : tuple of Groups
        The clusters of each way, with a code for every *cell*.
    names : tuple of str
    """

    groups: Groups
    ways: tuple[Groups, ...]
    names: tuple[str, ...]

    def row_groups(self) -> dict[str, Groups]:
        """Return the groups of rows whose leverage matters, by name."""
        rows = [self.groups.merged(way) for way in self.ways]
        return dict(zip(self.names, rows, strict=True))


@dataclass(frozen=True, eq=False)
class Survey:
    """Primary sampling units drawn independently within strata.

    Attributes
    ----------
    groups : Groups
        Primary sampling units (PSUs); a label used in two strata is two units.
    strata : Groups
        The stratum of every PSU.
    population : (H,) array
        PSUs in the population of each stratum; infinite without a correction for it.
    single_psu : {"error", "center"}
        What a stratum with one PSU gets: an error, or its deviation from the grand mean.
    """

    groups: Groups
    strata: Groups
    population: Array
    single_psu: str

    def row_groups(self) -> dict[str, Groups]:
        """Return the groups of rows whose leverage matters, by name."""
        return {"PSU": self.groups}


@dataclass(frozen=True, eq=False)
class Series:
    """Rows in time, of one unit or of a panel; periods may depend on each other.

    Attributes
    ----------
    groups : Groups
        Periods in their order.
    units : int
    missing : int
        Periods that are not there: steps left out of the series, or units absent between their
        first and last period.
    example : str
        Where the first of them is.
    """

    groups: Groups
    units: int
    missing: int = 0
    example: str = ""

    def row_groups(self) -> dict[str, Groups]:
        """Return the groups of rows whose leverage matters, by name."""
        return {}


Dependence: TypeAlias = Clusters | Ways | Survey | Series


def find_dependence(
    rows: Rows,
    clusters: Any = None,
    *,
    strata: Any = None,
    fpc: Any = None,
    single_psu: str = "error",
    time: Any = None,
    units: Any = None,
    copies: bool = False,
) -> Dependence | None:
    """Return the structure that the keywords describe; None for independent rows.

    Labels are lined up with the rows: a Series by its index, a name as a column. `copies` says that
    weights repeat rows, which has no meaning in time.
    """
    as_choice(single_psu, "single_psu", SINGLE)
    if time is not None:
        for name, value in (("clusters", clusters), ("strata", strata), ("fpc", fpc)):
            if value is not None:
                advice = "for a panel pass units=; for clusters of periods drop time="
                raise InputError(name, "cannot be combined with time=", advice)
        return _series(rows, time, units, copies)
    if units is not None:
        raise InputError(
            "units",
            "are the units of a panel and need time=",
            "pass time= too, or clusters= instead",
        )
    if strata is not None or fpc is not None:
        return _survey(rows, clusters, strata, fpc, single_psu)
    if single_psu != "error":
        raise InputError("single_psu", "is for survey designs", "pass strata=")
    if clusters is None:
        return None
    if isinstance(clusters, Groups):
        return Clusters(clusters)
    ways = _ways(clusters, rows)
    if ways is not None:
        return _crossed(ways)
    return Clusters(rows.groups(clusters, "clusters"))


def _ways(clusters: Any, rows: Rows) -> dict[str, Groups] | None:
    """Return the groups of each way if `clusters` describes several, else None."""
    named: dict[str, Any] = {}
    columns: Any = getattr(clusters, "columns", None)
    if columns is not None:  # a DataFrame
        named = {str(name): clusters[name] for name in columns}
    elif isinstance(clusters, Mapping):
        named = {str(name): labels for name, labels in clusters.items()}
    elif isinstance(clusters, np.ndarray) and clusters.ndim == 2:
        named = {f"way {k + 1}": column for k, column in enumerate(clusters.T)}
    elif isinstance(clusters, list | tuple) and _several(clusters, rows):
        named = {
            part
            if isinstance(part, str)
            else str(getattr(part, "name", None) or f"way {k + 1}"): part
            for k, part in enumerate(clusters)
        }
        if len(named) < len(clusters):
            raise InputError("clusters", "has two ways of the same name", "rename one")
    else:
        return None
    if not named:
        raise InputError("clusters", "is empty", "pass labels for every row")
    made = {name: rows.groups(labels, f"clusters[{name!r}]") for name, labels in named.items()}
    return made


def _several(clusters: Sequence[Any], rows: Rows) -> bool:
    """Tell a list of ways (labels or column names) from a list of labels, one per row."""
    if not clusters:
        return False
    if all(isinstance(part, str) for part in clusters):
        one_each = len(clusters) in (rows.used, rows.original)
        return rows.table is not None and not one_each and set(clusters) <= set(rows.table)
    return all(isinstance(part, str) or np.ndim(part) == 1 for part in clusters)


def _crossed(ways: Mapping[str, Groups]) -> Clusters | Ways:
    for name, groups in ways.items():
        if len(groups) < 2:
            raise InputError(
                "clusters",
                f"has one cluster only in {name!r}",
                "at least two must vary independently",
            )
    if len(ways) == 1:
        return Clusters(next(iter(ways.values())))
    first, *others = ways.values()
    return Ways(*first.crossed(*others), tuple(ways))


def _survey(rows: Rows, clusters: Any, strata: Any, fpc: Any, single: str) -> Survey:
    if clusters is not None and _ways(clusters, rows) is not None:
        raise InputError("clusters", "has several ways", "a survey design has one set of PSUs")
    units = rows.each("clusters") if clusters is None else rows.groups(clusters, "clusters")
    layers = (
        units.merged(Groups(np.zeros(len(units), dtype=np.intp), np.array(["all"])))
        if strata is None
        else rows.groups(strata, "strata")
    )
    cells, (of_psu, unit) = layers.crossed(units)
    psus = cells.labelled(units.labels[unit.codes])
    counts = np.bincount(of_psu.codes, minlength=len(layers))
    population = np.full(len(layers), np.inf)
    if fpc is not None:
        population = _population(rows, fpc, layers, counts)
    alone = np.flatnonzero((counts == 1) & (population > 1))
    if single == "error" and len(alone):
        named = ", ".join(str(layers.labels[h]) for h in alone[:5])
        more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
        raise InputError(
            "strata",
            f"have a single PSU in {named}{more}: its variance cannot be estimated",
            "merge strata, or pass single_psu='center' to take deviations from the grand mean",
        )
    if len(psus) - len(layers) < 1 and single == "error":
        raise InputError(
            "strata",
            f"leave {len(psus)} PSUs in {len(layers)} strata no degrees of freedom",
            "merge strata",
        )
    return Survey(psus, of_psu, population, single)


def _population(rows: Rows, fpc: Any, layers: Groups, counts: NDArray[np.intp]) -> Array:
    """Return the population's PSUs per stratum from sizes or sampling fractions per row."""
    _, (layer, size) = layers.crossed(rows.groups(fpc, "fpc", numeric=True))
    low, high = np.full(len(layers), np.inf), np.full(len(layers), -np.inf)
    np.minimum.at(low, layer.codes, size.labels[size.codes])
    np.maximum.at(high, layer.codes, size.labels[size.codes])
    for h in np.flatnonzero(low != high)[:1]:
        raise InputError(
            "fpc",
            f"varies within stratum {layers.labels[h]!s}",
            "pass one population size or sampling fraction per stratum",
        )
    if np.any(low <= 0):
        raise InputError("fpc", "has values at or below zero", "pass population sizes, in PSUs")
    population = counts / low if np.all(low <= 1) else low
    for h in np.flatnonzero(population < counts - 1e-9)[:1]:
        raise InputError(
            "fpc",
            f"is {population[h]:g} in stratum {layers.labels[h]!s}, which has {counts[h]} "
            "PSUs in the sample",
            "pass the number of PSUs in the population",
        )
    return population


def _series(rows: Rows, time: Any, units: Any, copies: bool) -> Series:
    periods = rows.groups(time, "time")
    kind = periods.labels.dtype.kind
    if kind in "US" or any(isinstance(v, str) for v in periods.labels[:1].tolist()):
        raise InputError(
            "time",
            "is text, whose order is the alphabet's",
            "pass numbers or dates (pandas.to_datetime)",
        )
    if kind == "b":
        raise InputError("time", "is true or false", "pass numbers or dates")
    if copies:
        raise InputError(
            "time",
            "and frequency weights: a row happens once",
            "repeat no row, or pass weight_kind='sampling'",
        )
    if units is None:
        if len(periods) < rows.used:
            first = periods.labels[periods.sizes().argmax()]
            raise InputError(
                "time",
                f"repeats, for example {first!s}",
                "pass units= for a panel, or one row per period",
            )
        missing, example = _left_out(periods.labels)
        return Series(periods, 1, missing, example)
    panel = rows.groups(units, "units")
    cells, (unit, period) = panel.crossed(periods)
    counts = cells.sizes()
    if len(cells) < rows.used:
        worst = int(counts.argmax())
        raise InputError(
            "time",
            f"has {counts[worst]} rows of unit "
            f"{panel.labels[unit.codes[worst]]!s} at "
            f"{periods.labels[period.codes[worst]]!s}",
            "pass one row per unit and period",
        )
    return Series(periods, len(panel), *_absent(unit, period))


def _left_out(labels: NDArray[Any]) -> tuple[int, str]:
    """Return how many steps are missing from evenly spaced times, and where the first is."""
    if labels.dtype.kind not in "iufmM" or len(labels) < 3:
        return 0, ""
    steps = np.diff(labels).astype(np.float64)
    ratio = steps / steps.min()
    whole = np.rint(ratio)  # months differ in length
    if np.abs(ratio - whole).max() > 0.2:
        long = int(np.count_nonzero(ratio > 1.5))
        return long, f"after {labels[int(ratio.argmax())]!s}" if long else ""
    where = int(np.argmax(whole > 1))
    missing = int((whole - 1).sum())
    return missing, f"after {labels[where]!s}" if missing else ""


def _absent(panel: Groups, periods: Groups) -> tuple[int, str]:
    """Return how many periods units lack between their first and last, and an example."""
    first = np.full(len(panel), len(periods))
    last = np.full(len(panel), -1)
    np.minimum.at(first, panel.codes, periods.codes)
    np.maximum.at(last, panel.codes, periods.codes)
    lacking = last - first + 1 - np.bincount(panel.codes, minlength=len(panel))
    worst = int(lacking.argmax())
    example = f"unit {panel.labels[worst]!s} lacks {lacking[worst]}" if lacking[worst] else ""
    return int(lacking.sum()), example

"""Coverage by simulation: do intervals under dependence cover as often as they say?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.api import calibrate
from etafree.errors import InputError
from etafree.posterior import GeneralizedPosterior
from etafree.result import Calibration
from etafree.samplers import sample
from etafree.storage import whole_file
from etafree.studies.engine import Cell, run_study
from etafree.studies.scenarios import SCENARIOS, Problem, simulate
from etafree.validation import as_count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["coverage_picture", "run_coverage", "write_coverage"]

#: Replicates per cell.
BLOCK = 100
#: Learning rate and number of the draws that are calibrated.
ETA, DRAWS = 0.5, 1000
#: Within which a coverage counts as nominal.
BAND = (0.935, 0.965)
#: Checks of the structure of dependence; others concern draws and centre.
STRUCTURE = ("cluster", "effective", "leverage", "multiway", "persistence", "curvature noise")


def work(
    parameters: Mapping[str, Any], seed: np.random.SeedSequence
) -> dict[str, NDArray[np.float64]]:
    """Return arrays (replicate, method, parameter) of lower and upper limits, and the flags."""
    limits, flagged, truth = [], [], []
    for stream in seed.spawn(parameters["count"]):
        rng = np.random.default_rng(stream)
        problem = simulate(parameters["scenario"], rng)
        draws = sample(GeneralizedPosterior(problem.criterion, ETA), draws=DRAWS, seed=rng)
        made = calibrate(draws, problem.criterion, seed=rng, **problem.options)
        rows = [made.interval().to_numpy().T, made.interval(kind="wald").to_numpy().T]
        for options in problem.rivals.values():
            rival = calibrate(draws, problem.criterion, seed=rng, **options)
            rows.append(rival.interval(kind="wald").to_numpy().T)
        limits.append(rows)
        flagged.append(_flagged(made))
        truth.append(problem.truth)
    return {
        "limits": np.array(limits),
        "flagged": np.array(flagged, dtype=np.float64),
        "truth": np.array(truth),
    }


def _flagged(made: Calibration) -> bool:
    """Return whether a check of the dependence structure warns of this data set."""
    return any(c.verdict != "ok" and any(part in c.name for part in STRUCTURE) for c in made.checks)


def _labels(problem: Problem) -> tuple[list[str], list[str], str]:
    """Return methods, parameters and the words for the default of a scenario."""
    draws = sample(GeneralizedPosterior(problem.criterion, ETA), draws=DRAWS, seed=0)
    made = calibrate(draws, problem.criterion, **problem.options)
    used = made.target.correction
    return [f"{used}, draws", f"{used}, Wald", *problem.rivals], list(made.names), used


def run_coverage(
    out: Path | str, *, replicates: int = 2000, seed: int = 1, only: str | None = None,
    workers: int | None = None, scheduler: str | None = None, progress: bool | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Run the study, resuming what `out` holds, and return a row per scenario, parameter, method.

    Columns: coverage with its Monte Carlo error, mean width, whether the method is the default, and
    in which share of the data sets a diagnostic of the structure warns.
    """
    import pandas as pd

    count = as_count(replicates, "replicates", least=2)
    names = list(SCENARIOS) if only is None else [s for s in SCENARIOS if only in s]
    if not names:
        raise InputError("only", f"is {only!r}", f"scenarios are {list(SCENARIOS)}")
    cells = [
        Cell(f"{list(SCENARIOS).index(name):02d}-{first:06d}-{min(BLOCK, count - first)}",
             {"scenario": name, "count": min(BLOCK, count - first)})
        for name in names for first in range(0, count, BLOCK)
    ]  # fmt: skip
    made = run_study(
        "coverage", {"replicates": count, "scenarios": names, "eta": ETA, "draws": DRAWS}, cells,
        work, out, seed=seed, workers=workers, scheduler=scheduler, progress=progress,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for name in names:
        methods, parameters, used = _labels(simulate(name, np.random.default_rng(0)))
        blocks = [made[cell.key] for cell in cells if cell.parameters["scenario"] == name]
        limits, truth, flagged = (
            np.concatenate([block[key] for block in blocks])
            for key in ("limits", "truth", "flagged")
        )
        lower, upper = limits[:, :, 0], limits[:, :, 1]
        covered = (lower <= truth[:, None]) & (truth[:, None] <= upper)
        for m, method in enumerate(methods):
            for j, parameter in enumerate(parameters):
                share = float(covered[:, m, j].mean())
                rows.append({
                    "scenario": name, "parameter": parameter, "method": method,
                    "default": method.startswith(f"{used}, "), "coverage": share,
                    "coverage_se": np.sqrt(max(share * (1 - share), 0.5 / count) / count),
                    "width": float((upper - lower)[:, m, j].mean()),
                    "flagged": float(flagged.mean()), "replicates": count,
                })  # fmt: skip
    return pd.DataFrame(rows)


def coverage_picture(table: pd.DataFrame) -> Figure:
    """Return coverages with error bars by scenario: the default filled, its rivals hollow."""
    from matplotlib.figure import Figure

    keys = list(dict.fromkeys(zip(table["scenario"], table["parameter"], strict=True)))
    figure = Figure(figsize=(11, 0.32 * len(keys) + 1.6), layout="constrained")
    ax = figure.subplots()
    ax.axvspan(*BAND, color="#d9ead3", label="93.5 to 96.5 %")
    ax.axvline(0.95, color="0.5", lw=0.8)
    place = {key: len(keys) - k for k, key in enumerate(keys)}
    for method, rows in table.groupby("method", sort=False):
        y = [place[key] for key in zip(rows["scenario"], rows["parameter"], strict=True)]
        default, draws = bool(rows["default"].iloc[0]), "draws" in str(method)
        colour = "#1f5a94" if default else "0.55"
        ax.errorbar(
            rows["coverage"], np.array(y) + (0.15 if draws else -0.15 if default else 0.0),
            xerr=2 * rows["coverage_se"], fmt="o" if draws else ("s" if default else "x"),
            color=colour, ms=4, lw=1,
            label="default, draws" if draws else ("default, Wald" if default else "other methods"),
        )  # fmt: skip
    ax.set_yticks(list(place.values()), [f"{s}: {p}" for s, p in keys])
    ax.set_xlabel("coverage of 95 % intervals, bars two Monte Carlo standard errors")
    ax.set_xlim(max(0.4, table["coverage"].min() - 0.02), 1.0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=4,
                  frameon=False)  # fmt: skip
    return figure


def write_coverage(out: Path | str, **options: Any) -> pd.DataFrame:
    """Run the study and write ``coverage.csv`` and ``coverage.png`` into `out`."""
    table = run_coverage(out, **options)
    folder = Path(out)
    with whole_file(folder / "coverage.csv") as file:
        file.write(table.to_csv(index=False, float_format="%.6g").encode())
    with whole_file(folder / "coverage.png") as file:
        coverage_picture(table).savefig(file, format="png", dpi=110)
    shown = table.drop(columns=["default", "replicates"])
    print(shown.to_string(index=False, float_format=lambda v: f"{v:.3f}"))
    off = table[table["default"] & ~table["coverage"].between(*BAND)]
    print(f"{len(off)} of {int(table['default'].sum())} default coverages are outside "
          f"{100 * BAND[0]:g} to {100 * BAND[1]:g} %")  # fmt: skip
    print(f"files: {folder / 'coverage.csv'}, {folder / 'coverage.png'}")
    return table

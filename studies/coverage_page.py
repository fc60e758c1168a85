"""The picture and the page of the coverage study."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from etafree.report.page import Section, picture_data, render, table_html
from etafree.report.plots import AFTER, BEFORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = [
    "coverage_page",
    "coverage_picture",
    "league",
    "league_markdown",
    "record",
    "rivals_markdown",
]

STYLES = {
    "uncalibrated": (BEFORE, "o", 0.22),
    "open-faced": ("0.6", "^", 0.08),
    "location-scale, draws": (AFTER, "s", -0.08),
    "location-scale, Wald": (AFTER, "D", -0.22),
    "frequentist": ("0.25", "x", -0.34),
}


def league(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per scenario: the coverage farthest from 95 % over parameters and eta."""
    main = table[table["method"].isin(list(STYLES))]
    worst = main.assign(off=(main["coverage"] - 0.95).abs())
    worst = worst.sort_values("off").groupby(["scenario", "method"], sort=False).tail(1)
    wide = worst.pivot(index="scenario", columns="method", values="coverage")
    order = list(dict.fromkeys(table["scenario"]))
    wide = wide.reindex(index=order, columns=[m for m in STYLES if m in wide.columns])
    draws = main[main["method"] == "location-scale, draws"].groupby("scenario")["flagged"]
    wide["flagged, min"], wide["flagged, max"] = draws.min(), draws.max()
    return wide


def league_markdown(table: pd.DataFrame) -> str:
    """Return the league table as documents show it: least to most over coefficients and eta."""
    header = ["data", *(m.replace("location-scale", "location–scale") for m in STYLES)]
    lines = [f"| {' | '.join([*header, 'flagged', 'by'])} |", "|---" * (len(header) + 2) + "|"]
    for name, rows in table.groupby("scenario", sort=False):
        cells = [_between(rows[rows["method"] == m]["coverage"]) for m in STYLES]
        moving = rows[rows["method"] == "location-scale, draws"]
        flagged = 100 * moving.groupby("eta")["flagged"].max()
        least, most = f"{flagged.min():.0f}", f"{flagged.max():.0f}"
        share = f"{least} %" if least == most else f"{least} – {most} %"
        often = moving[moving["flagged"] > 0.5]
        named = []
        for check, part in often.groupby("check", sort=False):
            etas = sorted(part["eta"].unique())
            everywhere = len(etas) == moving["eta"].nunique()
            where = "" if everywhere else f" (η = {', '.join(f'{eta:g}' for eta in etas)})"
            named.append(f"{check}{where}")
        lines.append(f"| {' | '.join([str(name), *cells, share, ', '.join(named)])} |")
    return "\n".join(lines)


def rivals_markdown(table: pd.DataFrame) -> str:
    """Return other corrections of the same data as documents show them, a row per coefficient."""
    lines = ["| data | parameter | default, Wald | others |", "|---|---|---|---|"]
    fixed = table[table["eta"].isna() & (table["method"] != "frequentist")]
    for (name, parameter), rows in fixed.groupby(["scenario", "parameter"], sort=False):
        coverage = rows.set_index("method")["coverage"]
        own = coverage.pop("location-scale, Wald")
        others = ", ".join(f"{method} {value:.3f}" for method, value in coverage.items())
        if others:
            lines.append(f"| {name} | {parameter} | {own:.3f} | {others} |")
    return "\n".join(lines)


def _between(values: pd.Series) -> str:
    """Return the least and the largest of numbers, once if they are the same."""
    if not len(values):
        return ""
    least, most = f"{values.min():.3f}", f"{values.max():.3f}"
    return least if least == most else f"{least} – {most}"


def coverage_picture(table: pd.DataFrame, band: tuple[float, float]) -> Figure:
    """Return coverages by scenario, averaged over parameters: a mark per eta and method."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(table["scenario"]))
    figure = Figure(figsize=(11, 0.42 * len(names) + 2.0), layout="constrained")
    ax = figure.subplots()
    ax.axvspan(*band, color="#d9ead3", label=f"{100 * band[0]:g} to {100 * band[1]:g} %")
    ax.axvline(0.95, color="0.5", lw=0.8)
    place = {name: len(names) - k for k, name in enumerate(names)}
    for method, (colour, marker, shift) in STYLES.items():
        rows = table[table["method"] == method]
        mean = rows.groupby(["scenario", "eta"], dropna=False)[["coverage", "coverage_se"]].mean()
        y = np.array([place[s] for s, _ in mean.index], dtype=float) + shift
        ax.errorbar(
            mean["coverage"],
            y,
            xerr=2 * mean["coverage_se"],
            fmt=marker,
            color=colour,
            ms=4,
            lw=0.6,
            label=method,
        )
    ax.set_yticks(list(place.values()), list(place))
    ax.set_ylim(0.3, len(names) + 0.7)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel(
        "coverage of 95 % intervals, mean over parameters\none mark per learning rate from 0.01 to "
        "100, bars two Monte Carlo standard errors"
    )
    ax.grid(axis="y", color="0.92", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    return figure


def coverage_page(
    table: pd.DataFrame, png: bytes, settings: dict[str, object], band: tuple[float, float]
) -> str:
    """Return the self-contained page: picture, league table, what is off, settings."""
    main = table[table["method"].isin(["location-scale, draws", "location-scale, Wald"])]
    off = main[~main["coverage"].between(*band)]
    columns = [
        "scenario",
        "parameter",
        "method",
        "eta",
        "coverage",
        "coverage_se",
        "flagged",
        "check",
    ]
    width = main[main["eta"].notna()].groupby(["scenario", "parameter"])["width"]
    change = (width.max() / width.min() - 1).rename("width, change over eta").to_frame()
    return render(
        "Coverage of calibrated intervals",
        "Simulated data sets of every kind of loss and dependence: how often 95 % intervals cover "
        "the minimiser of the expected penalized loss, at learning rates from 0.01 to 100.",
        [
            Section(
                "Coverage",
                picture=picture_data(png),
                caption="Orange: uncalibrated posterior. Grey: open-faced sandwich. Blue: "
                "location-scale calibration. Crosses: textbook sandwich, normal quantiles.",
            ),
            Section(
                "Farthest from 95 %",
                [
                    "Over parameters and learning rates; flagged is the share of data sets in "
                    "which a diagnostic warns, smallest and largest over learning rates."
                ],
                table_html(league(table)),
            ),
            Section(
                f"Calibrated coverages outside {100 * band[0]:g} to {100 * band[1]:g} %",
                [f"{len(off)} of {len(main)}."],
                table_html(off[columns]) if len(off) else "",
            ),
            Section(
                "Widths",
                ["Largest over smallest mean width over learning rates, minus one."],
                table_html(change, 4),
            ),
        ],
        "Settings: " + ", ".join(f"{k} = {v}" for k, v in settings.items()),
    )


def record(
    docs: Path, tables: Iterable[pd.DataFrame], scenarios: Iterable[str], band: tuple[float, float]
) -> pd.DataFrame:
    """Put `tables` of scenarios that ran anew into the recorded one, its page and its picture.

    The recorded table keeps the order of `scenarios`, and those that none of the new tables has.
    """
    import pandas as pd

    recorded = docs / "coverage-2000.csv"
    rows = dict(iter(pd.read_csv(recorded).groupby("scenario")))
    for table in tables:
        rows |= dict(iter(table.groupby("scenario")))
    table = pd.concat([rows[name] for name in scenarios if name in rows], ignore_index=True)
    page = docs / "coverage.md"
    text = page.read_text(encoding="utf-8")
    for markdown in (league_markdown(table), rivals_markdown(table)):
        header = re.escape(markdown.splitlines()[0])
        old = re.search(rf"^{header}\n(?:\|.*\n)+", text, flags=re.MULTILINE)
        assert old is not None, f"{page} has no table {header}"
        text = text.replace(old[0], f"{markdown}\n")
    table.to_csv(recorded, index=False, float_format="%.6g")
    page.write_text(text, encoding="utf-8")
    coverage_picture(table, band).savefig(docs / "coverage.png", dpi=110)
    return table

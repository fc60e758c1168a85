"""The picture and the page of the comparison of learning-rate methods."""

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

__all__ = ["compare_page", "compare_picture", "overview", "overview_markdown", "record"]

BAND = (0.935, 0.965)
MARKS = ("o", "s", "D")


def overview(table: pd.DataFrame) -> pd.DataFrame:
    """Return coverages, least to most over parameters, as text: a row per way, designs across."""
    low = table.groupby(["way", "design"], sort=False)["coverage"].min().unstack()
    high = table.groupby(["way", "design"], sort=False)["coverage"].max().unstack()
    ways, designs = list(dict.fromkeys(table["way"])), list(dict.fromkeys(table["design"]))
    low, high = low.reindex(ways)[designs], high.reindex(ways)[designs]
    texts = low.map(lambda v: f"{v:.3f}" if v == v else "-").astype(object)
    for way in ways:
        for design in designs:
            one, two = low.loc[way, design], high.loc[way, design]
            if one == one and round(one, 3) != round(two, 3):
                texts.loc[way, design] = f"{one:.3f} to {two:.3f}"
    return texts


def overview_markdown(table: pd.DataFrame) -> str:
    """Return the same as documents show it."""
    texts = overview(table)
    columns = [str(name).replace("|", "\\|") for name in texts.columns]
    lines = [f"| {' | '.join(['method', *columns])} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {' | '.join([str(way), *row])} |" for way, row in texts.iterrows()]
    return "\n".join(lines)


def record(docs: Path, runs: Iterable[pd.DataFrame], ways: Iterable[str]) -> pd.DataFrame:
    """Put runs of single ways into the recorded table, its page and its picture.

    Ways come in the order of `ways` within every design of the recorded table.
    """
    import pandas as pd

    recorded, page = docs / "compare-500.csv", docs / "learning-rates.md"
    known = pd.read_csv(recorded)
    rows = {key: part for run in [known, *runs] for key, part in run.groupby(["design", "way"])}
    designs, order = dict.fromkeys(known["design"]), list(ways)
    kept = [rows[design, way] for design in designs for way in order if (design, way) in rows]
    table = pd.concat(kept, ignore_index=True)
    markdown, text = overview_markdown(table), page.read_text(encoding="utf-8")
    header = re.escape(markdown.splitlines()[0])
    old = re.search(rf"^{header}\n(?:\|.*\n)+", text, flags=re.MULTILINE)
    assert old is not None, f"{page} has no table {header}"
    page.write_text(text.replace(old[0], f"{markdown}\n"), encoding="utf-8")
    table.to_csv(recorded, index=False, float_format="%.6g")
    compare_picture(table).savefig(docs / "compare.png", dpi=110)
    return table


def compare_picture(table: pd.DataFrame) -> Figure:
    """Return coverage of every coefficient by way, a panel per design."""
    from matplotlib.figure import Figure

    designs, ways = list(dict.fromkeys(table["design"])), list(dict.fromkeys(table["way"]))
    columns = min(3, len(designs))
    height = -(-len(designs) // columns)
    figure = Figure(figsize=(4.2 * columns + 1.8, 3.6 * height + 0.6), layout="constrained")
    axes = figure.subplots(height, columns, squeeze=False, sharey=True, sharex=True)
    for ax in axes.reshape(-1)[len(designs) :]:
        ax.set_visible(False)
    for ax, design in zip(axes.reshape(-1), designs, strict=False):
        panel = table[table["design"] == design]
        ax.axvspan(*BAND, color="#d9ead3")
        ax.axvline(0.95, color="0.5", lw=0.8)
        for k, parameter in enumerate(dict.fromkeys(panel["parameter"])):
            rows = panel[panel["parameter"] == parameter].set_index("way").reindex(ways)
            y = len(ways) - np.arange(len(ways)) + 0.22 * (1 - k)
            ours = np.array([way == "location-scale" for way in ways])
            for mine, colour in ((ours, AFTER), (~ours, BEFORE)):
                ax.errorbar(
                    rows["coverage"][mine],
                    y[mine],
                    xerr=2 * rows["coverage_se"][mine],
                    fmt=MARKS[k % 3],
                    color=colour,
                    ms=4,
                    lw=0.7,
                )
            for way, place in zip(ways, y, strict=True):
                if k == 0 and np.isnan(rows.loc[way, "coverage"]):
                    ax.text(
                        0.5,
                        place - 0.3,
                        str(rows.loc[way, "status"]),
                        fontsize=8,
                        color="0.4",
                        ha="center",
                    )
        ax.set_title(design, fontsize=10)
        ax.set_yticks(len(ways) - np.arange(len(ways)), ways)
        ax.set_xlim(-0.03, 1.03)
        ax.grid(axis="y", color="0.93", lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[-1]:
        ax.set_xlabel("coverage of 95 % intervals")
    figure.suptitle(
        "One mark per coefficient, bars two Monte Carlo standard errors; green: 93.5 to 96.5 %",
        fontsize=10,
    )
    return figure


def compare_page(table: pd.DataFrame, png: bytes, settings: dict[str, object]) -> str:
    """Return the self-contained page: picture, coverages, learning rates and times, settings."""
    per_way = table.drop_duplicates(["design", "way"]).set_index(["design", "way"])
    ours = table[table["way"] == "location-scale"]
    inside = float(ours["coverage"].between(*BAND).mean())
    return render(
        "Learning-rate methods side by side",
        "How often 95 % intervals cover the minimiser of the expected loss when a learning rate is "
        "chosen by a published method, when draws are made without one, and when they are "
        "calibrated.",
        [
            Section(
                "Coverage",
                [
                    f"Location-scale calibration: {inside:.0%} of coefficients between 93.5 and "
                    "96.5 %."
                ],
                picture=picture_data(png),
                caption="Orange: chosen learning rates and draws without one. Blue: location-scale "
                "calibration of draws at eta = 1.",
            ),
            Section("Least and most over coefficients", [], table_html(overview(table))),
            Section(
                "Learning rates, statuses and times",
                ["Medians over data sets; seconds of CPU time per data set with sampling."],
                table_html(per_way[["eta", "status", "status_share", "seconds", "datasets"]]),
            ),
            Section(
                "Every coefficient",
                [],
                table_html(
                    table[["design", "way", "parameter", "coverage", "coverage_se", "width"]]
                ),
            ),
        ],
        "Settings: " + ", ".join(f"{k} = {v}" for k, v in settings.items()),
    )

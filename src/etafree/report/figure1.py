"""The picture and the page of the paper's Figure 1 beside the published curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etafree.report.page import Section, picture_data, render, table_html
from etafree.report.plots import AFTER, BEFORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure1_page", "figure1_picture", "ranges"]

PANELS = {
    "coverage": "(a) coverage of 95 % intervals",
    "width": "(b) mean interval width",
    "bias": "(c) bias of the estimate",
    "bias_sd": "(d) standard deviation of the bias",
}
POSTERIORS = {
    "huber": "huber: the exact Huber posterior (this library's default)",
    "appendix": "appendix: the paper's Gibbs sampler as its appendix writes it",
    "published": "published: the sampler that made the published figure",
}
#: Margins by hand: finding them takes longer than drawing the figure.
GRID = {"left": 0.04, "right": 0.99, "top": 0.935, "bottom": 0.085, "wspace": 0.2, "hspace": 0.6}
LINES = {
    ("uncalibrated", "default"): (BEFORE, "-", "D", "posterior as it came"),
    ("frequentist", "default"): ("0.25", "-", "", "frequentist, default meat"),
    ("calibrated", "default"): (AFTER, "-", "s", "calibrated, default meat"),
    ("frequentist", "printed"): ("0.25", "--", "", "frequentist, printed meat"),
    ("calibrated", "printed"): ("#6aa5d8", "--", "s", "calibrated, printed meat"),
}


def figure1_picture(table: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Return the paper's four panels for each posterior, published curves in the background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 10.5))
    rows = figure.subplots(3, 4, gridspec_kw=GRID)
    for axes, (kind, title) in zip(rows, POSTERIORS.items(), strict=True):
        axes[0].text(-0.16, 1.2, title, fontsize=11, weight="bold", transform=axes[0].transAxes)
        for ax, (metric, label) in zip(axes, PANELS.items(), strict=True):
            for _, curve in published.groupby("method"):
                ax.plot(curve["eta"], curve[metric], color="0.8", lw=5, solid_capstyle="round")
            ax.plot([], [], color="0.8", lw=5, label="published curves")
            for (method, meat), style in LINES.items():
                _line(ax, table, kind, method, meat, metric, style)
            ax.set_xscale("log")
            ax.minorticks_off()
            ax.set_title(label, fontsize=10)
            ax.set_xlabel("learning rate η")
            if metric == "coverage":
                ax.axhline(0.95, color="0.5", lw=0.8, ls=":")
                ax.set_ylim(-0.03, 1.03)
            if metric == "width":
                ax.set_yscale("log")
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _line(
    ax: Axes, table: pd.DataFrame, kind: str, method: str, meat: str, metric: str, style: Any
) -> None:
    colour, dash, marker, label = style
    curve = table[
        (table["posterior"] == kind) & (table["method"] == method) & (table["meat"] == meat)
    ]
    ax.plot(curve["eta"], curve[metric], color=colour, ls=dash, marker=marker, ms=3, lw=1.4,
            label=label)  # fmt: skip


def ranges(table: pd.DataFrame) -> pd.DataFrame:
    """Return smallest and largest values over the learning rates, by posterior, meat, method."""
    grouped = table.groupby(["posterior", "meat", "method"])[["coverage", "width", "bias"]]
    made = grouped.agg(["min", "max"])
    made.columns = made.columns.map(" ".join)
    return made


def figure1_page(table: pd.DataFrame, z: pd.DataFrame, png: bytes, settings: dict[str, Any]) -> str:
    """Return the self-contained page: the figure, what it shows, the deviations, the settings."""
    import pandas as pd

    size = z.abs()
    deviation = pd.DataFrame({"largest |z|": size.max(), "mean |z|": size.mean()})
    return render(
        "Figure 1 of “Location–scale calibration for generalized posterior”",
        "Coverage, width and bias of one slope over twenty learning rates: the posterior as it "
        "came swings with the learning rate, the calibrated one does not.",
        [
            Section(
                "The figure",
                picture=picture_data(png),
                caption="Grey bands: the published curves. Orange: posterior as it came. Blue: "
                "calibrated. Black: frequentist.",
            ),
            Section(
                "Three posteriors",
                [
                    "huber is the generalized posterior exp(−η × penalized Huber loss), exact.",
                    "appendix is the Gibbs sampler that the paper's appendix describes, with a "
                    "prior that η does not scale. Integrating its latent variables gives a "
                    "normal–Laplace loss, not Huber's, and its mode moves with η; calibration uses "
                    "its draws for shape only.",
                    "published is a third sampler, found by matching the curves: the latent scale "
                    "is drawn as inverse Gaussian with mean |t|/(ηc) and shape 1, and the prior is "
                    "scaled by η.",
                ],
            ),
            Section(
                "Two meats",
                [
                    "default centres scores at observation level, corrects for leverage (CR3) and "
                    "uses t quantiles. printed is the paper's uncentred estimate with normal "
                    "quantiles: under a penalty group scores do not sum to zero, which inflates it "
                    "by about half and makes every interval cover. The frequentist interval is "
                    "also the Wald interval of the calibrated posterior with that meat: where it "
                    "and the draws differ, the posterior's shape is not near normal.",
                ],
                table=table_html(ranges(table)),
            ),
            Section(
                "Deviation from the published curves",
                [
                    "Our published posterior with the printed meat, minus the published curves, in "
                    "standard errors of the difference (both are Monte Carlo estimates).",
                ],
                table=table_html(deviation, 2),
            ),
        ],
        "Settings: " + ", ".join(f"{k} = {v}" for k, v in settings.items()),
    )

"""Plots that can be read without the text: functions of axes and numbers.

Matplotlib loads when a plot is asked for. Before calibration is a thin line with a circle,
afterwards a thick one with a square, in colours that differ in lightness as well as in hue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from etafree.foundation.arguments import Array

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from etafree.report.figure import Ink

#: Colours that differ in lightness as well as in hue; the second where the ground is dark.
BEFORE, AFTER, AFTER_ON_DARK = "#c77d2e", "#1f5a94", "#b5d8fa"
#: Columns of a summary that make the intervals before and after.
ENDS = ["lower_before", "mean_before", "upper_before", "lower", "estimate", "upper"]
#: Letters of a name that stand beside a row, and units that are named in a panel.
BESIDE, NAMED = 26, 6
#: Shortest interval of a forest, as a share of its width: below, each row has a scale of its own.
VISIBLE = 0.015


def key(label: str, colour: str, marker: str = "", width: float = 3.0) -> Line2D:
    """Return what a legend shows of an interval."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, lw=width, marker=marker, ms=6, label=label)


def interval(ax: Axes, values: Array, y: float, colour: str, *, after: bool = True) -> None:
    """Draw (lower, middle, upper) at a height: a square if it is calibrated, else a circle.

    An end that is infinite or unknown is an arrow at the edge, once the scale is `settled`.
    """
    low, mid, high = (float(v) for v in values)
    if np.isfinite([low, high]).all():
        ax.plot([low, high], [y, y], color=colour, lw=3 if after else 2, solid_capstyle="butt")
    elif np.isfinite(mid):
        for end, arrow in ((low, "<"), (high, ">")):
            (half,) = ax.plot([mid, end if np.isfinite(end) else mid], [y, y], color=colour, lw=3)
            half.set_gid("" if np.isfinite(end) else arrow)
    if np.isfinite(mid):
        ax.plot(mid, y, "s" if after else "o", color=colour, ms=5 if after else 4.5)


def settled(ax: Axes) -> None:
    """Fix the scale, and let intervals that have no end go on to the edge."""
    left, right = ax.get_xlim()
    ax.set_xlim(left, right)
    for half in ax.lines:
        if (arrow := half.get_gid()) in ("<", ">"):
            (mid, _), (y, _) = (np.asarray(v, dtype=np.float64) for v in half.get_data())
            edge = left if arrow == "<" else right
            half.set_data([mid, edge], [y, y])
            ax.plot(edge, y, arrow, color=half.get_color(), ms=7, clip_on=False)


def rows(ax: Axes, labels: Sequence[str], text: object, size: float = 9) -> None:
    """Name the rows of an axes, 0 on top."""
    from etafree.report.figure import lines

    named = [lines(label, BESIDE) for label in labels]
    ax.set_yticks(range(len(named)), named, parse_math=False, fontsize=size, color=text)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(named) - 0.5, -0.5)
    ax.spines["left"].set_visible(False)


def densities(ax: Axes, before: Array, after: Array, ends: Array, ink: Ink) -> None:
    """Draw draws (D,) before and after, each scaled to its peak, over their intervals `ENDS`."""
    ax.set_yticks([])
    ax.set_ylim(-0.36, 1.04)
    ax.spines["left"].set_visible(False)
    if not np.isfinite(ends).all():
        said = "its limits are not finite"
        ax.text(0.5, 0.5, said, transform=ax.transAxes, ha="center", color=ink.text)
        return
    for values, colour in ((before, ink.before), (after, ink.after)):
        grid, height = density(values)
        ax.fill_between(grid, height, color=colour, alpha=0.3, lw=0)
        ax.plot(grid, height, color=colour, lw=1.2)
    interval(ax, ends[:3], -0.12, ink.before, after=False)
    interval(ax, ends[3:], -0.26, ink.after)
    pad = 0.25 * np.ptp(ends)
    ax.set_xlim(ends.min() - pad, ends.max() + pad)
    ax.axhline(0, color=ink.faint, lw=0.6)


def unlike(ends: Array) -> bool:
    """Return whether intervals `ENDS` (k, 6) are not all visible over one scale."""
    known = ends[np.isfinite(ends).all(axis=1)]
    widths = known[:, [2, 5]] - known[:, [0, 3]]
    return len(known) > 1 and bool(widths.min() < VISIBLE * np.ptp(known))


def forest(ax: Axes, table: pd.DataFrame, numbers: Sequence[str], ink: Ink) -> None:
    """Draw a row per parameter of a summary: its interval before, and after.

    Where their units are too different for one scale, every row is in standard errors from its
    estimate. `numbers` say the intervals at the right side.
    """
    values = table[ENDS].to_numpy(np.float64)
    scaled = unlike(values)
    if scaled:
        values = (values - values[:, 4:5]) / table["se"].to_numpy(np.float64)[:, None]
    for y, limits in enumerate(values):
        interval(ax, limits[:3], y - 0.14, ink.before, after=False)
        interval(ax, limits[3:], y + 0.14, ink.after)
    left, right = ax.get_xlim()
    if scaled or left < 0 < right:
        ax.axvline(0, color=ink.faint, lw=0.8, zorder=0)
    rows(ax, [str(name) for name in table.index], ink.text)
    settled(ax)
    ax.set_xlabel("standard errors from the estimate" if scaled else "parameter value")
    beside = ax.get_yaxis_transform()
    for y, text in enumerate(numbers):
        ax.text(1.02, y, text, transform=beside, va="center", fontsize=8, color=ink.text)


def corrections(ax: Axes, table: pd.DataFrame, own: str, before: Array, ink: Ink) -> None:
    """Draw the intervals of a coefficient by correction; `own` is the one in use.

    `before` (lower, middle, upper) is the interval before calibration. Limits of bootstraps that
    are further away than the others' intervals are wide are arrows at the edge.
    """
    names = [str(name) for name in table.index]
    near = table.loc[table["se"].notna(), ["lower", "upper"]].to_numpy(np.float64)
    reach = [near.min() - np.ptp(near), near.max() + np.ptp(near)]
    interval(ax, before, 0, ink.before, after=False)
    middle = float(np.nanmedian(table[["lower", "upper"]].to_numpy(np.float64)))
    for y, (name, row) in enumerate(zip(names, table.itertuples(), strict=True), start=1):
        # limits of the bootstraps are not symmetric about the estimate
        low, high, se = (float(np.asarray(v)) for v in (row.lower, row.upper, row.se))
        middle = 0.5 * (low + high) if np.isfinite(se) else middle
        low, high = low if low >= reach[0] else -np.inf, high if high <= reach[1] else np.inf
        interval(ax, np.array([low, middle, high]), y, ink.after if name == own else ink.faint)
    dof = table["dof"].to_numpy(np.float64)
    said = [f", {round(float(nu), 1):g} df" if np.isfinite(nu) else "" for nu in dof]
    rows(ax, ["before", *map(str.__add__, names, said)], ink.text, 8)
    settled(ax)


def sweep(ax: Axes, etas: Array, widths: Array, own: float | None, ink: Ink) -> None:
    """Draw widths of intervals before and after (2, m) over learning rates (m,), NaN if unknown.

    `own` is the learning rate of the fit.
    """
    ax.set_xscale("log")
    ax.set_yscale("log")
    for values, colour, marker, size in (
        (widths[0], ink.before, "o", 2.0),
        (widths[1], ink.after, "s", 3.0),
    ):
        ax.plot(etas, values, marker, color=colour, ms=3, ls="-", lw=size)
        here = etas == own
        ax.plot(etas[here], values[here], marker, color=colour, ms=8)
    if own is not None:
        ax.axvline(own, color=ink.faint, lw=0.8, zorder=0)
    ax.minorticks_off()


def coverage(
    ax: Axes, table: pd.DataFrame, level: float, checked: pd.DataFrame | None, ink: Ink
) -> None:
    """Draw the coverage that a row's interval has by its law, before and after.

    `table` has columns before and after; `checked` the coverage in data sets drawn from the user's
    own, with its Monte Carlo error.
    """
    ax.axvline(level, color=ink.faint, lw=1.2, zorder=0)
    y = np.arange(len(table))
    ax.plot(table["before"], y - 0.2, "o", color=ink.before, ms=6, ls="")
    ax.plot(table["after"], y, "s", color=ink.after, ms=6, ls="")
    if checked is not None:
        share, error = checked["coverage"].to_numpy(), 1.96 * checked["error"].to_numpy()
        ends = np.stack([share - np.maximum(share - error, 0), np.minimum(error, 1 - share)])
        ax.errorbar(share, y + 0.2, xerr=ends, fmt="D", ms=4, color=ink.text, mfc="none", lw=1.2)
    rows(ax, [str(name) for name in table.index], ink.text)
    least = min(0.5, *(float(v) - 0.05 for v in table[["before", "after"]].to_numpy().flat))
    ax.set_xlim(max(least, 0) - 0.01, 1.01)


def units(ax: Axes, moves: Array, labels: Sequence[str], ink: Ink, unit: str = "cluster") -> None:
    """Draw by how many standard errors each unit (G,) moves a coefficient when it is left out.

    Those that move it most by name, the others as points in one row.
    """
    order = np.argsort(-np.abs(moves), kind="stable")
    top, rest = order[:NAMED], order[NAMED:]
    for y, g in enumerate(top):
        ax.plot([0, moves[g]], [y, y], color=ink.after, lw=2)
        ax.plot(moves[g], y, "s", color=ink.after, ms=5)
    names = [labels[g] for g in top]
    if len(rest):
        ax.plot(moves[rest], np.full(len(rest), len(top)), "|", color=ink.after, ms=9, alpha=0.6)
        names.append(f"{len(rest)} other {unit}s" if len(rest) > 1 else labels[rest[0]])
    ax.axvline(0, color=ink.faint, lw=0.8, zorder=0)
    rows(ax, names, ink.text, 8)
    reach = 1.1 * max(float(np.abs(moves).max(initial=0.0)), 0.1)
    ax.set_xlim(-reach, reach)


def shape(ax: Axes, law: Array, draws: Array, band: Array, ends: Array, ink: Ink) -> None:
    """Draw quantiles of draws (m,) over those of their law, in a band (2, m) of chance.

    `ends` (2, 2) are the quantiles of the law, and of the draws, at the limits of an interval.
    """
    ax.fill_between(law, *band, color=ink.faint, lw=0)
    ax.plot(law, law, color=ink.text, lw=0.6)
    ax.plot(law, draws, color=ink.after, lw=2)
    ax.plot(*ends, "s", color=ink.after, ms=5, ls="")


def density(values: Array, points: int = 300) -> tuple[Array, Array]:
    """Return a grid and the kernel density of draws (D,) there, scaled to its peak."""
    from scipy.stats import gaussian_kde

    thinned = values if len(values) <= 5000 else values[:: len(values) // 5000 + 1]
    middle, spread = float(np.mean(thinned)), float(np.ptp(thinned))
    if not spread > 1e-12 * abs(middle):  # a spike
        return np.full(points, middle), np.linspace(0.0, 1.0, points)
    z = (thinned - middle) / spread  # its variance neither over- nor underflows
    low, high = np.quantile(z, [0.0005, 0.9995])
    grid = np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), points)
    height = gaussian_kde(z)(grid)
    return middle + spread * grid, height / height.max()

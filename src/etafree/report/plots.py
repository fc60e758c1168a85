"""Plots that can be read without the text; matplotlib loads when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from etafree.foundation.arguments import Array
from etafree.foundation.terminal import plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Colours that differ in lightness as well as in hue.
BEFORE, AFTER = "#c77d2e", "#1f5a94"


def before_after(
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    table: pd.DataFrame,
    level: float,
    eta: str = "",
    spread: str = "",
) -> Figure:
    """Return a figure of densities and intervals of every parameter before and after calibration.

    `table` is the summary; `spread` says how the calibrated covariance was made.
    """
    from matplotlib.figure import Figure

    names = list(before)
    figure = Figure(figsize=(7.5, 1.2 + 1.7 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for name, ax in zip(names, axes, strict=True):
        row = table.loc[name]
        for values, colour in ((before[name], BEFORE), (after[name], AFTER)):
            grid, height = density(values)
            ax.fill_between(grid, height, color=colour, alpha=0.3, lw=0)
            ax.plot(grid, height, color=colour, lw=1.2)
        top = ax.get_ylim()[1]
        limits = row[["lower_before", "upper_before", "lower", "upper"]].to_numpy(np.float64)
        for y, colour, mid, ends in (
            (-0.12, BEFORE, row["mean_before"], limits[:2]),
            (-0.26, AFTER, row["estimate"], limits[2:]),
        ):
            ax.plot(ends, [y * top] * 2, color=colour, lw=3, solid_capstyle="butt")
            ax.plot(mid, y * top, "o", color=colour, ms=5)
        pad = 0.25 * np.ptp(limits)
        ax.set_xlim(limits.min() - pad, limits.max() + pad)
        ax.set_ylim(-0.36 * top, top)
        ax.axhline(0, color="0.7", lw=0.6)
        ax.set_yticks([])
        ax.set_ylabel(plain(name), parse_math=False, rotation=0, ha="right", va="center")
        ax.spines[["top", "right", "left"]].set_visible(False)
    axes[0].plot([], [], color=BEFORE, lw=3, label=f"before calibration{eta}")
    axes[0].plot([], [], color=AFTER, lw=3, label="calibrated")
    axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    axes[-1].set_xlabel("parameter value")
    title = f"Densities (each scaled to its peak) and {level:.0%} intervals"
    figure.suptitle(f"{title}\n{spread}".strip(), parse_math=False, fontsize=10)
    return figure


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

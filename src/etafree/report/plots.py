"""Plots that can be read without the text; matplotlib loads when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.foundation.arguments import Array
from etafree.foundation.terminal import plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
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
    """Return densities and intervals of every parameter before and after calibration.

    `table` has one row per parameter with columns estimate, lower, upper, mean_before,
    lower_before and upper_before; `spread` says how the calibrated covariance was made.
    """
    from matplotlib.figure import Figure

    names = list(before)
    figure = Figure(figsize=(7.5, 1.2 + 1.7 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for name, ax in zip(names, axes, strict=True):
        row = table.loc[name]
        _density(ax, before[name], BEFORE)
        _density(ax, after[name], AFTER)
        top = ax.get_ylim()[1]
        for height, colour, mid, low, high in (
            (-0.12, BEFORE, row["mean_before"], row["lower_before"], row["upper_before"]),
            (-0.26, AFTER, row["estimate"], row["lower"], row["upper"]),
        ):
            ax.plot([low, high], [height * top] * 2, color=colour, lw=3, solid_capstyle="butt")
            ax.plot(mid, height * top, "o", color=colour, ms=5)
        _limits(ax, row)
        ax.set_ylim(-0.36 * top, top)
        ax.axhline(0, color="0.7", lw=0.6)
        ax.set_yticks([])
        ax.set_ylabel(plain(name), parse_math=False, rotation=0, ha="right", va="center")
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    axes[0].plot([], [], color=BEFORE, lw=3, label=f"posterior as it came{eta}")
    axes[0].plot([], [], color=AFTER, lw=3, label="calibrated")
    axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    axes[-1].set_xlabel("parameter value")
    title = f"Densities (each scaled to its peak) and {level:.0%} intervals"
    figure.suptitle(f"{title}\n{spread}".strip(), parse_math=False, fontsize=10)
    return figure


def density(values: Array, points: int = 300) -> tuple[Array, Array]:
    """Return a grid and the kernel density of draws (D,) there, scaled to its peak.

    Examples
    --------
    >>> grid, height = density(np.linspace(-1.0, 1.0, 101), points=5)
    >>> grid.round(1), float(height.max())
    (array([-1.2, -0.6, 0. , 0.6, 1.2]), 1.0)
    """
    from scipy.stats import gaussian_kde

    some = values if len(values) <= 5000 else values[:: len(values) // 5000 + 1]
    middle, spread = float(np.mean(some)), float(np.ptp(some))
    if not spread > 1e-12 * abs(middle):  # a spike
        return np.full(points, middle), np.linspace(0.0, 1.0, points)
    z = (some - middle) / spread  # its variance neither over- nor underflows
    low, high = np.quantile(z, [0.0005, 0.9995])
    grid = np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), points)
    height = gaussian_kde(z)(grid)
    return middle + spread * grid, height / height.max()


def _density(ax: Axes, values: Array, colour: str) -> None:
    grid, height = density(values)
    ax.fill_between(grid, height, color=colour, alpha=0.3, lw=0)
    ax.plot(grid, height, color=colour, lw=1.2)


def _limits(ax: Axes, row: Any) -> None:
    """Show both distributions whole, unless one is so wide that the other would vanish."""
    low = min(row["lower"], row["lower_before"])
    high = max(row["upper"], row["upper_before"])
    pad = 0.25 * (high - low)
    ax.set_xlim(low - pad, high + pad)


def interval_sweep(
    etas: Array, before: Array, after: Array, estimate: float, name: str, level: float = 0.95
) -> Figure:
    """Return intervals against the learning rate: (k, 2) before and (k, 2) after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 3.8), layout="constrained")
    ax = figure.subplots()
    for k, eta in enumerate(etas):
        for shift, colour, marker, side, (low, high) in (
            (0.88, BEFORE, "D", "right", before[k]),
            (1.14, AFTER, "s", "left", after[k]),
        ):
            x = eta * shift
            ax.plot([x, x], [low, high], color=colour, lw=3, solid_capstyle="butt")
            ax.plot(x, 0.5 * (low + high), marker, color=colour, ms=5)
            gap = -6 if side == "right" else 6
            for end, va in ((low, "top"), (high, "bottom")):
                shown = f"{end:.2f}".replace("-", "−")
                ax.annotate(
                    shown,
                    (x, end),
                    (gap, 0),
                    textcoords="offset points",
                    ha=side,
                    va=va,
                    fontsize=9,
                    color=colour,
                )
    ax.axhline(estimate, color="0.5", lw=0.8, ls="--", zorder=0, label="penalized estimate")
    ax.set_xscale("log")
    ax.set_xlabel("learning rate η")
    ax.set_ylabel(f"{level:.0%} interval of {name}", parse_math=False)
    ax.plot([], [], color=BEFORE, marker="D", lw=3, label="posterior as it came: swings with η")
    ax.plot([], [], color=AFTER, marker="s", lw=3, label="calibrated: stays")
    ax.legend(frameon=False, loc="upper right")
    ax.margins(x=0.11, y=0.15)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure

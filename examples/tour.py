"""Calibrate one robust regression at five learning rates, and draw intervals before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import etafree as ef
from etafree.report.plots import AFTER, BEFORE

ETAS = np.array([0.01, 0.1, 1.0, 10.0, 100.0])
OUT = Path("tour")


def school_data(seed: int = 1) -> pd.DataFrame:
    """Return pupils in 60 schools: shared school effects and one outlier in ten."""
    rng = np.random.default_rng(seed)
    schools, size = 60, 8
    school = np.repeat(np.arange(schools), size)
    n = len(school)
    hours = 0.6 * rng.standard_normal(schools)[school] + 0.8 * rng.standard_normal(n)
    noise = rng.standard_normal(schools)[school] + rng.standard_normal(n)
    noise += np.where(rng.random(n) < 0.1, rng.normal(0, 10, n), 0.0)
    return pd.DataFrame({"score": 1.0 + 0.5 * hours + noise, "hours": hours, "school": school})


def interval_sweep(before: np.ndarray, after: np.ndarray, estimate: float, name: str) -> Figure:
    """Return a figure of intervals against the learning rate: (k, 2) before and (k, 2) after."""
    figure = Figure(figsize=(6.2, 3.8), layout="constrained")
    ax = figure.subplots()
    for k, eta in enumerate(ETAS):
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
    ax.set_ylabel(f"95 % interval for {name}", parse_math=False)
    ax.plot([], [], color=BEFORE, marker="D", lw=3, label="before calibration")
    ax.plot([], [], color=AFTER, marker="s", lw=3, label="after calibration")
    ax.legend(frameon=False, loc="upper right")
    ax.margins(x=0.11, y=0.15)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    data = school_data()
    criterion = ef.Criterion.from_formula(
        "score ~ hours", data, ef.losses.Huber(1.345), ef.penalties.Ridge(0.05)
    )
    print(criterion)
    rows, before, after = [], [], []
    for eta in ETAS:
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), seed=1)
        result = ef.calibrate(draws, criterion, clusters=data["school"])
        line = result.summary().loc["hours"]
        rows.append({"eta": eta, **line, "flags": result.flags()})
        before.append([line["lower_before"], line["upper_before"]])
        after.append([line["lower"], line["upper"]])
        if eta == 1.0:
            shown = result
    table = pd.DataFrame(rows).set_index("eta")
    columns = ["lower_before", "upper_before", "lower", "upper", "ratio", "flags"]
    print("\n95 % interval for the slope of hours, before and after calibration")
    print(table[columns].to_string(float_format=lambda v: f"{v:.3f}"))
    print(f"\n{shown}")
    OUT.mkdir(exist_ok=True)
    sweep = interval_sweep(np.array(before), np.array(after), shown.center[1], "hours")
    sweep.savefig(OUT / "intervals.png", dpi=150)
    shown.plot().savefig(OUT / "before_after.png", dpi=150)
    print(f"\npictures: {OUT / 'intervals.png'}, {OUT / 'before_after.png'}")


if __name__ == "__main__":
    main()

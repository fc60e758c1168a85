"""Calibrate one robust regression at five learning rates: intervals that swing, and that stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import etafree as ef
from etafree.report.plots import interval_sweep

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
    sweep = interval_sweep(ETAS, np.array(before), np.array(after), shown.center[1], "hours")
    sweep.savefig(OUT / "intervals.png", dpi=150)
    shown.plot().savefig(OUT / "before_after.png", dpi=150)
    print(f"\npictures: {OUT / 'intervals.png'}, {OUT / 'before_after.png'}")


if __name__ == "__main__":
    main()

"""What a report shows of the kinds of plots, as lines of a page: it loads no matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from etafree.errors import EtafreeError
from etafree.foundation.arguments import Array
from etafree.report import kinds, plots
from etafree.report.page import Chart, Scale, Section

if TYPE_CHECKING:
    import pandas as pd

    from etafree.result import Calibration

#: Parameters of a forest, and of the other charts: `plot` shows all.
FOREST, FIRST = 30, 6
#: Numbers of rows, times squared parameters, of which influences are quick.
QUICK = 1e7


def forest(result: Calibration, table: pd.DataFrame, level: str) -> list[Section]:
    """Return the intervals of several parameters over one scale, if their units allow for one."""
    rows = table.loc[[name for name in table.index if name in result.shown.names]]
    values = rows[plots.ENDS].to_numpy(np.float64)
    if not 2 <= len(rows) <= FOREST or not np.isfinite(values).all() or plots.unlike(values):
        return []
    scale = Scale.covering(float(values.min()), float(values.max()), 0.05)
    lines = [
        (
            str(name),
            [
                ("grey", scale.mark(np.zeros(1))),
                ("before", scale.stroke(ends[0], ends[2], 0.3)),
                ("after", scale.stroke(ends[3], ends[5], 0.7)),
                ("before thin", scale.mark(ends[1:2], 0.1, 0.5)),
                ("after thin", scale.mark(ends[4:5], 0.5, 0.9)),
            ],
        )
        for name, ends in zip(rows.index, values, strict=True)
    ]
    said = f"{level} intervals before (above) and after calibration (below), over one scale."
    return [Section("Side by side", [said], charts=[Chart("", lines, scale.ticks(), 24)])]


def widths(
    names: Sequence[str], etas: Array, before: Array, after: Array, own: float | None
) -> list[Chart]:
    """Return widths over learning rates (m,) of intervals (m, 3, k), both on logarithmic scales."""
    if len(etas) < 2:
        return []
    across, charts = Scale(*np.log10([etas.min(), etas.max()])), []
    for j, name in enumerate(names[:FIRST]):
        both = np.log10([ends[:, 2, j] - ends[:, 0, j] for ends in (before, after)])
        if not np.isfinite(both).all():
            continue
        low, high = float(both.min()), float(both.max())
        curves = [
            (kind, across.outline(np.log10(etas), (curve - low) / max(high - low, 1e-9)))
            for kind, curve in zip(("before thin", "after thin"), both, strict=True)
        ]
        here = [] if own is None else [("grey", across.mark(np.log10([own])))]
        decades = np.arange(np.ceil(across.low - 1e-9), np.floor(across.high + 1e-9) + 1)
        ticks = [
            (float(x), f"{10.0**d:g}") for x, d in zip(across.at(decades), decades, strict=True)
        ]
        label = f"width {10**low:.3g} to {10**high:.3g} over η"
        charts.append(Chart(name, [(label, [*here, *curves])], ticks, 64))
    return charts


def clusters(result: Calibration) -> list[Section]:
    """Return which clusters move an estimate most, where that is quick."""
    c, structure = result.criterion, result.dependence
    if c is None or structure is None or not structure.row_groups() or c.n * c.p**2 > QUICK:
        return []
    names = result.shown.names[:FIRST]
    try:
        moved = kinds.moves(result, range(len(names)))
    except EtafreeError:  # what clusters add to estimates is not known
        return []
    charts = []
    for name, each in zip(names, moved.each.T, strict=True):
        order = np.argsort(-np.abs(each), kind="stable")
        top, rest = order[: plots.NAMED], order[plots.NAMED :]
        reach = max(float(np.abs(each).max()), 0.1)
        scale = Scale.covering(-reach, reach, 0.05)
        zero = ("grey", scale.mark(np.zeros(1)))
        lines = [
            (
                f"{moved.labels[g]}: {each[g]:+.2f}",
                [zero, ("after", scale.stroke(min(0.0, each[g]), max(0.0, each[g]), 0.5))],
            )
            for g in top
        ]
        if len(rest):
            others = f"{len(rest)} other{'s' * (len(rest) > 1)}"
            lines.append((others, [zero, ("after thin", scale.mark(each[rest], 0.2, 0.8))]))
        charts.append(Chart(name, lines, scale.ticks()))
    said = (
        f"By how many standard errors the estimate moves when one {moved.unit} is left out, those "
        "that move it most by name. One that moves it by more than a standard error is worth a "
        "look at its rows."
    )
    return [
        Section(f"Which {moved.unit}s move an estimate", [said, *_first(result)], charts=charts)
    ]


def shape(result: Calibration, level: str) -> list[Section]:
    """Return quantiles of the draws less those of their law, over the latter."""
    names, found = kinds.draws_shape(result, float(result.settings["level"]), FIRST)
    charts = []
    for j, name in enumerate(names):
        law, off, band = found.law[:, j], found.draws[:, j], found.band[..., j]
        across = Scale(float(law[0]), float(law[-1]))
        reach = 1.1 * max(float(np.abs([off - law, *(band - law)]).max()), 1e-9)
        heights = [0.5 + 0.5 * (curve - law) / reach for curve in (off, *band)]
        path, low = (across.outline(law, height) for height in heights[:2])
        back = across.outline(law[::-1], heights[2][::-1]).replace("M", "L")
        paths = [("band", low + back), ("grey", "M0,0.5H100"), ("after thin", path)]
        charts.append(
            Chart(name, [(f"from -{reach:.2g} to {reach:.2g}", paths)], across.ticks(), 56)
        )
    said = (
        "How far quantiles of the calibrated draws are from those of the distribution of the t "
        "ratio, in standard errors, from its lower to its upper tail; the grey band has 95 % of "
        f"samples of as many effective draws. Off the band, {level} limits by draws and by "
        "standard errors differ: see the check 'shape'."
    )
    return [Section("The shape of the draws", [said, *_first(result)], charts=charts)]


def _first(result: Calibration) -> list[str]:
    many = len(result.shown.names)
    return [f"The first {FIRST} of {many} parameters; plot() shows all."] if many > FIRST else []

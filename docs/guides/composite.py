"""The picture of composite.md: its own blocks make the intervals, the recorded table the coverage.

Run it to write composite.png beside it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

BLUE, ORANGE, GREY, GREEN = "#1f5a94", "#c77d2e", "#7a7a7a", "#3b8a5a"
LINES = {
    "uncalibrated": GREY,
    "open-faced": ORANGE,
    "Shaby's root": GREEN,
    "location-scale, draws": BLUE,
}


def computed(page: Path) -> dict[str, Any]:
    """Return what the page's first two blocks define."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    names: dict[str, Any] = {}
    exec("\n".join(blocks[:2]), names)
    return names


def main(folder: Path = Path(__file__).parent) -> None:
    from matplotlib.figure import Figure

    intervals = computed(folder / "composite.md")["intervals"]["range"]
    table = pd.read_csv(folder / "composite-500.csv").query("parameter == 'log_sill'")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for k, (name, (low, high)) in enumerate(intervals.iterrows()):
        colour = BLUE if name == "location-scale" else GREY
        left.plot([low, high], [-k, -k], color=colour, lw=3, solid_capstyle="butt")
    left.set_yticks([-k for k in range(len(intervals))], intervals.index)
    left.set(xlabel="range of the ozone field, 1,000 km", title="95 % intervals at η = 1")
    right.axhspan(0.935, 0.965, color="#e8eef5")
    for name, colour in LINES.items():
        rows = table[table["method"] == name]
        right.semilogx(rows["eta"], rows["coverage"], "o-", ms=4, color=colour, label=name)
    for name, marker in (("curvature", "^"), ("vertical", "s"), ("magnitude", "D")):
        rows = table[table["method"] == name]
        right.plot(rows["eta"], rows["coverage"], marker, mfc="none", color="black", label=name)
    right.set(
        xlabel="learning rate η", ylim=(0, 1.02), title="coverage of log sill, simulated field"
    )
    right.legend(frameon=False, fontsize=8, loc="lower left")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "composite.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()

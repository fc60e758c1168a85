"""One self-contained HTML page for every report: it loads nothing and is readable on a phone."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from etafree.foundation.arguments import Array
from etafree.foundation.check import Check
from etafree.foundation.terminal import plain
from etafree.report.plots import AFTER, AFTER_ON_DARK, BEFORE

if TYPE_CHECKING:
    import pandas as pd


class Bar(NamedTuple):
    """An interval on a scale: ends and middle in per cent, which ends are cut off, in words."""

    low: float
    mid: float
    high: float
    cut: tuple[bool, bool]
    text: str
    values: tuple[float, float, float]


class Scale(NamedTuple):
    """The range of values that the width of a row stands for."""

    low: float
    high: float

    @classmethod
    def covering(cls, low: float, high: float, pad: float) -> Scale:
        """Return the scale of an interval with a share of its width left and right."""
        room = pad * (high - low)
        return cls(low - room, high + room)

    @classmethod
    def around(cls, kept: Array, cut: Array) -> Scale:
        """Return a scale that shows all of `kept`, and of `cut` what is not far away."""
        low, high = float(kept.min()), float(kept.max())
        room = 1.5 * (high - low)
        least, most = np.clip([cut.min(), cut.max()], [low - room, high], [low, high + room])
        return cls.covering(float(least), float(most), 0.03)

    def at(self, value: Array) -> Array:
        """Return values in per cent of the width."""
        return 100 * (value - self.low) / (self.high - self.low)

    def bar(self, values: Iterable[float], unit: float) -> Bar:
        """Return (lower, middle, upper) on this scale, cut at its edges; see `shown` for unit."""
        low, mid, high = (float(v) for v in values)
        ends = self.at(np.array([low, mid, high]))
        left, middle, right = (round(float(x), 2) for x in ends.clip(0, 100))
        cut, text = (
            (bool(ends[0] < 0), bool(ends[2] > 100)),
            f"{shown(low, unit)} to {shown(high, unit)}",
        )
        return Bar(left, middle, right, cut, text, (low, mid, high))

    def ticks(self) -> list[tuple[float, str]]:
        """Return two to five round values away from the edges, as places and labels."""
        rough = (self.high - self.low) / 4
        power = 10.0 ** np.floor(np.log10(rough))
        step = power * min((1, 2, 5, 10), key=lambda m: abs(np.log(m * power / rough)))
        values = step * np.arange(np.ceil(self.low / step), np.floor(self.high / step) + 1)
        places = zip(self.at(values), values, strict=True)
        return [(round(float(x), 2), shown(v, 10 * step)) for x, v in places if 6 <= x <= 94]

    def stroke(self, low: float, high: float, height: float) -> str:
        """Return the path of a line across, `height` down in a box one tall."""
        left, right = np.clip(self.at(np.array([low, high])), 0, 100)
        return f"M{left:.2f},{height:g}H{right:.2f}"

    def mark(self, values: Array, top: float = 0.0, bottom: float = 1.0) -> str:
        """Return the path of short lines down at values."""
        places = self.at(values)
        return "".join(f"M{x:.2f},{top:g}V{bottom:g}" for x in places if 0 <= x <= 100)

    def outline(self, grid: Array, height: Array) -> str:
        """Return the path of a curve over a grid: per cent across, 1 at the bottom, 0 on top."""
        points = zip(self.at(grid), 1 - height, strict=True)
        return "M" + " ".join(f"{x:.2f},{y:.3f}" for x, y in points)


class Row(NamedTuple):
    """A parameter's intervals before and after on a scale of its own; a note if it has none."""

    name: str
    scale: Scale = Scale(0.0, 1.0)
    before: Bar | None = None
    after: Bar | None = None
    note: str = ""
    outlines: Sequence[str] = ()


class Chart(NamedTuple):
    """Named lines over one scale, each with paths (class, d) in a box 100 wide and 1 tall."""

    name: str
    lines: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    ticks: Sequence[tuple[float, str]] = ()
    height: int = 18


class Section(NamedTuple):
    """A heading with paragraphs (plain text, escaped), and what stands below them.

    `slider` has steps, each with a label, a sentence and the bars of every row, and the number of
    the step to start with; `facts` are terms with their descriptions.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    table: str = ""
    picture: str = ""
    caption: str = ""
    rows: Sequence[Row] = ()
    charts: Sequence[Chart] = ()
    slider: Mapping[str, object] | None = None
    checks: Sequence[Check] = ()
    facts: Sequence[tuple[str, str]] = ()


def shown(value: float, unit: float) -> str:
    """Return a number as text, to a tenth of `unit`, roughly its standard error."""
    if not 1e-6 < unit < 1e9:
        return f"{value:.4g}"
    decimals = max(0, 1 - int(np.floor(np.log10(unit))))
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def between(values: ArrayLike) -> str:
    """Return the range of numbers to three digits, as text."""
    low, high = f"{np.min(values):.3g}", f"{np.max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def picture_data(png: bytes) -> str:
    """Return a picture as a data address that a page can hold."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def table_html(table: pd.DataFrame, digits: int = 3) -> str:
    """Return a table as HTML with escaped names."""
    return table.to_html(float_format=lambda v: f"{v:.{digits}f}", escape=True, border=0)


def render(title: str, lead: str, sections: Sequence[Section], footer: str = "") -> str:
    """Return the page; every text is escaped, control characters are written out."""
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=folder, autoescape=True).get_template("page.html.j2")
    texts = {"title": title, "lead": lead, "footer": footer}
    return plain(
        template.render(**texts, sections=sections, colours=(BEFORE, AFTER, AFTER_ON_DARK))
    )

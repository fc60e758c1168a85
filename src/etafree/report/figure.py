"""Where a plot is drawn: on axes that are given, or on a figure that pyplot shows.

Pyplot knows a figure if a program uses it, or somebody sees a window or a notebook; then
``plt.show()`` and notebooks show it. A script that only saves files keeps its figures to itself.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from etafree.errors import InputError
from etafree.foundation.terminal import plain, shell
from etafree.report.plots import AFTER, AFTER_ON_DARK, BEFORE

#: Points of the letters of names and of a title, and of a legend's line.
SMALL, TITLE, LINE = 9, 10, 18.0
#: Panels beside each other, by how many there are at most.
COLUMNS = {4: 1, 12: 2, 30: 3}
#: Inches that a figure is wide at least.
WIDTH = 7.5
#: Backends of matplotlib that write files only.
FILES = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")
#: More panels than these take minutes.
MOST = 120


class Ink(NamedTuple):
    """Colours that are readable on an axes: of intervals, of text and of lines in the back."""

    before: str
    after: str
    text: Any
    faint: Any


def ink(ax: Axes) -> Ink:
    """Return the colours for an axes, whose labels say whether its ground is dark."""
    text = ax.xaxis.label.get_color()
    light = float(np.dot(colors.to_rgb(text), [0.2126, 0.7152, 0.0722]))
    return Ink(BEFORE, AFTER_ON_DARK if light > 0.5 else AFTER, text, colors.to_rgba(text, 0.35))


def new_figure(size: tuple[float, float]) -> Figure:
    """Return a figure, pyplot's if somebody may see it."""
    if not watched():
        return Figure(figsize=size, layout="constrained")
    import matplotlib.pyplot as plt

    return plt.figure(figsize=size, layout="constrained")


def show_once(figure: Figure) -> None:
    """Let a notebook show a figure once where a cell ends with it.

    It is shown where it stands then, and pyplot, which would show it again at the end of the cell,
    forgets it.
    """
    if shell() is not None:
        vars(figure)["_repr_mimebundle_"] = partial(_forgotten, figure)


def _forgotten(figure: Figure, **_: object) -> dict[str, object]:
    """Return nothing to show besides the picture that IPython makes."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and "inline" in pyplot.get_backend():
        pyplot.close(figure)
    return {}


def watched() -> bool:
    """Return whether pyplot is in use, or a notebook, an interactive Python or a display."""
    if "matplotlib.pyplot" in sys.modules or shell() is not None or hasattr(sys, "ps1"):
        return True
    if os.environ.get("MPLBACKEND", "").lower() in FILES:
        return False
    windows = sys.platform in ("darwin", "win32")
    return windows or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class Panels(NamedTuple):
    """Axes to draw on, and whether their figure was made for them."""

    figure: Figure
    axes: list[Axes]
    own: bool

    @classmethod
    def of(cls, count: int, ax: object, height: float, beside: float = 3.2) -> Panels:
        """Return `count` panels: the axes that are given, or new ones of a height in inches.

        Where there are several columns, each is `beside` inches wide.
        """
        if ax is not None:
            return cls._given(count, ax)
        if count > MOST:
            problem = f"leaves {count} parameters, and a picture has {MOST} panels at most"
            raise InputError("var_names", problem, "name some, or take kind='forest'")
        least = [many for limit, many in COLUMNS.items() if count <= limit]
        across = least[0] if least else 4
        down = math.ceil(count / across)
        figure = new_figure((max(WIDTH, beside * across), 0.35 + height * down))
        axes = list(figure.subplots(down, across, squeeze=False).flat)
        for rest in axes[count:]:
            rest.remove()
        for one in axes if across > 1 else ():
            one.locator_params(axis="x", nbins=5)
        return cls(figure, axes[:count], own=True)

    @classmethod
    def _given(cls, count: int, ax: object) -> Panels:
        axes = list(np.array(ax, dtype=object).flat)
        if not all(isinstance(one, Axes) for one in axes):
            problem = f"is a {type(ax).__name__}"
            raise InputError("ax", problem, "pass an Axes of matplotlib, or an array of them")
        if len(axes) != count:
            problem = f"has {len(axes)} axes for {count} panels"
            raise InputError("ax", problem, f"pass {count}, or choose parameters with var_names=")
        figure = axes[0].figure
        while not isinstance(figure, Figure):  # a part of one
            figure = figure.figure
        return cls(figure, axes, own=False)

    def label(self, x: str, y: str = "") -> None:
        """Say what both axes show: once in a figure of ours, else on each of them."""
        if self.own:
            text = ink(self.axes[0]).text
            self.figure.supxlabel(x, fontsize=SMALL, color=text)
            self.figure.supylabel(y, fontsize=SMALL, color=text)
            return
        for ax in self.axes:
            ax.set_xlabel(x, fontsize=SMALL)
            ax.set_ylabel(y, fontsize=SMALL)

    def finish(
        self, title: str, handles: Sequence[Line2D] = (), note: str = "", names: Sequence[str] = ()
    ) -> Figure:
        """Add a title, a legend and a name over each panel; return the figure.

        Title and legend have a band of their own above the axes. On axes that were given there is
        no title, and the legend stands between the name of the first and its top.
        """
        first, figure = self.axes[0], self.figure
        show_once(figure)
        text, inches = ink(first).text, figure.get_size_inches()
        width, height = 72 * inches
        share = 1.0 if self.own else first.get_position().width
        beside = _beside(handles, share * width)
        room = LINE * math.ceil(len(handles) / beside)
        style: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "labelcolor": text}
        style |= {"handles": list(handles), "borderaxespad": 0.3, "handlelength": 1.8}
        for ax in self.axes:
            ax.spines[["top", "right"]].set_visible(False)
        for k, (ax, name) in enumerate(zip(self.axes, names, strict=bool(names))):
            label = lines(name, max(16, int(1.2 * ax.get_position().width * width / SMALL)))
            pad = 6.0 if self.own or k else 6.0 + room
            ax.set_title(label, loc="left", fontsize=SMALL, parse_math=False, pad=pad, color=text)
        if not self.own:
            if handles:
                first.legend(**style, loc="lower left", bbox_to_anchor=(0, 1), ncols=beside)
            return figure
        said = [
            line
            for part in (title, note)
            for line in textwrap.wrap(plain(part), int(width / (0.53 * TITLE)))
        ]
        top = 5.0 + 1.25 * TITLE * len(said)
        band, tall = top + room, height + top + room
        figure.set_figheight(tall / 72)
        figure.suptitle(
            "\n".join(said), y=1 - 5 / tall, va="top", parse_math=False, fontsize=TITLE, color=text
        ).set_in_layout(False)
        if handles:
            where = (0.5, 1 - top / tall)
            legend = figure.legend(**style, loc="upper center", bbox_to_anchor=where, ncols=beside)
            legend.set_in_layout(False)
        engine = figure.get_layout_engine()
        assert isinstance(engine, ConstrainedLayoutEngine)
        engine.set(rect=(0.005, 0, 0.99, 1 - band / tall))
        return figure


def _beside(handles: Sequence[Line2D], width: float) -> int:
    """Return how many entries of a legend stand beside each other in a width in points."""
    each = [34.0 + 0.56 * SMALL * len(str(handle.get_label())) for handle in handles]
    if sum(each) < width:
        return max(len(each), 1)
    return max(1, int(width / max(each)))


def lines(name: str, width: int, most: int = 3) -> str:
    r"""Return a name in lines of at most this width, cut where there would be too many.

    Examples
    --------
    >>> lines("C(school)[T.north]", 9)
    'C(school)\n[T.north]'
    >>> lines("a" * 12, 4, most=2)
    'aaaa\naaa…'
    """
    parts = textwrap.wrap(plain(name), width) or [""]
    if len(parts) > most:
        parts = [*parts[: most - 1], parts[most - 1][:-1] + "…"]
    return "\n".join(parts)

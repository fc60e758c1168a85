"""What a study leaves behind: a table, a picture and a page, each written whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etafree.storage import made_with, whole_file
from etafree.terminal import say
from etafree.validation import Array

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["coverage", "write_outputs"]


def coverage(low: Array, high: Array, truth: Array) -> tuple[float, float]:
    """Return the share of intervals that hold the truth, and its Monte Carlo error, never zero.

    Examples
    --------
    >>> coverage(np.zeros(4), np.ones(4), np.array([0.5, 0.5, 0.5, 2.0]))[0]
    0.75
    """
    many = len(low)
    share = float(((low <= truth) & (truth <= high)).mean())
    return share, float(np.sqrt(max(share * (1 - share), 0.5 / many) / many))


def write_outputs(
    out: Path | str, name: str, table: pd.DataFrame, picture: Figure,
    page: Callable[[bytes, dict[str, Any]], str], settings: Mapping[str, Any], *,
    digits: str | None = "%.6g", formats: Sequence[str] = ("png",),
) -> None:  # fmt: skip
    """Write ``name.csv``, the picture and ``report.html`` into a folder, and print their names.

    `page` makes the page from the picture as PNG and the settings, which stand in the pictures too
    (as their description), with the versions; ``study.json`` beside the table has them all.
    `digits` is how numbers are written.
    """
    import matplotlib as mpl

    folder, files = Path(out), [f"{name}.csv", *(f"{name}.{kind}" for kind in formats)]
    told = {**settings, "made with": made_with()}
    about = f"{name}: " + ", ".join(f"{key} = {value}" for key, value in told.items())
    with whole_file(folder / files[0]) as file:
        file.write(table.to_csv(index=False, float_format=digits).encode())
    for kind, where in zip(formats, files[1:], strict=True):
        metadata = {"Description": about} | ({"Date": None} if kind == "svg" else {})
        with whole_file(folder / where) as file, mpl.rc_context({"svg.hashsalt": name}):
            picture.savefig(file, format=kind, dpi=110, metadata=metadata)
    with whole_file(folder / "report.html") as file:
        file.write(page((folder / f"{name}.png").read_bytes(), told).encode())
    say("files: " + ", ".join(str(folder / where) for where in (*files, "report.html")))

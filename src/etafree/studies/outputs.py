"""What a study leaves behind: a table, a picture and a page, each written whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from etafree.storage import whole_file
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
    out: Path | str, name: str, table: pd.DataFrame, picture: Figure, page: Callable[[bytes], str],
    *, digits: str | None = "%.6g", formats: Sequence[str] = ("png",),
) -> None:  # fmt: skip
    """Write ``name.csv``, the picture and ``report.html`` into a folder, and print their names.

    `page` makes the page from the picture as PNG; `digits` is how numbers are written.
    """
    folder, files = Path(out), [f"{name}.csv", *(f"{name}.{kind}" for kind in formats)]
    with whole_file(folder / files[0]) as file:
        file.write(table.to_csv(index=False, float_format=digits).encode())
    for kind, where in zip(formats, files[1:], strict=True):
        with whole_file(folder / where) as file:
            picture.savefig(file, format=kind, dpi=110)
    with whole_file(folder / "report.html") as file:
        file.write(page((folder / f"{name}.png").read_bytes()).encode())
    print("files: " + ", ".join(str(folder / where) for where in (*files, "report.html")))

"""R as a peer: a process of its own that gets the data by files and times itself with proc.time."""

from __future__ import annotations

import functools
import math
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Fit", "missing", "versions"]

#: proc.time counts in milliseconds, so that R is called for longer than Python's functions.
LEAST_SECONDS, MOST_CALLS = 0.1, 50
DRIVER = Path(__file__).with_name("driver.R")


@functools.cache
def versions() -> Mapping[str, str]:
    """Return R's packages and their versions, R itself as "base"; empty without R."""
    rscript = shutil.which("Rscript")
    if rscript is None:
        return {}
    code = 'p <- installed.packages()[, "Version"]; cat(paste(names(p), p), sep = "\\n")'
    command = [rscript, "--vanilla", "-e", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in printed.splitlines())


def missing(packages: tuple[str, ...]) -> str:
    """Return what to install; empty if everything is there."""
    absent = [name for name in packages if name not in versions()]
    if not absent:
        return ""
    wanted = " ".join(f"r-cran-{name.lower()}" for name in absent if name not in ("base", "stats"))
    if not versions():
        return f"R not installed: apt install {f'r-base-core {wanted}'.strip()}"
    return f"not installed in R: apt install {wanted}"


class Fit:
    """A fit in a process of R.

    Parameters
    ----------
    code : str
        Loads packages, makes data frames and defines ``fit()``, which returns the numbers; only
        its calls are timed.
    data : mapping of name to array
        Objects that the code finds, as doubles.
    rows : int
        Rows of the array of numbers: 2 for estimates and standard errors.
    """

    def __init__(self, code: str, data: Mapping[str, Any], rows: int = 2) -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            self._write(folder, code, data)
            self.process = subprocess.Popen(
                ["Rscript", "--vanilla", str(DRIVER), place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            weakref.finalize(self, _end, self.process)
            self.seconds = self._seconds()
            flat = np.fromfile(folder / "numbers.bin")
        self.numbers = flat.reshape(rows, -1) if rows > 1 else flat
        wanted = math.ceil(LEAST_SECONDS / max(self.seconds, 1e-3))
        self.calls = min(MOST_CALLS, max(1, wanted))

    @staticmethod
    def _write(folder: Path, code: str, data: Mapping[str, Any]) -> None:
        lines = []
        for name, values in data.items():
            array = np.asarray(values, dtype=float)
            array.ravel(order="F").tofile(folder / f"{name}.bin")
            lines.append(f"{name} {len(array)} {array.shape[1] if array.ndim == 2 else 0}")
        (folder / "arrays.txt").write_text("\n".join(lines) + "\n")
        (folder / "race.R").write_text(code)

    def _seconds(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("R ended; its error is above")
        return float(line)

    def cost(self) -> float:
        """Return the CPU seconds of one call, as R's proc.time counts them."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self.calls}\n")
        self.process.stdin.flush()
        return self._seconds() / self.calls


def _end(process: subprocess.Popen[str]) -> None:
    """End a process by closing what it reads from."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.wait(timeout=30)

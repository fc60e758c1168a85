"""Compare a fit and sandwich of a Parquet file larger than a part with reading the file.

The rows: wall time over that of reading the file once per pass, on all cores both, growth of CPU
time and memory with the number of rows, the CPU time of many small files over that of reading each
once, and what a second Dask worker gains.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import etafree as ef
import etafree.totals.chunked
from benchmarks.timing import REPETITIONS, Row, announce, cpu_seconds, interleaved_ratios

__all__ = ["FORMULA", "run", "write_table"]

GOAL, GOAL_EXPONENT, GOAL_MEMORY, GOAL_WORKERS, GOAL_SMALL = 2.0, (0.95, 1.05), 1.1, 1.75, 3.0
COLUMNS, GROUP = 9, 1 << 20
#: Rows of a file whose time is all fixed cost.
SMALLEST = 1000
FORMULA = "y ~ " + " + ".join(f"x{j}" for j in range(COLUMNS))
LOSS = ef.losses.Huber(1.345)


def write_table(path: Path, n: int, clusters: int) -> None:
    """Write y, nine covariates and labels in no order, a row group of a million rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, writer = np.random.default_rng(4), None
    for first in range(0, n, GROUP):
        rows = min(GROUP, n - first)
        X = rng.standard_normal((COLUMNS, rows))
        columns = {f"x{j}": column for j, column in enumerate(X)}
        columns["y"] = X.sum(axis=0) + rng.standard_t(3, rows)
        table = pa.table({**columns, "g": rng.integers(0, clusters, rows)})
        # no dictionary: only that of a small file would hold all its numbers, and be slow to read
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def fit(path: Path, scheduler: object = None) -> ef.Target:
    """Return the sandwich of a fit, from opening the file on."""
    criterion = ef.Criterion.from_parquet(LOSS, path, FORMULA, clusters="g", scheduler=scheduler)
    return ef.target(criterion, clusters="g", correction="CR1")


def read(path: Path) -> None:
    """Read the file once through pyarrow, a row group at a time, on all cores."""
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    for group in range(file.num_row_groups):
        file.read_row_group(group)


def run(quick: bool) -> list[Row]:
    """Return the ratios to reading, over sizes and over workers."""
    sizes = [20_000, 100_000, 400_000] if quick else [100_000, 1_000_000, 10_000_000]
    with tempfile.TemporaryDirectory(prefix="etafree-streamed-") as folder:
        paths = [Path(folder) / f"{n}.parquet" for n in sizes]
        for n, path in zip(sizes, paths, strict=True):
            write_table(path, n, n // 100)
        announce(f"n = {sizes[-1]}, p = {COLUMNS + 1}, {sizes[-1] // 100} clusters in no order")
        for path in paths[:2]:  # load compiled code
            fit(path)
        passes = _passes(paths[-1])
        announce(f"{passes} passes, the first included")

        def cost() -> float:
            return _seconds(lambda: fit(paths[-1])) / passes

        def cost_of_reading() -> float:
            return _seconds(lambda: read(paths[-1]))

        ratios = interleaved_ratios("streamed", cost, cost_of_reading)
        cpu = cpu_seconds(lambda: fit(paths[-1])) / cpu_seconds(lambda: read(paths[-1])) / passes
        note = f"{passes} passes; a pass over reading all columns once; {cpu:.2g} x in CPU time"
        smallest = Path(folder) / "smallest.parquet"
        write_table(smallest, SMALLEST, SMALLEST // 20)
        growth = _growth(sizes, paths, smallest)
        rows = [Row("streamed fit", GOAL, False, ratios, note=note), growth]
        quarter = Path(folder) / "quarter.parquet"
        write_table(quarter, sizes[-1] // 4, sizes[-1] // 400)
        small = _small_files(Path(folder) / "small", 500 if quick else 2000)
        rows += [_memory(quarter, paths[-1]), small, _workers(paths[-1])]
    return rows


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _passes(path: Path) -> int:
    count, run_pass = 0, etafree.totals.chunked.run_pass

    def counted(*args: object) -> object:
        nonlocal count
        count += 1
        return run_pass(*args)

    modules = (etafree.totals.chunked, etafree.totals.chunked)
    for module in modules:
        module.run_pass = counted
    try:
        fit(path)
    finally:
        for module in modules:
            module.run_pass = run_pass
    return count


def _growth(sizes: list[int], paths: list[Path], smallest: Path) -> Row:
    """Return the exponent of CPU time in the number of rows, a line through three sizes.

    Opening a file and reading a formula cost the same for any size. That cost is what a file of a
    thousand rows takes; it is taken off, and told with the exponent of the times as they are.
    """
    exponents, plain, costs = [], [], []
    for repetition in range(REPETITIONS):
        fixed, *times = [
            min(cpu_seconds(lambda p=path: fit(p)) for _ in range(many))
            for path, many in zip((smallest, *paths), (9, 9, 5, 2), strict=True)
        ]
        exponents.append(_slope(sizes, np.array(times) - fixed))
        plain.append(_slope(sizes, np.array(times)))
        costs.append(fixed)
        shown = ", ".join(f"{t:.3g} s" for t in times)
        announce(
            f"streamed, growth {repetition + 1}/{REPETITIONS}: {shown}, {1e3 * fixed:.0f} ms "
            f"fixed: exponent {exponents[-1]:.3f}, with the fixed cost {plain[-1]:.3f}"
        )
    note = (
        f"CPU time without the fixed {1e3 * np.median(costs):.0f} ms of {SMALLEST} rows; with them "
        f"{np.median(plain):.3f}"
    )
    low, high = GOAL_EXPONENT
    return Row("streamed, exponent of n", high, False, tuple(exponents), "", note, lower=low)


def _slope(sizes: list[int], times: np.ndarray) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def _memory(quarter: Path, whole: Path) -> Row:
    """Return the peak memory of a file over that of a quarter as many rows, in fresh processes."""
    code = (
        "import sys; from pathlib import Path; from benchmarks.streamed import fit; "
        "from benchmarks.sandwich_memory import peak_megabytes; fit(Path(sys.argv[1])); "
        "print(peak_megabytes())"
    )
    peaks = []
    for path in (quarter, whole):
        made = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        peaks.append(float(made.stdout))
    announce(f"streamed, memory: {peaks[0]:.0f} MB for a quarter, {peaks[1]:.0f} MB for all")
    note = f"peak {peaks[1]:.0f} MB of a process, {whole.stat().st_size / 2**20:.0f} MB of data"
    return Row("streamed, memory", GOAL_MEMORY, False, (peaks[1] / peaks[0],), note=note)


def _small_files(folder: Path, many: int) -> Row:
    """Return the cost of a fit of many files of twenty rows over that of reading each once."""
    folder.mkdir()
    for k in range(many):
        write_table(folder / f"{k}.parquet", 20, 20)

    def read_all() -> None:
        for path in folder.iterdir():
            read(path)

    fit(folder)  # load compiled code
    ratios = interleaved_ratios(
        "streamed, small files",
        lambda: cpu_seconds(lambda: fit(folder)),
        lambda: cpu_seconds(read_all),
    )
    note = f"{many} files, CPU time; all passes over reading each file once"
    return Row("streamed, small files", GOAL_SMALL, False, ratios, note=note)


def _workers(path: Path) -> Row:
    """Return how much faster two workers are than one."""

    def cost(workers: int) -> float:
        with _cluster(workers) as client:
            fit(path, client)  # load compiled code
            return min(_seconds(lambda: fit(path, client)) for _ in range(2))

    ratios = interleaved_ratios("streamed, workers", lambda: cost(1), lambda: cost(2))
    note = "one thread each, as Dask starts them; the faster of two fits"
    return Row("streamed, two workers", GOAL_WORKERS, True, ratios, note=note)


@contextlib.contextmanager
def _cluster(workers: int) -> Iterator[object]:
    from distributed import Client, LocalCluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
                host="127.0.0.1",
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client

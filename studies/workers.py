r"""What a table of N rows costs on W workers: measured per row, per task and per byte.

A scheduler in a process of its own counts its messages, their bytes and its CPU time while 1, 2, 4
and 8 workers fit a Parquet file (all passes) and compute its clustered sandwich (one more). From
these numbers follows what larger tables take:

.. math:: T = \mathrm{passes}\times\max\{N c/W,\; K s\} + \text{latency},

with c the CPU time of a row in a pass, K the number of pieces of a pass and s the scheduler's CPU
time for each. A pass gives R bytes for every piece; workers exchange them among themselves, in
:math:`KR/(WB)` seconds over links of B bytes a second, which is less than :math:`Nc/W` as long as
:math:`R < Bc\,N/K`.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import etafree as ef
from etafree.data.sources import BATCH, FAN, MOST_PIECES, PIECE

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Costs", "costs_of", "measure", "scheduler", "workers_markdown"]

ROOT = Path(__file__).parents[1]
COLUMNS, CLUSTERS = 9, 20_000
FORMULA = "y ~ " + " + ".join(f"x{j}" for j in range(COLUMNS))
LOSS = ef.losses.Huber(1.345)
#: Rows of the file, of a part and so of a piece: many small tasks, to see what each costs.
ROWS, PART = 400_000, 1 << 11
WORKERS = (1, 2, 4, 8)
#: Seconds without work in which a cluster's heartbeats are counted.
IDLE = 4.0
#: What the page asks about.
TABLES, CLUSTER_SIZES = (1e9, 1e10, 1e12), (1, 2, 4, 16, 64, 256, 1024)

#: What this process's connections have sent and received: only the scheduler's counts.
TRAFFIC = {"messages": 0, "sent": 0, "received": 0}


async def scheduler() -> None:
    """Run a scheduler that counts its messages and their bytes; print its address."""
    running: Any = import_module("distributed").Scheduler
    tcp: Any = import_module("distributed.comm.tcp")
    write, read, read_bytes = tcp.TCP.write, tcp.TCP.read, tcp.read_bytes_rw

    async def counted_write(self: Any, *args: Any, **options: Any) -> int:
        size: int = await write(self, *args, **options)
        TRAFFIC["messages"] += 1
        TRAFFIC["sent"] += size
        return size

    async def counted_read(self: Any, *args: Any, **options: Any) -> Any:
        message = await read(self, *args, **options)
        TRAFFIC["messages"] += 1
        return message

    async def counted_bytes(stream: Any, size: int) -> Any:
        data = await read_bytes(stream, size)
        TRAFFIC["received"] += size
        return data

    tcp.TCP.write, tcp.TCP.read, tcp.read_bytes_rw = counted_write, counted_read, counted_bytes
    async with running(host="127.0.0.1", port=0, dashboard_address=":0") as head:
        print(head.address, flush=True)
        await head.finished()


def snapshot(dask_scheduler: Any) -> dict[str, float]:
    """Return the counts of this process, its CPU time and the tasks that it has seen finish."""
    done = sum(prefix.state_counts["memory"] for prefix in dask_scheduler.task_prefixes.values())
    return {**TRAFFIC, "cpu": time.process_time(), "tasks": float(done)}


def worker_counts(dask_worker: Any) -> tuple[float, float]:
    """Return the bytes that a worker has sent to others, and its CPU time."""
    return float(dask_worker.transfer_outgoing_bytes_total), time.process_time()


def write_table(path: Path, rows: int, group: int, clusters: int) -> None:
    """Write y, nine covariates and labels in no order, `group` rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, writer = np.random.default_rng(4), None
    for first in range(0, rows, group):
        many = min(group, rows - first)
        X = rng.standard_normal((COLUMNS, many))
        columns = {f"x{j}": column for j, column in enumerate(X)}
        columns["y"] = X.sum(axis=0) + rng.standard_t(3, many)
        table = pa.table({**columns, "g": rng.integers(0, clusters, many)})
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False)
        writer.write_table(table)
    if writer is not None:
        writer.close()


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Give a client of a counting scheduler with so many workers of one thread each."""
    from distributed import Client

    with ExitStack() as stack:

        def process(*command: str, **options: Any) -> subprocess.Popen[str]:
            started = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                text=True,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                **options,
            )
            stack.callback(started.wait)
            stack.callback(started.kill)
            return started

        code = "import asyncio; from studies.workers import scheduler; asyncio.run(scheduler())"
        head = process("-c", code, stdout=subprocess.PIPE)
        assert head.stdout is not None
        address = stack.enter_context(head.stdout).readline().strip()
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
        for _ in range(workers):
            process("-m", "distributed.cli.dask_worker", address, *options)
        client = stack.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(workers, timeout=300)
        yield client


def measure(rows: int = ROWS, workers: tuple[int, ...] = WORKERS) -> pd.DataFrame:
    """Return a row of counts for every number of workers and kind of work."""
    import pandas as pd

    records: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="etafree-workers-") as folder:
        path = Path(folder) / "small.parquet"
        write_table(path, rows, PIECE * PART, CLUSTERS)
        for many in workers:
            with cluster(many) as client:
                records += _counted(client, path, rows, many)
        whole = Path(folder) / "whole.parquet"
        write_table(whole, rows, 1 << 20, CLUSTERS)
        records += _alone(whole, rows)
    return pd.DataFrame(records)


def _counted(client: Any, path: Path, rows: int, many: int) -> list[dict[str, object]]:
    def criterion() -> ef.Criterion:
        return ef.Criterion.from_parquet(
            LOSS, path, FORMULA, clusters="g", batch=PART, scheduler=client
        )

    def state() -> dict[str, float]:
        of_workers = client.run(worker_counts).values()
        sent, cpu = (sum(values) for values in zip(*of_workers, strict=True))
        seen = client.run_on_scheduler(snapshot)
        return {**seen, "between": sent, "work": cpu, "wall": time.perf_counter()}

    def over(work: Callable[[], object]) -> dict[str, float]:
        before = state()
        work()
        after = state()
        return {name: after[name] - before[name] for name in after}

    of_data = criterion()
    target = ef.target(of_data, clusters="g", correction="CR1")  # imports and compiled code

    assert target.dependence is not None
    groups = target.dependence.clusters
    assert groups is not None

    def fit() -> None:
        ef.minimise(criterion())

    def sandwich() -> None:
        of_data.total.cluster_totals(target.center, groups)

    idle = over(lambda: time.sleep(IDLE))
    kinds = {"idle": idle, "fit": over(fit), "sandwich": over(sandwich)}
    return [
        {"work": kind, "workers": many, "rows": rows, **_named(counts)}
        for kind, counts in kinds.items()
    ]


def _named(counts: dict[str, float]) -> dict[str, object]:
    names = {
        "tasks": "tasks",
        "messages": "scheduler_messages",
        "received": "scheduler_bytes_in",
        "sent": "scheduler_bytes_out",
        "cpu": "scheduler_cpu",
        "between": "bytes_between_workers",
        "work": "workers_cpu",
        "wall": "seconds",
    }
    return {
        new: round(counts[old], 3) if old in ("cpu", "work", "wall") else int(counts[old])
        for old, new in names.items()
    }


def _alone(path: Path, rows: int) -> list[dict[str, object]]:
    """Return the CPU time of each pass of a fit and of its sandwich, in parts of default size."""
    chunked: Any = import_module("etafree.totals.chunked")
    times: list[float] = []
    run_pass = chunked.run_pass

    def timed(*args: Any) -> Any:
        start = time.process_time()
        result = run_pass(*args)
        times.append(time.process_time() - start)
        return result

    chunked.run_pass = timed
    try:
        with ef.threads(1):
            for _ in range(2):  # the first loads compiled code
                times.clear()
                criterion = ef.Criterion.from_parquet(LOSS, path, FORMULA, clusters="g")
                ef.target(criterion, clusters="g", correction="CR1")
    finally:
        chunked.run_pass = run_pass
    kinds = ["first pass", *["pass"] * (len(times) - 2), "sandwich pass"]
    return [
        {"work": kind, "workers": 0, "rows": rows, "workers_cpu": round(seconds, 4)}
        for kind, seconds in zip(kinds, times, strict=True)
    ]


class Costs(NamedTuple):
    """What a record says: seconds, bytes and messages for each row, task and worker."""

    first: float  #: CPU seconds of a row in the first pass.
    row: float  #: In another pass of the fit.
    sandwich: float  #: In the pass of the sandwich.
    passes: int  #: After the first, without the sandwich's.
    task: float  #: CPU seconds of the scheduler for a task.
    messages: float  #: Its messages for a task.
    traffic: float  #: Bytes that it sends and receives for a task.
    heartbeats: float  #: The same for each worker in a second without work.


def costs_of(record: pd.DataFrame) -> Costs:
    """Return the costs that a record of `measure` shows: those on most workers."""
    alone = record[record.workers == 0].groupby("work")
    on = record[record.workers == record.workers.max()].set_index("work")
    row = alone.workers_cpu.mean() / alone.rows.mean()
    both = on.scheduler_bytes_in + on.scheduler_bytes_out
    return Costs(
        float(row["first pass"]),
        float(row["pass"]),
        float(row["sandwich pass"]),
        int(alone.size()["pass"]),
        float(on.scheduler_cpu["fit"] / on.tasks["fit"]),
        float(on.scheduler_messages["fit"] / on.tasks["fit"]),
        float(both["fit"] / on.tasks["fit"]),
        float(both["idle"] / on.seconds["idle"] / record.workers.max()),
    )


def pieces_of(rows: float) -> int:
    """Return into how many pieces a table of so many rows is cut."""
    return max(1, math.ceil(rows / max(PIECE * BATCH, rows / MOST_PIECES)))


def tasks_of(pieces: float) -> float:
    """Return the tasks of a pass: one for each piece, and sums of `FAN`, of these, ..."""
    return pieces * (1 + 1 / (FAN - 1))


def seconds_of(costs: Costs, rows: float, workers: int) -> float:
    """Return what a fit and its clustered sandwich take, of a table read in time."""
    pieces = pieces_of(rows)
    at_once = rows / pieces * math.ceil(pieces / workers)  # rows that a worker has in a pass
    works = [costs.first, *[costs.row] * costs.passes, costs.sandwich]
    return sum(max(at_once * each, tasks_of(pieces) * costs.task) for each in works)


def result_limit(costs: Costs, rows: float, bits: float) -> float:
    """Return the bytes of a piece's sums from which links of so many bits a second limit."""
    return bits / 8 * costs.sandwich * rows / pieces_of(rows)


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{_short(seconds / length)} {unit}"
    return f"{_short(seconds)} s"


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"


def workers_markdown(record: pd.DataFrame) -> str:
    """Return the tables of the page that quotes a record."""
    costs, on = costs_of(record), record[record.workers > 0]
    lines = [
        "| workers | tasks of the fit | messages each | kB each | scheduler's CPU, ms each "
        "| heartbeats, kB/s for each worker | between workers in the sandwich, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for many, part in on.groupby("workers"):
        row = part.set_index("work")
        both = row.scheduler_bytes_in + row.scheduler_bytes_out
        tasks, idle = row.tasks["fit"], both["idle"] / row.seconds["idle"] / float(str(many))
        lines.append(
            f"| {many} | {tasks:.0f} | {row.scheduler_messages['fit'] / tasks:.1f} "
            f"| {both['fit'] / tasks / 1e3:.1f} | {1e3 * row.scheduler_cpu['fit'] / tasks:.2f} "
            f"| {idle / 1e3:.1f} | {row.bytes_between_workers['sandwich'] / 1e6:.1f} |"
        )
    lines += [
        "",
        "| | |",
        "|---|---|",
        f"| CPU time of a row: first pass, each of {costs.passes} others, sandwich "
        f"| {1e9 * costs.first:.0f}, {1e9 * costs.row:.0f}, {1e9 * costs.sandwich:.0f} ns |",
        f"| bytes that one worker reads in a second of a pass "
        f"| {8 * (COLUMNS + 1) / costs.row / 1e6:.0f} MB |",
        f"| the scheduler's CPU time for the {tasks_of(pieces_of(1e12)):,.0f} tasks of the largest "
        f"pass | {tasks_of(pieces_of(1e12)) * costs.task:.1f} s |",
        "",
        "| rows | pieces | "
        + " | ".join(f"{many} workers" if many > 1 else "1 worker" for many in CLUSTER_SIZES)
        + " |",
        "|---" * (len(CLUSTER_SIZES) + 2) + "|",
    ]
    for rows in TABLES:
        times = (_duration(seconds_of(costs, rows, many)) for many in CLUSTER_SIZES)
        lines.append(f"| {_power(rows)} | {pieces_of(rows):,} | " + " | ".join(times) + " |")
    lines += [
        "",
        "| rows | sums of a piece at 1 Gbit/s | at 10 Gbit/s | clusters at 10 Gbit/s |",
        "|---|---|---|---|",
    ]
    for rows in TABLES:
        slow, fast = (result_limit(costs, rows, bits) for bits in (1e9, 1e10))
        clusters = fast / (8 * (COLUMNS + 2))
        lines.append(
            f"| {_power(rows)} | {slow / 1e6:,.0f} MB | {fast / 1e6:,.0f} MB | {clusters:.1g} |"
        )
    return "\n".join(lines) + "\n"


def _power(rows: float) -> str:
    return f"$10^{{{math.log10(rows):.0f}}}$"

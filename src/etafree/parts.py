"""Tables that are read in parts, as often as needed: Parquet, Arrow, Dask, or any DataFrames.

A part is a pandas DataFrame or an Arrow batch. `Source.map` hands the parts of every piece of the
table to a function and gives the results in the order of the pieces: here, or on a Dask cluster.
"""

from __future__ import annotations

import importlib
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from etafree.claims import check_claim
from etafree.columns import column_names, unified
from etafree.errors import EtafreeError, InputError, MissingExtraError
from etafree.storage import refuse_special

__all__ = ["BATCH", "Source", "as_source"]

#: Rows of a part: large enough that Python's overhead does not count, small against memory.
BATCH = 1 << 17
#: Rows that show what the columns hold.
FEW = 1 << 10
#: Parts that Arrow reads ahead, and parts that make a piece of a file.
READAHEAD, PIECE = 4, 8
#: Bytes of a number in memory.
NUMBER = 8
#: Seconds that a scheduler has to answer, and how often Dask tries a part whose worker died.
PATIENCE, RETRIES = 10, 3
#: Results that come home together: fewer messages.
TOGETHER = 5

Work = Callable[[int, Iterator[Any]], Any]


class Source(ABC):
    """A table that is read in parts."""

    columns: tuple[str, ...]

    @abstractmethod
    def chunks(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the parts of the table in order, with these columns."""

    def beginning(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield what `chunks` does, some first rows before it if they cost less alone."""
        return self.chunks(columns)

    def map(self, work: Work, columns: Sequence[str]) -> Iterator[Any]:
        """Yield ``work(k, parts)`` for every piece k of the table, in order."""
        yield work(0, self.chunks(columns))


@dataclass(frozen=True, eq=False)
class Frames(Source):
    """DataFrames or Arrow tables, made anew whenever they are asked for."""

    make: Callable[[], Iterable[Any]]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, make: Callable[[], Iterable[Any]]) -> Frames:
        """Return the source with the columns of the first table."""
        tables = make()
        if not isinstance(tables, Iterable):
            raise InputError("data", f"returns a {type(tables).__name__}",
                             "let it return DataFrames or Arrow tables")  # fmt: skip
        for table in tables:
            return cls(make, column_names(table))
        raise InputError("data", "yields nothing", "pass at least one DataFrame")

    def chunks(self, columns: Sequence[str]) -> Iterator[Any]:
        for table in self.make():
            missing = sorted(set(columns) - set(column_names(table)))
            if missing:
                raise InputError("data", f"has a part without the columns {missing}",
                                 "every part must have the same columns")  # fmt: skip
            yield table


@dataclass(frozen=True, eq=False)
class Arrow(Source):
    """A dataset of Arrow's, read by row groups; Arrow reads ahead while a part is worked on."""

    dataset: Any
    batch: int
    client: Any
    columns: tuple[str, ...]
    stamps: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def pieces(self) -> list[Any]:
        """Consecutive row groups of a file that have some parts' rows together."""
        files = self.dataset.get_fragments()
        return [piece for file in files for piece in _row_groups(file, PIECE * self.batch)]

    def chunks(self, columns: Sequence[str]) -> Iterator[Any]:
        self.check_files()
        rest = self.dataset.schema, columns, self.batch
        opened = (_batches(piece, *rest) for piece in self.pieces)
        ahead = next(opened, None)
        while ahead is not None:
            batches, ahead = ahead, None
            for batch in batches:
                yield batch
                ahead = ahead or next(opened, None)  # Arrow reads it while this one is worked on
            ahead = ahead or next(opened, None)
        self.check_files()

    def beginning(self, columns: Sequence[str]) -> Iterator[Any]:
        yield from _first_rows(next(self.dataset.get_fragments(), None), columns)
        yield from self.chunks(columns)

    def map(self, work: Work, columns: Sequence[str]) -> Iterator[Any]:
        if self.client is None:
            yield from super().map(work, columns)
            return
        self.check_files()
        # what all pieces share travels once, as a task's result that a lost worker's heir can redo
        options = {"pure": False, "retries": RETRIES}
        shared = work, self.dataset.schema, tuple(columns), self.batch
        held = self.client.submit(_same, shared, **options)
        yield from _in_order(self.client, self.client.map(
            _on_piece, range(len(self.pieces)), self.pieces, shared=held, **options
        ))  # fmt: skip
        self.check_files()

    def check_files(self) -> None:
        """Refuse local files, Parquet or other, that were touched since the first pass began.

        Their size, node and times of writing and of change: the last cannot be set back.
        """
        for path, piece in {getattr(p, "path", ""): p for p in self.pieces}.items():
            if not path or piece.filesystem.type_name != "local":
                continue
            with _naming(piece):
                found = os.stat(path)
            now = found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
            if self.stamps.setdefault(path, now) != now:
                raise InputError("data", f"{path!r} has changed since the first pass",
                                 "it must not change while it is in use")  # fmt: skip


def _row_groups(file: Any, rows: int) -> Iterator[Any]:
    """Yield parts of a Parquet file with at least so many rows; other tables whole."""
    if not hasattr(file, "row_groups"):
        yield file
        return
    some: list[int] = []
    held = 0
    for group in file.row_groups:
        some.append(group.id)
        held += group.num_rows
        if held >= rows:
            yield file.subset(row_group_ids=some)
            some, held = [], 0
    if some:
        yield file.subset(row_group_ids=some)


def _first_rows(file: Any, columns: Sequence[str]) -> list[Any]:
    """Return a few rows of a Parquet file without decoding its first row group."""
    if not hasattr(file, "row_groups") or not set(columns) <= set(file.physical_schema.names):
        return []
    with _naming(file), file.open() as opened:
        reader = _module("pyarrow.parquet").ParquetFile(
            opened, metadata=file.metadata, buffer_size=1 << 16
        )
        batches = reader.iter_batches(FEW, columns=list(columns), use_threads=False)
        return list(itertools.islice(batches, 1))


def _batches(
    piece: Any, schema: Any, columns: Sequence[str], batch: int, threads: bool = True
) -> Iterator[Any]:
    """Return the batches of a piece, which Arrow starts to decode at once."""
    with _naming(piece):
        found = piece.to_batches(
            schema=schema, columns=list(columns), batch_size=batch, batch_readahead=READAHEAD,
            use_threads=threads,
        )  # fmt: skip

    def batches() -> Iterator[Any]:
        with _naming(piece):
            yield from found

    return batches()


@contextmanager
def _naming(piece: Any) -> Iterator[None]:
    """Turn errors of reading a piece, or a path, into one that names the file."""
    arrow = _module("pyarrow")
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        name = piece if isinstance(piece, str) else str(getattr(piece, "path", "the table"))
        told = " ".join(str(error).split())[:200]
        raise InputError("data", f"{name!r} cannot be read as Parquet ({told})",
                         "write it again") from None  # fmt: skip


def _same(shared: Any) -> Any:
    return shared


def _on_piece(k: int, piece: Any, shared: tuple[Work, Any, Sequence[str], int]) -> Any:
    work, schema, columns, batch = shared
    # one thread: the cluster has other workers for the other cores
    return work(k, _batches(piece, schema, columns, batch, threads=False))


@dataclass(frozen=True, eq=False)
class Dask(Source):
    """A Dask DataFrame, whose partitions are worked on where they are."""

    frame: Any
    client: Any
    columns: tuple[str, ...]

    def chunks(self, columns: Sequence[str]) -> Iterator[Any]:
        for part in self.frame[list(columns)].to_delayed():
            yield part.compute(scheduler="synchronous" if self.client is None else self.client)

    def map(self, work: Work, columns: Sequence[str]) -> Iterator[Any]:
        run = _module("dask").delayed(_on_frame, pure=False)
        parts = self.frame[list(columns)].to_delayed()
        tasks = [run(work, k, part) for k, part in enumerate(parts)]
        if self.client is None:
            yield from (task.compute(scheduler="synchronous") for task in tasks)
        else:
            yield from _in_order(self.client, self.client.compute(tasks, retries=RETRIES))


def _on_frame(work: Work, k: int, frame: Any) -> Any:
    return work(k, iter([frame]))


def _in_order(client: Any, futures: list[Any]) -> Iterator[Any]:
    """Yield results as they are needed; Dask gives the parts of a lost worker to others."""
    distributed = _module("distributed")
    lost = (distributed.scheduler.KilledWorker, distributed.CancelledError,
            distributed.comm.CommClosedError)  # fmt: skip
    try:
        while futures:
            results = client.gather(futures[:TOGETHER])
            del futures[:TOGETHER]  # the workers may forget them
            yield from results
    except lost as error:
        raise EtafreeError(
            f"the cluster lost a part of the data ({type(error).__name__}): is the "
            "scheduler there, and do its workers have memory enough?"
        ) from None
    finally:
        for future in futures:
            future.cancel()


def as_source(data: Any, batch: int = BATCH, scheduler: Any = None) -> Source:
    """Return the source of a Parquet file or folder, an Arrow dataset or table, a Dask DataFrame,
    or of DataFrames: an iterable that can be run through again, or a function that returns one.
    """  # fmt: skip
    home = type(data).__module__.partition(".")[0]
    if isinstance(data, str | os.PathLike):
        found = _parquet(os.fspath(data))
        return Arrow(found, batch, _client(scheduler), column_names(found))
    if home == "pyarrow" and hasattr(data, "schema"):
        found = data if hasattr(data, "get_fragments") else _module("pyarrow.dataset").dataset(data)
        made = Arrow(found, batch, _client(scheduler), column_names(found))
        try:
            next(found.get_fragments(), None)
        except ValueError:
            raise InputError("data", "is a dataset with a filter", "filter rows before") from None
        return made
    if home == "dask" and hasattr(data, "to_delayed") and hasattr(data, "columns"):
        return Dask(data, _client(scheduler, active=True), column_names(data))
    if scheduler is not None:
        raise InputError("scheduler", "is for Parquet files and Dask DataFrames", "leave it out")
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return Frames.of(lambda: [data])
    if callable(data):
        return Frames.of(data)
    if isinstance(data, Iterator) or hasattr(data, "ndim") or not isinstance(data, Iterable):
        raise InputError(
            "data", f"is a {type(data).__name__}, which can be read at most once",
            "pass a function that returns a new iterator of DataFrames whenever it is called",
        )  # fmt: skip
    return Frames.of(lambda: data)


def _parquet(path: str) -> Any:
    """Return the dataset of a file or folder; every file's footer is read, so all are whole."""
    datasets = _module("pyarrow.dataset")
    if not os.path.exists(path):
        raise InputError("data", f"there is no file or folder {path!r}")
    refuse_special(path, "data", inside=True)
    # a row group at a time, not the whole file
    options = datasets.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    parquet = datasets.ParquetFileFormat(default_fragment_scan_options=options)
    with _naming(path):
        dataset = datasets.dataset(path, format=parquet, partitioning="hive")
    files = list(dataset.get_fragments())
    if not files:
        raise InputError("data", f"the folder {path!r} has no Parquet files")
    schema = dataset.schema
    _check_rows(path, files)
    for fragment in files:
        with _naming(fragment):
            fragment.ensure_complete_metadata()
            schema = unified(schema, fragment.physical_schema)  # Arrow takes the first file's
        in_path = datasets.get_partition_keys(fragment.partition_expression)
        missing = sorted(set(dataset.schema.names) - {*fragment.physical_schema.names, *in_path})
        if missing:
            raise InputError("data", f"{str(fragment.path)!r} has no columns {missing}, which "
                             "other files have")  # fmt: skip
    return datasets.FileSystemDataset(files, schema, parquet, dataset.filesystem)


def _check_rows(path: str, files: Sequence[Any]) -> None:
    """Refuse files that claim far more rows than they can tell apart: every pass would read all."""
    rows = size = 0
    for fragment in files:
        with _naming(fragment):
            rows += fragment.count_rows()
            size += os.path.getsize(fragment.path)
    equal = "count rows that are equal, and pass the counts as weights"
    check_claim(path, rows * NUMBER, size, "data", equal)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError("dask", "Parquet files and Dask DataFrames") from None


def _client(scheduler: Any, active: bool = False) -> Any:
    """Return a client of the scheduler, None for none; `active` takes one that is running."""
    if scheduler is None and not active:
        return None
    distributed = _module("distributed")
    if scheduler is None:
        try:
            return distributed.default_client()
        except ValueError:
            return None
    if isinstance(scheduler, distributed.Client):
        return scheduler
    try:
        return distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError("scheduler", f"{scheduler!r} does not answer ({type(error).__name__})",
                         "pass a distributed.Client or an address") from None  # fmt: skip

r"""Tables that are read in parts, as often as needed: Parquet, Arrow, Dask, or any DataFrames.

A part is a pandas DataFrame or an Arrow batch. `Source.map` hands the parts of every piece of the
table to a function and gives the results in the order of the pieces: here, or on a Dask cluster.
`Source.sum` adds them up, `FAN` neighbours at a time, then these sums and so on: on a cluster where
they are, so that one sum of all pieces travels home however many there are.

Several files can be one table. Arrow takes the first file's columns and types for all. Here every
file is asked: a column that a file lacks would be missing in all its rows, and these rows would be
left out without a word.
"""

from __future__ import annotations

import importlib
import itertools
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

from etafree.data.labels import SMALL, Chunk, as_plain, column_names, plain_type, together, unified
from etafree.errors import InputError, MissingExtraError
from etafree.foundation.arguments import as_pandas
from etafree.foundation.machines import PATIENCE, check_workers, connected, in_order
from etafree.foundation.storage import check_claim, refuse_special

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import dataset as ds

#: Rows of a part: large enough that Python's overhead does not count, small against memory.
BATCH = 1 << 17
#: Rows that show what the columns hold.
FEW = 1 << 10
#: Parts that Arrow reads ahead, and parts that make a piece of a file.
READAHEAD, PIECE = 4, 8
#: Pieces that a table has at most, about: a scheduler takes some time for each.
MOST_PIECES = 1 << 12
#: How often Dask tries a part whose worker died.
RETRIES = 3
#: Sums that are added up together.
FAN = 8
#: Bytes of a table in small bits that are kept: to read them costs more than to work on them.
KEPT = 1 << 26

T = TypeVar("T")
Work: TypeAlias = Callable[[int, Iterator[Chunk]], T]
#: What two names of one file have in common: its device and node, or its real path.
_Identity: TypeAlias = tuple[int, int] | str


def module(name: str) -> ModuleType:
    """Import a module of PyArrow or Dask."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError("dask", "Parquet files and Dask DataFrames") from None


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn errors of reading a file into one that names it."""
    try:
        yield
    except FileNotFoundError:
        advice = "it must be under this path on every machine that works on it, while it is in use"
        raise InputError("data", f"there is no file {path!r}", advice) from None
    except (module("pyarrow").ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError("data", f"{path!r} cannot be read ({reason})", "write it again") from None


class File(NamedTuple):
    """One file, or a table in memory, as Arrow's fragment, with the schema of its dataset."""

    fragment: ds.Fragment
    declared: pa.Schema

    @property
    def path(self) -> str:
        """Where it is, nowhere for a table in memory."""
        return str(getattr(self.fragment, "path", ""))

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types of columns as they are stored; one that is not there is refused."""
        stored, folders = self.fragment.physical_schema, self.fragment.partition_expression
        in_path = dict(module("pyarrow.dataset").get_partition_keys(folders))  # as ``town=3/``
        places = {name: stored.get_all_field_indices(name) for name in columns}
        missing = [name for name in columns if not places[name] and name not in in_path]
        twice = [name for name in columns if len(places[name]) > 1]
        if missing or twice:
            named = f"no columns {missing}" if missing else f"several columns named {twice}"
            advice = "every file must have the columns that are used"
            raise InputError("data", f"{self.path!r} has {named}", advice)
        return {
            name: (self.declared.field(name) if name in in_path else stored.field(at[0])).type
            for name, at in places.items()
        }


def files_of(dataset: ds.Dataset) -> list[File]:
    """Return the files of a dataset of Arrow's."""
    try:
        return [File(fragment, dataset.schema) for fragment in dataset.get_fragments()]
    except ValueError:
        raise InputError("data", "is a dataset with a filter", "filter rows before") from None


def schema_of(files: Sequence[File], columns: Sequence[str]) -> pa.Schema:
    """Return a schema in which these columns of all files can be read, text never as numbers."""
    stored: dict[str, dict[pa.DataType, File]] = {name: {} for name in columns}
    for file in files:
        with reading(file.path):
            for name, kind in file.types(columns).items():
                stored[name].setdefault(kind, file)
    types = {name: _common_type(name, kinds) for name, kinds in stored.items() if kinds}
    return module("pyarrow").schema(types)


def _common_type(name: str, kinds: dict[pa.DataType, File]) -> pa.DataType:
    """Return a type for what files store as several; `kinds` has a file for each."""
    schemas = [file.declared for file in kinds.values() if name in file.declared.names]
    for kind in (schema.field(name).type for schema in schemas):
        if kind not in kinds:  # no file's: the caller wants it
            return plain_type(kind, name)
    is_null = module("pyarrow").types.is_null
    common, first = None, ""
    for stored, file in kinds.items():
        if is_null(stored) and len(kinds) > 1:
            continue  # it has no value there
        kind = plain_type(stored, name)
        joint = kind if common is None else unified(common, kind)
        if joint is None:
            problem = f"{file.path!r} has {name!r} as {stored}, and {first!r} as {common}"
            raise InputError("data", problem, "write all files with one type")
        common, first = joint, first or file.path
    return common


def parquet(paths: Sequence[str]) -> list[File]:
    """Return the Parquet files of files and folders; every file's footer is read: all are whole."""
    datasets = module("pyarrow.dataset")
    options = datasets.ParquetFragmentScanOptions(  # a row group at a time, not the whole file
        pre_buffer=False, use_buffered_stream=True, page_checksum_verification=True
    )
    form = datasets.ParquetFileFormat(default_fragment_scan_options=options)
    files: list[File] = []
    for path in paths:
        if not os.path.exists(path):
            raise InputError("data", f"there is no file or folder {path!r}")
        place = os.path.abspath(path)  # other machines have other working directories
        folder = os.path.isdir(place)
        names = _names_in(place) if folder else [place]
        for name in names:
            refuse_special(name, "data")
        if not names:
            raise InputError("data", f"the folder {path!r} has no Parquet files")
        base = {"partition_base_dir": place} if folder else {}
        with reading(names[0]):  # the others are opened below
            files += files_of(datasets.dataset(names, format=form, partitioning="hive", **base))
    rows = size = 0
    known: dict[_Identity, str] = {}
    for file in files:
        path = file.path
        with reading(path):
            file.fragment.ensure_complete_metadata()
            rows += file.fragment.count_rows()
            size += os.path.getsize(path)
        other = known.setdefault(_identity(path), path)
        if other is not path:
            problem = f"has the file {other!r} twice, also as {path!r}"
            raise InputError("data", problem, "name it once")
    # far more rows of eight bytes than the files can tell apart: every pass would read all
    equal = "count rows that are equal, and pass the counts as weights"
    check_claim(str(paths[0]), 8 * rows, size, "data", equal)
    return files


def _names_in(folder: str) -> list[str]:
    """Return the files of a folder and its folders, in order, each real file once.

    As everywhere, names that begin with a dot or an underscore are not looked at. Links are
    followed, in circles never.
    """

    def refuse(error: OSError) -> None:
        with reading(str(error.filename)):
            raise error

    names: list[str] = []
    seen: set[tuple[_Identity, frozenset[tuple[str, str]]]] = set()
    for at, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        with reading(at):
            here = _identity(at), _keys(at, folder)
        if here in seen:
            folders.clear()
            continue
        seen.add(here)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        names += [os.path.join(at, name) for name in files if not name.startswith((".", "_"))]
    real: dict[_Identity, str] = {}
    for name in sorted(names):
        with reading(name):
            known = real.setdefault(_identity(name), name)
        if _keys(os.path.dirname(known), folder) != _keys(os.path.dirname(name), folder):
            problem = f"{known!r} and {name!r} are one file, with different columns in their names"
            raise InputError("data", problem, "keep one of them")
    return list(real.values())


def _keys(folder: str, base: str) -> frozenset[tuple[str, str]]:
    """Return the columns that stand in the names of a folder and of those above it."""
    pairs = (name.partition("=") for name in os.path.relpath(folder, base).split(os.sep))
    return frozenset({key: value for key, sign, value in pairs if sign}.items())


def _identity(path: str) -> _Identity:
    """Return what two names of one file have in common."""
    facts = os.stat(path)
    return (facts.st_dev, facts.st_ino) if facts.st_ino else os.path.realpath(path)


def _checking_pages(fragment: ds.Fragment) -> ds.FragmentScanOptions | None:
    """Return options that verify the checksums of a Parquet file's pages, if it has any."""
    if not hasattr(fragment, "row_groups"):
        return None
    options = fragment.format.default_fragment_scan_options
    encrypted = getattr(options, "parquet_decryption_config", None) is not None  # lost in a copy
    if not options.page_checksum_verification and not encrypted:
        options = copy(options)
        options.page_checksum_verification = True
    return options


@dataclass(frozen=True)
class Sent:
    """A fragment of a file as plain data: nobody opens the file before a worker needs it.

    Arrow's own fragments are opened by whoever unpickles them, the scheduler too, which may not
    have the file.
    """

    path: str
    groups: list[int] | None
    rest: bytes

    @classmethod
    def of(cls, fragment: ds.Fragment) -> Sent:
        """Return what makes the fragment again."""
        path = str(getattr(fragment, "path", ""))
        if not path:
            problem = "is for files and Dask DataFrames, and these data are in memory"
            raise InputError("scheduler", problem, "leave it out")
        if fragment.filesystem.type_name == "local":
            path = os.path.abspath(path)
        groups = [g.id for g in fragment.row_groups] if hasattr(fragment, "row_groups") else None
        home = fragment.format, fragment.filesystem, fragment.partition_expression
        return cls(path, groups, pickle.dumps(home))

    def opened(self) -> ds.Fragment:
        """Return the fragment again."""
        form, filesystem, in_path = pickle.loads(self.rest)
        with reading(self.path):
            file = form.make_fragment(self.path, filesystem, in_path)
            return file if self.groups is None else file.subset(row_group_ids=self.groups)


class Source(ABC):
    """A table that is read in parts."""

    columns: tuple[str, ...]

    @abstractmethod
    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Yield the parts of the table in order, with these columns."""

    def beginning(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Yield what `chunks` does, some first rows before it if they cost less alone."""
        return self.chunks(columns)

    def map(self, work: Work[T], columns: Sequence[str]) -> Iterator[T]:
        """Yield ``work(k, parts)`` for every piece k of the table, in order."""
        yield work(0, self.chunks(columns))

    def sum(self, work: Work[T], columns: Sequence[str]) -> T:
        """Return the sum by ``+=`` of what `map` yields, in the same order wherever it is done."""
        return sum_in_tree(self.map(work, columns))


def sum_in_tree(terms: Iterable[T]) -> T:
    """Return the sum of terms: `FAN` neighbours are added up, then such sums, and so on.

    Examples
    --------
    >>> sum_in_tree([str(k) for k in range(20)])
    '012345678910111213141516171819'
    """
    sums = [added(fan) for fan in _fans(terms)]
    while len(sums) > 1:
        sums = [added(fan) for fan in _fans(sums)]
    return sums[0]


def _fans(terms: Iterable[T]) -> Iterator[list[T]]:
    """Yield the terms, `FAN` neighbours at a time."""
    waiting = iter(terms)
    return iter(lambda: list(itertools.islice(waiting, FAN)), [])


def added(terms: Sequence[T]) -> T:
    """Return the sum of some terms by ``+=``; none of them changes, for others may need them."""
    if len(terms) == 1:
        return terms[0]
    total: Any = deepcopy(terms[0])
    for term in terms[1:]:
        total += term
    return cast("T", total)


def _sum_of_tasks(client: Any, tasks: list[Any]) -> Any:
    """Return what `sum_in_tree` does of tasks' results; workers add up as soon as they can."""
    while len(tasks) > 1:
        options = {"pure": False, "retries": RETRIES, "priority": 1}
        tasks = [client.submit(added, fan, **options) for fan in _fans(tasks)]
    (total,) = in_order(client, tasks)
    return total


def _part(table: object) -> object:
    """Return a table as pandas's, unless it is Arrow's."""
    return table if type(table).__module__.startswith("pyarrow") else as_pandas(table)


@dataclass(frozen=True, eq=False)
class Frames(Source):
    """DataFrames or Arrow tables, made anew whenever they are asked for."""

    make: Callable[[], Iterable[object]]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, make: Callable[[], Iterable[object]]) -> Frames:
        """Return the source with the columns of the first table."""
        tables = make()
        if not isinstance(tables, Iterable):
            raise InputError("data", f"returns a {type(tables).__name__}", "return DataFrames")
        for table in tables:
            return cls(make, column_names(_part(table)))
        raise InputError("data", "yields nothing", "pass at least one DataFrame")

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        for table in map(_part, self.make()):
            missing = sorted(set(columns) - set(column_names(table)))
            if missing:
                problem = f"has a part without the columns {missing}"
                raise InputError("data", problem, "every part must have the same columns")
            yield as_plain(table, columns)


@dataclass(frozen=True, eq=False)
class Arrow(Source):
    """Files or tables of Arrow's, read by row groups; Arrow reads ahead of what is worked on."""

    files: list[File]
    batch: int
    client: object
    columns: tuple[str, ...]
    stamps: dict[str, tuple[int, ...]] = field(default_factory=dict)
    schemas: dict[tuple[str, ...], pa.Schema] = field(default_factory=dict)
    kept: dict[tuple[str, ...], list[Chunk]] = field(default_factory=dict)

    @classmethod
    def of(cls, files: list[File], declared: Sequence[str], batch: int, client: object) -> Arrow:
        """Return the source of files, with all the columns that any of them has."""
        names = [*declared]
        for file in files:
            with reading(file.path):  # names may be damaged too
                names += [*file.declared.names, *file.fragment.physical_schema.names]
        return cls(files, batch, client, tuple(dict.fromkeys(names)))

    @cached_property
    def pieces(self) -> list[list[ds.Fragment]]:
        """Row groups that have some parts' rows together: of one large file, or of small ones."""
        pieces: list[list[ds.Fragment]] = []
        facts = [getattr(file.fragment, "metadata", None) for file in self.files]
        least = sum(fact.num_rows for fact in facts if fact is not None) // MOST_PIECES
        held, last = 0, None
        for file in self.files:
            for fragment, rows in _row_groups(file.fragment, max(PIECE * self.batch, least)):
                # what can be read together
                kind = getattr(fragment, "format", None), getattr(fragment, "filesystem", None)
                if held >= max(self.batch, least) or kind != last:
                    pieces.append([])
                    held, last = 0, kind
                pieces[-1].append(fragment)
                held += rows
        return pieces

    @cached_property
    def crumbs(self) -> bool:
        """Whether the table comes in so many bits that reading takes longer than working."""
        if not all(hasattr(file.fragment, "metadata") for file in self.files):
            return False
        facts = [file.fragment.metadata for file in self.files]
        parts = 1 + sum(fact.num_rows for fact in facts) // self.batch
        return bool(sum(fact.num_row_groups for fact in facts) > SMALL * parts)

    def ready(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema for these columns, after a look at the files: none may have changed."""
        key = tuple(columns)
        if key not in self.schemas:
            self.schemas[key] = schema_of(self.files, key)
        self.check_files()
        return self.schemas[key]

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        schema = self.ready(columns)
        kept = [parts for names, parts in self.kept.items() if set(columns) <= set(names)]
        if kept:
            yield from kept[0]
        else:
            parts = together(self._batches(schema), self.batch)
            yield from self._keeping(parts, columns) if self.crumbs else parts
        self.check_files()

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        opened = (_batches(piece, schema, self.batch) for piece in self.pieces)
        for batches, _ in itertools.pairwise(itertools.chain(opened, [()])):
            yield from batches  # while they are worked on, Arrow reads the next piece

    def _keeping(self, parts: Iterator[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield parts, and keep them for the next pass if they are small."""
        held, size = [], 0
        for part in parts:
            size += part.nbytes
            if size <= KEPT:
                held.append(part)
            yield part
        if size <= KEPT:
            self.kept.clear()
            self.kept[tuple(columns)] = held

    def beginning(self, columns: Sequence[str]) -> Iterator[Chunk]:
        schema = self.ready(columns)
        for file in self.files[:1]:
            yield from _first_rows(file.fragment, columns)
        yield from self._batches(schema)  # as they come: the first few may do

    def map(self, work: Work[T], columns: Sequence[str]) -> Iterator[T]:
        if self.client is None:
            yield from super().map(work, columns)
            return
        with connected(self.client, PATIENCE) as client:
            yield from in_order(client, self._tasks(client, work, columns))
        self.check_files()

    def sum(self, work: Work[T], columns: Sequence[str]) -> T:
        if self.client is None:
            return super().sum(work, columns)
        with connected(self.client, PATIENCE) as client:
            total: T = _sum_of_tasks(client, self._tasks(client, work, columns))
        self.check_files()
        return total

    def _tasks(self, client: Any, work: Work[T], columns: Sequence[str]) -> list[Any]:
        """Return the futures of all pieces' results."""
        shared = work, self.ready(columns), self.batch
        sent = [[Sent.of(fragment) for fragment in piece] for piece in self.pieces]
        # what all pieces share travels once, as a task's result that a lost worker's heir can redo,
        # in bytes that the scheduler hands on as they are
        packed = module("cloudpickle").dumps(shared)
        options = {"pure": False, "retries": RETRIES}
        held = client.submit(pickle.loads, packed, **options)
        tasks: list[Any] = client.map(_on_piece, range(len(sent)), sent, shared=held, **options)
        return tasks

    def check_files(self) -> None:
        """Refuse local files, Parquet or other, that were touched since the first pass began.

        Their size, node and times of writing and of change: the last cannot be set back.
        """
        for file in self.files:
            path = file.path
            if not path or file.fragment.filesystem.type_name != "local":
                continue
            with reading(path):
                facts = os.stat(path)
            now = facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns
            if self.stamps.setdefault(path, now) != now:
                problem = f"{path!r} has changed since the first pass"
                raise InputError("data", problem, "it must not change while it is in use")


def _row_groups(file: ds.Fragment, rows: int) -> Iterator[tuple[ds.Fragment, int]]:
    """Yield parts of a Parquet file with at least so many rows, and these; other tables whole."""
    if not hasattr(file, "row_groups"):
        yield file, rows
        return
    with reading(file.path):
        facts = file.metadata
    groups: list[int] = []
    held = 0
    for group in file.row_groups:  # a caller's fragment may have some only
        groups.append(group.id)
        held += facts.row_group(group.id).num_rows
        if held >= rows:
            yield file.subset(row_group_ids=groups), held
            groups, held = [], 0
    if groups:
        yield file.subset(row_group_ids=groups), held


def _first_rows(file: ds.Fragment, columns: Sequence[str]) -> list[Chunk]:
    """Return a few rows of a Parquet file without decoding its first row group."""
    if not hasattr(file, "row_groups") or not set(columns) <= set(file.physical_schema.names):
        return []
    with reading(file.path), file.open() as opened:
        reader = module("pyarrow.parquet").ParquetFile(
            opened, metadata=file.metadata, buffer_size=1 << 16, page_checksum_verification=True
        )
        batches = reader.iter_batches(FEW, columns=list(columns), use_threads=False)
        return [as_plain(batch, columns) for batch in itertools.islice(batches, 1)]


def _batches(
    piece: Sequence[ds.Fragment], schema: pa.Schema, batch: int, threads: bool = True
) -> Iterator[pa.RecordBatch]:
    """Return the batches of a piece, which Arrow starts to decode at once."""
    first = piece[0]
    options = {
        "columns": schema.names,
        "batch_size": batch,
        "batch_readahead": READAHEAD,
        "use_threads": threads,
        "fragment_scan_options": _checking_pages(first),
    }
    path = str(getattr(first, "path", "the table"))
    with reading(path):
        if len(piece) == 1:
            decoded = first.to_batches(schema=schema, **options)
        else:
            joint = module("pyarrow.dataset").FileSystemDataset
            dataset = joint(list(piece), schema, first.format, first.filesystem)
            decoded = dataset.to_batches(**options)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            with reading(path):
                yield from decoded
        except InputError:
            for fragment in piece if len(piece) > 1 else ():  # which of them is it?
                for _ in _batches([fragment], schema, batch):
                    pass
            raise

    return batches()


def _on_piece(k: int, piece: list[Sent], shared: tuple[Work[T], pa.Schema, int]) -> T:
    work, schema, batch = shared
    fragments = [sent.opened() for sent in piece]
    # one thread: the cluster has other workers for the other cores
    return work(k, together(_batches(fragments, schema, batch, threads=False), batch))


@dataclass(frozen=True, eq=False)
class Dask(Source):
    """A Dask DataFrame, whose partitions are worked on where they are."""

    frame: Any
    client: object
    columns: tuple[str, ...]

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        parts = self.frame[list(columns)].to_delayed()
        if self.client is None:
            yield from (part.compute(scheduler="synchronous") for part in parts)
            return
        with connected(self.client, PATIENCE) as client:
            for part in parts:
                yield from in_order(client, [client.compute(part, retries=RETRIES)])

    def map(self, work: Work[T], columns: Sequence[str]) -> Iterator[T]:
        if self.client is None:
            run = module("dask").delayed(_on_frame, pure=False)
            for k, part in enumerate(self.frame[list(columns)].to_delayed()):
                yield run(work, k, part).compute(scheduler="synchronous")
            return
        with connected(self.client, PATIENCE) as client:
            yield from in_order(client, self._tasks(client, work, columns))

    def sum(self, work: Work[T], columns: Sequence[str]) -> T:
        if self.client is None:
            return super().sum(work, columns)
        with connected(self.client, PATIENCE) as client:
            total: T = _sum_of_tasks(client, self._tasks(client, work, columns))
        return total

    def _tasks(self, client: Any, work: Work[T], columns: Sequence[str]) -> list[Any]:
        """Return the futures of all partitions' results."""
        delayed = module("dask").delayed
        run = delayed(_on_frame, pure=False)
        shared = delayed(pickle.loads, pure=False)(module("cloudpickle").dumps(work))
        parts = self.frame[list(columns)].to_delayed()
        tasks: list[Any] = client.compute(
            [run(shared, k, part) for k, part in enumerate(parts)], retries=RETRIES
        )
        return tasks


def _on_frame(work: Work[T], k: int, frame: Chunk) -> T:
    return work(k, iter([frame]))


def as_source(data: object, batch: int = BATCH, scheduler: object = None) -> Source:
    """Return the source of Parquet files or folders, an Arrow dataset or table, a Dask DataFrame,
    or of DataFrames: an iterable that can be run through again, or a function that returns one.
    """
    home = type(data).__module__.partition(".")[0]
    paths = _paths(data)
    if paths:
        return Arrow.of(parquet(paths), (), batch, _cluster(scheduler))
    if home == "pyarrow" and hasattr(data, "schema"):
        whole = hasattr(data, "get_fragments")
        dataset = data if whole else module("pyarrow.dataset").dataset(data)
        declared = column_names(dataset)
        return Arrow.of(files_of(dataset), declared, batch, _cluster(scheduler))
    if home == "dask" and hasattr(data, "to_delayed") and hasattr(data, "columns"):
        return Dask(data, _cluster(scheduler, active=True), column_names(data))
    data = as_pandas(data)
    if scheduler is not None:
        raise InputError("scheduler", "is for Parquet files and Dask DataFrames", "leave it out")
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return Frames.of(lambda: [data])
    if callable(data):
        return Frames.of(data)
    if isinstance(data, Iterator) or hasattr(data, "ndim") or not isinstance(data, Iterable):
        problem = f"is a {type(data).__name__}, which can be read at most once"
        advice = "pass a function that returns a new iterator of DataFrames whenever it is called"
        raise InputError("data", problem, advice)
    return Frames.of(lambda: data)


def _paths(data: object) -> list[str]:
    """Return the paths that the data are, none for anything else."""
    several = data if isinstance(data, list | tuple) else [data]
    paths = [os.fsdecode(path) for path in several if isinstance(path, str | os.PathLike)]
    return paths if len(paths) == len(several) else []


def _cluster(scheduler: object, active: bool = False) -> object:
    """Return a client, the one that is running if `active`, or an address where someone works."""
    if scheduler is None and active:
        try:
            scheduler = module("distributed").default_client()
        except ValueError:
            return None
    if scheduler is not None:
        with connected(scheduler, PATIENCE) as client:
            check_workers(client)
    return scheduler

"""Files that are one table: which they are, and the types in which their columns are read.

Arrow takes the first file's columns and types for all. Here every file is asked: a column that a
file lacks would be missing in all its rows, and these rows would be left out without a word.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from etafree.claims import check_claim
from etafree.columns import plain_type, unified
from etafree.errors import InputError, MissingExtraError
from etafree.storage import refuse_special

__all__ = ["File", "Sent", "check_pages", "files_of", "module", "parquet", "reading", "schema_of"]

#: Bytes of a number in memory.
NUMBER = 8


def module(name: str) -> Any:
    """Return a module of PyArrow or Dask."""
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
        raise InputError(
            "data",
            f"there is no file {path!r}",
            "it must be under this path on every machine that works on it, while it is in use",
        ) from None
    except (module("pyarrow").ArrowException, OSError) as error:
        told = " ".join(str(error).split())[:200]
        raise InputError("data", f"{path!r} cannot be read ({told})", "write it again") from None


class File(NamedTuple):
    """One file, or a table in memory, as Arrow's fragment, with the schema of its dataset."""

    fragment: Any
    declared: Any

    @property
    def path(self) -> str:
        """Where it is, nowhere for a table in memory."""
        return str(getattr(self.fragment, "path", ""))

    @property
    def columns(self) -> list[str]:
        """Names of the columns, of the dataset and of the file."""
        return [*self.declared.names, *self.fragment.physical_schema.names]

    @property
    def in_path(self) -> dict[str, Any]:
        """Columns that stand in the names of folders, as ``town=3/``."""
        keys = module("pyarrow.dataset").get_partition_keys(self.fragment.partition_expression)
        return dict(keys)

    def types(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return the types of columns as they are stored; one that is not there is refused."""
        stored, in_path = self.fragment.physical_schema, self.in_path
        places = {name: stored.get_all_field_indices(name) for name in columns}
        missing = [name for name in columns if not places[name] and name not in in_path]
        twice = [name for name in columns if len(places[name]) > 1]
        if missing or twice:
            problem = (
                f"has no columns {missing}" if missing else f"has several columns named {twice}"
            )
            raise InputError(
                "data", f"{self.path!r} {problem}", "every file must have the columns that are used"
            )
        return {
            name: (self.declared.field(name) if name in in_path else stored.field(at[0])).type
            for name, at in places.items()
        }


def files_of(dataset: Any) -> list[File]:
    """Return the files of a dataset of Arrow's."""
    return [File(fragment, dataset.schema) for fragment in dataset.get_fragments()]


def schema_of(files: Sequence[File], columns: Sequence[str]) -> Any:
    """Return a schema in which these columns of all files can be read, text never as numbers."""
    stored: dict[str, dict[Any, File]] = {name: {} for name in columns}
    for file in files:
        with reading(file.path):
            for name, kind in file.types(columns).items():
                stored[name].setdefault(kind, file)
    types = {name: _common_type(name, kinds) for name, kinds in stored.items() if kinds}
    return module("pyarrow").schema(types)


def _common_type(name: str, kinds: dict[Any, File]) -> Any:
    """Return a type for what files store as several; `kinds` tells a file for each."""
    schemas = [file.declared for file in kinds.values() if name in file.declared.names]
    for kind in (schema.field(name).type for schema in schemas):
        if kind not in kinds:  # no file's: the caller wants it
            return plain_type(kind, name)
    is_null = module("pyarrow").types.is_null
    common: Any = None
    first = ""
    for stored, file in kinds.items():
        if is_null(stored) and len(kinds) > 1:
            continue  # it has no value there
        kind = plain_type(stored, name)
        joint = kind if common is None else unified(common, kind)
        if joint is None:
            raise InputError(
                "data",
                f"{file.path!r} has {name!r} as {stored}, and {first!r} as {common}",
                "write all files with one type",
            )
        common, first = joint, first or file.path
    return common


def parquet(paths: Sequence[str]) -> list[File]:
    """Return the Parquet files of files and folders; every file's footer is read: all are whole."""
    datasets = module("pyarrow.dataset")
    # a row group at a time, not the whole file
    options = datasets.ParquetFragmentScanOptions(
        pre_buffer=False, use_buffered_stream=True, page_checksum_verification=True
    )
    form = datasets.ParquetFileFormat(default_fragment_scan_options=options)
    found: list[File] = []
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
        where = {"partition_base_dir": place} if folder else {}
        with _naming_first(names, form):
            dataset = datasets.dataset(names, format=form, partitioning="hive", **where)
        found += files_of(dataset)
    rows = size = 0
    for file in found:
        with reading(file.path):
            file.fragment.ensure_complete_metadata()
            rows += file.fragment.count_rows()
            size += os.path.getsize(file.path)
    _refuse_twice(file.path for file in found)
    # far more rows than the files can tell apart: every pass would read all
    equal = "count rows that are equal, and pass the counts as weights"
    check_claim(str(paths[0]), rows * NUMBER, size, "data", equal)
    return found


@contextmanager
def _naming_first(names: Sequence[str], form: Any) -> Iterator[None]:
    """Name the file that cannot be read where Arrow may not."""
    try:
        yield
    except (module("pyarrow").ArrowException, OSError):
        for name in names:
            with reading(name):
                form.inspect(name, module("pyarrow.fs").LocalFileSystem())
        raise


def _names_in(folder: str) -> list[str]:
    """Return the files of a folder and its folders, in order, each real file once.

    As everywhere, names that begin with a dot or an underscore are not looked at. Links are
    followed, in circles never.
    """
    found: dict[Any, str] = {}
    for name in sorted(_walk(folder, folder, set())):
        with reading(name):
            known = found.setdefault(_identity(name), name)
        if _keys(os.path.dirname(known), folder) != _keys(os.path.dirname(name), folder):
            raise InputError(
                "data",
                f"{known!r} and {name!r} are one file, with different columns in their names",
                "keep one of them",
            )
    return list(found.values())


def _walk(folder: str, base: str, seen: set[Any]) -> Iterator[str]:
    with reading(folder):
        here = _identity(folder), _keys(folder, base)
        if here in seen:
            return
        seen.add(here)
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        if entry.name.startswith((".", "_")):
            continue
        with reading(entry.path):
            folder_too = entry.is_dir()
        if folder_too:
            yield from _walk(entry.path, base, seen)
        else:
            yield entry.path


def _keys(folder: str, base: str) -> frozenset[tuple[str, str]]:
    """Return the columns that stand in the names of a folder and of those above it."""
    parts = os.path.relpath(folder, base).split(os.sep)
    pairs = (part.partition("=") for part in parts if "=" in part)
    return frozenset({key: value for key, _, value in pairs}.items())


def _identity(path: str) -> Any:
    """Return what two names of one file have in common."""
    found = os.stat(path)
    return (found.st_dev, found.st_ino) if found.st_ino else os.path.realpath(path)


def _refuse_twice(paths: Iterable[str]) -> None:
    known: dict[Any, str] = {}
    for path in paths:
        other = known.setdefault(_identity(path), path)
        if other is not path:
            raise InputError(
                "data", f"has the file {other!r} twice, also as {path!r}", "name it once"
            )


def check_pages(fragment: Any) -> Any:
    """Return options that verify the checksums of a Parquet file's pages, if it has any."""
    if not hasattr(fragment, "row_groups"):
        return None
    options: Any = fragment.format.default_fragment_scan_options
    if options.page_checksum_verification:
        return options
    if getattr(options, "parquet_decryption_config", None) is not None:
        return options  # which a copy would lose
    mine = copy(options)
    mine.page_checksum_verification = True
    return mine


@dataclass(frozen=True)
class Sent:
    """A fragment of a file as plain data: nobody opens the file before a worker needs it.

    Arrow's own fragments are opened by whoever unpickles them, the scheduler too, which may not
    have the file.
    """

    path: str
    groups: tuple[int, ...] | None
    rest: bytes

    @classmethod
    def of(cls, fragment: Any) -> Sent:
        """Return what makes the fragment again."""
        path = str(getattr(fragment, "path", ""))
        if not path:
            raise InputError(
                "scheduler",
                "is for files and Dask DataFrames, and these data are in memory",
                "leave it out",
            )
        if fragment.filesystem.type_name == "local":
            path = os.path.abspath(path)
        groups = None
        if hasattr(fragment, "row_groups"):
            groups = tuple(group.id for group in fragment.row_groups)
        home = fragment.format, fragment.filesystem, fragment.partition_expression
        return cls(path, groups, pickle.dumps(home))

    def opened(self) -> Any:
        """Return the fragment again."""
        form, filesystem, in_path = pickle.loads(self.rest)
        with reading(self.path):
            file = form.make_fragment(self.path, filesystem, in_path)
            return file if self.groups is None else file.subset(row_group_ids=list(self.groups))

r"""Save and load named arrays with a description, as one file written whole or not at all.

Each array has its SHA-256 digest in the description, and the description has one beside it: a file
that was changed after it was saved is refused by the name of what is not as it was.

Compressed zeros let a file of some kilobytes ask for terabytes. Real draws and data hardly
compress, so what a file claims to hold is bounded by its size; what is small against the machine's
memory passes however dense it is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, AnyStr, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etafree._version import __version__
from etafree.errors import InputError

#: Times its own size that a file may take in memory, and the part of memory that any file may.
DENSEST, SHARE = 100, 16
REWRITE = "if it is what you meant, write it again without compression"
#: Memory that is assumed where the system does not say.
ASSUMED = 1 << 34
#: Characters of one line of a text file: a million columns fit.
LONGEST_LINE = 1 << 27
#: Seconds after which a file that nobody writes to is taken for one of a killed process.
STALE = 3600.0
#: What is under a name that can be opened but is no file to replace, or to read from the start.
SPECIAL: dict[Callable[[int], bool], str] = {
    stat.S_ISFIFO: "a FIFO (named pipe)",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a character device",
    stat.S_ISBLK: "a block device",
}
#: How files of other kinds begin.
SIGNS = {
    b"\x1f\x8b": "compressed with gzip, as R's .rds and .RData files are",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"RDX": "R's .RData",
    b"RDA": "R's .RData",
    b"PK\x03\x04": "a zip archive, as spreadsheets and NumPy's .npz are",
    b"\x89HDF\r\n\x1a\n": "netCDF or HDF5",
    b"CDF": "netCDF in its classic format",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"%PDF": "PDF",
    b"\x80": "a Python pickle",
    b"\x93NUMPY": "a NumPy array",
}
#: Where Linux says how much memory there is, and how much a container may take.
MEMINFO, CONTAINER = "/proc/meminfo", "/sys/fs/cgroup/memory.max"


def amount(size: float) -> str:
    """Return a number of bytes in words.

    Examples
    --------
    >>> amount(39_000), amount(8e10)
    ('39 kB', '80 GB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 999.5 else f"{size:,.0f} TB"


def memory() -> tuple[int, int]:
    """Return the bytes of memory that there are for this process, and those that are free."""
    total = free = ASSUMED
    limits: list[int] = []
    with contextlib.suppress(AttributeError, OSError, ValueError):
        total = free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, LookupError, ValueError):  # Linux only
        lines = Path(MEMINFO).read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
        total, free = sizes["MemTotal"], sizes["MemAvailable"] + sizes["SwapFree"]
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        limits.append(int(Path(CONTAINER).read_text()))
    with contextlib.suppress(ImportError):  # what ulimit leaves to this process
        import resource

        kinds = resource.RLIMIT_AS, resource.RLIMIT_DATA
        bounds = [resource.getrlimit(kind)[0] for kind in kinds]
        limits += [bound for bound in bounds if bound != resource.RLIM_INFINITY]
    return min([total, *limits]), min([free, *limits])


def check_claim(
    path: object, claimed: int, size: int, argument: str, advice: str = REWRITE
) -> None:
    """Refuse a file of `size` bytes that claims to hold far more than it can.

    Examples
    --------
    >>> check_claim("fit.nc", 400_000_000, 4_000_000, "draws")  # compressed a hundred times
    >>> check_claim("fit.nc", 80 * 10**9, 39_000, "draws")
    Traceback (most recent call last):
    etafree.errors.InputError: draws: 'fit.nc' has 39 kB and claims to hold 80 GB; if it is what \
you meant, write it again without compression (see fits)
    """
    if claimed > max(DENSEST * size, memory()[0] // SHARE):
        problem = f"{str(path)!r} has {amount(size)} and claims to hold {amount(claimed)}"
        raise InputError(argument, problem, advice)


def check_room(what: object, needed: int, argument: str, advice: str) -> None:
    """Refuse to read what memory cannot hold even once."""
    free = memory()[1]
    if needed > free:
        problem = f"{what!r} takes {amount(needed)}, and {amount(free)} of memory are free"
        raise InputError(argument, problem, advice)


def kind_of(path: str | os.PathLike[str]) -> str:
    r"""Return what a file is by its first bytes, "" if they are no sign of a kind known here.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "fit.rds"
    >>> _ = path.write_bytes(b"\x1f\x8b\x08")
    >>> kind_of(path)
    "compressed with gzip, as R's .rds and .RData files are"
    """
    try:
        with open(path, "rb") as file:
            first = file.read(max(map(len, SIGNS)))
    except OSError:
        return ""
    return next((kind for sign, kind in SIGNS.items() if first.startswith(sign)), "")


def lines_of(file: IO[AnyStr], path: object, argument: str) -> Iterator[AnyStr]:
    """Yield the lines of a text file; refuse one that no table has, before memory is full."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            problem = f"{str(path)!r} has a line of more than {LONGEST_LINE:,} characters"
            raise InputError(argument, problem, "is it a table?")
        yield line


@functools.cache
def made_with() -> str:
    """Return the versions that numbers depend on, as one line that stands in every output."""
    from importlib.metadata import version

    libraries = [f"{name} {version(name)}" for name in ("numpy", "scipy", "numba")]
    python = f"Python {platform.python_version()}"
    return ", ".join([f"etafree {__version__}", python, *libraries])


def save_arrays(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, object],
    meta: Mapping[str, object],
) -> Path:
    """Write arrays and JSON-able metadata to an ``.npz`` file, whole or not at all."""
    target = writable(path, ".npz")
    members = {name: np.asarray(value) for name, value in arrays.items()}
    about = {"etafree": kind, "made_with": made_with(), "digests": _digests(members), **meta}
    members["__meta__"] = np.array(json.dumps(about, default=str))
    members["__digest__"] = np.array(_digest(members["__meta__"]))
    with whole_file(target) as file:
        np.savez(file, allow_pickle=False, **members)
    return target


def _digest(array: NDArray[np.generic]) -> str:
    """Return the SHA-256 digest of an array's type, shape and entries, whatever their layout."""
    kind = f"{array.dtype.newbyteorder('<').str} {array.shape} "
    entries = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return hashlib.sha256(kind.encode() + entries).hexdigest()


def _digests(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, str]:
    return {name: _digest(array) for name, array in sorted(arrays.items())}


def _refuse_changes(
    arrays: dict[str, NDArray[np.generic]], meta: dict[str, Any], path: str
) -> None:
    """Refuse arrays, or a description, that are not what was saved; take out what is ours."""
    description, signature = arrays.pop("__meta__"), arrays.pop("__digest__", None)
    if signature is None:
        problem = f"{path!r} has no checksum: another version of etafree wrote it"
        raise InputError("path", problem, "save the result again")
    saved, read = meta.pop("digests", {}), _digests(arrays)
    changed = sorted(name for name in {*saved, *read} if saved.get(name) != read.get(name))
    if str(signature) != _digest(description):
        changed.append("the description")
    if changed:
        problem = f"{path!r} was changed after it was saved: {', '.join(changed)}"
        raise InputError("path", problem, "copy it again, or save the result again")


class Place(NamedTuple):
    """Where a file goes: its own path, links followed, a hidden name, and what it replaces."""

    path: Path
    part: Path
    before: os.stat_result | None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name only when it is complete.

    On Linux it has no name until then, so that a process that is killed leaves nothing behind.
    """
    with _replacing(path) as place:
        with contextlib.ExitStack() as stack:
            file = _opened(place.part, stack)
            _resemble(file.fileno(), place.before)
            yield file
            file.flush()
            os.fsync(file.fileno())
            nameless = file.name != str(place.part)
            if nameless:
                _name(file.name, place.path, place.part)
        if not nameless or place.part.exists():
            _replace(place)


@contextlib.contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Give a hidden name to write to: in the end it replaces `path`, or nothing is left of it."""
    with _replacing(path) as place:
        private = 0o666 if place.before is None else 0o600
        os.close(os.open(place.part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, private))
        yield place.part
        _resemble(place.part, place.before)
        _replace(place)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Place]:
    """Find the place of a file; leave nothing behind and say in one line what went wrong."""
    part = None
    try:
        target = Path(os.path.realpath(writable(path)))
        part = target.with_name(f".etafree-{secrets.token_hex(8)}.part")
        before = target.stat() if target.exists() else None
        if before is not None:
            sweep(target.parent)
        yield Place(target, part, before)
    except BaseException as error:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
        if isinstance(error, OSError):
            reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
            problem = f"{str(path)!r} cannot be written ({reason})"
            advice = "free some space or choose another place; nothing was changed"
            raise InputError("path", problem, advice) from None
        raise


def _replace(place: Place) -> None:
    writable(place.path)  # nothing else has taken the name meanwhile
    os.replace(place.part, place.path)


def _resemble(file: int | Path, before: os.stat_result | None) -> None:
    """Give a file the permissions of the one it replaces, and its owner where that is allowed."""
    if before is None or (isinstance(file, int) and os.chmod not in os.supports_fd):
        return
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(file, before.st_uid, before.st_gid)
    os.chmod(file, stat.S_IMODE(before.st_mode))


def reserve(path: Path, size: int) -> None:
    """Ask the disk for room before a library that is loud about a full one writes to `path`."""
    with open(path, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(size, 1))


def sweep(folder: Path) -> None:
    """Remove the hidden files of processes that were killed."""
    for part in folder.glob(".etafree-*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > STALE:
                part.unlink()


def _opened(part: Path, stack: contextlib.ExitStack) -> BinaryIO:
    """Return a file without a name in the folder of `part`, or that file where there are none."""
    try:
        held = os.open(part.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
        stack.callback(os.close, held)
        return stack.enter_context(open(f"/proc/self/fd/{held}", "wb"))
    except (AttributeError, OSError):
        return stack.enter_context(open(part, "xb"))


def _name(nameless: str, path: Path, part: Path) -> None:
    """Give a file the name `path`; if that is in use the name `part`, to replace the other."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.link(nameless, path.name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        os.link(nameless, part.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def refuse_special(path: Any, argument: str, *, inside: bool = False) -> None:
    """Refuse a FIFO, socket or device, or one `inside` a folder: reading it may hang."""
    for at, _, names in os.walk(path) if inside else ():
        for name in names:
            refuse_special(os.path.join(at, name), argument)
    try:
        mode = os.stat(path).st_mode
    except (TypeError, ValueError, OSError):
        return  # what is not there, or no name, is refused by whoever opens it
    for is_kind, kind in SPECIAL.items():
        if is_kind(mode):
            raise InputError(argument, f"{os.fsdecode(path)!r} is {kind}", "name a regular file")


def writable(path: Any, suffix: str = "", argument: str = "path") -> Path:
    """Return where to write, or refuse a path that is not, and cannot become, a regular file."""
    try:
        target = Path(path)
        if target.suffix != suffix and suffix:
            target = target.with_name(target.name + suffix)
        if target.is_dir():
            raise InputError(argument, f"{str(target)!r} is a folder", "name a file")
        folder = Path(os.path.realpath(target)).parent  # of what a link points to
        if not target.parent.is_dir() or not folder.is_dir():
            missing = str(folder if target.parent.is_dir() else target.parent)
            raise InputError(argument, f"the folder {missing!r} does not exist", "make it first")
        refuse_special(target, argument)
        os.stat(target)
    except FileNotFoundError:
        pass
    except InputError:
        raise
    except (TypeError, ValueError, OSError) as error:
        raise InputError(argument, f"{path!r:.80} cannot be written to ({error})") from None
    return target


@contextlib.contextmanager
def damaged(path: object) -> Iterator[None]:
    """Say that a file is damaged where its contents do not fit together."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problem = f"{str(path)!r} is damaged ({error})"
        raise InputError("path", problem, "copy it again, or save it again") from None


def load_arrays(
    path: str | os.PathLike[str], kind: str, known: Callable[[str], bool] | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and metadata of a file that `save_arrays` wrote as this kind.

    Arrays of names that are not `known`, if it is given, are refused unread.
    """
    try:
        path = os.fsdecode(path)
    except TypeError:
        raise InputError("path", f"is a {type(path).__name__}", "pass the path of a file") from None
    if not os.path.exists(path) and os.path.exists(f"{path}.npz"):
        path = f"{path}.npz"  # what save_arrays made of the name
    refuse_special(path, "path")
    try:
        # our own handle: numpy leaves its open when the file is truncated
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            claimed = sum(member.file_size for member in file.zip.infolist())
            check_claim(path, claimed, os.path.getsize(path), "path")
            check_room(path, claimed, "path", "load it on a machine with more memory")
            meta: dict[str, Any] = json.loads(str(file["__meta__"]))
            stored, _ = meta.pop("etafree"), meta.pop("made_with", None)
            if stored != kind:
                problem = f"{path!r} holds a {stored}, not a {kind}"
                raise InputError("path", problem, "use the load() of what was saved")
            _check_names(file.zip.namelist(), path, known)
            arrays = {name: file[name] for name in file.files}
        _refuse_changes(arrays, meta, path)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("path", f"there is no file {path!r}") from None
    except Exception as error:  # zip, zlib, numpy and JSON each have errors of their own
        problem = f"{path!r} is not a file saved by etafree ({type(error).__name__})"
        raise InputError("path", problem, "pass what save() wrote") from None
    return arrays, meta


def _check_names(members: Sequence[str], path: str, known: Callable[[str], bool] | None) -> None:
    """Refuse members of a zip file that are there twice, or that nobody knows."""
    names = [member.removesuffix(".npy") for member in members]
    arrays = set(names) - {"__meta__", "__digest__"}
    odd = {name for name in arrays if known is not None and not known(name)}
    odd |= {name for name, many in Counter(names).items() if many > 1}
    if odd:
        problem = f"{path!r} is not a file saved by etafree: no save has the array {min(odd)!r}"
        raise InputError("path", f"{problem}, or has it twice", "pass what save() wrote")

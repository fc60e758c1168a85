"""Save and load named arrays with a description, as one file written whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from etafree._version import __version__
from etafree.errors import InputError

__all__ = [
    "damaged", "load_arrays", "made_with", "reserve", "save_arrays", "sweep", "whole_file",
    "whole_path",
    "writable",
]  # fmt: skip

#: Seconds after which a file that nobody writes to is taken for one of a killed process.
STALE = 3600.0


@functools.cache
def made_with() -> str:
    """Return the versions that numbers depend on, as one line that stands in every output."""
    from importlib.metadata import version

    libraries = [f"{name} {version(name)}" for name in ("numpy", "scipy", "numba")]
    python = f"Python {platform.python_version()}"
    return ", ".join([f"etafree {__version__}", python, *libraries])


def save_arrays(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Any], meta: Mapping[str, Any]
) -> Path:
    """Write arrays and JSON-able metadata to an ``.npz`` file, whole or not at all."""
    target = writable(path, ".npz")
    text = json.dumps({"etafree": kind, "made_with": made_with(), **meta}, default=str)
    with whole_file(target) as file:
        np.savez(file, allow_pickle=False, __meta__=np.array(text), **arrays)
    return target


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name only when it is complete.

    Where the system has files without a name (Linux), a process that is killed leaves nothing
    behind.
    """
    with whole_path(path) as part, contextlib.ExitStack() as stack:
        file = _opened(part, stack)
        yield file
        file.flush()
        os.fsync(file.fileno())
        if file.name != str(part):
            _name(file.name, path, part)


@contextlib.contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Give a hidden name to write to: in the end it replaces `path`, or nothing is left of it.

    What cannot be written is refused in one line.
    """
    part = path.with_name(f".etafree-{secrets.token_hex(8)}.part")
    try:
        if path.exists():
            sweep(path.parent)
        yield part
        if part.exists():
            os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            told = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
            advice = "make room or name another place; nothing was changed"
            problem = f"{str(path)!r} cannot be written ({told})"
            raise InputError("path", problem, advice) from None
        raise


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


def writable(path: Any, suffix: str = "") -> Path:
    """Return where to write, or refuse a path that nothing can be written to."""
    try:
        target = Path(path)
        if target.suffix != suffix and suffix:
            target = target.with_name(target.name + suffix)
        if target.is_dir():
            raise InputError("path", f"{str(target)!r} is a folder", "name a file")
        if not target.parent.is_dir():
            raise InputError("path", f"the folder {str(target.parent)!r} does not exist",
                             "make it first")  # fmt: skip
        os.stat(target)
    except FileNotFoundError:
        pass
    except InputError:
        raise
    except (TypeError, ValueError, OSError) as error:
        raise InputError("path", f"{path!r:.80} cannot be written to ({error})") from None
    return target


@contextlib.contextmanager
def damaged(path: Any) -> Iterator[None]:
    """Say that a file is damaged where its contents do not fit together."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError("path", f"{str(path)!r} is damaged ({error})",
                         "copy it again, or save it again") from None  # fmt: skip


def load_arrays(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and metadata of a file that `save_arrays` wrote as this kind."""
    try:
        path = os.fsdecode(path)
    except TypeError:
        raise InputError("path", f"is a {type(path).__name__}", "pass the path of a file") from None
    if not os.path.exists(path) and os.path.exists(f"{path}.npz"):
        path = f"{path}.npz"  # what save_arrays made of the name
    try:
        # our own handle: numpy leaves its open when the file is truncated
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta: dict[str, Any] = json.loads(str(arrays.pop("__meta__")))
        found, _ = meta.pop("etafree"), meta.pop("made_with", None)
    except FileNotFoundError:
        raise InputError("path", f"there is no file {path!r}") from None
    except Exception as error:  # zip, zlib, numpy and JSON each have errors of their own
        raise InputError(
            "path", f"{path!r} is not a file saved by etafree ({type(error).__name__})",
            "pass what save() wrote",
        ) from None  # fmt: skip
    if found != kind:
        raise InputError("path", f"{path!r} holds a {found}, not a {kind}",
                         "use the load() of what was saved")  # fmt: skip
    return arrays, meta

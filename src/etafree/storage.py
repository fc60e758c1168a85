"""Save and load named arrays with a description, as one file written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError

__all__ = ["damaged", "load_arrays", "save_arrays", "whole_file"]


def save_arrays(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Any], meta: Mapping[str, Any]
) -> Path:
    """Write arrays and JSON-able metadata to an ``.npz`` file, whole or not at all."""
    target = _target(path)
    text = json.dumps({"etafree": kind, **meta}, default=str)
    with whole_file(target) as file:
        np.savez(file, allow_pickle=False, __meta__=np.array(text), **arrays)
    return target


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name only when it is complete."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)  # there is no other way to read it
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _target(path: Any) -> Path:
    """Return where to write, or refuse a path that nothing can be written to."""
    try:
        target = Path(path)
        if target.suffix != ".npz":
            target = target.with_name(target.name + ".npz")
        if target.is_dir():
            raise InputError("path", f"{str(target)!r} is a folder", "name a file")
        if not target.parent.is_dir():
            raise InputError("path", f"the folder {str(target.parent)!r} does not exist")
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
        raise InputError("path", f"{str(path)!r} is damaged ({error})") from None


def load_arrays(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and metadata of a file that `save_arrays` wrote as this kind."""
    if not os.path.exists(path) and os.path.exists(f"{os.fspath(path)}.npz"):
        path = f"{os.fspath(path)}.npz"  # what save_arrays made of the name
    try:
        # our own handle: numpy leaves its open when the file is truncated
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta: dict[str, Any] = json.loads(str(arrays.pop("__meta__")))
        found = meta.pop("etafree")
    except FileNotFoundError:
        raise InputError("path", f"there is no file {str(path)!r}") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError,
            zipfile.BadZipFile) as error:  # fmt: skip
        raise InputError(
            "path", f"{str(path)!r} is not a file saved by etafree ({type(error).__name__})"
        ) from None
    if found != kind:
        raise InputError("path", f"{str(path)!r} holds a {found}, not a {kind}")
    return arrays, meta

"""Thousands of generated inputs over readers and public functions: ``make fuzz``.

Each input starts from something valid, one thing in it is spoiled, and the library must give a
result or its own error. It must not run code it was given, hang, or leave half a file behind. An
input is known by its target and its number: ``python tests/fuzzing.py npz --first 12 --count 1``.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etafree.errors import EtafreeError

#: CPU seconds of an input before it hangs, as often on the clock, and when the run is given up.
PATIENCE, SLACK, GIVEN_UP = 20, 5, 300
#: Bytes of memory that all inputs together may ask for, and that one may on top of what is there.
MEMORY, ROOM = 16 << 30, 3 << 30
SEED = 8
REPORT = Path(__file__).parents[1] / "build" / "fuzz.json"

#: What hostile text tries to touch.
CANARY = "ETAFREE_CANARY"
RUN_CODE = f"__import__('os').environ.__setitem__('{CANARY}', 'dead')"
#: What none of the inputs may make the process do.
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen")
TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "<script>alert(1)</script>",
    '"><img src=x onerror=x>',
    "</style><b>",
    f"{{{RUN_CODE}}}",
    RUN_CODE,
    "`a`",
    "$\\frac$",
    "$a_{",
    "\\",
    "%s%n",
    "{{7*7}}",
    "ünï 文字 🎲",
    "\u202eabc",
    "e\u0301",
    "\ud800",
    "\r\n",
    "a" * 5000,
    "../../x",
    "nan",
    "-inf",
    "1e400",
    "=1+1",
    "None",
    "__class__",
    "lp__",
    "theta[0]",
    "a, b",
    "#",
    "~",
    "None\n",
    "|" * 99,
    "(" * 200,
)
NUMBERS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    5e-324,
    1e-300,
    1e-12,
    1e12,
    1e154,
    1e300,
    -1e300,
    1.7e308,
    np.nan,
    np.inf,
    -np.inf,
    2**53,
    2**63,
    2**64,
    -(2**63),
    10**400,
    True,
    0,
    3,
    -7,
)
THINGS = (
    None,
    ...,
    b"bytes",
    b"\0",
    (),
    [],
    {},
    set(),
    range(3),
    1j,
    object(),
    int,
    slice(None),
    np.float16(2),
    np.datetime64("NaT", "D"),
    np.timedelta64(1, "D"),
    np.array([]),
    np.array(2.0),
    np.zeros((0, 3)),
    np.zeros((3, 0)),
    np.ones((2, 2, 2)),
    np.array(["a", "b"]),
    np.array([None]),
    np.array([1, "a"], dtype=object),
    np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    np.zeros(2, dtype=[("a", "f8"), ("b", "i4")]),
    np.array([1 + 1j]),
    {"a": 1},
    {"": np.nan},
    [[1.0], [1.0, 2.0]],
    np.full(40, np.nan),
    memoryview(b"abc"),
    frozenset({1}),
    Exception("e"),
)

Target = Callable[[np.random.Generator, Path], Any]


class Hang(BaseException):
    """An input took too long; no handler of errors swallows it."""


class BrokenPromiseError(AssertionError):
    """A result broke a promise: code ran, a name is not escaped, a file is left behind."""


class Finding(NamedTuple):
    """An input that got neither a result nor one of the library's errors."""

    target: str
    number: int
    error: str
    where: str


def pick(rng: np.random.Generator, options: Any) -> Any:
    """Return one of some options as it is."""
    return options[int(rng.integers(len(options)))]


def hostile(rng: np.random.Generator) -> Any:
    """Return something that hardly any argument should be."""
    return pick(rng, pick(rng, (TEXTS, NUMBERS, THINGS)))


def spoiled_array(rng: np.random.Generator, array: Any) -> Any:
    """Return an array with another entry, type, shape or layout."""
    out = np.array(array)
    way = int(rng.integers(9))
    if way <= 3 and out.size:
        kind = float if out.dtype.kind in "biuf" and way < 3 else object
        out = out.astype(kind)
        entry = hostile(rng) if kind is object else pick(rng, NUMBERS[:17])
        out[tuple(int(rng.integers(k)) for k in out.shape)] = entry
        return out
    if way == 4 and out.dtype.kind in "biuf":
        kind = pick(rng, ("f2", "f4", "i1", "u8", "c16", "U", "S", "O", "?", ">f8"))
        with contextlib.suppress(OverflowError, ValueError):
            return out.astype(kind)
    if way == 5:
        return np.resize(out, (*out.shape[:-1], int(rng.integers(4))) if out.ndim else (3,))
    if way == 6:
        return out[: int(rng.integers(len(out) + 1))] if out.ndim else out
    if way == 7 and out.dtype.kind in "biuf":
        return out * float(pick(rng, (0.0, 1e-300, 1e-160, 1e-12, 1e12, 1e160, 1e300)))
    return np.expand_dims(out, int(rng.integers(out.ndim + 1))) if way == 8 else out.T


def spoiled_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Return a file's bytes cut, flipped, overwritten, repeated or with something put in."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at, many = int(rng.integers(len(out) + 1)), int(2 ** rng.uniform(0, 8))
        way = int(rng.integers(7))
        if way == 0:
            del out[at:]
        elif way == 1 and out:
            out[min(at, len(out) - 1)] ^= 1 << int(rng.integers(8))
        elif way == 2:
            out[at : at + many] = pick(rng, (b"\0", b"\xff", b",", b"9")) * many
        elif way == 3:
            out[at : at + many] = rng.bytes(many)
        elif way == 4:
            out[at:at] = out[at : at + many]
        elif way == 5:
            del out[at : at + many]
        else:
            text = pick(rng, TEXTS) if rng.random() < 0.5 else str(pick(rng, NUMBERS[:17]))
            out[at:at] = text.encode("utf-8", "surrogatepass")
    return bytes(out)


def check_page(page: str, names: Any) -> None:
    """Raise unless no hostile name stands unescaped in a page."""
    for name in names:
        if "<" in str(name) and str(name) in page:
            raise BrokenPromiseError(f"the page has {name!r} unescaped")


def check_folder(folder: Path) -> None:
    """Raise if a temporary file is left behind."""
    left = [str(p) for p in folder.rglob("*") if ".part" in p.name or ".etafree-" in p.name]
    if left:
        raise BrokenPromiseError(f"left behind: {left}")


_seen: list[str] = []


def _audit(event: str, arguments: Any) -> None:
    if event in FORBIDDEN:
        _seen.append(f"{event} {arguments!r:.80}")
    risky = ("os", "posix", "subprocess", "builtins")
    plain = ("builtins", "object")  # in numba's cache of what it compiled
    if event == "pickle.find_class" and arguments[0] in risky and tuple(arguments) != plain:
        _seen.append(f"{event} {arguments!r:.80}")


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `Hang` after so many seconds; give up on compiled code that never comes back."""

    def ring(*_: Any) -> None:
        raise Hang(f"took more than {seconds} s")

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, SLACK * seconds),
    )
    before = [signal.signal(number, ring) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit)
    faulthandler.dump_traceback_later(GIVEN_UP, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def memory_limit(room: int) -> Iterator[None]:
    """Let the process have so much more memory than it has; what asks for more gets an error."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/statm")
    if not status.exists():  # no Linux: macOS does not enforce the limit
        yield
        return
    now = int(status.read_text().split()[0]) * resource.getpagesize()
    soft = min(limit for limit in (now + room, *before) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def attempt(name: str, target: Target, number: int, seed: int, folder: Path) -> Finding | str:
    """Return "result" or "refused", or what went wrong with one input."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
    here = folder / f"{number}"
    here.mkdir()
    _seen.clear()
    os.environ[CANARY] = "alive"
    outcome: Finding | str = "result"
    try:
        quiet = io.StringIO()
        with (
            memory_limit(ROOM),
            time_limit(PATIENCE),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            try:
                target(rng, here)
            except EtafreeError as error:
                str(error).encode("utf-8", "backslashreplace")
                outcome = "refused"
        check_folder(here)
        if os.environ[CANARY] != "alive" or _seen:
            raise BrokenPromiseError(f"code was run: {_seen}")
    except (Exception, Hang) as error:
        steps = [s for s in traceback.extract_tb(error.__traceback__) if "etafree" in s.filename]
        where = f"{Path(steps[-1].filename).name}:{steps[-1].lineno}" if steps else "?"
        outcome = Finding(name, number, f"{type(error).__name__}: {error!s:.200}", where)
    shutil.rmtree(here, ignore_errors=True)
    return outcome


def run(
    targets: Mapping[str, tuple[Target, int]],
    seed: int = SEED,
    first: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Try so many inputs of every target; return counts, seconds and findings."""
    platform.processor()  # asks uname once, which is no input's doing
    sys.addaudithook(_audit)
    done: dict[str, Any] = {"seed": seed, "inputs": 0, "targets": {}, "findings": []}
    began = time.monotonic()
    for name, (target, count) in targets.items():
        start = time.process_time()
        with tempfile.TemporaryDirectory(prefix="etafree fuzz ünï ") as folder:
            many = range(first, first + count)
            made = [attempt(name, target, k, seed, Path(folder)) for k in many]
        told = {"inputs": count, "results": made.count("result"), "refused": made.count("refused")}
        bad = [one._asdict() for one in made if isinstance(one, Finding)]
        told |= {"findings": len(bad), "cpu_seconds": round(time.process_time() - start, 1)}
        done["targets"][name] = told
        done["findings"] += bad
        done["inputs"] += count
        say(f"{name}: " + ", ".join(f"{value} {key}" for key, value in told.items()))
    return done | {"seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    """Run the targets named on the command line, all of them by default."""
    from fuzzed import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--count", type=int, help="inputs of each target")
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    chosen = {
        name: (target, asked.count or count)
        for name, (target, count) in TARGETS.items()
        if not asked.names or name in asked.names
    }
    done = run(chosen, asked.seed, asked.first, say=lambda line: print(line, flush=True))
    for found in done["findings"]:
        print("{target} {number}: {error} ({where})".format(**found))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(done, indent=1) + "\n")
    print(
        f"{done['inputs']} inputs, seed {done['seed']}, {done['seconds']} s, "
        f"{len(done['findings'])} findings"
    )
    return 1 if done["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())

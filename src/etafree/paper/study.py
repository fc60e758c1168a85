r"""Run a table of cells here, on processes or on a Dask cluster, saving each as it finishes.

What a study leaves behind is a table, a picture and a page, each written whole.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import joblib
import numpy as np
from numpy.typing import NDArray

from etafree.errors import EtafreeError, InputError
from etafree.foundation import terminal
from etafree.foundation.machines import check_workers, connected, failure, joblib_backend, watched
from etafree.foundation.storage import (
    load_arrays,
    made_with,
    refuse_special,
    save_arrays,
    sweep,
    whole_file,
)

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client
    from matplotlib.figure import Figure
    from rich.progress import Progress

Arrays: TypeAlias = dict[str, NDArray[Any]]
#: A cell's parameters, as JSON gives them back.
Parameters: TypeAlias = Mapping[str, Any]
Work: TypeAlias = Callable[[Parameters, np.random.SeedSequence], Mapping[str, NDArray[np.generic]]]
#: What a worker is sent: the function, the cell's key, its parameters as JSON and the seed.
Task: TypeAlias = tuple[Work, str, str, int]
Outcome: TypeAlias = tuple[str, Arrays | BaseException]

#: How often cells are handed out again after a worker died.
RESTARTS = 2
#: Seconds between lines of progress where there is no terminal.
PAUSE = 5.0


class StudyError(EtafreeError, RuntimeError):
    """A study stopped before its end; the cells that had finished are kept."""


class How(TypedDict, total=False):
    """Where a study runs and what it shows: keywords of `run_study`."""

    workers: int | None
    scheduler: str | None
    progress: bool | None


@dataclass(frozen=True)
class Cell:
    """Name one piece of a study: a key that is safe as a file name, and what it depends on.

    The work is given `parameters` as JSON gives them back: tuples and arrays arrive as lists.

    Examples
    --------
    >>> Cell("eta=1/2", {"eta": 0.5})
    Traceback (most recent call last):
    etafree.errors.InputError: key: is 'eta=1/2'; use up to 200 of A-Z a-z 0-9 . _ = -
    """

    key: str
    parameters: Parameters

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not re.fullmatch(r"[A-Za-z0-9._=-]{1,200}", self.key):
            raise InputError("key", f"is {self.key!r:.80}", "use up to 200 of A-Z a-z 0-9 . _ = -")
        _json("parameters", self.parameters)


def run_study(
    name: str,
    settings: Mapping[str, object],
    cells: Sequence[Cell],
    work: Work,
    out: Path | str,
    *,
    seed: int,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool | None = None,
) -> dict[str, Arrays]:
    """Run every cell that `out` does not hold yet and return the results of all, in order.

    `work` stands at the top of a module, takes a cell's parameters and seed, and returns named
    arrays. The folder `out` has ``study.json`` and a file per cell, written as soon as it finishes;
    one that was made with another name, settings or seed is refused. `workers` are processes, all
    usable processors by default; 1 runs here. `scheduler` is the address of a Dask scheduler to use
    instead: where no worker can run for ten minutes, or for the seconds in the environment variable
    ETAFREE_WORKER_TIMEOUT, the study stops. `progress` is True for a bar and False for silence; by
    default it is a bar on a terminal and lines elsewhere. A `StudyError` says that a cell raised,
    or that workers keep dying.
    """
    facts = _checked(name, settings, cells, work, seed, workers, scheduler)
    folder = Path(out)

    def say(line: str) -> None:
        terminal.say(f"{name}: {line}", error=True)

    quiet = (lambda _: None) if progress is False else say
    begun = _begun(folder, facts)
    results = _finished(folder, cells, facts["seed"], quiet) if begun else {}
    texts = {c.key: _json("parameters", c.parameters) for c in cells if c.key not in results}
    tasks = [(work, key, text, facts["seed"]) for key, text in texts.items()]
    try:
        with contextlib.ExitStack() as stack:
            client = None
            if tasks and scheduler is not None:
                client = stack.enter_context(connected(scheduler))
                check_workers(client, quiet)
            if not begun:
                _begin(folder, facts)
            advance = stack.enter_context(_shown(name, len(cells), len(results), progress, quiet))
            outcomes = stack.enter_context(
                contextlib.closing(_outcomes(tasks, workers, client, quiet))
            )
            for key, outcome in outcomes:
                if isinstance(outcome, BaseException):
                    error = f"{type(outcome).__name__}: {outcome}"
                    raise StudyError(f"cell {key!r} failed ({error})") from outcome
                meta = {"key": key, "parameters": json.loads(texts[key]), "seed": facts["seed"]}
                try:
                    save_arrays(_file(folder, key), "cell", outcome, meta)
                except InputError as error:
                    raise StudyError(error.problem) from error
                results[key] = outcome
                advance()
    except StudyError as error:
        kept = f"{len(results)}/{len(cells)} cells are kept in {str(folder)!r}"
        raise StudyError(f"{error}; {kept} and the same command resumes") from error.__cause__
    except KeyboardInterrupt:
        say(f"stopped: {len(results)}/{len(cells)} cells are saved; the same command resumes")
        raise
    return {cell.key: results[cell.key] for cell in cells}


def _outcomes(
    tasks: Sequence[Task], workers: int | None, client: Client | None, say: Callable[[str], None]
) -> Generator[Outcome]:
    """Yield the outcomes of tasks as they finish; those of workers that died are run again."""
    from concurrent.futures.process import BrokenProcessPool

    died: type[Exception] = BrokenProcessPool
    if client is not None:
        from distributed.scheduler import KilledWorker

        died = KilledWorker
    waiting = {task[1]: task for task in tasks}
    usable = workers or joblib.cpu_count()
    jobs = 1 if usable == 1 or not tasks else max(2, min(usable, len(tasks)))
    for _ in range(RESTARTS + 1):
        try:
            with (
                contextlib.nullcontext() if client is None else watched(client, say),
                _joblib_results(list(waiting.values()), jobs, client) as results,
            ):
                for key, outcome in results:
                    del waiting[key]
                    yield key, outcome
            return
        except died:
            continue
        except Exception as error:
            if client is None:
                raise
            reason = str(error) if isinstance(error, EtafreeError) else failure(error, client)
            raise StudyError(reason or f"{type(error).__name__}: {error}") from error
    raise StudyError(
        f"workers died {RESTARTS + 1} times, cell {next(iter(waiting))!r} among those they ran: "
        "is there memory enough?"
    )


@contextlib.contextmanager
def _joblib_results(
    tasks: Sequence[Task], jobs: int, client: Client | None
) -> Iterator[Generator[Outcome]]:
    """Give the outcomes of tasks on processes of one thread each, or on a cluster."""
    one_thread = {"inner_max_num_threads": 1, "initializer": _start_worker}
    with (
        joblib.parallel_config("loky", **one_thread)
        if client is None
        else joblib.parallel_config(joblib_backend(client))
    ):
        parallel = joblib.Parallel(
            jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="256 + 4 * n_jobs"
        )
    results = parallel(joblib.delayed(run_cell)(*task) for task in tasks)
    try:
        yield results
    finally:
        with warnings.catch_warnings():  # of joblib, about results that nobody waits for
            warnings.simplefilter("ignore")
            results.close()


def _start_worker() -> None:
    """Leave Ctrl-C to the main process, and end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_cell(work: Work, key: str, text: str, seed: int) -> Outcome:
    """Return a cell's key with its arrays, ready to be saved, or with an error to be pickled."""
    from threadpoolctl import threadpool_limits

    try:
        with threadpool_limits(limits=1):  # more threads add in another order
            results = work(json.loads(text), cell_seed(seed, key))
        arrays = {name: np.array(array) for name, array in results.items()}
        for name, array in arrays.items():
            if name in ("file", "allow_pickle") or not name.isidentifier() or array.dtype.hasobject:
                raise TypeError(f"{name!r} of what work returned cannot be saved as an array")
        return key, arrays
    except (Exception, SystemExit) as error:
        error.add_note(traceback.format_exc())  # which does not travel with it
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return key, RuntimeError(f"{type(error).__name__}: {error}")
        return key, error


def cell_seed(seed: int, key: str) -> np.random.SeedSequence:
    """Return the random numbers of a cell, which depend on the seed and its key alone."""
    words = np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype="<u4")
    return np.random.SeedSequence([seed, *words.tolist()])


def _json(argument: str, value: Mapping[str, object]) -> str:
    """Return a mapping as text, the same for equal mappings, or refuse it."""

    def plain(entry: object) -> object:
        if isinstance(entry, np.generic | np.ndarray):
            return entry.tolist()
        raise TypeError(f"{type(entry).__name__} {entry!r:.60}")

    try:
        return json.dumps(dict(value), sort_keys=True, default=plain)
    except (TypeError, ValueError, RecursionError) as error:
        advice = "pass a dictionary of numbers, text, lists and dictionaries"
        raise InputError(argument, f"cannot be written as JSON ({error})", advice) from None


def _checked(
    name: str,
    settings: Mapping[str, object],
    cells: Sequence[Cell],
    work: Work,
    seed: int,
    workers: int | None,
    scheduler: str | None,
) -> dict[str, Any]:
    """Return what makes the study, or refuse what cannot be run."""
    for argument, number in (("seed", seed), ("workers", 1 if workers is None else workers)):
        whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not whole or number < (argument == "workers"):
            raise InputError(argument, f"is {number!r:.80}", "pass a positive whole number")
    if not isinstance(name, str):
        raise InputError("name", f"is {name!r:.80} but must be text")
    address = "tcp://here:1" if scheduler is None else scheduler
    if not isinstance(address, str) or not re.fullmatch(r"(tcp|tls|wss?|ucxx?)://\S+", address):
        raise InputError("scheduler", f"is {address!r:.80}", "pass such as 'tcp://127.0.0.1:8786'")
    repeated = collections.Counter(cell.key.lower() for cell in cells).most_common(1)
    if repeated and repeated[0][1] > 1:  # file names may not tell capitals apart
        raise InputError("cells", f"has {repeated[0][0]!r} twice", "give each cell its own key")
    _check_work(work)
    facts = {"name": name, "settings": json.loads(_json("settings", settings)), "seed": int(seed)}
    return {"etafree": "study", **facts, "made_with": made_with()}


def _check_work(work: Work) -> None:
    """Refuse a function that a worker cannot find by its name."""
    home: object = sys.modules.get(getattr(work, "__module__", None) or "")
    for attribute in getattr(work, "__qualname__", "?").split("."):
        home = getattr(home, attribute, None)
    if home is not work or not callable(work):
        advice = "define it with def at the top of a module and put what varies in the parameters"
        raise InputError("work", f"{work!r:.80} cannot be found by name from a worker", advice)


def _file(folder: Path, key: str) -> Path:
    return folder / "cells" / f"{key}.npz"


def _begun(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether the folder holds this study; refuse one that holds another."""
    path, advice = folder / "study.json", "name another folder"
    if folder.exists() and not folder.is_dir():
        raise InputError("out", f"{str(folder)!r} is not a folder", advice)
    if not path.exists():
        if (folder / "cells").exists():
            raise InputError("out", f"{str(folder)!r} holds 'cells' but no study.json", advice)
        return False
    refuse_special(path, "out")
    try:
        before, now = _entries(json.loads(path.read_text())), _entries(facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError("out", f"{str(path)!r} does not describe a study", advice) from None
    for entry in {**before, **now}:
        old, new = before.get(entry, "absent"), now.get(entry, "absent")
        if old != new:
            problem = f"{entry.partition(' ')[2]} is {new:.60} but was {old:.60} in {str(folder)!r}"
            raise InputError(entry.split()[0], problem, f"{advice}, or pass what it was")
    return True


def _entries(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be the same in two runs of a study, as text."""
    entries = {f"{key} it": facts[key] for key in ("name", "seed")}
    entries |= {f"settings entry {key!r}": value for key, value in facts["settings"].items()}
    return {entry: json.dumps(value, sort_keys=True) for entry, value in entries.items()}


def _begin(folder: Path, facts: Mapping[str, object]) -> None:
    """Make the folder, its description first and whole."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / "study.json") as file:
            file.write((json.dumps(facts, indent=1) + "\n").encode())
        (folder / "cells").mkdir(exist_ok=True)
    except (OSError, InputError) as error:
        raise InputError("out", f"{str(folder)!r} cannot be written to ({error})") from None


def _finished(
    folder: Path, cells: Sequence[Cell], seed: int, say: Callable[[str], None]
) -> dict[str, Arrays]:
    """Return the cells that are there; damaged ones are not, those of other parameters refused."""
    (folder / "cells").mkdir(exist_ok=True)
    sweep(folder / "cells")
    results = {}
    for cell in (cell for cell in cells if _file(folder, cell.key).exists()):
        try:
            arrays, meta = load_arrays(_file(folder, cell.key), "cell")
            parameters = _json("parameters", meta["parameters"])
            if (meta["key"], meta["seed"]) != (cell.key, seed):
                raise KeyError("key")
        except (InputError, KeyError, zlib.error):
            say(f"cell {cell.key!r} is damaged and runs again")
            continue
        if parameters != _json("parameters", cell.parameters):
            problem = f"{cell.key!r} was run with other parameters in {str(folder)!r}"
            raise InputError("cells", problem, "name another folder, or give it another key")
        results[cell.key] = arrays
    return results


@contextlib.contextmanager
def _shown(
    name: str, total: int, before: int, wanted: bool | None, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Give a function that counts a finished cell, in a bar or in a line now and then."""
    start = said = time.monotonic()
    done = before
    bar: Progress | None = None

    def advance() -> None:
        nonlocal done, said
        done += 1
        now = time.monotonic()
        rate = (done - before) / max(now - start, 1e-9)
        speed = f"{rate:.1f}/s" if rate >= 1 else f"{rate:.2g}/s"
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, speed=speed)
        elif now - said >= PAUSE or done == total:
            said = now
            say(f"{done}/{total} cells, {speed}, {(total - done) / rate:.0f} s left")

    if wanted or (wanted is None and sys.stderr.isatty()):
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress

        console = Console(file=sys.stderr, force_terminal=True)
        columns = [*Progress.get_default_columns(), MofNCompleteColumn()]
        with Progress(*columns, "{task.fields[speed]}", console=console) as bar:
            bar.add_task(name, total=total, completed=before, speed="")
            yield advance
    else:
        yield advance


def write_outputs(
    out: Path | str,
    name: str,
    table: pd.DataFrame,
    picture: Figure,
    page: Callable[[bytes, dict[str, object]], str],
    settings: Mapping[str, object],
    *,
    digits: str | None = "%.6g",
    formats: Sequence[str] = ("png",),
) -> None:
    """Write ``name.csv``, the picture and ``report.html`` into a folder, and print their names.

    `page` makes the page from the picture as PNG and the settings, which stand in the pictures too
    (as their description), with the versions; ``study.json`` beside the table has them all.
    `digits` is how numbers are written.
    """
    import matplotlib as mpl

    folder, files = Path(out), [f"{name}.csv", *(f"{name}.{kind}" for kind in formats)]
    settings = {**settings, "made with": made_with()}
    about = f"{name}: " + ", ".join(f"{key} = {value}" for key, value in settings.items())
    with whole_file(folder / files[0]) as file:
        file.write(table.to_csv(index=False, float_format=digits).encode())
    for kind, where in zip(formats, files[1:], strict=True):
        metadata = {"Description": about} | ({"Date": None} if kind == "svg" else {})
        with whole_file(folder / where) as file, mpl.rc_context({"svg.hashsalt": name}):
            picture.savefig(file, format=kind, dpi=110, metadata=metadata)
    with whole_file(folder / "report.html") as file:
        file.write(page((folder / f"{name}.png").read_bytes(), settings).encode())
    terminal.say("files: " + ", ".join(str(folder / where) for where in (*files, "report.html")))

"""What `fuzzing` feeds: the readers of files, formulas, names and paths, and public functions."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import etafree as ef
import hostile as places
from etafree import losses
from etafree.cli.commands import calibrate_files, select_file
from etafree.cli.csv_table import CsvTable
from etafree.data.formula import CALLS, KEYWORDS, screened
from etafree.errors import EtafreeError
from etafree.fits.stan import read_stan_csv
from etafree.fits.trees import read_tree, write_netcdf
from etafree.foundation.storage import save_arrays
from etafree.paper.study import Cell, run_study
from fuzzed_calls import call_a_function, call_a_result
from fuzzing import (
    NUMBERS,
    RUN_CODE,
    TEXTS,
    BrokenPromiseError,
    check_page,
    hostile,
    pick,
    spoiled_array,
    spoiled_bytes,
)

N = 30
COLUMNS = [text for text in TEXTS if "\ud800" not in text]  # pandas has no half characters
LOSSES = (losses.Squared(), losses.Huber(), losses.StudentT(), losses.Quantile(0.5, 0.5))


@cache
def frame() -> pd.DataFrame:
    """A table with a response, numbers, labels and holes."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(N)
    return pd.DataFrame(
        {
            "y": x + rng.standard_normal(N),
            "x": x,
            "z": rng.standard_normal(N),
            "g": [f"g{k % 10}" for k in range(N)],
            "w": rng.uniform(1, 2, N),
        }
    )


def used(criterion: ef.Criterion, clusters: Any = None) -> None:
    """Do with a criterion what its reader wanted."""
    ef.minimise(criterion)
    ef.target(criterion, clusters=clusters)


# --- tables -------------------------------------------------------------------------------------


def csv(rng: np.random.Generator, folder: Path) -> None:
    path = folder / "data ü.csv"
    table = frame().rename(columns={"z": pick(rng, COLUMNS)}) if rng.random() < 0.3 else frame()
    text = table.to_csv(index=False).encode("utf-8", "surrogatepass")
    path.write_bytes(spoiled_bytes(rng, text))
    read = CsvTable.read(path, "data")
    formula = screened(pick(rng, ("y ~ x", "y ~ x + C(g)", "y ~ log(w) + z")), read.names)
    criterion = ef.Criterion.from_formula(formula, read.frame(formula), pick(rng, LOSSES))
    used(criterion, read.labels("g", "clusters", criterion.rows.kept))


def spoiled_frame(rng: np.random.Generator) -> pd.DataFrame:
    """Return the table with a column of another kind, or another name."""
    table = frame().copy()
    column = pick(rng, list(table))
    way = int(rng.integers(5))
    if way == 0:
        return table.rename(columns={column: pick(rng, COLUMNS)})
    if way == 1:
        return table.drop(columns=column)
    if way == 2:
        table[column] = [hostile(rng) if rng.random() < 0.1 else v for v in table[column]]
    elif way == 3:
        table[column] = table[column].astype(pick(rng, ("category", "string", "object")))
    else:
        kinds: Any = (
            pd.date_range("2020", periods=N),
            np.arange(N) % 2 == 0,
            pd.array([None] * N, "Int64"),
            np.full(N, 1e300),
            np.arange(N, dtype="u8"),
            [[1.0]] * N,
            [{"a": 1}] * N,
            np.zeros(N),
            np.full(N, 10**30, dtype=object),
            ["<script>"] * N,
            np.arange(N) * 1j,
            [b"a"] * N,
        )
        table[column] = pick(rng, kinds)
    return table


def formula_frame(rng: np.random.Generator, folder: Path) -> None:
    table = spoiled_frame(rng)
    options = {"weights": "w", "weight_kind": "sampling"} if rng.random() < 0.5 else {}
    formula = pick(rng, ("y ~ x", "y ~ x + C(g)", "y ~ x + g + np.log(w)", "y ~ bs(x, df=4)"))
    used(ef.Criterion.from_formula(formula, table, pick(rng, LOSSES), **options), "g")


def parquet(rng: np.random.Generator, folder: Path) -> None:
    path = folder / "parts ü.parquet"
    if rng.random() < 0.6:
        held = io.BytesIO()
        frame().to_parquet(held, row_group_size=7)
        path.write_bytes(spoiled_bytes(rng, held.getvalue()))
    else:
        try:
            spoiled_frame(rng).to_parquet(path)
        except Exception:  # Arrow has no such type: no file to read
            return
    options = {"weights": "w", "weight_kind": "sampling"} if rng.random() < 0.3 else {}
    formula = pick(rng, ("y ~ x", "y ~ x + C(g)", "y ~ x + np.log(w)"))
    made = ef.Criterion.from_parquet(pick(rng, LOSSES), path, formula, clusters="g", **options)
    used(made, "g")


def parts(rng: np.random.Generator, folder: Path) -> None:
    import pyarrow as pa

    table = spoiled_frame(rng)
    some: list[Any] = [frame()[:12], table[12:20], table[20:]]
    if rng.random() < 0.4:
        try:
            some = [pa.Table.from_pandas(part) for part in some]
        except Exception:  # Arrow has no such type
            return
    if rng.random() < 0.2:
        some[int(rng.integers(3))] = hostile(rng)
    data: Any = some if rng.random() < 0.8 else hostile(rng)
    made = ef.Criterion.from_parts(pick(rng, LOSSES), data, "y ~ x", clusters="g")
    used(made, "g")


# --- formulas -----------------------------------------------------------------------------------

WORDS = (
    *sorted(CALLS),
    *sorted(KEYWORDS),
    "y",
    "x",
    "z",
    "g",
    "`a b`",
    "`x`",
    "~",
    "~",
    "+",
    "+",
    "-",
    "*",
    ":",
    "/",
    "**",
    "^",
    "(",
    ")",
    "(",
    ")",
    ",",
    "=",
    "|",
    ".",
    "0",
    "1",
    "2",
    "1e3",
    "99",
    "'a'",
    '"b"',
    "%in%",
    "[",
    "]",
    "{",
    "}",
    "lambda",
    "__class__",
    "x.__class__",
    "y.values",
    "np",
    "np.os",
    "os",
    "open('x')",
    "eval",
    "exec",
    "getattr",
    "\n",
    "\t",
    ";",
    "@",
    "#",
    "\\",
    ":=",
    "if",
    "for",
    "x.T",
    f"{{{RUN_CODE}}}",
    f"I({RUN_CODE})",
    f"`{RUN_CODE}`",
    f"C(g, {RUN_CODE})",
    "C(g, levels=['a'])",
)
TERMS = (
    "x",
    "z",
    "w",
    "C(g)",
    "1",
    "0",
    "`a b`",
    "log(w)",
    "np.sqrt(w)",
    "I(x**2)",
    "bs(x, df=4)",
    "poly(x, degree=2)",
    "center(x)",
    "scale(z)",
    "x:z",
    "(x + z)**2",
    "C(g, Sum)",
    "lag(x)",
    "g",
    "C(g, Treatment(reference='g1'))",
    "standardize(z)",
    "cr(x, df=3)",
    "np",
    "exp(x)",
)


def formula(rng: np.random.Generator, folder: Path) -> None:
    words = [pick(rng, WORDS) for _ in range(int(rng.integers(1, 9)))]
    if rng.random() < 0.7:  # a formula with at most one word that does not belong
        words = ["y", "~", pick(rng, TERMS)]
        for _ in range(int(rng.integers(4))):
            words += [pick(rng, "++-*:"), pick(rng, TERMS)]
        if rng.random() < 0.7:
            words[int(rng.integers(len(words)))] = pick(rng, WORDS)
    text = pick(rng, ("", " ")).join(words)
    if rng.random() < 0.2:
        text = spoiled_bytes(rng, text.encode()).decode("utf-8", "replace")
    table = frame().assign(**{RUN_CODE: frame()["x"], "a b": frame()["z"], "np": frame()["z"]})
    passed = screened(text, table.columns)
    used(ef.Criterion.from_formula(passed, table, losses.Squared()))


def select(rng: np.random.Generator, folder: Path) -> None:
    path = folder / "data ü.csv"
    frame().to_csv(path, index=False)
    options: dict[str, Any] = {"formula": "y ~ x", "loss": "huber", "clusters": "g", "seed": 1}
    options |= {"level": 0.95, "bandwidth": None, "prior_sd": None}
    key = pick(rng, sorted(options))  # the command line gives numbers where numbers belong
    options[key] = pick(rng, TEXTS[5:] if isinstance(options[key], str) else NUMBERS[:17])
    if options[key] in (1.0, 3):
        options[key] = -1
    select_file(path, **options)


# --- stored fits --------------------------------------------------------------------------------


@cache
def stored(kind: str) -> bytes:
    """A small fit with its log-likelihood as the bytes of a file."""
    rng = np.random.default_rng(2)
    X, y = np.column_stack([np.ones(12), np.arange(12) % 2]), rng.standard_normal(12)
    precision = np.linalg.inv(X.T @ X)
    theta = rng.multivariate_normal(precision @ X.T @ y, precision, size=(2, 40))
    likelihood = -0.5 * (y - theta @ X.T) ** 2
    if kind == "stan":
        names = ["lp__", "b.1", "b.2", *(f"log_lik.{k + 1}" for k in range(12))]
        rows = np.column_stack([np.zeros(40), theta[0], likelihood[0]])
        lines = "\n".join(",".join(f"{v:.6g}" for v in row) for row in rows)
        return f"# method = sample\n# num_samples = 40\n{','.join(names)}\n{lines}\n".encode()
    import xarray as xr

    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {"b": (("chain", "draw", "k"), theta)}, {"k": ["<script>", "ü"]}
            ),
            "log_likelihood": xr.Dataset({"y": (("chain", "draw", "i"), likelihood)}),
        }
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return write_netcdf(tree, Path(folder) / "fit.nc").read_bytes()


def calibrated(source: Any, rng: np.random.Generator, folder: Path) -> None:
    made = ef.calibrate(ef.from_arviz(source, latent=None), correction="HC0")
    if rng.random() < 0.1:
        page = made.report(folder / "page ü.html").read_text()
        check_page(page, made.names)


def stan_csv(rng: np.random.Generator, folder: Path) -> None:
    path = folder / "chain ü.csv"
    text = stored("stan")
    if rng.random() < 0.3:
        text = text.replace(b"b.1", pick(rng, TEXTS).encode("utf-8", "surrogatepass"))
    path.write_bytes(spoiled_bytes(rng, text) if rng.random() < 0.8 else text)
    calibrated(read_stan_csv([path]), rng, folder)


def netcdf(rng: np.random.Generator, folder: Path) -> None:
    path = folder / "fit ü.nc"
    path.write_bytes(spoiled_bytes(rng, stored("netcdf")))
    with read_tree(path) as tree:
        calibrated(tree, rng, folder)


def zarr(rng: np.random.Generator, folder: Path) -> None:
    whole = folder / "whole.nc"
    whole.write_bytes(stored("netcdf"))
    with read_tree(whole) as tree:
        tree.to_zarr(folder / "fit ü.zarr")
    files = sorted(p for p in (folder / "fit ü.zarr").rglob("*") if p.is_file())
    for _ in range(2):
        path = pick(rng, files)
        path.write_bytes(spoiled_bytes(rng, path.read_bytes()))
    with read_tree(folder / "fit ü.zarr") as tree:
        calibrated(tree, rng, folder)


def command(rng: np.random.Generator, folder: Path) -> None:
    """The whole of ``etafree calibrate``: refused, or both files are written whole."""
    fit, out, page = folder / "fit ü.nc", folder / "out ü.nc", folder / "page ü.html"
    fit.write_bytes(stored("netcdf"))
    data = folder / "data ü.csv"
    data.write_text("g,t\n" + "\n".join(f"g{k},{k}" for k in range(12)))
    options: dict[str, Any] = {"clusters": [f"{data}:g"], "var": ["b"], "correction": "CR1"}
    options |= {"level": 0.9, "eta": 1.0, "log_likelihood": ["y"], "strata": None, "time": None}
    key = pick(rng, sorted(options))
    value = pick(rng, TEXTS)
    value = f"{data}:{value}" if rng.random() < 0.2 else value
    if rng.random() < 0.2:
        del options[key]
    else:
        options[key] = [value] if isinstance(options[key], list) else value
    try:
        calibrate_files([fit], **options, out=out, report=page)
    except EtafreeError:
        if out.exists() or page.exists():
            raise BrokenPromiseError("files of a refused run are there") from None
        raise
    read_tree(out).close()
    if "</html>" not in page.read_text():
        raise BrokenPromiseError("half a page")


# --- saves and studies --------------------------------------------------------------------------


@cache
def result(names: tuple[str, ...] = ("a", "<script>")) -> ef.Calibration:
    data = frame()[["x", "z"]].to_numpy(), frame()["y"].to_numpy()
    criterion = ef.Criterion(losses.Huber(), data, names=names)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), 100, seed=1)
    return ef.calibrate(draws, criterion, clusters=frame()["g"])


@cache
def saved(kind: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        what = result() if kind == "calibration" else result().map
        return what.save(Path(folder) / "save.npz").read_bytes()


def shown(made: ef.Calibration) -> None:
    """Ask a loaded result everything."""
    made.summary()
    made.diagnostics()
    made.region()
    made.to_arviz()
    check_page(made._repr_html_() + repr(made).replace("<", ""), made.names)
    made.plot()


def npz(rng: np.random.Generator, folder: Path) -> None:
    path = folder / "save ü.npz"
    path.write_bytes(spoiled_bytes(rng, saved("calibration")))
    shown(ef.Calibration.load(path))


def npz_contents(rng: np.random.Generator, folder: Path) -> None:
    """A file that is whole, with an array or an entry of its description spoiled.

    Half of them have right checksums.
    """
    path, kind = folder / "save ü.npz", pick(rng, ("calibration", "map"))
    with np.load(io.BytesIO(saved(kind))) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays["__meta__"]))
    if rng.random() < 0.5:
        name = pick(rng, sorted(arrays))
        arrays[name] = spoiled_array(rng, arrays[name])
    else:
        inside = pick(rng, (meta, meta.get("target", meta), meta.get("sampler", meta)))
        key = pick(rng, sorted(inside))
        value = pick(rng, (*TEXTS, None, [], {}, -1, 1e999, [1, [2]], True, ["a"] * 3, {"a": {}}))
        if rng.random() < 0.3:
            del inside[key]
        else:
            inside[key] = value
        arrays["__meta__"] = np.array(json.dumps(meta))
    if rng.random() < 0.5 and all(array.dtype != object for array in arrays.values()):
        meta.pop("digests", None)
        inside_file = {k: v for k, v in arrays.items() if k not in ("__meta__", "__digest__")}
        save_arrays(path, kind, inside_file, meta)
    else:
        np.savez(path, **arrays)  # objects are pickled here, and must be refused
    if kind == "map":
        ef.LocationScaleMap.load(path)(np.zeros((3, 2)))
    else:
        shown(ef.Calibration.load(path))


def work(parameters: dict[str, Any], seed: Any) -> dict[str, Any]:
    return {"value": np.arange(3.0) + parameters["shift"]}


def study(rng: np.random.Generator, folder: Path) -> None:
    out = folder / "a study ü"
    cells = [Cell(f"c{k}", {"shift": k}) for k in range(3)]
    made = run_study("fuzz", {"n": 1}, cells, work, out, seed=1, workers=1, progress=False)
    path = pick(rng, sorted(p for p in out.rglob("*") if p.is_file()))
    path.write_bytes(spoiled_bytes(rng, path.read_bytes()))
    again = run_study("fuzz", {"n": 1}, cells, work, out, seed=1, workers=1, progress=False)
    for key in made:
        if not np.array_equal(made[key]["value"], again[key]["value"]):
            raise BrokenPromiseError(f"cell {key} came back with other numbers")


# --- names and paths ----------------------------------------------------------------------------


def names(rng: np.random.Generator, folder: Path) -> None:
    made = result((pick(rng, TEXTS), pick(rng, TEXTS[:20]) + "2"))
    check_page(made._repr_html_(), made.names)
    if rng.random() < 0.5:
        check_page(made.report(folder / "page.html").read_text(), made.names)
        made.plot().savefig(io.BytesIO())
    made.test({made.names[0]: 1.0})
    again = ef.Calibration.load(made.save(folder / "save.npz"))
    if again.names != made.names:
        raise BrokenPromiseError(f"{made.names} came back as {again.names}")
    made.test(pick(rng, TEXTS))


def paths(rng: np.random.Generator, folder: Path) -> None:
    text = pick(rng, TEXTS)
    path: Any = folder / text if rng.random() < 0.8 and not text.startswith("..") else hostile(rng)
    what = result() if rng.random() < 0.5 else result().map
    way = pick(rng, ("save", "load", "report", "parquet", "calibrate"))
    if way == "calibrate" and ("\0" in text or "\ud800" in text):
        way = "load"  # no command line can say it
    if not isinstance(path, Path):
        way = "load"  # a relative path would write into the working folder
    if way == "save":
        type(what).load(what.save(path))
    elif way == "report":
        result().report(path)
    elif way == "load":
        type(what).load(path)
    elif way == "parquet":
        ef.Criterion.from_parquet(losses.Squared(), path, "y ~ x")
    else:
        calibrate_files([path])  # which the command line gives paths only


# --- files that are endless, elsewhere or larger than they look ----------------------------------


def some(rng: np.random.Generator, table: Any) -> list[str]:
    """Return one name of a table, now and then two."""
    return [pick(rng, sorted(table)) for _ in range(1 + int(rng.random() < 0.2))]


def bad_netcdf(rng: np.random.Generator, folder: Path) -> None:
    try:
        path = places.write_hdf5(folder, stored("netcdf"), *some(rng, places.HDF5))
    except (KeyError, ValueError, OSError, RuntimeError):  # two things do not go with one file
        return
    with read_tree(path) as tree:
        calibrated(tree, rng, folder)


def bad_zarr(rng: np.random.Generator, folder: Path) -> None:
    (folder / "whole.nc").write_bytes(stored("netcdf"))
    with read_tree(folder / "whole.nc") as tree:
        tree.to_zarr(folder / "fit.zarr")
    places.ZARR[pick(rng, sorted(places.ZARR))][0](folder / "fit.zarr")
    with read_tree(folder / "fit.zarr") as tree:
        calibrated(tree, rng, folder)


def bad_npz(rng: np.random.Generator, folder: Path) -> None:
    path = places.write_npz(folder, saved("calibration"), *some(rng, places.NPZ))
    shown(ef.Calibration.load(path))


def bad_parquet(rng: np.random.Generator, folder: Path) -> None:
    groups, rows = (16, 1 << 22) if rng.random() < 0.2 else (int(rng.integers(1, 9)), 1 << 16)
    path = places.write_rows(folder / "rows.parquet", groups, rows)
    if rng.random() < 0.3:
        path.write_bytes(spoiled_bytes(rng, path.read_bytes()))
    used(ef.Criterion.from_parquet(losses.Squared(), path, "y ~ x"))


def bad_text(rng: np.random.Generator, folder: Path) -> None:
    start = pick(rng, (b"", b"y,x,g\n1,2,a\n", b"# a\nlp__,b\n", b'y,x\n1,"', b"\xef\xbb\xbfy,x\n"))
    path = places.write_sparse(folder / "data.csv", start, int(2 ** rng.uniform(8, 42)))
    read = pick(rng, (places.READERS["CSV"], places.READERS["Stan"], places.READERS["clusters"]))
    read(path)


def special_files(rng: np.random.Generator, folder: Path) -> None:
    """What is no file is refused by every reader: none waits for it."""
    places.SPECIAL[pick(rng, sorted(places.SPECIAL))][0](folder / "place")
    places.READERS[pick(rng, sorted(places.READERS))](folder / "place")
    raise BrokenPromiseError("something was read")


EXPLODING = (
    "(x+z+w)**{}",
    "((x+z)**{})**3",
    "bs(x, df={})",
    "poly(x, {})",
    "cr(x, {})",
    "I(x**{})",
    "hashed(g, levels={})",
    "x**{}",
    "C(whole * {})",
    "I(whole**{})",
    ".**{}",
    "np.ones({})",
    "bs(x, df=4, degree={})",
    "cc(x, df={})",
    "I(x * {0}**{0})",
    "C(whole // {})",
    "lag(x, {})",
    "I(whole.repeat({}))",
    "np.tile(x, {})",
    "np.linspace(0, 1, {})",
    "C(g, Poly({}))",
)


def bad_formula(rng: np.random.Generator, folder: Path) -> None:
    """Formulas of Python users, which no screen has seen: numbers that explode, or are deep."""
    many = pick(rng, ("3", "9", "30", "1000", "10**6", "10**9", "9**99", "2**63", "-1", "1e9"))
    text = " + ".join(pick(rng, EXPLODING).format(many) for _ in range(int(rng.integers(1, 3))))
    if rng.random() < 0.2:
        deep = int(10 ** rng.uniform(1, 4))
        text = pick(rng, ("(", "I(", "-", "log(", "+", "C(")) * deep + "x" + ")" * deep
    long = pd.concat([frame()] * 10, ignore_index=True)
    used(ef.Criterion.from_formula(f"y ~ {text}", long.assign(whole=long.index), losses.Squared()))


#: Each target with the number of its inputs in a full run.
TARGETS = {
    "csv": (csv, 800),
    "formula_frame": (formula_frame, 600),
    "parquet": (parquet, 600),
    "parts": (parts, 500),
    "formula": (formula, 2600),
    "select": (select, 100),
    "stan_csv": (stan_csv, 700),
    "netcdf": (netcdf, 500),
    "zarr": (zarr, 80),
    "command": (command, 150),
    "npz": (npz, 500),
    "npz_contents": (npz_contents, 500),
    "study": (study, 300),
    "names": (names, 100),
    "paths": (paths, 400),
    "functions": (call_a_function, 2500),
    "results": (call_a_result, 800),
    "bad_netcdf": (bad_netcdf, 200),
    "bad_zarr": (bad_zarr, 40),
    "bad_npz": (bad_npz, 100),
    "bad_parquet": (bad_parquet, 40),
    "bad_text": (bad_text, 150),
    "special_files": (special_files, 200),
    "bad_formula": (bad_formula, 400),
}

"""Files of a folder are one table: none is lost, none read twice, none misread."""

from __future__ import annotations

import os
import time
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import etafree as ef
import etafree.data.sources
from conftest import refused

SQUARED = ef.losses.Squared()
N = 300
RNG = np.random.default_rng(21)
FRAME = pd.DataFrame(
    {
        "x": RNG.standard_normal(N),
        "z": RNG.integers(0, 9, N),
        "g": np.arange(N) % 30,
        "kind": RNG.choice(["a", "b", "c"], N),
    }
)
FRAME["y"] = FRAME.x + RNG.standard_normal(N)
THIRDS = [FRAME[:100], FRAME[100:200], FRAME[200:]]


def write(path, frame, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame)
    pq.write_table(table.replace_schema_metadata(), path, **options)


def folder_of(path, *frames):
    for k, frame in enumerate(frames):
        write(path / f"{k}.parquet", frame)
    return path


def criterion(data, formula="y ~ x", **options):
    return lambda: ef.Criterion.from_parts(SQUARED, data, formula, **options)


def same(data, frame=FRAME, formula="y ~ x + z"):
    made = criterion(data, formula)()
    memory = ef.Criterion.from_formula(formula, frame, SQUARED)
    assert (made.n, made.names) == (memory.n, memory.names)
    np.testing.assert_allclose(ef.minimise(made).theta, ef.minimise(memory).theta, rtol=1e-9)
    return made


# Columns that a file lacks


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("name", ["x", "g"])
def test_a_file_without_a_column_that_is_used_is_named(which, name, tmp_path) -> None:
    frames = [f.drop(columns=name) if k == which else f for k, f in enumerate(THIRDS)]
    folder_of(tmp_path, *frames)
    told = f"{which}.parquet' has no columns ['{name}']"
    if name == "x":
        refused("data", told, criterion(tmp_path))
        refused("data", told, criterion([str(p) for p in sorted(tmp_path.iterdir())]))
    else:
        refused("data", told, criterion(tmp_path, clusters="g"))
        later = criterion(tmp_path)()
        refused("data", told, lambda: ef.target(later, clusters="g"))
    assert same(tmp_path, formula="y ~ z").n == N  # nobody asked for the column


def test_a_dataset_of_the_callers_whose_files_lack_a_column(tmp_path) -> None:
    """Its schema has the column, and Arrow would fill it with nothing."""
    less = [THIRDS[0].drop(columns="x"), *THIRDS[1:]]
    folder_of(tmp_path / "parquet", *less)
    for k, frame in enumerate(less):
        (tmp_path / "arrow").mkdir(exist_ok=True)
        feather.write_feather(frame, tmp_path / "arrow" / f"{k}.arrow")
    schema = pa.Table.from_pandas(FRAME).schema
    for kind in ("parquet", "arrow"):
        form = "feather" if kind == "arrow" else kind
        data = ds.dataset(tmp_path / kind, format=form, schema=schema)
        refused("data", f"0.{kind}' has no columns ['x']", criterion(data))
        same(data, formula="y ~ z")
        reversed_ = ds.dataset(sorted((tmp_path / kind).iterdir(), reverse=True), format=form)
        refused("data", f"0.{kind}' has no columns ['x']", criterion(reversed_))


def test_a_file_outside_the_folders_whose_names_hold_a_column(tmp_path) -> None:
    for town, frame in zip("abc", THIRDS, strict=True):
        write(tmp_path / f"town={town}" / "0.parquet", frame)
    frame = FRAME.assign(town=np.repeat(list("abc"), 100))
    same(tmp_path, frame, "y ~ x + town")
    write(tmp_path / "town=b" / "1.parquet", FRAME)
    write(tmp_path / "stray.parquet", FRAME)
    refused("data", "stray.parquet' has no columns ['town']", criterion(tmp_path, "y ~ town"))
    assert criterion(tmp_path)().n == 3 * N


# Types that differ between files


def test_types_that_hold_the_same_are_read_as_one(tmp_path) -> None:
    decimals = pa.array([Decimal(int(v)) for v in FRAME.z[:100]], pa.decimal128(9, 2))
    first = pa.Table.from_pandas(THIRDS[0], preserve_index=False)
    money = first.set_column(first.column_names.index("z"), "z", decimals)
    for k, other in enumerate(
        [
            THIRDS[0].astype({"z": "float64"}),
            THIRDS[0].astype({"z": "uint8"}),
            THIRDS[0].astype({"z": "float32"}),
            money,
        ]
    ):
        same(folder_of(tmp_path / f"{k}", other, *THIRDS[1:]))
        same(folder_of(tmp_path / f"-{k}", *THIRDS[1:], other), pd.concat([*THIRDS[1:], THIRDS[0]]))
    coded = THIRDS[0].astype({"kind": "category"})
    same(folder_of(tmp_path / "coded", coded, *THIRDS[1:]), formula="y ~ kind")


def test_types_that_do_not_go_together_are_refused_by_file_if_they_are_used(tmp_path) -> None:
    for k, other in enumerate(
        [THIRDS[1].astype({"z": "str"}), THIRDS[1].assign(z=THIRDS[1].z > 3)]
    ):
        path = folder_of(tmp_path / str(k), THIRDS[0], other, THIRDS[2])
        refused("data", "1.parquet' has 'z' as", criterion(path, "y ~ z"))
        refused("data", "1.parquet' has 'z' as", criterion(path, clusters="z"))
        refused("data", "1.parquet' has 'z' as", criterion(ds.dataset(path), "y ~ z"))
        same(path, formula="y ~ x")
    wished = pa.schema({"y": pa.float64(), "x": pa.float64(), "z": pa.float64()})
    same(ds.dataset(tmp_path / "0", schema=wished))  # the caller says what it is


def test_a_list_of_files_and_folders(tmp_path) -> None:
    folder_of(tmp_path / "a", *THIRDS[:2])
    write(tmp_path / "b.parquet", THIRDS[2])
    same([tmp_path / "a", str(tmp_path / "b.parquet")])
    made = ef.Criterion.from_parquet(SQUARED, (tmp_path / "a", tmp_path / "b.parquet"), "y ~ x")
    assert made.n == N
    refused("data", "twice", criterion([tmp_path / "a", tmp_path / "a" / "1.parquet"]))
    refused("data", "no file or folder", criterion([tmp_path / "a", tmp_path / "c"]))


# Links


def test_links_in_a_circle_are_followed_once(tmp_path) -> None:
    path = folder_of(tmp_path / "data", *THIRDS[:2])
    folder_of(path / "more", THIRDS[2])
    (path / "more" / "up").symlink_to(path)
    (path / "self").symlink_to(path)
    (path / "latest.parquet").symlink_to(path / "1.parquet")
    os.link(path / "0.parquet", path / "hard.parquet")
    (path / "other").symlink_to(path / "more")
    same(path)
    (tmp_path / "door").symlink_to(path)
    same(tmp_path / "door")
    same(tmp_path / "door" / "latest.parquet", THIRDS[1])


def test_links_out_of_the_folder_are_followed(tmp_path) -> None:
    folder_of(tmp_path / "far", *THIRDS[1:])
    folder_of(tmp_path / "data", THIRDS[0])
    (tmp_path / "data" / "link").symlink_to(tmp_path / "far")
    same(tmp_path / "data")


def test_links_that_lead_nowhere_or_say_two_things_are_refused(tmp_path) -> None:
    path = folder_of(tmp_path / "data", *THIRDS)
    (path / "gone.parquet").symlink_to(tmp_path / "nothing")
    refused("data", "gone.parquet", criterion(path))
    (path / "gone.parquet").unlink()
    (path / "ring.parquet").symlink_to(path / "ring.parquet")
    refused("data", "ring.parquet", criterion(path))
    folder_of(tmp_path / "towns" / "town=a", *THIRDS)
    (tmp_path / "towns" / "town=b").symlink_to(tmp_path / "towns" / "town=a")
    refused("data", "are one file", criterion(tmp_path / "towns"))


def test_names_with_a_dot_or_an_underscore_are_not_data(tmp_path) -> None:
    path = folder_of(tmp_path, *THIRDS)
    (path / "_SUCCESS").write_text("")
    (path / ".0.parquet.crc").write_text("crc")
    write(path / "_temporary" / "0.parquet", FRAME)
    same(path)


# Damage


@pytest.mark.parametrize("many", [1, 3])
def test_a_flipped_bit_in_a_page_is_found_by_its_checksum(many, tmp_path) -> None:
    for k in range(many):
        write(
            tmp_path / f"{k}.parquet",
            FRAME,
            write_page_checksum=True,
            use_dictionary=False,
            compression="none",
        )
    assert criterion(tmp_path, "y ~ x + kind")().n == many * N
    file = tmp_path / f"{many - 1}.parquet"
    damaged = bytearray(file.read_bytes())
    at = damaged.index(np.float64(FRAME.x[200]).tobytes())
    damaged[at + 6] ^= 1  # a number that could be
    file.write_bytes(damaged)
    for data in (tmp_path, file, ds.dataset(tmp_path), [str(file)]):
        for formula in ("y ~ x", "y ~ x + kind"):
            refused("data", file.name, criterion(data, formula))
        assert criterion(data, "y ~ z")().n >= N  # other columns' pages are whole


# Many small files


def tiny(path, files, rows=3):
    frames = [FRAME.iloc[rows * k : rows * (k + 1)] for k in range(files)]
    return folder_of(path, *frames)


def test_many_small_files_are_put_together(tmp_path, monkeypatch) -> None:
    """A part has many files' rows, and is read once for all passes."""
    tiny(tmp_path, 100)
    order = [int(p.stem) for p in sorted(tmp_path.iterdir(), key=str)]
    frame = pd.concat([FRAME.iloc[3 * k : 3 * (k + 1)] for k in order])
    counted, read = [], etafree.data.sources._batches

    def counting(piece, *rest, **options):
        counted.append(len(piece))
        return read(piece, *rest, **options)

    monkeypatch.setattr(etafree.data.sources, "_batches", counting)
    made = ef.Criterion.from_parquet(SQUARED, tmp_path, "y ~ x + kind", clusters="g")
    target = ef.target(made, clusters="g")
    assert counted == [100] * 3  # a look at the formula, its levels, the first pass
    memory = ef.Criterion.from_formula("y ~ x + kind", frame, SQUARED)
    np.testing.assert_allclose(
        target.covariance, ef.target(memory, clusters="g").covariance, rtol=1e-9
    )
    later = ef.target(made, clusters="z", correction="CR1")  # a column that was not read yet
    same_later = ef.target(memory, clusters="z", correction="CR1")
    np.testing.assert_allclose(later.covariance, same_later.covariance, rtol=1e-9)
    (tmp_path / "7.parquet").touch()
    refused("data", "7.parquet' has changed", lambda: made.value(np.zeros(made.p)))


def test_rows_that_are_kept_have_a_limit(tmp_path, monkeypatch) -> None:
    tiny(tmp_path, 100)
    monkeypatch.setattr(etafree.data.sources, "KEPT", 100)
    made = criterion(tmp_path, "y ~ x + kind")()
    assert made.total.source.kept == {}
    assert np.isfinite(made.value(np.zeros(made.p)))


@pytest.mark.parametrize("formula", ["y ~ x", "y ~ x + kind"])
def test_row_groups_of_one_row_are_put_together(formula, tmp_path) -> None:
    write(tmp_path / "rows.parquet", FRAME, row_group_size=1)
    made = same(tmp_path / "rows.parquet", formula=formula)
    [parts] = made.total.source.kept.values()
    assert [len(part) for part in parts] == [N]
    cut = criterion(tmp_path / "rows.parquet", formula, batch=64)()
    assert max(map(len, *cut.total.source.kept.values())) <= 64
    np.testing.assert_allclose(ef.minimise(cut).theta, ef.minimise(made).theta, rtol=1e-10)


def test_a_thousand_small_files_take_seconds(tmp_path) -> None:
    """They took minutes; the bound is wide, for slow machines and busy ones."""
    tiny(tmp_path, 100)
    whole = [(path.read_bytes(), path.stem) for path in tmp_path.iterdir()]
    for k in range(1, 10):
        for content, name in whole:
            (tmp_path / f"{k}-{name}.parquet").write_bytes(content)
    start = time.process_time()
    made = ef.Criterion.from_parquet(SQUARED, tmp_path, "y ~ x + kind", clusters="g")
    ef.target(made, clusters="g")
    assert made.n == 3000
    assert time.process_time() - start < 15


def test_batches_keep_their_order_and_their_dictionaries() -> None:
    from etafree.data.labels import together

    sizes = [1, 2, 30, 40, 1, 1, 0, 50, 3]
    codes = np.arange(sum(sizes))
    ends = np.cumsum(sizes)
    batches = [
        pa.record_batch({"n": part, "d": pa.array([f"s{v % 5}" for v in part]).dictionary_encode()})
        for part in np.split(codes, ends[:-1])
    ]
    parts = list(together(batches, 320))
    assert (
        np.concatenate([part.column("n").to_numpy() for part in parts]).tolist() == codes.tolist()
    )
    text = [value for part in parts for value in part.column("d").to_pylist()]
    assert text == [f"s{v % 5}" for v in codes]
    assert all(len(part) <= 320 for part in parts)

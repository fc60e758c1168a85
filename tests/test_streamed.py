"""Data read in parts give what they give in memory, however they are cut and whoever reads them."""

from __future__ import annotations

import os
import signal
import tracemalloc
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etafree as ef
import etafree.data.sources
import etafree.totals.chunked
from conftest import LOSSES, local_cluster, make_case, refused
from etafree.errors import InputError

HUBER = ef.losses.Huber(1.345)
FORMULA = "y ~ x + np.exp(z) + kind"
DESIGNS = {
    "rows": {},
    "HC0": {"correction": "HC0"},
    "HC1": {"correction": "HC1"},
    "HC2": {"correction": "HC2"},
    "clusters": {"clusters": "school"},
    "CR0": {"clusters": "school", "correction": "CR0"},
    "CR1": {"clusters": "school", "correction": "CR1"},
    "CR1S": {"clusters": "school", "correction": "CR1S"},
    "CR2": {"clusters": "school", "correction": "CR2"},
    "text": {"clusters": "town"},
    "two ways": {"clusters": ["school", "town"]},
    "survey": {"dependence": ef.Survey("school", "town")},
    "no strata": {"dependence": ef.Survey("school", fpc="population")},
    "population": {"dependence": ef.Survey("school", "town", fpc="population")},
    "uncentred": {"clusters": "school", "centered": False},
}


def make_table(n=600, seed=3):
    """Return rows in no order, with gaps, weights and categories; `rare` is late and seldom."""
    rng = np.random.default_rng(seed)
    school = rng.integers(0, 40, n)
    table = pd.DataFrame(
        {
            "x": rng.standard_normal(n),
            "z": 0.5 * rng.standard_normal(n),
            "school": 7 * school,
            "town": np.array([f"town {k}" for k in range(10)])[school % 10],
            "population": 100,
            "kind": rng.choice(["a", "b", "c"], n),
            "w": rng.integers(0, 4, n).astype(float),
            "o": 0.1 * rng.standard_normal(n),
            "t": np.arange(n),
            "period": np.arange(n) // 20,
            "unit": np.arange(n) % 20,
        }
    )
    table.loc[n - 3 :, "kind"] = "rare"
    table["y"] = table.x + (table.kind == "b") + rng.standard_t(3, n) + 0.3 * (school % 3)
    table.loc[rng.choice(n, 12, replace=False), "x"] = np.nan
    table.loc[rng.choice(n - 3, 5, replace=False), "kind"] = None
    return table


TABLE = make_table()


def pieces(table, cuts):
    cuts = [0, *sorted(cuts), len(table)]
    return [table.iloc[a:b] for a, b in pairwise(cuts)]


def close(streamed, memory, rtol=1e-10):
    streamed, memory = np.asarray(streamed), np.asarray(memory)
    scale = np.abs(memory).max(initial=1e-300)
    np.testing.assert_allclose(streamed, memory, rtol=rtol, atol=rtol * scale)


def same_target(streamed, memory):
    assert streamed.names == memory.names
    assert streamed.correction == memory.correction
    assert streamed.design == memory.design
    assert streamed.clusters == memory.clusters
    assert streamed.n == memory.n
    for name in ("center", "covariance", "hessian", "meat"):
        close(getattr(streamed, name), getattr(memory, name))
    np.testing.assert_allclose(streamed.dof, memory.dof, rtol=1e-8)


@pytest.fixture(scope="module")
def memory():
    return ef.Criterion.from_formula(FORMULA, TABLE, HUBER)


@pytest.fixture(scope="module")
def streamed():
    return ef.Criterion.from_parts(HUBER, pieces(TABLE, [100, 101, 101, 400]), FORMULA)


@pytest.fixture
def passes(monkeypatch):
    """Count the passes over the data."""
    counted = []
    run = etafree.totals.chunked.run_pass

    def count(*args):
        counted.append(args[3])
        return run(*args)

    monkeypatch.setattr(etafree.totals.chunked, "run_pass", count)
    monkeypatch.setattr(etafree.totals.chunked, "run_pass", count)
    return counted


WEIGHTS = [
    {},
    {"weights": "w", "weight_kind": "frequency"},
    {"weights": "w", "weight_kind": "sampling", "offset": "o"},
]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    cuts=st.lists(st.integers(0, len(TABLE)), max_size=8),
    options=st.sampled_from(WEIGHTS),
    formula=st.sampled_from(["y ~ x + z", FORMULA, "y ~ 0 + kind:x + z"]),
    seed=st.integers(0, 100),
)
def test_every_sum_is_that_in_memory_whatever_the_cuts(cuts, options, formula, seed):
    memory = ef.Criterion.from_formula(formula, TABLE, HUBER, ef.penalties.Ridge(0.1), **options)
    parts = pieces(TABLE, cuts)
    streamed = ef.Criterion.from_parts(HUBER, parts, formula, ef.penalties.Ridge(0.1), **options)
    assert streamed.names == memory.names
    assert (streamed.n, streamed.size, streamed.strength) == (
        memory.n,
        pytest.approx(memory.size),
        memory.strength,
    )
    assert streamed.rows.dropped == memory.rows.dropped
    assert streamed.total.count == memory.total.count
    assert streamed.total.copies == memory.total.copies
    theta = np.random.default_rng(seed).standard_normal(memory.p)
    spread = np.diag(np.linspace(0.1, 1.0, memory.p))
    for majorize in (False, True):
        at = [c.derivatives(theta, majorize=majorize) for c in (streamed, memory)]
        for a, b in zip(*at, strict=True):
            close(a, b)
    close(
        streamed.values_at(np.vstack([theta, 2 * theta])),
        memory.values_at(np.vstack([theta, 2 * theta])),
    )
    both = [c.total for c in (streamed, memory)]
    for a, b in zip(*(t.expected_derivatives(theta, spread) for t in both), strict=True):
        close(a, b)
    for a, b in zip(*(t.least_squares() for t in both), strict=True):
        close(a, b)
    groups = [c.rows.groups("town", "clusters") for c in (streamed, memory)]
    assert groups[0].labels.tolist() == groups[1].labels.tolist()
    assert groups[0].sizes().tolist() == groups[1].sizes().tolist()
    close(groups[0].weights(None), groups[1].weights(memory.total.weights))
    for a, b in zip(
        *(t.cluster_totals(theta, g) for t, g in zip(both, groups, strict=True)), strict=True
    ):
        close(a, b)
    same_target(*(ef.target(c, clusters="school") for c in (streamed, memory)))


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("options", WEIGHTS, ids=["plain", "frequency", "sampling"])
def test_every_structure_of_dependence(design, options):
    made = [
        ef.Criterion.from_parts(HUBER, pieces(TABLE, [10, 250, 300]), "y ~ x + z", **options),
        ef.Criterion.from_formula("y ~ x + z", TABLE, HUBER, **options),
    ]
    same_target(*(ef.target(c, **DESIGNS[design]) for c in made))


@pytest.mark.parametrize(
    "options",
    [
        {"dependence": ef.TimeSeries("t")},
        {"dependence": ef.TimeSeries("t"), "correction": "Bartlett"},
        {"dependence": ef.Panel("unit", "period")},
        {"dependence": ef.Panel("unit", "period"), "correction": "DK"},
    ],
    ids=str,
)
def test_dependence_in_time(options):
    table = TABLE.iloc[::-1]
    made = [
        ef.Criterion.from_parts(HUBER, pieces(table, [33, 33, 500]), "y ~ x"),
        ef.Criterion.from_formula("y ~ x", table, HUBER),
    ]
    targets = [ef.target(c, **options) for c in made]
    same_target(*targets)
    assert [f.name for f in targets[0].findings] == [f.name for f in targets[1].findings]
    close(*([found.value for found in target.findings] for target in targets))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss(name):
    case = make_case(name, n=300)
    table = pd.DataFrame(case.X[:, 1:], columns=["x1", "x2"])
    table["y"], table["o"], table["g"] = case.y, case.offset, np.arange(300) % 30
    options = {"offset": "o"}
    if case.trials is not None:
        table["m"], options["trials"] = case.trials, "m"
    made = [
        ef.Criterion.from_parts(case.loss, pieces(table, [1, 77, 200]), "y ~ x1 + x2", **options),
        ef.Criterion.from_formula("y ~ x1 + x2", table, case.loss, **options),
    ]
    fits = [ef.minimise(c) for c in made]
    close(fits[0].theta, fits[1].theta)
    assert fits[0].status == fits[1].status
    same_target(*(ef.target(c, clusters="g") for c in made))
    posteriors = [ef.GeneralizedPosterior(c, 0.7) for c in made]
    assert posteriors[0].tail_exponent == pytest.approx(posteriors[1].tail_exponent, rel=1e-12)


def test_a_bounded_loss_and_its_bias_check():
    table = TABLE.assign(y=TABLE.x.fillna(0) + 0.4 * TABLE.z)
    loss = ef.losses.Modal(0.8)
    made = [
        ef.Criterion.from_parts(loss, pieces(table, [50, 300]), "y ~ x", ef.penalties.Ridge(0.01)),
        ef.Criterion.from_formula("y ~ x", table, loss, ef.penalties.Ridge(0.01)),
    ]
    targets = [ef.target(c, clusters="school") for c in made]
    same_target(*targets)
    close(*([found.value for found in target.findings] for target in targets), rtol=1e-6)
    draws = ef.sample(ef.GeneralizedPosterior(made[0], 1.0), draws=500, seed=0)
    table = ef.calibrate(draws, made[0]).diagnostics()
    assert table.loc["rival mode", "verdict"] == "unknown"
    assert "not searched for" in table.loc["rival mode", "advice"]


def test_draws_calibration_and_diagnostics(streamed, memory):
    draws = [
        ef.sample(ef.GeneralizedPosterior(c, 0.5), draws=800, seed=1) for c in (streamed, memory)
    ]
    close(draws[0].array, draws[1].array)
    for options in ({"clusters": "school"}, {"clusters": ["school", "town"]}, {}):
        a, b = (
            ef.calibrate(d, c, **options) for d, c in zip(draws, (streamed, memory), strict=True)
        )
        close(a.draws.array, b.draws.array)
        beside = b.diagnostics().drop(index="neighbouring clusters", errors="ignore")
        tables = a.diagnostics(), beside  # rows that are read in parts have no order
        assert tables[0].index.tolist() == tables[1].index.tolist()
        assert tables[0].verdict.tolist() == tables[1].verdict.tolist()
        offset = tables[0].index != "Newton offset"  # zero but for rounding
        close(tables[0].value[offset], tables[1].value[offset], rtol=1e-7)
    a, b = (ef.calibrate(draws[0], c, clusters="school") for c in (streamed, memory))
    pd.testing.assert_frame_equal(a.cluster_table(), b.cluster_table(), check_dtype=False)
    boot = [r.wild_bootstrap("x", draws=199) for r in (a, b)]
    assert boot[0].lower == pytest.approx(boot[1].lower, rel=1e-6)


# The infinitesimal jackknife

JACKKNIFE = {
    "rows": {},
    "HC0": {"correction": "HC0"},
    "clusters": {"clusters": "school"},
    "CR1S": {"clusters": "school", "correction": "CR1S"},
    "two ways": {"clusters": ["school", "town"]},
    "survey": {"dependence": ef.Survey("school", "town", fpc="population")},
    "time": {"dependence": ef.TimeSeries("t")},
}


def losses_at(criterion, draws):
    """Return the log-likelihood of all draws and rows at once."""
    return -np.array([criterion.total.values(theta) for theta in draws.array])


def same_jackknife(made, expected):
    for name in ("center", "covariance", "se_error", "dof"):
        close(getattr(made.target, name), getattr(expected.target, name))
    assert made.target.design == expected.target.design
    assert made.target.correction == expected.target.correction
    close(*([f.value for f in result.target.findings] for result in (made, expected)), 1e-8)
    close(made.draws.array, expected.draws.array)


@pytest.mark.parametrize("few", [False, True], ids=["curvature", "covariance"])
@pytest.mark.parametrize("design", JACKKNIFE)
def test_the_jackknife_is_that_of_the_stored_log_likelihood(design, few, monkeypatch):
    if few:
        monkeypatch.setattr("etafree.jackknife.curvature", lambda *_: None)
    table = TABLE.dropna()
    memory = ef.Criterion.from_formula("y ~ x + z", table, HUBER)
    streamed = ef.Criterion.from_parts(HUBER, pieces(table, [9, 9, 200, 414]), "y ~ x + z")
    draws = ef.sample(ef.GeneralizedPosterior(memory, 0.8), draws=600, seed=5)
    options = JACKKNIFE[design]
    labels = dict(options)
    if "clusters" in options:
        named = options["clusters"]
        labels["clusters"] = table[named] if isinstance(named, list) else table[named].to_numpy()
    if "dependence" in options:

        def column(name, _):
            return table[name].to_numpy()

        labels["dependence"] = options["dependence"].with_labels(column)
    expected = ef.calibrate(draws, log_likelihood=losses_at(memory, draws), **labels)
    for criterion in (streamed, memory):
        same_jackknife(ef.calibrate(draws, log_likelihood=criterion, **options), expected)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    cuts=st.lists(st.integers(0, len(TABLE)), max_size=8),
    options=st.sampled_from(WEIGHTS),
    design=st.sampled_from(["rows", "clusters"]),
)
def test_the_jackknife_does_not_know_the_cuts_or_the_kind_of_weights(cuts, options, design):
    """Frequency weights are copies of rows; sampling weights multiply losses and shares."""
    memory = ef.Criterion.from_formula("y ~ x + z", TABLE, HUBER, **options)
    parts = pieces(TABLE, cuts)
    streamed = ef.Criterion.from_parts(HUBER, parts, "y ~ x + z", **options)
    draws = ef.sample(ef.GeneralizedPosterior(memory, 0.8), draws=600, seed=6)
    asked = JACKKNIFE[design]
    made = ef.calibrate(draws, log_likelihood=streamed, **asked)
    same_jackknife(made, ef.calibrate(draws, log_likelihood=memory, **asked))
    exact = ef.target(memory, correction="CR1" if asked else "HC1", **asked).se
    assert np.all(np.abs(made.target.se / exact - 1) < 5 * made.target.se_error + 0.03)
    if options.get("weight_kind") == "frequency":
        copied = TABLE.loc[TABLE.index.repeat(TABLE.w.astype(int))]
        copies = ef.Criterion.from_formula("y ~ x + z", copied, HUBER)
        labels = copied.school[copies.rows.kept].to_numpy() if asked else None
        array = losses_at(copies, draws)
        same = ef.calibrate(draws, log_likelihood=array, clusters=labels)
        close(made.target.covariance, same.target.covariance)


def test_the_jackknife_takes_two_passes_and_no_memory_of_rows(passes):
    def tables(parts):
        for k in range(parts):
            rng = np.random.default_rng(k)
            x = rng.standard_normal(2000)
            yield pd.DataFrame(
                {"x": x, "y": x + rng.standard_normal(2000), "g": rng.integers(0, 50, 2000)}
            )

    def peak(parts, **options):
        made = ef.Criterion.from_parts(
            ef.losses.Squared(), lambda: tables(parts), "y ~ x", clusters="g"
        )
        some = ef.sample(ef.GeneralizedPosterior(made, 1.0), draws=500, seed=0)
        passes.clear()
        tracemalloc.start()
        try:
            ef.calibrate(some, log_likelihood=made, **options)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for options in ({}, {"clusters": "g"}):
        peak(1, **options)
        assert peak(8, **options) < 1.25 * peak(2, **options)
        assert len(passes) == 2


def test_what_the_jackknife_of_rows_refuses(streamed, memory):
    draws = ef.sample(ef.GeneralizedPosterior(memory, 0.8), draws=600, seed=5)

    def jackknife(criterion, some=draws, **options):
        return lambda: ef.calibrate(some, log_likelihood=criterion, **options)

    refused("draws", "have 2 parameters", jackknife(streamed, draws.select(draws.names[:2])))
    refused(
        "log_likelihood",
        "cannot be combined",
        lambda: ef.calibrate(draws, memory, log_likelihood=streamed),
    )
    refused("correction", "contribution to the Hessian", jackknife(streamed, correction="HC3"))
    refused("clusters", "column's name", jackknife(streamed, clusters=TABLE.school))
    pairs = ef.Criterion(ef.PairwiseDifference(HUBER), data=(np.eye(4)[:, :2], np.arange(4.0)))
    refused("log_likelihood", "no linear predictor", jackknife(pairs, np.zeros((9, 2))))
    counts = TABLE.dropna().assign(y=1)
    far = ef.Criterion.from_parts(ef.losses.Poisson(), pieces(counts, [50]), "y ~ x")
    wild = np.random.default_rng(0).standard_normal((500, 2)) * 1e4
    with np.errstate(over="ignore"):
        refused("log_likelihood", "is not finite at row 0", jackknife(far, wild))
    loss = ef.calibrate(draws, log_likelihood=streamed)
    assert loss.target.estimand == memory.describe()
    weights = {"weights": "w", "weight_kind": "frequency"}
    copies = ef.Criterion.from_parts(HUBER, [TABLE], FORMULA, **weights)
    refused("time", "frequency weights", jackknife(copies, dependence=ef.TimeSeries("t")))


def test_serial_dependence_joins_pieces_in_order(streamed, memory):
    from etafree.diagnostics import LagProducts

    rows = np.random.default_rng(0).standard_normal((40, 2))
    whole, first, rest = LagProducts(2), LagProducts(2), LagProducts(2)
    whole.add(rows)
    first += LagProducts(2)
    first.add(rows[:7])
    rest.add(rows[7:20])
    rest.add(rows[20:])
    first += LagProducts(2)
    first += rest
    close(first.lagged, (rows[1:] * rows[:-1]).sum(axis=0), rtol=1e-12)
    close(first.square, whole.square, rtol=1e-12)


def test_passes_are_few_and_not_repeated(passes):
    criterion = ef.Criterion.from_parts(HUBER, pieces(TABLE, [300]), "y ~ x + z", clusters="school")
    assert len(passes) == 1
    fit = ef.minimise(criterion)
    needed = len(passes)
    assert needed == fit.iterations + 2 <= 10
    ef.target(criterion, clusters="school", correction="CR1")
    assert len(passes) == needed + 1  # the fit is remembered, the labels came with the first pass
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=400, seed=0)
    before = len(passes)
    assert before <= needed + 8
    ef.calibrate(draws, criterion, clusters="school")
    assert len(passes) == before + 1  # Hessians of clusters, for CR3 and its law


def test_clusters_too_many_for_one_block_take_more_passes(streamed, memory, monkeypatch):
    monkeypatch.setattr(etafree.totals.chunked, "BLOCK_NUMBERS", 12 * memory.p**2)
    same_target(*(ef.target(c, clusters="school", correction="CR2") for c in (streamed, memory)))
    monkeypatch.setattr(etafree.totals.chunked, "BLOCK_NUMBERS", memory.p**2)
    refused("correction", "CR1", lambda: ef.target(streamed, clusters="school"))
    ef.target(streamed, clusters="school", correction="CR1")


def test_cells_too_many_for_blocks_leave_cr1s_for_two_ways(streamed, memory, monkeypatch):
    ways = {"clusters": ["school", "town"]}
    known = ef.target(memory, **ways, correction="CR1S")
    monkeypatch.setattr(etafree.totals.chunked, "BLOCK_NUMBERS", memory.p**2)
    made = ef.target(streamed, **ways)
    assert made.correction == "CR1S"
    close(made.covariance, known.covariance)
    reason = "no CR3 (way 'school': needs the Hessians of 40 clusters, in more than 10 passes)"
    assert made.design == f"{known.design}, {reason}"
    refused("correction", "40 clusters", lambda: ef.target(streamed, **ways, correction="CR3"))


def test_memory_does_not_grow_with_rows():
    def peak(parts):
        def tables():
            for k in range(parts):
                rng = np.random.default_rng(k)
                x = rng.standard_normal(20_000)
                yield pd.DataFrame(
                    {
                        "x": x,
                        "y": x + rng.standard_normal(20_000),
                        "g": rng.integers(0, 100, 20_000),
                    }
                )

        tracemalloc.start()
        try:
            criterion = ef.Criterion.from_parts(HUBER, tables, "y ~ x", clusters="g")
            for correction in ("CR1", "CR3"):
                ef.target(criterion, clusters="g", correction=correction, center=[0.0, 1.0])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    assert peak(20) < 1.25 * peak(5)  # a number per row would make it 1.6


# Sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files with row groups of their own, in a folder whose name needs care."""
    path = tmp_path_factory.mktemp("täble with spaces")
    for k, part in enumerate(pieces(TABLE, [150, 420])):
        pq.write_table(
            pa.Table.from_pandas(part, preserve_index=False),
            path / f"{k}.parquet",
            row_group_size=64,
        )
    return path


def sources(folder):
    import dask.dataframe as dd

    whole = pa.Table.from_pandas(TABLE, preserve_index=False)
    encoded = whole.set_column(
        whole.column_names.index("town"), "town", whole["town"].dictionary_encode()
    )
    return {
        "folder": folder,
        "text path": str(folder),
        "dataset": ds.dataset(folder),
        "table": whole,
        "dictionary": encoded,
        "arrow parts": [whole.slice(0, 100), whole.slice(100)],
        "batches": lambda: iter(whole.to_batches(max_chunksize=90)),
        "frame": TABLE,
        "dask": dd.from_pandas(TABLE, npartitions=4, sort=False),
        "dask of parquet": dd.read_parquet(folder),
    }


@pytest.mark.parametrize(
    "name",
    [
        "folder",
        "text path",
        "dataset",
        "table",
        "dictionary",
        "arrow parts",
        "batches",
        "frame",
        "dask",
        "dask of parquet",
    ],
)
@pytest.mark.parametrize("formula", ["y ~ x + z", FORMULA])
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask's own making
def test_every_source(name, formula, folder):
    data = sources(folder)[name]
    made = ef.Criterion.from_parts(HUBER, data, formula, clusters="town", batch=200)
    memory = ef.Criterion.from_formula(formula, TABLE, HUBER)
    for options in ({"clusters": "town"}, {"clusters": ["school", "town"]}):
        same_target(ef.target(made, **options), ef.target(memory, **options))
    if formula == FORMULA:
        return
    some = ef.sample(ef.GeneralizedPosterior(memory, 1.0), draws=400, seed=2)
    for options in ({"clusters": "town"}, {"clusters": "school"}):
        a, b = (ef.calibrate(some, log_likelihood=c, **options) for c in (made, memory))
        same_jackknife(a, b)


def test_folders_partitioned_by_name(tmp_path):
    whole = pa.Table.from_pandas(TABLE.dropna(), preserve_index=False)
    pq.write_to_dataset(whole, tmp_path, partition_cols=["town"])
    made = ef.Criterion.from_parquet(HUBER, tmp_path, "y ~ x + town", clusters=["school"])
    memory = ef.Criterion.from_formula("y ~ x + town", TABLE.dropna(), HUBER)
    same_target(*(ef.target(c, clusters="school") for c in (made, memory)))


def test_a_file_that_begins_with_incomplete_rows(tmp_path):
    late = TABLE.dropna().reset_index(drop=True)
    gap = pd.concat([late.assign(x=np.nan)] * (etafree.data.sources.FEW // len(late) + 2) + [late])
    gap.to_parquet(tmp_path / "late.parquet", index=False)
    made = ef.Criterion.from_parquet(HUBER, tmp_path / "late.parquet", "y ~ x + z", clusters="town")
    memory = ef.Criterion.from_formula("y ~ x + z", late, HUBER)
    same_target(*(ef.target(c, clusters="town") for c in (made, memory)))


def test_a_formula_is_read_without_decoding_a_row_group(tmp_path, monkeypatch):
    TABLE.dropna().to_parquet(tmp_path / "one.parquet")
    source = etafree.data.sources.as_source(tmp_path / "one.parquet")
    monkeypatch.setattr(etafree.data.sources.Arrow, "chunks", None)
    assert set(etafree.totals.chunked.find_recipe(source, "y ~ z", None).columns) == {"y", "z"}


def test_a_dataset_without_files_is_refused(tmp_path):
    empty = ds.dataset(tmp_path, schema=pa.schema({"y": pa.float64(), "x": pa.float64()}))
    refused("data", "no complete row", lambda: ef.Criterion.from_parts(HUBER, empty, "y ~ x"))


def test_plain_formulas_go_past_pandas(folder, monkeypatch):
    criterion = ef.Criterion.from_parquet(HUBER, folder, "y ~ x + z")
    monkeypatch.setattr(etafree.data.formula, "matrices", None)
    assert np.isfinite(criterion.value(np.zeros(3)))


def test_whole_numbers_with_gaps_and_numbers_of_other_kinds():
    table = pd.DataFrame(
        {
            "y": [1, 2, 4, 3, 9],
            "k": pd.array([1, None, 3, 4, 5], dtype="Int64"),
            "f": np.float32([1, 2, 3, 5, 4]),
        }
    )
    whole = pa.Table.from_pandas(table)
    for data in (pieces(table, [2]), whole):
        made = ef.Criterion.from_parts(ef.losses.Squared(), data, "y ~ k + f")
        assert (made.n, made.rows.dropped) == (4, 1)
        expected = np.linalg.lstsq(
            np.column_stack([np.ones(4), [1, 3, 4, 5], [1, 3, 5, 4]]), [1, 4, 3, 9], rcond=None
        )[0]
        close(ef.minimise(made).theta, expected)


def test_labels_of_dates_and_mixed_types():
    dates = pd.to_datetime("2020-01-01") + pd.to_timedelta(TABLE.school // 7, unit="D")
    mixed = pd.Series([k if k % 2 else f"s{k}" for k in TABLE.school // 7], dtype=object)
    for labels in (dates, mixed, TABLE.school.astype(float), TABLE.kind.isna()):
        table = TABLE.assign(label=labels)
        made = ef.Criterion.from_parts(HUBER, pieces(table, [200]), "y ~ x")
        groups = made.rows.groups("label", "clusters")
        memory = ef.Criterion.from_formula("y ~ x", table, HUBER).rows.groups("label", "clusters")
        assert groups.labels.tolist() == memory.labels.tolist()
        assert groups.sizes().tolist() == memory.sizes().tolist()


# A cluster of machines


@pytest.fixture(scope="module")
def cluster():
    from distributed import Client

    with local_cluster() as made, Client(made, set_as_default=False) as client:
        yield client


def test_a_cluster_gives_the_same_numbers(cluster, folder, memory):
    made = criterion(folder, FORMULA, scheduler=cluster, batch=8)()
    assert len(made.total.census.lengths) == 11  # one piece for every row group
    for options in (DESIGNS["clusters"], DESIGNS["two ways"], DESIGNS["rows"]):
        same_target(ef.target(made, **options), ef.target(memory, **options))
    draws = ef.sample(ef.GeneralizedPosterior(made, 0.5), draws=300, seed=1)
    for options in ({}, {"clusters": "school"}):
        a, b = (ef.calibrate(draws, log_likelihood=c, **options) for c in (made, memory))
        same_jackknife(a, b)
    tables = [ef.calibrate(draws, c).diagnostics() for c in (made, memory)]
    known = tables[0].index != "Newton offset"
    close(tables[0].value[known], tables[1].value[known], rtol=1e-7)


def test_clusters_told_to_the_constructor_are_the_default(folder, memory):
    draws = ef.sample(ef.GeneralizedPosterior(memory, 0.5), draws=300, seed=1)
    for told in ("school", ["school", "town"]):
        made = criterion(folder, FORMULA, clusters=told)()
        same_target(ef.target(made), ef.target(memory, clusters=told))
        same_target(ef.calibrate(draws, made).target, ef.target(memory, clusters=told))
        same_target(ef.target(made, clusters="town"), ef.target(memory, clusters="town"))
        a = ef.calibrate(draws, log_likelihood=made)
        same_jackknife(a, ef.calibrate(draws, log_likelihood=memory, clusters=told))
    refused("correction", "CR0, CR1, CR1S", lambda: ef.target(made, correction="HC3"))


def test_one_worker_or_two_give_the_same_bits(cluster, folder):
    from distributed import Client

    def bits(scheduler):
        made = criterion(folder, FORMULA, scheduler=scheduler, batch=16)()
        target = ef.target(made, clusters="school")
        return target.center.tobytes() + target.covariance.tobytes()

    with local_cluster(1) as made, Client(made, set_as_default=False) as alone:
        one = bits(alone)
    assert bits(cluster) == one == bits(cluster.scheduler.address)


def test_partitions_of_a_dask_frame_are_worked_on_by_the_active_cluster(cluster, memory):
    import dask.dataframe as dd

    frame = dd.from_pandas(TABLE, npartitions=5, sort=False)
    with cluster.as_current():
        made = ef.Criterion.from_parts(HUBER, frame, FORMULA)
    assert made.total.source.client is cluster
    same_target(*(ef.target(c, clusters="school") for c in (made, memory)))


def test_a_lost_worker_changes_nothing(cluster, folder):
    made = criterion(folder, FORMULA, scheduler=cluster, batch=16)()
    before = made.total.totals(np.zeros((2000, made.p)))
    pids = list(cluster.run(os.getpid).values())
    os.kill(pids[0], signal.SIGKILL)
    assert made.total.totals(np.zeros((2000, made.p))).tobytes() == before.tobytes()


def test_errors_come_home_from_workers(cluster, folder, monkeypatch):
    made = ef.Criterion.from_parquet(HUBER, folder, "y ~ x", scheduler=cluster)
    assert made.n == TABLE.x.notna().sum()
    alone = criterion(folder, "y ~ x + I(t == 14.0)", scheduler=cluster)()
    memory = ef.Criterion.from_formula("y ~ x + I(t == 14.0)", TABLE, HUBER)
    told = []
    for made in (alone, memory):
        with pytest.raises(InputError, match="leverage one") as info:
            ef.target(made)
        told.append(str(info.value))
    assert told[0] == told[1]  # the row has the same number
    monkeypatch.setattr(etafree.data.sources, "PATIENCE", 1)
    refused("scheduler", "does not answer", criterion(folder, scheduler="tcp://127.0.0.1:1"))
    refused("scheduler", "leave it out", criterion([TABLE], scheduler=cluster))


# What cannot be used


def criterion(data, formula="y ~ x", loss=HUBER, **options):
    return lambda: ef.Criterion.from_parts(loss, data, formula, **options)


def test_damaged_and_missing_files_are_named(folder, tmp_path):
    whole = (folder / "0.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole)
    (tmp_path / "b.parquet").write_bytes(whole[: len(whole) // 2])
    refused("data", "b.parquet", criterion(tmp_path))
    refused("data", "b.parquet", criterion(tmp_path / "b.parquet"))
    (tmp_path / "b.parquet").write_text("school,y\n1,2\n")
    refused("data", "b.parquet", criterion(tmp_path))
    rotten = bytearray(whole)
    rotten[4 : len(whole) // 2] = bytes(len(whole) // 2 - 4)
    (tmp_path / "b.parquet").write_bytes(rotten)  # its footer is whole, its pages are not
    refused("data", "b.parquet", criterion(tmp_path))
    less = pa.Table.from_pandas(TABLE.drop(columns="x"))
    pq.write_table(less, tmp_path / "b.parquet")
    refused("data", "no columns ['x']", criterion(tmp_path))
    refused("data", "no file or folder", criterion(tmp_path / "c.parquet"))
    (tmp_path / "empty").mkdir()
    refused("data", "no Parquet files", criterion(tmp_path / "empty"))
    refused("path", "from_parts", lambda: ef.Criterion.from_parquet(HUBER, [TABLE], "y ~ x"))


def test_parts_that_cannot_be_read_again_or_change(tmp_path):
    refused("data", "at most once", criterion(iter([TABLE])))
    refused("data", "at most once", criterion(part for part in [TABLE]))
    refused("data", "at most once", criterion(7))
    refused("data", "yields nothing", criterion([]))
    refused("data", "among its parts", criterion([np.ones((3, 2))]))
    refused("data", "without the columns ['x']", criterion([TABLE, TABLE.drop(columns="x")]))
    sizes = iter([600, 600, 600, 500])
    made = criterion(lambda: [TABLE.iloc[: next(sizes)]])()
    refused("data", "must not change", lambda: made.value(np.zeros(2)))
    labels = iter([0, 0, 0, 1])
    made = criterion(
        lambda: [TABLE.assign(school=TABLE.school + 7 * next(labels))], clusters="school"
    )()
    plain = {"clusters": "school", "correction": "CR1", "center": [0.0, 1.0]}
    refused("clusters", "must not change", lambda: ef.target(made, **plain))


def test_columns_that_do_not_fit():
    refused("formula", "['nothing']", criterion([TABLE], "y ~ nothing"))
    refused("formula", "response", criterion([TABLE], "y + x"))
    refused("formula", "cannot be read", criterion([TABLE], "y ~ x +* z"))
    refused("formula", "not numeric", criterion([TABLE], "kind ~ x"))
    refused("X", "'x' is not numeric", criterion([TABLE, TABLE.assign(x="one")]))
    refused("clusters", "names no column", criterion([TABLE], clusters="nothing"))
    refused(
        "weights", "names no column", criterion([TABLE], weights="nothing", weight_kind="sampling")
    )
    refused("offset", "column's name", criterion([TABLE], offset=TABLE.o))
    refused("weight_kind", "None", criterion([TABLE], weights="w"))
    refused(
        "weights",
        "negative",
        criterion([TABLE.assign(w=-1.0)], weights="w", weight_kind="sampling"),
    )
    refused(
        "weights", "all zero", criterion([TABLE.assign(w=0.0)], weights="w", weight_kind="sampling")
    )
    refused(
        "weights",
        "whole numbers",
        criterion([TABLE.assign(w=0.5)], weights="w", weight_kind="frequency"),
    )
    refused("offset", "NaN", criterion([TABLE.assign(o=np.nan)], offset="o"))
    refused("X", "infinite", criterion([TABLE, TABLE.assign(x=np.inf)]))
    refused("y", "negative", criterion([TABLE], loss=ef.losses.Poisson()))
    refused("trials", "does not apply", criterion([TABLE], trials="w"))
    refused("data", "no complete row", criterion([TABLE.assign(x=np.nan)]))
    refused("batch", "whole number", criterion([TABLE], batch=0))


def test_what_needs_all_rows_is_refused_by_name(streamed, monkeypatch):
    for formula in ("y ~ center(x)", "y ~ poly(x, 2)", "y ~ I(x - np.mean(x))", "y ~ lag(x)"):
        refused("formula", "other rows", criterion([TABLE.dropna()], formula))
    monkeypatch.setattr(etafree.totals.chunked, "MOST_LEVELS", 20)
    refused("formula", "more than 20 levels", criterion([TABLE], "y ~ C(school)"))
    refused("scale", "pass a number", criterion([TABLE], loss=ef.losses.Huber(scale="mad")))
    refused("scale", "pass a number", lambda: streamed.with_loss(ef.losses.Huber(scale="mad")))
    refused("penalty", "huberized_l1", criterion([TABLE], penalty=ef.penalties.L1(0.1)))
    refused("y", "negative", lambda: streamed.with_loss(ef.losses.Poisson()))
    refused("clusters", "column's name", lambda: ef.target(streamed, clusters=TABLE.school))
    refused("clusters", "names no column", lambda: ef.target(streamed, clusters="nothing"))
    refused(
        "psu",
        "must name a column",
        lambda: ef.target(streamed, dependence=ef.Survey(strata="town")),
    )
    refused(
        "clusters",
        "missing",
        lambda: ef.target(criterion([TABLE])(), clusters="kind", correction="CR1"),
    )
    refused("weights", "in memory", lambda: streamed.reweighted(np.ones(streamed.n)))
    refused("criterion", "in memory", lambda: ef.target(streamed, meat=lambda s: s.T @ s))
    refused("criterion", "in memory", lambda: streamed.total.X)
    refused("clusters", "in parts", lambda: streamed.rows.groups("town", "clusters").codes)


def test_a_category_that_comes_late_or_after_the_first_pass():
    late = pieces(TABLE.sort_values("kind"), [300])
    made = criterion(late, FORMULA)()
    memory = ef.Criterion.from_formula(FORMULA, TABLE.sort_values("kind"), HUBER)
    same_target(*(ef.target(c, clusters="school") for c in (made, memory)))
    kinds = iter(["a", "a", "a", "a", "new"])
    made = criterion(
        lambda: [TABLE.assign(kind=TABLE.kind.fillna("a").replace("a", next(kinds)))], "y ~ kind"
    )()
    refused("formula", "categories", lambda: made.value(np.zeros(made.p)))


# Tables that could mislead


def folder_of(path, *tables):
    """Write tables as the files of a folder."""
    path.mkdir()
    for k, table in enumerate(tables):
        table = table if isinstance(table, pa.Table) else pa.Table.from_pandas(table)
        pq.write_table(table, path / f"{k}.parquet")
    return path


def same_fit(data, table, formula="y ~ x", **options):
    made = criterion(data, formula, clusters="school", **options)()
    memory = ef.Criterion.from_formula(formula, table, HUBER, **options)
    for correction in ("CR1", "CR3"):
        same_target(
            *(ef.target(c, clusters="school", correction=correction) for c in (made, memory))
        )


def test_files_whose_columns_have_other_types(tmp_path):
    """Arrow casts to the first file's types: doubles to floats, text to numbers."""
    first, rest = TABLE.iloc[:200].dropna(), TABLE.iloc[200:].dropna()
    for k, (name, kind) in enumerate({"x": "float32", "t": "int16", "o": "float32"}.items()):
        narrow = first.astype({name: kind})
        same_fit(
            folder_of(tmp_path / str(k), narrow, rest), pd.concat([narrow, rest]), f"y ~ {name}"
        )
    whole = first.assign(x=first.x.round().astype(int))
    same_fit(folder_of(tmp_path / "whole", whole, rest), pd.concat([whole, rest]))
    same_fit(folder_of(tmp_path / "missing", first.assign(x=None), rest), rest)
    empty = pd.DataFrame(columns=TABLE.columns)
    same_fit(folder_of(tmp_path / "empty", empty, TABLE), TABLE, FORMULA)
    category = first.astype({"town": "category"})
    same_fit(folder_of(tmp_path / "category", category, rest), pd.concat([first, rest]), "y ~ town")
    for name in ("x", "school"):
        texts = rest.assign(**{name: rest[name].astype(str)})
        path = folder_of(tmp_path / f"text {name}", first, texts)
        refused("data", "1.parquet", criterion(path, clusters="school"))


def test_parts_without_rows_teach_nothing():
    empty = pd.DataFrame(columns=TABLE.columns)  # all of its types are wrong
    for parts in ([empty, TABLE], [TABLE.iloc[:300], empty, TABLE.iloc[300:]]):
        same_fit(parts, TABLE, FORMULA)


def test_a_sorted_table_does_not_hide_a_formula_that_looks_at_other_rows():
    """Every part of one year: in each of them ``year - np.min(year)`` is zero."""
    years = [TABLE.assign(year=2001 + k, y=TABLE.y + np.sin(k * TABLE.t)) for k in range(3)]
    table = pd.concat(years, ignore_index=True)
    for parts in (pieces(table, [600, 1200]), pieces(table, [900])):
        for formula in ("y ~ I(year - np.min(year))", "y ~ I(x * year / np.max(year))"):
            refused("formula", "other rows", criterion(parts, formula))
    same_fit(pieces(table, [600, 1200]), table, "y ~ I(year - 2001) + np.exp(x)")


@pytest.mark.parametrize(
    "numbers",
    [
        2**53 + np.arange(40),
        2**63 - 41 + np.arange(40),
        np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 40),
        np.uint64(2**63) + np.arange(40, dtype=np.uint64),
        np.arange(-120, 120, 6, dtype=np.int8),
    ],
    ids=["2**53", "2**63", "hashes", "unsigned", "int8"],
)
def test_whole_numbers_as_labels_stay_apart(numbers, tmp_path):
    table = TABLE.assign(school=numbers[TABLE.school // 7])
    for data in (pieces(table, [150]), folder_of(tmp_path / "f", table[:99], table[99:])):
        made = criterion(data, clusters="school")()
        assert made.rows.groups("school", "clusters").labels.tolist() == sorted(numbers.tolist())
        same = criterion(TABLE)()
        close(*(ef.target(c, clusters="school").covariance for c in (made, same)))


def test_labels_whose_type_differs_by_part():
    """As pandas reads a file of numbers: signed, unsigned or floating point, part by part."""
    first, rest = (part.dropna() for part in pieces(TABLE.sort_values("school"), [300]))
    rest = rest[rest.school > first.school.max()]
    unsigned = np.uint64(2**63) + rest.school.to_numpy().astype(np.uint64)
    made = criterion([first, rest.assign(school=unsigned)])()
    same = criterion([first, rest])()
    close(*(ef.target(c, clusters="school").covariance for c in (made, same)))
    parts = [first.assign(school=2**53 + first.school), rest.assign(school=1.0 * rest.school)]
    refused("clusters", "beyond 2**53", criterion(parts, clusters="school"))


def test_labels_that_read_the_same_are_refused_wherever_they_settle(monkeypatch):
    from etafree.data.labels import Column

    parts = [np.array([2, "a"], dtype=object), np.array([1, 3]), np.array(["1"], dtype=object)]
    for often in (False, True):
        tally = Column("g", "clusters").tally()
        for labels in parts[:2]:
            tally.add(labels, np.ones(2, dtype=int), np.ones(2))
            if often:
                assert tally.settled()[0].tolist() in (["2", "a"], ["1", "2", "3", "a"])
        tally.add(parts[2], np.ones(1, dtype=int), np.ones(1))
        refused("clusters", "read the same", tally.settled)


def test_labels_add_up_over_parts_and_long_numbers_stay_exact():
    from etafree.data.labels import Column, joined

    tally = Column("g", "clusters").tally()
    tally.add(np.array(["b", "a"]), np.array([1, 2]), np.array([1.0, 2.0]))
    tally.add(np.array(["b"]), np.array([3]), np.array([3.0]))
    assert [sums.tolist() for sums in tally.settled()] == [["a", "b"], [2, 4], [2.0, 4.0]]
    signed, unsigned = np.array([2**53 + 1]), np.array([2**63], dtype=np.uint64)
    assert joined([signed, unsigned], "clusters").tolist() == [2**53 + 1, 2**63]


def test_columns_that_stay_where_they_are_make_a_matrix():
    from etafree.data.labels import Columns

    X = Columns([None, np.array([2.0, 3.0, 5.0])], 3)
    assert (X.shape, X[1:3].tolist()) == ((3, 2), [[1.0, 3.0], [1.0, 5.0]])
    assert (X @ np.ones(2)).tolist() == [3.0, 4.0, 6.0]


def test_combinations_too_many_to_count(streamed):
    ways = [streamed.rows.groups(name, "clusters") for name in ("school", "town")]
    many = [way.labelled(range(2**32)) for way in ways]
    refused("clusters", "combinations", lambda: many[0].crossed(many[1]))


def test_columns_and_datasets_that_are_not_what_they_seem(folder, tmp_path):
    twice = pd.concat([TABLE, 2 * TABLE.x], axis=1)
    refused("data", "several columns named ['x']", criterion([twice]))
    refused("data", "several columns named ['x']", criterion([TABLE, twice]))
    arrow = pa.Table.from_pandas(TABLE)
    refused("data", "several columns", criterion(arrow.append_column("x", arrow["y"])))
    refused("data", "filter", criterion(ds.dataset(folder).filter(ds.field("x") > 0)))
    refused(
        "weights",
        "not numeric",
        criterion([TABLE.assign(w=TABLE.w.astype(str))], weights="w", weight_kind="sampling"),
    )
    same_fit(
        [TABLE.rename(columns={"t": 0}).assign(schema=1)], TABLE
    )  # names that are not asked for
    zoned = pd.to_datetime("2020-10-24", utc=True).tz_convert("Europe/Berlin")
    table = TABLE.assign(when=zoned + pd.to_timedelta(TABLE.school // 7, unit="h"))
    made = criterion(folder_of(tmp_path / "zone", table[:300], table[300:]))()
    memory = ef.Criterion.from_formula("y ~ x", table, HUBER)
    same_target(*(ef.target(c, clusters="when") for c in (made, memory)))


def test_a_file_that_is_written_anew_between_two_passes(folder, tmp_path):
    """With other rows, other numbers, or the order of rows alone: size and statistics the same."""
    path = folder_of(tmp_path / "f", TABLE[:300], TABLE[300:])
    file, kept = path / "1.parquet", TABLE[300:]
    for other in (pd.concat([kept, TABLE]), kept.assign(x=TABLE.x + 1), kept[::-1]):
        pq.write_table(pa.Table.from_pandas(kept, preserve_index=False), file)
        made, stamp = criterion(path)(), file.stat()
        pq.write_table(pa.Table.from_pandas(other, preserve_index=False), file)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        refused("data", "1.parquet' has changed", lambda made=made: made.value(np.zeros(2)))
    assert criterion(path)().value(np.zeros(2)) > 0


def test_a_file_of_arrows_own_that_is_written_anew(tmp_path):
    file = tmp_path / "rows.arrow"
    feather.write_feather(pa.Table.from_pandas(TABLE), file)
    made = criterion(ds.dataset(file, format="feather"))()
    assert made.value(np.zeros(2)) > 0
    feather.write_feather(pa.Table.from_pandas(TABLE[::-1]), file)
    refused("data", "rows.arrow' has changed", lambda: made.value(np.zeros(2)))


def test_a_file_that_changes_during_a_pass(tmp_path, monkeypatch):
    path = folder_of(tmp_path / "f", TABLE[:300], TABLE[300:])
    made, read = criterion(path)(), etafree.data.sources._batches

    def touching(piece, *rest, **options):
        (path / "0.parquet").touch()
        return read(piece, *rest, **options)

    monkeypatch.setattr(etafree.data.sources, "_batches", touching)
    refused("data", "0.parquet' has changed", lambda: made.value(np.zeros(2)))

"""The checks are not over-eager: every kind of valid input passes and gives the same answer."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etafree as ef
from etafree import losses, penalties

N, P, NAMES = 48, 3, ["a", "b", "c"]
RNG = np.random.default_rng(24)
#: Small whole numbers, so that every type of number holds them exactly.
X = np.column_stack([np.ones(N), RNG.integers(-4, 5, (N, P - 1))]).astype(float)
Y = np.round(X @ [1.0, 2.0, -1.0] + 3 * RNG.standard_normal(N))
DRAWS = np.round(64 * RNG.standard_normal((200, P))) / 64
GROUPS = np.arange(N) % 12


def read_only(array):
    out = np.array(array)
    out.flags.writeable = False
    return out


def strided(array):
    return np.repeat(np.repeat(array, 2, axis=0), 3, axis=-1)[::2, ..., ::3]


def reversed_rows(array):
    return np.ascontiguousarray(array[::-1])[::-1]


LAYOUTS = {
    "lists": lambda a: a.tolist(),
    "tuples": lambda a: tuple(map(tuple, a.tolist())),
    "integers": lambda a: a.astype(int),
    "small integers": lambda a: a.astype(np.int8),
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "big-endian": lambda a: a.astype(">f8"),
    "objects": lambda a: a.astype(object),
    "read-only": read_only,
    "Fortran order": np.asfortranarray,
    "strided": strided,
    "negative strides": reversed_rows,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "DataFrame": lambda a: pd.DataFrame(a, columns=NAMES),
    "DataFrame of nullable numbers": lambda a: pd.DataFrame(a, columns=NAMES).astype("Int64"),
}


def criterion(X=X, y=Y, loss=None, **options):
    return ef.Criterion(loss or losses.Squared(), (X, y), names=NAMES, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_and_type_of_numbers_gives_the_same_target(layout):
    plain, made = ef.target(criterion()), ef.target(criterion(LAYOUTS[layout](X)))
    np.testing.assert_array_equal(made.center, plain.center)
    np.testing.assert_array_equal(made.covariance, plain.covariance)


WHOLE = [name for name in LAYOUTS if "integers" not in name and "nullable" not in name]


@pytest.mark.parametrize("layout", WHOLE)
def test_any_layout_and_type_of_draws_gives_the_same_calibration(layout):
    before = DRAWS.copy()
    plain, made = (ef.calibrate(d, criterion()) for d in (DRAWS, LAYOUTS[layout](DRAWS)))
    np.testing.assert_allclose(made.draws.array, plain.draws.array, rtol=1e-12)
    np.testing.assert_array_equal(DRAWS, before)


VECTORS = {
    "list": list,
    "tuple": tuple,
    "objects": lambda a: a.astype(object),
    "integers": lambda a: a.astype(int),
    "float32": lambda a: a.astype(np.float32),
    "read-only": read_only,
    "strided": lambda a: np.repeat(a, 2)[::2],
    "Series": pd.Series,
    "Series of nullable numbers": lambda a: pd.Series(a.astype(int), dtype="Int64"),
}


@pytest.mark.parametrize("layout", VECTORS)
def test_any_layout_of_response_weights_and_offset_gives_the_same_target(layout):
    turn, weights = VECTORS[layout], 1.0 + GROUPS % 3
    plain, made = (
        ef.target(criterion(y=f(Y), weights=f(weights), weight_kind="frequency", offset=f(weights)))
        for f in (np.asarray, turn)
    )
    np.testing.assert_array_equal(made.covariance, plain.covariance)


@pytest.mark.parametrize(
    "turn",
    [
        list,
        tuple,
        read_only,
        pd.Categorical,
        pd.Series,
        lambda a: a.astype(object),
        lambda a: a.astype("S"),
        lambda a: pd.array(a, dtype="string"),
    ],
)
def test_any_kind_of_labels_gives_the_same_clusters(turn):
    labels = np.array([f"region {k}" for k in GROUPS])
    plain = ef.target(criterion(), clusters=GROUPS)
    made = ef.target(criterion(), clusters=turn(labels))
    assert made.clusters == 12
    np.testing.assert_allclose(made.covariance, plain.covariance, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["i1", "u8", float, "M8[D]", "m8[D]"])
def test_numbers_and_dates_are_labels_too(dtype):
    assert ef.target(criterion(), clusters=GROUPS.astype(dtype)).clusters == 12


def test_labels_in_a_series_are_matched_by_index_whatever_their_order():
    index = [f"row {k}" for k in range(N)]
    data = pd.DataFrame(X, index=index, columns=["one", "u", "v"]), pd.Series(Y, index=index)
    made = ef.Criterion(losses.Squared(), data)
    labels = pd.Series([f"region {k}" for k in GROUPS], index=index)
    shuffled = labels.sample(frac=1.0, random_state=1)
    assert list(shuffled) != list(labels)
    found = ef.target(made, clusters=shuffled)
    np.testing.assert_array_equal(
        found.covariance, ef.target(made, clusters=list(labels)).covariance
    )
    more = pd.concat([shuffled, pd.Series(["elsewhere"], index=["row of another table"])])
    np.testing.assert_array_equal(found.covariance, ef.target(made, clusters=more).covariance)


def test_a_boolean_response_is_zeros_and_ones():
    draw = np.random.default_rng(3).random(N) < 1 / (1 + np.exp(-0.3 * X[:, 1]))
    plain, made, trials = (
        ef.target(criterion(y=y, loss=losses.Logistic(), trials=m))
        for y, m in ((draw.astype(float), None), (draw, None), (draw, np.ones(N, dtype=int)))
    )
    np.testing.assert_array_equal(made.covariance, plain.covariance)
    np.testing.assert_allclose(trials.covariance, plain.covariance, rtol=1e-10)


def test_responses_on_the_edge_of_the_range_pass():
    share = np.where(np.arange(N) % 3 == 0, 0.0, np.where(np.arange(N) % 3 == 1, 1.0, 0.25))
    assert np.isfinite(ef.target(criterion(y=share, loss=losses.Logistic())).se).all()
    counts = np.arange(N) % 4
    for loss in (losses.Poisson(), losses.NegativeBinomial(0.5)):
        assert np.isfinite(ef.target(criterion(y=counts, loss=loss)).se).all()


@pytest.mark.parametrize(("clustered", "independent"), [("CR0", "HC0"), ("CR3", "HC3")])
def test_one_row_per_cluster_is_the_same_as_no_clusters(clustered, independent):
    alone = ef.target(criterion(), clusters=np.arange(N), correction=clustered)
    plain = ef.target(criterion(), correction=independent)
    np.testing.assert_allclose(alone.covariance, plain.covariance, rtol=1e-10)


@pytest.mark.parametrize("draws", [DRAWS[:, 0], DRAWS[:, :1], DRAWS[None, :, :1]])
def test_one_parameter_passes_in_every_shape(draws):
    one = ef.Criterion(losses.Huber(), (np.ones((N, 1)), Y), penalties.Ridge(0.1))
    sampled = ef.sample(ef.GeneralizedPosterior(one, 0.5), draws=50, seed=1)
    assert sampled.values.shape == (1, 50, 1)
    for made in (
        ef.calibrate(draws, one, clusters=GROUPS),
        ef.calibrate(draws, ef.target(one, center=1.0, hessian=[[2.0]], meat=3.0)),
        ef.calibrate(draws, center=1.0, covariance=2.0),
        ef.calibrate(draws, ef.Target([1], [[2]], dof=np.inf)),
    ):
        assert made.draws.array.shape == (200, 1)
        assert np.isfinite(made.interval().to_numpy()).all()


def test_frequency_weights_of_zero_are_rows_that_are_not_there():
    weights = np.arange(N) % 3
    plain = criterion(np.repeat(X, weights, axis=0), np.repeat(Y, weights))
    for correction in ("HC0", "HC1", "HC3"):
        made = ef.target(criterion(weights=weights, weight_kind="frequency"), correction=correction)
        want = ef.target(plain, correction=correction)
        np.testing.assert_allclose(made.covariance, want.covariance, rtol=1e-9)
    grouped = ef.target(criterion(weights=weights, weight_kind="frequency"), clusters=GROUPS)
    assert grouped.clusters == len(set(GROUPS[weights > 0]))


def test_the_smallest_number_of_draws_and_clusters_that_can_be_used_passes():
    assert len(ef.calibrate(DRAWS[: P + 2], criterion()).draws) == P + 2
    assert ef.target(criterion(), clusters=np.arange(N) % (P + 1)).clusters == P + 1


def test_columns_in_very_different_units_are_not_collinear():
    units = np.array([1.0, 1e-9, 1e9])
    plain, made = ef.target(criterion()), ef.target(criterion(X * units))
    np.testing.assert_allclose(made.se * units, plain.se, rtol=1e-7)
    ef.calibrate(DRAWS / units, criterion(X * units))


LOSSES = [losses.Squared(), losses.PseudoHuber(), losses.StudentT(), losses.Quantile(0.4, 1.0)]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(1, 4),
    loss=st.sampled_from(LOSSES),
    strength=st.sampled_from([None, 0.0, 0.1]),
    kind=st.sampled_from([None, "frequency", "sampling"]),
    clusters=st.sampled_from([None, 8, 30, 60]),
    root=st.sampled_from(["affine", "paper", "cholesky"]),
    eta=st.floats(1e-3, 1e3),
    level=st.floats(0.01, 0.99),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_generated_valid_input_passes(
    seed, p, loss, strength, kind, clusters, root, eta, level, scale
):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, p))
    made = ef.Criterion(
        loss,
        (X * scale, X.sum(axis=1) + rng.standard_normal(60)),
        None if strength is None else penalties.Ridge(strength * scale**2),
        weights=None if kind is None else rng.integers(0, 3, 60),
        weight_kind=kind,
    )
    groups = None if clusters is None else rng.permutation(np.arange(60) % clusters)
    draws = rng.standard_normal((2, 40, p)) / scale
    found = ef.calibrate(
        draws,
        made,
        clusters=groups,
        eta=eta,
        level=level,
        map=ef.Map(root=root, working="curvature"),
    )
    assert found.draws.values.shape == (2, 40, p)
    assert np.isfinite(found.draws.values).all()
    assert (found.interval()["lower"] < found.interval()["upper"]).all()

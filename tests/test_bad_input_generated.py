"""Hundreds of generated bad inputs: a valid call with one argument spoiled is always refused."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etafree as ef
from etafree import losses, penalties
from etafree.errors import EtafreeError, InputError

#: Bad inputs tried for each way to spoil an argument of a public function.
TRIES = 12

ENTRIES = st.sampled_from([np.nan, np.inf, -np.inf, None, pd.NA, "text", 1j, object()])
OBJECTS = st.sampled_from([object(), "text", 3.0, np.ones(3), {"a": 1}, losses.Squared])
SHORT_TEXT = st.text("abcdefghxyz_- ", max_size=8)


# --- ways to spoil one argument: each takes hypothesis' draw and a valid value ------------------


def entry(draw, good):
    """One entry, anywhere, that is no finite number."""
    bad = np.array(good, dtype=object)
    where = tuple(draw(st.integers(0, size - 1)) for size in bad.shape)
    bad[where] = draw(ENTRIES)
    return bad


def length(draw, good):
    """Fewer or more rows, or none."""
    rows = draw(st.sampled_from([0, 1, len(good) - 1, len(good) + 1, 2 * len(good)]))
    return np.resize(good, (rows, *np.shape(good)[1:])) if rows != len(good) else good[:0]


def dimension(draw, good):
    """One axis too many, at a place of its own."""
    return np.expand_dims(good, draw(st.integers(0, np.ndim(good))))


def thing(draw, good):
    """Something that is no array of numbers at all."""
    return draw(st.sampled_from(["text", object(), {"a": 1.0}, np.array("x"), 1j]))


def negative(draw, good):
    bad = np.array(good, dtype=float)
    bad[draw(st.integers(0, len(bad) - 1))] = -draw(st.floats(1e-6, 1e6))
    return bad


def zeros(draw, good):
    return np.zeros_like(good)


def asymmetric(draw, good):
    bad, row = np.array(good, dtype=float), draw(st.integers(1, len(good) - 1))
    bad[row, draw(st.integers(0, row - 1))] += draw(st.floats(0.01, 1e6))
    return bad


def indefinite(draw, good):
    """An eigenvalue below zero, along a direction of its own."""
    direction = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(len(good))
    away = draw(st.floats(1.5, 1e6)) * np.trace(good) / (direction @ direction)
    return good - away * np.outer(direction, direction)


def singular(draw, good):
    direction = 1.0 + np.random.default_rng(draw(st.integers(0, 99))).random(len(good))
    return np.outer(direction, direction)


def missing_label(draw, good):
    bad = np.array(good, dtype=object)
    bad[draw(st.integers(0, len(bad) - 1))] = draw(
        st.sampled_from([None, np.nan, pd.NA, pd.NaT, float("nan"), np.datetime64("NaT", "D")])
    )
    return bad


def few_labels(draw, good):
    """At most as many clusters as parameters, and at least two."""
    return np.arange(len(good)) % draw(st.integers(2, 3))


def few_draws(draw, good):
    return good[: draw(st.integers(0, good.shape[1] + 1))]


def constant(draw, good):
    bad = np.array(good)
    bad[:, draw(st.integers(0, bad.shape[1] - 1))] = draw(st.floats(-1e6, 1e6))
    return bad


def collinear(draw, good):
    """One column is a combination of the others, exactly or up to noise that is too small."""
    bad, p = np.array(good), good.shape[1]
    last = draw(st.integers(0, p - 1))
    others = [j for j in range(p) if j != last]
    factors = draw(st.lists(st.floats(0.5, 3.0), min_size=p - 1, max_size=p - 1))
    noise = draw(st.sampled_from([0.0, 1e-12, 1e-9])) * good[:, last]
    bad[:, last] = draw(st.sampled_from([1.0, 1e-3, 1e3])) * (good[:, others] @ factors + noise)
    return bad


def unknown(draw, good):
    odd = st.one_of(SHORT_TEXT, st.integers(), st.floats(), st.lists(SHORT_TEXT, max_size=2))
    return draw(odd.filter(lambda value: not isinstance(value, str) or value not in KNOWN))


def not_positive(draw, good):
    numbers = st.one_of(st.floats(max_value=0.0), st.sampled_from([np.nan, np.inf, 0, -1]))
    return draw(st.one_of(numbers, st.sampled_from(["text", "", 1j, [1.0], pd.NA, object()])))


def not_positive_number(draw, good):
    return draw(st.one_of(st.floats(max_value=0.0), st.sampled_from([np.nan, [1.0, 2.0]])))


def not_strength(draw, good):
    return draw(st.one_of(st.floats(max_value=-1e-9), st.sampled_from([np.nan, np.inf, "much"])))


def not_level(draw, good):
    numbers = st.one_of(st.floats(max_value=0.0), st.floats(min_value=1.0), st.just(np.nan))
    return draw(st.one_of(numbers, st.sampled_from(["text", 1j, [0.9], None, object()])))


def not_count(draw, good):
    return draw(
        st.one_of(st.integers(max_value=0), st.floats(), st.sampled_from(["9", None, True]))
    )


def not_seed(draw, good):
    numbers = st.one_of(st.integers(max_value=-1), st.floats())
    return draw(st.one_of(numbers, st.sampled_from(["text", object(), 1j])))


def not_names(draw, good):
    if draw(st.booleans()):
        count = draw(st.sampled_from([k for k in range(7) if k != len(good)]))
        return [f"name {k}" for k in range(count)]
    bad = list(good)
    first = draw(st.integers(0, len(bad) - 2))
    bad[first] = bad[draw(st.integers(first + 1, len(bad) - 1))]
    return bad


def wrong_object(draw, good):
    return draw(OBJECTS)


VECTOR = (entry, length, dimension, thing)
MATRIX = (entry, length, dimension, thing, asymmetric, indefinite, singular, zeros)
LABELS = (missing_label, length, few_labels)
SAMPLE = (entry, few_draws, constant, collinear, thing)
KNOWN = {
    "affine",
    "paper",
    "cholesky",
    "location-scale",
    "scale",
    "draws",
    "curvature",
    "map",
    "one_step",
    "mean",
    "frequency",
    "sampling",
    "auto",
    "importance",
    "elliptical",
    "quadrature",
}

# --- valid calls: function, its arguments, and how each of them can be spoiled ------------------


def world(seed, p):
    """Return valid data of n = 24 rows and p columns, with draws and matrices that go with it."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((24, p))
    root = rng.standard_normal((p, p)) + 2 * np.eye(p)
    return {
        "X": X,
        "y": X.sum(axis=1) + rng.standard_normal(24),
        "weights": rng.uniform(0.5, 2.0, 24),
        "vector": rng.standard_normal(p),
        "matrix": root @ root.T + np.eye(p),
        "labels": np.array([f"g{k}" for k in range(8)] * 3),
        "draws": rng.standard_normal((60, p)) @ root.T,
        "names": [f"b{k}" for k in range(p)],
    }


def build_criterion(loss, X, y, weights, weight_kind, offset, penalty, mu, Q, strength, names):
    if penalty is None:
        penalty = penalties.Ridge(strength, mu, Q)
    return ef.Criterion(
        loss, (X, y), penalty, weights=weights, weight_kind=weight_kind, offset=offset, names=names
    )


@cache
def calls(seed, p):
    """Return by name: a public function, valid arguments and the ways to spoil each of them."""
    w = world(seed, p)
    criterion = ef.Criterion(losses.PseudoHuber(), (w["X"], w["y"]), names=w["names"])
    posterior = ef.GeneralizedPosterior(criterion, 0.5)
    prior = ef.LogPrior.normal(np.zeros(p), np.eye(p))
    vector, matrix, labels, names = w["vector"], w["matrix"], w["labels"], w["names"]
    return {
        "Criterion": (
            build_criterion,
            {
                "loss": (losses.Huber(), (wrong_object,)),
                "X": (w["X"], VECTOR),
                "y": (w["y"], VECTOR),
                "weights": (w["weights"], (*VECTOR, negative, zeros)),
                "weight_kind": ("sampling", (unknown,)),
                "offset": (w["y"], VECTOR),
                "penalty": (None, (wrong_object,)),
                "mu": (vector, VECTOR),
                "Q": (matrix, (entry, length, dimension, thing, asymmetric, indefinite)),
                "strength": (0.5, (not_strength,)),
                "names": (names, (not_names,)),
            },
        ),
        "GeneralizedPosterior": (
            ef.GeneralizedPosterior,
            {
                "criterion": (criterion, (wrong_object,)),
                "eta": (0.5, (not_positive,)),
                "log_prior": (prior, (wrong_object,)),
            },
        ),
        "sample": (
            ef.sample,
            {
                "posterior": (posterior, (wrong_object,)),
                "draws": (100, (not_count,)),
                "seed": (1, (not_seed,)),
                "sampler": ("auto", (unknown,)),
            },
        ),
        "target": (
            lambda criterion, **rest: ef.target(criterion, **rest),
            {
                "criterion": (criterion, (wrong_object,)),
                "center": (vector, (*VECTOR, unknown)),
                "clusters": (labels, LABELS),
                "hessian": (matrix, MATRIX),
                "dof": (5.0, (not_positive_number,)),
                "correction": ("CR0", (unknown,)),
            },
        ),
        "target with a meat": (
            lambda **rest: ef.target(criterion, **rest),
            {"center": (vector, (*VECTOR, unknown)), "meat": (matrix, MATRIX)},
        ),
        "calibrate with a criterion": (
            ef.calibrate,
            {
                "draws": (w["draws"], SAMPLE),
                "of": (criterion, ()),
                "clusters": (labels, LABELS),
                "center": ("map", (unknown,)),
                "correction": ("CR1", (unknown,)),
                "map": ("affine", (unknown,)),
                "eta": (0.5, (not_positive,)),
                "level": (0.9, (not_level,)),
                "seed": (1, (not_seed,)),
            },
        ),
        "Map": (
            ef.Map,
            {
                "root": ("affine", (unknown,)),
                "kind": ("scale", (unknown,)),
                "working": ("curvature", (unknown,)),
            },
        ),
        "calibrate with a covariance": (
            ef.calibrate,
            {
                "draws": (w["draws"], SAMPLE),
                "center": (vector, (*VECTOR, unknown)),
                "covariance": (matrix, MATRIX),
                "map": ("paper", (unknown,)),
                "eta": (0.5, (not_positive,)),
                "level": (0.9, (not_level,)),
            },
        ),
        "LocationScaleMap.between": (
            ef.LocationScaleMap.between,
            {
                "mean": (vector, (entry, length, thing)),
                "covariance": (matrix, MATRIX),
                "center": (vector, (entry, length, thing)),
                "target": (matrix, MATRIX),
                "root": ("cholesky", (unknown,)),
                "names": (names, (not_names,)),
            },
        ),
    }


#: Where the error may rightly name another argument: the one that no longer fits the spoiled one.
BLAMED = {"X": {"X", "y"}, "mean": {"mean", "covariance"}}


@pytest.mark.parametrize("name", calls(0, 3))
def test_the_calls_are_valid_until_an_argument_is_spoiled(name):
    for seed, p in ((0, 3), (1, 4), (2, 5)):
        function, arguments = calls(seed, p)[name]
        function(**{key: value for key, (value, _) in arguments.items()})


SPOILS = [
    pytest.param(name, argument, way, id=f"{name}: {argument}, {way.__name__}")
    for name, (_, arguments) in calls(0, 3).items()
    for argument, (_, ways) in arguments.items()
    for way in ways
]


@pytest.mark.parametrize(("name", "argument", "way"), SPOILS)
def test_a_valid_call_with_one_argument_spoiled_is_refused(name, argument, way):
    tried = 0

    @settings(max_examples=TRIES, deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 20), st.integers(3, 5), st.data())
    def attempt(seed, p, data):
        nonlocal tried
        function, arguments = calls(seed, p)[name]
        values = {key: value for key, (value, _) in arguments.items()}
        values[argument] = way(data.draw, values[argument])
        tried += 1
        with pytest.raises(InputError) as info:
            function(**values)
        assert isinstance(info.value, EtafreeError)
        assert info.value.argument in BLAMED.get(argument, {argument})
        assert str(info.value).startswith(f"{info.value.argument}: {info.value.problem}")

    attempt()
    assert tried >= TRIES


def test_at_least_five_hundred_bad_inputs_are_generated():
    assert TRIES * len(SPOILS) >= 500

"""A saved file is read as it was saved, or refused by the name of what is not as it was."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etafree as ef
from etafree import result as archive
from etafree.errors import InputError
from etafree.foundation import storage

RNG = np.random.default_rng(3)
X = RNG.standard_normal((90, 3))
Y = X @ [1.0, 2.0, 0.0] + RNG.standard_t(3, 90)
SCHOOL = np.arange(90) % 30
HUBER = ef.Criterion(ef.losses.Huber(), (X, Y), names=["a", "b", "c"])
LASSO = ef.Criterion(ef.losses.Squared(), (X, Y), ef.penalties.L1(0.3), names=["a", "b", "c"])
DRAWS = RNG.standard_normal((2, 60, 3)) * 0.1 + [1.0, 2.0, 0.0]
LIKELIHOOD = -0.5 * (Y - DRAWS.reshape(-1, 3) @ X.T) ** 2
#: Results of every kind that a file can hold.
RESULTS: dict[str, Callable[[], ef.Calibration]] = {
    "normal": lambda: ef.calibrate(DRAWS, HUBER),
    "t": lambda: ef.calibrate(DRAWS, HUBER, clusters=SCHOOL),
    "Satterthwaite": lambda: ef.calibrate(DRAWS, HUBER, clusters=SCHOOL, correction="CR2"),
    "a kink": lambda: ef.calibrate(
        ef.sample(ef.GeneralizedPosterior(LASSO, 1.0), 200, seed=1), LASSO
    ),
    "jackknife": lambda: ef.calibrate(DRAWS, log_likelihood=LIKELIHOOD, eta=1.0),
    "given": lambda: ef.calibrate(DRAWS, center=[1.0, 0.0, 1e6], covariance=np.diag([1, 4, 9.0])),
    "given, t": lambda: ef.calibrate(
        DRAWS,
        ef.Target([1.0, 0.0, 1e6], np.diag([1, 4, 9.0]), dof=3),
        seed=np.random.default_rng(7),
    ),
    "scale": lambda: ef.calibrate(DRAWS, HUBER, map=ef.Map(root="paper", kind="scale")),
    "curvature": lambda: ef.calibrate(
        DRAWS, HUBER, eta=0.5, clusters=SCHOOL, map=ef.Map(root="cholesky", working="curvature")
    ),
}


@cache
def result(kind: str) -> ef.Calibration:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RESULTS[kind]()


def parts(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays, meta = archive.pack(result(kind))
    return {name: np.array(value) for name, value in arrays.items()}, json.loads(json.dumps(meta))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", RESULTS)
def test_every_kind_of_result_comes_back_as_it_was(kind, tmp_path):
    again = ef.Calibration.load(result(kind).save(tmp_path / "result.npz"))
    np.testing.assert_array_equal(again.draws.values, result(kind).draws.values)
    np.testing.assert_array_equal(again.target.covariance, result(kind).target.covariance)
    assert again.names == result(kind).names
    assert repr(again.checks) == repr(result(kind).checks)
    again.save(tmp_path / "again.npz")
    ef.Calibration.load(tmp_path / "again.npz")


# --- changed without the checksum ---------------------------------------------------------------


def members(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def changed(array: Any, data: Any) -> Any:
    """Another array that differs in one entry, in shape or in type."""
    if array.dtype.kind == "U":
        text = str(array)
        at = data.draw(st.integers(0, len(text) - 1))
        other = data.draw(st.sampled_from([c for c in "0aZ {" if c != text[at]]))
        return np.array(text[:at] + other + text[at + 1 :])
    way = data.draw(st.sampled_from(["entry", "shape", "type", "order"]))
    if way == "shape":
        return array.reshape(-1, 1) if array.ndim != 2 or array.shape[1] != 1 else array.T
    if way == "type":
        return array.astype(np.float32)
    out = array.copy()
    if way == "order" and not np.array_equal(out[::-1], out):
        return out[::-1].copy()
    where = np.unravel_index(data.draw(st.integers(0, out.size - 1)), out.shape)
    entry = out[where] if np.isfinite(out[where]) else 1.0
    out[where] = data.draw(st.sampled_from([np.nan, -entry - 1.0, np.nextafter(entry, np.inf)]))
    return out


@pytest.mark.parametrize("kind", ["map", "Satterthwaite", "jackknife"])
def test_whatever_member_of_a_file_is_changed_it_is_refused(kind, tmp_path):
    path = tmp_path / "result.npz"
    saved = result("t").map if kind == "map" else result(kind)
    whole = members(saved.save(path))
    load = type(saved).load

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def attempt(data):
        name = data.draw(st.sampled_from(sorted(whole)))
        np.savez(path, **{**whole, name: changed(whole[name], data)})
        with pytest.raises(InputError) as info:
            load(path)
        assert info.value.argument == "path"
        if not name.startswith("__"):
            assert name in info.value.problem

    attempt()
    for name in whole:
        np.savez(path, **{key: value for key, value in whole.items() if key != name})
        with pytest.raises(InputError):
            load(path)
        if not name.startswith("__"):
            np.savez(path, **whole, **{f"{name}_2": whole[name]})
            with pytest.raises(InputError, match=f"{name}_2"):
                load(path)
    np.savez(path, **whole)
    load(path)


def test_a_file_without_a_checksum_is_of_another_version(tmp_path):
    path = tmp_path / "result.npz"
    whole = members(result("t").save(path))
    del whole["__digest__"]
    np.savez(path, **whole)
    with pytest.raises(InputError, match="another version"):
        ef.Calibration.load(path)


# --- changed and saved as if nothing had happened ------------------------------------------------


def resaved(path: Path, arrays: dict[str, Any], meta: dict[str, Any]) -> Path:
    return storage.save_arrays(path, "calibration", arrays, meta)


NUMBERS = [(kind, name) for kind in RESULTS for name in sorted(parts(kind)[0])]


#: Numbers that nothing else can be held against: the Monte Carlo error of a standard error, a
#: factor that degrees of freedom do not depend on, the estimate that draws were not moved to.
FREE = {("jackknife", "se_error"), ("Satterthwaite", "satterthwaite_adjust"), ("scale", "center")}


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_numbers_that_do_not_fit_together_are_refused_with_a_right_checksum_too(
    kind, name, tmp_path
):
    arrays, meta = parts(kind)
    path, array = tmp_path / "result.npz", arrays[name]
    ways = {
        "is NaN": np.full_like(array, np.nan),
        "is too long": np.concatenate([array, array[:1]]),
    }
    if (kind, name) not in FREE:
        ways["is negative"] = -np.abs(array) - 1.0
        ways["is half as large again"] = (
            1.5 * array if np.any(array[np.isfinite(array)]) else array + 1.0
        )
        if name == "dof":
            ways["is half as large again"] = np.where(np.isinf(array), 5.0, 1.5 * array)
    if array.ndim == 2 and len(array) == array.shape[1]:
        lopsided = array.copy()
        lopsided[0, 1] += 0.3 * np.sqrt(np.abs(array[0, 0] * array[1, 1]))
        ways["is not symmetric"] = lopsided
    for other in ways.values():
        resaved(path, {**arrays, name: other}, meta)
        with pytest.raises(InputError, match="damaged"):
            ef.Calibration.load(path)


def test_draws_of_another_result_are_refused(tmp_path):
    other = ef.calibrate(DRAWS + 0.3 * np.sin(np.arange(60))[:, None], HUBER, clusters=SCHOOL)
    arrays, meta = parts("t")
    for name, values in (("draws", other.draws.values), ("original", other.original.values)):
        with pytest.raises(InputError, match="damaged"):
            ef.Calibration.load(resaved(tmp_path / "result.npz", {**arrays, name: values}, meta))


def set_in(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(meta: dict[str, Any]) -> None:
        for key in keys[:-1]:
            meta = meta[key]
        meta[keys[-1]] = value

    return change


WORDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "names in another order": set_in("names", value=["b", "a", "c"]),
    "all names in another order": set_in("all_names", value=["b", "a", "c"]),
    "a name twice": set_in("names", value=["a", "a", "c"]),
    "too few names": set_in("names", value=["a", "b"]),
    "names that are text": set_in("names", value="abc"),
    "other names": set_in("names", value=["x", "y", "z"]),
    "another kind": set_in("settings", "kind", value="scale"),
    "no kind": set_in("settings", "kind", value="no"),
    "no root": set_in("settings", "root", value="no"),
    "another root": set_in("settings", "root", value="cholesky"),
    "working from a curvature": set_in("settings", "working", value="curvature"),
    "a level that is none": set_in("settings", "level", value=2.0),
    "a level of NaN": set_in("settings", "level", value=float("nan")),
    "a setting more": set_in("settings", "more", value="x"),
    "a number of clusters below zero": set_in("target", "clusters", value=-3),
    "a number of rows that is NaN": set_in("target", "n", value=float("nan")),
    "a correction that is a number": set_in("target", "correction", value=3),
    "a covariance in the description": set_in("target", "covariance", value=[[1.0]]),
    "a source": set_in("sampler", "source", value="x"),
    "a learning rate below zero": set_in("sampler", "eta", value=-1.0),
    "a number of effective draws that is text": set_in("sampler", "info", "ess", value="many"),
    "a sampler that is a number": set_in("sampler", "sampler", value=3),
    "info that is none": set_in("sampler", "info", value=[1, 2]),
    "R-hat that is text": set_in("sampler", "info", value={"r_hat": "high"}),
    "a verdict that is none": set_in("checks", value=[["shape", 1.0, 2.0, "above", "great", ""]]),
    "checks that are numbers": set_in("checks", value=[1, 2]),
    "plug-ins that are text": set_in("plug_ins", value={"scale": "x"}),
    "stacked plug-ins that are none": set_in("target", "stacked", value=["width"]),
    "stacked plug-ins that are text": set_in("target", "stacked", value="scale"),
}


@pytest.mark.parametrize("what", WORDS)
def test_a_description_that_does_not_fit_is_refused_with_a_right_checksum_too(what, tmp_path):
    arrays, meta = parts("t")
    WORDS[what](meta)
    with pytest.raises(InputError, match="damaged"):
        ef.Calibration.load(resaved(tmp_path / "result.npz", arrays, meta))


def test_extreme_results_that_can_be_made_can_be_read(tmp_path):
    """Units of many sizes, strong correlation, few draws, large centres."""
    rng = np.random.default_rng(0)
    for size in (1e-30, 1.0, 1e30):
        for rho in (0.0, 1 - 1e-9):
            matrix = size**2 * np.array([[1.0, rho], [rho, 1.0]])
            root = np.linalg.cholesky(matrix)
            draws = rng.standard_normal((7, 2)) @ root.T + 1e5 * size
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = ef.calibrate(draws, ef.Target([1e6 * size, 0.0], matrix, dof=2))
                ef.Calibration.load(made.save(tmp_path / "result.npz"))

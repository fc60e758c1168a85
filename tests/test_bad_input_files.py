"""Bad formulas, contrasts and files are refused, and a failed save leaves nothing behind."""

import numpy as np
import pandas as pd
import pytest

import etafree as ef
from conftest import refused
from etafree import losses, penalties
from etafree.errors import EtafreeError

N, P = 40, 3
RNG = np.random.default_rng(22)
FRAME = pd.DataFrame(
    {
        "y": RNG.standard_normal(N),
        "x": RNG.standard_normal(N),
        "group": ["u", "v"] * (N // 2),
        "weight": np.arange(N) - 1.0,
        "gone": np.full(N, np.nan),
    }
)
DRAWS = RNG.standard_normal((300, P))
RESULT = ef.calibrate(
    ef.Draws.of(DRAWS, ["a", "b", "c"]), center=[1.0, 2.0, 3.0], covariance=np.eye(P)
)


def from_formula(formula, data=FRAME, loss=None, penalty=None, **options):
    loss = losses.Squared() if loss is None else loss
    return ef.Criterion.from_formula(formula, data, loss, penalty, **options)


FORMULAS = [
    ("formula", "`missing` is not present", lambda: from_formula("y ~ missing")),
    ("formula", "`missing` is not present", lambda: from_formula("missing ~ x")),
    ("formula", "columns: ['y', 'x'", lambda: from_formula("y ~ missing")),
    ("formula", "cannot be evaluated", lambda: from_formula("y ~ x +")),
    ("formula", "cannot be evaluated", lambda: from_formula("y ~ log(x")),
    ("formula", "cannot be evaluated", lambda: from_formula("y ~ nothing(x)")),
    ("formula", "cannot be evaluated", lambda: from_formula("y ~ x ~ group")),
    ("formula", "has no predictors", lambda: from_formula("y ~ 0")),
    ("formula", "gives 2 columns", lambda: from_formula("y + x ~ 1")),
    ("formula", "not numeric", lambda: from_formula("group ~ x")),
    ("formula", "response ~ predictors", lambda: from_formula("x")),
    ("formula", "response ~ predictors", lambda: from_formula("")),
    ("formula", "response ~ predictors", lambda: from_formula(None)),
    ("data", "pandas DataFrame", lambda: from_formula("y ~ x", {"y": [1.0], "x": [2.0]})),
    ("data", "no complete row", lambda: from_formula("y ~ gone")),
    ("data", "no complete row", lambda: from_formula("y ~ x", FRAME[:0])),
    ("X", "infinite", lambda: from_formula("y ~ x", FRAME.assign(x=np.inf))),
    ("loss", "pass a loss", lambda: from_formula("y ~ x", loss="huber")),
    ("penalty", "ef.penalties.Ridge", lambda: from_formula("y ~ x", penalty=0.5)),
    ("Q", "(2, 2)", lambda: from_formula("y ~ x", penalty=penalties.Ridge(1.0, Q=np.eye(3)))),
    ("weights", "no column 'w'", lambda: from_formula("y ~ x", weights="w")),
    ("offset", "no column 'o'", lambda: from_formula("y ~ x", offset="o")),
    ("trials", "no column 'm'", lambda: from_formula("y ~ x", trials="m")),
    (
        "weights",
        "negative value -1.0",
        lambda: from_formula("y ~ x", weights="weight", weight_kind="sampling"),
    ),
    ("weights", "cannot be read", lambda: from_formula("y ~ x", weights="group")),
    ("offset", "NaN", lambda: from_formula("y ~ x", offset="gone")),
    ("weight_kind", "is None", lambda: from_formula("y ~ x", weights=np.ones(N))),
    ("weights", "39 entries for 40 rows", lambda: from_formula("y ~ x", weights=np.ones(N - 1))),
    ("clusters", "are 2 for 2", lambda: ef.target(from_formula("y ~ x"), clusters="group")),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), FORMULAS)
def test_formulas_that_cannot_be_evaluated_are_refused(argument, fragment, call):
    refused(argument, fragment, call)


def test_columns_cut_by_missing_values_must_have_a_length_that_fits_one_way_or_the_other():
    holes = FRAME.assign(x=np.where(np.arange(N) < 4, np.nan, FRAME["x"]))
    made = from_formula("y ~ x", holes)
    refused(
        "clusters",
        "38 entries for 40 rows (36 in use)",
        lambda: ef.target(made, clusters=np.arange(38)),
    )


CONTRASTS = [
    ("contrast", "'d'", lambda: RESULT.test("d")),
    ("contrast", "names 'd'", lambda: RESULT.test("a - d = 0")),
    ("contrast", "names 'd'", lambda: RESULT.test(["a", "d"])),
    ("contrast", "names 'd'", lambda: RESULT.test({"a": 1.0, "d": -1.0})),
    ("contrast", "cannot be read", lambda: RESULT.test("a +")),
    ("contrast", "cannot be read", lambda: RESULT.test("a * b")),
    ("contrast", "is an inequality", lambda: RESULT.test("a < 0")),
    ("contrast", "not independent", lambda: RESULT.test(["a", "a"])),
    ("contrast", "not independent", lambda: RESULT.test("a - b, b - a")),
    ("contrast", "not independent", lambda: RESULT.test(np.ones((2, P)))),
    ("contrast", "not independent", lambda: RESULT.test(np.ones((P + 1, P)))),
    ("contrast", "row of zeros", lambda: RESULT.test(np.zeros(P))),
    ("contrast", "row of zeros", lambda: RESULT.test({"a": 0.0})),
    ("contrast", "pass (q, 3)", lambda: RESULT.test([1.0, 2.0])),
    ("contrast", "pass (q, 3)", lambda: RESULT.test(np.eye(4))),
    ("contrast", "pass (q, 3)", lambda: RESULT.test([])),
    ("contrast", "pass (q, 3)", lambda: RESULT.test(np.ones((1, 1, P)))),
    ("contrast", "NaN", lambda: RESULT.test([1.0, np.nan, 0.0])),
    ("contrast", "cannot be read", lambda: RESULT.test([1.0, 1j, 0.0])),
    ("contrast", "cannot be read", lambda: RESULT.test(object())),
    ("value", "has shape (2,) for 1", lambda: RESULT.test({"a": 1.0}, [1.0, 2.0])),
    ("value", "NaN", lambda: RESULT.test("a", np.nan)),
    ("value", "cannot be read", lambda: RESULT.test("a", "one")),
    ("theta", "must have shape (3,)", lambda: RESULT.region().contains([1.0])),
    ("theta", "NaN", lambda: RESULT.region().contains([1.0, np.nan, 0.0])),
    ("function", "parameters are ['a', 'b', 'c']", lambda: RESULT.of(lambda t: t["d"])),
    ("var_names", "'d' is not a parameter", lambda: RESULT.plot(["a", "d"])),
    ("target", "need a criterion", lambda: RESULT.paper()),
]


@pytest.mark.parametrize(("argument", "fragment", "call"), CONTRASTS)
def test_contrasts_and_questions_that_make_no_sense_are_refused(argument, fragment, call):
    refused(argument, fragment, call)


def test_more_contrasts_than_degrees_of_freedom_are_refused():
    few = ef.calibrate(DRAWS, ef.Target(DRAWS.mean(axis=0), np.eye(P), dof=1.5))
    refused("contrast", "1.5 degrees of freedom", lambda: few.test(np.eye(P)))
    refused("region", "more than 2 degrees of freedom", lambda: few.region())


def write(path, kind, what=ef.Calibration):
    """Write a file that is no save of a kind of object, and return its path."""
    whole = RESULT if what is ef.Calibration else RESULT.map
    saved = whole.save(path.with_name("whole.npz")).read_bytes()
    flipped = bytearray(saved)
    flipped[len(saved) // 2] ^= 0xFF
    content = {
        "empty": b"",
        "text": b"estimate,se\n1.0,0.1\n",
        "random bytes": np.random.default_rng(0).bytes(500),
        "one byte flipped": bytes(flipped),
    }
    if kind in content:
        path.write_bytes(content[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "other arrays":
        np.savez(path, a=np.ones(3))
    elif kind == "objects":
        np.savez(path, __meta__=np.array([{}], dtype=object))
    else:
        np.savez(path, __meta__=np.array(kind))
    return path


NO_SAVES = [
    "empty",
    "text",
    "random bytes",
    "one byte flipped",
    "folder",
    "other arrays",
    "objects",
    "{not json",
    "[1]",
    "3",
    "{}",
]


@pytest.mark.parametrize("kind", NO_SAVES)
@pytest.mark.parametrize("what", [ef.Calibration, ef.LocationScaleMap])
def test_files_that_are_no_saves_are_refused(what, kind, tmp_path):
    path = write(tmp_path / "file.npz", kind, what)
    refused("path", "is not a file saved by etafree", lambda: what.load(path))


@pytest.mark.parametrize("what", [ef.Calibration, ef.LocationScaleMap])
def test_a_file_that_is_not_there_is_refused(what, tmp_path):
    refused("path", "there is no file", lambda: what.load(tmp_path / "none.npz"))


def test_a_map_is_not_read_as_a_calibration_nor_a_calibration_as_a_map(tmp_path):
    whole, mapping = RESULT.save(tmp_path / "whole"), RESULT.map.save(tmp_path / "map")
    refused("path", "holds a map, not a calibration", lambda: ef.Calibration.load(mapping))
    refused("path", "holds a calibration, not a map", lambda: ef.LocationScaleMap.load(whole))


@pytest.mark.parametrize("saved", [RESULT, RESULT.map], ids=["calibration", "map"])
def test_saving_into_a_folder_that_does_not_exist_leaves_nothing_behind(saved, tmp_path):
    refused("path", "does not exist", lambda: saved.save(tmp_path / "no" / "such" / "file.npz"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    refused("path", "does not exist", lambda: saved.save(tmp_path / "file" / "inside.npz"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_save_that_fails_halfway_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = RESULT.map.save(tmp_path / "map.npz")
    before = path.read_bytes()

    def broken(file, **arrays):
        file.write(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises((OSError, EtafreeError)):
        RESULT.map.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["map.npz"]
    assert path.read_bytes() == before

"""Labels are aligned, never guessed: pandas by index, xarray by coordinate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import etafree as ef
from etafree.errors import InputError

N = 60
RNG = np.random.default_rng(4)
SCHOOL = np.repeat(np.arange(12), 5)
Y = RNG.standard_normal(12)[SCHOOL] + 0.3 * RNG.standard_normal(N)
DRAWS = 0.1 * RNG.standard_normal((1000, 1))
ORDER = RNG.permutation(N)


def fit(coordinate=None):
    likelihood = -0.5 * np.square(Y - DRAWS)
    coords = {} if coordinate is None else {"i": coordinate}
    return xr.DataTree.from_dict({
        "posterior": xr.Dataset({"b": (("chain", "draw"), DRAWS[None, :, 0])}),
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "i"), likelihood[None])}, coords),
    })  # fmt: skip


KEYS = [f"p{k}" for k in range(N)]


@pytest.mark.parametrize("coordinate", [None, np.arange(N), KEYS, np.arange(N)[::-1]])
@pytest.mark.parametrize("argument", ["clusters", "ways", "strata", "time"])
def test_shuffled_labels_give_the_same_answer(coordinate, argument):
    tree = fit(coordinate)
    index = np.arange(N) if coordinate is None else coordinate
    frame = pd.DataFrame({"school": SCHOOL, "other": np.arange(N) % 7, "t": np.arange(N),
                          "region": SCHOOL // 4}, index=index)  # fmt: skip

    def asked(table):
        if argument == "ways":
            return {"clusters": table[["school", "other"]]}
        if argument == "strata":
            return {"clusters": table["school"], "strata": table["region"]}
        return {argument: table["t" if argument == "time" else "school"]}

    plain = {k: v.to_numpy() for k, v in asked(frame).items()}
    expected = ef.calibrate(tree, **plain).target.se
    shuffled = frame.iloc[ORDER]
    assert ef.calibrate(tree, **asked(frame)).target.se == pytest.approx(expected)
    assert ef.calibrate(tree, **asked(shuffled)).target.se == pytest.approx(expected)


def test_labels_of_other_rows_are_refused():
    labels = pd.Series(SCHOOL, index=np.arange(N) + 1000)
    with pytest.raises(InputError, match="clusters: has no value for 60 of the rows"):
        ef.calibrate(fit(KEYS), clusters=labels)


def test_xarray_labels_go_by_coordinate():
    tree = fit(KEYS)
    labels = xr.DataArray(SCHOOL, dims="i", coords={"i": KEYS})
    expected = ef.calibrate(tree, clusters=SCHOOL).target.se
    assert ef.calibrate(tree, clusters=labels[ORDER]).target.se == pytest.approx(expected)
    other = labels.assign_coords(i=np.arange(N))
    with pytest.raises(InputError, match="other coordinates along 'i'"):
        ef.calibrate(tree, clusters=other)


def test_bambi_s_dropped_rows_are_dropped_from_labels():
    bmb = pytest.importorskip("bambi")
    x = RNG.standard_normal(N)
    x[[3, 17, 40]] = np.nan
    frame = pd.DataFrame({"y": Y, "x": x, "school": SCHOOL}, index=KEYS)
    model = bmb.Model("y ~ x", frame, dropna=True)
    model.build()
    kept = frame["x"].notna()
    draws = 0.1 * RNG.standard_normal((2, 200, 3))
    dims = ("chain", "draw")
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset({
        "Intercept": (dims, draws[..., 0]), "x": (dims, draws[..., 1]),
        "sigma": (dims, np.exp(draws[..., 2])),
    })})  # fmt: skip
    expected = ef.calibrate(tree, model=model, clusters=SCHOOL[kept]).target.se
    for labels in (SCHOOL, frame["school"], frame["school"].iloc[ORDER], "school",
                   frame.loc[kept, "school"].iloc[::-1]):  # fmt: skip
        made = ef.calibrate(tree, model=model, clusters=labels)
        assert made.target.clusters == 12
        assert made.target.se == pytest.approx(expected)

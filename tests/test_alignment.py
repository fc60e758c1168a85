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
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"b": (("chain", "draw"), DRAWS[None, :, 0])}),
            "log_likelihood": xr.Dataset({"y": (("chain", "draw", "i"), likelihood[None])}, coords),
        }
    )


KEYS = [f"p{k}" for k in range(N)]
WAYS = ("school", "other")


@pytest.mark.parametrize("coordinate", [None, np.arange(N), KEYS, np.arange(N)[::-1]])
@pytest.mark.parametrize("argument", ["clusters", "ways", "strata", "time"])
def test_shuffled_labels_give_the_same_answer(coordinate, argument):
    tree = fit(coordinate)
    index = np.arange(N) if coordinate is None else coordinate
    frame = pd.DataFrame(
        {"school": SCHOOL, "other": np.arange(N) % 7, "t": np.arange(N), "region": SCHOOL // 4},
        index=index,
    )

    def asked(table):
        if argument == "ways":
            return {"clusters": table[WAYS if isinstance(table, dict) else [*WAYS]]}
        if argument == "strata":
            return {"dependence": ef.Survey(table["school"], table["region"])}
        if argument == "time":
            return {"dependence": ef.TimeSeries(table["t"])}
        return {"clusters": table["school"]}

    plain = asked(
        {name: frame[name].to_numpy() for name in frame} | {WAYS: frame[[*WAYS]].to_numpy()}
    )
    expected = ef.calibrate(tree, **plain).target.se
    shuffled = frame.iloc[ORDER]
    assert ef.calibrate(tree, **asked(frame)).target.se == pytest.approx(expected)
    assert ef.calibrate(tree, **asked(shuffled)).target.se == pytest.approx(expected)


def test_labels_of_other_rows_are_refused():
    labels = pd.Series(SCHOOL, index=np.arange(N) + 1000)
    with pytest.raises(InputError, match="clusters: has no value for 60 of the rows"):
        ef.calibrate(fit(KEYS), clusters=labels)


@pytest.mark.parametrize("known", [False, True], ids=["jackknife", "model"])
def test_labels_of_a_table_with_gaps_go_by_position_where_the_fit_counts_its_rows(known):
    """Rows with missing values were dropped: PyMC keeps no index of the table."""
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b", 0, 100), 1, observed=Y)
    options = {"model": model, "correction": "CR1"} if known else {}
    labels = pd.Series(SCHOOL, index=np.arange(N) + np.arange(N) // 9)
    for unnamed in (fit(), fit(np.arange(N))):
        expected = ef.calibrate(unnamed, clusters=SCHOOL, **options).target.se
        made = ef.calibrate(unnamed, clusters=labels, **options)
        assert made.target.se == pytest.approx(expected, rel=1e-12)
        with pytest.raises(InputError, match="clusters: "):
            ef.calibrate(unnamed, clusters=labels[:-1], **options)
    with pytest.raises(InputError, match="has no value for"):
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
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {
                    "Intercept": (dims, draws[..., 0]),
                    "x": (dims, draws[..., 1]),
                    "sigma": (dims, np.exp(draws[..., 2])),
                }
            )
        }
    )
    expected = ef.calibrate(tree, model=model, clusters=SCHOOL[kept]).target.se
    for labels in (
        SCHOOL,
        frame["school"],
        frame["school"].iloc[ORDER],
        "school",
        frame.loc[kept, "school"].iloc[::-1],
    ):
        made = ef.calibrate(tree, model=model, clusters=labels)
        assert made.target.clusters == 12
        assert made.target.se == pytest.approx(expected)


SUBJECTS, TIMES = [f"s{k}" for k in range(12)], np.arange(2000, 2005)
TOWN = np.arange(12) // 2
GRID = xr.DataArray(
    np.repeat(TOWN[:, None], 5, axis=1),
    dims=("subject", "time"),
    coords={"subject": SUBJECTS, "time": TIMES},
)


def grid_fit():
    """Return a fit of 12 subjects at 5 times."""
    likelihood = -0.5 * np.square(Y.reshape(12, 5) - DRAWS[..., None])
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"b": (("chain", "draw"), DRAWS[None, :, 0])}),
            "log_likelihood": xr.Dataset(
                {"y": (("chain", "draw", "subject", "time"), likelihood[None])}, GRID.coords
            ),
            "observed_data": xr.Dataset(
                {"y": (("subject", "time"), Y.reshape(12, 5))}, GRID.coords
            ),
        }
    )


def grid_model():
    pm = pytest.importorskip("pymc")
    with pm.Model(coords={"subject": SUBJECTS, "time": TIMES}) as model:
        data = Y.reshape(12, 5)
        pm.Normal("y", pm.Normal("b", 0, 100), 1, observed=data, dims=("subject", "time"))
    return model


LONG = GRID.to_series()
SHUFFLED = LONG.iloc[ORDER]
OF_SUBJECTS = pd.Series(TOWN, pd.Index(SUBJECTS, name="subject"))
PERMUTED = np.random.default_rng(5).permutation(12)
ALIGNED = {
    "values": GRID.values,
    "both dimensions": GRID,
    "both, turned": GRID.transpose()[::-1, PERMUTED],
    "one dimension": GRID[:, 0].drop_vars("time"),
    "one, shuffled": GRID[PERMUTED, 0].drop_vars("time"),
    "MultiIndex": LONG,
    "MultiIndex, shuffled": SHUFFLED,
    "MultiIndex, swapped": LONG.swaplevel().sort_index(),
    "MultiIndex without names": SHUFFLED.rename_axis([None, None]),
    "a table": SHUFFLED.to_frame("town"),
    "a list": [SHUFFLED],
    "a mapping": {"town": SHUFFLED},
    "index of subjects": OF_SUBJECTS.iloc[PERMUTED],
    "index of subjects without a name": OF_SUBJECTS.rename_axis(None).iloc[PERMUTED],
    "wide": GRID.to_pandas().iloc[PERMUTED, ::-1],
    "numbers of observations": LONG.reset_index(drop=True).iloc[ORDER],
}
REFUSED = {
    "other names": (SHUFFLED.rename_axis(["a", "b"]), "give its levels these names"),
    "one too few": (SHUFFLED.iloc[:-1], "has no value for 1 of 60 labels of"),
    "twice": (pd.concat([LONG, LONG.iloc[:1]]), "twice in its index"),
    "one subject too few": (OF_SUBJECTS.iloc[1:], "has no value for 1 of 12 labels"),
    "other subjects": (OF_SUBJECTS.rename(index=str.upper), "has no value for 12 of 12 labels"),
    "other coordinates": (GRID.assign_coords(time=TIMES + 1), "other coordinates along 'time'"),
    "other dimensions": (GRID.rename(time="year"), "has dimensions {'subject': 12, 'year': 5}"),
    "wide, other labels": (GRID.assign_coords(time=TIMES + 1).to_pandas(), "along 'time'"),
}


@pytest.mark.parametrize("known", [False, True], ids=["jackknife", "model"])
def test_labels_of_observations_along_two_dimensions(known):
    tree, options = grid_fit(), {"correction": "CR1"}
    if known:
        options["model"] = grid_model()
    expected = ef.calibrate(tree, clusters=np.repeat(TOWN, 5), **options).target
    assert expected.clusters == 6
    some = ("values", "one, shuffled", "MultiIndex, shuffled", "a table", "wide")
    for name, labels in ALIGNED.items():
        if known and name not in some:  # each is compiled anew
            continue
        made = ef.calibrate(tree, clusters=labels, **options).target
        assert made.clusters == 6, name
        assert made.se == pytest.approx(expected.se), name
    assert ef.calibrate(tree, clusters="subject", **options).target.clusters == 12
    for name, (labels, problem) in REFUSED.items():
        with pytest.raises(InputError) as caught:
            ef.calibrate(tree, clusters=labels, **options)
        assert str(caught.value).startswith("clusters: "), name
        assert problem in str(caught.value), name


def test_several_ways_of_observations_along_two_dimensions():
    table = pd.DataFrame({"town": LONG, "t": LONG.index.get_level_values("time")})
    tree = grid_fit()
    plain = {"town": np.repeat(TOWN, 5), "t": np.tile(TIMES, 12)}
    expected = ef.calibrate(tree, clusters=plain).target
    for labels in (
        table.iloc[ORDER],
        {name: table[name].iloc[ORDER] for name in table},
        [GRID[:, 0].drop_vars("time").rename("town"), "time"],
    ):
        assert ef.calibrate(tree, clusters=labels).target.se == pytest.approx(expected.se)
    shuffled = table["t"].iloc[ORDER]
    series = [
        ef.calibrate(tree, dependence=ef.Panel(units, time, bandwidth=1), correction="DK").target.se
        for time, units in ((plain["t"], np.repeat(SUBJECTS, 5)), (shuffled, "subject"))
    ]
    assert series[0] == pytest.approx(series[1])


def test_a_model_s_labels_go_by_coordinate_too():
    pm = pytest.importorskip("pymc")
    with pm.Model(coords={"i": KEYS}) as model:
        pm.Normal("y", pm.Normal("b", 0, 100), 1, observed=Y, dims="i")
    tree = fit(KEYS)
    expected = ef.calibrate(tree, model=model, clusters=SCHOOL).target.se
    labels = xr.DataArray(SCHOOL, dims="i", coords={"i": KEYS})
    made = ef.calibrate(tree, model=model, clusters=labels[ORDER])
    assert made.target.se == pytest.approx(expected)
    bare = xr.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})
    made = ef.calibrate(bare, model=model, clusters=labels)
    assert made.target.se == pytest.approx(expected)


def test_labels_of_a_table_with_gaps_go_by_position_where_rows_are_in_groups():
    """Effects are integrated out, so that a loss is a group's; labels are of observations."""
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", 1.0)
        effects = pm.Normal("effect", 0.0, spread, shape=12)
        pm.Normal("y", pm.Normal("b", 0, 100) + effects[SCHOOL], 1.0, observed=Y)
    rng = np.random.default_rng(0)
    drawn = {
        "b": rng.standard_normal((2, 200)),
        "spread": np.exp(rng.standard_normal((2, 200))),
        "effect": rng.standard_normal((2, 200, 12)),
    }
    dims = {name: ("chain", "draw", "school")[: value.ndim] for name, value in drawn.items()}
    stored = xr.Dataset({name: (dims[name], value) for name, value in drawn.items()})
    tree = xr.DataTree.from_dict({"posterior": stored})
    labels = pd.Series(SCHOOL // 2, index=np.arange(N) + np.arange(N) // 9)
    expected = ef.calibrate(tree, model=model, clusters=SCHOOL // 2)
    made = ef.calibrate(tree, model=model, clusters=labels)
    np.testing.assert_allclose(made.target.covariance, expected.target.covariance, rtol=1e-12)
    with pytest.raises(InputError, match="clusters: "):
        ef.calibrate(tree, model=model, clusters=labels[:-1])
    alone = ef.calibrate(tree, model=model)
    count = len(np.unique(SCHOOL))
    assert alone.target.in_words().startswith(f"{count} independent groups, ")
    assert ef.table(alone).footer.loc["rows"].tolist() == [str(N)]

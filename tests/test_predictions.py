"""Predictions, averages, comparisons and slopes of calibrated results."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

import etafree as ef
from conftest import refused

RNG = np.random.default_rng(21)
N = 400
TABLE = pd.DataFrame(
    {
        "x": RNG.standard_normal(N),
        "g": RNG.choice(list("abc"), N),
        "b": RNG.random(N) < 0.4,
        "year": RNG.choice([2001, 2005, 2009], N),
        "school": np.arange(N) // 8,
    },
    index=[f"pupil {k}" for k in range(N)],
)
LEVEL = 0.2 + 0.5 * TABLE["x"] + 0.3 * (TABLE["g"] == "b") + 0.4 * TABLE["b"]
TABLE["count"] = RNG.poisson(np.exp(LEVEL))
TABLE["yes"] = (RNG.random(N) < 1 / (1 + np.exp(-LEVEL))).astype(float)
TABLE["y"] = LEVEL + RNG.standard_normal(N)
LOSSES = {
    "y": (ef.losses.Squared(), smf.ols),
    "count": (ef.losses.Poisson(), smf.poisson),
    "yes": (ef.losses.Logistic(), smf.logit),
}


def calibrated(response: str, right: str = "x * C(g) + b", **options: object) -> ef.Calibration:
    criterion = ef.Criterion.from_formula(f"{response} ~ {right}", TABLE, LOSSES[response][0])
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    settings = {"clusters": "school", "correction": "CR1", **options}
    return ef.calibrate(ef.sample(posterior, 4000, seed=1), posterior, **settings)


def of_statsmodels(response: str, right: str = "x * C(g) + b"):
    data = TABLE.assign(b=TABLE["b"].astype(float))
    clusters = {"groups": data["school"], "use_correction": False}
    fit = LOSSES[response][1](f"{response} ~ {right}", data)
    return fit.fit(
        cov_type="cluster", cov_kwds=clusters, **({} if response == "y" else {"disp": 0})
    )


@pytest.mark.parametrize("response", LOSSES)
def test_predictions_at_rows_are_those_of_statsmodels(response: str) -> None:
    result = calibrated(response, correction="CR0")
    theirs = of_statsmodels(response).get_prediction().summary_frame()
    ours = result.predict(kind="wald")
    assert ours.index.equals(TABLE.index)
    names = ["mean", "mean_se"] if response == "y" else ["predicted", "se"]
    np.testing.assert_allclose(ours[["estimate", "se"]], theirs[names], rtol=1e-5)
    drawn = result.predict()
    np.testing.assert_array_equal(drawn[["estimate", "se"]], ours[["estimate", "se"]])
    far = (drawn[["lower", "upper"]] - ours[["lower", "upper"]]).abs().max(axis=None)
    assert far < 0.25 * ours["se"].max()
    if response == "yes":
        assert ours["lower"].min() > 0
        assert ours["upper"].max() < 1


@pytest.mark.parametrize("response", ["count", "yes"])
def test_average_slopes_are_the_marginal_effects_of_statsmodels(response: str) -> None:
    result = calibrated(response, "x + b", correction="CR0")
    theirs = of_statsmodels(response, "x + b").get_margeff().summary_frame().loc["x"]
    ours = result.slopes("x", kind="wald")
    assert ours.index.tolist() == [("x", "slope")]
    np.testing.assert_allclose(ours.iloc[0][["estimate", "se"]], theirs.iloc[:2], rtol=1e-5)
    assert ours["t"].iloc[0] == pytest.approx(theirs.iloc[2], rel=1e-5)
    assert ours["p"].iloc[0] == pytest.approx(theirs.iloc[3], rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("response", LOSSES)
def test_comparisons_are_differences_of_predictions_with_the_delta_method(response: str) -> None:
    result = calibrated(response)
    table = result.comparisons(kind="wald")
    assert table.index.tolist() == [
        ("x", "+1"),
        ("g", "b - a"),
        ("g", "c - a"),
        ("b", "True - False"),
    ]

    def by_hand(theta: np.ndarray, high: pd.DataFrame, low: pd.DataFrame) -> float:
        X = [result.criterion.rows.right.rows(t, result.criterion.names)[0] for t in (high, low)]
        first, second = (result.criterion.loss.response(x @ theta) for x in X)
        return float((first - second).mean())

    changes = {
        ("x", "+1"): (TABLE.assign(x=TABLE["x"] + 1), TABLE),
        ("g", "c - a"): (TABLE.assign(g="c"), TABLE.assign(g="a")),
        ("b", "True - False"): (TABLE.assign(b=True), TABLE.assign(b=False)),
    }
    for key, pair in changes.items():
        center = result.target.center
        assert table.loc[key, "estimate"] == pytest.approx(by_hand(center, *pair), rel=1e-10)
        steps = 1e-5 * np.eye(len(center))
        slope = [(by_hand(center + s, *pair) - by_hand(center - s, *pair)) / 2e-5 for s in steps]
        variance = np.array(slope) @ result.target.covariance @ slope
        assert table.loc[key, "se"] == pytest.approx(np.sqrt(variance), rel=1e-5)
        draws = [by_hand(theta, *pair) for theta in result.draws.array[:300]]
        assert np.std(draws) == pytest.approx(table.loc[key, "se"], rel=0.2)


def test_an_identity_link_has_the_tests_of_its_coefficients() -> None:
    result = calibrated("y", "x + C(g)", correction="CR3")
    table = result.comparisons(kind="wald")
    for row, name in (("+1", "x"), ("b - a", "C(g)[T.b]")):
        made, wald = table.xs(row, level="contrast").iloc[0], result.interval(kind="wald").loc[name]
        np.testing.assert_allclose(made[["lower", "upper"]], wald[["lower", "upper"]], rtol=1e-8)
        assert made["p"] == pytest.approx(result.test(f"{name} = 0").p_value, rel=1e-6)
    slope = result.slopes("x", kind="wald").iloc[0]
    np.testing.assert_allclose(slope, table.iloc[0], rtol=1e-6)


def test_averages_by_cells_are_averages_of_rows() -> None:
    result = calibrated("count")
    rows = result.predict()
    by = result.average_predictions(["g", "b"])
    assert by.index.names == ["g", "b"]
    known = rows["estimate"].groupby([TABLE["g"], TABLE["b"]]).mean()
    np.testing.assert_allclose(by["estimate"], known.loc[by.index])
    one = result.average_predictions()
    assert one["estimate"].iloc[0] == pytest.approx(TABLE["count"].mean(), rel=1e-8)  # a GLM's
    split = result.comparisons("x", by="g")
    assert split.index.names == ["term", "contrast", "g"]
    shares = TABLE["g"].value_counts(normalize=True).loc[split.index.get_level_values("g")]
    whole = result.comparisons("x")["estimate"].iloc[0]
    assert split["estimate"].to_numpy() @ shares.to_numpy() == pytest.approx(whole)


def test_variables_change_as_asked() -> None:
    result = calibrated("count")
    table = result.comparisons({"x": 2, "g": ("b", "c")})
    assert table.index.tolist() == [("x", "+2"), ("g", "c - b")]
    between = result.comparisons({"x": (0, 1)}, kind="wald")
    ends = [result.average_predictions(newdata=TABLE.assign(x=float(k))) for k in (0, 1)]
    difference = ends[1]["estimate"].iloc[0] - ends[0]["estimate"].iloc[0]
    assert between["estimate"].iloc[0] == pytest.approx(difference)


def test_numbers_that_a_formula_takes_as_categories_go_from_level_to_level() -> None:
    result = calibrated("y", "x + C(year)")
    table = result.comparisons("year")
    assert table.index.tolist() == [("year", "2005 - 2001"), ("year", "2009 - 2001")]
    refused("variables", "has no slope", lambda: result.slopes("year"))
    assert result.slopes().index.tolist() == [("x", "slope")]


def test_new_rows_and_their_predictors() -> None:
    result = calibrated("count")
    new = pd.DataFrame({"x": [0.0, 1.0], "g": ["a", "c"], "b": [True, False]}, index=["p", "q"])
    made = result.predict(new, kind="wald")
    center = pd.Series(result.target.center, result.names)
    u = center["Intercept"] + center["b"], center["Intercept"] + center["x"]
    known = [u[0], u[1] + center["C(g)[T.c]"] + center["x:C(g)[T.c]"]]
    assert made.index.tolist() == ["p", "q"]
    np.testing.assert_allclose(made["estimate"], np.exp(known))
    link = result.predict(new, scale="link", kind="wald")
    np.testing.assert_allclose(link["estimate"], known)
    np.testing.assert_allclose(np.exp(link[["lower", "upper"]]), made[["lower", "upper"]])
    again = pickle.loads(pickle.dumps(result)).predict(new, kind="wald")
    pd.testing.assert_frame_equal(again, made)
    refused("newdata", "lacks ['b']", lambda: result.predict(new[["x", "g"]]))
    refused("newdata", "does not fit", lambda: result.predict(new.assign(g="z")))
    refused("newdata", "missing values in 1 row", lambda: result.predict(new.assign(x=[1, np.nan])))
    refused("newdata", "pass a DataFrame", lambda: result.predict(np.ones((2, 3))))
    refused("scale", "choose", lambda: result.predict(new, scale="mean"))
    refused("kind", "choose", lambda: result.predict(new, kind="delta"))
    refused("by", "name columns", lambda: result.average_predictions("h"))
    refused("variables", "choose from", lambda: result.comparisons("school"))
    refused("variables", "two of its values", lambda: result.comparisons({"g": 3}))


def test_arrays_tables_offsets_and_weights() -> None:
    X = np.column_stack([np.ones(N), TABLE["x"]])
    weights, offset = RNG.uniform(0.5, 2.0, N), RNG.uniform(0.0, 1.0, N)
    criterion = ef.Criterion(
        ef.losses.Poisson(),
        (pd.DataFrame(X, columns=["one", "x"]), TABLE["count"].to_numpy()),
        weights=weights,
        weight_kind="sampling",
        offset=offset,
    )
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    result = ef.calibrate(ef.sample(posterior, 1000, seed=1), posterior)
    u = X @ result.target.center + offset
    np.testing.assert_allclose(result.predict()["estimate"], np.exp(u))
    average = result.average_predictions()["estimate"].iloc[0]
    assert average == pytest.approx(np.average(np.exp(u), weights=weights))
    slope = result.slopes("x")["estimate"].iloc[0]
    assert slope == pytest.approx(average * result.target.center[1], rel=1e-8)
    refused("offset", "is needed", lambda: result.predict(X[:3]))
    made = result.predict(X[:3], offset=offset[:3])
    np.testing.assert_allclose(made["estimate"], np.exp(u[:3]))
    refused("offset", "that of the data", lambda: result.predict(offset=1.0))
    refused("offset", "has shape", lambda: result.predict(X[:3], offset=np.ones(2)))
    refused("newdata", "has 3 columns for 2", lambda: result.predict(np.ones((2, 3))))


def test_what_has_no_predictor_is_refused() -> None:
    draws = RNG.standard_normal((500, 1))
    plain = ef.calibrate(draws, center=[0.0], covariance=np.eye(1))
    part = calibrated("y", var_names="x")
    for result in (plain, part):
        for call in (result.predict, result.average_predictions, result.comparisons, result.slopes):
            refused("predict", "calibrate an ef.Criterion", call)


def test_zeros_of_a_penalty_with_a_kink_predict_as_zeros() -> None:
    X = pd.DataFrame(RNG.standard_normal((N, 4)), columns=list("abcd"))
    y = 2 * X["a"] - X["b"] + RNG.standard_normal(N)
    criterion = ef.Criterion(ef.losses.Squared(), (X, y), ef.penalties.L1(0.3))
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    result = ef.calibrate(ef.sample(posterior, 500, seed=1), posterior)
    assert result.inactive
    np.testing.assert_allclose(
        result.predict(X)["estimate"], X.to_numpy() @ ef.minimise(criterion).theta
    )


def test_takeuchi_s_criterion_is_what_leaving_out_one_row_finds() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((150, 3))
    wide = x[:, 0] + (1 + np.abs(x[:, 0])) * rng.standard_t(5, 150)
    for loss, y in (
        (ef.losses.Squared(), wide),
        (ef.losses.Huber(1.0, scale=1.0), wide),
        (ef.losses.Logistic(), (wide > 0).astype(float)),
    ):
        criterion = ef.Criterion(loss, (x, y), penalty=ef.penalties.Ridge(0.05))
        posterior = ef.GeneralizedPosterior(criterion, 1.0)
        draws = ef.sample(posterior, 500, seed=1)
        made = ef.calibrate(draws, posterior, correction="HC0").tic()
        left_out = 0.0
        for i in range(150):
            kept = np.arange(150) != i
            fit = ef.minimise(criterion.subset(np.flatnonzero(kept)))
            left_out += float(loss.values(x[i] @ fit.theta, y[i : i + 1])[0])
        assert made.value == pytest.approx(2 * (made.loss + made.parameters))
        assert left_out - made.loss == pytest.approx(made.parameters, rel=0.12)
    plain = ef.calibrate(rng.standard_normal((500, 1)), center=[0.0], covariance=np.eye(1))
    refused("tic", "calibrate an ef.Criterion", plain.tic)
    pairs = ef.Criterion(ef.Wilcoxon(), (x, wide))
    result = ef.calibrate(0.1 * rng.standard_normal((500, 3)), pairs)
    refused("tic", "", result.tic)


def test_takeuchi_s_criterion_is_akaike_s_for_a_model_that_is_right() -> None:
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(20_000), rng.standard_normal((20_000, 2))])
    y = rng.poisson(np.exp(x @ [0.5, 0.2, -0.1]))
    posterior = ef.GeneralizedPosterior(ef.Criterion(ef.losses.Poisson(), (x, y)), 1.0)
    made = ef.calibrate(ef.sample(posterior, 500, seed=1), posterior).tic()
    assert made.parameters == pytest.approx(3.0, rel=0.05)


def test_a_variable_of_zeros_and_ones_goes_from_zero_to_one() -> None:
    """As in other packages: one more than one is no value of an indicator."""
    data = TABLE.assign(treated=TABLE["b"].astype(int), half=TABLE["b"] + 0.5)
    results = {}
    for name in ("b", "treated", "half"):
        criterion = ef.Criterion.from_formula(f"count ~ x + {name}", data, ef.losses.Poisson())
        posterior = ef.GeneralizedPosterior(criterion, 1.0)
        results[name] = ef.calibrate(ef.sample(posterior, 500, seed=1), posterior)
    known = results["b"].comparisons("b", kind="wald")
    made = results["treated"].comparisons(kind="wald").loc[["treated"]]
    assert made.index.tolist() == [("treated", "1 - 0")]
    np.testing.assert_allclose(made, known, rtol=1e-6)
    new = data[data["treated"] == 1].head(5)  # the data say what it is, not the new rows
    assert results["treated"].comparisons("treated", newdata=new).index[0][1] == "1 - 0"
    assert results["treated"].comparisons({"treated": 1.0}).index[0][1] == "+1"
    assert results["half"].comparisons("half").index[0][1] == "+1"
    X = np.column_stack([np.ones(N), data["treated"]])
    plain = ef.Criterion(ef.losses.Poisson(), (X, data["count"].to_numpy()), names=["one", "t"])
    posterior = ef.GeneralizedPosterior(plain, 1.0)
    result = ef.calibrate(ef.sample(posterior, 500, seed=1), posterior)
    assert result.comparisons("t").index[0][1] == "1 - 0"
    assert result.comparisons("t", newdata=X[:3]).index[0][1] == "1 - 0"


def test_new_rows_may_be_a_dict_of_columns_and_single_values() -> None:
    result = calibrated("y", "x + C(g)")
    made = result.predict({"x": [0.0, 1.0], "g": "b"})
    table = pd.DataFrame({"x": [0.0, 1.0], "g": ["b", "b"]})
    pd.testing.assert_frame_equal(made, result.predict(table))
    assert len(result.predict({"x": 0.0, "g": "a"})) == 1
    refused(
        "newdata", "is not a table", lambda: result.predict({"x": [0.0, 1.0], "g": list("abc")})
    )

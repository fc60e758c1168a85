"""ArviZ in, ArviZ out: names, dimensions, files, stale groups and what is refused."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
import warnings

import arviz_stats
import numpy as np
import pytest
import xarray as xr
from arviz_base import from_dict

import etafree as ef
from conftest import refused
from etafree.errors import MissingExtraError
from etafree.fits import as_fit
from etafree.fits.trees import as_kind, as_tree, flat_names, read_tree, unflatten, write_netcdf

N, G, CHAINS, DRAWS = 240, 40, 2, 500
SCHOOL = np.array([f"s{k:02}" for k in np.arange(N) // 6])
COMPUTED = ("log_likelihood", "posterior_predictive", "sample_stats")


def exact_draws(seed=0):
    """Return data of a linear model and exact draws (chain, draw, 5) of its flat posterior."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(N), rng.standard_normal((N, 4))])
    y = X.sum(axis=1) + 0.7 * np.repeat(rng.standard_normal(G), 6) + rng.standard_normal(N)
    lower = np.linalg.cholesky(np.linalg.inv(X.T @ X))
    theta = np.linalg.lstsq(X, y)[0] + rng.standard_normal((CHAINS, DRAWS, 5)) @ lower.T
    return X, y, theta, -0.5 * (y - theta @ X.T) ** 2


X, Y, THETA, STORED = exact_draws()
CRITERION = ef.Criterion(ef.losses.Squared(), data=(X, Y))


def make(beta=("side", "term"), **groups):
    """Return a fit with a scalar, a matrix and every group there is."""
    dims = {"beta": list(beta), "y": ["obs"], "school": ["obs"], "year": ["obs"], "mu": ["obs"]}
    matrix = THETA[..., 1:].reshape(CHAINS, DRAWS, 2, 2)
    parts = {
        "posterior": {"intercept": THETA[..., 0], "beta": matrix},
        "log_likelihood": {"y": STORED},
        "posterior_predictive": {"y": THETA @ X.T},
        "sample_stats": {"lp": STORED.sum(axis=-1)},
        "observed_data": {"y": Y},
        "constant_data": {"school": SCHOOL, "year": np.arange(N)},
        **groups,
    }
    coords = {"side": ["left", "right"], "term": [10, 20], "obs": np.arange(100, 100 + N)}
    return from_dict(parts, coords=coords, dims=dims)


def group(fit, name):
    """Return a group of a fit of either kind as a Dataset."""
    return as_tree(fit)[name].to_dataset()


@pytest.fixture(scope="module")
def idata(fit_kind):
    return as_kind(make(), fit_kind)


@pytest.fixture(scope="module")
def summary(fit_kind):
    """ArviZ's own summary of a fit of that kind."""
    if fit_kind == "InferenceData":
        return importlib.import_module("arviz").summary
    return arviz_stats.summary


@pytest.fixture(scope="module")
def result(idata):
    return ef.calibrate(idata, clusters="school")


def test_one_line_is_enough(result):
    """The se are the sandwich's with exact scores; names are ArviZ's."""
    expected = ef.target(CRITERION, clusters=SCHOOL, correction="CR1").se
    table = result.summary()
    assert list(table.index) == [
        "intercept",
        "beta[left, 10]",
        "beta[left, 20]",
        "beta[right, 10]",
        "beta[right, 20]",
    ]
    assert np.all(np.abs(table["se"] / expected - 1) < 4 * table["se_error"] + 1e-9)
    assert result.target.dof.tolist() == [G - 1.0] * 5
    assert result.original.eta == 1.0


def test_names_are_those_of_arviz(idata, summary):
    posterior = group(idata, "posterior")
    names = [name for v in posterior for name in flat_names(v, posterior[v])]
    assert names == list(summary(idata).index)


def test_the_same_kind_comes_back(idata, result, fit_kind):
    made = result.to_arviz()
    assert type(made) is type(idata)
    assert type(made).__name__ == fit_kind
    before, after = group(idata, "posterior"), group(made, "posterior")
    assert list(after) == list(before)
    for name in after:
        assert after[name].dims == before[name].dims
        for dim in after[name].dims:
            xr.testing.assert_equal(after[dim], before[dim])
    np.testing.assert_array_equal(after["intercept"], result.draws.values[..., 0])
    np.testing.assert_array_equal(after["beta"][..., 1, 0], result.draws.values[..., 3])


def test_the_input_is_left_alone(idata, result):
    result.to_arviz()
    posterior = group(idata, "posterior")
    np.testing.assert_array_equal(posterior["intercept"], THETA[..., 0])
    assert "calibrated_by" not in posterior.attrs


def test_stale_groups_are_moved(idata, result):
    made = result.to_arviz()
    for name in (*COMPUTED, "posterior"):
        xr.testing.assert_identical(group(made, f"original_{name}"), group(idata, name))
    assert not set(COMPUTED) & set(as_tree(made).children)
    for name in ("observed_data", "constant_data"):
        xr.testing.assert_identical(group(made, name), group(idata, name))


def test_arviz_works_on_the_outcome(result, fit_kind, summary):
    made = result.to_arviz()
    table = summary(made, round_to="none")
    np.testing.assert_allclose(table["mean"], result.draws.mean)
    package = "arviz" if fit_kind == "InferenceData" else "arviz_plots"
    plots = pytest.importorskip(package, reason=f"{package} is not installed")
    assert plots.plot_forest(made, combined=True) is not None
    loo = plots.loo if fit_kind == "InferenceData" else arviz_stats.loo
    with pytest.raises((TypeError, ValueError), match=r"(?i)log.likelihood"):
        loo(made)


def test_how_it_was_made_is_in_the_attributes(result):
    attrs = group(result.to_arviz(), "posterior").attrs
    assert attrs["calibrated_by"] == f"etafree {ef.__version__}"
    assert attrs["calibration_target"] == result.target.describe()
    assert attrs["calibration_correction"] == "CR1"
    assert attrs["calibration_eta"] == 1.0
    assert attrs["calibration_left_out"] == ""
    own = {name: value for name, value in attrs.items() if name.startswith("calibrat")}
    assert all(isinstance(value, str | float | int) for value in own.values())


def test_files_go_round(idata, result, tmp_path):
    source = write_netcdf(idata, tmp_path / "fit.nc")
    found = ef.calibrate(source, clusters="school")
    np.testing.assert_allclose(found.draws.values, result.draws.values, rtol=1e-12)
    target = write_netcdf(found.to_arviz(), tmp_path / "calibrated.nc")
    again = read_tree(target)
    xr.testing.assert_equal(group(again, "posterior"), group(found.to_arviz(), "posterior"))
    assert again["posterior"].attrs["calibration_correction"] == "CR1"
    assert "original_log_likelihood" in again.children
    assert sorted(p.name for p in tmp_path.iterdir()) == ["calibrated.nc", "fit.nc"]
    refused("draws", "is calibrated already", lambda: ef.calibrate(target, clusters="school"))


@pytest.mark.filterwarnings("ignore:.*not defined in the InferenceData scheme")  # original_*
def test_arviz_reads_what_was_written(result, tmp_path):
    az = pytest.importorskip("arviz", reason="arviz is not installed")
    written = az.from_netcdf(write_netcdf(result.to_arviz(), tmp_path / "calibrated.nc"))
    beta = result.draws.values[..., 1:].reshape(CHAINS, DRAWS, 2, 2)
    np.testing.assert_array_equal(written["posterior"]["beta"], beta)


def test_zarr_stores_are_read(idata, result, tmp_path):
    with warnings.catch_warnings():  # zarr's own, about its consolidated metadata
        warnings.simplefilter("ignore")
        as_tree(idata).to_zarr(tmp_path / "fit.zarr")
    again = ef.calibrate(tmp_path / "fit.zarr")
    plain = ef.calibrate(idata)
    assert set(again.names) == set(plain.names)  # a store sorts its variables
    for name in plain.names:
        np.testing.assert_array_equal(again.original[name], plain.original[name])


def test_a_file_is_written_whole_or_not_at_all(idata, tmp_path):
    tree = as_tree(idata)
    broken = tree.copy()
    broken["posterior"].attrs["bad"] = {"a": 1}  # netCDF has no such attribute
    target = tmp_path / "fit.nc"
    with pytest.raises((TypeError, ValueError)):
        write_netcdf(broken, target)
    assert list(tmp_path.iterdir()) == []
    refused("path", "does not exist", lambda: write_netcdf(tree, tmp_path / "no" / "fit.nc"))


def test_dask_and_disk_backed_arrays(idata, tmp_path, monkeypatch):
    """Losses are read a few draws at a time, and the outcome is the same."""
    monkeypatch.setattr("etafree.jackknife.BLOCK", 50 * N)
    whole = ef.calibrate(idata, clusters="school").target
    chunked = as_tree(idata).chunk({"draw": 60, "obs": 100})
    lazy = ef.calibrate(chunked, clusters="school").target
    np.testing.assert_allclose(lazy.covariance, whole.covariance, rtol=1e-10)
    path = write_netcdf(idata, tmp_path / "fit.nc")
    np.testing.assert_allclose(
        ef.calibrate(path, clusters="school").target.covariance, whole.covariance, rtol=1e-10
    )


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"var_names": "intercept"}, ["intercept"]),
        ({"var_names": ["~beta"]}, ["intercept"]),
        ({"var_names": ["be"], "filter_vars": "like"}, ["beta"]),
        ({"var_names": ["^b.*a$"], "filter_vars": "regex"}, ["beta"]),
        ({"var_names": ["~^b"], "filter_vars": "regex"}, ["intercept"]),
    ],
)
def test_variables_are_chosen_as_in_arviz(idata, result, options, names):
    chosen = ef.calibrate(ef.from_arviz(idata, **options), clusters="school")
    made = chosen.to_arviz()
    posterior = group(made, "posterior")
    assert list(posterior) == names
    # Never mixed with the others.
    assert list(group(made, "original_posterior")) == ["intercept", "beta"]
    left = [name for name in ("intercept", "beta") if name not in names]
    assert posterior.attrs["calibration_left_out"] == ", ".join(left)
    se, error = result.summary()["se"], result.summary()["se_error"]
    np.testing.assert_allclose(chosen.summary()["se"], se[list(chosen.names)], rtol=4 * error.max())
    assert chosen.target.se_error.max() < 0.05


def test_labels_may_come_in_many_forms(idata, result):
    labels = group(idata, "constant_data")["school"]
    for given in (SCHOOL, list(SCHOOL), labels, labels.to_pandas(), "school"):
        made = ef.calibrate(idata, clusters=given)
        np.testing.assert_allclose(made.target.covariance, result.target.covariance)
    two = ef.calibrate(idata, clusters=["school", "year"]).target.design
    also = ef.calibrate(idata, clusters={"school": labels, "year": np.arange(N)}).target.design
    assert two == also == "40 school x 240 year clusters"
    assert (
        "a series of 240 periods"
        in ef.calibrate(idata, dependence=ef.TimeSeries("year")).target.design
    )
    assert (
        "40 PSUs in 4 strata"
        in ef.calibrate(idata, dependence=ef.Survey("school", labels.str.slice(1, 2))).target.design
    )


def test_labels_along_a_dimension_without_a_name():
    """As pm.Data("school", ...) without dims is stored: along school_dim_0."""
    town = np.arange(G)
    for dims in ({}, {"y": ["obs"]}):
        fit = from_dict(
            {
                "posterior": {"theta": THETA},
                "log_likelihood": {"y": STORED},
                "observed_data": {"y": Y},
                "constant_data": {"school": SCHOOL, "town": town, "grid": np.zeros((N, 2))},
            },
            dims=dims,
        )
        expected = ef.calibrate(fit, clusters=SCHOOL).target.covariance
        for given in ("school", fit["constant_data"]["school"]):
            made = ef.calibrate(fit, clusters=given).target.covariance
            np.testing.assert_allclose(made, expected)
        refused(
            "clusters",
            "names 'town', which has shape (40,) for 240 observations; choose from "
            "['school', 'y', ",
            lambda fit=fit: ef.calibrate(fit, clusters="town"),
        )
        refused(
            "clusters",
            "names no column 'county'; choose from ['school', ",
            lambda fit=fit: ef.calibrate(fit, clusters="county"),
        )
        refused(
            "time",
            "'town' of shape (40,), 'grid' of shape (240, 2)",
            lambda fit=fit: ef.calibrate(fit, dependence=ef.TimeSeries("month")),
        )


def test_an_index_without_a_named_dimension_finds_group_effects():
    fit = hierarchical()
    index = group(fit, "constant_data").drop_vars("obs").rename({"obs": "index_dim_0"})
    moved = swapped(fit, constant_data=index)
    refused("log_likelihood", "the group effects u", lambda: ef.calibrate(moved))


def test_observations_along_two_dimensions():
    """A panel (unit, time): labels along one dimension spread over the other."""
    stored = STORED.reshape(CHAINS, DRAWS, G, 6)
    dims = {"y": ["unit", "time"]}
    fit = from_dict(
        {"posterior": {"theta": THETA}, "log_likelihood": {"y": stored}},
        dims=dims,
        coords={"unit": [f"s{k:02}" for k in range(G)]},
    )
    expected = ef.calibrate(fit, clusters=SCHOOL).target.covariance
    unit = fit["log_likelihood"]["unit"]
    for given in ("unit", unit, SCHOOL.reshape(G, 6)):
        made = ef.calibrate(fit, clusters=given).target.covariance
        np.testing.assert_allclose(made, expected)


def test_several_log_likelihoods_are_chosen_or_added():
    both = {"y": STORED, "z": STORED[..., ::-1]}
    dims = {"y": ["obs"], "z": ["obs"]}
    fit = from_dict({"posterior": {"theta": THETA}, "log_likelihood": both}, dims=dims)
    refused("log_likelihood", "has several variables: ['y', 'z']", lambda: ef.calibrate(fit))
    refused("log_likelihood", "has no variable 'x'", lambda: ef.calibrate(fit, log_likelihood="x"))
    one = ef.calibrate(fit, log_likelihood="y").target.covariance
    alone = from_dict({"posterior": {"theta": THETA}, "log_likelihood": {"y": STORED}})
    np.testing.assert_allclose(one, ef.calibrate(alone).target.covariance)
    total = from_dict({"posterior": {"theta": THETA}, "log_likelihood": {"y": sum(both.values())}})
    for asked in ("sum", ["y", "z"]):
        made = ef.calibrate(fit, log_likelihood=asked, eta=0.5).target.covariance
        np.testing.assert_allclose(made, ef.calibrate(total, eta=0.5).target.covariance)
    for asked, fragment in ((["y", "y"], "names 'y' twice"), ([], "is an empty list")):
        refused(
            "log_likelihood", fragment, lambda asked=asked: ef.calibrate(fit, log_likelihood=asked)
        )


def several(dims=None, coords=None, **parts):
    """Return a fit with these log-likelihoods; ArviZ names the dimensions that have no name."""
    return from_dict(
        {"posterior": {"theta": THETA}, "log_likelihood": parts},
        dims=dims or {},
        coords=coords or {},
    )


def test_log_likelihoods_without_dimensions_add_up_by_position():
    """As PyMC writes them: y_dim_0 and z_dim_0 of equal length, or y_dim_0, y_dim_1, ..."""
    shape, back = (CHAINS, DRAWS, G, 6), STORED[..., ::-1]
    total = several(y=STORED + back)
    expected = ef.calibrate(total, clusters=SCHOOL).target
    for fit in (several(y=STORED, z=back), several(y=STORED.reshape(shape), z=back.reshape(shape))):
        for asked, names in (("sum", "y + z"), (["z", "y"], "z + y"), (("sum",), "y + z")):
            made = ef.calibrate(fit, log_likelihood=asked, clusters=SCHOOL)
            np.testing.assert_allclose(made.target.covariance, expected.covariance)
            assert made.target.estimand.endswith(f"minus log-likelihood of {names}")
            assert "log-likelihoods held fixed" not in made.flags()
    same = "only variables of the same observations add up"
    for fragment, fit in (
        (
            "'y' of shape (240,) and 'z' of shape (239,), so they are of different observations",
            several(y=STORED, z=STORED[..., 1:]),
        ),
        (same, several({"y": ["a"], "z": ["b"]}, y=STORED, z=STORED)),
        (same, several({"y": ["a"]}, y=STORED, z=STORED)),  # named for one of them only
        (same, several(None, {"z_dim_0": np.arange(N)[::-1]}, y=STORED, z=STORED)),
    ):
        refused("log_likelihood", fragment, lambda fit=fit: ef.calibrate(fit, log_likelihood="sum"))


def test_log_likelihoods_that_are_not_chosen_are_held_fixed():
    fit = several(y=STORED, z=STORED, w=STORED)
    made = ef.calibrate(fit, log_likelihood=["y", "z"], clusters=SCHOOL)
    assert "of y + z (w held fixed, not resampled)" in made.target.estimand
    assert made.diagnostics().loc["log-likelihoods held fixed", "verdict"] == "warn"
    text = str(made)
    assert "covers: the minimiser of the expected minus log-likelihood of y + z (w held" in text
    assert "w informed the draws but count" in text
    assert "(z, w held fixed" in ef.calibrate(fit, log_likelihood="y").target.estimand


def test_constants_and_copies_come_back_as_they_were():
    """A correlation matrix: ones on the diagonal, symmetric."""
    rho = np.tanh(THETA[..., 1])
    corr = np.ones((CHAINS, DRAWS, 2, 2))
    corr[..., 0, 1] = corr[..., 1, 0] = rho
    fit = make(posterior={"intercept": THETA[..., 0], "corr": corr})
    result = ef.calibrate(fit, clusters="school")
    made = result.to_arviz()["posterior"]["corr"].values
    assert np.all(made[..., [0, 1], [0, 1]] == 1.0)
    np.testing.assert_array_equal(made[..., 0, 1], made[..., 1, 0])
    assert np.std(made[..., 0, 1]) > 1.05 * np.std(rho)
    table = result.summary()
    assert list(table.index) == ["intercept", "corr[0, 1]", "corr[1, 0]"]
    np.testing.assert_allclose(table["se"], result.target.se[[0, 1, 1]], rtol=1e-6)
    assert "corr[1, 0]" in result.diagnostics().loc["left out, constant or copies", "advice"]


def test_deterministics_along_the_observations_are_left_out():
    parts = {"intercept": THETA[..., 0], "beta": THETA[..., 1:], "mu": THETA @ X.T}
    made = ef.calibrate(make(["k"], posterior=parts), clusters="school")
    assert "mu" in made.diagnostics().loc["left out, per observation", "advice"]
    assert "left out, per observation: mu" in str(made).splitlines()
    only = make(["k"], posterior={"mu": THETA @ X.T})
    refused("draws", "have one value per observation only: ['mu']", lambda: ef.calibrate(only))
    assert made.to_arviz()["posterior"].attrs["calibration_left_out"] == "mu"
    assert made.draws.p == 5


def test_deterministics_along_one_dimension_of_a_panel_are_left_out():
    """Computed for each unit, or for each observation along a dimension without a name."""
    means = THETA @ np.array([X[s == SCHOOL].mean(axis=0) for s in np.unique(SCHOOL)]).T
    parts, dims = {"theta": THETA, "means": means}, {"y": ["unit", "time"], "means": ["unit"]}
    panel = from_dict(
        {"posterior": parts, "log_likelihood": {"y": STORED.reshape(2, DRAWS, G, 6)}}, dims=dims
    )
    plain = from_dict(
        {"posterior": {"theta": THETA, "means": THETA @ X.T}, "log_likelihood": {"y": STORED}}
    )
    for fit in (panel, plain):
        made = ef.calibrate(fit, clusters=SCHOOL)
        assert made.draws.p == 5
        assert "left out, computed from others: means" in str(made).splitlines()


@pytest.mark.parametrize("whole", [True, False], ids=["alone", "with scalars"])
def test_coefficients_of_several_outcomes_are_parameters(whole):
    """B[outcome, term] with log-likelihood Y[obs, outcome]: the stacked regression's sandwich."""
    rng = np.random.default_rng(2)
    terms = X[:, :2]
    outcomes = terms @ [[1.0, 0.5], [0.0, 1.0]] + rng.standard_normal(G).repeat(6)[:, None]
    outcomes += rng.standard_normal((N, 2))
    lower = np.linalg.cholesky(np.linalg.inv(terms.T @ terms))
    B = np.linalg.lstsq(terms, outcomes)[0].T
    B = B + rng.standard_normal((CHAINS, DRAWS, 2, 2)) @ lower.T  # (chain, draw, outcome, term)
    mu = np.einsum("cdkj,ij->cdik", B, terms)
    parts = {"B": B} if whole else {"u": B[..., 0, 0], "v": B[..., 1, 0], "slope": B[..., 1]}
    both = ["obs", "outcome"]
    dims = {
        "B": ["outcome", "term"],
        "slope": ["outcome"],
        "mu": both,
        "Y": both,
        "school": ["obs"],
    }
    fit = from_dict(
        {
            "posterior": parts | {"mu": mu},
            "log_likelihood": {"Y": -0.5 * (outcomes - mu) ** 2},
            "constant_data": {"school": SCHOOL},
        },
        dims=dims,
        coords={"outcome": ["u", "v"], "obs": np.arange(N)},
    )
    design = np.einsum("ij,kl->iklj", terms, np.eye(2)).reshape(2 * N, 4)
    stacked = ef.Criterion(ef.losses.Squared(), data=(design, outcomes.reshape(-1)))
    expected = ef.target(stacked, clusters=SCHOOL.repeat(2), correction="CR1").se
    expected = expected[[0, 1, 2, 3] if whole else [0, 2, 1, 3]]
    for latent in ("auto", None):
        made = ef.calibrate(ef.from_arviz(fit, latent=latent), clusters="school")
        table = made.summary()
        assert np.all(np.abs(table["se"] / expected - 1) < 4 * table["se_error"] + 1e-9)
        assert "left out, per observation: mu" in str(made).splitlines()


def hierarchical(name="u", dim="school", labels=None, sigma=1.0):
    """Return a fit with an effect per school, drawn around its own spread."""
    rng = np.random.default_rng(1)
    effects = rng.standard_normal(G) + 0.3 * rng.standard_normal((CHAINS, DRAWS, G))
    noise = sigma + 0.01 * rng.standard_normal((CHAINS, DRAWS))
    coords = {dim: np.arange(G) if labels is None else labels, "obs": np.arange(N)}
    return from_dict(
        {
            "posterior": {"a": THETA[..., 0], name: effects, "sigma": noise},
            "log_likelihood": {"y": STORED},
            "constant_data": {"index": np.arange(N) // 6},
        },
        dims={name: [dim], "y": ["obs"], "index": ["obs"]},
        coords=coords,
    )


@pytest.mark.parametrize(
    ("fit", "clusters"),
    [
        (hierarchical(), SCHOOL),  # as many entries as clusters
        (hierarchical(labels=np.unique(SCHOOL)), SCHOOL),  # the clusters' own labels
        (hierarchical(), None),  # an index in constant_data
        (hierarchical("1|school", labels=[f"x{k}" for k in range(G)]), None),  # Bambi's name
    ],
    ids=["count", "labels", "index", "name"],
)
def test_group_effects_are_refused_with_the_number(fit, clusters):
    refused(
        "log_likelihood",
        "about 0.15 of the right ones",
        lambda: ef.calibrate(fit, clusters=clusters),
    )
    refused(
        "log_likelihood", "pass model=", lambda: ef.calibrate(fit, clusters=clusters, var_names="a")
    )
    made = ef.calibrate(ef.from_arviz(fit, var_names=["a"], latent=None), clusters=clusters)
    assert made.names == ("a",)


def test_group_effects_without_a_known_scale_get_the_formula():
    fit = hierarchical()
    renamed = group(fit, "posterior").rename({"sigma": "dispersion"})
    fit = swapped(fit, posterior=renamed)
    refused(
        "log_likelihood",
        "sigma^2 / (sigma^2 + m tau^2) for m observations",
        lambda: ef.calibrate(fit, clusters=SCHOOL),
    )


def test_other_dimensions_are_no_group_effects():
    """As many coefficients as clusters, but with labels of their own; computed effects too."""
    parts = {"last": THETA[..., 4], "gamma": THETA[..., :4]}
    four = np.arange(N) % 4
    for labels, argument in ((list("abcd"), None), (np.arange(4), "log_likelihood")):
        fit = from_dict(
            {"posterior": parts, "log_likelihood": {"y": STORED}},
            dims={"gamma": ["term"]},
            coords={"term": labels},
        )
        if argument is None:
            assert ef.calibrate(fit, clusters=four, var_names="last").target.clusters == 4
        else:
            refused(
                argument,
                "gamma",
                lambda fit=fit: ef.calibrate(fit, clusters=four, var_names="last"),
            )
    means = THETA @ np.array([X[s == SCHOOL].mean(axis=0) for s in np.unique(SCHOOL)]).T
    fit = make(
        ["k"], posterior={"intercept": THETA[..., 0], "beta": THETA[..., 1:], "means": means}
    )
    made = ef.calibrate(fit, clusters="school", var_names=["intercept", "beta"])
    assert made.draws.p == 5


def test_tempered_fits_need_their_eta():
    wide = THETA.mean(axis=(0, 1)) + (THETA - THETA.mean(axis=(0, 1))) * np.sqrt(10)
    stored = -0.5 * (Y - wide @ X.T) ** 2
    fit = from_dict({"posterior": {"theta": wide}, "log_likelihood": {"y": stored}})
    made = ef.calibrate(fit, clusters=SCHOOL, eta=0.1)
    expected = ef.target(CRITERION, clusters=SCHOOL, correction="CR1").se
    np.testing.assert_allclose(made.summary()["se"], expected, rtol=0.02)
    assert made.original.eta == 0.1


def test_a_criterion_of_ones_own_for_draws_of_another_package(idata):
    fit = from_dict({"posterior": {"theta": THETA}})  # no log-likelihood needed
    made = ef.calibrate(
        fit,
        ef.Criterion(ef.losses.Squared(), data=(X, Y), names=[f"theta[{k}]" for k in range(5)]),
        clusters=SCHOOL,
    )
    assert made.target.correction == "CR3"
    out = made.to_arviz()
    np.testing.assert_array_equal(out["posterior"]["theta"], made.draws.values)
    given = ef.calibrate(fit, center=np.zeros(5), covariance=np.eye(5)).to_arviz()
    means = given["posterior"]["theta"].mean(("chain", "draw"))
    np.testing.assert_allclose(means, 0, atol=1e-12)


def test_bare_datasets_without_coordinates():
    parts = {"theta": (("chain", "draw", "k"), THETA)}
    groups = {
        "posterior": xr.Dataset(parts),
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "obs"), STORED)}),
    }
    made = ef.calibrate(xr.DataTree.from_dict(groups), clusters=SCHOOL)
    assert made.names == tuple(f"theta[{k}]" for k in range(5))
    assert made.to_arviz()["posterior"]["theta"].dims == ("chain", "draw", "k")
    given = ef.calibrate(xr.Dataset(parts), center=np.zeros(5), covariance=np.eye(5))
    assert given.to_arviz()["posterior"]["theta"].shape == THETA.shape


def test_results_without_a_fit_become_a_tree():
    draws = np.random.default_rng(0).standard_normal((200, 2))
    made = ef.calibrate(
        ef.Draws.of(draws, ["a", "b"]), center=[0.0, 1.0], covariance=np.eye(2)
    ).to_arviz()
    assert type(made) is xr.DataTree
    assert made["posterior"]["b"].dims == ("chain", "draw")
    assert made["posterior"].attrs["calibration_target"] == "covariance given by the user"


def swapped(fit, **groups):
    """Return a fit of the same kind with some groups replaced, or dropped for None."""
    made = {name: group(fit, name) for name in as_tree(fit).children} | groups
    kept = {name: value for name, value in made.items() if value is not None}
    return as_kind(xr.DataTree.from_dict(kept), type(fit).__name__)


def test_bad_fits_are_refused(idata, tmp_path):
    stored, posterior = group(idata, "log_likelihood"), group(idata, "posterior")
    hole = stored.copy(deep=True)
    hole["y"][1, 7, 3] = np.nan
    cases = [
        ("log_likelihood", "pm.compute_log_likelihood", swapped(idata, log_likelihood=None)),
        (
            "log_likelihood",
            "has 499 draws, the posterior 500",
            swapped(idata, log_likelihood=stored.isel(draw=slice(1, None))),
        ),
        ("log_likelihood", "has 1 chains", swapped(idata, log_likelihood=stored.isel(chain=[0]))),
        (
            "log_likelihood",
            "has other draw labels than the posterior",
            swapped(idata, log_likelihood=stored.assign_coords(draw=np.arange(1, DRAWS + 1))),
        ),
        (
            "log_likelihood",
            "is not finite at 1 observation, the first at position 3",
            swapped(idata, log_likelihood=hole),
        ),
        (
            "log_likelihood",
            "is one number per draw",
            swapped(idata, log_likelihood=stored.sum("obs")),
        ),
        ("draws", "has no group 'posterior'", swapped(idata, posterior=None)),
        (
            "draws",
            "without dimension 'chain'",
            swapped(idata, posterior=posterior.isel(chain=0, drop=True)),
        ),
        ("draws", "NaN or infinite", swapped(idata, posterior=posterior.where(posterior.draw > 3))),
        ("var_names", "is not real-valued", swapped(idata, posterior=posterior.astype(int))),
    ]
    for argument, fragment, fit in cases:
        refused(argument, fragment, lambda fit=fit: ef.calibrate(fit, clusters=SCHOOL))


def test_bad_options_are_refused(idata):
    for argument, fragment, options in (
        ("clusters", "has 3 entries for 240 rows", {"clusters": [1, 2, 3]}),
        ("clusters", "names no column 'town'", {"clusters": "town"}),
        (
            "clusters",
            "has dimensions {'school': 3}",
            {"clusters": xr.DataArray([1, 2, 3], dims="school")},
        ),
        ("var_names", "alpha", {"var_names": ["alpha"]}),
        ("var_names", "leaves no parameter", {"var_names": ["~intercept", "~beta"]}),
        ("var_names", "is 3; pass names out of ['intercept', 'beta']", {"var_names": 3}),
        ("var_names", "is ['beta', 3]", {"var_names": ["beta", 3]}),
        ("log_likelihood", "is stored in the fit", {"log_likelihood": STORED}),
        ("eta", "must be a finite number above zero", {"eta": 0.0}),
        ("model", "is a str", {"model": "linear"}),
    ):
        refused(argument, fragment, lambda options=options: ef.calibrate(idata, **options))
    for argument, fragment, options in (
        (
            "var_names",
            "is not a valid regular expression: missing )",
            {"var_names": ["(("], "filter_vars": "regex"},
        ),
        ("filter_vars", "choose one of", {"var_names": ["a"], "filter_vars": "glob"}),
        ("filter_vars", "pass var_names= too", {"filter_vars": "like"}),
        ("latent", "choose one of", {"latent": "maybe"}),
    ):
        refused(argument, fragment, lambda options=options: ef.from_arviz(idata, **options))
    known = ef.from_arviz(idata)
    for argument, value in {"var_names": "beta", "eta": 1.0, "log_likelihood": "y"}.items():
        refused(
            argument, "belongs to the fit", lambda k={argument: value}: ef.calibrate(known, **k)
        )
    model = types.SimpleNamespace()
    refused(
        "model",
        "cannot be combined with a criterion",
        lambda: ef.calibrate(idata, CRITERION, model=model),
    )
    refused("prior", "ef.from_pymc", lambda: ef.calibrate(idata, model=lambda: None, eta=0.5))


def test_models_and_nothing_are_no_draws(idata):
    refused("draws", "is None; pass draws as an array", lambda: ef.calibrate(None))
    refused("draws", "is None", lambda: ef.calibrate(None, CRITERION))
    made = type("Model", (), {"__module__": "pymc.model.core"})
    for model in (made(), type("Mine", (made,), {})(), lambda x: None):
        refused(
            "draws",
            "is a model, not draws from it; pass draws",
            lambda model=model: ef.calibrate(model),
        )
        refused(
            "draws",
            "pass the model as model=",
            lambda model=model: ef.calibrate(model, clusters=SCHOOL),
        )


def test_files_that_are_no_fit_are_refused(tmp_path):
    refused("draws", "there is no such file", lambda: ef.calibrate(tmp_path / "fit.nc"))
    text = tmp_path / "text.nc"
    text.write_text("not a fit")
    refused("draws", "cannot be read as a netCDF file", lambda: ef.calibrate(text))
    other = tmp_path / "other.nc"
    xr.Dataset({"a": ("x", np.zeros(3))}).to_netcdf(other, engine="h5netcdf")
    refused("draws", "has no group 'posterior', only []", lambda: ef.calibrate(other))
    refused("draws", "only CSV files come as several", lambda: ef.calibrate([text, other]))
    folder = tmp_path / "store.zarr"
    folder.mkdir()
    refused("draws", "cannot be read as a zarr store", lambda: ef.calibrate(folder))


def test_variables_computed_from_others_are_named():
    """A square moves with its root: two parameters, one direction."""
    both = {"a": THETA[..., 0], "b": THETA[..., 1], "square": THETA[..., 1] ** 2}
    fit = from_dict({"posterior": both, "log_likelihood": {"y": STORED}})
    with pytest.raises(ef.errors.InputError, match=r"'b', 'square'.*computed from one another"):
        ef.calibrate(fit, clusters=SCHOOL)
    assert ef.calibrate(fit, clusters=SCHOOL, var_names="~square").names == ("a", "b")


def test_chains_that_disagree_are_flagged(idata):
    apart = THETA + np.array([0.0, 0.3])[:, None, None]
    fit = from_dict(
        {"posterior": {"theta": apart}, "log_likelihood": {"y": -0.5 * (Y - apart @ X.T) ** 2}}
    )
    found = ef.calibrate(fit, clusters=SCHOOL).diagnostics()
    assert found.loc["draws: R-hat", "verdict"] == "fail"
    assert found.loc["jackknife: needed over effective", "verdict"] == "warn"


def test_plain_draws_are_no_fits():
    for plain in (THETA, THETA.tolist(), ef.Draws.of(THETA), xr.DataArray(THETA)):
        assert as_fit(plain) is None


def test_recognising_fits_imports_nothing():
    code = """
import sys
import numpy as np
from etafree.fits import as_fit
assert as_fit(np.zeros((3, 1))) is None
print([m for m in ("xarray", "arviz", "pymc", "stan", "numpyro", "bambi") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unflatten_returns_whole_variables_only(idata):
    columns = {"intercept": np.zeros(3), "beta[left, 10]": np.zeros(3)}
    assert set(unflatten(group(idata, "posterior"), columns)) == {"intercept"}


class Squares:
    """A model with a bound: its variable is the exponential of what is calibrated."""

    def __init__(self, posterior):
        self.names = list(posterior)

    def __call__(self, theta):
        return {"scale": np.exp(theta[..., 0]), "both": np.stack([theta[..., 1]] * 2, axis=-1)}


@pytest.fixture(scope="module")
def bounded(fit_kind):
    """A calibration on the log scale, shown as the model's own variables."""
    from etafree.fits import Fit

    fit = from_dict(
        {
            "posterior": {
                "scale": np.exp(THETA[..., 0]),
                "both": np.stack([THETA[..., 1]] * 2, axis=-1),
            },
            "log_likelihood": {"y": STORED},
        },
        dims={"y": ["obs"]},
    )
    draws = ef.Draws.of(THETA[..., :2], ["scale_log", "slope"], 1.0)
    plain = ef.calibrate(draws, log_likelihood=STORED, clusters=SCHOOL)
    made = Fit(
        draws,
        fit,
        constrain=Squares(fit["posterior"]),
        kind=fit_kind,
        pointwise=lambda t: {"y": np.repeat(-(t[:, :1] ** 2), N, axis=1)},
    )
    return plain, ef.Calibration(
        plain.draws, plain.original, plain.target, plain.map, plain.settings, fit=made
    )


def test_variables_are_shown_on_their_own_scale(bounded):
    """Estimate and limits are images, the se is by the delta method."""
    plain, shown = bounded
    free, own = plain.summary(), shown.summary()
    assert list(own.index) == ["scale", "both[0]", "both[1]"]
    one = free.loc["scale_log"]
    np.testing.assert_allclose(own.loc["scale", "estimate"], np.exp(one["estimate"]))
    np.testing.assert_allclose(
        own.loc["scale", "se"], np.exp(one["estimate"]) * one["se"], rtol=1e-5
    )
    np.testing.assert_allclose(own.loc["scale", "lower"], np.exp(one["lower"]), rtol=1e-4)
    np.testing.assert_allclose(
        own.loc["scale", "upper_before"], np.exp(one["upper_before"]), rtol=1e-4
    )
    np.testing.assert_allclose(own.loc["both[1]", "se"], free.loc["slope", "se"], rtol=1e-8)
    np.testing.assert_allclose(own.loc["scale", "se_error"], one["se_error"])
    assert own.loc["both[1]", "p"] == pytest.approx(plain.test("slope = 0").p_value, rel=1e-7)
    assert np.isnan(own.loc["scale", ["t", "p"]].astype(float)).all()  # zero is no scale
    covariance = shown.cov_params()
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), shown.bse)
    wald = shown.interval(kind="wald").loc["scale"]
    assert wald["upper"] - np.exp(one["estimate"]) == pytest.approx(
        np.exp(one["estimate"]) - wald["lower"]
    )
    np.testing.assert_allclose(shown.of(lambda t: t["scale"]).estimate, np.exp(one["estimate"]))
    assert shown.of(lambda t: t["both"].sum(axis=-1)).draws.shape == (CHAINS * DRAWS,)
    refused("function", "asks for 'nothing'", lambda: shown.of(lambda t: t["nothing"]))
    assert len(shown.plot(["scale"]).axes) == 1
    refused("var_names", "'scale_log' is not a parameter", lambda: shown.plot(["scale_log"]))


def test_a_known_model_recomputes_the_log_likelihood(bounded, fit_kind):
    plain, shown = bounded
    made = shown.to_arviz()
    assert type(made).__name__ == fit_kind
    stored = group(made, "log_likelihood")["y"]
    assert stored.dims == ("chain", "draw", "obs")
    np.testing.assert_allclose(stored[..., 0], -(plain.draws.values[..., 0] ** 2))
    np.testing.assert_array_equal(group(made, "original_log_likelihood")["y"], STORED)
    scale = group(made, "posterior")["scale"]
    np.testing.assert_allclose(scale, np.exp(plain.draws.values[..., 0]))
    assert np.isfinite(arviz_stats.loo(as_tree(made)).elpd)


def test_a_page_is_written_once(result, bounded, tmp_path):
    path = result.report(tmp_path / "page.html")
    page = path.read_text()
    assert "beta[left, 10]" in page
    assert "infinitesimal jackknife" in page
    refused("path", "exists", lambda: result.report(path))
    assert bounded[1].report(path, force=True) == path
    assert "both[1]" in path.read_text()
    refused("path", "does not exist", lambda: result.report(tmp_path / "no" / "page.html"))
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_missing_extra_is_one_line(monkeypatch):
    pymc, numpyro = (importlib.import_module(f"etafree.fits.{n}") for n in ("pymc", "numpyro"))
    loaded = [name for name in sys.modules if name.startswith("numpyro.")]  # found first
    for module in ("pymc.sampling.jax", "numpyro", *loaded):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r'^[^\n]*pip install "etafree\[pymc\]"$'):
        pymc._jax_backend.__wrapped__()
    with pytest.raises(MissingExtraError, match=r'^[^\n]*pip install "etafree\[numpyro\]"$'):
        numpyro.numpyro_fit({"a": np.zeros((1, 10))}, lambda: None)

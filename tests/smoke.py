"""What an installed wheel must do with the core dependencies only; run in an empty environment.

It fits, samples, calibrates and reports, and prints what each missing extra says.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import etafree as ef
from etafree.errors import MissingExtraError

EXTRAS = (
    "arviz",
    "bambi",
    "cmdstanpy",
    "dask",
    "jax",
    "numpyro",
    "pymc",
    "pyarrow",
    "stan",
    "zarr",
)


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 5)
    X = np.column_stack([np.ones(200), rng.standard_normal(200)])
    y = X @ [1.0, 0.5] + rng.standard_normal(40)[group] + rng.standard_t(3, 200)
    return X, y, group


def fit_sample_calibrate() -> None:
    """Calibrate a Huber posterior and a stored log-likelihood; write a page and a file."""
    X, y, group = data()
    criterion = ef.Criterion(ef.losses.Huber(1.345), data=(X, y), names=["one", "x"])
    center = ef.minimise(criterion).theta
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=0.1), seed=1)
    result = ef.calibrate(draws, criterion, clusters=group)
    assert np.allclose(result.center, center)
    width = np.ptp(result.interval(kind="wald").to_numpy(), axis=1)
    again = ef.sample(ef.GeneralizedPosterior(criterion, eta=10.0), seed=1)
    other = ef.calibrate(again, criterion, clusters=group).interval(kind="wald")
    assert np.allclose(np.ptp(other.to_numpy(), axis=1), width)
    result.report("page.html")
    result.plot().savefig("plot.png")
    V = np.linalg.inv(X.T @ X)
    own = np.random.default_rng(1).multivariate_normal(V @ X.T @ y, V, size=(4, 1000))
    stored = -0.5 * (y - own @ X.T) ** 2
    jackknife = ef.calibrate(own, log_likelihood=stored, clusters=group)
    assert "infinitesimal jackknife, 40 clusters" in jackknife.details()
    assert jackknife.to_arviz()["posterior"].sizes == {"chain": 4, "draw": 1000}
    import xarray as xr

    groups = {
        "posterior": xr.Dataset({"beta": (("chain", "draw", "term"), own)}),
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "row"), stored)}),
    }
    xr.DataTree.from_dict(groups).to_netcdf("fit.nc", engine="h5netcdf")
    np.savetxt("data.csv", group, header="group", comments="", fmt="%d")


def stand_in(package: str, name: str):
    """Return an object that says it is another package's."""
    return type(name, (), {"__module__": f"{package}.core"})()


def missing_extras() -> None:
    """Ask for everything that needs an extra."""
    assert not [name for name in EXTRAS if find_spec(name)]
    X, y, _ = data()
    criterion = ef.Criterion(ef.losses.Huber(1.345), data=(X, y))
    posterior = ef.GeneralizedPosterior(criterion, eta=1.0)
    loss = ef.JaxLoss(lambda theta, row: (row["y"] - theta) ** 2)
    fit = ef.calibrate(ef.sample(posterior, seed=1), criterion).to_arviz()
    Path("fit.zarr").mkdir()
    asked = {
        "arviz": [lambda: ef.calibrate("fit.zarr")],
        "bambi": [lambda: ef.calibrate(fit, model=stand_in("bambi", "Model"))],
        "numpyro": [lambda: ef.calibrate(fit, model=lambda: None)],
        "pymc": [lambda: ef.calibrate(fit, model=stand_in("pymc", "Model"))],
        "stan": [
            lambda: ef.calibrate(stand_in("stan", "Fit")),
            lambda: ef.calibrate(["chain_1.csv"]),
        ],
        "jax": [
            lambda: ef.Criterion(loss, data={"y": y}, start=0.0).value(0.0),
            lambda: ef.sample(posterior, sampler="nuts", seed=1),
        ],
        "dask": [lambda: ef.Criterion.from_parquet(ef.losses.Squared(), "rows", "y ~ x")],
    }
    for extra, calls in asked.items():
        for call in calls:
            try:
                call()
            except MissingExtraError as error:
                told = str(error)
            else:
                raise AssertionError(f"{extra} is not missed")
            assert "\n" not in told, told
            assert told.endswith(f'pip install "etafree[{extra}]"'), told
            print(told)


if __name__ == "__main__":
    assert ef.__version__ == version("etafree")
    fit_sample_calibrate()
    missing_extras()

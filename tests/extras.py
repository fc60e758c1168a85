"""Each extra alone, as a user installs it: unpinned, in an empty environment, then used.

``python tests/extras.py`` does all of them (``make extras``), ``python tests/extras.py jax dask``
some; ``core`` is the package without an extra. Environments are made with uv where it is on the
PATH, else with pip, and are removed. Inside an environment, ``--use NAME`` runs the smoke test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def data():
    """Return a design (n, 2), responses and 40 groups of five rows."""
    import numpy as np

    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 5)
    X = np.column_stack([np.ones(200), rng.standard_normal(200)])
    return X, X @ [1.0, 0.5] + rng.standard_normal(40)[group] + rng.standard_normal(200), group


def close_to_least_squares(result, name="x"):
    """Assert that the slope's interval is that of clustered least squares, to a few per cent."""
    import etafree as ef

    X, y, group = data()
    target = ef.target(ef.Criterion(ef.losses.Squared(), (X, y)), clusters=group)
    row = result.summary().loc[name]
    assert abs(row["estimate"] - target.center[1]) < 0.5 * target.se[1], row
    assert 0.8 < row["se"] / target.se[1] < 1.25, row


def core() -> None:
    """Run the README's Python with warnings as errors."""
    import re

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.S))
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def arviz() -> None:
    import arviz as az
    import numpy as np
    from arviz_base import from_dict

    import etafree as ef

    X, y, group = data()
    V = np.linalg.inv(X.T @ X)
    theta = np.random.default_rng(1).multivariate_normal(V @ X.T @ y, V, size=(4, 1000))
    stored = -0.5 * (y - theta @ X.T) ** 2
    groups = {"posterior": {"b": theta}, "log_likelihood": {"y": stored}}
    tree = from_dict(groups)
    tree.to_zarr("fit.zarr")
    old = "InferenceData" in dir(az)  # ArviZ 0; in ArviZ 1 its name answers with a warning
    fit = az.from_dict(**groups) if old else tree
    for form in (fit, tree, "fit.zarr"):
        close_to_least_squares(ef.calibrate(form, clusters=group), "b[1]")
    assert len(az.summary(ef.calibrate(fit, clusters=group).to_arviz())) == 2


def bambi() -> None:
    import bambi
    import pandas as pd

    import etafree as ef

    X, y, group = data()
    table = pd.DataFrame({"x": X[:, 1], "y": y, "g": group})
    model = bambi.Model("y ~ x", table)
    idata = model.fit(draws=300, tune=300, chains=2, cores=1, random_seed=1, progressbar=False)
    close_to_least_squares(ef.calibrate(idata, model=model, clusters=group))


def dask() -> None:
    import pandas as pd

    import etafree as ef

    X, y, group = data()
    pd.DataFrame({"x": X[:, 1], "y": y, "g": group}).to_parquet("rows.parquet")
    criterion = ef.Criterion.from_parquet(
        ef.losses.Squared(), "rows.parquet", formula="y ~ x", clusters="g"
    )
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), seed=1)
    close_to_least_squares(ef.calibrate(draws, criterion, clusters="g"))


def jax() -> None:
    import etafree as ef

    X, y, group = data()
    loss = ef.JaxLoss(lambda theta, row: 0.5 * (row["y"] - row["X"] @ theta) ** 2)
    criterion = ef.Criterion(loss, data={"X": X, "y": y}, start=[0.0, 0.0])
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta=1.0), 400, seed=1, sampler="nuts")
    close_to_least_squares(ef.calibrate(draws, criterion, clusters=group), "theta[1]")


def numpyro() -> None:
    import jax
    import numpyro
    import numpyro.distributions as dist

    import etafree as ef

    X, y, group = data()

    def model(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=y)

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=300, num_samples=500, progress_bar=False
    )
    mcmc.run(jax.random.PRNGKey(0), X, y=y)
    fit = ef.from_numpyro(mcmc, args=(X,), kwargs={"y": y})
    close_to_least_squares(ef.calibrate(fit, clusters=group), "b[1]")


def pymc() -> None:
    import pymc

    import etafree as ef

    X, y, group = data()
    with pymc.Model() as model:
        b = pymc.Normal("b", 0.0, 10.0, shape=2)
        pymc.Normal("y", X @ b, 1.0, observed=y)
        idata = pymc.sample(
            draws=300, tune=300, chains=2, cores=1, random_seed=1, progressbar=False
        )
    close_to_least_squares(ef.calibrate(idata, model=model, clusters=group), "b[1]")


def stan() -> None:
    """Read CSV files; load pystan where this Python has it, as its models need a compiler."""
    from importlib.metadata import requires

    import numpy as np
    from packaging.requirements import Requirement

    import etafree as ef

    draws = np.random.default_rng(0).standard_normal((100, 3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "chain.csv")
        np.savetxt(path, draws, delimiter=",", header="lp__,b.1,b.2", comments="")
        assert ef.from_stan(path).draws.names == ("b[1]", "b[2]")
    wanted = [Requirement(line) for line in requires("etafree") or ()]
    marker = next(r.marker for r in wanted if r.name == "pystan")
    if marker.evaluate({"extra": "stan"}):
        import httpstan.models

        assert httpstan.models.import_services_extension_module
    else:
        print("there is no pystan for this Python")


SMOKE = {f.__name__: f for f in (core, arviz, bambi, dask, jax, numpyro, pymc, stan)}


def python_of(folder: Path) -> Path:
    """Return the Python of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(folder: Path, what: str) -> None:
    """Make an environment with the newest versions of everything."""
    uv, python = shutil.which("uv"), python_of(folder)
    if uv:
        make = [uv, "venv", "--quiet", "--no-python-downloads", "--python", sys.executable, folder]
        fill = [uv, "pip", "install", "--quiet", "--python", python, what]
    else:
        make = [sys.executable, "-m", "venv", folder]
        fill = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what]
    subprocess.run(make, check=True)
    subprocess.run(fill, check=True)


def main(names: list[str]) -> int:
    """Install and use each extra; print a line each and return how many failed."""
    failed = []
    for name in names or SMOKE:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            started, folder = time.perf_counter(), Path(place) / "env"
            try:
                install(folder, str(ROOT) if name == "core" else f"{ROOT}[{name}]")
                subprocess.run(
                    [python_of(folder), Path(__file__).resolve(), "--use", name],
                    check=True,
                    cwd=place,
                )
            except subprocess.CalledProcessError:
                failed.append(name)
            verdict = "failed" if name in failed else "works"
            print(f"{name:8} {verdict} ({time.perf_counter() - started:.0f} s)", flush=True)
    return len(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--use"]:
        SMOKE[sys.argv[2]]()
    else:
        sys.exit(main(sys.argv[1:]))

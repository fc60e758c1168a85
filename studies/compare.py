"""Learning-rate methods side by side: coverage, width and time on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from etafree.calibrate import calibrate
from etafree.draws import Draws
from etafree.errors import EtafreeError, InputError
from etafree.foundation.arguments import Array, as_count
from etafree.foundation.terminal import say
from etafree.learning_rates import METHODS, select
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study, write_outputs
from etafree.posterior import GeneralizedPosterior
from etafree.q_posterior import q_posterior
from etafree.resampling import (
    bayesbag,
    bootstrap,
    loss_likelihood_bootstrap,
    martingale_posterior,
    resampled_groups,
)
from etafree.samplers import sample
from studies.designs import DESIGNS, Comparison
from studies.problem import coverage

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["WAYS", "limits_of", "run_compare", "write_compare"]

#: Draws per posterior and per bootstrap.
DRAWS = 1000
#: Resamples of a bagged posterior; rows that a martingale posterior imagines for each observed one.
BAGS, IMAGINED = 50, 10
#: Data sets in a piece of the study, by how long a way takes.
BLOCKS = {"slow": 2, "bagged": 10, "fair": 25, "cheap": 100}
#: Data sets at most for a slow way and for bagging, and how many times as many for a cheap one.
SLOW_DATASETS, BAGGED_DATASETS, CHEAPER = 40, 200, 4
QUICK = 4
#: Ways that minimise or draw many times.
RESAMPLED = (
    "gpc",
    "matsubara",
    "kl_to_bayes",
    "martingale posterior",
    "loss-likelihood bootstrap",
    "bootstrap",
)
#: Designs in which SafeBayes has a closed form.
CLOSED_FORM = ("correctly specified", "wrong variance (4)", "variance = |x|^2")

Drawn = Callable[[Comparison, np.random.Generator], tuple[Draws, float, str]]


def _chosen(method: str, **options: Any) -> Drawn:
    """Return draws at the learning rate that a method chooses, with it and the method's status."""

    def draw(data: Comparison, rng: np.random.Generator) -> tuple[Draws, float, str]:
        posterior = GeneralizedPosterior(data.criterion, 1.0, data.prior)
        if method == "kl_to_bayes":
            options["reference"] = GeneralizedPosterior(data.reference, 1.0, data.prior)
        rate = select(posterior, method, clusters=data.clusters, seed=rng, **options)
        if not (np.isfinite(rate.eta) and rate.eta > 0):
            raise InputError("eta", f"is {rate.eta}")
        chosen = GeneralizedPosterior(data.criterion, rate.eta, data.prior)
        return sample(chosen, DRAWS, rng), rate.eta, rate.status

    return draw


def _at_one(data: Comparison, rng: np.random.Generator) -> tuple[Draws, float, str]:
    posterior = GeneralizedPosterior(data.criterion, 1.0, data.prior)
    return sample(posterior, DRAWS, rng), 1.0, "given"


def _calibrated(data: Comparison, rng: np.random.Generator) -> tuple[Draws, float, str]:
    draws = sample(GeneralizedPosterior(data.criterion, 1.0), DRAWS, rng)
    result = calibrate(draws, data.criterion, clusters=data.clusters, seed=rng)
    return result.draws, np.nan, "all ok" if result.flags() == "all ok" else "flagged"


def _bagged(data: Comparison, rng: np.random.Generator) -> tuple[Draws, float, str]:
    posterior = GeneralizedPosterior(data.criterion, 1.0, data.prior)
    draws = bayesbag(posterior, DRAWS, resamples=BAGS, clusters=data.clusters, seed=rng)
    return draws, 1.0, "given"


def _imagined(data: Comparison, rng: np.random.Generator) -> tuple[Draws, float, str]:
    groups = resampled_groups(data.criterion, data.clusters, "the bootstrap")
    units = data.criterion.n if groups is None else len(groups)
    options = {"horizon": IMAGINED * units, "clusters": data.clusters, "seed": rng}
    return martingale_posterior(data.criterion, DRAWS, **options), np.nan, "drawn"


def _direct(function: Callable[..., Draws]) -> Drawn:
    """Return draws that have no learning rate."""

    def draw(data: Comparison, rng: np.random.Generator) -> tuple[Draws, float, str]:
        draws = function(data.criterion, DRAWS, clusters=data.clusters, seed=rng)
        return draws, np.nan, "drawn"

    return draw


#: Every way to an interval, by label.
WAYS: dict[str, Drawn] = {
    "eta = 1": _at_one,
    **{name: _chosen(name) for name in METHODS if name != "safebayes"},
    "safebayes R": _chosen("safebayes", version="R"),
    "safebayes I": _chosen("safebayes", version="I"),
    "BayesBag, eta = 1": _bagged,
    "martingale posterior": _imagined,
    "loss-likelihood bootstrap": _direct(loss_likelihood_bootstrap),
    "bootstrap": _direct(bootstrap),
    "Q-posterior": _direct(q_posterior),
    "location-scale": _calibrated,
}
WAYS["gpc"] = _chosen("gpc", region="laplace")  # draws take seconds for each data set


def pace(design: str, way: str) -> str:
    """Return whether a way takes seconds ("slow"), tenths of them ("fair") or less ("cheap").

    Bagged posteriors are between the first two.
    """
    if way.startswith("safebayes") and design not in CLOSED_FORM:
        return "slow"
    if way.startswith("BayesBag"):
        return "bagged"
    return "fair" if way in RESAMPLED else "cheap"


def work(parameters: Parameters, seed: np.random.SeedSequence) -> Arrays:
    """Return limits (data set, way, 2, p), etas, seconds and statuses (data set, way), and truth.

    NaN where a method refuses the data or fails, as its status then says. The k-th data set of a
    design is the same in every piece of the study.
    """
    design, ways = parameters["design"], parameters["ways"]
    function, arguments = DESIGNS[design]
    out: dict[str, list[Any]] = {key: [] for key in ("limits", "eta", "seconds", "status", "truth")}
    streams = seed.spawn(parameters["count"])
    for k, stream in enumerate(streams, start=parameters["first"]):
        key = [parameters["seed"], list(DESIGNS).index(design), k]
        data = function(np.random.default_rng(key), **arguments)
        outcomes = [
            limits_of(WAYS[way], data, np.random.default_rng(child))
            for way, child in zip(ways, stream.spawn(len(ways)), strict=True)
        ]
        for name, values in zip(out, zip(*outcomes, strict=True), strict=False):
            out[name].append(values)
        out["truth"].append(data.truth)
    return {name: np.array(values) for name, values in out.items()}


def limits_of(
    way: Drawn, data: Comparison, rng: np.random.Generator
) -> tuple[Array, float, float, str]:
    """Return limits (2, p) of 95 % intervals, learning rate, seconds and status of one way.

    NaN where it refuses the data or fails.
    """
    began = time.process_time()
    try:
        draws, eta, status = way(data, rng)
        ends: Array = np.quantile(draws.array, [0.025, 0.975], axis=0)
    except EtafreeError as error:
        ends, eta = np.full((2, data.criterion.p), np.nan), np.nan
        status = "refused" if isinstance(error, InputError) else "failed"
    return ends, eta, time.process_time() - began, status


def run_compare(
    out: Path | str,
    *,
    datasets: int = 500,
    seed: int = 1,
    only: str | None = None,
    ways: str | None = None,
    quick: bool = False,
    **how: Unpack[How],
) -> pd.DataFrame:
    """Run the study, resuming what `out` holds, and return the long table.

    `datasets` counts those of ways that resample; four times as many of those that do not, at most
    two hundred of BayesBag, and forty of SafeBayes without its closed form. A row per design, way
    and parameter: coverage with its Monte Carlo error, mean width, median eta, median CPU seconds
    per data set, the most frequent status with its share, and data sets.
    """
    import pandas as pd

    count = QUICK if quick else as_count(datasets, "datasets", least=2)
    names = [name for name in DESIGNS if only is None or only in name]
    if not names:
        raise InputError("only", f"is {only!r}", f"designs are {list(DESIGNS)}")
    chosen = [way for way in WAYS if ways is None or ways in way]
    if not chosen:
        raise InputError("ways", f"is {ways!r}", f"ways are {list(WAYS)}")
    cells = []
    many = {
        "slow": 1 if quick else min(count, SLOW_DATASETS),
        "bagged": count if quick else min(count, BAGGED_DATASETS),
        "fair": count,
        "cheap": count if quick else CHEAPER * count,
    }
    for name in names:
        for speed, block in BLOCKS.items():
            paced = [way for way in chosen if pace(name, way) == speed]
            cells += [
                Cell(
                    f"{list(DESIGNS).index(name)}-{speed}-{first:06d}",
                    {
                        "design": name,
                        "ways": paced,
                        "first": first,
                        "seed": seed,
                        "count": min(block, many[speed] - first),
                    },
                )
                for first in range(0, many[speed] if paced else 0, block)
            ]
    settings = {"datasets": count, "designs": names, "ways": chosen, "draws": DRAWS}
    slow_first = sorted(cells, key=lambda cell: "slow" not in cell.key)
    results = run_study("compare", settings, slow_first, work, out, seed=seed, **how)
    rows: list[dict[str, object]] = []
    for cell_design in names:
        for way in chosen:
            blocks = [
                {
                    key: value[:, cell.parameters["ways"].index(way)] if key != "truth" else value
                    for key, value in results[cell.key].items()
                }
                for cell in cells
                if cell.parameters["design"] == cell_design and way in cell.parameters["ways"]
            ]
            arrays = {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}
            rows += _rows(cell_design, way, arrays)
    return pd.DataFrame(rows)


def _rows(design: str, way: str, arrays: Arrays) -> list[dict[str, object]]:
    limits, truth = arrays["limits"], arrays["truth"]
    kinds, many = np.unique(arrays["status"], return_counts=True)
    there = np.isfinite(limits[:, 0, 0])
    eta = arrays["eta"][np.isfinite(arrays["eta"])]
    common = {
        "design": design,
        "way": way,
        "eta": float(np.median(eta)) if len(eta) else np.nan,
        "seconds": float(np.median(arrays["seconds"])),
        "status": str(kinds[many.argmax()]),
        "status_share": float(many.max() / many.sum()),
        "datasets": int(there.sum()),
    }
    function, arguments = DESIGNS[design]
    names = function(np.random.default_rng(0), **arguments).criterion.names
    rows = []
    for j, parameter in enumerate(names):
        low, high = limits[there, 0, j], limits[there, 1, j]
        share, noise, width = np.nan, np.nan, np.nan
        if len(low):
            share, noise = coverage(low, high, truth[there, j])
            width = float((high - low).mean())
        rows.append(
            {
                **common,
                "parameter": parameter,
                "coverage": share,
                "coverage_se": noise,
                "width": width,
            }
        )
    return rows


def write_compare(out: Path | str, **options: Any) -> pd.DataFrame:
    """Run the study and write ``compare.csv``, ``compare.png`` and ``report.html`` into `out`."""
    from studies.compare_page import compare_page, compare_picture, overview

    table = run_compare(out, **options)
    settings = {
        "seed": options.get("seed", 1),
        "draws": DRAWS,
        "data sets": f"{table['datasets'].min()} to {table['datasets'].max()}",
    }
    say(overview(table).to_string(na_rep="-"))
    page = lambda png, settings: compare_page(table, png, settings)  # noqa: E731
    write_outputs(out, "compare", table, compare_picture(table), page, settings)
    return table

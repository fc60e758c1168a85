r"""Figure 1 of the paper: coverage, width and bias over twenty learning rates.

Three posteriors of the same data sets (exact Huber, the appendix's Gibbs, the sampler behind the
published curves), each calibrated with two meats, that is, two estimates of the variance of the
score: ``default`` (centred scores, CR3, t with G - 1) and ``printed`` (uncentred, normal; for the
published sampler the Hessian at the posterior mean). The picture and the page show them together
with the published curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.foundation.terminal import say
from etafree.map import student_factors
from etafree.optimize import minimise
from etafree.paper.random_intercept import Design, RandomIntercept, pseudo_true
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study, write_outputs
from etafree.paper.whitened import KINDS
from etafree.report.page import Section, picture_data, render, table_html
from etafree.report.plots import AFTER, BEFORE
from etafree.samplers.quadrature import distribution, stratified
from etafree.samplers.variational import Normal
from etafree.target import Target

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ETAS = np.logspace(-2, 2, 20)
METHODS = ("frequentist", "calibrated", "uncalibrated")
MEATS = ("default", "printed")
#: Data sets per cell.
BLOCK = 10
PANELS = {
    "coverage": "(a) coverage of 95 % intervals",
    "width": "(b) mean interval width",
    "bias": "(c) bias of the estimate",
    "bias_sd": "(d) standard deviation of the bias",
}
POSTERIORS = {
    "huber": "huber: the exact Huber posterior (this library's default)",
    "appendix": "appendix: the paper's Gibbs sampler as its appendix writes it",
    "published": "published: the sampler behind the published figure",
}
#: Margins by hand: finding them takes longer than drawing the figure.
GRID = {"left": 0.04, "right": 0.99, "top": 0.935, "bottom": 0.085, "wspace": 0.2, "hspace": 0.6}
LINES = {
    ("uncalibrated", "default"): (BEFORE, "-", "D", "uncalibrated posterior"),
    ("frequentist", "default"): ("0.25", "-", "", "frequentist, default meat"),
    ("calibrated", "default"): (AFTER, "-", "s", "calibrated, default meat"),
    ("frequentist", "printed"): ("0.25", "--", "", "frequentist, printed meat"),
    ("calibrated", "printed"): ("#6aa5d8", "--", "s", "calibrated, printed meat"),
}

SUMMARY = (
    "Coverage, width and bias of one slope at twenty learning rates: before calibration they "
    "depend on the learning rate, after calibration they do not."
)
CAPTION = (
    "Grey bands: the published curves. Orange: uncalibrated posterior. Blue: calibrated. Black: "
    "frequentist."
)
ABOUT_POSTERIORS = [
    "huber is the generalized posterior exp(−η × penalized Huber loss), sampled exactly.",
    "appendix is the Gibbs sampler that the paper's appendix describes, with a prior that is not "
    "multiplied by η. Integrating out its latent variables gives a normal–Laplace loss, not "
    "Huber's, and its mode depends on η; calibration uses only the shape of its draws.",
    "published is a third sampler, found by matching the curves: the latent scale is drawn as "
    "inverse Gaussian with mean |t|/(ηc) and shape 1, and the prior is scaled by η.",
]
ABOUT_MEATS = [
    "The meat is the middle matrix of the sandwich, the estimated variance of the score. "
    "default centres the scores at observation level, corrects for leverage (CR3) and uses t "
    "quantiles. printed is the paper's uncentred estimate with normal quantiles: under a penalty "
    "the group scores do not sum to zero, which makes intervals about half as wide again, so that "
    "nearly all of them cover. The frequentist interval is also the Wald interval of the "
    "calibrated posterior with the same meat: where it differs from the interval of the draws, "
    "the shape of the posterior is far from normal."
]
ABOUT_DEVIATIONS = [
    "Our results for the published sampler with the printed meat, minus the published curves, in "
    "standard errors of the difference (both are Monte Carlo estimates)."
]


def figure1_picture(table: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Return the paper's four panels for each posterior, published curves in the background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 10.5))
    curves = dict(iter(table.groupby(["posterior", "method", "meat"])))
    rows = figure.subplots(3, 4, gridspec_kw=GRID)
    for axes, (kind, title) in zip(rows, POSTERIORS.items(), strict=True):
        axes[0].text(-0.16, 1.2, title, fontsize=11, weight="bold", transform=axes[0].transAxes)
        for ax, (metric, label) in zip(axes, PANELS.items(), strict=True):
            for _, curve in published.groupby("method"):
                ax.plot(curve["eta"], curve[metric], color="0.8", lw=5, solid_capstyle="round")
            ax.plot([], [], color="0.8", lw=5, label="published curves")
            for (method, meat), (colour, dash, marker, name) in LINES.items():
                curve = curves[kind, method, meat]
                style = {"color": colour, "ls": dash, "marker": marker, "ms": 3, "lw": 1.4}
                ax.plot(curve["eta"], curve[metric], label=name, **style)
            ax.set_xscale("log")
            ax.minorticks_off()
            ax.set_title(label, fontsize=10)
            ax.set_xlabel("learning rate η")
            ax.spines[["top", "right"]].set_visible(False)
            if metric == "coverage":
                ax.axhline(0.95, color="0.5", lw=0.8, ls=":")
                ax.set_ylim(-0.03, 1.03)
            if metric == "width":
                ax.set_yscale("log")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def ranges(table: pd.DataFrame) -> pd.DataFrame:
    """Return smallest and largest values over the learning rates, by posterior, meat, method."""
    grouped = table.groupby(["posterior", "meat", "method"])[["coverage", "width", "bias"]]
    table = grouped.agg(["min", "max"])
    table.columns = table.columns.map(" ".join)
    return table


def figure1_page(
    table: pd.DataFrame, z: pd.DataFrame, png: bytes, settings: dict[str, object]
) -> str:
    """Return the self-contained page: the figure, what it shows, the deviations, the settings."""
    import pandas as pd

    size = z.abs()
    deviation = pd.DataFrame({"largest |z|": size.max(), "mean |z|": size.mean()})
    sections = [
        Section("The figure", picture=picture_data(png), caption=CAPTION),
        Section("Three posteriors", ABOUT_POSTERIORS),
        Section("Two estimates of the meat", ABOUT_MEATS, table=table_html(ranges(table))),
        Section(
            "Deviation from the published curves", ABOUT_DEVIATIONS, table=table_html(deviation, 2)
        ),
    ]
    title = "Figure 1 of “Location–scale calibration for generalized posterior”"
    footer = "Settings: " + ", ".join(f"{k} = {v}" for k, v in settings.items())
    return render(title, SUMMARY, sections, footer)


def published_curves() -> pd.DataFrame:
    """Return the published curves, long: method, eta and the four metrics."""
    import pandas as pd

    wide = pd.read_csv(Path(__file__).with_name("published_figure1.csv"), comment="#")
    curves = [
        wide[["eta", *(f"{metric}_{method}" for metric in PANELS)]]
        .set_axis(["eta", *PANELS], axis=1)
        .assign(method=method)
        for method in METHODS
    ]
    return pd.concat(curves, ignore_index=True)


def work(parameters: Parameters, seed: np.random.SeedSequence) -> dict[str, NDArray[np.float64]]:
    """Run one posterior on a block of data sets at every learning rate.

    Returns arrays (data set, eta, 3) of estimate, lower and upper limit, by method and meat.
    """
    design = Design(**parameters["design"])
    etas = np.asarray(parameters["etas"])
    seeds = [[parameters["data_seed"], parameters["first"] + k] for k in range(parameters["count"])]
    models = [design.model(np.random.default_rng(np.random.SeedSequence(s))) for s in seeds]
    draws = _draws(models, etas, parameters, seed)
    rng = np.random.default_rng(seed.spawn(1)[0])
    out = {
        name: np.empty((len(models), len(etas), 3))
        for name in ("uncalibrated", *(f"{m}_{k}" for m in METHODS[:2] for k in MEATS))
    }
    for i, model in enumerate(models):
        targets = {
            "default": model.target(),
            "printed": model.target(correction="CR0", centered=False),
        }
        means = draws[i].mean(axis=1)
        out["uncalibrated"][i] = _rows(means, draws[i])
        for meat, goal in targets.items():
            half = goal.law().quantile(0.975)[0] * goal.se[0]
            out[f"frequentist_{meat}"][i] = goal.center[0] + half * np.array([0.0, -1.0, 1.0])
            covariance = np.full(len(etas), goal.covariance[0, 0])
            if meat == "printed" and parameters["posterior"] == "published":
                # the Hessian at each posterior mean, as the published code had it
                hessians = np.array([model.criterion.hessian([mean])[0, 0] for mean in means])
                assert goal.meat is not None
                covariance = goal.meat[0, 0] / hessians**2
            out[f"calibrated_{meat}"][i] = _calibrated(draws[i], goal, covariance, rng)
    return out


def _draws(
    models: list[RandomIntercept], etas: Array, parameters: Parameters, seed: np.random.SeedSequence
) -> Array:
    """Return draws (data set, eta, draw) of one posterior."""
    kept = parameters["iterations"] - parameters["burn_in"]
    kind = parameters["posterior"]
    if kind == "huber":
        rng, samples = np.random.default_rng(seed), []
        for model in models:  # log densities at different learning rates are proportional
            fit = minimise(model.criterion)
            normal = Normal(fit.theta, fit.hessian**-0.5, fit.theta)
            grid, masses = distribution(model.posterior(1.0), normal, etas)
            samples += [stratified(grid, mass, kept, rng) for mass in masses]
        return np.reshape(samples, (len(models), len(etas), kept))
    from etafree.samplers.gibbs import gibbs_chains

    data = np.repeat(np.arange(len(models)), len(etas))
    eta = np.tile(etas, len(models))
    first = models[0].criterion
    factor = eta if kind == "published" else np.ones_like(eta)
    precision = (factor * first.strength * first.size)[:, None, None]
    chains = gibbs_chains(
        np.stack([m.criterion.total.X for m in models]),
        np.stack([m.criterion.total.y for m in models]),
        data,
        eta,
        models[0].c,
        precision,
        np.zeros((len(data), 1)),
        draws=kept,
        burn_in=parameters["burn_in"],
        seed=seed,
        rule=kind,
    )
    return chains[:, :, 0].reshape(len(models), len(etas), kept)


def _rows(estimate: Array | float, draws: Array) -> Array:
    """Return estimate and limits (eta, 3) from draws (eta, draw)."""
    limits = np.quantile(draws, [0.025, 0.975], axis=1)
    return np.column_stack([np.broadcast_to(estimate, len(draws)), *limits])


def _calibrated(draws: Array, goal: Target, covariance: Array, rng: np.random.Generator) -> Array:
    """Return centre and limits (eta, 3) of the mapped draws; with one parameter it is a scalar."""
    scale = np.sqrt(covariance / draws.var(axis=1, ddof=1))
    deviation = (draws - draws.mean(axis=1, keepdims=True)) * scale[:, None]
    deviation *= [student_factors(goal.law(), draws.shape[1], rng)[:, 0] for _ in draws]
    return _rows(goal.center[0], goal.center[0] + deviation)


def run_figure1(
    out: Path | str,
    *,
    datasets: int = 200,
    seed: int = 1,
    iterations: int = 1000,
    burn_in: int = 500,
    design: Design | None = None,
    **how: Unpack[How],
) -> pd.DataFrame:
    """Run the study, resuming what `out` already holds, and return the long table.

    One row per posterior, meat, method and eta with coverage, width, bias, bias_sd, replicates,
    coverage_se and width_sd.
    """
    if not isinstance(datasets, int) or datasets < 2:
        raise InputError("datasets", f"is {datasets!r}", "pass a whole number of at least 2")
    if iterations <= burn_in or burn_in < 0:
        problem = f"is {iterations} with {burn_in} of burn-in"
        raise InputError("iterations", problem, "keep some: iterations > burn-in >= 0")
    design = Design() if design is None else design
    shared = {
        "design": asdict(design),
        "etas": [float(e) for e in ETAS],
        "data_seed": seed,
        "iterations": iterations,
        "burn_in": burn_in,
    }
    cells = [
        Cell(
            f"{kind}-{first:06d}-{min(BLOCK, datasets - first)}",
            {**shared, "posterior": kind, "first": first, "count": min(BLOCK, datasets - first)},
        )
        for kind in KINDS
        for first in range(0, datasets, BLOCK)
    ]
    results = run_study("figure1", shared, cells, work, out, seed=seed, **how)
    return _long_table(cells, results, pseudo_true(design))


def _long_table(cells: list[Cell], results: Mapping[str, Arrays], truth: float) -> pd.DataFrame:
    """Return a row per posterior, meat, method and eta from the blocks of data sets."""
    import pandas as pd

    summaries = []
    for kind in KINDS:
        blocks = [results[cell.key] for cell in cells if cell.parameters["posterior"] == kind]
        arrays = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
        for meat in MEATS:
            for method in METHODS:
                name = method if method == "uncalibrated" else f"{method}_{meat}"
                labels = {"posterior": kind, "meat": meat, "method": method}
                summaries.append(pd.DataFrame({**labels, **_summary(arrays[name], truth)}))
    return pd.concat(summaries, ignore_index=True)


def _summary(values: NDArray[np.generic], truth: float) -> dict[str, object]:
    """Return the columns of the long table from (data set, eta, 3) arrays."""
    estimate, low, high = np.ascontiguousarray(values.transpose(2, 1, 0))
    n, covered = len(values), (low <= truth) & (truth <= high)
    width, bias = high - low, estimate - truth
    pooled = (covered.sum(axis=1) + 0.5) / (n + 1)
    return {
        "eta": ETAS,
        "coverage": covered.mean(axis=1),
        "width": width.mean(axis=1),
        "bias": bias.mean(axis=1),
        "bias_sd": bias.std(axis=1, ddof=1),
        "replicates": n,
        "coverage_se": np.sqrt(pooled * (1 - pooled) / n),
        "width_sd": width.std(axis=1, ddof=1),
    }


def deviations(
    table: pd.DataFrame, posterior: str = "published", meat: str = "printed"
) -> pd.DataFrame:
    """Return our curves minus the published ones in standard errors of the difference.

    Both are Monte Carlo estimates; theirs has 200 data sets. Coverage errors come from the pooled
    proportion (x + 1/2) / (N + 1).
    """
    import pandas as pd

    chosen = table[(table["posterior"] == posterior) & (table["meat"] == meat)]
    # the two grids agree to rounding: line them up by rank within a method
    ours = chosen.set_index(["method", "eta"]).sort_index()
    theirs = published_curves().set_index(["method", "eta"]).sort_index().set_axis(ours.index)
    n, m = ours["replicates"].astype(float), 200.0
    both = 1 / n + 1 / m
    pooled = (ours["coverage"] * n + theirs["coverage"] * m + 0.5) / (n + m + 1)
    error = {
        "coverage": np.sqrt(pooled * (1 - pooled) * both),
        "width": ours["width_sd"] * np.sqrt(both),
        "bias": ours["bias_sd"] * np.sqrt(both),
        "bias_sd": ours["bias_sd"] * np.sqrt(0.5 * both),
    }
    return pd.DataFrame({m: (ours[m] - theirs[m]) / error[m] for m in PANELS})


def write_figure1(out: Path | str, **options: Any) -> pd.DataFrame:
    """Run the study and write ``figure1.csv``, ``.png``, ``.svg`` and ``report.html`` into `out`.

    Ends by printing a short table and where the files are. Options as for `run_figure1`.
    """
    table = run_figure1(out, **options)
    z = deviations(table)
    settings = {
        "data sets": int(table["replicates"].iloc[0]),
        "seed": options.get("seed", 1),
        "iterations": options.get("iterations", 1000),
        "burn-in": options.get("burn_in", 500),
        "target": f"{pseudo_true(options.get('design') or Design()):.6f}",
    }
    say(ranges(table).to_string(float_format=lambda v: f"{v:.3f}"))
    size = z.abs().to_numpy()
    largest = f"largest deviation {size.max():.2f} standard errors"
    say(f"published curves: {largest}, mean {size.mean():.2f}")
    picture = figure1_picture(table, published_curves())
    page = lambda png, settings: figure1_page(table, z, png, settings)  # noqa: E731
    formats = ("png", "svg")
    write_outputs(out, "figure1", table, picture, page, settings, digits=None, formats=formats)
    return table

r"""Figure 1 of the paper: coverage, width and bias over twenty learning rates.

Three posteriors of the same data sets (exact Huber, the appendix's Gibbs, the sampler behind the
published curves), each calibrated with two meats: ``default`` (centred scores, CR3, t with G - 1)
and ``printed`` (uncentred, normal; for the published sampler the Hessian at the posterior mean).

The picture and the page of the paper's Figure 1 beside the published curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etafree.errors import InputError
from etafree.foundation.arguments import Array
from etafree.foundation.terminal import say
from etafree.inference import student_quantile
from etafree.map import student_factors
from etafree.optimize import minimise
from etafree.paper.random_intercept import KINDS, Design, RandomIntercept, pseudo_true
from etafree.paper.study import Arrays, Cell, run_study, write_outputs
from etafree.report.page import Section, picture_data, render, table_html
from etafree.report.plots import AFTER, BEFORE
from etafree.samplers.quadrature import distribution, stratified
from etafree.samplers.variational import Normal
from etafree.target import Target

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "coverage": "(a) coverage of 95 % intervals",
    "width": "(b) mean interval width",
    "bias": "(c) bias of the estimate",
    "bias_sd": "(d) standard deviation of the bias",
}
POSTERIORS = {
    "huber": "huber: the exact Huber posterior (this library's default)",
    "appendix": "appendix: the paper's Gibbs sampler as its appendix writes it",
    "published": "published: the sampler that made the published figure",
}
#: Margins by hand: finding them takes longer than drawing the figure.
GRID = {"left": 0.04, "right": 0.99, "top": 0.935, "bottom": 0.085, "wspace": 0.2, "hspace": 0.6}
LINES = {
    ("uncalibrated", "default"): (BEFORE, "-", "D", "posterior as it came"),
    ("frequentist", "default"): ("0.25", "-", "", "frequentist, default meat"),
    ("calibrated", "default"): (AFTER, "-", "s", "calibrated, default meat"),
    ("frequentist", "printed"): ("0.25", "--", "", "frequentist, printed meat"),
    ("calibrated", "printed"): ("#6aa5d8", "--", "s", "calibrated, printed meat"),
}


def figure1_picture(table: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Return the paper's four panels for each posterior, published curves in the background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 10.5))
    rows = figure.subplots(3, 4, gridspec_kw=GRID)
    for axes, (kind, title) in zip(rows, POSTERIORS.items(), strict=True):
        axes[0].text(-0.16, 1.2, title, fontsize=11, weight="bold", transform=axes[0].transAxes)
        for ax, (metric, label) in zip(axes, PANELS.items(), strict=True):
            for _, curve in published.groupby("method"):
                ax.plot(curve["eta"], curve[metric], color="0.8", lw=5, solid_capstyle="round")
            ax.plot([], [], color="0.8", lw=5, label="published curves")
            for (method, meat), style in LINES.items():
                _line(ax, table, kind, method, meat, metric, style)
            ax.set_xscale("log")
            ax.minorticks_off()
            ax.set_title(label, fontsize=10)
            ax.set_xlabel("learning rate η")
            if metric == "coverage":
                ax.axhline(0.95, color="0.5", lw=0.8, ls=":")
                ax.set_ylim(-0.03, 1.03)
            if metric == "width":
                ax.set_yscale("log")
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _line(
    ax: Axes,
    table: pd.DataFrame,
    kind: str,
    method: str,
    meat: str,
    metric: str,
    style: tuple[str, str, str, str],
) -> None:
    colour, dash, marker, label = style
    curve = table[
        (table["posterior"] == kind) & (table["method"] == method) & (table["meat"] == meat)
    ]
    ax.plot(
        curve["eta"], curve[metric], color=colour, ls=dash, marker=marker, ms=3, lw=1.4, label=label
    )


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
    return render(
        "Figure 1 of “Location–scale calibration for generalized posterior”",
        "Coverage, width and bias of one slope over twenty learning rates: the posterior as it "
        "came swings with the learning rate, the calibrated one does not.",
        [
            Section(
                "The figure",
                picture=picture_data(png),
                caption="Grey bands: the published curves. Orange: posterior as it came. Blue: "
                "calibrated. Black: frequentist.",
            ),
            Section(
                "Three posteriors",
                [
                    "huber is the generalized posterior exp(−η × penalized Huber loss), exact.",
                    "appendix is the Gibbs sampler that the paper's appendix describes, with a "
                    "prior that η does not scale. Integrating its latent variables gives a "
                    "normal–Laplace loss, not Huber's, and its mode moves with η; calibration uses "
                    "its draws for shape only.",
                    "published is a third sampler, found by matching the curves: the latent scale "
                    "is drawn as inverse Gaussian with mean |t|/(ηc) and shape 1, and the prior is "
                    "scaled by η.",
                ],
            ),
            Section(
                "Two meats",
                [
                    "default centres scores at observation level, corrects for leverage (CR3) and "
                    "uses t quantiles. printed is the paper's uncentred estimate with normal "
                    "quantiles: under a penalty group scores do not sum to zero, which inflates it "
                    "by about half and makes every interval cover. The frequentist interval is "
                    "also the Wald interval of the calibrated posterior with that meat: where it "
                    "and the draws differ, the posterior's shape is not near normal."
                ],
                table=table_html(ranges(table)),
            ),
            Section(
                "Deviation from the published curves",
                [
                    "Our published posterior with the printed meat, minus the published curves, in "
                    "standard errors of the difference (both are Monte Carlo estimates)."
                ],
                table=table_html(deviation, 2),
            ),
        ],
        "Settings: " + ", ".join(f"{k} = {v}" for k, v in settings.items()),
    )


ETAS = np.logspace(-2, 2, 20)
METHODS = ("frequentist", "calibrated", "uncalibrated")
MEATS = ("default", "printed")
METRICS = ("coverage", "width", "bias", "bias_sd")
#: Data sets per cell.
BLOCK = 10


def published_curves() -> pd.DataFrame:
    """Return the published curves, long: method, eta and the four metrics."""
    import pandas as pd

    wide = pd.read_csv(Path(__file__).with_name("published_figure1.csv"), comment="#")
    parts = [
        pd.DataFrame(
            {"method": method, "eta": wide["eta"], **{m: wide[f"{m}_{method}"] for m in METRICS}}
        )
        for method in METHODS
    ]
    return pd.concat(parts, ignore_index=True)


def work(
    parameters: Mapping[str, Any], seed: np.random.SeedSequence
) -> dict[str, NDArray[np.float64]]:
    """Run one posterior on a block of data sets at every learning rate.

    Returns arrays (data set, eta, 3) of estimate, lower and upper limit, by method and meat.
    """
    design = Design(**parameters["design"])
    etas = np.asarray(parameters["etas"])
    streams = [
        np.random.SeedSequence([parameters["data_seed"], parameters["first"] + k])
        for k in range(parameters["count"])
    ]
    models = [design.model(np.random.default_rng(s)) for s in streams]
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
        for meat, goal in targets.items():
            out[f"frequentist_{meat}"][i] = _wald(goal)
        out["uncalibrated"][i] = _rows(draws[i].mean(axis=1), draws[i])
        for meat, goal in targets.items():
            covariance = np.full(len(etas), goal.covariance[0, 0])
            if meat == "printed" and parameters["posterior"] == "published":
                covariance = _with_hessians_at(goal, model, draws[i].mean(axis=1))
            out[f"calibrated_{meat}"][i] = _calibrated(draws[i], goal, covariance, rng)
    return out


def _draws(
    models: list[RandomIntercept],
    etas: Array,
    parameters: Mapping[str, Any],
    seed: np.random.SeedSequence,
) -> Array:
    """Return draws (data set, eta, draw) of one posterior."""
    kept = parameters["iterations"] - parameters["burn_in"]
    kind = parameters["posterior"]
    if kind == "huber":
        rng, made = np.random.default_rng(seed), []
        for model in models:  # log densities at different learning rates are proportional
            fit = minimise(model.criterion)
            normal = Normal(fit.theta, fit.hessian**-0.5, fit.theta)
            grid, masses = distribution(model.posterior(1.0), normal, etas)
            made += [stratified(grid, mass, kept, rng) for mass in masses]
        return np.reshape(made, (len(models), len(etas), kept))
    from etafree.samplers.gibbs import gibbs_chains

    data = np.repeat(np.arange(len(models)), len(etas))
    eta = np.tile(etas, len(models))
    c = models[0].criterion
    factor = eta if kind == "published" else np.ones_like(eta)
    precision = (factor * c.strength * c.size)[:, None, None]
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


def _wald(goal: Target) -> list[float]:
    half = student_quantile(0.975, goal.dof)[0] * goal.se[0]
    return [goal.center[0], goal.center[0] - half, goal.center[0] + half]


def _rows(estimate: Array | float, draws: Array) -> Array:
    """Return estimate and limits (eta, 3) from draws (eta, draw)."""
    limits = np.quantile(draws, [0.025, 0.975], axis=1)
    return np.column_stack([np.broadcast_to(estimate, len(draws)), *limits])


def _with_hessians_at(goal: Target, model: RandomIntercept, means: Array) -> Array:
    """Return variances with the Hessian at each posterior mean, as the published code had it."""
    assert goal.meat is not None
    hessians = np.array([model.criterion.hessian([mean])[0, 0] for mean in means])
    variances: Array = goal.meat[0, 0] / hessians**2
    return variances


def _calibrated(draws: Array, goal: Target, covariance: Array, rng: np.random.Generator) -> Array:
    """Return centre and limits (eta, 3) of the mapped draws; with one parameter it is a scalar."""
    scale = np.sqrt(covariance / draws.var(axis=1, ddof=1))
    deviation = (draws - draws.mean(axis=1, keepdims=True)) * scale[:, None]
    if np.isfinite(goal.dof).all():
        factors = [student_factors(draws.shape[1], goal.dof, rng)[:, 0] for _ in draws]
        deviation *= factors
    return _rows(goal.center[0], goal.center[0] + deviation)


def run_figure1(
    out: Path | str,
    *,
    datasets: int = 200,
    seed: int = 1,
    iterations: int = 1000,
    burn_in: int = 500,
    design: Design | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Run the study, resuming what `out` already holds, and return the long table.

    One row per posterior, meat, method and eta with coverage, width, bias, bias_sd, replicates,
    coverage_se and width_sd.
    """
    if not isinstance(datasets, int) or datasets < 2:
        raise InputError("datasets", f"is {datasets!r}", "pass a whole number of at least 2")
    if iterations <= burn_in or burn_in < 0:
        raise InputError(
            "iterations",
            f"is {iterations} with {burn_in} of burn-in",
            "keep some: iterations > burn-in >= 0",
        )
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
    results = run_study(
        "figure1",
        shared,
        cells,
        work,
        out,
        seed=seed,
        workers=workers,
        scheduler=scheduler,
        progress=progress,
    )
    return _long_table(cells, results, pseudo_true(design))


def _long_table(cells: list[Cell], results: Mapping[str, Arrays], truth: float) -> pd.DataFrame:
    """Return a row per posterior, meat, method and eta from the blocks of data sets."""
    import pandas as pd

    rows: list[dict[str, object]] = []
    for kind in KINDS:
        blocks = [results[cell.key] for cell in cells if cell.parameters["posterior"] == kind]
        arrays = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
        for meat in MEATS:
            for method in METHODS:
                name = method if method == "uncalibrated" else f"{method}_{meat}"
                rows += _summaries(arrays[name], truth, posterior=kind, meat=meat, method=method)
    return pd.DataFrame(rows)


def _summaries(values: Array, truth: float, **labels: str) -> list[dict[str, object]]:
    """Return a row per eta from (data set, eta, 3) arrays."""
    n = len(values)
    covered = (values[:, :, 1] <= truth) & (truth <= values[:, :, 2])
    width, bias = values[:, :, 2] - values[:, :, 1], values[:, :, 0] - truth
    share = covered.mean(axis=0)
    pooled = (covered.sum(axis=0) + 0.5) / (n + 1)
    return [
        {
            **labels,
            "eta": float(ETAS[j]),
            "coverage": share[j],
            "width": width[:, j].mean(),
            "bias": bias[:, j].mean(),
            "bias_sd": bias[:, j].std(ddof=1),
            "replicates": n,
            "coverage_se": np.sqrt(pooled[j] * (1 - pooled[j]) / n),
            "width_sd": width[:, j].std(ddof=1),
        }
        for j in range(len(ETAS))
    ]


def deviations(
    table: pd.DataFrame, posterior: str = "published", meat: str = "printed"
) -> pd.DataFrame:
    """Return our curves minus the published ones in standard errors of the difference.

    Both are Monte Carlo estimates; theirs has 200 data sets. Coverage errors come from the pooled
    proportion (x + 1/2) / (N + 1).
    """
    theirs = published_curves().set_index(["method", "eta"])
    chosen = table[(table["posterior"] == posterior) & (table["meat"] == meat)]
    ours = chosen.set_index(["method", "eta"])
    # the two grids agree to rounding: line them up by rank within a method
    ours, theirs = ours.sort_index(), theirs.sort_index()
    n, m = ours["replicates"].to_numpy(float), 200.0
    both = 1 / n + 1 / m
    hits = ours["coverage"].to_numpy() * n + theirs["coverage"].to_numpy() * m
    pooled = (hits + 0.5) / (n + m + 1)
    sd = ours["bias_sd"].to_numpy()
    error = {
        "coverage": np.sqrt(pooled * (1 - pooled) * both),
        "width": ours["width_sd"].to_numpy() * np.sqrt(both),
        "bias": sd * np.sqrt(both),
        "bias_sd": sd * np.sqrt(0.5 * both),
    }
    import pandas as pd

    z = {m: (ours[m].to_numpy() - theirs[m].to_numpy()) / error[m] for m in METRICS}
    return pd.DataFrame(z, index=ours.index)


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
    say(
        f"published curves: largest deviation {z.abs().to_numpy().max():.2f} standard errors, mean "
        f"{z.abs().to_numpy().mean():.2f}"
    )
    write_outputs(
        out,
        "figure1",
        table,
        figure1_picture(table, published_curves()),
        lambda png, told: figure1_page(table, z, png, told),
        settings,
        digits=None,
        formats=("png", "svg"),
    )
    return table

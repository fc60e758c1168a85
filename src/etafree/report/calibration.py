"""The page of a calibration: intervals, densities, diagnostics, provenance, a slider over η.

For the slider the posterior is drawn afresh at other learning rates and calibrated again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from etafree._version import __version__
from etafree.criterion import Criterion
from etafree.draws import Draws
from etafree.errors import ConvergenceError, EtafreeError, InputError
from etafree.foundation.arguments import Array, as_array, as_positive
from etafree.foundation.check import VERDICTS
from etafree.foundation.terminal import counted
from etafree.inference import equal_tails
from etafree.map import Map, move_draws
from etafree.penalties import ActivePenalty
from etafree.posterior import GeneralizedPosterior
from etafree.report import charts
from etafree.report.page import Row, Scale, Section, between, render, shown, table_html
from etafree.report.plots import density
from etafree.report.summaries import center, flat_variables, plug_ins
from etafree.samplers import sample
from etafree.samplers.importance import trustworthy
from etafree.totals.linear import has_design

if TYPE_CHECKING:
    import pandas as pd

    from etafree.result import Calibration

#: Learning rates as multiples of the fit's.
FACTORS = np.logspace(-2, 2, 13)
#: Draws at each of them, all with one seed: what moves is not the luck of the draw.
DRAWS, SEED = 2000, 0
#: The same of a compiled model, whose loss takes a millisecond, and every how many of the rates.
FEW, EVERY = 256, 3
#: Rows times parameters times draws times learning rates: half a minute for the slowest losses.
BUDGET = 1e10
#: Data sets drawn from the user's own, and rows times parameters of which that is quick.
REDRAWN, QUICK = 200, 10_000


class Redrawn(NamedTuple):
    """Limits at a learning rate, or the reason why there are none.

    `limits` (2, 3, k): before and after calibration, of the k variables that a result shows the
    lower limits, middles and upper limits.
    """

    eta: float
    limits: Array | None
    reason: str


def learning_rates(
    result: Calibration, etas: Sequence[float] | None = None
) -> tuple[list[float], str]:
    """Return the slider's learning rates, or why there are none."""
    wanted = None if etas is None else as_array(etas, "etas", ndim=1)
    if wanted is not None and len(wanted) == 0:
        return [], ""
    c, own, why = result.criterion, result.original.eta, not_drawable(result)
    if why and wanted is not None:
        raise InputError("etas", f"cannot be drawn at: {why}", "leave etas out")
    if c is None or why:
        return [], why
    if wanted is not None:
        return sorted({as_positive(eta, "etas") for eta in (*wanted, *([own] if own else []))}), ""
    terms = max(c.n, c.size) if c.total.weights is None else c.n  # size: the number of pairs
    if terms * c.p * DRAWS * len(FACTORS) > BUDGET:
        return [], "drawing the posterior again at every learning rate would take long"
    return (factors_of(c) * (own or 1.0)).tolist(), ""


def factors_of(criterion: Criterion) -> Array:
    """Return the learning rates as multiples of the fit's."""
    return FACTORS if draws_of(criterion) == DRAWS else FACTORS[::EVERY]


def draws_of(criterion: Criterion) -> int:
    """Return how many draws there are at each learning rate."""
    plain = criterion.p == 1 or has_design(criterion.total)
    return DRAWS if plain or criterion.total.compiled() is criterion.total else FEW


def not_drawable(result: Calibration) -> str:
    """Return why the posterior cannot be drawn at other learning rates; "" if it can."""
    c, posterior = result.criterion, result.posterior
    if c is None:
        return "no criterion is known here, only draws and a target"
    if posterior is None and isinstance(c.penalty, ActivePenalty):
        return "the posterior of the parameters that the penalty sets to zero is not known"
    if posterior is not None and posterior.log_prior is not None and c is posterior.energy:
        return "the target contains the log prior over η, and so moves with η itself"
    if result.fit is not None and result.original.eta != 1:
        return "η may multiply the model's prior or not, and this fit's is not 1"
    return ""


def sweep(result: Calibration, etas: Sequence[float]) -> list[Redrawn]:
    """Draw the posterior at each learning rate and calibrate to the same target again.

    Fresh draws everywhere, with one seed; nothing is interpolated. The result needs a criterion.
    """
    steps, limits = [], None
    with counted(len(etas), "learning rates") as step:
        for eta in etas:
            try:
                limits = _limits(result, eta)
                reason = "" if np.isfinite(limits).all() else "limits there are not finite"
            except EtafreeError as error:
                reason = str(error)
            steps.append(Redrawn(eta, None if reason else limits, reason))
            step(1)
    return steps


def _limits(result: Calibration, eta: float) -> Array:
    """Return lower limits, middles and upper limits before and after calibration, (2, 3, k)."""
    posterior, settings = result.posterior, result.settings
    criterion = result.criterion if posterior is None else posterior.criterion
    assert criterion is not None
    prior = None if posterior is None else posterior.log_prior
    own = result.original.eta is not None and np.isclose(eta, result.original.eta, rtol=1e-12)
    if own:  # the numbers of the result itself
        draws, mapping = result._before, result.map
        moved = result._on_target(result.draws).values
    else:
        draws = result._on_target(_draws(GeneralizedPosterior(criterion, eta, prior)))
        how = Map(settings["root"], settings["kind"], settings["working"])
        mapping, moved = move_draws(draws, result.target, how, np.random.default_rng(SEED))
    with np.errstate(over="ignore", invalid="ignore"):  # the exp of a wide posterior
        flat = moved.reshape(-1, moved.shape[-1])  # chain after chain
        points = np.concatenate([draws.array, flat, mapping.offset[None]])
        before, after, center = np.split(_variables(result, points), [len(draws), 2 * len(draws)])
        middles = before.mean(axis=0), center[0]
        ends = [equal_tails(values, settings["level"]) for values in (before, after)]
    return np.array([[low, mid, high] for mid, (low, high) in zip(middles, ends, strict=True)])


def _draws(posterior: GeneralizedPosterior) -> Draws:
    """Draw; chains are fast for linear models, others must be near normal or raise an error."""
    criterion = posterior.criterion
    criterion = replace(criterion, total=criterion.total.compiled())
    posterior, count = replace(posterior, criterion=criterion), draws_of(posterior.criterion)
    if criterion.p == 1 or has_design(criterion.total):
        return sample(posterior, count, SEED)
    draws = sample(posterior, count, SEED, "importance")
    if not trustworthy(draws):
        raise ConvergenceError(
            "the posterior is too far from normal for quick draws (Pareto k = "
            f"{draws.info['pareto_k']:.2f}, {draws.info['weights_ess']:.0f} of {count} effective)"
        )
    return draws


def _variables(result: Calibration, theta: Array) -> Array:
    """Return what the result shows (D, k) at parameters (D, p)."""
    if result.face is not None and result.shown.slope is not None:
        return theta @ result.shown.slope.T
    if result.fit is None or result.fit.constrain is None:
        return theta
    names, flat, _ = flat_variables(result.fit, theta)
    return flat[:, [names.index(name) for name in result.shown.names]]


#: Parameters that are drawn; the table has them all.
DRAWN = 50
SLIDER = "Other learning rates"


def calibration_page(result: Calibration, *, etas: Sequence[float] | None = None) -> str:
    """Return a calibration as one self-contained HTML page; every name in it is escaped.

    `etas` are learning rates of the slider besides the fit's own; by default 13 from a hundredth to
    a hundred times it, where a criterion is known and drawing is cheap. ``()`` leaves it out.
    """
    grid, why = learning_rates(result, etas)
    table, level = result.summary(), f"{100 * result.settings['level']:g} %"
    sections = [
        Section(
            "Before and after",
            [
                f"{level} intervals and densities (each scaled to its peak) of the draws before "
                "and after calibration. Every parameter has a scale of its own, in its own "
                "units.",
                *_more(table),
            ],
            rows=[_row(result, name, row) for name, row in _drawn(table)],
        ),
        *charts.forest(result, table, level),
        Section(
            "Numbers",
            [
                "estimate: the centre. se: its standard error (se error: its relative Monte Carlo "
                "error, where draws made it). t: estimate over se. p: of no effect, two-sided. "
                f"lower, upper: the calibrated {level} interval. dof: degrees of freedom of its t "
                "quantiles. before: of the draws before calibration. ratio: "
                "width of the calibrated interval over theirs; above one, the posterior was "
                "overconfident."
            ],
            table_html(_numbers(table)),
        ),
        *_coverage(result, level),
        *charts.clusters(result),
        *charts.shape(result, level),
        Section(
            "Diagnostics",
            ["A check that does not pass says what to do."],
            checks=sorted(result.checks, key=lambda c: VERDICTS.index(c.verdict)),
        ),
        Section("How this was computed", facts=_facts(result)),
    ]
    if grid:
        sections.insert(1, _slider(result, table, sweep(result, grid), level))
    elif why:
        sections.insert(1, Section(SLIDER, [f"No slider over the learning rate: {why}."]))
    names = list(map(str, table.index))
    if len(names) > 4:
        names = [f"{names[0]} and {len(names) - 1} more parameters"]
    title = f"Calibrated {level} intervals of {', '.join(names)}"
    return render(title, _lead(result, table), sections, f"Made by etafree {__version__}.")


def _coverage(result: Calibration, level: str) -> list[Section]:
    """Return how often the intervals cover in data sets drawn from these, where that is quick."""
    heading, c = "What these intervals cover in data sets drawn from yours", result.criterion
    if c is None or result.target.dependence is None:
        return []
    if c.n * c.p > QUICK:
        later = "Not drawn here, for it would take longer: result.coverage_check() does it."
        return [Section(heading, [later])]
    try:
        table = result.coverage_check(REDRAWN, seed=SEED)
    except EtafreeError:  # rows depend on each other otherwise, or most data sets have no fit
        return []
    about = (
        f"Rows, or clusters as wholes, drawn with replacement and fitted again, "
        f"{int(table['replicates'].iloc[0])} times: how often the {level} interval of such a data "
        "set covers this estimate, the Monte Carlo error of that, and the shares of intervals that "
        "lie below and above it. Coverage below the level says that the sample is too small, too "
        "skewed or too uneven for these intervals; result.interval(kind='bootstrap-t') allows for "
        "skewness."
    )
    columns = ["coverage", "error", "below", "above"]
    texts = table[columns].map(lambda share: f"{100 * share:.1f} %")
    return [Section(heading, [about], table_html(texts.rename_axis(None)))]


def _slider(
    result: Calibration, table: pd.DataFrame, redrawn: list[Redrawn], level: str
) -> Section:
    names = [name for name, _ in _drawn(table) if name in result.shown.names]
    columns = [result.shown.names.index(name) for name in names]
    limits = {k: r.limits[:, :, columns] for k, r in enumerate(redrawn) if r.limits is not None}
    if not limits or not names:
        why = "none of the parameters drawn here has an interval" if limits else redrawn[0].reason
        return Section(SLIDER, [f"No slider over the learning rate: {why}."])
    before, after = np.swapaxes([*limits.values()], 0, 1)  # (eta, 3, k)
    scales = [Scale.around(after[:, :, j], before[:, :, j]) for j in range(len(names))]
    units, own = result.shown.se[columns], result.original.eta
    steps: list[dict[str, Any]] = []
    for k, (eta, _, reason) in enumerate(redrawn):
        label = f"η = {eta:.3g} (this fit's)" if eta == own else f"η = {eta:.3g}"
        failed = {"said": f"No draws here: {reason}."}
        step = _step(scales, limits[k], units) if k in limits else failed
        steps.append({"label": label, **step})
    start = min(limits, key=lambda k: abs(np.log(redrawn[k].eta / (own or 1.0))))
    assert result.criterion is not None
    draws = draws_of(result.criterion)
    shown_first = zip(names, scales, steps[start]["before"], steps[start]["after"], strict=True)
    paragraphs = [
        f"At each learning rate η the posterior is drawn afresh ({draws} draws, one seed) and "
        f"calibrated to the same target: {level} intervals. Calibrated ones move by Monte "
        "Carlo error, and at small η by the posterior's shape. An arrow means that an interval "
        "extends beyond the axis."
    ]
    if result.fit is not None:
        paragraphs.append(
            "η multiplies the model's log-likelihood and prior. The posterior is drawn on the "
            "scale on which it is calibrated, without the Jacobian of the model's constraints: at "
            "this fit's η it need not be quite that of the draws above."
        )
    rows = [Row(*row) for row in shown_first]
    slider = {"steps": steps, "start": start}
    known = np.array([redrawn[k].eta for k in limits])
    curves = charts.widths(names, known, before, after, own)
    about = (
        "Below, widths of intervals over η, both on logarithmic scales; the grey line is this fit."
    )
    texts = [*paragraphs, *([about] if curves else []), *_more(table)]
    return Section(SLIDER, texts, rows=rows, charts=curves, slider=slider)


def _step(scales: list[Scale], limits: Array, units: Array) -> dict[str, Any]:
    """Return what the slider says and shows of intervals (2, 3, k) at one learning rate."""
    old, new = limits
    width, calibrated = old[2] - old[0], new[2] - new[0]
    times = between(width / calibrated)
    return {
        "said": f"Before calibration, intervals are {times} times as wide as calibrated ones.",
        "before": [s.bar(*b)._asdict() for s, *b in zip(scales, old.T, width / 4, strict=True)],
        "after": [s.bar(*b)._asdict() for s, *b in zip(scales, new.T, units, strict=True)],
    }


def _row(result: Calibration, name: str, row: pd.Series) -> Row:
    """Return a parameter's intervals and densities before and after."""
    if name in result.inactive:
        return Row(name, note="No interval: exactly zero at this penalty.")
    old = row[["lower_before", "mean_before", "upper_before"]].to_numpy(np.float64)
    new = row[["lower", "estimate", "upper"]].to_numpy(np.float64)
    if not np.isfinite([old, new]).all():
        return Row(name, note="No picture: its limits are not finite.")
    scale = Scale.covering(min(old[0], new[0]), max(old[2], new[2]), 0.25)
    draws = result.shown.columns([name])
    outlines = [scale.outline(*density(columns[name], 120)) for columns in draws]
    unit = _unit(row)
    return Row(name, scale, scale.bar(old, unit), scale.bar(new, unit), outlines=outlines)


def _drawn(table: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    return ((str(name), row) for name, row in table.iloc[:DRAWN].iterrows())


def _more(table: pd.DataFrame) -> list[str]:
    if len(table) <= DRAWN:
        return []
    return [f"The first {DRAWN} of {len(table)} parameters; all are in the table of numbers."]


def _unit(row: pd.Series) -> float:
    """Return the smaller of the standard errors before and after, which both's digits go by."""
    return float(min(row["se"], row["sd_before"]))


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the summary as text: as many digits as a row's standard errors are worth."""

    def text(row: pd.Series, column: str) -> str:
        value = row[column]
        if isinstance(value, str):
            return value
        if not np.isfinite(value):
            return "normal" if value == np.inf and column == "dof" else "–"
        unitless = column in ("se_error", "t", "p", "dof", "ratio")
        return f"{value:.3g}" if unitless else shown(value, _unit(row))

    texts = table.astype(object)
    texts[:] = [[text(row, column) for column in table.columns] for _, row in table.iterrows()]
    texts.columns = [str(column).replace("_", " ") for column in table.columns]
    return texts.rename_axis(None).rename_axis("parameter", axis=1)


def _lead(result: Calibration, table: pd.DataFrame) -> str:
    """Say what is covered and what calibration did."""
    off = [c.name for c in result.checks if c.verdict != "ok"]
    checks = f"Checks to look at: {', '.join(off)}." if off else "All checks passed."
    return (
        f"The intervals cover {result.target.estimand}, not the parameter of the process that "
        f"generated the data. Their width is {between(table['ratio'].dropna())} times that of the "
        f"draws before, and does not depend on the learning rate η. {checks}"
    )


def _facts(result: Calibration) -> list[tuple[str, str]]:
    """Return the provenance of target, map and draws."""
    t, s, draws = result.target, dict(result.settings), result.original
    facts = {
        "covers": t.estimand,
        "centre": center(result),
        "spread": t.describe(),
        "correction": t.correction,
        "clusters": str(t.clusters or ""),
        "degrees of freedom": "normal" if np.isinf(t.dof).all() else between(t.dof),
        "rows": str(t.n or ""),
        "effective scale": "" if t.size is None else f"{t.size:g}",
        **plug_ins(t),
        "without interval": ", ".join(result.inactive),
        "integrated out": "" if result.fit is None else ", ".join(result.fit.latent),
        "draws": f"{len(draws)} ({draws.sampler}), {draws.ess:.0f} effective",
        "learning rate": "not known" if draws.eta is None else f"η = {draws.eta:g}",
        "seed of the draws": str(draws.info.get("seed", "")),
        "calibrated with": s.pop("made_with", f"etafree {s['version']}"),
        **{str(key): str(value) for key, value in s.items() if key != "version"},
    }
    return [(term, text) for term, text in facts.items() if text]

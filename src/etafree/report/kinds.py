r"""The kinds of plots of a calibration: which numbers each shows, and what it needs.

Every kind has a panel per parameter, or one for all. What it shows is what tables and checks have:
`summary`, `corrections`, `coverage_check`, the report's draws at other learning rates; the law of t
ratios, :math:`t_\nu/\sqrt\kappa`, for the coverage that an interval implies and for the shape of
draws; and what leaving out a cluster moves, :math:`A^{-1}(I-A_gA^{-1})^{-1}\psi_g`, exact for least
squares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from etafree.data.groups import Groups
from etafree.dependence.clusters import contrast_laws, influences, point_of
from etafree.diagnostics import leverage_of
from etafree.errors import EtafreeError, InputError
from etafree.foundation.arguments import Array, Labels, as_choice, places_of
from etafree.foundation.terminal import counted_noun
from etafree.inference import equal_tails
from etafree.report import plots
from etafree.report.page import shown
from etafree.target import Law

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from etafree.criterion import Criterion
    from etafree.report.figure import Panels
    from etafree.result import Calibration

#: Probabilities at which the shape of draws is held against its law.
PROBABILITIES = np.linspace(0.005, 0.995, 199)
#: Inches of a panel with named rows beside others.
BESIDE = 4.2


class Asked(NamedTuple):
    """A calibration, the parameters and the axes that a plot was asked for."""

    result: Calibration
    var_names: object
    filter_vars: str | None
    ax: object

    @property
    def level(self) -> float:
        return float(self.result.settings["level"])

    def places(self, names: Sequence[str]) -> list[int]:
        """Return where the chosen ones are among these names."""
        return places_of(names, self.var_names, self.filter_vars)

    def panels(self, count: int, height: float, beside: float = 3.2) -> Panels:
        """Return so many panels of a height, and of a width in several columns, in inches."""
        from etafree.report.figure import Panels

        return Panels.of(count, self.ax, height, beside)

    def keys(self, panels: Panels, *, eta: bool = True) -> list[Line2D]:
        """Return what a legend says of intervals before and after."""
        from etafree.report.figure import ink

        colours, own = ink(panels.axes[0]), self.result.original.eta
        before = "before calibration" + (f" at η = {own:g}" if eta and own is not None else "")
        return [
            plots.key(before, colours.before, "o", 2.0),
            plots.key("calibrated", colours.after, "s"),
        ]


def plot(
    result: Calibration, var_names: object, kind: str, filter_vars: str | None, ax: object
) -> Figure:
    """Return the figure of a kind of plot."""
    return KINDS[as_choice(kind, "kind", tuple(KINDS))](Asked(result, var_names, filter_vars, ax))


def _summary(asked: Asked) -> tuple[list[str], pd.DataFrame]:
    """Return the chosen parameters that have an interval, and their rows of the summary."""
    known = asked.result.shown.names
    names = [known[j] for j in asked.places(known)]
    return names, asked.result.summary(asked.level).loc[names]


def _density(asked: Asked) -> Figure:
    from etafree.report.figure import ink

    names, table = _summary(asked)
    before, after = asked.result.shown.columns(names)
    panels = asked.panels(len(names), 1.45)
    ends = table[plots.ENDS].to_numpy(np.float64)
    for name, ax, values in zip(names, panels.axes, ends, strict=True):
        plots.densities(ax, before[name], after[name], values, ink(ax))
    panels.label("parameter value")
    title = f"Densities (each scaled to its peak) and {100 * asked.level:g} % intervals"
    return panels.finish(title, asked.keys(panels), asked.result.target.describe(), names)


def _forest(asked: Asked) -> Figure:
    from etafree.report.figure import ink

    names, table = _summary(asked)
    panels = asked.panels(1, 0.5 + 0.42 * len(names))
    (ax,) = panels.axes
    units = np.minimum(table["se"], table["sd_before"])
    columns = table[["estimate", "lower", "upper"]].to_numpy(np.float64)
    told = [[shown(v, u) for v in row] for row, u in zip(columns, units, strict=True)]
    numbers = [f"{mid}  ({low} to {high})" for mid, low, high in told]
    plots.forest(ax, table, numbers if panels.own else [], ink(ax))
    title = f"{100 * asked.level:g} % intervals before and after calibration"
    return panels.finish(title, asked.keys(panels), asked.result.target.describe())


def _corrections(asked: Asked) -> Figure:
    from etafree.report.figure import ink

    result, own = asked.result, asked.result.target
    names = [own.names[j] for j in asked.places(own.names)]
    table = result.corrections(asked.level)
    before = result._before.select(names).array
    low, high = equal_tails(before, asked.level)
    most = int(table.groupby(level=0).size().max())
    panels = asked.panels(len(names), 0.75 + 0.17 * most, BESIDE)
    for j, (name, ax) in enumerate(zip(names, panels.axes, strict=True)):
        ends = np.array([low[j], before[:, j].mean(), high[j]])
        plots.corrections(ax, table.loc[[name]].droplevel(0), own.correction, ends, ink(ax))
    colours = ink(panels.axes[0])
    keys = [
        plots.key("before calibration", colours.before, "o", 2.0),
        plots.key(f"in use: {own.correction}", colours.after, "s"),
        plots.key("other corrections", colours.faint, "s"),
    ]
    panels.label("parameter value")
    title = f"{100 * asked.level:g} % intervals by correction"
    return panels.finish(title, keys, own.design, names)


def _eta(asked: Asked) -> Figure:
    from etafree.report.calibration import factors_of, not_drawable, sweep
    from etafree.report.figure import ink

    result, own = asked.result, asked.result.original.eta
    if why := not_drawable(result):
        advice = result._advice("calibrate draws of an ef.GeneralizedPosterior")
        advice += "; kind='forest' needs none"
        raise InputError("kind", f"'eta' needs draws at other learning rates, but {why}", advice)
    names = [result.shown.names[j] for j in asked.places(result.shown.names)]
    places = [result.shown.names.index(name) for name in names]
    assert result.criterion is not None  # else none could be drawn
    etas = factors_of(result.criterion) * (own or 1.0)
    made = sweep(result, etas.tolist())
    if not (drawn := [step.limits for step in made if step.limits is not None]):
        raise InputError("kind", f"'eta' has no draws: {made[0].reason}", "see kind='forest'")
    unknown = np.full_like(drawn[0], np.nan)
    limits = np.array([unknown if step.limits is None else step.limits for step in made])
    widths = (limits[:, :, 2] - limits[:, :, 0])[:, :, places]  # (eta, 2, k)
    panels = asked.panels(len(names), 1.7)
    for j, ax in enumerate(panels.axes):
        plots.sweep(ax, etas, widths[:, :, j].T, own, ink(ax))
    panels.label("learning rate η", "width of the interval")
    title = f"{100 * asked.level:g} % intervals at other learning rates, drawn afresh"
    note = "" if own is None else f"large marks: this fit, η = {own:g}"
    if len(drawn) < len(made):
        note += f"; {len(made) - len(drawn)} of {len(made)} could not be drawn"
    return panels.finish(title, asked.keys(panels, eta=False), note, names)


def implied_law(result: Calibration, slope: Array) -> Law:
    """Return the law of the t ratios of contrasts (k, p), as far as leverage tells."""
    t, c = result.target, result.criterion
    known = t.laws is not None or t.hessian is None or t.dependence is None or c is None
    if known or t.dependence is None or c is None or "leverage" not in c.total.traits:
        return t.law(slope)
    groups = t.dependence.clusters
    if groups is None and not t.dependence.independent:
        return t.law(slope)
    return contrast_laws(point_of(t), groups, leverage_of(t, groups), slope)


def implied_coverage(result: Calibration, level: float, places: Sequence[int]) -> pd.DataFrame:
    r"""Return how often the intervals before and after cover, by the law of the t ratio.

    An interval with ends at :math:`-a` and :math:`b` standard errors from the estimate covers with
    probability :math:`P(-b\le t\le a)`.
    """
    import pandas as pd

    own = result.shown
    slope = np.eye(result.target.p) if own.slope is None else own.slope
    law, names = implied_law(result, slope[list(places)]), [own.names[j] for j in places]
    table = result.summary(level).loc[names]
    estimate, se = (table[name].to_numpy(np.float64) for name in ("estimate", "se"))

    def share(side: str) -> Array:
        low, high = (table[f"{end}{side}"].to_numpy(np.float64) for end in ("lower", "upper"))
        return 1 - law.tail((estimate - low) / se) - law.tail((high - estimate) / se)

    index = pd.Index(names, name="parameter")
    return pd.DataFrame({"before": share("_before"), "after": share("")}, index=index)


def _coverage(asked: Asked) -> Figure:
    from etafree.report.calibration import QUICK, REDRAWN, SEED
    from etafree.report.figure import ink

    result, c = asked.result, asked.result.criterion
    places = asked.places(result.shown.names)
    table, checked = implied_coverage(result, asked.level, places), None
    note = "by the distribution of their t ratio"
    if c is not None and result.target.dependence is not None and c.n * c.p <= QUICK:
        try:
            checked = result.coverage_check(REDRAWN, level=asked.level, seed=SEED).loc[table.index]
            note += f", and in {REDRAWN} data sets drawn from these"
        except EtafreeError:  # no data set can be drawn from these rows alone
            checked = None
    panels = asked.panels(1, 0.5 + 0.4 * len(places))
    (ax,) = panels.axes
    plots.coverage(ax, table, asked.level, checked, ink(ax))
    ax.set_xlabel(f"coverage of {100 * asked.level:g} % intervals")
    keys = asked.keys(panels)
    if checked is not None:
        keys.append(plots.key("calibrated, data drawn again", ink(ax).text, "D", 1.2))
        keys[-1].set_markerfacecolor("none")
    return panels.finish("How often the intervals cover", keys, note)


class Moves(NamedTuple):
    """What leaving out each unit moves, in standard errors (G, k), with what units are called."""

    each: Array
    labels: list[str]
    unit: str


def _rows(criterion: Criterion) -> tuple[str, Labels]:
    """Return what single rows of a criterion are, and their labels in the user's table."""
    from etafree.fits.marginal import GroupRows

    rows = criterion.rows
    if isinstance(rows, GroupRows):
        return "group", np.arange(rows.used)
    places = np.arange(rows.original) if rows.kept is None else rows.kept
    return "row", places if rows.index is None else np.asarray(rows.index)[places]


def moves(result: Calibration, places: Sequence[int]) -> Moves:
    """Return by how many standard errors leaving out a cluster, or row, moves what is shown."""
    t, c, own = result.target, result.criterion, result.shown
    if c is None or t.dependence is None or t.hessian is None:
        problem = "'clusters' needs what each cluster adds to every estimate: not known here"
        advice = result._advice(
            "calibrate with a Criterion, or a fit with its model=, and clusters="
        )
        raise InputError("kind", problem, advice)
    ways = dict(t.dependence.row_groups())
    if not ways and t.dependence.independent and "memory" in c.total.traits:
        unit, labels = _rows(c)
        ways = {unit: Groups(np.arange(c.n), labels)}
    if not ways:
        problem = "'clusters' needs rows or clusters that are independent of each other"
        raise InputError("kind", problem, "calibrate with clusters=")
    at, names, parts = point_of(t), [], []
    for kind, groups in ways.items():
        try:
            each = influences(at, groups, "CR3")
        except InputError:  # a unit alone determines a coefficient
            each = influences(at, groups, "CR0")
        there = np.flatnonzero(groups.weights(c.total.weights) > 0)
        parts.append(-each[there])
        named = [str(label) for label in groups.labels[there]]
        names += [f"{kind} {label}" for label in named] if len(ways) > 1 else named
    slope = np.eye(t.p) if own.slope is None else own.slope
    shift = np.concatenate(parts) @ slope[list(places)].T / own.se[list(places)]
    return Moves(shift, names, next(iter(ways)) if len(ways) == 1 else "unit")


def _clusters(asked: Asked) -> Figure:
    from etafree.report.figure import ink

    result = asked.result
    places = asked.places(result.shown.names)
    moved = moves(result, places)
    count = min(len(moved.labels), plots.NAMED + 1)
    panels = asked.panels(len(places), 0.75 + 0.17 * count, BESIDE)
    for j, ax in enumerate(panels.axes):
        plots.units(ax, moved.each[:, j], moved.labels, ink(ax), moved.unit)
    panels.label("standard errors")
    names = [result.shown.names[j] for j in places]
    title = f"How far the estimate moves when one {moved.unit} is left out"
    return panels.finish(title, names=names)


class Quantiles(NamedTuple):
    """Quantiles of the law (m, k), of the draws, the band of chance, and those of the limits."""

    law: Array
    draws: Array
    band: Array  #: (2, m, k).
    ends: Array  #: (2, 2, k): of the law and of the draws.


def quantiles(z: Array, law: Law, ess: float, level: float) -> Quantiles:
    r"""Return what holds t ratios (D, k) of draws against their law.

    A quantile of m independent draws at probability u is that of the law at a probability with
    distribution :math:`\mathrm{Beta}(mu, m(1-u))`: the band has 95 % of it.
    """
    from scipy.special import betaincinv

    u, tails = PROBABILITIES, [0.5 * (1 - level), 0.5 * (1 + level)]
    chance = [betaincinv(ess * u, ess * (1 - u), side) for side in (0.025, 0.975)]

    def at(probabilities: Array) -> Array:
        return np.array([law.quantile(float(np.clip(v, 1e-12, 1 - 1e-12))) for v in probabilities])

    ends = np.array([at(np.array(tails)), np.quantile(z, tails, axis=0)])
    return Quantiles(at(u), np.quantile(z, u, axis=0), np.array([*map(at, chance)]), ends)


def draws_shape(
    result: Calibration, level: float, places: Callable[[Sequence[str]], list[int]] | int
) -> tuple[list[str], Quantiles]:
    """Return parameters and their draws' quantiles against the law; so many of the first, or all.

    Of variables that a model transforms the law is that of the parameters that were calibrated.
    """
    own, t = result.shown, result.target
    names, z, law = own.names, (own.after - own.estimate) / own.se, own.law
    if own.linear is not None:
        z = (result._on_target(result.draws).array - result.map.offset) / t.se
        names, law = t.names, t.law()
    at = [*range(len(names))][:places] if isinstance(places, int) else places(names)
    part = Law(law.dof[at], law.inflation[at])
    return [names[j] for j in at], quantiles(z[:, at], part, result.original.ess, level)


def _shape(asked: Asked) -> Figure:
    from etafree.report.figure import ink

    result = asked.result
    names, found = draws_shape(result, asked.level, asked.places)
    panels = asked.panels(len(names), 2.1)
    for j, ax in enumerate(panels.axes):
        columns = found.law[:, j], found.draws[:, j], found.band[..., j], found.ends[..., j]
        plots.shape(ax, *columns, ink(ax))
    panels.label("quantiles of the reference distribution", "quantiles of the draws")
    colours = ink(panels.axes[0])
    keys = [
        plots.key("calibrated draws", colours.after, "", 2.0),
        plots.key(f"limits of the {100 * asked.level:g} % interval", colours.after, "s", 0.0),
        plots.key("95 % of samples from that distribution", colours.faint, "", 6.0),
    ]
    ess = counted_noun(round(result.original.ess), "effective draw")
    title = f"The shape of {ess} against their reference distribution"
    return panels.finish(title, keys, names=names)


#: What `Calibration.plot` draws, by name.
KINDS: dict[str, Callable[[Asked], Figure]] = {
    "density": _density,
    "forest": _forest,
    "corrections": _corrections,
    "eta": _eta,
    "coverage": _coverage,
    "clusters": _clusters,
    "shape": _shape,
}

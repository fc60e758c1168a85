"""Plots: what they draw are the numbers of the tables, pyplot shows them, legends cover nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import matplotlib.colors
import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

import etafree as ef
from conftest import STRICT, refused
from etafree.report import figure as figures
from etafree.report import kinds
from etafree.report.kinds import KINDS
from etafree.report.plots import AFTER, AFTER_ON_DARK, BEFORE, NAMED, key
from test_active import sparse
from test_report import clustered

NAMES = ("Intercept", "C(g)[T.ä, ü]", "$b$ per $")


def fit(p=3, names=NAMES, loss=None, clusters=True, n=120, eta=0.5, **options) -> ef.Calibration:
    rng, group = np.random.default_rng(3), np.arange(n) // 6
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    y = X.sum(axis=1) + rng.standard_t(4, n) + rng.standard_normal(n)[group]
    criterion = ef.Criterion(loss or ef.losses.Squared(), (X, y), names=names[:p] or None)
    posterior = ef.GeneralizedPosterior(criterion, eta)
    labels = {"clusters": np.array([f"school {g}" for g in group])} if clusters else {}
    return ef.calibrate(ef.sample(posterior, 400, seed=1), posterior, **labels, **options)


@pytest.fixture(scope="module")
def result() -> ef.Calibration:
    return fit()


def lines_of(ax: Axes, colour: str, length: int | None = None) -> list[np.ndarray]:
    """Return the data (2, m) of an axes' lines of a colour, of m points."""
    every = [line for line in ax.lines if line.get_color() == colour]
    data = [np.array(line.get_data(), dtype=float) for line in every]
    return [xy for xy in data if length is None or xy.shape[1] == length]


def covered(made: Figure) -> list[str]:
    """Return what a legend or a title of a figure covers."""
    canvas = FigureCanvasAgg(made)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [made._suptitle] if made._suptitle else []
    above = [*made.legends, *(ax.get_legend() for ax in made.axes if ax.get_legend()), *texts]
    boxes = [artist.get_window_extent(renderer) for artist in above]
    below = [(f"axes {k}", ax.get_window_extent(renderer)) for k, ax in enumerate(made.axes)]
    below += [(ax.get_title(loc="left"), ax._left_title.get_window_extent()) for ax in made.axes]
    wrong = [f"{a} under {k}" for k, box in enumerate(boxes) for a, b in below if box.overlaps(b)]
    wrong += ["legend and title"] if len(boxes) > 1 and boxes[0].overlaps(boxes[1]) else []
    return wrong


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_nothing_is_covered_and_colours_suit_the_ground(result, kind, style) -> None:
    with matplotlib.style.context(style):
        made = result.plot(kind=kind)
    assert covered(made) == []
    colours = {line.get_color() for ax in made.axes for line in ax.lines}
    dark = style == "dark_background"
    assert (AFTER_ON_DARK if dark else AFTER) in colours
    assert (AFTER if dark else AFTER_ON_DARK) not in colours


def lightness(colour: str) -> float:
    return float(np.dot(matplotlib.colors.to_rgb(colour), [0.2126, 0.7152, 0.0722]))


def test_colours_differ_in_lightness() -> None:
    assert lightness(AFTER) + 0.15 < lightness(BEFORE) < lightness(AFTER_ON_DARK) - 0.15


@pytest.mark.parametrize("kind", ["density", "forest"])
def test_intervals_are_those_of_the_summary(result, kind) -> None:
    made, table = result.plot(kind=kind), result.summary()
    axes = made.axes if kind == "density" else made.axes * 3
    for k, (ax, (_, row)) in enumerate(zip(axes, table.iterrows(), strict=True)):
        for colour, ends in (
            (BEFORE, ["lower_before", "upper_before"]),
            (AFTER, ["lower", "upper"]),
        ):
            drawn = [xy[0] for xy in lines_of(ax, colour, 2)]
            np.testing.assert_array_equal(drawn[0 if kind == "density" else k], row[ends])
            middle = row["mean_before" if colour == BEFORE else "estimate"]
            assert any(xy[0, 0] == middle for xy in lines_of(ax, colour, 1))


def test_names_stand_as_they_are(result) -> None:
    made = result.plot(kind="forest")
    made.canvas.draw()
    labels = made.axes[0].get_yticklabels()
    assert tuple(label.get_text() for label in labels) == NAMES
    assert not any(label.get_parse_math() for label in labels)
    texts = [text.get_text() for text in made.axes[0].texts]
    low, high = result.interval().loc["Intercept"]
    assert texts[0].endswith(f"({kinds.shown(low, 0.1)} to {kinds.shown(high, 0.1)})")


def test_a_forest_of_unlike_units_is_in_standard_errors() -> None:
    target = ef.Target([1e4, 0.5], np.diag([1e4, 1e-4]), ["large", "small"])
    draws = np.random.default_rng(0).standard_normal((500, 2)) * [50.0, 0.02] + [1e4, 0.5]
    made = ef.calibrate(draws, target)
    ax, table = made.plot(kind="forest").axes[0], made.summary()
    assert ax.get_xlabel() == "standard errors from the estimate"
    own = table[["lower", "upper"]].sub(table["estimate"], axis=0).div(table["se"], axis=0)
    np.testing.assert_allclose([xy[0] for xy in lines_of(ax, AFTER, 2)], own)


def test_corrections_are_those_of_the_table(result) -> None:
    made, table = result.plot(kind="corrections"), result.corrections()
    for ax, name in zip(made.axes, NAMES, strict=True):
        rows, labels = table.loc[name], [text.get_text() for text in ax.get_yticklabels()]
        assert [label.split(",")[0] for label in labels[1:]] == [
            n.split(",")[0] for n in rows.index
        ]
        at = labels.index(f"CR3, {round(rows.loc['CR3', 'dof'], 1):g} df")
        (own,) = lines_of(ax, AFTER, 2)
        np.testing.assert_array_equal(own[0], rows.loc["CR3", ["lower", "upper"]])
        assert set(own[1]) == {at}
        drawn = {tuple(np.array(line.get_xdata())) for line in ax.lines}
        assert {tuple(row) for row in rows[["lower", "upper"]].to_numpy()} <= drawn


@pytest.mark.parametrize("far", [np.inf, 1e3])
def test_an_interval_that_goes_on_is_an_arrow_at_the_edge(result, monkeypatch, far) -> None:
    table = result.corrections()
    table.loc[("Intercept", "wild bootstrap"), "upper"] = far
    monkeypatch.setattr(type(result), "corrections", lambda *_: table)
    ax = result.plot("Intercept", kind="corrections").axes[0]
    (arrow,) = [line for line in ax.lines if line.get_marker() == ">"]
    assert float(arrow.get_xdata()[0]) == ax.get_xlim()[1] < 10


def test_the_fit_s_own_numbers_stand_at_its_own_learning_rate(result) -> None:
    made, table = result.plot(kind="eta"), result.summary()
    for ax, (_, row) in zip(made.axes, table.iterrows(), strict=True):
        for colour, ends in (
            (BEFORE, ["lower_before", "upper_before"]),
            (AFTER, ["lower", "upper"]),
        ):
            (curve,), (own,) = lines_of(ax, colour, 13), lines_of(ax, colour, 1)
            np.testing.assert_allclose(own[:, 0], [0.5, np.ptp(row[ends])], rtol=1e-12)
            np.testing.assert_array_equal(curve[:, 6], own[:, 0])
        before, after = (lines_of(ax, colour, 13)[0][1] for colour in (BEFORE, AFTER))
        np.testing.assert_allclose(before * np.sqrt(curve[0]), before[6] * 0.5**0.5, rtol=0.15)
        assert np.ptp(after) < 0.2 * after[6]


def test_coverage_by_the_law_of_the_t_ratio(result) -> None:
    table, rows = result.summary(), kinds.implied_coverage(result, 0.95, range(3))
    law = stats.t(table["dof"])
    for side, mid in (("before", "_before"), ("after", "")):
        low, high = (
            (table[f"{end}{mid}"] - table["estimate"]) / table["se"] for end in ("lower", "upper")
        )
        grow = np.sqrt(result.target.inflation)
        np.testing.assert_allclose(
            rows[side], law.cdf(grow * high) - law.cdf(grow * low), rtol=1e-9
        )
    wald = fit(correction="CR1")
    law = kinds.implied_law(wald, np.eye(3))
    worst = law.coverage(wald.target.law().quantile(0.975)).min()
    np.testing.assert_allclose(worst, wald.diagnostics().loc["implied coverage", "value"])
    ax = result.plot(kind="coverage").axes[0]
    np.testing.assert_array_equal(lines_of(ax, AFTER, 3)[0][0], rows["after"])
    checked = result.coverage_check(200, seed=0)["coverage"]
    assert any(np.array_equal(line.get_xdata(), checked) for line in ax.lines)


def test_clusters_move_the_estimate_as_refits_without_them(result) -> None:
    moved = kinds.moves(result, range(3))
    total, labels = result.criterion.total, np.arange(120) // 6
    for g in range(20):
        left = labels != g
        refit = np.linalg.lstsq(total.X[left], total.y[left], rcond=None)[0]
        shift = (refit - result.target.center) / result.target.se
        np.testing.assert_allclose(moved.each[moved.labels.index(f"school {g}")], shift, rtol=1e-7)
    made = result.plot(kind="clusters")
    for j, ax in enumerate(made.axes):
        names = [text.get_text() for text in ax.get_yticklabels()]
        top = np.argsort(-np.abs(moved.each[:, j]))[:NAMED]
        assert names == [*(moved.labels[g] for g in top), "14 other clusters"]
        ends = [xy[0, 1] for xy in lines_of(ax, AFTER, 2)]
        np.testing.assert_array_equal(ends, moved.each[top, j])


def test_units_of_other_structures_are_named() -> None:
    rows = kinds.moves(fit(clusters=False), [0])
    assert (rows.unit, rows.labels[7], len(rows.labels)) == ("row", "7", 120)
    table = pd.DataFrame({"x": [1.0, np.nan, 3.0, 5.0], "y": [1.0, 2.0, 2.0, 5.0]}, index=[*"abcd"])
    criterion = ef.Criterion.from_formula("y ~ x", table, ef.losses.Huber())
    draws = np.random.default_rng(0).standard_normal((99, 2))
    some = ef.calibrate(draws, criterion, eta=1.0, correction="HC1")
    assert kinds.moves(some, [1]).labels == ["a", "c", "d"]
    firm, year = np.arange(120) // 6, np.arange(120) % 8
    both = fit(clusters=False).with_dependence(clusters={"firm": firm, "year": year})
    ways = kinds.moves(both, [0])
    assert (ways.unit, ways.labels[0], ways.labels[-1]) == ("unit", "firm 0", "year 7")
    X = np.column_stack([np.ones(120), firm == 7])
    y, draws = np.random.default_rng(0).standard_normal((2, 120, 2))
    criterion = ef.Criterion(ef.losses.Squared(), (X, y[:, 0]))
    ways = {"firm": firm, "year": year}
    alone = ef.calibrate(draws, criterion, clusters=ways, correction="CR1S")
    assert np.isfinite(kinds.moves(alone, [0, 1]).each).all()  # though firm 7 alone has its dummy


def test_quantiles_of_draws_lie_in_the_band_of_their_law(result) -> None:
    law = ef.target(result.criterion, clusters=np.arange(120) // 6).law()
    rng = np.random.default_rng(5)
    z = rng.standard_t(law.dof, (2000, 3)) / np.sqrt(law.inflation)
    found = kinds.quantiles(z, law, 2000.0, 0.9)
    np.testing.assert_allclose(found.law[99], 0.0, atol=1e-12)
    np.testing.assert_allclose(found.ends[0, 1], law.quantile(0.95))
    np.testing.assert_allclose(found.ends[1], np.quantile(z, [0.05, 0.95], axis=0), rtol=1e-12)
    inside = (found.band[0] < found.draws) & (found.draws < found.band[1])
    assert inside.mean() > 0.7  # quantiles depend on each other: 95 % on average
    shown = result.plot(kind="shape").axes[0]
    (line,) = lines_of(shown, AFTER, 199)
    np.testing.assert_allclose(line[0], found.law[:, 0], rtol=1e-12)
    own = (result.draws.array[:, 0] - result.center[0]) / result.target.se[0]
    np.testing.assert_allclose(line[1], np.quantile(own, kinds.PROBABILITIES), rtol=1e-9)


def test_the_band_holds_a_quantile_as_often_as_it_says() -> None:
    law, rng = ef.Target([0.0], [[1.0]], dof=5).law(), np.random.default_rng(5)
    many = rng.standard_t(5, (4000, 99))
    low, high = kinds.quantiles(many[0][:, None], law, 99.0, 0.9).band[:, [20, 99], 0]
    drawn = np.quantile(many, kinds.PROBABILITIES[[20, 99]], axis=1).T
    share = ((low < drawn) & (drawn < high)).mean(axis=0)
    np.testing.assert_allclose(share, 0.95, atol=0.015)  # se 0.0034, and interpolation


# --- axes, pyplot, notebooks --------------------------------------------------------------------


def test_axes_of_the_user_are_drawn_on(result) -> None:
    made = Figure(figsize=(9, 9), layout="constrained")
    grid = made.subplots(3, 3)
    for k, kind in enumerate(("density", "corrections", "clusters")):
        assert result.plot(kind=kind, ax=grid[k]) is made
        assert all(ax.lines for ax in grid[k])
    assert covered(made) == []
    part = Figure().subfigures(1, 2)[0]
    assert result.plot("Intercept", kind="shape", ax=part.subplots()) is part.figure
    refused("ax", "is a str", lambda: result.plot(ax="here"))
    refused("ax", "9 axes for 3 panels; pass 3", lambda: result.plot(ax=grid))
    refused("ax", "3 axes for 1 panels", lambda: result.plot(kind="forest", ax=grid[0]))


def test_pyplot_knows_a_figure_where_it_is_in_use(result) -> None:
    import matplotlib.pyplot as plt

    plt.close("all")
    made = result.plot(kind="forest")
    assert plt.figure(plt.get_fignums()[-1]) is made
    plt.close(made)
    assert not plt.get_fignums()


SCRIPT = """
import sys, numpy as np, etafree as ef
from matplotlib.figure import Figure
draws = np.random.default_rng(0).standard_normal((99, 2))
result = ef.calibrate(draws, center=[0, 0], covariance=np.eye(2))
figures = [result.plot(kind=kind) for kind in ("density", "forest", "shape") * 9]
figures[0].savefig(sys.argv[1])
print(all(type(f) is Figure for f in figures), "matplotlib.pyplot" in sys.modules)
"""


@pytest.mark.parametrize("seen", [False, True])
def test_a_script_that_nobody_sees_keeps_its_figures_to_itself(tmp_path, seen) -> None:
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"MPLBACKEND": "Agg"}
    code = f"import matplotlib.pyplot as plt\\n{SCRIPT}" if seen else SCRIPT
    code = (
        code.replace("\\n", "\n")
        + "\nprint(len(sys.modules['matplotlib.pyplot'].get_fignums()))" * seen
    )
    if seen:
        code = code.replace("* 9", "* 2")
    words = [sys.executable, *STRICT, "-c", code, str(tmp_path / "plot.png")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["True", "True", "6"] if seen else ["True", "False"])


def test_a_display_is_found_where_there_is_one(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    monkeypatch.setattr(figures, "shell", lambda: None)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("MPLBACKEND", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delattr(sys, "ps1", raising=False)
    assert not figures.watched()
    monkeypatch.setenv("DISPLAY", ":0")
    assert figures.watched()
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert not figures.watched()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert figures.watched()


def test_a_notebook_shows_a_figure_once(result, monkeypatch) -> None:
    """IPython asks for more than a picture before it makes one; then pyplot forgets the figure."""
    import matplotlib.pyplot as plt

    monkeypatch.setattr(figures, "shell", object)
    for ax in (None, plt.subplots()[1]):
        made = result.plot(kind="forest", ax=ax)
        assert made._repr_mimebundle_(include=None, exclude=None) == {}
        assert plt.fignum_exists(made.number)  # Agg: nobody shows it at the end of a cell
        with monkeypatch.context() as inline:
            inline.setattr(plt, "get_backend", lambda: "module://matplotlib_inline.backend_inline")
            assert made._repr_mimebundle_() == {}
        assert not plt.fignum_exists(made.number)


# --- every kind of result -----------------------------------------------------------------------

NEEDS = {"corrections", "eta", "clusters"}


def given(p=2) -> ef.Calibration:
    rng = np.random.default_rng(0)
    return ef.calibrate(rng.standard_normal((3, 100, p)), center=np.zeros(p), covariance=np.eye(p))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_or_says_what_it_needs(kind, tmp_path) -> None:
    for made in (given(), ef.Calibration.load(fit(2).save(tmp_path / "fit"))):
        if kind in NEEDS:
            with pytest.raises(ef.errors.InputError, match=r"riterion|no data and no model"):
                made.plot(kind=kind)
        else:
            made.plot(kind=kind).canvas.draw()
    one = fit(1)
    assert len(one.plot(kind=kind).axes) == 1
    criterion = sparse()
    posterior = ef.GeneralizedPosterior(criterion, 1.0)
    active = ef.calibrate(ef.sample(posterior, 400, seed=1), posterior)
    active.plot(active.shown.names[0], kind=kind).canvas.draw()
    refused("var_names", "is not a parameter", lambda: active.plot(active.inactive[0], kind=kind))


def test_a_series_has_no_clusters_to_leave_out() -> None:
    made = fit(clusters=False).with_dependence(dependence=ef.TimeSeries(np.arange(120)))
    refused("kind", "independent of each other", lambda: made.plot(kind="clusters"))
    made.plot(kind="coverage")
    made.plot(kind="corrections")


def test_many_parameters_are_a_grid_up_to_a_limit() -> None:
    made = given(14).plot()
    assert len(made.axes) == 14
    assert len({round(ax.get_position().x0, 2) for ax in made.axes}) == 3
    assert covered(made) == []
    many = given(figures.MOST + 1)
    refused("var_names", "name some, or take kind='forest'", lambda: many.plot(kind="shape"))
    many.plot(kind="forest")


def test_a_kind_that_there_is_not_is_refused(result) -> None:
    refused("kind", "choose one of 'density', 'forest'", lambda: result.plot(kind="pairs"))


def test_learning_rates_that_cannot_be_drawn_are_counted() -> None:
    made = clustered(loss=ef.losses.StudentT(4.0), eta=0.05)
    drawn = made.plot("dose", kind="eta")
    assert "could not be drawn" in drawn.get_suptitle()
    (curve,) = lines_of(drawn.axes[0], BEFORE, 13)
    assert 0 < np.isnan(curve[1]).sum() < 13


def test_limits_that_are_not_finite_are_said() -> None:
    from etafree.report.plots import densities

    ax = Figure().subplots()
    draws = np.r_[np.zeros(50), np.inf]
    densities(ax, draws, draws, np.r_[0.0, 1.0, np.inf, 0.0, 1.0, np.inf], figures.ink(ax))
    assert [text.get_text() for text in ax.texts] == ["its limits are not finite"]


def test_the_legend_takes_as_many_lines_as_it_needs() -> None:
    keys = [key("x" * 40, "black") for _ in range(3)]
    assert [figures._beside(keys, width) for width in (1e4, 600.0, 100.0)] == [3, 2, 1]
    assert figures._beside([], 100.0) == 1


def test_arviz_plots_draws_calibrated_draws(result) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages beside it
        azp = pytest.importorskip("arviz_plots")
    made = azp.plot_forest(result.to_arviz(), backend="none")
    assert made is not None

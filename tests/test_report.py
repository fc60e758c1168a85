"""The page of a calibration: what it says, what it escapes, and where its numbers come from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import etafree as ef
from conftest import refused
from etafree.fits import Fit
from etafree.report import calibration as module
from etafree.report.calibration import DRAWN, FACTORS, calibration_page, sweep
from etafree.report.page import Scale, between, shown
from etafree.report.plots import density
from test_active import sparse

ATTACK = "</script><script>alert('1')</script>&\"<b>"


class Reader(HTMLParser):
    """Collects the tags and the text of a page, scripts and styles apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.raw = "", False
        self.feed(page)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        self.raw = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.raw = False

    def handle_data(self, data):
        self.text += "" if self.raw else data


def clustered(names=("one", "dose"), loss=None, eta=0.5, **options) -> ef.Calibration:
    rng = np.random.default_rng(5)
    group = np.arange(180) // 6
    X = np.column_stack([np.ones(180), rng.standard_normal(180)])
    y = X @ [0.4, 0.8] + rng.standard_t(3, 180) + 0.7 * rng.standard_normal(30)[group]
    criterion = ef.Criterion(loss or ef.losses.Huber(1.345), (X, y), names=names)
    draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=2000, seed=1)
    return ef.calibrate(draws, criterion, clusters=group, **options)


@pytest.fixture(scope="module")
def result() -> ef.Calibration:
    return clustered()


@pytest.fixture(scope="module")
def page(result: ef.Calibration) -> str:
    return calibration_page(result)


def steps_of(page: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="steps">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1], parse_constant=pytest.fail)


def test_the_page_tells_what_is_covered_how_it_was_made_and_what_to_watch(result) -> None:
    doubt = ef.foundation.check.Check("doubt", 1.0, 0.5, "above", "warn", "think again")
    result = replace(result, recorded=(*result.checks, doubt))
    text = Reader(calibration_page(result)).text
    assert result.target.estimand in text
    assert "not the parameter of the process that generated the data" in text
    assert result.target.describe() in text
    for fact in (
        "(MAP)",
        "CR3",
        "30 clusters",
        "t with",
        "η = 0.5",
        "affine",
        "location-scale",
        ef.__version__,
        "180",
        "2000 (importance)",
    ):
        assert fact in text
    marks = {"ok": "✓ ok", "warn": "! warn", "fail": "✗ fail"}
    for check in result.checks:
        assert f"{marks[check.verdict]} {check.name}: {check.value:.3g}" in text
        assert check.advice in text
    assert "Checks to look at: " in text
    assert text.index("! warn") < text.index("✓ ok")


def test_intervals_stand_in_the_text_with_the_digits_they_are_worth(result, page) -> None:
    text, table = Reader(page).text, result.summary()
    for name, row in table.iterrows():
        unit = min(row["se"], row["sd_before"])
        before = f"{shown(row['lower_before'], unit)} to {shown(row['upper_before'], unit)}"
        after = f"{shown(row['lower'], unit)} to {shown(row['upper'], unit)}"
        drawn = text[text.index("Before and after") :]
        assert f"○ before {before} ■ calibrated {after}" in drawn[drawn.index(f" {name} ") :]
        assert abs(float(shown(row["lower"], unit)) - row["lower"]) <= 0.05 * row["se"]
        assert f"{row['ratio']:.3g}" in text


def test_numbers_have_the_digits_of_their_unit() -> None:
    assert shown(1234.5678, 0.3) == "1234.57"
    assert shown(1234.5678, 40.0) == "1235"
    assert shown(1.5e-9, 1e-10) == "1.5e-09"
    assert shown(0.0, 0.0) == "0"
    assert between([2.0, 1.0, 1.2345]) == "1 to 2"
    assert between([3.0]) == "3"
    assert Scale(0.0, 1.0).ticks() == [(20.0, "0.2"), (40.0, "0.4"), (60.0, "0.6"), (80.0, "0.8")]


def test_densities_reach_a_little_beyond_the_draws() -> None:
    grid, height = density(np.linspace(-1.0, 1.0, 101), points=5)
    np.testing.assert_allclose(grid, [-1.2, -0.6, 0.0, 0.6, 1.2], atol=0.01)
    assert height.max() == 1.0


def test_bars_stand_where_their_values_are() -> None:
    scale = Scale.covering(2.0, 6.0, 0.25)
    assert scale == (1.0, 7.0)
    bar = scale.bar([2.0, 4.0, 8.5], 1.0)
    assert bar.text == "2.0 to 8.5"
    assert (bar.low, bar.mid, bar.high) == (16.67, 50.0, 100.0)
    assert bar.cut == (False, True)
    assert bar.values == (2.0, 4.0, 8.5)
    assert Scale.around(np.array([0.0, 1.0]), np.array([-9.0, 1.5])) == (-1.5 - 0.09, 1.5 + 0.09)


@pytest.mark.parametrize("width", np.logspace(-12, 12, 37))
def test_every_scale_has_a_few_distinct_round_ticks(width: float) -> None:
    for low in (-0.37 * width, 0.0, 12.3 * width):
        scale = Scale(low, low + width)
        places, labels = zip(*scale.ticks(), strict=True)
        assert 2 <= len(labels) == len(set(labels)) <= 6
        values = low + np.array(places) / 100 * width
        np.testing.assert_allclose([float(label) for label in labels], values, atol=2e-4 * width)


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    reader = Reader(page)
    for tag, attributes in reader.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base")
    assert not re.search(r"https?://|//\w|@import|url\(|fetch|XMLHttp", page)
    assert "default-src 'none'" in page


def test_names_are_text_everywhere() -> None:
    made, plain = (calibration_page(clustered(names=("one", n))) for n in (ATTACK, "dose"))
    assert [tag for tag, _ in Reader(made).tags] == [tag for tag, _ in Reader(plain).tags]
    assert ATTACK not in made
    assert Reader(made).text.count(ATTACK) == Reader(plain).text.count("dose") >= 5
    assert steps_of(made) == steps_of(plain)


def test_reasons_and_advice_are_text_too(result) -> None:
    check = ef.foundation.check.Check("<i>shape", 1.0, 0.5, "above", "fail", "</script><u>do")
    made = calibration_page(replace(result, recorded=(check,)), etas=())
    assert "✗ fail</b> &lt;i&gt;shape: 1, warns above 0.5<br>&lt;/script&gt;&lt;u&gt;do" in made


def test_the_slider_holds_fresh_draws_at_every_learning_rate(result, page) -> None:
    steps = steps_of(page)
    assert len(steps) == len(FACTORS)
    for step, factor in list(zip(steps, FACTORS, strict=True))[::4]:
        eta = 0.5 * factor
        assert step["label"].startswith(f"η = {eta:.3g}")
        drawn = ef.sample(
            ef.GeneralizedPosterior(result.criterion, eta), draws=module.DRAWS, seed=module.SEED
        )
        again = ef.calibrate(drawn, result.target, seed=module.SEED)
        table = again.summary()
        for j, name in enumerate(table.index):
            row = table.loc[name]
            before = row[["lower_before", "mean_before", "upper_before"]]
            after = row[["lower", "estimate", "upper"]]
            np.testing.assert_allclose(step["before"][j]["values"], before, rtol=1e-12)
            np.testing.assert_allclose(step["after"][j]["values"], after, rtol=1e-12)


def test_the_uncalibrated_interval_breathes_and_the_calibrated_stays(result, page) -> None:
    steps = steps_of(page)
    before, after = (
        np.array([[bar["values"] for bar in step[side]] for step in steps])
        for side in ("before", "after")
    )
    width = before[:, :, 2] - before[:, :, 0]
    assert np.all(np.diff(width, axis=0) < 0)
    assert np.all(width[0] > 30 * width[-1])
    moved = np.ptp(after, axis=0) / result.target.se[:, None]
    assert moved.max() < 0.35  # Monte Carlo error of one quantile is 0.06, and t tails widen it
    for name in ("lower", "upper"):
        near = after[6, :, 0 if name == "lower" else 2] - result.summary()[name]
        assert np.max(np.abs(near) / result.target.se) < 0.35


def test_settings_of_the_calibration_hold_on_the_slider_too() -> None:
    made = clustered(loss=ef.losses.Squared(), map=ef.Map("paper", "scale"), level=0.8)
    (found,) = sweep(made, [0.05])
    drawn = ef.sample(ef.GeneralizedPosterior(made.criterion, 0.05), draws=module.DRAWS, seed=0)
    again = ef.calibrate(
        drawn, made.target, level=0.8, seed=0, map=ef.Map(root="paper", kind="scale")
    )
    np.testing.assert_allclose(found.limits[1][[0, 2]].T, again.interval(), rtol=1e-12)
    np.testing.assert_allclose(found.limits[1][1], drawn.mean)


def test_a_log_prior_stays_in_the_posterior_that_is_drawn_again() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    criterion = ef.Criterion(ef.losses.Squared(), (X, X @ [1.0, 0.0] + rng.standard_normal(60)))
    prior = ef.LogPrior.normal([3.0, 3.0], 0.1 * np.eye(2))
    posterior = ef.GeneralizedPosterior(criterion, 1.0, prior)
    draws = ef.sample(posterior, draws=500, seed=1)
    (made,) = sweep(ef.calibrate(draws, posterior), [0.01])
    assert np.all(made.limits[0][1] > 2.0)  # there the prior rules
    fixed = ef.calibrate(draws, posterior.energy)
    assert "moves with η itself" in calibration_page(fixed)
    refused("etas", "moves with η itself", lambda: calibration_page(fixed, etas=[1.0]))


def test_a_learning_rate_that_cannot_be_drawn_is_missing_with_its_reason() -> None:
    made = clustered(loss=ef.losses.StudentT(4.0), eta=0.05)
    page = calibration_page(made, etas=[1e-4, 1.0])
    first, own, last = steps_of(page)
    assert first["said"].startswith("No draws here: eta: is 0.0001: the posterior of StudentT")
    assert "before" not in first
    assert "after" not in first
    assert own["label"] == "η = 0.05 (this fit's)"
    assert f'<p id="said" aria-live="polite">{own["said"]}</p>' in page
    assert len(last["before"]) == 2


def chart(page: str, heading: str) -> str:
    """Return what stands under a heading."""
    return page[page.index(f"<h2>{heading}</h2>") :].split("</section>")[0]


def strokes(text: str, kind: str) -> np.ndarray:
    """Return start and end, in per cent across, of the horizontal lines of a class."""
    found = re.findall(rf'<path class="{kind}" d="M([\d.]+),[\d.]+H([\d.]+)"/>', text)
    return np.array(found, dtype=float)


def test_intervals_side_by_side_have_one_scale(result, page) -> None:
    table = result.summary()
    drawn = chart(page, "Side by side")
    ends = table[["lower_before", "upper_before", "lower", "upper"]].to_numpy()
    scale = Scale.covering(ends.min(), ends.max(), 0.05)
    for kind, columns in (("before", ends[:, :2]), ("after", ends[:, 2:])):
        np.testing.assert_allclose(strokes(drawn, kind), scale.at(columns), atol=0.006)
    unlike = ef.Target([0.0, 1e6], np.diag([1.0, 1e-2]))
    draws = np.random.default_rng(0).standard_normal((300, 2)) + unlike.center
    assert "Side by side" not in calibration_page(ef.calibrate(draws, unlike))


def test_the_page_names_the_clusters_that_move_an_estimate(result, page) -> None:
    from etafree.report import kinds

    moved, text = (
        kinds.moves(result, [0, 1]),
        Reader(chart(page, "Which clusters move an estimate")),
    )
    for each in moved.each.T:
        top = np.argsort(-np.abs(each))[0]
        assert f"{moved.labels[top]}: {each[top]:+.2f}" in text.text
    assert text.text.count("24 others") == 2
    alone = calibration_page(result.with_dependence(correction="HC1"), etas=())
    assert "move an estimate" not in alone


def test_widths_over_learning_rates_are_the_sliders(result, page) -> None:
    drawn, steps = chart(page, "Other learning rates"), steps_of(page)
    assert drawn.count('class="before thin"') == drawn.count('class="after thin"') == 2
    wide, narrow = (np.diff(steps[k]["before"][0]["values"])[[0, 1]].sum() for k in (0, -1))
    assert f"width {narrow:.3g} to {wide:.3g} over η" in drawn
    path = re.findall(r'class="before thin" d="M([^"]*)"', drawn)[0]
    points = np.array([point.split(",") for point in path.split()], dtype=float)
    np.testing.assert_allclose(points[:, 0], np.linspace(0, 100, len(FACTORS)), atol=0.01)
    np.testing.assert_allclose(points[[0, -1], 1], [0.0, 1.0], atol=1e-3)


def test_the_shape_of_draws_is_drawn_of_every_kind_of_result(page, constrained) -> None:
    draws = np.random.default_rng(0).standard_normal((99, 8))
    given = ef.calibrate(draws, center=np.zeros(8), covariance=np.eye(8))
    for made, count in (
        (page, 2),
        (calibration_page(constrained), 2),
        (calibration_page(given), 6),
    ):
        drawn = chart(made, "The shape of the draws")
        assert drawn.count('class="band"') == count
        assert ("The first 6 of 8 parameters" in drawn) == (count == 6)


def test_without_a_criterion_the_page_says_why_there_is_no_slider(tmp_path) -> None:
    rng = np.random.default_rng(0)
    given = ef.calibrate(rng.standard_normal((500, 2)), center=[1.0, 2.0], covariance=np.eye(2))
    page = calibration_page(given)
    text = Reader(page).text
    assert "No slider over the learning rate: no criterion is known here" in text
    assert "covariance given by the user" in text
    assert "learning rate not known" in text
    assert "<script" not in page
    assert 'type="range"' not in page
    refused("etas", "no criterion is known", lambda: calibration_page(given, etas=[1.0]))
    loaded = ef.Calibration.load(clustered().save(tmp_path / "fit"))
    assert "no criterion is known here" in calibration_page(loaded)


def test_a_slider_can_be_left_out_and_costs_too_much_for_large_data(result, monkeypatch) -> None:
    assert "Other learning rates" not in calibration_page(result, etas=())
    monkeypatch.setattr(module, "BUDGET", 1.0)
    assert "would take long" in calibration_page(result)
    assert len(steps_of(calibration_page(result, etas=[1.0]))) == 2  # asked for: drawn
    for wrong in ([-1.0], [np.nan], 3.0, "ab"):
        refused("etas", "", lambda wrong=wrong: calibration_page(result, etas=wrong))


def test_parameters_without_an_interval_are_marked() -> None:
    criterion = sparse()
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    made = ef.calibrate(draws, criterion)
    page = calibration_page(made, etas=[0.5])
    text = Reader(page).text
    assert text.count("No interval: exactly zero at this penalty.") == 3
    assert "without interval x3, x4, x6" in text
    assert re.search(r"x3 0 (– )+no interval", text)
    assert len(steps_of(page)[0]["before"]) == 3
    alone = ef.calibrate(draws.array, criterion, eta=1.0)
    assert "sets to zero is not known" in calibration_page(alone)


def test_many_parameters_are_in_the_table_but_not_all_drawn() -> None:
    rng = np.random.default_rng(0)
    p = DRAWN + 7
    made = ef.calibrate(rng.standard_normal((300, p)), center=np.zeros(p), covariance=np.eye(p))
    page = calibration_page(made)
    assert page.count('<div class="row') == DRAWN
    assert f"The first {DRAWN} of {p} parameters" in page
    assert f"<th>theta[{p - 1}]</th>" in page
    assert f"theta[0] and {p - 1} more parameters" in page


@pytest.fixture(scope="module")
def constrained(result: ef.Calibration) -> ef.Calibration:
    """The same calibration of a model that shows exp(one), and dose twice over."""
    from xarray import DataArray, Dataset, DataTree

    def constrain(theta):
        return {"rate": np.exp(theta[..., 0]), "doses": theta[..., [1, 1]] * [1.0, 2.0]}

    variables = {
        name: DataArray(v[None], dims=["chain", "draw", "k"][: v.ndim + 1])
        for name, v in constrain(result.original.array).items()
    }
    tree = DataTree.from_dict({"posterior": Dataset(variables)})
    draws = replace(result.original, eta=1.0, source=None)
    fit = Fit(draws, tree, result.criterion, constrain=constrain, latent=("u",))
    return replace(result, original=draws, posterior=None, fit=fit)


def test_a_models_own_variables_are_shown_and_on_the_slider_too(constrained) -> None:
    page = calibration_page(constrained)
    table = constrained.summary()
    assert list(table.index) == ["rate", "doses[0]", "doses[1]"]
    for name in table.index:
        assert page.count(f"<h3>{name}</h3>") == 4  # intervals, slider, widths, clusters
    assert page.count('viewBox="0 0 100 1.02"') == 3  # densities
    assert "integrated out u" in Reader(page).text
    assert "without the Jacobian of the model&#39;s constraints" in page
    steps = steps_of(page)
    own = steps[len(FACTORS) // 2]
    (plain,) = sweep(replace(constrained, fit=None), [1.0])
    for side, expected in zip(("before", "after"), plain.limits, strict=True):
        rate, first, second = (np.array(bar["values"]) for bar in own[side])
        np.testing.assert_allclose(first, expected[:, 1], rtol=1e-12)
        np.testing.assert_allclose(second, 2 * first, rtol=1e-12)
        # order statistics commute with exp, up to the interpolation between two of them
        np.testing.assert_allclose(rate[[0, 2]], np.exp(expected[[0, 2], 0]), rtol=1e-3)
    assert own["after"][0]["values"][1] == pytest.approx(table.loc["rate", "estimate"])
    tempered = replace(constrained, original=replace(constrained.original, eta=0.5))
    assert "may multiply the model&#39;s prior or not" in calibration_page(tempered)


def test_a_model_that_needs_chains_is_left_out_where_quick_draws_fail() -> None:
    jnp = pytest.importorskip("jax.numpy")
    rng = np.random.default_rng(0)
    data = {"y": rng.standard_normal(40)}

    def normal(theta, row):
        return 0.5 * jnp.exp(-2 * theta[1]) * (row["y"] - theta[0]) ** 2 + theta[1]

    criterion = ef.Criterion(ef.JaxLoss(normal), data, start=np.zeros(2), names=["m", "log s"])
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 1.0), draws=500, seed=1)
    small, own = (step.reason for step in sweep(ef.calibrate(draws, criterion), [0.02, 1.0]))
    assert small.startswith("the posterior is too far from normal for quick draws")
    assert own == ""


def test_the_fit_s_own_learning_rate_has_the_fit_s_own_numbers() -> None:
    y = np.random.default_rng(2).standard_normal(30)
    criterion = ef.Criterion(ef.losses.Huber(), (np.ones((30, 1)), y))
    draws = ef.sample(ef.GeneralizedPosterior(criterion, 0.3), draws=200, seed=5)
    result = ef.calibrate(draws, criterion)
    own, other = sweep(result, [0.3, 0.6])
    before, after = own.limits
    np.testing.assert_allclose(after[[0, 2]].T, result.interval(), rtol=1e-12)
    np.testing.assert_allclose(before[1], draws.mean, rtol=1e-12)
    np.testing.assert_allclose(after[1], result.center, rtol=1e-12)
    assert np.all(before != other.limits[0])


def test_limits_that_overflow_are_missing_not_drawn(constrained) -> None:
    def explosive(theta):
        return {"rate": np.where(theta[..., 0] > 1.5, np.inf, 1.0 + theta[..., 0])}

    fit = replace(constrained.fit, constrain=explosive, shown=("rate",))
    steps = sweep(replace(constrained, fit=fit), [0.005, 1.0])
    wide, own = (step.reason for step in steps)
    assert wide == "limits there are not finite"
    assert own == ""


def test_pages_of_the_other_reports_have_no_slider() -> None:
    from etafree.report.page import Section, render

    made = render("T <i>", "lead", [Section("h", ["p & q"])], "end")
    assert "<script" not in made
    assert "T &lt;i&gt;" in made
    assert "p &amp; q" in made

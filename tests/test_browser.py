"""The page of a calibration in a real browser: opened, operated by keyboard, looked at."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import etafree as ef
from etafree.report.calibration import FACTORS, calibration_page
from test_active import sparse

#: Where this is 1, as in .ci/run, a missing browser fails the tests instead of skipping them.
REQUIRED = os.environ.get("ETAFREE_BROWSER_REQUIRED") == "1"
if REQUIRED:
    import playwright.sync_api as sync_api
else:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = (1000, 400)
LENGTH = "line => line.getBBox().width"


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium: $ETAFREE_CHROMIUM, the system's, or playwright's own."""
    found = os.environ.get("ETAFREE_CHROMIUM") or next(
        filter(None, map(shutil.which, COMMANDS)), None
    )
    with contextlib.ExitStack() as stack:
        try:
            playwright = stack.enter_context(sync_api.sync_playwright())
            opened = playwright.chromium.launch(executable_path=found)
        except Exception as error:  # playwright's own, or that its driver lacks a system library
            if REQUIRED:
                raise
            pytest.skip(f"no browser starts: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a normal posterior, of one that is improper at small η, and of a sparse one."""
    rng = np.random.default_rng(5)
    group = np.arange(180) // 6
    X = np.column_stack([np.ones(180), rng.standard_normal(180), 1e3 * rng.standard_normal(180)])
    y = X @ [0.4, 0.8, 2e-4] + rng.standard_t(3, 180) + 0.7 * rng.standard_normal(30)[group]

    def made(loss: ef.losses.LinearLoss, eta: float, names: list[str]) -> ef.Calibration:
        criterion = ef.Criterion(loss, (X, y), names=names)
        draws = ef.sample(ef.GeneralizedPosterior(criterion, eta), draws=2000, seed=1)
        return ef.calibrate(draws, criterion, clusters=group)

    attack = "<script>document.title = 'taken'</script>"
    lasso = sparse()
    drawn = ef.sample(ef.GeneralizedPosterior(lasso, 1.0), draws=500, seed=1)
    texts = {
        "normal": calibration_page(made(ef.losses.Squared(), 0.5, ["one", "dose [mg]", attack])),
        "improper": calibration_page(
            made(ef.losses.StudentT(4.0), 0.1, ["one", "a_name_" * 15, "x"]), etas=[1e-4, 0.01, 10]
        ),
        "sparse": calibration_page(ef.calibrate(drawn, lasso), etas=()),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


class Visit:
    """An open page that remembers what it asked the network for and what went wrong."""

    def __init__(self, browser, path: Path, width: int = 1000, **options) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800}, **options)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.address = path.as_uri()
        self.page.goto(self.address)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.page.close()

    @property
    def steps(self) -> list[dict]:
        return json.loads(self.page.text_content("#steps"))

    def numbers(self, side: str) -> list[str]:
        return self.page.locator(f".moving .{side}-text").all_text_contents()

    def quiet(self) -> None:
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]

    def focus_slider(self) -> None:
        for _ in range(20):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.id") == "eta":
                return
        pytest.fail("the slider cannot be reached with Tab")


def test_the_slider_moves_the_uncalibrated_intervals_only(browser, pages) -> None:
    with Visit(browser, pages["normal"]) as visit:
        page, steps = visit.page, visit.steps
        slider, own = page.get_by_role("slider"), len(FACTORS) // 2
        assert slider.input_value() == str(own)
        assert slider.get_attribute("aria-valuetext") == "η = 0.5 (this fit's)"
        assert page.get_by_label("Learning rate").count() == 1
        still = visit.numbers("after")
        assert len(still) == 3
        visit.focus_slider()
        seen, calibrated = {}, {}
        for key, k in (
            ("ArrowRight", own + 1),
            ("ArrowLeft", own),
            ("Home", 0),
            ("End", len(steps) - 1),
            ("ArrowLeft", len(steps) - 2),
        ):
            page.keyboard.press(key)
            assert slider.input_value() == str(k)
            assert slider.get_attribute("aria-valuetext") == steps[k]["label"]
            assert page.locator("output").text_content() == steps[k]["label"]
            assert page.locator("[aria-live=polite]").text_content() == steps[k]["said"]
            seen[k] = visit.numbers("before")
            assert seen[k] == [bar["text"] for bar in steps[k]["before"]]
            calibrated[k] = visit.numbers("after")
            assert calibrated[k] == [bar["text"] for bar in steps[k]["after"]]
            for side in ("before", "after"):
                for j, bar in enumerate(steps[k][side]):
                    low, high = (float(v) for v in bar["text"].split(" to "))
                    gap = np.abs([low - bar["values"][0], high - bar["values"][2]])
                    assert np.all(gap < 0.05 * (bar["values"][2] - bar["values"][0]))
                    line = page.locator(f".moving g.{side} > line").nth(j)
                    assert line.get_attribute("x1") == f"{bar['low']:g}%"
                    assert line.get_attribute("x2") == f"{bar['high']:g}%"
        assert len({tuple(numbers) for numbers in seen.values()}) == len(seen)
        assert calibrated.pop(own) == still  # of the draws that were calibrated
        assert len({tuple(numbers) for numbers in calibrated.values()}) == 1  # one normal shape
        for mine, redrawn in zip(steps[own]["after"], steps[0]["after"], strict=True):
            mine, redrawn = np.array(mine["values"]), np.array(redrawn["values"])
            assert np.all(np.abs(mine - redrawn) < 0.1 * np.ptp(mine))  # their Monte Carlo error
        visit.quiet()


def test_bars_are_as_long_as_their_numbers_say(browser, pages) -> None:
    with Visit(browser, pages["normal"]) as visit:
        visit.focus_slider()
        for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
            visit.page.keyboard.press(key)
        step = visit.steps[len(FACTORS) // 2 + 3]
        for j in range(3):
            length = {
                side: visit.page.locator(f".moving g.{side} > line").nth(j).evaluate(LENGTH)
                for side in ("before", "after")
            }
            width = {side: np.ptp(step[side][j]["values"]) for side in length}
            assert step["before"][j]["cut"] == [False, False]
            assert length["before"] / length["after"] == pytest.approx(
                width["before"] / width["after"], rel=0.02
            )


def test_a_learning_rate_without_draws_shows_its_reason_and_no_bars(browser, pages) -> None:
    with Visit(browser, pages["improper"], 400) as visit:
        visit.focus_slider()
        visit.page.keyboard.press("Home")
        assert "improper or has no finite variance" in visit.page.text_content("#said")
        assert visit.numbers("before") == visit.numbers("after") == ["–"] * 3
        bars = visit.page.locator(".moving g.before")
        assert [bars.nth(j).is_visible() for j in range(3)] == [False] * 3
        visit.page.keyboard.press("ArrowRight")
        assert bars.first.is_visible()
        arrows = visit.page.locator(".moving g.before .cut")
        cut = [end for bar in visit.steps[1]["before"] for end in bar["cut"]]
        assert True in cut
        assert [arrows.nth(j).is_visible() for j in range(6)] == cut
        visit.quiet()


def test_without_javascript_the_page_shows_the_fits_own_learning_rate(browser, pages) -> None:
    with Visit(browser, pages["normal"], java_script_enabled=False) as visit:
        assert not visit.page.get_by_role("slider").is_visible()
        assert visit.page.locator("noscript p").is_visible()
        steps = visit.steps
        own = steps[len(FACTORS) // 2]
        assert visit.numbers("before") == [bar["text"] for bar in own["before"]]
        assert visit.page.text_content("#said") == own["said"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["normal", "improper", "sparse"])
def test_the_page_fits_its_width_and_loads_nothing(browser, pages, kind, width, tmp_path) -> None:
    with Visit(browser, pages[kind], width) as visit:
        page = visit.page
        page.screenshot(path=tmp_path / f"{kind}-{width}.png", full_page=True)
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) <= page.evaluate("document.documentElement.clientWidth")
        assert page.title().startswith("Calibrated 95 % intervals of ")
        for heading in ("Before and after", "Numbers", "Diagnostics", "How this was computed"):
            assert page.get_by_role("heading", name=heading).is_visible()
        small = page.locator(".row text").first.evaluate("e => getComputedStyle(e).fontSize")
        assert float(small.removesuffix("px")) >= 12
        visit.quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_marks_stand_out_on_light_and_dark_ground(browser, pages, scheme) -> None:
    """Contrast by WCAG 2: 4.5 for texts, 3 for marks."""

    def luminance(colour: str) -> float:
        numbers = re.findall(r"[\d.]+", colour)[:3]
        c = np.array([float(v) / 255 for v in numbers])
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    with Visit(browser, pages["normal"], color_scheme=scheme) as visit:
        page = visit.page

        def of(selector: str, name: str) -> float:
            script = f"e => getComputedStyle(e).getPropertyValue('{name}')"
            return luminance(page.locator(selector).first.evaluate(script))

        ground = of("body", "background-color")
        assert (ground > 0.5) == (scheme == "light")
        marks = (".row svg .before", "fill", 3.0), (".row svg .after", "fill", 3.0)
        texts = [(name, "color", 4.5) for name in ("body", ".lead", "dt", "td", "footer")]
        for selector, name, least in (*marks, *texts, (".row svg text", "fill", 4.5)):
            low, high = sorted([ground, of(selector, name)])
            assert (high + 0.05) / (low + 0.05) > least, (selector, scheme)


def test_the_table_uses_the_room_beside_the_text(browser, pages) -> None:
    reach = "e => [e.scrollWidth - e.clientWidth, e.getBoundingClientRect().right]"
    with Visit(browser, pages["normal"], width=1600) as visit:
        hidden, right = visit.page.locator(".scroll").first.evaluate(reach)
        assert hidden <= 0
        assert right < 1600

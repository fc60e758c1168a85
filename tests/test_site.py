"""The site: it builds without a warning, and a real browser reads it.

`make docs` runs the same tests over every page of the full site, named in $ETAFREE_SITE. Without it
a site is built first whose examples have not been run.
"""

from __future__ import annotations

import functools
import html
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command

import etafree as ef
from etafree.cli import app
from etafree.errors import GUIDES
from test_browser import browser  # noqa: F401

ROOT = Path(__file__).parents[1]
BUILT = os.environ.get("ETAFREE_SITE")
#: Pages of the reference that stand for the others where the examples were not run.
SOME = ("etafree.calibrate", "etafree.Calibration", "etafree.losses.Huber", "etafree.select")
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a built site."""
    if BUILT:
        return ROOT / BUILT
    tree = tmp_path_factory.mktemp("tree")
    skipped = shutil.ignore_patterns("auto_gallery", "generated", "__pycache__")
    shutil.copytree(ROOT / "docs", tree / "docs", ignore=skipped)
    for name in ("src", "tests", "examples", "benchmarks", "studies"):
        (tree / name).symlink_to(ROOT / name)
    for path in ROOT.glob("*.md"):
        shutil.copy(path, tree)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-D",
            "plot_gallery=0",
            "-d",
            tree / "doctrees",
            tree / "docs",
            tree / "site",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tree / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site over HTTP, on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def pages(site: Path) -> list[str]:
    names = sorted(p.relative_to(site).as_posix() for p in site.rglob("*.html"))
    names = [name for name in names if not name.startswith("_")]
    if BUILT:
        return names
    some = {f"generated/{name}.html" for name in SOME}
    return [name for name in names if not name.startswith("generated/") or name in some]


class Visit:
    """A page that remembers what went wrong on it."""

    def __init__(self, browser, address: str, width: int) -> None:  # noqa: F811
        self.page = browser.new_page(viewport={"width": width, "height": 800})
        self.wrong: list[str] = []
        origin = urlsplit(address)
        self.page.on("request", lambda r: self.outside(r.url, origin))
        self.page.on("requestfailed", self.failed)
        self.page.on(
            "response", lambda r: r.status < 400 or self.wrong.append(f"{r.status} {r.url}")
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self.console)

    def outside(self, url: str, origin) -> None:
        asked = urlsplit(url)
        if asked.scheme != "data" and asked[:2] != origin[:2]:
            self.wrong.append(f"outside: {url}")

    def failed(self, request) -> None:
        if request.failure != "net::ERR_ABORTED":  # as an icon's that the next page cut off
            self.wrong.append(f"failed: {request.url}")

    def console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def open(self, url: str) -> None:
        self.page.goto(url)
        self.page.wait_for_function("!window.MathJax || MathJax.startup?.promise")
        self.page.evaluate("async () => { await window.MathJax?.startup?.promise }")


PICTURES = """async () => {
    const broken = [];
    for (const image of document.images) {
        image.loading = "eager";
        try { await image.decode(); } catch { broken.push(image.src); }
    }
    return broken;
}"""
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALL = """() => [...document.querySelectorAll("article p, article pre, article td")]
    .filter(e => e.offsetParent && parseFloat(getComputedStyle(e).fontSize) < 12).length"""
FORMULAS = """() => {
    const written = document.querySelectorAll("article .math").length;
    const drawn = document.querySelectorAll("article mjx-container").length;
    const wrong = document.querySelectorAll("[data-mjx-error]").length;
    return wrong + (drawn < written ? written - drawn : 0);
}"""


def test_every_page_reads_well_on_a_small_screen(browser, site, address) -> None:  # noqa: F811
    """No console errors, nothing from outside, pictures and formulas drawn, no sideways scroll."""
    visit = Visit(browser, address, 400)
    found = {}
    for name in pages(site):
        visit.wrong.clear()
        visit.open(f"{address}/{name}")
        wrong = list(visit.wrong) + visit.page.evaluate(PICTURES)
        for told, script in (("too wide", WIDE), ("too small", SMALL), ("formulas", FORMULAS)):
            if (value := visit.page.evaluate(script)) > 0:
                wrong.append(f"{told}: {value}")
        if wrong:
            found[name] = wrong
    visit.page.close()
    assert found == {}


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_search_finds_a_function_and_a_word(browser, site, address, scheme) -> None:  # noqa: F811
    base = address if scheme == "http" else site.as_uri()
    visit = Visit(browser, base, 1200)
    for words, expected in (("q_posterior", "q_posterior"), ("sandwich clusters", "cluster")):
        visit.open(f"{base}/index.html")
        visit.page.keyboard.press("Control+k")
        visit.page.keyboard.type(words)
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#search-results li a")
        visit.page.wait_for_function("document.querySelector('#search-results h2').nextSibling")
        assert expected in visit.page.inner_text("#search-results")
    assert visit.wrong == []
    visit.page.close()


def landing_blocks() -> list[str]:
    """Return the Python blocks of the landing page, as written."""
    text = (ROOT / "docs" / "index.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


def test_the_landing_pages_blocks_can_be_copied(browser, site, address) -> None:  # noqa: F811
    """What the copy buttons give is what the tests run."""
    visit = Visit(browser, address, 1200)
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    visit.open(f"{address}/index.html")
    copied = []
    for label in visit.page.locator("label.sd-tab-label").all():
        label.click()
        for block in visit.page.locator(".highlight-python:visible").all():
            block.hover()
            block.locator("button.copybtn").click()
            copied.append(visit.page.evaluate("navigator.clipboard.readText()"))
    assert [c.strip() for c in copied] == [b.strip() for b in landing_blocks()]
    visit.page.close()


def test_the_landing_page_says_it_in_one_screen(browser, site, address) -> None:  # noqa: F811
    visit = Visit(browser, address, 1200)
    visit.open(f"{address}/index.html")
    for what in ("Input.", "Output.", "Why."):
        box = visit.page.get_by_text(what, exact=False).first.bounding_box()
        assert box["y"] < 700
    picture = visit.page.locator("article img").first.bounding_box()
    assert picture["y"] + picture["height"] < 800
    links = visit.page.locator("header .navbar-header-items .nav-link").all_inner_texts()
    names = ["Install", "Tour", "Gallery", "Guides", "Theory", "API"]
    assert [link.strip() for link in links][: len(names)] == names
    visit.page.close()


def test_links_lead_somewhere(site: Path) -> None:
    """Inside the site a file and an anchor; outside an address that could be one."""
    site = site.resolve()
    texts = {p.relative_to(site).as_posix(): p.read_text() for p in site.rglob("*.html")}
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in texts.items()}
    wrong = []
    for name, text in texts.items():
        for link in set(re.findall(r'<a\b[^>]*?\bhref="([^"]*)"', text)):
            parts = urlsplit(link.replace("&amp;", "&"))
            if parts.scheme:
                if not re.fullmatch(r"https?://[\w-]+(\.[\w-]+)+(/\S*)?", link):
                    wrong.append((name, link))
                continue
            goal = (
                ((site / name).parent / unquote(parts.path)).resolve()
                if parts.path
                else site / name
            )
            there = anchors.get(os.path.relpath(goal, site))
            if not goal.is_file() or (there and parts.fragment and parts.fragment not in there):
                wrong.append((name, link))
    assert wrong == []


def test_the_reference_has_every_public_name(site: Path) -> None:
    public = {f"etafree.{name}" for name in ef.__all__ if not name.startswith("_")}
    modules = {"etafree.errors", "etafree.losses", "etafree.penalties"}
    inside = {
        f"etafree.{module}.{name}"
        for module in ("errors", "losses", "penalties")
        for name in getattr(ef, module).__all__
    }
    shown = {p.stem for p in (site / "generated").glob("*.html")}
    assert (public - modules) | inside <= shown


def test_the_page_of_commands_says_what_their_help_says(site: Path) -> None:
    """Whole sentences in the list of commands, examples to copy, two hyphens before an option."""
    page = (site / "generated" / "commands.html").read_text().split("<article", 1)[1]
    text = html.unescape(re.sub("<[^>]+>", "", page))
    for name, command in get_command(app).commands.items():
        summary, *_ = command.help.splitlines()
        assert text.count(summary) == 2, name
        assert all(e in text for e in re.findall(r"Example: (.*)", command.help)), name
    assert "has a --help of its own" in text


def test_errors_name_pages_that_exist(site: Path) -> None:
    for argument, page in GUIDES.items():
        assert (site / f"{page}.html").is_file(), f"{argument}: {page}"

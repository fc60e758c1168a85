"""All papers' designs as one study, beside the papers' numbers where these are at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from etafree.errors import InputError
from etafree.foundation.arguments import Array, as_count
from etafree.paper.study import Arrays, Cell, How, Parameters, run_study
from studies.papers import clustered_quantiles, q_posteriors, quasi_posteriors, safe_bayes
from studies.papers.design import DRAWS, Paper
from studies.papers.learning_rates import SYRING_MARTIN, WU_MARTIN

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PAPERS", "paper_markdown", "record", "run_papers"]

BLOCK = 20
PAPERS: dict[str, Paper] = {
    "quasi-posteriors": quasi_posteriors.PAPER,
    "clustered-quantiles": clustered_quantiles.PAPER,
    "safe-bayes": safe_bayes.PAPER,
    "learning-rates": WU_MARTIN,
    "gibbs-median": SYRING_MARTIN,
    "q-posterior": q_posteriors.PAPER,
}


def work(parameters: Parameters, seed: np.random.SeedSequence) -> Arrays:
    """Return outcomes (data set, k) and what the k numbers are: methods, parameters, quantities."""
    design = PAPERS[parameters["paper"]].designs[parameters["design"]]
    outcomes = [design(np.random.default_rng(stream)) for stream in seed.spawn(parameters["count"])]
    ways, names, quantities, _ = zip(*outcomes[0], strict=True)
    values = np.array([[outcome.value for outcome in one] for one in outcomes])
    labels = {"way": ways, "parameter": names, "quantity": quantities}
    return {"value": values, **{key: np.array(texts) for key, texts in labels.items()}}


def run_papers(
    out: Path | str,
    name: str | None = None,
    *,
    replicates: int = 200,
    seed: int = 1,
    **how: Unpack[How],
) -> pd.DataFrame:
    """Run one paper's designs, or all, resuming what `out` holds; write ``papers.csv`` there.

    A row per paper, design, method, parameter and quantity: mean over data sets with its Monte
    Carlo error and their number; the paper's own mean and number of data sets, and the difference
    in standard errors, where it has one.
    """
    import pandas as pd

    count = as_count(replicates, "replicates", least=2)
    papers = [key for key in PAPERS if name is None or key == name]
    if not papers:
        raise InputError("name", f"is {name!r}", f"papers are {', '.join(PAPERS)}")
    cells = [
        Cell(
            f"{key}-{j}-{first:06d}-{min(BLOCK, count - first)}",
            {"paper": key, "design": design, "count": min(BLOCK, count - first)},
        )
        for key in papers
        for j, design in enumerate(PAPERS[key].designs)
        for first in range(0, count, BLOCK)
    ]
    settings = {"replicates": count, "papers": papers, "draws": DRAWS}
    results = run_study("papers", settings, cells, work, out, seed=seed, **how)
    rows: list[dict[str, object]] = []
    for key in papers:
        for design in PAPERS[key].designs:
            own = {"paper": key, "design": design}
            blocks = [
                results[cell.key]
                for cell in cells
                if (cell.parameters["paper"], cell.parameters["design"]) == (key, design)
            ]
            rows += [{**own, **row} for row in _rows(PAPERS[key], design, blocks)]
    table = pd.DataFrame(rows)
    table.to_csv(Path(out) / "papers.csv", index=False, float_format="%.6g")
    return table


def _rows(paper: Paper, design: str, blocks: list[Arrays]) -> Iterator[dict[str, object]]:
    known = {row[:4]: row[4:] for row in paper.published}
    values = np.concatenate([block["value"] for block in blocks])
    labels = zip(
        *(blocks[0][key].tolist() for key in ("way", "parameter", "quantity")), strict=True
    )
    for (way, parameter, quantity), column in zip(labels, values.T, strict=True):
        there = column[np.isfinite(column)]
        mean, error = _mean(there, quantity == "coverage")
        published, many = known.get((design, way, parameter, quantity), (np.nan, 0))
        theirs = np.sqrt(max(published * (1 - published), 0.5 / many) / many) if many else np.nan
        yield {
            "way": way,
            "parameter": parameter,
            "quantity": quantity,
            "value": mean,
            "se": error,
            "replicates": len(there),
            "published": published,
            "published_replicates": many,
            "z": (mean - published) / np.hypot(error, theirs),
        }


def _mean(values: Array, share: bool) -> tuple[float, float]:
    """Return a mean and its Monte Carlo error, never zero for a share; NaN of no values."""
    many = len(values)
    if many < 2:
        return np.nan, np.nan
    spread = max(values.var(ddof=1), 0.5 / many) if share else values.var(ddof=1)
    return float(values.mean()), float(np.sqrt(spread / many))


def paper_markdown(table: pd.DataFrame, key: str) -> str:
    """Return a paper's table as the page shows it: a row per design and method.

    The paper's own number and the difference in standard errors stand in brackets.
    """
    part = table[(table["paper"] == key) & table["quantity"].isin(PAPERS[key].shown)]
    columns = sorted(
        dict.fromkeys(zip(part["quantity"], part["parameter"], strict=True)),
        key=lambda column: PAPERS[key].shown.index(column[0]),
    )
    heads = [q if name == "all" else str(name) for q, name in columns]
    lines = [f"| {' | '.join(['design', 'method', *heads])} |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    rows = {row[:4]: row[4:] for row in part[_KEYS].itertuples(index=False, name=None)}
    all_of_them = part["replicates"].max()
    for (design, way), own in part.groupby(["design", "way"], sort=False):
        cells = [_cell(rows.get((design, way, q, name)), q) for q, name in columns]
        many = own.loc[own["quantity"] == "coverage", "replicates"].min()
        method = str(way) if many == all_of_them else f"{way} ({many} data sets)"
        lines.append(f"| {' | '.join([_escaped(design), method, *cells])} |")
    return "\n".join(lines)


def _escaped(name: object) -> str:
    """Return a name that holds no end of a table's cell."""
    return str(name).replace("|", "\\|")


_KEYS = ["design", "way", "quantity", "parameter", "value", "se", "published", "z"]


def _cell(row: tuple[float, ...] | None, quantity: str) -> str:
    if row is None or not np.isfinite(row[0]):
        return "–"
    value, error, published, z = row
    if quantity != "coverage":
        return f"{value:.3g} ± {error:.1g}"
    beside = f" ({published:.3f}, {z:+.1f})" if np.isfinite(published) else ""
    return f"{value:.3f}{beside}"


def record(docs: Path, runs: list[pd.DataFrame]) -> pd.DataFrame:
    """Put runs into ``docs/papers.csv`` and their tables between the marks of the page."""
    import pandas as pd

    recorded, page = docs / "papers.csv", docs / "papers.md"
    tables = [pd.read_csv(recorded), *runs] if recorded.exists() else runs
    rows = {str(key): part for run in tables for key, part in run.groupby("paper")}
    table = pd.concat([rows[key] for key in PAPERS if key in rows], ignore_index=True)
    text = page.read_text(encoding="utf-8")
    for key in rows:
        old = re.search(rf"<!-- table: {key} -->\n\n(?:\|.*\n)*", text)
        assert old is not None, f"{page} has no mark for {key}"
        new = f"<!-- table: {key} -->\n\n{paper_markdown(table, key)}\n"
        text = text.replace(old[0], new)
    table.to_csv(recorded, index=False, float_format="%.6g")
    page.write_text(text, encoding="utf-8")
    return table

"""``python -m studies coverage``, ``tournament`` and others, in the root of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etafree.cli import Folder, Scheduler, Workers, run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """Run the simulation studies of the documents; a rerun resumes in its folder.

    Example: python -m studies coverage --out coverage --quick
    """


@app.command()
def coverage(
    out: Folder,
    replicates: Annotated[int, typer.Option(help="Data sets per scenario.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of data and draws.")] = 1,
    only: Annotated[str | None, typer.Option(help="Scenarios whose name contains this.")] = None,
    quick: Annotated[bool, typer.Option(help="Six data sets per scenario, for a look.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Measure how often intervals cover: every kind of loss and dependence, five learning rates.

    Example: python -m studies coverage --out coverage --quick
    """
    from studies.coverage import write_coverage

    write_coverage(
        out,
        replicates=replicates,
        seed=seed,
        only=only,
        quick=quick,
        workers=workers,
        scheduler=scheduler,
    )


@app.command()
def workers(
    out: Annotated[Path, typer.Option(help="The table.")] = Path("docs/guides/workers.csv"),
) -> None:
    """Count what a scheduler and its workers send and compute, on 1, 2, 4 and 8 workers.

    Example: python -m studies workers --out build/workers.csv
    """
    from studies.workers import measure

    measure().to_csv(out, index=False)


@app.command()
def record(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `coverage` wrote.")],
    docs: Annotated[Path, typer.Option(help="The documents' folder.")] = Path("docs"),
) -> None:
    """Put runs of single scenarios into the recorded table, its page and its picture.

    Example: python -m studies record build/coverage
    """
    import pandas as pd

    from studies.coverage import BAND
    from studies.coverage_page import record as put
    from studies.scenarios import SCENARIOS

    put(docs, [pd.read_csv(run / "coverage.csv") for run in runs], SCENARIOS, BAND)


@app.command()
def tournament(
    out: Folder,
    replicates: Annotated[int, typer.Option(help="Data sets per design.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of data and resamples.")] = 1,
    only: Annotated[str | None, typer.Option(help="Designs whose name contains this.")] = None,
    quick: Annotated[bool, typer.Option(help="Six data sets per design, for a look.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Compare reference laws of single intervals: which covers worst, and how wide are they?

    Example: python -m studies tournament --out tournament --quick
    """
    from studies.tournament import write_tournament

    write_tournament(
        out,
        replicates=replicates,
        seed=seed,
        only=only,
        quick=quick,
        workers=workers,
        scheduler=scheduler,
    )


@app.command()
def compare(
    out: Folder,
    datasets: Annotated[int, typer.Option(help="Data sets per design.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of data and draws.")] = 1,
    only: Annotated[str | None, typer.Option(help="Designs whose name contains this.")] = None,
    ways: Annotated[str | None, typer.Option(help="Methods whose name contains this.")] = None,
    quick: Annotated[bool, typer.Option(help="Four data sets per design, for a look.")] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Compare learning-rate methods with calibration: coverage, width and time on the same data.

    Example: python -m studies compare --out compare --quick
    """
    from studies.compare import write_compare

    write_compare(
        out,
        datasets=datasets,
        seed=seed,
        only=only,
        ways=ways,
        quick=quick,
        workers=workers,
        scheduler=scheduler,
    )


@app.command()
def record_compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `compare` wrote.")],
    docs: Annotated[Path, typer.Option(help="The documents' folder.")] = Path("docs"),
) -> None:
    """Put runs of single methods into the recorded comparison, its page and its picture.

    Example: python -m studies record-compare build/compare
    """
    import pandas as pd

    from studies.compare import WAYS
    from studies.compare_page import record as put

    put(docs, [pd.read_csv(run / "compare.csv") for run in runs], WAYS)


@app.command()
def papers(
    out: Folder,
    name: Annotated[str | None, typer.Argument(help="One paper; all by default.")] = None,
    replicates: Annotated[int, typer.Option(help="Data sets per design.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of data and draws.")] = 1,
    docs: Annotated[
        Path | None, typer.Option(help="Record the tables in this folder of documents.")
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Rerun designs of other papers, beside their numbers.

    Example: python -m studies papers quasi-posteriors --out build/papers --replicates 4
    """
    from etafree.foundation.terminal import say
    from studies.papers.study import paper_markdown, record, run_papers

    table = run_papers(
        out, name, replicates=replicates, seed=seed, workers=workers, scheduler=scheduler
    )
    for key in dict.fromkeys(table["paper"]):
        say(paper_markdown(table, key))
    if docs is not None:
        record(docs, [table])


@app.command()
def article(
    out: Annotated[Path, typer.Option(help="Folder for the article.")],
    docs: Annotated[Path, typer.Option(help="The documents' folder.")] = Path("docs"),
) -> None:
    """Build an article from the recorded tables: figure, league, races, a case study.

    As HTML, and as PDF where a Chromium is installed.

    Example: python -m studies article --out build/paper
    """
    from studies.article import write_article, write_pdf

    write_pdf(write_article(out, docs))


@app.command()
def effects(
    out: Folder,
    replicates: Annotated[int, typer.Option(help="Data sets per design.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of data and draws.")] = 1,
    only: Annotated[str | None, typer.Option(help="Designs whose name contains this.")] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Measure how often draws of group effects cover the groups' own values.

    Example: python -m studies effects --out build/effects --replicates 2
    """
    from etafree.foundation.terminal import say
    from studies.effects import effects_markdown, run_effects

    table = run_effects(
        out, replicates=replicates, seed=seed, only=only, workers=workers, scheduler=scheduler
    )
    say(effects_markdown(table))


@app.command()
def multilevel(
    out: Folder,
    replicates: Annotated[int, typer.Option(help="Data sets per design.")] = 400,
    seed: Annotated[int, typer.Option(help="Seed of data and draws.")] = 1,
    workers: Workers = None,
    scheduler: Scheduler = None,
) -> None:
    """Jackknife a multilevel fit from conditional and from marginal log-likelihoods.

    Example: python -m studies multilevel --out build/multilevel --replicates 4
    """
    from etafree.foundation.terminal import say
    from studies.multilevel import multilevel_markdown, run_multilevel

    table = run_multilevel(
        out, replicates=replicates, seed=seed, workers=workers, scheduler=scheduler
    )
    say(multilevel_markdown(table))


@app.command("neighbours")
def compare_neighbours() -> None:
    """Print numbers of other packages beside ours.

    Example: python -m studies neighbours
    """
    from etafree.foundation.terminal import say
    from studies.neighbours import comparisons, neighbours_markdown

    say(neighbours_markdown(comparisons()))


if __name__ == "__main__":
    run(app)

"""What goes out with a release agrees: version, changelog, recipe, citation and paper."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import etafree as ef

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
#: Sections of https://keepachangelog.com/en/1.1.0/ in its order.
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
#: Names on conda-forge where they are not those on PyPI.
CONDA = {"matplotlib": "matplotlib-base"}


def releases() -> list[tuple[str, str]]:
    """Return the headings of the changelog's releases and what stands under each."""
    parts = re.split(r"^## (.+)$", CHANGELOG, flags=re.M)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    newest, date = releases()[1][0].split(" - ")
    assert newest == f"[{ef.__version__}]"
    assert citation["version"] == recipe["context"]["version"] == ef.__version__
    assert str(citation["date-released"]) == date


def test_the_changelog_is_kept_as_keep_a_changelog_says() -> None:
    """Unreleased first, then versions with dates; known sections, each once and in order."""
    headings = [heading for heading, _ in releases()]
    assert headings[0] == "[Unreleased]"
    versions = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", h) for h in headings[1:]]
    assert versions
    assert all(versions)
    numbers = [tuple(map(int, found.groups())) for found in versions if found]
    assert numbers == sorted(set(numbers), reverse=True)
    for heading, text in releases():
        sections = re.findall(r"^### (.+)$", text, flags=re.M)
        assert sections == [name for name in SECTIONS if name in sections], heading
        before = re.split(r"^### ", text, flags=re.M)[0]
        assert not re.search(r"^- ", before, flags=re.M), f"{heading}: changes outside a section"
    assert {"Added", "Changed", "Removed", "Fixed"} <= set(
        re.findall(r"^### (.+)$", releases()[1][1], flags=re.M)
    )


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    project, context = PROJECT["project"], recipe["context"]
    python, *run = recipe["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert f">={context['python_min']}" == project["requires-python"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    assert not [one for one in wanted if one.marker or one.extras]
    assert sorted(run) == sorted(f"{CONDA.get(r.name, r.name)} {r.specifier}" for r in wanted)
    (backend,) = (Requirement(line) for line in PROJECT["build-system"]["requires"])
    assert f"{backend.name} {backend.specifier}" in recipe["requirements"]["host"]
    commands = [f"{name} = {place}" for name, place in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["build"]["noarch"] == "python"
    about = recipe["about"]
    assert about["summary"] == project["description"]
    assert about["license"] == project["license"]
    assert (ROOT / about["license_file"]).exists()
    assert recipe["context"]["name"] == project["name"]


def test_the_paper_cites_what_its_bibliography_has() -> None:
    _, header, text = (ROOT / "joss" / "paper.md").read_text().split("---\n", 2)
    front = yaml.safe_load(header)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(front)
    bibliography = (ROOT / "joss" / front["bibliography"]).read_text()
    entries = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", bibliography, flags=re.M | re.S)
    cited = re.findall(r"@(\w+)", text)
    assert sorted({key for key, _ in entries}) == sorted(set(cited))
    for key, fields in entries:
        for name in ("author", "title", "year"):
            assert re.search(rf"^  {name} = \{{", fields, flags=re.M), (key, name)
        assert re.search(r"^  (doi|volume) = \{", fields, flags=re.M), key
    for heading in ("Summary", "Statement of need", "State of the field", "References"):
        assert f"# {heading}\n" in text
    assert 400 < len(text.split()) < 1750


def test_what_the_page_calls_a_default_is_one() -> None:
    """Alternatives by name exist, and those who win the tournament are named as it names them."""
    text = (ROOT / "docs" / "stability.md").read_text()
    for target in re.findall(r"`make (\w+)", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.M), target
    for name in re.findall(r'`"(\w+)"`', text.split("| default |")[1]):
        known = (ROOT / "src" / "etafree").rglob("*.py")
        assert any(f'"{name}"' in path.read_text() for path in known), name

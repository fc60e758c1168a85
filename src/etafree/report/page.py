"""One self-contained HTML page for every report: no network, readable on a phone."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Section", "picture_data", "render", "table_html"]


class Section(NamedTuple):
    """A heading with paragraphs (plain text, escaped), and optionally a table and a picture."""

    heading: str
    paragraphs: Sequence[str] = ()
    table: str = ""
    picture: str = ""
    caption: str = ""


def picture_data(png: bytes) -> str:
    """Return a picture as a data address that a page can hold."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def table_html(table: pd.DataFrame, digits: int = 3) -> str:
    """Return a table as HTML with escaped names."""
    return table.to_html(float_format=lambda v: f"{v:.{digits}f}", escape=True, border=0)


def render(title: str, lead: str, sections: Sequence[Section], footer: str = "") -> str:
    """Return the page; every text is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True
    )
    return environment.get_template("page.html.j2").render(
        title=title, lead=lead, sections=sections, footer=footer
    )

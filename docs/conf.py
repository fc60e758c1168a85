"""The site: `make docs` builds it, warnings are errors, and nothing is loaded from elsewhere."""

from __future__ import annotations

import html
import importlib
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx_gallery.sorting import ExplicitOrder

import etafree

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "etafree"
author = "the etafree developers"
copyright = author
version = release = etafree.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
nitpicky = True
toc_object_entries_show_parents = "hide"
exclude_patterns = ["gallery/*"]
templates_path = ["_templates"]
default_role = "literal"  # `name` in a docstring is code
smartquotes = False  # --option and "text" stay what one types
highlight_language = "python"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_url_schemes = ("https", "http")

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

copybutton_exclude = ".linenos, .gp, .go"

#: MathJax of an installed package, one file with its glyphs: formulas without the internet.
MATHJAX = Path(str(importlib.import_module("sphinx-mathjax-offline").__file__)).parent
MATHJAX = MATHJAX / "static" / "mathjax" / "tex-svg-full.js"
mathjax_path = MATHJAX.name
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"mtextInheritFont": True}}

html_theme = "pydata_sphinx_theme"
html_title = "etafree"
html_favicon = "_static/eta.svg"
html_static_path = ["_static", str(MATHJAX)]
html_css_files = ["site.css"]
html_js_files = ["search.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
#: Pages without a list of siblings beside them.
ALONE = (
    "index",
    "install",
    "tour",
    "generated/commands",
    "coverage",
    "tournament",
    "comparison",
    "reliability",
    "performance",
    "stability",
    "changelog",
)
html_sidebars: dict[str, list[str]] = {page: [] for page in ALONE}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "header_links_before_dropdown": 6,
    "logo": {"text": "etafree", "image_light": "_static/eta.svg", "image_dark": "_static/eta.svg"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_prev_next": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}

#: From the plain to the particular; others follow.
EXAMPLES = (
    "clustered_linear",
    "schools",
    "clustered_counts",
    "overdispersed_counts",
    "robust_outliers",
    "quantile",
    "random_intercept",
    "own_loss",
    "active_set",
    "rank_regression",
    "tempered",
    "learning_rates",
)
# A worker that has grown is replaced by a fresh one, and says so.
warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "within_subsection_order": ExplicitOrder([*(f"plot_{name}.py" for name in EXAMPLES), "*"]),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "parallel": int(os.environ.get("ETAFREE_GALLERY_WORKERS", "1")),
    "write_computation_times": False,
    "doc_module": ("etafree",),
    "reference_url": {"etafree": None},
    "backreferences_dir": None,
}


def link_examples(app: Sphinx, name: str, source: list[str]) -> None:
    """Let a link to an example's source, right in a checkout, lead to its page on the site."""
    source[0] = re.sub(
        r"\]\(((?:\.\./)*)gallery/(plot_\w+)\.py\)", r"](\1auto_gallery/\2.rst)", source[0]
    )


def write_commands(app: Sphinx) -> None:
    """Write the page of the command line from the commands themselves."""
    typer = [sys.executable, "-m", "typer", "etafree.cli", "utils", "docs", "--name", "etafree"]
    made = subprocess.run(
        [*typer, "--title", "Command line"], check=True, capture_output=True, text=True
    )
    page = re.sub(r"(?m)^Example: (.*)$", r"```sh\n\1\n```", html.unescape(made.stdout))
    told = dict(re.findall(r"(?m)^## `etafree (\w+)`\n\n(.+)$", page))  # lists cut them short
    page = re.sub(
        r"(?m)^\* `(\w+)`: .*$", lambda m: f"* [`{m[1]}`](#etafree-{m[1]}): {told[m[1]]}", page
    )
    target = Path(app.srcdir) / "generated" / "commands.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_commands)
    app.connect("source-read", link_examples)

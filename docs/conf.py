"""Sphinx settings of the documentation: `make docs` writes it to build/docs, with a search that needs no network."""

from __future__ import annotations

from sphinx.application import Sphinx

import berth

project = "berth"
author = "the berth authors"
copyright = author  # noqa: A001, Sphinx's own name for it
version = release = berth.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
smartquotes = False  # they would make one dash of the two of an option
default_role = "code"  # docstrings mark code with one backtick
myst_heading_anchors = 3
exclude_patterns = ["growth_picture.py", "make_pictures.py", "make_reference.py"]

html_theme = "furo"
html_title = f"berth {release}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True


def setup(app: Sphinx) -> None:
    """Lead links to files outside docs/ to the pages that include them."""
    app.connect("source-read", _lead_to_included)


def _lead_to_included(_app: Sphinx, name: str, source: list[str]) -> None:
    up = "../" * name.count("/")
    source[0] = source[0].replace(f"]({up}../bench/RESULTS.md", f"]({up}results.md")

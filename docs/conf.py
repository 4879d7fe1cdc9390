"""Sphinx settings of the documentation: `make docs` writes it to build/docs, with a search that needs no network."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

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
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True


class Questions(SearchEnglish):
    """English in which a question may be asked as it is spoken: its small words need not be on the page."""

    stopwords = SearchEnglish.stopwords | {
        "can",
        "do",
        "does",
        "how",
        "i",
        "my",
        "what",
        "when",
        "where",
        "which",
        "why",
    }


def setup(app: Sphinx) -> None:
    """Lead links to files outside docs/ to the pages that include them, and let questions be searched for."""
    app.add_search_language(Questions)
    app.connect("source-read", _lead_to_included)


def _lead_to_included(_app: Sphinx, name: str, source: list[str]) -> None:
    up = "../" * name.count("/")
    source[0] = source[0].replace(f"]({up}../bench/RESULTS.md", f"]({up}results.md")

"""The reference is made from the code, the gallery from the examples."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_reference_and_gallery_say_what_code_and_examples_say() -> None:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    pages = {**script.reference(), script.GALLERY: script.gallery()}
    assert {page for page in pages if page.parent.name == "reference"} == set(
        (DOCS / "reference").glob("*.md")
    )
    for page, text in pages.items():
        assert text == page.read_text("utf-8"), "run: python docs/make_reference.py"

"""The reference is made from the code, and is up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_reference_says_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made, there = script.reference(), (DOCS / "reference.md").read_text("utf-8")
    assert made == there, "run: python docs/make_reference.py"

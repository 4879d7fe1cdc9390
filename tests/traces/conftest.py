"""What the tests of traces may ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="session")
def documentation() -> Callable[[str], str]:
    """The text of a page of the documentation."""
    return lambda page: (_DOCS / page).read_text("utf-8")

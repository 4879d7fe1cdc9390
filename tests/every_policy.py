"""Laws that hold for every policy: two run in `make test` for each, the others for some; CI runs all for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

ONE_IN = 8


def some(names: Iterable[str]) -> list[Any]:
    """All names as parameters of a test; all but one in eight are slow."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if number % ONE_IN else [])
        for number, name in enumerate(names)
    ]

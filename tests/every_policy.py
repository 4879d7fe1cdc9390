"""Laws that hold for every policy, scheme or seed: `make test` runs two for each policy and others for some; CI runs
all for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

ONE_IN = 8


def some(names: Iterable[object]) -> list[Any]:
    """All names as parameters of a test; all but one in eight are slow."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if number % ONE_IN else [])
        for number, name in enumerate(names)
    ]

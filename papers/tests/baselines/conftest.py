"""What holds in every test of learning."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def no_rank_promotion() -> Iterator[None]:
    """Arrays of different rank meet only where somebody says so: a mistake of shapes is an error, not a result."""
    with jax.numpy_rank_promotion("raise"):
        yield

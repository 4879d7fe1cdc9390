"""Axes of length 1 in front of an array, said rather than left to broadcasting, which hides mistakes of shapes."""

from __future__ import annotations

from typing import Any


def to_rank(array: Any, rank: int) -> Any:
    """The array of NumPy or JAX with `rank` axes in all, the new ones in front and of length 1."""
    return array.reshape((1,) * (rank - array.ndim) + array.shape)

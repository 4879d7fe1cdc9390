"""Options whose value is several names, separated by commas."""

from __future__ import annotations


def names_of(text: str) -> tuple[str, ...]:
    """Split such a value; the names are in their order, without the spaces around them; empty ones are left out."""
    return tuple(name for part in text.split(",") if (name := part.strip()))

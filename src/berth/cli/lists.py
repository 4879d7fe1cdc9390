"""Lists that stand in one option, separated by commas."""

from __future__ import annotations

__all__ = ["names_in"]


def names_in(text: str) -> tuple[str, ...]:
    """The names in their order, without the spaces around them; empty ones are left out."""
    return tuple(name for part in text.split(",") if (name := part.strip()))

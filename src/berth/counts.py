"""Numbers of things in words."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[str | int, ...]:
    """The key that sorts names as people do: user2 before user10."""
    parts = _DIGITS.split(name)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))


def counted(number: float, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 job`, `2,000 jobs`, `2.5 CPUs`; `plural` is for nouns that take no s."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:,g}"
    return f"{text} {noun if number == 1 else plural or f'{noun}s'}"

"""Numbers of things in words."""

from __future__ import annotations


def counted(number: float, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 job`, `2,000 jobs`, `2.5 CPUs`; `plural` is for nouns that take no s."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:,g}"
    return f"{text} {noun if number == 1 else plural or f'{noun}s'}"

"""Times as the pages write them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from berth.history.values.durations import duration

__all__ = ["in_a_sentence", "moment", "span"]

_UNITS = {"s": "{number} s", "min": "{number} min", "h": "{number} h", "d": "{number} d"}


def in_a_sentence(gpu_hours: float) -> float:
    """GPU-hours as a sentence tells them: whole numbers from 10 on."""
    return round(gpu_hours) if gpu_hours >= 10 else gpu_hours


def span(seconds: float, t: Callable[..., str]) -> str:
    """A length of time in the reader's language: `90 s`, `2.5 h`."""
    number, unit = duration(max(0.0, seconds))
    return t(_UNITS[unit], number=number)


def moment(ms: int) -> str:
    """A moment in UTC, which the page's script turns into the reader's own time."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "–"

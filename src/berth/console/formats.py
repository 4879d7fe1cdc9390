"""Times as the pages write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from berth.history.values.durations import duration
from berth.statistics import Unit, readable_unit

_UNITS = {"s": "{number} s", "min": "{number} min", "h": "{number} h", "d": "{number} d"}


_SHORT = {"seconds": "s", "minutes": "min", "hours": "h", "days": "d"}


def decimal(value: float) -> str:
    """A number with one decimal; a small one with its first digit, because it is not 0."""
    return f"{value:.1g}" if 0 < abs(value) < 0.1 else f"{value:,.1f}"


def in_a_sentence(gpu_hours: float) -> float:
    """GPU-hours as a sentence tells them: whole numbers from 10 on."""
    return round(gpu_hours) if gpu_hours >= 10 else gpu_hours


def span(seconds: float, t: Callable[..., str]) -> str:
    """A length of time in the reader's language: `90 s`, `2.5 h`."""
    number, unit = duration(max(0.0, seconds))
    return t(_UNITS[unit], number=number)


def spans(seconds: Sequence[float | None], t: Callable[..., str]) -> list[str]:
    """Lengths of time that stand in one column, in one unit, so that they can be compared; a dash for None."""
    factor, unit = readable_unit(Unit.SECONDS, [each for each in seconds if each is not None])
    text = _UNITS[_SHORT[unit]]
    return [
        "–" if each is None else t(text, number=decimal(max(0.0, each) * factor) if each else "0")
        for each in seconds
    ]


def moment(ms: int) -> str:
    """A moment in UTC, which the page's script turns into the reader's own time."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "–"

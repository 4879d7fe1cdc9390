"""Times as the pages write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from berth.history.values.durations import duration, hours, hours_unit
from berth.statistics import Unit, readable_unit

_GPU_TIMES = {
    "h": "{number:# GPU-hour|# GPU-hours}",
    "min": "{number:# GPU-minute|# GPU-minutes}",
    "s": "{number:# GPU-second|# GPU-seconds}",
}
_UNITS = {"s": "{number} s", "min": "{number} min", "h": "{number} h", "d": "{number} d"}


_SHORT = {"seconds": "s", "minutes": "min", "hours": "h", "days": "d"}


def decimal(value: float) -> str:
    """A number with one decimal; a small one with its first digit, because it is not 0."""
    return f"{Decimal(f'{value:.1g}'):f}" if 0 < abs(value) < 0.1 else f"{value:,.1f}"


def gpu_time(gpu_hours: float, t: Callable[..., str]) -> str:
    """GPU-hours as a sentence tells them: whole numbers from 10 on, few of them as GPU-minutes or GPU-seconds."""
    factor, unit = hours_unit(gpu_hours)
    number = gpu_hours * factor
    return t(_GPU_TIMES[unit], number=round(number) if number >= 10 else number)


def hours_cell(amount: float, t: Callable[..., str]) -> str:
    """Hours in a column that says so: `3.7`, but `4.2 min` where they are few."""
    number, unit = hours(amount)
    return number if unit == "h" else t(_UNITS[unit], number=number)


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

"""Durations and points in time, as people write them and as Slurm prints them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from berth.errors import SettingError


def duration(seconds: float) -> tuple[str, str]:
    """Seconds for people as a number and its unit: `90` and `s`, `2.5` and `h`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f}", unit
    return f"{seconds:,.0f}", "s"


def duration_text(seconds: float) -> str:
    """Seconds for people: `90 s`, `2.5 h`."""
    return " ".join(duration(seconds))


HOURS_NAMES = {"h": "hours", "min": "minutes", "s": "seconds"}
"""What the units of `hours_unit` are called in a sentence."""


def hours_unit(amount: float) -> tuple[int, str]:
    """The unit that suits a number of hours (`h`, `min` or `s`), and how many of it an hour has."""
    if amount == 0 or amount >= 0.1:
        return 1, "h"
    return (60, "min") if amount * 60 >= 1 else (3600, "s")


def hours(amount: float, digits: int = 1) -> tuple[str, str]:
    """Hours for people as a number and its unit: few in minutes or seconds, thousands whole; only nothing is 0."""
    factor, unit = hours_unit(amount)
    if 0 < amount * 3600 < 0.05:
        return "< 0.1", unit
    shown = 1 if unit != "h" else digits if amount < 1000 else 0
    return f"{amount * factor:,.{shown}f}" if amount else "0", unit


def hours_text(amount: float, digits: int = 1) -> str:
    """Hours as a cell of a column that says so: `3.7`, but `4.2 min` or `12.0 s` where they are few."""
    number, unit = hours(amount, digits)
    return number if unit == "h" else f"{number} {unit}"


def hours_column(heading: str, amounts: Sequence[float | None], digits: int = 2) -> tuple[str, list[str]]:
    """A column of hours in one unit, that of the largest: its heading (`GPU-hours`, `GPU-minutes`) and its cells.

    Only nothing is 0: what is too little for the digits has its first one. A dash stands for None.
    """
    factor, unit = hours_unit(max((amount for amount in amounts if amount is not None), default=0.0))
    least = 0.5 * 10**-digits
    cells = []
    for amount in amounts:
        value = (amount or 0.0) * factor
        small = f"{Decimal(f'{value:.1g}'):f}" if 0 < value < least else f"{value:,.{digits}f}"
        cells.append("–" if amount is None else small if value else "0")
    return heading.replace("hours", HOURS_NAMES[unit]), cells


def hours_of(kind: str, amount: float, digits: int = 1) -> str:
    """Hours of a kind of resource in a sentence: `3.7 GPU-hours`, `4.2 GPU-minutes`."""
    number, unit = hours(amount, digits)
    return f"{number} {kind}-{HOURS_NAMES[unit]}"


def slurm_s(text: str) -> int | None:
    """Seconds of a time as Slurm prints it: `1-02:03:04`, `7-0`, `03:04` (minutes:seconds), `30` (minutes), `300 sec`.
    None where it is none, such as UNLIMITED."""
    words = text.split()
    days, dash, clock = words[0].rpartition("-") if words else ("", "", "")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) > 3 or (dash and not days.isdecimal()):
        return None
    numbers = [int(part) for part in parts]
    if len(words) > 1 and words[1].startswith("sec"):
        return numbers[0]
    if dash:
        numbers += [0] * (3 - len(numbers))
    else:
        numbers = [*numbers, 0] if len(numbers) == 1 else numbers
        numbers = [0] * (3 - len(numbers)) + numbers
    hours, minutes, seconds = numbers
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds


UNITS_MS = {"h": 3_600_000, "d": 86_400_000}
NO_TIME = ("", "Unknown", "None", "N/A", "NONE", "0")
"""What Slurm prints if there is no time."""


def moment_ms(text: str, option: str, *, or_ago: bool = False) -> int:
    """Milliseconds since 1970 of a date or a time, in UTC where it names no zone; SettingError with the option that it
    was given by, and with `7d` among the choices if `or_ago`."""
    try:
        return _iso_ms(text)
    except ValueError as error:
        choices = "2026-11-21, 2026-11-21T08:00, 7d or 12h" if or_ago else "2026-11-21 or 2026-11-21T08:00"
        raise SettingError(f"{option} '{text}' is no time; expected {choices}") from error


def _iso_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def slurm_ms(text: str) -> int | None:
    """Milliseconds since 1970 of a time as Slurm prints it, in UTC or as seconds since 1970; None if it is none."""
    if text in NO_TIME:
        return None
    if text.isdecimal():
        return int(text) * 1000
    try:
        return _iso_ms(text)
    except ValueError:
        return None


def day_text(ms: int) -> str:
    """The day of a moment in UTC: `2026-11-21`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}"


def moment_text(ms: int) -> str:
    """A moment in UTC: `2026-11-21 08:00:00 UTC`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def since_ms(text: str, now_ms: int, option: str) -> int:
    """The moment of `7d` or `12h` before now, or of a date or time."""
    if found := re.fullmatch(r"(\d{1,6})([dh])", text):
        return now_ms - int(found[1]) * UNITS_MS[found[2]]
    return moment_ms(text, option, or_ago=True)

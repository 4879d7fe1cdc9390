"""Points in time as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from berth.errors import SettingError

UNITS_MS = {"h": 3_600_000, "d": 86_400_000}
NO_TIME = ("", "Unknown", "None", "N/A", "NONE", "0")
"""What Slurm prints if there is no time."""


def moment_ms(text: str, option: str, *, or_ago: bool = False) -> int:
    """Milliseconds since 1970 of a date or a time, in UTC where it names no zone; SettingError with the option that it
    was given by, and with `7d` among the choices if `or_ago`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        choices = "2026-11-21, 2026-11-21T08:00, 7d or 12h" if or_ago else "2026-11-21 or 2026-11-21T08:00"
        raise SettingError(f"{option} '{text}' is no time; expected {choices}") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def slurm_ms(text: str) -> int | None:
    """Milliseconds since 1970 of a time as Slurm prints it, in UTC or as seconds since 1970; None if it is none."""
    if text in NO_TIME:
        return None
    if text.isdecimal():
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def since_ms(text: str, now_ms: int, option: str) -> int:
    """The moment of `7d` or `12h` before now, or of a date or time."""
    if found := re.fullmatch(r"(\d{1,6})([dh])", text):
        return now_ms - int(found[1]) * UNITS_MS[found[2]]
    return moment_ms(text, option, or_ago=True)

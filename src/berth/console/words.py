"""Times as the pages write them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["moment", "span"]


def span(ms: float) -> str:
    """A length of time: `12 s`, `3 min`, `2 h 05 min`, `4 d 3 h`."""
    seconds = max(0, round(ms / 1000))
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def moment(ms: int) -> str:
    """A moment in UTC, which the page's script turns into the reader's own time."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "–"

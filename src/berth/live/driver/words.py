"""Amounts and times in words, as every site shows them. It imports nothing heavy: commands print with it."""

from __future__ import annotations

import re
import time
from functools import lru_cache


@lru_cache(maxsize=4096)
def span_s(seconds: int) -> str:
    """A length of time of whole seconds: `1-02:03:04`, `2:03:04`, `3:04`."""
    minutes, second = divmod(max(0, seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def span(ms: float) -> str:
    return span_s(int(ms / 1000))


def moment(ms: float | None) -> str:
    return "–" if ms is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def starts_text(from_ms: int, to_ms: int) -> str:
    """When a job is believed to start: a moment, or from when to when; to the minute if that is an hour or more."""
    begin, end = moment(from_ms), moment(to_ms)
    if begin == end:
        return f"expected to start at {begin}"
    if to_ms - from_ms >= 3_600_000:
        begin, end = begin[:-3], end[:-3]
    return f"expected to start from {begin} to {end[11:] if end[:10] == begin[:10] else end}"


def without_start(reason: str) -> str:
    """Remove the expected start from a reason, for a table with a column of starts."""
    return re.sub(r"; expected to start [^;(]*[^;( ]", "", reason)


@lru_cache(maxsize=4096)
def mib(value: float) -> str:
    """An amount of memory: `8G`, `512M`."""
    if value >= 1024:
        return f"{value / 1024:.1f}G".replace(".0G", "G")
    return f"{value:.0f}M"


def sizes(*values: int) -> tuple[str, ...]:
    """Amounts of memory in MiB that are compared: in MiB if the rounded ones would look the same."""
    texts = tuple(mib(value) for value in values)
    return texts if len(set(texts)) == len(set(values)) else tuple(f"{value:,} MiB" for value in values)

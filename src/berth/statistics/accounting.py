"""What jobs used and how they waited: what is asked of a history, and what its answers are called.

A try holds `gpus` GPUs, or its part of one where it shares it, from its start to its end. What is unknown is
absent, never 0. `berth.statistics.tables` gives the answers by SQL; tests hold them against the same worked out
record by record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from berth.counts import natural
from berth.errors import SettingError
from berth.model import RecordState

UNKNOWN: Final = "unknown"
"""The application, account … of a job that does not tell."""
NO_GPU: Final = "none"
"""The GPU model of attempts without a GPU."""

MEASURES: Final = (
    *("gpu-hours", "run-hours", "jobs", "idle-gpu-hours", "failed-gpu-hours"),
    *("gpu-use", "cpu-use", "mem-use"),
)
"""Run-hours are those of the paper's figure 3: one hour an hour, however many GPUs."""

USES: Final = ("gpu-use", "cpu-use", "mem-use")
"""Measures that are parts of what was held, from 0 to 1: the least comes first, and there is no share of the whole."""

WASTED: Final = frozenset(
    (RecordState.FAILED, RecordState.OUT_OF_MEMORY, RecordState.NODE_FAIL, RecordState.TIMEOUT)
)
"""States in which what a try held is taken to be lost."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One group of attempts, and what they used."""

    keys: tuple[str, ...]
    """Its value of each dimension."""
    gpu_hours: float
    run_hours: float
    jobs: int
    """Jobs, not attempts."""
    users: int
    wasted_gpu_hours: float
    """Held by attempts that failed, ran out of time or memory, or lost their node."""
    measured_gpu_hours: float
    """Held by attempts whose use of the GPU was measured."""
    idle_gpu_hours: float
    """Of those, not used."""
    cpu_hours: float = 0.0
    """CPU time that was used, and below that was held, by attempts of which both are known."""
    cpu_held_hours: float = 0.0
    mem_gib_hours: float = 0.0
    """Peak memory times run time, and below the memory held, of attempts of which both are known."""
    mem_held_gib_hours: float = 0.0

    def measure(self, name: str) -> float:
        """One of MEASURES; NaN for a use that was not measured."""
        return {
            "gpu-hours": self.gpu_hours,
            "run-hours": self.run_hours,
            "jobs": float(self.jobs),
            "idle-gpu-hours": self.idle_gpu_hours,
            "failed-gpu-hours": self.wasted_gpu_hours,
            "gpu-use": 1 - _part(self.idle_gpu_hours, self.measured_gpu_hours),
            "cpu-use": _part(self.cpu_hours, self.cpu_held_hours),
            "mem-use": _part(self.mem_gib_hours, self.mem_held_gib_hours),
        }[name]

    def known(self, name: str) -> float | None:
        """One of MEASURES; None for what was not measured."""
        if name == "idle-gpu-hours" and not self.measured_gpu_hours:
            return None
        value = self.measure(name)
        return None if math.isnan(value) else value


NOTHING_USED: Final = Usage((), 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0)
"""Of a period without attempts."""


def _part(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def largest_first(rows: Iterable[Usage], measure: str) -> list[Usage]:
    """Rows in order: the largest first; of a use the least first, and what was not measured last."""
    sign = 1 if measure in USES else -1

    def place(row: Usage) -> tuple[float, float, list[tuple[str | int, ...]]]:
        value, names = row.measure(measure), [*map(natural, row.keys)]
        return (math.inf, -row.gpu_hours, names) if math.isnan(value) else (sign * value, 0.0, names)

    return sorted(rows, key=place)


@dataclass(frozen=True, slots=True)
class Variable:
    """One of the six of the paper's table 1."""

    name: str
    unit: str
    words: str
    """What it is, as an axis says it."""


VARIABLES: Final = (
    Variable("nNODE", "nodes", "nodes of an attempt"),
    Variable("nGPU", "GPUs", "GPUs of an attempt"),
    Variable("WAIT_h", "hours", "time waited, hours"),
    Variable("RUN_h", "hours", "time run, hours"),
    Variable("uGPUcore", "fraction", "mean use of its GPUs, as a fraction"),
    Variable("uGPUmem", "fraction", "mean use of their memory, as a fraction"),
)

DIMENSION_SQL: Final = {
    "application": "application",
    "user": '"user"',
    "account": "account",
    "server": "virtual_cluster",
    "gpu": f"CASE WHEN gpus = 0 THEN '{NO_GPU}' ELSE gpu_model END",
    "qos": "qos",
    "cluster": "cluster",
    "state": "state",
    "month": "strftime(make_timestamp(end_ms * 1000), '%Y-%m')",
    "day": "strftime(make_timestamp(end_ms * 1000), '%Y-%m-%d')",
}
"""What usage can be grouped by, as SQL over `records`. `server` is the partition, which names the type of GPU server;
month and day are those in which the try ended, in UTC."""
DIMENSIONS: Final = tuple(DIMENSION_SQL)
_MOMENT = "make_timestamp(end_ms * 1000)"
# A month's name is made once a group, not once a row.
_GROUPED: Final = {
    **DIMENSION_SQL,
    "month": f"(date_part('year', {_MOMENT}) * 12 + date_part('month', {_MOMENT}) - 1)",
    "day": f"end_ms // {24 * 3_600_000}",
}
_NAMED: Final = {
    "month": "printf('%04d-%02d', {} // 12, {} % 12 + 1)",
    "day": f"strftime(make_timestamp({{}} * {24 * 3_600_000} * 1000), '%Y-%m-%d')",
}


def check_dimensions(names: Sequence[str]) -> None:
    """SettingError where one is none of them, or stands twice."""
    for name in names:
        if name == "job" and len(names) > 1:
            raise SettingError("'job' stands alone, without other dimensions")
        if name not in DIMENSIONS:
            raise SettingError(f"no dimension '{name}'; there are {', '.join(DIMENSIONS)}")
        if list(names).count(name) > 1:
            raise SettingError(f"the dimension '{name}' is named twice")


def keys_of(by: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is grouped by, as columns of SQL named k0, k1 …, and what people call their values."""
    check_dimensions(by)
    keys = [f"{_GROUPED[name]} AS k{at}" for at, name in enumerate(by)]
    named = [
        _NAMED.get(name, f"CASE WHEN {{}} = '' THEN '{UNKNOWN}' ELSE {{}} END").replace("{}", f"k{at}")
        for at, name in enumerate(by)
    ]
    return keys, named

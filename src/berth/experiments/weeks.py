"""How long jobs waited, week by week: what really happened beside a replay of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.model import Job, Node
from berth.statistics import EventColumns

WEEK_MS = 7 * 24 * 3_600_000
FEWEST_JOBS = 10
"""A week of fewer jobs tells nothing of its 90th percentile."""
LEAST_WAIT_S = 60.0
"""Errors are per cent of the real wait, or of this where the real one is less: below a minute nobody waits."""


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """How long each of N jobs waited, from when it could have started to its last start."""

    submit_ms: IntArray  # (N,)
    """When it could have started, since the first job could."""
    wait_s: FloatArray  # (N,)

    def between(self, from_ms: int, until_ms: int) -> FloatArray:
        """The waits of the jobs that could have started then."""
        return self.wait_s[(self.submit_ms >= from_ms) & (self.submit_ms < until_ms)]


NO_WAITS = Waits(np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Week:
    """One week's waits."""

    number: int
    """1 for the first."""
    jobs: int
    mean_s: float
    p90_s: float


def waits_of(columns: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]) -> Waits:
    """How long the jobs of a run waited, of those that started."""
    last_start_ms = np.full(len(columns.job_ids), -1, np.int64)
    np.maximum.at(last_start_ms, columns.attempts.job, columns.attempts.start_ms)
    started = last_start_ms >= 0
    submit_ms = columns.submit_ms[started]
    return Waits(submit_ms, (last_start_ms[started] - submit_ms) / 1000.0)


def weeks_of(waits: Waits) -> list[Week]:
    """The weeks in which jobs waited, but those with few jobs; all as one week where every week is such a one."""
    found = []
    last_ms = int(waits.submit_ms.max(initial=0))
    for number in range(last_ms // WEEK_MS + 1):
        there = waits.between(number * WEEK_MS, (number + 1) * WEEK_MS)
        if len(there) >= FEWEST_JOBS:
            found.append(_week(number + 1, there))
    return found or ([_week(1, waits.wait_s)] if len(waits.wait_s) else [])


def _week(number: int, wait_s: FloatArray) -> Week:
    return Week(number, len(wait_s), float(wait_s.mean()), float(np.quantile(wait_s, 0.9)))


def error_pct(said_s: float, real_s: float) -> float:
    """How far a wait that was said is from the real one, per cent; more than 0 where it is too long."""
    return 100 * (said_s - real_s) / max(real_s, LEAST_WAIT_S)

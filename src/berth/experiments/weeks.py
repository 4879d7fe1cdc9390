"""How long jobs waited, week by week: what really happened beside a replay of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.counts import counted
from berth.model import Job, Node
from berth.statistics import EventColumns

WEEK_MS = 7 * 24 * 3_600_000
FEWEST_JOBS = 10
"""A week of fewer jobs tells nothing of its 90th percentile."""
MOST_ERROR_PCT = 20.0
"""A replay that misses the weekly 90th percentile by more is not to be relied on."""
LEAST_WAIT_S = 60.0
"""Waits below a minute count as one minute in an error, so that seconds do not dominate it."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Trust:
    """How far a replay of what ran is from what really happened: what other replays may be wrong by."""

    policy: str
    """The policy that ran; empty if it is not known."""
    real: Waits
    replayed: Waits

    @property
    def weekly_errors_pct(self) -> tuple[float, ...]:
        """How far the 90th percentile of each week's waits in the replay is from the real one."""
        replayed = {week.number: week for week in weeks_of(self.replayed)}
        return tuple(
            error_pct(replayed[week.number].p90_s, week.p90_s)
            for week in weeks_of(self.real)
            if week.number in replayed
        )

    @property
    def error_pct(self) -> float | None:
        """The median size of the weekly errors; None if no week tells."""
        errors = self.weekly_errors_pct
        return median(map(abs, errors)) if errors else None

    @property
    def is_believable(self) -> bool:
        """Whether the replay gives back the real waits, as far as that is known."""
        return self.error_pct is None or self.error_pct <= MOST_ERROR_PCT

    @property
    def sentence(self) -> str:
        """What is to be known of a history's replays before their numbers are read."""
        weeks = len(self.weekly_errors_pct)
        if not self.policy:
            return "Which policy ran is not known, and so neither is the error of these replays."
        if self.error_pct is None:
            return f"No week has enough jobs to tell the error of a replay of {self.policy}."
        error = f"{self.error_pct:.1f} % (median of {counted(weeks, 'week')})"
        if self.is_believable:
            return f"Error of this history's replays: the weekly 90th percentile of waits is off by {error}."
        return (
            f"Do not rely on these numbers: a replay of {self.policy}, which ran, misses the weekly 90th"
            f" percentile of the real waits by {error}."
        )


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


def error_pct(predicted_s: float, real_s: float) -> float:
    """How far a wait that was said is from the real one, per cent; more than 0 where it is too long."""
    predicted_s, real_s = max(predicted_s, LEAST_WAIT_S), max(real_s, LEAST_WAIT_S)
    return 100 * (predicted_s - real_s) / real_s

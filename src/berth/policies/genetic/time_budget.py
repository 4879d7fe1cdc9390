"""Time to search in: whether what comes next would still be over before the time is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

STEPS_A_LOOK = 8
"""Steps of a search between two looks at the clock, if there is a budget."""


class TimeBudget:
    """Milliseconds from now on, of the clock on the wall; None: as many as it takes.

    The next piece of work is expected to take as long as the last one, or half of what was expected then, whichever
    is longer: on a busy machine a short piece may wait long for the processor, and does so again. Threads may share
    a budget.
    """

    def __init__(self, budget_ms: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.end_s = float("inf") if budget_ms is None else clock() + budget_ms / 1000
        self.reserved_s = 0.0
        """The time that the work after the search takes."""
        self._expected_s = 0.0

    def has_time(self) -> bool:
        """Whether another piece of work is expected to end in time."""
        return self.end_s == float("inf") or self.clock() + self._expected_s + self.reserved_s < self.end_s

    def steps(self, wanted: int) -> int:
        """How many of these steps to do in one piece."""
        return wanted if self.end_s == float("inf") else min(wanted, STEPS_A_LOOK)

    def timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do a piece of work and learn from it."""
        begin_s = self.clock()
        result = work(*arguments)
        self._expected_s = max(self.clock() - begin_s, self._expected_s / 2)
        return result

    def reserve(self, pieces: float = 1.0) -> None:
        """Note that what comes after the search takes as long as `pieces` pieces of work like the last."""
        self.reserved_s = pieces * self._expected_s

"""Jobs looked up in the history."""

from __future__ import annotations

from collections.abc import Sequence

from berth.history.jobs.job_report import Neighbour, UsePoint
from berth.history.store.jobs import attempts_of_job, neighbours_of_job, use_of_job
from berth.history.store.reader import HistoryReader
from berth.model import Record


class HistoryJobs:
    """A `JobSource`: what has ended and was imported."""

    def __init__(self, history: HistoryReader) -> None:
        self.history = history

    def attempts(self, job: str) -> Sequence[Record]:
        """All attempts of the jobs of this id or label."""
        return attempts_of_job(self.history, job)

    def series(self, attempts: Sequence[Record]) -> Sequence[UsePoint]:
        """What was sampled, or told by a monitoring system."""
        return [UsePoint(*row) for row in use_of_job(self.history, attempts)]

    def refused(self, attempts: Sequence[Record]) -> int | None:
        """Unknown: accounting keeps no refused allocations."""
        return None

    def neighbours(self, attempts: Sequence[Record]) -> Sequence[Neighbour]:
        """What has ended and was recorded with its GPUs."""
        return [Neighbour(*row[:4], tuple(row[4])) for row in neighbours_of_job(self.history, attempts)]

"""A policy of one's own that says which run times it goes by."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Queue
from berth.model import Job


class LongestFirst:
    """The longest job first."""

    run_times = "true"

    def __call__(self, queue: Queue) -> Iterator[Job]:
        yield from sorted(queue, key=lambda job: -(job.work_ms or 0))

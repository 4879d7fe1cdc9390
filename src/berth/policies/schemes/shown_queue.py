"""Some or all of the waiting jobs, as a policy around another one shows them to it."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Queue
from berth.cluster.queue import Serial
from berth.model import Job
from berth.policies.sort_keys import as_queued


class ShownQueue(Queue):
    """The waiting jobs that are shown, in the places that they have in the whole queue."""

    def __iter__(self) -> Iterator[Job]:
        return self.by(as_queued)

    def first(self) -> Job | None:
        """The first in these places; None if none is shown."""
        return next(iter(self), None)

    def put(self, job: Job, serial: Serial | float) -> None:
        """Add a job in the place that a serial number tells."""
        self._next_serial = serial  # type: ignore[assignment]  # one that takes its place late is between two
        self.add(job)

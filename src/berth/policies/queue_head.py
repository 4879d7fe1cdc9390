"""The first jobs of the queue, as a policy looks at them again and again while it starts some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter

from berth.model import Job
from berth.queue import Queue

__all__ = ["QueueHead"]

_asks = attrgetter(
    "application", "work_ms", "gpus", "nodes", "share", "cpu_milli", "mem_mib", "models", "labels"
)
"""What two jobs have in common that may run in the same places and are the same to a forecast."""


class QueueHead:
    """The first jobs of the queue that may share, kept while a pass starts some of them."""

    def __init__(self, queue: Queue, sharing: Callable[[Queue], Iterator[Job]]) -> None:
        self.queue = queue
        self.sharing = sharing
        self.started: set[str] = set()
        """Ids of those that were started since the last look."""
        self.kinds: dict[tuple[object, ...], Job] = {}
        """One job of each kind that may be among them, by what it asks for."""
        self._begin()

    def _begin(self) -> None:
        self._jobs: list[Job] = []
        self._rest = self.sharing(self.queue)
        self._changes = self.queue.changes

    def first(self, most: int) -> list[Job]:
        """So many of them, or all."""
        if self.queue.changes != self._changes + len(self.started):
            self._begin()  # others have come or gone
        elif self.started:
            self._jobs = [job for job in self._jobs if job.id not in self.started]
            self._changes = self.queue.changes
        self.started.clear()
        for job in islice(self._rest, max(0, most - len(self._jobs))):
            self._jobs.append(job)
            self.kinds.setdefault(_asks(job), job)
        return self._jobs[:most]

"""The first jobs of the queue, as a policy looks at them again and again while it starts some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from berth.cluster import Queue
from berth.model import Job
from berth.policies.colocation.forecast import Candidate

__all__ = ["QueuePrefix"]

_asks = attrgetter("application", "gpus", "nodes", "share", "cpu_milli", "mem_mib", "models", "labels")
"""What two jobs have in common that may run in the same places; of equal work they are the same to a forecast."""


class QueuePrefix:
    """The jobs of the queue that may share, looked at from the first on, kept while a pass starts some of them."""

    def __init__(
        self, queue: Queue, sharing: Callable[[Queue], Iterator[Job]], candidate: Callable[[Job], Candidate]
    ) -> None:
        self.queue = queue
        self.candidate = candidate
        self.sharing = sharing
        self.started: set[str] = set()
        """Ids of those that were started since the last look."""
        self.kinds: list[Job] = []
        """One job of each kind among them, by what it asks for."""
        self.candidates: list[Candidate] = []
        """Each kind as forecasts see it."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._begin()

    def _begin(self) -> None:
        self._jobs: list[tuple[Job, int]] = []
        self._rest = self.sharing(self.queue)
        self._changes = self.queue.changes

    def look(self) -> None:
        """Leave out those that were started since; begin anew where others have come or gone."""
        if self.queue.changes != self._changes + len(self.started):
            self._begin()
        elif self.started:
            self._jobs = [one for one in self._jobs if one[0].id not in self.started]
            self._changes = self.queue.changes
        self.started.clear()

    def at(self, number: int) -> tuple[Job, int] | None:
        """The job with this number, and its kind; None behind the last."""
        while number >= len(self._jobs):
            job = next(self._rest, None)
            if job is None:
                return None
            candidate = self.candidate(job)
            kind = self._numbers.setdefault((*_asks(job), candidate.left_us), len(self.kinds))
            if kind == len(self.kinds):
                self.kinds.append(job)
                self.candidates.append(candidate)
            self._jobs.append((job, kind))
        return self._jobs[number]

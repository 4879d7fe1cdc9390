"""A policy whose placement gives jobs more than they ask for: it decides on them as if they asked for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from berth.cluster import Cluster, Queue
from berth.cluster.queue import Serial
from berth.model import Job, Placement
from berth.policies.protocol import Decision, GivesMore, InOrder, Policy, Reserving, Resuming, draws
from berth.policies.schemes.shown_queue import ShownQueue


class Giving:
    """Any policy around a placement that gives more: what it counts, reserves and starts is what jobs are given."""

    def __init__(self, inner: Policy, place: GivesMore) -> None:
        self.inner = inner
        self.given = place.given
        self.draws = draws(inner)
        self.resumes = isinstance(inner, Resuming) and inner.resumes
        self.order = inner.order if isinstance(inner, InOrder) else None

    @property
    def reserved_ms(self) -> Mapping[str, int]:
        """When each first job that waits is expected to start, by its id; as of the last decision."""
        return self.inner.reserved_ms if isinstance(self.inner, Reserving) else {}

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield what the policy decides on the jobs as they are given GPUs."""
        waiting = queue.form(self, partial(_AsGiven, self.given))
        for decision in self.inner(waiting.jobs, cluster, now_ms):
            if isinstance(decision, Placement):
                yield decision._replace(job=waiting.asked[decision.job.id])
            else:
                yield decision


class _AsGiven:
    """The waiting jobs as they are given GPUs, in the places that they have in the queue."""

    def __init__(self, given: Callable[[Job], Job], jobs: Iterable[tuple[Serial, Job]]) -> None:
        self.failed = False
        self.jobs = ShownQueue()
        self.asked: dict[str, Job] = {}
        """By id, each job as it asked."""
        self._given = given
        for serial, job in jobs:
            self.add(job, serial)

    def add(self, job: Job, serial: Serial) -> None:
        """A job waits from now on."""
        self.asked[job.id] = job
        self.jobs.put(self._given(job), serial)

    def remove(self, job: Job) -> None:
        """A job waits no more."""
        del self.asked[job.id]
        given = self.jobs.named(job.id)
        if given is not None:
            self.jobs.remove(given)

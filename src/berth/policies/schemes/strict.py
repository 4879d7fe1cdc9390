"""An order and a placement composed into a policy; and what every scheme needs of the queue: `Giving`, `Partitions`,
`ShownQueue`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from berth.cluster import Cluster, Queue
from berth.cluster.queue import Serial
from berth.model import GpuSlot, Job, Placement, placement_of
from berth.policies.protocol import (
    Decision,
    GivesMore,
    InOrder,
    Order,
    Place,
    Policy,
    Reserving,
    Resuming,
    draws,
    place_job,
)
from berth.policies.sort_keys import as_queued, key_of

NOWHERE: frozenset[int] = frozenset()


class Ordered:
    """Start the first job of the order where the placement says, then the next, until one does not fit.

    The order is strict: no job overtakes the first one, so that large jobs do not starve. A job whose patience
    is nothing does not hold up the others: if it does not fit at once it is leaving. Where nodes carry labels, a
    job holds up only those that could take a node which it could take, as each partition has a queue of its own. On
    nodes that are reserved now, the users' jobs are held up by one another alone.
    """

    def __init__(self, order: Order, place: Place) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        self._as_queued = key_of(order) is as_queued

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order."""
        tried = cluster.memo.get(self)
        if tried is None:
            tried = cluster.memo[self] = _Tried(Partitions(cluster), _reserved(cluster))
        # What did not fit still does not where nothing has opened: not worth another look.
        if tried.openings != cluster.openings:
            tried.openings = cluster.openings
            tried.stuck.clear()
            tried.first = None
        elif tried.first is not None and queue.first() is tried.first:
            return iter(())
        if cluster.has_labels or cluster.reserving:
            return self._placements(queue, cluster, now_ms, tried)
        return self._in_turn(queue, cluster, now_ms, tried)

    def _in_turn(self, queue: Queue, cluster: Cluster, now_ms: int, tried: _Tried) -> Iterator[Placement]:
        """Where the first job that does not fit holds up all others: half of the work of the general case."""
        stuck, place = tried.stuck, self.place
        for job in self.order(queue, cluster, now_ms):
            slots = place_job(place, job, cluster) if not stuck or stuck.get(job.id) is not job else None
            if slots is not None:
                yield placement_of(job, slots)
            elif job.patience_ms != 0:
                stuck[job.id] = job
                tried.first = job if self._as_queued else None
                return

    def _placements(self, queue: Queue, cluster: Cluster, now_ms: int, tried: _Tried) -> Iterator[Placement]:
        stuck, place, is_held_up = tried.stuck, self.place, tried.partitions.is_held_up
        blocked: set[Labels] = set()
        awaited: set[int] = set()  # reserved nodes for which a job of their users waits
        for job in self.order(queue, cluster, now_ms):
            reserved_rows = tried.reserved.get(job.user, NOWHERE)
            held_up = blocked and is_held_up(job.labels, blocked)
            if held_up and (not reserved_rows or not awaited.isdisjoint(reserved_rows)):
                continue
            slots = None if stuck.get(job.id) is job else place_job(place, job, cluster)
            if held_up and slots is not None and not reserved_rows.issuperset(node for node, _ in slots):
                slots = _slots_within(reserved_rows, job, cluster)
            if slots is not None:
                yield placement_of(job, slots)
            elif job.patience_ms != 0:
                awaited |= reserved_rows
                if held_up:
                    continue
                stuck[job.id] = job
                blocked.add(job.labels)
                if not cluster.reserving and all(is_held_up(one, blocked) for one in labels_waiting(queue)):
                    return


def _reserved(cluster: Cluster) -> dict[str, frozenset[int]]:
    """The rows of the nodes that are reserved for each user now."""
    rows: dict[str, set[int]] = {}
    if cluster.reserving:
        for row, node in enumerate(cluster.nodes):
            for user in node.reserved_for:
                rows.setdefault(user, set()).add(row)
    return {user: frozenset(of_user) for user, of_user in rows.items()}


def _slots_within(rows: frozenset[int], job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
    """Slots on these nodes alone, the first by rank that fit; None where there are none. A job that may spread is tried
    on single nodes, and a gang of tasks nowhere."""
    if job.tasks:
        return None
    fitting = sorted(rows.intersection(cluster.fitting_nodes(job).tolist()), key=cluster.rank.__getitem__)
    slots = cluster.slots_for(job, fitting)
    return slots if slots is not None and rows.issuperset(node for node, _ in slots) else None


@dataclass(slots=True)
class _Tried:
    """What did not fit on a cluster, and how often it had opened by then."""

    partitions: Partitions
    reserved: dict[str, frozenset[int]]
    """Rows by user; as all that is kept of a cluster, made anew when a node changes."""
    openings: int = -1
    stuck: dict[str, Job] = field(default_factory=dict)
    """Those that did not fit, by id; one that was replaced is another job."""
    first: Job | None = None
    """The one of them that holds up all behind it."""


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


Labels = tuple[str, ...]
"""What a job asks each of its nodes to carry."""


class Partitions:
    """How the labels of one cluster's nodes keep jobs apart."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._meet: dict[tuple[Labels, Labels], bool] = {}

    def can_meet(self, one: Labels, other: Labels) -> bool:
        """Whether some node carries the labels of both."""
        known = self._meet.get((one, other))
        if known is None:
            both = {*one, *other}
            known = any(both.issubset(node.labels) for node in self._cluster.nodes)
            self._meet[one, other] = known
        return known

    def is_held_up(self, labels: Labels, firsts: Collection[Labels]) -> bool:
        """Whether a job that asks for these labels could take a node that one of the first jobs could take."""
        return labels in firsts or any(self.can_meet(labels, other) for other in firsts)


def labels_waiting(queue: Queue) -> Collection[Labels]:
    """The different labels that the waiting jobs ask for."""
    return cast(Collection[Labels], queue.lanes(_labels, as_queued))


def _labels(job: Job) -> Labels:
    return job.labels


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

"""An order and a placement composed into a policy."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Cluster, Queue
from berth.model import Job, Placement
from berth.policies.protocol import Order, Place, draws
from berth.policies.schemes.label_groups import Labels, Partitions, labels_waiting
from berth.policies.sort_keys import as_queued, key_of

__all__ = ["Ordered"]


class Ordered:
    """Start the first job of the order where the placement says, then the next, until one does not fit.

    The order is strict: nobody overtakes the first job, so that large jobs do not starve. A job whose patience
    is nothing does not hold up the others: if it does not fit at once it is leaving. Where nodes carry labels, a
    job holds up only those that could take a node which it could take, as each partition has a queue of its own.
    """

    def __init__(self, order: Order, place: Place) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        """Whether its decisions may depend on the seed."""
        self._cluster: Cluster | None = None
        self._releases = -1
        self._stuck: dict[str, Job] = {}
        """Those that did not fit at so many releases, by id; one that was replaced is another job."""
        self._first: Job | None = None
        """The one of them that holds up everybody who comes behind it."""
        self._as_queued = key_of(order) is as_queued
        self._partitions: Partitions

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order."""
        # What did not fit still does not where nothing was given back: not worth another look.
        if self._releases != cluster.releases or self._cluster is not cluster:
            if self._cluster is not cluster:
                self._cluster, self._partitions = cluster, Partitions(cluster)
            self._releases = cluster.releases
            self._stuck.clear()
            self._first = None
        elif self._first is not None and queue.first() is self._first:
            return iter(())
        return self._placements(queue, cluster, now_ms)

    def _placements(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        stuck, place, is_held_up = self._stuck, self.place, self._partitions.is_held_up
        blocked: set[Labels] = set()
        for job in self.order(queue, cluster, now_ms):
            if blocked and is_held_up(job.labels, blocked):
                continue
            slots = None if stuck.get(job.id) is job else place(job, cluster)
            if slots is not None:
                yield Placement(job, slots, job.share)
            elif job.patience_ms != 0:
                stuck[job.id] = job
                if not cluster.labels:
                    self._first = job if self._as_queued else None
                    return
                blocked.add(job.labels)
                if all(is_held_up(labels, blocked) for labels in labels_waiting(queue)):
                    return

"""An order and a placement composed into a policy."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Cluster
from berth.model import Job, Placement
from berth.policies.keyed import as_queued
from berth.policies.protocol import Order, Place
from berth.queue import Queue

__all__ = ["Ordered"]

Labels = tuple[str, ...]


class Ordered:
    """Start the first job of the order where the placement says, then the next, until one does not fit.

    The order is strict: nobody overtakes the first job, so that large jobs do not starve. A job whose patience
    is nothing does not hold up the others: if it does not fit at once it is leaving. Where nodes carry labels, a
    job holds up only those that could take a node which it could take, as each partition has a queue of its own.
    """

    def __init__(self, order: Order, place: Place) -> None:
        self.order = order
        self.place = place
        self.draws = bool(getattr(place, "draws", True))
        """Whether its decisions may depend on the seed."""
        self._stuck: tuple[Cluster | None, int, set[str]] = (None, -1, set())
        self._meet: dict[tuple[Labels, Labels], bool] = {}

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order."""
        # What did not fit still does not where nothing was given back: not worth another look.
        if self._stuck[0] is not cluster or self._stuck[1] != cluster.releases:
            if self._stuck[0] is not cluster:
                self._meet = {}
            self._stuck = (cluster, cluster.releases, set())
        stuck = self._stuck[2]
        blocked: set[Labels] = set()
        for job in self.order(queue, cluster, now_ms):
            if blocked and self._is_blocked(job.labels, blocked, cluster):
                continue
            slots = None if job.id in stuck else self.place(job, cluster)
            if slots is not None:
                yield Placement(job, slots, job.share)
            elif job.patience_ms != 0:
                stuck.add(job.id)
                if not cluster.labels:
                    return
                blocked.add(job.labels)
                if all(
                    self._is_blocked(labels, blocked, cluster) for labels in queue.lanes(_labels, as_queued)
                ):
                    return

    def _is_blocked(self, labels: object, blocked: set[Labels], cluster: Cluster) -> bool:
        return labels in blocked or any(self._can_meet(labels, other, cluster) for other in blocked)

    def _can_meet(self, one: object, other: Labels, cluster: Cluster) -> bool:
        """Whether some node carries the labels of both."""
        assert isinstance(one, tuple)
        known = self._meet.get((one, other))
        if known is None:
            both = {*one, *other}
            known = self._meet[one, other] = any(both.issubset(node.labels) for node in cluster.nodes)
        return known


def _labels(job: Job) -> Labels:
    return job.labels

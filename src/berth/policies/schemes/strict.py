"""An order and a placement composed into a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from berth.cluster import Cluster, Queue
from berth.model import Job, Placement, placement_of
from berth.policies.protocol import Order, Place, draws
from berth.policies.schemes.label_groups import Labels, Partitions, labels_waiting
from berth.policies.sort_keys import as_queued, key_of

__all__ = ["Ordered"]


class Ordered:
    """Start the first job of the order where the placement says, then the next, until one does not fit.

    The order is strict: no job overtakes the first one, so that large jobs do not starve. A job whose patience
    is nothing does not hold up the others: if it does not fit at once it is leaving. Where nodes carry labels, a
    job holds up only those that could take a node which it could take, as each partition has a queue of its own. Jobs
    of users for whom nodes are reserved now are not held up by others.
    """

    def __init__(self, order: Order, place: Place) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        """Whether its decisions may depend on the seed."""
        self._as_queued = key_of(order) is as_queued

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order."""
        tried = cluster.memo.get(self)
        if tried is None:
            tried = cluster.memo[self] = _Tried(Partitions(cluster))
        # What did not fit still does not where nothing has opened: not worth another look.
        if tried.openings != cluster.openings:
            tried.openings = cluster.openings
            tried.stuck.clear()
            tried.first = None
        elif tried.first is not None and queue.first() is tried.first:
            return iter(())
        return self._placements(queue, cluster, now_ms, tried)

    def _placements(self, queue: Queue, cluster: Cluster, now_ms: int, tried: _Tried) -> Iterator[Placement]:
        stuck, place, is_held_up = tried.stuck, self.place, tried.partitions.is_held_up
        blocked: set[Labels] = set()
        for job in self.order(queue, cluster, now_ms):
            if blocked and is_held_up(job.labels, blocked) and job.user not in cluster.reserving:
                continue
            slots = None if stuck.get(job.id) is job else place(job, cluster)
            if slots is not None:
                yield placement_of(job, slots)
            elif job.patience_ms != 0:
                stuck[job.id] = job
                if not (cluster.has_labels or cluster.reserving):
                    tried.first = job if self._as_queued else None
                    return
                blocked.add(job.labels)
                if not cluster.reserving and all(is_held_up(one, blocked) for one in labels_waiting(queue)):
                    return


@dataclass(slots=True)
class _Tried:
    """What did not fit on a cluster when it had opened so often."""

    partitions: Partitions
    openings: int = -1
    stuck: dict[str, Job] = field(default_factory=dict)
    """Those that did not fit, by id; one that was replaced is another job."""
    first: Job | None = None
    """The one of them that holds up everybody who comes behind it."""

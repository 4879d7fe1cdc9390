"""Bounded overtaking: the job that has waited longest is not passed by later ones for ever."""

from __future__ import annotations

from bisect import bisect_right, insort

from berth.cluster import Cluster, Queue
from berth.model import GpuSlot, Job

__all__ = ["MOST_OVERTAKEN", "Overtaking"]

MOST_OVERTAKEN = 20
"""Once so many jobs that were submitted later have started, a GPU is kept for the first job of the queue."""


class Overtaking:
    """Counts how many jobs that were submitted later have started before the first of the queue."""

    def __init__(self) -> None:
        self._submit_ms: list[int] = []  # of those that started while others waited, ascending
        self.kept: GpuSlot | None = None
        """The GPU that is kept for the job that is due."""
        self._due: str = ""

    def started(self, job: Job) -> None:
        """A job has started."""
        insort(self._submit_ms, job.submit_ms)

    def due(self, queue: Queue, cluster: Cluster) -> Job | None:
        """The first job of the queue, if it has been overtaken so often that it is its turn."""
        if not len(queue):
            self._submit_ms.clear()
            return None
        first = queue.first()
        if first is None:
            return None
        del self._submit_ms[: bisect_right(self._submit_ms, first.submit_ms)]
        if len(self._submit_ms) < MOST_OVERTAKEN:
            return None
        if self._due != first.id:
            self._due, self.kept = first.id, None
        if self.kept is None or not cluster.up[self.kept.node]:
            self.kept = _soonest(first, cluster)
        return first


def _soonest(job: Job, cluster: Cluster) -> GpuSlot | None:
    """The GPU with the fewest tenants of those that the job may run on."""
    slots = (
        GpuSlot(row, index)
        for row, node in enumerate(cluster.nodes)
        if cluster.up[row] and cluster.allows(job, row)
        for index in range(node.gpus)
    )
    return min(
        slots, key=lambda slot: (len(cluster.jobs_on(slot)), int(cluster.rank[slot.node]), slot), default=None
    )

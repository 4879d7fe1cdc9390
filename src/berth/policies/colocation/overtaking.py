"""Bounded overtaking: the job that has waited longest is not passed by later ones for ever."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable

from berth.cluster import Cluster, Queue
from berth.model import GpuSlot, Job

MOST_OVERTAKEN = 20
"""Later jobs that may start before a GPU is kept for the first job of the queue."""

MayRun = Callable[[Job, GpuSlot], bool]
"""Whether a GPU can take a job when nothing else runs there."""


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

    def due(self, queue: Queue, cluster: Cluster, may_run: MayRun) -> Job | None:
        """The first job of the queue if `MOST_OVERTAKEN` later jobs have started before it."""
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
        if self.kept is None or not _can_be_kept(self.kept, first, cluster, may_run):
            self.kept = _soonest(first, cluster, may_run)
        return first


def _can_be_kept(slot: GpuSlot, job: Job, cluster: Cluster, may_run: MayRun) -> bool:
    """Whether the GPU is there and can take the job once its tenants have ended."""
    node, index = slot
    return bool(
        index < cluster.nodes[node].gpus
        and cluster.up[node]
        and cluster.strangers_on(slot) == (0, 0)
        and cluster.allows(job, node)
        and may_run(job, slot)
    )


def _soonest(job: Job, cluster: Cluster, may_run: MayRun) -> GpuSlot | None:
    """Of the GPUs that can take the job the one with the fewest tenants; one that a job has for itself comes last."""

    def wait(slot: GpuSlot) -> tuple[bool, int, int, GpuSlot]:
        tenants = cluster.jobs_on(slot)
        whole = any(not run.best_effort for run in tenants)
        return whole, len(tenants), int(cluster.rank[slot.node]), slot

    slots = (GpuSlot(row, index) for row, node in enumerate(cluster.nodes) for index in range(node.gpus))
    return min((slot for slot in slots if _can_be_kept(slot, job, cluster, may_run)), key=wait, default=None)

"""Jobs that take their GPUs whole beside those that share: on several GPUs or none, or of an unknown application."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from berth.cluster import Cluster, Queue
from berth.model import GpuSlot, Job, Placement, Profile, placement_of

__all__ = ["WholeGpus"]


class WholeGpus:
    """Starts such jobs, and learns the profile of an application that has run alone.

    Oh 2019, section IV.1: what has no profile yet runs alone once and is recorded. `known` is the policy's own and is
    added to; `recorded` tells the profile of an application that has run, None where there is none.
    """

    def __init__(
        self,
        known: dict[str, Profile],
        recorded: Callable[[str], Profile | None],
        shares: Callable[[Job], bool],
    ) -> None:
        self.known = known
        self.recorded = recorded
        self.shares = shares
        self._alone: dict[str, Job] = {}

    def forget(self, cluster: Cluster) -> None:
        """Keep of those that run alone only those on this cluster: it is another one, or its nodes are others."""
        running = cluster.running
        self._alone = {
            name: job for name, job in self._alone.items() if name in running and running[name].job is job
        }

    def start(self, queue: Queue, cluster: Cluster) -> Iterator[Placement]:
        """Start the first jobs that take their GPUs whole, until one has no room or one that may share is next."""
        some = False
        for job in queue:
            if self.shares(job):
                if some:
                    return
                continue
            slots = _slots(job, cluster)
            if slots is not None:
                some = True
                if job.gpus == 1:
                    self._alone[job.id] = job
                yield placement_of(job, slots)
            elif job.patience_ms != 0:
                return

    def record(self, queue: Queue, cluster: Cluster) -> None:
        """Learn the profiles of applications that have run alone since."""
        for identity, job in list(self._alone.items()):
            if identity in cluster.running:
                continue
            del self._alone[identity]
            if job not in queue and job.application not in self.known:
                profile = self.recorded(job.application)
                if profile is not None:
                    self.known[job.application] = profile


def _slots(job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
    """Where it fits with nobody beside it; None where it does not."""
    nodes = cluster.fitting_nodes(job)
    if job.gpus != 1 or job.share.milli == 1000:
        return cluster.slots_for(job, nodes[np.argsort(cluster.rank[nodes])])
    for node in nodes[np.argsort(cluster.rank[nodes])].tolist():
        for index in cluster.fitting_gpus(node, job):
            if not cluster.jobs_on(GpuSlot(node, index)):
                return (GpuSlot(node, index),)
    return None

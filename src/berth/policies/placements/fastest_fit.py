"""Fastest fit: the GPU model on which the job is fastest, of those that have room."""

from __future__ import annotations

import numpy as np

from berth.arrays import IntArray
from berth.cluster import Cluster
from berth.model import GpuSlot, Job
from berth.policies.protocol import Setting


class FastestFit:
    """Of the nodes with enough room, the first on whose GPU model the job is fastest.

    A gang takes the fastest such nodes. A job that may spread and fits on no single node is spread as under other
    placements. Without speeds by GPU model it is first fit. After the heterogeneity-aware FIFO of Narayanan et al.,
    "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020, section 4.2, in which
    each job in turn has the fastest card that is left for it.
    """

    draws = False
    by_request = True

    def __init__(self, setting: Setting | None = None) -> None:
        self._speeds = (setting or Setting()).speeds

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the fastest node that fits, on the fastest nodes for a gang, or None."""
        if job.gpus * job.share[0] > cluster.free_total_milli:
            return None
        nodes = cluster.fitting_nodes(job)
        if len(nodes) > 1 and job.gpus:
            nodes = nodes[np.argsort(-self._of(job.application, cluster)[nodes], kind="stable")]
        return cluster.slots_for(job, nodes[: max(1, job.nodes)].tolist())

    def _of(self, application: str, cluster: Cluster) -> IntArray:
        """(N,): the speed of an application on each node, per mille."""
        known: dict[str, IntArray] | None = cluster.memo.get(self)
        if known is None:
            known = cluster.memo[self] = {}
        found = known.get(application)
        if found is None:
            of = self._speeds.of(application)
            speeds = [of.get(node.gpu_model.name, 1000) if node.gpu_model else 1000 for node in cluster.nodes]
            found = known[application] = np.array(speeds, dtype=np.int64)
        return found

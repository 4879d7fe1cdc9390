"""Worst fit: the node that would be left with the most CPU and GPU."""

from __future__ import annotations

import numpy as np

from berth import kernels
from berth.cluster import Cluster
from berth.model import GpuSlot, Job
from berth.policies.scored import Scored


class WorstFit(Scored):
    """The node that would be left with the most CPU and GPU, both weighing the same: load is spread.

    score = trunc 100·(½·(CPU left − CPU asked)/C + ½·(GPU left − GPU asked)/G), where C and G are the CPU and GPU
    milli of the largest node: the opposite of best fit. A part of a GPU goes to the GPU with the most left, the
    first on ties. Johnson, "Near-optimal bin packing algorithms", PhD thesis, MIT, 1973; Kubernetes calls it
    LeastAllocated.
    """

    kernel = kernels.WORST_FIT
    tightest = False

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the emptiest node that fits, on the emptiest nodes for a gang, or None."""
        slots = super().__call__(job, cluster)
        if slots is None or job.gpus != 1 or job.share.milli == 1000:
            return slots
        node = slots[0].node
        left = np.where(cluster.free_gpu_mem_mib[node] >= job.share.mem_mib, cluster.free_milli[node], -1)
        return (GpuSlot(node, int(np.argmax(left))),)

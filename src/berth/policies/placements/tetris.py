"""Tetris: the node whose free resources point the same way as what the job asks for."""

from __future__ import annotations

import numpy as np

from berth.arrays import FloatArray
from berth.cluster import Cluster
from berth.model import GpuSlot, Job
from berth.policies.protocol import Setting


class Tetris:
    """The node with the largest dot product of its free resources and the request.

    score = Σ (left/capacity)·(asked/capacity) over CPU, memory and GPU of the node, each a fraction of what that node
    has; the highest wins, the smaller rank on ties. Grandl, Ananthanarayanan, Kandula, Rao and Akella,
    "Multi-resource Packing for Cluster Schedulers", SIGCOMM 2014, section 3.2 (alignment only; they mix it with the
    order of jobs, which is separate here). A part of a GPU goes to the GPU with the least left.
    """

    draws = False
    by_request = True

    def __init__(self, setting: Setting | None = None) -> None:
        """The setting does not matter to it."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the node with the best alignment, on the best nodes for a gang, or None."""
        if job.gpus * job.share.milli > cluster.free_total_milli:
            return None
        most = cluster.memo.get(self)
        if most is None:
            most = cluster.memo[self] = _most(cluster)
        fitting = cluster.fitting_nodes(job)
        wanted = max(1, job.nodes)
        if len(fitting) < wanted:
            return cluster.spread(job) if job.nodes == 0 else None
        asked, free = cluster.row(job), cluster.free
        cpu, mem, gpu = (amounts[fitting] for amounts in most)
        gpu_left = np.maximum(free.milli[fitting], 0).sum(axis=1)
        score = (
            free.cpu_milli[fitting] / cpu * (asked.cpu_milli / cpu)
            + free.mem_mib[fitting] / mem * (asked.mem_mib / mem)
            + gpu_left / gpu * (asked.gpus * asked.milli / gpu)
        )
        best = fitting[np.lexsort((cluster.rank[fitting], -score))][:wanted]
        return tuple(slot for node in best.tolist() for slot in cluster.slots_on(node, job, tightest=True))


def _most(cluster: Cluster) -> tuple[FloatArray, FloatArray, FloatArray]:
    """CPU, memory and GPU milli that each node has, each (N,), at least 1 for a divisor."""
    amounts = (
        cluster.capacity.cpu_milli,
        cluster.capacity.mem_mib,
        np.maximum(cluster.capacity.milli, 0).sum(axis=1),
    )
    cpu, mem, gpu = (np.maximum(amount, 1).astype(np.float64) for amount in amounts)
    return cpu, mem, gpu

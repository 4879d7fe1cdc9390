"""Tetris: the node whose free resources point the same way as what the job asks for."""

from __future__ import annotations

import numpy as np

from berth.cluster import Cluster
from berth.cluster.kernels import CPU, GPUS, MEM, MILLI
from berth.model import GpuSlot, Job
from berth.policies.protocol import Setting


class Tetris:
    """The node with the largest dot product of what it has left and what the job asks for.

    score = Σ (left/capacity)·(asked/capacity) over CPU, memory and GPU of the node, each a fraction of what
    that node has; the highest wins, the smaller rank on ties. Grandl, Ananthanarayanan, Kandula, Rao and
    Akella, "Multi-resource Packing for Cluster Schedulers", SIGCOMM 2014, section 3.2 (alignment; the order
    of jobs, which they mix with it, is the order's business here). A part of a GPU goes to the GPU with the
    least left.
    """

    draws = False

    def __init__(self, setting: Setting | None = None) -> None:
        self._cluster: Cluster | None = None

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the node with the best alignment, on the best nodes for a gang, or None."""
        if job.gpus * job.share.milli > cluster.free_total_milli:
            return None
        if cluster is not self._cluster:
            self._cluster = cluster
            self._cpu = np.maximum(cluster.capacity_cpu_milli, 1).astype(np.float64)
            self._mem = np.maximum(cluster.capacity_mem_mib, 1).astype(np.float64)
            self._gpu = np.maximum(np.maximum(cluster.capacity_milli, 0).sum(axis=1), 1).astype(np.float64)
        fitting = cluster.fitting_nodes(job)
        wanted = max(1, job.nodes)
        if len(fitting) < wanted:
            return cluster.spread(job) if job.nodes == 0 else None
        number = cluster.request(job)  # first: a new type may grow the table
        request = cluster.requests[number]
        cpu, mem, gpu = self._cpu[fitting], self._mem[fitting], self._gpu[fitting]
        gpu_left = np.maximum(cluster.free_milli[fitting], 0).sum(axis=1)
        score = (
            cluster.free_cpu_milli[fitting] / cpu * (int(request[CPU]) / cpu)
            + cluster.free_mem_mib[fitting] / mem * (int(request[MEM]) / mem)
            + gpu_left / gpu * (int(request[GPUS]) * int(request[MILLI]) / gpu)
        )
        best = fitting[np.lexsort((cluster.rank[fitting], -score))][:wanted]
        return tuple(slot for node in best.tolist() for slot in cluster.slots_on(node, job, tightest=True))

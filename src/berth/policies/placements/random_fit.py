"""Random: any node that fits, and any of its GPUs that fit, each with the same chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from berth.arrays import IntArray, numbers
from berth.cluster import Cluster, kernels
from berth.model import NO_GPU, GpuSlot, Job
from berth.policies.placements import score_kernels
from berth.policies.placements.scored import Scored
from berth.policies.protocol import Setting


class Random(Scored):
    """A random node that fits, and on it random GPUs that fit, each equally likely.

    The lower baseline of Weng et al., USENIX ATC 2023, section 6.1. Its numbers come from the seed alone.
    """

    kernel = score_kernels.ANY_FIT
    draws = True
    by_request = True

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._random = random.Random(self.setting.seed)
        self._chosen: tuple[IntArray, memoryview[int]] | None = None
        """(G,): the GPUs of a node that fit, for the kernel to write and for Python to read."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on a node that fits, on as many as a gang takes, or None."""
        if job.nodes > 1:
            return super().__call__(job, cluster)
        if job.gpus * job.share[0] > cluster.free_total_milli:
            return None
        width = cluster.free.milli.shape[1]
        if self._chosen is None or len(self._chosen[0]) != width:
            chosen = np.empty(width, dtype=np.int64)
            self._chosen = chosen, numbers(chosen)
        chosen, chosen_at = self._chosen
        number, nodes = cluster.request(job), len(cluster.nodes)
        for _ in range(8):  # a node out of all, until one fits: the same chances, and soon there
            node = int(self._random.random() * nodes)
            found = kernels.fitting_on(cluster.block, cluster.requests, number, node, chosen)
            if found >= 0:
                return self._some(node, job, cluster, chosen_at[:found])
        return super().__call__(job, cluster)

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """Some of the nodes that fit, ascending, or None if too few do."""
        fitting = np.flatnonzero(scores > score_kernels.UNFIT)
        if len(fitting) < wanted:
            return None
        return sorted(self._random.sample(fitting.tolist(), wanted))

    def slots(self, node: int, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...]:
        """As many of the node's GPUs that fit as the job takes there, ascending."""
        return self._some(node, job, cluster, cluster.fitting_gpus(node, job))

    def _some(self, node: int, job: Job, cluster: Cluster, fitting: Sequence[int]) -> tuple[GpuSlot, ...]:
        """As many of these GPUs as the job takes on a node, ascending."""
        if job.gpus == 0:
            return (GpuSlot(node, NO_GPU),)
        wanted = job.gpus // max(1, job.nodes)
        if wanted == 1:
            return cluster.singles[node, fitting[int(self._random.random() * len(fitting))]]
        return tuple(GpuSlot(node, index) for index in sorted(self._random.sample(list(fitting), wanted)))

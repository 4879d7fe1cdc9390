"""Random: any node that fits, and any of its GPUs that fit, each with the same chance."""

from __future__ import annotations

import random

import numpy as np

from berth import kernels
from berth.cluster import Cluster
from berth.kernels import IntArray
from berth.model import NO_GPU, GpuSlot, Job
from berth.policies.protocol import Setting
from berth.policies.scored import Scored


class Random(Scored):
    """Any node that fits, and on it any GPUs that fit, each with the same chance.

    The lower baseline of Weng et al., USENIX ATC 2023, section 6.1. Its numbers come from the seed alone.
    """

    kernel = kernels.ANY_FIT
    draws = True

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._random = random.Random(self.setting.seed)

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """So many of the nodes that fit, ascending, or None where too few do."""
        if wanted == 1:
            for _ in range(8):  # a node out of all, until one fits: the same chances, and soon there
                node = int(self._random.random() * len(scores))
                if scores[node] > kernels.UNFIT:
                    return [node]
        fitting = np.flatnonzero(scores > kernels.UNFIT)
        if len(fitting) < wanted:
            return None
        return sorted(self._random.sample(fitting.tolist(), wanted))

    def slots(self, node: int, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...]:
        """As many of the node's GPUs that fit as the job takes there, ascending."""
        if job.gpus == 0:
            return (GpuSlot(node, NO_GPU),)
        fitting = cluster.fitting_gpus(node, job)
        wanted = job.gpus // max(1, job.nodes)
        if wanted == 1:
            return (GpuSlot(node, fitting[int(self._random.random() * len(fitting))]),)
        return tuple(GpuSlot(node, index) for index in sorted(self._random.sample(fitting, wanted)))

"""First fit: the first node, and on it the first GPUs, with enough left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth.arrays import IntArray, numbers
from berth.cluster import Cluster
from berth.model import NO_GPU, GpuSlot, Job
from berth.policies.placements import score_kernels
from berth.policies.placements.scored import CACHE_BYTES, RowOfType, Scored
from berth.policies.protocol import Setting


class FirstFit(Scored):
    """The first node with enough room, and on it the lowest-numbered GPUs with enough room.

    Johnson, "Near-optimal bin packing algorithms", PhD thesis, MIT, 1973. It is the fastest placement, because it
    scores nothing. A gang takes the first nodes that fit. The cluster's rank of nodes, which settles ties elsewhere,
    is not used.
    """

    kernel = score_kernels.ANY_FIT
    tightest = False
    by_request = True

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._memo_key = object()  # the scores of gangs are under itself

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the first node, on the first nodes for a gang, or None."""
        if job.nodes > 1:
            return super().__call__(job, cluster)
        gpus = job.gpus
        if gpus * job.share[0] > cluster.free_total_milli:
            return None
        seen = cluster.memo.get(self._memo_key)
        if seen is None:
            seen = cluster.memo[self._memo_key] = _Seen.of(cluster)
        number = cluster.request(job)
        row = seen.rows[number]
        node: int = score_kernels.first_node(cluster.block, cluster.requests, number, row, seen.unfit)
        if node < 0:
            return cluster.spread(job) if job.nodes == 0 else None
        if gpus == 1:
            return cluster.singles[node, seen.chosen_at[row, 0]]
        chosen = [seen.chosen_at[row, place] for place in range(gpus)]
        return tuple(GpuSlot(node, index) for index in chosen) or (GpuSlot(node, NO_GPU),)

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """The first nodes of the cluster that fit."""
        fitting = np.flatnonzero(scores > score_kernels.UNFIT)[:wanted]
        return fitting.tolist() if len(fitting) == wanted else None


@dataclass(slots=True)
class _Seen:
    """Where each type of request does not fit, so that it is not tried there again. Letters as in kernels."""

    rows: RowOfType
    unfit: IntArray  # (T, G + 2 + N/64, rounded up)
    chosen_at: memoryview[int]

    @classmethod
    def of(cls, cluster: Cluster) -> _Seen:
        nodes, width = cluster.free.milli.shape
        columns = width + 2 + (nodes + 63) // 64
        rows = max(1, min(4096, CACHE_BYTES // (8 * columns)))
        unfit = np.zeros((rows, columns), dtype=np.int64)
        return cls(RowOfType(unfit), unfit, numbers(unfit))

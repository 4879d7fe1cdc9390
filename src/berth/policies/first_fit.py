"""First fit: the first node, and on it the first GPUs, with enough left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth import kernels
from berth.cluster import Cluster
from berth.kernels import IntArray
from berth.model import NO_GPU, GpuSlot, Job
from berth.policies.protocol import Setting
from berth.policies.scored import CACHE_BYTES, Scored


class FirstFit(Scored):
    """The first node of the cluster with enough left, and on it the lowest-numbered GPUs with enough left.

    Johnson, "Near-optimal bin packing algorithms", PhD thesis, MIT, 1973. It is the fastest of all: nothing is
    scored. A gang takes the first nodes that fit. The cluster's rank of nodes, which settles ties, is not asked.
    """

    kernel = kernels.ANY_FIT
    tightest = False

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._seen: _Seen | None = None

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the first node, on the first nodes for a gang, or None."""
        if job.nodes > 1:
            return super().__call__(job, cluster)
        gpus = job.gpus
        if gpus * job.share[0] > cluster.free_total_milli:
            return None
        seen = self._seen
        if seen is None or seen.cluster is not cluster:
            seen = self._seen = _Seen.of(cluster)
        node = seen.first_node(job)
        if node < 0:
            return cluster.spread(job) if job.nodes == 0 else None
        if gpus == 1:
            return seen.single(node, seen.chosen_at[0])
        return tuple(GpuSlot(node, index) for index in seen.chosen_at[:gpus]) or (GpuSlot(node, NO_GPU),)

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """The first nodes of the cluster that fit."""
        fitting = np.flatnonzero(scores > kernels.UNFIT)[:wanted]
        return fitting.tolist() if len(fitting) == wanted else None


@dataclass(slots=True)
class _Kind:
    """What is known of a request type."""

    row: int
    first: int = 0
    """No node before this one fitted when it was looked at last."""
    freed: int = 0
    """How long the cluster's `freed` was then."""


@dataclass(slots=True)
class _Seen:
    """Where each type of request does not fit, so that nobody looks there again. Letters as in kernels."""

    cluster: Cluster
    kinds: dict[int, _Kind]
    unfit: IntArray  # (T, N)
    chosen: IntArray  # (G,)
    chosen_at: memoryview[int]
    singles: dict[int, tuple[GpuSlot]]

    @classmethod
    def of(cls, cluster: Cluster) -> _Seen:
        nodes, width = cluster.free_milli.shape
        unfit = np.zeros((max(1, min(4096, CACHE_BYTES // (8 * nodes))), nodes), dtype=np.int64)
        chosen = np.zeros(width, dtype=np.int64)
        return cls(cluster, {}, unfit, chosen, kernels.numbers(chosen), {})

    def single(self, node: int, index: int) -> tuple[GpuSlot]:
        """The slots of a job that takes this one, the same tuple each time: most jobs take one."""
        number = node * len(self.chosen) + index
        found = self.singles.get(number)
        if found is None:
            found = self.singles[number] = (GpuSlot(node, index),)
        return found

    def first_node(self, job: Job) -> int:
        """The first node that the job fits on; −1 for none."""
        cluster = self.cluster
        request = cluster.request(job)
        kind = self.kinds.get(request) or self._new_kind(request)
        first, freed = kind.first, cluster.freed
        since = len(freed) - kind.freed
        if since:
            if since == 1:
                first = min(first, freed[-1])
            else:
                first = min(first, *freed[kind.freed :]) if since < len(cluster.nodes) else 0
            kind.freed += since
        elif first == len(cluster.nodes):
            return -1
        node: int = kernels.first_node(
            cluster.block, cluster.requests, request, kind.row, first, self.unfit, self.chosen
        )
        kind.first = node if node >= 0 else len(cluster.nodes)
        return node

    def _new_kind(self, request: int) -> _Kind:
        """The type that came first makes room where there is none."""
        row = len(self.kinds)
        if row == len(self.unfit):
            row = self.kinds.pop(next(iter(self.kinds))).row
            self.unfit[row] = 0
        kind = self.kinds[request] = _Kind(row, freed=len(self.cluster.freed))
        return kind

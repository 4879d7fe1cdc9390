"""Placements that give each node an integer score and take the highest, the smaller rank on ties.

Scores are kept for each type of request and node, and a node is scored again only after it has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from berth.arrays import FloatArray, IntArray, numbers
from berth.cluster import UNCOUNTED, Cluster
from berth.model import NO_GPU, WHOLE_GPU, GpuSlot, Job
from berth.policies.placements import score_kernels
from berth.policies.protocol import Setting, places_by_formula

CACHE_BYTES = 128 * 2**20
"""What the kept scores may take in memory: 24 bytes a node and request type, the oldest type making room."""


@dataclass(frozen=True, slots=True)
class Typical:
    """The requests that a formula takes as usual, and how usual each is. Letters as in `score_kernels`."""

    requests: IntArray = field(
        default_factory=lambda: np.zeros((0, score_kernels.MODELS + 1), dtype=np.int64)
    )
    """(M, A): GPUs, milli of each, CPU milli, place of its milli in `sizes`, and bits of the GPU models allowed."""
    weight: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(M,): the part of the workload that asks so."""
    sizes: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(K,): the different milli."""


class RowOfType(dict[int, int]):
    """The row of each request type in an array; if none is left, the type that came first makes room."""

    def __init__(self, rows: IntArray) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, number: int) -> int:
        row = len(self)
        if row == len(self._rows):
            row = self.pop(next(iter(self)))
            self._rows[row] = 0
        self[number] = row
        return row

    def keeps(self, number: int) -> bool:
        """Whether a request type has a row, or gets one without taking that of another."""
        return number in self or len(self) < len(self._rows)


class Formula(NamedTuple):
    """What a kernel needs to choose slots as the placement would. Letters as in `score_kernels`."""

    kernel: int
    tightest: bool
    rows: RowOfType
    unfit: IntArray
    """For `first_node`, if `kernel` is ANY_FIT."""
    cache: IntArray
    """For `best_node` with any other, as `real`."""
    real: FloatArray


@dataclass(slots=True)
class _Scores:
    """Scores of one cluster's nodes for as many request types as there is room for. Letters as in `score_kernels`."""

    rows: RowOfType
    scores: IntArray  # (T, N)
    devices_at: memoryview[int]  # (T, N)
    several_at: memoryview[int]  # (G,)
    cache: IntArray
    """All of them, a `score_kernels.ScoreCache`."""
    real: FloatArray  # (M + N,): weights of typical requests, and the fragmentation of nodes


class Scored:
    """A placement by score. A subclass names its kernel and documents its formula."""

    kernel: int
    """Which of the formulas in `score_kernels` it uses."""

    by_request = True
    by_formula = True

    draws = False
    """Whether `several` chooses the nodes of every job, and not only of a gang."""

    tightest = True
    """Whether a job that takes part of a GPU goes to the GPU with the least left, or to the first that fits."""

    def __init__(self, setting: Setting | None = None) -> None:
        self.setting = setting or Setting()

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the best node, on the best nodes for a gang, or None."""
        if job.gpus * job.share[0] > cluster.free_total_milli:
            return None
        known = self._known(cluster)
        request = cluster.request(job)
        row = known.rows[request]
        node: int = score_kernels.best_node(
            self.kernel, cluster.block, cluster.requests, request, row, known.cache, known.real
        )
        if job.nodes > 1 or self.draws:
            nodes = None if node < 0 else self.several(known.scores[row], cluster, max(1, job.nodes))
            if nodes is not None:
                return tuple(slot for node in nodes for slot in self.slots(node, job, cluster))
        elif node >= 0:
            if job.gpus == 1:
                return cluster.singles[node, known.devices_at[row, node]]
            if job.gpus and job.share[0] == WHOLE_GPU[0]:
                return cluster.several(node, known.several_at[: job.gpus])
            return self.slots(node, job, cluster)
        return cluster.spread(job) if job.nodes == 0 else None

    def formula(self, cluster: Cluster) -> Formula | None:
        """What it goes by on a cluster, if jobs of one node are placed by its kernel alone."""
        if self.draws or type(self).slots is not Scored.slots or not places_by_formula(self):
            return None
        known, unfit = self._known(cluster), np.zeros((0, 0), dtype=np.int64)
        return Formula(self.kernel, self.tightest, known.rows, unfit, known.cache, known.real)

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """The best nodes for the parts of a gang, given every node's score (N,), or None where too few fit."""
        fitting = np.flatnonzero(scores > score_kernels.UNFIT)
        if len(fitting) < wanted:
            return None
        nodes: list[int] = fitting[np.lexsort((cluster.rank[fitting], -scores[fitting]))][:wanted].tolist()
        return nodes

    def typical(self, cluster: Cluster) -> Typical:
        """The typical requests, for a formula that looks at them; else none."""
        return Typical()

    def slots(self, node: int, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...]:
        """The slots that a job (one of its parts, for a gang) takes on a node that it fits on."""
        if job.gpus == 0:
            return (GpuSlot(node, NO_GPU),)
        return cluster.slots_on(node, job, tightest=self.tightest)

    def _known(self, cluster: Cluster) -> _Scores:
        known: _Scores | None = cluster.memo.get(self)
        if known is None:
            known = cluster.memo[self] = self._start(cluster)
        return known

    def _start(self, cluster: Cluster) -> _Scores:
        nodes, width = cluster.free.milli.shape
        rows = max(1, min(4096, CACHE_BYTES // (24 * nodes)))
        typical = self.typical(cluster)
        counted = cluster.capacity.cpu_milli[cluster.capacity.cpu_milli < UNCOUNTED]
        cpu = counted.max(initial=1)
        gpu = np.maximum(cluster.capacity.milli, 0).sum(axis=1).max()
        sizes = rows, nodes, width, *typical.requests.shape, len(typical.sizes)
        cache = np.zeros(score_kernels.cache_size(*sizes), dtype=np.int64)
        cache[: score_kernels.SIZES] = *sizes, max(1, cpu), max(1, gpu)
        arrays = score_kernels.cache_in(cache)
        arrays.typical[:], arrays.sizes[:] = typical.requests, typical.sizes
        real = np.concatenate([typical.weight, np.zeros(nodes)])
        shown = numbers(arrays.devices), numbers(arrays.scratch[0])
        return _Scores(RowOfType(arrays.seen), arrays.scores, *shown, cache, real)

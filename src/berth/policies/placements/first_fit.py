"""First fit and its kin: the first node with enough left, in rank, by speed (`FastestFit`) or in turn
(`RoundRobin`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth.arrays import IntArray, compiled, numbers
from berth.cluster import Cluster
from berth.cluster.kernels import GPU_MEM, GPUS, MILLI, choose_devices, compiled_arrays_of, fits
from berth.model import NO_GPU, GpuSlot, Job
from berth.policies.placements import score_kernels
from berth.policies.placements.scored import CACHE_BYTES, Formula, RowOfType, Scored
from berth.policies.protocol import Setting, places_by_formula


class FirstFit(Scored):
    """The first node with enough room, and on it the lowest-numbered GPUs with enough room.

    Johnson, "Near-optimal bin packing algorithms", PhD thesis, MIT, 1973. It is the fastest placement, because it
    scores nothing. A gang takes the first nodes that fit. The cluster's rank of nodes, which settles ties elsewhere,
    is not used.
    """

    kernel = score_kernels.ANY_FIT
    tightest = False
    by_request = True
    by_formula = True

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
        seen = self._seen(cluster)
        number = cluster.request(job)
        row = seen.rows[number]
        node: int = score_kernels.first_node(cluster.block, cluster.requests, number, row, seen.unfit)
        if node < 0:
            return cluster.spread(job) if job.nodes == 0 else None
        if gpus == 1:
            return cluster.singles[node, seen.chosen_at[row, 0]]
        return cluster.several(node, [seen.chosen_at[row, place] for place in range(gpus)] or [NO_GPU])

    def formula(self, cluster: Cluster) -> Formula | None:
        """What it goes by on a cluster, if no subclass does otherwise."""
        if not places_by_formula(self):
            return None
        seen, nothing = self._seen(cluster), np.zeros(0, dtype=np.int64)
        return Formula(self.kernel, self.tightest, seen.rows, seen.unfit, nothing, np.zeros(0))

    def _seen(self, cluster: Cluster) -> _Seen:
        seen: _Seen | None = cluster.memo.get(self._memo_key)
        if seen is None:
            seen = cluster.memo[self._memo_key] = _Seen.of(cluster)
        return seen

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


class RoundRobin:
    """The next GPU with room after the last one used, node by node, then from the start again.

    The baseline of Kwon and Bahn (*Scheduling of Artificial Intelligence Workloads in Cloud Environments Using
    Genetic Algorithms*, JIIBC 24(3), 2024, section IV): jobs go "to each GPU in turn". Size and room decide only
    whether a job fits. A job of several GPUs takes the first free ones of the next node that has enough. A gang does
    so on each of the next nodes, beginning with the node of the last GPU used.
    """

    draws = False
    by_request = True
    remembers = True

    def __init__(self, setting: Setting | None = None) -> None:
        """The setting does not matter to it."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots next in turn, or None where the job fits nowhere now."""
        number, nodes, width = cluster.request(job), *cluster.free.milli.shape
        chosen = np.empty(width, dtype=np.int64)
        gpus = job.gpus // max(1, job.nodes)
        turn = cluster.memo.get(self, GpuSlot(0, 0))
        if job.nodes > 1:  # its parts take whole nodes in turn: the GPUs before the turn count too
            turn = GpuSlot(turn.node, 0)
        slots: list[GpuSlot] = []
        passed = 0  # nodes that cannot be chosen again: each gives a gang one part
        for _ in range(max(1, job.nodes)):
            steps = next_in_turn(
                cluster.block,
                cluster.requests,
                number,
                turn.node,
                turn.index,
                nodes - passed,
                chosen,
            )
            if steps < 0:
                return cluster.spread(job) if job.nodes == 0 else None
            node = (turn.node + steps) % nodes
            slots.extend(GpuSlot(node, index) for index in (chosen[:gpus].tolist() if gpus else [NO_GPU]))
            after = int(chosen[gpus - 1]) + 1 if gpus == 1 and job.nodes < 2 else width
            stays = after < cluster.nodes[node].gpus
            turn = GpuSlot(node, after) if stays else GpuSlot((node + 1) % nodes, 0)
            passed += steps + 1
        cluster.memo[self] = turn
        return tuple(slots)


@compiled
def next_in_turn(
    block: IntArray,
    requests: IntArray,  # (≥ number + 1, ≥ 10)
    number: int,
    first_node: int,
    first_index: int,  # on the first node, a request for one GPU looks at this slot and those behind it
    nodes: int,  # nodes to look at, and the first one's other slots after them
    chosen: IntArray,  # (G,), written: the slots taken
) -> int:
    """How many nodes further the next one is that fits, −1 where none does."""
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, _, _, _, _, _, _ = compiled_arrays_of(block)
    request = requests[number]
    count = free_cpu.shape[0]
    whole_round = nodes == count and first_index > 0
    for step in range(nodes + (1 if whole_round else 0)):
        node = (first_node + step) % count
        if not fits(node, request, free_cpu, free_mem, free_milli, free_gpu_mem, traits):
            continue
        if request[GPUS] != 1:
            choose_devices(node, request, free_milli, free_gpu_mem, False, chosen)
            return step
        for index in range(first_index if step == 0 else 0, free_milli.shape[1]):
            if free_milli[node, index] >= request[MILLI] and free_gpu_mem[node, index] >= request[GPU_MEM]:
                chosen[0] = index
                return step
    return -1

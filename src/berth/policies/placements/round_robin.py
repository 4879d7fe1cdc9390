"""Round robin: each job to the next GPU in turn that holds it, however loaded the others are."""

from __future__ import annotations

import numpy as np

from berth.arrays import IntArray, compiled
from berth.cluster import Cluster
from berth.cluster.kernels import GPU_MEM, GPUS, MILLI, choose_devices, compiled_arrays_of, fits
from berth.model import NO_GPU, GpuSlot, Job
from berth.policies.protocol import Setting


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

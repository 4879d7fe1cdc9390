"""Solutions of a batch that know what is left on every node, so that a change costs what it changes.

Letters: I instances, T request types, N nodes, G GPU slots of the largest node, M typical requests of A columns, K
sizes of them. A solution says where each instance is, GPU by GPU; every solution is one that could be carried out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, FloatArray, IntArray, compiled
from berth.cluster.kernels import CPU, GPU_MEM, GPUS, MEM, MILLI
from berth.policies.placements.score_kernels import node_fragmentation

NEVER = 1e300
"""The cost of a node that a request does not fit on."""

TIGHT = 1e-7
"""GPUs' worth of a GPU left free on the node: the fuller node wins where nothing else tells nodes apart."""


class Packing(NamedTuple):
    """The batch, as all its solutions see it; nothing writes to it."""

    parts: IntArray  # (I,): how many instances its job has, at the first one; 0 at the others
    type_of: IntArray  # (I,)
    requests: IntArray  # (T, 5)
    use: FloatArray  # (T,): what one GPU of the type is used, as a fraction; what its profile says
    worth: FloatArray  # (I,): what placing the instance is worth, in GPUs
    size: FloatArray  # (I,): what makes the job of an instance hard to place: the largest go first
    fit: BoolArray  # (T, N): whether the type fits on the node with nothing of the batch on it
    cpu: IntArray  # (N,): what is free with nothing of the batch placed
    mem: IntArray  # (N,)
    milli: IntArray  # (N, G)
    gpu_mem: IntArray  # (N, G)
    used: FloatArray  # (N, G): how much each GPU is used already, as a fraction
    models: IntArray  # (N,): the number of each node's GPU model
    kinds: IntArray  # (N,): the number of each node's kind: GPU model, GPUs and CPU
    typical: IntArray  # (M, A)
    weight: FloatArray  # (M,)
    sizes: IntArray  # (K,)
    stranding: float  # what a GPU is worth that typical requests could not use
    contention: float  # what a GPU's time is worth that jobs on one GPU take from each other
    detour: FloatArray  # (T, L): the type's cost on a kind of node that others need more than its best


class Solution(NamedTuple):
    """One solution and all that follows from it."""

    node: IntArray  # (I,): −1 where it is not placed
    devices: IntArray  # (I,): bits of the GPUs
    cpu: IntArray  # (N,): what is left
    mem: IntArray  # (N,)
    milli: IntArray  # (N, G)
    gpu_mem: IntArray  # (N, G)
    used: FloatArray  # (N, G)
    burden: FloatArray  # (N,): what the node's state costs
    version: IntArray  # (N,): another number whenever the node has changed
    seen: IntArray  # (T, N): the version that the two after it were worked out at
    cost: FloatArray  # (T, N): what inserting the type costs
    device: IntArray  # (T, N): the GPU that a request for one would take
    parts: IntArray  # (K,), scratch
    row: IntArray  # (1, G), scratch
    counter: IntArray  # (1,): the last version given
    random: NDArray[np.uint64]  # (1,)
    taken: IntArray  # (I,), scratch: instances that a step has taken out
    old_node: IntArray  # (I,), scratch: where they were
    old_devices: IntArray  # (I,), scratch
    order: IntArray  # (I,), scratch
    key: FloatArray  # (I,), scratch
    nodes: IntArray  # (I,), scratch: nodes to restore
    versions: IntArray  # (I,), scratch


@compiled
def contended(use: float) -> float:
    """The part of a GPU's time that jobs whose uses add up to `use` take from each other."""
    return use - 1.0 if use > 1.0 else 0.0


@compiled
def burden(p: Packing, s: Solution, node: int) -> float:
    """What the state of a node costs: what it strands and how its jobs slow each other."""
    value = 0.0
    if p.stranding > 0.0:
        stranded = node_fragmentation(
            s.cpu[node], s.milli, node, p.models[node], -1, 0, p.typical, p.weight, p.sizes, s.parts
        )
        value = p.stranding * stranded / 1000.0
    if p.contention > 0.0:
        for index in range(s.used.shape[1]):
            value += p.contention * contended(s.used[node, index])
    return value


@compiled
def consider(p: Packing, s: Solution, kind: int, node: int) -> None:
    """Work out what inserting a type on a node costs, and which GPU a request for one would take."""
    s.seen[kind, node] = s.version[node]
    s.cost[kind, node] = NEVER
    request = p.requests[kind]
    if not p.fit[kind, node] or s.cpu[node] < request[CPU] or s.mem[node] < request[MEM]:
        return
    gpus = request[GPUS]
    milli = request[MILLI]
    width = s.milli.shape[1]
    cpu_after = s.cpu[node] - request[CPU]
    left = 0
    able = 0
    for index in range(width):
        left += max(0, s.milli[node, index])
        able += (s.milli[node, index] >= milli) & (s.gpu_mem[node, index] >= request[GPU_MEM])
    if able < gpus:
        return
    tight = TIGHT * (left - gpus * milli) / 1000.0 - s.burden[node] + p.detour[kind, p.kinds[node]]
    if gpus == 1:
        best = NEVER
        for index in range(width):
            has = s.milli[node, index]
            if has < milli or s.gpu_mem[node, index] < request[GPU_MEM]:
                continue
            again = False
            for other in range(index):
                again = again or (
                    s.milli[node, other] == has
                    and s.gpu_mem[node, other] == s.gpu_mem[node, index]
                    and s.used[node, other] == s.used[node, index]
                )
            if again:
                continue
            cost = TIGHT * (has - milli) / 100000.0
            if p.stranding > 0.0:
                stranded = node_fragmentation(
                    cpu_after,
                    s.milli,
                    node,
                    p.models[node],
                    index,
                    has - milli,
                    p.typical,
                    p.weight,
                    p.sizes,
                    s.parts,
                )
                cost += p.stranding * stranded / 1000.0
            if p.contention > 0.0:
                for other in range(width):
                    cost += p.contention * contended(
                        s.used[node, other] + (p.use[kind] if other == index else 0.0)
                    )
            if cost < best:
                best = cost
                s.device[kind, node] = index
        s.cost[kind, node] = best + tight
        return
    cost = 0.0
    wanted = gpus
    for index in range(width):
        has = s.milli[node, index]
        takes = wanted > 0 and has >= milli and s.gpu_mem[node, index] >= request[GPU_MEM]
        wanted -= takes
        s.row[0, index] = has - milli * takes
        if p.contention > 0.0:
            cost += p.contention * contended(s.used[node, index] + p.use[kind] * takes)
    if p.stranding > 0.0:
        stranded = node_fragmentation(
            cpu_after, s.row, 0, p.models[node], -1, 0, p.typical, p.weight, p.sizes, s.parts
        )
        cost += p.stranding * stranded / 1000.0
    s.cost[kind, node] = cost + tight


@compiled
def is_apart(s: Solution, first: int, i: int, node: int) -> bool:
    """Whether a node holds none of the instances from the first of a gang up to this one."""
    apart = True
    for other in range(first, i):
        apart = apart and s.node[other] != node
    return apart


@compiled
def best_place(p: Packing, s: Solution, first: int, i: int, blink: float) -> int:
    """The node where inserting an instance costs least, −1 where it fits nowhere.

    Where it is not the `first` of its gang, nodes with another instance of it are left out.

    Each better node is passed over with the probability `blink` (Christiaens and Vanden Berghe, "Slack Induction
    by String Removals", Transportation Science 54(2), 2020), so that not every try builds the same.
    """
    kind = p.type_of[i]
    best = -1
    least = NEVER
    seen = s.seen[kind]
    cost = s.cost[kind]
    for node in range(s.version.shape[0]):
        if seen[node] != s.version[node]:
            consider(p, s, kind, node)
        if (
            cost[node] < least
            and is_apart(s, first, i, node)
            and (blink == 0.0 or below(s.random, 1000) >= blink * 1000.0)
        ):
            least = cost[node]
            best = node
    return best


@compiled
def touch(p: Packing, s: Solution, node: int) -> None:
    """Note that a node has changed."""
    s.counter[0] += 1
    s.version[node] = s.counter[0]
    s.burden[node] = burden(p, s, node)


@compiled
def apply(p: Packing, s: Solution, i: int, node: int, devices: int, sign: int) -> None:
    """Take (1) or give back (−1) what an instance holds on a node."""
    kind = p.type_of[i]
    request = p.requests[kind]
    s.cpu[node] -= sign * request[CPU]
    s.mem[node] -= sign * request[MEM]
    for index in range(s.milli.shape[1]):
        if (devices >> index) & 1:
            s.milli[node, index] -= sign * request[MILLI]
            s.gpu_mem[node, index] -= sign * request[GPU_MEM]
            s.used[node, index] += sign * p.use[kind]


@compiled
def add(p: Packing, s: Solution, i: int, node: int, devices: int) -> None:
    """Put an instance on these GPUs, which have room for it."""
    s.node[i] = node
    s.devices[i] = devices
    apply(p, s, i, node, devices, 1)
    touch(p, s, node)


@compiled
def remove(p: Packing, s: Solution, i: int) -> None:
    """Take an instance off its node."""
    node = s.node[i]
    apply(p, s, i, node, s.devices[i], -1)
    s.node[i] = -1
    s.devices[i] = 0
    touch(p, s, node)


@compiled
def insert(p: Packing, s: Solution, i: int, node: int) -> None:
    """Put an instance on a node that fits, on the GPUs that cost least."""
    kind = p.type_of[i]
    request = p.requests[kind]
    devices = 0
    if request[GPUS] == 1:
        devices = 1 << s.device[kind, node]
    else:
        wanted = request[GPUS]
        for index in range(s.milli.shape[1]):
            if (
                wanted > 0
                and s.milli[node, index] >= request[MILLI]
                and s.gpu_mem[node, index] >= request[GPU_MEM]
            ):
                devices |= 1 << index
                wanted -= 1
    add(p, s, i, node, devices)


@compiled
def total(p: Packing, s: Solution) -> float:
    """What a solution is worth, in GPUs: what is placed, less what it strands and slows."""
    value = 0.0
    for i in range(s.node.shape[0]):
        if s.node[i] >= 0:
            value += p.worth[i] - p.detour[p.type_of[i], p.kinds[s.node[i]]]
    for node in range(s.burden.shape[0]):
        value -= s.burden[node]
    return value


@compiled
def prepare(p: Packing, s: Solution, like: IntArray) -> None:
    """Work out what every type costs on every node, with nothing placed.

    `like` (N,) names for each node the first one that is in the same state: what holds there holds here.
    """
    for node in range(s.version.shape[0]):
        first = like[node]
        if first == node:
            touch(p, s, node)
            for kind in range(s.cost.shape[0]):
                consider(p, s, kind, node)
        else:
            s.counter[0] += 1
            s.version[node] = s.counter[0]
            s.burden[node] = s.burden[first]
            for kind in range(s.cost.shape[0]):
                s.seen[kind, node] = s.version[node]
                s.cost[kind, node] = s.cost[kind, first]
                s.device[kind, node] = s.device[kind, first]


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
S11, S27, S30, S31 = (np.uint64(bits) for bits in (11, 27, 30, 31))
UNIT = 1.0 / 9007199254740992.0  # 2⁻⁵³


def seeded(*numbers: int) -> NDArray[np.uint64]:
    """(1,): the state of a stream of random numbers of its own for these numbers."""
    state = 0
    for number in numbers:
        state = (state * 6364136223846793005 + number + 1442695040888963407) % 2**64
        state ^= state >> 29
    return np.array([state], dtype=np.uint64)


@compiled
def uniform(state: NDArray[np.uint64]) -> float:
    """The next number from 0 up to 1: splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state[0] += GOLDEN
    z = state[0]
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    z = z ^ (z >> S31)
    return np.float64(z >> S11) * UNIT


@compiled
def below(state: NDArray[np.uint64], bound: int) -> int:
    """The next whole number from 0 up to `bound`."""
    return int(uniform(state) * bound)

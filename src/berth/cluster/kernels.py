"""What Numba compiles for the state of a cluster: taking, giving back, and what fits where.

Letters: N nodes, G GPU slots of the largest node. Every function stands at module level and takes arrays and numbers
only, so that its compiled form is kept on disk between processes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from berth.arrays import BoolArray, IntArray, compiled

# Columns of a request: what a job takes on one node, then the nodes, GPUs, CPU and memory of the whole job, and from
# ALLOWED on the words of bits for the kinds of nodes that it may run on.
GPUS, MILLI, GPU_MEM, CPU, MEM, ALL_NODES, ALL_GPUS, ALL_CPU, ALL_MEM, ALLOWED = range(10)

# Columns of the traits of a node.
KIND_AT, KIND_BIT, UP, MODEL = range(4)


FREE_AT = 3
"""Where in a block what is free begins: CPU, memory, milli and memory of GPUs."""


def block_of(nodes: int, width: int) -> IntArray:
    """Room for the arrays of a cluster of `nodes` nodes, with `width` GPU slots on the largest, all 0."""
    block = np.zeros(FREE_AT + nodes * (14 + 5 * width), dtype=np.int64)
    block[:2] = nodes, width
    return block


class Arrays(NamedTuple):
    """The arrays of a cluster, as they lie in its block."""

    free_cpu: IntArray  # (N,)
    free_mem: IntArray  # (N,)
    free_milli: IntArray  # (N, G); −1 where there is no GPU
    free_gpu_mem: IntArray  # (N, G)
    traits: IntArray  # (N, 4): column of a request with the bit of its kind, that bit, 1 if it is up, its GPU model
    version: IntArray  # (N,): goes up whenever the node changes
    rank: IntArray  # (N,): a permutation; the smaller wins a tie
    held: IntArray  # (N, G + 1): running jobs that hold part of one GPU, one whole GPU, two, …
    jobs: IntArray  # (N,): running jobs on the node
    freed: IntArray  # (N,): the last nodes on which something was given back: number k at place k modulo N
    there: (
        IntArray  # (N,): of slots that are just being taken or given back, how many lie on the node; else 0
    )
    slots: IntArray  # (N·(G + 1), 2): node and index of the slots that are just being taken or given back


def arrays_of(block: IntArray) -> Arrays:
    """Where they lie; what comes before them is N, G and how often something was given back on a node.

    A kernel is given the block, as one array costs a call a tenth of what ten do.
    """
    n = block[0]
    width = block[1]
    a = FREE_AT
    cpu = block[a : a + n]
    a += n
    mem = block[a : a + n]
    a += n
    milli = block[a : a + n * width].reshape((n, width))
    a += n * width
    gpu_mem = block[a : a + n * width].reshape((n, width))
    a += n * width
    traits = block[a : a + n * 4].reshape((n, 4))
    a += n * 4
    version = block[a : a + n]
    a += n
    rank = block[a : a + n]
    a += n
    held = block[a : a + n * (width + 1)].reshape((n, width + 1))
    a += n * (width + 1)
    jobs = block[a : a + n]
    a += n
    freed = block[a : a + n]
    a += n
    there = block[a : a + n]
    a += n
    slots = block[a : a + 2 * n * (width + 1)].reshape((n * (width + 1), 2))
    return Arrays(cpu, mem, milli, gpu_mem, traits, version, rank, held, jobs, freed, there, slots)


compiled_arrays_of = compiled(arrays_of)
"""The same for other kernels."""


def is_allowed(request: IntArray, traits: IntArray, node: int) -> bool:
    """Whether a request may run on nodes of this one's kind: its GPU model, its labels and its reservation."""
    return bool((request[traits[node, KIND_AT]] & traits[node, KIND_BIT]) != 0)


compiled_is_allowed = compiled(is_allowed)


@compiled
def take(
    block: IntArray,  # what is free, written; `slots` has all slots but the first, at their places, no two the same
    requests: IntArray,  # (≥ number + 1, ≥ 10)
    number: int,
    milli: int,
    gpu_mem: int,
    node: int,  # of the first slot
    index: int,
    count: int,  # of slots
) -> bool:
    """Take for a job what a placement says; False, and nothing is taken, where not all of it can be given."""
    arrays = compiled_arrays_of(block)
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, _, _, _, _, there, slots = arrays
    slots[0] = node | 0, index | 0  # whole numbers alone can be or-ed: others are refused
    gpus = requests[number, ALL_GPUS]
    nodes = requests[number, ALL_NODES]
    milli |= 0
    gpu_mem |= 0
    good = count == gpus or (gpus == 0 and count > 0)
    if gpus > 0:
        good = good and 0 < milli <= requests[number, MILLI] and 0 <= gpu_mem <= requests[number, GPU_MEM]
    counted = 0
    parts = 0
    while good and counted < count:
        node = slots[counted, 0]
        index = slots[counted, 1]
        if node < 0 or node >= free_cpu.shape[0]:
            good = False
        elif gpus == 0:
            good = index == -1
        else:
            good = 0 <= index < free_milli.shape[1]
            good = good and free_milli[node, index] >= milli and free_gpu_mem[node, index] >= gpu_mem
        if good:
            parts += there[node] == 0
            there[node] += 1
            counted += 1
    good = good and (nodes == 0 or parts == nodes)
    place = 0
    while good and place < count:  # whether each node can give its part
        node = slots[place, 0]
        place += 1
        part = there[node]
        if part < 0:
            continue
        there[node] = -part  # has been looked at
        good = (
            traits[node, UP] != 0
            and compiled_is_allowed(requests[number], traits, node)
            and (gpus == 0 or nodes == 0 or part * nodes == gpus)
            and free_cpu[node] >= -(-requests[number, ALL_CPU] * part // count)
            and free_mem[node] >= -(-requests[number, ALL_MEM] * part // count)
        )
    if not good:
        for place in range(counted):
            there[slots[place, 0]] = 0
        return False
    for place in range(count):
        there[slots[place, 0]] = abs(there[slots[place, 0]])
    _change(block, arrays, requests, number, milli, gpu_mem, count, 1)
    return True


@compiled
def give_back(
    block: IntArray,
    requests: IntArray,
    number: int,
    milli: int,
    gpu_mem: int,
    node: int,
    index: int,
    count: int,
) -> bool:
    """Give back what `take` took when it was asked the same; nothing where it names slots that there are not."""
    arrays = compiled_arrays_of(block)
    slots = arrays.slots
    slots[0] = node, index
    nodes, width = arrays.free_milli.shape
    for place in range(count):
        if not (0 <= slots[place, 0] < nodes and -1 <= slots[place, 1] < width):
            return False
    for place in range(count):
        arrays.there[slots[place, 0]] += 1
    _change(block, arrays, requests, number, milli, gpu_mem, count, -1)
    return True


@compiled
def _change(
    block: IntArray,
    arrays: Arrays,
    requests: IntArray,
    number: int,
    milli: int,
    gpu_mem: int,
    count: int,
    sign: int,  # 1 to take, −1 to give back
) -> None:
    free_cpu, free_mem, free_milli, free_gpu_mem, _, version, _, held, jobs, freed, there, slots = arrays
    gpus = requests[number, ALL_GPUS]
    for place in range(count):
        node = slots[place, 0]
        if gpus > 0:
            free_milli[node, slots[place, 1]] -= sign * milli
            free_gpu_mem[node, slots[place, 1]] -= sign * gpu_mem
        part = there[node]
        if part == 0:
            continue
        there[node] = 0
        version[node] += 1
        jobs[node] += sign
        free_cpu[node] -= sign * -(-requests[number, ALL_CPU] * part // count)
        free_mem[node] -= sign * -(-requests[number, ALL_MEM] * part // count)
        if gpus > 0:
            held[node, part if milli == 1000 else 0] += sign
        if sign < 0:
            freed[block[2] % freed.shape[0]] = node
            block[2] += 1


@compiled
def fits(
    node: int,
    request: IntArray,  # (≥ 10,)
    free_cpu: IntArray,  # (N,)
    free_mem: IntArray,  # (N,)
    free_milli: IntArray,  # (N, G); −1 where there is no GPU
    free_gpu_mem: IntArray,  # (N, G)
    traits: IntArray,  # (N, 4)
) -> bool:
    """Whether the node can give all that the request takes on one node."""
    if free_cpu[node] < request[CPU] or free_mem[node] < request[MEM] or traits[node, UP] == 0:
        return False
    if not compiled_is_allowed(request, traits, node):
        return False
    wanted = request[GPUS]
    if wanted == 0:
        return True
    # Without branches: what is left is hard to predict, and a wrong guess costs more than the whole row.
    found = 0
    for index in range(free_milli.shape[1]):
        found += (free_milli[node, index] >= request[MILLI]) & (free_gpu_mem[node, index] >= request[GPU_MEM])
    return bool(found >= wanted)


@compiled
def fitting_nodes(
    request: IntArray,
    free_cpu: IntArray,
    free_mem: IntArray,
    free_milli: IntArray,
    free_gpu_mem: IntArray,
    traits: IntArray,
    found: BoolArray,  # (N,), written
) -> None:
    """Whether each node fits."""
    for node in range(free_cpu.shape[0]):
        found[node] = fits(node, request, free_cpu, free_mem, free_milli, free_gpu_mem, traits)


@compiled
def fitting_on(
    block: IntArray,
    requests: IntArray,  # (≥ number + 1, ≥ 10)
    number: int,
    node: int,
    chosen: IntArray,  # (G,), written: the GPUs of the node that one GPU of the request fits on, ascending
) -> int:
    """How many GPUs of a node one GPU of the request fits on; −1 where the node cannot give all that it takes."""
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, _, _, _, _, _, _ = compiled_arrays_of(block)
    request = requests[number]
    if not fits(node, request, free_cpu, free_mem, free_milli, free_gpu_mem, traits):
        return -1
    found = 0
    for index in range(free_milli.shape[1]):
        if free_milli[node, index] >= request[MILLI] and free_gpu_mem[node, index] >= request[GPU_MEM]:
            chosen[found] = index
            found += 1
    return found


@compiled
def fitting_devices(
    request: IntArray,
    free_milli: IntArray,
    free_gpu_mem: IntArray,
    traits: IntArray,
    counts: IntArray,  # (N,), written
) -> int:
    """Count on each node the GPUs that one GPU of the request fits on, CPU and memory left aside; their sum."""
    total = 0
    for node in range(free_milli.shape[0]):
        counts[node] = 0
        if traits[node, UP] == 0 or not compiled_is_allowed(request, traits, node):
            continue
        for index in range(free_milli.shape[1]):
            counts[node] += (free_milli[node, index] >= request[MILLI]) & (
                free_gpu_mem[node, index] >= request[GPU_MEM]
            )
        total += counts[node]
    return total


@compiled
def spread_over_nodes(
    usable: IntArray,  # (N,): GPUs that each node can give; overwritten
    gpus: int,
    rank: IntArray,  # (N,): the smaller wins a tie
    nodes: IntArray,  # (N,), written: the chosen nodes, in the order of their choice
    takes: IntArray,  # (N,), written: how many GPUs each gives
) -> int:
    """Choose the fewest nodes that give these GPUs together; their number, or 0 if all give too few.

    The nodes with the most come first; the last one is the tightest that gives what remains.
    """
    chosen = 0
    missing = gpus
    while missing > 0:
        best = -1
        for node in range(usable.shape[0]):
            have = usable[node]
            if have == 0:
                continue
            if best >= 0:
                best_have = usable[best]
                if have == best_have:
                    if rank[node] > rank[best]:
                        continue
                elif best_have >= missing:
                    if have < missing or have > best_have:
                        continue
                elif have < best_have:
                    continue
            best = node
        if best < 0:
            return 0
        nodes[chosen] = best
        takes[chosen] = min(missing, usable[best])
        missing -= takes[chosen]
        usable[best] = 0
        chosen += 1
    return chosen


@compiled
def spread_slots(
    request: IntArray,
    rank: IntArray,  # (N,): the smaller wins a tie
    free_cpu: IntArray,  # (N,)
    free_mem: IntArray,  # (N,)
    free_milli: IntArray,  # (N, G); −1 where there is no GPU
    free_gpu_mem: IntArray,  # (N, G)
    traits: IntArray,  # (N, 4)
    slots: IntArray,  # (≥ GPUs of the request, 2), written: node and index, the lowest-numbered GPUs that fit
    scratch: IntArray,  # (3, ≥ N), overwritten
) -> int:
    """Choose slots for a request that may spread on as few nodes as will hold it; how many, 0 where none will.

    Each node gives CPU and memory in proportion to its GPUs, and so as many GPUs as it has enough of both for.
    """
    n, width = free_milli.shape
    gpus = request[ALL_GPUS]
    usable, nodes, takes = scratch[0, :n], scratch[1, :n], scratch[2, :n]
    if gpus < 2 or fitting_devices(request, free_milli, free_gpu_mem, traits, usable) < gpus:
        return 0
    for node in range(n):
        if request[ALL_CPU] > 0:
            usable[node] = min(usable[node], free_cpu[node] * gpus // request[ALL_CPU])
        if request[ALL_MEM] > 0:
            usable[node] = min(usable[node], free_mem[node] * gpus // request[ALL_MEM])
    count = 0
    for part in range(spread_over_nodes(usable, gpus, rank, nodes, takes)):
        node = nodes[part]
        left = takes[part]
        for index in range(width):
            fit = free_milli[node, index] >= request[MILLI] and free_gpu_mem[node, index] >= request[GPU_MEM]
            if fit and left > 0:
                slots[count, 0] = node
                slots[count, 1] = index
                count += 1
                left -= 1
    return count


@compiled
def spread_now(
    block: IntArray,
    requests: IntArray,  # (≥ number + 1, ≥ 10)
    number: int,
    slots: IntArray,  # (≥ GPUs of the request, 2), written
    scratch: IntArray,  # (3, ≥ N), overwritten
) -> int:
    """The same where things are free now."""
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, rank, _, _, _, _, _ = compiled_arrays_of(block)
    request = requests[number]
    return spread_slots(request, rank, free_cpu, free_mem, free_milli, free_gpu_mem, traits, slots, scratch)


@compiled
def choose_devices(
    node: int,
    request: IntArray,
    free_milli: IntArray,
    free_gpu_mem: IntArray,
    tightest: bool,
    chosen: IntArray,  # (G,), written: the chosen slots, ascending
) -> None:
    """Choose the GPUs on a node that fits: the lowest-numbered ones, or the tightest (the first on ties)."""
    width = free_milli.shape[1]
    milli = request[MILLI]
    gpu_mem = request[GPU_MEM]
    wanted = request[GPUS]
    if not tightest or milli == 1000:
        taken = 0
        for index in range(width):
            if taken < wanted and free_milli[node, index] >= milli and free_gpu_mem[node, index] >= gpu_mem:
                chosen[taken] = index
                taken += 1
        return
    for taken in range(wanted):
        best = -1
        for index in range(width):
            left = free_milli[node, index]
            if left < milli or free_gpu_mem[node, index] < gpu_mem:
                continue
            if best >= 0 and left >= free_milli[node, best]:
                continue
            used = False
            for before in range(taken):
                used = used or chosen[before] == index
            if not used:
                best = index
        chosen[taken] = best

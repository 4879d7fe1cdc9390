"""What Numba compiles: which node and which of its GPUs suit a request, scored as the policies ask.

Letters: N nodes, G GPU slots of the largest node, T request types in a cache, M typical requests, K different
sizes of them. Every function stands at module level and takes arrays and numbers only, so that its compiled
form is kept on disk between processes. A placement is a number here (`BEST_FIT` …); its formula stands in the
file of its policy and in `node_score`. All of it is one module because Numba notices a change only in the file of the
function that it has kept, not in those of the functions that it calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., object])

__all__ = [
    "ANY_FIT",
    "BEST_FIT",
    "DOT_PRODUCT",
    "FGD",
    "GPU_CLUSTERING",
    "GPU_PACKING",
    "UNFIT",
    "WORST_FIT",
    "Arrays",
    "arrays_of",
    "best_node",
    "block_of",
    "choose_devices",
    "first_node",
    "fits",
    "fitting_devices",
    "fitting_nodes",
    "fitting_on",
    "fragmentation_ratios_pct",
    "give_back",
    "node_fragmentation",
    "numbers",
    "spread_over_nodes",
    "take",
]


def compiled(function: Function) -> Function:
    """Compile a function that allocates nothing, and keep the result on disk.

    Without Numba's reference counts (`_nrt`), which nobody needs who allocates nothing: counting, atomically,
    every array that is passed from one kernel to another took most of the time.
    """
    return njit(cache=True, _nrt=False)(function)  # type: ignore[call-overload, no-any-return]


def released(function: Function) -> Function:
    """Compile like `compiled`; while it runs, other threads of Python may."""
    return njit(cache=True, nogil=True, _nrt=False)(function)  # type: ignore[call-overload, no-any-return]


def numbers(array: IntArray) -> memoryview[int]:
    """The same memory, of which Python reads and writes a number in half of the time that NumPy takes."""
    return memoryview(array.data).cast("B").cast("q", array.shape)


ANY_FIT, BEST_FIT, DOT_PRODUCT, GPU_PACKING, GPU_CLUSTERING, FGD, WORST_FIT = range(7)

# Columns of a request: what a job takes on one node.
GPUS, MILLI, GPU_MEM, CPU, MEM, MODELS, LABELS = range(7)

UNFIT = -1
"""The score of a node that a request does not fit on."""


def block_of(nodes: int, width: int) -> IntArray:
    """Room for the arrays of a cluster of so many nodes, with so many GPU slots on the largest, all 0."""
    block = np.zeros(3 + nodes * (10 + 3 * width), dtype=np.int64)
    block[:2] = nodes, width
    return block


class Arrays(NamedTuple):
    """The arrays of a cluster, as they lie in its block."""

    free_cpu: IntArray  # (N,)
    free_mem: IntArray  # (N,)
    free_milli: IntArray  # (N, G); −1 where there is no GPU
    free_gpu_mem: IntArray  # (N, G)
    traits: IntArray  # (N, 3): bit of the model, bits of the labels, 1 if the node is up
    version: IntArray  # (N,): goes up whenever the node changes
    rank: IntArray  # (N,): a permutation; the smaller wins a tie
    held: IntArray  # (N, G + 1): running jobs that hold part of one GPU, one whole GPU, two, …
    freed: IntArray  # (N,): the last nodes on which something was given back: number k at place k modulo N
    there: (
        IntArray  # (N,): of slots that are just being taken or given back, how many lie on the node; else 0
    )


def arrays_of(block: IntArray) -> Arrays:
    """Where they lie; what comes before them is N, G and how often something was given back on a node.

    A kernel is given the block, as one array costs a call a tenth of what ten do.
    """
    n = block[0]
    width = block[1]
    a = 3
    cpu = block[a : a + n]
    a += n
    mem = block[a : a + n]
    a += n
    milli = block[a : a + n * width].reshape((n, width))
    a += n * width
    gpu_mem = block[a : a + n * width].reshape((n, width))
    a += n * width
    traits = block[a : a + n * 3].reshape((n, 3))
    a += n * 3
    version = block[a : a + n]
    a += n
    rank = block[a : a + n]
    a += n
    held = block[a : a + n * (width + 1)].reshape((n, width + 1))
    a += n * (width + 1)
    freed = block[a : a + n]
    a += n
    return Arrays(cpu, mem, milli, gpu_mem, traits, version, rank, held, freed, block[a : a + n])


_arrays_of = compiled(arrays_of)


@compiled
def take(
    block: IntArray,  # what is free, written
    requests: IntArray,  # (≥ number + 1, 7)
    totals: IntArray,  # (≥ number + 1, 4): GPUs, nodes, CPU and memory of the whole job
    number: int,
    milli: int,
    gpu_mem: int,
    node: int,  # of the first slot
    index: int,
    slots: IntArray,  # (≥ count, 2): node and index of the other slots, at their places; no two the same
    count: int,
) -> bool:
    """Take for a job what a placement says; False, and nothing is taken, where not all of it can be given."""
    slots[0] = node | 0, index | 0  # whole numbers alone can be or-ed: others are refused
    arrays = _arrays_of(block)
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, _, _, _, there = arrays
    gpus = totals[number, 0]
    nodes = totals[number, 1]
    models = requests[number, MODELS]
    labels = requests[number, LABELS]
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
            traits[node, 2] != 0
            and (traits[node, 1] & labels) == labels
            and (gpus == 0 or ((traits[node, 0] & models) != 0 and (nodes == 0 or part * nodes == gpus)))
            and free_cpu[node] >= -(-totals[number, 2] * part // count)
            and free_mem[node] >= -(-totals[number, 3] * part // count)
        )
    if not good:
        for place in range(counted):
            there[slots[place, 0]] = 0
        return False
    for place in range(count):
        there[slots[place, 0]] = abs(there[slots[place, 0]])
    _change(block, arrays, totals, number, milli, gpu_mem, slots, count, 1)
    return True


@compiled
def give_back(
    block: IntArray,
    totals: IntArray,
    number: int,
    milli: int,
    gpu_mem: int,
    node: int,
    index: int,
    slots: IntArray,
    count: int,
) -> bool:
    """Give back what `take` took when it was asked the same; nothing where it names slots that there are not."""
    slots[0] = node, index
    arrays = _arrays_of(block)
    nodes, width = arrays.free_milli.shape
    for place in range(count):
        if not (0 <= slots[place, 0] < nodes and -1 <= slots[place, 1] < width):
            return False
    for place in range(count):
        arrays.there[slots[place, 0]] += 1
    _change(block, arrays, totals, number, milli, gpu_mem, slots, count, -1)
    return True


@compiled
def _change(
    block: IntArray,
    arrays: Arrays,
    totals: IntArray,
    number: int,
    milli: int,
    gpu_mem: int,
    slots: IntArray,
    count: int,
    sign: int,  # 1 to take, −1 to give back
) -> None:
    free_cpu, free_mem, free_milli, free_gpu_mem, _, version, _, held, freed, there = arrays
    gpus = totals[number, 0]
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
        free_cpu[node] -= sign * -(-totals[number, 2] * part // count)
        free_mem[node] -= sign * -(-totals[number, 3] * part // count)
        if gpus > 0:
            held[node, part if milli == 1000 else 0] += sign
        if sign < 0:
            freed[block[2] % freed.shape[0]] = node
            block[2] += 1


@compiled
def fits(
    node: int,
    request: IntArray,  # (7,)
    free_cpu: IntArray,  # (N,)
    free_mem: IntArray,  # (N,)
    free_milli: IntArray,  # (N, G); −1 where there is no GPU
    free_gpu_mem: IntArray,  # (N, G)
    traits: IntArray,  # (N, 3): bit of the model, bits of the labels, 1 if the node is up
) -> bool:
    """Whether the node can give all that the request takes on one node."""
    if free_cpu[node] < request[CPU] or free_mem[node] < request[MEM] or traits[node, 2] == 0:
        return False
    if (traits[node, 1] & request[LABELS]) != request[LABELS]:
        return False
    wanted = request[GPUS]
    if wanted == 0:
        return True
    if (traits[node, 0] & request[MODELS]) == 0:
        return False
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
    requests: IntArray,  # (≥ number + 1, 7)
    number: int,
    node: int,
    chosen: IntArray,  # (G,), written: the GPUs of the node that one GPU of the request fits on, ascending
) -> int:
    """How many GPUs of a node one GPU of the request fits on; −1 where the node cannot give all that it takes."""
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, _, _, _, _ = _arrays_of(block)
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
        if traits[node, 2] == 0 or (traits[node, 0] & request[MODELS]) == 0:
            continue
        if (traits[node, 1] & request[LABELS]) != request[LABELS]:
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
    """Choose as few nodes as give so many GPUs together; how many they are, or 0 where all give too few.

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


@compiled
def node_fragmentation(
    free_cpu: int,
    milli: IntArray,  # (N, G); −1 where there is no GPU
    node: int,
    model_bit: int,
    changed: int,  # a slot to be seen with `changed_milli` left instead, or −1
    changed_milli: int,
    typical: IntArray,  # (M, 5): GPUs, milli, CPU, models, place of its milli among `sizes`
    weight: FloatArray,  # (M,)
    sizes: IntArray,  # (K,): the different milli of typical requests
    parts: IntArray,  # (K,), overwritten
) -> float:
    """GPU milli left on a node that typical requests could not use, in expectation.

    Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
    Descent", USENIX ATC 2023, section 4.1; the sums are kept by class and added in the order of the
    authors' simulator, so that the result is theirs to the last bit.
    """
    width = milli.shape[1]
    total = 0
    largest = 0
    parts[:] = 0
    for index in range(width):
        left = changed_milli if index == changed else milli[node, index]
        if left > 0:
            total += left
            largest = max(largest, left)
            for size in range(sizes.shape[0]):
                parts[size] += left * (left < sizes[size])
    lack_both = 0.0
    lack_gpu = 0.0
    lack_cpu = 0.0
    cpu_fits = 0.0
    cpu_short = 0.0
    no_access = 0.0
    if total == 0:
        return 0.0
    for m in range(typical.shape[0]):
        gpus = typical[m, 0]
        enough_cpu = free_cpu >= typical[m, 2]
        if gpus == 0:
            if enough_cpu:
                cpu_fits += weight[m] * total
            else:
                cpu_short += weight[m] * total
        elif (typical[m, 3] & model_bit) == 0:
            no_access += weight[m] * total
        else:
            enough_gpu = largest >= typical[m, 1]
            if gpus > 1 and enough_gpu:
                fitting = 0
                for index in range(width):
                    left = changed_milli if index == changed else milli[node, index]
                    fitting += left >= typical[m, 1]
                enough_gpu = fitting >= gpus
            if enough_gpu and enough_cpu:
                lack_gpu += weight[m] * parts[typical[m, 4]]
            elif enough_cpu:
                lack_gpu += weight[m] * total
            elif enough_gpu:
                lack_cpu += weight[m] * total
            else:
                lack_both += weight[m] * total
    return lack_both + lack_gpu + lack_cpu + cpu_fits + cpu_short + no_access


@compiled
def fgd_score(
    node: int,
    request: IntArray,
    before: float,
    free_cpu: IntArray,
    free_milli: IntArray,
    free_gpu_mem: IntArray,
    traits: IntArray,
    typical: IntArray,
    weight: FloatArray,
    sizes: IntArray,
    parts: IntArray,
    scratch: IntArray,  # (1, G), overwritten
) -> tuple[int, int]:
    """The FGD score of a node that fits, and the slot that a request for one GPU should take.

    100·sigmoid((before − after)/1000), truncated (Weng et al. 2023, section 4.2 and their simulator). GPUs
    with as much left as one before are not scored again: they give the same score and the first one wins.
    """
    width = free_milli.shape[1]
    cpu_after = free_cpu[node] - request[CPU]
    bit = traits[node, 0]
    milli = request[MILLI]
    gpus = request[GPUS]
    if gpus == 1:
        best = -1
        best_index = -1
        for index in range(width):
            left = free_milli[node, index]
            if left < milli or free_gpu_mem[node, index] < request[GPU_MEM]:
                continue
            seen = False
            for other in range(index):
                seen = seen or (
                    free_milli[node, other] == left and free_gpu_mem[node, other] >= request[GPU_MEM]
                )
            if seen:
                continue
            after = node_fragmentation(
                cpu_after, free_milli, node, bit, index, left - milli, typical, weight, sizes, parts
            )
            score = int(100.0 / (1.0 + math.exp(-(before - after) / 1000.0)))
            if score > best:
                best = score
                best_index = index
        return best, best_index
    wanted = gpus
    for index in range(width):
        scratch[0, index] = free_milli[node, index]
        if wanted > 0 and scratch[0, index] >= milli and free_gpu_mem[node, index] >= request[GPU_MEM]:
            scratch[0, index] -= milli
            wanted -= 1
    after = node_fragmentation(cpu_after, scratch, 0, bit, -1, 0, typical, weight, sizes, parts)
    return int(100.0 / (1.0 + math.exp(-(before - after) / 1000.0))), -1


@compiled
def node_score(
    placement: int,
    node: int,
    request: IntArray,
    free_cpu: IntArray,
    free_milli: IntArray,
    free_gpu_mem: IntArray,
    held: IntArray,  # (N, G + 1): running jobs that hold part of one GPU, one whole GPU, two, …
    largest: IntArray,  # (2,): CPU and GPU milli of the largest node; a node of unknown CPU counts as it
    chosen: IntArray,  # (G,), overwritten
) -> int:
    """The integer score of a node that fits, for the placements without a model of typical requests.

    The formulas are those of the simulator of Weng et al. 2023; each policy's file writes its own out.
    """
    row = free_milli[node]
    gpu_left = 0
    for index in range(row.shape[0]):
        if row[index] > 0:
            gpu_left += row[index]
    gpus = request[GPUS]
    gpu_request = gpus * request[MILLI]
    if placement == BEST_FIT:
        cpu_part = min(1.0, (free_cpu[node] - request[CPU]) / largest[0])
        gpu_part = (gpu_left - gpu_request) / largest[1]
        return int(100.0 * (1.0 - (0.5 * cpu_part + 0.5 * gpu_part)))
    if placement == WORST_FIT:
        cpu_part = min(1.0, (free_cpu[node] - request[CPU]) / largest[0])
        gpu_part = (gpu_left - gpu_request) / largest[1]
        return int(100.0 * (0.5 * cpu_part + 0.5 * gpu_part))
    if placement == DOT_PRODUCT:
        cpu_part = min(1.0, free_cpu[node] / largest[0]) * min(1.0, request[CPU] / largest[0])
        gpu_part = (gpu_left / largest[1]) * (gpu_request / largest[1])
        return int(100.0 * (1.0 - (cpu_part + gpu_part) / 2.0))
    if gpus == 0:
        return 0
    if placement == GPU_PACKING:
        present = 0
        for index in range(row.shape[0]):
            if row[index] >= 0:
                present += 1
        if gpu_left == 1000 * present:
            return int(max(33 - present, present))
        choose_devices(node, request, free_milli, free_gpu_mem, True, chosen)
        free = 0
        ratio = 0
        for taken in range(gpus):
            left = row[chosen[taken]]
            if left == 1000:
                free += 1
            ratio += left * 100 // 1000
        if free > 0:
            return max(50 - free, 33)
        return max(100 - ratio // 10, 50)
    base = 25 * (largest[1] - gpu_left) // largest[1]
    kinds = 0
    for kind in range(held.shape[1]):
        if held[node, kind] > 0:
            kinds += 1
    if held[node, gpus if request[MILLI] == 1000 else 0] > 0:
        return int(base + (75 if kinds == 1 else 50))
    return int(base + (25 if kinds == 0 else 0))


@compiled
def best_node(
    placement: int,
    block: IntArray,
    requests: IntArray,  # (≥ number + 1, 7)
    number: int,
    row: int,
    largest: IntArray,
    typical: IntArray,
    weight: FloatArray,
    sizes: IntArray,
    parts: IntArray,
    fragmentation: FloatArray,  # (N,): of each node at the version in `fragmentation_seen`, written
    fragmentation_seen: IntArray,  # (N,): 1 + the version, written
    all_seen: IntArray,  # (T, N): 1 + the version that the score was made from, written
    all_scores: IntArray,  # (T, N): score, or UNFIT, written
    all_devices: IntArray,  # (T, N): on the node returned, the slot for a request for one GPU, written
    scratch: IntArray,  # (1, G), overwritten
) -> int:
    """The node with the highest score for request `number`, or −1 where none fits; its scores are in row `row`.

    Only nodes that have changed are scored again, so that the row is up to date for every node afterwards.
    """
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, version, rank, held, _, _ = _arrays_of(block)
    request = requests[number]
    seen = all_seen[row]
    scores = all_scores[row]
    devices = all_devices[row]
    best = -1
    best_score = UNFIT
    for node in range(version.shape[0]):
        if seen[node] != version[node] + 1:
            seen[node] = version[node] + 1
            if not fits(node, request, free_cpu, free_mem, free_milli, free_gpu_mem, traits):
                scores[node] = UNFIT
            elif placement == FGD:
                if fragmentation_seen[node] != version[node] + 1:
                    fragmentation_seen[node] = version[node] + 1
                    fragmentation[node] = node_fragmentation(
                        free_cpu[node],
                        free_milli,
                        node,
                        traits[node, 0],
                        -1,
                        0,
                        typical,
                        weight,
                        sizes,
                        parts,
                    )
                scores[node], devices[node] = fgd_score(
                    node,
                    request,
                    fragmentation[node],
                    free_cpu,
                    free_milli,
                    free_gpu_mem,
                    traits,
                    typical,
                    weight,
                    sizes,
                    parts,
                    scratch,
                )
            elif placement == ANY_FIT:
                scores[node] = 0
            else:
                scores[node] = node_score(
                    placement, node, request, free_cpu, free_milli, free_gpu_mem, held, largest, scratch[0]
                )
        score = scores[node]
        if score > best_score or (score == best_score and best >= 0 and rank[node] < rank[best]):
            best = node
            best_score = score
    if best >= 0 and request[GPUS] == 1 and placement != FGD:
        choose_devices(best, request, free_milli, free_gpu_mem, True, scratch[0])
        devices[best] = scratch[0, 0]
    return best


@compiled
def first_node(
    block: IntArray,
    requests: IntArray,  # (≥ number + 1, 7)
    number: int,
    row: int,
    begins: IntArray,  # (T, 2): no node before this one fitted, and how often was given back until then; written
    all_unfit: IntArray,  # (T, N): 1 + the version at which the node did not fit, written
    chosen: IntArray,  # (G,), written: the slots on the node returned, ascending
) -> int:
    """The first node that request `number` fits on, or −1 where none does; what it has seen is in row `row`."""
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, version, _, _, freed, _ = _arrays_of(block)
    request = requests[number]
    unfit = all_unfit[row]
    nodes = version.shape[0]
    first = begins[row, 0] if block[2] - begins[row, 1] < nodes else 0
    if first > 0:
        for back in range(begins[row, 1], block[2]):
            first = min(first, freed[back % nodes])
    begins[row, 1] = block[2]
    for node in range(first, nodes):
        if unfit[node] == version[node] + 1:
            continue
        if fits(node, request, free_cpu, free_mem, free_milli, free_gpu_mem, traits):
            choose_devices(node, request, free_milli, free_gpu_mem, False, chosen)
            begins[row, 0] = node
            return node
        unfit[node] = version[node] + 1
    begins[row, 0] = nodes
    return -1


@compiled
def fragmentation_ratios_pct(
    cpu: IntArray,  # (N,): CPU of each node, empty; overwritten
    milli: IntArray,  # (N, G): GPU milli of each slot, empty, −1 where there is no GPU; overwritten
    bits: IntArray,  # (N,): bit of each node's model
    typical: IntArray,  # (M, 5)
    weight: FloatArray,  # (M,)
    sizes: IntArray,  # (K,)
    parts: IntArray,  # (K,), overwritten
    by_node: FloatArray,  # (N,), overwritten
    step_node: IntArray,  # (S,): the node that each step takes from, −1 for a step that takes nothing
    step_cpu: IntArray,  # (S,)
    step_milli: IntArray,  # (S,): milli taken of the slot
    step_slot: IntArray,  # (S,): the slot that the step takes from, −1 for none
    ratios: FloatArray,  # (S,), written
) -> None:
    """100·fragmentation/idle GPU milli over the cluster after each step of a history in which nobody leaves."""
    nodes, width = milli.shape
    idle = 0
    for node in range(nodes):
        by_node[node] = node_fragmentation(
            cpu[node], milli, node, bits[node], -1, 0, typical, weight, sizes, parts
        )
        for index in range(width):
            idle += max(0, milli[node, index])
    for step in range(step_node.shape[0]):
        node = step_node[step]
        if node >= 0:
            cpu[node] -= step_cpu[step]
            if step_slot[step] >= 0:
                milli[node, step_slot[step]] -= step_milli[step]
                idle -= step_milli[step]
            by_node[node] = node_fragmentation(
                cpu[node], milli, node, bits[node], -1, 0, typical, weight, sizes, parts
            )
        # Four sums at a time: one alone would wait for each addition to end before the next.
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for other in range(0, nodes - 3, 4):
            first += by_node[other]
            second += by_node[other + 1]
            third += by_node[other + 2]
            fourth += by_node[other + 3]
        for other in range(nodes - nodes % 4, nodes):
            first += by_node[other]
        ratios[step] = 100.0 * (first + second + third + fourth) / idle if idle > 0 else 0.0

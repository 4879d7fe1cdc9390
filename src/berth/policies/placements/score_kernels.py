"""What Numba compiles for placements: which node and which of its GPUs suit a request best, by formula.

Letters: N nodes, G GPU slots of the largest node, T request types in a cache, M typical requests of A columns, K
different sizes of them. A placement is a number here (`BEST_FIT` …); its formula stands in the docstring of its class
and in `node_score`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from berth.arrays import FloatArray, IntArray, compiled
from berth.cluster.kernels import CPU, GPU_MEM, GPUS, MILLI, MODEL, choose_devices, compiled_arrays_of, fits

ANY_FIT, BEST_FIT, DOT_PRODUCT, GPU_PACKING, GPU_CLUSTERING, FGD, WORST_FIT = range(7)

UNFIT = -1
"""The score of a node that a request does not fit on."""

ALL_UNFIT = -1
"""A word of `first_node` in which the bits of all 64 nodes are set."""

SIZES = 8
"""How many numbers stand before the arrays of `Kept`: T, N, G, M, A, K, and CPU and GPU milli of the largest node."""

MODELS = 4
"""The first column of a typical request with bits for the GPU models that it may run on; each has `MODEL_BITS`."""

MODEL_BITS = 32
"""A power of two: kernels divide by it with a shift."""


class ScoreCache(NamedTuple):
    """What a placement by score keeps of a cluster, as it lies in one array."""

    typical: IntArray  # (M, A): GPUs, milli, CPU, place of its milli among `sizes`, and from `MODELS` on its models
    sizes: IntArray  # (K,): the different milli of typical requests
    parts: IntArray  # (K,), overwritten
    scratch: IntArray  # (1, G), overwritten
    fragmentation_seen: IntArray  # (N,): 1 + the version that the fragmentation was made from
    seen: IntArray  # (T, N): 1 + the version that the score was made from
    scores: IntArray  # (T, N): score, or UNFIT
    devices: IntArray  # (T, N): the slot for a request for one GPU, on the node that was the best


def cache_size(rows: int, nodes: int, width: int, typical: int, columns: int, sizes: int) -> int:
    """How many numbers a `ScoreCache` of these T, N, G, M, A and K takes."""
    return SIZES + columns * typical + 2 * sizes + width + nodes * (1 + 3 * rows)


def cache_in(cache: IntArray) -> ScoreCache:
    """Where the arrays lie; a kernel is given one array, as each costs a call a tenth of a microsecond."""
    rows, nodes, width, typical, columns, sizes = cache[0], cache[1], cache[2], cache[3], cache[4], cache[5]
    a = SIZES
    requests = cache[a : a + columns * typical].reshape((typical, columns))
    a += columns * typical
    different = cache[a : a + sizes]
    a += sizes
    parts = cache[a : a + sizes]
    a += sizes
    scratch = cache[a : a + width].reshape((1, width))
    a += width
    fragmentation_seen = cache[a : a + nodes]
    a += nodes
    seen = cache[a : a + rows * nodes].reshape((rows, nodes))
    a += rows * nodes
    scores = cache[a : a + rows * nodes].reshape((rows, nodes))
    a += rows * nodes
    devices = cache[a : a + rows * nodes].reshape((rows, nodes))
    return ScoreCache(requests, different, parts, scratch, fragmentation_seen, seen, scores, devices)


compiled_cache_in = compiled(cache_in)


@compiled
def node_fragmentation(
    free_cpu: int,
    milli: IntArray,  # (N, G); −1 where there is no GPU
    node: int,
    model: int,  # number of the GPU model of the node
    changed: int,  # a slot to be seen with `changed_milli` left instead, or −1
    changed_milli: int,
    typical: IntArray,  # (M, A)
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
    word = MODELS + (model >> 5)
    bit = model & 31
    for m in range(typical.shape[0]):
        gpus = typical[m, 0]
        enough_cpu = free_cpu >= typical[m, 2]
        if gpus == 0:
            if enough_cpu:
                cpu_fits += weight[m] * total
            else:
                cpu_short += weight[m] * total
        elif (typical[m, word] >> bit) & 1 == 0:
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
                lack_gpu += weight[m] * parts[typical[m, 3]]
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
    model = traits[node, MODEL]
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
                cpu_after, free_milli, node, model, index, left - milli, typical, weight, sizes, parts
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
    after = node_fragmentation(cpu_after, scratch, 0, model, -1, 0, typical, weight, sizes, parts)
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
    requests: IntArray,  # (≥ number + 1, ≥ 10)
    number: int,
    row: int,
    cache: IntArray,  # a `ScoreCache`, written
    real: FloatArray,  # (M + N,): the weight of each typical request, and the fragmentation of each node, written
) -> int:
    """The node with the highest score for request `number`, or −1 where none fits; its scores are in row `row`.

    Only nodes that have changed are scored again, so that the row is up to date for every node afterwards.
    """
    arrays = compiled_arrays_of(block)
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, version, rank, held, _, _, _, _ = arrays
    typical, sizes, parts, scratch, fragmentation_seen, all_seen, all_scores, all_devices = compiled_cache_in(
        cache
    )
    largest = cache[SIZES - 2 : SIZES]
    weight = real[: typical.shape[0]]
    fragmentation = real[typical.shape[0] :]
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
                        traits[node, MODEL],
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
    if best >= 0 and (request[GPUS] > 1 or (request[GPUS] == 1 and placement != FGD)):
        choose_devices(best, request, free_milli, free_gpu_mem, True, scratch[0])
        devices[best] = scratch[0, 0]
    return best


@compiled
def first_node(
    block: IntArray,
    requests: IntArray,  # (≥ number + 1, ≥ 10)
    number: int,
    row: int,
    all_seen: IntArray,  # (T, G + 2 + N/64), written: of a request, the slots on the node returned, ascending; no node
    # before this one fitted; how often was given back until then; a bit a node, set if it did not fit
) -> int:
    """The first node that request `number` fits on, or −1 where none does; what it has seen is in row `row`."""
    arrays = compiled_arrays_of(block)
    free_cpu, free_mem, free_milli, free_gpu_mem, traits, _, _, _, _, freed, _, _ = arrays
    request = requests[number]
    nodes, width = free_milli.shape
    chosen = all_seen[row, :width]
    seen = all_seen[row, width:]
    unfit = seen[2:]
    first = seen[0]
    if block[2] - seen[1] < nodes:
        for back in range(seen[1], block[2]):
            node = freed[back % nodes]
            unfit[node >> 6] &= ~(1 << (node & 63))
            first = min(first, node)
    else:
        unfit[:] = 0
        first = 0
    seen[1] = block[2]
    word = first >> 6
    while word << 6 < nodes:
        if unfit[word] != ALL_UNFIT:
            for node in range(word << 6, min(nodes, (word + 1) << 6)):
                if (unfit[word] >> (node & 63)) & 1:
                    continue
                if fits(node, request, free_cpu, free_mem, free_milli, free_gpu_mem, traits):
                    choose_devices(node, request, free_milli, free_gpu_mem, False, chosen)
                    seen[0] = node
                    return node
                unfit[word] |= 1 << (node & 63)
        word += 1
    seen[0] = nodes
    return -1

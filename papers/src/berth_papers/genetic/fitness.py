"""The fitness of Kwon and Bahn 2024, compiled: what the genes of a solution add to GPU utilisation, in their order.

Letters: I instances, T request types, N nodes. `genes` (I,) has the node of each instance, in the order of the queue;
`parts` (I,) how many instances its job has, at the first one, and 0 at the others.
"""

from __future__ import annotations

from berth.arrays import BoolArray, IntArray, compiled
from berth.cluster.kernels import CPU, GPU_MEM, GPUS, MEM, MILLI


@compiled
def take(node: int, request: IntArray, free: IntArray, width: int) -> int:
    """Take what a request asks for from a node: the bits of the GPUs taken, or −1 where it does not fit.

    A row of `free` (N, 2 + width, or 2 + 2·width where GPU memory matters) is CPU, memory, GPU milli, GPU memory.
    A part of a GPU is taken of the GPU with the least left, whole ones lowest number first.
    """
    row = free[node]
    if row[0] < request[CPU] or row[1] < request[MEM]:
        return -1
    wanted = request[GPUS]
    milli = request[MILLI]
    with_memory = row.shape[0] > 2 + width
    bits = 0
    if wanted == 1:
        least = 1 << 40
        best = -1
        for index in range(width):
            left = row[2 + index]
            fits = left >= milli and left < least
            if with_memory:
                fits = fits and row[2 + width + index] >= request[GPU_MEM]
            if fits:
                least = left
                best = index
        if best < 0:
            return -1
        bits = 1 << best
        row[2 + best] -= milli
        if with_memory:
            row[2 + width + best] -= request[GPU_MEM]
    elif wanted > 1:
        for _ in range(wanted):
            best = -1
            for index in range(width):
                left = row[2 + index]
                if left < milli or (bits >> index) & 1:
                    continue
                if with_memory and row[2 + width + index] < request[GPU_MEM]:
                    continue
                if best < 0 or left < row[2 + best]:
                    best = index
            if best < 0:
                return -1
            bits |= 1 << best
        for index in range(width):
            if (bits >> index) & 1:
                row[2 + index] -= milli
                if with_memory:
                    row[2 + width + index] -= request[GPU_MEM]
    row[0] -= request[CPU]
    row[1] -= request[MEM]
    return bits


@compiled
def give_back(node: int, request: IntArray, free: IntArray, width: int, bits: int) -> None:
    """Undo a `take` that took the GPUs with these bits."""
    row = free[node]
    row[0] += request[CPU]
    row[1] += request[MEM]
    for index in range(width):
        if (bits >> index) & 1:
            row[2 + index] += request[MILLI]
            if row.shape[0] > 2 + width:
                row[2 + width + index] += request[GPU_MEM]


@compiled
def take_gang(
    begin: int,
    count: int,
    genes: IntArray,
    request: IntArray,
    fits: BoolArray,  # (N,)
    free: IntArray,
    width: int,
    devices: IntArray,  # (I,), written: the bits of the GPUs that its parts take
) -> bool:
    """Take what the parts of a gang ask for from their nodes; nothing where one does not fit, or two share a node."""
    for part in range(begin, begin + count):
        node = genes[part]
        fitting = fits[node]
        for other in range(begin, part):
            fitting = fitting and genes[other] != node
        bits = take(node, request, free, width) if fitting else -1
        if bits < 0:
            for other in range(begin, part):
                give_back(genes[other], request, free, width, devices[other])
            return False
        devices[part] = bits
    return True


@compiled
def evaluate_gangs(
    genes: IntArray,  # (I,)
    parts: IntArray,  # (I,)
    type_of: IntArray,  # (I,)
    requests: IntArray,  # (T, 7)
    fit: BoolArray,  # (T, N)
    free: IntArray,  # (N, W)
    width: int,
    scale: float,
    work: IntArray,  # (N, W), overwritten
    devices: IntArray,  # (I,), overwritten
) -> float:
    """What `evaluate` says, of a solution with gangs: a gang fits whole, or none of its instances does."""
    for node in range(free.shape[0]):
        for column in range(free.shape[1]):
            work[node, column] = free[node, column]
    placed = 0
    misfits = 0
    for i in range(genes.shape[0]):
        request = requests[type_of[i]]
        if take_gang(i, parts[i], genes, request, fit[type_of[i]], work, width, devices):
            placed += parts[i] * request[GPUS] * request[MILLI]
        else:
            misfits += parts[i]
    return placed * scale - misfits


@compiled
def evaluate(
    genes: IntArray,  # (I,)
    parts: IntArray,  # (I,), or (0,) where there are no gangs
    type_of: IntArray,  # (I,)
    requests: IntArray,  # (T, 7)
    fit: BoolArray,  # (T, N)
    free: IntArray,  # (N, W): rows as `take` wants them
    width: int,
    scale: float,  # fitness of one GPU milli placed
    stamp: IntArray,  # (N + 1,), kept between calls: the last one counts the calls
    first: IntArray,  # (N,), overwritten: the only instance on a node so far, or −1 once the node is worked out
    work: IntArray,  # (N, W), overwritten
    devices: IntArray,  # (I,), overwritten where there are gangs
) -> float:
    """The fitness of a solution: what its instances add to GPU utilisation, and −1 for each that does not fit.

    Instances take in the order of the queue. A node's state is only worked out once a second instance comes to
    it: whether one alone fits is known.
    """
    if parts.shape[0]:
        return evaluate_gangs(genes, parts, type_of, requests, fit, free, width, scale, work, devices)
    stamp[-1] += 1
    now = stamp[-1]
    placed = 0
    misfits = 0
    for i in range(genes.shape[0]):
        node = genes[i]
        kind = type_of[i]
        if not fit[kind, node]:
            misfits += 1
            continue
        if stamp[node] != now:
            stamp[node] = now
            first[node] = kind
        else:
            if first[node] >= 0:
                for column in range(free.shape[1]):
                    work[node, column] = free[node, column]
                take(node, requests[first[node]], work, width)
                first[node] = -1
            if take(node, requests[kind], work, width) < 0:
                misfits += 1
                continue
        placed += requests[kind, GPUS] * requests[kind, MILLI]
    return placed * scale - misfits


@compiled
def decode(
    genes: IntArray,
    parts: IntArray,  # (I,)
    type_of: IntArray,
    requests: IntArray,
    fit: BoolArray,  # (T, N)
    free: IntArray,  # (N, W), overwritten
    width: int,
    node_of: IntArray,  # (I,), written: the node, −1 where it does not fit
    devices: IntArray,  # (I,), written: the bits of its GPUs
) -> None:
    """Say what a solution places where."""
    for i in range(genes.shape[0]):
        node_of[i] = -1
    for i in range(genes.shape[0]):
        kind = type_of[i]
        if take_gang(i, parts[i], genes, requests[kind], fit[kind], free, width, devices):
            for part in range(i, i + parts[i]):
                node_of[part] = genes[part]
    for i in range(genes.shape[0]):
        if node_of[i] < 0:
            devices[i] = 0

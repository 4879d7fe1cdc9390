"""The genetic algorithm of Kwon and Bahn 2024, compiled: its fitness and its operators.

Letters: P solutions, I instances, T request types, N nodes, G GPU slots of the largest node. A solution is a
row of `genes` (P, I): the node of each instance, in the order of the queue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from berth.kernels import CPU, GPU_MEM, GPUS, MEM, MILLI, BoolArray, FloatArray, Function, IntArray, compiled

__all__ = ["below", "decode", "evaluate", "evolve", "released", "seeded"]

ABOVE, OTHERS = 0, 1
"""Places of the two mutation probabilities: for solutions above the mean fitness, and for the others."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
S11, S27, S30, S31 = (np.uint64(bits) for bits in (11, 27, 30, 31))
UNIT = 1.0 / 9007199254740992.0  # 2⁻⁵³


def released(function: Function) -> Function:
    """Compile like `compiled`; while it runs, other threads of Python may."""
    compile_it: Any = njit
    made: Function = compile_it(cache=True, nogil=True, _nrt=False)(function)
    return made


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


@compiled
def tournament(
    fitness: FloatArray,  # (P,)
    size: int,
    shuffled: IntArray,  # (P,): a permutation, shuffled further
    state: NDArray[np.uint64],
) -> int:
    """The fittest of so many solutions drawn without repetition."""
    best = -1
    count = fitness.shape[0]
    for drawn in range(size):
        other = drawn + below(state, count - drawn)
        shuffled[drawn], shuffled[other] = shuffled[other], shuffled[drawn]
        if best < 0 or fitness[shuffled[drawn]] > fitness[best]:
            best = shuffled[drawn]
    return best


@compiled
def crossover(mother: IntArray, father: IntArray, point: int, child: IntArray) -> None:
    """One-point: the mother's genes before the point, the father's from there on."""
    for i in range(child.shape[0]):
        child[i] = mother[i] if i < point else father[i]


@compiled
def mutate(
    child: IntArray,
    probability: float,
    type_of: IntArray,
    starts: IntArray,  # (T + 1,)
    candidates: IntArray,
    state: NDArray[np.uint64],
) -> None:
    """Give each gene, with this probability, another of the nodes that have room for its instance."""
    for i in range(child.shape[0]):
        if uniform(state) < probability:
            begin = starts[type_of[i]]
            child[i] = candidates[begin + below(state, starts[type_of[i] + 1] - begin)]


@released
def evolve(
    generations: int,
    genes: IntArray,  # (P, I): the population, written
    fitness: FloatArray,  # (P,), written
    children: IntArray,  # (C, I), overwritten
    child_fitness: FloatArray,  # (C,), overwritten
    tournament_size: int,
    mutation: FloatArray,  # (2,): probability above the mean, and for the others
    state: NDArray[np.uint64],
    starts: IntArray,
    candidates: IntArray,
    parts: IntArray,
    type_of: IntArray,
    requests: IntArray,
    fit: BoolArray,
    free: IntArray,
    width: int,
    scale: float,
    stamp: IntArray,
    first: IntArray,
    work: IntArray,
    devices: IntArray,
    shuffled: IntArray,  # (P,), kept
    order: IntArray,  # (P,), kept: a permutation, fittest first after each generation
    history: FloatArray,  # (generations, 2), written: best and mean fitness after each
) -> None:
    """Let so many generations pass; each replaces the C least fit solutions by children."""
    count = genes.shape[0]
    born = children.shape[0]
    length = genes.shape[1]
    for generation in range(generations):
        mean = 0.0
        for p in range(count):
            mean += fitness[p] / count
        for c in range(born):
            mother = tournament(fitness, tournament_size, shuffled, state)
            father = tournament(fitness, tournament_size, shuffled, state)
            point = 1 + below(state, length - 1) if length > 1 else 0
            child = children[c]
            crossover(genes[mother], genes[father], point, child)
            value = fitness[mother]
            if father != mother:
                value = evaluate(
                    child, parts, type_of, requests, fit, free, width, scale, stamp, first, work, devices
                )
            mutate(child, mutation[0 if value > mean else 1], type_of, starts, candidates, state)
            child_fitness[c] = evaluate(
                child, parts, type_of, requests, fit, free, width, scale, stamp, first, work, devices
            )
        sort_by_fitness(fitness, order)
        for c in range(born):
            worst = order[count - 1 - c]
            for i in range(length):
                genes[worst, i] = children[c, i]
            fitness[worst] = child_fitness[c]
        sort_by_fitness(fitness, order)
        mean = 0.0
        for p in range(count):
            mean += fitness[p] / count
        history[generation, 0] = fitness[order[0]]
        history[generation, 1] = mean


@compiled
def sort_by_fitness(fitness: FloatArray, order: IntArray) -> None:
    """Put a permutation that is nearly so into order, the fittest first; equals stay as they were."""
    for at in range(1, order.shape[0]):
        moved = order[at]
        place = at
        while place > 0 and fitness[order[place - 1]] < fitness[moved]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = moved

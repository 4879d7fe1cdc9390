"""The genetic operators of Kwon and Bahn 2024, compiled.

Letters: P solutions, C children, I instances, T request types, N nodes. A solution is a row of `genes` (P, I): the
node of each instance, in the order of the queue.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, FloatArray, IntArray, compiled, released
from berth.policies.genetic.packing_kernels import below, uniform
from berth_papers.genetic.fitness import evaluate


@compiled
def tournament(
    fitness: FloatArray,  # (P,)
    size: int,
    shuffled: IntArray,  # (P,): a permutation, shuffled further
    state: NDArray[np.uint64],
) -> int:
    """The fittest of `size` solutions drawn without repetition."""
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
    """Let the generations pass; each replaces the C least fit solutions by children."""
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

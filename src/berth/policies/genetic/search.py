"""The search of `genetic`: solutions that are bettered side by side, seeded by heuristics, on arrays.

Letters as in `packing_kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.cluster import Cluster
from berth.cluster.kernels import CPU, GPUS, MILLI
from berth.policies.genetic.batch import Batch
from berth.policies.genetic.nodes import numbers_among, numbers_of, on_nodes, worth_a_look
from berth.policies.genetic.packing_kernels import Packing, Solution, add, prepare
from berth.policies.genetic.random_kernels import seeded
from berth.policies.genetic.scarcity import detours, kinds_of
from berth.policies.genetic.search_kernels import BY_COST, BY_FIRST, BY_ROOM, build, improve
from berth.policies.genetic.settings import GeneticSettings
from berth.policies.genetic.time_budget import TimeBudget
from berth.policies.placements.scored import Typical
from berth.policies.protocol import Progress

SMALL = 64
"""Batches of fewer instances are searched in one thread: handing over would cost more than it saves."""


NEGLIGIBLE = 0.01
"""A solution that is better by less, in GPUs, does not keep the search going."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best that a search has found."""

    node: IntArray  # (I,): the node of each instance as a number of the batch, −1: not placed
    devices: IntArray  # (I,): the bits of its GPUs
    value: float
    """What it is worth, in GPUs."""
    history: FloatArray
    """(rounds + 1, 2): the best and the mean worth, from the first solutions on."""
    others: IntArray
    """(P, I): the nodes in all solutions, to begin the next search with."""
    interrupted: bool = False
    """Whether it was stopped before its time."""


def packing_of(
    batch: Batch, cluster: Cluster, typical: Typical, settings: GeneticSettings, now_ms: int = 0
) -> Packing:
    """What the kernels need to know of a batch."""
    weights, profiles = settings.weights, settings.profiles
    use = np.array([profiles.get(job.application, 0.0) if job.gpus else 0.0 for job in batch.jobs])
    kinds, type_of = np.unique(np.stack([batch.type_of, use]), axis=1, return_inverse=True)
    of_batch = kinds[0].astype(np.int64)
    requests = np.ascontiguousarray(batch.requests[of_batch])
    milli = requests[:, GPUS] * requests[:, MILLI]
    type_of = np.ascontiguousarray(type_of.reshape(-1), dtype=np.int64)
    waited_h = np.array([(now_ms - job.submit_ms) / 3_600_000 for job in batch.jobs])
    together = np.array([max(1, job.nodes) for job in batch.jobs])
    gpus = np.maximum(requests[type_of, GPUS], 1)
    started = weights.waiting * gpus * (1 + np.maximum(waited_h, 0)) + weights.jobs / together
    worth = weights.utilisation * milli[type_of] / 1000 + started
    node_kinds = kinds_of(cluster)
    top = np.argsort(-typical.weight, kind="stable")[: settings.typical]
    weight = typical.weight[top]
    return Packing(
        parts=batch.parts,
        type_of=type_of,
        requests=requests,
        use=np.ascontiguousarray(kinds[1]),
        worth=worth,
        size=together * (worth + 1e-6 * requests[type_of, CPU]),
        fit=np.ascontiguousarray(batch.fit[of_batch]),
        cpu=batch.free_cpu,
        mem=batch.free_mem,
        milli=batch.free_milli,
        gpu_mem=batch.free_gpu_mem,
        used=_used(batch, cluster, profiles),
        models=np.ascontiguousarray(batch.models),
        kinds=node_kinds.of_node[batch.nodes],
        typical=np.ascontiguousarray(typical.requests[top]),
        weight=weight / max(weight.sum(), 1e-300),
        sizes=typical.sizes,
        stranding=float(weights.fragmentation) if len(weight) else 0.0,
        contention=float(weights.interference) if profiles else 0.0,
        detour=weights.scarcity * detours(batch.jobs, type_of, requests, typical, cluster, node_kinds),
    )


def _used(batch: Batch, cluster: Cluster, profiles: Mapping[str, float]) -> FloatArray:
    """(N, G): how much the running jobs use each GPU."""
    used = np.zeros(batch.free_milli.shape)
    if profiles:
        place = {number: at for at, number in enumerate(batch.nodes.tolist())}
        for run in cluster.running.values():
            for node, index in run.slots:
                if index >= 0 and node in place:
                    used[place[node], index] += profiles.get(run.job.application, 0.0)
    return used


def search(
    packing: Packing,
    settings: GeneticSettings,
    *,
    seed: Sequence[int] = (0,),
    hints: Sequence[IntArray] = (),
    progress: Progress | None = None,
    budget: TimeBudget | None = None,
) -> Found:
    """Look for the best solution of a batch.

    `hints` (I,) are nodes to begin some solutions with, −1 where there is none, from a search before. Stopped by
    the keyboard, or by the budget (which begins now by default), it returns the best so far.
    """
    budget = budget or TimeBudget(settings.budget_ms)
    count, length = settings.population, len(packing.type_of)
    everywhere, all_empty = packing, _empty(packing)
    empty, kept = worth_a_look(packing, all_empty)
    packing = on_nodes(packing, kept)
    hints = [numbers_among(kept, hint) for hint in hints]
    pool = ThreadPoolExecutor(settings.threads) if settings.threads > 1 and length >= SMALL else None
    try:
        # In the end all is placed once more, and on all nodes where some were left out.
        last = 1 + (len(all_empty.version) / len(kept) if len(kept) < len(all_empty.version) else 0)
        solutions, values = _first(packing, empty, count, seed, hints, pool, budget, last)
        history = [(values.max(), values.mean())]
        interrupted = False
        stale = 0
        most = max(1, min(settings.ruin, length // 2))
        steps = min(settings.steps, 2 * length) if length > 1 else 0
        try:
            for generation in range(settings.generations):
                if not budget.has_time() or stale >= settings.patience or not steps:
                    break
                genes = [solution.node.copy() for solution in solutions]
                values = _bettered(
                    packing, solutions, values, genes, generation, most, steps, settings, pool, budget
                )
                stale = 0 if values.max() > history[-1][0] + NEGLIGIBLE else stale + 1
                history.append((values.max(), values.mean()))
                if generation % 4 == 3:
                    _replace_worst(solutions, values, generation, seed)
                if progress:
                    progress(generation + 1, settings.generations)
        except KeyboardInterrupt:
            interrupted = True
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
    best = int(np.argmax(values))
    # A change may have passed over a node: what fits all the same is placed.
    largest = np.argsort(-packing.size, kind="stable")
    nowhere = np.full(length, -1, dtype=np.int64)
    value = build(packing, solutions[best], largest, nowhere, BY_COST)
    node, devices = numbers_of(kept, solutions[best].node), solutions[best].devices
    if len(kept) < len(all_empty.version) and (node < 0).any():  # others may have room
        whole = _copy(all_empty, (*seed, 0))
        for at in np.flatnonzero(node >= 0).tolist():
            add(everywhere, whole, at, int(node[at]), int(devices[at]))
        value = build(everywhere, whole, largest, nowhere, BY_COST)
        node, devices = whole.node, whole.devices
    return Found(
        node,
        devices,
        float(value),
        np.array(history),
        np.array([numbers_of(kept, solution.node) for solution in solutions]),
        interrupted,
    )


def _first(
    packing: Packing,
    empty: Solution,
    count: int,
    seed: Sequence[int],
    hints: Sequence[IntArray],
    pool: ThreadPoolExecutor | None,
    budget: TimeBudget,
    last: float,
) -> tuple[list[Solution], FloatArray]:
    """The first solutions: those of the heuristics, of the hints, and of random orders. What is placed when the search
    has ended takes the time of `last` of them."""
    length = len(packing.type_of)
    random = np.random.default_rng(list(seed))
    queued = np.arange(length)
    largest = np.argsort(-packing.size, kind="stable")
    nowhere = np.full(length, -1, dtype=np.int64)
    plans: list[tuple[IntArray, IntArray, int]] = [(largest, nowhere, BY_COST), (queued, nowhere, BY_COST)]
    plans += [(largest, hint, BY_COST) for hint in hints[: max(0, count - 2)]]
    plans += [(queued, nowhere, BY_FIRST), (largest, nowhere, BY_ROOM)]
    while len(plans) < count:
        noisy = np.argsort(-packing.size * (0.5 + random.random(length)), kind="stable")
        plans.append((noisy, nowhere, BY_COST))
    # The first is made whatever the budget: without it there is nothing to return.
    solutions = [_copy(empty, (*seed, number)) for number in range(1)]
    values = [budget.timed(build, packing, solutions[0], *plans[0])]
    budget.reserve(last)

    def make(number: int) -> tuple[Solution, float] | None:
        if not budget.has_time():
            return None
        solution = _copy(empty, (*seed, number))
        return solution, budget.timed(build, packing, solution, *plans[number])

    numbers = range(1, count)
    for made in pool.map(make, numbers) if pool else map(make, numbers):
        if made is not None:
            solutions.append(made[0])
            values.append(made[1])
    return solutions, np.array(values)


def _bettered(
    packing: Packing,
    solutions: Sequence[Solution],
    values: FloatArray,
    genes: Sequence[IntArray],
    generation: int,
    most: int,
    steps: int,
    settings: GeneticSettings,
    pool: ThreadPoolExecutor | None,
    budget: TimeBudget,
) -> FloatArray:
    """What the solutions are worth after one round."""
    count = len(solutions)

    def better(number: int) -> float:
        partner = genes[(number + 1 + generation % max(1, count - 1)) % count]
        crossing = settings.crossing if count > 1 else 0.0
        value, left = float(values[number]), steps
        while left and budget.has_time():
            piece = budget.steps(left)
            left -= piece
            how = (piece, most, partner, crossing)
            value = budget.timed(improve, packing, solutions[number], value, *how)
        return value

    numbers = range(count)
    return np.array(list(pool.map(better, numbers) if pool else map(better, numbers)))


def _replace_worst(
    solutions: list[Solution], values: FloatArray, generation: int, seed: Sequence[int]
) -> None:
    """The least worthy solution makes room for a copy of the best."""
    best, worst = int(np.argmax(values)), int(np.argmin(values))
    if values[best] > values[worst]:
        solutions[worst] = _copy(solutions[best], (*seed, len(solutions) + generation))
        values[worst] = values[best]


def _empty(packing: Packing) -> Solution:
    """A solution with nothing placed, and what every type costs on every node."""
    types, nodes = packing.fit.shape
    length, width = len(packing.type_of), packing.milli.shape[1]
    integers = [np.zeros(length, dtype=np.int64) for _ in range(7)]
    solution = Solution(
        node=np.full(length, -1, dtype=np.int64),
        devices=integers[0],
        cpu=packing.cpu.copy(),
        mem=packing.mem.copy(),
        milli=packing.milli.copy(),
        gpu_mem=packing.gpu_mem.copy(),
        used=packing.used.copy(),
        burden=np.zeros(nodes),
        version=np.zeros(nodes, dtype=np.int64),
        seen=np.zeros((types, nodes), dtype=np.int64),
        cost=np.zeros((types, nodes)),
        device=np.zeros((types, nodes), dtype=np.int64),
        parts=np.zeros(len(packing.sizes), dtype=np.int64),
        row=np.zeros((1, width), dtype=np.int64),
        counter=np.zeros(1, dtype=np.int64),
        random=seeded(0),
        taken=integers[1],
        old_node=integers[2],
        old_devices=integers[3],
        order=integers[4],
        key=np.zeros(length),
        nodes=integers[5],
        versions=integers[6],
    )
    columns = (packing.cpu, packing.mem, packing.models, packing.kinds, *packing.milli.T, *packing.gpu_mem.T)
    state = np.stack([*columns, *(packing.used.T * 1e6).astype(np.int64)], axis=1)
    fitting = np.packbits(packing.fit, axis=0).T
    like: dict[bytes, int] = {}
    rows = zip(state, fitting, strict=True)
    first = [like.setdefault(row.tobytes() + fits.tobytes(), at) for at, (row, fits) in enumerate(rows)]
    prepare(packing, solution, np.array(first, dtype=np.int64))
    return solution


def _copy(solution: Solution, seed: Sequence[int]) -> Solution:
    """The same solution on its own, with random numbers of its own."""
    return Solution._make(array.copy() for array in solution)._replace(random=seeded(*seed))

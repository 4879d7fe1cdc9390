"""The search of `genetic`: solutions that are bettered side by side, seeded by heuristics, on arrays; and what it costs
to take a GPU of a kind of node that other jobs can do without less easily (`detours`).

Nodes of one kind have the same GPU model, as many GPUs and as much CPU. A job has a choice among the kinds that it fits
on when they are empty. Letters: I instances, T request types, N nodes of the cluster, L kinds of them, M typical
requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.cluster import Cluster
from berth.cluster.kernels import CPU, GPUS, MILLI
from berth.model import Job
from berth.policies.genetic.batch import Batch
from berth.policies.genetic.packing_kernels import Packing, Solution, add, prepare, seeded
from berth.policies.genetic.search_kernels import BY_COST, BY_FIRST, BY_ROOM, build, improve
from berth.policies.genetic.settings import GeneticSettings, TimeBudget
from berth.policies.placements.score_kernels import MODEL_BITS, MODELS
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


NODES_A_JOB, MORE_NODES = 2, 32
"""For each type this many nodes a job, and this many more, are looked at, those that cost it least to begin with."""


def worth_a_look(packing: Packing, empty: Solution) -> tuple[Solution, IntArray]:
    """The empty solution on the nodes that matter, and their numbers: for each type those that cost it least."""
    counts = np.bincount(packing.type_of, minlength=len(packing.requests))
    chosen = np.zeros(len(empty.version), dtype=np.bool_)
    for count, cost in zip(counts.tolist(), empty.cost, strict=True):
        wanted = NODES_A_JOB * count + MORE_NODES
        if wanted >= len(cost):
            chosen |= cost < 1e299
            continue
        best = np.argpartition(cost, wanted)[:wanted]
        chosen[best[cost[best] < 1e299]] = True
    kept = np.flatnonzero(chosen)
    if len(kept) == len(chosen):
        return empty, kept
    by_node = {name: getattr(empty, name)[kept] for name in ("cpu", "mem", "milli", "gpu_mem", "used")}
    by_node |= {name: getattr(empty, name)[kept] for name in ("burden", "version")}
    by_type = {
        name: np.ascontiguousarray(getattr(empty, name)[:, kept]) for name in ("seen", "cost", "device")
    }
    return empty._replace(**by_node, **by_type), kept


def on_nodes(packing: Packing, kept: IntArray) -> Packing:
    """The same batch on these nodes alone."""
    if len(kept) == len(packing.cpu):
        return packing
    by_node = {
        name: getattr(packing, name)[kept]
        for name in ("cpu", "mem", "milli", "gpu_mem", "used", "models", "kinds")
    }
    return packing._replace(fit=np.ascontiguousarray(packing.fit[:, kept]), **by_node)


def numbers_of(kept: IntArray, node: IntArray) -> IntArray:
    """Numbers among the kept nodes as numbers among all; −1 stays."""
    return np.append(kept, -1)[node]


def numbers_among(kept: IntArray, node: IntArray) -> IntArray:
    """Numbers among all nodes as numbers among the kept ones, −1 where they are not among them."""
    place = np.full(max(kept.max(initial=-1), node.max(initial=-1)) + 2, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    return place[node]


class Kinds(NamedTuple):
    """The kinds of a cluster's nodes."""

    of_node: IntArray  # (N,)
    models: IntArray  # (L,): the number of the GPU model
    gpus: IntArray  # (L,): of one node
    cpu_milli: IntArray  # (L,): of one node
    supply: FloatArray  # (L,): GPU milli of all of them


def kinds_of(cluster: Cluster) -> Kinds:
    """The kinds of its nodes."""
    milli = cluster.capacity.milli
    gpus = (milli >= 0).sum(axis=1)
    traits = np.stack([cluster.node_models, gpus, cluster.capacity.cpu_milli])
    kinds, of_node = np.unique(traits, axis=1, return_inverse=True)
    of_node = of_node.reshape(-1)
    supply = np.zeros(kinds.shape[1])
    np.add.at(supply, of_node, np.maximum(milli, 0).sum(axis=1))
    return Kinds(of_node, kinds[0], kinds[1], kinds[2], supply)


def demand_by_kind(typical: Typical, kinds: Kinds) -> FloatArray:
    """(L,): the part of each kind's GPUs, from 0 to 1, that jobs which cannot run elsewhere would fill.

    It is taken at the moment when the usual requests ask for as many GPUs as the cluster has. A request that names
    several models asks for each in proportion to its GPUs; one that may run on every model asks for none. Kinds whose
    CPU or number of GPUs a request needs are all wanted, if the requests that need them ask for more than there is,
    and not at all otherwise: others find room there in time.
    """
    there = kinds.supply > 0
    asked = typical.weight * typical.requests[:, 0] * typical.requests[:, 1]
    total = asked.sum()
    demand = np.zeros(len(there))
    if total <= 0:
        return demand
    asked = asked * (kinds.supply.sum() / total)
    words = typical.requests[:, MODELS + kinds.models // MODEL_BITS]  # (M, L)
    named = ((words >> kinds.models % MODEL_BITS) & 1).astype(np.bool_) & there
    room = _has_room(kinds, typical.requests[:, 0], typical.requests[:, 2])
    wanted: dict[bytes, float] = {}  # by which kinds have room
    for allowed, fits, amount in zip(named, named & room, asked, strict=True):
        if amount > 0 and allowed.any() and not allowed[there].all():
            demand[allowed] += amount * kinds.supply[allowed] / kinds.supply[allowed].sum()
        if amount > 0 and fits.any() and not fits[allowed].all():
            wanted[fits.tobytes()] = wanted.get(fits.tobytes(), 0.0) + amount
    demand[there] /= kinds.supply[there]
    sets = {key: np.frombuffer(key, dtype=np.bool_) for key in wanted}
    for fits in sets.values():
        within = sum(wanted[key] for key, other in sets.items() if not (other & ~fits).any())
        if within >= kinds.supply[fits].sum():
            demand[fits] = 1.0
    return np.minimum(demand, 1.0)


def detours(
    jobs: Sequence[Job],
    type_of: IntArray,
    requests: IntArray,
    typical: Typical,
    cluster: Cluster,
    kinds: Kinds,
) -> FloatArray:
    """(T, L): what a request type costs on a kind of node, in GPUs, compared with the best kind that it fits on.

    `jobs` and `type_of` are (I,), `requests` (T, 5) is what one instance takes. A job that has no choice pays nothing:
    it could go nowhere else.
    """
    demand = demand_by_kind(typical, kinds)
    milli = requests[:, GPUS] * requests[:, MILLI]
    room = _has_room(kinds, requests[:, GPUS], requests[:, CPU]) & (kinds.supply > 0)
    cost = np.zeros(room.shape)
    done: set[int] = set()
    for job, kind in zip(jobs, type_of.tolist(), strict=True):
        if kind in done or not milli[kind]:
            continue
        done.add(kind)
        allowed = room[kind]
        if job.models:
            named = [cluster.models[name] for name in job.models if name in cluster.models]
            allowed = allowed & np.isin(kinds.models, named)
        least = demand[allowed].min(initial=1.0)
        cost[kind] = milli[kind] / 1000 * np.maximum(demand - least, 0)
    return cost


def _has_room(kinds: Kinds, gpus: IntArray, cpu_milli: IntArray) -> BoolArray:
    """(T, L): whether an empty node of each kind has the GPUs and the CPU of each request."""
    return (kinds.cpu_milli >= cpu_milli[:, None]) & (kinds.gpus >= gpus[:, None])

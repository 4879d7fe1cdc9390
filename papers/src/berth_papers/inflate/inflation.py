"""The inflation experiment: jobs arrive and none leaves, until more has arrived than the cluster holds.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, section 6.2: GPU allocation and fragmentation ratio at each per cent of arrived load.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray, compiled
from berth.cluster import Cluster, parts_of
from berth.engine import simulate
from berth.errors import SettingError, TraceError
from berth.experiments.compare.sweep import held_collector
from berth.knowledge import check_knowledge, make_knowledge
from berth.model import FOREVER_MS, Event, EventKind, Job, Node
from berth.policies import Setting, make_policy
from berth.policies.placements.by_score import typical_requests
from berth.policies.placements.score_kernels import node_fragmentation

UP_TO_PCT = 130
LARGEST_BATCH = 500


@dataclass(frozen=True, slots=True, eq=False)
class InflationCurve:
    """One policy on one seed while jobs arrive and none leaves, at each whole per cent of arrived load."""

    policy: str
    seed: int
    allocation_pct: NDArray[np.float64]  # (131,)
    """GPU capacity held, of all; index p is where p % of the capacity has arrived."""
    fragmentation_ratio_pct: NDArray[np.float64]  # (131,)
    """Idle GPU capacity that the workload could not use, of all that is idle."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """In which order the jobs of a workload arrive, and how ties between nodes are settled."""

    order: NDArray[np.int64]
    """Row numbers of the workload, from 0, one an arrival; a row may come more than once."""
    rank: NDArray[np.int64] | None = None
    """(nodes,): the rank of the i-th node when nodes are sorted by name; None: the order of the nodes."""
    base: int | None = None
    """How many arrivals come before any row comes again, where that is known: all rows of the workload, or fewer if
    the load was reached before."""


@dataclass(frozen=True, slots=True, eq=False)
class Inflation:
    """The result of one policy on one order of arrivals."""

    curve: InflationCurve
    seconds: float
    """Wall time of the simulation alone, its kernels loaded."""
    arrivals: int
    placed: int
    nodes: tuple[Node, ...]
    workload: str
    """What the workload is called."""
    batch: int = 1
    """Jobs decided on at once."""
    knowledge: str = "oracle"
    """What the policy believed of jobs."""


def inflate(
    nodes: Sequence[Node],
    workload: Sequence[Job],
    policy: str,
    *,
    seed: int,
    arrivals: Arrivals | None = None,
    name: str = "workload",
    batch: int = 1,
    knowledge: str = "oracle",
) -> Inflation:
    """Run the experiment: every job of the workload's `arrivals` (its own by default) is placed or refused.

    At most `batch` arrive together and are decided on together, each placed or refused for good. `knowledge` is
    what the policy believes of the workload.

    Raises SettingError where the cluster has no GPUs, the workload asks for none, the batch is out of range or there
    is no such knowledge.
    """
    check_knowledge(knowledge)
    if not 1 <= batch <= LARGEST_BATCH:
        raise SettingError(f"a batch of {batch} jobs; expected from 1 to {LARGEST_BATCH}")
    capacity = sum(node.gpus for node in nodes)
    if not capacity or not any(job.gpus for job in workload):
        what = "the workload asks for no GPUs" if capacity else "the cluster has no GPUs"
        raise SettingError(f"an inflation needs GPU load to arrive on GPUs: {what}")
    arrivals = arrivals or own_arrivals(workload, nodes, seed)
    cluster, jobs = _stage(nodes, workload, arrivals, batch)
    _load_kernels(policy, jobs, nodes, knowledge)
    known = make_knowledge(knowledge, workload, seed=seed)
    chosen = make_policy(policy, Setting(seed, knowledge=known))
    with held_collector():
        begin = time.perf_counter()
        events = list(simulate(jobs, cluster, chosen, knowledge=known))
        curve = _curve(events, jobs, workload, cluster, policy, seed)
        seconds = time.perf_counter() - begin
    placed = sum(event.kind is EventKind.START for event in events)
    return Inflation(curve, seconds, len(jobs), placed, tuple(nodes), name, batch, knowledge)


def inflation_dict(result: Inflation) -> dict[str, object]:
    """What `berth experiment inflate --json` prints of one policy and seed."""
    return {
        "policy": result.curve.policy,
        "seed": result.curve.seed,
        "allocation_pct": result.curve.allocation_pct.tolist(),
        "fragmentation_ratio_pct": result.curve.fragmentation_ratio_pct.tolist(),
        "seconds": result.seconds,
        "batch": result.batch,
        "knowledge": result.knowledge,
        "arrivals": result.arrivals,
        "placed": result.placed,
        "nodes": len(result.nodes),
        "gpus": sum(node.gpus for node in result.nodes),
    }


def read_arrivals(path: str | os.PathLike[str], seed: int) -> Arrivals:
    """Arrivals from an .npz file with `order_SEED` (row numbers) and `noderank_SEED` (ranks of sorted nodes).

    It may have `n_base_SEED`: how many arrivals come before the inflation, each of another row.
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            keys = sorted(file.files)
            missing = [key for key in (f"order_{seed}", f"noderank_{seed}") if key not in keys]
            if missing:
                raise TraceError(
                    name, f"an array '{missing[0]}' for seed {seed}; there are {', '.join(keys)}"
                )
            order = file[f"order_{seed}"].astype(np.int64)
            base = int(file[f"n_base_{seed}"]) if f"n_base_{seed}" in keys else None
            return Arrivals(order, file[f"noderank_{seed}"].astype(np.int64), base)
    except OSError as error:
        raise TraceError.unreadable(name, error) from error
    except (ValueError, TypeError, AttributeError, BadZipFile) as error:
        raise TraceError(name, f"a readable .npz file of arrival orders ({error})") from error


def own_arrivals(workload: Sequence[Job], nodes: Sequence[Node], seed: int) -> Arrivals:
    """Every job once, shuffled, then jobs drawn again at random, until 130 % of the GPU capacity has arrived."""
    capacity = 1000 * sum(node.gpus for node in nodes)
    asked = [job.gpus * job.share.milli for job in workload]
    draw = random.Random(seed)
    rows = list(range(len(workload)))
    draw.shuffle(rows)
    order: list[int] = []
    arrived = 0
    while arrived * 100 < UP_TO_PCT * capacity:
        row = rows[len(order)] if len(order) < len(rows) else int(draw.random() * len(rows))
        order.append(row)
        arrived += asked[row]
    return Arrivals(np.array(order, dtype=np.int64))


def _stage(
    nodes: Sequence[Node], workload: Sequence[Job], arrivals: Arrivals, batch: int = 1
) -> tuple[Cluster, list[Job]]:
    """The cluster, and the arriving jobs: one batch a millisecond, each leaving at once if it does not fit."""
    rows = len(workload)
    base = rows if arrivals.base is None else arrivals.base
    if base > rows or (base < rows and len(arrivals.order) > base):
        raise SettingError(
            f"the order inflates a workload after {base} different rows; this one has {rows}: give the order of this"
            " workload"
        )
    wrong = arrivals.order[(arrivals.order < 0) | (arrivals.order >= rows)]
    if len(wrong):
        raise SettingError(f"the order names row {wrong[0]}; the workload has rows 0…{rows - 1}")
    rank = None
    if arrivals.rank is not None:
        if len(arrivals.rank) != len(nodes):
            raise SettingError(f"the order ranks {len(arrivals.rank)} nodes; the cluster has {len(nodes)}")
        by_name = sorted(range(len(nodes)), key=lambda number: nodes[number].name)
        rank = np.empty(len(nodes), dtype=np.int64)
        rank[by_name] = arrivals.rank
    arriving = [workload[row] for row in arrivals.order.tolist()]
    turns = _turns(arriving, 1000 * sum(node.gpus for node in nodes), batch)
    jobs = [
        Job(
            id=f"{number}:{job.id}",
            submit_ms=turn,
            work_ms=FOREVER_MS,
            user=job.user,
            application=job.application,
            gpus=job.gpus,
            share=job.share,
            nodes=job.nodes,
            cpu_milli=job.cpu_milli,
            mem_mib=job.mem_mib,
            models=job.models,
            labels=job.labels,
            patience_ms=0,
        )
        for number, (job, turn) in enumerate(zip(arriving, turns, strict=True))
    ]
    return Cluster(nodes, rank=None if rank is None else rank.tolist()), jobs


def _turns(jobs: Sequence[Job], capacity_milli: int, batch: int) -> list[int]:
    """(jobs,): the batch of each arrival, in order of arrival.

    A batch ends where 100 % of the capacity has arrived (up to 100.5 %, which the curve rounds to 100), so that what
    the curve has there was decided on without knowing of later jobs: in a longer batch those could take their place.
    """
    arrived = np.cumsum([job.gpus * job.share.milli for job in jobs])
    before = int(np.searchsorted(arrived * 200, 201 * capacity_milli, side="right"))
    first = -(-before // batch)
    return [
        number // batch if number < before else first + (number - before) // batch
        for number in range(len(jobs))
    ]


def _load_kernels(policy: str, jobs: Sequence[Job], nodes: Sequence[Node], knowledge: str) -> None:
    """Place a few jobs on a few nodes, so that what is timed afterwards finds its kernels loaded."""
    if not jobs or ":" in policy:
        return
    cluster = Cluster([node for node in nodes if node.gpus][:8])
    few = jobs[:64]
    known = make_knowledge(knowledge, few)
    events = list(simulate(few, cluster, make_policy(policy, Setting(0, knowledge=known)), knowledge=known))
    _curve(events, few, few, cluster, policy, 0)


def _curve(
    events: Sequence[Event],
    jobs: Sequence[Job],
    workload: Sequence[Job],
    cluster: Cluster,
    policy: str,
    seed: int,
) -> InflationCurve:
    """Both curves, from the events and the empty cluster.

    After every arrival, placed or not, both figures are rounded to two decimals; a whole per cent of arrived
    load has the mean of the arrivals that round to it, or what the per cent before had where none does.
    """
    capacity = float(np.maximum(cluster.capacity.milli, 0).sum())
    arrived_pct = np.round(100 * np.cumsum([job.gpus * job.share.milli for job in jobs]) / capacity)
    taken = np.zeros(len(jobs), dtype=np.int64)
    steps: list[tuple[int, int, int, int, int]] = []  # arrival, node, CPU, milli, slot or NO_GPU
    for event in events:
        if event.kind is EventKind.START:
            job, slots, milli = event.job, event.slots, event.share.milli
            arrival = int(job.id.partition(":")[0])
            taken[arrival] = milli * job.gpus
            if len(slots) == 1:
                node, index = slots[0]
                steps.append((arrival, node, job.cpu_milli, milli, index))
                continue
            of_node = {part.node: part.cpu_milli for part in parts_of(job, slots)}
            for node, index in slots:  # CPU with the first slot of each node
                steps.append((arrival, node, of_node.pop(node, 0), milli, index))
    steps.sort(key=lambda step: step[0])  # in a batch the order of decisions is not that of arrivals
    fragmentation = _fragmentation_pct(steps, len(jobs), workload, cluster)
    allocation = np.round(np.cumsum(taken) / capacity * 100, 2)
    return InflationCurve(
        policy,
        seed,
        np.round(_by_percent(allocation, arrived_pct), 2),
        _by_percent(np.round(fragmentation, 2), arrived_pct),
    )


def _fragmentation_pct(
    steps: Sequence[tuple[int, int, int, int, int]], arrivals: int, workload: Sequence[Job], cluster: Cluster
) -> NDArray[np.float64]:
    """(arrivals,): the fragmentation ratio after each arrival."""
    typical = typical_requests(workload, cluster)
    table = np.array(steps, dtype=np.int64).reshape(-1, 5)
    ratios = np.empty(len(table) + 1)
    # The first step takes nothing: the empty cluster, which the arrivals before the first placement see.
    arrival, node, cpu, milli, slot = (
        np.concatenate([[first], column]) for first, column in zip((-1, -1, 0, 0, -1), table.T, strict=True)
    )
    _fragmentation_ratios_pct(
        cluster.capacity.cpu_milli.copy(),
        cluster.capacity.milli.copy(),
        cluster.node_models.copy(),
        typical.requests,
        typical.weight,
        typical.sizes,
        np.empty(len(typical.sizes), dtype=np.int64),
        np.empty(len(cluster.nodes)),
        node,
        cpu,
        milli,
        slot,
        ratios,
    )
    last_step = np.searchsorted(arrival, np.arange(arrivals), side="right") - 1
    return ratios[last_step]


def _by_percent(values: NDArray[np.float64], percent: NDArray[np.float64]) -> NDArray[np.float64]:
    """(131,): the mean of the values at each whole per cent; the value before where there is none."""
    means = np.empty(UP_TO_PCT + 1)
    bounds = np.searchsorted(percent, np.arange(UP_TO_PCT + 2))
    before = 0.0
    for number in range(UP_TO_PCT + 1):
        there = values[bounds[number] : bounds[number + 1]]
        if len(there):
            before = float(np.mean(there))
        means[number] = before
    return means


@compiled
def _fragmentation_ratios_pct(
    cpu: IntArray,  # (N,): CPU of each node, empty; overwritten
    milli: IntArray,  # (N, G): GPU milli of each slot, empty, −1 where there is no GPU; overwritten
    models: IntArray,  # (N,): number of each node's GPU model
    typical: IntArray,  # (M, A)
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
    """100·fragmentation/idle GPU milli over the cluster after each step of a history in which no job leaves."""
    nodes, width = milli.shape
    idle = 0
    for node in range(nodes):
        by_node[node] = node_fragmentation(
            cpu[node], milli, node, models[node], -1, 0, typical, weight, sizes, parts
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
                cpu[node], milli, node, models[node], -1, 0, typical, weight, sizes, parts
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

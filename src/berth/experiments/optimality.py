"""How far each policy stays from the optimum on batches that are small enough to know it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from berth.bounds import optimum, pooled_milli, relaxed_milli
from berth.errors import SettingError
from berth.experiments.batch_file import PlacingTask
from berth.experiments.compare import Progress
from berth.model import Placement
from berth.policies import Setting, make_policy
from berth.policies.batch import batch_of, shortage_of
from berth.policies.genetic_paper import evolve_paper
from berth.queue import Queue

__all__ = ["POLICIES", "Gap", "Optimality", "measure_optimality", "optimality_dict"]

POLICIES = ("round-robin", "first-fit", "tetris", "best-fit", "fgd", "genetic-paper", "genetic")

EXACT_UP_TO = 4_000
"""Pairs of an instance's type and a GPU, up to which the optimum is looked for; above, its bound alone."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One policy on one batch."""

    policy: str
    placed_milli: int
    gap_pct: float
    """What it leaves of the optimum (of the bound, where the optimum is not known)."""
    seconds: float
    """Wall time of its decisions, its kernels loaded."""
    processor_s: float
    """Time of the processor in it, of all threads together: what a busy machine does not change."""


@dataclass(frozen=True, slots=True)
class Optimality:
    """One batch: what is the most that can be placed, and what each policy places."""

    batch: str
    asked_milli: int
    optimum_milli: int | None
    """None where the batch is too large to know it."""
    bound_milli: float
    """No placement has more."""
    proven: bool
    """Whether the optimum is one: else it is the best that was found in the time."""
    relaxed_milli: float
    """The bound of the relaxation, which is all there is for large batches."""
    pooled_milli: int
    """What would fit if all GPUs were one: an upper bound, never a result."""
    pooled_paper_milli: int
    """The genetic algorithm of the paper on all GPUs pooled: overstated, shown for that."""
    gaps: tuple[Gap, ...]
    unplaceable: tuple[str, ...]
    """Instances that fit on no machine, each with what it is short of."""


def measure_optimality(
    tasks: Sequence[PlacingTask],
    policies: Sequence[str] = POLICIES,
    *,
    seed: int = 0,
    time_limit_s: float = 60.0,
    progress: Progress | None = None,
) -> list[Optimality]:
    """Let each policy decide on each batch, and compare with the optimum."""
    if not tasks or not policies:
        raise SettingError(f"{len(tasks)} batches and {len(policies)} policies; expected at least 1 of each")
    for name in policies:
        _run(tasks[0], name, seed)  # loads its kernels
    found = []
    for number, task in enumerate(tasks):
        found.append(_measure(task, policies, seed, time_limit_s))
        if progress:
            progress(number + 1, len(tasks))
    return found


def _measure(task: PlacingTask, policies: Sequence[str], seed: int, time_limit_s: float) -> Optimality:
    cluster = task.cluster()
    batch = batch_of(task.jobs, cluster)
    pairs = int(batch.fit.sum()) * batch.free_milli.shape[1]
    exact = optimum(batch, time_limit_s=time_limit_s) if pairs <= EXACT_UP_TO else None
    relaxed = relaxed_milli(batch, time_limit_s=time_limit_s)
    bound = relaxed if exact is None else min(relaxed, exact.bound_milli)
    best = exact.milli if exact is not None and exact.proven else bound
    gaps = []
    for name in policies:
        placed, *times = _run(task, name, seed)
        gaps.append(Gap(name, placed, 100 * max(0.0, best - placed) / best if best > 0 else 0.0, *times))
    paper = evolve_paper(batch, seed=(seed,), model="pooled") if batch.jobs else None
    return Optimality(
        task.name,
        sum(job.gpus * job.share.milli for job in task.jobs),
        None if exact is None else exact.milli,
        bound,
        exact is not None and exact.proven,
        relaxed,
        pooled_milli(batch),
        int(batch.milli[paper.node >= 0].sum()) if paper else 0,
        tuple(gaps),
        tuple(str(shortage_of(job, cluster)) for job in batch.lost),
    )


def _run(task: PlacingTask, name: str, seed: int) -> tuple[int, float, float]:
    """GPU milli that a policy places of a batch, and how long it thinks: on the wall, and of the processor."""
    cluster, queue = task.cluster(), Queue()
    for job in task.jobs:
        queue.add(replace(job, patience_ms=0))  # one that does not fit holds up nobody
    policy = make_policy(name, Setting(seed, task.jobs))
    before = cluster.free_total_milli
    begin_s, worked_s = time.perf_counter(), time.process_time()
    for decision in policy(queue, cluster, 0):
        if isinstance(decision, Placement):
            cluster.place(decision)
            queue.remove(decision.job)
    wall_s, processor_s = time.perf_counter() - begin_s, time.process_time() - worked_s
    return before - cluster.free_total_milli, wall_s, processor_s


def optimality_dict(found: Sequence[Optimality]) -> dict[str, object]:
    """What `berth experiment optimality --json` prints."""
    names = [gap.policy for gap in found[0].gaps]
    return {
        "policies": {
            name: {
                "gap_median_pct": float(np.median([gap.gap_pct for gap in gaps])),
                "gap_mean_pct": float(np.mean([gap.gap_pct for gap in gaps])),
                "gap_worst_pct": float(np.max([gap.gap_pct for gap in gaps])),
                "seconds_median": float(np.median([gap.seconds for gap in gaps])),
                "seconds_worst": float(np.max([gap.seconds for gap in gaps])),
                "processor_s_median": float(np.median([gap.processor_s for gap in gaps])),
                "processor_s_worst": float(np.max([gap.processor_s for gap in gaps])),
            }
            for at, name in enumerate(names)
            for gaps in [[one.gaps[at] for one in found]]
        },
        "batches": [
            {
                "batch": one.batch,
                "asked_milli": one.asked_milli,
                "optimum_milli": one.optimum_milli,
                "bound_milli": one.bound_milli,
                "proven": one.proven,
                "relaxed_milli": one.relaxed_milli,
                "pooled_milli": one.pooled_milli,
                "pooled_paper_milli": one.pooled_paper_milli,
                "placed_milli": {gap.policy: gap.placed_milli for gap in one.gaps},
                "gap_pct": {gap.policy: gap.gap_pct for gap in one.gaps},
                "unplaceable": list(one.unplaceable),
            }
            for one in found
        ],
    }

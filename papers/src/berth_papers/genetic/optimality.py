"""How far each policy stays from the optimum on batches that are small enough to know it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from berth.arrays import FloatArray
from berth.cluster import Queue
from berth.errors import SettingError
from berth.knowledge import check_knowledge, make_knowledge
from berth.model import Placement
from berth.policies import Progress, Searching, Setting, make_policy
from berth.policies.genetic.batch import batch_of, pooled, shortage_of
from berth_papers.bounds import check_solver, optimum, pooled_milli, relaxed_milli
from berth_papers.genetic.batch_file import PlacingTask
from berth_papers.genetic.policy import evolve_paper

POLICIES = ("round-robin", "first-fit", "tetris", "best-fit", "fgd", "genetic-paper", "genetic")

EXACT_UP_TO = 4_000
"""Pairs of an instance's type and a GPU, up to which the optimum is looked for; above, its bound alone."""


class Progressing(Protocol):
    """Called with how far the experiment is."""

    def __call__(self, done: float, total: float, text: str = "", /) -> None:
        """Batches done and to do, parts of one included; `text` says what goes on now."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One policy on one batch."""

    policy: str
    placed_milli: int
    seconds: float
    """Wall time of its decisions, its kernels loaded."""
    processor_s: float
    """Time of the processor in it, of all threads together: what a busy machine does not change."""
    placements: tuple[Placement, ...]
    interrupted: bool
    """Whether Ctrl-C came first; then it is the best that had been found."""
    history: FloatArray | None = field(default=None, compare=False)
    """(generations + 1, 2): the best and the mean worth of its solutions, where it is a search."""
    gap_pct: float = 0.0
    """What it leaves of the optimum (of the bound, where the optimum is not known)."""


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
    """What would fit if all GPUs were one, those counted too that no GPU could hold: an upper bound, never a result."""
    pooled_paper_milli: int
    """The genetic algorithm of the paper on all GPUs pooled: overstated, shown for that."""
    gaps: tuple[Gap, ...]
    unplaceable: tuple[str, ...]
    """Instances that fit on no machine, each with what it is short of."""
    machines: tuple[str, ...]
    """Their names, by the numbers in the slots of placements."""

    @property
    def interrupted(self) -> bool:
        """Whether its last policy was; then those that follow did not run."""
        return any(gap.interrupted for gap in self.gaps)


def measure_optimality(
    tasks: Sequence[PlacingTask],
    policies: Sequence[str] = POLICIES,
    *,
    seed: int = 0,
    time_limit_s: float = 60.0,
    knowledge: str = "oracle",
    progress: Progressing | None = None,
) -> list[Optimality]:
    """Let each policy decide on each batch, and compare with the optimum.

    `knowledge` is what policies believe of a batch, made anew for each policy on each batch.
    Ctrl-C while a policy decides ends it with that policy's best so far: the last batch is then `interrupted`. While
    the optimum is looked for it ends it with the batches before, where there are any.
    MissingExtraError where there is nothing that could find the optimum.
    """
    check_knowledge(knowledge)
    check_solver()
    if not tasks or not policies:
        raise SettingError(
            f"the experiment needs at least 1 batch and 1 policy, not {len(tasks)} and {len(policies)}"
        )
    policies, warmed_up = tuple(dict.fromkeys(policies)), list[Gap]()
    for name in policies:  # loads its kernels; where it is stopped, what it has is all there is
        report = _search_progress(progress, 0, len(tasks), f"first look, {name}")
        warmed_up.append(_run(tasks[0], name, seed, knowledge, report))
        if warmed_up[-1].interrupted:
            return [_measure(tasks[0], warmed_up, seed, time_limit_s)]
    found = []
    for number, task in enumerate(tasks):
        runs: list[Gap] = []
        for at, name in enumerate(policies):
            done, text = number + at / len(policies), f"batch {task.name}, {name}"
            report = _search_progress(progress, done, len(tasks), text, 1 / len(policies))
            runs.append(_run(task, name, seed, knowledge, report))
            if runs[-1].interrupted:
                break
        try:
            found.append(_measure(task, runs, seed, time_limit_s))
        except KeyboardInterrupt:
            if not found:
                raise
            break
        if found[-1].interrupted:
            break
        if progress:
            progress(number + 1, len(tasks))
    return found


def _search_progress(
    progress: Progressing | None, before: float, total: int, text: str, part: float = 0.0
) -> Progress | None:
    """Report of a search by generations, as a part of all batches; `part`: of a batch that the search is."""
    if progress is None:
        return None

    def report(done: float, generations: float) -> None:
        progress(
            before + part * done / generations, total, f"{text}, generation {done:,.0f} of {generations:,.0f}"
        )

    return report


def _measure(task: PlacingTask, runs: Sequence[Gap], seed: int, time_limit_s: float) -> Optimality:
    cluster = task.cluster()
    batch = batch_of(task.jobs, cluster)
    pairs = int(batch.fit.sum()) * batch.free_milli.shape[1]
    exact = optimum(batch, time_limit_s=time_limit_s) if pairs <= EXACT_UP_TO else None
    relaxed = relaxed_milli(batch, time_limit_s=time_limit_s)
    bound = relaxed if exact is None else min(relaxed, exact.bound_milli)
    best = exact.milli if exact is not None and exact.proven else bound
    gaps = [
        replace(run, gap_pct=100 * max(0.0, best - run.placed_milli) / best if best > 0 else 0.0)
        for run in runs
    ]
    stopped = any(gap.interrupted for gap in gaps)
    logical = pooled(task.jobs, cluster)
    paper = evolve_paper(logical, seed=(seed,)) if logical.jobs and not stopped else None
    if paper is not None and paper.interrupted:
        raise KeyboardInterrupt
    return Optimality(
        task.name,
        sum(job.gpus * job.share.milli for job in task.jobs),
        None if exact is None else exact.milli,
        bound,
        exact is not None and exact.proven,
        relaxed,
        pooled_milli(logical),
        int(logical.milli[paper.node >= 0].sum()) if paper else 0,
        tuple(gaps),
        tuple(str(shortage_of(job, cluster)) for job in batch.lost),
        tuple(node.name for node in task.nodes),
    )


def _run(task: PlacingTask, name: str, seed: int, knowledge: str, report: Progress | None = None) -> Gap:
    """What a policy places of a batch, and how long it thinks."""
    cluster, queue = task.cluster(), Queue()
    for job in task.jobs:
        queue.add(replace(job, patience_ms=0))  # one that does not fit holds up no other
    policy = make_policy(name, Setting(seed, knowledge=make_knowledge(knowledge, task.jobs, seed=seed)))
    searching = policy if isinstance(policy, Searching) else None
    if searching is not None:
        searching.progress = report
    before = cluster.free_total_milli
    begin_s, worked_s = time.perf_counter(), time.process_time()
    placed: list[Placement] = []
    interrupted = False
    try:
        for decision in policy(queue, cluster, 0):
            if isinstance(decision, Placement):
                cluster.place(decision)
                queue.remove(decision.job)
                placed.append(decision)
    except KeyboardInterrupt:
        interrupted = True
    seconds, processor_s = time.perf_counter() - begin_s, time.process_time() - worked_s
    placed_milli, history = before - cluster.free_total_milli, searching.history if searching else None
    return Gap(name, placed_milli, seconds, processor_s, tuple(placed), interrupted, history)


def optimality_dict(found: Sequence[Optimality]) -> dict[str, Any]:
    """What `berth experiment optimality --json` prints; an interrupted batch is in no policy's figures."""
    whole = [one for one in found if not one.interrupted]
    names = [gap.policy for gap in whole[0].gaps] if whole else []
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
            for gaps in [[one.gaps[at] for one in whole]]
        },
        "batches": [_batch_dict(one) for one in found],
    }


def _batch_dict(one: Optimality) -> dict[str, object]:
    return {
        "batch": one.batch,
        "asked_milli": one.asked_milli,
        "optimum_milli": one.optimum_milli,
        "bound_milli": one.bound_milli,
        "proven": one.proven,
        "relaxed_milli": one.relaxed_milli,
        "pooled_milli": one.pooled_milli,
        "pooled_paper_milli": one.pooled_paper_milli,
        "interrupted": one.interrupted,
        "placed_milli": {gap.policy: gap.placed_milli for gap in one.gaps},
        "gap_pct": {gap.policy: gap.gap_pct for gap in one.gaps},
        "placements": {
            gap.policy: [
                {
                    "instance": placement.job.id,
                    "milli": placement.share.milli,
                    "gpus": [[one.machines[node], index] for node, index in placement.slots],
                }
                for placement in gap.placements
            ]
            for gap in one.gaps
        },
        "unplaceable": list(one.unplaceable),
    }

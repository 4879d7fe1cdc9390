"""One policy on one seed of a case: what it held and what waited, over time. Letters: E events, P points of a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.events import KINDS
from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.kept_file import (
    KeptFile,
    digest_of,
    file_mark,
    kept_path,
    policy_marks,
    read_kept,
    write_kept,
)
from berth.experiments.compare.parallel import run_each
from berth.experiments.compare.sweep import Task
from berth.model import EventKind, Job, Node
from berth.policies import Progress
from berth.statistics import EventColumns, completion_time_s
from berth_papers.genetic.cases import Case

POINTS = 200
SIZES = (("a part of one", 0), ("1", 1000), ("2 or 3", 2000), ("4 to 7", 4000), ("8 or more", 8000))
"""Sizes that waits are grouped by: what they are called, and the least GPU milli that a job of the size asks for."""
OVERSUBSCRIBED_PCT = 130
"""Measuring begins when this part of the GPUs has been asked for since the beginning."""
DEEP_PCT = 10
"""It ends when under some policy the waiting jobs ask for less than this part of the GPUs."""


@dataclass(frozen=True, slots=True)
class UseTask:
    """One policy on one seed of a case."""

    case: Case
    policy: str
    seed: int
    knowledge: str = "oracle"
    """What the policy believes of the jobs."""


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """What is kept of a run; what it comes to is known when all runs of its seed are there."""

    time_ms: NDArray[np.int64]  # (E,)
    held: NDArray[np.int64]  # (E,): GPU milli held from then on
    scheduled: NDArray[np.int64]  # (P,): jobs started so far
    after_pct: NDArray[np.float64]  # (P,): GPU capacity held after each number of jobs
    capacity: int
    """GPU milli of the cluster."""
    begin_ms: int
    """The first submission."""
    full_ms: int
    """When 130 % of the GPUs had been asked for."""
    last_submit_ms: int
    last_waiting_ms: int
    """The last time at which the waiting jobs asked for a tenth of the GPUs or more."""
    run_time_s: float
    """Mean time from start to end, over jobs that finished: the paper's completion time."""
    completion_s: float
    """Mean time from submission to end, over the same."""
    finished: int
    waits: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3)))
    """(SIZES, 3): of the jobs of each size how many came and started, and the mean wait in s of the latter. Empty in
    runs that were kept before it was measured."""

    def held_pct(self, begin_ms: int, end_ms: int) -> float:
        """GPU capacity held, averaged over a time that ends later than it begins."""
        area = np.concatenate([[0], np.cumsum(self.held[:-1] * np.diff(self.time_ms))])
        at = np.array([begin_ms, end_ms])
        before = np.maximum(np.searchsorted(self.time_ms, at, side="right") - 1, 0)
        until = area[before] + self.held[before] * (at - self.time_ms[before])
        return float(100 * (until[1] - until[0]) / (end_ms - begin_ms) / max(1, self.capacity))


class KeptUses:
    """The finished runs of the experiment in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def load(self, task: UseTask) -> Use | None:
        """The finished run of a task; None where there is none, or one under other conditions."""
        kept = read_kept(self._path(task), _digest(task))
        if kept is None:
            return None
        values: dict[str, Any] = dict(kept.curves)
        values |= {name: math.nan if value is None else value for name, value in kept.summary.items()}
        return Use(**values)

    def save(self, task: UseTask, use: Use) -> None:
        """Keep a finished run; the file is there whole or not at all."""
        values = {field.name: getattr(use, field.name) for field in fields(Use)}
        curves = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        numbers = {
            name: None if value != value else value for name, value in values.items() if name not in curves
        }
        written = KeptFile(task.policy, task.seed, task.case.name, _digest(task), numbers, curves)
        write_kept(self._path(task), written)

    def _path(self, task: UseTask) -> Path:
        case = digest_of(task.case.trace, task.case.cluster, task.case.part, task.case.compress)[:8]
        return kept_path(self.folder, task.policy, case, task.seed)


def run_uses(
    tasks: Sequence[UseTask], processes: int, progress: Progress | None
) -> Iterator[tuple[UseTask, Use]]:
    """Every task with its run, as they are done, `processes` at a time; those of a seed of a case follow each other."""
    done = 0
    for (case, seed, knowledge), same in groupby(tasks, key=lambda one: (one.case, one.seed, one.knowledge)):
        asked = {task.policy: task for task in same}
        nodes, jobs = case.load(seed)
        under = Conditions(knowledge=knowledge)
        sweep = [Task(tuple(jobs), nodes, policy, seed, under, measure=_use_of) for policy in asked]
        part = None if progress is None else partial(_report, progress, done, len(tasks))
        for task, result in run_each(sweep, processes, part):
            assert isinstance(result.measured, Use)
            yield asked[task.policy], result.measured
        done += len(asked)


def _report(progress: Progress, before: int, total: int, done: float, _: float) -> None:
    progress(before + done, total)


def _digest(task: UseTask) -> str:
    case = task.case
    cluster = None if case.cluster is None else file_mark(case.cluster)
    marks = file_mark(case.trace), cluster, case.part, case.compress, task.policy, task.seed, task.knowledge
    return digest_of(*marks, *policy_marks(task.policy))


def _use_of(columns: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]) -> Use:
    capacity = 1000 * sum(node.gpus for node in nodes)
    milli = np.array([job.gpus * job.share.milli for job in jobs], dtype=np.int64)
    held, waiting, started = _levels(columns, milli)
    full = int(np.searchsorted(np.cumsum(milli) * 100, OVERSUBSCRIBED_PCT * capacity))
    last_submit = max((job.submit_ms for job in jobs), default=0)
    ended = columns.attempts.end_event >= 0
    finished = np.zeros(len(columns.attempts.job), dtype=np.bool_)
    finished[ended] = columns.kind[columns.attempts.end_event[ended]] == KINDS.index(EventKind.FINISH)
    run_s = (columns.attempts.end_ms - columns.attempts.start_ms)[finished] / 1000
    starts = np.flatnonzero(started)
    points = np.linspace(0, len(starts) - 1, min(POINTS, len(starts))).astype(np.int64)
    at = starts[points]
    deep = np.flatnonzero(waiting * 100 >= DEEP_PCT * capacity)
    return Use(
        time_ms=columns.time_ms,
        held=held,
        scheduled=np.cumsum(started, dtype=np.int64)[at],
        after_pct=100 * held[at] / max(1, capacity),
        capacity=capacity,
        begin_ms=columns.begin_ms,
        full_ms=jobs[full].submit_ms if full < len(jobs) else last_submit,
        last_submit_ms=last_submit,
        last_waiting_ms=int(columns.time_ms[deep].max(initial=0)),
        run_time_s=float(run_s.mean()) if len(run_s) else math.nan,
        completion_s=float(np.mean(completion_time_s(columns))) if len(run_s) else math.nan,
        finished=int(finished.sum()),
        waits=_waits(columns),
    )


def _waits(columns: EventColumns) -> NDArray[np.float64]:
    """(SIZES, 3) as in `Use`; jobs without GPUs are in none of them."""
    asked = columns.gpus * columns.milli
    size = np.searchsorted([least for _, least in SIZES], np.maximum(asked, 1), side="right") - 1
    tries = columns.attempts
    _, first = np.unique(tries.job, return_index=True)
    waited_s = (tries.start_ms - tries.queued_ms)[first] / 1000
    of_start, asked_there = size[tries.job[first]], asked[tries.job[first]] > 0
    came = np.bincount(size[asked > 0], minlength=len(SIZES))
    started = np.bincount(of_start[asked_there], minlength=len(SIZES))
    sums = np.bincount(of_start[asked_there], waited_s[asked_there], minlength=len(SIZES))
    mean = np.where(started > 0, sums / np.maximum(started, 1), np.nan)
    return np.stack([came.astype(np.float64), started.astype(np.float64), mean], axis=1)


def _levels(
    columns: EventColumns, milli: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """(E,) each: GPU milli held and waited for after each event, and whether it is a start."""
    tries, kind = columns.attempts, columns.kind
    started = kind == KINDS.index(EventKind.START)
    taken = tries.gpus * tries.milli
    delta = np.zeros(len(kind), dtype=np.int64)
    delta[started] = taken
    ended = tries.end_event >= 0
    np.subtract.at(delta, tries.end_event[ended], taken[ended])
    submitted = kind == KINDS.index(EventKind.SUBMIT)
    leaves = ~submitted & ~columns.ran()
    asked = milli[columns.job]
    waits = asked * submitted - asked * leaves
    return np.cumsum(delta), np.cumsum(waits), started

"""GPU utilisation and completion time under each policy, on workloads that leave something waiting.

Figures 3 and 4 of Kwon and Bahn, *Scheduling of Artificial Intelligence Workloads in Cloud Environments Using
Genetic Algorithms*, JIIBC 24(3), 2024: utilisation against the jobs scheduled so far, and completion time.
Letters: E events, P points of a curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.experiments.cases import Case, case_of
from berth.experiments.compare import Progress
from berth.model import EventKind
from berth.policies import Setting, make_policy
from berth.statistics import (
    EventColumns,
    Interval,
    completion_time_s,
    confidence_interval_95,
    event_columns,
    paired_difference_95,
)
from berth.statistics.columns import KINDS

__all__ = [
    "PAPER_MARGINS_PCT",
    "POLICIES",
    "Case",
    "Margin",
    "Outcome",
    "case_of",
    "margins",
    "measure_utilisation",
    "utilisation_dict",
]

POLICIES = ("round-robin", "first-fit", "tetris", "best-fit", "fgd", "genetic-paper", "genetic")

PAPER_MARGINS_PCT = {"round-robin": 12.8, "first-fit": 6.5, "tetris": 6.6}
"""By how much the paper's algorithm uses the GPUs better (section IV); it does not say points or relative."""

DEFAULT_CASE = "synthetic:pai-like?jobs=22000&load=30"
"""The machine list of PAI and 22,000 jobs that come in little time: something waits for hours."""

POINTS = 200
OVERSUBSCRIBED_PCT = 130
"""Measuring begins when so much of the GPUs has been asked for since the beginning."""
DEEP_PCT = 10
"""It ends when under some policy those who wait ask for less than so much of the GPUs."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One policy on one seed of a case."""

    case: str
    policy: str
    seed: int
    utilisation_pct: float
    """GPU capacity held, averaged over the time in which much waits under every policy."""
    run_time_s: float
    """Mean time from start to end, over jobs that finished: the paper's completion time."""
    completion_s: float
    """Mean time from submission to end, over the same."""
    finished: int
    scheduled: NDArray[np.int64]  # (P,)
    """Jobs started so far."""
    after_pct: Floats  # (P,)
    """GPU capacity held after so many."""
    span_ms: tuple[int, int]
    """The time that `utilisation_pct` is of."""


@dataclass(frozen=True, slots=True)
class Margin:
    """How much further a policy uses the GPUs than another, over seeds."""

    policy: str
    over: str
    points: Interval
    """Difference of the utilisation, in per cent of all GPUs."""
    relative_pct: Interval
    """The same, of the other's utilisation."""
    paper_pct: float | None
    """The paper's margin over this one."""
    most_points: float
    """What is left to 100 %: no policy could be further above."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """What is kept of one run until all runs of its seed are there."""

    time_ms: NDArray[np.int64]  # (E,)
    held: NDArray[np.int64]  # (E,): GPU milli held from then on
    last_waiting_ms: int
    run_time_s: float
    completion_s: float
    finished: int
    scheduled: NDArray[np.int64]
    after_pct: Floats
    capacity: int
    begin_ms: int
    full_ms: int
    last_submit_ms: int


def measure_utilisation(
    cases: Sequence[Case],
    policies: Sequence[str] = POLICIES,
    *,
    seeds: Sequence[int] = tuple(range(10)),
    processes: int = 1,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run every policy on every seed of every case."""
    if not cases or not policies or not seeds:
        raise SettingError("the experiment needs at least one case, one policy and one seed")
    for name in policies:
        make_policy(name)
    tasks = [(case, name, seed) for case in cases for seed in seeds for name in policies]
    runs: dict[tuple[Case, str, int], _Run] = {}
    for number, (task, run) in enumerate(_all(tasks, processes)):
        runs[task] = run
        if progress:
            progress(number + 1, len(tasks))
    return [
        outcome
        for case in cases
        for seed in seeds
        for outcome in _outcomes(case, seed, {name: runs[case, name, seed] for name in policies})
    ]


def margins(outcomes: Sequence[Outcome], case: str) -> list[Margin]:
    """How far `genetic` and `genetic-paper` are above the others on a case."""
    by_policy: dict[str, dict[int, float]] = {}
    for one in outcomes:
        if one.case == case:
            by_policy.setdefault(one.policy, {})[one.seed] = one.utilisation_pct
    found = []
    for policy in by_policy:
        if not policy.startswith("genetic"):
            continue
        for over, base in by_policy.items():
            if over == policy:
                continue
            seeds = sorted(base)
            ours, theirs = ([values[seed] for seed in seeds] for values in (by_policy[policy], base))
            relative = [100 * (mine / other - 1) for mine, other in zip(ours, theirs, strict=True)]
            found.append(
                Margin(
                    policy,
                    over,
                    paired_difference_95(ours, theirs),
                    confidence_interval_95(relative),
                    PAPER_MARGINS_PCT.get(over),
                    100 - float(np.mean(theirs)),
                )
            )
    return found


def utilisation_dict(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """What `berth experiment utilisation --json` prints."""
    cases = list(dict.fromkeys(one.case for one in outcomes))
    return {
        "runs": [
            {
                "case": one.case,
                "policy": one.policy,
                "seed": one.seed,
                "utilisation_pct": one.utilisation_pct,
                "run_time_s": one.run_time_s,
                "completion_s": one.completion_s,
                "finished": one.finished,
                "span_ms": list(one.span_ms),
            }
            for one in outcomes
        ],
        "margins": [
            {
                "case": case,
                "policy": margin.policy,
                "over": margin.over,
                "points": _interval(margin.points),
                "relative_pct": _interval(margin.relative_pct),
                "paper_pct": margin.paper_pct,
                "most_points": margin.most_points,
            }
            for case in cases
            for margin in margins(outcomes, case)
        ],
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    low, high = (None if value != value else value for value in (interval.low, interval.high))
    return {"mean": interval.mean, "low_95": low, "high_95": high}


def _all(
    tasks: Sequence[tuple[Case, str, int]], processes: int
) -> Iterator[tuple[tuple[Case, str, int], _Run]]:
    if processes == 1 or len(tasks) == 1:
        for task in tasks:
            yield task, _run(*task)
        return
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(_run, *task): task for task in tasks}
        try:
            for future in as_completed(pending):
                yield pending[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(case: Case, policy: str, seed: int) -> _Run:
    nodes, jobs = case.load(seed)
    columns = event_columns(simulate(jobs, Cluster(nodes), make_policy(policy, Setting(seed, jobs))))
    capacity = 1000 * sum(node.gpus for node in nodes)
    milli = [job.gpus * job.share.milli for job in jobs]
    held, waiting, started = _levels(columns, np.array(milli, dtype=np.int64))
    asked = np.cumsum(milli)
    full = int(np.searchsorted(asked * 100, OVERSUBSCRIBED_PCT * capacity))
    last_submit = max((job.submit_ms for job in jobs), default=0)
    ended = columns.tries.end_event >= 0
    finished = np.zeros(len(columns.tries.job), dtype=np.bool_)
    finished[ended] = columns.kind[columns.tries.end_event[ended]] == KINDS.index(EventKind.FINISH)
    run_s = (columns.tries.end_ms - columns.tries.start_ms)[finished] / 1000
    starts = np.flatnonzero(started)
    at = (
        starts[np.linspace(0, len(starts) - 1, min(POINTS, len(starts))).astype(np.int64)]
        if len(starts)
        else starts
    )
    return _Run(
        time_ms=columns.time_ms,
        held=held,
        last_waiting_ms=int(
            columns.time_ms[np.flatnonzero(waiting * 100 >= DEEP_PCT * capacity)].max(initial=0)
        ),
        run_time_s=float(run_s.mean()) if len(run_s) else float("nan"),
        completion_s=float(np.mean(completion_time_s(columns))) if finished.any() else float("nan"),
        finished=int(finished.sum()),
        scheduled=np.cumsum(started, dtype=np.int64)[at],
        after_pct=100 * held[at] / max(1, capacity),
        capacity=capacity,
        begin_ms=columns.begin_ms,
        full_ms=jobs[full].submit_ms if full < len(jobs) else last_submit,
        last_submit_ms=last_submit,
    )


def _levels(
    columns: EventColumns, milli: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """(E,) each: GPU milli held and waited for after each event, and whether it is a start."""
    tries, kind = columns.tries, columns.kind
    started = kind == KINDS.index(EventKind.START)
    taken = tries.gpus * tries.milli
    delta = np.zeros(len(kind), dtype=np.int64)
    delta[started] = taken
    ended = tries.end_event >= 0
    np.subtract.at(delta, tries.end_event[ended], taken[ended])
    leaves = started | (kind == KINDS.index(EventKind.REJECT))
    asked = milli[columns.job]
    waits = asked * (kind == KINDS.index(EventKind.SUBMIT)) - asked * leaves
    return np.cumsum(delta), np.cumsum(waits), started


def _outcomes(case: Case, seed: int, runs: dict[str, _Run]) -> Iterator[Outcome]:
    """Measure all policies of a seed over the same time."""
    one = next(iter(runs.values()))
    begin, end = one.full_ms, min(run.last_waiting_ms for run in runs.values())
    if end <= begin:  # too little waits under some policy: from the first submission to the last
        begin, end = one.begin_ms, max(one.last_submit_ms, one.begin_ms + 1)
    for policy, run in runs.items():
        area = np.concatenate([[0], np.cumsum(run.held[:-1] * np.diff(run.time_ms))])
        at = np.array([begin, end])
        before = np.maximum(np.searchsorted(run.time_ms, at, side="right") - 1, 0)
        until = area[before] + run.held[before] * (at - run.time_ms[before])
        yield Outcome(
            case=case.name,
            policy=policy,
            seed=seed,
            utilisation_pct=float(100 * (until[1] - until[0]) / (end - begin) / max(1, run.capacity)),
            run_time_s=run.run_time_s,
            completion_s=run.completion_s,
            finished=run.finished,
            scheduled=run.scheduled,
            after_pct=run.after_pct,
            span_ms=(begin, end),
        )

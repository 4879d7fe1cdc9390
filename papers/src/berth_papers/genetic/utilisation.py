"""GPU utilisation and completion time under each policy, on workloads that leave something waiting.

Figures 3 and 4 of Kwon and Bahn, *Scheduling of Artificial Intelligence Workloads in Cloud Environments Using
Genetic Algorithms*, JIIBC 24(3), 2024: utilisation against the jobs scheduled so far, and completion time.
P: points of a curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.cluster import Cluster
from berth.errors import SettingError
from berth.experiments.compare.kept_file import continued
from berth.knowledge import check_knowledge
from berth.policies import Progress, make_policy
from berth.statistics import Interval, confidence_interval_95, paired_difference_95
from berth_papers.bounds import most_held_pct
from berth_papers.genetic.cases import Case
from berth_papers.genetic.utilisation_run import SIZES, KeptUses, Use, UseTask, run_uses

POLICIES = (
    "round-robin", "passing+round-robin", "first-fit", "passing+first-fit", "tetris", "passing+tetris", "best-fit",
    "passing+best-fit", "fgd", "passing+fgd", "genetic-paper", "genetic",
)  # fmt: skip
"""Strict baselines, each beside the same one passing over jobs that do not fit, as both genetic ones do."""

PAPER_MARGINS_PCT = {"round-robin": 12.8, "first-fit": 6.5, "tetris": 6.6}
"""By how much the paper's algorithm uses the GPUs better (section IV); it does not say points or relative."""

DEFAULT_CASE = "synthetic:pai-like?jobs=22000&load=30"
"""The machine list of PAI and 22,000 jobs that come in little time: something waits for hours."""

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
    """GPU capacity held after each number of jobs."""
    span_ms: tuple[int, int]
    """The time that `utilisation_pct` is of."""
    most_pct: float
    """The most that any policy could hold in that time, given which jobs had come, for how long and for which GPUs."""
    jobs: int = 0
    """How many there were: those that are not `finished` left the queue, or never started."""
    never_fitting: int = 0
    """Of them, how many no node could hold, even empty: rejected at once."""
    waits: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    """(SIZES, 3): of the jobs of each size how many came and started, and the mean wait in s of the latter; empty
    where a kept run does not tell."""


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
    """No policy could be further above: what any could hold at most, less what the other one does."""
    over_pct: float
    """What the other one holds, the mean over seeds."""

    @property
    def most_relative_pct(self) -> float | None:
        """`most_points` of what the other one holds; None where that is nothing."""
        return 100 * self.most_points / self.over_pct if self.over_pct > 0 else None


def measure_utilisation(
    cases: Sequence[Case],
    policies: Sequence[str] = POLICIES,
    *,
    seeds: Sequence[int] = tuple(range(10)),
    processes: int = 1,
    keep: Path | None = None,
    knowledge: str = "oracle",
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run every policy on every seed of every case, each under that knowledge of the jobs.

    With `keep` each finished run is written into that folder, and not run again where it is there already.
    """
    if not cases or not policies or not seeds:
        raise SettingError("the experiment needs at least one case, one policy and one seed")
    if processes < 1:
        raise SettingError(f"the experiment runs on 1 or more processes, not {processes}")
    cases, policies, seeds = (
        list(dict.fromkeys(cases)),
        list(dict.fromkeys(policies)),
        list(dict.fromkeys(seeds)),
    )
    check_knowledge(knowledge)
    for name in policies:
        make_policy(name)
    tasks = [UseTask(case, name, seed, knowledge) for case in cases for seed in seeds for name in policies]

    def run(missing: Sequence[UseTask], part: Progress | None) -> Iterator[tuple[UseTask, Use]]:
        return run_uses(missing, processes, part)

    uses = dict(run(tasks, progress) if keep is None else continued(tasks, KeptUses(keep), run, progress))
    return [
        outcome
        for case in cases
        for seed in seeds
        for outcome in _outcomes(
            case, seed, {name: uses[UseTask(case, name, seed, knowledge)] for name in policies}
        )
    ]


def margins(outcomes: Sequence[Outcome], case: str) -> list[Margin]:
    """How far `genetic` and `genetic-paper` are above the others on a case."""
    by_policy: dict[str, dict[int, float]] = {}
    most: dict[int, float] = {}
    for one in outcomes:
        if one.case == case:
            by_policy.setdefault(one.policy, {})[one.seed] = one.utilisation_pct
            most[one.seed] = one.most_pct
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
                    float(np.mean([most[seed] for seed in seeds]) - np.mean(theirs)),
                    float(np.mean(theirs)),
                )
            )
    return found


def utilisation_dict(outcomes: Sequence[Outcome]) -> dict[str, Any]:
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
                "jobs": one.jobs,
                "never_fitting": one.never_fitting,
                "finished": one.finished,
                "waits": [
                    {
                        "gpus": name,
                        "jobs": int(came),
                        "started": int(started),
                        "mean_wait_s": None if mean_s != mean_s else float(mean_s),
                    }
                    for (name, _), (came, started, mean_s) in zip(SIZES, one.waits, strict=False)
                ],
                "span_ms": list(one.span_ms),
                "most_pct": one.most_pct,
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


def _outcomes(case: Case, seed: int, uses: Mapping[str, Use]) -> Iterator[Outcome]:
    """Measure all policies of a seed over the same time."""
    one = next(iter(uses.values()))
    begin, end = one.full_ms, min(use.last_waiting_ms for use in uses.values())
    if end <= begin:  # too little waits under some policy: from the first submission to the last
        begin, end = one.begin_ms, max(one.last_submit_ms, one.begin_ms + 1)
    nodes, jobs = case.load(seed)
    most_pct = most_held_pct(jobs, nodes, begin, end)
    empty = Cluster(nodes)
    never_fitting = sum(not empty.fits_when_empty(job) for job in jobs)
    for policy, use in uses.items():
        yield Outcome(
            case=case.name,
            policy=policy,
            seed=seed,
            utilisation_pct=use.held_pct(begin, end),
            run_time_s=use.run_time_s,
            completion_s=use.completion_s,
            finished=use.finished,
            scheduled=use.scheduled,
            after_pct=use.after_pct,
            span_ms=(begin, end),
            most_pct=most_pct,
            jobs=len(jobs),
            never_fitting=never_fitting,
            waits=use.waits,
        )

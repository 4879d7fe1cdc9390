"""What the co-location experiment says: means, paired differences, distances to the bound, costs, and its claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from berth.interference import make_interference, mode_of
from berth.statistics import Interval, confidence_interval_95, paired_difference_95
from berth_papers.colocation.disagreement import Disagreement, Pair
from berth_papers.colocation.experiment import FRONTIER_WORKLOAD, LEARNED, SJF, UNTRAINED, Colocation
from berth_papers.colocation.outcome import CLASSES, Outcome
from berth_papers.colocation.thesis import COSTS, CostModel, thesis_dict
from berth_papers.colocation.untrained import untrained_comparisons

RIVALS = (SJF, "tetris-sharing", "greedy")
"""The policies that `learned` is compared with in pairs."""
LEAST_SETS = 3
"""Of fewer sets there is no interval: two leave one degree of freedom, and an interval six times as wide as of three
equally scattered ones tells nothing."""
NOTHING_TO_WIN_PCT = 1.0
"""Where the other policy is no further above the bound than this, there was nothing to be won."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A policy's hours at what an hour costs, against SJF's alone."""

    model: CostModel
    sjf_usd: float
    learned_usd: float

    @property
    def saved_pct(self) -> float:
        """What is saved of SJF's cost."""
        return 100 * (1 - self.learned_usd / self.sjf_usd)


def interval_95(values: Sequence[float]) -> Interval:
    """The mean with its 95 % interval; its limits are NaN for fewer than `LEAST_SETS` values."""
    return _of_enough(confidence_interval_95(values))


def _of_enough(interval: Interval) -> Interval:
    enough = interval.count >= LEAST_SETS
    return interval if enough else Interval(interval.mean, math.nan, math.nan, interval.count)


def difference_pct(result: Colocation, workload: str, policy: str, other: str) -> Interval:
    """By how much a policy's total time is above another's on the same sets, in per cent of the other's mean."""
    ours, theirs = (np.array([one.total_s for one in result.of(workload, name)]) for name in (policy, other))
    interval = _of_enough(paired_difference_95(ours, theirs))
    scale = 100 / float(theirs.mean())
    return Interval(interval.mean * scale, interval.low * scale, interval.high * scale, interval.count)


def above_bound_pct(result: Colocation, workload: str, policy: str) -> list[float]:
    """How far each run is above the lower bound of its set; empty where there is no bound."""
    if not result.bounds:
        return []
    return [
        100 * (1000 * one.total_s / result.bounds[workload, one.seed].total_ms - 1)
        for one in result.of(workload, policy)
    ]


def costs(result: Colocation) -> list[Cost]:
    """The cost models of section V.3.4 on random, by the mean total times."""
    if FRONTIER_WORKLOAD not in result.workloads or not {SJF, "learned"} <= set(result.policies):
        return []
    alone, shared = (_mean_s(result.of(FRONTIER_WORKLOAD, name)) / 3600 for name in (SJF, "learned"))
    return [Cost(model, alone * model.alone_usd, shared * model.shared_usd) for model in COSTS]


def weight_of(policy: str) -> int:
    """What a job that is not slowed is worth to `learned?unslowed=…`, in seconds; 0 for plain `learned`."""
    return int(policy.rpartition("=")[2]) if "=" in policy else 0


def colocation_dict(
    result: Colocation,
    disagreements: Sequence[Disagreement],
    pairs: Sequence[Pair],
    training_s: Mapping[str, float],
) -> dict[str, Any]:
    """What `berth experiment colocation --json` prints."""
    summary = [
        {
            "workload": workload,
            "policy": policy,
            "total_s": _interval([one.total_s for one in runs]),
            "gpu_use_pct": _mean([one.gpu_use_pct for one in runs]),
            "gpu_mem_pct": _mean([one.gpu_mem_pct for one in runs]),
            "gpu_mem_peak_mib": max(one.gpu_mem_peak_mib for one in runs),
            "out_of_memory": sum(one.out_of_memory for one in runs),
            "finished": sum(one.finished for one in runs),
            "jobs_by_slowdown": dict(zip(CLASSES, jobs_by_class(runs), strict=True)),
            "above_bound_pct": _mean(above_bound_pct(result, workload, policy)),
        }
        for workload in result.workloads
        for policy in result.policies
        for runs in [result.of(workload, policy)]
    ]
    return {
        "interference": result.interference,
        "mode": mode_of(make_interference(result.interference)),
        "knowledge": result.knowledge,
        "seeds": list(result.seeds),
        "policies": list(result.policies),
        "summary": summary,
        "paired": [
            {
                "workload": workload,
                "policy": "learned",
                "over": other,
                "difference_pct": _plain(difference_pct(result, workload, "learned", other)),
            }
            for workload in result.workloads
            for other in result.policies
            if other != "learned" and "learned" in result.policies
        ],
        "bounds": "computed" if result.bounds else "left out: they need the extra 'optimum'",
        "bounds_s": [
            {"workload": workload, "seed": seed, "total_s": bound.total_ms / 1000}
            for (workload, seed), bound in result.bounds.items()
        ],
        "frontier": [
            {
                "policy": policy,
                "unslowed_worth_s": weight_of(policy),
                "total_s": _mean_s(runs),
                "not_slowed": jobs_by_class(runs)[0],
            }
            for policy, runs in frontier_points(result).items()
        ],
        "costs": [
            {
                "name": cost.model.name,
                "sjf_usd": cost.sjf_usd,
                "learned_usd": cost.learned_usd,
                "saved_pct": cost.saved_pct,
            }
            for cost in costs(result)
        ],
        "training_s": {name: training_s.get(name) for name in LEARNED if name in result.policies},
        "differs_from_greedy": [{**asdict(one), "different_pct": one.different_pct} for one in disagreements],
        "untrained": [{**asdict(one), "sets": one.sets} for one in untrained_comparisons(result)],
        "thesis": thesis_dict(),
        "pairs": [asdict(pair) for pair in pairs],
        "claims": claims(result),
        "runs": [asdict(one) for one in (*result.outcomes, *result.frontier)],
    }


def claims(result: Colocation) -> dict[str, object]:
    """Whether what is asked of `learned` holds, each by itself."""
    if "learned" not in result.policies:
        return {}
    found: dict[str, object] = {}
    means = {
        (workload, policy): _mean_s(result.of(workload, policy))
        for workload in result.workloads
        for policy in result.policies
    }
    found["lowest_mean_total_time"] = {
        workload: means[workload, "learned"] <= min(means[workload, policy] for policy in result.policies)
        for workload in result.workloads
    }
    found["paired_interval_below_zero"] = {
        f"{workload}, {other}": _wins(result, workload, other)
        for workload in result.workloads
        for other in RIVALS
        if other in result.policies
    }
    found["no_out_of_memory"] = all(
        one.out_of_memory == 0 for workload in result.workloads for one in result.of(workload, "learned")
    )
    if result.bounds:
        above = {
            workload: _mean(above_bound_pct(result, workload, "learned")) for workload in result.workloads
        }
        found["above_bound_pct"] = above
        found["within_5_pct_of_bound_on_average"] = (
            float(np.mean([value or 0.0 for value in above.values()])) <= 5
        )
    if UNTRAINED in result.policies:
        found["untrained_loses"] = {  # its mean is above learned's; not that it loses to all: see `untrained`
            workload: means[workload, UNTRAINED] > means[workload, "learned"] for workload in result.workloads
        }
    if result.frontier and SJF in result.policies:
        sjf_s = means[FRONTIER_WORKLOAD, SJF]
        found["24_of_30_not_slowed_below_sjf"] = any(
            jobs_by_class(runs)[0] >= 24 and _mean_s(runs) < sjf_s
            for runs in frontier_points(result).values()
        )
    return found


def _wins(result: Colocation, workload: str, other: str) -> str:
    """`below`, `touches zero, nothing to win`, `touches zero` or `above`, with the bound as the judge.

    `too few sets, no interval` where there is nothing to tell chance by.
    """
    interval = difference_pct(result, workload, "learned", other)
    if math.isnan(interval.high):
        return "too few sets, no interval"
    if interval.high < 0:
        return "below"
    if interval.low > 0:
        return "above"
    left = _mean(above_bound_pct(result, workload, other))
    return (
        "touches zero, nothing to win" if left is not None and left <= NOTHING_TO_WIN_PCT else "touches zero"
    )


def frontier_points(result: Colocation) -> dict[str, list[Outcome]]:
    """The runs along the frontier, plain `learned` first."""
    if not result.frontier:
        return {}
    points = {"learned": result.of(FRONTIER_WORKLOAD, "learned")}
    for one in result.frontier:
        points.setdefault(one.policy, []).append(one)
    return points


def jobs_by_class(runs: Sequence[Outcome]) -> list[float]:
    """Jobs of a set in each class of slowdown, the mean over seeds."""
    return [float(np.mean([one.slowdown[at] for one in runs])) for at in range(len(CLASSES))]


def _mean_s(runs: Sequence[Outcome]) -> float:
    return float(np.mean([one.total_s for one in runs]))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _interval(values: Sequence[float]) -> dict[str, object]:
    return _plain(interval_95(values))


def _plain(interval: Interval) -> dict[str, object]:
    return {
        "mean": interval.mean,
        "low_95": None if math.isnan(interval.low) else interval.low,
        "high_95": None if math.isnan(interval.high) else interval.high,
        "seeds": interval.count,
    }

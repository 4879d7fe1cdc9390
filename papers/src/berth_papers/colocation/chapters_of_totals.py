"""The chapters on total time and use of the GPU on the five workloads: figures 10–14 of the thesis, and the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from berth.plots import Style
from berth.profiles import WORKLOADS
from berth.report.report import Chapter
from berth.statistics import Interval
from berth_papers.colocation.answer import (
    RIVALS,
    above_bound_pct,
    claims,
    difference_pct,
    interval_95,
)
from berth_papers.colocation.experiment import UNTRAINED, Colocation
from berth_papers.colocation.outcome import Outcome
from berth_papers.colocation.plots import above_bound, bars_by_workload, paired_differences
from berth_papers.colocation.thesis import PUBLISHED, RATIO_TO_SJF, Published


def totals(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    """Total time of each policy on each workload, the table of all numbers beneath."""
    least = {
        workload: float(np.mean([result.bounds[workload, seed].total_ms for seed in result.seeds])) / 1000
        for workload in result.workloads
        if result.bounds
    }
    rows = []
    for workload in result.workloads:
        for policy in result.policies:
            runs = result.of(workload, policy)
            published = PUBLISHED.get((workload, policy), Published())
            columns = (
                (_with_interval(interval_95([one.total_s for one in runs]), 0), published.total_s, 0),
                (f"{np.mean([one.gpu_use_pct for one in runs]):.1f}", published.gpu_use_pct, 2),
                (f"{np.mean([one.gpu_mem_pct for one in runs]):.1f}", published.gpu_mem_pct, 2),
                (f"{max(one.gpu_mem_peak_mib for one in runs):,}", published.gpu_mem_peak_mb, 0),
            )
            rows.append(
                (
                    f"{workload}, {policy}",
                    *(_with_published(ours, published, *theirs) for ours, *theirs in columns),
                    f"{sum(one.out_of_memory for one in runs):,}",
                )
            )
    return Chapter(
        f"Total time on {_named(result.workloads)} (figures 10–14)",
        "From the first submission to the last end of 30 jobs on one GPU, the mean over sets with its 95 % interval. "
        "Crosses are the thesis's own numbers, measured on real jobs: compare their order, not their size. "
        + (
            "The line is the mean of the lower bounds: no schedule ends below. "
            if result.bounds
            else "Lower bounds are left out, since the extra 'optimum' is not installed. "
        )
        + "GPU use counts what tenants use at the speed that "
        "they have. In brackets: the thesis's, whose peak of memory is in MB; a question mark and an open cross where "
        "it contradicts itself, see the last section. greedy and learned plan by the very model of "
        "interference that the simulator runs by: that is the best case, with exact forecasts.",
        [
            (
                "Total time of each policy on each workload",
                bars_by_workload(
                    _by_policy(result, lambda one: one.total_s),
                    styles,
                    "Total time",
                    "s",
                    thesis=_published(lambda published: published.total_s),
                    least=least,
                ),
            )
        ],
        ("Workload, policy", "total time, s", "GPU use, %", "memory, %", "peak, MiB", "out of memory"),
        rows,
        result.policies,
        result.seeds,
    )


def use(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    """Mean use of the GPU and of its memory."""
    return Chapter(
        "Use of the GPU and of its memory (figures 10–14)",
        "Means over the total time; crosses are the thesis's own numbers.",
        [
            (
                "Mean GPU use of each policy on each workload",
                bars_by_workload(
                    _by_policy(result, lambda one: one.gpu_use_pct),
                    styles,
                    "Mean GPU use",
                    "%",
                    thesis=_published(lambda published: published.gpu_use_pct),
                ),
            ),
            (
                "Mean use of GPU memory of each policy on each workload",
                bars_by_workload(
                    _by_policy(result, lambda one: one.gpu_mem_pct),
                    styles,
                    "Mean use of GPU memory",
                    "%",
                    thesis=_published(lambda published: published.gpu_mem_pct),
                ),
            ),
        ],
    )


ASKED = {
    "lowest_mean_total_time": "learned has the lowest mean total time",
    "paired_interval_below_zero": "95 % interval of learned's paired difference, against zero",
    "no_out_of_memory": "learned never ran out of memory",
    "above_bound_pct": "learned above the lower bound, %",
    "within_5_pct_of_bound_on_average": "learned within 5 % of the lower bound on average",
    "untrained_loses": "an untrained network's mean total time is above learned's",
    "24_of_30_not_slowed_below_sjf": "a point of the frontier with 24 of 30 not slowed, faster than SJF",
}


def claimed(result: Colocation) -> Chapter:
    """What is asked of `learned`, and what was found: the claims of the JSON."""
    rows = []
    for key, value in claims(result).items():
        if isinstance(value, dict):
            rows += [(f"{ASKED[key]}: {where}", _found(one)) for where, one in value.items()]
        else:
            rows.append((ASKED[key], _found(value)))
    return Chapter(
        "What is asked of learned, and what was found",
        f"The same as the claims in result.json, over {_sets(len(result.seeds))} a workload. How the untrained network "
        "fares set by set has a section of its own.",
        (),
        ("Asked", "found"),
        rows,
    )


def _named(workloads: Sequence[str]) -> str:
    """Workloads in a title: by name, if they are not all of the thesis."""
    if set(workloads) == set(WORKLOADS):
        return "the five workloads"
    *others, last = workloads
    return f"{', '.join(others)} and {last}" if others else last


def _sets(count: int) -> str:
    return f"{count} set{'' if count == 1 else 's'}"


def _found(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def pairwise(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    """How `learned` fares against each other policy on the same sets."""
    rows = [
        (workload, other, difference_pct(result, workload, "learned", other))
        for workload in result.workloads
        for other in result.policies
        if other != "learned" and "learned" in result.policies
    ]
    shown = [row for row in rows if row[1] in RIVALS]
    return Chapter(
        "learned against the others, set by set",
        "The difference of total times on the same sets, in per cent of the other's mean, with its 95 % interval: "
        "below 0 learned is faster. The figure shows SJF, Tetris and greedy; the table all. Of fewer than three sets "
        "there is no interval. The thesis's DqnGPU against SJF: "
        + ", ".join(
            f"{workload} {100 * (ratio - 1):+.1f} % ({ratio:.3f}{', doubtful' if workload == 'random' else ''})"
            for (workload, _), ratio in RATIO_TO_SJF.items()
        )
        + "; time-sliced is calibrated by the first.",
        [
            (
                "Paired differences of total time",
                paired_differences(shown, styles, "learned's total time against others'"),
            )
        ]
        if shown
        else [],
        ("Workload, other policy", "difference, %", "from", "to"),
        [
            (f"{workload}, {other}", *(_signed(value) for value in (one.mean, one.low, one.high)))
            for workload, other, one in rows
        ],
    )


def to_bound(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    """How far each policy is above what no schedule ends below."""
    shown = [policy for policy in result.policies if policy != UNTRAINED]
    above = {
        policy: {workload: above_bound_pct(result, workload, policy) for workload in result.workloads}
        for policy in result.policies
    }
    return Chapter(
        "Distance to the lower bound",
        "The bound is a linear program over all that may run together: every schedule of whole jobs is above it, and "
        "so is every one that may stop and go on at will, for it does not know in which order a job needs what. The "
        "part of the distance that no schedule can close is therefore not zero.",
        [
            (
                "How far each policy is above the lower bound",
                above_bound({policy: above[policy] for policy in shown}, styles, "Above the lower bound"),
            )
        ],
        ("Policy", *(f"{workload}, %" for workload in result.workloads), "mean, %"),
        [
            (
                policy,
                *(f"{np.mean(above[policy][workload]):.2f}" for workload in result.workloads),
                f"{np.mean([np.mean(values) for values in above[policy].values()]):.2f}",
            )
            for policy in result.policies
        ],
    )


def _by_policy(result: Colocation, of: Callable[[Outcome], float]) -> dict[str, dict[str, Interval]]:
    return {
        policy: {
            workload: interval_95([of(one) for one in result.of(workload, policy)])
            for workload in result.workloads
        }
        for policy in result.policies
    }


def _published(of: Callable[[Published], float | None]) -> dict[tuple[str, str], tuple[float, bool]]:
    """By workload and policy the thesis's number, and whether it is doubtful."""
    values = ((key, of(one), one.doubtful) for key, one in PUBLISHED.items())
    return {key: (value, doubtful) for key, value, doubtful in values if value is not None}


def _signed(value: float) -> str:
    """With two decimals; nothing for a limit that few sets do not have."""
    return "" if math.isnan(value) else f"{value:+.2f}"


def _with_published(ours: str, published: Published, value: float | None, decimals: int) -> str:
    """Our number, and the thesis's in brackets where it prints one, with a question mark where it is doubtful."""
    return ours if value is None else f"{ours} [{value:,.{decimals}f}{'?' if published.doubtful else ''}]"


def _with_interval(interval: Interval, decimals: int) -> str:
    half = "" if math.isnan(interval.high) else f" ± {interval.high - interval.mean:,.{decimals}f}"
    return f"{interval.mean:,.{decimals}f}{half}"

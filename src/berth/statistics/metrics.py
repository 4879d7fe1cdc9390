"""The metrics that tables and plots compare policies by: name, unit, direction and one-line definition.

A policy that lets jobs share GPUs does the same work on less, so that what it holds tells against it. Where runs know
what was really used, that is compared, and no policy is marked as the best for what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from berth.history.values.durations import HOURS_NAMES, hours_unit
from berth.statistics.summary import Summary


class Unit(StrEnum):
    """What a metric counts in."""

    PERCENT = "%"
    SECONDS = "seconds"
    GPU_HOURS = "GPU-hours"
    KWH = "kWh"
    KG = "kg"
    COUNT = ""
    TIMES = "times"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a Summary, and how to read it."""

    name: str
    unit: Unit
    of: Callable[[Summary], float]
    best: Callable[[Iterable[float]], float] | None
    """`max` where more is better, `min` where less is, None where neither is."""
    definition: str
    """One line, for people."""


METRICS = (
    Metric(
        "GPU allocation",
        Unit.PERCENT,
        lambda summary: summary.gpu_allocation_pct,
        max,
        "GPU capacity that jobs held, needed or not (a whole GPU counts whole), from the first submission to the last"
        " event",
    ),
    Metric(
        "Allocation while jobs arrive",
        Unit.PERCENT,
        lambda summary: summary.gpu_allocation_arriving_pct,
        max,
        "GPU allocation from the first submission to the last, which a long tail of few jobs does not lower",
    ),
    Metric(
        "GPU utilisation",
        Unit.PERCENT,
        lambda summary: summary.gpu_utilisation_pct,
        max,
        "GPU capacity that went into work of jobs that finished; what was lost or slowed down is not in it",
    ),
    Metric(
        "GPUs busy",
        Unit.PERCENT,
        lambda summary: summary.gpu_busy_pct,
        None,
        "GPUs with at least one job, averaged over time",
    ),
    Metric(
        "Fragmentation",
        Unit.PERCENT,
        lambda summary: summary.fragmentation_pct,
        min,
        "Idle GPU capacity that lies on GPUs which are partly held, of all idle GPU capacity",
    ),
    Metric(
        "Median wait",
        Unit.SECONDS,
        lambda summary: summary.waiting_time_s.median,
        min,
        "Half of the jobs that started waited at most this long from submission to their last start",
    ),
    Metric(
        "Mean wait",
        Unit.SECONDS,
        lambda summary: summary.waiting_time_s.mean,
        min,
        "Time from submission to the last start, over the jobs that started",
    ),
    Metric(
        "p90 wait",
        Unit.SECONDS,
        lambda summary: summary.waiting_time_s.p90,
        min,
        "Nine of ten jobs that started waited at most this long",
    ),
    Metric(
        "p99 wait",
        Unit.SECONDS,
        lambda summary: summary.waiting_time_s.p99,
        min,
        "99 of 100 jobs that started waited at most this long",
    ),
    Metric(
        "Mean completion",
        Unit.SECONDS,
        lambda summary: summary.completion_time_s.mean,
        min,
        "Time from submission to the end, over the jobs that finished",
    ),
    Metric(
        "Mean slowdown",
        Unit.TIMES,
        lambda summary: summary.bounded_slowdown.mean,
        min,
        "Completion time over the run time alone (at least 10 s), over the jobs that finished; 1 is best",
    ),
    Metric(
        "Makespan",
        Unit.SECONDS,
        lambda summary: summary.makespan_s,
        min,
        "Time from the first submission to the last event",
    ),
    Metric(
        "Wasted",
        Unit.GPU_HOURS,
        lambda summary: summary.gpu_hours.wasted,
        min,
        "GPU-hours held and lost: failures, evictions without a checkpoint, slow neighbours",
    ),
    Metric(
        "Unfinished jobs",
        Unit.COUNT,
        lambda summary: float(summary.jobs - summary.finished),
        min,
        "Jobs that did not finish: failed, rejected, or still waiting or running at the last event",
    ),
    Metric(
        "Rejected jobs",
        Unit.COUNT,
        lambda summary: float(summary.rejected),
        min,
        "of those, jobs that left: no node could hold them, their patience ended, or no policy would ever start them",
    ),
    Metric(
        "Evictions",
        Unit.COUNT,
        lambda summary: float(summary.evictions),
        min,
        "How often a running job was stopped and queued again",
    ),
    Metric(
        "Goodput",
        Unit.PERCENT,
        lambda summary: summary.goodput_pct,
        max,
        "Held GPU time that went into work of jobs that finished: not lost to failures, restarts or slow neighbours",
    ),
    Metric(
        "p90 finish-time fairness",
        Unit.TIMES,
        lambda summary: summary.finish_time_fairness.p90,
        min,
        "90 of 100 jobs took at most this many times as long as on an equal share of the cluster; up to 1 is fair",
    ),
    Metric(
        "Jain's index by user",
        Unit.COUNT,
        lambda summary: summary.jain_users,
        max,
        "How alike users were served, by the speed of their jobs, waiting included: 1 is perfectly alike",
    ),
    Metric(
        "Jain's index by virtual cluster",
        Unit.COUNT,
        lambda summary: summary.jain_virtual_clusters,
        max,
        "How alike virtual clusters were served, by the speed of their jobs, waiting included",
    ),
)
"""What a table compares, in its order, if what jobs really use is unknown."""

REAL_USE = (
    Metric(
        "GPU use",
        Unit.PERCENT,
        lambda summary: math.nan if summary.gpu_use_pct is None else summary.gpu_use_pct,
        max,
        "What jobs really used of all GPUs: by their profiles, at the speeds that they had beside each other; not cut"
        " at 100 %",
    ),
    Metric(
        "GPU memory use",
        Unit.PERCENT,
        lambda summary: math.nan if summary.gpu_mem_use_pct is None else summary.gpu_mem_use_pct,
        None,
        "What jobs really used of the memory of all GPUs, by their profiles",
    ),
)
"""What is compared first where a model of interference knows profiles."""

DEADLINES = Metric(
    "Deadlines missed",
    Unit.PERCENT,
    lambda summary: math.nan if summary.deadlines_missed_pct is None else summary.deadlines_missed_pct,
    min,
    "Jobs with a deadline that had not finished by then",
)
"""What is compared too where jobs have deadlines."""

TIERS = (
    Metric(
        "Urgent wait",
        Unit.SECONDS,
        lambda summary: math.nan if (wait := summary.urgent_waiting_time_s) is None else wait.mean,
        min,
        "Mean wait of the jobs of a priority above 0",
    ),
    Metric(
        "Urgent p90 wait",
        Unit.SECONDS,
        lambda summary: math.nan if (wait := summary.urgent_waiting_time_s) is None else wait.p90,
        min,
        "Nine of ten of these jobs waited at most this long",
    ),
    Metric(
        "Other wait",
        Unit.SECONDS,
        lambda summary: math.nan if (wait := summary.other_waiting_time_s) is None else wait.mean,
        min,
        "Mean wait of the other jobs, such as spot jobs: from submission to the last start",
    ),
    Metric(
        "Lost to evictions",
        Unit.GPU_HOURS,
        lambda summary: math.nan if summary.evicted_gpu_hours is None else summary.evicted_gpu_hours,
        min,
        "GPU-hours held by attempts that were evicted and kept nothing",
    ),
)
"""What is compared too where jobs are of two tiers: a priority above 0, and others."""

PRICED = (
    Metric(
        "Cost",
        Unit.COUNT,
        lambda summary: math.nan if summary.cost is None else summary.cost,
        min,
        "Price of the GPU-hours that jobs held, a shared GPU once, and of the energy",
    ),
    Metric(
        "Energy",
        Unit.KWH,
        lambda summary: math.nan if summary.energy_kwh is None else summary.energy_kwh,
        min,
        "What all GPUs drew from the first submission to the last event, by the price list's watts",
    ),
    Metric(
        "CO₂",
        Unit.KG,
        lambda summary: math.nan if summary.co2_kg is None else summary.co2_kg,
        min,
        "CO₂ of that energy, by the price list's grams per kWh",
    ),
)
"""What is compared too where a price list says it."""

_BY_WHAT_IS_HELD = frozenset({"GPU allocation", "Allocation while jobs arrive", "GPU utilisation"})

HEADLINES = tuple(
    metric
    for metric in METRICS
    if metric.name
    in {"GPU allocation", "GPU utilisation", "Fragmentation", "Mean wait", "Mean completion", "Mean slowdown"}
)
"""Those of METRICS that are worth a plot each."""


def metrics_of(summaries: Iterable[Summary]) -> tuple[Metric, ...]:
    """What a table of these runs compares: real use first where any of them knows it, and METRICS where none does."""
    runs = list(summaries)
    late = (DEADLINES,) if any(summary.deadlines_missed_pct is not None for summary in runs) else ()
    tiers = TIERS if any(summary.evicted_gpu_hours is not None for summary in runs) else ()
    last = (*late, *tiers, *_priced(runs))
    if not _knows_use(runs):
        return METRICS + last
    return (
        *REAL_USE,
        *(replace(metric, best=None) if metric.name in _BY_WHAT_IS_HELD else metric for metric in METRICS),
        *last,
    )


def _priced(runs: Sequence[Summary]) -> tuple[Metric, ...]:
    priced = [metric for metric in PRICED if not all(math.isnan(metric.of(summary)) for summary in runs)]
    currency = next((summary.currency for summary in runs if summary.currency), "")
    if priced and currency:
        priced[0] = replace(priced[0], name=f"Cost ({currency})")
    return tuple(priced)


def headlines_of(summaries: Iterable[Summary]) -> tuple[Metric, ...]:
    """Those of `metrics_of` that are worth a plot each: real use takes the place of what is held."""
    if not _knows_use(summaries):
        return HEADLINES
    return REAL_USE + tuple(metric for metric in HEADLINES if metric.name not in _BY_WHAT_IS_HELD)


def matter_most(metrics: Iterable[str]) -> list[str]:
    """Of these names of metrics the five to look at first, in the order given."""
    names = list(metrics)
    # What is held says little where policies hold more than jobs ask for.
    fifth = next(name for name in ("GPU use", "Mean slowdown") if name in names)
    return [name for name in names if name in {fifth, "Mean wait", "p99 wait", "Mean completion", "Makespan"}]


def _knows_use(summaries: Iterable[Summary]) -> bool:
    return any(summary.gpu_use_pct is not None for summary in summaries)


def readable_unit(unit: Unit, values: Iterable[float]) -> tuple[float, str]:
    """A factor and a unit in which these values are easily read: many seconds as days, for one."""
    if unit not in (Unit.SECONDS, Unit.GPU_HOURS):
        return 1.0, str(unit)
    largest = max((abs(value) for value in values if np.isfinite(value)), default=0.0)
    if unit is Unit.GPU_HOURS:
        factor, name = hours_unit(largest)
        return float(factor), f"GPU-{HOURS_NAMES[name]}"
    for seconds, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if largest >= 2 * seconds:
            return 1.0 / seconds, name
    return 1.0, "seconds"

"""The metrics that tables and plots compare policies by: `metrics.csv` has the name, unit and definition of each.

A policy that lets jobs share GPUs does the same work on less, so that what it holds tells against it. Where runs know
what was really used, that is compared, and no policy is marked as the best for what it holds.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from typing import Any

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


def _value_at(path: str) -> Callable[[Summary], float]:
    """Reads a field of a summary, or a field of that one (`waiting_time_s.mean`); NaN for None."""

    def value(summary: Summary) -> float:
        found: Any = summary
        for name in path.split("."):
            found = None if found is None else getattr(found, name)
        return math.nan if found is None else float(found)

    return value


def _of_kind(kind: str) -> tuple[Metric, ...]:
    """The metrics of one kind, in the order of `metrics.csv`."""
    directions = {"max": max, "min": min, "": None}
    return tuple(
        Metric(
            *(
                row["name"],
                Unit(row["unit"]),
                _value_at(row["of"]),
                directions[row["best"]],
                row["definition"],
            )
        )
        for row in _ROWS
        if row["kind"] == kind
    )


_ROWS = list(
    csv.DictReader(files("berth.statistics").joinpath("metrics.csv").read_text("utf-8").splitlines())
)

METRICS = _of_kind("")
"""What a table compares, in its order, if what jobs really use is unknown."""
REAL_USE = _of_kind("use")
"""What is compared first where a model of interference knows profiles."""
DEADLINES = _of_kind("deadlines")
"""What is compared too where jobs have deadlines."""
TIERS = _of_kind("tiers")
"""What is compared too where jobs are of two tiers: a priority above 0, and others."""
MEMORY = _of_kind("memory")
"""What is compared too where a run says what becomes of jobs that need more GPU memory."""
PRICED = _of_kind("prices")
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
    late = DEADLINES if any(summary.deadlines_missed_pct is not None for summary in runs) else ()
    tiers = TIERS if any(summary.evicted_gpu_hours is not None for summary in runs) else ()
    memory = MEMORY if any(summary.growths is not None for summary in runs) else ()
    own = dict.fromkeys(name for summary in runs for name in summary.own)
    last = (*late, *tiers, *memory, *_priced(runs), *map(_own, own))
    if not _knows_use(runs):
        return METRICS + last
    return (
        *REAL_USE,
        *(replace(metric, best=None) if metric.name in _BY_WHAT_IS_HELD else metric for metric in METRICS),
        *last,
    )


def _own(name: str) -> Metric:
    return Metric(
        name, Unit.COUNT, lambda summary: summary.own.get(name, math.nan), None, "a function of your own"
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
    return [name for name in names if name in {fifth, "Mean wait", "p90 wait", "Mean completion", "Makespan"}]


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

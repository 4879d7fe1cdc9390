"""What a sweep keeps of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from berth.statistics import Metric, Run, matter_most, metrics_of


class Case(NamedTuple):
    """What a run is under, apart from its policy and seed."""

    load: float
    """Times of submission are divided by this."""
    size: float
    """Part of the cluster's nodes."""
    conditions: str
    """Their name in the plan."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Swept(Run):
    """One run of a sweep."""

    case: Case
    nodes: int
    gpus: int


def shown_of(runs: Sequence[Swept]) -> list[Metric]:
    """The five metrics to look at first, and all of the user's own."""
    metrics = metrics_of(run.summary for run in runs)
    first = matter_most(metric.name for metric in metrics)
    own = {name for run in runs for name in run.summary.own}
    return [metric for metric in metrics if metric.name in own.union(first)]

"""What a sweep keeps of each run, and the numbers that it compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from berth.statistics import Metric, Summary, Unit, matter_most, metrics_of, readable_unit


class Case(NamedTuple):
    """What a run is under, apart from its policy and seed."""

    load: float
    """Times of submission are divided by this."""
    size: float
    """Part of the cluster's nodes."""
    conditions: str
    """Their name in the plan."""


@dataclass(frozen=True, slots=True, eq=False)
class Swept:
    """One run of a sweep."""

    case: Case
    policy: str
    seed: int
    oracle: bool
    """Whether the policy chose by true run times: a bound, never the best."""
    nodes: int
    gpus: int
    summary: Summary
    own: Mapping[str, float]
    """The user's own metrics by name; NaN where undefined."""

    @property
    def label(self) -> str:
        """The policy's name, and that it is an oracle if it is one."""
        return f"{self.policy} (oracle)" if self.oracle else self.policy


@dataclass(frozen=True, slots=True)
class Number:
    """One number of every run."""

    name: str
    unit: Unit | None
    """None for the user's own, which have none."""
    of: Callable[[Swept], float]
    best: Callable[[Iterable[float]], float] | None = None
    """`max` where more is better, `min` where less is, None where neither is."""
    definition: str = "a function of your own"

    def readable(self, runs: Iterable[Swept]) -> tuple[float, str]:
        """A factor and a unit in which the number is easily read for these runs."""
        return (1.0, "") if self.unit is None else readable_unit(self.unit, [self.of(run) for run in runs])


def numbers_of(runs: Sequence[Swept]) -> list[Number]:
    """All metrics of these runs, then the user's own, each in the unit that it counts in."""
    own = dict.fromkeys(name for run in runs for name in run.own)
    return [*map(_of_metric, metrics_of(run.summary for run in runs)), *map(_own, own)]


def _of_metric(metric: Metric) -> Number:
    return Number(
        metric.name, metric.unit, lambda run: metric.of(run.summary), metric.best, metric.definition
    )


def _own(name: str) -> Number:
    return Number(name, None, lambda run: run.own.get(name, math.nan))


def shown_of(numbers: Sequence[Number]) -> list[Number]:
    """The five metrics to look at first, and all of the user's own."""
    first = matter_most(number.name for number in numbers if number.unit is not None)
    return [number for number in numbers if number.unit is None or number.name in first]

"""How policies stand against each other: means over seeds with intervals, and which is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from berth.statistics.metrics import Metric, Unit, metrics_of, readable_unit
from berth.statistics.run import Run
from berth.statistics.spread import Interval, confidence_interval_95, paired_difference_95


class Mark(Enum):
    """Where a policy stands in one metric."""

    NONE = ""
    BEST = "best"
    LIKE_BEST = "like best"
    """Not significantly worse than the best: the 95 % interval of the paired difference contains 0."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy in one metric."""

    policy: str
    interval: Interval
    """Over the seeds on which the metric is defined."""
    mark: Mark
    oracle: bool = False
    """Whether it chose by true run times: a bound, which is never marked."""

    @property
    def label(self) -> str:
        """The policy's name, and that it is an oracle if it is one."""
        return f"{self.policy} (oracle)" if self.oracle else self.policy


def standings(runs: Sequence[Run], metric: Metric) -> tuple[Standing, ...]:
    """The policies in one metric, in the order in which the runs first name them.

    No policy is marked if all are equal or the metric has no better direction, and no oracle beside others.
    """
    oracles = {run.policy for run in runs if run.oracle}
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        by_seed = values.setdefault(run.policy, {})
        if math.isfinite(value := metric.of(run.summary)):
            by_seed[run.seed] = value
    intervals = {name: confidence_interval_95(list(by_seed.values())) for name, by_seed in values.items()}
    ranked = (intervals.keys() - oracles) or intervals.keys()
    means = {name: intervals[name].mean for name in intervals if name in ranked and intervals[name].count}
    best = ""
    if metric.best is not None and len(set(means.values())) > 1:
        wanted = metric.best(means.values())
        best = next(name for name, mean in means.items() if mean == wanted)
    return tuple(
        Standing(name, interval, _mark(name, best, means, values), name in oracles)
        for name, interval in intervals.items()
    )


def _mark(
    name: str, best: str, means: Mapping[str, float], values: Mapping[str, Mapping[int, float]]
) -> Mark:
    if not best or name not in means:
        return Mark.NONE
    if means[name] == means[best]:
        return Mark.BEST
    seeds = sorted(values[name].keys() & values[best].keys())
    difference = paired_difference_95(
        [values[name][seed] for seed in seeds], [values[best][seed] for seed in seeds]
    )
    return Mark.LIKE_BEST if difference.low <= 0 <= difference.high else Mark.NONE


@dataclass(frozen=True, slots=True)
class Cell:
    """A mean, with half of its 95 % interval where there is one."""

    mean: str
    half: str
    mark: str
    """`best`, `like best` or nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of every policy."""

    metric: str
    unit: str
    definition: str
    better: str
    """`↑` if more is better, `↓` if less is, and nothing if neither is."""
    cells: tuple[Cell, ...]

    @property
    def undefined(self) -> bool:
        """Whether no policy has this metric."""
        return all(cell.mean == "–" for cell in self.cells)

    @property
    def same(self) -> bool:
        """Whether several policies have it and all have the same."""
        return len(self.cells) > 1 and len({(cell.mean, cell.half) for cell in self.cells}) == 1


def table_rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """A row for each metric; its cells are the policies in the order in which the runs first name them."""
    return tuple(_row(runs, metric) for metric in metrics_of(run.summary for run in runs))


def _row(runs: Sequence[Run], metric: Metric) -> Row:
    policies = standings(runs, metric)
    means = [standing.interval.mean for standing in policies]
    factor, unit = readable_unit(metric.unit, means)
    largest = max((abs(mean * factor) for mean in means if math.isfinite(mean)), default=0.0)
    whole = metric.unit is Unit.COUNT and all(
        not math.isfinite(mean) or mean == round(mean) for mean in means
    )
    decimals = 0 if whole or largest >= 1000 else 1 if largest >= 10 else 2
    cells = tuple(_cell(standing.interval, standing.mark, factor, decimals) for standing in policies)
    better = "↑" if metric.best is max else "↓" if metric.best is min else ""
    return Row(metric.name, unit, metric.definition, better, cells)


def _cell(interval: Interval, mark: Mark, factor: float, decimals: int) -> Cell:
    if not interval.count:
        return Cell("–", "", "")
    half = f"{(interval.high - interval.mean) * factor:,.{decimals}f}" if interval.count > 1 else ""
    return Cell(f"{interval.mean * factor:,.{decimals}f}", half, mark.value)

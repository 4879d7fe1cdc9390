"""The table of a report: metrics down, policies across, as texts that are ready to print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from berth.statistics.comparison import Mark, standings
from berth.statistics.metrics import Metric, Unit, metrics_of, readable_unit
from berth.statistics.run import Run
from berth.statistics.spread import Interval


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

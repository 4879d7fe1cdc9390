"""A sweep as a table: a row per policy and case, a column per metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from berth.counts import counted
from berth.experiments.compare.table import TextTable, plain
from berth.experiments.sweep.plan import Case
from berth.statistics import (
    Interval,
    Mark,
    Metric,
    Run,
    matter_most,
    metrics_of,
    readable_unit,
    standings,
)
from berth.statistics.comparison import in_sentence

AXES = ("load", "size", "conditions")
"""What cases differ by, in the order of their fields."""


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


def varied(cases: Iterable[Case]) -> list[int]:
    """Fields of a case by which these differ."""
    known = list(cases)
    return [at for at in range(len(AXES)) if len({case[at] for case in known}) > 1]


def by_case(runs: Sequence[Swept]) -> dict[Case, list[Swept]]:
    """The runs of each case, in the order in which they come."""
    found: dict[Case, list[Swept]] = {}
    for run in runs:
        found.setdefault(run.case, []).append(run)
    return found


def answers_of(runs: Sequence[Swept]) -> list[str]:
    """One sentence per policy that is ever the best by the first metric, in how many cases; and one for sizes that are
    the same cluster."""
    metric = shown_of(runs)[0]
    cases = by_case(runs)
    wins = Counter(
        standing.label
        for of_case in cases.values()
        for standing in standings(of_case, metric)
        if standing.mark is Mark.BEST
    )
    extreme = "highest" if metric.best is max else "lowest"
    many = counted(len(cases), "case")
    sizes: dict[tuple[int, int], dict[str, None]] = {}
    for run in runs:
        sizes.setdefault((run.nodes, run.gpus), {})[_value(run.case[AXES.index("size")])] = None
    same = [
        f"Sizes {' and '.join(alike)} are the same cluster of {counted(nodes, 'node')}."
        for (nodes, _), alike in sizes.items()
        if len(alike) > 1
    ]
    return same + [
        f"{label} has the {extreme} {in_sentence(metric.name)} in {won} of {many}."
        for label, won in wins.most_common()
    ]


def grid(runs: Sequence[Swept]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: what the cases differ by, the policy, and each metric's mean over seeds."""
    shown = shown_of(runs)
    axes = varied(run.case for run in runs)
    units = [readable(metric, runs) for metric in shown]
    headings = [AXES[at] for at in axes] + ["policy"]
    headings += [
        f"{metric.name}, {unit}" if unit else metric.name
        for metric, (_, unit) in zip(shown, units, strict=True)
    ]
    rows = []
    for case, of_case in by_case(runs).items():
        found = [standings(of_case, metric) for metric in shown]
        for of_policy in zip(*found, strict=True):
            cells = [
                _cell(standing.interval, factor) + (" *" if standing.mark is Mark.BEST else "")
                for standing, (factor, _) in zip(of_policy, units, strict=True)
            ]
            rows.append([*(_value(case[at]) for at in axes), of_policy[0].label, *cells])
    return headings, rows


def readable(metric: Metric, runs: Sequence[Swept]) -> tuple[float, str]:
    """A factor and a unit in which a metric is easily read for these runs."""
    return readable_unit(metric.unit, [metric.of(run.summary) for run in runs])


def rich_grid(runs: Sequence[Swept]) -> Table:
    """The table for a terminal."""
    headings, rows = grid(runs)
    names = headings.index("policy") + 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at < names else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    several = len({run.seed for run in runs}) > 1
    marked = any(cell.endswith(" *") for row in rows for cell in row)
    captions = ["* best of its case"] if marked else []
    captions += ["± half of the 95 % interval over seeds"] if several else []
    table.caption = "; ".join(captions)
    return table


def text_grid(runs: Sequence[Swept]) -> TextTable:
    """What was found, and the table, as plain text."""
    return plain(answers_of(runs), rich_grid(runs))


def _cell(interval: Interval, factor: float) -> str:
    """A mean with three digits or more, and half of its interval with as many decimals; a dash for an infinite one."""
    mean, half = interval.mean * factor, (interval.high - interval.mean) * factor
    if not math.isfinite(mean):
        return "–"
    exponent = int(f"{mean:.2e}".partition("e")[2])  # of the rounded mean: 999.7 has four digits
    decimals = max(0, 2 - exponent)
    text = f"{mean:,.{decimals}f}"
    return text if interval.count < 2 else f"{text} ±{half:,.{decimals}f}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"

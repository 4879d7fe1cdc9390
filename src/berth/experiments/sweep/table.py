"""A sweep as a table: a row per policy and case, a column per metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from berth.counts import counted
from berth.experiments.compare.table import TextTable, plain
from berth.experiments.sweep.swept import Case, Number, Swept, numbers_of, shown_of
from berth.statistics import Interval, confidence_interval_95
from berth.statistics.answers import in_sentence

AXES = ("load", "size", "conditions")
"""What cases differ by, in the order of their fields."""


def interval_of(runs: Iterable[Swept], number: Number) -> Interval:
    """The mean of the runs' finite values, and its 95 % interval."""
    values = [number.of(run) for run in runs]
    return confidence_interval_95([value for value in values if math.isfinite(value)])


def varied(cases: Iterable[Case]) -> list[int]:
    """Fields of a case by which these differ."""
    known = list(cases)
    return [at for at in range(len(AXES)) if len({case[at] for case in known}) > 1]


def by_case(runs: Sequence[Swept]) -> dict[Case, dict[str, list[Swept]]]:
    """The runs of each case and policy label, in the order in which they come."""
    found: dict[Case, dict[str, list[Swept]]] = {}
    for run in runs:
        found.setdefault(run.case, {}).setdefault(run.label, []).append(run)
    return found


def best_in(policies: dict[str, list[Swept]], number: Number) -> list[str]:
    """The policies of a case with the best mean, by label; none where all means are equal. Oracles do not count."""
    means = {label: interval_of(runs, number).mean for label, runs in policies.items() if not runs[0].oracle}
    finite = {label: mean for label, mean in means.items() if math.isfinite(mean)}
    if number.best is None or len(set(finite.values())) < 2:
        return []
    best = number.best(finite.values())
    return [label for label, mean in finite.items() if mean == best]


def answers_of(runs: Sequence[Swept]) -> list[str]:
    """One sentence per policy that is ever the best by the first metric: in how many cases."""
    shown = shown_of(numbers_of(runs))
    cases = by_case(runs)
    wins: dict[str, int] = {}
    for policies in cases.values():
        for label in best_in(policies, shown[0]):
            wins[label] = wins.get(label, 0) + 1
    most = sorted(wins.items(), key=lambda item: -item[1])
    extreme = "highest" if shown[0].best is max else "lowest"
    many = counted(len(cases), "case")
    return [
        f"{label} has the {extreme} {in_sentence(shown[0].name)} in {won} of {many}." for label, won in most
    ]


def grid(runs: Sequence[Swept]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: what the cases differ by, the policy, and each metric's mean over seeds."""
    shown = shown_of(numbers_of(runs))
    axes = varied(run.case for run in runs)
    units = [number.readable(runs) for number in shown]
    headings = [AXES[at] for at in axes] + ["policy"]
    headings += [
        f"{number.name}, {unit}" if unit else number.name
        for number, (_, unit) in zip(shown, units, strict=True)
    ]
    rows = []
    for case, policies in by_case(runs).items():
        best = [best_in(policies, number) for number in shown]
        for label, of_policy in policies.items():
            cells = [
                _cell(interval_of(of_policy, number), factor) + (" *" if label in winners else "")
                for number, (factor, _), winners in zip(shown, units, best, strict=True)
            ]
            rows.append([*(_value(case[at]) for at in axes), label, *cells])
    return headings, rows


def rich_grid(runs: Sequence[Swept]) -> Table:
    """The table for a terminal."""
    headings, rows = grid(runs)
    names = headings.index("policy") + 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at < names else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    several = any(len(each) > 1 for policies in by_case(runs).values() for each in policies.values())
    marked = any(cell.endswith(" *") for row in rows for cell in row)
    captions = ["* best of its case"] if marked else []
    captions += ["± half of the 95 % interval over seeds"] if several else []
    table.caption = "; ".join(captions)
    return table


def text_grid(runs: Sequence[Swept]) -> TextTable:
    """What was found, and the table, as plain text."""
    return plain(answers_of(runs), rich_grid(runs))


def _cell(interval: Interval, factor: float) -> str:
    half = f" ±{_plain((interval.high - interval.mean) * factor)}" if interval.count > 1 else ""
    return _plain(interval.mean * factor) + half


def _plain(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"

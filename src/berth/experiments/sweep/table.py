"""A sweep as a table: a row per policy and case, a column per metric."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from berth.counts import counted
from berth.errors import SettingError, TraceError
from berth.experiments.compare.comparison import continued_results, rows_of
from berth.experiments.compare.parallel import check_address
from berth.experiments.compare.sweep import Result, Task
from berth.experiments.compare.table import TextTable, plain
from berth.experiments.sweep.plan import Case, Plan, read_plan
from berth.frames import Framed
from berth.policies import Progress
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
    """One sentence per policy that is ever the best by the first metric: in how many cases."""
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
    return [
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
    half = f" ±{_plain((interval.high - interval.mean) * factor)}" if interval.count > 1 else ""
    return _plain(interval.mean * factor) + half


def _plain(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Framed):
    """What came out: one run per policy, seed, load, size and conditions, in the order of the plan."""

    plan: Plan
    runs: tuple[Swept, ...]
    skipped: tuple[TraceError, ...] = ()
    """Bad rows that were left out because the plan asks for it."""

    @property
    def answers(self) -> list[str]:
        """What was found, in sentences."""
        return answers_of(self.runs)

    def table(self) -> TextTable:
        """What was found, then a row per case and policy, with half of the means' 95 % interval over seeds."""
        return text_grid(self.runs)

    def rows(self) -> list[dict[str, object]]:
        """One row per run and metric, with what the run was under.

        `load`, `size`, `nodes`, `gpus`, `conditions`, `policy`, `oracle`, `seed`, `metric`, `unit`, `value`, `better`:
        the last four as `Comparison.rows` has them. A metric of your own has no unit.
        """
        metrics = metrics_of(run.summary for run in self.runs)
        return [
            {
                "load": run.case.load,
                "size": run.case.size,
                "nodes": run.nodes,
                "gpus": run.gpus,
                "conditions": run.case.conditions,
                **row,
            }
            for run in self.runs
            for row in rows_of(run, metrics)
        ]

    def to_dict(self) -> dict[str, object]:
        """What `--json` prints: the answers, the plan's names and the rows."""
        return {
            "answers": self.answers,
            "trace": self.plan.trace.path,
            "policies": list(self.plan.policies),
            "seeds": list(self.plan.seeds),
            "loads": list(self.plan.loads),
            "sizes": list(self.plan.sizes),
            "conditions": list(self.plan.conditions),
            "runs": len(self.runs),
            "rows": self.rows(),
            "skipped": [str(error) for error in self.skipped],
        }

    def __repr__(self) -> str:
        return f"Sweep({self.plan.trace.path!r}, {len(self.runs):,} runs of {len(self.plan.cases):,} cases)"


def sweep(
    plan: Plan | str | os.PathLike[str] | Mapping[str, Any],
    *,
    processes: int = 1,
    ray: str | None = None,
    keep: str | os.PathLike[str] | None = None,
    part: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Simulate every policy and seed of a plan at every load, size and condition.

    The plan is a TOML file or a mapping of the same keys (docs/sweeps.md lists them). The runs are spread over
    `processes`, or over the Ray cluster at the address `ray`. With `keep` each finished run is written into that
    folder, and not run again, also where the plan has grown since. With `part`, such as (3, 10), only the third tenth
    of the runs is made and returned; a sweep with the same `keep` joins the parts.

    Raises SettingError for a plan that could not be run; then nothing has run.
    """
    if processes < 1:
        raise SettingError(f"a sweep runs on 1 or more processes, not {processes}")
    if part is not None and keep is None:
        raise SettingError("a part of a sweep is lost unless it is kept; name a folder")
    read = plan if isinstance(plan, Plan) else read_plan(plan)
    if ray is not None:
        check_address(ray)
    tasks = read.tasks()
    if part is not None:
        number, parts = part
        if not 1 <= number <= parts:
            raise SettingError(f"there is no part {number} of {parts}; expected 1 to {parts}")
        tasks = tasks[number - 1 :: parts]
    found: dict[int, Result] = {}
    for task, result in continued_results(
        [task for _, task in tasks], processes, ray, keep, progress, apart=True
    ):
        found[id(task)] = result
    runs = [_swept(case, task, found[id(task)]) for case, task in tasks]
    order = {case: at for at, case in enumerate(read.cases)}
    runs.sort(key=lambda run: (order[run.case], read.policies.index(run.policy), read.seeds.index(run.seed)))
    skipped = next((found[id(task)].skipped for _, task in tasks if found[id(task)].skipped), ())
    if part is None and not any(run.summary.jobs for run in runs):
        raise SettingError(f"{read.name}: trace: {read.trace.path} has no jobs to replay")
    return Sweep(read, tuple(runs), skipped)


def _swept(case: Case, task: Task, result: Result) -> Swept:
    run = replace(result.run, film=None, schedule=None)
    values = {field.name: getattr(run, field.name) for field in fields(run)}
    return Swept(**values, case=case, nodes=len(task.nodes), gpus=sum(node.gpus for node in task.nodes))

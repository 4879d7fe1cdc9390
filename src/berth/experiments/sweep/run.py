"""A sweep: every policy and seed of a plan under every case, as one table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from berth.errors import SettingError, TraceError, check_kind
from berth.experiments.compare.comparison import continued_results, rows_of
from berth.experiments.compare.parallel import check_address
from berth.experiments.compare.sweep import Result, Task
from berth.experiments.compare.table import TextTable
from berth.experiments.sweep.plan import Case, Plan, read_plan
from berth.experiments.sweep.table import Swept, answers_of, text_grid
from berth.frames import Framed
from berth.policies import Progress
from berth.statistics import (
    metrics_of,
)


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
    check_kind(
        plan, Plan | str | os.PathLike | Mapping, "sweep takes a plan: a TOML file or a mapping of its keys"
    )
    check_kind(processes, int, "sweep takes a number of processes")
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

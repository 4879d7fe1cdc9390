"""The full tables of Alibaba's PAI trace of 2020: one job a row of `pai_task_table`.

Weng and others, *MLaaS in the Wild*, NSDI 2022 (see `pai`). The publisher's tables have no header line; their
columns stand in a file of the same name that ends on `.header`, which must lie beside the table.

A task becomes a job `job_name/task_name`. It is submitted when it was launched (`start_time`, seconds), and takes
`inst_num` instances of `plan_gpu` and `plan_cpu` (per cent of a GPU and of a core) and `plan_mem` (GB). Where
`pai_instance_table` lies beside the table, its work is the time from the first start to the last end of its
instances, so that waiting for a machine does not count as work; without it, the time from launch to end. A task
that had not ended when the trace did works for ever. Where `pai_job_table` lies there, too, it tells the users.

Instances and jobs that a table names and the tasks do not are no concern of a reader of tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from berth.model import FOREVER_MS, Job
from berth.traces.fields import Field, Limits, count, decimal, optional_seconds, seconds, text
from berth.traces.opening import open_table
from berth.traces.readers.by_field import Contradiction, FieldReader, requested
from berth.traces.readers.pai import gpu_types
from berth.traces.table import Table


class PaiTaskReader(FieldReader):
    """Rows of `pai_task_table`, with the instances and users that lie beside it."""

    counts_from_first = True
    id_column = "task_name"

    def __init__(self, table: Table, limits: Limits) -> None:
        fields: list[tuple[Field[Any], Any]] = [
            (text("job_name", empty=False), None),
            (text("task_name", empty=False), None),
            (count("inst_num", at_least=1).or_else(1), 1),
            (seconds("start_time"), None),
            (optional_seconds("end_time"), None),
            (decimal("plan_cpu").or_else(0.0), 0.0),
            (decimal("plan_mem").or_else(0.0), 0.0),
            (decimal("plan_gpu").or_else(0.0), 0.0),
            (gpu_types("gpu_type", limits), ()),
        ]
        super().__init__(table, fields)
        self._limits = limits
        self._folder: tuple[dict[tuple[str, str], tuple[int, int]] | None, dict[str, str]] | None = None

    def make(self, *values: Any) -> Job:
        job_name, task_name, instances, start_ms, end_ms, cpu_pct, gib, gpu_pct, models = values
        if end_ms is not None and end_ms < start_ms:
            raise Contradiction(
                "end_time", end_ms / 1000, f"a time no earlier than start_time, {start_ms / 1000}"
            )
        if self._folder is None:
            self._folder = (_instances_in_folder(self._table.path), _users_in_folder(self._table.path))
        spans, users = self._folder
        ran = None if spans is None else spans.get((job_name, task_name))
        work_ms = FOREVER_MS if end_ms is None else end_ms - start_ms if ran is None else ran[1] - ran[0]
        return Job(
            id=f"{job_name}/{task_name}",
            submit_ms=start_ms,
            work_ms=max(work_ms, 0),
            user=users.get(job_name, ""),
            application=task_name,
            cpu_milli=round(cpu_pct * 10) * instances,
            mem_mib=round(gib * 1024) * instances,
            models=models,
            **requested(instances, gpu_pct / 100, "plan_gpu", self._limits),
        )


def _table_in_folder(path: str, name: str) -> str | None:
    """The publisher's table of this name beside another, plain or gzip."""
    for suffix in (".csv", ".csv.gz"):
        if (other_table := Path(path).parent / f"{name}{suffix}").exists():
            return str(other_table)
    return None


def _instances_in_folder(path: str) -> dict[tuple[str, str], tuple[int, int]] | None:
    """First start and last end of the instances of each task; None without the table.

    A task with an instance that has no end yet is left out: its own end tells of it.
    """
    other_table = _table_in_folder(path, "pai_instance_table")
    if other_table is None:
        return None
    spans: dict[tuple[str, str], tuple[int, int]] = {}
    open_tasks: set[tuple[str, str]] = set()
    start, end = optional_seconds("start_time"), optional_seconds("end_time")
    with open_table(other_table) as table:
        at = table.columns
        for line, row in table.rows():
            start_ms, end_ms = start.check(table, line, row), end.check(table, line, row)
            task = (row[at["job_name"]], row[at["task_name"]])
            if start_ms is None or end_ms is None:
                open_tasks.add(task)
                continue
            if end_ms < start_ms:
                expected = f"a time no earlier than start_time, {start_ms / 1000}"
                raise table.error(line, expected, column="end_time", value=str(end_ms / 1000))
            first, last = spans.get(task, (start_ms, end_ms))
            spans[task] = (min(first, start_ms), max(last, end_ms))
    for task in open_tasks:
        spans.pop(task, None)
    return spans


def _users_in_folder(path: str) -> dict[str, str]:
    other_table = _table_in_folder(path, "pai_job_table")
    if other_table is None:
        return {}
    name, user = text("job_name", empty=False), text("user")
    with open_table(other_table) as table:
        return {name.check(table, line, row): user.check(table, line, row) for line, row in table.rows()}

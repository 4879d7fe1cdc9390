"""Alibaba's PAI trace of 2020: the sample of 100,000 jobs that its simulator replays, its machines, and the full
tables, one job a row of `pai_task_table`.

Weng, Xiao, Yu, Wang, Wang, He, Li, Zhang, Lin and Ding, *MLaaS in the Wild: Workload Analysis and Scheduling in
Large-Scale Heterogeneous GPU Clusters*, NSDI 2022; published as cluster-trace-gpu-v2020 in
github.com/alibaba/clusterdata.

One row is a job of `num_inst` instances, each with `num_gpu` GPUs (0.5 is half of one) and `num_cpu` cores. A
job of several instances is started whole, on as few nodes as will hold its GPUs: instances may share a node, and
nothing ties an instance's own GPUs to one. Between one and two GPUs an instance takes the next whole number of
them and the same part of each. Instances without GPUs take a node each.

The type of GPU is the one that the job was given, and its run time was measured there, so it may run on that type
only. The sample says V100 for both sizes of its memory; CPU names no type.

Times of submission are seconds from the trace's own origin; a copy without `submit_time` has every job submitted
at 0, in the order of the file. Of the estimates that the `estimate` variant adds, the one by group, user and GPUs
is taken (`group_gpu_dur`), else by group (`group_dur`), else by user and GPUs, else by user.

The full tables, as the publisher has them, have no header line; their columns stand in a file of the same name that
ends on `.header`, which must lie beside the table.

A task becomes a job `job_name/task_name`. It is submitted when it was launched (`start_time`, seconds), and takes
`inst_num` instances of `plan_gpu` and `plan_cpu` (per cent of a GPU and of a core) and `plan_mem` (GB). Where
`pai_instance_table` lies beside the table, its work is the time from the first start to the last end of its
instances, so that waiting for a machine does not count as work; without it, the time from launch to end. A task
that had not ended when the trace did works for ever. Where `pai_job_table` lies there, too, it tells the users.

Instances and jobs that a table names and the tasks do not are no concern of a reader of tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from berth.model import FOREVER_MS, Job, Node
from berth.traces.fields import Field, Limits, count, decimal, names, optional_seconds, seconds, text
from berth.traces.nodes import nodes_from_csv
from berth.traces.opening import open_table
from berth.traces.published_clusters import pai_nodes
from berth.traces.readers.by_field import Contradiction, FieldReader, requested
from berth.traces.table import Table

ESTIMATES: Final = ("group_gpu_dur", "group_dur", "user_gpu_dur", "user_dur")
"""The columns of the estimates, the best known first."""

_NO_TYPE: Final = ("", "CPU")


class PaiReader(FieldReader):
    """Rows of the job sample."""

    def __init__(self, table: Table, limits: Limits) -> None:
        fields: list[tuple[Field[Any], Any]] = [
            (text("job_id", empty=False), None),
            (count("num_inst", at_least=1).or_else(1), 1),
            (seconds("submit_time"), 0),
            (decimal("num_cpu").or_else(0.0), 0.0),
            (decimal("num_gpu").or_else(0.0), 0.0),
            (gpu_types("gpu_type", limits), ()),
            (seconds("duration"), None),
            (text("user"), ""),
            (text("group"), ""),
            *((optional_seconds(name), None) for name in ESTIMATES),
        ]
        super().__init__(table, fields)
        self._limits = limits

    def make(self, *values: Any) -> Job:
        job_id, instances, submit_ms, cores, gpus, models, work_ms, user, group, *estimates = values
        return Job(
            id=job_id,
            submit_ms=submit_ms,
            work_ms=work_ms,
            user=user,
            application=group,
            cpu_milli=round(cores * 1000) * instances,
            models=models,
            estimate_ms=next((estimate for estimate in estimates if estimate is not None), None),
            **requested(instances, gpus, "num_gpu", self._limits),
        )


def gpu_types(name: str, limits: Limits) -> Field[tuple[str, ...]]:
    """The GPU models that a type of PAI stands for."""
    known = names(name, among=limits.models, what="GPU types")
    has_both = limits.models is None or "V100M32" in limits.models

    def parse(value: str) -> tuple[str, ...]:
        if value in _NO_TYPE:
            return ()
        found = known.parse(value)
        return (*found, "V100M32") if found == ("V100",) and has_both else found

    return Field(name, parse, known.expected)


def nodes(table: Table) -> tuple[Node, ...]:
    """The machines of the published `pai_machine_spec.csv`, if it lies beside the file with its `.header`.

    Else as many of each kind as it counts, under made-up names: 1,897 machines with 6,742 GPUs.
    """
    spec_file = Path(table.path).parent / "pai_machine_spec.csv"
    if not spec_file.exists():
        return pai_nodes()
    return nodes_from_csv(
        str(spec_file), "name=machine,gpus=cap_gpu,model=gpu_type,cpus=cap_cpu,mem_gib=cap_mem"
    )


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

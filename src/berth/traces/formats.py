"""The formats of traces that berth knows: to add one is one file with a reader and one entry here.

Rows come in order of submission, or of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from berth.errors import TraceError
from berth.traces.fields import Limits
from berth.traces.format import Format, RowReader
from berth.traces.job_table import JobTable, Values, columns_of
from berth.traces.opening import open_table
from berth.traces.readers.mapped import mapped_format, published, split_otherwise
from berth.traces.table import Block, Table, line_of

FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            "openb",
            "Alibaba GPU-sharing cluster 2023, one row a pod",
            ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
            ("gpu_spec", "qos", "creation_time", "deletion_time", "scheduled_time"),
            "berth.traces.readers.openb:OpenbReader",
            "berth.traces.readers.openb:nodes",
        ),
        Format(
            "philly",
            "Microsoft Philly 2017 as a flat table, one row a job",
            ("timestamp", "duration", "num_gpus", "cluster"),
            (),
            "berth.traces.readers.philly:PhillyReader",
            "berth.traces.readers.philly:nodes",
        ),
        Format(
            "pai",
            "Alibaba PAI 2020, its sample of 100,000 jobs, one row a job",
            ("job_id", "num_inst", "num_cpu", "num_gpu", "gpu_type", "duration", "user"),
            ("submit_time", "group", "group_gpu_dur", "group_dur", "user_gpu_dur", "user_dur"),
            "berth.traces.readers.pai:PaiReader",
            "berth.traces.readers.pai:nodes",
        ),
        Format(
            "pai-tasks",
            "Alibaba PAI 2020, the full table of tasks with the tables beside it, one row a task",
            ("job_name", "task_name", "inst_num", "start_time", "end_time", "plan_cpu", "plan_gpu"),
            ("plan_mem", "gpu_type"),
            "berth.traces.readers.pai:PaiTaskReader",
            "berth.traces.readers.pai:nodes",
        ),
        published(
            "helios",
            "SenseTime Helios 2020, the log of one cluster, one row a job",
            7,
            "id=job_id,user=user,virtual_cluster=vc,gpus=gpu_num,nodes=node_num,submit=submit_time,run=duration"
            ",cpus=cpu_num",
            "berth.traces.readers.published_nodes:helios_nodes",
        ),
        published(
            "fleetsim",
            "fleetsim's canonical columns, in which Helios is also published, one row a job",
            5,
            "id=job_id,submit=submit_time:us,gpus=num_chips,nodes=num_nodes,run=duration_s,user=user"
            ",virtual_cluster=tenant,application=class,model=chip_type,time_limit=walltime_limit_s",
            "berth.traces.readers.published_nodes:canonical_nodes",
        ),
        published(
            "acme",
            "Shanghai AI Lab's Acme 2023, the jobs of Seren or Kalos, one row a job",
            8,
            "id=job_id,user=user,gpus=gpu_num,nodes=node_num,application=type,submit=submit_time,start=start_time"
            ",end=end_time,cpus=cpu_num,mem_gib_per_node=mem_per_pod_GB,never-started=patience",
            "berth.traces.readers.published_nodes:acme_nodes",
        ),
        published(
            "spot",
            "Alibaba spot GPUs 2026, high-priority and spot jobs, one row a job",
            7,
            "id=job_name,model=gpu_model,gpus_per_worker=gpu_request,workers=worker_num,submit=submit_time"
            ",run=duration,priority=job_type:HP=10,Spot=0,user=organization,cpus=cpu_request"
            ",virtual_cluster=job_type",
            "berth.traces.readers.published_nodes:spot_nodes",
        ),
        published(
            "dlrm",
            "Alibaba GPU-disaggregated DLRM 2025, services of one GPU or none, one row an instance",
            6,
            "id=instance_sn,application=app_name,gpus=gpu_request,submit=creation_time,start=scheduled_time"
            ",end=deletion_time,cpus=cpu_request,mem_gib=memory_request,virtual_cluster=role,no-submit=0"
            ",no-end=endless",
        ),
        published(
            "asi-spans",
            "Alibaba ASI 2026, its summary of execution spans (Parquet), one row a span",
            5,
            "id=pod_id,gpus_per_worker=gpu_request,run=duration_hours:h,priority=priority_class:HP=10,LP=0,Other=0"
            ",virtual_cluster=job_type_public,model=gpu_spec_public,application=workload_id,no-submit=0"
            ",repeated=new",
        ),
        Format(
            "asi",
            "Alibaba ASI 2026, its hours of pods (a folder of Parquet), one row a pod and hour",
            ("pod_id", "state_public", "gpu_request", "used_gpu_hours", "avg_gpu_sm_util", "day", "hour"),
            (
                *("workload_id", "server_id", "cluster_id", "gpu_spec_public", "priority_class"),
                *("job_type_public", "cpu_request_cores", "avg_gpu_mem_gib", "schedule_delay_sec"),
            ),
            "berth.traces.readers.native:NativeReader",
            prepare="berth.traces.readers.asi:jobs_table",
        ),
        Format(
            "swf",
            "Standard Workload Format of the Parallel Workloads Archive, one row a job, no header",
            (
                *("job_number", "submit_time", "wait_time", "run_time"),
                *("allocated_processors", "requested_processors"),
            ),
            ("requested_time", "requested_memory_kib", "status", "user", "executable", "queue"),
            "berth.traces.readers.swf:SwfReader",
            "berth.traces.readers.swf:nodes",
        ),
        Format(
            "history",
            "berth's own records of finished attempts, one row each, as jobs again",
            ("job_id", "attempt", "submit_ms", "end_ms", "state", "gpus"),
            (
                *("start_ms", "work_ms", "user", "application", "virtual_cluster", "share_milli"),
                *("share_mem_mib", "cpu_milli", "mem_mib", "nodes", "cluster", "time_limit_ms"),
            ),
            "berth.traces.readers.native:NativeReader",
            prepare="berth.traces.readers.recorded:jobs_table",
        ),
        Format(
            "berth",
            "berth's own table of jobs, one row a job",
            ("id", "submit_ms", "work_ms"),
            (
                *("user", "application", "gpus", "share_milli", "share_mem_mib", "nodes"),
                *("cpu_milli", "mem_mib"),
                *("models", "labels", "priority", "time_limit_ms", "estimate_ms", "retries", "keeps_work"),
                *("patience_ms", "virtual_cluster", "deadline_ms", "after", "elastic"),
            ),
            "berth.traces.readers.native:NativeReader",
        ),
    )
}
"""Every format by its name."""


def format_named(name: str) -> Format:
    """A format by its name, or that of columns which were named by hand (`map:…`)."""
    return FORMATS[name] if name in FORMATS else mapped_format(name)


def open_trace(path: str, known: Format | None = None) -> tuple[Table, Format]:
    """Open a trace file up to its header; its format is recognised, or checked where it is known."""
    table = open_table(path)
    try:
        if known is None:
            return table, format_of(table)
        known.check(table)
    except BaseException:
        table.close()
        raise
    return table, known


def format_of(table: Table) -> Format:
    """The format whose columns the table's header has; TraceError where it is none that is known."""
    header = set(table.header)
    for entry in FORMATS.values():
        if header.issuperset(entry.header):
            twice = sorted(name for name in entry.header + entry.more if table.header.count(name) > 1)
            if twice:
                raise TraceError(
                    table.path,
                    f"one column '{twice[0]}', but there are more",
                    line=table.header_line,
                    column=twice[0],
                )
            return entry
    nearest = max(FORMATS.values(), key=lambda entry: _part_there(entry, header))
    came = table.header_text
    if _part_there(nearest, header) >= 0.5:
        missing = next(name for name in nearest.header if name not in header)
        expected = f"this column too, as the header is otherwise that of '{nearest.name}'"
        raise TraceError(table.path, expected, line=table.header_line, column=missing, value=came)
    if not came.replace("\t", " ").isprintable():
        raise TraceError(table.path, "a trace: CSV with a header, Parquet or SWF, but it is none of these")
    known = "; ".join(f"{entry.name} ({', '.join(entry.header)})" for entry in FORMATS.values())
    expected = f"the header of a known format, or --map to say what the columns are; the formats: {known}"
    if other := split_otherwise(table.header):
        expected = f"a header of several columns{other}"
    raise TraceError(table.path, expected, line=table.header_line, value=came)


def _part_there(entry: Format, header: set[str]) -> float:
    return len(header.intersection(entry.header)) / len(entry.header)


_Row = tuple[Any, ...]


def job_table(
    table: Table,
    entry: Format,
    limits: Limits,
    skip_bad: list[TraceError] | None,
    *,
    file_order: bool = False,
) -> JobTable:
    """The table's jobs by submit time, or as the file has them, all read and held as columns; closes the table."""
    with table, entry.prepared(table) as table:
        reader = entry.reader_of(table, limits)
        columns = columns_of(_columns(table, reader, skip_bad), in_order=not file_order)
        jobs = JobTable(columns, reader.job)
        return (
            jobs.submitted(lambda submit_ms: submit_ms - submit_ms.min())
            if reader.counts_from_first
            else jobs
        )


def _columns(
    table: Table, reader: RowReader, skip_bad: list[TraceError] | None
) -> Iterator[Sequence[Values]]:
    """The columns of each block of rows."""
    width = len(table.header)
    for block in table.blocks(skip_bad):
        try:
            columns = reader.columns(block) if block.is_even(width) else None
        except (ValueError, LookupError):
            columns = None
        if columns is None:
            columns = [*zip(*_one_by_one(table, reader, block, skip_bad), strict=True)]
        if columns:
            yield columns


def _one_by_one(
    table: Table, reader: RowReader, block: Block, skip_bad: list[TraceError] | None
) -> Iterator[_Row]:
    parse = reader.row
    width = len(table.header)
    for fields, last_line in zip(block.rows, block.last_lines, strict=True):
        try:
            if len(fields) > width and any(fields[width:]):
                raise ValueError(fields)
            yield parse(fields)
        except (ValueError, LookupError):
            if not fields:
                continue
            problem = _problem(table, reader, line_of(fields, last_line), fields)
            if skip_bad is None:
                raise problem from None
            skip_bad.append(problem)


def _problem(table: Table, reader: RowReader, line: int, fields: list[str]) -> TraceError:
    """What is wrong with a row that the reader refused."""
    width = len(table.header)
    if len(fields) > width:
        return table.error(line, f"{width} columns, as the header has", value=",".join(fields))
    try:
        reader.diagnose(line, fields)
    except TraceError as problem:
        return problem
    return table.error(line, "a row that can be read", value=",".join(fields))

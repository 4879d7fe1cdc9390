"""Logs of the Parallel Workloads Archive (Standard Workload Format) into jobs.

The fields are those of `berth.traces.swf_table`, which reads the same files as traces. A processor is a CPU
here, as it was; the format knows no GPUs. The log's times count from its `UnixStartTime`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from berth.errors import HistoryError, TraceError
from berth.history.importing.job_row import JobRow, since_1970_ms
from berth.history.store.import_result import Rejections
from berth.history.values.tres import Resources
from berth.traces.swf_table import COLUMNS, SwfTable

ABSENT: Final = ("name", "comment", "command", "node_count")
_STATES: Final = {0: "FAILED", 1: "COMPLETED", 5: "CANCELLED"}
_PART: Final = (2, 3, 4)
"""Statuses of a part of a job that was checkpointed; its whole has a row of its own."""
_BEGIN = re.compile(r";\s*UnixStartTime\s*:\s*(\d{1,12})\b")


def swf_rows(path: Path, rejections: Rejections) -> Iterator[JobRow]:
    """Yield a row for each job; note those with too few values. HistoryError if the log has no start time."""
    try:
        table = SwfTable(str(path), path.open("rb"))
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror or error}") from error
    with closing(table):
        begins = next((found for line in table.comments if (found := _BEGIN.match(line))), None)
        if begins is None:
            raise HistoryError(
                f"{path} has no comment '; UnixStartTime: SECONDS' above its first job, so that no job has a date"
            )
        try:
            for block in table.blocks():
                for line, values in zip(block.last_lines, block.rows, strict=True):
                    row = _row(values, int(begins[1]))
                    if isinstance(row, str):
                        rejections.add(f"{path}, line {line}", row)
                    else:
                        yield row
        except TraceError as error:
            raise HistoryError(str(error)) from error


def _row(values: list[str], origin_s: int) -> JobRow | str:
    """The row of a line, or why there is none."""
    if len(values) != len(COLUMNS):
        return f"{len(values)} fields, expected the {len(COLUMNS)} of the Standard Workload Format"
    try:
        numbers = dict(zip(COLUMNS, (float(value) for value in values), strict=True))
    except ValueError:
        return "something in it is no number"
    known = {name: value for name, value in numbers.items() if 0 <= value < 1e15}
    status = int(numbers["status"]) if abs(numbers["status"]) < 100 else -1
    if status in _PART:
        return "a part of a job that was checkpointed; the row of the whole job counts it"
    if "job_number" not in known or "submit_time" not in known:
        return "no job number or no submit time"
    submit = origin_s + known["submit_time"]
    wait, run = known.get("wait_time"), known.get("run_time")
    started = run is not None and wait is not None and not (status == 5 and run == 0)
    if not started and (status != 5 or wait is None):
        return "no wait time or no run time, and not cancelled while it waited"
    begin = submit + (wait or 0.0)
    processors = known.get("allocated_processors") or known.get("requested_processors") or 0.0
    memory_kib = known.get("requested_memory_kib", 0.0) * processors
    cpu_s = known.get("average_cpu_time")
    used_kib = known.get("used_memory_kib")

    def name(column: str) -> str:
        return f"{known[column]:.0f}" if column in known else ""

    return JobRow(
        job_id=name("job_number"),
        user=name("user"),
        account=name("group"),
        partition=name("queue"),
        state=_STATES.get(status, "COMPLETED"),
        submit_ms=since_1970_ms(round(submit)),
        start_ms=since_1970_ms(round(begin)) if started else None,
        end_ms=since_1970_ms(round(begin + (run or 0.0)) if started else round(begin)),
        limit_min=round(known["requested_time"]) // 60 if "requested_time" in known else None,
        cpus=round(processors),
        allocated=Resources(cpus=round(processors), mem_mib=round(memory_kib / 1024)),
        application=name("executable"),
        cpu_used_ms=round(1000 * cpu_s * processors) if cpu_s and started else None,
        mem_peak_mib=-(-round(used_kib * processors) // 1024) if used_kib and started else None,
    )

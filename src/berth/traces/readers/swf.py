"""The Standard Workload Format of the Parallel Workloads Archive: eighteen numbers a job, −1 for unknown.

Feitelson, Tsafrir and Krakov, *Experience with using the Parallel Workloads Archive*, Journal of Parallel and
Distributed Computing 74(10), 2014; the format is Chapin and others', *Benchmarks and Standards for the
Evaluation of Parallel Job Schedulers*, JSSPP 1999. Lines that begin with `;` are comments, and those of the
form `; MaxProcs: 128` say what the machine was.

The format knows processors and no GPUs. Each processor is read as one whole GPU of the model PROCESSOR, so that
orders, backfilling and fairness can be compared on the logs that the literature compares them on. A job may
run on as few nodes as will hold it.

- It takes the processors that it requested, or was given if its request is unknown.
- Its estimate is the time that it requested. Its time limit is the longer of that and its run time: the log's
  own system let it run on.
- A job that was cancelled before it started (status 5, no run time) leaves unserved after as long a wait.
- Memory is what it requested of each processor. Queue is the virtual cluster, executable the application.

The machine has MaxNodes nodes, which share MaxProcs processors evenly; one node where only MaxProcs is told.
"""

from __future__ import annotations

import re
from typing import Any, Final

from berth.gpu_models import gpu_model
from berth.model import Job, Node
from berth.traces.fields import Field, Limits, integer
from berth.traces.opening import SwfTable
from berth.traces.readers.by_field import Contradiction, FieldReader
from berth.traces.table import Table

_CANCELLED: Final = 5
_UNKNOWN: Final = -1
_HEADER_NUMBER = re.compile(r";\s*(MaxNodes|MaxProcs)\s*:\s*([0-9]{1,9})\b")


class SwfReader(FieldReader):
    """Rows of an SWF log as jobs; times count from the log's own origin."""

    id_column = "job_number"

    def __init__(self, table: Table, limits: Limits) -> None:
        self._most = limits.gpus
        fields: list[tuple[Field[Any], Any]] = [
            (_number("job_number"), None),
            (_seconds("submit_time"), None),
            (_seconds("wait_time"), None),
            (_seconds("run_time"), None),
            (_number("allocated_processors"), None),
            (_number("requested_processors"), None),
            (_seconds("requested_time"), None),
            (_decimal("requested_memory_kib"), None),
            (_number("status"), None),
            (_number("user"), None),
            (_number("executable"), None),
            (_number("queue"), None),
        ]
        super().__init__(table, fields)

    def make(self, *values: Any) -> Job:
        number, submit_ms, wait_ms, run_ms, given, wanted, limit_ms, memory_kib, *of_job = values
        status, user, program, queue = of_job
        if number < 0 or submit_ms < 0:
            column = "job_number" if number < 0 else "submit_time"
            raise Contradiction(
                column, _UNKNOWN, "a number of 0 or more; without it there is no job to replay"
            )
        gpus = wanted if wanted > 0 else given
        if gpus <= 0:
            raise Contradiction(
                "requested_processors", wanted, "1 or more processors, requested or allocated"
            )
        if self._most is not None and gpus > self._most:
            column = "requested_processors" if wanted > 0 else "allocated_processors"
            raise Contradiction(column, gpus, f"from 1 to {self._most} (processors; the machine has no more)")
        never_ran = run_ms <= 0 and status == _CANCELLED
        if run_ms < 0 and not never_ran:
            raise Contradiction(
                "run_time", _UNKNOWN, "a run time, unless the job was cancelled before it started"
            )
        work_ms = max(run_ms, limit_ms, 0) if never_ran else run_ms
        return Job(
            id=str(number),
            submit_ms=submit_ms,
            work_ms=work_ms,
            user="" if user < 0 else str(user),
            application="" if program < 0 else str(program),
            gpus=gpus,
            nodes=0 if gpus > 1 else 1,
            mem_mib=-(-round(memory_kib * gpus) // 1024) if memory_kib > 0 else 0,
            time_limit_ms=max(limit_ms, work_ms) if limit_ms > 0 else None,
            estimate_ms=limit_ms if limit_ms > 0 else None,
            patience_ms=max(wait_ms, 0) if never_ran else None,
            virtual_cluster="" if queue < 0 else str(queue),
        )


def nodes(table: Table) -> tuple[Node, ...] | None:
    """The machine that the comments tell of; None where they do not tell its processors."""
    comments = table.comments if isinstance(table, SwfTable) else ()
    header = {found[1]: int(found[2]) for comment in comments if (found := _HEADER_NUMBER.match(comment))}
    processors = header.get("MaxProcs", 0)
    if not processors:
        return None
    number = min(max(1, header.get("MaxNodes", 1)), processors)
    model = gpu_model("PROCESSOR")
    digits = len(str(number - 1))
    return tuple(
        Node(f"node-{index:0{digits}d}", processors // number + (index < processors % number), model)
        for index in range(number)
    )


def _number(name: str) -> Field[int]:
    whole = integer(name)

    def parse(text: str) -> int:
        value = whole.parse(text)
        if value < _UNKNOWN:
            raise ValueError(text)
        return value

    return Field(name, parse, "a whole number of 0 or more, or -1 for unknown")


def _decimal(name: str) -> Field[float]:
    whole = _number(name)

    def parse(text: str) -> float:
        return float(text) if re.fullmatch(r"[0-9]{1,15}\.[0-9]{1,9}", text) else whole.parse(text)

    return Field(name, parse, "a number of 0 or more, or -1 for unknown")


def _seconds(name: str) -> Field[int]:
    number = _decimal(name)

    def parse(text: str) -> int:
        value = number.parse(text)
        return _UNKNOWN if value < 0 else round(value * 1000)

    return Field(name, parse, "seconds, 0 or more, or -1 for unknown")

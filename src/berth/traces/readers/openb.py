"""Alibaba's openb trace of a GPU-sharing cluster: one row a pod.

Weng, Yang, Yu, Wang, Tang, Yang and Zhang, *Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent*, USENIX ATC 2023; published as cluster-trace-gpu-v2023 in
github.com/alibaba/clusterdata.

A pod is one job on one node. `gpu_milli` below 1000 is a part of its one GPU; a pod without GPUs has no share
of one. `gpu_spec` becomes the models it may run on, in the file's order and with the file's repetitions. Its
quality of service (`LS`, `BE`, `Burstable`, `Guaranteed`) is kept as the virtual cluster; `pod_phase` says
how it ended and is not read. Users and applications are not published.

Times are seconds from the trace's own origin.

- A pod that was scheduled worked from then until its deletion. Many were still running when the trace ended,
  and then the work is what was seen of it.
- A pod that was never scheduled was deleted after it had waited; what it would have worked is unknown. It
  becomes a job that leaves unserved after as long a wait, and that works, should it be started, as long as it
  stayed: the time between creation and deletion is the one thing known about both.
- A pod that has no deletion time has not left: its work is FOREVER_MS.
- A file of the first five columns only (`multigpu*`) tells no times: every pod is submitted at 0, in the
  order of the file, and never leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from berth.errors import TraceError
from berth.model import FOREVER_MS, WHOLE_GPU, Job, Node, Share
from berth.traces.fields import Limits, count, names, optional_seconds, seconds, text
from berth.traces.nodes import nodes_from_csv
from berth.traces.table import Table

_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_NODE_LISTS = ("openb_node_list_all_node.csv", "openb_node_list_all_node.csv.gz")


class OpenbReader:
    """Rows of an openb pod list as jobs."""

    counts_from_first = False

    def __init__(self, table: Table, limits: Limits) -> None:
        at = table.columns
        self._table = table
        self._timed = any(name in at for name in _TIMES)
        for name in _TIMES:
            if self._timed and name not in at:
                expected = "this column too, as the header has other times"
                raise TraceError(
                    table.path, expected, line=table.header_line, column=name, value=table.header_text
                )
        self._seen: set[str] = set()
        self._name = text("name", empty=False)
        self._cpu = count("cpu_milli")
        self._memory = count("memory_mib")
        self._gpus = count("num_gpu", at_most=limits.gpus_per_node, what="GPUs; no node has more")
        self._milli = count("gpu_milli", at_most=1000)
        self._spec = names("gpu_spec", among=limits.models, what="GPU models")
        self._qos = text("qos")
        self._created = seconds("creation_time")
        self._deleted = optional_seconds("deletion_time")
        self._scheduled = optional_seconds("scheduled_time")
        self._required = tuple(
            at[f.name] for f in (self._name, self._cpu, self._memory, self._gpus, self._milli)
        )
        self._optional = (at.get("gpu_spec"), at.get("qos"))
        self._times = tuple(at[name] for name in _TIMES) if self._timed else ()
        self._counts = self._cpu.remembered(), self._gpus.remembered(), self._milli.remembered()
        self._models = self._spec.remembered()
        self._classes = self._qos.remembered()

    def row(self, fields: list[str]) -> tuple[int, Job]:
        """Submit time and job; raises where a field is wrong or the fields contradict each other."""
        name, cpu, memory, num_gpu, gpu_milli = self._required
        spec, qos = self._optional
        cpus, gpu_counts, millis = self._counts
        job_id = fields[name]
        gpus = gpu_counts[fields[num_gpu]]
        milli = millis[fields[gpu_milli]]
        submit, work, patience = self._stay(fields)
        if (gpus > 1 and milli < 1000) or (gpus == 1 and milli < 1) or job_id in self._seen:
            raise ValueError(job_id)
        job = Job(
            self._name.parse(job_id),
            submit,
            work,
            gpus=gpus,
            share=Share(milli) if gpus == 1 and milli < 1000 else WHOLE_GPU,
            cpu_milli=cpus[fields[cpu]],
            mem_mib=cpus[fields[memory]],
            models=() if spec is None else self._models[fields[spec]],
            patience_ms=patience,
            virtual_cluster="" if qos is None else self._classes[fields[qos]],
        )
        self._seen.add(job_id)
        return submit, job

    def _stay(self, fields: list[str]) -> tuple[int, int, int | None]:
        """When it was submitted, how long it works, and how long it waits for that."""
        if not self._timed:
            return 0, FOREVER_MS, None
        created_at, deleted_at, scheduled_at = self._times
        created = self._created.parse(fields[created_at])
        deleted = self._deleted.parse(fields[deleted_at])
        scheduled = self._scheduled.parse(fields[scheduled_at])
        began = created if scheduled is None else scheduled
        if began < created or (deleted is not None and deleted < began):
            raise ValueError(deleted)
        if deleted is None:
            return created, FOREVER_MS, None
        return created, deleted - began, deleted - began if scheduled is None else None

    def rows(self, block: list[list[str]]) -> None:
        return None

    def submit_ms(self, fields: list[str]) -> int:
        return self._created.parse(fields[self._times[0]]) if self._timed else 0

    def diagnose(self, line: int, fields: Sequence[str]) -> None:
        table = self._table
        job_id = self._name.check(table, line, fields)
        self._cpu.check(table, line, fields)
        self._memory.check(table, line, fields)
        gpus = self._gpus.check(table, line, fields)
        milli = self._milli.check(table, line, fields)
        if gpus > 1 and milli < 1000:
            raise table.error(
                line, f"1000, as the pod takes {gpus} GPUs", column="gpu_milli", value=str(milli)
            )
        if gpus == 1 and milli < 1:
            raise table.error(
                line, "from 1 to 1000, as the pod takes a GPU", column="gpu_milli", value=str(milli)
            )
        if self._spec.name in table.columns:
            self._spec.check(table, line, fields)
        if self._qos.name in table.columns:
            self._qos.check(table, line, fields)
        if self._timed:
            created = self._created.check(table, line, fields)
            deleted = self._deleted.check(table, line, fields)
            scheduled = self._scheduled.check(table, line, fields)
            text_of = dict(zip(_TIMES, (fields[index] for index in self._times), strict=True))
            if scheduled is not None and scheduled < created:
                expected = f"a time no earlier than creation_time, {text_of['creation_time']}"
                raise table.error(line, expected, column="scheduled_time", value=text_of["scheduled_time"])
            if deleted is not None and deleted < (created if scheduled is None else scheduled):
                earlier = "creation_time" if scheduled is None else "scheduled_time"
                expected = f"a time no earlier than {earlier}, {text_of[earlier]}"
                raise table.error(line, expected, column="deletion_time", value=text_of["deletion_time"])
        if job_id in self._seen:
            raise table.error(line, "a name that no row above has", column="name", value=job_id)

    def job(self, row: tuple[int, Job], origin_ms: int) -> Job:
        return row[1]


def nodes(table: Table) -> tuple[Node, ...] | None:
    """The cluster: the publisher's list of all nodes, where it lies beside the pod list."""
    for name in _NODE_LISTS:
        other_table = Path(table.path).parent / name
        if other_table.exists():
            return nodes_from_csv(str(other_table))
    return None

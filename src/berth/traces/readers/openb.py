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

from pathlib import Path
from typing import Any

from berth.errors import TraceError
from berth.model import FOREVER_MS, WHOLE_GPU, Job, Node, Share
from berth.traces.fields import Field, Limits, count, names, optional_seconds, seconds, text
from berth.traces.nodes import nodes_from_csv
from berth.traces.readers.by_field import Contradiction, FieldReader
from berth.traces.table import Table

_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_NODE_LISTS = ("openb_node_list_all_node.csv", "openb_node_list_all_node.csv.gz")


class OpenbReader(FieldReader):
    """Rows of an openb pod list as jobs."""

    id_column = "name"

    def __init__(self, table: Table, limits: Limits) -> None:
        absent = [name for name in _TIMES if name not in table.columns]
        if 0 < len(absent) < len(_TIMES):
            expected = "this column too, as the header has other times"
            raise TraceError(
                table.path, expected, line=table.header_line, column=absent[0], value=table.header_text
            )
        fields: list[tuple[Field[Any], Any]] = [
            (text("name", empty=False), None),
            (count("cpu_milli"), None),
            (count("memory_mib"), None),
            (count("num_gpu", at_most=limits.gpus_per_node, what="GPUs; no node has more"), None),
            (count("gpu_milli", at_most=1000), None),
            (names("gpu_spec", among=limits.models, what="GPU models"), ()),
            (text("qos"), ""),
            (seconds("creation_time"), 0),
            (optional_seconds("deletion_time"), None),
            (optional_seconds("scheduled_time"), None),
        ]
        super().__init__(table, fields)

    def make(self, *values: Any) -> Job:
        name, cpu_milli, mem_mib, gpus, milli, models, qos, created_ms, deleted_ms, scheduled_ms = values
        if gpus > 1 and milli < 1000:
            raise Contradiction("gpu_milli", milli, f"1000, as the pod takes {gpus} GPUs")
        if gpus == 1 and milli < 1:
            raise Contradiction("gpu_milli", milli, "from 1 to 1000, as the pod takes a GPU")
        began_ms, began = created_ms, "creation_time"
        if scheduled_ms is not None:
            _check_later("scheduled_time", scheduled_ms, created_ms, "creation_time")
            began_ms, began = scheduled_ms, "scheduled_time"
        if deleted_ms is not None:
            _check_later("deletion_time", deleted_ms, began_ms, began)
        stay_ms = FOREVER_MS if deleted_ms is None else deleted_ms - began_ms
        return Job(
            name,
            created_ms,
            stay_ms,
            gpus=gpus,
            share=Share(milli) if gpus == 1 and milli < 1000 else WHOLE_GPU,
            cpu_milli=cpu_milli,
            mem_mib=mem_mib,
            models=models,
            patience_ms=stay_ms if deleted_ms is not None and scheduled_ms is None else None,
            virtual_cluster=qos,
        )


def _check_later(column: str, time_ms: int, before_ms: int, before: str) -> None:
    """Refuse a time that is earlier than that of the column `before`."""
    if time_ms < before_ms:
        raise Contradiction(column, time_ms / 1000, f"a time no earlier than {before}, {before_ms / 1000}")


def nodes(table: Table) -> tuple[Node, ...] | None:
    """The cluster: the publisher's list of all nodes, where it lies beside the pod list."""
    for name in _NODE_LISTS:
        other_table = Path(table.path).parent / name
        if other_table.exists():
            return nodes_from_csv(str(other_table))
    return None

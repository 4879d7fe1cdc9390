"""SenseTime's Helios trace: one row a job, as its publishers have it, or in fleetsim's canonical columns.

Hu, Sun, Yan, Wen and Zhang, *Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters*, SC 2021; published as github.com/S-Lab-System-Group/HeliosData. The original is `cluster_log.csv`
of one cluster, whose times are local (`2020-06-09 18:41:01`); they count from the earliest submission here. In
the canonical columns `submit_time` is whole microseconds from an origin that the file chose.

A job runs as long as it did there, however it ended (`state`, `final_status` are not read). It takes its GPUs
on exactly as many nodes as it had, the same number on each; where they do not divide evenly, on as few nodes as
will hold them. A job without GPUs takes its CPU on its first node.

Helios gives each virtual cluster nodes of its own, of eight GPUs each. They are known where the publisher's
`cluster_gpu_number.csv` lies beside the file (the most GPUs that each virtual cluster ever had, over the days
of that table) or where a comment of the file tells them (`per-VC pool sizes (nodes, 8 GPU/node): vcvGl=20`).
Each node then carries the name of its virtual cluster as a label, and each job asks for it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from berth.errors import TraceError
from berth.gpu_models import gpu_model
from berth.model import Job, Node
from berth.traces.fields import Field, Limits, amount, count, names, optional_seconds, seconds, text
from berth.traces.opening import open_table
from berth.traces.readers.by_field import Contradiction, FieldReader
from berth.traces.readers.philly import time_field
from berth.traces.table import CsvTable, Table

_GPUS_PER_NODE = 8
_POOLS = re.compile(r"per-VC pool sizes \(nodes, ([0-9]{1,3}) GPU/node\): *(.+)")
_POOL = re.compile(r"([^\s,=]+)=([0-9]{1,6})")


class _Pooled(FieldReader):
    """What both forms share: where a job may run."""

    gpu_column = ""
    node_column = ""

    def __init__(
        self, table: Table, limits: Limits, fields: list[tuple[Field[Any], Any]], submit: str
    ) -> None:
        super().__init__(table, fields, submit)
        self._labels = limits.labels

    def placed(self, gpus: int, nodes: int, pool: str) -> dict[str, Any]:
        """GPUs, nodes and label of a job."""
        if gpus and not 0 < nodes <= gpus:
            raise Contradiction(self.node_column, nodes, f"from 1 to {gpus}, as the job takes {gpus} GPUs")
        even = gpus % nodes == 0 if nodes else True
        return {
            "gpus": gpus,
            "nodes": (nodes if even else 0) if gpus else 1,
            "labels": (pool,) if pool in self._labels else (),
            "virtual_cluster": pool,
        }


class HeliosReader(_Pooled):
    """Rows of the original `cluster_log.csv`."""

    counts_from_first = True
    gpu_column = "gpu_num"
    node_column = "node_num"

    def __init__(self, table: Table, limits: Limits) -> None:
        fields: list[tuple[Field[Any], Any]] = [
            (text("job_id", empty=False), None),
            (text("user"), ""),
            (text("vc"), ""),
            (count("gpu_num", at_most=limits.gpus, what="GPUs; the cluster has no more"), None),
            (amount("cpu_num"), None),
            (count("node_num"), None),
            (time_field("submit_time"), None),
            (seconds("duration"), None),
        ]
        super().__init__(table, limits, fields, "submit_time")

    def make(self, *values: Any) -> Job:
        job_id, user, pool, gpus, cores, nodes, submit_ms, work_ms = values
        placed = self.placed(gpus, nodes, pool)
        return Job(job_id, submit_ms, work_ms, user, cpu_milli=1000 * (cores or 0), **placed)


class CanonicalReader(_Pooled):
    """Rows in fleetsim's canonical columns."""

    gpu_column = "num_chips"
    node_column = "num_nodes"

    def __init__(self, table: Table, limits: Limits) -> None:
        fields: list[tuple[Field[Any], Any]] = [
            (text("job_id", empty=False), None),
            (text("user"), ""),
            (text("tenant"), ""),
            (text("class"), ""),
            (_microseconds("submit_time"), None),
            (count("num_chips", at_most=limits.gpus, what="GPUs; the cluster has no more"), None),
            (names("chip_type", among=limits.models, what="GPU models"), ()),
            (count("num_nodes"), None),
            (seconds("duration_s"), None),
            (optional_seconds("walltime_limit_s"), None),
        ]
        super().__init__(table, limits, fields, "submit_time")

    def make(self, *values: Any) -> Job:
        job_id, user, pool, kind, submit_ms, gpus, models, nodes, work_ms, limit_ms = values
        placed = self.placed(gpus, nodes, pool)
        return Job(job_id, submit_ms, work_ms, user, kind, models=models, time_limit_ms=limit_ms, **placed)


def helios_nodes(table: Table) -> tuple[Node, ...] | None:
    """The nodes of each virtual cluster, from `cluster_gpu_number.csv` beside the file; None without it."""
    other_table = Path(table.path).parent / "cluster_gpu_number.csv"
    if not other_table.exists():
        return None
    with open_table(str(other_table)) as counted:
        pools = [name for name in counted.header if name not in ("date", "total")]
        fields = [count(name) for name in pools]
        most = dict.fromkeys(pools, 0)
        for line, row in counted.rows():
            for field in fields:
                most[field.name] = max(most[field.name], field.check(counted, line, row))
    if not any(most.values()):
        raise TraceError(str(other_table), "GPUs of at least one virtual cluster")
    return _nodes({name: -(-gpus // _GPUS_PER_NODE) for name, gpus in most.items()}, _GPUS_PER_NODE)


def canonical_nodes(table: Table) -> tuple[Node, ...] | None:
    """The nodes of each virtual cluster, from the file's comments; None where none tells them."""
    comments = table.comments if isinstance(table, CsvTable) else ()
    for comment in comments:
        if found := _POOLS.search(comment):
            pools = {name: int(nodes) for name, nodes in _POOL.findall(found[2])}
            if any(pools.values()):
                return _nodes(pools, int(found[1]))
    return None


def _nodes(pools: dict[str, int], gpus: int) -> tuple[Node, ...]:
    """The publisher tells "Volta" or "Pascal" for whole clusters and no card, so the model has no name here."""
    model = gpu_model("HELIOS")
    return tuple(
        Node(f"{pool}-{number:03d}", gpus, model, labels=(pool,))
        for pool, nodes in pools.items()
        for number in range(nodes)
    )


def _microseconds(name: str) -> Field[int]:
    whole = count(name)
    return Field(name, lambda text: whole.parse(text) // 1000, "whole microseconds, 0 or more")

"""Microsoft's Philly trace: one row a job with submit time, duration, GPUs and virtual cluster.

Jeon, Venkataraman, Phanishayee, Qian, Xiao and Yang, *Analysis of Large-Scale Multi-Tenant GPU Clusters for
DNN Training Workloads*, USENIX ATC 2019; published as github.com/msr-fiddle/philly-traces. This reader takes
the flat table of it that many simulators use (`timestamp, duration, num_gpus, gpu_time, cluster`), not the
publisher's JSON.

A job there says only how many GPUs it takes, up to 128, so here it may run on as few nodes as will hold it
(`nodes=0`). Times count from the earliest submission of the file. Jobs have no names; a job is called by its
row, the first below the header being `philly-1`. `gpu_time` is duration times GPUs and is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from berth.model import Node
from berth.traces.fields import Field, Limits, Remembered, count, seconds, text
from berth.traces.job_table import FromFields
from berth.traces.published_clusters import philly_nodes
from berth.traces.table import Block, Table

_EPOCH = datetime(1970, 1, 1)
_MS = timedelta(milliseconds=1)


class PhillyReader:
    """Rows of the Philly table as jobs."""

    counts_from_first = True

    def __init__(self, table: Table, limits: Limits) -> None:
        self._table = table
        self._fields: tuple[Field[Any], ...] = (
            Field("timestamp", _time_ms, "a time such as 2017-10-09 07:01:55"),
            seconds("duration"),
            count("num_gpus", at_least=1, at_most=limits.gpus, what="GPUs; the cluster has no more"),
            text("cluster"),
        )
        self._columns: list[tuple[int, Remembered[Any]]] = [
            (table.columns[field.name], field.remembered()) for field in self._fields
        ]
        self._number = 0

    def row(self, fields: list[str]) -> tuple[Any, ...]:
        self._number += 1
        return (*(known[fields[at]] for at, known in self._columns), f"philly-{self._number}")

    def columns(self, block: Block) -> list[list[Any]]:
        found = [[*map(known.__getitem__, block.texts(at))] for at, known in self._columns]
        first = self._number + 1
        self._number += len(found[0])
        return [*found, [f"philly-{number}" for number in range(first, self._number + 1)]]

    def diagnose(self, line: int, fields: Sequence[str]) -> None:
        for field in self._fields:
            field.check(self._table, line, fields)

    job = FromFields(("submit_ms", "work_ms", "gpus", "virtual_cluster", "id"), nodes=0)


def nodes(_: Table) -> tuple[Node, ...]:
    """The cluster that the trace was recorded on, wherever the file is."""
    return philly_nodes()


def _time_ms(time: str) -> int:
    """Milliseconds since 1970; ValueError where it is no day and time."""
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is not None or len(time) < len("2017-10-09 07:01:55"):
        raise ValueError(time)
    return (moment - _EPOCH) // _MS

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

import re
from collections.abc import Sequence
from datetime import date

from berth.model import WHOLE_GPU, Job, Node
from berth.traces.fields import Field, Limits, Remembered, count, seconds, text
from berth.traces.job_draft import draft, finished
from berth.traces.published_clusters import philly_nodes
from berth.traces.table import Table

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_HOUR = re.compile(r"[ T]([01][0-9]|2[0-3])")
_SECOND = re.compile(r":([0-5][0-9]):([0-5][0-9](\.[0-9]{1,6})?)")


_Row = tuple[int, int, int, int, str]


class PhillyReader:
    """Rows of the Philly table as jobs; a row is submit time, its number, work, GPUs, virtual cluster."""

    counts_from_first = True

    def __init__(self, table: Table, limits: Limits) -> None:
        self._table = table
        self._fields = (
            time_field("timestamp"),
            seconds("duration"),
            count("num_gpus", at_least=1, at_most=limits.gpus, what="GPUs; the cluster has no more"),
            text("cluster"),
        )
        _, duration, gpus, cluster = self._fields
        self._at = tuple(table.columns[field.name] for field in self._fields)
        self._known = (
            Remembered(_hour_ms),
            Remembered(_second_ms),
            duration.remembered(),
            gpus.remembered(),
            cluster.remembered(),
        )
        self._number = 0

    def row(self, fields: list[str]) -> _Row:
        self._number += 1
        (row,) = self._parsed([fields], self._number)
        return row

    def rows(self, block: list[list[str]]) -> list[_Row]:
        rows = self._parsed(block, self._number + 1)
        self._number += len(block)
        return rows

    def _parsed(self, block: list[list[str]], first_number: int) -> list[_Row]:
        timestamp, duration, gpus, cluster = self._at
        hours, seconds_, works, counts, clusters = self._known
        times = [fields[timestamp] for fields in block]
        return list(
            zip(
                [hours[time[:13]] + seconds_[time[13:]] for time in times],
                range(first_number, first_number + len(block)),
                map(works.__getitem__, [fields[duration] for fields in block]),
                map(counts.__getitem__, [fields[gpus] for fields in block]),
                map(clusters.__getitem__, [fields[cluster] for fields in block]),
                strict=True,
            )
        )

    def diagnose(self, line: int, fields: Sequence[str]) -> None:
        for field in self._fields:
            field.check(self._table, line, fields)

    def job(self, row: _Row, origin_ms: int) -> Job:
        submit, number, work, gpus, cluster = row
        return finished(
            draft(
                f"philly-{number}",
                submit - origin_ms,
                work,
                "",
                "",
                gpus,
                WHOLE_GPU,
                0,
                virtual_cluster=cluster,
            )
        )


def nodes(_: Table) -> tuple[Node, ...]:
    """The cluster that the trace was recorded on, wherever the file is."""
    return philly_nodes()


def time_field(name: str) -> Field[int]:
    """A day and time, as milliseconds from the first day of the calendar."""
    return Field(name, _time_ms, "a time such as 2017-10-09 07:01:55")


def _time_ms(time: str) -> int:
    """Milliseconds from the first day of the calendar; ValueError where it is no time."""
    return _hour_ms(time[:13]) + _second_ms(time[13:])


def _hour_ms(hour: str) -> int:
    """Milliseconds until an hour of a day, such as `2017-10-09 07`."""
    found = _HOUR.fullmatch(hour[10:])
    if found is None or _DAY.fullmatch(hour[:10]) is None:
        raise ValueError(hour)
    return date.fromisoformat(hour[:10]).toordinal() * 86_400_000 + int(found[1]) * 3_600_000


def _second_ms(second: str) -> int:
    """Milliseconds of the minute and second of an hour, such as `:01:55`."""
    found = _SECOND.fullmatch(second)
    if found is None:
        raise ValueError(second)
    return int(found[1]) * 60_000 + round(float(found[2]) * 1000)

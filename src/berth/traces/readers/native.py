"""berth's own table of jobs, as CSV and as Parquet: a column for each field of Job, exact in both directions.

Only `id`, `submit_ms` and `work_ms` must be there; another column that is absent, or empty in a row, has the
default of its field. `share_milli` and `share_mem_mib` are the two halves of the share; `models`, `labels` and
`after` are split by `|`, and so is `elastic`, of numbers of GPUs with their speeds: `1:400|2:700|4:1000`; `keeps_work`
is `true` or `false`. A `work_ms` of 1152921504606846976 (2⁶⁰) stands for a job that never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from dataclasses import fields as fields_of
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from berth.errors import TraceError
from berth.files import write_table
from berth.history.store.database import write_rows
from berth.model import WHOLE_GPU, Job, Share
from berth.traces.fields import (
    Field,
    Limits,
    amount,
    count,
    elastic,
    flag,
    integer,
    names,
    text,
)
from berth.traces.job_table import FromFields, Values
from berth.traces.table import Block, Table

_DEFAULTS: Final[dict[str, Any]] = {
    **{field.name: field.default for field in fields_of(Job) if field.default is not MISSING},
    "share_milli": WHOLE_GPU.milli,
    "share_mem_mib": WHOLE_GPU.mem_mib,
}
_SCHEMA: Final = {
    "id": "VARCHAR",
    "submit_ms": "BIGINT",
    "work_ms": "BIGINT",
    "user": "VARCHAR",
    "application": "VARCHAR",
    "gpus": "INTEGER",
    "share_milli": "INTEGER",
    "share_mem_mib": "BIGINT",
    "nodes": "INTEGER",
    "cpu_milli": "BIGINT",
    "mem_mib": "BIGINT",
    "models": "VARCHAR[]",
    "labels": "VARCHAR[]",
    "priority": "BIGINT",
    "time_limit_ms": "BIGINT",
    "estimate_ms": "BIGINT",
    "retries": "INTEGER",
    "keeps_work": "BOOLEAN",
    "patience_ms": "BIGINT",
    "virtual_cluster": "VARCHAR",
    "deadline_ms": "BIGINT",
    "after": "VARCHAR[]",
    "elastic": "VARCHAR",
}
COLUMNS: Final = tuple(_SCHEMA)
_MOSTLY_UNLIKE: Final = {"submit_ms", "work_ms"}
_SHARE: Final = ("share_milli", "share_mem_mib")
_CHECKED: Final = ("gpus", "nodes", "after", "elastic", *_SHARE)


class NativeReader:
    """Rows of berth's own table as jobs."""

    counts_from_first = False

    def __init__(self, table: Table, limits: Limits) -> None:
        self._table = table
        self._limits = limits
        self._seen: set[str] = set()
        self._fields = _fields(limits)
        self._present = tuple(field for field in self._fields.values() if field.name in table.columns)
        self._plan = tuple(
            (field.name, table.columns[field.name], field.remembered())
            for field in self._present
            if field.name != "id"  # ids do not come twice: nothing to remember
        )
        self._has_share = not table.columns.keys().isdisjoint(_SHARE)
        given = [field.name for field in self._present if field.name not in ("submit_ms", *_SHARE)]
        self._names = ["submit_ms", *given, *["share"] * self._has_share]
        self.job = FromFields(self._names)

    def row(self, fields: list[str]) -> tuple[Any, ...]:
        values = _DEFAULTS | {"id": self._fields["id"].parse(fields[self._table.columns["id"]])}
        for name, at, meaning in self._plan:
            values[name] = meaning[fields[at]]
        if self._contradiction(values) is not None:
            raise ValueError(fields)
        self._seen.add(values["id"])
        values["share"] = _share(values["share_milli"], values["share_mem_mib"])
        return tuple(values[name] for name in self._names)

    def columns(self, block: Block) -> list[Values] | None:
        ids = block.texts(self._table.columns["id"])
        new = {*ids}
        if len(new) < len(ids) or "" in new or not ("".join(ids).isascii() and self._seen.isdisjoint(new)):
            return None
        values: dict[str, Values] = {"id": ids}
        for name, at, meaning in self._plan:
            numbers = block.whole_numbers(at) if name in _MOSTLY_UNLIKE else None
            values[name] = [*map(meaning.__getitem__, block.texts(at))] if numbers is None else numbers
        every = {name: values.get(name, repeat(_DEFAULTS[name], len(ids))) for name in _CHECKED}
        sizes = {*zip(every["gpus"], every["nodes"], strict=True)}
        if any(every["after"]) or any(every["elastic"]):
            return None
        if any(self._limits.gpus_expected(*size) for size in sizes):
            return None
        self._seen |= new
        if self._has_share:
            values["share"] = [*map(_share, every["share_milli"], every["share_mem_mib"])]
        return [values[name] for name in self._names]

    def diagnose(self, line: int, fields: Sequence[str]) -> None:
        values = _DEFAULTS | {field.name: field.check(self._table, line, fields) for field in self._present}
        problem = self._contradiction(values)
        if problem is not None:
            column, expected = problem
            raise self._table.error(line, expected, column=column, value=_written(values[column]))

    def _contradiction(self, values: dict[str, Any]) -> tuple[str, str] | None:
        """The column that contradicts the others, each right by itself, and what was expected of it."""
        job_id, gpus, nodes, most = values["id"], values["gpus"], values["nodes"], self._limits.gpus_per_node
        if (expected := self._limits.gpus_expected(gpus, nodes)) is not None:
            return "gpus", expected
        if job_id in self._seen:
            return "id", "an id that no row above has"
        if (sizes := values["elastic"]) and dict(sizes).get(gpus) != 1000:
            return "elastic", f"the speed 1000 on {gpus} GPUs, which the job asks for"
        if sizes and nodes > 1:
            return "elastic", "nothing for a job on a number of nodes that is given"
        if sizes and most is not None and nodes == 1 and sizes[0][0] > most:
            return "elastic", f"a least number of at most {most}, as no node has more GPUs"
        return (
            None
            if job_id not in values["after"]
            else ("after", f"ids of other jobs: '{job_id}' would wait for itself")
        )


@lru_cache(1 << 16)
def _share(milli: int, mem_mib: int) -> Share:
    return WHOLE_GPU if milli == 1000 and mem_mib == 0 else Share(milli, mem_mib)


def _fields(limits: Limits) -> dict[str, Field[Any]]:
    known: tuple[Field[Any], ...] = (
        text("id", empty=False),
        count("submit_ms"),
        count("work_ms"),
        text("user"),
        text("application"),
        count("gpus", at_most=limits.gpus, what="GPUs; the cluster has no more"),
        count("share_milli", at_least=1, at_most=1000),
        count("share_mem_mib"),
        count("nodes"),
        count("cpu_milli"),
        count("mem_mib"),
        names("models", among=limits.models, what="GPU models"),
        names("labels", what="labels"),
        integer("priority"),
        amount("time_limit_ms"),
        amount("estimate_ms"),
        count("retries"),
        flag("keeps_work"),
        amount("patience_ms"),
        text("virtual_cluster"),
        amount("deadline_ms"),
        names("after", what="ids of jobs"),
        elastic("elastic", at_most=limits.gpus),
    )
    return {f.name: f.or_else(_DEFAULTS[f.name]) if f.name in _DEFAULTS else f for f in known}


def write_csv(jobs: Iterable[Job], path: Path) -> None:
    """Write jobs to a CSV file, gzip where its name ends so; the same jobs give the same bytes."""
    write_table(path, COLUMNS, (_row(job, str(path)) for job in jobs))


def write_parquet(jobs: Iterable[Job], path: Path) -> None:
    """Write jobs to a Parquet file with the same columns."""
    write_rows(path, _SCHEMA, (_row(job, str(path)) for job in jobs))


def _row(job: Job, path: str) -> tuple[object, ...]:
    for column, alternatives in (("models", job.models), ("labels", job.labels), ("after", job.after)):
        if not all(alternatives) or any("|" in name for name in alternatives):
            expected = f"names without '|', as that splits them in the file, in job '{job.id}'"
            raise TraceError(path, expected, column=column, value=_written(alternatives))
    return (
        *(job.id, job.submit_ms, job.work_ms, job.user, job.application, job.gpus, *job.share, job.nodes),
        *(job.cpu_milli, job.mem_mib, "|".join(job.models), "|".join(job.labels), job.priority),
        *(job.time_limit_ms, job.estimate_ms, job.retries, str(job.keeps_work).lower(), job.patience_ms),
        *(job.virtual_cluster, job.deadline_ms, "|".join(job.after), _written(job.elastic)),
    )


def _written(value: object) -> str:
    """A value as it stands in a file."""
    if not isinstance(value, tuple):
        return str(value)
    return "|".join(part if isinstance(part, str) else ":".join(map(str, part)) for part in value)

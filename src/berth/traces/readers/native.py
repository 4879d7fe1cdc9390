"""berth's own table of jobs, as CSV and as Parquet: a column for each field of Job, exact in both directions.

Only `id`, `submit_ms` and `work_ms` must be there; another column that is absent, or empty in a row, has the
default of its field. `share_milli` and `share_mem_mib` are the two halves of the share; `models`, `labels` and
`after` are split by `|`, and so is `elastic`, of numbers of GPUs with their speeds: `1:400|2:700|4:1000`; `keeps_work`
is `true` or `false`. A `work_ms` of 1152921504606846976 (2⁶⁰) stands for a job that never ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING
from dataclasses import fields as fields_of
from functools import lru_cache, partial
from operator import itemgetter
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
    whole_numbers,
)
from berth.traces.job_table import draft, finished
from berth.traces.table import Table

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
_GPUS, _NODES, _MILLI, _MEM_MIB = map(COLUMNS.index, ("gpus", "nodes", "share_milli", "share_mem_mib"))
_MOSTLY_UNLIKE: Final = {COLUMNS.index("submit_ms"), COLUMNS.index("work_ms")}
_OWN_PLACE: Final = ("submit_ms", "share_milli", "share_mem_mib")


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
            (COLUMNS.index(field.name), table.columns[field.name], field.remembered())
            for field in self._present
            if field.name != "id"  # ids do not come twice: nothing to remember
        )
        self._defaults: list[Any] = [_DEFAULTS.get(name) for name in COLUMNS]
        # A row has the submit time, then the other fields of Job for which there is a column, the share last.
        given = [field.name for field in self._present if field.name not in _OWN_PLACE]
        self._others = [COLUMNS.index(name) for name in given]
        self._has_share = not table.columns.keys().isdisjoint(_OWN_PLACE[1:])
        given += ["share"] * self._has_share
        wanted = [field.name for field in fields_of(Job)]
        absent = [name for name in wanted if name not in ("submit_ms", *given)]
        row = ["submit_ms", *given, *absent]
        defaults = tuple(_DEFAULTS.get(name) for name in absent)
        self._make = partial(_job, itemgetter(*map(row.index, wanted)), defaults)

    def row(self, fields: list[str]) -> tuple[Any, ...]:
        values = self._defaults.copy()
        values[0] = self._fields["id"].parse(fields[self._table.columns["id"]])
        for position, index, meaning in self._plan:
            values[position] = meaning[fields[index]]
        if self._contradiction(values) is not None:
            raise ValueError(fields)
        self._seen.add(values[0])
        row = values[1], *[values[position] for position in self._others]
        return (*row, _share(values[_MILLI], values[_MEM_MIB])) if self._has_share else row

    def rows(self, block: list[list[str]]) -> list[tuple[Any, ...]] | None:
        texts = list(zip(*block, strict=True))
        ids = texts[self._table.columns["id"]]
        names = "".join(ids)
        if not (all(ids) and names.isascii() and len({*ids}) == len(ids) and self._seen.isdisjoint(ids)):
            return None
        values: list[Sequence[Any]] = [[default] * len(ids) for default in self._defaults]
        values[0] = ids
        for position, index, meaning in self._plan:
            numbers = whole_numbers(texts[index]) if position in _MOSTLY_UNLIKE else None
            values[position] = numbers or [*map(meaning.__getitem__, texts[index])]
        sizes = {*zip(values[_GPUS], values[_NODES], strict=True)}
        if any(values[-2]) or any(values[-1]) or any(self._limits.gpus_expected(*size) for size in sizes):
            return None
        self._seen.update(ids)
        given = [values[1], *[values[position] for position in self._others]]
        if self._has_share:
            given.append([*map(_share, values[_MILLI], values[_MEM_MIB])])
        return [*zip(*given, strict=True)]

    def diagnose(self, line: int, fields: Sequence[str]) -> None:
        values = dict(zip(COLUMNS, self._defaults, strict=True))
        for field in self._present:
            values[field.name] = field.check(self._table, line, fields)
        problem = self._contradiction(list(values.values()))
        if problem is not None:
            column, expected = problem
            raise self._table.error(line, expected, column=column, value=_written(values[column]))

    def _contradiction(self, values: list[Any]) -> tuple[str, str] | None:
        """The column that contradicts the others, each right by itself, and what was expected of it."""
        job_id, gpus, nodes, most = values[0], values[5], values[8], self._limits.gpus_per_node
        if (expected := self._limits.gpus_expected(gpus, nodes)) is not None:
            return "gpus", expected
        if job_id in self._seen:
            return "id", "an id that no row above has"
        if (sizes := values[-1]) and dict(sizes).get(gpus) != 1000:
            return "elastic", f"the speed 1000 on {gpus} GPUs, which the job asks for"
        if sizes and nodes > 1:
            return "elastic", "nothing for a job on a number of nodes that is given"
        if sizes and most is not None and nodes == 1 and sizes[0][0] > most:
            return "elastic", f"a least number of at most {most}, as no node has more GPUs"
        return (
            None
            if job_id not in values[-2]
            else ("after", f"ids of other jobs: '{job_id}' would wait for itself")
        )

    @property
    def job(self) -> Callable[[tuple[Any, ...]], Job]:
        """Makes the job of a row; it does not hold the reader, which remembers all ids."""
        return self._make


def _job(arguments: itemgetter[Any], defaults: tuple[Any, ...], row: tuple[Any, ...]) -> Job:
    return finished(draft(*arguments(row + defaults)))


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

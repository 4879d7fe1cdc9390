"""Records as a Parquet file: one row an attempt, a column for each field, NULL if unknown.

`share_milli` and `share_mem_mib` are the two halves of the share; `nodes` and `gpu_slots` are lists of names. Such a
file is a trace, too: `berth.traces.read` makes jobs of it again.

`records` makes records from Events: one for every attempt that ended, and for every job that was turned away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import duckdb

from berth.errors import HistoryError
from berth.history.store.database import ParquetWriter, at, quoted_name, read_parquet, rows_to_columns
from berth.model import NO_GPU, Event, EventKind, Node, Reason, Record, RecordState, Share

_KINDS: Final = {
    **{"str": "VARCHAR", "RecordState": "VARCHAR", "tuple[str, ...]": "VARCHAR[]"},
    **{"int": "BIGINT", "float": "DOUBLE"},
}
_INTEGERS: Final = ("attempt", "gpus", "node_count", "exit_code")


def _columns() -> Iterator[tuple[str, str]]:
    for field in fields(Record):
        if field.name == "share":
            yield from (("share_milli", "INTEGER"), ("share_mem_mib", "BIGINT"))
        else:
            kind = _KINDS[str(field.type).removesuffix(" | None")]
            yield field.name, "INTEGER" if field.name in _INTEGERS else kind


SCHEMA: Final = dict(_columns())
"""The columns of a file of records, in the order of a record's fields, and their types."""

_NOTHING: Final = {"VARCHAR": "''", "VARCHAR[]": "[]"}
_NAMES: Final = tuple(SCHEMA)
ADDED: Final = {
    name: "len(nodes)" if name == "node_count" else _NOTHING.get(SCHEMA[name], "NULL")
    for name in _NAMES[_NAMES.index("cluster") :]
}
"""Columns that the first files of records lack, and what stands for them there."""
_NEWEST: Final = _NAMES[_NAMES.index("exit_code") :]
"""Those that the files of a history may lack, too: it had all others from the first."""

_CHUNK_ROWS = 250_000


def write_records(found: Iterable[Record], path: str | Path) -> int:
    """Write records to a Parquet file as they come; returns how many there were."""
    return sum(_written(iter(found), path))


def recorded(events: Iterable[Event], nodes: Sequence[Node], path: str | Path) -> Iterator[Event]:
    """Pass events on, and write a record of every attempt to a Parquet file; the file is there when all have passed."""
    passed: list[Event] = []

    def noted() -> Iterator[Event]:
        for event in events:
            passed.append(event)
            yield event

    for _ in _written(records(noted(), nodes), path):
        yield from passed
        passed.clear()


def _written(found: Iterator[Record], path: str | Path) -> Iterator[int]:
    """Write records a chunk at a time; yields how many are in each, the last one of none when there are no more."""
    with ParquetWriter(path, SCHEMA) as writer:
        while True:
            chunk = list(islice(found, _CHUNK_ROWS))
            if chunk:
                writer.write(rows_to_columns([_row(record) for record in chunk], tuple(SCHEMA)))
            yield len(chunk)
            if not chunk:
                return


def record_table(paths: Iterable[Path]) -> str:
    """Files of a history as a table that SQL selects from, with every column of SCHEMA whenever they were written."""
    names = ", ".join(map(at, paths))
    if not names:
        return read_parquet((), SCHEMA)
    files = f"read_parquet([{names}], union_by_name = true)"
    none = ", ".join(f"NULL::{SCHEMA[name]} AS {name}" for name in _NEWEST)
    value = ", ".join(f"coalesce({name}, {ADDED[name]}) AS {name}" for name in _NEWEST)
    return f"(SELECT * REPLACE ({value}) FROM (FROM {files} UNION ALL BY NAME SELECT {none} WHERE false))"


def plain_table(database: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> str:
    """As `record_table`, by what the files have now: nothing then stands between a question and the files' statistics.

    It takes a look at each file, so it is for a database that stays open: who opens the console's list of attempts
    waits for 20 ms of a million records, and not for 210.
    """
    rows = database.execute(
        f"SELECT file_name, list(name) FROM parquet_schema([{', '.join(map(at, paths))}]) GROUP BY ALL"
    ).fetchall()
    there = [set(names) for _, names in rows]
    columns = []
    for name, kind in SCHEMA.items():
        having = sum(name in names for names in there)
        value, instead = quoted_name(name), ADDED.get(name, "NULL")
        if not having:
            value = f"{instead}::{kind}"
        elif having < len(there) and instead != "NULL":
            value = f"coalesce({value}, {instead})"
        columns.append(f"{value} AS {quoted_name(name)}")
    files = f"read_parquet([{', '.join(map(at, paths))}], union_by_name = true)"
    return f"(SELECT {', '.join(columns)} FROM {files})"


_INSIDE = {"share_milli": "share.milli", "share_mem_mib": "share.mem_mib", "state": "state.value"}
_VALUES = attrgetter(*(_INSIDE.get(name, name) for name in SCHEMA))


def _row(record: Record) -> tuple[object, ...]:
    if not all(record.nodes) or any("|" in name for name in record.nodes):
        raise HistoryError(f"job '{record.job_id}' ran on nodes {record.nodes}; expected names without '|'")
    return tuple("|".join(value) if isinstance(value, tuple) else value for value in _VALUES(record))


def record_of(row: tuple[Any, ...]) -> Record:
    """The record of a row whose columns are those of SCHEMA."""
    values = dict(zip(SCHEMA, row, strict=True))
    share = Share(values.pop("share_milli"), values.pop("share_mem_mib"))
    state = RecordState(values.pop("state"))
    nodes, slots = tuple(values.pop("nodes")), tuple(values.pop("gpu_slots"))
    return Record(**values, share=share, state=state, nodes=nodes, gpu_slots=slots)


_STATE_OF_FAILURE: Final = {
    Reason.OUT_OF_MEMORY: RecordState.OUT_OF_MEMORY,
    Reason.NODE_LOST: RecordState.NODE_FAIL,
    Reason.LOST_TOO_OFTEN: RecordState.NODE_FAIL,
    Reason.TIME_LIMIT: RecordState.TIMEOUT,
}
_STATE_OF_END: Final = {
    EventKind.FINISH: RecordState.COMPLETED,
    EventKind.EVICT: RecordState.PREEMPTED,
    EventKind.REJECT: RecordState.REJECTED,
    EventKind.CANCEL: RecordState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt that waits or runs: what its record needs of the events that were."""

    queued_ms: int
    start_ms: int | None = None
    """None while it waits."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes it runs on, which stay what they are when nodes come and go."""
    gpu_model: str = ""
    gpu_slots: tuple[str, ...] = ()
    """The GPUs that it runs on, each as NODE:INDEX."""
    suspended_ms: int = 0
    """For how long it was suspended until it ran again."""
    suspended_since_ms: int | None = None
    """None while it is not suspended."""


def records(events: Iterable[Event], nodes: Sequence[Node]) -> Iterator[Record]:
    """Yield the Record of each attempt when it ends; a job that left before it started has one without nodes and start.

    An attempt that has not ended when the events do has no record. Raises HistoryError where an event cannot follow
    what went before, as an end without a start.
    """
    attempts: dict[str, _Attempt] = {}
    for event in events:
        job_id, kind = event.job.id, event.kind
        attempt = attempts.get(job_id)
        if kind is EventKind.SUBMIT:
            attempts[job_id] = _Attempt(event.time_ms)
            continue
        missing = _missing(event, attempt)
        if attempt is None or missing:
            what = f"{kind} at {event.time_ms} ms"
            raise HistoryError(
                f"job '{job_id}', attempt {event.attempt}: {what} without a {missing} before it"
            )
        if kind is EventKind.START:
            attempts[job_id] = _started(event, attempt.queued_ms, nodes)
        elif kind is EventKind.SUSPEND:
            attempts[job_id] = replace(attempt, suspended_since_ms=event.time_ms)
        elif kind is EventKind.RESUME:
            attempts[job_id] = _awake(attempt, event.time_ms)
        elif kind is not EventKind.RESIZE:  # the end tells the share that it had last
            del attempts[job_id]
            yield _record(event, attempt)


def _missing(event: Event, attempt: _Attempt | None) -> str:
    """What ought to have happened before this event, and did not."""
    if event.kind in (EventKind.START, EventKind.REJECT):
        return "" if attempt is not None and attempt.start_ms is None else "submission"
    if event.kind is EventKind.CANCEL or event.reason is Reason.FAILED_TO_START:
        return "" if attempt is not None else "submission"
    return "" if attempt is not None and attempt.start_ms is not None else "start"


def _started(start: Event, queued_ms: int, nodes: Sequence[Node]) -> _Attempt:
    places = tuple(dict.fromkeys(slot.node for slot in start.slots))
    model = nodes[places[0]].gpu_model if places and start.job.gpus else None
    names = tuple(nodes[place].name for place in places)
    slots = tuple(f"{nodes[node].name}:{index}" for node, index in start.slots if index != NO_GPU)
    return _Attempt(queued_ms, start.time_ms, names, "" if model is None else model.name, slots)


def _awake(attempt: _Attempt, now_ms: int) -> _Attempt:
    """The attempt with its time of suspension until now counted."""
    if attempt.suspended_since_ms is None:
        return attempt
    suspended_ms = attempt.suspended_ms + now_ms - attempt.suspended_since_ms
    return replace(attempt, suspended_ms=suspended_ms, suspended_since_ms=None)


def _record(end: Event, attempt: _Attempt) -> Record:
    job, attempt = end.job, _awake(attempt, end.time_ms)
    return Record(
        job_id=job.id,
        attempt=end.attempt,
        user=job.user,
        application=job.application,
        virtual_cluster=job.virtual_cluster,
        submit_ms=job.submit_ms,
        queued_ms=attempt.queued_ms,
        start_ms=attempt.start_ms,
        end_ms=end.time_ms,
        state=_state(end),
        gpus=job.gpus,
        share=end.share,
        cpu_milli=job.cpu_milli,
        mem_mib=job.mem_mib,
        nodes=attempt.nodes,
        gpu_model=attempt.gpu_model,
        work_ms=job.work_ms,
        node_count=len(attempt.nodes),
        time_limit_ms=job.time_limit_ms,
        end_reason=end.reason.value,
        gpu_slots=attempt.gpu_slots,
        priority=job.priority,
        suspended_ms=attempt.suspended_ms or None,
    )


def _state(end: Event) -> RecordState:
    if end.kind is EventKind.FAIL:
        return _STATE_OF_FAILURE.get(end.reason, RecordState.FAILED)
    return _STATE_OF_END[end.kind]

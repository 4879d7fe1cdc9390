"""Events as a Parquet table, one row a slot, from which anyone can check that nothing was given out twice.

A start, finish, failure, eviction or cancellation has a row for each GPU that the attempt holds; `gpu` is NULL for
a job that takes only CPU and memory. What has no place, such as a submission, a rejection or the cancellation of a
waiting job, has one row, with NULL for node and GPU. `milli` and `mem_mib` are the share of that one GPU, which others
may have too where `shared` is true. `cpu_milli` and `memory_mib` are what the job takes of the node, in
the first row of each node and 0 in its others: summed over rows, what starts took minus what ends gave back
is what is in use. A `resize` has the rows of a start, with the share that the attempt has from then on instead of the
one before, and 0 for CPU and memory, which stay. A `suspend` has the rows of an end and a `resume` those of a start;
what ends while it is suspended has given everything back before. A node that is lost or comes back has one row of kind
`node-drained`, `node-lost` or `node-back`, with NULL for what belongs to jobs; it stands before what happens to jobs at
the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from berth.errors import HistoryError
from berth.files import whole_file
from berth.history.store.database import ParquetWriter, first_line, literal
from berth.model import NO_GPU, Event, EventKind, GpuSlot, Node, Outage

SCHEMA: Final = {
    "time_ms": "BIGINT",
    "kind": "VARCHAR",
    "job_id": "VARCHAR",
    "attempt": "INTEGER",
    "node": "VARCHAR",
    "gpu": "INTEGER",
    "milli": "INTEGER",
    "mem_mib": "BIGINT",
    "cpu_milli": "BIGINT",
    "memory_mib": "BIGINT",
    "reason": "VARCHAR",
    "shared": "BOOLEAN",
}

_CHUNK_EVENTS = 250_000
_NO_NODE = -1
_NOWHERE = (GpuSlot(_NO_NODE, NO_GPU),)


def write_events(
    events: Iterable[Event], nodes: Sequence[Node], path: str | Path, outages: Sequence[Outage] = ()
) -> int:
    """Write events to a Parquet file as they come; returns how many there were."""
    return sum(1 for _ in written(events, nodes, path, outages))


def written(
    events: Iterable[Event], nodes: Sequence[Node], path: str | Path, outages: Sequence[Outage] = ()
) -> Iterator[Event]:
    """Pass events on, and write them to a Parquet file on the way; the file is there when all have passed.

    `outages`, which may grow while events come, are written too, as far as events do.
    """
    with ParquetWriter(path, SCHEMA) as writer:
        for events_of_chunk, columns in _chunks(events, [node.name for node in nodes], outages):
            writer.write(columns)
            yield from events_of_chunk


def _chunks(
    events: Iterable[Event], names: Sequence[str], outages: Sequence[Outage]
) -> Iterator[tuple[list[Event], dict[str, NDArray[Any]]]]:
    name_of = np.array([*names, None], dtype=object)  # the last stands for: on no node
    source = iter(events)
    written_ms = -1
    while chunk := list(islice(source, _CHUNK_EVENTS)):
        columns = _columns(chunk, name_of)
        moments = sorted(
            moment for moment in _moments(outages) if written_ms < moment[0] <= chunk[-1].time_ms
        )
        written_ms = chunk[-1].time_ms
        yield chunk, _with_moments(columns, moments, name_of) if moments else columns


def _moments(outages: Sequence[Outage]) -> Iterator[tuple[int, str, int]]:
    """When each node is lost or back: time, kind and node."""
    for outage in outages:
        if outage.drain_ms:
            yield outage.down_ms - outage.drain_ms, "node-drained", outage.node
        yield outage.down_ms, "node-lost", outage.node
        if outage.up_ms is not None:
            yield outage.up_ms, "node-back", outage.node


def _with_moments(
    columns: dict[str, NDArray[Any]], moments: Sequence[tuple[int, str, int]], name_of: NDArray[np.object_]
) -> dict[str, NDArray[Any]]:
    """The rows (R,) and one for each of these (M,), in order of time, the nodes' first."""
    number = len(moments)
    of_nodes: dict[str, Any] = {
        "time_ms": np.array([time_ms for time_ms, _, _ in moments], np.int64),
        "kind": _objects([kind for _, kind, _ in moments]),
        "node": name_of[[node for _, _, node in moments]],
        "reason": _objects([""] * number),
    }
    order = np.argsort(np.concatenate([of_nodes["time_ms"], columns["time_ms"]]), kind="stable")
    found = {}
    for name, values in columns.items():
        ours = of_nodes.get(name)
        if ours is None and values.dtype == object:
            ours = _objects([None] * number)
        if ours is None:
            ours = np.ma.masked_array(np.zeros(number, values.dtype), np.ones(number, np.bool_))
        joined: Any = (
            np.ma if isinstance(ours, np.ma.MaskedArray) or isinstance(values, np.ma.MaskedArray) else np
        )
        found[name] = joined.concatenate([ours, values])[order]
    return found


def _columns(events: list[Event], name_of: NDArray[np.object_]) -> dict[str, NDArray[Any]]:
    """The rows (R,) of these events (E,) as columns; `row_event` (R,) is the event of each row."""
    number = len(events)
    jobs = [event.job for event in events]
    event_slots = [event.slots for event in events]
    slots = list(chain.from_iterable([found or _NOWHERE for found in event_slots]))
    slots_of = np.fromiter((len(found) or 1 for found in event_slots), np.int64, number)
    row_event = np.repeat(np.arange(number), slots_of)
    node = np.fromiter((slot.node for slot in slots), np.int64, len(slots))
    gpu = np.fromiter((slot.index for slot in slots), np.int64, len(slots))
    on_gpu = gpu != NO_GPU
    milli = np.fromiter((event.share.milli for event in events), np.int64, number)
    gpu_mem_mib = np.fromiter((event.share.mem_mib for event in events), np.int64, number)
    stays = [event.kind is EventKind.RESIZE for event in events]
    cpu_milli = np.fromiter((job.cpu_milli for job in jobs), np.int64, number)
    memory_mib = np.fromiter((job.mem_mib for job in jobs), np.int64, number)
    cpu_milli[stays] = memory_mib[stays] = 0
    taken = _slots_on_node(row_event, node)
    return {
        "time_ms": np.fromiter((event.time_ms for event in events), np.int64, number)[row_event],
        "kind": _objects([event.kind for event in events])[row_event],
        "job_id": _objects([job.id for job in jobs])[row_event],
        "attempt": np.fromiter((event.attempt for event in events), np.int64, number)[row_event],
        "node": name_of[node],
        "gpu": np.ma.masked_array(gpu, ~on_gpu),
        "milli": np.where(on_gpu, milli[row_event], 0),
        "mem_mib": np.where(on_gpu, gpu_mem_mib[row_event], 0),
        "cpu_milli": _rounded_up(cpu_milli[row_event] * taken, slots_of[row_event]),
        "memory_mib": _rounded_up(memory_mib[row_event] * taken, slots_of[row_event]),
        "reason": _objects([event.reason for event in events])[row_event],
        "shared": np.fromiter((event.shared for event in events), np.bool_, number)[row_event],
    }


def _slots_on_node(row_event: NDArray[np.int64], node: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row (R,) how many slots its event has on its node, in the first such row; 0 in the others."""
    taken = np.zeros(len(node), np.int64)
    several = row_event * (int(node.max()) + 2) + node
    _, first, number = np.unique(several, return_index=True, return_counts=True)
    taken[first] = number
    taken[node == _NO_NODE] = 0
    return taken


def _rounded_up(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-numerator // denominator)


def _objects(values: Sequence[object]) -> NDArray[np.object_]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def join_events(parts: Sequence[tuple[Path, str, int]], path: Path) -> None:
    """Make one file of several runs' events, each row with the `policy` and `seed` of its run at the end.

    `parts` are the files that `write_events` wrote, with policy and seed; they are removed.
    """
    import duckdb

    rows = " UNION ALL ".join("SELECT *, ? AS policy, ?::BIGINT AS seed FROM read_parquet(?)" for _ in parts)
    values = [value for part, policy, seed in parts for value in (policy, seed, escape(str(part)))]
    try:
        with whole_file(path) as temporary, duckdb.connect() as database:
            database.execute("SET preserve_insertion_order = true")
            database.execute(
                f"COPY ({rows}) TO {literal(temporary)} (FORMAT parquet, COMPRESSION zstd)", values
            )
    except (duckdb.Error, OSError) as error:
        raise HistoryError(f"{path} cannot be written: {first_line(error)}") from error
    finally:
        for part, _, _ in parts:
            part.unlink(missing_ok=True)

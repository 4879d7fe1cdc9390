"""Records made from Events: one for every try that ended, and for every job that was turned away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from berth.errors import HistoryError
from berth.model import Event, EventKind, Node, Reason, Record, RecordState

__all__ = ["records"]

_STATE_OF_FAILURE: Final = {
    Reason.OUT_OF_MEMORY: RecordState.OUT_OF_MEMORY,
    Reason.NODE_LOST: RecordState.NODE_FAIL,
    Reason.TIME_LIMIT: RecordState.TIMEOUT,
}


def records(events: Iterable[Event], nodes: Sequence[Node]) -> Iterator[Record]:
    """Yield the Record of each try when it ends; a rejected job has one without nodes and without a start.

    A try that has not ended when the events do has no record. Raises HistoryError where an event cannot
    follow what went before, as an end without a start.
    """
    queued_ms: dict[str, int] = {}
    running: dict[str, tuple[Event, int]] = {}
    for event in events:
        job_id, kind = event.job.id, event.kind
        if kind is EventKind.SUBMIT:
            queued_ms[job_id] = event.time_ms
        elif kind is EventKind.START:
            running[job_id] = event, _taken(queued_ms, event)
        elif kind is EventKind.REJECT:
            yield _record(event, None, _taken(queued_ms, event), nodes)
        elif job_id in running:
            yield _record(event, *running.pop(job_id), nodes)
        else:
            raise _out_of_place(event, "start")


def _taken(queued_ms: dict[str, int], event: Event) -> int:
    """When this try was queued, which it then is no longer."""
    time_ms = queued_ms.pop(event.job.id, None)
    if time_ms is None:
        raise _out_of_place(event, "submission")
    return time_ms


def _out_of_place(event: Event, missing: str) -> HistoryError:
    what = f"{event.kind} at {event.time_ms} ms"
    return HistoryError(f"job '{event.job.id}', try {event.attempt}: {what} without a {missing} before it")


def _record(end: Event, start: Event | None, queued_ms: int, nodes: Sequence[Node]) -> Record:
    job = end.job
    places = () if start is None else tuple(dict.fromkeys(slot.node for slot in start.slots))
    model = nodes[places[0]].gpu_model if places and job.gpus else None
    return Record(
        job_id=job.id,
        attempt=end.attempt,
        user=job.user,
        application=job.application,
        virtual_cluster=job.virtual_cluster,
        submit_ms=job.submit_ms,
        queued_ms=queued_ms,
        start_ms=None if start is None else start.time_ms,
        end_ms=end.time_ms,
        state=_state(end),
        gpus=job.gpus,
        share=end.share,
        cpu_milli=job.cpu_milli,
        mem_mib=job.mem_mib,
        nodes=tuple(nodes[place].name for place in places),
        gpu_model="" if model is None else model.name,
        work_ms=job.work_ms,
        node_count=len(places),
        time_limit_ms=job.time_limit_ms,
    )


def _state(end: Event) -> RecordState:
    if end.kind is EventKind.FAIL:
        return _STATE_OF_FAILURE.get(end.reason, RecordState.FAILED)
    if end.kind is EventKind.FINISH:
        return RecordState.COMPLETED
    return RecordState.PREEMPTED if end.kind is EventKind.EVICT else RecordState.REJECTED

"""Records made from Events: one for every attempt that ended, and for every job that was turned away.

Events may come in pieces: what is under way when a piece ends is a value, from which the next piece goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from berth.errors import HistoryError
from berth.model import NO_GPU, Event, EventKind, Node, Reason, Record, RecordState

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
class OpenAttempt:
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


def records(
    events: Iterable[Event],
    nodes: Sequence[Node],
    *,
    under_way: dict[str, OpenAttempt] | None = None,
) -> Iterator[Record]:
    """Yield the Record of each attempt when it ends; a job that left before it started has one without nodes and start.

    An attempt that has not ended when the events do has no record. `under_way` are the attempts, by their job's id,
    that were so before these events; it is kept up to date with each event, so that after the last it is what the
    next events go on from. Raises HistoryError where an event cannot follow what went before, as an end without a
    start.
    """
    attempts = {} if under_way is None else under_way
    for event in events:
        job_id, kind = event.job.id, event.kind
        attempt = attempts.get(job_id)
        if kind is EventKind.SUBMIT:
            attempts[job_id] = OpenAttempt(event.time_ms)
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


def _missing(event: Event, attempt: OpenAttempt | None) -> str:
    """What ought to have happened before this event, and did not."""
    if event.kind in (EventKind.START, EventKind.REJECT):
        return "" if attempt is not None and attempt.start_ms is None else "submission"
    if event.kind is EventKind.CANCEL or event.reason is Reason.FAILED_TO_START:
        return "" if attempt is not None else "submission"
    return "" if attempt is not None and attempt.start_ms is not None else "start"


def _started(start: Event, queued_ms: int, nodes: Sequence[Node]) -> OpenAttempt:
    places = tuple(dict.fromkeys(slot.node for slot in start.slots))
    model = nodes[places[0]].gpu_model if places and start.job.gpus else None
    names = tuple(nodes[place].name for place in places)
    slots = tuple(f"{nodes[node].name}:{index}" for node, index in start.slots if index != NO_GPU)
    return OpenAttempt(queued_ms, start.time_ms, names, "" if model is None else model.name, slots)


def _awake(attempt: OpenAttempt, now_ms: int) -> OpenAttempt:
    """The attempt with its time of suspension until now counted."""
    if attempt.suspended_since_ms is None:
        return attempt
    suspended_ms = attempt.suspended_ms + now_ms - attempt.suspended_since_ms
    return replace(attempt, suspended_ms=suspended_ms, suspended_since_ms=None)


def _record(end: Event, attempt: OpenAttempt) -> Record:
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

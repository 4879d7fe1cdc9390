"""Events as columns: what happened in a simulation, as NumPy arrays that metrics are computed on.

In the shapes, E is the number of events, J of jobs, T of attempts that started, S of slots taken by all attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import SimulationError
from berth.model import NO_GPU, Event, EventKind, Job, Reason

KINDS = tuple(EventKind)
"""The kind that each code of `EventColumns.kind` stands for."""

REASONS = tuple(Reason)
"""The reason that each code of `EventColumns.reason` stands for."""

RUNNING = -1
"""The `end_event` of a try that still runs after the last event."""

SUBMIT, START, FINISH, FAIL, EVICT, REJECT, CANCEL, RESIZE, SUSPEND, RESUME = (
    KINDS.index(kind) for kind in EventKind
)

_CODE_OF_KIND = {kind: code for code, kind in enumerate(KINDS)}
_CODE_OF_REASON = {reason: code for code, reason in enumerate(REASONS)}
_FIELDS = len(Event._fields)


@dataclass(frozen=True, slots=True, eq=False)
class AttemptColumns:
    """Every try of a job that started, in order of its start."""

    job: NDArray[np.int64]  # (T,)
    """Ordinal of its job."""
    queued_ms: NDArray[np.int64]  # (T,)
    """When it entered the queue."""
    start_ms: NDArray[np.int64]  # (T,)
    start_event: NDArray[np.int64]  # (T,)
    """Position of the event that started it."""
    end_ms: NDArray[np.int64]  # (T,)
    """When it ended; the time of the last event where it still runs then."""
    end_event: NDArray[np.int64]  # (T,)
    """Position of the event that ended it; RUNNING where there is none."""
    gpus: NDArray[np.int64]  # (T,)
    """GPUs it held."""
    milli: NDArray[np.int64]  # (T,)
    """Per mille that it held of each of them at its start."""
    mem_mib: NDArray[np.int64]  # (T,)
    """GPU memory that it held of each of them at its start."""
    shared: NDArray[np.bool_]  # (T,)
    """Whether its GPUs may have had other tenants, whatever part it held."""
    slot_offsets: NDArray[np.int64]  # (T + 1,)
    """The slots of try `t` are `slot_offsets[t]:slot_offsets[t + 1]` of the two arrays below."""
    slot_node: NDArray[np.int64]  # (S,)
    slot_index: NDArray[np.int64]  # (S,)
    """NO_GPU where it took only CPU and memory of the node."""


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """The events of one run, in their order, and the jobs and attempts that they tell of."""

    time_ms: NDArray[np.int64]  # (E,)
    kind: NDArray[np.int8]  # (E,)
    """Index into KINDS."""
    job: NDArray[np.int64]  # (E,)
    """Ordinal of the job: jobs are numbered in the order of their submission."""
    attempt: NDArray[np.int64]  # (E,)
    reason: NDArray[np.int8]  # (E,)
    """Index into REASONS."""
    job_ids: Sequence[str]  # (J,)
    submit_ms: NDArray[np.int64]  # (J,)
    work_ms: NDArray[np.int64]  # (J,)
    gpus: NDArray[np.int64]  # (J,)
    milli: NDArray[np.int64]  # (J,)
    """Per mille that it asked for of each of its GPUs."""
    users: Sequence[str]  # (J,)
    virtual_clusters: Sequence[str]  # (J,)
    priority: NDArray[np.int64]  # (J,)
    keeps_work: NDArray[np.bool_]  # (J,)
    due_ms: NDArray[np.int64]  # (J,)
    """By when it was to have finished; −1 where it has no deadline. Empty where no job has one."""
    last_kind: NDArray[np.int8]  # (J,)
    """The kind of the job's last event that is no resize, suspend or resume: where it stood at the end."""
    attempts: AttemptColumns
    holdings: AttemptColumns  # H rows instead of T
    """What was held over time: the attempts, but one that was resized or suspended is a row for each share that it had,
    while it had it. The same object as `attempts` where nothing was."""
    attempt_of: NDArray[np.int64]  # (H,)
    """The number of each holding's try."""

    def ran(self) -> NDArray[np.bool_]:
        """(E,) Whether the event ended an attempt that ran, which a failure or cancellation need not."""
        ran = np.zeros(len(self.kind), np.bool_)
        ran[self.attempts.end_event[self.attempts.end_event != RUNNING]] = True
        return ran

    @property
    def begin_ms(self) -> int:
        """When the first job was submitted; 0 without events."""
        return int(self.time_ms[0]) if len(self.time_ms) else 0

    @property
    def end_ms(self) -> int:
        """When the last event happened; 0 without events."""
        return int(self.time_ms[-1]) if len(self.time_ms) else 0


def event_columns(events: Iterable[Event]) -> EventColumns:
    """Turn events, as `simulate` yields them, into columns.

    The events must begin with the first of each job and be in order of time; a SimulationError names the
    first that is not, and the first start without its submit or end without its start.
    """
    # One flat list and strided slices of it cost a fifth of a loop over the events.
    flat: list[Any] = list(chain.from_iterable(events))
    count = len(flat) // _FIELDS
    jobs: list[Job] = flat[2::_FIELDS]
    time_ms = np.fromiter(flat[0::_FIELDS], np.int64, count)
    kind = np.fromiter(map(_CODE_OF_KIND.__getitem__, flat[1::_FIELDS]), np.int8, count)
    reason = np.zeros(count, np.int8)
    for at in np.flatnonzero((kind == FAIL) | (kind == REJECT)).tolist():
        reason[at] = _CODE_OF_REASON[flat[at * _FIELDS + 6]]
    attempt = np.fromiter(flat[3::_FIELDS], np.int64, count)
    if count and (backwards := np.flatnonzero(np.diff(time_ms) < 0)).size:
        at = int(backwards[0]) + 1
        raise SimulationError(
            f"event {at} is at {time_ms[at]} ms, before event {at - 1} at {time_ms[at - 1]} ms; "
            "events must be in order of time"
        )

    first_jobs = [jobs[at] for at in np.flatnonzero((kind == SUBMIT) & (attempt == 1)).tolist()]
    ordinals = {job.id: ordinal for ordinal, job in enumerate(first_jobs)}
    job = _ordinals(jobs, first_jobs, ordinals)
    if len(ordinals) < len(first_jobs):
        repeated = next(each for at, each in enumerate(first_jobs) if ordinals[each.id] != at)
        raise SimulationError(f"job '{repeated.id}' is submitted for its first try more than once")

    # Events by job, and in their order within a job: before a start stands its submit, after it its end.
    by_job = np.sort((job << 32) | np.arange(count)) & 0xFFFF_FFFF
    within = np.isin(kind, (RESIZE, SUSPEND, RESUME))  # an attempt
    stages = by_job[~within[by_job]] if within.any() else by_job
    last_event = stages[np.cumsum(np.bincount(job[~within], minlength=len(ordinals))) - 1]
    attempts = _attempts(time_ms, np.flatnonzero(kind == START), job, stages, flat)
    holdings, attempt_of = attempts, np.arange(len(attempts.job))
    if within.any():
        begins = (kind == START) | (within & (kind != SUSPEND))
        holdings = _attempts(time_ms, np.flatnonzero(begins), job, by_job, flat)
        attempt_of = _attempts_of(holdings, attempts, by_job)
    columns = EventColumns(
        time_ms=time_ms,
        kind=kind,
        job=job,
        attempt=attempt,
        reason=reason,
        job_ids=list(ordinals),
        submit_ms=_of_each(first_jobs, "submit_ms"),
        work_ms=_of_each(first_jobs, "work_ms"),
        gpus=_of_each(first_jobs, "gpus"),
        milli=_of_each(first_jobs, "share.milli"),
        users=[job.user for job in first_jobs],
        virtual_clusters=[job.virtual_cluster for job in first_jobs],
        priority=_of_each(first_jobs, "priority"),
        keeps_work=_of_each(first_jobs, "keeps_work").astype(np.bool_),
        due_ms=_due_ms(first_jobs),
        last_kind=kind[last_event],
        attempts=attempts,
        holdings=holdings,
        attempt_of=attempt_of,
    )
    _check_sequences(columns, by_job)
    return columns


def _ordinals(jobs: list[Job], first_jobs: list[Job], ordinals: dict[str, int]) -> NDArray[np.int64]:
    """(E,): the ordinal of each event's job."""
    try:  # most events of a job have the very same one, which is found in half of the time
        known = dict(zip(map(id, first_jobs), range(len(first_jobs)), strict=True))
        return np.fromiter(map(known.__getitem__, map(id, jobs)), np.int64, len(jobs))
    except KeyError:
        pass
    try:
        return np.fromiter(map(ordinals.__getitem__, map(attrgetter("id"), jobs)), np.int64, len(jobs))
    except KeyError as error:
        raise SimulationError(f"job '{error.args[0]}' has events but no submit of its first try") from error


def _of_each(jobs: list[Job], field: str) -> NDArray[np.int64]:
    return np.fromiter(map(attrgetter(field), jobs), np.int64, len(jobs))


def _due_ms(jobs: list[Job]) -> NDArray[np.int64]:
    deadlines = [job.deadline_ms for job in jobs]
    if deadlines.count(None) == len(deadlines):
        return np.zeros(0, np.int64)
    due = (-1 if wait is None else job.submit_ms + wait for job, wait in zip(jobs, deadlines, strict=True))
    return np.fromiter(due, np.int64, len(jobs))


def _attempts(
    time_ms: NDArray[np.int64],
    starts: NDArray[np.int64],  # (T,): positions of the events that begin one
    job: NDArray[np.int64],
    by_job: NDArray[np.int64],  # positions of the events that begin or end one, by job
    flat: list[Any],
) -> AttemptColumns:
    rank = np.empty(len(time_ms), np.int64)
    rank[by_job] = np.arange(len(by_job))
    count = len(starts)
    positions = starts.tolist()
    slots_of_all = flat[4::_FIELDS]
    shares_of_all = flat[5::_FIELDS]
    slots = [slots_of_all[at] for at in positions]
    shares = [shares_of_all[at] for at in positions]
    shared_of_all = flat[7::_FIELDS]
    milli = np.fromiter(map(itemgetter(0), shares), np.int64, count)

    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, slots), np.int64, count), out=offsets[1:])
    numbers = chain.from_iterable(chain.from_iterable(slots))
    pairs = np.fromiter(numbers, np.int64, 2 * int(offsets[-1])).reshape(-1, 2)
    has_gpu = np.concatenate(([0], np.cumsum(pairs[:, 1] != NO_GPU)))

    before = by_job[np.maximum(rank[starts] - 1, 0)]
    after = by_job[np.minimum(rank[starts] + 1, len(by_job) - 1)] if count else starts
    ended = (job[after] == job[starts]) & (after != starts)
    return AttemptColumns(
        job=job[starts],
        queued_ms=time_ms[before],
        start_ms=time_ms[starts],
        start_event=starts,
        end_ms=np.where(ended, time_ms[after], time_ms[-1] if count else 0),
        end_event=np.where(ended, after, RUNNING),
        gpus=has_gpu[offsets[1:]] - has_gpu[offsets[:-1]],
        milli=milli,
        mem_mib=np.fromiter(map(itemgetter(1), shares), np.int64, count),
        shared=np.fromiter([shared_of_all[at] for at in positions], np.bool_, count),
        slot_offsets=offsets,
        slot_node=pairs[:, 0],
        slot_index=pairs[:, 1],
    )


def _attempts_of(
    holdings: AttemptColumns, attempts: AttemptColumns, by_job: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(H,) The try of each holding: the last one of its job that started by then."""
    rank = np.empty(len(by_job), np.int64)
    rank[by_job] = np.arange(len(by_job))
    order = np.argsort(rank[attempts.start_event])
    last = np.searchsorted(rank[attempts.start_event][order], rank[holdings.start_event], side="right") - 1
    return order[last]


# What may come after each kind within one job; the first event of a job is a submit.
_MAY_FOLLOW = np.zeros((len(KINDS), len(KINDS)), np.bool_)
_MAY_FOLLOW[SUBMIT, [START, REJECT, CANCEL, FAIL]] = True  # of FAIL only one that could not be started
_MAY_FOLLOW[START, [FINISH, FAIL, EVICT, CANCEL, RESIZE, SUSPEND]] = True
_MAY_FOLLOW[[RESIZE, RESUME]] = _MAY_FOLLOW[START]
_MAY_FOLLOW[SUSPEND, [RESUME, FINISH, FAIL, EVICT, CANCEL]] = True  # its processes may end as it is
_MAY_FOLLOW[[FAIL, EVICT], SUBMIT] = True


def _check_sequences(columns: EventColumns, by_job: NDArray[np.int64]) -> None:
    if not len(by_job):
        return
    kind, job = columns.kind[by_job], columns.job[by_job]
    good = np.empty(len(by_job), np.bool_)
    first = np.concatenate(([True], job[1:] != job[:-1]))
    good[1:] = _MAY_FOLLOW[kind[:-1], kind[1:]]
    good[first] = kind[first] == SUBMIT
    never_ran = columns.reason[by_job[1:]] == _CODE_OF_REASON[Reason.FAILED_TO_START]
    good[1:] &= (kind[1:] != FAIL) | np.isin(kind[:-1], (START, RESIZE, SUSPEND, RESUME)) | never_ran
    if good.all():
        return
    at = int(np.argmin(good))
    after = "as its first event" if first[at] else f"after '{KINDS[kind[at - 1]]}'"
    raise SimulationError(
        f"job '{columns.job_ids[job[at]]}' has '{KINDS[kind[at]]}' {after} at "
        f"{columns.time_ms[by_job[at]]} ms (event {by_job[at]}); an attempt is submit, then start, then any number of "
        "resizes and of suspends with a resume, then finish, fail, evict or cancel; or submit, then reject, cancel or"
        " fail to start"
    )

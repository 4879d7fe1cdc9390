"""Events as columns: what happened in a simulation, as NumPy arrays that metrics are computed on.

In the shapes, E is the number of events, J of jobs, T of attempts that started, S of slots taken by all attempts.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import SimulationError
from berth.events import (
    CANCEL,
    EVICT,
    FAIL,
    FINISH,
    KINDS,
    REASONS,
    REJECT,
    RESIZE,
    RESUME,
    START,
    SUBMIT,
    SUSPEND,
    Batched,
    EventBatch,
)
from berth.model import NO_GPU, Event, Job, Reason
from berth.traces.job_table import JobNumbers, values_of

RUNNING = -1
"""The `end_event` of a try that still runs after the last event."""


def among(kinds: NDArray[np.int8], *codes: int) -> NDArray[np.bool_]:
    """Whether each kind is one of these, all of them codes: in a fifth of the time of `np.isin`."""
    is_one = np.zeros(len(KINDS), np.bool_)
    is_one[[*codes]] = True
    found: NDArray[np.bool_] = is_one[kinds]
    return found


_CODE_OF_KIND = {kind: code for code, kind in enumerate(KINDS)}
_CODE_OF_REASON = {reason: code for code, reason in enumerate(REASONS)}
_FIELDS = len(Event._fields)
_BEGIN = START, RESIZE, RESUME
_EVENTS_AT_ONCE = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class AttemptColumns:
    """Every try of a job that started, in order of its start."""

    job: NDArray[np.int32]  # (T,)
    """Ordinal of its job."""
    queued_ms: NDArray[np.int64]  # (T,)
    """When it entered the queue."""
    start_ms: NDArray[np.int64]  # (T,)
    start_event: NDArray[np.int32]  # (T,)
    """Position of the event that started it."""
    end_ms: NDArray[np.int64]  # (T,)
    """When it ended; the time of the last event where it still runs then."""
    end_event: NDArray[np.int32]  # (T,)
    """Position of the event that ended it; RUNNING where there is none."""
    gpus: NDArray[np.int32]  # (T,)
    """GPUs it held."""
    milli: NDArray[np.int32]  # (T,)
    """Per mille that it held of each of them at its start."""
    mem_mib: NDArray[np.int64]  # (T,)
    """GPU memory that it held of each of them at its start."""
    shared: NDArray[np.bool_]  # (T,)
    """Whether its GPUs may have had other tenants, whatever part it held."""
    slot_offsets: NDArray[np.int64]  # (T + 1,)
    """The slots of try `t` are `slot_offsets[t]:slot_offsets[t + 1]` of the two arrays below."""
    slot_node: NDArray[np.int32]  # (S,)
    slot_index: NDArray[np.int32]  # (S,)
    """NO_GPU where it took only CPU and memory of the node."""


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """The events of one run, in their order, and the jobs and attempts that they tell of."""

    time_ms: NDArray[np.int64]  # (E,)
    kind: NDArray[np.int8]  # (E,)
    """Index into KINDS."""
    job: NDArray[np.int32]  # (E,)
    """Ordinal of the job: jobs are numbered in the order of their submission."""
    attempt: NDArray[np.int32]  # (E,)
    reason: NDArray[np.int8]  # (E,)
    """Index into REASONS."""
    job_ids: Sequence[str]  # (J,)
    submit_ms: NDArray[np.int64]  # (J,)
    work_ms: NDArray[np.int64]  # (J,)
    gpus: NDArray[np.int64]  # (J,)
    milli: NDArray[np.int32]  # (J,)
    """Per mille that it asked for of each of its GPUs."""
    users: Sequence[str]  # (J,)
    virtual_clusters: Sequence[str]  # (J,)
    urgent: NDArray[np.bool_]  # (J,)
    """Whether its priority is above 0."""
    keeps_work: NDArray[np.bool_]  # (J,)
    due_ms: NDArray[np.int64]  # (J,)
    """By when it was to have finished; −1 where it has no deadline. Empty where no job has one."""
    last_kind: NDArray[np.int8]  # (J,)
    """The kind of the job's last event that is no resize, suspend or resume: where it stood at the end."""
    attempts: AttemptColumns
    holdings: AttemptColumns  # H rows instead of T
    """What was held over time: the attempts, but one that was resized or suspended is a row for each share that it had,
    while it had it. The same object as `attempts` where nothing was."""
    attempt_of: NDArray[np.int32]  # (H,)
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


def event_columns(events: Iterable[Event], progress: Callable[[int], None] | None = None) -> EventColumns:
    """Turn events, as `simulate` yields them, into columns; `progress` is called now and then with how many jobs have
    arrived.

    The events must begin with the first of each job and be in order of time; a SimulationError names the
    first that is not, and the first start without its submit or end without its start.
    """
    gathered = _Gathered()
    for part in _parts(events):
        if isinstance(part, EventBatch):
            gathered.add_batch(part)
        else:
            gathered.add(part)
        if progress is not None:
            progress(gathered.arrived)
    gathered.settle()
    time_ms, kind, job = _array(gathered.time_ms), _array(gathered.kind), _array(gathered.job)
    if (backwards := np.flatnonzero(np.diff(time_ms) < 0)).size:
        at = int(backwards[0]) + 1
        raise SimulationError(
            f"event {at} is at {time_ms[at]} ms, before event {at - 1} at {time_ms[at - 1]} ms; "
            "events must be in order of time"
        )
    job_ids = gathered.job_ids
    hashes = np.fromiter(
        map(hash, job_ids), np.int64, len(job_ids)
    )  # a third of what a set of a million ids takes
    hashes.sort()
    if (hashes[1:] == hashes[:-1]).any() and (repeated := Counter(job_ids).most_common(1)[0])[1] > 1:
        raise SimulationError(f"job '{repeated[0]}' is submitted for its first try more than once")
    del hashes

    # Events by job, and in their order within a job: before a start stands its submit, after it its end.
    by_job: NDArray[Any] = job.astype(np.int64)
    by_job <<= 32
    by_job |= np.arange(len(job))
    by_job.sort()
    by_job &= 0xFFFF_FFFF
    by_job = by_job.astype(np.int32)
    within = among(kind, RESIZE, SUSPEND, RESUME)  # an attempt
    stages = by_job[~within[by_job]] if within.any() else by_job
    last_event = stages[np.cumsum(np.bincount(job[stages], minlength=len(job_ids))) - 1]
    holdings = attempts = _attempts(gathered, time_ms, job, stages, kind == START)
    attempt_of = np.arange(len(attempts.job), dtype=np.int32)
    if within.any():
        holdings = _attempts(gathered, time_ms, job, by_job, among(kind, *_BEGIN))
        attempt_of = _attempts_of(holdings, attempts, by_job).astype(np.int32)
    columns = EventColumns(
        time_ms=time_ms,
        kind=kind,
        job=job,
        attempt=_array(gathered.attempt),
        reason=_array(gathered.reason),
        job_ids=job_ids,
        submit_ms=_array(gathered.submit_ms),
        work_ms=_array(gathered.work_ms),
        gpus=_array(gathered.gpus),
        milli=_array(gathered.milli),
        users=gathered.users,
        virtual_clusters=gathered.virtual_clusters,
        urgent=_array(gathered.urgent).astype(np.bool_),
        keeps_work=_array(gathered.keeps_work).astype(np.bool_),
        due_ms=_array(gathered.due_ms),
        last_kind=kind[last_event],
        attempts=attempts,
        holdings=holdings,
        attempt_of=attempt_of,
    )
    _check_sequences(columns, by_job)
    return columns


def _parts(events: Iterable[Event]) -> Iterator[list[Any] | EventBatch]:
    """Batches as they come, and of the events between them the fields, one behind the other.

    One flat list and strided slices of it cost a fifth of a loop over the events.
    """
    each = iter(events)
    parts = (
        events.batches()
        if isinstance(events, Batched)
        else iter(lambda: [*islice(each, _EVENTS_AT_ONCE)], [])
    )
    flat: list[Any] = []
    for part in parts:
        if not isinstance(part, EventBatch):
            flat.extend(chain.from_iterable(part))
        if flat and (isinstance(part, EventBatch) or len(flat) >= _EVENTS_AT_ONCE * _FIELDS):
            yield flat
            flat = []
        if isinstance(part, EventBatch):
            yield part
    if flat:
        yield flat


class _Gathered:
    """What is kept of events, some of which are added at a time, so that neither they nor their jobs are held."""

    def __init__(self) -> None:
        self.time_ms, self.job, self.attempt = array("q"), array("i"), array("i")
        self.kind, self.reason = array("b"), array("b")
        # Of each job, in order of submission.
        self.job_ids: list[str] = []
        self.users: list[str] = []
        self.virtual_clusters: list[str] = []
        self.submit_ms, self.work_ms, self.due_ms = array("q"), array("q"), array("q")
        self.gpus, self.milli, self.keeps_work = array("q"), array("i"), array("b")
        self.urgent = array("b")
        # Of each event that begins to hold something.
        self.begin_milli, self.begin_mem_mib, self.shared = array("i"), array("q"), array("b")
        self.slot_counts, self.slots = array("i"), array("i")
        """Node and index of each slot, one after the other."""
        self._ordinals: dict[str, int] = {}
        """Of the jobs that may have events to come, by id."""
        self._kinds: tuple[JobNumbers | None, NDArray[np.int64]] = None, np.empty((0, 5), np.int64)
        """Of each kind of jobs in the last batch: GPUs, share, whether it keeps its work and is urgent."""
        self.arrived = 0
        """How many jobs have been submitted."""
        self._batched: tuple[Sequence[Job], JobNumbers] | None = None
        """The jobs of batches, the last of which are not known yet."""

    def add_batch(self, batch: EventBatch) -> None:
        """Take the events of a batch."""
        numbers = batch.numbers
        if self._kinds[0] is not numbers:
            kinds = [
                (job.gpus, *job.share, job.keeps_work, job.priority > 0)
                for job in (batch.jobs[row] for row in numbers.kind_rows.tolist())
            ]
            self._kinds = numbers, np.array(kinds, np.int64).reshape(-1, 5)
        self.arrived += int(np.count_nonzero(batch.kind == SUBMIT))
        self._batched = batch.jobs, numbers
        starts = batch.row[batch.kind == START]
        _, begin_milli, begin_mem_mib, _, _ = self._kinds[1][numbers.kind[starts]].T
        counts = np.diff(batch.slot_offsets)
        slots = np.stack((batch.slot_node, batch.slot_index), axis=1)
        for column, values in (
            (self.time_ms, batch.time_ms),
            (self.job, batch.row),
            (self.kind, batch.kind),
            (self.reason, batch.reason),
            (self.begin_milli, begin_milli),
            (self.begin_mem_mib, begin_mem_mib),
            (self.shared, np.zeros(len(starts))),
            (self.slot_counts, counts),
            (self.slots, slots),
        ):
            _extend(column, values)

    def add(self, flat: list[Any]) -> None:
        """Take the fields of some events, one behind the other."""
        self.settle()
        jobs: list[Job] = flat[2::_FIELDS]
        kind = array("b", map(_CODE_OF_KIND.__getitem__, flat[1::_FIELDS]))
        attempt = array("i", flat[3::_FIELDS])
        kinds = _array(kind)
        reason = array("b", bytes(len(jobs)))
        for at in np.flatnonzero((kinds == FAIL) | (kinds == REJECT)).tolist():
            reason[at] = _CODE_OF_REASON[flat[at * _FIELDS + 6]]
        first = np.flatnonzero((kinds == SUBMIT) & (_array(attempt) == 1)).tolist()
        names = [job.id for job in jobs]
        ordinals = range(self.arrived, self.arrived + len(first))
        self._ordinals.update(zip([names[at] for at in first], ordinals, strict=True))
        self.arrived += len(first)
        self._know([jobs[at] for at in first])
        try:
            self.job.extend(array("i", map(self._ordinals.__getitem__, names)))
        except KeyError:  # of a job that has ended, or that was never submitted
            self._ordinals = {name: number for number, name in enumerate(self.job_ids)}
            if name := next((name for name in names if name not in self._ordinals), ""):
                raise SimulationError(f"job '{name}' has events but no submit of its first try") from None
            self.job.extend(array("i", map(self._ordinals.__getitem__, names)))
        for at in np.flatnonzero((kinds == FINISH) | (kinds == REJECT) | (kinds == CANCEL)).tolist():
            self._ordinals.pop(names[at], None)
        self.time_ms.extend(array("q", flat[0::_FIELDS]))
        self.kind.extend(kind)
        self.attempt.extend(attempt)
        self.reason.extend(reason)

        begins = np.flatnonzero(among(kinds, *_BEGIN)).tolist()
        slots = [flat[at * _FIELDS + 4] for at in begins]
        shares = [flat[at * _FIELDS + 5] for at in begins]
        self.begin_milli.extend(array("i", map(itemgetter(0), shares)))
        self.begin_mem_mib.extend(array("q", map(itemgetter(1), shares)))
        self.shared.extend(array("b", [flat[at * _FIELDS + 7] for at in begins]))
        self.slot_counts.extend(array("i", map(len, slots)))
        self.slots.extend(array("i", chain.from_iterable(chain.from_iterable(slots))))

    def _know(self, jobs: list[Job]) -> None:
        """These jobs are submitted for the first time."""
        self._name(jobs)
        self.submit_ms.extend([job.submit_ms for job in jobs])
        self.work_ms.extend([job.work_ms for job in jobs])  # type: ignore[misc]  # a simulation knows it
        self.gpus.extend([job.gpus for job in jobs])
        self.milli.extend([job.share[0] for job in jobs])
        self.keeps_work.extend([job.keeps_work for job in jobs])
        self.urgent.extend([job.priority > 0 for job in jobs])

    def _name(self, jobs: Sequence[Job]) -> None:
        """Know the ids, owners and deadlines of these jobs."""
        deadlines = values_of(jobs, "deadline_ms")
        if self.due_ms or deadlines.count(None) < len(jobs):
            self.due_ms.extend([-1] * (len(self.job_ids) - len(self.due_ms)))
            submits = values_of(jobs, "submit_ms")
            self.due_ms.extend(
                [-1 if due is None else submit + due for submit, due in zip(submits, deadlines, strict=True)]
            )
        owned: Any = [values_of(jobs, name) for name in ("id", "user", "virtual_cluster")]
        if self.job_ids:
            self.job_ids += owned[0]
            self.users += owned[1]
            self.virtual_clusters += owned[2]
        else:  # a whole table's own columns: nothing is added to them, as no other job comes
            self.job_ids, self.users, self.virtual_clusters = owned

    def settle(self) -> None:
        """Know the jobs that came with batches."""
        if self._batched is None:
            return
        (jobs, numbers), self._batched = self._batched, None
        come = slice(len(self.job_ids), self.arrived)
        gpus, milli, _, keeps_work, urgent = self._kinds[1][numbers.kind[come]].T
        self._name(jobs if come == slice(0, len(jobs)) else jobs[come])
        for column, values in (
            (self.attempt, np.ones(len(self.time_ms) - len(self.attempt))),
            (self.submit_ms, numbers.submit_ms[come]),
            (self.work_ms, numbers.work_ms[come]),
            (self.gpus, gpus),
            (self.milli, milli),
            (self.keeps_work, keeps_work),
            (self.urgent, urgent),
        ):
            _extend(column, values)


def _extend(column: array[int], values: NDArray[Any]) -> None:
    column.frombytes(values.astype(column.typecode).tobytes())


def _array(values: array[int]) -> NDArray[Any]:
    """The same memory as an array of NumPy's."""
    kind = f"i{values.itemsize}"  # the typecode `q` would be NumPy's longlong, which is not int64
    return np.frombuffer(values, kind) if values else np.empty(0, kind)


def _attempts(
    gathered: _Gathered,
    time_ms: NDArray[np.int64],
    job: NDArray[np.int32],
    by_job: NDArray[np.int32],  # positions of the events that begin or end one, by job
    begins_one: NDArray[np.bool_],  # (E,)
) -> AttemptColumns:
    rank = np.empty(len(time_ms), np.int32)
    rank[by_job] = np.arange(len(by_job), dtype=np.int32)
    starts = np.flatnonzero(among(_array(gathered.kind), *_BEGIN)).astype(np.int32)
    milli, mem_mib = _array(gathered.begin_milli), _array(gathered.begin_mem_mib)
    shared, counts = _array(gathered.shared), _array(gathered.slot_counts)
    pairs = _array(gathered.slots).reshape(-1, 2)
    picked = begins_one[starts]
    if not picked.all():
        pairs = pairs[np.repeat(picked, counts)]
        starts, milli, mem_mib = starts[picked], milli[picked], mem_mib[picked]
        shared, counts = shared[picked], counts[picked]
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
    has_gpu = np.concatenate((np.zeros(1, np.int32), np.cumsum(pairs[:, 1] != NO_GPU, dtype=np.int32)))

    before = by_job[np.maximum(rank[starts] - 1, 0)]
    after = by_job[np.minimum(rank[starts] + 1, len(by_job) - 1)] if len(starts) else starts
    ended = (job[after] == job[starts]) & (after != starts)
    return AttemptColumns(
        job=job[starts],
        queued_ms=time_ms[before],
        start_ms=time_ms[starts],
        start_event=starts,
        end_ms=np.where(ended, time_ms[after], time_ms[-1] if len(time_ms) else 0),
        end_event=np.where(ended, after, np.int32(RUNNING)),
        gpus=has_gpu[offsets[1:]] - has_gpu[offsets[:-1]],
        milli=milli,
        mem_mib=mem_mib,
        shared=shared.view(np.bool_),
        slot_offsets=offsets,
        slot_node=pairs[:, 0],
        slot_index=pairs[:, 1],
    )


def _attempts_of(
    holdings: AttemptColumns, attempts: AttemptColumns, by_job: NDArray[np.int32]
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


def _check_sequences(columns: EventColumns, by_job: NDArray[np.int32]) -> None:
    if not len(by_job):
        return
    kind, job = columns.kind[by_job], columns.job[by_job]
    good = np.empty(len(by_job), np.bool_)
    first = np.concatenate(([True], job[1:] != job[:-1]))
    good[1:] = _MAY_FOLLOW[kind[:-1], kind[1:]]
    good[first] = kind[first] == SUBMIT
    never_ran = columns.reason[by_job[1:]] == _CODE_OF_REASON[Reason.FAILED_TO_START]
    good[1:] &= (kind[1:] != FAIL) | among(kind[:-1], START, RESIZE, SUSPEND, RESUME) | never_ran
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

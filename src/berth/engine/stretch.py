"""Stretches: instants in which jobs only come, start and end, many in one call of a kernel.

A run begins with one if its policy is a strict order or EASY, by a key that depends on the job alone, with a placement
by formula, if nothing but jobs can come, and if its kernels are compiled or it has 20,000 jobs or more. From the first
job that needs more, such as one that comes after others, `Run` goes on job by job. A million jobs take five times as
long without it (bench/results/simulate.md): those who replay traces or size clusters feel that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

import numpy as np

from berth.arrays import BoolArray, IntArray, is_compiled
from berth.cluster import Cluster
from berth.engine import stretch_kernels as at
from berth.engine.stretch_kernels import StretchArrays, advance, release
from berth.errors import BerthError
from berth.events import FAIL, FINISH, KINDS, REASONS, REJECT, START, SUBMIT, EventBatch, new
from berth.model import (
    FOREVER_MS,
    Event,
    GpuSlot,
    Job,
    Placement,
    Reason,
    Share,
    placement_of,
)
from berth.policies import Ordered, Policy
from berth.policies.placements.scored import Formula, Scored
from berth.policies.schemes.easy import Easy
from berth.policies.schemes.easy_kernels import FIRST_SLOT, RUN_COLUMNS
from berth.policies.schemes.waiting_kernels import LANE_COLUMNS, ROW_COLUMNS, repack
from berth.policies.sort_keys import keys_of
from berth.traces.job_table import JobNumbers, JobTable, numbers_of, values_of

FEW_JOBS = 20_000
"""A shorter run compiles no kernels for a stretch: job by job it takes half a second, less than a new user then waits.
Once they are compiled, a stretch is as fast as that for 100 jobs and three times as fast for 1,000."""
NEVER_MS: Final = 1 << 62
MOST_KINDS: Final = 1 << 15
MOST_SLOTS: Final = 1 << 27
"""Slots of all jobs of a stretch; memory is taken only for those in use."""
SPARE: Final = 1 << 16
"""Places in a pool after which those of jobs that have ended are given up."""
KIND_AND_REASON: Final = np.array(
    [
        (kind, REASONS.index(reason))
        for kind, reason in (
            (SUBMIT, Reason.NONE),
            (START, Reason.NONE),
            (FINISH, Reason.NONE),
            (FAIL, Reason.TIME_LIMIT),
            (REJECT, Reason.NEVER_FITS),
            (REJECT, Reason.PATIENCE),
        )
    ],
    dtype=np.int8,
)
"""For each of what can happen to a job, the numbers of its event's kind and reason."""


def stretch_of(jobs: Sequence[Job], cluster: Cluster, policy: Policy) -> Stretch | None:
    """The stretch that a run of these jobs begins with; None if there is none. Nothing runs on the cluster yet."""
    if not jobs or type(policy) not in (Ordered, Easy) or cluster.has_labels or cluster.reserving:
        return None
    assert isinstance(policy, Ordered | Easy)
    if not isinstance(policy.place, Scored) or not (len(jobs) >= FEW_JOBS or is_compiled(advance)):
        return None
    jobs = jobs if isinstance(jobs, JobTable | tuple) else tuple(jobs)
    try:
        formula = policy.place.formula(cluster)
        numbers = numbers_of(jobs)
        keys = keys_of(policy.order, jobs, numbers)
    except (BerthError, TypeError, ValueError, AttributeError, OverflowError):
        return None  # the policy or the arrivals say so in their turn
    if formula is None or keys is None or len(numbers.kind_rows) > MOST_KINDS:
        return None
    columns = _columns(jobs, numbers, keys, cluster, policy, formula)
    return (
        None
        if columns is None or not len(columns)
        else Stretch(jobs, numbers, columns, cluster, policy, formula)
    )


def _columns(
    jobs: Sequence[Job],
    numbers: JobNumbers,
    keys: IntArray,
    cluster: Cluster,
    policy: Ordered | Easy,
    formula: Formula,
) -> IntArray | None:
    """(J, COLUMNS) of the jobs until the first that needs more than a stretch has; None if it has no stretch."""
    strict = isinstance(policy, Ordered)
    lengths = numbers.work_ms if isinstance(policy, Ordered) else policy.expected_ms.column(numbers)
    if lengths is None:
        return None
    count, limits, patience = len(jobs), numbers.time_limit_ms, numbers.patience_ms
    kinds = _kinds(jobs, numbers, cluster, formula)[numbers.kind]
    columns = np.zeros((count, at.COLUMNS), dtype=np.int64)
    columns[:, at.SUBMIT_MS] = numbers.submit_ms
    columns[:, at.NUMBER], columns[:, at.HOW] = kinds[:, 0], kinds[:, 1]
    columns[:, at.KEY], columns[:, at.LENGTH_MS] = keys, lengths
    columns[:, at.RUN_MS] = np.minimum(numbers.work_ms, FOREVER_MS)
    if len(limits):
        there = limits != -1
        columns[there, at.RUN_MS] = np.minimum(columns[there, at.RUN_MS], limits[there])
    columns[:, at.END_AS] = np.where(columns[:, at.RUN_MS] < numbers.work_ms, at.AT_LIMIT, at.FINISH)
    more: BoolArray = kinds[:, 0] < 0
    for column in (numbers.submit_ms, numbers.work_ms, lengths):
        more |= (column < 0) | (column > FOREVER_MS)
    more[1:] |= numbers.submit_ms[1:] < numbers.submit_ms[:-1]
    if len(patience):
        more |= patience != patience[0]
        more |= (patience[0] > 0) | ((patience[0] == 0) & ((columns[:, at.RUN_MS] == 0) | (not strict)))
        columns[(patience == 0) & (columns[:, at.HOW] == at.WAITS), at.HOW] = at.AT_ONCE
    more |= np.cumsum(kinds[:, 2]) > MOST_SLOTS
    ids = values_of(jobs, "id")
    if len(set(ids)) < count:
        firsts = dict(zip(reversed(ids), range(count - 1, -1, -1), strict=True))
        more[[row for row, each in enumerate(ids) if firsts[each] != row]] = True
    return columns[: int(np.argmax(more))] if more.any() else columns


def _kinds(jobs: Sequence[Job], numbers: JobNumbers, cluster: Cluster, formula: Formula) -> IntArray:
    """(K, 3): of each kind of jobs the request type, −1 if it asks for more, what becomes of it, and its slots."""
    found = np.full((len(numbers.kind_rows), 3), -1, dtype=np.int64)
    for kind, row in enumerate(numbers.kind_rows.tolist()):
        job = jobs[row]
        if job.after or job.elastic or job.tasks or job.gang or job.nodes not in (0, 1):
            continue
        try:
            number, fits = cluster.request(job), cluster.fits_when_empty(job)
        except (BerthError, TypeError, ValueError, AttributeError, OverflowError):  # the scheduler says it
            continue
        if formula.rows.keeps(number):
            formula.rows[number]
            found[kind] = number, at.WAITS if fits else at.NEVER, max(1, job.gpus) if fits else 0
    return found


class Stretch:
    """The jobs and the arrays of a stretch, on the arrays of a cluster on which nothing runs yet."""

    def __init__(
        self,
        jobs: Sequence[Job],
        numbers: JobNumbers,
        columns: IntArray,
        cluster: Cluster,
        policy: Ordered | Easy,
        formula: Formula,
    ) -> None:
        self._keep_slots = self._keep_lanes = SPARE
        self.last_ms = 0
        """When the last event happened."""
        self.unfinished: list[Job] = []
        """The jobs that ended for good and did not finish, if others are to come behind the stretch."""
        self._jobs, self._numbers, self._cluster = jobs, numbers, cluster
        count, types = len(columns), cluster.request_types
        easy = isinstance(policy, Easy)
        nodes, width = cluster.free.milli.shape
        state = np.zeros(at.STATE_SIZE, dtype=np.int64)
        state[at.EASY], state[at.KERNEL], state[at.TIGHTEST] = easy, formula.kernel, formula.tightest
        state[at.FREE], state[at.STUCK], state[at.HEAD] = cluster.free_total_milli, -1, -1
        self._all = count == len(jobs)
        state[at.HORIZON_MS] = NEVER_MS if self._all else columns[-1, at.SUBMIT_MS]
        rows = np.zeros(types, dtype=np.int64)
        for number, row in formula.rows.items():
            if number < types:
                rows[number] = row
        fitting = columns[columns[:, at.HOW] != at.NEVER, at.NUMBER]
        slots = int(np.maximum(cluster.request_gpus(fitting), 1).sum())
        some = count if easy else 0
        every_slot = nodes * (width + 1)

        def empty(*shape: int) -> IntArray:
            return np.empty(shape, dtype=np.int64)

        self._arrays = StretchArrays(
            state=state,
            jobs=columns,
            slots=empty(slots, 2),
            ending=empty(count, 3),
            queue=empty(count, 3),
            happened=empty(3 * count, 3),
            cache_rows=rows,
            chosen=empty(width),
            scratch=empty(3, nodes + width),
            unfit=formula.unfit if formula.unfit.ndim == 2 else empty(0, 0),
            cache=formula.cache,
            real=formula.real,
            runs=empty(some, RUN_COLUMNS),
            by_end=empty(2 * some + at.DRIFT),
            waiting=empty(some, ROW_COLUMNS),
            lanes=np.zeros((types, LANE_COLUMNS), dtype=np.int64),
            active=np.zeros(types + 2, dtype=np.int64),
            lane_pool=empty(6 * some + 32 * types + SPARE),
            marks=cluster.marks(),
            room=empty(nodes * (2 + 2 * width)),
            both=empty(nodes * (2 + 2 * width)),
            head_slots=empty(every_slot, 2),
            others=empty(every_slot, 2),
            by_rank=np.argsort(cluster.rank),
            there=np.zeros(nodes, dtype=np.int64),
            found=np.zeros(nodes, dtype=np.bool_),
            window_ms=empty(1),
            out=empty(2),
        )

    def batches(self) -> Iterator[EventBatch]:
        """Yield the events until no job is left to come, or the next one asks for more."""
        state, more = self._arrays.state, True
        while more:
            begin = int(state[at.POOLED])
            more = advance(self._arrays, self._cluster.block, self._cluster.requests)
            happened = self._arrays.happened[: state[at.HAPPENED]]
            state[at.HAPPENED] = 0
            if len(happened):
                self.last_ms = int(happened[-1, 0])
                if not self._all:
                    unfinished = happened[happened[:, 1] >= at.AT_LIMIT, 2].tolist()
                    self.unfinished += [self._jobs[row] for row in unfinished]
                yield self._batch(happened, begin)
            self._give_up()

    def _batch(self, happened: IntArray, begin: int) -> EventBatch:
        """These events as a batch; their slots begin at `begin` in the pool."""
        jobs, slots = self._arrays.jobs, self._arrays.slots[begin : self._arrays.state[at.POOLED]]
        started = happened[happened[:, 1] == at.BEGIN, 2]
        kind, reason = KIND_AND_REASON[happened[:, 1]].T
        return EventBatch(
            jobs=self._jobs,
            numbers=self._numbers,
            time_ms=happened[:, 0].copy(),
            kind=kind.copy(),
            row=happened[:, 2].astype(np.int32),
            reason=reason.copy(),
            slot_offsets=np.append(jobs[started, at.FIRST_SLOT] - begin, len(slots)),
            slot_node=slots[:, 0].astype(np.int32),
            slot_index=slots[:, 1].astype(np.int32),
        )

    def _give_up(self) -> None:
        """Give up the places in pools that no job uses any more."""
        arrays = self._arrays
        state, jobs = arrays.state, arrays.jobs
        if state[at.POOLED] > self._keep_slots:
            running = self._running()
            counts = np.maximum(self._cluster.request_gpus(jobs[running, at.NUMBER]), 1)
            ends = np.cumsum(counts)
            moved = jobs[running, at.FIRST_SLOT] - (ends - counts)
            total = int(ends[-1]) if len(ends) else 0
            arrays.slots[:total] = arrays.slots[np.arange(total) + np.repeat(moved, counts)]
            jobs[running, at.FIRST_SLOT] -= moved
            if state[at.EASY]:
                arrays.runs[running, FIRST_SLOT] -= moved
            state[at.POOLED] = total
            self._keep_slots = 2 * total + SPARE
        if state[at.LANES_POOLED] > self._keep_lanes:
            pool = np.empty_like(arrays.lane_pool)
            state[at.LANES_POOLED] = repack(arrays.lanes, arrays.lane_pool, pool)
            self._arrays = arrays._replace(lane_pool=pool)
            self._keep_lanes = 4 * int(state[at.LANES_POOLED]) + SPARE

    def _running(self) -> IntArray:
        """The rows of what runs, in the order of their start."""
        starts = self._arrays.jobs[: self._arrays.state[at.NEXT], at.START]
        running = np.flatnonzero(starts > 0)
        return running[np.argsort(starts[running])]

    # How it goes on

    def rest(self) -> Iterator[Job]:
        """The jobs that are still to come."""
        return iter(self._jobs[int(self._arrays.state[at.NEXT]) :])

    def ids(self) -> Iterable[str]:
        """The ids of the jobs that have come, if others are to come."""
        if self._all:
            return ()
        ids: Iterable[str] = values_of(self._jobs, "id")[: int(self._arrays.state[at.NEXT])]
        return ids

    def waiting(self) -> list[Job]:
        """The jobs that wait, first in, first out."""
        start = self._arrays.jobs[: self._arrays.state[at.NEXT], at.START]
        return [self._jobs[row] for row in np.flatnonzero(start == 0).tolist()]

    def take_off(self) -> list[tuple[Placement, int]]:
        """Take what runs off the cluster, if other jobs are to come: its placements and when it started, in the order
        of that."""
        arrays, found = self._arrays, []
        running = self._running()[: 0 if self._all else None]
        for row, first in zip(running.tolist(), arrays.jobs[running, at.FIRST_SLOT].tolist(), strict=True):
            release(arrays, row, self._cluster.block, self._cluster.requests)
            job = self._jobs[row]
            slots = arrays.slots[first : first + max(1, job.gpus)].tolist()
            placement = placement_of(job, tuple(map(GpuSlot._make, slots)))
            found.append((placement, int(arrays.jobs[row, at.START_MS])))
        return found


def one_by_one(batches: Iterable[list[Event] | EventBatch]) -> Iterator[Event]:
    """The events of batches, with a Job each."""
    jobs: dict[int, Job] = {}  # of those that wait or run, by row
    slots: dict[int, tuple[GpuSlot, ...]] = {}
    singles: dict[tuple[int, int], tuple[GpuSlot]] = {}
    for batch in batches:
        if isinstance(batch, list):
            yield from batch
            continue
        rows, kinds = batch.row.tolist(), batch.kind.tolist()
        submitted = batch.row[batch.kind == SUBMIT]
        if len(submitted):
            first, last = int(submitted[0]), int(submitted[-1])
            jobs.update(zip(range(first, last + 1), batch.jobs[first : last + 1], strict=True))
        places = list(zip(batch.slot_node.tolist(), batch.slot_index.tolist(), strict=True))
        for place in set(places).difference(singles):
            singles[place] = (GpuSlot(*place),)
        started, offsets = batch.row[batch.kind == START].tolist(), batch.slot_offsets
        ones = [*map(singles.__getitem__, places)]
        slots.update(zip(started, map(ones.__getitem__, offsets[:-1].tolist()), strict=True))
        for number in np.flatnonzero(np.diff(offsets) > 1).tolist():
            slots[started[number]] = tuple([slot for (slot,) in ones[offsets[number] : offsets[number + 1]]])
        of = list(map(jobs.__getitem__, rows))
        taken = [slots[row] if SUBMIT < kind < REJECT else () for row, kind in zip(rows, kinds, strict=True)]
        shares: Iterable[Share] = [job.share for job in of]
        names, reasons = map(KINDS.__getitem__, kinds), map(REASONS.__getitem__, batch.reason.tolist())
        columns = batch.time_ms.tolist(), names, of, repeat(1), taken, shares, reasons, repeat(False)
        yield from map(new, repeat(Event), zip(*columns, strict=False))
        for row in batch.row[batch.kind > START].tolist():
            del jobs[row]
            slots.pop(row, None)

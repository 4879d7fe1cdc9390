"""Plain runs: jobs come, start in a strict order and end, which one kernel does for many instants at once.

A run begins as a plain one if kernels know its order and its placement. From the first job that asks for more, such as
others before it, or is not valid, it goes on as a `Run`. The events are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

import numpy as np

from berth.cluster import Cluster
from berth.engine import plain_kernels as at
from berth.engine.plain_kernels import Told, advance, release
from berth.engine.run import Run
from berth.errors import BerthError
from berth.knowledge import Knowledge
from berth.model import FOREVER_MS, Event, EventKind, GpuSlot, Job, Reason, placement_of
from berth.policies import Ordered, Policy
from berth.policies.placements.scored import ForKernels, Scored
from berth.policies.sort_keys import as_queued, key_of

__all__ = ["Plain", "plain_run"]

SUBMIT, START, FINISH, FAIL, _, REJECT, _ = EventKind
NO_REASON = Reason.NONE
new = tuple.__new__
"""Makes an Event in half of the time that it takes itself."""

AT_A_TIME = 1024
"""Jobs that are drawn at once."""
MOST_TOLD = 4096
"""Events that are told at once."""
NEVER_MS = 1 << 62
LARGEST_KEY = 1 << 62
MOST_GPUS = 62
"""Of a node: those of a job are bits of a signed number of 64."""


def plain_run(jobs: Iterator[Job], cluster: Cluster, policy: Policy, knowledge: Knowledge) -> Plain | None:
    """The run of these jobs on an empty cluster, if it can begin as a plain one."""
    if not (type(policy) is Ordered and key_of(policy.order) and isinstance(policy.place, Scored)):
        return None
    narrow = cluster.free.milli.shape[1] <= MOST_GPUS
    if not (narrow and knowledge.certain and not knowledge.learns) or cluster.has_labels or cluster.reserving:
        return None
    try:
        formula = policy.place.for_kernels(cluster)
    except BerthError:  # the policy is to say so when it is asked
        return None
    return None if formula is None else Plain(jobs, cluster, policy, formula)


class Plain:
    """One simulation under way, as long as it is plain."""

    def __init__(self, jobs: Iterator[Job], cluster: Cluster, policy: Ordered, formula: ForKernels) -> None:
        self.cluster = cluster
        self.policy = policy
        self.formula = formula
        self._key = key_of(policy.order) or as_queued
        self._left = jobs
        self._odd: Iterator[Job] | None = None  # the job, or the error, at which the run is plain no more
        self._patience_ms: int | None = None  # of all jobs
        self._known: set[str] = set()
        self._unfinished: list[str] = []  # ids of the jobs that ended for good and did not finish
        self._jobs: list[Job | None] = []  # by row; None where the row is free
        self._slots: list[tuple[GpuSlot, ...]] = []  # by row, of those that have started
        self._free_rows: list[int] = []
        self._how: dict[int, int] = {}  # by request type, whether a job waits
        self._last_ms = 0  # when the last job that was drawn comes
        self._arrays = _arrays(cluster.free.milli.shape[1])
        state = self._arrays.state
        state[at.FREE], state[at.STUCK] = cluster.free_total_milli, -1
        state[at.KERNEL], state[at.TIGHTEST] = formula.kernel, formula.tightest

    def events(self, go_on: Callable[[Iterator[Job]], Run]) -> Iterator[Event]:
        """Yield the events of the whole run; `go_on` makes the `Run` of the jobs from the first odd one on."""
        state, formula, cluster = self._arrays.state, self.formula, self.cluster
        last_ms = 0
        while True:
            arrays = formula.unfit, formula.kept, formula.real
            why = advance(self._arrays, cluster.block, cluster.requests, *arrays)
            if state[at.TOLD]:
                last_ms = int(self._arrays.told[state[at.TOLD] - 1, 0])
                yield from self._told()
            if why == at.PLACE:
                self._place(int(state[at.ASKED]))
            elif why == at.RELEASE:
                self._release(int(state[at.ASKED]))
            elif why == at.NEEDS_JOBS:
                if self._odd is not None:
                    yield from self._handed_over(go_on).events()
                    return
                if state[at.HORIZON] == NEVER_MS:
                    break
                self._draw()
        for job in self._waiting():
            yield Event(last_ms, REJECT, job, 1, (), job.share, Reason.LEFT_WAITING)

    def _told(self) -> list[Event]:
        """The events that the kernel has told."""
        jobs, all_slots, singles, limits = self._jobs, self._slots, self.cluster.singles, self._unfinished
        arrays = self._arrays
        count = int(arrays.state[at.TOLD])
        arrays.state[at.TOLD] = 0
        told = arrays.told[:count]
        nodes, devices = arrays.jobs[told[:, 2], at.NODE :].T.tolist()
        events: list[Event] = []
        add = events.append
        for (time_ms, what, row), node, bits in zip(told.tolist(), nodes, devices, strict=True):
            job = jobs[row]
            if job is None:
                raise AssertionError(f"row {row} is told of and has no job")
            if what == at.SUBMITTED:
                add(new(Event, (time_ms, SUBMIT, job, 1, (), job.share, NO_REASON, False)))
                continue
            if what == at.STARTED:
                if node >= 0 and bits & (bits - 1) == 0:
                    all_slots[row] = singles[node, bits.bit_length() - 1]
                elif node >= 0:
                    numbers = range(bits.bit_length())
                    all_slots[row] = tuple(GpuSlot(node, index) for index in numbers if bits >> index & 1)
                add(new(Event, (time_ms, START, job, 1, all_slots[row], job.share, NO_REASON, False)))
                continue
            jobs[row] = None
            self._free_rows.append(row)
            if what == at.ENDED:
                kind, reason, slots = FINISH, NO_REASON, all_slots[row]
                limit_ms, work_ms = job.time_limit_ms, job.work_ms
                if limit_ms is not None and work_ms is not None and work_ms > max(0, limit_ms):
                    kind, reason = FAIL, Reason.TIME_LIMIT
                    limits.append(job.id)
            else:
                kind, slots = REJECT, ()
                reason = Reason.NEVER_FITS if what == at.NEVER_FITS else Reason.PATIENCE
                limits.append(job.id)
            add(new(Event, (time_ms, kind, job, 1, slots, job.share, reason, False)))
        return events

    # What Python does for the kernel

    def _place(self, row: int) -> None:
        """Ask the placement where a job of several nodes goes."""
        cluster, state, job = self.cluster, self._arrays.state, self._job(row)
        cluster.free_total_milli = int(state[at.FREE])
        slots = self.policy.place(job, cluster)
        state[at.ANSWER] = at.NO if slots is None else at.YES
        if slots is not None:
            cluster.place(placement_of(job, slots), now_ms=int(state[at.NOW]))
            state[at.FREE] = cluster.free_total_milli
            self._arrays.jobs[row, at.NODE] = at.OUTSIDE
            self._slots[row] = slots

    def _release(self, row: int) -> None:
        cluster, state = self.cluster, self._arrays.state
        cluster.free_total_milli = int(state[at.FREE])
        cluster.release(self._job(row).id, now_ms=int(state[at.NOW]))
        state[at.FREE] = cluster.free_total_milli
        self._arrays.jobs[row, at.NODE] = at.RELEASED

    # Jobs to come

    def _draw(self) -> None:
        """Draw more jobs, until there are none or one is odd."""
        state = self._arrays.state
        coming = self._arrays.coming[state[at.COMING] : state[at.LAST_COMING]]
        wanted = max(AT_A_TIME, len(coming))
        rows: list[int] = []
        columns: list[int] = []
        exhausted = False
        try:
            for job in islice(self._left, wanted):
                entry = self._entry(job)
                if entry is None:
                    self._odd = iter((job,))
                    break
                columns += entry
                rows.append(self._row_for(job))
            exhausted = self._odd is None and len(rows) < wanted
        except Exception as error:  # noqa: BLE001  raised again when its time has come
            self._odd = _raising(error)
        state[at.HORIZON] = NEVER_MS if exhausted else self._last_ms
        arrays = self._make_room()
        drawn = np.array(rows, dtype=np.int64)
        arrays.jobs[drawn, : at.FILLED] = np.array(columns, dtype=np.int64).reshape(-1, at.FILLED)
        arrays.jobs[drawn, at.NODE] = at.WAITS_YET
        state[at.COMING], state[at.LAST_COMING] = 0, len(coming) + len(drawn)
        self._arrays = arrays._replace(coming=np.concatenate([coming, drawn]))

    def _entry(self, job: Job) -> tuple[int, ...] | None:
        """The first columns of a job's row; None for a job that is not valid or asks for more than a plain run has."""
        submit_ms, work_ms, limit_ms = job.submit_ms, job.work_ms, job.time_limit_ms
        if (
            type(submit_ms) is not int
            or type(work_ms) is not int
            or not self._last_ms <= submit_ms < FOREVER_MS
            or work_ms < 0
            or job.id in self._known
            or job.after
            or job.elastic
        ):
            return None
        if not self._known and job.patience_ms == 0:
            self._patience_ms = 0
        if job.patience_ms != self._patience_ms or not (limit_ms is None or type(limit_ms) is int):
            return None
        try:
            number = self.cluster.request(job)
            how = self._how.get(number)
            if how is None:
                how = self._new_type(number, job)
            key = 0 if self._key is as_queued else self._key(job)
        except Exception:  # noqa: BLE001  the run that goes on raises it again
            return None
        if how < 0 or type(key) is not int or not -LARGEST_KEY < key < LARGEST_KEY:
            return None
        self._known.add(job.id)
        self._last_ms = submit_ms
        run_ms = work_ms if limit_ms is None else min(work_ms, max(0, limit_ms))
        return submit_ms, min(run_ms, FOREVER_MS), key, number, how

    def _new_type(self, number: int, job: Job) -> int:
        """What becomes of jobs of a request type; −1 if the placement has no more room for types."""
        row = self.formula.row(number)
        if row is None:
            return -1
        rows = self._arrays.rows
        if number >= len(rows):
            grown = np.zeros(2 * number + 1, dtype=np.int64)
            grown[: len(rows)] = rows
            self._arrays = self._arrays._replace(rows=grown)
        self._arrays.rows[number] = row
        how = at.WAITS if self._patience_ms is None else at.AT_ONCE
        if not self.cluster.fits_when_empty(job):
            how = at.NEVER
        self._how[number] = how
        return how

    def _row_for(self, job: Job) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self._jobs[row] = job
            return row
        self._jobs.append(job)
        self._slots.append(())
        return len(self._jobs) - 1

    def _make_room(self) -> Told:
        """The arrays with a row for each job."""
        arrays = self._arrays
        before, rows = len(arrays.jobs), len(self._jobs)
        if rows <= before:
            return arrays
        grown = {}
        for name in ("jobs", "waiting", "ending", "leaving"):
            old = getattr(arrays, name)
            grown[name] = np.zeros((2 * rows, old.shape[1]), dtype=np.int64)
            grown[name][:before] = old
        return arrays._replace(**grown)

    # How it ends

    def _waiting(self) -> list[Job]:
        """The jobs that wait, as they were queued."""
        arrays = self._arrays
        rows = arrays.waiting[: arrays.state[at.WAITING], 2]
        return [self._job(row) for row in rows[np.argsort(arrays.jobs[rows, at.ORDER])].tolist()]

    def _handed_over(self, go_on: Callable[[Iterator[Job]], Run]) -> Run:
        """A `Run` of what is left, in the same state."""
        arrays, cluster = self._arrays, self.cluster
        coming = arrays.coming[arrays.state[at.COMING] : arrays.state[at.LAST_COMING]].tolist()
        pending = [self._job(row) for row in coming]
        waiting = self._waiting()
        node = arrays.jobs[: len(self._jobs), at.NODE]
        there = np.array([job is not None for job in self._jobs], dtype=np.bool_)
        started = np.flatnonzero(there & (node != at.WAITS_YET))
        started = started[np.argsort(arrays.jobs[started, at.ORDER])]
        for row in started.tolist():
            if node[row] == at.OUTSIDE:
                self._release(row)
            else:
                release(arrays, row, cluster.block, cluster.requests)
        cluster.free_total_milli = int(arrays.state[at.FREE])
        run = go_on(chain(pending, self._odd or (), self._left))
        run.arrivals.known |= self._known.difference(job.id for job in pending)
        run.dependencies.have_ended(self._unfinished)
        for row in started.tolist():
            start_ms = int(arrays.jobs[row, at.START_MS])
            placement = placement_of(self._job(row), self._slots[row])
            run.schedule_end(cluster.place(placement, now_ms=start_ms), start_ms)
        for job in waiting:
            run.scheduler.submit(job)
        return run

    def _job(self, row: int) -> Job:
        job = self._jobs[row]
        if job is None:
            raise AssertionError(f"row {row} of a plain run has no job")
        return job


def _arrays(width: int) -> Told:
    return Told(
        state=np.zeros(at.STATE, dtype=np.int64),
        jobs=np.zeros((0, at.COLUMNS), dtype=np.int64),
        coming=np.zeros(0, dtype=np.int64),
        waiting=np.zeros((0, 3), dtype=np.int64),
        ending=np.zeros((0, 3), dtype=np.int64),
        leaving=np.zeros((0, 3), dtype=np.int64),
        told=np.zeros((MOST_TOLD, 3), dtype=np.int64),
        rows=np.zeros(64, dtype=np.int64),
        chosen=np.zeros(width, dtype=np.int64),
    )


def _raising(error: Exception) -> Iterator[Job]:
    raise error
    yield  # makes it an iterator

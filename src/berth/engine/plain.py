"""Plain runs: jobs come, start in a strict order and end, which one kernel does for many instants at once.

A run begins as a plain one if kernels know its order and its placement. From the first job that asks for more, such as
others before it, or is not valid, it goes on as a `Run`. The events are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import attrgetter

import numpy as np

from berth.arrays import BoolArray, IntArray
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

KINDS = (
    EventKind.SUBMIT,
    EventKind.START,
    EventKind.FINISH,
    EventKind.FAIL,
    EventKind.REJECT,
    EventKind.REJECT,
)
REASONS = (*3 * (Reason.NONE,), Reason.TIME_LIMIT, Reason.NEVER_FITS, Reason.PATIENCE)
"""By what is told, the kind of the event and its reason."""
share_of = attrgetter("share")
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
NOWHERE = -1


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
        self._singles = _Singles(cluster)
        self._several: dict[
            int, tuple[GpuSlot, ...]
        ] = {}  # by row, of jobs on several slots and of those placed here
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
            yield Event(last_ms, EventKind.REJECT, job, 1, (), job.share, Reason.LEFT_WAITING)

    def _told(self) -> Iterator[Event]:
        """The events that the kernel has told."""
        jobs, arrays = self._jobs, self._arrays
        count = int(arrays.state[at.TOLD])
        arrays.state[at.TOLD] = 0
        when, what, rows = arrays.told[:count].T
        told = what.tolist()
        jobs_of = list(map(jobs.__getitem__, rows.tolist()))
        slots_of = self._slots_of(rows, (what >= at.STARTED) & (what <= at.AT_LIMIT))
        self._unfinished += [self._job(row).id for row in rows[what >= at.AT_LIMIT].tolist()]
        gone = rows[what >= at.ENDED].tolist()
        for row in gone:
            jobs[row] = None
        for row in gone if self._several else ():
            self._several.pop(row, None)
        self._free_rows += gone
        shares = map(share_of, jobs_of)
        kinds, reasons = map(KINDS.__getitem__, told), map(REASONS.__getitem__, told)
        columns = when.tolist(), kinds, jobs_of, repeat(1), slots_of, shares, reasons, repeat(False)
        return map(new, repeat(Event), zip(*columns, strict=False))

    def _slots_of(self, rows: IntArray, started: BoolArray) -> list[tuple[GpuSlot, ...]]:
        """Where the jobs of these rows were started; nowhere if they were not."""
        nodes, bits = self._arrays.jobs[rows, at.NODE :].T
        several = started & ((nodes < 0) | (bits & (bits - 1) != 0))
        places = (
            nodes * (MOST_GPUS + 1) + np.frexp(bits)[1]
        )  # one more than the number of the bit; 0 if there is none
        places[~started | several] = NOWHERE
        slots_of = list(map(self._singles.__getitem__, places.tolist()))
        for number in np.flatnonzero(several).tolist():
            slots_of[number] = self._several_of(int(rows[number]))
        return slots_of

    def _several_of(self, row: int) -> tuple[GpuSlot, ...]:
        """The slots of a job that has several."""
        if row not in self._several:
            node, bits = self._arrays.jobs[row, at.NODE :].tolist()
            numbers = range(bits.bit_length())
            self._several[row] = tuple(GpuSlot(node, index) for index in numbers if bits >> index & 1)
        return self._several[row]

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
            self._several[row] = slots

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
        drawn: list[Job] = []
        try:
            drawn.extend(islice(self._left, wanted))
        except Exception as error:  # noqa: BLE001  raised again when its time has come
            self._odd = _raising(error)
        exhausted = self._odd is None and len(drawn) < wanted
        columns = self._columns(drawn)
        if columns is None:  # at least one job is odd; those before it are drawn
            columns = np.zeros((len(drawn), at.FILLED), dtype=np.int64)
            for count, job in enumerate(drawn):
                column = self._columns((job,))
                if column is None:
                    self._odd = chain(drawn[count:], self._odd or ())
                    exhausted = False
                    del drawn[count:]
                    break
                columns[count] = column[0]
        state[at.HORIZON] = NEVER_MS if exhausted else self._last_ms
        rows = self._rows_for(drawn)
        arrays = self._make_room()
        arrays.jobs[rows, : at.FILLED] = columns[: len(rows)]
        arrays.jobs[rows, at.NODE] = at.WAITS_YET
        state[at.COMING], state[at.LAST_COMING] = 0, len(coming) + len(rows)
        self._arrays = arrays._replace(coming=np.concatenate([coming, rows]))

    def _columns(self, jobs: Sequence[Job]) -> IntArray | None:
        """The first columns of the rows of jobs, (J, FILLED); None where one is not valid or asks for more than a plain
        run has."""
        columns = np.zeros((len(jobs), at.FILLED), dtype=np.int64)
        if not jobs:
            return columns
        submits = [job.submit_ms for job in jobs]
        works = [job.work_ms for job in jobs]
        limits = [job.time_limit_ms for job in jobs]
        ids = [job.id for job in jobs]
        patiences = {job.patience_ms for job in jobs}
        known = self._known
        try:
            if not known and jobs[0].patience_ms == 0:
                self._patience_ms = 0
            if patiences != {self._patience_ms} or [
                job for job in jobs if job.after or job.elastic or job.tasks
            ]:
                return None
            keys = [0] if self._key is as_queued else list(map(self._key, jobs))
            types = set(map(type, chain(submits, works, keys)))
            if types != {int} or not set(map(type, limits)) <= {int, type(None)} or not known.isdisjoint(ids):
                return None
            numbers = self.cluster.requests_of(jobs)
            for number, job in dict(zip(numbers, jobs, strict=True)).items():
                if number not in self._how:
                    self._new_type(number, job)
            columns[:, at.SUBMIT_MS], columns[:, at.KEY], columns[:, at.NUMBER] = submits, keys, numbers
            columns[:, at.HOW] = list(map(self._how.__getitem__, numbers))
            columns[:, at.RUN_MS], columns[:, at.AS] = np.array(works, dtype=np.int64), at.ENDED
        except Exception:  # noqa: BLE001  the run that goes on raises it again
            return None
        submit_ms, run_ms, key, _, how, ends = columns.T
        if not (
            self._last_ms <= submits[0]
            and submits[-1] < FOREVER_MS
            and (submit_ms[1:] >= submit_ms[:-1]).all()
            and run_ms.min() >= 0
            and how.min() >= 0
            and key.min() > -LARGEST_KEY
            and key.max() < LARGEST_KEY
        ):
            return None
        if limits.count(None) < len(limits):
            limit_ms = [NEVER_MS if one is None else min(max(0, one), NEVER_MS) for one in limits]
            ends[run_ms > limit_ms] = at.AT_LIMIT
            np.minimum(run_ms, limit_ms, out=run_ms)
        np.minimum(run_ms, FOREVER_MS, out=run_ms)
        before = len(known)
        known.update(ids)
        if len(known) < before + len(ids):
            known.difference_update(ids)
            return None
        self._last_ms = submits[-1]
        return columns

    def _new_type(self, number: int, job: Job) -> None:
        """Note what becomes of jobs of a request type; −1 if the placement has no more room for types."""
        row = self.formula.row(number)
        if row is None:
            self._how[number] = -1
            return
        rows = self._arrays.rows
        if number >= len(rows):
            grown = np.zeros(2 * number + 1, dtype=np.int64)
            grown[: len(rows)] = rows
            self._arrays = self._arrays._replace(rows=grown)
        self._arrays.rows[number] = row
        how = at.WAITS if self._patience_ms is None else at.AT_ONCE
        self._how[number] = how if self.cluster.fits_when_empty(job) else at.NEVER

    def _rows_for(self, drawn: Sequence[Job]) -> IntArray:
        """A row for each of these jobs, which it holds from now on."""
        jobs, free_rows = self._jobs, self._free_rows
        kept = max(0, len(free_rows) - len(drawn))
        rows = free_rows[kept:]
        del free_rows[kept:]
        for row, job in zip(rows, drawn, strict=False):
            jobs[row] = job
        new_jobs = drawn[len(rows) :]
        rows += range(len(jobs), len(jobs) + len(new_jobs))
        jobs += new_jobs
        return np.array(rows, dtype=np.int64)

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
        slots_of = self._slots_of(started, np.ones(len(started), dtype=np.bool_))
        for row, slots in zip(started.tolist(), slots_of, strict=True):
            start_ms = int(arrays.jobs[row, at.START_MS])
            placement = placement_of(self._job(row), slots)
            run.schedule_end(cluster.place(placement, now_ms=start_ms), start_ms)
        for job in waiting:
            run.scheduler.submit(job)
        return run

    def _job(self, row: int) -> Job:
        job = self._jobs[row]
        if job is None:
            raise AssertionError(f"row {row} of a plain run has no job")
        return job


class _Singles(dict[int, tuple[GpuSlot, ...]]):
    """The only slot of a job, by node and then by GPU, first no GPU; nowhere for NOWHERE."""

    def __init__(self, cluster: Cluster) -> None:
        self[NOWHERE] = ()
        self._of_cluster = cluster.singles

    def __missing__(self, place: int) -> tuple[GpuSlot, ...]:
        node, index = divmod(place, MOST_GPUS + 1)
        found = self[place] = self._of_cluster[node, index - 1]
        return found


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

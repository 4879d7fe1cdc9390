"""The waiting jobs, as policies see them: in the order in which they were queued, or by any key.

The scheduler alone adds and removes; policies iterate. An iteration goes on rightly while the jobs that it has
yielded are started and leave the queue, and while limits show and hide others.

Keys and lanes are other people's code and may raise. A job is queued all the same: an order or lanes that could not
take it are dropped and made anew when a policy next asks for them, which is where the error is seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeVar, cast

from sortedcontainers import SortedList

from berth.model import Job

Key = Callable[[Job], Any]
"""A function of a job that gives something to sort by, the smallest first."""


Lane = Callable[[Job], Hashable]
"""A function of a job that tells which lane it waits in; the answer must not change while it waits."""


Serial = int | Fraction
"""Tells the order in which jobs stand in the queue; one that was inserted is halfway between its neighbours."""


Entry = tuple[Any, Serial, Job]
"""Of a sorted order: key, serial and job. The key is that of the moment at which the job was queued, for what is
believed of it may change while it waits."""


class WaitingJobs(Protocol):
    """The waiting jobs in a form of a policy's own, such as arrays for kernels, kept up by the queue."""

    failed: bool
    """Whether it could not take a job, so that it is to be made anew."""

    def add(self, job: Job, serial: Serial) -> None:
        """A job waits from now on. What this raises is not seen: it sets `failed`."""

    def remove(self, job: Job) -> None:
        """A job that was added waits no more."""


Form = TypeVar("Form", bound=WaitingJobs)


class _Lanes:
    """The waiting jobs in lanes; entries of a lane are (key, serial, job), in order."""

    def __init__(self, lane: Lane, key: Key, jobs: Iterable[tuple[Serial, Job]]) -> None:
        self.lane = lane
        self.key = key
        self.failed = False
        """Whether the lane or the key could not take a job."""
        self._of: dict[str, tuple[Hashable, Entry]] = {}
        self.entries: dict[Hashable, SortedList] = {}
        for serial, job in jobs:
            self.add(job, serial)

    def add(self, job: Job, serial: Serial) -> None:
        lane = self.lane(job)
        entries = self.entries.get(lane)
        if entries is None:
            entries = self.entries[lane] = SortedList()
        entry = (self.key(job), serial, job)
        self._of[job.id] = (lane, entry)
        entries.add(entry)

    def remove(self, job: Job) -> None:
        lane, entry = self._of.pop(job.id)
        entries = self.entries[lane]
        entries.remove(entry)
        if not entries:
            del self.entries[lane]


class Queue:
    """Jobs that wait, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}  # id -> its place in _jobs
        self._jobs: list[Job | None] = []  # None where one has left
        self._serials: list[Serial] = []  # at the same places; they grow from place to place
        self._first = 0  # the place of the first waiting job; behind all places where none waits
        self._room = 64  # places to fill before those that have left are taken out
        self._forms: dict[Hashable, WaitingJobs] = {}
        self._next_serial = 0
        self.changes = 0
        """How often a job came or left."""
        self.emptied = 0
        """How often the last waiting job left."""
        self.replacements = 0
        """How often a waiting job was exchanged for another of its id, or one was inserted among them."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job: object) -> bool:
        """Whether this very job waits, and not only one of the same id."""
        if not isinstance(job, Job):
            return False
        place = self._places.get(job.id)
        return place is not None and self._jobs[place] is job

    def holds(self, job_id: str) -> bool:
        """Whether a job of this id waits."""
        return job_id in self._places

    def named(self, job_id: str) -> Job | None:
        """The waiting job of this id; None where none waits."""
        place = self._places.get(job_id)
        return None if place is None else self._jobs[place]

    def __iter__(self) -> Iterator[Job]:
        """In the order in which they were queued, inserted ones in the places that they were given."""
        jobs, serials = self._jobs, self._serials
        place = self._first
        while place < len(jobs):
            job = jobs[place]
            if job is not None:
                yield job
                if jobs is not self._jobs:  # compacted meanwhile: go on behind the job just yielded
                    serial = serials[place]
                    jobs, serials = self._jobs, self._serials
                    place = bisect_right(serials, serial) - 1
            place += 1

    def first(self) -> Job | None:
        """The job that stands first; None if none waits."""
        return self._jobs[self._first] if self._places else None

    def by(self, key: Key) -> Iterator[Job]:
        """In the order of `key`, the first queued on ties.

        Pass the same function object each time (a module-level function, not a new lambda): the order is
        kept between calls, so that asking for the first jobs of a long queue is cheap.
        """
        lanes = self.lanes(_together, key)
        place = 0
        while place < len(entries := lanes.get(None, ())):
            entry = entries[place]
            before = self.changes
            yield entry[2]
            place = place + 1 if self.changes == before else entries.bisect_right(entry)

    def lanes(self, lane: Lane, key: Key) -> Mapping[Hashable, SortedList]:
        """The waiting jobs in lanes, such as those of one user: for each lane that has any its entries (key,
        serial, job) in the order of `key`, the first queued on ties.

        It changes as jobs come and leave; it is there to be read. Pass the same functions each time, as in
        `by`: lanes are kept between calls.
        """
        return self.form((lane, key), partial(_Lanes, lane, key)).entries

    def form(self, name: Hashable, make: Callable[[Iterable[tuple[Serial, Job]]], Form]) -> Form:
        """The waiting jobs in the form that `make` gives them, kept between calls under this name, until lanes are
        forgotten."""
        found = self._forms.get(name)
        if found is None:
            found = self._forms[name] = make(self._entries())
        return cast(Form, found)

    def add(self, job: Job) -> bool:
        """Queue a job behind all others; False where one of its id waits. For the scheduler alone."""
        if job.id in self._places:
            return False
        if len(self._jobs) > self._room:
            self._compact()
        self._next_serial = serial = self._next_serial + 1
        self._places[job.id] = len(self._jobs)
        self._jobs.append(job)
        self._serials.append(serial)
        if self._forms:
            self._sort_in(job, serial)
        self.changes += 1
        return True

    def insert(self, job: Job, ahead_of: Job) -> bool:
        """Queue a job right before a waiting one; False where one of its id waits or that one does not. It takes time
        in proportion to the queue's length. For the scheduler alone."""
        if job.id in self._places or ahead_of not in self:
            return False
        entries = list(self._entries())
        self._insert(
            job, entries, bisect_left(entries, self._serials[self._places[ahead_of.id]], key=itemgetter(0))
        )
        return True

    def serial_of(self, job: Job) -> Serial:
        """The serial of a waiting job."""
        return self._serials[self._places[job.id]]

    def insert_behind(self, job: Job, serial: Serial) -> Serial:
        """Queue a job behind the place of one with this serial, which may have left; returns its own serial. It takes
        time in proportion to the queue's length. For the scheduler alone."""
        entries = list(self._entries())
        return self._insert(job, entries, bisect_right(entries, serial, key=itemgetter(0)), serial)

    def _insert(self, job: Job, entries: list[tuple[Serial, Job]], place: int, behind: Serial = 0) -> Serial:
        """Queue a job at this place among those that wait; behind this serial, too, if it is larger."""
        before = max(behind, entries[place - 1][0] if place else 0)
        if place < len(entries):
            serial: Serial = Fraction(before + entries[place][0]) / 2
        else:
            self._next_serial = serial = self._next_serial + 1
        self._fill([*entries[:place], (serial, job), *entries[place:]])
        self._sort_in(job, serial)
        self.changes += 1
        self.replacements += 1
        return serial

    def remove(self, job: Job) -> None:
        """Take a job out, if this very job waits. For the scheduler alone."""
        jobs, job_id = self._jobs, job.id
        place = self._places.get(job_id)
        if place is None or jobs[place] is not job:
            return
        del self._places[job_id]
        if not self._places:
            self.emptied += 1
        jobs[place] = None
        if place == self._first:
            place_after, end = place + 1, len(jobs)
            while place_after < end and jobs[place_after] is None:
                place_after += 1
            self._first = place_after
        for form in self._forms.values():
            form.remove(job)
        self.changes += 1

    def replace(self, job: Job) -> bool:
        """Exchange the waiting job of the same id for this one, which keeps its place; False where none waits. For the
        scheduler alone."""
        before = self.named(job.id)
        if before is None:
            return False
        place = self._places[job.id]
        serial = self._serials[place]
        self._jobs[place] = job
        for form in self._forms.values():
            form.remove(before)
        self._sort_in(job, serial)
        self.changes += 1
        self.replacements += 1
        return True

    def forget_lanes(self, lane: Lane) -> None:
        """Drop the lanes that this function tells, because its answers have changed. For the scheduler alone."""
        self._forms = {
            name: form for name, form in self._forms.items() if isinstance(form, _Lanes) and form.lane != lane
        }

    def _sort_in(self, job: Job, serial: Serial) -> None:
        failed = False
        for form in self._forms.values():
            try:
                form.add(job, serial)
            except Exception:  # noqa: BLE001  whatever it is, the policy that asks next is told
                form.failed = failed = True
        if failed:
            self._forms = {name: form for name, form in self._forms.items() if not form.failed}

    def _entries(self) -> Iterator[tuple[Serial, Job]]:
        return (
            (serial, job) for serial, job in zip(self._serials, self._jobs, strict=True) if job is not None
        )

    def _compact(self) -> None:
        self._fill(list(self._entries()))

    def _fill(self, entries: list[tuple[Serial, Job]]) -> None:
        """Have these waiting, without gaps, in new lists, by which an iteration knows of it."""
        self._serials = [serial for serial, _ in entries]
        self._jobs = [job for _, job in entries]
        self._places = {job.id: place for place, (_, job) in enumerate(entries)}
        self._first = 0
        self._room = 2 * len(entries) + 64


def _together(_: Job) -> None:
    """The lane of a queue that has only one."""

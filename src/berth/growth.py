"""Growth: what running jobs ask for beyond their limits of GPU memory, and which of it they get.

A suspended job that was idle asks here too: to come back, since a call of CUDA waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from berth.errors import PartitionError
from berth.partition import Demand, Granter, Watching, Wish
from berth.partition.gpus import plain_uuid
from berth.partition.regions import root_folder
from berth.tenants import SUSPENDED, SUSPENDING, Host, T, given, given_milli, room

ASK_MS = 5000
"""How long a call waits for an answer at most; a broker that lives answers in less than a millisecond."""
ROOM_MS = 600_000
"""How long a call waits at most until another job has been suspended for it, or has ended."""
AWAY_MS = (1 << 32) - 1
"""How long a call waits at most while its own job leaves its GPUs and comes back."""
STEP_MIB = 256
"""A limit grows by whole steps where there is room, so that a program that allocates little by little asks seldom."""
BURST, PER_S = 512, 100.0
"""How many wishes of one job are answered at once, and how many a second after that; the others wait."""
REPORT_S = 0.1
"""How soon a limit that grew is written down and reported. Programs that ask again at once are answered sooner than
that; until then only the partition's shared page has it."""
_MIB = 1 << 20


def is_safe(free_mib: int, jobs: Iterable[tuple[int, int]]) -> bool:
    """Whether all jobs of a card, each with what it holds and may claim, can get that and end, one after another.

    Dijkstra, Cooperating Sequential Processes (EWD 123), 1965: the banker's algorithm, for one kind of resource.
    """
    for held_mib, claim_mib in sorted(jobs, key=lambda job: job[1] - job[0]):
        if claim_mib - held_mib > free_mib:
            return False
        free_mib += held_mib
    return True


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Loop(Protocol):
    """The part of an event loop that growth needs: asyncio's where jobs are real, the simulator's own where not."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., Any], /, *args: Any) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[..., Any], /, *args: Any) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., Any], /, *args: Any) -> Timer: ...


class Answers(Protocol):
    """What reads and answers the wishes of a job on one of its GPUs (`berth.partition.Granter`)."""

    def allow(self, *, promise_mib: int, max_mib: int, ask_ms: int, shows_max: bool = False) -> None: ...

    def demand(self) -> Demand: ...

    def watch(self, watching: Watching) -> None: ...

    def limit(self, limit_bytes: int) -> None: ...

    def grant(self, wish: Wish, limit_bytes: int) -> None: ...

    def wake(self, wish: Wish, granted: bool = True) -> None: ...

    def refuse(self, wish: Wish) -> None: ...

    def close(self) -> None: ...


def _granter_of(host: Host[T], entry: T, at: int, woken: Callable[[], None]) -> Answers:
    """The granter of a job's partition of a GPU. Raises PartitionError if there can be none."""
    uuid = plain_uuid(host.gpus[at].uuid)
    return Granter(root_folder() / host.partition_of(entry), uuid, woken)


@dataclass(slots=True)
class Growing(Generic[T]):
    """A job whose memory may grow, or that leaves its GPUs while it is idle, as long as it starts or runs."""

    entry: T
    granters: list[Answers]
    """One for each of its GPUs, in the order of its slots."""
    most_mib: int
    grows: bool = True
    """Whether that may be more than it began with."""
    asked: int = 0
    granted: int = 0
    refused: int = 0
    owed: float = 0.0
    """Answers of late, which become fewer by `PER_S` a second."""
    owed_s: float = 0.0
    waits: bool = False
    """Whether a wish is not answered yet, because another job is to leave its GPUs, or to end."""
    tried: set[str] = field(default_factory=set)
    """The jobs that were suspended for it, or could not be."""
    calls: int | None = None
    """Calls of CUDA, as they were counted last; None: they were not yet."""


class Growth(Generic[T]):
    """Answers the wishes of the running jobs: older jobs first, and never more than a card has.

    A host calls `begin` when a job's partitions are there, `end` when it has ended, `room_made` when one has ended or
    left its GPUs, and `leaves` and `go_on` around a suspension.
    """

    def __init__(
        self,
        host: Host[T],
        *,
        can_suspend: Callable[[T], bool],
        suspends: bool = False,
        granter_of: Callable[[Host[T], T, int, Callable[[], None]], Answers] = _granter_of,
        loop: Callable[[], Loop] = asyncio.get_running_loop,
    ) -> None:
        """With `suspends` a job is suspended if others grow; for one that comes back it always may be. Everything here
        runs in the thread of the event loop. `granter_of` is called with the host, a job, one of its GPUs, and what to
        call when the job asks."""
        self._host, self._can_suspend, self._suspends = host, can_suspend, suspends
        self._granter_of, self._loop = granter_of, loop
        self.jobs: dict[str, Growing[T]] = {}
        self.asked = self.granted = self.refused = 0
        """Wishes of all jobs since the broker started."""
        self._woken: set[str] = set()
        self._report_timer: Timer | None = None
        self.looks = 0
        """How often wishes were looked at."""

    def begin(self, entry: T) -> None:
        """Answer a job from now on: its partitions are there, and it may run already."""
        card_mib = min(self._host.gpus[at].mem_mib for at in entry.slots)
        most_mib = min(self._host.most_mib(entry), card_mib)
        grows = 0 < entry.share[1] < most_mib
        if not (grows or entry.interactive):
            return
        loop, granters = self._loop(), list[Answers]()

        def woken() -> None:
            loop.call_soon_threadsafe(self._wake, entry.id)

        try:
            for at in entry.slots:
                granters.append(self._granter_of(self._host, entry, at, woken))
            growing = Growing(entry, granters, most_mib if grows else entry.share[1] or card_mib, grows)
            if grows and not entry.suspension:
                had_mib = max(granter.demand().limit_bytes for granter in granters) // _MIB
                if had_mib > entry.share[1]:  # a broker before this one was killed while it let the job grow
                    self._host.grown(entry, had_mib)
                for granter in granters:
                    granter.limit(entry.share[1] * _MIB)
            self._watch_calls(growing, Watching.AWAY if entry.suspension else Watching.COUNTS)
            self._allow(growing, AWAY_MS if entry.suspension else ASK_MS)
        except PartitionError as error:
            self._host.log("grows-not", job=entry.id, why=str(error))
            for granter in granters:
                granter.close()
            return
        self.jobs[entry.id] = growing

    @staticmethod
    def _allow(growing: Growing[T], ask_ms: int) -> None:
        entry = growing.entry
        for granter in growing.granters:
            granter.allow(
                promise_mib=entry.promise_mib or entry.share[1],
                max_mib=growing.most_mib,
                ask_ms=ask_ms,
                shows_max=entry.shows_max,
            )

    @staticmethod
    def _watch_calls(growing: Growing[T], watching: Watching) -> None:
        if growing.entry.interactive:
            for granter in growing.granters:
                granter.watch(watching)

    def count_calls(self, growing: Growing[T]) -> int | None:
        """How often the programs of an interactive job have called CUDA; None: it cannot be told."""
        try:
            return sum(granter.demand().calls for granter in growing.granters)
        except PartitionError:
            return None

    def leaves(self, entry: T) -> bool:
        """A job is to leave its GPUs: what it asks from now on, or asked already, waits until it runs on.

        False: it was to leave because it is idle, and has called CUDA since that was found. Calls wait before they are
        counted here, so that none is overlooked that would hang in the driver.
        """
        if (growing := self.jobs.get(entry.id)) is not None:
            self._have_wait(growing, AWAY_MS, Watching.AWAY)
        growing = self.jobs.get(entry.id)
        return not entry.idle or (growing is not None and self.count_calls(growing) == growing.calls)

    def go_on(self, entry: T) -> None:
        """A suspended job runs on: answer what it asked before, then let it wait as long as ever."""
        if (growing := self.jobs.get(entry.id)) is None:
            self.begin(entry)
            return
        growing.tried.clear()
        growing.waits = False
        self._woken.add(entry.id)
        self._look()  # first: a call that has waited for longer than `ASK_MS` would give up
        self._have_wait(growing, ROOM_MS if growing.waits else ASK_MS, Watching.COUNTS)

    def _have_wait(self, growing: Growing[T], ask_ms: int, watching: Watching) -> None:
        try:
            self._allow(growing, ask_ms)
            self._watch_calls(growing, watching)
        except PartitionError as error:
            self._host.log("grows-not", job=growing.entry.id, why=str(error))
            self.end(growing.entry)

    def room_made(self) -> None:
        """A job has ended or left its GPUs, or cannot: answer those that wait, before the brain gives its room away."""
        if any(growing.waits for growing in self.jobs.values()):
            self._look()

    def end(self, entry: T) -> None:
        growing = self.jobs.pop(entry.id, None)
        for granter in growing.granters if growing is not None else ():
            granter.close()

    def close(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
        for growing in list(self.jobs.values()):
            self.end(growing.entry)

    def _wake(self, job_id: str) -> None:
        """A program of this job asks: look at it with all others that ask by then."""
        if not self._woken:
            self._loop().call_soon(self._look)
        self._woken.add(job_id)

    def _look(self) -> None:
        woken, self._woken = self._woken, set()
        self.looks += 1
        asking = [growing for job_id, growing in self.jobs.items() if job_id in woken or growing.waits]
        before = sum(growing.entry.share[1] for growing in asking)
        for growing in sorted(asking, key=lambda each: each.entry.serial):
            try:
                if not self._must_wait(growing):
                    (self._bring_back if growing.entry.suspension else self._answer)(growing)
            except PartitionError as error:
                self._host.log("grows-not", job=growing.entry.id, why=str(error))
                self.end(growing.entry)
        if self._report_timer is None and sum(growing.entry.share[1] for growing in asking) > before:
            self._report_timer = self._loop().call_later(REPORT_S, self._report)

    def _report(self) -> None:
        self._report_timer = None
        self._host.act()

    def _must_wait(self, growing: Growing[T]) -> bool:
        """Whether a job has asked too often of late; it is looked at again when it has not."""
        now_s = self._loop().time()
        growing.owed = max(0.0, growing.owed - (now_s - growing.owed_s) * PER_S)
        growing.owed_s = now_s
        if growing.owed < BURST:
            return False
        wait_s = (growing.owed - BURST + 1) / PER_S
        self._loop().call_later(wait_s, self._wake, growing.entry.id)
        return True

    def _answer(self, growing: Growing[T]) -> None:
        waited, growing.waits = growing.waits, False
        for granter in growing.granters:
            demand = granter.demand()
            promised_bytes = demand.used_bytes
            for wish in demand.wishes:
                growing.owed += 1
                if wish.comes_back:
                    granter.wake(wish)  # it has come back
                    continue
                needed_mib = -(-(promised_bytes + wish.wanted_bytes) // _MIB)
                granted = self._grow(growing, needed_mib)
                if not granted and (
                    self._gets_room(growing, needed_mib) or self._waits_for_ends(growing, needed_mib)
                ):
                    growing.waits = True
                    continue
                growing.asked += 1
                self.asked += 1
                if granted:
                    granter.grant(wish, growing.entry.share[1] * _MIB)
                    growing.granted += 1
                    self.granted += 1
                    promised_bytes += wish.wanted_bytes
                else:
                    granter.refuse(wish)
                    growing.refused += 1
                    self.refused += 1
                    self._host.log(
                        "not-grown", job=growing.entry.id, needs_mib=needed_mib, mib=growing.entry.share[1]
                    )

        if waited is not growing.waits:
            self._allow(growing, ROOM_MS if growing.waits else ASK_MS)

    def _may_grow(self, growing: Growing[T], needed_mib: int) -> bool:
        """Whether a job may have as much if there is room."""
        entry = growing.entry
        return entry.going and needed_mib <= growing.most_mib and not self._host.uncounted_mib(entry)

    def _grow(self, growing: Growing[T], needed_mib: int) -> bool:
        """Have the limit of a job be as much as is needed, if that can be."""
        entry = growing.entry
        if needed_mib <= entry.share[1]:
            return True
        if not self._may_grow(growing, needed_mib):
            return False
        whole_mib = -(-needed_mib // STEP_MIB) * STEP_MIB
        sizes = sorted({min(whole_mib, growing.most_mib), needed_mib}, reverse=True)
        return any(needed_mib <= each <= growing.most_mib and self._raise(growing, each) for each in sizes)

    def _raise(self, growing: Growing[T], mem_mib: int) -> bool:
        """Raise the limit of a job to this, if there is room."""
        entry = growing.entry
        with self._host.room_kept():
            if not all(self._has_room(entry, at, mem_mib) for at in entry.slots):
                return False
            self._host.grown(entry, mem_mib)  # before the pages: their sum is never more than what is kept
            for granter in growing.granters:
                granter.limit(mem_mib * _MIB)
        self._host.log("grown", job=entry.id, mib=mem_mib)
        return True

    def _waits_for_ends(self, growing: Growing[T], needed_mib: int) -> bool:
        """Whether a job gets what it needs when others on its GPUs have ended. It takes what is free by then, so that
        no new job does.

        Of two that wait only the older counts on the other's end: the younger is refused, if no third one runs.
        """
        entry = growing.entry
        if not self._may_grow(growing, needed_mib):
            return False
        ends = {
            at: [
                job for job in self._host.tenants_on(at) if job is not entry and self._ends_before(job, entry)
            ]
            for at in entry.slots
        }
        if not any(ends.values()):
            return False
        for at, jobs in ends.items():
            frees_mib = sum(given(self._host, job, at)[1] for job in jobs)
            if self._free_mib(entry, at, needed_mib) + frees_mib < 0:
                return False
        free_mib = min(self._free_mib(entry, at, entry.share[1]) for at in entry.slots)
        if free_mib > 0:
            self._raise(growing, min(entry.share[1] + free_mib, needed_mib))
        return True

    def _ends_before(self, job: T, entry: T) -> bool:
        """Whether a job can end, or leave, without what another waits for."""
        growing = self.jobs.get(job.id)
        waits = growing is not None and growing.waits and job.serial < entry.serial
        waits_with_it = bool(job.gang) and job.gang == entry.gang
        return not (waits or waits_with_it or job.suspension == SUSPENDED)

    def _gets_room(self, growing: Growing[T], needed_mib: int) -> bool:
        """Whether other jobs are leaving, or are asked to leave now, so that this one gets what it needs.

        Those that matter less leave, and if they have too little, older ones of no higher priority, unless they are
        interactive or wait for memory themselves: to wait for their ends costs the job's GPU, and after `ROOM_MS` its
        run (bench/growth_simulated.py).
        """
        entry = growing.entry
        if not self._suspends or not self._may_grow(growing, needed_mib):
            return False
        lacks = {at: (-self._free_mib(entry, at, needed_mib), 0) for at in entry.slots}

        def less(job: T) -> bool:
            return _matters(job) < _matters(entry)

        def may(job: T) -> bool:
            asking = self.jobs.get(job.id)
            stays = job.interactive or (asking is not None and asking.waits)
            return less(job) or (job.priority <= entry.priority and not stays)

        return self._have_leave(growing, lacks, less) or self._have_leave(growing, lacks, may)

    def _bring_back(self, growing: Growing[T]) -> None:
        """Let a job run on that was suspended because it was idle and is not any more. If its GPUs are full, others
        leave that are not interactive and have no higher priority."""
        entry = growing.entry
        wishes = (wish for granter in growing.granters for wish in granter.demand().wishes)
        growing.waits = any(wish.comes_back for wish in wishes)
        if not (growing.waits and entry.idle and entry.suspension == SUSPENDED and entry.going):
            return
        growing.owed += 1
        if not entry.resumes:
            self._host.log("calls-again", job=entry.id)
            self._host.let_resume(entry)
            self._host.act()
        lacks = {
            at: (entry.share[1] - free_mib, given_milli(entry) - free_milli)
            for at in entry.slots
            for free_milli, free_mib in (room(self._host, at, [entry]),)
        }
        self._have_leave(
            growing,
            lacks,
            lambda job: not job.interactive and job.priority <= entry.priority,
        )

    def _have_leave(
        self, growing: Growing[T], lacks: Mapping[int, tuple[int, int]], may: Callable[[T], bool]
    ) -> bool:
        """Whether jobs are leaving, or are asked to leave now, that have what the GPUs lack, in MiB and milli.

        The one that matters least leaves: of the lowest priority, and of those the youngest. If none has enough alone,
        several leave, and none that is not needed.
        """
        entry = growing.entry
        near = {job.id: job for at in lacks for job in self._host.tenants_on(at)}.values()
        if any(job.lends_to == entry.id and job.suspension == SUSPENDING for job in near):
            return True

        def enough(leaving: list[T]) -> bool:
            return all(
                sum(given(self._host, job, at)[1] for job in leaving if at in job.slots) >= lack_mib
                and sum(given_milli(job) for job in leaving if at in job.slots) >= lack_milli
                for at, (lack_mib, lack_milli) in lacks.items()
            )

        if enough([]):
            return False
        others = [
            job
            for job in sorted(near, key=_matters)
            if job.runs
            and not (job.suspension or job.gang or job is entry)
            and job.id not in growing.tried
            and may(job)
        ]
        leaving = next(([job] for job in others if enough([job]) and self._can(growing, job)), [])
        if not leaving and enough(others):
            for job in others:
                if self._can(growing, job):
                    leaving.append(job)
                if enough(leaving):
                    break
            for job in [*leaving]:
                if enough(fewer := [each for each in leaving if each is not job]):
                    leaving = fewer
        if not leaving or not enough(leaving):
            return False
        for job in leaving:
            growing.tried.add(job.id)
            self._host.lend(job, entry)
            self._host.log("lends", job=job.id, to=entry.id)
        self._host.act()
        return True

    def _can(self, growing: Growing[T], job: T) -> bool:
        """Whether a job can be suspended for another; if not, it is not asked again."""
        if job.id in growing.tried:
            return False
        growing.owed += BURST / 16  # it takes longer to answer
        if not self._can_suspend(job):
            growing.tried.add(job.id)
            return False
        return True

    def _free_mib(self, entry: T, at: int, mem_mib: int) -> int:
        """What would be left of a GPU if a job had this much of it; below 0 if that is not there."""
        return room(self._host, at, [entry])[1] - mem_mib

    def _held_mib(self, entry: T, at: int, mem_mib: int) -> dict[str, int]:
        """What each job would hold of a GPU if one had this much of it."""
        card_mib = self._host.gpus[at].mem_mib
        here = (job for job in self._host.tenants_on(at) if job.suspension != SUSPENDED)
        return {job.id: job.share[1] or card_mib for job in here} | {entry.id: mem_mib}

    def _has_room(self, entry: T, at: int, mem_mib: int) -> bool:
        """Whether a job may have this much of a GPU: it is there, and the others can still get what they may need, or
        the job is the oldest of those that have not got that."""
        free_mib = self._free_mib(entry, at, mem_mib)
        if free_mib < 0:
            return False
        held = self._held_mib(entry, at, mem_mib)
        here = [job for job in self._host.tenants_on(at) if job.id in held]
        claims = {job.id: max(held[job.id], self._claim_mib(job)) for job in here}
        if is_safe(free_mib, ((held[job.id], claims[job.id]) for job in here)):
            return True
        older = (job for job in here if job.serial < entry.serial)
        return all(claims[job.id] == held[job.id] for job in older)

    def _claim_mib(self, job: T) -> int:
        """What a job is believed to need of each GPU, as far as it may have it."""
        growing = self.jobs.get(job.id)
        return 0 if growing is None else min(job.peak_mib, growing.most_mib)


def _matters(job: T) -> tuple[int, int]:
    """The order in which jobs leave for others: the least first."""
    return job.priority, -job.serial

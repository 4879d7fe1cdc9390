"""The jobs of the queue and what may become of each: a state machine without files and without a clock.

It keeps what must not be lost and decides nothing. The broker tells it what happens and when, writes its `changes` to
the store, sends its `events` to the brain, and carries out the starts and stops: the starts only after what changed was
written. What follows from an attempt that ran out of memory, was cut short or did not start is the brain's to say.

    waiting ⇄ held, waiting → starting → running → ended; an attempt that is over may leave the job waiting again
    while it is running: → suspending → suspended → resuming →
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

from berth.errors import LiveError
from berth.live.local.dependencies import Dependencies
from berth.live.local.entry import (
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    HELD,
    NODE_FAIL,
    OUT_OF_MEMORY,
    PREEMPTED,
    REQUEUE,
    RUNNING,
    STARTING,
    TIMEOUT,
    UNKNOWN,
    WAITING,
    End,
    Entry,
    Limits,
)
from berth.live.local.gangs import LocalGangs
from berth.live.local.messages import Event, ended, gang_ended, runs, snapshot, start_failed, waits, withdrawn
from berth.live.local.request import Request, Tasks
from berth.tenants import RESUMING, SUSPENDED, SUSPENDING

UNDECIDED = (OUT_OF_MEMORY, PREEMPTED, NODE_FAIL, UNKNOWN)
"""States in which the brain says whether the job waits again."""
FOR_A_JOB = "it waits for job"
FOR_ITS_TIME = "its start time has not come yet"


@dataclass
class Changes:
    """What is to be written, and what follows when it is."""

    entries: dict[str, Entry] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """Attempts that ended."""
    starts: list[Entry] = field(default_factory=list)
    """What is to be started once this is written."""
    moves: list[Entry] = field(default_factory=list)
    """What is to be suspended or resumed once this is written."""
    finished: list[Entry] = field(default_factory=list)
    """Jobs that have come to their end."""
    settled: list[tuple[Entry, int]] = field(default_factory=list)
    """Starts that are over and of which it is decided what follows."""
    ended: tuple[str, ...] = ()
    """Jobs of which the store knows the end once this is written."""


@dataclass
class Book:
    """All jobs that have not ended, and what the broker has to do about them."""

    limits: Limits = field(default_factory=Limits)
    boot: str = ""
    jobs: dict[str, Entry] = field(default_factory=dict)
    active: dict[str, Entry] = field(default_factory=dict)
    """Those that are starting or running."""
    next_number: int = 1
    next_serial: int = 1
    pending: Changes = field(default_factory=Changes)
    stops: list[str] = field(default_factory=list)
    """Jobs whose processes are to be ended."""
    events: list[Event] = field(default_factory=list)
    """What the brain is to be told, in order."""
    ended_states: Callable[[str], Mapping[str, str]] = lambda job_id: {}
    """The states of what the store has of a job that has ended, or of the tasks of an array that have."""
    just_ended: dict[str, str] = field(default_factory=dict)
    """States of jobs that the store may not have yet."""

    def __post_init__(self) -> None:
        self._wakes: list[tuple[int, str]] = []
        self._dependencies = Dependencies(self.jobs, self.just_ended, self.ended_states)
        self.gangs = LocalGangs(self.jobs)
        self._going: dict[str, set[str]] = defaultdict(set)  # tasks that run or that the brain has
        self._wanted: set[str] = set()  # jobs that were leaving already when the brain wanted their GPUs

    # What the broker does about it

    def changes(self) -> Changes:
        found, self.pending = self.pending, Changes()
        found.ended = tuple(self.just_ended)
        return found

    def written(self, changes: Changes) -> None:
        """The store has these changes."""
        unwritten = {entry.id for entry in self.pending.finished}
        for job_id in changes.ended:
            if job_id not in self.jobs and job_id not in unwritten:
                self.just_ended.pop(job_id, None)

    def take_stops(self) -> list[Entry]:
        stops, self.stops = self.stops, []
        return [entry for job_id in stops if (entry := self.jobs.get(job_id)) is not None]

    def add_event(self, event: Event) -> None:
        """Have the brain told what is about no job."""
        self.events.append(event)

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def snapshot(self) -> list[Event]:
        """All that a brain must know that is only tried."""
        return snapshot(self.active.values(), self.jobs.values(), self.limits)

    def begin_anew(self) -> list[Event]:
        """All that a new brain must know; what one before it decides from now on counts no more."""
        self.events.clear()
        self._wanted.clear()
        for entry in self.jobs.values():
            if entry.state == WAITING and entry.offered:
                entry.version += 1
        return self.snapshot()

    @property
    def numbering(self) -> tuple[int, int]:
        """The next number and serial of a job."""
        return self.next_number, self.next_serial

    def number_from(self, numbering: tuple[int, int]) -> None:
        """Give out these numbers next: those of a submission that was refused, or above all that were given out."""
        self.next_number, self.next_serial = numbering

    # What users do

    def draft(
        self, request: Request, tasks: Tasks, *, key: int, uid: int, user: str, now_ms: int
    ) -> list[Entry]:
        """The jobs of one submission, with ids of their own, which count once they are `add`ed."""
        self.limits.check(request)
        self.gangs.check(request, tasks, user)
        for _, job_id in request.after:
            self._dependencies.check(job_id)
        number = self.next_number
        self.next_number += 1
        made = []
        for index, params in zip(tasks.numbers or (None,), tasks.params, strict=True):
            job_id = str(number) if index is None else f"{number}_{index}"
            made.append(
                Entry(
                    job_id, self.next_serial, uid, user, request, key, now_ms, now_ms, params=params,
                    index=index, at_most=tasks.most, since_ms=now_ms,
                )
            )  # fmt: skip
            self.next_serial += 1
        return made

    def add(self, made: Iterable[Entry], now_ms: int) -> None:
        for entry in made:
            self._enter(entry)
            self._consider(entry, now_ms)

    def named(self, job_id: str) -> list[Entry]:
        """The job of this id, or the tasks of this array that have not ended."""
        return self._dependencies.named(job_id)

    def cancel(self, entry: Entry, now_ms: int) -> None:
        check_not_ended(entry)
        if entry.state in (WAITING, HELD):
            self._withdraw(entry)
            self._finish(entry, CANCELLED, now_ms, "cancelled while it waited")
        elif entry.over is not None:
            self._finish(entry, entry.over_as or CANCELLED, now_ms, "cancelled before it was queued again")
        else:
            self._stop(entry, CANCELLED, now_ms)

    def hold(self, entry: Entry, now_ms: int) -> None:
        check_not_ended(entry)
        if entry.state == HELD:
            return
        if entry.state != WAITING:
            raise LiveError(f"job {entry.id} is {entry.state}; only a waiting job can be held")
        self._withdraw(entry)
        self._change(entry, HELD, now_ms, "held by its user")

    def release(self, entry: Entry, now_ms: int) -> None:
        check_not_ended(entry)
        if entry.state == WAITING:
            return
        if entry.state != HELD:
            raise LiveError(f"job {entry.id} is {entry.state}; only a held job can be released")
        entry.queued_ms, entry.stands_ms = now_ms, 0
        self._change(entry, WAITING, now_ms, "")
        self._consider(entry, now_ms)

    def edit(self, entry: Entry, request: Request, key: int, now_ms: int) -> None:
        """Exchange what a waiting job asks for; of a running one what its processes do not see."""
        check_not_ended(entry)
        if entry.state in (STARTING, RUNNING):
            old = entry.request
            same = (
                "gpus", "milli", "mem_mib", "mem_max_mib", "mem_shows_max",
                "core_pct", "cpu_milli", "host_mem_mib", "pins", "after", "begin_ms",
                "priority", "profile",
            )  # fmt: skip
            if any(getattr(old, name) != getattr(request, name) for name in same):
                raise LiveError(
                    f"job {entry.id} is {entry.state}; of a running job only --time, --grace, --retries, --rerun,"
                    " --name and --comment can be changed"
                )
        else:
            self.limits.check(request)
            self._dependencies.change(entry, request)
        old = entry.request
        if (old.gpus, old.milli, old.mem_mib) != (request.gpus, request.milli, request.mem_mib):
            entry.needs_mib = 0  # the user's word counts
        entry.request, entry.request_key = request, key
        self.pending.entries[entry.id] = entry
        if entry.state == WAITING:
            if entry.offered and request.begin_ms <= now_ms and not request.after:
                entry.version += 1
                self.events.append(waits(entry, self.limits))
            else:
                self._withdraw(entry)
                self._consider(entry, now_ms)
        elif entry.state == RUNNING:
            self.events.append(runs(entry, self.limits))

    def requeue(self, entry: Entry, now_ms: int) -> None:
        if entry.state in (WAITING, HELD):
            raise LiveError(f"job {entry.id} is {entry.state} already")
        self._stop(entry, REQUEUE, now_ms)

    def suspend(self, entry: Entry, now_ms: int, reason: str = "") -> None:
        """Have a running job leave its GPUs until its user lets it run on."""
        check_not_ended(entry)
        if entry.suspension == SUSPENDED:
            entry.resumes, entry.idle, entry.lends_to = False, False, ""
            self.pending.entries[entry.id] = entry
            self.events.append(runs(entry, self.limits))
            self._release(entry)
            return
        if entry.state != RUNNING or entry.stop or entry.over is not None or entry.suspension:
            doing = f"is being stopped ({entry.stop})" if entry.stop else f"is {entry.shown_state}"
            raise LiveError(f"job {entry.id} {doing}; only a running job can be suspended")
        if not entry.slots:
            raise LiveError(f"job {entry.id} has no GPU that it could leave")
        if entry.gang:
            raise LiveError(
                f"job {entry.id} is a task of gang {entry.request.gang}, whose tasks are not suspended alone"
            )
        entry.reason = reason
        self._begin_suspension(entry, now_ms, resumes=False)

    def let_resume(self, entry: Entry, now_ms: int) -> None:
        check_not_ended(entry)
        if entry.suspension != SUSPENDED:
            raise LiveError(f"job {entry.id} is {entry.shown_state}; only a suspended job can be resumed")
        entry.resumes = True
        self.pending.entries[entry.id] = entry
        self.events.append(runs(entry, self.limits))

    def revive(self, entry: Entry, now_ms: int) -> None:
        entry.attempt += 1
        entry.queued_ms, entry.stands_ms = now_ms, 0
        entry.stop, entry.end_ms, entry.exit_code = "", None, None
        entry.slots, entry.share, entry.start_ms, entry.start_failures = (), (0, 0), None, 0
        entry.suspended_ms = 0
        entry.state = WAITING
        self._enter(entry)
        self._change(entry, WAITING, now_ms, "")
        self._consider(entry, now_ms)

    # What the brain does

    def placed(
        self,
        job_id: str,
        version: int,
        slots: tuple[int, ...],
        share: tuple[int, int],
        now_ms: int,
        *,
        best_effort: bool = False,
        peak_mib: int = 0,
    ) -> bool:
        """The brain has given a job its GPUs. Returns False where it has been told otherwise since."""
        entry = self.jobs.get(job_id)
        if entry is None or entry.state != WAITING or not entry.offered or entry.version != version:
            return False
        entry.offered = False
        entry.slots, entry.share, entry.best_effort = slots, share, best_effort
        entry.promise_mib, entry.peak_mib = share[1], peak_mib
        entry.start += 1
        entry.boot = self.boot
        self._change(entry, STARTING, now_ms, "")
        self.pending.starts.append(entry)
        return True

    def grown(self, entry: Entry, mem_mib: int) -> None:
        entry.share = (entry.share[0], mem_mib)
        self.pending.entries[entry.id] = entry
        self.events.append(runs(entry, self.limits))

    def evicted(self, job_id: str, now_ms: int) -> None:
        entry = self.jobs.get(job_id)
        if entry is not None and entry.state in (STARTING, RUNNING):
            self._stop(entry, PREEMPTED, now_ms)

    def suspended_by_brain(self, job_id: str, now_ms: int) -> None:
        """The brain wants the GPUs of a running job for another until that has ended."""
        entry = self.jobs.get(job_id)
        if entry is None or entry.state != RUNNING or entry.stop:
            return
        if entry.suspension == RESUMING:
            self._awake(entry, now_ms)  # it leaves again as soon as it has come back
        if entry.suspension == SUSPENDING:
            self._wanted.add(entry.id)
            if entry.idle:  # it leaves even if it calls CUDA again, and comes back without a call
                entry.idle, entry.resumes = False, True
                self.pending.entries[entry.id] = entry
        elif not entry.suspension:
            self._begin_suspension(entry, now_ms, resumes=True)

    def suspend_idle(self, entry: Entry, now_ms: int) -> None:
        entry.idle = True
        self._begin_suspension(entry, now_ms, resumes=False)

    def lend(self, entry: Entry, to: Entry, now_ms: int) -> None:
        """Have a running job leave its GPUs for another that asks for memory, until there is room for both. If the
        other is suspended, that one comes back first."""
        entry.lends_to = to.id
        self._begin_suspension(entry, now_ms, resumes=not to.suspension)

    def resumed_by_brain(self, job_id: str, now_ms: int) -> None:
        entry = self.jobs.get(job_id)
        if entry is not None and entry.suspension == SUSPENDED:
            entry.suspension = RESUMING
            self.pending.entries[entry.id] = entry
            self.pending.moves.append(entry)
            self.events.append(
                runs(entry, self.limits)
            )  # so that a brain whose wish fails is told so (`kept_off`)

    def _begin_suspension(self, entry: Entry, now_ms: int, *, resumes: bool) -> None:
        entry.suspension, entry.suspended_since_ms, entry.resumes = SUSPENDING, now_ms, resumes
        self.pending.entries[entry.id] = entry
        self.pending.moves.append(entry)

    # What processes do

    def left_gpus(self, entry: Entry, parked_mib: int) -> None:
        if entry.suspension == SUSPENDING:
            entry.suspension, entry.parked_mib = SUSPENDED, parked_mib
            self._wanted.discard(entry.id)
            self.pending.entries[entry.id] = entry
            self.events.append(runs(entry, self.limits))

    def stayed(self, entry: Entry, now_ms: int) -> None:
        """A job cannot be suspended, and runs on; one whose GPUs others wait for is stopped instead."""
        if entry.suspension == SUSPENDING:
            wanted = entry.id in self._wanted or (entry.resumes and not entry.lends_to)
            self._awake(entry, now_ms)
            if wanted:
                self._stop(entry, PREEMPTED, now_ms)

    def came_back(self, entry: Entry, now_ms: int) -> None:
        if entry.suspension == RESUMING:
            self._awake(entry, now_ms)
            self.events.append(runs(entry, self.limits))

    def kept_off(self, entry: Entry) -> None:
        """A suspended job could not come back, most often for want of room, and stays suspended."""
        if entry.suspension == RESUMING:
            entry.suspension = SUSPENDED
            self.pending.entries[entry.id] = entry
            self.events.append(runs(entry, self.limits))

    def _awake(self, entry: Entry, now_ms: int) -> None:
        """Count the time of a suspension that is over."""
        if entry.suspended_since_ms is not None:
            entry.suspended_ms += max(0, now_ms - entry.suspended_since_ms)
        entry.suspension, entry.suspended_since_ms, entry.resumes, entry.lends_to = "", None, True, ""
        entry.idle, entry.reason = False, ""
        self._release(entry)
        self._wanted.discard(entry.id)
        self.pending.entries[entry.id] = entry

    def _release(self, entry: Entry) -> None:
        """Let those resume that left their GPUs so that this job comes back."""
        for other in self.active.values():
            if other.lends_to == entry.id and not other.resumes:
                other.resumes = True
                self.pending.entries[other.id] = other
                self.events.append(runs(other, self.limits))

    def confirmed(self, entry: Entry, start_ms: int, now_ms: int) -> None:
        if entry.state == STARTING:
            entry.start_ms = start_ms
            entry.start_failures = 0
            self._change(entry, RUNNING, now_ms, "")
            self.events.append(runs(entry, self.limits))

    def ended(self, entry: Entry, end: End, now_ms: int) -> None:
        """The processes of an attempt are gone. The job has come to its end, or the brain says what follows."""
        if entry.over is not None:
            return  # it was told before
        if end.never_ran:
            self._did_not_start(entry, end, now_ms)
            return
        if end.expired and not entry.stop:
            entry.stop = TIMEOUT  # its shim has ended it
        end_ms = now_ms if end.end_ms is None else min(end.end_ms, now_ms)
        self._awake(entry, end_ms)
        if entry.start_ms is None:
            entry.start_ms = end_ms
        state, reason = _how(entry, end)
        entry.exit_code, entry.end_ms = end.code, max(end_ms, entry.start_ms)
        self._keep_attempt(entry, state, end, entry.end_ms, reason)
        self.events.append(ended(entry, state, replace(end, reason=reason), entry.end_ms))
        if state in UNDECIDED and entry.stop != CANCELLED:
            self._set_over(entry, replace(end, reason=reason), state)
            return
        self._finish(entry, state, now_ms, reason)

    def _did_not_start(self, entry: Entry, end: End, now_ms: int) -> None:
        """Nothing of the attempt ran. One that was stopped meanwhile has come to its end."""
        self.events.append(start_failed(entry, end))
        if entry.stop in ("", REQUEUE, PREEMPTED):
            self._set_over(entry, end, "")
            return
        entry.share, entry.start_ms = (0, 0), None
        self._finish(entry, entry.stop, now_ms, f"{entry.stop} before it began")

    def _set_over(self, entry: Entry, end: End, state: str) -> None:
        """Keep how an attempt ended until the brain has said what follows."""
        entry.over, entry.over_as = end, state
        self.pending.entries[entry.id] = entry

    def _settle(self, entry: Entry) -> None:
        """It is decided what follows an attempt: nobody asks for its end again."""
        entry.over, entry.over_as = None, ""
        self.pending.settled.append((entry, entry.start))

    # What the brain says of attempts that are over

    def again(
        self, job_id: str, why: str, attempt: int, memory: tuple[int, int], start_failures: int, not_before_ms: int,
        now_ms: int, *, keeps_place: bool,
    ) -> None:  # fmt: skip
        """A job whose attempt is over waits for another; `memory` is how often it ran out of it, and what it needs."""
        entry = self.jobs.get(job_id)
        if entry is None or entry.over is None:
            return
        over = entry.over
        self._settle(entry)
        entry.stop, entry.slots, entry.share, entry.start_ms, entry.suspended_ms = "", (), (0, 0), None, 0
        entry.out_of_memory, entry.needs_mib = memory
        entry.start_failures, entry.not_before_ms = start_failures, not_before_ms
        if not over.never_ran:
            entry.attempt = attempt
            # A user or a policy that stopped it wanted others to go first; otherwise it keeps its place.
            entry.stands_ms = (entry.stands_ms or entry.queued_ms) if keeps_place else 0
            entry.queued_ms, entry.end_ms = now_ms, None
        self._change(entry, WAITING, now_ms, why)
        self._consider(entry, now_ms)
        self._release_array(entry, now_ms)

    def give_up(self, job_id: str, why: str, now_ms: int) -> None:
        """A job whose attempt is over has come to its end."""
        entry = self.jobs.get(job_id)
        if entry is None or entry.over is None:
            return
        over = entry.over
        if over.never_ran:
            entry.share, entry.start_ms = (0, 0), None
        self._finish(entry, FAILED if over.never_ran else entry.over_as, now_ms, why)

    def remember(self, job_id: str, needs_mib: int) -> None:
        entry = self.jobs.get(job_id)
        if entry is not None and entry.state == WAITING:
            entry.needs_mib = needs_mib
            self.pending.entries[entry.id] = entry

    def _keep_attempt(self, entry: Entry, state: str, end: End, end_ms: int, reason: str) -> None:
        """Have an attempt written that is over, whether it ran or not."""
        self.pending.attempts.append(
            {
                "job": entry.id, "attempt": entry.attempt, "queued_ms": entry.queued_ms, "state": state,
                "start_ms": entry.start_ms, "end_ms": end_ms, "exit_code": end.code, "reason": reason,
                "slots": entry.slots, "share": entry.share, "peak_mib": end.peak_mib, "refused": end.refused,
                "cpu_ms": end.cpu_ms, "mem_peak_mib": end.mem_peak_mib, "request_key": entry.request_key,
                "submit_ms": entry.submit_ms, "user": entry.user, "index": entry.index, "params": entry.params,
                "run": f"{entry.id}-{entry.start}", "suspended_ms": entry.suspended_ms,
            }
        )  # fmt: skip

    # Time

    def tick(self, now_ms: int) -> None:
        """Look again at jobs whose time has come."""
        while self._wakes and self._wakes[0][0] <= now_ms:
            _, job_id = heappop(self._wakes)
            if (entry := self.jobs.get(job_id)) is not None:
                self._consider(entry, now_ms)

    def next_ms(self) -> int | None:
        """When `tick` has something to do next."""
        return self._wakes[0][0] if self._wakes else None

    def expire(self, entry: Entry, now_ms: int) -> None:
        if entry.state == RUNNING and not entry.stop and not entry.suspension:
            self._stop(entry, TIMEOUT, now_ms)

    def lose(self, entry: Entry, now_ms: int) -> None:
        if entry.state in (STARTING, RUNNING) and not entry.stop:
            self._awake(entry, now_ms)
            self._stop(entry, NODE_FAIL, now_ms)

    def load(self, entries: Iterable[Entry], now_ms: int) -> None:
        """Take over what the store holds; those that were starting or running are the caller's to look after.

        What was over stays so: the next brain is told of it (`snapshot`), and decides what follows.
        """
        for entry in sorted(entries, key=lambda job: job.order):
            entry.offered = False
            self._enter(entry)
            self.next_serial = max(self.next_serial, entry.serial + 1)
            self.next_number = max(self.next_number, int(entry.number) + 1)
        for entry in list(self.jobs.values()):
            self._consider(entry, now_ms)
            if entry.suspension in (SUSPENDING, RESUMING) and entry.over is None:
                self.pending.moves.append(entry)  # it may have been begun

    # How

    def _enter(self, entry: Entry) -> None:
        self.jobs[entry.id] = entry
        if entry.state in (STARTING, RUNNING):
            self.active[entry.id] = entry
            if entry.index is not None:
                self._going[entry.number].add(entry.id)
        self._dependencies.enter(entry)
        self.gangs.enter(entry)

    def _change(self, entry: Entry, state: str, now_ms: int, reason: str) -> None:
        entry.state, entry.reason, entry.since_ms = state, reason, now_ms
        self.pending.entries[entry.id] = entry
        if state in (STARTING, RUNNING):
            self.active[entry.id] = entry
        else:
            self.active.pop(entry.id, None)
        if entry.index is not None and state not in (STARTING, RUNNING):
            self._going[entry.number].discard(entry.id)

    def _stop(self, entry: Entry, why: str, now_ms: int) -> None:
        if entry.over is not None or entry.stop in (CANCELLED, why):
            return
        if entry.stop == TIMEOUT and why != REQUEUE:
            return  # what ended it first stands
        entry.stop = why
        self.pending.entries[entry.id] = entry
        self.stops.append(entry.id)

    def _withdraw(self, entry: Entry) -> None:
        if entry.offered:
            entry.offered = False
            self._going[entry.number].discard(entry.id)
            self.events.append(withdrawn(entry))

    def _consider(self, entry: Entry, now_ms: int) -> None:
        """Offer a waiting job to the brain if nothing but GPUs and other jobs keeps it."""
        if entry.state != WAITING or entry.offered:
            return
        reason = self._obstacle(entry, now_ms)
        if entry.id not in self.jobs:
            return  # it can never start, and has ended
        not_yet = reason is not None and self._is_not_yet(entry, reason, now_ms)
        if entry.not_yet and not not_yet:
            entry.queued_ms, entry.stands_ms = now_ms, 0  # until now it waited for no resources
            self.pending.entries[entry.id] = entry
        entry.not_yet = not_yet
        if reason is None:
            if entry.not_before_ms <= now_ms:
                entry.reason, entry.since_ms = "", now_ms
            entry.offered = True
            entry.version += 1
            if entry.index is not None:
                self._going[entry.number].add(entry.id)
            self.events.append(waits(entry, self.limits))
        elif reason != entry.reason:
            entry.reason, entry.since_ms = reason, now_ms

    @staticmethod
    def _is_not_yet(entry: Entry, reason: str, now_ms: int) -> bool:
        """Whether it would not start if all GPUs were free."""
        return reason.startswith(FOR_A_JOB) or entry.request.begin_ms > now_ms

    def _obstacle(self, entry: Entry, now_ms: int) -> str | None:
        for kind, other in entry.request.after:
            found = self._dependencies.holds(kind, other)
            if found is False:
                self._finish(
                    entry, CANCELLED, now_ms, f"it waited for {kind}:{other}, which can no longer happen"
                )
                return "ended"
            if found is None:
                return f"{FOR_A_JOB} {other} ({kind})"
        begin_ms = entry.request.begin_ms
        if begin_ms > now_ms:
            heappush(self._wakes, (begin_ms, entry.id))
            return FOR_ITS_TIME
        if entry.at_most and len(self._going[entry.number]) >= entry.at_most:
            tasks = (
                "1 task of its array runs"
                if entry.at_most == 1
                else f"{entry.at_most} tasks of its array run"
            )
            return f"at most {tasks} at a time"
        return None

    def _count_task(self, entry: Entry) -> None:
        """A job has come to its end: if it was a task of a gang and ran, keep that."""
        ran = entry.state in (STARTING, RUNNING) and entry.start_ms is not None
        if (left := self.gangs.leave(entry, ran)) is None:
            return
        count, keeper = left
        self.events.append(gang_ended(entry.gang, count))
        if keeper is not None and keeper.gang_ended != count:
            keeper.gang_ended = count
            self.pending.entries[keeper.id] = keeper

    def _finish(self, entry: Entry, state: str, now_ms: int, reason: str) -> None:
        if entry.state in (STARTING, RUNNING):
            self._settle(entry)
        if entry.end_ms is None:  # it never ran
            entry.end_ms = now_ms
            self._keep_attempt(entry, state, End(None), now_ms, reason)
        self._count_task(entry)
        self._change(entry, state, now_ms, reason)
        entry.offered, entry.stop, entry.slots = False, "", ()
        del self.jobs[entry.id]
        self.pending.finished.append(entry)
        self.just_ended[entry.id] = state
        waited = self._dependencies.leave(entry)
        if entry.index is not None:
            if entry.number in self._dependencies.arrays:
                self._release_array(entry, now_ms)
            else:
                self._going.pop(entry.number, None)
        for dependent in waited:
            if dependent.id in self.jobs:
                self._consider(dependent, now_ms)

    def _release_array(self, entry: Entry, now_ms: int) -> None:
        """Offer the next task of an array that runs few at a time."""
        if not entry.at_most or entry.number not in self._dependencies.arrays:
            return
        for job_id in list(self._dependencies.arrays[entry.number]):
            if len(self._going[entry.number]) >= entry.at_most:
                return
            if (job := self.jobs.get(job_id)) is not None:
                self._consider(job, now_ms)


def check_not_ended(entry: Entry) -> None:
    """LiveError where the job has ended."""
    if entry.state in ENDED:
        raise LiveError(
            f"job {entry.id} has ended ({entry.state}); queue it again with: berth requeue {entry.id}"
        )


def _how(entry: Entry, end: End) -> tuple[str, str]:
    """The state of an attempt that has ended, and why in words."""
    if end.lost:
        return NODE_FAIL, "the machine restarted while it ran"
    if entry.stop in (CANCELLED, TIMEOUT, NODE_FAIL) and (end.code != 0 or entry.stop == CANCELLED):
        words = {CANCELLED: "cancelled while it ran", TIMEOUT: "it reached its time limit"}
        return entry.stop, words.get(entry.stop, "its GPU was lost")
    if entry.stop in (PREEMPTED, REQUEUE) and end.code != 0:
        return PREEMPTED, "stopped, and queued again"
    if end.code is None:
        return UNKNOWN, end.reason or "its supervisor was killed, so its exit status is unknown"
    if end.code == 0:
        return COMPLETED, ""
    if end.refused:
        needed_mib = max(end.needed_mib, end.peak_mib or 0)
        return OUT_OF_MEMORY, f"out of GPU memory: it would have needed {needed_mib} MiB"
    return FAILED, end.reason or f"exit code {end.code}"

"""The jobs of the queue and what may become of each: a state machine without files and without a clock.

Its driver (`broker`) tells it what happens and when, writes what is `dirty` to the store, tells the brain what
is in `notes`, and carries out the `starts` and `stops`: the starts only after what is dirty was written.

    waiting ⇄ held, waiting → starting → running → ended; an attempt that ends may leave the job waiting again
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from berth.errors import LiveError
from berth.live.local.dependencies import Dependencies
from berth.live.local.endings import how, more_mib, waits_again
from berth.live.local.entry import (
    CANCELLED,
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
    WAITING,
    End,
    Entry,
    Limits,
    Stop,
)
from berth.live.local.needs import Needs, sizes_of
from berth.live.local.request import Request, Tasks
from berth.live.local.telling import for_brain

__all__ = ["Book", "check_not_ended"]

MOST_START_FAILURES = 5
BACKOFF_MS = 1000
SOON_MS = 50
FOR_A_JOB = "it waits for job"
FOR_ITS_TIME = "its start time has not come yet"


@dataclass
class Book:
    """All jobs that have not ended, and what the driver has to do about them."""

    limits: Limits = field(default_factory=Limits)
    boot: str = ""
    jobs: dict[str, Entry] = field(default_factory=dict)
    active: dict[str, Entry] = field(default_factory=dict)
    """Those that are starting or running."""
    next_number: int = 1
    next_serial: int = 1
    dirty: dict[str, Entry] = field(default_factory=dict)
    """Jobs to be written."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """Ended attempts to be written."""
    starts: list[Entry] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What the brain is to be told, in order."""
    finished: list[Entry] = field(default_factory=list)
    """Jobs that have come to their end."""
    ended_states: Callable[[str], Mapping[str, str]] = lambda job_id: {}
    """The states of what the store has of a job that has ended, or of the tasks of an array that have."""
    just_ended: dict[str, str] = field(default_factory=dict)
    """States of jobs that the store may not have yet."""

    def __post_init__(self) -> None:
        self._wakes: list[tuple[int, str]] = []
        self._needs = Needs()
        self._dependencies = Dependencies(self.jobs, self.just_ended, self.ended_states)
        self._going: dict[str, set[str]] = defaultdict(set)  # tasks that run or that the brain has

    # What users do

    def draft(
        self, request: Request, tasks: Tasks, *, key: int, uid: int, user: str, now_ms: int
    ) -> list[Entry]:
        """The jobs of one submission, with ids of their own, which count once they are `add`ed."""
        self.limits.check(request)
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
        """Queue jobs that were written."""
        for entry in made:
            self._enter(entry)
            self._consider(entry, now_ms)

    def named(self, job_id: str) -> list[Entry]:
        """The job of this id, or the tasks of this array that have not ended."""
        return self._dependencies.named(job_id)

    def cancel(self, entry: Entry, now_ms: int, *, by: str = "") -> None:
        """End a job, wherever it is."""
        check_not_ended(entry)
        if entry.state in (WAITING, HELD):
            self._withdraw(entry)
            self._finish(entry, CANCELLED, now_ms, by or "cancelled while it waited")
        else:
            self._stop(entry, CANCELLED, now_ms)

    def hold(self, entry: Entry, now_ms: int) -> None:
        """Keep a waiting job from starting."""
        check_not_ended(entry)
        if entry.state == HELD:
            return
        if entry.state != WAITING:
            raise LiveError(f"job {entry.id} is {entry.state}; only a waiting job can be held")
        self._withdraw(entry)
        self._change(entry, HELD, now_ms, "held by its user")

    def release(self, entry: Entry, now_ms: int) -> None:
        """Let a held job start."""
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
                "gpus", "milli", "mem_mib", "core_pct", "cpu_milli", "host_mem_mib", "pins", "after", "begin_ms",
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
        if sizes_of(entry.request) != sizes_of(request):
            entry.needs_mib = 0  # the user's word counts, and what was learned of such jobs goes
            self._needs.forget(entry)
        entry.request, entry.request_key = request, key
        self.dirty[entry.id] = entry
        if entry.state == WAITING:
            if entry.offered and request.begin_ms <= now_ms and not request.after:
                entry.version += 1
                self.notes.append({"note": "replace", "job": for_brain(entry, self.limits)})
            else:
                self._withdraw(entry)
                self._consider(entry, now_ms)
        elif entry.state == RUNNING:
            self.notes.append({"note": "replace", "job": for_brain(entry, self.limits)})

    def limit_tasks(self, numbers: Iterable[str], most: int, now_ms: int) -> None:
        """Have at most `most` tasks of these arrays run at a time; those that run go on."""
        for number in numbers:
            for entry in self.named(number):
                entry.at_most = most
                self.dirty[entry.id] = entry
            waiting = [entry for entry in self.named(number) if entry.offered]
            over = len(self._going[number]) - most
            for entry in waiting[max(0, len(waiting) - over) :] if over > 0 else ():
                self._withdraw(entry)
                self._consider(entry, now_ms)
            for entry in self.named(number):
                self._consider(entry, now_ms)

    def requeue(self, entry: Entry, now_ms: int) -> None:
        """Stop a running job and queue it again."""
        if entry.state in (WAITING, HELD):
            raise LiveError(f"job {entry.id} is {entry.state} already")
        self._stop(entry, REQUEUE, now_ms)

    def revive(self, entry: Entry, now_ms: int) -> None:
        """Queue a job again that has ended."""
        entry.attempt += 1
        entry.queued_ms, entry.stands_ms = now_ms, 0
        entry.stop, entry.end_ms, entry.exit_code = "", None, None
        entry.slots, entry.share, entry.start_ms, entry.start_failures = (), (0, 0), None, 0
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
    ) -> bool:
        """The brain has given a job its GPUs. Returns False where it has been told otherwise since."""
        entry = self.jobs.get(job_id)
        if entry is None or entry.state != WAITING or not entry.offered or entry.version != version:
            return False
        entry.offered = False
        entry.slots, entry.share, entry.best_effort = slots, share, best_effort
        entry.start += 1
        entry.boot = self.boot
        self._change(entry, STARTING, now_ms, "")
        self.starts.append(entry)
        return True

    def evicted(self, job_id: str, now_ms: int) -> None:
        """The brain wants the GPUs of a running job for another."""
        entry = self.jobs.get(job_id)
        if entry is not None and entry.state in (STARTING, RUNNING):
            self._stop(entry, PREEMPTED, now_ms)

    # What processes do

    def confirmed(self, entry: Entry, start_ms: int, now_ms: int) -> None:
        """The job's process runs."""
        if entry.state == STARTING:
            entry.start_ms = start_ms
            entry.start_failures = 0
            self._change(entry, RUNNING, now_ms, "")
            self.notes.append({"note": "started", "id": entry.id})

    def failed_to_start(self, entry: Entry, why: str, now_ms: int, *, no_room: bool = False) -> None:
        """Nothing of the attempt ran: it waits again. If `why` tells that the start itself failed, and it was not
        stopped meanwhile, it fails for good after several times; if only room was lacking, it never does."""
        entry.start_failures += bool(why) and not no_room
        entry.slots, entry.share, entry.start_ms = (), (0, 0), None
        self.notes.append({"note": "failed", "id": entry.id, "again": False})
        if entry.stop not in ("", REQUEUE, PREEMPTED):
            self._finish(entry, entry.stop, now_ms, f"{entry.stop} before it began")
        elif entry.start_failures >= MOST_START_FAILURES:
            self._finish(
                entry, FAILED, now_ms, f"it could not be started {entry.start_failures} times: {why}"
            )
        else:
            entry.stop = ""
            wait_ms = BACKOFF_MS << max(0, entry.start_failures - 1) if why else SOON_MS
            entry.not_before_ms = now_ms + wait_ms
            self._change(entry, WAITING, now_ms, why and f"it could not be started: {why}")
            self._consider(entry, now_ms)

    def ended(self, entry: Entry, end: End, now_ms: int) -> None:
        """The processes of an attempt are gone: the job has come to its end, or waits again."""
        if end.never_ran:
            self.failed_to_start(entry, end.reason, now_ms, no_room=end.no_room)
            return
        end_ms = now_ms if end.end_ms is None else min(end.end_ms, now_ms)
        if entry.start_ms is None:
            entry.start_ms = end_ms
        state, reason = how(entry, end)
        again = waits_again(entry, state, end, self.limits)
        held_mib = end.needed_mib or end.peak_mib or entry.share[1]
        self._keep_attempt(entry, state, end, max(end_ms, entry.start_ms), reason)
        note: dict[str, Any] = {
            "note": "ended", "id": entry.id, "how": state, "held_mib": held_mib, "peak_mib": end.peak_mib,
        }  # fmt: skip
        self.notes.append(note)
        entry.slots, entry.exit_code, entry.end_ms = (), end.code, max(end_ms, entry.start_ms)
        if not again:
            self._finish(entry, state, now_ms, reason)
            return
        if state == OUT_OF_MEMORY:
            entry.out_of_memory += 1
            entry.needs_mib = max(more_mib(entry, end, self.limits), entry.needs_mib)
            self._learn_need(entry)
        entry.attempt += 1
        # A user or a policy that stopped it wanted others to go first; otherwise it keeps its place.
        entry.stands_ms = 0 if state == PREEMPTED else entry.stands_ms or entry.queued_ms
        entry.queued_ms, entry.stop, entry.share = now_ms, "", (0, 0)
        entry.start_ms = entry.end_ms = None
        self._change(entry, WAITING, now_ms, f"its last attempt: {reason or state}")
        self._consider(entry, now_ms)
        self._release_array(entry, now_ms)

    def _learn_need(self, entry: Entry) -> None:
        """Give the waiting jobs of an application what one of them turned out to need, so that they do not fail too."""
        self._needs.learn(entry)
        for job in self.jobs.values():
            if (
                job.state == WAITING
                and job.offered
                and job is not entry
                and self._needs.heed(job, self.limits)
            ):
                self.dirty[job.id] = job
                job.version += 1
                self.notes.append({"note": "replace", "job": for_brain(job, self.limits)})

    def _keep_attempt(self, entry: Entry, state: str, end: End, end_ms: int, reason: str) -> None:
        """Have an attempt written that is over, whether it ran or not."""
        self.attempts.append(
            {
                "job": entry.id, "attempt": entry.attempt, "queued_ms": entry.queued_ms, "state": state,
                "start_ms": entry.start_ms, "end_ms": end_ms, "exit_code": end.code, "reason": reason,
                "slots": entry.slots, "share": entry.share, "peak_mib": end.peak_mib, "refused": end.refused,
                "cpu_ms": end.cpu_ms, "mem_peak_mib": end.mem_peak_mib, "request_key": entry.request_key,
                "submit_ms": entry.submit_ms, "user": entry.user, "index": entry.index, "params": entry.params,
                "run": f"{entry.id}-{entry.start}",
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
        """Stop a job that has reached its time limit."""
        if entry.state == RUNNING and not entry.stop:
            self._stop(entry, TIMEOUT, now_ms)

    def lose(self, entry: Entry, now_ms: int) -> None:
        """Stop a job whose GPU is gone."""
        if entry.state in (STARTING, RUNNING) and not entry.stop:
            self._stop(entry, NODE_FAIL, now_ms)

    def load(self, entries: Iterable[Entry], now_ms: int) -> None:
        """Take over what the store holds; those that were starting or running are the caller's to look after."""
        for entry in sorted(entries, key=lambda job: job.standing):
            entry.offered = False
            self._enter(entry)
            self.next_serial = max(self.next_serial, entry.serial + 1)
            self.next_number = max(self.next_number, int(entry.number) + 1)
        for entry in list(self.jobs.values()):
            self._consider(entry, now_ms)

    def set_aside(self, entry: Entry, why: str, now_ms: int) -> None:
        """Take a waiting job from the brain that none of today's GPUs could hold; `reconsider` offers it again."""
        self._withdraw(entry)
        entry.reason, entry.since_ms = why, now_ms

    def reconsider(self, ids: Iterable[str], now_ms: int) -> None:
        """Look again at jobs that were set aside, because the policy or the machine has changed."""
        for job_id in ids:
            if (entry := self.jobs.get(job_id)) is not None:
                self._consider(entry, now_ms)

    # How

    def _enter(self, entry: Entry) -> None:
        self.jobs[entry.id] = entry
        if entry.state in (STARTING, RUNNING):
            self.active[entry.id] = entry
            if entry.index is not None:
                self._going[entry.number].add(entry.id)
        self._dependencies.enter(entry)

    def _change(self, entry: Entry, state: str, now_ms: int, reason: str) -> None:
        entry.state, entry.reason, entry.since_ms = state, reason, now_ms
        self.dirty[entry.id] = entry
        if state in (STARTING, RUNNING):
            self.active[entry.id] = entry
        else:
            self.active.pop(entry.id, None)
        if entry.index is not None and state not in (STARTING, RUNNING):
            self._going[entry.number].discard(entry.id)

    def _stop(self, entry: Entry, why: str, now_ms: int) -> None:
        if entry.stop in (CANCELLED, why) or (entry.stop == TIMEOUT and why != REQUEUE):
            return  # what ended it first stands
        entry.stop = why
        self.dirty[entry.id] = entry
        self.stops.append(Stop(entry.id, why))

    def _withdraw(self, entry: Entry) -> None:
        if entry.offered:
            entry.offered = False
            self._going[entry.number].discard(entry.id)
            self.notes.append({"note": "withdraw", "id": entry.id})

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
            self.dirty[entry.id] = entry
        entry.not_yet = not_yet
        if reason is None:
            if self._needs.heed(entry, self.limits):
                self.dirty[entry.id] = entry
            entry.offered, entry.reason, entry.since_ms = True, "", now_ms
            entry.version += 1
            if entry.index is not None:
                self._going[entry.number].add(entry.id)
            self.notes.append({"note": "submit", "job": for_brain(entry, self.limits)})
        elif reason != entry.reason and not entry.reason.startswith("it could not be started"):
            entry.reason, entry.since_ms = reason, now_ms

    @staticmethod
    def _is_not_yet(entry: Entry, reason: str, now_ms: int) -> bool:
        """Whether it would not start if all GPUs were free, which a start that has failed does not count as."""
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
        begin_ms = max(entry.request.begin_ms, entry.not_before_ms)
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

    def _finish(self, entry: Entry, state: str, now_ms: int, reason: str) -> None:
        if entry.end_ms is None:  # it never ran
            entry.end_ms = now_ms
            self._keep_attempt(entry, state, End(None), now_ms, reason)
        self._change(entry, state, now_ms, reason)
        entry.offered = False
        entry.stop = ""
        del self.jobs[entry.id]
        self.finished.append(entry)
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

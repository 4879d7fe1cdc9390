"""What the broker and the brain say to each other of jobs, as values for JSON.

The broker tells events: a job `waits` as it is now, or is `withdrawn`; an attempt `runs`, `ended`, or its
`start-failed`; tasks of a `gang` have ended; `others` hold GPUs; a `profile` was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from berth.live.local.entry import STARTING, WAITING, End, Entry, Limits, application_of
from berth.live.local.request import Request
from berth.tenants import SUSPENDING

Event = dict[str, Any]


def snapshot(active: Iterable[Entry], jobs: Iterable[Entry], limits: Limits) -> list[Event]:
    """All that a new brain must know: what runs in order of start and which of it is over, then what waits."""
    running = sorted(active, key=lambda job: (job.start_ms or 0, job.serial))
    waiting = sorted((job for job in jobs if job.state == WAITING and job.offered), key=lambda job: job.order)
    over = (event for job in running if (event := end_of(job)) is not None)
    ended_of = {job.gang: job.gang_ended for job in jobs if job.gang_ended}
    gangs = (gang_ended(gang, count) for gang, count in ended_of.items())
    return [*gangs, *(runs(job, limits) for job in running), *over, *(waits(job, limits) for job in waiting)]


def waits(entry: Entry, limits: Limits) -> Event:
    """A job waits for nothing but room."""
    return {"event": "waits", "job": _job(entry, limits)}


def gang_ended(gang: str, count: int) -> Event:
    return {"event": "gang", "gang": gang, "ended": count}


def withdrawn(entry: Entry) -> Event:
    return {"event": "withdrawn", "id": entry.id}


def runs(entry: Entry, limits: Limits) -> Event:
    return {
        "event": "runs", "job": _job(entry, limits), "start": entry.start, "slots": entry.slots, "share": entry.share,
        "best_effort": entry.best_effort, "start_ms": entry.start_ms, "started": entry.state != STARTING,
        "suspended_since_ms": entry.suspended_since_ms if entry.left_gpus else None,
        "suspended_ms": entry.suspended_ms, "parked_mib": entry.parked_mib,
        "resumes": entry.resumes and entry.suspension != SUSPENDING,  # it must have left before it can come back
    }  # fmt: skip


def end_of(entry: Entry) -> Event | None:
    """How the attempt ended of which the brain has not said yet what follows; None: it is not over."""
    if entry.over is None:
        return None
    if entry.over.never_ran:
        return start_failed(entry, entry.over)
    return ended(entry, entry.over_as, entry.over, entry.end_ms or 0)


def start_failed(entry: Entry, end: End) -> Event:
    return {"event": "start-failed", "id": entry.id, "why": end.reason, "no_room": end.no_room}


def ended(entry: Entry, how: str, end: End, end_ms: int) -> Event:
    return {
        "event": "ended", "id": entry.id, "attempt": entry.attempt, "how": how, "end_ms": end_ms, "why": end.reason,
        "needed_mib": end.needed_mib, "peak_mib": end.peak_mib, "cpu_ms": end.cpu_ms,
        "mem_peak_mib": end.mem_peak_mib, "exit_code": end.code,
    }  # fmt: skip


def asked_mib(entry: Entry, limits: Limits) -> int:
    """GPU memory that it asks for on each GPU, in its own words or by its part of a GPU; 0: the whole card."""
    request = entry.request
    if request.gpus and not request.mem_mib and request.milli < 1000:
        return min(limits.cards_mib, default=0) * request.milli // 1000
    return request.mem_mib


def _job(entry: Entry, limits: Limits) -> dict[str, Any]:
    request = entry.request
    return {
        "id": entry.id, "submit_ms": entry.submit_ms, "queued_ms": entry.queued_ms, "user": entry.user,
        "application": application_of(request, entry.params), "gpus": request.gpus,
        "share": (limits.milli_of(request), asked_mib(entry, limits)), "cpu_milli": request.cpu_milli,
        "mem_mib": request.host_mem_mib, "priority": request.priority, "time_limit_ms": request.time_limit_ms,
        "estimate_ms": request.estimate_ms, "retries": request.retries, "rerun": request.rerun,
        "attempt": entry.attempt, "only_gpus": request.pins, "version": entry.version, "order": entry.order,
        "memory": (entry.out_of_memory, entry.needs_mib), "start_failures": entry.start_failures,
        "not_before_ms": entry.not_before_ms, "why": entry.reason, "alike": _alike(entry),
        "gang": (entry.gang, request.gang_starts) if request.gang else None,
        "mem_max_mib": limits.most_mib(request),
    }  # fmt: skip


def _alike(entry: Entry) -> list[Any]:
    """What jobs have in common that need as much memory: user, application, number of GPUs and command."""
    request: Request = entry.request
    argv = request.argv
    if request.name or request.profile:  # the user says what is alike, if it is the same program
        behind = next((word for word in argv[1:] if not word.startswith("-")), "")
        argv = (argv[0], *behind.split()[:1])
    elif not argv[1:2] or not argv[1].startswith("-"):
        argv = argv[:2]  # behind a program and its script are parameters; behind `sh -c` is the program
    return [entry.uid, application_of(request, entry.params), request.gpus, *argv]

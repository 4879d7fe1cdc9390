"""What the brain is shown of the jobs, as values for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from berth.live.local.entry import STARTING, WAITING, Entry, Limits, application_of

__all__ = ["asked_mib", "for_brain", "snapshot"]


def snapshot(active: Iterable[Entry], jobs: Iterable[Entry], limits: Limits) -> list[dict[str, Any]]:
    """All that a brain that has just started must be told: what runs in order of start, then what waits."""
    running = sorted(active, key=lambda job: (job.start_ms or 0, job.serial))
    waiting = [job for job in jobs if job.state == WAITING and job.offered]
    waiting.sort(key=lambda job: job.standing)
    return [
        *(
            {
                "note": "running", "job": for_brain(job, limits), "slots": job.slots, "share": job.share,
                "best_effort": job.best_effort, "start_ms": job.start_ms or job.since_ms,
                "starting": job.state == STARTING,
            }
            for job in running
        ),
        *({"note": "submit", "job": for_brain(job, limits)} for job in waiting),
    ]  # fmt: skip


def asked_mib(entry: Entry, limits: Limits) -> int:
    """GPU memory that it asks for on each GPU, in its own words or by its part of a GPU; 0: the whole card."""
    request = entry.request
    if request.gpus and not request.mem_mib and request.milli < 1000:
        return min(limits.cards_mib, default=0) * request.milli // 1000
    return request.mem_mib


def for_brain(entry: Entry, limits: Limits) -> dict[str, Any]:
    """The fields of a `berth.model.Job`."""
    request = entry.request
    mem_mib = asked_mib(entry, limits)
    if entry.needs_mib and (mem_mib or request.milli < 1000):
        mem_mib = max(mem_mib, entry.needs_mib)
    return {
        "id": entry.id, "submit_ms": entry.submit_ms, "user": entry.user,
        "application": application_of(request, entry.params), "gpus": request.gpus,
        "share": (request.milli, mem_mib), "cpu_milli": request.cpu_milli, "mem_mib": request.host_mem_mib,
        "priority": request.priority, "time_limit_ms": request.time_limit_ms,
        "estimate_ms": request.estimate_ms, "retries": request.retries, "attempt": entry.attempt,
        "pins": request.pins, "version": entry.version, "standing": entry.standing,
    }  # fmt: skip

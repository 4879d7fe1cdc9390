"""Jobs that a site is to start by itself as soon as others have ended, before there is room for them.

From the end of a job until the driver has looked, decided and told the site, its GPUs would be idle. So the policy is
asked what it would start if the jobs that are about to end had ended. That is tried and undone: in the scheduler's
books a job that waits for another's end has no place until that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from berth.cluster import Running
from berth.errors import KnowledgeError
from berth.model import Placement
from berth.scheduler import Scheduler

MOST_AT_ONCE = 32
"""Running jobs that are considered at once: the policy is asked once for each."""


@dataclass(frozen=True, slots=True)
class EarlyStart:
    """A placement that has room as soon as these jobs have ended; none: it has room now."""

    placement: Placement
    after: tuple[str, ...] = ()


class EarlyStarts:
    """The jobs that wait at a site for the end of others."""

    def __init__(self) -> None:
        self._waiting: dict[str, EarlyStart] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter([*self._waiting])

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def after(self, job_id: str) -> tuple[str, ...]:
        """The jobs for whose end a job waits; empty if it waits for none."""
        early = self._waiting.get(job_id)
        return () if early is None else early.after

    def add(self, early: EarlyStart) -> None:
        """Note that the site was told."""
        self._waiting[early.placement.job.id] = early

    def forget(self, job_id: str) -> None:
        """A job no longer waits for the end of another."""
        self._waiting.pop(job_id, None)

    def due(self, scheduler: Scheduler) -> list[Placement]:
        """Take out the jobs for which nothing they waited for runs any more: they are about to start."""
        running = scheduler.cluster.running
        found = []
        for job_id, early in [*self._waiting.items()]:
            still = tuple(each for each in early.after if each in running)
            if still:
                self._waiting[job_id] = EarlyStart(early.placement, still)
            else:
                found.append(self._waiting.pop(job_id).placement)
        return found

    def blocked(self, scheduler: Scheduler) -> list[str]:
        """The jobs on whose nodes nothing starts any more."""
        up = scheduler.cluster.up
        return [
            job_id
            for job_id, early in self._waiting.items()
            if not all(up[slot.node] for slot in early.placement.slots)
        ]

    def ends_soon(self, scheduler: Scheduler, is_ending: Callable[[Running], bool]) -> list[str]:
        """The jobs that are about to end, the next first: of each GPU the first, if no job waits for another there."""
        running, up = scheduler.cluster.running, scheduler.cluster.up
        awaited = {job_id for early in self._waiting.values() for job_id in early.after}
        taken = {slot for job_id in awaited if job_id in running for slot in running[job_id].slots}
        ends = [
            (run.end_ms(), job_id)
            for job_id, run in running.items()
            if run.job.gpus and all(up[slot.node] for slot in run.slots) and is_ending(run)
        ]
        chosen = []
        for _, job_id in sorted(ends):
            if taken.isdisjoint(running[job_id].slots):
                taken.update(running[job_id].slots)
                chosen.append(job_id)
        return chosen[:MOST_AT_ONCE]

    def decide(
        self, scheduler: Scheduler, ask: Callable[[], Iterable[Placement]], soon: Sequence[str], now_ms: int
    ) -> list[EarlyStart]:
        """What the policy starts now, and then as each of `soon` ends. Nothing has changed afterwards."""
        found: list[EarlyStart] = []
        released: dict[str, Running] = {}
        with scheduler.trial():
            for early in self._waiting.values():
                for job_id in early.after:
                    if job_id not in released:
                        released[job_id] = scheduler.release(job_id, now_ms)
                with suppress(KnowledgeError):  # it is placed when it is due, or waits again then
                    scheduler.place(early.placement, now_ms)
            found += [_early(placement, released) for placement in ask()]
            for job_id in soon:
                if not scheduler.queue:
                    break
                released[job_id] = scheduler.release(job_id, now_ms)
                found += [_early(placement, released) for placement in ask()]
        return found


def _early(placement: Placement, released: dict[str, Running]) -> EarlyStart:
    """A placement with the jobs that were released on its GPUs, or on its nodes if none was."""
    slots = set(placement.slots)
    nodes = {slot.node for slot in slots}
    there = [job_id for job_id, run in released.items() if not slots.isdisjoint(run.slots)]
    near = [job_id for job_id, run in released.items() if any(slot.node in nodes for slot in run.slots)]
    return EarlyStart(placement, tuple(there or near))

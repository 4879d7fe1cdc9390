"""Jobs that a site starts by itself as soon as others have ended: which, and on whose GPUs.

From the end of a job until a driver has learned of it, decided and had the next one started, its GPUs would be idle. So
for jobs that end soon the policy is asked what it would start if they had ended, in a trial: the cluster shows what
runs now before and after. The trial starts from the jobs that wait for an end already, each where it is to run, so that
nobody else is given their room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from berth.cluster import Running
from berth.errors import BerthError, KnowledgeError, PlacementError, PolicyError, SchedulerError
from berth.live.driver.site import CanStartAfter
from berth.model import GpuSlot, Placement
from berth.scheduler import Outcome, Scheduler

__all__ = ["Ahead", "Successor", "Successors"]

MOST_AT_ONCE = 32
"""Running jobs that are considered in a step, at most: the policy is asked once for each."""


class Successor(NamedTuple):
    """A job that a site starts when others have ended."""

    placement: Placement
    after: tuple[str, ...]
    """The ids of the jobs that it waits for."""


class Ahead(NamedTuple):
    """What came of a trial."""

    outcomes: list[Outcome]
    """What the policy decides, with what ends soon out of the way."""
    released: dict[str, tuple[GpuSlot, ...]]
    """The jobs that were taken for ended, and their GPUs."""
    lost: list[str]
    """Successors whose room is gone."""
    fault: BerthError | None = None
    """What the policy or the knowledge raised, after these outcomes."""

    def before(self, placement: Placement) -> tuple[str, ...]:
        """The jobs whose end a placement waits for: those on its GPUs, or on their nodes if none is."""
        slots, nodes = set(placement.slots), {slot.node for slot in placement.slots}
        there = [job_id for job_id, held in self.released.items() if not slots.isdisjoint(held)]
        on_nodes = (job_id for job_id, held in self.released.items() if any(at.node in nodes for at in held))
        return tuple(there or on_nodes)


class Successors:
    """The jobs that wait at one site for others to end."""

    def __init__(self, site: CanStartAfter, within_ms: int) -> None:
        """Jobs that are expected to end within this time get successors."""
        self._site, self._within_ms = site, within_ms
        self._of: dict[str, Successor] = {}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._of

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def add(self, placement: Placement, after: Iterable[str]) -> None:
        """Note that a job waits for these to end."""
        self._of[placement.job.id] = Successor(placement, tuple(after))

    def discard(self, job_id: str) -> None:
        """Note that a job no longer waits for an end."""
        self._of.pop(job_id, None)

    def next_ends(self, scheduler: Scheduler, now_ms: int) -> list[str]:
        """The jobs that end soon, the next first: on each GPU the first, if no job waits for an end there yet."""
        running = scheduler.cluster.running
        taken = {
            slot for successor in self._of.values() for each in successor.after
            if (run := running.get(each)) is not None for slot in run.slots
        }  # fmt: skip
        ends = []
        for job_id, run in running.items():
            if not run.job.gpus or not self._site.can_follow(job_id):
                continue
            end_ms = now_ms if self._site.ends_soon(job_id) else run.end_ms()
            if end_ms <= now_ms + self._within_ms and _is_up(scheduler, run):
                ends.append((end_ms, job_id, run.slots))
        chosen: list[str] = []
        for _, job_id, slots in sorted(ends):
            if taken.isdisjoint(slots):
                taken.update(slots)
                chosen.append(job_id)
        return chosen[:MOST_AT_ONCE]

    def decide(
        self, scheduler: Scheduler, ends: Iterable[str], now_ms: int, out_of_time: Callable[[], bool]
    ) -> Ahead:
        """What the policy starts now, and what it would start if these jobs had ended, one after another."""
        came = Ahead([], {}, [])
        with scheduler.trial():
            for job_id, (placement, after) in self._of.items():
                for each in after:
                    _release(scheduler, each, came.released, now_ms)
                try:
                    if not scheduler.place(placement, now_ms):
                        came.lost.append(job_id)
                except (PlacementError, SchedulerError):
                    came.lost.append(job_id)
            try:
                came.outcomes.extend(scheduler.decide(now_ms, out_of_time=out_of_time))
                for each in ends:
                    if not scheduler.queue or out_of_time():
                        break
                    _release(scheduler, each, came.released, now_ms)
                    came.outcomes.extend(scheduler.decide(now_ms, out_of_time=out_of_time))
            except (PolicyError, KnowledgeError) as error:
                came = came._replace(fault=error)
        return came


def _release(
    scheduler: Scheduler, job_id: str, released: dict[str, tuple[GpuSlot, ...]], now_ms: int
) -> None:
    """Take a running job for ended, but for one on a node on which nothing starts."""
    run = scheduler.cluster.running.get(job_id)
    if run is not None and _is_up(scheduler, run):
        released[job_id] = run.slots
        scheduler.release(job_id, now_ms)


def _is_up(scheduler: Scheduler, run: Running) -> bool:
    return all(scheduler.cluster.up[slot.node] for slot in run.slots)

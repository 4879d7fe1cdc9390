"""Jobs that are handed to Slurm before there is room for them, to start at the moment at which another has ended.

From the end of a job until berth has looked, decided and told, and until slurmctld next schedules, its GPU would be
idle. A job that depends on that end (`afterany:`) is instead started by slurmctld itself, which looks at such jobs as
soon as the last Epilog of the one before is through. So for jobs that are about to end the policy is asked what it
would start if they had ended. Between two looks the scheduler's books are kept as they will be then: the jobs that
are about to end are set aside, and those that wait for them have their places.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from berth.cluster import Running
from berth.cluster.shadow import Shadow
from berth.errors import PlacementError, SchedulerError
from berth.live.slurm.jobs import SlurmJob
from berth.model import NO_GPU, GpuSlot, Placement
from berth.scheduler import Scheduler

__all__ = ["Ahead", "Handed"]

MOST_AT_ONCE = 32
"""Running jobs that are considered in a look, at most: the policy is asked once for each."""
_ID = re.compile(r"\d+(_\d+)?")
"""Jobs on whose end another can be made to wait: no parts of heterogeneous ones."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A job that waits in Slurm for others to end."""

    placement: Placement
    after: tuple[str, ...]
    """The ids of the jobs that it waits for."""


class Ahead:
    """What was handed to Slurm ahead of time, and the jobs that it waits for."""

    def __init__(self) -> None:
        self.handed: dict[str, Handed] = {}
        self.aside: dict[str, Running] = {}
        """The jobs that are waited for: they run in Slurm, and not in the books."""

    def forget(self, job_id: str) -> None:
        """Note that a job no longer waits for another's end."""
        self.handed.pop(job_id, None)

    def after(self, job_id: str) -> tuple[str, ...]:
        """The jobs on whose end a job waits; empty for one that was not handed over ahead of time."""
        handed = self.handed.get(job_id)
        return () if handed is None else handed.after

    def restore(self, scheduler: Scheduler, now_ms: int) -> None:
        """Make the books what Slurm does now: what was set aside runs, and what waits for it has no place."""
        for job_id in self.handed:
            if job_id in scheduler.cluster.running:
                scheduler.failed_to_start(job_id, now_ms, again=False)
        for job_id in [*self.aside]:
            self._put_back(scheduler, job_id, now_ms)

    def take(self, scheduler: Scheduler, jobs: Mapping[str, SlurmJob], now_ms: int) -> set[str]:
        """After a look, make the books what they will be: `jobs` are those that Slurm has. Those that wait for no end
        any more are about to start, and keep their places. Returns those whose places are gone."""
        lost = set()
        for job_id, handed in [*self.handed.items()]:
            job = jobs.get(job_id)
            if job is None or not (job.waits or job.runs):
                del self.handed[job_id]
                continue
            still = [each for each in handed.after if each in scheduler.cluster.running or each in self.aside]
            if job.runs or not still:
                del self.handed[job_id]
            else:
                self.set_aside(scheduler, still, now_ms)
            if not self._placed(scheduler, handed.placement, job, now_ms) and job.waits:
                self.handed.pop(job_id, None)
                lost.add(job_id)
        self.tidy(scheduler, now_ms)
        return lost

    def soon(
        self, scheduler: Scheduler, jobs: Mapping[str, SlurmJob], within_ms: int, now_ms: int
    ) -> list[str]:
        """The jobs that are about to end, the next first: of each GPU the first, if it completes already or is believed
        to end within this time, and if no job waits for another there."""
        taken = {slot for run in self.aside.values() for slot in run.slots}
        ends = []
        for job_id, run in scheduler.cluster.running.items():
            job = jobs.get(job_id)
            if job is None or not job.runs or not run.job.gpus or not _ID.fullmatch(job_id):
                continue
            end_ms = now_ms if job.state == "COMPLETING" else run.end_ms()
            if end_ms <= now_ms + within_ms:
                ends.append((end_ms, job_id, run.slots))
        chosen = []
        for _, job_id, slots in sorted(ends):
            if taken.isdisjoint(slots):
                taken.update(slots)
                chosen.append(job_id)
        return chosen[:MOST_AT_ONCE]

    def set_aside(self, scheduler: Scheduler, job_ids: Iterable[str], now_ms: int) -> None:
        """Decide as if these jobs had ended, but for those on nodes on which nothing starts."""
        up = scheduler.cluster.up
        for job_id in job_ids:
            run = scheduler.cluster.running.get(job_id)
            if run is not None and all(up[slot.node] for slot in run.slots):
                scheduler.started(job_id)
                self.aside[job_id] = scheduler.set_aside(job_id, now_ms)

    def sort(
        self, scheduler: Scheduler, placements: Iterable[Placement], free: Set[str], now_ms: int
    ) -> list[Placement]:
        """Of what was decided, what can be told to Slurm: all that has room now, and of the rest the jobs that can be
        made to wait, those of `free`. What cannot loses its place."""
        there = self._as_is(scheduler)
        told = []
        for placement in placements:
            job = placement.job
            if _has_room(there, placement):
                told.append(placement)
                continue
            after = self._before(placement.slots)
            run = scheduler.cluster.running[job.id]
            there.stop(job, run.slots, run.taken)
            if job.id in free and after:
                self.handed[job.id] = Handed(placement, after)
                told.append(placement)
            else:
                scheduler.failed_to_start(job.id, now_ms, again=False)
        return told

    def tidy(self, scheduler: Scheduler, now_ms: int) -> None:
        """Put back the jobs whose end no other waits for."""
        wanted = {each for handed in self.handed.values() for each in handed.after}
        for job_id in [each for each in self.aside if each not in wanted]:
            self._put_back(scheduler, job_id, now_ms)

    def _put_back(self, scheduler: Scheduler, job_id: str, now_ms: int) -> None:
        with contextlib.suppress(PlacementError):  # the next view finds it where it runs
            scheduler.put_back(self.aside.pop(job_id), now_ms)

    def _placed(self, scheduler: Scheduler, placement: Placement, job: SlurmJob, now_ms: int) -> bool:
        """Give a job its place; whether there was room."""
        start_ms = min(job.start_ms or now_ms, now_ms) if job.runs else now_ms
        try:
            return scheduler.place(placement, start_ms)
        except (PlacementError, SchedulerError):
            return False

    def _as_is(self, scheduler: Scheduler) -> Shadow:
        """What is free while the jobs that are set aside run, and those that wait for them do not."""
        shadow = Shadow(scheduler.cluster)
        for run in self.aside.values():
            shadow.undo_end(run)
        for job_id in self.handed:
            if (waiting := scheduler.cluster.running.get(job_id)) is not None:
                shadow.stop(waiting.job, waiting.slots, waiting.taken)
        return shadow

    def _before(self, slots: Iterable[GpuSlot]) -> tuple[str, ...]:
        """The jobs that are set aside on these GPUs, or on their nodes if none is."""
        slots = set(slots)
        nodes = {slot.node for slot in slots}
        there = [job_id for job_id, run in self.aside.items() if not slots.isdisjoint(run.slots)]
        beside = [job_id for job_id, run in self.aside.items() if any(at.node in nodes for at in run.slots)]
        return tuple(there or beside)


def _has_room(there: Shadow, placement: Placement) -> bool:
    """Whether what a placement has taken was free."""
    return all(
        there.cpu_milli[node] >= 0
        and there.mem_mib[node] >= 0
        and (index == NO_GPU or (there.milli[node, index] >= 0 and there.gpu_mem_mib[node, index] >= 0))
        for node, index in placement.slots
    )

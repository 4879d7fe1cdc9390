"""What runs on a cluster: a job, where, and how much of its work is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from berth.model import FOREVER_MS, PLACES, GpuSlot, Job, Placement, Share, slots_by_task

_FOREVER_US = FOREVER_MS * 1000
PLACE_MILLI = 1000 // PLACES
"""What a placement by best effort takes of a GPU in the account: `PLACES` fit, and no job that wants it whole."""


class Part(NamedTuple):
    """What a job takes of one node."""

    node: int
    gpus: int
    cpu_milli: int
    mem_mib: int


@dataclass(slots=True, eq=False)
class Running:
    """A job on the cluster, and what is believed of its progress. Written by the cluster and by the scheduler; to all
    others it is there to be read."""

    job: Job
    attempt: int
    slots: tuple[GpuSlot, ...]
    share: Share
    start_ms: int
    """When it started, and later by all the time for which it was suspended since, so that what counts from its start
    counts its run time."""
    left_us: int
    """Work left at `as_of_ms`, as run time alone: a speed per mille is microseconds of work in a millisecond, so
    that nothing is lost however often the speed changes."""
    as_of_ms: int
    speed_milli: int
    """Per mille of the speed that it has alone."""
    request: int
    """Number of its job's request type on its cluster."""
    taken: Share
    """What it takes of each of its GPUs in the cluster's account."""
    work_us: int
    """All of its work, as it was believed when it started; FOREVER_MS × 1000 where nothing is known of it."""
    shared: bool = False
    """Whether others may run on its GPUs."""
    best_effort: bool = False
    """Whether its compute is not promised."""
    suspended_ms: int = 0
    """For how long it was suspended, until it runs again."""
    parked_mib: int = 0
    """The memory of its nodes that took what it held on each of its GPUs when it was last suspended."""
    resumes: bool = True
    """While it is suspended, whether it runs on as soon as there is room; else it waits to be let."""

    def with_work(self, work_us: int) -> Running:
        """The same run with all of this work left."""
        return replace(self, left_us=work_us, work_us=work_us)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it takes of each of its nodes."""
        return parts_of(self.job, self.slots)

    @property
    def left_ms(self) -> int:
        """Work left at `as_of_ms`, rounded up to the next millisecond."""
        return -(-self.left_us // 1000)

    def end_ms(self) -> int:
        """When it ends if its speed stays as it is, rounded up; FOREVER_MS where it never does."""
        if self.work_us >= _FOREVER_US or self.speed_milli <= 0:
            return FOREVER_MS
        return self.as_of_ms - (-self.left_us // self.speed_milli)

    def advance(self, now_ms: int, speed_milli: int) -> None:
        """Note what has been done until now, and the speed from now on."""
        self.left_us -= (now_ms - self.as_of_ms) * self.speed_milli
        self.as_of_ms = now_ms
        self.speed_milli = speed_milli

    def wake(self, now_ms: int) -> None:
        """Count the time until now as suspended."""
        passed_ms = max(0, now_ms - self.as_of_ms)
        self.start_ms += passed_ms
        self.suspended_ms += passed_ms
        self.as_of_ms = max(self.as_of_ms, now_ms)

    def left_us_at(self, now_ms: int) -> int:
        """Work left now if the speed has stayed as it is; below 0 where it has outlived what was believed."""
        return self.left_us - (now_ms - self.as_of_ms) * self.speed_milli


def account_of(placement: Placement) -> Share:
    """What a placement takes of each of its GPUs in the cluster's account."""
    if not placement.best_effort:
        return placement.share
    milli, mem_mib = placement.job.share
    return Share(min(PLACE_MILLI, milli), mem_mib)


def parts_of(job: Job, slots: tuple[GpuSlot, ...]) -> tuple[Part, ...]:
    """What a placement takes of each of its nodes."""
    if job.tasks:
        return tuple(part for task, its in slots_by_task(job, slots) for part in parts_of(task, its))
    if len(slots) == 1:
        return (Part(slots[0][0], job.gpus, job.cpu_milli, job.mem_mib),)
    counts: dict[int, int] = {}
    for node, _ in slots:
        counts[node] = counts.get(node, 0) + 1
    total = len(slots)
    return tuple(
        Part(
            node,
            there if job.gpus else 0,
            -(-job.cpu_milli * there // total),
            -(-job.mem_mib * there // total),
        )
        for node, there in counts.items()
    )

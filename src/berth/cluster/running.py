"""What runs on a cluster: a job, where, and how much of its work is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from berth.model import FOREVER_MS, GpuSlot, Job, Share

__all__ = ["Part", "Running", "parts_of"]


class Part(NamedTuple):
    """What a job takes of one node."""

    node: int
    gpus: int
    cpu_milli: int
    mem_mib: int


@dataclass(slots=True, eq=False)
class Running:
    """A job on the cluster. Written by the cluster, and `ends` by the engine; to all others it is there to be read."""

    job: Job
    attempt: int
    slots: tuple[GpuSlot, ...]
    share: Share
    start_ms: int
    left_us: int
    """Work left at `as_of_ms`, as run time alone: a speed per mille does so many microseconds in a millisecond, so
    that nothing is lost however often the speed changes."""
    as_of_ms: int
    speed_milli: int
    """Per mille of the speed that it has alone."""
    request: int
    """Number of its job's request type on its cluster."""
    ends: tuple[int, int, int, Any] | None = field(default=None, repr=False)
    """The engine's note of when it ends, if its speed stays as it is; None where it does not end."""

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
        if self.job.work_ms >= FOREVER_MS or self.speed_milli <= 0:
            return FOREVER_MS
        return self.as_of_ms - (-self.left_us // self.speed_milli)


def parts_of(job: Job, slots: tuple[GpuSlot, ...]) -> tuple[Part, ...]:
    """What a placement takes of each of its nodes."""
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

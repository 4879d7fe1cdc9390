"""How long jobs would wait for a GPU of their own, which on several GPUs may cost less time than sharing one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from berth.arrays import IntArray
from berth.cluster import Cluster
from berth.model import GpuSlot, Job
from berth.policies.colocation.forecast import Candidate
from berth.policies.colocation.rooms import Rooms
from berth.policies.colocation.scene import Offered, Waits

__all__ = ["EmptyGpus"]

MOST_BEHIND = 4
"""With more waiting jobs for each GPU than this no job would get an empty one soon, and waiting is not considered."""
NEVER_MS = 1 << 40


class EmptyGpus:
    """When each GPU of a cluster is expected to be empty, by what was forecast when it was last offered jobs."""

    def __init__(self, rooms: Rooms, alike: Sequence[int], gpus: int) -> None:
        """`alike` is a number of each node; those of one number may run the same jobs."""
        self._rooms = rooms
        self._alike = alike
        self._gpus = gpus
        self._first_node = {number: node for node, number in reversed(list(enumerate(alike)))}
        self._empty_ms: dict[GpuSlot, int] = {}

    def expect(self, slots: Sequence[GpuSlot], at_ms: Sequence[int]) -> None:
        """GPUs are expected to be empty at these times."""
        if self._gpus > 1:
            self._empty_ms.update(zip(slots, at_ms, strict=True))

    def waits(
        self,
        offered: Sequence[Offered],
        cluster: Cluster,
        now_ms: int,
        *,
        waiting: int,
        mean_ms: int,
        may_run: Callable[[Job, GpuSlot, Cluster], bool],
    ) -> Waits | None:
        """What waiting costs each job that is offered; `waiting` jobs wait in all, of `mean_ms` each. None on one GPU,
        and if more wait than `MOST_BEHIND` for each GPU. `may_run` says the same of jobs of one request type and
        candidate, on nodes of one number."""
        if self._gpus == 1 or waiting > MOST_BEHIND * self._gpus:
            return None
        empty_ms = {number: [0] * self._rooms.idle_on(number) for number in self._first_node}
        for slot, at_ms in self._empty_ms.items():
            tenants = cluster.jobs_on(slot)
            # One that is late may stay so, and of a job that has a GPU whole nothing was forecast.
            if at_ms > now_ms and tenants and all(run.best_effort for run in tenants):
                empty_ms[self._alike[slot.node]].append(at_ms - now_ms)
        numbers: dict[
            tuple[int, Candidate], tuple[int, ...]
        ] = {}  # of the nodes that jobs of a kind may run on
        lines: dict[tuple[int, ...], list[int]] = {}  # when their GPUs are empty, the first one first
        found: IntArray = np.full(
            (len(offered), max(len(one.window) for one in offered)), NEVER_MS, dtype=np.int64
        )
        for row, one in enumerate(offered):
            jobs = zip(one.window, one.candidates, one.places, strict=True)
            for column, (job, candidate, place) in enumerate(jobs):
                kind = cluster.request(job), candidate
                allowed = numbers.get(kind)
                if allowed is None:
                    allowed = numbers[kind] = tuple(
                        [
                            at
                            for at, node in self._first_node.items()
                            if may_run(job, GpuSlot(node, 0), cluster)
                        ]
                    )
                line = lines.get(allowed)
                if line is None:
                    line = lines[allowed] = sorted(ms for at in allowed for ms in empty_ms[at])
                if line:
                    found[row, column] = line[place % len(line)] + place // len(line) * mean_ms
        return Waits(found, (waiting - 1) / self._gpus)

"""How long jobs would wait for a GPU of their own, which on several GPUs may cost less time than sharing one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from berth.arrays import IntArray
from berth.cluster import Cluster
from berth.model import GpuSlot, Job
from berth.policies.colocation.forecast import Candidate
from berth.policies.colocation.open_gpus import OpenGpus
from berth.policies.colocation.scene import Offered, Waits

MOST_BEHIND = 4
"""With more waiting jobs for each GPU than this no job would get an empty one soon, and waiting is not considered."""
NEVER_MS = 1 << 40


class EmptyGpus:
    """When each GPU of a cluster is expected to be empty, by what was forecast when it was last offered jobs."""

    def __init__(self, open_gpus: OpenGpus, alike: Sequence[int], gpus: int) -> None:
        """`alike` is a number of each node; those of one number may run the same jobs."""
        self._open_gpus = open_gpus
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
        kept: tuple[Job, GpuSlot | None] | None = None,
    ) -> Waits | None:
        """What waiting costs each job that is offered; `waiting` jobs wait in all, of `mean_ms` each. A GPU that is
        `kept` for one of them is there for no other. None on one GPU, and if more wait than `MOST_BEHIND` for each GPU.
        `may_run` says the same of jobs of one request type and candidate, on nodes of one number."""
        if self._gpus == 1 or waiting > MOST_BEHIND * self._gpus:
            return None
        numbers: dict[tuple[int, Candidate], tuple[int, ...]] = {}
        idle: dict[tuple[int, tuple[int, ...], GpuSlot | None], int] = {}
        later: dict[tuple[tuple[int, ...], GpuSlot | None], list[int]] = {}
        found: IntArray = np.full(
            (len(offered), max(len(one.window) for one in offered)), NEVER_MS, dtype=np.int64
        )
        for row, one in enumerate(offered):
            jobs = zip(one.window, one.candidates, one.places, strict=True)
            for column, (job, candidate, place) in enumerate(jobs):
                request = cluster.request(job)
                may = numbers.get((request, candidate))
                if may is None:
                    nodes = self._first_node.items()
                    may = tuple([at for at, node in nodes if may_run(job, GpuSlot(node, 0), cluster)])
                    numbers[request, candidate] = may
                taken = None if kept is None or job is kept[0] else kept[1]
                key = request, may, taken
                if key not in idle:
                    idle[key] = sum(self._open_gpus.idle_for(job, number, cluster, taken) for number in may)
                if (may, taken) not in later:
                    later[may, taken] = self._later(may, cluster, now_ms, taken)
                at_once, line = idle[key], later[may, taken]
                if gpus := at_once + len(line):
                    turn = place % gpus
                    found[row, column] = 0 if turn < at_once else line[turn - at_once]
                    found[row, column] += place // gpus * mean_ms
        return Waits(found, (waiting - 1) / self._gpus)

    def _later(
        self, numbers: Sequence[int], cluster: Cluster, now_ms: int, taken: GpuSlot | None
    ) -> list[int]:
        """After how long each GPU with tenants on the nodes of these numbers that are up is empty, in ascending order,
        but for one that is taken."""
        found = []
        for slot, at_ms in self._empty_ms.items():
            if slot == taken or self._alike[slot.node] not in numbers or not cluster.up[slot.node]:
                continue
            tenants = cluster.jobs_on(slot)
            # One that is late may stay so, and of a job that has a GPU whole nothing was forecast.
            if at_ms > now_ms and tenants and all(run.best_effort for run in tenants):
                found.append(at_ms - now_ms)
        return sorted(found)

"""What would be free if some jobs ended: a copy of a cluster's arrays, on which policies may try things out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.arrays import IntArray
from berth.cluster import kernels
from berth.cluster.cluster import Cluster
from berth.cluster.room import placing_order
from berth.cluster.running import Running, parts_of
from berth.model import NO_GPU, GpuSlot, Job, Share, slots_by_task, starting_tasks


def free_room(cluster: Cluster) -> IntArray:
    """What is free now, in one array that kernels read: CPU (N,), memory (N,), milli (N, G) and memory (N, G) of GPUs.

    Where something is owed it is less than nothing, as what ends pays that first.
    """
    n, width = cluster.free.milli.shape
    room: IntArray = cluster.block[kernels.FREE_AT : kernels.FREE_AT + n * (2 + 2 * width)].copy()
    if cluster.is_indebted:
        room -= np.concatenate([owed.ravel() for owed in cluster.owed()])
    return room


class Shadow:
    """What is free on each node and GPU of a cluster, to be changed without touching the cluster."""

    def __init__(self, cluster: Cluster, room: IntArray | None = None) -> None:
        """A copy of what is free now, or the arrays of a `free_room`, which are written to then."""
        self.cluster = cluster
        room = free_room(cluster) if room is None else room
        n, width = cluster.free.milli.shape
        gpus = 2 * n + n * width
        self.cpu_milli: IntArray = room[:n]  # (N,)
        self.mem_mib: IntArray = room[n : 2 * n]  # (N,)
        self.milli: IntArray = room[2 * n : gpus].reshape((n, width))  # (N, G)
        self.gpu_mem_mib: IntArray = room[gpus:].reshape((n, width))  # (N, G)
        arrays = kernels.arrays_of(cluster.block)  # a kernel is compiled anew for arrays that are read-only
        self._traits, self._rank = arrays.traits, arrays.rank

    def end(self, run: Running) -> None:
        """As if this run had ended."""
        self._change(run.job, run.slots, run.taken, 1)

    def start(self, job: Job, slots: Sequence[GpuSlot], share: Share) -> None:
        """As if this job had started here."""
        self._change(job, slots, share, -1)

    def stop(self, job: Job, slots: Sequence[GpuSlot], share: Share) -> None:
        """As if it had not."""
        self._change(job, slots, share, 1)

    def undo_end(self, run: Running) -> None:
        """As if it ran on."""
        self._change(run.job, run.slots, run.taken, -1)

    def has_room(self, job: Job, slots: Sequence[GpuSlot]) -> bool:
        """Whether the job could take these slots."""
        if job.tasks:
            return self._has_room_for_tasks(slots_by_task(job, tuple(slots)))
        milli, gpu_mem = job.share
        for node, index in slots:
            if index != NO_GPU and (
                self.milli[node, index] < milli or self.gpu_mem_mib[node, index] < gpu_mem
            ):
                return False
        return all(
            self.cpu_milli[node] >= cpu and self.mem_mib[node] >= mem
            for node, _, cpu, mem in parts_of(job, tuple(slots))
        )

    def might_fit(self, job: Job, nodes: Sequence[int]) -> bool:
        """Whether one of these nodes has room for the job, or for one of its parts."""
        cluster = self.cluster
        if job.tasks:
            return any(self.might_fit(task, nodes) for task in starting_tasks(job))
        number = cluster.request(job)
        row = cluster.requests[number]
        if job.nodes != 1 and job.gpus:
            row = row.copy()
            row[kernels.GPUS] = 1 if job.nodes == 0 else row[kernels.GPUS]
            if job.nodes == 0:
                row[kernels.CPU] = row[kernels.MEM] = 0
        free = (self.cpu_milli, self.mem_mib, self.milli, self.gpu_mem_mib)
        return any(kernels.fits(node, row, *free, self._traits) for node in nodes)

    def slots(self, job: Job) -> tuple[GpuSlot, ...] | None:
        """Slots for the job: on the first nodes that fit, or on as few as will hold it; None where none do."""
        return self._slots(job, self._rank)

    def slots_in_tightest(self, job: Job) -> tuple[GpuSlot, ...] | None:
        """Like `slots`, on the nodes that fit with the fewest GPUs free, the first by rank on ties."""
        free_milli = np.maximum(self.milli, 0).sum(axis=1)
        return self._slots(job, np.argsort(np.lexsort((self._rank, free_milli))))

    def _slots(self, job: Job, rank: IntArray) -> tuple[GpuSlot, ...] | None:
        if job.tasks:
            return self._slots_of_gang(job)
        nodes, cluster = self._fitting_nodes(job), self.cluster
        row = cluster.requests[cluster.request(job)]
        free = (self.cpu_milli, self.mem_mib, self.milli, self.gpu_mem_mib)
        wanted = max(1, job.nodes)
        if len(nodes) >= wanted:
            chosen = nodes[np.argsort(rank[nodes], kind="stable")][:wanted].tolist()
            return tuple(slot for node in chosen for slot in self._on(node, row))
        if job.nodes or job.gpus < 2:
            return None
        slots = np.empty((min(job.gpus, self.milli.size), 2), dtype=np.int64)
        scratch = np.empty((3, len(cluster.nodes)), dtype=np.int64)
        count = kernels.spread_slots(row, rank, *free, self._traits, slots, scratch)
        return tuple(map(GpuSlot._make, slots[:count].tolist())) or None

    def _fitting_nodes(self, job: Job) -> IntArray:
        """Numbers of the nodes that the job, or one of its parts, would fit on, ascending."""
        number = self.cluster.request(job)  # first: a new type may grow the table
        found = np.empty(len(self.cluster.nodes), dtype=np.bool_)
        free = (self.cpu_milli, self.mem_mib, self.milli, self.gpu_mem_mib)
        kernels.fitting_nodes(self.cluster.requests[number], *free, self._traits, found)
        return np.flatnonzero(found)

    def _slots_of_gang(self, job: Job) -> tuple[GpuSlot, ...] | None:
        """The slots of the tasks of a gang that start together; None if one has no room."""
        tasks = starting_tasks(job)
        found: dict[int, tuple[GpuSlot, ...]] = {}
        traits = self._traits
        if job.apart:
            self._traits = traits.copy()
        try:
            for at in placing_order(job, lambda task: len(self._fitting_nodes(task))):
                slots = self.slots_in_tightest(tasks[at])
                if slots is None:
                    return None
                found[at] = slots
                self.start(tasks[at], slots, tasks[at].share)
                if job.apart:
                    self._traits[[slot.node for slot in slots], kernels.UP] = 0
        finally:
            self._traits = traits
            for at, slots in found.items():
                self.stop(tasks[at], slots, tasks[at].share)
        return tuple(slot for at in range(len(tasks)) for slot in found[at])

    def _has_room_for_tasks(self, parts: Sequence[tuple[Job, tuple[GpuSlot, ...]]]) -> bool:
        """Whether the tasks of a gang could take these slots together."""
        started = []
        for task, slots in parts:
            if not self.has_room(task, slots):
                break
            self.start(task, slots, task.share)
            started.append((task, slots))
        for task, slots in started:
            self.stop(task, slots, task.share)
        return len(started) == len(parts)

    def _on(self, node: int, row: IntArray) -> list[GpuSlot]:
        gpus = int(row[kernels.GPUS])
        if gpus == 0:
            return [GpuSlot(node, NO_GPU)]
        chosen = np.empty(self.milli.shape[1], dtype=np.int64)
        kernels.choose_devices(node, row, self.milli, self.gpu_mem_mib, True, chosen)
        return [GpuSlot(node, index) for index in chosen[:gpus].tolist()]

    def _change(self, job: Job, slots: Sequence[GpuSlot], share: Share, sign: int) -> None:
        if job.tasks:
            for task, its in slots_by_task(job, tuple(slots)):
                self._change(task, its, task.share, sign)
            return
        for node, _, cpu, mem in parts_of(job, tuple(slots)):
            self.cpu_milli[node] += sign * cpu
            self.mem_mib[node] += sign * mem
        for node, index in slots:
            if index != NO_GPU:
                self.milli[node, index] += sign * share.milli
                self.gpu_mem_mib[node, index] += sign * share.mem_mib

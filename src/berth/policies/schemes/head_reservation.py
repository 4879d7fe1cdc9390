"""The reservation of a first job that waits: when it is expected to start, and what is free for others then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.arrays import IntArray, numbers
from berth.cluster import Cluster, kernels
from berth.model import GpuSlot, Job
from berth.policies.schemes.easy_kernels import (
    choose_slots,
    find_room,
    fits_in_both,
    spares,
    sparing_nodes,
    take_slots,
)
from berth.policies.schemes.expected_ends import ExpectedEnds

__all__ = ["Reservation", "Workspace"]


class Workspace:
    """Arrays for the kernels of one cluster's reservations; N nodes with G slots each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        nodes, width = cluster.free.milli.shape
        self.width = width
        self.by_rank: IntArray = np.argsort(cluster.rank)  # (N,)
        self.slots: IntArray = np.zeros((nodes * (width + 1), 2), dtype=np.int64)
        """Slots that a kernel is given or has chosen."""
        self.slots_at = numbers(self.slots)
        self.others: IntArray = np.zeros_like(self.slots)
        self.scratch: IntArray = np.zeros((3, nodes + width), dtype=np.int64)
        self.there: IntArray = np.zeros(nodes, dtype=np.int64)
        self.out: IntArray = np.zeros(1, dtype=np.int64)
        self._size = nodes * (2 + 2 * width)

    def free_now(self) -> IntArray:
        """A room with what is free now; less than nothing where something is owed."""
        room: IntArray = np.empty(self._size, dtype=np.int64)
        kernels.copy_free(self.cluster.block, room)
        if self.cluster.is_indebted:
            room -= np.concatenate([owed.ravel() for owed in self.cluster.owed()])
        return room

    def note_slots(self, slots: Sequence[GpuSlot]) -> int:
        """Write these slots down; how many there are."""
        at = self.slots_at
        for place, (node, index) in enumerate(slots):
            at[place, 0] = node
            at[place, 1] = index
        return len(slots)

    def choose(self, job: Job, room: IntArray) -> tuple[GpuSlot, ...] | None:
        """Slots for a job in a room: on the first nodes by rank, or on as few as will hold it; None for none."""
        cluster = self.cluster
        number = cluster.request(job)  # first: a new type may grow the table
        count = choose_slots(
            cluster.block, cluster.requests, number, room, self.by_rank, self.slots, self.scratch
        )
        return tuple(GpuSlot(node, index) for node, index in self.slots[:count].tolist()) or None


class Reservation:
    """When a first job is expected to start, and what is free then."""

    def __init__(self, work: Workspace, head: Job, ends: ExpectedEnds, now_ms: int) -> None:
        """Find the earliest time at which enough of the runs are expected to have ended."""
        self._work = work
        self.head = head
        self.room = work.free_now()
        """What is free when it begins, without what the first job takes."""
        cluster = work.cluster
        number = self._number = cluster.request(head)  # first: a new type may grow the table
        self.time_ms: int = find_room(
            cluster.block, cluster.requests, number, self.room, ends.runs, ends.by_end, ends.first, ends.count,
            ends.pool, now_ms, cluster.free_total_milli, work.by_rank, work.slots, work.scratch, work.there, work.out,
        )  # fmt: skip
        """When it begins; FOREVER_MS for never."""
        self._count = int(work.out[0])
        self._slots: IntArray = work.slots[
            : self._count
        ].copy()  # that the first job takes, unless others are as good

    def spares(self, job: Job, slots: tuple[GpuSlot, ...]) -> bool:
        """Whether a job on these slots leaves the first job room, on the slots noted for it or on others."""
        if not self._count:
            return True
        work = self._work
        cluster = work.cluster
        number, count = cluster.request(job), work.note_slots(slots)
        good: bool = spares(
            cluster.block, cluster.requests, self._number, number, self.room, self._slots, self._count,
            work.slots, count, work.by_rank, work.others, work.scratch, work.there,
        )  # fmt: skip
        return good

    def might_spare(self, job: Job) -> bool:
        """Whether nodes on which a job fits now have room for it beside the first job; its GPUs are not looked at."""
        cluster = self._work.cluster
        number = cluster.request(job)
        might: bool = fits_in_both(cluster.block, cluster.requests, number, self.room)
        return might

    def sparing_nodes(self, job: Job) -> list[int]:
        """The nodes on which a job of one part fits now and leaves the first job room, in the order of their rank."""
        work = self._work
        cluster = work.cluster
        number = cluster.request(job)
        found = np.empty(len(work.by_rank), dtype=np.bool_)
        sparing_nodes(
            cluster.block, cluster.requests, self._number, number, self.room, self._slots, self._count, work.there,
            work.scratch[1], found,
        )  # fmt: skip
        nodes: list[int] = work.by_rank[found[work.by_rank]].tolist()
        return nodes

    def take(self, job: Job, slots: tuple[GpuSlot, ...]) -> None:
        """A job that outlasts the beginning of the reservation has taken slots."""
        work = self._work
        cluster = work.cluster
        number, count = cluster.request(job), work.note_slots(slots)
        take_slots(self.room, cluster.requests, number, work.slots, count, -1, work.there, work.width)

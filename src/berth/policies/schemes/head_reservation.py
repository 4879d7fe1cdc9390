"""The reservation of a first job that waits: when it is expected to start, and what is free for others then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.arrays import IntArray, numbers
from berth.cluster import UNCOUNTED, Cluster
from berth.cluster.shadow import Shadow, free_room
from berth.model import FOREVER_MS, GpuSlot, Job
from berth.policies.schemes.easy_kernels import (
    choose_slots,
    find_room,
    fits_in_both,
    spares,
    sparing_nodes,
    take_slots,
)
from berth.policies.schemes.expected_ends import ExpectedEnds


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
        self.out: IntArray = np.zeros(2, dtype=np.int64)

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
        if job.tasks:
            return Shadow(cluster, room).slots(job)
        number = cluster.request(job)  # first: a new type may grow the table
        count = choose_slots(
            cluster.block, cluster.requests, number, room, self.by_rank, self.slots, self.scratch
        )
        return tuple(GpuSlot(node, index) for node, index in self.slots[:count].tolist()) or None


class Reservation:
    """When a first job is expected to start, and what is free then.

    Written twice: in kernels, and by `Shadow` for gangs, which kernels do not know. A property test holds the two equal
    (tests/policies/schemes/test_head_reservation.py).
    """

    def __init__(self, work: Workspace, head: Job, ends: ExpectedEnds, now_ms: int) -> None:
        """Find the earliest time at which enough of the runs are expected to have ended."""
        self._work = work
        self.head = head
        self.room = free_room(work.cluster)
        """What is free when it begins, without what the first job takes."""
        self.time_ms = FOREVER_MS
        """When it begins."""
        self.spare_milli = UNCOUNTED
        """GPU milli, or more: what asks for more leaves the first job too little if it runs then."""
        self._slots: IntArray = np.zeros(
            (0, 2), dtype=np.int64
        )  # of the first job, unless others are as good
        self._number = work.cluster.request(head)
        if head.tasks:
            self._find_for_gang(ends, now_ms)
        else:
            self._find(ends, now_ms)

    def _find(self, ends: ExpectedEnds, now_ms: int) -> None:
        work, cluster = self._work, self._work.cluster
        self.time_ms = find_room(
            cluster.block,
            cluster.requests,
            self._number,
            self.room,
            ends.runs,
            ends.by_end,
            ends.first,
            ends.count,
            ends.pool,
            now_ms,
            cluster.free_total_milli,
            work.by_rank,
            work.slots,
            work.scratch,
            work.there,
            work.out,
        )
        count, spare_milli = work.out.tolist()
        self._slots = work.slots[:count].copy()
        if count:
            self.spare_milli = spare_milli

    def _find_for_gang(self, ends: ExpectedEnds, now_ms: int) -> None:
        room, slots = Shadow(self._work.cluster, self.room), None
        for end_ms, run in ends.in_order():
            if slots is not None and end_ms > self.time_ms:
                break
            room.end(run)
            if slots is None and room.might_fit(self.head, sorted({slot.node for slot in run.slots})):
                slots = room.slots(self.head)
                self.time_ms = FOREVER_MS if slots is None else max(end_ms, now_ms + 1)
        if slots is not None and (slots := room.slots(self.head)) is not None:
            self._slots = np.array(slots, dtype=np.int64)
            room.start(self.head, slots, self.head.share)

    def spares(self, job: Job, slots: tuple[GpuSlot, ...]) -> bool:
        """Whether a job on these slots leaves the first job room, on the slots noted for it or on others."""
        if not len(self._slots):
            return True
        if job.tasks or self.head.tasks:
            return self._spares_with_gang(job, slots)
        work = self._work
        cluster = work.cluster
        number, count = cluster.request(job), work.note_slots(slots)
        good: bool = spares(
            cluster.block,
            cluster.requests,
            self._number,
            number,
            self.room,
            self._slots,
            len(self._slots),
            work.slots,
            count,
            work.by_rank,
            work.others,
            work.scratch,
            work.there,
        )
        return good

    def _spares_with_gang(self, job: Job, slots: tuple[GpuSlot, ...]) -> bool:
        room, head = Shadow(self._work.cluster, self.room), self.head
        if room.has_room(job, slots):
            return True
        mine = tuple(GpuSlot(node, index) for node, index in self._slots.tolist())
        room.stop(head, mine, head.share)
        good = room.has_room(job, slots)
        if good:
            room.start(job, slots, job.share)
            other = room.slots(head)
            room.stop(job, slots, job.share)
            good = other is not None
            mine = other or mine
        room.start(head, mine, head.share)
        self._slots = np.array(mine, dtype=np.int64)
        return good

    def might_spare(self, job: Job) -> bool:
        """Whether nodes on which a job fits now have room for it beside the first job; its GPUs are not looked at."""
        if job.tasks:
            return True
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
            cluster.block,
            cluster.requests,
            self._number,
            number,
            self.room,
            self._slots,
            len(self._slots),
            work.there,
            work.scratch[1],
            found,
        )
        nodes: list[int] = work.by_rank[found[work.by_rank]].tolist()
        return nodes

    def take(self, job: Job, slots: tuple[GpuSlot, ...]) -> None:
        """A job that outlasts the beginning of the reservation has taken slots."""
        if job.tasks:
            Shadow(self._work.cluster, self.room).start(job, slots, job.share)
            return
        work = self._work
        cluster = work.cluster
        number, count = cluster.request(job), work.note_slots(slots)
        take_slots(self.room, cluster.requests, number, work.slots, count, -1, work.there, work.width)

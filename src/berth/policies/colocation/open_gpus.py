"""Which GPUs have room for one more job, and which of them to ask: kept from decision to decision."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, IntArray
from berth.cluster import PLACE_MILLI, Cluster, Running
from berth.interference.known_speeds import MOST
from berth.model import GpuSlot, Job
from berth.policies.colocation.forecast import Forecasts

MOST_ASKED_AGAIN = 64
"""GPUs that declined and are asked again at one decision only because other jobs are first in the queue, at most."""
MOST_DECLINED = 512
"""GPUs with tenants that decline at one decision, at most; others are asked at a later one, so that a decision about
jobs that have no room anywhere ends soon, however large the cluster is."""
LEAD_MS, LEAD_STEP_MS = 5_000, 500
"""A GPU that declined is asked again this long before a tenant ends, and this often from then on: a job that loads
gradually may start while another ends."""
OFTEN = 500
"""Times that a GPU is asked again, at most, in as long as a tenant has run that has outlived its forecast."""

_is_best_effort = attrgetter("best_effort")
Room = tuple[GpuSlot, tuple[Running, ...]]
"""A GPU with room for one more, and its tenants."""


class _Left(NamedTuple):
    """What a GPU and its node have left."""

    milli: int
    cpu_milli: int
    mem_mib: int
    gpu_mem_mib: int

    @classmethod
    def of(cls, slot: GpuSlot, cluster: Cluster) -> _Left:
        """That of one GPU."""
        node, free = slot.node, cluster.free
        return cls(
            int(free.milli[slot]),
            int(free.cpu_milli[node]),
            int(free.mem_mib[node]),
            int(free.gpu_mem_mib[slot]),
        )

    def exceeds(self, other: _Left) -> bool:
        """Whether there is more of anything."""
        return any(mine > theirs for mine, theirs in zip(self, other, strict=True))


class _Declined(NamedTuple):
    """What a GPU declined."""

    until_ms: int
    """When it is asked again even if nothing has changed."""
    tenants: tuple[Running, ...]
    """The object that `OpenGpus` keeps: another one if any tenant is another."""
    offered: tuple[str, ...]
    """Ids of the jobs."""
    number: int
    """Declined GPUs are numbered in the order in which they were asked."""
    queue_changes: int
    """The queue's count of changes."""
    short_of: _Left | None
    """What was left for others, if that was too little for some of what it was offered."""


class Opened(NamedTuple):
    """The GPUs to ask now."""

    rooms: list[Room]
    idle: int
    """How many are idle, with those that are asked later."""
    more: bool
    """Whether others may be asked at this decision when these have been."""


class OpenGpus:
    """Which GPUs to ask.

    Up to 64 GPUs with room are all asked. On more, those that are idle, have other tenants than before, or whose time
    has come are; of those that declined only because of the jobs that they were offered, the 64 that were asked longest
    ago. Of idle GPUs on nodes that may run the same jobs, no more are asked than jobs wait. Where `MOST_DECLINED` have
    declined, the rest is asked at later decisions, those asked longest ago first.
    """

    def __init__(self, cluster: Cluster, alike: Sequence[int]) -> None:
        """`alike` is a number of each node; those of one number may run the same jobs."""
        self._marks = cluster.marks() - 1  # none is up to date
        self._alike = alike
        self._rooms: dict[GpuSlot, tuple[Running, ...]] = {}  # of those with tenants
        self._ranks: list[int] = cluster.rank.tolist()
        self._gpus = [
            tuple([GpuSlot(row, index) for index in range(node.gpus)])
            for row, node in enumerate(cluster.nodes)
        ]  # of each node
        self._idle: list[_Idle] = _none_idle(self._gpus, self._ranks, alike)  # by number of the node
        self._declined: dict[GpuSlot, _Declined] = {}
        self._asked = 0
        self.postponed = False
        """Whether GPUs were left out since `begin`."""
        self.begin()

    def begin(self) -> None:
        """A new decision."""
        self._left = MOST_ASKED_AGAIN
        self._may_decline = MOST_DECLINED
        self._line: list[Room] = []  # with tenants and to be asked, in order, while nothing changes
        self._line_of: tuple[int, int] | None = None
        self._line_is_cut = False
        self.postponed = False

    def open(
        self,
        cluster: Cluster,
        now_ms: int,
        queue_changes: int,
        *,
        closed: Container[GpuSlot],
        waiting: int | None = None,
        always: GpuSlot | None = None,
        most: int | None = None,
    ) -> Opened:
        """The first `most` GPUs to ask, those with the fewest tenants first; None: all. `always` is one of them if it
        has room; of those that are idle, all if it is not said how many jobs wait."""
        self._refresh(cluster)
        idle: list[tuple[int, GpuSlot]] = []
        for alike in self._idle:
            # One more than jobs wait: a GPU that is kept for the job that is due takes no other.
            idle += alike.first(None if waiting is None else waiting + 1, closed)
        if always is not None and always not in closed and self._is_idle(always):
            idle.append((self._ranks[always.node], always))
            idle = list(dict.fromkeys(idle))
        idle.sort()
        if most is not None and len(idle) >= most:  # of tens of thousands the rest is not even put in order
            kept: list[Room] = [(slot, ()) for _, slot in idle[most:] if slot == always]
            if always is not None and always in self._rooms and always not in closed:
                kept.append((always, self._rooms[always]))
            more = len(idle) > most or bool(self._rooms)
            return Opened([(slot, ()) for _, slot in idle[:most]] + kept, len(idle), more)
        if len(self._rooms) + sum([alike.many() for alike in self._idle]) <= MOST_ASKED_AGAIN:
            asked = self._sorted([room for room in self._rooms.items() if room[0] not in closed])
        elif most is None:
            asked = self._sorted(self._some(now_ms, queue_changes, closed, always))
        else:
            asked = self._in_line(now_ms, queue_changes, closed, always)
        first = asked if most is None else asked[: most - len(idle)]
        kept = [room for room in asked[len(first) :] if room[0] == always]
        more = len(first) + len(kept) < len(asked) or self._line_is_cut
        return Opened([(slot, ()) for _, slot in idle] + first + kept, len(idle), more)

    def idle_for(self, job: Job, number: int, cluster: Cluster, but: GpuSlot | None = None) -> int:
        """How many GPUs on the nodes of this number, except `but`, were idle at the last look and have room for the
        job: an idle GPU is of no use to it if other jobs have the CPU of its node."""
        idle = self._idle[number]
        places = np.flatnonzero(idle.there)
        node, index = idle.slots[places].T
        free = cluster.free
        has_room = (
            (free.milli[node, index] >= min(PLACE_MILLI, job.share.milli))
            & (free.gpu_mem_mib[node, index] >= job.share.mem_mib)
            & (free.cpu_milli[node] >= job.cpu_milli)
            & (free.mem_mib[node] >= job.mem_mib)
        )
        if but is not None:
            has_room &= (node != but.node) | (index != but.index)
        return int(np.count_nonzero(has_room))

    def _is_idle(self, slot: GpuSlot) -> bool:
        idle = self._idle[self._alike[slot.node]]
        return bool(idle.there[idle.begins[slot.node] + slot.index])

    def decline(
        self,
        room: Room,
        offered: Sequence[Job],
        *,
        hold_ms: int,
        now_ms: int,
        queue_changes: int,
        short_on: Cluster | None = None,
    ) -> None:
        """The GPU starts none of these jobs, and is not asked about them again for `hold_ms`; an idle one is, and one
        that had too little left for some of them on the cluster `short_on` as soon as it or its node has more."""
        slot, tenants = room
        until_ms = now_ms + hold_ms if tenants else -1
        self._asked += 1
        self._may_decline -= bool(tenants)
        short_of = None if short_on is None else _Left.of(slot, short_on)
        self._declined[slot] = _Declined(
            until_ms, tenants, tuple([job.id for job in offered]), self._asked, queue_changes, short_of
        )

    def forget(self, slot: GpuSlot) -> None:
        """It may be asked about anything."""
        self._declined.pop(slot, None)

    def declines_still(self, room: Room, window: Sequence[Job], *, now_ms: int, queue_changes: int) -> bool:
        """Whether the GPU has declined the same jobs beside the same tenants and is not to be asked again yet, which
        then counts as asked."""
        slot, tenants = room
        declined = self._declined.get(slot)
        if declined is None or now_ms >= declined.until_ms or declined.tenants is not tenants:
            return False
        if declined.offered != tuple([job.id for job in window]):
            return False
        self._asked += 1
        self._declined[slot] = declined._replace(number=self._asked, queue_changes=queue_changes)
        return True

    def next_ms(self, now_ms: int) -> int | None:
        """When the next GPU is to be asked again."""
        return min((one.until_ms for one in self._declined.values() if one.until_ms > now_ms), default=None)

    def _in_line(
        self,
        now_ms: int,
        queue_changes: int,
        closed: Container[GpuSlot],
        always: GpuSlot | None,
    ) -> list[Room]:
        """Those with tenants that are to be asked at this decision, as many as may still decline."""
        self._line = [room for room in self._line if room[0] not in closed]
        if self._line_of != (now_ms, queue_changes) or (self._line_is_cut and not self._line):
            asked = self._some(now_ms, queue_changes, closed, always)
            self._line_of, self._line_is_cut = (now_ms, queue_changes), False
            if len(asked) > self._may_decline:
                self.postponed = True
                self._line_is_cut = self._may_decline > 0
                asked = sorted(asked, key=lambda room: self._turn(room, always))[: self._may_decline]
            self._line = self._sorted(asked)
        return self._line

    def _turn(self, room: Room, always: GpuSlot | None) -> tuple[bool, int, int]:
        """Those come first whose tenants are others than when they were asked, then those asked longest ago."""
        slot, tenants = room
        declined = self._declined.get(slot)
        same = declined is not None and declined.tenants is tenants
        return slot != always, declined.number if declined is not None and same else 0, len(tenants)

    def _sorted(self, rooms: list[Room]) -> list[Room]:
        rank = self._ranks
        return sorted(rooms, key=lambda room: (len(room[1]), rank[room[0][0]], room[0]))

    def _some(
        self, now_ms: int, queue_changes: int, closed: Container[GpuSlot], always: GpuSlot | None
    ) -> list[Room]:
        asked: list[Room] = []
        again: list[tuple[int, Room]] = []
        for room in self._rooms.items():
            slot, tenants = room
            if slot in closed:
                continue
            declined = self._declined.get(slot)
            if (
                declined is None
                or declined.until_ms <= now_ms
                or declined.tenants is not tenants
                or slot == always
            ):
                asked.append(room)
            elif declined.queue_changes != queue_changes:
                again.append((declined.number, room))
        if len(again) > self._left:
            self.postponed = True
            again = heapq.nsmallest(self._left, again, key=itemgetter(0))
        self._left -= len(again)
        return asked + [room for _, room in again]

    def _refresh(self, cluster: Cluster) -> None:
        changed = cluster.changed_since(self._marks)
        if not len(changed):
            return
        self._line_of = None
        free, up = cluster.free.milli, cluster.up
        for node in changed.tolist():
            there = bool(up[node])
            idle = self._idle[self._alike[node]]
            is_idle = []
            for slot, left_milli in zip(self._gpus[node], free[node].tolist(), strict=False):
                declined = self._declined.get(slot)
                if declined and declined.short_of and _Left.of(slot, cluster).exceeds(declined.short_of):
                    self.forget(slot)
                tenants = cluster.jobs_on(slot)
                open_ = there and left_milli >= PLACE_MILLI
                is_idle.append(open_ and not tenants)
                if not open_ or not tenants or len(tenants) >= MOST:
                    self._rooms.pop(slot, None)
                elif self._rooms.get(slot) != tenants:  # runs are equal only to themselves
                    if all(map(_is_best_effort, tenants)):
                        self._rooms[slot] = tenants
                    else:
                        self._rooms.pop(slot, None)
            begin = idle.begins[node]
            idle.there[begin : begin + len(is_idle)] = is_idle


class _Idle(NamedTuple):
    """Which GPUs of the nodes of one number are idle."""

    line: list[tuple[int, GpuSlot]]
    """The rank of its node, and the GPU, in order."""
    begins: dict[int, int]
    """Where in the line the GPUs of a node begin."""
    there: BoolArray  # (GPUs,), in the order of the line
    slots: IntArray  # (GPUs, 2): node and index of each

    def many(self) -> int:
        """How many."""
        return int(np.count_nonzero(self.there))

    def first(self, most: int | None, closed: Container[GpuSlot]) -> list[tuple[int, GpuSlot]]:
        """The first `most` that are not closed; None: all."""
        line, places = self.line, np.flatnonzero(self.there)
        step = len(places) if most is None else most
        found: list[tuple[int, GpuSlot]] = []
        for begin in range(0, len(places), max(1, step)):  # of tens of thousands the rest is not looked at
            found += [line[place] for place in places[begin : begin + step].tolist()]
            if closed:
                found = [one for one in found if one[1] not in closed]
            if len(found) >= step:
                break
        return found[:most]


def _none_idle(
    gpus: Sequence[tuple[GpuSlot, ...]], ranks: Sequence[int], alike: Sequence[int]
) -> list[_Idle]:
    """By number of the node; no GPU is idle."""
    empty = np.zeros(0, np.bool_), np.zeros((0, 2), np.int64)
    found = [_Idle([], {}, *empty) for _ in range(max(alike, default=-1) + 1)]
    for node in sorted(range(len(gpus)), key=lambda node: ranks[node]):
        idle = found[alike[node]]
        idle.begins[node] = len(idle.line)
        idle.line.extend([(ranks[node], slot) for slot in gpus[node]])
    return [
        idle._replace(
            there=np.zeros(len(idle.line), np.bool_),
            slots=np.array([slot for _, slot in idle.line], np.int64).reshape(-1, 2),
        )
        for idle in found
    ]


def all_have_room(jobs: Iterable[Job], slot: GpuSlot, cluster: Cluster) -> bool:
    """Whether all of these jobs together have room on the node and on the GPU."""
    milli = cpu_milli = mem_mib = gpu_mem_mib = 0
    for job in jobs:
        share = job.share
        milli += min(PLACE_MILLI, share.milli)
        cpu_milli += job.cpu_milli
        mem_mib += job.mem_mib
        gpu_mem_mib += share.mem_mib
    node, free = slot.node, cluster.free
    return bool(
        milli <= free.milli[slot]
        and cpu_milli <= free.cpu_milli[node]
        and mem_mib <= free.mem_mib[node]
        and gpu_mem_mib <= free.gpu_mem_mib[slot]
    )


def has_room(window: Sequence[Job], slot: GpuSlot, cluster: Cluster, count: int) -> NDArray[np.bool_]:
    """Which of `count` combinations of these jobs have room on the node and on the GPU: bool (C,).

    A job that is forecast with others is never started without them: beside fewer, it would be elsewhere in its
    run when memory is short.
    """
    left = (
        int(cluster.free.milli[slot]),
        int(cluster.free.cpu_milli[slot.node]),
        int(cluster.free.mem_mib[slot.node]),
        int(cluster.free.gpu_mem_mib[slot]),
    )
    asked = [
        (min(PLACE_MILLI, job.share.milli), job.cpu_milli, job.mem_mib, job.share.mem_mib) for job in window
    ]
    member = np.arange(count)[:, None] >> np.arange(len(window)) & 1  # (C, M)
    return np.asarray((member @ np.array(asked, dtype=np.int64) <= np.array(left)).all(axis=1))


def look_again_ms(forecasts: Forecasts) -> IntArray:
    """(O,): after how long a GPU that declines is asked again, if no tenant ends until then. A tenant that has outlived
    its forecast is due at every moment: beside it no GPU is asked more often than every `LEAD_STEP_MS`, nor than
    `OFTEN` times in as long as the tenant has run."""
    due_ms, ends_ms = forecasts.next_ms, forecasts.ends_ms[:, 0]
    first_ms = np.where(ends_ms > 0, ends_ms, due_ms[:, None] + LEAD_MS + 1).min(axis=1)
    again_ms = np.minimum(due_ms, np.where(first_ms > LEAD_MS, first_ms - LEAD_MS, LEAD_STEP_MS))
    tenant = np.arange(forecasts.left_us.shape[1]) < forecasts.tenants[:, None]
    outlived = tenant & (forecasts.left_us <= 1)
    pause_ms = np.maximum(np.where(outlived, forecasts.ran_ms // OFTEN, 0).max(axis=1), LEAD_STEP_MS)
    return np.where(outlived.any(axis=1), np.maximum(again_ms, pause_ms), again_ms)

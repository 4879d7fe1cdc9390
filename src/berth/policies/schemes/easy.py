"""EASY backfilling: later jobs may start while the first one waits, if they do not delay it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, cast

import numpy as np
from sortedcontainers import SortedList

from berth.arrays import IntArray
from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster, Key, Queue
from berth.knowledge import Knowledge
from berth.model import GpuSlot, Job, Placement, placement_of
from berth.policies.protocol import Order, Place, draws
from berth.policies.schemes.easy_kernels import fits_again
from berth.policies.schemes.expected_ends import ExpectedEnds
from berth.policies.schemes.head_reservation import Reservation, Workspace
from berth.policies.schemes.label_groups import Labels, Partitions, labels_waiting
from berth.policies.sort_keys import LAST, ExpectedMs, as_queued, key_of

__all__ = ["Easy"]


class Easy:
    """An order in which the first job that does not fit gets a reservation, and others fill the gaps.

    Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; Mu'alem and Feitelson, "Utilization, Predictability,
    Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.

    The reservation is the earliest time at which the running jobs are expected to have left room for the first job. A
    job is expected to end by its time limit, else by its estimate, else by what is believed of its run time; one
    that runs over is expected to end at any moment. Later jobs start in the order's order, where it goes by a key,
    else as queued, if they fit now and either end before the reservation or leave the first job room enough then, on
    whichever GPUs. Where the placement's choice would not, the first node that would is taken. Where nodes
    carry labels, the first job of each partition has a reservation of its own, and one that could take nodes of several
    partitions heeds them all.
    """

    def __init__(
        self, order: Order, place: Place, knowledge: Knowledge, speeds: CardSpeeds = ALL_ALIKE
    ) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        """Whether its decisions may depend on the seed."""
        self._key = key_of(order) or as_queued
        self._expected_ms = ExpectedMs(knowledge, said=True, speeds=speeds, slowest=True)
        self._state: _State | None = None  # as of the last decision

    @property
    def reserved_ms(self) -> Mapping[str, int]:
        """When each first job that waits is expected to start, by its id; as of the last decision."""
        return {} if self._state is None else self._state.reserved_ms()

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order until one does not fit, then those that fill gaps."""
        state = cluster.memo.get(self)
        if state is None:
            state = cluster.memo[self] = _State(cluster, self._expected_ms)
        self._state = state
        state.catch_up()
        place, stuck, is_held_up = self.place, state.stuck, state.partitions.is_held_up
        heads: dict[Labels, Job] = {}
        for job in self.order(queue, cluster, now_ms):
            if job not in queue:
                continue  # limits have hidden it since
            if heads and is_held_up(job.labels, heads):
                continue
            slots = None if stuck.get(job.id) is job else place(job, cluster)
            if slots is not None:
                yield placement_of(job, slots)
                if state.started(job):
                    state.went_before(job, slots, now_ms)
            elif job.patience_ms != 0:
                heads[job.labels] = job
                if not self.draws:
                    stuck[job.id] = job
                if not cluster.has_labels or all(
                    is_held_up(labels, heads) for labels in labels_waiting(queue)
                ):
                    break
        state.keep_reservations_of(heads.values())
        if heads and len(queue) > len(heads):
            yield from self._backfill(state, queue, [*heads.values()], now_ms)

    def _backfill(self, state: _State, queue: Queue, heads: list[Job], now_ms: int) -> Iterator[Placement]:
        cluster = state.cluster
        reservations = [state.reserve(head, now_ms) for head in heads]
        gaps = _Gaps(queue, self._key, self._expected_ms, reservations, state, now_ms)
        turns = gaps.firsts()
        while turns:
            key, serial, lane, job = heappop(turns)
            if job in queue and job not in heads:
                slots = self.place(job, cluster)
                if slots is None:
                    state.full.add(lane)
                    continue
                late = gaps.outlasted(lane, job)
                if late and not _spare(late, job, slots):
                    slots = _sparing_slots(late, job, state.work)
                if slots is None:
                    state.in_the_way.add(lane)
                else:
                    yield placement_of(job, slots)
                    if state.started(job):
                        for reservation in late:
                            reservation.take(job, slots)
            if following := gaps.after(lane, (key, serial)):
                heappush(turns, following)


def _spare(reservations: Iterable[Reservation], job: Job, slots: tuple[GpuSlot, ...]) -> bool:
    """Whether a job on these slots leaves all these reservations what they need."""
    return all(reservation.spares(job, slots) for reservation in reservations)


def _sparing_slots(reservations: list[Reservation], job: Job, work: Workspace) -> tuple[GpuSlot, ...] | None:
    """Slots that fit now and leave all these reservations what they need; None where there are none."""
    cluster = work.cluster
    if job.nodes == 1 and all(reservation.head.nodes for reservation in reservations):
        first, *others = (reservation.sparing_nodes(job) for reservation in reservations)
        for node in first:
            if all(node in sparing for sparing in others):
                slots = cluster.slots_on(node, job, tightest=True)
                if _spare(reservations, job, slots):
                    return slots
        return None
    room = work.free_now()
    for reservation in reservations:
        np.minimum(room, reservation.room, out=room)
    found = work.choose(job, room)
    if found is not None or job.nodes < 2:
        return found
    slots = ()
    part = replace(
        job,
        nodes=1,
        gpus=job.gpus // job.nodes,
        cpu_milli=-(-job.cpu_milli // job.nodes),
        mem_mib=-(-job.mem_mib // job.nodes),
    )
    # A part on each of the first nodes that spare the reservations.
    for node in cluster.fitting_nodes(job).tolist():
        more = (*slots, *cluster.slots_on(node, part, tightest=True))
        if _spare(reservations, part, more):
            slots = more
        if len(slots) == max(1, part.gpus) * job.nodes:
            return slots if _spare(reservations, job, slots) else None
    return None


_Turn = tuple[Any, int, int, Job]
"""Key and serial of a waiting job, its request type, and the job."""


class _Gaps:
    """The waiting jobs of each request type, as candidates for the gaps before and beside reservations."""

    def __init__(
        self,
        queue: Queue,
        key: Key,
        expected_ms: ExpectedMs,
        reservations: list[Reservation],
        state: _State,
        now_ms: int,
    ) -> None:
        self._key = key
        self._now_ms = now_ms
        self._expected_ms = expected_ms
        self._reservations = reservations
        self._state = state
        request = state.cluster.request
        self._by_key = cast(Mapping[int, SortedList], queue.lanes(request, key))
        self._by_length = cast(Mapping[int, SortedList], queue.lanes(request, expected_ms))
        self._heeded: dict[int, list[Reservation]] | None = {} if state.cluster.has_labels else None

    def firsts(self) -> list[_Turn]:
        """The first job of each request type that may start, as a heap."""
        state = self._state
        state.see_changed_nodes()
        turns = []
        for lane in self._by_key.keys() - state.full:
            if (turn := self.after(lane, None)) is not None:
                turns.append(turn)
        heapify(turns)
        return turns

    def heeded(self, lane: int) -> list[Reservation]:
        """The reservations that jobs of the lane could be in the way of."""
        if self._heeded is None:
            return self._reservations
        found = self._heeded.get(lane)
        if found is None:
            can_meet, labels = self._state.partitions.can_meet, self._by_key[lane][0][2].labels
            found = [one for one in self._reservations if can_meet(labels, one.head.labels)]
            self._heeded[lane] = found
        return found

    def outlasted(self, lane: int, job: Job) -> list[Reservation]:
        """Those of them that begin before the job is expected to end."""
        end_ms = self._now_ms + self._expected_ms(job)
        return [one for one in self.heeded(lane) if one.time_ms < end_ms]

    def after(self, lane: int, before: tuple[Any, int] | None) -> _Turn | None:
        """The first job of the lane behind this key and serial that may start; None where there is none."""
        waiting = self._by_key.get(lane)
        if waiting is None:
            return None
        if lane in self._state.in_the_way:
            return self._short_after(lane, waiting, before)
        place = 0 if before is None else waiting.bisect_right((*before, LAST))
        if place == len(waiting):
            return None
        key, serial, job = waiting[place]
        return key, serial, lane, job

    def _short_after(self, lane: int, waiting: SortedList, before: tuple[Any, int] | None) -> _Turn | None:
        """The same of the jobs that are expected to end before all reservations that they could be in the way of."""
        window_ms = min(one.time_ms for one in self.heeded(lane)) - self._now_ms
        lengths = self._by_length[lane]
        if lengths[0][0] > window_ms:
            return None
        short = lengths.bisect_right((window_ms, 2**62))
        if short * short > len(waiting):
            place = 0 if before is None else waiting.bisect_right((*before, LAST))
            for key, serial, job in waiting.islice(place):
                if self._expected_ms(job) <= window_ms:
                    return key, serial, lane, job
            return None
        turns = ((self._key(job), serial, lane, job) for _, serial, job in lengths.islice(0, short))
        if before is not None:
            turns = (turn for turn in turns if turn[:2] > before)
        return min(turns, default=None, key=itemgetter(0, 1))


class _State:
    """What is known of one cluster: when runs are expected to end, in order, and what was found by that.

    What was found, the reservations and what request types cannot start, is as if it were found anew at each decision;
    it is kept while runs end when they were expected to, and nothing but what was found starts.
    """

    def __init__(self, cluster: Cluster, expected_ms: ExpectedMs) -> None:
        self.cluster = cluster
        self._expected_ms = expected_ms
        self.partitions = Partitions(cluster)
        self.work = Workspace(cluster)
        self.full: set[int] = set()
        """Request types that fit nowhere now."""
        self.in_the_way: set[int] = set()
        """Request types that fit, and would take what a reservation needs: those that end before it may start."""
        self.stuck: dict[str, Job] = {}
        """Jobs that came first and did not fit, by id; one that was replaced is another job."""
        self._reservations: dict[str, Reservation] = {}  # by id of the head
        self._ends = ExpectedEnds(cluster, expected_ms)
        self._openings = cluster.openings
        self._losses = cluster.losses
        self._reopened = cluster.reopened
        self._changes = cluster.changes
        self._marks = cluster.marks()
        self._ends.note_new()

    def catch_up(self) -> None:
        """See which runs have ended since the last time, whether any ended before it was expected to, and what was
        lost."""
        cluster = self.cluster
        if cluster.reopened != self._reopened:
            self._reopened = cluster.reopened
            self._ends.clear()
            self._forget_reservations()
            self._openings = cluster.openings
            self.stuck.clear()
        if cluster.losses != self._losses:
            self._forget_reservations()
            self._losses = cluster.losses
        if cluster.openings != self._openings:
            self.stuck.clear()
            if self._ends.drop_first_ended() != cluster.openings - self._openings:
                self._forget_reservations()
                self._ends.drop_ended()
            self._openings = cluster.openings
        if self._ends.note_new():  # another caller has started some
            self._forget_reservations()

    def see_changed_nodes(self) -> None:
        """Let go of what was found of request types that may fit on nodes that have changed since the last time."""
        cluster = self.cluster
        if cluster.changes == self._changes:
            return
        self._changes = cluster.changes
        barred: IntArray = np.array([*self.full, *self.in_the_way], dtype=np.int64)
        count = fits_again(cluster.block, cluster.requests, barred, len(barred), self._marks)
        if count:
            again = barred[:count].tolist()
            self.full.difference_update(again)
            self.in_the_way.difference_update(again)

    def started(self, job: Job) -> bool:
        """A placement was yielded; returns whether it has been applied."""
        run = self.cluster.running.get(job.id)
        if run is not None:
            self._ends.note(run)
        return run is not None

    def went_before(self, job: Job, slots: tuple[GpuSlot, ...], now_ms: int) -> None:
        """A job was started before the heads of the last decision: what it takes of their room is found anew."""
        if not self._reservations:
            return
        end_ms = now_ms + self._expected_ms(job)
        for name, one in list(self._reservations.items()):
            if one.time_ms < end_ms:
                if name != job.id and one.spares(job, slots):
                    one.take(job, slots)
                else:
                    del self._reservations[name]

    def keep_reservations_of(self, heads: Collection[Job]) -> None:
        """These are the first jobs that do not fit; reservations of others are let go."""
        kept = ((head, self._reservations.get(head.id)) for head in heads)
        self._reservations = {head.id: one for head, one in kept if one is not None and one.head is head}

    def reserve(self, head: Job, now_ms: int) -> Reservation:
        """When a first job can start, found anew unless that is known still."""
        known = self._reservations.get(head.id)
        if known is None or known.time_ms <= now_ms:
            known = self._reservations[head.id] = Reservation(self.work, head, self._ends, now_ms)
            self.in_the_way.clear()
        return known

    def reserved_ms(self) -> dict[str, int]:
        """When each reservation begins, by the id of its job."""
        return {name: one.time_ms for name, one in self._reservations.items()}

    def _forget_reservations(self) -> None:
        """Something has happened that the reservations did not expect."""
        self._reservations.clear()

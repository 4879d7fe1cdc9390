"""EASY backfilling: later jobs may start while the first one waits, if they do not delay it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from sortedcontainers import SortedList

from berth.arrays import BoolArray
from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster, Key, Queue, Running
from berth.cluster.shadow import Shadow
from berth.knowledge import Knowledge
from berth.model import FOREVER_MS, GpuSlot, Job, Placement, placement_of
from berth.policies.protocol import Order, Place, draws, place_job
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
        is_held_up = state.partitions.is_held_up
        heads: dict[Labels, Job] = {}
        for job in self.order(queue, cluster, now_ms):
            if job not in queue:
                continue  # limits have hidden it since
            if heads and is_held_up(job.labels, heads):
                continue
            slots = place_job(self.place, job, cluster)
            if slots is not None:
                yield placement_of(job, slots)
                if state.started(job):
                    state.went_before(job, slots, now_ms)
            elif job.patience_ms != 0:
                heads[job.labels] = job
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
        lanes = _Gaps(queue, self._key, self._expected_ms, reservations, state, now_ms)
        turns = [turn for lane in state.may_fit(lanes.by_key) if (turn := lanes.after(lane, None))]
        heapify(turns)
        while turns:
            turn = heappop(turns)
            key, serial, lane, job = turn
            if job in queue and job not in heads:
                slots = place_job(self.place, job, cluster)
                if slots is None:
                    state.barred[lane] = Barred(job, fits=False)
                    continue
                late = lanes.outlasted(lane, job)
                if not _spare(late, job, slots):
                    slots = _beside(late, job, cluster)
                if slots is None:
                    state.barred[lane] = Barred(job, fits=True)
                else:
                    yield placement_of(job, slots)
                    if state.started(job):
                        for reservation in late:
                            reservation.taken(job, slots)
            if following := lanes.after(lane, (key, serial)):
                heappush(turns, following)


def _spare(reservations: Iterable[_Reservation], job: Job, slots: tuple[GpuSlot, ...]) -> bool:
    """Whether a job on these slots leaves all these reservations what they need."""
    return all(reservation.spares(job, slots) for reservation in reservations)


def _beside(reservations: list[_Reservation], job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
    """Slots that fit now and leave all these reservations what they need; None where there are none."""
    if job.nodes == 1 and all(reservation.head.nodes for reservation in reservations):
        may = np.ones(len(cluster.nodes), dtype=np.bool_)
        for reservation in reservations:
            may &= reservation.sparing_nodes(job)
        for node in np.flatnonzero(may)[np.argsort(cluster.rank[may])].tolist():
            slots = cluster.slots_on(node, job, tightest=True)
            if _spare(reservations, job, slots):
                return slots
        return None
    free = Shadow(cluster)
    for reservation in reservations:
        free.limit(reservation.then)
    found = free.slots(job)
    if found is not None or job.nodes < 2:
        return found
    slots = ()
    part = replace(job, nodes=1, gpus=job.gpus // job.nodes, cpu_milli=-(-job.cpu_milli // job.nodes),
                   mem_mib=-(-job.mem_mib // job.nodes))  # fmt: skip
    for node in cluster.fitting_nodes(
        job
    ).tolist():  # a part on each of the first nodes that spare the reservations
        more = (*slots, *cluster.slots_on(node, part, tightest=True))
        if _spare(reservations, part, more):
            slots = more
        if len(slots) == max(1, part.gpus) * job.nodes:
            return slots if _spare(reservations, job, slots) else None
    return None


_Turn = tuple[Any, int, int, Job]
"""Key and serial of a waiting job, its request type, and the job."""


class Barred(NamedTuple):
    """Why nothing of a request type starts beside the reservations until a node changes where it may fit."""

    job: Job
    """One of the type."""
    fits: bool
    """Whether it fits now, and would take what a reservation needs: those that end before it may start."""


class _Gaps:
    """The waiting jobs of each request type, as candidates for the gaps before and beside reservations."""

    def __init__(
        self,
        queue: Queue,
        key: Key,
        expected_ms: ExpectedMs,
        reservations: list[_Reservation],
        state: _State,
        now_ms: int,
    ) -> None:
        self.key = key
        self.now_ms = now_ms
        self.by_key = queue.lanes(state.cluster.request, key)
        self._expected_ms = expected_ms
        self.by_length = queue.lanes(state.cluster.request, expected_ms)
        self._reservations = reservations
        self._state = state
        self._heeded: dict[int, list[_Reservation]] = {}

    def heeded(self, lane: int) -> list[_Reservation]:
        """The reservations that jobs of the lane could be in the way of."""
        found = self._heeded.get(lane)
        if found is None:
            can_meet, labels = self._state.partitions.can_meet, self.by_key[lane][0][2].labels
            found = [one for one in self._reservations if can_meet(labels, one.head.labels)]
            self._heeded[lane] = found
        return found

    def outlasted(self, lane: int, job: Job) -> list[_Reservation]:
        """Those of them that begin before the job is expected to end."""
        end_ms = self.now_ms + self._expected_ms(job)
        return [one for one in self.heeded(lane) if one.time_ms < end_ms]

    def _window_ms(self, lane: int) -> int:
        return min(one.time_ms for one in self.heeded(lane)) - self.now_ms

    def after(self, lane: int, before: tuple[Any, int] | None) -> _Turn | None:
        """The first job of the lane behind this key and serial that may start; None where there is none."""
        waiting = self.by_key.get(lane)
        if waiting is None:
            return None
        if lane in self._state.barred:
            window_ms = self._window_ms(lane)
            # Only what ends in time may start: the first of those, or the first in order that is one of them.
            lengths = self.by_length[lane]
            short = lengths.bisect_right((window_ms, 2**62))
            if short * short > len(waiting):
                place = 0 if before is None else waiting.bisect_right((*before, LAST))
                for key, serial, job in waiting.islice(place):
                    if self._expected_ms(job) <= window_ms:
                        return key, serial, lane, job
                return None
            turns = ((self.key(job), serial, lane, job) for _, serial, job in lengths.islice(0, short))
            if before is not None:
                turns = (turn for turn in turns if turn[:2] > before)
            return min(turns, default=None, key=itemgetter(0, 1))
        place = 0 if before is None else waiting.bisect_right((*before, LAST))
        if place == len(waiting):
            return None
        key, serial, job = waiting[place]
        return key, serial, lane, job


class _Reservation:
    """When a first job can start, and what is free then."""

    def __init__(self, cluster: Cluster, head: Job) -> None:
        self.head = head
        self.time_ms = FOREVER_MS
        """When it begins."""
        self.then = Shadow(cluster)
        """What is free when it begins, without what it takes."""
        self._slots: tuple[GpuSlot, ...] | None = None  # that it takes, unless others are as good

    def find(self, ends: Sequence[tuple[int, str, Running]], now_ms: int) -> None:
        """Find the earliest time at which enough of the runs have ended, given in the order of their ends."""
        then, found = self.then, False
        for end_ms, _, run in ends:
            if found and end_ms > self.time_ms:
                break
            then.end(run)
            if not found and then.might_fit(self.head, sorted({slot.node for slot in run.slots})):
                found = then.slots(self.head) is not None
                self.time_ms = max(end_ms, now_ms + 1) if found else FOREVER_MS
        self._take(then.slots(self.head) if found else None)

    def spares(self, job: Job, slots: tuple[GpuSlot, ...]) -> bool:
        """Whether a job on these slots leaves the first job room, on the slots noted for it or on others."""
        then = self.then
        if self._slots is None or then.has_room(job, slots):
            return True
        mine = self._slots
        self._give_back()
        good = then.has_room(job, slots)
        if good:
            then.start(job, slots, job.share)
            other = then.slots(self.head)
            then.stop(job, slots, job.share)
            good = other is not None
            mine = other or mine
        self._take(mine)
        return good

    def sparing_nodes(self, job: Job) -> BoolArray:
        """(N,): the nodes on which a job of one part fits now and leaves the first job room."""
        mine = self._slots
        self._give_back()
        found = self.then.nodes_beside(self.head, job)
        self._take(mine)
        return found

    def taken(self, job: Job, slots: tuple[GpuSlot, ...]) -> None:
        """A job that outlasts the beginning of the reservation has taken slots beside it."""
        self.then.start(job, slots, job.share)

    def _take(self, slots: tuple[GpuSlot, ...] | None) -> None:
        self._slots = slots
        if slots is not None:
            self.then.start(self.head, slots, self.head.share)

    def _give_back(self) -> None:
        if self._slots is not None:
            self.then.stop(self.head, self._slots, self.head.share)
            self._slots = None


class _State:
    """What is known of one cluster: when runs are expected to end, in order, and what was found by that.

    What was found, the reservations and the barred request types, is as if it were found anew at each decision; it is
    kept while runs end when they were expected to, and nothing but what was found starts.
    """

    def __init__(self, cluster: Cluster, expected_ms: ExpectedMs) -> None:
        self.cluster = cluster
        self._expected_ms = expected_ms
        self.partitions = Partitions(cluster)
        self.barred: dict[int, Barred] = {}
        """By request type."""
        self._reservations: dict[str, _Reservation] = {}  # by id of the head
        self._ends: SortedList = SortedList()  # (expected end, id, run)
        self._expected: dict[str, tuple[int, Running]] = {}
        self._openings = cluster.openings
        self._losses = cluster.losses
        self._reopened = cluster.reopened
        self._marks = cluster.marks()
        for run in cluster.running.values():
            self._note(run)

    def catch_up(self) -> None:
        """See which runs have ended since the last time, whether any ended before it was expected to, and what was
        lost."""
        cluster = self.cluster
        if cluster.reopened != self._reopened:
            self._reopened = cluster.reopened
            self._ends.clear()
            self._expected.clear()
            self.forget_reservations()
            self._openings = cluster.openings
        if cluster.losses != self._losses:
            self.forget_reservations()
            self._losses = cluster.losses
        if cluster.openings != self._openings:
            self._see_ends()
        if len(self._expected) != len(cluster.running):  # another caller has started some
            self.forget_reservations()
            for run in cluster.running.values():
                if run.job.id not in self._expected:
                    self._note(run)

    def _see_ends(self) -> None:
        cluster = self.cluster
        ends, running = self._ends, cluster.running
        on_time = 0
        while ends and running.get(ends[0][1]) is not ends[0][2]:
            _, job_id, _ = ends.pop(0)
            del self._expected[job_id]
            on_time += 1
        if on_time != cluster.openings - self._openings:
            self.forget_reservations()
            gone = [job_id for job_id, (_, run) in self._expected.items() if running.get(job_id) is not run]
            for job_id in gone:
                end_ms, run = self._expected.pop(job_id)
                ends.remove((end_ms, job_id, run))
        self._openings = cluster.openings

    def started(self, job: Job) -> bool:
        """A placement was yielded; returns whether it has been applied."""
        run = self.cluster.running.get(job.id)
        if run is not None:
            self._note(run)
        return run is not None

    def went_before(self, job: Job, slots: tuple[GpuSlot, ...], now_ms: int) -> None:
        """A job was started before the heads of the last decision: what it takes of their room is found anew."""
        if not self._reservations:
            return
        end_ms = now_ms + self._expected_ms(job)
        for name, one in list(self._reservations.items()):
            if one.time_ms < end_ms:
                if name != job.id and one.spares(job, slots):
                    one.taken(job, slots)
                else:
                    del self._reservations[name]

    def forget_reservations(self) -> None:
        """Something has happened that the reservations did not expect."""
        self._reservations.clear()

    def keep_reservations_of(self, heads: Collection[Job]) -> None:
        """These are the first jobs that do not fit; reservations of others are let go."""
        kept = ((head, self._reservations.get(head.id)) for head in heads)
        self._reservations = {head.id: one for head, one in kept if one is not None and one.head is head}

    def reserve(self, head: Job, now_ms: int) -> _Reservation:
        """When a first job can start, found anew unless that is known still."""
        known = self._reservations.get(head.id)
        if known is None or known.time_ms <= now_ms:
            known = self._reservations[head.id] = _Reservation(self.cluster, head)
            known.find(self._ends, now_ms)
            self.barred = {lane: why for lane, why in self.barred.items() if not why.fits}
        return known

    def reserved_ms(self) -> dict[str, int]:
        """When each reservation begins, by the id of its job."""
        return {name: one.time_ms for name, one in self._reservations.items()}

    def may_fit(self, lanes: Any) -> list[int]:
        """The request types of which something may start: not barred for want of room, or no more, since a node has
        changed where they fit now."""
        cluster = self.cluster
        changed = cluster.changed_since(self._marks).tolist()
        if changed and self.barred:
            now = Shadow(cluster)
            self.barred = {
                lane: why for lane, why in self.barred.items() if not now.might_fit(why.job, changed)
            }
        barred = self.barred
        return [lane for lane in lanes if (why := barred.get(lane)) is None or why.fits]

    def _note(self, run: Running) -> None:
        limited = run.job.time_limit_ms is not None or run.job.estimate_ms is not None
        end_ms = run.start_ms + self._expected_ms(run.job) if limited else run.end_ms()
        self._ends.add((end_ms, run.job.id, run))
        self._expected[run.job.id] = (end_ms, run)

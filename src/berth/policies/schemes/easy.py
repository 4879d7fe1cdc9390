"""EASY backfilling: later jobs may start while the first one waits, if they do not delay it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

from sortedcontainers import SortedList

from berth.cluster import Cluster, Key, Queue, Running
from berth.cluster.shadow import Shadow
from berth.knowledge import Knowledge
from berth.model import FOREVER_MS, GpuSlot, Job, Placement, placement_of
from berth.policies.protocol import Order, Place, draws
from berth.policies.schemes.label_groups import Labels, Partitions, labels_waiting
from berth.policies.sort_keys import LAST, ExpectedMs, as_queued, key_of

__all__ = ["Easy"]


class Easy:
    """An order in which the first job that does not fit gets a reservation, and others fill the gaps.

    Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; Mu'alem and Feitelson, "Utilization, Predictability,
    Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.

    The reservation is the earliest time at which the running jobs are expected to have left room for the first job,
    and GPUs for it then. A job is expected to end by its time limit, else by its estimate, else by what is
    believed of its run time; one
    that runs over is expected to end at any moment. Later jobs start in the order's order, where it goes by a key,
    else as queued, if they fit now and either end before the reservation or take nothing that it needs. Where nodes
    carry labels, the first job of each partition has a reservation of its own, and who could take nodes of several
    partitions heeds them all.
    """

    def __init__(self, order: Order, place: Place, knowledge: Knowledge) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        """Whether its decisions may depend on the seed."""
        self._key = key_of(order) or as_queued
        self._expected_ms = ExpectedMs(knowledge, said=True)
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
            slots = None if state.is_stuck(job) else self.place(job, cluster)
            if slots is not None:
                yield placement_of(job, slots)
                state.started(job)
            elif job.patience_ms != 0:
                heads[job.labels] = job
                if not cluster.labels or all(is_held_up(labels, heads) for labels in labels_waiting(queue)):
                    break
        state.stuck(heads.values())
        if heads and len(queue) > len(heads):
            yield from self._backfill(state, queue, [*heads.values()], now_ms)

    def _backfill(self, state: _State, queue: Queue, heads: list[Job], now_ms: int) -> Iterator[Placement]:
        cluster = state.cluster
        reservations = [state.reserve(head, now_ms) for head in heads]
        lanes = _Gaps(queue, cluster, self._key, self._expected_ms, reservations, state.partitions, now_ms)
        turns = [turn for lane in state.may_fit(lanes.by_key) if (turn := lanes.after(lane, None))]
        heapify(turns)
        while turns:
            turn = heappop(turns)
            key, serial, lane, job = turn
            if job in queue and not state.is_stuck(job):
                slots = self.place(job, cluster)
                if slots is None:
                    state.does_not_fit(lane, job)
                    continue
                late = lanes.outlasted(lane, job)
                if not all(reservation.spares(job, slots) for reservation in late):
                    slots = _beside(late, job, cluster)
                if slots is None:
                    lanes.nothing_spare(lane)
                else:
                    yield placement_of(job, slots)
                    if state.started(job):
                        for reservation in late:
                            reservation.taken(job, slots)
            if following := lanes.after(lane, (key, serial)):
                heappush(turns, following)


def _beside(reservations: Iterable[_Reservation], job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
    """Slots that fit both now and beside all these reservations; None where there are none."""
    free = Shadow(cluster)
    for reservation in reservations:
        free.limit(reservation.then)
    return free.slots(job)


_Turn = tuple[Any, int, int, Job]
"""Key and serial of a waiting job, its request type, and the job."""


class _Gaps:
    """The waiting jobs of each request type, as candidates for the gaps before and beside reservations."""

    def __init__(
        self,
        queue: Queue,
        cluster: Cluster,
        key: Key,
        expected_ms: ExpectedMs,
        reservations: list[_Reservation],
        partitions: Partitions,
        now_ms: int,
    ) -> None:
        self.key = key
        self.now_ms = now_ms
        self.by_key = queue.lanes(cluster.request, key)
        self._expected_ms = expected_ms
        self.by_length = queue.lanes(cluster.request, expected_ms)
        self._reservations = reservations
        self._partitions = partitions
        self._heeded: dict[int, list[_Reservation]] = {}

    def heeded(self, lane: int) -> list[_Reservation]:
        """The reservations that jobs of the lane could be in the way of."""
        found = self._heeded.get(lane)
        if found is None:
            can_meet, labels = self._partitions.can_meet, self.by_key[lane][0][2].labels
            found = [one for one in self._reservations if can_meet(labels, one.head.labels)]
            self._heeded[lane] = found
        return found

    def outlasted(self, lane: int, job: Job) -> list[_Reservation]:
        """Those of them that begin before the job is expected to end."""
        end_ms = self.now_ms + self._expected_ms(job)
        return [one for one in self.heeded(lane) if one.time_ms < end_ms]

    def nothing_spare(self, lane: int) -> None:
        """Note that nothing is left for the lane beside what it heeds: from now on only what ends before."""
        for one in self.heeded(lane):
            one.nothing_spare.add(lane)

    def _window_ms(self, lane: int) -> int:
        return min(one.time_ms for one in self.heeded(lane)) - self.now_ms

    def after(self, lane: int, before: tuple[Any, int] | None) -> _Turn | None:
        """The first job of the lane behind this key and serial that may start; None where there is none."""
        waiting = self.by_key.get(lane)
        if waiting is None:
            return None
        if any(lane in one.nothing_spare for one in self.heeded(lane)):
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
    """When and where a first job can start."""

    def __init__(self, cluster: Cluster, head: Job) -> None:
        self.head = head
        self.time_ms = FOREVER_MS
        """When it begins."""
        self.nothing_spare: set[int] = set()
        """Request types for which nothing is left beside it."""
        self.then = Shadow(cluster)
        """What is free when it begins, without what it takes."""

    def find(self, ends: Iterable[tuple[int, str, Running]], now_ms: int) -> None:
        """Find the earliest time at which enough of the runs have ended, given in the order of their ends."""
        then = self.then
        for end_ms, _, run in ends:
            then.end(run)
            if not then.might_fit(self.head, sorted({slot.node for slot in run.slots})):
                continue
            slots = then.slots(self.head)
            if slots is not None:
                self.time_ms = max(end_ms, now_ms + 1)
                then.start(self.head, slots, self.head.share)
                return

    def spares(self, job: Job, slots: tuple[GpuSlot, ...]) -> bool:
        """Whether these slots leave the reservation what it needs."""
        return self.then.has_room(job, slots)

    def taken(self, job: Job, slots: tuple[GpuSlot, ...]) -> None:
        """A job that outlasts the beginning of the reservation has taken slots beside it."""
        self.then.start(job, slots, job.share)


class _State:
    """What is known of one cluster: expected ends, who does not fit, and the reservations."""

    def __init__(self, cluster: Cluster, expected_ms: ExpectedMs) -> None:
        self.cluster = cluster
        self._expected_ms = expected_ms
        self.partitions = Partitions(cluster)
        self._reservations: dict[str, _Reservation] = {}  # by id of the head
        self._ends: SortedList = SortedList()  # (expected end, id, run)
        self._expected: dict[str, tuple[int, Running]] = {}
        self._openings = cluster.openings
        self._losses = cluster.losses
        self._reopened = cluster.reopened
        self._stuck: tuple[dict[str, Job], int] = ({}, -1)
        self._unfit: dict[int, Job] = {}
        self._marks = cluster.marks()
        for run in cluster.running.values():
            self._note(run)

    def catch_up(self) -> None:
        """See who has ended since the last time, whether anybody left before he was expected to, and what was lost."""
        cluster = self.cluster
        if cluster.reopened != self._reopened:
            self._reopened = cluster.reopened
            self._ends.clear()
            self._expected.clear()
            self._reservations.clear()
            self._openings = cluster.openings
        if cluster.losses != self._losses:
            self._reservations.clear()
            self._losses = cluster.losses
        if cluster.openings != self._openings:
            self._see_ends()
        if len(self._expected) != len(cluster.running):  # somebody else has started some
            self._reservations.clear()
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
            self._reservations.clear()
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

    def is_stuck(self, job: Job) -> bool:
        """Whether the job did not fit, and nothing has opened since."""
        return self._stuck[1] == self.cluster.openings and self._stuck[0].get(job.id) is job

    def stuck(self, heads: Collection[Job]) -> None:
        """These first jobs do not fit; reservations of others are let go."""
        self._stuck = ({head.id: head for head in heads}, self.cluster.openings)
        kept = ((head, self._reservations.get(head.id)) for head in heads)
        self._reservations = {head.id: one for head, one in kept if one is not None and one.head is head}

    def reserve(self, head: Job, now_ms: int) -> _Reservation:
        """When and where a first job can start, found anew unless that is known still."""
        known = self._reservations.get(head.id)
        if known is None:
            known = self._reservations[head.id] = _Reservation(self.cluster, head)
            known.find(self._ends, now_ms)
        return known

    def reserved_ms(self) -> dict[str, int]:
        """When each reservation begins, by the id of its job."""
        return {name: one.time_ms for name, one in self._reservations.items()}

    def may_fit(self, lanes: Any) -> list[int]:
        """The request types that may fit: they were not tried, or a node has changed where they fit now."""
        cluster = self.cluster
        changed = cluster.changed_since(self._marks).tolist()
        if changed:
            now = Shadow(cluster)
            self._unfit = {lane: job for lane, job in self._unfit.items() if not now.might_fit(job, changed)}
        return [lane for lane in lanes if lane not in self._unfit]

    def does_not_fit(self, lane: int, job: Job) -> None:
        """A request type has been tried in vain, with this job of it."""
        self._unfit[lane] = job

    def _note(self, run: Running) -> None:
        limited = run.job.time_limit_ms is not None or run.job.estimate_ms is not None
        end_ms = run.start_ms + self._expected_ms(run.job) if limited else run.end_ms()
        self._ends.add((end_ms, run.job.id, run))
        self._expected[run.job.id] = (end_ms, run)

"""EASY backfilling: later jobs may start while the first one waits, if they do not delay it; and `Passing`, under which
they may delay it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from berth.arrays import IntArray
from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import UNCOUNTED, Cluster, Key, Queue
from berth.cluster.shadow import free_room
from berth.knowledge import Knowledge
from berth.model import FOREVER_MS, GpuSlot, Job, Placement, placement_of, starting_tasks
from berth.policies.protocol import Order, Place, draws, place_job, refuses_by_request, remembers
from berth.policies.schemes.expected_ends import ExpectedEnds
from berth.policies.schemes.head_reservation import Reservation, Workspace
from berth.policies.schemes.strict import Labels, Partitions, labels_waiting
from berth.policies.schemes.waiting_kernels import FULL, IN_THE_WAY, NO_ROW, OPEN
from berth.policies.schemes.waiting_types import WaitingTypes
from berth.policies.sort_keys import ExpectedMs, as_queued, key_of

ANY_WINDOW_MS: IntArray = np.full(1, FOREVER_MS, dtype=np.int64)


class Easy:
    """The first job that does not fit gets a reservation, and others fill the gaps.

    Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; Mu'alem and Feitelson, "Utilization, Predictability,
    Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.

    The reservation is the earliest time at which the running jobs are expected to have left room for the first job. A
    job is expected to end by its time limit, else its estimate, else its believed run time on the cards that it gets;
    an overdue job is expected to end at any moment. Later jobs start if they fit now, and either end before the
    reservation or leave enough room for the first job then, on whichever GPUs. They are tried by the order's key if
    it has one, else as queued. If the placement's choice would leave too little room, the first node that would not
    is taken. If nodes have labels, the first job of each partition has its own reservation, and a job that could use
    several partitions respects them all.
    """

    def __init__(
        self, order: Order, place: Place, knowledge: Knowledge, speeds: CardSpeeds = ALL_ALIKE
    ) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        self._by_request = refuses_by_request(place)
        self._key = key_of(order) or as_queued
        self._as_queued = key_of(order) is as_queued
        # What is believed of a job may change while it waits, and a question to the placement its next answers.
        pure = self._by_request and not self.draws and not remembers(place)
        self._tries_all = not (pure and knowledge.certain)
        self.expected_ms = ExpectedMs(knowledge, stated=True, speeds=speeds)
        self._state: _State | None = None  # as of the last decision

    @property
    def reserved_ms(self) -> Mapping[str, int]:
        """When each first job that waits is expected to start, by its id; as of the last decision."""
        state = self._state
        if state is None or self not in state.cluster.memo:
            return {}  # nodes have changed since
        return state.reserved_ms()

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterable[Placement]:
        """Yield placements in the order's order until one does not fit, then those that fill gaps."""
        state = self._look(cluster)
        if self._as_queued and not state.has_labels:
            head = queue.first()
            if head is not None and state.stuck.get(head.id) is head:
                return self._behind(state, queue, [head], now_ms)
        return self._in_turn(state, queue, now_ms)

    def _look(self, cluster: Cluster) -> _State:
        """What is known of this cluster now."""
        state: _State | None = cluster.memo.get(self)
        if state is None:
            state = cluster.memo[self] = _State(cluster, self._key, self.expected_ms, self._by_request)
        self._state = state
        state.catch_up()
        return state

    def _in_turn(self, state: _State, queue: Queue, now_ms: int) -> Iterator[Placement]:
        cluster = state.cluster
        place, stuck, is_held_up = self.place, state.stuck, state.partitions.is_held_up
        heads: dict[Labels, Job] = {}
        for job in self.order(queue, cluster, now_ms):
            if job not in queue:
                continue  # limits have hidden it since
            if heads and is_held_up(job.labels, heads):
                continue
            slots = None if stuck.get(job.id) is job else place_job(place, job, cluster)
            if slots is not None:
                yield placement_of(job, slots)
                end_ms = state.started(job)
                if end_ms is not None:
                    state.went_before(job, slots, end_ms)
            elif job.patience_ms != 0:
                heads[job.labels] = job
                if self._by_request and not self.draws:
                    stuck[job.id] = job
                if not state.has_labels or all(is_held_up(labels, heads) for labels in labels_waiting(queue)):
                    break
        yield from self._behind(state, queue, [*heads.values()], now_ms)

    def _behind(self, state: _State, queue: Queue, heads: list[Job], now_ms: int) -> Iterable[Placement]:
        """The placements that fill gaps before and beside the reservations of the first jobs that do not fit."""
        alone = len(queue) == len(heads)
        state.note_heads([] if alone else heads, now_ms)
        if not heads or alone:
            return ()
        waiting = queue.form(self, state.new_waiting)
        state.open_types(waiting)
        for head in heads:
            if head.id in state.stuck:
                waiting.close(head, FULL)
        known = state.knows_reservations(now_ms) or not waiting.fits_kernels
        if not known and waiting.first(ANY_WINDOW_MS, UNCOUNTED) == NO_ROW:
            return ()  # nothing fits, whatever the reservations
        reservations = [state.reserve(head, waiting, now_ms) for head in heads]
        if not waiting.fits_kernels:
            jobs = state.candidates(waiting, queue.by(self._key), reservations, now_ms)
        else:
            windows_ms = state.windows_ms(waiting, reservations, now_ms)
            spare_milli = UNCOUNTED if self._tries_all or len(heads) > 1 else reservations[0].spare_milli
            first = waiting.first(windows_ms, state.cluster.free_total_milli, spare_milli)
            if first == NO_ROW:
                return ()
            jobs = waiting.candidates(windows_ms, first, spare_milli)
        return self._backfill(state, waiting, jobs, heads, reservations, now_ms)

    def _backfill(
        self,
        state: _State,
        waiting: WaitingTypes,
        jobs: Iterable[Job],
        heads: list[Job],
        reservations: list[Reservation],
        now_ms: int,
    ) -> Iterator[Placement]:
        place = self.place
        for job in jobs:
            if any(job is head for head in heads):
                continue
            slots = place_job(place, job, state.cluster)
            if slots is None:
                waiting.close(job, FULL)
                continue
            expected_ms = now_ms + self.expected_ms.on(job, slots, state.cluster.nodes)
            heeded = state.heeded(job, reservations)
            late = [one for one in heeded if one.time_ms < expected_ms]
            if late and not _spare(late, job, slots):
                slots = _sparing_slots(late, job, state.work)
            if slots is None:
                waiting.close(job, IN_THE_WAY)
                continue
            yield placement_of(job, slots)
            end_ms = state.started(job)
            for reservation in heeded:
                if end_ms is not None and reservation.time_ms < end_ms:
                    state.outlasts(reservation, job, slots)


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
    if not all(reservation.might_spare(job) for reservation in reservations):
        return None
    room = free_room(cluster)
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


class _State:
    """What is known of one cluster: when runs are expected to end, in order, and what was found by that.

    What was found, the reservations and what request types cannot start, is as if it were found anew at each decision;
    it is kept while runs end when they were expected to, and nothing but what was found starts.
    """

    def __init__(self, cluster: Cluster, key: Key, expected_ms: ExpectedMs, by_request: bool) -> None:
        self.cluster = cluster
        self._by_request = by_request
        self.expected_ms = expected_ms
        self.new_waiting = partial(WaitingTypes, cluster, by_request, key, expected_ms.least)
        self.partitions = Partitions(cluster)
        self.has_labels = cluster.has_labels  # a state is of nodes that do not change
        self.work = Workspace(cluster)
        self._window_ms: IntArray = np.zeros(1, dtype=np.int64)
        self._waiting: WaitingTypes | None = None  # whose lanes are open or closed by the marks below
        self.stuck: dict[str, Job] = {}
        """Jobs that came first and did not fit, by id; one that was replaced is another job."""
        self._heads: Sequence[Job] = ()  # of the last decision
        self._decided_ms = 0
        self._reservations: dict[str, Reservation] = {}  # by id of the head
        self._ends = ExpectedEnds(cluster, expected_ms.stated_ms)
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
            if self._ends.drop_first_ended() != cluster.openings - self._openings:
                self._forget_reservations()
                self._ends.drop_ended()
            self._openings = cluster.openings
            free_milli = cluster.free_total_milli
            for name, job in list(self.stuck.items()):
                if job.gpus * job.share.milli <= free_milli or job.tasks:
                    del self.stuck[name]
        if self._ends.note_new():  # another caller has started some
            self._forget_reservations()

    def heeded(self, job: Job, reservations: list[Reservation]) -> list[Reservation]:
        """Those of the reservations that a job could be in the way of."""
        if not self.has_labels:
            return reservations
        can_meet = self.partitions.can_meet
        return [one for one in reservations if can_meet(job.labels, one.head.labels)]

    def windows_ms(self, waiting: WaitingTypes, reservations: list[Reservation], now_ms: int) -> IntArray:
        """By request type, how long a job may run to end before the reservations that it could be in the way of; one
        number for all if nodes have no labels."""
        if not self.has_labels:
            self._window_ms[0] = reservations[0].time_ms - now_ms
            return self._window_ms
        types = waiting.types()
        windows_ms: IntArray = np.zeros(int(types.max(initial=0)) + 1, dtype=np.int64)
        for number in types.tolist():
            windows_ms[number] = self._window_of_ms(waiting.first_of(number), reservations, now_ms)
        return windows_ms

    def candidates(
        self, waiting: WaitingTypes, jobs: Iterable[Job], reservations: list[Reservation], now_ms: int
    ) -> Iterator[Job]:
        """Those of these jobs that may start, for orders whose keys kernels cannot take. Written twice: a property test
        holds this equal to `WaitingTypes.candidates` (tests/policies/schemes/test_easy.py)."""
        for job in jobs:
            state = waiting.state(job)
            if state == OPEN or (
                state == IN_THE_WAY
                and self.expected_ms.least(job) <= self._window_of_ms(job, reservations, now_ms)
            ):
                yield job

    def _window_of_ms(self, job: Job, reservations: list[Reservation], now_ms: int) -> int:
        heeded = self.heeded(job, reservations)
        return min((one.time_ms for one in heeded), default=FOREVER_MS) - now_ms

    def started(self, job: Job) -> int | None:
        """A placement was yielded; returns when the job is expected to end, or None if it was not applied."""
        running = self.cluster.running
        run = running.get(job.id)
        if run is None:
            return None
        if not job.tasks:
            return self._ends.note(run)
        return max(self._ends.note(running[task.id]) for task in starting_tasks(job))

    def went_before(self, job: Job, slots: tuple[GpuSlot, ...], end_ms: int) -> None:
        """A job was started before the heads of the last decision: what it takes of their room is found anew."""
        for name, one in list(self._reservations.items()):
            if name == job.id:
                del self._reservations[name]
            elif one.time_ms < end_ms:
                self.outlasts(one, job, slots)

    def outlasts(self, reservation: Reservation, job: Job, slots: tuple[GpuSlot, ...]) -> None:
        """A job that was started is expected to end after a reservation begins: it takes room, or the reservation is
        found anew at the next decision if it leaves too little."""
        if reservation.spares(job, slots):
            reservation.take(job, slots)
        else:
            self._reservations.pop(reservation.head.id, None)

    def note_heads(self, heads: Sequence[Job], now_ms: int) -> None:
        """These are the first jobs that do not fit; reservations of others are let go."""
        self._heads, self._decided_ms = heads, now_ms
        if known := self._reservations:
            self._reservations = {
                head.id: one for head in heads if (one := known.get(head.id)) and one.head is head
            }

    def knows_reservations(self, now_ms: int) -> bool:
        """Whether no reservation of the noted heads is to be found anew."""
        known = self._reservations
        return len(known) == len(self._heads) and min(one.time_ms for one in known.values()) > now_ms

    def reserve(self, head: Job, waiting: WaitingTypes, now_ms: int) -> Reservation:
        """When a first job can start, found anew unless that is known still. It is asked only if others might start."""
        known = self._reservations.get(head.id)
        if known is None or known.time_ms <= now_ms:
            known = self._reservations[head.id] = Reservation(self.work, head, self._ends, now_ms)
            waiting.open_in_the_way()
        return known

    def open_types(self, waiting: WaitingTypes) -> None:
        """Open the request types that may fit on nodes that have changed since the last time; all of them if the
        placement may have refused them for other reasons."""
        changes = self.cluster.changes
        if waiting is not self._waiting or (changes != self._changes and not self._by_request):
            waiting.open_all()
            self._waiting = waiting
        elif changes != self._changes:
            waiting.open_where_changed(self._marks)
        self._changes = changes

    def reserved_ms(self) -> Mapping[str, int]:
        """When each reservation begins, by the id of its job."""
        waiting = self._waiting
        if waiting is None:
            return {}
        self.catch_up()
        return {head.id: self.reserve(head, waiting, self._decided_ms).time_ms for head in self._heads}

    def _forget_reservations(self) -> None:
        """Something has happened that the reservations did not expect."""
        self._reservations.clear()


class Passing(Easy):
    """Start every job that fits, in order, and keep no room for one that does not fit.

    Large jobs wait for as long as smaller ones fill the room that they need. As a control, it shows how much of a
    margin over a strict order comes from not being strict. If a job does not fit, others with the same request are
    not tried.
    """

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterable[Placement]:
        """Yield placements in the order's order."""
        state = self._look(cluster)
        waiting = queue.form(self, state.new_waiting)
        state.open_types(waiting)
        if waiting.fits_kernels and key_of(self.order):
            first = waiting.first(ANY_WINDOW_MS, cluster.free_total_milli)
            jobs = waiting.candidates(ANY_WINDOW_MS, first)
        else:
            jobs = (job for job in self.order(queue, cluster, now_ms) if waiting.state(job) == OPEN)
        return self._backfill(state, waiting, jobs, [], [], now_ms)

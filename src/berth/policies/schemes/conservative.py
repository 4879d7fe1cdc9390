"""Conservative backfilling: every waiting job has a reservation, and none is started that would put off another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import numpy as np

from berth.arrays import IntArray
from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster, Queue
from berth.cluster.shadow import Shadow, free_room
from berth.knowledge import Knowledge
from berth.model import FOREVER_MS, GpuSlot, Job, Placement, placement_of
from berth.policies.protocol import Order, Place, draws, place_job
from berth.policies.schemes.expected_ends import ExpectedEnds
from berth.policies.sort_keys import ExpectedMs

DEPTH = 100
"""So many jobs of the queue are looked at in a decision, as by default in Slurm's backfill (`bf_max_job_test`): the
work grows with this times the number of runs."""


class Conservative:
    """Each job gets a reservation at the earliest time at which it can run to its expected end.

    Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2
    with Backfilling", IEEE TPDS 12(6), 2001, section 2.

    Each decision makes all reservations anew, in the order's order, in the room that running jobs and earlier
    reservations leave. A job whose time is now starts. Its expected end is as under EASY backfilling, on the cards
    that it gets, and it keeps the same GPUs from start to end. A job without patience has no reservation.
    """

    def __init__(
        self, order: Order, place: Place, knowledge: Knowledge, speeds: CardSpeeds = ALL_ALIKE
    ) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        self._expected_ms = ExpectedMs(knowledge, stated=True, speeds=speeds)
        self._reserved_ms: dict[str, int] = {}

    @property
    def reserved_ms(self) -> Mapping[str, int]:
        """When each job that waits is expected to start, by its id; as of the last decision."""
        return self._reserved_ms

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order."""
        self._reserved_ms = {}
        ends = ExpectedEnds(cluster, self._expected_ms.stated_ms)
        ends.note_new()
        plan = _Plan(cluster, ends, now_ms)
        looked_at = 0
        for job in self.order(queue, cluster, now_ms):
            if job not in queue:
                continue  # limits have hidden it since
            if looked_at == DEPTH:
                return
            looked_at += 1
            found = self._earliest(plan, job, cluster)
            if found is None:
                continue
            start_ms, slots, runs_ms = found
            if start_ms > now_ms:
                if job.patience_ms != 0:
                    plan.take(job, slots, start_ms, runs_ms)
                    self._reserved_ms[job.id] = start_ms
                continue
            chosen = place_job(self.place, job, cluster)
            if chosen is not None:
                chosen_ms = self._expected_ms.on(job, chosen, cluster.nodes)
                if plan.between(now_ms, chosen_ms).has_room(job, chosen):
                    slots, runs_ms = chosen, chosen_ms
            yield placement_of(job, slots)
            if job not in queue:
                plan.take(job, slots, now_ms, runs_ms)

    def _earliest(
        self, plan: _Plan, job: Job, cluster: Cluster
    ) -> tuple[int, tuple[GpuSlot, ...], int] | None:
        """When a job can start, where, and how long it is expected to run there; None for never."""
        least_ms = self._expected_ms.least(job)
        for start_ms in list(plan.times_ms):
            runs_ms = least_ms
            while True:
                slots = plan.between(start_ms, runs_ms).slots(job)
                if slots is None:
                    break
                there_ms = self._expected_ms.on(job, slots, cluster.nodes)
                if there_ms <= runs_ms:
                    return start_ms, slots, runs_ms
                runs_ms = there_ms
        return None


class _Plan:
    """What is free from each time on until the next: what runs and what is reserved leave."""

    def __init__(self, cluster: Cluster, ends: ExpectedEnds, now_ms: int) -> None:
        self._cluster = cluster
        self.times_ms = [now_ms]
        self._rooms: list[IntArray] = [free_room(cluster)]
        for end_ms, run in ends.in_order():
            end_ms = max(end_ms, now_ms + 1)
            if end_ms >= FOREVER_MS:
                break
            if end_ms > self.times_ms[-1]:
                self.times_ms.append(end_ms)
                self._rooms.append(self._rooms[-1].copy())
            Shadow(cluster, self._rooms[-1]).end(run)

    def between(self, start_ms: int, runs_ms: int) -> Shadow:
        """What is free all the time from a time of the plan on; to be read."""
        first, last = self._places(start_ms, runs_ms)
        room = self._rooms[first] if last == first + 1 else np.minimum.reduce(self._rooms[first:last])
        return Shadow(self._cluster, room.copy())

    def take(self, job: Job, slots: tuple[GpuSlot, ...], start_ms: int, runs_ms: int) -> None:
        """A job runs then."""
        end_ms = start_ms + max(1, runs_ms)
        if end_ms < FOREVER_MS:
            at = bisect_left(self.times_ms, end_ms)
            if at == len(self.times_ms) or self.times_ms[at] != end_ms:
                self.times_ms.insert(at, end_ms)
                self._rooms.insert(at, self._rooms[at - 1].copy())
        first, last = self._places(start_ms, runs_ms)
        for room in self._rooms[first:last]:
            Shadow(self._cluster, room).start(job, slots, job.share)

    def _places(self, start_ms: int, runs_ms: int) -> tuple[int, int]:
        first = bisect_left(self.times_ms, start_ms)
        return first, max(first + 1, bisect_left(self.times_ms, start_ms + max(1, runs_ms)))

"""EASY backfilling: later jobs may start while the first one waits, if they do not delay it."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

import numpy as np
from sortedcontainers import SortedList

from berth.cluster import Cluster, Running
from berth.kernels import IntArray
from berth.model import FOREVER_MS, GpuSlot, Job, Placement
from berth.policies.keyed import as_queued, key_of
from berth.policies.protocol import Order, Place
from berth.policies.shadow import Shadow
from berth.queue import Key, Queue

__all__ = ["Easy", "expected_ms"]


def expected_ms(job: Job) -> int:
    """How long a job is expected to run: its time limit, else its estimate, else the truth."""
    if job.time_limit_ms is not None:
        return job.time_limit_ms
    return job.work_ms if job.estimate_ms is None else job.estimate_ms


class Easy:
    """An order in which the first job that does not fit gets a reservation, and others fill the gaps.

    Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; Mu'alem and Feitelson, "Utilization, Predictability,
    Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.

    The reservation is the earliest time at which the running jobs are expected to have left room for the first job,
    and GPUs for it then. A job is expected to end by its time limit, else by its estimate, else by the truth; one
    that runs over is expected to end at any moment. Later jobs start in the order's order, where it goes by a key,
    else as queued, if they fit now and either end before the reservation or take nothing that it needs.
    """

    def __init__(self, order: Order, place: Place) -> None:
        self.order = order
        self.place = place
        self.draws = bool(getattr(place, "draws", True))
        """Whether its decisions may depend on the seed."""
        self._key = key_of(order) or as_queued
        self._state: _State | None = None

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order until one does not fit, then those that fill gaps."""
        state = self._state
        if state is None or state.cluster is not cluster:
            state = self._state = _State(cluster)
        state.catch_up()
        head: Job | None = None
        for job in self.order(queue, cluster, now_ms):
            slots = None if state.is_stuck(job) else self.place(job, cluster)
            if slots is not None:
                yield Placement(job, slots, job.share)
                state.started(job)
            elif job.patience_ms != 0:
                head = job
                break
        if head is None:
            return
        state.stuck(head)
        if len(queue) > 1:
            yield from self._backfill(state, queue, head, now_ms)

    def _backfill(self, state: _State, queue: Queue, head: Job, now_ms: int) -> Iterator[Placement]:
        cluster = state.cluster
        state.reserve(head, now_ms)
        window_ms = state.time_ms - now_ms
        lanes = _Gaps(queue, cluster, self._key, window_ms)
        turns = [turn for lane in state.may_fit(lanes.by_key) if (turn := lanes.after(lane, None, state))]
        heapify(turns)
        while turns:
            turn = heappop(turns)
            key, serial, lane, job = turn
            if job is not head:
                slots = self.place(job, cluster)
                if slots is None:
                    state.does_not_fit(lane, job)
                    continue
                late = expected_ms(job) > window_ms
                if late and not state.spares(job, slots):
                    slots = state.elsewhere(job)
                if slots is None:
                    state.nothing_spare.add(lane)
                else:
                    yield Placement(job, slots, job.share)
                    state.started(job)
                    if late:
                        state.taken(job, slots)
            if following := lanes.after(lane, (key, serial), state):
                heappush(turns, following)


_Turn = tuple[Any, int, int, Job]
"""Key and serial of a waiting job, its request type, and the job."""


class _Gaps:
    """The waiting jobs of each request type, as candidates for a gap that lasts so long."""

    def __init__(self, queue: Queue, cluster: Cluster, key: Key, window_ms: int) -> None:
        self.key = key
        self.window_ms = window_ms
        self.by_key = queue.lanes(cluster.request, key)
        self.by_length = queue.lanes(cluster.request, expected_ms)

    def after(self, lane: int, before: tuple[Any, int] | None, state: _State) -> _Turn | None:
        """The first job of the lane behind this key and serial that may start; None where there is none."""
        waiting = self.by_key.get(lane)
        if waiting is None:
            return None
        if lane in state.nothing_spare:
            # Only what ends in time may start: the first of those, or the first in order that is one of them.
            lengths = self.by_length[lane]
            short = lengths.bisect_right((self.window_ms, 2**62))
            if short * short > len(waiting):
                place = 0 if before is None else waiting.bisect_right((*before, _LAST))
                for key, serial, job in waiting.islice(place):
                    if expected_ms(job) <= self.window_ms:
                        return key, serial, lane, job
                return None
            turns = ((self.key(job), serial, lane, job) for _, serial, job in lengths.islice(0, short))
            if before is not None:
                turns = (turn for turn in turns if turn[:2] > before)
            return min(turns, default=None, key=itemgetter(0, 1))
        place = 0 if before is None else waiting.bisect_right((*before, _LAST))
        if place == len(waiting):
            return None
        key, serial, job = waiting[place]
        return key, serial, lane, job


class _Last:
    """Greater than any job, to find a place behind an entry."""

    def __gt__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return False


_LAST = _Last()


class _State:
    """What is known of one cluster: expected ends, who does not fit, and the reservation."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.time_ms = 0
        """When the reservation begins."""
        self.nothing_spare: set[int] = set()
        """Request types for which nothing is left beside the reservation."""
        self._shadow: Shadow | None = None
        """What is free when the reservation begins, without what it takes; None where it must be made anew."""
        self._head: Job | None = None
        self._ends: SortedList = SortedList()  # (expected end, id, run)
        self._expected: dict[str, tuple[int, Running]] = {}
        self._releases = cluster.releases
        self._stuck: tuple[str, int] | None = None
        self._unfit: dict[int, Job] = {}
        self._seen: IntArray = cluster.version.copy()
        for run in cluster.running.values():
            self._note(run)

    def catch_up(self) -> None:
        """See who has ended since the last time, and whether anybody left before he was expected to."""
        cluster = self.cluster
        if cluster.releases == self._releases:
            return
        ends, running = self._ends, cluster.running
        on_time = 0
        while ends and running.get(ends[0][1]) is not ends[0][2]:
            _, job_id, _ = ends.pop(0)
            del self._expected[job_id]
            on_time += 1
        if on_time != cluster.releases - self._releases:
            self._shadow = None
            for job_id in self._expected.keys() - running.keys():
                end_ms, run = self._expected.pop(job_id)
                ends.remove((end_ms, job_id, run))
        self._releases = cluster.releases

    def started(self, job: Job) -> None:
        """A placement has been applied."""
        if (run := self.cluster.running.get(job.id)) is not None:
            self._note(run)

    def is_stuck(self, job: Job) -> bool:
        """Whether the job did not fit, and nothing was given back since."""
        return self._stuck == (job.id, self.cluster.releases)

    def stuck(self, head: Job) -> None:
        """The first job does not fit."""
        self._stuck = (head.id, self.cluster.releases)
        if head is not self._head:
            self._head = head
            self._shadow = None

    def reserve(self, head: Job, now_ms: int) -> None:
        """Find when and where the first job can start, unless that is known still."""
        if self._shadow is not None:
            return
        shadow = self._shadow = Shadow(self.cluster)
        self.nothing_spare = set()
        self.time_ms = FOREVER_MS
        for end_ms, _, run in self._ends:
            shadow.end(run)
            if not shadow.might_fit(head, sorted({slot.node for slot in run.slots})):
                continue
            slots = shadow.slots(head)
            if slots is not None:
                self.time_ms = max(end_ms, now_ms + 1)
                shadow.start(head, slots, head.share)
                return

    def may_fit(self, lanes: Any) -> list[int]:
        """The request types that may fit: they were not tried, or a node has changed where they fit now."""
        cluster = self.cluster
        changed = np.flatnonzero(cluster.version != self._seen).tolist()
        if changed:
            now = Shadow(cluster)
            self._unfit = {lane: job for lane, job in self._unfit.items() if not now.might_fit(job, changed)}
            np.copyto(self._seen, cluster.version)
        return [lane for lane in lanes if lane not in self._unfit]

    def does_not_fit(self, lane: int, job: Job) -> None:
        """A request type has been tried in vain, with this job of it."""
        self._unfit[lane] = job

    def spares(self, job: Job, slots: tuple[GpuSlot, ...]) -> bool:
        """Whether these slots leave the reservation what it needs."""
        return self._shadow is not None and self._shadow.has_room(job, slots)

    def elsewhere(self, job: Job) -> tuple[GpuSlot, ...] | None:
        """Slots that fit both now and beside the reservation; None where there are none."""
        if self._shadow is None:
            return None
        both = Shadow(self.cluster)
        for mine, then in (
            (both.cpu_milli, self._shadow.cpu_milli),
            (both.mem_mib, self._shadow.mem_mib),
            (both.milli, self._shadow.milli),
            (both.gpu_mem_mib, self._shadow.gpu_mem_mib),
        ):
            np.minimum(mine, then, out=mine)
        return both.slots(job)

    def taken(self, job: Job, slots: tuple[GpuSlot, ...]) -> None:
        """A job that outlasts the beginning of the reservation has taken slots beside it."""
        if self._shadow is not None:
            self._shadow.start(job, slots, job.share)

    def _note(self, run: Running) -> None:
        limited = run.job.time_limit_ms is not None or run.job.estimate_ms is not None
        end_ms = run.start_ms + expected_ms(run.job) if limited else run.end_ms()
        self._ends.add((end_ms, run.job.id, run))
        self._expected[run.job.id] = (end_ms, run)

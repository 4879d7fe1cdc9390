"""The waiting jobs by request type, in arrays for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from berth.arrays import IntArray, numbers
from berth.cluster import UNCOUNTED, Cluster
from berth.cluster.queue import Key, Serial
from berth.model import Job
from berth.policies.schemes.waiting_kernels import (
    COUNT,
    FIRST,
    IN_THE_WAY,
    LANE_COLUMNS,
    NO_ROW,
    OPEN,
    ROOM,
    ROW_COLUMNS,
    STATE,
    add_waiting,
    fits_again,
    move_lane,
    next_waiting,
    remove_waiting,
    repack,
)
from berth.policies.sort_keys import LARGEST_KEY

NO_JOB = Job("", 0, 0)
"""Stands in rows that are free."""


class WaitingTypes:
    """Waiting jobs in a lane for each request type, in the order of a key, the first queued on ties.

    `expected_ms` is the least that a job is expected to run; `by_request`: whether the placement is `ByRequest`. Key
    and expected run time are those of the moment at which a job was queued. Letters as in `waiting_kernels`.
    """

    def __init__(
        self,
        cluster: Cluster,
        by_request: bool,
        key: Key,
        expected_ms: Callable[[Job], int],
        jobs: Iterable[tuple[Serial, Job]],
    ) -> None:
        self.failed = False
        self.fits_kernels = True
        """Whether all keys and serials so far are whole numbers that kernels can take."""
        self._cluster = cluster
        self._by_request = by_request
        self._key = key
        self._expected_ms = expected_ms
        self._row_of: dict[str, int] = {}
        self._job_at: list[Job] = []
        self._free_rows: list[int] = []
        self._pooled = 0
        self._rows: IntArray = np.zeros((0, ROW_COLUMNS), dtype=np.int64)
        self._pool: IntArray = np.zeros(256, dtype=np.int64)
        self._lanes: IntArray = np.zeros((0, LANE_COLUMNS), dtype=np.int64)
        self._active: IntArray = np.zeros(1, dtype=np.int64)
        self._grow_lanes(64)
        self._some_in_the_way = False
        self._gangs: set[int] = set()  # request types of gangs, which kernels know too little of
        for serial, job in jobs:
            self.add(job, serial)

    def add(self, job: Job, serial: Serial) -> None:
        """A job waits from now on."""
        number, key, length_ms = self._cluster.request(job), self._key(job), self._expected_ms(job)
        if number >= len(self._lanes):
            self._grow_lanes(2 * number)
        if job.tasks:
            self._gangs.add(number)
        if not (
            type(key) is int
            and isinstance(serial, int)
            and -LARGEST_KEY < key < LARGEST_KEY
            and length_ms < LARGEST_KEY
        ):
            if self.fits_kernels:
                self.open_all()  # from now on no job that comes opens its type
            self.fits_kernels = False
        if not (self.fits_kernels and isinstance(serial, int)):
            return
        if not self._free_rows:
            self._add_rows()
        if self._lanes_at[number, COUNT] == self._lanes_at[number, ROOM]:
            self._move(number)
        row = self._row_of[job.id] = self._free_rows.pop()
        self._job_at[row] = job
        add_waiting(self._rows, self._lanes, self._active, self._pool, row, number, key, serial, length_ms)

    def remove(self, job: Job) -> None:
        """A job that was added waits no more."""
        row = self._row_of.pop(job.id, None)
        if row is not None:
            remove_waiting(self._rows, self._lanes, self._active, self._pool, row)
            self._job_at[row] = NO_JOB
            self._free_rows.append(row)

    def state(self, job: Job) -> int:
        """Whether jobs of a job's request type may start: OPEN, FULL or IN_THE_WAY."""
        number = self._cluster.request(job)
        return self._lanes_at[number, STATE] if number < len(self._lanes) else OPEN

    def close(self, job: Job, state: int) -> None:
        """Jobs of a job's request type are FULL or IN_THE_WAY until they are opened."""
        number = self._cluster.request(job)
        if number >= len(self._lanes):
            self._grow_lanes(2 * number)
        self._lanes_at[number, STATE] = state
        self._some_in_the_way |= state == IN_THE_WAY

    def open_in_the_way(self) -> None:
        """Open all request types that were in the way."""
        if self._some_in_the_way:
            states = self._lanes[:, STATE]
            states[states == IN_THE_WAY] = OPEN
            self._some_in_the_way = False

    def open_all(self) -> None:
        """Open all request types."""
        self._lanes[:, STATE] = OPEN

    def open_where_changed(self, marks: IntArray) -> None:
        """Open the request types that may fit on nodes that have changed since these marks were made."""
        types = self.types() if self.fits_kernels else np.flatnonzero(self._lanes[:, STATE] != OPEN)
        cluster = self._cluster
        fits_again(cluster.block, cluster.requests, self._lanes, types, marks, cluster.free_total_milli)
        for number in self._gangs:
            self._lanes_at[number, STATE] = OPEN

    def types(self) -> IntArray:
        """The request types of which jobs wait."""
        return self._active[1 : 1 + self._active_at[0]]

    def first_of(self, number: int) -> Job:
        """The first job of a request type of which jobs wait."""
        job: Job = self._job_at[self._pool[self._lanes_at[number, FIRST]]]
        return job

    def first(
        self, windows_ms: IntArray, free_milli: int, spare_milli: int = UNCOUNTED, after: int = NO_ROW
    ) -> int:
        """The row of the first of the `candidates`, or of the first after this row; NO_ROW for none. What asks for more
        than `free_milli` of GPUs is full, if the placement refuses by request."""
        row: int = next_waiting(
            self._rows,
            self._lanes,
            self._active,
            self._pool,
            self._cluster.requests,
            free_milli if self._by_request else UNCOUNTED,
            spare_milli,
            windows_ms,
            after,
        )
        return row

    def candidates(self, windows_ms: IntArray, row: int, spare_milli: int = UNCOUNTED) -> Iterator[Job]:
        """In the order of the key, from the row of the first on: the jobs of open request types, and of those that are
        in the way, or ask for more than `spare_milli` of GPUs, the ones that are expected to end within their window.
        Types may be closed meanwhile."""
        while row != NO_ROW:
            yield self._job_at[row]
            row = self.first(windows_ms, self._cluster.free_total_milli, spare_milli, row)

    def _add_rows(self) -> None:
        before = len(self._rows)
        rows = max(64, 2 * before)
        self._rows = np.concatenate([self._rows, np.zeros((rows - before, ROW_COLUMNS), dtype=np.int64)])
        self._job_at += [NO_JOB] * (rows - before)
        self._free_rows += range(rows - 1, before - 1, -1)

    def _grow_lanes(self, types: int) -> None:
        """Have room for this many request types."""
        lanes = np.zeros((types + 1, LANE_COLUMNS), dtype=np.int64)
        active = np.zeros(types + 2, dtype=np.int64)
        lanes[: len(self._lanes)] = self._lanes
        active[: len(self._active)] = self._active
        self._lanes, self._active = lanes, active
        self._lanes_at, self._active_at = numbers(lanes), numbers(active)

    def _move(self, number: int) -> None:
        """Give a lane twice the room that its jobs take, behind all others in the pool."""
        lanes = self._lanes
        more = 2 * int(lanes[number, COUNT]) + 8
        if self._pooled + more > len(self._pool):
            pool: IntArray = np.zeros(max(256, 2 * (int(lanes[:, COUNT].sum()) + more)), dtype=np.int64)
            self._pool, self._pooled = pool, repack(lanes, self._pool, pool)
        self._pooled = move_lane(lanes, self._pool, number, self._pooled)

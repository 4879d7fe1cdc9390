"""Running jobs by the time at which they are expected to end, in arrays for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from berth.arrays import IntArray, numbers
from berth.cluster import Cluster, Running
from berth.model import FOREVER_MS, Job
from berth.policies.schemes.easy_kernels import END_MS, FIRST_SLOT, RUN_COLUMNS, drop_end, note_end


class ExpectedEnds:
    """What runs on a cluster, in the order in which it is expected to end.

    Letters: R rows of runs, P slots. A run that was written to keeps the end that it had when it was noted.
    """

    def __init__(self, cluster: Cluster, stated_ms: Callable[[Job], int | None]) -> None:
        self._cluster = cluster
        self._stated_ms = stated_ms
        self.clear()

    def clear(self) -> None:
        """Forget all runs."""
        self.runs: IntArray = np.zeros((64, RUN_COLUMNS), dtype=np.int64)  # (R, RUN_COLUMNS)
        self.by_end: IntArray = np.zeros(128, dtype=np.int64)
        """Rows, the first to end first, from place `first` on."""
        self.first = 0
        self.count = 0
        self.pool: IntArray = np.zeros((4096, 2), dtype=np.int64)  # (P, 2)
        self._by_end_at, self._pool_at = numbers(self.by_end), numbers(self.pool)
        self._pooled = 0
        self._run_at: list[Running | None] = [None] * 64
        self._free_rows = [*range(63, -1, -1)]

    def note_new(self) -> bool:
        """Note the runs that started without having been noted; whether there were any."""
        running = self._cluster.running
        if self.count == len(running):
            return False
        noted = {run.job.id for run in self._run_at if run is not None}
        for run in running.values():
            if run.job.id not in noted:
                self.note(run)
        return True

    def note(self, run: Running) -> int:
        """Note a run that has started; returns when it is expected to end."""
        job, slots, count = run.job, run.slots, len(run.slots)
        stated_ms = self._stated_ms(job)
        if stated_ms is None:
            end_ms = run.end_ms()
        else:
            end_ms = run.start_ms + stated_ms if stated_ms < FOREVER_MS else FOREVER_MS
        if not self._free_rows:
            self._add_rows()
        if self.first + self.count == len(self._by_end_at):
            self.by_end[: self.count] = self.by_end[self.first :]
            self.first = 0
        if self._pooled + count > len(self._pool_at):
            self._repack(count)
        row, first_slot, at = self._free_rows.pop(), self._pooled, self._pool_at
        for place, (node, index) in enumerate(slots, first_slot):
            at[place, 0] = node
            at[place, 1] = index
        self._pooled += count
        milli, gpu_mem = run.taken
        note_end(
            self.runs,
            self.by_end,
            self.first,
            self.count,
            self._cluster.requests,
            run.request,
            row,
            end_ms,
            milli,
            gpu_mem,
            first_slot,
            count,
        )
        self.count += 1
        self._run_at[row] = run
        return end_ms

    def in_order(self) -> Iterator[tuple[int, Running]]:
        """The expected ends and the runs, the first to end first."""
        for row in self.by_end[self.first : self.first + self.count].tolist():
            run = self._run_at[row]
            if run is not None:
                yield int(self.runs[row, END_MS]), run

    def drop_first_ended(self) -> int:
        """Drop the runs that have ended before any that is still running was to; how many."""
        running, at, before = self._cluster.running, self._by_end_at, self.count
        while self.count:
            row = at[self.first]
            run = self._run_at[row]
            if run is None or running.get(run.job.id) is run:
                break
            self.first += 1
            self._forget(row)
        return before - self.count

    def drop_ended(self) -> None:
        """Drop all runs that have ended."""
        running = self._cluster.running
        for row, run in enumerate(self._run_at):
            if run is not None and running.get(run.job.id) is not run:
                drop_end(self.runs, self.by_end, self.first, self.count, row)
                self._forget(row)

    def _forget(self, row: int) -> None:
        self.count -= 1
        self._run_at[row] = None
        self._free_rows.append(row)

    def _add_rows(self) -> None:
        rows = len(self.runs)
        self.runs = np.concatenate([self.runs, np.zeros_like(self.runs)])
        by_end = np.zeros(4 * rows, dtype=np.int64)
        by_end[: self.count] = self.by_end[self.first : self.first + self.count]
        self.by_end, self.first, self._by_end_at = by_end, 0, numbers(by_end)
        self._run_at += [None] * rows
        self._free_rows += range(2 * rows - 1, rows - 1, -1)

    def _repack(self, more: int) -> None:
        """Close the gaps that ended runs have left in the pool, and have room for this many more slots."""
        remaining = [(row, run.slots) for row, run in enumerate(self._run_at) if run is not None]
        slots = [slot for _, of_run in remaining for slot in of_run]
        self.pool = np.zeros((max(4096, 8 * (len(slots) + more)), 2), dtype=np.int64)
        if slots:
            self.pool[: len(slots)] = np.array(slots, dtype=np.int64)
        first = 0
        for row, of_run in remaining:
            self.runs[row, FIRST_SLOT] = first
            first += len(of_run)
        self._pool_at, self._pooled = numbers(self.pool), first

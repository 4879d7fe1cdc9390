"""Rounds: decide on many waiting jobs at once, not more often than every so often."""

from __future__ import annotations

from itertools import islice

from berth.cluster import Cluster
from berth.model import Job, WakeAt
from berth.policies.batch import Batch, Fits, batch_of
from berth.queue import Queue

__all__ = ["BatchRounds"]


class BatchRounds:
    """The batches that a policy decides on, one a round."""

    def __init__(self, window: int, round_ms: int) -> None:
        self.window = window
        self.round_ms = round_ms
        self.number = 0
        self._cluster: Cluster | None = None
        self._next_ms = 0
        self._woken_ms = -1

    def batch(self, queue: Queue, cluster: Cluster, now_ms: int) -> Batch | WakeAt | None:
        """What to decide on now; or when to look again, the round being young; or None: there is nothing.

        The batch is the first `window` jobs of the queue that run on one node and that some node has room for:
        those that wait for a full kind of GPU do not keep others from the rest. A job whose patience is nothing
        cannot wait for the round to end.
        """
        if cluster is not self._cluster:
            self._cluster, self._fits, self._next_ms, self._woken_ms = cluster, Fits(cluster), now_ms, -1
        if now_ms < self._next_ms and not any(job.patience_ms == 0 for job in islice(queue, self.window)):
            if not len(queue) or self._woken_ms == self._next_ms:
                return None
            self._woken_ms = self._next_ms
            return WakeAt(self._next_ms)
        batch = batch_of(self._first_jobs(queue, cluster), cluster, self._fits)
        if not batch.jobs:
            return None
        self._next_ms = now_ms + self.round_ms
        self.number += 1
        return batch

    def _first_jobs(self, queue: Queue, cluster: Cluster) -> list[Job]:
        jobs: list[Job] = []
        fitting: dict[int, bool] = {}
        for job in queue:
            if job.nodes > 1:
                continue
            number = cluster.request(job)
            fits = fitting.get(number)
            if fits is None:
                fits = fitting[number] = bool(self._fits.of([number]).any())
            if fits:
                jobs.append(job)
                if len(jobs) == self.window:
                    break
        return jobs

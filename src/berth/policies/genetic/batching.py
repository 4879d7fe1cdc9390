"""Rounds: decide on many waiting jobs at once, at most once per interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from berth.cluster import Cluster, Queue
from berth.model import FOREVER_MS, Job, Placement, WakeAt, placement_of
from berth.policies.genetic.batch import Batch, batch_of
from berth.policies.sort_keys import as_queued


class Batching:
    """The batches that a policy decides on, one a round; a round ends early if a job's patience would."""

    def __init__(self, window: int, round_ms: int) -> None:
        self.window = window
        self.round_ms = round_ms
        self.number = 0

    def batch(self, queue: Queue, cluster: Cluster, now_ms: int) -> Batch | WakeAt | None:
        """What to decide on now; or when to look again, the round being young; or None: there is nothing.

        The batch is the first `window` jobs of the queue that there is room for, for a gang on as many nodes as it
        takes: those that wait for a full kind of GPU do not keep others from the rest.
        """
        turn = cluster.memo.get(self)
        if turn is None:
            turn = cluster.memo[self] = _Turn(now_ms)
        due_ms = _due_ms(queue, now_ms, turn.next_ms)
        if now_ms < due_ms:
            if not len(queue) or turn.woken_ms == due_ms:
                return None
            turn.woken_ms = due_ms
            return WakeAt(due_ms)
        batch = batch_of(self._first_jobs(queue, cluster), cluster)
        if not batch.jobs:
            return None
        turn.next_ms = now_ms + self.round_ms
        self.number += 1
        return batch

    def spread(self, queue: Queue, cluster: Cluster) -> Iterator[Placement]:
        """Start gangs of tasks, and jobs on several nodes that may spread and that no node could hold, even empty, as
        soon as there is room: they are in no batch."""
        waiting = queue.lanes(_may_spread, as_queued).get(True, ())
        hopeless: set[int] = set()
        on_one: dict[int, bool] = {}  # by request type: whether some node that is up could hold it, if empty
        for job in [job for _, _, job in waiting]:
            number = cluster.request(job)
            if number not in on_one:
                on_one[number] = bool(cluster.up[cluster.fitting_nodes_when_empty(job)].any())
            if number in hopeless or (on_one[number] and not job.tasks):
                continue
            slots = cluster.spread(job)
            if slots is None:
                hopeless.add(number)
            else:
                yield placement_of(job, slots)

    def _first_jobs(self, queue: Queue, cluster: Cluster) -> list[Job]:
        jobs: list[Job] = []
        fitting: dict[int, bool] = {}
        for job in queue:
            if job.tasks:
                continue
            number = cluster.request(job)
            fits = fitting.get(number)
            if fits is None:
                fits = fitting[number] = len(cluster.fitting_nodes(job)) >= max(1, job.nodes)
            if fits:
                jobs.append(job)
                if len(jobs) == self.window:
                    break
        return jobs


@dataclass(slots=True)
class _Turn:
    """Where the rounds of one cluster have got to."""

    next_ms: int
    woken_ms: int = -1


def _due_ms(queue: Queue, now_ms: int, next_ms: int) -> int:
    """When a round that is to end at `next_ms` ends: before a job's patience does."""
    if now_ms < next_ms:
        for job in queue.by(_leaves_ms):
            if _leaves_ms(job) >= now_ms:
                return min(next_ms, _leaves_ms(job))
    return next_ms


def _may_spread(job: Job) -> bool:
    return bool(job.tasks) or (job.nodes == 0 and job.gpus > 1)


def _leaves_ms(job: Job) -> int:
    """When a job that has waited since its submission runs out of patience."""
    return FOREVER_MS if job.patience_ms is None else job.submit_ms + job.patience_ms

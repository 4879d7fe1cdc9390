"""Least attained service: who has had the least GPU time comes first, and takes it from who has had more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from berth.cluster import Cluster, Running
from berth.model import Job
from berth.policies.preemptive import Rank, Ranks
from berth.policies.protocol import Setting
from berth.queue import Key, Queue
from berth.usage import Usage

LEVELS_MILLI_MS = (3_600_000 * 1000, 10 * 3_600_000 * 1000)
"""Where one queue ends and the next begins: one and ten GPU-hours."""


class LeastAttainedService(Ranks):
    """By the GPU time that a job has had in all its tries, in three queues; the lower ones evict the higher.

    Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu and Guo, "Tiresias: A GPU Cluster Manager for Distributed Deep
    Learning", NSDI 2019, section 4.2: two-dimensional attained service (GPUs × time), discretised so that jobs of
    about the same age do not evict each other in turn. Queues end at one and ten GPU-hours; within one, as queued.
    A job that waits is started in place of jobs of later queues, which lose what their `keeps_work` says.
    """

    def __init__(self, setting: Setting | None = None) -> None:
        self._usage: Usage | None = None

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """The waiting jobs by level; what a job has had does not change while it waits."""
        if self._usage is not cluster.usage():
            self._usage = cluster.usage()
            self.key = self._new_key(self._usage)
        return queue.by(self.key)

    def waiting(self, job: Job) -> Rank:
        """The level of a waiting job."""
        return (0 if self._usage is None else _level(self._usage.jobs.get(job.id, 0)),)

    def running(self, run: Running, now_ms: int) -> Rank:
        """The level of a running job."""
        return (_level(self._had(run, now_ms)),)

    def next_ms(self, cluster: Cluster, now_ms: int) -> int | None:
        """When the next running job enters a later queue."""
        soonest: int | None = None
        for run in cluster.running.values():
            rate = run.job.gpus * run.share.milli
            had = self._had(run, now_ms)
            level = _level(had)
            if rate and level < len(LEVELS_MILLI_MS):
                at_ms = now_ms - (-(LEVELS_MILLI_MS[level] - had) // rate)
                soonest = at_ms if soonest is None else min(soonest, at_ms)
        return soonest

    def _had(self, run: Running, now_ms: int) -> int:
        before = 0 if self._usage is None else self._usage.jobs.get(run.job.id, 0)
        return before + run.job.gpus * run.share.milli * (now_ms - run.start_ms)

    @staticmethod
    def _new_key(usage: Usage) -> Key:
        jobs = usage.jobs
        return lambda job: _level(jobs.get(job.id, 0))


def _level(had: int) -> int:
    return bisect_right(LEVELS_MILLI_MS, had)

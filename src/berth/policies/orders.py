"""Orders: which waiting job comes first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from berth.cluster import Cluster, Key, Queue, Running, Usage
from berth.model import FOREVER_MS, Job
from berth.policies.protocol import Setting
from berth.policies.schemes.preempt import Rank, Ranks
from berth.policies.sort_keys import ExpectedMs, as_queued, keyed

__all__ = [
    "LeastAttainedService", "SjfExpected", "fifo", "largest_first", "priority", "sjf", "sjf_estimated",
    "sjf_requested",
]  # fmt: skip


@keyed(as_queued)
def fifo(queue: Queue) -> Iterator[Job]:
    """In the order in which the jobs were queued; a job that is queued again goes behind all others."""
    return iter(queue)


def _urgency(job: Job) -> int:
    return -job.priority


@keyed(_urgency)
def priority(queue: Queue) -> Iterator[Job]:
    """By the priority of the job, the higher first; the first queued among equals. Nothing that runs is stopped."""
    return queue.by(_urgency)


def _work(job: Job) -> int:
    return FOREVER_MS if job.work_ms is None else job.work_ms


class SjfExpected:
    """By the run time that is believed of a job (its mean); jobs of which nothing is believed come last.

    What was believed when a job was queued counts while it waits. The first queued on ties.
    """

    def __init__(self, setting: Setting | None = None) -> None:
        self.key: Key = ExpectedMs((setting or Setting()).knowledge)

    def __call__(self, queue: Queue) -> Iterator[Job]:
        """The waiting jobs, the shortest first."""
        return queue.by(self.key)


def _requested(job: Job) -> int:
    return FOREVER_MS if job.time_limit_ms is None else job.time_limit_ms


def _estimated(job: Job) -> int:
    return FOREVER_MS if job.estimate_ms is None else job.estimate_ms


@keyed(_work)
def sjf(queue: Queue) -> Iterator[Job]:
    """By true run time, which the simulator alone knows: what a scheduler could do that knew the future.

    Live jobs are all alike to it; `sjf-expected` goes by what is believed. The first queued on ties.

    Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3, 1956.
    """
    return queue.by(_work)


@keyed(_requested)
def sjf_requested(queue: Queue) -> Iterator[Job]:
    """By the time limit that the user requested; jobs that state none come last, the first queued on ties."""
    return queue.by(_requested)


@keyed(_estimated)
def sjf_estimated(queue: Queue) -> Iterator[Job]:
    """By the estimate that the trace or a predictor gives; jobs without one come last, the first queued on ties."""
    return queue.by(_estimated)


def _size(job: Job) -> tuple[int, int]:
    return (-job.gpus * job.share.milli, -job.cpu_milli)


@keyed(_size)
def largest_first(queue: Queue) -> Iterator[Job]:
    """By the GPUs asked for, the most first, parts of GPUs counted as parts; then by CPU, the first queued on ties.

    Decreasing order of size, as in first-fit decreasing: Johnson, "Near-optimal bin packing algorithms", PhD
    thesis, MIT, 1973.
    """
    return queue.by(_size)


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
            rate = run.job.gpus * run.taken.milli
            had = self._had(run, now_ms)
            level = _level(had)
            if rate and level < len(LEVELS_MILLI_MS):
                at_ms = now_ms - (-(LEVELS_MILLI_MS[level] - had) // rate)
                soonest = at_ms if soonest is None else min(soonest, at_ms)
        return soonest

    def _had(self, run: Running, now_ms: int) -> int:
        before = 0 if self._usage is None else self._usage.jobs.get(run.job.id, 0)
        return before + run.job.gpus * run.taken.milli * (now_ms - run.start_ms)

    @staticmethod
    def _new_key(usage: Usage) -> Key:
        jobs = usage.jobs
        return lambda job: _level(jobs.get(job.id, 0))


def _level(had: int) -> int:
    return bisect_right(LEVELS_MILLI_MS, had)

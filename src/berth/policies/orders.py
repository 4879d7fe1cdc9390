"""Orders: which waiting job comes first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from berth.cluster import Cluster, Key, Queue, Running, Usage
from berth.knowledge import believed_run
from berth.knowledge.belief import CAUTIOUS_MS, OTHERS
from berth.model import FOREVER_MS, Job
from berth.policies.protocol import Setting
from berth.policies.schemes.preempt import Rank, Ranks
from berth.policies.sort_keys import ExpectedMs, as_queued, keyed


@keyed(as_queued)
def fifo(queue: Queue) -> Iterator[Job]:
    """First come, first served; a job that is queued again goes to the end."""
    return iter(queue)


def _urgency(job: Job) -> int:
    return -job.priority


@keyed(_urgency)
def priority(queue: Queue) -> Iterator[Job]:
    """Higher priority first, then as queued. No running job is stopped."""
    return queue.by(_urgency)


def _work(job: Job) -> int:
    return FOREVER_MS if job.work_ms is None else job.work_ms


class SjfExpected:
    """Shortest believed run time (mean) first, on the fastest card that the job may have.

    Jobs with no believed run time come last.

    What was believed when a job was queued counts while it waits. The first queued on ties.
    """

    run_times = "believed"

    def __init__(self, setting: Setting | None = None) -> None:
        setting = setting or Setting()
        self.key: Key = ExpectedMs(setting.knowledge, speeds=setting.speeds)

    def __call__(self, queue: Queue) -> Iterator[Job]:
        """The waiting jobs, the shortest first."""
        return queue.by(self.key)


AGE = 8
"""A job that has waited this many times longer than its run time is shorter comes before a longer one."""


class LongestExpected:
    """Longest believed run time (mean) first, so that short jobs fill the end.

    Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied Mathematics 17(2), 1969. A longer
    job overtakes one only if it was submitted less than eight times its own run time later. A job counts as a day
    long if other jobs of its user have been seen to end, but none of its application: it may be the longest, and its
    run teaches about similar jobs. What was believed when a job was queued, or changed last, counts while it waits.
    The first queued on ties.
    """

    run_times = "believed"

    def __init__(self, setting: Setting | None = None) -> None:
        setting = setting or Setting()
        self._knowledge = setting.knowledge
        self._expected = ExpectedMs(setting.knowledge, speeds=setting.speeds)
        self.key: Key = self._latest_ms

    def _latest_ms(self, job: Job) -> int:
        expected_ms = min(FOREVER_MS, self._expected(job))
        if not self._knowledge.certain and (spread := believed_run(job, self._knowledge)) is not None:
            expected_ms = max(expected_ms, CAUTIOUS_MS) if spread.basis == OTHERS else expected_ms
        return job.submit_ms - AGE * expected_ms

    def __call__(self, queue: Queue) -> Iterator[Job]:
        """The waiting jobs, the longest first."""
        return queue.by(self.key)


def _requested(job: Job) -> int:
    return FOREVER_MS if job.time_limit_ms is None else job.time_limit_ms


def _estimated(job: Job) -> int:
    return FOREVER_MS if job.estimate_ms is None else job.estimate_ms


@keyed(_work, run_times="true")
def sjf(queue: Queue) -> Iterator[Job]:
    """Shortest true run time first, which only the simulator knows: a bound, not a policy to deploy.

    To it, all live jobs are equal; `sjf-expected` uses believed run times. Ties go as queued.

    Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3, 1956.
    """
    return queue.by(_work)


@keyed(_requested)
def sjf_requested(queue: Queue) -> Iterator[Job]:
    """Shortest requested time limit first; jobs without one come last, ties as queued."""
    return queue.by(_requested)


@keyed(_estimated)
def sjf_estimated(queue: Queue) -> Iterator[Job]:
    """Shortest estimate of the trace or a predictor first; jobs without one come last, ties as queued."""
    return queue.by(_estimated)


def _deadline(job: Job) -> int:
    return FOREVER_MS if job.deadline_ms is None else job.submit_ms + job.deadline_ms


@keyed(_deadline)
def deadline_first(queue: Queue) -> Iterator[Job]:
    """Earliest deadline first; jobs without a deadline come last, ties as queued.

    Earliest deadline first: Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
    Environment", Journal of the ACM 20(1), 1973.
    """
    return queue.by(_deadline)


def _size(job: Job) -> int:
    return -(job.gpus * job.share.milli << 32) - min(job.cpu_milli, MOST_CPU_MILLI)


MOST_CPU_MILLI = (1 << 32) - 1
"""More CPU is all the same to `largest_first`."""


@keyed(_size)
def largest_first(queue: Queue) -> Iterator[Job]:
    """Most requested GPUs first, including parts, then most CPU; ties as queued.

    Decreasing order of size, as in first-fit decreasing: Johnson, "Near-optimal bin packing algorithms", PhD
    thesis, MIT, 1973.
    """
    return queue.by(_size)


LEVELS_MILLI_MS = (3_600_000 * 1000, 10 * 3_600_000 * 1000)
"""Where one queue ends and the next begins: one and ten GPU-hours."""


class LeastAttainedService(Ranks):
    """Least GPU time over all attempts first, in three queues; jobs of a lower queue evict those of a higher.

    Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu and Guo, "Tiresias: A GPU Cluster Manager for Distributed Deep
    Learning", NSDI 2019, section 4.2. The service is two-dimensional (GPUs × time). It is discretised, so that jobs
    of about the same age do not evict each other in turn. Queues end at one and ten GPU-hours; within one, as queued.
    A waiting job takes the place of jobs of later queues, which lose their work unless they have `keeps_work`.
    """

    def __init__(self, setting: Setting | None = None) -> None:
        self._usage: Usage | None = None

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """The waiting jobs by level; what a job has had does not change while it waits."""
        if self._usage is not cluster.usage():
            self._usage = cluster.usage()
            self.key: Key = lambda job: _level(self._had_before(job.id))
        return queue.by(self.key)

    def waiting(self, job: Job) -> Rank:
        """The level of a waiting job."""
        return (_level(self._had_before(job.id)),)

    def running(self, run: Running, now_ms: int) -> Rank:
        """The level of a running job."""
        return (_level(self._had(run, now_ms)),)

    def next_ms(self, cluster: Cluster, now_ms: int) -> int | None:
        """When the next running job enters a later queue."""
        soonest: int | None = None
        for run in cluster.running.values():
            rate = self._rate(run)
            had = self._had(run, now_ms)
            level = _level(had)
            if rate and level < len(LEVELS_MILLI_MS):
                at_ms = now_ms - (-(LEVELS_MILLI_MS[level] - had) // rate)
                soonest = at_ms if soonest is None else min(soonest, at_ms)
        return soonest

    def _had(self, run: Running, now_ms: int) -> int:
        return self._had_before(run.job.id) + self._rate(run) * (now_ms - run.start_ms)

    def _had_before(self, job_id: str) -> int:
        """GPU milli × ms that a job had in attempts that have ended."""
        return 0 if self._usage is None else self._usage.jobs.get(job_id, 0)

    def _rate(self, run: Running) -> int:
        """GPU milli × ms that a running job has in a millisecond."""
        return run.job.gpus * run.taken.milli


class Gavel(LeastAttainedService):
    """Least GPU time first, in three queues; an hour on a fast card counts more.

    The heterogeneity-aware least attained service of Narayanan, Santhanam, Kazhamiaka, Phanishayee and Zaharia,
    "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020, section 4.1. An hour on
    a card is weighted by the job's throughput there, relative to its mean over all cards of the cluster. So a user
    with slow cards comes first. Gavel solves a linear program for shares of time and rounds it; here jobs are started
    and evicted by level, one at a time. Combine it with `fastest-fit`. Without speeds by GPU model it is
    `least-attained-service`.
    """

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._speeds = (setting or Setting()).speeds
        self._worth: dict[
            str, tuple[int, float]
        ] = {}  # job -> GPU time of ended attempts seen, and its worth
        self._rates: dict[str, float] = {}  # job -> worth of a GPU hour on the cards that it had last

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """The waiting jobs by level; what a job has had does not change while it waits."""
        if self._usage is not cluster.usage():
            self._worth.clear()
            self._rates.clear()
        cards = [node.gpu_model for node in cluster.nodes for _ in range(node.gpus)]
        for run in cluster.running.values():
            if run.job.id not in self._rates or run.job.id in self._worth:
                self._had_before(run.job.id)  # what it had before counts at the rate it had then
                of = self._speeds.of(run.job.application)
                mean = sum(of.get(card.name, 1000) if card else 1000 for card in cards) / max(1, len(cards))
                self._rates[run.job.id] = self._speeds.on(run.job, run.slots, cluster.nodes) / mean
        return super().__call__(queue, cluster, now_ms)

    def _had_before(self, job_id: str) -> int:
        raw = super()._had_before(job_id)
        seen, worth = self._worth.get(job_id, (0, 0.0))
        if raw != seen:
            worth += (raw - seen) * self._rates.get(job_id, 1.0)
            self._worth[job_id] = raw, worth
        return round(worth)

    def _rate(self, run: Running) -> int:
        return round(super()._rate(run) * self._rates.get(run.job.id, 1.0))


def _level(had: int) -> int:
    return bisect_right(LEVELS_MILLI_MS, had)

"""Orders: which waiting job comes first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from math import log
from typing import NamedTuple

from sortedcontainers import SortedList

from berth.cluster import Account, Cluster, Key, Queue, Running, Usage
from berth.cluster.usage import HALF_LIFE_MS
from berth.knowledge import believed_run
from berth.knowledge.belief import CAUTIOUS_MS, OTHERS
from berth.model import FOREVER_MS, Job
from berth.policies.protocol import Setting
from berth.policies.schemes.preempt import Rank, Ranks
from berth.policies.sort_keys import LAST, ExpectedMs, as_queued, keyed, of_job, of_kind


@keyed(as_queued)
def fifo(queue: Queue) -> Iterator[Job]:
    """First come, first served; a job that is queued again goes to the end."""
    return iter(queue)


@of_kind
def _urgency(job: Job) -> int:
    return -job.priority


@keyed(_urgency)
def priority(queue: Queue) -> Iterator[Job]:
    """Higher priority first, then as queued. No running job is stopped."""
    return queue.by(_urgency)


@of_job
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


@of_job
def _requested(job: Job) -> int:
    return FOREVER_MS if job.time_limit_ms is None else job.time_limit_ms


@of_job
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


@of_job
def _deadline(job: Job) -> int:
    return FOREVER_MS if job.deadline_ms is None else job.submit_ms + job.deadline_ms


@keyed(_deadline)
def deadline_first(queue: Queue) -> Iterator[Job]:
    """Earliest deadline first; jobs without a deadline come last, ties as queued.

    Earliest deadline first: Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
    Environment", Journal of the ACM 20(1), 1973.
    """
    return queue.by(_deadline)


@of_kind
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


_NO_ACCOUNT = Account()
_LASTING_MS = HALF_LIFE_MS / log(2)
"""What GPU time that is held for ever comes to for each GPU, decayed."""


class _Turn(NamedTuple):
    """A user with waiting jobs, among those that hold as many GPUs."""

    base: float
    serial: float
    """Of the first of the waiting jobs."""
    user: str


class FairShare:
    """Users with the least past GPU time first, then those with the fewest GPUs now, then as queued.

    Use counts half as much after seven days: Kay and Lauder, "A Fair Share Scheduler", Communications of the ACM
    31(1), 1988, with the half-life of Slurm's multifactor priority. Running GPUs count up to now, so a user's turn
    passes on soon after one of their jobs starts.

    Every user's time decays by T = 2^(now / half-life). Times T, the time of a user who holds h GPUs is base +
    h·T·half-life / ln 2. The base changes only when the user starts or ends something. So users who hold the same
    number of GPUs keep their order, and a decision looks only at the first of each such group.
    """

    def __init__(self, setting: Setting | None = None) -> None:
        self._queue: Queue | None = None
        self._usage: Usage | None = None

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """The waiting jobs, those of the user with the least first."""
        if self._usage is not cluster.usage() or self._queue is not queue:
            self._start(queue, cluster.usage(), now_ms)
        lanes = queue.lanes(self._lane, as_queued)
        lasting = _LASTING_MS * 2.0 ** ((now_ms - self._origin_ms) / HALF_LIFE_MS)
        passed: set[str] = set()  # users with a job that was yielded and has not started
        behind: list[tuple[float, int, float, str]] = []  # and their next jobs, a heap
        while True:
            self._settle()
            first: tuple[float, int, float, str] | None = None
            for held_milli, turn in self._firsts.items():
                if passed and turn.user in passed:
                    others = (other for other in self._groups[held_milli] if other.user not in passed)
                    if (other := next(others, None)) is None:
                        continue
                    turn = other
                share = turn[0] + held_milli * lasting
                if first is None or (share, held_milli, turn[1]) < first:
                    first = share, held_milli, turn[1], turn[2]
            if behind and (first is None or behind[0] < first):
                first = heappop(behind)
            if first is None:
                return
            _, _, serial, user = first
            waiting = lanes.get(user, ())
            if user not in passed and (not waiting or waiting[0][1] != serial):
                self._touched.add(user)  # the first of its jobs has been withdrawn
                continue
            place = waiting.bisect_left((0, serial)) if waiting else 0
            if place < len(waiting) and waiting[place][1] == serial:
                job = waiting[place][2]
                yield job
                if user not in passed and job not in queue:
                    continue
            passed.add(user)
            waiting = lanes.get(user, ())
            place = waiting.bisect_right((0, serial, LAST)) if waiting else 0
            if place < len(waiting):
                account = self._account(user)
                base = self._base(account) + account.held_milli * lasting
                heappush(behind, (base, account.held_milli, waiting[place][1], user))

    def _start(self, queue: Queue, usage: Usage, now_ms: int) -> None:
        self._queue, self._usage, self._origin_ms = queue, usage, now_ms
        self._touched: set[str] = usage.watched()  # users that started, ended or submitted something
        self._groups: dict[int, SortedList] = {}  # GPU milli held -> turns
        self._firsts: dict[int, _Turn] = {}  # the first turn of each group
        self._turns: dict[str, tuple[int, _Turn]] = {}  # by user

    def _lane(self, job: Job) -> str:
        """The user of a job that comes."""
        self._touched.add(job.user)
        return job.user

    def _settle(self) -> None:
        """Put the turns of all changed users in their places."""
        if not self._touched:
            return
        assert self._queue is not None
        lanes = self._queue.lanes(self._lane, as_queued)
        while self._touched:
            user = self._touched.pop()
            if (before := self._turns.pop(user, None)) is not None:
                held_milli, turn = before
                group = self._groups[held_milli]
                group.remove(turn)
                if not group:
                    del self._groups[held_milli], self._firsts[held_milli]
                elif self._firsts[held_milli] is turn:
                    self._firsts[held_milli] = group[0]
            if waiting := lanes.get(user):
                account = self._account(user)
                turn = _Turn(self._base(account), waiting[0][1], user)
                held_milli = account.held_milli
                self._turns[user] = held_milli, turn
                self._groups.setdefault(held_milli, SortedList()).add(turn)
                if held_milli not in self._firsts or turn < self._firsts[held_milli]:
                    self._firsts[held_milli] = turn

    def _account(self, user: str) -> Account:
        return _NO_ACCOUNT if self._usage is None else self._usage.users.get(user, _NO_ACCOUNT)

    def _base(self, account: Account) -> float:
        grown: float = 2.0 ** ((account.as_of_ms - self._origin_ms) / HALF_LIFE_MS)
        # Written so that at this very time nothing but the past is left, to the last digit.
        return account.past * grown - account.held_milli * (_LASTING_MS * grown)

"""Fair share: the user who has used the least GPU time is next."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import log
from typing import NamedTuple

from sortedcontainers import SortedList

from berth.cluster import Account, Cluster, Queue, Usage
from berth.cluster.usage import HALF_LIFE_MS
from berth.model import Job
from berth.policies.protocol import Setting
from berth.policies.sort_keys import LAST, as_queued

_NOBODY = Account()
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
        return _NOBODY if self._usage is None else self._usage.users.get(user, _NOBODY)

    def _base(self, account: Account) -> float:
        grown: float = 2.0 ** ((account.as_of_ms - self._origin_ms) / HALF_LIFE_MS)
        # Written so that at this very time nothing but the past is left, to the last digit.
        return account.past * grown - account.held_milli * (_LASTING_MS * grown)

"""A scheduler that works in rounds: it decides at whole multiples of a period, not whenever something happens."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Cluster, Queue
from berth.errors import SettingError
from berth.model import WakeAt
from berth.policies.protocol import Decision, Policy, Resuming, draws


class Rounds:
    """Ask a policy at the next whole multiple of `period_ms` after something has happened.

    The simulators that published traces are validated against work like this: Helios's in rounds of 60 s, PAI's of 1 s.
    A live loop is never woken at the exact millisecond: the policy is asked at the first call at or after the round.
    """

    def __init__(self, policy: Policy, period_ms: int) -> None:
        if period_ms < 1:
            raise SettingError(f"a round lasts {period_ms} ms; expected 1 ms or more")
        self.policy = policy
        self.period_ms = period_ms
        self.draws = draws(policy)
        self.resumes = isinstance(policy, Resuming) and policy.resumes
        self._queue: Queue | None = None
        self._due_ms: int | None = None  # the round that jobs wait for
        self._emptied = 0  # the queue's count when they began to

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield the policy's decisions at a round, and between rounds a wish to be woken at the next one."""
        if queue is not self._queue or queue.emptied != self._emptied:  # the jobs that waited for it are gone
            self._queue, self._emptied, self._due_ms = queue, queue.emptied, None
        late_ms = now_ms % self.period_ms
        if late_ms == 0 or (self._due_ms is not None and self._due_ms <= now_ms):
            self._due_ms = None
            yield from self.policy(queue, cluster, now_ms)
        elif self._due_ms is None:
            self._due_ms = now_ms - late_ms + self.period_ms
            yield WakeAt(self._due_ms)

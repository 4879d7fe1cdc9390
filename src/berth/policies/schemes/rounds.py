"""A scheduler that works in rounds: it decides at whole multiples of a period, not whenever something happens."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Cluster, Queue
from berth.errors import SettingError
from berth.model import WakeAt
from berth.policies.protocol import Decision, Policy, draws

__all__ = ["Rounds"]


class Rounds:
    """Ask a policy at the next whole multiple of `period_ms` after something has happened.

    So work the simulators that published traces are validated against: Helios's in rounds of 60 s, PAI's of 1 s.
    """

    def __init__(self, policy: Policy, period_ms: int) -> None:
        if period_ms < 1:
            raise SettingError(f"a round lasts {period_ms} ms; expected 1 ms or more")
        self.policy = policy
        self.period_ms = period_ms
        self.draws = draws(policy)
        """Whether its decisions may depend on the seed."""

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield the policy's decisions at a round, and a wish to be woken at the next one between rounds."""
        late_ms = now_ms % self.period_ms
        if late_ms == 0:
            yield from self.policy(queue, cluster, now_ms)
            return
        round_ms = now_ms - late_ms + self.period_ms
        if cluster.memo.get(self) != round_ms:
            cluster.memo[self] = round_ms
            yield WakeAt(round_ms)

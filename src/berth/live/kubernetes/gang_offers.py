"""Gangs offered to the policy, one after the other; the first that finds room for a part keeps it for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from berth.cluster import Cluster, Queue
from berth.live.kubernetes.gangs import GangState
from berth.live.kubernetes.steps import Step, Tell
from berth.model import Job, Placement
from berth.policies import Decision, Policy

if TYPE_CHECKING:
    from berth.live.kubernetes.board import Board

__all__ = ["GangOffers"]

REST_MS = 500
"""The time after which the next are offered."""
Key = tuple[str, str]
"""Namespace and name of a gang."""
AT_ONCE = 16
"""Gangs that are offered to the policy in one decision."""


class GangOffers:
    """Offers the gangs of a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._rest_ms: int | None = None  # when those are offered that had no turn

    def next_ms(self) -> int | None:
        """When a gang gives back what it holds, or others have their turn; None: neither."""
        line = self._board.gangs.line()
        ends = [each.since_ms + self._hold_ms(each) for _, each in line if each.since_ms is not None]
        return min([*ends, *([self._rest_ms] if self._rest_ms is not None else [])], default=None)

    def steps(self, now_ms: int, *, first: bool) -> Iterator[Step]:
        """Offer the gangs to the policy, one after the other; the first that finds room for a part keeps it.

        Those that began before the first pod of the queue, or of which some run already, go `first`.
        """
        for _, state in self._board.gangs.line():
            yield from self._board.rounds.bind_whole(state)  # its PodGroup asks for fewer than it did
        line = self._board.gangs.line()
        holder = next((key for key, state in line if state.since_ms is not None), None)
        head = self._board.scheduler.queue.first()
        offered = 0
        if first:
            self._rest_ms = None
        for key, state in line:
            older = head is None or self._began_ms(state) <= head.submit_ms
            if ((bool(state.bound) and state.wanted > 0) or key == holder or older) != first:
                continue
            if key == holder and (
                now_ms - (state.since_ms or now_ms) >= self._hold_ms(state) or not state.is_there
            ):
                yield from self._take_back(key, state, now_ms)
                holder = None
                continue
            if key != holder:
                if offered >= AT_ONCE:
                    self._rest_ms = now_ms + REST_MS
                    continue
                offered += 1
                if not self._could_ever(state):
                    state.message = (
                        f"its {state.size} pods are more than all nodes could hold if nothing else ran"
                    )
                    self._let_others_first(key, line)
                    continue
            yield from self._offer(state, now_ms)
            if not state.placed:
                self._let_others_first(key, line)
                continue
            if holder in (None, key):
                holder, state.since_ms = key, state.since_ms or now_ms
                found = state.size - state.wanted
                state.message = f"{found} of {state.size} pods of the gang have room, which is held for them"
            else:
                self._give_back(state, now_ms)

    def _let_others_first(self, key: Key, line: list[tuple[Key, GangState]]) -> None:
        """A gang that got no place goes to the end, where there are more than are offered at once."""
        if len(line) > AT_ONCE and key in self._board.gangs.gangs:
            self._board.gangs.to_the_end(key)

    def _hold_ms(self, state: GangState) -> int:
        return self._board.settings.gang_ms if state.hold_ms is None else state.hold_ms

    def _could_ever(self, state: GangState) -> bool:
        """Whether the nodes of today could hold all that a gang lacks if nothing else ran, as far as a count of places
        for its pods tells: one that never fits holds nothing back from others."""
        cluster = self._board.cluster
        jobs = [self._board.job(self._board.entries[uid]) for uid in state.next]
        if not jobs or not jobs[0].gpus:
            return True
        least = min(jobs, key=lambda job: job.gpus * job.share.milli)
        places = int((cluster.capacity.milli.clip(0) // max(1, least.share.milli)).sum())
        return places >= max(1, state.wanted) * least.gpus

    def _began_ms(self, state: GangState) -> int:
        return min((self._board.entries[uid].submit_ms for uid in state.waiting), default=0)

    def _offer(self, state: GangState, now_ms: int) -> Iterator[Step]:
        """Offer what a gang lacks to the policy, and nothing else."""
        scheduler = self._board.scheduler
        offered = state.next
        for uid in offered:
            self._board.queue(self._board.entries[uid], now_ms)
        jobs = [job for uid in offered if (job := scheduler.queue.named(uid)) is not None]
        scheduler.policy = _OfThese(self._board.policy, jobs)
        try:
            yield from self._board.rounds.ask(now_ms)
        finally:
            scheduler.policy = self._board.policy
            for uid in offered:
                if scheduler.waits(uid):
                    scheduler.withdraw(uid, now_ms)

    def _take_back(self, key: tuple[str, str], state: GangState, now_ms: int) -> Iterator[Step]:
        seconds = (now_ms - (state.since_ms or now_ms)) // 1000
        found = state.size - state.wanted
        state.message = (
            f"{found} of {state.size} pods of the gang had room for {seconds} s; it gave them back"
        )
        told = [
            self._board.entries[uid] for uid in [*state.placed, *state.waiting] if uid in self._board.entries
        ]
        self._give_back(state, now_ms)
        self._board.gangs.to_the_end(key)
        for entry in told:
            yield Tell(entry.uid, entry.namespace, entry.name, "GangTimeout", state.message)

    def _give_back(self, state: GangState, now_ms: int) -> None:
        """Let go of the places of a gang that is not whole."""
        state.since_ms = None
        for uid in list(state.placed):
            self._board.bind_failed(uid, now_ms, again=True)


class _OfThese:
    """A policy that is shown these jobs of the queue alone."""

    def __init__(self, policy: Policy, jobs: list[Job]) -> None:
        self._policy, self._jobs = policy, jobs

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """What the policy decides on them; what has started leaves the part that it is shown."""
        part = Queue()
        for job in self._jobs:
            part.add(job)
        for decision in self._policy(part, cluster, now_ms):
            yield decision
            if isinstance(decision, Placement) and decision.job.id in cluster.running:
                part.remove(decision.job)

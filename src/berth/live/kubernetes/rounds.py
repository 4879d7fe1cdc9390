"""The policy's decisions on the pods of a board, as what is to be done on the cluster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from berth.cluster import Running
from berth.live.kubernetes.constraints import lacks
from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.gangs import GangState
from berth.live.kubernetes.steps import Bind, Step, Stop
from berth.model import NO_GPU, GpuSlot, Job, Placement
from berth.scheduler import Evicted, NeverFits, Refused

if TYPE_CHECKING:
    from berth.live.kubernetes.board import Board

__all__ = ["Rounds"]

log = logging.getLogger(__name__)

MOST_SWITCHED = 200
"""Pods that ask for a part of a card's memory and are looked at for another kind of card, in one decision."""


class _Found(NamedTuple):
    """A placement as it will be bound."""

    bind: Bind
    job: Job


@dataclass(slots=True)
class _Yield:
    """A pod that would give way."""

    slots: tuple[GpuSlot, ...]
    """What it has."""
    takers: set[str] = field(default_factory=set)
    """The pods that would have some of that."""

    def is_in_the_way_of(self, placement: Placement) -> bool:
        """Whether it has some of what a placement takes; of CPU and memory, whether both are on one node."""
        if any(slot.index == NO_GPU for slot in (*self.slots, *placement.slots)):
            return bool({slot.node for slot in self.slots} & {slot.node for slot in placement.slots})
        return not set(self.slots).isdisjoint(placement.slots)


class Rounds:
    """Asks the policy, and keeps what its decisions leave to be done later."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.again = False
        """Whether a placement was turned down, so that there is to be another decision at once."""
        self.owed: deque[Bind] = deque()
        """Of a gang that is whole, and not handed out yet."""
        self._leaving: dict[str, set[str]] = {}  # node -> pods that were stopped and are there still
        self._yields: dict[str, _Yield] = {}  # where only advice is given: the pods that would give way

    def left(self, uid: str) -> None:
        """A pod is gone from its node."""
        self._yields.pop(uid, None)
        for pods in self._leaving.values():
            pods.discard(uid)

    def without_place(self, uid: str) -> None:
        """A pod has no place any more: those that would have given way to it alone run on, from the next decision."""
        for each in self._yields.values():
            each.takers.discard(uid)

    def run_on(self, now_ms: int) -> None:
        """Return their places to those that no pod comes for."""
        for uid in [uid for uid, each in self._yields.items() if not each.takers]:
            del self._yields[uid]
            self._board.runs_on(uid, now_ms)

    def ask(self, now_ms: int) -> Iterator[Step]:
        """Ask the policy once."""
        board = self._board
        rejected: list[str] = []
        outcomes = board.scheduler.decide(now_ms)
        try:
            for outcome in outcomes:
                if isinstance(outcome, Placement):
                    found = self._placed(outcome)
                    if found is None:
                        rejected.append(outcome.job.id)
                    else:
                        yield from self._bind_or_hold(found, now_ms)
                elif isinstance(outcome, Evicted):
                    yield from self._evicted(outcome.run, now_ms)
                elif isinstance(outcome, NeverFits):
                    board.park(outcome.job.id, now_ms)
                elif isinstance(outcome, Refused):
                    log.warning("%s", outcome.why)
        finally:
            outcomes.close()  # type: ignore[attr-defined]
            for uid in rejected:
                again = board.entries[uid].state is State.WAITING
                board.scheduler.failed_to_start(uid, now_ms, again=again)
                self.again = self.again or again
            self.run_on(now_ms)

    def _placed(self, placement: Placement) -> _Found | None:
        """How a placement is bound; None where its node has no room for another pod or for what else it needs."""
        board = self._board
        job = placement.job
        entry = board.entries[job.id]
        assert entry.ask is not None
        name = board.cluster.nodes[placement.slots[0].node].name
        view = board.views[name]
        if view.pods >= view.pods_most:
            board.nodes.dirty(name)
            return None
        if lacks(entry.ask.constraint, view.traits):
            board.nodes.dirty(name)
            if not entry.tight:  # from now on its amounts count before a node is chosen
                board.eligibility.leave(entry.constraint)
                entry.tight = True
                board.join(entry)
            return None
        if not board.eligibility.allows(entry.constraint, name):
            return None  # one that was placed just now made it uneven; the labels are settled before the next
        entry.state, entry.node, entry.others = State.PLACED, name, entry.ask.constraint.others
        board.eligibility.leave(entry.constraint)
        board.nodes.assign(entry)
        after = frozenset(self._leaving.get(name, ()))
        for each in self._yields.values():
            if each.is_in_the_way_of(placement):
                each.takers.add(job.id)
        text = entry.placement = board.text_of(placement, name)
        return _Found(Bind(job.id, entry.namespace, entry.name, name, text, after), job)

    def _bind_or_hold(self, found: _Found, now_ms: int) -> Iterator[Step]:
        """Bind a pod; one of a gang when all of it have a place."""
        board = self._board
        entry = board.entries[found.bind.uid]
        assert entry.ask is not None
        if entry.ask.gang is None:
            yield found.bind
            return
        state = board.gangs.of(entry.ask.gang)
        assert state is not None
        state.waiting.pop(entry.uid, None)
        state.placed[entry.uid] = found.bind
        yield from self.bind_whole(state)

    def bind_whole(self, state: GangState) -> Iterator[Step]:
        """Bind the pods of a gang that have a place, if there are enough of them."""
        if state.is_whole:
            binds = [bind for bind in state.placed.values() if isinstance(bind, Bind)]
            state.since_ms, state.message = None, ""
            state.bound |= state.placed.keys()
            state.placed.clear()
            self.owed.extend(binds)
            yield from self.pay()

    def pay(self) -> Iterator[Step]:
        """What was decided as a whole, handed out one by one; the rest stays owed where the caller stops."""
        while self.owed:
            yield self.owed.popleft()

    def _evicted(self, run: Running, now_ms: int) -> Iterator[Step]:
        """A pod gives way. One that is bound is stopped, and its owner makes another; one that is not waits again. A
        gang gives way whole."""
        board = self._board
        members = {run.job.id: run.slots}
        if (state := board.gang(board.entries[run.job.id])) is not None:
            running = board.cluster.running
            members |= {
                each: running[each].slots for each in [*state.placed, *state.bound] if each in running
            }
            self.owed = deque(bind for bind in self.owed if bind.uid not in members)
        for member, slots in members.items():
            yield from self._gives_way(board.entries[member], slots, now_ms)

    def _gives_way(self, entry: Entry, slots: tuple[GpuSlot, ...], now_ms: int) -> Iterator[Step]:
        board = self._board
        uid = entry.uid
        state = board.gang(entry)
        board.nodes.unassign(entry)
        if entry.state is State.PLACED:
            if state is not None:
                state.placed.pop(uid, None)
                state.bound.discard(uid)
                state.waiting[uid] = None
                board.scheduler.withdraw(uid, now_ms)
            elif uid in board.cluster.running:
                board.scheduler.failed_to_start(uid, now_ms)
            board.waits_again(entry, now_ms)
            return
        if board.settings.advise:
            self._yields[uid] = _Yield(slots)
        else:
            self._leaving.setdefault(entry.node, set()).add(uid)
        board.scheduler.withdraw(uid, now_ms)
        if state is not None:
            state.bound.discard(uid)
        entry.state = State.DONE
        yield Stop(uid, entry.namespace, entry.name, "a pod of a higher priority takes its place")

    def switch_cards(self) -> bool:
        """Let pods that ask for a part of a card's memory go to another kind of card where theirs has no room; returns
        whether one does."""
        board = self._board
        switched = False
        if len(board.cards.sizes_mib) < 2:
            return switched
        for at, job in enumerate(board.scheduler.queue):
            if at >= MOST_SWITCHED:
                break
            entry = board.entries[job.id]
            if entry.ask is None or not entry.ask.mem_milli or len(board.cluster.fitting_nodes(job)):
                continue
            for other in board.cards.variants(job, entry.ask):
                if len(board.cluster.fitting_nodes(other)):
                    board.scheduler.replace(other)
                    switched = True
                    break
        return switched

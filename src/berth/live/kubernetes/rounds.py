"""The policy's decisions on pods, as what is to be done on the cluster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from berth.live.kubernetes.constraints import lacks
from berth.live.kubernetes.eligibility import Eligibility
from berth.live.kubernetes.entries import Entry, Settings, State
from berth.live.kubernetes.gangs import GangBook
from berth.live.kubernetes.node_book import NodeBook
from berth.live.kubernetes.placements import annotation_of
from berth.live.kubernetes.pod_queue import PodQueue
from berth.live.kubernetes.steps import Bind, Step, Stop
from berth.model import NO_GPU, GpuSlot, Job, Placement
from berth.scheduler import Evicted, NeverFits, Refused, Scheduler

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

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        entries: Mapping[str, Entry],
        nodes: NodeBook,
        eligibility: Eligibility,
        gangs: GangBook,
        queue: PodQueue,
    ) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._entries = entries
        self._nodes = nodes
        self._eligibility = eligibility
        self._gangs = gangs
        self._queue = queue
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

    def take_running_on(self) -> list[str]:
        """The pods that would have given way, and have their places again because no pod comes for them."""
        found = [uid for uid, each in self._yields.items() if not each.takers]
        for uid in found:
            del self._yields[uid]
        return found

    def waits_again(self, entry: Entry, now_ms: int) -> bool:
        """A pod that was placed waits as it did; False where it is refused by now."""
        self.without_place(entry.uid)
        return self._queue.waits_again(entry, now_ms)

    def decide(self, now_ms: int) -> Generator[Step, None, list[list[str]]]:
        """Ask the policy once. Returns the gangs that are to be placed pod by pod: see `place_one_by_one`."""
        rejected: list[str] = []
        unplaced: list[list[str]] = []  # gangs that are to be placed pod by pod
        together: list[Placement] = []  # of a gang whose pods are handed out one after the other
        outcomes = self._scheduler.decide(now_ms)
        try:
            for outcome in outcomes:
                if isinstance(outcome, Placement):
                    together.append(outcome)
                    if len(together) < self._start_with(outcome):
                        continue
                    found = [self._placed(each) for each in together]
                    binds = [each.bind for each in found if each is not None]
                    if len(binds) == len(together):
                        self._take_places(binds)
                        yield from self.pay()
                    else:
                        rejected += [each.job.id for each in together]
                        if len(together) > 1:
                            unplaced.append([each.job.id for each in together])
                    together = []
                elif isinstance(outcome, Evicted):
                    yield from self._gives_way(self._entries[outcome.run.job.id], outcome.run.slots, now_ms)
                elif isinstance(outcome, NeverFits):
                    self._queue.park(outcome.job.id, now_ms)
                elif isinstance(outcome, Refused):
                    log.warning("%s", outcome.why)
        finally:
            outcomes.close()  # type: ignore[attr-defined]
            alone = len(rejected) - sum(map(len, unplaced))
            for uid in rejected:
                waits = self._reject(self._entries[uid], now_ms)
                self.again = self.again or (waits and alone > 0)
        return unplaced

    def place_one_by_one(self, gangs: list[list[str]], now_ms: int) -> Iterator[Step]:
        """Place gangs, given by the ids of their pods, whose pods could not lie where the policy had put them."""
        for uids in gangs:
            self._take_places(self._placed_one_by_one([self._entries[uid] for uid in uids], now_ms))
        yield from self.pay()

    def _placed_one_by_one(self, entries: list[Entry], now_ms: int) -> list[Bind]:
        """How a gang is bound whose pods could not lie where the policy had put them together, as by a rule on how they
        are to be spread: each on the tightest node that may have it then. Nothing where one has none: the gang waits
        until something happens."""
        placed: list[tuple[Entry, Bind]] = []
        for entry in entries:
            bind = self._placed_anywhere(entry, now_ms) if entry.state is State.WAITING else None
            if bind is None:
                break
            placed.append((entry, bind))
        if len(placed) == len(entries):
            return [bind for _, bind in placed]
        for entry, _ in placed:
            self._reject(entry, now_ms)
        if (ask := entries[0].ask) is not None and ask.gang is not None:
            self._gangs.park(ask.gang)
        return []

    def _placed_anywhere(self, entry: Entry, now_ms: int) -> Bind | None:
        cluster, job = self._scheduler.cluster, self._queue.job(entry)
        rows = cluster.fitting_nodes(job)
        free_milli = np.maximum(cluster.free.milli[rows], 0).sum(axis=1)
        for row in rows[np.lexsort((cluster.rank[rows], free_milli))].tolist():
            if not self._eligibility.allows(entry.constraint, cluster.nodes[row].name):
                continue
            wish = Placement(job, cluster.slots_on(row, job, tightest=True), job.share)
            if self._scheduler.place(wish, now_ms):
                if (found := self._placed(wish)) is not None:
                    return found.bind
                self._scheduler.failed_to_start(entry.uid, now_ms, again=False)
        return None

    def _placed(self, placement: Placement) -> _Found | None:
        """How a placement is bound; None where its node has no room for another pod or for what else it needs."""
        job = placement.job
        entry = self._entries[job.id]
        assert entry.ask is not None
        name = self._scheduler.cluster.nodes[placement.slots[0].node].name
        view = self._nodes.views[name]
        if view.pods >= view.pods_most:
            self._nodes.dirty(name)
            return None
        if lacks(entry.ask.constraint, view.traits):
            self._nodes.dirty(name)
            if not entry.tight:  # from now on its amounts count before a node is chosen
                self._eligibility.leave(entry.constraint)
                entry.tight = True
                self._queue.join(entry)
            return None
        if not self._eligibility.allows(entry.constraint, name):
            return None  # one that was placed just now made it uneven; the labels are settled before the next
        entry.state, entry.node, entry.others = State.PLACED, name, entry.ask.constraint.others
        self._eligibility.leave(entry.constraint)
        self._nodes.assign(entry)
        after = frozenset(self._leaving.get(name, ()))
        for each in self._yields.values():
            if each.is_in_the_way_of(placement):
                each.takers.add(job.id)
        text = entry.placement = annotation_of(placement, view, self._settings.policy)
        return _Found(Bind(job.id, entry.namespace, entry.name, name, text, after), job)

    def _start_with(self, placement: Placement) -> int:
        """How many pods are handed out together with this one, itself counted."""
        state = self._queue.gang(self._entries[placement.job.id])
        return len(state.together) if state is not None and placement.job.id in state.together else 1

    def _take_places(self, binds: list[Bind]) -> None:
        """Pods have a place that are to be bound together."""
        for bind in binds:
            state = self._queue.gang(self._entries[bind.uid])
            if state is not None:
                state.placed(bind.uid)
        self.owed.extend(binds)

    def _reject(self, entry: Entry, now_ms: int) -> bool:
        """Give back the place of a pod that is not bound there, or not with the others of its gang; returns whether it
        waits again."""
        gang = entry.ask.gang if entry.ask is not None else None
        if entry.state is State.PLACED:
            self._nodes.unassign(entry)
            self.waits_again(entry, now_ms)
        again = entry.state is State.WAITING
        self._scheduler.failed_to_start(entry.uid, now_ms, again=again and gang is None)
        if gang is not None and again:
            self._gangs.waits(gang, entry.uid)
        return again

    def pay(self) -> Iterator[Step]:
        """What was decided as a whole, handed out one by one; the rest stays owed where the caller stops."""
        while self.owed:
            yield self.owed.popleft()

    def _gives_way(self, entry: Entry, slots: tuple[GpuSlot, ...], now_ms: int) -> Iterator[Step]:
        """A pod gives way. One that is bound is stopped, and its owner makes another; one that is not waits again. With
        one of a gang those give way that do not run without it."""
        uid = entry.uid
        state = self._queue.gang(entry)
        self._nodes.unassign(entry)
        self.owed = deque(bind for bind in self.owed if bind.uid != uid)
        if state is not None and self._scheduler.waits(uid):
            self._scheduler.withdraw(uid, now_ms)  # the gang is queued anew
        if entry.state is State.PLACED:
            if state is not None and entry.ask is not None and entry.ask.gang is not None:
                self._gangs.waits(entry.ask.gang, uid)
            self.waits_again(entry, now_ms)
            return
        if self._settings.advise:
            self._yields[uid] = _Yield(slots)
        else:
            self._leaving.setdefault(entry.node, set()).add(uid)
        if state is None:
            self._scheduler.withdraw(uid, now_ms)
        else:
            state.bound.discard(uid)
        entry.state = State.DONE
        yield Stop(uid, entry.namespace, entry.name, "a pod of a higher priority takes its place")

    def switch_cards(self) -> bool:
        """Let pods that ask for a part of a card's memory go to another kind of card where theirs has no room; returns
        whether one does."""
        switched = False
        if len(self._nodes.cards.sizes_mib) < 2:
            return switched
        for at, job in enumerate(self._scheduler.queue):
            if at >= MOST_SWITCHED:
                break
            entry = self._entries[job.id]
            if (
                job.tasks
                or entry.ask is None
                or not entry.ask.mem_milli
                or len(self._scheduler.cluster.fitting_nodes(job))
            ):
                continue
            for other in self._nodes.cards.variants(job, entry.ask):
                if len(self._scheduler.cluster.fitting_nodes(other)):
                    self._scheduler.replace(other)
                    switched = True
                    break
        return switched

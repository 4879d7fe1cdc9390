"""Pods that are bound already, found after a restart or in the watch: back in the place that their annotation names."""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import Enum, auto

from berth.errors import AskError, PlacementError, SchedulerError
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import Ask, ask_of
from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.foreign import Foreign
from berth.live.kubernetes.gangs import GangBook
from berth.live.kubernetes.jobs import job_of
from berth.live.kubernetes.node_book import NodeBook
from berth.live.kubernetes.placements import Placed, slots_of
from berth.model import NO_GPU, GpuSlot, Placement, Share
from berth.scheduler import Scheduler

log = logging.getLogger(__name__)


class Restored(Enum):
    """What came of a pod that is to be in its place again."""

    IN_PLACE = auto()
    TAKEN = auto()
    """Others have what it holds."""
    NOWHERE = auto()
    """Its annotation names no place that it could have."""


class Restorer:
    """Puts pods back in their places."""

    def __init__(
        self, scheduler: Scheduler, nodes: NodeBook, foreign: Foreign, gangs: GangBook, compat: str | None
    ) -> None:
        self._scheduler = scheduler
        self._nodes = nodes
        self._foreign = foreign
        self._gangs = gangs
        self._compat = compat

    def restore(self, pod: api.Pod, entry: Entry, placed: Placed, now_ms: int) -> Restored:
        """Put a pod that was bound by us back in its place, on a node that the scheduler knows."""
        cluster, cards = self._scheduler.cluster, self._nodes.cards
        view, row = self._nodes.views[entry.node], cluster.row_of(entry.node)
        try:
            ask = ask_of(pod, self._compat)
        except AskError:
            return Restored.NOWHERE
        slots = None if row is None else slots_of(placed, view, row)
        if slots is None or row is None or len(placed.gpus) != ask.gpus:
            return Restored.NOWHERE
        card_mib = view.model.mem_mib if view.model else 0
        share = _share(ask, placed, card_mib)
        job = job_of(entry.uid, entry.namespace, entry.submit_ms, replace(ask, models=()), (), cards)
        mem_mib = ask.mem_mib if placed.best_effort else share.mem_mib
        job = replace(job, models=(), share=Share(max(ask.milli, share.milli), mem_mib))
        if ask.gang is not None:
            job = replace(job, gang="/".join(ask.gang.key), min_tasks=max(1, ask.gang.size))
        placement = Placement(job, slots or (GpuSlot(row, NO_GPU),), share, placed.shared, placed.best_effort)
        if not self._place(placement, now_ms):
            is_taken = any(_is_short(cluster.free_on(slot), share) for slot in slots)
            return Restored.TAKEN if is_taken else Restored.NOWHERE
        entry.ask, entry.state, entry.others = ask, State.BOUND, ask.constraint.others
        self._nodes.assign(entry)
        self._scheduler.started(entry.uid)
        if ask.gang is not None:
            try:
                self._gangs.join(ask.gang, entry.uid, bound=True)
            except AskError as error:
                log.warning("%s/%s: %s", entry.namespace, entry.name, error)
        return Restored.IN_PLACE

    def _place(self, placement: Placement, now_ms: int) -> bool:
        """Have a job placed as said and nowhere else, whether anything new may start there or not."""
        scheduler, row = self._scheduler, placement.slots[0].node
        up, name = bool(scheduler.cluster.up[row]), scheduler.cluster.nodes[row].name
        gpus = self._nodes.views[name].gpus
        closed = [slot for slot in placement.slots if slot.index != NO_GPU and not gpus[slot.index].is_open]
        if not up:
            scheduler.node_back(name)
        for slot in closed:
            scheduler.strangers(slot, 0, 0)
        try:
            return scheduler.place(placement, now_ms)
        except (SchedulerError, PlacementError):
            return False
        finally:
            if closed:
                self._foreign.note(name)
            if not up:
                scheduler.node_drained(name)


def _share(ask: Ask, placed: Placed, card_mib: int) -> Share:
    """What a placement gives of each GPU, the largest of its parts. An annotation may have been edited: a promised part
    counts as no less than the pod asks for."""
    if not placed.gpus:
        return Share(ask.milli, ask.mem_mib)
    milli = max(gpu.milli for gpu in placed.gpus)
    mem_mib = max(gpu.mem_mib for gpu in placed.gpus)
    if not (placed.shared or placed.best_effort):
        asked_mib = ask.mem_mib or card_mib * ask.mem_milli // 1000
        milli, mem_mib = max(milli, ask.milli), max(mem_mib, asked_mib)
    if ask.milli == 1000 and not ask.mem_mib and mem_mib == card_mib:
        mem_mib = 0  # the whole card, as it was asked for
    return Share(milli, min(mem_mib, card_mib) if card_mib else mem_mib)


def _is_short(free: Share, wanted: Share) -> bool:
    return free.milli < wanted.milli or free.mem_mib < wanted.mem_mib

"""Pods that are bound already, found after a restart or in the watch: back in the place that their annotation names."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from berth.errors import AskError, PlacementError, SchedulerError
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import Ask, ask_of
from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.jobs import job_of
from berth.live.kubernetes.placements import Placed, slots_of
from berth.model import NO_GPU, GpuSlot, Placement, Share

if TYPE_CHECKING:
    from berth.live.kubernetes.board import Board

__all__ = ["restore"]

log = logging.getLogger(__name__)


def restore(board: Board, pod: api.Pod, entry: Entry, placed: Placed, now_ms: int) -> bool:
    """Put a pod that was bound by us back in its place; False where it cannot be there."""
    cluster = board.cluster
    if cluster.row_of(entry.node) is None:
        board.nodes.sync(now_ms)
    view, row = board.views[entry.node], cluster.row_of(entry.node)
    try:
        ask = ask_of(pod, board.settings.compat)
    except AskError:
        return False
    slots = None if row is None else slots_of(placed, view, row)
    if slots is None or row is None or len(placed.gpus) != ask.gpus:
        return False
    card_mib = view.model.mem_mib if view.model else 0
    share = _share(ask, placed, card_mib)
    job = job_of(entry.uid, entry.namespace, entry.submit_ms, replace(ask, models=()), (), board.cards)
    mem_mib = ask.mem_mib if placed.best_effort else share.mem_mib
    job = replace(job, models=(), share=Share(max(ask.milli, share.milli), mem_mib))
    if ask.gang is not None:
        job = replace(job, gang="/".join(ask.gang.key), min_tasks=max(1, ask.gang.size))
    placement = Placement(job, slots or (GpuSlot(row, NO_GPU),), share, placed.shared, placed.best_effort)
    if not _place(board, placement, now_ms):
        if any(_is_short(cluster.free_on(slot), share) for slot in slots):
            board.overcommitted.add(entry.uid)
        return False
    entry.ask, entry.state, entry.others = ask, State.BOUND, ask.constraint.others
    board.nodes.assign(entry)
    board.scheduler.started(entry.uid)
    if ask.gang is not None:
        try:
            board.gangs.join(ask.gang, entry.uid, bound=True)
        except AskError as error:
            log.warning("%s/%s: %s", entry.namespace, entry.name, error)
    return True


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


def _place(board: Board, placement: Placement, now_ms: int) -> bool:
    """Have a job placed as said and nowhere else, whether anything new may start there or not."""
    scheduler, row = board.scheduler, placement.slots[0].node
    up, name = bool(board.cluster.up[row]), board.cluster.nodes[row].name
    gpus = board.views[name].gpus
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
            board.foreign.note(name)
        if not up:
            scheduler.node_drained(name)


def _is_short(free: Share, wanted: Share) -> bool:
    return free.milli < wanted.milli or free.mem_mib < wanted.mem_mib

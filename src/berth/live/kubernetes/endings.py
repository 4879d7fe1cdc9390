"""Pods that have ended: their place is free, and of one that ran out of GPU memory the owner's next one gets more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from berth.errors import AskError
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import ask_of, created_ms, pod_group
from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.jobs import job_of
from berth.live.kubernetes.memories import Measured, killed_by_kernel, measured_of
from berth.live.kubernetes.steps import Tell
from berth.model import RecordState

if TYPE_CHECKING:
    from berth.live.kubernetes.board import Board

__all__ = ["note_end"]


def note_end(board: Board, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
    """A pod has ended. What its node's agent measured may be written into it later."""
    meta, completed = pod.metadata, pod.status.phase == "Succeeded"
    ours = pod.spec.scheduler_name == board.settings.scheduler_name
    measured = measured_of(meta.annotations) if ours else None
    ran_out = not completed and measured is not None and measured.refused > 0
    how = told = RecordState.COMPLETED if completed else RecordState.FAILED
    if ran_out:
        how = RecordState.OUT_OF_MEMORY
    if (
        entry is None
        and completed
        and ours
        and pod.spec.node_name
        and (names.GANG in meta.annotations or pod_group(pod) is not None)
    ):
        _counts_as_done(board, pod)  # after a restart, one of a gang that others of run or wait
    if entry is not None:
        entry.pod = None
    just_ended = entry is not None and entry.state is not State.DONE
    if entry is not None and entry.state is not State.DONE:
        told = how
        held_mib = max(measured.peak_mib, measured.needed_mib) if measured is not None else 0
        board.release(entry, now_ms, how=told, held_mib=held_mib)
        entry.state = State.DONE
    if completed or not ours or meta.uid in board.learned:
        return
    if ran_out and measured is not None:
        board.learned.add(meta.uid)
        _ran_out(board, pod, entry, measured, now_ms, tell=told is not RecordState.OUT_OF_MEMORY)
    elif just_ended and killed_by_kernel(pod):
        why = "a container exceeded its own limit of the node's memory: raise resources.limits.memory"
        board.tells.append(Tell(meta.uid, meta.namespace, meta.name, "OutOfMemory", why, False))


def _counts_as_done(board: Board, pod: api.Pod) -> None:
    meta = pod.metadata
    with contextlib.suppress(AskError):
        ask = ask_of(pod, board.settings.compat)
        if ask.gang is not None:
            board.gangs.join(ask.gang, meta.uid).done(meta.uid)
            board.entries[meta.uid] = Entry(
                meta.uid, meta.namespace, meta.name, ask, State.DONE, pod.spec.node_name
            )


def _ran_out(
    board: Board, pod: api.Pod, entry: Entry | None, measured: Measured, now_ms: int, *, tell: bool
) -> None:
    """A pod ran out of GPU memory: the next of its owner gets more. `tell`: the knowledge was told something else,
    or nothing, when the pod ended."""
    meta = pod.metadata
    ask = entry.ask if entry is not None else None
    if ask is None:
        with contextlib.suppress(AskError):
            ask = ask_of(pod, board.settings.compat)
    held_mib = max(measured.peak_mib, measured.needed_mib)
    said = f"it ran out of GPU memory: {measured.refused} allocations were refused at {measured.peak_mib} MiB"
    if ask is not None and ask.owner:
        if tell and board.knowledge.learns:
            job = job_of(meta.uid, meta.namespace, created_ms(meta), ask, (), board.cards)
            board.knowledge.ran_out_of_memory(job, held_mib)
        owner = (meta.namespace, ask.owner)
        need = board.memories.ran_out(owner, measured)
        gets = "whole GPUs" if need.alone else f"{need.mib} MiB of each GPU"
        said += f"; the next pod of {ask.owner} gets {gets}"
        for other in [each for each in board.entries.values() if each.state is State.WAITING]:
            mine = other.ask is not None and (other.namespace, other.ask.owner) == owner
            if mine and board.scheduler.waits(other.uid):
                board.job_changed(other)
    if entry is not None:  # else it ended before this scheduler began, and another has said so
        board.tells.append(Tell(meta.uid, meta.namespace, meta.name, "OutOfMemory", said, False))

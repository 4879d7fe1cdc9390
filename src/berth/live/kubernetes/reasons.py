"""Why a pod waits, in numbers: `0/12 nodes: 5 no model A100, 7 GPU memory short by 2048 MiB`."""

from __future__ import annotations

from typing import NamedTuple

from berth.live.kubernetes.asks import Ask
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.constraints import Constraint, bare, why_not
from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.nodes import View
from berth.model import Job

MOST_GROUPS = 6
"""Groups of nodes in one message; an API server takes 1 KiB of an event's message."""


class Reason(NamedTuple):
    """Why a pod waits."""

    message: str
    kind: str
    """What the message says without its numbers: one that says the same again need not be said again."""


class Reasons:
    """Explains waiting pods as of one moment; pods that ask alike are looked at once."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[object, Reason] = {}
        self._first = board.scheduler.queue.first()

    def of(self, entry: Entry) -> Reason:
        """Why this pod waits."""
        if entry.state is State.REFUSED or entry.ask is None:
            return Reason(entry.message, entry.message)
        if self._board.queue.retries(entry.uid):
            return Reason(entry.message, "bind")
        ask = entry.ask
        if ask.gang is not None and (state := self._board.gangs.of(ask.gang)) is not None:
            if not state.is_known:
                return Reason(f"{ask.gang.title} is not there", "group")
            there = state.size - state.wanted + len(state.waiting)
            if there < state.size:
                return Reason(
                    f"{ask.gang.title}: {there} of {state.size} pods are there; it starts when all are",
                    "gang",
                )
        job = self._board.queue.job(entry)
        # Pods of one kind differ in their names alone.
        key = (ask.constraint, entry.constraint, job.gpus, job.share, job.cpu_milli, job.mem_mib, job.models)
        reason = self._known.get(key)
        if reason is None:
            reason = self._known[key] = self._reason(ask, job, entry.constraint)
        if ask.gang is not None and state is not None and state.parked:
            never = f"its {state.size} pods are more than all nodes could hold if nothing else ran"
            return Reason(f"{ask.gang.title}: {never}; {reason.message}", f"gang, {reason.kind}")
        return reason

    def _reason(self, ask: Ask, job: Job, waits_with: Constraint) -> Reason:
        counts: dict[str, int] = {}
        shortest: dict[str, tuple[int, str]] = {}
        room = 0
        for name, view in self._board.views.items():
            row = self._board.cluster.row_of(name)
            kind, short, unit = lacking(self._board, ask, job, view, row, waits_with)
            if not kind:
                room += 1
                continue
            counts[kind] = counts.get(kind, 0) + 1
            if unit and (kind not in shortest or short < shortest[kind][0]):
                shortest[kind] = (short, unit)
        nodes = len(self._board.views)
        if room:
            ahead = "" if self._first is None or self._first.id == job.id else "; it waits its turn"
            return Reason(f"{room}/{nodes} nodes have room{ahead}", "turn")
        groups = sorted(counts, key=lambda kind: (-counts[kind], kind))
        said = [
            f"{counts[kind]} {kind}"
            + (f" short by {shortest[kind][0]}{shortest[kind][1]}" if kind in shortest else "")
            for kind in groups[:MOST_GROUPS]
        ]
        if len(groups) > MOST_GROUPS:
            said.append(f"{sum(counts[kind] for kind in groups[MOST_GROUPS:])} for other reasons")
        return Reason(f"0/{nodes} nodes: {', '.join(said) or 'there are none'}", "|".join(sorted(groups)))


class Lacking(NamedTuple):
    """What a node lacks for a pod: nothing where `kind` is empty."""

    kind: str = ""
    short: int = 0
    """By how much at least."""
    unit: str = ""

    @property
    def message(self) -> str:
        """In words."""
        return f"{self.kind} short by {self.short}{self.unit}" if self.unit else self.kind


def lacking(
    board: Board, ask: Ask, job: Job, view: View, row: int | None, waits_with: Constraint | None = None
) -> Lacking:
    """What a node lacks for a pod, which waits with this constraint; None: with that of its ask without amounts."""
    if row is None:
        return Lacking("not known yet")
    if why := why_not(bare(ask.constraint), view.traits):
        return Lacking(why)
    if board.eligibility.is_uneven(waits_with or bare(ask.constraint), view.name):
        keys = dict.fromkeys(rule.key for rule in ask.constraint.spread)
        return Lacking(f"topology spread over {', '.join(keys)}")
    if view.pods >= view.pods_most:
        return Lacking(f"full with {view.pods} pods")
    if job.gpus and not view.gpus:
        return Lacking("GPUs for claims alone" if view.claim_gpus else "no GPU")
    if why := why_not(ask.constraint, view.traits):
        return Lacking(why)
    if job.gpus and job.models and (view.model is None or view.model.name not in job.models):
        return Lacking(f"no model {' or '.join(ask.models or job.models)}")
    if job.gpus > len(view.gpus):
        return Lacking(f"fewer than {job.gpus} GPUs")
    free = board.cluster.free
    cpu, mem = int(free.cpu_milli[row]), int(free.mem_mib[row])
    if cpu < job.cpu_milli:
        return Lacking("CPU", job.cpu_milli - cpu, "m")
    if mem < job.mem_mib:
        return Lacking("memory", job.mem_mib - mem, " MiB")
    if not job.gpus:
        return Lacking()
    gpus = len(view.gpus)
    pairs = list(zip(free.milli[row, :gpus].tolist(), free.gpu_mem_mib[row, :gpus].tolist(), strict=True))
    if sum(milli >= job.share.milli and mem >= job.share.mem_mib for milli, mem in pairs) >= job.gpus:
        return Lacking()
    computing = sorted((mem for milli, mem in pairs if milli >= job.share.milli), reverse=True)
    if len(computing) < job.gpus:
        nth = sorted((milli for milli, _ in pairs), reverse=True)[job.gpus - 1]
        return Lacking("GPU compute", job.share.milli - max(0, nth), " milli")
    return Lacking("GPU memory", job.share.mem_mib - max(0, computing[job.gpus - 1]), " MiB")

"""What is on the cluster now, read once: nodes with their GPUs, who has which part, who waits and why."""

from __future__ import annotations

import time
from dataclasses import dataclass

from berth.errors import ApiError
from berth.live.kubernetes import objects
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.entries import Entry, Settings, waiting
from berth.live.kubernetes.reasons import Reasons
from berth.model import GpuSlot

__all__ = ["GpuUse", "Snapshot", "Waits", "look"]


@dataclass(frozen=True)
class GpuUse:
    """One GPU: what is given away of it, and to whom."""

    node: str
    index: int
    model: str
    milli: int
    mem_mib: int
    card_mib: int
    holders: tuple[str, ...]
    """Namespace and name of each pod of ours on it."""
    foreign_milli: int
    for_claims: bool = False
    """Whether it is given through claims alone; what is given away is theirs."""
    shares: tuple[tuple[int, int], ...] = ()
    """Milli and MiB that each holder takes."""


@dataclass(frozen=True)
class Waits:
    """A pod that waits."""

    name: str
    since_s: float
    why: str
    gpus: int = 0
    milli: int = 1000
    mem_mib: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment."""

    nodes: int
    gpus: tuple[GpuUse, ...]
    waits: tuple[Waits, ...]
    running: int


async def look(api: Api, settings: Settings, *, most_waits: int = 1000) -> Snapshot:
    """List all once, and say what is there. Raises ApiError."""
    now_ms = time.time_ns() // 1_000_000
    board = Board(settings)
    async for _, nodes in api.list("/api/v1/nodes", objects.Node):
        for node in nodes:
            board.nodes.changed(node)
    try:
        async for _, slices in api.list("/apis/resource.k8s.io/v1/resourceslices", objects.ResourceSlice):
            for each in slices:
                board.nodes.slice_changed(each)
        async for _, claims in api.list("/apis/resource.k8s.io/v1/resourceclaims", objects.Claim):
            for claim in claims:
                board.claim_changed(claim)
    except ApiError as error:
        if error.status != 404:
            raise
    board.nodes.sync(now_ms)
    async for _, pods in api.list("/api/v1/pods", objects.Pod):
        for pod in pods:
            board.pod_changed(pod, now_ms)
    board.begin(now_ms)
    board.nodes.sync(now_ms)
    return snapshot(board, now_ms, most_waits)


def snapshot(board: Board, now_ms: int, most_waits: int) -> Snapshot:
    """What a board knows."""
    cluster = board.cluster
    gpus = []
    for name, view in sorted(board.views.items()):
        row = cluster.row_of(name)
        if row is None:
            continue
        card_mib = view.model.mem_mib if view.model else 0
        for at, gpu in enumerate(view.gpus):
            slot = GpuSlot(row, at)
            free, others = cluster.free_on(slot), cluster.strangers_on(slot)
            runs = tuple(cluster.jobs_on(slot))
            holders = tuple(_named(board.entries[run.job.id]) for run in runs)
            shares = tuple((run.share.milli, run.share.mem_mib or card_mib) for run in runs)
            used_mib = card_mib - free.mem_mib if card_mib else 0
            gpus.append(
                GpuUse(
                    name, gpu.index, view.model.name if view.model else "", 1000 - free.milli, used_mib, card_mib,
                    holders, others.milli, shares=shares,
                )
            )  # fmt: skip
        for part, model in view.claim_gpus:
            share = board.foreign.claimed(name, part)
            gpus.append(
                GpuUse(
                    name, part.index, model.name, min(1000, share.milli), min(model.mem_mib, share.mem_mib),
                    model.mem_mib, (), min(1000, share.milli), True,
                )
            )  # fmt: skip
    reasons = Reasons(board)
    waits = tuple(
        Waits(
            _named(entry),
            max(0.0, (now_ms - entry.submit_ms) / 1000),
            reasons.of(entry).message,
            *((entry.ask.gpus, entry.ask.milli, entry.ask.mem_mib) if entry.ask else (0, 1000, 0)),
        )
        for entry in waiting(board.entries.values())[:most_waits]
    )
    return Snapshot(len(board.views), tuple(gpus), waits, len(cluster.running))


def _named(entry: Entry) -> str:
    return f"{entry.namespace}/{entry.name}"

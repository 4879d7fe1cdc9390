"""What is on the cluster now, read once: nodes with their GPUs, which pod has which part, which wait and why."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from berth.errors import ApiError, AskError
from berth.live.kubernetes import names, objects
from berth.live.kubernetes.asks import ask_of, created_ms, moment_ms
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.entries import Entry, Settings, is_held, waiting
from berth.live.kubernetes.reasons import Reasons
from berth.model import GpuSlot


@dataclass(frozen=True)
class GpuUse:
    """One GPU: what is given away of it, and to which pods."""

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
    drained: str = ""
    """Why an operator's wish lets nothing start on it; empty if nothing does."""
    ailing: str = ""
    """What is wrong with it or its node; empty if nothing is."""


@dataclass(frozen=True)
class Waits:
    """A pod that waits."""

    name: str
    since_s: float
    why: str
    gpus: int = 0
    milli: int = 1000
    mem_mib: int = 0
    held: bool = False
    """Whether it waits until it is released."""
    priority: int = 0


@dataclass(frozen=True)
class Runs:
    """A pod of ours that has a node."""

    name: str
    submit_ms: int
    start_ms: int | None
    """When its kubelet took it over; None before that."""
    gpus: int
    """0 of a pod that runs on the CPU alone."""
    node: str
    priority: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment."""

    nodes: int
    gpus: tuple[GpuUse, ...]
    waits: tuple[Waits, ...]
    running: int
    runs: tuple[Runs, ...] = ()


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
    board.sync_nodes(now_ms)
    held: list[Waits] = []
    async for _, pods in api.list("/api/v1/pods", objects.Pod):
        for pod in pods:
            board.pod_changed(pod, now_ms)
            if _waits_held(pod, settings) and len(held) < most_waits:
                held.append(_held(pod, settings, now_ms))
    board.begin(now_ms)
    board.sync_nodes(now_ms)
    seen = snapshot(board, now_ms, most_waits)
    return replace(seen, waits=(*seen.waits, *held))


def snapshot(board: Board, now_ms: int, most_waits: int) -> Snapshot:
    """What a board knows: of pods that are held, nothing."""
    cluster = board.cluster
    gpus = []
    for name, view in sorted(board.views.items()):
        row = cluster.row_of(name)
        if row is None:
            continue
        card_mib = view.model.mem_mib if view.model else 0
        cordoned = "its node is cordoned" if view.traits.unschedulable else ""
        not_ready = "" if view.traits.ready else "its node is not ready"
        for at, gpu in enumerate(view.gpus):
            slot = GpuSlot(row, at)
            free, others = cluster.free_on(slot), cluster.strangers_on(slot)
            runs = tuple(cluster.jobs_on(slot))
            holders = tuple(_named(board.entries[run.job.id]) for run in runs)
            shares = tuple((run.share.milli, run.share.mem_mib or card_mib) for run in runs)
            milli, foreign = 1000 - free.milli, others.milli
            used_mib = card_mib - free.mem_mib if card_mib else 0
            if any(run.share.milli == 1000 and not run.share.mem_mib for run in runs):
                used_mib = card_mib  # a whole GPU is asked for without a number of MiB
            if not gpu.is_open:  # counted as used, by no pod
                milli, used_mib, foreign = sum(s[0] for s in shares), sum(s[1] for s in shares), 0
            gpus.append(
                GpuUse(
                    name,
                    gpu.index,
                    view.model.name if view.model else "",
                    milli,
                    used_mib,
                    card_mib,
                    holders,
                    foreign,
                    shares=shares,
                    drained="it is drained" if gpu.drained else cordoned,
                    ailing=not_ready if gpu.healthy else "it is lost, or had an error (XID)",
                )
            )
        for part, model in view.claim_gpus:
            share = board.foreign.claimed(name, part)
            gpus.append(
                GpuUse(
                    name,
                    part.index,
                    model.name,
                    min(1000, share.milli),
                    min(model.mem_mib, share.mem_mib),
                    model.mem_mib,
                    (),
                    min(1000, share.milli),
                    True,
                    drained=cordoned,
                    ailing=not_ready,
                )
            )
    reasons = Reasons(board)
    waits = tuple(
        Waits(
            _named(entry),
            max(0.0, (now_ms - entry.submit_ms) / 1000),
            reasons.of(entry).message,
            *((entry.ask.gpus, entry.ask.milli, entry.ask.mem_mib) if entry.ask else (0, 1000, 0)),
            priority=entry.priority,
        )
        for entry in waiting(board.entries.values())[:most_waits]
    )
    running = (board.entries[uid] for uid in cluster.running)
    return Snapshot(len(board.views), tuple(gpus), waits, len(cluster.running), tuple(map(_runs, running)))


def _runs(entry: Entry) -> Runs:
    began = entry.pod.status.start_time if entry.pod is not None else None
    return Runs(
        _named(entry),
        entry.submit_ms,
        moment_ms(began),
        entry.ask.gpus if entry.ask else 0,
        entry.node,
        entry.priority,
    )


def _waits_held(pod: objects.Pod, settings: Settings) -> bool:
    return (
        pod.spec.scheduler_name == settings.scheduler_name
        and not pod.spec.node_name
        and pod.metadata.deletion_timestamp is None
        and is_held(pod)
    )


def _held(pod: objects.Pod, settings: Settings, now_ms: int) -> Waits:
    meta = pod.metadata
    gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
    why = f"held by scheduling gate {gates}" if gates else f"held by annotation {names.HOLD}"
    try:
        ask = ask_of(pod, settings.compat)
        parts = ask.gpus, ask.milli, ask.mem_mib
    except AskError as error:
        why, parts = f"{why}; {error}", (0, 1000, 0)
    since_s = max(0.0, (now_ms - created_ms(meta)) / 1000)
    return Waits(f"{meta.namespace}/{meta.name}", since_s, why, *parts, held=True, priority=pod.spec.priority)


def _named(entry: Entry) -> str:
    return f"{entry.namespace}/{entry.name}"

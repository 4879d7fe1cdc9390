"""What is on the cluster now, read once: nodes with their GPUs, which pod has which part, which wait and why."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from berth.errors import ApiError
from berth.live.driver.driver import Driver
from berth.live.driver.snapshot import MoreCards
from berth.live.driver.wait_reasons import WaitKind
from berth.live.kubernetes import names, objects
from berth.live.kubernetes.asks import moment_ms
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.listening import pod_groups
from berth.live.kubernetes.more_cards import more_cards
from berth.live.kubernetes.pod_site import Entry, PodSite, Settings, State
from berth.live.kubernetes.steering import FORECAST_S, driving, waits_of
from berth.model import GpuSlot, Job
from berth.scheduler import StartInterval


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
    starts: StartInterval | None = None
    """When it is believed to start; None: unknown."""


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
    more_cards: tuple[MoreCards, ...] = ()


async def look(api: Api, settings: Settings, *, most_waits: int = 1000) -> Snapshot:
    """List all once, and say what is there. Raises ApiError."""
    now_ms = time.time_ns() // 1_000_000
    site = PodSite(settings, lambda step: None)
    async for _, nodes in api.list("/api/v1/nodes", objects.Node):
        for node in nodes:
            site.node_changed(node, now_ms)
    try:
        async for _, slices in api.list("/apis/resource.k8s.io/v1/resourceslices", objects.ResourceSlice):
            for each in slices:
                site.table.slice_changed(each)
        async for _, claims in api.list("/apis/resource.k8s.io/v1/resourceclaims", objects.Claim):
            for claim in claims:
                site.table.claim_changed(claim)
    except ApiError as error:
        if error.status != 404:
            raise
    for group in (names.PLUGINS_GROUP, names.OWN_GROUP):
        if (path := await pod_groups(api, group)) is None:
            continue
        try:
            async for _, groups in api.list(path, objects.PodGroup):
                for found in groups:
                    site.pod_group_changed(group, found, now_ms)
        except ApiError as error:
            if error.status != 403:  # who may not list them sees all else
                raise
    site.refresh(now_ms)
    async for _, pods in api.list("/api/v1/pods", objects.Pod):
        for pod in pods:
            site.pod_changed(pod, now_ms)
    return snapshot(site, now_ms, most_waits)


def snapshot(site: PodSite, now_ms: int, most_waits: int) -> Snapshot:
    """What a site knows of its cluster."""
    driver = Driver(site, driving(site.settings))
    site.refresh(now_ms)
    driver.step(now_ms, for_real=False)
    cluster, gpus = driver.scheduler.cluster, list[GpuUse]()
    for name, view in sorted(site.table.views.items()):
        row = cluster.row_of(name)
        if row is None:
            continue
        card_mib = view.model.mem_mib if view.model else 0
        cordoned = "its node is cordoned" if view.cordoned else ""
        not_ready = "" if view.ready else "its node is not ready"
        for at, gpu in enumerate(view.gpus):
            slot = GpuSlot(row, at)
            free, others = cluster.free_on(slot), cluster.strangers_on(slot)
            runs = tuple(cluster.jobs_on(slot))
            holders = tuple(site.entries[run.job.id].title for run in runs)
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
            share = site.table.claimed(name, part)
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
    entries = sorted(site.waits(), key=lambda entry: entry.order)[:most_waits]
    end_s = time.monotonic() + FORECAST_S
    driver.forecast(now_ms, out_of_time=lambda: time.monotonic() > end_s)
    reasons = waits_of(site, driver, entries)
    waits = tuple(
        Waits(
            entry.title,
            max(0.0, (now_ms - entry.submit_ms) / 1000),
            reasons[entry.uid],
            *((entry.ask.gpus, entry.ask.milli, entry.ask.mem_mib) if entry.ask else (0, 1000, 0)),
            held=entry.state is State.HELD,
            priority=entry.ask.priority if entry.ask else 0,
            starts=driver.starts.get(entry.uid),
        )
        for entry in entries
    )
    running = [_runs(entry) for entry in site.entries.values() if entry.state in (State.LIFTED, State.RUNS)]
    more = more_cards(cluster, _for_room(driver, entries))
    return Snapshot(len(site.table.views), tuple(gpus), waits, len(running), tuple(running), more)


def _for_room(driver: Driver, entries: Iterable[Entry]) -> Collection[Job]:
    """The jobs and gangs of these pods that start when there is room for them."""
    reasons = driver.reasons(each.uid for each in entries if each.state is State.WAITING)
    found = (driver.scheduler.waiting(uid) for uid, reason in reasons.items() if reason.kind is WaitKind.ROOM)
    return {job.id: job for job in found if job is not None}.values()


def _runs(entry: Entry) -> Runs:
    began = entry.pod.status.start_time if entry.pod is not None else None
    ask = entry.ask
    return Runs(
        entry.title,
        entry.submit_ms,
        moment_ms(began),
        ask.gpus if ask else 0,
        entry.node,
        ask.priority if ask else 0,
    )

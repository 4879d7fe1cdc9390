"""What is on the cluster now, read once, as the snapshot that `berth k8s status` and the console show."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import msgspec

from berth.errors import ApiError, BerthError
from berth.live.driver.defaults import DEFAULT_POLICY
from berth.live.driver.driver import Driver
from berth.live.driver.more_cards import more_cards
from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Stranger, Tenant
from berth.live.driver.wait_reasons import UNPLACED, WaitKind
from berth.live.kubernetes import names, objects
from berth.live.kubernetes.client import Api, is_unserved
from berth.live.kubernetes.lease import DURATION_S
from berth.live.kubernetes.placements import GpuMemory, read_annotation
from berth.live.kubernetes.pod_requests import moment_ms
from berth.live.kubernetes.pod_site import Entry, PodSite, Settings, State
from berth.live.kubernetes.steering import FORECAST_S, advice, driving, waits_of, watched
from berth.live.kubernetes.tenants import Tenants, fault_of, fault_text, in_force
from berth.model import GpuSlot, Job
from berth.policies import make_policy

SKEW_MS = 30_000
"""How far this machine's clock may be from that of the steerer's, before a Lease counts as left."""


class Steered(NamedTuple):
    """How a steerer decides, as far as it is known."""

    settings: Settings
    policy: str
    """Empty: not known."""
    notes: tuple[str, ...]
    """What an operator has to know."""
    learned_starts: str
    """What the steerer's start intervals have learned."""
    idle: str
    """That no steerer leads, in words; empty if one does."""


async def look(api: Api, *, most_waits: int = 1000) -> Snapshot:
    """List all once, and say what is there. Raises ApiError."""
    now_ms = time.time_ns() // 1_000_000
    how = await as_steered(api, now_ms)
    site = PodSite(how.settings, lambda step: None)
    site.learned_starts = how.learned_starts
    for each in await watched(api, site, lambda: now_ms):
        try:
            async for _, found in api.list(each.path, each.kind):
                for item in found:
                    each.changed(item)
        except ApiError as error:
            may_lack = error.status == 403 and each.without  # who may not list PodGroups sees all else
            if not may_lack and not is_unserved(each.path, error):
                raise
    site.refresh(now_ms)
    async for _, pods in api.list("/api/v1/pods", objects.Pod):
        for pod in pods:
            site.pod_changed(pod, now_ms)
    seen = snapshot(site, now_ms, most_waits)
    # While none leads, that a job has room is no reason to wait.
    jobs = tuple(
        replace(each, why=how.idle) if how.idle and each.state == "waiting" and UNPLACED in each.why else each
        for each in seen.jobs
    )
    return replace(seen, jobs=jobs, policy=how.policy, notes=how.notes)


async def as_steered(api: Api, now_ms: int) -> Steered:
    """How a steerer decides, as its Lease and the tenants say it. Who may not read them sees all else."""
    leases = await _leases(api)
    lease = max(leases or (), key=lambda each: each.spec.renew_time or "", default=None)
    idle = "" if leases is None else why_none_leads(lease, now_ms)
    said = {} if lease is None else lease.metadata.annotations
    namespace = names.NAMESPACE if lease is None else lease.metadata.namespace
    tenants_path = f"/api/v1/namespaces/{namespace}/configmaps/{names.TENANTS}"
    config = await api.find(tenants_path, objects.ConfigMap, missing=(403, 404))
    tenants = Tenants() if config is None else in_force(config)
    policy = said.get(names.POLICY, "") or tenants.policy
    advise = said.get(names.MODE) == "advise"
    notes: tuple[str, ...] = (idle,) if idle else ()
    if not policy:
        return Steered(Settings(), policy, notes, "", idle)
    if why := _why_not_here(policy):
        notes += (f"why pods wait is shown as if the policy were {DEFAULT_POLICY}: {why}",)
        return Steered(Settings(advise=advise), policy, notes, "", idle)
    if config is not None and (fault := fault_of(config, policy)):
        notes += (fault_text(fault),)
    if tenants.policy != policy:
        tenants = Tenants(policy)
    settings = Settings(**msgspec.structs.asdict(tenants), advise=advise)
    return Steered(settings, policy, notes, said.get(names.STARTS, ""), idle)


def why_none_leads(lease: objects.Lease | None, now_ms: int) -> str:
    """That no steerer leads, and since when; empty if one does. Clocks may differ by `SKEW_MS`."""
    namespace = names.NAMESPACE if lease is None else lease.metadata.namespace
    if lease is None:
        return f"no steerer leads, and none has led; see kubectl get pods -n {namespace}"
    renewed_ms = moment_ms(lease.spec.renew_time) or 0
    if lease.spec.holder_identity and now_ms - renewed_ms <= 1000 * DURATION_S + SKEW_MS:
        return ""
    since = f"{(lease.spec.renew_time or '')[:19]}Z"
    return f"no steerer leads since {since}; see kubectl get pods -n {namespace}"


async def _leases(api: Api) -> list[objects.Lease] | None:
    """The Leases of steerers in whatever namespace; in that of `berth k8s install` for someone who may not list them
    all. None for someone who may not read that one either."""
    group, chosen = "/apis/coordination.k8s.io/v1", {"fieldSelector": f"metadata.name={names.LEASE}"}
    try:
        pages = [page async for _, page in api.list(f"{group}/leases", objects.Lease, chosen)]
    except ApiError as error:
        if error.status != 403:
            raise
        path = f"{group}/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"
        found = await api.find(path, objects.Lease, missing=(403, 404))
        return None if found is None else [found]
    return [each for page in pages for each in page]


def _why_not_here(policy: str) -> str:
    """Why the steerer's policy cannot be asked on this machine; empty if it can be."""
    if ":" in policy:  # a look at a cluster must not run code that the cluster names
        return f"the steerer's, {policy}, is code of its own"
    try:
        make_policy(policy)
    except BerthError as error:
        return str(error)
    return ""


def snapshot(site: PodSite, now_ms: int, most_waits: int) -> Snapshot:
    """What a site knows of its cluster. At most `most_waits` pods are listed that wait."""
    driver = Driver(site, driving(site.settings))
    site.refresh(now_ms)
    done = driver.step(now_ms, for_real=False)
    gpus = tuple(_gpus(site, driver))
    entries = sorted(site.waits(), key=lambda entry: entry.order)[:most_waits]
    end_s = time.monotonic() + FORECAST_S
    driver.forecast(now_ms, out_of_time=lambda: time.monotonic() > end_s)
    reasons = waits_of(site, driver, entries)
    if site.settings.advise:
        for uid, place in advice(driver, site.settings.policy, done).items():
            reasons[uid] = f"{place}; the steerer only advises (--mode advise)"
    running = [each for each in site.entries.values() if each.state in (State.LIFTED, State.RUNS)]
    on_gpus = Snapshot(now_ms, gpus)
    jobs = [_runs(each, on_gpus) for each in sorted(running, key=lambda each: each.title)]
    jobs += [_waits(each, driver, reasons[each.uid]) for each in entries]
    more = more_cards(driver.scheduler.cluster, _for_room(driver, entries))
    return Snapshot(now_ms, gpus, tuple(jobs), len(entries), len(running), more_cards=more)


def _gpus(site: PodSite, driver: Driver) -> Iterator[Gpu]:
    cluster = driver.scheduler.cluster
    for name, view in sorted(site.table.views.items()):
        row = cluster.row_of(name)
        if row is None:
            continue
        card_mib, model = (view.model.mem_mib, view.model.name) if view.model else (0, "")
        not_ready = "" if view.ready else "its node is not ready"
        for at, gpu in enumerate(view.gpus):
            slot = GpuSlot(row, at)
            others = cluster.strangers_on(slot)
            strangers: tuple[Stranger, ...] = ()
            if gpu.is_open and others.milli:  # a closed one is counted as used, by no pod
                what = f"other pods: {others.milli / 10:g} % of compute"
                strangers = (Stranger(what, others.mem_mib, milli=others.milli),)
            tenants = tuple(
                _tenant(site.entries[run.job.id], run.share.milli, run.share.mem_mib or card_mib)
                for run in cluster.jobs_on(slot)
            )
            health = not_ready if gpu.healthy else "it is lost, or had an error (XID)"
            drained = gpu.drained or view.cordoned
            yield Gpu(name, gpu.index, model, card_mib, tenants, strangers, health=health, drained=drained)


def _tenant(entry: Entry, milli: int, mem_mib: int) -> Tenant:
    found = Tenant(*_named(entry), milli, mem_mib)
    memory = read_annotation(entry.pod.metadata.annotations, GpuMemory) if entry.pod is not None else None
    if memory is None or memory.max_mib <= memory.promise_mib:
        return found
    return replace(
        found,
        promise_mib=memory.promise_mib,
        max_mib=memory.max_mib,
        asked=memory.asked,
        granted=memory.granted,
        refused=memory.refused,
    )


def _named(entry: Entry) -> tuple[str, str, str]:
    return entry.title, entry.namespace, entry.name


def _runs(entry: Entry, on_gpus: Snapshot) -> LiveJob:
    began_ms = moment_ms(entry.pod.status.start_time if entry.pod is not None else None)
    tenants = (each for gpu in on_gpus.gpus for each in gpu.tenants if each.job == entry.title)
    share = next(((each.milli, each.mem_mib) for each in tenants), (1000, 0))
    annotations = entry.pod.metadata.annotations if entry.pod is not None else {}
    enough, memory = annotations.get(names.ENOUGH), read_annotation(annotations, GpuMemory)
    away = memory is not None and memory.suspended_ms is not None
    return LiveJob(
        *_named(entry),
        "suspended" if away else "starting" if began_ms is None else "running",
        entry.request.gpus if entry.request else 0,
        *share,
        entry.submit_ms,
        entry.submit_ms,
        began_ms,
        on_gpus.places_of(entry.title) or entry.node,
        (memory.uncounted if memory else "") or (f"{enough} are enough by its profile" if enough else ""),
        priority=entry.request.priority if entry.request else 0,
    )


def _waits(entry: Entry, driver: Driver, why: str) -> LiveJob:
    held, request, starts = entry.state is State.HELD, entry.request, driver.starts.get(entry.uid)
    return LiveJob(
        *_named(entry),
        "held" if held else "waiting",
        *((request.gpus, request.milli, request.mem_mib) if request else (0, 1000, 0)),
        entry.submit_ms,
        None if held else entry.submit_ms,
        why=why,
        starts_from_ms=starts.from_ms if starts else None,
        starts_to_ms=starts.to_ms if starts else None,
        priority=request.priority if request else 0,
    )


def _for_room(driver: Driver, entries: Iterable[Entry]) -> Collection[Job]:
    """The jobs and gangs of these pods that start when there is room for them."""
    reasons = driver.reasons(each.uid for each in entries if each.state is State.WAITING)
    found = (driver.scheduler.waiting(uid) for uid, reason in reasons.items() if reason.kind is WaitKind.ROOM)
    return {job.id: job for job in found if job is not None}.values()

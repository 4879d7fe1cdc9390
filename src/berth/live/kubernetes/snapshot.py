"""A cluster that was read, as the snapshot that `berth k8s status` and the console show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Stranger, Tenant

if TYPE_CHECKING:
    from berth.live.kubernetes import viewing


def snapshot_of(view: viewing.Snapshot, now_ms: int) -> Snapshot:
    """The cluster that was read, as every site is shown."""
    gpus = tuple(map(_gpu, view.gpus))
    on_gpus = Snapshot(now_ms, gpus)
    shares = {each.job: (each.milli, each.mem_mib) for gpu in gpus for each in gpu.tenants}
    jobs = []
    for pod in sorted(view.runs, key=lambda pod: pod.name):
        state = "starting" if pod.start_ms is None else "running"
        milli, mem_mib = shares.get(pod.name, (1000, 0))
        where, asked = on_gpus.places_of(pod.name) or pod.node, (pod.gpus, milli, mem_mib)
        times_ms = pod.submit_ms, pod.submit_ms, pod.start_ms
        jobs.append(LiveJob(*_named(pod.name), state, *asked, *times_ms, where, priority=pod.priority))
    for each in view.waits:
        submit_ms, state = now_ms - round(1000 * each.since_s), "held" if each.held else "waiting"
        ready_ms, asked = None if each.held else submit_ms, (each.gpus, each.milli, each.mem_mib)
        jobs.append(
            LiveJob(
                *_named(each.name),
                state,
                *asked,
                submit_ms,
                ready_ms,
                why=each.why,
                starts_from_ms=each.starts.from_ms if each.starts else None,
                starts_to_ms=each.starts.to_ms if each.starts else None,
                priority=each.priority,
            )
        )
    return Snapshot(now_ms, gpus, tuple(jobs), len(view.waits), view.running, more_cards=view.more_cards)


def _gpu(gpu: viewing.GpuUse) -> Gpu:
    holders = zip(gpu.holders, gpu.shares, strict=True)
    tenants = tuple(Tenant(*_named(name), *share) for name, share in holders)
    whose = "claims" if gpu.for_claims else "other pods"
    mem_mib = max(0, gpu.mem_mib - sum(mem for _, mem in gpu.shares))
    others = Stranger(f"{whose}: {gpu.foreign_milli / 10:g} % of compute", mem_mib, milli=gpu.foreign_milli)
    strangers = (others,) if gpu.foreign_milli else ()
    drained = bool(gpu.drained)
    return Gpu(
        gpu.node, gpu.index, gpu.model, gpu.card_mib, tenants, strangers, health=gpu.ailing, drained=drained
    )


def _named(pod: str) -> tuple[str, str, str]:
    """A pod's id, what stands for its user, and its name."""
    return pod, pod.partition("/")[0], pod.rpartition("/")[2]

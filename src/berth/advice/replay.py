"""One replay of a workload under a policy, and what it says of waits, use and users."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from berth.advice.workload import Workload
from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import Interference, Outlook, Tenant, no_interference
from berth.knowledge import make_knowledge
from berth.model import Event, EventKind, GpuModel, Job, work_of
from berth.policies import Setting, make_policy


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that one user, or QOS, had at one time."""

    submitted: int
    running: int
    gpus: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one replay came to, over the jobs that are judged."""

    wait_median_s: float
    wait_p90_s: float
    wait_mean_s: float
    utilisation_pct: float
    """Of all GPUs, held; from the first submission to the last."""
    never: int
    """Jobs that did not start at all."""
    user_wait_s: Mapping[str, float]
    """Mean wait of each user's jobs that started."""
    slowed_pct: float
    """How much longer jobs ran than alone, in the mean; 0 where none shares a GPU that is too busy."""
    others_wait_s: float
    """Mean wait of the jobs without a GPU that are replayed beside them; 0 where there are none."""
    peaks: Mapping[tuple[str, str], Peaks]
    """By scope (`user` or `virtual-cluster`) and name."""

    @property
    def typical_user_wait_s(self) -> float:
        """The geometric mean over users of 1 + their mean wait, less 1: each user counts once."""
        waits = [np.log1p(wait) for wait in self.user_wait_s.values()]
        return float(np.expm1(np.mean(waits))) if waits else 0.0


def mean_use(use: Mapping[str, tuple[float, float | None]]) -> Interference:
    """Jobs on one GPU run at full speed while their mean uses add up to one GPU at most, else in proportion.

    An unmeasured job is taken to use its whole share.
    """

    def model(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        wanted = sum(
            use[tenant.job.id][0] if tenant.job.id in use else tenant.share.milli / 1000 for tenant in tenants
        )
        speed = 1000 if wanted <= 1 or len(tenants) == 1 else int(1000 / wanted)
        return Outlook((speed,) * len(tenants))

    return model


def replay(
    workload: Workload,
    policy: str,
    jobs: Sequence[Job] | None = None,
    *,
    sharing: bool = False,
    knowledge: str = "oracle",
) -> Outcome:
    """Replay the workload, or other jobs of the same ids, on its nodes; the policy believes what `knowledge` says."""
    chosen = workload.jobs if jobs is None else tuple(jobs)
    model = mean_use(workload.use) if sharing else no_interference
    known = make_knowledge(knowledge, chosen, model)
    made = make_policy(policy, Setting(0, knowledge=known))
    cluster = Cluster(workload.nodes)
    return _outcome(workload, simulate(chosen, cluster, made, knowledge=known, interference=model))


def _outcome(workload: Workload, events: Iterable[Event]) -> Outcome:
    """Adds up events as they come."""
    last_ms = max((job.submit_ms for job in workload.jobs), default=0)
    measured = workload.measured
    started: dict[str, int] = {}
    waits: dict[str, list[float]] = defaultdict(list)
    other_waits_s: list[float] = []
    groups: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 8)
    held_ms = never = ran_ms = alone_ms = 0
    for event in events:
        job, kind = event.job, event.kind
        nodes = len({slot.node for slot in event.slots})
        for scope, name in (("user", job.user), ("virtual-cluster", job.virtual_cluster)):
            _count(groups[scope, name], kind, job, nodes)
        if kind is EventKind.START:
            started[job.id] = event.time_ms
            if job.id in measured:
                waits[job.user].append((event.time_ms - job.submit_ms) / 1000)
            elif not job.gpus:
                other_waits_s.append((event.time_ms - job.submit_ms) / 1000)
        elif kind is EventKind.REJECT:
            never += job.id in measured
        elif kind is not EventKind.SUBMIT:
            begin = started.pop(job.id)
            within = max(min(event.time_ms, last_ms) - begin, 0)
            held_ms += within * job.gpus * event.share.milli
            ran_ms += event.time_ms - begin
            alone_ms += min(work_of(job), event.time_ms - begin)
    every = np.array([wait for each in waits.values() for wait in each] or [0.0])
    capacity = workload.gpus * 1000 * max(last_ms, 1)
    return Outcome(
        wait_median_s=float(np.median(every)),
        wait_p90_s=float(np.quantile(every, 0.9)),
        wait_mean_s=float(every.mean()),
        utilisation_pct=100 * held_ms / capacity,
        never=never,
        user_wait_s={user: float(np.mean(each)) for user, each in sorted(waits.items())},
        others_wait_s=float(np.mean(other_waits_s)) if other_waits_s else 0.0,
        slowed_pct=100 * (ran_ms / alone_ms - 1) if alone_ms else 0.0,
        peaks={
            group: Peaks(sums[4], sums[5], -(-sums[6] // 1000), sums[7])
            for group, sums in sorted(groups.items())
        },
    )


def _count(sums: list[int], kind: EventKind, job: Job, nodes: int) -> None:
    """Keep what a group has now in the first four, submitted jobs to nodes, and the most so far in the last four."""
    if kind is EventKind.SUBMIT:
        sums[0] += 1
    elif kind is EventKind.REJECT:
        sums[0] -= 1
    else:
        sign = 1 if kind is EventKind.START else -1
        sums[0] -= kind is not EventKind.START
        sums[1] += sign
        sums[2] += sign * job.gpus * job.share.milli
        sums[3] += sign * nodes
    for at in range(4):
        sums[at + 4] = max(sums[at + 4], sums[at])


def change_of_users(before: Outcome, after: Outcome) -> dict[str, float]:
    """By how many seconds each user's mean wait changes; negative: he waits less."""
    return {
        user: after.user_wait_s.get(user, wait) - wait for user, wait in sorted(before.user_wait_s.items())
    }

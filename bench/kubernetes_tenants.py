"""Three namespaces on one cluster, and a week of pods whose images and arguments change.

    python bench/kubernetes_tenants.py [--days 7] [--tenants-days 2] [--seeds 5] [--only tenants,week]

**tenants**: the jobs of three virtual clusters of the Philly trace, as the pods of three namespaces with equal quotas,
simulated on as many GPUs as their work fills to `--load`. The wait of the lightest namespace (p95) under

    fifo           `fifo+best-fit`, no quotas
    kueue          Kueue's published rules, defaults (https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/): one
                   ClusterQueue a namespace in one cohort; nominal quotas; heads of queues in cycles, those that do not
                   borrow first, then by priority and age; BestEffortFIFO; what is idle is borrowed; no preemption
    kueue-reclaim  the same with `reclaimWithinCohort: Any`: a workload within its nominal quota preempts borrowers
    quotas         berth: `fifo+best-fit` with the quotas of the ConfigMap of tenants, and `borrow`
    quotas-reclaim the same with `reclaim`

Both Kueues are controls that this file writes down again from those rules, not Kueue itself. They are better off than
Kueue: it admits by quota alone and leaves the pods to kube-scheduler, which may find no room on any node; here a
workload is admitted only if best fit finds room.

**week**: pods of applications, whose popularity follows a Zipf law, arrive for `--days` days. An application's image
changes about once a day, which moves its memory and its compute by 10 % (one standard deviation), and each pod's
arguments are its own, which move them by another 5 %. Recorder, knowledge and sizes are the
product's (`ProfileRecorder`, `History`, `live.driver.right_size`); a profile reaches the steerer two minutes after the
pod has ended. Reported: pods that were placed by a profile at most a day old, and refused allocations per 1,000 pods.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.knowledge import History
from berth.live.driver.right_size import enough
from berth.live.local.profile_recorder import ProfileRecorder
from berth.live.local.samples import Sample
from berth.model import EventKind, Evict, GpuModel, Job, Node, Placement, Profile, Share, placement_of
from berth.policies import Policy, Setting, make_policy
from berth.policies.placements.by_score import BestFit
from berth.policies.protocol import place_job
from berth.policies.schemes.preempt import needed
from berth.profiles import read_profile
from berth.traces import read_trace
from harness import count, data_folder, save

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
GPUS_PER_NODE = 8
PAIRS = (
    ("quotas", "fifo"),
    ("quotas", "kueue"),
    ("quotas-reclaim", "kueue"),
    ("quotas-reclaim", "kueue-reclaim"),
)
"""Who is compared."""
GATHERED_MS = 120_000
"""A profile reaches the steerer this long after its pod has ended."""
CARD = GpuModel("A100-80", mem_mib=81_920)


class Kueue:
    """Kueue's published rules, as a policy of the simulator."""

    def __init__(self, quotas: Mapping[str, int], *, reclaim: bool) -> None:
        self.quotas = {name: 1000 * gpus for name, gpus in quotas.items()}
        self.reclaim = reclaim
        self._place = BestFit()

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement | Evict]:
        """Cycles of heads of queues, until none can be admitted."""
        waiting: dict[str, list[Job]] = defaultdict(list)
        for job in queue:
            waiting[job.virtual_cluster].append(job)
        for jobs in waiting.values():
            jobs.sort(key=lambda job: (-job.priority, job.submit_ms), reverse=True)
        while heads := [jobs.pop() for jobs in waiting.values() if jobs]:
            heads.sort(key=lambda job: (self._borrows(job, cluster), -job.priority, job.submit_ms))
            for job in heads:  # one that cannot be admitted is passed over: BestEffortFIFO
                yield from self._admit(job, cluster)

    def _admit(self, job: Job, cluster: Cluster) -> Iterator[Placement | Evict]:
        borrows = self._borrows(job, cluster)
        if borrows and self._held(cluster) + job.gpus * 1000 > sum(self.quotas.values()):
            return
        slots = place_job(self._place, job, cluster)
        if slots is None and self.reclaim and not borrows:
            over = [run for run in cluster.running.values() if self._over(run.job.virtual_cluster, cluster)]
            over.sort(key=lambda run: (run.job.priority, -run.start_ms))
            for run in needed(over, job, cluster):
                yield Evict(run.job)
            slots = place_job(self._place, job, cluster)
        if slots is not None:
            yield placement_of(job, slots)

    def _held(self, cluster: Cluster, of: str = "") -> int:
        accounts = cluster.usage().virtual_clusters
        return sum(each.held_milli for name, each in accounts.items() if of in ("", name))

    def _over(self, name: str, cluster: Cluster) -> bool:
        return self._held(cluster, name) > self.quotas.get(name, 0)

    def _borrows(self, job: Job, cluster: Cluster) -> bool:
        asked = job.gpus * 1000
        return self._held(cluster, job.virtual_cluster) + asked > self.quotas.get(job.virtual_cluster, 0)


def tenants(seed: int, days: int, load: float) -> dict[str, dict[str, float]]:
    """For each policy the waits (h) of the lightest namespace and of all, and GPU-hours lost to evictions."""
    jobs, lightest = trace(seed, days)
    work = sum(job.gpus * (job.work_ms or 0) for job in jobs)
    nodes = max(3, round(work / (days * DAY_MS * load) / GPUS_PER_NODE))
    names = sorted({job.virtual_cluster for job in jobs})
    gpus = nodes * GPUS_PER_NODE
    quotas = {name: gpus // len(names) for name in names}
    ours = {
        "quotas": make_policy("fifo+best-fit", Setting(quotas=quotas, borrow=True)),
        "quotas-reclaim": make_policy("fifo+best-fit", Setting(quotas=quotas, borrow=True, reclaim=True)),
    }
    ways: dict[str, Policy | str] = {
        "fifo": "fifo+best-fit",
        "kueue": Kueue(quotas, reclaim=False),
        "kueue-reclaim": Kueue(quotas, reclaim=True),
        **ours,
    }
    found = {}
    for way, policy in ways.items():
        cluster = Cluster([Node(f"n{at}", GPUS_PER_NODE) for at in range(nodes)])
        first: dict[str, int] = {}
        began: dict[str, int] = {}
        lost = 0
        for event in simulate(jobs, cluster, policy, seed=seed):
            if event.kind is EventKind.START:
                first.setdefault(event.job.id, event.time_ms)
                began[event.job.id] = event.time_ms
            elif event.kind is EventKind.EVICT:
                lost += event.job.gpus * (event.time_ms - began[event.job.id])
        waits = {job.id: (first[job.id] - job.submit_ms) / HOUR_MS for job in jobs}
        light = [waits[job.id] for job in jobs if job.virtual_cluster == lightest]
        found[way] = {
            "lightest_p95_h": float(np.quantile(light, 0.95)),
            "all_p95_h": float(np.quantile([*waits.values()], 0.95)),
            "lost_gpu_h": lost / HOUR_MS,
        }
    return found


def trace(seed: int, days: int) -> tuple[list[Job], str]:
    """The jobs of three virtual clusters in some days of Philly, six times as fast, and the lightest of them.

    `seed` chooses the first day. Of the virtual clusters with 50 to 1,500 jobs then, the three are the one with the
    most work, the one in the middle and the one with the least.
    """
    draw = Random(seed)
    everything = [
        replace(job, submit_ms=job.submit_ms // 6, time_limit_ms=None, estimate_ms=None)
        for job in read_trace(data_folder() / "philly/sia_philly.csv.gz").jobs()
        if job.work_ms and 0 < job.gpus <= GPUS_PER_NODE
    ]
    most = max(job.submit_ms for job in everything)
    begin = draw.randrange(max(1, most - days * DAY_MS))
    inside = [job for job in everything if begin <= job.submit_ms < begin + days * DAY_MS]
    work: dict[str, int] = defaultdict(int)
    number: dict[str, int] = defaultdict(int)
    for job in inside:
        work[job.virtual_cluster] += job.gpus * min(job.work_ms or 0, DAY_MS)
        number[job.virtual_cluster] += 1
    ranked = sorted((name for name in work if 50 <= number[name] <= 1500), key=lambda name: -work[name])
    chosen = [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
    jobs = [
        replace(job, submit_ms=job.submit_ms - begin, work_ms=min(job.work_ms or 0, DAY_MS))
        for job in inside
        if job.virtual_cluster in chosen
    ]
    return jobs, min(chosen, key=lambda name: work[name])


def week(seed: int, days: int, pods: int = 4000, applications: int = 60) -> dict[str, float]:
    """How pods were sized in a week."""
    draw = Random(seed)
    names = [f"team-{at % 3}/app-{at}" for at in range(applications)]
    weights = [1 / (1 + at) ** 0.8 for at in range(applications)]
    base = {name: (draw.uniform(2000, 30_000), draw.uniform(0.1, 0.8)) for name in names}
    image = dict.fromkeys(names, (1.0, 1.0))
    until = dict.fromkeys(names, 0.0)
    knowledge = History()
    found: dict[str, int] = defaultdict(int)
    learned: dict[str, int] = {}
    coming: list[tuple[int, Profile]] = []
    with tempfile.TemporaryDirectory() as folder:
        recorder = ProfileRecorder(Path(folder))
        now_ms = 0.0
        for at in range(pods):
            now_ms += draw.expovariate(pods / (days * DAY_MS))
            while coming and coming[0][0] <= now_ms:
                ready_ms, profile = coming.pop(0)
                knowledge.recorded(profile)
                learned[profile.application] = ready_ms
            name = draw.choices(names, weights)[0]
            if until[name] <= now_ms:  # a new image
                until[name] = now_ms + draw.expovariate(1 / DAY_MS)
                image[name] = draw.lognormvariate(0, 0.1), draw.lognormvariate(0, 0.1)
            memory, compute = (part * moved for part, moved in zip(base[name], image[name], strict=True))
            peak_mib = min(CARD.mem_mib, round(memory * draw.lognormvariate(0, 0.05)))  # by its arguments
            use = min(1.0, compute * draw.lognormvariate(0, 0.05))
            job = Job(
                f"p{at}", int(now_ms), None, user="team", application=name, gpus=1, share=Share(1000, 0)
            )
            share = enough(knowledge, job, {CARD})
            found["pods"] += 1
            found["by_profile"] += share is not None
            found["fresh"] += share is not None and now_ms - learned[name] <= DAY_MS
            given_mib = CARD.mem_mib if share is None else share.mem_mib
            found["given_mib"] += given_mib
            found["used_mib"] += peak_mib
            if peak_mib > given_mib:  # the call is refused, the pod fails, and its next attempt gets more
                found["refused"] += 1
                knowledge.ran_out_of_memory(replace(job, share=Share(1000, given_mib)), peak_mib)
                continue
            samples = [Sample(int(now_ms) + 1000 * step, 100 * use, peak_mib, True) for step in range(5)]
            path = recorder.learn(name, "", CARD, samples, peak_mib)
            if path is not None:
                coming.append((int(now_ms) + GATHERED_MS, read_profile(path)))
    return {
        "placed by a profile of a day, %": 100 * found["fresh"] / found["pods"],
        "placed by any profile, %": 100 * found["by_profile"] / found["pods"],
        "refused per 1,000 pods": 1000 * found["refused"] / found["pods"],
        "memory given, x of used": found["given_mib"] / found["used_mib"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=count, default=5)
    parser.add_argument("--days", type=count, default=7)
    parser.add_argument("--tenants-days", type=count, default=2)
    parser.add_argument("--load", type=float, default=1.5)
    parser.add_argument("--only", default="tenants,week")
    asked = parser.parse_args()
    results: dict[str, object] = {}
    if "week" in asked.only:
        runs = [week(seed, asked.days) for seed in range(asked.seeds)]
        for key in runs[0]:
            values = [run[key] for run in runs]
            print(f"{key:34} {np.mean(values):8.2f}   {min(values):8.2f} to {max(values):.2f}", flush=True)
        results["week"] = runs
    if "tenants" in asked.only:
        by_seed = [tenants(seed, asked.tenants_days, asked.load) for seed in range(asked.seeds)]
        print(
            f"{'':16} {'lightest p95':>14} {'all p95':>10} {'lost GPU-h':>12}   (h, mean of {asked.seeds} seeds)"
        )
        for way in by_seed[0]:
            means = [float(np.mean([run[way][key] for run in by_seed])) for key in by_seed[0][way]]
            print(f"{way:16} {means[0]:14.2f} {means[1]:10.2f} {means[2]:12.1f}")
        for way, control in PAIRS:
            key = "lightest_p95_h"
            below = sum(run[way][key] < run[control][key] for run in by_seed)
            even = sum(run[way][key] == run[control][key] for run in by_seed)
            print(f"{way} below {control}: {below} of {len(by_seed)} seeds, equal in {even}")
        results["tenants"] = by_seed
    save("kubernetes_tenants", results)


if __name__ == "__main__":
    main()

"""Have all compiled that a policy needs, before the first pod waits for a decision."""

from __future__ import annotations

from berth.cluster import Cluster
from berth.gpu_models import gpu_model
from berth.knowledge import make_knowledge
from berth.model import GpuSlot, Job, Node, RecordState, Share
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler


def warm_up(policy_name: str, knowledge_name: str) -> None:
    """Decide on jobs that are not there, on a cluster that is not there: whole GPUs, parts, several, none."""
    knowledge = make_knowledge(knowledge_name, grows=True)
    policy = make_policy(policy_name, Setting(knowledge=knowledge))
    nodes = [Node(f"warm-{at}", 2, gpu_model("A100-80"), 64_000, 262_144, ("warm",)) for at in range(2)]
    scheduler = Scheduler(Cluster(nodes), policy, knowledge)
    applications = list(knowledge.profiles)[:2] or ["warm"]
    sizes = [(1, 300, 1024), (1, 500, 0), (2, 1000, 0), (0, 1000, 0), *[(1, 1000, 0)] * 2, (2, 1000, 0)]
    asked = [(*size, 60_000) for size in sizes]
    # Behind jobs that fit nowhere, some that end before these begin, and some that end later.
    asked = [
        (1, 100, 0, 1_000),
        *[(1, 200, 0, 90_000)] * 8,
        (1, 600, 0, 90_000),
        *asked,
        *[(1, 600, 0, 60_000)] * 4,
    ]
    for at, (gpus, milli, mem_mib, limit_ms) in enumerate(asked):
        labels = ("warm",) if at % 2 else ()
        scheduler.submit(
            Job(
                f"warm-{at}",
                0,
                None,
                gpus=gpus,
                share=Share(milli, mem_mib),
                cpu_milli=100,
                mem_mib=100,
                application=applications[at % len(applications)],
                time_limit_ms=limit_ms,
                priority=at,
                labels=labels,
            )
        )
    scheduler.strangers(GpuSlot(0, 0), 10, 10)
    for now_ms in (1, 3, 5):
        for _ in scheduler.decide(now_ms):
            pass
        scheduler.node_drained("warm-0")
        scheduler.node_back("warm-0")
        for job_id in list(scheduler.cluster.running)[:2]:
            scheduler.ended(job_id, RecordState.COMPLETED, now_ms + 1)
    for job in list(scheduler.queue):
        scheduler.cluster.fitting_nodes(job)
        scheduler.cluster.fits_when_empty(job)

"""Have all compiled that a policy needs, before the first job waits for a decision."""

from __future__ import annotations

from collections.abc import Sequence

from berth.cluster import Cluster
from berth.gpu_models import gpu_model
from berth.knowledge import Knowledge
from berth.model import GpuSlot, Job, Node, RecordState, Share
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler


def warm_up(policy_name: str, knowledge: Knowledge, nodes: Sequence[Node] = ()) -> None:
    """Decide on jobs that are not there: whole GPUs, parts, several, none. By default on nodes that are not there."""
    nodes = nodes or [
        Node(f"warm-{at}", 2, gpu_model("A100-80"), 64_000, 262_144, ("warm",)) for at in (0, 1)
    ]
    scheduler = Scheduler(Cluster(nodes), make_policy(policy_name, Setting(knowledge=knowledge)), knowledge)
    most, cards = max(node.gpus for node in nodes), max(1, sum(node.gpus for node in nodes))
    # Jobs that fill the GPUs, some that fit on none, and behind them some that end before these begin, or later.
    sizes = [(1, 600, 1024, 60_000)] * cards + [(1, 1000, 0, 60_000), (1, 1000, 0, 60_000)]
    sizes += [(1, 100, 0, 1_000), *[(1, 200, 0, 90_000)] * 2 * cards, (1, 100, 0, 1_000), (1, 600, 0, 90_000)]
    sizes += [(1, 300, 1024, 60_000), (2, 1000, 0, 60_000), (0, 1000, 0, 60_000)]
    applications = list(knowledge.profiles)[:2] or ["warm"]
    labels = [node.labels[:1] for node in nodes[:1]] + [()]
    for at, (gpus, milli, mem_mib, limit_ms) in enumerate(sizes):
        scheduler.submit(
            Job(
                f"warm-{at}",
                0,
                None,
                gpus=min(gpus, most),
                share=Share(milli, mem_mib if most else 0),
                application=applications[at % len(applications)],
                time_limit_ms=limit_ms,
                priority=-at,
                labels=labels[at % 2],
            )
        )
    if most:
        scheduler.strangers(GpuSlot(0, 0), 10, 10)
    for now_ms in (1, 3, 5):
        for _ in scheduler.decide(now_ms):
            pass
        scheduler.node_drained(nodes[0].name)
        scheduler.node_back(nodes[0].name)
        for job_id in list(scheduler.cluster.running)[:2]:
            scheduler.ended(job_id, RecordState.COMPLETED, now_ms + 1)
    for job in list(scheduler.queue):
        scheduler.cluster.fitting_nodes(job)
        scheduler.cluster.fits_when_empty(job)

"""Write a policy of your own, and compare it with best-fit."""

from collections.abc import Iterator

import berth


def emptiest_node(queue: berth.Queue, cluster: berth.Cluster, now_ms: int) -> Iterator[berth.Placement]:
    """Start every job that fits, on the node with the most GPU left."""
    for job in queue:
        nodes = cluster.fitting_nodes(job)
        free = cluster.free.milli[nodes].clip(min=0).sum(axis=1)
        slots = cluster.slots_for(job, nodes[(-free).argsort()])
        if slots:
            yield berth.Placement(job, slots, job.share)


trace = berth.read_trace("synthetic:demo?jobs=200&seed=1")
jobs, cluster = list(trace.jobs()), berth.Cluster(trace.nodes or ())
for policy in (emptiest_node, "best-fit"):
    starts = [event for event in berth.simulate(jobs, cluster, policy) if event.kind == "start"]
    waits_s = [(event.time_ms - event.job.submit_ms) / 1000 for event in starts]
    name = policy if isinstance(policy, str) else policy.__name__
    print(f"{name}: {len(starts)} jobs started, mean wait {sum(waits_s) / len(starts):.0f} s")

"""Compute the gain of shortest-first over FIFO that Hu and others (SC 2021, table 3) report for Helios."""

import sys
from dataclasses import replace
from itertools import cycle

import berth

# Theirs is mean completion under FIFO over that under SJF with known run times, each virtual cluster with a strict
# queue and nodes of its own; name their cluster_log.csv to replay it. Without it: two virtual clusters, made up.
if len(sys.argv) > 1:
    trace, nodes = berth.read_trace(sys.argv[1]), None
else:
    pools = ("vcA", "vcB")
    nodes = [berth.Node(f"{pool}-{at}", 8, labels=(pool,)) for pool in pools for at in range(2)]
    trace = [
        replace(job, labels=(pool,), virtual_cluster=pool)
        for pool, job in zip(cycle(pools), berth.read("synthetic:demo?jobs=400&seed=5&load=0.9"))
    ]
result = berth.compare(trace, ["fifo+best-fit", "sjf+best-fit"], cluster=nodes, round_ms=60_000)
fifo_s, sjf_s = (run.summary.completion_time_s.mean for run in result.runs)
print(
    f"mean completion: {fifo_s:,.0f} s under FIFO, {sjf_s:,.0f} s under SJF, a ratio of {fifo_s / sjf_s:.2f}"
)

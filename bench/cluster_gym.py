"""Steps a second of the cluster environment, beside the simulator's own decisions on the same jobs.

    python bench/cluster_gym.py [--jobs 5000] [--cluster 16x8]

The agent starts the first waiting job on the first node that fits, as `fifo+first-fit` does, so that both decide alike.
Writes bench/results/cluster_gym.json.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from berth.cluster import Cluster
from berth.engine import simulate
from berth.experiments.cluster_gym import ClusterEnvironment
from berth.traces import read_nodes, read_trace
from harness import save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--cluster", default="16x8")
    asked = parser.parse_args()
    nodes = read_nodes(asked.cluster)
    trace = read_trace(f"synthetic:philly-like?jobs={asked.jobs}&seed=1")
    jobs = [job for job in trace.jobs() if job.gpus <= nodes[0].gpus and job.nodes <= 1]
    list(simulate(jobs[:100], Cluster(nodes), "fifo+first-fit"))  # loads the kernels
    begin = time.process_time()
    list(simulate(jobs, Cluster(nodes), "fifo+first-fit"))
    alone_s = time.process_time() - begin

    env = ClusterEnvironment(jobs, nodes)
    begin, steps, over = time.process_time(), 0, False
    env.reset(seed=0)
    while not over:
        first = env.action_masks()[1 : 1 + len(nodes)]
        action = int(first.argmax()) + 1 if first.any() else 0
        _, _, over, _, _ = env.step(np.int64(action))
        steps += 1
    took_s = time.process_time() - begin
    print(
        f"{len(jobs):,} jobs on {asked.cluster}: {steps:,} steps, {steps / took_s:,.0f} a second of processor time"
    )
    print(f"the same jobs without observations: {len(jobs) / alone_s:,.0f} starts a second")
    figures = {
        "jobs": len(jobs),
        "steps": steps,
        "steps_a_second": steps / took_s,
        "starts_a_second": len(jobs) / alone_s,
    }
    save("cluster_gym", figures)


if __name__ == "__main__":
    main()

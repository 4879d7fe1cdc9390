"""Runs for tests, made through the ordinary engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.cluster import Cluster
from berth.engine import simulate
from berth.model import GpuModel, Job, Node, Share
from berth.statistics import Run, event_columns, run_of

NODES = (
    Node("big-0", 4, GpuModel("V100")),
    Node("big-1", 4, GpuModel("V100")),
    Node("small-0", 2, GpuModel("T4")),
    Node("cpu-0", 0),
)


def made_runs(
    policies: Sequence[str] = ("fifo+first-fit", "sjf+best-fit"),
    seeds: Sequence[int] = (1, 2, 3),
    nodes: Sequence[Node] = NODES,
    jobs: int = 60,
) -> list[Run]:
    """A run for each policy and seed; the seed makes the jobs."""
    return [
        run_of(
            event_columns(simulate(_jobs(jobs, seed), Cluster(nodes), policy, seed=seed)), nodes, policy, seed
        )
        for policy in policies
        for seed in seeds
    ]


def _jobs(count: int, seed: int) -> list[Job]:
    random = np.random.default_rng(seed)
    submit_ms = np.cumsum(random.integers(0, 20_000, count))
    return [
        Job(
            f"job-{at}",
            int(submit_ms[at]),
            int(random.integers(1000, 200_000)),
            gpus=int(gpus := random.choice([1, 1, 2, 4])),
            share=Share(int(random.choice([250, 500, 1000]))) if gpus == 1 else Share(),
        )
        for at in range(count)
    ]

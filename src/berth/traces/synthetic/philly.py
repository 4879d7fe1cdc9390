"""Jobs like those of Microsoft's Philly cluster, drawn from counts over its public trace, at a load of one's
choice.

Jeon and others, *Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads*, USENIX ATC
2019; the counts are over the flat table of 82,247 jobs (CC-BY-4.0): GPUs of a job, run times by GPUs, jobs of
a virtual cluster. The three are drawn independently, but for run times. The trace itself asks for about 15 %
of its cluster, so that replayed as it is no queue forms; here the load is a setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.model import Job
from berth.traces.published_clusters import philly_nodes
from berth.traces.synthetic import Drawn, Workload
from berth.traces.synthetic.draws import arrivals, chosen, numbers_of, quantile, span_ms, uniform

# GPUs of a job, jobs in the trace, which run times
_GPUS: Final = (
    (1, 76_627, 0),
    (2, 1_818, 1),
    (4, 1_870, 1),
    (8, 1_643, 2),
    (12, 7, 3),
    (16, 199, 3),
    (24, 7, 3),
    (32, 67, 3),
    (64, 6, 3),
    (128, 3, 3),
)
_RUN_TIMES: Final = ("philly 1 GPU", "philly 2 to 4", "philly 8", "philly more")
"""Columns of `run_times_s.csv`."""
_CLUSTERS: Final = (41_226, 16_091, 9_953, 7_423, 1_934, 1_511, 1_435, 1_137, 723, 422, 374, 8, 4, 3, 3)


@dataclass(frozen=True)
class PhillyLike(Drawn):
    """Settings of `synthetic:philly-like`."""

    def __call__(self) -> Workload:
        return Workload(philly_nodes(), self._jobs)

    def _jobs(self) -> Iterator[Job]:
        number, seed = self.jobs, self.seed
        if number == 0:
            return
        size = chosen(uniform(seed, "size", number), [weight for _, weight, _ in _GPUS])
        gpus = np.array([gpus for gpus, _, _ in _GPUS])[size]
        runs = np.array([runs for _, _, runs in _GPUS])[size]
        drawn = uniform(seed, "work", number)
        run_s = numbers_of("run_times_s.csv")
        work_ms = np.empty(number, np.int64)
        for index, column in enumerate(_RUN_TIMES):
            of_size = runs == index
            times_s = quantile(drawn[of_size], run_s["quantile"], run_s[column])
            work_ms[of_size] = (times_s * 1000).astype(np.int64)
        capacity = sum(node.gpus for node in philly_nodes())
        lasting_ms = span_ms(work_ms, gpus * 1000, capacity, self.load)
        submit_ms = arrivals(
            uniform(seed, "arrival", number), lasting_ms, numbers_of("jobs_by_hour.csv")["philly"]
        )
        cluster = chosen(uniform(seed, "cluster", number), _CLUSTERS)
        columns = (column.tolist() for column in (submit_ms, work_ms, gpus, cluster))
        for index, (submit, work, wanted, queue) in enumerate(zip(*columns, strict=True)):
            yield Job(f"philly-{index}", submit, work, gpus=wanted, nodes=0, virtual_cluster=f"vc{queue:02d}")

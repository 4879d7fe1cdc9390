"""What `time-sliced` makes of sharing on GPU_heavy, against one job at a time: the thesis saw 1.017.

Sharing here is the plainest there is: a second job is started beside the first as soon as one is waiting whose
memory surely fits: its peak beside the most that the first still comes to. `--calibrate` tries switching costs and
shows where the mean ratio over 30 job sets comes nearest to the thesis's DqnGPU/SJF.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from berth import Cluster, Node, Placement, Queue, Share, simulate
from berth.cluster import Running
from berth.interference import time_sliced
from berth.interference.profiled import ProfiledInterference
from berth.model import EventKind, GpuSlot
from berth.profiles import THESIS_GPU, series, thesis_profiles, workload_jobs
from harness import save

THESIS_RATIO = 1.017
SLOT = GpuSlot(0, 0)
PROFILES = thesis_profiles()
SERIES = {name: series(profile, THESIS_GPU) for name, profile in PROFILES.items()}


class Pairs:
    """Two at a time: the first waiting job whose memory fits beside the one that runs."""

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        for job in list(queue):
            runs = cluster.jobs_on(SLOT)
            if len(runs) > 1:
                return
            if not runs or self._fits(
                job.application, runs[0].job.application, self._done_ms(runs[0], now_ms)
            ):
                yield Placement(job, (SLOT,), Share(500, 0))

    @staticmethod
    def _done_ms(run: Running, now_ms: int) -> int:
        done_us = (run.job.work_ms or 0) * 1000 - run.left_us + (now_ms - run.as_of_ms) * run.speed_milli
        return done_us // 1000

    @staticmethod
    def _fits(new: str, old: str, done_ms: int) -> bool:
        there = SERIES[old].usage[SERIES[old].row_at(done_ms) :, 1].max()
        return bool(SERIES[new].peak_mem_mib + there <= THESIS_GPU.mem_mib)


def ratio(workload: str, seed: int, switch_milli: int) -> tuple[float, int]:
    """Total time of sharing over that of one job at a time, and how often memory ran out."""
    speeds = partial(time_sliced.time_sliced, switch_milli=switch_milli)
    jobs = [replace(job, share=Share(500, 0)) for job in workload_jobs(workload, seed=seed)]
    cluster = Cluster([Node("node", 1, THESIS_GPU)])
    events = list(simulate(jobs, cluster, Pairs(), interference=ProfiledInterference(PROFILES, speeds)))
    failed = sum(event.kind == EventKind.FAIL for event in events)
    return events[-1].time_ms / sum(job.work_ms or 0 for job in jobs), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibrate", action="store_true", help="Try other switching costs too.")
    parser.add_argument("--seeds", type=int, default=30)
    options = parser.parse_args()
    shipped = time_sliced.SWITCH_MILLI
    costs = sorted({*range(0, 601, 50), shipped}) if options.calibrate else [shipped]
    rows = []
    for cost in costs:
        found = [ratio("GPU_heavy", seed, cost) for seed in range(options.seeds)]
        ratios = np.array([one for one, _ in found])
        rows.append(
            {
                "switch_milli": cost,
                "ratio": round(float(ratios.mean()), 4),
                "low": round(float(ratios.min()), 4),
                "high": round(float(ratios.max()), 4),
                "out_of_memory": sum(failed for _, failed in found),
            }
        )
        print(rows[-1], flush=True)
    save("time_sliced", {"thesis_ratio": THESIS_RATIO, "shipped_switch_milli": shipped, "rows": rows})


if __name__ == "__main__":
    main()

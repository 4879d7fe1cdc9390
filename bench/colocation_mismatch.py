"""What `greedy` and `learned` lose by a wrong model of the GPU: planned by one, run by another.

In the experiment both are given the very function by which the simulator runs, so that their forecasts are exact. Here
each is given `mps` or `time-sliced`, and the simulator runs by either: total time of sets of 30 jobs of `random`
on one GPU of the thesis, and tries that ran out of memory.

    python bench/colocation_mismatch.py [--seeds 10] [--workload random]

Writes bench/results/colocation_mismatch.json.
"""

from __future__ import annotations

import argparse

import numpy as np

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference
from berth.knowledge import Oracle
from berth.model import EventKind, Node, Reason
from berth.policies import Setting, make_policy
from berth.profiles import THESIS_GPU, workload_jobs
from berth_papers.colocation.experiment import MODELS
from harness import count, save

POLICIES = ("greedy", "learned")


def run(workload: str, name: str, seed: int, planned: str, real: str) -> tuple[float, int]:
    """Total time in seconds and tries out of memory of a policy that believes in `planned`."""
    policy = make_policy(name, Setting(seed, knowledge=Oracle((), make_interference(planned))))
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    last_ms = failed = 0
    for event in simulate(
        workload_jobs(workload, 30, seed), cluster, policy, interference=make_interference(real)
    ):
        if event.kind == EventKind.FINISH:
            last_ms = max(last_ms, event.time_ms)
        failed += event.kind == EventKind.FAIL and event.reason == Reason.OUT_OF_MEMORY
    return last_ms / 1000, failed


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=count, default=10)
    parser.add_argument("--workload", default="random")
    asked = parser.parse_args()
    results = []
    for name in POLICIES:
        for real in MODELS:
            for planned in MODELS:
                runs = [run(asked.workload, name, seed, planned, real) for seed in range(asked.seeds)]
                total_s = [total for total, _ in runs]
                failed = [count for _, count in runs]
                results.append(
                    {
                        "policy": name,
                        "planned_by": planned,
                        "run_under": real,
                        "total_s": total_s,
                        "out_of_memory": failed,
                    }
                )
                print(
                    f"{name}, planned by {planned}, run under {real}: {np.mean(total_s):,.0f} s,"
                    f" {sum(failed)} tries out of memory in {asked.seeds} sets",
                    flush=True,
                )
    save("colocation_mismatch", {"workload": asked.workload, "runs": results})


if __name__ == "__main__":
    main()

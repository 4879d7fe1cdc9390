"""How often jobs run out of memory where memory is in doubt, and how often an application does again at once.

    python bench/colocation_memory.py [--seeds 3] [--memory 0.03,0.1] [--policies greedy,learned]

Sets of 30 jobs of each workload of the thesis on its GPU, under `time-sliced` and `mps`, with run times and speeds of
pairs 10 % wrong beside it. *Again* counts tries that run out of memory after another try of the same application did
and none has completed since. Writes bench/results/colocation_memory.json.
"""

from __future__ import annotations

import argparse

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference
from berth.knowledge import make_knowledge
from berth.model import EventKind, Node, Reason
from berth.policies import Setting, make_policy
from berth.profiles import THESIS_GPU, WORKLOADS, workload_jobs
from harness import count, save

FIRST_SEED = 40_000
JOBS = 30
MODES = ("time-sliced", "mps")


def run(workload: str, mode: str, name: str, seed: int, memory: str) -> dict[str, int]:
    """Of one set: tries that ran out of memory, those of an application that had just done so, and jobs that never
    finished."""
    truth, jobs = make_interference(mode), workload_jobs(workload, JOBS, seed)
    knowledge = make_knowledge(f"noisy?run=0.1&memory={memory}&pair=0.1", jobs, truth, seed)
    policy = make_policy(name, Setting(seed, knowledge=knowledge))
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    found = {"out_of_memory": 0, "again": 0, "lost": JOBS}
    last: set[str] = set()
    for event in simulate(jobs, cluster, policy, knowledge=knowledge, interference=truth, seed=seed):
        if event.kind == EventKind.FINISH:
            found["lost"] -= 1
            last.discard(event.job.application)
        elif event.kind == EventKind.FAIL and event.reason == Reason.OUT_OF_MEMORY:
            found["out_of_memory"] += 1
            found["again"] += event.job.application in last
            last.add(event.job.application)
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--memory", default="0.03,0.1")
    parser.add_argument("--policies", default="greedy,learned")
    asked = parser.parse_args()
    results = []
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    for memory in asked.memory.split(","):
        for name in asked.policies.split(","):
            total = {"out_of_memory": 0, "again": 0, "lost": 0}
            most = 0.0
            for workload in WORKLOADS:
                for mode in MODES:
                    runs = [run(workload, mode, name, seed, memory) for seed in seeds]
                    sums = {key: sum(one[key] for one in runs) for key in total}
                    total = {key: total[key] + sums[key] for key in total}
                    most = max(most, 100 * sums["out_of_memory"] / (JOBS * len(runs)))
                    results.append(
                        {"memory": memory, "policy": name, "workload": workload, "mode": mode, **sums}
                    )
            jobs = JOBS * asked.seeds * len(WORKLOADS) * len(MODES)
            print(
                f"memory {memory}, {name}: {100 * total['out_of_memory'] / jobs:.2f} out of memory per 100 jobs,"
                f" at most {most:.1f} in a cell; {total['again']} of an application that had run out last; "
                f"{total['lost']} of {jobs:,} jobs lost",
                flush=True,
            )
    save("colocation_memory", results)


if __name__ == "__main__":
    main()

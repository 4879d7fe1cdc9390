"""How loose the lower bound on total time is: against the shortest schedule known, of sets of six to eight jobs.

That is the best of all schedules that start jobs at the begin and whenever one ends (`least_total_time`), or a policy's
where it is shorter still, as policies may start jobs in between. The distance from the bound to it is what the bound
gives away at most; that from it to a policy, what the policy gives away at least. For each workload and model, sets of
6, 7 and 8 jobs in turn until the processor time is used up.

    python bench/colocation_bound.py [--budget SECONDS]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference, make_speeds
from berth.knowledge import Oracle
from berth.model import EventKind, Job, Node
from berth.policies import Setting, make_policy
from berth.profiles import THESIS_GPU, WORKLOADS, thesis_profiles, workload_jobs
from berth_papers.bounds import least_total_time, time_bound
from harness import save

FIRST_SEED = 600_000
SIZES = (6, 7, 8)
POLICIES = ("greedy", "learned")


def total_ms(policy: str, jobs: tuple[Job, ...], model: str) -> int:
    """When the last of the jobs ends."""
    interference = make_interference(model)
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    chosen = make_policy(policy, Setting(0, knowledge=Oracle((), interference)))
    events = simulate(jobs, cluster, chosen, interference=interference)
    return max(event.time_ms for event in events if event.kind == EventKind.FINISH)


def sets(model: str, workload: str, budget_s: float) -> Iterator[dict[str, float]]:
    """What each set's bounds, shortest schedule and policies are, in seconds."""
    begun = time.process_time()
    seed = 0
    while seed < len(SIZES) or time.process_time() - begun < budget_s:
        jobs = workload_jobs(workload, SIZES[seed % len(SIZES)], FIRST_SEED + seed)
        bound = time_bound(jobs, thesis_profiles(), make_speeds(model), THESIS_GPU)
        exact = least_total_time(jobs, make_interference(model), THESIS_GPU)
        policies = {f"{name}_s": total_ms(name, jobs, model) / 1000 for name in POLICIES}
        yield {
            "jobs": len(jobs),
            "plain_bound_s": max(bound.work_ms, bound.longest_ms) / 1000,
            "bound_s": bound.total_ms / 1000,
            "at_ends_s": exact.total_ms / 1000,
            "shortest_s": min(exact.total_ms / 1000, *policies.values()),
            **policies,
        }
        seed += 1


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=20.0, help="processor seconds a workload and model")
    asked = parser.parse_args()
    results: dict[str, object] = {}
    for model in ("mps", "time-sliced"):
        for workload in WORKLOADS:
            found = list(sets(model, workload, asked.budget))

            def above(name: str, base: str, found: list[dict[str, float]] = found) -> float:
                return float(np.mean([100 * (one[name] / one[base] - 1) for one in found]))

            summary = {
                "sets": len(found),
                "shortest_above_plain_bound_pct": above("shortest_s", "plain_bound_s"),
                "shortest_above_bound_pct": above("shortest_s", "bound_s"),
                **{f"{name}_above_shortest_pct": above(f"{name}_s", "shortest_s") for name in POLICIES},
                **{f"{name}_above_bound_pct": above(f"{name}_s", "bound_s") for name in POLICIES},
            }
            results[f"{model}, {workload}"] = {**summary, "runs": found}
            print(
                f"{model}, {workload}, {len(found)} sets: the shortest schedule known is"
                f" {summary['shortest_above_bound_pct']:.1f} % above the bound (without begin and end"
                f" {summary['shortest_above_plain_bound_pct']:.1f}); above the shortest are"
                f" greedy {summary['greedy_above_shortest_pct']:.1f} %,"
                f" learned {summary['learned_above_shortest_pct']:.1f} %",
                flush=True,
            )
    save("colocation_bound", results)


if __name__ == "__main__":
    main()

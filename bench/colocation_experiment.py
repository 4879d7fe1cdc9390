"""What is asked of `learned` in the experiment of chapter V, under both models of interference.

    python bench/colocation_experiment.py [--seeds 30] [--jobs 2] [--keep FOLDER]

The same runs as `berth experiment colocation`; with `--keep` an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from berth.interference import make_interference
from berth.profiles import WORKLOADS
from berth_papers.colocation.answer import colocation_dict, difference_pct
from berth_papers.colocation.disagreement import disagreement
from berth_papers.colocation.experiment import MODELS, POLICIES, measure_colocation
from harness import count, save

LOOKED_AT = 5
"""So many sets of each workload are gone through again beside `greedy`."""


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=count, default=30)
    parser.add_argument("--jobs", type=count, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--policies", default=",".join(POLICIES))
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    for interference in MODELS:
        policies = tuple(asked.policies.split(","))
        found = measure_colocation(
            tuple(WORKLOADS),
            interference=interference,
            policies=policies,
            seeds=tuple(range(asked.seeds)),
            processes=asked.jobs,
            keep=asked.keep,
        )
        sets = tuple(range(min(asked.seeds, LOOKED_AT)))
        model = make_interference(interference)
        looks = [disagreement(name, model, sets) for name in WORKLOADS] if "learned" in policies else []
        answer: dict[str, Any] = colocation_dict(found, looks, [], {})
        del answer["runs"]
        results[interference] = answer
        for one in answer["summary"]:
            above = (
                "" if one["above_bound_pct"] is None else f", {one['above_bound_pct']:.1f} % above the bound"
            )
            print(
                f"{interference}, {one['workload']}, {one['policy']}: {one['total_s']['mean']:,.0f} s{above},"
                f" {one['out_of_memory']} tries out of memory"
            )
        for workload in WORKLOADS:
            for other in policies:
                if other != "learned" and "learned" in policies:
                    one = difference_pct(found, workload, "learned", other)
                    print(
                        f"{interference}, {workload}, learned against {other}: {one.mean:+.2f} %"
                        f" [{one.low:+.2f}, {one.high:+.2f}]"
                    )
        for point in answer["frontier"]:
            print(
                f"{interference}, random, {point['unslowed_worth_s']} s for a job not slowed:"
                f" {point['not_slowed']:.1f} not slowed, {point['total_s']:,.0f} s"
            )
        for look in looks:
            print(
                f"{interference}, {look.workload}: learned differs from greedy in {look.different_pct:.0f} % of"
                f" {look.decisions:,} decisions on {look.seeds} sets"
            )
        for cost in answer["costs"]:
            print(f"{interference}, random, {cost['name']}: sharing saves {cost['saved_pct']:.1f} %")
        print(f"{interference}: {answer['claims']}")
    save("colocation_experiment", results)


if __name__ == "__main__":
    main()

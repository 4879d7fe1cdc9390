"""How far each policy stays from the optimum: 50 random batches of 40 instances on 12 machines.

    python bench/genetic_gap.py [--batches 50] [--seed 0] [--limit-s 60]

The optimum is HiGHS's (extra `optimum`). Asked of `genetic`: median gap under 0.5 %, worst under 3 %, each
batch within 200 ms. Writes bench/results/genetic_gap.json.
"""

from __future__ import annotations

import argparse

from berth_papers.genetic.batch_file import random_batches
from berth_papers.genetic.optimality import POLICIES, measure_optimality, optimality_dict
from harness import save


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=60.0)
    asked = parser.parse_args()
    policies = (*POLICIES, "genetic?budget_ms=200")
    found = measure_optimality(
        random_batches(asked.batches, seed=asked.seed), policies, seed=asked.seed, time_limit_s=asked.limit_s
    )
    answer = optimality_dict(found)
    proven = sum(one.proven for one in found)
    print(f"{len(found)} batches of 40 instances on 12 machines; optimum proven in {proven}")
    columns = ("median gap", "mean", "worst", "ms, median", "worst", "of CPU", "worst")
    print(f"{'policy':<24}{''.join(f'{column:>11}' for column in columns)}")
    for name, one in answer["policies"].items():  # type: ignore[attr-defined]
        gaps = "".join(f"{one[f'gap_{part}_pct']:>10.2f}%" for part in ("median", "mean", "worst"))
        times = [one[f"{of}_{part}"] for of in ("seconds", "processor_s") for part in ("median", "worst")]
        print(f"{name:<24}{gaps}{''.join(f'{1000 * seconds:>11.1f}' for seconds in times)}")
    pooled = [100 * (one.pooled_paper_milli / one.optimum_milli - 1) for one in found if one.optimum_milli]
    print(
        f"genetic-paper on pooled GPUs claims {sum(pooled) / len(pooled):.1f} % more than can be placed (mean)"
    )
    save("genetic_gap", answer)


if __name__ == "__main__":
    main()
